"""Records of the commit log for compiled readers: the bytes, wherever a file keeps them."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore._mapped_file cimport MappedFile


cdef class RecordBytes:
    """Bytes of mapped files where they lie, of the others in one buffer that is used again."""
    cdef uint8_t *buffer
    cdef int64_t capacity
    cdef MappedFile mapped_file  # whose bytes [start, end) the buffer has
    cdef int64_t start
    cdef int64_t end

    # Bytes [position, position + size) of a file that the caller holds and in which they are
    # written; up to `stop` is read with them if it must be read. Valid until the next call.
    cdef const uint8_t *at(
        self, MappedFile mapped_file, int64_t position, int64_t size, int64_t stop
    ) except NULL
    cdef int fill(
        self, MappedFile mapped_file, int64_t position, int64_t size, int64_t stop
    ) except -1


cdef str NOT_HELD

# How far records lie so close together that one read is cheaper than several, and no more than
# `limit` bytes: the offset behind the last one; `end` is its index and one. INT64_MAX for a place
# that no log has.
cdef int64_t block_stop(
    const int64_t[::1] phy_offsets, const int32_t[::1] sizes, Py_ssize_t first, int64_t limit,
    Py_ssize_t *end
) noexcept
