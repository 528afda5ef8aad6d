"""Load the files of a store: find them, recover, and make what reads and dispatches them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace

from pyrocketstore.arguments.scalars import QUEUE_ID_MAX
from pyrocketstore.commit_log.log_end import check_not_newer
from pyrocketstore.commit_log.other_formats import check_checkpoint, why_checkpoint_is_damaged
from pyrocketstore.config.message_store_config import BrokerRole
from pyrocketstore.consume_queue.multi_dispatch import put_unit
from pyrocketstore.consumer.offsets import ConsumerOffsets
from pyrocketstore.dispatch._dispatcher import Dispatcher
from pyrocketstore.dispatch.observers import BitMap
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreError, StoreIOError
from pyrocketstore.files.abort_file import AbortFile
from pyrocketstore.files.file_systems import FileSystems
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.flush.index_flush import IndexFlush
from pyrocketstore.index._file import IndexFile
from pyrocketstore.index.geometry import usual_geometry
from pyrocketstore.index.index_service import IndexService
from pyrocketstore.index.sync_point import SyncPointFile, read_flushed
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.message_store.lost_ends import lost_end
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.reading.rocketmq_reads import StoreReads
from pyrocketstore.record.message import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from pyrocketstore.recovery.apply import (
    Applying,
    ApplyingToWrite,
    keep_lost_messages,
    unforced_directories,
)
from pyrocketstore.recovery.plan import Planning, PlanningToWrite
from pyrocketstore.recovery.recovery_plan import RecoveryPlan
from pyrocketstore.results import DispatchRequest
from pyrocketstore.schedule.delay_offsets import DelayOffsets
from pyrocketstore.schedule.pending import real_queues
from pyrocketstore.system._env import Event

__all__ = ["Loading", "LoadingToWrite"]

LOG = logger(__name__)


class _Entries:
    """The calls of a dispatcher for units and keys that its compiled loop does not put.

    It refers to parts of the files alone, so that files that are replaced end at once.
    """

    def __init__(self, files: LoadedFiles, bit_map: BitMap | None) -> None:
        self._log, self._table, self._index = (
            files.commit_log,
            files.queue_table,
            files.index_service,
        )
        self._flags, self._read_only = files.running_flags, files.read_only
        self._lmq, self._root = files.config.enable_lmq, files.root
        self._bit_map = bit_map

    def put_unit(self, request: DispatchRequest, multi: bool) -> None:
        """Put one record into its queue, and into the further queues that it names."""
        if self._bit_map is not None:
            request.bit_map = self._bit_map(request.topic, request.properties_map)
        find, minimums = self._table.for_dispatch, self._log.min_offsets
        put_unit(request, find, multi=multi, enable_lmq=self._lmq, min_offsets=minimums)

    def put_keys(self, request: DispatchRequest) -> IndexFile | None:
        """Put the keys of one record into the index."""
        self._index.build_index(request)
        return self._index.retry_get_and_create_index_file()

    def note_error(self, kind: str, topic: str, queue_id: int, error_number: int) -> None:
        """Note that a unit or a key could not be written."""
        reason = os.strerror(error_number) if error_number else "no file"
        # A read-only store raises the error, or is loaded again.
        log = LOG.info if self._read_only else LOG.error
        log("the %s entry of %s-%d could not be written: %s", kind, topic, queue_id, reason)
        # A queue that got no file has reported its own error, unless puts had ended before.
        error_number = error_number or errno.EIO
        if kind == "queue":
            path = os.path.join(self._table.path, topic, str(queue_id))
            self._flags.make_logics_queue_error(StoreIOError(error_number, "append", path))
        else:
            files = self._index.files
            path = (files[-1].path if files else None) or os.path.join(self._root, "index")
            self._flags.make_index_file_error(StoreIOError(error_number, "append", path))


class Loading:
    """Load the files of a read-only store; recovery changes nothing but memory.

    Parameters
    ----------
    files : LoadedFiles, not loaded
    moved : Event, signalled by the dispatcher
    topics, delay_offsets : files of `config` that are completed after an unclean exit, or None

    Threads: one. Source: RocketMQ 4.9.3 DefaultMessageStore#load.
    """

    planning: type[Planning] = Planning
    applying: type[Applying] = Applying

    def __init__(
        self,
        files: LoadedFiles,
        moved: Event,
        topics: TopicConfigFile | None = None,
        delay_offsets: DelayOffsets | None = None,
    ) -> None:
        self.files, self.env, self.config, self.root = files, files.env, files.config, files.root
        self._moved, self._topics, self._delay_offsets = moved, topics, delay_offsets
        self._abort_file = AbortFile(self.env, os.path.join(self.root, "abort"))
        self._bit_map: BitMap | None = None

    def load(self) -> None:
        """Raises StoreCorruptionError, StoreIOError."""
        files = self.files
        files.changes.plan()
        self._load_config()
        clean = not self._abort_file.exists()
        files.flushed = read_flushed(self.env, self.root)
        files.topic_minimums.read(files.changes)
        files.commit_log.load()
        self._check_log()
        files.topic_minimums.load(files.commit_log, files.changes)
        files.commit_log.min_offsets = files.topic_minimums.offsets()
        files.queue_table.load()
        files.checkpoint = StoreCheckpoint(
            self.env,
            os.path.join(self.root, "checkpoint"),
            damage=why_checkpoint_is_damaged(self.env, self.config),
            changes=files.changes,
        )
        files.index_service = self._new_index()
        files.index_service.load(clean, files.has_record)
        files.queue_table.checkpoint = files.checkpoint
        files.commit_log.begin_file = files.checkpoint.begin_log_file
        files.dispatcher = self._new_dispatcher()
        files.index_flush = self._new_index_flush()
        files.queue_table.recover(files.unsure_from(clean=clean))
        plan = files.plan = self._make_plan(clean)
        try:
            files.plan = self._apply(plan)
        finally:
            plan.chunks.clear()
        self._complete_removals(plan)
        files.recover_topic_queue_table()
        self._complete_topics(plan)
        self._lower_positions()
        files.reads = StoreReads(
            self.env, self.config, files.commit_log, files.queue_table, files.index_service
        )

    # ---- the steps that a writer extends ---------------------------------------------------------

    def _load_config(self) -> None:
        if self._topics is not None:
            self._topics.load()

    def _check_log(self) -> None:
        """Refuse a log that must not be written."""

    def _new_index_flush(self) -> IndexFlush | None:
        return None

    def _before_changes(self, plan: RecoveryPlan) -> RecoveryPlan:
        """Note what an opening for writing has not reported to its caller."""
        notices = self.files.loss_notices
        begin = "an opening for writing ended before it could warn, and the next one warns again"
        try:
            texts = [f"{notices.path}: {begin}: {text}" for text in notices.read()]
        except StoreIOError as error:  # no other file depends on it
            LOG.warning("warnings of lost messages cannot be read: %s", error)
            return plan
        return replace(plan, loss_notices=texts)

    def _apply(self, plan: RecoveryPlan) -> RecoveryPlan:
        applying = self.applying(self.files, plan)
        applying.apply_plan()
        return replace(plan, keyless=applying.keyless)

    def _complete_removals(self, plan: RecoveryPlan) -> None:
        """Complete removals of topics that were interrupted."""

    def _lower_positions(self) -> None:
        """Lower the positions of groups that are behind the ends of their queues."""

    # ---- the steps of all ------------------------------------------------------------------------

    def _new_index(self) -> IndexService:
        config, files = self.config, self.files

        def given(name: str) -> int | None:
            """Return a setting, or None if it must be inferred from the files."""
            return int(getattr(config, name)) if name in config.given else None

        return IndexService(
            self.env,
            os.path.join(self.root, "index"),
            given("max_hash_slot_num"),
            given("max_index_num"),
            files.checkpoint,
            files.running_flags,
            sync_point_file=SyncPointFile(self.env, self.root),
            usual=usual_geometry(config.mapped_file_size_commit_log),
            changes=files.changes,
        )

    def _new_dispatcher(self) -> Dispatcher:
        files = self.files
        entries = _Entries(files, self._bit_map)
        return Dispatcher(
            on_new_queue=files.queue_table.for_dispatch,
            on_queue_record=entries.put_unit,
            on_index_file=files.index_service.retry_get_and_create_index_file,
            on_index_record=entries.put_keys,
            on_error=entries.note_error,
            delay_levels=files.commit_log.delay_levels,
            index_enabled=files.index_enabled,
            multi_dispatch=self.config.enable_multi_dispatch,
            moved=self._moved,
            min_offsets=files.commit_log.min_offsets,
        )

    def _make_plan(self, clean: bool) -> RecoveryPlan:
        """Return the plan. Until then no file has changed; a writable store then keeps what it will
        remove, makes `abort`, and makes the changes that were planned."""
        plan = self.planning(self.files, clean).make_plan()
        return self._before_changes(plan)

    def _complete_topics(self, plan: RecoveryPlan) -> None:
        """Have the topics added to topics.json that an unclean exit may have left out of it.

        Before the checkpoint covers a message, the file has its topic.
        """
        if plan.clean:
            return
        if self._delay_offsets is not None:
            self._delay_offsets.note_unclean_stop()
        if self._topics is None:
            return
        self._topics.note_unclean_stop()
        files = self.files
        for queue in files.consume_queues():
            light = self.config.enable_lmq and queue.is_lmq
            possible = 0 <= queue.queue_id <= QUEUE_ID_MAX
            if possible and not light and queue.covered_phy_offset > plan.scan_from:
                self._topics.request(queue.topic, queue.queue_id)
        for topic, queue_id in real_queues(files.commit_log, files.queue_table, plan.scan_from):
            if queue_id <= QUEUE_ID_MAX:
                self._topics.request(topic, queue_id)


class LoadingToWrite(Loading):
    """Load the files of a store that is opened for writing; its directory is locked.

    Parameters
    ----------
    files, moved, topics, delay_offsets : as of Loading
    file_systems : make the names of files durable
    bit_map : callable() -> the filter bit maps of messages, or None
    complete_removals : callable(), completes removals of topics that were interrupted
    replay_observed : callable(plan), calls a program's dispatchers for the records that recovery
        has read

    Durability: cuts and rebuilt units are in the page cache; `abort` exists before data is changed.
    """

    planning = PlanningToWrite
    applying = ApplyingToWrite

    def __init__(
        self,
        files: LoadedFiles,
        moved: Event,
        topics: TopicConfigFile | None,
        delay_offsets: DelayOffsets,
        *,
        file_systems: FileSystems,
        bit_map: Callable[[], BitMap | None],
        complete_removals: Callable[[], None],
        replay_observed: Callable[[RecoveryPlan], None],
    ) -> None:
        super().__init__(files, moved, topics, delay_offsets)
        self._offsets_to_load = delay_offsets
        self._file_systems = file_systems
        self._find_bit_map = bit_map
        self._complete, self._replay_observed = complete_removals, replay_observed

    def load(self) -> None:
        """As `Loading.load`. Raises StoreFormatError: 5.x has written the checkpoint."""
        check_checkpoint(self.env, self.config)
        super().load()

    def _load_config(self) -> None:
        super()._load_config()
        self._offsets_to_load.load()
        self._bit_map = self._find_bit_map()

    def _check_log(self) -> None:
        check_not_newer(self.files.commit_log.mapped_file_queue.mapped_files)

    def _new_index_flush(self) -> IndexFlush | None:
        files = self.files
        if not files.index_enabled or self.config.enable_consume_queue_ext:
            return None
        dispatcher = files.dispatcher
        return IndexFlush(
            files.commit_log,
            files.index_service,
            lambda: int(dispatcher.last_phy_offset),
            files.running_flags.is_complete,
        )

    def _before_changes(self, plan: RecoveryPlan) -> RecoveryPlan:
        """Keep what recovery will remove, make `abort`, then the changes that were planned."""
        files = self.files
        lost = str(lost_end(files, plan, plan.beyond) or "")
        plan = keep_lost_messages(files, replace(plan, lost=lost))
        if plan.unscanned_to < 0:
            files.clean_stop.remove()
        self._abort_file.create()
        files.changes.make()
        return plan

    def _apply(self, plan: RecoveryPlan) -> RecoveryPlan:
        plan = super()._apply(plan)
        if not plan.clean and not plan.empty:
            rewrite = self._abort_file.is_marked()
            self._fsync_again(unforced_directories(self.files, plan, rewrite=rewrite))
        return plan

    def _fsync_again(self, directories: list[str]) -> None:
        self._file_systems.fsync_directories(directories)

    def _complete_removals(self, plan: RecoveryPlan) -> None:
        self._complete()
        if not plan.clean:
            self._replay_observed(plan)

    def _lower_positions(self) -> None:
        """Have groups read from the ends of queues that have lost messages, now or under another
        process: new ones get the queue offsets of those, before the group is used."""
        files = self.files
        if self.config.broker_role is BrokerRole.SLAVE:
            return  # the positions are the master's, whose queues are longer
        if files.running_flags.is_logics_queue_error():
            return  # the next opening has the ends
        offsets = ConsumerOffsets(self.env, self.root, lmq=self.config.enable_lmq)
        try:
            offsets.load()
        except StoreError as error:  # no group can use the positions either
            LOG.warning("positions of groups may be after the ends of queues: %s", error)
            return

        def range_of(topic: str, queue_id: int) -> tuple[int, int]:
            queue = files.queue_table.get(topic, queue_id)
            end = 0 if queue is None else queue.get_max_offset_in_queue()
            if queue is None or topic not in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC):
                return end, end
            # Half messages before a position that is not of this queue may be undecided.
            return queue.first_readable_offset(max(0, files.commit_log.get_min_offset())), end

        count = offsets.lower(range_of)
        if count:
            offsets.persist()
            LOG.warning("%s: %d positions were set to the ends of queues", offsets.path, count)
