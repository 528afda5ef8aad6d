"""Recovery: a plan computed from the files, then applied to them or only held in memory.

Pass 1 scans the log and decides where it ends. Pass 2 compares what the log says of each queue with
what the queue holds, and decides from where the log must be dispatched again. Then the plan is
applied: the log and the queues are cut, and the replay fills what is missing. In a read-only store
"applied" means in memory: MappedFile knows the difference.
"""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from pyrocketstore._dispatch import Dispatcher
from pyrocketstore._log_piece import LogPiece
from pyrocketstore._record import allow_records, has_torn_properties, record_size_max
from pyrocketstore._scan import TopicQueueMap, find_valid_record, scan_file, status_name
from pyrocketstore.broken_folder import broken_folder
from pyrocketstore.commit_log import CommitLog
from pyrocketstore.config import MessageStoreConfig
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.index_gaps import first_missing_key, missing_keys, uncovered
from pyrocketstore.index_service import IndexService
from pyrocketstore.kept_units import KeptUnit
from pyrocketstore.log_scan import LogScan, records_between
from pyrocketstore.lost_records import LostRecords
from pyrocketstore.queue_units import CQ_STORE_UNIT_SIZE, NO_LIMIT, PRE_BLANK
from pyrocketstore.shield import check_abandoned
from pyrocketstore.store_checkpoint import AbortFile, StoreCheckpoint
from pyrocketstore.unit_check import (
    Log,
    QueueEnd,
    Repairs,
    UnitCheck,
    look_at_end,
    names_record,
    repair_units,
    units_without_record,
)

if TYPE_CHECKING:
    from pyrocketstore._mapped_file import MappedFile
    from pyrocketstore.env import Env

LOG = logger(__name__)

RS_OK, RS_BLANK, RS_END, RS_BAD_SIZE = 0, 1, 2, 6
MESSAGE_MAGIC = bytes.fromhex("DAA320A7")
#: Normal recovery looks at this many files at the end of the log.
LAST_FILES = 3
#: Where so few records were dispatched since the last uncommon one, more of them are expected.
COMMON_RUN = 64
#: Bytes of memory for what the scan keeps of the records; what does not fit is read again.
RECORDS_MAX = 256 << 20
#: At most so many records are then given to the loop that knows all cases.
UNCOMMON_RUN_MAX = 4096
#: So many pieces of the log are worth a thread that fills the index.
INDEX_THREAD_MIN = 3
#: How often a reader looks again at a last record that another process is still writing.
LAST_RECORD_TRIES = 40
LAST_RECORD_WAIT_S = 0.005
#: Bytes of a record's head that hold its storeTimestamp, with an IPv6 born host.
HEAD_SIZE = 76


class Recoverable(Protocol):
    """The parts of a store that recovery works on."""

    env: Env
    config: MessageStoreConfig
    read_only: bool
    commit_log: CommitLog
    checkpoint: StoreCheckpoint
    index_service: IndexService
    dispatcher: Dispatcher

    def consume_queues(self) -> list[ConsumeQueue]:
        """Every queue that is known."""
        ...

    @property
    def index_enabled(self) -> bool:
        """True when messages are indexed and the index can be read."""
        ...


@dataclasses.dataclass
class RecoveryPlan:
    """What the files say must happen.

    Parameters
    ----------
    clean : bool, the last exit was clean
    log_end : int, physical offset behind the last record that is kept
    ended_by : str, the verdict that ended the log
    scan_from : int, physical offset at which the scan began
    records : int, how many records were scanned
    broken : list of (path, position, size), pieces behind the end that hold valid records
    replay_from : int or None, physical offset from which the log is dispatched again
    cut_queues : bool, some queue reaches past the end
    headless : list of (topic, queue id), queues that lost their first file: they begin anew
    mismatched : list of (path, reason), files of a wrong length or name: those of queues get their
        units from the log, those of the log are read as far as they go (read-only)

    `pieces` is what the scan kept of the records, from `scan_from` on as far as memory allowed;
    they are gone once the plan is applied.
    """

    clean: bool
    log_end: int = 0
    ended_by: str = ""
    scan_from: int = 0
    records: int = 0
    broken: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)
    replay_from: int | None = None
    cut_queues: bool = False
    headless: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    mismatched: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    empty: bool = False

    def __post_init__(self) -> None:
        # No fields: what is reported of a plan does not include them.
        self.pieces: deque[LogPiece] = deque()
        #: units that contradict the log, as they must be
        self.repairs: Repairs = {}
        #: queues that name bytes behind the log's end before they are cut, and up to which
        self.beyond: dict[tuple[str, int], int] = {}
        #: ranges of the log that no index file covers and that have no keys
        self.keyless: list[tuple[int, int]] = []
        #: of queues whose last unit is wrong: how far the log is surely in them, bytes; -1: not
        self.covered: dict[tuple[str, int], int] = {}


def make_plan(store: Recoverable, clean: bool, unsure_from: int = NO_LIMIT) -> RecoveryPlan:
    """Compute the plan; nothing is changed.

    Parameters
    ----------
    unsure_from : int, what `scan_start` said before the queues were recovered: the checkpoint may
        cover less by now, so that a recovery that is ended in the middle is made again in full

    Raises StoreIOError when a file cannot be read.
    Source: RocketMQ 4.9.3 CommitLog#recoverNormally, #recoverAbnormally.
    Differs: the stored physicalOffset of each record must be its own; damaged tails that hold valid
    records are kept; queues and index entries that 4.9.3 would lose are found.
    """
    plan = RecoveryPlan(clean)
    files = store.commit_log.mapped_file_queue.mapped_files
    if not files:
        plan.empty = True
        plan.beyond = _beyond(store, 0)
        return plan
    first = max(0, len(files) - LAST_FILES) if clean else _start_file(store, files)
    if unsure_from != NO_LIMIT:
        first = [file.file_from_offset for file in files].index(unsure_from)
    plan.scan_from = files[first].file_from_offset
    while True:
        seen = TopicQueueMap()
        check = UnitCheck(
            {(q.topic, q.queue_id): q for q in store.consume_queues()},
            multi=store.config.enable_multi_dispatch,
            lmq=store.config.enable_lmq,
        )
        at_file, status = _scan(store, files, first, seen, plan, check)
        if status != RS_BAD_SIZE or not _allow_record(store, files[at_file], plan.log_end):
            break
        plan.log_end = plan.records = 0
        plan.pieces.clear()
    plan.ended_by = status_name(status)
    if store.read_only and plan.pieces:
        _await_last_record(store, files[at_file], plan.pieces[-1])
        plan.pieces.pop()  # read once more when it is dispatched
    plan.beyond = _beyond(store, plan.log_end)
    # A queue that knows more than the log holds, or a damaged unit: the log is searched.
    is_usual = clean and status in (RS_END, RS_BLANK) and _furthest(store) <= plan.log_end
    plan.broken = _valid_records_behind(store, files, at_file, is_usual, plan)
    if plan.broken and store.read_only and _has_grown(store, files[at_file], plan):
        plan.broken = []  # another process has written on meanwhile: nothing is damaged
    seen = _check_ends(store, files, seen, plan, check)
    plan.cut_queues |= _furthest(store) >= plan.log_end
    found = check.with_further(seen)
    lowest = store.commit_log.get_min_offset()
    if not plan.clean:
        for queue in store.consume_queues():
            queue.give_up_torn_end(plan.scan_from)
    plan.headless = [
        (queue.topic, queue.queue_id)
        for queue in store.consume_queues()
        if _is_headless(queue, found.get((queue.topic, queue.queue_id)), plan.scan_from, lowest)
    ]
    plan.replay_from = _replay_from(store, plan, found)
    if clean and store.index_enabled and not store.read_only:
        _find_unindexed_end(store, plan)
    return plan


def _find_unindexed_end(store: Recoverable, plan: RecoveryPlan) -> None:
    """Have the log dispatched again from the first key behind the end of the index.

    After a clean exit there is none, unless index files were deleted or another writer left them
    out. What has no keys is searched as far as `max_key_search_bytes` allow.

    Raises StoreIOError.
    """
    files = store.index_service.files_before(plan.log_end)
    lowest = max(0, store.commit_log.get_min_offset())
    parts = uncovered(files, store.commit_log, lowest, plan.log_end)
    if not parts or parts[-1][1] < plan.log_end:
        return
    begin, end = parts[-1]
    if plan.replay_from is not None and plan.replay_from <= begin:
        return
    stop = min(end, begin + store.config.max_key_search_bytes)
    first = first_missing_key(store.env, store.commit_log, files, begin, stop)
    if first >= 0:
        LOG.warning("the index ends before byte %d of the log: its keys are put again", first)
        plan.replay_from = first if plan.replay_from is None else min(first, plan.replay_from)
    elif stop == end:
        plan.keyless.append((begin, end))


def _furthest(store: Recoverable) -> int:
    """One past the last byte of the log that the units of a queue name; -1 without any."""
    return max((queue.max_physic_offset for queue in store.consume_queues()), default=-1)


def _beyond(store: Recoverable, log_end: int) -> dict[tuple[str, int], int]:
    """The queues whose units name bytes of the log behind `log_end`, and up to which."""
    return {
        (queue.topic, queue.queue_id): queue.covered_phy_offset
        for queue in store.consume_queues()
        if queue.covered_phy_offset > log_end
    }


def _is_headless(
    queue: ConsumeQueue,
    seen: tuple[int, int, int, int] | None,
    scan_from: int,
    min_phy_offset: int,
) -> bool:
    """True when units before the queue's first file are missing."""
    first = queue.mapped_file_queue.get_min_offset() // CQ_STORE_UNIT_SIZE
    if first <= 0:
        return False
    if min_phy_offset == 0 and (seen is None or scan_from > 0):
        return True  # nothing has expired
    if seen is None:
        return False
    first_offset, first_phy_offset, _, _ = seen
    # No sum covers a record's queueOffset: where a unit names the record, that one is believed.
    return first > max(0, first_offset) and not queue.reader.names(first_phy_offset)


def scan_start(store: Recoverable, clean: bool) -> int:
    """Physical offset from which on an unclean exit may have lost something; behind all after a
    clean one."""
    files = store.commit_log.mapped_file_queue.mapped_files
    return NO_LIMIT if clean or not files else files[_start_file(store, files)].file_from_offset


def _start_file(store: Recoverable, files: tuple[MappedFile, ...]) -> int:
    """The newest file whose first record is older than the checkpoint; 0 if there is none."""
    config = store.config
    if config.message_index_enable and config.message_index_safe:
        limit = store.checkpoint.get_min_timestamp_index()
    else:
        limit = store.checkpoint.get_min_timestamp()
    for index in range(len(files) - 1, -1, -1):
        stored = _first_store_time(files[index])
        if stored is not None and stored != 0 and stored <= limit:
            return index
    return 0


def _first_store_time(file: MappedFile) -> int | None:
    """Store time (Unix ms) of a file's first record, None without one."""
    head = file.read(0, min(HEAD_SIZE, file.wrote))
    if len(head) < HEAD_SIZE or head[4:8] != MESSAGE_MAGIC:
        return None
    at = 68 if head[39] & 0x10 else 56
    return int.from_bytes(head[at : at + 8], "big", signed=True)


def _allow_record(store: Recoverable, file: MappedFile, phy_offset: int) -> bool:
    """Raise the bound on records for one that claims to be larger and all of whose bytes are
    written; whether that was done. Its checksum decides then.

    A hole in the file shows that the size is a claim alone.
    """
    position = phy_offset - file.file_from_offset
    size = int.from_bytes(file.read(position, 4), "big", signed=True)
    if not record_size_max() < size <= file.file_size - position:
        return False
    ranges = store.env.data_ranges(file.path, position, position + size)
    if sum(end - begin for begin, end in ranges) < size:
        return False
    LOG.warning("%s: a record of %d bytes at %d is read", file.path, size, position)
    allow_records(size)
    return True


def _scan(
    store: Recoverable,
    files: tuple[MappedFile, ...],
    first: int,
    seen: TopicQueueMap,
    plan: RecoveryPlan,
    check: UnitCheck,
) -> tuple[int, int]:
    """Find the log's end; gives the index of its file and the verdict."""
    index = first
    status = RS_END
    start = plan.scan_from
    stop = files[-1].file_from_offset + files[-1].file_size
    complete = True
    while True:
        scan = LogScan(
            store.env,
            files[first:],
            start,
            stop,
            delay_levels=store.commit_log.delay_levels,
            check_crc=store.config.check_crc_on_recover,
            # After a clean exit there is hardly ever anything to replay: nothing is kept.
            records_max=None if plan.clean else max(1, min(RECORDS_MAX, stop - start)),
        )
        for piece in scan.pieces():
            check_abandoned()
            while files[index].file_from_offset != piece.file_from_offset:
                index += 1
                _warn_of_gap(files[index - 1], files[index])
            seen.add(piece.queues)
            plan.records += piece.count
            plan.log_end = piece.file_from_offset + piece.end
            check.add(piece)
            complete = complete and not piece.has_own_memory
            if complete:
                plan.pieces.append(piece)
            status = piece.status
        if status in (RS_OK, RS_BLANK) or not _goes_on_behind(store, files, index):
            break
        index += 1
        start = files[index].file_from_offset
        complete = False
    return index, status


def _warn_of_gap(before: MappedFile, file: MappedFile) -> None:
    if file.file_from_offset != before.file_from_offset + before.file_size:
        LOG.warning("%s: the file before it is missing", file.path)


def _goes_on_behind(store: Recoverable, files: tuple[MappedFile, ...], index: int) -> bool:
    """Whether a file has lost its end, and others follow that can be read: the log of a store that
    is open for writing has no such file."""
    is_partial = store.read_only and files[index].wrote < files[index].file_size
    return is_partial and index + 1 < len(files)


def _check_ends(
    store: Recoverable,
    files: tuple[MappedFile, ...],
    seen: TopicQueueMap,
    plan: RecoveryPlan,
    check: UnitCheck,
) -> TopicQueueMap:
    """Hold the last unit of each queue against the log; gives what was seen of the queues.

    Where a last unit names no record of its queue, the log is read from the last one that does, so
    that every unit behind that one is compared. Of those that no record asks for, one that names a
    place in the log becomes a pre-blank unit, and its queue offset stays used up; the queue is cut
    before the first one that names a place behind the log.
    """
    log = _log_of(store, files, plan)
    plan.repairs = check.finish(log)
    ends = _doubtful_ends(store, log, plan.repairs)
    doubts = [max(log.begin, end.covered) for end in ends.values() if end.in_doubt]
    start = min(doubts, default=plan.scan_from)
    if start < plan.scan_from:
        earlier = TopicQueueMap()
        for piece in records_between(store.env, store.commit_log, start, plan.scan_from):
            earlier.add(piece.queues)
            check.add(piece)
        earlier.add(seen)
        seen = earlier
        later = plan.repairs
        plan.repairs = check.finish(log)
        for key, units in later.items():
            plan.repairs.setdefault(key, {}).update(units)
        ends = _doubtful_ends(store, log, plan.repairs)
    is_whole = min(start, plan.scan_from) <= log.begin
    found = check.with_further(seen) if is_whole else {}
    for queue in store.consume_queues():
        key = queue.topic, queue.queue_id
        if key in found:
            known = plan.repairs.get(key, {})
            wrong = units_without_record(log, queue, *found[key][:2], known)
            if wrong:
                plan.repairs[key] = dict.fromkeys(wrong, PRE_BLANK) | known
        end = ends.get(key)
        if end is None:
            continue
        # Without multi-dispatch nobody looks for the records of a light queue.
        if end.doubtful and (store.config.enable_multi_dispatch or not queue.is_lmq):
            lost = dict.fromkeys(end.doubtful, PRE_BLANK)
            plan.repairs[key] = lost | plan.repairs.get(key, {})
        plan.covered[key] = end.covered
        if end.is_cut:
            plan.cut_queues = True
        else:
            queue.core.reset(queue.get_max_offset_in_queue(), end.covered)
    return seen


def _log_of(store: Recoverable, files: tuple[MappedFile, ...], plan: RecoveryPlan) -> Log:
    """The log for who looks at units, which a log that ended too early has lost the records of."""
    find = store.commit_log.mapped_file_queue.find_mapped_file_by_offset
    last = files[-1].file_from_offset + files[-1].file_size
    # A killed process may have dispatched records of a file that is gone with the power.
    torn_end = plan.log_end if plan.clean else last + store.commit_log.file_size
    begin = files[0].file_from_offset
    lost = LostRecords(store.env, store.commit_log, begin, plan.log_end)
    return Log(lambda at: find(at, False), begin, plan.log_end, torn_end, lost)


def _doubtful_ends(
    store: Recoverable, log: Log, repairs: Repairs
) -> dict[tuple[str, int], QueueEnd]:
    """The queues that do not end with a unit that names its record."""
    found = {}
    for queue in store.consume_queues():
        if queue.covered_phy_offset < 0:
            continue
        key = queue.topic, queue.queue_id
        end = look_at_end(log, key, queue, repairs.get(key, {}))
        if end.doubtful or end.is_cut or end.covered != queue.covered_phy_offset:
            found[key] = end
    return found


def _valid_records_behind(
    store: Recoverable,
    files: tuple[MappedFile, ...],
    at_file: int,
    is_usual: bool,
    plan: RecoveryPlan,
) -> list[tuple[str, int, int]]:
    """Pieces behind the end that must not be lost: (path, position, size) of each file."""
    if is_usual and at_file + 1 == len(files):
        return []
    pieces: list[tuple[str, int, int]] = []
    for file in files[at_file:]:
        start = plan.log_end - file.file_from_offset if file is files[at_file] else 0
        for begin, end in store.env.data_ranges(file.path, start, file.file_size):
            found = find_valid_record(
                store.env, file.path, file.file_from_offset, max(start, begin), end
            )
            if found >= 0:
                pieces.append((file.path, start, file.file_size - start))
                break
    if is_usual and all(path == files[at_file].path for path, _, _ in pieces):
        return []  # what 4.9.3 leaves behind a cut
    return pieces


def _await_last_record(store: Recoverable, file: MappedFile, piece: LogPiece) -> None:
    """Where another process is writing the log's last record just now, wait until it is whole.

    Its sum does not cover the properties, which are written last. A record that stays as it is was
    torn by a crash, and counts as in 4.9.3.
    """
    if piece.count == 0 or piece.file_from_offset != file.file_from_offset:
        return
    position = piece.position(piece.count - 1)
    for _ in range(LAST_RECORD_TRIES):
        if not has_torn_properties(file.read(position, piece.end - position)):
            return
        store.env.sleep(LAST_RECORD_WAIT_S)


def _has_grown(store: Recoverable, file: MappedFile, plan: RecoveryPlan) -> bool:
    """True when there is a record, or a BLANK, now where the scan found none."""
    position = plan.log_end - file.file_from_offset
    status, _, count, _ = scan_file(
        store.env, file.path, file.file_from_offset, position, file.file_size, True
    )
    return count > 0 or (status == RS_BLANK and plan.ended_by != status_name(RS_BLANK))


def _replay_from(
    store: Recoverable,
    plan: RecoveryPlan,
    seen: dict[tuple[str, int], tuple[int, int, int, int]],
) -> int | None:
    """The earliest of 4.9.3's start, any queue's loss point and the index's gap."""
    lowest = max(0, store.commit_log.get_min_offset())
    starts = [] if plan.clean else [plan.scan_from]
    table = {(q.topic, q.queue_id): q for q in store.consume_queues()}
    covered_by = {key: q.covered_phy_offset for key, q in table.items()} | plan.covered
    starts += [max(0, covered_by[key]) for key, q in table.items() if q.cut_short]
    starts += [lowest for _ in plan.headless]
    if not table:
        starts.append(lowest)  # all were taken away: older files may name queues that these do not
    for key, (first_offset, first_phy_offset, next_offset, _) in seen.items():
        queue = None if key in plan.headless else table.get(key)
        held = 0 if queue is None else queue.units_before(plan.log_end)
        if held >= next_offset:
            continue
        starts.append(first_phy_offset)
        if held < first_offset:
            covered = -1 if queue is None else covered_by[key]
            starts.append(lowest if covered < 0 else min(covered, plan.log_end))
    if not plan.clean and store.index_enabled:
        starts.append(max(lowest, store.index_service.indexed_phy_offset))
    if store.config.message_index_enable:
        behind = store.index_service.begin_of_files_behind(plan.log_end)
        starts += [] if behind < 0 else [behind]
    if not starts:
        return None
    return max(lowest, min(starts))


def apply_plan(store: Recoverable, plan: RecoveryPlan) -> None:
    """Cut the log and the queues, and dispatch again what they miss.

    Durability: pieces that hold valid records are moved to ROOT/.broken/<time> and forced before
    anything is cut. Raises StoreIOError.
    """
    log = store.commit_log
    is_early = plan.replay_from is not None and plan.replay_from < scan_start(store, False)
    if is_early or (plan.repairs and not store.read_only):
        store.checkpoint.uncover_log()
    if plan.empty:
        _set_queues_aside(store)
        log.open_end(0)
        store.dispatcher.position = 0
        return
    for path, position, _ in plan.broken:
        LOG.warning("%s: %s; valid records lie behind it", path, plan.ended_by)
        LOG.warning("the log ends before byte %d of %s", position, path)
    if plan.broken and not store.read_only:
        _keep_broken(store, plan)
    _repair_queues(store, plan)
    if plan.cut_queues:
        # Before the log: a unit that names a place far behind the log's files looks damaged.
        for queue in store.consume_queues():
            queue.truncate_dirty_logic_files(plan.log_end)
    log.mapped_file_queue.truncate_dirty_files(plan.log_end)
    store.checkpoint.begin_log(*_covered_log(store, plan))
    log.open_end(plan.log_end, None if plan.clean else plan.scan_from)
    if store.config.message_index_enable:
        store.index_service.drop_files_behind(plan.log_end, replays=plan.replay_from is not None)
        store.index_service.uncover_missing_files()
    for queue in store.consume_queues():
        if (queue.topic, queue.queue_id) in plan.headless:
            LOG.warning("%s/%d: its first file is missing", queue.topic, queue.queue_id)
            queue.begin_anew()
        elif queue.ext is not None and not plan.clean:
            # Units and ext units are forced apart: what the replay gives is made anew.
            queue.truncate_dirty_logic_files(min(plan.scan_from, plan.log_end))
        queue.cover_at_most(plan.log_end)
    if plan.replay_from is not None:
        _replay_plan(store, plan, plan.replay_from)
    if store.index_enabled and not store.read_only:
        fill_gaps(store, plan)
    _give_back_units(store, plan)
    for queue in store.consume_queues():
        queue.erase_torn_end()
        queue.cover_at_most(plan.log_end)
    store.dispatcher.position = plan.log_end
    if not plan.clean and not store.read_only:
        _force_again(store, plan)


def _give_back_units(store: Recoverable, plan: RecoveryPlan) -> None:
    """Put the units of lost records again behind the last record that the log has given."""
    queues = [queue for queue in store.consume_queues() if queue.keeps_units]
    files = store.commit_log.mapped_file_queue.mapped_files
    if not queues or not files:
        return
    log = _log_of(store, files, plan)
    for queue in queues:
        key = queue.topic, queue.queue_id

        def is_lost(kept: KeptUnit, key: tuple[str, int] = key) -> bool:
            if names_record(log, key, kept.queue_offset, kept.unit):
                return True
            return log.lost.range_of(*kept.unit[:2]) is not None

        queue.give_back(plan.log_end, is_lost)


def fill_gaps(store: Recoverable, plan: RecoveryPlan) -> None:
    """Put the keys that the log has between two index files, or before the first, into files of
    their own there; what is behind the last is dispatched again.

    Raises StoreIOError.
    """
    service, log = store.index_service, store.commit_log
    left = store.config.max_key_search_bytes
    files = service.files
    last = max((f.end_phy_offset for f in files if f.index_count > 1), default=-1)
    parts = uncovered(files, log, max(0, log.get_min_offset()), plan.log_end)
    for begin, end in parts:
        stop = min(end, begin + left)
        if begin > last or begin >= stop:
            continue
        left -= stop - begin
        first = first_missing_key(store.env, log, files, begin, stop)
        if first >= 0:
            count = service.fill_gap(missing_keys(store.env, log, files, begin, end), end)
            LOG.warning("%d keys were missing in the index before byte %d of the log", count, end)
            if service.has_dropped:
                _fill_end(store, begin, plan.log_end)
                return
        elif stop == end:
            plan.keyless.append((begin, end))


def _fill_end(store: Recoverable, begin: int, end: int) -> None:
    """Put the keys of the log behind the last index file, which may hold some of [begin, end)."""
    service, log = store.index_service, store.commit_log
    files = service.files
    for first, stop in uncovered(files, log, begin, end)[-1:]:
        count = service.fill_gap(missing_keys(store.env, log, files, first, stop), stop)
        LOG.warning("%d keys were put again into the index, from byte %d of the log", count, first)


def _covered_log(store: Recoverable, plan: RecoveryPlan) -> tuple[int, list[tuple[int, int]]]:
    """Up to where the log was surely forced, and the first store time of each file behind that."""
    if plan.clean:
        return plan.log_end, []
    files = store.commit_log.mapped_file_queue.mapped_files
    behind = [f for f in files if plan.scan_from < f.file_from_offset < plan.log_end]
    times = [(f.file_from_offset, _first_store_time(f)) for f in behind]
    return plan.scan_from, [(offset, stored) for offset, stored in times if stored is not None]


def _repair_queues(store: Recoverable, plan: RecoveryPlan) -> None:
    """Write the units that contradict the log as they must be; in a read-only store in memory."""
    for queue in store.consume_queues():
        units = plan.repairs.get((queue.topic, queue.queue_id))
        if units:
            repair_units(queue, units)
            covered = queue.reader.last_phy_offset()
            queue.core.reset(queue.get_max_offset_in_queue(), covered)


def _force_again(store: Recoverable, plan: RecoveryPlan) -> None:
    """What a killed process made and did not force: names now, what queues hold by their flush.

    After a failed fsync it is written again first, or no flush would bring it to the device.
    """
    root = store.config.store_path_root_dir
    again = store.env.write_again
    if not AbortFile(store.env, os.path.join(root, "abort")).is_marked():
        again = _leave
    for file in store.commit_log.mapped_file_queue.mapped_files:
        if file.file_from_offset >= plan.scan_from:
            again(file.path)
    folders = {os.path.join(root, name) for name in ("", "consumequeue", "index")}
    folders.update(store.config.commit_log_paths)
    for queue in store.consume_queues():
        if queue.covered_phy_offset > plan.scan_from:
            folders.add(os.path.join(queue.store_path, queue.topic))
            files = queue.mapped_file_queue
            if queue.ext is not None:
                ext_topic = os.path.join(root, "consumequeue_ext", queue.topic)
                folders |= {os.path.dirname(ext_topic), ext_topic}
                ext_files = queue.ext.mapped_file_queue
                for file in ext_files.mapped_files:
                    again(file.path)
                    file.force_again()
                ext_files.flushed_where = max(ext_files.get_min_offset(), 0)
            for file in reversed(files.mapped_files):
                again(file.path)
                file.force_again()
                files.flushed_where = min(files.flushed_where, file.file_from_offset)
                if int.from_bytes(file.read(0, 8), "big", signed=True) < plan.scan_from:
                    break  # what it shares with the file before it was forced earlier
    for folder in sorted(folders):
        if store.env.is_dir(folder):
            store.env.fsync_directory(folder)


def _leave(path: str) -> None:
    """The next fsync writes what is dirty."""


def _replay_plan(store: Recoverable, plan: RecoveryPlan, start: int) -> None:
    """Fill what 4.9.3 would leave out first, then go on as 4.9.3 does from its own start."""
    kept = store.index_service.files
    if not plan.clean and start < plan.scan_from and store.index_enabled:
        replay(store, start, plan.scan_from)
        start = plan.scan_from
        if not kept or kept[-1].is_write_full():
            last = kept[-1] if kept else None
            store.dispatcher.set_index_file(store.index_service.begin_new_file(last))
    replay(store, start, plan.log_end, plan.pieces)


def replay(store: Recoverable, start: int, end: int, known: deque[LogPiece] | None = None) -> None:
    """Dispatch the records in [start, end) again; what queues and index have is passed over.

    `known` are pieces of this part of the log, in order; they are taken out as they are used.

    A record that cannot be read, which only an old file that recovery does not check may hold, is
    stepped over to the next that can.
    """
    log = store.commit_log
    position = start
    while position < end:
        check_abandoned()
        reached = _replay_pieces(store, position, end, deque() if known is None else known)
        if reached > position:
            store.dispatcher.position = position = reached
            continue
        file = log.mapped_file_queue.find_mapped_file_by_offset(position, False)
        if file is None:
            position = log.roll_next_file(position)
            continue
        base = file.file_from_offset
        stop = min(end - base, file.file_size)
        status, reached = store.dispatcher.dispatch_file(
            store.env, file.path, base, position - base, stop
        )
        if status == RS_OK:
            position = base + reached if reached < file.file_size else base + file.file_size
        elif status == RS_BLANK:
            position = log.roll_next_file(position)
        else:
            found = find_valid_record(store.env, file.path, base, reached + 1, stop)
            LOG.error("%s at byte %d: %s", file.path, reached, status_name(status))
            position = base + found if found >= 0 else log.roll_next_file(base + reached)
        store.dispatcher.position = position


def _replay_pieces(store: Recoverable, start: int, end: int, known: deque[LogPiece]) -> int:
    """Dispatch piece by piece; gives the physical offset up to which that went well."""
    log = store.commit_log
    position = _replay_known(store, start, known)
    if position > start or position >= end:
        return position
    scan = LogScan(
        store.env,
        log.mapped_file_queue.mapped_files,
        start,
        end,
        delay_levels=log.delay_levels,
        check_crc=False,
        records_max=None,  # each piece goes when it is dispatched
    )
    for piece in scan.pieces():
        position = _dispatch_piece(store, piece)
    return position


def _replay_known(store: Recoverable, start: int, known: deque[LogPiece]) -> int:
    """As _replay_pieces, of what the scan kept: one thread fills queues, another the index."""
    if len(known) < INDEX_THREAD_MIN or store.env.processor_count() < 2:
        return _dispatch_in_turn(store, start, known)
    dispatcher = store.dispatcher
    position = start
    # Queued, and to be indexed, in order.
    waiting: deque[tuple[LogPiece, Future[bool]]] = deque()
    with ThreadPoolExecutor(1, "ReplayIndex") as pool:
        while known and _begin_of(known[0]) <= position:
            if _begin_of(known[0]) < position:
                known.popleft()
            elif dispatcher.queue_piece(known[0], not waiting):
                piece = known.popleft()
                waiting.append((piece, pool.submit(dispatcher.index_piece, piece)))
                position = _end_of(store, piece)
            elif waiting:
                position = _await_indexed(store, waiting, position)
            else:
                position = _dispatch_piece(store, known.popleft())
        if waiting:
            position = _await_indexed(store, waiting, position)
    return position


def _await_indexed(
    store: Recoverable,
    waiting: deque[tuple[LogPiece, Future[bool]]],
    position: int,
) -> int:
    """Wait for the index; what it could not take is dispatched in turn. Gives the position."""
    left: deque[LogPiece] = deque()
    for piece, indexed in waiting:
        if indexed.result():
            store.dispatcher.pass_piece(piece)
        else:
            left.append(piece)
    waiting.clear()
    if not left:
        return position
    return _dispatch_in_turn(store, _begin_of(left[0]), left)


def _dispatch_in_turn(store: Recoverable, start: int, known: deque[LogPiece]) -> int:
    """Dispatch each piece whole before the next; takes them out."""
    position = start
    while known and _begin_of(known[0]) <= position:
        piece = known.popleft()
        if _begin_of(piece) == position:
            position = _dispatch_piece(store, piece)
    return position


def _begin_of(piece: LogPiece) -> int:
    return piece.file_from_offset + piece.begin


def _end_of(store: Recoverable, piece: LogPiece) -> int:
    """Where the log goes on: behind a piece that ends at a BLANK that is the next file's first."""
    end = piece.file_from_offset + piece.end
    return store.commit_log.roll_next_file(end) if piece.status == RS_BLANK else end


def _dispatch_piece(store: Recoverable, piece: LogPiece) -> int:
    """Dispatch a piece; gives the physical offset up to which that went well."""
    dispatcher, base = store.dispatcher, piece.file_from_offset
    at, run = 0, 1
    while True:
        done = dispatcher.dispatch_piece(piece, at)
        if done == piece.count:
            break
        run = min(2 * run, UNCOMMON_RUN_MAX) if done - at < COMMON_RUN else 1
        at = min(done + run, piece.count)
        stop = piece.position(at)
        _, reached = dispatcher.dispatch_file(
            store.env, piece.path, base, piece.position(done), stop
        )
        if reached != stop:
            return base + reached
    return _end_of(store, piece)


def _keep_broken(store: Recoverable, plan: RecoveryPlan) -> None:
    """Copy the pieces that hold valid records, each to a file named by its physical offset."""
    env = store.env
    folder = broken_folder(env, store.config.store_path_root_dir)
    env.make_directories(folder)
    for path, position, size in plan.broken:
        start = int(os.path.basename(path)) + position
        target = os.path.join(folder, f"{start:020d}")
        env.copy_range(path, target, position, size)
        LOG.warning("%d bytes from byte %d of %s were kept as %s", size, position, path, target)


def _set_queues_aside(store: Recoverable) -> None:
    """An empty log: its queues and index say nothing any more, but are kept out of harm's way.

    Source: RocketMQ 4.9.3 DefaultMessageStore#destroyLogics.
    Differs: moved to ROOT/.broken/<time> instead of deleted; the index too, which would count the
    first records of a new log as indexed.
    """
    queues = [queue for queue in store.consume_queues() if queue.get_max_offset_in_queue() > 0]
    index = any(file.end_phy_offset > 0 for file in store.index_service.files)
    if not queues and not index:
        return
    root = store.config.store_path_root_dir
    text = f"{root}: the commit log is empty, and its {len(queues)} consume queues and the index"
    if store.read_only:
        LOG.warning("%s say nothing; opening the store for writing moves them to .broken", text)
    else:
        env = store.env
        folder = broken_folder(env, root)
        env.make_directories(folder)
        for name in ("consumequeue", "consumequeue_ext", "index"):
            if env.is_dir(os.path.join(root, name)):
                env.rename(os.path.join(root, name), os.path.join(folder, name))
        env.make_directories(os.path.join(root, "consumequeue"))
        store.index_service.forget_files()
        LOG.warning("%s were moved to %s", text, folder)
    for queue in store.consume_queues():
        queue.forget_files()


def flush_recovered(store: Recoverable) -> None:
    """Flush what recovery changed, where no service has been started."""
    for queue in store.consume_queues():
        while not queue.flush(0):
            pass
    while not store.commit_log.mapped_file_queue.flush(0):
        pass


def check_not_newer(store: Recoverable) -> None:
    """Refuse a store that a 5.x broker wrote: opening it would cut what 4.9.3 cannot read.

    Raises StoreCorruptionError with the file.
    """
    for file in store.commit_log.mapped_file_queue.mapped_files:
        head = file.read(0, min(8, file.wrote))
        if head[4:8] == bytes.fromhex("DAA320AB"):
            raise StoreCorruptionError(
                file.path, 0, "a record of RocketMQ 5.x (magic DAA320AB): not a 4.9.3 store"
            )


__all__ = [
    "RecoveryPlan",
    "apply_plan",
    "check_not_newer",
    "make_plan",
    "replay",
    "scan_start",
]
