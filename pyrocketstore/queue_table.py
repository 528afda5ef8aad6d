"""The consume queues of a store: found on disk, made when a record asks for one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyrocketstore._consume_queue import unit_at
from pyrocketstore._record import record_size_max
from pyrocketstore.broken_folder import broken_folder
from pyrocketstore.commit_log import CommitLog
from pyrocketstore.config import MessageStoreConfig
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.consume_queue_ext import ConsumeQueueExt
from pyrocketstore.display import logger, shown
from pyrocketstore.errors import StoreCorruptionError, StoreError, StoreFormatError
from pyrocketstore.file_sizes import MismatchedFile
from pyrocketstore.mapped_file_queue import MappedFileQueue
from pyrocketstore.message import LMQ_PREFIX
from pyrocketstore.mismatched_files import restore_queue
from pyrocketstore.new_files import remove_temporary_queue_files
from pyrocketstore.queue_directories import find_queues
from pyrocketstore.queue_units import CQ_STORE_UNIT_SIZE
from pyrocketstore.shield import check_abandoned
from pyrocketstore.store_checkpoint import RunningFlags, StoreCheckpoint

if TYPE_CHECKING:
    from pyrocketstore.env import Env

LOG = logger(__name__)

#: Together with the dispatcher's own, well below vm.max_map_count's 65530.
ATTACHED_MAX = 16384


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
        read_only: bool,
    ) -> None:
        self.env = env
        self.config = config
        self.commit_log = commit_log
        self.flags = flags
        self.read_only = read_only
        self.checkpoint: StoreCheckpoint | None = None
        #: `recover` has taken units away that the log must give again
        self.has_cut = False
        #: files of queues and ext units whose length or name was wrong; `recover` restored them
        self.mismatched: list[MismatchedFile] = []
        self.lmq_count = 0
        self.path = os.path.join(config.store_path_root_dir, "consumequeue")
        self.ext_path = os.path.join(config.store_path_root_dir, "consumequeue_ext")
        self._table: dict[tuple[str, int], ConsumeQueue] = {}
        self._lock = threading.Lock()
        self._refused: set[str] = set()
        self._attached: dict[tuple[str, int], ConsumeQueue] = {}

    def load(self) -> None:
        """Find the queues on disk.

        Raises StoreIOError; StoreCorruptionError where no file has the size that is configured.

        Source: RocketMQ 4.9.3 DefaultMessageStore#loadConsumeQueue.
        """
        for topic, ids in find_queues(self.env, self.path):
            check_abandoned()
            self._remove_temporary_files(topic)
            for queue_id in ids:
                queue = self._new(topic, queue_id)
                queue.load()
                self._table[topic, queue_id] = queue
            if ids and self._is_lmq(topic):
                self.lmq_count += 1
        self._check_sizes()

    def _check_sizes(self) -> None:
        """Refuse a configured size that the files contradict: none may be changed by mistake."""
        setting = "mapped_file_size_consume_queue (mappedFileSizeConsumeQueue)"
        _check_size([queue.mapped_file_queue for queue in self.all()], setting)
        setting = "mapped_file_size_consume_queue_ext (mappedFileSizeConsumeQueueExt)"
        _check_size([q.ext.mapped_file_queue for q in self.all() if q.ext is not None], setting)

    def _remove_temporary_files(self, topic: str) -> None:
        if self.read_only:
            return
        remove_temporary_queue_files(self.env, os.path.join(self.path, topic))
        if self.config.enable_consume_queue_ext:
            ext_path = os.path.join(self.ext_path, topic)
            remove_temporary_queue_files(self.env, ext_path)

    def recover(self, phy_offset: int) -> None:
        """Find the end of each queue; what lies behind `phy_offset` (bytes of the log) may have
        been lost in parts."""
        lowest = self.commit_log.get_min_offset()
        broken_path = broken_folder(self.env, self.config.store_path_root_dir)
        for queue in self.all():
            check_abandoned()
            queue.unsure_from = phy_offset
            lost = restore_queue(queue, lowest, self._before_cut, broken_path, self.mismatched)
            lost = close_gaps(queue, lowest, self._before_cut) or lost
            queue.recover(phy_offset, self._before_cut)
            queue.cut_short |= lost

    def _before_cut(self) -> None:
        """What goes now is given again by this recovery, or by the one after it."""
        if not self.read_only and self.checkpoint is not None:
            self.has_cut = True
            self.checkpoint.uncover_log()

    def all(self) -> list[ConsumeQueue]:
        """Every queue."""
        return list(self._table.values())

    def by_topic(self) -> dict[str, dict[int, ConsumeQueue]]:
        """{topic: {queue id: queue}}, sorted."""
        items = sorted(self._table.items())
        topics: dict[str, dict[int, ConsumeQueue]] = {}
        for (topic, queue_id), queue in items:
            topics.setdefault(topic, {})[queue_id] = queue
        return topics

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, or None."""
        return self._table.get((topic, queue_id))

    def find(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; one that is not there answers as an empty queue and is not kept.

        Differs: 4.9.3 keeps what was only asked for, and its table grows with every such name.
        """
        queue = self._table.get((topic, queue_id))
        return self._new(topic, queue_id) if queue is None else queue

    def for_dispatch(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, made when it is new; None for a name that must not become a directory."""
        queue = self._table.get((topic, queue_id))
        if queue is None:
            if not is_safe_name(topic) or queue_id < 0:
                if topic not in self._refused:
                    self._refused.add(topic)
                    LOG.error("topic %r, queue %d: no directory of that name is made", topic,
                              queue_id)  # fmt: skip
                return None
            queue = self._new(topic, queue_id)
            if queue.ext is not None:
                _find_ext_files(queue.ext)
            with self._lock:
                queue = self._table.setdefault((topic, queue_id), queue)
            if self._is_lmq(topic):
                self.lmq_count += 1
        self._bound_mappings(queue)
        return queue

    def _bound_mappings(self, queue: ConsumeQueue) -> None:
        """Only so many of the queues that are put to keep their last file mapped."""
        key = queue.topic, queue.queue_id
        self._attached.pop(key, None)
        self._attached[key] = queue
        if len(self._attached) > ATTACHED_MAX:
            oldest = self._attached.pop(next(iter(self._attached)))
            oldest.detach()
            oldest.unmap_idle()

    def remove(self, topic: str, queue_id: int) -> None:
        """Destroy a queue and forget it. Raises StoreIOError: it is still there then."""
        queue = self._table.get((topic, queue_id))
        if queue is None:
            return
        queue.destroy()
        with self._lock:
            self._table.pop((topic, queue_id), None)
            self._attached.pop((topic, queue_id), None)

    def destroy(self) -> None:
        """Destroy every queue."""
        for queue in self.all():
            self.remove(queue.topic, queue.queue_id)

    def forget(self) -> None:
        """Know no queue any more, before another `load`; nothing on disk is touched."""
        with self._lock:
            self._table.clear()
            self._attached.clear()
        self.lmq_count = 0

    def close(self) -> None:
        """Give the mappings back."""
        for queue in self.all():
            queue.shutdown()

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
                read_only=self.read_only,
                by_write=self.config.write_without_mmap,
            )
        return ConsumeQueue(
            topic,
            queue_id,
            self.path,
            self.config.mapped_file_size_consume_queue,
            self.env,
            read_only=self.read_only,
            ext=ext,
            min_phy_offset=self.commit_log.get_min_offset,
            flags=self.flags,
            find_consume_queue=self.for_dispatch,
            enable_lmq=self.config.enable_lmq,
            by_write=self.config.write_without_mmap,
        )


def _check_size(sequences: list[MappedFileQueue], setting: str) -> None:
    """Raise StoreCorruptionError where the files have one other length than the configured one."""
    mismatched = [file for files in sequences for file in files.mismatched if file.size > 0]
    if not mismatched or any(files.mapped_files for files in sequences):
        return
    first = mismatched[0]
    proven = any(file.offset > 0 and file.offset % file.size == 0 for file in mismatched)
    if proven or len(mismatched) > 1 or _goes_on(sequences[0], first):
        raise StoreCorruptionError(
            first.path, -1, f"{first.reason}: open the store with {setting} as it was written with"
        )


def _goes_on(files: MappedFileQueue, file: MismatchedFile) -> bool:
    """Whether a single file that is too long has units behind the configured length."""
    if file.size < files.mapped_file_size + CQ_STORE_UNIT_SIZE:
        return False
    unit = unit_at(files.env.read_part(file.path, files.mapped_file_size, CQ_STORE_UNIT_SIZE))
    return unit is not None and unit[0] >= 0 and 0 < unit[1] <= record_size_max()


def _find_ext_files(ext: ConsumeQueueExt) -> None:
    """Have a new queue's ext units follow those that a kill, or somebody, left without a queue."""
    try:
        ext.load()
        ext.recover()
    except StoreError as error:
        LOG.error("%s/%d: no ext units are stored: %s", ext.topic, ext.queue_id, error)


def close_gaps(queue: ConsumeQueue, min_phy_offset: int, before_cut: Callable[[], None]) -> bool:
    """A queue in whose row of files one is missing keeps the part that can be made whole.

    Where the log has lost what was in the gap, the files before it go; else those behind it go,
    the log must give their units again, and the answer is True.

    Differs: 4.9.3 goes on with the gap.
    """
    files = queue.mapped_file_queue
    size = files.mapped_file_size
    lost = False
    while True:
        row = files.mapped_files
        gaps = [
            i
            for i in range(1, len(row))
            if row[i].file_from_offset != row[i - 1].file_from_offset + size
        ]
        if not gaps:
            return lost
        before, after = row[gaps[-1] - 1], row[gaps[-1]]
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
            queue.keep_units(before.file_from_offset + size)
            files.truncate_dirty_files(before.file_from_offset + size)


def is_safe_name(name: str) -> bool:
    """True when a name may become a directory below the store."""
    if name in ("", ".", "..") or len(name.encode("utf-8", "surrogatepass")) > 255:
        return False
    return not any(char in name for char in ("/", "\\", "\0"))


def no_queue(topic: str) -> StoreFormatError:
    """Why a topic is refused whose messages no queue could take."""
    return StoreFormatError(f"{shown(topic)} cannot be the name of a directory, so it has no queue")
