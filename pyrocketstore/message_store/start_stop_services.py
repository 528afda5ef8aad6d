"""StoreServices: start the threads of a store together, and stop them in an order that loses no
data.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyrocketstore.cleaning.expired_files import (
    CleanCommitLogService,
    CleanConsumeQueueService,
    CleanResourceService,
    DiskCheckService,
)
from pyrocketstore.cleaning.retention import LogRetention, RetentionService, Trimmed
from pyrocketstore.commit_log._puts import PutMessageResult
from pyrocketstore.dispatch.reput import ReputMessageService
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreError, StoreStateError, without_frames
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.files.allocate_mapped_file_service import AllocateMappedFileService
from pyrocketstore.files.file_systems import FileSystems
from pyrocketstore.flush.async_put import (
    COMPLETE_SECONDS,
    AsyncPuts,
    FlushDiskWatcher,
    MakeRoomService,
)
from pyrocketstore.flush.flush_services import (
    CommitRealTimeService,
    FlushConsumeQueueService,
    FlushRealTimeService,
    GroupCommitService,
)
from pyrocketstore.flush.log_flush import CommitLogFlush
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.message_store.stall_watch import StallWatch
from pyrocketstore.message_store.stats import StoreStatsService
from pyrocketstore.record.message import MessageExtBrokerInner
from pyrocketstore.recovery.repair import RepairService
from pyrocketstore.schedule.delay_offsets import DelayOffsets
from pyrocketstore.schedule.service import ScheduleMessageService
from pyrocketstore.system.service_thread import ServiceThread, require_thread
from pyrocketstore.system.stalls import StallLog

if TYPE_CHECKING:
    from pyrocketstore.ha.ha_client import HAClient

LOG = logger(__name__)


class StoreServices:
    """Make the services that the settings require; `fail` is called with an error that ends one.

    Threads: `start` and `stop` from the thread that owns the store.
    Source: RocketMQ 4.9.3 DefaultMessageStore#start, #shutdown.
    """

    def __init__(
        self,
        files: LoadedFiles,
        reput_service: ReputMessageService,
        async_puts: AsyncPuts,
        allocate_service: AllocateMappedFileService,
        file_systems: FileSystems,
        stall_log: StallLog,
        stats_service: StoreStatsService,
        *,
        persist_topics: Callable[[bool], None],
        fail: Callable[[BaseException], None],
        repair: Callable[[], bool],
        check_lock: Callable[[], None],
    ) -> None:
        config, commit_log, checkpoint = files.config, files.commit_log, files.checkpoint
        self.files, self.reput_service, self.async_puts = files, reput_service, async_puts
        self.allocate_service = allocate_service
        self.stats_service = stats_service
        self._fail = fail
        self._check_lock = check_lock
        self.repair_service = RepairService(files.env, repair)
        self._repair_lock = threading.Lock()
        self._repair_ended = self._all_started = False
        #: None: no delayed messages are delivered, no transactions, no master's log
        self.schedule_service: ScheduleMessageService | None = None
        self.transaction_service: ServiceThread | None = None
        self.ha_client: HAClient | None = None
        self._schedule_ended = False
        #: called four times a second
        self.on_look: Callable[[], None] = lambda: None
        #: the cleaning services, None and empty without `add_cleaning`
        self.clean_commit_log: CleanCommitLogService | None = None
        self.clean_resource: CleanResourceService | None = None
        self._cleaning: list[ServiceThread] = []
        #: held while expired files are deleted
        self.delete_lock = threading.Lock()
        self.log_flush = CommitLogFlush(commit_log, checkpoint, fail)
        self.flush_service: GroupCommitService | FlushRealTimeService = (
            GroupCommitService(self.log_flush, config)
            if config.is_sync_flush
            else FlushRealTimeService(self.log_flush, config)
        )
        #: only with a transient store pool
        self.commit_service: CommitRealTimeService | None = None
        if isinstance(self.flush_service, FlushRealTimeService) and self.allocate_service.pool:
            self.commit_service = CommitRealTimeService(
                commit_log, config, self.flush_service.on_committed, fail
            )
        self.flush_queue_service = FlushConsumeQueueService(
            config,
            checkpoint,
            files.consume_queues,
            file_systems,
            self._queued_timestamp,
            self._dispatched,
            persist_topics,
            files.env.monotonic_ms,
            fail,
            files.index_flush,
            lambda: not files.running_flags.is_logics_queue_error(),
        )
        commit_log.mapped_file_queue.before_deletion = self._flush_file
        files.queue_table.flush_up_to = self.flush_up_to
        if isinstance(self.flush_service, GroupCommitService):
            async_puts.request = self.flush_service.request
            async_puts.quick_flush = self.flush_service.quick_flush
        self.make_room_service = MakeRoomService(async_puts, self.log_flush.flush_to_end)
        self.flush_disk_watcher = FlushDiskWatcher(async_puts)
        self._watch(stall_log)

    def _dispatched(self) -> int:
        """Everything before this physical offset is dispatched."""
        return int(self.files.dispatcher.position)

    def flush_up_to(self, phy_offset: int) -> None:
        """Make all records before a byte of the log durable, with their units and the names of
        their topics: call before anything is deleted from which a recovery would derive these.

        Usually a flush has covered them before, and nothing is done.

        Raises StoreError: a flush failed, or a unit could not be written and is not repaired yet.
        """
        flush, flags = self.flush_queue_service, self.files.running_flags
        if self.log_flush.flushed_where < phy_offset:
            self.log_flush.flush_to_end()
        if flush.flushed_to >= phy_offset:
            return
        if flags.is_logics_queue_error() and flags.write_error is not None:
            raise without_frames(flags.write_error)
        self.log_flush.check_fsyncs()
        flush.do_flush(True)

    def _flush_file(self, file: MappedFile) -> None:
        self.flush_up_to(file.file_from_offset + file.file_size)

    def _may_wait_from(self) -> int:
        """As _dispatched, but records that are not confirmed do not count as late."""
        if self.reput_service.is_unconfirmed():
            return self.files.commit_log.get_max_offset()
        return self._dispatched()

    def _queued_timestamp(self) -> int:
        """Store time up to which every record is in its queue; 0 once an entry was given up."""
        logics = int(self.files.dispatcher.logics_timestamp)
        return 0 if self.files.running_flags.is_logics_queue_error() else logics

    def _watch(self, stall_log: StallLog) -> None:
        """Have slow calls logged."""
        for part in (self.log_flush, self.files.commit_log, self.allocate_service):
            part.timed = stall_log.timed
        watch = StallWatch(
            stall_log, self.files.commit_log.core, self.files.env.monotonic_ns, self._may_wait_from
        )
        watch.group = self.log_flush.group
        self._look_for_stalls = watch.look
        self.stats_service.watch = self._look

    def _look(self) -> None:
        """Called four times a second: check for stalls, and whether the store is still locked."""
        self._look_for_stalls()
        self.on_look()
        try:
            self._check_lock()
        except StoreError as error:
            self._fail(error)

    @property
    def _commits(self) -> list[ServiceThread]:
        return [] if self.commit_service is None else [self.commit_service]

    def add_cleaning(self, newest_ms: int) -> None:
        """Have expired files deleted and full disks noticed; call before `start`.

        `newest_ms` is the store time of the newest record.
        """
        env, config, log = self.files.env, self.files.config, self.files.commit_log
        self.clean_commit_log = CleanCommitLogService(
            env,
            config,
            log,
            self.files.running_flags,
            self.files.queue_table.path,
            self._dispatched,
            self.delete_lock,
        )
        self.clean_resource = CleanResourceService(
            env, config, self.clean_commit_log, self._queue_cleaning(), newest_ms
        )
        self._cleaning += [self.clean_resource, DiskCheckService(env, self.clean_commit_log)]

    def add_retention(self) -> None:
        """Have the rules of `retention_age` and the other `retention_*` applied; call before
        `start`.
        """
        env, config = self.files.env, self.files.config
        self._cleaning.append(
            RetentionService(env, config, self._log_retention(), self._queue_cleaning())
        )

    def add_schedule(
        self,
        offsets: DelayOffsets,
        put: Callable[[MessageExtBrokerInner], PutMessageResult],
        ends: Callable[[], bool],
    ) -> None:
        """Have delayed messages delivered, as ScheduleMessageService says; call before `start`.

        Raises StoreError.
        """
        files = self.files
        service = self.schedule_service = ScheduleMessageService(
            files.commit_log,
            files.queue_table,
            offsets,
            put,
            self.log_flush.flush_to_end,
            ends,
            files.running_flags.is_logics_queue_error,
            files.config.flush_delay_offset_interval,
        )
        service.correct_offsets()
        files.dispatcher.delayed = service.event

    def trim(self, before_ms: int) -> Trimmed:
        """Delete the first files of the log whose newest message was stored before `before_ms`,
        then the files of queues and index that name only deleted messages.

        Raises StoreError: a file cannot be read or deleted.
        """
        try:
            return self._log_retention().delete_older(before_ms)
        finally:
            queues = self._queue_cleaning()
            queues.pause_ms = 0
            queues.run()

    def _log_retention(self) -> LogRetention:
        files = self.files
        return LogRetention(
            files.env, files.config, files.commit_log, self._dispatched, self.delete_lock
        )

    def _queue_cleaning(self) -> CleanConsumeQueueService:
        files = self.files
        return CleanConsumeQueueService(
            files.env,
            files.config,
            files.commit_log,
            files.consume_queues,
            files.index_service,
            self.delete_lock,
        )

    def all(self) -> list[ServiceThread]:
        """Return every service, in the order in which they start."""
        services: list[ServiceThread] = [
            self.allocate_service,
            *self._commits,
            self.reput_service,
            self.flush_service,
            self.flush_queue_service,
            self.stats_service,
            *self._cleaning,
        ]
        if self.async_puts.sync:
            services.append(self.flush_disk_watcher)
        if self.async_puts.max_unforced_bytes:
            services.append(self.make_room_service)
        return services

    def start(self) -> None:
        """Start every thread; if one dies, the store accepts no more puts and reports why.

        Raises StoreStateError if the system cannot start a thread.
        """
        self.repair_service.on_death = self._died
        for service in self.all():
            if service is not self.stats_service:
                service.on_death = self._died
            with require_thread(service.name):
                service.start()
        self._all_started = True

    def start_repair(self) -> None:
        """Start the repair service after the first write error, unless `stop` has begun.

        Where no thread can be started, the store accepts no puts until it is opened again.
        """
        with self._repair_lock:
            if self._repair_ended:
                return
            try:
                self.repair_service.start()
            except (RuntimeError, MemoryError) as error:
                LOG.error("the next opening of the store repairs queues and index: %s", error)

    def start_schedule(self) -> None:
        """Start the thread that delivers delayed messages, unless `stop` has begun.

        Call it before the put of a delayed message. Where no thread can be started, a later put of
        a delayed message or the next opening of the store tries again.
        """
        service = self.schedule_service
        if service is None:
            return
        with self._repair_lock:
            if self._schedule_ended or service.failure is not None:
                return
            service.on_death = self._died
            try:
                service.start()
            except (RuntimeError, MemoryError) as error:
                LOG.error("the next put of a delayed message, or opening, delivers: %s", error)

    def start_transactions(self, service: ServiceThread) -> None:
        """Start the thread that checks transactions, unless `stop` has begun; `stop` ends it."""
        with self._repair_lock:
            if self._schedule_ended:
                return
            self.transaction_service = service
            service.on_death = self._died
            try:
                service.start()
            except (RuntimeError, MemoryError) as error:
                LOG.error("no transaction is checked until the next opening: %s", error)

    def start_copy(self, client: HAClient) -> None:
        """Start the thread that copies the log of a master; `end_copy` and `stop` end it.

        Raises StoreStateError if the system cannot start a thread.
        """
        self.ha_client = client
        client.on_death = self._died
        with require_thread(client.name):
            client.start()

    def end_copy(self) -> None:
        """End the copy of a master's log: call before the log is closed."""
        if self.ha_client is not None:
            self.ha_client.shutdown(None)

    def _died(self, service: ServiceThread) -> None:
        cause = StoreStateError(f"the thread {service.name} has died: {service.failure!r}")
        cause.__cause__ = service.failure
        self._fail(cause)

    def stop(self) -> bool:
        """Stop all services, without a time limit; call after the last put.

        No file may be unmapped under a writer, and the end is not clean unless everything is
        flushed. Returns True when everything is dispatched and durable. After a Ctrl-C it is called
        again.
        """
        self.end_copy()
        self.async_puts.let_go()
        with self._repair_lock:
            self._repair_ended = self._schedule_ended = True
        for service in (
            *[one for one in (self.transaction_service, self.schedule_service) if one is not None],
            self.repair_service,
            *self._cleaning,
            self.make_room_service,
            *self._commits,
            self.reput_service,
            self.flush_service,
            self.flush_queue_service,
            self.stats_service,
        ):
            service.shutdown(None)
        flushed = self._flush_rest()
        self.async_puts.close()
        # Futures belong to callers: one whose lock is held, or whose callback waits, must not block
        # the close.
        self.flush_disk_watcher.shutdown(COMPLETE_SECONDS)
        self.async_puts.complete_rest()
        return (
            flushed
            and self.reput_service.behind() == 0
            and (self.commit_service is None or self.commit_service.error is None)
            and self.flush_queue_service.error is None
            and self.log_flush.error is None
            and self.log_flush.flushed_where >= self.files.commit_log.get_max_offset()
        )

    def _flush_rest(self) -> bool:
        """Flush for threads that have died or could not be started; return False when that fails.

        After a kill a store may have dirty pages before its first put.
        """
        if self.log_flush.group is not None:
            self.log_flush.group.close()  # else a flush would wait for a thread that never ran
        try:
            died = any(s.failure is not None for s in (*self._commits, self.flush_service))
            if self.log_flush.error is None and (died or not self._all_started):
                self.log_flush.flush_to_end()
            if not self._all_started and self.flush_queue_service.error is None:
                self.flush_queue_service.do_flush(True)
        except StoreError as error:
            self._fail(error)
            return False
        return True
