"""Rebuild on Spark: queues and index of a store, from its commit log alone, in a new directory.

Each executor task reads one file of the log, copies it, and writes the units and keys of its
records to part files, in the log's order. The driver passes them to the engine's own writers, so
that the bytes are those of the engine's rebuild, and lets recovery check the result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyrocketstore.commit_log.log_end import check_not_newer
from pyrocketstore.commit_log.other_formats import check_writable
from pyrocketstore.commit_log.parallel_scan import LogScan
from pyrocketstore.config.message_store_config import MessageStoreConfig, detect_sizes
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreFormatError, StoreStateError
from pyrocketstore.files.abort_file import AbortFile
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.index.geometry import usual_geometry
from pyrocketstore.index.index_service import IndexService
from pyrocketstore.index.sync_point import SyncPointFile
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.results import DispatchRequest
from pyrocketstore.spark.jobs.expected_entries import LogFileTask
from pyrocketstore.spark.jobs.rebuild_log import (
    PART_DDL,
    UNIT_COLUMNS,
    FileTask,
    part_path,
    read_file,
)
from pyrocketstore.spark.local_paths import local_path
from pyrocketstore.spark.options import StorePlace
from pyrocketstore.spark.packages import require_packages
from pyrocketstore.spark.plan.snapshot import place_settings
from pyrocketstore.spark.read.worker import map_tasks
from pyrocketstore.spark.task_types import LogFile
from pyrocketstore.system._env import Event
from pyrocketstore.system.env import Env

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

LOG = logger(__name__)

STAGING = "rebuild.tmp"
Int64s = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Skipped:
    """`size` bytes of the log without a valid record, at `position` of a file."""

    path: str
    position: int
    size: int
    reason: str


@dataclasses.dataclass
class RebuildReport:
    """Counts of a rebuild.

    `records`, `units` and `keys` are those of the log; a repeated unit is written once.
    `log_end` is in bytes of the log; `skipped` has the damaged ranges before it.
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
    """The driver's view of the log.

    `split_at` is where recovery begins a new index file (bytes of the log); -1: nowhere.
    """

    config: MessageStoreConfig
    geometry: tuple[int, int]
    log_end: int
    split_at: int
    tasks: tuple[FileTask, ...]


def rebuild(
    spark: SparkSession,
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    broker_conf: str | os.PathLike[str] | None = None,
) -> RebuildReport:
    """Create a store in `out` from the commit log of `store`.

    The rebuild copies log and config, and creates queues and index. It writes nothing to `store`,
    and reads of its queues and index only file sizes and geometry.

    The log ends where a broker's recovery would end it. `out` must be the same directory on all
    machines, new or empty; a rebuild that fails deletes its files there.

    Parameters
    ----------
    store, out : directories of the local file system, each as a path or a file: URI
    broker_conf : where the files do not show sizes and settings, or the index is damaged

    Raises
    ------
    StoreFormatError: not a store, a path that is not local, an index of unknown geometry.
    StoreStateError: `out` is not empty, or within the store. StoreCorruptionError: a log of 5.x.
    StoreIOError; executors raise it as pyspark's PythonException. MissingExtraError without pyspark
    or pyarrow.

    Threads: one for one `out`. Durability: the new store is on the device on return.
    """
    require_packages("rebuild")
    started = time.monotonic()
    env = Env()
    root, target = local_path(store, "rebuild: store"), local_path(out, "rebuild: out")
    conf = None if broker_conf is None else local_path(broker_conf, "rebuild: broker_conf")
    _check_target(env, root, target)
    source = _source_of(env, root, target, conf)
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
        raise StoreStateError(f"{target}: inside the store that is read; name a directory outside")
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
    abort.create()  # an incomplete store must not look cleanly stopped
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
        ranges = zip(
            part["skippedPositions"], part["skippedSizes"], part["skippedTexts"], strict=True
        )
        report.skipped += [Skipped(task.log.file.path, *each) for each in ranges]
    env.fsync_directory(source.config.commit_log_path)
    with contextlib.closing(_Writer(env, source)) as writer:
        for task, part in zip(source.tasks, parts, strict=True):
            writer.add(task, part["lastRecord"])
        stored = [part["lastStored"] for part in parts if part["lastStored"] > 0]
        queued = [part["lastQueued"] for part in parts if part["lastQueued"] > 0]
        writer.finish(stored[-1] if stored else 0, queued[-1] if queued else 0)
    shutil.rmtree(staging)
    abort.delete()
    _check_result(source.config, env, report)
    return report


def _copy_config(env: Env, root: str, target: str) -> None:
    """Copy topics, offsets and groups, which the log does not have."""
    names = [
        name for name in env.listdir(f"{root}/config") if os.path.isfile(f"{root}/config/{name}")
    ]
    if names:
        env.make_directories(f"{target}/config")
    for name in names:
        path = f"{root}/config/{name}"
        env.copy_range(path, f"{target}/config/{name}", 0, env.size(path))


def _check_result(config: MessageStoreConfig, env: Env, report: RebuildReport) -> None:
    """Open and stop the new store: recovery must find a complete store after a clean stop."""
    store = DefaultMessageStore(config, env=env, cleans=False)
    try:
        store.load()
        report.queues = sum(q.get_max_offset_in_queue() > 0 for q in store.consume_queues())
        report.index_files = len(store.index_service.files)
        if store.plan is not None and store.plan.replay_from is not None:
            LOG.warning("recovery read the log again from byte %d on", store.plan.replay_from)
    finally:
        store.shutdown()


# ---- on the driver: the log ----------------------------------------------------------------------


def _source_of(env: Env, root: str, target: str, broker_conf: str | None) -> _Source:
    """Find the log's end as recovery would; writes nothing."""
    place = StorePlace(os.path.basename(root), root)
    settings = detect_sizes(env, root, place_settings(env, place, broker_conf))
    check_writable(env, settings)
    store = LoadedFiles(env, settings.absolute(), read_only=True, appended=Event())
    log = store.commit_log
    try:
        _load_log(store)
        files = log.mapped_file_queue.mapped_files
        clean = not AbortFile(env, f"{root}/abort").exists()
        store.checkpoint = StoreCheckpoint(env, f"{root}/checkpoint", read_only=True)
        geometry = _geometry(store, clean)
        begin = files[store.first_to_scan(clean=clean)].file_from_offset if files else 0
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
            for chunk in scan.chunks():
                end = chunk.file_from_offset + chunk.end
        lowest = files[0].file_from_offset if files else 0
        config = dataclasses.replace(
            settings.at_root(target),
            store_path_commit_log=None,
            read_only_commit_log_store_paths=None,
            max_hash_slot_num=geometry[0],
            max_index_num=geometry[1],
            given=settings.given | {"max_hash_slot_num", "max_index_num"},
        )
        tasks: list[FileTask] = []
        for file in files:
            base, size = file.file_from_offset, file.file_size
            if base >= end:
                break
            is_last = base + size >= end
            stop = min(size, end - base)
            log_task = LogFileTask(
                broker_name="",
                file=LogFile(file.path, base, size),
                stop=stop,
                is_last=is_last,
                delay_levels=dict(log.delay_levels),
                enable_lmq=settings.enable_lmq,
                multi_dispatch=settings.enable_multi_dispatch,
                check_crc=False,  # the scan has done so where recovery does
                min_offsets=store.topic_minimums.offsets(end).by_topic(),
            )
            tasks.append(
                FileTask(
                    len(tasks),
                    log_task,
                    f"{config.commit_log_path}/{base:020d}",
                    f"{target}/{STAGING}",
                    settings.message_index_enable,
                )
            )
        split_at = begin if not clean and lowest < begin else -1
        return _Source(config, geometry, end, split_at, tuple(tasks))
    finally:
        log.mapped_file_queue.shutdown(0)


def _load_log(store: LoadedFiles) -> None:
    store.topic_minimums.read()
    store.commit_log.load()
    check_not_newer(store.commit_log.mapped_file_queue.mapped_files)
    store.topic_minimums.load(store.commit_log)


def _geometry(store: LoadedFiles, clean: bool) -> tuple[int, int]:
    """Return slots and entries of the new index files: those of the existing ones, as an opening
    of the store reads them.

    Raises StoreFormatError where they are unknown.
    """
    settings = store.config
    slots, entries = (
        int(getattr(settings, name)) if name in settings.given else None
        for name in ("max_hash_slot_num", "max_index_num")
    )
    if slots is not None and entries is not None:
        return slots, entries
    index = IndexService(
        store.env,
        f"{settings.store_path_root_dir}/index",
        slots,
        entries,
        store.checkpoint,
        store.running_flags,
        read_only=True,
        sync_point_file=SyncPointFile(store.env, settings.store_path_root_dir),
        usual=usual_geometry(settings.mapped_file_size_commit_log),
    )
    try:
        index.load(clean, store.has_record)
        if index.geometry_error is not None and settings.message_index_enable:
            raise StoreFormatError(f"{index.geometry_error}, by broker_conf")
        return index.geometry
    finally:
        index.shutdown()


def _read_log(spark: SparkSession, tasks: tuple[FileTask, ...]) -> list[Any]:
    """Return a row of PART_DDL for each file, in the log's order."""
    rows = map_tasks(spark, tasks, read_file, PART_DDL, lambda task: task.log.stop).collect()
    return sorted(rows, key=lambda row: row["number"])


# ---- on the driver: writing ----------------------------------------------------------------------


class _Writer:
    """Fills the new store's queues and index in the log's order, by the engine's own writers."""

    def __init__(self, env: Env, source: _Source) -> None:
        root = source.config.store_path_root_dir
        self._source = source
        self._store = LoadedFiles(env, source.config.absolute(), read_only=False, appended=Event())
        self._table = self._store.queue_table
        self._checkpoint = StoreCheckpoint(env, f"{root}/checkpoint")
        flags = self._store.running_flags
        self._index = IndexService(env, f"{root}/index", *source.geometry, self._checkpoint, flags)
        self._last_key = -1
        self._split_at = source.split_at if source.config.message_index_enable else -1

    def add(self, task: FileTask, last_record: int) -> None:
        """Put the units and keys of one log file. Raises StoreIOError."""
        for batch in _batches(part_path(task, "units")):
            self._put_units(batch)
        if not task.with_index:
            return
        self._split_index(task.log.file.from_offset)
        for batch in _batches(part_path(task, "keys")):
            self._put_keys(*(batch.column(n).to_numpy() for n in range(batch.num_columns)))
        if last_record > self._last_key:
            # Each record requires a file with room, whether it has keys or not.
            self._index.get_and_create_last_index_file()

    def finish(self, last_stored: int, last_queued: int) -> None:
        """Flush everything, then the checkpoint with the store times of the last record and of the
        last one in a queue.

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
        """Close files and mappings."""
        try:
            self._index.shutdown()
        finally:
            self._table.close()

    def _put_units(self, batch: pyarrow.RecordBatch) -> None:
        topics = batch.column("topic")
        codes = topics.indices.to_numpy()
        columns = [batch.column(name).to_numpy() for name in UNIT_COLUMNS]
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
    """Yield the batches of a part file; nothing without the file."""
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
    """Put units with the result of single puts by the dispatcher: fills gaps, skips repeats."""
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
    """Put units whose tags codes go into ext units; units of light queues have none."""
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
