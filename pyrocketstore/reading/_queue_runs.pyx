"""From the units of a queue to the records that they name, in runs of one commit log file each."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import numpy as np

from pyrocketstore.consume_queue._unit_window cimport UnitWindow
from pyrocketstore.consume_queue._units cimport ConsumeQueueCore, is_pre_blank
from pyrocketstore.files._mapped_file cimport MappedFile, file_with
from pyrocketstore.reading._read_counts cimport ReadCounts
from pyrocketstore.record._record cimport largest_record
from pyrocketstore._rocketstore cimport rs_load_acquire, rs_load_be32, rs_load_be64

from pyrocketstore.errors import StoreCorruptionError, StoreIOError

#: Units that an iterator reads ahead: at first, since many want a few messages, and later.
FIRST_READ_COUNT, READ_COUNT = 256, 8192

cdef int64_t ANY_SIZE = <int64_t>1 << 62
cdef Py_ssize_t MAX_ROWS = <Py_ssize_t>1 << 56


@cython.auto_pickle(False)
cdef class RangeFields:
    """The fields of a by_queue.QueueRange, for compiled readers."""

    def __cinit__(self, log, queue, int64_t floor, wanted, damage, bint check_crc):
        self.log = log
        self.queue = queue
        self.floor = floor
        self.wanted = wanted
        self.damage = damage
        self.check_crc = check_crc


@cython.final
@cython.auto_pickle(False)
@cython.no_gc
cdef class RecordRows:
    """Columns of records: physical offset, size, queue offset and tags code."""

    def __cinit__(self, Py_ssize_t capacity):
        # One allocation: three columns of int64, one of int32.
        cdef Py_ssize_t room = max(capacity, <Py_ssize_t>1)
        if room > MAX_ROWS:
            raise MemoryError
        self.phy_offset = <int64_t *>malloc(<size_t>room * (3 * sizeof(int64_t) + sizeof(int32_t)))
        if self.phy_offset == NULL:
            raise MemoryError
        self.queue_offset = self.phy_offset + room
        self.tags_code = self.queue_offset + room
        self.size = <int32_t *>(self.tags_code + room)

    def __dealloc__(self):
        free(self.phy_offset)

    cdef int select(self, object wanted, str topic) except -1:
        """Keep the rows that may have a wanted tag."""
        cdef const uint8_t[::1] keep
        cdef Py_ssize_t i
        cdef Py_ssize_t kept = 0
        codes = np.empty(self.count, np.int64)
        cdef int64_t[::1] view = codes
        if self.count == 0:
            return 0
        memcpy(&view[0], self.tags_code, self.count * sizeof(int64_t))
        keep = wanted.may_match(codes, topic).view(np.uint8)
        for i in range(min(self.count, keep.shape[0])):
            if keep[i]:
                self.phy_offset[kept] = self.phy_offset[i]
                self.queue_offset[kept] = self.queue_offset[i]
                self.size[kept] = self.size[i]
                kept += 1
        self.count = kept
        return 0


@cython.final
@cython.auto_pickle(False)
@cython.no_gc
cdef class RecordRun:
    """Records of one commit log file, or one record without a file, in the order of their queue.

    `QueueChunks` and `runs_of` make them. Attributes: `mapped_file`, MappedFile or None; `count`,
    records; `refs()` has the columns.
    """

    def refs(self):
        """Return (phy_offset int64[n], size int32[n], queue_offset int64[n]), copies."""
        phy_offset = np.empty(self.count, np.int64)
        size = np.empty(self.count, np.int32)
        queue_offset = np.empty(self.count, np.int64)
        cdef int64_t[::1] phy_view = phy_offset
        cdef int32_t[::1] size_view = size
        cdef int64_t[::1] queue_view = queue_offset
        if self.count > 0:
            memcpy(&phy_view[0], self.phy_offset, self.count * sizeof(int64_t))
            memcpy(&size_view[0], self.size, self.count * sizeof(int32_t))
            memcpy(&queue_view[0], self.queue_offset, self.count * sizeof(int64_t))
        return phy_offset, size, queue_offset

    def select(self, keep):
        """Return a run of the records i with keep[i], of bool[n]: copies.

        Raises ValueError: `keep` has another length.
        """
        cdef const uint8_t[::1] flags = keep.view(np.uint8)
        cdef RecordRows rows
        cdef Py_ssize_t i
        if flags.shape[0] != self.count:
            raise ValueError(f"{flags.shape[0]} flags of {self.count} records")
        rows = RecordRows.__new__(RecordRows, self.count)
        for i in range(self.count):
            if flags[i]:
                rows.phy_offset[rows.count] = self.phy_offset[i]
                rows.queue_offset[rows.count] = self.queue_offset[i]
                rows.size[rows.count] = self.size[i]
                rows.count += 1
        return _run(rows, self.mapped_file, 0, rows.count)

    def first(self):
        """Return the run of the first record alone. Raises ValueError: this run has none."""
        cdef Py_ssize_t at
        if self.count == 0:
            raise ValueError("a run without records has no first one")
        at = self.phy_offset - self.rows.phy_offset
        return _run(self.rows, self.mapped_file, at, at + 1)


cdef int64_t first_byte(object log) except? -2:
    cdef tuple files = log.mapped_file_queue.mapped_files
    cdef MappedFile first
    if files:
        first = <MappedFile?>files[0]
        if first is not None and first.available:
            return first.file.file_from_offset
    return log.get_min_offset()


cdef int64_t end_of_queue(object queue) except? -1:
    return rs_load_acquire(&(<ConsumeQueueCore?>queue.core).queue.unit_count)


# ---- selecting ---------------------------------------------------------------------------------

cdef RecordRows select_rows(RangeFields part, int64_t start, int64_t count, int64_t max_bytes,
                            int64_t *taken):
    # The records of `count` units from `start` on, and how many of these units they took: fewer at
    # the queue's end, and where `max_bytes` of records are reached; one record always fits.
    # Pre-blank units and expired messages are left out, and records that surely have another tag.
    cdef object log = part.log
    cdef object queue = part.queue
    cdef UnitWindow window = UnitWindow.__new__(UnitWindow, queue.reader)
    cdef int64_t lowest = first_byte(log)
    cdef int64_t left = end_of_queue(queue)
    cdef int64_t total = 0
    cdef int64_t phy_offset, code
    cdef int32_t size
    cdef Py_ssize_t kept = 0
    cdef bint any_taken = False
    cdef const uint8_t *p
    cdef RecordRows rows
    count = 0 if start < 0 or start >= left else min(count, left - start)
    rows = RecordRows.__new__(RecordRows, max(count, <int64_t>0))
    taken[0] = 0
    try:
        while taken[0] < count:
            p = window.at(start + taken[0], 0, count - taken[0])
            if p == NULL:
                break
            phy_offset, size = rs_load_be64(p), rs_load_be32(p + 8)
            code = rs_load_be64(p + 12)
            # A damaged unit may refer to any offset: only a known expired one is left out.
            if part.floor <= phy_offset < lowest or is_pre_blank(phy_offset, size, code):
                if total > max_bytes:
                    break
                taken[0] += 1
                continue
            # No record is larger than any: a damaged unit must not end the selection.
            total += min(max(<int64_t>size, <int64_t>0), largest_record())
            if any_taken and total > max_bytes:
                break
            any_taken = True
            rows.phy_offset[kept] = phy_offset
            rows.size[kept] = size
            rows.queue_offset[kept] = start + taken[0]
            rows.tags_code[kept] = code
            kept += 1
            taken[0] += 1
    finally:
        window.close()
    rows.count = kept
    if part.wanted is not None:
        rows.select(part.wanted, queue.topic)
    return rows


cdef RecordRun _run(RecordRows rows, MappedFile mapped_file, Py_ssize_t first, Py_ssize_t stop):
    cdef RecordRun run = RecordRun.__new__(RecordRun)
    run.mapped_file = mapped_file
    run.rows = rows
    run.phy_offset = rows.phy_offset + first
    run.queue_offset = rows.queue_offset + first
    run.size = rows.size + first
    run.count = stop - first
    return run


cdef list split(RecordRows rows, RangeFields part):
    # The runs; an offset that no log of this length has is a run of its own.
    cdef object log = part.log
    cdef tuple files = log.mapped_file_queue.mapped_files
    cdef int64_t file_size = log.file_size
    cdef int64_t begin, phy_offset
    cdef Py_ssize_t first = 0
    cdef Py_ssize_t stop
    cdef MappedFile mapped_file
    cdef list runs = []
    if file_size <= 0:
        raise ValueError(f"file_size {file_size}: must be positive")
    while first < rows.count:
        phy_offset = rows.phy_offset[first]
        stop = first + 1
        mapped_file = file_with(files, phy_offset, file_size)
        if mapped_file is not None or part.floor <= phy_offset < <int64_t>log.get_max_offset():
            begin = phy_offset - phy_offset % file_size
            while stop < rows.count and 0 <= rows.phy_offset[stop] - begin < file_size:
                stop += 1
        runs.append(_run(rows, mapped_file, first, stop))
        first = stop
    return runs


def runs_of(RangeFields part not None, int64_t start, int64_t count, int64_t max_bytes):
    """Return the runs of records that the units from `start` on name, and the units that they took.

    Parameters
    ----------
    part : QueueRange
    start : int, queue offset
    count : int, units at most
    max_bytes : bytes of records, as their units state them; one record always fits

    Raises StoreIOError.
    """
    cdef int64_t taken = 0
    cdef RecordRows rows = select_rows(part, start, count, max_bytes, &taken)
    return split(rows, part), taken


# ---- one range ---------------------------------------------------------------------------------

@cython.final
@cython.auto_pickle(False)
cdef class QueueChunks:
    """The records of a range of a queue, file by file, for MessageIterator.

    Unlike a generator it continues after an error: at the next chunk.

    Parameters
    ----------
    part : QueueRange, what is read
    start, stop : queue offsets
    state : StoreState; a call raises StoreStateError where the store is closed before or meanwhile
    owner : object that keeps the store from being closed
    counts : ReadCounts, of the store
    """

    def __cinit__(
        self, RangeFields part not None, int64_t start, int64_t stop, StoreState state not None,
        owner, ReadCounts counts not None
    ):
        self.part = part
        self.start = max(start, <int64_t>0)
        self.stop = stop
        self.count = FIRST_READ_COUNT
        self.state = state
        self.owner = owner
        self.counts = counts
        self.ready = []

    def file_gone(self, file, start, stop):
        """Return QueueRange.file_gone, while the store is open."""
        with self.state:
            return self.part.file_gone(file, start, stop)

    def __iter__(self):
        return self

    def __next__(self):
        cdef RecordRun run
        while True:
            if self.next_run < len(self.ready):
                run = <RecordRun>self.ready[self.next_run]
                self.next_run += 1
                if run.mapped_file is not None:
                    return run
                error = self.part.missing(run)
                if error is not None:
                    raise error
            elif self.start < self.stop:
                self.read_on()
            else:
                raise StopIteration

    cdef int read_on(self) except -1:
        cdef RangeFields part = self.part
        cdef int64_t start = self.start
        cdef int64_t taken = 0
        cdef int64_t first = start
        cdef RecordRows rows
        cdef list ready
        self.state.need_open()
        try:
            try:
                rows = select_rows(part, start, min(self.count, self.stop - start), ANY_SIZE,
                                   &taken)
            except StoreIOError as error:
                self.start = self.stop
                if part.damage.no_units(error, start, self.stop):
                    raise
                rows = None
            if rows is not None and taken == 0:
                first = part.queue.first_readable_offset(max(<int64_t>0, first_byte(part.log)))
        except StoreCorruptionError:
            self.state.need_open()  # files that a close has released look damaged
            raise
        self.state.need_open()
        if rows is None:
            return 0
        if taken == 0:
            # Deleted meanwhile: the rest of the queue follows behind it.
            self.start = first if first > start else self.stop
            return 0
        ready = split(rows, part)
        self.counts.note(rows.count)
        # No call from here to the end: a signal handler that raises loses nothing.
        self.count = min(2 * self.count, <int64_t>READ_COUNT)
        self.ready, self.next_run, self.start = ready, 0, start + taken
        return 0
