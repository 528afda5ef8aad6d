"""Room in files, for the modules that write through mappings. 0, or a negated errno. Any thread."""
from libc.stdint cimport int64_t, uint8_t

from pyrocketstore._rocketstore cimport rs_env, rs_event, rs_load_acquire, rs_mapped_file

cdef enum:
    PAGE_SIZE = 4096
    # Files are filled by writes of so much, aligned: each makes one large page of the page cache.
    # Larger ones are dear where the machine is a guest whose host has taken back what lay free in
    # one piece.
    FILL_PIECE = 262144
    ADVICE_DONTNEED = 4         # MADV_DONTNEED


cdef inline int64_t page_down(int64_t position) noexcept nogil:
    return position & ~<int64_t>(PAGE_SIZE - 1)


cdef inline int64_t page_up(int64_t position) noexcept nogil:
    return (position + PAGE_SIZE - 1) & ~<int64_t>(PAGE_SIZE - 1)


# Makes [0, end) safe to store to: allocated in the file, so that a full device is an error here
# and not a SIGBUS later. What lies below `wrote` is taken as it is. Goes confirm_step ahead, and
# touches a part of the file's `populate` bytes of pages. With `zero_fill` what is new is written as
# zeros: the page cache takes that in large folios, which a mapping then faults in as a whole; many
# times cheaper than page by page. With a fill_lock any thread may call while another stores below
# `confirmed`: allocation goes confirm_step ahead, filling one piece, so that nobody waits for long,
# and no page is touched.
cdef int confirm(rs_mapped_file *f, int64_t end) noexcept nogil

# As confirm, and says itself whether to write zeros.
cdef int confirm_room(rs_mapped_file *f, int64_t end, bint zero_fill) noexcept nogil

# Behind the last byte that was written, to the file or to its buffer: where the next append goes.
cdef inline int64_t append_position(const rs_mapped_file *f) noexcept nogil:
    return rs_load_acquire(&f.wrote if f.buffer == NULL else &f.appended)


# As MappedFile.keep_ahead: `populated`, how far pages were touched; goes on while `wanted`. The
# caller holds the file.
cdef int keep_room_ahead(rs_mapped_file *f, int64_t ahead, int64_t populate, int64_t *populated,
                         const bint *wanted) noexcept nogil

# As MappedFile.fill_ahead; `event` may be NULL. The caller holds the file.
cdef int fill_room_ahead(rs_mapped_file *f, int64_t ahead, rs_event *event,
                         const bint *wanted) noexcept nogil

# The same for [position, position + size) alone, for stores anywhere in the file. `confirmed`
# stays as it is: the caller remembers. One writer at a time. `zero_fill`: write zeros there, where
# nobody has ever stored anything.
cdef int confirm_range(rs_mapped_file *f, int64_t position, int64_t size,
                       bint zero_fill) noexcept nogil

# Zeros to [start, end) of an open file; how far it came.
cdef int64_t write_zeros(const rs_env *env, int fd, int64_t start, int64_t end) noexcept nogil

# All of `data` to an open file; 0 or a negated errno.
cdef int write_all(const rs_env *env, int fd, const uint8_t *data, int64_t size,
                   int64_t position) noexcept nogil

# Maps `size` bytes of a file that is not open, or of memory where there is no path. `length`: the
# file's; nothing is mapped where that is less. `step`: which call failed, of open, fstat and mmap.
cdef int map_path(const rs_env *env, const char *path, int64_t size, bint writable, void **base,
                  int64_t *length, int *step) noexcept nogil

# Touches the pages of [position, position + size) ahead of a writer, best effort. The caller holds
# the file.
cdef void populate_range(rs_mapped_file *f, int64_t position, int64_t size) noexcept nogil

# Makes [position, position + size) of memory read as zeros, and gives whole pages back.
cdef void zero_memory(const rs_env *env, uint8_t *base, int64_t position,
                      int64_t size) noexcept nogil

# Forces a file that is not open.
cdef int sync_path(const rs_env *env, const char *path) noexcept nogil

# Makes [position, position + size) of the file read as zeros, for good.
cdef int zero_range(const rs_env *env, const char *path, int64_t position,
                    int64_t size) noexcept nogil

# Reads from a file that is not open; the bytes read, fewer only where the file ends.
cdef int64_t pread_path(const rs_env *env, const char *path, void *target, int64_t size,
                        int64_t position) noexcept nogil
