"""Executor half of rebuild: copy a log file, and write its units and keys to part files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrocketstore.spark.jobs.expected_entries import (
    LogFileTask,
    expected_batches,
    key_batch,
    queued_rows,
    record_walks,
)
from pyrocketstore.system.env import O_RDWR, Env, parent_directory

if TYPE_CHECKING:
    import pyarrow

#: Units that a task sorts, and that the driver has in memory, at a time.
UNITS_AT_ONCE = 1 << 18
PART_DDL = (
    "number int, records bigint, units bigint, keys bigint, lastRecord bigint, lastStored bigint, "
    "lastQueued bigint, skippedPositions array<bigint>, skippedSizes array<bigint>, "
    "skippedTexts array<string>"
)
UNIT_COLUMNS = ("queueId", "queueOffset", "commitLogOffset", "size", "tagsCode", "storeTimestamp")


@dataclasses.dataclass(frozen=True)
class FileTask:
    """A file of the log to copy, up to the stop of `log`."""

    number: int
    log: LogFileTask
    target: str
    staging: str
    with_index: bool


def read_file(task: FileTask) -> Iterator[pyarrow.RecordBatch]:
    """Copy the file and write its part files, each atomically: a task may run twice.

    Yields one row of PART_DDL.
    """
    import pyarrow as pa

    _copy_log(task)
    skipped: list[tuple[int, int, str]] = []

    def note(position: int, text: str, count: int) -> None:
        if count > 0:
            skipped.append((position, count, text))

    records = units = keys = 0
    last_record = last_stored = last_queued = -1
    with _PartFile(task, "units") as unit_file, _PartFile(task, "keys") as key_file:
        held = _Held(unit_file)
        for walk, names in record_walks(task.log, note):
            records += walk.count
            last_record = int(walk.column("phy_offset")[-1])
            times = walk.column("store_timestamp")
            last_stored = int(times[-1])
            queued = queued_rows(task.log, walk, names)
            if len(queued):
                last_queued = int(times[queued[-1]])
            held.begin_walk()
            for light, batch in expected_batches(task.log, walk, names):
                needed = batch.filter(batch.column("required"))
                if needed.num_rows:
                    held.add(needed, light)
                    units += needed.num_rows
            if task.with_index and walk.key_count:
                key_file.write(key_batch(task.log, walk).drop_columns(["brokerName"]))
                keys += walk.key_count
        held.write()
    positions, sizes, texts = zip(*skipped, strict=True) if skipped else ((), (), ())
    row = {
        "number": task.number,
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
    types = {
        "number": pa.int32(),
        "skippedPositions": pa.list_(pa.int64()),
        "skippedSizes": pa.list_(pa.int64()),
        "skippedTexts": pa.list_(pa.string()),
    }
    schema = pa.schema([(name, types.get(name, pa.int64())) for name in row])
    yield pa.RecordBatch.from_pydict({name: [value] for name, value in row.items()}, schema)


def _copy_log(task: FileTask) -> None:
    env = Env()
    file = task.log.file
    temporary = f"{task.staging}/{os.path.basename(task.target)}.{_unique()}"
    env.copy_range(file.path, temporary, 0, task.log.stop)
    if task.log.stop < file.size:
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
    """An Arrow stream of batches, renamed to its path at the end; no file without a batch."""

    def __init__(self, task: FileTask, kind: str) -> None:
        self.path = part_path(task, kind)
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


def part_path(task: FileTask, kind: str) -> str:
    """The part file of a task: its "units" or its "keys"."""
    return f"{task.staging}/{task.number:08d}.{kind}"


class _Held:
    """Buffers units to write them by queue, in the engine's order: that of the log, and of one
    record its own queue first."""

    def __init__(self, file: _PartFile) -> None:
        self._file = file
        self._batches: list[pyarrow.RecordBatch] = []
        self._count = 0

    def begin_walk(self) -> None:
        """Start a walk over later records than those in memory."""
        if self._count >= UNITS_AT_ONCE:
            self.write()

    def add(self, batch: pyarrow.RecordBatch, light: bool) -> None:
        """Hold a batch of EXPECTED_DDL; `light`: records name its queues in their properties."""
        import pyarrow as pa

        kept = batch.select(["topic", *UNIT_COLUMNS])
        flags = pa.repeat(pa.scalar(light), batch.num_rows)
        self._batches.append(kept.append_column("light", flags))
        self._count += batch.num_rows

    def write(self) -> None:
        """Write the units in memory."""
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
