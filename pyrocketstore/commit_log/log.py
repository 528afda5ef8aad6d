"""CommitLog: the log of all messages, in the order in which they were put."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrocketstore.arguments.scalars import INT64_MAX
from pyrocketstore.commit_log._append import CommitLogCore, QueueSlot, StoreTimes
from pyrocketstore.commit_log._puts import PutMessageResult, make_result
from pyrocketstore.commit_log._scan import TopicMinOffsets, status_name
from pyrocketstore.commit_log.parallel_scan import records_between
from pyrocketstore.config.dledger import (
    ENTRY_HEADER_SIZE,
    ENTRY_MAGIC_CODE,
    committed_end,
    dledger_log_of,
)
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.display import shown
from pyrocketstore.errors import (
    StoreCorruptionError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
)
from pyrocketstore.files._mapped_file import SelectMappedBufferResult
from pyrocketstore.files.mapped_file_queue import (
    AllocateMappedFileService,
    MappedFileQueue,
    file_name_of,
)
from pyrocketstore.files.multi_path import MultiPathMappedFileQueue
from pyrocketstore.files.planned_changes import PlannedChanges
from pyrocketstore.files.queue_directories import check_queue_directory
from pyrocketstore.files.temporary_files import remove_temporary_files
from pyrocketstore.index.gaps import FoundKeys
from pyrocketstore.record import _message
from pyrocketstore.record._message import MessageExt
from pyrocketstore.record._record import (
    HEADER_SIZE,
    RecordHeader,
    allow_records,
    crc32,
    record_size,
)
from pyrocketstore.record.message import (
    LMQ_PREFIX,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    PROPERTY_WAIT_STORE_MSG_OK,
    SCHEDULE_TOPIC,
    TRANSACTION_MASK,
    MessageExtBatch,
    MessageExtBrokerInner,
    MessageRefused,
    batch_too_large,
    check_delayable,
    is_queued,
    java_split,
    parse_java_int,
    real_queue_properties,
    record_too_large,
)
from pyrocketstore.results import AppendMessageStatus, PutMessageStatus, Status
from pyrocketstore.system._env import Event
from pyrocketstore.system.signal_shield import check_abandoned, shielded
from pyrocketstore.system.stalls import NEXT_FILE, untimed

if TYPE_CHECKING:
    from pyrocketstore.files._mapped_file import MappedFile
    from pyrocketstore.system.env import Env

END_FILE_MIN_BLANK_LENGTH = 8
#: The properties of a message that has none, under enableMultiDispatch: 4.9.3 cannot dispatch a
#: record without properties, and cannot load it after a crash. Java's clients set this property in
#: each message; its value is the default.
BARE_PROPERTIES = f"{PROPERTY_WAIT_STORE_MSG_OK}\x01true"

#: Bytes that are allocated ahead of the writer, and bytes of these whose pages are touched.
CONFIRM_STEP = 64 << 20
POPULATE_ASYNC = 32 << 20
#: Bytes that are allocated and zero-filled ahead under SYNC_FLUSH, so that an fsync finds written
#: blocks; the window has twice this size.
CONFIRM_STEP_SYNC = 512 << 10
#: How long a put waits for another put to create the next file (s).
ROLL_TIMEOUT = 5.0
#: The least time that the checkpoint accepts for the first record of a file (Unix ms).
TIME_MIN = -(1 << 63) + 1
#: Bytes at the start of a record that `record_mark` reads; they include the header.
MARK_SIZE = 4096

#: The number of delay levels for which the compiled loops have room.
MAX_DELAY_LEVELS = 1000
#: The longest delay; the time of delivery fits into an int64.
DELAY_MAX_MS = 1 << 60

#: The AppendMessageStatus of a put, by the status of its append.
_APPEND_STATUS = {
    int(Status.END_OF_FILE): AppendMessageStatus.END_OF_FILE,
    int(Status.IO_ERROR): AppendMessageStatus.UNKNOWN_ERROR,
}
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_level(text: str) -> dict[int, int]:
    """Parse messageDelayLevel into {level: delay in ms}; levels begin at 1.

    Raises StoreFormatError: an entry is not a number followed by s, m, h or d, or is too large.

    Source: RocketMQ 4.9.3 ScheduleMessageService#parseDelayLevel.
    """
    levels: dict[int, int] = {}
    for level, entry in enumerate(text.split(" "), 1):
        number, unit_ms = parse_java_int(entry[:-1], 64), _UNITS_MS.get(entry[-1:])
        if number is None or unit_ms is None:
            raise StoreFormatError(f"messageDelayLevel: cannot read {shown(entry)}")
        levels[level] = number * unit_ms
        if not -DELAY_MAX_MS <= levels[level] <= DELAY_MAX_MS or level > MAX_DELAY_LEVELS:
            raise StoreFormatError(
                f"messageDelayLevel: {shown(entry)} is level {level}; allowed are at most"
                f" {MAX_DELAY_LEVELS} levels, each of at most {DELAY_MAX_MS} ms"
            )
    return levels


def try_decode(view: SelectMappedBufferResult) -> MessageExt | None:
    """Decode the message in a view; None if its bytes are not a valid record."""
    try:
        return _message.decode_record(view.byte_buffer)
    except StoreCorruptionError:
        return None


def mark_of(data: bytes, phy_offset: int) -> tuple[int, int] | None:
    """Return the mark of a record, as `CommitLog.record_mark`; None if `data` does not begin with
    a record of that physical offset.

    `data` begins with the first MARK_SIZE bytes of the record, or with the whole record.
    """
    header = RecordHeader(data)
    is_whole = header.size == HEADER_SIZE and header.is_message and header.total_size > 0
    if not is_whole or header.phy_offset != phy_offset:
        return None
    return header.total_size, crc32(data[: header.total_size])


def largest_record(config: MessageStoreConfig) -> int:
    """Return the size in bytes of the largest record that a store with these settings accepts."""
    room = config.mapped_file_size_commit_log - END_FILE_MIN_BLANK_LENGTH
    return min(config.max_message_size, room)


class CopyError(StoreStateError):
    """A put while the log is a copy, to which `append_data` has appended."""


def _before_new_queue(
    env: Env,
    root: str,
    on_new_queue: Callable[[str, int], None] | None,
    topic: str,
    queue_id: int,
) -> None:
    """Refuse a put whose message could never be dispatched to its queue."""
    check_queue_directory(env, f"{root}/consumequeue", topic, queue_id)
    if on_new_queue is not None:
        on_new_queue(topic, queue_id)


class CommitLog:
    """The log of all messages: appends under one put lock, reads by physical offset.

    Parameters
    ----------
    env : Env
    config : MessageStoreConfig
    appended : Event, set when a record is appended while the dispatcher sleeps
    allocate_service : AllocateMappedFileService or None, creates the next file ahead
    on_new_queue : callable(topic, queue_id), called before the first put to a queue
    changes : see MappedFileQueue

    Threads: puts and reads from any thread.
    Source: RocketMQ 4.9.3 CommitLog.
    """

    def __init__(
        self,
        env: Env,
        config: MessageStoreConfig,
        appended: Event,
        *,
        allocate_service: AllocateMappedFileService | None = None,
        on_new_queue: Callable[[str, int], None] | None = None,
        changes: PlannedChanges | None = None,
    ) -> None:
        allow_records(config.max_message_size)
        self.env = env
        self.config = config
        self.file_size = config.mapped_file_size_commit_log
        sync = config.is_sync_flush
        # Page preparation helps only stores through the mapping. Pool buffers and pwrite make none.
        # Under SYNC_FLUSH an fsync of zero-filled blocks costs less.
        indirect = config.write_without_mmap or config.is_transient_store_pool_enable
        settings: dict[str, Any] = {
            "allocate_service": allocate_service,
            "confirm_step": min(CONFIRM_STEP_SYNC if sync else CONFIRM_STEP, self.file_size),
            "populate": 0 if sync or indirect else POPULATE_ASYNC,
            "zero_fill": "pages" if sync else "no" if indirect else "folios",
            "by_write": config.write_without_mmap,
            "changes": changes,
        }
        paths, read_paths = config.commit_log_paths, config.read_only_commit_log_paths
        self.mapped_file_queue = (
            MultiPathMappedFileQueue(env, paths, read_paths, self.file_size, **settings)
            if config.is_multi_path
            else MappedFileQueue(env, paths[0], self.file_size, **settings)
        )
        before = partial(_before_new_queue, env, config.store_path_root_dir, on_new_queue)
        self.core = CommitLogCore(env, largest_record(config), appended, before)
        self.core.roll_by(self.roll)
        #: in DLedger mode: the entries before this physical offset are committed; None: unknown
        self.committed_end: int | None = None
        self._dledger = dledger_log_of(config.all_commit_log_paths)
        #: callable(phy_offset, size): store time (ms) of a record, -1 if it is not readable
        self.pickup_store_timestamp = StoreTimes(self.core, self.mapped_file_queue)
        self.core.busy_ms = config.os_page_cache_busy_time_out_mills
        self.bare_properties = BARE_PROPERTIES if config.enable_multi_dispatch else ""
        self.core.fill_bare(self.bare_properties.encode())
        if allocate_service is not None:
            ahead = CONFIRM_STEP_SYNC if sync else POPULATE_ASYNC // 2
            self.core.watch_ahead(allocate_service.ahead_event, ahead)
        self.allocate_service = allocate_service
        self.delay_levels = parse_delay_level(config.message_delay_level)
        self.max_delay_level = max(self.delay_levels, default=0)
        #: the minimum of each topic of which messages were removed; replaced, never changed
        self.min_offsets = TopicMinOffsets({})
        #: measures the wait for the next file; slow waits are logged
        self.timed: Callable[[str], AbstractContextManager[None]] = untimed
        #: writes pool buffers into the files; the commit service sets it
        self.commit_buffers: Callable[[], None] = lambda: None
        #: called with the first byte of a file, and the time, before its first record
        self.begin_file: Callable[[int, int], None] = lambda offset, now_ms: None
        #: called by `continue_puts`: waits until everything is dispatched
        self.wait_dispatched: Callable[[], object] = lambda: None
        #: called after that: sets the next offset of each queue
        self.set_next_offsets: Callable[[], None] = lambda: None
        self._roll_lock = threading.Lock()  # never held by a thread that runs signal handlers
        self._closed = False
        # Reentrant: a signal handler of the main thread may put while the lock is held. The put
        # then moves the offsets, and the loop reads them again.
        self._multi_lock = threading.RLock()

    # ---- life cycle ---------------------------------------------------------------------------

    def load(self) -> None:
        """Find the files. Raises StoreCorruptionError with the path of a file of the wrong size."""
        for path in self.config.commit_log_paths:
            self.mapped_file_queue.changes.add(partial(remove_temporary_files, self.env, path))
        if self._dledger is not None:
            self.committed_end = committed_end(self.env, self._dledger)
        self.mapped_file_queue.load()
        self._closed = False

    def committed_limit(self, named_to: int) -> int:
        """Return the physical offset behind which entries of a DLedger log may not be committed;
        INT64_MAX for other logs, and if it is unknown.

        Units of queues name only committed entries: `named_to` is the end of the last one.
        """
        committed = self.committed_end
        return INT64_MAX if committed is None else max(committed, named_to, 0)

    @property
    def is_dledger(self) -> bool:
        """True for the log of a store in DLedger mode."""
        return self._dledger is not None

    def open_end(self, log_end: int, durable_to: int | None = None) -> None:
        """Set the end of the log that recovery has found, and attach the last file for puts, unless
        the log is only read.

        Parameters
        ----------
        log_end : int, physical offset after the last record
        durable_to : int or None, the start of a file: the next flush writes this file and all later
            ones, which a killed process may have left only in the page cache
        """
        self.mapped_file_queue.flushed_where = log_end
        self.mapped_file_queue.committed_where = log_end
        changes = self.mapped_file_queue.changes
        if durable_to is not None:
            changes.add(partial(self._flush_again, durable_to, log_end))
        self.core.set_end_offset(log_end if self.mapped_file_queue.mapped_files else 0)
        changes.add(self._attach_last)

    def _flush_again(self, durable_to: int, log_end: int) -> None:
        self.mapped_file_queue.flushed_where = min(durable_to, log_end)
        for file in self.mapped_file_queue.mapped_files:
            if file.file_from_offset >= durable_to:
                file.flushed = 0

    def _attach_last(self) -> None:
        last = self.mapped_file_queue.get_last_mapped_file()
        if last is not None and not last.is_full():
            self._begin(last)
            self.core.attach(last)

    def close(self) -> None:
        """Refuse further appends, and detach the last file."""
        shielded(self._close)

    def _close(self) -> None:
        with self._roll_lock:
            self._closed = True
            self.core.attach(None)

    # ---- offsets ------------------------------------------------------------------------------

    def first_record_offset(self) -> int:
        """Return the physical offset of the first record, -1 for an empty log.

        In DLedger mode the header of an entry may precede the record.
        """
        lowest = self.get_min_offset()
        is_entry = self.is_dledger and lowest >= 0 and self.record_size(lowest) == ENTRY_MAGIC_CODE
        return lowest + ENTRY_HEADER_SIZE if is_entry else lowest

    def get_min_offset(self) -> int:
        """Return the first physical offset, -1 for an empty log.

        If the owner of a read-only log has deleted every file that this object knows, the result is
        the begin of the log on disk, after the known end.

        Source: RocketMQ 4.9.3 CommitLog#getMinOffset.
        """
        files = self.mapped_file_queue.mapped_files
        if not files:
            return self.mapped_file_queue.begin_on_disk
        first = files[0]
        if first.is_available():
            return first.file_from_offset
        return self.roll_next_file(first.file_from_offset)

    def get_max_offset(self) -> int:
        """Return the physical offset after the last readable record."""
        return self.core.end

    def get_appended_offset(self) -> int:
        """Return the end of the log, including buffered records that are not committed yet."""
        return self.core.appended_end

    def get_data_end(self) -> int:
        """Return the physical offset of the next byte that `append_data` accepts: the end of the
        log, and the bytes of a record that is not whole yet.
        """
        return self.core.copied_end

    def set_min_offsets(self, table: Mapping[str, int]) -> None:
        """Have messages of a topic before a byte of the log count as removed."""
        self.min_offsets = TopicMinOffsets(table)

    def commit_appended(self) -> None:
        """Commit buffered records, so that they can be read."""
        if self.get_appended_offset() > self.get_max_offset():
            shielded(self.commit_buffers)

    def roll_next_file(self, phy_offset: int) -> int:
        """Return the first physical offset of the file after the one that holds `phy_offset`."""
        return phy_offset + self.file_size - phy_offset % self.file_size

    # ---- reads --------------------------------------------------------------------------------

    def position_of(self, phy_offset: int) -> tuple[str, int]:
        """Return the path of the file to which a byte belongs, and the position of the byte in it.

        The file may be missing.
        """
        position = phy_offset % self.file_size
        file = self.mapped_file_queue.find_mapped_file_by_offset(phy_offset, False)
        if file is not None:
            return file.path, position
        return f"{self.config.commit_log_paths[0]}/{file_name_of(phy_offset - position)}", position

    def get_message(
        self, phy_offset: int, size: int, first_for_zero: bool = False
    ) -> SelectMappedBufferResult | None:
        """Return a view of `size` bytes at `phy_offset`, None if they are not readable.

        In a read-only store None also means that the store's owner has deleted the file.

        Parameters
        ----------
        first_for_zero : bool, read offset 0 from the first existing file if the log no longer
            begins at 0, as 4.9.3 does; only the pull of DefaultMessageStore sets it

        Source: RocketMQ 4.9.3 CommitLog#getMessage.
        """
        if size <= 0 or phy_offset < 0 or phy_offset + size > self.get_max_offset():
            return None
        fall_back = first_for_zero and phy_offset == 0
        file = self.mapped_file_queue.find_mapped_file_by_offset(phy_offset, fall_back)
        if file is None:
            return None
        try:
            return file.select_mapped_buffer(phy_offset % self.file_size, size)
        except StoreIOError as error:
            if not self.mapped_file_queue.changes.is_of_owner(error):
                raise
            return None

    def get_data(self, phy_offset: int) -> SelectMappedBufferResult | None:
        """Return a view of the file that holds `phy_offset`, from there to its last record; None at
        the end of the log.

        Source: RocketMQ 4.9.3 CommitLog#getData.
        """
        if not 0 <= phy_offset < self.get_max_offset():
            return None
        file = self.mapped_file_queue.find_mapped_file_by_offset(phy_offset, phy_offset == 0)
        if file is None:
            return None
        return file.select_mapped_buffer(phy_offset % self.file_size)

    def record_size(self, phy_offset: int) -> int:
        """Return the size field of the record at `phy_offset`, 0 if nothing is readable there."""
        view = self.get_message(phy_offset, 4)
        if view is None:
            return 0
        with view:
            return record_size(view.byte_buffer)

    def record_mark(self, phy_offset: int) -> tuple[int, int] | None:
        """Return size and CRC of the record at `phy_offset`; None without a record of that physical
        offset.

        The CRC covers the first MARK_SIZE bytes; they include the physical offset and the store
        time, which no other record shares. The bytes may be after the end of the log, which is
        unknown before recovery.

        Raises StoreIOError.
        """
        begin = self._begin_of_record(phy_offset)
        return None if begin is None else mark_of(begin, phy_offset)

    def stored_at(self, phy_offset: int) -> int:
        """Return the store time (ms) of the record at `phy_offset`; -1 without a record of that
        physical offset. As for `record_mark`, it may be after the end of the log.

        Raises StoreIOError.
        """
        begin = self._begin_of_record(phy_offset)
        return -1 if begin is None else RecordHeader(begin).store_timestamp

    def keys_between(self, begin: int, end: int) -> Iterator[FoundKeys]:
        """Yield the keys of the records in [begin, end), bytes of the log, chunk by chunk.

        Raises StoreIOError.
        """
        for chunk in records_between(self.env, self, begin, end):
            check_abandoned()
            keys = FoundKeys(*chunk.key_columns())
            for row in np.flatnonzero(keys.store_timestamp < 0).tolist():
                at = int(keys.phy_offset[row])
                keys.store_timestamp[row] = self.pickup_store_timestamp(at, self.record_size(at))
            if len(keys.phy_offset):
                yield keys

    def _begin_of_record(self, phy_offset: int) -> bytes | None:
        """Return up to MARK_SIZE bytes from `phy_offset` on, None if no record begins there."""
        file = self.mapped_file_queue.find_mapped_file_by_offset(phy_offset, False)
        if file is None or phy_offset < file.file_from_offset:
            return None
        position = phy_offset - file.file_from_offset
        # Pages after the written bytes may not be allocated: on a full tmpfs a read is a SIGBUS.
        stop = min(position + MARK_SIZE, file.wrote, file.file_size)
        data = file.read(position, max(0, stop - position))
        header = RecordHeader(data)
        is_whole = header.size == HEADER_SIZE and header.is_message
        is_inside = 0 < header.total_size <= file.wrote - position
        return data if is_whole and is_inside and header.phy_offset == phy_offset else None

    def look_message(self, phy_offset: int, size: int = 0) -> MessageExt | None:
        """Return the message at `phy_offset`, None without a valid record there.

        Source: RocketMQ 4.9.3 DefaultMessageStore#lookMessageByOffset.
        """
        view = self.get_message(phy_offset, size or self.record_size(phy_offset))
        if view is None:
            return None
        with view:
            return try_decode(view)

    # ---- puts ---------------------------------------------------------------------------------

    def put_message(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """Append one message; the outcome is a status.

        Source: RocketMQ 4.9.3 CommitLog#asyncPutMessage.
        Differs: the status is MESSAGE_ILLEGAL for a record that does not fit into a file, a topic
        of more than 127 bytes, and a DELAY that is not a number. See BARE_PROPERTIES.
        """
        queued = is_queued(message.sys_flag)
        growth = 0
        if queued:
            try:
                growth = self._delay(message)
            except MessageRefused as refused:
                return make_result(PutMessageStatus[refused.status], error=refused)
        multi = (
            self.config.enable_multi_dispatch
            and (message.properties.get(PROPERTY_INNER_MULTI_DISPATCH) or "").strip()
        )
        if multi:
            return self._put_multi(message, multi, queued)
        if self.bare_properties and not message.properties_string:
            message.properties_string = self.bare_properties
        try:
            record = self._encode(message, growth)
        except MessageRefused as refused:
            return make_result(PutMessageStatus[refused.status], error=refused)
        return self.append(record, 1, message.topic, message.queue_id, queued, message.store_host)

    def put_messages(self, batch: MessageExtBatch) -> PutMessageResult:
        """Append a batch: one queue, one file, all or nothing.

        Source: RocketMQ 4.9.3 CommitLog#asyncPutMessages.
        Differs: an oversized or damaged batch causes MESSAGE_ILLEGAL instead of an exception.
        """
        try:
            if batch.sys_flag & TRANSACTION_MASK or batch.delay_time_level > 0:
                reason = "a batch is neither delayed nor a part of a transaction"
                raise MessageRefused("MESSAGE_ILLEGAL", reason)
            records, count = _message.encode_batch(
                batch,
                max_message_size=self.config.max_message_size,
                bare=self.bare_properties.encode(),
            )
        except MessageRefused as refused:
            return make_result(PutMessageStatus[refused.status], error=refused)
        return self.append(
            records, count, batch.topic, batch.queue_id, True, batch.store_host, batch=True
        )

    def _encode(self, message: MessageExtBrokerInner, growth: int = 0) -> bytes:
        limit = self.core.max_message_size - growth
        return _message.encode_message(message, max_message_size=limit)

    def _delay(self, message: MessageExtBrokerInner) -> int:
        """Turn a delayed message into a message of SCHEDULE_TOPIC_XXXX.

        Returns the number of bytes by which the delivered record may exceed the delayed one.
        Raises MessageRefused for a message that could not be delivered.

        Source: RocketMQ 4.9.3 CommitLog#asyncPutMessage.
        """
        level = message.delay_time_level
        if level <= 0:
            return 0
        size = check_delayable(message.topic)
        if level > self.max_delay_level:
            level = self.max_delay_level
            message.properties[PROPERTY_DELAY_TIME_LEVEL] = str(level)
        self.core.slot(message.topic, message.queue_id)  # reports a new queue, as other puts do
        message.properties |= real_queue_properties(message.topic, message.queue_id)
        message.properties_string = _message.properties_to_string(message.properties)
        message.topic = SCHEDULE_TOPIC
        message.queue_id = level - 1
        return max(0, size - len(SCHEDULE_TOPIC))

    def _put_multi(
        self, message: MessageExtBrokerInner, names: str, queued: bool
    ) -> PutMessageResult:
        """Append a message that is also dispatched to further queues.

        The queue offsets of INNER_MULTI_QUEUE_OFFSET are read before the put lock is taken, and
        compared under it. If one has changed, the record is encoded again.

        Source: RocketMQ 4.9.3 MultiDispatch#wrapMultiDispatch.
        """
        slots: list[QueueSlot] = []
        for name in java_split(names):
            lmq = self.config.enable_lmq and name.startswith(LMQ_PREFIX)
            slots.append(self.core.slot(name, 0 if lmq else message.queue_id))
        with self._multi_lock:
            while True:
                expected = [(slot, slot.offset) for slot in slots]
                offsets = ",".join(str(value) for _, value in expected)
                message.properties[PROPERTY_INNER_MULTI_QUEUE_OFFSET] = offsets
                stored = dict(message.properties)
                stored.pop(PROPERTY_WAIT_STORE_MSG_OK, None)
                message.properties_string = _message.properties_to_string(stored)
                try:
                    record = self._encode(message)
                except MessageRefused as refused:
                    return make_result(
                        PutMessageStatus.UNKNOWN_ERROR,
                        AppendMessageStatus.UNKNOWN_ERROR,
                        error=refused,
                    )
                main = self.core.slot(message.topic, message.queue_id)
                result = self._try_append(record, 1, main, queued, message.store_host, expected)
                if result is not None:
                    return result

    def append(
        self,
        records: bytes,
        count: int,
        topic: str,
        queue_id: int,
        queued: bool,
        store_host: object,
        batch: bool = False,
    ) -> PutMessageResult:
        """Append encoded records; continue in the next file if they do not fit into this one."""
        slot = self.core.slot(topic, queue_id)
        result = self._try_append(records, count, slot, queued, store_host, None, batch)
        if result is None:
            raise AssertionError("only an append with expected offsets may be refused")
        return result

    def _try_append(
        self,
        records: bytes,
        count: int,
        slot: QueueSlot,
        queued: bool,
        store_host: object,
        expected: list[tuple[QueueSlot, int]] | None,
        batch: bool = False,
    ) -> PutMessageResult | None:
        """As `append`; None, with nothing written, if a slot has not its expected queue offset."""
        if len(records) + END_FILE_MIN_BLANK_LENGTH > self.file_size:
            limit = self.file_size - END_FILE_MIN_BLANK_LENGTH
            too_large = batch_too_large if batch else record_too_large
            return make_result(
                PutMessageStatus.MESSAGE_ILLEGAL, error=too_large(len(records), limit)
            )
        status, phy_offset, queue_offset, store_timestamp, cause = self.core.append_encoded(
            records, count, slot, queued, expected
        )
        if status == Status.RETRY:
            return None
        if status != Status.OK:
            outcome, error = self.outcome_of(status, cause)
            if isinstance(error, StoreStateError) and not isinstance(error, CopyError):
                raise error  # closed
            return make_result(outcome, _APPEND_STATUS.get(status, -1), error=error)
        return make_result(
            PutMessageStatus.PUT_OK,
            AppendMessageStatus.PUT_OK,
            phy_offset,
            queue_offset,
            len(records),
            store_timestamp,
            count,
            _record_positions(records, phy_offset) if batch else None,
            store_host,
        )

    def outcome_of(
        self, status: int, cause: int | Exception
    ) -> tuple[PutMessageStatus, Exception | None]:
        """Return the status and the error of a put whose append was not OK, from the status and the
        cause of `ColumnAppends.append`."""
        if status == Status.BUSY:
            return PutMessageStatus.OS_PAGECACHE_BUSY, None
        if isinstance(cause, StoreStateError):
            return PutMessageStatus.SERVICE_NOT_AVAILABLE, cause
        if isinstance(cause, Exception):
            return PutMessageStatus.CREATE_MAPEDFILE_FAILED, cause
        error = StoreIOError(cause, self.core.failed_operation, self._last_path())
        return PutMessageStatus.UNKNOWN_ERROR, error

    def roll(self, size: int) -> None:
        """Seal the current file if `size` bytes do not fit into it, and attach the next one.

        Raises StoreIOError if the next file cannot be created, or not in time; StoreCorruptionError
        if another file has its name; StoreStateError after `append_data`, until `continue_puts`. If
        a signal handler raises, the change of files continues in its thread.
        """
        reason = self.why_no_puts()
        if reason is not None:
            raise reason
        shielded(lambda: self._roll(size))

    def _roll(self, size: int) -> None:
        with self._rolling():
            if self.core.fits(size) or self.core.is_copying:
                return
            self.core.seal(size)
            file = self._next_file(0)
            self._begin(file)
            self.core.attach(file)

    @contextlib.contextmanager
    def _rolling(self) -> Iterator[None]:
        """Hold `_roll_lock`, in the thread of a shielded call."""
        if not self._roll_lock.acquire(timeout=ROLL_TIMEOUT):
            raise StoreIOError(errno.ETIMEDOUT, "create", self.config.commit_log_path)
        try:
            if self._closed:
                raise StoreStateError("the store is closed")
            yield
        finally:
            self._roll_lock.release()

    def _next_file(self, start_offset: int) -> MappedFile:
        """Return the last file if it has room, else a new one; `start_offset` is that of the first
        file of an empty log.
        """
        with self.timed(NEXT_FILE):
            file = self.mapped_file_queue.get_last_mapped_file(start_offset)
        if file is None:
            error = None if self.allocate_service is None else self.allocate_service.last_error
            if isinstance(error, StoreIOError):
                raise error
            raise StoreIOError(errno.ETIMEDOUT, "create", self.config.commit_log_path)
        if not file.has_buffer:
            # Records of this file are readable at once: earlier ones must be committed first.
            self.commit_buffers()
        return file

    def _begin(self, file: MappedFile) -> None:
        """Report a new file to the checkpoint before its first record, which is stored later."""
        if file.appended == 0:
            now = self.env.now_ms()
            self.begin_file(file.file_from_offset, now)
            self.core.floor_ms = now

    # ---- bytes of another log -----------------------------------------------------------------

    def append_data(self, phy_offset: int, data: bytes | bytearray | memoryview) -> int:
        """Append bytes of another log, which may begin and end within a record; see
        `DefaultMessageStore.append_data`. Nothing is flushed.

        Returns `get_data_end()`. Source: RocketMQ 4.9.3 CommitLog#appendData.
        """
        return shielded(lambda: self._append_data(phy_offset, data))

    def _append_data(self, phy_offset: int, data: bytes | bytearray | memoryview) -> int:
        with self._rolling():
            is_first = not self.mapped_file_queue.mapped_files and not self.core.partial_size
            self._check_data_begin(phy_offset, is_first)
            was_copying = self.core.is_copying
            self.core.begin_copy()
            before = self.core.copied_end
            try:
                self._check_data_begin(phy_offset, is_first)  # a put may have come before it
                return self._copy_data(phy_offset, data, is_first)
            except BaseException:
                if not was_copying and self.core.copied_end == before:
                    self.core.end_copy()
                raise

    def _check_data_begin(self, phy_offset: int, is_first: bool) -> None:
        end = self.core.copied_end
        if phy_offset != end and not (is_first and self._may_begin(phy_offset)):
            raise StoreFormatError(f"phy_offset {phy_offset}: the next byte of this log is {end}")

    def _copy_data(
        self, phy_offset: int, data: bytes | bytearray | memoryview, is_first: bool
    ) -> int:
        core, at = self.core, 0
        while True:
            status, at, code = core.append_copied(data, at)
            if status == Status.OK:
                return core.copied_end
            if status == Status.NEED_FILE:
                file = self._next_file(phy_offset)
                if is_first:
                    core.set_end_offset(file.file_from_offset)
                    is_first = False
                core.attach(file)
            elif status == Status.NEED_PYTHON:
                begin = core.appended_end
                self.begin_file(begin, max(core.waiting_timestamp, TIME_MIN))
                core.begin_copied_file(begin)
            else:
                raise self._data_error(status, code)

    def _may_begin(self, phy_offset: int) -> bool:
        return phy_offset >= 0 and phy_offset % self.file_size == 0

    def _data_error(self, status: int, code: int) -> Exception:
        if status == Status.IO_ERROR:
            return StoreIOError(code, self.core.failed_operation, self._last_path())
        if status == Status.NO_MEMORY:
            return MemoryError("no memory for the begin of a record")
        self.core.drop_partial()
        path, position = self.position_of(self.core.appended_end)
        reason = (
            f"{status_name(status)}: data of append_data are not records of a log whose files have"
            f" {self.file_size} bytes; the log ends there"
        )
        return StoreCorruptionError(path, position, reason)

    def drop_partial_record(self) -> int:
        """Forget the bytes of a record of which `append_data` has received only a part.

        Returns how many bytes that were. `get_data_end()` is then the end of the log.
        """
        return shielded(self.core.drop_partial)

    def why_no_puts(self) -> CopyError | None:
        """Return the reason why no put is possible: the log is a copy; or None."""
        if not self.core.is_copying:
            return None
        return CopyError(
            "append_data has appended to this log: puts wait until continue_puts() has returned"
        )

    def continue_puts(self) -> None:
        """Let puts write after `append_data`, with the queue offsets that follow its records.

        Raises StoreStateError within a record.
        """
        while self.core.is_copying:
            end, size = self.core.copied_end, self.core.partial_size
            if size:
                raise CopyError(
                    f"append_data has received {size} bytes of a record that is not complete:"
                    " append the rest of it, or drop it with drop_partial_record()"
                )
            self.wait_dispatched()
            shielded(partial(self._end_copy, end))

    def _end_copy(self, end: int) -> None:
        with self._rolling():
            if self.core.is_copying and self.core.copied_end == end:
                self.set_next_offsets()
                file = self.core.mapped_file
                if file is not None:
                    self._begin(file)  # data that were dropped may have made it
                self.core.end_copy()

    def _last_path(self) -> str:
        last = self.mapped_file_queue.get_last_mapped_file()
        return self.config.commit_log_path if last is None else last.path

    def delete_expired_file(
        self,
        expired_ms: int,
        delete_files_interval_ms: int,
        interval_forcibly_ms: int,
        clean_immediately: bool,
        dispatched: int,
    ) -> int:
        """Delete expired files, oldest first and at most 10; return how many were deleted.

        Parameters
        ----------
        dispatched : int, physical offset; files with records after it remain, since these records
            are not in their queues yet

        Raises StoreIOError. Source: RocketMQ 4.9.3 CommitLog#deleteExpiredFile.
        Differs: 4.9.3 also deletes records that were not dispatched.
        """
        return self.mapped_file_queue.delete_expired_file_by_time(
            expired_ms,
            delete_files_interval_ms,
            interval_forcibly_ms,
            clean_immediately,
            dispatched,
        )

    def flush_deletions(self) -> None:
        """Make deletions of files durable. Raises StoreIOError."""
        self.mapped_file_queue.fsync_directory()

    def destroy(self) -> None:
        """Delete every file of the log."""
        self.core.attach(None)
        self.mapped_file_queue.destroy()
        self.core.set_end_offset(0)


def _record_positions(records: bytes, phy_offset: int) -> list[int]:
    """Return the physical offset of each encoded record."""
    positions = []
    at = 0
    while at < len(records):
        positions.append(phy_offset + at)
        at += record_size(records, at)
    return positions
