"""Allocation of room in files before stores, page faults ahead of writers, zeros behind a cut.

No function needs the GIL, and every system call but lseek and getrusage goes through the table of
rs_env.
"""
from libc.errno cimport EINVAL, EIO, ENOMEM, ENOSPC, ENXIO, EOPNOTSUPP, EROFS, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from posix.fcntl cimport O_RDONLY
from posix.unistd cimport lseek

from pyrocketstore._rocketstore cimport (
    RS_FILL_FOLIOS,
    RS_FILL_NONE,
    RS_FILL_PAGES,
    rs_compare_and_swap,
    rs_env,
    rs_event,
    rs_event_sequence,
    rs_event_wait,
    rs_fdatasync,
    rs_load_acquire,
    rs_lock,
    rs_lock_new,
    rs_lock_release,
    rs_lock_take,
    rs_mapped_file,
    rs_open_for_writing,
    rs_opened,
)

cdef extern from "unistd.h" nogil:
    enum:
        SEEK_DATA
        SEEK_HOLE

cdef extern from "sys/resource.h" nogil:
    enum:
        RUSAGE_THREAD
    ctypedef struct rusage "struct rusage":
        long ru_minflt
    int getrusage(int who, rusage *usage)

cdef enum:
    COPY_SIZE = 1048576
    FILL_STEP = 524288           # bytes filled at once, for which a writer may have to wait
    INLINE_POPULATE = 1048576    # bytes that a writer which confirms for itself touches at most
    POPULATE_CHUNK = 4194304
    PROBE_STEP = 65536
    PROBES_A_FAULT = 4           # of folios that need no further touching, on average
    FOLLOW_MS = 20
    ADVICE_POPULATE_WRITE = 23   # MADV_POPULATE_WRITE, Linux 5.14

# The source of zeros for files. It is never written to, so one page of memory backs all of it.
cdef uint8_t zeros[HUGE_PAGE]

# Where the file system cannot allocate, a range is read and written back instead. The lock admits
# one thread at a time, so that no store can occur between the read and the write.
cdef rs_lock *rewrite_lock = rs_lock_new()
if rewrite_lock == NULL:
    raise MemoryError


cdef int64_t write_part(const rs_env *env, int fd, const uint8_t *data, int64_t begin, int64_t end,
                        int64_t position, int64_t *touched) noexcept nogil:
    cdef int64_t put
    while begin < end:
        put = env.pwrite(fd, data + begin, end - begin, position + begin)
        if put <= 0:
            return put
        begin += put
        touched[0] = max(touched[0], begin)
    return 1


cdef int write_all(const rs_env *env, int fd, const uint8_t *data, int64_t size,
                   int64_t position) noexcept nogil:
    cdef int64_t touched = 0
    cdef int64_t put = write_part(env, fd, data, 0, size, position, &touched)
    return 0 if put > 0 else <int>put if put < 0 else -EIO


cdef bint all_zero(const uint8_t *data, int64_t size) noexcept nogil:
    cdef int64_t i
    for i in range(size):
        if data[i]:
            return False
    return True


cdef int rewrite(const rs_env *env, int fd, int64_t start, int64_t end, bint zeros) noexcept nogil:
    # Writes [start, end) back unchanged, or with `zeros` overwrites every block that is not zero.
    cdef uint8_t *buffer = <uint8_t *>malloc(COPY_SIZE)
    cdef int64_t size
    cdef int64_t got
    cdef int error = 0
    if buffer == NULL:
        return -ENOMEM
    while start < end and error == 0:
        size = min(end - start, <int64_t>COPY_SIZE)
        got = env.pread(fd, buffer, size, start)
        if got < 0:
            error = <int>got
            break
        if got < size:
            memset(buffer + got, 0, size - got)
        if not zeros:
            error = write_all(env, fd, buffer, size, start)
        elif not all_zero(buffer, size):
            memset(buffer, 0, size)
            error = write_all(env, fd, buffer, size, start)
        start += size
    free(buffer)
    return error


cdef bint reads_as_zeros(const rs_env *env, int fd, int64_t position,
                         int64_t end) noexcept nogil:
    # True only if [position, end) is known to read as zeros. A false negative costs one punch, so
    # the seeks need not go through the table, and COPY_SIZE bytes are read at most.
    cdef uint8_t buffer[PAGE_SIZE]
    cdef int64_t budget = COPY_SIZE
    cdef int64_t hole, size
    while position < end:
        position = lseek(fd, position, SEEK_DATA)
        if position < 0:
            return errno == ENXIO
        hole = lseek(fd, position, SEEK_HOLE)
        if hole < 0:
            return False
        hole = min(hole, end)
        budget -= hole - position
        if budget < 0:
            return False
        while position < hole:
            size = min(hole - position, <int64_t>PAGE_SIZE)
            if env.pread(fd, buffer, size, position) != size or not all_zero(buffer, size):
                return False
            position += size
    return True


cdef int allocate(rs_mapped_file *f, int fd, int64_t start, int64_t needed,
                  int64_t target) noexcept nogil:
    # 0: [start, target) is allocated; 1: the device has room for [start, needed) only; or an errno.
    cdef int error = f.env.fallocate(fd, start, target - start)
    if error == -ENOSPC and needed < target:
        error = f.env.fallocate(fd, start, needed - start)
        if error == 0:
            return 1
    return error


cdef void publish(int64_t *bound, int64_t seen, int64_t end) noexcept nogil:
    # bound := max(bound, end), unless a concurrent cut has moved `bound` below `seen`.
    cdef int64_t now
    while True:
        now = rs_load_acquire(bound)
        if now >= end or now < seen or rs_compare_and_swap(bound, now, end):
            return


cdef int confirm_by_writing(rs_mapped_file *f, int fd, int64_t end) noexcept nogil:
    # The caller holds rewrite_lock, so no store at or behind `confirmed` occurs meanwhile. Closes
    # the descriptor.
    cdef int64_t seen = rs_load_acquire(&f.confirmed)
    cdef int64_t start = max(seen, page_down(append_position(f)))
    cdef int64_t target
    cdef int error = 0
    cdef int closed
    if end <= seen:
        return f.env.close(fd)
    # Writes are expensive: allocate at most 1 MiB ahead.
    target = min(f.file_size, end + min(f.confirm_step, <int64_t>COPY_SIZE))
    if start < target:
        error = rewrite(f.env, fd, start, target, False)
    closed = f.env.close(fd)  # a network file system may report a full device only here
    if error == 0:
        error = closed
    if error == 0:
        publish(&f.confirmed, seen, target)
    return error


cdef void write_zero_pages(rs_mapped_file *f, int fd, int64_t start, int64_t end) noexcept nogil:
    # Writes to allocated pages that were never stored to; the next flush reports an error. One
    # write a page: a larger write is cached as one folio, and a store would dirty all of it.
    while start < end:
        if f.env.pwrite(fd, zeros, PAGE_SIZE, start) != PAGE_SIZE:
            return
        start += PAGE_SIZE


cdef int64_t write_zeros(const rs_env *env, int fd, int64_t start, int64_t end,
                         int64_t step) noexcept nogil:
    cdef int64_t size
    while start < end:
        size = min(end - start, step - start % step)
        if write_all(env, fd, zeros, size, start) < 0:
            break
        start += size
    return start


cdef int confirm_filled(rs_mapped_file *f, int fd, int64_t end) noexcept nogil:
    # The caller holds the fill_lock, so no store at or behind `confirmed` occurs meanwhile.
    cdef int64_t seen = rs_load_acquire(&f.confirmed)
    cdef int64_t position = append_position(f)
    cdef int64_t allocated = rs_load_acquire(&f.allocated)
    cdef int64_t start = max(max(seen, allocated), page_down(position))
    cdef int64_t needed = min(page_up(end), f.file_size)
    cdef int64_t target = end + FILL_CHUNK - 1
    cdef int64_t room
    cdef int error = 0
    if end <= seen:
        return 0
    if f.zero_fill == RS_FILL_PAGES:
        target = min(f.file_size, page_up(end + f.confirm_step))
        room = target
    else:
        target = min(f.file_size, target - target % FILL_CHUNK)
        room = min(f.file_size, page_up(target + f.confirm_step))
    if start < target:
        error = allocate(f, fd, start, needed, room)
        if error < 0:
            return error
        if error == 1:
            target = room = needed
        publish(&f.allocated, allocated, room)
    start = page_up(max(seen, position))
    if f.zero_fill == RS_FILL_PAGES:
        write_zero_pages(f, fd, start, page_down(target))
    else:
        # A page that is not written is read by a page fault: an error here loses nothing.
        write_zeros(f.env, fd, start, target, HUGE_PAGE)
    publish(&f.confirmed, seen, target)
    return 0


cdef int confirm_shared(rs_mapped_file *f, int fd, int64_t end) noexcept nogil:
    # Closes the descriptor.
    cdef bint by_writing
    cdef int error
    rs_lock_take(f.fill_lock)
    error = confirm_filled(f, fd, end)
    by_writing = error == -EOPNOTSUPP
    if by_writing:
        rs_lock_take(rewrite_lock)
        error = confirm_by_writing(f, fd, end)
        rs_lock_release(rewrite_lock)
    rs_lock_release(f.fill_lock)
    if not by_writing:
        f.env.close(fd)
    return error


cdef int confirm(rs_mapped_file *f, int64_t end) noexcept nogil:
    return confirm_room(f, end, f.zero_fill != RS_FILL_NONE)


cdef int64_t target_of(const rs_mapped_file *f, int64_t end) noexcept nogil:
    # Up to where a file with one writer is allocated for stores before `end`.
    cdef int64_t target = PAGE_SIZE
    if f.zero_fill != RS_FILL_FOLIOS or f.confirm_step == 0:
        return end + f.confirm_step
    # Double the file, so that a queue of a few units costs one page. Aligned writes of zeros make
    # large folios.
    while target < end:
        target *= 2
    if target <= max(f.confirm_step, PAGE_SIZE):
        return target
    target = end + f.confirm_step
    return target - target % f.confirm_step


cdef int confirm_room(rs_mapped_file *f, int64_t end, bint zero_fill) noexcept nogil:
    cdef int64_t seen = rs_load_acquire(&f.confirmed)
    cdef int64_t start, target
    cdef int fd, error
    if end <= seen:
        return 0
    if end > f.file_size:
        return -EINVAL
    if f.path == NULL:
        if f.base == NULL:
            return -EROFS
        publish(&f.confirmed, seen, f.file_size)
        return 0
    fd = rs_open_for_writing(f)
    if fd < 0:
        return fd
    if f.fill_lock != NULL:
        return confirm_shared(f, fd, end)
    start = max(seen, page_down(append_position(f)))
    target = min(f.file_size, page_up(target_of(f, end)))
    if start >= target:
        # `wrote` has moved past `end`: bytes below it are not stored to again.
        error = 0
    else:
        error = allocate(f, fd, start, min(page_up(end), f.file_size), target)
    if error == -EOPNOTSUPP:
        rs_lock_take(rewrite_lock)
        error = confirm_by_writing(f, fd, end)
        rs_lock_release(rewrite_lock)
    else:
        if error >= 0:
            if error == 1:
                target = min(page_up(end), f.file_size)
            if zero_fill and target > PAGE_SIZE:
                # The first page is not filled: a queue of a few units needs one fault anyway.
                write_zeros(f.env, fd, page_up(max(seen, append_position(f))), target, FILL_CHUNK)
            publish(&f.confirmed, seen, target)
            error = 0
        f.env.close(fd)
    if error == 0 and f.populate > 0 and start < target:
        end = min(target, end + min(f.populate, <int64_t>INLINE_POPULATE))
        populate_range(f, start, end - start)
    return error


cdef bint runs_short(rs_mapped_file *f, int64_t ahead) noexcept nogil:
    # True if fewer than `ahead` bytes behind the writer, limited to the file, are confirmed.
    return rs_load_acquire(&f.confirmed) < min(f.file_size, append_position(f) + ahead)


cdef int fill_step(rs_mapped_file *f, int64_t ahead) noexcept nogil:
    # Confirms and faults in up to FILL_STEP bytes of the `ahead` bytes behind the writer. 1: one
    # step was made; 0: `ahead` bytes are confirmed already.
    cdef int64_t position = append_position(f)
    cdef int64_t start = max(position, rs_load_acquire(&f.confirmed))
    cdef int error
    if not runs_short(f, ahead):
        return 0
    error = confirm(f, min(f.file_size, min(position + ahead, start + FILL_STEP)))
    if error < 0:
        return error
    ahead = rs_load_acquire(&f.confirmed)
    populate_filled(f, start, ahead)
    return 1


cdef int fill_room_ahead(rs_mapped_file *f, int64_t ahead, rs_event *event,
                         const bint *wanted) noexcept nogil:
    cdef uint64_t seen = 0
    cdef int status
    while True:
        if event != NULL:
            seen = rs_event_sequence(event)
        status = 1
        while status > 0 and wanted[0]:
            status = fill_step(f, ahead)
        if (event == NULL or status < 0 or not wanted[0] or not runs_short(f, f.file_size)
                or rs_event_wait(event, seen, FOLLOW_MS) == 0 or not runs_short(f, ahead // 2)):
            return status


cdef int keep_room_ahead(rs_mapped_file *f, int64_t ahead, int64_t populate, int64_t *populated,
                         const bint *wanted) noexcept nogil:
    cdef int64_t target = min(f.file_size, append_position(f) + ahead)
    cdef int64_t start, end
    cdef int error = 0
    if rs_load_acquire(&f.confirmed) < target:
        error = confirm(f, target)
        if error == 0 and f.zero_fill == RS_FILL_PAGES:
            error = sync_file(f)
    while error == 0 and wanted[0]:
        # In chunks, so that the loop notices a writer that has come nearer.
        start = max(populated[0], page_down(append_position(f)))
        end = min(rs_load_acquire(&f.confirmed), append_position(f) + populate)
        if start >= end:
            break
        end = min(end, start + POPULATE_CHUNK)
        populate_range(f, start, end - start)
        populated[0] = end
    return error


cdef int confirm_range(rs_mapped_file *f, int64_t position, int64_t size,
                       bint zero_fill) noexcept nogil:
    cdef int fd, error, closed
    if position < 0 or size < 0 or size > f.file_size - position:
        return -EINVAL
    if f.path == NULL:
        return -EROFS if f.base == NULL else 0
    if size == 0:
        return 0
    fd = rs_open_for_writing(f)
    if fd < 0:
        return fd
    error = f.env.fallocate(fd, position, size)
    if error == -EOPNOTSUPP:
        rs_lock_take(rewrite_lock)
        error = rewrite(f.env, fd, position, position + size, False)
        rs_lock_release(rewrite_lock)
    elif error >= 0 and zero_fill:
        # Many slots at once: puts in random order fill them soon.
        write_zeros(f.env, fd, position, position + size,
                    HUGE_PAGE if size > HUGE_PAGE else FILL_CHUNK)
    closed = f.env.close(fd)
    return error if error < 0 else closed


cdef void populate_range(rs_mapped_file *f, int64_t position, int64_t size) noexcept nogil:
    cdef int64_t start = page_down(position)
    cdef int64_t end = min(page_up(position + size), page_up(f.file_size))
    # Before Linux 5.14 madvise fails with EINVAL, and the writer takes the page faults itself.
    if f.base != NULL and end > start and not f.by_write:
        f.env.madvise(f.base + start, end - start, ADVICE_POPULATE_WRITE)


cdef int64_t thread_faults() noexcept nogil:
    cdef rusage usage
    getrusage(RUSAGE_THREAD, &usage)
    return usage.ru_minflt


cdef void populate_filled(rs_mapped_file *f, int64_t start, int64_t end) noexcept nogil:
    # One page fault maps a whole folio, but MADV_POPULATE_WRITE then looks at each of its pages. So
    # one page of each PROBE_STEP is touched first. If most of these pages were mapped by the fault
    # of an earlier one, the folios are large, and nothing is left to touch.
    cdef int64_t probes = 0
    cdef int64_t faults = thread_faults()
    cdef int64_t position = start
    while position < end:
        populate_range(f, position, 1)
        position += PROBE_STEP
        probes += 1
    if (thread_faults() - faults) * PROBES_A_FAULT > probes:
        populate_range(f, start, end - start)


cdef int map_file(rs_mapped_file *f, const char *path, int64_t size, bint writable, void **base,
                  int64_t *length, int *step) noexcept nogil:
    cdef const rs_env *env = f.env
    cdef int fd = -1
    cdef int error = 0
    step[0] = 0
    length[0] = size
    if path != NULL:
        fd = rs_open_for_writing(f)
        if fd < 0:
            return fd
        step[0] = 1
        length[0] = env.file_size(fd)
        error = <int>min(length[0], <int64_t>0)
    if length[0] >= size:
        step[0] = 2
        error = env.mmap(fd, size, writable, base)
    if fd >= 0:
        env.close(fd)
    return error


cdef void map_new_file(rs_mapped_file *f) noexcept nogil:
    # By its name: the kernel shows a mapping of a file without one as that of a deleted file.
    cdef int64_t end = min(f.file_size, page_up(target_of(f, 1)))
    cdef void *base = NULL
    cdef int fd = rs_open_for_writing(f)
    if fd < 0:
        return
    if f.env.mmap(fd, f.file_size, not f.by_write, &base) >= 0:
        if f.zero_fill != RS_FILL_NONE:
            f.env.madvise(base, f.file_size, ADVICE_RANDOM)
        f.base = <uint8_t *>base
        if end <= PAGE_SIZE and f.env.fallocate(fd, 0, end) == 0:
            publish(&f.confirmed, 0, end)
    f.env.close(fd)


cdef int64_t pread_path(const rs_env *env, const char *path, void *target, int64_t size,
                        int64_t position) noexcept nogil:
    cdef int fd = env.open(path, O_RDONLY, 0)
    cdef int64_t got
    if fd < 0:
        return fd
    got = env.pread(fd, target, size, position)
    env.close(fd)
    return got


cdef void zero_memory(const rs_env *env, uint8_t *base, int64_t position,
                      int64_t size) noexcept nogil:
    cdef int64_t end = position + size
    cdef int64_t whole = min(page_up(position), end)
    memset(base + position, 0, <size_t>(whole - position))
    if whole < end and env.madvise(base + whole, end - whole, ADVICE_DONTNEED) < 0:
        memset(base + whole, 0, <size_t>(end - whole))


cdef int sync_file(rs_mapped_file *f) noexcept nogil:
    cdef int fd = rs_opened(rs_open_for_writing(f))
    cdef int error, closed
    if fd < 0:
        return fd
    error = rs_fdatasync(f.env, fd)
    closed = f.env.close(fd)
    return error if error < 0 else closed


cdef int zero_range(rs_mapped_file *f, int64_t position, int64_t size) noexcept nogil:
    cdef const rs_env *env = f.env
    cdef int fd = rs_opened(rs_open_for_writing(f))
    cdef int error = 0
    if fd < 0:
        return fd
    if not reads_as_zeros(env, fd, position, position + size):
        error = env.punch(fd, position, size)
        if error == -EOPNOTSUPP:
            error = rewrite(env, fd, position, position + size, True)
    if error >= 0:
        # Also if the range was zero already: the process that wrote the zeros may have been killed
        # before they were durable.
        error = rs_fdatasync(env, fd)
    env.close(fd)
    return error
