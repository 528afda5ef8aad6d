"""Recover all queues of a store: compare them with the log, and cut them to its end.

`QueuesCheck` finds which units are wrong, where queues end, and from where on the log must be
dispatched again for them; it changes no file. `QueuesCut` does what the plan of a recovery says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyrocketstore.commit_log._scan import TopicQueueMap
from pyrocketstore.commit_log.parallel_scan import records_between
from pyrocketstore.consume_queue.queue_recovery import (
    begin_again,
    cover_at_most,
    end_before,
    erase_torn_end,
    give_back_units,
    give_up_torn_end,
)
from pyrocketstore.consume_queue.unit_check import (
    Key,
    Log,
    QueueEnd,
    Repairs,
    UnitCheck,
    look_at_end,
    names_record,
)
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE
from pyrocketstore.display import logger
from pyrocketstore.record._record import HEADER_SIZE, RecordHeader

if TYPE_CHECKING:
    from pyrocketstore.commit_log._chunk_scan import LogChunk
    from pyrocketstore.commit_log.log_end import LogEnd
    from pyrocketstore.consume_queue.kept_units import KeptUnit
    from pyrocketstore.consume_queue.queue import ConsumeQueue
    from pyrocketstore.consume_queue.table import ConsumeQueueTable

__all__ = ["QueuesCheck", "QueuesCut"]

LOG = logger(__name__)


class Seen(NamedTuple):
    """The records of a queue in a part of the log: see `TopicQueueMap.seen`."""

    first_offset: int
    first_phy_offset: int
    next_offset: int
    records: int


class QueuesCheck:
    """Gather the records of a scan, then compare the queues with them.

    Parameters
    ----------
    table : ConsumeQueueTable, whose queues are recovered

    Attributes
    ----------
    repairs : units that contradict the log, and those behind them: the log gives them again
    covered : {(topic, queue id): bytes of the log that the queue covers, -1: none} of queues whose
        last unit is wrong
    are_cut : bool, units of some queue name bytes after the log's end
    missing_first_file : queues that are built again from their first message on

    Threads: one.
    """

    def __init__(self, table: ConsumeQueueTable) -> None:
        self._table, self._log, config = table, table.commit_log, table.config
        self._queues = {(queue.topic, queue.queue_id): queue for queue in table.all()}
        self._multi = config.enable_multi_dispatch
        self._check = UnitCheck(self._queues, multi=self._multi, lmq=config.enable_lmq)
        self._found: dict[Key, Seen] = {}
        self.repairs: Repairs = {}
        self.covered: dict[Key, int] = {}
        self.are_cut = False
        self.missing_first_file: list[Key] = []

    # ---- before and during the scan --------------------------------------------------------------

    @property
    def named_to(self) -> int:
        """One past the last byte of the log that units of any queue name; -1 without units."""
        return max((queue.covered_phy_offset for queue in self._queues.values()), default=-1)

    def proven_file(self) -> int:
        """Return where the last log file begins that a queue proves: its last unit names a record
        there. -1 without one.

        A damaged checkpoint does not say up to where the log was durable, so that the scan begins
        at its first file. Old damage before that file does not end the log.
        """
        found = -1
        for queue in self._queues.values():
            unit = queue.reader.unit(queue.core.unit_count - 1)
            files = self._log.mapped_file_queue
            file = None if unit is None else files.find_mapped_file_by_offset(unit[0], False)
            if unit is None or file is None:
                continue
            position = unit[0] - file.file_from_offset
            header = RecordHeader(file.read(position, min(HEADER_SIZE, file.wrote - position)))
            if header.is_message and (header.phy_offset, header.total_size) == unit[:2]:
                found = max(found, file.file_from_offset)
        return found

    def add(self, chunk: LogChunk) -> None:
        """Add the records of a scanned chunk of the log, in the log's order."""
        self._check.add(chunk)

    def trust_all(self) -> None:
        """Count each last unit as correct."""
        for key, queue in self._queues.items():
            self._check.trust(key, queue.covered_phy_offset)

    def agrees_with(self, end: LogEnd, scan_from: int) -> bool:
        """Return whether each queue ends with its last record in the log; these are then trusted.

        A queue without records in the scanned part must end before it.
        """
        if not end.is_usual:
            return False
        seen, ends = self._selected(end.seen.seen()), end.seen.ends()
        for key, queue in self._queues.items():
            covered = queue.covered_phy_offset
            first, _, next_offset, count = seen.pop(key, (0, 0, 0, 0))
            if count == 0:
                if covered > scan_from:
                    return False
            elif (queue.core.unit_count, covered, next_offset - first) != (
                next_offset,
                ends[key],
                count,
            ):
                return False
            else:
                self._check.trust(key, covered)
        return not seen

    def _selected(self, seen: Mapping[Key, tuple[int, int, int, int]]) -> dict[Key, Seen]:
        """Return the entries of the queues that are loaded, or would be if they had files."""
        only = self._table.only
        return {k: Seen(*row) for k, row in seen.items() if only is None or k[0] in only}

    # ---- after the scan --------------------------------------------------------------------------

    def beyond(self, log_end: int) -> dict[Key, int]:
        """Return the queues whose units name bytes of the log after `log_end`, and up to which."""
        return {
            key: queue.covered_phy_offset
            for key, queue in self._queues.items()
            if queue.covered_phy_offset > log_end
        }

    def compare(self, end: LogEnd, scan_from: int, *, clean: bool) -> None:
        """Compare the last unit of each queue with the log.

        When a last unit names no record of its queue, the log is read from the last unit that does,
        so that every later unit is compared. A queue ends before the first unit that contradicts
        the log, or that names bytes after it. Raises StoreIOError.
        """
        log, seen = Log.up_to(self._log, end.phy_offset, clean=clean), end.seen
        with_tags = not self._table.changes.read_only
        self.repairs = self._check.finish(log, with_tags=with_tags)
        ends = self._doubtful_ends(log, scan_from)
        doubts = [max(log.begin, each.covered) for each in ends.values() if each.in_doubt]
        start = min(doubts, default=scan_from)
        if start < scan_from:
            seen = TopicQueueMap()
            for chunk in records_between(self._log.env, self._log, start, scan_from):
                seen.add(chunk.queues)
                self.add(chunk)
            seen.add(end.seen)
            self.repairs |= self._check.finish(log, with_tags=with_tags)
            ends = self._doubtful_ends(log, start)
        self._found = self._selected(self._check.with_further(seen))
        for key, queue in self._queues.items():
            self._take_end(key, queue, ends.get(key))
        self.are_cut |= self.named_to > log.end

    def _take_end(self, key: Key, queue: ConsumeQueue, end: QueueEnd | None) -> None:
        # Without multi-dispatch the records of light queues are not searched.
        searched = self._multi or not queue.is_lmq
        if end is not None and end.doubtful >= 0 and searched:
            self.repairs[key] = range(end.doubtful, queue.core.unit_count)
        wrong = self.repairs.get(key)
        if wrong is not None:
            self._table.before_cut()
            end_before(queue, wrong.start)
        elif end is not None and not end.is_cut:
            queue.core.reset(queue.get_max_offset_in_queue(), end.covered)
        if end is not None:
            self.are_cut |= end.is_cut
            self.covered[key] = end.covered

    def _doubtful_ends(self, log: Log, scanned_from: int) -> dict[Key, QueueEnd]:
        """Return the queues that do not end with a unit that names its record."""
        found = {}
        for key, queue in self._queues.items():
            covered = queue.covered_phy_offset
            if covered < 0:
                continue
            if self._check.confirmed_end(key) == covered <= log.end and key not in self.repairs:
                continue  # the scan has found the record of the last unit
            end = look_at_end(log, key, queue, self.repairs.get(key), scanned_from)
            if end.doubtful >= 0 or end.is_cut or end.covered != covered:
                found[key] = end
        return found

    def is_damaged(self, key: Key) -> bool:
        """Return whether the last unit of a queue is damaged, or may be: it contradicts the log, or
        the record of a light queue is not searched for."""
        queue = self._queues.get(key)
        if queue is None or (queue.is_lmq and not self._multi):
            return True
        if key in self.repairs:
            return True
        unit, next_file = queue.reader.unit(queue.core.unit_count - 1), self._log.roll_next_file
        # No record is in two files: otherwise the bytes are not a unit, as in a text file.
        return unit is not None and not 0 < unit[1] <= next_file(unit[0]) - unit[0]

    def give_up_torn_ends(self, phy_offset: int) -> None:
        """Drop last units that a power cut may have torn, of messages from `phy_offset` on."""
        for queue in self._queues.values():
            give_up_torn_end(queue, phy_offset)

    def find_missing_first_files(self, scan_from: int) -> None:
        """Find the queues that lack units before their first file."""
        lowest = self._log.get_min_offset()
        self.missing_first_file = [
            key
            for key, queue in self._queues.items()
            if self._misses_first_file(key, queue, scan_from, max(lowest, queue.removed_before))
        ]

    def _misses_first_file(
        self, key: Key, queue: ConsumeQueue, scan_from: int, min_phy_offset: int
    ) -> bool:
        seen = self._found.get(key)
        first = queue.mapped_file_queue.get_min_offset() // CQ_STORE_UNIT_SIZE
        if first <= 0:
            return False
        if min_phy_offset == 0 and (seen is None or scan_from > 0):
            return True  # nothing has expired
        if seen is None or first <= max(0, seen.first_offset):
            return False
        # No checksum covers a record's queueOffset: a unit that names the record outweighs it.
        return not queue.reader.names(seen.first_phy_offset)

    def replay_starts(
        self, log_end: int, unsynced: Mapping[Key, tuple[int, int, int, int]]
    ) -> list[int]:
        """Return the physical offsets from which on queues lack units.

        `unsynced` are the queues of the records that may not have been durable.
        """
        lowest = max(0, self._log.get_min_offset())
        covered_by = {key: queue.covered_phy_offset for key, queue in self._queues.items()}
        covered_by |= self.covered
        starts = [max(0, covered_by[key]) for key, q in self._queues.items() if q.cut_short]
        starts += [lowest for _ in self.missing_first_file]
        if not self._queues and not self._table.has_others:
            starts.append(lowest)  # all queues were deleted: older log files may have other queues
        for key, seen in self._found.items():
            queue = None if key in self.missing_first_file else self._queues.get(key)
            held = 0 if queue is None else queue.units_before(log_end)
            if held >= seen.next_offset:
                continue
            if key in unsynced and held >= unsynced[key][0]:
                starts.append(unsynced[key][1])
                continue
            starts.append(seen.first_phy_offset)
            if held < seen.first_offset:
                covered = -1 if queue is None else covered_by[key]
                starts.append(lowest if covered < 0 else min(covered, log_end))
        return starts


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
