"""Single units of a queue for compiled readers, and searches by time.

A unit is read in the file's mapping. Where the file is not mapped, one call reads a block of units
around it.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore.consume_queue._units cimport is_pre_blank
from pyrocketstore.files._mapped_file cimport MappedFile, file_with
from pyrocketstore._rocketstore cimport (
    RS_CQ_STORE_UNIT_SIZE, rs_load_acquire, rs_load_be32, rs_load_be64,
)

from pyrocketstore.errors import StoreIOError

cdef enum:
    UNIT = RS_CQ_STORE_UNIT_SIZE
    NEAR_UNITS = 32     # a search reads so many units on both sides of each step
    SCAN_UNITS = 4096   # and so many at once where records are unreadable

# No queue has a unit there.
cdef int64_t MAX_OFFSET = (<int64_t>1 << 62) // UNIT


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class UnitWindow:
    """The units of a queue around the one that was read last.

    Parameters
    ----------
    reader : UnitReader

    Raises StoreIOError. Threads: one at a time.
    """

    def __cinit__(self, reader):
        self.reader = reader
        self.mapped_file_queue = reader.mapped_file_queue
        self.file_size = reader.mapped_file_size

    def __dealloc__(self):
        if self.held is not None:
            self.held.drop_hold()

    cdef int close(self) except -1:
        cdef MappedFile held = self.held
        self.first = self.stop = 0
        self.base = NULL
        self.block = None
        self.held = None
        if held is not None:
            held.drop_hold()
        return 0

    cdef const uint8_t *at(
        self, int64_t queue_offset, int64_t before, int64_t ahead
    ) except? NULL:
        if not self.first <= queue_offset < self.stop:
            self.move(queue_offset, before, ahead)
            if not self.first <= queue_offset < self.stop:
                return NULL
        return self.base + (queue_offset - self.first) * UNIT

    cdef int move(self, int64_t queue_offset, int64_t before, int64_t ahead) except -1:
        cdef MappedFile mapped_file
        cdef int64_t position, wrote, begin
        self.close()
        if queue_offset < 0 or queue_offset > MAX_OFFSET:
            return 0
        position = queue_offset * UNIT
        mapped_file = file_with(self.mapped_file_queue.mapped_files, position, self.file_size)
        if mapped_file is None:
            return 0
        position -= mapped_file.file.file_from_offset
        wrote = rs_load_acquire(&mapped_file.file.wrote)
        if position > wrote - UNIT:
            return 0
        if mapped_file.file.base != NULL:
            if mapped_file.take_hold():
                self.held = mapped_file
                self.base = mapped_file.file.base
                self.set(mapped_file, 0, wrote)
            return 0
        begin = max(<int64_t>0, position - before * UNIT)
        ahead = min(max(ahead, <int64_t>1), wrote // UNIT)
        wrote = min(wrote, position + ahead * UNIT)
        self.block = self.read(mapped_file, begin, wrote - begin)
        self.base = <const uint8_t *>PyBytes_AS_STRING(self.block)
        self.set(mapped_file, begin, PyBytes_GET_SIZE(self.block))
        return 0

    cdef bytes read(self, MappedFile mapped_file, int64_t position, int64_t size):
        # As UnitReader.read, without its frames.
        if not mapped_file.is_on_disk():
            return self.reader.read(mapped_file, position, size)
        try:
            return mapped_file.pread(position, size)
        except StoreIOError as error:
            if not self.reader.is_gone(mapped_file, error):
                raise
            return b""

    cdef int set(self, MappedFile mapped_file, int64_t begin, int64_t size) except -1:
        # The window starts at byte `begin` of the file.
        self.first = (mapped_file.file.file_from_offset + begin) // UNIT
        self.stop = self.first + size // UNIT
        return 0

    # ---- time ------------------------------------------------------------------------------------

    def lower_bound_by_time(self, int64_t low, int64_t high, timestamp, store_time):
        """Return the first queue offset in [low, high) stored at `timestamp` or later, or `high`.

        Parameters
        ----------
        timestamp : int, Unix ms
        store_time : callable(phy_offset, size): Unix ms, -1 for an unreadable message
        """
        cdef int64_t answer = high
        cdef int64_t middle
        cdef int64_t[2] found
        low, high = max(low, <int64_t>0), min(high, MAX_OFFSET)
        try:
            while low < high:
                middle = low + (high - low) // 2
                if not self.first_stored(middle, high, store_time, found):
                    high = middle
                elif found[1] >= timestamp:
                    high = middle
                    answer = found[0]
                else:
                    low = found[0] + 1
        finally:
            self.close()
        return answer

    cdef bint first_stored(
        self, int64_t start, int64_t end, object store_time, int64_t *found
    ) except -1:
        cdef int64_t ahead = NEAR_UNITS
        cdef int64_t phy_offset, time
        cdef int32_t size
        cdef const uint8_t *p
        while start < end:
            p = self.at(start, NEAR_UNITS, ahead)
            if p == NULL:  # the file is deleted; the next file may have some
                start = self.next_file(start)
                continue
            phy_offset, size = rs_load_be64(p), rs_load_be32(p + 8)
            if not is_pre_blank(phy_offset, size, rs_load_be64(p + 12)):
                time = store_time(phy_offset, size)
                if time >= 0:
                    found[0], found[1] = start, time
                    return True
            start += 1
            ahead = min(4 * ahead, <int64_t>SCAN_UNITS)
        return False

    cdef int64_t next_file(self, int64_t start) except -1:
        # The first queue offset of the next file, MAX_OFFSET without one.
        cdef int64_t found = MAX_OFFSET
        cdef int64_t first
        for item in self.mapped_file_queue.mapped_files:
            first = (<MappedFile?>item).file.file_from_offset // UNIT
            if start < first < found:
                found = first
        return found

    def nearest_by_time(
        self, MappedFile mapped_file, timestamp, store_time, int64_t min_logic_offset,
        int64_t min_phy_offset,
    ):
        """Return the result of ConsumeQueue.get_offset_in_queue_by_time in one file: bytes of the
        queue; -1 divided as Java does where no unit was found.
        """
        cdef int64_t base = mapped_file.file.file_from_offset
        cdef int64_t low = min_logic_offset - base if min_logic_offset > base else 0
        cdef int64_t high = rs_load_acquire(&mapped_file.file.wrote) - UNIT
        cdef int64_t left = -1, right = -1, left_time = -1, right_time = -1
        cdef int64_t middle, phy_offset, stored
        cdef const uint8_t *p
        try:
            while high >= low:
                middle = (low + high) // (2 * UNIT) * UNIT
                p = self.at((base + middle) // UNIT, NEAR_UNITS, NEAR_UNITS)
                if p == NULL:
                    return 0
                phy_offset = rs_load_be64(p)
                if phy_offset < min_phy_offset:
                    low = middle + UNIT
                    left = middle
                    continue
                stored = store_time(phy_offset, rs_load_be32(p + 8))
                if stored < 0:
                    return 0
                if stored == timestamp:
                    return base + middle
                if stored > timestamp:
                    high = middle - UNIT
                    right, right_time = middle, stored
                else:
                    low = middle + UNIT
                    left, left_time = middle, stored
        finally:
            self.close()
        if left_time == -1:
            return base + right
        if right_time == -1:
            return base + left
        if abs(timestamp - left_time) > abs(timestamp - right_time):
            return base + right
        return base + left


def has_file(reader, int64_t queue_offset):
    """Return True if the file with a unit that was read before surely still has its name: its
    bytes are those that were read. False where that cannot be told without reading it.

    Parameters
    ----------
    reader : UnitReader
    """
    cdef tuple files = reader.mapped_file_queue.mapped_files
    cdef MappedFile found
    if not 0 <= queue_offset <= MAX_OFFSET:
        return False
    found = file_with(files, queue_offset * UNIT, reader.mapped_file_size)
    return found is not None and found.has_name()
