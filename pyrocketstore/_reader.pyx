"""Messages out of commit log files: ranges of queue units become messages, one after the other."""
cimport cython
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from pyrocketstore._allocation cimport pread_path
from pyrocketstore._mapped_file cimport MappedFile
from pyrocketstore._message cimport MessageExt, known_text, message_from_record
from pyrocketstore._record cimport check_record, largest_record, scan_properties
from pyrocketstore._rocketstore cimport (
    RS_OK,
    RS_TORN,
    check_io,
    rs_load_acquire,
    rs_prefetch_far,
    rs_properties,
    rs_record,
    rs_status_name,
)

from pyrocketstore.errors import StoreCorruptionError

# Records that lie this far apart are read one by one when the file is not mapped.
cdef int64_t GAP_BYTES = 65536
# What is read at once: it stays in the cache until it is decoded.
cdef int64_t PIECE_BYTES = 524288
cdef enum:
    PREFETCH_AHEAD = 4       # records
    PREFETCH_BYTES = 2048    # of each
    CACHE_LINE = 64

cdef str NOT_HELD = "a queue names bytes that the log does not hold"


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class RecordBytes:
    """Bytes of commit log files, for compiled readers. Threads: one at a time."""

    def __dealloc__(self):
        free(self.buffer)

    cdef const uint8_t *at(
        self, MappedFile mapped_file, int64_t position, int64_t size, int64_t stop
    ) except NULL:
        if mapped_file.file.base != NULL:
            return mapped_file.file.base + position
        if mapped_file is not self.mapped_file or not (
            self.start <= position and position + size <= self.end
        ):
            self.fill(mapped_file, position, size, stop)
        return self.buffer + (position - self.start)

    cdef int fill(
        self, MappedFile mapped_file, int64_t position, int64_t size, int64_t stop
    ) except -1:
        cdef int64_t wanted = max(size, stop - position)
        cdef int64_t got
        cdef uint8_t *grown
        self.mapped_file = None
        if size > largest_record():  # a block of several records is much smaller
            raise StoreCorruptionError(
                mapped_file.path, position,
                f"a record of {size} bytes; none has more than {largest_record()}",
            )
        if wanted > self.capacity:
            grown = <uint8_t *>realloc(self.buffer, wanted)
            if grown == NULL:
                raise MemoryError
            self.buffer = grown
            self.capacity = wanted
        got = _read(mapped_file, self.buffer, wanted, position)
        if got < size and size < wanted:  # what is asked for may be all right
            wanted = size
            got = _read(mapped_file, self.buffer, wanted, position)
        _check_read(mapped_file, got, size, position)
        self.mapped_file = mapped_file
        self.start = position
        self.end = position + got
        return 0


cdef inline int64_t _read(
    MappedFile mapped_file, uint8_t *target, int64_t size, int64_t position
) noexcept:
    cdef int64_t got
    with nogil:
        got = pread_path(mapped_file.file.env, mapped_file._path_text, target, size, position)
    return got


cdef int _check_read(MappedFile mapped_file, int64_t got, int64_t size, int64_t position) except -1:
    check_io(got, "pread", mapped_file.path, position)
    if got < size:
        raise StoreCorruptionError(
            mapped_file.path, position, f"the file ends after {got} of {size} bytes"
        )
    return 0


cdef int64_t block_stop(
    const int64_t[::1] phy_offsets, const int32_t[::1] sizes, Py_ssize_t first, int64_t limit,
    Py_ssize_t *end
) noexcept:
    cdef Py_ssize_t n = phy_offsets.shape[0]
    cdef int64_t start = phy_offsets[first]
    cdef int64_t stop
    cdef Py_ssize_t i = first + 1
    if start < 0 or start > INT64_MAX - INT32_MAX:
        end[0] = i
        return INT64_MAX
    stop = start + sizes[first]
    while (i < n and sizes[i] > 0 and phy_offsets[i] >= stop and phy_offsets[i] - stop < GAP_BYTES
           and sizes[i] <= limit - (phy_offsets[i] - start)):
        stop = phy_offsets[i] + sizes[i]
        i += 1
    end[0] = i
    return stop


# ---- one after the other -----------------------------------------------------------------------

@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class MessageIterator:
    """The messages at given places of the commit log, each with its own copy of its bytes.

    Parameters
    ----------
    pieces : iterable of (MappedFile, int64[n] bytes of the log, int32[n] bytes): places in one file
    tags : frozenset of str, to pass over messages without one of these tags; None: all
    check_open : callable, called when a file was taken away; it raises when the store is closed,
        else what is left of that file is passed over

    Raises
    ------
    StoreCorruptionError with file and position: what lies there is not that record. What lies
    before it is given first, and nothing after it.
    StoreIOError

    Threads: one at a time. A record is read when its turn comes.
    """

    cdef object pieces
    cdef object tags
    cdef object check_open
    cdef MappedFile mapped_file
    cdef const int64_t[::1] phy_offsets
    cdef const int32_t[::1] sizes
    cdef Py_ssize_t at
    cdef Py_ssize_t count
    cdef RecordBytes source
    cdef bint busy

    def __init__(self, pieces, tags, check_open):
        self.pieces = iter(pieces)
        self.tags = tags
        self.check_open = check_open
        self.source = RecordBytes()

    def __iter__(self):
        return self

    def __next__(self):
        cdef MessageExt message = None
        if self.busy:
            raise ValueError("the iterator is used by another thread")
        self.busy = True
        try:
            while message is None:
                if self.at < self.count:
                    message = self.take()
                else:
                    self.begin(next(self.pieces))
        finally:
            self.busy = False
            if message is None:  # it ended, or failed
                self.pieces = iter(())
                self.count = 0
        return message

    cdef int begin(self, tuple piece) except -1:
        self.count = self.at = 0
        self.mapped_file, self.phy_offsets, self.sizes = piece
        self.count = min(self.phy_offsets.shape[0], self.sizes.shape[0])
        return 0

    cdef MessageExt take(self):
        """The next message; None where it is passed over."""
        cdef Py_ssize_t i = self.at
        cdef MessageExt message
        if not self.mapped_file.take_hold():
            self.check_open()
            self.at = self.count
            return None
        self.at = i + 1
        try:
            if self.mapped_file.file.base != NULL and i + PREFETCH_AHEAD < self.count:
                self.prefetch(i + PREFETCH_AHEAD)
            message = self.decode(i)
        finally:
            self.mapped_file.drop_hold()
        return message

    cdef void prefetch(self, Py_ssize_t i) noexcept:
        cdef int64_t position = self.phy_offsets[i] - self.mapped_file.file.file_from_offset
        cdef int64_t size = min(self.sizes[i], <int64_t>PREFETCH_BYTES)
        cdef int64_t at = 0
        if 0 <= position < self.mapped_file.file.file_size - size:
            while at < size:
                rs_prefetch_far(self.mapped_file.file.base + position + at)
                at += CACHE_LINE

    cdef MessageExt decode(self, Py_ssize_t i):
        cdef int64_t start = self.mapped_file.file.file_from_offset
        cdef int64_t position = self.phy_offsets[i] - start
        cdef int64_t size = self.sizes[i]
        cdef int64_t wrote = rs_load_acquire(&self.mapped_file.file.wrote)
        cdef int64_t stop = position + size
        cdef Py_ssize_t end = 0
        cdef const uint8_t *p
        cdef rs_record record
        cdef rs_properties spans
        cdef MessageExt message
        cdef int status
        if position < 0 or size < 0 or size > wrote - position:
            raise StoreCorruptionError(self.mapped_file.path, position, NOT_HELD)
        if self.mapped_file.file.base == NULL:
            stop = block_stop(self.phy_offsets, self.sizes, i, PIECE_BYTES, &end) - start
            stop = min(stop, wrote)
        p = NULL
        status = RS_TORN
        if size > 0:
            p = self.source.at(self.mapped_file, position, size, stop)
            status = check_record(p, size, self.phy_offsets[i], False, &record)
        if status != RS_OK:
            raise StoreCorruptionError(
                self.mapped_file.path, position, rs_status_name(status).decode("ascii")
            )
        if self.tags is None:
            return message_from_record(p, &record)
        scan_properties(p + record.properties_position, record.properties_size, &spans)
        if spans.tags.size < 0 or known_text(
            p + record.properties_position + spans.tags.position, spans.tags.size
        ) not in self.tags:
            return None
        message = message_from_record(p, &record)
        message._spans = spans
        message._scanned = True
        return message


# ---- one behind the other ----------------------------------------------------------------------

def gather_records(MappedFile mapped_file not None, const int64_t[::1] phy_offsets not None,
                   const int32_t[::1] sizes not None, uint8_t[::1] out not None, int64_t position,
                   *, bint check=True, int64_t[::1] positions=None):
    """Copy records of one commit log file one behind the other into `out`.

    Parameters
    ----------
    phy_offsets : int64[n], bytes, ascending for speed
    sizes : int32[n], bytes
    out : uint8[m], with room for all of them from `position` on
    check : bool; without, the bytes are taken as they are, for who checks them himself
    positions : int64[n], filled with where each lies in `out`, bytes. Given, records between which
        little lies are read as they lie, with what is between them, as far as `out` has more room
        than the records take; None: nothing is left between them

    Raises
    ------
    StoreCorruptionError with file and position: what lies there is not that record, or the file
    ends before it does
    StoreIOError; IndexError when `out` is too small, or `positions`.
    """
    cdef int64_t start = mapped_file.file.file_from_offset
    cdef int64_t wrote = rs_load_acquire(&mapped_file.file.wrote)
    cdef Py_ssize_t count = min(phy_offsets.shape[0], sizes.shape[0])
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t j = 0
    cdef int64_t stop
    cdef int64_t room = out.shape[0] - position
    cdef int64_t first, span, between
    cdef int status = RS_OK
    cdef bint in_place
    cdef rs_record record
    cdef const uint8_t *source
    cdef RecordBytes records = RecordBytes()
    if position < 0 or (positions is not None and positions.shape[0] < count):
        raise IndexError("the buffer is too small")
    for i in range(count):
        room -= max(sizes[i], 0)
    i = 0
    if not mapped_file.take_hold():
        raise StoreCorruptionError(mapped_file.path, -1, NOT_HELD)
    try:
        while i < count:
            first = phy_offsets[i]
            stop = block_stop(phy_offsets, sizes, i, PIECE_BYTES, &j) - start
            if first < start or sizes[i] <= 0 or stop > wrote:
                raise StoreCorruptionError(mapped_file.path, first - start, NOT_HELD)
            span = stop - (first - start)
            between = span - _sum(sizes, i, j)
            in_place = (positions is not None and mapped_file.file.base == NULL
                        and between <= room and span <= out.shape[0] - position)
            if in_place:
                room -= between
                source = &out[position] - first
                _check_read(mapped_file, _read(mapped_file, &out[position], span, first - start),
                            span, first - start)
                position -= first
            else:
                source = records.at(mapped_file, first - start, span, stop) - first
            with nogil:
                while i < j:
                    if check:
                        status = check_record(
                            source + phy_offsets[i], sizes[i], phy_offsets[i], False, &record
                        )
                    if status != RS_OK:
                        break
                    if in_place:
                        positions[i] = position + phy_offsets[i]
                    elif sizes[i] > out.shape[0] - position:
                        break
                    else:
                        memcpy(&out[position], source + phy_offsets[i], <size_t>sizes[i])
                        if positions is not None:
                            positions[i] = position
                        position += sizes[i]
                    i += 1
            if status != RS_OK:
                raise StoreCorruptionError(mapped_file.path, phy_offsets[i] - start,
                                           rs_status_name(status).decode("ascii"))
            if i < j:
                raise IndexError("the buffer is too small")
            if in_place:
                position += stop + start
    finally:
        mapped_file.drop_hold()


cdef inline int64_t _sum(const int32_t[::1] sizes, Py_ssize_t first, Py_ssize_t end) noexcept:
    cdef int64_t total = 0
    for i in range(first, end):
        total += sizes[i]
    return total
