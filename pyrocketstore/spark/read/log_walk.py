"""The records of a byte range of a commit log file, and the damage between them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pyrocketstore.columns._decode import reusable_bytes
from pyrocketstore.commit_log._scan import FileWindow, status_name, walk_records
from pyrocketstore.config.dledger import ENTRY_MAGIC
from pyrocketstore.errors import StoreIOError
from pyrocketstore.record._record import HEADER_SIZE, record_size_max
from pyrocketstore.results import Status
from pyrocketstore.spark.read.records import Chunk, Gap
from pyrocketstore.spark.task_types import DataLossError, LogTask
from pyrocketstore.system.env import Env

#: Bytes read at once by default.
WINDOW_BYTES = 8 << 20
_TORN_TEXT = "the record continues after the log's end"


class LogWalk:
    """Yields the records of a LogTask's range as chunks, and the damage between them as gaps.

    The next chunk overwrites the data of a chunk.
    A record or a gap belongs to the range in which it begins. A range whose first byte may be
    inside a record begins with the first record found there.

    Parameters
    ----------
    window_bytes : bytes read at once; a longer record is read whole

    Raises DataLossError where the file is gone and that matters, StoreIOError. Threads: one.
    """

    def __init__(
        self,
        env: Env,
        task: LogTask,
        *,
        fail_on_data_loss: bool,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.env = env
        self.task = task
        self.window_bytes = window_bytes
        self.path = task.file.path
        self.fail_on_data_loss = fail_on_data_loss
        self.gone = False
        self._fd = -1
        self._begin = 0
        self._data: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._buffer: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def __iter__(self) -> Iterator[Chunk | Gap]:
        try:
            self._window = FileWindow(self.env, self.path)  # of searches behind damage
            self._fd = self.env.open(self.path, os.O_RDONLY)
        except StoreIOError as error:
            if error.errno != errno.ENOENT:
                raise
            if self.fail_on_data_loss:
                raise DataLossError(
                    f"{self.path}: gone, with the requested messages; "
                    "failOnDataLoss=false reads the others"
                ) from error
            self.gone = True
            return
        try:
            yield from self._walk()
        finally:
            self.env.close(self._fd, self.path)
            self._window.close()

    def _walk(self) -> Iterator[Chunk | Gap]:
        task = self.task
        at = task.begin if task.begins_at_record else self._find(task.begin)
        follows = False  # `at` is the end of a chunk of this range
        while at < task.end:
            # The next range searches for its first record: this range reports damage before it.
            is_peek = at >= task.stop
            if is_peek and (task.ends_at_record or not follows):
                return
            self._need(at, 1)
            positions, sizes, next_position, status = walk_records(
                self._data,
                at - self._begin,
                (at + 1 if is_peek else task.stop) - self._begin,
                task.file.from_offset + self._begin,
                end=task.end - self._begin,
            )
            if is_peek and len(positions):
                return
            if len(positions):
                yield self._chunk(positions, sizes)
                follows = True
            at = self._begin + next_position
            if status == Status.OK:
                continue
            if status == Status.TORN and self._end < task.end:
                self._need(at, self._size_at(at))
                continue
            if status == Status.BLANK:
                yield Gap(at, task.file.size - at, "")
                return
            found = self._find(at + 1)
            reason = _TORN_TEXT if status == Status.TORN else status_name(status)
            yield Gap(at, found - at, reason)
            at, follows = found, False

    @property
    def _end(self) -> int:
        return self._begin + len(self._data)

    def _need(self, at: int, size: int) -> None:
        """Read at least `size` bytes from `at` on, and window_bytes where the range has as many."""
        if self._begin <= at and at + size <= self._end:
            return
        wanted = min(max(size, self.window_bytes), self.task.end - at)
        if len(self._buffer) < wanted:
            self._buffer = reusable_bytes(wanted)
        self._data = self._buffer[:wanted]
        self._begin = at
        got = self.env.pread_into(self._fd, self._data.data, at, self.path)
        self._data[got:] = 0  # missing bytes of a truncated file count as never written

    def _size_at(self, at: int) -> int:
        """Return the size field of the record or DLedger entry there, but at least the size of a
        record's header."""
        self._need(at, min(8, self.task.end - at))
        header = self._data[at - self._begin : at - self._begin + 8].tobytes()
        size = int.from_bytes(header[4:] if header[:4] == ENTRY_MAGIC else header[:4], "big")
        return max(min(size, record_size_max()), HEADER_SIZE)

    def _find(self, at: int) -> int:
        """Return where the first record from `at` on begins; else the end."""
        start = self.task.file.from_offset
        found = self._window.find_record(start, at, self.task.end, check_crc=False)
        return found if found >= 0 else self.task.end

    def _chunk(self, positions: np.ndarray, sizes: np.ndarray) -> Chunk:
        phy_offset = self.task.file.from_offset + self._begin
        return Chunk(
            self._data,
            np.ascontiguousarray(positions),
            np.ascontiguousarray(sizes),
            positions + phy_offset,
            self.path,
            self.task.file.from_offset,
        )
