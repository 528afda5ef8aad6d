"""Which records of the log are messages of the queues that were asked for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyrocketstore._columns import VarColumn, decode_records
from pyrocketstore.arrow import to_record_batch
from pyrocketstore.env import Env
from pyrocketstore.spark.records import Piece
from pyrocketstore.spark.snapshot import QueueRange
from pyrocketstore.spark.units import RangeUnits

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

TRANSACTION_MASK = 0xC
#: Neither a transaction, or a committed one.
QUEUED_TYPES = (0x0, 0x8)
_NAMES = ("topic", "queue_id", "queue_offset", "sys_flag")
#: Units held of each queue: of all queues together no more than this.
_UNITS_MAX = 1 << 20
#: Topics times queues for which a table is made.
_TABLE_MAX = 4096
_NO_OFFSET = np.iinfo(np.int64).max


class QueueSelection:
    """Tells of records whether a unit of a wanted range names them.

    Parameters
    ----------
    ranges : what is wanted; each queue once

    Threads: one. Raises DataLossError, StoreIOError.
    """

    def __init__(
        self, env: Env, ranges: tuple[QueueRange, ...], *, fail_on_data_loss: bool
    ) -> None:
        self._numbers = {(each.topic, each.queue_id): n for n, each in enumerate(ranges)}
        self._units = [
            RangeUnits(env, each, fail_on_data_loss=fail_on_data_loss) for each in ranges
        ]
        self._start = np.array([each.start for each in ranges], np.int64)
        self._stop = np.array([each.stop for each in ranges], np.int64)
        self._width = max(64, min(4096, _UNITS_MAX // max(1, len(ranges))))
        self._begin = np.full(len(ranges), -1, np.int64)
        self._phy_offsets = np.empty((len(ranges), self._width), np.int64)

    @property
    def lost(self) -> int:
        """Units that were gone."""
        return sum(units.lost for units in self._units)

    def rows(self, piece: Piece) -> Bools:
        """bool[n]: the records that are wanted.

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
        if len(self._start):
            keep &= (self._start[number] <= offsets) & (offsets < self._stop[number])
            keep[keep] = self._is_named(number[keep], offsets[keep], piece.phy_offsets[keep])
        return keep

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

    def _is_named(self, number: Int64s, offsets: Int64s, phy_offsets: Int64s) -> Bools:
        """bool[n]: whether the unit at each queue offset names that physical offset."""
        named = np.zeros(len(number), np.bool_)
        left = np.arange(len(number))
        while len(left):
            place = offsets[left] - self._begin[number[left]]
            known = (self._begin[number[left]] >= 0) & (place >= 0) & (place < self._width)
            rows = left[known]
            held = self._phy_offsets[number[rows], place[known]]
            named[rows] = held == phy_offsets[rows]
            left = left[~known]
            if not len(left):
                break
            waiting = np.full(len(self._begin), _NO_OFFSET)
            np.minimum.at(waiting, number[left], offsets[left])
            for queue in np.flatnonzero(waiting != _NO_OFFSET).tolist():
                self._fill(queue, int(waiting[queue]))
        return named

    def _fill(self, queue: int, start: int) -> None:
        stop = min(start + self._width, int(self._stop[queue]))
        units = self._units[queue].read(start, stop)
        row = self._phy_offsets[queue]
        row[:] = -1
        row[: stop - start] = np.where(units.is_pre_blank(), -1, units.phy_offset)
        self._begin[queue] = start
