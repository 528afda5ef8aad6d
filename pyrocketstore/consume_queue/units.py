"""Read the units of a consume queue: scans of its files, ranges as columns, search by time."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from pyrocketstore.config.message_store_config import CQ_STORE_UNIT_SIZE
from pyrocketstore.consume_queue._units import (
    UnitWindow,
    decode_units,
    find_last_unit,
    find_min_unit,
    is_zero,
    read_units,
    truncate_units,
    unit_at,
)
from pyrocketstore.errors import StoreIOError, StoreStateError
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.files.mapped_file_queue import LAST_FILES, MappedFileQueue

#: A device writes at least this many bytes at once.
SECTOR_SIZE = 512
PRE_BLANK_SIZE = 2**31 - 1  # the size in a unit of a queue offset that never had a message
PRE_BLANK = (0, PRE_BLANK_SIZE, 0)
NO_LIMIT = 2**63 - 1
_FIRST_READ_SIZE = 1024 * CQ_STORE_UNIT_SIZE
#: Below malloc's mmap threshold of 128 KiB: each larger chunk would fault its pages in again.
_LAST_READ_SIZE = 6144 * CQ_STORE_UNIT_SIZE
_TAIL_READ_SIZE = 8192
#: The last message that a file names is decided by this many units at its end.
NEWEST_UNITS = 64

#: Callable(phy_offset, size): store time of a message, Unix ms; -1 when it cannot be read.
PickupStoreTimestamp = Callable[[int, int], int]


class QueueUnits(NamedTuple):
    """Consecutive units of a queue as columns of one length, native endian.

    `phy_offset` int64[n], bytes of the log; `size` int32[n], bytes; `tags_code` int64[n].
    """

    phy_offset: NDArray[numpy.int64]
    size: NDArray[numpy.int32]
    tags_code: NDArray[numpy.int64]

    def take(self, rows: Any) -> QueueUnits:
        """Return the rows that an index, a slice or a mask selects."""
        return QueueUnits(self.phy_offset[rows], self.size[rows], self.tags_code[rows])

    def is_pre_blank(self) -> NDArray[numpy.bool_]:
        """Return bool[n]: the units that fill a gap and name no message."""
        blank = (self.phy_offset == 0) & (self.size == PRE_BLANK_SIZE) & (self.tags_code == 0)
        return numpy.asarray(blank, dtype=numpy.bool_)

    def is_inside(self, begin: int, end: int) -> NDArray[numpy.bool_]:
        """Return bool[n]: the units that name bytes in [begin, end) of the log."""
        # In int64: `end` may be beyond int32, and the end that a damaged unit names beyond int64.
        latest = end - self.size.astype(numpy.int64)
        inside = (self.phy_offset >= begin) & (self.phy_offset <= latest)
        return numpy.asarray(inside, dtype=numpy.bool_)


class FoundQueue(NamedTuple):
    """A queue with one file: its offset, the bytes of its units, and one past the last message that
    they name, bytes of the log, -1 without one."""

    file_from_offset: int
    size: int
    max_phy_offset: int


class UnitReader:
    """The written units in the files of one queue.

    Threads: any.
    """

    def __init__(self, mapped_file_queue: MappedFileQueue, mapped_file_size: int) -> None:
        self.mapped_file_queue = mapped_file_queue
        self.mapped_file_size = mapped_file_size

    # ---- bytes -----------------------------------------------------------------------------------

    def read(self, mapped_file: MappedFile, position: int, size: int) -> bytes:
        """Return bytes of a file; b"" when there are none, or the file is being deleted, also by
        another process.

        Raises StoreIOError.
        """
        if position < 0 or size <= 0:
            return b""
        try:
            return mapped_file.read(position, size)
        except (StoreStateError, StoreIOError) as error:
            if not self.is_gone(mapped_file, error):
                raise
            return b""

    def is_gone(self, mapped_file: MappedFile, error: StoreStateError | StoreIOError) -> bool:
        """Return whether a read failed because the file is being deleted."""
        can_go = mapped_file.mode == "read" or mapped_file.unlinked
        gone = can_go and getattr(error, "errno", 0) == errno.ENOENT
        return gone or not mapped_file.is_available()

    def chunks(self, mapped_file: MappedFile) -> Iterator[tuple[int, bytes]]:
        """Yield the written bytes of a file in growing chunks: (position, bytes)."""
        position = 0
        end = mapped_file.wrote
        step = _FIRST_READ_SIZE
        while position < end:
            chunk = self.read(mapped_file, position, min(step, end - position))
            if not chunk:
                return
            yield position, chunk
            position += len(chunk)
            step = min(2 * step, _LAST_READ_SIZE)

    # ---- walks -----------------------------------------------------------------------------------

    def scan(self, mapped_file: MappedFile, phy_limit: int) -> tuple[int, int, int]:
        """Apply truncate_units to the written bytes of a file."""
        valid_size, max_phy_offset, last_address = truncate_units(b"", phy_limit)
        for position, chunk in self.chunks(mapped_file):
            valid, phy_offset, address = truncate_units(chunk, phy_limit)
            valid_size = position + valid
            if phy_offset >= 0:
                max_phy_offset = phy_offset
            if address < 0:
                last_address = address
            if valid < len(chunk):
                break
        return valid_size, max_phy_offset, last_address

    def has_data(self, mapped_file: MappedFile, position: int) -> bool:
        """Return whether the two pages after `position` hold anything but zeros."""
        size = min(_TAIL_READ_SIZE, mapped_file.wrote - position)
        return not is_zero(self.read(mapped_file, position, size))

    def first_to_scan(self, phy_offset: int) -> int:
        """Return the number of the file that recovery begins with: see `recover_queue`."""
        mapped_files = self.mapped_file_queue.mapped_files
        for number in range(max(0, len(mapped_files) - LAST_FILES), 0, -1):
            unit = unit_at(self.read(mapped_files[number], 0, CQ_STORE_UNIT_SIZE))
            was_durable = unit is not None and unit[1] > 0 and unit[0] < phy_offset
            if was_durable or phy_offset == NO_LIMIT:
                return number
        return 0

    def is_two_sectors(self, position: int) -> bool:
        """Return whether the unit at that byte of the queue spans two sectors of its file."""
        start = position % self.mapped_file_size
        return start // SECTOR_SIZE != (start + CQ_STORE_UNIT_SIZE - 1) // SECTOR_SIZE

    def find_min(
        self, mapped_file: MappedFile, min_phy_offset: int
    ) -> tuple[int, tuple[int, int, int]] | None:
        """Return the first message of a file at or after `min_phy_offset`: (position, unit), or
        None.

        A damaged unit among expired ones is skipped: the two units after it name earlier bytes.
        """
        for position, chunk in self.chunks(mapped_file):
            found = find_min_unit(chunk, min_phy_offset)
            while found >= 0:
                unit = unit_at(chunk, found)
                if unit is None:
                    break
                next_units = self._next_two(mapped_file, position + found)
                if not _is_before(next_units, min(unit[0], min_phy_offset)):
                    return position + found, unit
                found = find_min_unit(chunk, min_phy_offset, found + CQ_STORE_UNIT_SIZE)
        return None

    def _next_two(self, mapped_file: MappedFile, position: int) -> QueueUnits:
        """Return the two units after the one at a position of a file, also from the next file;
        fewer at the queue's end."""
        position += CQ_STORE_UNIT_SIZE
        if position + 2 * CQ_STORE_UNIT_SIZE <= mapped_file.wrote:
            return QueueUnits(*read_units(self.read(mapped_file, position, 2 * CQ_STORE_UNIT_SIZE)))
        return self.columns((mapped_file.file_from_offset + position) // CQ_STORE_UNIT_SIZE, 2)

    def newest_phy_offset_in(self, mapped_file: MappedFile) -> int:
        """Return the physical offset of the last message that a file names; -1 without one.

        Several units of the file, and the first of the next file, decide it together, so that one
        damaged unit does not decide whether the file is deleted. When the last two units contradict
        the next file, that file may be the wrong one, and does not count.
        """
        end = mapped_file.wrote
        start = max(0, end - NEWEST_UNITS * CQ_STORE_UNIT_SIZE)
        phy_offset, size, code = read_units(self.read(mapped_file, start, end - start))
        known = ~QueueUnits(phy_offset, size, code).is_pre_blank() & (phy_offset >= 0) & (size > 0)
        found = phy_offset[known]
        behind = self.mapped_file_queue.find_mapped_file_by_offset(
            mapped_file.file_from_offset + self.mapped_file_size, False
        )
        first = None if behind is None else unit_at(self.read(behind, 0, CQ_STORE_UNIT_SIZE))
        if first is not None and first[0] > 0:
            before = found < first[0]
            if bool(before[-2:].any()):
                found = found[before]
        return int(found.max()) if len(found) else self.last_phy_offset_in(mapped_file)

    def last_unit(self, with_ext: bool = False) -> tuple[int, int, int] | None:
        """Return the last message of the queue, or the last one that has an ext unit."""
        for mapped_file in reversed(self.mapped_file_queue.mapped_files):
            unit = self.last_unit_in(mapped_file, with_ext)
            if unit is not None:
                return unit
        return None

    def last_unit_in(
        self, mapped_file: MappedFile, with_ext: bool = False
    ) -> tuple[int, int, int] | None:
        """Return the last message that a file names, or the last one that has an ext unit."""
        end = mapped_file.wrote
        step = CQ_STORE_UNIT_SIZE  # the common case: the last unit
        while end > 0:
            start = max(0, end - step)
            chunk = self.read(mapped_file, start, end - start)
            unit = unit_at(chunk, find_last_unit(chunk, with_ext))
            if unit is not None:
                return unit
            end = start
            step = min(max(2 * step, _FIRST_READ_SIZE), _LAST_READ_SIZE)
        return None

    def last_phy_offset_in(self, mapped_file: MappedFile) -> int:
        """Return the physical offset of the last unit in a file that names a message; -1
        without.
        """
        unit = self.last_unit_in(mapped_file)
        return -1 if unit is None else unit[0]

    def last_phy_offset(self) -> int:
        """Return one past the last message that the queue names, bytes of the log; -1 without
        one.
        """
        unit = self.last_unit()
        return -1 if unit is None else unit[0] + unit[1]

    def end_before(self, phy_offset: int) -> int | None:
        """Return the byte of the queue after the units before `phy_offset`; None: no file remains.

        Pre-blank units are kept when no unit at or after `phy_offset` precedes them.
        """
        mapped_files = self.mapped_file_queue.mapped_files
        if not mapped_files:
            return None
        number = len(mapped_files) - 1
        while (position := self._end_in(mapped_files[number], phy_offset)) == 0 and number > 0:
            number -= 1
        file, end = mapped_files[number], self._end_of_blanks(mapped_files[number], position)
        for behind in mapped_files[number + 1 :]:
            blanks = self._end_of_blanks(behind, 0)
            if end < self.mapped_file_size or blanks == 0:
                break
            file, end = behind, blanks
        # The name of an empty first file says where the queue continues.
        is_there = end > 0 or file.wrote == 0
        return int(file.file_from_offset + end) if is_there else None

    def _end_in(self, mapped_file: MappedFile, phy_offset: int) -> int:
        """Return the position after the last unit of a file before `phy_offset`; 0 without one.

        Searched from the end, so that a damaged unit in the middle, which seems to name bytes after
        the log, does not drop the units that follow it.
        """
        if phy_offset <= 0:
            return 0
        end = mapped_file.wrote
        step = _FIRST_READ_SIZE
        while end > 0:
            start = max(0, end - step)
            phy_offsets, size, code = read_units(self.read(mapped_file, start, end - start))
            blank = QueueUnits(phy_offsets, size, code).is_pre_blank()
            before = ~blank & (phy_offsets >= 0) & (size > 0) & (phy_offsets < phy_offset)
            found = numpy.flatnonzero(before)
            if len(found):
                last = start + int(found[-1]) * CQ_STORE_UNIT_SIZE
                return last + CQ_STORE_UNIT_SIZE
            end = start
            step = min(2 * step, _LAST_READ_SIZE)
        return 0

    def _end_of_blanks(self, mapped_file: MappedFile, position: int) -> int:
        """Return the position after the pre-blank units at `position`."""
        while position < mapped_file.wrote:
            size = min(_FIRST_READ_SIZE, mapped_file.wrote - position)
            units = QueueUnits(*read_units(self.read(mapped_file, position, size)))
            others = numpy.flatnonzero(~units.is_pre_blank())
            if len(others) or not len(units.size):
                return position + (int(others[0]) if len(others) else 0) * CQ_STORE_UNIT_SIZE
            position += len(units.size) * CQ_STORE_UNIT_SIZE
        return position

    def first_readable(self, min_phy_offset: int) -> int | None:
        """Return the queue offset of the first message at or after `min_phy_offset`, or None."""
        for mapped_file in self.mapped_file_queue.mapped_files:
            if self._has_expired(mapped_file, min_phy_offset):
                continue
            found = self.find_min(mapped_file, min_phy_offset)
            if found is not None:
                return int((mapped_file.file_from_offset + found[0]) // CQ_STORE_UNIT_SIZE)
        return None

    def _has_expired(self, mapped_file: MappedFile, min_phy_offset: int) -> bool:
        """Return whether the first and last units of a file all name bytes before `min_phy_offset`.

        The next file does not count, because it may be the wrong one.
        """
        size = min(NEWEST_UNITS * CQ_STORE_UNIT_SIZE, mapped_file.wrote)
        is_known = False
        for start in (mapped_file.wrote - size, 0):
            named, sizes, code = read_units(self.read(mapped_file, start, size))
            known = ~QueueUnits(named, sizes, code).is_pre_blank() & (named >= 0) & (sizes > 0)
            if bool((named[known] >= min_phy_offset).any()):
                return False
            is_known = is_known or bool(known.any())
        return is_known or 0 <= self.last_phy_offset_in(mapped_file) < min_phy_offset

    def names(self, phy_offset: int) -> bool:
        """Return whether any unit names the message at that byte of the log."""
        start = self.mapped_file_queue.get_min_offset() // CQ_STORE_UNIT_SIZE
        while True:
            units = self.columns(start, _LAST_READ_SIZE // CQ_STORE_UNIT_SIZE)
            if (units.phy_offset == phy_offset).any():
                return True
            if len(units.phy_offset) == 0:
                return False
            start += len(units.phy_offset)

    # ---- ranges ----------------------------------------------------------------------------------

    def unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        """Return (phy_offset, size, tags_code) at a queue offset, or None."""
        position = queue_offset * CQ_STORE_UNIT_SIZE
        mapped_file = self.mapped_file_queue.find_mapped_file_by_offset(position, False)
        if mapped_file is None:
            return None
        position -= mapped_file.file_from_offset
        if position >= mapped_file.wrote:
            return None
        return unit_at(self.read(mapped_file, position, CQ_STORE_UNIT_SIZE))

    def data(self, start: int, count: int) -> bytes:
        """Return the bytes of `count` units from queue offset `start` on, or fewer at the end."""
        parts: list[bytes] = []
        position, end = start * CQ_STORE_UNIT_SIZE, (start + count) * CQ_STORE_UNIT_SIZE
        while position < end:
            file = self.mapped_file_queue.find_mapped_file_by_offset(position, False)
            if file is None:
                break
            at = position - file.file_from_offset
            part = self.read(file, at, min(file.wrote - at, end - position))
            if not part:
                break
            parts.append(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def columns(self, start: int, count: int) -> QueueUnits:
        """Return `count` units from queue offset `start` on, or fewer at the end."""
        end = self.mapped_file_queue.get_max_offset() // CQ_STORE_UNIT_SIZE
        count = max(0, min(count, end - start))
        phy_offset = numpy.empty(count, numpy.int64)
        size = numpy.empty(count, numpy.int32)
        tags_code = numpy.empty(count, numpy.int64)
        done = 0
        while done < count:
            position = (start + done) * CQ_STORE_UNIT_SIZE
            mapped_file = self.mapped_file_queue.find_mapped_file_by_offset(position, False)
            if mapped_file is None:
                break
            position -= mapped_file.file_from_offset
            left = min(mapped_file.wrote - position, (count - done) * CQ_STORE_UNIT_SIZE)
            units = self.read(mapped_file, position, left)
            decoded = decode_units(units, phy_offset, size, tags_code, done)
            if decoded == 0:
                break
            done += decoded
        return QueueUnits(phy_offset[:done], size[:done], tags_code[:done])

    # ---- time ------------------------------------------------------------------------------------

    def nearest_by_time(
        self,
        timestamp: int,
        pickup_store_timestamp: PickupStoreTimestamp,
        min_logic_offset: int,
        min_phy_offset: int,
    ) -> int:
        """Return the result of ConsumeQueue.get_offset_in_queue_by_time, which documents it."""
        mapped_file = self.mapped_file_queue.get_mapped_file_by_time(timestamp)
        if mapped_file is None or mapped_file.wrote <= 0:
            return 0
        return _units_of(
            UnitWindow(self).nearest_by_time(
                mapped_file, timestamp, pickup_store_timestamp, min_logic_offset, min_phy_offset
            )
        )

    def lower_bound_by_time(
        self, low: int, high: int, timestamp: int, pickup_store_timestamp: PickupStoreTimestamp
    ) -> int:
        """Return the first queue offset in [low, high) stored at `timestamp` or later, or
        `high`.
        """
        return UnitWindow(self).lower_bound_by_time(low, high, timestamp, pickup_store_timestamp)


def differing_units(one: bytes, other: bytes) -> NDArray[numpy.int64]:
    """Return the numbers of the 20-byte units that differ between two parts, int64[n].

    The shorter part counts as zeros after its end.
    """
    size = max(len(one), len(other))
    rows = numpy.zeros((2, size), numpy.uint8)
    for row, data in zip(rows, (one, other), strict=True):
        found = numpy.frombuffer(data, numpy.uint8)
        row[: len(found)] = found
    rows = rows[:, : size // CQ_STORE_UNIT_SIZE * CQ_STORE_UNIT_SIZE]
    differ = (rows[0] != rows[1]).reshape(-1, CQ_STORE_UNIT_SIZE).any(axis=1)
    return numpy.flatnonzero(differ).astype(numpy.int64)


def _is_before(units: QueueUnits, phy_offset: int) -> bool:
    """Return whether two units both name messages before `phy_offset`, bytes of the log."""
    before = (units.phy_offset < phy_offset) & (units.size > 0) & ~units.is_pre_blank()
    return len(before) == 2 and bool(before.all())


def _units_of(position: int) -> int:
    """Return bytes as units, divided as in Java: towards zero."""
    units = abs(position) // CQ_STORE_UNIT_SIZE
    return units if position >= 0 else -units


__all__ = [
    "CQ_STORE_UNIT_SIZE",
    "NO_LIMIT",
    "PRE_BLANK",
    "FoundQueue",
    "QueueUnits",
    "UnitReader",
    "differing_units",
]
