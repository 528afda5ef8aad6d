"""Executor half of the export: write the splits of a lake. Bodies never pass through the JVM."""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyrocketstore.errors import StoreStateError
from pyrocketstore.results import Status
from pyrocketstore.spark.lake.manifest import (
    NO_DATE,
    TEMPORARY,
    SkippedRange,
    Split,
    SplitResult,
    fsync_directory,
    make_lake_directory,
    read_note,
    topic_directory,
    write_note,
)
from pyrocketstore.spark.options import SourceOptions
from pyrocketstore.spark.read.batches import MessageBatches
from pyrocketstore.spark.read.decode import FILE_GONE, Damage, reason_of
from pyrocketstore.spark.read.messages import batch_rows
from pyrocketstore.spark.read.records import LogReader, NamedUnits, Skipped
from pyrocketstore.spark.read.units import UNITS_AT_ONCE, RangeUnits
from pyrocketstore.spark.read.worker import settle
from pyrocketstore.spark.schemas import MESSAGES
from pyrocketstore.spark.task_types import LogFile, QueueRange
from pyrocketstore.system.env import Env

if TYPE_CHECKING:
    import pyarrow

#: A row group ends at ROW_GROUP_ROWS rows, or earlier at ROW_GROUP_BYTES of batches.
ROW_GROUP_ROWS = 128 << 10
ROW_GROUP_BYTES = 64 << 20
#: Files of other days that stay open, for a clock that was set back at midnight.
OPEN_FILES_MAX = 16
US_PER_DAY = 86_400_000_000
#: The store time of a row without one: its day is not a date.
NO_TIME = -(2**63)

#: The columns of the files; the topic is in the name of the directory.
COLUMNS: dict[str, str] = {name: kind for name, kind in MESSAGES.items() if name != "topic"}
DICTIONARY = ["brokerName", "tags"]
STATISTICS = ["queueId", "queueOffset", "commitLogOffset", "bornTimestamp", "storeTimestamp"]

#: A row for each finished task; its results are in the notes.
RESULT_DDL = "task int"

Int64s = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class SplitTask:
    """The splits of one task, each with its range in the snapshot."""

    number: int
    splits: tuple[tuple[Split, QueueRange], ...]


@dataclasses.dataclass(frozen=True)
class WriteOptions:
    """The values that the tasks of a run share.

    `out` is the lake, `notes` the directory of the tasks' results, `compression` a name of Parquet,
    `log_files` the log of each broker.
    """

    out: str
    notes: str
    source: SourceOptions
    compression: str
    log_files: Mapping[str, tuple[LogFile, ...]]


def write_task_row(task: SplitTask, options: WriteOptions) -> Iterator[pyarrow.RecordBatch]:
    """Write the splits of a task, and yield a row of RESULT_DDL: see write_task."""
    import pyarrow as pa

    write_task(task, options)
    yield pa.RecordBatch.from_pydict({"task": pa.array([task.number], pa.int32())})


def write_task(task: SplitTask, options: WriteOptions) -> list[SplitResult]:
    """Write the splits of a task, unless an earlier attempt did; the files are durable on return.

    Raises DataLossError, StoreCorruptionError, StoreIOError, OSError; StoreStateError where the
    files do not have the rows that were read.
    """
    settle()
    notes = Path(options.notes)
    try:
        return read_note(notes, task.number)
    except FileNotFoundError:
        pass
    results = [_write_split(*each, options) for each in task.splits]
    write_note(notes, task.number, results)
    return results


def _write_split(split: Split, pinned: QueueRange, options: WriteOptions) -> SplitResult:
    reader = SplitReader(split, pinned, options.log_files[split.broker], options.source)
    rows = size = 0
    files = DayFiles(topic_directory(Path(options.out), split.topic), split, options.compression)
    try:
        for batch in reader.batches():
            rows += batch.num_rows
            size += int(np.asarray(batch.column("storeSize")).sum(dtype=np.int64))
            files.write(batch)
        paths = files.finish()
    finally:
        files.discard()
    return SplitResult(
        split=split,
        rows=rows,
        bytes=size,
        file_bytes=sum(path.stat().st_size for path in paths),
        files=tuple(str(path.relative_to(options.out)) for path in paths),
        crc_failures=reader.crc_failures,
        skipped=tuple(reader.skipped),
    )


class SplitReader:
    """Reads the rows of a split, and accounts for every message without a row. Threads: one."""

    def __init__(
        self,
        split: Split,
        pinned: QueueRange,
        log_files: tuple[LogFile, ...],
        options: SourceOptions,
    ) -> None:
        self.split = split
        self.pinned = pinned
        self.options = options
        self.crc_failures = 0
        self.skipped: list[SkippedRange] = []
        omitted = Skipped()
        env = Env()
        self._units = RangeUnits(env, pinned, fail_on_data_loss=options.fail_on_data_loss)
        self._log = LogReader(env, log_files, options, omitted)
        self._batches = MessageBatches(COLUMNS, options, split.broker, omitted)

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows, in the order of the queue.

        Raises DataLossError, StoreCorruptionError, StoreIOError.
        """
        for start in range(self.pinned.start, self.pinned.stop, UNITS_AT_ONCE):
            stop = min(start + UNITS_AT_ONCE, self.pinned.stop)
            lost = self._units.lost
            found = self._units.read(start, stop)
            if self._units.lost > lost:
                reason = "units of the queue are gone"
                self._skip(start, stop, self._units.lost - lost, 0, reason, self._path(start))
            offsets = np.arange(start, stop, dtype=np.int64)
            empty = found.size <= 0
            self._skip_rows(offsets[empty], found.size[empty], "the unit is empty", None)
            keep = np.flatnonzero(~found.is_pre_blank() & ~empty)
            sizes = np.ascontiguousarray(found.size[keep])
            phy_offsets = np.ascontiguousarray(found.phy_offset[keep])
            offsets = offsets[keep]
            for rows in batch_rows(sizes, self.options, True):
                yield from self._records(offsets[rows], phy_offsets[rows], sizes[rows])

    def _records(
        self, offsets: Int64s, phy_offsets: Int64s, sizes: npt.NDArray[np.int32]
    ) -> Iterator[pyarrow.RecordBatch]:
        units = NamedUnits(self.pinned, offsets)
        read = np.zeros(len(offsets), np.bool_)
        for part, chunk in self._log.chunks(phy_offsets, sizes, units):
            read[part] = True
            for rows in self._batches.rows(chunk.of_queue(self.pinned, offsets[part])):
                yield from rows.batches
                if rows.damage is not None and rows.damage.status[0] == FILE_GONE:
                    read[part] = False
                elif rows.damage is not None:
                    self._note_damage(rows.damage)
        self._skip_rows(offsets[~read], sizes[~read], reason_of(FILE_GONE), None)

    def _note_damage(self, damage: Damage) -> None:
        """Account for records that have no row, by their reasons."""
        bad, status = damage
        assert bad.queue_offsets is not None
        self.crc_failures += int(np.count_nonzero(status == Status.BAD_CRC))
        for value in np.unique(status).tolist():
            rows = status == value
            self._skip_rows(bad.queue_offsets[rows], bad.sizes[rows], reason_of(value), bad.path)

    def _skip_rows(
        self, offsets: Int64s, sizes: npt.NDArray[np.int32], reason: str, path: str | None
    ) -> None:
        edges = np.flatnonzero(np.diff(offsets) != 1) + 1
        for run in np.split(np.arange(len(offsets)), edges):
            if len(run):
                start, stop = int(offsets[run[0]]), int(offsets[run[-1]]) + 1
                size = int(sizes[run].sum(dtype=np.int64))
                where = self._path(start) if path is None else path
                self._skip(start, stop, len(run), max(0, size), reason, where)

    def _skip(self, start: int, stop: int, records: int, size: int, reason: str, path: str) -> None:
        split = self.split
        queue = split.broker, split.topic, split.queue_id
        self.skipped.append(SkippedRange(*queue, start, stop, records, size, reason, path))

    def _path(self, queue_offset: int) -> str:
        return self._units.path_of(queue_offset)


class DayFiles:
    """The Parquet files of a split, one a day; renamed to their names once all are complete.

    A day gets another file where its file was closed because the clock was set back too often. A
    thread runs fsync on written data while more rows are made, so that `finish` waits less.
    Threads: one.
    """

    def __init__(self, directory: Path, split: Split, compression: str) -> None:
        self.directory = directory
        self.split = split
        self.compression = compression
        self._attempt = secrets.token_hex(4)
        self._pending: dict[str, list[pyarrow.RecordBatch]] = {}
        self._pending_bytes = 0
        self._writers: dict[str, Any] = {}  # the latest used last
        self._counts: dict[str, int] = {}
        self._latest: dict[str, Path] = {}  # each day's file that is written now
        self._written: list[tuple[Path, Path]] = []
        self._appended = 0
        self._pool = ThreadPoolExecutor(1, "FsyncParquet")
        self._fsyncing: Future[None] | None = None

    def write(self, batch: pyarrow.RecordBatch) -> None:
        """Append rows. Raises OSError."""
        self._appended += batch.num_rows
        for date, part in _by_date(batch):
            pending = self._pending.setdefault(date, [])
            pending.append(part)
            self._pending_bytes += part.nbytes
            if sum(each.num_rows for each in pending) >= ROW_GROUP_ROWS:
                self._flush(date)
                self._fsync_so_far(date)
        if self._pending_bytes >= ROW_GROUP_BYTES:
            for date in list(self._pending):
                self._flush(date)
                self._fsync_so_far(date)

    def finish(self) -> list[Path]:
        """Write pending rows, fsync the files, rename them, and return their names.

        Raises StoreStateError where the files have another number of rows than were appended;
        OSError.
        """
        from pyarrow.parquet import read_metadata

        for date in list(self._pending):
            self._flush(date)
        for date in list(self._writers):
            self._writers.pop(date).close()
        rows = sum(read_metadata(temporary).num_rows for temporary, _ in self._written)
        if rows != self._appended:
            raise StoreStateError(
                f"{self.directory}: {self.split.file_name} got {self._appended} rows, but its "
                f"files have {rows}"
            )
        self._await_fsync()
        for temporary, _ in self._written:
            _fsync(temporary)
        for temporary, path in self._written:
            os.replace(temporary, path)
        for directory in dict.fromkeys(path.parent for _, path in self._written):
            fsync_directory(directory)
            fsync_directory(directory.parent)
        if self._written:
            fsync_directory(self.directory.parent)
        return [path for _, path in self._written]

    def discard(self) -> None:
        """Close and remove temporary files."""
        self._pool.shutdown()
        for date in list(self._writers):
            self._writers.pop(date).close()
        for temporary, _ in self._written:
            temporary.unlink(missing_ok=True)

    def _flush(self, date: str) -> None:
        import pyarrow as pa

        batches = self._pending.pop(date)
        self._pending_bytes -= sum(each.nbytes for each in batches)
        table = pa.Table.from_batches(batches)
        self._writer(date, table.schema).write_table(table, row_group_size=ROW_GROUP_ROWS)

    def _fsync_so_far(self, date: str) -> None:
        if self._fsyncing is None or self._fsyncing.done():
            self._await_fsync()
            self._fsyncing = self._pool.submit(_fsync, self._latest[date])

    def _await_fsync(self) -> None:
        """Wait for the current fsync, and raise its OSError."""
        if self._fsyncing is not None:
            self._fsyncing.result()

    def _writer(self, date: str, schema: pyarrow.Schema) -> Any:
        from pyarrow.parquet import ParquetWriter

        writer = self._writers.pop(date, None)
        if writer is None:
            if len(self._writers) == OPEN_FILES_MAX:
                self._writers.pop(next(iter(self._writers))).close()
            count = self._counts[date] = self._counts.get(date, 0) + 1
            name = self.split.file_name + (f".{count}" if count > 1 else "") + ".parquet"
            folder = self.directory / f"date={date}"
            make_lake_directory(self.directory.parent.parent, folder)
            temporary = folder / f"{TEMPORARY}{self._attempt}-{name}"
            self._written.append((temporary, folder / name))
            self._latest[date] = temporary
            writer = ParquetWriter(
                str(temporary),
                schema,
                compression=self.compression,
                use_dictionary=DICTIONARY,
                write_statistics=STATISTICS,
            )
        self._writers[date] = writer
        return writer


def _fsync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _by_date(batch: pyarrow.RecordBatch) -> Iterator[tuple[str, pyarrow.RecordBatch]]:
    """Yield the rows of each day (UTC) of the store timestamp, in order."""
    # NumPy has no null: it would convert the column to floats, and NaN has no day.
    times = np.asarray(batch.column("storeTimestamp").cast("int64").fill_null(NO_TIME))
    days = times // US_PER_DAY
    kinds = np.unique(days)
    for day in kinds.tolist():
        part = batch if len(kinds) == 1 else batch.take(np.flatnonzero(days == day))
        yield _date_text(day), part


def _date_text(day: int) -> str:
    """Return a day as YYYY-MM-DD; Hive's default partition for a damaged time."""
    try:
        text = str(np.datetime64(day, "D"))
    except (ValueError, OverflowError):
        return NO_DATE
    return text if len(text) == 10 else NO_DATE
