"""Decode a record to a message, and encode a message to a record.

Re-exports functions of `_record` and `_text`.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore.record._record cimport (
    body_crc32,
    check_record,
    encode_record,
    encoded_size,
    is_pair,
    next_property,
    parse_java_int,
    parse_record,
    patch_record,
    properties_torn,
    property_text,
    scan_properties,
    tags_code_of,
)
from pyrocketstore._rocketstore cimport rs_outgoing, rs_properties, rs_record, rs_span
from pyrocketstore.record._text cimport (
    build_properties,
    end_of_text,
    fill_outgoing_host,
    host_bytes,
    host_text,
    is_mapped_v4,
    java_text,
    known_text,
    properties_text,
    utf8_of,
)

# Fills `out` from a MessageExtBrokerInner; `keep` owns the objects that `out` points into.
# Checks the limits of the record: MessageRefused has the put status.
cdef int fill_outgoing(
    object inner, rs_outgoing *out, list keep, int64_t max_message_size
) except -1


cdef class MessageExt:
    cdef rs_record fields
    cdef bytes _head_and_tail  # the record without its body
    cdef bytes _stored         # the stored body, compressed if the record's is
    cdef rs_properties _spans
    cdef bint _scanned
    cdef object _body
    cdef object _keys
    cdef dict _properties

    cdef const uint8_t *_head(self) noexcept
    cdef const uint8_t *_tail(self, int32_t position) noexcept
    cdef const uint8_t *_named(self, rs_span span) noexcept
    cdef rs_properties *_scan(self) noexcept
    cdef dict _properties_dict(self)


# A message that owns a copy of the record at `p`; parse_record has filled `r` from it.
cdef MessageExt message_from_record(const uint8_t *p, const rs_record *r)
