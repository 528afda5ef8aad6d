"""Scans of the commit log, for the dispatch loop."""
from libc.stdint cimport int32_t, int64_t, uint64_t, uint8_t
from libc.string cimport memchr

from pyrocketstore._rocketstore cimport (
    RS_BAD_MAGIC,
    RS_BAD_SIZE,
    RS_BLANK,
    RS_MESSAGE_MAGIC_CODE,
    RS_MESSAGE_MAGIC_CODE_V2,
    RS_MESSAGE_MIN_SIZE,
    RS_OK,
    RS_TORN,
    rs_load_be32,
    rs_load_be64,
    rs_queue,
    rs_record,
)
from pyrocketstore.system._env cimport EnvTable

cdef enum:
    WINDOW_BYTES = 524288
    RECENT_ENTRIES = 16


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
    int64_t last_end            # of the last record, bytes of the log
    int64_t count


cdef class TopicQueueMap:
    cdef map_entry *entries
    cdef int64_t capacity
    cdef int64_t count
    cdef map_entry *recent[16]      # by queue id: found without a hash

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


cdef enum:
    ENTRY_HEADER = 48           # bytes of a DLedger entry before its record
    ENTRY_END = -1              # `entry_header`: no further entry is in this file
    ENTRY_TORN = -2             # `entry_header`: more bytes are needed


cdef inline int64_t entry_body_size(const uint8_t *p) noexcept nogil:
    return rs_load_be32(p + 44)


# Of bytes that are no record: ENTRY_HEADER if a DLedger entry begins there; ENTRY_END, ENTRY_TORN,
# or 0. `file_left` bytes of the file are left.
cdef inline int entry_header(const uint8_t *p, int64_t left, int64_t phy_offset,
                             int64_t file_left) noexcept nogil:
    cdef int32_t magic, size
    if left > file_left:
        left = file_left        # the window may hold more than this range
    if left < 8:
        return 0
    magic = rs_load_be32(p)
    if magic == -1:
        return ENTRY_END if rs_load_be32(p + 4) == file_left else 0
    size = rs_load_be32(p + 4)
    if magic != 1 or size < ENTRY_HEADER + RS_MESSAGE_MIN_SIZE:
        return 0
    if left >= 32 and rs_load_be64(p + 24) != phy_offset:
        return 0
    if left < ENTRY_HEADER:
        return ENTRY_TORN if file_left > left else 0
    return ENTRY_HEADER if entry_body_size(p) == size - ENTRY_HEADER else 0


# The verdict on the record in a DLedger entry, whose size must be that of the entry's body: a
# reader takes the size of the entry for what it has to read.
cdef inline int entry_status(int status, int64_t record_size, int64_t body_size) noexcept nogil:
    if status == RS_BLANK:
        return RS_BAD_MAGIC     # dledger 0.2.3 ends its files in another way
    if (status == RS_OK or status == RS_TORN) and record_size and record_size != body_size:
        return RS_BAD_SIZE
    return status


cdef struct scan_state:
    int64_t position            # of the next record, bytes into the file
    int64_t header              # bytes of the DLedger entry's header before it; 0: plain records
    int64_t until               # the file is read up to here, and further only to complete a record
    int64_t stop                # where the file ends
    int64_t count
    int64_t last_store_timestamp
    int64_t error               # a negated errno
    int32_t status


# RS_OK and the checked record at state.position, which the caller moves on; or the verdict that
# ends the scan: RS_END at state.stop, RS_IO_ERROR with state.error. Where a DLedger entry begins,
# the position moves behind its header first.
cdef int next_record(FileWindow window, int64_t file_from_offset, bint check_crc,
                     scan_state *state, rs_record *record) noexcept nogil

# The first record at or after `position`, by the rule of FileWindow.find_record; -1 if there is
# none. Where none begins before `limit`, it may return a later one or -1.
cdef int64_t find_record(FileWindow window, int64_t file_from_offset, int64_t position,
                         int64_t limit, int64_t stop, bint check_crc,
                         int64_t *error) noexcept nogil


# The magic code of a message of 4.9.3, or of one of 5.x with a topic of more than 127 bytes.
cdef inline bint is_message_magic(int32_t magic) noexcept nogil:
    return magic == RS_MESSAGE_MAGIC_CODE or magic == RS_MESSAGE_MAGIC_CODE_V2


# The position of the first magic code of a message at or after `at`, in `size` bytes; or -1.
cdef inline int64_t find_magic(const uint8_t *p, int64_t at, int64_t size) noexcept nogil:
    cdef const uint8_t *hit
    while at + 4 <= size:
        hit = <const uint8_t *>memchr(p + at, 0xDA, <size_t>(size - at - 3))
        if hit == NULL:
            return -1
        at = hit - p
        if is_message_magic(rs_load_be32(hit)):
            return at
        at += 1
    return -1


# The minimum of each topic of which a part was removed, for the loops over records.

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
