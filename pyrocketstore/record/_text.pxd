"""Java's text: strings from UTF-8, hosts, hashes, and the properties of a message."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore._rocketstore cimport RS_MAX_PROPERTIES_SIZE
from pyrocketstore.system._env cimport EnvTable

# UTF-8 as Java decodes it: malformed bytes become U+FFFD.
cdef str java_text(const uint8_t *p, Py_ssize_t size)
# As java_text, for text that repeats (topics, tags, names): often returns a cached str.
cdef str known_text(const uint8_t *p, Py_ssize_t size)
# "1.2.3.4:10911" or "[2001:db8::1]:10911" from an address (4 or 16 bytes) and an i32 port.
cdef str host_text(const uint8_t *p, int32_t size)
# Returns 8 or 20. `host` is "1.2.3.4:10911", "[2001:db8::1]:10911", (address, port), or the 8 or
# 20 bytes themselves; `out` has 20 bytes.
cdef int fill_outgoing_host(object host, uint8_t *out, str what) except -1
# (name, value) pairs in insertion order to UTF-8 text in the order of Java's HashMap.
cdef bytes properties_text(list pairs)
# The properties text of a put: tags, keys, then `properties` in its own order. Returns the size, or
# -1 if `capacity` bytes are not enough.
cdef int64_t build_properties(
    object tags, object keys, object properties, uint8_t *out, int64_t capacity
) except -2
# Zero bytes at the end of a text are sectors that were not written. Add the separator U+0002 after
# a value that ends in one: every reader accepts it. The longest text stays as it is. Returns the
# size, or -1 if `capacity` bytes are not enough.
cdef inline int64_t end_of_text(uint8_t *text, int64_t size, int64_t capacity) noexcept nogil:
    if size <= 0 or text[size - 1] != 0 or size == RS_MAX_PROPERTIES_SIZE:
        return size
    if size == capacity:
        return -1
    text[size] = 2
    return size + 1
# The UTF-8 buffer of a str; StoreFormatError if it is not a str or holds a lone surrogate.
cdef const char *utf8_of(object text, Py_ssize_t *size) except NULL
cdef bytes host_bytes(object host, str what=*)
cdef bint is_mapped_v4(const uint8_t *p) noexcept nogil
# As utf8_of, but encodes a lone surrogate: `keep` then owns the bytes, and `whole` is False.
cdef const uint8_t *utf8_bytes(str text, int64_t *size, bint *whole, list keep) except NULL


# A list or tuple of keys as one str if each is an ordinary one; anything else as it is.
cdef object joined_keys(object keys)

# The text of TAGS, KEYS, the properties of an exact dict (or None) and UNIQ_KEY (none where
# `unique_size` is 0), in the order of Java's HashMap: its size. Returns -1 for all that a put
# refuses or converts, or that has more than `capacity` bytes: named_properties decides about that.
# Never calls Python, so that the dict and its str stay what they are meanwhile.
cdef int64_t plain_properties(object tags, object keys, object properties, const uint8_t *unique,
                              int unique_size, uint8_t *out, int64_t capacity) noexcept


cdef enum:
    MAX_UNIQUE_ID_SIZE = 56


cdef class UniqueIds:
    cdef EnvTable env
    cdef readonly object host
    cdef uint8_t[MAX_UNIQUE_ID_SIZE] prefix   # hex of the address, the process and the loader
    cdef int prefix_size
    cdef int64_t second_ms    # Unix ms: the second that `elapsed_ms` is for
    cdef int64_t elapsed_ms   # since the month began, local time, at `second_ms`

    # Whether `write` knows the local time of a Unix time in ms; if not, call `learn` first, which
    # runs Python: once a second.
    cdef inline bint knows(self, int64_t now) noexcept:
        return self.second_ms <= now < self.second_ms + 1000
    cdef int learn(self, int64_t now) except -1
    # Writes a new id to `out`, which has MAX_UNIQUE_ID_SIZE bytes, and returns its size.
    cdef int write(self, int64_t now, uint8_t *out) noexcept
