"""Messages out of commit log files: a range of queue units becomes a list of messages."""
from libc.stdint cimport int32_t, int64_t, uint8_t

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
    cdef Py_ssize_t n = phy_offsets.shape[0]
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t j
    cdef int64_t start, stop
    cdef list messages = []
    cdef SelectMappedBufferResult block
    while i < n:
        start = phy_offsets[i]
        stop = start + sizes[i]
        j = i + 1
        while (j < n and phy_offsets[j] >= stop and phy_offsets[j] - stop < GAP_BYTES
               and phy_offsets[j] + sizes[j] - start <= BLOCK_BYTES):
            stop = phy_offsets[j] + sizes[j]
            j += 1
        block = mapped_file.select_mapped_buffer(start - mapped_file.file.file_from_offset,
                                                 stop - start)
        if block is None:
            raise StoreCorruptionError(
                mapped_file.path, start - mapped_file.file.file_from_offset,
                "a queue names bytes that the log does not hold")
        try:
            while i < j:
                messages.append(decode_at(mapped_file, block, phy_offsets[i], sizes[i], check_crc))
                i += 1
        finally:
            block.release()
    return messages


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
