"""The minimum of each topic of which a part was removed, for the loops over records."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore.commit_log._scan cimport TopicQueueMap, map_entry


@cython.final
@cython.auto_pickle(False)
cdef class TopicMinOffsets:
    """The physical offsets before which messages of a topic are removed.

    Parameters
    ----------
    table : {topic: physical offset (bytes in the log), > 0}

    Threads: any. It never changes: a removal makes another one.
    """
    def __cinit__(self, table):
        cdef bytes name
        cdef int64_t offset
        cdef map_entry *entry
        self.topics = TopicQueueMap()
        self.table = dict(table)
        for topic, offset in self.table.items():
            if offset <= 0:
                raise ValueError(f"{topic!r}: the minimum {offset} is not positive")
            name = topic.encode()
            entry = self.topics.insert(<const uint8_t *><char *>name, <int32_t>len(name), 0)
            if entry == NULL:
                raise MemoryError()
            entry.first_phy_offset = offset
            self.highest = max(self.highest, offset)

    cdef bint removes_known(self, const uint8_t *topic, int32_t size,
                            int64_t phy_offset) noexcept nogil:
        cdef const map_entry *entry = self.topics.find(topic, size, 0)
        return entry != NULL and phy_offset < entry.first_phy_offset

    def of(self, topic):
        """Return the minimum of a topic, bytes of the log; 0 without one."""
        return self.table.get(topic, 0)

    def by_topic(self):
        """Return {topic: minimum} of the topics that have one."""
        return self.table.copy()

    def __bool__(self):
        return self.highest > 0
