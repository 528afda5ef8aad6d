"""Decode a record to a message, and encode a message to a record."""
import re
import zlib

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    int32_t,
    int64_t,
    uint8_t,
    uint32_t,
)
from libc.string cimport memcpy

from pyrocketstore.arguments._numbers_and_bodies cimport bytes_of, hold_body, int_in
from pyrocketstore._rocketstore cimport *

from pyrocketstore.record._record import (
    check_message,
    crc32,
    crc32_kernel,
    crc32_kernels,
    find_properties,
    java_int,
    select_crc32_kernel,
)
from pyrocketstore.record._text import (
    java_hash,
    java_host,
    properties_to_string,
    put_properties,
    string_to_properties,
    tags_code,
)
from pyrocketstore.display import beginning, shown
from pyrocketstore.errors import StoreCorruptionError, StoreFormatError, StoreTypeError
from pyrocketstore.arguments.scalars import entries_of, exact_flag, exact_int32, exact_text
from pyrocketstore.record.message import PROPERTIES_TOO_LONG as _TOO_LONG
from pyrocketstore.record.message import (
    Message,
    MessageRefused,
    batch_too_large,
    property_pairs,
    record_too_large,
    topic_too_long,
)

#: bytes; a body that inflates to more is refused.
MAX_INFLATED_SIZE = 64 << 20


# ---- the message a reader gets ---------------------------------------------------------------

@cython.final
@cython.no_gc  # it holds bytes, text and a dict of text: no cycles, and lists of millions of it
@cython.freelist(256)
cdef class MessageExt:
    """A message of the commit log. It owns a copy of its record; every attribute is made when it
    is asked for, but for the stored body, and equal messages have equal records.

    Source: RocketMQ 4.9.3 MessageExt.
    Differs: `body` is inflated where sys_flag says that it is compressed; `stored_body` is as kept.
    """

    def __cinit__(self):
        # So that no pointer is wrong before message_from_record.
        self._head_and_tail = b""
        self._stored = b""

    def __init__(self):
        raise StoreTypeError("a MessageExt is made by decode_record()")

    cdef const uint8_t *_head(self) noexcept:
        return <const uint8_t *>PyBytes_AS_STRING(self._head_and_tail)

    cdef const uint8_t *_tail(self, int32_t position) noexcept:
        """Of a position in the record that lies behind the body."""
        return self._head() + (position - self.fields.body_size)

    cdef const uint8_t *_named(self, rs_span span) noexcept:
        return self._tail(self.fields.properties_position) + span.position

    cdef rs_properties *_scan(self) noexcept:
        if not self._scanned:
            scan_properties(
                self._tail(self.fields.properties_position),
                self.fields.properties_size,
                &self._spans,
            )
            self._scanned = True
        return &self._spans

    @property
    def record(self) -> bytes:
        """bytes[size]: the whole record, as stored in the log."""
        cdef int32_t at = self.fields.body_position
        return self._head_and_tail[:at] + self._stored + self._head_and_tail[at:]

    @property
    def topic(self) -> str:
        """str."""
        return known_text(self._tail(self.fields.topic_position), self.fields.topic_size)

    @property
    def queue_id(self) -> int:
        """int32."""
        return self.fields.queue_id

    @property
    def queue_offset(self) -> int:
        """int64: its number in the queue."""
        return self.fields.queue_offset

    @property
    def phy_offset(self) -> int:
        """int64, bytes: the physical offset that the record stores."""
        return self.fields.phy_offset

    @property
    def size(self) -> int:
        """int32, bytes of the whole record."""
        return self.fields.total_size

    @property
    def flag(self) -> int:
        """int32: the sender's own."""
        return self.fields.flag

    @property
    def sys_flag(self) -> int:
        """int32: 0x1 compressed, 0x2 multi-tags, 0xC transaction type, 0x10/0x20 IPv6 hosts."""
        return self.fields.sys_flag

    @property
    def body_crc(self) -> int:
        """int32: low 31 bits of the CRC-32 of the stored body."""
        return self.fields.body_crc

    @property
    def is_crc_valid(self) -> bool:
        """bool: whether the stored body has the CRC that its record says. Computed at each call.

        A message that was read may be damaged: `get`, `query` and `read` compare no CRC unless
        asked to, as 4.9.3, whose clients do it.

        Source: RocketMQ 4.9.3 MessageDecoder#decode. True where there is no body, as there.
        """
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(self._stored)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self._stored)
        return size == 0 or body_crc32(p, size) == <uint32_t>self.fields.body_crc

    @property
    def reconsume_times(self) -> int:
        """int32."""
        return self.fields.reconsume_times

    @property
    def prepared_transaction_offset(self) -> int:
        """int64, bytes: the half message of a committed one, else 0."""
        return self.fields.prepared_transaction_offset

    @property
    def born_timestamp(self) -> int:
        """int64, Unix ms, the sender's clock."""
        return self.fields.born_timestamp

    @property
    def store_timestamp(self) -> int:
        """int64, Unix ms, the store's clock."""
        return self.fields.store_timestamp

    @property
    def born_host(self) -> str:
        """str: "10.0.0.1:10911" or "[2001:db8::1]:10911"."""
        return host_text(
            self._head() + RS_MESSAGE_POSITION_BORN_HOST, self.fields.born_host_size
        )

    @property
    def store_host(self) -> str:
        """str, as born_host."""
        return host_text(
            self._head() + self.fields.store_host_position, self.fields.store_host_size
        )

    @property
    def born_host_bytes(self) -> bytes:
        """bytes[8 or 20]: address, then port as a big-endian int32."""
        return self._head()[
            RS_MESSAGE_POSITION_BORN_HOST:RS_MESSAGE_POSITION_BORN_HOST + self.fields.born_host_size
        ]

    @property
    def store_host_bytes(self) -> bytes:
        """bytes[8 or 20], as born_host_bytes."""
        cdef int32_t at = self.fields.store_host_position
        return self._head()[at:at + self.fields.store_host_size]

    @property
    def stored_body(self) -> bytes:
        """bytes: the body, as stored in the log."""
        return self._stored

    @property
    def body(self) -> bytes:
        """bytes: the body, inflated where it was compressed.

        Raises
        ------
        StoreCorruptionError: it does not inflate, or to more than MAX_INFLATED_SIZE bytes.
        """
        if not self.fields.sys_flag & RS_COMPRESSED_FLAG or self.fields.body_size == 0:
            return self._stored
        if self._body is None:
            self._body = _inflate(self._stored, self.fields.phy_offset)
        return self._body

    @property
    def properties(self) -> "dict[str, str]":
        """dict[str, str]: every property; {} if there are none."""
        if self._properties is None:
            self._properties = self._properties_dict()
        return self._properties

    @property
    def properties_string(self) -> str:
        """str: the properties as text."""
        return java_text(
            self._tail(self.fields.properties_position), self.fields.properties_size
        )

    @property
    def tags(self) -> "str | None":
        """str or None: the property TAGS."""
        cdef rs_span span = self._scan().tags
        return None if span.size < 0 else known_text(self._named(span), span.size)

    @property
    def keys(self) -> "str | None":
        """str or None: the property KEYS, keys separated by blanks."""
        cdef rs_span span
        if self._keys is None:
            span = self._scan().keys
            if span.size >= 0:
                self._keys = java_text(self._named(span), span.size)
        return self._keys

    @property
    def uniq_key(self) -> "str | None":
        """str or None: the property UNIQ_KEY, the sender's message id."""
        cdef rs_span span = self._scan().uniq_key
        return None if span.size < 0 else java_text(self._named(span), span.size)

    @property
    def tags_code(self) -> int:
        """int64: Java's hash of `tags`, 0 without. A queue unit may hold another one (a delivery
        time, an ext address)."""
        cdef rs_span span = self._scan().tags
        if span.size < 0:
            return 0
        return tags_code_of(self._named(span), span.size)

    @property
    def msg_id(self) -> str:
        """str: the offset message id, 32 or 56 upper-case hex digits.

        Source: RocketMQ 4.9.3 MessageDecoder#createMessageId.
        """
        return _message_id(host_bytes(self.store_host_bytes), self.fields.phy_offset)

    cdef dict _properties_dict(self):
        cdef dict properties = {}
        cdef const uint8_t *keys = self._named(self._scan().keys)
        cdef property_text text
        text.at = self._tail(self.fields.properties_position)
        text.stop = text.at + self.fields.properties_size
        while next_property(&text):
            if is_pair(&text):
                properties[known_text(text.name, text.value - 1 - text.name)] = (
                    self._keys if text.value == keys and self._keys is not None
                    else known_text(text.value, text.end - text.value)
                )
        return properties

    def __reduce__(self):
        return decode_record, (self.record,)

    def __eq__(self, other):
        if not isinstance(other, MessageExt):
            return NotImplemented
        return (
            self._stored == (<MessageExt>other)._stored
            and self._head_and_tail == (<MessageExt>other)._head_and_tail
        )

    def __hash__(self):
        return hash(self.record)

    def __repr__(self):
        # Not inflated: that may fail, and takes time.
        body = "stored_body" if self.fields.sys_flag & RS_COMPRESSED_FLAG else "body"
        return (
            f"<MessageExt {self.topic!r} queue_id={self.queue_id} queue_offset={self.queue_offset}"
            f" phy_offset={self.phy_offset} size={self.size} tags={beginning(self.tags)}"
            f" keys={beginning(self.keys)} {body}={beginning(self._stored)}>"
        )


cdef bytes _inflate(bytes stored, int64_t phy_offset):
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(stored, MAX_INFLATED_SIZE + 1)
    except zlib.error as error:
        raise StoreCorruptionError(
            "commit log", phy_offset, f"the body does not inflate: {error}"
        ) from None
    if len(body) > MAX_INFLATED_SIZE:
        raise StoreCorruptionError(
            "commit log", phy_offset, f"the body inflates to more than {MAX_INFLATED_SIZE} bytes"
        )
    if not inflater.eof:
        raise StoreCorruptionError("commit log", phy_offset, "the compressed body is cut short")
    return body


cdef MessageExt message_from_record(const uint8_t *p, const rs_record *r):
    cdef MessageExt message = MessageExt.__new__(MessageExt)
    cdef bytes rest = PyBytes_FromStringAndSize(NULL, r.total_size - r.body_size)
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(rest)
    cdef int32_t behind = r.body_position + r.body_size
    memcpy(out, p, r.body_position)
    memcpy(out + r.body_position, p + behind, r.total_size - behind)
    message._head_and_tail = rest
    message._stored = PyBytes_FromStringAndSize(<const char *>p + r.body_position, r.body_size)
    message.fields = r[0]
    return message


# ---- Python's doors --------------------------------------------------------------------------

cdef str _status_name(int status):
    return rs_status_name(status).decode("ascii")


def decode_record(
    data, phy_offset=-1, *, check_crc=False, path="commit log"
) -> MessageExt:
    """Return the message of the record at the start of `data`.

    Parameters
    ----------
    data : bytes-like; bytes after the record are ignored
    phy_offset : int, bytes: the record's position in the commit log; negative: not compared
    check_crc : bool, compare the stored body with its CRC
    path : str, the file, for the error

    Raises
    ------
    StoreCorruptionError: `data` does not begin with a whole, valid record.
    StoreTypeError, StoreFormatError: an argument is of the wrong type or out of its range.

    Source: RocketMQ 4.9.3 MessageDecoder#decode.
    """
    cdef int64_t position = _int64("phy_offset", phy_offset)
    # The common values without a call: it would cost as much as half of the decoding.
    cdef bint checks_crc = check_crc is True or (
        check_crc is not False and exact_flag("check_crc", check_crc))
    cdef str name = path if type(path) is str else exact_text("path", path)
    cdef Py_buffer view
    if type(data) is bytes:
        return _decoded(<const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), position,
                        checks_crc, name)
    hold_body(data, &view, "data", -1)
    try:
        return _decoded(<const uint8_t *>view.buf, view.len, position, checks_crc, name)
    finally:
        PyBuffer_Release(&view)


cdef MessageExt _decoded(const uint8_t *p, int64_t size, int64_t phy_offset, bint check_crc,
                         str path):
    cdef rs_record record
    cdef rs_status status = check_record(p, size, phy_offset, check_crc, &record)
    if status != RS_OK:
        raise StoreCorruptionError(path, phy_offset, _status_name(status))
    return message_from_record(p, &record)


cdef str _message_id(bytes host, int64_t phy_offset):
    return (host + phy_offset.to_bytes(8, "big", signed=True)).hex().upper()


def create_message_id(host, int64_t phy_offset) -> str:
    """The offset message id: address, port and physical offset as upper-case hex.

    Raises
    ------
    StoreFormatError: `host` is not "1.2.3.4:10911", "[2001:db8::1]:10911" or (address, port).

    Source: RocketMQ 4.9.3 MessageDecoder#createMessageId.
    """
    return _message_id(host_bytes(host), phy_offset)


def decode_message_id(str message_id not None) -> "tuple[str, int]":
    """(host, physical offset) of an offset message id.

    Raises
    ------
    StoreFormatError: it is not 32 or 56 hex digits.

    Source: RocketMQ 4.9.3 MessageDecoder#decodeMessageId.
    """
    cdef bytes raw
    cdef const uint8_t *p
    cdef Py_ssize_t host_size
    if len(message_id) not in (32, 56) or not re.fullmatch("[0-9a-fA-F]+", message_id):
        raise StoreFormatError(f"not an offset message id: {shown(message_id)}")
    raw = bytes.fromhex(message_id)
    p = <const uint8_t *>PyBytes_AS_STRING(raw)
    host_size = PyBytes_GET_SIZE(raw) - 8
    return host_text(p, <int32_t>host_size), rs_load_be64(p + host_size)


# ---- from a message of the caller to bytes ---------------------------------------------------

cdef bytes _body_bytes(object body):
    if body is None:
        return b""
    return bytes_of(body, "a body", -1)


cdef Py_ssize_t _utf16_size(str text):
    cdef Py_ssize_t size = len(text)
    if not text.isascii():
        size += sum([c > "\uffff" for c in text])
    return size


cdef bytes _topic_bytes(str topic):
    cdef Py_ssize_t size = 0
    cdef const char *p = utf8_of(topic, &size)
    # 4.9.3 counts characters and so accepts topics that its own scan cannot read again.
    if size > RS_MAX_TOPIC_SIZE:
        raise topic_too_long(size)
    return p[:size]


cdef inline int32_t _int32(str what, object value) except? -1:
    return <int32_t>int_in(value, INT32_MIN, INT32_MAX, what)


cdef inline int64_t _int64(str what, object value) except? -1:
    return int_in(value, INT64_MIN, INT64_MAX, what)


cdef int _fill_common(object inner, rs_outgoing *out) except -1:
    """The fields that a single message and every message of a batch take from `inner`."""
    out.queue_id = _int32("queue_id", inner.queue_id)
    out.sys_flag = _int32("sys_flag", inner.sys_flag)
    out.flag = _int32("flag", inner.flag)
    out.reconsume_times = _int32("reconsume_times", inner.reconsume_times)
    out.born_timestamp = _int64("born_timestamp", inner.born_timestamp)
    out.prepared_transaction_offset = _int64(
        "prepared_transaction_offset", inner.prepared_transaction_offset)
    out.born_host_size = fill_outgoing_host(inner.born_host, out.born_host, "born_host")
    out.store_host_size = fill_outgoing_host(inner.store_host, out.store_host, "store_host")
    return 0


cdef int fill_outgoing(
    object inner, rs_outgoing *out, list keep, int64_t max_message_size
) except -1:
    cdef bytes body = _body_bytes(inner.body)
    cdef bytes topic
    cdef object text = inner.properties_string
    cdef Py_ssize_t size = 0
    if text is not None:
        text = exact_text("properties_string", text)
        if _utf16_size(text) > RS_MAX_PROPERTIES_SIZE:
            raise MessageRefused("MESSAGE_ILLEGAL", _TOO_LONG)
    out.properties = NULL
    if text is not None:
        out.properties = <const uint8_t *>utf8_of(text, &size)
        if 0 < size < RS_MAX_PROPERTIES_SIZE and out.properties[size - 1] == 0:
            text += "\x02"  # as `end_of_text` adds it
            out.properties = <const uint8_t *>utf8_of(text, &size)
        if size > RS_MAX_PROPERTIES_SIZE:
            raise MessageRefused("PROPERTIES_SIZE_EXCEEDED", _TOO_LONG)
    out.properties_size = <int32_t>size
    topic = _topic_bytes(exact_text("topic", inner.topic))
    _fill_common(inner, out)
    out.body = <const uint8_t *>PyBytes_AS_STRING(body)
    out.body_size = PyBytes_GET_SIZE(body)
    out.topic = <const uint8_t *>PyBytes_AS_STRING(topic)
    out.topic_size = <int32_t>PyBytes_GET_SIZE(topic)
    keep.extend((body, topic, text))
    if encoded_size(out) > max_message_size:
        raise record_too_large(encoded_size(out), max_message_size)
    return 0


def encode_message(inner, *, int64_t max_message_size=4194304) -> bytes:
    """The record of one message, with queueOffset, physicalOffset and storeTimestamp zero.

    Parameters
    ----------
    inner : MessageExtBrokerInner; what is stored of its properties is `properties_string`
    max_message_size : int, bytes, of the whole record

    Raises
    ------
    MessageRefused: longer than the format or the setting allows; `status` is 4.9.3's.
    StoreFormatError: a host, number or text that has no form on disk.

    Source: RocketMQ 4.9.3 CommitLog.MessageExtEncoder#encode.
    Differs: the IPv6 bits of sys_flag follow the hosts; the topic is limited in bytes.
    """
    cdef rs_outgoing out
    cdef list keep = []
    cdef bytes record
    fill_outgoing(inner, &out, keep, max_message_size)
    record = PyBytes_FromStringAndSize(NULL, encoded_size(&out))
    encode_record(&out, <uint8_t *>PyBytes_AS_STRING(record))
    return record


def encode_messages(messages) -> bytes:
    """Encode messages as the body of a MessageExtBatch.

    Parameters
    ----------
    messages : iterable of Message; flag, body and properties are used

    Returns
    -------
    bytes

    Raises
    ------
    MessageRefused: the properties of a message have more than 32767 bytes.
    StoreTypeError: `messages` is not an iterable of Message, or a field is of the wrong type.
    StoreFormatError: a field has a value that is not allowed.

    Source: RocketMQ 4.9.3 MessageDecoder#encodeMessages.
    """
    cdef list parts = []
    cdef bytes body, properties
    for message in entries_of("messages", messages, "an iterable of Message"):
        if not isinstance(message, Message):
            kind = type(message).__name__
            raise StoreTypeError(f"each of the messages must be a Message, not {kind}")
        body = _body_bytes(message.body)
        pairs = message.properties
        properties = properties_text([] if pairs is None else property_pairs("properties", pairs))
        if len(properties) > RS_MAX_PROPERTIES_SIZE:
            raise MessageRefused("MESSAGE_ILLEGAL", _TOO_LONG)
        parts.append((22 + len(body) + len(properties)).to_bytes(4, "big"))
        parts.append(bytes(8))
        flag = exact_int32("flag", message.flag)
        parts.append(flag.to_bytes(4, "big", signed=True))
        parts.append(len(body).to_bytes(4, "big"))
        parts.append(body)
        parts.append(len(properties).to_bytes(2, "big"))
        parts.append(properties)
    return b"".join(parts)


cdef struct BatchItem:
    const uint8_t *body
    const uint8_t *properties
    int32_t flag
    int32_t body_size
    int32_t properties_size


cdef bint _take_item(rs_cursor *c, BatchItem *item) noexcept nogil:
    """The next message of a client's batch body; False where its lengths cannot be."""
    rs_cursor_take(c, 12)  # size, magic and CRC, which 4.9.3 does not look at
    item.flag = rs_cursor_be32(c)
    item.body_size = rs_cursor_be32(c)
    item.body = rs_cursor_take(c, item.body_size)
    item.properties_size = rs_cursor_be16(c)
    item.properties = rs_cursor_take(c, item.properties_size)
    return c.ok != 0


cdef int64_t _join_properties(
    const BatchItem *item, const uint8_t *shared, int64_t shared_size, uint8_t *out
) noexcept nogil:
    """The properties text of one message of a batch; -1 where it is too long. `out` has
    RS_MAX_PROPERTIES_SIZE bytes."""
    cdef int64_t size = item.properties_size
    cdef bint separate = size > 0 and shared_size > 0 and item.properties[size - 1] != 2
    if size + separate + shared_size > RS_MAX_PROPERTIES_SIZE:
        return -1
    memcpy(out, item.properties, size)
    if separate:
        out[size] = 2
        size += 1
    memcpy(out + size, shared, shared_size)
    return end_of_text(out, size + shared_size, RS_MAX_PROPERTIES_SIZE)


def encode_batch(batch, *, int64_t max_message_size=4194304,
                 bytes bare=b"") -> "tuple[bytes, int]":
    """Return the records of a batch, one after the other, with queueOffset, physicalOffset and
    storeTimestamp zero.

    Parameters
    ----------
    batch : MessageExtBatch: its body is a result of encode_messages; its `properties` are appended
        to those of every message
    max_message_size : int, bytes, for one record and for all of them together
    bare : bytes, the text of properties of a message that has none

    Returns
    -------
    (records, count)

    Raises
    ------
    MessageRefused: MESSAGE_ILLEGAL where a length is impossible or above its limit.
    StoreFormatError: a host, number or text that has no form on disk.

    Source: RocketMQ 4.9.3 CommitLog.MessageExtEncoder#encode(MessageExtBatch).
    Differs: 4.9.3 throws for what is too long, and wraps properties beyond 32767 bytes around.
    """
    cdef rs_outgoing out
    cdef BatchItem item
    cdef bytes body = _body_bytes(batch.body)
    cdef bytes topic = _topic_bytes(exact_text("topic", batch.topic))
    cdef bytes shared = properties_text(property_pairs("properties", batch.properties or {}))
    cdef uint8_t[RS_MAX_PROPERTIES_SIZE] joined
    cdef rs_cursor c = rs_cursor_over(
        <const uint8_t *>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body)
    )
    cdef bytearray records = bytearray()
    cdef Py_ssize_t at, count = 0
    cdef int64_t size
    if len(body) > max_message_size:
        raise batch_too_large(len(body), max_message_size)
    _fill_common(batch, &out)
    out.prepared_transaction_offset = 0
    out.topic = <const uint8_t *>PyBytes_AS_STRING(topic)
    out.topic_size = <int32_t>PyBytes_GET_SIZE(topic)
    while c.position < c.size:
        if not _take_item(&c, &item):
            raise MessageRefused("MESSAGE_ILLEGAL", f"message {count} of the batch is cut short")
        size = _join_properties(
            &item, <const uint8_t *>PyBytes_AS_STRING(shared), PyBytes_GET_SIZE(shared), joined
        )
        if size < 0:
            raise MessageRefused("MESSAGE_ILLEGAL", f"message {count}: {_TOO_LONG}")
        out.properties = joined
        if size == 0:
            out.properties = <const uint8_t *>PyBytes_AS_STRING(bare)
            size = PyBytes_GET_SIZE(bare)
        out.flag = item.flag
        out.body = item.body
        out.body_size = item.body_size
        out.properties_size = <int32_t>size
        at = len(records)
        size = encoded_size(&out)
        if at + size > max_message_size:
            raise batch_too_large(at + size, max_message_size)
        records.extend(bytes(size))
        encode_record(&out, <uint8_t *>records + at)
        count += 1
    return bytes(records), count
