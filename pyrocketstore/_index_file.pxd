"""IndexFile for compiled code: hashing and putting keys without the GIL."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore._env cimport EnvTable
from pyrocketstore._mapped_file cimport MappedFile
from pyrocketstore._rocketstore cimport (
    RS_INDEX_HASH_SLOT_SIZE,
    RS_INDEX_HEADER_SIZE,
    rs_index_file,
    rs_java_hash,
    rs_prefetch,
)


cdef inline int32_t index_key_prefix(const uint8_t *topic, int64_t topic_size) noexcept nogil:
    """Java's hash of "topic#", to go on from with `index_key_hash`."""
    return rs_java_hash(rs_java_hash(0, topic, topic_size), <const uint8_t *>b"#", 1)


cdef inline int32_t index_key_hash(
    int32_t prefix, const uint8_t *key, int64_t key_size
) noexcept nogil:
    """The index's hash of "topic#key": Java's, without its sign; -2**31 becomes 0."""
    cdef int32_t hashed = rs_java_hash(prefix, key, key_size)
    if hashed >= 0:
        return hashed
    return 0 if hashed == -2147483647 - 1 else -hashed


cdef inline void prefetch_hash(const rs_index_file *x, int32_t key_hash) noexcept nogil:
    """Asks for the slot that `put_hash` will write a little later."""
    if x.base != NULL:
        rs_prefetch(
            x.base + RS_INDEX_HEADER_SIZE + key_hash % x.hash_slot_num * RS_INDEX_HASH_SLOT_SIZE
        )


# RS_OK; RS_FULL; RS_CLOSED when the file is not open for writing; or a negated errno.
cdef int put_hash(
    rs_index_file *x, int32_t key_hash, int64_t phy_offset, int64_t store_timestamp
) noexcept nogil

# Puts until `count` are in or `status` (as of put_hash) is not RS_OK; gives how many are in.
cdef int64_t put_hashes(
    rs_index_file *x,
    const int32_t *key_hashes,
    const int64_t *phy_offsets,
    const int64_t *store_timestamps,
    int64_t count,
    int *status,
) noexcept nogil


cdef class IndexFile:
    cdef rs_index_file index
    cdef readonly MappedFile mapped_file
    cdef readonly str name
    cdef readonly str mode
    cdef readonly object path
    cdef readonly int64_t file_size
    cdef EnvTable env
    cdef bytes path_bytes
    cdef bint holding
    cdef bint available
    cdef int32_t flushed_count
    cdef int flush_errno

    cpdef open_for_writing(self)

    cdef int _allocate_chunks(self) except -1
    cdef int _preset(self, int64_t end_phy_offset, int64_t end_timestamp) except -1
    cdef int _take_header(self, bytes raw) except -1
    cdef object _put_error(self, int status)
    cdef int64_t _used(self, int32_t count) noexcept
