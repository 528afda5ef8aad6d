"""The slots of an index file, in memory."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from pyrocketstore.system._env cimport EnvTable


cdef class SlotTable:
    # The bytes of the slots, as in the file.
    cdef uint8_t *base
    cdef readonly int64_t hash_slot_num
    cdef readonly int32_t slot_count
    cdef readonly uint32_t entries_crc
    cdef readonly bint valid

    cdef int _fill(self, EnvTable env, int fd, object path, int32_t index_count) except -1
    cdef int _write(self, EnvTable env, int fd, object path) except -1


# The CRC of entries that follow in one another in memory, after those that `crc` covers.
cdef uint32_t crc_of_entries(uint32_t crc, const uint8_t *first, int64_t count) noexcept nogil
