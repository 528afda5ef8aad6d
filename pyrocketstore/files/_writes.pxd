"""Make new files, write bytes to files, and sync them.

Results of functions without the GIL: 0 or a negated errno.
"""
from libc.stdint cimport int64_t, uint8_t

from pyrocketstore._rocketstore cimport rs_mapped_file
from pyrocketstore.system._env cimport EnvTable

# Makes a file of `size` bytes without blocks; `is_there`: it exists and is empty. `durable`: the
# file and its name are durable on return. A failure leaves no file; no other file is ever replaced.
# `mapped`: this file, which has that path, is mapped, and its first bytes are allocated; NULL: it
# is not. The result is 0 if a file of that name is there and `is_there` is not
# set, else 1. Raises StoreIOError or StoreFsyncError naming `shown`.
cdef int make_file(EnvTable owner, bytes path, int64_t size, bint durable, bint is_there,
                   object shown, rs_mapped_file *mapped) except -1


# Stores `data` at `position` of a file that is mapped, and confirmed so far: into its buffer, its
# mapping, or by pwrite. `wrote` and `appended` stay. One writer at a time.
cdef int store_bytes(rs_mapped_file *f, int64_t position, const uint8_t *data,
                     int64_t size) noexcept nogil

# As store_bytes, always by pwrite: the file need not be mapped.
cdef int write_bytes(rs_mapped_file *f, int64_t position, const uint8_t *data,
                     int64_t size) noexcept nogil

# Stores records into a mapping, one after the other and each start last: a kill leaves whole
# records, and none behind a gap.
cdef void store_records(uint8_t *to, const uint8_t *data, int64_t size) noexcept nogil

# As store_bytes through the open `fd`. After an error the bytes that were written are overwritten
# with zeros; `unclean`: that failed too.
cdef int write_records(rs_mapped_file *f, int fd, int64_t position, const uint8_t *data,
                       int64_t size, bint *unclean) noexcept nogil

# Syncs [start, end) of a file to the device, by msync where it is mapped.
cdef int sync_range(rs_mapped_file *f, int64_t start, int64_t end) noexcept nogil

# Copies what was appended to the file's buffer into the file, and lets readers see it.
cdef int commit_appended(rs_mapped_file *f) noexcept nogil


cdef class WriterBuffer:
    cdef readonly EnvTable env
    cdef readonly int64_t size
    cdef readonly bint locked
    cdef public object on_free
    cdef uint8_t *base
