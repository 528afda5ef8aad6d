"""How bytes reach a file, for the modules that write. 0, or a negated errno; no GIL needed."""
from libc.stdint cimport int64_t, uint8_t

from pyrocketstore._env cimport EnvTable
from pyrocketstore._rocketstore cimport rs_mapped_file


# Stores `data` at `position` of a file that is mapped, and confirmed so far: into its buffer, its
# mapping, or by pwrite. `wrote` and `appended` stay. One writer at a time.
cdef int store_bytes(rs_mapped_file *f, int64_t position, const uint8_t *data,
                     int64_t size) noexcept nogil

# The same through `fd`, which is open: all of `data`, or an error and zeros where
# some of it came; `unclean`: those failed too.
cdef int write_records(rs_mapped_file *f, int fd, int64_t position, const uint8_t *data,
                       int64_t size, bint *unclean) noexcept nogil

# Brings [start, end) of a file to the device, by its mapping where there is one.
cdef int force_range(rs_mapped_file *f, int64_t start, int64_t end) noexcept nogil

# Copies what was appended to the file's buffer into the file, and lets readers see it.
cdef int commit_appended(rs_mapped_file *f) noexcept nogil


cdef class WriterBuffer:
    cdef readonly EnvTable env
    cdef readonly int64_t size
    cdef readonly bint locked
    cdef public object on_free
    cdef uint8_t *base
