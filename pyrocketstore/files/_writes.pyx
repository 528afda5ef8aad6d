"""Make new files; write bytes through a mapping, by pwrite or through a buffer; sync them.

A store into a mapping whose device has failed raises SIGBUS; a pwrite returns an error. A buffer
keeps stalls of the page cache away from the writer.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EEXIST, EIO, ENOMEM, EOPNOTSUPP
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from posix.fcntl cimport O_CREAT, O_EXCL, O_RDWR

from pyrocketstore._rocketstore cimport (
    RS_RECORD_START,
    check_io,
    rs_env,
    rs_fdatasync,
    rs_fsync_directory,
    rs_load_acquire,
    rs_load_be32,
    rs_mapped_file,
    rs_msync,
    rs_open_for_writing,
    rs_opened,
    rs_store_record,
    rs_store_release,
)
from pyrocketstore.system._allocation cimport (
    ADVICE_DONTNEED,
    FILL_CHUNK,
    PAGE_SIZE,
    map_new_file,
    page_down,
    sync_file,
    write_all,
    write_part,
    write_zeros,
)
from pyrocketstore.system._env cimport EnvTable

# Make new files: they appear with their full length, and never replace another file.
#
# 4.9.3 refuses a directory with a file of another length, so a killed process must not leave one. A
# new file gets its length before its name: it has no name (O_TMPFILE) or, where the file system
# does not support that, the name `.DIRECTORY.NAME.new` in the directory above, where 4.9.3 looks
# for directories only, or not at all. The next opening removes the file of a killed process there.

cdef enum:
    FILE_MODE = 0o644
    STEP_OPEN = 0
    STEP_FTRUNCATE = 1
    STEP_LINK = 2
    STEP_UNLINK = 3
    STEP_FDATASYNC = 4
    STEP_FSYNC_DIRECTORY = 5

cdef tuple STEPS = ("open", "ftruncate", "link", "unlink", "fdatasync", "fsync_directory")


cdef int make_file(EnvTable owner, bytes path, int64_t size, bint durable, bint is_there,
                   object shown, rs_mapped_file *mapped) except -1:
    cdef const rs_env *env = &owner.table
    cdef bytes directory, temporary, name
    cdef const char *path_text = PyBytes_AS_STRING(path)
    cdef const char *directory_text
    cdef const char *temporary_text = NULL
    cdef int error
    cdef int step = 0
    directory, slash, name = path.rpartition(b"/")
    above, above_slash, below = directory.rpartition(b"/")
    directory = directory or slash or b"."
    directory_text = PyBytes_AS_STRING(directory)
    if below not in (b"", b".", b".."):
        temporary = above + above_slash + b".%s.%s.new" % (below, name)
        temporary_text = PyBytes_AS_STRING(temporary)
    with nogil:
        if is_there:
            error = open_and_extend(env, path_text, size, 0, &step)
        else:
            error = create(env, path_text, size, directory_text, temporary_text, &step)
        if error >= 0:
            error = finish(env, error, path_text, directory_text if durable else NULL, &step)
        if error >= 0 and mapped != NULL:
            map_new_file(mapped)
    if error == -EEXIST and not is_there:
        return 0
    owner.check(error, STEPS[step], shown, -1)
    return 1


cdef int create(const rs_env *env, const char *path, int64_t size, const char *directory,
                const char *temporary, int *step) noexcept nogil:
    # This and the next three return the descriptor of a file with its full length and its name.
    cdef int fd = create_unnamed(env, path, size, directory, step)
    if fd == -EOPNOTSUPP and temporary != NULL:
        fd = create_linked(env, path, size, temporary, step)
        if fd < 0 and fd != -EEXIST and step[0] != STEP_UNLINK:
            # No hard links, or the directory above is on another device or not writable.
            fd = -EOPNOTSUPP
    if fd == -EOPNOTSUPP:
        fd = open_and_extend(env, path, size, O_CREAT | O_EXCL, step)
    return fd


cdef int create_unnamed(const rs_env *env, const char *path, int64_t size, const char *directory,
                        int *step) noexcept nogil:
    cdef int fd = env.open_unnamed(directory, FILE_MODE)
    cdef int error
    step[0] = STEP_OPEN
    if fd < 0:
        return fd
    step[0] = STEP_FTRUNCATE
    error = env.ftruncate(fd, size)
    if error >= 0:
        step[0] = STEP_LINK
        error = env.link_unnamed(fd, path)
    if error < 0:
        env.close(fd)
        return error
    return fd


cdef int create_linked(const rs_env *env, const char *path, int64_t size, const char *temporary,
                       int *step) noexcept nogil:
    cdef int fd = env.open(temporary, O_RDWR | O_CREAT | O_EXCL, FILE_MODE)
    cdef int error, unlinked
    step[0] = STEP_OPEN
    if fd == -EEXIST:
        # Left by a killed process: only the owner of the store makes files.
        env.unlink(temporary)
        fd = env.open(temporary, O_RDWR | O_CREAT | O_EXCL, FILE_MODE)
    if fd < 0:
        return fd if fd != -EEXIST else -EIO
    step[0] = STEP_FTRUNCATE
    error = env.ftruncate(fd, size)
    if error >= 0:
        step[0] = STEP_LINK
        error = env.link(temporary, path)
    unlinked = env.unlink(temporary)
    if error >= 0 and unlinked < 0:
        step[0] = STEP_UNLINK
        error = unlinked
        env.unlink(path)
    if error < 0:
        env.close(fd)
        return error
    return fd


cdef int open_and_extend(const rs_env *env, const char *path, int64_t size, int flags,
                         int *step) noexcept nogil:
    cdef int fd = env.open(path, O_RDWR | flags, FILE_MODE)
    cdef int error
    step[0] = STEP_OPEN
    if fd < 0:
        return fd
    step[0] = STEP_FTRUNCATE
    error = env.ftruncate(fd, size)
    if error < 0:
        env.close(fd)
        env.unlink(path)  # a file of another length must not stay
        return error
    return fd


cdef int finish(const rs_env *env, int fd, const char *path, const char *directory,
                int *step) noexcept nogil:
    cdef int error = 0
    if directory != NULL:
        # After the file has its name: btrfs makes nothing of a file without a name durable.
        step[0] = STEP_FDATASYNC
        error = rs_fdatasync(env, fd)
    env.close(fd)
    if error >= 0 and directory != NULL:
        step[0] = STEP_FSYNC_DIRECTORY
        error = rs_fsync_directory(env, directory)
    if error < 0:
        env.unlink(path)  # a file that may not survive a power cut must not stay
    return error


cdef enum:
    UNMAP_BEFORE_SYNC = 1048576
    RECORDS_AT_ONCE = 262144    # bytes of records that are written twice


cdef int store_bytes(rs_mapped_file *f, int64_t position, const uint8_t *data,
                     int64_t size) noexcept nogil:
    if not f.by_write or f.buffer != NULL:
        memcpy((f.base if f.buffer == NULL else f.buffer) + position, data, <size_t>size)
        return 0
    return write_bytes(f, position, data, size)


cdef int write_bytes(rs_mapped_file *f, int64_t position, const uint8_t *data,
                     int64_t size) noexcept nogil:
    cdef int fd, error, closed
    fd = rs_open_for_writing(f)
    if fd < 0:
        return fd
    error = write_all(f.env, fd, data, size, position)
    closed = f.env.close(fd)
    return error if error < 0 else closed


cdef int64_t end_of_record(const uint8_t *data, int64_t begin, int64_t end) noexcept nogil:
    # Where the record at data[begin] ends; `end` where no record begins.
    cdef int64_t size = rs_load_be32(data + begin) if end - begin >= RS_RECORD_START else 0
    return begin + size if 0 < size <= end - begin else end


cdef int64_t write_without_starts(const rs_env *env, int fd, const uint8_t *data, int64_t begin,
                                  int64_t end, int64_t position, int64_t *touched) noexcept nogil:
    # As write_part, with zeros in place of the start of each record.
    cdef uint8_t *rest = <uint8_t *>malloc(<size_t>(end - begin))
    cdef int64_t record = begin
    cdef int64_t written = 0
    cdef int64_t put
    if rest == NULL:
        return -ENOMEM
    memcpy(rest, data + begin, <size_t>(end - begin))
    while record < end:
        memset(rest + record - begin, 0, <size_t>min(RS_RECORD_START, end - record))
        record = end_of_record(data, record, end)
    put = write_part(env, fd, rest, 0, end - begin, position + begin, &written)
    touched[0] = max(touched[0], begin + written)
    free(rest)
    return put


cdef int64_t write_whole_records(const rs_env *env, int fd, int64_t position,
                                 const uint8_t *data, int64_t size,
                                 int64_t *touched) noexcept nogil:
    # Writes records from `position` on; results as those of write_part. A kill can end a write at
    # the end of any page. A record without its start is none, so the starts are written after
    # everything else, in order: recovery finds the first records whole, and none behind a gap.
    cdef int64_t done = 0
    cdef int64_t put = 1
    cdef int64_t first, record, page, end
    touched[0] = 0
    while done < size and put > 0:
        first = end = end_of_record(data, done, size)
        while end < size:
            record = end_of_record(data, end, size)
            if record - done > RECORDS_AT_ONCE:
                break
            end = record
        if page_down(position + done) == page_down(position + end - 1):
            put = write_part(env, fd, data, done, end, position, touched)
        elif end == first:
            # Its first page is written last, as a whole, with the start.
            page = page_down(position + done) + PAGE_SIZE - position
            page = min(max(page, done + RS_RECORD_START), end)
            put = write_part(env, fd, data, page, end, position, touched)
            if put > 0:
                put = write_part(env, fd, data, done, page, position, touched)
        else:
            put = write_without_starts(env, fd, data, done, end, position, touched)
            if put > 0:
                put = write_part(env, fd, data, done, end, position, touched)
        done = end
    return put


cdef void store_records(uint8_t *to, const uint8_t *data, int64_t size) noexcept nogil:
    cdef int64_t begin = 0
    cdef int64_t end
    while begin < size:
        end = end_of_record(data, begin, size)
        rs_store_record(to + begin, data + begin, end - begin)
        begin = end


cdef bint clear_records(const rs_env *env, int fd, int64_t position, const uint8_t *data,
                        int64_t touched) noexcept nogil:
    # Overwrites the first bytes of a failed write with zeros; False after an error. The last
    # records go first, all that begin in one page at once, so that a kill leaves none behind a gap.
    cdef int64_t *parts = <int64_t *>malloc(
        <size_t>(touched // PAGE_SIZE + 2) * sizeof(int64_t))
    cdef int64_t count = 0
    cdef int64_t record = 0
    cdef int64_t page = -1
    cdef int64_t end = touched
    cdef bint clean = parts != NULL
    while clean and record < touched:
        if page_down(position + record) > page:
            page = page_down(position + record)
            parts[count] = record
            count += 1
        record = end_of_record(data, record, touched)
    while clean and count > 0:
        count -= 1
        clean = write_zeros(env, fd, position + parts[count], position + end,
                            FILL_CHUNK) == position + end
        end = parts[count]
    free(parts)
    return clean


cdef int write_records(rs_mapped_file *f, int fd, int64_t position, const uint8_t *data,
                       int64_t size, bint *unclean) noexcept nogil:
    cdef int64_t touched
    cdef int64_t put = write_whole_records(f.env, fd, position, data, size, &touched)
    if put > 0:
        return 0
    # Recovery must not find a record whose put has failed.
    if not clear_records(f.env, fd, position, data, touched):
        unclean[0] = True
    return <int>put if put < 0 else -EIO


cdef int sync_range(rs_mapped_file *f, int64_t start, int64_t end) noexcept nogil:
    cdef uint8_t *base = f.base
    if base == NULL:
        return sync_file(f)
    start = page_down(start)
    if page_down(end) - start >= UNMAP_BEFORE_SYNC:
        # The kernel makes each page read-only before it writes it, with an interrupt on all
        # processors. Unmapped pages avoid that; a later fault maps many of them at once.
        f.env.madvise(base + start, page_down(end) - start, ADVICE_DONTNEED)
    return rs_msync(f.env, base + start, end - start)


cdef int commit_appended(rs_mapped_file *f) noexcept nogil:
    # The writer moves `appended` before the time, so that a time is never newer than the bytes.
    # Flushes rely on the same order of `wrote` and `store_timestamp`.
    cdef int64_t timestamp = rs_load_acquire(&f.appended_timestamp)
    cdef int64_t appended = rs_load_acquire(&f.appended)
    cdef int64_t start = rs_load_acquire(&f.wrote)
    cdef int64_t stop = min(appended, f.data_end)
    cdef int64_t put, touched
    cdef int error = 0
    cdef int fd, closed
    if f.buffer == NULL or appended <= start:
        return 0
    if start < stop:
        fd = rs_opened(rs_open_for_writing(f))
        if fd < 0:
            return fd
        put = write_whole_records(f.env, fd, start, f.buffer + start, stop - start, &touched)
        if put <= 0:
            # The next commit writes the same records, and begins without their starts.
            clear_records(f.env, fd, start, f.buffer + start, touched)
        closed = f.env.close(fd)
        error = closed if put > 0 else <int>put if put < 0 else -EIO
    if error < 0:
        return error
    rs_store_release(&f.wrote, appended)
    if timestamp > rs_load_acquire(&f.store_timestamp):
        rs_store_release(&f.store_timestamp, timestamp)
    return 0


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class WriterBuffer:
    """Memory of a file's length: a writer stores to it, and a commit copies it to the file.

    Parameters
    ----------
    env : EnvTable
    size : int, bytes

    Attributes: `on_free`, called with the buffer when its file does not need it any more, or None;
    `locked`, True when the memory cannot be swapped out.

    Raises StoreIOError. Pages are allocated on first use, and keep their content.
    Threads: one file's writer stores; everything else needs the GIL.
    Source: RocketMQ 4.9.3 TransientStorePool#init. Differs: memory is allocated on first use.
    """

    def __cinit__(self, EnvTable env not None, int64_t size):
        cdef void *base = NULL
        cdef int error
        if size <= 0:
            raise ValueError(f"size {size}: must be positive")
        self.env = env
        self.size = size
        with nogil:
            error = env.table.mmap(-1, size, 1, &base)
        check_io(error, "mmap", "a writer's buffer", -1)
        self.base = <uint8_t *>base

    def __dealloc__(self):
        if self.base != NULL:
            self.env.table.munmap(self.base, self.size)

    def lock(self):
        """Lock pages in memory on first use. Raises StoreIOError where that is not allowed."""
        cdef int error
        with nogil:
            error = self.env.table.mlock(self.base, self.size, 1)
        check_io(error, "mlock", "a writer's buffer", -1)
        self.locked = True

    def free(self):
        """Return the buffer: see `on_free`."""
        if self.on_free is not None:
            self.on_free(self)
