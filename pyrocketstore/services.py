"""The threads of a running store: started together, stopped in the order that loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from pyrocketstore._dispatch import Dispatcher
from pyrocketstore._env import Event
from pyrocketstore.allocate_mapped_file_service import AllocateMappedFileService
from pyrocketstore.async_put import (
    COMPLETE_SECONDS,
    AsyncPuts,
    FlushDiskWatcher,
    MakeRoomService,
)
from pyrocketstore.cleaning import (
    CleanCommitLogService,
    CleanConsumeQueueService,
    CleanResourceService,
    DiskCheckService,
)
from pyrocketstore.commit_log import CommitLog
from pyrocketstore.config import MessageStoreConfig
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.dispatch import ReputMessageService
from pyrocketstore.display import logger
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreError, StoreStateError
from pyrocketstore.flush import (
    CommitLogFlush,
    CommitRealTimeService,
    FlushConsumeQueueService,
    FlushRealTimeService,
    GroupCommitService,
)
from pyrocketstore.index_service import IndexService
from pyrocketstore.mending import MendService
from pyrocketstore.service_thread import ServiceThread
from pyrocketstore.stalls import StallLog, StallWatch
from pyrocketstore.stats import StoreStatsService
from pyrocketstore.store_checkpoint import RunningFlags, StoreCheckpoint

__all__ = ["StoreServices"]

LOG = logger(__name__)


class StoreServices:
    """Makes the services that the settings ask for; `fail` is told of what stops one of them.

    Threads: `start` and `stop` from the thread that owns the store.
    Source: RocketMQ 4.9.3 DefaultMessageStore#start, #shutdown.
    """

    def __init__(
        self,
        config: MessageStoreConfig,
        env: Env,
        commit_log: CommitLog,
        checkpoint: StoreCheckpoint,
        dispatcher: Dispatcher,
        allocate_service: AllocateMappedFileService,
        *,
        appended: Event,
        moved: Event,
        consume_queues: Callable[[], Iterable[ConsumeQueue]],
        queued_timestamp: Callable[[], int],
        fail: Callable[[BaseException], None],
        stats_service: StoreStatsService,
        stall_log: StallLog,
        async_puts: AsyncPuts,
        mend: Callable[[], bool],
        check_lock: Callable[[], None],
    ) -> None:
        self.config = config
        self.env = env
        self.commit_log = commit_log
        self.dispatcher = dispatcher
        self.allocate_service = allocate_service
        self.stats_service = stats_service
        self.async_puts = async_puts
        self._fail = fail
        self._check_lock = check_lock
        self.mend_service = MendService(env, mend)
        self._mending_lock = threading.Lock()
        self._mending_ended = False
        self._all_started = False
        #: what cleans, None and empty where nothing does
        self.clean_commit_log: CleanCommitLogService | None = None
        self.clean_resource: CleanResourceService | None = None
        self._cleaning: list[ServiceThread] = []
        self.log_flush = CommitLogFlush(commit_log, checkpoint, fail)
        self.flush_service: GroupCommitService | FlushRealTimeService = (
            GroupCommitService(self.log_flush, config)
            if config.is_sync_flush
            else FlushRealTimeService(self.log_flush, config)
        )
        #: with a transient store pool alone
        self.commit_service: CommitRealTimeService | None = None
        if isinstance(self.flush_service, FlushRealTimeService) and allocate_service.pool:
            self.commit_service = CommitRealTimeService(
                commit_log, config, self.flush_service.on_committed, fail
            )
        self.flush_queue_service = FlushConsumeQueueService(
            config,
            checkpoint,
            consume_queues,
            queued_timestamp,
            lambda: int(dispatcher.position),
            env.monotonic_ms,
            fail,
        )
        self.reput_service = ReputMessageService(commit_log, dispatcher, appended, moved)
        if isinstance(self.flush_service, GroupCommitService):
            async_puts.request = self.flush_service.request
        self.make_room_service = MakeRoomService(async_puts, self.log_flush.flush_to_end)
        self.flush_disk_watcher = FlushDiskWatcher(async_puts)
        self._watch(stall_log, env, commit_log, dispatcher)

    def _watch(
        self, stall_log: StallLog, env: Env, commit_log: CommitLog, dispatcher: Dispatcher
    ) -> None:
        """What is slow is logged."""
        for part in (self.log_flush, commit_log, self.allocate_service):
            part.timed = stall_log.timed
        watch = StallWatch(
            stall_log,
            commit_log.core,
            env.monotonic_ns,
            lambda: int(dispatcher.position),
        )
        watch.group = self.log_flush.group
        self._look_for_stalls = watch.look
        self.stats_service.watch = self._look

    def _look(self) -> None:
        """A few times a second: what is slow, and whether the store is still locked."""
        self._look_for_stalls()
        try:
            self._check_lock()
        except StoreError as error:
            self._fail(error)

    @property
    def _commits(self) -> list[ServiceThread]:
        return [] if self.commit_service is None else [self.commit_service]

    def add_cleaning(
        self,
        flags: RunningFlags,
        queue_path: str,
        consume_queues: Callable[[], Iterable[ConsumeQueue]],
        index_service: IndexService,
        newest_ms: int,
    ) -> None:
        """Have expired files deleted and full disks noticed; before `start`.

        `newest_ms` is the store time of the newest record.
        """
        self.clean_commit_log = CleanCommitLogService(
            self.env,
            self.config,
            self.commit_log,
            flags,
            queue_path,
            lambda: int(self.dispatcher.position),
        )
        queues = CleanConsumeQueueService(
            self.env, self.config, self.commit_log, consume_queues, index_service
        )
        self.clean_resource = CleanResourceService(
            self.env, self.config, self.clean_commit_log, queues, newest_ms
        )
        self._cleaning = [self.clean_resource, DiskCheckService(self.env, self.clean_commit_log)]

    def all(self) -> list[ServiceThread]:
        """Every service, in the order in which they start."""
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
        """Start every thread; should one die, the store takes no more puts and says why."""
        self.mend_service.on_death = self._died
        for service in self.all():
            if service is not self.stats_service:
                service.on_death = self._died
            service.start()
        self._all_started = True

    def start_mending(self) -> None:
        """Called at the first write error: mend from now on, unless `stop` has begun.

        Where no thread can be started, the store takes no puts until it is opened again.
        """
        with self._mending_lock:
            if self._mending_ended:
                return
            try:
                self.mend_service.start()
            except (RuntimeError, MemoryError) as error:
                LOG.error("queues and index are repaired when the store is opened next: %s", error)

    def _died(self, service: ServiceThread) -> None:
        cause = StoreStateError(f"the thread {service.name} has died: {service.failure!r}")
        cause.__cause__ = service.failure
        self._fail(cause)

    def stop(self) -> bool:
        """Stop those that write, with no limit of time; call after the last put.

        What they write to must not be unmapped under them, and what they did not force must not
        count as clean. Returns True when everything is dispatched and on the device. Where Ctrl-C
        got through, it is called again.
        """
        self.async_puts.let_go()
        with self._mending_lock:
            self._mending_ended = True
        for service in (
            self.mend_service,
            *self._cleaning,
            self.make_room_service,
            *self._commits,
            self.reput_service,
            self.flush_service,
            self.flush_queue_service,
            self.stats_service,
        ):
            service.shutdown(None)
        forced = self._force_rest()
        self.async_puts.close()
        # Futures are the caller's: one whose lock is held, or whose callback waits, holds up no
        # close.
        self.flush_disk_watcher.shutdown(COMPLETE_SECONDS)
        self.async_puts.complete_rest()
        return (
            forced
            and self.reput_service.behind() == 0
            and (self.commit_service is None or self.commit_service.error is None)
            and self.flush_queue_service.error is None
            and self.log_flush.error is None
            and self.log_flush.flushed_where >= self.commit_log.get_max_offset()
        )

    def _force_rest(self) -> bool:
        """Force what a thread that died, or could not be started, has not; True unless that fails.

        A store that a kill ended has something to force before its first put.
        """
        if self.log_flush.group is not None:
            self.log_flush.group.close()  # else a force would wait for a thread that never ran
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
