"""Goal: rows that Spark appends are ordinary messages; a write appends all rows, or fails with an
error that says which.
Method: real writes, read back by the engine and by the data source; each refusal is provoked."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pyrocketstore
from pyrocketstore import MessageExt, StoreError, StoreFormatError
from pyrocketstore.errors import StoreCorruptionError, StoreStateError
from pyrocketstore.record.message import RESERVED_NAMES

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from pyrocketstore.spark.source import writer as writer_module
from pyrocketstore.spark.source.writer import (
    STAGING,
    StagedRows,
    StoreStreamWriter,
    StoreWriter,
    check_rows,
    open_store,
    put_rows,
    rows_of,
    write_options,
)
from pyrocketstore.system.env import Env

FORMAT = "rocketmq-store"
GOLDEN = Path(__file__).parent.parent / "golden"
SCHEMA = (
    "topic string, body binary, tags string, keys string, properties map<string,string>, "
    "queueId int, flag int, bornTimestamp timestamp"
)
SIZES = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 2000}
BORN = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000, datetime.UTC)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    pyrocketstore.open(tmp_path / "store", **SIZES).close()
    return tmp_path / "store"


def save(rows: DataFrame, root: Path | str, **options: object) -> None:
    writer = rows.write.format(FORMAT).mode("append")
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save(str(root))


def messages(root: Path) -> list[MessageExt]:
    with pyrocketstore.open(root, read_only=True) as store:
        return [
            m for topic in store.topics() for i in store.queues(topic) for m in store.read(topic, i)
        ]


def bodies(root: Path) -> list[bytes]:
    return [bytes(message.body) for message in messages(root)]


def assert_staging_is_gone(root: Path) -> None:
    assert not (root / STAGING).exists()


def markers(root: Path) -> dict[str, dict[str, int]]:
    """Checkpoint -> query id -> its last batch, of all files of one query."""
    found: dict[str, dict[str, int]] = {}
    for path in (root / "config").glob("sparkBatches-*.json"):
        marker = json.loads(path.read_text())
        found.setdefault(marker["checkpoint"], {})[marker["queryId"]] = marker["batch"]
    return found


# ---- what comes back -----------------------------------------------------------------------------


def test_every_column_comes_back(spark: SparkSession, root: Path) -> None:
    rows = [
        ("t", b"one", "TagA", "k1 k2", {"a": "b", "c": "d"}, 1, 7, BORN),
        ("t", b"", None, None, None, None, None, None),
        ("u", b"\xff\0", None, "k", {}, 0, -1, None),
    ]
    save(spark.createDataFrame(rows, SCHEMA).coalesce(1), root)
    assert_staging_is_gone(root)
    found = {(m.topic, m.queue_id): m for m in messages(root)}
    first, second, third = found["t", 1], found["t", 0], found["u", 0]
    assert (first.body, first.tags, first.keys, first.flag) == (b"one", "TagA", "k1 k2", 7)
    assert (first.properties["a"], first.properties["c"]) == ("b", "d")
    assert first.born_timestamp == int(BORN.timestamp() * 1000)
    assert (second.body, second.properties, second.flag) == (b"", {}, 0)
    assert abs(second.born_timestamp - second.store_timestamp) < 60_000
    assert (third.body, third.keys, third.flag) == (b"\xff\0", "k", -1)
    shown = spark.read.format(FORMAT).load(str(root)).select("topic", "queueId", "body", "tags")
    assert sorted(map(tuple, shown.collect()), key=lambda row: row[:2]) == [
        ("t", 0, bytearray(), None),
        ("t", 1, bytearray(b"one"), "TagA"),
        ("u", 0, bytearray(b"\xff\0"), None),
    ]


def test_order_is_kept_within_partitions(spark: SparkSession, root: Path) -> None:
    rows = spark.range(0, 3000, 1, 3).selectExpr(
        "concat('t', id % 2) topic", "cast(id as string) body", "cast(id % 3 as int) queueId",
        "if(id % 5 = 0, 'x', null) tags",
    )  # fmt: skip
    save(rows, root)
    found = messages(root)
    assert sorted(int(m.body) for m in found) == list(range(3000))
    by_queue: dict[Any, list[int]] = {}
    for message in found:
        number = int(message.body)
        assert (message.topic, message.queue_id) == (f"t{number % 2}", number % 3)
        assert message.tags == (None if number % 5 else "x")
        by_queue.setdefault((message.topic, message.queue_id), []).append(number)
    assert all(numbers == sorted(numbers) for numbers in by_queue.values())


def test_a_default_topic_and_a_store_that_is_made(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "new"
    rows = spark.createDataFrame([("a", "x"), (None, "y")], "topic string, body string")
    save(rows, root, topic="t", stagingDir=tmp_path / "staging", flushDiskType="SYNC_FLUSH")
    assert {(m.topic, bytes(m.body)) for m in messages(root)} == {("a", b"x"), ("t", b"y")}
    assert not list((tmp_path / "staging").iterdir())
    assert not (root / STAGING).exists()
    save(spark.createDataFrame([("z",)], "body string"), root.as_uri(), topic="t")
    assert sorted(bodies(root)) == [b"x", b"y", b"z"]


@pytest.mark.parametrize("name", ["broker-clean", "mixed"])
def test_the_messages_view_is_written_back(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Columns that the store fills itself are ignored, and reserved properties are dropped."""
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as tar:
        tar.extractall(tmp_path, filter="fully_trusted")
    view = spark.read.format(FORMAT).option("brokerConf", str(GOLDEN / f"{name}.conf"))
    given = view.load(str(tmp_path / name)).where("topic RLIKE '^[%|a-zA-Z0-9_-]+$'")
    given.coalesce(1).write.format(FORMAT).mode("append").save(str(tmp_path / "again"))
    kept = ["topic", "queueId", "tags", "keys", "flag", "bornTimestamp", "body"]
    found = spark.read.format(FORMAT).load(str(tmp_path / "again"))
    rows, again = (
        sorted(
            (*(str(row[column]) for column in kept), str(sorted(own_properties(row))))
            for row in frame.collect()
        )
        for frame in (given, found)
    )
    assert rows == again and rows


def own_properties(row: Any) -> list[tuple[str, str]]:
    return [pair for pair in (row.properties or {}).items() if pair[0] not in RESERVED_NAMES]


def test_columns_of_another_case_are_written(spark: SparkSession, root: Path) -> None:
    rows = [("t", "x", 3, {"KEYS": "k", "UNIQ_KEY": "u", "a": "b"})]
    schema = "TOPIC string, Body string, queueid int, Properties map<string,string>"
    save(spark.createDataFrame(rows, schema), root)
    (message,) = messages(root)
    assert (message.topic, message.body, message.queue_id) == ("t", b"x", 3)
    assert message.properties == {"a": "b"}


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "reported"),
    [
        ("topic string, body string, colour string", "no message has a column 'colour'"),
        ("topic string, body int", "body is binary or string, not int"),
        ("topic string, body string, queueId bigint", "queueId is int, not bigint"),
        ("topic string", "columns body and topic are required"),
        ("body string", "columns body and topic are required"),
        ("topic string, body string, BODY string", "the schema has the column body twice"),
        ("topic string, body string, Tags int", "tags is string, not int"),
    ],
)
def test_columns_are_checked(spark: SparkSession, root: Path, schema: str, reported: str) -> None:
    with pytest.raises(StoreFormatError, match=reported):
        write_options({"path": str(root)}, StructType.fromDDL(schema), False)


def test_unsupported_writes_are_reported(spark: SparkSession, root: Path) -> None:
    rows = spark.createDataFrame([("t", "x")], "topic string, body string")
    with pytest.raises(Exception, match="only appends"):
        rows.write.format(FORMAT).mode("overwrite").save(str(root))
    with pytest.raises(Exception, match="unknown option 'tpic'; the nearest is topic"):
        save(rows, root, tpic="t")
    with pytest.raises(Exception, match="startingOffsets is for batch and stream"):
        save(rows, root, startingOffsets="earliest")
    with pytest.raises(Exception, match="flushDiskType"):
        save(rows, root, flushDiskType="NEVER")
    assert messages(root) == []


@pytest.mark.parametrize(
    ("bad", "reported"),
    [
        ((None, "x", None, None), "column topic: it is null, and there is no option topic"),
        (("t", None, None, None), "column body: it is null"),
        (("a b", "x", None, None), "a topic must be 1 to 127"),
        (("t", "x" * (4 << 20), None, None), "column body: 4194304 bytes are too long"),
        (("t", "x", "", None), "column tags: tags must not be empty"),
        (("t", "x", "a||b", None), r"column tags: .*'a\|\|b'"),
        (("t", "x", " a", None), "column tags: .*' a'"),
        (("t", "x", "*", None), "column tags: .*'\\*'"),
        (("t", "x", None, {"a": ""}), "column properties: property a must not be empty"),
        (("t", "x", None, {"a": "b" * 40_000}), "PROPERTIES_SIZE_EXCEEDED"),
    ],
)
def test_a_bad_row_means_that_nothing_is_appended(
    spark: SparkSession, root: Path, bad: Any, reported: str
) -> None:
    schema = "topic string, body string, tags string, properties map<string,string>"
    rows = [("t", "good", None, None), bad]
    with pytest.raises(Exception, match=reported):
        save(spark.createDataFrame(rows, schema).repartition(2), root)
    assert messages(root) == []
    assert_staging_is_gone(root)


#: Column -> odd values for a row of plain ones. A put of the engine returns the expected errors.
ODD: dict[str, list[Any]] = {
    "topic": [
        *("", "a b", "a/b", ".", "..", "é", "%LMQ%a", "%RETRY%g", "a|b", "x" * 127, "x" * 128),
        *("a\0", "TBW102", "SCHEDULE_TOPIC_XXXX", "*", "a\n"),
    ],
    "body": [b"", bytes(65000), bytes(65428), bytes(65429), bytes(65530), bytes(1 << 20)],
    "tags": [
        *(
            "",
            "a||b",
            "||",
            "a|b",
            "|",
            " a",
            "a ",
            "\ta",
            "a\n",
            "a b",
            "\u00a0a",
            "*",
            "**",
            "*a",
        ),
        *("a\1b", "a\2b", "\0", "é", "😀", "x" * 32762, "x" * 32763, "é" * 16381, "é" * 16382),
    ],
    "keys": ["", " ", "a  b", " a", "a\1", "\2", "k" * 32762, "k" * 32763, "*", "a||b", "é"],
    "properties": [
        *([], [("a", "")], [("", "a")], [("a\1", "b")], [("a", "b\2")], [("a", None)]),
        *([("é", "😀")], [("KEYS", "k\1")], [("UNIQ_KEY", "")], [("DELAY", "x")], [(" a", " b")]),
        *([("a", "x" * 32765)], [("a", "x" * 32766)], [("a", "||"), ("b", "*")]),
        *([("INNER_MULTI_DISPATCH", name)] for name in ("%LMQ%a,b", "x" * 32740, ",a" * 1400)),
        *([("__STARTDELIVERTIME", "x")], [("WAIT", "no")]),
    ],
    "queueId": [-(2**31), -1, 0, 7, 2**31 - 2, 2**31 - 1],
    "flag": [-(2**31), -1, 0, 2**31 - 1],
    "bornTimestamp": [-(2**63), -1, 0, 2**63 - 1],
}
KINDS: dict[str, pa.DataType] = {
    "body": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
    "queueId": pa.int32(),
    "flag": pa.int32(),
    "bornTimestamp": pa.timestamp("us", "UTC"),
}


def batch_of(column: str, values: list[Any]) -> pa.RecordBatch:
    """A batch as Spark passes it, with plain values in other columns."""
    named = {"topic": ["t"] * len(values), "body": [b"b"] * len(values), column: values}
    arrays = [pa.array(values, KINDS.get(name, pa.string())) for name, values in named.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(named))


CONFS = ["", "enableMultiDispatch=true\nenableLmq=true\n", "brokerIP1=::1\n"]


@pytest.mark.parametrize("conf", CONFS)
def test_executors_refuse_the_rows_that_a_put_refuses(
    root: Path, tmp_path: Path, conf: str
) -> None:
    """Each odd value of each column: by the executors' check, and by `put` and `put_many`, with
    which the driver appends."""
    path = tmp_path / "broker.conf"
    path.write_text(f"{conf}mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\n")
    options = options_of(root, brokerConf=str(path))
    wrong, refused = [], 0
    with open_store(options) as store:
        for column, value in [(name, value) for name in ODD for value in ODD[name]]:
            batch = batch_of(column, [value])
            said = refusal_of(check_rows, batch, options.limits)
            (row,) = rows_of(batch, None)
            before = store.message_store.get_max_phy_offset()
            born = 1 if row.born_timestamp is None else row.born_timestamp
            by_put = refusal_of(put_rows, store, [dataclasses.replace(row, born_timestamp=born)])
            together = refusal_of(put_rows, store, [row])
            found = by_put or together
            if (said is None) != (found is None) or (said and f"column {column}:" not in str(said)):
                wrong.append((column, str(value)[:60], said, by_put, together))
            refused += found is not None
            if by_put and together:
                assert store.message_store.get_max_phy_offset() == before
    assert wrong == []
    assert refused > 30


def refusal_of(check: Any, *arguments: Any) -> StoreError | None:
    """The error of a check, or of putting rows."""
    first, *more = arguments
    try:
        if isinstance(first, pa.RecordBatch):
            first = rows_of(first, None)
        for _ in check(first, *more) or ():
            pass
    except StoreError as error:
        return error
    return None


def test_text_that_is_not_utf_8_is_reported() -> None:
    text = pa.array([b"a", b"b\xff"]).view(pa.string())
    batch = pa.RecordBatch.from_arrays([text, text, text], ["tags", "topic", "body"])
    with pytest.raises(StoreFormatError, match=r"row 1 .* column tags: b'b\\xff' is not UTF-8"):
        list(rows_of(batch, None))
    names = pa.array([b"\xfe"]).view(pa.string())
    pairs = pa.MapArray.from_arrays(pa.array([0, 0, 1], pa.int32()), names, pa.array(["v"]))
    batch = batch_of("body", [b"b", b"c"]).append_column("properties", pairs)
    with pytest.raises(StoreFormatError, match=r"row 1 .* column properties: .*xfe"):
        list(rows_of(batch, None))


def test_a_repeated_property_is_reported() -> None:
    batch = batch_of("properties", [[("a", "1")], [("a", "1"), ("a", "2")]])
    with pytest.raises(StoreFormatError, match=r"row 1 .* column properties: the name 'a' occurs"):
        list(rows_of(batch, None))


def test_a_store_that_somebody_writes_is_left_alone(spark: SparkSession, root: Path) -> None:
    rows = spark.createDataFrame([("t", "x")], "topic string, body string")
    with pyrocketstore.open(root) as store:
        with pytest.raises(Exception, match=str(root)) as raised:
            save(rows, root)
        assert "StoreStateError" in str(raised.value)
        store.put("t", b"mine")
    assert bodies(root) == [b"mine"]
    assert_staging_is_gone(root)


# ---- commits, without Spark ----------------------------------------------------------------------


def stage(
    writer: StoreWriter | StoreStreamWriter, partition: int, *texts: str, query_id: str = ""
) -> StagedRows:
    batch = pa.RecordBatch.from_pydict({"topic": ["t"] * len(texts), "body": list(texts)})
    directory = Path(writer.directory)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{partition}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
        stream.write_batch(batch)
    return StagedRows(partition, str(path), len(texts), query_id)


def options_of(root: Path, **options: str) -> Any:
    schema = StructType().add("topic", StringType()).add("body", StringType())
    return write_options({"path": str(root), **options}, schema, False)


def test_partitions_are_appended_in_their_order(root: Path) -> None:
    writer = StoreWriter(options_of(root))
    staged = [stage(writer, 2, "c"), StagedRows(1, "", 0), stage(writer, 0, "a", "b")]
    writer.commit([*staged, None])
    assert bodies(root) == [b"a", b"b", b"c"]
    assert_staging_is_gone(root)


def test_a_commit_that_fails_says_how_far_it_got(root: Path) -> None:
    options = options_of(root)
    limits = options.limits._replace(largest=1 << 30)
    writer = StoreWriter(dataclasses.replace(options, limits=limits))
    staged = [stage(writer, 0, "a", "b"), stage(writer, 1, "c", "x" * (5 << 20), "d")]
    with pytest.raises(StoreError, match="2 of 5 rows are in the store"):
        writer.commit(staged)  # all rows of a call are looked at before one is put
    assert bodies(root) == [b"a", b"b"]
    writer.abort(staged)
    assert_staging_is_gone(root)


def test_missing_staged_rows_are_reported_before_any_append(root: Path) -> None:
    writer = StoreWriter(options_of(root))
    staged = [stage(writer, 0, "a"), StagedRows(1, "/elsewhere/1.arrow", 4)]
    with pytest.raises(StoreError, match="nothing was appended"):
        writer.commit(staged)
    assert messages(root) == []


def test_a_batch_that_is_there_is_not_appended_again(root: Path) -> None:
    def commit(batch_id: int, query_id: str, text: str, checkpoint: str = "/c") -> None:
        writer = StoreStreamWriter(options_of(root, checkpointLocation=checkpoint))
        writer.commit([stage(writer, 0, text, query_id=query_id)], batch_id)

    for batch_id in (0, 1, 1, 0):
        commit(batch_id, "x", f"batch {batch_id}")
    commit(0, "y", "another query", "/other")
    commit(0, "z", "a new checkpoint")
    commit(1, "x", "the old one, copied", "/copy")
    commit(0, "z", "again")
    expected = [b"batch 0", b"batch 1", b"another query", b"a new checkpoint"]
    assert bodies(root) == [*expected, b"the old one, copied"]
    assert_staging_is_gone(root)
    assert markers(root) == {"/c": {"x": 1, "z": 0}, "/copy": {"x": 1}, "/other": {"y": 0}}


def test_a_checkpoint_is_known_however_it_is_spelled(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = root / "config" / "sparkBatches.json"
    monkeypatch.chdir(tmp_path)

    def commit(checkpoint: str, batch_id: int, text: str) -> None:
        writer = StoreStreamWriter(options_of(root, checkpointLocation=checkpoint))
        writer.commit([stage(writer, 0, text, query_id="x")], batch_id)

    here = f"{tmp_path}/c"
    same = [here, f"{here}/", f"file:{here}", f"file://{here}", f"FILE:///{here}/", "c", "./c/"]
    same += [f"/{here}", f"{tmp_path}//c", f"{tmp_path}/./d/../c", f"file:{tmp_path}/d/..//c/"]
    for number, spelling in enumerate(same):
        commit(spelling, number, f"{number} under {spelling}")
        for other in same:
            commit(other, number, "again")
    assert bodies(root) == [f"{n} under {s}".encode() for n, s in enumerate(same)]
    assert markers(root) == {here: {"x": len(same) - 1}}
    assert not marker.exists()
    # The markers of an earlier version are found.
    old = {
        f"file:{here}": {"x": 20, "y": 3},
        f"{here}/": {"x": 21, "y": 2},
        "hdfs://N/c/": {"x": 7},
    }
    marker.write_text(json.dumps(old))
    for path in marker.parent.glob("sparkBatches-*.json"):
        path.unlink()
    commit(here, 21, "again")
    commit("hdfs://n//c", 7, "again")
    assert len(bodies(root)) == len(same)
    commit(here, 22, "more")
    assert json.loads(marker.read_text()) == old
    assert markers(root) == {here: {"x": 22}}
    for number, other in enumerate(["s3a://b/c", f"{here}2", f"{here}/d", "hdfs://n/d", "hdfs:/c"]):
        commit(other, 0, f"other {number}")
    assert bodies(root)[-6:] == [b"more", *(b"other %d" % n for n in range(5))]


def test_a_damaged_marker_appends_nothing(root: Path) -> None:
    """Neither the batch nor the marker is guessed; another query is not refused by one's marker."""

    def commit(batch_id: int, query_id: str = "x") -> None:
        writer = StoreStreamWriter(options_of(root, checkpointLocation="/c"))
        staged = [stage(writer, 0, f"{query_id}{batch_id}", query_id=query_id)]
        try:
            writer.commit(staged, batch_id)
        finally:
            writer.abort(staged, batch_id)

    commit(0)
    (own,) = (root / "config").glob("sparkBatches-*.json")
    valid = json.loads(own.read_text())
    wrong = ["", "\0" * 80, "[", "[]", "{}", "null", "7", "[" * 100_000, own.read_text()[:-2]]
    wrong += [
        json.dumps({**valid, name: value})
        for name, value in [
            *(("batch", value) for value in (None, -1, 1.5, "1", True, [0])),
            *(("queryId", "y"), ("checkpoint", "/d"), ("checkpoint", None)),
        ]
    ]
    for text in [*map(str.encode, wrong), b"\xff\xfe"]:
        own.write_bytes(text)
        for batch_id in (0, 1):
            with pytest.raises(StoreCorruptionError, match=r"marker of Spark.*nothing was") as said:
                commit(batch_id)
            assert said.value.path == str(own) and own.read_bytes() == text
    commit(0, "y")
    own.write_text(json.dumps(valid))
    old = root / "config" / "sparkBatches.json"  # of an earlier version
    for text in ("", "[", "[]", '{"/c": 1}', '{"/c": {"x": "a"}}', '{"/c": {"x": null}}'):
        old.write_text(text)
        with pytest.raises(StoreCorruptionError, match=r"marker of Spark.*nothing was appended"):
            commit(1)
    old.unlink()
    assert bodies(root) == [b"x0", b"y0"]
    commit(1)
    assert bodies(root) == [b"x0", b"y0", b"x1"]


#: Calls of a commit at which another driver may run: before the store is opened, while rows are
#: put, and around each write of a file.
STEPS = ["open_store", "put_rows", "before write_file", "after write_file", "read_file"]
#: A second query; and a second driver of the first query, which repeats its batch.
OTHERS = {"query": ("/d", "y", 7, "other"), "driver": ("/c", "x", 3, "text")}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("old", [False, True], ids=["first", "upgraded"])
def test_a_commit_beside_another_one_appends_each_batch_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, step: str, other: str, old: bool
) -> None:
    """Both drivers die after that, and Spark repeats both batches."""
    if old:
        earlier = {"/c": {"x": 2}, "/d": {"y": 6}}
        (root / "config").mkdir()
        (root / "config" / "sparkBatches.json").write_text(json.dumps(earlier))

    def commit(checkpoint: str, query_id: str, batch_id: int, text: str) -> None:
        writer = StoreStreamWriter(options_of(root, checkpointLocation=checkpoint))
        staged = [stage(writer, 0, text, query_id=query_id)]
        try:
            writer.commit(staged, batch_id)
        except StoreStateError:
            writer.abort(staged, batch_id)
            raise

    ran: list[str] = []

    def beside(name: str) -> None:
        if step.split()[-1] != name or ran:
            return
        ran.append(name)
        # The store is open in another driver: Spark fails this query, and repeats its batch.
        with contextlib.suppress(StoreStateError):
            commit(*OTHERS[other])

    def hook(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def hooked(*arguments: Any, **named: Any) -> Any:
            is_marker = name.endswith("_file") and "sparkBatches" in arguments[1]
            if name.endswith("_file") and not is_marker:
                return original(*arguments, **named)
            if step != "after write_file":
                beside(name)
            found = original(*arguments, **named)
            beside(name)
            return found

        monkeypatch.setattr(owner, name, hooked)

    for name in ("open_store", "put_rows"):
        hook(writer_module, name)
    for name in ("write_file", "read_file"):
        hook(Env, name)
    first = ("/c", "x", 3, "text")
    commit(*first)
    assert ran or step == "read_file"
    for again in (OTHERS[other], first, OTHERS[other]):
        commit(*again)
    assert sorted(bodies(root)) == sorted({b"text", OTHERS[other][3].encode()})
    last = {"/c": {"x": 3}} | ({"/d": {"y": 7}} if other == "query" else {})
    assert markers(root) == last
    assert_staging_is_gone(root)


def test_a_batch_without_its_marker_is_appended_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that dies before the marker repeats its batch: no row is lost."""

    def commit() -> None:
        writer = StoreStreamWriter(options_of(root, checkpointLocation="/c"))
        writer.commit([stage(writer, 0, "a", query_id="x")], 0)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Env, "write_file", dies)
        commit()
    assert markers(root) == {}
    commit()
    commit()
    assert bodies(root) == [b"a", b"a"]
    assert markers(root) == {"/c": {"x": 0}}


def test_a_task_stages_its_rows_while_another_writer_removes_the_directory(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, left = Env.make_directories, [2]

    def removed(env: Env, path: str, **named: Any) -> None:
        original(env, path, **named)
        if STAGING in path and left[0]:
            left[0] -= 1
            shutil.rmtree(root / STAGING)

    monkeypatch.setattr(Env, "make_directories", removed)
    monkeypatch.setattr("pyrocketstore.spark.source.writer.TaskContext", TaskOfStream)
    writer = StoreStreamWriter(options_of(root, checkpointLocation="/c"))
    rows = pa.RecordBatch.from_pydict({"topic": ["t"], "body": ["a"]})
    other = StoreWriter(options_of(root))
    staged, beside = writer.write(iter([rows])), stage(other, 0, "b")
    assert left == [0]
    other.commit([beside])
    assert (root / STAGING).exists()  # the stream's rows are there
    writer.commit([staged], 0)
    assert bodies(root) == [b"b", b"a"]
    assert_staging_is_gone(root)


class TaskOfStream:
    """The context of a task, without Spark."""

    @classmethod
    def get(cls) -> TaskOfStream:
        return cls()

    def getLocalProperty(self, _: str) -> str:
        return "x"

    def partitionId(self) -> int:
        return 0

    def taskAttemptId(self) -> int:
        return 0


def test_a_stream_without_an_id_appends_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Context:
        @classmethod
        def get(cls) -> Context:
            return cls()

        def getLocalProperty(self, _: str) -> None:
            return None

    monkeypatch.setattr("pyrocketstore.spark.source.writer.TaskContext", Context)
    writer = StoreStreamWriter(options_of(root, checkpointLocation="/c"))
    text = r"no sql\.streaming\.queryId to this task: no row was appended"
    with pytest.raises(StoreError, match=text):
        writer.write(iter([pa.RecordBatch.from_pydict({"topic": ["t"], "body": ["a"]})]))
    assert_staging_is_gone(root)


def test_times_before_1970_keep_their_millisecond() -> None:
    times = pa.array([-1, -1000, 1999], pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_pydict({"body": ["a", "b", "c"], "bornTimestamp": times})
    assert [row.born_timestamp for row in rows_of(batch, "t")] == [-1, -1, 1]


# ---- streams -------------------------------------------------------------------------------------


def test_a_stream_from_store_to_store(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    checkpoint = tmp_path / "c"

    def run(**options: object) -> None:
        rows = spark.readStream.format(FORMAT).schema("topic string, body binary, queueId int")
        rows = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 30)
        writer = rows.load(str(source)).writeStream.format(FORMAT).trigger(availableNow=True)
        for name, value in options.items():
            writer = writer.option(name, str(value))
        query = writer.option("path", str(root)).start()
        assert query.awaitTermination(300)

    with pyrocketstore.open(source, **SIZES) as store:
        for number in range(50):
            store.put("t", b"%d" % number)
        run(checkpointLocation=checkpoint)
        for number in range(50, 60):
            store.put("t", b"%d" % number)
    assert bodies(root) == [b"%d" % n for n in range(50)]
    # The last batch looks unfinished to Spark, which does it again.
    commit = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commit.unlink()
    commit.with_name(f".{commit.name}.crc").unlink()
    run(checkpointLocation=checkpoint)
    assert bodies(root) == [b"%d" % n for n in range(60)]
    assert_staging_is_gone(root)
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "default"))
    try:
        with pytest.raises((StreamingQueryException, AssertionError), match="checkpointLocation"):
            run()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_a_checkpoint_that_was_deleted_is_another_query(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    checkpoint = tmp_path / "c"

    def run() -> None:
        rows = spark.readStream.format(FORMAT).schema("topic string, body binary, queueId int")
        rows = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 10)
        writer = rows.load(str(source)).writeStream.format(FORMAT).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start(str(root))
        assert query.awaitTermination(300)

    with pyrocketstore.open(source, **SIZES) as store:
        for number in range(30):
            store.put("t", b"%d" % number)
    once = [b"%d" % n for n in range(30)]
    run()
    assert bodies(root) == once
    run()
    assert bodies(root) == once
    shutil.rmtree(checkpoint)
    run()
    assert bodies(root) == 2 * once
    # Spark does its last batch again, which is there.
    commit = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commit.unlink()
    commit.with_name(f".{commit.name}.crc").unlink()
    run()
    assert bodies(root) == 2 * once
    assert_staging_is_gone(root)
