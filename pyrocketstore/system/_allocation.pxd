"""Allocation of room in files, for the modules that write through mappings.

Functions that return int return 0 or a negated errno unless documented otherwise. Threads: any.
"""
from libc.stdint cimport int64_t, uint8_t

from pyrocketstore._rocketstore cimport rs_env, rs_event, rs_load_acquire, rs_mapped_file

cdef enum:
    PAGE_SIZE = 4096
    # Size in bytes, and alignment, of the writes that fill a file: each becomes one large folio of
    # the page cache. Larger folios are expensive in a guest whose host has reclaimed large pages.
    FILL_CHUNK = 262144
    HUGE_PAGE = 2097152         # the largest such write
    ADVICE_RANDOM = 1           # MADV_RANDOM
    ADVICE_DONTNEED = 4         # MADV_DONTNEED


cdef inline int64_t page_down(int64_t position) noexcept nogil:
    return position & ~<int64_t>(PAGE_SIZE - 1)


cdef inline int64_t page_up(int64_t position) noexcept nogil:
    return (position + PAGE_SIZE - 1) & ~<int64_t>(PAGE_SIZE - 1)


# Makes [0, end) safe to store to: allocated in the file, so that a full device is an error here
# and not a SIGBUS later. Bytes below `wrote` count as allocated. The call allocates confirm_step
# bytes ahead and touches a part of the file's `populate` bytes of pages. A file that is filled with
# zeros in folios starts with one page instead, and doubles, by confirm_step bytes at most. With
# `zero_fill` the call writes zeros to the new range: the page cache holds them in large folios, and
# a mapping faults in a whole folio at once, which is many times cheaper than page by page. With a
# fill_lock any thread may call while another stores below `confirmed`: the call then allocates
# confirm_step ahead, fills one chunk, so that no thread waits for long, and touches no page.
cdef int confirm(rs_mapped_file *f, int64_t end) noexcept nogil

# As confirm, with `zero_fill` as an argument: whether to write zeros.
cdef int confirm_room(rs_mapped_file *f, int64_t end, bint zero_fill) noexcept nogil

# The position of the next append: behind the last byte written to the file or to its buffer.
cdef inline int64_t append_position(const rs_mapped_file *f) noexcept nogil:
    return rs_load_acquire(&f.wrote if f.buffer == NULL else &f.appended)


# As MappedFile.keep_ahead. `populated` is the end of the touched pages; the loop runs while
# `wanted` is set. The caller holds the file.
cdef int keep_room_ahead(rs_mapped_file *f, int64_t ahead, int64_t populate, int64_t *populated,
                         const bint *wanted) noexcept nogil

# As MappedFile.fill_ahead; `event` may be NULL. The caller holds the file.
cdef int fill_room_ahead(rs_mapped_file *f, int64_t ahead, rs_event *event,
                         const bint *wanted) noexcept nogil

# As confirm for [position, position + size) alone, for stores anywhere in the file. `confirmed`
# does not change: the caller records the range. One writer at a time. `zero_fill`: write zeros to
# the range, which must never have been written to; in huge pages if it has more than one.
cdef int confirm_range(rs_mapped_file *f, int64_t position, int64_t size,
                       bint zero_fill) noexcept nogil

# Writes zeros to [start, end) of an open file, at most `step` bytes at once, up to multiples of
# `step`; returns the end of the written range. `step`: at most HUGE_PAGE.
cdef int64_t write_zeros(const rs_env *env, int fd, int64_t start, int64_t end,
                         int64_t step) noexcept nogil

# Writes data[begin:end] to an open file; data[0] belongs to `position`. Returns 1, or what a failed
# pwrite returned; touched[0] grows to the end of what was written.
cdef int64_t write_part(const rs_env *env, int fd, const uint8_t *data, int64_t begin, int64_t end,
                        int64_t position, int64_t *touched) noexcept nogil

# Writes all of `data` to an open file.
cdef int write_all(const rs_env *env, int fd, const uint8_t *data, int64_t size,
                   int64_t position) noexcept nogil

# Maps `size` bytes of a file that is not open, or anonymous memory if `path` is NULL (else it is
# the path of `f`). `length`
# receives the length of the file; a file shorter than `size` is not mapped. `step` receives the
# number of the call that failed: 0 open, 1 fstat, 2 mmap.
cdef int map_file(rs_mapped_file *f, const char *path, int64_t size, bint writable, void **base,
                  int64_t *length, int *step) noexcept nogil

# Opens a new file that has one writer, maps it and allocates its first bytes. An error is left to
# `map_file` and `confirm`, which do what was not done here.
cdef void map_new_file(rs_mapped_file *f) noexcept nogil

# Faults in the pages of [position, position + size) ahead of a writer, best effort. The caller
# holds the file.
cdef void populate_range(rs_mapped_file *f, int64_t position, int64_t size) noexcept nogil

# As populate_range for [start, end), where zeros were just written: touches few pages if the page
# cache holds them in large folios.
cdef void populate_filled(rs_mapped_file *f, int64_t start, int64_t end) noexcept nogil

# Makes [position, position + size) of memory read as zeros, and releases whole pages.
cdef void zero_memory(const rs_env *env, uint8_t *base, int64_t position,
                      int64_t size) noexcept nogil

# Flushes a file that is not open (fdatasync).
cdef int sync_file(rs_mapped_file *f) noexcept nogil

# Makes [position, position + size) of the file read as zeros, durably.
cdef int zero_range(rs_mapped_file *f, int64_t position, int64_t size) noexcept nogil

# Reads from a file that is not open; returns the bytes read, fewer only at the end of the file.
cdef int64_t pread_path(const rs_env *env, const char *path, void *target, int64_t size,
                        int64_t position) noexcept nogil
