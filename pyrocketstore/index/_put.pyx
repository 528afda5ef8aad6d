"""Put keys into one index file. `_search` reads it at the same time.

An entry is complete before its slot names it, and a slot names it before the count covers it:
`_search` relies on this order.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from pyrocketstore.files._mapped_file cimport confirm_range
from pyrocketstore._rocketstore cimport (
    RS_CLOSED,
    RS_FULL,
    RS_INDEX_CHUNK,
    RS_INDEX_ENTRY_SIZE,
    RS_INDEX_HASH_SLOT_SIZE,
    RS_INDEX_HEADER_SIZE,
    RS_OK,
    rs_index_file,
    rs_load_be32,
    rs_prefetch,
    rs_store_be32,
    rs_store_be32_release,
    rs_store_be64,
    rs_store_release,
    rs_store_release32,
)

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
