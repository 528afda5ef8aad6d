"""Bulk export of stores to a Parquet lake, and the way back into Spark."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreFormatError, StoreStateError
from pyrocketstore.exact import is_encodable
from pyrocketstore.spark.border import guarded
from pyrocketstore.spark.lake_marks import StoreMarks
from pyrocketstore.spark.lake_writer import COLUMNS, SplitTask, WriteOptions, write_task
from pyrocketstore.spark.local_paths import local_path
from pyrocketstore.spark.manifest import (
    MESSAGES_DIRECTORY,
    RUNNING,
    Manifest,
    Marks,
    Next,
    Run,
    SkippedRange,
    Split,
    SplitResult,
    noted,
    read_note,
)
from pyrocketstore.spark.options import (
    BATCH,
    EARLIEST,
    Bound,
    SourceOptions,
    label_of,
    read_options,
)
from pyrocketstore.spark.pinning import open_snapshot, retried
from pyrocketstore.spark.planning import TASK_BYTES_MIN, check_selection
from pyrocketstore.spark.schemas import MESSAGES, ddl_of
from pyrocketstore.spark.snapshot import (
    DataLossError,
    LogFile,
    QueueRange,
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
#: Compressions of Parquet that pyarrow writes and Spark reads as it comes.
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
_RESULT_DDL = "task int, rows bigint, bytes bigint, fileBytes bigint, files int, crcFailures bigint"
_POLL_S = 0.3
#: The characters of a path that Hadoop takes for a pattern's.
_GLOB = re.compile(r"[\\*?{}\[\]]")

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
    stores : a directory, several (their names become the labels), or label -> directory; each is a
        path or a file: URI
    out : a directory of the local file system, likewise; OUT/messages is the table, OUT/_manifest
        says what is in it
    progress : callable(bytes done, bytes in all), called from another thread
    compression : one of COMPRESSIONS, in any case
    options : those of the data source in EXPORT_OPTIONS; verifyCrc is on unless it is said here.
        Starting positions are for queues that the lake has nothing of

    Raises
    ------
    StoreFormatError: an option, or a path that is not local. StoreStateError: another export writes
    to `out`. DataLossError: a queue has lost messages before they were exported
    (failOnDataLoss=false notes them), or a store is not the one that the lake has under that label.
    StoreIOError, StoreCorruptionError; what fails on an executor comes as pyspark's
    PythonException, with that error's text.

    Threads: one at a time for one lake, in one process or several.
    """
    started = time.monotonic()
    source = _source_options(stores, options)
    compression = _compression(compression)
    place = _lake_path(out)
    _check_out(place, source)
    report = ExportReport(str(place))
    told = {name: str(value) for name, value in options.items()}
    with Manifest(place) as manifest:
        for work in retried(lambda: _works(spark, manifest, source, told)):
            notes = str(manifest.begin(work.run))
            written = WriteOptions(str(place), notes, work.source, compression, work.log_files)
            _carry_out(spark, manifest, work, written, progress)
            report.add(work.run)
    report.seconds = time.monotonic() - started
    return report


def read_lake(spark: SparkSession, out: str | os.PathLike[str]) -> DataFrame:
    """The lake at `out` as a DataFrame: the columns of the view messages, and `date`.

    Raises StoreFormatError for a path that is not local.
    """
    columns = {**COLUMNS, "date": "date", "topic": "string"}
    path = _GLOB.sub(r"\\\g<0>", str(_lake_path(out) / MESSAGES_DIRECTORY))
    found = spark.read.schema(ddl_of(columns)).parquet(path)
    if short := Manifest(_lake_path(out)).short_names():
        from pyspark.sql import functions as F

        names = F.create_map(*(F.lit(text) for pair in short.items() for text in pair))
        found = found.withColumn("topic", F.coalesce(F.try_element_at(names, "topic"), "topic"))
    return found.select(*MESSAGES, "date")


def read_manifest(out: str | os.PathLike[str]) -> list[Run]:
    """The runs of the lake at `out`, in order. Raises FileNotFoundError where there is no lake."""
    manifest = Manifest(_lake_path(out))
    if not manifest.directory.is_dir():
        raise FileNotFoundError(f"{out} is no lake: there is no {manifest.directory}")
    return list(manifest.runs())


def is_lake(path: str | os.PathLike[str]) -> bool:
    """Whether an export has written to this directory."""
    return Manifest(_lake_path(path)).directory.is_dir()


def _lake_path(out: str | os.PathLike[str]) -> Path:
    """The directory of a lake. Raises StoreFormatError."""
    path = local_path(out, "lake")
    if not is_encodable(path):
        raise StoreFormatError(f"lake={path!r}: the path is not UTF-8, so Spark cannot name it")
    return Path(path)


# ---- planning ------------------------------------------------------------------------------------


def _compression(name: str) -> str:
    """The name as pyarrow has it. Raises StoreFormatError."""
    import pyarrow as pa

    found = name.lower() if isinstance(name, str) else None
    if found not in COMPRESSIONS:
        raise StoreFormatError(
            f"export: compression={name!r}: must be one of {', '.join(COMPRESSIONS)}"
        )
    if found != "none" and not pa.Codec.is_available(found):
        raise StoreFormatError(f"export: compression={name!r}: this pyarrow was built without it")
    return found


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
        return {name: local_path(root, "export: store") for name, root in stores.items()}
    paths = [stores] if isinstance(stores, str | os.PathLike) else list(stores)
    found: dict[str, str] = {}
    for path in (local_path(each, "export: store") for each in paths):
        label = label_of(path)
        if label in found:
            raise StoreFormatError(f"export: two stores are named {label!r}: give them labels")
        found[label] = path
    return found


def _check_out(out: Path, options: SourceOptions) -> None:
    """Raises StoreFormatError for stores that are none, and for a lake in or around a store."""
    env = Env()
    real = out.resolve()
    for place in options.places:
        root = Path(place.root)
        store_settings(env, place, options.broker_conf)
        if real.is_relative_to(root.resolve()) or root.resolve().is_relative_to(real):
            raise StoreFormatError(f"export: {out} and the store {root} must lie apart")
    if (out / "commitlog").exists():
        raise StoreFormatError(f"export: {out} is a store: give the lake a directory of its own")


@contextlib.contextmanager
def _snapshots(options: SourceOptions) -> Iterator[list[StoreSnapshot]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(open_snapshot(place, options)) for place in options.places]


@dataclasses.dataclass(frozen=True)
class _Work:
    """What is left of a run, and what its tasks share."""

    run: Run
    tasks: list[SplitTask]
    source: SourceOptions
    log_files: dict[str, tuple[LogFile, ...]]


def _works(
    spark: SparkSession, manifest: Manifest, source: SourceOptions, told: dict[str, str]
) -> list[_Work]:
    """The run that was not finished, then one for what is new."""
    with _snapshots(source) as snapshots:
        check_selection(snapshots, source)
        stores = [StoreMarks(snapshot, snapshot.log_files()) for snapshot in snapshots]
        last = manifest.last()
        works = []
        if last is not None:
            for store in stores:
                store.check_store(last.marks.get(store.label, {}))
        if last is not None and last.state == RUNNING:
            manifest.resume(last)
            if told not in (last.options, *last.resumed):
                last.resumed.append(told)
            works.append(_left_of(last, stores, _as_planned(last, source), manifest))
        new = _plan(spark, last, stores, source, told)
        if new is not None:
            works.append(_left_of(new, stores, source, manifest))
        return works


def _as_planned(run: Run, source: SourceOptions) -> SourceOptions:
    """The options to go on with a run: what its rows hold is as in the plan, what to do about
    damage and loss is for the caller to say, lest a run that met some could never end."""
    return dataclasses.replace(
        source,
        decompress=_flag_of(run, "decompress"),
        verify_crc=_flag_of(run, "verifyCrc"),
    )


def _flag_of(run: Run, name: str) -> bool:
    """An option of a run that is true unless it was said."""
    return run.options.get(name, "true").strip().lower() == "true"


def _plan(
    spark: SparkSession,
    last: Run | None,
    stores: Iterable[StoreMarks],
    options: SourceOptions,
    told: dict[str, str],
) -> Run | None:
    """The next run; None where there is nothing new."""
    news = _News(last, options)
    wanted = []
    for store in stores:
        for queue in store.snapshot.queues(options):
            start, stop = news.take(store, queue)
            if start < stop:
                label = store.label
                wanted.append((label, queue, start, stop, _mean_size(queue, start, stop)))
    if not wanted and not news.lost:
        return None
    total = sum((stop - start) * mean for *_, start, stop, mean in wanted)
    slots = max(1, spark.sparkContext.defaultParallelism)
    limit = min(options.partition_bytes, max(TASK_BYTES_MIN, int(total / (2 * slots))))
    pieces = []
    for label, queue, start, stop, mean in wanted:
        step = max(1, int(limit / mean))
        for first in range(start, stop, step):
            end = min(stop, first + step)
            units = queue.read_units(first, 1)
            where = int(units.phy_offset[0]) if len(units.phy_offset) else 0
            names = label, queue.topic, queue.queue_id
            pieces.append((label, where, (*names, first, end, int((end - first) * mean))))
    return Run(
        number=1 if last is None else last.number + 1,
        state=RUNNING,
        began_ms=time.time_ns() // 1_000_000,
        seconds=0.0,
        options=told,
        next=news.following,
        splits=_numbered([piece for _, _, piece in sorted(pieces)], limit),
        results=[],
        lost=news.lost,
        marks=news.marks,
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


class _News:
    """What of each queue is not in the lake, and how far the lake is once it is.

    `following` and `marks` are as in Run, `lost` what cannot come into the lake. Threads: one.
    """

    def __init__(self, last: Run | None, options: SourceOptions) -> None:
        # Copies: `last` may be unfinished and is saved again, but this run may never be.
        self.following: Next = {} if last is None else copy.deepcopy(last.next)
        self.marks: Marks = {} if last is None else copy.deepcopy(last.marks)
        self.lost: list[SkippedRange] = []
        self.options = options
        self._later = dataclasses.replace(options, starting=Bound(EARLIEST))

    def take(self, store: StoreMarks, queue: ConsumeQueue) -> tuple[int, int]:
        """The queue offsets to export; they count as exported from now on.

        Raises DataLossError.
        """
        snapshot = store.snapshot
        topic, queue_id = queue.topic, queue.queue_id
        whole = snapshot.whole_range(queue)
        known = self.following.get(store.label, {}).get(topic, {}).get(queue_id)
        if known is None:
            pinned = snapshot.range_of(queue, self.options)
            start, stop = pinned.start, pinned.stop
        else:
            self._compare(store, whole, known)
            start = max(known, whole.start)
            stop = snapshot.range_of(queue, self._later).stop
        if start < stop:
            self.following.setdefault(store.label, {}).setdefault(topic, {})[queue_id] = stop
            self._mark(store, whole, stop - 1)
        return start, stop

    def _mark(self, store: StoreMarks, whole: QueueRange, queue_offset: int) -> None:
        marks = self.marks.setdefault(store.label, {}).setdefault(whole.topic, {})
        mark = store.mark_at(whole, queue_offset)
        if mark is None:
            marks.pop(whole.queue_id, None)
        else:
            marks[whole.queue_id] = mark

    def _compare(self, store: StoreMarks, whole: QueueRange, known: int) -> None:
        """Note, or raise, what a queue that the lake has up to `known` has lost since."""
        name = f"{store.label}: {whole.topic}/{whole.queue_id}"
        mark = self.marks.get(store.label, {}).get(whole.topic, {}).get(whole.queue_id)
        if mark is None:
            if whole.stop < known:
                raise DataLossError(
                    f"{name} ends at offset {whole.stop}, but the lake has it up to {known}: this "
                    "is another store, or it has lost its end"
                )
        else:
            # A queue that was made anew ends before `known` at first: those behind the mark were
            # not told yet.
            first = whole.start if store.is_anew(whole, mark) else mark.queue_offset + 1
            stop = min(known, whole.stop)
            if first < stop:
                self._lose(
                    store.label,
                    whole,
                    (first, stop),
                    "of a queue made anew, while the lake has others of these offsets",
                    f"{name} was made anew: the lake has messages of the old one up to offset "
                    f"{known - 1}, and cannot take {first} to {stop - 1} of the new one beside them"
                    "; failOnDataLoss=false notes these and goes on, and another label takes all",
                )
                self._mark(store, whole, stop - 1)
        if whole.start > known:
            self._lose(
                store.label,
                whole,
                (known, whole.start),
                "deleted before they were exported",
                f"{name}: offsets {known} to {whole.start - 1} were deleted before they were "
                "exported; failOnDataLoss=false notes it and goes on",
            )
            self.following[store.label][whole.topic][whole.queue_id] = whole.start
            # It stands for what comes right before that, of which nothing is left.
            self.marks.get(store.label, {}).get(whole.topic, {}).pop(whole.queue_id, None)

    def _lose(
        self, label: str, queue: QueueRange, place: tuple[int, int], reason: str, error: str
    ) -> None:
        if self.options.fail_on_data_loss:
            raise DataLossError(error)
        count = place[1] - place[0]
        names = label, queue.topic, queue.queue_id
        self.lost.append(SkippedRange(*names, *place, count, 0, reason))


def _mean_size(queue: ConsumeQueue, start: int, stop: int) -> float:
    units = sample_units(queue, start, stop)
    real = units.size[~units.is_pre_blank()]
    return max(1.0, float(real.mean())) if len(real) else 1.0


# ---- a run ---------------------------------------------------------------------------------------


def _carry_out(
    spark: SparkSession,
    manifest: Manifest,
    work: _Work,
    options: WriteOptions,
    progress: Progress | None,
) -> None:
    """Carry out what is left of a run."""
    started = time.monotonic()
    run, tasks = work.run, work.tasks
    notes = Path(options.notes)
    manifest.sweep(split for task in tasks for split, _ in task.splits)
    if tasks:
        with _telling(notes, work, progress):
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


def _left_of(
    run: Run, stores: Iterable[StoreMarks], source: SourceOptions, manifest: Manifest
) -> _Work:
    """The tasks that are left of a run, with the ranges as the stores have them now.

    Raises DataLossError for a queue that is gone, unless that is noted; StoreFormatError for a
    store that is not given. What was deleted from a queue's begin is the tasks' business.
    """
    tasks: dict[int, list[tuple[Split, QueueRange]]] = {}
    by_label = {store.label: store for store in stores}
    lost: list[SplitResult] = []
    for split in run.splits_left():
        store = by_label.get(split.broker)
        if store is None:
            raise StoreFormatError(
                f"export: a run was not finished, and its store {split.broker!r} is not given"
            )
        found = _pinned(split, store, run.marks)
        if isinstance(found, QueueRange):
            tasks.setdefault(split.task, []).append((split, found))
            continue
        if source.fail_on_data_loss:
            raise DataLossError(
                f"{split.broker}: {split.topic}/{split.queue_id} was being exported up to offset "
                f"{split.stop}, and now {found}; failOnDataLoss=false notes it and goes on"
            )
        place = split.broker, split.topic, split.queue_id, split.start, split.stop
        count = split.stop - split.start
        reason = f"while it was being exported, {found}"
        skipped = SkippedRange(*place, count, 0, reason)
        lost.append(SplitResult(split, 0, 0, 0, (), 0, (skipped,)))
    manifest.sweep(each.split for each in lost)
    run.results += lost
    found_tasks = [SplitTask(number, tuple(parts)) for number, parts in sorted(tasks.items())]
    brokers = {split.broker for task in found_tasks for split, _ in task.splits}
    log_files = {label: by_label[label].log_files for label in sorted(brokers)}
    return _Work(run, found_tasks, source, log_files)


def _pinned(split: Split, store: StoreMarks, marks: Marks) -> QueueRange | str:
    """The range of a split as it is now, or what became of its queue."""
    queues = store.snapshot.store.get_consume_queue_table().get(split.topic, {})
    if split.queue_id not in queues:
        return "its queue was deleted"
    whole = store.snapshot.whole_range(queues[split.queue_id])
    mark = marks.get(split.broker, {}).get(split.topic, {}).get(split.queue_id)
    if mark is not None and store.is_anew(whole, mark):
        return "its queue was made anew"
    if whole.stop < split.stop:
        return f"its queue ends at offset {whole.stop}"
    return whole.cut(split.start, split.stop)


def _run_tasks(spark: SparkSession, tasks: Sequence[SplitTask], options: WriteOptions) -> None:
    count = len(tasks)
    work = functools.partial(_write_tasks, tasks=tuple(tasks), options=options)
    spark.range(0, count, 1, count).mapInArrow(work, _RESULT_DDL).collect()


@guarded
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
def _telling(notes: Path, work: _Work, progress: Progress | None) -> Iterator[None]:
    """Call `progress` from a thread, by the notes that tasks leave."""
    if progress is None:
        yield
        return
    left = {
        task.number: sum(split.planned_bytes for split, _ in task.splits) for task in work.tasks
    }
    total = sum(split.planned_bytes for split in work.run.splits)
    before = total - sum(left.values())
    ended = threading.Event()

    def tell() -> None:
        while True:
            is_last = ended.wait(_POLL_S)
            progress(before + sum(left.get(task, 0) for task in noted(notes)), total)
            if is_last:
                return

    thread = threading.Thread(target=tell, name="export-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
