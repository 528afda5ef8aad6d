from collections.abc import Mapping
from typing import Final, Self, final

import numpy
from numpy.typing import NDArray

from pyrocketstore.system._env import EnvTable
from pyrocketstore.commit_log._scan import TopicQueueMap
from pyrocketstore.commit_log._scan import TopicMinOffsets

__pyx_capi__: Final[dict[str, object]]
__test__: Final[dict[str, object]]

@final
class RowPool: ...

@final
class RecordMemory:
    def __new__(cls, env: EnvTable, size: int) -> Self: ...

@final
class RecordBuffer: ...

@final
class LogChunk:
    @property
    def path(self) -> str: ...
    @property
    def file_from_offset(self) -> int: ...  # bytes of the log
    @property
    def begin(self) -> int: ...  # bytes into the file; -1: no record
    @property
    def end(self) -> int: ...  # bytes into the file
    @property
    def count(self) -> int: ...
    @property
    def first_v2(self) -> int: ...  # of the first record of 5.x, bytes into the file; -1: none
    @property
    def last_begin(self) -> int: ...  # of the last record, bytes into the file; -1: none
    @property
    def status(self) -> int: ...  # an rs_status
    @property
    def queues(self) -> TopicQueueMap: ...
    @property
    def has_own_memory(self) -> bool: ...
    def position(self, number: int) -> int: ...
    def rows(
        self,
    ) -> tuple[
        NDArray[numpy.int32],
        NDArray[numpy.int64],
        NDArray[numpy.int64],
        NDArray[numpy.int32],
        NDArray[numpy.int64],
        NDArray[numpy.int64],
    ]: ...
    def check_units(
        self, units: list[bytes | None], begins: list[int]
    ) -> list[tuple[int, int]]: ...
    def key_columns(
        self,
    ) -> tuple[NDArray[numpy.int64], NDArray[numpy.int32], NDArray[numpy.int64]]: ...
    @property
    def keyed_end(self) -> int: ...  # bytes of the log; -1: no record has keys
    def queue_keys(self) -> list[tuple[str, int]]: ...
    def queue_ranges(self) -> list[tuple[int, int, int]]: ...
    def multi_rows(self) -> list[tuple[int, int, int | None]]: ...

@final
class LogScanner:
    def __new__(
        cls,
        env: EnvTable,
        delay_levels: Mapping[int, int],
        check_crc: bool,
        *,
        records_max: int | None = None,
        min_offsets: TopicMinOffsets | None = None,
        hash_keys: bool = True,
        keys_from: int = ...,
    ) -> Self: ...
    def scan(
        self,
        path: str,
        file_from_offset: int,
        position: int,
        until: int,
        stop: int,
        *,
        search: bool = False,
    ) -> LogChunk: ...
    def cancel(self) -> None: ...
