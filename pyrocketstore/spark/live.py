"""The queues of a store as its files show them now: what streams plan with.

Directory listings and preads, as seldom as they are costly. Nothing is recovered: what only a
recovery would find is not there until the store was opened for writing again.
"""

from __future__ import annotations

import bisect
import dataclasses
import errno
import struct
from collections.abc import Callable

from pyrocketstore._consume_queue import find_last_unit, read_units, scan_units, unit_at
from pyrocketstore.commit_log import LMQ_PREFIX
from pyrocketstore.config import is_store_file
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreIOError
from pyrocketstore.queue_units import CQ_STORE_UNIT_SIZE, PRE_BLANK, QueueUnits
from pyrocketstore.spark.options import SourceOptions, StorePlace
from pyrocketstore.spark.records import MESSAGE_MAGIC_CODE
from pyrocketstore.spark.snapshot import (
    LogFile,
    QueueRange,
    log_files_on_disk,
    place_settings,
    read_there,
)

#: Directories are listed again after this time.
LISTING_NS = 100_000_000
#: Looking takes at most one part in so many of the time.
IDLE_PARTS = 10
UNITS_AT_ONCE = 65536
#: totalSize, magicCode, bodyCRC, queueId, flag, queueOffset, physicalOffset, sysFlag, born time
_HEAD = struct.Struct(">iiiiiqqiq")
_BORN_HOST_V6, _STORE_HOST_V6 = 1 << 4, 1 << 5
#: Bytes of a record up to the body's length, with two addresses of sixteen bytes.
_HEAD_SIZE = 112
_Unit = tuple[int, int, int]


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
        self._list_after_ns = self._look_after_ns = 0

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
            for queue in self._queues.values():
                queue.end = self._end_of(queue)
            self._ends = {key: queue.end or 0 for key, queue in self._queues.items()}
            done = self.env.monotonic_ns()
            self._look_after_ns = done + IDLE_PARTS * (done - began)
            self._list_after_ns = max(self._list_after_ns, self._look_after_ns)
        return self._ends

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
        for topic in self.env.listdir(self.queues_directory):
            for text in self._names(f"{self.queues_directory}/{topic}"):
                if text.isdecimal() and self.options.wants(topic, int(text)):
                    queue = self._listed(topic, int(text), self._queues.get((topic, int(text))))
                    if queue is not None:
                        queues[topic, int(text)] = queue
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

    def _end_of(self, queue: _Queue) -> int:
        end = queue.end
        if end is None or end < queue.low or not self._is_still_there(queue, end):
            end = self._first_to_look_at(queue)
            stop = self._written(queue, end)
            return self._verified(queue, queue.low, stop)
        stop = self._written(queue, end)
        return end if stop == end else self._verified(queue, end, stop)

    def _is_still_there(self, queue: _Queue, end: int) -> bool:
        """Whether the unit before the known end has not been taken away."""
        return end == queue.low or _is_unit(self._read(queue, end - 1, 1))

    def _first_to_look_at(self, queue: _Queue) -> int:
        """The first unit of the newest file that has one."""
        for begin in reversed(queue.begins):
            if _is_unit(self._read(queue, begin // CQ_STORE_UNIT_SIZE, 1)):
                return begin // CQ_STORE_UNIT_SIZE
        return queue.low

    def _written(self, queue: _Queue, start: int) -> int:
        """Where the units that go on at `start` end."""
        count = 1
        while True:
            data = self._read(queue, start, count)
            valid = scan_units(data)[0] // CQ_STORE_UNIT_SIZE
            start += valid
            if valid == 0 or valid * CQ_STORE_UNIT_SIZE < len(data):
                return start
            count = UNITS_AT_ONCE

    def _verified(self, queue: _Queue, low: int, stop: int) -> int:
        """The end of the units in [low, stop) that name records: those behind it are of an earlier
        life, or their records are not readable yet. What lies before `low` is known to be well."""
        high = self._last_message(queue, low, stop)
        if high < 0:
            return low
        if self._names_its_record(queue, high):
            return high + 1
        answer = low
        while low < high:
            middle = self._last_message(queue, low, (low + high) // 2 + 1)
            if middle < 0:
                low = (low + high) // 2 + 1
            elif self._names_its_record(queue, middle):
                answer = low = middle + 1
            else:
                high = middle
        return answer

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

    def _names_its_record(self, queue: _Queue, queue_offset: int) -> bool:
        unit = unit_at(self._read(queue, queue_offset, 1))
        if unit is None or unit[1] <= 0:
            return False
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
        if (queue_id, own_offset) != (queue.queue_id, queue_offset):
            return False
        at = _store_time_position(sys_flag) + 8 + _store_host_size(sys_flag) + 4 + 8
        (body_size,) = struct.unpack_from(">i", head, at)
        at += 4 + body_size
        wanted = queue.topic.encode()
        wanted = bytes([len(wanted)]) + wanted
        return body_size >= 0 and self._log_bytes(phy_offset + at, len(wanted)) == wanted

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
        at = start * CQ_STORE_UNIT_SIZE
        position = at % queue.file_size
        size = min(count * CQ_STORE_UNIT_SIZE, queue.file_size - position)
        data = read_there(self.env, f"{queue.directory}/{at - position:020d}", position, size)
        return data[: len(data) - len(data) % CQ_STORE_UNIT_SIZE]

    def _file_of(self, phy_offset: int) -> LogFile | None:
        number = bisect.bisect_right(self._log_begins, phy_offset) - 1
        return self._log[number] if number >= 0 else None

    def _log_bytes(self, phy_offset: int, size: int) -> bytes:
        file = self._file_of(phy_offset)
        return (
            b""
            if file is None
            else read_there(self.env, file.path, phy_offset - file.from_offset, size)
        )


def _is_unit(data: bytes) -> bool:
    return bool(scan_units(data)[0])


def _store_time_position(sys_flag: int) -> int:
    return _HEAD.size + (20 if sys_flag & _BORN_HOST_V6 else 8)


def _store_host_size(sys_flag: int) -> int:
    return 20 if sys_flag & _STORE_HOST_V6 else 8
