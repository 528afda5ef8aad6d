"""Goal: rows read through Spark are the messages that 4.9.3 returns for the store, in every mode.
Method: the answers of 4.9.3 over the golden stores, compared column by column; small damaged
stores."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore.errors import StoreCorruptionError, StoreFormatError
from pyrocketstore.spark.options import StorePlace, read_options
from pyrocketstore.spark.read.log_walk import LogWalk
from pyrocketstore.spark.read.records import Chunk
from pyrocketstore.spark.task_types import DataLossError, LogFile, LogTask
from pyrocketstore.system.env import Env

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from direct_reads import (
    FILE_SIZE,
    SIZES,
    as_golden,
    damage,
    golden_messages,
    make_store,
    ms,
    read_directly,
)
from pyrocketstore.spark.plan.batch import plan
from pyrocketstore.spark.plan.snapshot import StoreSnapshot
from pyrocketstore.spark.read.worker import read_task
from pyrocketstore.spark.source.batch import StoreReader
from support.golden_stores import GOLDEN
from support.golden_stores import NAMES as STORES

FORMAT = "rocketmq-store"

Read = Callable[..., DataFrame]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The unpacked golden stores; no test writes to them."""
    root = tmp_path_factory.mktemp("golden")

    def unpacked(name: str) -> Path:
        if not (root / name).exists():
            with tarfile.open(GOLDEN / f"{name}.tar.xz") as tar:
                tar.extractall(root, filter="fully_trusted")
        return root / name

    return unpacked


@pytest.fixture
def read(spark: SparkSession) -> Read:
    """read(path, schema=None, **options)."""

    def load(path: Path | str, schema: str | None = None, **options: object) -> DataFrame:
        reader = spark.read.format(FORMAT)
        if schema is not None:
            reader = reader.schema(schema)
        for name, value in options.items():
            reader = reader.option(name, str(value).lower() if value in (True, False) else value)
        return reader.load(str(path))

    return load


def tree(root: Path) -> dict[str, tuple[int, int, str]]:
    """Everything about the files of a directory that a reader could have changed."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.stat()
        text = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (status.st_mtime_ns, status.st_size, text)
    return found


# ---- golden answers ------------------------------------------------------------------------------


def full_schema(read: Read, path: Path, **options: object) -> str:
    shown = ", ".join(
        f"`{f.name}` {f.dataType.simpleString()}" for f in read(path, **options).schema
    )
    return f"{shown}, msgTopic string, msgQueueId int, msgQueueOffset bigint"


@pytest.mark.parametrize("mode", ["queue", "sequential"])
@pytest.mark.parametrize("name", STORES)
def test_rows_are_the_golden_answers(
    name: str, mode: str, golden: Callable[[str], Path], read: Read
) -> None:
    path = golden(name)
    before = tree(path)
    options = {
        "brokerConf": GOLDEN / f"{name}.conf",
        "includeSystemTopics": True,
        "decompress": False,
        "readMode": mode,
        "minPartitions": 3,
    }
    rows = read(path, full_schema(read, path), **options).collect()
    expected = golden_messages(name)
    found = {(row.topic, row.queueId, row.commitLogOffset): row for row in rows}
    assert len(found) == len(rows)
    if name == "x-lostfiles":  # there 4.9.3 has lost some messages, and renumbers others
        assert set(expected) <= set(found)
    else:
        assert set(expected) == set(found)
    for key, message in expected.items():
        row = found[key]
        said = as_golden(row)
        assert said == {field: message[field] for field in said}
        assert f"/{row.bornHost}" == message["born_host"] or ":" in row.bornHost
        assert row.brokerName == name
        if not row.topic.startswith("%LMQ%"):
            assert row.queueOffset == message["queue_offset"]
    assert tree(path) == before


# ---- stores of our own ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("own") / "broker-x")


def offsets_of(df: DataFrame) -> list[int]:
    return sorted(row.commitLogOffset for row in df.select("commitLogOffset").collect())


class TestBatch:
    def test_a_frame_is_one_snapshot(self, read: Read, tmp_path: Path) -> None:
        root = make_store(tmp_path / "s", 20)
        frame = read(root)
        assert frame.count() == 80
        make_store(root, 5)
        assert frame.count() == 80
        assert frame.filter("queueId = 1").count() == 40
        assert frame.filter("queueId=0").union(frame.filter("queueId=1")).count() == 80
        assert frame.join(frame, "commitLogOffset").count() == 80
        assert read(root).count() == 100

    def test_pinned_at_load(self, read: Read, tmp_path: Path) -> None:
        root = make_store(tmp_path / "s", 10)
        early, late = read(root, snapshot="load"), read(root)
        make_store(root, 1)
        assert (early.count(), late.count()) == (40, 44)

    @pytest.mark.parametrize("mode", ["queue", "sequential"])
    def test_columns_in_any_order(self, store: Path, read: Read, mode: str) -> None:
        whole = read(store, readMode=mode).orderBy("commitLogOffset").collect()
        names = ["body", "msgTopic", "brokerName", "queueOffset", "storeTimestamp", "properties"]
        kinds = {f.name: f.dataType.simpleString() for f in read(store).schema}
        kinds["msgTopic"] = "string"
        schema = ", ".join(f"{name} {kinds[name]}" for name in [*names, "commitLogOffset"])
        rows = read(store, schema, readMode=mode).orderBy("commitLogOffset").collect()
        assert [tuple(row)[:-1] for row in rows] == [
            tuple(row.topic if name == "msgTopic" else row[name] for name in names) for row in whole
        ]

    @pytest.mark.parametrize("mode", ["queue", "sequential"])
    def test_selection(self, store: Path, mode: str) -> None:
        def count(**options: object) -> int:
            return len(read_directly(store, "topic", readMode=mode, **options))

        assert count() == 1200
        assert count(topic="T1") == 600
        assert count(topics="T0, T1") == 1200
        assert count(topicPattern="T[1-9]") == 600
        assert count(assign='{"T0": [1]}') == 300
        assert count(subExpression="tag0 || tag1") == 800
        assert count(subExpression="tag9") == 0
        assert count(where="TAGS = 'tag0' OR TAGS = 'tag1'") == 800
        assert count(where="TAGS IN ('tag1')", subExpression="tag0 || tag1") == 400
        assert count(where="TAGS IS NULL") == 0
        assert count(startingOffsets='{"T0": {"0": 290}, "T1": {"broker-x": {"1": 300}}}') == 610
        assert count(endingOffsets='{"T0": {"0": 10, "1": 0}}', topic="T0") == 10
        assert count(topic="T0", maxRecordsPerPartition=7) == 600

    def test_by_time(self, store: Path) -> None:
        def count(**options: object) -> int:
            return len(read_directly(store, "topic", assign='{"T0": [0]}', **options))

        rows = read_directly(store, "queueOffset", "storeTimestamp", assign='{"T0": [0]}')
        times = [ms(row.storeTimestamp) for row in rows]
        assert times == sorted(times)
        middle = times[150]
        later = sum(time >= middle for time in times)
        assert count(startingTimestamp=middle) == later
        assert count(endingTimestamp=middle) == 300 - later
        assert count(startingOffsetsByTimestamp=json.dumps({"T0": {"0": middle}})) == later
        never = {"startingOffsetsByTimestamp": json.dumps({"T0": {"0": times[-1] + 10**6}})}
        with pytest.raises(DataLossError, match="nothing was stored"):
            count(**never)
        assert count(**never, startingOffsetsByTimestampStrategy="latest") == 0

    def test_several_stores(self, spark: SparkSession, store: Path, tmp_path: Path) -> None:
        other = make_store(tmp_path / "b", 10)
        stores = json.dumps({"broker-a": str(store), "broker-b": str(other)})
        frame = spark.read.format(FORMAT).option("stores", stores).load()
        counts = {
            row.brokerName: row["count"] for row in frame.groupBy("brokerName").count().collect()
        }
        assert counts == {"broker-a": 1200, "broker-b": 40}

    def test_kafka_columns(self, store: Path, read: Read) -> None:
        frame = read(store, kafkaSchema=True, includeHeaders=True, topic="T0")
        assert frame.columns == [
            "key",
            "value",
            "topic",
            "partition",
            "offset",
            "timestamp",
            "timestampType",
            "headers",
        ]
        row = frame.filter("partition = 1 and offset = 5").collect()[0]
        assert bytes(row.key) == b"key-0-5"
        assert bytes(row.value).startswith(b"0-1-5-")
        assert row.timestampType == 1
        assert {each.key: bytes(each.value) for each in row.headers}["n"] == b"5"

    @pytest.mark.smoke
    def test_sql(self, spark: SparkSession, store: Path) -> None:
        spark.sql(
            f"CREATE OR REPLACE TEMP VIEW m USING `{FORMAT}` OPTIONS (path '{store}', topic 'T1')"
        )
        found = spark.sql("SELECT tags, count(*) n FROM m GROUP BY tags ORDER BY tags").collect()
        assert [tuple(row) for row in found] == [("tag0", 200), ("tag1", 200), ("tag2", 200)]

    def test_limit_lets_go(self, store: Path, read: Read) -> None:
        assert len(read(store, batchRows=10).limit(1).collect()) == 1
        assert read(store).count() == 1200

    def test_an_empty_store(self, read: Read, tmp_path: Path) -> None:
        pyrocketstore.open(tmp_path / "s").close()
        for view in ("messages", "commitlog", "consumequeue", "index"):
            assert read(tmp_path / "s", view=view).count() == 0
        read(tmp_path / "s", view="files").count()

    def test_a_body_of_the_largest_size(self, read: Read, tmp_path: Path) -> None:
        body = bytes(range(256)) * (4 * 1024 * 4 - 2)
        with pyrocketstore.open(tmp_path / "s") as store:
            for _ in range(3):
                store.put("T", body)
        for mode in ("queue", "sequential"):
            rows = read(tmp_path / "s", readMode=mode, batchBytes="1m").collect()
            assert [bytes(row.body) == body for row in rows] == [True] * 3

    def test_bad_text(self, read: Read, tmp_path: Path) -> None:
        root = make_store(tmp_path / "s", 3)
        log = (root / "commitlog" / ("0" * 20)).read_bytes()
        place = log.index(b"tag1")
        damage(root, place, b"t\xff\xfe1")
        assert "t\ufffd\ufffd1" in {row.tags for row in read(root).collect()}


class TestViews:
    def test_consume_queue(self, store: Path, read: Read) -> None:
        units = read(store, view="consumequeue")
        messages = read(store)
        joined = units.join(messages, ["topic", "queueId", "queueOffset", "commitLogOffset"])
        assert (units.count(), joined.count()) == (1200, 1200)
        assert joined.filter(units["size"] != messages["storeSize"]).count() == 0

    def test_index(self, store: Path, read: Read) -> None:
        shown = read(store, view="index")
        schema = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in shown.schema)
        rows = read(store, schema + ", indexCount int, brokerName string", view="index").collect()
        assert len(rows) >= 1200
        assert {row.indexCount for row in rows} == {len(rows) + 1}
        assert {row.brokerName for row in rows} == {"broker-x"}
        named = {row.commitLogOffset for row in rows}
        assert named == set(offsets_of(read(store)))
        assert all(row.slot == row.keyHash % 5_000_000 for row in rows)

    def test_commit_log(self, store: Path, read: Read) -> None:
        frame = read(store, view="commitlog", minPartitions=5)
        kinds = {
            row.recordType: row["count"] for row in frame.groupBy("recordType").count().collect()
        }
        assert kinds["message"] == 1200
        assert kinds["blank"] >= 1
        assert "corrupt" not in kinds
        end = frame.agg(F.max(F.col("filePosition") + F.col("totalSize"))).collect()[0][0]
        assert end == FILE_SIZE
        assert offsets_of(frame.filter("recordType='message'")) == offsets_of(read(store))

    def test_files(self, store: Path, read: Read) -> None:
        kinds = {row.kind for row in read(store, view="files").collect()}
        assert kinds == {"commitlog", "consumequeue", "index"}


class TestCuts:
    @pytest.fixture
    def small(self, tmp_path: Path) -> tuple[Path, LogFile, int]:
        """A log with records inside of bodies, one of them at its own former offset."""
        root = make_store(tmp_path / "s", 3, body=120, topics=1)
        log = (root / "commitlog" / ("0" * 20)).read_bytes()
        with pyrocketstore.open(root, config=pyrocketstore.MessageStoreConfig(**SIZES)) as store:
            store.put("T0", log[:300])
            store.put("T0", b"end")
        with StoreSnapshot(StorePlace("b", str(root))) as snapshot:
            return root, snapshot.log_files()[0], snapshot.max_phy_offset

    @staticmethod
    def walk(file: LogFile, begin: int, stop: int, end: int) -> list[tuple[int, str]]:
        """Records and gaps of a range: (position, kind)."""
        task = LogTask("b", file, begin, stop, end, begin == 0, stop == end, None)
        found: list[tuple[int, str]] = []
        for piece in LogWalk(Env(), task, fail_on_data_loss=True):
            if isinstance(piece, Chunk):
                found += [(place, "record") for place in piece.phy_offsets.tolist()]
            else:
                found.append((piece.position, f"{piece.size} {piece.reason}"))
        return found

    def test_every_byte_range_yields_each_record_once(
        self, small: tuple[Path, LogFile, int]
    ) -> None:
        _, file, end = small
        whole = self.walk(file, 0, end, end)
        assert [what for _, what in whole] == ["record"] * 8
        for cut in range(1, end):
            assert self.walk(file, 0, cut, end) + self.walk(file, cut, end, end) == whole, cut

    def test_every_byte_range_yields_damage_once(self, small: tuple[Path, LogFile, int]) -> None:
        root, file, end = small
        places = [place for place, _ in self.walk(file, 0, end, end)]
        for bad in (places[2], places[5]):
            damage(root, bad, bytes(60))
        whole = self.walk(file, 0, end, end)
        assert [what.endswith("(zeros)") for _, what in whole].count(True) == 2
        for cut in range(1, end):
            assert self.walk(file, 0, cut, end) + self.walk(file, cut, end, end) == whole, cut

    def test_every_byte_range_yields_a_blank_once(self, store: Path) -> None:
        with StoreSnapshot(StorePlace("b", str(store))) as snapshot:
            file = snapshot.log_files()[0]
        whole = self.walk(file, 0, file.size, file.size)
        place, what = whole[-1]
        assert what.endswith(" ")
        for cut in [*range(whole[-2][0] - 50, place + 9), file.size - 1]:
            first = self.walk(file, 0, cut, file.size)
            assert first + self.walk(file, cut, file.size, file.size) == whole, cut


# ---- units that lie ------------------------------------------------------------------------------


def unit(phy_offset: int, size: int, tags_code: int = 0) -> bytes:
    return struct.pack(">qiq", phy_offset, size, tags_code)


class TestBadUnits:
    """A unit is compared with its record, and both modes have one result."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return make_store(tmp_path / "s", 1100)

    @staticmethod
    def write_unit(root: Path, topic: str, queue_offset: int, data: bytes) -> None:
        place = queue_offset * 20
        path = root / "consumequeue" / topic / "0" / f"{place - place % 20000:020d}"
        with path.open("r+b") as file:
            file.seek(place % 20000)
            file.write(data)

    @pytest.mark.parametrize("mode", ["queue", "sequential"])
    @pytest.mark.parametrize(
        "bad",
        [
            unit(2**63 - 10, 1085),
            unit(10**12, 1085),
            unit(0, 1085),
            unit(1, 1085),
            unit(5000, 2**31 - 2),
        ],
    )
    def test_a_place_that_is_none(self, root: Path, bad: bytes, mode: str) -> None:
        self.write_unit(root, "T0", 150, bad)
        with pytest.raises((StoreCorruptionError, DataLossError)):
            read_directly(root, "queueOffset", readMode=mode, snapshot="load")
        rows = read_directly(
            root, "topic", "queueId", "queueOffset", readMode=mode, onCorrupt="skip",
            failOnDataLoss=False,
        )  # fmt: skip
        found = {tuple(row.values()) for row in rows}
        assert len(rows) == len(found) == 4399
        assert ("T0", 0, 150) not in found

    @pytest.mark.parametrize("mode", ["queue", "sequential"])
    @pytest.mark.parametrize("bad", [unit(-5, 1085), unit(5000, -1), unit(0, 0)])
    def test_units_that_recovery_repairs(self, root: Path, bad: bytes, mode: str) -> None:
        self.write_unit(root, "T0", 150, bad)
        rows = read_directly(root, "topic", "queueId", "queueOffset", readMode=mode)
        assert len({tuple(row.values()) for row in rows}) == len(rows) == 4400

    @pytest.mark.parametrize("mode", ["queue", "sequential"])
    def test_the_record_of_another_queue(self, root: Path, mode: str) -> None:
        rows = read_directly(
            root, "topic", "queueId", "queueOffset", "commitLogOffset", "storeSize"
        )
        other = next(r for r in rows if (r.topic, r.queueId, r.queueOffset) == ("T1", 0, 150))
        self.write_unit(root, "T0", 150, unit(other.commitLogOffset, other.storeSize))
        with pytest.raises(StoreCorruptionError, match="unit 150 of T0/0 names"):
            read_directly(root, "body", readMode=mode)
        options = {"readMode": mode, "onCorrupt": "skip"}
        left = read_directly(root, "topic", "queueId", "queueOffset", **options)
        assert len(left) == 4399
        nulls = read_directly(root, readMode=mode, onCorrupt="null")
        assert [row.queueOffset for row in nulls if row.bodyCRC is None] == [150]

    def test_the_last_unit_names_the_first_byte(self, root: Path) -> None:
        self.write_unit(root, "T0", 150, unit(0, 1085))
        options = {"endingOffsets": '{"T0": {"0": 151}}', "topic": "T0", "onCorrupt": "skip"}
        for mode in ("queue", "sequential"):
            rows = read_directly(root, "queueId", "queueOffset", readMode=mode, **options)
            assert len(rows) == 1100 + 150

    @pytest.mark.parametrize("mode", ["queue", "sequential", "auto"])
    def test_a_log_file_missing_in_the_middle(self, root: Path, mode: str) -> None:
        (root / "commitlog" / f"{FILE_SIZE:020d}").unlink()
        with pytest.raises(DataLossError, match="gone"):
            read_directly(root, "topic", readMode=mode)
        rows = read_directly(root, "commitLogOffset", readMode=mode, failOnDataLoss=False)
        assert 2000 < len(rows) < 4400
        assert all(row.commitLogOffset // FILE_SIZE != 1 for row in rows)

    def test_a_cut_at_no_record(self, root: Path) -> None:
        self.write_unit(root, "T0", 150, unit(777, 1085))
        options = {"onCorrupt": "skip", "readMode": "sequential", "partitionBytes": 5000}
        assert len(read_directly(root, "topic", **options)) == 4399

    @pytest.mark.parametrize("mode", ["queue", "sequential"])
    def test_a_record_in_a_queue_of_another_name(self, tmp_path: Path, mode: str) -> None:
        with pyrocketstore.open(tmp_path / "s", enable_multi_dispatch=True, **SIZES) as store:
            for number in range(20):
                queues = {"INNER_MULTI_DISPATCH": "plain"}
                store.put("T", str(number).encode(), queue_id=1, properties=queues)
        rows = read_directly(tmp_path / "s", "topic", "body", readMode=mode)
        assert sum(row.topic == "plain" for row in rows) == 20
        assert len(rows) == 40


class TestInflated:
    @pytest.mark.parametrize("mode", ["queue", "sequential"])
    def test_many_large_bodies(self, tmp_path: Path, mode: str) -> None:
        body = zlib.compress(bytes(4 << 20))
        with pyrocketstore.open(tmp_path / "s") as store:
            for _ in range(100):
                store.put("T", body)
        log = tmp_path / "s" / "commitlog" / ("0" * 20)
        with log.open("r+b") as file:
            for row in read_directly(tmp_path / "s", "commitLogOffset"):
                file.seek(row.commitLogOffset + 36)
                file.write((1).to_bytes(4, "big"))
        requested = read_options({"path": str(tmp_path / "s"), "readMode": mode})
        sizes = []
        planned = plan(requested)
        for partition in planned.tasks:
            for batch in read_task(partition, {"body": "binary"}, requested, planned.common):
                sizes.append(batch.nbytes)
                assert batch.num_rows <= 8
        assert sum(sizes) > 100 * (4 << 20)


# ---- damage and loss -----------------------------------------------------------------------------


#: How many messages a damaged store had.
COUNTS: dict[Path, int] = {}


class TestDamage:
    @pytest.fixture(params=["new", "old"])
    def damaged(self, request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[int]]:
        """A store with a flipped body byte, a lost head, and a lost length; and where: in files
        that recovery looks at, or before them."""
        count = 100 if request.param == "new" else 1100
        root = make_store(tmp_path / "s", count)
        places = sorted(row.commitLogOffset for row in read_directly(root, "commitLogOffset"))
        COUNTS[root] = len(places)
        bad = [places[50], places[120], places[200]]
        damage(root, bad[0] + 200, b"\xff")
        damage(root, bad[1], bytes(60))
        damage(root, bad[2], b"\0\0\0\5")
        return root, bad

    @pytest.mark.parametrize("mode", ["queue", "sequential"])
    def test_fail(self, damaged: tuple[Path, list[int]], mode: str) -> None:
        root, bad = damaged
        places = "|".join(map(str, bad))
        with pytest.raises(StoreCorruptionError, match=f"at byte ({places})"):
            read_directly(root, "topic", readMode=mode)
        with pytest.raises(StoreCorruptionError, match=f"at byte ({places})"):
            read_directly(root, "topic", readMode=mode, verifyCrc=True)

    @pytest.mark.parametrize("mode", ["queue", "sequential"])
    def test_skip(
        self, damaged: tuple[Path, list[int]], mode: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        root, bad = damaged

        def places(**options: object) -> list[int]:
            rows = read_directly(
                root, "commitLogOffset", readMode=mode, onCorrupt="skip", **options
            )
            return sorted(row.commitLogOffset for row in rows)

        found = places()
        assert len(found) == COUNTS[root] - 2
        assert not set(bad[1:]) & set(found)
        assert "omitted" in caplog.text
        checked = places(verifyCrc=True)
        assert len(checked) == COUNTS[root] - 3
        assert not set(bad) & set(checked)

    def test_null(self, damaged: tuple[Path, list[int]]) -> None:
        root, bad = damaged
        rows = read_directly(root, onCorrupt="null", verifyCrc=True)
        assert len(rows) == COUNTS[root]
        lost = [row for row in rows if row.bodyCRC is None]
        assert sorted(row.commitLogOffset for row in lost) == bad
        for row in lost:
            assert row.topic in ("T0", "T1")
            assert row.queueOffset is not None
            assert row.storeSize > 1000
            assert row.body is None
        assert len(read_directly(root, "topic", onCorrupt="null")) == COUNTS[root]

    def test_the_log_shows_the_damage(self, damaged: tuple[Path, list[int]]) -> None:
        root, bad = damaged
        options = {"onCorrupt": "skip", "verifyCrc": True, "minPartitions": 7}
        rows = read_directly(root, view="commitlog", **options)
        lost = [row for row in rows if row.recordType == "corrupt"]
        assert sorted(row.filePosition for row in lost) == bad
        assert all(row.totalSize > 1000 for row in lost)

    def test_in_spark(self, tmp_path: Path, read: Read) -> None:
        root = make_store(tmp_path / "s", 1100)
        places = [row.commitLogOffset for row in read_directly(root, "commitLogOffset")]
        damage(root, min(places), bytes(60))
        with pytest.raises(PythonException, match="at byte 0: never written"):
            read(root).count()
        assert read(root, onCorrupt="skip").count() == 4399
        assert read(root, onCorrupt="null").filter("bodyCRC is null").count() == 1

    def test_a_body_that_does_not_inflate(self, tmp_path: Path) -> None:
        root = make_store(tmp_path / "s", 10)
        rows = read_directly(root)
        place = next(row.commitLogOffset for row in rows if row.queueOffset == 4)
        damage(root, place + 36, (1).to_bytes(4, "big"))  # "compressed"
        with pytest.raises(StoreCorruptionError, match="inflate"):
            read_directly(root)
        assert len(read_directly(root, decompress=False)) == 40
        assert len(read_directly(root, onCorrupt="skip")) == 39
        lost = [row for row in read_directly(root, onCorrupt="null") if row.body is None]
        assert [row.commitLogOffset for row in lost] == [place]

    @pytest.mark.parametrize("mode", ["queue", "sequential"])
    def test_a_file_that_is_gone(self, tmp_path: Path, read: Read, mode: str) -> None:
        root = make_store(tmp_path / "s", 600)
        planned = [
            read(root, readMode=mode, failOnDataLoss=f, snapshot="load") for f in (True, False)
        ]
        (root / "commitlog" / f"{FILE_SIZE:020d}").unlink()
        with pytest.raises(PythonException, match="gone"):
            planned[0].count()
        left = planned[1].count()
        assert 0 < left < 2400
        assert all(o // FILE_SIZE != 1 for o in offsets_of(planned[1]))

    def test_offsets_that_are_not_there(self, store: Path, read: Read) -> None:
        options = {"startingOffsets": '{"T0": {"0": 301}}', "topic": "T0"}
        with pytest.raises((PythonException, AnalysisException), match="301"):
            read(store, **options).count()
        assert read(store, failOnDataLoss=False, **options).count() == 300


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"topci": "T"}, "unknown option 'topci'; the nearest is topic"),
            ({"view": "table"}, "must be one of messages"),
            ({"topic": "T", "assign": "{}"}, "only one of"),
            ({"topicPattern": "T["}, "regular expression"),
            ({"startingOffsets": "latest"}, "selects no message in a batch; use earliest"),
            ({"startingOffsets": "{"}, "is not valid JSON"),
            ({"startingOffsets": '{"T": {"x": 1}}'}, "must be like"),
            ({"assign": '{"T": ["0"]}'}, "must be like"),
            ({"batchRows": "0"}, "number from 1"),
            ({"partitionBytes": "12q"}, "number of bytes"),
            ({"verifyCrc": "yes"}, "true or false"),
            ({"onCorrupt": "ignore"}, "must be one of fail"),
            ({"maxOffsetsPerTrigger": "5"}, "is for stream queries"),
            ({"kafkaSchema": "true", "view": "index"}, "kafkaSchema is for"),
            ({"view": "commitlog", "topic": "T"}, "topic is for view messages and consumequeue"),
            ({"view": "consumequeue", "subExpression": "a"}, "subExpression is for view messages"),
            ({"view": "index", "where": "a = 1"}, "where is for view messages"),
            ({"where": "a >"}, "where='a >': SQL filter"),
            ({"includeHeaders": "true"}, "includeHeaders is for"),
            ({"assign": '{"T": [0], "T": [1]}'}, "names something twice"),
        ],
    )
    def test_an_option(self, options: dict[str, str], text: str) -> None:
        with pytest.raises(StoreFormatError, match=text.replace("[", r"\[")):
            read_options({"path": "/x", **options})

    @pytest.mark.parametrize("second", ["{0}", "{0}/.", "{0}/../{1}"])
    def test_one_directory_twice(self, store: Path, second: str) -> None:
        root = str(store)
        again = second.format(root, store.name)
        with pytest.raises(StoreFormatError, match="two are the same directory"):
            read_options({"stores": json.dumps({"a": root, "b": again})})

    def test_in_spark(self, store: Path, read: Read, tmp_path: Path) -> None:
        refused = (PythonException, AnalysisException)
        with pytest.raises(refused, match="unknown option"):
            read(store, topci="T").count()
        with pytest.raises(refused, match="no column 'nothing'"):
            read(store, "topic string, nothing int").count()
        with pytest.raises(refused, match="queueId is int, not bigint"):
            read(store, "queueId bigint").count()
        with pytest.raises(refused, match="no store has a topic"):
            read(store, topic="T7").count()
        with pytest.raises(refused, match="not a directory"):
            read(tmp_path / "none").count()
        (tmp_path / "d" / "batchconsumequeue" / "T").mkdir(parents=True)
        with pytest.raises(refused, match="batch consume queue"):
            read(tmp_path / "d").count()

    def test_nothing_is_written(self, store: Path, read: Read) -> None:
        before = tree(store)
        for view in ("messages", "commitlog", "consumequeue", "index", "files"):
            read(store, view=view).count()
        assert tree(store) == before


def test_values_that_all_tasks_share_are_sent_once(tmp_path: Path) -> None:
    """A plan grows by tasks and by queues, not by their product."""
    with pyrocketstore.open(
        tmp_path / "s",
        mapped_file_size_commit_log=1 << 16,
        mapped_file_size_consume_queue=400,
    ) as store:
        for number in range(2000):
            store.put(f"t{number % 100}", bytes(1000), queue_id=number % 3)
    texts = {"path": str(tmp_path / "s"), "readMode": "sequential", "minPartitions": "60"}
    requested = read_options(texts)
    reader = StoreReader(requested, {"queueOffset": "bigint"}, None)
    sent = pickle.loads(pickle.dumps(reader))
    partitions = reader.partitions()
    assert len(partitions) >= 60
    assert max(len(pickle.dumps(each)) for each in partitions) < 1500
    assert 100 * 30 < len(pickle.dumps(reader)) < 100 * 3 * 400
    assert len(pickle.dumps(sent)) == len(pickle.dumps(reader)), "the tasks are not in it"
    rows = sum(b.num_rows for each in partitions for b in sent.read(each))
    assert rows == 2000


@pytest.mark.bad_input
@pytest.mark.parametrize("time_ms", [(1 << 63) - 1, -(1 << 63), (1 << 62) + 5])
def test_an_index_header_whose_times_are_none(tmp_path: Path, time_ms: int) -> None:
    """They are null, and the entries are there."""
    with pyrocketstore.open(tmp_path / "s") as store:
        for number in range(5):
            store.put("t", b"x", keys=f"k{number}")
    (index,) = (tmp_path / "s" / "index").iterdir()
    with index.open("r+b") as file:
        file.write(struct.pack(">qq", time_ms, time_ms))
    rows = read_directly(tmp_path / "s", view="index")
    assert [(r.commitLogOffset >= 0, r.storeTimestamp) for r in rows] == [(True, None)] * 5
    (row,) = [r for r in read_directly(tmp_path / "s", view="files") if r.kind == "index"]
    assert row.minStoreTimestamp is None
