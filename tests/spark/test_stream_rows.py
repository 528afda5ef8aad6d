"""Goal: the rows of a stream equal the messages of 4.9.3, of the engine and of a batch, column by
column.
Method: the golden stores and small stores; the reader is called as Spark calls it, without
Spark."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.spark.options import STREAM, read_options
from pyrocketstore.spark.plan.offsets import INITIAL
from pyrocketstore.spark.schemas import arrow_schema_of, columns_of
from pyrocketstore.spark.task_types import DataLossError

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.streaming.datasource import ReadMaxRows

from direct_reads import (
    Row,
    as_golden,
    damage,
    golden_messages,
    make_store,
    ms,
    read_directly,
)
from pyrocketstore.spark.source.stream import StoreStreamReader
from streams import live, next_batch, reader
from streams import rows as batch_rows
from support.golden_stores import GOLDEN
from support.golden_stores import NAMES as STORES


def streamed(root: Path, *names: str, limit: int = 1000, **options: object) -> list[Row]:
    """All rows of a stream that begins at the first message, `limit` at a time."""
    texts = {"path": root, "startingOffsets": "earliest", **options}
    texts = {name: str(value) for name, value in texts.items()}
    requested = read_options(texts, STREAM)
    shown, on_demand = columns_of(requested)
    columns = {name: {**shown, **on_demand}[name] for name in names or shown}
    stream = StoreStreamReader(requested, columns, recovery_s=0)
    found = []
    start: dict[str, Any] = INITIAL
    while (end := next_batch(stream, start, ReadMaxRows(limit))) != start:
        for partition in stream.partitions(start, end):
            for batch in stream.read(partition):
                assert batch.schema == arrow_schema_of(columns)
                found += [Row(row) for row in batch.to_pylist()]
        start = end
    return found


# ---- golden answers ------------------------------------------------------------------------------


@pytest.fixture
def golden(tmp_path: Path) -> Any:
    """A golden store's copy."""

    def unpacked(name: str) -> Path:
        with tarfile.open(GOLDEN / f"{name}.tar.xz") as tar:
            tar.extractall(tmp_path, filter="fully_trusted")
        return tmp_path / name

    return unpacked


@pytest.mark.parametrize("name", STORES)
def test_rows_are_the_golden_answers(name: str, golden: Any) -> None:
    root = golden(name)
    options = {
        "brokerConf": GOLDEN / f"{name}.conf",
        "includeSystemTopics": True,
        "decompress": False,
    }
    requested = read_options({"path": str(root)}, STREAM)
    names = [*columns_of(requested)[0], "msgTopic", "msgQueueId", "msgQueueOffset"]
    rows = streamed(root, *names, **options)
    found = {(row.topic, row.queueId, row.commitLogOffset): row for row in rows}
    assert len(found) == len(rows)
    expected = golden_messages(name)
    if name == "x-lostfiles":  # there 4.9.3 has lost some messages, and renumbers others
        assert set(expected) <= set(found)
    else:
        assert set(expected) == set(found)
    for key, message in expected.items():
        said = as_golden(found[key])
        assert said == {field: message[field] for field in said}
        assert found[key].brokerName == name
    batch = read_directly(root, *names, **options)
    by_place = {(row.topic, row.queueId, row.commitLogOffset): row for row in batch}
    assert by_place == found


def test_equal_offsets_are_an_empty_range(tmp_path: Path) -> None:
    """The offsets of a first batch, of a later one, and of one with a queue that is new or begins
    again: each has its rows once, from the offset before it."""
    root = tmp_path / "s"
    start: dict[str, Any] = INITIAL
    counts = []
    for topics in (["t"], ["t"], ["t", "u"], []):
        if not topics:
            shutil.rmtree(root)  # another store follows
        with pyrocketstore.open(root, preset="small") as store:
            for topic in topics or ["t"]:
                store.put(topic, b"x")
            store.wait_dispatched()
        stream = reader(root, startingOffsets="earliest", failOnDataLoss="false")
        end = next_batch(stream, start)
        counts.append(len(batch_rows(stream, start, end)))
        assert batch_rows(stream, end, end) == []
        assert batch_rows(stream, end, json.loads(json.dumps(end))) == []
        start = end
    assert counts == [1, 1, 2, 1]
    assert batch_rows(stream, INITIAL, INITIAL) == []


@pytest.mark.parametrize("name", ["mixed", "x-hosts"])
def test_hosts_of_both_kinds_and_a_start_by_time(name: str, golden: Any) -> None:
    root = golden(name)
    seen = live(root, includeSystemTopics=True, brokerConf=GOLDEN / f"{name}.conf")
    ends = seen.ends()
    with pyrocketstore.open(root, config=GOLDEN / f"{name}.conf", read_only=True) as store:
        hosts = set()
        for topic, queue_id in ends:
            assert ends[topic, queue_id] == store.max_offset(topic, queue_id)
            times = [m.store_timestamp for m in store.read(topic, queue_id)]
            hosts |= {(m.sys_flag >> 4) & 3 for m in store.read(topic, queue_id)}
            for time in {*times[::7], times[0], times[-1], times[0] - 1, times[-1] + 1}:
                place = seen.lower_bound((topic, queue_id), time)
                assert place == sum(each < time for each in times)
    assert hosts >= {"mixed": {0, 3}, "x-hosts": {1, 2}}[name]
    times = sorted({ms(row.storeTimestamp) for row in streamed(root, "storeTimestamp")})
    middle = times[len(times) // 2]
    conf = {"brokerConf": GOLDEN / f"{name}.conf"}
    rows = streamed(root, "topic", "bornHost", "storeHost", startingTimestamp=middle, **conf)
    batch = read_directly(root, "topic", "bornHost", "storeHost", startingTimestamp=middle, **conf)
    assert 0 < len(rows) < len(streamed(root, "topic", **conf))
    assert sorted(map(str, rows)) == sorted(map(str, batch))
    assert any("[" in row.bornHost or "[" in row.storeHost for row in rows)


# ---- columns -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("own") / "broker-x", 100)


@pytest.mark.parametrize(
    "names",
    [
        ("body", "queueOffset", "topic"),
        ("properties", "storeTimestamp", "queueId", "brokerName", "tags"),
        ("msgId", "msgQueueOffset", "keys", "topic", "commitLogOffset", "msgTopic"),
        ("storeSize",),
    ],
)
def test_columns_in_any_order(store: Path, names: tuple[str, ...]) -> None:
    requested = read_options({"path": str(store)}, STREAM)
    names_of_all = [*columns_of(requested)[0], "msgTopic", "msgQueueOffset"]
    whole = streamed(store, *names_of_all)
    assert len(whole) == 400
    for limit in (1000, 33):
        rows = streamed(store, *names, limit=limit)
        assert [list(row) for row in rows[:1]] == [list(names)]
        expected = [{name: row[name] for name in names} for row in whole]
        assert sorted(map(str, rows)) == sorted(map(str, expected))


def test_kafka_columns_in_any_order(store: Path) -> None:
    options = {"kafkaSchema": True, "includeHeaders": True}
    whole = streamed(store, **options)
    names = ("headers", "offset", "value", "timestampType", "topic", "key")
    rows = streamed(store, *names, **options)
    assert [list(row) for row in rows[:1]] == [list(names)]
    assert rows == [{name: row[name] for name in names} for row in whole]
    assert {row.timestampType for row in rows} == {1}


def test_a_start_by_time_for_all_queues_is_strict_on_request(store: Path) -> None:
    times = sorted(ms(row.storeTimestamp) for row in read_directly(store, "storeTimestamp"))
    strict = {"startingOffsetsByTimestampStrategy": "error"}
    never = {"startingTimestamp": times[-1] + 10**6}
    assert read_directly(store, "topic", **never) == streamed(store, "topic", **never) == []
    for rows in (read_directly, streamed):
        with pytest.raises(DataLossError, match="nothing was stored"):
            rows(store, "topic", **never, **strict)
        assert len(rows(store, "topic", startingTimestamp=times[0], **strict)) == 400


# ---- texts that are none -------------------------------------------------------------------------


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    """Message 3 of T0/0 has bytes that are no UTF-8 in its tags, keys and a property."""
    root = make_store(tmp_path / "s", 10)
    row = next(
        row
        for row in read_directly(root, "topic", "queueId", "queueOffset", "commitLogOffset")
        if (row.topic, row.queueId, row.queueOffset) == ("T0", 0, 3)
    )
    log = (root / "commitlog" / ("0" * 20)).read_bytes()
    for text, bad in (
        (b"TAGS\1tag0", b"TAGS\1t\xffg0"),
        (b"key-0-3", b"k\xc3\x28-0-3"),
        (b"n\0013", b"n\1\xfe"),
    ):
        position = log.index(text, row.commitLogOffset)
        assert position < row.commitLogOffset + 1200
        damage(root, position, bad)
    return root


def test_bad_text(spoiled: Path) -> None:
    options = {"topic": "T0"}
    rows = streamed(spoiled, "queueId", "queueOffset", "tags", "keys", "properties", **options)
    assert len(rows) == 20
    bad = next(row for row in rows if (row.queueId, row.queueOffset) == (0, 3))
    assert (bad.tags, bad["keys"]) == ("t\ufffdg0", "k\ufffd(-0-3")
    properties = dict(bad.properties)
    assert properties["n"] == "\ufffd"
    assert (properties["TAGS"], properties["KEYS"]) == (bad.tags, bad["keys"])
    good = [row for row in rows if row is not bad]
    assert not any("\ufffd" in str(row) for row in good)
    kafka = streamed(spoiled, kafkaSchema=True, includeHeaders=True, **options)
    bad = next(row for row in kafka if (row.partition, row.offset) == (0, 3))
    assert bad.key == "k\ufffd(-0-3".encode()
    assert {"key": "n", "value": "\ufffd".encode()} in bad.headers


def test_tags_are_compared_after_their_code(spoiled: Path) -> None:
    rows = streamed(spoiled, "queueOffset", subExpression="tag0", assign=json.dumps({"T0": [0]}))
    assert [row.queueOffset for row in rows] == [0, 6, 9]
