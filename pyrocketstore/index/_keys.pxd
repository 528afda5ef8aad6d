"""Hashes of "topic#key"."""
from libc.stdint cimport int32_t

# The hash of a key that follows `prefix`, the hash of "topic#".
cdef int32_t hash_text(int32_t prefix, object text) except -1
cdef int32_t prefix_of(object topic) except? -1
# Hashes every key of a list or tuple.
cdef int hash_keys(int32_t prefix, object keys, int32_t *hashes) except -1
