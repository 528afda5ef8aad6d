import numpy as np
import numpy.typing as npt
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Self, final
from typing_extensions import disjoint_base

from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.reading._queue_runs import RangeFields, ReadCounts, RecordRun
from pyrocketstore.reading.skipped import QueueDamage, SkippedMessages, SkippedRange
from pyrocketstore.record._message import MessageExt
from pyrocketstore.record._record import QueueName
from pyrocketstore.system._open_state import StoreState

__test__: Final[dict[str, object]]

MAX_RANGES: Final[int]

@disjoint_base
class SkippedFields:
    _count: int
    _max_ranges: int | None
    _ranges: list[SkippedRange]
    def __new__(cls, max_ranges: int | None = 4096) -> Self: ...

@disjoint_base
class DamageFields:
    topic: Final[str]
    queue_id: Final[int]
    skips: Final[bool]
    skipped: Final[SkippedMessages]
    is_replaced: Callable[[], bool] | None
    def __new__(
        cls, topic: str, queue_id: int, on_corrupt: str, skipped: SkippedMessages
    ) -> Self: ...

__pyx_capi__: Final[dict[str, object]]

@final
class RecordBytes:
    """Bytes of commit log files, for compiled readers."""

@final
class MessageIterator:
    skipped: Final[SkippedMessages]  # of an iterator without `damage`: None
    def __init__(
        self,
        chunks: Iterable[
            RecordRun
            | tuple[MappedFile, npt.NDArray[np.int64], npt.NDArray[np.int32]]
            | tuple[
                MappedFile, npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]
            ]
        ],
        tags: frozenset[str] | None,
        file_gone: Callable[[MappedFile, int, int], BaseException | None],
        *,
        queue: QueueName | None = None,
        damage: QueueDamage | None = None,
        check_crc: bool = False,
    ) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> MessageExt: ...

def messages_between(
    part: RangeFields,
    start: int,
    stop: int,
    state: StoreState,
    owner: object,
    counts: ReadCounts,
) -> MessageIterator: ...
@final
class MergedMessages:
    skipped: Final[SkippedMessages]
    def __new__(cls, parts: Sequence[Iterator[MessageExt]], skipped: SkippedMessages) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> MessageExt: ...

def gather_records(
    mapped_file: MappedFile,
    phy_offsets: npt.NDArray[np.int64],  # int64[n], bytes
    sizes: npt.NDArray[np.int32],  # int32[n], bytes
    out: npt.NDArray[np.uint8],  # uint8[m]
    position: int,
    *,
    check: bool = True,
    positions: npt.NDArray[np.int64] | None = None,  # int64[n], bytes
) -> None: ...
