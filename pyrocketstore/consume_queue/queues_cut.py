"""Cut the queues of a store to the end of its log, and repair them, as a plan of recovery says."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from pyrocketstore.consume_queue.queue_recovery import (
    begin_again,
    cover_at_most,
    erase_torn_end,
    give_back_units,
)
from pyrocketstore.consume_queue.unit_check import Key, Log, Unit, names_record, repair_units
from pyrocketstore.display import logger

if TYPE_CHECKING:
    from pyrocketstore.consume_queue.kept_units import KeptUnit
    from pyrocketstore.consume_queue.queue import ConsumeQueue
    from pyrocketstore.consume_queue.table import ConsumeQueueTable

__all__ = ["QueuesCut"]

LOG = logger(__name__)


class QueuesCut:
    """The queues of a store, whose log ends at byte `log_end`; in a read-only store in memory.

    Parameters
    ----------
    table : ConsumeQueueTable
    log_end : int, physical offset
    clean : bool, the last exit was clean

    Raises StoreIOError. Threads: one.
    """

    def __init__(self, table: ConsumeQueueTable, log_end: int, *, clean: bool) -> None:
        self._table, self._log, self._end, self._clean = table, table.commit_log, log_end, clean

    def repair(self, repairs: Mapping[Key, Mapping[int, Unit]]) -> None:
        """Correct the units that contradict the log."""
        for queue in self._table.all():
            units = repairs.get((queue.topic, queue.queue_id))
            if units:
                repair_units(queue, units)
                covered = queue.reader.last_phy_offset()
                queue.core.reset(queue.get_max_offset_in_queue(), covered)

    def cut(self) -> None:
        """Drop the units that name bytes after the log's end."""
        for queue in self._table.all():
            queue.truncate_dirty_logic_files(self._end)

    def begin_again(self, missing: Collection[Key], synced_to: int, level: int) -> None:
        """Empty the queues `missing`, which have no first file; a warning has the level `level`.

        Ext units of messages from byte `synced_to` of the log on are dropped with their units.
        """
        for queue in self._table.all():
            if (queue.topic, queue.queue_id) in missing:
                LOG.log(level, "%s/%d: its first file is missing", queue.topic, queue.queue_id)
                begin_again(queue)
            elif queue.ext is not None and not self._clean:
                # Units and ext units are flushed separately: the replay writes both again, except
                # those of removed messages, which keep the queue offsets.
                written_again = max(synced_to, queue.removed_before)
                queue.truncate_dirty_logic_files(min(written_again, self._end))
            cover_at_most(queue, self._end)

    def finish(self) -> None:
        """After a replay of the log, put units of lost records back, and erase torn units."""
        self._give_back_units()
        for queue in self._table.all():
            erase_torn_end(queue)
            cover_at_most(queue, self._end)

    def _give_back_units(self) -> None:
        queues = [queue for queue in self._table.all() if queue.kept_units]
        if not queues or not self._log.mapped_file_queue.mapped_files:
            return
        log = Log.up_to(self._log, self._end, clean=self._clean)
        for queue in queues:
            key = queue.topic, queue.queue_id

            def is_lost(kept: KeptUnit, key: Key = key) -> bool:
                if names_record(log, key, kept.queue_offset, kept.unit):
                    return True
                return log.lost.range_of(*kept.unit[:2]) is not None

            give_back_units(queue, self._end, is_lost)

    def write_again(self, begin: int, again: Callable[[str], None]) -> set[str]:
        """Have the next flush write units that name bytes of the log from `begin` on, and call
        `again` with each of their files. Returns the directories of these files."""
        folders: set[str] = set()
        for queue in self._table.all():
            if queue.covered_phy_offset <= begin:
                continue
            folders.add(f"{queue.store_path}/{queue.topic}")
            if queue.ext is not None:
                folders |= self._write_ext_again(queue, again)
            files = queue.mapped_file_queue
            for file in reversed(files.mapped_files):
                again(file.path)
                file.mark_unflushed()
                files.flushed_where = min(files.flushed_where, file.file_from_offset)
                if file is files.mapped_files[0]:
                    break
                # Not by the mapping: a hole of a file on a full tmpfs cannot be mapped.
                first = self._table.env.read_file(file.path, size=8)
                if int.from_bytes(first, "big", signed=True) < begin:
                    break  # earlier files were durable before
        return folders

    def _write_ext_again(self, queue: ConsumeQueue, again: Callable[[str], None]) -> set[str]:
        assert queue.ext is not None
        files = queue.ext.mapped_file_queue
        for file in files.mapped_files:
            again(file.path)
            file.mark_unflushed()
        files.flushed_where = max(files.get_min_offset(), 0)
        topic = os.path.join(self._table.ext_path, queue.topic)
        return {path for path in (self._table.ext_path, topic) if self._table.env.is_dir(path)}
