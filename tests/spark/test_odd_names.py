"""Goal: names that are not UTF-8, in paths, topics, tags, keys, properties and files, are read, or
refused with an error, and never block Spark.
Method: one store with such names in every field, and each public function of the Spark package
on it, with a time limit."""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import pyrocketstore

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from odd_names import (
    ODD_COUNT,
    PLAIN,
    PLAIN_COUNT,
    PROPERTIES,
    TAG,
    TOPIC,
    make_odd_store,
    odd_name,
    uri_of,
)
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.spark import jobs, register, udf
from pyrocketstore.spark.pipeline import export, is_lake, read_lake, read_manifest
from pyrocketstore.spark.rebuild import rebuild
from pyrocketstore.spark.verify import verify

pytestmark = pytest.mark.timeout(120)
FORMAT = "rocketmq-store"
LABEL = r"st\udcffore"
COUNTS = Counter({TOPIC: ODD_COUNT, PLAIN: PLAIN_COUNT})


class World(NamedTuple):
    spark: SparkSession
    parent: Path
    root: str
    uri: str


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    register(spark)
    root = make_odd_store(tmp_path)
    return World(spark, tmp_path, root, uri_of(root))


def load(world: World, path: str | None = None, **options: str) -> DataFrame:
    return world.spark.read.format(FORMAT).options(**options).load(path or world.uri)


def topics(frame: DataFrame) -> Counter[str]:
    return Counter({row.topic: row["count"] for row in frame.groupBy("topic").count().collect()})


def texts_of(frame: DataFrame) -> Iterator[str]:
    """Every text of a frame's rows."""
    for row in frame.collect():
        for value in row:
            yield from map(str, value.items() if isinstance(value, dict) else [value])


# ---- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["queue", "sequential"])
def test_messages(world: World, mode: str) -> None:
    rows = load(world, readMode=mode).collect()
    assert Counter(row.topic for row in rows) == COUNTS
    assert {(row.brokerName, row.tags) for row in rows} == {(LABEL, TAG)}
    assert {row["keys"] for row in rows} == {f"ke\ufffd{number}" for number in range(35)}
    for row in rows:
        assert row.properties.items() >= PROPERTIES.items()


@pytest.mark.parametrize(
    "options",
    [
        {"topic": TOPIC},
        {"topics": f"{TOPIC},"},
        {"topicPattern": "t.*topic"},
        {"topicPattern": "t\ufffd{2}topic"},
        {"assign": json.dumps({TOPIC: [0]})},
        {"topic": TOPIC, "subExpression": f"x || {TAG}"},
        {"topic": TOPIC, "startingOffsets": json.dumps({TOPIC: {LABEL: {"0": 0}}})},
    ],
)
def test_such_a_topic_is_selected(world: World, options: dict[str, str]) -> None:
    assert topics(load(world, **options)) == {TOPIC: ODD_COUNT}


@pytest.mark.parametrize("view", ["commitlog", "consumequeue", "index", "files"])
@pytest.mark.parametrize("on_corrupt", ["fail", "null"])
def test_other_views(world: World, view: str, on_corrupt: str) -> None:
    if on_corrupt == "null":
        damage(world)
    frame = load(world, view=view, onCorrupt=on_corrupt)
    name = "path" if view == "files" else "fileName"
    paths = {row[name] for row in frame.select(name).collect()}
    on_disk = {path for path in paths if path is not None and "/" in path}  # others are in memory
    assert on_disk or on_corrupt == "null"
    assert all(path.startswith(f"{world.parent}/{LABEL}/") for path in on_disk), paths
    assert list(texts_of(frame))


def damage(world: World) -> None:
    """Write over the fourth record."""
    log = Path(world.root, "commitlog", "0" * 20)
    data = bytearray(log.read_bytes())
    at = 0
    for _ in range(3):
        at += int.from_bytes(data[at : at + 4], "big")
    data[at + 4 : at + 12] = b"\xff" * 8
    log.write_bytes(data)


@pytest.mark.parametrize("mode", ["queue", "sequential"])
def test_damage_is_reported(world: World, mode: str) -> None:
    damage(world)
    with pytest.raises(PySparkException, match=r"st\\udcffore/commitlog/0{20} at byte"):
        load(world, readMode=mode).count()
    assert load(world, readMode=mode, onCorrupt="skip").count() == 34


def test_names_that_nothing_encodes(world: World) -> None:
    bad = "\udcff"
    for options in (
        {"assign": json.dumps({bad: [0]})},
        {"startingOffsets": json.dumps({bad: {"0": 1}})},
        {"endingOffsetsByTimestamp": json.dumps({"t": {bad: {"0": 10**12}}})},
    ):
        with pytest.raises(PySparkException, match=r"udcff"):
            load(world, **options).count()
    shown = load(world, f"{world.parent}/link", brokerName="b").select("brokerName").first()
    assert shown is not None and shown.brokerName == "b"
    stores = json.dumps({bad: f"{world.parent}/link"})
    frame = world.spark.read.format(FORMAT).option("stores", stores).load()
    assert {row.brokerName for row in frame.select("brokerName").collect()} == {r"\udcff"}


def stream(world: World, path: str, **options: str) -> Counter[str]:
    """The topics of the store that a stream reads."""
    name = "s" + uuid.uuid4().hex
    reader = world.spark.readStream.format(FORMAT).options(startingOffsets="earliest", **options)
    writer = reader.load(path).writeStream.format("memory").queryName(name)
    query = (
        writer.option("checkpointLocation", f"{world.parent}/{name}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return topics(world.spark.table(name))


def test_streams(world: World) -> None:
    assert stream(world, world.uri) == COUNTS
    assert stream(world, f"{world.parent}/link", topic=TOPIC) == {TOPIC: ODD_COUNT}


def raw_records(world: World) -> list[bytearray]:
    data = bytearray(Path(world.root, "commitlog", "0" * 20).read_bytes())
    records = []
    while (size := int.from_bytes(data[:4], "big")) > 0:
        records.append(data[:size])
        data = data[size:]
    return records


def test_functions(world: World) -> None:
    records = raw_records(world)
    assert len(records) == 35
    frame = world.spark.createDataFrame([(record,) for record in records], "record binary")
    decoded = udf.decode_batches(frame, "record", ["topic", "tags", "keys", "properties"])
    assert topics(decoded) == COUNTS
    assert {(row.tags, row.error) for row in decoded.collect()} == {(TAG, None)}
    shown = frame.select(udf.decode_message("record", on_error="fail").alias("m")).select("m.*")
    assert list(texts_of(shown)) and topics(shown) == COUNTS


def test_a_path_that_cannot_cross(world: World) -> None:
    """Neither the path nor an option can be sent to the JVM as it is; a file: URI can."""
    with pytest.raises(Exception, match=r"surrogates|calling|codec"):
        load(world, world.root).count()
    assert load(world).count() == 35


# ---- lakes ---------------------------------------------------------------------------------------


def test_a_lake(world: World) -> None:
    out = world.parent / "a [lake] of {%41}, *?"
    report = export(world.spark, world.uri, uri_of(out))
    assert (report.rows, report.out, report.skipped) == (35, str(out), [])
    assert out.is_dir() and is_lake(uri_of(out)) and len(read_manifest(uri_of(out))) == 1
    found = read_lake(world.spark, uri_of(out))
    assert topics(found) == COUNTS == topics(read_lake(world.spark, out))
    assert {row.brokerName for row in found.select("brokerName").collect()} == {LABEL}
    assert export(world.spark, world.root, out).rows == 0
    assert jobs.traffic(found).count() == 2


def test_a_lake_that_spark_cannot_name(world: World) -> None:
    out = str(world.parent / odd_name(b"la\xffke"))
    with pytest.raises(StoreFormatError, match="not UTF-8"):
        export(world.spark, world.root, uri_of(out))
    with pytest.raises(StoreFormatError, match="not UTF-8"):
        read_lake(world.spark, out)
    assert not os.path.exists(out)


# ---- jobs over a whole store ---------------------------------------------------------------------


def test_verify(world: World) -> None:
    found = verify(world.spark, world.uri)
    assert found.ok, list(texts_of(found.problems))
    found.close()
    damage(world)
    found = verify(world.spark, {odd_name(b"\xff"): world.root})
    assert not found.ok
    assert any(LABEL in text for text in texts_of(found.problems))
    assert {row.brokerName for row in found.problems.collect()} == {r"\udcff"}
    found.close()


def test_rebuild(world: World) -> None:
    out = str(world.parent / odd_name(b"ne\xffw"))
    report = rebuild(world.spark, world.uri, uri_of(out))
    assert (report.records, report.queues, report.out) == (35, 2, out)
    with pyrocketstore.open(out, read_only=True) as store:
        assert store.topics() == sorted([TOPIC, PLAIN])


# ---- writing -------------------------------------------------------------------------------------


def test_writes(world: World) -> None:
    out = str(world.parent / odd_name(b"o\xffut"))
    rows = world.spark.createDataFrame([("t", b"x", "é")], "topic string, body binary, tags string")
    writer = rows.write.format(FORMAT).mode("append")
    writer.option("stagingDir", uri_of(f"{world.parent}/s t")).save(uri_of(out))
    with pyrocketstore.open(out, read_only=True) as store:
        assert [m.tags for m in store.read("t")] == ["é"]
    with pytest.raises(PySparkException, match="topic"):
        rows.selectExpr(f"'{TOPIC}' topic", "body").write.format(FORMAT).mode("append").save(
            uri_of(out)
        )
    with pytest.raises(PySparkException, match="is not local"):
        writer.save("s3a://bucket/store")
