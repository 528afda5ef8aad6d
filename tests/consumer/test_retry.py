"""Goal: a message that a consumer gives back is read again later, and becomes a dead letter in the
end, with the bytes of a 4.9.3 broker.
Method: small stores whose levels are due at once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyrocketstore
from pyrocketstore import Consumer, MessageExt, Store
from support.sizes import SIZES

LEVELS = " ".join(["0s"] * 20)
LONGEST_S = 20.0


def opened(path: Path, **settings: Any) -> Store:
    return pyrocketstore.open(path, **{**SIZES, "message_delay_level": LEVELS, **settings})


def one(consumer: Consumer) -> MessageExt:
    found = consumer.poll(1, LONGEST_S)
    assert len(found) == 1
    return found[0]


def test_a_message_comes_back_until_it_is_a_dead_letter(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put = store.put("t", b"bad", queue_id=2, tags="A", keys="k", properties={"own": "1"})
        consumer = store.consumer("g", "t", tags="A")
        message = one(consumer)
        for times in range(16):
            assert message.reconsume_times == times
            consumer.retry(message)
            if times < 15:
                message = one(consumer)
                assert (message.topic, message.queue_id) == ("%RETRY%g", 0)
                assert message.properties == {
                    "own": "1",
                    "TAGS": "A",
                    "KEYS": "k",
                    "RETRY_TOPIC": "t",
                    "ORIGIN_MESSAGE_ID": put.msg_id,
                    "WAIT": "false",
                    "DELAY": str(3 + times),
                    "REAL_TOPIC": "%RETRY%g",
                    "REAL_QID": "0",
                }
        message = one(consumer)
        assert message.reconsume_times == 16
        consumer.retry(message)
        (dead,) = store.read("%DLQ%g")
        assert (dead.body, dead.reconsume_times) == (b"bad", 17)
        assert dead.properties["DELAY"] == "0"
        assert dead.properties["RETRY_TOPIC"] == "t"
        assert consumer.poll(1, 0.05) == []
    topics = json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]
    for topic in ("%RETRY%g", "%DLQ%g"):
        assert (topics[topic]["perm"], topics[topic]["readQueueNums"]) == (6, 1)
    groups = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())
    assert groups["subscriptionGroupTable"]["g"]["retryMaxTimes"] == 16


def test_levels_of_a_retry(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put("t", b"a")
        consumer = store.consumer("g", "t")
        message = one(consumer)
        consumer.retry(message, 7)
        assert one(consumer).properties["DELAY"] == "7"
        consumer.retry(message, -1)
        end = time.monotonic() + LONGEST_S
        while store.max_offset("%DLQ%g") < 1 and time.monotonic() < end:
            time.sleep(0.002)
        (dead,) = store.read("%DLQ%g")
        assert (dead.properties["DELAY"], dead.reconsume_times) == ("0", 1)


def test_the_group_of_a_broker_decides_how_often(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    table = {"subscriptionGroupTable": {"g": {"groupName": "g", "retryMaxTimes": 1, "more": [1]}}}
    (config / "subscriptionGroup.json").write_text(json.dumps(table))
    with opened(tmp_path) as store:
        store.put("t", b"a")
        consumer = store.consumer("g", "t")
        consumer.retry(one(consumer))
        consumer.retry(one(consumer))
        assert store.max_offset("%DLQ%g") == 1
        store.consumer("h", "t")
    written = json.loads((config / "subscriptionGroup.json").read_text())
    assert written["subscriptionGroupTable"]["g"] == table["subscriptionGroupTable"]["g"]
    assert set(written["subscriptionGroupTable"]) == {"g", "h"}
