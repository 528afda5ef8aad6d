"""Hash "topic#key" as the index does, of str objects without encoding them as UTF-8."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t

import numpy as np

from pyrocketstore.index._put cimport (
    index_hash,
    index_key_hash,
    index_key_prefix,
    index_keys,
    keys_of_text,
    next_index_key,
)
from pyrocketstore._rocketstore cimport (
    rs_java_hash_latin1,
    rs_java_hash_utf16,
    rs_java_hash_utf32,
    rs_prefetch_read,
)

cdef extern from "Python.h":
    int __Pyx_PyUnicode_READY(object text) except -1  # nothing to do from 3.12 on
    int PyUnicode_KIND(object text)
    void *PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    Py_ssize_t PySequence_Fast_GET_SIZE(object items)
    PyObject **PySequence_Fast_ITEMS(object items)

cdef enum:
    KEYS_AHEAD = 32          # str objects that are prefetched before they are hashed


cdef int32_t hash_text(int32_t prefix, object text) except -1:
    """Return the hash of a key that follows `prefix`; a str is not encoded."""
    cdef bytes raw
    cdef int32_t hashed = prefix
    cdef int kind
    if type(text) is str:
        __Pyx_PyUnicode_READY(text)
        kind = PyUnicode_KIND(text)
        if kind == 1:
            return index_hash(rs_java_hash_latin1(
                prefix, <const uint8_t *>PyUnicode_DATA(text), PyUnicode_GET_LENGTH(text)))
        if kind == 2:
            if rs_java_hash_utf16(&hashed, <const uint16_t *>PyUnicode_DATA(text),
                                  PyUnicode_GET_LENGTH(text)):
                return index_hash(hashed)
        elif rs_java_hash_utf32(&hashed, <const uint32_t *>PyUnicode_DATA(text),
                                PyUnicode_GET_LENGTH(text)):
            return index_hash(hashed)
    if isinstance(text, bytes):
        raw = text
    else:
        raw = _utf8(text)
    return index_key_hash(prefix, <const uint8_t *>PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw))


cdef int32_t prefix_of(object topic) except? -1:
    """Return the hash of "topic#", from which each key of the topic continues."""
    cdef bytes raw
    if isinstance(topic, bytes):
        raw = topic
    else:
        raw = _utf8(topic)
    return index_key_prefix(<const uint8_t *>PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw))


cdef bytes _utf8(object text):
    return (<str?>text).encode("utf-8", "surrogatepass")


cdef int hash_keys(int32_t prefix, object keys, int32_t *hashes) except -1:
    """Hash every key of a list or tuple."""
    cdef Py_ssize_t count = PySequence_Fast_GET_SIZE(keys)
    cdef PyObject **items = PySequence_Fast_ITEMS(keys)
    cdef Py_ssize_t i
    # No Python code runs here that could change the list.
    for i in range(count):
        if i + KEYS_AHEAD < count:
            rs_prefetch_read(items[i + KEYS_AHEAD])
        hashes[i] = hash_text(prefix, <object>items[i])
    return 0


def key_hash_of(topic: str | bytes, key: str | bytes) -> int:
    """Return the hash under which "topic#key" is put.

    Parameters
    ----------
    topic, key : str, or bytes of UTF-8

    Returns
    -------
    int, 0 .. 2**31 - 1

    Source: RocketMQ 4.9.3 IndexService#buildKey, IndexFile#indexKeyHashMethod.
    """
    return hash_text(prefix_of(topic), key)


def index_key_hashes(topic: str, uniq_key: str | None, keys: str | None) -> list[int]:
    """The hashes under which a record is indexed, from its topic, UNIQ_KEY and KEYS.

    The unique key comes first, then each part of KEYS between blanks that is not empty.

    Source: RocketMQ 4.9.3 IndexService#buildIndex.
    """
    cdef bytes uniq = b"" if uniq_key is None else _utf8(uniq_key)
    cdef bytes rest = b"" if keys is None else _utf8(keys)
    cdef int32_t prefix = prefix_of(topic)
    cdef list hashes = []
    cdef index_keys found = keys_of_text(
        <const uint8_t *>PyBytes_AS_STRING(uniq),
        -1 if uniq_key is None else <int32_t>PyBytes_GET_SIZE(uniq),
        <const uint8_t *>PyBytes_AS_STRING(rest),
        <int32_t>PyBytes_GET_SIZE(rest),
    )
    while next_index_key(&found):
        hashes.append(index_key_hash(prefix, found.key, found.size))
    return hashes


def hashes_of_keys(keys, topic: str | bytes | None = None) -> np.ndarray:
    """Hash many keys of one topic; without a topic each is a whole "topic#key".

    Parameters
    ----------
    keys : iterable of str, or bytes of UTF-8

    Returns
    -------
    int32[n], 0 .. 2**31 - 1
    """
    cdef int32_t prefix = 0 if topic is None else prefix_of(topic)
    cdef list texts = list(keys)
    cdef int32_t[::1] view
    hashes = np.empty(len(texts), np.int32)
    view = hashes
    if texts:
        hash_keys(prefix, texts, &view[0])
    return hashes
