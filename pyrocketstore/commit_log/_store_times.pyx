"""Store times of records, for searches by time."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t
from cpython.tuple cimport PyTuple_GET_SIZE

from pyrocketstore.commit_log._append cimport CommitLogCore
from pyrocketstore.files._mapped_file cimport MappedFile, file_with
from pyrocketstore.record._record cimport HEADER_BYTES, store_time_in
from pyrocketstore._rocketstore cimport check_io, rs_load_acquire

from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.system.live_stores import was_removed


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class StoreTimes:
    """Callable(phy_offset, size): the store time (Unix ms) of the record there, -1 if unreadable.

    Only the header of the record is read, though all of its bytes must be in the log.

    Parameters
    ----------
    core : CommitLogCore, which has the log's end
    mapped_file_queue : MappedFileQueue, the log's

    Raises StoreIOError; StoreCorruptionError: a file is shorter than its records.
    Threads: any. Source: RocketMQ 4.9.3 CommitLog#pickupStoreTimestamp.
    """

    cdef CommitLogCore core
    cdef object files

    def __cinit__(self, CommitLogCore core not None, mapped_file_queue):
        self.core = core
        self.files = mapped_file_queue

    def __call__(self, int64_t phy_offset, int64_t size):
        cdef tuple files = <tuple?>self.files.mapped_files
        cdef int64_t file_size = self.files.mapped_file_size
        cdef int64_t end = rs_load_acquire(&self.core.end_offset)
        cdef MappedFile file
        cdef int64_t start, position
        if size <= 0 or phy_offset < 0 or size > end or phy_offset > end - size:
            return -1
        if PyTuple_GET_SIZE(files) == 0 or file_size <= 0:
            return -1
        file = <MappedFile?>files[0]
        start = file.file.file_from_offset
        if not file.available:  # it is being deleted
            start += file_size - start % file_size
        if phy_offset < start:
            return -1
        file = file_with(files, phy_offset, file_size)
        if file is None:
            return -1
        position = phy_offset - file.file.file_from_offset
        if position > rs_load_acquire(&file.file.wrote) - size:
            return -1
        try:
            return self.time_at(file, position, min(size, <int64_t>HEADER_BYTES))
        except StoreIOError as error:
            if not (self.files.read_only and was_removed(error)):
                raise
            return -1

    cdef int64_t time_at(self, MappedFile file, int64_t position, int64_t size) except? -1:
        cdef uint8_t[HEADER_BYTES] header
        cdef int64_t got
        if not file.take_hold():
            return -1
        try:
            if file.file.base != NULL:
                return store_time_in(file.file.base + position, size)
            got = file.read_into(header, size, position)
            check_io(got, "pread", file.path, position)
            if got < size:
                raise StoreCorruptionError(
                    file.path, position, f"the file ends after {got} of {size} bytes"
                )
            return store_time_in(header, size)
        finally:
            file.drop_hold()
