"""Cutting what was asked for into tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from pyrocketstore._log_walk import walk_records
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.display import logger
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.message import LMQ_PREFIX
from pyrocketstore.queue_units import CQ_STORE_UNIT_SIZE
from pyrocketstore.recovery import MESSAGE_MAGIC
from pyrocketstore.spark.options import (
    EARLIEST,
    LATEST,
    TASKS_MAX,
    Bound,
    SourceOptions,
    StorePlace,
)
from pyrocketstore.spark.snapshot import (
    LOG_BEGIN,
    LOG_END,
    LogFile,
    QueueRange,
    StoreSnapshot,
    sample_units,
)
from pyrocketstore.spark.units import RangeUnits

LOG = logger(__name__)

#: A task costs some 70 ms before it reads anything, so small stores are not cut further (bytes).
TASK_BYTES_MIN = 16 << 20
#: The whole log is read in order where at least this part of its bytes is wanted.
SEQUENTIAL_PART = 1 / 3
INDEX_HEADER_SIZE = 40
HEAD_SIZE = 36
#: Units that lie further apart are read one by one.
UNITS_APART_MIN = 128
UNITS_AT_ONCE = 65536
#: Of a log file whose records no queue names, for telling how large they are (bytes).
FIRST_BYTES = 1 << 20
ENTRY_SIZE = 20


@dataclasses.dataclass(frozen=True)
class QueueTask:
    """Ranges of queues, read through their units.

    `is_live`: the store may be written, and be recovering just now, so that units are not there
    for a moment.
    """

    broker_name: str
    log_files: tuple[LogFile, ...]
    ranges: tuple[QueueRange, ...]
    is_live: bool = False


@dataclasses.dataclass(frozen=True)
class LogTask:
    """The records that begin in [begin, stop) of a log file, bytes; nothing lies behind `end`.

    `begins_at_record` and `ends_at_record` say that a record is known to begin there, or that
    nothing does. `ranges` are the queues that are wanted of it; None: every record. Units that name
    a place in [own_begin, own_stop), bytes of the log, are this task's to answer for, and
    `log_files` are where they may lie.
    """

    broker_name: str
    file: LogFile
    begin: int
    stop: int
    end: int
    begins_at_record: bool
    ends_at_record: bool
    ranges: tuple[QueueRange, ...] | None
    own_begin: int = LOG_BEGIN
    own_stop: int = LOG_END
    log_files: tuple[LogFile, ...] = ()


@dataclasses.dataclass(frozen=True)
class IndexTask:
    """Entries [first, first + count) of an index file; `data` has them where they are only in
    memory. `header` is what the file's header says, times in Unix ms."""

    path: str
    header: dict[str, int]
    hash_slot_num: int
    first: int
    count: int
    data: bytes | None


Task = QueueTask | LogTask | IndexTask


class Log(Protocol):
    """What tasks need of a store."""

    @property
    def place(self) -> StorePlace:
        """Its label and directory."""

    def log_files(self) -> tuple[LogFile, ...]:
        """The commit log's files, in order."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A range, the mean size of its records (bytes), the physical offsets of a sample, and where
    its first and last record lie in the log; None where that is not known."""

    range: QueueRange
    mean_size: float
    phy_offsets: np.ndarray
    span: tuple[int, int] | None = None

    @property
    def total(self) -> int:
        """Bytes of records, about."""
        return int((self.range.stop - self.range.start) * self.mean_size)


def plan_messages(snapshot: StoreSnapshot, options: SourceOptions) -> list[Task]:
    """Tasks of the view messages."""
    wanted = [_wanted(snapshot, queue, options) for queue in snapshot.queues(options)]
    wanted = [each for each in wanted if each.range.start < each.range.stop]
    light = [each for each in wanted if each.range.topic.startswith(LMQ_PREFIX)]
    plain = [each for each in wanted if not each.range.topic.startswith(LMQ_PREFIX)]
    total = sum(each.total for each in plain)
    log_bytes = snapshot.max_phy_offset - snapshot.min_phy_offset
    # A damaged record can be shown where it should be only through its unit.
    sequential = options.on_corrupt != "null" and (
        options.read_mode == "sequential"
        or (options.read_mode == "auto" and total >= SEQUENTIAL_PART * log_bytes)
    )
    if not sequential:
        return queue_tasks(snapshot, options, wanted)
    tasks: list[Task] = []
    if plain:
        ranges = tuple(each.range for each in plain)
        samples = np.sort(np.concatenate([each.phy_offsets for each in plain]))
        span = _span(snapshot, options, plain)
        tasks += _log_tasks(snapshot, options, span, samples, ranges, ranges)
        if not tasks:  # the log's files are gone
            return queue_tasks(snapshot, options, wanted)
    return tasks + queue_tasks(snapshot, options, light)


def plan_commit_log(snapshot: StoreSnapshot, options: SourceOptions) -> list[Task]:
    """Tasks of the view commitlog: the whole log."""
    span = snapshot.min_phy_offset, snapshot.max_phy_offset
    queues = snapshot.store.consume_queues()
    counted = (_readable(queue) for queue in queues if not queue.is_lmq)
    return _log_tasks(snapshot, options, span, np.empty(0, np.int64), None, counted)


def plan_consume_queues(snapshot: StoreSnapshot, options: SourceOptions) -> list[Task]:
    """Tasks of the view consumequeue: units alone."""
    ranges = [snapshot.range_of(queue, options) for queue in snapshot.queues(options)]
    wanted = [Wanted(each, CQ_STORE_UNIT_SIZE, np.empty(0, np.int64)) for each in ranges]
    return queue_tasks(snapshot, options, wanted)


def plan_index(snapshot: StoreSnapshot, options: SourceOptions) -> list[Task]:
    """Tasks of the view index: entries in the order of their numbers.

    Raises StoreFormatError where the files' geometry is not known.
    """
    service = snapshot.index_service
    if service.geometry_error is not None:
        raise StoreFormatError(f"{service.geometry_error}, by option brokerConf")
    total = sum(file.index_count for file in service.files) * ENTRY_SIZE
    step = max(1, _task_bytes(options, total) // ENTRY_SIZE)
    step = min(step, options.max_records_per_partition or step)
    tasks: list[Task] = []
    for file in service.files:
        header = {
            "beginTimestamp": file.begin_timestamp,
            "endTimestamp": file.end_timestamp,
            "beginPhyOffset": file.begin_phy_offset,
            "endPhyOffset": file.end_phy_offset,
            "hashSlotCount": file.hash_slot_count,
            "indexCount": file.index_count,
        }
        stop = file.index_count
        for first in range(1, stop, step):
            count = min(step, stop - first)
            data = None
            if file.path is None:
                position = INDEX_HEADER_SIZE + 4 * file.hash_slot_num + first * ENTRY_SIZE
                data = file.mapped_file.read(position, count * ENTRY_SIZE)
            name = file.path or file.name
            _add(tasks, IndexTask(name, header, file.hash_slot_num, first, count, data))
    return tasks


def check_selection(snapshots: Sequence[StoreSnapshot], options: SourceOptions) -> None:
    """Raises StoreFormatError for a topic or queue that was named and that no store has."""
    known = {
        (queue.topic, queue.queue_id)
        for snapshot in snapshots
        for queue in snapshot.store.consume_queues()
    }
    topics = {topic for topic, _ in known}
    named = set(options.topics or ()) | set(options.assign or ())
    brokers = {snapshot.place.broker_name for snapshot in snapshots}
    for bound in (options.starting, options.ending):
        for broker in sorted({*bound.offsets, *bound.timestamps} - brokers - {""}):
            raise StoreFormatError(f"rocketmq-store: no store is called {broker!r}")
    for topic in sorted(named - topics):
        raise StoreFormatError(f"rocketmq-store: no store has a topic {topic!r}")
    places = [(topic, i) for topic, ids in (options.assign or {}).items() for i in ids]
    for bound in (options.starting, options.ending):
        for by_topic in [*bound.offsets.values(), *bound.timestamps.values()]:
            places += [(topic, i) for topic, ids in by_topic.items() for i in ids]
    for topic, queue_id in sorted(set(places) - known):
        raise StoreFormatError(f"rocketmq-store: no store has a queue {topic!r}/{queue_id}")


# ---- queues --------------------------------------------------------------------------------------


def _wanted(snapshot: StoreSnapshot, queue: ConsumeQueue, options: SourceOptions) -> Wanted:
    wanted = snapshot.range_of(queue, options)
    units = sample_units(queue, wanted.start, wanted.stop)
    real = ~units.is_pre_blank()
    mean = float(units.size[real].mean()) if real.any() else 0.0
    span = None
    if len(real) and real[0] and real[-1]:
        span = int(units.phy_offset[0]), int(units.phy_offset[-1]) + int(units.size[-1])
    return Wanted(wanted, max(mean, 1.0), units.phy_offset[real], span)


def _readable(queue: ConsumeQueue) -> QueueRange:
    """What recovery makes of a queue, damaged or not."""
    return QueueRange(
        topic=queue.topic,
        queue_id=queue.queue_id,
        directory=queue.mapped_file_queue.store_path,
        file_size=queue.mapped_file_size,
        start=queue.first_readable_offset(),
        stop=queue.get_max_offset_in_queue(),
    )


def queue_tasks(
    log: Log, options: SourceOptions, wanted: Iterable[Wanted], *, is_live: bool = False
) -> list[Task]:
    """Ranges cut and put together to tasks of about the same bytes."""
    wanted = list(wanted)
    limit = _task_bytes(options, sum(each.total for each in wanted))
    records_max = options.max_records_per_partition or 1 << 62
    files = log.log_files()
    tasks: list[Task] = []
    ranges: list[QueueRange] = []
    room, rows = float(limit), records_max

    def close() -> None:
        nonlocal ranges, room, rows
        if ranges:
            _add(tasks, QueueTask(log.place.broker_name, files, tuple(ranges), is_live))
        ranges, room, rows = [], float(limit), records_max

    for each in wanted:
        at = each.range.start
        while at < each.range.stop:
            count = min(each.range.stop - at, max(1, int(room / each.mean_size)), rows)
            ranges.append(each.range.cut(at, at + count))
            at += count
            room -= count * each.mean_size
            rows -= count
            if room < each.mean_size or rows == 0:
                close()
    close()
    return tasks


def _add(tasks: list[Any], task: Task) -> None:
    """Take another task. Raises StoreFormatError where there are too many."""
    if len(tasks) >= TASKS_MAX:
        raise StoreFormatError(
            f"rocketmq-store: more than {TASKS_MAX} tasks for one store: give a greater "
            "partitionBytes or maxRecordsPerPartition, a smaller minPartitions, or ask for less"
        )
    tasks.append(task)


def _task_bytes(options: SourceOptions, total: int) -> int:
    """Bytes that a task should read: no more than was said, and enough tasks for all cores."""
    limit = options.partition_bytes
    limit = min(limit, max(TASK_BYTES_MIN, -(-total // (2 * Env().processor_count()))))
    return max(1, min(limit, -(-total // options.min_partitions)))


# ---- the log -------------------------------------------------------------------------------------


def _log_tasks(
    snapshot: StoreSnapshot,
    options: SourceOptions,
    span: tuple[int, int],
    samples: np.ndarray,
    ranges: tuple[QueueRange, ...] | None,
    counted: Iterable[QueueRange],
) -> list[Task]:
    """The log's bytes `span` in ranges; `samples`, sorted, are places where records begin, and
    `counted` the queues whose records count for a task."""
    begin, end = span
    step = _task_bytes(options, end - begin)
    files = snapshot.log_files()
    env = Env()
    records_max = options.max_records_per_partition
    density = None
    if records_max is not None:
        apart = max(1, records_max // 4)
        density = Density.of(env, counted, span, apart) or Density.of_log(env, files, span)
        samples = samples[:0]  # a task ends where its records are enough, not at the next sample
    tasks: list[LogTask] = []
    for file in files:
        first = max(0, begin - file.from_offset)
        last = min(file.size, end - file.from_offset)
        at, known = first, first == 0 or _is_record(env, file, first)
        while at < last:
            size = step
            if density is not None and records_max is not None:
                size = min(step, density.bytes_of(file.from_offset + at, records_max))
            stop, stop_known = min(at + size, last), True
            if stop < last:
                until = file.from_offset + min(last, stop + min(TASK_BYTES_MIN, size // 16))
                cut, stop_known = _cut(samples, file.from_offset + stop, until)
                stop = cut - file.from_offset
                stop_known = stop_known and _is_record(env, file, stop)
            name = snapshot.place.broker_name
            _add(tasks, LogTask(name, file, at, stop, last, known, stop_known, ranges))
            at, known = stop, stop_known
    return [*_owners(tasks, files)] if ranges is not None else [*tasks]


@dataclasses.dataclass(frozen=True)
class Density:
    """How many records begin before a place of the log, about: `counts` at `places`, bytes from
    `begin` on, both ascending, and evenly between them."""

    begin: int
    places: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(
        cls, env: Env, counted: Iterable[QueueRange], span: tuple[int, int], step: int
    ) -> Density | None:
        """By each `step`th unit of queues; None where they name nothing."""
        places, slopes = [], []
        for pinned in counted:
            if pinned.start >= pinned.stop:
                continue
            offsets, phy_offsets, sizes = _each_unit(env, pinned, step)
            if not len(offsets):
                continue
            # A unit may name any place: then all are taken to lie in order.
            knots = np.sort(np.clip(phy_offsets, *span) - span[0]).astype(np.float64)
            knots = np.append(knots, knots[-1] + sizes[-1])
            counts = np.append(offsets, offsets[-1] + 1)
            slope = np.diff(counts) / np.maximum(np.diff(knots), 1.0)
            places.append(knots)
            slopes.append(np.diff(slope, prepend=0.0, append=0.0))
        if not places:
            return None
        place, slope = np.concatenate(places), np.concatenate(slopes)
        order = np.argsort(place, kind="stable")
        place = place[order]
        rises = np.maximum(np.cumsum(slope[order]), 0.0)[:-1] * np.diff(place)
        return cls(span[0], place, np.append(0.0, np.cumsum(rises)))

    @classmethod
    def of_log(cls, env: Env, files: Iterable[LogFile], span: tuple[int, int]) -> Density:
        """By the first records of each file."""
        places, counts = [0.0], [0.0]
        for file in files:
            size = min(file.size, span[1] - file.from_offset)
            data = env.read_part(file.path, 0, min(size, FIRST_BYTES))
            found, sizes, _, _ = walk_records(data, 0, len(data), file.from_offset)
            mean = float(sizes.mean()) if len(found) else float(FIRST_BYTES)
            end = max(0, file.from_offset + size - span[0])
            counts.append(counts[-1] + (end - places[-1]) / mean)
            places.append(float(end))
        return cls(span[0], np.array(places), np.array(counts))

    def bytes_of(self, begin: int, count: int) -> int:
        """How many bytes from the log's byte `begin` on have `count` records; at least one."""
        at = begin - self.begin
        reached = float(np.interp(at, self.places, self.counts)) + count
        stop = np.interp(reached, self.counts, self.places, right=float(LOG_END))
        return max(1, int(stop) - at)


def _each_unit(env: Env, pinned: QueueRange, step: int) -> tuple[np.ndarray, ...]:
    """Each `step`th unit of a range and the last one, as far as they name a message: their queue
    offsets, physical offsets and sizes."""
    reader = RangeUnits(env, pinned, fail_on_data_loss=False)
    block = step if step >= UNITS_APART_MIN else UNITS_AT_ONCE // step * step
    pieces = []
    for first in [*range(pinned.start, pinned.stop, block), pinned.stop - 1]:
        count = 1 if block == step else min(block, pinned.stop - first)
        found = reader.read(first, first + count)
        rows = np.flatnonzero(~found.is_pre_blank())
        rows = rows[rows % step == 0]
        pieces.append((first + rows, found.phy_offset[rows], found.size[rows]))
    return tuple(np.concatenate(column) for column in zip(*pieces, strict=True))


def _owners(tasks: list[LogTask], files: tuple[LogFile, ...]) -> Iterator[LogTask]:
    """The tasks, each with the places that it answers for: all of them together for every one."""
    begins = [task.file.from_offset + task.begin for task in tasks]
    for number, task in enumerate(tasks):
        yield dataclasses.replace(
            task,
            own_begin=begins[number] if number else LOG_BEGIN,
            own_stop=begins[number + 1] if number + 1 < len(tasks) else LOG_END,
            log_files=files,
        )


def _is_record(env: Env, file: LogFile, position: int) -> bool:
    """Whether a record's head lies there, with its own place."""
    head = env.read_part(file.path, position, HEAD_SIZE)
    place = (file.from_offset + position).to_bytes(8, "big")
    return len(head) == HEAD_SIZE and head[4:8] == MESSAGE_MAGIC and head[28:36] == place


def _span(snapshot: StoreSnapshot, options: SourceOptions, wanted: list[Wanted]) -> tuple[int, int]:
    """The bytes of the log that can hold what is wanted."""
    begin, end = snapshot.min_phy_offset, snapshot.max_phy_offset
    spans = [each.span for each in wanted]
    bounded = options.starting != Bound(EARLIEST) or options.ending != Bound(LATEST)
    known = [span for span in spans if span is not None]
    if not bounded or len(known) < len(spans):
        return begin, end
    return max(begin, min(s[0] for s in known)), min(end, max(s[1] for s in known))


def _cut(samples: np.ndarray, wanted: int, until: int) -> tuple[int, bool]:
    """Where to cut the log: the first known beginning of a record from `wanted` on, if it lies
    before `until`, and whether it is one; a task can search for its first record too."""
    place = int(np.searchsorted(samples, wanted))
    if place < len(samples) and samples[place] < until:
        return int(samples[place]), True
    return wanted, False
