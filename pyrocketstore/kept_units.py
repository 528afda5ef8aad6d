"""Units behind a place where recovery cut a queue, kept until the log has been dispatched again.

The log gives again what it has. The units of what it has lost say where it was, so they go back to
their queue offsets, and who reads the queue is told of each of these messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from pyrocketstore._consume_queue import MAX_ADDR
from pyrocketstore.queue_units import CQ_STORE_UNIT_SIZE, QueueUnits, UnitReader

__all__ = ["KeptUnit", "KeptUnits"]

#: Units that are read at a time.
_READ_COUNT = 1 << 16


class KeptUnit(NamedTuple):
    """A unit and where it stood: `unit` is (phy_offset, size, tags_code)."""

    queue_offset: int
    unit: tuple[int, int, int]


class KeptUnits:
    """What a queue held behind its cuts: of each unit its queue offset, in rising order.

    Threads: the one that recovers the queue.
    """

    def __init__(self) -> None:
        self._offset: NDArray[numpy.int64] = numpy.empty(0, numpy.int64)
        none = numpy.empty(0, numpy.int64)
        self._units = QueueUnits(none, numpy.empty(0, numpy.int32), none)

    def __len__(self) -> int:
        return len(self._offset)

    def keep(
        self,
        reader: UnitReader,
        position: int,
        phy_offset: int,
        plain_code: Callable[[int], int],
    ) -> None:
        """Take in the units from byte `position` of the queue on that can name a message.

        Parameters
        ----------
        phy_offset : int, bytes of the log from where on nothing was surely forced: a unit that
            names what lies behind may be of an earlier life
        plain_code : callable(tags code), the code without the ext unit that it is the address of

        Raises StoreIOError.
        """
        offsets, parts = [self._offset], [self._units]
        for start, units in _units_from(reader, position):
            place, size, code = units
            usable = ~units.is_pre_blank() & (place >= 0) & (size > 0) & (place < phy_offset)
            at = numpy.flatnonzero(usable)
            code = code[at]
            for i in numpy.flatnonzero(code <= MAX_ADDR).tolist():
                code[i] = plain_code(int(code[i]))
            offsets.append(start + at)
            parts.append(QueueUnits(place[at], size[at], code))
        offset = numpy.concatenate(offsets)
        order = numpy.argsort(offset, kind="stable")
        order = order[numpy.diff(offset[order], prepend=-1) != 0]
        self._offset = offset[order]
        columns = [numpy.concatenate(column)[order] for column in zip(*parts, strict=True)]
        self._units = QueueUnits(*columns)

    def first(self, start: int, stop: int, begin: int, end: int) -> KeptUnit | None:
        """The first unit of the queue offsets [start, stop) that names a place in [begin, end) of
        the log, bytes; None without one."""
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
        """As `first`, the last one from `start` on for which `is_lost` holds."""
        low = int(numpy.searchsorted(self._offset, start))
        found = self._inside(low, len(self), begin, end).tolist()
        return next((kept for kept in map(self._at, reversed(found)) if is_lost(kept)), None)

    def _inside(self, low: int, high: int, begin: int, end: int) -> NDArray[numpy.intp]:
        """Which of the units number `low` to `high` name places in [begin, end)."""
        place, size = self._units.phy_offset[low:high], self._units.size[low:high]
        return numpy.flatnonzero((place >= begin) & (place <= end - size)) + low

    def _at(self, index: int) -> KeptUnit:
        place, size, code = (int(column[index]) for column in self._units)
        return KeptUnit(int(self._offset[index]), (place, size, code))


def _units_from(reader: UnitReader, position: int) -> Iterator[tuple[int, QueueUnits]]:
    """The units of each file from byte `position` of the queue on, with their first offset."""
    for file in reader.mapped_file_queue.mapped_files:
        base = file.file_from_offset
        start = max(position, base) // CQ_STORE_UNIT_SIZE
        end = (base + file.wrote) // CQ_STORE_UNIT_SIZE
        while start < end:
            units = reader.columns(start, min(_READ_COUNT, end - start))
            if not len(units.size):
                break  # it was taken away
            yield start, units
            start += len(units.size)
