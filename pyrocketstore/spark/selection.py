"""Which records of the log are messages of the queues that were asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pyrocketstore._columns import VarColumn, decode_records
from pyrocketstore.arrow import to_record_batch
from pyrocketstore.env import Env
from pyrocketstore.queue_units import QueueUnits
from pyrocketstore.spark.planning import LogTask
from pyrocketstore.spark.records import Piece
from pyrocketstore.spark.snapshot import QueueRange
from pyrocketstore.spark.units import RangeUnits

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

TRANSACTION_MASK = 0xC
#: Neither a transaction, or a committed one.
QUEUED_TYPES = (0x0, 0x8)
_NAMES = ("topic", "queue_id", "queue_offset", "sys_flag")
#: Topics times queues for which a table is made.
_TABLE_MAX = 4096


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
        self._numbers = {(each.topic, each.queue_id): n for n, each in enumerate(ranges)}
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

    def rows(self, piece: Piece) -> Bools:
        """bool[n]: the records that are wanted; their units count as answered.

        Raises StoreCorruptionError for bytes that are no record.
        """
        columns = decode_records(
            piece.data,
            piece.positions,
            piece.sizes,
            _NAMES,
            phy_offsets=piece.phy_offsets,
            path=piece.path,
        )
        offsets = np.asarray(columns["queue_offset"])
        topics = columns["topic"]
        assert isinstance(topics, VarColumn)
        number = self._queue_numbers(topics, np.asarray(columns["queue_id"]))
        keep = number >= 0
        keep &= np.isin(np.asarray(columns["sys_flag"]) & TRANSACTION_MASK, QUEUED_TYPES)
        keep &= (self._low[number] <= offsets) & (offsets < self._high[number])
        places = (self._base[number] + offsets - self._low[number])[keep]
        named = self._units.phy_offset[places] == piece.phy_offsets[keep]
        named &= self._units.size[places] == piece.sizes[keep]
        named &= ~self._answered[places]
        self._answered[places[named]] = True
        keep[keep] = named
        return keep

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

    def _queue_numbers(self, topics: VarColumn, queue_ids: npt.NDArray[np.int32]) -> Int64s:
        """int64[n]: the place in `ranges` of each record's queue; -1 for others."""
        coded = to_record_batch({"topic": topics}).column(0).dictionary_encode()
        names = coded.dictionary.to_pylist()
        topic = np.asarray(coded.indices).astype(np.int64)
        width = int(queue_ids.max(initial=0)) + 1
        if int(queue_ids.min(initial=0)) >= 0 and len(names) * width <= _TABLE_MAX:
            table = [
                self._numbers.get((name, queue_id), -1)
                for name in names
                for queue_id in range(width)
            ]
            return np.array(table, np.int64).take(topic * width + queue_ids)
        both = topic << 32 | queue_ids.astype(np.uint32)
        pairs, back = np.unique(both, return_inverse=True)
        places = [
            self._numbers.get((names[pair >> 32], pair & 0xFFFFFFFF), -1) for pair in pairs.tolist()
        ]
        return np.array(places, np.int64)[back]
