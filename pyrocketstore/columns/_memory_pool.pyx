"""Memory of columns, which is reused for later columns once it is unreferenced.

Arrow releases memory in any thread, so the functions on blocks need no GIL.
"""
import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove, memset
from posix.unistd cimport usleep

from pyrocketstore._rocketstore cimport rs_compare_and_swap, rs_store_release
from pyrocketstore.columns._builder cimport column_block, reserve, var_column

cdef enum:
    MAX_BLOCKS = 64
    MAX_KEPT = 167772160      # bytes of memory kept for the next columns
    MAX_UNUSED = 1024         # bytes that are not worth a call of the allocator
    RELEASE_TRIES = 1000      # 1 ms each

# Blocks of released columns, oldest first. New memory costs a page fault for each 4 KiB, about as
# much as decoding into it does. `in_use` is 1 while a thread works on the table. No other thread
# waits for it: it allocates or frees instead, so a process that was forked meanwhile goes on.
cdef column_block[MAX_BLOCKS] KEPT
cdef int kept_count = 0
cdef int64_t kept_bytes = 0
cdef int64_t in_use = 0


cdef inline bint _enter() noexcept nogil:
    """Begin to use KEPT; False: another thread does."""
    return rs_compare_and_swap(&in_use, 0, 1)


cdef inline void _leave() noexcept nogil:
    rs_store_release(&in_use, 0)


cdef void _drop(int index) noexcept nogil:
    """Remove a block from KEPT."""
    global kept_count, kept_bytes
    kept_bytes -= KEPT[index].capacity
    kept_count -= 1
    memmove(&KEPT[index], &KEPT[index + 1], (kept_count - index) * sizeof(column_block))


cdef column_block take_block(int64_t least) noexcept nogil:
    cdef int i
    cdef int best = -1
    cdef column_block found
    found.data = NULL
    found.capacity = 0
    if not _enter():
        return found
    for i in range(kept_count):
        if least <= KEPT[i].capacity <= 2 * least and (
            best < 0 or KEPT[i].capacity < KEPT[best].capacity
        ):
            best = i
    if best >= 0:
        found = KEPT[best]
        _drop(best)
    _leave()
    return found


cdef int take_rows(column_block *b, int64_t size) noexcept nogil:
    cdef var_column fresh
    if size >= MIN_BLOCK:
        b[0] = take_block(size)
        if b.data != NULL:
            return 0
        memset(&fresh, 0, sizeof(var_column))
        if reserve(&fresh, size) < 0:
            return -1
        b.data = fresh.data
        b.capacity = fresh.capacity
        return 0
    b.data = <uint8_t *>realloc(NULL, max(size, <int64_t>1))
    b.capacity = size
    return -1 if b.data == NULL else 0


cdef void give_block(column_block *b) noexcept nogil:
    global kept_count, kept_bytes
    cdef column_block given = b[0]
    b.data = NULL
    b.capacity = 0
    if given.data == NULL or not MIN_BLOCK <= given.capacity <= MAX_KEPT or not _enter():
        free(given.data)
        return
    while kept_count == MAX_BLOCKS or kept_bytes + given.capacity > MAX_KEPT:
        free(KEPT[0].data)
        _drop(0)
    KEPT[kept_count] = given
    kept_count += 1
    kept_bytes += given.capacity
    _leave()


def reusable_bytes(Py_ssize_t size) -> np.ndarray:
    """Return an uninitialized uint8[size] whose memory is reused once it is unreferenced."""
    if size < 0:
        raise ValueError(f"size {size}: must not be negative")
    return column_array(size, np.uint8, 1)


def release_memory() -> int:
    """Free the memory that is kept for later columns; return its bytes (at most 160 MiB)."""
    cdef int64_t released
    cdef int tries = 0
    while not _enter():
        tries += 1
        if tries == RELEASE_TRIES:  # the process was forked while a thread worked on the table
            return 0
        usleep(1000)
    released = kept_bytes
    while kept_count > 0:
        free(KEPT[0].data)
        _drop(0)
    _leave()
    return released


@cython.final
@cython.auto_pickle(False)
cdef class _Memory:
    """The memory of a finished column, the base object of its arrays."""

    cdef column_block block

    def __dealloc__(self):
        give_block(&self.block)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.block.data, self.block.capacity, 0, flags)


cdef object block_memory(column_block *b):
    cdef _Memory memory = _Memory.__new__(_Memory)
    memory.block = b[0]
    b.data = NULL
    b.capacity = 0
    return memory


cdef object column_array(Py_ssize_t count, object dtype, int64_t width):
    cdef column_block block
    if count * width < MIN_BLOCK:
        return np.empty(count, dtype)
    if take_rows(&block, count * width) < 0:
        raise MemoryError
    return np.frombuffer(block_memory(&block), dtype, count)


cdef column_block take_data(var_column *c) noexcept nogil:
    cdef column_block taken
    cdef uint8_t *data
    if c.capacity - c.size > max(c.capacity // 4, <int64_t>MAX_UNUSED):
        data = <uint8_t *>realloc(c.data, max(c.size, <int64_t>1))
        if data != NULL:
            c.data = data
            c.capacity = c.size
    taken.data = c.data
    taken.capacity = c.capacity
    c.data = NULL
    c.capacity = 0
    return taken
