"""Columns that decoding returns, and the state of one decoding call (see _decode.pyx)."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore._rocketstore cimport rs_properties, rs_record
from pyrocketstore.columns._builder cimport ArrowColumns, column_block, map_column, var_column
from pyrocketstore.record._record cimport QueueName, queue_name

cdef enum:
    MAX_COLUMNS = 32

# A record and its derived fields in one struct, so that all fields of one width are copied alike.
ctypedef struct decoded:
    rs_record record
    rs_properties properties
    int64_t tags_code

# A column of fixed width: the position of its field in `decoded`, and the memory for its values.
ctypedef struct fixed_column:
    int64_t field
    int64_t width
    column_block rows     # has the memory of `values`, after a head
    uint8_t *values

ctypedef struct column_set:
    fixed_column[MAX_COLUMNS] fixed
    var_column[MAX_COLUMNS] var
    map_column map
    int32_t *map_offsets  # NULL: the map was not requested
    column_block map_rows # has the memory of the offsets
    int32_t fixed_count
    int32_t var_count
    bint needs_properties
    bint needs_tags_code
    bint needs_bodies
    uint8_t *compressed   # one byte a row: 1 for a compressed body; NULL: no body was requested
    int64_t compressed_count
    const queue_name *queue  # NULL: any queue, and any record size up to the entry of `sizes`
    const int64_t *queue_offsets


@cython.final
cdef class VarColumn:
    cdef readonly object offsets
    cdef readonly object data
    cdef readonly object validity
    cdef readonly Py_ssize_t null_count
    cdef readonly bint is_text


@cython.final
cdef class MapColumn:
    cdef readonly object offsets
    cdef readonly VarColumn keys
    cdef readonly VarColumn values
    cdef readonly object validity
    cdef readonly Py_ssize_t null_count


# Moves the collected maps into a MapColumn; `offsets` is int32[n + 1]. StoreFormatError if there
# are more names than an int32 can count.
cdef MapColumn map_result(map_column *m, object offsets)


# Decodes rows [first, stop) from records[first:stop]: RS_OK, or the status of record `row`, which
# ended the walk.
cdef int walk_rows(
    column_set *s,
    const uint8_t **records,
    const int32_t *sizes,
    const int64_t *phy_offsets,
    Py_ssize_t first,
    Py_ssize_t stop,
    bint check_crc,
    Py_ssize_t *row,
) noexcept nogil


# A requested column: where its values are in a column_set.
ctypedef enum column_form:
    FIXED_COLUMN
    VAR_COLUMN
    MAP_COLUMN

ctypedef struct column_spec:
    column_form form
    int32_t index        # in `fixed` or `var` of the set
    int64_t field        # of a fixed column
    int64_t width
    int32_t kind         # of a variable one
    bint is_text
    bint may_be_absent


@cython.final
cdef class ColumnPlan:
    """Columns that are decoded, each at most once."""
    cdef tuple names
    cdef column_spec[MAX_COLUMNS] specs
    cdef int32_t count
    cdef int32_t body            # index of `body` in `var`; -1: not requested
    cdef bint needs_properties
    cdef bint needs_tags_code
    cdef bint needs_bodies


# Returns the plan of a tuple of names, and keeps it. StoreFormatError for an unknown column.
cdef ColumnPlan plan_of(tuple names)


@cython.final
cdef class ColumnPass:
    """The columns of one call while they are filled, and their conversion to results."""
    cdef column_set *state
    cdef ColumnPlan plan
    cdef Py_ssize_t count
    cdef str path
    cdef bint null_bad_bodies
    cdef int64_t max_body_bytes  # -1: no bound
    cdef Py_ssize_t taken        # rows whose bodies fit
    cdef QueueName queue

    # Allocates the memory of `count` rows. `max_body_bytes` is an int or None.
    cdef int open(
        self, ColumnPlan plan, Py_ssize_t count, const int32_t *sizes, str path,
        object max_body_bytes
    ) except -1
    # Requires each record to have exactly its size in `sizes` and to be the message of `queue` at
    # its offset; None: no requirement.
    cdef int compare(self, QueueName queue, const int64_t[::1] queue_offsets) except -1
    cdef void compare_with(self, QueueName queue, const int64_t *queue_offsets) noexcept
    # After the walk: one of the next two. The rows end before the first one whose inflated body
    # exceeds `max_body_bytes`. An error names the position of a record as `positions[row] - start`.
    # {name: ndarray | VarColumn | MapColumn}
    cdef dict close(self, const int64_t *positions, int64_t start)
    cdef ArrowColumns close_arrow(self, const int64_t *positions, int64_t start)
    cdef int _finish(self, const int64_t *positions, int64_t start) except -1
    cdef int _add_var(self, const column_spec *spec, int64_t total_size) except -1
    cdef int _inflate_bodies(self, var_column *c, const int64_t *positions, int64_t start) except -1
    cdef bint _is_beyond(self, int64_t size, int64_t more)
