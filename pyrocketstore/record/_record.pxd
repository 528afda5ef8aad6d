"""Encode, parse and check one record of the commit log."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr

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
