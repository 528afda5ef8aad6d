"""The queues of a store as its files show them now: what streams plan with.

Directory listings and preads, as seldom as they are costly. Nothing is recovered: what only a
recovery would find is not there until the store was opened for writing again.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import errno
import struct
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from pyrocketstore._consume_queue import find_last_unit, read_units, scan_units, unit_at
from pyrocketstore.env import O_RDONLY, Env
from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.file_sizes import is_store_file
from pyrocketstore.message import LMQ_PREFIX
from pyrocketstore.queue_directories import find_queues
from pyrocketstore.queue_units import CQ_STORE_UNIT_SIZE, PRE_BLANK, QueueUnits
from pyrocketstore.spark.options import SourceOptions, StorePlace
from pyrocketstore.spark.records import (
    MESSAGE_MAGIC_CODE,
    Piece,
    is_dispatched_to,
    topic_of,
)
from pyrocketstore.spark.snapshot import (
    LogFile,
    QueueRange,
    log_files_on_disk,
    place_settings,
)

#: Directories are listed again after this time.
LISTING_NS = 100_000_000
#: Looking takes at most one part in so many of the time.
IDLE_PARTS = 10
#: Going through units one by one is needed only where something is damaged.
SEARCH_PARTS = 50
UNITS_AT_ONCE = 65536
UNITS_AT_A_LOOK = 64
#: totalSize, magicCode, bodyCRC, queueId, flag, queueOffset, physicalOffset, sysFlag, born time
_HEAD = struct.Struct(">iiiiiqqiq")
_BORN_HOST_V6, _STORE_HOST_V6 = 1 << 4, 1 << 5
#: Bytes of a record up to the body's length, with two addresses of sixteen bytes.
_HEAD_SIZE = 112
_Unit = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Waiting:
    """Units [first, stop) at a queue's end that name records which cannot be read, or of which the
    first is none; since `since_ns` (monotonic). `path` and `position` (bytes) are the first one's.
    """

    first: int
    stop: int
    since_ns: int
    path: str
    position: int


@dataclasses.dataclass
class _Queue:
    """A queue's files: the first byte of each, and what was found in them."""

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
        """Queue offset of the first unit in the files."""
        return self.begins[0] // CQ_STORE_UNIT_SIZE


QueueName = tuple[str, int]


class LiveQueues:
    """The selected queues of a store that may be written meanwhile.

    Parameters
    ----------
    place : its label and directory
    options : which queues; broker_conf where paths are not the usual ones

    Raises StoreFormatError for a directory that is none; StoreIOError. Threads: one. Nothing is
    written, locked, mapped or kept open.
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
        self._ends: dict[QueueName, int] = {}
        self._waiting: dict[QueueName, Waiting] = {}
        self._open_log: _OpenFile | None = None
        self._list_after_ns = self._look_after_ns = self._search_after_ns = 0
        self._searched_ns = 0

    # ---- what is there ---------------------------------------------------------------------------

    def ends(self, *, now: bool = False) -> dict[QueueName, int]:
        """Queue offset behind the last message of each queue.

        A unit counts when the log has its record: its length, magic code, place in the log, topic,
        queue id and queue offset are looked at. With `now` nothing found earlier is given again.
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
        """Find the ends; `searches`: also where damage has to be searched behind."""
        self._searched_ns = 0
        for queue in self._queues.values():
            queue.end = self._end_of(queue, searches)
        self._ends = {key: queue.end or 0 for key, queue in self._queues.items()}
        self._waiting = {key: q.waiting for key, q in self._queues.items() if q.waiting}

    @property
    def waiting(self) -> Mapping[QueueName, Waiting]:
        """The queues that the last look at the ends found to have units behind their ends, whose
        records cannot be read: not yet, or damaged."""
        return self._waiting

    def has_queue(self, name: QueueName) -> bool:
        """Whether a queue is there, selected or not."""
        return self._find(name) is not None

    def record_place(self, name: QueueName, queue_offset: int) -> tuple[int, int] | None:
        """Physical offset and size (bytes) of a message's record; None where the log does not have
        it, or has another one there."""
        self.log_files()
        queue = self._find(name)
        unit = None if queue is None else unit_at(self._read(queue, queue_offset, 1))
        if queue is None or unit is None or unit[0] < self.min_phy_offset:
            return None
        return unit[:2] if self._names_its_record(queue, queue_offset) else None

    def log_files(self) -> tuple[LogFile, ...]:
        """The commit log's files, in order."""
        if not self._list_after_ns:
            self._list()
        return self._log

    @property
    def min_phy_offset(self) -> int:
        """The first byte that the log still has."""
        return self._log_begins[0] if self._log_begins else 0

    def min_offset(self, name: QueueName) -> int:
        """Queue offset of the first message that the log still has; the end if there is none."""
        queue = self._queues[name]
        at = (self.min_phy_offset, queue.begins[0])
        if queue.known_min is None or queue.known_min[:2] != at:
            found = self._first(queue, queue.low, lambda unit: unit[0] >= at[0])
            if found == queue.end:
                return found  # it moves with the end
            queue.known_min = (*at, found)
        return queue.known_min[2]

    def lower_bound(self, name: QueueName, timestamp: int) -> int:
        """First queue offset stored at `timestamp` (Unix ms) or later; the end if none."""
        queue = self._queues[name]
        low = self.min_offset(name)
        return self._first(queue, low, lambda unit: self._store_timestamp(unit) >= timestamp)

    def range_of(self, name: QueueName, start: int, stop: int) -> QueueRange:
        """Units [start, stop) of a queue, whether or not they are still there."""
        queue = self._find(name)
        directory = f"{self.queues_directory}/{name[0]}/{name[1]}"
        file_size = CQ_STORE_UNIT_SIZE if queue is None else queue.file_size
        return QueueRange(name[0], name[1], directory, file_size, start, stop)

    def units(self, wanted: QueueRange, count: int) -> QueueUnits:
        """At most `count` units from the start of a range on, out of one file."""
        queue = self._find((wanted.topic, wanted.queue_id))
        count = min(count, wanted.stop - wanted.start)
        data = b"" if queue is None else self._read(queue, wanted.start, count)
        return QueueUnits(*read_units(data))

    def _find(self, name: QueueName) -> _Queue | None:
        """A queue, also one that is not selected: a batch may have been planned when it was."""
        return self._queues.get(name) or self._listed(*name, None)

    # ---- listings --------------------------------------------------------------------------------

    def _list(self) -> None:
        """Queues first: then the log's files hold whatever they name."""
        queues: dict[QueueName, _Queue] = {}
        for topic, ids in find_queues(self.env, self.queues_directory, warn=False):
            for queue_id in ids:
                name = topic, queue_id
                if queue_id >= 0 and self.options.wants(*name):
                    queue = self._listed(*name, self._queues.get(name))
                    if queue is not None:
                        queues[name] = queue
        self._queues = queues
        self._log = log_files_on_disk(self.env, self._settings)
        self._log_begins = [file.from_offset for file in self._log]

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
            return None  # it is being made
        return _Queue(topic, queue_id, directory, size, begins)

    # ---- ends ------------------------------------------------------------------------------------

    def _end_of(self, queue: _Queue, searches: bool) -> int:
        end, low = queue.end, queue.low
        if end is None or end < low or not self._is_still_there(queue, end):
            stop, last = self._written(queue, self._first_to_look_at(queue))
        else:
            low = end
            stop, last = self._written(queue, end)
        high = self._last_message(queue, low, stop)
        end = self._verified(queue, low, high, searches)
        self._set_waiting(queue, end, max(last, high + 1))
        return end

    def _set_waiting(self, queue: _Queue, end: int, stop: int) -> None:
        """Note that the units [end, stop) wait, or that none does."""
        before = queue.waiting
        if before is not None and before.first != end:
            before = None
        if before is not None and self._last_message(queue, before.stop - 1, before.stop) >= 0:
            stop = max(stop, before.stop)  # behind a hole little is looked at
        if stop <= end:
            queue.waiting = None
        elif before is not None:
            queue.waiting = dataclasses.replace(before, stop=stop)
        else:
            queue.waiting = Waiting(end, stop, self.env.monotonic_ns(), *self._place(queue, end))

    def _is_still_there(self, queue: _Queue, end: int) -> bool:
        """Whether the unit before the known end has not been taken away."""
        return end == queue.low or _is_unit(self._read(queue, end - 1, 1))

    def _first_to_look_at(self, queue: _Queue) -> int:
        """The first unit of the newest file that has one."""
        for begin in reversed(queue.begins):
            if _is_unit(self._read(queue, begin // CQ_STORE_UNIT_SIZE, 1)):
                return begin // CQ_STORE_UNIT_SIZE
        return queue.low

    def _written(self, queue: _Queue, start: int) -> tuple[int, int]:
        """Where the units that go on at `start` end; and one past the last that was seen behind
        that, 0 where none was: recovery puts there what is missing."""
        count = UNITS_AT_A_LOOK
        while True:
            data = self._read(queue, start, count)
            valid = scan_units(data)[0]
            start += valid // CQ_STORE_UNIT_SIZE
            if valid == 0 or valid < len(data):
                behind = find_last_unit(data[valid:])
                return start, start + behind // CQ_STORE_UNIT_SIZE + 1 if behind >= 0 else 0
            count = UNITS_AT_ONCE

    def _verified(self, queue: _Queue, low: int, high: int, searches: bool) -> int:
        """The end of the units from `low` on that name records, where `high` is the last that names
        one, or -1: those behind it are of an earlier life, or their records are damaged or not
        readable yet. What lies before `low` is known to be well."""
        if high < 0 or self._names_its_record(queue, high):
            return max(low, high + 1)
        end = self._by_halves(queue, low, high)
        return self._searched(queue, end, high) if searches else end

    def _by_halves(self, queue: _Queue, low: int, high: int) -> int:
        """The end of the units in [low, high) that name records, if all do up to there and none
        does from there on: of an earlier life there may be very many."""
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
        """The end of the units in [low, high) that name records, `low` if none does: each is looked
        at, since damage before them says nothing about them."""
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
        """The last unit in [low, stop) that names a message; -1 for none."""
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
    def _place(queue: _Queue, queue_offset: int) -> tuple[str, int]:
        """The file of a unit, and its place there."""
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
            return True  # it was well, and is deleted
        head = self._head(unit)
        if len(head) < _HEAD_SIZE:
            return False
        total, magic, _, queue_id, _, own_offset, own_place, sys_flag, _ = _HEAD.unpack_from(head)
        if (total, magic, own_place) != (size, MESSAGE_MAGIC_CODE, phy_offset):
            return False
        if queue.topic.startswith(LMQ_PREFIX):
            return True
        at = _store_time_position(sys_flag) + 8 + _store_host_size(sys_flag) + 4 + 8
        (body_size,) = struct.unpack_from(">i", head, at)
        at += 4 + body_size
        wanted = queue.topic.encode("utf-8", "surrogateescape")
        wanted = bytes([len(wanted)]) + wanted
        is_own = (queue_id, own_offset) == (queue.queue_id, queue_offset)
        if is_own and body_size >= 0 and self._log_bytes(phy_offset + at, len(wanted)) == wanted:
            return True
        return self._is_dispatched(queue, unit, is_own)

    def _is_dispatched(self, queue: _Queue, unit: _Unit, is_own: bool) -> bool:
        """Whether a record of another queue says that it stands in this one too; or, of one whose
        queue id and offset are this queue's (`is_own`), its topic is this one as Java decodes it.
        """
        phy_offset, size, _ = unit
        file = self._file_of(phy_offset)
        data = self._log_bytes(phy_offset, size)
        if file is None or len(data) < size:
            return False
        record = Piece(
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

    def _head(self, unit: _Unit) -> bytes:
        """The first bytes of a record; fewer where the log does not have all of it."""
        file = self._file_of(unit[0])
        if file is None or unit[0] + unit[1] > file.from_offset + file.size:
            return b""
        # A short record that ends its file is followed by less than was asked for.
        head = self._log_bytes(unit[0], _HEAD_SIZE)
        return head.ljust(_HEAD_SIZE, b"\0") if len(head) >= min(unit[1], _HEAD_SIZE) else b""

    def _store_timestamp(self, unit: _Unit) -> int:
        head = self._head(unit)
        if len(head) < _HEAD_SIZE:
            return -1
        sys_flag = _HEAD.unpack_from(head)[7]
        (timestamp,) = struct.unpack_from(">q", head, _store_time_position(sys_flag))
        return int(timestamp)

    # ---- searching -------------------------------------------------------------------------------

    def _first(self, queue: _Queue, low: int, reached: Callable[[_Unit], bool]) -> int:
        """The first message from `low` on that is `reached`, as all behind it are; else the end."""
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
            # A file that is not there has none; the next one may.
            start += len(data) // CQ_STORE_UNIT_SIZE or per_file - start % per_file
            count = min(4 * count, UNITS_AT_ONCE)
        return None

    # ---- bytes -----------------------------------------------------------------------------------

    def _read(self, queue: _Queue, start: int, count: int) -> bytes:
        """Whole units from `start` on, at most `count`, out of one file."""
        path, position = self._place(queue, start)
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
        """Within, the log's file that was read last is kept open for the next read."""
        self._open_log = _OpenFile(self.env)
        try:
            yield
        finally:
            self._open_log.close()
            self._open_log = None


class _OpenFile:
    """Reads one file after the other, each opened once."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self._path = ""
        self._fd = -1

    def read(self, path: str, position: int, size: int) -> bytes:
        """As Env.read_part."""
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


def _store_time_position(sys_flag: int) -> int:
    return _HEAD.size + (20 if sys_flag & _BORN_HOST_V6 else 8)


def _store_host_size(sys_flag: int) -> int:
    return 20 if sys_flag & _STORE_HOST_V6 else 8
