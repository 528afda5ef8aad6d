from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Self, final

import numpy as np
import numpy.typing as npt

from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.reading.by_queue import QueueRange

__test__: Final[dict[str, object]]

FIRST_READ_COUNT: Final[int]
READ_COUNT: Final[int]

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
    part: QueueRange, start: int, count: int, max_bytes: int
) -> tuple[list[RecordRun], int]: ...

@final
class QueueChunks:
    def __new__(
        cls,
        part: QueueRange,
        start: int,
        stop: int,
        while_open: Callable[[], AbstractContextManager[None]],
        note_get: Callable[[int], None],
    ) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> RecordRun: ...
