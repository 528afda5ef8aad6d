"""Memory of columns (see _memory_pool.pyx)."""
from libc.stdint cimport int64_t, uint8_t

from pyrocketstore.columns._builder cimport column_block, var_column

cdef enum:
    MIN_BLOCK = 65536  # bytes; smaller blocks are left to the allocator

# Takes the smallest kept block with `least` to 2 * `least` bytes; `data` is NULL if there is none.
cdef column_block take_block(int64_t least) noexcept nogil
# Takes a kept block or allocates one, of at least `size` bytes and not initialized: 0; -1: no
# memory.
cdef int take_rows(column_block *b, int64_t size) noexcept nogil
# Keeps a block for later columns, or frees it; `b` is none afterwards.
cdef void give_block(column_block *b) noexcept nogil
# Returns an uninitialized array of `count` items of `width` bytes.
cdef object column_array(Py_ssize_t count, object dtype, int64_t width)
# Moves a block into an object with its buffer; `b` is none afterwards.
cdef object block_memory(column_block *b)
# Moves the bytes of the column out of it. At most 1 KiB or a quarter of the block is unused.
cdef column_block take_data(var_column *c) noexcept nogil
