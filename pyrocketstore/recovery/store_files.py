"""The files of one store: its log, and the queues and the index that are derived from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyrocketstore.commit_log._scan import TopicMinOffsets
from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.commit_log.log_end import start_file
from pyrocketstore.commit_log.topic_min_offset_file import TopicMinOffsetFile
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.consume_queue.many_queues import correct_min_offsets
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.table import ConsumeQueueTable
from pyrocketstore.consume_queue.topic_buckets import TopicBuckets
from pyrocketstore.dispatch._dispatcher import Dispatcher
from pyrocketstore.files.allocate_mapped_file_service import AllocateMappedFileService
from pyrocketstore.files.planned_changes import PlannedChanges
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.index.index_service import IndexService
from pyrocketstore.index.sync_point import SyncPoint
from pyrocketstore.record._record import allow_records
from pyrocketstore.recovery.clean_stop import CleanStopFile, DerivedEnds, derived_ends
from pyrocketstore.recovery.flushed import Flushed
from pyrocketstore.recovery.loss_notices import LossNotices
from pyrocketstore.recovery.recovery_plan import RecoveryPlan
from pyrocketstore.system._env import Event
from pyrocketstore.system.env import Env
from pyrocketstore.system.life_state import set_by_load

__all__ = ["StoreFiles"]


class StoreFiles:
    """The files of one store, which recovery reads and changes; of a read-only store in memory.

    Parameters
    ----------
    env : Env
    config : MessageStoreConfig, with absolute paths
    read_only : bool
    appended : Event, signalled by appends
    allocate_service : makes the files of the log; None in a read-only store
    on_new_queue : callable(topic, queue_id), called before the first put to a queue
    only : TopicBuckets or None: the queues that are loaded; of the others nothing is known

    An attribute that `load` has not set yet raises StoreStateError. The object knows no thread, no
    put and no lock. When `refresh` loads a store again, it makes another object.
    """

    #: when a process had opened the store for writing the last time before (Unix ms); -1: never
    locked_before_ms: int = set_by_load()
    flushed: Flushed = set_by_load()
    checkpoint: StoreCheckpoint = set_by_load()
    index_service: IndexService = set_by_load()
    dispatcher: Dispatcher = set_by_load()
    #: None before the first load
    plan: RecoveryPlan | None = None

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
        allow_records(config.max_message_size)
        self.env, self.config, self.read_only = env, config, read_only
        self.root = config.store_path_root_dir
        self.running_flags = RunningFlags()
        self.changes = PlannedChanges(read_only=read_only)
        self.commit_log = CommitLog(
            env,
            config,
            appended,
            read_only=read_only,
            allocate_service=allocate_service,
            on_new_queue=on_new_queue,
            changes=self.changes,
        )
        self.queue_table = ConsumeQueueTable(
            env, config, self.commit_log, self.running_flags, read_only, self.changes
        )
        self.only = self.queue_table.only = only
        self.topic_minimums = TopicMinOffsetFile(env, self.root)
        self.loss_notices = LossNotices(env, self.root)
        self.clean_stop = CleanStopFile(env, self.root, self.commit_log)
        #: queues with a first file whose messages have all expired: its owner deletes it soon
        self.expired_in: list[tuple[str, int]] = []

    def consume_queues(self) -> list[ConsumeQueue]:
        """Return every queue that is known."""
        return self.queue_table.all()

    def first_to_scan(self, *, clean: bool) -> int:
        """Return the number of the log file with which the scan begins after a clean or an unclean
        exit."""
        config, checkpoint = self.config, self.checkpoint
        limit = None
        if not clean and config.message_index_enable and config.message_index_safe:
            limit = checkpoint.get_min_timestamp_index()
        elif not clean:
            limit = checkpoint.get_min_timestamp()
        return start_file(self.commit_log.mapped_file_queue.mapped_files, limit)

    def mismatched(self) -> list[tuple[str, str]]:
        """Return (path, reason) of files of log and queues of a wrong length or name."""
        files = [*self.commit_log.mapped_file_queue.mismatched, *self.queue_table.mismatched]
        return [(file.path, file.reason) for file in files]

    def unsure_from(self, *, clean: bool) -> int | None:
        """Return the physical offset from which on the exit may have lost data; None: nowhere."""
        files = self.commit_log.mapped_file_queue.mapped_files
        first = self.first_to_scan(clean=clean)
        return None if clean or not files else files[first].file_from_offset

    @property
    def index_enabled(self) -> bool:
        """True when messages are indexed and the index can be read."""
        known = self.index_service.geometry_error is None
        return self.config.message_index_enable and known

    def derived_ends(self) -> DerivedEnds:
        """Return the ends of queues and index as `clean_stop` has them."""
        files = self.index_service.files if self.index_enabled else None
        return derived_ends(self.consume_queues(), files)

    def has_record(self, point: SyncPoint) -> bool:
        """Return True if the log has the record of a sync point, and the record of its last index
        entry with the time of that entry.

        False with ext units: recovery writes all of the scanned records again, since nothing else
        shows whether the address of a unit is right.
        """
        if self.config.enable_consume_queue_ext:
            return False
        log = self.commit_log
        if point.name and (
            point.end_phy_offset > point.last_phy_offset
            or log.stored_at(point.end_phy_offset) != point.end_timestamp
        ):
            return False
        mark = log.record_mark(point.last_phy_offset)
        return mark == (point.phy_offset - point.last_phy_offset, point.record_crc)

    def newest_store_timestamp(self) -> int:
        """Return the store time (ms) of the newest record that is in a queue, 0 without any."""
        queues = [queue for queue in self.consume_queues() if queue.max_physic_offset >= 0]
        newest = max(queues, key=lambda queue: queue.max_physic_offset, default=None)
        unit = None if newest is None else newest.reader.last_unit()
        return 0 if unit is None else max(0, self.commit_log.pickup_store_timestamp(*unit[:2]))

    def dispatch_behind_bytes(self) -> int:
        """Return the bytes of the log that are not dispatched yet."""
        return self.commit_log.get_max_offset() - int(self.dispatcher.position)

    def set_min_offsets(self, table: Mapping[str, int]) -> None:
        """Have dispatch, scans and queues use {topic: byte of the log}, before which its messages
        are removed, from now on; only while nothing is dispatched. Raises StoreIOError."""
        before = self.commit_log.min_offsets.by_topic()
        self.commit_log.min_offsets = found = TopicMinOffsets(table)
        self.dispatcher.remove_before(found)
        lowest = max(0, self.commit_log.get_min_offset())
        for topic in {**before, **table}:
            for queue in self.queue_table.of_topic(topic).values():
                if queue.removed_before != found.of(topic):
                    queue.removed_before = found.of(topic)
                    queue.correct_min_offset(lowest)

    def recover_topic_queue_table(self) -> None:
        """Set each queue's next offset and minimum from its consume queue.

        Source: RocketMQ 4.9.3 DefaultMessageStore#recoverTopicQueueTable.
        Differs: also for LMQ queues, whose counters 4.9.3 loses at a restart.
        """
        queues, lowest = self.consume_queues(), self.commit_log.get_min_offset()
        for queue in queues:
            end = queue.get_max_offset_in_queue()
            self.commit_log.core.set_next_offset(queue.topic, queue.queue_id, end)
        self.expired_in = [
            (queue.topic, queue.queue_id)
            for queue in correct_min_offsets(self.env, queues, lowest)
            if lowest > 0 and len(queue.mapped_file_queue.mapped_files) > 1
        ]
