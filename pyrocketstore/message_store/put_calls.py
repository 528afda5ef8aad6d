"""The calls of DefaultMessageStore that put and flush, with RocketMQ's names."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from pyrocketstore.arguments.read_arguments import timeout_of
from pyrocketstore.arguments.scalars import exact_int64
from pyrocketstore.commit_log._puts import PutMessageResult
from pyrocketstore.config.message_store_config import BrokerRole
from pyrocketstore.dispatch.reput import ReputMessageService
from pyrocketstore.errors import StoreStateError, without_frames
from pyrocketstore.files.allocate_mapped_file_service import AllocateMappedFileService
from pyrocketstore.files.transient_store_pool import TransientStorePool
from pyrocketstore.message_store.copied_log import CopiedLog
from pyrocketstore.message_store.encoded_puts import PutResults
from pyrocketstore.message_store.end_of_puts import StoreFailure
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.message_store.message_puts import MessagePuts
from pyrocketstore.message_store.removals import Removals
from pyrocketstore.message_store.start_stop_services import StoreServices
from pyrocketstore.record.message import (
    SCHEDULE_TOPIC,
    MessageExtBatch,
    MessageExtBrokerInner,
    settle,
)
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.system.life_state import Life, LifeState, set_by_start
from pyrocketstore.system.signal_shield import shielded

#: Interval of checks whether a shutdown holds the lock of a flush (s).
LOOK_S = 0.1
#: 4.9.3's number of free buffers without a pool.
INTEGER_MAX = (1 << 31) - 1


class PutCalls:
    """Puts messages and flushes them; DefaultMessageStore is its subclass."""

    files: LoadedFiles
    root: str
    read_only: bool
    life: LifeState
    life_lock: threading.RLock
    puts: MessagePuts
    removals: Removals
    store_failure: StoreFailure
    services: StoreServices = set_by_start()
    copied_log: CopiedLog = set_by_start()
    reput_service: ReputMessageService = set_by_start()
    allocate_service: AllocateMappedFileService | None

    def check_store_status(self, *, has_room: bool = False) -> PutMessageStatus:
        """Return PUT_OK when a put may be tried; `has_room`: ignore how much is not flushed.

        Source: RocketMQ 4.9.3 DefaultMessageStore#checkStoreStatus.
        Differs: OS_PAGECACHE_BUSY also when more than `max_unforced_bytes` are not flushed;
        SERVICE_NOT_AVAILABLE also after `append_data`, until `continue_puts`.
        """
        return self.puts.status(has_room=has_room)

    def put_message(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """Append one message, and wait for the flush as the settings say.

        Raises StoreTypeError, StoreFormatError: a field of the message is of the wrong type, a
        number is out of its range, or the topic has no form in UTF-8. Nothing is written then.

        Threads: any. Durability: under SYNC_FLUSH durable when the status is PUT_OK.
        Source: RocketMQ 4.9.3 DefaultMessageStore#putMessage.
        """
        settle(message)
        return self.puts.put(message)

    def put_messages(self, batch: MessageExtBatch) -> PutMessageResult:
        """Append a batch to one queue, all or nothing. Raises as `put_message`.

        Source: RocketMQ 4.9.3 DefaultMessageStore#putMessages.
        """
        settle(batch)
        return self.puts.put_batch(batch)

    def append_data(self, phy_offset: int, data: bytes | bytearray | memoryview) -> int:
        """Append bytes of the log of another store, such as a slave receives from its master.

        The data may be any part of that log: they may begin and end within a record and contain the
        ends of files. Records are stored as they are, and dispatched once they are whole. Bytes of
        a partial record are kept in memory until the rest of it arrives. From the first call on,
        every put gets SERVICE_NOT_AVAILABLE, and no copied delayed message is delivered, until
        `continue_puts`.

        Parameters
        ----------
        phy_offset : int, where the first byte belongs: `get_data_end()`, or in a log without files
            the first byte of any file, with which the log then begins, even if `data` are refused
        data : bytes-like, one dimension; they must not change during the call

        Returns
        -------
        int, the new `get_data_end()`

        Raises
        ------
        StoreFormatError: `phy_offset` is another one
        StoreCorruptionError: the data are not valid records of that position in a log with files of
            this size. Whole records before them are stored; a partial record is dropped
        StoreStateError: not started, read-only, or puts have ended
        StoreTypeError, StoreIOError
        PutError: the flush has failed

        After each of these errors `get_data_end()` is the physical offset at which the next data
        begin. If a signal handler raises in the main thread, the call continues in another one, and
        still reads `data`: the next call waits for its end, for at most 5 s.

        Threads: any, one at a time; without the GIL while it copies. Durability: under SYNC_FLUSH
        whole records are durable on return; a partial record never survives the process.
        Source: RocketMQ 4.9.3 DefaultMessageStore#appendToCommitLog.
        Differs: raises where 4.9.3 returns False; 4.9.3 ignores `phy_offset`, and stores any data.
        """
        phy_offset = exact_int64("phy_offset", phy_offset)
        self.removals.check_started()
        end = self.copied_log.append(phy_offset, data)
        self.copied_log.settle()
        return end

    def get_data_end(self) -> int:
        """Return the physical offset at which the next data of `append_data` must begin.

        It is `get_max_phy_offset()`, and the bytes that were received of a partial record.
        """
        return self.files.commit_log.get_data_end()

    def drop_partial_record(self) -> int:
        """Forget the bytes of a record of which `append_data` has received only a part.

        Call it when no further data of the same log will come, or when they will come again from
        `get_max_phy_offset()` on. Returns how many bytes that were.
        """
        return self.files.commit_log.drop_partial_record()

    def continue_puts(self) -> None:
        """Let puts follow the data of `append_data`, with the queue offsets that follow those of
        its records. Waits until they are dispatched; no-op if there were none since the last call.

        Raises StoreStateError: the data end within a record, they are behind the confirm offset, or
        a dispatcher or listener makes the call. Threads: any, without a lock that a listener needs.
        """
        self.removals.check_started()
        self.files.commit_log.continue_puts()
        if self.files.queue_table.of_topic(SCHEDULE_TOPIC):
            self.puts.start_schedule()

    def _wait_for_copied(self) -> None:
        """Wait until the records of `append_data` are dispatched, before puts follow them."""
        self.wait_dispatched()
        if self.reput_service.is_unconfirmed():
            raise StoreStateError(
                f"{self.root}: records of append_data are behind the confirm offset, so that the"
                " next queue offsets are unknown: call set_confirm_offset first"
            )

    def put_encoded(
        self,
        topics: Any,
        queue_ids: Any,
        bodies: Any,
        properties: Any = None,
        *,
        flags: Any = 0,
        sys_flags: Any = 0,
        born_timestamps: Any = None,
        born_hosts: Any = None,
    ) -> PutResults:
        """Append many messages of any topics whose properties are encoded already, as a broker
        receives them.

        A column is a list, a NumPy array or an Arrow array with one entry for each message.

        Parameters
        ----------
        topics : str, or a column of str
        queue_ids : int from 0 to 2147483646, or a column of them; None: 0
        bodies : column of bytes-like
        properties : column of str, of bytes-like with UTF-8, or of None; None: no message has any.
            Each is the text that a record stores, `name U+0001 value U+0002 ...`, which
            `properties_to_string` makes
        flags, sys_flags : int32, or a column of them
        born_timestamps : int64, Unix ms, or a column of them; None: the time of the append
        born_hosts : host as of MessageExtBrokerInner, or a column of them; None: the store host

        Each message has the status that `put_message` gives it, and a refused one does not affect
        the others. Runs of messages are appended under one hold of the put lock. Messages that
        need more are put one by one, in their places: delayed, prepared, rolled-back and too large
        ones, those that name further queues, and topics that are not ASCII or may be refused. WAIT
        is ignored: the call waits for one flush of all.

        Returns
        -------
        PutResults

        Raises StoreTypeError, StoreFormatError: a value has the wrong type, a number is out of its
        range, properties have no form in UTF-8, or columns differ in length. Nothing is written
        then. A topic that has no form in UTF-8 is refused alone: MESSAGE_ILLEGAL.
        StoreStateError: the store was not started yet.

        Threads: any; without the GIL while it encodes and copies. Durability: as of `put_message`.
        """
        return self.puts.encoded.put(
            topics, queue_ids, bodies, properties, flags, sys_flags, born_timestamps, born_hosts
        )

    def async_put_message(self, message: MessageExtBrokerInner) -> Future[PutMessageResult]:
        """As put_message; return a future that is done when the flush is.

        Futures of one queue are done in the order of its offsets. While `max_outstanding_puts` or
        `max_outstanding_put_bytes` are outstanding, nothing is put: OS_PAGECACHE_BUSY.

        Source: RocketMQ 4.9.3 DefaultMessageStore#asyncPutMessage.
        """
        settle(message)
        return self.puts.put_later(message)

    def async_put_messages(self, batch: MessageExtBatch) -> Future[PutMessageResult]:
        """As put_messages; return a future: see async_put_message."""
        settle(batch)
        return self.puts.put_batch_later(batch)

    def flush(self) -> int:
        """Flush the log up to the last put; return the physical offset before which it is durable.

        Raises StoreStateError: read-only, or not started.
        Source: RocketMQ 4.9.3 DefaultMessageStore#flush. Differs: over as many files as needed.
        """
        self._check_flushable()
        return shielded(self.services.log_flush.flush_to_end)

    def _refuse_copy(self) -> None:
        """Raise StoreStateError in a forked child, which has no thread of the store."""
        if self.life.now is Life.FORKED:
            raise StoreStateError(f"{self.root}: the store is {self.life.now.value}")

    def _check_flushable(self) -> None:
        self._refuse_copy()
        if self.read_only:
            raise StoreStateError(f"{self.root}: the store is open read-only: nothing to flush")

    def flush_up_to(self, phy_offset: int) -> None:
        """Make all records before a byte of the log durable, with their units and the names of
        their topics."""
        self.services.flush_up_to(phy_offset)

    def flush_all(self) -> None:
        """Flush the log, the queues, the index and the checkpoint up to the last put.

        Durability: all messages put before are durable, in the log, their queues and the index.
        Raises StoreIOError, StoreCorruptionError; see `check_complete`. StoreStateError: read-only,
        not started, or closed.
        """
        self._check_flushable()
        self.wait_dispatched()
        shielded(self._flush_all)
        self.check_complete()

    def check_complete(self) -> None:
        """Raise the cause if a queue or the index lacks messages whose units or keys could not be
        written, until RepairService has written them."""
        error = self.files.running_flags.write_error
        if error is not None:
            raise without_frames(error)

    def _flush_all(self) -> None:
        services = self.services
        while not self.life_lock.acquire(timeout=LOOK_S):
            if not self.life.takes_puts:  # the shutdown flushes, and may wait for this thread
                raise StoreStateError(f"{self.root}: the store is closed")
        try:
            self.removals.check_started()  # else another process may own the files
            index_flush = self.files.index_flush
            index_state = None if index_flush is None else index_flush.begin()
            services.log_flush.flush_to_end()
            services.flush_queue_service.do_flush(True, index_state)
            self.files.index_service.flush()
            services.log_flush.check_fsyncs()
        finally:
            self.life_lock.release()

    def is_os_page_cache_busy(self) -> bool:
        """Return True when the put lock has been held for too long.

        Source: RocketMQ 4.9.3 DefaultMessageStore#isOSPageCacheBusy.
        """
        return self.puts.is_busy()

    def remain_transient_store_buffer_numbs(self) -> int:
        """Return the free buffers of the transient store pool; 2^31 - 1 without a pool.

        Source: RocketMQ 4.9.3 DefaultMessageStore#remainTransientStoreBufferNumbs.
        """
        pool = self.transient_store_pool
        return INTEGER_MAX if pool is None else pool.available_buffer_nums()

    def is_transient_store_pool_deficient(self) -> bool:
        """Return True when every buffer of the pool is lent: the broker then refuses messages.

        Source: RocketMQ 4.9.3 DefaultMessageStore#isTransientStorePoolDeficient.
        """
        service = self.allocate_service
        return service is not None and service.is_transient_store_pool_deficient()

    def lock_time_mills(self) -> int:
        """Return how long the put lock has been held, ms; 0 when it is free."""
        return int(self.files.commit_log.core.lock_time_ms())

    @property
    def transient_store_pool(self) -> TransientStorePool | None:
        """The pool, None unless the settings require one."""
        return None if self.allocate_service is None else self.allocate_service.pool

    @property
    def failure(self) -> BaseException | None:
        """The error that has ended the puts of the store for good, None without one."""
        return self.store_failure.error

    @property
    def why_not_writeable(self) -> BaseException | None:
        """The first error that ended a service, a queue or the index; None without one."""
        return self.failure or self.files.running_flags.cause

    @property
    def why_no_puts(self) -> BaseException | None:
        """The reason why puts are refused, if an error, `append_data` or the role of a slave is
        one; else None."""
        if self.why_not_writeable is None and self.files.config.broker_role is BrokerRole.SLAVE:
            return StoreStateError(f"{self.root}: the copy of a master: put into the master")
        return self.why_not_writeable or self.files.commit_log.why_no_puts()

    # ---- dispatch -----------------------------------------------------------------------------

    def dispatch_behind_bytes(self) -> int:
        """Return the bytes of the log that are not dispatched yet."""
        return self.files.dispatch_behind_bytes()

    def dispatch_paused(self) -> AbstractContextManager[None]:
        """Dispatch nothing inside of a `with` block."""
        return self.reput_service.paused()

    def wait_dispatched(self, timeout: float | None = None) -> bool:
        """Wait until every put that returned before is in its queue and in the index.

        Returns False when `timeout` (seconds, None for no limit) passed first. Raises
        StoreTypeError, StoreFormatError: not a valid number.
        """
        seconds = None if timeout is None else timeout_of(timeout)
        files = self.files
        if self.read_only or files.dispatcher.position >= files.commit_log.core.appended_end:
            return True
        self._refuse_copy()
        return self.reput_service.wait_appended(seconds)
