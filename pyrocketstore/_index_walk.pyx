"""What one index file does without Python: keys are put into it, chains are followed.

An entry is complete before its slot names it, and a slot names it before the count covers it, so
that any thread may select while one puts. Every number read from the file is checked against what
the file can hold before it is followed.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memset

from pyrocketstore._mapped_file cimport confirm_range
from pyrocketstore._rocketstore cimport (
    RS_CLOSED,
    RS_FULL,
    RS_INDEX_CHUNK,
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
    rs_prefetch,
    rs_store_be32,
    rs_store_be32_release,
    rs_store_be64,
    rs_store_release,
    rs_store_release32,
)

cdef enum:
    AHEAD = 64               # keys that a batch looks ahead
    MANY = 64                # keys that are looked for side by side
    MAX_GROWTH = 32          # chunks: entries are allocated at most 2 MiB ahead
    PAGE_SLOTS = 1024        # slots in a page of memory


# ---- putting ----------------------------------------------------------------------------------
cdef int confirm_chunks(
    rs_index_file *x, int64_t position, int64_t size, int64_t ahead
) noexcept nogil:
    """Makes the chunks of [position, position + size) allocated, and `ahead` chunks with them.

    More than one in a file of our making, they are filled with zeros too."""
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
        # Up to one that is allocated already, which may hold something.
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
    """Before so many keys that they will hit most pages of a new file's slots: all of them at once.
    Where there is no room, each put sees that for itself."""
    cdef int64_t size = RS_INDEX_HEADER_SIZE + x.hash_slot_num * RS_INDEX_HASH_SLOT_SIZE
    if x.file.zero_fill and count >= x.hash_slot_num // PAGE_SLOTS:
        confirm_chunks(x, 0, size, size // RS_INDEX_CHUNK + 1)


cdef int _confirm_put(rs_index_file *x, int64_t slot, int64_t entry) noexcept nogil:
    """Makes the header, one slot and one entry safe to store to."""
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
        # As much ahead as there is already, so that a small file stays small.
        grown = x.index_count * <int64_t>RS_INDEX_ENTRY_SIZE // RS_INDEX_CHUNK
        if grown >= MAX_GROWTH:
            # To an even place, for the sake of large pages.
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
        # Whoever finds the entry by its slot needs it.
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
    """One key: its entry, its slot and the header, all written through."""
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
    """Many keys. Slots are random memory: each is asked for AHEAD puts before it is needed."""
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


# ---- selecting --------------------------------------------------------------------------------
cdef const uint8_t *load_entry(index_reader *r, int64_t position, int64_t size) noexcept nogil:
    cdef int64_t got
    if r.base != NULL:
        return r.base + position
    got = r.env.pread(r.fd, r.buffer, size, position)
    if got != size:
        r.failed = <int>got if got < 0 else READ_SHORT
        r.failed_position = position
        return NULL
    return r.buffer


cdef int start_walk(const rs_index_file *x, index_reader *r, index_walk *w) noexcept nogil:
    """Finds the newest entry of the key's slot; RS_OK, or -1 with r.failed."""
    cdef int32_t number
    cdef int32_t count
    cdef const uint8_t *p = load_entry(r, slot_position(x, w.key_hash), RS_INDEX_HASH_SLOT_SIZE)
    w.next_index = 0
    if p == NULL:
        return -1
    # The slot first: a count read later covers every entry that the slot may name, or is one short.
    number = rs_load_be32_acquire(p) if r.base != NULL else rs_load_be32(p)
    count = rs_load_acquire32(&x.index_count)
    w.limit = count if count < x.index_num else <int32_t>(x.index_num - 1)
    w.base_timestamp = rs_load_acquire(&x.begin_timestamp)
    w.slot_num = x.hash_slot_num
    while w.every and r.base == NULL and w.limit < number < x.index_num:
        # Put by the file's owner since we read the header: what we know lies behind it.
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
    """Whether an entry may be meant. `time` is what its seconds say, at most 999 ms too early."""
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
    """Gathers up to `room` hits, newest first, from w.next_index on; -1 with r.failed."""
    cdef int64_t found = 0
    cdef int32_t number
    cdef int32_t previous
    cdef int32_t diff
    cdef int64_t time = 0
    cdef const uint8_t *p
    while w.next_index > 0 and found < room:
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
        # Chains only go down: a damaged one ends.
        if previous <= 0 or previous >= number or (not w.every and time < w.begin):
            previous = 0
        w.next_index = previous
    return found


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
            # Slots and entries are random memory: all are asked for before one is looked at.
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
