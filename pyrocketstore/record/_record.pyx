"""One record of the commit log, bytes on one side and a struct on the other.

The layout is drawn in docs/format.md. Everything here works on pointers without the GIL and never
raises; what is read from disk is held against the bytes that are left before it is used.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, int8_t, uint16_t, uint32_t, uint8_t
from libc.string cimport memchr, memcmp, memcpy, memset

from pyrocketstore._rocketstore cimport *, RS_OK, rs_properties, rs_record, rs_span, rs_utf8_next

cdef enum:
    NOGIL_MIN_BYTES = 5120  # CPython lets the GIL go above this size in zlib.crc32

#: Bytes from a record's beginning up to the end of its store timestamp, with an IPv6 born host.
HEADER_SIZE = HEADER_BYTES
MESSAGE_MAGIC_CODE = RS_MESSAGE_MAGIC_CODE
MESSAGE_MAGIC_CODE_V2 = RS_MESSAGE_MAGIC_CODE_V2
BLANK_MAGIC_CODE = RS_BLANK_MAGIC_CODE

cdef dict STATUS_NAMES = {
    RS_OK: "ok",
    RS_BLANK: "blank",
    RS_END: "end",
    RS_TORN: "torn",
    RS_BAD_MAGIC: "bad_magic",
    RS_BAD_CRC: "bad_crc",
    RS_BAD_SIZE: "bad_size",
    RS_BAD_OFFSET: "bad_offset",
    RS_BAD_PROPERTIES: "bad_properties",
}


# ---- one record: parse and check -------------------------------------------------------------

#: Bytes of a whole record (body, topic, properties and fixed fields) that any reader accepts. A
#: size field that names more is damaged: no reader takes memory for it. `allow_records` raises it.
LARGEST_RECORD = 64 << 20
cdef enum:
    #: bytes that 4.9.3 allows beside a body of maxMessageSize: topic, properties, fixed fields
    RECORD_ALLOWANCE = 65536

# One bound for the process: it must hold wherever a size field is believed.
cdef int64_t record_bound = LARGEST_RECORD


cdef int64_t largest_record() noexcept nogil:
    return rs_load_acquire(&record_bound)


def allow_records(int64_t max_message_size):
    """Accept records of stores with this `max_message_size` (bytes) from now on, in this process.

    The bound is raised where it is lower, never lowered. It is LARGEST_RECORD at first.
    """
    cdef int64_t wanted = min(max_message_size, <int64_t>0x7FFFFFFF) + RECORD_ALLOWANCE
    if wanted > record_bound:
        rs_store_release(&record_bound, wanted)


def record_size_max() -> int:
    """Bytes: a record that claims to be longer is damaged."""
    return largest_record()


cdef rs_status parse_record(const uint8_t *p, int64_t left, rs_record *out) noexcept nogil:
    cdef int32_t magic, size
    cdef int64_t position
    out.total_size = 0
    if left < 8:
        return RS_TORN
    size = rs_load_be32(p)
    magic = rs_load_be32(p + RS_MESSAGE_POSITION_MAGIC)
    out.total_size = size
    if magic != RS_MESSAGE_MAGIC_CODE and magic != RS_MESSAGE_MAGIC_CODE_V2:
        if magic == RS_BLANK_MAGIC_CODE:
            return RS_BLANK
        return RS_END if magic == 0 and size == 0 else RS_BAD_MAGIC
    if size < RS_MESSAGE_MIN_SIZE or size > largest_record():
        return RS_BAD_SIZE
    if size > left:
        return RS_TORN
    # From here on `size` bytes may be read, and every length is held against it.
    out.queue_id = rs_load_be32(p + 12)
    out.flag = rs_load_be32(p + 16)
    out.queue_offset = rs_load_be64(p + RS_MESSAGE_POSITION_QUEUE_OFFSET)
    out.phy_offset = rs_load_be64(p + RS_MESSAGE_POSITION_PHYSICAL_OFFSET)
    out.sys_flag = rs_load_be32(p + RS_MESSAGE_POSITION_SYS_FLAG)
    out.body_crc = rs_load_be32(p + RS_MESSAGE_POSITION_BODY_CRC)
    out.born_timestamp = rs_load_be64(p + 40)
    out.born_host_size = RS_HOST_V6_SIZE if out.sys_flag & RS_BORNHOST_V6_FLAG else RS_HOST_V4_SIZE
    out.store_host_size = (
        RS_HOST_V6_SIZE if out.sys_flag & RS_STOREHOSTADDRESS_V6_FLAG else RS_HOST_V4_SIZE
    )
    if size < RS_MESSAGE_FIXED_SIZE + out.born_host_size + out.store_host_size:
        return RS_BAD_SIZE
    position = RS_MESSAGE_POSITION_BORN_HOST + out.born_host_size
    out.store_timestamp = rs_load_be64(p + position)
    out.store_host_position = <int32_t>(position + 8)
    position += 8 + out.store_host_size
    out.reconsume_times = rs_load_be32(p + position)
    out.prepared_transaction_offset = rs_load_be64(p + position + 4)
    return _parse_lengths(p, position + 12, size, magic == RS_MESSAGE_MAGIC_CODE_V2, out)


cdef inline rs_status _parse_lengths(
    const uint8_t *p, int64_t position, int64_t size, bint is_v2, rs_record *out
) noexcept nogil:
    """Body, topic and properties, each with its length before it; `position` is the body's. The
    caller saw that 7 bytes for the three lengths are there. `is_v2`: the topic's has 2 bytes."""
    cdef int32_t length = rs_load_be32(p + position)
    out.body_size = length if length > 0 else 0  # a negative length counts as none
    out.body_position = <int32_t>(position + 4)
    position += 4 + <int64_t>out.body_size
    if position > size - 3:
        return RS_BAD_SIZE
    out.topic_size = rs_load_be16(p + position) if is_v2 else <int8_t>p[position]
    if out.topic_size < 0:
        return RS_BAD_SIZE
    out.topic_position = <int32_t>(position + 1 + is_v2)
    position = out.topic_position + out.topic_size
    if position > size - 2:
        return RS_BAD_SIZE
    length = rs_load_be16(p + position)
    out.properties_size = length if length > 0 else 0
    out.properties_position = <int32_t>(position + 2)
    if position + 2 + out.properties_size != size:
        return RS_BAD_SIZE
    return RS_OK


cdef rs_status check_record(
    const uint8_t *p, int64_t left, int64_t phy_offset, bint check_crc, rs_record *out
) noexcept nogil:
    cdef rs_status status = parse_record(p, left, out)
    if status != RS_OK:
        return status
    if phy_offset >= 0 and out.phy_offset != phy_offset:
        return RS_BAD_OFFSET
    # 4.9.3 checks no CRC without a body.
    if check_crc and out.body_size > 0 and (
        body_crc32(p + out.body_position, out.body_size) != <uint32_t>out.body_crc
    ):
        return RS_BAD_CRC
    return RS_OK


cdef bint properties_torn(const uint8_t *p, int64_t size) noexcept nogil:
    # The longest text has no room for the separator of `end_of_text`: its end proves nothing.
    return 0 < size != RS_MAX_PROPERTIES_SIZE and p[size - 1] == 0


cdef void scan_properties(const uint8_t *p, int64_t size, rs_properties *out) noexcept nogil:
    cdef int64_t block, stop
    cdef int64_t at = 0
    cdef uint64_t ends
    memset(out, 0xFF, sizeof(rs_properties))  # every size -1: absent
    for block in range(0, size, 64):
        ends = rs_places(p + block, size - block, 2)
        while ends:
            stop = block + rs_lowest_bit(ends)
            _take_property(p, at, stop - at, out)
            at = stop + 1
            ends &= ends - 1
    _take_property(p, at, size - at, out)


cdef inline void _take_property(
    const uint8_t *p, int64_t at, int64_t size, rs_properties *out
) noexcept nogil:
    """One entry, if it is a property that the store looks at: its name, U+0001 and a value.

    None of the names has a U+0001, so the first one in the entry ends the name.
    """
    cdef const uint8_t *name = p + at
    cdef rs_span *span = NULL
    cdef int32_t name_size = 4
    if size < 6:
        return
    if memcmp(name, b"TAGS", 4) == 0:
        span = &out.tags
    elif memcmp(name, b"KEYS", 4) == 0:
        span = &out.keys
    elif memcmp(name, b"UNIQ", 4) == 0:
        if size >= 10 and memcmp(name, b"UNIQ_KEY", 8) == 0:
            span, name_size = &out.uniq_key, 8
    elif memcmp(name, b"DELA", 4) == 0:
        if size >= 7 and name[4] == c"Y":
            span, name_size = &out.delay, 5
    elif memcmp(name, b"INNE", 4) == 0:
        if size >= 22 and memcmp(name, b"INNER_MULTI_DISPATCH", 20) == 0:
            span, name_size = &out.multi_dispatch, 20
        elif size >= 26 and memcmp(name, b"INNER_MULTI_QUEUE_OFFSET", 24) == 0:
            span, name_size = &out.multi_queue_offset, 24
    if span != NULL and name[name_size] == 1:
        span.position = <int32_t>(at + name_size + 1)
        span.size = <int32_t>(size - name_size - 1)


# The zeros of the decimal digits that Java's Character.digit knows below U+10000 besides ASCII's.
cdef uint16_t[36] DIGIT_ZEROS = [
    0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6, 0x0C66, 0x0CE6, 0x0D66,
    0x0DE6, 0x0E50, 0x0ED0, 0x0F20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90,
    0x1B50, 0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10,
]


cdef int32_t java_digit(const uint8_t *p, int64_t size, int64_t *used) noexcept nogil:
    """The decimal digit at `p`, or -1; `used` takes the bytes it is long."""
    cdef int32_t unit, i
    used[0] = 1
    if p[0] < 0x80:
        return p[0] - 48 if 48 <= p[0] <= 57 else -1
    if p[0] & 0xE0 == 0xC0 and size >= 2:
        used[0] = 2
        unit = (p[0] & 0x1F) << 6 | (p[1] & 0x3F)
    elif p[0] & 0xF0 == 0xE0 and size >= 3:
        used[0] = 3
        unit = (p[0] & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F)
        if p[2] & 0xC0 != 0x80 or unit < 0x800:
            return -1
    else:
        return -1
    if p[1] & 0xC0 != 0x80:
        return -1
    for i in range(36):
        if DIGIT_ZEROS[i] <= unit < DIGIT_ZEROS[i] + 10:
            return unit - DIGIT_ZEROS[i]
    return -1


cdef bint parse_java_int(const uint8_t *p, int64_t size, int32_t *out) noexcept nogil:
    cdef int64_t value = 0
    cdef int64_t at = 0
    cdef int64_t used = 0
    cdef int32_t digit
    cdef bint negative = False
    if size > 0 and (p[0] == 43 or p[0] == 45):
        negative = p[0] == 45
        at = 1
    if at >= size:
        return False
    while at < size:
        digit = java_digit(p + at, size - at, &used)
        if digit < 0:
            return False
        at += used
        value = value * 10 + digit
        if value > 0x80000000LL:
            return False
    if negative:
        value = -value
    elif value > 0x7FFFFFFFLL:
        return False
    out[0] = <int32_t>value
    return True


# ---- one record: encode ----------------------------------------------------------------------

cdef int64_t encoded_size(const rs_outgoing *m) noexcept nogil:
    return (
        <int64_t>RS_MESSAGE_FIXED_SIZE + m.born_host_size + m.store_host_size
        + m.body_size + m.topic_size + m.properties_size
    )


cdef void encode_record(const rs_outgoing *m, uint8_t *out) noexcept nogil:
    cdef int32_t sys_flag = m.sys_flag & ~(RS_BORNHOST_V6_FLAG | RS_STOREHOSTADDRESS_V6_FLAG)
    cdef uint8_t *at = out + RS_MESSAGE_POSITION_BORN_HOST
    if m.born_host_size == RS_HOST_V6_SIZE:
        sys_flag |= RS_BORNHOST_V6_FLAG
    if m.store_host_size == RS_HOST_V6_SIZE:
        sys_flag |= RS_STOREHOSTADDRESS_V6_FLAG
    rs_store_be32(out, <int32_t>encoded_size(m))
    rs_store_be32(out + 4, RS_MESSAGE_MAGIC_CODE)
    rs_store_be32(out + 12, m.queue_id)
    rs_store_be32(out + 16, m.flag)
    memset(out + RS_MESSAGE_POSITION_QUEUE_OFFSET, 0, 16)
    rs_store_be32(out + RS_MESSAGE_POSITION_SYS_FLAG, sys_flag)
    rs_store_be64(out + 40, m.born_timestamp)
    memcpy(at, m.born_host, m.born_host_size)
    at += m.born_host_size
    memset(at, 0, 8)
    memcpy(at + 8, m.store_host, m.store_host_size)
    at += 8 + m.store_host_size
    rs_store_be32(at, m.reconsume_times)
    rs_store_be64(at + 4, m.prepared_transaction_offset)
    rs_store_be32(at + 12, <int32_t>m.body_size)
    at += 16
    if m.body_size > 0:
        memcpy(at, m.body, m.body_size)
    # Of the copy: another thread may change the caller's buffer meanwhile, and a record whose sum
    # is wrong would end the log.
    rs_store_be32(out + 8, <int32_t>body_crc32(at, m.body_size))
    at += m.body_size
    at[0] = <uint8_t>m.topic_size
    memcpy(at + 1, m.topic, m.topic_size)
    at += 1 + m.topic_size
    rs_store_be16(at, <int16_t>m.properties_size)
    if m.properties_size > 0:
        memcpy(at + 2, m.properties, m.properties_size)


cdef void patch_record(
    uint8_t *record, int64_t queue_offset, int64_t phy_offset, int64_t store_timestamp
) noexcept nogil:
    # The low byte of sysFlag says how long the born host is.
    cdef bint v6 = record[RS_MESSAGE_POSITION_SYS_FLAG + 3] & RS_BORNHOST_V6_FLAG
    rs_store_be64(record + RS_MESSAGE_POSITION_QUEUE_OFFSET, queue_offset)
    rs_store_be64(record + RS_MESSAGE_POSITION_PHYSICAL_OFFSET, phy_offset)
    rs_store_be64(
        record + RS_MESSAGE_POSITION_BORN_HOST + (RS_HOST_V6_SIZE if v6 else RS_HOST_V4_SIZE),
        store_timestamp,
    )


cdef uint32_t body_crc32(const uint8_t *p, size_t size) noexcept nogil:
    if size == 0:
        return 0
    return rs_crc32(0, p, size) & 0x7FFFFFFF


cdef uint32_t crc32_of(uint32_t crc, const uint8_t *p, size_t size) noexcept nogil:
    return rs_crc32(crc, p, size)


cdef int64_t tags_code_of(const uint8_t *tags, int32_t size) noexcept nogil:
    return rs_java_hash(0, tags, size)


# ---- Python's doors --------------------------------------------------------------------------

def check_message(data, int64_t phy_offset=-1, *, bint check_crc=True) -> "tuple[str, int]":
    """The recovery scan's verdict on the record at the start of `data`.

    Parameters
    ----------
    data : bytes-like; all of it counts as what is left of the file
    phy_offset : int, expected physical offset, bytes; negative: not compared
    check_crc : bool

    Returns
    -------
    (verdict, size): "ok", "blank", "end", "torn", "bad_magic", "bad_crc", "bad_size" or
    "bad_offset"; and the record's own size field (0 where fewer than 8 bytes are there).

    Source: RocketMQ 4.9.3 CommitLog#checkMessageAndReturnSize.
    Differs: the stored physicalOffset is compared; a DELAY that is no number does not end the log.
    """
    cdef Py_buffer view
    cdef rs_record record
    cdef rs_status status
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    with nogil:
        status = check_record(<const uint8_t *>view.buf, view.len, phy_offset, check_crc, &record)
    PyBuffer_Release(&view)
    return STATUS_NAMES[status], record.total_size


cdef int64_t store_time_in(const uint8_t *p, int64_t size) noexcept nogil:
    cdef int64_t at = RS_MESSAGE_POSITION_BORN_HOST + RS_HOST_V4_SIZE
    if size >= RS_MESSAGE_POSITION_SYS_FLAG + 4 and (
        rs_load_be32(p + RS_MESSAGE_POSITION_SYS_FLAG) & RS_BORNHOST_V6_FLAG
    ):
        at = RS_MESSAGE_POSITION_BORN_HOST + RS_HOST_V6_SIZE
    return rs_load_be64(p + at) if size >= at + 8 else -1


@cython.final
@cython.auto_pickle(False)
cdef class RecordHeader:
    """The first fields of a record, read from bytes that may be damaged or too few.

    Bytes that are not there count as zeros; a store timestamp that is not there is -1.

    Parameters
    ----------
    data : bytes-like, at least HEADER_SIZE bytes for all fields
    """

    def __cinit__(self, data):
        cdef Py_buffer view
        cdef uint8_t[HEADER_BYTES] copied
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        self.size = min(view.len, <Py_ssize_t>HEADER_BYTES)
        memset(copied, 0, HEADER_BYTES)
        memcpy(copied, view.buf, self.size)
        PyBuffer_Release(&view)
        self.total_size = rs_load_be32(copied)
        self.magic_code = rs_load_be32(copied + RS_MESSAGE_POSITION_MAGIC)
        self.body_crc = rs_load_be32(copied + RS_MESSAGE_POSITION_BODY_CRC)
        self.queue_id = rs_load_be32(copied + RS_MESSAGE_POSITION_QUEUE_ID)
        self.queue_offset = rs_load_be64(copied + RS_MESSAGE_POSITION_QUEUE_OFFSET)
        self.phy_offset = rs_load_be64(copied + RS_MESSAGE_POSITION_PHYSICAL_OFFSET)
        self.sys_flag = rs_load_be32(copied + RS_MESSAGE_POSITION_SYS_FLAG)
        self.store_timestamp = store_time_in(copied, self.size)

    @property
    def is_whole(self) -> bool:
        """Whether all fields are there, the store timestamp aside."""
        return self.size >= RS_MESSAGE_POSITION_SYS_FLAG + 4

    @property
    def is_message(self) -> bool:
        """Whether the magic code is that of a message, of 4.9.3 or of 5.x."""
        return (
            self.magic_code == RS_MESSAGE_MAGIC_CODE or self.magic_code == RS_MESSAGE_MAGIC_CODE_V2
        )


def record_size(data, Py_ssize_t position=0) -> int:
    """The size field of the record at `position` of `data`; 0 where it is not there."""
    cdef Py_buffer view
    cdef int32_t size = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if 0 <= position <= view.len - 4:
        size = rs_load_be32(<const uint8_t *>view.buf + position)
    PyBuffer_Release(&view)
    return size


def follow_sizes(data) -> tuple:
    """Follow the size fields of the records and BLANKs from the first byte of `data` on.

    Returns the number of bytes up to the end of the last one that begins in `data`, and its magic
    code; 0, 0 where none does. It may end after `data`. Only size fields and magic codes are read.
    """
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef int64_t at = 0
    cdef int32_t size, magic, last = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    with nogil:
        p = <const uint8_t *>view.buf
        while at + RS_MESSAGE_POSITION_MAGIC + 4 <= view.len:
            size = rs_load_be32(p + at)
            magic = rs_load_be32(p + at + RS_MESSAGE_POSITION_MAGIC)
            if size < RS_END_FILE_MIN_BLANK_LENGTH or (
                magic != RS_MESSAGE_MAGIC_CODE
                and magic != RS_MESSAGE_MAGIC_CODE_V2
                and magic != RS_BLANK_MAGIC_CODE
            ):
                break
            last = magic
            at += size
    PyBuffer_Release(&view)
    return at, last


def topic_and_properties(data) -> "tuple[bytes, bytes] | None":
    """The topic and the properties text of the record at the start of `data`; None without one."""
    cdef Py_buffer view
    cdef rs_record record
    cdef const char *p
    found = None
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    p = <const char *>view.buf
    if parse_record(<const uint8_t *>p, view.len, &record) == RS_OK:
        found = (
            p[record.topic_position:record.topic_position + record.topic_size],
            p[record.properties_position:record.properties_position + record.properties_size],
        )
    PyBuffer_Release(&view)
    return found


def has_torn_properties(data) -> bool:
    """True where `data` starts with a whole record whose properties end in NUL bytes: they have not
    been written yet, or did not reach the disk. The sum of a record covers its body alone."""
    cdef Py_buffer view
    cdef rs_record record
    cdef const uint8_t *p
    cdef bint torn = False
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    p = <const uint8_t *>view.buf
    if parse_record(p, view.len, &record) == RS_OK:
        torn = properties_torn(p + record.properties_position, record.properties_size)
    PyBuffer_Release(&view)
    return torn


def find_properties(data) -> "dict[str, tuple[int, int]]":
    """Where the values lie that the store itself looks at, in a properties text.

    Returns
    -------
    dict: name -> (position, size), bytes; absent properties are left out.
    """
    cdef Py_buffer view
    cdef rs_properties found
    cdef dict spans = {}
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    scan_properties(<const uint8_t *>view.buf, view.len, &found)
    PyBuffer_Release(&view)
    for name, position, size in (
        ("TAGS", found.tags.position, found.tags.size),
        ("KEYS", found.keys.position, found.keys.size),
        ("UNIQ_KEY", found.uniq_key.position, found.uniq_key.size),
        ("DELAY", found.delay.position, found.delay.size),
        ("INNER_MULTI_DISPATCH", found.multi_dispatch.position, found.multi_dispatch.size),
        (
            "INNER_MULTI_QUEUE_OFFSET",
            found.multi_queue_offset.position,
            found.multi_queue_offset.size,
        ),
    ):
        if size >= 0:
            spans[name] = (position, size)
    return spans


def java_int(bytes text not None) -> "int | None":
    """The int32 that Java's Integer.parseInt makes of UTF-8 text, or None where it throws."""
    cdef int32_t value = 0
    if parse_java_int(text, len(text), &value):
        return value
    return None


def crc32(data, uint32_t value=0) -> int:
    """As zlib.crc32, by the fastest kernel of this processor. Lets the GIL go for long data."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if view.len > NOGIL_MIN_BYTES:
        with nogil:
            value = rs_crc32(value, <const uint8_t *>view.buf, view.len)
    else:
        value = rs_crc32(value, <const uint8_t *>view.buf, view.len)
    PyBuffer_Release(&view)
    return value


def crc32_kernels() -> "list[str]":
    """Names of the CRC-32 kernels that this processor can run, best first."""
    cdef const char **names = <const char **>rs_crc32_kernels()
    cdef list found = []
    while names[0] != NULL:
        if rs_crc32_by_name(names[0]) != NULL:
            found.append(names[0].decode("ascii"))
        names += 1
    return found


def crc32_kernel() -> str:
    """The name of the CRC-32 kernel in use."""
    return rs_crc32_kernel_name().decode("ascii")


def select_crc32_kernel(str name not None) -> None:
    """Use that CRC-32 kernel from now on, in this process. For tests and measurements.

    Raises
    ------
    ValueError: this build or this processor does not have it.
    """
    if rs_crc32_select(name.encode("ascii", "replace")) != 0:
        raise ValueError(f"no CRC-32 kernel {name!r} here; there are {crc32_kernels()}")


# Whether a record is the message that a unit of a queue should name.
#
# A damaged unit may name any record of the log. The record says of which queue it is: by its topic,
# queue id and queue offset, or, for the further queues of multi-dispatch, by two properties.

cdef enum:
    COMMA = 44
    PLUS = 43
    MINUS = 45
    LIGHT_PREFIX_SIZE = 5

cdef const uint8_t *LIGHT_PREFIX = b"%LMQ%"


cdef bint is_java_text(
    const uint8_t *p, int64_t size, const uint8_t *topic, int64_t topic_size
) noexcept nogil:
    cdef int64_t at = 0
    cdef int64_t topic_at = 0
    cdef uint32_t code, topic_code
    if size == topic_size and memcmp(p, topic, size) == 0:
        return True
    while at < size and topic_at < topic_size:
        at += rs_utf8_next(p + at, size - at, &code)
        topic_at += rs_utf8_next(topic + topic_at, topic_size - topic_at, &topic_code)
        if code != topic_code:
            return False
    return at >= size and topic_at == topic_size


cdef int64_t _count_parts(const uint8_t *p, int64_t size) noexcept nogil:
    """How many parts Java's String.split(",") gives: empty ones at the end are dropped."""
    cdef int64_t count = 1
    cdef int64_t i
    if size == 0:
        return 1
    while size > 0 and p[size - 1] == COMMA:
        size -= 1
    if size == 0:
        return 0
    for i in range(size):
        count += p[i] == COMMA
    return count


cdef const uint8_t *_part_end(const uint8_t *p, const uint8_t *stop) noexcept nogil:
    cdef const uint8_t *end = <const uint8_t *>memchr(p, COMMA, stop - p) if p < stop else NULL
    return stop if end == NULL else end


cdef bint _is_number(const uint8_t *p, const uint8_t *stop, int64_t wanted) noexcept nogil:
    """Whether Java's Long.parseLong makes `wanted` of text; a queue offset is not negative."""
    cdef int64_t value = 0
    cdef int64_t used = 0
    cdef int32_t digit
    if p < stop and (p[0] == PLUS or (p[0] == MINUS and wanted == 0)):  # "-0" is 0
        p += 1
    if p >= stop:
        return False
    while p < stop:
        digit = java_digit(p, stop - p, &used)
        if digit < 0 or value > (INT64_MAX - digit) // 10:
            return False
        value = 10 * value + digit
        p += used
    return value == wanted


cdef bint _dispatches_to(
    const queue_name *queue, const uint8_t *text, rs_span names, rs_span offsets,
    int64_t queue_offset
) noexcept nogil:
    """Whether one of the names is the queue and the number in its place is `queue_offset`."""
    cdef const uint8_t *name = text + names.position
    cdef const uint8_t *name_stop = name + names.size
    cdef const uint8_t *number = text + offsets.position
    cdef const uint8_t *number_stop = number + offsets.size
    cdef const uint8_t *name_end
    cdef const uint8_t *number_end
    if _count_parts(name, names.size) != _count_parts(number, offsets.size):
        return False  # no dispatcher takes such a record
    while name < name_stop and number < number_stop:
        name_end = _part_end(name, name_stop)
        number_end = _part_end(number, number_stop)
        if is_java_text(name, name_end - name, queue.topic, queue.topic_size) and (
            _is_number(number, number_end, queue_offset)
        ):
            return True
        name = name_end + 1
        number = number_end + 1
    return False


cdef bint is_named_otherwise(
    const queue_name *queue, const uint8_t *p, const rs_record *record, int64_t queue_offset
) noexcept nogil:
    cdef rs_properties found
    cdef const uint8_t *text = p + record.properties_position
    if record.queue_offset == queue_offset and record.queue_id == queue.queue_id and is_java_text(
        p + record.topic_position, record.topic_size, queue.topic, queue.topic_size
    ):
        return True
    # A light queue has the id 0 where light queues are enabled, else the record's.
    if record.queue_id != queue.queue_id and not (queue.is_light and queue.queue_id == 0):
        return False
    scan_properties(text, record.properties_size, &found)
    if found.multi_dispatch.size <= 0 or found.multi_queue_offset.size <= 0:
        return False
    return _dispatches_to(
        queue, text, found.multi_dispatch, found.multi_queue_offset, queue_offset
    )


@cython.final
@cython.auto_pickle(False)
cdef class QueueName:
    """A queue, for the compiled readers that compare each record with it.

    Parameters
    ----------
    topic : str
    queue_id : int, an int32

    Threads: any; it never changes.
    """

    def __cinit__(self, str topic not None, int32_t queue_id):
        try:
            self.topic_bytes = topic.encode("utf-8")
            self.name.topic_size = <int32_t>PyBytes_GET_SIZE(self.topic_bytes)
        except UnicodeEncodeError:  # a lone surrogate: no text of a record has any
            self.topic_bytes = b""
            self.name.topic_size = -1
        self.name.topic = <const uint8_t *>PyBytes_AS_STRING(self.topic_bytes)
        self.name.queue_id = queue_id
        self.name.is_light = self.name.topic_size >= LIGHT_PREFIX_SIZE and (
            memcmp(self.name.topic, LIGHT_PREFIX, LIGHT_PREFIX_SIZE) == 0
        )

    def has(self, data, int64_t queue_offset) -> bool:
        """Whether `data` starts with a whole record that is the queue's message at that offset."""
        cdef Py_buffer view
        cdef rs_record record
        cdef bint found = False
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        if check_record(<const uint8_t *>view.buf, view.len, -1, False, &record) == RS_OK:
            found = is_of_queue(&self.name, <const uint8_t *>view.buf, &record, queue_offset)
        PyBuffer_Release(&view)
        return found
