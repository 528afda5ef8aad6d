"""Text as Java has it: strings from UTF-8, hosts, hashes, and the properties of a message."""
import codecs
import ipaddress
import re

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next, PyDict_Size
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcmp, memcpy, memset

from pyrocketstore._rocketstore cimport (
    RS_HOST_V4_SIZE,
    RS_HOST_V6_SIZE,
    RS_MAX_PROPERTIES_SIZE,
    rs_java_hash,
    rs_load_be16,
    rs_load_be32,
)

from pyrocketstore.display import shown
from pyrocketstore.errors import StoreFormatError, StoreTypeError
from pyrocketstore.arguments.scalars import exact_int, exact_text
from pyrocketstore.record.message import PROPERTIES_TOO_LONG as _TOO_LONG
from pyrocketstore.record.message import MessageRefused, property_pairs

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    str PyUnicode_DecodeUTF8(const char *p, Py_ssize_t size, const char *errors)
    bint PyUnicode_IS_ASCII(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    const void *PyUnicode_DATA(object text)
    PyObject *PyList_GET_ITEM(object items, Py_ssize_t i)

cdef enum:
    PLAIN_ENTRIES = 12  # a HashMap with at most so many entries has 16 buckets
    PLAIN_SIZE = 2048   # bytes of a text that is built without an allocation
    TREEIFY_THRESHOLD = 8
    MIN_TREEIFY_CAPACITY = 64


# ---- text and hosts --------------------------------------------------------------------------

# Looked up now: an import that a signal handler interrupts keeps its lock.
cdef object UTF_16 = codecs.lookup("utf-16-be")
cdef object LONE_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")

cdef str java_text(const uint8_t *p, Py_ssize_t size):
    try:
        return PyUnicode_DecodeUTF8(<const char *>p, size, NULL)
    except UnicodeDecodeError:
        # Python would replace an encoded surrogate byte by byte, Java makes it one character.
        return LONE_SURROGATE.sub(b"\xff", p[:size]).decode("utf-8", "replace")


cdef enum:
    KNOWN_TEXTS = 256        # a power of two
    MAX_KNOWN_TEXT_SIZE = 64

cdef list KNOWN = [None] * KNOWN_TEXTS  # the str seen last for each place, ASCII or None


cdef str known_text(const uint8_t *p, Py_ssize_t size):
    cdef Py_ssize_t place
    cdef object known
    if size < 1 or size > MAX_KNOWN_TEXT_SIZE:
        return java_text(p, size)
    place = (size * 37 + p[0] * 5 + p[size >> 1] * 3 + p[size - 1]) & (KNOWN_TEXTS - 1)
    known = <object>PyList_GET_ITEM(KNOWN, place)
    if known is not None and PyUnicode_GET_LENGTH(known) == size and (
        memcmp(PyUnicode_DATA(known), p, size) == 0
    ):
        return <str>known
    known = java_text(p, size)
    if PyUnicode_IS_ASCII(known):
        KNOWN[place] = known
    return <str>known


cdef const char *utf8_of(object text, Py_ssize_t *size) except NULL:
    if type(text) is not str:
        exact_text("a name or value", text)  # a subclass holds the same characters
    try:
        return PyUnicode_AsUTF8AndSize(text, size)
    except UnicodeEncodeError as error:
        raise StoreFormatError(f"a lone surrogate cannot be stored: {shown(text)}") from error


cdef const uint8_t *utf8_bytes(str text, int64_t *size, bint *whole, list keep) except NULL:
    cdef Py_ssize_t length = 0
    cdef const char *p
    cdef bytes raw
    try:
        p = PyUnicode_AsUTF8AndSize(text, &length)
        whole[0] = True
    except UnicodeEncodeError:
        raw = text.encode("utf-8", "surrogatepass")
        keep.append(raw)
        p = PyBytes_AS_STRING(raw)
        length = PyBytes_GET_SIZE(raw)
        whole[0] = False
    size[0] = length
    return <const uint8_t *>p


cdef bint is_mapped_v4(const uint8_t *p) noexcept nogil:
    """An IPv4 address written as ::ffff:a.b.c.d, which Java's InetAddress turns into IPv4."""
    return memcmp(p, b"\0\0\0\0\0\0\0\0\0\0\xff\xff", 12) == 0


cdef str host_text(const uint8_t *p, int32_t size):
    cdef int32_t port
    if size < RS_HOST_V4_SIZE:
        return ""
    port = rs_load_be32(p + size - 4)
    if size == RS_HOST_V6_SIZE:
        if not is_mapped_v4(p):
            return f"[{ipaddress.IPv6Address(p[:16]).compressed}]:{port}"
        p += 12
    return f"{p[0]}.{p[1]}.{p[2]}.{p[3]}:{port}"


cdef dict HOSTS = {}  # the text forms seen last: parsing one takes microseconds
cdef enum:
    MAX_HOSTS = 1024


cdef bytes host_bytes(object host, str what="host"):
    # `what` is the name of the argument, or of the field, in errors.
    cdef bytes raw
    if type(host) is str and host in HOSTS:
        return HOSTS[host]
    if isinstance(host, bytes):
        raw = bytes(memoryview(host))
        if len(raw) != RS_HOST_V4_SIZE and len(raw) != RS_HOST_V6_SIZE:
            raise StoreFormatError(f"{what} must have 8 or 20 bytes, not {len(raw)}")
        return _host_without_mapping(raw)
    raw = _host_without_mapping(_parse_host(host, what))
    if type(host) is str:
        if len(HOSTS) >= MAX_HOSTS:
            HOSTS.clear()
        HOSTS[host] = raw
    return raw


cdef bytes _host_without_mapping(bytes raw):
    return raw[12:] if len(raw) == RS_HOST_V6_SIZE and is_mapped_v4(raw) else raw


cdef bytes _parse_host(object host, str what):
    """Address and port from "1.2.3.4:10911", "[2001:db8::1]:10911" or (address, port)."""
    if isinstance(host, str):
        address, _, port = exact_text(what, host).rpartition(":")
        if address.startswith("[") and address.endswith("]"):
            address = address[1 : len(address) - 1]
        elif ":" in address:
            raise StoreFormatError(f"{what}: an IPv6 address needs brackets: {shown(host)}")
        if not (port.isascii() and port.isdigit() and len(port) <= 5):
            raise StoreFormatError(f"{what} must be 'address:port', not {shown(host)}")
        port = int(port)
    elif isinstance(host, (tuple, list)) and len(host) == 2:
        address, port = tuple(host)
    else:
        raise StoreTypeError(f"{what} must be a str 'address:port', not {shown(host)}")
    port = exact_int(f"the port of {what}", port, 0, 65535)
    try:
        if isinstance(address, str) and "%" not in address:  # a zone is not stored
            address = ipaddress.ip_address(exact_text(what, address))
            return address.packed + port.to_bytes(4, "big")
    except ValueError:
        pass
    raise StoreFormatError(f"{what} has no numeric address: {shown(host)}")


cdef int fill_outgoing_host(object host, uint8_t *out, str what) except -1:
    cdef bytes raw = host_bytes(host, what)
    if type(host) is not str:
        port = int.from_bytes(raw[len(raw) - 4:], "big", signed=True)
        exact_int(f"the port of {what}", port, 0, 65535)
    memcpy(out, PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw))
    return <int>PyBytes_GET_SIZE(raw)


def java_host(bytes raw not None) -> str:
    """A host as Java prints an address that was never looked up: `/10.0.0.1:10911`,
    `/[2001:db8:0:0:0:0:0:191]:10401`.

    Parameters
    ----------
    raw : bytes[8 or 20], as born_host_bytes

    Source: java.net.InetSocketAddress#toString (since Java 14).
    """
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(raw)
    if len(raw) not in (RS_HOST_V4_SIZE, RS_HOST_V6_SIZE):
        raise StoreFormatError(f"a host has 8 or 20 bytes, not {len(raw)}")
    if len(raw) == RS_HOST_V4_SIZE or is_mapped_v4(p):
        return "/" + host_text(p, <int32_t>len(raw))
    groups = ":".join([f"{<uint16_t>rs_load_be16(p + 2 * i):x}" for i in range(8)])
    return f"/[{groups}]:{rs_load_be32(p + 16)}"


def java_hash(text) -> int:
    """Java's String.hashCode, int32, of a str, or of the string that UTF-8 bytes decode to."""
    cdef uint32_t hash = 0
    cdef bytes units
    cdef Py_ssize_t i
    if isinstance(text, bytes):
        return rs_java_hash(0, <const uint8_t *>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    units = UTF_16.encode(text, "surrogatepass")[0]
    for i in range(0, PyBytes_GET_SIZE(units), 2):
        hash = hash * 31 + <uint16_t>rs_load_be16(<const uint8_t *>PyBytes_AS_STRING(units) + i)
    return <int32_t>hash


def tags_code(str tags or None) -> int:
    """The int64 that a queue unit keeps of these tags; 0 for None and "".

    Source: RocketMQ 4.9.3 MessageExtBrokerInner#tagsString2tagsCode.
    """
    return java_hash(tags) if tags else 0


# ---- properties text -------------------------------------------------------------------------

cdef struct Entry:
    const char *name
    const char *value   # NULL for None, which takes a place in the map but is not written
    Py_ssize_t name_size
    Py_ssize_t value_size
    uint32_t hash       # spread as HashMap does


cdef inline int _fill_entry(Entry *e, object name, object value) except -1:
    cdef uint32_t h
    e.name = utf8_of(name, &e.name_size)
    e.value = NULL
    e.value_size = 0
    if value is not None:
        e.value = utf8_of(value, &e.value_size)
    h = <uint32_t>rs_java_hash(0, <const uint8_t *>e.name, e.name_size)
    e.hash = h ^ (h >> 16)
    return 0


cdef inline bint _same_name(const Entry *a, const Entry *b) noexcept:
    return (
        a.hash == b.hash and a.name_size == b.name_size
        and memcmp(a.name, b.name, a.name_size) == 0
    )


cdef int64_t _write_entries(
    const Entry *entries, const uint8_t *order, int count, uint8_t *out, int64_t capacity
) noexcept:
    """The text of the entries in that order; -1 where `capacity` bytes are not enough."""
    cdef int64_t at = 0
    cdef const Entry *e
    cdef int i
    for i in range(count):
        e = &entries[order[i]]
        if e.value == NULL:
            continue
        if at + e.name_size + e.value_size + 2 > capacity + (1 if at == 0 else 0):
            return -1
        if at:
            out[at] = 2
            at += 1
        memcpy(out + at, e.name, e.name_size)
        at += e.name_size
        out[at] = 1
        memcpy(out + at + 1, e.value, e.value_size)
        at += 1 + e.value_size
    return end_of_text(out, at, capacity)


cdef bint _plain_order(const Entry *entries, int count, uint8_t *order) noexcept:
    """Sorts by bucket of a 16-bucket HashMap, insertion order inside a bucket. False where so many
    share one bucket that HashMap grows before its time."""
    cdef uint8_t[16] chain
    cdef int i, j
    cdef uint32_t bucket
    memset(chain, 0, 16)
    for i in range(count):
        bucket = entries[i].hash & 15
        chain[bucket] += 1
        if chain[bucket] > TREEIFY_THRESHOLD:
            return False
        j = i
        while j > 0 and (entries[order[j - 1]].hash & 15) > bucket:
            order[j] = order[j - 1]
            j -= 1
        order[j] = <uint8_t>i
    return True


cdef int64_t build_properties(
    object tags, object keys, object properties, uint8_t *out, int64_t capacity
) except -2:
    cdef Entry[PLAIN_ENTRIES] entries
    cdef uint8_t[PLAIN_ENTRIES] order
    cdef int count = 0
    cdef int fixed, i
    cdef Py_ssize_t at = 0
    cdef PyObject *name = NULL
    cdef PyObject *value = NULL
    if tags is not None:
        _fill_entry(&entries[count], "TAGS", tags)
        count += 1
    if keys is not None:
        _fill_entry(&entries[count], "KEYS", keys)
        count += 1
    if properties is not None:
        if type(properties) is not dict:
            properties = dict(property_pairs("properties", properties))
        if count + PyDict_Size(properties) > PLAIN_ENTRIES:
            return _build_many(tags, keys, properties, out, capacity)
        fixed = count
        while PyDict_Next(properties, &at, &name, &value):
            _fill_entry(&entries[count], <object>name, <object>value)
            for i in range(fixed):
                if _same_name(&entries[i], &entries[count]):
                    entries[i] = entries[count]
                    break
            else:
                count += 1
    if not _plain_order(entries, count, order):
        return _build_many(tags, keys, properties, out, capacity)
    return _write_entries(entries, order, count, out, capacity)


cdef int64_t _build_many(
    object tags, object keys, object properties, uint8_t *out, int64_t capacity
) except -2:
    """build_properties where the map has more than 16 buckets."""
    cdef list pairs = []
    cdef bytes text
    if tags is not None:
        pairs.append(("TAGS", tags))
    if keys is not None:
        pairs.append(("KEYS", keys))
    pairs.extend(property_pairs("properties", properties or {}))
    text = properties_text(pairs)
    if PyBytes_GET_SIZE(text) > capacity:
        return -1
    memcpy(out, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return PyBytes_GET_SIZE(text)


cdef list _hash_map_order(list pairs):
    """(name, value) pairs as a java.util.HashMap would give them back."""
    cdef dict seen = {}    # name -> [spread hash, name, value]
    cdef dict chains = {}  # bucket -> how many, at the present capacity
    cdef Entry e
    cdef int64_t capacity = 16
    cdef bint grow
    for name, value in pairs:
        if name in seen:
            seen[name][2] = value
            continue
        _fill_entry(&e, name, value)
        bucket = e.hash & (capacity - 1)
        chains[bucket] = chains.get(bucket, 0) + 1
        seen[name] = [e.hash, name, value]
        grow = chains[bucket] > TREEIFY_THRESHOLD and capacity < MIN_TREEIFY_CAPACITY
        for reason in (grow, len(seen) > (capacity << 1 if grow else capacity) * 3 // 4):
            if reason:
                capacity <<= 1
                chains = {}
                for entry in seen.values():
                    bucket = entry[0] & (capacity - 1)
                    chains[bucket] = chains.get(bucket, 0) + 1
    return sorted(seen.values(), key=lambda entry: entry[0] & (capacity - 1))


cdef bytes properties_text(list pairs):
    cdef list parts = []
    pairs = [
        (name if type(name) is str else exact_text("a property name", name),
         value if value is None or type(value) is str else exact_text(f"property {name}", value))
        for name, value in pairs
    ]
    for _, name, value in _hash_map_order(pairs):
        if value is not None:
            parts.append(f"{name}\x01{value}")
    cdef bytes text = "\x02".join(parts).encode("utf-8")
    if text.endswith(b"\0") and len(text) != RS_MAX_PROPERTIES_SIZE:
        text += b"\x02"  # as `end_of_text` adds it
    return text


def put_properties(tags, keys, properties, *, int64_t capacity=RS_MAX_PROPERTIES_SIZE) -> bytes:
    """The properties text of a put: TAGS, KEYS, then the others, in the order of Java's HashMap.

    Parameters
    ----------
    tags, keys : str or None
    properties : mapping of str to str, or None
    capacity : int, bytes

    Raises
    ------
    MessageRefused: more than `capacity` bytes.
    StoreFormatError: something is not a str, or holds a lone surrogate.
    """
    if not 0 <= capacity <= 0x7FFFFFFF:
        raise ValueError(f"capacity {capacity}: must be 0 to 2147483647")
    cdef bytes text = PyBytes_FromStringAndSize(NULL, capacity)
    cdef int64_t size = build_properties(
        tags, keys, properties, <uint8_t *>PyBytes_AS_STRING(text), capacity
    )
    if size < 0:
        raise MessageRefused("PROPERTIES_SIZE_EXCEEDED", _TOO_LONG)
    return text[:size]


def properties_to_string(properties: "Mapping[str, str | None] | None") -> str:
    """Encode properties as the text that a record stores, in the order of Java's HashMap.

    Parameters
    ----------
    properties : mapping of str to str, or None

    Returns
    -------
    str: name U+0001 value, joined by U+0002; entries whose value is None are left out. U+0002 also
    follows a last value that ends in U+0000.

    Raises
    ------
    StoreTypeError: `properties` is not a mapping, or a name or value is not a str.
    StoreFormatError: a name or value holds a lone surrogate.

    Source: RocketMQ 4.9.3 MessageDecoder#messageProperties2String.
    Differs: nine or more names in one of at least 64 buckets keep their insertion order. 4.9.3 adds
    no separator after U+0000, which a power cut leaves too.
    """
    cdef uint8_t[PLAIN_SIZE] text
    cdef int64_t size = -1
    if properties is None:
        return ""
    if type(properties) is dict and _is_plain(<dict>properties):
        size = build_properties(None, None, properties, text, PLAIN_SIZE)
    if size >= 0:
        return PyUnicode_DecodeUTF8(<const char *>text, <Py_ssize_t>size, NULL)
    return properties_text(property_pairs("properties", properties)).decode("utf-8")


cdef bint _is_plain(dict properties) noexcept:
    """True for a few names, all of which, and their values, are exact str."""
    cdef Py_ssize_t at = 0
    cdef PyObject *name = NULL
    cdef PyObject *value = NULL
    if PyDict_Size(properties) > PLAIN_ENTRIES:
        return False
    while PyDict_Next(properties, &at, &name, &value):
        if type(<object>name) is not str or type(<object>value) is not str:
            return False
    return True


def string_to_properties(text) -> "dict[str, str]":
    """Decode a properties text to a dict; the last of equal names wins.

    Raises
    ------
    StoreTypeError: `text` is not a str.

    Source: RocketMQ 4.9.3 MessageDecoder#string2messageProperties.
    """
    cdef dict properties = {}
    for part in exact_text("a properties text", text).split("\x02"):
        name, _, value = part.partition("\x01")
        if name and value:
            properties[name] = value
    return properties
