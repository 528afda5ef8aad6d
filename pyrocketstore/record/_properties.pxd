"""The properties text of an ordinary put, written without Python."""
from libc.stdint cimport int64_t, uint8_t

# The text of TAGS, KEYS, the properties of an exact dict (or None) and UNIQ_KEY (none where
# `unique_size` is 0), in the order of Java's HashMap: its size. Returns -1 for all that a put
# refuses or converts, or that has more than `capacity` bytes: named_properties decides about that.
# Never calls Python, so that the dict and its str stay what they are meanwhile.
cdef int64_t plain_properties(object tags, object keys, object properties, const uint8_t *unique,
                              int unique_size, uint8_t *out, int64_t capacity) noexcept
