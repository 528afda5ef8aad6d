"""The slots of an index file, derived from its entries.

Entries are appended and never changed, so that an fsync makes them durable for good. A slot changes
with each key: after a power cut it may name an entry that the device lacks.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp

from posix.fcntl cimport O_RDONLY, O_RDWR

from pyrocketstore.index._put cimport entry_position
from pyrocketstore.record._record cimport crc32_of
from pyrocketstore.system._env cimport EnvTable
from pyrocketstore._rocketstore cimport (
    RS_INDEX_ENTRY_SIZE,
    RS_INDEX_HASH_SLOT_SIZE,
    RS_INDEX_HEADER_SIZE,
    rs_env,
    rs_load_be32,
    rs_store_be32,
)

from pyrocketstore.errors import StoreCorruptionError

cdef enum:
    READ_ENTRIES = 3276      # entries that one pread reads: 64 KiB stay in the processor's cache
    BLOCK = 4096             # bytes of slots that are compared with the file, and written


cdef uint32_t crc_of_entries(uint32_t crc, const uint8_t *first, int64_t count) noexcept nogil:
    return crc32_of(crc, first, <size_t>(count * RS_INDEX_ENTRY_SIZE))


cdef int64_t _pread_all(
    const rs_env *env, int fd, uint8_t *target, int64_t size, int64_t position
) noexcept nogil:
    # The bytes read, fewer only at the end of the file; or a negated errno.
    cdef int64_t done = 0
    cdef int64_t got
    while done < size:
        got = env.pread(fd, target + done, size - done, position + done)
        if got < 0:
            return got
        if got == 0:
            break
        done += got
    return done


cdef int32_t _take_entries(
    uint8_t *slots, uint32_t hash_slot_num, const uint8_t *entry, int32_t number, int64_t count,
    int32_t *slot_count,
) noexcept nogil:
    # Has the slots name `count` entries, the first of which is `number`. Returns the number of the
    # first one with a hash that no key has; 0: none.
    cdef int32_t key_hash
    cdef int32_t found = 0
    cdef int64_t i
    cdef uint8_t *slot
    for i in range(count):
        key_hash = rs_load_be32(entry)
        if key_hash < 0:
            return number
        slot = slots + <int64_t>(<uint32_t>key_hash % hash_slot_num) * RS_INDEX_HASH_SLOT_SIZE
        found += rs_load_be32(slot) == 0
        rs_store_be32(slot, number)
        number += 1
        entry += RS_INDEX_ENTRY_SIZE
    slot_count[0] += found
    return 0


@cython.final
@cython.auto_pickle(False)
cdef class SlotTable:
    """The slots that the first entries of an index file need: each names the newest of its keys.

    Parameters
    ----------
    env : EnvTable
    path : str, the file
    hash_slot_num : int, slots of the file
    index_count : int, number of the entry after the last one that is read

    `entries_crc` is the CRC of these entries' bytes, `slot_count` the number of slots in use.
    `valid` is False if the file is too short, or an entry has a hash that no key has.

    Raises StoreIOError.
    """

    def __cinit__(
        self, EnvTable env not None, object path, int64_t hash_slot_num, int32_t index_count
    ):
        if not 1 <= hash_slot_num <= 2147483647:
            raise ValueError(f"{hash_slot_num} slots")
        self.hash_slot_num = hash_slot_num
        self.base = <uint8_t *>calloc(<size_t>hash_slot_num, RS_INDEX_HASH_SLOT_SIZE)
        if self.base == NULL:
            raise MemoryError()
        cdef int fd = env.open(path, O_RDONLY)
        try:
            self._fill(env, fd, path, index_count)
        finally:
            env.close(fd, path)

    def __dealloc__(self):
        free(self.base)

    cdef int _fill(self, EnvTable env, int fd, object path, int32_t index_count) except -1:
        cdef uint8_t[READ_ENTRIES * RS_INDEX_ENTRY_SIZE] buffer
        cdef const rs_env *table = &env.table
        cdef int32_t number = 1
        cdef int32_t wrong = 0
        cdef int64_t count, size
        cdef int64_t got = 0
        cdef int64_t at = 0
        with nogil:
            while number < index_count and wrong == 0:
                count = min(<int64_t>READ_ENTRIES, <int64_t>(index_count - number))
                size = count * RS_INDEX_ENTRY_SIZE
                at = entry_position(self.hash_slot_num, number)
                got = _pread_all(table, fd, buffer, size, at)
                if got < size:
                    break
                self.entries_crc = crc_of_entries(self.entries_crc, buffer, count)
                wrong = _take_entries(self.base, <uint32_t>self.hash_slot_num, buffer, number,
                                      count, &self.slot_count)
                number += <int32_t>count
        if got < 0:
            env.check(<int>got, "pread", path, at)
        self.valid = number >= index_count and wrong == 0
        return 0

    def write_to(self, EnvTable env not None, object path) -> None:
        """Write the slots that differ from those of the file, block by block.

        Raises StoreIOError; StoreCorruptionError when the file is too short.
        """
        cdef int fd = env.open(path, O_RDWR)
        try:
            self._write(env, fd, path)
        finally:
            env.close(fd, path)

    cdef int _write(self, EnvTable env, int fd, object path) except -1:
        cdef uint8_t[BLOCK] buffer
        cdef const rs_env *table = &env.table
        cdef int64_t total = self.hash_slot_num * RS_INDEX_HASH_SLOT_SIZE
        cdef int64_t at = 0
        cdef int64_t size
        cdef int64_t got
        while at < total:
            with nogil:
                while True:
                    size = min(<int64_t>BLOCK, total - at)
                    got = _pread_all(table, fd, buffer, size, RS_INDEX_HEADER_SIZE + at)
                    if got < size or memcmp(buffer, self.base + at, <size_t>size) != 0:
                        break
                    at += size
                    if at >= total:
                        return 0
            if got < 0:
                env.check(<int>got, "pread", path, RS_INDEX_HEADER_SIZE + at)
            if got < size:
                raise StoreCorruptionError(path, RS_INDEX_HEADER_SIZE + at, "the file ends here")
            env.pwrite_all(fd, self.base[at:at + size], RS_INDEX_HEADER_SIZE + at, path)
            at += size
        return 0

    def read(self, int64_t position, int64_t size) -> bytes:
        """Return bytes of the slots, from `position` of the first slot on."""
        cdef int64_t total = self.hash_slot_num * RS_INDEX_HASH_SLOT_SIZE
        if position < 0 or size < 0 or size > total - position:
            raise ValueError(f"{size} bytes at {position} of {self.hash_slot_num} slots")
        return self.base[position:position + size]
