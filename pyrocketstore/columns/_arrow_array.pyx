"""Columns as arrays of Arrow's C data interface, which own their memory.

An importer takes an array by a copy of its struct, and calls `release` in any thread, without the
GIL. Each array has its own memory, so that an importer may also take one child and release the
rest.
"""
cimport cython
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy, memset

from pyrocketstore.columns._builder cimport column_block
from pyrocketstore.columns._memory_pool cimport give_block, take_rows

cdef enum:
    MAX_BUFFERS = 3
    MAX_OWNED = 2


# What `private_data` of an array refers to: the begin of its first block. `owned[0]` is this block.
# In a parent, the structs of the children and the pointers to them follow.
cdef struct array_memory:
    const void *buffers[MAX_BUFFERS]
    column_block owned[MAX_OWNED]


assert sizeof(array_memory) <= HEAD_SIZE


cdef void _release(arrow_array *a) noexcept nogil:
    cdef array_memory *m = <array_memory *>a.private_data
    cdef column_block[MAX_OWNED] owned
    cdef int64_t i
    for i in range(a.n_children):
        if a.children[i].release != NULL:
            a.children[i].release(a.children[i])
    memcpy(owned, m.owned, sizeof(owned))
    for i in range(MAX_OWNED):
        give_block(&owned[i])
    a.release = NULL


cdef void open_column(
    arrow_array *a, column_block *b, int64_t length, int64_t buffer_count
) noexcept nogil:
    cdef array_memory *m = <array_memory *>b.data
    memset(a, 0, sizeof(arrow_array))
    memset(m, 0, sizeof(array_memory))
    m.owned[0] = b[0]
    b.data = NULL
    b.capacity = 0
    a.length = length
    a.n_buffers = buffer_count
    a.buffers = m.buffers
    a.private_data = m
    a.release = _release


cdef int open_parent(
    arrow_array *a, int64_t length, int64_t buffer_count, int64_t child_count
) noexcept nogil:
    cdef int64_t children_size = child_count * (sizeof(arrow_array) + sizeof(arrow_array *))
    cdef arrow_array *children
    cdef column_block block
    cdef int64_t i
    if take_rows(&block, HEAD_SIZE + children_size) < 0:
        return -1
    memset(block.data + HEAD_SIZE, 0, children_size)
    children = <arrow_array *>(block.data + HEAD_SIZE)
    open_column(a, &block, length, buffer_count)
    a.n_children = child_count
    a.children = <arrow_array **>(children + child_count)
    for i in range(child_count):
        a.children[i] = children + i
    return 0


cdef void own_block(arrow_array *a, column_block *b) noexcept nogil:
    (<array_memory *>a.private_data).owned[1] = b[0]
    b.data = NULL
    b.capacity = 0


cdef int64_t _bytes_of(const arrow_array *a) noexcept nogil:
    cdef const array_memory *m = <const array_memory *>a.private_data
    cdef int64_t total = 0
    cdef int64_t i
    if a.release == NULL:
        return 0
    for i in range(MAX_OWNED):
        total += m.owned[i].capacity
    for i in range(a.n_children):
        total += _bytes_of(a.children[i])
    return total


@cython.final
@cython.auto_pickle(False)
@cython.no_gc
cdef class ArrowColumns:
    """Decoded rows as one struct array of the C data interface, with a child for each column.

    The columns that no importer has taken are released with this object.

    Attributes: `names`, of the columns; `large`, the names of those with 64-bit offsets;
    `body_bytes`, bytes of the column `body`, 0 without it.
    """

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)

    def __len__(self):
        return self.array.length

    @property
    def address(self):
        """The address of the struct array, to be imported once, while this object exists."""
        return <uintptr_t>&self.array

    def child_addresses(self):
        """Return the address of each column, to be imported instead of the struct array."""
        cdef int64_t i
        return [<uintptr_t>self.array.children[i] for i in range(self.array.n_children)]

    def byte_count(self):
        """Return the bytes of memory that importers have not taken yet."""
        return _bytes_of(&self.array)
