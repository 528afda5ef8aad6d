"""verify: log, queues and index of an open store held against each other; nothing is changed."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyrocketstore._index_file import index_file_size
from pyrocketstore._scan import FileWindow, find_valid_record, status_name
from pyrocketstore._verify import RecordWalk, differing_units, read_ext_units
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.consume_queue_ext import MAX_ADDR, un_decorate
from pyrocketstore.errors import StoreIOError, StoreStateError
from pyrocketstore.index_check import IndexCheck, Keys
from pyrocketstore.live_stores import Attempts, was_removed
from pyrocketstore.message import LMQ_PREFIX
from pyrocketstore.message_store import DefaultMessageStore
from pyrocketstore.opening_problems import USUAL_ENDS, opening_problems
from pyrocketstore.queue_table import is_safe_name
from pyrocketstore.queue_units import CQ_STORE_UNIT_SIZE, PRE_BLANK_SIZE
from pyrocketstore.verify_report import BAD_PROPERTIES, Problem, VerifyReport

if TYPE_CHECKING:
    from pyrocketstore._mapped_file import MappedFile

__all__ = ["Problem", "VerifyReport", "verify_store"]

RS_OK, RS_BLANK = 0, 1
#: Units that are looked at in one go.
UNIT_COUNT = 1 << 16
#: Records whose unit names another place are kept apart up to so many, then only counted.
MISPLACED_MAX = 1 << 20
#: Bytes of ext units read at once, and the longest unit.
EXT_READ_SIZE = 1 << 20
EXT_UNIT_SIZE_MAX = 32767

Int64s = NDArray[np.int64]


def verify_store(
    store: DefaultMessageStore, progress: Callable[[int, int], None] | None = None
) -> VerifyReport:
    """Check log, queues and index of a loaded store against each other.

    Everything is read file by file in pieces of bounded size. A store that is being written to is
    checked up to what was dispatched when the call began. In a store opened read-only, units that
    recovery had to build in memory are reported too: as problems if the store was stopped cleanly,
    as `rebuilt` if it was not.

    Parameters
    ----------
    progress : callable(bytes of the log done, bytes in all), or None

    Raises
    ------
    StoreIOError, StoreCorruptionError: a file cannot be read. StoreStateError: it was closed.

    Where files were deleted meanwhile (by the store's cleaner, or by the process that owns a store
    that is open read-only here) the check is made again, in a read-only store over files that are
    listed anew: a problem counts when it is found twice.

    Threads: any; the store may be used meanwhile.
    """
    attempts = Attempts(store.env)
    before: VerifyReport | None = None
    while True:
        listed = _first_files(store)
        live = store.read_only and _has_owner(store)
        try:
            report = _check(store, progress, again=before is not None)
        except StoreIOError as error:
            if not was_removed(store.env, error) or not attempts.another():
                raise
            before = before or VerifyReport(store.root)
            continue
        changed = live or (_has_owner(store) if store.read_only else listed != _first_files(store))
        if report.ok or not changed or report.is_like(before) or not attempts.another():
            return report
        before = report


def _has_owner(store: DefaultMessageStore) -> bool:
    """Whether another process may be writing to the store, or was killed while it did."""
    return store.env.exists(f"{store.root}/abort")


def _first_files(store: DefaultMessageStore) -> object:
    """Which files begin the log, the queues and the index."""
    queues = {
        (queue.topic, queue.queue_id): queue.mapped_file_queue.get_min_offset()
        for queue in store.consume_queues()
    }
    index = store.index_service.files
    return store.commit_log.get_min_offset(), queues, index[0].name if index else ""


def _check(
    store: DefaultMessageStore, progress: Callable[[int, int], None] | None, *, again: bool
) -> VerifyReport:
    """One check; `again`: in a read-only store, of the files as they are now."""
    if not (again and store.read_only):
        return _Verifier(store, progress).run()
    fresh = DefaultMessageStore(store.config, env=store.env, read_only=True)
    fresh.load()
    try:
        return _Verifier(fresh, progress).run()
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
        """Take in [start, end)."""
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
        """Take in offsets in any order."""
        for start, count in _runs(np.sort(offsets)):
            self.add(start, start + count)

    def holds(self, offsets: Int64s) -> NDArray[np.bool_]:
        """bool[n]: which of the offsets are inside."""
        at = np.searchsorted(np.array(self.starts, np.int64), offsets, side="right") - 1
        ends = np.array([*self.ends, -1], np.int64)
        return np.asarray((at >= 0) & (offsets < ends[at]), np.bool_)

    def gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """What of [start, end) is outside."""
        for inner_start, inner_end in self:
            if inner_start >= end:
                break
            if start < inner_start:
                yield start, inner_start
            start = max(start, inner_end)
        if start < end:
            yield start, end


def _runs(offsets: Int64s) -> list[tuple[int, int]]:
    """Runs of consecutive numbers: (first, how many)."""
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
    """What is known of one queue while the log is walked over."""

    def __init__(self, queue: ConsumeQueue) -> None:
        self.queue = queue
        #: units that records of the log have answered for
        self.covered = Intervals()
        #: units that records of the log want and that are not there
        self.missing = Intervals()
        #: (queue offset, phy_offset) of records whose unit names another place
        self.misplaced: list[tuple[Int64s, Int64s]] = []

    def path(self, queue_offset: int) -> str:
        """The file of a unit, whether it is there or not."""
        size = self.queue.mapped_file_size
        start = queue_offset * CQ_STORE_UNIT_SIZE // size * size
        directory = f"{self.queue.store_path}/{self.queue.topic}/{self.queue.queue_id}"
        return f"{directory}/{start:020d}"

    def ext_path(self, store: DefaultMessageStore) -> str:
        """Where the ext units of the queue are if there are any."""
        return f"{store.queue_table.ext_path}/{self.queue.topic}/{self.queue.queue_id}"

    def position(self, queue_offset: int) -> int:
        """Where in its file a unit is."""
        return queue_offset * CQ_STORE_UNIT_SIZE % self.queue.mapped_file_size

    def by_file(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """[start, end) cut at the files."""
        per_file = self.queue.units_per_file
        while start < end:
            stop = min(end, start + per_file - start % per_file)
            yield start, stop
            start = stop


def _units_text(start: int, end: int) -> str:
    return f"unit {start} is" if end == start + 1 else f"units {start} to {end - 1} are"


class _Verifier:
    def __init__(
        self, store: DefaultMessageStore, progress: Callable[[int, int], None] | None
    ) -> None:
        self.store = store
        self.env = store.env
        self.log = store.commit_log
        self.progress = progress or (lambda done, total: None)
        self.report = VerifyReport(store.root)
        self.low = max(0, self.log.get_min_offset())
        # What lies behind is not looked at, since its units may not be there yet.
        self.end = min(self.log.get_max_offset(), int(store.dispatcher.position))
        if self.low > self.end:  # the files were let go
            raise StoreStateError(f"{store.root}: the store was closed while it was checked")
        self.walk = RecordWalk(self.log.delay_levels, self.end - self.low)
        self.states: dict[tuple[str, int], _QueueState | None] = {}
        self.numbered: list[_QueueState | None] = []
        self.damaged = Intervals()
        self.misplaced_count = 0
        # Read-only: a store that was not stopped may have an owner that goes on writing.
        self.is_live = not store.read_only or self.env.exists(f"{store.root}/abort")
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
        unknown = self.store.index_service.geometry_error
        if unknown is not None and self.store.config.message_index_enable:
            report.index_unchecked = str(unknown)
        for problem in opening_problems(self.store):
            add = report.add_first if problem.kind == "log" else report.add
            add(problem)
        self._recovery()
        self._log_files()
        for key in sorted({(q.topic, q.queue_id) for q in self.store.consume_queues()}):
            self._state(*key)
        for key, state in sorted(self.states.items()):
            if state is not None:
                report.queues += key in self._known
                self._finish_queue(state)
                self._compare_with_disk(state)
        self.index.finish()
        return report

    # ---- what the opening did -----------------------------------------------------------------

    def _recovery(self) -> None:
        plan = self.store.plan
        self._known = {(q.topic, q.queue_id) for q in self.store.consume_queues()}
        self._clean = plan is None or plan.clean
        if plan is None:
            return
        self.report.recovery = dataclasses.asdict(plan)
        if not self.store.read_only:
            return
        if plan.empty:
            return
        path, position = self._place_of(plan.log_end)
        if plan.broken:
            size = sum(piece[2] for piece in plan.broken)
            text = (
                f"{plan.ended_by}; the log ends here, though valid records lie behind, in"
                f" {size} bytes of {len(plan.broken)} file(s)"
            )
            self.report.add(Problem("log", path, position, text))
        elif plan.clean and plan.ended_by not in USUAL_ENDS:
            text = f"{plan.ended_by}; the log ends here, though the store was stopped cleanly"
            self.report.add(Problem("log", path, position, text))
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
                text = f"{base - expected} bytes of the log are missing before this file"
                self.report.add(Problem("log", file.path, 0, text))
                self.damaged.add(expected, base)
                self.index.damaged(expected, base)
            expected = base + file.file_size
            self.report.files += 1
            self._log_file(file)
        self.progress(self.end - self.low, self.end - self.low)

    def _log_file(self, file: MappedFile) -> None:
        base = file.file_from_offset
        stop = min(self.end - base, file.file_size)
        window = FileWindow(self.env, file.path)
        position = 0
        is_told = False
        try:
            while position < stop:
                status, reached = self.walk.walk(window, file.path, base, position, stop)
                self._piece(base + position, base + reached)
                position = reached
                self.progress(base + position - self.low, self.end - self.low)
                if status == RS_BLANK:
                    self.report.blanks += 1
                    self.index.piece(base + position, base + stop, None)
                    return
                if status != RS_OK:
                    position = self._damage(file, position, stop, status)
                    is_told = position == stop
        finally:
            window.close()
        if base + file.file_size < self.end and not is_told:
            text = "the file is not ended by a BLANK"
            self.report.add(Problem("log", file.path, position, text))

    def _damage(self, file: MappedFile, position: int, stop: int, status: int) -> int:
        """Report what lies at `position`; gives where the next whole record begins."""
        base = file.file_from_offset
        found = find_valid_record(self.env, file.path, base, position + 1, stop)
        resume = found if found >= 0 else stop
        text = f"{status_name(status)}; {resume - position} bytes hold no record"
        self.report.add(Problem("log", file.path, position, text))
        self.report.damaged_bytes += resume - position
        self.damaged.add(base + position, base + resume)
        self.index.damaged(base + position, base + resume)
        return resume

    def _piece(self, start: int, end: int) -> None:
        """Check what the records in [start, end) of the log ask of queues and index."""
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
        for row in walk.bad_properties:
            self._bad_properties(int(rows.phy_offset[row]))
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
                self._place_of,
            )
            self.index.piece(start, end, keys)

    def _bad_properties(self, phy_offset: int) -> None:
        """Report a record whose properties cannot be parsed: its checksum covers the body alone."""
        self.report.bad_properties += 1
        if not self.report.has_room:
            self.report.problem_count += 1
            return
        self.report.add(Problem("log", *self._place_of(phy_offset), BAD_PROPERTIES))

    def _place_of(self, phy_offset: int) -> tuple[str, int]:
        """File and position of a physical offset."""
        position = phy_offset % self.log.file_size
        file = self.log.mapped_file_queue.find_mapped_file_by_offset(phy_offset)
        if file is not None:
            return file.path, position
        return f"{self.log.config.commit_log_path}/{phy_offset - position:020d}", position

    # ---- queues: from the records to the units --------------------------------------------------

    def _state(self, topic: str, queue_id: int) -> _QueueState | None:
        """The queue; None for a name that never becomes a directory."""
        key = (topic, queue_id)
        if key not in self.states:
            usable = is_safe_name(topic) and queue_id >= 0
            found = self.store.find_consume_queue(topic, queue_id) if usable else None
            self.states[key] = None if found is None else _QueueState(found)
        return self.states[key]

    def _multi(self, rows: _Rows) -> None:
        """Records that are in further queues, by their INNER_MULTI_ properties."""
        wanted: dict[tuple[str, int], list[tuple[int, int]]] = {}
        config = self.store.config
        for row, queue_id, names, offsets in self.walk.multi:
            name_list, offset_list = names.split(","), offsets.split(",")
            if len(name_list) != len(offset_list):
                continue
            for name, text in zip(name_list, offset_list, strict=True):
                light = name.startswith(LMQ_PREFIX)
                light = light and (config.enable_lmq or not config.enable_multi_dispatch)
                try:
                    queue_offset = int(text)
                except ValueError:
                    continue
                if name and 0 <= queue_offset < 1 << 62:
                    key = (name, 0 if light else queue_id)
                    wanted.setdefault(key, []).append((row, queue_offset))
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
        """`count` units from `start` on as columns; size 0 where there is none."""
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
            # Without units the file is gone; the next one may be there.
            per_file = queue.units_per_file
            done += read or per_file - (start + done) % per_file
        return phy_offset, size, tags_code

    def _compare(self, state: _QueueState, rows: _Rows, required: bool) -> None:
        """Hold records against the units that they must have.

        `required` False: only a unit that names the record counts; nothing is missed.
        """
        pieces = [self._units(state.queue, a, n) for a, n in _runs(rows.queue_offset)]
        columns = zip(*pieces, strict=True)
        phy_offset, size, tags_code = (np.concatenate(column) for column in columns)
        absent = (size <= 0) | ((size == PRE_BLANK_SIZE) & (phy_offset == 0) & (tags_code == 0))
        same = ~absent & (phy_offset == rows.phy_offset)
        self._check_tags(state, rows, same, size, tags_code)
        state.covered.add_offsets(rows.queue_offset[same])
        if not required:
            return
        if absent.any():
            state.missing.add_offsets(rows.queue_offset[absent])
        elsewhere = ~absent & ~same
        if elsewhere.any():
            self.misplaced_count += int(np.count_nonzero(elsewhere))
            if self.misplaced_count > MISPLACED_MAX:
                self.report.problem_count += int(np.count_nonzero(elsewhere))
                state.covered.add_offsets(rows.queue_offset[elsewhere])
            else:
                places = (rows.queue_offset[elsewhere], rows.phy_offset[elsewhere])
                state.misplaced.append(places)

    def _check_tags(
        self,
        state: _QueueState,
        rows: _Rows,
        same: NDArray[np.bool_],
        size: NDArray[np.int32],
        tags_code: Int64s,
    ) -> None:
        """Report units of the right place whose size or tags code is wrong."""
        bad_size = same & (size != rows.size)
        is_ext = same & (tags_code <= MAX_ADDR)
        codes = tags_code
        if is_ext.any():
            codes = tags_code.copy()
            where = np.flatnonzero(is_ext)
            self._resolve_ext(state, rows.take(where), where, codes)
        bad_code = same & ~bad_size & (codes != rows.tags_code)
        for row in np.flatnonzero(bad_size | bad_code).tolist():
            at = int(rows.queue_offset[row])
            if bad_size[row]:
                text = f"size {size[row]}, but the record has {rows.size[row]} bytes"
            else:
                text = f"tags code {codes[row]}, but the record's is {rows.tags_code[row]}"
            if not self.report.has_room:
                self.report.problem_count += 1
                continue
            text = f"unit {at} has the {text}"
            self.report.add(Problem("queue", state.path(at), state.position(at), text))

    # ---- ext units ------------------------------------------------------------------------------

    def _resolve_ext(self, state: _QueueState, rows: _Rows, where: Int64s, codes: Int64s) -> None:
        """Replace the ext addresses at `where` of `codes` by the tags codes of their units.

        What cannot be resolved gets the record's own code, after it was reported.
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
        """Report what was missing, then look at the units that no record has answered for."""
        self._finish_misplaced(state)
        for interval in state.missing:
            for start, end in state.by_file(*interval):
                text = f"{_units_text(start, end)} missing, though the log has the message"
                text += "" if end == start + 1 else "s"
                where = (state.path(start), state.position(start))
                self.report.add(Problem("queue", *where, text, end - start), missing=True)
                self.report.missing_units += end - start
            state.covered.add(*interval)
        files = state.queue.mapped_file_queue.mapped_files
        end = state.queue.get_max_offset_in_queue()
        if not files:
            return
        first = files[0].file_from_offset // CQ_STORE_UNIT_SIZE
        self.report.units += max(0, end - first)
        for start, stop in list(state.covered.gaps(first, end)):
            for at in range(start, stop, UNIT_COUNT):
                self._unanswered(state, at, min(UNIT_COUNT, stop - at))

    def _finish_misplaced(self, state: _QueueState) -> None:
        """Records whose unit names another place: fine where that is a later record of the same
        offset, as after a queue was destroyed and began again."""
        for offsets, phy_offsets in state.misplaced:
            units = [self._units(state.queue, a, n) for a, n in _runs(offsets)]
            named, sizes, _ = (np.concatenate(column) for column in zip(*units, strict=True))
            repeated = state.covered.holds(offsets)
            self.report.repeated += int(np.count_nonzero(repeated))
            for row in np.flatnonzero(~repeated | (named < phy_offsets)).tolist():
                if not self.report.has_room:
                    self.report.problem_count += 1
                    continue
                at = int(offsets[row])
                text = f"unit {at} names {sizes[row]} bytes at {named[row]} of the log, but "
                text += "its message is" if not repeated[row] else "a later message of it is"
                text += f" at {phy_offsets[row]}"
                self.report.add(Problem("queue", state.path(at), state.position(at), text))
            state.covered.add_offsets(offsets)
        state.misplaced = []

    def _unanswered(self, state: _QueueState, start: int, count: int) -> None:
        """Units that no record of the log has asked for."""
        phy_offset, size, tags_code = self._units(state.queue, start, count)
        blank = (size == PRE_BLANK_SIZE) & (phy_offset == 0) & (tags_code == 0)
        empty = size <= 0
        expired = ~blank & ~empty & (phy_offset < self.low)
        newer = (phy_offset >= self.end) & (phy_offset < self.log.get_max_offset())
        hurt = ~blank & ~empty & self.damaged.holds(phy_offset)
        self.report.pre_blank += int(np.count_nonzero(blank))
        self.report.expired += int(np.count_nonzero(expired))
        self.report.units_in_damage += int(np.count_nonzero(hurt))
        wrong = ~(blank | expired | newer | hurt)
        files = {file.file_from_offset for file in state.queue.mapped_file_queue.mapped_files}
        for row in np.flatnonzero(wrong).tolist():
            at = start + row
            position = at * CQ_STORE_UNIT_SIZE
            if empty[row] and position - position % state.queue.mapped_file_size not in files:
                continue  # a file that is gone, of which the log has nothing either
            if not self.report.has_room:
                self.report.problem_count += 1
                continue
            if empty[row]:
                text = f"unit {at} is empty"
            else:
                text = (
                    f"unit {at} names {size[row]} bytes at {phy_offset[row]} of the log, where no"
                    " message of this queue and offset is"
                )
            self.report.add(Problem("queue", state.path(at), state.position(at), text))

    # ---- what recovery built in memory ----------------------------------------------------------

    def _compare_with_disk(self, state: _QueueState) -> None:
        """Read-only: report the units that are in memory and not on disk."""
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
                is_repair = np.isin(offsets, self._repairs(state.queue))
                repaired.add_offsets(offsets[is_repair])
                rebuilt.add_offsets(offsets[~is_repair])
            for start, end in rebuilt:
                self._rebuilt(state, path, start, end, self.env.exists(path))
            for start, end in repaired:
                self._repaired(state, path, start, end)

    def _repairs(self, queue: ConsumeQueue) -> Int64s:
        """The units that contradict the log, or that no record asks for."""
        plan = self.store.plan
        units = {} if plan is None else plan.repairs.get((queue.topic, queue.queue_id), {})
        return np.array(list(units), np.int64)

    def _repaired(self, state: _QueueState, path: str, start: int, end: int) -> None:
        """Report units that were there and wrong, however the store was stopped."""
        self.report.rebuilt_units += end - start
        text = f"{_units_text(start, end)} wrong on disk: "
        text += "it contradicts" if end == start + 1 else "they contradict"
        text += " the log; recovery writes what the log says"
        self.report.add(Problem("queue", path, state.position(start), text, end - start))

    def _rebuilt(self, state: _QueueState, path: str, start: int, end: int, exists: bool) -> None:
        self.report.rebuilt_units += end - start
        what = "missing or wrong" if exists else "missing with the file"
        text = f"{_units_text(start, end)} {what} on disk; recovery builds them from the log"
        problem = Problem("queue", path, state.position(start), text, end - start)
        if self._clean:
            self.report.add(problem, missing=True)
        else:
            self.report.add_rebuilt(problem)
