"""Records that units of a queue name, for compiled readers."""
from libc.stdint cimport int32_t, int64_t

from pyrocketstore.consume_queue._units cimport UnitWindow
from pyrocketstore.files._mapped_file cimport MappedFile
from pyrocketstore.system._open_state cimport StoreState

cdef class ReadCounts:
    cdef readonly int64_t found
    cdef readonly int64_t missed
    cdef readonly int64_t messages
    cdef readonly int64_t longest_ms

    cpdef void note(self, int64_t count, int64_t took_ms=*) noexcept


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


cdef class QueueChunks:
    """The runs of a range of a queue, one after the other."""
    cdef RangeFields part
    cdef StoreState state
    cdef object owner           # what keeps the store open
    cdef ReadCounts counts
    cdef int64_t start
    cdef int64_t stop
    cdef int64_t count
    cdef list ready             # runs of the units read so far
    cdef Py_ssize_t next_run

    cdef int read_on(self) except -1


# The first byte of a log, as its get_min_offset; the end of a queue, as get_max_offset_in_queue.
cdef int64_t first_byte(object log) except? -2
cdef int64_t end_of_queue(object queue) except? -1
