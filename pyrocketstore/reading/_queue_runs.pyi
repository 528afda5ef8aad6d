import numpy as np
import numpy.typing as npt
from typing import Final, Self, final
from typing_extensions import disjoint_base

from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.files._mapped_file import MappedFile, SelectMappedBufferResult
from pyrocketstore.reading.rocketmq_reads import GetMessageResult, MessageFilter
from pyrocketstore.reading.skipped import QueueDamage
from pyrocketstore.record.tags import TagsExpression
from pyrocketstore.system._open_state import StoreState

__test__: Final[dict[str, object]]

@final
class ReadCounts:
    @property
    def found(self) -> int: ...
    @property
    def missed(self) -> int: ...
    @property
    def messages(self) -> int: ...
    @property
    def longest_ms(self) -> int: ...
    def note(self, count: int, took_ms: int = 0) -> None: ...

__pyx_capi__: Final[dict[str, object]]

FIRST_READ_COUNT: Final[int]
READ_COUNT: Final[int]

@disjoint_base
class RangeFields:
    log: Final[CommitLog]
    queue: Final[ConsumeQueue]
    floor: Final[int]
    wanted: Final[TagsExpression | None]
    damage: Final[QueueDamage]
    check_crc: Final[bool]
    def __new__(
        cls,
        log: CommitLog,
        queue: ConsumeQueue,
        floor: int,
        wanted: TagsExpression | None,
        damage: QueueDamage,
        check_crc: bool,
    ) -> Self: ...

@final
class RecordRows:
    def __new__(cls, capacity: int) -> Self: ...

@final
class RecordRun:
    mapped_file: Final[MappedFile | None]
    count: Final[int]
    def refs(
        self,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]]: ...
    def select(self, keep: npt.NDArray[np.bool_]) -> RecordRun: ...
    def first(self) -> RecordRun: ...

def runs_of(
    part: RangeFields, start: int, count: int, max_bytes: int
) -> tuple[list[RecordRun], int]: ...

@final
class QueueChunks:
    def __new__(
        cls,
        part: RangeFields,
        start: int,
        stop: int,
        state: StoreState,
        owner: object,
        counts: ReadCounts,
    ) -> Self: ...
    def file_gone(self, file: MappedFile, start: int, stop: int) -> Exception | None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> RecordRun: ...

@final
class UnitPull:
    def __new__(cls, log: CommitLog, config: MessageStoreConfig, memory_bound: int) -> Self: ...
    def collect(
        self,
        result: GetMessageResult,
        queue: ConsumeQueue,
        offset: int,
        count: int,
        max_msg_nums: int,
        message_filter: MessageFilter | None,
        max_bytes: int = ...,
    ) -> bool: ...

def join_views(
    views: list[SelectMappedBufferResult], queue_offsets: list[int]
) -> tuple[
    bytes, npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]
]: ...  # buffer, positions, sizes, queue offsets
