"""Queues of a store as its files show them now: streams plan with them.

Planning lists directories and reads parts of files; the interval between these reads grows with the
time that they take. Planning does not recover the store: messages that only a recovery would find
appear after the next opening of the store for writing.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import errno
import struct
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from pyrocketstore.commit_log.log import MARK_SIZE, mark_of
from pyrocketstore.commit_log.topic_min_offset_file import TopicMinOffsetFile
from pyrocketstore.config.file_sizes import is_store_file
from pyrocketstore.consume_queue._units import find_last_unit, read_units, scan_units, unit_at
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE, PRE_BLANK, QueueUnits
from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.files.queue_directories import find_queues
from pyrocketstore.record._record import RecordHeader
from pyrocketstore.record.message import LMQ_PREFIX
from pyrocketstore.spark.options import SourceOptions, StorePlace
from pyrocketstore.spark.plan.snapshot import log_files_on_disk, place_settings
from pyrocketstore.spark.read.records import Chunk, is_dispatched_to, topic_of
from pyrocketstore.spark.read.units import UNITS_AT_FIRST, UNITS_AT_ONCE
from pyrocketstore.spark.task_types import LogFile, Mark, QueueRange
from pyrocketstore.system.env import O_RDONLY, Env

#: Directories are listed again after this time.
LISTING_NS = 100_000_000
#: Reading queue ends takes at most one part in IDLE_PARTS of the time.
IDLE_PARTS = 10
#: The same for reading units one by one, which only damage makes necessary.
SEARCH_PARTS = 50
_BORN_HOST_V6, _STORE_HOST_V6 = 1 << 4, 1 << 5
#: Bytes of a record up to the body's length, with two addresses of sixteen bytes.
_HEADER_SIZE = 112
_Unit = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Waiting:
    """Units [first, stop) at a queue's end that name unreadable records, or whose first unit is
    missing; since `since_ns` (monotonic). `path` and `position` (bytes) are those of the first one.
    """

    first: int
    stop: int
    since_ns: int
    path: str
    position: int


@dataclasses.dataclass
class _Queue:
    """A queue's files: the first byte of each, and the results of earlier reads."""

    topic: str
    queue_id: int
    directory: str
    file_size: int
    begins: list[int]
    end: int | None = None
    known_min: tuple[int, int, int] | None = None
    waiting: Waiting | None = None

    @property
    def low(self) -> int:
        """The queue offset of the first unit in the files."""
        return self.begins[0] // CQ_STORE_UNIT_SIZE


QueueName = tuple[str, int]


class LiveQueues:
    """The selected queues of a store that a broker may write to.

    Parameters
    ----------
    place : its label and directory
    options : which queues; broker_conf where the paths are not the default ones

    Raises StoreFormatError for a missing directory; StoreIOError. Threads: one. Nothing is written,
    locked, mapped or kept open.
    """

    def __init__(self, place: StorePlace, options: SourceOptions, env: Env | None = None) -> None:
        self.env = Env() if env is None else env
        self.place = place
        self.options = options
        self._settings = place_settings(self.env, place, options.broker_conf)
        self.queues_directory = f"{self._settings.store_path_root_dir}/consumequeue"
        self._queues: dict[QueueName, _Queue] = {}
        self._log: tuple[LogFile, ...] = ()
        self._log_begins: list[int] = []
        self._minimums = TopicMinOffsetFile(self.env, self._settings.store_path_root_dir)
        self._removed_before: dict[str, int] = {}
        self._ends: dict[QueueName, int] = {}
        self._waiting: dict[QueueName, Waiting] = {}
        self._open_log: _OpenFile | None = None
        self._list_after_ns = self._look_after_ns = self._search_after_ns = 0
        self._searched_ns = 0

    # ---- queues ---------------------------------------------------------------------------

    def ends(self, *, now: bool = False) -> dict[QueueName, int]:
        """Return the queue offset after the last message of each queue.

        A unit counts when the log has its record: its length, magic code, physical offset, topic,
        queue id and queue offset are compared. `now` ignores the results of earlier reads.
        """
        began = self.env.monotonic_ns()
        lists = now or began >= self._list_after_ns
        if lists:
            self._list()
            done = self.env.monotonic_ns()
            self._list_after_ns = done + max(LISTING_NS, IDLE_PARTS * (done - began))
            began = done
        if lists or began >= self._look_after_ns:
            self._look(now or began >= self._search_after_ns)
            done = self.env.monotonic_ns()
            if self._searched_ns:
                self._search_after_ns = done + SEARCH_PARTS * self._searched_ns
            self._look_after_ns = done + IDLE_PARTS * (done - began - self._searched_ns)
            self._list_after_ns = max(self._list_after_ns, self._look_after_ns)
        return self._ends

    def _look(self, searches: bool) -> None:
        """Find the ends; with `searches`, also after damaged units."""
        self._searched_ns = 0
        for queue in self._queues.values():
            queue.end = self._end_of(queue, searches)
        self._ends = {key: queue.end or 0 for key, queue in self._queues.items()}
        self._waiting = {key: q.waiting for key, q in self._queues.items() if q.waiting}

    @property
    def waiting(self) -> Mapping[QueueName, Waiting]:
        """Queues with units after their ends whose records cannot be read, by the last call of
        `ends`: not yet written, or damaged."""
        return self._waiting

    def has_queue(self, name: QueueName) -> bool:
        """Whether a queue exists, selected or not."""
        return self._find(name) is not None

    def record_range(self, name: QueueName, queue_offset: int) -> tuple[int, int] | None:
        """Return the physical offset and size (bytes) of a message's record; None where the log
        does not have it, or has another record there."""
        self.log_files()
        queue = self._find(name)
        unit = None if queue is None else unit_at(self._read(queue, queue_offset, 1))
        if queue is None or unit is None or unit[0] < self.min_phy_offset:
            return None
        return unit[:2] if self._names_its_record(queue, queue_offset) else None

    def log_files(self) -> tuple[LogFile, ...]:
        """Return the files of the commit log, in order."""
        if not self._list_after_ns:
            self._list()
        return self._log

    @property
    def min_phy_offset(self) -> int:
        """The first byte of the log that is not deleted."""
        return self._log_begins[0] if self._log_begins else 0

    def get_min_offset(self) -> int:
        """Return the first byte of the log, -1 without files."""
        return self._log_begins[0] if self._log_begins else -1

    def record_mark(self, phy_offset: int) -> tuple[int, int] | None:
        """Return size and CRC of a record, as `CommitLog.record_mark` does."""
        return mark_of(self._log_bytes(phy_offset, MARK_SIZE), phy_offset)

    def flush_deletions(self) -> None:
        """Do nothing: a reader deletes no file."""

    def min_offset(self, name: QueueName) -> int:
        """Return the queue offset of the first message that the log still has and that is not
        removed; else the end."""
        queue = self._queues[name]
        low = max(self.min_phy_offset, self._removed_before.get(queue.topic, 0))
        at = (low, queue.begins[0])
        if queue.known_min is None or queue.known_min[:2] != at:
            found = self._first(queue, queue.low, lambda unit: unit[0] >= at[0])
            if found == queue.end:
                return found  # it moves with the end
            queue.known_min = (*at, found)
        return queue.known_min[2]

    def lower_bound(self, name: QueueName, timestamp: int) -> int:
        """Return the first queue offset stored at `timestamp` (Unix ms) or later; else the end."""
        queue = self._queues[name]
        low = self.min_offset(name)
        return self._first(queue, low, lambda unit: self._store_timestamp(unit) >= timestamp)

    def range_of(
        self, name: QueueName, start: int, stop: int, mark: Mark | None = None
    ) -> QueueRange:
        """Return the range [start, stop) of a queue, whether or not its units still exist. `mark`
        is that of its last message."""
        queue = self._find(name)
        directory = f"{self.queues_directory}/{name[0]}/{name[1]}"
        file_size = CQ_STORE_UNIT_SIZE if queue is None else queue.file_size
        planned = None if mark is None else (mark.queue_offset, mark.phy_offset)
        return QueueRange(*name, directory, file_size, start, stop, mark=planned)

    def units(self, wanted: QueueRange, count: int) -> QueueUnits:
        """Read at most `count` units from the start of a range on, of one file."""
        queue = self._find((wanted.topic, wanted.queue_id))
        count = min(count, wanted.stop - wanted.start)
        data = b"" if queue is None else self._read(queue, wanted.start, count)
        return QueueUnits(*read_units(data))

    def _find(self, name: QueueName) -> _Queue | None:
        """Find a queue, selected or not: a batch may be older than the selection."""
        return self._queues.get(name) or self._listed(*name, None)

    # ---- listings --------------------------------------------------------------------------------

    def _list(self) -> None:
        """List the queues, then the log: in this order the log has the records that units name."""
        queues: dict[QueueName, _Queue] = {}
        for topic, ids, _ in find_queues(self.env, self.queues_directory, warn=False):
            for queue_id in ids:
                name = topic, queue_id
                if queue_id >= 0 and self.options.wants(*name):
                    queue = self._listed(*name, self._queues.get(name))
                    if queue is not None:
                        queues[name] = queue
        self._queues = queues
        self._minimums.read(read_only=True)
        self._log = log_files_on_disk(self.env, self._settings)
        self._log_begins = [file.from_offset for file in self._log]
        self._minimums.load(self)
        self._removed_before = self._minimums.offsets().by_topic()

    def _names(self, directory: str) -> list[str]:
        try:
            return self.env.listdir(directory)
        except StoreIOError as error:
            if error.errno != errno.ENOTDIR:
                raise
            return []

    def _listed(self, topic: str, queue_id: int, known: _Queue | None) -> _Queue | None:
        directory = f"{self.queues_directory}/{topic}/{queue_id}"
        begins = [int(name) for name in self._names(directory) if is_store_file(name)]
        if not begins:
            return None
        if known is not None:
            if known.begins != begins:
                known.begins = begins
            return known
        try:
            size = self.env.size(f"{directory}/{begins[0]:020d}")
        except StoreIOError as error:
            if error.errno != errno.ENOENT:
                raise
            return None
        if size <= 0 or size % CQ_STORE_UNIT_SIZE:
            return None  # the broker is creating it
        return _Queue(topic, queue_id, directory, size, begins)

    # ---- ends ------------------------------------------------------------------------------------

    def _end_of(self, queue: _Queue, searches: bool) -> int:
        end, low = queue.end, queue.low
        if end is None or end < low or not self._is_still_there(queue, end):
            stop, last = self._written(queue, self._start_of_newest(queue))
        else:
            low = end
            stop, last = self._written(queue, end)
        high = self._last_message(queue, low, stop)
        end = self._verified(queue, low, high, searches)
        self._set_waiting(queue, end, max(last, high + 1))
        return end

    def _set_waiting(self, queue: _Queue, end: int, stop: int) -> None:
        """Note that the units [end, stop) wait, or that no unit does."""
        before = queue.waiting
        if before is not None and before.first != end:
            before = None
        if before is not None and self._last_message(queue, before.stop - 1, before.stop) >= 0:
            stop = max(stop, before.stop)  # after a gap only a few units are read
        if stop <= end:
            queue.waiting = None
        elif before is not None:
            queue.waiting = dataclasses.replace(before, stop=stop)
        else:
            queue.waiting = Waiting(
                end, stop, self.env.monotonic_ns(), *self._unit_position(queue, end)
            )

    def _is_still_there(self, queue: _Queue, end: int) -> bool:
        """Whether the unit before the known end still exists."""
        return end == queue.low or _is_unit(self._read(queue, end - 1, 1))

    def _start_of_newest(self, queue: _Queue) -> int:
        """Return the first unit of the newest file that has units."""
        for begin in reversed(queue.begins):
            if _is_unit(self._read(queue, begin // CQ_STORE_UNIT_SIZE, 1)):
                return begin // CQ_STORE_UNIT_SIZE
        return queue.low

    def _written(self, queue: _Queue, start: int) -> tuple[int, int]:
        """Return where the consecutive units from `start` on end, and the end of the last unit seen
        after that, else 0: a recovery adds the missing units between."""
        count = UNITS_AT_FIRST
        while True:
            data = self._read(queue, start, count)
            valid = scan_units(data)[0]
            start += valid // CQ_STORE_UNIT_SIZE
            if valid == 0 or valid < len(data):
                behind = find_last_unit(data[valid:])
                return start, start + behind // CQ_STORE_UNIT_SIZE + 1 if behind >= 0 else 0
            count = UNITS_AT_ONCE

    def _verified(self, queue: _Queue, low: int, high: int, searches: bool) -> int:
        """Return the end of the units from `low` on that name records, where `high` is the last
        such unit, or -1. Later units are left from an earlier run, or their records are damaged or
        not readable yet. The units before `low` are known to be valid."""
        if high < 0 or self._names_its_record(queue, high):
            return max(low, high + 1)
        end = self._by_halves(queue, low, high)
        return self._searched(queue, end, high) if searches else end

    def _by_halves(self, queue: _Queue, low: int, high: int) -> int:
        """Return the end of the units in [low, high) that name records, if no unit after the first
        mismatch names one: an earlier run may have left very many such units."""
        end = low
        while low < high:
            middle = self._last_message(queue, low, (low + high) // 2 + 1)
            if middle < 0:
                low = (low + high) // 2 + 1
            elif self._names_its_record(queue, middle):
                end = low = middle + 1
            else:
                high = middle
        return end

    def _searched(self, queue: _Queue, low: int, high: int) -> int:
        """Return the end of the last unit in [low, high) that names a record; else `low`. The
        search reads each unit from the end, because units after a damaged one may be valid."""
        began = self.env.monotonic_ns()
        stop = high
        found = -1
        with self._one_open():
            while low < stop and found < 0:
                start = max(low, stop - UNITS_AT_ONCE, self._file_start(queue, stop - 1))
                units = QueueUnits(*read_units(self._read(queue, start, stop - start)))
                for row in np.flatnonzero((units.size > 0) & ~units.is_pre_blank())[::-1].tolist():
                    unit = int(units.phy_offset[row]), int(units.size[row]), 0
                    if self._is_record_of(queue, start + row, unit):
                        found = start + row
                        break
                stop = start
        self._searched_ns += self.env.monotonic_ns() - began
        return max(low, found + 1)

    def _last_message(self, queue: _Queue, low: int, stop: int) -> int:
        """Return the last unit in [low, stop) that names a message; -1 without one."""
        count = 1
        while low < stop:
            start = max(low, stop - count, self._file_start(queue, stop - 1))
            found = find_last_unit(self._read(queue, start, stop - start))
            if found >= 0:
                return int(start + found // CQ_STORE_UNIT_SIZE)
            stop = start
            count = min(4 * count, UNITS_AT_ONCE)
        return -1

    @staticmethod
    def _file_start(queue: _Queue, queue_offset: int) -> int:
        per_file = queue.file_size // CQ_STORE_UNIT_SIZE
        return queue_offset - queue_offset % per_file

    @staticmethod
    def _unit_position(queue: _Queue, queue_offset: int) -> tuple[str, int]:
        """Return the file of a unit, and its position there."""
        at = queue_offset * CQ_STORE_UNIT_SIZE
        position = at % queue.file_size
        return f"{queue.directory}/{at - position:020d}", position

    def _names_its_record(self, queue: _Queue, queue_offset: int) -> bool:
        unit = unit_at(self._read(queue, queue_offset, 1))
        return unit is not None and unit[1] > 0 and self._is_record_of(queue, queue_offset, unit)

    def _is_record_of(self, queue: _Queue, queue_offset: int, unit: _Unit) -> bool:
        """Whether the log has the record that a unit names."""
        phy_offset, size, _ = unit
        if phy_offset < self.min_phy_offset:
            return True  # its record was valid, and is deleted
        data = self._header_bytes(unit)
        if len(data) < _HEADER_SIZE:
            return False
        header = RecordHeader(data)
        if not header.is_message or (header.total_size, header.phy_offset) != (size, phy_offset):
            return False
        if queue.topic.startswith(LMQ_PREFIX):
            return True
        at = _body_size_position(header.sys_flag)
        (body_size,) = struct.unpack_from(">i", data, at)
        at += 4 + body_size
        wanted = queue.topic.encode("utf-8", "surrogateescape")
        wanted = bytes([len(wanted)]) + wanted
        is_own = (header.queue_id, header.queue_offset) == (queue.queue_id, queue_offset)
        if is_own and body_size >= 0 and self._log_bytes(phy_offset + at, len(wanted)) == wanted:
            return True
        return self._is_dispatched(queue, unit, is_own)

    def _is_dispatched(self, queue: _Queue, unit: _Unit, is_own: bool) -> bool:
        """Whether a record of another queue names this one in its multi-dispatch properties; or,
        with this queue's queue id and offset (`is_own`), has this topic as Java decodes it.
        """
        phy_offset, size, _ = unit
        file = self._file_of(phy_offset)
        data = self._log_bytes(phy_offset, size)
        if file is None or len(data) < size:
            return False
        record = Chunk(
            data=data,
            positions=np.zeros(1, np.int64),
            sizes=np.array([size], np.int32),
            phy_offsets=np.array([phy_offset], np.int64),
            path=file.path,
            file_from_offset=file.from_offset,
            topic=queue.topic,
            queue_id=queue.queue_id,
        )
        try:
            own = is_own and topic_of(record, 0) == queue.topic
            return own or is_dispatched_to(record, 0)
        except StoreCorruptionError:
            return False

    def _header_bytes(self, unit: _Unit) -> bytes:
        """Read the header of a record; fewer bytes where the log does not have the whole record."""
        file = self._file_of(unit[0])
        if file is None or unit[0] + unit[1] > file.from_offset + file.size:
            return b""
        # After a short record at the end of its file the read returns fewer bytes.
        data = self._log_bytes(unit[0], _HEADER_SIZE)
        return data.ljust(_HEADER_SIZE, b"\0") if len(data) >= min(unit[1], _HEADER_SIZE) else b""

    def _store_timestamp(self, unit: _Unit) -> int:
        return RecordHeader(self._header_bytes(unit)).store_timestamp

    # ---- searching -------------------------------------------------------------------------------

    def _first(self, queue: _Queue, low: int, reached: Callable[[_Unit], bool]) -> int:
        """Return the first message from `low` on that is `reached`, as all later ones are; else the
        end."""
        high = answer = queue.end or 0
        while low < high:
            middle = (low + high) // 2
            found = self._next_message(queue, middle, high)
            if found is None:
                high = middle
            elif reached(found[1]):
                high = middle
                answer = found[0]
            else:
                low = found[0] + 1
        return answer

    def _next_message(self, queue: _Queue, start: int, stop: int) -> tuple[int, _Unit] | None:
        count = 1
        while start < stop:
            data = self._read(queue, start, min(count, stop - start))
            for position in range(0, len(data), CQ_STORE_UNIT_SIZE):
                unit = unit_at(data, position)
                if unit is not None and unit[1] > 0 and unit != PRE_BLANK:
                    return start + position // CQ_STORE_UNIT_SIZE, unit
            per_file = queue.file_size // CQ_STORE_UNIT_SIZE
            # A missing file has no units; the next file may have some.
            start += len(data) // CQ_STORE_UNIT_SIZE or per_file - start % per_file
            count = min(4 * count, UNITS_AT_ONCE)
        return None

    # ---- bytes -----------------------------------------------------------------------------------

    def _read(self, queue: _Queue, start: int, count: int) -> bytes:
        """Read whole units from `start` on, at most `count`, of one file."""
        path, position = self._unit_position(queue, start)
        size = min(count * CQ_STORE_UNIT_SIZE, queue.file_size - position)
        data = self.env.read_part(path, position, size)
        return data[: len(data) - len(data) % CQ_STORE_UNIT_SIZE]

    def _file_of(self, phy_offset: int) -> LogFile | None:
        number = bisect.bisect_right(self._log_begins, phy_offset) - 1
        return self._log[number] if number >= 0 else None

    def _log_bytes(self, phy_offset: int, size: int) -> bytes:
        file = self._file_of(phy_offset)
        if file is None:
            return b""
        position = phy_offset - file.from_offset
        if self._open_log is not None:
            return self._open_log.read(file.path, position, size)
        return self.env.read_part(file.path, position, size)

    @contextlib.contextmanager
    def _one_open(self) -> Iterator[None]:
        """Keep the log file that was read last open for the next read."""
        self._open_log = _OpenFile(self.env)
        try:
            yield
        finally:
            self._open_log.close()
            self._open_log = None


class _OpenFile:
    """Reads files one after the other, and opens each once."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self._path = ""
        self._fd = -1

    def read(self, path: str, position: int, size: int) -> bytes:
        """Read `size` bytes at `position`; fewer at the file's end, none without the file."""
        if path != self._path:
            self.close()
            try:
                self._fd = self.env.open(path, O_RDONLY)
            except StoreIOError as error:
                if error.errno != errno.ENOENT:
                    raise
                return b""
            self._path = path
        return self.env.pread(self._fd, size, position, path)

    def close(self) -> None:
        if self._path:
            self.env.close(self._fd, self._path)
            self._path = ""


def _is_unit(data: bytes) -> bool:
    return bool(scan_units(data)[0])


def _body_size_position(sys_flag: int) -> int:
    """Return the position of the body's size in a record: after the hosts, the store time,
    reconsumeTimes and the offset of a prepared transaction."""
    hosts = sum(20 if sys_flag & flag else 8 for flag in (_BORN_HOST_V6, _STORE_HOST_V6))
    return 48 + hosts + 8 + 4 + 8
