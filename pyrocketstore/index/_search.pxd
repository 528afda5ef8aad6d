"""Search of one index file for compiled code, without the GIL."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore.index._put cimport entry_position, slot_position
from pyrocketstore.system._kept_files cimport kept_file
from pyrocketstore._rocketstore cimport (
    RS_INDEX_ENTRY_SIZE,
    rs_env,
    rs_index_file,
    rs_load_be32,
    rs_load_be64,
    rs_prefetch,
)

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
