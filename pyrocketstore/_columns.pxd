"""Columns as they are given out, see _columns.pyx."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore._queue_check cimport QueueName, queue_name
from pyrocketstore._rocketstore cimport rs_properties, rs_record
from pyrocketstore._values cimport map_column, var_column

cdef enum:
    MAX_COLUMNS = 32

# A record and what is derived from it, so that every field of one width is copied in one way.
ctypedef struct decoded:
    rs_record record
    rs_properties properties
    int64_t tags_code

# A column of one width: its field of `decoded`, and where the values go.
ctypedef struct fixed_column:
    int64_t field
    int64_t width
    uint8_t *target

ctypedef struct column_set:
    fixed_column[MAX_COLUMNS] fixed
    var_column[MAX_COLUMNS] var
    map_column map
    int32_t *map_offsets  # NULL: nobody asks for the map
    int32_t fixed_count
    int32_t var_count
    bint needs_properties
    bint needs_tags_code
    uint8_t *compressed   # a byte a row: 1 where its body is to be inflated; NULL: nobody asks
    int64_t compressed_count
    const queue_name *queue  # NULL: records of any queue and of any size up to their `sizes`
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


# What was gathered as a column, which is left empty; `offsets` is int32[n + 1]. StoreFormatError
# where there are more names than it can count.
cdef MapColumn map_result(map_column *m, object offsets)


# Rows [first, stop), which lie at records[first:stop]: RS_OK, or why it stopped at `row`.
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
    """One call: the targets while they are filled, and what becomes of them."""
    cdef column_set *state
    cdef tuple names
    cdef dict arrays
    cdef Py_ssize_t count
    cdef str path
    cdef bint null_bad_bodies
    cdef int64_t max_body_bytes  # -1: no bound
    cdef Py_ssize_t taken        # rows whose bodies fit
    cdef QueueName queue

    # Makes the arrays of `count` rows. `max_body_bytes` is an int or None. StoreFormatError for a
    # column that is not known.
    cdef int open(
        self, object columns, Py_ssize_t count, const int32_t *sizes, str path,
        object max_body_bytes
    ) except -1
    # Each record must be of this size and the queue's message at its offset; None: not compared.
    cdef int compare(self, QueueName queue, const int64_t[::1] queue_offsets) except -1
    # {name: ndarray | VarColumn | MapColumn} once all rows were walked, without the rows from the
    # first on whose inflated body is beyond `max_body_bytes`. An error says of a record
    # that it lies at its one of `positions`, less `start`.
    cdef dict close(self, const int64_t *positions, int64_t start)
    cdef int _add_fixed(self, str name) except -1
    cdef int _add_map(self) except -1
    cdef int _add_var(self, str name, int64_t total_size) except -1
    cdef object _inflate_bodies(self, var_column *c, const int64_t *positions, int64_t start)
    cdef bint _is_beyond(self, int64_t size, int64_t more)
