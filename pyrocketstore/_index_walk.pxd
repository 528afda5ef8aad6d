"""One index file for compiled code: hashing, putting and selecting keys without the GIL."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from pyrocketstore._rocketstore cimport (
    RS_INDEX_ENTRY_SIZE,
    RS_INDEX_HASH_SLOT_SIZE,
    RS_INDEX_HEADER_SIZE,
    rs_env,
    rs_index_file,
    rs_java_hash,
    rs_load_be32,
    rs_load_be64,
    rs_prefetch,
)

cdef enum:
    READ_SHORT = 1           # in index_reader.failed: the file ended too early


cdef struct index_reader:
    const uint8_t *base       # NULL: through pread
    const rs_env *env
    int fd
    int failed                # 0, a negated errno, or READ_SHORT
    int64_t failed_position
    uint8_t buffer[20]


cdef struct index_walk:
    int64_t begin             # the query's window, ms
    int64_t end
    int64_t base_timestamp    # entries count seconds from here
    int64_t slot_num
    int32_t key_hash
    int32_t next_index        # 0: the chain has ended
    int32_t limit             # entries that may be read: numbers 1 .. limit
    int32_t every             # 1: do not end the chain at the window, allow for clamped times


cdef struct index_hit:
    int64_t key_index
    int64_t phy_offset


# Rows that grow; `rows` is malloc's.
cdef struct index_hits:
    index_hit *rows
    int64_t count
    int64_t capacity


cdef inline int32_t index_key_prefix(const uint8_t *topic, int64_t topic_size) noexcept nogil:
    """Java's hash of "topic#", to go on from with `index_key_hash`."""
    return rs_java_hash(rs_java_hash(0, topic, topic_size), <const uint8_t *>b"#", 1)


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


cdef inline int64_t slot_position(const rs_index_file *x, int32_t key_hash) noexcept nogil:
    """Where a hash's slot lies in the file, bytes."""
    # Neither is negative, and 32 bits divide sooner than 64.
    cdef int64_t slot = <uint32_t>key_hash % <uint32_t>x.hash_slot_num
    return RS_INDEX_HEADER_SIZE + slot * RS_INDEX_HASH_SLOT_SIZE


cdef inline int64_t entry_position(int64_t hash_slot_num, int64_t number) noexcept nogil:
    """Where an entry lies in the file, bytes."""
    return (
        RS_INDEX_HEADER_SIZE
        + hash_slot_num * RS_INDEX_HASH_SLOT_SIZE
        + number * RS_INDEX_ENTRY_SIZE
    )


cdef inline void prefetch_hash_of(
    const rs_index_file *x, const uint8_t *base, int32_t key_hash
) noexcept nogil:
    """Asks for the slot of a hash in a file that is mapped at `base`."""
    rs_prefetch(base + slot_position(x, key_hash))


cdef inline int32_t newest_entry(
    const rs_index_file *x, const uint8_t *base, int32_t key_hash
) noexcept nogil:
    """The number in a hash's slot, whose entry is asked for; 0 where it names none. A hint."""
    cdef int32_t number = rs_load_be32(base + slot_position(x, key_hash))
    cdef const uint8_t *entry
    if number <= 0 or number >= x.index_num:
        return 0
    entry = base + entry_position(x.hash_slot_num, number)
    rs_prefetch(entry)
    rs_prefetch(entry + RS_INDEX_ENTRY_SIZE - 1)
    return number


cdef inline int64_t phy_offset_of(
    const rs_index_file *x, const uint8_t *base, int32_t number
) noexcept nogil:
    """The place that an entry names, -1 for number 0. A hint."""
    if number == 0:
        return -1
    return rs_load_be64(base + entry_position(x.hash_slot_num, number) + 4)


# Makes the chunks of [position, position + size) safe to store to, and `ahead` chunks in all; 0 or
# a negated errno.
cdef int confirm_chunks(
    rs_index_file *x, int64_t position, int64_t size, int64_t ahead
) noexcept nogil

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

# A piece of the file, at most 20 bytes, until the next call; NULL with r.failed.
cdef const uint8_t *load_entry(index_reader *r, int64_t position, int64_t size) noexcept nogil

# Finds the newest entry of the key's slot; RS_OK, or -1 with r.failed.
cdef int start_walk(const rs_index_file *x, index_reader *r, index_walk *w) noexcept nogil

# Gathers up to `room` hits, newest first, from w.next_index on; -1 with r.failed.
cdef int64_t walk_chain(
    index_reader *r, index_walk *w, int64_t room, int64_t *phy_offsets, int64_t *times
) noexcept nogil

# The hits of many hashes, at most `max_num` of each, newest first; RS_OK, RS_NO_MEMORY, or -1 with
# r.failed. Hashes below 0 have none.
cdef int select_many(
    const rs_index_file *x,
    index_reader *r,
    const int32_t *key_hashes,
    int64_t count,
    int64_t max_num,
    int64_t begin,
    int64_t end,
    index_hits *hits,
) noexcept nogil
