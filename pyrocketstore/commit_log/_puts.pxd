"""Results of puts; puts of many messages at once."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore._rocketstore cimport rs_outgoing
from pyrocketstore.commit_log._append cimport (
    CommitLogCore,
    QueueSlot,
    RecordBuffer,
    TopicEntry,
    rs_run_row,
)
from pyrocketstore.record._text cimport UniqueIds

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


# TAGS and KEYS as a properties text: the size; -1 for all that is not two exact str (or None)
# that read back equal, by the tag too, and fit.
cdef int64_t tags_and_keys(object tags, object keys, uint8_t *out, int64_t capacity)


cdef class PropertyTexts:
    cdef RecordBuffer buffer
    cdef int64_t *ends              # of each text in the buffer, behind a 0
    cdef Py_ssize_t rows
    cdef Py_ssize_t capacity
    cdef bint add_plain(self, object tags, object keys, object properties, UniqueIds ids) except -1
    cdef uint8_t *room(self) except NULL
    cdef int end_row(self, int64_t size) except -1


cdef class Columns:
    cdef readonly str topic
    cdef list bodies                # of bytes
    cdef int64_t largest_body
    cdef int32_t *queue_ids         # NULL: `queue_id` is the one of every row
    cdef int64_t queue_id
    cdef int32_t *flags             # NULL: all are 0
    cdef PropertyTexts texts
    cdef Py_ssize_t rows
    # of messages whose properties are encoded already
    cdef list entries               # the TopicEntry of each row; None: all have `topic`
    cdef int32_t *sys_flags         # NULL: all are 0
    cdef int64_t *born_timestamps   # ms; NULL: now
    cdef list born_hosts            # bytes, as on disk; None: the one of the call
    cdef uint8_t *alone             # 1: only the put of a single message does all it needs; or NULL
    cdef int take_body(self, Py_ssize_t i, object body) except -1
    cdef int take_queue_ids(self, object queue_ids) except -1
    cdef int set_flag(self, Py_ssize_t i, object flag) except -1
    # The first row from `first` on whose record has more than `limit` bytes, -1 for none. A record
    # without body and properties has `fixed` bytes, and `bare` are those of no properties.
    cdef Py_ssize_t first_too_large(self, int64_t fixed, int64_t bare, int64_t limit,
                                    int64_t *size)
    cdef int add_text(self, Py_ssize_t i, object tags, object keys) except -1
    cdef bint add_item(self, Py_ssize_t i, dict item, UniqueIds ids) except -1


cdef struct encoded_row:
    const uint8_t *body
    int64_t body_size
    int64_t text_position
    const uint8_t *topic
    const uint8_t *born_host      # NULL: the one of the call
    int64_t born_timestamp
    int32_t text_size
    int32_t flag
    int32_t sys_flag
    int32_t topic_size
    int32_t born_host_size


cdef class Chunk:
    cdef rs_run_row *rows
    cdef encoded_row *parts
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef int64_t size
    cdef QueueSlot slot
    cdef Columns owner
    cdef const uint8_t *texts
    cdef const uint8_t *bare      # of a row whose text_position is -1
    cdef int reserve(self, Py_ssize_t capacity) except -1
    cdef void clear(self) noexcept
    cdef Py_ssize_t fill(self, CommitLogCore core, rs_outgoing *template, Columns columns,
                         Py_ssize_t first, Py_ssize_t stop, RecordBuffer buffer,
                         int64_t bytes_max) except -2
    cdef QueueSlot slot_at(self, CommitLogCore core, TopicEntry entry, Columns columns,
                           Py_ssize_t i, QueueSlot last)
    cdef void encode(self, rs_outgoing *template, uint8_t *buffer) noexcept nogil


cdef class ColumnAppends:
    cdef CommitLogCore core
    cdef rs_outgoing template
    cdef Chunk spare_chunk
    cdef readonly Py_ssize_t failed_row
    cdef int check_sizes(self, rs_outgoing *template, Columns columns,
                         Py_ssize_t first=*) except -1
    cdef Chunk take_chunk(self)
    cdef int give_chunk(self, Chunk chunk) except -1
    cdef TopicEntry entry_of(self, object topic, Py_ssize_t i, dict known, object is_ordinary)
    cdef int take_encoded(self, Columns columns, Py_ssize_t i, object text, bint multi) except -1
    cdef bint take_text(self, Columns columns, Py_ssize_t i, object text) except -1
