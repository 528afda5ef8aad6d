"""Reading the units of a consume queue: walks over its files, ranges as columns, search by time."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy
from numpy.typing import NDArray

from pyrocketstore._consume_queue import (
    decode_units,
    find_last_unit,
    find_min_unit,
    read_units,
    truncate_units,
    unit_at,
)
from pyrocketstore._mapped_file import MappedFile
from pyrocketstore.errors import StoreError, StoreIOError, StoreStateError
from pyrocketstore.mapped_file_queue import MappedFileQueue

#: What a device writes at once, at least (bytes).
SECTOR_SIZE = 512
CQ_STORE_UNIT_SIZE = 20
PRE_BLANK_SIZE = 2**31 - 1  # the size in a unit that stands where no message has been
PRE_BLANK = (0, PRE_BLANK_SIZE, 0)
NO_LIMIT = 2**63 - 1
#: Recovery looks at so many files at a queue's end.
LAST_FILES = 3
_FIRST_READ_SIZE = 1024 * CQ_STORE_UNIT_SIZE
#: Below malloc's 128 KiB for a mapping of its own: each piece would fault its pages in anew.
_LAST_READ_SIZE = 6144 * CQ_STORE_UNIT_SIZE
_LAST_READ_COUNT = 65536
_TAIL_READ_SIZE = 8192
#: So many units at a file's end say together what it names last.
NEWEST_UNITS = 64

#: (phy_offset, size) of a message to its store time, Unix ms; -1 where it cannot be read.
PickupStoreTimestamp = Callable[[int, int], int]


class QueueFlags(Protocol):
    """What a queue needs of RunningFlags."""

    def is_cq_writeable(self) -> bool:
        """Whether queues may be written."""

    def is_mending(self) -> bool:
        """Whether what was given up is tried again now."""

    def make_logics_queue_error(self, cause: StoreError | None = None) -> None:
        """Remember that a queue lost an entry, and why."""


class QueueUnits(NamedTuple):
    """Consecutive units of a queue as columns of one length, native endian.

    `phy_offset` int64[n], bytes of the log; `size` int32[n], bytes; `tags_code` int64[n].
    """

    phy_offset: NDArray[numpy.int64]
    size: NDArray[numpy.int32]
    tags_code: NDArray[numpy.int64]

    def is_pre_blank(self) -> NDArray[numpy.bool_]:
        """bool[n]: units that fill a gap and name no message."""
        blank = (self.phy_offset == 0) & (self.size == PRE_BLANK_SIZE) & (self.tags_code == 0)
        return numpy.asarray(blank, dtype=numpy.bool_)


class UnitReader:
    """The units in the files of one queue, up to what is written.

    Threads: any.
    """

    def __init__(self, mapped_file_queue: MappedFileQueue, mapped_file_size: int) -> None:
        self.mapped_file_queue = mapped_file_queue
        self.mapped_file_size = mapped_file_size

    # ---- bytes -----------------------------------------------------------------------------------

    def read(self, mapped_file: MappedFile, position: int, size: int) -> bytes:
        """Bytes of a file; none when there are none, or the file is being deleted, by another
        process even.

        Raises StoreIOError.
        """
        if position < 0 or size <= 0:
            return b""
        try:
            return mapped_file.read(position, size)
        except (StoreStateError, StoreIOError) as error:
            can_go = mapped_file.mode == "read" or mapped_file.unlinked
            gone = can_go and getattr(error, "errno", 0) == errno.ENOENT
            if mapped_file.is_available() and not gone:
                raise
            return b""

    def pieces(self, mapped_file: MappedFile) -> Iterator[tuple[int, bytes]]:
        """The written bytes of a file in growing pieces: (position, bytes)."""
        position = 0
        end = mapped_file.wrote
        step = _FIRST_READ_SIZE
        while position < end:
            piece = self.read(mapped_file, position, min(step, end - position))
            if not piece:
                return
            yield position, piece
            position += len(piece)
            step = min(2 * step, _LAST_READ_SIZE)

    # ---- walks -----------------------------------------------------------------------------------

    def scan(self, mapped_file: MappedFile, phy_limit: int) -> tuple[int, int, int]:
        """As truncate_units, over the written bytes of a file."""
        valid_size, max_phy_offset, last_address = truncate_units(b"", phy_limit)
        for position, piece in self.pieces(mapped_file):
            valid, phy_offset, address = truncate_units(piece, phy_limit)
            valid_size = position + valid
            if phy_offset >= 0:
                max_phy_offset = phy_offset
            if address < 0:
                last_address = address
            if valid < len(piece):
                break
        return valid_size, max_phy_offset, last_address

    def has_data(self, mapped_file: MappedFile, position: int) -> bool:
        """Whether what lies right behind `position` is more than zeros: two pages are looked at."""
        size = min(_TAIL_READ_SIZE, mapped_file.wrote - position)
        return bool(self.read(mapped_file, position, size).strip(b"\0"))

    def first_to_scan(self, phy_offset: int) -> int:
        """Which file recovery begins with: see ConsumeQueue.recover."""
        mapped_files = self.mapped_file_queue.mapped_files
        for number in range(max(0, len(mapped_files) - LAST_FILES), 0, -1):
            unit = unit_at(self.read(mapped_files[number], 0, CQ_STORE_UNIT_SIZE))
            was_forced = unit is not None and unit[1] > 0 and unit[0] < phy_offset
            if was_forced or phy_offset == NO_LIMIT:
                return number
        return 0

    def is_two_sectors(self, position: int) -> bool:
        """Whether the unit at that byte of the stream lies in two sectors of its file."""
        start = position % self.mapped_file_size
        return start // SECTOR_SIZE != (start + CQ_STORE_UNIT_SIZE - 1) // SECTOR_SIZE

    def find_min(
        self, mapped_file: MappedFile, min_phy_offset: int
    ) -> tuple[int, tuple[int, int, int]] | None:
        """The first message of a file at or behind `min_phy_offset`: (position, unit), or None.

        A damaged unit among expired ones, behind which two name earlier places, is passed over.
        """
        for position, piece in self.pieces(mapped_file):
            found = find_min_unit(piece, min_phy_offset)
            while found >= 0:
                unit = unit_at(piece, found)
                if unit is None:
                    break
                next_units = self._two_behind(mapped_file, position + found)
                if not _is_before(next_units, min(unit[0], min_phy_offset)):
                    return position + found, unit
                found = find_min_unit(piece, min_phy_offset, found + CQ_STORE_UNIT_SIZE)
        return None

    def _two_behind(self, mapped_file: MappedFile, position: int) -> QueueUnits:
        """The two units behind the one at a position of a file, also where they are in the next
        file; fewer at the queue's end."""
        position += CQ_STORE_UNIT_SIZE
        if position + 2 * CQ_STORE_UNIT_SIZE <= mapped_file.wrote:
            return QueueUnits(*read_units(self.read(mapped_file, position, 2 * CQ_STORE_UNIT_SIZE)))
        return self.columns((mapped_file.file_from_offset + position) // CQ_STORE_UNIT_SIZE, 2)

    def newest_phy_offset_in(self, mapped_file: MappedFile) -> int:
        """Where the last message lies that a file names, bytes of the log; -1 for none.

        Judged by several units, and by the next file's first, so that one damaged unit does not
        decide whether the file is deleted. Where the last two units contradict the next file, that
        may be the wrong one, and does not count.
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
        """The last message of the queue, or the last one that has an ext unit."""
        for mapped_file in reversed(self.mapped_file_queue.mapped_files):
            unit = self.last_unit_in(mapped_file, with_ext)
            if unit is not None:
                return unit
        return None

    def last_unit_in(
        self, mapped_file: MappedFile, with_ext: bool = False
    ) -> tuple[int, int, int] | None:
        """The last message that a file names, or the last one that has an ext unit."""
        end = mapped_file.wrote
        step = CQ_STORE_UNIT_SIZE  # nearly always the last one
        while end > 0:
            start = max(0, end - step)
            piece = self.read(mapped_file, start, end - start)
            unit = unit_at(piece, find_last_unit(piece, with_ext))
            if unit is not None:
                return unit
            end = start
            step = min(max(2 * step, _FIRST_READ_SIZE), _LAST_READ_SIZE)
        return None

    def last_phy_offset_in(self, mapped_file: MappedFile) -> int:
        """Where the last message lies that a file names, bytes of the log; -1 for none."""
        unit = self.last_unit_in(mapped_file)
        return -1 if unit is None else unit[0]

    def last_phy_offset(self) -> int:
        """One past the last message that the queue names, bytes of the log; -1 for none."""
        unit = self.last_unit()
        return -1 if unit is None else unit[0] + unit[1]

    def end_before(self, phy_offset: int) -> int | None:
        """Byte of the stream behind the units before `phy_offset`; None: no file would remain.

        Pre-blank units stay where no unit at or behind `phy_offset` stands before them.
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
        # Where nothing is in the first file its name says where the queue goes on.
        is_there = end > 0 or file.wrote == 0
        return int(file.file_from_offset + end) if is_there else None

    def _end_in(self, mapped_file: MappedFile, phy_offset: int) -> int:
        """Position behind the last unit of a file before `phy_offset`; 0: there is none.

        Looked for from the end on, so that a damaged unit in the middle, which seems to lie behind
        the log, takes none of those that follow it away.
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
        """Position behind the pre-blank units that stand at `position`."""
        while position < mapped_file.wrote:
            size = min(_FIRST_READ_SIZE, mapped_file.wrote - position)
            units = QueueUnits(*read_units(self.read(mapped_file, position, size)))
            others = numpy.flatnonzero(~units.is_pre_blank())
            if len(others) or not len(units.size):
                return position + (int(others[0]) if len(others) else 0) * CQ_STORE_UNIT_SIZE
            position += len(units.size) * CQ_STORE_UNIT_SIZE
        return position

    def first_readable(self, min_phy_offset: int) -> int | None:
        """Queue offset of the first message at or behind `min_phy_offset`, or None."""
        for mapped_file in self.mapped_file_queue.mapped_files:
            if self._has_expired(mapped_file, min_phy_offset):
                continue
            found = self.find_min(mapped_file, min_phy_offset)
            if found is not None:
                return int((mapped_file.file_from_offset + found[0]) // CQ_STORE_UNIT_SIZE)
        return None

    def _has_expired(self, mapped_file: MappedFile, min_phy_offset: int) -> bool:
        """Whether the first and the last units of a file all name places before `min_phy_offset`.

        The next file does not count, as it may be the wrong one.
        """
        size = min(NEWEST_UNITS * CQ_STORE_UNIT_SIZE, mapped_file.wrote)
        is_known = False
        for start in (mapped_file.wrote - size, 0):
            places, sizes, code = read_units(self.read(mapped_file, start, size))
            known = ~QueueUnits(places, sizes, code).is_pre_blank() & (places >= 0) & (sizes > 0)
            if bool((places[known] >= min_phy_offset).any()):
                return False
            is_known = is_known or bool(known.any())
        return is_known or 0 <= self.last_phy_offset_in(mapped_file) < min_phy_offset

    def names(self, phy_offset: int) -> bool:
        """Whether any unit names the message at that byte of the log."""
        start = self.mapped_file_queue.get_min_offset() // CQ_STORE_UNIT_SIZE
        while True:
            units = self.columns(start, _LAST_READ_SIZE // CQ_STORE_UNIT_SIZE)
            if bool((units.phy_offset == phy_offset).any()):
                return True
            if len(units.phy_offset) == 0:
                return False
            start += len(units.phy_offset)

    # ---- ranges ----------------------------------------------------------------------------------

    def unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        """(phy_offset, size, tags_code) at a queue offset, or None."""
        position = queue_offset * CQ_STORE_UNIT_SIZE
        mapped_file = self.mapped_file_queue.find_mapped_file_by_offset(position, False)
        if mapped_file is None:
            return None
        position -= mapped_file.file_from_offset
        if position >= mapped_file.wrote:
            return None
        return unit_at(self.read(mapped_file, position, CQ_STORE_UNIT_SIZE))

    def columns(self, start: int, count: int) -> QueueUnits:
        """`count` units from queue offset `start` on, or fewer where they end."""
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
        """What ConsumeQueue.get_offset_in_queue_by_time answers; there is what the words mean."""
        mapped_file = self.mapped_file_queue.get_mapped_file_by_time(timestamp)
        if mapped_file is None or mapped_file.wrote <= 0:
            return 0
        base = mapped_file.file_from_offset
        low = max(0, min_logic_offset - base)
        high = mapped_file.wrote - CQ_STORE_UNIT_SIZE
        left = right = left_time = right_time = -1
        while high >= low:
            middle = (low + high) // (2 * CQ_STORE_UNIT_SIZE) * CQ_STORE_UNIT_SIZE
            unit = unit_at(self.read(mapped_file, middle, CQ_STORE_UNIT_SIZE))
            if unit is None:
                return 0
            if unit[0] < min_phy_offset:
                low = middle + CQ_STORE_UNIT_SIZE
                left = middle
                continue
            stored = pickup_store_timestamp(unit[0], unit[1])
            if stored < 0:
                return 0
            if stored == timestamp:
                return _units_of(base + middle)
            if stored > timestamp:
                high = middle - CQ_STORE_UNIT_SIZE
                right, right_time = middle, stored
            else:
                low = middle + CQ_STORE_UNIT_SIZE
                left, left_time = middle, stored
        if left_time == -1:
            return _units_of(base + right)
        if right_time == -1:
            return _units_of(base + left)
        is_right = abs(timestamp - left_time) > abs(timestamp - right_time)
        return _units_of(base + (right if is_right else left))

    def lower_bound_by_time(
        self, low: int, high: int, timestamp: int, pickup_store_timestamp: PickupStoreTimestamp
    ) -> int:
        """First queue offset in [low, high) stored at `timestamp` or later; `high` if none."""
        answer = high
        while low < high:
            middle = (low + high) // 2
            found = self._first_stored(middle, high, pickup_store_timestamp)
            if found is None:
                high = middle
            elif found[1] >= timestamp:
                high = middle
                answer = found[0]
            else:
                low = found[0] + 1
        return answer

    def _first_stored(
        self, start: int, end: int, pickup_store_timestamp: PickupStoreTimestamp
    ) -> tuple[int, int] | None:
        """The first message in [start, end) that can be read: (queue offset, store time)."""
        count = 1
        while start < end:
            units = self.columns(start, min(count, end - start))
            for index in numpy.flatnonzero(~units.is_pre_blank()).tolist():
                stored = pickup_store_timestamp(
                    int(units.phy_offset[index]), int(units.size[index])
                )
                if stored >= 0:
                    return start + index, stored
            # No units: the file is gone, and the next one is where they may go on.
            per_file = self.mapped_file_size // CQ_STORE_UNIT_SIZE
            start += len(units.phy_offset) or per_file - start % per_file
            count = min(4 * count, _LAST_READ_COUNT)
        return None


def _is_before(units: QueueUnits, phy_offset: int) -> bool:
    """Whether two units both name messages before `phy_offset`, bytes of the log."""
    before = (units.phy_offset < phy_offset) & (units.size > 0) & ~units.is_pre_blank()
    return len(before) == 2 and bool(before.all())


def _units_of(position: int) -> int:
    """Bytes to units as Java divides: towards zero."""
    units = abs(position) // CQ_STORE_UNIT_SIZE
    return units if position >= 0 else -units


__all__ = ["CQ_STORE_UNIT_SIZE", "NO_LIMIT", "PRE_BLANK", "QueueFlags", "QueueUnits", "UnitReader"]
