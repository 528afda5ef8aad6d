"""verify: compare log, queues and index of an open store; nothing is changed."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyrocketstore.columns._record_walk import BAD_PROPERTIES, RecordWalk, read_ext_units
from pyrocketstore.commit_log._scan import verdict_of
from pyrocketstore.commit_log.log_end import first_store_time
from pyrocketstore.commit_log.other_formats import why_only_read
from pyrocketstore.consume_queue.ext import MAX_ADDR, un_decorate
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.table import is_safe_name
from pyrocketstore.consume_queue.unit_check import DELAY_MAX_MS
from pyrocketstore.consume_queue.units import (
    CQ_STORE_UNIT_SIZE,
    PRE_BLANK_SIZE,
    differing_units,
)
from pyrocketstore.errors import StoreIOError, StoreStateError
from pyrocketstore.index._file import index_file_size
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.message_store.lost_ends import (
    gap_text,
    missing_names,
    reason_without_files,
)
from pyrocketstore.record.message import SCHEDULE_TOPIC
from pyrocketstore.record.multi_dispatch import further_queues
from pyrocketstore.results import Status
from pyrocketstore.system.live_stores import Attempts, was_removed
from pyrocketstore.verify.index_check import HEADER_DAMAGE, IndexCheck, Keys, damaged_headers
from pyrocketstore.verify.opening_problems import damaged_end, lost_log_end, opening_problems
from pyrocketstore.verify.other_offsets import OffsetSearch
from pyrocketstore.verify.report import LostFiles, Problem, VerifyReport

if TYPE_CHECKING:
    from pyrocketstore.files._mapped_file import MappedFile

#: Units of one read.
UNIT_COUNT = 1 << 16
#: Records whose unit has another physical offset: more are only counted.
MISPLACED_MAX = 1 << 20
#: Bytes of one read of ext units, and of the longest ext unit.
EXT_READ_SIZE = 1 << 20
EXT_UNIT_SIZE_MAX = 32767

Int64s = NDArray[np.int64]


def verify_store(
    files: LoadedFiles,
    check_root: Callable[[], None],
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Check log, queues and index of a loaded store against each other.

    Files are read in chunks of bounded size. A store that is being written to is checked up to the
    last record that was dispatched when the call began. In a read-only store, units that recovery
    built in memory are reported too: as problems after a clean stop, else as `rebuilt`.

    Parameters
    ----------
    files : LoadedFiles, not closed before the end of the call
    check_root : callable(), raises StoreStateError if the directory of a read-only store was moved
        or replaced
    progress : callable(bytes of the log done, bytes in total), or None

    Raises
    ------
    StoreIOError, StoreCorruptionError: a file cannot be read. StoreStateError: it was closed, or
    the directory of a read-only store was moved or replaced.

    If files were deleted meanwhile, by the store's cleaner or by the owner of a store that is open
    read-only here, the check is repeated, in a read-only store with newly listed files. A problem
    then counts if both checks find it.

    Threads: any; the store may be used meanwhile.
    """
    attempts = Attempts(files.env)
    before: VerifyReport | None = None
    while True:
        check_root()
        listed = _listed(files)
        try:
            report = _check(files, progress, again=before is not None)
        except StoreIOError as error:
            check_root()
            if not was_removed(error) or not attempts.another():
                raise
            before = before or VerifyReport(files.root)
            continue
        check_root()
        is_same = listed == _listed(files)
        if report.ok or is_same or report.is_like(before) or not attempts.another():
            return report
        before = report


def _has_owner(files: LoadedFiles) -> bool:
    """Return True if another process may write to the store, or was killed during a write."""
    return files.env.exists(f"{files.root}/abort")


def _listed(files: LoadedFiles) -> object:
    """Return the first file of the log, of each queue and of the index; of a read-only store, an
    object that is equal to no other one while it may have an owner."""
    if files.read_only:
        return object() if _has_owner(files) else None
    queues = {
        (queue.topic, queue.queue_id): queue.mapped_file_queue.get_min_offset()
        for queue in files.consume_queues()
    }
    index = files.index_service.files
    return files.commit_log.get_min_offset(), queues, index[0].name if index else ""


def _check(
    files: LoadedFiles, progress: Callable[[int, int], None] | None, *, again: bool
) -> VerifyReport:
    """Check once; `again`: list the files of a read-only store again."""
    if not (again and files.read_only):
        return _Verifier(files, progress).run()
    fresh = DefaultMessageStore(files.config, env=files.env, read_only=True)
    fresh.load()
    try:
        return _Verifier(fresh.files, progress).run()
    finally:
        fresh.shutdown()


class Intervals:
    """Disjoint ranges [start, end) of queue offsets."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.starts, self.ends, strict=True)

    def add(self, start: int, end: int) -> None:
        """Add [start, end)."""
        if not self.ends or start > self.ends[-1]:
            self.starts.append(start)
            self.ends.append(end)
            return
        first = bisect.bisect_left(self.ends, start)
        last = bisect.bisect_right(self.starts, end)
        if first < last:
            start = min(start, self.starts[first])
            end = max(end, self.ends[last - 1])
        self.starts[first:last] = [start]
        self.ends[first:last] = [end]

    def add_offsets(self, offsets: Int64s) -> None:
        """Add offsets in any order."""
        for start, count in _runs(np.sort(offsets)):
            self.add(start, start + count)

    def holds(self, offsets: Int64s) -> NDArray[np.bool_]:
        """Return bool[n]: True for each offset inside a range."""
        at = np.searchsorted(np.array(self.starts, np.int64), offsets, side="right") - 1
        ends = np.array([*self.ends, -1], np.int64)
        return np.asarray((at >= 0) & (offsets < ends[at]), np.bool_)

    def gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of [start, end) outside of all ranges."""
        for inner_start, inner_end in self:
            if inner_start >= end:
                break
            if start < inner_start:
                yield start, inner_start
            start = max(start, inner_end)
        if start < end:
            yield start, end


def _runs(offsets: Int64s) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers as (first, count)."""
    if not len(offsets):
        return []
    edges = np.flatnonzero(np.diff(offsets) != 1) + 1
    firsts = [0, *edges.tolist()]
    ends = [*firsts[1:], len(offsets)]
    return [(int(offsets[a]), b - a) for a, b in zip(firsts, ends, strict=True)]


@dataclasses.dataclass
class _Rows:
    """Records of one queue: columns of one length."""

    queue_offset: Int64s
    phy_offset: Int64s
    size: NDArray[np.int32]
    tags_code: Int64s
    store_timestamp: Int64s

    def take(self, rows: NDArray[Any]) -> _Rows:
        return _Rows(*(column[rows] for column in vars(self).values()))


class _QueueState:
    """One queue and its checked units."""

    def __init__(self, queue: ConsumeQueue) -> None:
        self.queue = queue
        #: units that a record of the log was compared with
        self.covered = Intervals()
        #: units that a record of the log requires and that do not exist
        self.missing = Intervals()
        #: number of these records
        self.missing_records = 0
        #: (queue offset, phy_offset) of records whose unit has another physical offset
        self.misplaced: list[tuple[Int64s, Int64s]] = []

    def path(self, queue_offset: int) -> str:
        """Return the path of a unit's file, which may be missing."""
        size = self.queue.mapped_file_size
        start = queue_offset * CQ_STORE_UNIT_SIZE // size * size
        directory = f"{self.queue.store_path}/{self.queue.topic}/{self.queue.queue_id}"
        return f"{directory}/{start:020d}"

    def ext_path(self, store: LoadedFiles) -> str:
        """Return the directory of the queue's ext units, which may be missing."""
        return f"{store.queue_table.ext_path}/{self.queue.topic}/{self.queue.queue_id}"

    def position(self, queue_offset: int) -> int:
        """Return the position of a unit in its file, bytes."""
        return queue_offset * CQ_STORE_UNIT_SIZE % self.queue.mapped_file_size

    def by_file(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield [start, end), divided at the borders of files."""
        per_file = self.queue.units_per_file
        while start < end:
            stop = min(end, start + per_file - start % per_file)
            yield start, stop
            start = stop


def _units_text(start: int, end: int) -> str:
    return f"unit {start} is" if end == start + 1 else f"units {start} to {end - 1} are"


class _Verifier:
    def __init__(self, store: LoadedFiles, progress: Callable[[int, int], None] | None) -> None:
        self.store = store
        self.env = store.env
        self.log = store.commit_log
        self.progress = progress or (lambda done, total: None)
        self.report = VerifyReport(store.root)
        self.report.only_read = why_only_read(self.env, store.config)
        lowest = max(0, self.log.get_min_offset())
        # Units of later records may not exist yet.
        self.end = min(self.log.get_max_offset(), int(store.dispatcher.position))
        self.low = min(lowest, self.end)  # its owner may have deleted all files known here
        if lowest > self.end and self.log.mapped_file_queue.mapped_files:  # they were released
            raise StoreStateError(f"{store.root}: the store was closed while it was checked")
        self.walk = RecordWalk(self.log.delay_levels, self.end - self.low)
        self.states: dict[tuple[str, int], _QueueState | None] = {}
        self.numbered: list[_QueueState | None] = []
        self.damaged = Intervals()
        self.misplaced_count = 0
        #: store time of the last record, Unix ms; 0 without one
        self.last_stored = 0
        # A store that was not stopped may have an owner that is still writing.
        self.is_live = _has_owner(store)
        files = store.index_service.files if store.config.message_index_enable else ()
        self.index = IndexCheck(
            self.env,
            files,
            self.report,
            self.low,
            self.end,
            self.log.get_max_offset,
            live=self.is_live,
        )

    def run(self) -> VerifyReport:
        report = self.report
        report.undispatched_bytes = self.log.get_max_offset() - self.end
        if not self.log.mapped_file_queue.mapped_files:
            report.no_log = reason_without_files(self.env, self.store.config)
        unknown = self.store.index_service.geometry_error
        if unknown is not None and self.store.config.message_index_enable:
            report.index_unchecked = str(unknown)
            report.not_indexed = report.not_indexed_keys = None
        for problem in opening_problems(self.store):
            if problem.kind == "log":
                report.add_first(problem)
            else:
                report.add(problem, repaired=True)
        self._recovery()
        self._log_files()
        self._lost_end()
        for key in sorted({(q.topic, q.queue_id) for q in self.store.consume_queues()}):
            self._state(*key)
        for key, state in sorted(self.states.items()):
            if state is not None:
                report.queues += key in self._known
                self._finish_queue(state)
                self._compare_with_disk(state)
        self.index.finish()
        for path in damaged_headers(self.store):
            report.add(Problem("index", path, 0, HEADER_DAMAGE))
        return report

    # ---- the opening ----------------------------------------------------------------------------

    def _recovery(self) -> None:
        plan, unmade = self.store.plan, self.store.unmade
        self._known = {(q.topic, q.queue_id) for q in self.store.consume_queues()}
        self._clean = plan is None or plan.clean
        if plan is None:
            return
        self.report.recovery = plan.report()
        if unmade is None or plan.empty:
            return
        damage = damaged_end(self.store, plan)
        if damage is not None:
            self.report.ends_at_damage = plan.log_end
            if plan.broken:
                self.report.add(damage)
        elif plan.clean and not self.is_live and self.store.index_enabled:
            folder = f"{self.store.root}/index"
            paths = [f"{folder}/{name}" for name, size in self.env.list_files(folder) if size]
            paths = [path for path in paths if path.rpartition("/")[2].isdigit()]
            self.index.not_loaded(paths, index_file_size(*self.store.index_service.geometry))

    # ---- the log ------------------------------------------------------------------------------

    def _log_files(self) -> None:
        expected = None
        for file in self.log.mapped_file_queue.mapped_files:
            base = file.file_from_offset
            if base >= self.end:
                break
            if expected is not None and base != expected:
                self._gap(expected, file)
                self.damaged.add(expected, base)
                self.index.damaged(expected, base)
            expected = base + file.file_size
            self.report.files += 1
            self._log_file(file)
        self.progress(self.end - self.low, self.end - self.low)

    def _gap(self, begin: int, file: MappedFile) -> None:
        """Report the files that are missing between `begin` of the log and a file."""
        size, end = self.log.mapped_file_queue.mapped_file_size, file.file_from_offset
        text = gap_text(begin, end, size)
        self.report.add(Problem("log", file.path, 0, text))
        names = missing_names(begin, end, size)
        before = first_store_time(file) or 0
        self.report.lost_files.append(LostFiles(names, text, self.last_stored, before))

    def _lost_end(self) -> None:
        """Note the files that are missing at the end of the log: the opening reports them."""
        lost = lost_log_end(self.store)
        if lost is not None and lost.begin >= 0:
            names = missing_names(
                lost.begin, lost.end, self.store.config.mapped_file_size_commit_log
            )
            self.report.lost_files.append(LostFiles(names, lost.reason, self.last_stored))

    def _log_file(self, file: MappedFile) -> None:
        base = file.file_from_offset
        stop = min(self.end - base, file.file_size)
        end, status = 0, int(Status.OK)
        for begin, end, status in self.walk.ranges(self.env, file.path, base, stop):
            if status == Status.OK:
                self._chunk(base + begin, base + end)
            elif status == Status.BLANK:
                self.report.blanks += 1
                self.index.chunk(base + begin, base + end, None)
                return
            else:
                self._damage(file, begin, end, status)
            self.progress(base + end - self.low, self.end - self.low)
        if base + file.file_size < self.end and status == Status.OK:
            text = "the file is not ended by a BLANK"
            self.report.add(Problem("log", file.path, end, text))

    def _damage(self, file: MappedFile, begin: int, end: int, status: int) -> None:
        """Report the damage in [begin, end), bytes into the file."""
        base = file.file_from_offset
        verdict = verdict_of(status, file.wrote == file.file_size)
        text = f"{verdict}; {end - begin} bytes hold no record"
        self.report.add(Problem("log", file.path, begin, text))
        self.report.damaged_bytes += end - begin
        self.damaged.add(base + begin, base + end)
        self.index.damaged(base + begin, base + end)

    def _chunk(self, start: int, end: int) -> None:
        """Compare the records in [start, end) of the log with their units and index entries."""
        walk = self.walk
        report = self.report
        report.records += walk.count
        report.bytes += end - start
        report.keys += walk.key_count
        if not walk.count:
            return
        queue = walk.column("queue")
        rows = _Rows(
            walk.column("queue_offset"),
            walk.column("phy_offset"),
            walk.column("size"),
            walk.column("tags_code"),
            walk.column("store_timestamp"),
        )
        self.last_stored = int(rows.store_timestamp[-1])
        report.skipped_properties += walk.skipped_properties
        report.bad_properties += len(walk.bad_properties)
        for row in report.kept(walk.bad_properties):  # a record's checksum covers the body alone
            path, position = self.log.position_of(int(rows.phy_offset[row]))
            report.add(Problem("log", path, position, BAD_PROPERTIES))
        report.unqueued += int(np.count_nonzero(queue < 0))
        names = walk.queue_names()
        for topic, queue_id in names[len(self.numbered) :]:
            self.numbered.append(self._state(topic, queue_id))
        order = np.argsort(queue, kind="stable")
        edges = np.flatnonzero(np.diff(queue[order])) + 1
        for part in np.split(order, edges):
            number = int(queue[part[0]])
            if number < 0:
                continue
            state = self.numbered[number]
            if state is None:
                report.unnameable += len(part)
            else:
                self._compare(state, rows.take(part), True)
        self._multi(rows)
        if self.store.config.message_index_enable:
            keys = Keys(
                rows.phy_offset,
                rows.store_timestamp,
                walk.column("key_row"),
                walk.column("key_hash"),
                self.log.position_of,
            )
            self.index.chunk(start, end, keys)

    # ---- queues: from the records to the units --------------------------------------------------

    def _state(self, topic: str, queue_id: int) -> _QueueState | None:
        """Return the queue; None for a name that is not a valid directory name."""
        key = (topic, queue_id)
        if key not in self.states:
            usable = is_safe_name(topic) and queue_id >= 0
            found = self.store.queue_table.find(topic, queue_id) if usable else None
            self.states[key] = None if found is None else _QueueState(found)
        return self.states[key]

    def _multi(self, rows: _Rows) -> None:
        """Compare records with their units in further queues (INNER_MULTI_ properties)."""
        wanted: dict[tuple[str, int], list[tuple[int, int]]] = {}
        config = self.store.config
        light = config.enable_lmq or not config.enable_multi_dispatch
        for row, names, offsets, own_id in self.walk.multi:
            found = further_queues(names, offsets, own_id, light_queues=light)
            for topic, queue_id, queue_offset in found or ():
                if topic and queue_offset is not None and 0 <= queue_offset < 1 << 62:
                    wanted.setdefault((topic, queue_id), []).append((row, queue_offset))
        for (topic, queue_id), pairs in wanted.items():
            state = self._state(topic, queue_id)
            if state is None:
                self.report.unnameable += len(pairs)
                continue
            table = np.array(pairs, np.int64)
            part = rows.take(table[:, 0])
            part.queue_offset = table[:, 1]
            self._compare(state, part, config.enable_multi_dispatch)

    def _units(self, queue: ConsumeQueue, start: int, count: int) -> tuple[Any, Any, Any]:
        """Return `count` units from `start` on as columns; a missing unit has size 0."""
        phy_offset = np.zeros(count, np.int64)
        size = np.zeros(count, np.int32)
        tags_code = np.zeros(count, np.int64)
        end = min(count, queue.get_max_offset_in_queue() - start) if start >= 0 else 0
        done = 0
        while done < end:
            part = queue.read_units(start + done, end - done)
            read = len(part.phy_offset)
            phy_offset[done : done + read] = part.phy_offset
            size[done : done + read] = part.size
            tags_code[done : done + read] = part.tags_code
            # Without units the file is missing; the next one may exist.
            per_file = queue.units_per_file
            done += read or per_file - (start + done) % per_file
        return phy_offset, size, tags_code

    def _compare(self, state: _QueueState, rows: _Rows, required: bool) -> None:
        """Compare records with their units; `required` False: a missing unit is not a problem, nor
        is that of a removed message."""
        removed = rows.phy_offset < state.queue.removed_before
        if required and removed.any():
            self._compare(state, rows.take(removed), False)
            rows = rows.take(~removed)
        if not len(rows.phy_offset):
            return
        units = [self._units(state.queue, a, n) for a, n in _runs(rows.queue_offset)]
        columns = zip(*units, strict=True)
        phy_offset, size, tags_code = (np.concatenate(column) for column in columns)
        absent = (size <= 0) | ((size == PRE_BLANK_SIZE) & (phy_offset == 0) & (tags_code == 0))
        same = ~absent & (phy_offset == rows.phy_offset)
        checked = same
        if state.queue.ext is not None:
            # Recovery does not write ext units of removed messages again; others get their place.
            checked = same & (rows.phy_offset >= state.queue.removed_before)
        self._check_tags(state, rows, checked, size, tags_code)
        state.covered.add_offsets(rows.queue_offset[same])
        if not required:
            return
        if absent.any():
            state.missing.add_offsets(rows.queue_offset[absent])
            state.missing_records += int(np.count_nonzero(absent))
        elsewhere = ~absent & ~same
        if elsewhere.any():
            self.misplaced_count += int(np.count_nonzero(elsewhere))
            if self.misplaced_count > MISPLACED_MAX:
                self.report.problem_count += int(np.count_nonzero(elsewhere))
                state.covered.add_offsets(rows.queue_offset[elsewhere])
            else:
                offsets = (rows.queue_offset[elsewhere], rows.phy_offset[elsewhere])
                state.misplaced.append(offsets)

    def _check_tags(
        self,
        state: _QueueState,
        rows: _Rows,
        same: NDArray[np.bool_],
        size: NDArray[np.int32],
        tags_code: Int64s,
    ) -> None:
        """Report units with the right physical offset and a wrong size or tags code."""
        bad_size = same & (size != rows.size)
        is_ext = same & (tags_code <= MAX_ADDR)
        codes = tags_code
        if is_ext.any():
            codes = tags_code.copy()
            where = np.flatnonzero(is_ext)
            self._resolve_ext(state, rows.take(where), where, codes)
        bad_code = same & ~bad_size & (codes != rows.tags_code)
        if state.queue.topic == SCHEDULE_TOPIC:  # times of delivery by an earlier messageDelayLevel
            stored = rows.store_timestamp
            bad_code &= (stored < 0) | (codes < stored) | (codes - DELAY_MAX_MS > stored)
        for row in self.report.kept(np.flatnonzero(bad_size | bad_code).tolist()):
            text = f"the tags code {codes[row]}, but the record's is {rows.tags_code[row]}"
            if bad_size[row]:
                text = f"the size {size[row]}, but the record has {rows.size[row]} bytes"
            self._unit_problem(state, rows.queue_offset[row], f"has {text}")

    def _unit_problem(self, state: _QueueState, at: int | np.int64, text: str) -> None:
        at = int(at)
        where = (state.path(at), state.position(at))
        self.report.add(Problem("queue", *where, f"unit {at} {text}"))

    # ---- ext units ------------------------------------------------------------------------------

    def _resolve_ext(self, state: _QueueState, rows: _Rows, where: Int64s, codes: Int64s) -> None:
        """Replace the ext addresses at `where` of `codes` by the tags codes of their units.

        An address without a unit is reported, and gets the record's own code.
        """
        self.report.ext_units += len(where)
        ext = state.queue.ext
        addresses = codes[where]
        codes[where] = rows.tags_code
        if ext is None and self.env.is_dir(state.ext_path(self.store)):
            self.report.ext_unresolved += len(where)
            return
        if ext is None:
            lost = np.arange(len(where))
            self._read_ext(state, rows, where, codes, lost, lost, b"")
            return
        real = np.array([un_decorate(address) for address in addresses.tolist()], np.int64)
        order = np.argsort(real, kind="stable")
        done = 0
        while done < len(order):
            first = int(real[order[done]])
            file_size = ext.mapped_file_size
            limit = min(first + EXT_READ_SIZE, first - first % file_size + file_size)
            stop = max(done + 1, int(np.searchsorted(real[order], limit)))
            part = order[done:stop]
            file = ext.mapped_file_queue.find_mapped_file_by_offset(first)
            position = first % file_size
            data = b""
            if file is not None and position < file.wrote:
                last = int(real[part[-1]]) % file_size
                data = file.read(position, min(file.wrote, last + EXT_UNIT_SIZE_MAX) - position)
            self._read_ext(state, rows, where, codes, part, real[part] - first, data)
            done = stop

    def _read_ext(
        self,
        state: _QueueState,
        rows: _Rows,
        where: Int64s,
        codes: Int64s,
        part: Int64s,
        positions: Int64s,
        data: bytes,
    ) -> None:
        found = rows.tags_code[part]
        times = rows.store_timestamp[part]
        whole = np.zeros(len(part), np.uint8)
        if data:
            read_ext_units(data, positions, found, times, whole)
        codes[where[part]] = np.where(whole, found, rows.tags_code[part])
        for row in np.flatnonzero((whole == 0) | (times != rows.store_timestamp[part])).tolist():
            at = int(rows.queue_offset[part[row]])
            text = (
                f"unit {at} names an ext unit that is not there"
                if not whole[row]
                else f"the ext unit of unit {at} has the store time {times[row]}, "
                f"but the record's is {rows.store_timestamp[part[row]]}"
            )
            self.report.add(Problem("ext", state.path(at), state.position(at), text))

    # ---- queues: from the units to the records --------------------------------------------------

    def _finish_queue(self, state: _QueueState) -> None:
        """Report missing units, then check the units that no record was compared with."""
        files = state.queue.mapped_file_queue.mapped_files
        end = state.queue.get_max_offset_in_queue() if files else 0
        first = files[0].file_from_offset // CQ_STORE_UNIT_SIZE if files else 0
        self._finish_other_offsets(state, first, end)
        self._finish_misplaced(state)
        self._finish_missing(state)
        self.report.units += max(0, end - first)
        lowest = max(0, self.log.get_min_offset())
        self.report.messages += max(0, end - state.queue.first_readable_offset(lowest))
        for start, stop in list(state.covered.gaps(first, end)):
            for at in range(start, stop, UNIT_COUNT):
                self._unanswered(state, at, min(UNIT_COUNT, stop - at))

    def _finish_other_offsets(self, state: _QueueState, first: int, end: int) -> None:
        """Report records that state another queue offset than the unit that names them, and
        require no unit at that other offset. `first`, `end`: the units of the queue."""
        offsets = [each for each, _ in state.misplaced]
        contested = np.sort(np.concatenate(offsets)) if offsets else np.zeros(0, np.int64)
        search = OffsetSearch(self.log, state.queue, contested, self.low, self.end)
        found = list(search.find(state.covered.gaps(first, end), first, end))
        stated = Intervals()
        for queue_offset, other, phy_offset in found:
            text = (
                f"the record is damaged: it states queue offset {other}, but unit"
                f" {queue_offset} of the queue {state.queue.topic}/{state.queue.queue_id} names the"
                f" record; no checksum covers this field; `get {phy_offset}` prints the message"
            )
            path, position = self.log.position_of(phy_offset)
            self.report.add_other_offset(Problem("log", path, position, text))
            state.covered.add(queue_offset, queue_offset + 1)
            stated.add(other, other + 1)
        if not found:
            return
        # With two records of one offset, the other one may lack its unit.
        if state.missing_records == sum(stop - start for start, stop in state.missing):
            missing, state.missing = state.missing, Intervals()
            for interval in missing:
                for gap in stated.gaps(*interval):
                    state.missing.add(*gap)
        records = np.array([each.phy_offset for each in found], np.int64)
        others = [(*each, ~np.isin(each[1], records)) for each in state.misplaced]
        state.misplaced = [(at[rows], of[rows]) for at, of, rows in others if rows.any()]

    def _finish_missing(self, state: _QueueState) -> None:
        """Report units that do not exist though the log has their records."""
        count = 0
        for interval in state.missing:
            for start, end in state.by_file(*interval):
                text = f"{_units_text(start, end)} missing, though the log has the message"
                text += "" if end == start + 1 else "s"
                where = (state.path(start), state.position(start))
                self.report.add(Problem("queue", *where, text, end - start), missing=True)
                count += end - start
            state.covered.add(*interval)
        if count:
            self.report.missing_units += count
            self.report.missing_units_of[state.queue.topic, state.queue.queue_id] = count

    def _finish_misplaced(self, state: _QueueState) -> None:
        """Report records whose unit has another physical offset.

        That of a later record with an equal queue offset is valid: a queue may have been destroyed
        and begun again.
        """
        for offsets, phy_offsets in state.misplaced:
            units = [self._units(state.queue, a, n) for a, n in _runs(offsets)]
            named, sizes, _ = (np.concatenate(column) for column in zip(*units, strict=True))
            repeated = state.covered.holds(offsets)
            self.report.repeated += int(np.count_nonzero(repeated))
            wrong = np.flatnonzero(~repeated | (named < phy_offsets))
            for row in self.report.kept(wrong.tolist()):
                message = "a later message of it" if repeated[row] else "its message"
                text = f"names {sizes[row]} bytes at {named[row]} of the log, but {message} is at"
                self._unit_problem(state, offsets[row], f"{text} {phy_offsets[row]}")
            state.covered.add_offsets(offsets)
        state.misplaced = []

    def _unanswered(self, state: _QueueState, start: int, count: int) -> None:
        """Check units that no record of the log was compared with."""
        phy_offset, size, tags_code = self._units(state.queue, start, count)
        blank = (size == PRE_BLANK_SIZE) & (phy_offset == 0) & (tags_code == 0)
        empty = size <= 0
        expired = ~blank & ~empty & (phy_offset < self.low)
        newer = (phy_offset >= self.end) & (phy_offset < self.log.get_max_offset())
        in_damage = ~blank & ~empty & self.damaged.holds(phy_offset)
        self.report.pre_blank += int(np.count_nonzero(blank))
        self.report.expired += int(np.count_nonzero(expired))
        self.report.units_in_damage += int(np.count_nonzero(in_damage))
        starts = [file.file_from_offset for file in state.queue.mapped_file_queue.mapped_files]
        positions = np.arange(start, start + count, dtype=np.int64) * CQ_STORE_UNIT_SIZE
        # The file is missing, and the log has no record for it either.
        in_no_file = empty & ~np.isin(positions - positions % state.queue.mapped_file_size, starts)
        wrong = ~(blank | expired | newer | in_damage | in_no_file)
        rows = np.flatnonzero(wrong)
        # Adjacent empty units of one file are one problem.
        both = empty[rows[1:]] & empty[rows[:-1]] & (np.diff(rows) == 1)
        both &= (start + rows[1:]) % state.queue.units_per_file != 0
        begins = np.flatnonzero(np.r_[True, ~both]) if len(rows) else rows
        counts = np.diff(np.r_[begins, len(rows)])
        kept = self.report.kept(rows[begins].tolist())
        self.report.problem_count += int(np.sum(counts[len(kept) :] - 1))
        for row, units in zip(kept, counts.tolist(), strict=False):
            text = f"names {size[row]} bytes at {phy_offset[row]} of the log, where no message of"
            if not empty[row]:
                self._unit_problem(state, start + row, f"{text} this queue and offset is")
                continue
            at = start + row
            where = (state.path(at), state.position(at))
            text = f"{_units_text(at, at + units)} empty"
            self.report.add(Problem("queue", *where, text, units))

    # ---- units that recovery built in memory --------------------------------------------------

    def _compare_with_disk(self, state: _QueueState) -> None:
        """Report the units of a read-only store that differ from those on disk."""
        repairs = self._repairs(state.queue)
        end = max(repairs.start, state.queue.core.unit_count)
        if end < repairs.stop and state.queue.read_only:
            self._repaired(state, state.path(end), end, repairs.stop)
        for file in state.queue.mapped_file_queue.mapped_files:
            if file.mode != "memory":
                continue
            path = state.path(file.file_from_offset // CQ_STORE_UNIT_SIZE)
            rebuilt, repaired = Intervals(), Intervals()
            first = file.file_from_offset // CQ_STORE_UNIT_SIZE
            step = UNIT_COUNT * CQ_STORE_UNIT_SIZE
            for position in range(0, file.wrote, step):
                size = min(step, file.wrote - position)
                ours = file.read(position, size)
                theirs = self.env.read_part(path, position, size)
                changed = differing_units(ours, theirs)
                offsets = first + position // CQ_STORE_UNIT_SIZE + changed
                is_repair = np.isin(offsets, repairs)
                repaired.add_offsets(offsets[is_repair])
                rebuilt.add_offsets(offsets[~is_repair])
            for start, end in rebuilt:
                self._rebuilt(state, path, start, end, self.env.exists(path))
            for start, end in repaired:
                self._repaired(state, path, start, end)

    def _repairs(self, queue: ConsumeQueue) -> range:
        """Return the units from the first one on that contradicts the log."""
        plan, none = self.store.plan, range(0)
        return none if plan is None else plan.repairs.get((queue.topic, queue.queue_id), none)

    def _repaired(self, state: _QueueState, path: str, start: int, end: int) -> None:
        """Report units that were wrong on disk, after any kind of stop."""
        self.report.rebuilt_units += end - start
        text = f"{_units_text(start, end)} wrong on disk: "
        text += "it contradicts" if end == start + 1 else "they contradict"
        text += " the log; recovery writes what the log says"
        problem = Problem("queue", path, state.position(start), text, end - start)
        self.report.add(problem, repaired=True)

    def _rebuilt(self, state: _QueueState, path: str, start: int, end: int, exists: bool) -> None:
        self.report.rebuilt_units += end - start
        whose, built = ("its", "it") if end == start + 1 else ("their", "them")
        what = "missing or wrong on disk" if exists else f"missing because {whose} file is missing"
        text = f"{_units_text(start, end)} {what}; recovery builds {built} from the log"
        problem = Problem("queue", path, state.position(start), text, end - start)
        if self._clean:
            self.report.add(problem, missing=True)
        else:
            self.report.add_rebuilt(problem)
