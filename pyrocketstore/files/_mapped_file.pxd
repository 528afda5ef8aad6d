"""MappedFile, for the modules that read and write through it."""
from cpython.list cimport PyList_GET_ITEM
from libc.stdint cimport int64_t, uint8_t

from pyrocketstore.system._allocation cimport confirm, confirm_range, populate_range
from pyrocketstore.system._env cimport EnvTable, kept_file
from pyrocketstore._rocketstore cimport rs_mapped_file
from pyrocketstore.files._writes cimport WriterBuffer


cdef class MappedFile:
    cdef rs_mapped_file file
    cdef readonly EnvTable env
    cdef readonly str path
    cdef readonly bint created
    cdef bytes _path
    cdef const char *_path_text
    cdef int kind
    cdef bint available
    cdef readonly bint unlinked     # the name is deleted, or is being deleted
    cdef bint name_unsynced         # created, and its name may not be durable yet
    cdef int64_t holds
    cdef int64_t lent               # how many of those callers in Python took
    cdef int64_t source_size
    cdef int64_t populated
    cdef WriterBuffer writer_buffer
    cdef kept_file *kept            # read: open between reads; NULL without one

    cdef bint take_hold(self) except -1
    cdef int drop_hold(self) except -1
    cdef int map(self) except -1
    cdef int unmap(self) except -1
    cdef int drop_buffer(self) except -1
    cdef int open_file(self, bint create, bint partial, bint mapped) except -1
    cdef bytes directory(self)
    cdef bint create_file(self, bint is_there, bint mapped) except -1
    cdef void give_up_from(self, int64_t position) noexcept
    cdef int64_t checked_position(self, object value) except -1
    cdef int confirm_or_raise(self, int64_t end) except -1
    cdef bint sync_data(self, int64_t flushed, int64_t position) except -1
    cdef int sync_name(self) except -1
    cdef int64_t move_flushed(self, int64_t flushed, int64_t position) noexcept
    cdef bint is_unwanted(self)
    # The path of the bytes that are written; NULL: some of them are in memory only. Valid while the
    # object is.
    cdef const char *disk_path(self) noexcept
    cdef int64_t read_into(self, void *target, int64_t size, int64_t position) noexcept
    cdef bint has_name(self) noexcept
    cdef kept_file *take_descriptor(self) except NULL
    cdef bytes pread(self, int64_t position, int64_t size)
    # True if `pread` reads the bytes of the file.
    cdef bint is_on_disk(self) noexcept
    cdef SelectMappedBufferResult select(self, int64_t position, int64_t size)


cdef class FileSequence:
    cdef list items
    cdef Py_ssize_t count

    # The caller checks `i`.
    cdef inline MappedFile at(self, Py_ssize_t i):
        return <MappedFile>PyList_GET_ITEM(self.items, i)


# The file of a sequence that holds byte `offset`, or None.
cdef MappedFile file_with(FileSequence files, int64_t offset, int64_t file_size)


cdef class SelectMappedBufferResult:
    cdef const uint8_t *data
    cdef readonly int64_t start_offset
    cdef readonly int64_t size
    cdef readonly MappedFile mapped_file
    cdef object owned
    cdef int64_t exports
    cdef bint released
    cdef bint holding

    cpdef release(self)
    cdef int drop_view_hold(self) except -1
