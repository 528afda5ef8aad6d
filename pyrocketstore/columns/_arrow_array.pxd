"""Columns as arrays of Arrow's C data interface (see _arrow_array.pyx)."""
from libc.stdint cimport int64_t

from pyrocketstore.columns._builder cimport column_block

# The struct that the interface fixes. `release` is NULL in one that is released or moved.
cdef struct arrow_array:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void **buffers
    arrow_array **children
    arrow_array *dictionary
    void (*release)(arrow_array *) noexcept nogil
    void *private_data


cdef enum:
    HEAD_SIZE = 64  # bytes before the values of an array's first block


# Makes an array of its first block, which has the values, and takes the block.
cdef void open_column(
    arrow_array *a, column_block *b, int64_t length, int64_t buffer_count
) noexcept nogil
# Makes an array without values and with released children: 0; -1: no memory.
cdef int open_parent(
    arrow_array *a, int64_t length, int64_t buffer_count, int64_t child_count
) noexcept nogil
# Moves a second block into an array, whose release gives it back.
cdef void own_block(arrow_array *a, column_block *b) noexcept nogil


cdef class ArrowColumns:
    """Decoded rows as one struct array, with a child for each column."""
    cdef arrow_array array
    cdef readonly tuple names
    cdef readonly tuple large     # names of the columns with 64-bit offsets
    cdef readonly int64_t body_bytes
