"""Columns that decoding returns, and the state of one decoding call (see _decode.pyx)."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore.record._queue_check cimport QueueName, queue_name
from pyrocketstore._rocketstore cimport rs_properties, rs_record
from pyrocketstore.columns._builder cimport map_column, var_column

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
    uint8_t *target

ctypedef struct column_set:
    fixed_column[MAX_COLUMNS] fixed
    var_column[MAX_COLUMNS] var
    map_column map
    int32_t *map_offsets  # NULL: the map was not requested
    int32_t fixed_count
    int32_t var_count
    bint needs_properties
    bint needs_tags_code
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


@cython.final
cdef class ColumnPass:
    """The columns of one call while they are filled, and their conversion to results."""
    cdef column_set *state
    cdef tuple names
    cdef dict arrays
    cdef Py_ssize_t count
    cdef str path
    cdef bint null_bad_bodies
    cdef int64_t max_body_bytes  # -1: no bound
    cdef Py_ssize_t taken        # rows whose bodies fit
    cdef QueueName queue

    # Makes the arrays of `count` rows. `max_body_bytes` is an int or None. StoreFormatError for an
    # unknown column.
    cdef int open(
        self, object columns, Py_ssize_t count, const int32_t *sizes, str path,
        object max_body_bytes
    ) except -1
    # Requires each record to have exactly its size in `sizes` and to be the message of `queue` at
    # its offset; None: no requirement.
    cdef int compare(self, QueueName queue, const int64_t[::1] queue_offsets) except -1
    # Returns {name: ndarray | VarColumn | MapColumn} after the walk. The rows end before the first
    # one whose inflated body exceeds `max_body_bytes`. An error names the position of a record as
    # `positions[row] - start`.
    cdef dict close(self, const int64_t *positions, int64_t start)
    cdef int _add_fixed(self, str name) except -1
    cdef int _add_map(self) except -1
    cdef int _add_var(self, str name, int64_t total_size) except -1
    cdef object _inflate_bodies(self, var_column *c, const int64_t *positions, int64_t start)
    cdef bint _is_beyond(self, int64_t size, int64_t more)
