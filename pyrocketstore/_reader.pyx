"""Messages out of commit log files: a range of queue units becomes a list of messages."""
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from pyrocketstore._mapped_file cimport MappedFile, SelectMappedBufferResult
from pyrocketstore._message cimport MessageExt, message_from_record
from pyrocketstore._record cimport check_record
from pyrocketstore._rocketstore cimport (
    RS_OK,
    rs_record,
    rs_status_name,
)

from pyrocketstore.errors import StoreCorruptionError

# Records that lie this far apart are read one by one when the file is not mapped.
cdef int64_t GAP_BYTES = 65536
cdef int64_t BLOCK_BYTES = 4194304


cdef Py_ssize_t block_end(const int64_t[::1] phy_offsets, const int32_t[::1] sizes,
                          Py_ssize_t first) noexcept:
    # How far records lie so close together that one read is cheaper than several.
    cdef Py_ssize_t n = phy_offsets.shape[0]
    cdef int64_t start = phy_offsets[first]
    cdef int64_t stop = start + sizes[first]
    cdef Py_ssize_t i = first + 1
    while (i < n and sizes[i] > 0 and phy_offsets[i] >= stop and phy_offsets[i] - stop < GAP_BYTES
           and phy_offsets[i] + sizes[i] - start <= BLOCK_BYTES):
        stop = phy_offsets[i] + sizes[i]
        i += 1
    return i


cdef SelectMappedBufferResult select_block(MappedFile mapped_file, const int64_t[::1] phy_offsets,
                                           const int32_t[::1] sizes, Py_ssize_t first,
                                           Py_ssize_t end):
    cdef int64_t position = phy_offsets[first] - mapped_file.file.file_from_offset
    cdef int64_t stop = phy_offsets[end - 1] + sizes[end - 1]
    block = mapped_file.select_mapped_buffer(position, stop - phy_offsets[first])
    if block is None:
        raise StoreCorruptionError(mapped_file.path, position,
                                   "a queue names bytes that the log does not hold")
    return block


def read_messages(MappedFile mapped_file not None, const int64_t[::1] phy_offsets not None,
                  const int32_t[::1] sizes not None, bint check_crc=False):
    """The messages at the given places of one commit log file, each with its own copy of its bytes.

    Parameters
    ----------
    phy_offsets : int64[n], bytes, ascending for speed
    sizes : int32[n], bytes
    check_crc : bool, compare each body with its CRC

    Raises
    ------
    StoreCorruptionError with file and position: what lies there is not that record
    StoreIOError

    Threads: any; the file is held for the time of the call.
    """
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t j
    cdef list messages = []
    cdef SelectMappedBufferResult block
    while i < phy_offsets.shape[0]:
        j = block_end(phy_offsets, sizes, i)
        block = select_block(mapped_file, phy_offsets, sizes, i, j)
        try:
            while i < j:
                messages.append(decode_at(mapped_file, block, phy_offsets[i], sizes[i], check_crc))
                i += 1
        finally:
            block.release()
    return messages


def gather_records(MappedFile mapped_file not None, const int64_t[::1] phy_offsets not None,
                   const int32_t[::1] sizes not None, uint8_t[::1] out not None, int64_t position):
    """Copy records of one commit log file, checked, one behind the other into `out`.

    Parameters
    ----------
    phy_offsets, sizes : as of read_messages
    out : uint8[m], with room for all of them from `position` on

    Raises as read_messages; IndexError when `out` is too small.
    """
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t j
    cdef int status = RS_OK
    cdef rs_record record
    cdef const uint8_t *source
    cdef SelectMappedBufferResult block
    while i < phy_offsets.shape[0]:
        j = block_end(phy_offsets, sizes, i)
        block = select_block(mapped_file, phy_offsets, sizes, i, j)
        try:
            with nogil:
                while i < j:
                    source = block.data + (phy_offsets[i] - block.start_offset)
                    status = check_record(source, sizes[i], phy_offsets[i], False, &record)
                    if status != RS_OK or sizes[i] > out.shape[0] - position:
                        break
                    memcpy(&out[position], source, <size_t>sizes[i])
                    position += sizes[i]
                    i += 1
        finally:
            block.release()
        if status != RS_OK:
            raise StoreCorruptionError(mapped_file.path,
                                       phy_offsets[i] - mapped_file.file.file_from_offset,
                                       rs_status_name(status).decode("ascii"))
        if i < j:
            raise IndexError("the buffer is too small")


cdef MessageExt decode_at(MappedFile mapped_file, SelectMappedBufferResult block,
                          int64_t phy_offset, int32_t size, bint check_crc):
    cdef rs_record record
    cdef int status = check_record(block.data + (phy_offset - block.start_offset), size,
                                   phy_offset, check_crc, &record)
    if status != RS_OK:
        raise StoreCorruptionError(mapped_file.path,
                                   phy_offset - mapped_file.file.file_from_offset,
                                   rs_status_name(status).decode("ascii"))
    return message_from_record(block.data + (phy_offset - block.start_offset), &record)
