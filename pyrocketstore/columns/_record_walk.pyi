import numpy as np
import numpy.typing as npt
import numpy
from collections.abc import Iterator, Mapping, Sequence
from numpy.typing import NDArray
from typing import Any, Final, Self, final
from typing_extensions import Buffer

from pyrocketstore.commit_log._scan import FileWindow, TopicQueueMap
from pyrocketstore.system._env import EnvTable

__test__: Final[dict[str, object]]

@final
class QueueRows:
    """Ranges of queues, their units, and the units that records have matched."""

    def __new__(
        cls,
        queues: Sequence[tuple[str, int, int, int]],  # topic, id, queue offsets [low, high)
        phy_offsets: npt.NDArray[np.int64],  # int64[m], bytes
        sizes: npt.NDArray[np.int32],  # int32[m], bytes
        answered: npt.NDArray[np.bool_],  # bool[m], set for each matched unit
    ) -> Self: ...
    def rows(
        self,
        data: Buffer | npt.NDArray[np.generic],
        positions: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int32],
        phy_offsets: npt.NDArray[np.int64],
        *,
        path: str = "commit log",
    ) -> npt.NDArray[np.bool_]: ...

BAD_PROPERTIES: str

@final
class RecordWalk:
    def __new__(
        cls, delay_levels: Mapping[int, int], size: int, check_crc: bool = True
    ) -> Self: ...
    @property
    def queues(self) -> TopicQueueMap: ...
    # (row, INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, queue id)
    @property
    def multi(self) -> list[tuple[int, str, str, int]]: ...
    # rows whose properties were not written completely
    @property
    def bad_properties(self) -> list[int]: ...
    # number of other rows with an item that is not a property
    @property
    def skipped_properties(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def key_count(self) -> int: ...
    # phy_offset queue_offset tags_code store_timestamp: int64[count]; size queue: int32[count];
    # key_row key_hash: int32[key_count]
    def column(self, name: str) -> NDArray[Any]: ...
    def walk(
        self, window: FileWindow, path: str, file_from_offset: int, position: int, stop: int
    ) -> tuple[int, int]: ...
    def ranges(
        self, env: EnvTable, path: str, file_from_offset: int, stop: int
    ) -> Iterator[tuple[int, int, int]]: ...  # begin, end, status
    def queue_names(self) -> list[tuple[str, int]]: ...

def read_ext_units(
    data: Buffer,
    positions: NDArray[numpy.int64],  # [n], bytes
    tags_code: NDArray[numpy.int64],  # [n], written to
    store_timestamp: NDArray[numpy.int64],  # [n], written to
    whole: NDArray[numpy.uint8],  # [n], written to
) -> None: ...
