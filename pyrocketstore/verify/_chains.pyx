"""The chains of an index file, and units that differ from those on disk."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

import numpy as np

from pyrocketstore._rocketstore cimport (
    RS_CQ_STORE_UNIT_SIZE,
    RS_INDEX_ENTRY_SIZE,
    RS_INDEX_HASH_SLOT_SIZE,
    rs_load_be32,
)


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class ChainWalk:
    """Replays the slots of one index file while its entries are read in order.

    Entries marked as bad are skipped, and any entry may name them.
    """
    cdef int32_t[::1] newest        # by slot: the last valid entry
    cdef uint8_t[::1] bad           # one bit an entry
    cdef int64_t slots
    cdef int64_t limit

    def __cinit__(self, int64_t hash_slot_num, int64_t index_count):
        if not (1 <= hash_slot_num <= 0x7FFFFFFF and 0 <= index_count <= 0x7FFFFFFF):
            raise ValueError(f"{hash_slot_num} slots and {index_count} entries: impossible")
        self.slots = hash_slot_num
        self.limit = index_count
        self.newest = np.zeros(hash_slot_num, np.int32)
        self.bad = np.zeros(index_count // 8 + 1, np.uint8)

    cdef inline bint is_bad(self, int64_t number) noexcept nogil:
        return (self.bad[number >> 3] >> (number & 7)) & 1

    cdef inline void mark_one(self, int64_t number) noexcept nogil:
        self.bad[number >> 3] |= <uint8_t>(1 << (number & 7))

    def mark(self, const int64_t[::1] numbers not None):
        """Mark entries as bad."""
        cdef Py_ssize_t i
        for i in range(numbers.shape[0]):
            if 0 <= numbers[i] < self.limit:
                self.mark_one(numbers[i])

    def entries(self, const uint8_t[::1] raw not None, int64_t first):
        """Check consecutive entries; `first` is the number of the first one.

        Returns int64[n]: numbers of the entries with a wrong predecessor.
        """
        cdef int64_t count = raw.shape[0] // RS_INDEX_ENTRY_SIZE
        cdef int64_t[::1] found = np.empty(count, np.int64)
        cdef Py_ssize_t n = 0
        cdef int64_t i
        cdef int32_t hashed, previous
        cdef const uint8_t *p
        if count == 0:
            return np.empty(0, np.int64)
        if not 0 <= first <= self.limit - count:
            raise ValueError(f"entries {first} to {first + count} of {self.limit}")
        with nogil:
            for i in range(count):
                p = &raw[i * RS_INDEX_ENTRY_SIZE]
                if self.is_bad(first + i):
                    continue
                hashed = rs_load_be32(p)
                previous = rs_load_be32(p + 16)
                if hashed < 0 or not self.follows(hashed % self.slots, previous, first + i):
                    self.mark_one(first + i)
                    found[n] = first + i
                    n += 1
                    continue
                self.newest[hashed % self.slots] = <int32_t>(first + i)
        return np.asarray(found)[:n].copy()

    cdef inline bint follows(self, int64_t slot, int32_t named, int64_t before) noexcept nogil:
        if named == self.newest[slot]:
            return True
        return 0 < named < min(before, self.limit) and self.is_bad(named)

    def slots_used(self):
        """Return the number of slots that have an entry."""
        return int(np.count_nonzero(np.asarray(self.newest)))

    def check_slots(self, const uint8_t[::1] raw not None, int64_t first, bint live):
        """Check consecutive slots; `first` is the number of the first one.

        `live`: a slot may name an entry that was added after the check began.

        Returns int64[n]: numbers of slots that do not name their newest entry.
        """
        cdef int64_t count = raw.shape[0] // RS_INDEX_HASH_SLOT_SIZE
        cdef int64_t[::1] found = np.empty(count, np.int64)
        cdef Py_ssize_t n = 0
        cdef int64_t i
        cdef int32_t named
        if not 0 <= first <= self.slots - count:
            raise ValueError(f"slots {first} to {first + count} of {self.slots}")
        with nogil:
            for i in range(count):
                named = rs_load_be32(&raw[i * RS_INDEX_HASH_SLOT_SIZE])
                if named >= self.limit and live:
                    continue
                if not self.follows(first + i, named, self.limit):
                    found[n] = first + i
                    n += 1
        return np.asarray(found)[:n].copy()


def differing_units(const uint8_t[::1] one not None, const uint8_t[::1] other not None):
    """Return the numbers of the 20-byte units that differ between two buffers, int64[n].

    The shorter buffer counts as zeros after its end.
    """
    cdef int64_t size = max(one.shape[0], other.shape[0])
    a = np.zeros(size - size % RS_CQ_STORE_UNIT_SIZE, np.uint8)
    b = np.zeros_like(a)
    a[: one.shape[0]] = one[: a.shape[0]]
    b[: other.shape[0]] = other[: b.shape[0]]
    rows = (a != b).reshape(-1, RS_CQ_STORE_UNIT_SIZE).any(axis=1)
    return np.flatnonzero(rows).astype(np.int64)
