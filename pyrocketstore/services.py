"""The threads of a running store: started together, stopped in the order that loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyrocketstore._dispatch import Dispatcher
from pyrocketstore._env import Event
from pyrocketstore.cleaning import (
    CleanCommitLogService,
    CleanConsumeQueueService,
    CleanResourceService,
    DiskCheckService,
)
from pyrocketstore.commit_log import CommitLog
from pyrocketstore.config import FlushDiskType, MessageStoreConfig
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.dispatch import ReputMessageService
from pyrocketstore.env import Env
from pyrocketstore.flush import (
    CommitLogFlush,
    FlushConsumeQueueService,
    FlushRealTimeService,
    GroupCommitService,
)
from pyrocketstore.index_service import IndexService
from pyrocketstore.mapped_file_queue import AllocateMappedFileService
from pyrocketstore.mending import MendService
from pyrocketstore.service_thread import ServiceThread
from pyrocketstore.store_checkpoint import RunningFlags, StoreCheckpoint

__all__ = ["StoreServices"]


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
        mend: Callable[[], bool],
    ) -> None:
        self.config = config
        self.env = env
        self.commit_log = commit_log
        self.dispatcher = dispatcher
        self.allocate_service = allocate_service
        #: started by the first write error
        self.mend_service = MendService(env, mend)
        #: what cleans, None and empty where nothing does
        self.clean_commit_log: CleanCommitLogService | None = None
        self.clean_resource: CleanResourceService | None = None
        self._cleaning: list[ServiceThread] = []
        self.log_flush = CommitLogFlush(commit_log, checkpoint, fail)
        sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.flush_service: GroupCommitService | FlushRealTimeService = (
            GroupCommitService(self.log_flush, config)
            if sync
            else FlushRealTimeService(self.log_flush, config)
        )
        self.flush_queue_service = FlushConsumeQueueService(
            config, checkpoint, consume_queues, queued_timestamp, env.now_ms, fail
        )
        self.reput_service = ReputMessageService(commit_log, dispatcher, appended, moved, fail)

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
        return [
            self.allocate_service,
            self.reput_service,
            self.flush_service,
            self.flush_queue_service,
            *self._cleaning,
        ]

    def start(self) -> None:
        """Start every thread."""
        for service in self.all():
            service.start()

    def stop(self) -> bool:
        """Stop those that write, with no limit of time; call after the last put.

        What they write to must not be unmapped under them, and what they did not force must not
        count as clean. Returns True when everything is dispatched and on the device.
        """
        writing = (self.reput_service, self.flush_service, self.flush_queue_service)
        for service in (self.mend_service, *self._cleaning, *writing):
            service.shutdown(None)
        return (
            self.reput_service.behind() == 0
            and self.flush_queue_service.error is None
            and self.log_flush.error is None
        )
