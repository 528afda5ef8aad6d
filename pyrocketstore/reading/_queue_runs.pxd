"""Records that units of a queue name, for compiled readers."""
from libc.stdint cimport int32_t, int64_t

from pyrocketstore.consume_queue._unit_window cimport UnitWindow
from pyrocketstore.files._mapped_file cimport MappedFile


cdef class RangeFields:
    """The queue of a read and its options: the fields of by_queue.QueueRange."""
    cdef readonly object log
    cdef readonly object queue
    cdef readonly int64_t floor
    cdef readonly object wanted
    cdef readonly object damage
    cdef readonly bint check_crc


cdef class RecordRows:
    """Columns of one length."""
    cdef int64_t *phy_offset
    cdef int64_t *queue_offset
    cdef int64_t *tags_code
    cdef int32_t *size
    cdef Py_ssize_t count

    cdef int select(self, object wanted, str topic) except -1


cdef class RecordRun:
    """Rows of one commit log file; `mapped_file` is None where the log has no such file."""
    cdef readonly MappedFile mapped_file
    cdef RecordRows rows            # has the memory of the columns
    cdef const int64_t *phy_offset
    cdef const int64_t *queue_offset
    cdef const int32_t *size
    cdef readonly Py_ssize_t count
