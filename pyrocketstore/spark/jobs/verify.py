"""Verify on Spark: check the log, the queues and the index of stores against each other by joins.

For stores that one machine would check for too long. It finds the problems of the log, properties,
units, ext units, index entries, checkpoint and config that `pyrocketstore verify` finds. Only that
command checks the chains, slots and header of an index file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.units import (
    CQ_STORE_UNIT_SIZE,
    PRE_BLANK_SIZE,
    differing_units,
)
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.index._file import INDEX_SIZE
from pyrocketstore.index.directory import entry_position
from pyrocketstore.spark.encodable_errors import encodable, guarded
from pyrocketstore.spark.jobs.expected_entries import (
    EXPECTED_DDL,
    KEYS_DDL,
    LOG_DDL,
    UNITS_DDL,
    LogFileTask,
    UnitsTask,
    actual_units,
    expected_units,
    log_facts,
    record_keys,
)
from pyrocketstore.spark.jobs.verify_rows import (
    INDEX_COLUMNS,
    Ranges,
    are_in_ranges,
    index_entries,
    log_places,
)
from pyrocketstore.spark.options import BATCH, SourceOptions, StorePlace, read_options
from pyrocketstore.spark.packages import require_packages
from pyrocketstore.spark.plan.snapshot import StoreSnapshot
from pyrocketstore.spark.plan.task_splitting import plan_index
from pyrocketstore.spark.read.worker import map_tasks
from pyrocketstore.spark.task_types import IndexTask, QueueRange
from pyrocketstore.verify.opening_problems import opening_problems
from pyrocketstore.verify.report import Problem, Verdict

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PROBLEMS_DDL = (
    "kind string, brokerName string, path string, position bigint, text string, count bigint"
)
#: Verdicts for missing units and keys.
_MISSING = ("missing", "missing_keys")
#: Problems with a count of their own, and its name.
_COUNTED_PROBLEMS = MappingProxyType(
    {
        "bad_properties": "bad_properties",
        "other_offsets": "other_offsets",
        "missing": "missing_units",
        "missing_keys": "missing_keys",
    }
)
MAX_TIME_DIFF = 2**31 - 1
_NO_END = 2**62
#: The columns that name a queue offset.
_PLACE = ("brokerName", "topic", "queueId", "queueOffset")
_PLACE_OF_LOG = "struct<path:string,position:bigint>"


@dataclasses.dataclass(frozen=True)
class VerifyResult(Verdict):
    """The result of a verify; `consistent`, `complete` and `ok` follow from it as in VerifyReport.

    `problems` has kind ("log", "queue", "ext", "index", "checkpoint" or "config"), brokerName,
    path, position, text, and count: the number of its units or keys. `counts` have the names of
    VerifyReport: problem_count is the number of all problems, missing_count that of missing units
    and keys, other_offsets that of records that state another queue offset than their unit; a count
    of 0 may be missing. `not_indexed` is None if an index was not checked.
    `index_unchecked` is the reason why an index was not checked, "" where each index was. `close`
    frees the result that Spark keeps.
    """

    problems: DataFrame
    counts: dict[str, Any]
    verdicts: DataFrame
    index_unchecked: str = ""

    @property
    def problem_count(self) -> int:
        """All problems."""
        return int(self.counts["problem_count"])

    @property
    def missing_count(self) -> int:
        """Problems of missing units and keys."""
        return int(self.counts["missing_count"])

    @property
    def not_indexed(self) -> int | None:
        """Records with keys in a part of the log without an index file; None: an index was not
        checked."""
        found: int | None = self.counts.get("not_indexed", 0)
        return found

    @property
    def ext_unresolved(self) -> int:
        """0: the job reads ext units also where enableConsumeQueueExt is off."""
        return 0

    def close(self) -> None:
        """Free the result that Spark keeps; another use of `problems` computes it again."""
        self.verdicts.unpersist()


@dataclasses.dataclass(frozen=True)
class _Store:
    """The driver's view of one store, for the tasks and the verdicts.

    `queues` and `messages` are counts of VerifyReport. `queue_root` and `queue_file_size` locate a
    missing unit. `covered` has the parts of the log
    that index files cover, the last one without an end. `rebuilt` has the units that only
    recovery has: path, position, text, count, and whether the log contradicts the unit on disk.
    `opening` has the problems that the opening found.
    """

    broker_name: str
    low: int
    end: int
    queues: int
    messages: int
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
    """Check the log, the queues and the index of stores against each other.

    Parameters
    ----------
    stores : a directory, or label -> directory; each is a path or a file: URI
    broker_conf : of one store, where the files do not show its sizes and settings

    Raises
    ------
    StoreFormatError: not a store, or index files with different numbers of slots. StoreIOError;
    executors raise it as pyspark's PythonException. MissingExtraError without pyspark or pyarrow.

    A store that is being written to is checked up to the messages dispatched before the call.
    """
    require_packages("verify")
    labelled = stores if isinstance(stores, Mapping) else {"store": stores}
    options = _options(labelled, broker_conf)
    found = []
    for place in options.places:
        with contextlib.closing(StoreSnapshot(place, options.broker_conf, "skip")) as snapshot:
            found.append(_store_of(place, snapshot, options))
    damage = _damaged(spark, found)
    queues = _settled_queue_verdicts(spark, found, damage)
    verdicts = _log_verdicts(spark, found).unionByName(queues)
    with_index = [store for store in found if store.has_index]
    if with_index:
        verdicts = verdicts.unionByName(_index_verdicts(spark, with_index, damage))
    verdicts = verdicts.persist()
    counts: dict[str, Any] = _counts(verdicts)
    queues.unpersist()
    for name in ("queues", "messages"):
        counts[name] = sum(getattr(store, name) for store in found)
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
    if unchecked:
        counts["not_indexed"] = None
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


# ---- on the driver: the stores -------------------------------------------------------------------


def _store_of(place: StorePlace, snapshot: StoreSnapshot, options: SourceOptions) -> _Store:
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
            min_offsets=store.commit_log.min_offsets.by_topic(),
        )
        for file in files
    )
    table, queues = store.queue_table, store.consume_queues()
    units = tuple(
        UnitsTask(
            label,
            _from_first_file(snapshot, queue),
            f"{table.ext_path}/{queue.topic}/{queue.queue_id}",
            config.mapped_file_size_consume_queue_ext,
        )
        for queue in queues
    )
    unit_size = config.mapped_file_size_consume_queue
    has_index = bool(config.message_index_enable)
    index_error = snapshot.index_service.geometry_error if has_index else None
    index_tasks = plan_index(snapshot, options) if has_index and index_error is None else ()
    return _Store(
        broker_name=label,
        low=snapshot.min_phy_offset,
        end=end,
        queues=len(queues),
        messages=sum(_messages_of(queue, snapshot.min_phy_offset) for queue in queues),
        queue_root=encodable(f"{config.store_path_root_dir}/consumequeue"),
        queue_file_size=-(-unit_size // CQ_STORE_UNIT_SIZE) * CQ_STORE_UNIT_SIZE,
        log_tasks=tasks,
        units_tasks=units,
        index_tasks=tuple(index_tasks),
        has_index=has_index,
        covered=_covered(snapshot) if has_index else (),
        index_unchecked="" if index_error is None else f"{label}: {index_error}",
        rebuilt=_rebuilt(snapshot),
        opening=tuple(opening_problems(store.files)),
    )


def _messages_of(queue: ConsumeQueue, low: int) -> int:
    """Return the number of messages to read; `low` is the first byte of the log."""
    return max(0, queue.get_max_offset_in_queue() - queue.first_readable_offset(low))


def _from_first_file(snapshot: StoreSnapshot, queue: ConsumeQueue) -> QueueRange:
    """Return the range of all units in a queue's files, with those of deleted messages."""
    found = snapshot.whole_range(queue)
    files = queue.mapped_file_queue.mapped_files
    first = files[0].file_from_offset // CQ_STORE_UNIT_SIZE if files else found.start
    return dataclasses.replace(found, start=min(first, found.start))


def _covered(snapshot: StoreSnapshot) -> tuple[tuple[int, int], ...]:
    """Return the part of the log that each index file covers, by its header and entries; the last
    part has no end."""
    found = []
    for file in snapshot.index_service.files:
        if file.index_count <= 1:
            continue
        ends = [int(file.begin_phy_offset), int(file.end_phy_offset)]
        if file.mode == "memory":
            file.open_for_writing()
        for number in (1, int(file.index_count) - 1):
            position = entry_position(file.hash_slot_num, number)
            ends.append(int.from_bytes(file.mapped_file.read(position + 4, 8), "big", signed=True))
        found.append((min(ends), max(ends)))
    if found:
        found[-1] = (found[-1][0], _NO_END)
    return tuple(found)


def _rebuilt(snapshot: StoreSnapshot) -> tuple[tuple[str, int, str, int, bool], ...]:
    """Return units that only recovery has: problems after a clean stop, or where the log
    contradicts the unit on disk (last element True)."""
    plan = snapshot.store.plan
    if plan is None:
        return ()
    found = []
    for queue in snapshot.store.consume_queues():
        repairs = plan.repairs.get((queue.topic, queue.queue_id), range(0))
        end = max(repairs.start, queue.core.unit_count)
        if end < repairs.stop:  # no record requires them
            file_at, at = divmod(end * CQ_STORE_UNIT_SIZE, queue.mapped_file_size)
            path = f"{queue.mapped_file_queue.store_path}/{file_at * queue.mapped_file_size:020d}"
            text = f"{repairs.stop - end} unit(s) from {end} on are wrong on disk"
            found.append((encodable(path), at, text, repairs.stop - end, True))
        for file in queue.mapped_file_queue.mapped_files:
            if file.mode != "memory":
                continue
            path = f"{queue.mapped_file_queue.store_path}/{file.file_from_offset:020d}"
            on_disk = snapshot.store.env.read_part(path, 0, file.wrote)
            units = differing_units(file.read(0, file.wrote), on_disk)
            first = file.file_from_offset // CQ_STORE_UNIT_SIZE
            is_repair = np.isin(first + units, np.array(repairs, np.int64))
            for is_wrong, some in ((True, units[is_repair]), (False, units[~is_repair])):
                if not (is_wrong or plan.clean):
                    continue
                for run in np.split(some, np.flatnonzero(np.diff(some) != 1) + 1):
                    if len(run):
                        state = "wrong" if is_wrong else "missing or wrong"
                        text = (
                            f"{len(run)} unit(s) from {first + int(run[0])} on are {state} on disk"
                        )
                        at = int(run[0]) * CQ_STORE_UNIT_SIZE
                        found.append((encodable(path), at, text, len(run), is_wrong))
    return tuple(found)


# ---- verdicts ------------------------------------------------------------------------------------


def _limits(spark: SparkSession, stores: Sequence[_Store]) -> DataFrame:
    rows = [(s.broker_name, s.low, s.end, s.queue_root, s.queue_file_size) for s in stores]
    ddl = "brokerName string, low bigint, end bigint, root string, fileSize bigint"
    return spark.createDataFrame(rows, ddl)


def _counts(verdicts: DataFrame) -> dict[str, int]:
    """Return the count of each verdict; problem_count and missing_count count those with a text."""
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
    """Group verdicts: all valid entries of a kind become one row."""
    from pyspark.sql import functions as F

    keys = ["verdict", "kind", "brokerName", "path", "position", "text"]
    return rows.groupBy(*keys).agg(F.sum("n").alias("n"), F.sum("weight").alias("weight"))


def _log_tasks(stores: Sequence[_Store]) -> list[LogFileTask]:
    return [task for store in stores for task in store.log_tasks]


def _log_bytes(task: LogFileTask) -> int:
    return task.stop


def _unit_bytes(task: UnitsTask) -> int:
    return (task.range.stop - task.range.start) * CQ_STORE_UNIT_SIZE


def _index_bytes(task: tuple[str, IndexTask]) -> int:
    return task[1].count * INDEX_SIZE


def _log_verdicts(spark: SparkSession, stores: Sequence[_Store]) -> DataFrame:
    return map_tasks(spark, _log_tasks(stores), log_facts, LOG_DDL, _log_bytes).selectExpr(
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
    """Return ranges of the logs without a valid record: label, begin, end."""
    tasks = _log_tasks(stores)
    starts = {encodable(task.file.path): task.file.from_offset for task in tasks}
    facts = map_tasks(spark, tasks, log_facts, LOG_DDL, _log_bytes)
    rows = facts.where("kind = 'problem' AND count > 0")
    return [
        (row["brokerName"], starts[row["path"]] + row["position"],
         starts[row["path"]] + row["position"] + row["count"])
        for row in rows.collect()
    ]  # fmt: skip


def _in_ranges(ranges: Iterable[tuple[str, int, int]], offset: Column) -> Column:
    """Return whether a physical offset is in one of the ranges (label, begin, end); never null.

    Python searches the ranges: as an expression, thousands of them overflow Spark's stack.
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
    find = functools.partial(are_in_ranges, ranges=Ranges(merged))
    return _of_offsets("in_ranges", find, "boolean", offset)


def _log_place(tasks: Iterable[LogFileTask], offset: Column) -> Column:
    """Return the path of the log file with a physical offset, and the position there; null without
    a file."""
    files = sorted((t.broker_name, t.file.from_offset, t.file.size, t.file.path) for t in tasks)
    ranges = Ranges([(label, begin, begin + size) for label, begin, size, _ in files])
    paths = tuple(encodable(path) for *_, path in files)
    find = functools.partial(log_places, ranges=ranges, paths=paths)
    return _of_offsets("log_place", find, _PLACE_OF_LOG, offset)


def _of_offsets(name: str, find: Callable[..., Any], ddl: str, offset: Column) -> Column:
    """Return the column of `find`(labels, offsets), which are Arrow arrays of one length."""
    import pyarrow as pa
    from pyspark.sql import functions as F
    from pyspark.sql.pandas import functions

    @guarded
    def apply(labels: Any, offsets: Any) -> Any:
        return find(labels, offsets)

    # Spark reads the kind of the function from these types, which need pyarrow.
    apply.__annotations__ = dict.fromkeys(("labels", "offsets", "return"), pa.Array)
    apply.__name__ = name
    arrow_udf: Any = functions.arrow_udf
    made: Column = arrow_udf(apply, ddl)(F.col("brokerName"), offset)
    return made


def _settled_queue_verdicts(
    spark: SparkSession, stores: Sequence[_Store], damage: Sequence[tuple[str, int, int]]
) -> DataFrame:
    """Return the verdicts of the queues, which Spark keeps: of a record that states another queue
    offset than its unit, the record is damaged, and no unit is missing or wrong."""
    judged = _judged(spark, stores, damage, None)
    verdicts = _queue_verdicts(judged).persist()
    if not verdicts.where("verdict = 'mismatched'").limit(1).count():
        return verdicts
    others = _other_offsets(judged).persist()
    if others.limit(1).count():
        verdicts.unpersist()
        verdicts = _queue_verdicts(_judged(spark, stores, damage, others)).persist()
        verdicts.count()
    others.unpersist()
    return verdicts


def _other_offsets(judged: DataFrame) -> DataFrame:
    """Return the records that state another queue offset than the unit that names them, by the
    rules of the engine's OffsetSearch: _PLACE of the unit, phy, and stated.

    The unit counts if no other record states its queue offset, the unit at the stated one does not
    name the record, and an adjacent unit names its own record or another one of these.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    queue = _PLACE[:-1]
    stated = judged.selectExpr(
        *queue, "queueOffset AS stated",
        "explode(filter(w, x -> NOT coalesce(present AND x.phy = u.phy, false)).phy) AS phy",
    )  # fmt: skip
    found = (
        judged.where("verdict = 'mismatched' AND u.phy >= low AND u.phy < end")
        .selectExpr(*_PLACE, "u.phy AS phy")
        .join(stated, [*queue, "phy"])
        .groupBy(*_PLACE, "phy")
        .agg(F.min("stated").alias("stated"))
    )
    in_order = Window.partitionBy(*queue).orderBy("queueOffset")
    rows = found.withColumn("run", F.col("queueOffset") - F.row_number().over(in_order))
    covered = judged.where("same IS NOT NULL").select(*_PLACE)
    proven = (
        rows.groupBy(*queue, "run")
        .agg(F.min("queueOffset").alias("first"), F.max("queueOffset").alias("last"))
        .selectExpr(*queue, "run", "explode(array(first - 1, last + 1)) AS queueOffset")
        .join(covered, list(_PLACE), "left_semi")
        .select(*queue, "run")
        .distinct()
    )
    return rows.join(proven, [*queue, "run"], "left_semi").select(*_PLACE, "phy", "stated")


def _judged(
    spark: SparkSession,
    stores: Sequence[_Store],
    damage: Sequence[tuple[str, int, int]],
    others: DataFrame | None,
) -> DataFrame:
    """Return each queue offset that a record requires or that has a unit, with its verdict.

    `others` are the _other_offsets that are known: they require no unit.
    """
    from pyspark.sql import functions as F

    units = [task for store in stores for task in store.units_tasks]
    record = "struct(commitLogOffset AS phy, size, tagsCode, storeTimestamp AS ts, required)"
    unit = (
        "struct(commitLogOffset AS phy, size, tagsCode, extTimestamp AS ts, isExt, "
        "isExtThere, path)"
    )
    logs = _log_tasks(stores)
    records = map_tasks(spark, logs, expected_units, EXPECTED_DDL, _log_bytes)
    if others is not None:
        named = others.selectExpr(*_PLACE[:-1], "stated AS queueOffset", "phy AS commitLogOffset")
        records = records.join(F.broadcast(named), [*_PLACE, "commitLogOffset"], "left_anti")
    wanted = records.selectExpr(
        *_PLACE, f"{record} AS w", "cast(null AS struct<phy bigint, size int, tagsCode bigint, "
        "ts bigint, isExt boolean, isExtThere boolean, path string>) AS u",
    )  # fmt: skip
    actual = map_tasks(spark, units, actual_units, UNITS_DDL, _unit_bytes).selectExpr(
        *_PLACE, "cast(null AS struct<phy bigint, size int, tagsCode bigint, ts bigint, "
        "required boolean>) AS w", f"{unit} AS u",
    )  # fmt: skip
    blank = f"(u.size = {PRE_BLANK_SIZE} AND u.phy = 0 AND u.tagsCode = 0)"
    grouped = (
        wanted.unionByName(actual)
        .groupBy(*_PLACE)
        .agg(F.collect_list("w").alias("w"), F.max("u").alias("u"))
        .join(F.broadcast(_limits(spark, stores)), "brokerName")
        .withColumn("isBlank", F.expr(f"coalesce({blank}, false)"))
        .withColumn("present", F.expr("coalesce(u.size > 0, false) AND NOT isBlank"))
        .withColumn("same", F.expr("if(present, get(filter(w, x -> x.phy = u.phy), 0), null)"))
        .withColumn("needed", F.expr("filter(w, x -> x.required)"))
        .withColumn("later", F.expr("filter(needed, x -> x.phy > u.phy)"))
        .withColumn("damaged", _in_ranges(damage, F.col("u.phy")))
    )
    if others is None:
        nothing = "cast(null AS bigint) AS stated", f"cast(null AS {_PLACE_OF_LOG}) AS place"
        grouped = grouped.selectExpr("*", *nothing)
    else:
        placed = others.withColumn("place", _log_place(logs, F.col("phy"))).drop("phy")
        grouped = grouped.join(F.broadcast(placed), list(_PLACE), "left")
    return grouped.withColumn("verdict", F.expr(_UNIT_VERDICT))


def _queue_verdicts(judged: DataFrame) -> DataFrame:
    """Return the verdicts of queue offsets, with their counts and texts."""
    from pyspark.sql import functions as F

    described = judged.withColumn("text", F.expr(_UNIT_TEXT))
    # A damaged record may state any queue offset.
    at = f"(cast(queueOffset AS decimal(20, 0)) * {CQ_STORE_UNIT_SIZE})"
    begin = f"({at} - pmod({at}, fileSize))"
    digits = f"cast(abs({begin}) AS string)"
    width = f"greatest(if({begin} < 0, 19, 20), length({digits}))"
    name = f"concat(if({begin} < 0, '-', ''), lpad({digits}, {width}, '0'))"
    missing = f"format_string('%s/%s/%d/%s', root, topic, queueId, {name})"
    path = f"if(text IS NULL, null, coalesce(place.path, u.path, {missing}))"
    position = f"coalesce(place.position, pmod({at}, fileSize))"
    weight = (
        "CASE verdict WHEN 'misplaced' THEN cast(size(needed) AS bigint) "
        "WHEN 'outdated' THEN cast(size(later) AS bigint) ELSE 1L END"
    )
    counted = [
        _named("verdict", path, position, "1L", weight),
        *(
            _named(f"'{name}'", "null", "null", count, count)
            for name, count in (
                ("units", "if(u IS NULL, 0L, 1L)"),
                ("ext_units", "if(coalesce(u.isExt, false), 1L, 0L)"),
                ("repeated", _REPEATED),
            )
        ),
    ]  # fmt: skip
    return _grouped(described.selectExpr(f"inline(array({', '.join(counted)}))"))


def _named(verdict: str, path: str, position: str, n: str, weight: str) -> str:
    """Return a row of verdicts as an expression of SQL; only the column `verdict` has a text."""
    is_own = verdict == "verdict"
    text = "text" if is_own else "cast(null AS string)"
    kind = _UNIT_KIND if is_own else "'queue'"
    return (
        f"named_struct('verdict', {verdict}, 'kind', {kind}, 'brokerName', brokerName, "
        f"'path', cast({path} AS string), "
        f"'position', cast(if({text} IS NULL, null, {position}) AS bigint), "
        f"'text', {text}, 'n', {n}, 'weight', {weight})"
    )


_UNIT_KIND = (
    "CASE WHEN verdict IN ('ext_gone', 'ext_time') THEN 'ext' "
    "WHEN verdict = 'other_offsets' THEN 'log' ELSE 'queue' END"
)
#: Records of a queue offset that the unit does not name, and that it might.
_REPEATED = "if(same IS NULL, 0L, cast(size(needed) - if(same.required, 1, 0) AS bigint))"
_UNIT_VERDICT = """
    CASE
    WHEN same IS NOT NULL AND u.size <> same.size THEN 'bad_size'
    WHEN same IS NOT NULL AND u.isExt AND NOT u.isExtThere THEN 'ext_gone'
    WHEN same IS NOT NULL AND u.isExt AND u.ts <> same.ts THEN 'ext_time'
    WHEN same IS NOT NULL AND u.tagsCode <> same.tagsCode THEN 'bad_tags'
    WHEN same IS NOT NULL AND size(later) > 0 THEN 'outdated'
    WHEN same IS NOT NULL THEN 'right'
    WHEN NOT present AND size(needed) > 0 THEN 'missing'
    WHEN size(needed) > 0 THEN 'misplaced'
    WHEN u IS NULL THEN 'not_needed'
    WHEN stated IS NOT NULL THEN 'other_offsets'
    WHEN isBlank THEN 'pre_blank'
    WHEN NOT present THEN 'empty'
    WHEN damaged THEN 'units_in_damage'
    WHEN u.phy < low THEN 'expired'
    ELSE 'mismatched' END
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
        'unit %d is missing, though the log has the message at %d', queueOffset, get(needed, 0).phy)
    WHEN 'misplaced' THEN format_string(
        'unit %d names %d bytes at %d of the log, but its message is at %d',
        queueOffset, u.size, u.phy, get(needed, 0).phy)
    WHEN 'outdated' THEN format_string(
        'unit %d names %d bytes at %d of the log, but a later message of it is at %d',
        queueOffset, u.size, u.phy, get(later, 0).phy)
    WHEN 'other_offsets' THEN format_string(
        'the record is damaged: it states queue offset %d, but unit %d of the queue %s/%d names '
        'the record; no checksum covers this field; `get %d` prints the message',
        stated, queueOffset, topic, queueId, u.phy)
    WHEN 'empty' THEN format_string('unit %d is empty', queueOffset)
    WHEN 'mismatched' THEN format_string(
        'unit %d names %d bytes at %d of the log, where no message of this queue and offset is',
        queueOffset, u.size, u.phy)
    END
"""


def _index_verdicts(
    spark: SparkSession, stores: Sequence[_Store], damage: Sequence[tuple[str, int, int]]
) -> DataFrame:
    """Return one verdict for each entry, and for each record with keys missing in the index."""
    from pyspark.sql import functions as F

    tasks = [(store.broker_name, task) for store in stores for task in store.index_tasks]
    place = ["brokerName", "commitLogOffset", "keyHash"]
    entry = "struct<no int, diff int, path string, begin bigint>"
    keys = map_tasks(spark, _log_tasks(stores), record_keys, KEYS_DDL, _log_bytes).selectExpr(
        *place, "storeTimestamp AS ts", f"cast(null AS {entry}) AS e"
    )
    columns = ", ".join(f"`{name}` {kind}" for name, kind in INDEX_COLUMNS.items())
    entries = map_tasks(spark, tasks, index_entries, columns, _index_bytes).selectExpr(
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
        .join(F.broadcast(_limits(spark, stores)), "brokerName")
        .withColumn("damaged", _in_ranges(damage, F.col("commitLogOffset")))
    )
    expected = (
        f"greatest(0L, least({MAX_TIME_DIFF}L, if(e.begin > 0, (ts - e.begin) div 1000, 0L)))"
    )
    each = (
        grouped.where("size(entries) > 0")
        .selectExpr("*", "explode(entries) AS e")
        .withColumn("expected", F.expr(expected))
        .withColumn("verdict", F.expr(_ENTRY_VERDICT))
        .withColumn("text", F.expr(_ENTRY_TEXT))
    )
    slot_counts = {task.hash_slot_num for _, task in tasks}
    if len(slot_counts) > 1:
        raise StoreFormatError(
            "verify: index files with different numbers of slots: verify one store at a time"
        )
    entries_at = entry_position(next(iter(slot_counts), 0))
    right = each.selectExpr(
        "verdict", "'index' AS kind", "brokerName", "if(text IS NULL, null, e.path) AS path",
        f"if(text IS NULL, null, {entries_at} + e.no * {INDEX_SIZE}L) AS position", "text",
        "1L AS n", "1L AS weight",
    )  # fmt: skip
    return _grouped(right).unionByName(_missing_keys(grouped, stores))


_ENTRY_VERDICT = """
    CASE
    WHEN ts IS NOT NULL AND e.no > 1 AND e.diff <> expected THEN 'bad_time'
    WHEN ts IS NOT NULL THEN 'index_right'
    WHEN damaged THEN 'entries_in_damage'
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
    """Return records with keys missing in the index, where an index file covers their offset."""
    from pyspark.sql import functions as F

    # The part that an index file covers includes its last offset, any number in a damaged file.
    ranges = [
        (store.broker_name, first, min(last, _NO_END) + 1)
        for store in stores
        for first, last in store.covered
    ]
    offset = F.col("commitLogOffset")
    records = (
        grouped.where("size(entries) = 0 AND ts IS NOT NULL")
        .groupBy("brokerName", "commitLogOffset")
        .agg(F.sum("keys").alias("n"))
        .withColumn("covered", _in_ranges(ranges, offset))
        .withColumn("place", _log_place(_log_tasks(stores), offset))
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
