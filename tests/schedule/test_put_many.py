"""Goal: put_many delays each message as put does, and checks all of them before the first is put.
Method: the same messages by put and by put_many, compared in log and queues; bad rows."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore import PutError, PutMessageStatus, Store, StoreFormatError, StoreTypeError
from pyrocketstore.record.message import SCHEDULE_TOPIC
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.gates import wait_until
from support.sizes import SIZES

NEVER, LAST = 1, 3
COUNT = 60


def opened(path: Path) -> Store:
    return pyrocketstore.open(path, **SIZES, message_delay_level="1h 2h 3h")


def rows() -> list[dict[str, Any]]:
    return [
        {
            "body": b"%d" % i + bytes(i * 37 % 300),
            "queue_id": i % 5,
            "tags": (None, "A", "B")[i % 3],
            "keys": (f"k{i}", None, [f"k{i}", "all"])[i // 2 % 3],
            "properties": (None, {"name": str(i)})[i % 2],
            "delay_level": (0, NEVER, 2, 99)[i // 3 % 4],
        }
        for i in range(COUNT)
    ]


def content(store: Store) -> list[tuple[Any, ...]]:
    store.wait_dispatched()
    return [
        (m.topic, m.queue_id, m.queue_offset, m.phy_offset, m.body, m.properties_string)
        for topic in sorted(store.topics())
        for queue_id in store.queues(topic)
        for m in store.read(topic, queue_id)
    ]


def test_the_log_is_that_of_single_puts(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as store:
        results = [store.put("t", row.pop("body"), **row) for row in rows()]
        expected = content(store)
    with opened(tmp_path / "many") as store:
        names = ("queue_id", "tags", "keys", "properties", "delay_level")
        queue_ids, tags, keys, properties, levels = ([row[n] for row in rows()] for n in names)
        queue_offsets, phy_offsets = store.put_many(
            "t", [row["body"] for row in rows()], queue_ids=queue_ids, tags=tags, keys=keys,
            properties=properties, delay_levels=levels,
        )  # fmt: skip
        assert content(store) == expected
        assert queue_offsets.tolist() == [result.queue_offset for result in results]
        assert phy_offsets.tolist() == [result.phy_offset for result in results]
        assert store.max_offset(SCHEDULE_TOPIC, LAST - 1) == sum(
            r["delay_level"] == 99 for r in rows()
        )
    tables = [
        json.loads((tmp_path / name / "config" / "topics.json").read_text())["topicConfigTable"]
        for name in ("one", "many")
    ]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("levels", [2, np.int64(2), [2, 2, 2], np.array([2, 2, 2]), [2, None, 2]])
def test_forms_of_levels(tmp_path: Path, levels: Any) -> None:
    with opened(tmp_path) as store:
        queue_offsets, _ = store.put_many("t", [b"a", b"b", b"c"], delay_levels=levels)
        delayed = 2 if isinstance(levels, list) and None in levels else 3
        assert store.max_offset(SCHEDULE_TOPIC, 1) == delayed
        assert queue_offsets.tolist() == ([0, 0, 1] if delayed == 2 else [0, 1, 2])
        assert "t" in store.message_store.topics.topics()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("levels", "error"),
    [
        (-1, StoreFormatError),
        (2**31, StoreFormatError),
        ([1, 2], StoreFormatError),
        ([1, 2, -1], StoreFormatError),
        ("abc", StoreTypeError),
        ([1, 2, "3"], StoreTypeError),
        (None, None),
    ],
)
def test_bad_levels(tmp_path: Path, levels: Any, error: Any) -> None:
    with opened(tmp_path) as store:
        if error is None:
            store.put_many("t", [b"a", b"b", b"c"], delay_levels=levels)
            return
        with pytest.raises(error, match="delay_level"):
            store.put_many("t", [b"a", b"b", b"c"], delay_levels=levels)
        assert store.message_store.get_max_phy_offset() == 0


@pytest.mark.parametrize(
    ("bad", "levels"),
    [
        ({"bodies": [b"a", b"b", b"c" * 2000]}, [0, 1, 1]),
        ({"bodies": [b"a", b"b", b"c" * 2000]}, [1, 1, 0]),
        ({"bodies": [b"a", b"b", "c"]}, [0, 1, 2]),
        ({"queue_ids": [0, 1, -1]}, [1, 1, 1]),
        ({"tags": ["A", "A", ""]}, [1, 0, 0]),
        ({"properties": [None, None, {"a": "x" * 32767}]}, [1, 1, 1]),
        ({"properties": [None, None, {"a": "x" * 32740}]}, [1, 1, 1]),
        ({"born_host": "nowhere"}, [0, 1, 1]),
        ({"topic": SCHEDULE_TOPIC}, [0, 0, 1]),
    ],
)
def test_nothing_is_put_if_one_message_cannot_be(
    tmp_path: Path, bad: dict[str, Any], levels: list[int]
) -> None:
    arguments = {"topic": "t", "bodies": [b"a", b"b", b"c"], **bad}
    with pyrocketstore.open(tmp_path, **SIZES, max_message_size=2000) as store:
        with pytest.raises((PutError, StoreFormatError, StoreTypeError)) as caught:
            store.put_many(**arguments, delay_levels=levels)
        if isinstance(caught.value, PutError):
            assert caught.value.count == 0
            assert "2000" not in str(caught.value) or "message 2" in str(caught.value)
        assert store.message_store.get_max_phy_offset() == 0


def test_aput_many_and_a_batch(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES, message_delay_level="0s") as store:
        asyncio.run(store.aput_many("t", [b"a", b"b"], delay_levels=1))
        wait_until(lambda: store.max_offset("t", 0) == 2, "deliveries")
        assert [message.body for message in store.read("t")] == [b"a", b"b"]
        batch = pyrocketstore.MessageExtBatch("t", b"", properties={"DELAY": "1"})
        result = store.message_store.put_messages(batch)
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert "delayed" in str(result.error)


@pytest.mark.parametrize("by_service", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_deliveries_do_not_wait_for_the_device(
    tmp_path: Path, by_service: bool, is_async: bool
) -> None:
    """As in both modes of 4.9.3: the put of a delivery has WAIT=false."""
    env, threads = Env(), set()

    def sync(original: Any, *arguments: Any) -> int:
        threads.add(threading.current_thread().name)
        return int(original(*arguments))

    settings: dict[str, Any] = {
        "flush_disk_type": "SYNC_FLUSH",
        "sync_flush_by_service": by_service,
    }
    settings |= {"enable_schedule_async_deliver": is_async, "message_delay_level": "0s"}
    settings |= {**SIZES, "mapped_file_size_commit_log": 1 << 20}
    with pyrocketstore.open(tmp_path, env=env, **settings) as store:
        with broken(env, "fdatasync", sync), broken(env, "msync", sync):
            store.put_many("t", [b"x"] * 500, delay_levels=1)
            wait_until(lambda: store.max_offset("t", 0) == 500, "deliveries")
        assert "ScheduleMessageService" not in threads
