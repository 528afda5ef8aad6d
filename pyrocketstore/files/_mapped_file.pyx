"""MappedFile: one file of a file sequence, its positions, its mapping, and its flush.

A mapping is kept while a hold or a view of it exists. No store reaches a page that `confirm` has
not allocated. Positions are shared between threads by acquire and release.
"""
cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.list cimport PyList_GET_SIZE
from libc.errno cimport EEXIST, ENOENT
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uintptr_t
from libc.string cimport memcpy
from posix.fcntl cimport O_RDONLY

from pyrocketstore.arguments._numbers_and_bodies cimport int_in
from pyrocketstore.system._allocation cimport (
    ADVICE_RANDOM, PAGE_SIZE, append_position, confirm, fill_room_ahead, keep_room_ahead, map_file,
    pread_path, zero_memory, zero_range,
)
from pyrocketstore.system._env cimport (
    EnvTable,
    Event,
    close_kept,
    kept_file,
    kept_has_name,
    path_bytes,
    path_text,
    read_kept,
    take_kept,
)
from pyrocketstore.files._writes cimport (
    WriterBuffer,
    commit_appended,
    make_file,
    store_bytes,
    sync_range,
)
from pyrocketstore._rocketstore cimport (
    check_io, rs_compare_and_swap, rs_env, rs_event, rs_fsync_directory, rs_fsync_error,
    rs_load_acquire, rs_lock_free, rs_lock_new, rs_open_for_writing, rs_store_release,
)
from pyrocketstore.errors import (
    StoreCorruptionError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
    StoreTypeError,
)

from itertools import islice

cdef enum:
    SHARED = 0
    MEMORY = 1
    READ = 2

cdef tuple MODES = ("shared", "memory", "read")
cdef tuple FILLS = ("no", "folios", "pages")     # by RS_FILL_...
cdef tuple MAP_STEPS = ("open", "fstat", "mmap")

#: The unit in which flush counts (bytes). Source: RocketMQ 4.9.3 MappedFile.OS_PAGE_SIZE.
OS_PAGE_SIZE = PAGE_SIZE

@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class MappedFile:
    """One file of a file sequence.

    Parameters
    ----------
    env : EnvTable
    path : str or os.PathLike; in memory mode None too, for bytes that are in no file
    file_size : int, bytes; the file has this length for life
    mode : "shared" (mapped on first use, writable), "memory" (an anonymous copy of the file's bytes
        below `wrote`; the disk is never written) or "read" (pread only)
    create : bool, shared: make the file, sparse and with its full length, if it is missing
    file_from_offset : int, offset of the first byte of the file in the sequence; None: taken from
        the file name
    confirm_step : int, bytes that are allocated ahead of what is needed
    populate : int, how many of those bytes have their pages touched at once
    zero_fill : "no", or allocated bytes are also written as zeros: in "folios", the cheapest way to
        make pages ready, or as "pages", so that an fsync of these written blocks writes no more
        than what was stored
    sole_writer : bool, only the writer of the file allocates for it
    defer_fsync : bool, the first flush makes a created file, its name and the directories that
        Env.make_directories has made for it durable
    by_write : bool, bytes reach the file by pwrite and never through the mapping, so that a device
        failure is an error and not a SIGBUS
    partial : bool, read: a file of another length is accepted; bytes that it lacks cannot be read
    checked : bool, the caller has opened the file for this mode, and found its length right
    mapped : bool, with create and sole_writer: no such file is expected, and the new one is mapped
        and its first page allocated at once

    Raises StoreIOError, and StoreCorruptionError for a file of another length.

    Threads: positions from any; one writer at a time; everything else needs only the GIL.
    Durability: a created file and its name are durable when the constructor returns, or with
    defer_fsync when the first flush that moves anything returns.
    Source: RocketMQ 4.9.3 MappedFile, ReferenceResource.
    Differs: a mapping is never dropped while it is in use; a failed fsync moves no position.
    """

    def __cinit__(self, EnvTable env not None, path, int64_t file_size, *, str mode="shared",
                  bint create=False, file_from_offset=None, int64_t confirm_step=65536,
                  int64_t populate=0, str zero_fill="no", bint sole_writer=False,
                  bint defer_fsync=False, bint by_write=False, bint partial=False,
                  bint checked=False, bint mapped=False):
        if mode not in MODES:
            raise StoreFormatError(f"mode {mode!r}: must be one of {', '.join(MODES)}")
        if zero_fill not in FILLS:
            raise StoreFormatError(f"zero_fill {zero_fill!r}: must be one of {', '.join(FILLS)}")
        if file_size <= 0 or confirm_step < 0 or populate < 0:
            raise StoreFormatError(
                f"file_size {file_size}, confirm_step {confirm_step}, populate {populate}:"
                " file_size must be positive, the others must not be negative")
        self.env = env
        self.kind = MODES.index(mode)
        self.path = ""
        if path is not None:
            self._path = path_bytes(path)
            self._path_text = PyBytes_AS_STRING(self._path)
            self.path = path_text(self._path)
        elif self.kind != MEMORY:
            raise StoreFormatError(f"mode {mode!r}: path must not be None")
        if file_from_offset is None:
            name = self.path.rpartition("/")[2]
            if not (name.isascii() and name.isdigit()):
                raise StoreFormatError(
                    f"{self.path}: the name is not an offset: pass file_from_offset")
            file_from_offset = int(name)
        self.file.env = &env.table
        self.file.file_from_offset = file_from_offset
        self.file.file_size = file_size
        self.file.confirm_step = confirm_step
        self.file.populate = populate
        self.file.zero_fill = FILLS.index(zero_fill)
        if self.file.zero_fill and not sole_writer and self.kind == SHARED:
            self.file.fill_lock = rs_lock_new()
            if self.file.fill_lock == NULL:
                raise MemoryError()
        self.file.by_write = by_write and self.kind == SHARED
        self.name_unsynced = defer_fsync  # reset below unless the file is made now
        if self.kind == SHARED:
            self.file.path = self._path_text
        if not checked:
            self.open_file(create, partial and self.kind == READ, mapped and sole_writer)
        self.name_unsynced = self.name_unsynced and self.created
        self.available = True

    def __dealloc__(self):
        # Only the mapping: after a fork this may be the child, and the file is the parent's.
        if self.file.base != NULL:
            self.env.table.munmap(self.file.base, self.file.file_size)
            self.file.base = NULL
        close_kept(&self.kept)
        rs_lock_free(self.file.fill_lock)

    cdef int open_file(self, bint create, bint partial, bint mapped) except -1:
        cdef int64_t size = 0
        cdef int fd
        cdef bint create_now = create and self.kind == SHARED
        cdef const rs_env *env = self.file.env
        cdef const char *path = self._path_text
        if path == NULL or (create and self.kind == MEMORY):
            return 0
        if create_now and mapped and self.create_file(False, True):
            return 0
        with nogil:
            fd = rs_open_for_writing(&self.file) if self.kind == SHARED else env.open(
                path, O_RDONLY, 0)
        if fd == -ENOENT and create_now:
            return check_io(0 if self.create_file(False, False) else -EEXIST, "link", self.path, -1)
        if fd == -ENOENT and self.kind == MEMORY:
            return 0
        check_io(fd, "open", self.path, -1)
        with nogil:
            size = env.file_size(fd)
            env.close(fd)
        check_io(size, "fstat", self.path, -1)
        if size == 0 and create_now:
            self.create_file(True, False)
            return 0
        if self.kind == MEMORY:
            self.source_size = min(size, self.file.file_size)
        elif size != self.file.file_size and not partial:
            raise StoreCorruptionError(
                self.path, -1, f"the file has {size} bytes and must have {self.file.file_size}")
        return 0

    cdef bytes directory(self):
        return self._path.rpartition(b"/")[0] or (b"/" if self._path.startswith(b"/") else b".")

    cdef bint create_file(self, bint is_there, bint mapped) except -1:
        # Whether the file was made: not if `is_there` is False and the file exists.
        self.created = make_file(self.env, self._path, self.file.file_size, not self.name_unsynced,
                                 is_there, self.path, &self.file if mapped else NULL)
        return self.created

    # ---- positions ---------------------------------------------------------------------------
    @property
    def file_size(self):
        """Length of the file, bytes."""
        return self.file.file_size

    @property
    def file_from_offset(self):
        """Offset of the first byte of the file in the sequence."""
        return self.file.file_from_offset

    @property
    def mode(self):
        """"shared", "memory" or "read"."""
        return MODES[self.kind]

    @property
    def wrote(self):
        """Position after the last byte in the file: readers see the bytes before it. Setting a
        lower position also lowers `confirmed`."""
        return rs_load_acquire(&self.file.wrote)

    @wrote.setter
    def wrote(self, value):
        cdef int64_t position = self.checked_position(value)
        self.populated = min(self.populated, position)
        self.give_up_from(position)
        rs_store_release(&self.file.appended, position)
        rs_store_release(&self.file.wrote, position)

    @property
    def committed(self):
        """`wrote` under 4.9.3's name: position after the last byte that left the buffer."""
        return rs_load_acquire(&self.file.wrote)

    @property
    def appended(self):
        """Position after the last byte that the writer put, in the file or in its buffer."""
        return append_position(&self.file)

    @property
    def has_buffer(self):
        """True while the writer stores to a buffer, which `commit` copies to the file."""
        return self.file.buffer != NULL

    @property
    def flushed(self):
        """Position after the last byte that is durable."""
        return rs_load_acquire(&self.file.flushed)

    @flushed.setter
    def flushed(self, value):
        rs_store_release(&self.file.flushed, self.checked_position(value))

    @property
    def confirmed(self):
        """Position below which every byte is allocated on the device."""
        return rs_load_acquire(&self.file.confirmed)

    @property
    def confirm_step(self):
        """Bytes that one allocation adds ahead of the writer."""
        return self.file.confirm_step

    @property
    def populate(self):
        """How many of those bytes have their pages touched ahead."""
        return self.file.populate

    @property
    def store_timestamp(self):
        """Store time of the last append, Unix ms; 0 before the first."""
        return rs_load_acquire(&self.file.store_timestamp)

    @store_timestamp.setter
    def store_timestamp(self, value):
        cdef int64_t time_ms = int_in(value, INT64_MIN, INT64_MAX, "store_timestamp")
        rs_store_release(&self.file.store_timestamp, time_ms)

    cdef void give_up_from(self, int64_t position) noexcept:
        # The bytes from there on must be allocated and filled again.
        if position < rs_load_acquire(&self.file.allocated):
            rs_store_release(&self.file.allocated, position)
        if position < rs_load_acquire(&self.file.confirmed):
            rs_store_release(&self.file.confirmed, position)

    cdef int64_t checked_position(self, object value) except -1:
        return int_in(value, 0, self.file.file_size, "position")

    @property
    def zero_fill(self):
        """"no", "folios" or "pages": how allocated bytes are written as zeros."""
        return FILLS[self.file.zero_fill]

    def set_positions(self, position):
        """Set wrote, committed and flushed to `position` (bytes)."""
        self.wrote = position
        self.flushed = position

    def get_read_position(self):
        """Return the position after the last byte that readers may see."""
        return rs_load_acquire(&self.file.wrote)

    def is_full(self):
        """Return True when every byte is written, to the file or to its buffer."""
        return append_position(&self.file) == self.file.file_size

    def is_available(self):
        """Return False after `shutdown` or `destroy`."""
        return self.available

    def is_cleanup_over(self):
        """Return True when the file is shut down and its last hold is released."""
        return not self.available and self.holds == 0 and self.file.base == NULL

    @property
    def is_mapped(self):
        """True while the file's bytes are mapped."""
        return self.file.base != NULL

    @property
    def address(self):
        """Address of the mapping; 0 without one. Valid while the file is held."""
        return <uintptr_t>self.file.base

    # ---- life --------------------------------------------------------------------------------
    def hold(self):
        """Keep the mapping until `release`; return False when the file is shut down.

        Maps the file if it is not mapped (not in read mode). Raises StoreIOError. Threads: any.
        """
        cdef bint held = self.take_hold()
        self.lent += held
        return held

    def release(self):
        """Release one `hold`; the last release of a file that was shut down unmaps it.

        Raises StoreStateError when `release` is called more often than `hold`. Compiled code counts
        its own holds, so that a caller in Python cannot unmap a file under it.
        """
        if self.lent <= 0:
            raise StoreStateError(f"{self.path}: released more often than held")
        self.lent -= 1
        self.drop_hold()

    cdef bint take_hold(self) except -1:
        # As `hold`, for compiled code, which releases it by drop_hold.
        cdef bint mapped = False
        if not self.available:
            return False
        # Counted before the GIL can be released, so that no other thread unmaps the file.
        self.holds += 1
        if self.file.base == NULL and self.kind != READ:
            try:
                self.map()
                mapped = self.available
            except StoreIOError:
                if self.available and not self.unlinked:
                    raise  # else the file was deleted while it was opened
            finally:
                if not mapped:
                    self.drop_hold()
            return mapped
        return True

    cdef int drop_hold(self) except -1:
        self.holds -= 1
        if self.holds == 0 and not self.available:
            self.unmap()
            self.drop_buffer()
        return 0

    cdef int map(self) except -1:
        cdef const rs_env *env = self.file.env
        cdef int64_t size = self.file.file_size
        cdef int64_t fill = 0, got = 0, length = size
        cdef void *base = NULL
        cdef const char *path = self._path_text if self.kind == SHARED else NULL
        cdef int error, step = 0
        if path == NULL:
            fill = min(self.source_size, rs_load_acquire(&self.file.wrote))
        with nogil:
            error = map_file(&self.file, path, size, not self.file.by_write, &base, &length, &step)
            if error >= 0 and fill > 0:
                got = pread_path(env, self._path_text, base, fill, 0)
                if got < fill:
                    env.munmap(base, size)
                    base = NULL
            if base != NULL and self.created and self.file.zero_fill and (
                    self.file.fill_lock == NULL):
                # A fault must not read ahead: it would leave single pages where zeros are written.
                env.madvise(base, size, ADVICE_RANDOM)
        check_io(error, MAP_STEPS[step], self.path, -1)
        if length < size:
            # Cut since it was opened: a load after its end would raise SIGBUS.
            raise StoreCorruptionError(
                self.path, length, f"the file has {length} bytes and must have {size}")
        check_io(got, "pread", self.path, 0)
        if got < fill:
            raise StoreCorruptionError(self.path, got, f"the file ends before byte {fill}")
        if self.file.base != NULL:
            # Another thread has mapped the file, and may have written to it.
            with nogil:
                env.munmap(base, size)
            return 0
        self.file.base = <uint8_t *>base
        self.close_kept()  # no read needs it while the file is mapped
        return 0

    cdef int unmap(self) except -1:
        cdef uint8_t *base = self.file.base
        cdef int error
        if base == NULL:
            return 0
        self.file.base = NULL
        with nogil:
            error = self.file.env.munmap(base, self.file.file_size)
        check_io(error, "munmap", self.path, -1)
        return 0

    def unmap_idle(self):
        """Unmap a shared file that nothing holds; return True if it was mapped.

        The next use maps it again.
        """
        if self.kind != SHARED or self.holds > 0 or self.file.base == NULL:
            return False
        self.unmap()
        return True

    def shutdown(self, interval_ms=0):
        """Make the file unavailable; the last release of a hold unmaps it.

        `interval_ms` is ignored. Differs: 4.9.3 unmaps under live readers after that time.
        """
        self.available = False
        self.close_kept()
        if self.holds == 0:
            self.unmap()
            self.drop_buffer()

    def close_kept(self):
        """Close the descriptor that reads have kept; the next read opens the file again.

        Without a mapping, reads keep the file open between calls (`system/_env.pyx`).
        """
        close_kept(&self.kept)

    def destroy(self, interval_ms=0):
        """Make the file unavailable and delete it; return True when its name is gone.

        Readers that hold it can still read it. In read and memory mode the disk is not changed.

        Raises StoreIOError when it cannot be deleted; a later call tries again.
        Source: RocketMQ 4.9.3 MappedFile#destroy. Differs: does not wait for the holders.
        """
        self.shutdown(interval_ms)
        self.unlink()
        return True

    def unlink(self):
        """Delete the name only; after a StoreIOError the file remains usable."""
        cdef int error
        if self.kind == SHARED and not self.unlinked:
            self.env.check_pinned(self.path)
            self.unlinked = True    # first: other threads may miss the name before unlink returns
            with nogil:
                error = self.file.env.unlink(self._path_text)
            if error != -ENOENT:
                self.unlinked = error >= 0
                check_io(error, "unlink", self.path, -1)
            self.close_kept()

    def to_memory(self):
        """Turn a read file into a memory file, so that appends leave the disk alone."""
        if self.kind != READ:
            raise StoreStateError(f"{self.path}: only a read file can become a memory file")
        self.kind = MEMORY
        self.source_size = self.file.file_size
        self.close_kept()
        if self.holds > 0:
            self.map()

    def last_modified_ms(self):
        """Return when the file was last modified, Unix ms; the current time without a file."""
        if self.kind == MEMORY and self.source_size == 0:
            return self.env.now_ms()
        return self.env.mtime_ms(self.path)

    # ---- writing -----------------------------------------------------------------------------
    cdef int confirm_or_raise(self, int64_t end) except -1:
        cdef int error
        if self.kind == READ:
            raise StoreStateError(f"{self.path} is open for reading only")
        if end <= rs_load_acquire(&self.file.confirmed):
            return 0
        with nogil:
            error = confirm(&self.file, end)
        check_io(error, "fallocate", self.path, end)
        return 0

    def confirm_to(self, int64_t end):
        """Allocate [0, end) of the file, and confirm_step more. Raises StoreIOError."""
        self.confirm_or_raise(end)

    def keep_ahead(self, int64_t ahead, int64_t populate=0):
        """Keep `ahead` bytes after the writer allocated; an allocation adds confirm_step bytes.

        Parameters
        ----------
        ahead : int, bytes
        populate : int, bytes after the writer whose pages are touched too, if allocated

        Raises StoreIOError. Threads: any, the writer's or not; without the GIL.
        """
        cdef int error
        if self.kind != SHARED or not self.take_hold():
            return
        try:
            with nogil:
                error = keep_room_ahead(&self.file, ahead, populate, &self.populated,
                                        &self.available)
            self.env.check(error, "fallocate", self.path, rs_load_acquire(&self.file.confirmed))
        finally:
            self.drop_hold()

    def fill_ahead(self, int64_t ahead, Event event=None):
        """Keep `ahead` bytes after the writer filled with zeros, for a writer in another thread.

        Parameters
        ----------
        ahead : int, bytes
        event : Event or None; while it is signalled every few milliseconds and the writer has used
            half of `ahead`, filling continues, so that a fast writer does not wait for the GIL

        Raises StoreIOError. Threads: one helper beside the writer; without the GIL.
        """
        cdef rs_event *wake = NULL if event is None else event.event
        cdef int error
        if self.kind != SHARED or not self.take_hold():
            return
        try:
            with nogil:
                error = fill_room_ahead(&self.file, ahead, wake, &self.available)
            check_io(error, "fallocate", self.path, rs_load_acquire(&self.file.confirmed))
        finally:
            self.drop_hold()

    def append_message(self, const uint8_t[::1] data not None, int64_t offset=0, length=None):
        """Append data[offset:offset + length]; False when it does not fit.

        Raises StoreIOError when the device is full. Threads: one writer.
        Source: RocketMQ 4.9.3 MappedFile#appendMessage(byte[], int, int).
        Differs: a failed append does not advance.
        """
        cdef int64_t size = data.shape[0] - offset if length is None else length
        cdef int64_t position = append_position(&self.file)
        cdef int error
        if offset < 0 or size < 0 or size > data.shape[0] - offset:
            raise StoreFormatError(
                f"offset {offset}, length {size}: must be in the {data.shape[0]} bytes of data")
        if self.kind == READ:
            raise StoreStateError(f"{self.path} is open for reading only")
        if size > self.file.file_size - position:
            return False
        if size == 0:
            return True
        if not self.take_hold():
            raise StoreStateError(f"{self.path} is not available")
        try:
            self.confirm_or_raise(position + size)
            with nogil:
                error = store_bytes(&self.file, position, &data[offset], size)
            check_io(error, "pwrite", self.path, position)
            rs_store_release(&self.file.wrote if self.file.buffer == NULL else &self.file.appended,
                             position + size)
        finally:
            self.drop_hold()
        return True

    def use_buffer(self, WriterBuffer buffer not None):
        """Let the writer store to `buffer`, of the file's size, until the file is full.

        Only for a file without data. Source: RocketMQ 4.9.3 MappedFile#init.
        """
        if self.kind != SHARED or buffer.size != self.file.file_size or append_position(&self.file):
            raise StoreStateError(f"{self.path}: cannot take a buffer of {buffer.size} bytes")
        self.writer_buffer = buffer
        self.file.data_end = self.file.file_size
        self.file.buffer = buffer.base

    cdef int drop_buffer(self) except -1:
        cdef WriterBuffer buffer = self.writer_buffer
        self.file.buffer = NULL
        self.writer_buffer = None
        if buffer is not None:
            buffer.free()
        return 0

    def is_able_to_commit(self, int64_t commit_least_pages):
        """Return True when the buffer holds that many pages to commit, or any byte of a full file.

        Source: RocketMQ 4.9.3 MappedFile#isAbleToCommit.
        """
        cdef int64_t committed = rs_load_acquire(&self.file.wrote)
        cdef int64_t position = append_position(&self.file)
        if position <= committed or position == self.file.file_size or commit_least_pages <= 0:
            return position > committed
        return position // PAGE_SIZE - committed // PAGE_SIZE >= commit_least_pages

    def commit(self, int64_t commit_least_pages=0):
        """Copy the buffer to the file; return the committed position. One thread at a time.

        A full file returns its buffer. Raises StoreIOError: the committed position does not move
        then, and the next call tries again. Durability: as after a store into a mapping.
        Source: RocketMQ 4.9.3 MappedFile#commit. Differs: short writes are continued.
        """
        cdef int error
        if self.is_able_to_commit(commit_least_pages) and self.take_hold():
            try:
                with nogil:
                    error = commit_appended(&self.file)
                self.env.check(error, "pwrite", self.path, rs_load_acquire(&self.file.wrote))
            finally:
                self.drop_hold()
        if self.file.buffer != NULL and rs_load_acquire(&self.file.wrote) == self.file.file_size:
            self.drop_buffer()
        return rs_load_acquire(&self.file.wrote)

    def is_able_to_flush(self, int64_t flush_least_pages):
        """Return True when enough pages are dirty.

        Source: RocketMQ 4.9.3 MappedFile#isAbleToFlush.
        """
        cdef int64_t flushed = rs_load_acquire(&self.file.flushed)
        cdef int64_t position = rs_load_acquire(&self.file.wrote)
        if flushed >= position:
            return False
        if position == self.file.file_size:
            return True
        if flush_least_pages > 0:
            return position // PAGE_SIZE - flushed // PAGE_SIZE >= flush_least_pages
        return True

    def flush(self, int64_t flush_least_pages=0):
        """Flush the written bytes to the device; return the flushed position.

        Raises StoreIOError: the flushed position does not move then. Threads: any.
        Durability: bytes below the returned position are durable.
        Source: RocketMQ 4.9.3 MappedFile#flush. Differs: only dirty pages; errors are raised.
        """
        cdef int64_t flushed = rs_load_acquire(&self.file.flushed)
        cdef int64_t position = rs_load_acquire(&self.file.wrote)
        if not self.is_able_to_flush(flush_least_pages) or not self.available:
            return flushed
        if self.kind == SHARED:
            if not self.sync_data(flushed, position):
                return flushed
            self.sync_name()
        return self.move_flushed(flushed, position)

    cdef bint sync_data(self, int64_t flushed, int64_t position) except -1:
        # False if the file was deleted during the flush: its content is not needed any more.
        cdef int error
        self.holds += 1
        try:
            with nogil:
                error = sync_range(&self.file, flushed, position)
        finally:
            self.drop_hold()
        if error < 0 and self.is_unwanted():
            return False
        self.env.check(error, "msync", self.path, flushed)
        return True

    cdef int64_t move_flushed(self, int64_t flushed, int64_t position) noexcept:
        # After a flush that began at `flushed`.
        cdef int64_t now
        while True:
            now = rs_load_acquire(&self.file.flushed)
            # Below `flushed`: the file was cut during the flush, and the flushed bytes are gone.
            if now < flushed or now >= position:
                return now
            if rs_compare_and_swap(&self.file.flushed, now, position):
                return position

    def unflushed(self):
        """Return (flushed, wrote) if a flush would write the file, else None: see note_flushed."""
        cdef int64_t flushed = rs_load_acquire(&self.file.flushed)
        cdef int64_t position = rs_load_acquire(&self.file.wrote)
        if self.kind != SHARED or not self.available or flushed >= position:
            return None
        return flushed, position

    def note_flushed(self, int64_t flushed, int64_t position):
        """Take note that the whole file system was flushed after `unflushed` returned these
        values."""
        self.checked_position(flushed)
        self.checked_position(position)
        self.move_flushed(flushed, position)
        self.name_unsynced = False

    cdef bint is_unwanted(self):
        # True for a deleted file, unless an fsync has failed: that is final.
        return (self.unlinked or not self.available) and not rs_fsync_error(self.file.env)

    cdef int sync_name(self) except -1:
        # Call after a flush of the file itself, which makes its length durable.
        cdef bytes directory
        cdef const char *directory_path
        cdef int error
        if not self.name_unsynced:
            return 0
        directory = self.directory()
        directory_path = PyBytes_AS_STRING(directory)
        with nogil:
            error = rs_fsync_directory(self.file.env, directory_path)
        if error < 0 and self.is_unwanted():
            return 0  # deleted meanwhile, perhaps with its directory
        self.env.check(error, "fsync_directory", self.path, -1)
        if self.env.made_names:
            try:
                self.env.fsync_new_names(path_text(directory))
            except StoreIOError:
                if self.is_unwanted():
                    return 0
                raise
        self.name_unsynced = False
        return 0

    def mark_unflushed(self):
        """Have the next flush write the whole file and its name: after a killed process they may be
        in the page cache only."""
        rs_store_release(&self.file.flushed, 0)
        self.name_unsynced = self.kind == SHARED

    def zero_tail(self, position):
        """Fill the file with zeros from `position` to its end. Positions stay.

        Raises StoreIOError. Durability: the zeros are durable on return.
        Differs: 4.9.3 leaves old bytes there, and may read them as messages after the next crash.
        """
        cdef int64_t begin = self.checked_position(position)
        cdef int64_t size = self.file.file_size - begin
        cdef int error
        if self.kind == READ:
            raise StoreStateError(f"{self.path} is open for reading only")
        if size == 0:
            return
        self.give_up_from(begin)
        if self.kind == MEMORY:
            self.source_size = min(self.source_size, begin)
            if self.file.base != NULL:
                zero_memory(self.file.env, self.file.base, begin, size)
            return
        with nogil:
            error = zero_range(&self.file, begin, size)
        self.env.check(error, "punch", self.path, begin)
        self.sync_name()

    def overwrite(self, int64_t position, const uint8_t[::1] data not None):
        """Replace written bytes of a memory file; the disk is left alone. Positions stay.

        Raises StoreIOError when the file cannot be read. Threads: one writer.
        """
        cdef int64_t size = data.shape[0]
        if self.kind != MEMORY:
            raise StoreStateError(f"{self.path}: only a memory file can be overwritten")
        if position < 0 or size > rs_load_acquire(&self.file.wrote) - position:
            raise StoreFormatError(f"{size} bytes at {position}: must be before {self.wrote}")
        if size == 0:
            return
        if not self.take_hold():
            raise StoreStateError(f"{self.path} is not available")
        try:
            memcpy(self.file.base + position, &data[0], <size_t>size)
        finally:
            self.drop_hold()

    # ---- reading -----------------------------------------------------------------------------
    def read(self, int64_t position, int64_t size):
        """Return the bytes [position, position + size), written or not.

        Raises StoreIOError; StoreCorruptionError when the file is shorter.
        """
        if position < 0 or size < 0 or size > self.file.file_size - position:
            raise StoreCorruptionError(
                self.path, position,
                f"cannot read {size} bytes there: the file has {self.file.file_size}")
        if self.file.base == NULL and self.kind != MEMORY:
            return self.pread(position, size)
        if not self.take_hold():
            raise StoreStateError(f"{self.path} is not available")
        try:
            return PyBytes_FromStringAndSize(<char *>self.file.base + position, size)
        finally:
            self.drop_hold()

    cdef const char *disk_path(self) noexcept:
        if self.kind == MEMORY or self.file.buffer != NULL or not self.available:
            return NULL
        return self._path_text

    cdef int64_t read_into(self, void *target, int64_t size, int64_t position) noexcept:
        # Reads from the file on disk: the bytes read, fewer only at its end; or a negated errno.
        cdef int64_t got
        if self.kind != MEMORY and self.available:
            got = read_kept(&self.kept, self.env, self._path_text, self.kind == SHARED, target,
                            size, position)
            if self.unlinked or not self.available:  # deleted or shut down meanwhile: not kept
                close_kept(&self.kept)
        else:
            with nogil:
                got = pread_path(self.file.env, self._path_text, target, size, position)
        # Deleted meanwhile: the path may have been opened when a new file was there.
        return -ENOENT if self.unlinked else got

    cdef bint has_name(self) noexcept:
        # True if another process surely has not deleted the file.
        if self.kind == READ:
            return self.available and kept_has_name(&self.kept)
        return self.available and not self.unlinked

    cdef kept_file *take_descriptor(self) except NULL:
        # The file of a read file, for several reads, until release_kept. Raises StoreIOError.
        cdef int error = 0
        cdef kept_file *file = take_kept(&self.kept, self.env, self._path_text, &error)
        check_io(error, "open", self.path, -1)
        if not self.available:  # shut down meanwhile: not kept
            close_kept(&self.kept)
        return file

    cdef bint is_on_disk(self) noexcept:
        return self.kind != MEMORY and self.available

    cdef bytes pread(self, int64_t position, int64_t size):
        cdef bytes buffer = PyBytes_FromStringAndSize(NULL, size)
        cdef int64_t got = self.read_into(PyBytes_AS_STRING(buffer), size, position)
        check_io(got, "pread", self.path, position)
        if got < size:
            raise StoreCorruptionError(
                self.path, position, f"the file ends after {got} of {size} bytes")
        return buffer

    def select_mapped_buffer(self, int64_t position, size=None):
        """Return a view of [position, position + size), or up to the read position; else None.

        Raises StoreIOError, StoreCorruptionError. The view holds the file until it is released.
        Source: RocketMQ 4.9.3 MappedFile#selectMappedBuffer.
        Differs: negative arguments give None.
        """
        if size is None:
            return self.select(position, -1)
        if size < 0 or size > self.file.file_size:
            return None
        return self.select(position, size)

    cdef SelectMappedBufferResult select(self, int64_t position, int64_t size):
        # Size -1: up to the read position, which must be after `position`.
        cdef int64_t end = rs_load_acquire(&self.file.wrote)
        cdef SelectMappedBufferResult result
        if position < 0 or (position >= end if size < 0 else size > end - position):
            return None
        if size < 0:
            size = end - position
        if not self.take_hold():
            return None
        result = SelectMappedBufferResult.__new__(SelectMappedBufferResult)
        result.mapped_file = self
        result.holding = True
        result.start_offset = self.file.file_from_offset + position
        result.size = size
        if self.kind == READ:
            result.owned = self.pread(position, size)
            result.data = <const uint8_t *>PyBytes_AS_STRING(<bytes>result.owned)
        else:
            result.data = self.file.base + position
        return result

    def __repr__(self):
        return f"MappedFile({self.path!r}, {self.mode}, wrote={self.wrote}/{self.file_size})"


def flush_together(files):
    """Flush files of one directory as MappedFile.flush does, and the directory once.

    Parameters
    ----------
    files : sequence of MappedFile

    Raises StoreIOError: no flushed position moves then. Threads: any.
    Durability: on return, the written bytes of each file are durable.
    """
    cdef MappedFile file
    cdef bint are_named = False
    cdef list done = []
    for file in files:
        flushed = rs_load_acquire(&file.file.flushed)
        position = rs_load_acquire(&file.file.wrote)
        if not file.is_able_to_flush(0) or not file.available:
            continue
        if file.kind != SHARED or file.sync_data(flushed, position):
            done.append((file, flushed, position))
    for file, _, _ in done:
        if not file.name_unsynced:
            continue
        if are_named:
            file.name_unsynced = False
        else:
            file.sync_name()
            are_named = not file.name_unsynced  # a file that is being deleted may keep the name
    for file, flushed, position in done:
        file.move_flushed(flushed, position)


@cython.final
@cython.auto_pickle(False)
cdef class FileSequence:
    """The files of a sequence at one moment, by offset: an immutable sequence of MappedFile.

    Sequences that end at different files share one list, which is only appended to: a longer
    sequence costs the same however many files there are.

    Parameters
    ----------
    files : iterable of MappedFile

    Threads: any reads; `with_last` one at a time.
    """

    def __init__(self, files=()):
        cdef list items = []
        for file in files:
            items.append(<MappedFile?>file)
        self.items, self.count = items, PyList_GET_SIZE(items)

    def with_last(self, MappedFile file not None):
        """Return the sequence that has one file more."""
        cdef FileSequence longer = FileSequence.__new__(FileSequence)
        # Another sequence may have the list longer already.
        longer.items = (
            self.items if PyList_GET_SIZE(self.items) == self.count else self.items[:self.count]
        )
        longer.items.append(file)
        longer.count = self.count + 1
        return longer

    def __cinit__(self, *arguments):
        self.items = []

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        cdef Py_ssize_t at
        if isinstance(number, slice):
            start, stop, step = number.indices(self.count)
            return FileSequence(self.items[at] for at in range(start, stop, step))
        at = number
        if at < 0:
            at += self.count
        if not 0 <= at < self.count:
            raise IndexError(f"file {number} of {self.count}")
        return self.items[at]

    def __iter__(self):
        return islice(self.items, self.count)

    def __repr__(self):
        return f"FileSequence({self.items[:self.count]!r})"


cdef MappedFile file_with(FileSequence files, int64_t offset, int64_t file_size):
    cdef Py_ssize_t count = 0 if files is None else files.count
    cdef Py_ssize_t i
    cdef int64_t start
    cdef MappedFile found
    if count == 0 or file_size <= 0:
        return None
    start = files.at(0).file.file_from_offset
    if offset < start:
        return None
    i = <Py_ssize_t>min(offset // file_size - start // file_size, <int64_t>count - 1)
    found = files.at(i)
    if 0 <= offset - found.file.file_from_offset < file_size:
        return found
    for i in range(count):  # a file is missing in between
        found = files.at(i)
        if 0 <= offset - found.file.file_from_offset < file_size:
            return found
    return None


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class SelectMappedBufferResult:
    """A read-only view of bytes of a MappedFile (buffer protocol: uint8[size]).

    The mapping is kept until the view is released or collected and every buffer taken from it is
    released. Source: RocketMQ 4.9.3 SelectMappedBufferResult.
    """

    def __init__(self):
        raise StoreTypeError("call MappedFile.select_mapped_buffer to get a view")

    def __dealloc__(self):
        if self.holding:
            self.holding = False
            self.mapped_file.drop_hold()

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self.released:
            raise StoreStateError("the view was released")
        if flags & PyBUF_WRITABLE:
            raise BufferError("the view is read-only")
        PyBuffer_FillInfo(buffer, self, <void *>self.data, self.size, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self.exports -= 1
        if self.released:
            self.drop_view_hold()

    @property
    def byte_buffer(self):
        """A memoryview of the bytes; it keeps the mapping alive."""
        return memoryview(self)

    cpdef release(self):
        """Release the hold once all buffers are released. Idempotent."""
        self.released = True
        self.drop_view_hold()

    cdef int drop_view_hold(self) except -1:
        if self.exports == 0 and self.holding:
            self.holding = False
            self.data = NULL
            self.mapped_file.drop_hold()
        return 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.release()
