"""The count and the bytes of the puts that hold room: exact whatever a signal handler raises."""
cimport cython
from libc.stdint cimport int64_t


@cython.final
@cython.auto_pickle(False)
cdef class Reservations:
    """The number of reservations that are taken, and the sum of their sizes (bytes).

    Threads: any; under the GIL, and no signal handler runs between two changes.
    """

    cdef readonly Py_ssize_t count
    cdef readonly int64_t size


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class Reservation:
    """One reservation: counted once, from `take` to `drop` or to the end of this object."""

    cdef Reservations total
    cdef readonly int64_t size
    cdef readonly bint taken

    def __cinit__(self, Reservations total not None, int64_t size):
        self.total = total
        self.size = size

    def __dealloc__(self):
        if self.taken:
            self.total.count -= 1
            self.total.size -= self.size

    def take(self):
        """Count the reservation; a repeated call does nothing."""
        if not self.taken:
            self.taken = True
            self.total.count += 1
            self.total.size += self.size

    def drop(self):
        """Stop counting the reservation; a repeated call does nothing."""
        if self.taken:
            self.taken = False
            self.total.count -= 1
            self.total.size -= self.size
