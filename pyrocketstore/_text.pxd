"""Text as Java has it: strings from UTF-8, hosts, hashes, and the properties of a message."""
from libc.stdint cimport int32_t, int64_t, uint8_t

# UTF-8 as Java decodes it: malformed bytes become U+FFFD.
cdef str java_text(const uint8_t *p, Py_ssize_t size)
# The same for text that comes again and again (topics, tags, names): often no new str is made.
cdef str known_text(const uint8_t *p, Py_ssize_t size)
# "1.2.3.4:10911" or "[2001:db8::1]:10911" from an address (4 or 16 bytes) and an i32 port.
cdef str host_text(const uint8_t *p, int32_t size)
# Gives 8 or 20. `host` is "1.2.3.4:10911", "[2001:db8::1]:10911", (address, port), or the 8 or
# 20 bytes themselves; `out` has 20 bytes.
cdef int fill_outgoing_host(object host, uint8_t *out) except -1
# (name, value) pairs in insertion order to UTF-8 text in the order of Java's HashMap.
cdef bytes properties_text(list pairs)
# The same for a put: tags, keys, then `properties` in its own order; the size, or -1 where
# `capacity` bytes are not enough.
cdef int64_t build_properties(
    object tags, object keys, object properties, uint8_t *out, int64_t capacity
) except -2
# A str's own UTF-8; StoreFormatError where it is no str or holds a lone surrogate.
cdef const char *utf8_of(object text, Py_ssize_t *size) except NULL
cdef bytes host_bytes(object host)
cdef bint is_mapped_v4(const uint8_t *p) noexcept nogil
# The same where a lone surrogate is no error: such text is in `keep` then, and not `whole`.
cdef const uint8_t *utf8_bytes(str text, int64_t *size, bint *whole, list keep) except NULL
