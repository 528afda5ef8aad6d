"""Read the messages of a task, through queue units or in the order of the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from pyrocketstore.consume_queue._units import MAX_ADDR
from pyrocketstore.consume_queue.units import QueueUnits
from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.record.message import SCHEDULE_TOPIC
from pyrocketstore.spark.options import SourceOptions
from pyrocketstore.spark.read.batches import MessageBatches
from pyrocketstore.spark.read.log_walk import WINDOW_BYTES, LogWalk
from pyrocketstore.spark.read.records import Chunk, Gap, LogReader, NamedUnits, Skipped
from pyrocketstore.spark.read.selection import QueueSelection
from pyrocketstore.spark.read.units import UNITS_AT_ONCE, RangeUnits
from pyrocketstore.spark.task_types import LogTask, QueueRange, QueueTask
from pyrocketstore.system.env import Env

if TYPE_CHECKING:
    import pyarrow

#: The greatest hash of a tag.
HASH_MAX = 2**31 - 1
#: Bytes of records for one batch where no column shows bodies.
BODYLESS_BYTES = 16 << 20
#: The least bytes of the log that are read at once, for small batches too.
WINDOW_BYTES_MIN = 1 << 20
#: Seconds of waiting for units of a store that may be recovering.
LIVE_PATIENCE_S = 5.0


def read_messages(
    task: QueueTask | LogTask, columns: Mapping[str, str], options: SourceOptions
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the messages of a task.

    Raises DataLossError, StoreCorruptionError, StoreIOError.
    """
    skipped = Skipped()
    batches = MessageBatches(columns, options, task.broker_name, skipped)
    try:
        if isinstance(task, QueueTask):
            yield from _read_queues(task, options, batches, skipped)
        elif task.ranges is None:
            yield from _read_log(task, options, batches, skipped)
        else:
            yield from _read_log_of_queues(task, task.ranges, options, batches, skipped)
    finally:
        skipped.log()


def _read_queues(
    task: QueueTask, options: SourceOptions, batches: MessageBatches, skipped: Skipped
) -> Iterator[pyarrow.RecordBatch]:
    env = Env()
    log = LogReader(env, task.log_files, options, skipped)
    for pinned in task.ranges:
        units = RangeUnits(
            env,
            pinned,
            fail_on_data_loss=options.fail_on_data_loss,
            patience_s=LIVE_PATIENCE_S if task.is_live else 0,
        )
        for offsets, found in _wanted_units(units, pinned, options):
            yield from _records_of_units(log, pinned, offsets, found, batches)
        if units.lost:
            skipped.add(f"{pinned.directory}: units are gone", units.lost, 0)


def _records_of_units(
    log: LogReader,
    pinned: QueueRange,
    offsets: np.ndarray,
    units: QueueUnits,
    batches: MessageBatches,
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the records that units of a queue name; `offsets` are their queue offsets."""
    for rows in batch_rows(units.size, batches.options, batches.reads_bodies):
        named = NamedUnits(pinned, offsets[rows])
        for part, chunk in log.chunks(units.phy_offset[rows], units.size[rows], named):
            yield from batches.batches(chunk.of_queue(pinned, offsets[rows][part]))


def _read_log_of_queues(
    task: LogTask,
    ranges: tuple[QueueRange, ...],
    options: SourceOptions,
    batches: MessageBatches,
    skipped: Skipped,
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the messages of queues in the order of the log, then those that only units name."""
    env = Env()
    fail = options.fail_on_data_loss
    selection = QueueSelection(env, task, ranges, fail_on_data_loss=fail)
    window = _window_bytes(options, batches.reads_bodies)
    for chunk in LogWalk(env, task, fail_on_data_loss=False, window_bytes=window):
        if isinstance(chunk, Chunk):
            keep = selection.rows(chunk)
            wanted = chunk if keep.all() else chunk.take(keep)
            for rows in batch_rows(wanted.sizes, options, batches.reads_bodies):
                yield from batches.batches(wanted.take(rows))
    log = LogReader(env, task.log_files, options, skipped)
    for pinned, offsets, units in selection.leftovers():
        yield from _records_of_units(log, pinned, offsets, units, batches)
    for directory, count in selection.lost.items():
        skipped.add(f"{directory}: units are gone", count, 0)


def _read_log(
    task: LogTask, options: SourceOptions, batches: MessageBatches, skipped: Skipped
) -> Iterator[pyarrow.RecordBatch]:
    """Yield every record, and the gaps between records."""
    env = Env()
    for chunk in _chunks(env, task, options, skipped, batches.reads_bodies):
        if isinstance(chunk, Gap):
            yield batches.gap(task.file.path, task.file.from_offset, chunk)
            continue
        for rows in batch_rows(chunk.sizes, options, batches.reads_bodies):
            yield from batches.batches(chunk.take(rows))


def _chunks(
    env: Env, task: LogTask, options: SourceOptions, skipped: Skipped, with_bodies: bool
) -> Iterator[Chunk | Gap]:
    """Yield the chunks and gaps of a LogWalk. Raises StoreCorruptionError at damage under
    onCorrupt=fail."""
    walk = LogWalk(
        env,
        task,
        fail_on_data_loss=options.fail_on_data_loss,
        window_bytes=_window_bytes(options, with_bodies),
    )
    for chunk in walk:
        if isinstance(chunk, Gap) and chunk.reason:
            if options.on_corrupt == "fail":
                raise StoreCorruptionError(task.file.path, chunk.position, chunk.reason)
            where = f"{task.file.path} at byte {chunk.position}: {chunk.reason}"
            skipped.show(where, 1)
        yield chunk
    if walk.gone:
        skipped.add(f"{task.file.path}: gone", 0, task.stop - task.begin)


def _wanted_units(
    units: RangeUnits, pinned: QueueRange, options: SourceOptions
) -> Iterator[tuple[np.ndarray, QueueUnits]]:
    """Yield the units that may name a selected message, with their queue offsets."""
    wanted = options.wanted_tags
    for start in range(pinned.start, pinned.stop, UNITS_AT_ONCE):
        stop = min(start + UNITS_AT_ONCE, pinned.stop)
        found = units.read(start, stop)
        keep = ~found.is_pre_blank() & (found.size > 0)
        if wanted is not None and pinned.topic != SCHEDULE_TOPIC:
            # Hashes are int32. Addresses of ext units are below that range. Delivery times, which
            # delayed messages have in other queues too, are above it. There the record decides.
            code = found.tags_code
            keep &= np.isin(code, wanted.codes) | (code <= MAX_ADDR) | (code > HASH_MAX)
        offsets = np.arange(start, stop, dtype=np.int64)
        if not keep.all():
            offsets = offsets[keep]
            found = found.take(keep)
        if len(offsets):
            yield offsets, found


def _batch_bytes(options: SourceOptions, with_bodies: bool) -> int:
    """Return the bytes of records for one batch."""
    return options.batch_bytes if with_bodies else BODYLESS_BYTES


def _window_bytes(options: SourceOptions, with_bodies: bool) -> int:
    """Return the bytes to read at once: one batch, without a small second one."""
    return min(max(_batch_bytes(options, with_bodies), WINDOW_BYTES_MIN), WINDOW_BYTES)


def batch_rows(size: np.ndarray, options: SourceOptions, with_bodies: bool) -> Iterator[slice]:
    """Yield runs of records for one batch each."""
    limit = _batch_bytes(options, with_bodies)
    ends = np.cumsum(size, dtype=np.int64)
    first = 0
    while first < len(size):
        before = int(ends[first - 1]) if first else 0
        stop = int(np.searchsorted(ends, before + limit, side="right"))
        stop = min(max(stop, first + 1), first + options.batch_rows)
        yield slice(first, stop)
        first = stop
