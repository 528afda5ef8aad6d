"""IndexFile for compiled code."""
from libc.stdint cimport int32_t, int64_t, uint32_t

from pyrocketstore.system._env cimport EnvTable
from pyrocketstore.index._entries cimport SlotTable, index_order, index_reader
from pyrocketstore.files._mapped_file cimport MappedFile
from pyrocketstore._rocketstore cimport rs_index_file


cdef class IndexFile:
    cdef rs_index_file index
    cdef readonly MappedFile mapped_file
    cdef readonly str name
    cdef readonly str mode
    cdef readonly object path
    cdef readonly int64_t file_size
    cdef EnvTable env
    cdef bint holding
    cdef bint available
    cdef int32_t flushed_count
    cdef int flush_errno
    cdef object flush_lock
    cdef index_order order          # changed with the GIL
    cdef SlotTable slots          # in place of the slots of the file; None: those of the file
    cdef int32_t crc_count        # number of the first entry that `crc` does not cover
    cdef uint32_t crc

    cpdef open_for_writing(self)

    cdef int _allocate_chunks(self) except -1
    cdef int _flush(self) except -1
    cdef int _preset(self, int64_t end_phy_offset, int64_t end_timestamp) except -1
    cdef int _take_header(self, bytes raw) except -1
    cdef object _put_error(self, int status)
    cdef int64_t _put_columns(self, const int32_t *key_hashes, const int64_t *phy_offsets,
                              const int64_t *store_timestamps, int64_t count) except -1
    cdef int64_t _used(self, int32_t count) noexcept
    cdef list _select(self, int32_t key_hash, int64_t max_num, int64_t begin, int64_t end)


# 1 when the file may be read, until `close_reader`; 0 when it was shut down.
cdef int open_reader(IndexFile owner, index_reader *r) except -1
# Raises the error that reading met.
cdef int close_reader(IndexFile owner, index_reader *r) except -1
