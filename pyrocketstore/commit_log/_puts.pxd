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
    int32_t text_size
    int32_t flag


cdef class Chunk:
    cdef rs_run_row *rows
    cdef encoded_row *parts
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef int64_t size
    cdef QueueSlot slot
    cdef TopicEntry owner
    cdef const uint8_t *texts
    cdef const uint8_t *bare      # of a row whose text_position is -1
    cdef int reserve(self, Py_ssize_t capacity) except -1
    cdef void clear(self) noexcept
    cdef Py_ssize_t fill(self, CommitLogCore core, rs_outgoing *template, Columns columns,
                         Py_ssize_t first, RecordBuffer buffer, int64_t bytes_max) except -2
    cdef QueueSlot slot_at(self, CommitLogCore core, Columns columns, Py_ssize_t i,
                           QueueSlot last)
    cdef void encode(self, rs_outgoing *template, uint8_t *buffer) noexcept nogil
