"""Memory of columns, which is reused for later columns once it is unreferenced."""
import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove, memset

from pyrocketstore.columns._builder cimport reserve, var_column

cdef enum:
    MAX_BLOCKS = 64
    MAX_KEPT = 167772160      # bytes of memory kept for the next columns

# Blocks of released columns, oldest first. New memory costs a page fault for each 4 KiB, about as
# much as decoding into it does. The GIL protects the table.
ctypedef struct block:
    uint8_t *data
    int64_t capacity

cdef block[MAX_BLOCKS] KEPT
cdef int kept_count = 0
cdef int64_t kept_bytes = 0


cdef void _drop(int index) noexcept:
    """Remove a block from KEPT."""
    global kept_count, kept_bytes
    kept_bytes -= KEPT[index].capacity
    kept_count -= 1
    memmove(&KEPT[index], &KEPT[index + 1], (kept_count - index) * sizeof(block))


cdef uint8_t *take_block(int64_t least, int64_t *capacity) noexcept:
    cdef int i
    cdef int best = -1
    cdef uint8_t *data
    for i in range(kept_count):
        if least <= KEPT[i].capacity <= 2 * least and (
            best < 0 or KEPT[i].capacity < KEPT[best].capacity
        ):
            best = i
    if best < 0:
        return NULL
    data = KEPT[best].data
    capacity[0] = KEPT[best].capacity
    _drop(best)
    return data


cdef void _give_block(uint8_t *data, int64_t capacity) noexcept:
    """Keep a block for later columns, or free it."""
    global kept_count, kept_bytes
    if data == NULL or not MIN_BLOCK <= capacity <= MAX_KEPT:
        free(data)
        return
    while kept_count == MAX_BLOCKS or kept_bytes + capacity > MAX_KEPT:
        free(KEPT[0].data)
        _drop(0)
    KEPT[kept_count].data = data
    KEPT[kept_count].capacity = capacity
    kept_count += 1
    kept_bytes += capacity


def reusable_bytes(Py_ssize_t size) -> np.ndarray:
    """Return an uninitialized uint8[size] whose memory is reused once it is unreferenced."""
    if size < 0:
        raise ValueError(f"size {size}: must not be negative")
    return column_array(size, np.uint8, 1)


def release_memory() -> int:
    """Free the memory that is kept for later columns; return its bytes (at most 160 MiB)."""
    released = kept_bytes
    while kept_count > 0:
        free(KEPT[0].data)
        _drop(0)
    return released


@cython.final
@cython.auto_pickle(False)
cdef class _Memory:
    """The memory of a finished column, the base object of its array."""

    cdef uint8_t *data
    cdef Py_ssize_t size
    cdef int64_t capacity

    def __dealloc__(self):
        _give_block(self.data, self.capacity)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)


cdef object column_array(Py_ssize_t count, object dtype, int64_t width):
    cdef _Memory memory
    cdef var_column fresh
    if count * width < MIN_BLOCK:
        return np.empty(count, dtype)
    memory = _Memory.__new__(_Memory)
    memory.size = count * width
    memory.data = take_block(memory.size, &memory.capacity)
    if memory.data == NULL:
        memset(&fresh, 0, sizeof(var_column))
        if reserve(&fresh, memory.size) < 0:
            raise MemoryError
        memory.data = fresh.data
        memory.capacity = fresh.capacity
    return np.frombuffer(memory, dtype)


cdef object take_data(var_column *c):
    cdef _Memory memory
    cdef uint8_t *data
    if c.size == 0:
        return np.zeros(0, np.uint8)
    if c.capacity - c.size > c.capacity // 4:
        data = <uint8_t *>realloc(c.data, c.size)
        if data != NULL:
            c.data = data
            c.capacity = c.size
    memory = _Memory.__new__(_Memory)
    memory.data = c.data
    memory.size = c.size
    memory.capacity = c.capacity
    c.data = NULL
    return np.frombuffer(memory, np.uint8)
