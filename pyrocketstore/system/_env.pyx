"""The table of operating system calls, the event that threads sleep on, and files kept open.

Every call that can fail, or that durability depends on, goes through `EnvTable.table`. This holds
for Python code and for code without the GIL. A test replaces functions in the table.
"""
import os
from threading import get_ident, main_thread

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport PyObject, Py_DECREF, Py_INCREF
from libc.errno cimport EACCES, EAGAIN, EIO, EMFILE, ENFILE, ENOMEM, EOPNOTSUPP, errno
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport strlen
from posix.fcntl cimport O_RDONLY
from posix.stat cimport lstat, stat as stat_call, struct_stat
from posix.unistd cimport _SC_OPEN_MAX, sysconf

from pyrocketstore._rocketstore cimport (
    RS_FAILED_CALL,
    RS_FAILED_FDATASYNC,
    RS_FAILED_FSYNC,
    RS_FAILED_FSYNC_DIRECTORY,
    RS_FAILED_MSYNC,
    RS_FAILED_OPEN,
    RS_FAILED_SYNCFS,
    RS_FSYNC_REFUSED,
    check_io,
    rs_env,
    rs_env_posix,
    rs_event,
    rs_event_free,
    rs_event_new,
    rs_event_sequence,
    rs_event_signal,
    rs_event_wait,
    rs_fdatasync,
    rs_fsync,
    rs_fsync_directory,
    rs_fsync_error,
    rs_syncfs,
)

from pyrocketstore.display import shown
from pyrocketstore.errors import StoreFormatError, StoreFsyncError, StoreIOError, without_frames

cdef extern from "Python.h":
    bytes PyUnicode_EncodeFSDefault(object text)
    str PyUnicode_DecodeFSDefaultAndSize(const char *data, Py_ssize_t size)
    object PyOS_FSPath(object path)

# The fields of rs_env in order: the table is accessed as an array of addresses.
cdef tuple NAMES = (
    "open", "close", "ftruncate", "fallocate", "punch", "mmap", "munmap", "msync", "madvise",
    "fdatasync", "fsync", "pread", "pwrite", "rename", "unlink", "mkdir", "rmdir",
    "fsync_directory", "lock", "file_size", "now_ms", "monotonic_ns", "mlock", "munlock",
    "lock_directory", "unlock",
    "open_unnamed", "link_unnamed", "link", "link_count", "syncfs",
    "list_directory",
)
assert len(NAMES) * sizeof(void *) + 2 * sizeof(int32_t) == sizeof(rs_env)

# Call names by the number in a result (see fsync.h).
cdef dict FAILED_CALLS = {
    RS_FAILED_OPEN: "open", RS_FAILED_MSYNC: "msync", RS_FAILED_FDATASYNC: "fdatasync",
    RS_FAILED_FSYNC: "fsync", RS_FAILED_FSYNC_DIRECTORY: "fsync_directory",
    RS_FAILED_SYNCFS: "syncfs",
}

# The longest sleep of the main thread before it checks for signals such as Ctrl-C.
cdef int64_t SIGNAL_SLICE_MS = 50
cdef int64_t LONG_SLICE_MS = 3600 * 1000


cdef bytes path_bytes(object path):
    cdef object text = PyOS_FSPath(path)
    cdef bytes encoded
    try:
        encoded = text if isinstance(text, bytes) else PyUnicode_EncodeFSDefault(text)
    except UnicodeEncodeError:
        raise StoreFormatError(f"{text}: not a path in this locale's encoding") from None
    if b"\0" in encoded:
        raise StoreFormatError(f"a path cannot hold a NUL byte: {shown(path)}")
    return encoded


cdef str path_text(bytes path):
    return PyUnicode_DecodeFSDefaultAndSize(PyBytes_AS_STRING(path), len(path))


cdef list names_of(const char *entries, int64_t size):
    cdef list found = []
    cdef int64_t at = 0
    cdef size_t length
    while at < size:
        length = strlen(entries + at + 1)
        found.append((PyUnicode_DecodeFSDefaultAndSize(entries + at + 1, length), chr(entries[at])))
        at += length + 2
    return found


@cython.auto_pickle(False)
cdef class EnvTable:
    """The calls into the operating system; each can be replaced.

    A method returns the call's value or raises StoreIOError(errno, operation, path, position); a
    failed fsync raises StoreFsyncError. Paths are str or os.PathLike. While a watcher is registered
    (`watch_fsyncs`), the first fsync that fails is final: no later fsync is attempted.

    Threads: any; each call runs without the GIL. `replace` is for tests, before threads start.
    """

    def __cinit__(self, *args, **kwargs):
        rs_env_posix(&self.table)
        self.fsync_watchers = []
        self.made_names = {}
        self.flushed_names = {}

    # ---- failed fsyncs -----------------------------------------------------------------------
    def watch_fsyncs(self, watcher not None):
        """Make the first failed fsync final, and call `watcher`'s referent with its error.

        watcher : a weak reference

        The first watcher clears an earlier failure, since a store that opens reads its files again.
        """
        self.fsync_watchers = [w for w in self.fsync_watchers if w() is not None]
        if not self.fsync_watchers:
            self.forget_fsyncs()
        self.fsync_watchers.append(watcher)
        self.table.fsync_is_final = 1

    def unwatch_fsyncs(self, watcher not None):
        """End `watch_fsyncs` for this weak reference; do nothing if it is not registered."""
        self.fsync_watchers = [w for w in self.fsync_watchers if w is not watcher]
        if not self.fsync_watchers:
            self.forget_fsyncs()

    cdef int forget_fsyncs(self) except -1:
        self.table.fsync_is_final = 0
        self.table.fsync_error = 0
        self.fsync_failed = None
        return 0

    @property
    def fsync_failure(self):
        """The StoreFsyncError of the fsync that failed while a watcher was registered, or None."""
        cdef int error = rs_fsync_error(&self.table)
        if error == 0:
            return None
        if self.fsync_failed is not None:
            return without_frames(self.fsync_failed)
        # The thread whose fsync failed has not stored its exception yet.
        return StoreFsyncError(error, "fsync", "a file of the store")

    cdef object error_of(self, int result, str operation, object path, int64_t position):
        cdef int call = -result & RS_FAILED_CALL
        cdef int error = -result & ~RS_FAILED_CALL
        if call == RS_FSYNC_REFUSED:
            found = self.fsync_failure
            return StoreFsyncError(error, "fsync", path) if found is None else found
        operation = FAILED_CALLS.get(call, operation)
        if call <= RS_FAILED_OPEN:
            return StoreIOError(error, operation, path, position)
        found = StoreFsyncError(error, operation, path, position)
        if self.table.fsync_is_final and self.fsync_failed is None:
            self.fsync_failed = without_frames(found)
            for watcher in self.fsync_watchers:
                called = watcher()
                if called is not None:
                    called(found)
        return found

    cdef int check(self, int result, str operation, object path, int64_t position) except -1:
        if result >= 0:
            return 0
        raise self.error_of(result, operation, path, position)

    # ---- calls -------------------------------------------------------------------------------
    def replace(self, str name not None, address):
        """Put the C function at `address` (an int, e.g. from ctypes) into the table.

        Returns the previous address. The caller must keep the new function alive.
        """
        cdef void **slots = <void **>&self.table
        cdef Py_ssize_t index
        if name not in NAMES:
            raise KeyError(name)
        if not address:
            raise ValueError("the address of a function cannot be 0")
        index = NAMES.index(name)
        old = <uintptr_t>slots[index]
        slots[index] = <void *><uintptr_t>address
        return old

    def address(self, str name not None):
        """Return the address (int) of the function that the table holds."""
        if name not in NAMES:
            raise KeyError(name)
        return <uintptr_t>(<void **>&self.table)[<Py_ssize_t>NAMES.index(name)]

    def reset(self):
        """Restore the functions of this operating system."""
        rs_env_posix(&self.table)

    def open(self, path, int flags, int mode=0o644, *, list into=None):
        """Open a regular file, or with O_DIRECTORY a directory, and return its descriptor.

        O_CLOEXEC is added. An open never blocks. Raises StoreIOError with EISDIR for a directory,
        EBADFD for a FIFO, a socket or a device, and ELOOP for a symbolic link that is opened for
        writing.

        into : receives the descriptor before a signal handler can run and raise
        """
        cdef bytes encoded = path_bytes(path)
        cdef const char *p = PyBytes_AS_STRING(encoded)
        cdef int result
        with nogil:
            result = self.table.open(p, flags, mode)
        check_io(result, "open", path, -1)
        if into is not None:
            into.append(result)
        return result

    def close(self, int fd, path=""):
        """Close a descriptor."""
        cdef int result
        with nogil:
            result = self.table.close(fd)
        check_io(result, "close", path, -1)

    def ftruncate(self, int fd, int64_t size, path=""):
        """Set the file's length to `size` bytes."""
        cdef int result
        with nogil:
            result = self.table.ftruncate(fd, size)
        check_io(result, "ftruncate", path, size)

    def fallocate(self, int fd, int64_t position, int64_t size, path=""):
        """Allocate [position, position + size) of the file; EOPNOTSUPP if it is not supported."""
        cdef int result
        with nogil:
            result = self.table.fallocate(fd, position, size)
        check_io(result, "fallocate", path, position)

    def fdatasync(self, int fd, path=""):
        """Flush the file's bytes and its length to the device."""
        cdef int result
        with nogil:
            result = rs_fdatasync(&self.table, fd)
        self.check(result, "fdatasync", path, -1)

    def fsync(self, int fd, path=""):
        """Flush the file's bytes and all of its metadata to the device."""
        cdef int result
        with nogil:
            result = rs_fsync(&self.table, fd)
        self.check(result, "fsync", path, -1)

    def pread(self, int fd, int64_t size, int64_t position, path=""):
        """Read `size` bytes at `position`, fewer only at the end of the file."""
        if size < 0 or position < 0:
            raise ValueError(f"size {size} and position {position} must not be negative")
        cdef bytes buffer = PyBytes_FromStringAndSize(NULL, size)
        cdef char *p = PyBytes_AS_STRING(buffer)
        cdef int64_t got
        with nogil:
            got = self.table.pread(fd, p, size, position)
        check_io(got, "pread", path, position)
        return buffer if got == size else buffer[:got]

    def pread_into(self, int fd, unsigned char[::1] buffer not None, int64_t position, path=""):
        """Fill `buffer` from `position`; return the bytes read, fewer only at the end of file."""
        if position < 0:
            raise ValueError(f"position {position} must not be negative")
        cdef int64_t size = buffer.shape[0]
        cdef int64_t got = 0
        if size:
            with nogil:
                got = self.table.pread(fd, &buffer[0], size, position)
            check_io(got, "pread", path, position)
        return got

    def pwrite_all(self, int fd, const unsigned char[::1] data not None, int64_t position,
                   path=""):
        """Write all of `data` at `position`, in as many calls as necessary."""
        cdef int64_t size = data.shape[0]
        cdef int64_t done = 0
        cdef int64_t put = 0
        if size == 0:
            return
        cdef const unsigned char *p = &data[0]
        with nogil:
            while done < size:
                put = self.table.pwrite(fd, p + done, size - done, position + done)
                if put <= 0:
                    break
                done += put
        if done < size:
            # A write of 0 bytes without an errno counts as EIO; repeating it might never end.
            check_io(put if put < 0 else -EIO, "pwrite", path, position + done)

    def mlock(self, address, int64_t size, path=""):
        """Lock the mapping at `address` (an int) into memory, so that it is not swapped out."""
        cdef void *base = <void *><uintptr_t>address
        cdef int result
        with nogil:
            result = self.table.mlock(base, size, 0)
        check_io(result, "mlock", path, -1)

    def munlock(self, address, int64_t size, path=""):
        """Undo `mlock`."""
        cdef void *base = <void *><uintptr_t>address
        cdef int result
        with nogil:
            result = self.table.munlock(base, size)
        check_io(result, "munlock", path, -1)

    def rename(self, source, target):
        """Rename `source` to `target`, replacing it."""
        cdef bytes encoded_source = path_bytes(source)
        cdef bytes encoded_target = path_bytes(target)
        cdef const char *s = PyBytes_AS_STRING(encoded_source)
        cdef const char *t = PyBytes_AS_STRING(encoded_target)
        cdef int result
        with nogil:
            result = self.table.rename(s, t)
        check_io(result, "rename", source, -1)

    def unlink(self, path):
        """Remove the name of a file."""
        cdef bytes encoded = path_bytes(path)
        cdef const char *p = PyBytes_AS_STRING(encoded)
        cdef int result
        with nogil:
            result = self.table.unlink(p)
        check_io(result, "unlink", path, -1)

    def mkdir(self, path, int mode=0o755):
        """Make one directory."""
        cdef bytes encoded = path_bytes(path)
        cdef const char *p = PyBytes_AS_STRING(encoded)
        cdef int result
        with nogil:
            result = self.table.mkdir(p, mode)
        check_io(result, "mkdir", path, -1)

    def check_pinned(self, str path):
        """Do nothing: `Env` has pinned directories."""

    def rmdir(self, path):
        """Remove one empty directory."""
        cdef bytes encoded = path_bytes(path)
        cdef const char *p = PyBytes_AS_STRING(encoded)
        cdef int result
        with nogil:
            result = self.table.rmdir(p)
        check_io(result, "rmdir", path, -1)

    def fsync_directory(self, path):
        """Make the names in a directory durable."""
        cdef bytes encoded = path_bytes(path)
        cdef const char *p = PyBytes_AS_STRING(encoded)
        cdef int result
        with nogil:
            result = rs_fsync_directory(&self.table, p)
        self.check(result, "fsync_directory", path, -1)

    def syncfs(self, int fd, path=""):
        """Flush all files and names of the file system of the directory `fd`; False, and nothing is
        flushed, where a failed write-back of one of them might not be reported.

        An error is that of any write-back since `fd` was opened, also of other programs' files.
        Threads: one at a time for each `fd`, because only one call receives an error.
        """
        cdef int result
        with nogil:
            result = rs_syncfs(&self.table, fd)
        if result == -EOPNOTSUPP:
            return False
        self.check(result, "syncfs", path, -1)
        return True

    def lock(self, int fd, path=""):
        """Take the record lock on byte 0 without waiting; False if another open file holds it."""
        cdef int result
        with nogil:
            result = self.table.lock(fd)
        if result == -EAGAIN or result == -EACCES:
            return False
        check_io(result, "lock", path, 0)
        return True

    def lock_directory(self, path, list into not None):
        """Open a directory and lock it without waiting; False if another open file holds the lock.

        The descriptor is appended to `into`. The lock is a flock. On file systems without flock for
        directories the directory is opened and not locked.
        """
        cdef bytes encoded = path_bytes(path)
        cdef const char *p = PyBytes_AS_STRING(encoded)
        cdef int result
        with nogil:
            result = self.table.lock_directory(p)
        if result == -EAGAIN:
            return False
        check_io(result, "flock", path, -1)
        into.append(result)
        return True

    def unlock(self, int fd, path=""):
        """Release the lock of `lock` or `lock_directory`, even if a forked child shares `fd`."""
        cdef int result
        with nogil:
            result = self.table.unlock(fd)
        check_io(result, "unlock", path, -1)

    def file_size(self, int fd, path=""):
        """The file's length in bytes."""
        cdef int64_t result
        with nogil:
            result = self.table.file_size(fd)
        check_io(result, "fstat", path, -1)
        return result

    def list_directory(self, path, *, bint follow=True):
        """Return (name, type) of the entries of a directory, sorted by name.

        The type is "d" for a directory, "f" for a regular file, and "?" for anything else, or where
        the file system does not report it. Without `follow`, a symbolic link in place of the
        directory is an error.
        """
        cdef bytes encoded = path_bytes(path)
        cdef const char *p = PyBytes_AS_STRING(encoded)
        cdef char *entries = NULL
        cdef int64_t size
        with nogil:
            size = self.table.list_directory(p, follow, &entries)
        check_io(size, "listdir", path, -1)
        try:
            return sorted(names_of(entries, size))
        finally:
            free(entries)

    def has_name(self, path):
        """Return True if something has that name; a link is not followed.

        The call keeps the GIL: it is for names that the kernel has in memory, and for callers to
        whom a wait for the GIL would be more expensive.
        """
        cdef bytes encoded = path_bytes(path)
        cdef struct_stat status
        return lstat(PyBytes_AS_STRING(encoded), &status) == 0

    def mtime_ms(self, path):
        """Time of the file's last modification, Unix ms."""
        cdef bytes encoded = path_bytes(path)
        cdef const char *p = PyBytes_AS_STRING(encoded)
        cdef struct_stat status
        cdef int result
        with nogil:
            result = stat_call(p, &status)
        if result < 0:
            check_io(-errno, "stat", path, -1)
        return <int64_t>status.st_mtim.tv_sec * 1000 + status.st_mtim.tv_nsec // 1000000

    def now_ms(self):
        """Time of the wall clock, Unix ms."""
        return self.table.now_ms()

    def monotonic_ns(self):
        """Time of a monotonic clock, ns."""
        return self.table.monotonic_ns()

    def monotonic_ms(self):
        """Time of the monotonic clock in whole ms, for intervals and durations."""
        return self.table.monotonic_ns() // 1000000


@cython.final
@cython.auto_pickle(False)
cdef class Event:
    """A counter of signals that threads can wait on.

    A waiter takes `sequence()`, checks its condition and calls `wait(seen)`: a signal between these
    steps is never lost. A signal without sleeping threads costs one atomic add.

    Threads: any.
    """

    def __cinit__(self):
        self.event = rs_event_new()
        if self.event == NULL:
            raise MemoryError

    def __dealloc__(self):
        rs_event_free(self.event)

    def sequence(self):
        """Return the number of signals so far."""
        return rs_event_sequence(self.event)

    def signal(self):
        """Wake every thread that sleeps in `wait`."""
        with nogil:
            rs_event_signal(self.event)

    def wait(self, uint64_t seen, timeout=None):
        """Sleep until the sequence differs from `seen`; False after `timeout` seconds.

        A timeout of None waits without a limit. In the main thread, signal handlers run meanwhile.
        """
        cdef int64_t left_ms = -1
        cdef int64_t slice_ms
        cdef int64_t longest_ms = LONG_SLICE_MS
        cdef int moved = rs_event_sequence(self.event) != seen
        if moved:
            return True
        if timeout is not None:
            left_ms = max(0, min(int(timeout * 1000), 1 << 53))
        if get_ident() == main_thread().ident:
            longest_ms = SIGNAL_SLICE_MS
        while left_ms != 0:
            slice_ms = longest_ms if left_ms < 0 or left_ms > longest_ms else left_ms
            with nogil:
                moved = rs_event_wait(self.event, seen, slice_ms)
            if moved:
                return True
            PyErr_CheckSignals()
            if left_ms > 0:
                left_ms -= slice_ms
        return rs_event_sequence(self.event) != seen


@cython.final
@cython.no_gc  # the collector must not take `event` away before __dealloc__
@cython.auto_pickle(False)
cdef class SignalAtEnd:
    """Signals an Event when its last reference goes.

    A thread that has it as an argument signals its end even if it has no memory for its first step.
    """
    cdef Event event

    def __cinit__(self, Event event not None):
        self.event = event

    def __dealloc__(self):
        if self.event is not None:  # the constructor was called with an Event
            rs_event_signal(self.event.event)


# Files that stay open for reading between calls, so that a read costs no open and close.
#
# All stores of the process share one pool of at most MAX_KEPT files, and of an eighth of the limit
# of descriptors. A file that finds no room is closed after its read. Before each use a file is
# asked how many names it has: another process that owns a store deletes its files, and a reader
# must neither keep reading a deleted file nor keep its room on the device. A file that the process
# itself owns is not asked.
#
# A forked child forgets the files without closing them: it may have closed these descriptors, and
# may have opened others with the same numbers.

cdef enum:
    POOL_SIZE = 128
    LIMIT_PART = 8      # of the process's descriptors, one in so many is used
    LOOKS = 2           # files that are checked for their names when another one is kept

#: At most this many files stay open between calls.
MAX_KEPT = POOL_SIZE

cdef kept_file *pool[POOL_SIZE]
cdef int hand = 0


cdef int limit() noexcept:
    cdef long most = sysconf(_SC_OPEN_MAX)
    return POOL_SIZE if most < 0 else <int>min(most // LIMIT_PART, <long>POOL_SIZE)


cdef void leave_pool(kept_file *file) noexcept:
    # The caller closes the file unless it has users.
    cdef int i
    if file.owner != NULL:
        file.owner[0] = NULL
        file.owner = NULL
    for i in range(POOL_SIZE):
        if pool[i] == file:
            pool[i] = NULL


cdef inline const rs_env *table_of(const kept_file *file) noexcept:
    return &(<EnvTable>file.env).table


cdef void close_unused(kept_file *file) noexcept:
    # A file that has left the pool.
    cdef const rs_env *env = table_of(file)
    if file.users == 0:
        with nogil:
            env.close(file.fd)
        Py_DECREF(<EnvTable>file.env)
        free(file)


cdef int free_slot(kept_file **closed) noexcept:
    # Returns a slot of the pool; `closed` receives the file that leaves it. -1: all are in use.
    global hand
    cdef int most = limit()
    cdef int i
    closed[0] = NULL
    for i in range(most):
        if pool[i] == NULL:
            return i
    for i in range(2 * most):
        hand = hand + 1 if hand + 1 < most else 0
        if pool[hand].users > 0:
            continue
        if not pool[hand].recent:
            closed[0] = pool[hand]
            leave_pool(closed[0])
            return hand
        pool[hand].recent = False
    return -1


cdef void close_deleted() noexcept:
    # Looks at the next files of the pool, so that the room of deleted ones does not stay in use.
    global hand
    cdef kept_file *file
    cdef const rs_env *env
    cdef int64_t names
    cdef int i
    for i in range(LOOKS):
        hand = hand + 1 if hand + 1 < POOL_SIZE else 0
        file = pool[hand]
        if file == NULL:
            continue
        file.users += 1
        env = table_of(file)
        with nogil:
            names = env.link_count(file.fd)
        if names <= 0:
            leave_pool(file)
        release_kept(file)


cdef bint close_idle() noexcept:
    # Closes the files without users: the process has no free descriptor. True if there were any.
    cdef kept_file *file
    cdef bint found = False
    cdef int i
    for i in range(POOL_SIZE):
        file = pool[i]
        if file != NULL and file.users == 0:
            found = True
            leave_pool(file)
            close_unused(file)
    return found


cdef int open_path(const rs_env *env, const char *path) noexcept:
    cdef int fd
    with nogil:
        fd = env.open(path, O_RDONLY, 0)
    if (fd == -EMFILE or fd == -ENFILE) and close_idle():
        with nogil:
            fd = env.open(path, O_RDONLY, 0)
    return fd


cdef kept_file *keep(kept_file **owner, EnvTable env, int fd) noexcept:
    # Returns the file with one user; it is in the pool if that has room. NULL without memory.
    cdef kept_file *file = <kept_file *>malloc(sizeof(kept_file))
    cdef kept_file *closed = NULL
    cdef int slot
    if file == NULL:
        return NULL
    file.fd = fd
    file.users = 1
    file.recent = True
    file.env = <PyObject *>env
    Py_INCREF(env)
    file.owner = NULL
    if owner[0] == NULL:  # else another thread has opened the file meanwhile
        slot = free_slot(&closed)
        if slot >= 0:
            pool[slot] = file
            file.owner = owner
            owner[0] = file
        if closed != NULL:
            close_unused(closed)
        close_deleted()
    return file


cdef int64_t read_kept(kept_file **owner, EnvTable owner_env, const char *path, bint is_own,
                       void *target, int64_t size, int64_t position) noexcept:
    cdef const rs_env *env = &owner_env.table
    cdef kept_file *file = owner[0]
    cdef int64_t names = 1
    cdef int64_t got = 0
    cdef int error = 0
    if file != NULL:
        file.users += 1
        file.recent = True
        with nogil:
            if not is_own:
                names = env.link_count(file.fd)
            if names > 0:
                got = env.pread(file.fd, target, size, position)
        if names <= 0:
            leave_pool(file)
        release_kept(file)
        if names > 0:
            return got
    file = take_kept(owner, owner_env, path, &error)
    if file == NULL:
        return error
    with nogil:
        got = env.pread(file.fd, target, size, position)
    release_kept(file)
    return got


cdef kept_file *take_kept(kept_file **owner, EnvTable owner_env, const char *path,
                          int *error) noexcept:
    cdef const rs_env *env = &owner_env.table
    cdef kept_file *file = owner[0]
    cdef int64_t names
    cdef int fd
    if file != NULL:
        file.users += 1
        file.recent = True
        with nogil:
            names = env.link_count(file.fd)
        if names > 0:
            return file
        leave_pool(file)
        release_kept(file)
    fd = open_path(env, path)
    if fd < 0:
        error[0] = fd
        return NULL
    file = keep(owner, owner_env, fd)
    if file == NULL:
        with nogil:
            env.close(fd)
        error[0] = -ENOMEM
    return file


cdef bint kept_has_name(kept_file **owner) noexcept:
    cdef kept_file *file = owner[0]
    cdef const rs_env *env
    cdef int64_t names
    if file == NULL:
        return False
    env = table_of(file)
    file.users += 1
    file.recent = True
    with nogil:
        names = env.link_count(file.fd)
    if names <= 0:
        leave_pool(file)
    release_kept(file)
    return names > 0


cdef void release_kept(kept_file *file) noexcept:
    file.users -= 1
    if file.owner == NULL:
        close_unused(file)


cdef void close_kept(kept_file **owner) noexcept:
    cdef kept_file *file = owner[0]
    if file != NULL:
        leave_pool(file)
        close_unused(file)


def _forget_in_child():
    cdef int i
    for i in range(POOL_SIZE):
        if pool[i] != NULL:
            pool[i].owner[0] = NULL
            pool[i] = NULL


os.register_at_fork(after_in_child=_forget_in_child)
