"""Many messages at once: checked columns, and the rows of them that are written together."""
from cpython.buffer cimport Py_buffer
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore._commit_log cimport (
    CommitLogCore,
    QueueSlot,
    RecordBuffer,
    TopicEntry,
    rs_run_row,
)
from pyrocketstore._rocketstore cimport rs_outgoing

# TAGS and KEYS as a properties text: the size; -1 for all that is not two plain str (or None)
# that read back equal and fit.
cdef int64_t tags_and_keys(object tags, object keys, uint8_t *out, int64_t capacity)


cdef class Columns:
    cdef readonly str topic
    cdef list bodies                # a copy: a row's special methods may change the caller's
    cdef readonly list queue_ids
    cdef int64_t queue_id
    cdef list flags                 # a copy, too
    cdef RecordBuffer texts
    cdef int64_t *text_ends
    cdef Py_ssize_t rows
    cdef int start(self, Py_ssize_t rows) except -1
    cdef int add_text(self, Py_ssize_t i, object tags, object keys, object text) except -1
    cdef bint add_item(self, Py_ssize_t i, dict item) except -1


cdef struct encoded_row:
    const uint8_t *body
    int64_t body_size
    int64_t text_position
    int32_t text_size
    int32_t flag


cdef class Chunk:
    cdef rs_run_row *rows
    cdef encoded_row *parts
    cdef Py_buffer *views
    cdef Py_ssize_t view_count
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef int64_t size
    cdef QueueSlot slot
    cdef TopicEntry owner
    cdef const uint8_t *texts
    cdef const uint8_t *bare      # of a row whose text_position is -1
    cdef int reserve(self, Py_ssize_t capacity) except -1
    cdef void clear(self) noexcept
    cdef void unpin(self) noexcept
    cdef Py_ssize_t fill(self, CommitLogCore core, rs_outgoing *template, Columns columns,
                         Py_ssize_t first, RecordBuffer buffer, int64_t bytes_max) except -2
    cdef int pin(self, object body, encoded_row *part) except -1
    cdef QueueSlot slot_at(self, CommitLogCore core, Columns columns, Py_ssize_t i,
                           QueueSlot last)
    cdef void encode(self, rs_outgoing *template, uint8_t *buffer) noexcept nogil
