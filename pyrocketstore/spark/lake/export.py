"""Bulk export of stores to a Parquet lake, and the way back into Spark: the driver's half.

Executors run `lake.writer`.
"""

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

from pyrocketstore.arguments.scalars import is_encodable
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.errors import StoreFormatError, StoreStateError
from pyrocketstore.spark.lake.continuity import StoreMarks
from pyrocketstore.spark.lake.manifest import (
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
from pyrocketstore.spark.lake.writer import (
    COLUMNS,
    RESULT_DDL,
    SplitTask,
    WriteOptions,
    write_task_row,
)
from pyrocketstore.spark.local_paths import local_path
from pyrocketstore.spark.options import (
    BATCH,
    EARLIEST,
    Bound,
    SourceOptions,
    label_of,
    read_options,
)
from pyrocketstore.spark.packages import require_packages
from pyrocketstore.spark.plan.open_snapshot import open_snapshot, retried
from pyrocketstore.spark.plan.snapshot import sample_units, store_settings
from pyrocketstore.spark.plan.task_splitting import TASK_BYTES_MIN, check_selection, mean_size
from pyrocketstore.spark.read.worker import map_tasks
from pyrocketstore.spark.schemas import MESSAGES, ddl_of
from pyrocketstore.spark.task_types import DataLossError, LogFile, QueueRange
from pyrocketstore.system.env import Env

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Options of the data source that an export accepts.
EXPORT_OPTIONS = frozenset(
    """brokerConf topic topics topicPattern assign includeSystemTopics startingOffsets
    startingTimestamp startingOffsetsByTimestamp startingOffsetsByTimestampStrategy
    endingOffsets endingTimestamp endingOffsetsByTimestamp partitionBytes failOnDataLoss onCorrupt
    verifyCrc decompress batchBytes batchRows""".split()
)
#: Compressions of Parquet that pyarrow writes and Spark reads without further packages.
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
_POLL_S = 0.3
#: The characters of a path that Hadoop reads as a pattern.
_GLOB = re.compile(r"[\\*?{}\[\]]")

Progress = Callable[[int, int], None]
Stores = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, Any]


@dataclasses.dataclass
class ExportReport:
    """Counts of an export.

    `runs` are the runs that it finished, including that of a killed export. `bytes` are those of
    the records, `file_bytes` those of the Parquet files; `skipped` has every message that is in
    a queue but not in the lake.
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
        """Add a finished run."""
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
        """Return all fields in types of JSON."""
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
    """Write the new messages of stores to the Parquet lake at `out`.

    The executors write the files, so `out` and the stores must be the same directories on all
    machines. Each message is in the lake once, even if this process or an executor is killed: a
    run's plan is written before its files, and the next export finishes that run before it exports
    newer messages.

    Parameters
    ----------
    stores : a directory, several (their names become the labels), or label -> directory; each is a
        path or a file: URI
    out : a directory of the local file system, as a path or a file: URI; OUT/messages is the
        table, OUT/_manifest lists its contents
    progress : callable(bytes done, bytes in total), called from another thread
    compression : one of COMPRESSIONS, in any case
    options : options of the data source in EXPORT_OPTIONS; verifyCrc defaults to true. Starting
        positions apply to queues without messages in the lake

    Raises
    ------
    StoreFormatError: an option, or a path that is not local. StoreStateError: another export writes
    to `out`. DataLossError: a queue has lost messages before they were exported
    (failOnDataLoss=false records them), or a label belongs to another store of the lake.
    StoreIOError, StoreCorruptionError; an error of an executor is raised as pyspark's
    PythonException, with its text. MissingExtraError without pyspark or pyarrow.

    Threads: one at a time for one lake, in one process or several.
    """
    require_packages("export")
    started = time.monotonic()
    source = _source_options(stores, options)
    compression = _compression(compression)
    place = _lake_path(out)
    _check_out(place, source)
    report = ExportReport(str(place))
    texts = {name: str(value) for name, value in options.items()}
    with Manifest(place) as manifest:
        for work in retried(lambda: _works(spark, manifest, source, texts)):
            notes = str(manifest.begin(work.run))
            written = WriteOptions(str(place), notes, work.source, compression, work.log_files)
            _carry_out(spark, manifest, work, written, progress)
            report.add(work.run)
    report.seconds = time.monotonic() - started
    return report


def read_lake(spark: SparkSession, out: str | os.PathLike[str]) -> DataFrame:
    """Return the lake at `out` as a DataFrame: the columns of the view messages, and `date`.

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
    """Return the runs of the lake at `out`, in order. Raises FileNotFoundError without a lake."""
    manifest = Manifest(_lake_path(out))
    if not manifest.directory.is_dir():
        raise FileNotFoundError(f"{out}: not a lake: it has no {manifest.directory}")
    return list(manifest.runs())


def is_lake(path: str | os.PathLike[str]) -> bool:
    """Whether an export has written to this directory."""
    return Manifest(_lake_path(path)).directory.is_dir()


def _lake_path(out: str | os.PathLike[str]) -> Path:
    """Return the directory of a lake. Raises StoreFormatError."""
    path = local_path(out, "lake")
    if not is_encodable(path):
        raise StoreFormatError(f"lake={path!r}: the path is not UTF-8, so Spark cannot name it")
    return Path(path)


# ---- planning ------------------------------------------------------------------------------------


def _compression(name: str) -> str:
    """Return pyarrow's name of a compression. Raises StoreFormatError."""
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
            raise StoreFormatError(f"export: two stores are named {label!r}; pass labels")
        found[label] = path
    return found


def _check_out(out: Path, options: SourceOptions) -> None:
    """Raise StoreFormatError for a missing store, and for a lake inside or around a store."""
    env = Env()
    real = out.resolve()
    for place in options.places:
        root = Path(place.root)
        store_settings(env, place, options.broker_conf)
        if real.is_relative_to(root.resolve()) or root.resolve().is_relative_to(real):
            raise StoreFormatError(f"export: {out} contains the store {root} or is inside of it")
    if (out / "commitlog").exists():
        raise StoreFormatError(f"export: {out} is a store; name another directory for the lake")


@dataclasses.dataclass(frozen=True)
class _Work:
    """The rest of a run, and the values that its tasks share."""

    run: Run
    tasks: list[SplitTask]
    source: SourceOptions
    log_files: dict[str, tuple[LogFile, ...]]


def _works(
    spark: SparkSession, manifest: Manifest, source: SourceOptions, texts: dict[str, str]
) -> list[_Work]:
    """Return the unfinished run, then one for the new messages."""
    with contextlib.ExitStack() as stack:
        snapshots = [stack.enter_context(open_snapshot(each, source)) for each in source.places]
        check_selection(snapshots, source)
        stores = [StoreMarks(snapshot, snapshot.log_files()) for snapshot in snapshots]
        last = manifest.last()
        works = []
        if last is not None:
            for store in stores:
                store.check_store(last.marks.get(store.label, {}))
        if last is not None and last.state == RUNNING:
            manifest.resume(last)
            if texts not in (last.options, *last.resumed):
                last.resumed.append(texts)
            works.append(_left_of(last, stores, _as_planned(last, source), manifest))
        new = _plan(spark, last, stores, source, texts)
        if new is not None:
            works.append(_left_of(new, stores, source, manifest))
        return works


def _as_planned(run: Run, source: SourceOptions) -> SourceOptions:
    """Return the options to continue a run: the contents of rows are as in the plan, and the caller
    decides about damage and loss; otherwise a run with damage could never end."""
    return dataclasses.replace(
        source,
        decompress=_flag_of(run, "decompress"),
        verify_crc=_flag_of(run, "verifyCrc"),
    )


def _flag_of(run: Run, name: str) -> bool:
    """Return an option of a run whose default is true."""
    return run.options.get(name, "true").strip().lower() == "true"


def _plan(
    spark: SparkSession,
    last: Run | None,
    stores: Iterable[StoreMarks],
    options: SourceOptions,
    texts: dict[str, str],
) -> Run | None:
    """Return the next run; None without new messages."""
    news = _News(last, options)
    wanted = []
    for store in stores:
        for queue in store.snapshot.queues(options):
            start, stop = news.take(store, queue)
            if start < stop:
                units = sample_units(queue, start, stop)
                mean = mean_size(units.size[~units.is_pre_blank()])
                wanted.append((store.label, queue, start, stop, mean))
    if not wanted and not news.lost:
        return None
    total = sum((stop - start) * mean for *_, start, stop, mean in wanted)
    slots = _slots(spark)
    limit = min(options.partition_bytes, max(TASK_BYTES_MIN, int(total / (2 * slots))))
    parts = []
    for label, queue, start, stop, mean in wanted:
        step = max(1, int(limit / mean))
        for first in range(start, stop, step):
            end = min(stop, first + step)
            units = queue.read_units(first, 1)
            where = int(units.phy_offset[0]) if len(units.phy_offset) else 0
            names = label, queue.topic, queue.queue_id
            parts.append((label, where, (*names, first, end, int((end - first) * mean))))
    return Run(
        number=1 if last is None else last.number + 1,
        state=RUNNING,
        began_ms=time.time_ns() // 1_000_000,
        seconds=0.0,
        options=texts,
        next=news.following,
        splits=_numbered([part for _, _, part in sorted(parts)], limit),
        results=[],
        lost=news.lost,
        marks=news.marks,
    )


def _slots(spark: SparkSession) -> int:
    """Return how many tasks run at the same time."""
    from pyspark.errors import PySparkAttributeError

    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except PySparkAttributeError:  # Spark Connect has no context: a range has as many partitions
        parts = spark.range(0, 1 << 16).selectExpr("spark_partition_id() AS part")
        return max(1, parts.distinct().count())


def _numbered(parts: Iterable[tuple[str, str, int, int, int, int]], limit: int) -> list[Split]:
    """Combine splits into tasks, in the order of the log: tasks that run at the same time then read
    the same part of it."""
    splits: list[Split] = []
    task = size = 0
    for part in parts:
        if size and size + part[-1] > limit * 1.05:
            task, size = task + 1, 0
        splits.append(Split(task, *part))
        size += part[-1]
    return splits


class _News:
    """The messages of each queue that are not in the lake, and its offsets after their export.

    `following` and `marks` are as in Run; `lost` are messages that cannot be exported.
    Threads: one.
    """

    def __init__(self, last: Run | None, options: SourceOptions) -> None:
        # Copies: `last` may be unfinished and is saved again, but this run may never be.
        self.following: Next = {} if last is None else copy.deepcopy(last.next)
        self.marks: Marks = {} if last is None else copy.deepcopy(last.marks)
        self.lost: list[SkippedRange] = []
        self.options = options
        self._later = dataclasses.replace(options, starting=Bound(EARLIEST))

    def take(self, store: StoreMarks, queue: ConsumeQueue) -> tuple[int, int]:
        """Return the queue offsets to export, and count them as exported.

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
        """Record, or raise, the losses of a queue that the lake has up to `known`."""
        name = f"{store.label}: {whole.topic}/{whole.queue_id}"
        mark = self.marks.get(store.label, {}).get(whole.topic, {}).get(whole.queue_id)
        if mark is None:
            if whole.stop < known:
                raise DataLossError(
                    f"{name} ends at offset {whole.stop}, but the lake has it up to {known}: this "
                    "is another store, or it has lost its end"
                )
        else:
            # A recreated queue ends before `known` at first: messages after the mark were not
            # reported yet.
            first = whole.start if store.is_recreated(whole, mark) else mark.queue_offset + 1
            stop = min(known, whole.stop)
            if first < stop:
                self._lose(
                    store.label,
                    whole,
                    (first, stop),
                    "of a recreated queue, while the lake has other messages at these offsets",
                    f"{name} was recreated: the lake has messages of the old queue up to offset "
                    f"{known - 1}, and cannot take {first} to {stop - 1} of the new one too; "
                    "failOnDataLoss=false records these and continues; another label exports all",
                )
                self._mark(store, whole, stop - 1)
        if whole.start > known:
            self._lose(
                store.label,
                whole,
                (known, whole.start),
                "deleted before they were exported",
                f"{name}: offsets {known} to {whole.start - 1} were deleted before they were "
                "exported; failOnDataLoss=false records it and continues",
            )
            self.following[store.label][whole.topic][whole.queue_id] = whole.start
            # The mark is that of the message right before this offset, which is deleted.
            self.marks.get(store.label, {}).get(whole.topic, {}).pop(whole.queue_id, None)

    def _lose(
        self, label: str, queue: QueueRange, lost: tuple[int, int], reason: str, error: str
    ) -> None:
        if self.options.fail_on_data_loss:
            raise DataLossError(error)
        count = lost[1] - lost[0]
        names = label, queue.topic, queue.queue_id
        self.lost.append(SkippedRange(*names, *lost, count, 0, reason))


# ---- a run ---------------------------------------------------------------------------------------


def _carry_out(
    spark: SparkSession,
    manifest: Manifest,
    work: _Work,
    options: WriteOptions,
    progress: Progress | None,
) -> None:
    """Run the remaining tasks of a run."""
    started = time.monotonic()
    run, tasks = work.run, work.tasks
    notes = Path(options.notes)
    manifest.sweep(split for task in tasks for split, _ in task.splits)
    if tasks:
        with _reporting(notes, work, progress):
            _run_tasks(spark, tasks, options)
    missing = {task.number for task in tasks} - set(noted(notes))
    if missing:
        raise StoreStateError(
            f"{manifest.out}: {len(missing)} tasks wrote no result there: it must be the same "
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
    """Return the remaining tasks of a run, with the ranges that the stores have now.

    Raises DataLossError for a queue that is gone, under failOnDataLoss; StoreFormatError for a
    missing store. The tasks handle messages deleted at the begin of a queue.
    """
    tasks: dict[int, list[tuple[Split, QueueRange]]] = {}
    by_label = {store.label: store for store in stores}
    lost: list[SplitResult] = []
    for split in run.splits_left():
        store = by_label.get(split.broker)
        if store is None:
            raise StoreFormatError(
                f"export: the stores lack {split.broker!r}, which an unfinished run needs"
            )
        found = _pinned(split, store, run.marks)
        if isinstance(found, QueueRange):
            tasks.setdefault(split.task, []).append((split, found))
            continue
        if source.fail_on_data_loss:
            raise DataLossError(
                f"{split.broker}: {split.topic}/{split.queue_id} was being exported up to offset "
                f"{split.stop}, and now {found}; failOnDataLoss=false records it and continues"
            )
        names = split.broker, split.topic, split.queue_id, split.start, split.stop
        count = split.stop - split.start
        reason = f"while it was being exported, {found}"
        skipped = SkippedRange(*names, count, 0, reason)
        lost.append(SplitResult(split, 0, 0, 0, (), 0, (skipped,)))
    manifest.sweep(each.split for each in lost)
    run.results += lost
    found_tasks = [SplitTask(number, tuple(parts)) for number, parts in sorted(tasks.items())]
    brokers = {split.broker for task in found_tasks for split, _ in task.splits}
    log_files = {label: by_label[label].log_files for label in sorted(brokers)}
    return _Work(run, found_tasks, source, log_files)


def _pinned(split: Split, store: StoreMarks, marks: Marks) -> QueueRange | str:
    """Return the range of a split now, or how its queue has changed."""
    queue = store.snapshot.store.get_consume_queue(split.topic, split.queue_id)
    if queue is None:
        return "its queue was deleted"
    whole = store.snapshot.whole_range(queue)
    pinned = store.snapshot.marked(whole.cut(split.start, split.stop))
    # Compared after the mark of the range is read, so that both are of one topic.
    mark = marks.get(split.broker, {}).get(split.topic, {}).get(split.queue_id)
    if mark is not None and store.is_recreated(whole, mark):
        return "its queue was recreated"
    if whole.stop < split.stop:
        return f"its queue ends at offset {whole.stop}"
    return pinned


def _run_tasks(spark: SparkSession, tasks: Sequence[SplitTask], options: WriteOptions) -> None:
    work = functools.partial(write_task_row, options=options)
    map_tasks(spark, tasks, work, RESULT_DDL).collect()


@contextlib.contextmanager
def _reporting(notes: Path, work: _Work, progress: Progress | None) -> Iterator[None]:
    """Call `progress` from a thread, by the results that tasks write."""
    if progress is None:
        yield
        return
    left = {
        task.number: sum(split.planned_bytes for split, _ in task.splits) for task in work.tasks
    }
    total = sum(split.planned_bytes for split in work.run.splits)
    before = total - sum(left.values())
    ended = threading.Event()

    def report() -> None:
        while True:
            is_last = ended.wait(_POLL_S)
            progress(before + sum(left.get(task, 0) for task in noted(notes)), total)
            if is_last:
                return

    thread = threading.Thread(target=report, name="export-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
