"""Goal: a message that a consumer gives back goes to the retry topic with the level of its attempt,
and among the dead letters after the last one.
Method: messages of a store, with each number of attempts and each level."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import MessageExt, MessageExtBrokerInner
from pyrocketstore.consumer.retry import FIRST_LEVEL, dlq_topic, retry_message, retry_topic
from support.sizes import SIZES


def message_of(root: Path, times: int = 0, **properties: str) -> MessageExt:
    """A message as a store has it, after so many attempts."""
    with pyrocketstore.open(root, **SIZES) as store:
        given = MessageExtBrokerInner(
            "t",
            b"body",
            3,
            properties=properties,
            properties_string=pyrocketstore.properties_to_string(properties),
            reconsume_times=times,
        )
        result = store.message_store.put_message(given)
        found = store.message_store.look_message_by_offset(result.phy_offset)
    assert found is not None and found.reconsume_times == times
    return found


def test_the_topics_of_a_group() -> None:
    assert (retry_topic("g"), dlq_topic("g")) == ("%RETRY%g", "%DLQ%g")


@pytest.mark.parametrize("times", [0, 1, 15])
def test_the_level_grows_with_the_attempts(tmp_path: Path, times: int) -> None:
    found = retry_message(message_of(tmp_path, times), "g", 16)
    assert (found.topic, found.queue_id, found.body) == ("%RETRY%g", 0, b"body")
    assert found.properties["DELAY"] == str(FIRST_LEVEL + times)
    assert found.reconsume_times == times + 1


def test_a_level_of_the_caller(tmp_path: Path) -> None:
    found = retry_message(message_of(tmp_path, 2), "g", 16, 7)
    assert (found.topic, found.properties["DELAY"]) == ("%RETRY%g", "7")


@pytest.mark.parametrize(("times", "level"), [(16, 0), (17, 5), (0, -1)])
def test_dead_letters(tmp_path: Path, times: int, level: int) -> None:
    found = retry_message(message_of(tmp_path, times), "g", 16, level)
    assert (found.topic, found.properties["DELAY"]) == ("%DLQ%g", "0")
    assert found.reconsume_times == times + 1


def test_the_origin_is_noted_once(tmp_path: Path) -> None:
    message = message_of(tmp_path / "a", KEYS="k")
    found = retry_message(message, "g", 16)
    assert found.properties["RETRY_TOPIC"] == "t"
    assert found.properties["ORIGIN_MESSAGE_ID"] == message.msg_id
    assert (found.properties["KEYS"], found.properties["WAIT"]) == ("k", "false")
    assert "DELAY" not in message.properties, "the message that was read does not change"
    again = retry_message(
        message_of(tmp_path / "b", 1, RETRY_TOPIC="first", ORIGIN_MESSAGE_ID="ID"), "g", 16
    )
    assert (again.properties["RETRY_TOPIC"], again.properties["ORIGIN_MESSAGE_ID"]) == (
        "first",
        "ID",
    )


@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_origin_is_none(tmp_path: Path, blank: str) -> None:
    message = message_of(tmp_path, ORIGIN_MESSAGE_ID=blank)
    found = retry_message(message, "g", 16)
    assert found.properties["ORIGIN_MESSAGE_ID"] == message.msg_id
