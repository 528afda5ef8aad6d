from collections.abc import Callable
from typing import Final, Self, final

from pyrocketstore.consume_queue.units import UnitReader
from pyrocketstore.files._mapped_file import MappedFile

__test__: Final[dict[str, object]]

@final
class UnitWindow:
    def __new__(cls, reader: UnitReader) -> Self: ...
    def lower_bound_by_time(
        self, low: int, high: int, timestamp: int, store_time: Callable[[int, int], int]
    ) -> int: ...
    def nearest_by_time(
        self,
        mapped_file: MappedFile,
        timestamp: int,
        store_time: Callable[[int, int], int],
        min_logic_offset: int,
        min_phy_offset: int,
    ) -> int: ...

def has_file(reader: UnitReader, queue_offset: int) -> bool: ...
