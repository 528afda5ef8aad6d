"""The calls of DefaultMessageStore that put and flush, with RocketMQ's names."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from pyrocketstore.arguments.read_arguments import timeout_of
from pyrocketstore.arguments.scalars import exact_int64
from pyrocketstore.commit_log._puts import PutMessageResult
from pyrocketstore.dispatch.reput import ReputMessageService
from pyrocketstore.files.allocate_mapped_file_service import AllocateMappedFileService
from pyrocketstore.files.transient_store_pool import TransientStorePool
from pyrocketstore.flush.async_put import AsyncPuts
from pyrocketstore.message_store.copied_log import CopiedLog
from pyrocketstore.message_store.encoded_puts import PutResults
from pyrocketstore.message_store.end_of_puts import StoreFailure
from pyrocketstore.message_store.engine import Engine
from pyrocketstore.message_store.message_puts import MessagePuts
from pyrocketstore.message_store.read_calls import part
from pyrocketstore.message_store.removals import Removals
from pyrocketstore.message_store.start_stop_services import StoreServices
from pyrocketstore.record.message import (
    SCHEDULE_TOPIC,
    MessageExtBatch,
    MessageExtBrokerInner,
    settle,
)
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.system.life_state import LifeState

#: 4.9.3's number of free buffers without a pool.
INTEGER_MAX = (1 << 31) - 1


class PutCalls:
    """Puts messages and flushes them; DefaultMessageStore is its subclass."""

    engine: Engine

    root: str = part("root")
    read_only: bool = part("read_only")
    life: LifeState = part("life")
    life_lock: threading.RLock = part("life_lock")
    puts: MessagePuts = part("puts")
    removals: Removals = part("removals")
    async_puts: AsyncPuts = part("async_puts")
    store_failure: StoreFailure = part("store_failure")
    services: StoreServices = part("services")
    copied_log: CopiedLog = part("copied_log")
    reput_service: ReputMessageService = part("reput_service")
    allocate_service: AllocateMappedFileService | None = part("allocate_service")
    #: the error that has ended the puts of the store for good, None without one
    failure: BaseException | None = part("failure")
    #: the first error that ended a service, a queue or the index; None without one
    why_not_writeable: BaseException | None = part("why_not_writeable")
    #: the reason why puts are refused, if an error or `append_data` is one; else None
    why_no_puts: BaseException | None = part("why_no_puts")

    def check_store_status(self, *, has_room: bool = False) -> PutMessageStatus:
        """Return PUT_OK when a put may be tried; `has_room`: ignore how much is not flushed.

        Source: RocketMQ 4.9.3 DefaultMessageStore#checkStoreStatus.
        Differs: OS_PAGECACHE_BUSY also when more than `max_unforced_bytes` are not flushed;
        SERVICE_NOT_AVAILABLE also after `append_data`, until `continue_puts`.
        """
        return self.engine.puts.status(has_room=has_room)

    def put_message(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """Append one message, and wait for the flush as the settings say.

        Raises StoreTypeError, StoreFormatError: a field of the message is of the wrong type, a
        number is out of its range, or the topic has no form in UTF-8. Nothing is written then.

        Threads: any. Durability: under SYNC_FLUSH durable when the status is PUT_OK.
        Source: RocketMQ 4.9.3 DefaultMessageStore#putMessage.
        """
        settle(message)
        return self.engine.puts.put(message)

    def put_messages(self, batch: MessageExtBatch) -> PutMessageResult:
        """Append a batch to one queue, all or nothing. Raises as `put_message`.

        Source: RocketMQ 4.9.3 DefaultMessageStore#putMessages.
        """
        settle(batch)
        return self.engine.puts.put_batch(batch)

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
        self.engine.removals.check_started()
        end = self.engine.copied_log.append(phy_offset, data)
        self.engine.copied_log.settle()
        return end

    def get_data_end(self) -> int:
        """Return the physical offset at which the next data of `append_data` must begin.

        It is `get_max_phy_offset()`, and the bytes that were received of a partial record.
        """
        return self.engine.files.commit_log.get_data_end()

    def drop_partial_record(self) -> int:
        """Forget the bytes of a record of which `append_data` has received only a part.

        Call it when no further data of the same log will come, or when they will come again from
        `get_max_phy_offset()` on. Returns how many bytes that were.
        """
        return self.engine.files.commit_log.drop_partial_record()

    def continue_puts(self) -> None:
        """Let puts follow the data of `append_data`, with the queue offsets that follow those of
        its records. Waits until they are dispatched; no-op if there were none since the last call.

        Raises StoreStateError: the data end within a record, they are behind the confirm offset, or
        a dispatcher or listener makes the call. Threads: any, without a lock that a listener needs.
        """
        self.engine.removals.check_started()
        self.engine.files.commit_log.continue_puts()
        if self.engine.files.queue_table.of_topic(SCHEDULE_TOPIC):
            self.engine.puts.start_schedule()

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
        return self.engine.puts.encoded.put(
            topics, queue_ids, bodies, properties, flags, sys_flags, born_timestamps, born_hosts
        )

    def async_put_message(self, message: MessageExtBrokerInner) -> Future[PutMessageResult]:
        """As put_message; return a future that is done when the flush is.

        Futures of one queue are done in the order of its offsets. While `max_outstanding_puts` or
        `max_outstanding_put_bytes` are outstanding, nothing is put: OS_PAGECACHE_BUSY.

        Source: RocketMQ 4.9.3 DefaultMessageStore#asyncPutMessage.
        """
        settle(message)
        return self.engine.puts.put_later(message)

    def async_put_messages(self, batch: MessageExtBatch) -> Future[PutMessageResult]:
        """As put_messages; return a future: see async_put_message."""
        settle(batch)
        return self.engine.puts.put_batch_later(batch)

    def flush(self) -> int:
        """Flush the log up to the last put; return the physical offset before which it is durable.

        Raises StoreStateError: read-only, or not started.
        Source: RocketMQ 4.9.3 DefaultMessageStore#flush. Differs: over as many files as needed.
        """
        return self.engine.flush()

    def flush_up_to(self, phy_offset: int) -> None:
        """Make all records before a byte of the log durable, with their units and the names of
        their topics."""
        self.engine.services.flush_up_to(phy_offset)

    def flush_all(self) -> None:
        """Flush the log, the queues, the index and the checkpoint up to the last put.

        Durability: all messages put before are durable, in the log, their queues and the index.
        Raises StoreIOError, StoreCorruptionError; see `check_complete`. StoreStateError: read-only,
        not started, or closed.
        """
        self.engine.flush_all()

    def check_complete(self) -> None:
        """Raise the cause if a queue or the index lacks messages whose units or keys could not be
        written, until RepairService has written them."""
        self.engine.check_complete()

    def is_os_page_cache_busy(self) -> bool:
        """Return True when the put lock has been held for too long.

        Source: RocketMQ 4.9.3 DefaultMessageStore#isOSPageCacheBusy.
        """
        return self.engine.puts.is_busy()

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
        service = self.engine.allocate_service
        return service is not None and service.is_transient_store_pool_deficient()

    def lock_time_mills(self) -> int:
        """Return how long the put lock has been held, ms; 0 when it is free."""
        return int(self.engine.files.commit_log.core.lock_time_ms())

    @property
    def transient_store_pool(self) -> TransientStorePool | None:
        """The pool, None unless the settings require one."""
        return None if self.engine.allocate_service is None else self.engine.allocate_service.pool

    # ---- dispatch -----------------------------------------------------------------------------

    def dispatch_behind_bytes(self) -> int:
        """Return the bytes of the log that are not dispatched yet."""
        return self.engine.files.dispatch_behind_bytes()

    def dispatch_paused(self) -> AbstractContextManager[None]:
        """Dispatch nothing inside of a `with` block."""
        return self.engine.reput_service.paused()

    def wait_dispatched(self, timeout: float | None = None) -> bool:
        """Wait until every put that returned before is in its queue and in the index.

        Returns False when `timeout` (seconds, None for no limit) passed first. Raises
        StoreTypeError, StoreFormatError: not a valid number.
        """
        return self.engine.wait_dispatched(None if timeout is None else timeout_of(timeout))
