"""Growing columns, their memory, and Arrow arrays of them (see _builder.pyx)."""
from libc.stdint cimport int32_t, int64_t, uint64_t, uint8_t

# Memory of values, allocated by malloc. All zero: none.
ctypedef struct column_block:
    uint8_t *data
    int64_t capacity

# Arrow's layout for values of variable size. All zero: empty. `data` is allocated by malloc.
ctypedef struct var_column:
    int32_t kind
    uint8_t *data
    int64_t size
    int64_t capacity
    int64_t *offsets       # count + 1
    uint8_t *validity      # bitmap as in Arrow; NULL for a column without absent values
    int64_t null_count
    column_block rows      # has the memory of `offsets` and `validity`, after a head
    int32_t last_host_size # size of the most recent host, whose text ends the data
    uint8_t[20] last_host


# Makes room for `extra` bytes behind the data.
cdef int reserve(var_column *c, int64_t extra) noexcept nogil
cdef int add_bytes(var_column *c, const uint8_t *p, int64_t size) noexcept nogil
# Appends text decoded as in Java, with U+FFFD for malformed bytes: Arrow expects valid UTF-8.
cdef int add_text(var_column *c, const uint8_t *p, int64_t size) noexcept nogil
# Appends "10.0.0.1:10911" or "[2001:db8::1]:10911" as value `row`. A column of hosts has no other
# values and is filled from row 0 on.
cdef int add_host(var_column *c, const uint8_t *p, int32_t size, int64_t row) noexcept nogil
# Appends the offset message id: 32 or 56 upper-case hex digits. A column of ids has no other
# values.
cdef int add_msg_id(
    var_column *c, const uint8_t *host, int32_t size, int64_t phy_offset
) noexcept nogil

# A property of the current row: its name in the data of `keys`, its value in the record.
ctypedef struct property_entry:
    const uint8_t *value
    int64_t value_size
    int64_t name_position
    int64_t name_size

# Arrow's layout for maps: the names and values of all rows, concatenated. All zero: empty.
ctypedef struct map_column:
    var_column keys
    var_column values
    var_column key_ends    # bytes that are int64_t: where each name ends
    var_column value_ends
    int64_t count          # of names
    property_entry *entries # of the current row
    int64_t entry_count
    int64_t entry_room
    uint64_t *slots        # hash table of the entries, if they are many: stamp << 32 | index
    int64_t slot_count     # a power of two
    uint64_t stamp         # a slot with another stamp is empty


# Appends the map of a properties text as the next row. Of equal names, the first one's position and
# the last one's value count. Names are compared after the conversion of add_text.
cdef int add_properties(map_column *m, const uint8_t *p, int64_t size) noexcept nogil
cdef void free_map(map_column *m) noexcept nogil


cdef enum:
    MIN_BLOCK = 65536  # bytes; smaller blocks are left to the allocator

# Takes the smallest kept block with `least` to 2 * `least` bytes; `data` is NULL if there is none.
cdef column_block take_block(int64_t least) noexcept nogil
# Takes a kept block or allocates one, of at least `size` bytes and not initialized: 0; -1: no
# memory.
cdef int take_rows(column_block *b, int64_t size) noexcept nogil
# Keeps a block for later columns, or frees it; `b` is none afterwards.
cdef void give_block(column_block *b) noexcept nogil
# Returns an uninitialized array of `count` items of `width` bytes.
cdef object column_array(Py_ssize_t count, object dtype, int64_t width)
# Moves a block into an object with its buffer; `b` is none afterwards.
cdef object block_memory(column_block *b)
# Moves the bytes of the column out of it. At most 1 KiB or a quarter of the block is unused.
cdef column_block take_data(var_column *c) noexcept nogil


# The struct that the interface fixes. `release` is NULL in one that is released or moved.
cdef struct arrow_array:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void **buffers
    arrow_array **children
    arrow_array *dictionary
    void (*release)(arrow_array *) noexcept nogil
    void *private_data


cdef enum:
    HEAD_SIZE = 64  # bytes before the values of an array's first block


# Makes an array of its first block, which has the values, and takes the block.
cdef void open_column(
    arrow_array *a, column_block *b, int64_t length, int64_t buffer_count
) noexcept nogil
# Makes an array without values and with released children: 0; -1: no memory.
cdef int open_parent(
    arrow_array *a, int64_t length, int64_t buffer_count, int64_t child_count
) noexcept nogil
# Moves a second block into an array, whose release gives it back.
cdef void own_block(arrow_array *a, column_block *b) noexcept nogil


cdef class ArrowColumns:
    """Decoded rows as one struct array, with a child for each column."""
    cdef arrow_array array
    cdef readonly tuple names
    cdef readonly tuple large     # names of the columns with 64-bit offsets
    cdef readonly int64_t body_bytes
