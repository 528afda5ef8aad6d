"""The values of a growing column, see _values.pyx."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

# Arrow's layout for values that differ in size. All zero: empty. `data` is malloc's.
ctypedef struct var_column:
    int32_t kind
    uint8_t *data
    int64_t size
    int64_t capacity
    int64_t *offsets       # count + 1
    uint8_t *validity      # bitmap as in Arrow; NULL where no value is ever absent
    int64_t null_count
    int32_t last_host_size # the host seen last, whose text ends the data
    uint8_t[20] last_host


# Room for `extra` bytes behind what is there.
cdef int reserve(var_column *c, int64_t extra) noexcept nogil
cdef int add_bytes(var_column *c, const uint8_t *p, int64_t size) noexcept nogil
# As Java would read it, U+FFFD for what is malformed: Arrow and its users do not look again.
cdef int add_text(var_column *c, const uint8_t *p, int64_t size) noexcept nogil
# "10.0.0.1:10911" or "[2001:db8::1]:10911" as value `row`; a column has hosts only, from row 0 on.
cdef int add_host(var_column *c, const uint8_t *p, int32_t size, int64_t row) noexcept nogil
# The offset message id: 32 or 56 upper-case hex digits. A column has ids only.
cdef int add_msg_id(
    var_column *c, const uint8_t *host, int32_t size, int64_t phy_offset
) noexcept nogil

# A property of the row at hand: its name in the keys' data, its value in the record.
ctypedef struct property_place:
    const uint8_t *value
    int64_t value_size
    int64_t name_position
    int64_t name_size

# Arrow's layout for maps: the rows' names and values one behind the other. All zero: empty.
ctypedef struct map_column:
    var_column keys
    var_column values
    var_column key_ends    # bytes that are int64_t: where each name ends
    var_column value_ends
    int64_t count          # of names
    property_place *places # of the row at hand
    int64_t place_count
    int64_t place_room
    uint64_t *slots        # a hash table of them, once there are many: stamp << 32 | place
    int64_t slot_count     # a power of two
    uint64_t stamp         # other slots are empty


# The map behind a properties text as the next row: of equal names the last one's value, in the
# place of the first. Text as in add_text, and names are compared as such.
cdef int add_properties(map_column *m, const uint8_t *p, int64_t size) noexcept nogil
cdef void free_map(map_column *m) noexcept nogil
