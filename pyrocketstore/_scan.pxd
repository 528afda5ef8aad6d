"""Scans of the commit log, for the dispatch loop."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from pyrocketstore._env cimport EnvTable
from pyrocketstore._rocketstore cimport rs_queue, rs_record


cdef enum:
    WINDOW_BYTES = 1048576


cdef struct map_entry:
    uint8_t *topic
    uint64_t hash
    int32_t topic_size
    int32_t queue_id
    rs_queue *queue
    int64_t first_queue_offset
    int64_t next_queue_offset
    int64_t first_phy_offset
    int64_t count


cdef class TopicQueueMap:
    cdef map_entry *entries
    cdef int64_t capacity
    cdef int64_t count

    cdef uint64_t hash_of(self, const uint8_t *topic, int32_t size,
                          int32_t queue_id) noexcept nogil
    cdef map_entry *slot(self, uint64_t h, const uint8_t *topic, int32_t size,
                         int32_t queue_id) noexcept nogil
    cdef map_entry *find(self, const uint8_t *topic, int32_t size, int32_t queue_id) noexcept nogil
    cdef map_entry *insert(self, const uint8_t *topic, int32_t size,
                           int32_t queue_id) noexcept nogil
    cdef bint grow(self) noexcept nogil
    cdef void note(self, const uint8_t *p, const rs_record *record) noexcept nogil


cdef class FileWindow:
    cdef EnvTable env
    cdef str path
    cdef int fd
    cdef uint8_t *buffer
    cdef int64_t capacity
    cdef int64_t start
    cdef int64_t size

    cdef int64_t fill(self, int64_t position, int64_t wanted) noexcept nogil
