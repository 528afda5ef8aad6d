"""The threads of a running store: started together, stopped in the order that loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyrocketstore._dispatch import Dispatcher
from pyrocketstore._env import Event
from pyrocketstore.commit_log import CommitLog
from pyrocketstore.config import FlushDiskType, MessageStoreConfig
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.dispatch import ReputMessageService
from pyrocketstore.env import Env
from pyrocketstore.flush import (
    CommitLogFlush,
    CommitRealTimeService,
    FlushConsumeQueueService,
    FlushRealTimeService,
    GroupCommitService,
)
from pyrocketstore.mapped_file_queue import AllocateMappedFileService
from pyrocketstore.service_thread import ServiceThread
from pyrocketstore.store_checkpoint import StoreCheckpoint

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
    ) -> None:
        self.allocate_service = allocate_service
        self.log_flush = CommitLogFlush(commit_log, checkpoint, fail)
        sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.flush_service: GroupCommitService | FlushRealTimeService = (
            GroupCommitService(self.log_flush, config)
            if sync
            else FlushRealTimeService(self.log_flush, config)
        )
        #: with a transient store pool alone
        self.commit_service: CommitRealTimeService | None = None
        if isinstance(self.flush_service, FlushRealTimeService) and allocate_service.pool:
            self.commit_service = CommitRealTimeService(
                commit_log, config, self.flush_service.on_committed, fail
            )
        self.flush_queue_service = FlushConsumeQueueService(
            config, checkpoint, consume_queues, queued_timestamp, env.now_ms, fail
        )
        self.reput_service = ReputMessageService(commit_log, dispatcher, appended, moved, fail)

    def all(self) -> list[ServiceThread]:
        """Every service, in the order in which they start."""
        commits = [] if self.commit_service is None else [self.commit_service]
        return [
            self.allocate_service,
            *commits,
            self.reput_service,
            self.flush_service,
            self.flush_queue_service,
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
        writers = [s for s in self.all() if s is not self.allocate_service]
        for service in writers:
            service.shutdown(None)
        return (
            self.reput_service.behind() == 0
            and (self.commit_service is None or self.commit_service.error is None)
            and self.flush_queue_service.error is None
            and self.log_flush.error is None
        )
