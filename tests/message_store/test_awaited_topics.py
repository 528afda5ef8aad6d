"""Goal: a topic to which somebody has put is known, and has no messages yet while they wait: as
delayed messages, as retries, or as half messages.
Method: a table of the ways to put, with a maintained topics.json and without one, and of the ways
to open; each call that takes a topic answers as for an empty topic."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import pyrocketstore
from pyrocketstore import MessageExtBrokerInner, UnknownTopicError
from pyrocketstore.cli.app import app
from pyrocketstore.record._message import properties_to_string
from support.sizes import SIZES
from support.transactions import half_of_another

SETTINGS: dict[str, Any] = {**SIZES, "message_delay_level": "1d 2d"}
Put = Callable[[pyrocketstore.Store], object]


def retry(store: pyrocketstore.Store) -> None:
    with store.consumer("g", "base") as consumer:
        (message,) = consumer.poll(1, timeout=0)
        consumer.retry(message, delay_level=1)


def engine_put(store: pyrocketstore.Store) -> None:
    named = {"DELAY": "1"}
    message = MessageExtBrokerInner(
        "later", b"x", properties=named, properties_string=properties_to_string(named)
    )
    assert store.message_store.put_message(message).is_ok()


WAYS: dict[str, tuple[str, Put]] = {
    "put": ("later", lambda store: store.put("later", b"x", delay_level=1)),
    "put to a queue": ("later", lambda store: store.put("later", b"x", delay_level=2, queue_id=5)),
    "put_many": ("later", lambda store: store.put_many("later", [b"x"] * 2, delay_levels=[1, 2])),
    "aput": ("later", lambda store: asyncio.run(store.aput("later", b"x", delay_level=1))),
    "engine": ("later", engine_put),
    "prepare": ("later", lambda store: store.prepare("later", b"x", group="g")),
    "half of a broker": ("u", lambda store: half_of_another(store, b"x", "id", REAL_TOPIC="u")),
    "retry": ("%RETRY%g", retry),
    "dead letter": ("%DLQ%g", lambda store: store.put("%DLQ%g", b"x", delay_level=1)),
}


def check_empty(store: pyrocketstore.Store, topic: str) -> None:
    """Require of each call the answer for a topic without messages."""
    for queue_id in (0, 3, None):
        assert list(store.read(topic, queue_id)) == []
        assert list(store.read(topic, queue_id, where="a = 1")) == []
        assert list(store.read(topic, queue_id, tags="A")) == []
        assert list(store.follow(topic, queue_id, timeout=0)) == []
    assert store.read_batch(topic, start=0).num_rows == 0
    assert store.queues(topic) == []
    assert topic not in store.topics()
    assert (store.min_offset(topic), store.max_offset(topic)) == (0, 0)
    assert store.offset_at(topic, 0, 0) == 0
    assert store.query(topic, "k") == []
    with store.consumer("other", topic) as consumer:
        assert consumer.poll(1, timeout=0) == []
    with pytest.raises(UnknownTopicError):
        store.read("nobody")


@pytest.mark.parametrize("topics_json", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_topic_of_waiting_messages_is_empty(tmp_path: Path, way: str, topics_json: bool) -> None:
    topic, put = WAYS[way]
    live, killed = tmp_path / "live", tmp_path / "killed"
    more = {**SETTINGS, "topics_json": topics_json}
    with pyrocketstore.open(live, **more) as store:
        store.put("base", b"b")
        put(store)
        check_empty(store, topic)
        store.message_store.commit_log.commit_appended()
        with pyrocketstore.open(live, read_only=True, **SETTINGS) as reader:
            check_empty(reader, topic)
        shutil.copytree(live, killed, ignore=shutil.ignore_patterns("lock"))
    for path in (live, killed):
        for read_only in (True, False):
            with pyrocketstore.open(path, read_only=read_only, **more) as store:
                check_empty(store, topic)
        command = ["cat", str(path), topic]
        for options in ([], ["--queue", "0"], ["--queue", "7"]):
            result = CliRunner().invoke(app, [*command, *options])
            assert (result.exit_code, "no message yet" in result.output) == (0, True)


@pytest.mark.parametrize("topics_json", [True, False])
def test_messages_that_come_are_read(tmp_path: Path, topics_json: bool) -> None:
    with pyrocketstore.open(tmp_path, topics_json=topics_json, **SETTINGS) as store:
        followed = store.follow("later", timeout=0)
        transaction = store.prepare("later", b"x", group="g")
        with store.consumer("other", "later") as consumer:
            assert consumer.poll(1, timeout=0) == []
            transaction.commit()
            assert [message.body for message in consumer.poll(1, timeout=0)] == [b"x"]
        assert [message.body for message in followed] == [b"x"]
        assert store.queues("later") == [0]


@pytest.mark.parametrize("topics_json", [True, False])
@pytest.mark.parametrize("way", ["put", "prepare"])
def test_a_removed_topic_is_unknown(tmp_path: Path, way: str, topics_json: bool) -> None:
    """Until somebody puts to it again, although delayed messages of before are delivered later."""
    topic, put = WAYS[way]
    more = {**SETTINGS, "topics_json": topics_json}
    with pyrocketstore.open(tmp_path, **more) as store:
        put(store)
        store.put(topic, b"seen")
        store.drop_topic(topic)
        with pytest.raises(UnknownTopicError):
            store.read(topic)
    for read_only in (True, False):
        with pyrocketstore.open(tmp_path, read_only=read_only, **more) as store:
            with pytest.raises(UnknownTopicError):
                store.read(topic)
            if not read_only:
                put(store)
                check_empty(store, topic)


def test_damaged_positions_hide_no_topic(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, topics_json=False, **SETTINGS) as store:
        store.put("later", b"x", delay_level=1)
        half_of_another(store, b"x", "id", REAL_TOPIC="u")
    (tmp_path / "config").mkdir(exist_ok=True)
    for name in ("delayOffset.json", "consumerOffset.json", "topics.json"):
        (tmp_path / "config" / name).write_text("no json")
        (tmp_path / "config" / f"{name}.bak").unlink(missing_ok=True)
    with pyrocketstore.open(tmp_path, read_only=True, **SETTINGS) as reader:
        for topic in ("later", "u"):
            assert list(reader.read(topic)) == []
        with pytest.raises(UnknownTopicError):
            reader.read("nobody")
