"""Numbers and bodies of a put; scalars.py has the rules."""
from libc.stdint cimport int64_t

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1

# `value` by the rule of scalars.exact_int; of a column where `row` is not negative.
cdef int64_t odd_int(
    object value, int64_t low, int64_t high, str what, Py_ssize_t row
) except? -1

# Raises StoreTypeError or StoreFormatError for `value`, called `what`, unless it is from `low` to
# `high`. The name of a row is only made for the error; a negative `row` is not a row.
cdef inline int64_t int_in(
    object value, int64_t low, int64_t high, str what, Py_ssize_t row=-1
) except? -1:
    cdef int overflow = 0
    cdef int64_t number
    if type(value) is int:
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow == 0 and low <= number <= high:
            return number
    return odd_int(value, low, high, what, row)

# Holds the bytes of a body: contiguous, of one dimension. The caller releases the view.
cdef int hold_body(object body, Py_buffer *view, str what, Py_ssize_t row) except -1
# The body as an exact bytes object; a body that is one already is returned itself.
cdef bytes bytes_of(object body, str what, Py_ssize_t row)
