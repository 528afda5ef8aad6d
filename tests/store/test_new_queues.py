"""Goal: the topic of each new queue is requested for topics.json, but for light queues, and a file
that cannot be written refuses the put with the reason.
Method: `NewQueues` with a real file of topics, with settings and names of each kind."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from pyrocketstore import (
    MessageStoreConfig,
    PutError,
    PutMessageStatus,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
)
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.store.new_queues import NewQueues
from pyrocketstore.system.env import Env


@pytest.fixture
def topics(tmp_path: Path) -> TopicConfigFile:
    found = TopicConfigFile(Env(), str(tmp_path / "config" / "topics.json"))
    found.load()
    return found


def written(topics: TopicConfigFile) -> dict[str, int]:
    topics.persist()
    path = Path(topics.path)
    content = json.loads(path.read_text()) if path.exists() else {"topicConfigTable": {}}
    return {name: one["writeQueueNums"] for name, one in content["topicConfigTable"].items()}


@pytest.mark.parametrize("enable_lmq", [True, False])
def test_topics_are_added_but_for_light_queues(topics: TopicConfigFile, enable_lmq: bool) -> None:
    queues = NewQueues(MessageStoreConfig(enable_lmq=enable_lmq), topics)
    for topic, queue_id in (("t", 0), ("t", 3), ("t", 1), ("u", 0), ("%LMQ%q", 0)):
        queues.add(topic, queue_id)
    light = {} if enable_lmq else {"%LMQ%q": 1}
    assert written(topics) == {"t": 4, "u": 1, **light}


def test_without_a_file_nothing_is_refused() -> None:
    NewQueues(MessageStoreConfig(), None).add("t", 1 << 40)


def test_a_number_of_queues_that_java_cannot_read_is_refused(topics: TopicConfigFile) -> None:
    queues = NewQueues(MessageStoreConfig(), topics)
    with pytest.raises(StoreFormatError, match="queue_id 2147483647"):
        queues.add("t", 2**31 - 1)
    queues.add("t", 2**31 - 2)
    assert written(topics) == {"t": 2**31 - 1}


def test_a_file_that_cannot_be_written_refuses_the_put(topics: TopicConfigFile) -> None:
    queues = NewQueues(MessageStoreConfig(enable_lmq=True), topics)
    topics.error = StoreIOError(errno.ENOSPC, "pwrite failed", topics.path)
    with pytest.raises(PutError, match=r"config/topics\.json: .*pwrite failed") as caught:
        queues.add("t", 0)
    assert caught.value.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert caught.value.__cause__ is topics.error
    queues.add("%LMQ%q", 0)
    topics.error = None
    queues.add("t", 0)
    assert written(topics) == {"t": 1}


def test_a_closed_store_is_refused(topics: TopicConfigFile) -> None:
    topics.close()
    with pytest.raises(StoreStateError, match="closed"):
        NewQueues(MessageStoreConfig(), topics).add("t", 0)
