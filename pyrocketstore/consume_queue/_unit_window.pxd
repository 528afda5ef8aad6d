"""Single units of a queue, for compiled readers."""
from libc.stdint cimport int64_t, uint8_t

from pyrocketstore.files._mapped_file cimport MappedFile


cdef class UnitWindow:
    cdef object reader              # UnitReader
    cdef object mapped_file_queue
    cdef int64_t file_size
    cdef MappedFile held            # has the mapping at `base`; None: `block` has the bytes
    cdef bytes block
    cdef const uint8_t *base        # of the unit at `first`
    cdef int64_t first              # queue offsets [first, stop) are in the window
    cdef int64_t stop

    # Returns the unit at a queue offset, NULL without one. Without a mapping, one read also takes
    # up to `before` units before it and `ahead` units from it on. Valid until the next call.
    cdef const uint8_t *at(
        self, int64_t queue_offset, int64_t before, int64_t ahead
    ) except? NULL
    cdef int move(self, int64_t queue_offset, int64_t before, int64_t ahead) except -1
    cdef bytes read(self, MappedFile mapped_file, int64_t position, int64_t size)
    cdef int set(self, MappedFile mapped_file, int64_t begin, int64_t size) except -1
    cdef int close(self) except -1
    cdef int64_t next_file(self, int64_t start) except -1
    # The first unit at or after `start` with a readable record. `found` gets its queue offset and
    # its store time; False without one before `end`.
    cdef bint first_stored(
        self, int64_t start, int64_t end, object store_time, int64_t *found
    ) except -1
