"""Writing and reading units of consume queues, for compiled code."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore._rocketstore cimport rs_queue
from pyrocketstore.files._mapped_file cimport MappedFile

cdef enum:
    PRE_BLANK_SIZE = 0x7FFFFFFF

# Appends one unit. RS_OK; RS_REPEAT: the queue has it; RS_NEED_FILE: no file, or a full one;
# RS_NEED_PYTHON: a gap before queue_offset, or values that no unit may hold; below 0: -errno.
cdef int put_position_info(rs_queue *q, int64_t phy_offset, int32_t size, int64_t tags_code,
                           int64_t queue_offset) noexcept nogil


cdef inline bint is_pre_blank(int64_t phy_offset, int32_t size, int64_t tags_code) noexcept nogil:
    """Whether a unit fills a queue offset that never had a message."""
    return phy_offset == 0 and size == PRE_BLANK_SIZE and tags_code == 0
cdef struct unit_scan:
    int64_t valid_size          # bytes of the units that were accepted
    int64_t max_phy_offset      # one past the last message they name; -1: none
    int64_t last_ext_address    # of the last one with an ext address; 1: none


# Accepts units up to the first invalid one, or the first one at or after phy_limit.
cdef unit_scan scan(const uint8_t *base, int64_t size, int64_t phy_limit) noexcept nogil


cdef bint are_zeros(const uint8_t *data, int64_t size) noexcept nogil


cdef class ConsumeQueueCore:
    cdef rs_queue queue
    cdef MappedFile mapped_file     # the owner of queue.file, held while it is set
    cdef list retired               # (file, is held): the writer may still store into it; or None


cdef class UnitAppender:
    cdef readonly ConsumeQueueCore core
    cdef public bint failed


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
