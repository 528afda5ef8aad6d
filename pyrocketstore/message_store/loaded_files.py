"""LoadedFiles: the files of a store that was loaded, and how they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.consume_queue.queue import flush_queues
from pyrocketstore.consume_queue.table import ConsumeQueueTable
from pyrocketstore.consume_queue.topic_buckets import TopicBuckets
from pyrocketstore.files.allocate_mapped_file_service import AllocateMappedFileService
from pyrocketstore.files.file_systems import FileSystems
from pyrocketstore.files.planned_changes import changes_of
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.flush.index_flush import IndexFlush
from pyrocketstore.index.gaps import uncovered
from pyrocketstore.reading.rocketmq_reads import StoreReads
from pyrocketstore.recovery.recovery_plan import RecoveryPlan
from pyrocketstore.recovery.store_files import StoreFiles
from pyrocketstore.system._env import Event
from pyrocketstore.system.env import Env
from pyrocketstore.system.life_state import set_by_load

__all__ = ["LoadedFiles"]


class LoadedFiles(StoreFiles):
    """The files of a store, with the plan of its recovery.

    `refresh` may give a store another object; who has this one can read it until the store is shut
    down. Threads: any.

    Parameters
    ----------
    env : Env
    config : MessageStoreConfig, with absolute paths
    read_only : bool
    appended : Event, signalled by appends
    allocate_service : makes the files of the log; None in a read-only store
    on_new_queue : callable(topic, queue_id), called before the first put to a queue
    only : TopicBuckets or None: the queues that are loaded; of the others nothing is known
    """

    reads: StoreReads = set_by_load()
    #: None: messages are not indexed, or the store is read-only
    index_flush: IndexFlush | None = set_by_load()

    def __init__(
        self,
        env: Env,
        config: MessageStoreConfig,
        *,
        read_only: bool,
        appended: Event,
        allocate_service: AllocateMappedFileService | None = None,
        on_new_queue: Callable[[str, int], None] | None = None,
        only: TopicBuckets | None = None,
    ) -> None:
        changes = changes_of(read_only=read_only)
        log = CommitLog(
            env,
            config,
            appended,
            allocate_service=allocate_service,
            on_new_queue=on_new_queue,
            changes=changes,
        )
        table = ConsumeQueueTable(env, config, log, RunningFlags(), changes)
        table.only = only
        super().__init__(table)

    def flush_recovered(self, file_systems: FileSystems) -> None:
        """Flush what recovery has changed in a store whose services were not started.

        Raises StoreIOError.
        """
        flush_queues(self.consume_queues(), file_systems)
        while not self.commit_log.mapped_file_queue.flush(0):
            pass

    @property
    def unmade(self) -> RecoveryPlan | None:
        """The plan of a read-only opening, which was made in memory alone; else None."""
        return self.plan if self.read_only else None

    def uncovered_by_index(self) -> list[tuple[int, int]]:
        """Return ranges [begin, end) of the log, bytes, that may hold keys that the index lacks.

        Raises StoreIOError.
        """
        keyless = () if self.plan is None else self.plan.keyless
        begin, end = max(0, self.commit_log.get_min_offset()), self.commit_log.get_max_offset()
        parts = uncovered(self.index_service.files, self.commit_log, begin, end)
        return [part for part in parts if part not in keyless]

    def last_record(self) -> int:
        """Return a byte of the log at which its last record may begin; -1 without one."""
        last = int(self.dispatcher.last_phy_offset)
        return self.plan.last_record if last < 0 and self.plan is not None else last

    def close(self) -> None:
        """Close files and mappings, once no thread writes; also what a failed load has opened."""
        self.changes.forget()
        with contextlib.ExitStack() as rest:  # close each one, whatever another one raises
            rest.callback(self.commit_log.mapped_file_queue.shutdown, 0)
            rest.callback(self.queue_table.close)
            # A failed load may not have made these.
            if "index_service" in self.__dict__:
                rest.callback(self.index_service.shutdown)
            if "dispatcher" in self.__dict__:
                rest.callback(self.dispatcher.set_index_file, None)
            rest.callback(self.commit_log.close)
