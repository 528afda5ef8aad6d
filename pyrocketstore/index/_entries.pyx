"""The bytes of one index file: put keys, search them, and derive its slots from its entries.

A search may run while one thread puts. An entry is complete before its slot names it, and a slot
names it before the count covers it: a search relies on this order. ChainWalk checks the chains.
"""
import numpy as np

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport (
    INT64_MAX,
    INT64_MIN,
    int32_t,
    int64_t,
    uint16_t,
    uint32_t,
    uint64_t,
    uint8_t,
)
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memset
from posix.fcntl cimport O_RDONLY, O_RDWR

from pyrocketstore._rocketstore cimport (
    RS_CLOSED,
    RS_FULL,
    RS_INDEX_CHUNK,
    RS_INDEX_ENTRY_SIZE,
    RS_INDEX_HASH_SLOT_SIZE,
    RS_INDEX_HEADER_SIZE,
    RS_NO_MEMORY,
    RS_OK,
    rs_env,
    rs_index_file,
    rs_java_hash_latin1,
    rs_java_hash_utf16,
    rs_java_hash_utf32,
    rs_load_acquire,
    rs_load_acquire32,
    rs_load_be32,
    rs_load_be32_acquire,
    rs_load_be64,
    rs_prefetch,
    rs_prefetch_read,
    rs_store_be32,
    rs_store_be32_release,
    rs_store_be64,
    rs_store_release,
    rs_store_release32,
)
from pyrocketstore.files._mapped_file cimport confirm_range
from pyrocketstore.record._record cimport crc32_of
from pyrocketstore.system._env cimport EnvTable

from pyrocketstore.errors import StoreCorruptionError

cdef enum:
    AHEAD = 64               # keys that a batch looks ahead
    MAX_GROWTH = 32          # chunks: entries are allocated at most 2 MiB ahead
    PAGE_SLOTS = 1024        # slots in a page of memory


cdef int confirm_chunks(
    rs_index_file *x, int64_t position, int64_t size, int64_t ahead
) noexcept nogil:
    """Allocate the chunks of [position, position + size), and at least `ahead` chunks.

    In a file that this process made, several chunks at once are filled with zeros too.
    """
    cdef int64_t chunk = position // RS_INDEX_CHUNK
    cdef int64_t last = (position + size - 1) // RS_INDEX_CHUNK
    cdef int64_t size_of_file = entry_position(x.hash_slot_num, x.index_num)
    cdef int64_t chunk_count = (size_of_file + RS_INDEX_CHUNK - 1) // RS_INDEX_CHUNK
    cdef int64_t end
    cdef int64_t stop
    cdef int result
    while chunk <= last:
        if x.confirmed_chunks[chunk]:
            chunk += 1
            continue
        end = chunk + 1
        # Up to the next chunk that is allocated already: it may hold data.
        while (end <= last or end < chunk + ahead) and end < chunk_count:
            if x.confirmed_chunks[end]:
                break
            end += 1
        stop = end * RS_INDEX_CHUNK
        if stop > size_of_file:
            stop = size_of_file
        result = confirm_range(x.file, chunk * RS_INDEX_CHUNK, stop - chunk * RS_INDEX_CHUNK,
                               x.file.zero_fill and end - chunk > 1)
        if result < 0:
            return result
        memset(x.confirmed_chunks + chunk, 1, <size_t>(end - chunk))
        chunk = end
    return 0


cdef void _confirm_slots(rs_index_file *x, int64_t count) noexcept nogil:
    """Allocate all slots of a new file at once, before puts of many keys that need most pages.

    An error is left to the puts, which meet it again.
    """
    cdef int64_t size = RS_INDEX_HEADER_SIZE + x.hash_slot_num * RS_INDEX_HASH_SLOT_SIZE
    if x.file.zero_fill and count >= x.hash_slot_num // PAGE_SLOTS:
        confirm_chunks(x, 0, size, size // RS_INDEX_CHUNK + 1)


cdef inline bint _is_confirmed(
    const rs_index_file *x, uint64_t slot, uint64_t entry
) noexcept nogil:
    """Whether the header, one slot and one entry are allocated."""
    cdef const uint8_t *chunks = x.confirmed_chunks
    return (
        chunks[0]
        & chunks[slot // RS_INDEX_CHUNK]
        & chunks[entry // RS_INDEX_CHUNK]
        & chunks[(entry + RS_INDEX_ENTRY_SIZE - 1) // RS_INDEX_CHUNK]
    )


cdef int _confirm_put(rs_index_file *x, int64_t slot, int64_t entry) noexcept nogil:
    """Allocate the header, one slot and one entry."""
    cdef int64_t grown
    cdef int64_t last
    cdef int result
    if not x.confirmed_chunks[0]:
        result = confirm_chunks(x, 0, RS_INDEX_HEADER_SIZE, 1)
        if result < 0:
            return result
    if not x.confirmed_chunks[slot // RS_INDEX_CHUNK]:
        result = confirm_chunks(x, slot, RS_INDEX_HASH_SLOT_SIZE, 1)
        if result < 0:
            return result
    if (
        not x.confirmed_chunks[entry // RS_INDEX_CHUNK]
        or not x.confirmed_chunks[(entry + RS_INDEX_ENTRY_SIZE - 1) // RS_INDEX_CHUNK]
    ):
        # Allocation doubles, so that a small file stays small.
        grown = x.index_count * <int64_t>RS_INDEX_ENTRY_SIZE // RS_INDEX_CHUNK
        if grown >= MAX_GROWTH:
            # Up to a multiple of 2 MiB.
            last = (entry + RS_INDEX_ENTRY_SIZE - 1) // RS_INDEX_CHUNK
            grown = MAX_GROWTH - last % MAX_GROWTH
        grown = 1 if grown < 1 else grown
        return confirm_chunks(x, entry, RS_INDEX_ENTRY_SIZE, grown)
    return 0


cdef inline int32_t _time_diff(int64_t begin_timestamp, int64_t store_timestamp) noexcept nogil:
    """Seconds since the header's begin, clamped as Java clamps them."""
    cdef int64_t diff
    if begin_timestamp <= 0:
        return 0
    diff = <int64_t>(<uint64_t>store_timestamp - <uint64_t>begin_timestamp) // 1000
    return 0 if diff < 0 else 2147483647 if diff > 2147483647 else <int32_t>diff


cdef inline int _put_at(
    rs_index_file *x, int64_t slot, int32_t key_hash, int64_t phy_offset, int64_t store_timestamp
) noexcept nogil:
    cdef int32_t number = x.index_count
    cdef int64_t entry
    cdef int32_t previous
    cdef int result
    cdef uint8_t *p
    if number >= x.index_num:
        return RS_FULL
    entry = entry_position(x.hash_slot_num, number)
    if not _is_confirmed(x, slot, entry):
        result = _confirm_put(x, slot, entry)
        if result < 0:
            return result
    previous = rs_load_be32(x.base + slot)
    if previous <= 0 or previous > number:
        previous = 0
    p = x.base + entry
    rs_store_be32(p, key_hash)
    rs_store_be64(p + 4, phy_offset)
    # The first entry of a rolled file keeps its distance to the previous file's end: the header's
    # begin is replaced only below.
    rs_store_be32(p + 12, _time_diff(x.begin_timestamp, store_timestamp))
    rs_store_be32(p + 16, previous)
    if number <= 1:
        # A search that finds the entry by its slot needs it.
        rs_store_release(&x.begin_timestamp, store_timestamp)
    rs_store_be32_release(x.base + slot, number)
    if number <= 1:
        x.begin_phy_offset = phy_offset
        rs_store_be64(x.base, store_timestamp)
        rs_store_be64(x.base + 16, phy_offset)
    if previous == 0:
        x.hash_slot_count = <int32_t>(<uint32_t>x.hash_slot_count + 1)
        rs_store_be32(x.base + 32, x.hash_slot_count)
    x.end_phy_offset = phy_offset
    x.end_timestamp = store_timestamp
    rs_store_be64(x.base + 8, store_timestamp)
    rs_store_be64(x.base + 24, phy_offset)
    rs_store_be32(x.base + 36, number + 1)
    rs_store_release32(&x.index_count, number + 1)
    return RS_OK


cdef int put_hash(
    rs_index_file *x, int32_t key_hash, int64_t phy_offset, int64_t store_timestamp
) noexcept nogil:
    """Put one key: store its entry, its slot and the header fields."""
    if x.index_count >= x.index_num:
        return RS_FULL
    if x.base == NULL:
        return RS_CLOSED
    return _put_at(x, slot_position(x, key_hash), key_hash, phy_offset, store_timestamp)


cdef int64_t put_hashes(
    rs_index_file *x,
    const int32_t *key_hashes,
    const int64_t *phy_offsets,
    const int64_t *store_timestamps,
    int64_t count,
    int *status,
) noexcept nogil:
    """Put many keys. Slots are random memory: each is prefetched AHEAD puts before its use."""
    cdef int64_t[AHEAD] slots
    cdef int64_t i
    cdef int64_t slot
    status[0] = RS_OK
    if count <= 0:
        return 0
    if x.base == NULL:
        status[0] = RS_FULL if x.index_count >= x.index_num else RS_CLOSED
        return 0
    _confirm_slots(x, count)
    for i in range(AHEAD if count > AHEAD else count):
        slots[i] = slot_position(x, key_hashes[i])
        rs_prefetch(x.base + slots[i])
    for i in range(count):
        slot = slots[i % AHEAD]
        if i + AHEAD < count:
            slots[i % AHEAD] = slot_position(x, key_hashes[i + AHEAD])
            rs_prefetch(x.base + slots[i % AHEAD])
        status[0] = _put_at(x, slot, key_hashes[i], phy_offsets[i], store_timestamps[i])
        if status[0] != RS_OK:
            return i
    return count


# Search one index file: follow the chain of a key's slot from the newest entry to the oldest.
#
# Any thread may search while one thread puts. Every number read from the file is checked
# against the limits of the file before it is followed.

cdef enum:
    # Of a file that is not mapped, bytes: blocks grow while the entries of a chain are near.
    NEAR_BYTES = 32768
    FIRST_BLOCK = 512
    MAX_BLOCK = 65536
    MANY = 64                # keys whose slots and entries are prefetched together


cdef int64_t MAX_TIME = <int64_t>1 << 62


cdef void begin_reads(index_reader *r) noexcept nogil:
    r.block = NULL
    r.block_start = r.block_end = r.next_size = 0
    r.last_position = -1


cdef void end_reads(index_reader *r) noexcept nogil:
    free(r.block)
    begin_reads(r)


cdef inline bint _has_block(index_reader *r, int64_t position, int64_t size) noexcept nogil:
    return r.block_start <= position and position + size <= r.block_end


cdef bint _read_block(index_reader *r, int64_t begin, int64_t size) noexcept nogil:
    # False: the block could not be read, or not all of it; the caller reads what it needs.
    r.block_start = r.block_end = 0
    if r.block == NULL:
        r.block = <uint8_t *>malloc(MAX_BLOCK)
        if r.block == NULL:
            return False
    if r.env.pread(r.fd, r.block, size, begin) != size:
        return False
    r.block_start, r.block_end = begin, begin + size
    return True


cdef const uint8_t *_read_entry(index_reader *r, int64_t position, int64_t size) noexcept nogil:
    # One entry; where the previous one was a little behind it, a block that ends with it: chains
    # lead to lower positions.
    cdef int64_t back = r.last_position - position
    cdef int64_t got
    r.last_position = position
    if size == RS_INDEX_ENTRY_SIZE and 0 < back <= NEAR_BYTES:
        r.next_size = min(2 * max(r.next_size, <int64_t>FIRST_BLOCK), <int64_t>MAX_BLOCK)
        got = min(r.next_size, position + size)
        if _read_block(r, position + size - got, got):
            return r.block + (position - r.block_start)
    else:
        r.next_size = 0
    got = r.env.pread(r.fd, r.buffer, size, position)
    if got != size:
        r.failed = <int>got if got < 0 else READ_SHORT
        r.failed_position = position
        return NULL
    return r.buffer


cdef const uint8_t *load_entry(index_reader *r, int64_t position, int64_t size) noexcept nogil:
    if r.base != NULL:
        return r.base + position
    if _has_block(r, position, size):
        return r.block + (position - r.block_start)
    return _read_entry(r, position, size)


cdef const uint8_t *load_next(
    index_reader *r, int64_t position, int64_t size, int64_t stop
) noexcept nogil:
    if r.base == NULL and not _has_block(r, position, size):
        if not _read_block(r, position, min(stop - position, <int64_t>MAX_BLOCK)):
            return _read_entry(r, position, size)
    return load_entry(r, position, size)


cdef int start_walk(const rs_index_file *x, index_reader *r, index_walk *w) noexcept nogil:
    """Find the newest entry of the key's slot; RS_OK, or -1 with r.failed."""
    cdef int32_t number
    cdef int32_t count
    cdef int64_t slot = slot_position(x, w.key_hash)
    cdef const uint8_t *p
    if r.slots != NULL:
        p = r.slots + (slot - RS_INDEX_HEADER_SIZE)
    else:
        p = load_entry(r, slot, RS_INDEX_HASH_SLOT_SIZE)
    w.next_index = 0
    w.low = 1
    w.steps = INT64_MAX
    if p == NULL:
        return -1
    # The slot first: a count read later covers every entry that the slot may name, or is one short.
    number = rs_load_be32_acquire(p) if r.base != NULL else rs_load_be32(p)
    count = rs_load_acquire32(&x.index_count)
    w.limit = count if count < x.index_num else <int32_t>(x.index_num - 1)
    w.base_timestamp = rs_load_acquire(&x.begin_timestamp)
    w.slot_num = x.hash_slot_num
    while w.every and r.base == NULL and w.limit < number < x.index_num:
        # Put by the owner of the file since the header was read: older entries follow in the chain.
        p = load_entry(r, entry_position(w.slot_num, number), RS_INDEX_ENTRY_SIZE)
        if p == NULL:
            return -1
        number = rs_load_be32(p + 16) if rs_load_be32(p + 16) < number else 0
    if 0 < number <= w.limit and (count > 1 or w.every):
        w.next_index = number
    return RS_OK


cdef bint _in_window(
    const index_walk *w, int32_t number, int32_t diff, int64_t *time
) noexcept nogil:
    """Whether an entry may be in the window. `time` is its time, at most 999 ms too early."""
    time[0] = <int64_t>(<uint64_t>w.base_timestamp + <uint64_t>(<int64_t>diff * 1000))
    if not w.every:
        return w.begin <= time[0] <= w.end
    if number == 1:
        # Its seconds may count from the previous file's end; the header knows its time exactly.
        time[0] = w.base_timestamp
        return w.begin <= time[0] <= w.end
    if diff == 0:
        # A clock set back gives negative distances, which are kept as 0: its time is unknown. A
        # file that begins at no real time (its first record is damaged) keeps them all as 0.
        return w.base_timestamp <= 0 or w.base_timestamp >= w.begin - 999
    return time[0] >= w.begin - 999 and time[0] <= w.end


cdef int64_t walk_chain(
    index_reader *r, index_walk *w, int64_t room, int64_t *phy_offsets, int64_t *times
) noexcept nogil:
    """Gather up to `room` hits, newest first, from w.next_index on; -1 with r.failed."""
    cdef int64_t found = 0
    cdef int32_t number
    cdef int32_t previous
    cdef int32_t diff
    cdef int64_t time = 0
    cdef const uint8_t *p
    while w.next_index > 0 and found < room and w.steps > 0:
        w.steps -= 1
        number = w.next_index
        p = load_entry(r, entry_position(w.slot_num, number), RS_INDEX_ENTRY_SIZE)
        if p == NULL:
            return -1
        diff = rs_load_be32(p + 12)
        if diff < 0:
            w.next_index = 0
            break
        if _in_window(w, number, diff, &time) and rs_load_be32(p) == w.key_hash:
            phy_offsets[found] = rs_load_be64(p + 4)
            times[found] = time
            found += 1
        previous = rs_load_be32(p + 16)
        # Entry numbers fall along a chain: a damaged chain ends.
        if previous < w.low or previous >= number or (not w.every and time < w.begin):
            previous = 0
        w.next_index = previous
    return found


cdef inline int64_t _seconds(
    const rs_index_file *x, index_reader *r, int32_t number
) noexcept nogil:
    # Of an entry from the file's begin on; -1 with r.failed.
    cdef const uint8_t *p = load_entry(
        r, entry_position(x.hash_slot_num, number), RS_INDEX_ENTRY_SIZE
    )
    return -1 if p == NULL else max(rs_load_be32(p + 12), <int32_t>0)


cdef int _first_at(
    const rs_index_file *x, index_reader *r, int64_t seconds, int32_t known, int32_t *first
) noexcept nogil:
    # The first of the entries 2 .. known - 1 at that time or later; `known` without one.
    cdef int32_t low = 2
    cdef int32_t high = known
    cdef int32_t middle
    cdef int64_t found
    while low < high:
        middle = low + (high - low) // 2
        found = _seconds(x, r, middle)
        if found < 0:
            return -1
        if found >= seconds:
            high = middle
        else:
            low = middle + 1
    first[0] = low
    return RS_OK


cdef inline int64_t _seconds_from(int64_t base, int64_t time) noexcept nogil:
    # The smallest number of seconds with base + 1000 * seconds >= time, or INT64_MIN where even
    # 0 is after it. `base` is positive.
    if time <= base:
        return INT64_MIN
    return (min(time, MAX_TIME) - base + 999) // 1000


cdef int numbers_in_window(
    const rs_index_file *x, index_reader *r, const index_walk *w, int32_t known,
    int32_t *low, int32_t *high
) noexcept nogil:
    cdef int32_t after = known
    low[0] = 2
    if _first_at(x, r, _seconds_from(w.base_timestamp, w.begin - 999), known, low) != RS_OK:
        return -1
    if w.end < INT64_MAX and _first_at(
        x, r, _seconds_from(w.base_timestamp, w.end + 1), known, &after
    ) != RS_OK:
        return -1
    high[0] = after - 1
    return RS_OK


cdef int32_t number_of_key(
    const rs_index_file *x, index_reader *r, const index_walk *w, int32_t low, int32_t high,
    int64_t limit
) noexcept nogil:
    cdef int32_t number = high
    cdef const uint8_t *p
    while number >= low:
        if high - number >= limit:
            return -2
        p = load_entry(r, entry_position(x.hash_slot_num, number), RS_INDEX_ENTRY_SIZE)
        if p == NULL:
            return -1
        if rs_load_be32(p) == w.key_hash:
            return number
        number -= 1
    return 0


cdef int _add_hits(
    index_hits *hits, int64_t key_index, const int64_t *phy_offsets, int64_t count
) noexcept nogil:
    cdef int64_t capacity = hits.capacity
    cdef int64_t i
    cdef index_hit *rows
    if hits.count + count > capacity:
        capacity = 2 * capacity + count + MANY
        rows = <index_hit *>realloc(hits.rows, <size_t>capacity * sizeof(index_hit))
        if rows == NULL:
            return RS_NO_MEMORY
        hits.rows = rows
        hits.capacity = capacity
    for i in range(count):
        hits.rows[hits.count].key_index = key_index
        hits.rows[hits.count].phy_offset = phy_offsets[i]
        hits.count += 1
    return RS_OK


cdef int _select_one(
    const rs_index_file *x, index_reader *r, index_walk *w, int64_t key_index, int64_t max_num,
    index_hits *hits,
) noexcept nogil:
    cdef int64_t[MANY] phy_offsets
    cdef int64_t[MANY] times
    cdef int64_t left = max_num
    cdef int64_t found
    if start_walk(x, r, w) != RS_OK:
        return -1
    while w.next_index > 0 and left > 0:
        found = walk_chain(r, w, left if left < MANY else MANY, phy_offsets, times)
        if found < 0:
            return -1
        if found > 0 and _add_hits(hits, key_index, phy_offsets, found) != RS_OK:
            return RS_NO_MEMORY
        left -= found
    return RS_OK


cdef int select_many(
    const rs_index_file *x,
    index_reader *r,
    const int32_t *key_hashes,
    int64_t count,
    int64_t max_num,
    int64_t begin,
    int64_t end,
    index_hits *hits,
) noexcept nogil:
    cdef index_walk w
    cdef int64_t first = 0
    cdef int64_t stop, i
    cdef int status
    w.begin = begin
    w.end = end
    w.every = 0
    while first < count:
        stop = first + MANY if first + MANY < count else count
        if r.base != NULL:
            # Slots and entries are random memory: all are prefetched before the first is read.
            for i in range(first, stop):
                if key_hashes[i] >= 0:
                    prefetch_hash_of(x, r.base, key_hashes[i])
            for i in range(first, stop):
                if key_hashes[i] >= 0:
                    newest_entry(x, r.base, key_hashes[i])
        for i in range(first, stop):
            if key_hashes[i] >= 0:
                w.key_hash = key_hashes[i]
                status = _select_one(x, r, &w, i, max_num, hits)
                if status != RS_OK:
                    return status
        first = stop
    return RS_OK


# The slots of an index file, derived from its entries.
#
# Entries are appended and never changed, so that an fsync makes them durable for good. A slot
# changes with each key: after a power cut it may name an entry that the device lacks.

cdef enum:
    READ_ENTRIES = 3276      # entries that one pread reads: 64 KiB stay in the processor's cache
    BLOCK = 4096             # bytes of slots that are compared with the file, and written


cdef uint32_t crc_of_entries(uint32_t crc, const uint8_t *first, int64_t count) noexcept nogil:
    return crc32_of(crc, first, <size_t>(count * RS_INDEX_ENTRY_SIZE))


cdef int64_t _pread_all(
    const rs_env *env, int fd, uint8_t *target, int64_t size, int64_t position
) noexcept nogil:
    # The bytes read, fewer only at the end of the file; or a negated errno.
    cdef int64_t done = 0
    cdef int64_t got
    while done < size:
        got = env.pread(fd, target + done, size - done, position + done)
        if got < 0:
            return got
        if got == 0:
            break
        done += got
    return done


cdef int32_t _take_entries(
    uint8_t *slots, uint32_t hash_slot_num, const uint8_t *entry, int32_t number, int64_t count,
    int32_t *slot_count,
) noexcept nogil:
    # Has the slots name `count` entries, the first of which is `number`. Returns the number of the
    # first one with a hash that no key has; 0: none.
    cdef int32_t key_hash
    cdef int32_t found = 0
    cdef int64_t i
    cdef uint8_t *slot
    for i in range(count):
        key_hash = rs_load_be32(entry)
        if key_hash < 0:
            return number
        slot = slots + <int64_t>(<uint32_t>key_hash % hash_slot_num) * RS_INDEX_HASH_SLOT_SIZE
        found += rs_load_be32(slot) == 0
        rs_store_be32(slot, number)
        number += 1
        entry += RS_INDEX_ENTRY_SIZE
    slot_count[0] += found
    return 0


@cython.final
@cython.auto_pickle(False)
cdef class SlotTable:
    """The slots that the first entries of an index file need: each names the newest of its keys.

    Parameters
    ----------
    env : EnvTable
    path : str, the file
    hash_slot_num : int, slots of the file
    index_count : int, number of the entry after the last one that is read

    `entries_crc` is the CRC of these entries' bytes, `slot_count` the number of slots in use.
    `valid` is False if the file is too short, or an entry has a hash that no key has.

    Raises StoreIOError.
    """

    def __cinit__(
        self, EnvTable env not None, object path, int64_t hash_slot_num, int32_t index_count
    ):
        if not 1 <= hash_slot_num <= 2147483647:
            raise ValueError(f"{hash_slot_num} slots")
        self.hash_slot_num = hash_slot_num
        self.base = <uint8_t *>calloc(<size_t>hash_slot_num, RS_INDEX_HASH_SLOT_SIZE)
        if self.base == NULL:
            raise MemoryError()
        cdef int fd = env.open(path, O_RDONLY)
        try:
            self._fill(env, fd, path, index_count)
        finally:
            env.close(fd, path)

    def __dealloc__(self):
        free(self.base)

    cdef int _fill(self, EnvTable env, int fd, object path, int32_t index_count) except -1:
        cdef uint8_t[READ_ENTRIES * RS_INDEX_ENTRY_SIZE] buffer
        cdef const rs_env *table = &env.table
        cdef int32_t number = 1
        cdef int32_t wrong = 0
        cdef int64_t count, size
        cdef int64_t got = 0
        cdef int64_t at = 0
        with nogil:
            while number < index_count and wrong == 0:
                count = min(<int64_t>READ_ENTRIES, <int64_t>(index_count - number))
                size = count * RS_INDEX_ENTRY_SIZE
                at = entry_position(self.hash_slot_num, number)
                got = _pread_all(table, fd, buffer, size, at)
                if got < size:
                    break
                self.entries_crc = crc_of_entries(self.entries_crc, buffer, count)
                wrong = _take_entries(self.base, <uint32_t>self.hash_slot_num, buffer, number,
                                      count, &self.slot_count)
                number += <int32_t>count
        if got < 0:
            env.check(<int>got, "pread", path, at)
        self.valid = number >= index_count and wrong == 0
        return 0

    def write_to(self, EnvTable env not None, object path) -> None:
        """Write the slots that differ from those of the file, block by block.

        Raises StoreIOError; StoreCorruptionError when the file is too short.
        """
        cdef int fd = env.open(path, O_RDWR)
        try:
            self._write(env, fd, path)
        finally:
            env.close(fd, path)

    cdef int _write(self, EnvTable env, int fd, object path) except -1:
        cdef uint8_t[BLOCK] buffer
        cdef const rs_env *table = &env.table
        cdef int64_t total = self.hash_slot_num * RS_INDEX_HASH_SLOT_SIZE
        cdef int64_t at = 0
        cdef int64_t size
        cdef int64_t got
        while at < total:
            with nogil:
                while True:
                    size = min(<int64_t>BLOCK, total - at)
                    got = _pread_all(table, fd, buffer, size, RS_INDEX_HEADER_SIZE + at)
                    if got < size or memcmp(buffer, self.base + at, <size_t>size) != 0:
                        break
                    at += size
                    if at >= total:
                        return 0
            if got < 0:
                env.check(<int>got, "pread", path, RS_INDEX_HEADER_SIZE + at)
            if got < size:
                raise StoreCorruptionError(path, RS_INDEX_HEADER_SIZE + at, "the file ends here")
            env.pwrite_all(fd, self.base[at:at + size], RS_INDEX_HEADER_SIZE + at, path)
            at += size
        return 0

    def read(self, int64_t position, int64_t size) -> bytes:
        """Return bytes of the slots, from `position` of the first slot on."""
        cdef int64_t total = self.hash_slot_num * RS_INDEX_HASH_SLOT_SIZE
        if position < 0 or size < 0 or size > total - position:
            raise ValueError(f"{size} bytes at {position} of {self.hash_slot_num} slots")
        return self.base[position:position + size]


# Hash "topic#key" as the index does, of str objects without encoding them as UTF-8.

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


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class ChainWalk:
    """Replays the slots of one index file while its entries are read in order.

    Entries marked as bad are skipped, and any entry may name them.
    """
    cdef int32_t[::1] newest        # by slot: the last valid entry
    cdef uint8_t[::1] bad           # one bit an entry
    cdef int64_t slots
    cdef int64_t limit

    def __cinit__(self, int64_t hash_slot_num, int64_t index_count):
        if not (1 <= hash_slot_num <= 0x7FFFFFFF and 0 <= index_count <= 0x7FFFFFFF):
            raise ValueError(f"{hash_slot_num} slots and {index_count} entries: impossible")
        self.slots = hash_slot_num
        self.limit = index_count
        self.newest = np.zeros(hash_slot_num, np.int32)
        self.bad = np.zeros(index_count // 8 + 1, np.uint8)

    cdef inline bint is_bad(self, int64_t number) noexcept nogil:
        return (self.bad[number >> 3] >> (number & 7)) & 1

    cdef inline void mark_one(self, int64_t number) noexcept nogil:
        self.bad[number >> 3] |= <uint8_t>(1 << (number & 7))

    def mark(self, const int64_t[::1] numbers not None):
        """Mark entries as bad."""
        cdef Py_ssize_t i
        for i in range(numbers.shape[0]):
            if 0 <= numbers[i] < self.limit:
                self.mark_one(numbers[i])

    def entries(self, const uint8_t[::1] raw not None, int64_t first):
        """Check consecutive entries; `first` is the number of the first one.

        Returns int64[n]: numbers of the entries with a wrong predecessor.
        """
        cdef int64_t count = raw.shape[0] // RS_INDEX_ENTRY_SIZE
        cdef int64_t[::1] found = np.empty(count, np.int64)
        cdef Py_ssize_t n = 0
        cdef int64_t i
        cdef int32_t hashed, previous
        cdef const uint8_t *p
        if count == 0:
            return np.empty(0, np.int64)
        if not 0 <= first <= self.limit - count:
            raise ValueError(f"entries {first} to {first + count} of {self.limit}")
        with nogil:
            for i in range(count):
                p = &raw[i * RS_INDEX_ENTRY_SIZE]
                if self.is_bad(first + i):
                    continue
                hashed = rs_load_be32(p)
                previous = rs_load_be32(p + 16)
                if hashed < 0 or not self.follows(hashed % self.slots, previous, first + i):
                    self.mark_one(first + i)
                    found[n] = first + i
                    n += 1
                    continue
                self.newest[hashed % self.slots] = <int32_t>(first + i)
        return np.asarray(found)[:n].copy()

    cdef inline bint follows(self, int64_t slot, int32_t named, int64_t before) noexcept nogil:
        if named == self.newest[slot]:
            return True
        return 0 < named < min(before, self.limit) and self.is_bad(named)

    def slots_used(self):
        """Return the number of slots that have an entry."""
        return int(np.count_nonzero(np.asarray(self.newest)))

    def check_slots(self, const uint8_t[::1] raw not None, int64_t first, bint live):
        """Check consecutive slots; `first` is the number of the first one.

        `live`: a slot may name an entry that was added after the check began.

        Returns int64[n]: numbers of slots that do not name their newest entry.
        """
        cdef int64_t count = raw.shape[0] // RS_INDEX_HASH_SLOT_SIZE
        cdef int64_t[::1] found = np.empty(count, np.int64)
        cdef Py_ssize_t n = 0
        cdef int64_t i
        cdef int32_t named
        if not 0 <= first <= self.slots - count:
            raise ValueError(f"slots {first} to {first + count} of {self.slots}")
        with nogil:
            for i in range(count):
                named = rs_load_be32(&raw[i * RS_INDEX_HASH_SLOT_SIZE])
                if named >= self.limit and live:
                    continue
                if not self.follows(first + i, named, self.limit):
                    found[n] = first + i
                    n += 1
        return np.asarray(found)[:n].copy()
