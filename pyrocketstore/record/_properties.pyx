"""The properties text of an ordinary put, written without Python.

Ordinary are exact str, an exact dict of exact str, and values that a put takes as they are.
`named_properties` and `properties_text` of commit_log.put_rules handle everything else and write
the same text for these.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_Next, PyDict_Size
from cpython.exc cimport PyErr_Clear
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memset

from pyrocketstore._rocketstore cimport (
    RS_MAX_PROPERTIES_SIZE,
    rs_copy_short,
    rs_has_separator,
    rs_java_hash,
    rs_lowest_bit,
)
from pyrocketstore.record._text cimport end_of_text

from pyrocketstore.record.message import PROPERTY_INNER_MULTI_DISPATCH as _MULTI_DISPATCH
from pyrocketstore.record.message import RESERVED_NAMES as _RESERVED_NAMES

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size)
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    const uint8_t *PyUnicode_1BYTE_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef enum:
    STACK_PAIRS = 64
    STACK_BUCKETS = 128    # at most so many for the pairs on the stack
    MAX_PAIRS = 8192       # one has at least four bytes, with its separators
    TREEIFY_THRESHOLD = 8
    MIN_TREEIFY_CAPACITY = 64
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

cdef KnownName[KNOWN_NAMES] KNOWN

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
        p = <const uint8_t *>PyUnicode_AsUTF8AndSize(text, &length)
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
    cdef KnownName *known = &KNOWN[(address >> 4 ^ address >> 11) & (KNOWN_NAMES - 1)]
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
        if at:
            out[at] = 2
            at += 1
        rs_copy_short(out + at, pair.name, pair.name_size)
        at += pair.name_size
        out[at] = 1
        rs_copy_short(out + at + 1, pair.value, pair.value_size)
        at += 1 + pair.value_size
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


cdef int64_t plain_properties(object tags, object keys, object properties, const uint8_t *unique,
                              int unique_size, uint8_t *out, int64_t capacity) noexcept:
    cdef Pair[STACK_PAIRS] few
    cdef int32_t[STACK_BUCKETS] first
    cdef void *many
    cdef Pair *pairs
    cdef Py_ssize_t count = 3
    cdef int32_t buckets = STACK_BUCKETS
    cdef int64_t size
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
