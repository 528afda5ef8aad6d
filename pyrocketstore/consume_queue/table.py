"""The consume queues of a store: found on disk by `load`, made by the first record of a queue."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.config.file_sizes import MismatchedFile
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.consume_queue._units import unit_at
from pyrocketstore.consume_queue.ext import ConsumeQueueExt
from pyrocketstore.consume_queue.many_queues import correct_min_offsets, only_files
from pyrocketstore.consume_queue.mappings import QueueMappings
from pyrocketstore.consume_queue.mismatched_files import restore_queue
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.queue_recovery import keep_units, recover_queue
from pyrocketstore.consume_queue.topic_buckets import TopicBuckets, bucket_digests
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE, NO_LIMIT
from pyrocketstore.display import logger, shown
from pyrocketstore.errors import StoreCorruptionError, StoreError, StoreFormatError
from pyrocketstore.files.broken_folder import broken_folder
from pyrocketstore.files.mapped_file_queue import MappedFileQueue
from pyrocketstore.files.planned_changes import PlannedChanges
from pyrocketstore.files.queue_directories import find_queues
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.files.temporary_files import (
    remove_temporary_file,
    remove_temporary_queue_files,
)
from pyrocketstore.record._record import record_size_max
from pyrocketstore.record.message import LMQ_PREFIX
from pyrocketstore.system.signal_shield import check_abandoned

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

LOG = logger(__name__)


class ConsumeQueueTable:
    """(topic, queue id) → ConsumeQueue.

    Threads: look-ups from any; `for_dispatch` from the dispatching thread.
    Source: RocketMQ 4.9.3 DefaultMessageStore#consumeQueueTable.
    """

    def __init__(
        self,
        env: Env,
        config: MessageStoreConfig,
        commit_log: CommitLog,
        flags: RunningFlags,
        changes: PlannedChanges,
    ) -> None:
        self.changes = changes
        self.env = env
        self.config = config
        self.commit_log = commit_log
        self.flags = flags
        self.checkpoint: StoreCheckpoint | None = None
        #: called with a byte of the log: makes the records before it and their units durable
        self.flush_up_to: Callable[[int], None] = lambda phy_offset: None
        #: files of queues and ext units of a wrong length or name; `recover` has repaired them
        self.mismatched: list[MismatchedFile] = []
        self.lmq_count = 0
        #: None: the queues of all topics; else those of the others are not loaded, and get no units
        self.only: TopicBuckets | None = None
        #: whether `load` has found a topic that it does not load
        self.has_others = False
        self.path = os.path.join(config.store_path_root_dir, "consumequeue")
        self.ext_path = os.path.join(config.store_path_root_dir, "consumequeue_ext")
        self._topics: dict[str, dict[int, ConsumeQueue]] = {}
        #: increased after each change of `_topics`
        self._changes = 0
        #: every queue, and the number of changes before the list was begun
        self._listed: tuple[int, list[ConsumeQueue]] = (0, [])
        self._min_phy_offset = commit_log.get_min_offset  # one object for all queues
        self._lock = threading.Lock()
        self._refused: set[str] = set()
        self._unrecovered: list[ConsumeQueue] = []
        #: None in a read-only store, which writes to no file
        self.mappings = None
        if not changes.read_only:
            self.mappings = QueueMappings(env, 2 if config.enable_consume_queue_ext else 1)

    def load(self) -> None:
        """Find the queues on disk.

        Raises StoreIOError; StoreCorruptionError when no file has the configured size.

        Source: RocketMQ 4.9.3 DefaultMessageStore#loadConsumeQueue.
        """
        if self.config.enable_consume_queue_ext:
            self.changes.add(partial(self._remove_temporary_files, self.ext_path))
        usual: list[ConsumeQueue] = []
        others: list[ConsumeQueue] = []
        found = find_queues(
            self.env, self.path, on_temporary=self._remove_temporary_file, only=self.only
        )
        self.has_others = False
        for topic, ids, is_link in found:
            check_abandoned()
            if ids is None:
                self.has_others = True
                continue
            self._topics[topic] = {queue_id: self._new(topic, queue_id) for queue_id in ids}
            for queue in self._topics[topic].values():
                (others if is_link or queue.ext is not None else usual).append(queue)
            if not ids:
                del self._topics[topic]
            elif self._is_lmq(topic):
                self.lmq_count += 1
        self._changes += 1
        self._load_queues(usual, others)
        self._check_sizes()

    def _load_queues(self, usual: list[ConsumeQueue], others: list[ConsumeQueue]) -> None:
        """Load the queues, and recover each of `usual` that has one whole file."""
        directories = [queue.mapped_file_queue.store_path for queue in usual]
        size = usual[0].mapped_file_size if usual else 0
        found = only_files(self.env, directories, size, writable=not self.changes.read_only)
        for queue, state in zip(usual, found, strict=True):
            if state is None:
                others.append(queue)
            else:
                queue.load_found(state)
        for queue in others:
            check_abandoned()
            queue.load()
        self._unrecovered = others

    def _check_sizes(self) -> None:
        """Refuse a configured size that the files contradict, before any file is changed."""
        setting = "mapped_file_size_consume_queue (mappedFileSizeConsumeQueue)"
        _check_size([queue.mapped_file_queue for queue in self.all()], setting)
        setting = "mapped_file_size_consume_queue_ext (mappedFileSizeConsumeQueueExt)"
        _check_size([q.ext.mapped_file_queue for q in self.all() if q.ext is not None], setting)

    def _remove_temporary_file(self, path: str) -> None:
        self.changes.add(partial(remove_temporary_file, self.env, path))

    def _remove_temporary_files(self, directory: str) -> None:
        for topic in self.env.listdir(directory):
            path = os.path.join(directory, topic)
            if self.env.is_dir(path):
                remove_temporary_queue_files(self.env, path)

    def recover(self, unsure_from: int | None) -> None:
        """Find the end of each queue.

        Units that name bytes of the log at or after `unsure_from` may be lost in parts; None: no
        units.
        """
        phy_offset = NO_LIMIT if unsure_from is None else unsure_from
        lowest = self.commit_log.get_min_offset()
        broken_path = broken_folder(self.env, self.config.store_path_root_dir)
        for queue in self.all():
            queue.unsure_from = phy_offset
        for queue in self._unrecovered:
            check_abandoned()
            low = max(lowest, queue.removed_before)
            lost = restore_queue(queue, low, self.before_cut, broken_path, self.mismatched)
            lost = close_gaps(queue, low, self.before_cut) or lost
            recover_queue(queue, phy_offset, self.before_cut)
            queue.cut_short |= lost
        self._unrecovered = []

    def before_cut(self) -> None:
        """Have this recovery, or the one after it, put the units again that are cut off."""
        if self.checkpoint is not None:
            self.changes.add(self.checkpoint.uncover_log)

    def all(self) -> list[ConsumeQueue]:
        """Return every queue."""
        # Without a lock, because a signal handler may interrupt any line and call this method.
        changes, (listed_at, queues) = self._changes, self._listed
        if changes != listed_at:
            # Copies, since a dispatch may add a queue or a topic meanwhile.
            topics = list(self._topics.values())
            queues = [queue for topic in topics for queue in list(topic.values())]
            self._listed = changes, queues
        return queues.copy()

    def take_min_offsets(self, topics: Iterable[str]) -> None:
        """Have the queues of these topics use the log's minimums of topics. Raises StoreIOError."""
        lowest = max(0, self.commit_log.get_min_offset())
        for topic in topics:
            removed_before = self.commit_log.min_offsets.of(topic)
            for queue in self.of_topic(topic).values():
                if queue.removed_before != removed_before:
                    queue.removed_before = removed_before
                    queue.correct_min_offset(lowest)

    def recover_offsets(self) -> list[tuple[str, int]]:
        """Set the next offset of each queue in the log, and its minimum.

        Returns the queues with a first file whose messages have all expired. Raises StoreIOError.
        """
        queues, lowest = self.all(), self.commit_log.get_min_offset()
        for queue in queues:
            end = queue.get_max_offset_in_queue()
            self.commit_log.core.set_next_offset(queue.topic, queue.queue_id, end)
        return [
            (queue.topic, queue.queue_id)
            for queue in correct_min_offsets(self.env, queues, lowest)
            if lowest > 0 and len(queue.mapped_file_queue.mapped_files) > 1
        ]

    def end_digests(self) -> bytes:
        """Return, for each bucket of topics, the digest of the first file, the end and the last
        message of each queue."""
        return bucket_digests(
            (
                queue.topic,
                f"{queue.queue_id} {queue.mapped_file_queue.get_min_offset()}"
                f" {queue.core.unit_count} {queue.covered_phy_offset} {queue.topic}",
            )
            for queue in self.all()
        )

    def keys_with_units(self) -> set[tuple[str, int]]:
        """Return (topic, queue id) of each queue that has units."""
        return {(queue.topic, queue.queue_id) for queue in self.all() if queue.core.unit_count > 0}

    def by_topic(self) -> dict[str, dict[int, ConsumeQueue]]:
        """Return {topic: {queue id: queue}}, sorted."""
        return {topic: self.of_topic(topic) for topic in self.topics()}

    def topics(self) -> list[str]:
        """Return the topics that have a queue, sorted."""
        return sorted(self._topics)

    def of_topic(self, topic: str) -> dict[int, ConsumeQueue]:
        """Return {queue id: queue} of a topic, sorted; empty for an unknown topic."""
        return dict(sorted(self._topics.get(topic, {}).items()))

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None."""
        queues = self._topics.get(topic)
        return None if queues is None else queues.get(queue_id)

    def find(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue; an unknown one is returned as an empty queue and not kept.

        Differs: 4.9.3 keeps it, and its table grows with every unknown name.
        """
        queue = self.get(topic, queue_id)
        return self._new(topic, queue_id) if queue is None else queue

    def for_dispatch(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, made if it is new; None for a name that must not become a directory,
        and for a topic that is not loaded."""
        if self.only is not None and topic not in self.only:
            return None
        queue = self.get(topic, queue_id)
        if queue is None:
            if not is_safe_name(topic) or queue_id < 0:
                if topic not in self._refused:
                    self._refused.add(topic)
                    LOG.error("topic %r, queue %d: not a valid name of a directory", topic,
                              queue_id)  # fmt: skip
                return None
            queue = self._new(topic, queue_id)
            if queue.ext is not None:
                _find_ext_files(queue.ext)
            with self._lock:
                queue = self._topics.setdefault(topic, {}).setdefault(queue_id, queue)
                self._changes += 1
            if self._is_lmq(topic):
                self.lmq_count += 1
        return queue

    def remove(self, topic: str, queue_id: int) -> None:
        """Destroy a queue and forget it. After a StoreIOError the queue stays in the table."""
        queue = self.get(topic, queue_id)
        if queue is None:
            return
        queue.destroy()
        with self._lock:
            queues = self._topics.get(topic, {})
            is_known = queues.pop(queue_id, None) is not None
            if not queues:
                self._topics.pop(topic, None)
            self._changes += 1
            if is_known and self._is_lmq(topic):
                self.lmq_count -= 1

    def destroy(self) -> None:
        """Destroy every queue."""
        for queue in self.all():
            self.remove(queue.topic, queue.queue_id)

    def forget(self) -> None:
        """Forget every queue, before another `load`; nothing on disk is touched."""
        with self._lock:
            self._topics.clear()
            self._changes += 1
        self.lmq_count = 0

    def close(self) -> None:
        """Drop all mappings."""
        for queue in self.all():
            queue.shutdown()

    def replace(self, queue: ConsumeQueue) -> None:
        """Let new calls find this object of a queue; calls that have begun keep the old one."""
        with self._lock:
            if self.get(queue.topic, queue.queue_id) is None and self._is_lmq(queue.topic):
                self.lmq_count += 1
            self._topics.setdefault(queue.topic, {})[queue.queue_id] = queue
            self._changes += 1

    def new_queue(self, topic: str, queue_id: int, flags: RunningFlags) -> ConsumeQueue:
        """Return an empty object of a queue that is not in the table.

        `flags` gets the error when one of its units is given up.
        """
        queue = self._new(topic, queue_id)
        queue.flags = flags
        return queue

    def _is_lmq(self, topic: str) -> bool:
        return self.config.enable_lmq and topic.startswith(LMQ_PREFIX)

    def _new(self, topic: str, queue_id: int) -> ConsumeQueue:
        ext = None
        if self.config.enable_consume_queue_ext and not (
            self.config.enable_lmq and topic.startswith(LMQ_PREFIX)
        ):
            ext = ConsumeQueueExt(
                topic,
                queue_id,
                self.ext_path,
                self.config.mapped_file_size_consume_queue_ext,
                self.env,
                by_write=self.config.write_without_mmap,
                changes=self.changes,
            )
        queue = ConsumeQueue(
            topic,
            queue_id,
            self.path,
            self.config.mapped_file_size_consume_queue,
            self.env,
            ext=ext,
            min_phy_offset=self._min_phy_offset,
            flags=self.flags,
            by_write=self.config.write_without_mmap,
            mappings=self.mappings,
            changes=self.changes,
        )
        queue.removed_before = self.commit_log.min_offsets.of(topic)
        queue.flush_up_to = self._flush_up_to
        return queue

    def _flush_up_to(self, phy_offset: int) -> None:
        self.flush_up_to(phy_offset)


def _check_size(sequences: list[MappedFileQueue], setting: str) -> None:
    """Raise StoreCorruptionError when the files have a length other than the configured one."""
    mismatched = [file for files in sequences for file in files.mismatched if file.size > 0]
    if not mismatched or any(files.mapped_files for files in sequences):
        return
    first = mismatched[0]
    proven = any(file.offset > 0 and file.offset % file.size == 0 for file in mismatched)
    if proven or len(mismatched) > 1 or _continues(sequences[0], first):
        raise StoreCorruptionError(
            first.path,
            -1,
            f"{first.reason}: open the store with the {setting} that it was written with",
        )


def _continues(files: MappedFileQueue, file: MismatchedFile) -> bool:
    """Return whether a file that is too long has units after the configured length."""
    if file.size < files.mapped_file_size + CQ_STORE_UNIT_SIZE:
        return False
    unit = unit_at(files.env.read_part(file.path, files.mapped_file_size, CQ_STORE_UNIT_SIZE))
    return unit is not None and unit[0] >= 0 and 0 < unit[1] <= record_size_max()


def _find_ext_files(ext: ConsumeQueueExt) -> None:
    """Append the ext units of a new queue after ext units that are left of an earlier one."""
    try:
        ext.load()
        ext.recover()
    except StoreError as error:
        LOG.error("%s/%d: ext units cannot be stored: %s", ext.topic, ext.queue_id, error)


def close_gaps(queue: ConsumeQueue, min_phy_offset: int, before_cut: Callable[[], None]) -> bool:
    """Remove gaps from the file sequence of a queue.

    Where the log has no record of the missing units any more, the files before the gap are deleted;
    else the files after it are cut off, their units must be put again from the log, and the result
    is True.

    Differs: 4.9.3 keeps the gap.
    """
    files = queue.mapped_file_queue
    size = files.mapped_file_size
    lost = False
    while True:
        sequence = files.mapped_files
        gaps = [
            i
            for i in range(1, len(sequence))
            if sequence[i].file_from_offset != sequence[i - 1].file_from_offset + size
        ]
        if not gaps:
            return lost
        before, after = sequence[gaps[-1] - 1], sequence[gaps[-1]]
        LOG.warning("%s: the file before it is missing", after.path)
        unit = after.read(0, 12)
        phy_offset, unit_size = (
            int.from_bytes(p, "big", signed=True) for p in (unit[:8], unit[8:])
        )
        if unit_size > 0 and phy_offset <= min_phy_offset:
            files.delete_files_before(after.file_from_offset)
        else:
            lost = True
            before_cut()
            keep_units(queue, before.file_from_offset + size)
            files.truncate_dirty_files(before.file_from_offset + size)


def is_safe_name(name: str) -> bool:
    """Return True when a name may become a directory below the store."""
    if name in ("", ".", "..") or len(name.encode("utf-8", "surrogatepass")) > 255:
        return False
    return "/" not in name and "\\" not in name and "\0" not in name


def no_queue(topic: str) -> StoreFormatError:
    """Return the error for a topic that cannot have a queue."""
    return StoreFormatError(f"{shown(topic)} cannot be the name of a directory, so it has no queue")
