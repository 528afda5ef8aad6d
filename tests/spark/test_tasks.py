"""Goal: tasks and batches have the requested sizes, close every file, and show damaged records
correctly.
Method: plans read task by task; the file descriptors of the process."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import time
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow
import pytest

import pyrocketstore
from pyrocketstore.errors import StoreCorruptionError

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql import SparkSession

from direct_reads import read_directly
from pyrocketstore.reading._file_columns import decode_file_records
from pyrocketstore.spark import FORMAT, register
from pyrocketstore.spark.lake.manifest import Split
from pyrocketstore.spark.lake.writer import SplitReader
from pyrocketstore.spark.options import read_options
from pyrocketstore.spark.plan.batch import plan
from pyrocketstore.spark.read import decode, worker
from pyrocketstore.spark.schemas import columns_of
from pyrocketstore.spark.source.batch import StoreReader
from pyrocketstore.spark.task_types import DataLossError

VIEWS = ["messages", "commitlog", "consumequeue", "index"]
QUERIES = [("messages", {"readMode": "queue"}), ("messages", {"readMode": "sequential"})]
QUERIES += [(view, {}) for view in VIEWS[1:]]


def tasks(
    root: Path, *names: str, view: str = "messages", **options: object
) -> list[list[pyarrow.RecordBatch]]:
    """The batches of each task."""
    texts = {name: str(value).lower() for name, value in options.items()}
    requested = read_options({"path": str(root), "view": view, **texts})
    shown = columns_of(requested)[0]
    reader = StoreReader(requested, {name: shown[name] for name in names or shown}, None)
    sent = pickle.loads(pickle.dumps(reader))
    return [list(sent.read(each)) for each in reader.partitions()]


def rows(batches: list[pyarrow.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20,000 small messages in a log of one file."""
    root = tmp_path_factory.mktemp("small") / "s"
    with pyrocketstore.open(root) as store:
        for topic in range(4):
            for number in range(5):
                keys = [f"k{topic}-{number}-{n}" for n in range(1000)]
                store.put_many(f"T{topic}", [b"x" * 20] * 1000, keys=keys)
    return root


class TestTaskSizes:
    @pytest.mark.parametrize(("view", "options"), QUERIES)
    def test_records(self, small: Path, view: str, options: dict[str, object]) -> None:
        counts = [
            rows(task) for task in tasks(small, view=view, maxRecordsPerPartition=700, **options)
        ]
        assert sum(counts) == 20_000
        exact = options.get("readMode") == "queue" or view in ("consumequeue", "index")
        assert max(counts) <= (700 if exact else 710)
        assert len(counts) <= 40

    def test_records_of_many_sizes(self, tmp_path: Path) -> None:
        """Some queues have small records, some large ones, in some part of the log."""
        with pyrocketstore.open(tmp_path / "s") as store:
            store.put_many("large", [bytes(60_000)] * 100)
            store.put_many("small", [b"x"] * 20_000)
            for _ in range(100):
                store.put_many("large", [bytes(60_000)])
                store.put_many("mixed", [b"x"] * 50)
            store.put_many("mixed", [b"x"] * 5000)
        for view in ("messages", "commitlog"):
            mode = {"readMode": "sequential"} if view == "messages" else {}
            found = tasks(tmp_path / "s", "topic", view=view, maxRecordsPerPartition=400, **mode)
            counts = [rows(task) for task in found]
            assert sum(counts) == 30_200
            assert max(counts) <= 440
            assert len(counts) <= 120

    def test_records_that_no_queue_names(self, small: Path, tmp_path: Path) -> None:
        (tmp_path / "s").mkdir()
        (tmp_path / "s" / "commitlog").symlink_to(small / "commitlog")
        found = tasks(tmp_path / "s", "topic", view="commitlog", maxRecordsPerPartition=700)
        counts = [rows(task) for task in found]
        assert sum(counts) == 20_000
        assert max(counts) <= 720

    @pytest.mark.parametrize(("view", "options"), QUERIES)
    def test_at_least_so_many(self, small: Path, view: str, options: dict[str, object]) -> None:
        whole = tasks(small, view=view, **options)
        assert len(whole) < 13
        cut = tasks(small, view=view, minPartitions=13, **options)
        assert len(cut) >= 13
        assert sum(map(rows, cut)) == sum(map(rows, whole)) == 20_000
        assert max(map(rows, cut)) <= 20_000 / 13 * 1.1 + 1

    def test_bytes(self, small: Path) -> None:
        for mode in ("queue", "sequential"):
            found = tasks(small, "storeSize", readMode=mode, partitionBytes="100k")
            sizes = [sum(sum(b.column(0).to_pylist()) for b in task) for task in found]
            assert max(sizes) <= 110 << 10
            assert len(sizes) <= 1.2 * sum(sizes) / (100 << 10) + 1


class TestBatchSizes:
    @pytest.mark.parametrize(("view", "options"), QUERIES)
    def test_rows(self, small: Path, view: str, options: dict[str, object]) -> None:
        found = [b for task in tasks(small, view=view, batchRows=150, **options) for b in task]
        assert max(batch.num_rows for batch in found) == 150
        assert sum(batch.num_rows for batch in found) == 20_000
        assert len(found) <= 1.1 * 20_000 / 150 + 5

    @pytest.mark.parametrize("mode", ["queue", "sequential"])
    def test_bytes(self, tmp_path: Path, mode: str) -> None:
        with pyrocketstore.open(tmp_path / "s") as store:
            for number in range(1000):
                store.put("T", bytes(70_000 if number % 100 == 50 else 1000))
        (found,) = tasks(tmp_path / "s", "body", "storeSize", readMode=mode, batchBytes="50k")
        sizes = [batch.column(1).to_pylist() for batch in found]
        assert sum(map(len, sizes)) == 1000
        assert all(sum(each) <= 50 << 10 or len(each) == 1 for each in sizes)
        assert sum(len(each) == 1 and each[0] > 70_000 for each in sizes) == 10
        assert all(batch.nbytes <= 51 << 10 or batch.num_rows == 1 for batch in found)
        # A batch is closed where the next record has no room, or at the end of the bytes read.
        closed = sum(sum(one) + two[0] > 50 << 10 for one, two in pairwise(sizes))
        assert closed >= len(sizes) - 2


def open_files(root: Path, pid: str = "self") -> list[str]:
    """The files of a directory that a process has open, or mapped."""
    found = []
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
            except OSError:
                continue
        maps = Path(f"/proc/{pid}/maps").read_text()
        found += [line.rsplit(" ", 1)[-1] for line in maps.splitlines()]
    except OSError:  # it has ended
        return []
    return [path.strip() for path in found if path.startswith(str(root))]


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="there is no /proc")


class TestLettingGo:
    @needs_proc
    @pytest.mark.parametrize(("view", "options"), QUERIES)
    def test_a_task_that_is_left(self, small: Path, view: str, options: dict[str, object]) -> None:
        texts = {"path": str(small), "view": view, "batchRows": "10", **options}
        requested = read_options(texts)
        reader = StoreReader(requested, dict(columns_of(requested)[0]), None)
        sent = pickle.loads(pickle.dumps(reader))
        given = sent.read(reader.partitions()[0])
        assert next(given).num_rows == 10
        given.close()
        assert open_files(small) == []

    @needs_proc
    def test_a_limit_in_spark(self, spark: SparkSession, small: Path) -> None:
        register(spark)
        for view, options in QUERIES:
            reader = spark.read.format(FORMAT).option("view", view).option("batchRows", 10)
            frame = reader.options(**options).load(str(small))
            assert len(frame.limit(1).collect()) == 1
        until = time.monotonic() + 30
        while held := {
            pid: files
            for pid in filter(str.isdigit, os.listdir("/proc"))
            if (files := open_files(small, pid))
        }:
            assert time.monotonic() < until, held
            time.sleep(0.2)


class TestDamagedRows:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """Messages of two tags; one record of each has lost a byte of its body."""
        with pyrocketstore.open(tmp_path / "s") as store:
            for number in range(200):
                store.put("T", bytes(100), tags="ab"[number % 2])
        places = read_directly(tmp_path / "s", "queueOffset", "commitLogOffset")
        with (tmp_path / "s" / "commitlog" / ("0" * 20)).open("r+b") as file:
            for number in (40, 71):
                file.seek(places[number].commitLogOffset + 120)
                file.write(b"\xff")
        return tmp_path / "s"

    def test_null_with_an_expression(self, root: Path, caplog: pytest.LogCaptureFixture) -> None:
        options = {"verifyCrc": True, "subExpression": "a", "readMode": "queue"}
        found = read_directly(root, onCorrupt="null", **options)
        assert [row.queueOffset for row in found] == list(range(0, 200, 2))
        (lost,) = [row for row in found if row.bodyCRC is None]
        assert (lost.queueOffset, lost.topic, lost.tags, lost.body) == (40, "T", None, None)
        assert "shows 1 damaged ranges" in caplog.text
        assert "omitted" not in caplog.text
        skipped = read_directly(root, "queueOffset", onCorrupt="skip", **options)
        assert [row.queueOffset for row in skipped] == [n for n in range(0, 200, 2) if n != 40]
        assert "omitted 1 records" in caplog.text

    def test_kafka_columns(self, root: Path) -> None:
        options = {"kafkaSchema": True, "verifyCrc": True, "includeHeaders": True}
        found = read_directly(root, onCorrupt="null", **options)
        assert len(found) == 200
        assert {row.timestampType for row in found} == {1}
        lost = [row for row in found if row.value is None]
        assert [(row.topic, row.partition, row.offset) for row in lost] == [
            ("T", 0, 40),
            ("T", 0, 71),
        ]
        assert {row.timestamp for row in lost} == {None}


class TestBadText:
    @pytest.mark.parametrize("mode", ["queue", "sequential"])
    def test_all_texts(self, spark: SparkSession, tmp_path: Path, mode: str) -> None:
        with pyrocketstore.open(tmp_path / "s") as store:
            for _ in range(3):
                texts = {"NAME1": "VALUE1", "other": "OTHER1"}
                store.put("T", b"BODY", tags="TAGS1", keys="KEYS1", properties=texts)
        log = tmp_path / "s" / "commitlog" / ("0" * 20)
        with log.open("r+b") as file:
            data = file.read(4096)
            for name in (b"NAME1", b"VALUE1", b"TAGS1", b"KEYS1"):
                file.seek(data.index(name))
                file.write(b"\xff\xc3")
        register(spark)
        reader = spark.read.format(FORMAT).option("readMode", mode)
        bad = reader.load(str(tmp_path / "s")).orderBy("queueOffset").collect()[0]
        assert bad.tags == "\ufffd\ufffdGS1"
        assert bad["keys"] == "\ufffd\ufffdYS1"
        said = bad.properties
        assert said["\ufffd\ufffdME1"] == "\ufffd\ufffdLUE1"
        assert (said["TAGS"], said["KEYS"], said["other"]) == (bad.tags, bad["keys"], "OTHER1")
        kafka = reader.option("kafkaSchema", "true").option("includeHeaders", "true")
        row = kafka.load(str(tmp_path / "s")).orderBy("offset").collect()[0]
        assert bytes(row.key).decode() == bad["keys"]
        assert {each.key: bytes(each.value).decode() for each in row.headers} == said


def frozen_objects(spark: SparkSession) -> int:
    """How many objects a worker of Spark keeps out of its garbage collections: one that is idle."""

    def count(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import gc

        list(batches)
        yield pyarrow.RecordBatch.from_pydict({"n": [gc.get_freeze_count()]})

    return max(row.n for row in spark.range(0, 8, 1, 8).mapInArrow(count, "n long").collect())


def test_workers_do_not_walk_modules_after_each_task(spark: SparkSession, small: Path) -> None:
    frame = spark.read.format(FORMAT).load(str(small)).select("body")
    assert frame.count() == 20_000
    assert frozen_objects(spark) > 10_000
    assert gc.get_freeze_count() == 0  # this process is not a worker


def split_reader(root: Path, **options: str) -> SplitReader:
    """An export's reader of 100 messages of T."""
    fixed = {"path": str(root), "readMode": "queue", "onCorrupt": "skip", "snapshot": "load"}
    requested = read_options(fixed | options)
    task = plan(requested).tasks[0].task
    split = Split(0, task.broker_name, "T", 0, 0, 100, 0)
    return SplitReader(split, task.ranges[0], task.log_files, requested)


@pytest.mark.parametrize("mode", ["queue", "sequential"])
def test_an_error_names_the_unit_that_is_wrong(tmp_path: Path, mode: str) -> None:
    """Not the last file of the log, which is intact. Recovery does not scan the unit's record."""
    root = tmp_path / "s"
    with pyrocketstore.open(root, mapped_file_size_commit_log=1 << 14) as store:
        store.put_many("T", [bytes(500)] * 300)
    unit = root / f"consumequeue/T/0/{0:020d}"
    with unit.open("r+b") as file:
        file.seek(30 * 20)
        file.write((1 << 40).to_bytes(8, "big"))
    with pytest.raises(StoreCorruptionError) as caught:
        tasks(root, "body", readMode=mode, onCorrupt="fail", snapshot="load")
    assert (caught.value.path, caught.value.position) == (str(unit), 600)
    text = f"byte {1 << 40} of the log, which does not hold them (T/0, queue offset 30)"
    assert text in caught.value.reason


def test_data_loss_names_the_file_of_the_log(tmp_path: Path) -> None:
    root = tmp_path / "s"
    size = 1 << 14
    with pyrocketstore.open(root, mapped_file_size_commit_log=size) as store:
        _, offsets = store.put_many("T", [bytes(500)] * 300)
    lost = [i for i, offset in enumerate(offsets.tolist()) if offset // size == 5]
    (root / f"commitlog/{5 * size:020d}").unlink()
    with pytest.raises(DataLossError) as caught:
        tasks(root, "body", readMode="queue", snapshot="load")
    place = f"{root}/commitlog/{5 * size:020d} at byte {offsets[lost[0]] % size}"
    assert f"{place} (T/0, queue offset {lost[0]}): gone, with {len(lost)} " in str(caught.value)


@pytest.mark.parametrize("mode", ["queue", "sequential"])
@pytest.mark.parametrize("zeros", [1, 40])
def test_a_start_by_time_reports_damaged_units_before_it(
    tmp_path: Path, mode: str, zeros: int
) -> None:
    """When their messages were stored is unknown."""
    root = tmp_path / "s"
    with pyrocketstore.open(root, mapped_file_size_consume_queue=400) as store:
        store.put_many("T", [b"body"] * 100)
    for number in range(0, zeros, 20):
        path = root / f"consumequeue/T/0/{number * 20:020d}"
        with path.open("r+b") as file:
            file.write(bytes(20 * min(zeros, 20)))
    by_time = {"readMode": mode, "startingTimestamp": 10**12, "snapshot": "load"}
    with pytest.raises(DataLossError, match="units are gone, the first is 0;"):
        tasks(root, "body", **by_time)
    found = tasks(root, "body", **by_time, failOnDataLoss=False)
    assert sum(map(rows, found)) == 100 - zeros


SMALL_FILE = 1 << 14


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 messages in almost 40 log files, and as many index files."""
    root = tmp_path_factory.mktemp("files") / "s"
    sizes = {"mapped_file_size_consume_queue": 400, "max_hash_slot_num": 10}
    sizes |= {"mapped_file_size_commit_log": SMALL_FILE, "max_index_num": 30}
    with pyrocketstore.open(root, **sizes) as store:
        for number in range(1000):
            store.put(f"T{number % 3}", bytes(500), keys=f"k{number}")
    assert len(list((root / "commitlog").iterdir())) > 30
    assert len(list((root / "index").iterdir())) > 30
    return root


class TestSmallFiles:
    """A store of many small files is read by few tasks."""

    @pytest.mark.parametrize(("view", "options"), QUERIES)
    def test_count(self, many: Path, view: str, options: dict[str, object]) -> None:
        found = tasks(many, view=view, **options)
        assert len(found) == 1
        once = [row for task in found for batch in task for row in batch.to_pylist()]
        for limit in (700, 2000, 5000, 40_000, 100_000, 1 << 40):
            again = tasks(many, view=view, partitionBytes=limit, **options)
            assert [r for task in again for batch in task for r in batch.to_pylist()] == once
            total = sum(path.stat().st_size for path in (many / "commitlog").iterdir())
            assert len(again) <= max(4, 2.2 * total // limit + 1)
            if limit == 40_000 and view in ("commitlog", "messages"):
                assert len(again) >= total // limit

    @pytest.mark.parametrize(("view", "options"), QUERIES)
    def test_records(self, many: Path, view: str, options: dict[str, object]) -> None:
        counts = [
            rows(task) for task in tasks(many, view=view, maxRecordsPerPartition=100, **options)
        ]
        # A file of the log ends with a row of its own in the view of the log.
        assert max(counts) <= 100 + (4 if view == "commitlog" else 0)
        assert len(counts) <= 2 * sum(counts) // 100 + 1

    def test_minimum_of_tasks(self, many: Path) -> None:
        for view in ("messages", "commitlog", "index"):
            assert 8 <= len(tasks(many, view=view, minPartitions=8)) <= 17

    @pytest.mark.parametrize("view", ["messages", "commitlog"])
    def test_a_task_of_a_file_that_is_gone(
        self, many: Path, tmp_path: Path, view: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        copy = tmp_path / "s"
        shutil.copytree(many, copy)
        options = {"view": view, "readMode": "sequential"} if view == "messages" else {"view": view}
        texts = {"path": str(copy), "onCorrupt": "skip", **options}
        gone = copy / f"commitlog/{5 * SMALL_FILE:020d}"
        for lost in ("true", "false"):
            requested = read_options({**texts, "failOnDataLoss": lost})
            planned = StoreReader(requested, {"topic": "string"}, None)
            parts = planned.partitions()
            assert len(parts) == 1
            before = gone.read_bytes()
            gone.unlink()
            try:
                if lost == "true":
                    with pytest.raises(DataLossError, match=gone.name):
                        list(planned.read(parts[0]))
                else:
                    assert 950 < rows(list(planned.read(parts[0]))) < 1040
                    assert gone.name in caplog.text
            finally:
                gone.write_bytes(before)

    def test_an_error_names_file_and_position(self, many: Path, tmp_path: Path) -> None:
        copy = tmp_path / "s"
        shutil.copytree(many, copy)
        path = copy / f"commitlog/{7 * SMALL_FILE:020d}"
        data = path.read_bytes()
        second = int.from_bytes(data[:4], "big")
        with path.open("r+b") as file:
            file.seek(second + 4)
            file.write(b"\1\2\3\4")
        with pytest.raises(StoreCorruptionError) as caught:
            tasks(copy, view="commitlog", onCorrupt="fail", snapshot="load")
        assert (caught.value.path, caught.value.position) == (str(path), second)

    def test_jobs(self) -> None:
        """Small tasks of a job are run one after the other, in their order."""
        ran: list[int] = []

        class Session:
            def range(self, begin: int, end: int, step: int, parts: int) -> Session:
                assert end == parts
                self.count = end
                return self

            def mapInArrow(self, run: Any, ddl: str) -> list[Any]:
                numbers = pyarrow.RecordBatch.from_pydict({"id": list(range(self.count))})
                return list(run(iter([numbers])))

        def work(task: int) -> Iterator[int]:
            ran.append(task)
            yield task

        session: Any = Session()
        for sizes, count in (
            ([1] * 1000, 1),
            ([worker.JOB_BYTES] * 5, 5),
            ([1 << 30, 1, 1, 1 << 30, 1], 4),
            ([worker.JOB_BYTES // 4] * 9, 3),
        ):
            ran.clear()
            every = list(range(len(sizes)))
            found = worker.map_tasks(session, every, work, "", sizes.__getitem__)  # type: ignore
            assert found == every
            assert ran == every and session.count == count
        assert worker.map_tasks(session, [7, 8, 9], work, "") == [7, 8, 9]  # type: ignore
        assert session.count == 3


class TestVanishingFile:
    """A log file that is deleted between two batches of a task that reads through a queue."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        with pyrocketstore.open(tmp_path / "s") as store:
            store.put_many("T", [b"%03d" % i for i in range(100)])
        return tmp_path / "s"

    def test_a_task(self, root: Path, caplog: pytest.LogCaptureFixture) -> None:
        for fails in ("true", "false"):
            requested = read_options(
                {"path": str(root), "readMode": "queue", "batchRows": "40"}
                | {"failOnDataLoss": fails, "snapshot": "load"}
            )
            reader = StoreReader(requested, {"body": "binary"}, None)
            (partition,) = reader.partitions()
            batches = reader.read(partition)
            assert next(batches).num_rows == 40
            log = root / "commitlog" / ("0" * 20)
            data = log.read_bytes()
            log.unlink()
            if fails == "true":
                with pytest.raises(DataLossError, match="gone, with 40 requested messages"):
                    next(batches)
            else:
                assert list(batches) == []
                assert "omitted 60 records" in caplog.text
            log.write_bytes(data)

    def test_damage_that_an_export_has_seen(self, root: Path) -> None:
        """The report has the damage that the export read, whatever the file has now."""
        log = root / "commitlog" / ("0" * 20)
        data = log.read_bytes()
        log.write_bytes(data.replace(b"007", b"oo7"))
        for fails in ("true", "false"):
            reader = split_reader(root, failOnDataLoss=fails, verifyCrc="true")
            batches = reader.batches()
            assert next(batches).num_rows == 99
            log.rename(root / "away")
            assert list(batches) == []
            (root / "away").rename(log)
            (skipped,) = reader.skipped
            assert (skipped.start, skipped.stop, skipped.path) == (7, 8, str(log))
            assert reader.crc_failures == 1

    def test_a_split_of_an_export(self, root: Path) -> None:
        reader = split_reader(root, failOnDataLoss="false", batchRows="40")
        batches = reader.batches()
        assert next(batches).num_rows == 40
        (root / "commitlog" / ("0" * 20)).unlink()
        assert list(batches) == []
        assert [(s.start, s.stop, s.records, s.reason) for s in reader.skipped] == [
            (40, 80, 40, "the log's file is gone"),
            (80, 100, 20, "the log's file is gone"),
        ]


def test_compressed_bodies_are_decoded_twice_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are inflated a few at a time; a task that has met one expects others."""
    with pyrocketstore.open(tmp_path / "s") as store:
        for i in range(100):
            inner = pyrocketstore.MessageExtBrokerInner("T", zlib.compress(b"%03d" % i * 9))
            inner.sys_flag = int(i % 10 == 5)
            store.message_store.put_message(inner)
    calls = []

    def counted(*arguments: object, **options: object) -> object:
        calls.append(decode_file_records(*arguments, **options))  # type: ignore[call-overload]
        return calls[-1]

    monkeypatch.setattr(decode, "decode_file_records", counted)
    (found,) = tasks(tmp_path / "s", "body", "sysFlag", readMode="queue", batchRows=5)
    bodies = [row["body"] for batch in found for row in batch.to_pylist()]
    plain = [zlib.compress(b"%03d" % i * 9) for i in range(100)]
    assert bodies == [b"%03d" % i * 9 if i % 10 == 5 else plain[i] for i in range(100)]
    assert [call is None for call in calls] == [False, True]
