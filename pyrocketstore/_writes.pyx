"""How bytes reach a file, through its mapping, by pwrite, or through a buffer, and the device.

A store into a mapping whose device has failed is a signal that ends the process; a pwrite is an
error. A buffer keeps the page cache's stalls away from the writer.
"""
cimport cython
from libc.errno cimport EIO
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy
from posix.fcntl cimport O_RDWR

from pyrocketstore._allocation cimport (
    ADVICE_DONTNEED,
    page_down,
    sync_path,
    write_all,
    write_zeros,
)
from pyrocketstore._env cimport EnvTable
from pyrocketstore._rocketstore cimport (
    check_io,
    rs_load_acquire,
    rs_mapped_file,
    rs_msync,
    rs_opened,
    rs_store_release,
)

cdef enum:
    UNMAP_BEFORE_FORCE = 1048576


cdef int store_bytes(rs_mapped_file *f, int64_t position, const uint8_t *data,
                     int64_t size) noexcept nogil:
    cdef int fd, error, closed
    if not f.by_write or f.buffer != NULL:
        memcpy((f.base if f.buffer == NULL else f.buffer) + position, data, <size_t>size)
        return 0
    fd = f.env.open(f.path, O_RDWR, 0)
    if fd < 0:
        return fd
    error = write_all(f.env, fd, data, size, position)
    closed = f.env.close(fd)
    return error if error < 0 else closed


cdef int write_records(rs_mapped_file *f, int fd, int64_t position, const uint8_t *data,
                       int64_t size, bint *unclean) noexcept nogil:
    cdef int64_t done = 0
    cdef int64_t put = 0
    while done < size:
        put = f.env.pwrite(fd, data + done, size - done, position + done)
        if put <= 0:
            break
        done += put
    if done == size:
        return 0
    # Recovery must not find there what is told not to be stored.
    if write_zeros(f.env, fd, position, position + done) < position + done:
        unclean[0] = True
    return <int>put if put < 0 else -EIO


cdef int force_range(rs_mapped_file *f, int64_t start, int64_t end) noexcept nogil:
    cdef uint8_t *base = f.base
    if base == NULL:
        return sync_path(f.env, f.path)
    start = page_down(start)
    if page_down(end) - start >= UNMAP_BEFORE_FORCE:
        # To write pages out they are made read-only, each by an interrupt on all processors. What
        # is not mapped goes without, and comes back by a fault that maps many at once.
        f.env.madvise(base + start, page_down(end) - start, ADVICE_DONTNEED)
    return rs_msync(f.env, base + start, end - start)


cdef int commit_appended(rs_mapped_file *f) noexcept nogil:
    # The writer moves `appended` before the time, so that a time is never newer than the bytes;
    # and so do we for those who force.
    cdef int64_t timestamp = rs_load_acquire(&f.appended_timestamp)
    cdef int64_t appended = rs_load_acquire(&f.appended)
    cdef int64_t start = rs_load_acquire(&f.wrote)
    cdef int64_t stop = min(appended, f.data_end)
    cdef int error = 0
    cdef int fd, closed
    if f.buffer == NULL or appended <= start:
        return 0
    if start < stop:
        fd = rs_opened(f.env.open(f.path, O_RDWR, 0))
        if fd < 0:
            return fd
        error = write_all(f.env, fd, f.buffer + start, stop - start, start)
        closed = f.env.close(fd)
        error = error if error < 0 else closed
    if error < 0:
        return error
    rs_store_release(&f.wrote, appended)
    if timestamp > rs_load_acquire(&f.store_timestamp):
        rs_store_release(&f.store_timestamp, timestamp)
    return 0


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class WriterBuffer:
    """Memory of a file's length that a writer stores to before it is committed.

    Parameters
    ----------
    env : EnvTable
    size : int, bytes

    Attributes: `on_free`, called with the buffer by a file that needs it no more, or None;
    `locked`, True when the memory cannot be swapped out.

    Raises StoreIOError. Pages are taken as they are used, and stay as they were left.
    Threads: one file's writer stores; the rest needs the GIL.
    Source: RocketMQ 4.9.3 TransientStorePool#init. Differs: memory is taken on first use.
    """

    def __cinit__(self, EnvTable env not None, int64_t size):
        cdef void *base = NULL
        cdef int error
        if size <= 0:
            raise ValueError(f"size {size}: must be positive")
        self.env = env
        self.size = size
        with nogil:
            error = env.table.mmap(-1, size, 1, &base)
        check_io(error, "mmap", "a writer's buffer", -1)
        self.base = <uint8_t *>base

    def __dealloc__(self):
        if self.base != NULL:
            self.env.table.munmap(self.base, self.size)

    def lock(self):
        """Keep the pages in memory once they are used. Raises StoreIOError where not allowed."""
        cdef int error
        with nogil:
            error = self.env.table.mlock(self.base, self.size, 1)
        check_io(error, "mlock", "a writer's buffer", -1)
        self.locked = True

    def free(self):
        """Give the buffer to whoever waits for it: see `on_free`."""
        if self.on_free is not None:
            self.on_free(self)
