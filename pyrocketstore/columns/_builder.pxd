"""Functions that append values to a growing column (see _builder.pyx)."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

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
