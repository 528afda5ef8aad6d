"""Goal: a tag filter returns exactly the messages with one of its tags, whatever their units
contain.
Method: stores whose units contain a hash, the address of an ext unit, or a time of delivery;
each filter is compared with the tags of the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.record.message import SCHEDULE_TOPIC, MessageExtBrokerInner
from pyrocketstore.results import PutMessageStatus

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyrocketstore.spark.options import BATCH, STREAM, read_options
from pyrocketstore.spark.plan.batch import plan
from pyrocketstore.spark.plan.offsets import INITIAL
from pyrocketstore.spark.read.worker import read_task
from pyrocketstore.spark.source.stream import ReadAllAvailable, StoreStreamReader

COLUMNS = {"topic": "string", "queueId": "int", "queueOffset": "bigint", "tags": "string"}
LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}
EXT = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 1 << 16}
#: Aa and BB have one hash.
TAGS = ["a", "Aa", "BB", None, "漢字"]
COUNT = 40
Row = tuple[str, int, int, str | None]


def fill(root: Path, delay: int, **settings: object) -> None:
    with pyrocketstore.open(root, **settings) as store:
        engine = store.message_store
        for number in range(COUNT):
            properties = {"INNER_MULTI_DISPATCH": "%LMQ%light,other"}
            if (tag := TAGS[number % len(TAGS)]) is not None:
                properties["TAGS"] = tag
            if delay and number % 3:
                properties["DELAY"] = str(delay)
            message = MessageExtBrokerInner("t", b"x", queue_id=number % 2, properties=properties)
            assert engine.put_message(message).status is PutMessageStatus.PUT_OK


@pytest.fixture(scope="module", params=["hashes", "ext units", "delayed"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store") / "s"
    kind = request.param
    fill(root, 2 if kind == "delayed" else 0, **LIGHT, **(EXT if kind == "ext units" else {}))
    return root


def batch(root: Path, **options: str) -> list[Row]:
    requested = read_options({"path": str(root), **options}, BATCH)
    planned = plan(requested)
    found: list[dict[str, Any]] = []
    for part in planned.tasks:
        for each in read_task(part, COLUMNS, requested, planned.common):
            found += each.to_pylist()
    return sorted(tuple(row.values()) for row in found)


def stream(root: Path, **options: str) -> list[Row]:
    requested = read_options({"path": str(root), "startingOffsets": "earliest", **options}, STREAM)
    reader = StoreStreamReader(requested, COLUMNS)
    end = reader.latestOffset(INITIAL, ReadAllAvailable())
    found: list[dict[str, Any]] = []
    for part in reader.partitions(INITIAL, json.loads(json.dumps(end))):
        for each in reader.read(part):
            found += each.to_pylist()
    return sorted(tuple(row.values()) for row in found)


@pytest.mark.parametrize("expression", ["a", "BB", "a || 漢字", "none"])
def test_a_filter_returns_the_records_with_its_tags(root: Path, expression: str) -> None:
    requested = {"includeSystemTopics": "true"}
    every = batch(root, **requested)
    assert {row[0] for row in every} >= {"%LMQ%light", "other"}
    wanted = [row for row in every if row[3] in expression.split(" || ")]
    requested["subExpression"] = expression
    assert batch(root, readMode="queue", **requested) == wanted
    assert batch(root, readMode="sequential", **requested) == wanted
    assert stream(root, **requested) == wanted


def test_units_of_light_queues_hold_times_of_delivery(tmp_path: Path) -> None:
    fill(tmp_path / "s", 2, **LIGHT)
    with pyrocketstore.open(tmp_path / "s", read_only=True) as store:
        engine = store.message_store
        for topic, queue_id in ((SCHEDULE_TOPIC, 1), ("%LMQ%light", 0)):
            codes = engine.find_consume_queue(topic, queue_id).read_units(0, COUNT).tags_code
            assert codes.max() > 1 << 40
