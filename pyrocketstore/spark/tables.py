"""The views that show no messages: units, index entries, files."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrocketstore.env import Env
from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.queue_units import CQ_STORE_UNIT_SIZE, QueueUnits
from pyrocketstore.spark.border import encodable
from pyrocketstore.spark.fields import MS_MAX, MS_MIN, fixed_array
from pyrocketstore.spark.options import SourceOptions
from pyrocketstore.spark.planning import ENTRY_SIZE, INDEX_HEADER_SIZE, IndexTask, QueueTask
from pyrocketstore.spark.records import Skipped
from pyrocketstore.spark.schemas import FILES, arrow_schema_of
from pyrocketstore.spark.snapshot import DataLossError, StoreSnapshot
from pyrocketstore.spark.units import RangeUnits

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
    """Rows of the view consumequeue. Raises DataLossError, StoreIOError."""
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
        skipped.tell()


def _unit_batches(
    units: RangeUnits, start: int, stop: int, columns: Mapping[str, str], broker_name: str
) -> Iterator[pyarrow.RecordBatch]:
    """The units [start, stop) that are there."""
    found, lost = units.read_with_lost(start, stop)
    offsets = np.arange(start, stop, dtype=np.int64)
    if len(lost):
        there = np.delete(np.arange(stop - start), lost)
        found = QueueUnits(found.phy_offset[there], found.size[there], found.tags_code[there])
        offsets = offsets[there]
    # Units of one file each, so that its name is one value.
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
    """Rows of the view index. Raises DataLossError, StoreIOError, StoreCorruptionError."""
    skipped = Skipped()
    file = _IndexEntries(Env(), task, fail_on_data_loss, on_corrupt, skipped)
    same = {**task.header, "fileName": task.path, "brokerName": broker_name}
    try:
        for at in range(0, task.count, batch_rows):
            count = min(batch_rows, task.count - at)
            data = file.read(at, count)
            if data is None:
                continue
            there = len(data) // ENTRY_SIZE
            numbers = np.arange(task.first + at, task.first + at + count, dtype=np.int32)
            if there:
                entries = _entry_columns(task, data[: there * ENTRY_SIZE])
                yield _batch(columns, there, {**same, **entries, "indexNo": numbers[:there]})
            if there < count and on_corrupt == "null":
                nulls = dict.fromkeys(columns)
                yield _batch(columns, count - there, {**nulls, **same, "indexNo": numbers[there:]})
    finally:
        skipped.tell()


@dataclasses.dataclass(frozen=True)
class _IndexEntries:
    """The entries of a task, and an account of those that are not there."""

    env: Env
    task: IndexTask
    fail_on_data_loss: bool
    on_corrupt: str
    skipped: Skipped

    def read(self, at: int, count: int) -> bytes | None:
        """The task's entries [at, at + count), fewer where the file ends; None where it is gone."""
        task = self.task
        if task.data is not None:
            return task.data[at * ENTRY_SIZE : (at + count) * ENTRY_SIZE]
        try:
            fd = self.env.open(task.path, os.O_RDONLY)
        except StoreIOError as error:
            if error.errno != errno.ENOENT:
                raise
            self._lose(count)
            return None
        try:
            data = self.env.pread(fd, count * ENTRY_SIZE, self._position(at), task.path)
        finally:
            self.env.close(fd, task.path)
        there = len(data) // ENTRY_SIZE
        if there < count:
            self._note_cut(at + there, count - there)
        return data

    def _position(self, at: int) -> int:
        task = self.task
        return INDEX_HEADER_SIZE + 4 * task.hash_slot_num + (task.first + at) * ENTRY_SIZE

    def _lose(self, count: int) -> None:
        where = f"{self.task.path}: gone"
        if self.fail_on_data_loss:
            raise DataLossError(f"{where}, with its entries; failOnDataLoss=false reads the others")
        self.skipped.add(where, count, count * ENTRY_SIZE)

    def _note_cut(self, at: int, count: int) -> None:
        path, position = self.task.path, self._position(at)
        reason = f"the file ends before {count} entries that its header counts"
        if self.on_corrupt == "fail":
            raise StoreCorruptionError(path, position, reason)
        where = f"{path} at byte {position}: {reason}"
        if self.on_corrupt == "null":
            self.skipped.show(where, count)
        else:
            self.skipped.add(where, count, count * ENTRY_SIZE)


def _entry_columns(task: IndexTask, data: bytes) -> dict[str, Any]:
    """The columns that entries say."""
    rows = np.frombuffer(data, _ENTRY)
    values = {name: rows[name].astype(rows[name].dtype.newbyteorder("=")) for name in _NAMES}
    seconds = values["timeDiffSec"].astype(np.int64)
    return {
        **values,
        "slot": values["keyHash"] % np.int32(task.hash_slot_num),
        "storeTimestamp": _times_after(task.header["beginTimestamp"], seconds),
    }


def list_files(snapshot: StoreSnapshot) -> list[dict[str, Any]]:
    """Rows of the view files."""
    store = snapshot.store
    broker = snapshot.place.broker_name
    rows = []
    end = snapshot.max_phy_offset
    for file in store.commit_log.mapped_file_queue.mapped_files:
        used = min(file.file_size, max(0, end - file.file_from_offset))
        rows.append(_file_row(broker, "commitlog", file, used))
        rows[-1]["minStoreTimestamp"] = _first_time(snapshot, file.file_from_offset, used)
    for before, row in itertools.pairwise(rows):
        before["maxStoreTimestamp"] = row["minStoreTimestamp"]
    if rows:
        newest = store.newest_store_timestamp()
        rows[-1]["maxStoreTimestamp"] = newest if newest > 0 else None
    for queue in store.consume_queues():
        stop = queue.get_max_offset_in_queue() * CQ_STORE_UNIT_SIZE
        for file in queue.mapped_file_queue.mapped_files:
            used = min(file.file_size, max(0, stop - file.file_from_offset))
            rows.append(_file_row(broker, "consumequeue", file, used))
    for index in store.index_service.files:
        rows.append(
            {
                "brokerName": broker,
                "kind": "index",
                "path": index.path,
                "fromOffset": index.begin_phy_offset,
                "size": index.file_size,
                "usedTo": index.used_size,
                "minStoreTimestamp": index.begin_timestamp or None,
                "maxStoreTimestamp": index.end_timestamp or None,
            }
        )
    return rows


def _file_row(broker: str, kind: str, file: Any, used: int) -> dict[str, Any]:
    return {
        "brokerName": broker,
        "kind": kind,
        "path": file.path,
        "fromOffset": file.file_from_offset,
        "size": file.file_size,
        "usedTo": used,
        "minStoreTimestamp": None,
        "maxStoreTimestamp": None,
    }


def _first_time(snapshot: StoreSnapshot, phy_offset: int, used: int) -> int | None:
    if used <= 0:
        return None
    size = snapshot.store.commit_log.record_size(phy_offset)
    found = snapshot.store.commit_log.pickup_store_timestamp(phy_offset, size)
    return found if found > 0 else None


def files_batch(rows: list[dict[str, Any]], columns: Mapping[str, str]) -> pyarrow.RecordBatch:
    """Rows of the view files as a batch."""
    values = {name: [row[name] for row in rows] for name in FILES}
    return _batch(columns, len(rows), values)


def _times_after(begin_ms: int, seconds: np.ndarray) -> np.ndarray | None:
    """Unix ms; None where the file does not say when it begins."""
    return begin_ms + seconds * 1000 if MS_MIN <= begin_ms <= MS_MAX else None


def _times(kind: Any, value: Any, count: int) -> pyarrow.Array:
    """Times in Unix ms, or None; where Spark has no such time they are null."""
    if isinstance(value, np.ndarray):
        return fixed_array(kind, value, None)
    if not isinstance(value, list):
        numbers = np.full(0 if value is None else count, value or 0, np.int64)
        return fixed_array(kind, numbers, np.full(count, value is not None))
    present = np.array([time is not None for time in value], np.bool_)
    numbers = np.array([time for time in value if time is not None], np.int64)
    return fixed_array(kind, numbers, present)


def _encodable(value: Any) -> Any:
    """A value with its texts, if it is one or a list of them, such that Spark can encode them."""
    if isinstance(value, list):
        return [_encodable(each) for each in value]
    return encodable(value) if isinstance(value, str) else value


def _batch(
    columns: Mapping[str, str], count: int, values: Mapping[str, Any]
) -> pyarrow.RecordBatch:
    """A batch out of arrays, lists, and values that are the same in each row; times in Unix ms."""
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
