"""DefaultMessageStore: the parts of the store wired together, with RocketMQ's methods."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from pyrocketstore import queue_removal
from pyrocketstore._dispatch import Dispatcher
from pyrocketstore._env import Event
from pyrocketstore._exact import body_size
from pyrocketstore._index_file import IndexFile
from pyrocketstore._mapped_file import SelectMappedBufferResult
from pyrocketstore._message import MessageExt
from pyrocketstore._put_result import PutMessageResult, make_result, with_status
from pyrocketstore._record import allow_records
from pyrocketstore.allocate_mapped_file_service import make_allocate_service
from pyrocketstore.arguments import check_filter, place_of, queue_of, timeout_of, unit_of
from pyrocketstore.async_put import AsyncPuts
from pyrocketstore.commit_log import CommitLog
from pyrocketstore.config import BrokerRole, MessageStoreConfig
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.display import logger, printable
from pyrocketstore.env import Env
from pyrocketstore.errors import (
    StoreError,
    StoreIOError,
    StoreStateError,
    without_frames,
)
from pyrocketstore.exact import exact_int64, exact_text, whole_number
from pyrocketstore.index_gaps import uncovered
from pyrocketstore.index_service import IndexService
from pyrocketstore.live_stores import Attempts, was_removed
from pyrocketstore.lock_file import store_lock
from pyrocketstore.mending import mend
from pyrocketstore.message import (
    MAX_PROPERTIES_SIZE,
    MAX_TOPIC_SIZE,
    PROPERTIES_TOO_LONG,
    PROPERTY_INNER_MULTI_DISPATCH,
    MessageExtBatch,
    MessageExtBrokerInner,
    MessageRefused,
    batch_too_large,
    settle,
    topic_too_long,
    utf8_length,
    utf16_length,
)
from pyrocketstore.message_futures import MessageFutures
from pyrocketstore.queue_table import ConsumeQueueTable, is_safe_name, no_queue
from pyrocketstore.reads import GetMessageResult, MessageFilter, QueryMessageResult, StoreReads
from pyrocketstore.recovery import (
    RecoveryPlan,
    apply_plan,
    check_not_newer,
    flush_recovered,
    make_plan,
    scan_start,
)
from pyrocketstore.reports import StoreReports
from pyrocketstore.results import DispatchRequest, GetMessageStatus, PutMessageStatus
from pyrocketstore.services import StoreServices
from pyrocketstore.shield import Shield, check_abandoned, one_at_a_time, shielded
from pyrocketstore.stalls import StallLog
from pyrocketstore.stats import StoreStats, StoreStatsService
from pyrocketstore.store_checkpoint import AbortFile, RunningFlags, StoreCheckpoint
from pyrocketstore.transient_store_pool import TransientStorePool

LOG = logger(__name__)

#: What 4.9.3 answers for the buffers that are left where there is no pool.
INTEGER_MAX = (1 << 31) - 1

#: Every store of this process that is open: a fork kills the child's copies, exit closes them.
#: These are their engines: nothing here keeps a store alive that a caller has.
OPEN_STORES: set[DefaultMessageStore] = set()
#: How often the wait for another thread's close looks whether it is still wanted (s).
LOOK_S = 0.1


class DefaultMessageStore(MessageFutures):
    """A RocketMQ store in one directory.

    Parameters
    ----------
    config : MessageStoreConfig
    env : Env or None, the door to the operating system
    read_only : bool, nothing is created, written, locked or mapped writable: what recovery would
        do is done in memory
    on_new_queue : callable(topic, queue_id), before the first put to a queue
    cleans : bool, expired files are deleted and a full disk ends the puts, as the settings say

    `load()`, then `start()`; `shutdown()` at the end. Outcomes that 4.9.3 reports are statuses.

    Services and callbacks know the store as its engine: a second object with the same `__dict__`.
    So the object that a caller has ends with its last reference, whatever runs; the engine of a
    store that was not shut down is then closed by a thread of its own, with a ResourceWarning.

    Threads: any, except for load, start and shutdown.
    Source: RocketMQ 4.9.3 DefaultMessageStore.
    """

    def __init__(
        self,
        config: MessageStoreConfig,
        *,
        env: Env | None = None,
        read_only: bool = False,
        on_new_queue: Callable[[str, int], None] | None = None,
        cleans: bool = True,
    ) -> None:
        self._engine: DefaultMessageStore = object.__new__(type(self))
        self._engine.__dict__ = self.__dict__
        self._engine._make_parts(config.absolute(), env, read_only, on_new_queue, cleans)
        # Called while the engine is open: OPEN_STORES has it then.
        self._on_drop = weakref.ref(self, _Closer(self._engine))

    def _make_parts(
        self,
        config: MessageStoreConfig,
        env: Env | None,
        read_only: bool,
        on_new_queue: Callable[[str, int], None] | None,
        cleans: bool,
    ) -> None:
        self.config = config
        allow_records(config.max_message_size)
        self.cleans = cleans
        self.env = Env() if env is None else env
        self.read_only = read_only
        self.root = config.store_path_root_dir
        self.running_flags = RunningFlags()
        self.shutdown_flag, self.pid = True, os.getpid()
        self.failure: BaseException | None = None
        self.plan: RecoveryPlan | None = None
        self.appended, self.moved = Event(), Event()
        self.allocate_service = None if read_only else make_allocate_service(self.env, config)
        self.commit_log = CommitLog(
            self.env,
            config,
            self.appended,
            read_only=read_only,
            allocate_service=self.allocate_service,
            on_new_queue=on_new_queue,
        )
        self.queue_table = ConsumeQueueTable(
            self.env, config, self.commit_log, self.running_flags, read_only
        )
        self._lock_file = store_lock(self.env, config, self.fail)
        self._abort_file = AbortFile(self.env, os.path.join(self.root, "abort"))
        #: told when no put is taken any more: on a failure, and in a forked child
        self.on_dead: Callable[[str | None], None] = lambda state: None
        #: told when puts are taken again: a full disk has room
        self.on_alive: Callable[[], None] = lambda: None
        self.running_flags.on_not_writeable = lambda: self.on_dead(None)
        self.running_flags.on_writeable = lambda: self.on_alive()
        self.running_flags.on_write_error = self._mend_later
        self.life_lock = threading.RLock()
        self._started = self._loaded = self._made_abort = False
        self._stopped = False  # the services have ended
        self._clean = False  # and had dispatched and forced everything
        #: True once `shutdown` has given everything back
        self.has_ended = False
        self.stats_service = StoreStatsService(
            self.commit_log.core, self.env.now_ms, self.env.monotonic_ns
        )
        self.stall_log = StallLog(self.env.monotonic_ns, config.stall_warning_mills)
        self.async_puts = AsyncPuts(
            config,
            self.commit_log.get_appended_offset,
            lambda: self.reports.flushed_where(),
            self.env.monotonic_ns,
            self._note_async_puts,
        )
        self.reports = StoreReports(
            self.env,
            config,
            self.commit_log,
            self.stats_service,
            self.stall_log,
            self.async_puts,
            behind=self.dispatch_behind_bytes,
            earliest=lambda: self.get_earliest_message_time() if self._loaded else -1,
            failure=lambda: self.why_not_writeable,
        )

    @property
    def transient_store_pool(self) -> TransientStorePool | None:
        """The pool, where the settings ask for one."""
        return None if self.allocate_service is None else self.allocate_service.pool

    # ---- life cycle ---------------------------------------------------------------------------

    def load(self) -> bool:
        """Find the files, recover, and be ready to answer reads.

        Returns True. Raises StoreStateError ("already open"), StoreCorruptionError or StoreIOError.
        Durability: writable: cuts and rebuilt units are in the page cache; `abort` exists.
        Source: RocketMQ 4.9.3 DefaultMessageStore#load.
        Differs: takes the lock first and creates `abort` before anything is changed.
        """
        shielded(self._engine._load_or_give_up, lambda _: self.shutdown())
        return True

    @one_at_a_time
    def _load_or_give_up(self) -> None:
        self.has_ended = False
        if self.read_only:
            if not self.env.is_dir(self.root):
                raise StoreIOError(errno.ENOENT, "open", self.root)
        else:
            self._create_directories()
            self._lock_file.take()
            self._lock_file.release_on_demand(self.is_dropped, self.end_dropped)
        try:
            if self.read_only:
                self._load_unchanged()
            else:
                self._load()
        except BaseException:
            self._give_up()
            raise
        OPEN_STORES.add(self)

    def _load_unchanged(self) -> None:
        """Load, and again where the store's owner, another process, deleted files meanwhile: the
        log's files and those of the queues must be of one time."""
        attempts = Attempts(self.env)
        while True:
            try:
                self._load()
            except StoreIOError as error:
                if not was_removed(self.env, error) or not attempts.another():
                    raise
            else:
                first = self.commit_log.mapped_file_queue.get_first_mapped_file()
                if first is None or self.env.exists(first.path) or not attempts.another():
                    return
            check_abandoned()
            self._let_go()
            self.queue_table.forget()

    def _give_up(self) -> None:
        """After a load() that failed: the next one finds the store as this one did."""
        try:
            self.commit_log.close()
            self._let_go()
            if self._made_abort and self.plan is None and not self.queue_table.has_cut:
                self._abort_file.delete()
        finally:
            self._lock_file.release()

    def _create_directories(self) -> None:
        queues = os.path.join(self.root, "consumequeue")
        for path in (self.root, *self.config.commit_log_paths, queues):
            self.env.make_directories(path)
            self.env.force_name(path)

    def _load(self) -> None:
        clean = not self._abort_file.exists()
        self.commit_log.load()
        check_not_newer(self)
        self.queue_table.load()
        if not self.read_only:
            self._abort_file.create()
            self._made_abort = clean
        self.checkpoint = StoreCheckpoint(
            self.env, os.path.join(self.root, "checkpoint"), read_only=self.read_only
        )
        self.index_service = IndexService(
            self.env,
            os.path.join(self.root, "index"),
            self._given("max_hash_slot_num"),
            self._given("max_index_num"),
            self.checkpoint,
            self.running_flags,
            self.read_only,
        )
        self.index_service.load(clean)
        self.queue_table.checkpoint = self.checkpoint
        self.commit_log.begin_file = self.checkpoint.begin_log_file
        self.dispatcher = Dispatcher(
            on_new_queue=self.queue_table.for_dispatch,
            on_queue_record=self._dispatch_record,
            on_index_file=self.index_service.retry_get_and_create_index_file,
            on_index_record=self._index_record,
            on_error=self._dispatch_error,
            delay_levels=self.commit_log.delay_levels,
            index_enabled=self.index_enabled,
            multi_dispatch=self.config.enable_multi_dispatch,
            moved=self.moved,
        )
        unsure_from = scan_start(self, clean)
        self.queue_table.recover(unsure_from)
        self.plan = make_plan(self, clean, unsure_from)
        mismatched = [*self.commit_log.mapped_file_queue.mismatched, *self.queue_table.mismatched]
        self.plan.mismatched = [(file.path, file.reason) for file in mismatched]
        try:
            apply_plan(self, self.plan)
        finally:
            self.plan.pieces.clear()
        self.recover_topic_queue_table()
        self.reads = StoreReads(
            self.env, self.config, self.commit_log, self.queue_table, self.index_service
        )
        self._loaded = True

    @property
    def index_enabled(self) -> bool:
        """True when messages are indexed and the index can be read."""
        known = self.index_service.geometry_error is None
        return self.config.message_index_enable and known

    def uncovered_by_index(self) -> list[tuple[int, int]]:
        """Ranges [begin, end) of the log, bytes, that may hold keys that the index lacks.

        Raises StoreIOError.
        """
        keyless = () if self.plan is None else self.plan.keyless
        begin, end = max(0, self.commit_log.get_min_offset()), self.commit_log.get_max_offset()
        files = self.index_service.files
        parts = uncovered(files, self.commit_log, begin, end)
        return [part for part in parts if part not in keyless]

    def _given(self, name: str) -> int | None:
        """A setting, or None for one that the files must tell."""
        return int(getattr(self.config, name)) if name in self.config.given else None

    def consume_queues(self) -> list[ConsumeQueue]:
        """Every queue that is known."""
        return self.queue_table.all()

    def recover_topic_queue_table(self) -> None:
        """Set each queue's next offset and minimum from its consume queue.

        Source: RocketMQ 4.9.3 DefaultMessageStore#recoverTopicQueueTable.
        Differs: also for LMQ queues, whose counters 4.9.3 loses at a restart.
        """
        lowest = self.commit_log.get_min_offset()
        for queue in self.consume_queues():
            end = queue.get_max_offset_in_queue()
            self.commit_log.core.set_next_offset(queue.topic, queue.queue_id, end)
            queue.correct_min_offset(lowest)

    def start(self) -> None:
        """Start the services: from here on puts are taken.

        Raises StoreStateError on a read-only store.
        Source: RocketMQ 4.9.3 DefaultMessageStore#start.
        """
        shielded(self._engine._start)

    @one_at_a_time
    def _start(self) -> None:
        if self.read_only:
            raise StoreStateError("the store is open read-only")
        if not self._loaded or self._started or self.allocate_service is None:
            raise StoreStateError("start() comes once, after load()")
        self.services = StoreServices(
            self.config,
            self.env,
            self.commit_log,
            self.checkpoint,
            self.dispatcher,
            self.allocate_service,
            appended=self.appended,
            moved=self.moved,
            consume_queues=self.consume_queues,
            queued_timestamp=self._queued_timestamp,
            fail=self.fail,
            stats_service=self.stats_service,
            stall_log=self.stall_log,
            async_puts=self.async_puts,
            mend=lambda: mend(self),
            check_lock=self._lock_file.check,
        )
        self.reports.services = self.services
        if self.cleans:
            self.services.add_cleaning(
                self.running_flags,
                self.queue_table.path,
                self.consume_queues,
                self.index_service,
                self.newest_store_timestamp(),
            )
        self._started = True
        self.services.start()
        self.shutdown_flag = False
        if self.running_flags.is_write_error():
            self._mend_later()

    def newest_store_timestamp(self) -> int:
        """Store time (ms) of the newest record that is in a queue, 0 without any."""
        queues = [queue for queue in self.consume_queues() if queue.max_physic_offset >= 0]
        newest = max(queues, key=lambda queue: queue.max_physic_offset, default=None)
        unit = None if newest is None else newest.reader.last_unit()
        return 0 if unit is None else max(0, self.commit_log.pickup_store_timestamp(*unit[:2]))

    def _queued_timestamp(self) -> int:
        """Store time up to which every record is in its queue; 0 once an entry was given up."""
        logics = int(self.dispatcher.logics_timestamp)
        return 0 if self.running_flags.is_logics_queue_error() else logics

    def fail(self, error: BaseException) -> None:
        """A service cannot go on: no put is taken any more, and `abort` stays."""
        first, self.failure = self.failure is None, self.failure or without_frames(error)
        self.running_flags.get_and_make_not_writeable()
        self.async_puts.let_go()
        if not self.has_ended:  # afterwards the file is the next owner's
            self._abort_file.mark_failed_fsync()
        if first:
            LOG.error("the store is not writeable any more: %s", self.failure)

    def _mend_later(self) -> None:
        if self._started and not self.shutdown_flag:
            self.services.start_mending()

    @property
    def why_not_writeable(self) -> BaseException | None:
        """What stopped a service, a queue or the index first; None when nothing did."""
        return self.failure or self.running_flags.cause

    def shutdown(self) -> None:
        """Stop the services, force everything, and note the clean end.

        `abort` is deleted only when everything is on the device and dispatched. Where an error kept
        that from being so, in this call or since `start`, it is raised once all is given back.
        Source: RocketMQ 4.9.3 DefaultMessageStore#shutdown.
        Differs: the open index file is forced; no fixed sleeps; errors are raised. A signal
        handler may call it wherever it interrupts the store. Where Ctrl-C gets through the wait,
        the shutdown goes on, and the directory stays taken until it has ended; another call waits
        for that.
        """
        if self.pid != os.getpid():
            return
        self.shutdown_flag = True
        shielded(self._engine._shutdown)

    @one_at_a_time
    def _shutdown(self) -> None:
        if self.has_ended:  # in another thread, meanwhile
            return
        self.commit_log.close()
        if self._started:
            self._clean = self.services.stop()
            self._stopped = True
            self._started = False
        if self.allocate_service is not None:
            self.allocate_service.shutdown()
        if self._loaded:
            self.index_service.wait_forced()
        writes = self._loaded and not self.read_only
        try:  # no thread is left, and nothing waits from here on
            clean = writes and self._finish()
            self._let_go()
            if clean:
                self._abort_file.delete()
        finally:
            OPEN_STORES.discard(self)
            try:
                self._lock_file.release()
            finally:
                self.has_ended = True
        if writes and not clean:
            text = f"{self.root}: not everything could be dispatched and forced"
            error = self.failure or self.running_flags.write_error
            raise StoreStateError(text) if error is None else without_frames(error)

    def end_dropped(self) -> None:
        """Close the engine of a store that was dropped, or wait until another thread has.

        Call it by `shielded`.
        """
        while not self.life_lock.acquire(timeout=LOOK_S):
            check_abandoned()
        try:
            self.shutdown_flag = True
            self._shutdown()
        except StoreError as error:
            LOG.error("%s: the store was not closed, and that failed now: %s", self.root, error)
        finally:
            self.life_lock.release()

    def is_dropped(self) -> bool:
        """True once the last reference is gone that a caller had."""
        return self._on_drop() is None

    def note_drop(self) -> None:
        """The last reference is gone: have the store closed, and warn.

        Threads: any, in the middle of anything, with any lock held: takes none, waits for nobody.
        """
        if self not in OPEN_STORES or self.pid != os.getpid():
            return
        # Without a thread, or where a signal handler raises first, the next opening closes it, or
        # the end of the process.
        with contextlib.suppress(RuntimeError):
            Shield(self.end_dropped).start()
        # Last, since a warning may be an error.
        text = printable(f"{self.root}: the store was not closed before its last reference went")
        warnings.warn(text, ResourceWarning, stacklevel=3)

    def _finish(self) -> bool:
        """Force what the services do not; True when everything is dispatched and forced."""
        try:
            if not self._stopped:
                flush_recovered(self)
            self._lock_file.check()
            self.index_service.flush()
            self.checkpoint.flush()
        except StoreError as error:
            self.fail(error)
        clean = self._clean or not self._stopped
        return clean and self.failure is None and not self.running_flags.is_write_error()

    def _let_go(self) -> None:
        """Give files and mappings back, once nobody writes; the lock is given back last, by the
        caller."""
        with contextlib.ExitStack() as rest:  # each of them, whatever another one raises
            self._loaded = False
            if self.transient_store_pool is not None:
                rest.callback(self.transient_store_pool.destroy)
            rest.callback(self.commit_log.mapped_file_queue.shutdown, 0)
            rest.callback(self.queue_table.close)
            # A load that failed may not have come to these.
            if "index_service" in self.__dict__:
                rest.callback(self.index_service.shutdown)
            if "dispatcher" in self.__dict__:
                rest.callback(self.dispatcher.set_index_file, None)

    def after_fork(self) -> None:
        """In a forked child: this copy is dead and touches nothing."""
        self.on_dead("dead: the process was forked")
        self.shutdown_flag = True
        self._loaded = False
        self._started = False

    def destroy(self) -> None:
        """Delete the store's data: log, queues, index, abort, checkpoint. After shutdown().

        Source: RocketMQ 4.9.3 DefaultMessageStore#destroy.
        """
        if self.read_only:
            raise StoreStateError("the store is open read-only")
        shielded(self._destroy)

    @one_at_a_time
    def _destroy(self) -> None:
        self.queue_table.destroy()
        self.commit_log.destroy()
        index_path = os.path.join(self.root, "index")
        for name in self.env.listdir(index_path):
            if name.isdigit():
                self.env.remove(os.path.join(index_path, name))
        self._abort_file.delete()
        self.env.remove(os.path.join(self.root, "checkpoint"))

    # ---- dispatch -----------------------------------------------------------------------------

    def _dispatch_record(self, request: DispatchRequest, multi: bool) -> None:
        """Put one record into its queue, and into those that it names, the slow way."""
        queue = self.queue_table.for_dispatch(request.topic, request.queue_id)
        if queue is not None:
            queue.put_message_position_info_wrapper(request, multi)

    def _index_record(self, request: DispatchRequest) -> IndexFile | None:
        self.index_service.build_index(request)
        return self.index_service.retry_get_and_create_index_file()

    def _dispatch_error(self, kind: str, topic: str, queue_id: int, error_number: int) -> None:
        reason = os.strerror(error_number) if error_number else "no file"
        LOG.error("the %s entry of %s-%d could not be written: %s", kind, topic, queue_id, reason)
        # A queue that was refused its file tells more, unless no put was taken any more by then.
        error_number = error_number or errno.EIO
        if kind == "queue":
            path = os.path.join(self.queue_table.path, topic, str(queue_id))
            self.running_flags.make_logics_queue_error(StoreIOError(error_number, "append", path))
        else:
            files = self.index_service.files
            path = (files[-1].path if files else None) or os.path.join(self.root, "index")
            self.running_flags.make_index_file_error(StoreIOError(error_number, "append", path))

    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that are not dispatched yet."""
        return self.commit_log.get_max_offset() - int(self.dispatcher.position)

    # ---- puts ---------------------------------------------------------------------------------

    def check_store_status(self, *, has_room: bool = False) -> PutMessageStatus:
        """PUT_OK when a put may be tried; with `has_room`, whatever is not flushed.

        Source: RocketMQ 4.9.3 DefaultMessageStore#checkStoreStatus.
        Differs: OS_PAGECACHE_BUSY also when more than `max_unforced_bytes` are not forced.
        """
        if self.shutdown_flag or self.config.broker_role is BrokerRole.SLAVE:
            return PutMessageStatus.SERVICE_NOT_AVAILABLE
        if not self.running_flags.is_writeable():
            return PutMessageStatus.SERVICE_NOT_AVAILABLE
        if self.is_os_page_cache_busy() or (not has_room and self.async_puts.is_behind()):
            return PutMessageStatus.OS_PAGECACHE_BUSY
        return PutMessageStatus.PUT_OK

    def put_message(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """Append one message and wait as the settings ask.

        Raises StoreTypeError, StoreFormatError: a field of the message is of the wrong type, or a
        number is out of its range. Nothing is written then.

        Threads: any. Durability: SYNC_FLUSH: on the device when the status is PUT_OK.
        Source: RocketMQ 4.9.3 DefaultMessageStore#putMessage.
        """
        settle(message)
        return self.put_settled(message)

    def put_settled(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """As put_message, of a message whose fields are of exact types already."""
        began = self.env.monotonic_ms()
        result = self._checked_put(message)
        return self._noted(self._wait(result, message.wait_store_msg_ok), began)

    def put_messages(self, batch: MessageExtBatch) -> PutMessageResult:
        """Append a batch to one queue, all or nothing. Raises as `put_message`.

        Source: RocketMQ 4.9.3 DefaultMessageStore#putMessages.
        """
        settle(batch)
        began = self.env.monotonic_ms()
        result = self._checked_batch(batch)
        return self._noted(self._wait(result, batch.wait_store_msg_ok), began)

    def _checked_put(
        self, message: MessageExtBrokerInner, *, has_room: bool = False
    ) -> PutMessageResult:
        refused = self._refused_put(message, has_room)
        if refused is not None:
            self.stats_service.note_outcome(refused.status_code, 0, tried=False)
            return refused
        return self._tried(self.commit_log.put_message(message))

    def _refused_put(
        self, message: MessageExtBrokerInner, has_room: bool
    ) -> PutMessageResult | None:
        status = self.check_store_status(has_room=has_room)
        if status is not PutMessageStatus.PUT_OK:
            return make_result(status, error=self.why_not_writeable)
        too_long = None
        if utf16_length(message.topic) > MAX_TOPIC_SIZE:
            too_long = topic_too_long(utf8_length(message.topic))
        elif utf16_length(message.properties_string or "") > MAX_PROPERTIES_SIZE:
            too_long = MessageRefused("MESSAGE_ILLEGAL", PROPERTIES_TOO_LONG)
        if too_long is not None:
            return make_result(PutMessageStatus.MESSAGE_ILLEGAL, error=too_long)
        if not is_safe_name(message.topic):
            return make_result(PutMessageStatus.MESSAGE_ILLEGAL, error=no_queue(message.topic))
        if (
            self.config.enable_lmq
            and self.config.enable_multi_dispatch
            and self.queue_table.lmq_count > self.config.max_lmq_consume_queue_num
            and (message.properties.get(PROPERTY_INNER_MULTI_DISPATCH) or "").strip()
        ):
            return make_result(PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED)
        return None

    def _checked_batch(self, batch: MessageExtBatch) -> PutMessageResult:
        refused = self._refused_batch(batch)
        if refused is not None:
            self.stats_service.note_outcome(refused.status_code, 0, tried=False)
            return refused
        return self._tried(self.commit_log.put_messages(batch))

    def _refused_batch(self, batch: MessageExtBatch) -> PutMessageResult | None:
        status = self.check_store_status()
        if status is not PutMessageStatus.PUT_OK:
            return make_result(status, error=self.why_not_writeable)
        too_long = None
        limit, size = self.config.max_message_size, body_size(batch.body)
        if utf16_length(batch.topic) > MAX_TOPIC_SIZE:
            too_long = topic_too_long(utf8_length(batch.topic))
        elif size > limit:
            too_long = batch_too_large(size, limit)
        if too_long is not None:
            return make_result(PutMessageStatus.MESSAGE_ILLEGAL, error=too_long)
        if not is_safe_name(batch.topic):
            return make_result(PutMessageStatus.MESSAGE_ILLEGAL, error=no_queue(batch.topic))
        return None

    def _wait(self, result: PutMessageResult, wait_store_msg_ok: bool) -> PutMessageResult:
        if result.status_code != 0:
            return result
        end = result.phy_offset + result.wrote_bytes
        status = self.services.flush_service.handle_disk_flush(end, wait_store_msg_ok)
        return result if status is PutMessageStatus.PUT_OK else with_status(result, status)

    def wait_flushed(self, result: PutMessageResult) -> PutMessageResult:
        """Wait for the flush of an append that was made elsewhere (the face's compiled put)."""
        began = self.env.monotonic_ms()
        return self._noted(self._wait(result, True), began)

    def flush(self) -> int:
        """Force what has been put; gives the physical offset up to which it is on the device.

        Raises StoreStateError: read-only, or not started.
        Source: RocketMQ 4.9.3 DefaultMessageStore#flush. Differs: over however many files.
        """
        self._check_flushable()
        return shielded(self.services.log_flush.flush_to_end)

    def _check_flushable(self) -> None:
        if self.read_only:
            raise StoreStateError(f"{self.root}: the store is open read-only: nothing to flush")
        if "services" not in self.__dict__:
            raise StoreStateError(f"{self.root}: the store is not started: call start() first")

    def flush_all(self) -> None:
        """Force the log, the queues, the index and the checkpoint up to what has been put.

        Durability: all that was put before is on the device, in its queue and in the index.
        """
        self._check_flushable()
        self.wait_dispatched()
        shielded(self._flush_all)

    def _flush_all(self) -> None:
        self.flush()
        self.services.flush_queue_service.do_flush(True)
        self.index_service.flush()
        self.services.log_flush.check_fsyncs()

    def wait_dispatched(self, timeout: float | None = None) -> bool:
        """Wait until every put that returned before is in its queue and in the index.

        Returns False when `timeout` (seconds, None for no limit) passed first. Raises
        StoreTypeError, StoreFormatError: no such number.
        """
        seconds = timeout_of(timeout)
        if self.read_only:
            return True
        if self.commit_log.get_appended_offset() > self.commit_log.get_max_offset():
            shielded(self.commit_log.commit_buffers)
        return self.services.reput_service.wait_dispatched(
            self.commit_log.get_max_offset(), seconds
        )

    def is_os_page_cache_busy(self) -> bool:
        """True when the put lock has been held for too long.

        Source: RocketMQ 4.9.3 DefaultMessageStore#isOSPageCacheBusy.
        """
        return bool(self.commit_log.core.is_busy())

    def remain_transient_store_buffer_numbs(self) -> int:
        """Buffers of the transient store pool that are left; 2^31 - 1 without a pool.

        Source: RocketMQ 4.9.3 DefaultMessageStore#remainTransientStoreBufferNumbs.
        """
        pool = self.transient_store_pool
        return INTEGER_MAX if pool is None else pool.available_buffer_nums()

    def is_transient_store_pool_deficient(self) -> bool:
        """True when every buffer of the pool is lent: the broker then refuses messages.

        Source: RocketMQ 4.9.3 DefaultMessageStore#isTransientStorePoolDeficient.
        """
        service = self.allocate_service
        return service is not None and service.is_transient_store_pool_deficient()

    def lock_time_mills(self) -> int:
        """How long the put lock has been held, ms; 0 when free."""
        return int(self.commit_log.core.lock_time_ms())

    # ---- reads: the methods of the MessageStore interface --------------------------------------

    def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_msg_nums: int,
        message_filter: MessageFilter | None = None,
    ) -> GetMessageResult | None:
        """Pull messages from a queue; None when the store is shut down or not readable.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getMessage.
        """
        topic, queue_id = queue_of(topic, queue_id)
        offset, max_msg_nums = exact_int64("offset", offset), whole_number("count", max_msg_nums)
        check_filter(message_filter)
        if not self._loaded or not self.running_flags.is_readable():
            return None
        began = self.env.monotonic_ms()
        result = self.reads.get_message(topic, queue_id, offset, max_msg_nums, message_filter)
        self.stats_service.note_get(result.message_count, self.env.monotonic_ms() - began)
        return result

    def query_message(
        self, topic: str, key: str, max_num: int, begin: int, end: int
    ) -> QueryMessageResult:
        """Messages by index key, at most `max_msgs_num_batch`, ascending by physical offset.

        Source: RocketMQ 4.9.3 DefaultMessageStore#queryMessage.
        """
        topic, key = exact_text("topic", topic), exact_text("key", key)
        count = whole_number("max_num", max_num)
        since, until = exact_int64("begin", begin), exact_int64("end", end)
        return self.reads.query_message(topic, key, count, since, until)

    def look_message_by_offset(self, phy_offset: int, size: int = 0) -> MessageExt | None:
        """The message at a physical offset, or None."""
        return self.commit_log.look_message(*place_of(phy_offset, size))

    def select_one_message_by_offset(
        self, phy_offset: int, size: int = 0
    ) -> SelectMappedBufferResult | None:
        """The record at a physical offset as bytes, or None."""
        phy_offset, size = place_of(phy_offset, size)
        size = size or self.commit_log.record_size(phy_offset)
        return self.commit_log.get_message(phy_offset, size)

    def get_max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """The queue's end; 0 for one that is not there."""
        return self.queue_table.find(*queue_of(topic, queue_id)).get_max_offset_in_queue()

    def get_min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """The queue's first offset as 4.9.3 answers it (stale for an expired queue)."""
        return self.queue_table.find(*queue_of(topic, queue_id)).get_min_offset_in_queue()

    def get_commit_log_offset_in_queue(self, topic: str, queue_id: int, cq_offset: int) -> int:
        """Physical offset of a queue offset, 0 when there is none."""
        unit = self.reads.unit(*unit_of(topic, queue_id, cq_offset))
        return 0 if unit is None else unit[0]

    def get_offset_in_queue_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        """The offset nearest to a store time (ms), as 4.9.3 finds it."""
        time_ms = exact_int64("timestamp", timestamp)
        return self.reads.get_offset_in_queue_by_time(*queue_of(topic, queue_id), time_ms)

    def get_message_store_time_stamp(self, topic: str, queue_id: int, cq_offset: int) -> int:
        """Store time (ms) of a queue offset, -1 when there is none."""
        return self.reads.get_message_store_timestamp(*unit_of(topic, queue_id, cq_offset))

    def get_earliest_message_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time (ms) of the first message of a queue, or of the whole store; -1 for none.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getEarliestMessageTime.
        Differs: of the whole store: right for a log of less than 8 MiB too.
        """
        if topic is not None:
            topic, queue_id = queue_of(topic, queue_id)
        return self.reads.get_earliest_message_time(topic, queue_id)

    def get_message_total_in_queue(self, topic: str, queue_id: int) -> int:
        """Messages that a queue holds, -1 for one that is not there."""
        queue = self.queue_table.get(*queue_of(topic, queue_id))
        return -1 if queue is None else queue.get_message_total_in_queue()

    def check_in_disk_by_consume_offset(self, topic: str, queue_id: int, cq_offset: int) -> bool:
        """True when that message is probably not in memory any more."""
        unit = self.reads.unit(*unit_of(topic, queue_id, cq_offset))
        return unit is not None and self.reads.is_in_disk(unit[0])

    def get_max_phy_offset(self) -> int:
        """Physical offset behind the last record."""
        return self.commit_log.get_max_offset()

    def get_min_phy_offset(self) -> int:
        """First physical offset, -1 for an empty log."""
        return self.commit_log.get_min_offset()

    def get_commit_log_data(self, phy_offset: int) -> SelectMappedBufferResult | None:
        """What the file that holds `phy_offset` has from there on, for replication."""
        phy_offset = exact_int64("phy_offset", phy_offset)
        return self.commit_log.get_data(phy_offset) if self._loaded else None

    def get_message_ids(
        self, topic: str, queue_id: int, min_offset: int, max_offset: int, store_host: str
    ) -> dict[str, int]:
        """{offset message id: queue offset} over [min_offset, max_offset)."""
        topic, queue_id = queue_of(topic, queue_id)
        low, high = exact_int64("min_offset", min_offset), exact_int64("max_offset", max_offset)
        return self.reads.get_message_ids(topic, queue_id, low, high, store_host)

    def get_consume_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, or None; never made by asking."""
        return self.queue_table.get(*queue_of(topic, queue_id))

    def find_consume_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made in memory when it is not there."""
        return self.queue_table.find(*queue_of(topic, queue_id))

    def get_consume_queue_table(self) -> dict[str, dict[int, ConsumeQueue]]:
        """{topic: {queue id: queue}}."""
        return self.queue_table.by_topic()

    def now(self) -> int:
        """The store's clock, Unix ms."""
        return self.env.now_ms()

    def stats(self) -> StoreStats:
        """The store's figures at this moment."""
        return self.reports.stats()

    def get_runtime_info(self) -> dict[str, str]:
        """4.9.3's map of figures, keys and texts.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getRuntimeInfo.
        Differs: also in the first second, when 4.9.3 throws.
        """
        return self.reports.runtime_info()

    def get_running_data_info(self) -> str:
        """The same figures of puts and gets as lines of text."""
        return self.stats_service.running_data_info()

    def clean_unused_topic(self, topics: Iterable[str]) -> int:
        """Destroy the queues of every topic that is not named. Gives 0, as in Java.

        Source: RocketMQ 4.9.3 DefaultMessageStore#cleanUnusedTopic.
        """
        shielded(lambda: queue_removal.clean_unused_topic(self, topics))
        return 0

    def clean_expired_consumer_queue(self) -> None:
        """Destroy queues that end before the first record of the log.

        Source: RocketMQ 4.9.3 DefaultMessageStore#cleanExpiredConsumerQueue.
        """
        shielded(lambda: queue_removal.clean_expired_consumer_queue(self))

    def execute_delete_files_manually(self) -> None:
        """Have the next 20 rounds of cleaning delete what has expired, whatever the hour.

        Raises StoreStateError when the store does not run, or cleans nothing.
        Source: RocketMQ 4.9.3 DefaultMessageStore#executeDeleteFilesManually.
        """
        if not self._started or self.services.clean_commit_log is None:
            raise StoreStateError("the store is not started, or was opened to clean nothing")
        self.services.clean_commit_log.execute_delete_files_manually()

    @property
    def is_started(self) -> bool:
        """True from `start` to `shutdown`."""
        return self._started

    def dispatch_paused(self) -> AbstractContextManager[None]:
        """Nothing is dispatched inside, so that a queue may be taken away."""
        return self.services.reput_service.paused()


class _Closer:
    """Called when the object that a caller had is gone."""

    def __init__(self, engine: DefaultMessageStore) -> None:
        self._engine = engine

    def __call__(self, gone: weakref.ref[DefaultMessageStore]) -> None:
        self._engine.note_drop()


def _kill_copies_after_fork() -> None:
    for store in list(OPEN_STORES):
        store.after_fork()


os.register_at_fork(after_in_child=_kill_copies_after_fork)

__all__ = ["OPEN_STORES", "DefaultMessageStore", "GetMessageStatus"]
