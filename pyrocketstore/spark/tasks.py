"""Carrying out a task: what runs on the executors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from pyrocketstore._consume_queue import MAX_ADDR
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.message import SCHEDULE_TOPIC
from pyrocketstore.queue_units import QueueUnits
from pyrocketstore.spark.log_walk import WINDOW_BYTES, LogWalk
from pyrocketstore.spark.options import SourceOptions
from pyrocketstore.spark.planning import LogTask, QueueTask
from pyrocketstore.spark.records import Gap, LogReader, MessageBatches, Piece, Skipped
from pyrocketstore.spark.selection import QueueSelection
from pyrocketstore.spark.snapshot import QueueRange
from pyrocketstore.spark.units import RangeUnits

if TYPE_CHECKING:
    import pyarrow

#: Units read at a time.
UNITS_AT_ONCE = 65536
#: The greatest hash of a tag.
HASH_MAX = 2**31 - 1
#: Bytes of records gathered at a time where no bodies are shown.
BODYLESS_BYTES = 16 << 20
#: Less of the log is not read at once, however small batches are to be.
WINDOW_BYTES_MIN = 1 << 20
#: Units of a store that may be recovering are waited for.
LIVE_PATIENCE_S = 5.0


def read_messages(
    task: QueueTask | LogTask, columns: Mapping[str, str], options: SourceOptions
) -> Iterator[pyarrow.RecordBatch]:
    """The messages of a task.

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
        skipped.tell()


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
            for rows in batch_rows(found.size, options, batches.reads_bodies):
                for part, piece in log.pieces(found.phy_offset[rows], found.size[rows]):
                    named = _named(piece, pinned, offsets[rows][part])
                    yield from batches.batches(named)
        if units.lost:
            skipped.add(f"{pinned.directory}: units are gone", units.lost, 0)


def _read_log_of_queues(
    task: LogTask,
    ranges: tuple[QueueRange, ...],
    options: SourceOptions,
    batches: MessageBatches,
    skipped: Skipped,
) -> Iterator[pyarrow.RecordBatch]:
    """The messages of queues, in the order of the log; then those that their units alone show."""
    env = Env()
    fail = options.fail_on_data_loss
    selection = QueueSelection(env, task, ranges, fail_on_data_loss=fail)
    window = _window_bytes(options, batches.reads_bodies)
    for piece in LogWalk(env, task, fail_on_data_loss=False, window_bytes=window):
        if isinstance(piece, Piece):
            keep = selection.rows(piece)
            wanted = piece if keep.all() else piece.take(keep)
            for rows in batch_rows(wanted.sizes, options, batches.reads_bodies):
                yield from batches.batches(wanted.take(rows))
    log = LogReader(env, task.log_files, options, skipped)
    for left in selection.leftovers():
        for rows in batch_rows(left.units.size, options, batches.reads_bodies):
            places = left.units.phy_offset[rows], left.units.size[rows]
            for part, piece in log.pieces(*places):
                named = _named(piece, left.pinned, left.queue_offsets[rows][part])
                yield from batches.batches(named)
    if selection.lost:
        skipped.add(f"{task.file.path}: units are gone", selection.lost, 0)


def _read_log(
    task: LogTask, options: SourceOptions, batches: MessageBatches, skipped: Skipped
) -> Iterator[pyarrow.RecordBatch]:
    """Every record, with what lies between them."""
    env = Env()
    for piece in _pieces(env, task, options, skipped, batches.reads_bodies):
        if isinstance(piece, Gap):
            yield batches.gap(task.file.path, task.file.from_offset, piece)
            continue
        for rows in batch_rows(piece.sizes, options, batches.reads_bodies):
            yield from batches.batches(piece.take(rows))


def _pieces(
    env: Env, task: LogTask, options: SourceOptions, skipped: Skipped, with_bodies: bool
) -> Iterator[Piece | Gap]:
    """What a LogWalk finds. Raises StoreCorruptionError at damage under onCorrupt=fail."""
    walk = LogWalk(
        env,
        task,
        fail_on_data_loss=options.fail_on_data_loss,
        window_bytes=_window_bytes(options, with_bodies),
    )
    for piece in walk:
        if isinstance(piece, Gap) and piece.reason:
            if options.on_corrupt == "fail":
                raise StoreCorruptionError(task.file.path, piece.position, piece.reason)
            where = f"{task.file.path} at byte {piece.position}: {piece.reason}"
            skipped.show(where, 1)
        yield piece
    if walk.gone:
        skipped.add(f"{task.file.path}: gone", 0, task.stop - task.begin)


def _wanted_units(
    units: RangeUnits, pinned: QueueRange, options: SourceOptions
) -> Iterator[tuple[np.ndarray, QueueUnits]]:
    """The units that may name a wanted message, with their queue offsets."""
    wanted = options.wanted_tags
    for start in range(pinned.start, pinned.stop, UNITS_AT_ONCE):
        stop = min(start + UNITS_AT_ONCE, pinned.stop)
        found = units.read(start, stop)
        keep = ~found.is_pre_blank() & (found.size > 0)
        if wanted is not None and pinned.topic != SCHEDULE_TOPIC:
            # Hashes are int32. The address of an ext unit lies below them, and a time of delivery,
            # which delayed messages have in further queues too, above: there the record decides.
            code = found.tags_code
            keep &= np.isin(code, wanted.codes) | (code <= MAX_ADDR) | (code > HASH_MAX)
        offsets = np.arange(start, stop, dtype=np.int64)
        if not keep.all():
            offsets = offsets[keep]
            found = QueueUnits(found.phy_offset[keep], found.size[keep], found.tags_code[keep])
        if len(offsets):
            yield offsets, found


def _batch_bytes(options: SourceOptions, with_bodies: bool) -> int:
    """Of records for one batch."""
    return options.batch_bytes if with_bodies else BODYLESS_BYTES


def _window_bytes(options: SourceOptions, with_bodies: bool) -> int:
    """What to read at once so that it makes one batch, and no second one of what is left over."""
    return min(max(_batch_bytes(options, with_bodies), WINDOW_BYTES_MIN), WINDOW_BYTES)


def batch_rows(size: np.ndarray, options: SourceOptions, with_bodies: bool) -> Iterator[slice]:
    """Runs of records that make one batch each."""
    limit = _batch_bytes(options, with_bodies)
    ends = np.cumsum(size, dtype=np.int64)
    first = 0
    while first < len(size):
        before = int(ends[first - 1]) if first else 0
        stop = int(np.searchsorted(ends, before + limit, side="right"))
        stop = min(max(stop, first + 1), first + options.batch_rows)
        yield slice(first, stop)
        first = stop


def _named(piece: Piece, pinned: QueueRange, offsets: np.ndarray) -> Piece:
    return dataclasses.replace(
        piece, topic=pinned.topic, queue_id=pinned.queue_id, queue_offsets=offsets
    )
