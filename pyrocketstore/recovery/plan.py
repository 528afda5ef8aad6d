"""Compute the plan of a recovery from the files, before the log is cut.

`log_end` scans the log and decides where it ends; `unit_check` compares each scanned record with
its units. The plan then says which units are wrong, and from where on the log must be dispatched
again (`replay`). `apply` carries the plan out.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyrocketstore.commit_log._chunk_scan import LogChunk
from pyrocketstore.commit_log._scan import TopicQueueMap, verdict_of
from pyrocketstore.commit_log.parallel_scan import records_between
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.queue_recovery import give_up_torn_end
from pyrocketstore.consume_queue.unit_check import (
    Log,
    QueueEnd,
    Repairs,
    Unit,
    UnitCheck,
    look_at_end,
    units_without_record,
)
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE, NO_LIMIT, PRE_BLANK
from pyrocketstore.display import logger
from pyrocketstore.index.gaps import first_unindexed
from pyrocketstore.recovery.clean_stop import LAST_FILES
from pyrocketstore.recovery.log_end import (
    LogEnd,
    allow_record,
    await_last_record,
    committed_limit,
    find_log_end,
    has_grown,
    start_file,
    valid_records_after,
    warn_of_gaps,
)
from pyrocketstore.recovery.store_files import StoreFiles
from pyrocketstore.results import Status

if TYPE_CHECKING:
    from pyrocketstore.files._mapped_file import MappedFile

__all__ = ["LAST_FILES", "RecoveryPlan", "make_plan", "readable_log"]

LOG = logger(__name__)

#: `ended_by` of a DLedger log that is read up to its last committed entry.
COMMITTED_END = "no later entry is committed"


@dataclasses.dataclass
class RecoveryPlan:
    """The changes that recovery must make.

    Parameters
    ----------
    clean : bool, the last exit was clean
    log_end : int, physical offset after the last record that is kept
    ended_by : str, the verdict that ended the log
    scan_from : int, physical offset at which the scan began
    records : int, how many records were scanned
    broken : list of (path, position, size), bytes after the end that hold valid records
    replay_from : int or None, physical offset from which the log is dispatched again
    cut_queues : bool, units of some queue name bytes after the end
    missing_first_file : list of (topic, queue id), queues that are built again from their first
        message on
    mismatched : list of (path, reason), files of a wrong length or name: units of queues are put
        again from the log; files of the log are read up to their end (read-only)

    `chunks` are the chunks of the log that the scan has kept, from `scan_from` on as far as memory
    allowed; applying the plan removes them.
    """

    clean: bool
    log_end: int = 0
    ended_by: str = ""
    scan_from: int = 0
    records: int = 0
    broken: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)
    replay_from: int | None = None
    cut_queues: bool = False
    missing_first_file: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    mismatched: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    empty: bool = False

    def __post_init__(self) -> None:
        # Not fields, so that they are not part of the reported plan.
        self.chunks: deque[LogChunk] = deque()
        #: file and position at which the log ends
        self.end_path, self.end_position = "", 0
        #: byte of the log at which the last scanned record begins; -1 without a record
        self.last_record = -1
        #: end of the last scanned record that has keys, bytes of the log; -1 without one
        #: it was not searched for before `keys_from`
        self.keyed_end, self.keys_from = -1, 0
        #: physical offset before which everything was durable
        self.synced_to = 0
        #: the queues of the records after it, as `TopicQueueMap.seen` returns them
        self.unsynced: dict[tuple[str, int], tuple[int, int, int, int]] = {}
        #: corrections of units that contradict the log
        self.repairs: Repairs = {}
        #: queues whose units name bytes after the log's end before the cut, and up to which
        self.beyond: dict[tuple[str, int], int] = {}
        #: byte of the log at which the last record of the index of a closed store begins, if it is
        #: after the log's end; else -1
        self.index_end = -1
        #: (path, position, end) of damage in front of the log's end that the scan has passed
        self.damaged: list[tuple[str, int, int]] = []
        #: physical offset before which the log may not have been scanned since it was closed, so
        #: that damage before it does not end the log; -1: there is no such part
        self.unscanned_to = -1
        #: what the log has lost at its end, as a text; "" if nothing is known to be lost
        self.lost = ""
        #: bytes of lost messages that are left: (path, position, size)
        self.remains: list[tuple[str, int, int]] = []
        #: warnings of lost messages, also those of an earlier opening that ended before it warned
        self.loss_notices: list[str] = []
        #: ranges of the log that no index file covers and that have no keys
        self.keyless: list[tuple[int, int]] = []
        #: queues whose last unit is wrong: bytes of the log that they cover; -1: none
        self.covered: dict[tuple[str, int], int] = {}

    @property
    def damage_notices(self) -> list[str]:
        """Warnings of damage in front of the log's end."""
        return [
            f"{path}: no valid record in bytes {position} to {end}, which earlier openings have not"
            " read; reads and `verify` report its messages, later ones are readable"
            for path, position, end in self.damaged
        ]

    @property
    def early_end(self) -> str:
        """The text for a log that ends before valid records: the only damage is at its end."""
        return (
            f"{self.end_path}: the log ends before byte {self.end_position} ({self.ended_by}),"
            " though valid records follow"
        )


def make_plan(store: StoreFiles, clean: bool) -> RecoveryPlan:
    """Compute the plan. No file is changed; the queues and the index in memory are.

    Queues give up units that may be torn, and the index a sync point that the log contradicts.

    Raises StoreIOError when a file cannot be read.
    Source: RocketMQ 4.9.3 CommitLog#recoverNormally, #recoverAbnormally.
    Differs: the stored physicalOffset of each record must be its own; damaged tails that hold valid
    records are kept; queues and index entries that 4.9.3 would lose are restored.
    """
    plan = RecoveryPlan(clean)
    files = store.commit_log.mapped_file_queue.mapped_files
    if not files:
        plan.empty = True
        plan.beyond = _beyond(store, 0)
        return plan
    warn_of_gaps(files)
    first = max(0, len(files) - LAST_FILES) if clean else start_file(store, files)
    plan.scan_from = plan.synced_to = files[first].file_from_offset
    synced = NO_LIMIT if clean else store.index_service.synced_before(NO_LIMIT)
    check, log_end = _scan_log(store, files, first, synced, plan)
    if not clean and not log_end.has_keep_from:
        store.index_service.reject_sync_point()
    if not clean:
        plan.synced_to = max(plan.scan_from, store.index_service.synced_before(log_end.phy_offset))
        plan.unsynced = log_end.later.seen()
    plan.log_end, plan.records, plan.chunks = log_end.phy_offset, log_end.records, log_end.chunks
    plan.last_record = log_end.last_record
    plan.keyed_end, plan.keys_from = log_end.keyed_end, log_end.keys_from
    end_file = files[log_end.at_file]
    plan.end_path = end_file.path
    plan.end_position = log_end.phy_offset - end_file.file_from_offset
    plan.ended_by = verdict_of(log_end.status, end_file.wrote == end_file.file_size)
    if store.read_only and plan.chunks:
        await_last_record(store, files[log_end.at_file], plan.chunks[-1])
        plan.chunks.pop()  # read once more when it is dispatched
    plan.beyond = _beyond(store, plan.log_end)
    # If a unit names bytes after the log's end, the unit is damaged or the log is: search it.
    is_usual = (
        clean and log_end.status in (Status.END, Status.BLANK) and _furthest(store) <= plan.log_end
    )
    if log_end.phy_offset >= committed_limit(store):
        plan.ended_by = COMMITTED_END
    else:
        plan.broken = valid_records_after(store, files, log_end, is_usual)
    if plan.broken and store.read_only and has_grown(store, files[log_end.at_file], log_end):
        plan.broken = []  # another process has appended records: nothing is damaged
    found = _check_ends(store, files, log_end.seen, plan, check)
    for key in [key for key in plan.beyond if _is_damaged(store, plan, key)]:
        del plan.beyond[key]
    plan.cut_queues |= _furthest(store) > plan.log_end
    lowest = store.commit_log.get_min_offset()
    if not plan.clean:
        for queue in store.consume_queues():
            give_up_torn_end(queue, plan.synced_to)
    for queue in store.consume_queues():
        key = queue.topic, queue.queue_id
        wrong = plan.repairs.get(key, {})
        low = max(lowest, queue.removed_before)
        if _misses_first_file(queue, found.get(key), plan.scan_from, low, wrong):
            plan.missing_first_file.append(key)
    plan.replay_from = _replay_from(store, plan, found)
    if clean and store.index_enabled and not store.read_only:
        _find_unindexed_end(store, plan)
    return plan


def _scan_log(
    store: StoreFiles,
    files: tuple[MappedFile, ...],
    first: int,
    keep_from: int,
    plan: RecoveryPlan,
) -> tuple[UnitCheck, LogEnd]:
    """Find the log's end, and compare the records with the units of the queues.

    The records from `keep_from` on are kept: hardly any before it is to be replayed.

    After a clean exit nothing is scanned if `clean_stop` proves the ends. Otherwise the units are
    compared only if the ends of the queues do not agree with the log's. The scan is repeated when
    only the limit on record sizes ended it.
    """
    stop = store.clean_stop.read()
    if stop is not None and plan.clean:
        at_file = store.clean_stop.proven_end(
            stop, files, first, store.locked_before_ms, store.derived_ends, store.only
        )
        if at_file >= 0:
            plan.unscanned_to = stop.log_end
            check = _new_check(store)
            for queue in store.consume_queues():
                check.trust((queue.topic, queue.queue_id), queue.covered_phy_offset)
            return check, LogEnd(
                at_file,
                stop.log_end,
                Status.END,
                last_record=stop.last_record,
                keyed_end=stop.index_end,
            )
    if stop is not None:
        plan.unscanned_to = stop.unscanned_to if plan.clean else stop.log_end
    check, found = _scan_and_compare(store, files, first, keep_from, plan.unscanned_to)
    plan.damaged = found.damaged
    if plan.clean and not found.damaged:
        plan.unscanned_to = -1  # the next openings scan no other files
    return check, found


def _scan_and_compare(
    store: StoreFiles, files: tuple[MappedFile, ...], first: int, keep_from: int, durable: int
) -> tuple[UnitCheck, LogEnd]:
    if keep_from == NO_LIMIT and _furthest(store) <= files[first].file_from_offset:
        keep_from = files[first].file_from_offset  # no queue has units of it: it is dispatched
    elif keep_from == NO_LIMIT and not store.config.enable_multi_dispatch:
        found = find_log_end(store, files, first, None, keep_from=keep_from, durable=durable)
        check = _new_check(store)
        if _ends_agree(store, check, found, files[first].file_from_offset):
            return check, found
    while True:
        check = _new_check(store)
        found = find_log_end(store, files, first, check, keep_from=keep_from, durable=durable)
        is_refused = found.status == Status.BAD_SIZE
        if not is_refused or not allow_record(store, files[found.at_file], found.phy_offset):
            return check, found


def _new_check(store: StoreFiles) -> UnitCheck:
    return UnitCheck(
        {(q.topic, q.queue_id): q for q in store.consume_queues()},
        multi=store.config.enable_multi_dispatch,
        lmq=store.config.enable_lmq,
    )


def _ends_agree(store: StoreFiles, check: UnitCheck, found: LogEnd, scan_from: int) -> bool:
    """Return whether each queue ends with its last record in the log; `check` then trusts them.

    A queue without records in the scanned part must end before it.
    """
    if found.status not in (Status.END, Status.BLANK):
        return False
    seen, ends = store.selected(found.seen.seen()), found.seen.ends()
    for queue in store.consume_queues():
        key = queue.topic, queue.queue_id
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
            check.trust(key, covered)
    return not seen


def _find_unindexed_end(store: StoreFiles, plan: RecoveryPlan) -> None:
    """Have the log dispatched again from the first key after the end of the index.

    After a clean exit there is none, unless index files were deleted or another writer left keys
    out. At most `max_key_search_bytes` of the log are searched.

    Raises StoreIOError.
    """
    first, keyless = first_unindexed(
        store.index_service,
        store.commit_log,
        plan.log_end,
        store.config.max_key_search_bytes,
        keyless_from=max(plan.scan_from, plan.keys_from, plan.keyed_end),
        dispatched_from=NO_LIMIT if plan.replay_from is None else plan.replay_from,
    )
    if first >= 0:
        LOG.warning("the index ends before byte %d of the log: its keys are put again", first)
        plan.replay_from = first if plan.replay_from is None else min(first, plan.replay_from)
    plan.keyless += keyless


def _furthest(store: StoreFiles) -> int:
    """Return one past the last byte of the log that units of any queue name; -1 without units."""
    return max((queue.max_physic_offset for queue in store.consume_queues()), default=-1)


def _beyond(store: StoreFiles, log_end: int) -> dict[tuple[str, int], int]:
    """Return the queues whose units name bytes of the log after `log_end`, and up to which."""
    return {
        (queue.topic, queue.queue_id): queue.covered_phy_offset
        for queue in store.consume_queues()
        if queue.covered_phy_offset > log_end
    }


def _is_damaged(store: StoreFiles, plan: RecoveryPlan, key: tuple[str, int]) -> bool:
    """Return whether the last unit of a queue is damaged, or may be: recovery repairs it, or does
    not search for the record of a light queue."""
    queue = store.queue_table.get(*key)
    if queue is None or (queue.is_lmq and not store.config.enable_multi_dispatch):
        return True
    last = queue.core.unit_count - 1
    unit, next_file = queue.reader.unit(last), store.commit_log.roll_next_file
    if unit is not None and not 0 < unit[1] <= next_file(unit[0]) - unit[0]:
        return True  # no record is in two files: the bytes are not a unit, as in a text file
    return last in plan.repairs.get(key, {})


def _misses_first_file(
    queue: ConsumeQueue,
    seen: tuple[int, int, int, int] | None,
    scan_from: int,
    min_phy_offset: int,
    wrong: Mapping[int, Unit],
) -> bool:
    """Return True when units before the queue's first file are missing.

    Units at the queue offsets `wrong` are repaired: they prove nothing.
    """
    first = queue.mapped_file_queue.get_min_offset() // CQ_STORE_UNIT_SIZE
    if first <= 0:
        return False
    if min_phy_offset == 0 and (seen is None or scan_from > 0):
        return True  # nothing has expired
    if seen is None:
        return False
    first_offset, first_phy_offset, _, _ = seen
    # No checksum covers a record's queueOffset: a unit that names the record outweighs it.
    return first > max(0, first_offset) and not queue.reader.names(first_phy_offset, wrong)


def _check_ends(
    store: StoreFiles,
    files: tuple[MappedFile, ...],
    seen: TopicQueueMap,
    plan: RecoveryPlan,
    check: UnitCheck,
) -> dict[tuple[str, int], tuple[int, int, int, int]]:
    """Compare the last unit of each queue with the log; return the queues that records belong to,
    as `UnitCheck.with_further` does.

    When a last unit names no record of its queue, the log is read from the last unit that does, so
    that every later unit is compared. Units without a record that name bytes of the log become
    pre-blank units, and keep their queue offsets; the queue is cut before the first one that names
    bytes after the log.
    """
    log = readable_log(store, files, plan)
    plan.repairs = check.finish(log)
    ends = _doubtful_ends(store, log, plan.repairs, check, plan.scan_from)
    doubts = [max(log.begin, end.covered) for end in ends.values() if end.in_doubt]
    start = min(doubts, default=plan.scan_from)
    if start < plan.scan_from:
        earlier = TopicQueueMap()
        for chunk in records_between(store.env, store.commit_log, start, plan.scan_from):
            earlier.add(chunk.queues)
            check.add(chunk)
        earlier.add(seen)
        seen = earlier
        later = plan.repairs
        plan.repairs = check.finish(log)
        for key, units in later.items():
            plan.repairs.setdefault(key, {}).update(units)
        ends = _doubtful_ends(store, log, plan.repairs, check, start)
    is_whole = min(start, plan.scan_from) <= log.begin
    found = store.selected(check.with_further(seen))
    complete = found if is_whole else {}
    for queue in store.consume_queues():
        key = queue.topic, queue.queue_id
        if key in complete and (key in plan.repairs or not check.confirms_all(key, queue)):
            known = plan.repairs.get(key, {})
            wrong = units_without_record(log, queue, *found[key][:2], known)
            if wrong:
                plan.repairs[key] = dict.fromkeys(wrong, PRE_BLANK) | known
        end = ends.get(key)
        if end is None:
            continue
        # Without multi-dispatch the records of light queues are not searched.
        if end.doubtful and (store.config.enable_multi_dispatch or not queue.is_lmq):
            lost = dict.fromkeys(end.doubtful, PRE_BLANK)
            plan.repairs[key] = lost | plan.repairs.get(key, {})
        plan.covered[key] = end.covered
        if end.is_cut:
            plan.cut_queues = True
        else:
            queue.core.reset(queue.get_max_offset_in_queue(), end.covered)
    return found


def readable_log(store: StoreFiles, files: tuple[MappedFile, ...], plan: RecoveryPlan) -> Log:
    """Return the readable part of the log, to compare units with it."""
    last = files[-1].file_from_offset + files[-1].file_size
    # A killed process may have dispatched records of a file that a power cut has removed.
    torn_end = plan.log_end if plan.clean else last + store.commit_log.file_size
    begin = files[0].file_from_offset
    return Log.of(store.commit_log, begin, plan.log_end, torn_end)


def _doubtful_ends(
    store: StoreFiles, log: Log, repairs: Repairs, check: UnitCheck, scanned_from: int
) -> dict[tuple[str, int], QueueEnd]:
    """Return the queues that do not end with a unit that names its record."""
    found = {}
    for queue in store.consume_queues():
        if queue.covered_phy_offset < 0:
            continue
        key = queue.topic, queue.queue_id
        confirmed = check.confirmed_end(key)
        if confirmed == queue.covered_phy_offset <= log.end and key not in repairs:
            continue  # the scan has found the record of the last unit
        end = look_at_end(log, key, queue, repairs.get(key, {}), scanned_from)
        if end.doubtful or end.is_cut or end.covered != queue.covered_phy_offset:
            found[key] = end
    return found


def _replay_from(
    store: StoreFiles,
    plan: RecoveryPlan,
    seen: dict[tuple[str, int], tuple[int, int, int, int]],
) -> int | None:
    """Return the earliest of 4.9.3's start, the first loss of any queue and the gap of the
    index.
    """
    lowest = max(0, store.commit_log.get_min_offset())
    starts = [] if plan.clean else [plan.synced_to]
    table = {(q.topic, q.queue_id): q for q in store.consume_queues()}
    covered_by = {key: q.covered_phy_offset for key, q in table.items()} | plan.covered
    starts += [max(0, covered_by[key]) for key, q in table.items() if q.cut_short]
    starts += [lowest for _ in plan.missing_first_file]
    if not table and not store.queue_table.has_others:
        starts.append(lowest)  # all queues were deleted: older log files may have other queues
    for key, (first_offset, first_phy_offset, next_offset, _) in seen.items():
        queue = None if key in plan.missing_first_file else table.get(key)
        held = 0 if queue is None else queue.units_before(plan.log_end)
        if held >= next_offset:
            continue
        unsynced = plan.unsynced.get(key)
        if unsynced is not None and held >= unsynced[0]:
            starts.append(unsynced[1])
            continue
        starts.append(first_phy_offset)
        if held < first_offset:
            covered = -1 if queue is None else covered_by[key]
            starts.append(lowest if covered < 0 else min(covered, plan.log_end))
    if not plan.clean and store.index_enabled:
        index = store.index_service
        covered = max(index.indexed_phy_offset, index.synced_before(plan.log_end))
        starts.append(max(lowest, covered))
    if store.config.message_index_enable:
        behind = store.index_service.begin_of_files_after(plan.log_end)
        starts += [] if behind < 0 else [behind]
    if not starts:
        return None
    return max(lowest, min(starts))
