"""Goal: a wrong request fails at once, with an error of one line, in a stream and in a batch; a
schema is read as Spark's own sources read it.
Method: each request through a real Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pyrocketstore

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from pyrocketstore.spark import register

FORMAT = "rocketmq-store"
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def store(tmp_path: Path, spark: SparkSession) -> Path:
    register(spark)
    with pyrocketstore.open(tmp_path / "s", mapped_file_size_commit_log=1 << 16) as opened:
        for number in range(3):
            opened.put("t", b"%d" % number, tags="a", properties={"name": "value"})
    return tmp_path / "s"


def start(spark: SparkSession, path: Path, schema: str | None, checkpoint: Path) -> list[str]:
    """The columns of a stream's rows."""
    reader = spark.readStream.format(FORMAT).option("startingOffsets", "earliest")
    if schema is not None:
        reader = reader.schema(schema)
    rows: list[str] = []

    def take(batch: object, number: int) -> None:
        rows.extend(map(str, batch.collect()))  # type: ignore[attr-defined]

    query = (
        reader.load(str(path))
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return rows


# ---- places --------------------------------------------------------------------------------------


def one_line(error: BaseException) -> str:
    lines = [line for line in str(error).split("\n") if line and "SQLSTATE" not in line]
    assert len(lines) == 1, lines
    return lines[0]


def test_a_missing_path_at_load(spark: SparkSession, store: Path) -> None:
    for reader in (spark.read, spark.readStream):
        with pytest.raises(PySparkException, match="not a directory") as caught:
            reader.format(FORMAT).load(f"{store}2")
        assert f"StoreFormatError: {store}2: not a directory" in one_line(caught.value)
    places = json.dumps({"a": str(store), "b": f"{store}2"})
    with pytest.raises(PySparkException, match=f"{store}2: not a directory"):
        spark.read.format(FORMAT).option("stores", places).load()


def test_a_missing_path_with_a_schema(spark: SparkSession, store: Path) -> None:
    frame = spark.read.format(FORMAT).schema("topic string").load(f"{store}2")
    with pytest.raises(PySparkException, match="not a directory") as caught:
        frame.count()
    assert "Pickling" not in one_line(caught.value)


@pytest.mark.parametrize("schema", [None, "topic string"])
def test_a_stream_on_a_directory_that_holds_no_store(
    spark: SparkSession, store: Path, tmp_path: Path, schema: str | None
) -> None:
    wrong = tmp_path / "wrong"
    (wrong / "messages").mkdir(parents=True)
    refused = f"{wrong} contains no store: there is no {wrong}/commitlog"
    with pytest.raises(PySparkException, match=refused):
        spark.read.format(FORMAT).load(str(wrong)).count()
    with pytest.raises((PySparkException, StreamingQueryException), match=refused):
        start(spark, wrong, schema, tmp_path / "c")


def test_a_stream_on_a_store_to_come(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    (tmp_path / "empty").mkdir()
    assert start(spark, tmp_path / "empty", None, tmp_path / "c") == []
    with pytest.raises(PySparkException, match="contains no store"):
        spark.read.format(FORMAT).load(str(tmp_path / "empty")).count()


# ---- schemas -------------------------------------------------------------------------------------


def test_columns_of_another_case(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    schema = "QUEUEoffset bigint, Topic string, properties map<string,string>"
    for view, count in (("messages", 3), ("commitlog", 3)):
        reader = spark.read.format(FORMAT).schema(schema).option("view", view)
        rows = reader.load(str(store)).orderBy("queueOffset").collect()
        assert len(rows) >= count
        assert rows[-1].asDict().keys() == {"QUEUEoffset", "Topic", "properties"}
        assert [(row.QUEUEoffset, row.Topic) for row in rows[-3:]] == [(n, "t") for n in range(3)]
    assert start(spark, store, "TOPIC string, queueoffset long", tmp_path / "c") == [
        f"Row(TOPIC='t', queueoffset={number})" for number in range(3)
    ]
    kafka = spark.read.format(FORMAT).schema("VALUE binary").option("kafkaSchema", "true")
    assert kafka.load(str(store)).columns == ["VALUE"]
    assert kafka.load(str(store)).count() == 3


def test_a_column_twice(spark: SparkSession, store: Path) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        frame = spark.read.format(FORMAT).schema("topic string, TOPIC string").load(str(store))
        with pytest.raises(PySparkException, match="the column topic twice"):
            frame.count()
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.parametrize(
    "field",
    [
        StructField("topic", StringType(), False),
        StructField("queueoffset", LongType(), False),
        StructField("properties", MapType(StringType(), StringType(), False)),
    ],
)
def test_a_column_that_is_not_to_be_null(
    spark: SparkSession, store: Path, tmp_path: Path, field: StructField
) -> None:
    schema = StructType([field])
    frame = spark.read.format(FORMAT).schema(schema).load(str(store))
    with pytest.raises(PySparkException, match=f"{field.name} is NOT NULL in the schema") as caught:
        frame.count()
    assert one_line(caught.value)
