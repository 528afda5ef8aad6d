"""From the units of a queue to the records that they name.

Runs have the records of one commit log file each; `UnitPull` selects as 4.9.3's pull does.
"""
import numpy as np

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pyrocketstore._rocketstore cimport rs_load_acquire, rs_load_be32, rs_load_be64
from pyrocketstore.commit_log._append cimport CommitLogCore
from pyrocketstore.consume_queue._units cimport (
    ConsumeQueueCore,
    PRE_BLANK_SIZE,
    UnitWindow,
    is_pre_blank,
)
from pyrocketstore.files._mapped_file cimport (
    FileSequence, MappedFile, SelectMappedBufferResult, file_with,
)
from pyrocketstore.record._record cimport largest_record

from pyrocketstore.errors import StoreCorruptionError, StoreIOError, StoreStateError
from pyrocketstore.results import GetMessageStatus

# Counts of the reads of a store.

@cython.final
@cython.auto_pickle(False)
cdef class ReadCounts:
    """The reads of a store since it was opened.

    Attributes
    ----------
    found, missed : int, reads that returned messages, and that returned none
    messages : int, what they returned
    longest_ms : int, ms: the longest of the reads that are timed

    Threads: any; the GIL is held for the whole of `note`, which a signal cannot interrupt.
    """

    cpdef void note(self, int64_t count, int64_t took_ms=0) noexcept:
        """Count a read that returned `count` messages."""
        self.messages += count
        if count > 0:
            self.found += 1
        else:
            self.missed += 1
        if took_ms > self.longest_ms:
            self.longest_ms = took_ms


#: Units that an iterator reads ahead: at first, since many want a few messages, and later.
FIRST_READ_COUNT, READ_COUNT = 256, 8192

cdef int64_t ANY_SIZE = <int64_t>1 << 62
cdef Py_ssize_t MAX_ROWS = <Py_ssize_t>1 << 56


@cython.auto_pickle(False)
cdef class RangeFields:
    """The fields of a by_queue.QueueRange, for compiled readers."""

    def __cinit__(self, log, queue, int64_t floor, wanted, damage, bint check_crc):
        self.log = log
        self.queue = queue
        self.floor = floor
        self.wanted = wanted
        self.damage = damage
        self.check_crc = check_crc


@cython.final
@cython.auto_pickle(False)
@cython.no_gc
cdef class RecordRows:
    """Columns of records: physical offset, size, queue offset and tags code."""

    def __cinit__(self, Py_ssize_t capacity):
        # One allocation: three columns of int64, one of int32.
        cdef Py_ssize_t room = max(capacity, <Py_ssize_t>1)
        if room > MAX_ROWS:
            raise MemoryError
        self.phy_offset = <int64_t *>malloc(<size_t>room * (3 * sizeof(int64_t) + sizeof(int32_t)))
        if self.phy_offset == NULL:
            raise MemoryError
        self.queue_offset = self.phy_offset + room
        self.tags_code = self.queue_offset + room
        self.size = <int32_t *>(self.tags_code + room)

    def __dealloc__(self):
        free(self.phy_offset)

    cdef int select(self, object wanted, str topic) except -1:
        """Keep the rows that may have a wanted tag."""
        cdef const uint8_t[::1] keep
        cdef Py_ssize_t i
        cdef Py_ssize_t kept = 0
        codes = np.empty(self.count, np.int64)
        cdef int64_t[::1] view = codes
        if self.count == 0:
            return 0
        memcpy(&view[0], self.tags_code, self.count * sizeof(int64_t))
        keep = wanted.may_match(codes, topic).view(np.uint8)
        for i in range(min(self.count, keep.shape[0])):
            if keep[i]:
                self.phy_offset[kept] = self.phy_offset[i]
                self.queue_offset[kept] = self.queue_offset[i]
                self.size[kept] = self.size[i]
                kept += 1
        self.count = kept
        return 0


@cython.final
@cython.auto_pickle(False)
@cython.no_gc
cdef class RecordRun:
    """Records of one commit log file, or one record without a file, in the order of their queue.

    `QueueChunks` and `runs_of` make them. Attributes: `mapped_file`, MappedFile or None; `count`,
    records; `refs()` has the columns.
    """

    def refs(self):
        """Return (phy_offset int64[n], size int32[n], queue_offset int64[n]), copies."""
        phy_offset = np.empty(self.count, np.int64)
        size = np.empty(self.count, np.int32)
        queue_offset = np.empty(self.count, np.int64)
        cdef int64_t[::1] phy_view = phy_offset
        cdef int32_t[::1] size_view = size
        cdef int64_t[::1] queue_view = queue_offset
        if self.count > 0:
            memcpy(&phy_view[0], self.phy_offset, self.count * sizeof(int64_t))
            memcpy(&size_view[0], self.size, self.count * sizeof(int32_t))
            memcpy(&queue_view[0], self.queue_offset, self.count * sizeof(int64_t))
        return phy_offset, size, queue_offset

    def select(self, keep):
        """Return a run of the records i with keep[i], of bool[n]: copies.

        Raises ValueError: `keep` has another length.
        """
        cdef const uint8_t[::1] flags = keep.view(np.uint8)
        cdef RecordRows rows
        cdef Py_ssize_t i
        if flags.shape[0] != self.count:
            raise ValueError(f"{flags.shape[0]} flags of {self.count} records")
        rows = RecordRows.__new__(RecordRows, self.count)
        for i in range(self.count):
            if flags[i]:
                rows.phy_offset[rows.count] = self.phy_offset[i]
                rows.queue_offset[rows.count] = self.queue_offset[i]
                rows.size[rows.count] = self.size[i]
                rows.count += 1
        return _run(rows, self.mapped_file, 0, rows.count)

    def first(self):
        """Return the run of the first record alone. Raises ValueError: this run has none."""
        cdef Py_ssize_t at
        if self.count == 0:
            raise ValueError("a run without records has no first one")
        at = self.phy_offset - self.rows.phy_offset
        return _run(self.rows, self.mapped_file, at, at + 1)


cdef int64_t first_byte(object log) except? -2:
    cdef FileSequence files = log.mapped_file_queue.mapped_files
    cdef MappedFile first
    if files is not None and files.count:
        first = files.at(0)
        if first.available:
            return first.file.file_from_offset
    return log.get_min_offset()


cdef int64_t end_of_queue(object queue) except? -1:
    return rs_load_acquire(&(<ConsumeQueueCore?>queue.core).queue.unit_count)


# ---- selecting ---------------------------------------------------------------------------------

cdef RecordRows select_rows(RangeFields part, int64_t start, int64_t count, int64_t max_bytes,
                            int64_t *taken):
    # The records of `count` units from `start` on, and how many of these units they took: fewer at
    # the queue's end, and where `max_bytes` of records are reached; one record always fits.
    # Pre-blank units and expired messages are left out, and records that surely have another tag.
    cdef object log = part.log
    cdef object queue = part.queue
    cdef UnitWindow window = UnitWindow.__new__(UnitWindow, queue.reader)
    cdef int64_t lowest = first_byte(log)
    cdef int64_t left = end_of_queue(queue)
    cdef int64_t total = 0
    cdef int64_t phy_offset, code
    cdef int32_t size
    cdef Py_ssize_t kept = 0
    cdef bint any_taken = False
    cdef const uint8_t *p
    cdef RecordRows rows
    count = 0 if start < 0 or start >= left else min(count, left - start)
    rows = RecordRows.__new__(RecordRows, max(count, <int64_t>0))
    taken[0] = 0
    try:
        while taken[0] < count:
            p = window.at(start + taken[0], 0, count - taken[0])
            if p == NULL:
                break
            phy_offset, size = rs_load_be64(p), rs_load_be32(p + 8)
            code = rs_load_be64(p + 12)
            # A damaged unit may refer to any offset: only a known expired one is left out.
            if part.floor <= phy_offset < lowest or is_pre_blank(phy_offset, size, code):
                if total > max_bytes:
                    break
                taken[0] += 1
                continue
            # No record is larger than any: a damaged unit must not end the selection.
            total += min(max(<int64_t>size, <int64_t>0), largest_record())
            if any_taken and total > max_bytes:
                break
            any_taken = True
            rows.phy_offset[kept] = phy_offset
            rows.size[kept] = size
            rows.queue_offset[kept] = start + taken[0]
            rows.tags_code[kept] = code
            kept += 1
            taken[0] += 1
    finally:
        window.close()
    rows.count = kept
    if part.wanted is not None:
        rows.select(part.wanted, queue.topic)
    return rows


cdef RecordRun _run(RecordRows rows, MappedFile mapped_file, Py_ssize_t first, Py_ssize_t stop):
    cdef RecordRun run = RecordRun.__new__(RecordRun)
    run.mapped_file = mapped_file
    run.rows = rows
    run.phy_offset = rows.phy_offset + first
    run.queue_offset = rows.queue_offset + first
    run.size = rows.size + first
    run.count = stop - first
    return run


cdef list split(RecordRows rows, RangeFields part):
    # The runs; an offset that no log of this length has is a run of its own.
    cdef object log = part.log
    cdef FileSequence files = log.mapped_file_queue.mapped_files
    cdef int64_t file_size = log.file_size
    cdef int64_t begin, phy_offset
    cdef Py_ssize_t first = 0
    cdef Py_ssize_t stop
    cdef MappedFile mapped_file
    cdef list runs = []
    if file_size <= 0:
        raise ValueError(f"file_size {file_size}: must be positive")
    while first < rows.count:
        phy_offset = rows.phy_offset[first]
        stop = first + 1
        mapped_file = file_with(files, phy_offset, file_size)
        if mapped_file is not None or part.floor <= phy_offset < <int64_t>log.get_max_offset():
            begin = phy_offset - phy_offset % file_size
            while stop < rows.count and 0 <= rows.phy_offset[stop] - begin < file_size:
                stop += 1
        runs.append(_run(rows, mapped_file, first, stop))
        first = stop
    return runs


def runs_of(RangeFields part not None, int64_t start, int64_t count, int64_t max_bytes):
    """Return the runs of records that the units from `start` on name, and the units that they took.

    Parameters
    ----------
    part : QueueRange
    start : int, queue offset
    count : int, units at most
    max_bytes : bytes of records, as their units state them; one record always fits

    Raises StoreIOError.
    """
    cdef int64_t taken = 0
    cdef RecordRows rows = select_rows(part, start, count, max_bytes, &taken)
    return split(rows, part), taken


# ---- one range ---------------------------------------------------------------------------------

@cython.final
@cython.auto_pickle(False)
cdef class QueueChunks:
    """The records of a range of a queue, file by file, for MessageIterator.

    Unlike a generator it continues after an error: at the next chunk.

    Parameters
    ----------
    part : QueueRange, what is read
    start, stop : queue offsets
    state : StoreState; a call raises StoreStateError where the store is closed before or meanwhile
    owner : object that keeps the store from being closed
    counts : ReadCounts, of the store
    """

    def __cinit__(
        self, RangeFields part not None, int64_t start, int64_t stop, StoreState state not None,
        owner, ReadCounts counts not None
    ):
        self.part = part
        self.start = max(start, <int64_t>0)
        self.stop = stop
        self.count = FIRST_READ_COUNT
        self.state = state
        self.owner = owner
        self.counts = counts
        self.ready = []

    def file_gone(self, file, start, stop):
        """Return QueueRange.file_gone, while the store is open."""
        with self.state:
            return self.part.file_gone(file, start, stop)

    def __iter__(self):
        return self

    def __next__(self):
        cdef RecordRun run
        while True:
            if self.next_run < len(self.ready):
                run = <RecordRun>self.ready[self.next_run]
                self.next_run += 1
                if run.mapped_file is not None:
                    return run
                error = self.part.missing(run)
                if error is not None:
                    raise error
            elif self.start < self.stop:
                self.read_on()
            else:
                raise StopIteration

    cdef int read_on(self) except -1:
        cdef RangeFields part = self.part
        cdef int64_t start = self.start
        cdef int64_t taken = 0
        cdef int64_t first = start
        cdef RecordRows rows
        cdef list ready
        self.state.need_open()
        try:
            try:
                rows = select_rows(part, start, min(self.count, self.stop - start), ANY_SIZE,
                                   &taken)
            except StoreIOError as error:
                self.start = self.stop
                if part.damage.no_units(error, start, self.stop):
                    raise
                rows = None
            if rows is not None and taken == 0:
                first = part.queue.first_readable_offset(max(<int64_t>0, first_byte(part.log)))
        except StoreCorruptionError:
            self.state.need_open()  # files that a close has released look damaged
            raise
        self.state.need_open()
        if rows is None:
            return 0
        if taken == 0:
            # Deleted meanwhile: the rest of the queue follows behind it.
            self.start = first if first > start else self.stop
            return 0
        ready = split(rows, part)
        self.counts.note(rows.count)
        # No call from here to the end: a signal handler that raises loses nothing.
        self.count = min(2 * self.count, <int64_t>READ_COUNT)
        self.ready, self.next_run, self.start = ready, 0, start + taken
        return 0


# The walk of `DefaultMessageStore.get_message` over the units of a queue.

cdef object FOUND = GetMessageStatus.FOUND
cdef object NO_MATCHED_MESSAGE = GetMessageStatus.NO_MATCHED_MESSAGE
cdef object MESSAGE_WAS_REMOVING = GetMessageStatus.MESSAGE_WAS_REMOVING

cdef enum:
    FIRST_UNITS = 32      # of a file that is not mapped, read at first
    COMMERCIAL_SIZE = 65536   # bytes that 4.9.3 counts as one message


cdef struct view_bytes:
    const uint8_t *data
    int64_t size


cdef inline int64_t distance(int64_t phy_offset, int64_t log_end) noexcept:
    """Bytes from an offset, which a damaged unit may name, to the log's end."""
    cdef int64_t limit = <int64_t>1 << 62
    return min(log_end, limit) - max(phy_offset, -limit)


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class UnitPull:
    """Messages of a queue from a queue offset on, as 4.9.3's pull selects them.

    Parameters
    ----------
    log : CommitLog
    config : MessageStoreConfig
    memory_bound : int, bytes: records that far before the log's end are not in memory

    Threads: any.
    """

    cdef object log
    cdef object config
    cdef CommitLogCore core
    cdef int64_t file_size
    cdef int64_t memory_bound

    def __cinit__(self, log, config, int64_t memory_bound):
        self.log = log
        self.config = config
        self.core = log.core
        self.file_size = log.file_size
        self.memory_bound = memory_bound

    def collect(self, result, queue, int64_t offset, int64_t count, int64_t max_msg_nums,
                message_filter, int64_t max_bytes=ANY_SIZE):
        """Walk `count` units of a queue at most; numbered as in the specification of the pull loop.

        Parameters
        ----------
        result : GetMessageResult, of which everything but the offsets of the queue is set
        message_filter : MessageFilter or None
        max_bytes : int, of records, besides the limits of the settings; one record always fits

        Returns False if there is no unit at `offset`; `result` is not changed then.

        Raises StoreIOError, StoreCorruptionError.
        """
        cdef UnitWindow window = UnitWindow.__new__(UnitWindow, queue.reader)
        try:
            return self.walk(window, result, queue, offset, count, max_msg_nums, message_filter,
                             max_bytes)
        finally:
            window.close()

    cdef bint walk(self, UnitWindow window, object result, object queue, int64_t offset,
                   int64_t count, int64_t max_msg_nums, object message_filter, int64_t max_bytes
                   ) except -1:
        cdef int64_t log_end = rs_load_acquire(&self.core.end_offset)
        cdef int64_t log_begin = self.log.get_min_offset()
        cdef int64_t skip_until = -1, last = 0, visited = 0, total = 0, commercial = 0
        cdef int64_t ahead = max(max_msg_nums, <int64_t>FIRST_UNITS)
        cdef int64_t phy_offset
        cdef int32_t size
        cdef const uint8_t *p
        cdef list views = result.message_mapped_list
        cdef list offsets = result.message_queue_offsets
        cdef object status = NO_MATCHED_MESSAGE
        cdef SelectMappedBufferResult view
        cdef object ext, code
        while visited < count:
            p = window.at(offset + visited, 0, min(ahead, count - visited))
            if p == NULL:
                if visited == 0:
                    return False
                break
            ahead = count
            phy_offset, size = rs_load_be64(p), rs_load_be32(p + 8)
            last = phy_offset
            if phy_offset == 0 and size == PRE_BLANK_SIZE:
                visited += 1
                if not views:
                    status = MESSAGE_WAS_REMOVING
                continue
            if phy_offset < skip_until:
                visited += 1
                continue
            if total != 0 and views and (total + size > max_bytes or self.is_full(
                    total + size, len(views), max_msg_nums, distance(phy_offset, log_end))):
                break
            visited += 1
            if message_filter is not None:
                ext, code = queue.resolve_tags(rs_load_be64(p + 12))
                if not message_filter.is_matched_by_consume_queue(code, ext):
                    if not views:
                        status = NO_MATCHED_MESSAGE
                    continue
            view = self.view_at(phy_offset, size)
            if view is None:
                if not views:
                    status = MESSAGE_WAS_REMOVING
                # Only a file that is gone takes the units behind this one along: a damaged unit
                # says nothing of a file of the log.
                if size > 0 and phy_offset < log_begin:
                    skip_until = self.log.roll_next_file(phy_offset)
                continue
            if message_filter is not None and not message_filter.is_matched_by_commit_log(
                view.byte_buffer
            ):
                view.release()
                if not views:
                    status = NO_MATCHED_MESSAGE
                continue
            views.append(view)
            offsets.append(offset + visited - 1)
            total += size
            commercial += (<int64_t>size + COMMERCIAL_SIZE - 1) // COMMERCIAL_SIZE
            status = FOUND
            skip_until = -1
        result.status = status
        result.buffer_total_size = total
        result.msg_count_4_commercial = commercial
        result.next_begin_offset = offset + visited
        result.suggest_pulling_from_slave = distance(last, log_end) > self.memory_bound
        return True

    cdef bint is_full(self, int64_t total, int64_t count, int64_t max_msg_nums,
                      int64_t distance) except -1:
        """The batch-full rule. Source: RocketMQ 4.9.3 DefaultMessageStore#isTheBatchFull."""
        cdef object config = self.config
        if max_msg_nums <= count:
            return True
        if distance > self.memory_bound:
            return (total > config.max_transfer_bytes_on_message_in_disk
                    or count > config.max_transfer_count_on_message_in_disk - 1)
        return (total > config.max_transfer_bytes_on_message_in_memory
                or count > config.max_transfer_count_on_message_in_memory - 1)

    cdef SelectMappedBufferResult view_at(self, int64_t phy_offset, int64_t size):
        """As CommitLog.get_message with `first_for_zero`."""
        cdef object files = self.log.mapped_file_queue
        cdef MappedFile file
        cdef int64_t end = rs_load_acquire(&self.core.end_offset)
        if size <= 0 or phy_offset < 0 or size > end or phy_offset > end - size:
            return None
        file = file_with(files.mapped_files, phy_offset, self.file_size)
        if file is None:
            return self.log.get_message(phy_offset, size, phy_offset == 0)
        try:
            return file.select(phy_offset - file.file.file_from_offset, size)
        except StoreIOError as error:
            if not files.changes.is_of_owner(error):
                raise
            return None


cdef int64_t NOGIL_MIN_BYTES = 8192


def join_views(list views not None, list queue_offsets not None):
    """Return the bytes of n views, back to back, and columns of them: copies; release the views.

    Parameters
    ----------
    views : list of SelectMappedBufferResult
    queue_offsets : list of int, of each view

    Returns
    -------
    (bytes, positions int64[n], sizes int32[n], queue_offsets int64[n]); positions and sizes are
    bytes in the first. The arrays are read-only.

    The GIL is let go while much is copied. Raises StoreStateError: a view was released; no view is
    released then.
    """
    cdef list held = views[:]
    cdef Py_ssize_t count = len(held)
    cdef Py_ssize_t i
    cdef int64_t total = 0
    cdef SelectMappedBufferResult view
    cdef bytes position_bytes = PyBytes_FromStringAndSize(NULL, count * 8)
    cdef bytes size_bytes = PyBytes_FromStringAndSize(NULL, count * 4)
    cdef bytes offset_bytes = PyBytes_FromStringAndSize(NULL, count * 8)
    cdef int64_t *positions = <int64_t *>PyBytes_AS_STRING(position_bytes)
    cdef int32_t *sizes = <int32_t *>PyBytes_AS_STRING(size_bytes)
    cdef int64_t *offsets = <int64_t *>PyBytes_AS_STRING(offset_bytes)
    if len(queue_offsets) != count:
        raise ValueError(f"{len(queue_offsets)} queue offsets of {count} views")
    for i in range(count):
        view = <SelectMappedBufferResult?>held[i]
        if view is None or view.data == NULL or view.released:
            raise StoreStateError("the view was released")
        positions[i], sizes[i], offsets[i] = total, <int32_t>view.size, queue_offsets[i]
        total += view.size
    joined = copied_views(held, positions, total)
    return (joined, np.frombuffer(position_bytes, np.int64), np.frombuffer(size_bytes, np.int32),
            np.frombuffer(offset_bytes, np.int64))


cdef bytes copied_views(list views, const int64_t *positions, int64_t total):
    # Releases the views, which are checked. A release meanwhile waits until the copy has ended.
    cdef bytes joined = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(joined)
    cdef Py_ssize_t count = len(views)
    cdef Py_ssize_t i
    cdef SelectMappedBufferResult view
    cdef view_bytes *parts = <view_bytes *>malloc(<size_t>(count + 1) * sizeof(view_bytes))
    if parts == NULL:
        raise MemoryError()
    for i in range(count):
        view = <SelectMappedBufferResult>views[i]
        parts[i] = view_bytes(view.data, view.size)
        view.exports += 1
    if total < NOGIL_MIN_BYTES:
        copy_parts(out, positions, parts, count)
    else:
        with nogil:
            copy_parts(out, positions, parts, count)
    free(parts)
    for i in range(count):
        view = <SelectMappedBufferResult>views[i]
        view.exports -= 1
        view.released = True
        view.drop_view_hold()
    return joined


cdef void copy_parts(uint8_t *out, const int64_t *positions, const view_bytes *parts,
                     Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(count):
        memcpy(out + positions[i], parts[i].data, <size_t>parts[i].size)
