"""The walk of `DefaultMessageStore.get_message` over the units of a queue."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyrocketstore.commit_log._append cimport CommitLogCore
from pyrocketstore.consume_queue._unit_window cimport UnitWindow
from pyrocketstore.consume_queue._units cimport PRE_BLANK_SIZE
from pyrocketstore.files._mapped_file cimport MappedFile, SelectMappedBufferResult, file_with
from pyrocketstore._rocketstore cimport rs_load_acquire, rs_load_be32, rs_load_be64

from pyrocketstore.errors import StoreIOError
from pyrocketstore.results import GetMessageStatus
from pyrocketstore.system.live_stores import was_removed

cdef object FOUND = GetMessageStatus.FOUND
cdef object NO_MATCHED_MESSAGE = GetMessageStatus.NO_MATCHED_MESSAGE
cdef object MESSAGE_WAS_REMOVING = GetMessageStatus.MESSAGE_WAS_REMOVING

cdef enum:
    FIRST_UNITS = 32      # of a file that is not mapped, read at first
    COMMERCIAL_SIZE = 65536   # bytes that 4.9.3 counts as one message


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
                message_filter):
        """Walk `count` units of a queue at most; numbered as in the specification of the pull loop.

        Parameters
        ----------
        result : GetMessageResult, of which everything but the offsets of the queue is set
        message_filter : MessageFilter or None

        Returns False if there is no unit at `offset`; `result` is not changed then.

        Raises StoreIOError, StoreCorruptionError.
        """
        cdef UnitWindow window = UnitWindow.__new__(UnitWindow, queue.reader)
        try:
            return self.walk(window, result, queue, offset, count, max_msg_nums, message_filter)
        finally:
            window.close()

    cdef bint walk(self, UnitWindow window, object result, object queue, int64_t offset,
                   int64_t count, int64_t max_msg_nums, object message_filter) except -1:
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
            if total != 0 and views and self.is_full(
                total + size, len(views), max_msg_nums, distance(phy_offset, log_end)
            ):
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
            if not (self.log.read_only and was_removed(error)):
                raise
            return None
