"""Fields of the objects that each read has for messages that it cannot read."""
from libc.stdint cimport int64_t


cdef class SkippedFields:
    """The fields of skipped.SkippedMessages."""
    cdef public int64_t _count
    cdef public object _max_ranges      # int; None: no limit
    cdef public list _ranges


cdef class DamageFields:
    """The fields of skipped.QueueDamage."""
    cdef readonly str topic
    cdef readonly int64_t queue_id
    cdef readonly bint skips
    cdef readonly SkippedFields skipped
    cdef public object is_replaced
