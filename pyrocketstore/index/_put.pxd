"""Hashes of keys, positions in one index file, and putting keys into it, without the GIL."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from pyrocketstore._rocketstore cimport (
    RS_INDEX_ENTRY_SIZE,
    RS_INDEX_HASH_SLOT_SIZE,
    RS_INDEX_HEADER_SIZE,
    rs_find_byte,
    rs_index_file,
    rs_java_hash,
    rs_properties,
    rs_record,
)

cdef enum:
    KEY_SEPARATOR = 32       # a blank


cdef inline int32_t index_key_prefix(const uint8_t *topic, int64_t topic_size) noexcept nogil:
    """Java's hash of "topic#", from which `index_key_hash` continues."""
    return <int32_t>(<uint32_t>rs_java_hash(0, topic, topic_size) * 31 + c"#")


cdef inline int32_t index_hash(int32_t hashed) noexcept nogil:
    """Java's hash without its sign; -2**31 becomes 0."""
    if hashed >= 0:
        return hashed
    return 0 if hashed == -2147483647 - 1 else -hashed


cdef inline int32_t index_key_hash(
    int32_t prefix, const uint8_t *key, int64_t key_size
) noexcept nogil:
    """The index's hash of "topic#key": Java's, without its sign; -2**31 becomes 0."""
    return index_hash(rs_java_hash(prefix, key, key_size))


# The keys under which a record is indexed, before its first one: see `next_index_key`.
cdef struct index_keys:
    const uint8_t *key        # the current key
    int32_t size              # of the current key, bytes
    int32_t uniq_size         # of the unique key; -1: it is absent, or has been the current one
    const uint8_t *uniq_key
    const uint8_t *rest       # of KEYS, behind the current key
    const uint8_t *stop


cdef inline index_keys keys_of_text(
    const uint8_t *uniq_key, int32_t uniq_size, const uint8_t *keys, int32_t keys_size
) noexcept nogil:
    return index_keys(NULL, 0, uniq_size, uniq_key, keys, keys + max(<int32_t>0, keys_size))


cdef inline index_keys keys_of_record(
    const uint8_t *p, const rs_record *record, const rs_properties *properties
) noexcept nogil:
    """The keys of the record at `p`, whose properties were scanned."""
    cdef const uint8_t *text = p + record.properties_position
    return keys_of_text(
        text + properties.uniq_key.position,
        properties.uniq_key.size if properties.uniq_key.size > 0 else -1,
        text + properties.keys.position,
        properties.keys.size,
    )


cdef inline bint next_index_key(index_keys *k) noexcept nogil:
    """Move to the next key: the unique key, then each part of KEYS that is not empty.

    False behind the last one.
    """
    if k.uniq_size >= 0:
        k.key, k.size, k.uniq_size = k.uniq_key, k.uniq_size, -1
        return True
    while k.rest < k.stop and k.rest[0] == KEY_SEPARATOR:
        k.rest += 1
    k.key = k.rest
    k.size = <int32_t>rs_find_byte(k.rest, k.stop - k.rest, KEY_SEPARATOR)
    k.rest += k.size
    return k.size > 0


cdef inline int64_t slot_position(const rs_index_file *x, int32_t key_hash) noexcept nogil:
    """Position of a hash's slot in the file, bytes."""
    # Neither is negative, and 32 bits divide sooner than 64.
    cdef int64_t slot = <uint32_t>key_hash % <uint32_t>x.hash_slot_num
    return RS_INDEX_HEADER_SIZE + slot * RS_INDEX_HASH_SLOT_SIZE


cdef inline int64_t entry_position(int64_t hash_slot_num, int64_t number) noexcept nogil:
    """Position of an entry in the file, bytes."""
    return (
        RS_INDEX_HEADER_SIZE
        + hash_slot_num * RS_INDEX_HASH_SLOT_SIZE
        + number * RS_INDEX_ENTRY_SIZE
    )


# Allocates the chunks of [position, position + size), and at least `ahead` chunks; 0 or a negated
# errno.
cdef int confirm_chunks(
    rs_index_file *x, int64_t position, int64_t size, int64_t ahead
) noexcept nogil

# RS_OK; RS_FULL; RS_CLOSED when the file is not open for writing; or a negated errno.
cdef int put_hash(
    rs_index_file *x, int32_t key_hash, int64_t phy_offset, int64_t store_timestamp
) noexcept nogil

# Puts until `count` keys are in or `status` (as of put_hash) is not RS_OK; returns how many are in.
cdef int64_t put_hashes(
    rs_index_file *x,
    const int32_t *key_hashes,
    const int64_t *phy_offsets,
    const int64_t *store_timestamps,
    int64_t count,
    int *status,
) noexcept nogil
