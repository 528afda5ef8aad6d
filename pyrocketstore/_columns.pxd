"""Columns as they are given out, see _columns.pyx."""
cimport cython

from pyrocketstore._values cimport map_column


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
