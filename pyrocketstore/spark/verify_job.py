"""Verify on Spark: log, queues and index held against each other, by joins.

For stores that one machine would check for too long. It finds what `pyrocketstore verify` finds of
log, properties, units, ext units and index entries; the chains, slots and headers within an index
file are the latter's business.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyrocketstore._verify import differing_units
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.opening_problems import opening_problems
from pyrocketstore.queue_units import CQ_STORE_UNIT_SIZE, PRE_BLANK_SIZE
from pyrocketstore.spark.border import encodable, guarded
from pyrocketstore.spark.log_demands import (
    KEYS_DDL,
    LOG_DDL,
    UNITS_DDL,
    WANTED_DDL,
    LogFileTask,
    UnitsTask,
    actual_units,
    log_facts,
    record_keys,
    wanted_units,
)
from pyrocketstore.spark.options import BATCH, SourceOptions, StorePlace, read_options
from pyrocketstore.spark.planning import ENTRY_SIZE, INDEX_HEADER_SIZE, plan_index
from pyrocketstore.spark.snapshot import QueueRange, StoreSnapshot
from pyrocketstore.spark.tables import read_index
from pyrocketstore.verify_report import Problem, Verdict

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame, SparkSession

_INDEX_COLUMNS = MappingProxyType(
    {
        "brokerName": "string",
        "commitLogOffset": "bigint",
        "keyHash": "int",
        "timeDiffSec": "int",
        "indexNo": "int",
        "fileName": "string",
        "beginTimestamp": "timestamp",
    }
)
_PROBLEMS_DDL = (
    "kind string, brokerName string, path string, position bigint, text string, count bigint"
)
#: Verdicts that only say that something is missing.
_MISSING = ("missing", "missing_keys")
#: Problems that have a count of their own, and its name.
_COUNTED_PROBLEMS = MappingProxyType(
    {
        "bad_properties": "bad_properties",
        "missing": "missing_units",
        "missing_keys": "missing_keys",
    }
)
MAX_TIME_DIFF = 2**31 - 1
_NO_END = 2**62


@dataclasses.dataclass(frozen=True)
class VerifyResult(Verdict):
    """What was found; `consistent`, `complete` and `ok` follow from it as in VerifyReport.

    `problems` has kind ("log", "queue", "ext" or "index"), brokerName, path, position, text, and
    count: how many units or keys it stands for. `counts` are named as in VerifyReport:
    problem_count is the number of all problems, missing_count of those that only say that units or
    keys are missing. `index_unchecked` says why an index was not looked at, "" where each was.
    `close` lets Spark drop what it keeps of them.
    """

    problems: DataFrame
    counts: dict[str, int]
    verdicts: DataFrame
    index_unchecked: str = ""

    @property
    def problem_count(self) -> int:
        """All problems."""
        return self.counts["problem_count"]

    @property
    def missing_count(self) -> int:
        """Problems that only say that units or keys are missing."""
        return self.counts["missing_count"]

    @property
    def not_indexed(self) -> int:
        """Records with keys that lie where no index file is."""
        return self.counts.get("not_indexed", 0)

    def close(self) -> None:
        """Drop what Spark keeps; `problems` would be computed again."""
        self.verdicts.unpersist()


@dataclasses.dataclass(frozen=True)
class _Store:
    """What the driver knows of one store, for the tasks and the judgement.

    `queue_root` and `queue_file_size` say where a unit would be; `covered` the parts of the log
    that index files cover, the last one without an end; `rebuilt` the units that only recovery has:
    path, position, text, count, and whether the log contradicts what is on disk; `opening` what the
    opening found wrong.
    """

    broker_name: str
    low: int
    end: int
    queue_root: str
    queue_file_size: int
    log_tasks: tuple[LogFileTask, ...]
    units_tasks: tuple[UnitsTask, ...]
    index_tasks: tuple[Any, ...]
    has_index: bool
    covered: tuple[tuple[int, int], ...]
    index_unchecked: str
    rebuilt: tuple[tuple[str, int, str, int, bool], ...]
    opening: tuple[Problem, ...]


def verify(
    spark: SparkSession,
    stores: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]],
    *,
    broker_conf: str | os.PathLike[str] | None = None,
) -> VerifyResult:
    """Hold the log, the queues and the index of stores against each other.

    Parameters
    ----------
    stores : a directory, or label -> directory; each is a path or a file: URI
    broker_conf : of one store, where its sizes and settings cannot be seen in the files

    Raises
    ------
    StoreFormatError: no store, or index files with several numbers of slots. StoreIOError; on
    executors it comes as pyspark's PythonException.

    A store that is being written to is checked up to what was dispatched when the call began.
    """
    labelled = stores if isinstance(stores, Mapping) else {"store": stores}
    options = _options(labelled, broker_conf)
    found = []
    for place in options.places:
        with contextlib.closing(StoreSnapshot(place, options.broker_conf, "skip")) as snapshot:
            found.append(_look(place, snapshot, options))
    verdicts = _log_verdicts(spark, found).unionByName(_queue_verdicts(spark, found))
    if any(store.has_index for store in found):
        verdicts = verdicts.unionByName(_index_verdicts(spark, found))
    verdicts = verdicts.persist()
    counts = _counts(verdicts)
    problems = verdicts.where("text IS NOT NULL").selectExpr(
        "kind", "brokerName", "path", "position", "text", "n AS count"
    )
    rebuilt = [
        ("queue", store.broker_name, *each[:-1]) for store in found for each in store.rebuilt
    ]
    opening = [(store.broker_name, each) for store in found for each in store.opening]
    rows = rebuilt + [
        (each.kind, label, encodable(each.path), each.position, encodable(each.text), each.count)
        for label, each in opening
    ]
    if rows:
        problems = problems.unionByName(spark.createDataFrame(rows, _PROBLEMS_DDL))
    counts["problem_count"] += sum(row[-1] for row in rows)
    counts["missing_count"] += sum(
        count for store in found for *_, count, is_wrong in store.rebuilt if not is_wrong
    )
    unchecked = "; ".join(store.index_unchecked for store in found if store.index_unchecked)
    return VerifyResult(problems, counts, verdicts, unchecked)


def _options(
    stores: Mapping[str, str | os.PathLike[str]], broker_conf: str | os.PathLike[str] | None
) -> SourceOptions:
    texts = {"includeSystemTopics": "true"}
    texts["stores"] = json.dumps({label: os.fspath(root) for label, root in stores.items()})
    texts |= {"failOnDataLoss": "false", "onCorrupt": "skip"}
    if broker_conf is not None:
        texts["brokerConf"] = os.fspath(broker_conf)
    return read_options(texts, BATCH)


# ---- on the driver: what there is ----------------------------------------------------------------


def _look(place: StorePlace, snapshot: StoreSnapshot, options: SourceOptions) -> _Store:
    store = snapshot.store
    label = place.broker_name
    end = snapshot.max_phy_offset
    config = store.config
    files = snapshot.log_files()
    tasks = tuple(
        LogFileTask(
            broker_name=label,
            file=file,
            stop=min(file.size, end - file.from_offset),
            is_last=file.from_offset + file.size >= end,
            delay_levels=dict(store.commit_log.delay_levels),
            enable_lmq=config.enable_lmq,
            multi_dispatch=config.enable_multi_dispatch,
        )
        for file in files
    )
    table = store.queue_table
    units = tuple(
        UnitsTask(
            label,
            _from_first_file(snapshot, queue),
            f"{table.ext_path}/{queue.topic}/{queue.queue_id}",
            config.mapped_file_size_consume_queue_ext,
        )
        for queue in store.consume_queues()
    )
    unit_size = config.mapped_file_size_consume_queue
    has_index = bool(config.message_index_enable)
    index_error = snapshot.index_service.geometry_error if has_index else None
    index_tasks = plan_index(snapshot, options) if has_index and index_error is None else ()
    return _Store(
        broker_name=label,
        low=snapshot.min_phy_offset,
        end=end,
        queue_root=encodable(f"{config.store_path_root_dir}/consumequeue"),
        queue_file_size=-(-unit_size // CQ_STORE_UNIT_SIZE) * CQ_STORE_UNIT_SIZE,
        log_tasks=tasks,
        units_tasks=units,
        index_tasks=tuple(index_tasks),
        has_index=has_index,
        covered=_covered(snapshot) if has_index else (),
        index_unchecked="" if index_error is None else f"{label}: {index_error}",
        rebuilt=_rebuilt(snapshot),
        opening=tuple(opening_problems(store)),
    )


def _from_first_file(snapshot: StoreSnapshot, queue: ConsumeQueue) -> QueueRange:
    """All units of a queue's files, those too that name what is deleted."""
    found = snapshot.whole_range(queue)
    files = queue.mapped_file_queue.mapped_files
    first = files[0].file_from_offset // CQ_STORE_UNIT_SIZE if files else found.start
    return dataclasses.replace(found, start=min(first, found.start))


def _covered(snapshot: StoreSnapshot) -> tuple[tuple[int, int], ...]:
    """What each index file covers, by its header and its entries; the last has no end."""
    found = []
    for file in snapshot.index_service.files:
        if file.index_count <= 1:
            continue
        ends = [int(file.begin_phy_offset), int(file.end_phy_offset)]
        if file.mode == "memory":
            file.open_for_writing()
        for number in (1, int(file.index_count) - 1):
            position = INDEX_HEADER_SIZE + 4 * file.hash_slot_num + number * ENTRY_SIZE
            ends.append(int.from_bytes(file.mapped_file.read(position + 4, 8), "big", signed=True))
        found.append((min(ends), max(ends)))
    if found:
        found[-1] = (found[-1][0], _NO_END)
    return tuple(found)


def _rebuilt(snapshot: StoreSnapshot) -> tuple[tuple[str, int, str, int, bool], ...]:
    """Units that only recovery has: problems where the store was stopped cleanly, or where the log
    contradicts what is on disk (True at the end)."""
    plan = snapshot.store.plan
    if plan is None:
        return ()
    found = []
    for queue in snapshot.store.consume_queues():
        repairs = list(plan.repairs.get((queue.topic, queue.queue_id), ()))
        for file in queue.mapped_file_queue.mapped_files:
            if file.mode != "memory":
                continue
            path = f"{queue.mapped_file_queue.store_path}/{file.file_from_offset:020d}"
            env = snapshot.store.env
            disk = env.read_file(path, size=file.wrote) if env.exists(path) else b""
            units = differing_units(file.read(0, file.wrote), disk)
            first = file.file_from_offset // CQ_STORE_UNIT_SIZE
            is_repair = np.isin(first + units, np.array(repairs, np.int64))
            for is_wrong, some in ((True, units[is_repair]), (False, units[~is_repair])):
                if not (is_wrong or plan.clean):
                    continue
                for run in np.split(some, np.flatnonzero(np.diff(some) != 1) + 1):
                    if len(run):
                        what = "wrong" if is_wrong else "missing or wrong"
                        text = (
                            f"{len(run)} unit(s) from {first + int(run[0])} on are {what} on disk"
                        )
                        at = int(run[0]) * CQ_STORE_UNIT_SIZE
                        found.append((encodable(path), at, text, len(run), is_wrong))
    return tuple(found)


def _over(
    spark: SparkSession,
    tasks: Sequence[Any],
    work: Callable[[Any], Iterator[pyarrow.RecordBatch]],
    ddl: str,
) -> DataFrame:
    """The rows that `work` gives of each task, on the executors."""
    count = max(1, len(tasks))
    run = functools.partial(_run, tasks=tuple(tasks), work=work)
    return spark.range(0, count, 1, count).mapInArrow(run, ddl)


@guarded
def _run(
    batches: Iterator[pyarrow.RecordBatch],
    tasks: tuple[Any, ...],
    work: Callable[[Any], Iterator[pyarrow.RecordBatch]],
) -> Iterator[pyarrow.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            if number < len(tasks):
                yield from work(tasks[number])


def _index_entries(named: tuple[str, Any]) -> Iterator[pyarrow.RecordBatch]:
    label, task = named
    return read_index(task, _INDEX_COLUMNS, label)


# ---- the judgement -------------------------------------------------------------------------------


def _limits(spark: SparkSession, stores: Sequence[_Store]) -> DataFrame:
    rows = [(s.broker_name, s.low, s.end, s.queue_root, s.queue_file_size) for s in stores]
    ddl = "brokerName string, low bigint, end bigint, root string, fileSize bigint"
    return spark.createDataFrame(rows, ddl)


def _counts(verdicts: DataFrame) -> dict[str, int]:
    """Verdict -> how many; problem_count and missing_count are of those that have a text."""
    from pyspark.sql import functions as F

    is_problem = F.col("text").isNotNull()
    sums = F.sum("weight").alias("weight"), F.sum("n").alias("n")
    counts: dict[str, int] = {"problem_count": 0, "missing_count": 0}
    for row in verdicts.groupBy("verdict", is_problem.alias("isProblem")).agg(*sums).collect():
        name, weight = row["verdict"], int(row["weight"])
        if row["isProblem"]:
            counts["problem_count"] += weight
            counts["missing_count"] += weight if name in _MISSING else 0
            name = _COUNTED_PROBLEMS.get(name)
            weight = int(row["n"])
        if name is not None:
            counts[name] = counts.get(name, 0) + weight
    return counts


def _grouped(rows: DataFrame) -> DataFrame:
    """Verdicts put together: what is fine becomes a row for each kind of it."""
    from pyspark.sql import functions as F

    keys = ["verdict", "kind", "brokerName", "path", "position", "text"]
    return rows.groupBy(*keys).agg(F.sum("n").alias("n"), F.sum("weight").alias("weight"))


def _log_verdicts(spark: SparkSession, stores: Sequence[_Store]) -> DataFrame:
    tasks = [task for store in stores for task in store.log_tasks]
    return _over(spark, tasks, log_facts, LOG_DDL).selectExpr(
        "kind AS verdict",
        "'log' AS kind",
        "brokerName",
        "if(text <> '', path, null) AS path",
        "if(text <> '', position, null) AS position",
        "if(text <> '', text, null) AS text",
        "if(kind = 'problem', 1, count) AS n",
        "if(kind = 'problem', 1, count) AS weight",
    )


def _damaged(spark: SparkSession, stores: Sequence[_Store]) -> list[tuple[str, int, int]]:
    """Ranges of the logs that hold no record: label, begin, end."""
    starts = {
        encodable(task.file.path): task.file.from_offset for s in stores for task in s.log_tasks
    }
    tasks = [task for store in stores for task in store.log_tasks]
    rows = _over(spark, tasks, log_facts, LOG_DDL).where("kind = 'problem' AND count > 0")
    return [
        (row["brokerName"], starts[row["path"]] + row["position"],
         starts[row["path"]] + row["position"] + row["count"])
        for row in rows.collect()
    ]  # fmt: skip


def _in_ranges(ranges: Iterable[tuple[str, int, int]], offset: Column) -> Column:
    """Whether a place in the log is in one of the ranges (label, begin, end); never null.

    The ranges are searched in Python: as an expression, thousands of them overflow Spark's stack.
    """
    from pyspark.sql import functions as F

    merged: list[tuple[str, int, int]] = []
    for label, begin, end in sorted(ranges):
        if merged and merged[-1][0] == label and begin <= merged[-1][2]:
            merged[-1] = (label, merged[-1][1], max(merged[-1][2], end))
        else:
            merged.append((label, begin, end))
    if not merged:
        return F.lit(False)
    find = functools.partial(_are_in_ranges, ranges=_Ranges(merged))
    return _of_places("in_ranges", find, "boolean", offset)


def _log_place(tasks: Iterable[LogFileTask], offset: Column) -> Column:
    """The path of the log file that has a place, and the position there; null where none has."""
    files = sorted((t.broker_name, t.file.from_offset, t.file.size, t.file.path) for t in tasks)
    ranges = _Ranges([(label, begin, begin + size) for label, begin, size, _ in files])
    paths = tuple(encodable(path) for *_, path in files)
    find = functools.partial(_log_places, ranges=ranges, paths=paths)
    return _of_places("log_place", find, "struct<path:string,position:bigint>", offset)


def _of_places(name: str, find: Callable[..., Any], ddl: str, offset: Column) -> Column:
    """The column of `find`(labels, offsets), which are Arrow arrays of the same length."""
    import pyarrow as pa
    from pyspark.sql import functions as F
    from pyspark.sql.pandas import functions

    @guarded
    def apply(labels: Any, offsets: Any) -> Any:
        return find(labels, offsets)

    # What kind of function it is Spark reads from these types, which are not known without it.
    apply.__annotations__ = dict.fromkeys(("labels", "offsets", "return"), pa.Array)
    apply.__name__ = name
    arrow_udf: Any = functions.arrow_udf
    made: Column = arrow_udf(apply, ddl)(F.col("brokerName"), offset)
    return made


class _Ranges:
    """Ranges (label, begin, end) that do not overlap, in order. Threads: any."""

    def __init__(self, ranges: Sequence[tuple[str, int, int]]) -> None:
        self.begins = np.array([begin for _, begin, _ in ranges], np.int64)
        self.ends = np.array([end for *_, end in ranges], np.int64)
        self._rows: dict[str, tuple[int, int]] = {}
        for row, (label, *_) in enumerate(ranges):
            self._rows[label] = (self._rows.get(label, (row, row))[0], row + 1)

    def find(self, labels: pyarrow.Array, offsets: pyarrow.Array) -> npt.NDArray[np.int64]:
        """The number of the range that each place is in (int64[N]); -1 for none."""
        import pyarrow.compute as pc

        places = np.asarray(offsets.fill_null(0))
        found = np.full(len(places), -1, np.int64)
        for label, (first, stop) in self._rows.items():
            mine = pc.and_(pc.equal(labels, label), offsets.is_valid()).fill_null(False)
            rows = np.flatnonzero(mine.to_numpy(zero_copy_only=False))
            number = first - 1 + np.searchsorted(self.begins[first:stop], places[rows], "right")
            inside = (number >= first) & (places[rows] < self.ends[number])
            found[rows[inside]] = number[inside]
        return found


def _are_in_ranges(
    labels: pyarrow.Array, offsets: pyarrow.Array, *, ranges: _Ranges
) -> pyarrow.Array:
    import pyarrow as pa

    return pa.array(ranges.find(labels, offsets) >= 0, pa.bool_())


def _log_places(
    labels: pyarrow.Array, offsets: pyarrow.Array, *, ranges: _Ranges, paths: tuple[str, ...]
) -> pyarrow.Array:
    import pyarrow as pa

    number = ranges.find(labels, offsets)
    is_none = pa.array(number < 0)
    path = pa.array(paths, pa.string()).take(pa.array(number, mask=number < 0))
    position = np.asarray(offsets.fill_null(0)) - ranges.begins[number] if paths else number
    return pa.StructArray.from_arrays(
        [path, pa.array(position, pa.int64())], ["path", "position"], mask=is_none
    )


def _queue_verdicts(spark: SparkSession, stores: Sequence[_Store]) -> DataFrame:
    """One verdict for each place in a queue that a record wants or that holds a unit."""
    from pyspark.sql import functions as F

    logs = [task for store in stores for task in store.log_tasks]
    units = [task for store in stores for task in store.units_tasks]
    record = "struct(commitLogOffset AS phy, size, tagsCode, storeTimestamp AS ts, required)"
    unit = (
        "struct(commitLogOffset AS phy, size, tagsCode, extTimestamp AS ts, isExt, "
        "isExtThere, path)"
    )
    place = ["brokerName", "topic", "queueId", "queueOffset"]
    wanted = _over(spark, logs, wanted_units, WANTED_DDL).selectExpr(
        *place, f"{record} AS w", "cast(null AS struct<phy bigint, size int, tagsCode bigint, "
        "ts bigint, isExt boolean, isExtThere boolean, path string>) AS u",
    )  # fmt: skip
    actual = _over(spark, units, actual_units, UNITS_DDL).selectExpr(
        *place, "cast(null AS struct<phy bigint, size int, tagsCode bigint, ts bigint, "
        "required boolean>) AS w", f"{unit} AS u",
    )  # fmt: skip
    blank = f"(u.size = {PRE_BLANK_SIZE} AND u.phy = 0 AND u.tagsCode = 0)"
    damage = _damaged(spark, stores)
    grouped = (
        wanted.unionByName(actual)
        .groupBy(*place)
        .agg(F.collect_list("w").alias("w"), F.max("u").alias("u"))
        .join(F.broadcast(_limits(spark, stores)), "brokerName")
        .withColumn("isBlank", F.expr(f"coalesce({blank}, false)"))
        .withColumn("there", F.expr("coalesce(u.size > 0, false) AND NOT isBlank"))
        .withColumn("same", F.expr("if(there, get(filter(w, x -> x.phy = u.phy), 0), null)"))
        .withColumn("asked", F.expr("filter(w, x -> x.required)"))
        .withColumn("later", F.expr("filter(asked, x -> x.phy > u.phy)"))
        .withColumn("hurt", _in_ranges(damage, F.col("u.phy")))
    )
    judged = grouped.withColumn("verdict", F.expr(_UNIT_VERDICT))
    told = judged.withColumn("text", F.expr(_UNIT_TEXT))
    at = f"queueOffset * {CQ_STORE_UNIT_SIZE}"
    missing = f"format_string('%s/%s/%d/%020d', root, topic, queueId, {at} - {at} % fileSize)"
    path = f"if(text IS NULL, null, coalesce(u.path, {missing}))"
    weight = (
        "CASE verdict WHEN 'misplaced' THEN cast(size(asked) AS bigint) "
        "WHEN 'outdated' THEN cast(size(later) AS bigint) ELSE 1L END"
    )
    counted = [
        _named("verdict", path, f"{at} % fileSize", "1L", weight),
        *(
            _named(f"'{name}'", "null", "null", count, count)
            for name, count in (
                ("units", "if(u IS NULL, 0L, 1L)"),
                ("ext_units", "if(coalesce(u.isExt, false), 1L, 0L)"),
                ("repeated", "if(same IS NULL, 0L, cast(size(w) - 1 AS bigint))"),
            )
        ),
    ]  # fmt: skip
    return _grouped(told.selectExpr(f"inline(array({', '.join(counted)}))"))


def _named(verdict: str, path: str, position: str, n: str, weight: str) -> str:
    """A row of verdicts as an expression of SQL; it has a text where `verdict` is the column."""
    is_own = verdict == "verdict"
    text = "text" if is_own else "cast(null AS string)"
    kind = "if(verdict IN ('ext_gone', 'ext_time'), 'ext', 'queue')" if is_own else "'queue'"
    return (
        f"named_struct('verdict', {verdict}, 'kind', {kind}, 'brokerName', brokerName, "
        f"'path', cast({path} AS string), "
        f"'position', cast(if({text} IS NULL, null, {position}) AS bigint), "
        f"'text', {text}, 'n', {n}, 'weight', {weight})"
    )


_UNIT_VERDICT = """
    CASE
    WHEN same IS NOT NULL AND u.size <> same.size THEN 'bad_size'
    WHEN same IS NOT NULL AND u.isExt AND NOT u.isExtThere THEN 'ext_gone'
    WHEN same IS NOT NULL AND u.isExt AND u.ts <> same.ts THEN 'ext_time'
    WHEN same IS NOT NULL AND u.tagsCode <> same.tagsCode THEN 'bad_tags'
    WHEN same IS NOT NULL AND size(later) > 0 THEN 'outdated'
    WHEN same IS NOT NULL THEN 'right'
    WHEN NOT there AND size(asked) > 0 THEN 'missing'
    WHEN size(asked) > 0 THEN 'misplaced'
    WHEN u IS NULL THEN 'not_asked'
    WHEN isBlank THEN 'pre_blank'
    WHEN NOT there THEN 'empty'
    WHEN hurt THEN 'units_in_damage'
    WHEN u.phy < low THEN 'expired'
    ELSE 'strange' END
"""
_UNIT_TEXT = """
    CASE verdict
    WHEN 'bad_size' THEN format_string(
        'unit %d has the size %d, but the record has %d bytes', queueOffset, u.size, same.size)
    WHEN 'bad_tags' THEN format_string(
        'unit %d has the tags code %d, but the record''s is %d',
        queueOffset, u.tagsCode, same.tagsCode)
    WHEN 'ext_gone' THEN format_string(
        'unit %d names an ext unit that is not there', queueOffset)
    WHEN 'ext_time' THEN format_string(
        'the ext unit of unit %d has the store time %d, but the record''s is %d',
        queueOffset, u.ts, same.ts)
    WHEN 'missing' THEN format_string(
        'unit %d is missing, though the log has the message at %d', queueOffset, get(asked, 0).phy)
    WHEN 'misplaced' THEN format_string(
        'unit %d names %d bytes at %d of the log, but its message is at %d',
        queueOffset, u.size, u.phy, get(asked, 0).phy)
    WHEN 'outdated' THEN format_string(
        'unit %d names %d bytes at %d of the log, but a later message of it is at %d',
        queueOffset, u.size, u.phy, get(later, 0).phy)
    WHEN 'empty' THEN format_string('unit %d is empty', queueOffset)
    WHEN 'strange' THEN format_string(
        'unit %d names %d bytes at %d of the log, where no message of this queue and offset is',
        queueOffset, u.size, u.phy)
    END
"""


def _index_verdicts(spark: SparkSession, stores: Sequence[_Store]) -> DataFrame:
    """One verdict for each entry, and for each record whose keys are not in the index."""
    from pyspark.sql import functions as F

    with_index = [store for store in stores if store.has_index]
    logs = [task for store in with_index for task in store.log_tasks]
    tasks = [(store.broker_name, task) for store in with_index for task in store.index_tasks]
    place = ["brokerName", "commitLogOffset", "keyHash"]
    entry = "struct<no int, diff int, path string, begin bigint>"
    keys = _over(spark, logs, record_keys, KEYS_DDL).selectExpr(
        *place, "storeTimestamp AS ts", f"cast(null AS {entry}) AS e"
    )
    columns = ", ".join(f"`{name}` {kind}" for name, kind in _INDEX_COLUMNS.items())
    entries = _over(spark, tasks, _index_entries, columns).selectExpr(
        *place, "cast(null AS bigint) AS ts",
        "struct(indexNo AS no, timeDiffSec AS diff, fileName AS path, "
        "unix_millis(beginTimestamp) AS begin) AS e",
    )  # fmt: skip
    grouped = (
        keys.unionByName(entries)
        .groupBy(*place)
        .agg(
            F.collect_list("e").alias("entries"),
            F.max("ts").alias("ts"),
            F.count("ts").alias("keys"),
        )
        .join(F.broadcast(_limits(spark, with_index)), "brokerName")
        .withColumn("hurt", _in_ranges(_damaged(spark, with_index), F.col("commitLogOffset")))
    )
    passed = min(MAX_TIME_DIFF, 2**31 - 1)
    expected = f"greatest(0L, least({passed}L, if(e.begin > 0, (ts - e.begin) div 1000, 0L)))"
    each = (
        grouped.where("size(entries) > 0")
        .selectExpr("*", "explode(entries) AS e")
        .withColumn("expected", F.expr(expected))
        .withColumn("verdict", F.expr(_ENTRY_VERDICT))
        .withColumn("text", F.expr(_ENTRY_TEXT))
    )
    slots = {task.path: task.hash_slot_num for store in with_index for task in store.index_tasks}
    slot_counts = set(slots.values())
    if len(slot_counts) > 1:
        raise StoreFormatError("verify: index files with several numbers of slots; one at a time")
    entries_at = INDEX_HEADER_SIZE + 4 * next(iter(slot_counts), 0)
    right = each.selectExpr(
        "verdict", "'index' AS kind", "brokerName", "if(text IS NULL, null, e.path) AS path",
        f"if(text IS NULL, null, {entries_at} + e.no * {ENTRY_SIZE}L) AS position", "text",
        "1L AS n", "1L AS weight",
    )  # fmt: skip
    return _grouped(right).unionByName(_missing_keys(grouped, with_index))


_ENTRY_VERDICT = """
    CASE
    WHEN ts IS NOT NULL AND e.no > 1 AND e.diff <> expected THEN 'bad_time'
    WHEN ts IS NOT NULL THEN 'index_right'
    WHEN hurt THEN 'entries_in_damage'
    WHEN commitLogOffset >= 0 AND commitLogOffset < low THEN 'index_expired'
    ELSE 'no_key' END
"""
_ENTRY_TEXT = """
    CASE verdict
    WHEN 'bad_time' THEN format_string(
        'entry %d is %d s old, its record %d s', e.no, e.diff, expected)
    WHEN 'no_key' THEN format_string(
        'entry %d names %d of the log, where no record has such a key', e.no, commitLogOffset)
    END
"""


def _missing_keys(grouped: DataFrame, stores: Sequence[_Store]) -> DataFrame:
    """Records with keys that are not in the index, where an index file covers their place."""
    from pyspark.sql import functions as F

    # What an index file covers has its last place too, which may be any number in a damaged one.
    ranges = [
        (store.broker_name, first, min(last, _NO_END) + 1)
        for store in stores
        for first, last in store.covered
    ]
    tasks = [task for store in stores for task in store.log_tasks]
    offset = F.col("commitLogOffset")
    records = (
        grouped.where("size(entries) = 0 AND ts IS NOT NULL")
        .groupBy("brokerName", "commitLogOffset")
        .agg(F.sum("keys").alias("n"))
        .withColumn("covered", _in_ranges(ranges, offset))
        .withColumn("place", _log_place(tasks, offset))
    )
    text = F.format_string("%d key(s) of the record are not in the index", "n")
    return records.select(
        F.when(F.col("covered"), "missing_keys").otherwise("not_indexed").alias("verdict"),
        F.lit("index").alias("kind"),
        "brokerName",
        F.when(F.col("covered"), F.col("place.path")).alias("path"),
        F.when(F.col("covered"), F.col("place.position")).alias("position"),
        F.when(F.col("covered"), text).alias("text"),
        "n",
        F.lit(1).cast("bigint").alias("weight"),
    )
