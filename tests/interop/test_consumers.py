"""Goal: a 4.9.3 broker with its Java clients and an embedded program continue each other's groups
and delayed messages, in one directory.
Method: a name server, a broker and clients run in turn with a store of ours."""

from __future__ import annotations

import base64
import json
import signal
import time
from pathlib import Path

import pytest

import pyrocketstore
from broker import Cluster, Line

pytestmark = [pytest.mark.java, pytest.mark.slow]

LEVELS = "1s 2s 1h"
CONFIG: Line = {
    "mappedFileSizeCommitLog": 1 << 18,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "messageDelayLevel": LEVELS,
    "flushConsumerOffsetInterval": 500,
}
SETTINGS = {
    "mapped_file_size_commit_log": 1 << 18,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
    "message_delay_level": LEVELS,
}
LONGEST_S = 30.0


def opened(path: Path) -> pyrocketstore.Store:
    return pyrocketstore.open(path, **SETTINGS)


def body_of(line: Line) -> bytes:
    return base64.b64decode(line["body"])


def polled(consumer: pyrocketstore.Consumer, count: int) -> list[bytes]:
    """Return the bodies of the next messages, and check that there are so many."""
    found: list[bytes] = []
    end = time.monotonic() + LONGEST_S
    while len(found) < count and time.monotonic() < end:
        found += [message.body for message in consumer.poll(count - len(found), 1)]
    return found


def request(body: bytes, **more: object) -> Line:
    encoded = base64.b64encode(body).decode()
    return {"topic": "t", "tags": "A", "keys": "k", "body": encoded, "properties": [], **more}


def positions(path: Path, group: str) -> int:
    """Return the sum of a group's positions in topic t."""
    with pyrocketstore.open(path, read_only=True) as store:
        rows = [row for row in store.consumer_positions() if row[:2] == (group, "t")]
    return sum(row.position for row in rows)


@pytest.mark.timeout(600)
def test_a_group_continues_where_the_other_side_has_stopped(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    bodies = [b"%d" % number for number in range(40)]
    with opened(path) as store:
        for body in bodies[:20]:
            store.put("t", body, queue_id=int(body) % 4)
        with store.consumer("group", "t") as consumer:
            ours = polled(consumer, 8)
            consumer.commit()
    with cluster.broker(path, CONFIG, signal.SIGTERM):
        theirs = [body_of(line) for line in cluster.consume(["t"], 12, "group")]
        assert sorted(ours + theirs) == sorted(bodies[:20])
        cluster.produce([request(body) for body in bodies[20:]])
    assert positions(path, "group") == 20
    with opened(path) as store, store.consumer("group", "t") as consumer:
        assert sorted(polled(consumer, 20)) == sorted(bodies[20:])
        assert consumer.poll(1, 0.2) == []
        consumer.commit()
    groups = json.loads((path / "config" / "subscriptionGroup.json").read_text())
    assert "group" in groups["subscriptionGroupTable"]
    with cluster.broker(path, CONFIG, signal.SIGTERM):
        cluster.produce([request(b"last")])
        assert [body_of(line) for line in cluster.consume(["t"], 1, "group")] == [b"last"]
    assert positions(path, "group") == 41


@pytest.mark.timeout(600)
def test_delayed_messages_are_delivered_by_either_side(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        for number in range(5):
            store.put("t", b"ours %d" % number, keys="k", delay_level=1)
        store.put("t", b"never", delay_level=3)
    with cluster.broker(path, CONFIG, signal.SIGTERM):
        got = cluster.consume(["t"], 5, "g")
        assert [body_of(line) for line in got] == [b"ours %d" % number for number in range(5)]
        cluster.produce([request(b"theirs %d" % number, delay_level=2) for number in range(3)])
    with opened(path) as store:
        with store.consumer("mine", "t") as consumer:
            found: set[bytes] = set()
            end = time.monotonic() + LONGEST_S
            while len(found) < 8 and time.monotonic() < end:
                found |= {message.body for message in consumer.poll(32, 1)}
        assert found == {b"ours %d" % n for n in range(5)} | {b"theirs %d" % n for n in range(3)}
        assert [row[:4] for row in store.delayed()] == [(3, 3_600_000, "t", 1)]
        by_broker, by_us = {}, {}
        for queue_id in store.queues("t"):
            for message in store.read("t", queue_id):
                (by_us if message.body.startswith(b"theirs") else by_broker)[message.body] = message
        # Both render the properties of what they deliver alike: from the text of the delayed one.
        for delivered in (*by_broker.values(), *by_us.values()):
            delayed = [
                one
                for number in (0, 1)
                for one in store.read("SCHEDULE_TOPIC_XXXX", number)
                if one.body == delivered.body
            ]
            assert delivered.properties == delayed[0].properties
            assert delivered.store_host == delayed[0].store_host
            assert delivered.born_timestamp == delayed[0].born_timestamp
            texts = {one.properties_string for one in delayed}
            print(delivered.body, delivered.properties_string, texts)
            assert delivered.properties_string in texts


@pytest.mark.timeout(600)
def test_a_broker_retries_what_we_gave_back(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        store.put("t", b"bad", tags="A", keys="k")
        with store.consumer("g", "t") as consumer:
            (message,) = consumer.poll(1, 5)
            consumer.retry(message, 1)
            consumer.commit()
    with cluster.broker(path, CONFIG, signal.SIGTERM):
        (line,) = cluster.consume(["t"], 1, "g")
    assert body_of(line) == b"bad"
    assert line["topic"] == "t"  # the client restores it from RETRY_TOPIC
    assert line["properties"]["ORIGIN_MESSAGE_ID"] == message.msg_id


@pytest.mark.timeout(600)
@pytest.mark.parametrize("group", ["%LMQ%light", "plain"])
def test_positions_of_a_broker_with_light_queues(
    cluster: Cluster, tmp_path: Path, group: str
) -> None:
    """We continue at its positions; 4.9.3 forgets those in lmqConsumerOffset.json, also its own."""
    path = tmp_path / "store"
    light = {"enable_lmq": True, "enable_multi_dispatch": True}
    config = {**CONFIG, "enableLmq": True, "enableMultiDispatch": True}
    bodies = [b"%d" % number for number in range(6)]

    def kept() -> list[tuple[str, str, int]]:
        with pyrocketstore.open(path, read_only=True, **SETTINGS, **light) as store:
            return [(row.group, row.topic, row.position) for row in store.consumer_positions()]

    with pyrocketstore.open(path, **SETTINGS, **light) as store:
        for body in bodies[:5]:
            store.put("t", body)
        with store.consumer(group, "t") as consumer:
            assert polled(consumer, 2) == bodies[:2]
            consumer.commit()
    assert kept() == [(group, "t", 2)]
    for _ in range(2):
        with cluster.broker(path, config, signal.SIGTERM):
            got = cluster.consume(["t"], 5, group)
            assert [body_of(line) for line in got] == bodies[:5]
        assert (group, "t", 5) in kept()
    with pyrocketstore.open(path, **SETTINGS, **light) as store:
        store.put("t", bodies[5])
        with store.consumer(group, "t") as consumer:
            assert polled(consumer, 1) == bodies[5:]
            assert consumer.poll(1, 0.2) == []
