"""Memory of columns: taken again for the next ones when nobody has it any more."""
import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove, memset

from pyrocketstore._values cimport reserve, var_column

cdef enum:
    MAX_BLOCKS = 64
    MAX_KEPT = 167772160      # bytes of memory kept for the next columns

# Memory of columns that nobody has any more, oldest first. Fresh memory costs a page fault for each
# 4 KiB, about as much as decoding into it does. All under the GIL.
ctypedef struct block:
    uint8_t *data
    int64_t capacity

cdef block[MAX_BLOCKS] KEPT
cdef int kept_count = 0
cdef int64_t kept_bytes = 0


cdef void _drop(int place) noexcept:
    """Takes a block out of KEPT."""
    global kept_count, kept_bytes
    kept_bytes -= KEPT[place].capacity
    kept_count -= 1
    memmove(&KEPT[place], &KEPT[place + 1], (kept_count - place) * sizeof(block))


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
    """Keeps a block for the next columns, or frees it."""
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
    """uint8[size], not set; its memory is kept for the next columns when nobody has it any more."""
    if size < 0:
        raise ValueError(f"{size} bytes")
    return column_array(size, np.uint8, 1)


def release_memory() -> int:
    """Free the memory that is kept for the next columns; gives its bytes (at most 160 MiB)."""
    released = kept_bytes
    while kept_count > 0:
        free(KEPT[0].data)
        _drop(0)
    return released


@cython.final
@cython.auto_pickle(False)
cdef class _Memory:
    """Bytes of a finished column: the base of its array."""

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
