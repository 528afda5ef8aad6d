"""A count that is right whatever signal handlers raise, and wherever they do."""
cimport cython
from libc.stdint cimport int64_t


@cython.final
@cython.auto_pickle(False)
cdef class Tally:
    """How many claims are taken, and the sum of their sizes.

    Threads: any; under the GIL, and no signal handler runs between two changes.
    """

    cdef readonly Py_ssize_t count
    cdef readonly int64_t size


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class Claim:
    """A part of a tally: counted once from `take` to `drop`, or until nobody has it any more."""

    cdef Tally tally
    cdef readonly int64_t size
    cdef readonly bint taken

    def __cinit__(self, Tally tally not None, int64_t size):
        self.tally = tally
        self.size = size

    def __dealloc__(self):
        if self.taken:
            self.tally.count -= 1
            self.tally.size -= self.size

    def take(self):
        """Count it; again: nothing happens."""
        if not self.taken:
            self.taken = True
            self.tally.count += 1
            self.tally.size += self.size

    def drop(self):
        """Count it no more; again: nothing happens."""
        if self.taken:
            self.taken = False
            self.tally.count -= 1
            self.tally.size -= self.size
