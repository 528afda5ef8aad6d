from libc.stdint cimport int64_t


cdef class ReadCounts:
    cdef readonly int64_t found
    cdef readonly int64_t missed
    cdef readonly int64_t messages
    cdef readonly int64_t longest_ms

    cpdef void note(self, int64_t count, int64_t took_ms=*) noexcept
