import numpy
from collections.abc import Callable
from numpy.typing import NDArray
from typing import Final, Self, final
from typing_extensions import Buffer, disjoint_base

from pyrocketstore.consume_queue.units import UnitReader
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.system._env import EnvTable

__test__: Final[dict[str, object]]
__pyx_capi__: Final[dict[str, object]]

MAX_ADDR: Final[int]
MAX_PHY_OFFSET: Final[int]
CQ_UNIT_DTYPE: Final[numpy.dtype[numpy.void]]

@final
class ConsumeQueueCore:
    def __new__(cls) -> ConsumeQueueCore: ...
    min_logic_offset: int
    needs_python: bool
    dirty: bool
    repeated_at: int
    @property
    def attached(self) -> bool: ...
    @property
    def attached_file(self) -> MappedFile | None: ...
    @property
    def unmapped(self) -> bool: ...
    @property
    def unit_count(self) -> int: ...
    @property
    def max_physic_offset(self) -> int: ...
    def reset(self, unit_count: int, max_physic_offset: int) -> None: ...
    def attach(self, mapped_file: MappedFile) -> bool: ...
    def attach_unmapped(self, mapped_file: MappedFile) -> bool: ...
    def detach(self) -> None: ...
    def retire(self) -> None: ...
    def put(self, phy_offset: int, size: int, tags_code: int, queue_offset: int) -> int: ...
    def put_units(
        self,
        phy_offset: NDArray[numpy.int64],  # [n], bytes of the log
        size: NDArray[numpy.int32],  # [n], bytes
        tags_code: NDArray[numpy.int64],  # [n]
    ) -> int: ...
    def fill_pre_blank(self, count: int) -> int: ...

@disjoint_base
class UnitAppender:
    failed: bool
    @property
    def core(self) -> ConsumeQueueCore: ...
    def put_message_position_info(
        self, phy_offset: int, size: int, tags_code: int, queue_offset: int
    ) -> bool: ...

def scan_units(units: Buffer) -> tuple[int, int, int]: ...
def truncate_units(units: Buffer, phy_offset: int) -> tuple[int, int, int]: ...
def scan_ext_units(units: Buffer) -> int: ...
def find_min_unit(units: Buffer, min_phy_offset: int, position: int = 0) -> int: ...
def find_last_unit(units: Buffer, with_ext: bool = False) -> int: ...
def is_zero(data: Buffer) -> bool: ...
def read_units(
    units: Buffer,
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int32], NDArray[numpy.int64]]: ...  # [n] each
def decode_units(
    units: Buffer,
    phy_offset: NDArray[numpy.int64],  # [n], written to
    size: NDArray[numpy.int32],  # [n], written to
    tags_code: NDArray[numpy.int64],  # [n], written to
    first: int = 0,
) -> int: ...
def unit_at(units: Buffer, position: int = 0) -> tuple[int, int, int] | None: ...
def encode_units(
    phy_offset: NDArray[numpy.int64],  # [n]
    size: NDArray[numpy.int32],  # [n]
    tags_code: NDArray[numpy.int64],  # [n]
) -> bytes: ...

def look_at_queues(
    env: EnvTable,
    directories: tuple[bytes, ...],
    file_size: int,
    writable: bool,
    found: NDArray[numpy.int64],
) -> None: ...
def read_files(
    files: tuple[MappedFile, ...],
    position: NDArray[numpy.int64],
    size: NDArray[numpy.int64],
    at: NDArray[numpy.int64],
    target: NDArray[numpy.uint8],
    done: NDArray[numpy.uint8],
) -> None: ...

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
