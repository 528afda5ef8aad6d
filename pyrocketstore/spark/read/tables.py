"""Read the views without messages: queue units, index entries, files."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE
from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.index._file import INDEX_SIZE
from pyrocketstore.spark.encodable_errors import encodable
from pyrocketstore.spark.fields import MS_MAX, MS_MIN, fixed_array
from pyrocketstore.spark.options import SourceOptions
from pyrocketstore.spark.read.records import Skipped
from pyrocketstore.spark.read.units import RangeUnits
from pyrocketstore.spark.schemas import FILES, arrow_schema_of
from pyrocketstore.spark.task_types import DataLossError, IndexTask, QueueTask
from pyrocketstore.system.env import Env

if TYPE_CHECKING:
    import pyarrow

_ENTRY = np.dtype(
    [
        ("keyHash", ">i4"),
        ("commitLogOffset", ">i8"),
        ("timeDiffSec", ">i4"),
        ("prevIndexNo", ">i4"),
    ]
)
_NAMES = ("keyHash", "commitLogOffset", "timeDiffSec", "prevIndexNo")


def read_units(
    task: QueueTask, columns: Mapping[str, str], options: SourceOptions
) -> Iterator[pyarrow.RecordBatch]:
    """Yield rows of the view consumequeue. Raises DataLossError, StoreIOError."""
    skipped = Skipped()
    try:
        for pinned in task.ranges:
            units = RangeUnits(Env(), pinned, fail_on_data_loss=options.fail_on_data_loss)
            for start in range(pinned.start, pinned.stop, options.batch_rows):
                stop = min(start + options.batch_rows, pinned.stop)
                yield from _unit_batches(units, start, stop, columns, task.broker_name)
            if units.lost:
                skipped.add(f"{pinned.directory}: units are gone", units.lost, 0)
    finally:
        skipped.log()


def _unit_batches(
    units: RangeUnits, start: int, stop: int, columns: Mapping[str, str], broker_name: str
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the units [start, stop) that exist."""
    found, lost = units.read_with_lost(start, stop)
    offsets = np.arange(start, stop, dtype=np.int64)
    if len(lost):
        present = np.delete(np.arange(stop - start), lost)
        found = found.take(present)
        offsets = offsets[present]
    # A batch has units of one file, so that the file name is one value.
    per_file = units.pinned.file_size // CQ_STORE_UNIT_SIZE
    edges = [*(np.flatnonzero(np.diff(offsets // per_file)) + 1).tolist(), len(offsets)]
    first = 0
    for edge in edges if len(offsets) else ():
        rows = slice(first, edge)
        yield _batch(
            columns,
            edge - first,
            {
                "topic": units.pinned.topic,
                "brokerName": broker_name,
                "queueId": units.pinned.queue_id,
                "queueOffset": offsets[rows],
                "commitLogOffset": found.phy_offset[rows],
                "size": found.size[rows],
                "tagsCode": found.tags_code[rows],
                "isPreBlank": found.is_pre_blank()[rows],
                "fileName": units.path_of(int(offsets[first])),
            },
        )
        first = edge


def read_index(
    task: IndexTask,
    columns: Mapping[str, str],
    broker_name: str,
    *,
    fail_on_data_loss: bool = True,
    on_corrupt: str = "fail",
    batch_rows: int = 65536,
) -> Iterator[pyarrow.RecordBatch]:
    """Yield rows of the view index. Raises DataLossError, StoreIOError, StoreCorruptionError."""
    skipped = Skipped()
    file = _IndexEntries(Env(), task, fail_on_data_loss, on_corrupt, skipped)
    same = {**task.header, "fileName": task.path, "brokerName": broker_name}
    try:
        for at in range(0, task.count, batch_rows):
            count = min(batch_rows, task.count - at)
            data = file.read(at, count)
            if data is None:
                continue
            there = len(data) // INDEX_SIZE
            numbers = np.arange(task.first + at, task.first + at + count, dtype=np.int32)
            if there:
                entries = _entry_columns(task, data[: there * INDEX_SIZE])
                yield _batch(columns, there, {**same, **entries, "indexNo": numbers[:there]})
            if there < count and on_corrupt == "null":
                nulls = dict.fromkeys(columns)
                yield _batch(columns, count - there, {**nulls, **same, "indexNo": numbers[there:]})
    finally:
        skipped.log()


@dataclasses.dataclass(frozen=True)
class _IndexEntries:
    """Reads the entries of a task, and accounts for those that are missing."""

    env: Env
    task: IndexTask
    fail_on_data_loss: bool
    on_corrupt: str
    skipped: Skipped

    def read(self, at: int, count: int) -> bytes | None:
        """Read the entries [at, at + count); fewer at the file's end, None where it is gone."""
        task = self.task
        if task.data is not None:
            return task.data[at * INDEX_SIZE : (at + count) * INDEX_SIZE]
        try:
            fd = self.env.open(task.path, os.O_RDONLY)
        except StoreIOError as error:
            if error.errno != errno.ENOENT:
                raise
            self._lose(count)
            return None
        try:
            data = self.env.pread(fd, count * INDEX_SIZE, task.position(at), task.path)
        finally:
            self.env.close(fd, task.path)
        there = len(data) // INDEX_SIZE
        if there < count:
            self._note_cut(at + there, count - there)
        return data

    def _lose(self, count: int) -> None:
        where = f"{self.task.path}: gone"
        if self.fail_on_data_loss:
            raise DataLossError(f"{where}, with its entries; failOnDataLoss=false reads the others")
        self.skipped.add(where, count, count * INDEX_SIZE)

    def _note_cut(self, at: int, count: int) -> None:
        path, position = self.task.path, self.task.position(at)
        reason = f"the file ends before {count} entries that its header counts"
        if self.on_corrupt == "fail":
            raise StoreCorruptionError(path, position, reason)
        where = f"{path} at byte {position}: {reason}"
        if self.on_corrupt == "null":
            self.skipped.show(where, count)
        else:
            self.skipped.add(where, count, count * INDEX_SIZE)


def _entry_columns(task: IndexTask, data: bytes) -> dict[str, Any]:
    """Return the columns of encoded entries."""
    rows = np.frombuffer(data, _ENTRY)
    values = {name: rows[name].astype(rows[name].dtype.newbyteorder("=")) for name in _NAMES}
    seconds = values["timeDiffSec"].astype(np.int64)
    return {
        **values,
        "slot": values["keyHash"] % np.int32(task.hash_slot_num),
        "storeTimestamp": _times_after(task.header["beginTimestamp"], seconds),
    }


def files_batch(rows: list[dict[str, Any]], columns: Mapping[str, str]) -> pyarrow.RecordBatch:
    """Return rows of the view files as a batch."""
    values = {name: [row[name] for row in rows] for name in FILES}
    return _batch(columns, len(rows), values)


def _times_after(begin_ms: int, seconds: np.ndarray) -> np.ndarray | None:
    """Return Unix ms; None where the header has no valid begin time."""
    return begin_ms + seconds * 1000 if MS_MIN <= begin_ms <= MS_MAX else None


def _times(kind: Any, value: Any, count: int) -> pyarrow.Array:
    """Return times (Unix ms) as an Arrow array; null for None and outside of Spark's range."""
    if isinstance(value, np.ndarray):
        return fixed_array(kind, value, None)
    if not isinstance(value, list):
        numbers = np.full(0 if value is None else count, value or 0, np.int64)
        return fixed_array(kind, numbers, np.full(count, value is not None))
    present = np.array([time is not None for time in value], np.bool_)
    numbers = np.array([time for time in value if time is not None], np.int64)
    return fixed_array(kind, numbers, present)


def _encodable(value: Any) -> Any:
    """Return a value whose texts Spark can encode: a text, a list of texts, or any other value."""
    if isinstance(value, list):
        return [_encodable(each) for each in value]
    return encodable(value) if isinstance(value, str) else value


def _batch(
    columns: Mapping[str, str], count: int, values: Mapping[str, Any]
) -> pyarrow.RecordBatch:
    """Make a batch of arrays, lists, and values that all rows share; times in Unix ms."""
    import pyarrow as pa

    schema = arrow_schema_of(columns)
    arrays = []
    for field in schema:
        value = _encodable(values[field.name])
        if pa.types.is_timestamp(field.type):
            arrays.append(_times(field.type, value, count))
        elif isinstance(value, (list, np.ndarray)):
            arrays.append(pa.array(value, field.type))
        else:
            arrays.append(pa.repeat(pa.scalar(value, field.type), count))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
