"""Goal: the ready jobs return correct counts from the data source and from a lake.
Method: rows with known answers; the broker's golden store, counted again in plain Python."""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql import DataFrame, SparkSession

from pyrocketstore.errors import StoreFormatError
from pyrocketstore.spark import jobs, register
from pyrocketstore.spark.pipeline import export, read_lake
from pyrocketstore.spark.schemas import MESSAGES, ddl_of

GOLDEN = Path(__file__).parent.parent / "golden"
HOUR = datetime.datetime(2026, 3, 1, 10, tzinfo=datetime.UTC)


def messages(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    """Messages with these fields, the others null; times are seconds after HOUR."""
    full = []
    for row in rows:
        times = {
            name: HOUR + datetime.timedelta(seconds=row[name])
            for name in ("storeTimestamp", "bornTimestamp")
            if name in row
        }
        full.append(tuple({**dict.fromkeys(MESSAGES), **row, **times}.values()))
    return spark.createDataFrame(full, ddl_of(MESSAGES))


def answers(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


def naive(hour: datetime.datetime) -> datetime.datetime:
    """Rows come with the local time of this process and no zone."""
    return hour.astimezone().replace(tzinfo=None)


def test_traffic(spark):
    frame = messages(
        spark,
        {"topic": "a", "storeTimestamp": 0, "storeSize": 100},
        {"topic": "a", "storeTimestamp": 3599, "storeSize": 50},
        {"topic": "a", "storeTimestamp": 3600, "storeSize": 2**31 - 1},
        {"topic": "a", "storeTimestamp": 3601, "storeSize": 2**31 - 1},
        {"topic": "b", "storeTimestamp": 1, "storeSize": 7},
    )
    later = HOUR + datetime.timedelta(hours=1)
    assert answers(jobs.traffic(frame)) == [
        ("a", naive(HOUR), 2, 150),
        ("a", naive(later), 2, 2**32 - 2),
        ("b", naive(HOUR), 1, 7),
    ]


def test_latency(spark):
    rows = [
        {"topic": "a", "storeTimestamp": 10, "bornTimestamp": 10 - n / 1000} for n in range(1000)
    ]
    late = {"topic": "b", "storeTimestamp": 1, "bornTimestamp": 2}
    frame = jobs.latency(messages(spark, *rows, late))
    assert frame.columns == ["topic", "hour", "messages", "p50", "p90", "p99", "p99.9", "max"]
    assert answers(frame) == [
        ("a", naive(HOUR), 1000, 499, 899, 989, 998, 999),
        ("b", naive(HOUR), 1, *[-1000] * 5),
    ]
    with pytest.raises(StoreFormatError, match="percentiles"):
        jobs.latency(frame, [1.5])


def test_key_frequency(spark):
    frame = messages(
        spark,
        {"topic": "a", "storeTimestamp": 0, "keys": "x y"},
        {"topic": "a", "storeTimestamp": 5, "keys": "x x  z"},
        {"topic": "b", "storeTimestamp": 1, "keys": "x"},
        {"topic": "a", "storeTimestamp": 1, "keys": ""},
        {"topic": "a", "storeTimestamp": 1},
    )
    found = answers(jobs.key_frequency(frame).select("topic", "key", "messages"))
    assert found == [("a", "x", 2), ("a", "y", 1), ("a", "z", 1), ("b", "x", 1)]
    (first,) = answers(jobs.key_frequency(frame, 1).selectExpr("key", "int(last - first)"))
    assert first == ("x", 5)


def test_duplicates(spark):
    place = {"brokerName": "b", "queueId": 0}
    frame = messages(
        spark,
        {"topic": "a", "uniqKey": "1", "queueOffset": 9, "storeTimestamp": 4, **place},
        {"topic": "a", "uniqKey": "1", "queueOffset": 3, "storeTimestamp": 1, **place},
        {"topic": "a", "uniqKey": "2", "queueOffset": 4, "storeTimestamp": 1, **place},
        {"topic": "%RETRY%g", "uniqKey": "2", "queueOffset": 0, "storeTimestamp": 1, **place},
        {"topic": "a", "queueOffset": 5, "storeTimestamp": 1, **place},
        {"topic": "a", "queueOffset": 6, "storeTimestamp": 1, **place},
    )
    (found,) = jobs.duplicates(frame).collect()
    assert (found.topic, found.uniqKey, found.copies) == ("a", "1", 2)
    assert [tuple(each) for each in found.places] == [("b", 0, 3), ("b", 0, 9)]


def test_retries(spark):
    given_back = {"storeTimestamp": 0, "storeSize": 10, "properties": {"RETRY_TOPIC": "orders"}}
    frame = messages(
        spark,
        {"topic": "%RETRY%g", "reconsumeTimes": 1, **given_back},
        {"topic": "%RETRY%g", "reconsumeTimes": 1, **given_back},
        {"topic": "%RETRY%g", "reconsumeTimes": 2, **given_back},
        {"topic": "%DLQ%g", "reconsumeTimes": 16, **given_back},
        {"topic": "%DLQ%h", "reconsumeTimes": 16, **given_back, "properties": {}},
        {
            "topic": "%DLQ%i",
            "reconsumeTimes": 1,
            **given_back,
            "properties": {"REAL_TOPIC": "%RETRY%i", "DLQ_ORIGIN_TOPIC": "x"},
        },
        {"topic": "orders", "reconsumeTimes": 0, **given_back},
    )
    assert [row[:6] for row in answers(jobs.retries(frame))] == [
        ("g", "dlq", "orders", 16, 1, 10),
        ("g", "retry", "orders", 1, 2, 20),
        ("g", "retry", "orders", 2, 1, 10),
        ("h", "dlq", None, 16, 1, 10),
        ("i", "dlq", "x", 1, 1, 10),
    ]


def test_the_jobs_name_the_columns_that_they_read(spark):
    assert jobs.JOBS.keys() == jobs.JOB_COLUMNS.keys()
    for name, job in jobs.JOBS.items():
        frame = messages(spark).select(*jobs.JOB_COLUMNS[name])
        assert job(frame).count() == 0, name


def test_the_broker_s_store_and_its_lake_say_the_same(spark, tmp_path):
    with tarfile.open(GOLDEN / "broker-clean.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    store = tmp_path / "broker-clean"
    conf = str(GOLDEN / "broker-clean.conf")
    export(spark, store, tmp_path / "lake", includeSystemTopics=True, brokerConf=conf)
    register(spark)
    options = {"includeSystemTopics": "true", "brokerConf": conf}
    source = spark.read.format("rocketmq-store").options(**options).load(str(store))
    lake = read_lake(spark, tmp_path / "lake")
    for name, job in jobs.JOBS.items():
        assert answers(job(source)) == answers(job(lake)), name
    lines = (GOLDEN / "broker-clean.jsonl").read_text().splitlines()
    reported = [json.loads(line)["message"] for line in lines if line.startswith('{"message"')]
    by_topic = Counter(message["cq_topic"] for message in reported)
    found = jobs.traffic(lake).groupBy("topic").sum("messages").collect()
    assert {row[0]: row[1] for row in found} == by_topic
    retried = Counter(
        (m["cq_topic"], m["properties"].get("RETRY_TOPIC"), m["reconsume_times"])
        for m in reported
        if m["cq_topic"].startswith(("%RETRY%", "%DLQ%"))
    )
    assert retried
    prefix = {"retry": "%RETRY%", "dlq": "%DLQ%"}
    assert {
        (prefix[row.kind] + row.group, row.originTopic, row.reconsumeTimes): row.messages
        for row in jobs.retries(lake).collect()
    } == retried


def test_the_command_returns_as_many_keys_as_requested(spark, tmp_path, monkeypatch):
    from click.testing import CliRunner

    import pyrocketstore
    from pyrocketstore.cli import app, spark_commands

    with pyrocketstore.open(tmp_path / "store") as store:
        for number in range(130):
            store.put("t", b"body", keys=f"k{number}")

    def session(*_: str) -> contextlib.AbstractContextManager[SparkSession]:
        register(spark)
        return contextlib.nullcontext(spark)

    monkeypatch.setattr(spark_commands, "spark_session", session)
    for count, reported in ((120, 120), (1000, 130), (None, 100)):
        words = ["report", "--spark", "--json", "keys", str(tmp_path / "store")]
        words += [] if count is None else ["--count", str(count)]
        found = CliRunner().invoke(app.app, words, catch_exceptions=False)
        assert len(found.stdout.splitlines()) == reported


@pytest.mark.parametrize("zone", ["UTC", "XXX-8", "CET-1CEST,M3.5.0,M10.5.0/3"])
def test_the_command_prints_times_in_utc(monkeypatch, zone):
    from pyrocketstore.cli.spark_commands import _plain

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        # The second and third are one local time in the third zone, which sets its clocks back.
        times = [1700000000.123, 1698539400, 1698543000, 0]
        rows = [_plain(datetime.datetime.fromtimestamp(at)) for at in times]  # as Spark does
    finally:
        monkeypatch.undo()
        time.tzset()
    assert rows == [
        "2023-11-14T22:13:20.123Z",
        "2023-10-29T00:30:00.000Z",
        "2023-10-29T01:30:00.000Z",
        "1970-01-01T00:00:00.000Z",
    ]


@pytest.mark.slow
def test_the_command(tmp_path):
    import subprocess

    with tarfile.open(GOLDEN / "plain.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    words = ["report", "--spark", "--json", "--master", "local[1]", "traffic"]
    command = [sys.executable, "-m", "pyrocketstore", *words, str(tmp_path / "plain")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line)["traffic"] for line in done.stdout.splitlines()]
    lines = (GOLDEN / "plain.jsonl").read_text().splitlines()
    reported = sum(line.startswith('{"message"') for line in lines)
    assert sum(row["messages"] for row in rows) == reported
