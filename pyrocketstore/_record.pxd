"""One record of the commit log, bytes on one side and a struct on the other."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from pyrocketstore._rocketstore cimport rs_outgoing, rs_properties, rs_record, rs_status

# Structure only: RS_OK, RS_BLANK, RS_END, RS_TORN, RS_BAD_MAGIC or RS_BAD_SIZE. At most `left`
# bytes are read. `out` is whole after RS_OK; after RS_BLANK only total_size says something.
cdef rs_status parse_record(const uint8_t *p, int64_t left, rs_record *out) noexcept nogil
# A size above largest_record() is RS_BAD_SIZE, however many bytes are left.
# The verdict of 4.9.3's recovery scan, and RS_BAD_OFFSET where phy_offset >= 0 differs from what
# is stored.
cdef rs_status check_record(
    const uint8_t *p, int64_t left, int64_t phy_offset, bint check_crc, rs_record *out
) noexcept nogil
# Bytes: no record is longer, whatever its size field says. Read it before memory is taken.
cdef int64_t largest_record() noexcept nogil
# True where the properties text ends in NUL bytes: a page that did not reach the disk.
cdef bint properties_torn(const uint8_t *p, int64_t size) noexcept nogil
cdef void scan_properties(const uint8_t *p, int64_t size, rs_properties *out) noexcept nogil
# The decimal digit of UTF-8 text as Java's Character.digit, or -1; `used` takes the bytes it is
# long. `size` > 0.
cdef int32_t java_digit(const uint8_t *p, int64_t size, int64_t *used) noexcept nogil
# Java's Integer.parseInt over UTF-8: True and the number, or False.
cdef bint parse_java_int(const uint8_t *p, int64_t size, int32_t *out) noexcept nogil

cdef int64_t encoded_size(const rs_outgoing *m) noexcept nogil
# Writes encoded_size(m) bytes; queueOffset, physicalOffset and storeTimestamp are zero.
cdef void encode_record(const rs_outgoing *m, uint8_t *out) noexcept nogil
cdef void patch_record(
    uint8_t *record, int64_t queue_offset, int64_t phy_offset, int64_t store_timestamp
) noexcept nogil
cdef uint32_t body_crc32(const uint8_t *p, size_t size) noexcept nogil
cdef int64_t tags_code_of(const uint8_t *tags, int32_t size) noexcept nogil
