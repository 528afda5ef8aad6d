"""Counts of the reads of a store."""
cimport cython
from libc.stdint cimport int64_t


@cython.final
@cython.auto_pickle(False)
cdef class ReadCounts:
    """The reads of a store since it was opened.

    Attributes
    ----------
    found, missed : int, reads that returned messages, and that returned none
    messages : int, what they returned
    longest_ms : int, ms: the longest of the reads that are timed

    Threads: any; the GIL is held for the whole of `note`, which a signal cannot interrupt.
    """

    cpdef void note(self, int64_t count, int64_t took_ms=0) noexcept:
        """Count a read that returned `count` messages."""
        self.messages += count
        if count > 0:
            self.found += 1
        else:
            self.missed += 1
        if took_ms > self.longest_ms:
            self.longest_ms = took_ms
