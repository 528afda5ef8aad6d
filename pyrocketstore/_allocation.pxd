"""Room in files, for the modules that write through mappings. 0, or a negated errno. Any thread."""
from libc.stdint cimport int64_t, uint8_t

from pyrocketstore._rocketstore cimport rs_env, rs_mapped_file

cdef enum:
    PAGE_SIZE = 4096


cdef inline int64_t page_down(int64_t position) noexcept nogil:
    return position & ~<int64_t>(PAGE_SIZE - 1)


cdef inline int64_t page_up(int64_t position) noexcept nogil:
    return (position + PAGE_SIZE - 1) & ~<int64_t>(PAGE_SIZE - 1)


# Makes [0, end) safe to store to: allocated in the file, so that a full device is an error here
# and not a SIGBUS later. What lies below `wrote` is taken as it is. Goes confirm_step ahead, and
# touches a part of the file's `populate` bytes of pages. With `zero_fill` what is new is written as
# zeros: the page cache takes that in large folios, which a mapping then faults in as a whole; many
# times cheaper than page by page.
cdef int confirm(rs_mapped_file *f, int64_t end) noexcept nogil

# As confirm, and says itself whether to write zeros.
cdef int confirm_room(rs_mapped_file *f, int64_t end, bint zero_fill) noexcept nogil

# The same for [position, position + size) alone, for stores anywhere in the file. `confirmed`
# stays as it is: the caller remembers. One writer at a time. `zero_fill`: write zeros there, where
# nobody has ever stored anything.
cdef int confirm_range(rs_mapped_file *f, int64_t position, int64_t size,
                       bint zero_fill) noexcept nogil

# All of `data` to an open file; 0 or a negated errno.
cdef int write_all(const rs_env *env, int fd, const uint8_t *data, int64_t size,
                   int64_t position) noexcept nogil

# Makes a file of full length without blocks; with a `directory` both are on the device then.
# `step`: which call failed, of open, ftruncate, fdatasync and fsync_directory.
cdef int create_sparse(const rs_env *env, const char *path, int64_t size, const char *directory,
                       int *step) noexcept nogil

# Touches the pages of [position, position + size) ahead of a writer, best effort. The caller holds
# the file.
cdef void populate_range(rs_mapped_file *f, int64_t position, int64_t size) noexcept nogil

# Makes [position, position + size) of the file read as zeros, for good.
cdef int zero_range(const rs_env *env, const char *path, int64_t position,
                    int64_t size) noexcept nogil

# Reads from a file that is not open; the bytes read, fewer only where the file ends.
cdef int64_t pread_path(const rs_env *env, const char *path, void *target, int64_t size,
                        int64_t position) noexcept nogil
