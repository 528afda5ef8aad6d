"""Client message ids (UNIQ_KEY) in the form of Java's clients."""
from libc.stdint cimport int64_t, uint8_t

from pyrocketstore.system._env cimport EnvTable


cdef enum:
    MAX_UNIQUE_ID_SIZE = 56


cdef class UniqueIds:
    cdef EnvTable env
    cdef readonly object host
    cdef uint8_t[MAX_UNIQUE_ID_SIZE] prefix   # hex of the address, the process and the loader
    cdef int prefix_size
    cdef int64_t second_ms    # Unix ms: the second that `elapsed_ms` is for
    cdef int64_t elapsed_ms   # since the month began, local time, at `second_ms`

    # Whether `write` knows the local time of a Unix time in ms; if not, call `learn` first, which
    # runs Python: once a second.
    cdef inline bint knows(self, int64_t now) noexcept:
        return self.second_ms <= now < self.second_ms + 1000
    cdef int learn(self, int64_t now) except -1
    # Writes a new id to `out`, which has MAX_UNIQUE_ID_SIZE bytes, and returns its size.
    cdef int write(self, int64_t now, uint8_t *out) noexcept
