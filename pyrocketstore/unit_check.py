"""Units of consume queues compared with the records of the log that they should name.

A unit has no checksum, and one wrong bit in it decides much: the last unit of a queue says which
records the queue has already. Recovery therefore compares the unit of each record that it scans
with the record, and the last unit of each queue with the record that the unit names.
"""

from __future__ import annotations

import dataclasses
import errno
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyrocketstore._consume_queue import MAX_ADDR
from pyrocketstore._record import check_message
from pyrocketstore._text import string_to_properties
from pyrocketstore.display import logger
from pyrocketstore.env import O_RDWR, parent_directory
from pyrocketstore.errors import StoreIOError
from pyrocketstore.message import LMQ_PREFIX, java_split, parse_java_int
from pyrocketstore.queue_table import is_safe_name
from pyrocketstore.queue_units import CQ_STORE_UNIT_SIZE, PRE_BLANK, QueueUnits

if TYPE_CHECKING:
    from pyrocketstore._log_piece import LogPiece
    from pyrocketstore._mapped_file import MappedFile
    from pyrocketstore._scan import TopicQueueMap
    from pyrocketstore.consume_queue import ConsumeQueue
    from pyrocketstore.lost_records import LostRecords

__all__ = [
    "Log",
    "QueueEnd",
    "Repairs",
    "Unit",
    "UnitCheck",
    "look_at_end",
    "names_record",
    "repair_units",
    "units_without_record",
]

LOG = logger(__name__)

Unit = tuple[int, int, int]
Key = tuple[str, int]
#: {(topic, queue id): {queue offset: the unit as the log says it}}
Repairs = dict[Key, dict[int, Unit]]

#: So many records are compared at a time, so that a queue is read once for many of its records.
BATCH_MAX = 1 << 20
#: A delivery time lies at most this far behind the store time (ms). Delays are settings, and may
#: have been others when the unit was written.
DELAY_MAX_MS = 366 * 86_400_000
#: Units that are read at a time.
CHUNK = 4096
TRANSACTION_MASK, TRANSACTION_COMMIT = 0xC, 0x8
#: totalSize, magic, bodyCRC, queueId, flag, queueOffset, physicalOffset, sysFlag
_HEAD = struct.Struct(">iiiiiqqi")
_UNIT = struct.Struct(">qiq")
#: Of these fields of a damaged record so many must agree with a unit that is believed.
AGREEING_MIN = 3


class _Batch(NamedTuple):
    """Rows of `LogPiece.rows`, with queue numbers that hold for all pieces."""

    number: NDArray[np.int32]
    queue_offset: NDArray[np.int64]
    phy_offset: NDArray[np.int64]
    size: NDArray[np.int32]
    tags_code: NDArray[np.int64]
    delayed_from: NDArray[np.int64]

    def take(self, at: NDArray[np.intp]) -> _Batch:
        """The rows with these numbers."""
        return _Batch(*[column[at] for column in self])  # type: ignore[arg-type]


class _Suspect(NamedTuple):
    """A unit that contradicts a record: `says` is the unit as the record says it. `in_row`: the
    queue's record before or behind it in the log has the queue offset before or behind, too."""

    key: Key
    queue_offset: int
    unit: Unit
    says: Unit
    in_row: bool


@dataclasses.dataclass(frozen=True)
class Log:
    """The files of the log while recovery reads them, up to `end` (bytes of the log)."""

    find: Callable[[int], MappedFile | None]
    begin: int
    end: int
    #: units that name places in [end, torn_end) name what an unclean exit took from the log
    torn_end: int
    lost: LostRecords

    def read(self, phy_offset: int, size: int) -> bytes:
        """The bytes of one file there; none where the log has no such bytes.

        Raises StoreIOError; of ENOENT where another process has just deleted the file.
        """
        file = self.find(phy_offset) if self.begin <= phy_offset < self.end else None
        if file is None or size <= 0 or phy_offset + size > self.end:
            return b""
        position = phy_offset - file.file_from_offset
        if size > file.wrote - position:  # also of a file that has lost its end
            return b""
        return file.read(position, size)


class _Seen:
    """What records say of a further queue that they name, in whatever order they are noted."""

    def __init__(self) -> None:
        self._first = self._last = (-1, -1)  # physical offset, queue offset
        self._count = 0

    def note(self, queue_offset: int, phy_offset: int) -> None:
        place = phy_offset, queue_offset
        self._first = min(self._first, place) if self._count else place
        self._last = max(self._last, place)
        self._count += 1

    def row(self) -> tuple[int, int, int, int]:
        """(first queue offset, its physical offset, next queue offset, count)"""
        return self._first[1], self._first[0], self._last[1] + 1, self._count


class UnitCheck:
    """Gathers the records of a scan and finds the units that contradict them.

    Parameters
    ----------
    queues : {(topic, queue id): ConsumeQueue}
    multi : bool, records may name further queues

    Nothing is changed. Threads: one.
    """

    def __init__(self, queues: Mapping[Key, ConsumeQueue], *, multi: bool, lmq: bool) -> None:
        self._queues = queues
        self._multi, self._lmq = multi, lmq
        self._numbers: dict[Key, int] = {}
        self._keys: list[Key] = []
        self._parts: list[_Batch] = []
        self._count = 0
        self._multi_rows: list[tuple[int, int, int | None]] = []
        self._further: dict[Key, _Seen] = {}
        self._suspects: list[_Suspect] = []

    # ---- records that are scanned ----------------------------------------------------------------

    def add(self, piece: LogPiece) -> None:
        """Take in the records of a scanned piece of the log, in the log's order."""
        rows = _Batch(*piece.rows())
        if len(rows.number):
            keys = piece.queue_keys()
            known = np.array([self._number(key) for key in keys], np.int32)
            self._parts.append(rows._replace(number=known[rows.number]))
            self._count += len(rows.number)
        if self._multi:
            self._multi_rows += piece.multi_rows()
        if self._count >= BATCH_MAX:
            self._compare()

    def _number(self, key: Key) -> int:
        number = self._numbers.setdefault(key, len(self._keys))
        if number == len(self._keys):
            self._keys.append(key)
        return number

    def _compare(self) -> None:
        """Compare what was gathered with the units, queue by queue."""
        if not self._parts:
            return
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
        batch = _Batch(*columns)
        self._parts, self._count = [], 0
        order = np.argsort(batch.number, kind="stable")
        number = batch.number[order]
        begins = np.flatnonzero(np.r_[True, number[1:] != number[:-1]])
        for begin, end in zip(begins, [*begins[1:], len(number)], strict=True):
            key = self._keys[int(number[begin])]
            queue = self._queues.get(key)
            if queue is not None:
                at = order[begin:end]
                self._compare_queue(key, queue, batch.take(at))

    def _compare_queue(self, key: Key, queue: ConsumeQueue, rows: _Batch) -> None:
        first = queue.mapped_file_queue.get_min_offset() // CQ_STORE_UNIT_SIZE
        inside = (rows.queue_offset >= first) & (rows.queue_offset < queue.core.unit_count)
        # Not by numpy.unique, which imports a module at its first call.
        wanted = np.sort(rows.queue_offset[inside])
        wanted = wanted[np.diff(wanted, prepend=-1) != 0]
        has_ext = queue.ext is not None or _has_ext_files(queue)
        follows = np.diff(rows.queue_offset) == 1
        in_row = np.r_[False, follows] | np.r_[follows, False]
        for start, count in _runs(wanted):
            units = queue.reader.columns(start, count)
            at = np.flatnonzero(
                inside
                & (rows.queue_offset >= start)
                & (rows.queue_offset < start + len(units.phy_offset))
            )
            unit = rows.queue_offset[at] - start
            same = (units.phy_offset[unit] == rows.phy_offset[at]) & (
                units.size[unit] == rows.size[at]
            )
            code, stored = units.tags_code[unit], rows.delayed_from[at]
            is_time = (stored >= 0) & (code >= stored) & (code <= stored + DELAY_MAX_MS)
            same &= (code == rows.tags_code[at]) | ((code <= MAX_ADDR) & has_ext) | is_time
            for row, place in zip(at[~same].tolist(), unit[~same].tolist(), strict=True):
                found = units.phy_offset[place], units.size[place], units.tags_code[place]
                says = rows.phy_offset[row], rows.size[row], rows.tags_code[row]
                self._suspects.append(
                    _Suspect(key, start + place, _unit(found), _unit(says), bool(in_row[row]))
                )

    # ---- verdicts --------------------------------------------------------------------------------

    def finish(self, log: Log) -> Repairs:
        """The units that contradict the records which were added, as they must be.

        A unit that names another record of its queue and its queue offset stays as it is: a topic
        that was deleted and put to again has two of each, and the queue names the newer one. Of two
        records for one damaged unit the later counts.

        A unit that names a place before the log is older than any record of the log. It stays only
        where the record's queue offset, which no sum covers, is the one that is wrong.
        """
        self._compare()
        self._compare_multi(log)
        repairs: Repairs = {}
        elsewhere = self._named_elsewhere(log)
        for key, queue_offset, unit, says, in_row in self._suspects:
            if _is_expired(log, unit) and says[0] >= log.begin:
                is_right = not in_row and (key, says[0]) in elsewhere
            else:
                is_right = unit[:2] != says[:2] and names_record(log, key, queue_offset, unit)
            if not is_right:
                repairs.setdefault(key, {})[queue_offset] = says
        self._suspects = []
        return repairs

    def _named_elsewhere(self, log: Log) -> set[tuple[Key, int]]:
        """The queue and place of each record out of its row whose unit is another one."""
        asked: dict[Key, set[int]] = {}
        for key, _, unit, says, in_row in self._suspects:
            if not in_row and _is_expired(log, unit):
                asked.setdefault(key, set()).add(says[0])
        return {
            (key, place)
            for key, places in asked.items()
            for place in _named_places(self._queues[key], np.array(sorted(places), np.int64))
        }

    def _compare_multi(self, log: Log) -> None:
        last: dict[Key, tuple[int, int]] = {}  # queue offset, and which suspect it is, or -1
        for phy_offset, size, tags_code in self._multi_rows:
            record = _Record(log.read(phy_offset, size))
            for key, queue_offset in record.further_queues(self._lmq):
                if queue_offset < 0 or key[1] < 0 or not is_safe_name(key[0]):
                    continue  # it never gets a unit
                self._further.setdefault(key, _Seen()).note(queue_offset, phy_offset)
                before, suspect = last.get(key, (-2, -1))
                follows = queue_offset == before + 1
                if follows and suspect >= 0:
                    self._suspects[suspect] = self._suspects[suspect]._replace(in_row=True)
                last[key] = queue_offset, -1
                queue = self._queues.get(key)
                unit = None if queue is None else queue.reader.unit(queue_offset)
                if unit is None or tags_code is None:
                    continue
                says = phy_offset, size, tags_code
                if unit != says:
                    last[key] = queue_offset, len(self._suspects)
                    self._suspects.append(_Suspect(key, queue_offset, unit, says, follows))
        self._multi_rows = []

    def with_further(self, seen: TopicQueueMap) -> dict[Key, tuple[int, int, int, int]]:
        """What `seen` says of the records' own queues, and what those records that were compared
        say of the further queues that they name, as `TopicQueueMap.seen`."""
        found: dict[Key, tuple[int, int, int, int]] = seen.seen()
        for key, further in self._further.items():
            first_offset, first_phy_offset, next_offset, count = further.row()
            own = found.get(key)
            if own is not None:  # records of that topic, and others that name it
                if own[1] < first_phy_offset:
                    first_offset, first_phy_offset = own[:2]
                next_offset, count = max(next_offset, own[2]), count + own[3]
            found[key] = first_offset, first_phy_offset, next_offset, count
        return found


def _has_ext_files(queue: ConsumeQueue) -> bool:
    """Whether ext units were written while the queue was opened with other settings."""
    root = parent_directory(queue.store_path)
    return queue.env.is_dir(f"{root}/consumequeue_ext/{queue.topic}/{queue.queue_id}")


def _is_expired(log: Log, unit: Unit) -> bool:
    """Whether a unit names a message in front of the log's first file."""
    phy_offset, size, _ = unit
    return 0 <= phy_offset <= log.begin - size and size > 0


def _named_places(queue: ConsumeQueue, places: NDArray[np.int64]) -> list[int]:
    """Those of the places, bytes of the log, that units of a queue name."""
    start = max(0, queue.mapped_file_queue.get_min_offset()) // CQ_STORE_UNIT_SIZE
    found: list[int] = []
    while len(units := queue.reader.columns(start, BATCH_MAX).phy_offset):
        found += places[np.isin(places, units)].tolist()
        start += len(units)
    return found


def _runs(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges (start, count) that cover sorted queue offsets, with few others in between."""
    if not len(offsets):
        return
    gaps = np.flatnonzero(np.diff(offsets) > CHUNK) + 1
    for part in np.split(offsets, gaps):
        start, end = int(part[0]), int(part[-1]) + 1
        for begin in range(start, end, BATCH_MAX):
            yield begin, min(BATCH_MAX, end - begin)


def _unit(values: tuple[np.int64, np.int32, np.int64]) -> Unit:
    return int(values[0]), int(values[1]), int(values[2])


# ---- one record --------------------------------------------------------------------------------


class _Record:
    """The fields of a record that say which unit is its own, of bytes that may be anything."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.is_head = len(data) >= _HEAD.size
        head = _HEAD.unpack_from(data.ljust(_HEAD.size, b"\0"))
        self.total_size, _, _, self.queue_id, _, self.queue_offset = head[:6]
        self.phy_offset, self.sys_flag = head[6:]

    def is_whole(self, phy_offset: int) -> bool:
        """Whether the bytes are a record that belongs there."""
        return check_message(self.data, phy_offset, check_crc=False)[0] == "ok"

    def _texts(self) -> tuple[bytes, bytes]:
        """The topic and the properties of a whole record."""
        data = self.data
        at = 40 + 8 + (20 if self.sys_flag & 0x10 else 8)
        at += 8 + (20 if self.sys_flag & 0x20 else 8) + 4 + 8
        at += 4 + max(0, int.from_bytes(data[at : at + 4], "big", signed=True))
        topic_end = at + 1 + data[at]
        size = int.from_bytes(data[topic_end : topic_end + 2], "big", signed=True)
        return data[at + 1 : topic_end], data[topic_end + 2 : topic_end + 2 + max(0, size)]

    def is_of(self, key: Key, queue_offset: int) -> bool:
        """Whether a whole record belongs into that queue, at that queue offset."""
        topic, _ = self._texts()
        if self.sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT):
            own = (topic.decode("utf-8", "replace"), self.queue_id, self.queue_offset)
            if own == (*key, queue_offset):
                return True
        further = self.further_queues(True) + self.further_queues(False)
        return (key, queue_offset) in further

    def further_queues(self, lmq: bool) -> list[tuple[Key, int]]:
        """The further queues that a whole record names, and its queue offset in each."""
        if not self.data:
            return []
        _, text = self._texts()
        properties = string_to_properties(text.decode("utf-8", "replace"))
        names = java_split(properties.get("INNER_MULTI_DISPATCH", ""))
        offsets = java_split(properties.get("INNER_MULTI_QUEUE_OFFSET", ""))
        if len(names) != len(offsets):
            return []
        found = []
        for name, number in zip(names, offsets, strict=True):
            queue_offset = parse_java_int(number, 64)
            queue_id = 0 if lmq and name.startswith(LMQ_PREFIX) else self.queue_id
            if queue_offset is not None:
                found.append(((name, queue_id), queue_offset))
        return found


def names_record(log: Log, key: Key, queue_offset: int, unit: Unit) -> bool:
    """Whether a unit names the record of its queue and queue offset.

    Of a record that the log does not have any more only the place can be judged. Where the record
    is damaged, the unit is believed if the record's first fields agree with it.
    """
    phy_offset, size, _ = unit
    if phy_offset < 0 or size <= 0 or unit == PRE_BLANK:
        return False
    if phy_offset < log.begin:
        return phy_offset + size <= log.begin
    try:
        return _names_record(log, key, queue_offset, phy_offset, size)
    except StoreIOError as error:
        if error.errno != errno.ENOENT:
            raise
        return True  # expired just now, in the process that owns the store


def _names_record(log: Log, key: Key, queue_offset: int, phy_offset: int, size: int) -> bool:
    record = _Record(log.read(phy_offset, size))
    if record.is_head and record.total_size == size and record.is_whole(phy_offset):
        return record.is_of(key, queue_offset)
    if not record.is_head:  # as much as there is of it in the file
        record = _Record(log.read(phy_offset, _HEAD.size))
    whole = _Record(log.read(phy_offset, record.total_size))
    if whole.is_head and whole.is_whole(phy_offset):
        return False  # a record of another size
    agreeing = (
        (record.total_size == size)
        + (record.phy_offset == phy_offset)
        + (record.queue_offset == queue_offset)
        + (record.queue_id == key[1])
    )
    return record.is_head and agreeing >= AGREEING_MIN


# ---- the end of a queue --------------------------------------------------------------------------


@dataclasses.dataclass
class QueueEnd:
    """What the end of a queue is worth.

    Parameters
    ----------
    covered : int, one past the last record that a unit surely names, bytes of the log; -1: none
    doubtful : {queue offset: unit}, units behind that one that name no record of the queue
    is_cut : bool, units behind that one name places behind the log's end
    in_doubt : bool, the log must be read from `covered` on: it may have the records of such units
    """

    covered: int = -1
    doubtful: dict[int, Unit] = dataclasses.field(default_factory=dict)
    is_cut: bool = False
    in_doubt: bool = False


def look_at_end(log: Log, key: Key, queue: ConsumeQueue, repairs: Mapping[int, Unit]) -> QueueEnd:
    """Go back from a queue's end to the last unit that names its record, or will once repaired.

    A unit that names a place behind the log's end is damaged, or the log has lost its record. Only
    the log can tell: it has the record of a damaged one. A unit that names a place where the log
    has lost records before its end is believed, so that reading reports its message.
    """
    found = QueueEnd()
    end = queue.core.unit_count
    first = max(0, queue.mapped_file_queue.get_min_offset()) // CQ_STORE_UNIT_SIZE
    step = 1  # nearly always the last one
    while end > first:
        start = max(first, end - step)
        units = queue.reader.columns(start, end - start)
        i = len(units.phy_offset) - 1
        while i >= 0:
            unit = _unit((units.phy_offset[i], units.size[i], units.tags_code[i]))
            known = repairs.get(start + i)
            is_behind = unit[0] >= log.end
            if known is not None or (not is_behind and names_record(log, key, start + i, unit)):
                phy_offset, size, _ = unit if known is None else known
                found.covered = phy_offset + size
                return found
            lost = None if is_behind or unit == PRE_BLANK else log.lost.range_of(*unit[:2])
            if lost is not None:
                i = _last_outside(units, i, *lost)
                continue
            if is_behind:
                found.is_cut = True
                found.in_doubt |= unit[0] >= log.torn_end
            elif unit != PRE_BLANK:
                found.doubtful[start + i] = unit
                found.in_doubt = True
            i -= 1
        end = start
        step = CHUNK
    return found


def _last_outside(units: QueueUnits, stop: int, begin: int, end: int) -> int:
    """Of the units before number `stop` the last one that names no place in [begin, end) of the
    log, bytes; -1 without one."""
    places, size = units.phy_offset[:stop], units.size[:stop]
    outside = np.flatnonzero((places < begin) | (places > end - size))
    return int(outside[-1]) if len(outside) else -1


def units_without_record(
    log: Log, queue: ConsumeQueue, first: int, place: int, repairs: Mapping[int, Unit]
) -> list[int]:
    """The queue offsets whose units no record of a log that was scanned whole asks for, though they
    must have one, or must not: of a queue file that took the place of another one.

    The messages before the queue's first record in the log have expired, and their units name no
    record of the log. From there on the log has each message.

    Parameters
    ----------
    first, place : the queue offset that the queue's first record in the log says, and where the
        record lies, bytes of the log. The answer is [] where the unit there names another place: no
        sum covers a record's queue offset
    repairs : units that are written anew, which are passed over

    Raises StoreIOError.
    """
    found: list[int] = []
    key = queue.topic, queue.queue_id
    named = repairs.get(first) or queue.reader.unit(first)
    if named is None or named[0] != place:
        return found
    start = max(0, queue.mapped_file_queue.get_min_offset()) // CQ_STORE_UNIT_SIZE
    while len((units := queue.reader.columns(start, BATCH_MAX)).size):
        places, empty = units.phy_offset, units.size <= 0
        expired = (places >= 0) & (places < log.begin) & ~empty
        is_before = np.arange(start, start + len(places)) < first
        odd = np.where(is_before, ~expired & (places < log.end), expired | empty)
        for i in np.flatnonzero(odd & ~units.is_pre_blank()).tolist():
            if start + i in repairs:
                continue
            unit = _unit((places[i], units.size[i], units.tags_code[i]))
            is_known = bool(is_before[i]) and (
                names_record(log, key, start + i, unit) or log.lost.range_of(*unit[:2]) is not None
            )
            if not is_known:
                found.append(start + i)
        start += len(places)
    return found


# ---- repair --------------------------------------------------------------------------------------


def repair_units(queue: ConsumeQueue, units: Mapping[int, Unit]) -> None:
    """Write units over those that stand at their queue offsets; in a read-only store in memory.

    A read-only store leaves a unit as it is, as 4.9.3 does, that names the right record and has
    another tags code: properties that a power cut tore have lost their tags.

    Raises StoreIOError. Durability: none before the next flush, which forces these files again.
    Differs: 4.9.3 leaves a wrong unit as it is.
    """
    count = 0
    for queue_offset, unit in sorted(units.items()):
        position = queue_offset * CQ_STORE_UNIT_SIZE
        file = queue.mapped_file_queue.find_mapped_file_by_offset(position, False)
        if queue_offset >= queue.core.unit_count or file is None:
            continue
        found = queue.reader.unit(queue_offset) if queue.read_only else None
        if found is not None and found[:2] == unit[:2]:
            continue
        _overwrite(queue, file, position - file.file_from_offset, _UNIT.pack(*unit))
        count += 1
    if count:
        LOG.warning(
            "%s/%d: %d units did not name their records and were repaired%s",
            queue.topic,
            queue.queue_id,
            count,
            " in memory" if queue.read_only else "",
        )


def _overwrite(queue: ConsumeQueue, file: MappedFile, position: int, data: bytes) -> None:
    if queue.read_only:
        if file.mode == "read":
            file.to_memory()
        file.overwrite(position, data)
        return
    files = queue.mapped_file_queue
    fd = queue.env.open(file.path, O_RDWR)
    try:
        queue.env.pwrite_all(fd, data, position, file.path)
    finally:
        queue.env.close(fd, file.path)
    file.force_again()
    files.flushed_where = min(files.flushed_where, file.file_from_offset)
    queue.core.dirty = True
