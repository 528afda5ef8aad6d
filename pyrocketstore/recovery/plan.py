"""Compute the plan of a recovery from the files, before the log is cut.

`commit_log/log_end.py` scans the log and decides where it ends; `consume_queue/queues_recovery.py`
compares the scanned records with their units, where that is needed. The plan then says which units
are wrong, and from where on the log must be dispatched again. `apply` carries the plan out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrocketstore.commit_log.log_end import (
    KnownLog,
    LogEnd,
    allow_record,
    await_last_record,
    check_chunk_not_newer,
    find_log_end,
    has_grown,
    valid_records_after,
    warn_of_gaps,
)
from pyrocketstore.consume_queue.queues_recovery import QueuesCheck
from pyrocketstore.display import logger
from pyrocketstore.index.gaps import end_gap, first_unindexed
from pyrocketstore.recovery.recovery_plan import RecoveryPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyrocketstore.commit_log._chunk_scan import LogChunk
    from pyrocketstore.recovery.store_files import StoreFiles

__all__ = ["COMMITTED_END", "Planning", "PlanningToWrite"]

LOG = logger(__name__)

#: `ended_by` of a DLedger log that is read up to its last committed entry.
COMMITTED_END = "no later entry is committed"


class Planning:
    """Plans the recovery of a store that is opened read-only.

    Parameters
    ----------
    store : StoreFiles, whose log, queues and index are found
    clean : bool, the last exit was clean

    Source: RocketMQ 4.9.3 CommitLog#recoverNormally, #recoverAbnormally.
    Differs: the stored physicalOffset of each record must be its own; damaged tails that hold valid
    records are kept; queues and index entries that 4.9.3 would lose are restored.
    """

    #: refuse records of the log that must not be cut off
    checks: tuple[Callable[[LogChunk], None], ...] = ()

    def __init__(self, store: StoreFiles, clean: bool) -> None:
        self._store, self._clean = store, clean
        self._is_proven = False  # nobody has changed the store since it was closed
        self._had_all_keys = False  # the index, when the store was closed the last time
        self._log, self._index, self._config = store.commit_log, store.index_service, store.config
        self._queues = QueuesCheck(store.queue_table)

    def make_plan(self) -> RecoveryPlan:
        """Compute the plan. No file is changed; the queues and the index in memory are.

        Queues give up units that may be torn, and the index a sync point that the log contradicts.
        Raises StoreIOError when a file cannot be read.
        """
        clean, index, files = self._clean, self._index, self._log.mapped_file_queue.mapped_files
        if not files:
            mismatched, beyond = self._store.mismatched(), self._queues.beyond(0)
            index_end = self._index_end(0)
            return RecoveryPlan(
                clean, mismatched=mismatched, empty=True, beyond=beyond, index_end=index_end
            )
        warn_of_gaps(files)
        first = self._store.first_to_scan(clean=clean)
        scan_from = synced_to = files[first].file_from_offset
        end, unscanned_to = self._find_end(first, scan_from)
        log_end = end.phy_offset
        if not clean:
            if not end.has_keep_from:
                index.reject_sync_point()
            synced_to = max(scan_from, index.synced_before(log_end))
        self._await_writer(end)
        queues = self._queues
        beyond = queues.beyond(log_end)
        ended_by, broken = self._look_behind(end)
        queues.compare(end, scan_from, clean=clean)
        beyond = {key: to for key, to in beyond.items() if not queues.is_damaged(key)}
        if not clean:
            queues.give_up_torn_ends(synced_to)
        queues.find_missing_first_files(scan_from)
        replay_from = self._replay_from(end, synced_to)
        replay_from, keyless = self._find_unindexed_end(end, scan_from, replay_from)
        return RecoveryPlan(
            clean,
            log_end,
            ended_by,
            scan_from,
            end.records,
            broken,
            replay_from,
            queues.are_cut,
            queues.missing_first_file,
            self._store.mismatched(),
            chunks=end.chunks,
            end_path=end.file.path,
            end_position=log_end - end.file.file_from_offset,
            ends_with_blank=end.is_blank,
            last_record=end.last_record,
            synced_to=synced_to,
            repairs=queues.repairs,
            beyond=beyond,
            index_end=self._index_end(log_end),
            damaged=end.damaged,
            unscanned_to=unscanned_to,
            keyless=keyless or [],
            may_lack_keys=keyless is None,
            covered=queues.covered,
        )

    # ---- the log ---------------------------------------------------------------------------------

    def _find_end(self, first: int, scan_from: int) -> tuple[LogEnd, int]:
        """Find the log's end, and the physical offset `unscanned_to` of the plan.

        After a clean exit nothing is scanned if `clean_stop` proves the ends.
        """
        store, files = self._store, self._log.mapped_file_queue.mapped_files
        stop = store.clean_stop.read()
        self._had_all_keys = stop is not None and stop.has_all_keys
        if stop is not None and self._clean:
            at_file = store.clean_stop.proven_end(
                stop, files, first, store.locked_before_ms, store.derived_ends, store.only
            )
            if at_file >= 0:
                self._is_proven = True
                self._queues.trust_all()
                # Unless the index has all keys, no part of the log is known to have none.
                keyed_end = stop.keyed_end if stop.has_all_keys else stop.log_end
                last = stop.last_record
                end = LogEnd(files, at_file, stop.log_end, last_record=last, keyed_end=keyed_end)
                return end, stop.log_end
        durable_to = -1
        if stop is not None:
            durable_to = stop.unscanned_to if self._clean else stop.log_end
        proven_file = self._queues.proven_file() if store.checkpoint.damage else -1
        known = KnownLog(self._queues.named_to, durable_to, proven_file)
        end = self._scan_log(first, scan_from, known)
        if self._clean:  # the next openings scan no other files
            return end, durable_to if end.damaged else -1
        # After a clean stop the scan begins earlier than this one, which believes the checkpoint,
        # or ends at damage that a queue lets this one pass.
        passed = proven_file if end.damaged else -1
        return end, max(durable_to, passed, scan_from if first else -1)

    def _scan_log(self, first: int, scan_from: int, known: KnownLog) -> LogEnd:
        """Scan the log, and compare the records with the units of the queues.

        The records from the sync point on are kept: hardly any before it is to be replayed.

        After a clean exit the units are compared only if the ends of the queues do not agree with
        the log's. The scan is repeated when only the limit on record sizes ended it.
        """
        log, queues, index = self._log, self._queues, self._index
        keep_from = None if self._clean else index.synced_before()
        if keep_from is None and known.named_to <= scan_from:
            keep_from = scan_from  # no queue has units of it: it is dispatched
        elif keep_from is None and not self._config.enable_multi_dispatch:
            keys_from = max(0, index.indexed_phy_offset)
            end = find_log_end(
                log, first, known, self.checks, keep_from=keep_from, keys_from=keys_from
            )
            if queues.agrees_with(end, scan_from):
                return end
        while True:
            self._queues = queues = QueuesCheck(self._store.queue_table)
            takes = (*self.checks, queues.add)
            end = find_log_end(log, first, known, takes, keep_from=keep_from)
            if not end.is_refused or not allow_record(log.env, end.file, end.phy_offset):
                return end

    def _look_behind(self, end: LogEnd) -> tuple[str, list[tuple[str, int, int]]]:
        """Return why the log ends, and the bytes behind its end that hold valid records."""
        env, named_to = self._log.env, self._queues.named_to
        if end.phy_offset >= self._log.committed_limit(named_to):
            return COMMITTED_END, []
        # If a unit names bytes after the log's end, the unit is damaged or the log is: search it.
        is_usual = self._clean and end.is_usual and named_to <= end.phy_offset
        behind = end.files[end.at_file :]
        broken = valid_records_after(env, behind, end.phy_offset, is_usual=is_usual)
        return end.verdict, [] if broken and self._is_growing(end) else broken

    # ---- the replay ------------------------------------------------------------------------------

    def _replay_from(self, end: LogEnd, synced_to: int) -> int | None:
        """Return the earliest of `synced_to` after an unclean exit, the first loss of any queue and
        the end of the index; None if nothing is missing."""
        lowest, index = max(0, self._log.get_min_offset()), self._index
        starts = self._queues.replay_starts(end.phy_offset, {} if self._clean else end.later.seen())
        if not self._clean:
            starts.append(synced_to)
            if self._store.index_enabled:
                covered = max(index.indexed_phy_offset, index.synced_before(end.phy_offset))
                starts.append(covered)
        if self._config.message_index_enable:
            behind = index.begin_of_files_after(end.phy_offset)
            starts += [] if behind < 0 else [behind]
        return max(lowest, min(starts)) if starts else None

    def _index_end(self, log_end: int) -> int:
        """Return the byte of the log of the last record of a closed store's index, if it is after
        the log's end; else -1."""
        is_after = self._clean and self._index.indexed_phy_offset >= log_end
        return self._index.last_named() if is_after else -1

    # ---- what a writer does otherwise ------------------------------------------------------------

    def _await_writer(self, end: LogEnd) -> None:
        """Wait while another process is writing the last record; it is read once more when it is
        dispatched."""
        if end.chunks:
            await_last_record(self._log.env, end.file, end.chunks.pop())

    def _is_growing(self, end: LogEnd) -> bool:
        """Return True when another process has appended records: nothing is damaged."""
        return has_grown(self._log.env, end.file, end.phy_offset, end.status)

    def _find_unindexed_end(
        self, end: LogEnd, scan_from: int, replay_from: int | None
    ) -> tuple[int | None, list[tuple[int, int]] | None]:
        """Return from where on keys are put again that the end of the index lacks, and the ranges
        without keys; None if the index may lack keys that are not searched for.

        The index of a store that nobody has changed since it was closed has the keys of all records
        in the log: what it does not cover has none.
        """
        known = self._is_proven and self._had_all_keys and self._store.index_enabled
        gap = end_gap(self._index, self._log, end.phy_offset) if known else None
        return replay_from, [] if gap is None else [gap]


class PlanningToWrite(Planning):
    """Plans the recovery of a store that is opened for writing: no other process writes to it."""

    checks = (check_chunk_not_newer,)

    def _await_writer(self, end: LogEnd) -> None:
        pass

    def _is_growing(self, end: LogEnd) -> bool:
        return False

    def _find_unindexed_end(
        self, end: LogEnd, scan_from: int, replay_from: int | None
    ) -> tuple[int | None, list[tuple[int, int]] | None]:
        """After a clean exit the index lacks no key, unless its files were deleted or another
        writer left keys out. At most `max_key_search_bytes` of the log are searched. After a kill
        nothing is searched: `sync_point` does not know of keys that were left out before.

        Raises StoreIOError.
        """
        if not self._store.index_enabled or (self._is_proven and self._had_all_keys):
            return super()._find_unindexed_end(end, scan_from, replay_from)
        if not self._clean:
            gap = end_gap(self._index, self._log, end.phy_offset)
            is_replayed = gap is None or (replay_from is not None and replay_from <= gap[0])
            return replay_from, [] if is_replayed or self._had_all_keys else None
        first, keyless = first_unindexed(
            self._index,
            self._log,
            end.phy_offset,
            self._config.max_key_search_bytes,
            keyless_from=max(scan_from, end.keys_from, end.keyed_end),
            dispatched_from=replay_from,
        )
        if first < 0:
            return replay_from, keyless
        LOG.warning("the index ends before byte %d of the log: its keys are put again", first)
        return first if replay_from is None else min(first, replay_from), keyless
