"""The result of a put, for the modules that make it."""
from libc.stdint cimport int32_t, int64_t, uint8_t


cdef class PutMessageResult:
    cdef readonly int status_code
    cdef readonly int append_status_code
    cdef readonly int64_t phy_offset
    cdef readonly int64_t queue_offset
    cdef readonly int64_t wrote_bytes
    cdef readonly int64_t store_timestamp
    cdef readonly int32_t message_count
    cdef object positions
    cdef int32_t host_size
    cdef uint8_t host[20]
