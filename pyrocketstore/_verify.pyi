from collections.abc import Mapping
from typing import Any, Final, Self, final

import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from pyrocketstore._scan import FileWindow, TopicQueueMap

__test__: Final[dict[str, object]]

@final
class RecordWalk:
    def __new__(
        cls, delay_levels: Mapping[int, int], size: int, check_crc: bool = True
    ) -> Self: ...
    @property
    def queues(self) -> TopicQueueMap: ...
    # (row, queue id, INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET)
    @property
    def multi(self) -> list[tuple[int, int, str, str]]: ...
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
    def queue_names(self) -> list[tuple[str, int]]: ...

@final
class ChainWalk:
    def __new__(
        cls, hash_slot_num: int, index_count: int) -> Self: ...
    def mark(self, numbers: NDArray[numpy.int64]) -> None: ...
    def entries(self, raw: Buffer, first: int) -> NDArray[numpy.int64]: ...
    def slots_used(self) -> int: ...
    def check_slots(self, raw: Buffer, first: int, live: bool) -> NDArray[numpy.int64]: ...

def read_ext_units(
    data: Buffer,
    positions: NDArray[numpy.int64],  # [n], bytes
    tags_code: NDArray[numpy.int64],  # [n], written to
    store_timestamp: NDArray[numpy.int64],  # [n], written to
    whole: NDArray[numpy.uint8],  # [n], written to
) -> None: ...
def differing_units(one: Buffer, other: Buffer) -> NDArray[numpy.int64]: ...
