"""Bulk export of stores to a Parquet lake, and the way back into Spark."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreFormatError, StoreStateError
from pyrocketstore.spark.lake_writer import COLUMNS, SplitTask, WriteOptions, write_task
from pyrocketstore.spark.manifest import (
    MESSAGES_DIRECTORY,
    RUNNING,
    Manifest,
    Next,
    Run,
    SkippedRange,
    Split,
    SplitResult,
    noted,
    read_note,
)
from pyrocketstore.spark.options import BATCH, EARLIEST, Bound, SourceOptions, read_options
from pyrocketstore.spark.planning import TASK_BYTES_MIN, check_selection
from pyrocketstore.spark.schemas import MESSAGES, ddl_of
from pyrocketstore.spark.snapshot import (
    DataLossError,
    StoreSnapshot,
    sample_units,
    store_settings,
)

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

#: Options of the data source that an export takes.
EXPORT_OPTIONS = frozenset(
    """brokerConf topic topics topicPattern assign includeSystemTopics startingOffsets
    startingTimestamp startingOffsetsByTimestamp startingOffsetsByTimestampStrategy
    endingOffsets endingTimestamp endingOffsetsByTimestamp partitionBytes failOnDataLoss onCorrupt
    verifyCrc decompress batchBytes batchRows""".split()
)
_RESULT_DDL = "task int, rows bigint, bytes bigint, fileBytes bigint, files int, crcFailures bigint"
_POLL_S = 0.3

Progress = Callable[[int, int], None]
Stores = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, Any]


@dataclasses.dataclass
class ExportReport:
    """What an export did.

    `runs` were finished by it, the one of a killed export among them. `bytes` are those of the
    records, `file_bytes` those of the Parquet files; `skipped` has every message that is in a queue
    and not in the lake.
    """

    out: str
    runs: list[int] = dataclasses.field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    crc_failures: int = 0
    skipped: list[SkippedRange] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    def add(self, run: Run) -> None:
        """Count a run that is done."""
        self.runs.append(run.number)
        self.skipped += run.lost
        for result in run.results:
            self.rows += result.rows
            self.bytes += result.bytes
            self.files += len(result.files)
            self.file_bytes += result.file_bytes
            self.crc_failures += result.crc_failures
            self.skipped += result.skipped

    def to_dict(self) -> dict[str, Any]:
        """Everything, in types that json knows."""
        return dataclasses.asdict(self)


def export(
    spark: SparkSession,
    stores: Stores,
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    compression: str = "zstd",
    **options: object,
) -> ExportReport:
    """Bring what is new in stores into the Parquet lake at `out`.

    The files are written by the executors, so `out` and the stores must be the same directories on
    all machines. Each message is in the lake once, whenever this process or an executor is killed:
    a run's plan is written before its files, the next export finishes it first, and only then takes
    what has come since.

    Parameters
    ----------
    stores : a directory, several (their names become the labels), or label -> directory
    out : OUT/messages is the table, OUT/_manifest says what is in it
    progress : callable(bytes done, bytes in all), called from another thread
    compression : "zstd", "snappy", "none", ... : what pyarrow's ParquetWriter takes
    options : those of the data source in EXPORT_OPTIONS; verifyCrc is on unless it is said here.
        Starting positions are for queues that the lake has nothing of

    Raises
    ------
    StoreFormatError: an option. StoreStateError: another export writes to `out`. DataLossError: a
    queue has lost messages before they were exported (failOnDataLoss=false notes them), or goes on
    before where the lake ends. StoreIOError, StoreCorruptionError; what fails on an executor
    comes as pyspark's PythonException, with that error's text.

    Threads: one at a time for one lake, in one process or several.
    """
    started = time.monotonic()
    source = _source_options(stores, options)
    place = Path(out).absolute()
    _check_out(place, source)
    report = ExportReport(str(place))
    told = {name: str(value) for name, value in options.items()}
    with Manifest(place) as manifest:
        for run, tasks in _runs(spark, manifest, source, told):
            written = WriteOptions(str(place), str(manifest.begin(run)), source, compression)
            _carry_out(spark, manifest, run, tasks, written, progress)
            report.add(run)
    report.seconds = time.monotonic() - started
    return report


def read_lake(spark: SparkSession, out: str | os.PathLike[str]) -> DataFrame:
    """The lake at `out` as a DataFrame: the columns of the view messages, and `date`."""
    columns = {**COLUMNS, "date": "date", "topic": "string"}
    path = str(Path(out).absolute() / MESSAGES_DIRECTORY)
    found = spark.read.schema(ddl_of(columns)).parquet(path)
    return found.select(*MESSAGES, "date")


def read_manifest(out: str | os.PathLike[str]) -> list[Run]:
    """The runs of the lake at `out`, in order. Raises FileNotFoundError where there is no lake."""
    manifest = Manifest(Path(out))
    if not manifest.directory.is_dir():
        raise FileNotFoundError(f"{out} is no lake: there is no {manifest.directory}")
    return list(manifest.runs())


def is_lake(path: str | os.PathLike[str]) -> bool:
    """Whether an export has written to this directory."""
    return Manifest(Path(path)).directory.is_dir()


# ---- planning ------------------------------------------------------------------------------------


def _source_options(stores: Stores, options: Mapping[str, object]) -> SourceOptions:
    refused = sorted(set(options) - EXPORT_OPTIONS)
    if refused:
        raise StoreFormatError(
            f"export: no option {refused[0]!r}; there are {', '.join(sorted(EXPORT_OPTIONS))}"
        )
    texts = {"verifyCrc": "true", "stores": json.dumps(_labelled(stores))}
    for name, value in options.items():
        if isinstance(value, bool):
            texts[name] = str(value).lower()
        else:
            texts[name] = value if isinstance(value, str) else json.dumps(value)
    found = read_options(texts, BATCH)
    if found.on_corrupt == "null":
        raise StoreFormatError("export: onCorrupt is fail or skip; null is for queries")
    return found


def _labelled(stores: Stores) -> dict[str, str]:
    if isinstance(stores, Mapping):
        return {name: str(Path(root).absolute()) for name, root in stores.items()}
    paths = [stores] if isinstance(stores, str | os.PathLike) else list(stores)
    found: dict[str, str] = {}
    for path in (Path(each).absolute() for each in paths):
        if path.name in found:
            raise StoreFormatError(f"export: two stores are named {path.name!r}: give them labels")
        found[path.name] = str(path)
    return found


def _check_out(out: Path, options: SourceOptions) -> None:
    """Raises StoreFormatError for stores that are none, and for a lake in or around a store."""
    env = Env()
    for place in options.places:
        root = Path(place.root)
        store_settings(env, place, options.broker_conf)
        if out == root or out.is_relative_to(root) or root.is_relative_to(out):
            raise StoreFormatError(f"export: {out} and the store {root} must lie apart")
    if (out / "commitlog").exists():
        raise StoreFormatError(f"export: {out} is a store: give the lake a directory of its own")


@contextlib.contextmanager
def _snapshots(options: SourceOptions) -> Iterator[list[StoreSnapshot]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(StoreSnapshot(place, options.broker_conf, options.on_corrupt))
            for place in options.places
        ]


def _runs(
    spark: SparkSession, manifest: Manifest, source: SourceOptions, told: dict[str, str]
) -> list[tuple[Run, list[SplitTask]]]:
    """The run that was not finished, then one for what is new; with the tasks that are left."""
    with _snapshots(source) as snapshots:
        check_selection(snapshots, source)
        last = manifest.last()
        runs = []
        if last is not None and last.state == RUNNING:
            manifest.resume(last)
            runs.append(last)
        new = _plan(spark, last, snapshots, source, told)
        if new is not None:
            runs.append(new)
        found = []
        for run in runs:
            done = {result.split.task for result in run.results}
            left = [split for split in run.splits if split.task not in done]
            found.append((run, _pinned(left, snapshots)))
        return found


def _plan(
    spark: SparkSession,
    last: Run | None,
    snapshots: Iterable[StoreSnapshot],
    options: SourceOptions,
    told: dict[str, str],
) -> Run | None:
    """The next run; None where there is nothing new."""
    # A copy: `last` may be unfinished and is saved again, but this run may never be.
    following: Next = {} if last is None else copy.deepcopy(last.next)
    lost: list[SkippedRange] = []
    wanted = []
    for snapshot in snapshots:
        for queue in snapshot.queues(options):
            start, stop = _new_range(snapshot, queue, options, following, lost)
            if start < stop:
                wanted.append((snapshot, queue, start, stop, _mean_size(queue, start, stop)))
                label = snapshot.place.broker_name
                queues = following.setdefault(label, {}).setdefault(queue.topic, {})
                queues[queue.queue_id] = stop
    if not wanted and not lost:
        return None
    total = sum((stop - start) * mean for *_, start, stop, mean in wanted)
    slots = max(1, spark.sparkContext.defaultParallelism)
    limit = min(options.partition_bytes, max(TASK_BYTES_MIN, int(total / (2 * slots))))
    pieces = []
    for snapshot, queue, start, stop, mean in wanted:
        step = max(1, int(limit / mean))
        for first in range(start, stop, step):
            end = min(stop, first + step)
            names = snapshot.place.broker_name, queue.topic, queue.queue_id
            units = queue.read_units(first, 1)
            where = int(units.phy_offset[0]) if len(units.phy_offset) else 0
            pieces.append((names[0], where, (*names, first, end, int((end - first) * mean))))
    return Run(
        number=1 if last is None else last.number + 1,
        state=RUNNING,
        began_ms=time.time_ns() // 1_000_000,
        seconds=0.0,
        options=told,
        next=following,
        splits=_numbered([piece for _, _, piece in sorted(pieces)], limit),
        results=[],
        lost=lost,
    )


def _numbered(pieces: Iterable[tuple[str, str, int, int, int, int]], limit: int) -> list[Split]:
    """Splits put together to tasks. They come in the order of the log: tasks that run at one time
    then read the same part of it."""
    splits: list[Split] = []
    task = size = 0
    for piece in pieces:
        if size and size + piece[-1] > limit * 1.05:
            task, size = task + 1, 0
        splits.append(Split(task, *piece))
        size += piece[-1]
    return splits


def _new_range(
    snapshot: StoreSnapshot,
    queue: ConsumeQueue,
    options: SourceOptions,
    following: Next,
    lost: list[SkippedRange],
) -> tuple[int, int]:
    """What of a queue is not in the lake."""
    label, topic, queue_id = snapshot.place.broker_name, queue.topic, queue.queue_id
    known = following.get(label, {}).get(topic, {}).get(queue_id)
    if known is None:
        found = snapshot.range_of(queue, options)
        return found.start, found.stop
    low, high = snapshot.bounds(queue)
    name = f"{label}: {topic}/{queue_id}"
    if high < known:
        raise DataLossError(
            f"{name} ends at offset {high}, but the lake has it up to {known}: this is another"
            " store, or it has lost its end"
        )
    if low > known:
        if options.fail_on_data_loss:
            raise DataLossError(
                f"{name}: offsets {known} to {low - 1} were deleted before they were exported;"
                " failOnDataLoss=false notes it and goes on"
            )
        reason = "deleted before they were exported"
        lost.append(SkippedRange(label, topic, queue_id, known, low, low - known, 0, reason))
        following[label][topic][queue_id] = known = low
    later = dataclasses.replace(options, starting=Bound(EARLIEST))
    return known, snapshot.range_of(queue, later).stop


def _mean_size(queue: ConsumeQueue, start: int, stop: int) -> float:
    units = sample_units(queue, start, stop)
    real = units.size[~units.is_pre_blank()]
    return max(1.0, float(real.mean())) if len(real) else 1.0


# ---- a run ---------------------------------------------------------------------------------------


def _carry_out(
    spark: SparkSession,
    manifest: Manifest,
    run: Run,
    tasks: list[SplitTask],
    options: WriteOptions,
    progress: Progress | None,
) -> None:
    """Carry out what is left of a run."""
    started = time.monotonic()
    notes = Path(options.notes)
    manifest.sweep(split for task in tasks for split, _, _ in task.splits)
    if tasks:
        with _telling(notes, run, progress):
            _run_tasks(spark, tasks, options)
    missing = {task.number for task in tasks} - set(noted(notes))
    if missing:
        raise StoreStateError(
            f"{manifest.out}: {len(missing)} tasks left no note there: it must be the same "
            "directory on all machines"
        )
    manifest.sweep(run.splits, temporary_only=True)
    for task in tasks:
        run.results += read_note(notes, task.number)
    run.seconds += time.monotonic() - started
    manifest.finish(run)


def _pinned(splits: Iterable[Split], snapshots: Iterable[StoreSnapshot]) -> list[SplitTask]:
    """The tasks of splits, with the ranges as the stores have them now.

    Raises DataLossError for a queue that does not reach so far any more, StoreFormatError for a
    store that is not given. What was deleted from a queue's begin is the tasks' business.
    """
    tasks: dict[int, list[Any]] = {}
    by_label = {snapshot.place.broker_name: snapshot for snapshot in snapshots}
    for split in splits:
        snapshot = by_label.get(split.broker)
        if snapshot is None:
            raise StoreFormatError(
                f"export: a run was not finished, and its store {split.broker!r} is not given"
            )
        queues = snapshot.store.get_consume_queue_table().get(split.topic, {})
        queue = queues.get(split.queue_id)
        whole = None if queue is None else snapshot.whole_range(queue)
        if whole is None or whole.stop < split.stop:
            end = "it is gone" if whole is None else f"it ends at offset {whole.stop}"
            raise DataLossError(
                f"{split.broker}: {split.topic}/{split.queue_id} was being exported up to offset "
                f"{split.stop}, and now {end}"
            )
        pinned = whole.cut(split.start, split.stop)
        tasks.setdefault(split.task, []).append((split, pinned, snapshot.log_files()))
    return [SplitTask(number, tuple(parts)) for number, parts in sorted(tasks.items())]


def _run_tasks(spark: SparkSession, tasks: Sequence[SplitTask], options: WriteOptions) -> None:
    count = len(tasks)
    work = functools.partial(_write_tasks, tasks=tuple(tasks), options=options)
    spark.range(0, count, 1, count).mapInArrow(work, _RESULT_DDL).collect()


def _write_tasks(
    batches: Iterator[pyarrow.RecordBatch], tasks: tuple[SplitTask, ...], options: WriteOptions
) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        for number in batch.column(0).to_pylist():
            results = write_task(tasks[number], options)
            yield pa.RecordBatch.from_pydict(
                {
                    "task": pa.array([tasks[number].number], pa.int32()),
                    "rows": pa.array([sum(each.rows for each in results)], pa.int64()),
                    "bytes": pa.array([sum(each.bytes for each in results)], pa.int64()),
                    "fileBytes": pa.array([sum(each.file_bytes for each in results)], pa.int64()),
                    "files": pa.array([sum(len(each.files) for each in results)], pa.int32()),
                    "crcFailures": pa.array([_crc_failures(results)], pa.int64()),
                }
            )


def _crc_failures(results: Iterable[SplitResult]) -> int:
    return sum(each.crc_failures for each in results)


@contextlib.contextmanager
def _telling(notes: Path, run: Run, progress: Progress | None) -> Iterator[None]:
    """Call `progress` from a thread, by the notes that tasks leave."""
    if progress is None:
        yield
        return
    sizes: dict[int, int] = {}
    for split in run.splits:
        sizes[split.task] = sizes.get(split.task, 0) + split.planned_bytes
    total = sum(sizes.values())
    before = {result.split.task for result in run.results}
    ended = threading.Event()

    def tell() -> None:
        while True:
            is_last = ended.wait(_POLL_S)
            progress(sum(sizes.get(task, 0) for task in {*before, *noted(notes)}), total)
            if is_last:
                return

    thread = threading.Thread(target=tell, name="export-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
