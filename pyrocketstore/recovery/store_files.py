"""The files of one store: its log, and the queues and the index that are derived from it."""

from __future__ import annotations

from collections.abc import Mapping

from pyrocketstore.commit_log.log_end import start_file
from pyrocketstore.commit_log.topic_min_offset_file import TopicMinOffsetFile
from pyrocketstore.consume_queue.table import ConsumeQueueTable
from pyrocketstore.dispatch._dispatcher import Dispatcher
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.index.index_service import IndexService
from pyrocketstore.index.sync_point import Flushed, SyncPoint
from pyrocketstore.recovery.clean_stop import NO_INDEX, CleanStopFile, DerivedEnds
from pyrocketstore.recovery.loss_notices import LossNotices
from pyrocketstore.recovery.recovery_plan import RecoveryPlan
from pyrocketstore.system.life_state import set_by_load

__all__ = ["StoreFiles"]


class StoreFiles:
    """The files of one store, which recovery reads and changes; of a read-only store in memory.

    Parameters
    ----------
    queue_table : the queues, with the log from which they are derived

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

    def __init__(self, queue_table: ConsumeQueueTable) -> None:
        self.queue_table, self.commit_log = queue_table, queue_table.commit_log
        self.env, self.config = queue_table.env, queue_table.config
        self.changes = queue_table.changes
        self.read_only = self.changes.read_only
        self.running_flags, self.only = queue_table.flags, queue_table.only
        self.root = self.config.store_path_root_dir
        self.topic_minimums = TopicMinOffsetFile(self.env, self.root)
        self.loss_notices = LossNotices(self.env, self.root)
        self.clean_stop = CleanStopFile(self.env, self.root, self.commit_log)
        #: queues with a first file whose messages have all expired: its owner deletes it soon
        self.expired_in: list[tuple[str, int]] = []
        # Every queue that is known.
        self.consume_queues = queue_table.all

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

    def unsure_from(self, *, clean: bool) -> int | None:
        """Return the physical offset from which on the exit may have lost data; None: nowhere."""
        files = self.commit_log.mapped_file_queue.mapped_files
        first = self.first_to_scan(clean=clean)
        return None if clean or not files else files[first].file_from_offset

    def mismatched(self) -> list[tuple[str, str]]:
        """Return (path, reason) of files of log and queues of a wrong length or name."""
        files = [*self.commit_log.mapped_file_queue.mismatched, *self.queue_table.mismatched]
        return [(file.path, file.reason) for file in files]

    @property
    def index_enabled(self) -> bool:
        """True when messages are indexed and the index can be read."""
        known = self.index_service.geometry_error is None
        return self.config.message_index_enable and known

    def derived_ends(self) -> DerivedEnds:
        """Return the ends of queues and index as `clean_stop` has them."""
        end = self.index_service.end_phy_offset if self.index_enabled else NO_INDEX
        return DerivedEnds(end, self.queue_table.end_digests())

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
        topics = {**self.commit_log.min_offsets.by_topic(), **table}
        self.commit_log.set_min_offsets(table)
        self.dispatcher.remove_before(self.commit_log.min_offsets)
        self.queue_table.take_min_offsets(topics)

    def recover_topic_queue_table(self) -> None:
        """Set each queue's next offset and minimum from its consume queue.

        Source: RocketMQ 4.9.3 DefaultMessageStore#recoverTopicQueueTable.
        Differs: also for LMQ queues, whose counters 4.9.3 loses at a restart.
        """
        self.expired_in = self.queue_table.recover_offsets()
