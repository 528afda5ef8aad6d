"""Goal: a read of a topic that was removed and made again after the plan returns no row of the new
topic, and reports the loss of the old one.
Method: files of units that are exchanged under a range; stores whose topics are dropped and made
again between the plan and the tasks of batches, streams and exports, which run in this process."""

from __future__ import annotations

import dataclasses
import logging
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore.consume_queue._units import encode_units
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE as UNIT
from pyrocketstore.consume_queue.units import PRE_BLANK
from pyrocketstore.record.message import MessageExtBrokerInner
from pyrocketstore.spark.options import BATCH, StorePlace, read_options
from pyrocketstore.spark.plan.batch import Plan, plan
from pyrocketstore.spark.plan.snapshot import StoreSnapshot
from pyrocketstore.spark.read.units import RangeUnits
from pyrocketstore.spark.task_types import DataLossError, QueueRange, QueueTask
from pyrocketstore.system.env import Env

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from pyrocketstore.spark import FORMAT, register
from pyrocketstore.spark.plan.offsets import INITIAL
from pyrocketstore.spark.read import messages
from pyrocketstore.spark.read.worker import read_task
from pyrocketstore.spark.schemas import columns_of
from streams import next_batch, reader, rows

PER_FILE = 10
SIZES = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": PER_FILE * UNIT}
EMPTY = (0, 0, 0)


def message(number: int, first_byte: int = 0) -> tuple[int, int, int]:
    """A unit of messages of 100 bytes."""
    return first_byte + 100 * number, 100, 0


OLD = [message(number) for number in range(25)]
#: The new topic's messages are later in the log.
NEW = [message(number, 10_000) for number in range(25)]


class Files(Env):
    """The files of one queue; counts reads, and calls `on_sleep` instead of sleeping."""

    def __init__(self, directory: Path, units: Sequence[tuple[int, int, int]] = ()) -> None:
        super().__init__()
        self.directory = directory
        self.reads = self.sleeps = 0
        self.on_sleep: Callable[[], None] | None = None
        self.put(units)

    def put(self, units: Sequence[tuple[int, int, int]]) -> None:
        """Have exactly these units, from queue offset 0 on."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()
        for first in range(0, len(units), PER_FILE):
            data = encoded(units[first : first + PER_FILE]).ljust(PER_FILE * UNIT, b"\0")
            (self.directory / f"{first * UNIT:020d}").write_bytes(data)

    def read_part(self, path: str, position: int, size: int) -> bytes:
        self.reads += 1
        return super().read_part(path, position, size)

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        if self.on_sleep is not None:
            self.on_sleep()


def encoded(units: Sequence[tuple[int, int, int]]) -> bytes:
    phy_offset, size, code = zip(*units, strict=True)
    columns = np.array(phy_offset, np.int64), np.array(size, np.int32), np.array(code, np.int64)
    return encode_units(*columns)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "0", OLD)


def ranged(files: Files, start: int = 0, stop: int = 25, **more: Any) -> QueueRange:
    """The planned range, with the mark of its last unit."""
    mark = {"mark": (24, OLD[24][0])} | more
    return QueueRange("t", 0, str(files.directory), PER_FILE * UNIT, start, stop, **mark)


def units_of(
    files: Files, *, fails: bool = False, patience_s: float = 0, **more: Any
) -> RangeUnits:
    return RangeUnits(files, ranged(files, **more), fail_on_data_loss=fails, patience_s=patience_s)


def kept(units: RangeUnits, start: int, stop: int) -> list[int]:
    """The physical offsets of the units that are read, and not lost."""
    found = units.read(start, stop)
    return found.phy_offset[~found.is_pre_blank()].tolist()


# ---- units of a range ----------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "stop", "reads"), [(0, 10, 2), (20, 25, 1), (7, 7, 0)])
def test_an_unchanged_mark_costs_one_read_at_most(files: Files, start, stop, reads) -> None:
    units = units_of(files, fails=True)
    assert kept(units, start, stop) == [unit[0] for unit in OLD[start:stop]]
    assert files.reads == reads
    assert units.lost == 0


@pytest.mark.parametrize(("start", "stop"), [(0, 10), (15, 25)])
def test_another_message_at_the_mark(files: Files, caplog, start, stop) -> None:
    files.put(NEW)
    with pytest.raises(DataLossError) as error:
        units_of(files, fails=True, patience_s=5).read(start, stop)
    assert f"{files.directory}/{400:020d}" in str(error.value)
    assert "unit 24 named byte 2400 of the log, and now it names byte 12400" in str(error.value)
    assert "the topic was removed and made again" in str(error.value)
    caplog.set_level(logging.WARNING)
    lenient = units_of(files, patience_s=5)
    assert kept(lenient, start, stop) == []
    assert lenient.lost == stop - start
    assert lenient.read_with_lost(start, stop)[1].tolist() == list(range(stop - start))
    assert [text.count("named byte 2400") for text in caplog.messages] == [1]
    assert files.sleeps == 0  # no opening puts another message there


@pytest.mark.parametrize("left", [0, 8, 12, 24])
def test_a_new_topic_without_a_message_at_the_mark(files: Files, caplog, left) -> None:
    """A task of the range's begin has all its units, and they are of the new topic."""
    files.put(NEW[:left])
    for start, stop in ((0, 8), (8, 25)):
        with pytest.raises(DataLossError, match="gone"):
            units_of(files, fails=True).read(start, stop)
        lenient = units_of(files)
        assert kept(lenient, start, stop) == []
        assert lenient.lost == stop - start
    if left:
        with pytest.raises(DataLossError, match="earlier unit 0 names byte 10000: the topic"):
            units_of(files, fails=True).read(0, 8)


@pytest.mark.parametrize("blank", [False, True])
def test_a_queue_that_lost_its_end_keeps_the_other_units(files: Files, blank) -> None:
    files.put([*OLD[:20], *[PRE_BLANK if blank else EMPTY] * 5])
    units = units_of(files, fails=True, patience_s=5)
    assert kept(units, 0, 20) == [unit[0] for unit in OLD[:20]]
    assert files.sleeps == units.lost == 0
    if not blank:
        lenient = units_of(files)
        assert kept(lenient, 15, 25) == [unit[0] for unit in OLD[15:20]]
        assert lenient.lost == 5


def test_a_queue_whose_first_files_expired(files: Files) -> None:
    (files.directory / f"{0:020d}").unlink()
    with pytest.raises(DataLossError, match="10 units are gone, the first is 0"):
        units_of(files, fails=True).read(0, 25)
    assert kept(units_of(files, fails=True), 10, 25) == [unit[0] for unit in OLD[10:]]


def test_units_that_return_in_time(files: Files) -> None:
    files.put(OLD[:20])
    files.on_sleep = lambda: files.put(OLD)
    units = units_of(files, fails=True, patience_s=60)
    assert kept(units, 15, 25) == [unit[0] for unit in OLD[15:]]
    assert files.sleeps == 1


def test_units_that_another_topic_replaces_meanwhile(files: Files) -> None:
    """The old units were read before the topic was removed, and nothing shows that."""
    files.put([])
    files.on_sleep = lambda: files.put(NEW)
    with pytest.raises(DataLossError, match="now it names byte 12400"):
        units_of(files, fails=True, patience_s=60).read(0, 10)
    assert files.sleeps == 1


def test_damaged_units_of_an_unchanged_queue_are_no_other_topic(files: Files) -> None:
    """Reading their records reports the damage."""
    damaged = message(5, 1 << 40)
    files.put([*OLD[:5], damaged, *OLD[6:]])
    assert kept(units_of(files, fails=True), 0, 10)[5] == damaged[0]


def test_units_that_came_with_the_plan_are_still_those_of_the_plan(files: Files) -> None:
    """The overlay has units 20 to 24; the files had the units up to 19."""
    overlay = ((20, encoded(OLD[20:])),)
    more = {"overlay": overlay, "mark": (19, OLD[19][0])}
    files.put(OLD[:20])
    assert kept(units_of(files, fails=True, **more), 15, 25) == [unit[0] for unit in OLD[15:]]
    files.put(OLD)  # an opening for writing put them into the files
    assert kept(units_of(files, fails=True, **more), 15, 25) == [unit[0] for unit in OLD[15:]]
    files.put(NEW)
    lenient = units_of(files, **more)
    assert kept(lenient, 15, 25) == [unit[0] for unit in OLD[20:]]
    assert lenient.lost == 5
    assert kept(units_of(files, fails=True, **more), 21, 24) == [unit[0] for unit in OLD[21:24]]


def test_parts_of_a_range_have_its_mark(files: Files) -> None:
    whole = ranged(files)
    assert pickle.loads(pickle.dumps(whole.cut(0, 5).cut(1, 2))).mark == whole.mark


# ---- marks of snapshots --------------------------------------------------------------------------


def fill(root: Path, topic: str, count: int, text: str = "old", queues: int = 1) -> None:
    with pyrocketstore.open(root, **SIZES) as store:
        for number in range(count):
            for queue_id in range(queues):
                store.put(topic, f"{text} {number}".encode(), queue_id=queue_id)


def make_again(root: Path, topic: str, count: int, queues: int = 1, *, before: int = 0) -> None:
    """Drop a topic and make it again, after `before` messages of another topic."""
    with pyrocketstore.open(root, **SIZES) as store:
        store.drop_topic(topic)
        for _ in range(before):
            store.put("between", b"x" * 1000)
    fill(root, topic, count, "new", queues)


def units_in_files(root: Path, topic: str) -> list[tuple[int, int]]:
    """(queue offset, physical offset) of each message in the files of a queue."""
    found = []
    for path in sorted((root / "consumequeue" / topic / "0").iterdir()):
        phy_offset, size, _ = pyrocketstore.consume_queue._units.read_units(path.read_bytes())
        for row in np.flatnonzero(size > 0).tolist():
            found.append((int(path.name) // UNIT + row, int(phy_offset[row])))
    return found


def range_in(root: Path, topic: str = "t", **options: object) -> QueueRange:
    """The planned range of a queue."""
    texts = {name: str(value) for name, value in {"path": root, "topic": topic, **options}.items()}
    requested = read_options(texts, BATCH)
    with StoreSnapshot(StorePlace("s", str(root)), None, requested.on_corrupt) as snapshot:
        (queue,) = snapshot.queues(requested)
        return snapshot.range_of(queue, requested)


@pytest.mark.parametrize(("ending", "last"), [("latest", 24), ('{"t": {"0": 12}}', 11)])
def test_the_mark_is_the_last_unit_of_the_selection(tmp_path: Path, ending, last) -> None:
    fill(tmp_path, "t", 25)
    found = range_in(tmp_path, endingOffsets=ending)
    assert found.mark == units_in_files(tmp_path, "t")[last]
    assert found.cut(0, 3).mark == found.mark


def test_an_empty_range_has_no_mark(tmp_path: Path) -> None:
    fill(tmp_path, "t", 5)
    assert range_in(tmp_path, startingOffsets='{"t": {"0": 5}}').mark is None


def test_units_that_only_recovery_has_are_no_mark(tmp_path: Path) -> None:
    """The last file was not written before a kill; and one unit is the last that was."""
    fill(tmp_path, "t", 25)
    (tmp_path / "abort").touch()
    files = sorted((tmp_path / "consumequeue" / "t" / "0").iterdir())
    whole = units_in_files(tmp_path, "t")
    data = files[2].read_bytes()
    files[2].write_bytes(data[: 3 * UNIT] + bytes(len(data) - 3 * UNIT))
    found = range_in(tmp_path)
    assert (found.stop, found.mark) == (25, whole[22])
    assert [first for first, _ in found.overlay] == [23]
    shutil.rmtree(tmp_path / "consumequeue")
    found = range_in(tmp_path)
    assert (found.stop, found.mark) == (25, None)
    # An opening for writing puts the units back: the plan still reads them.
    fill(tmp_path, "another", 1)
    assert units_in_files(tmp_path, "t") == whole
    assert RangeUnits(Env(), found, fail_on_data_loss=True).read(0, 25).size.min() > 0


def test_a_unit_that_names_bytes_after_the_log_is_no_mark(tmp_path: Path) -> None:
    """It is damaged, and an opening for writing may repair it."""
    fill(tmp_path, "t", 25)
    whole = units_in_files(tmp_path, "t")
    last = sorted((tmp_path / "consumequeue" / "t" / "0").iterdir())[-1]
    data = last.read_bytes()
    last.write_bytes(data[: 4 * UNIT] + encoded([(1 << 40, 100, 0)]) + data[5 * UNIT :])
    with StoreSnapshot(StorePlace("s", str(tmp_path)), None, "skip") as snapshot:
        (queue,) = snapshot.store.consume_queues()
        found = dataclasses.replace(snapshot.whole_range(queue), start=0, stop=25, overlay=())
        assert snapshot.marked(found).mark == whole[23]
        assert snapshot.marked(found.cut(24, 25)).mark is None


def test_an_lmq_queue_has_a_mark(tmp_path: Path) -> None:
    with pyrocketstore.open(
        tmp_path, enable_lmq=True, enable_multi_dispatch=True, **SIZES
    ) as store:
        for _ in range(5):
            properties = {"INNER_MULTI_DISPATCH": "%LMQ%light"}
            store.message_store.put_message(MessageExtBrokerInner("t", b"x", properties=properties))
    assert range_in(tmp_path, "%LMQ%light").mark == units_in_files(tmp_path, "%LMQ%light")[4]


# ---- batches -------------------------------------------------------------------------------------

VIEWS = [
    {"readMode": "queue", "onCorrupt": "fail"},
    {"readMode": "queue", "onCorrupt": "null"},
    {"readMode": "sequential"},
    {"view": "consumequeue"},
]


def planned(root: Path, **options: object) -> tuple[Plan, Any]:
    texts = {name: str(value) for name, value in {"path": root, **options}.items()}
    requested = read_options(texts, BATCH)
    return pickle.loads(pickle.dumps(plan(requested))), requested


def read_plan(plan_of: tuple[Plan, Any]) -> list[tuple[str, int, int]]:
    """The rows of a plan: topic, queue id, queue offset."""
    found, requested = plan_of
    columns = dict.fromkeys(("topic", "queueId", "queueOffset"))
    columns = {name: columns_of(requested)[0][name] for name in columns}
    return [
        tuple(row.values())
        for task in found.tasks
        for batch in read_task(task, columns, requested, found.common)
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: "-".join(view.values()))
@pytest.mark.parametrize("count", [5, 60])
@pytest.mark.parametrize("before", [0, 2000])
def test_a_batch_of_a_topic_that_is_made_again(tmp_path: Path, caplog, view, count, before) -> None:
    """The log ends in the planned file, or in a later one."""
    fill(tmp_path, "t", 25, queues=2)
    fill(tmp_path, "kept", 3)
    more = {"maxRecordsPerPartition": 10, **view}
    strict, lenient = (planned(tmp_path, failOnDataLoss=f, **more) for f in ("true", "false"))
    make_again(tmp_path, "t", count, queues=2, before=before)
    with pytest.raises(DataLossError, match="removed and made again"):
        read_plan(strict)
    caplog.set_level(logging.WARNING)
    caplog.clear()
    assert read_plan(lenient) == [("kept", 0, number) for number in range(3)]
    assert any("removed and made again" in text for text in caplog.messages)
    gone = [text for text in caplog.messages if "units are gone" in text]
    assert all(f"{tmp_path}/consumequeue/t/" in text for text in gone) and gone


def test_every_task_of_a_batch_refuses_another_topic(tmp_path: Path) -> None:
    """Spark does not run all tasks of a query with a limit."""
    fill(tmp_path, "t", 25)
    found, requested = planned(tmp_path, maxRecordsPerPartition=10, readMode="queue")
    assert len(found.tasks) == 3
    make_again(tmp_path, "t", 12)
    for task in found.tasks:
        assert isinstance(task.whole_task(found.common), QueueTask)
        with pytest.raises(DataLossError, match="gone"):
            read_plan((Plan([task], found.common), requested))


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: "-".join(view.values()))
def test_a_batch_of_a_store_that_a_writer_opened_after_a_kill(tmp_path: Path, view) -> None:
    """It writes the units again that the plan had from its own recovery."""
    fill(tmp_path, "t", 25)
    (tmp_path / "abort").touch()
    last = sorted((tmp_path / "consumequeue" / "t" / "0").iterdir())[-1]
    last.write_bytes(last.read_bytes()[: 3 * UNIT].ljust(PER_FILE * UNIT, b"\0"))
    plan_of = planned(tmp_path, **view)
    fill(tmp_path, "t", 100)
    assert sorted(read_plan(plan_of)) == [("t", 0, number) for number in range(25)]


def test_a_dataframe_of_a_topic_that_is_made_again(tmp_path: Path, spark: SparkSession) -> None:
    register(spark)
    fill(tmp_path, "t", 25)
    frame = spark.read.format(FORMAT).option("snapshot", "load").load(str(tmp_path))
    assert frame.count() == 25
    make_again(tmp_path, "t", 60)
    with pytest.raises(PythonException, match="removed and made again"):
        frame.count()
    assert spark.read.format(FORMAT).load(str(tmp_path)).count() == 60


# ---- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [5, 25, 60])
@pytest.mark.parametrize("limit", [25, 12])
def test_a_stream_of_a_topic_that_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count, limit
) -> None:
    """Each message of the new topic arrives once, after the planned batch."""
    monkeypatch.setattr(messages, "LIVE_PATIENCE_S", 0.1)
    fill(tmp_path, "t", 25)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": limit}
    strict, lenient = (reader(tmp_path, failOnDataLoss=fails, **options) for fails in (True, False))
    end = next_batch(lenient, INITIAL, lenient.getDefaultReadLimit())
    tasks = strict.partitions(INITIAL, end)
    make_again(tmp_path, "t", count)
    with pytest.raises(DataLossError, match="removed and made again"):
        for each in tasks:
            list(strict.read(each))
    assert [
        row for each in tasks for batch in lenient.read(each) for row in batch.to_pylist()
    ] == []
    following, found = next_batch(lenient, end), []
    while following != end:
        found += rows(lenient, end, following)
        end, following = following, next_batch(lenient, following)
    assert sorted(found) == [("t", 0, number) for number in range(count)]


def test_a_planned_batch_is_not_read_from_a_topic_made_again_before(tmp_path: Path, caplog) -> None:
    """Spark repeats a batch after a restart; its tasks depend on its offsets alone."""
    fill(tmp_path, "t", 25)
    end = next_batch(reader(tmp_path, startingOffsets="earliest"), INITIAL)
    mark = units_in_files(tmp_path, "t")[24]
    make_again(tmp_path, "t", 60)
    with pytest.raises(DataLossError, match=r"was recreated.*and a batch was planned of it"):
        reader(tmp_path).partitions(INITIAL, end)
    stream = reader(tmp_path, failOnDataLoss=False)
    caplog.set_level(logging.WARNING)
    (part,) = stream.partitions(INITIAL, end)
    assert [each.mark for each in part.value.task.ranges] == [mark]
    assert any("units have changed are omitted" in text for text in caplog.messages)
    assert rows(stream, INITIAL, end) == []
    assert rows(stream, end, next_batch(stream, end)) == [("t", 0, n) for n in range(60)]
