"""The records in bytes of the log that lie in memory: which begin in a range, and the next one
behind damage.

As in _scan, but over any buffer: what a reader has of a file, a range of it or its mapping.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

import numpy as np

from pyrocketstore._record cimport check_record, largest_record
from pyrocketstore._rocketstore cimport (
    RS_BAD_SIZE,
    RS_BLANK_MAGIC_CODE,
    RS_MESSAGE_MAGIC_CODE,
    RS_MESSAGE_MIN_SIZE,
    RS_MESSAGE_POSITION_MAGIC,
    RS_MESSAGE_POSITION_PHYSICAL_OFFSET,
    RS_NO_MEMORY,
    RS_OK,
    RS_TORN,
    rs_load_be32,
    rs_load_be64,
    rs_record,
)
from pyrocketstore._scan cimport find_magic

from pyrocketstore.errors import StoreFormatError

cdef enum:
    FIRST_ROOM = 1024  # records
    HEAD_SIZE = 36     # bytes up to the end of the stored physicalOffset

#: Bytes at the end of the data in which find_record cannot tell a record that begins there and
#: goes on behind it: who has more of the file searches from so far before the data's end.
UNDECIDED_SIZE = HEAD_SIZE - 1


# ---- the walk --------------------------------------------------------------------------------

ctypedef struct walk_state:
    int64_t *positions
    int32_t *sizes
    int64_t count
    int64_t room
    int64_t position  # of the next record


cdef int _more_room(walk_state *w) noexcept nogil:
    cdef int64_t room = 2 * w.room if w.room else FIRST_ROOM
    cdef void *positions = realloc(w.positions, room * sizeof(int64_t))
    cdef void *sizes
    if positions == NULL:
        return -1
    w.positions = <int64_t *>positions
    sizes = realloc(w.sizes, room * sizeof(int32_t))
    if sizes == NULL:
        return -1
    w.sizes = <int32_t *>sizes
    w.room = room
    return 0


cdef int _walk(
    walk_state *w,
    const uint8_t *p,
    int64_t size,
    int64_t stop,
    int64_t phy_offset,
    int64_t end,
    bint check_crc,
) noexcept nogil:
    """Goes on to `stop`, or to what is no whole record: the verdict on it."""
    cdef rs_record record
    cdef int status
    while w.position < stop:
        status = check_record(
            p + w.position, size - w.position, phy_offset + w.position, check_crc, &record
        )
        if (status == RS_OK or status == RS_TORN) and record.total_size > end - w.position:
            return RS_BAD_SIZE
        if status != RS_OK:
            return status
        if w.count == w.room and _more_room(w) < 0:
            return RS_NO_MEMORY
        w.positions[w.count] = w.position
        w.sizes[w.count] = record.total_size
        w.count += 1
        w.position += record.total_size
    return RS_OK


cdef object _taken(const void *values, int64_t count, object dtype):
    taken = np.empty(count, dtype)
    cdef uint8_t[::1] memory
    if count:
        memory = taken.view(np.uint8)
        memcpy(&memory[0], values, memory.shape[0])
    return taken


cdef int _check_place(int64_t position, int64_t phy_offset, int64_t size) except -1:
    if not 0 <= position <= size:
        raise StoreFormatError(f"position {position} lies outside of {size} bytes")
    if not 0 <= phy_offset <= INT64_MAX - size:
        raise StoreFormatError(f"{phy_offset} is no place of {size} bytes in a log")
    return 0


def walk_records(
    data,
    int64_t position,
    int64_t stop,
    int64_t phy_offset,
    *,
    end=None,
    bint check_crc=False,
) -> "tuple[np.ndarray, np.ndarray, int, int]":
    """The records that begin in data[position:stop], up to the first thing that is none.

    Parameters
    ----------
    data : bytes-like, bytes of one log file; behind `stop` it may go on, so that the last record is
        whole
    position, stop : int, bytes into `data`; a record begins at `position`
    phy_offset : int, bytes: where `data` begins in the log; each record must have stored its place
    end : int or None, bytes into `data`, or behind it: where the file, or what is read of it, ends;
        a longer record is of a bad size. None: not compared
    check_crc : bool, compare each body with its CRC

    Returns
    -------
    positions : int64[n], bytes into `data`
    sizes : int32[n], bytes
    next_position : int, bytes into `data`: behind the last record, so at least `stop` with RS_OK
    status : int, rs_status (_scan.status_name has its text): RS_OK (0) at `stop` or at the data's
        end, else the verdict on what lies at next_position: RS_BLANK (1) where the file goes on no
        more, RS_END (2) at zeros, RS_TORN (3) at a record that goes on behind the data (its first
        four bytes are its size, where they are there), RS_BAD_MAGIC (4), RS_BAD_CRC (5),
        RS_BAD_SIZE (6), RS_BAD_OFFSET (7)

    Raises
    ------
    StoreFormatError: a position that cannot be. Never for what the data holds.

    Threads: the GIL is let go for the walk. Bytes that change meanwhile change the verdict and no
    more.
    """
    cdef Py_buffer view
    cdef walk_state w = walk_state(NULL, NULL, 0, 0, position)
    cdef int64_t limit = INT64_MAX if end is None else end
    cdef int status
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _check_place(position, phy_offset, view.len)
        stop = min(stop, view.len, limit)
        with nogil:
            status = _walk(
                &w, <const uint8_t *>view.buf, view.len, stop, phy_offset, limit, check_crc
            )
        if status == RS_NO_MEMORY:
            raise MemoryError
        return (
            _taken(w.positions, w.count, np.int64), _taken(w.sizes, w.count, np.int32),
            w.position, status,
        )
    finally:
        free(w.positions)
        free(w.sizes)
        PyBuffer_Release(&view)


# ---- the search ------------------------------------------------------------------------------

cdef bint _may_follow(const uint8_t *p, int64_t size, int64_t at, int64_t end) noexcept nogil:
    """Whether what lies there may lie behind a record."""
    cdef int32_t magic
    if at == end or size - at < 8:
        return True  # or it is not there to be looked at
    magic = rs_load_be32(p + at + RS_MESSAGE_POSITION_MAGIC)
    return (
        magic == RS_MESSAGE_MAGIC_CODE or magic == RS_BLANK_MAGIC_CODE or rs_load_be64(p + at) == 0
    )


cdef bint _is_record(
    const uint8_t *p,
    int64_t size,
    int64_t at,
    int64_t phy_offset,
    int64_t end,
    int64_t *crc_bytes_left,
) noexcept nogil:
    cdef rs_record record
    cdef int64_t left = size - at
    cdef int32_t total_size
    if left < HEAD_SIZE or (
        rs_load_be64(p + at + RS_MESSAGE_POSITION_PHYSICAL_OFFSET) != phy_offset + at
    ):
        return False
    total_size = rs_load_be32(p + at)
    if not RS_MESSAGE_MIN_SIZE <= total_size <= min(end - at, largest_record()):
        return False
    if total_size > left:
        return True  # as far as can be seen
    if check_record(p + at, total_size, -1, False, &record) != RS_OK:
        return False
    if _may_follow(p, size, at + total_size, end):
        return True
    # Damage lies behind it: its body must speak for it. Records do not lie over each other, so this
    # is enough for all there are, and what only looks like many of them does not take long.
    crc_bytes_left[0] -= record.body_size
    return crc_bytes_left[0] >= 0 and (
        check_record(p + at, total_size, -1, True, &record) == RS_OK
    )


cdef int64_t _find(
    const uint8_t *p, int64_t size, int64_t position, int64_t phy_offset, int64_t end
) noexcept nogil:
    cdef int64_t crc_bytes_left = size - position
    cdef int64_t at = find_magic(p, position + RS_MESSAGE_POSITION_MAGIC, size)
    while at >= 0:
        if _is_record(
            p, size, at - RS_MESSAGE_POSITION_MAGIC, phy_offset, end, &crc_bytes_left
        ):
            return at - RS_MESSAGE_POSITION_MAGIC
        at = find_magic(p, at + 1, size)
    return -1


def find_record(data, int64_t position, int64_t phy_offset, *, end=None) -> int:
    """The first place at or behind `position` where a whole record begins.

    It has stored its own place, its lengths add up, it ends by `end`, and behind it lies a record's
    head, a BLANK, zeros or `end`; else its CRC must be right, if it has a body.

    Parameters
    ----------
    data : bytes-like, bytes of one log file
    position : int, bytes into `data`
    phy_offset : int, bytes: where `data` begins in the log
    end : int or None, bytes into `data`, or behind it: where the file, or what is read of it, ends;
        None: where the data ends. Behind the data: a record that goes on there is found as well if
        its head is right, and where -1 is given one may still begin in the last UNDECIDED_SIZE
        bytes

    Returns
    -------
    int, bytes into `data`; -1 where no record begins.

    Raises
    ------
    StoreFormatError: a position that cannot be.

    Threads: the GIL is let go. Time grows with the bytes, whatever they are.
    """
    cdef Py_buffer view
    cdef int64_t limit, found
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _check_place(position, phy_offset, view.len)
        limit = view.len if end is None else max(<int64_t>0, <int64_t>end)
        with nogil:
            found = _find(<const uint8_t *>view.buf, view.len, position, phy_offset, limit)
    finally:
        PyBuffer_Release(&view)
    return found
