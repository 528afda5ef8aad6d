"""Search one index file: follow the chain of a key's slot from the newest entry to the oldest.

Any thread may search while one thread puts (`_walk`). Every number read from the file is checked
against the limits of the file before it is followed.
"""
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc

from pyrocketstore._rocketstore cimport (
    RS_INDEX_ENTRY_SIZE,
    RS_INDEX_HASH_SLOT_SIZE,
    RS_INDEX_HEADER_SIZE,
    RS_NO_MEMORY,
    RS_OK,
    rs_index_file,
    rs_load_acquire,
    rs_load_acquire32,
    rs_load_be32,
    rs_load_be32_acquire,
    rs_load_be64,
)
from pyrocketstore.index._put cimport entry_position, slot_position

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
