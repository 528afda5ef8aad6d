"""Units and index keys that the records of a log file require. Runs on executors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyrocketstore.columns._record_walk import BAD_PROPERTIES, RecordWalk, read_ext_units
from pyrocketstore.commit_log._scan import status_name
from pyrocketstore.consume_queue._units import MAX_ADDR
from pyrocketstore.consume_queue.ext import un_decorate
from pyrocketstore.consume_queue.table import is_safe_name
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE
from pyrocketstore.record.multi_dispatch import further_queues
from pyrocketstore.results import Status
from pyrocketstore.spark.encodable_errors import encodable
from pyrocketstore.spark.read.units import UNITS_AT_ONCE, RangeUnits
from pyrocketstore.spark.task_types import LogFile, QueueRange
from pyrocketstore.system.env import Env

if TYPE_CHECKING:
    import pyarrow

FACTS_AT_ONCE = 65536
EXT_UNIT_SIZE_MAX = 32767

#: A unit that a record requires. `required`: without the unit, consumers lose the message.
EXPECTED_DDL = (
    "brokerName string, topic string, queueId int, queueOffset bigint, commitLogOffset bigint, "
    "size int, tagsCode bigint, storeTimestamp bigint, required boolean"
)
#: A unit of a queue. Of an ext unit, the tags code and store time at its address, and whether that
#: exists.
UNITS_DDL = (
    "brokerName string, topic string, queueId int, queueOffset bigint, commitLogOffset bigint, "
    "size int, tagsCode bigint, extTimestamp bigint, isExt boolean, isExtThere boolean, path string"
)
#: A key of a record, as the index hashes it.
KEYS_DDL = "brokerName string, commitLogOffset bigint, keyHash int, storeTimestamp bigint"
#: Facts of a log file: `kind` is records, keys, skipped_properties, unqueued or unnameable; or,
#: with a position and a reason, bad_properties or problem. For problem, `count` is bytes.
LOG_DDL = "brokerName string, kind string, path string, position bigint, text string, count bigint"

Int64s = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class LogFileTask:
    """One file of a log up to `stop`, with the settings that decide about queues."""

    broker_name: str
    file: LogFile
    stop: int
    is_last: bool
    delay_levels: Mapping[int, int]
    enable_lmq: bool
    multi_dispatch: bool
    check_crc: bool = True
    #: {topic: byte of the log before which its messages are removed}
    min_offsets: Mapping[str, int] = dataclasses.field(default_factory=dict)


def expected_units(task: LogFileTask) -> Iterator[pyarrow.RecordBatch]:
    """Yield batches of EXPECTED_DDL. Raises StoreIOError."""
    for walk, names in record_walks(task):
        for _, batch in expected_batches(task, walk, names):
            yield batch


def expected_batches(
    task: LogFileTask, walk: RecordWalk, names: list[Any]
) -> Iterator[tuple[bool, pyarrow.RecordBatch]]:
    """Yield the units of a walk's records as batches of EXPECTED_DDL: first (False) those of their
    own queues, then (True) those of the queues that INNER_MULTI_ properties name."""
    queue = walk.column("queue")
    columns = [
        walk.column(name)
        for name in ("queue_offset", "phy_offset", "size", "tags_code", "store_timestamp")
    ]
    usable = np.array([is_queue_name(*name) for name in names] or [False], np.bool_)
    rows = np.flatnonzero((queue >= 0) & usable[queue])
    if len(rows):
        taken = [column[rows] for column in columns]
        yield False, _expected_batch(task, names, queue[rows], taken, True)
    multi = _multi(walk, task)
    if multi:
        extra = list(dict.fromkeys((name, queue_id) for _, name, queue_id, _ in multi))
        numbers = {name: at for at, name in enumerate(extra)}
        rows = np.array([row for row, *_ in multi], np.int64)
        taken = [column[rows] for column in columns]
        taken[0] = np.array([offset for *_, offset in multi], np.int64)
        queue = np.array([numbers[name, q] for _, name, q, _ in multi], np.int64)
        yield True, _expected_batch(task, extra, queue, taken, task.multi_dispatch)


def queued_rows(task: LogFileTask, walk: RecordWalk, names: list[Any]) -> Int64s:
    """Return the numbers of a walk's records that belong to a queue and are not removed."""
    queue = walk.column("queue")
    low = np.array([task.min_offsets.get(topic, 0) for topic, _ in names] or [0], np.int64)
    return np.flatnonzero((queue >= 0) & (walk.column("phy_offset") >= low[queue]))


def record_keys(task: LogFileTask) -> Iterator[pyarrow.RecordBatch]:
    """Yield batches of KEYS_DDL. Raises StoreIOError."""
    for walk, _ in record_walks(task):
        yield key_batch(task, walk)


def key_batch(task: LogFileTask, walk: RecordWalk) -> pyarrow.RecordBatch:
    """Return the keys of a walk's records, in the log's order, as a batch of KEYS_DDL."""
    import pyarrow as pa

    rows = walk.column("key_row")
    return pa.RecordBatch.from_pydict(
        {
            "brokerName": _same(task.broker_name, len(rows)),
            "commitLogOffset": walk.column("phy_offset")[rows],
            "keyHash": walk.column("key_hash").copy(),
            "storeTimestamp": walk.column("store_timestamp")[rows],
        }
    )


def log_facts(task: LogFileTask) -> Iterator[pyarrow.RecordBatch]:
    """Yield batches of LOG_DDL. Raises StoreIOError."""
    rows: list[tuple[str, str, str, int, str, int]] = []
    path = encodable(task.file.path)
    kinds = ("records", "keys", "skipped_properties", "unqueued", "unnameable")
    counts = dict.fromkeys(kinds, 0)

    def note(position: int, text: str, count: int) -> None:
        rows.append((task.broker_name, "problem", path, position, text, count))

    for walk, names in record_walks(task, note):
        queue = walk.column("queue")
        positions = walk.column("phy_offset")[walk.bad_properties] - task.file.from_offset
        rows += [
            (task.broker_name, "bad_properties", path, position, BAD_PROPERTIES, 1)
            for position in positions.tolist()
        ]
        if len(rows) >= FACTS_AT_ONCE:
            yield _facts_batch(rows)
            rows.clear()
        unusable = np.array([not is_queue_name(*name) for name in names] or [False], np.bool_)
        counts["records"] += walk.count
        counts["keys"] += walk.key_count
        counts["skipped_properties"] += walk.skipped_properties
        counts["unqueued"] += int(np.count_nonzero(queue < 0))
        counts["unnameable"] += int(np.count_nonzero((queue >= 0) & unusable[queue]))
    rows += [(task.broker_name, kind, "", -1, "", count) for kind, count in counts.items()]
    yield _facts_batch(rows)


def _facts_batch(rows: list[tuple[str, str, str, int, str, int]]) -> pyarrow.RecordBatch:
    import pyarrow as pa

    names = [part.split()[0] for part in LOG_DDL.split(", ")]
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return pa.RecordBatch.from_pydict(columns)


def is_queue_name(topic: str, queue_id: int) -> bool:
    """Whether the queue of a record can have a directory."""
    return is_safe_name(topic) and queue_id >= 0


def record_walks(task: LogFileTask, note: Any = None) -> Iterator[tuple[RecordWalk, list[Any]]]:
    """Yield the records of the file in chunks, each as a walk's columns with its queue names.

    Damaged ranges are skipped and reported to `note`: callable(position, reason, bytes).
    """
    path, base = task.file.path, task.file.from_offset
    walk = RecordWalk(task.delay_levels, task.stop, task.check_crc)
    end, status = 0, int(Status.OK)
    for begin, end, status in walk.ranges(Env(), path, base, task.stop):
        if status == Status.OK and walk.count:
            yield walk, walk.queue_names()
        elif status not in (Status.OK, Status.BLANK) and note is not None:
            text = f"{status_name(status)}; {end - begin} bytes hold no record"
            note(begin, text, end - begin)
    if status == Status.OK and not task.is_last and note is not None:
        note(end, "the file is not ended by a BLANK", 0)


def _multi(walk: RecordWalk, task: LogFileTask) -> list[tuple[int, str, int, int]]:
    """Records in further queues, by their INNER_MULTI_ properties: row, topic, queue id, offset."""
    found = []
    light = task.enable_lmq or not task.multi_dispatch
    for row, names, offsets, own_id in walk.multi:
        queues = further_queues(names, offsets, own_id, light_queues=light)
        for topic, queue_id, queue_offset in queues or ():
            if queue_offset is None or not 0 <= queue_offset < 1 << 62:
                continue
            if is_queue_name(topic, queue_id):
                found.append((row, topic, queue_id, queue_offset))
    return found


def _expected_batch(
    task: LogFileTask, names: list[Any], queue: Int64s, columns: list[Any], required: bool
) -> pyarrow.RecordBatch:
    """Return units as a batch. Those of removed messages are not required."""
    import pyarrow as pa

    topics = pa.array([topic for topic, _ in names], pa.string())
    ids = np.array([queue_id for _, queue_id in names], np.int32)
    low = np.array([task.min_offsets.get(topic, 0) for topic, _ in names], np.int64)
    offsets, phy_offsets, sizes, codes, times = columns
    return pa.RecordBatch.from_pydict(
        {
            "brokerName": _same(task.broker_name, len(queue)),
            "topic": topics.take(pa.array(queue, pa.int64())),
            "queueId": ids[queue],
            "queueOffset": offsets,
            "commitLogOffset": phy_offsets,
            "size": sizes,
            "tagsCode": codes,
            "storeTimestamp": times,
            "required": (phy_offsets >= low[queue]) & required,
        }
    )


def _same(text: str, count: int) -> pyarrow.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(text, pa.string()), count)


# ---- units of queues --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class UnitsTask:
    """A queue's range. Its ext units are in `ext_directory`, in files of `ext_size` bytes."""

    broker_name: str
    range: QueueRange
    ext_directory: str
    ext_size: int


def actual_units(task: UnitsTask) -> Iterator[pyarrow.RecordBatch]:
    """Yield batches of UNITS_DDL. Raises DataLossError, StoreIOError."""
    import pyarrow as pa

    env = Env()
    pinned = task.range
    units = RangeUnits(env, pinned, fail_on_data_loss=False)
    for start in range(pinned.start, pinned.stop, UNITS_AT_ONCE):
        stop = min(start + UNITS_AT_ONCE, pinned.stop)
        found = units.read(start, stop)
        offsets = np.arange(start, stop, dtype=np.int64)
        count = stop - start
        codes = found.tags_code.copy()
        times = np.zeros(count, np.int64)
        is_ext = (found.tags_code <= MAX_ADDR) & (found.size > 0)
        there = np.zeros(count, np.uint8)
        for row in np.flatnonzero(is_ext).tolist():
            _read_ext(env, task, row, codes, times, there)
        per_file = pinned.file_size // CQ_STORE_UNIT_SIZE
        first = offsets - offsets % per_file
        paths = {at: encodable(units.path_of(at)) for at in np.unique(first).tolist()}
        yield pa.RecordBatch.from_pydict(
            {
                "brokerName": _same(task.broker_name, count),
                "topic": _same(pinned.topic, count),
                "queueId": pa.repeat(pa.scalar(pinned.queue_id, pa.int32()), count),
                "queueOffset": offsets,
                "commitLogOffset": found.phy_offset,
                "size": found.size,
                "tagsCode": codes,
                "extTimestamp": times,
                "isExt": is_ext,
                "isExtThere": there != 0,
                "path": pa.array([paths[at] for at in first.tolist()], pa.string()),
            }
        )


def _read_ext(
    env: Env,
    task: UnitsTask,
    row: int,
    codes: Int64s,
    times: Int64s,
    there: npt.NDArray[np.uint8],
) -> None:
    """Replace the address in `codes[row]` by the tags code at the address, if that exists."""
    real = un_decorate(int(codes[row]))
    position = real % task.ext_size
    path = f"{task.ext_directory}/{real - position:020d}"
    data = env.read_part(path, position, min(EXT_UNIT_SIZE_MAX, task.ext_size - position))
    if data:
        one = slice(row, row + 1)
        code, time = codes[one].copy(), times[one].copy()
        read_ext_units(data, np.zeros(1, np.int64), code, time, there[one])
        if there[row]:
            codes[one], times[one] = code, time
