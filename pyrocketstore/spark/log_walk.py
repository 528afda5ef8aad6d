"""The records of a byte range of a commit log file, and the damage between them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pyrocketstore._columns import reusable_bytes
from pyrocketstore._log_walk import UNDECIDED_SIZE, find_record, walk_records
from pyrocketstore._record import record_size_max
from pyrocketstore._scan import status_name
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreIOError
from pyrocketstore.spark.planning import LogTask
from pyrocketstore.spark.records import Gap, Piece
from pyrocketstore.spark.snapshot import DataLossError

#: Read at once (bytes) unless another size is asked for.
WINDOW_BYTES = 8 << 20
RS_OK, RS_BLANK, RS_TORN = 0, 1, 3
_TORN_TEXT = "the record goes on behind the log's end"


class LogWalk:
    """What begins in a LogTask's range, in order: pieces of records, and gaps.

    A piece's data is read over once the next one is asked for.
    A record belongs to the range where it begins; damage to the range where it begins. Where a
    range begins at no known place, it begins with the first record that is found there.

    `window_bytes` are read at once; a longer record is read whole.

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

    def __iter__(self) -> Iterator[Piece | Gap]:
        try:
            self._fd = self.env.open(self.path, os.O_RDONLY)
        except StoreIOError as error:
            if error.errno != errno.ENOENT:
                raise
            if self.fail_on_data_loss:
                raise DataLossError(
                    f"{self.path}: gone, with the messages that were asked for; "
                    "failOnDataLoss=false reads the others"
                ) from error
            self.gone = True
            return
        try:
            yield from self._walk()
        finally:
            self.env.close(self._fd, self.path)

    def _walk(self) -> Iterator[Piece | Gap]:
        task = self.task
        at = task.begin if task.begins_at_record else self._find(task.begin)
        follows = False  # what lies at `at` lies right behind something of this range
        while at < task.end:
            # The next range searches for its first record: damage before that is told from here.
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
                yield self._piece(positions, sizes)
                follows = True
            at = self._begin + next_position
            if status == RS_OK:
                continue
            if status == RS_TORN and self._end < task.end:
                self._need(at, self._size_at(at))
                continue
            if status == RS_BLANK:
                yield Gap(at, task.file.size - at, "")
                return
            found = self._find(at + 1)
            reason = _TORN_TEXT if status == RS_TORN else status_name(status)
            yield Gap(at, found - at, reason)
            at, follows = found, False

    @property
    def _end(self) -> int:
        return self._begin + len(self._data)

    def _need(self, at: int, size: int) -> None:
        """Have `size` bytes from `at` on, and as many behind them as are read at once."""
        if self._begin <= at and at + size <= self._end:
            return
        wanted = min(max(size, self.window_bytes), self.task.end - at)
        if len(self._buffer) < wanted:
            self._buffer = reusable_bytes(wanted)
        self._data = self._buffer[:wanted]
        self._begin = at
        got = self.env.pread_into(self._fd, self._data.data, at, self.path)
        self._data[got:] = 0  # cut under us: what is gone reads as never written

    def _size_at(self, at: int) -> int:
        """What the record there says of its size: at least enough for its head."""
        self._need(at, min(4, self.task.end - at))
        head = self._data[at - self._begin : at - self._begin + 4]
        size = min(int.from_bytes(head.tobytes(), "big"), record_size_max())
        return max(size, UNDECIDED_SIZE + 1)

    def _find(self, at: int) -> int:
        """Where the first record begins from `at` on; the end where there is none."""
        end = self.task.end
        while at < end:
            self._need(at, min(UNDECIDED_SIZE + 1, end - at))
            phy_offset = self.task.file.from_offset + self._begin
            found = find_record(self._data, at - self._begin, phy_offset, end=end - self._begin)
            if found >= 0:
                return self._begin + found
            if self._end >= end:
                return end
            at = max(at + 1, self._end - UNDECIDED_SIZE)
            self._data = self._data[:0]
        return end

    def _piece(self, positions: np.ndarray, sizes: np.ndarray) -> Piece:
        phy_offset = self.task.file.from_offset + self._begin
        return Piece(
            self._data,
            np.ascontiguousarray(positions),
            np.ascontiguousarray(sizes),
            positions + phy_offset,
            self.path,
            self.task.file.from_offset,
        )
