"""Encode, parse and check one record of the commit log."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uint8_t
from libc.string cimport memchr, memcmp

from pyrocketstore._rocketstore cimport (
    RS_HOST_V6_SIZE,
    RS_MESSAGE_POSITION_BORN_HOST,
    rs_outgoing,
    rs_properties,
    rs_record,
    rs_status,
)

cdef enum:
    # From a record's beginning up to the end of its store timestamp, with an IPv6 born host.
    HEADER_BYTES = RS_MESSAGE_POSITION_BORN_HOST + RS_HOST_V6_SIZE + 8

# Structure only: RS_OK, RS_BLANK, RS_END, RS_TORN, RS_BAD_MAGIC or RS_BAD_SIZE. At most `left`
# bytes are read. RS_OK sets all of `out`, RS_BLANK only total_size. A size above largest_record()
# is RS_BAD_SIZE, however many bytes are left.
cdef rs_status parse_record(const uint8_t *p, int64_t left, rs_record *out) noexcept nogil
# The verdict of 4.9.3's recovery scan; RS_BAD_OFFSET if the stored physical offset is not
# phy_offset (not compared if that is negative).
cdef rs_status check_record(
    const uint8_t *p, int64_t left, int64_t phy_offset, bint check_crc, rs_record *out
) noexcept nogil
# The upper bound of record sizes, bytes. Check it before memory is allocated for a record.
cdef int64_t largest_record() noexcept nogil
# True if the properties text ends in NUL bytes: a page that did not reach the disk.
cdef bint properties_torn(const uint8_t *p, int64_t size) noexcept nogil

cdef struct property_text:
    const uint8_t *at       # the rest of the text
    const uint8_t *stop
    const uint8_t *name     # the entry: a name, U+0001 and a value; U+0002 lies between entries
    const uint8_t *value    # NULL without U+0001
    const uint8_t *end

# Steps to the next entry of a properties text; False after the last one. Set `at` and `stop` first.
cdef inline bint next_property(property_text *text) noexcept nogil:
    if text.at >= text.stop:
        return False
    text.name = text.at
    text.end = <const uint8_t *>memchr(text.at, 2, text.stop - text.at)
    if text.end == NULL:
        text.end = text.stop
    text.value = <const uint8_t *>memchr(text.at, 1, text.end - text.at)
    if text.value != NULL:
        text.value += 1
    text.at = text.end + 1
    return True

# True if neither the entry's name nor its value is empty.
cdef inline bint is_pair(const property_text *text) noexcept nogil:
    return text.value != NULL and text.value - 1 > text.name and text.value < text.end

cdef void scan_properties(const uint8_t *p, int64_t size, rs_properties *out) noexcept nogil
# The decimal digit that UTF-8 text begins with, as Java's Character.digit, or -1; `used` is set to
# its length, bytes. `size` > 0.
cdef int32_t java_digit(const uint8_t *p, int64_t size, int64_t *used) noexcept nogil
# Java's Integer.parseInt of UTF-8 text; False if it would throw.
cdef bint parse_java_int(const uint8_t *p, int64_t size, int32_t *out) noexcept nogil

# The store timestamp in the first `size` bytes of a record; -1 if they do not reach so far.
cdef int64_t store_time_in(const uint8_t *p, int64_t size) noexcept nogil

cdef class RecordHeader:
    cdef readonly int64_t size          # bytes of the header in the data, at most HEADER_SIZE
    cdef readonly int32_t total_size
    cdef readonly int32_t magic_code
    cdef readonly int32_t body_crc
    cdef readonly int32_t queue_id
    cdef readonly int32_t sys_flag
    cdef readonly int64_t queue_offset
    cdef readonly int64_t phy_offset
    cdef readonly int64_t store_timestamp

cdef int64_t encoded_size(const rs_outgoing *m) noexcept nogil
# Writes encoded_size(m) bytes; queueOffset, physicalOffset and storeTimestamp are zero.
cdef void encode_record(const rs_outgoing *m, uint8_t *out) noexcept nogil
cdef void patch_record(
    uint8_t *record, int64_t queue_offset, int64_t phy_offset, int64_t store_timestamp
) noexcept nogil
cdef uint32_t body_crc32(const uint8_t *p, size_t size) noexcept nogil
# zlib's crc32(crc, p, size), for modules without csrc/crc32.c.
cdef uint32_t crc32_of(uint32_t crc, const uint8_t *p, size_t size) noexcept nogil
cdef int64_t tags_code_of(const uint8_t *tags, int32_t size) noexcept nogil


cdef enum:
    NOT_QUEUED = 0x4  # of the transaction type: prepared and rolled back messages have no unit


# A queue as its records name it.
ctypedef struct queue_name:
    const uint8_t *topic  # valid UTF-8
    int32_t topic_size    # -1: a topic that no record can have
    int32_t queue_id
    bint is_light         # the name begins with %LMQ%


# True if Java decodes the bytes of a record to that text: malformed UTF-8 becomes U+FFFD.
cdef bint is_java_text(
    const uint8_t *p, int64_t size, const uint8_t *topic, int64_t topic_size
) noexcept nogil

# The uncommon cases of is_of_queue: a topic that is malformed UTF-8, and a record that names the
# queue in INNER_MULTI_DISPATCH.
cdef bint is_named_otherwise(
    const queue_name *queue, const uint8_t *p, const rs_record *record, int64_t queue_offset
) noexcept nogil


cdef inline bint is_of_queue(
    const queue_name *queue, const uint8_t *p, const rs_record *record, int64_t queue_offset
) noexcept nogil:
    """Return True if the checked record at `p` is the queue's message at `queue_offset`."""
    if record.sys_flag & NOT_QUEUED:
        return False
    return (
        record.queue_offset == queue_offset
        and record.queue_id == queue.queue_id
        and record.topic_size == queue.topic_size
        and memcmp(p + record.topic_position, queue.topic, record.topic_size) == 0
    ) or is_named_otherwise(queue, p, record, queue_offset)


@cython.final
cdef class QueueName:
    """The queue that records are checked against."""
    cdef queue_name name
    cdef bytes topic_bytes
