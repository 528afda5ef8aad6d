"""Writing a split of a lake: what runs on the executors. Bodies never pass through the JVM."""

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

from pyrocketstore._columns import check_records, decode_records
from pyrocketstore._scan import status_name
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreStateError
from pyrocketstore.spark.manifest import (
    NO_DATE,
    TEMPORARY,
    SkippedRange,
    Split,
    SplitResult,
    make_lake_directory,
    read_note,
    sync_directory,
    topic_directory,
    write_note,
)
from pyrocketstore.spark.options import SourceOptions
from pyrocketstore.spark.records import LogReader, MessageBatches, Piece, Skipped
from pyrocketstore.spark.schemas import MESSAGES
from pyrocketstore.spark.snapshot import LogFile, QueueRange
from pyrocketstore.spark.tasks import UNITS_AT_ONCE, batch_rows
from pyrocketstore.spark.units import RangeUnits
from pyrocketstore.spark.worker import settle

if TYPE_CHECKING:
    import pyarrow

RS_BAD_CRC = 5
NO_BODY = "the body does not inflate"
OTHER_PLACE = "the unit names a record that says another place"
#: A row group is closed at so many rows, or before where its batches have this many bytes.
ROW_GROUP_ROWS = 128 << 10
ROW_GROUP_BYTES = 64 << 20
#: Files of other days that are kept open, for a clock that went back at midnight.
OPEN_FILES_MAX = 16
US_PER_DAY = 86_400_000_000
#: Stands for the store time of a row that has none: a day that is no date.
NO_TIME = -(2**63)

#: The columns of the files; the topic is in the name of the directory.
COLUMNS: dict[str, str] = {name: kind for name, kind in MESSAGES.items() if name != "topic"}
DICTIONARY = ["brokerName", "tags"]
STATISTICS = [
    "queueId",
    "queueOffset",
    "commitLogOffset",
    "bornTimestamp",
    "storeTimestamp",
]

Int64s = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class SplitTask:
    """The splits of one task, each with its range as it is pinned now."""

    number: int
    splits: tuple[tuple[Split, QueueRange], ...]


@dataclasses.dataclass(frozen=True)
class WriteOptions:
    """What the tasks of a run share.

    `out` is the lake, `notes` where tasks note what they did, `compression` one of Parquet's,
    `log_files` each broker's log.
    """

    out: str
    notes: str
    source: SourceOptions
    compression: str
    log_files: Mapping[str, tuple[LogFile, ...]]


def write_task(task: SplitTask, options: WriteOptions) -> list[SplitResult]:
    """Write the splits of a task, unless a former attempt did; their files are forced then.

    Raises DataLossError, StoreCorruptionError, StoreIOError, OSError; StoreStateError where the
    files have not the rows that were read.
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
    """The rows of a split, and an account of every message that gave none. Threads: one."""

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
        left_out = Skipped()
        env = Env()
        self._units = RangeUnits(env, pinned, fail_on_data_loss=options.fail_on_data_loss)
        self._log = LogReader(env, log_files, options, left_out)
        self._batches = MessageBatches(COLUMNS, options, split.broker, left_out)

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """The rows, in the order of the queue.

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
        read = np.zeros(len(offsets), np.bool_)
        for part, piece in self._log.pieces(phy_offsets, sizes):
            read[part] = True
            whole = dataclasses.replace(
                piece,
                topic=self.split.topic,
                queue_id=self.split.queue_id,
                queue_offsets=offsets[part],
            )
            given = []
            for batch in self._batches.batches(whole):
                given.append(np.asarray(batch.column("queueOffset")))
                yield batch
            if sum(map(len, given)) < len(whole.sizes):
                was_given = np.isin(offsets[part], np.concatenate([*given, []]))
                if self._batches.loaded is None:
                    read[part] = was_given
                else:
                    self._note_damage(self._batches.loaded.take(~was_given))
        self._skip_rows(offsets[~read], sizes[~read], "the log's file is gone", None)

    def _note_damage(self, bad: Piece) -> None:
        """Say what is wrong with these records, which gave no row."""
        assert bad.queue_offsets is not None
        status = check_records(
            bad.data,
            bad.positions,
            bad.sizes,
            phy_offsets=bad.phy_offsets,
            check_crc=self.options.verify_crc,
        )
        self.crc_failures += int(np.count_nonzero(status == RS_BAD_CRC))
        for value in np.unique(status[status != 0]).tolist():
            rows = status == value
            self._skip_rows(bad.queue_offsets[rows], bad.sizes[rows], status_name(value), bad.path)
        whole = np.flatnonzero(status == 0)
        names = ("queue_id", "queue_offset")
        found = decode_records(bad.data, bad.positions[whole], bad.sizes[whole], names)
        places = np.asarray(found["queue_id"]), np.asarray(found["queue_offset"])
        same = (places[0] == bad.queue_id) & (places[1] == bad.queue_offsets[whole])
        for rows, reason in ((whole[same], NO_BODY), (whole[~same], OTHER_PLACE)):
            self._skip_rows(bad.queue_offsets[rows], bad.sizes[rows], reason, bad.path)

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
        place = split.broker, split.topic, split.queue_id, start, stop
        self.skipped.append(SkippedRange(*place, records, size, reason, path))

    def _path(self, queue_offset: int) -> str:
        return self._units.path_of(queue_offset)


class DayFiles:
    """The Parquet files of a split, one a day; under their names only when all are whole.

    Where a clock went back so often that a day's file was closed before, the day gets a second one.
    A thread forces what was written while more is made, so that little is left to wait for.
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
        self._given = 0
        self._pool = ThreadPoolExecutor(1, "ForceParquet")
        self._forcing: Future[None] | None = None

    def write(self, batch: pyarrow.RecordBatch) -> None:
        """Take rows. Raises OSError."""
        self._given += batch.num_rows
        for date, part in _by_date(batch):
            pending = self._pending.setdefault(date, [])
            pending.append(part)
            self._pending_bytes += part.nbytes
            if sum(each.num_rows for each in pending) >= ROW_GROUP_ROWS:
                self._flush(date)
                self._force_so_far(date)
        if self._pending_bytes >= ROW_GROUP_BYTES:
            for date in list(self._pending):
                self._flush(date)
                self._force_so_far(date)

    def finish(self) -> list[Path]:
        """Write what is pending, force the files, and give them their names; the names.

        Raises StoreStateError where the files have not as many rows as were given, OSError.
        """
        from pyarrow.parquet import read_metadata

        for date in list(self._pending):
            self._flush(date)
        for date in list(self._writers):
            self._writers.pop(date).close()
        rows = sum(read_metadata(temporary).num_rows for temporary, _ in self._written)
        if rows != self._given:
            raise StoreStateError(
                f"{self.directory}: {self.split.file_name} got {self._given} rows, but its files "
                f"have {rows}"
            )
        self._await_forced()
        for temporary, _ in self._written:
            _force(temporary)
        for temporary, path in self._written:
            os.replace(temporary, path)
        for directory in dict.fromkeys(path.parent for _, path in self._written):
            sync_directory(directory)
            sync_directory(directory.parent)
        if self._written:
            sync_directory(self.directory.parent)
        return [path for _, path in self._written]

    def discard(self) -> None:
        """Close and remove what did not get its name."""
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

    def _force_so_far(self, date: str) -> None:
        if self._forcing is None or self._forcing.done():
            self._await_forced()
            self._forcing = self._pool.submit(_force, self._latest[date])

    def _await_forced(self) -> None:
        """Raises the OSError of what was forced so far."""
        if self._forcing is not None:
            self._forcing.result()

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


def _force(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _by_date(batch: pyarrow.RecordBatch) -> Iterator[tuple[str, pyarrow.RecordBatch]]:
    """The rows of each day (UTC) of the store timestamp, in order."""
    # numpy has no null: it would make floats of the column, and NaN is in no day.
    times = np.asarray(batch.column("storeTimestamp").cast("int64").fill_null(NO_TIME))
    days = times // US_PER_DAY
    kinds = np.unique(days)
    for day in kinds.tolist():
        part = batch if len(kinds) == 1 else batch.take(np.flatnonzero(days == day))
        yield _date_text(day), part


def _date_text(day: int) -> str:
    """A day as YYYY-MM-DD; where a damaged time has none, what Hive calls no date."""
    try:
        text = str(np.datetime64(day, "D"))
    except (ValueError, OverflowError):
        return NO_DATE
    return text if len(text) == 10 else NO_DATE
