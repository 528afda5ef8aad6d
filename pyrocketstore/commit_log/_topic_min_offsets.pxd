"""The minimum of each topic of which a part was removed, for the loops over records."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore.commit_log._scan cimport TopicQueueMap


cdef class TopicMinOffsets:
    cdef TopicQueueMap topics
    cdef dict table
    cdef int64_t highest        # no topic has a greater minimum; 0 without topics

    # Whether a topic, UTF-8, has a minimum behind `phy_offset`. Call `removes`.
    cdef bint removes_known(self, const uint8_t *topic, int32_t size,
                            int64_t phy_offset) noexcept nogil

    # Whether units of the topic that name `phy_offset` are removed.
    cdef inline bint removes(self, const uint8_t *topic, int32_t size,
                             int64_t phy_offset) noexcept nogil:
        return phy_offset < self.highest and self.removes_known(topic, size, phy_offset)
