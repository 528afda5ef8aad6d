"""Records of a commit log file to columns: each block is decoded while it is in the cache."""
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from pyrocketstore.columns._decode cimport ColumnPass, walk_rows
from pyrocketstore.files._mapped_file cimport MappedFile
from pyrocketstore.record._queue_check cimport QueueName
from pyrocketstore.reading._messages cimport NOT_HELD, RecordBytes, block_stop
from pyrocketstore._rocketstore cimport RS_NO_MEMORY, RS_OK, rs_load_acquire, rs_status_name

from pyrocketstore.errors import StoreCorruptionError, StoreFormatError

# Bytes of one read: at most half of a processor's second-level cache.
cdef int64_t BLOCK_BYTES = 524288


cdef int _check_offsets(
    MappedFile mapped_file, const int64_t[::1] phy_offsets, const int32_t[::1] sizes, int64_t wrote
) except -1:
    cdef int64_t start = mapped_file.file.file_from_offset
    cdef Py_ssize_t i
    for i in range(phy_offsets.shape[0]):
        if phy_offsets[i] < start or sizes[i] <= 0 or phy_offsets[i] - start > wrote - sizes[i]:
            raise StoreCorruptionError(
                mapped_file.path, <object>phy_offsets[i] - start, NOT_HELD
            )
    return 0


def decode_file_records(
    MappedFile mapped_file not None,
    const int64_t[::1] phy_offsets not None,
    const int32_t[::1] sizes not None,
    columns,
    *,
    bint check_crc=False,
    bint inflate=True,
    max_body_bytes=None,
    QueueName queue=None,
    const int64_t[::1] queue_offsets=None,
    bint null_bad_bodies=False,
):
    """Decode records of one commit log file to columns.

    Parameters
    ----------
    mapped_file : MappedFile, also one that is only read
    phy_offsets : int64[n], bytes, ascending for speed; each record must have stored its offset
    sizes : int32[n], bytes: largest possible size of each record
    columns : sequence of str, as in columns._decode.decode_records
    check_crc : bool, compare each stored body with its CRC
    inflate : bool; False: return None if `body` is requested and a body is compressed
    max_body_bytes : int or None, as in columns._decode.decode_records
    queue, queue_offsets : as in columns._decode.decode_records
    null_bad_bodies : bool, None for a `body` that does not inflate

    Returns
    -------
    dict as of columns._decode.decode_records, or None

    Raises
    ------
    StoreCorruptionError with file and position: the bytes there are not that record, or the file
    ends before it does, or a body does not inflate, or to more than 64 MiB. StoreIOError.
    StoreFormatError: an unknown column.

    Threads: the GIL is released while a block is read or decoded.
    """
    cdef ColumnPass work = ColumnPass.__new__(ColumnPass)
    cdef RecordBytes source = RecordBytes()
    cdef int64_t start = mapped_file.file.file_from_offset
    cdef int64_t wrote = rs_load_acquire(&mapped_file.file.wrote)
    cdef Py_ssize_t count = phy_offsets.shape[0]
    cdef Py_ssize_t first = 0
    cdef Py_ssize_t stop = 0
    cdef Py_ssize_t row = 0
    cdef Py_ssize_t i
    cdef int64_t begin, end
    cdef int status
    cdef const uint8_t *data
    cdef const uint8_t **records
    if sizes.shape[0] != count:
        raise StoreFormatError("phy_offsets and sizes must have one entry a record")
    work.null_bad_bodies = null_bad_bodies
    work.open(columns, count, &sizes[0] if count else NULL, mapped_file.path, max_body_bytes)
    work.compare(queue, queue_offsets)
    if not mapped_file.take_hold():
        raise StoreCorruptionError(mapped_file.path, -1, NOT_HELD)
    records = <const uint8_t **>malloc(max(count, 1) * sizeof(uint8_t *))
    try:
        if records == NULL:
            raise MemoryError
        while first < count:
            end = block_stop(&phy_offsets[0], &sizes[0], count, first, BLOCK_BYTES, &stop)
            _check_offsets(mapped_file, phy_offsets[first:stop], sizes[first:stop], wrote)
            begin = phy_offsets[first] - start
            end -= start
            data = source.at(mapped_file, begin, end - begin, end)
            for i in range(first, stop):
                records[i] = data + (phy_offsets[i] - start - begin)
            with nogil:
                status = walk_rows(
                    work.state, records, &sizes[0], &phy_offsets[0], first, stop, check_crc, &row
                )
            if status == RS_NO_MEMORY:
                raise MemoryError
            if status != RS_OK:
                raise StoreCorruptionError(
                    mapped_file.path, phy_offsets[row] - start,
                    rs_status_name(status).decode("ascii"),
                )
            if work.state.compressed_count and not inflate:
                return None
            first = stop
        return work.close(&phy_offsets[0] if count else NULL, start)
    finally:
        free(records)
        mapped_file.drop_hold()
