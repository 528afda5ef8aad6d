"""Numbers and bodies of a put, for compiled code: an exact int costs a comparison of its type."""
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_STRIDES, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t
from libc.string cimport strchr

from pyrocketstore.errors import StoreFormatError, StoreTypeError
from pyrocketstore.arguments.scalars import exact_int


cdef str named(str what, Py_ssize_t row):
    return what if row < 0 else f"{what}[{row}]"


cdef int64_t odd_int(
    object value, int64_t low, int64_t high, str what, Py_ssize_t row
) except? -1:
    return exact_int(named(what, row), value, low, high)


cdef inline bint _is_byte_format(const char *text) noexcept:
    # None of the others: they have a width, a byte order or a meaning that the store would lose.
    if text == NULL:
        return True
    if text[0] != 0 and strchr("@=<>!", text[0]) != NULL:
        text += 1
    return text[0] != 0 and text[1] == 0 and strchr("Bbc", text[0]) != NULL


cdef int hold_body(object body, Py_buffer *view, str what, Py_ssize_t row) except -1:
    try:
        PyObject_GetBuffer(body, view, PyBUF_FORMAT | PyBUF_STRIDES)
    except TypeError:
        kind = type(body).__name__
        raise StoreTypeError(f"{named(what, row)} must be bytes-like, not {kind}") from None
    except (BufferError, ValueError) as error:
        raise StoreFormatError(f"{named(what, row)} cannot be read: {error}") from error
    # NumPy gives the number of a time as bytes.
    if (view.ndim != 1 or view.itemsize != 1 or not _is_byte_format(view.format)
            or type(body).__name__ in ("datetime64", "timedelta64")):
        form = "B" if view.format == NULL else view.format.decode("utf-8", "replace")
        shape = f"{type(body).__name__} of format {form!r} and {view.ndim} dimensions"
        PyBuffer_Release(view)
        raise StoreTypeError(
            f"{named(what, row)} must be bytes of one dimension, not {shape}: pass the "
            "result of its tobytes()")
    if view.strides != NULL and view.strides[0] != 1 and view.len > 1:
        PyBuffer_Release(view)
        PyObject_GetBuffer(memoryview(body).tobytes(), view, PyBUF_FORMAT | PyBUF_STRIDES)
    return 0


cdef bytes bytes_of(object body, str what, Py_ssize_t row):
    cdef Py_buffer view
    if type(body) is bytes:
        return <bytes>body
    hold_body(body, &view, what, row)
    try:
        return PyBytes_FromStringAndSize(<const char *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


def int_between(value, int64_t low, int64_t high, str what not None) -> int:
    """scalars.exact_int, quickly for an exact int."""
    return int_in(value, low, high, what)


def body_bytes(body, str what not None="a body") -> bytes:
    """The bytes of a body as an exact `bytes`.

    Raises
    ------
    StoreTypeError: it is not bytes-like, or its items are not bytes of one dimension.
    StoreFormatError: its buffer cannot be had, as that of a memoryview that was released.
    """
    return bytes_of(body, what, -1)


def body_size(body) -> int:
    """The bytes of a body of DefaultMessageStore's messages; None is an empty one, as in Java.

    Raises as `body_bytes`.
    """
    cdef Py_buffer view
    if body is None:
        return 0
    hold_body(body, &view, "a body", -1)
    try:
        return view.len
    finally:
        PyBuffer_Release(&view)
