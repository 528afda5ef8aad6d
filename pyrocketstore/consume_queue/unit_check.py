"""Compare units of consume queues with the records of the log that they should name.

A unit has no checksum, and one wrong bit can do much damage: the last unit of a queue decides which
records the queue has. Recovery therefore compares each record that it scans with its unit, and the
last unit of each queue with the record that it names. From the first unit on that contradicts the
log, a queue is derived from the log again.
"""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyrocketstore.commit_log.lost_records import LostRecords
from pyrocketstore.consume_queue._units import MAX_ADDR
from pyrocketstore.consume_queue.many_queues import read_ranges
from pyrocketstore.consume_queue.table import is_safe_name
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE, NO_LIMIT, PRE_BLANK, QueueUnits
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreIOError
from pyrocketstore.record._record import (
    RecordHeader,
    check_message,
    topic_and_properties,
)
from pyrocketstore.record._text import string_to_properties
from pyrocketstore.record.message import (
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    is_queued,
)
from pyrocketstore.record.multi_dispatch import further_queues
from pyrocketstore.system.env import parent_directory

if TYPE_CHECKING:
    from pyrocketstore.commit_log._chunk_scan import LogChunk
    from pyrocketstore.commit_log._scan import TopicMinOffsets, TopicQueueMap
    from pyrocketstore.commit_log.log import CommitLog
    from pyrocketstore.consume_queue.queue import ConsumeQueue
    from pyrocketstore.files._mapped_file import MappedFile

__all__ = [
    "Key",
    "Log",
    "QueueEnd",
    "Repairs",
    "UnitCheck",
    "further_units",
    "look_at_end",
    "names_record",
    "stated_offsets",
]

LOG = logger(__name__)

Unit = tuple[int, int, int]
Key = tuple[str, int]
#: {(topic, queue id): queue offsets from the first unit on that contradicts the log}
Repairs = dict[Key, range]

#: Records that are compared at a time, so that a queue is read once for many of its records.
BATCH_MAX = 1 << 20
#: A delivery time is at most this much later than the store time (ms). Delays are settings, which
#: may have been different when the unit was written.
DELAY_MAX_MS = 366 * 86_400_000
#: Units that are read at a time.
CHUNK = 4096
#: From so many records a queue on, queues are compared one by one: each is read by itself.
FEW_QUEUES_ROWS = 256
#: So many queues are compared one by one in any case.
FEW_QUEUES = 32
#: Units without a record that are read with those of a queue's records.
SPARE_UNITS = 16


class _Batch(NamedTuple):
    """Rows of `LogChunk.rows`, with queue numbers that are common to all chunks."""

    number: NDArray[np.int32]
    queue_offset: NDArray[np.int64]
    phy_offset: NDArray[np.int64]
    size: NDArray[np.int32]
    tags_code: NDArray[np.int64]
    delayed_from: NDArray[np.int64]

    def take(self, at: NDArray[np.intp] | slice) -> _Batch:
        """Return the rows with these numbers, of a slice views."""
        return _Batch(*[column[at] for column in self])  # type: ignore[arg-type]

    def agree_with(self, units: QueueUnits, *, has_ext: bool = False) -> NDArray[np.bool_]:
        """Return which units are those of the rows. The tags code may be a time of delivery, and
        with `has_ext` the address of an ext unit."""
        same = (units.phy_offset == self.phy_offset) & (units.size == self.size)
        code, stored = units.tags_code, self.delayed_from
        is_time = (stored >= 0) & (code >= stored) & (code <= stored + DELAY_MAX_MS)
        is_address = (code <= MAX_ADDR) & has_ext
        return np.asarray(same & ((code == self.tags_code) | is_address | is_time))


class _Suspect(NamedTuple):
    """A unit that contradicts a record: `says` is the unit that the record requires.

    `in_row`: the previous or next record of the queue in the log has the previous or next queue
    offset.
    """

    key: Key
    queue_offset: int
    unit: Unit
    says: Unit
    in_row: bool


class Log(NamedTuple):
    """The files of the log while recovery reads them, up to `end` (bytes of the log)."""

    find: Callable[[int], MappedFile | None]
    begin: int
    end: int
    #: units that name bytes in [end, torn_end) name records that an unclean exit has lost
    torn_end: int
    lost: LostRecords
    min_offsets: TopicMinOffsets

    @classmethod
    def of(cls, log: CommitLog, begin: int, end: int, torn_end: int) -> Log:
        """Return the part [begin, end) of a log."""
        find = log.mapped_file_queue.find_mapped_file_by_offset
        lost = LostRecords(log.env, log, begin, end)
        return cls(lambda at: find(at, False), begin, end, torn_end, lost, log.min_offsets)

    @classmethod
    def up_to(cls, log: CommitLog, end: int, *, clean: bool) -> Log:
        """Return the readable part of a log that ends at `end`."""
        files = log.mapped_file_queue.mapped_files
        last = files[-1].file_from_offset + files[-1].file_size
        # A killed process may have dispatched records of a file that a power cut has removed.
        return cls.of(log, files[0].file_from_offset, end, end if clean else last + log.file_size)

    def read(self, phy_offset: int, size: int) -> bytes:
        """Return bytes of one file of the log; b"" when the log has no such bytes.

        Raises StoreIOError, with ENOENT when another process has just deleted the file.
        """
        file = self.find(phy_offset) if self.begin <= phy_offset < self.end else None
        if file is None or size <= 0 or phy_offset + size > self.end:
            return b""
        position = phy_offset - file.file_from_offset
        if size > file.wrote - position:  # also for a file that has lost its end
            return b""
        return file.read(position, size)


class _Seen:
    """The first and last offsets of a further queue, from the records that name it in any order."""

    def __init__(self) -> None:
        self._first = self._last = (-1, -1)  # physical offset, queue offset
        self._count = 0

    def note(self, queue_offset: int, phy_offset: int) -> None:
        offsets = phy_offset, queue_offset
        self._first = min(self._first, offsets) if self._count else offsets
        self._last = max(self._last, offsets)
        self._count += 1

    def row(self) -> tuple[int, int, int, int]:
        """Return (first queue offset, its physical offset, next queue offset, count)."""
        return self._first[1], self._first[0], self._last[1] + 1, self._count


class UnitCheck:
    """Gather the records of a scan, and find the units that contradict them.

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
        self._chunks: list[LogChunk] = []
        self._count = 0
        #: of the gathered chunks: queues whose units may contradict records, and by chunk the
        #: others, with one past the record of the last unit or -1
        self._doubtful: set[Key] = set()
        self._agreed: list[list[tuple[Key, int]]] = []
        self._multi_rows: list[tuple[int, int, int | None]] = []
        self._further: dict[Key, _Seen] = {}
        self._suspects: list[_Suspect] = []
        #: of queues whose units agree with the added records: one past the record of the last
        #: unit, bytes of the log; -1: that unit was not among them
        self._confirmed: dict[Key, int] = {}
        #: queues that were not compared, and where the record of their last unit ends
        self._trusted: dict[Key, int] = {}

    # ---- records that are scanned ----------------------------------------------------------------

    def add(self, chunk: LogChunk) -> None:
        """Add the records of a scanned chunk of the log, in the log's order."""
        if chunk.count:
            self._chunks.append(chunk)
            self._count += chunk.count
            self._agreed.append([])
            self._compare_plain(chunk)
            # The last one stays: the next chunk may have a record that must be seen beside it.
            while len(self._chunks) > 1 and not self._doubtful:
                self._count -= self._chunks.pop(0).count
                self._confirm_all(self._agreed.pop(0))
        if self._multi:
            self._multi_rows += chunk.multi_rows()
        if self._count >= BATCH_MAX:
            self._compare()

    def _compare_plain(self, chunk: LogChunk) -> None:
        """Compare the records of a chunk with the units, in the usual case: each record has a unit
        that agrees, or its queue has no units. `_compare` looks at other queues again."""
        keys = chunk.queue_keys()
        if chunk.count < FEW_QUEUES_ROWS * len(keys) and len(keys) > FEW_QUEUES:
            self._doubtful.update(keys)  # each would be read by itself
            return
        units: list[bytes | None] = [None] * len(keys)
        begins, ends = [0] * len(keys), [-1] * len(keys)
        ranges = chunk.queue_ranges()
        for i, (key, (start, stop, count)) in enumerate(zip(keys, ranges, strict=True)):
            queue = self._queues.get(key)
            if queue is None or queue.core.unit_count == 0:
                continue
            first = queue.mapped_file_queue.get_min_offset() // CQ_STORE_UNIT_SIZE
            if first <= start and stop <= queue.core.unit_count and stop - start == count:
                units[i], begins[i] = queue.reader.data(start, count), start
                ends[i] = 0 if stop == queue.core.unit_count else -1
            else:
                self._doubtful.add(key)
        found = chunk.check_units(units, begins)
        for i, (agreeing, end) in enumerate(found):
            if units[i] is None:
                continue
            if agreeing == ranges[i][2]:
                self._agreed[-1].append((keys[i], -1 if ends[i] < 0 else end))
            else:
                self._doubtful.add(keys[i])

    def _number(self, key: Key) -> int:
        number = self._numbers.setdefault(key, len(self._keys))
        if number == len(self._keys):
            self._keys.append(key)
        return number

    def _compare(self) -> None:
        """Compare the gathered records with the units: of a few queues one by one, of many at
        once."""
        for agreed in self._agreed:
            self._confirm_all(agreed)
        parts = list(self._doubtful_rows())
        self._chunks, self._agreed, self._doubtful, self._count = [], [], set(), 0
        if not parts:
            return
        batch = _Batch(*[np.concatenate(column) for column in zip(*parts, strict=True)])
        # NumPy sorts 16 bits by radix, several times faster than 32.
        is_small = len(self._keys) <= 1 << 15
        number = batch.number.astype(np.int16) if is_small else batch.number
        order = np.argsort(number, kind="stable")
        begins = _begins(batch.number[order])
        if len(order) < FEW_QUEUES_ROWS * len(begins):
            self._compare_many(batch.take(order))
            return
        for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
            rows = order[begin:end]
            key = self._keys[int(batch.number[rows[0]])]
            queue = self._queues.get(key)
            if queue is not None:
                self._compare_queue(key, queue, batch.take(rows))

    def _doubtful_rows(self) -> Iterator[_Batch]:
        """Yield the rows of the gathered chunks that are not compared yet."""
        for chunk in self._chunks if self._doubtful else ():
            keys = chunk.queue_keys()
            number = [self._number(key) if key in self._doubtful else -1 for key in keys]
            if max(number, default=-1) < 0:
                continue
            rows = _Batch(*chunk.rows())
            rows = rows._replace(number=np.array(number, np.int32)[rows.number])
            found = np.flatnonzero(rows.number >= 0)
            if len(found):
                yield rows.take(found)

    def _confirm_all(self, agreed: Iterable[tuple[Key, int]]) -> None:
        for key, end in agreed:
            if key not in self._doubtful:
                self._confirm(key, end)

    def _confirm(self, key: Key, end: int) -> None:
        self._confirmed[key] = max(self._confirmed.get(key, -1), end)

    def _compare_many(self, batch: _Batch) -> None:
        """Compare records, sorted by queue, with the units: of most queues at once, of the others
        one by one."""
        groups = _Groups(batch, [self._queues.get(key) for key in self._keys])
        agrees, end = groups.compare()
        for i, number in enumerate(groups.number.tolist()):
            key, queue = self._keys[number], groups.queues[i]
            if queue is None:
                continue
            if agrees[i]:
                self._confirm(key, end[i])
            else:
                self._compare_queue(key, queue, batch.take(groups.rows(i)))

    def _compare_queue(self, key: Key, queue: ConsumeQueue, rows: _Batch) -> None:
        first = queue.mapped_file_queue.get_min_offset() // CQ_STORE_UNIT_SIZE
        has_ext = queue.ext is not None or _has_ext_files(queue)
        follows = np.diff(rows.queue_offset) == 1
        if follows.all():
            end = _agreeing(queue, rows, first, has_ext=has_ext)
            if end is not None:
                self._confirm(key, end)
                return
        inside = (rows.queue_offset >= first) & (rows.queue_offset < queue.core.unit_count)
        # Not by numpy.unique, which imports a module at its first call.
        wanted = np.sort(rows.queue_offset[inside])
        wanted = wanted[np.diff(wanted, prepend=-1) != 0]
        in_row = np.r_[False, follows] | np.r_[follows, False]
        for start, count in _runs(wanted):
            units = queue.reader.columns(start, count)
            at = np.flatnonzero(
                inside
                & (rows.queue_offset >= start)
                & (rows.queue_offset < start + len(units.phy_offset))
            )
            unit = rows.queue_offset[at] - start
            same = rows.take(at).agree_with(units.take(unit), has_ext=has_ext)
            for row, i in zip(at[~same].tolist(), unit[~same].tolist(), strict=True):
                found = units.phy_offset[i], units.size[i], units.tags_code[i]
                says = rows.phy_offset[row], rows.size[row], rows.tags_code[row]
                self._suspects.append(
                    _Suspect(key, start + i, _unit(found), _unit(says), bool(in_row[row]))
                )

    # ---- units that need no further look ---------------------------------------------------------

    def trust(self, key: Key, covered: int) -> None:
        """Count a queue whose last unit names the record that ends at `covered` as confirmed."""
        self._trusted[key] = covered

    def confirmed_end(self, key: Key) -> int:
        """Return one past the record that the last unit of a queue names, bytes of the log; -1
        where no added record confirms that unit."""
        return max(self._confirmed.get(key, -1), self._trusted.get(key, -1))

    # ---- verdicts --------------------------------------------------------------------------------

    def finish(self, log: Log, *, with_tags: bool = True) -> Repairs:
        """Return from which queue offset on units contradict the added records.

        A unit that names another record of its queue and queue offset is left alone: a topic that
        was deleted and created again has two records for each offset, and the queue names the newer
        one. A removed message counts as no record.

        A unit that names bytes before the log is older than any record of the log. It is left alone
        unless the next or previous record of the queue confirms the record's queue offset, which no
        checksum covers. `with_tags`: a tags code alone contradicts a record, too.
        """
        self._compare()
        self._compare_multi(log)
        first: dict[Key, int] = {}
        for key, queue_offset, unit, says, in_row in self._suspects:
            if unit[0] < log.min_offsets.of(key[0]):
                is_right = False  # a 4.9.3 broker has put a removed message again
            elif unit[:2] == says[:2]:
                is_right = not with_tags
            elif _is_expired(log, unit) and says[0] >= log.begin:
                is_right = not in_row
            else:
                is_right = names_record(log, key, queue_offset, unit)
            if not is_right:
                first[key] = min(queue_offset, first.get(key, queue_offset))
        self._suspects = []
        return {key: range(at, self._queues[key].core.unit_count) for key, at in first.items()}

    def _compare_multi(self, log: Log) -> None:
        last: dict[Key, tuple[int, int]] = {}  # queue offset, and which suspect it is, or -1
        for phy_offset, size, tags_code in self._multi_rows:
            for key, queue_offset in further_units(log, phy_offset, size, self._lmq):
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
                if unit == says:
                    self._confirm(key, phy_offset + size)
                else:
                    last[key] = queue_offset, len(self._suspects)
                    self._suspects.append(_Suspect(key, queue_offset, unit, says, follows))
        self._multi_rows = []

    def with_further(self, seen: TopicQueueMap) -> dict[Key, tuple[int, int, int, int]]:
        """Return `TopicQueueMap.seen` of `seen`, with the further queues that the compared records
        name."""
        found: dict[Key, tuple[int, int, int, int]] = seen.seen()
        for key, further in self._further.items():
            first_offset, first_phy_offset, next_offset, count = further.row()
            own = found.get(key)
            if own is not None:  # records of that topic, and records that name it
                if own[1] < first_phy_offset:
                    first_offset, first_phy_offset = own[:2]
                next_offset, count = max(next_offset, own[2]), count + own[3]
            found[key] = first_offset, first_phy_offset, next_offset, count
        return found


def _agreeing(queue: ConsumeQueue, rows: _Batch, first: int, *, has_ext: bool) -> int | None:
    """Compare records with consecutive queue offsets with their units from queue offset `first` on:
    the usual case, without a sort.

    Returns one past the record of the queue's last unit, bytes of the log, or -1; None if a unit
    does not agree or cannot be read.
    """
    begin = int(rows.queue_offset[0])
    start = max(begin, first)
    stop = max(start, min(begin + len(rows.queue_offset), queue.core.unit_count))
    units = queue.reader.columns(start, stop - start)
    part = rows.take(slice(start - begin, stop - begin))
    if len(units.phy_offset) < stop - start or not part.agree_with(units, has_ext=has_ext).all():
        return None
    is_last = start < stop == queue.core.unit_count
    return int(part.phy_offset[-1] + part.size[-1]) if is_last else -1


def _begins(number: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the rows at which another queue begins, the first one included."""
    return np.flatnonzero(np.r_[True, number[1:] != number[:-1]])


class _Groups:
    """The records of each queue in a batch, which is sorted by queue, and the units of its queues.

    `number`, `begin`, `end` int64[n]: the queue's number, and the rows of the batch. `queues`: None
    for a queue without units.
    """

    def __init__(self, batch: _Batch, queues: Sequence[ConsumeQueue | None]) -> None:
        self._batch = batch
        self.begin = _begins(batch.number)
        self.end = np.r_[self.begin[1:], len(batch.number)]
        self.number = batch.number[self.begin]
        self.queues = [queues[number] for number in self.number.tolist()]
        self._of_row = np.repeat(np.arange(len(self.begin)), self.end - self.begin)

    def rows(self, i: int) -> NDArray[np.intp]:
        """Return the rows of the batch of a group."""
        return np.arange(int(self.begin[i]), int(self.end[i]), dtype=np.intp)

    def compare(self) -> tuple[list[bool], list[int]]:
        """Compare the records with the units of queues that have one file and few other units.

        Returns for each group whether all its records with a unit agree with it, and one past the
        last unit's record, bytes of the log; -1 if that is not one of them.
        False also for a queue that was not compared.
        """
        files = [_only_file(queue) for queue in self.queues]
        stops = [0 if q is None else q.core.unit_count for q in self.queues]
        begins = [0 if f is None else f.file_from_offset // CQ_STORE_UNIT_SIZE for f in files]
        stop, start = np.array(stops, np.int64), np.array(begins, np.int64)
        offset = self._batch.queue_offset
        inside = (offset >= start[self._of_row]) & (offset < stop[self._of_row])
        first = np.minimum.reduceat(np.where(inside, offset, NO_LIMIT), self.begin)
        count = np.maximum.reduceat(np.where(inside, offset, -1), self.begin) - first + 1
        # Few other units, so that the number of records bounds the memory.
        chosen = (count > 0) & (count <= 2 * (self.end - self.begin) + SPARE_UNITS)
        chosen &= np.array([file is not None for file in files], np.bool_)
        same, is_read = self._same(files, chosen, first, count, start)
        phy_end = self._batch.phy_offset + self._batch.size
        is_last = inside & same & (offset == stop[self._of_row] - 1)
        end = np.maximum.reduceat(np.where(is_last, phy_end, -1), self.begin)
        agrees = is_read & np.logical_and.reduceat(same | ~inside, self.begin)
        return agrees.tolist(), end.tolist()

    def _same(
        self,
        files: list[MappedFile | None],
        chosen: NDArray[np.bool_],
        first: NDArray[np.int64],
        count: NDArray[np.int64],
        start: NDArray[np.int64],
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return for each row whether its unit agrees, and for each group whether it was read."""
        is_read = np.zeros(len(chosen), np.bool_)
        same = np.zeros(len(self._of_row), np.bool_)
        read = [f for f, is_chosen in zip(files, chosen.tolist(), strict=True) if is_chosen and f]
        if not read:
            return same, is_read
        env = next(queue.env for queue in self.queues if queue is not None)
        found = read_ranges(env, read, (first - start)[chosen], count[chosen])
        is_read[chosen] = found.is_read
        # Where the unit of queue offset 0 of a group would be.
        zero = np.zeros(len(chosen), np.int64)
        zero[chosen] = found.begin[:-1] - first[chosen]
        offset, of_row = self._batch.queue_offset, self._of_row
        is_inside = is_read[of_row] & (offset >= first[of_row])
        is_inside &= offset < first[of_row] + count[of_row]
        rows = np.flatnonzero(is_inside)
        at = zero[of_row[rows]] + offset[rows]
        same[rows] = self._batch.take(rows).agree_with(found.units.take(at))
        return same, is_read


def _only_file(queue: ConsumeQueue | None) -> MappedFile | None:
    """Return the file of a queue that has one."""
    files = None if queue is None else queue.mapped_file_queue.mapped_files
    return files[0] if files is not None and len(files) == 1 else None


def _has_ext_files(queue: ConsumeQueue) -> bool:
    """Return whether ext units were written while the store was open with other settings."""
    root = parent_directory(queue.store_path)
    return queue.env.is_dir(f"{root}/consumequeue_ext/{queue.topic}/{queue.queue_id}")


def _is_expired(log: Log, unit: Unit) -> bool:
    """Return whether a unit names a message before the log's first file."""
    phy_offset, size, _ = unit
    return 0 <= phy_offset <= log.begin - size and size > 0


def _runs(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges (start, count) that cover sorted queue offsets and few others."""
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
    """The fields of a record that determine its unit, from bytes that may be damaged."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.header = RecordHeader(data)

    def is_whole(self, phy_offset: int) -> bool:
        """Return whether the bytes are a valid record with that physical offset."""
        return (
            self.header.is_whole
            and check_message(self.data, phy_offset, check_crc=False)[0] == "ok"
        )

    def _texts(self) -> tuple[bytes, bytes]:
        """Return the topic and the properties of a valid record."""
        return topic_and_properties(self.data) or (b"", b"")

    def is_of(self, key: Key, queue_offset: int) -> bool:
        """Return whether a valid record belongs to that queue and queue offset."""
        return queue_offset in self.stated_offsets(key)

    def stated_offsets(self, key: Key) -> Iterator[int]:
        """Yield the queue offsets that a valid record states for a queue."""
        topic, _ = self._texts()
        if (
            is_queued(self.header.sys_flag)
            and (topic.decode("utf-8", "replace"), self.header.queue_id) == key
        ):
            yield self.header.queue_offset
        for further, queue_offset in self.further_queues(True) + self.further_queues(False):
            if further == key:
                yield queue_offset

    def further_queues(self, lmq: bool) -> list[tuple[Key, int]]:
        """Return the further queues that a valid record names, with its queue offset in each."""
        _, text = self._texts()
        properties = string_to_properties(text.decode("utf-8", "replace"))
        found = further_queues(
            properties.get(PROPERTY_INNER_MULTI_DISPATCH, ""),
            properties.get(PROPERTY_INNER_MULTI_QUEUE_OFFSET, ""),
            self.header.queue_id,
            light_queues=lmq,
        )
        return [
            ((topic, queue_id), queue_offset)
            for topic, queue_id, queue_offset in found or ()
            if queue_offset is not None
        ]


def further_units(log: Log, phy_offset: int, size: int, lmq: bool) -> Iterator[tuple[Key, int]]:
    """Yield the further queues that get a unit of a record, each with its queue offset there.

    Raises StoreIOError.
    """
    for key, queue_offset in _Record(log.read(phy_offset, size)).further_queues(lmq):
        is_kept = phy_offset >= log.min_offsets.of(key[0])
        if is_kept and queue_offset >= 0 and key[1] >= 0 and is_safe_name(key[0]):
            yield key, queue_offset


def stated_offsets(data: bytes, key: Key, phy_offset: int) -> list[int]:
    """Return the queue offsets that a record states for a queue; [] unless the bytes are exactly a
    valid record with that physical offset, CRC included."""
    record = _Record(data)
    if record.header.total_size != len(data) or check_message(data, phy_offset)[0] != "ok":
        return []
    return list(record.stated_offsets(key))


def names_record(log: Log, key: Key, queue_offset: int, unit: Unit) -> bool:
    """Return whether a unit names the record of its queue and queue offset.

    For a record before the log only the physical offset is checked. A damaged record does not
    count: see `Log.lost`.
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
        return True  # the owner of the store has just deleted the file


def _names_record(log: Log, key: Key, queue_offset: int, phy_offset: int, size: int) -> bool:
    record = _Record(log.read(phy_offset, size))
    is_whole = record.header.total_size == size and record.is_whole(phy_offset)
    return is_whole and record.is_of(key, queue_offset)


# ---- the end of a queue --------------------------------------------------------------------------


@dataclasses.dataclass(repr=False, eq=False)
class QueueEnd:
    """Which units at the end of a queue name their records.

    Parameters
    ----------
    covered : int, one past the last record that a unit correctly names, bytes of the log; -1: none
    doubtful : int, queue offset of the first later unit that names no record of the queue; -1: none
    is_cut : bool, later units name bytes after the log's end
    in_doubt : bool, the log must be read from `covered` on: it may have the records of such units
    """

    covered: int = -1
    doubtful: int = -1
    is_cut: bool = False
    in_doubt: bool = False


def look_at_end(
    log: Log, key: Key, queue: ConsumeQueue, wrong: range | None, scanned_from: int
) -> QueueEnd:
    """Search from a queue's end, or from the first of its units that are `wrong`, for the last unit
    that names its record.

    A unit that names bytes after the log's end is damaged, or the log has lost its record. Reading
    the log decides: it has the record of a damaged unit. A unit that names a record which the log
    has lost before its end counts as correct, so that readers report the message.
    """
    found = QueueEnd()
    end = queue.core.unit_count if wrong is None else wrong.start
    first = max(0, queue.mapped_file_queue.get_min_offset()) // CQ_STORE_UNIT_SIZE
    step = 1  # the common case: the last unit
    while end > first:
        start = max(first, end - step)
        units = queue.reader.columns(start, end - start)
        i = len(units.phy_offset) - 1
        while i >= 0:
            unit = _unit((units.phy_offset[i], units.size[i], units.tags_code[i]))
            is_behind = unit[0] >= log.end
            is_right = not is_behind and names_record(log, key, start + i, unit)
            if not (is_right or is_behind or wrong is not None or found.doubtful >= 0):
                is_right = _is_only_unit_of_record(log, queue, start + i, unit, scanned_from)
            if is_right:
                found.covered = unit[0] + unit[1]
                return found
            lost = None if is_behind or unit == PRE_BLANK else log.lost.range_of(*unit[:2])
            if lost is not None:
                i = _last_outside(units, i, *lost)
                continue
            if is_behind:
                found.is_cut = True
                found.in_doubt |= unit[0] >= log.torn_end
            elif unit != PRE_BLANK:
                found.doubtful = start + i
                found.in_doubt = True
            i -= 1
        end = start
        step = CHUNK
    return found


def _is_only_unit_of_record(
    log: Log, queue: ConsumeQueue, queue_offset: int, unit: Unit, scanned_from: int
) -> bool:
    """Return whether a unit alone names a valid record of its queue that states another queue
    offset, or a queue id that no queue can have. No checksum covers these fields.

    The previous unit must name its own record, and all records between both must have been
    compared: of units that are shifted, as in a queue file that has replaced another one, each
    hides a record.
    """
    key = queue.topic, queue.queue_id
    phy_offset, size, _ = unit
    try:
        record = _Record(log.read(phy_offset, size))
        header = record.header
        if header.total_size != size or not record.is_whole(phy_offset):
            return False
        queue_id = header.queue_id if header.queue_id < 0 else key[1]
        if not record.is_of((key[0], queue_id), header.queue_offset):
            return False
        stated, other = header.queue_offset, None
        if stated != queue_offset and 0 <= stated < queue.core.unit_count:
            other = queue.reader.unit(stated)
        before = queue.reader.unit(queue_offset - 1) if queue_offset else None
        if before is None or (other is not None and other[:2] == unit[:2]):
            return False
        end = before[0] + before[1]
        is_next = scanned_from <= end <= phy_offset
        return is_next and names_record(log, key, queue_offset - 1, before)
    except StoreIOError as error:
        if error.errno != errno.ENOENT:
            raise
        return True  # the owner of the store has just deleted the file


def _last_outside(units: QueueUnits, stop: int, begin: int, end: int) -> int:
    """Return the last unit before number `stop` that names no record in [begin, end), bytes of the
    log; -1 without one."""
    outside = np.flatnonzero(~units.take(slice(stop)).is_inside(begin, end))
    return int(outside[-1]) if len(outside) else -1
