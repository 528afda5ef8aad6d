"""Prefault pages of queue and index files in bulk.

A store to a mapped page that is not in memory takes a page fault, some 4 us for each 4 KiB. A long
write of zeros creates large folios at a tenth of that cost, and mapping those costs little.
"""
from libc.stdint cimport int64_t
from libc.string cimport memset

from pyrocketstore.system._allocation cimport (
    HUGE_PAGE,
    confirm_range,
    confirm_room,
    populate_filled,
    write_zeros,
)
from pyrocketstore.index._put cimport entry_position
from pyrocketstore._rocketstore cimport (
    RS_CQ_STORE_UNIT_SIZE,
    RS_INDEX_CHUNK,
    RS_INDEX_ENTRY_SIZE,
    rs_index_file,
    rs_load_acquire,
    rs_mapped_file,
    rs_open_for_writing,
    rs_queue,
)

cdef enum:
    COUNT_MIN = 256             # units or keys that are worth the system calls
    PAGES_A_KEY = 4             # slots are filled if they have at most so many pages for each key
    QUEUE_AHEAD = 1048576       # bytes that are filled beyond the known need
    INDEX_AHEAD = 4194304


cdef void fill(rs_mapped_file *f, int64_t position, int64_t end) noexcept nogil:
    # The range is allocated, and nothing in it is valid data.
    cdef int fd = rs_open_for_writing(f)
    if fd < 0:
        return
    end = write_zeros(f.env, fd, position, end, HUGE_PAGE)
    f.env.close(fd)
    # A slot is read before it is written: without this, that maps its page read-only.
    populate_filled(f, position, end)


cdef void prefault_queue(rs_queue *q, int64_t count) noexcept nogil:
    cdef rs_mapped_file *f = q.file
    cdef int64_t wrote, start, end
    if count < COUNT_MIN or f == NULL or f.base == NULL or f.path == NULL:
        return
    wrote = f.wrote
    start = max(wrote, rs_load_acquire(&f.confirmed))
    end = min(f.file_size, wrote + count * RS_CQ_STORE_UNIT_SIZE)
    if start >= end or f.file_from_offset + wrote != q.unit_count * RS_CQ_STORE_UNIT_SIZE:
        return
    # At most double the file's data, so that a small file stays small.
    end = min(f.file_size, max(end, start + min(wrote, <int64_t>QUEUE_AHEAD)))
    if confirm_room(f, end, False) == 0:
        fill(f, start, min(f.file_size, rs_load_acquire(&f.confirmed)))


cdef bint prefault_chunks(rs_index_file *x, int64_t position, int64_t end) noexcept nogil:
    # [position, end), as far as its chunks are not allocated yet; False where there is no room.
    cdef int64_t chunk = position // RS_INDEX_CHUNK
    cdef int64_t last = (end - 1) // RS_INDEX_CHUNK
    cdef int64_t first, start, stop
    while chunk <= last:
        if x.confirmed_chunks[chunk]:
            chunk += 1
            continue
        first = chunk
        while chunk <= last and not x.confirmed_chunks[chunk]:
            chunk += 1
        start = first * RS_INDEX_CHUNK
        stop = min(chunk * RS_INDEX_CHUNK, entry_position(x.hash_slot_num, x.index_num))
        if confirm_range(x.file, start, stop - start, False) != 0:
            return False
        memset(x.confirmed_chunks + first, 1, <size_t>(chunk - first))
        fill(x.file, max(position, start), stop)
    return True


cdef void prefault_index(rs_index_file *x, int64_t count, bint fresh) noexcept nogil:
    if count < COUNT_MIN:
        return
    prefault_slots(x, count, fresh)
    prefault_entries(x, x.index_count, count)


cdef void prefault_slots(rs_index_file *x, int64_t count, bint fresh) noexcept nogil:
    cdef int64_t slots_end = entry_position(x.hash_slot_num, 0)
    if x.base == NULL or x.file.path == NULL or not fresh:
        return
    if count * PAGES_A_KEY >= slots_end // 4096:
        # Their last chunk is the entries' first.
        prefault_chunks(x, 0, slots_end // RS_INDEX_CHUNK * RS_INDEX_CHUNK)


cdef bint prefault_entries(rs_index_file *x, int64_t number, int64_t count) noexcept nogil:
    cdef int64_t slots_end = entry_position(x.hash_slot_num, 0)
    cdef int64_t file_end = entry_position(x.hash_slot_num, x.index_num)
    cdef int64_t start = entry_position(x.hash_slot_num, number)
    cdef int64_t end = min(file_end, start + count * RS_INDEX_ENTRY_SIZE)
    if (start >= end or x.base == NULL or x.file.path == NULL
            or x.confirmed_chunks[(end - 1) // RS_INDEX_CHUNK]):
        return True
    end = max(end, start + min(start - slots_end, <int64_t>INDEX_AHEAD))
    return prefault_chunks(x, start, min(end, file_end))
