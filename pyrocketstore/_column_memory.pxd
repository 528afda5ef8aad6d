"""Memory of columns, see _column_memory.pyx. With the GIL."""
from libc.stdint cimport int64_t, uint8_t

from pyrocketstore._values cimport var_column

cdef enum:
    MIN_BLOCK = 65536  # bytes; smaller ones the allocator keeps itself

# The smallest kept block of at least so many bytes, and at most twice as many; or NULL.
cdef uint8_t *take_block(int64_t least, int64_t *capacity) noexcept
# An array of that length and items of `width` bytes, its values not set.
cdef object column_array(Py_ssize_t count, object dtype, int64_t width)
# The column's bytes as uint8[size]; the column is left without any.
cdef object take_data(var_column *c)
