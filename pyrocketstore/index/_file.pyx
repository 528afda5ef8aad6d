"""IndexFile: 4.9.3's hash index from "topic#key" to physical offsets in the commit log.

One thread puts while any number of threads select. `_entries` puts keys into the bytes of
a file and searches them; the layout is drawn in docs/format.md.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    int32_t,
    int64_t,
    uint8_t,
    uint32_t,
)
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

import numpy as np

from posix.fcntl cimport O_RDONLY

from pyrocketstore.arguments._numbers_and_bodies cimport int_in
from pyrocketstore.system._env cimport EnvTable, release_kept
from pyrocketstore.index._entries cimport (
    READ_SHORT,
    SlotTable,
    begin_reads,
    confirm_chunks,
    crc_of_entries,
    end_reads,
    entry_position,
    hash_keys,
    hash_text,
    index_hits,
    index_reader,
    index_walk,
    load_entry,
    prefix_of,
    put_hash,
    put_hashes,
    select_many,
    slot_position,
    start_walk,
    walk_chain,
)
from pyrocketstore.files._mapped_file cimport MappedFile
from pyrocketstore._rocketstore cimport (
    RS_CLOSED,
    RS_FULL,
    RS_INDEX_CHUNK,
    RS_INDEX_ENTRY_SIZE,
    RS_INDEX_HASH_SLOT_SIZE,
    RS_INDEX_HEADER_SIZE,
    RS_NO_MEMORY,
    RS_OK,
    check_io,
    rs_env,
    rs_load_acquire32,
    rs_load_be32,
    rs_load_be64,
    rs_msync,
    rs_prefetch_read,
    rs_store_be64,
)

import struct
from collections.abc import Sequence
from threading import RLock

from pyrocketstore.errors import (
    StoreCorruptionError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
)

cdef extern from "Python.h":
    object PySequence_Fast(object items, const char *message)
    Py_ssize_t PySequence_Fast_GET_SIZE(object items)

#: Entry 0 is never written: the number 0 means "no entry".
INVALID_INDEX = 0
#: Bytes of the header, of a slot and of an entry.
INDEX_HEADER_SIZE = RS_INDEX_HEADER_SIZE
HASH_SLOT_SIZE = RS_INDEX_HASH_SLOT_SIZE
INDEX_SIZE = RS_INDEX_ENTRY_SIZE

#: Begin and end timestamp, begin and end physical offset, slots in use, number of the next entry.
INDEX_HEADER = struct.Struct(">qqqqii")

cdef enum:
    STEP = 256               # hits that one walk gathers before it asks for more room
    MAX_HELD_GIL = 64        # hits


# ---- readers ----------------------------------------------------------------------------------
cdef int open_reader(IndexFile owner, index_reader *r) except -1:
    r.base = NULL
    r.slots = NULL if owner.slots is None else owner.slots.base
    r.fd = -1
    r.failed = 0
    r.env = &owner.env.table
    begin_reads(r)
    if not owner.available:
        return 0
    if owner.mapped_file.file.base != NULL and owner.mapped_file.take_hold():
        r.base = owner.mapped_file.file.base
        return 1
    if owner.mode == "read":
        r.kept = owner.mapped_file.take_descriptor()
        r.fd = r.kept.fd
        return 1
    if owner.mode == "memory" and not owner.holding:
        owner.open_for_writing()
    if not owner.mapped_file.take_hold():
        return 0
    r.base = owner.mapped_file.file.base
    return 1


cdef int close_reader(IndexFile owner, index_reader *r) except -1:
    end_reads(r)
    if r.base != NULL:
        owner.mapped_file.drop_hold()
    elif r.fd >= 0:
        release_kept(r.kept)
    if r.failed < 0:
        check_io(r.failed, "pread", owner.path, r.failed_position)
    if r.failed == READ_SHORT:
        raise StoreCorruptionError(owner.path, r.failed_position, "the file ends here")
    return 0


def index_file_size(hash_slot_num: int, index_num: int) -> int:
    """Return the bytes of an index file of that geometry."""
    return (
        RS_INDEX_HEADER_SIZE
        + hash_slot_num * RS_INDEX_HASH_SLOT_SIZE
        + index_num * RS_INDEX_ENTRY_SIZE
    )


cdef int64_t named_size(IndexFile owner) noexcept:
    # Bytes up to the end of the last entry that a slot may name: the count may lag by one.
    return min(owner._used(owner.index.index_count + 1), owner.file_size)


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class IndexFile:
    """One file of the index.

    Parameters
    ----------
    env : Env
    path : str, or None for a file in memory only
    hash_slot_num, index_num : int, slots and entry numbers (0 and the last one are never used)
    end_phy_offset, end_timestamp : int, of the previous file; values > 0 preset a new file's header
    mode : "shared" (mapped, written through), "memory" (a copy, never written back), or "read"
        (through pread)
    create : bool, make a new file
    name : str, needed when there is no path

    Raises
    ------
    StoreCorruptionError when the file on disk is shorter than its geometry; StoreFormatError when
    the geometry is impossible; StoreIOError.

    Threads: one thread puts, any thread selects. `destroy` and `shutdown` only when no thread puts.
    Durability: nothing is durable before `flush` returns.
    Source: RocketMQ 4.9.3 IndexFile.
    Differs: pages are allocated before they are stored to; a longer file is read by its first
    bytes; a shorter one is refused instead of extended; chains that do not go down end.
    """

    def __cinit__(
        self,
        EnvTable env not None,
        object path,
        int64_t hash_slot_num,
        int64_t index_num,
        int64_t end_phy_offset=0,
        int64_t end_timestamp=0,
        *,
        str mode="shared",
        bint create=False,
        object name=None,
    ):
        self.index.index_count = self.crc_count = 1
        self.available = True
        # When an msync fails, the kernel reports that to one of its callers only.
        self.flush_lock = RLock()
        if not (1 <= hash_slot_num <= 2147483647 and 2 <= index_num <= 2147483647):
            raise StoreFormatError(
                f"an index of {hash_slot_num} slots and {index_num} entries: must be at least"
                " 1 slot and 2 entries, and at most 2147483647 of each"
            )
        if path is None and (mode != "memory" or name is None):
            raise StoreFormatError(
                f"an index file without a path: mode {mode!r}, name {name!r}:"
                " must be 'memory' and a name"
            )
        self.env = env
        self.path = path
        self.name = path.rpartition("/")[2] if name is None else name
        self.mode = mode
        self.file_size = index_file_size(hash_slot_num, index_num)
        self.index.hash_slot_num = hash_slot_num
        self.index.index_num = index_num
        length = self.file_size
        if path is not None and not create:
            length = self.load()
        # A longer file is mapped as a whole; the bytes after the geometry are never read.
        self.mapped_file = MappedFile(
            env, path, length, mode=mode, create=create, file_from_offset=0
        )
        self._allocate_chunks()
        # A file that this object made holds zeros where nothing was stored.
        self.mapped_file.file.zero_fill = self.mapped_file.created
        if not create and path is not None:
            self.flushed_count = self.index.index_count
            return
        self.flushed_count = -1
        try:
            if end_phy_offset > 0 or end_timestamp > 0:
                self._preset(end_phy_offset, end_timestamp)
        except StoreIOError:
            self.destroy()
            raise

    def __dealloc__(self):
        free(self.index.confirmed_chunks)

    cdef int _allocate_chunks(self) except -1:
        cdef int64_t count = (self.file_size + RS_INDEX_CHUNK - 1) // RS_INDEX_CHUNK
        self.index.confirmed_chunks = <uint8_t *>calloc(<size_t>count, 1)
        if self.index.confirmed_chunks == NULL:
            raise MemoryError()
        if self.mode != "shared":
            memset(self.index.confirmed_chunks, 1, <size_t>count)
        return 0

    cdef int _preset(self, int64_t end_phy_offset, int64_t end_timestamp) except -1:
        """Write 4.9.3's header of a new file: four longs, the end of the previous file."""
        self.open_for_writing()
        cdef int result = confirm_chunks(&self.index, 0, RS_INDEX_HEADER_SIZE, 1)
        check_io(result, "fallocate", self.path, 0)
        if end_phy_offset > 0:
            self.index.begin_phy_offset = self.index.end_phy_offset = end_phy_offset
            rs_store_be64(self.index.base + 16, end_phy_offset)
            rs_store_be64(self.index.base + 24, end_phy_offset)
        if end_timestamp > 0:
            self.index.begin_timestamp = self.index.end_timestamp = end_timestamp
            rs_store_be64(self.index.base, end_timestamp)
            rs_store_be64(self.index.base + 8, end_timestamp)
        return 0

    def load(self) -> int:
        """Check the length of the file, and read the header.

        Returns
        -------
        int, bytes: the file's length

        Raises: StoreCorruptionError when the file is shorter than the geometry; StoreIOError.
        Source: RocketMQ 4.9.3 IndexFile#load, IndexHeader#load.
        """
        cdef int64_t size
        fd = self.env.open(self.path, O_RDONLY)
        try:
            size = self.env.file_size(fd)
            if size < self.file_size:
                raise StoreCorruptionError(
                    self.path,
                    -1,
                    f"the file has {size} bytes; with {self.index.hash_slot_num} slots and"
                    f" {self.index.index_num} entries it must have {self.file_size}",
                )
            raw = self.env.pread(fd, RS_INDEX_HEADER_SIZE, 0, self.path)
        finally:
            self.env.close(fd)
        if len(raw) < RS_INDEX_HEADER_SIZE:
            raise StoreCorruptionError(
                self.path, 0, f"the header has {len(raw)} of {RS_INDEX_HEADER_SIZE} bytes")
        self._take_header(raw)
        return size

    cdef int _take_header(self, bytes raw) except -1:
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(raw)
        cdef int32_t count = rs_load_be32(p + 36)
        self.index.begin_timestamp = rs_load_be64(p)
        self.index.end_timestamp = rs_load_be64(p + 8)
        self.index.begin_phy_offset = rs_load_be64(p + 16)
        self.index.end_phy_offset = rs_load_be64(p + 24)
        self.index.hash_slot_count = rs_load_be32(p + 32)
        if count < 1:
            count = 1
        if count > self.index.index_num:
            count = <int32_t>self.index.index_num
        self.index.index_count = count
        return 0

    # ---- recovery ---------------------------------------------------------------------------
    def limit_to(self, SlotTable slots not None, header: bytes) -> None:
        """Search only the first entries of a file in "read" mode, whose owner may be putting keys.

        Parameters
        ----------
        slots : SlotTable of these entries, used in place of the slots of the file
        header : bytes, as it was after the last of these entries

        Raises StoreStateError: another mode, or a table of another file.
        """
        if self.mode != "read" or slots.hash_slot_num != self.index.hash_slot_num:
            raise StoreStateError(f"{self.path}: its mode is {self.mode!r}: must be 'read'")
        self._take_header(header)
        self.slots = slots

    @property
    def is_limited(self) -> bool:
        """True after `limit_to`: no key can be put."""
        return self.slots is not None

    def mark_unflushed(self) -> None:
        """Have the next flush write everything: recovery has written to the file."""
        self.flushed_count = -1

    def expect_crc(self, int32_t index_count, uint32_t crc) -> None:
        """Continue `crc_of` from a CRC of the entries before number `index_count`.

        A wrong one makes wrong CRCs, for which recovery builds the file again.
        """
        if 1 <= index_count <= self.index.index_count:
            self.crc_count = index_count
            self.crc = crc

    def crc_of(self, int32_t index_count) -> int:
        """Return the CRC-32 of the entries before number `index_count`, which must be put.

        Reads only the entries after those of the last call. Threads: any, one at a time.

        Raises: StoreStateError when the file was destroyed or is in another mode than "shared".
        """
        cdef int32_t first
        cdef uint32_t crc
        cdef const uint8_t *begin
        with self.flush_lock:
            if not 1 <= index_count <= rs_load_acquire32(&self.index.index_count):
                raise ValueError(f"entry {index_count} of {self.index.index_count}")
            if self.mode != "shared" or not self.available or not self.mapped_file.take_hold():
                raise StoreStateError(f"{self.name}: the index file is not open")
            try:
                if index_count < self.crc_count:
                    self.crc_count, self.crc = 1, 0
                first, crc = self.crc_count, self.crc
                begin = self.mapped_file.file.base + self._used(first)
                with nogil:
                    crc = crc_of_entries(crc, begin, index_count - first)
                self.crc_count, self.crc = index_count, crc
                return crc
            finally:
                self.mapped_file.drop_hold()

    def read(self, position: int, size: int) -> bytes:
        """Return bytes of the file, as searches see them.

        Raises StoreIOError; StoreCorruptionError when the file is shorter.
        """
        if self.slots is None:
            return self.mapped_file.read(position, size)
        slots_end = self._used(0)
        if position >= slots_end:
            return self.mapped_file.read(position, size)
        header = INDEX_HEADER.pack(
            self.index.begin_timestamp, self.index.end_timestamp, self.index.begin_phy_offset,
            self.index.end_phy_offset, self.index.hash_slot_count, self.index.index_count)
        start = max(0, position - RS_INDEX_HEADER_SIZE)
        stop = max(start, min(position + size, slots_end) - RS_INDEX_HEADER_SIZE)
        found = header[position:position + size] + self.slots.read(start, stop - start)
        return found + self.mapped_file.read(position + len(found), size - len(found))

    # ---- life -------------------------------------------------------------------------------
    cpdef open_for_writing(self):
        """Map the file and keep it mapped; `index.base` is set.

        A file in "read" mode becomes a copy in memory first.

        Raises: StoreIOError; StoreStateError when the file was destroyed.
        """
        if self.holding:
            return
        if self.slots is not None:
            raise StoreStateError(f"{self.path}: only its first entries are in use")
        if self.mode == "read":
            self.to_memory()
        if self.mode == "memory" and self.path is not None:
            self.mapped_file.wrote = named_size(self)
        if not self.available or not self.mapped_file.take_hold():
            raise StoreStateError(f"{self.name}: the index file was destroyed")
        self.holding = True
        self.index.file = &self.mapped_file.file
        self.index.base = self.mapped_file.file.base

    def to_memory(self) -> None:
        """Make a file in "read" mode writable: replace it by a copy in memory."""
        if self.mode != "read":
            return
        self.mapped_file.wrote = named_size(self)
        self.mapped_file.to_memory()
        self.mode = "memory"

    def close_for_writing(self) -> None:
        """Release the mapping that `open_for_writing` took. Threads: no thread puts."""
        if self.holding:
            self.holding = False
            self.index.base = NULL
            self.mapped_file.drop_hold()

    def flush(self) -> None:
        """Flush everything put so far to the device.

        After a failure the kernel may have dropped the pages that it could not write, so that a
        later fsync would prove nothing: every further call raises the same error.

        Raises: StoreIOError.
        Durability: everything put before the call survives a power cut once it returns.
        Source: RocketMQ 4.9.3 IndexFile#flush.
        """
        if self.mode == "shared":
            with self.flush_lock:
                self._flush()

    cdef int _flush(self) except -1:
        cdef int32_t count = rs_load_acquire32(&self.index.index_count)
        cdef int64_t used = self._used(count)
        cdef int result
        cdef rs_env *table = &self.env.table
        cdef uint8_t *base
        if self.flush_errno != 0:
            self.env.check(-self.flush_errno, "msync", self.path, -1)
        if count == self.flushed_count:
            return 0
        if not self.available or not self.mapped_file.take_hold():
            return 0
        try:
            base = self.mapped_file.file.base
            with nogil:
                result = rs_msync(table, base, used)
        finally:
            self.mapped_file.drop_hold()
        if result < 0:
            self.flush_errno = -result
            self.env.check(result, "msync", self.path, -1)
        self.flushed_count = count
        return 0

    def destroy(self, interval_ms: int = 0) -> bool:
        """Remove the file; its mapping is dropped when the last reader releases it.

        Returns
        -------
        bool, False while a reader holds it

        Raises: StoreIOError when the file cannot be removed.
        Threads: no thread puts.
        Source: RocketMQ 4.9.3 IndexFile#destroy.
        """
        self.available = False
        self.close_for_writing()
        return self.mapped_file.destroy(interval_ms)

    def shutdown(self) -> None:
        """Flush, then release the mapping. Threads: no thread puts.

        Raises: StoreIOError.
        Differs: 4.9.3 leaves the open file to the page cache.
        """
        if not self.available:
            return
        try:
            self.flush()
        finally:
            self.available = False
            self.close_for_writing()
            self.mapped_file.shutdown(0)

    # ---- putting ----------------------------------------------------------------------------
    def put_key(self, key: str | bytes, phy_offset: int, store_timestamp: int) -> bool:
        """Put one key.

        Parameters
        ----------
        key : the whole "topic#key"
        phy_offset : int, bytes, the physical offset of the record
        store_timestamp : int, ms

        Returns
        -------
        bool, False when the file is full

        Raises: StoreIOError when room cannot be allocated (nothing is put then);
        StoreStateError when the file is not open.
        Threads: one thread puts.
        Source: RocketMQ 4.9.3 IndexFile#putKey.
        """
        return self.put_hash(hash_text(0, key), phy_offset, store_timestamp)

    def put_hash(self, key_hash, phy_offset, store_timestamp) -> bool:
        """As `put_key`, with the hash from `key_hash_of`."""
        cdef int32_t hashed = <int32_t>int_in(key_hash, 0, INT32_MAX, "key hash")
        cdef int64_t at = int_in(phy_offset, INT64_MIN, INT64_MAX, "phy_offset")
        cdef int64_t time_ms = int_in(store_timestamp, INT64_MIN, INT64_MAX, "store_timestamp")
        if not self.holding:
            self.open_for_writing()
        cdef int status = put_hash(&self.index, hashed, at, time_ms)
        if status == RS_OK:
            return True
        if status == RS_FULL:
            return False
        raise self._put_error(status)

    cdef object _put_error(self, int status):
        if status == RS_CLOSED:
            return StoreStateError(f"{self.name}: the index file is not open")
        return StoreIOError(-status, "fallocate", self.path or self.name)

    def put_hashes(
        self,
        const int32_t[::1] key_hashes not None,
        const int64_t[::1] phy_offsets not None,
        const int64_t[::1] store_timestamps not None,
    ) -> int:
        """Put many keys in order, as many as fit.

        Parameters
        ----------
        key_hashes : int32[n], from `key_hash_of`
        phy_offsets : int64[n], bytes
        store_timestamps : int64[n], ms

        Returns
        -------
        int, how many were put; fewer than n when the file is full, or the device (the next call
        raises then)

        Raises: StoreIOError when none could be put; StoreFormatError when lengths differ or a hash
        is negative.
        Threads: one thread puts; the GIL is released.
        """
        cdef int64_t count = key_hashes.shape[0]
        cdef int64_t i
        cdef int32_t any_sign = 0
        if phy_offsets.shape[0] != count or store_timestamps.shape[0] != count:
            raise StoreFormatError(
                f"put_hashes: columns of {count}, {phy_offsets.shape[0]} and"
                f" {store_timestamps.shape[0]} rows: must have one length"
            )
        if count == 0:
            return 0
        with nogil:
            for i in range(count):
                any_sign |= key_hashes[i]
        if any_sign < 0:
            raise StoreFormatError("put_hashes: a key hash is negative: must be 0 to 2147483647")
        return self._put_columns(
            &key_hashes[0], &phy_offsets[0], &store_timestamps[0], count
        )

    def put_keys(
        self,
        topic: str | bytes,
        keys: Sequence[str | bytes],
        const int64_t[::1] phy_offsets not None,
        const int64_t[::1] store_timestamps not None,
    ) -> int:
        """Put many keys of one topic in order, as many as fit.

        Parameters
        ----------
        topic : str, or bytes of UTF-8
        keys : sequence of str, or bytes of UTF-8; n keys, each without topic and "#"
        phy_offsets : int64[n], bytes
        store_timestamps : int64[n], ms

        Returns, Raises: as `put_hashes`; TypeError when a key is neither str nor bytes (nothing is
        put then).
        Threads: one thread puts; the GIL is released, except while keys are hashed.
        Source: RocketMQ 4.9.3 IndexService#buildIndex, IndexFile#putKey.
        """
        cdef object items = PySequence_Fast(keys, b"keys must be a sequence")
        cdef int64_t count = PySequence_Fast_GET_SIZE(items)
        cdef int32_t *hashes
        if phy_offsets.shape[0] != count or store_timestamps.shape[0] != count:
            raise StoreFormatError(
                f"put_keys: columns of {count}, {phy_offsets.shape[0]} and"
                f" {store_timestamps.shape[0]} rows: must have one length"
            )
        if count == 0:
            return 0
        hashes = <int32_t *>malloc(<size_t>count * sizeof(int32_t))
        if hashes == NULL:
            raise MemoryError()
        try:
            hash_keys(prefix_of(topic), items, hashes)
            return self._put_columns(hashes, &phy_offsets[0], &store_timestamps[0], count)
        finally:
            free(hashes)

    cdef int64_t _put_columns(self, const int32_t *key_hashes, const int64_t *phy_offsets,
                              const int64_t *store_timestamps, int64_t count) except -1:
        cdef int64_t done
        cdef int status = RS_OK
        if not self.holding:
            self.open_for_writing()
        with nogil:
            done = put_hashes(
                &self.index, key_hashes, phy_offsets, store_timestamps, count, &status
            )
        if done == 0 and status != RS_FULL:
            raise self._put_error(status)
        return done

    # ---- selecting --------------------------------------------------------------------------
    def select_phy_offset(
        self, key: str | bytes, max_num: int, begin: int, end: int
    ) -> list[int]:
        """Return the physical offsets of a key's records, newest first.

        Parameters
        ----------
        key : the whole "topic#key"
        max_num : int, the most that are returned
        begin, end : int, ms, both inclusive, compared with times of whole seconds

        Returns
        -------
        list of int, bytes in the commit log; only hashes are compared

        Raises: StoreIOError; StoreCorruptionError; StoreFormatError when max_num is negative.
        Source: RocketMQ 4.9.3 IndexFile#selectPhyOffset.
        Differs: a chain whose numbers do not fall ends, where 4.9.3 could loop for ever.
        """
        cdef int32_t key_hash = hash_text(0, key)
        cdef const uint8_t *base = self.mapped_file.file.base
        if base != NULL:
            # Random memory: prefetched before the other arguments are converted.
            rs_prefetch_read(base + slot_position(&self.index, key_hash))
        return self._select(key_hash, max_num, begin, end)

    def select_hash(self, key_hash, max_num, begin, end) -> list[int]:
        """As `select_phy_offset`, with the hash from `key_hash_of`."""
        return self._select(
            <int32_t>int_in(key_hash, INT32_MIN, INT32_MAX, "key hash"),
            int_in(max_num, INT64_MIN, INT64_MAX, "max_num"),
            int_in(begin, INT64_MIN, INT64_MAX, "begin"),
            int_in(end, INT64_MIN, INT64_MAX, "end"),
        )

    cdef list _select(self, int32_t key_hash, int64_t max_num, int64_t begin, int64_t end):
        cdef index_reader reader
        cdef index_walk walk
        cdef int64_t[STEP] phy_offsets
        cdef int64_t[STEP] times
        cdef int64_t found = 0
        cdef int64_t room
        cdef int64_t i
        cdef int started
        cdef list result
        cdef object number
        if max_num < 0:
            raise StoreFormatError(f"max_num {max_num}: must not be negative")
        if key_hash < 0 or max_num == 0:
            return []
        walk.key_hash = key_hash
        walk.begin = begin
        walk.end = end
        walk.every = 0
        # Made before the mapping is used: code that the garbage collector runs may close it.
        result = PyList_New(1)
        reader.base = self.mapped_file.file.base
        reader.slots = NULL
        if self.available and reader.base != NULL and max_num <= MAX_HELD_GIL:
            # Releasing the GIL takes longer than the walk, and no thread unmaps while it is held.
            start_walk(&self.index, &reader, &walk)
            found = walk_chain(&reader, &walk, max_num, phy_offsets, times)
            if found == 1:
                number = phy_offsets[0]
                Py_INCREF(number)
                PyList_SET_ITEM(result, 0, number)
                return result
            result = PyList_New(found)
            for i in range(found):
                number = phy_offsets[i]
                Py_INCREF(number)
                PyList_SET_ITEM(result, i, number)
            return result
        if not open_reader(self, &reader):
            return []
        result = []
        try:
            with nogil:
                started = start_walk(&self.index, &reader, &walk)
            while started == RS_OK and walk.next_index > 0 and len(result) < max_num:
                room = max_num - len(result)
                room = STEP if room > STEP else room
                with nogil:
                    found = walk_chain(&reader, &walk, room, phy_offsets, times)
                for i in range(found):
                    result.append(phy_offsets[i])
                if found < 0:
                    break
        finally:
            close_reader(self, &reader)
        return result

    def select_hashes(
        self,
        const int32_t[::1] key_hashes not None,
        int64_t max_num,
        int64_t begin,
        int64_t end,
    ) -> tuple:
        """Select many hashes in one call, as `select_hash` does.

        Parameters
        ----------
        key_hashes : int32[n], from `hashes_of_keys`
        max_num : int, the most that are returned for each hash
        begin, end : as of `select_phy_offset`

        Returns
        -------
        (int64[m] index into `key_hashes`, int64[m] bytes in the commit log): one row for each hit,
        in the order of `key_hashes`, and newest first for each hash

        Raises: as `select_phy_offset`. Threads: the GIL is released.
        """
        cdef index_reader reader
        cdef index_hits hits
        cdef int64_t count = key_hashes.shape[0]
        cdef int64_t i
        cdef int status = RS_OK
        cdef int64_t[::1] key_view
        cdef int64_t[::1] phy_view
        if max_num < 0:
            raise StoreFormatError(f"max_num {max_num}: must not be negative")
        memset(&hits, 0, sizeof(index_hits))
        try:
            if count > 0 and max_num > 0 and open_reader(self, &reader):
                try:
                    with nogil:
                        status = select_many(
                            &self.index, &reader, &key_hashes[0], count, max_num, begin, end, &hits
                        )
                finally:
                    close_reader(self, &reader)
            if status == RS_NO_MEMORY:
                raise MemoryError
            key_index = np.empty(hits.count, np.int64)
            phy_offsets = np.empty(hits.count, np.int64)
            key_view = key_index
            phy_view = phy_offsets
            for i in range(hits.count):
                key_view[i] = hits.rows[i].key_index
                phy_view[i] = hits.rows[i].phy_offset
        finally:
            free(hits.rows)
        return key_index, phy_offsets

    def select_hits(
        self, int32_t key_hash, int64_t begin, int64_t end, int64_t max_num=4096, int64_t start=0
    ) -> tuple:
        """Return the hits of a hash and their times, newest first, a part of the chain a call.

        Unlike `select_hash` this misses no record whose store time is in [begin, end]: the chain is
        followed to its end, and whole seconds are allowed for, as are times that 4.9.3 stores as 0
        because the clock had been set back. A hit may still be outside of the window.

        Parameters
        ----------
        key_hash : int, from `key_hash_of`
        begin, end : int, ms, both inclusive
        max_num : int, the most that one call returns
        start : int, 0 to begin, else the next of the last call

        Returns
        -------
        (int64[n] bytes in the log, int64[n] ms at most 999 ms too early, int next or 0 at the end)

        Raises: as `select_phy_offset`.
        """
        cdef index_reader reader
        cdef index_walk walk
        cdef int64_t[::1] phy_view
        cdef int64_t[::1] time_view
        cdef int64_t found = 0
        cdef int started
        if max_num < 1:
            raise StoreFormatError(f"max_num {max_num}: must be positive")
        phy_offsets = np.empty(max_num, np.int64)
        times = np.empty(max_num, np.int64)
        if key_hash < 0 or not open_reader(self, &reader):
            return phy_offsets[:0], times[:0], 0
        phy_view = phy_offsets
        time_view = times
        walk.key_hash = key_hash
        walk.begin = max(begin, -(<int64_t>1 << 62))
        walk.end = end
        walk.every = 1
        try:
            with nogil:
                started = start_walk(&self.index, &reader, &walk)
                if started == RS_OK:
                    if start != 0:
                        walk.next_index = <int32_t>start if 0 < start <= walk.limit else 0
                    found = walk_chain(&reader, &walk, max_num, &phy_view[0], &time_view[0])
        finally:
            close_reader(self, &reader)
        return phy_offsets[:found].copy(), times[:found].copy(), walk.next_index

    def tail_count(self, int64_t phy_offset) -> int:
        """Return how many of the last entries name `phy_offset`.

        Raises: StoreIOError; StoreCorruptionError.
        """
        cdef index_reader reader
        cdef int32_t number = self.index.index_count - 1
        cdef const uint8_t *p
        cdef int64_t count = 0
        if not open_reader(self, &reader):
            return 0
        try:
            while number > 0:
                p = load_entry(&reader, entry_position(self.index.hash_slot_num, number) + 4, 8)
                if p == NULL or rs_load_be64(p) != phy_offset:
                    break
                count += 1
                number -= 1
        finally:
            close_reader(self, &reader)
        return count

    def is_time_matched(self, begin: int, end: int) -> bool:
        """Return whether [begin, end] (ms) overlaps this file's times, by 4.9.3's rule.

        Source: RocketMQ 4.9.3 IndexFile#isTimeMatched.
        """
        cdef int64_t first = self.index.begin_timestamp
        cdef int64_t last = self.index.end_timestamp
        return (
            (begin < first and end > last) or first <= begin <= last or first <= end <= last
        )

    def is_write_full(self) -> bool:
        """Return whether no entry is free. Source: RocketMQ 4.9.3 IndexFile#isWriteFull."""
        return self.index.index_count >= self.index.index_num

    # ---- what it holds ----------------------------------------------------------------------
    cdef int64_t _used(self, int32_t count) noexcept:
        return entry_position(self.index.hash_slot_num, count)

    @property
    def used_size(self) -> int:
        """Bytes from the file's start to the end of its last entry."""
        return self._used(self.index.index_count)

    @property
    def hash_slot_num(self) -> int:
        """Slots of the file (maxHashSlotNum)."""
        return self.index.hash_slot_num

    @property
    def index_num(self) -> int:
        """Entry numbers of the file (maxIndexNum), the never used 0 included."""
        return self.index.index_num

    @property
    def begin_timestamp(self) -> int:
        """Store time of the first entry, ms; the previous file's end while there is none."""
        return self.index.begin_timestamp

    @property
    def end_timestamp(self) -> int:
        """Store time of the last entry, ms; the previous file's end while there is none."""
        return self.index.end_timestamp

    @property
    def begin_phy_offset(self) -> int:
        """Physical offset of the first entry's record."""
        return self.index.begin_phy_offset

    @property
    def end_phy_offset(self) -> int:
        """Physical offset of the last entry's record."""
        return self.index.end_phy_offset

    @property
    def hash_slot_count(self) -> int:
        """Slots that have ever been used."""
        return self.index.hash_slot_count

    @property
    def index_count(self) -> int:
        """The next entry's number: 1 in an empty file."""
        return self.index.index_count
