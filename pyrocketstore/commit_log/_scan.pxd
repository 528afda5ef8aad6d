"""Scans of the commit log, for the dispatch loop."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memchr

from pyrocketstore.system._env cimport EnvTable
from pyrocketstore._rocketstore cimport RS_MESSAGE_MAGIC_CODE, rs_load_be32, rs_queue, rs_record


cdef enum:
    WINDOW_BYTES = 524288


cdef struct map_entry:
    uint8_t *topic
    uint64_t hash
    int32_t topic_size
    int32_t queue_id
    int32_t number              # counts the insertions, from 0
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
    cdef map_entry *note(self, const uint8_t *p, const rs_record *record) noexcept nogil


cdef class FileWindow:
    cdef EnvTable env
    cdef str path
    cdef int fd
    cdef uint8_t *buffer
    cdef int64_t capacity
    cdef int64_t start
    cdef int64_t size

    cdef bint in_use

    cdef int64_t fill(self, int64_t position, int64_t wanted) noexcept nogil
    cdef int begin_use(self) except -1
    cdef void end_use(self) noexcept


# Raises ValueError if [position, stop) is not a range of a file that begins at file_from_offset.
cdef int check_range(int64_t file_from_offset, int64_t position, int64_t stop) except -1


cdef inline const uint8_t *at_position(FileWindow window, int64_t position) noexcept nogil:
    return window.buffer + (position - window.start)


cdef struct scan_state:
    int64_t position            # of the next record, bytes into the file
    int64_t until               # the file is read up to here, and further only to complete a record
    int64_t stop                # where the file ends
    int64_t count
    int64_t last_store_timestamp
    int64_t error               # a negated errno
    int32_t status


# RS_OK and the checked record at state.position, which the caller moves on; or the verdict that
# ends the scan: RS_END at state.stop, RS_IO_ERROR with state.error.
cdef int next_record(FileWindow window, int64_t file_from_offset, bint check_crc,
                     scan_state *state, rs_record *record) noexcept nogil

# The first record at or after `position`, by the rule of FileWindow.find_record; -1 if there is
# none. Where none begins before `limit`, it may return a later one or -1.
cdef int64_t find_record(FileWindow window, int64_t file_from_offset, int64_t position,
                         int64_t limit, int64_t stop, bint check_crc,
                         int64_t *error) noexcept nogil


# The position of the first magic code of a message at or after `at`, in `size` bytes; or -1.
cdef inline int64_t find_magic(const uint8_t *p, int64_t at, int64_t size) noexcept nogil:
    cdef const uint8_t *hit
    while at + 4 <= size:
        hit = <const uint8_t *>memchr(p + at, 0xDA, <size_t>(size - at - 3))
        if hit == NULL:
            return -1
        at = hit - p
        if rs_load_be32(hit) == RS_MESSAGE_MAGIC_CODE:
            return at
        at += 1
    return -1
