"""Hashes of keys, positions in one index file, and putting keys into it, without the GIL."""
from libc.stdint cimport int32_t, int64_t, uint32_t, uint8_t

from pyrocketstore._rocketstore cimport (
    RS_INDEX_ENTRY_SIZE,
    RS_INDEX_HASH_SLOT_SIZE,
    RS_INDEX_HEADER_SIZE,
    rs_env,
    rs_find_byte,
    rs_index_file,
    rs_java_hash,
    rs_load_be32,
    rs_load_be64,
    rs_prefetch,
    rs_properties,
    rs_record,
)
from pyrocketstore.system._env cimport EnvTable, kept_file

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


cdef enum:
    READ_SHORT = 1           # in index_reader.failed: the file ended too early


cdef struct index_reader:
    const uint8_t *base       # NULL: through pread
    const uint8_t *slots      # the slots in memory; NULL: those of the file
    const rs_env *env
    int fd
    kept_file *kept           # has `fd`; until `close_reader`
    int failed                # 0, a negated errno, or READ_SHORT
    int64_t failed_position
    int64_t last_position     # of the last read of an entry
    int64_t block_start       # bytes [block_start, block_end) of the file are in `block`
    int64_t block_end
    int64_t next_size         # of the next block
    uint8_t *block            # from malloc, until `close_reader`; NULL: none yet
    uint8_t buffer[20]


# The order of the times in one index file, as far as searches have checked it. Entries have the
# order of the log, which is the order of time unless a clock was set back.
cdef struct index_order:
    int32_t known             # entries 2 .. known - 1 ascend in time, none before the file's begin
    int32_t diff              # of the last one of them, seconds
    int32_t unordered         # 1: the entry `known` does not follow them


cdef struct index_walk:
    int64_t begin             # the query's window, ms
    int64_t end
    int64_t base_timestamp    # entries count seconds from here
    int64_t slot_num
    int32_t key_hash
    int32_t next_index        # 0: the chain has ended
    int32_t limit             # entries that may be read: numbers 1 .. limit
    int32_t every             # 1: follow the whole chain, allow for clamped times
    int32_t low               # an entry below this number ends the chain
    int64_t steps             # entries that may still be looked at; 0 pauses the walk


cdef struct index_hit:
    int64_t key_index
    int64_t phy_offset


# A growing array; `rows` comes from malloc.
cdef struct index_hits:
    index_hit *rows
    int64_t count
    int64_t capacity


cdef inline void prefetch_hash_of(
    const rs_index_file *x, const uint8_t *base, int32_t key_hash
) noexcept nogil:
    """Prefetch the slot of a hash in a file that is mapped at `base`."""
    rs_prefetch(base + slot_position(x, key_hash))


cdef inline int32_t newest_entry(
    const rs_index_file *x, const uint8_t *base, int32_t key_hash
) noexcept nogil:
    """Return the number in a hash's slot, and prefetch its entry; 0 for no entry. A hint."""
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
    """Return the physical offset in an entry, -1 for number 0. A hint."""
    if number == 0:
        return -1
    return rs_load_be64(base + entry_position(x.hash_slot_num, number) + 4)


# The bytes of a slot or an entry, valid until the next call; NULL with r.failed.
cdef const uint8_t *load_entry(index_reader *r, int64_t position, int64_t size) noexcept nogil

# As load_entry, for entries in ascending order up to the byte `stop`.
cdef const uint8_t *load_next(
    index_reader *r, int64_t position, int64_t size, int64_t stop
) noexcept nogil
cdef void begin_reads(index_reader *r) noexcept nogil
cdef void end_reads(index_reader *r) noexcept nogil

# The numbers of the entries of an `index_order` whose times may be in the window: [low, high], and
# low > high for none. RS_OK, or -1 with r.failed.
cdef int numbers_in_window(
    const rs_index_file *x, index_reader *r, const index_walk *w, int32_t known,
    int32_t *low, int32_t *high
) noexcept nogil
# The greatest number in [low, high] whose entry has the key's hash, within `limit` entries from
# `high` down; 0: there is none; -1 with r.failed; -2: none within the limit.
cdef int32_t number_of_key(
    const rs_index_file *x, index_reader *r, const index_walk *w, int32_t low, int32_t high,
    int64_t limit
) noexcept nogil

# Finds the newest entry of the key's slot; RS_OK, or -1 with r.failed.
cdef int start_walk(const rs_index_file *x, index_reader *r, index_walk *w) noexcept nogil

# Gathers up to `room` hits, newest first, from w.next_index on, in w.steps steps at most; -1 with
# r.failed.
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


cdef class SlotTable:
    # The bytes of the slots, as in the file.
    cdef uint8_t *base
    cdef readonly int64_t hash_slot_num
    cdef readonly int32_t slot_count
    cdef readonly uint32_t entries_crc
    cdef readonly bint valid

    cdef int _fill(self, EnvTable env, int fd, object path, int32_t index_count) except -1
    cdef int _write(self, EnvTable env, int fd, object path) except -1


# The CRC of entries that follow in one another in memory, after those that `crc` covers.
cdef uint32_t crc_of_entries(uint32_t crc, const uint8_t *first, int64_t count) noexcept nogil


# The hash of a key that follows `prefix`, the hash of "topic#".
cdef int32_t hash_text(int32_t prefix, object text) except -1
cdef int32_t prefix_of(object topic) except? -1
# Hashes every key of a list or tuple.
cdef int hash_keys(int32_t prefix, object keys, int32_t *hashes) except -1
