"""A range of a queue as one Arrow record batch."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pyrocketstore.columns._builder import ArrowColumns
from pyrocketstore.columns._decode import COLUMNS, column_names
from pyrocketstore.columns.arrow import require_pyarrow, to_record_batch
from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.reading._file_columns import decode_run, no_rows
from pyrocketstore.reading._queue_runs import RecordRun, runs_of
from pyrocketstore.reading.by_queue import QueueRange
from pyrocketstore.record._record import QueueName
from pyrocketstore.record.tags import TagsExpression
from pyrocketstore.system.signal_shield import imported

if TYPE_CHECKING:
    import pyarrow


BODY_DAMAGE = "the compressed body does not inflate"


class Decoded(NamedTuple):
    """Rows as a batch, with the number of rows decoded and the bytes of their bodies."""

    batch: pyarrow.RecordBatch
    row_count: int
    body_bytes: int


def read_record_batch(
    part: QueueRange, start: int, stop: int, max_bytes: int, columns: Sequence[str] | None
) -> pyarrow.RecordBatch:
    """Records of the queue offsets [start, stop), as far as `max_bytes` go; one always fits.

    Parameters
    ----------
    part : the range to read, and the treatment of messages that cannot be read
    max_bytes : bytes of records as they are stored, and bytes of bodies once they are inflated:
        neither is more
    columns : names of message attributes, None for all

    Raises MissingExtraError, StoreCorruptionError, StoreIOError, StoreFormatError (a column).
    """
    require_pyarrow()
    wanted = part.wanted
    names = COLUMNS if columns is None else column_names(columns)
    decoded = names if wanted is None or "tags" in names else (*names, "tags")
    decoded = decoded or ("queue_offset",)  # a batch without columns has rows all the same
    runs, taken = runs_of(part, start, stop - start, max_bytes)
    batches, next_offset = _decode_rows(part, runs, decoded, max_bytes)
    batch = _one_batch(batches, part, start + taken if next_offset is None else next_offset)
    if wanted is not None:
        batch = _with_tags(batch, wanted)
    return batch if decoded == names else batch.select(list(names))


def _decode_rows(
    part: QueueRange, runs: list[RecordRun], names: tuple[str, ...], max_body_bytes: int
) -> tuple[list[pyarrow.RecordBatch], int | None]:
    """The batches of one file each, and the queue offset of the first row that did not fit.

    Rows of a deleted file are in no batch. One body always fits.
    """
    batches: list[pyarrow.RecordBatch] = []
    left = max_body_bytes
    for run in runs:
        if run.mapped_file is None:
            _raise_any(part.missing(run))
            continue
        found = _decode(part, run, names, left)
        if found is not None and found.row_count == 0 and not batches:
            found = _decode(part, run.first(), names, None)
            if found is not None:
                return [found.batch], int(run.refs()[2][0]) + 1
        if found is None:
            continue
        batches.append(found.batch)
        left -= found.body_bytes
        if found.row_count < run.count:
            return batches, int(run.refs()[2][found.row_count])
    if not batches:
        batches.append(to_record_batch(no_rows(names)))
    return batches, None


def _raise_any(error: Exception | None) -> None:
    if error is not None:
        raise error


def _decode(
    part: QueueRange,
    run: RecordRun,
    names: tuple[str, ...],
    max_body_bytes: int | None,
) -> Decoded | None:
    """Records of one file as columns: out of the mapping, or copied where there is none.

    None for a file that was deleted meanwhile: its records have expired.
    """
    file = run.mapped_file
    assert file is not None
    try:
        if file.hold():
            return _decode_there(part, run, names, max_body_bytes)
    except StoreIOError as error:
        if error.errno != errno.ENOENT:
            raise
    offsets = run.refs()[2]
    _raise_any(part.file_gone(file, int(offsets[0]), int(offsets[-1]) + 1))
    return None


def _decode_there(
    part: QueueRange,
    run: RecordRun,
    names: tuple[str, ...],
    max_body_bytes: int | None,
) -> Decoded | None:
    """`_decode` of a file that is held; releases it."""
    assert run.mapped_file is not None
    try:
        try:
            columns = _decode_held(part, run, names, max_body_bytes, False)
        except (StoreCorruptionError, StoreIOError) as error:
            if isinstance(error, StoreIOError) and error.errno == errno.ENOENT:
                raise  # the whole file
            if not part.damage.skips:
                _raise_first(part, run, error)
            return _decode_readable(part, run, names, max_body_bytes)
        return Decoded(to_record_batch(columns), len(columns), columns.body_bytes)
    finally:
        run.mapped_file.release()


def _raise_first(
    part: QueueRange, run: RecordRun, error: StoreCorruptionError | StoreIOError
) -> None:
    """Raise the error of the first row that cannot be read; `error` is of any of them."""
    every = part.with_all_tags()
    for _ in every.messages([run], part.file_gone, part.damage):
        pass
    # The record is whole, and its body or properties are damaged.
    if isinstance(error, StoreCorruptionError) and run.mapped_file is not None:
        phy_offsets, _, queue_offsets = run.refs()
        found = np.flatnonzero(phy_offsets - run.mapped_file.file_from_offset == error.position)
        if len(found):
            queue_offset = int(queue_offsets[found[0]])
            _raise_any(part.damage.message(error.path, error.position, error.reason, queue_offset))
    raise error


def _decode_readable(
    part: QueueRange,
    run: RecordRun,
    names: tuple[str, ...],
    max_body_bytes: int | None,
) -> Decoded | None:
    """`_decode` of the rows that can be read; the others are noted."""
    look = part.damage.unnoted()
    every = part.with_all_tags()
    for _ in every.messages([run], part.file_gone, look):
        pass
    queue_offsets = run.refs()[2]
    bad = np.zeros(run.count, np.bool_)
    for found in look.skipped.ranges:
        bad[np.searchsorted(queue_offsets, found.start):
            np.searchsorted(queue_offsets, found.stop)] = True  # fmt: skip
    good = run.select(~bad)
    columns = _decode_held(part, good, names, max_body_bytes, True)
    count = len(columns)
    phy_offsets, _, good_offsets = good.refs()
    stop = int(good_offsets[count]) if count < good.count else None
    for found in look.skipped.ranges:
        if stop is None or found.start < stop:
            part.damage.skipped.add(found)
    batch = to_record_batch(columns)
    file = run.mapped_file
    if file is not None and "body" in names and batch["body"].null_count:
        for i in np.flatnonzero(batch["body"].is_null().to_numpy(zero_copy_only=False)).tolist():
            position = int(phy_offsets[i]) - file.file_from_offset
            part.damage.message(file.path, position, BODY_DAMAGE, int(good_offsets[i]))
        batch = batch.filter(batch["body"].is_valid())
    taken = len(bad) if stop is None else int(np.searchsorted(queue_offsets, stop))
    return Decoded(batch, taken, columns.body_bytes)


def _decode_held(
    part: QueueRange,
    run: RecordRun,
    names: tuple[str, ...],
    max_body_bytes: int | None,
    null_bad_bodies: bool,
) -> ArrowColumns:
    return decode_run(
        run,
        names,
        QueueName(part.queue.topic, part.queue.queue_id),
        check_crc=part.check_crc,
        max_body_bytes=max_body_bytes,
        null_bad_bodies=null_bad_bodies,
    )


def _one_batch(
    batches: list[pyarrow.RecordBatch], part: QueueRange, next_offset: int
) -> pyarrow.RecordBatch:
    """The chunks as one batch; its metadata has the next queue offset and the skipped messages."""
    arrow = require_pyarrow()
    batches = [batch for batch in batches if batch.num_rows] or batches[:1]
    whole = batches[0]
    if len(batches) > 1:
        whole = arrow.Table.from_batches(batches).combine_chunks().to_batches()[0]
    facts = {b"next_offset": str(next_offset).encode()}
    if part.damage.skips:
        skipped = part.damage.skipped
        facts[b"skipped_count"] = str(skipped.count).encode()
        facts[b"skipped"] = json.dumps([found.to_dict() for found in skipped.ranges]).encode()
    return whole.replace_schema_metadata(facts)


def _with_tags(batch: pyarrow.RecordBatch, wanted: TagsExpression) -> pyarrow.RecordBatch:
    arrow = require_pyarrow()
    mask = imported("pyarrow.compute").is_in(
        batch["tags"], value_set=arrow.array(sorted(wanted.tags), arrow.string())
    )
    return batch.filter(mask)
