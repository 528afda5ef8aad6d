"""Columns derived from columns of text: maps of properties texts, and hashes of tags."""
import numpy as np

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from pyrocketstore.columns._memory_pool cimport column_array
from pyrocketstore.columns._decode cimport MapColumn, map_result
from pyrocketstore.record._record cimport tags_code_of
from pyrocketstore.columns._builder cimport add_properties, free_map, map_column

from pyrocketstore.errors import StoreFormatError


cdef int _check_texts(
    const int64_t[::1] positions, const int32_t[::1] sizes, Py_ssize_t end
) except -1:
    cdef Py_ssize_t i
    if sizes.shape[0] != positions.shape[0]:
        raise StoreFormatError("positions and sizes must have one entry a text")
    for i in range(positions.shape[0]):
        if not (0 <= sizes[i] <= end and 0 <= positions[i] <= end - sizes[i]):
            raise StoreFormatError(
                f"text {i}, {sizes[i]} bytes at {positions[i]}, is outside of the {end} bytes given"
            )
    return 0


cdef int _add_maps(
    map_column *m,
    const uint8_t *p,
    const int64_t[::1] positions,
    const int32_t[::1] sizes,
    int32_t *offsets,
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(positions.shape[0]):
        offsets[i] = <int32_t>m.count
        if add_properties(m, p + positions[i], sizes[i]) < 0:
            return -1
    offsets[positions.shape[0]] = <int32_t>m.count
    return 0


def properties_maps(
    data, const int64_t[::1] positions not None, const int32_t[::1] sizes not None
) -> MapColumn:
    """Parse properties texts in `data` into maps, as decode_records does for properties_map.

    Parameters
    ----------
    data : bytes-like
    positions : int64[n], bytes into `data`
    sizes : int32[n], bytes

    Raises
    ------
    StoreFormatError: a text exceeds `data`, or there are more than 2**31 - 1 properties.

    Threads: the pass releases the GIL; `data` must not be written to meanwhile.
    Source: RocketMQ 4.9.3 MessageDecoder#string2messageProperties.
    """
    cdef Py_buffer view
    cdef map_column m
    cdef int32_t[::1] memory
    cdef int failed
    memset(&m, 0, sizeof(m))
    offsets = column_array(positions.shape[0] + 1, np.int32, 4)
    memory = offsets
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _check_texts(positions, sizes, view.len)
        with nogil:
            failed = _add_maps(&m, <const uint8_t *>view.buf, positions, sizes, &memory[0])
        if failed:
            raise MemoryError
        return map_result(&m, offsets)
    finally:
        free_map(&m)
        PyBuffer_Release(&view)


def tags_codes(
    data, const int64_t[::1] positions not None, const int32_t[::1] sizes not None
) -> np.ndarray:
    """Return the tags code of each tags text in `data` (UTF-8), as a queue unit stores it.

    Parameters
    ----------
    data : bytes-like
    positions : int64[n], bytes into `data`
    sizes : int32[n], bytes

    Returns
    -------
    int64[n]: Java's String.hashCode, 0 for an empty text.

    Raises
    ------
    StoreFormatError: a text exceeds `data`.

    Threads: as properties_maps.
    Source: RocketMQ 4.9.3 MessageExtBrokerInner#tagsString2tagsCode.
    """
    cdef Py_buffer view
    cdef Py_ssize_t i
    cdef int64_t[::1] codes
    hashes = np.empty(positions.shape[0], np.int64)
    codes = hashes
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _check_texts(positions, sizes, view.len)
        with nogil:
            for i in range(positions.shape[0]):
                codes[i] = tags_code_of(<const uint8_t *>view.buf + positions[i], sizes[i])
    finally:
        PyBuffer_Release(&view)
    return hashes
