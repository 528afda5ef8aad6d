"""Find the records of the log that selected queues name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pyrocketstore.columns._record_walk import QueueRows
from pyrocketstore.consume_queue.units import QueueUnits
from pyrocketstore.spark.read.records import Chunk
from pyrocketstore.spark.read.units import RangeUnits
from pyrocketstore.spark.task_types import LogTask, QueueRange
from pyrocketstore.system.env import Env

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]


class QueueSelection:
    """Decides which records of a LogTask are named by units of the task.

    Each unit of a range belongs to the task of the bytes that it names. All tasks search the range
    in the same way, whatever the units contain, so that each unit belongs to exactly one task.

    Threads: one. Raises DataLossError, StoreIOError.
    """

    def __init__(
        self, env: Env, task: LogTask, ranges: tuple[QueueRange, ...], *, fail_on_data_loss: bool
    ) -> None:
        self._ranges = ranges
        self._low = np.zeros(len(ranges), np.int64)
        self._high = np.zeros(len(ranges), np.int64)
        held: list[QueueUnits] = []
        #: {directory of a queue: how many of its units are gone}
        self.lost: dict[str, int] = {}
        for number, pinned in enumerate(ranges):
            units = RangeUnits(env, pinned, fail_on_data_loss=fail_on_data_loss)
            low = units.search(task.own_begin)
            high = max(low, units.search(task.own_stop))
            held.append(units.read(low, high))
            self._low[number], self._high[number] = low, high
            if units.lost:
                self.lost[pinned.directory] = units.lost
        self._base = np.cumsum(self._high - self._low) - (self._high - self._low)
        columns = zip(*held, strict=True)
        self._units = QueueUnits(*(np.concatenate(column) for column in columns))
        self._found = self._units.is_pre_blank() | (self._units.size <= 0)
        bounds = zip(ranges, self._low.tolist(), self._high.tolist(), strict=True)
        self._rows = QueueRows(
            [(each.topic, each.queue_id, low, high) for each, low, high in bounds],
            self._units.phy_offset,
            self._units.size,
            self._found,
        )

    def rows(self, chunk: Chunk) -> Bools:
        """Return the selected records (bool[n]), and mark their units as found.

        Raises StoreCorruptionError for bytes that are not a record.
        """
        return self._rows.rows(
            chunk.data, chunk.positions, chunk.sizes, chunk.phy_offsets, path=chunk.path
        )

    def leftovers(self) -> Iterator[tuple[QueueRange, Int64s, QueueUnits]]:
        """Yield the units without a record in the task's bytes, after `rows` had all records:
        their range, their queue offsets, and the units."""
        for number, pinned in enumerate(self._ranges):
            base, count = int(self._base[number]), int(self._high[number] - self._low[number])
            left = np.flatnonzero(~self._found[base : base + count])
            if len(left):
                yield pinned, left + int(self._low[number]), self._units.take(base + left)
