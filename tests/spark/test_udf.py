"""Goal: Spark's functions over encoded records return the fields that a plain reader finds, for any
value of the column, by DataFrame, SQL and pandas.
Method: records of golden stores and random ones, with nulls and damage among them, through a
Spark of two cores."""

from __future__ import annotations

import datetime
import random
from typing import TYPE_CHECKING, Any

import pytest

from encoded_records import EPOCH, golden_records, plain_message, some_records
from pyrocketstore.errors import StoreFormatError
from support import oracle

pytest.importorskip("pyspark")

from pyspark.errors import PythonException

from pyrocketstore.spark import udf
from pyrocketstore.spark.fields import FIELDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id int, value binary"
ALL = tuple(FIELDS)
GOOD = oracle.encode_record(oracle.Record(body=b"body", properties=b"TAGS\x01TagA"))
WRONG_SUM = oracle.encode_record(oracle.Record(body=b"body", crc=7))
BAD_BODY = oracle.encode_record(oracle.Record(body=b"not zlib", sys_flag=oracle.COMPRESSED))
TORN = "torn: the record continues past the last available byte"


def frame(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    return spark.createDataFrame(list(enumerate(values)), SCHEMA)


def plain(value: bytes, names: tuple[str, ...] = ALL) -> dict[str, Any]:
    """The row of a valid record; times as Spark returns them in UTC."""
    message = plain_message(value)
    for name in ("bornTimestamp", "storeTimestamp"):
        if message[name] is not None:
            time = EPOCH + datetime.timedelta(microseconds=message[name])
            message[name] = time.replace(tzinfo=None)
    return {name: message[name] for name in names}


def in_python(value: bytes) -> bool:
    """Whether Python has the record's times."""
    message = plain_message(value)
    return abs(message["bornTimestamp"] or 0) < 10**17


def decoded(df: DataFrame) -> list[dict[str, Any] | None]:
    """The column `m`, in the order of `id`."""
    rows = df.collect()
    return [None if row.m is None else row.m.asDict() for row in sorted(rows, key=lambda r: r.id)]


@pytest.mark.parametrize("name", ["mixed", "x-hosts"])
def test_golden_stores(spark: SparkSession, name: str) -> None:
    records = golden_records(name)
    df = frame(spark, list(records))
    got = decoded(df.select("id", udf.decode_message("value", verify_crc=True).alias("m")))
    assert got == [plain(record) | {"error": None} for record in records]
    some = ("body", "topic", "properties", "storeTimestamp")
    rows = udf.decode_batches(df, "value", some, keep=["id"], on_error="fail").collect()
    assert [row.asDict() for row in sorted(rows, key=lambda row: row.id)] == [
        {"id": i} | plain(record, some) for i, record in enumerate(records)
    ]


def test_random_records_with_nulls_and_damage(spark: SparkSession) -> None:
    rng = random.Random(5)
    values: list[bytes | None] = [r for r in some_records(5, 300) if in_python(r)]
    for i in range(0, len(values), 3):
        values[i] = rng.choice((None, b"", b"cut", GOOD[:-1], BAD_BODY))
    names = tuple(name for name in ALL if name != "bornTimestamp")
    got = decoded(frame(spark, values).select("id", udf.decode_message("value", names).alias("m")))
    assert len(got) == len(values)
    for value, row in zip(values, got, strict=True):
        if value is None:
            assert row is None
            continue
        assert row is not None
        error = row.pop("error")
        if value in (b"", b"cut", GOOD[:-1]):
            assert error == TORN
            assert set(row.values()) == {None}
        else:
            assert row == plain(value, names)
            assert (error == "the body does not inflate") == (row["body"] is None)


def test_the_schema(spark: SparkSession) -> None:
    df = frame(spark, [])
    kind = df.select(udf.decode_message("value").alias("m")).schema["m"].dataType.simpleString()
    ddl = ",".join(f"{name}:{field.spark_ddl}" for name, field in FIELDS.items())
    assert kind == f"struct<{ddl},error:string>"
    kind = df.select(udf.decode_message(df.value, ["body", "topic"], "fail").alias("m")).schema
    assert kind["m"].dataType.simpleString() == "struct<body:binary,topic:string>"
    batches = udf.decode_batches(df, "value", ["queueId"], keep="id")
    assert batches.schema.simpleString() == "struct<id:int,queueId:int,error:string>"
    assert batches.collect() == []
    assert df.select(udf.decode_message("value")).collect() == []


def test_keep_passes_columns_through(spark: SparkSession) -> None:
    rows = [(1, "ä", {"k": [1, None]}, GOOD, 2.5), (2, None, None, None, None)]
    schema = "`a.b` long NOT NULL, text string, deep map<string,array<int>>, v binary, x double"
    df = spark.createDataFrame(rows, schema).select("*")
    kept = ["deep", "a.b", "text", "x"]
    made = udf.decode_batches(df, "v", "topic", keep=kept)
    assert made.schema.names == [*kept, "topic", "error"]
    assert [tuple(row) for row in made.collect()] == [
        ({"k": [1, None]}, 1, "ä", 2.5, "T", None),
        (None, 2, None, None, None, None),
    ]
    for wrong in (["topic"], ["x", "x"], ["error"]):
        with pytest.raises(StoreFormatError, match="two columns"):
            udf.decode_batches(df.withColumnRenamed("text", "topic"), "v", "topic", keep=wrong)


@pytest.mark.parametrize("bad", [b"cut", WRONG_SUM, BAD_BODY], ids=["cut", "sum", "body"])
def test_damage_can_end_the_query(spark: SparkSession, bad: bytes) -> None:
    df = frame(spark, [GOOD, None, bad]).coalesce(1)
    column = udf.decode_message("value", on_error="fail", verify_crc=True)
    with pytest.raises(PythonException, match="record 2 of a batch"):
        df.select(column).collect()
    with pytest.raises(PythonException, match="record 2 of a batch"):
        udf.decode_batches(df, "value", on_error="fail", verify_crc=True).collect()
    valid = df.where("id < 2").select("id", column.alias("m"))
    assert decoded(valid) == [plain(GOOD), None]


def test_checksums_are_compared_on_request(spark: SparkSession) -> None:
    df = frame(spark, [GOOD, WRONG_SUM, None, b"cut"])
    checked = decoded(df.select("id", udf.decode_message("value", "body", "null", True).alias("m")))
    assert checked == [
        {"body": b"body", "error": None},
        {"body": None, "error": "body CRC does not match"},
        None,
        {"body": None, "error": TORN},
    ]
    plain_read = decoded(df.select("id", udf.decode_message("value", "body").alias("m")))
    assert plain_read[1] == {"body": b"body", "error": None}
    sums = df.select("id", udf.verify_crc("value").alias("ok")).orderBy("id").collect()
    assert [row.ok for row in sums] == [True, False, None, False]


def test_the_other_functions(spark: SparkSession) -> None:
    unit = (5).to_bytes(8, "big") + (7).to_bytes(4, "big") + (-3).to_bytes(8, "big", signed=True)
    rows = [(1, unit, "TagA", "a\x01b\x02a\x01c"), (2, unit[:19], "", ""), (3, None, None, None)]
    df = spark.createDataFrame(rows, "id int, unit binary, tags string, text string")
    made = df.select(
        udf.decode_cq_unit("unit").alias("u"),
        udf.tags_code("tags").alias("t"),
        udf.properties_map(df.text).alias("p"),
    )
    assert made.schema.simpleString() == (
        "struct<u:struct<commitLogOffset:bigint,size:int,tagsCode:bigint>,t:bigint,"
        "p:map<string,string>>"
    )
    assert [tuple(row) for row in made.collect()] == [
        ((5, 7, -3), 2598919, {"a": "c"}),
        (None, 0, {}),
        (None, 0, None),
    ]


def test_sql(spark: SparkSession) -> None:
    udf.register_functions(spark)
    frame(spark, [GOOD, None, b"cut"]).createOrReplaceTempView("rmq_values")
    rows = spark.sql(
        "SELECT rmq_decode(value).body AS body, rmq_decode(value).error AS error,"
        " rmq_verify_crc(value) AS ok, rmq_tags_code('TagA') AS code,"
        " rmq_properties_map(concat('k', char(1), 'v')) AS p,"
        " rmq_decode_cq_unit(unhex('000000000000000500000007FFFFFFFFFFFFFFFD')) AS unit"
        " FROM rmq_values ORDER BY id"
    ).collect()
    assert [(row.body, row.error, row.ok) for row in rows] == [
        (b"body", None, True),
        (None, None, None),
        (None, TORN, False),
    ]
    assert {(row.code, row.p["k"], tuple(row.unit)) for row in rows} == {(2598919, "v", (5, 7, -3))}
    spark.catalog.dropTempView("rmq_values")


def test_pandas(spark: SparkSession) -> None:
    pandas = pytest.importorskip("pandas")
    series = pandas.Series([GOOD, None, b"cut", BAD_BODY], index=[3, 5, 7, 9])
    made = udf.decode_pandas(series, ["topic", "properties", "body", "bornTimestamp"])
    assert list(made.columns) == ["topic", "properties", "body", "bornTimestamp", "error"]
    assert made.index.tolist() == [3, 5, 7, 9]
    assert made["properties"].tolist() == [{"TAGS": "TagA"}, None, None, {}]
    assert made["body"].tolist() == [b"body", None, None, None]
    assert made["error"].tolist() == [None, None, TORN, "the body does not inflate"]
    assert made["bornTimestamp"][3] == pandas.Timestamp(0, tz="UTC")
    assert len(udf.decode_pandas(series[:0])) == 0
    assert list(udf.decode_pandas(series[:1], "topic", "fail").columns) == ["topic"]

    @pandas_function(spark)
    def topics(values: Any) -> Any:
        return udf.decode_pandas(values, "topic")["topic"]

    got = frame(spark, [GOOD, None, GOOD]).select(topics("value")).collect()
    assert [row[0] for row in got] == ["T", None, "T"]


def pandas_function(spark: SparkSession) -> Any:
    import pandas
    from pyspark.sql.functions import pandas_udf

    def made(function: Any) -> Any:
        function.__annotations__ = {"values": pandas.Series, "return": pandas.Series}
        return pandas_udf(function, "string")

    return made


def test_a_record_of_the_largest_size(spark: SparkSession) -> None:
    body = random.Random(1).randbytes(oracle.MAX_MESSAGE_SIZE - 92)
    record = oracle.encode_record(oracle.Record(body=body))
    assert len(record) == oracle.MAX_MESSAGE_SIZE
    df = frame(spark, [GOOD, record, None]).select(
        "id", udf.decode_message("value", ["body", "bodyCRC"], verify_crc=True).alias("m")
    )
    large = {"body": body, "bodyCRC": oracle.body_crc(body), "error": None}
    assert decoded(df)[1:] == [large, None]


def test_invalid_arguments_are_refused(spark: SparkSession) -> None:
    df = frame(spark, [GOOD])
    for call in (
        lambda: udf.decode_message("value", on_error="skip"),
        lambda: udf.decode_message("value", ["brokerName"]),
        lambda: udf.decode_batches(df, "value", on_error="skip"),
        lambda: udf.decode_batches(df, "value", []),
        lambda: udf.decode_pandas([], on_error=""),
    ):
        with pytest.raises(StoreFormatError):
            call()
    with pytest.raises(PythonException, match="binary or string, not int"):
        df.select(udf.decode_message("id")).collect()
