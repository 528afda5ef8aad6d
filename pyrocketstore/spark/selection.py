"""Which records of the log are messages of the queues that were asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pyrocketstore._queue_rows import QueueRows
from pyrocketstore.env import Env
from pyrocketstore.queue_units import QueueUnits
from pyrocketstore.spark.planning import LogTask
from pyrocketstore.spark.records import Piece
from pyrocketstore.spark.snapshot import QueueRange
from pyrocketstore.spark.units import RangeUnits

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Leftover:
    """Units of a range that no record of the task's bytes answers to."""

    pinned: QueueRange
    queue_offsets: Int64s
    units: QueueUnits


class QueueSelection:
    """Tells of the records of a LogTask whether a unit of the task's names them.

    Each unit of a range is one task's: that of the bytes which it names, by a search in the range
    that all tasks make alike, whatever the units hold. So each unit is answered for once.

    Threads: one. Raises DataLossError, StoreIOError.
    """

    def __init__(
        self, env: Env, task: LogTask, ranges: tuple[QueueRange, ...], *, fail_on_data_loss: bool
    ) -> None:
        self._ranges = ranges
        self._low = np.zeros(len(ranges), np.int64)
        self._high = np.zeros(len(ranges), np.int64)
        held: list[QueueUnits] = []
        self.lost = 0
        for number, pinned in enumerate(ranges):
            units = RangeUnits(env, pinned, fail_on_data_loss=fail_on_data_loss)
            low = units.search(task.own_begin)
            high = max(low, units.search(task.own_stop))
            held.append(units.read(low, high))
            self._low[number], self._high[number] = low, high
            self.lost += units.lost
        self._base = np.cumsum(self._high - self._low) - (self._high - self._low)
        columns = zip(*held, strict=True)
        self._units = QueueUnits(*(np.concatenate(column) for column in columns))
        self._answered = self._units.is_pre_blank() | (self._units.size <= 0)
        bounds = zip(ranges, self._low.tolist(), self._high.tolist(), strict=True)
        self._rows = QueueRows(
            [(each.topic, each.queue_id, low, high) for each, low, high in bounds],
            self._units.phy_offset,
            self._units.size,
            self._answered,
        )

    def rows(self, piece: Piece) -> Bools:
        """bool[n]: the records that are wanted; their units count as answered.

        Raises StoreCorruptionError for bytes that are no record.
        """
        return self._rows.rows(
            piece.data, piece.positions, piece.sizes, piece.phy_offsets, path=piece.path
        )

    def leftovers(self) -> Iterator[Leftover]:
        """What no record has answered to, once all were asked."""
        for number, pinned in enumerate(self._ranges):
            base, count = int(self._base[number]), int(self._high[number] - self._low[number])
            left = np.flatnonzero(~self._answered[base : base + count])
            if len(left):
                units = QueueUnits(
                    self._units.phy_offset[base + left],
                    self._units.size[base + left],
                    self._units.tags_code[base + left],
                )
                yield Leftover(pinned, left + int(self._low[number]), units)
