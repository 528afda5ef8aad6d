"""Records of a commit log file to columns: each block is decoded while it is in the cache."""
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from pyrocketstore.columns._builder cimport ArrowColumns
from pyrocketstore.columns._decode cimport ColumnPass, plan_of, walk_rows
from pyrocketstore.files._mapped_file cimport MappedFile
from pyrocketstore.record._record cimport QueueName
from pyrocketstore.reading._queue_runs cimport RecordRun
from pyrocketstore.reading._messages cimport NOT_HELD, RecordBytes, block_stop
from pyrocketstore._rocketstore cimport RS_NO_MEMORY, RS_OK, rs_load_acquire, rs_status_name

from pyrocketstore.columns._decode import column_names
from pyrocketstore.errors import StoreCorruptionError, StoreFormatError

# Bytes of one read: at most half of a processor's second-level cache.
cdef int64_t BLOCK_BYTES = 524288


cdef int _check_offsets(
    MappedFile mapped_file, const int64_t *phy_offsets, const int32_t *sizes, Py_ssize_t first,
    Py_ssize_t stop, int64_t wrote
) except -1:
    cdef int64_t start = mapped_file.file.file_from_offset
    cdef Py_ssize_t i
    for i in range(first, stop):
        if phy_offsets[i] < start or sizes[i] <= 0 or phy_offsets[i] - start > wrote - sizes[i]:
            raise StoreCorruptionError(
                mapped_file.path, <object>phy_offsets[i] - start, NOT_HELD
            )
    return 0


cdef bint _walk(
    ColumnPass work, MappedFile mapped_file, const int64_t *phy_offsets, const int32_t *sizes,
    Py_ssize_t count, bint check_crc, bint inflate
) except -1:
    """Decode the records of a file that is held; False: a body is compressed, with `inflate` 0."""
    cdef RecordBytes source = RecordBytes.__new__(RecordBytes)
    cdef int64_t start = mapped_file.file.file_from_offset
    cdef int64_t wrote = rs_load_acquire(&mapped_file.file.wrote)
    cdef Py_ssize_t first = 0
    cdef Py_ssize_t stop = count
    cdef Py_ssize_t row = 0
    cdef Py_ssize_t i
    cdef int64_t begin, end
    cdef int status
    cdef const uint8_t *data
    cdef const uint8_t **records = <const uint8_t **>malloc(
        max(count, <Py_ssize_t>1) * sizeof(uint8_t *)
    )
    try:
        if records == NULL:
            raise MemoryError
        while first < count:
            # The records of a mapped file need no reads: they are one block.
            if mapped_file.file.base != NULL:
                _check_offsets(mapped_file, phy_offsets, sizes, 0, count, wrote)
                data, begin = mapped_file.file.base, 0
            else:
                end = block_stop(phy_offsets, sizes, count, first, BLOCK_BYTES, &stop)
                _check_offsets(mapped_file, phy_offsets, sizes, first, stop, wrote)
                begin = phy_offsets[first] - start
                end -= start
                data = source.at(mapped_file, begin, end - begin, end)
            for i in range(first, stop):
                records[i] = data + (phy_offsets[i] - start - begin)
            with nogil:
                status = walk_rows(
                    work.state, records, sizes, phy_offsets, first, stop, check_crc, &row
                )
            if status == RS_NO_MEMORY:
                raise MemoryError
            if status != RS_OK:
                raise StoreCorruptionError(
                    mapped_file.path, phy_offsets[row] - start,
                    rs_status_name(status).decode("ascii"),
                )
            if work.state.compressed_count and not inflate:
                return False
            first = stop
    finally:
        free(records)
    return True


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
    cdef Py_ssize_t count = phy_offsets.shape[0]
    cdef const int64_t *offsets = &phy_offsets[0] if count else NULL
    cdef const int32_t *limits = NULL
    if sizes.shape[0] != count:
        raise StoreFormatError("phy_offsets and sizes must have one entry a record")
    if count:
        limits = &sizes[0]
    work.null_bad_bodies = null_bad_bodies
    work.open(
        plan_of(column_names(columns)), count, limits, mapped_file.path, max_body_bytes
    )
    work.compare(queue, queue_offsets)
    if not mapped_file.take_hold():
        raise StoreCorruptionError(mapped_file.path, -1, NOT_HELD)
    try:
        if not _walk(work, mapped_file, offsets, limits, count, check_crc, inflate):
            return None
        return work.close(offsets, mapped_file.file.file_from_offset)
    finally:
        mapped_file.drop_hold()


def decode_run(
    RecordRun run not None,
    tuple names not None,
    QueueName queue not None,
    *,
    bint check_crc=False,
    max_body_bytes=None,
    bint null_bad_bodies=False,
):
    """Decode the records of a run, which has a file, to columns of Arrow.

    Parameters
    ----------
    run : RecordRun; a record outside of the file is an error before memory is taken for it
    names : of columns, as of columns._decode.column_names
    queue : as in columns._decode.decode_records
    check_crc, max_body_bytes, null_bad_bodies : as in decode_file_records

    Returns
    -------
    ArrowColumns

    Raises: as decode_file_records.
    """
    cdef ColumnPass work = ColumnPass.__new__(ColumnPass)
    cdef MappedFile mapped_file = run.mapped_file
    if mapped_file is None:
        raise ValueError("the run has no file")
    _check_offsets(
        mapped_file, run.phy_offset, run.size, 0, run.count,
        rs_load_acquire(&mapped_file.file.wrote),
    )
    work.null_bad_bodies = null_bad_bodies
    work.open(plan_of(names), run.count, run.size, mapped_file.path, max_body_bytes)
    work.compare_with(queue, run.queue_offset)
    if not mapped_file.take_hold():
        raise StoreCorruptionError(mapped_file.path, -1, NOT_HELD)
    try:
        _walk(work, mapped_file, run.phy_offset, run.size, run.count, check_crc, True)
        return work.close_arrow(run.phy_offset, mapped_file.file.file_from_offset)
    finally:
        mapped_file.drop_hold()


def no_rows(tuple names not None):
    """Return ArrowColumns without rows."""
    cdef ColumnPass work = ColumnPass.__new__(ColumnPass)
    work.open(plan_of(names), 0, NULL, "", None)
    return work.close_arrow(NULL, 0)
