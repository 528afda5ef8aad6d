"""Units after a cut of recovery, kept in memory until the log has been dispatched again.

The dispatch restores the units of records that the log still has. The units of records that the log
has lost are put back at their queue offsets, so that readers report each of these messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from pyrocketstore.consume_queue._units import MAX_ADDR
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE, QueueUnits, UnitReader

__all__ = ["KeptUnit", "KeptUnits"]

#: Units that are read at a time.
_READ_COUNT = 1 << 16
# Shared by all queues, nearly all of which keep none.
_NO_OFFSETS = numpy.empty(0, numpy.int64)
_NO_UNITS = QueueUnits(_NO_OFFSETS, numpy.empty(0, numpy.int32), _NO_OFFSETS)


class KeptUnit(NamedTuple):
    """A unit and its queue offset: `unit` is (phy_offset, size, tags_code)."""

    queue_offset: int
    unit: tuple[int, int, int]


class KeptUnits:
    """The units of a queue after its cuts, by ascending queue offset.

    Threads: the one that recovers the queue.
    """

    def __init__(self) -> None:
        self._offset: NDArray[numpy.int64] = _NO_OFFSETS
        self._units = _NO_UNITS

    def __len__(self) -> int:
        return len(self._offset)

    def keep(
        self,
        reader: UnitReader,
        position: int,
        phy_offset: int,
        plain_code: Callable[[int], int],
    ) -> None:
        """Add the units from byte `position` of the queue on that can name a message.

        Parameters
        ----------
        phy_offset : int, bytes of the log, from which on units may not have been durable: a unit
            that names a later byte may come from an earlier process
        plain_code : callable(tags code), returns the tags code in the ext unit at that address

        Raises StoreIOError.
        """
        offsets, parts = [self._offset], [self._units]
        for start, units in _units_from(reader, position):
            begin, size, code = units
            usable = ~units.is_pre_blank() & (begin >= 0) & (size > 0) & (begin < phy_offset)
            at = numpy.flatnonzero(usable)
            code = code[at]
            for i in numpy.flatnonzero(code <= MAX_ADDR).tolist():
                code[i] = plain_code(int(code[i]))
            offsets.append(start + at)
            parts.append(QueueUnits(begin[at], size[at], code))
        offset = numpy.concatenate(offsets)
        order = numpy.argsort(offset, kind="stable")
        order = order[numpy.diff(offset[order], prepend=-1) != 0]
        self._offset = offset[order]
        columns = [numpy.concatenate(column)[order] for column in zip(*parts, strict=True)]
        self._units = QueueUnits(*columns)

    def first(self, start: int, stop: int, begin: int, end: int) -> KeptUnit | None:
        """Return the first unit of the queue offsets [start, stop) that names a record in
        [begin, end), bytes of the log; None without one."""
        low, high = (int(numpy.searchsorted(self._offset, each)) for each in (start, stop))
        count = 1  # nearly always the first one
        while low < high:
            found = self._inside(low, min(low + count, high), begin, end)
            if len(found):
                return self._at(int(found[0]))
            low += count
            count *= 2
        return None

    def last(
        self, start: int, begin: int, end: int, is_lost: Callable[[KeptUnit], bool]
    ) -> KeptUnit | None:
        """As `first`, return the last one from `start` on for which `is_lost` returns True."""
        low = int(numpy.searchsorted(self._offset, start))
        found = self._inside(low, len(self), begin, end).tolist()
        return next((kept for kept in map(self._at, reversed(found)) if is_lost(kept)), None)

    def _inside(self, low: int, high: int, begin: int, end: int) -> NDArray[numpy.intp]:
        """Return which of the units number `low` to `high` name a record in [begin, end)."""
        part = self._units.take(slice(low, high))
        return numpy.flatnonzero(part.is_inside(begin, end)) + low

    def _at(self, index: int) -> KeptUnit:
        phy_offset, size, code = (int(column[index]) for column in self._units)
        return KeptUnit(int(self._offset[index]), (phy_offset, size, code))


def _units_from(reader: UnitReader, position: int) -> Iterator[tuple[int, QueueUnits]]:
    """Yield the units of each file from byte `position` of the queue on, with their first
    offset.
    """
    for file in reader.mapped_file_queue.mapped_files:
        base = file.file_from_offset
        start = max(position, base) // CQ_STORE_UNIT_SIZE
        end = (base + file.wrote) // CQ_STORE_UNIT_SIZE
        while start < end:
            units = reader.columns(start, min(_READ_COUNT, end - start))
            if not len(units.size):
                break  # the file was deleted
            yield start, units
            start += len(units.size)
