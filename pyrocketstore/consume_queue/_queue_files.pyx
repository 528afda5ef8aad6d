"""Read the files of many consume queues in one call: without the GIL, one file open at a time.

A call handles the usual case only. A queue with anything else is left to the Python code for
single queues.
"""
import os

from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, strlen
from posix.fcntl cimport O_RDONLY, O_RDWR

from pyrocketstore._rocketstore cimport RS_CQ_STORE_UNIT_SIZE, RS_ENTRY_FILE, check_io, rs_env
from pyrocketstore.consume_queue._units cimport are_zeros, scan, unit_scan
from pyrocketstore.files._mapped_file cimport MappedFile
from pyrocketstore.system._env cimport EnvTable

cdef enum:
    UNIT = RS_CQ_STORE_UNIT_SIZE
    DIGITS = 20             # of a file name
    PATH_MAX = 4096
    TAIL = 8192             # bytes after the end of the units that must be zeros
    FIRST_READ = 12300      # a few units and the zeros after them
    BUFFER = 61440          # a multiple of the unit, as FIRST_READ
    COLUMNS = 4
    LISTDIR = 0             # numbers in FUNCTIONS
    OPEN = 1
    PREAD = 2
    CLOSE = 3
    FSTAT = 4

cdef int64_t NO_LIMIT = 0x7FFFFFFFFFFFFFFF
# The largest offset at which a file of a store may end; a test compares it with `file_sizes`.
cdef int64_t MAX_FILE_END = 0x7FFFFFFF00000000


cdef int64_t offset_of(const char *name) noexcept nogil:
    # The offset that a name of 20 digits states; -1: not such a name, -2: not an int64.
    cdef int64_t offset = 0
    cdef int i, digit
    for i in range(DIGITS):
        if not c'0' <= name[i] <= c'9':
            return -1
    if name[DIGITS]:
        return -1
    for i in range(DIGITS):
        digit = name[i] - c'0'
        if offset > (NO_LIMIT - digit) // 10:
            return -2
        offset = 10 * offset + digit
    return offset


cdef struct failure:
    # The first call that failed: its number in FUNCTIONS and its negated errno, 0 without one.
    int function
    int64_t error


cdef tuple FUNCTIONS = ("listdir", "open", "pread", "close", "fstat")


cdef int64_t note(failure *failed, int function, int64_t result) noexcept nogil:
    # The code for single queues knows what to do about a path that does not lead to a file.
    cdef bint is_known = result in (-ENOENT, -ENOTDIR, -ELOOP, -ENAMETOOLONG)
    if result < 0 and not is_known and not failed.error:
        failed.function = function
        failed.error = result
    return result


cdef int64_t only_file(const rs_env *env, char *path, failure *failed) noexcept nogil:
    # The offset of the one file in a directory, whose name is appended to `path`. Below 0: the
    # directory has no file of the sequence, or several, or cannot be listed.
    cdef char *entries = NULL
    cdef int64_t size = note(failed, LISTDIR, env.list_directory(path, False, &entries))
    cdef int64_t at = 0, found = -1, offset
    cdef size_t length = strlen(path)
    while at < size:
        offset = offset_of(entries + at + 1)
        if offset != -1:
            if found != -1 or entries[at] != RS_ENTRY_FILE:
                found = -2
                break
            found = offset
            path[length] = c'/'
            memcpy(path + length + 1, entries + at + 1, DIGITS + 1)
        at += <int64_t>strlen(entries + at + 1) + 2
    free(entries)
    return found


cdef bint is_unwritten(const rs_env *env, int fd, uint8_t *buffer, int64_t begin,
                       int64_t end, failure *failed) noexcept nogil:
    cdef int64_t size = min(<int64_t>TAIL, end - begin)
    cdef int64_t got = note(failed, PREAD, env.pread(fd, buffer, size, begin))
    return got == size and are_zeros(buffer, size)


cdef bint find_end(const rs_env *env, int fd, int64_t file_size, uint8_t *buffer,
                   int64_t *found, failure *failed) noexcept nogil:
    # The end of the units, and one past the last message; False: bytes follow the end, or an error.
    cdef int64_t position = 0, size, rest
    cdef unit_scan units
    found[1] = 0
    found[2] = -1
    while position < file_size:
        size = min(<int64_t>(FIRST_READ if position == 0 else BUFFER), file_size - position)
        if note(failed, PREAD, env.pread(fd, buffer, size, position)) != size:
            return False
        units = scan(buffer, size, NO_LIMIT)
        found[1] = position + units.valid_size
        if units.max_phy_offset >= 0:
            found[2] = units.max_phy_offset
        if units.valid_size < size:
            rest = min(<int64_t>TAIL, file_size - found[1])
            if rest <= size - units.valid_size:
                return are_zeros(buffer + units.valid_size, rest)
            return is_unwritten(env, fd, buffer, found[1], file_size, failed)
        position += size
    return True


cdef bint look(const rs_env *env, char *path, int64_t file_size, bint writable, uint8_t *buffer,
               int64_t *found, failure *failed) noexcept nogil:
    # found: the offset of the file, the end of its units, one past the last message, 1.
    cdef int64_t offset = only_file(env, path, failed)
    cdef bint is_usual
    cdef int fd
    found[3] = False
    if offset < 0 or offset % file_size or offset > MAX_FILE_END - file_size:
        return False
    found[0] = offset
    # As the file will be opened, so that a file without that permission is an error now.
    fd = <int>note(failed, OPEN, env.open(path, O_RDWR if writable else O_RDONLY, 0))
    if fd < 0:
        return False
    is_usual = (note(failed, FSTAT, env.file_size(fd)) == file_size
                and find_end(env, fd, file_size, buffer, found, failed))
    found[3] = note(failed, CLOSE, env.close(fd)) == 0 and is_usual
    return found[3]


def look_at_queues(EnvTable env not None, tuple directories not None, int64_t file_size,
                   bint writable, int64_t[:, ::1] found not None):
    """Find the end of each queue that has one file, of `file_size` bytes, with zeros after its
    units.

    Parameters
    ----------
    directories : tuple of bytes, paths of queues
    writable : bool, each file must be one that can be opened for writing
    found : int64[n, 4], written to: the offset of the file; the bytes of its units; one past the
        last message that they name, bytes of the log, -1 without one; 1, or 0 for a queue that is
        not of this kind, whose other values mean nothing

    Raises StoreIOError if a directory or a file cannot be read.

    Threads: any, without the GIL.
    """
    cdef Py_ssize_t count = len(directories), i
    cdef const char **paths
    cdef char path[PATH_MAX]
    cdef uint8_t *buffer
    cdef failure failed
    if found.shape[0] != count or found.shape[1] != COLUMNS or file_size <= 0:
        raise ValueError("found must have a row of 4 for each directory, and file_size be positive")
    if count == 0:
        return
    paths = <const char **>malloc(count * sizeof(char *))
    buffer = <uint8_t *>malloc(BUFFER)
    try:
        if paths == NULL or buffer == NULL:
            raise MemoryError()
        for i in range(count):
            paths[i] = PyBytes_AS_STRING(<bytes?>directories[i])
        failed.error = failed.function = 0
        with nogil:
            for i in range(count):
                found[i, 3] = False
                if strlen(paths[i]) < PATH_MAX - DIGITS - 2:
                    memcpy(path, paths[i], strlen(paths[i]) + 1)
                    look(&env.table, path, file_size, writable, buffer, &found[i, 0], &failed)
                    if failed.error:
                        break
        check_io(failed.error, FUNCTIONS[failed.function], os.fsdecode(path), -1)
    finally:
        free(paths)
        free(buffer)


cdef bint read_range(const rs_env *env, const char *path, uint8_t *target, int64_t size,
                     int64_t position, failure *failed) noexcept nogil:
    cdef int fd = <int>note(failed, OPEN, env.open(path, O_RDONLY, 0))
    cdef bint is_read
    if fd < 0:
        return False
    is_read = note(failed, PREAD, env.pread(fd, target, size, position)) == size
    return note(failed, CLOSE, env.close(fd)) == 0 and is_read


def read_files(tuple files not None, const int64_t[::1] position not None,
               const int64_t[::1] size not None, const int64_t[::1] at not None,
               uint8_t[::1] target not None, uint8_t[::1] done not None):
    """Read a range of each file on disk into one buffer.

    Parameters
    ----------
    files : tuple of n MappedFile
    position, size : int64[n], the ranges, bytes
    at : int64[n], where a range begins in `target`
    target : uint8[m], written to
    done : uint8[n], written to: 1, or 0 for a file that is not of the mode "shared" or "read", was
        deleted or ends before its range does

    Raises StoreIOError if another file cannot be opened or read: that it is mapped, so that its
    units can be had all the same, does not make the failure good.

    Threads: any, without the GIL.
    """
    cdef Py_ssize_t count = len(files), i
    cdef const char **paths
    cdef const rs_env *env = NULL
    cdef MappedFile file
    cdef failure failed
    if not count == position.shape[0] == size.shape[0] == at.shape[0] == done.shape[0]:
        raise ValueError("the arrays must have one entry for each file")
    for i in range(count):
        if position[i] < 0 or size[i] < 0 or not 0 <= at[i] <= target.shape[0] - size[i]:
            raise ValueError("each range must be in target")
    if count == 0:
        return
    paths = <const char **>malloc(count * sizeof(char *))
    if paths == NULL:
        raise MemoryError()
    try:
        for i in range(count):
            file = <MappedFile?>files[i]
            paths[i] = file.disk_path()
            env = file.file.env
        failed.error = failed.function = 0
        with nogil:
            for i in range(count):
                done[i] = False
                if paths[i] == NULL or size[i] == 0:
                    continue
                done[i] = read_range(env, paths[i], &target[at[i]], size[i], position[i], &failed)
                if failed.error:
                    break
        if failed.error:
            check_io(failed.error, FUNCTIONS[failed.function], (<MappedFile>files[i]).path,
                     position[i] if failed.function == PREAD else -1)
    finally:
        free(paths)
