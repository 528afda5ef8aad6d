"""Writing units of consume queues, for the dispatch loop."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore.files._mapped_file cimport MappedFile
from pyrocketstore._rocketstore cimport rs_queue

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
