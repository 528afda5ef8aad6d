"""Text as Java has it: strings from UTF-8, hosts, hashes, properties of a message, unique ids."""
import codecs
import ipaddress
import re
import os

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next, PyDict_Size
from cpython.exc cimport PyErr_Clear
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset

from pyrocketstore._rocketstore cimport (
    RS_HOST_V4_SIZE,
    RS_HOST_V6_SIZE,
    RS_MAX_PROPERTIES_SIZE,
    rs_copy_short,
    rs_has_separator,
    rs_java_hash,
    rs_load_be16,
    rs_load_be32,
    rs_lowest_bit,
)
from pyrocketstore.system._env cimport EnvTable

from pyrocketstore.arguments.scalars import exact_int, exact_text
from pyrocketstore.display import shown
from pyrocketstore.errors import StoreFormatError, StoreTypeError
from pyrocketstore.record.message import (
    MessageRefused,
    PROPERTIES_TOO_LONG as _TOO_LONG,
    PROPERTY_INNER_MULTI_DISPATCH as _MULTI_DISPATCH,
    RESERVED_NAMES as _RESERVED_NAMES,
    property_pairs,
)

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


cdef inline int64_t _write_pair(
    uint8_t *out, int64_t at, const uint8_t *name, int64_t name_size, const uint8_t *value,
    int64_t value_size
) noexcept nogil:
    """Appends a property, behind a separator unless it is the first; returns the new end."""
    if at:
        out[at] = 2
        at += 1
    rs_copy_short(out + at, name, name_size)
    at += name_size
    out[at] = 1
    rs_copy_short(out + at + 1, value, value_size)
    return at + 1 + value_size


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
        at = _write_pair(out, at, <const uint8_t *>e.name, e.name_size,
                         <const uint8_t *>e.value, e.value_size)
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


# The properties text of an ordinary put, written without Python.
#
# Ordinary are exact str, an exact dict of exact str, and values that a put takes as they are.
# `named_properties` and `properties_text` of commit_log.put_rules handle everything else and write
# the same text for these.

cdef extern from "Python.h":
    # NULL with an exception set: the caller clears it.
    const char *utf8_or_null "PyUnicode_AsUTF8AndSize"(object text, Py_ssize_t *size)
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    const uint8_t *PyUnicode_1BYTE_DATA(object text)

cdef enum:
    STACK_PAIRS = 64
    STACK_BUCKETS = 128    # at most so many for the pairs on the stack
    MAX_PAIRS = 8192       # one has at least four bytes, with its separators
    MASK_BUCKETS = 64
    FILTER_BITS = 1024
    KNOWN_NAMES = 128      # a power of two
    MAX_KNOWN_NAME_SIZE = 64

cdef struct Pair:
    const uint8_t *name
    const uint8_t *value
    int32_t name_size
    int32_t value_size
    uint32_t hash     # spread as HashMap does
    int32_t next      # the pair that follows in the same bucket, or -1

# Names of earlier puts, which are mostly constants of the caller's program: each is checked and
# hashed once. A table entry has a reference to its name.
cdef struct KnownName:
    PyObject *text
    const uint8_t *utf8
    int32_t size
    uint32_t hash

cdef KnownName[KNOWN_NAMES] NAMES

# Names that a put refuses, or that decide about more than the text.
cdef frozenset SPECIAL_NAMES = _RESERVED_NAMES | {_MULTI_DISPATCH}
cdef uint8_t[FILTER_BITS] IS_SPECIAL_HASH  # by the last bits of the hash: few others need a lookup


cdef uint32_t spread_hash(const uint8_t *name, int64_t size) noexcept:
    cdef uint32_t hash = <uint32_t>rs_java_hash(0, name, size)
    return hash ^ (hash >> 16)


cdef void fill_filter() noexcept:
    cdef bytes raw
    memset(IS_SPECIAL_HASH, 0, sizeof(IS_SPECIAL_HASH))
    for name in SPECIAL_NAMES:
        raw = name.encode()
        IS_SPECIAL_HASH[
            spread_hash(<const uint8_t *>PyBytes_AS_STRING(raw), len(raw)) & (FILTER_BITS - 1)] = 1


fill_filter()
cdef const uint8_t *TAGS = <const uint8_t *>b"TAGS"
cdef const uint8_t *KEYS = <const uint8_t *>b"KEYS"
cdef const uint8_t *UNIQ_KEY = <const uint8_t *>b"UNIQ_KEY"
cdef uint32_t TAGS_HASH = spread_hash(TAGS, 4)
cdef uint32_t KEYS_HASH = spread_hash(KEYS, 4)
cdef uint32_t UNIQ_KEY_HASH = spread_hash(UNIQ_KEY, 8)


cdef inline const uint8_t *plain_text(object text, int32_t *size) noexcept:
    # The UTF-8 of an exact str that check_text takes; else NULL.
    cdef const uint8_t *p
    cdef Py_ssize_t length = 0
    if type(text) is not str:
        return NULL
    if PyUnicode_IS_COMPACT_ASCII(text):
        p = PyUnicode_1BYTE_DATA(text)
        length = PyUnicode_GET_LENGTH(text)
    else:
        p = <const uint8_t *>utf8_or_null(text, &length)
        if p == NULL:
            PyErr_Clear()  # a lone surrogate
            return NULL
    if length == 0 or length > RS_MAX_PROPERTIES_SIZE or rs_has_separator(p, length, 1):
        return NULL
    size[0] = <int32_t>length
    return p


cdef inline bint is_plain_tag(const uint8_t *tag, int32_t size) noexcept:
    # Whether check_tags takes the tag; one with a bar is looked at there.
    return (tag[0] > 32 and tag[size - 1] > 32 and not (size == 1 and tag[0] == c"*")
            and memchr(tag, c"|", size) == NULL)


cdef bint take_name(Pair *pair, PyObject *name, KnownName *known) noexcept:
    # A name that is not in the table. False where it is not plain.
    cdef PyObject *old = known.text
    pair.name = plain_text(<object>name, &pair.name_size)
    if pair.name == NULL:
        return False
    pair.hash = spread_hash(pair.name, pair.name_size)
    if IS_SPECIAL_HASH[pair.hash & (FILTER_BITS - 1)] and <object>name in SPECIAL_NAMES:
        return False
    if pair.name_size <= MAX_KNOWN_NAME_SIZE:
        Py_INCREF(<object>name)
        known.text, known.utf8, known.size = name, pair.name, pair.name_size
        known.hash = pair.hash
        Py_XDECREF(old)  # an exact str: no Python runs
    return True


cdef inline bint fill_pair(Pair *pair, PyObject *name, PyObject *value) noexcept:
    cdef uintptr_t address = <uintptr_t>name
    cdef KnownName *known = &NAMES[(address >> 4 ^ address >> 11) & (KNOWN_NAMES - 1)]
    if known.text == name:
        pair.name, pair.name_size, pair.hash = known.utf8, known.size, known.hash
    elif not take_name(pair, name, known):
        return False
    pair.value = plain_text(<object>value, &pair.value_size)
    return pair.value != NULL


cdef int32_t bucket_count(const Pair *pairs, int32_t count) noexcept:
    # The table of a HashMap that got the pairs in this order. While it is small, it grows also when
    # a ninth name meets in one bucket.
    cdef uint8_t[MIN_TREEIFY_CAPACITY] chain
    cdef int32_t capacity = 16
    cdef int32_t i, j
    cdef bint grows
    if count > TREEIFY_THRESHOLD:
        memset(chain, 0, sizeof(chain))
        for i in range(count):
            if capacity >= MIN_TREEIFY_CAPACITY:
                break
            chain[pairs[i].hash & (capacity - 1)] += 1
            grows = chain[pairs[i].hash & (capacity - 1)] > TREEIFY_THRESHOLD
            if grows:
                capacity <<= 1
            if i + 1 > capacity * 3 // 4:
                capacity <<= 1
                grows = True
            if grows and capacity < MIN_TREEIFY_CAPACITY:
                memset(chain, 0, sizeof(chain))
                for j in range(i + 1):
                    chain[pairs[j].hash & (capacity - 1)] += 1
    while count > capacity * 3 // 4:
        capacity <<= 1
    return capacity


cdef inline int64_t write_chain(const Pair *pairs, int32_t i, uint8_t *out, int64_t at) noexcept:
    # The pairs of a bucket.
    cdef const Pair *pair
    while i >= 0:
        pair = &pairs[i]
        at = _write_pair(out, at, pair.name, pair.name_size, pair.value, pair.value_size)
        i = pair.next
    return at


cdef int64_t write_pairs(Pair *pairs, int32_t count, int32_t *first, int32_t buckets,
                         uint8_t *out) noexcept:
    # By bucket, in each as they were put in. `first` has room for so many buckets.
    cdef int64_t at = 0
    cdef uint64_t used = 0
    cdef int32_t i, bucket
    if buckets <= MASK_BUCKETS:
        for i in range(count - 1, -1, -1):
            bucket = pairs[i].hash & (buckets - 1)
            pairs[i].next = first[bucket] if used >> bucket & 1 else -1
            first[bucket] = i
            used |= <uint64_t>1 << bucket
        while used:
            at = write_chain(pairs, first[rs_lowest_bit(used)], out, at)
            used &= used - 1
        return at
    memset(first, 0xFF, buckets * sizeof(int32_t))
    for i in range(count - 1, -1, -1):
        bucket = pairs[i].hash & (buckets - 1)
        pairs[i].next = first[bucket]
        first[bucket] = i
    for bucket in range(buckets):
        at = write_chain(pairs, first[bucket], out, at)
    return at


cdef int32_t take_pairs(Pair *pairs, object tags, object keys, object properties,
                        const uint8_t *unique, int unique_size) noexcept:
    # How many there are; -1 where one is not plain.
    cdef int32_t count = 0
    cdef Py_ssize_t at = 0
    cdef PyObject *name = NULL
    cdef PyObject *value = NULL
    if tags is not None:
        pairs[0].name, pairs[0].name_size, pairs[0].hash = TAGS, 4, TAGS_HASH
        pairs[0].value = plain_text(tags, &pairs[0].value_size)
        if pairs[0].value == NULL or not is_plain_tag(pairs[0].value, pairs[0].value_size):
            return -1
        count = 1
    if keys is not None:
        pairs[count].name, pairs[count].name_size, pairs[count].hash = KEYS, 4, KEYS_HASH
        pairs[count].value = plain_text(keys, &pairs[count].value_size)
        if pairs[count].value == NULL:
            return -1
        count += 1
    if properties is not None:
        while PyDict_Next(properties, &at, &name, &value):
            if not fill_pair(&pairs[count], name, value):
                return -1
            count += 1
    if unique_size:
        pairs[count].name, pairs[count].name_size = UNIQ_KEY, 8
        pairs[count].value, pairs[count].value_size = unique, unique_size
        pairs[count].hash = UNIQ_KEY_HASH
        count += 1
    return count


cdef int64_t text_of_pairs(Pair *pairs, int32_t *first, int32_t buckets_max, object tags,
                           object keys, object properties, const uint8_t *unique,
                           int unique_size, uint8_t *out, int64_t capacity) noexcept:
    cdef int64_t size = -1
    cdef int32_t buckets, i
    cdef int32_t count = take_pairs(pairs, tags, keys, properties, unique, unique_size)
    if count <= 0:
        return count
    for i in range(count):
        size += pairs[i].name_size + pairs[i].value_size + 2
    buckets = bucket_count(pairs, count)
    if size > capacity or buckets > buckets_max:
        return -1
    return end_of_text(out, write_pairs(pairs, count, first, buckets, out), capacity)


cdef object joined_keys(object keys):
    cdef tuple found
    if type(keys) is not list and type(keys) is not tuple:
        return keys
    try:
        found = tuple(keys)
        for key in found:
            if type(key) is not str or not <str>key or " " in <str>key:
                return keys
        return " ".join(found) if found else keys
    except MemoryError:
        return keys


cdef int64_t plain_properties(object tags, object keys, object properties, const uint8_t *unique,
                              int unique_size, uint8_t *out, int64_t capacity) noexcept:
    cdef Pair[STACK_PAIRS] few
    cdef int32_t[STACK_BUCKETS] first
    cdef void *many
    cdef Pair *pairs
    cdef Py_ssize_t count = 3
    cdef int32_t buckets = STACK_BUCKETS
    cdef int64_t size
    if keys is not None and type(keys) is not str:
        keys = joined_keys(keys)
    if properties is not None:
        if type(properties) is not dict:
            return -1
        count += PyDict_Size(properties)
    if count <= STACK_PAIRS:
        return text_of_pairs(few, first, buckets, tags, keys, properties, unique, unique_size, out,
                             capacity)
    if count > MAX_PAIRS:
        return -1
    while count > buckets * 3 // 4:
        buckets <<= 1
    many = malloc(count * sizeof(Pair) + buckets * sizeof(int32_t))
    if many == NULL:
        return -1
    pairs = <Pair *>many
    size = text_of_pairs(pairs, <int32_t *>(pairs + count), buckets, tags, keys, properties, unique,
                         unique_size, out, capacity)
    free(many)
    return size


def plain_text_of(tags, keys, properties, bytes unique=b"", *,
                  int64_t capacity=RS_MAX_PROPERTIES_SIZE) -> "bytes | None":
    """The text that a put without Python writes; None where it leaves the message to Python.

    Parameters
    ----------
    tags, keys, properties : as `Store.put` takes them
    unique : bytes, the value of UNIQ_KEY
    capacity : int, bytes
    """
    if not 0 <= capacity <= 0x7FFFFFFF or len(unique) > RS_MAX_PROPERTIES_SIZE:
        raise ValueError("capacity or unique: out of range")
    cdef bytes text = PyBytes_FromStringAndSize(NULL, capacity)
    cdef int64_t size = plain_properties(
        tags, keys, properties, <const uint8_t *>PyBytes_AS_STRING(unique), <int>len(unique),
        <uint8_t *>PyBytes_AS_STRING(text), capacity)
    return None if size < 0 else text[:size]


# Client message ids (UNIQ_KEY) in the form of Java's clients.

cdef const uint8_t *HEX = <const uint8_t *>b"0123456789ABCDEF"
cdef enum:
    TAIL_BYTES = 6  # elapsed ms and counter

cdef uint32_t counter = 0  # of all stores of this process
cdef uint32_t loader = 0


def _draw_loader():
    # Java has the hash of a class loader here: a number that tells processes apart, which the low
    # 16 bits of their ids alone do not.
    global loader
    loader = <uint32_t>int.from_bytes(os.urandom(4), "big")


_draw_loader()
os.register_at_fork(after_in_child=_draw_loader)


cdef inline void write_hex(uint8_t *out, const uint8_t *p, int size) noexcept:
    cdef int i
    for i in range(size):
        out[2 * i] = HEX[p[i] >> 4]
        out[2 * i + 1] = HEX[p[i] & 15]


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class UniqueIds:
    """Makes ids: address, process, loader, ms since the month began in local time, and a counter,
    in upper-case hex.

    Parameters
    ----------
    env : Env
    host : "ip:port"

    Threads: any. A fork: the child's ids differ from the parent's.
    Source: RocketMQ 4.9.3 MessageClientIDSetter#createUniqID.
    """

    def __cinit__(self, EnvTable env not None, host not None):
        self.env = env
        self.host = host
        self.learn(env.table.now_ms())

    cdef int learn(self, int64_t now) except -1:
        cdef bytes raw = host_bytes(self.host, "store_host")
        cdef int address_size = <int>PyBytes_GET_SIZE(raw) - 4  # without the port
        cdef int64_t second_ms = now // 1000 * 1000
        cdef uint8_t[6] ids
        if second_ms > now:
            second_ms -= 1000  # before 1970
        local = self.env.local_time(second_ms)
        elapsed = ((local.tm_mday - 1) * 24 + local.tm_hour) * 60 + local.tm_min
        cdef int64_t elapsed_ms = (elapsed * 60 + local.tm_sec) * 1000
        cdef uint32_t process = <uint32_t>(self.env.process_id() & 0xFFFF)
        # No Python runs from here on, so another thread finds all of it or nothing.
        ids[0], ids[1] = process >> 8 & 0xFF, process & 0xFF
        for i in range(4):
            ids[2 + i] = loader >> (24 - 8 * i) & 0xFF
        write_hex(self.prefix, <const uint8_t *>PyBytes_AS_STRING(raw), address_size)
        write_hex(self.prefix + 2 * address_size, ids, 6)
        self.prefix_size = 2 * (address_size + 6)
        self.second_ms, self.elapsed_ms = second_ms, elapsed_ms
        return 0

    cdef int write(self, int64_t now, uint8_t *out) noexcept:
        global counter
        cdef uint32_t elapsed = <uint32_t>(self.elapsed_ms + (now - self.second_ms))
        cdef uint8_t[TAIL_BYTES] tail
        cdef int i
        for i in range(4):
            tail[i] = elapsed >> (24 - 8 * i) & 0xFF
        tail[4], tail[5] = counter >> 8 & 0xFF, counter & 0xFF
        counter += 1
        memcpy(out, self.prefix, self.prefix_size)
        write_hex(out + self.prefix_size, tail, TAIL_BYTES)
        return self.prefix_size + 2 * TAIL_BYTES

    def new(self) -> str:
        """A new id."""
        cdef uint8_t[MAX_UNIQUE_ID_SIZE] text
        cdef int64_t now = self.env.table.now_ms()
        if not self.knows(now):
            self.learn(now)
        return text[:self.write(now, text)].decode("ascii")
