"""Messages by key, for `Store`."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore.commit_log._append cimport CommitLogCore
from pyrocketstore.files._mapped_file cimport FileSequence
from pyrocketstore.index._file cimport IndexFile
from pyrocketstore._rocketstore cimport rs_mapped_file


cdef class LogTable:
    cdef FileSequence files
    cdef rs_mapped_file **table
    cdef Py_ssize_t count
    cdef int64_t file_size
    cdef int64_t read_bytes     # of the first read of a record of unknown size

    cdef void note_size(self, int64_t size) noexcept nogil
    cdef Py_ssize_t find(self, int64_t phy_offset) noexcept nogil


cdef class KeySearch:
    cdef CommitLogCore core
    cdef object mapped_file_queue
    cdef object index_service
    cdef object dispatcher
    cdef object wait
    cdef LogTable log
    cdef IndexFile newest     # index file, as of the last search
    cdef tuple named_files    # the index files by their names, as of the last search
    cdef tuple index_files    # the same files, oldest keys first
    cdef public object gaps
    cdef public object unreadable
    cdef public object min_offsets

    cdef int64_t await_index(self) except -1
    cdef LogTable log_files(self)
    cdef tuple files_in_order(self)
    cdef const uint8_t *newest_base(self) noexcept
    # `topic` and `key` must not be None.
    cpdef list query(self, str topic, str key, int64_t begin, int64_t end, max_num, bint exact)
    cdef const int64_t[::1] search_gaps(self, object gaps, int32_t key_hash)
    cdef list _messages_at(self, const int64_t *phy_offsets, Py_ssize_t count)
