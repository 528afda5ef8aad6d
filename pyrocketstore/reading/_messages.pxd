"""Bytes of commit log records for compiled readers, and the fields of what they skip."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore.files._mapped_file cimport MappedFile
from pyrocketstore.system._env cimport kept_file

# Fields of the objects that each read has for messages that it cannot read.

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


cdef enum:
    FILES_A_CALL = 8


cdef class RecordBytes:
    """Bytes of mapped files in place, and of other files in one reused buffer."""
    cdef uint8_t *buffer
    cdef int64_t capacity
    cdef MappedFile mapped_file  # the file whose bytes [start, end) are in the buffer
    cdef int64_t start
    cdef int64_t end
    # For several reads in one call: the last files stay open until `let_go`, and each is asked only
    # once whether it was deleted.
    cdef bint keeps
    cdef kept_file *kept[FILES_A_CALL]
    cdef list kept_of            # of these descriptors, in the same order
    cdef int last_kept           # number of the one that was used last
    cdef int next_kept           # number of the one that gives way to another file

    cdef int64_t read(
        self, MappedFile mapped_file, void *target, int64_t size, int64_t position
    ) except? -1
    cdef int descriptor(self, MappedFile mapped_file) except -1
    cdef int let_go(self) except -1
    # Returns bytes [position, position + size), which are written, of a file that the caller holds.
    # A read reads up to `stop`. Valid until the next call.
    cdef const uint8_t *at(
        self, MappedFile mapped_file, int64_t position, int64_t size, int64_t stop
    ) except NULL
    # True if the buffer holds these bytes.
    cdef bint has(self, MappedFile mapped_file, int64_t position, int64_t size) noexcept
    cdef int fill(
        self, MappedFile mapped_file, int64_t position, int64_t size, int64_t stop
    ) except -1


cdef str NOT_HELD

# Returns the end offset of the records from `first` on, of `n`, that one read should include: gaps
# are small, and the sum is at most `limit` bytes; `end` is the index after the last one. INT64_MAX
# for an offset that no log has.
cdef int64_t block_stop(
    const int64_t *phy_offsets, const int32_t *sizes, Py_ssize_t n, Py_ssize_t first,
    int64_t limit, Py_ssize_t *end
) noexcept
