"""Divide the selected rows into tasks."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from pyrocketstore.commit_log._scan import walk_records
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.index._file import INDEX_SIZE
from pyrocketstore.index.directory import entry_position
from pyrocketstore.record._record import HEADER_SIZE, RecordHeader
from pyrocketstore.record.message import LMQ_PREFIX
from pyrocketstore.spark.options import EARLIEST, LATEST, TASKS_MAX, Bound, SourceOptions
from pyrocketstore.spark.plan.snapshot import StoreSnapshot, sample_units
from pyrocketstore.spark.read.units import UNITS_AT_ONCE, RangeUnits
from pyrocketstore.spark.task_types import (
    LOG_BEGIN,
    LOG_END,
    IndexTask,
    LogFile,
    LogTask,
    QueueRange,
    QueueTask,
    Task,
    TaskGroup,
    grouped,
)
from pyrocketstore.system.env import Env

LOG = logger(__name__)

#: A task costs about 70 ms before it reads anything, so small stores are not divided (bytes).
TASK_BYTES_MIN = 16 << 20
#: The whole log is read in order where at least this part of its bytes is selected.
SEQUENTIAL_PART = 1 / 3
#: Sampled units that are further apart are read one by one.
UNITS_APART_MIN = 128
#: Bytes of a log file that are read to estimate the record size, where no queue has units.
FIRST_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A range, the mean size of its records (bytes), the physical offsets of a sample, and the
    bytes of the log from its first to its last record; None where they are unknown."""

    range: QueueRange
    mean_size: float
    phy_offsets: np.ndarray
    span: tuple[int, int] | None = None

    @property
    def total(self) -> int:
        """Approximate bytes of records."""
        return int((self.range.stop - self.range.start) * self.mean_size)


def plan_messages(snapshot: StoreSnapshot, options: SourceOptions) -> list[Task]:
    """Return the tasks of the view messages."""
    wanted = [_wanted(snapshot, queue, options) for queue in snapshot.queues(options)]
    wanted = [each for each in wanted if each.range.start < each.range.stop]
    light = [each for each in wanted if each.range.topic.startswith(LMQ_PREFIX)]
    plain = [each for each in wanted if not each.range.topic.startswith(LMQ_PREFIX)]
    total = sum(each.total for each in plain)
    log_bytes = snapshot.max_phy_offset - snapshot.min_phy_offset
    # Only its unit has the expected queue and offset of a damaged record.
    sequential = options.on_corrupt != "null" and (
        options.read_mode == "sequential"
        or (options.read_mode == "auto" and total >= SEQUENTIAL_PART * log_bytes)
    )
    if not sequential:
        return _snapshot_tasks(snapshot, options, wanted)
    tasks: list[Task] = []
    if plain:
        ranges = tuple(each.range for each in plain)
        samples = np.sort(np.concatenate([each.phy_offsets for each in plain]))
        span = _span(snapshot, options, plain)
        tasks += _log_tasks(snapshot, options, span, samples, ranges, ranges)
        if not tasks:  # the log's files are gone
            return _snapshot_tasks(snapshot, options, wanted)
    return tasks + _snapshot_tasks(snapshot, options, light)


def plan_commit_log(snapshot: StoreSnapshot, options: SourceOptions) -> list[Task]:
    """Return the tasks of the view commitlog: the whole log."""
    span = snapshot.min_phy_offset, snapshot.max_phy_offset
    queues = snapshot.store.consume_queues()
    counted = (_readable(queue) for queue in queues if not queue.is_lmq)
    return _log_tasks(snapshot, options, span, np.empty(0, np.int64), None, counted)


def plan_consume_queues(snapshot: StoreSnapshot, options: SourceOptions) -> list[Task]:
    """Return the tasks of the view consumequeue: units alone."""
    ranges = [snapshot.range_of(queue, options) for queue in snapshot.queues(options)]
    wanted = [Wanted(each, CQ_STORE_UNIT_SIZE, np.empty(0, np.int64)) for each in ranges]
    return _snapshot_tasks(snapshot, options, wanted)


def plan_index(snapshot: StoreSnapshot, options: SourceOptions) -> list[Task]:
    """Return the tasks of the view index: entries in the order of their numbers.

    Raises StoreFormatError where the geometry of the files is unknown.
    """
    service = snapshot.index_service
    if service.geometry_error is not None:
        raise StoreFormatError(f"{service.geometry_error}, by option brokerConf")
    total = sum(file.index_count for file in service.files) * INDEX_SIZE
    step = max(1, _task_bytes(options, total) // INDEX_SIZE)
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
                position = entry_position(file.hash_slot_num, first)
                data = file.mapped_file.read(position, count * INDEX_SIZE)
            name = file.path or file.name
            _add(tasks, IndexTask(name, header, file.hash_slot_num, first, count, data))
    return tasks


def combined(tasks: Sequence[Task], options: SourceOptions) -> list[Task]:
    """Combine consecutive ranges of small log or index files, up to the bytes and records of one
    task."""
    sizes = [_size_of(task) for task in tasks]
    bytes_max = _task_bytes(options, sum(size for size, _ in sizes))
    records_max = options.max_records_per_partition or 1 << 62
    found: list[Task] = []
    together = itertools.groupby(
        zip(tasks, sizes, strict=True), lambda each: isinstance(each[0], QueueTask)
    )
    for is_whole, some in together:
        if is_whole:
            found += [task for task, _ in some]
            continue
        weighed = [
            (task, max(size / bytes_max, records / records_max)) for task, (size, records) in some
        ]
        for run in grouped(weighed, 1.0 + 1e-9):  # weights are rounded
            files = [task for task in run if isinstance(task, LogTask | IndexTask)]
            found.append(TaskGroup.of(files) if len(files) > 1 else run[0])
    return found


def _size_of(task: Task) -> tuple[int, int]:
    """Return the bytes and records of a range of a file; 0 for any other task."""
    if isinstance(task, LogTask):
        return task.stop - task.begin, task.records
    if isinstance(task, IndexTask):
        return task.count * INDEX_SIZE, task.count
    return 0, 0


def check_selection(snapshots: Sequence[StoreSnapshot], options: SourceOptions) -> None:
    """Raise StoreFormatError for a named topic or queue that no store has."""
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
    queues = [(topic, i) for topic, ids in (options.assign or {}).items() for i in ids]
    for bound in (options.starting, options.ending):
        for by_topic in [*bound.offsets.values(), *bound.timestamps.values()]:
            queues += [(topic, i) for topic, ids in by_topic.items() for i in ids]
    for topic, queue_id in sorted(set(queues) - known):
        raise StoreFormatError(f"rocketmq-store: no store has a queue {topic!r}/{queue_id}")


# ---- queues --------------------------------------------------------------------------------------


def _wanted(snapshot: StoreSnapshot, queue: ConsumeQueue, options: SourceOptions) -> Wanted:
    wanted = snapshot.range_of(queue, options)
    units = sample_units(queue, wanted.start, wanted.stop)
    real = ~units.is_pre_blank()
    span = None
    if len(real) and real[0] and real[-1]:
        span = int(units.phy_offset[0]), int(units.phy_offset[-1]) + int(units.size[-1])
    return Wanted(wanted, mean_size(units.size[real]), units.phy_offset[real], span)


def mean_size(sizes: np.ndarray) -> float:
    """Return the mean of sampled record sizes (bytes), at least 1."""
    return max(1.0, float(sizes.mean())) if len(sizes) else 1.0


def _readable(queue: ConsumeQueue) -> QueueRange:
    """Return the range of a queue after recovery, damaged or not."""
    return QueueRange(
        topic=queue.topic,
        queue_id=queue.queue_id,
        directory=queue.mapped_file_queue.store_path,
        file_size=queue.mapped_file_size,
        start=queue.first_readable_offset(),
        stop=queue.get_max_offset_in_queue(),
    )


def _snapshot_tasks(
    snapshot: StoreSnapshot, options: SourceOptions, wanted: Sequence[Wanted]
) -> list[Task]:
    return queue_tasks(snapshot.place.broker_name, snapshot.log_files(), options, wanted)


def queue_tasks(
    broker_name: str,
    files: tuple[LogFile, ...],
    options: SourceOptions,
    wanted: Sequence[Wanted],
    *,
    is_live: bool = False,
) -> list[Task]:
    """Divide and combine ranges into tasks of about the same number of bytes; `files` are those of
    the log."""
    limit = _task_bytes(options, sum(each.total for each in wanted))
    records_max = options.max_records_per_partition or 1 << 62
    tasks: list[Task] = []
    ranges: list[QueueRange] = []
    room, rows = float(limit), records_max

    def close() -> None:
        nonlocal ranges, room, rows
        if ranges:
            _add(tasks, QueueTask(broker_name, files, tuple(ranges), is_live))
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
    """Append a task. Raises StoreFormatError for more than TASKS_MAX tasks."""
    if len(tasks) >= TASKS_MAX:
        raise StoreFormatError(
            f"rocketmq-store: more than {TASKS_MAX} tasks for one store: increase "
            "partitionBytes or maxRecordsPerPartition, decrease minPartitions, or select less"
        )
    tasks.append(task)


def _task_bytes(options: SourceOptions, total: int) -> int:
    """Return the bytes of a task: at most partitionBytes, with enough tasks for all cores."""
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
    """Divide the bytes `span` of the log. `samples` are sorted physical offsets of records;
    `counted` are the queues whose records count for maxRecordsPerPartition."""
    begin, end = span
    step = _task_bytes(options, end - begin)
    files = snapshot.log_files()
    env = Env()
    records_max = options.max_records_per_partition
    density = None
    if records_max is not None:
        apart = max(1, records_max // 4)
        density = Density.of(env, counted, span, apart) or Density.of_log(env, files, span)
        samples = samples[:0]  # a task ends after its count of records, not at the next sample
    tasks: list[LogTask] = []
    broker_name = snapshot.place.broker_name
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
            task = LogTask(broker_name, file, at, stop, last, known, stop_known, ranges)
            if density is not None:
                count = density.count_of(file.from_offset + at, file.from_offset + stop)
                task = dataclasses.replace(task, records=count)
            _add(tasks, task)
            at, known = stop, stop_known
    return [*_owners(tasks, files)] if ranges is not None else [*tasks]


@dataclasses.dataclass(frozen=True)
class Density:
    """Estimates how many records begin before a position of the log: `counts` at `positions`
    (bytes from `begin` on), both ascending, with linear interpolation."""

    begin: int
    positions: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(
        cls, env: Env, counted: Iterable[QueueRange], span: tuple[int, int], step: int
    ) -> Density | None:
        """Estimate by each `step`th unit of queues; None where no unit names a message."""
        positions, slopes = [], []
        for pinned in counted:
            if pinned.start >= pinned.stop:
                continue
            offsets, phy_offsets, sizes = _each_unit(env, pinned, step)
            if not len(offsets):
                continue
            # A damaged unit may name any physical offset; the estimate assumes ascending ones.
            knots = np.sort(np.clip(phy_offsets, *span) - span[0]).astype(np.float64)
            knots = np.append(knots, knots[-1] + sizes[-1])
            counts = np.append(offsets, offsets[-1] + 1)
            slope = np.diff(counts) / np.maximum(np.diff(knots), 1.0)
            positions.append(knots)
            slopes.append(np.diff(slope, prepend=0.0, append=0.0))
        if not positions:
            return None
        position, slope = np.concatenate(positions), np.concatenate(slopes)
        order = np.argsort(position, kind="stable")
        position = position[order]
        rises = np.maximum(np.cumsum(slope[order]), 0.0)[:-1] * np.diff(position)
        return cls(span[0], position, np.append(0.0, np.cumsum(rises)))

    @classmethod
    def of_log(cls, env: Env, files: Iterable[LogFile], span: tuple[int, int]) -> Density:
        """Estimate by the first records of each file."""
        positions, counts = [0.0], [0.0]
        for file in files:
            size = min(file.size, span[1] - file.from_offset)
            data = env.read_part(file.path, 0, min(size, FIRST_BYTES))
            found, sizes, _, _ = walk_records(data, 0, len(data), file.from_offset)
            mean = float(sizes.mean()) if len(found) else float(FIRST_BYTES)
            end = max(0, file.from_offset + size - span[0])
            counts.append(counts[-1] + (end - positions[-1]) / mean)
            positions.append(float(end))
        return cls(span[0], np.array(positions), np.array(counts))

    def count_of(self, begin: int, stop: int) -> int:
        """Return how many records begin in bytes [begin, stop) of the log."""
        ends = np.interp((begin - self.begin, stop - self.begin), self.positions, self.counts)
        return math.ceil(float(ends[1] - ends[0]))

    def bytes_of(self, begin: int, count: int) -> int:
        """Return the bytes that `count` records take from byte `begin` on; at least 1."""
        at = begin - self.begin
        reached = float(np.interp(at, self.positions, self.counts)) + count
        stop = np.interp(reached, self.counts, self.positions, right=float(LOG_END))
        return max(1, int(stop) - at)


def _each_unit(env: Env, pinned: QueueRange, step: int) -> tuple[np.ndarray, ...]:
    """Return each `step`th unit of a range, and the last one, without units that name no message:
    their queue offsets, physical offsets and sizes."""
    # An estimate does not need the mark, which each read would read again.
    unmarked = dataclasses.replace(pinned, mark=None)
    reader = RangeUnits(env, unmarked, fail_on_data_loss=False)
    block = step if step >= UNITS_APART_MIN else UNITS_AT_ONCE // step * step
    chunks = []
    for first in [*range(pinned.start, pinned.stop, block), pinned.stop - 1]:
        count = 1 if block == step else min(block, pinned.stop - first)
        found = reader.read(first, first + count)
        rows = np.flatnonzero(~found.is_pre_blank())
        rows = rows[rows % step == 0]
        chunks.append((first + rows, found.phy_offset[rows], found.size[rows]))
    return tuple(np.concatenate(column) for column in zip(*chunks, strict=True))


def _owners(tasks: list[LogTask], files: tuple[LogFile, ...]) -> Iterator[LogTask]:
    """Yield the tasks, each with the physical offsets that it is responsible for. Together they
    cover every physical offset."""
    begins = [task.file.from_offset + task.begin for task in tasks]
    for number, task in enumerate(tasks):
        yield dataclasses.replace(
            task,
            own_begin=begins[number] if number else LOG_BEGIN,
            own_stop=begins[number + 1] if number + 1 < len(tasks) else LOG_END,
            log_files=files,
        )


def _is_record(env: Env, file: LogFile, position: int) -> bool:
    """Whether the header of a record is there, with this physical offset."""
    header = RecordHeader(env.read_part(file.path, position, HEADER_SIZE))
    return header.is_message and header.phy_offset == file.from_offset + position


def _span(snapshot: StoreSnapshot, options: SourceOptions, wanted: list[Wanted]) -> tuple[int, int]:
    """Return the bytes of the log that can have selected records."""
    begin, end = snapshot.min_phy_offset, snapshot.max_phy_offset
    spans = [each.span for each in wanted]
    bounded = options.starting != Bound(EARLIEST) or options.ending != Bound(LATEST)
    known = [span for span in spans if span is not None]
    if not bounded or len(known) < len(spans):
        return begin, end
    return max(begin, min(s[0] for s in known)), min(end, max(s[1] for s in known))


def _cut(samples: np.ndarray, wanted: int, until: int) -> tuple[int, bool]:
    """Return where to divide the log, and whether a record is known to begin there: the first
    sample from `wanted` on, or `wanted` where no sample is before `until`. A task can also search
    for its first record."""
    found = int(np.searchsorted(samples, wanted))
    if found < len(samples) and samples[found] < until:
        return int(samples[found]), True
    return wanted, False
