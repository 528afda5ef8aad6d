"""Growing columns, the memory that they reuse, and Arrow arrays that own such memory.

Values are bytes, valid UTF-8 text, hosts, message ids and maps. No function on a column needs the
GIL. It returns 0, or -1 if memory is exhausted.
"""
import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uint8_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memmove, memset
from posix.stdlib cimport posix_memalign
from posix.unistd cimport usleep

from pyrocketstore._rocketstore cimport (
    RS_HOST_V4_SIZE,
    RS_HOST_V6_SIZE,
    rs_compare_and_swap,
    rs_env,
    rs_env_posix,
    rs_load_be32,
    rs_store_be64,
    rs_store_release,
    rs_utf8_next,
)
from pyrocketstore.record._record cimport is_pair, next_property, property_text
from pyrocketstore.record._text cimport is_mapped_v4

cdef enum:
    MIN_CAPACITY = 256   # bytes of a column's first allocation
    MAX_HOST_TEXT = 64   # bytes: 39 of an IPv6 address, brackets, colon, 11 of a port
    MAX_MSG_ID_TEXT = 56
    HUGE_PAGE_SIZE = 2097152
    FEW_NAMES = 16         # a record with more names uses a hash table
    FIRST_SLOTS = 64
    MADVISE_HUGEPAGE = 14  # Linux; other systems refuse this advice

cdef rs_env system
rs_env_posix(&system)


cdef int reserve(var_column *c, int64_t extra) noexcept nogil:
    cdef int64_t capacity = c.capacity
    cdef uint8_t *data
    if extra <= capacity - c.size:
        return 0
    if extra > (<int64_t>1 << 46) - c.size:
        return -1
    capacity = max(capacity + capacity // 2, c.size + extra, <int64_t>MIN_CAPACITY)
    if c.data == NULL and capacity >= 2 * HUGE_PAGE_SIZE:
        data = _large_memory(capacity)
    else:
        data = <uint8_t *>realloc(c.data, capacity)
    if data == NULL:
        return -1
    c.data = data
    c.capacity = capacity
    return 0


cdef uint8_t *_large_memory(int64_t size) noexcept nogil:
    """Allocate memory in huge pages where the system has any.

    Page faults of 4 KiB in memory that is used once cost more than decoding does (2.6 instead of
    8.6 GB/s with bodies of 1 KiB).
    """
    cdef void *data = NULL
    if posix_memalign(&data, HUGE_PAGE_SIZE, size) != 0:
        return NULL
    system.madvise(data, size, MADVISE_HUGEPAGE)  # a refusal costs speed only
    return <uint8_t *>data


# ---- text ------------------------------------------------------------------------------------

cdef inline bint _is_ascii(const uint8_t *p, int64_t size) noexcept nogil:
    cdef int64_t i = 0
    cdef uint64_t word, seen = 0
    while i + 8 <= size:
        memcpy(&word, p + i, 8)
        seen |= word
        i += 8
    while i < size:
        seen |= p[i]
        i += 1
    return seen & <uint64_t>0x8080808080808080 == 0


cdef inline int64_t _put_code(uint8_t *out, uint32_t code) noexcept nogil:
    """Write one code point as UTF-8; return the number of bytes."""
    if code < 0x80:
        out[0] = <uint8_t>code
        return 1
    if code < 0x800:
        out[0] = <uint8_t>(0xC0 | code >> 6)
        out[1] = <uint8_t>(0x80 | code & 0x3F)
        return 2
    if code < 0x10000:
        out[0] = <uint8_t>(0xE0 | code >> 12)
        out[1] = <uint8_t>(0x80 | code >> 6 & 0x3F)
        out[2] = <uint8_t>(0x80 | code & 0x3F)
        return 3
    out[0] = <uint8_t>(0xF0 | code >> 18)
    out[1] = <uint8_t>(0x80 | code >> 12 & 0x3F)
    out[2] = <uint8_t>(0x80 | code >> 6 & 0x3F)
    out[3] = <uint8_t>(0x80 | code & 0x3F)
    return 4


cdef int add_bytes(var_column *c, const uint8_t *p, int64_t size) noexcept nogil:
    if reserve(c, size) < 0:
        return -1
    if size > 0:
        memcpy(c.data + c.size, p, size)
    c.size += size
    return 0


cdef int add_text(var_column *c, const uint8_t *p, int64_t size) noexcept nogil:
    cdef int64_t at = 0
    cdef uint32_t code
    if _is_ascii(p, size):
        return add_bytes(c, p, size)
    if reserve(c, 3 * size) < 0:  # a malformed byte becomes U+FFFD, which has three bytes
        return -1
    while at < size:
        at += rs_utf8_next(p + at, size - at, &code)
        c.size += _put_code(c.data + c.size, code)
    return 0


# ---- hosts and ids ---------------------------------------------------------------------------

cdef int64_t _put_decimal(uint8_t *out, int64_t value) noexcept nogil:
    cdef uint8_t[20] digits
    cdef int64_t count = 0, size = 0
    if value < 0:
        out[0] = 45  # "-"
        size = 1
        value = -value
    while True:
        digits[count] = <uint8_t>(48 + value % 10)
        count += 1
        value //= 10
        if value == 0:
            break
    while count > 0:
        count -= 1
        out[size] = digits[count]
        size += 1
    return size


cdef inline uint8_t _hex_digit(uint32_t value, uint8_t ten) noexcept nogil:
    return <uint8_t>(48 + value) if value < 10 else <uint8_t>(ten + value - 10)


cdef void _longest_zeros(const uint8_t *p, int *first, int *count) noexcept nogil:
    """Find the first of the longest runs of zero groups of an IPv6 address."""
    cdef int i = 0, start
    first[0] = -1
    count[0] = 0
    while i < 8:
        start = i
        while i < 8 and p[2 * i] == 0 and p[2 * i + 1] == 0:
            i += 1
        if i - start > count[0]:
            first[0] = start
            count[0] = i - start
        i += 1


cdef int64_t _put_v6(uint8_t *out, const uint8_t *p) noexcept nogil:
    """Write an IPv6 address in the form of RFC 5952, at most 39 bytes."""
    cdef int first, count, i = 0, shift
    cdef int64_t size = 0
    cdef uint32_t group
    _longest_zeros(p, &first, &count)
    while i < 8:
        if i == first and count > 1:
            out[size] = out[size + 1] = 58  # "::"
            size += 2
            i += count
            continue
        if i > 0 and not (count > 1 and i == first + count):
            out[size] = 58
            size += 1
        group = <uint32_t>p[2 * i] << 8 | p[2 * i + 1]
        shift = 12
        while shift > 0 and group >> shift == 0:
            shift -= 4
        while shift >= 0:
            out[size] = _hex_digit(group >> shift & 15, 97)
            size += 1
            shift -= 4
        i += 1
    return size


cdef int add_host(var_column *c, const uint8_t *p, int32_t size, int64_t row) noexcept nogil:
    cdef int64_t length, i
    cdef uint8_t *out
    if reserve(c, MAX_HOST_TEXT) < 0:
        return -1
    out = c.data + c.size
    # Most records have the host of the previous record, whose text ends the data.
    if size == c.last_host_size and memcmp(p, c.last_host, size) == 0:
        length = c.offsets[row] - c.offsets[row - 1]
        memcpy(out, out - length, length)
        c.size += length
        return 0
    memcpy(c.last_host, p, size)
    c.last_host_size = size
    length = 0
    if size == RS_HOST_V6_SIZE and not is_mapped_v4(p):
        out[0] = 91  # "["
        length = 1 + _put_v6(out + 1, p)
        out[length] = 93
        length += 1
    else:
        for i in range(4):
            if i > 0:
                out[length] = 46
                length += 1
            length += _put_decimal(out + length, p[size - 8 + i])
    out[length] = 58
    length += 1
    c.size += length + _put_decimal(out + length, rs_load_be32(p + size - 4))
    return 0


cdef inline void _put_hex(uint8_t *out, const uint8_t *p, int32_t size) noexcept nogil:
    cdef int32_t i
    for i in range(size):
        out[2 * i] = _hex_digit(p[i] >> 4, 65)
        out[2 * i + 1] = _hex_digit(p[i] & 15, 65)


cdef int add_msg_id(
    var_column *c, const uint8_t *host, int32_t size, int64_t phy_offset
) noexcept nogil:
    cdef uint8_t[8] tail
    cdef uint8_t *out
    if reserve(c, MAX_MSG_ID_TEXT) < 0:
        return -1
    if size == RS_HOST_V6_SIZE and is_mapped_v4(host):
        host += RS_HOST_V6_SIZE - RS_HOST_V4_SIZE
        size = RS_HOST_V4_SIZE
    out = c.data + c.size
    if size == c.last_host_size and memcmp(host, c.last_host, size) == 0:
        memcpy(out, out - 2 * (size + 8), 2 * size)
    else:
        _put_hex(out, host, size)
        memcpy(c.last_host, host, size)
        c.last_host_size = size
    rs_store_be64(tail, phy_offset)
    _put_hex(out + 2 * size, tail, 8)
    c.size += 2 * (size + 8)
    return 0


# ---- properties ------------------------------------------------------------------------------

cdef inline uint64_t _hash_of(const uint8_t *p, int64_t size) noexcept nogil:
    cdef uint64_t h = <uint64_t>size
    cdef uint64_t word
    while size > 0:
        word = 0
        memcpy(&word, p, size if size < 8 else 8)
        h = (h ^ word) * <uint64_t>0x9E3779B97F4A7C15ULL
        h ^= h >> 32
        p += 8
        size -= 8
    return h


cdef inline bint _has_name(
    const map_column *m, int64_t index, int64_t position, int64_t size
) noexcept nogil:
    cdef const property_entry *known = &m.entries[index]
    return known.name_size == size and (
        memcmp(m.keys.data + known.name_position, m.keys.data + position, size) == 0
    )


cdef uint64_t *_slot_of(const map_column *m, int64_t position, int64_t size) noexcept nogil:
    """Return the slot of a name, or the empty slot for it."""
    cdef uint64_t mask = <uint64_t>m.slot_count - 1
    cdef uint64_t at = _hash_of(m.keys.data + position, size) & mask
    while m.slots[at] >> 32 == m.stamp and (
        not _has_name(m, <uint32_t>m.slots[at], position, size)
    ):
        at = (at + 1) & mask
    return &m.slots[at]


cdef int64_t _known_entry(const map_column *m, int64_t position, int64_t size) noexcept nogil:
    """Return the index in the row of the name at `position` in the data of `keys`, or -1."""
    cdef int64_t i
    cdef const uint64_t *slot
    if m.entry_count > FEW_NAMES:
        slot = _slot_of(m, position, size)
        return <uint32_t>slot[0] if slot[0] >> 32 == m.stamp else -1
    for i in range(m.entry_count):
        if _has_name(m, i, position, size):
            return i
    return -1


cdef int _index_names(map_column *m) noexcept nogil:
    """Add the last name of the row to the table, or all names to a new or larger table."""
    cdef int64_t i = m.entry_count - 1
    cdef uint64_t *grown
    if m.entry_count <= FEW_NAMES:
        return 0
    if m.entry_count == FEW_NAMES + 1:
        m.stamp += 1
        i = 0
    if 2 * m.entry_count > m.slot_count:
        grown = <uint64_t *>calloc(max(4 * m.slot_count, <int64_t>FIRST_SLOTS), sizeof(uint64_t))
        if grown == NULL:
            return -1
        free(m.slots)
        m.slots = grown
        m.slot_count = max(4 * m.slot_count, <int64_t>FIRST_SLOTS)
        i = 0
    while i < m.entry_count:
        _slot_of(m, m.entries[i].name_position, m.entries[i].name_size)[0] = m.stamp << 32 | i
        i += 1
    return 0


cdef property_entry *_entry_of(map_column *m, const uint8_t *name, int64_t size) noexcept nogil:
    """Return the entry of a name in the row, a new one if necessary; NULL: no memory."""
    cdef int64_t position = m.keys.size
    cdef int64_t found, room
    cdef void *grown
    if add_text(&m.keys, name, size) < 0:
        return NULL
    size = m.keys.size - position
    found = _known_entry(m, position, size)
    if found >= 0:
        m.keys.size = position
        return &m.entries[found]
    if m.entry_count == m.entry_room:
        room = max(2 * m.entry_room, <int64_t>FEW_NAMES)
        grown = realloc(m.entries, room * sizeof(property_entry))
        if grown == NULL:
            return NULL
        m.entries = <property_entry *>grown
        m.entry_room = room
    m.entries[m.entry_count].name_position = position
    m.entries[m.entry_count].name_size = size
    m.entry_count += 1
    return NULL if _index_names(m) < 0 else &m.entries[m.entry_count - 1]


cdef int add_properties(map_column *m, const uint8_t *p, int64_t size) noexcept nogil:
    cdef property_text text
    cdef property_entry *entry
    cdef int64_t i, name_end
    m.entry_count = 0
    text.at = p
    text.stop = p + size
    while next_property(&text):
        if is_pair(&text):
            entry = _entry_of(m, text.name, text.value - 1 - text.name)
            if entry == NULL:
                return -1
            entry.value = text.value
            entry.value_size = text.end - text.value
    for i in range(m.entry_count):
        entry = &m.entries[i]
        name_end = entry.name_position + entry.name_size
        if add_text(&m.values, entry.value, entry.value_size) < 0 or (
            add_bytes(&m.key_ends, <const uint8_t *>&name_end, 8) < 0
        ) or add_bytes(&m.value_ends, <const uint8_t *>&m.values.size, 8) < 0:
            return -1
    m.count += m.entry_count
    return 0


cdef void free_map(map_column *m) noexcept nogil:
    free(m.keys.data)
    free(m.values.data)
    free(m.keys.rows.data)
    free(m.values.rows.data)
    free(m.key_ends.data)
    free(m.value_ends.data)
    free(m.entries)
    free(m.slots)


# Memory of columns, which is reused for later columns once it is unreferenced.
#
# Arrow releases memory in any thread, so the functions on blocks need no GIL.

cdef enum:
    MAX_BLOCKS = 64
    MAX_KEPT = 167772160      # bytes of memory kept for the next columns
    MAX_UNUSED = 1024         # bytes that are not worth a call of the allocator
    RELEASE_TRIES = 1000      # 1 ms each

# Blocks of released columns, oldest first. New memory costs a page fault for each 4 KiB, about as
# much as decoding into it does. `in_use` is 1 while a thread works on the table. No other thread
# waits for it: it allocates or frees instead, so a process that was forked meanwhile goes on.
cdef column_block[MAX_BLOCKS] KEPT
cdef int kept_count = 0
cdef int64_t kept_bytes = 0
cdef int64_t in_use = 0


cdef inline bint _enter() noexcept nogil:
    """Begin to use KEPT; False: another thread does."""
    return rs_compare_and_swap(&in_use, 0, 1)


cdef inline void _leave() noexcept nogil:
    rs_store_release(&in_use, 0)


cdef void _drop(int index) noexcept nogil:
    """Remove a block from KEPT."""
    global kept_count, kept_bytes
    kept_bytes -= KEPT[index].capacity
    kept_count -= 1
    memmove(&KEPT[index], &KEPT[index + 1], (kept_count - index) * sizeof(column_block))


cdef column_block take_block(int64_t least) noexcept nogil:
    cdef int i
    cdef int best = -1
    cdef column_block found
    found.data = NULL
    found.capacity = 0
    if not _enter():
        return found
    for i in range(kept_count):
        if least <= KEPT[i].capacity <= 2 * least and (
            best < 0 or KEPT[i].capacity < KEPT[best].capacity
        ):
            best = i
    if best >= 0:
        found = KEPT[best]
        _drop(best)
    _leave()
    return found


cdef int take_rows(column_block *b, int64_t size) noexcept nogil:
    cdef var_column fresh
    if size >= MIN_BLOCK:
        b[0] = take_block(size)
        if b.data != NULL:
            return 0
        memset(&fresh, 0, sizeof(var_column))
        if reserve(&fresh, size) < 0:
            return -1
        b.data = fresh.data
        b.capacity = fresh.capacity
        return 0
    b.data = <uint8_t *>realloc(NULL, max(size, <int64_t>1))
    b.capacity = size
    return -1 if b.data == NULL else 0


cdef void give_block(column_block *b) noexcept nogil:
    global kept_count, kept_bytes
    cdef column_block given = b[0]
    b.data = NULL
    b.capacity = 0
    if given.data == NULL or not MIN_BLOCK <= given.capacity <= MAX_KEPT or not _enter():
        free(given.data)
        return
    while kept_count == MAX_BLOCKS or kept_bytes + given.capacity > MAX_KEPT:
        free(KEPT[0].data)
        _drop(0)
    KEPT[kept_count] = given
    kept_count += 1
    kept_bytes += given.capacity
    _leave()


def reusable_bytes(Py_ssize_t size) -> np.ndarray:
    """Return an uninitialized uint8[size] whose memory is reused once it is unreferenced."""
    if size < 0:
        raise ValueError(f"size {size}: must not be negative")
    return column_array(size, np.uint8, 1)


def release_memory() -> int:
    """Free the memory that is kept for later columns; return its bytes (at most 160 MiB)."""
    cdef int64_t released
    cdef int tries = 0
    while not _enter():
        tries += 1
        if tries == RELEASE_TRIES:  # the process was forked while a thread worked on the table
            return 0
        usleep(1000)
    released = kept_bytes
    while kept_count > 0:
        free(KEPT[0].data)
        _drop(0)
    _leave()
    return released


@cython.final
@cython.auto_pickle(False)
cdef class _Memory:
    """The memory of a finished column, the base object of its arrays."""

    cdef column_block block

    def __dealloc__(self):
        give_block(&self.block)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.block.data, self.block.capacity, 0, flags)


cdef object block_memory(column_block *b):
    cdef _Memory memory = _Memory.__new__(_Memory)
    memory.block = b[0]
    b.data = NULL
    b.capacity = 0
    return memory


cdef object column_array(Py_ssize_t count, object dtype, int64_t width):
    cdef column_block block
    if count * width < MIN_BLOCK:
        return np.empty(count, dtype)
    if take_rows(&block, count * width) < 0:
        raise MemoryError
    return np.frombuffer(block_memory(&block), dtype, count)


cdef column_block take_data(var_column *c) noexcept nogil:
    cdef column_block taken
    cdef uint8_t *data
    if c.capacity - c.size > max(c.capacity // 4, <int64_t>MAX_UNUSED):
        data = <uint8_t *>realloc(c.data, max(c.size, <int64_t>1))
        if data != NULL:
            c.data = data
            c.capacity = c.size
    taken.data = c.data
    taken.capacity = c.capacity
    c.data = NULL
    c.capacity = 0
    return taken


# Columns as arrays of Arrow's C data interface, which own their memory.
#
# An importer takes an array by a copy of its struct, and calls `release` in any thread, without the
# GIL. Each array has its own memory, so that an importer may also take one child and release the
# rest.

cdef enum:
    MAX_BUFFERS = 3
    MAX_OWNED = 2


# What `private_data` of an array refers to: the begin of its first block. `owned[0]` is this block.
# In a parent, the structs of the children and the pointers to them follow.
cdef struct array_memory:
    const void *buffers[MAX_BUFFERS]
    column_block owned[MAX_OWNED]


assert sizeof(array_memory) <= HEAD_SIZE


cdef void _release(arrow_array *a) noexcept nogil:
    cdef array_memory *m = <array_memory *>a.private_data
    cdef column_block[MAX_OWNED] owned
    cdef int64_t i
    for i in range(a.n_children):
        if a.children[i].release != NULL:
            a.children[i].release(a.children[i])
    memcpy(owned, m.owned, sizeof(owned))
    for i in range(MAX_OWNED):
        give_block(&owned[i])
    a.release = NULL


cdef void open_column(
    arrow_array *a, column_block *b, int64_t length, int64_t buffer_count
) noexcept nogil:
    cdef array_memory *m = <array_memory *>b.data
    memset(a, 0, sizeof(arrow_array))
    memset(m, 0, sizeof(array_memory))
    m.owned[0] = b[0]
    b.data = NULL
    b.capacity = 0
    a.length = length
    a.n_buffers = buffer_count
    a.buffers = m.buffers
    a.private_data = m
    a.release = _release


cdef int open_parent(
    arrow_array *a, int64_t length, int64_t buffer_count, int64_t child_count
) noexcept nogil:
    cdef int64_t children_size = child_count * (sizeof(arrow_array) + sizeof(arrow_array *))
    cdef arrow_array *children
    cdef column_block block
    cdef int64_t i
    if take_rows(&block, HEAD_SIZE + children_size) < 0:
        return -1
    memset(block.data + HEAD_SIZE, 0, children_size)
    children = <arrow_array *>(block.data + HEAD_SIZE)
    open_column(a, &block, length, buffer_count)
    a.n_children = child_count
    a.children = <arrow_array **>(children + child_count)
    for i in range(child_count):
        a.children[i] = children + i
    return 0


cdef void own_block(arrow_array *a, column_block *b) noexcept nogil:
    (<array_memory *>a.private_data).owned[1] = b[0]
    b.data = NULL
    b.capacity = 0


cdef int64_t _bytes_of(const arrow_array *a) noexcept nogil:
    cdef const array_memory *m = <const array_memory *>a.private_data
    cdef int64_t total = 0
    cdef int64_t i
    if a.release == NULL:
        return 0
    for i in range(MAX_OWNED):
        total += m.owned[i].capacity
    for i in range(a.n_children):
        total += _bytes_of(a.children[i])
    return total


@cython.final
@cython.auto_pickle(False)
@cython.no_gc
cdef class ArrowColumns:
    """Decoded rows as one struct array of the C data interface, with a child for each column.

    The columns that no importer has taken are released with this object.

    Attributes: `names`, of the columns; `large`, the names of those with 64-bit offsets;
    `body_bytes`, bytes of the column `body`, 0 without it.
    """

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)

    def __len__(self):
        return self.array.length

    @property
    def address(self):
        """The address of the struct array, to be imported once, while this object exists."""
        return <uintptr_t>&self.array

    def child_addresses(self):
        """Return the address of each column, to be imported instead of the struct array."""
        cdef int64_t i
        return [<uintptr_t>self.array.children[i] for i in range(self.array.n_children)]

    def byte_count(self):
        """Return the bytes of memory that importers have not taken yet."""
        return _bytes_of(&self.array)
