"""Find the records of the log in a buffer: bytes of a file, or its mapping.

The loop of `_scan.next_record` reads a file; here a torn record is the caller's to complete.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

import numpy as np

from pyrocketstore.commit_log._scan cimport (
    ENTRY_END,
    ENTRY_HEADER,
    ENTRY_TORN,
    entry_body_size,
    entry_header,
    entry_status,
)
from pyrocketstore.record._record cimport check_record
from pyrocketstore._rocketstore cimport (
    RS_BAD_MAGIC,
    RS_BAD_SIZE,
    RS_BLANK,
    RS_NO_MEMORY,
    RS_OK,
    RS_TORN,
    rs_record,
)

from pyrocketstore.errors import StoreFormatError

cdef enum:
    FIRST_ROOM = 1024  # records


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
    """Walk to `stop`, or to the first bytes that are not a whole record; return the verdict."""
    cdef rs_record record
    cdef int status, header
    cdef int64_t at, body_size
    while w.position < stop:
        at = w.position
        status = check_record(p + at, size - at, phy_offset + at, check_crc, &record)
        if status == RS_BAD_MAGIC:
            header = entry_header(p + at, size - at, phy_offset + at, end - at)
            if header == ENTRY_END:
                return RS_BLANK
            if header == ENTRY_TORN:
                return RS_TORN
            if header == ENTRY_HEADER:
                at += ENTRY_HEADER
                if at >= stop:
                    w.position = at
                    return RS_OK  # the record begins in the next range
                status = check_record(p + at, size - at, phy_offset + at, check_crc, &record)
                body_size = entry_body_size(p + w.position)
                status = entry_status(status, record.total_size, body_size)
        if (status == RS_OK or status == RS_TORN) and record.total_size > end - at:
            return RS_BAD_SIZE
        if status != RS_OK:
            return status
        w.position = at
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
        raise StoreFormatError(f"position {position}: must be 0 to {size}, the bytes of the data")
    if not 0 <= phy_offset <= INT64_MAX - size:
        raise StoreFormatError(f"phy_offset {phy_offset}: must be 0 to 2**63 - 1 - {size}")
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
    """Return the records that begin in data[position:stop], up to the first bytes that are not one.

    Parameters
    ----------
    data : bytes-like, bytes of one log file; it may continue after `stop`, so that the last record
        is whole
    position, stop : int, bytes into `data`; a record begins at `position`
    phy_offset : int, physical offset of data[0]; each record must store its own physical offset
    end : int or None, bytes from data[0]: the end of the file, or of the part that is read; a
        record that ends after it has a bad size. None: no such limit
    check_crc : bool, compare each body with its CRC

    Returns
    -------
    positions : int64[n], bytes into `data`
    sizes : int32[n], bytes
    next_position : int, bytes into `data`: the end of the last record; at least `stop` with RS_OK
    status : int, rs_status (_scan.status_name has its text): RS_OK (0) at `stop` or at the end of
        the data, else the verdict on the bytes at next_position: RS_BLANK (1) at the end of the
        file's records, RS_END (2) at zeros, RS_TORN (3) at a record that continues after the data,
        RS_BAD_MAGIC (4), RS_BAD_CRC (5), RS_BAD_SIZE (6), RS_BAD_OFFSET (7)

    Raises
    ------
    StoreFormatError: `position` or `phy_offset` is out of range. Damaged data raises nothing.

    Threads: the GIL is released. Bytes that change during the walk change only the result.
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
