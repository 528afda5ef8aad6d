"""Follow a queue that another process appends to: find the units that it has written since.

The result is a new object of the queue, so that readers of the old one are not disturbed. It shares
the files that cannot change any more. Units that the owner has not written yet are put in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.table import ConsumeQueueTable, is_safe_name
from pyrocketstore.consume_queue.unit_check import Key, Log, UnitCheck
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE, QueueUnits
from pyrocketstore.errors import without_frames
from pyrocketstore.files._mapped_file import FileSequence
from pyrocketstore.files.queue_directories import find_queue_ids, find_topics
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.record.message import LMQ_PREFIX

if TYPE_CHECKING:
    from pyrocketstore.commit_log.appended import LogPart
    from pyrocketstore.system.env import Env

__all__ = ["RECENT_MS", "QueueChanged", "QueueFolders", "QueuesGrowth", "take_written_units"]

#: A directory whose time is less than this before its listing may change again without a later
#: time (ms).
RECENT_MS = 1000
#: Also the time of a missing directory.
UNSURE = -1


class QueueChanged(Exception):
    """A queue is not what was known, with units appended."""


class QueuesGrowth:
    """The queues of a read-only store that have records in a new part of the log.

    Parameters
    ----------
    table : ConsumeQueueTable, which keeps the objects that it has
    part : LogPart
    put_units : callable(find), puts the units of the part into the queues that `find` returns

    Raises QueueChanged where the owner did more than append; StoreIOError, StoreCorruptionError.
    """

    def __init__(
        self,
        table: ConsumeQueueTable,
        part: LogPart,
        put_units: Callable[[Callable[[str, int], ConsumeQueue | None]], None],
    ) -> None:
        self._table, self._part, self._put_units = table, part, put_units
        begin, end = part.file.file_from_offset, part.end
        self._log = Log.of(part.log, begin, end, end)

    def grow(self, built: Collection[Key]) -> dict[Key, ConsumeQueue]:
        """Return new objects of the queues that have records in the part, and of those in
        `built`, which have units in memory."""
        flags = RunningFlags()
        flags.begin_repair()  # an error is not tried again: the next call does that
        only = self._table.only
        seen = {k: row for k, row in self._seen().items() if only is None or k[0] in only}
        grown: dict[Key, ConsumeQueue] = {}
        stops: dict[Key, int] = {}
        for key in seen.keys() | set(built):
            if is_safe_name(key[0]) and key[1] >= 0:
                stops[key] = self._stop_of(key, seen.get(key))
                grown[key] = self._table.new_queue(*key, flags)
                take_written_units(grown[key], self._table.get(*key), stops[key], self._log.end)
        if self._check_of(grown).finish(self._log):
            raise QueueChanged  # a unit contradicts its record
        if any(queue.get_max_offset_in_queue() < stops[key] for key, queue in grown.items()):
            self._put_units(lambda topic, queue_id: grown.get((topic, queue_id)))
            if flags.write_error is not None:
                raise without_frames(flags.write_error)
        if any(queue.get_max_offset_in_queue() != stops[key] for key, queue in grown.items()):
            raise QueueChanged
        lowest = self._table.commit_log.get_min_offset()
        for key, queue in grown.items():
            old = self._table.get(*key)
            if old is None:
                queue.correct_min_offset(lowest)
            else:
                queue.keep_minimum(old, lowest)
        return grown

    def publish(self, grown: Mapping[Key, ConsumeQueue], built: set[Key]) -> None:
        """Let readers find the new objects; `built` then has those with units in memory."""
        for key, queue in grown.items():
            self._table.replace(queue)
            self._table.commit_log.core.set_next_offset(*key, queue.get_max_offset_in_queue())
            built.discard(key)
            if queue.is_in_memory:
                built.add(key)

    def _seen(self) -> dict[Key, tuple[int, int, int, int]]:
        seen = self._part.seen()
        if not self._table.config.enable_multi_dispatch:
            return seen.seen()
        check = self._check_of({})
        check.finish(self._log)
        return check.with_further(seen)

    def _stop_of(self, key: Key, seen: tuple[int, int, int, int] | None) -> int:
        """Return the queue offset after a queue's last record.

        Raises QueueChanged for records that do not continue the queue: it was deleted and made
        again, or records are lost.
        """
        old = self._table.get(*key)
        count = 0 if old is None else old.get_max_offset_in_queue()
        if seen is None:
            return count
        if old is None and key[0].startswith(LMQ_PREFIX) and not self._table.config.enable_lmq:
            raise QueueChanged  # an opening enables light queues once one exists
        first, _, stop, number = seen
        if stop - first != number or (count and first != count):
            raise QueueChanged
        return stop

    def _check_of(self, queues: dict[Key, ConsumeQueue]) -> UnitCheck:
        config = self._table.config
        check = UnitCheck(queues, multi=config.enable_multi_dispatch, lmq=config.enable_lmq)
        for chunk in self._part.chunks:
            check.add(chunk)
        return check


def take_written_units(
    queue: ConsumeQueue, old: ConsumeQueue | None, stop: int, log_end: int
) -> None:
    """Fill a new object of a read-only queue with the units of an old one, and with those that are
    on disk after them.

    Units of the old object that recovery has built in memory are taken from disk where the owner
    has written the same by now, and are copied otherwise.

    Parameters
    ----------
    queue : ConsumeQueue without files
    old : the known object of the queue, None: all units are new
    stop : int, queue offset: units from there on are left out
    log_end : int, bytes of the log: units that name later bytes, and all after them, are left out

    Raises QueueChanged; StoreIOError, StoreCorruptionError. The disk and `old` do not change.
    """
    files = queue.mapped_file_queue
    size = files.mapped_file_size
    known = FileSequence() if old is None else old.mapped_file_queue.mapped_files
    kept = []
    for file in known:
        if file.mode != "read":
            break
        kept.append(file)
    base = 0 if not known else known[0].file_from_offset
    opened = []
    if kept:
        base = kept[-1].file_from_offset + kept[-1].wrote
        if kept[-1].wrote < size:
            opened = [files.settings.open(queue.env, kept.pop().path, mode="read")]
    end = stop * CQ_STORE_UNIT_SIZE
    if base < end and (not opened or opened[-1].file_from_offset + size < end):
        start = opened[-1].file_from_offset + size if opened else (base if known else 0)
        opened += files.open_from(start)
    opened = [file for file in opened if file.file_from_offset < max(end, base)]
    for file in opened:
        file.set_positions(min(end - file.file_from_offset, size))
    files.mapped_files = FileSequence([*kept, *opened])
    if not files.check_self():
        raise QueueChanged
    if opened and not known:
        base = opened[0].file_from_offset
    elif opened and opened[0].file_from_offset > base:
        raise QueueChanged
    first = base // CQ_STORE_UNIT_SIZE
    memory = _units(old, first)
    count = _valid_count(_read(queue, first, stop), memory, log_end)
    queue.cut_to(base + count * CQ_STORE_UNIT_SIZE, drop_empty=False)
    if known and not files.mapped_files:
        files.get_last_mapped_file(base)  # in memory: the owner has made no file yet
    queue.set_end(queue.reader.last_phy_offset())
    left = slice(count, None)
    if memory is not None and count < len(memory.size):
        queue.put_units(*memory.take(left))


def _units(queue: ConsumeQueue | None, first: int) -> QueueUnits | None:
    """Return the units of a queue from queue offset `first` on; None without a queue."""
    return None if queue is None else _read(queue, first, queue.get_max_offset_in_queue())


def _read(queue: ConsumeQueue, first: int, stop: int) -> QueueUnits:
    return queue.reader.columns(first, max(0, stop - first))


def _valid_count(units: QueueUnits, memory: QueueUnits | None, log_end: int) -> int:
    """Return how many units are valid. Raises QueueChanged if one of them differs from memory."""
    begin, size, code = units
    valid = (size > 0) & (units.is_inside(0, log_end) | units.is_pre_blank())
    wrong = np.flatnonzero(~valid)
    count = int(wrong[0]) if len(wrong) else len(valid)
    if memory is not None:
        both = min(count, len(memory.size))
        same = (
            (begin[:both] == memory.phy_offset[:both])
            & (size[:both] == memory.size[:both])
            & (code[:both] == memory.tags_code[:both])
        )
        if not same.all():
            raise QueueChanged
    return count


class QueueFolders:
    """The directories of the queues: which queues are new, and whether one was removed.

    A look costs one stat for each topic, and lists the directories that have changed; the first one
    lists all. Threads: one.
    """

    def __init__(self, env: Env, table: ConsumeQueueTable) -> None:
        self._env = env
        self._table = table
        #: {directory: its time before it was listed, Unix ms, or UNSURE}
        self._times: dict[str, int] = {}
        #: {topic: the queue ids that its directory had}
        self._ids: dict[str, set[int]] = {}

    def forget(self) -> None:
        """Have the next look list all directories."""
        self._times.clear()
        self._ids.clear()

    def look(self) -> tuple[list[tuple[str, int]], bool]:
        """Return the queues on disk that the table lacks and no earlier look has returned, and
        whether a queue of the table was removed. Raises StoreIOError.
        """
        table, is_first = self._table, not self._times
        new: list[tuple[str, int]] = []
        gone: list[tuple[str, int]] = []  # since an earlier look
        if self._has_changed(table.path):
            topics = set(find_topics(self._env, table.path, warn=False))
            if table.only is not None:
                topics = {topic for topic in topics if topic in table.only}
            for topic in self._ids.keys() - topics:
                gone += [(topic, queue_id) for queue_id in self._ids.pop(topic)]
            for topic in topics - self._ids.keys():
                self._ids[topic] = set()
        for topic, known in self._ids.items():
            path = os.path.join(table.path, topic)
            if self._has_changed(path):
                ids = find_queue_ids(self._env, path, warn=False)
                gone += [(topic, queue_id) for queue_id in known - ids]
                new += [(topic, queue_id) for queue_id in sorted(ids - known)]
                self._ids[topic] = ids
        is_removed = any(table.get(*key) is not None for key in gone)
        if is_first:
            keys = ((queue.topic, queue.queue_id) for queue in table.all())
            missing = [key for key in keys if key[1] not in self._ids.get(key[0], ())]
            is_removed = is_removed or any(self._was_on_disk(*key) for key in missing)
        return [key for key in new if table.get(*key) is None], is_removed

    def _was_on_disk(self, topic: str, queue_id: int) -> bool:
        """Return False for a queue that recovery has made in memory."""
        queue = self._table.get(topic, queue_id)
        files = () if queue is None else queue.mapped_file_queue.mapped_files
        return not files or any(file.mode == "read" for file in files)

    def _has_changed(self, path: str) -> bool:
        """Return whether a directory must be listed, and note its time."""
        now = self._env.now_ms()
        time_ms = self._env.modified_ms(path)
        before = self._times.get(path)
        self._times[path] = UNSURE if time_ms > now - RECENT_MS else time_ms
        return self._times[path] == UNSURE or self._times[path] != before
