"""Rebuild on Spark: queues and index of a store, from its commit log alone, into a new directory.

The executors read the log, a file each: they copy it and write down which units and keys its
records demand, in the log's order. The driver streams that through the engine's own writers, so
that the bytes are those of the engine's rebuild, and lets recovery look over the result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyrocketstore.config import MessageStoreConfig, detect_sizes
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.display import logger
from pyrocketstore.env import O_RDWR, Env, parent_directory
from pyrocketstore.errors import StoreStateError
from pyrocketstore.index_directory import find_index_files
from pyrocketstore.index_geometry import infer_geometry
from pyrocketstore.index_service import IndexService
from pyrocketstore.log_scan import LogScan
from pyrocketstore.message_store import DefaultMessageStore
from pyrocketstore.recovery import LAST_FILES, check_not_newer, scan_start
from pyrocketstore.results import DispatchRequest
from pyrocketstore.spark.border import guarded
from pyrocketstore.spark.local_paths import local_path
from pyrocketstore.spark.log_demands import (
    LogFileTask,
    key_batch,
    record_walks,
    wanted_batches,
)
from pyrocketstore.spark.options import StorePlace
from pyrocketstore.spark.snapshot import LogFile, place_settings
from pyrocketstore.store_checkpoint import AbortFile, StoreCheckpoint

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

LOG = logger(__name__)

#: Units that a task sorts, and the driver holds, at a time.
UNITS_AT_ONCE = 1 << 18
STAGING = "rebuild.tmp"
_PART_DDL = (
    "number int, records bigint, units bigint, keys bigint, lastRecord bigint, lastStored bigint, "
    "lastQueued bigint, skippedPositions array<bigint>, skippedSizes array<bigint>, "
    "skippedTexts array<string>"
)
_UNIT_COLUMNS = ("queueId", "queueOffset", "commitLogOffset", "size", "tagsCode", "storeTimestamp")

Int64s = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Skipped:
    """Bytes of the log that hold no record: `size` of them at `position` of a file."""

    path: str
    position: int
    size: int
    reason: str


@dataclasses.dataclass
class RebuildReport:
    """What a rebuild did.

    `records`, `units` and `keys` are what the log has; a unit that a queue has already is written
    once. `log_end` is in bytes of the log; `skipped` is what lies between the records before it.
    """

    out: str
    records: int = 0
    units: int = 0
    keys: int = 0
    queues: int = 0
    index_files: int = 0
    log_end: int = 0
    skipped: list[Skipped] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class _Source:
    """What the driver knows of the log.

    `split_at` is where recovery begins the index anew, bytes of the log; -1: nowhere.
    """

    config: MessageStoreConfig
    geometry: tuple[int, int]
    log_end: int
    split_at: int
    tasks: tuple[_FileTask, ...]


@dataclasses.dataclass(frozen=True)
class _FileTask:
    """A file of the log, and up to where it is copied, by `demands`."""

    demands: LogFileTask
    target: str
    staging: str
    with_index: bool


def rebuild(
    spark: SparkSession,
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    broker_conf: str | os.PathLike[str] | None = None,
) -> RebuildReport:
    """Make a store in `out` of the commit log of `store`.

    Log and config are copied, queues and index are new. Nothing of `store` is written to, and its
    queues and index are asked for no more than the sizes and the geometry of their files.

    The log ends where a broker's recovery would end it. `out` must be the same directory on all
    machines, new or empty; what a rebuild that fails has made there is deleted.

    Parameters
    ----------
    store, out : directories of the local file system, each as a path or a file: URI
    broker_conf : where sizes and settings cannot be seen in the files, or the index is damaged

    Raises
    ------
    StoreFormatError: no store, a path that is not local, an index of unknown geometry.
    StoreStateError: `out` is not empty,
    or within the store. StoreCorruptionError: a log of 5.x. StoreIOError; on executors it comes as
    pyspark's PythonException.

    Threads: one for one `out`. Durability: all of it is on the device on return.
    """
    started = time.monotonic()
    env = Env()
    root, target = local_path(store, "rebuild: store"), local_path(out, "rebuild: out")
    conf = None if broker_conf is None else local_path(broker_conf, "rebuild: broker_conf")
    _check_target(env, root, target)
    source = _look(env, root, target, conf)
    env.make_directories(target)
    try:
        report = _make(spark, env, root, source)
    except BaseException:
        _clear(env, target)
        raise
    report.seconds = time.monotonic() - started
    return report


def _check_target(env: Env, root: str, target: str) -> None:
    if os.path.commonpath([os.path.realpath(root), os.path.realpath(target)]) == os.path.realpath(
        root
    ):
        raise StoreStateError(f"{target}: lies in the store that is read")
    if env.exists(target) and (not env.is_dir(target) or env.listdir(target)):
        raise StoreStateError(f"{target}: not an empty directory")


def _clear(env: Env, target: str) -> None:
    for name in env.listdir(target):
        path = f"{target}/{name}"
        if env.is_dir(path):
            shutil.rmtree(path)
        else:
            env.remove(path)


def _make(spark: SparkSession, env: Env, root: str, source: _Source) -> RebuildReport:
    target = source.config.store_path_root_dir
    abort = AbortFile(env, f"{target}/abort")
    abort.create()  # until all is there, this is no store that was stopped cleanly
    staging = f"{target}/{STAGING}"
    for path in (staging, source.config.commit_log_path, f"{target}/consumequeue"):
        env.make_directories(path)
    _copy_config(env, root, target)
    parts = _read_log(spark, source.tasks)
    report = RebuildReport(target, log_end=source.log_end)
    for task, part in zip(source.tasks, parts, strict=True):
        report.records += part["records"]
        report.units += part["units"]
        report.keys += part["keys"]
        told = zip(
            part["skippedPositions"], part["skippedSizes"], part["skippedTexts"], strict=True
        )
        report.skipped += [Skipped(task.demands.file.path, *each) for each in told]
    env.fsync_directory(source.config.commit_log_path)
    with contextlib.closing(_Writer(env, source)) as writer:
        for task, part in zip(source.tasks, parts, strict=True):
            writer.add(task, part["number"], part["lastRecord"])
        stored = [part["lastStored"] for part in parts if part["lastStored"] > 0]
        queued = [part["lastQueued"] for part in parts if part["lastQueued"] > 0]
        writer.finish(stored[-1] if stored else 0, queued[-1] if queued else 0)
    shutil.rmtree(staging)
    abort.delete()
    _look_over(source.config, env, report)
    return report


def _copy_config(env: Env, root: str, target: str) -> None:
    """Topics, offsets and groups, of which the log says nothing."""
    names = [
        name for name in env.listdir(f"{root}/config") if os.path.isfile(f"{root}/config/{name}")
    ]
    if names:
        env.make_directories(f"{target}/config")
    for name in names:
        path = f"{root}/config/{name}"
        env.copy_range(path, f"{target}/config/{name}", 0, env.size(path))


def _look_over(config: MessageStoreConfig, env: Env, report: RebuildReport) -> None:
    """Recovery must find a store that was stopped cleanly and lacks nothing; it stops it again."""
    store = DefaultMessageStore(config, env=env, cleans=False)
    try:
        store.load()
        report.queues = sum(q.get_max_offset_in_queue() > 0 for q in store.consume_queues())
        report.index_files = len(store.index_service.files)
        if store.plan is not None and store.plan.replay_from is not None:
            LOG.warning("recovery read the log again from byte %d on", store.plan.replay_from)
    finally:
        store.shutdown()


# ---- on the driver: what there is ----------------------------------------------------------------


def _look(env: Env, root: str, target: str, broker_conf: str | None) -> _Source:
    """Where the log ends, as recovery would find it; nothing is written."""
    place = StorePlace(os.path.basename(root), root)
    settings = detect_sizes(env, root, place_settings(env, place, broker_conf))
    geometry = _geometry(env, root, settings)
    store = DefaultMessageStore(settings, env=env, read_only=True)
    log = store.commit_log
    try:
        log.load()
        check_not_newer(store)
        files = log.mapped_file_queue.mapped_files
        clean = not AbortFile(env, f"{root}/abort").exists()
        store.checkpoint = StoreCheckpoint(env, f"{root}/checkpoint", read_only=True)
        begin = 0
        if files and clean:
            begin = files[max(0, len(files) - LAST_FILES)].file_from_offset
        elif files:
            begin = scan_start(store, clean)
        end = begin
        if files:
            scan = LogScan(
                env,
                files,
                begin,
                files[-1].file_from_offset + files[-1].file_size,
                delay_levels=log.delay_levels,
                check_crc=settings.check_crc_on_recover,
                records_max=0,
            )
            for piece in scan.pieces():
                end = piece.file_from_offset + piece.end
        lowest = files[0].file_from_offset if files else 0
        config = dataclasses.replace(
            settings.at_root(target),
            store_path_commit_log=None,
            read_only_commit_log_store_paths=None,
            max_hash_slot_num=geometry[0],
            max_index_num=geometry[1],
            given=settings.given | {"max_hash_slot_num", "max_index_num"},
        )
        tasks = []
        for file in files:
            base, size = file.file_from_offset, file.file_size
            if base >= end:
                break
            is_last = base + size >= end
            stop = min(size, end - base)
            demands = LogFileTask(
                broker_name="",
                file=LogFile(file.path, base, size),
                stop=stop,
                is_last=is_last,
                delay_levels=dict(log.delay_levels),
                enable_lmq=settings.enable_lmq,
                multi_dispatch=settings.enable_multi_dispatch,
                check_crc=False,  # the scan has done so where recovery does
            )
            tasks.append(
                _FileTask(
                    demands,
                    f"{config.commit_log_path}/{base:020d}",
                    f"{target}/{STAGING}",
                    settings.message_index_enable,
                )
            )
        split_at = begin if not clean and lowest < begin else -1
        return _Source(config, geometry, end, split_at, tuple(tasks))
    finally:
        store.shutdown()


def _geometry(env: Env, root: str, settings: MessageStoreConfig) -> tuple[int, int]:
    """Slots and entries of the index files that are made: those of the ones that there are."""
    names = ("max_hash_slot_num", "max_index_num")
    slots, entries = (
        int(getattr(settings, name)) if name in settings.given else None for name in names
    )
    if slots is not None and entries is not None:
        return slots, entries
    paths = [file.path for file in find_index_files(env, f"{root}/index")]
    return infer_geometry(env, paths, (slots, entries))


# ---- on the executors ----------------------------------------------------------------------------


def _read_log(spark: SparkSession, tasks: tuple[_FileTask, ...]) -> list[Any]:
    """A row of _PART_DDL for each file, in the log's order."""
    if not tasks:
        return []
    count = len(tasks)
    run = functools.partial(_run, tasks=tasks)
    rows = spark.range(0, count, 1, count).mapInArrow(run, _PART_DDL).collect()
    return sorted(rows, key=lambda row: row["number"])


@guarded
def _run(
    batches: Iterator[pyarrow.RecordBatch], tasks: tuple[_FileTask, ...]
) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        for number in batch.column(0).to_pylist():
            part = _read_file(tasks[number], number)
            row = {name: [value] for name, value in part.items()}
            types = {
                "number": pa.int32(),
                "skippedPositions": pa.list_(pa.int64()),
                "skippedSizes": pa.list_(pa.int64()),
                "skippedTexts": pa.list_(pa.string()),
            }
            schema = pa.schema([(name, types.get(name, pa.int64())) for name in row])
            yield pa.RecordBatch.from_pydict(row, schema)


def _read_file(task: _FileTask, number: int) -> dict[str, Any]:
    """Copy the file and write its part files, each at once: a task may run twice."""
    _copy_log(task)
    skipped: list[tuple[int, int, str]] = []

    def told(position: int, text: str, count: int) -> None:
        if count > 0:
            skipped.append((position, count, text))

    records = units = keys = 0
    last_record = last_stored = last_queued = -1
    with _PartFile(task, number, "units") as unit_file, _PartFile(task, number, "keys") as key_file:
        held = _Held(unit_file)
        for walk, names in record_walks(task.demands, told):
            records += walk.count
            last_record = int(walk.column("phy_offset")[-1])
            times = walk.column("store_timestamp")
            last_stored = int(times[-1])
            queued = np.flatnonzero(walk.column("queue") >= 0)
            if len(queued):
                last_queued = int(times[queued[-1]])
            held.begin_walk()
            for light, batch in wanted_batches(task.demands, walk, names):
                if not light or task.demands.multi_dispatch:
                    held.add(batch, light)
                    units += batch.num_rows
            if task.with_index and walk.key_count:
                key_file.write(key_batch(task.demands, walk).drop_columns(["brokerName"]))
                keys += walk.key_count
        held.write()
    positions, sizes, texts = zip(*skipped, strict=True) if skipped else ((), (), ())
    return {
        "number": number,
        "records": records,
        "units": units,
        "keys": keys,
        "lastRecord": last_record,
        "lastStored": last_stored,
        "lastQueued": last_queued,
        "skippedPositions": list(positions),
        "skippedSizes": list(sizes),
        "skippedTexts": list(texts),
    }


def _copy_log(task: _FileTask) -> None:
    env = Env()
    file = task.demands.file
    temporary = f"{task.staging}/{os.path.basename(task.target)}.{_unique()}"
    env.copy_range(file.path, temporary, 0, task.demands.stop)
    if task.demands.stop < file.size:
        fd = env.open(temporary, O_RDWR)
        try:
            env.ftruncate(fd, file.size, temporary)
            env.fsync(fd, temporary)
        finally:
            env.close(fd, temporary)
    env.rename(temporary, task.target)
    env.fsync_directory(parent_directory(task.target))


def _unique() -> str:
    return os.urandom(8).hex()


class _PartFile:
    """An Arrow stream of batches, there under its name once it is whole; none without a batch."""

    def __init__(self, task: _FileTask, number: int, kind: str) -> None:
        self.path = _part_path(task, number, kind)
        self._temporary = f"{self.path}.{_unique()}"
        self._writer: Any = None
        self._file: Any = None

    def __enter__(self) -> _PartFile:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._file.close()
        if error is None:
            os.replace(self._temporary, self.path)

    def write(self, batch: pyarrow.RecordBatch) -> None:
        """Add a batch."""
        import pyarrow as pa

        if self._writer is None:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._file = pa.OSFile(os.fsencode(self._temporary), "wb")
            self._writer = pa.ipc.new_stream(self._file, batch.schema, options=options)
        self._writer.write_batch(batch)


def _part_path(task: _FileTask, number: int, kind: str) -> str:
    return f"{task.staging}/{number:08d}.{kind}"


class _Held:
    """Units that wait to be written by queue, each queue's in the order in which the engine puts
    them: the log's, and of one record its own queue first."""

    def __init__(self, file: _PartFile) -> None:
        self._file = file
        self._batches: list[pyarrow.RecordBatch] = []
        self._count = 0

    def begin_walk(self) -> None:
        """Later units belong to later records than those that are held."""
        if self._count >= UNITS_AT_ONCE:
            self.write()

    def add(self, batch: pyarrow.RecordBatch, light: bool) -> None:
        """Hold a batch of WANTED_DDL; `light`: the queues are those that records name."""
        import pyarrow as pa

        kept = batch.select(["topic", *_UNIT_COLUMNS])
        flags = pa.repeat(pa.scalar(light), batch.num_rows)
        self._batches.append(kept.append_column("light", flags))
        self._count += batch.num_rows

    def write(self) -> None:
        """Write what is held."""
        import pyarrow as pa

        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches).combine_chunks()
        topics = table.column("topic").combine_chunks().dictionary_encode()
        table = table.set_column(0, "topic", topics)
        order = np.lexsort(
            (
                table.column("commitLogOffset").to_numpy(),
                table.column("queueId").to_numpy(),
                topics.indices.to_numpy(),
            )
        )
        for batch in table.take(pa.array(order)).combine_chunks().to_batches():
            self._file.write(batch)
        self._batches, self._count = [], 0


# ---- on the driver: writing ----------------------------------------------------------------------


class _Writer:
    """The new store's queues and index, filled in the log's order by the engine's own writers."""

    def __init__(self, env: Env, source: _Source) -> None:
        root = source.config.store_path_root_dir
        self._source = source
        self._store = DefaultMessageStore(source.config, env=env, cleans=False)
        self._table = self._store.queue_table
        self._checkpoint = StoreCheckpoint(env, f"{root}/checkpoint")
        flags = self._store.running_flags
        self._index = IndexService(env, f"{root}/index", *source.geometry, self._checkpoint, flags)
        self._last_key = -1
        self._split_at = source.split_at if source.config.message_index_enable else -1

    def add(self, task: _FileTask, number: int, last_record: int) -> None:
        """What one file of the log demands. Raises StoreIOError."""
        for batch in _batches(_part_path(task, number, "units")):
            self._put_units(batch)
        if not task.with_index:
            return
        self._split_index(task.demands.file.from_offset)
        for batch in _batches(_part_path(task, number, "keys")):
            self._put_keys(*(batch.column(n).to_numpy() for n in range(batch.num_columns)))
        if last_record > self._last_key:
            # Each record wants a file with room, whether it has keys or not.
            self._index.get_and_create_last_index_file()

    def finish(self, last_stored: int, last_queued: int) -> None:
        """Force everything and say so: store times of the last record, and the last in a queue.

        Raises StoreIOError.
        """
        self._split_index(self._source.log_end)
        for queue in self._table.all():
            while not queue.flush(0):
                pass
        cause = self._store.running_flags.cause
        if cause is not None:
            raise cause
        self._index.flush()
        self._checkpoint.physic_msg_timestamp = last_stored
        self._checkpoint.logics_msg_timestamp = last_queued
        self._checkpoint.flush()

    def close(self) -> None:
        """Give files and mappings back."""
        try:
            self._index.shutdown()
        finally:
            self._table.close()
            self._store.shutdown()

    def _put_units(self, batch: pyarrow.RecordBatch) -> None:
        topics = batch.column("topic")
        codes = topics.indices.to_numpy()
        columns = [batch.column(name).to_numpy() for name in _UNIT_COLUMNS]
        light = batch.column("light").to_numpy(zero_copy_only=False)
        ids = columns[0]
        edges = np.flatnonzero((np.diff(codes) != 0) | (np.diff(ids) != 0)) + 1
        bounds = [0, *edges.tolist(), len(codes)]
        for begin, end in itertools.pairwise(bounds):
            topic = topics.dictionary[int(codes[begin])].as_py()
            queue = self._table.for_dispatch(topic, int(ids[begin]))
            if queue is None:
                continue
            part = [column[begin:end] for column in columns[1:]]
            if queue.ext is None:
                _put_run(queue, *part[:4])
            else:
                _put_with_ext(queue, light[begin:end].tolist(), *(each.tolist() for each in part))

    def _put_keys(self, phy_offsets: Int64s, hashes: npt.NDArray[np.int32], times: Int64s) -> None:
        done = 0
        while done < len(hashes):
            file = self._index.get_and_create_last_index_file()
            done += file.put_hashes(hashes[done:], phy_offsets[done:], times[done:])
            self._last_key = int(phy_offsets[done - 1])

    def _split_index(self, phy_offset: int) -> None:
        """Begin a new index file where the engine's recovery from a crash would."""
        if 0 <= self._split_at <= phy_offset:
            self._split_at = -1
            self._index.begin_new_file(None)


def _batches(path: str) -> Iterator[pyarrow.RecordBatch]:
    """The batches of a part file, one at a time; none where the file has none."""
    import pyarrow as pa

    if os.path.exists(path):
        with pa.OSFile(os.fsencode(path)) as file, pa.ipc.open_stream(file) as reader:
            yield from reader


def _put_run(
    queue: ConsumeQueue,
    offsets: Int64s,
    phy_offsets: Int64s,
    sizes: npt.NDArray[np.int32],
    codes: Int64s,
) -> None:
    """Put units as the dispatcher would one by one: gaps are filled, repeats passed over."""
    follows = (np.diff(offsets) == 1) & (np.diff(phy_offsets) > 0)
    bounds = [0, *(np.flatnonzero(~follows) + 1).tolist(), len(offsets)]
    for begin, end in itertools.pairwise(bounds):
        at = begin
        while at < end:
            is_next = offsets[at] == queue.get_max_offset_in_queue()
            if is_next and phy_offsets[at] + sizes[at] > queue.covered_phy_offset:
                queue.put_units(phy_offsets[at:end], sizes[at:end], codes[at:end])
                break
            queue.put_message_position_info(
                int(phy_offsets[at]), int(sizes[at]), int(codes[at]), int(offsets[at])
            )
            at += 1


def _put_with_ext(queue: ConsumeQueue, light: list[bool], *columns: list[int]) -> None:
    """Put units whose tags codes go into ext units; not those of further queues."""
    for is_light, offset, phy_offset, size, code, stored in zip(light, *columns, strict=True):
        request = DispatchRequest(
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_log_offset=phy_offset,
            msg_size=size,
            tags_code=code,
            store_timestamp=stored,
            consume_queue_offset=offset,
        )
        if is_light:
            queue.put_light(request, offset)
        else:
            queue.put_message_position_info_wrapper(request)


__all__ = ["RebuildReport", "Skipped", "rebuild"]
