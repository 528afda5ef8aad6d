"""Memory of columns (see _memory_pool.pyx). All functions need the GIL."""
from libc.stdint cimport int64_t, uint8_t

from pyrocketstore.columns._builder cimport var_column

cdef enum:
    MIN_BLOCK = 65536  # bytes; smaller blocks are left to the allocator

# Takes the smallest kept block with `least` to 2 * `least` bytes; NULL if there is none.
cdef uint8_t *take_block(int64_t least, int64_t *capacity) noexcept
# Returns an uninitialized array of `count` items of `width` bytes.
cdef object column_array(Py_ssize_t count, object dtype, int64_t width)
# Moves the bytes of the column into an array uint8[size]; the column is empty afterwards.
cdef object take_data(var_column *c)
