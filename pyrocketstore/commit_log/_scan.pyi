import numpy as np
import numpy.typing as npt
from collections.abc import Mapping
from typing import Final, Self, final
from typing_extensions import Buffer, disjoint_base

from pyrocketstore.system._env import EnvTable

__test__: Final[dict[str, object]]
__pyx_capi__: Final[dict[str, object]]

@disjoint_base
class TopicQueueMap:
    # (topic, queue id) -> (first queue offset, its physical offset, next queue offset, count)
    def seen(self) -> dict[tuple[str, int], tuple[int, int, int, int]]: ...
    def ends(self) -> dict[tuple[str, int], int]: ...  # of the last records, bytes of the log
    def add(self, later: TopicQueueMap) -> None: ...

@disjoint_base
class FileWindow:
    def __new__(cls, env: EnvTable, path: str) -> Self: ...
    def open(self, path: str) -> None: ...
    def close(self) -> None: ...
    # bytes into the file, or -1
    def find_record(
        self, file_from_offset: int, position: int, stop: int, *, check_crc: bool
    ) -> int: ...

def scan_file(
    env: EnvTable,
    path: str,
    file_from_offset: int,
    position: int,
    stop: int,
    check_crc: bool,
) -> tuple[int, int, int, int]: ...
def status_name(status: int) -> str: ...
def verdict_of(status: int, is_full: bool) -> str: ...
def find_valid_record(
    env: EnvTable,
    path: str,
    file_from_offset: int,
    position: int,
    stop: int,
    *,
    check_crc: bool,
) -> int: ...

@final
class TopicMinOffsets:
    def __new__(cls, table: Mapping[str, int]) -> Self: ...
    def of(self, topic: str) -> int: ...  # bytes of the log
    def by_topic(self) -> dict[str, int]: ...
    def __bool__(self) -> bool: ...

# (positions int64[n], sizes int32[n], next_position, status)
def walk_records(
    data: Buffer | npt.NDArray[np.generic],
    position: int,
    stop: int,
    phy_offset: int,
    *,
    end: int | None = None,
    check_crc: bool = False,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], int, int]: ...
