"""The table of queues: what it holds by topic, and how much of it one topic costs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.cli.inspect import queue_rows
from pyrocketstore.consume_queue.table import ConsumeQueueTable
from support.sizes import SIZES


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with pyrocketstore.open(tmp_path / "store", **SIZES) as store:
        for topic, queue_id in (("b", 10), ("b", 2), ("a", 0), ("b", 0), ("c", 7)):
            store.put(topic, b"x", queue_id=queue_id)
        store.wait_dispatched()
        yield store


def test_topics_and_queue_ids_are_sorted(store: pyrocketstore.Store) -> None:
    table = store.message_store.queue_table
    assert table.topics() == store.topics() == ["a", "b", "c"]
    assert list(table.of_topic("b")) == store.queues("b") == [0, 2, 10]
    assert table.of_topic("unknown") == {}
    assert store.queues("unknown") == []
    found = [(topic, list(queues)) for topic, queues in table.by_topic().items()]
    assert found == [("a", [0]), ("b", [0, 2, 10]), ("c", [7])]
    assert sorted((q.topic, q.queue_id) for q in table.all()) == [
        ("a", 0), ("b", 0), ("b", 2), ("b", 10), ("c", 7)
    ]  # fmt: skip


def test_a_topic_ends_with_its_last_queue(store: pyrocketstore.Store) -> None:
    table = store.message_store.queue_table
    with store.message_store.dispatch_paused():
        table.remove("b", 2)
        assert list(table.of_topic("b")) == [0, 10]
        table.remove("c", 7)
        table.remove("c", 7)  # once more: nothing happens
    assert store.topics() == ["a", "b"]
    assert table.get("c", 7) is None
    assert table.get("b", 2) is None


def test_calls_for_one_topic_leave_the_other_topics_alone(
    store: pyrocketstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a loop over all topics is quadratic."""

    caller, every = threading.get_ident(), ConsumeQueueTable.all

    def refuse(table: ConsumeQueueTable) -> Any:
        # The services of the store may visit them.
        assert threading.get_ident() != caller, "every queue of the store was visited"
        return every(table)

    monkeypatch.setattr(ConsumeQueueTable, "by_topic", refuse)
    monkeypatch.setattr(ConsumeQueueTable, "all", refuse)
    assert store.queues("b") == [0, 2, 10]
    assert len(list(store.read("b", None))) == 3
    rows = [row[:5] for row in queue_rows(store)]
    assert rows == [("a", 0, 0, 1, 1), *(("b", i, 0, 1, 1) for i in (0, 2, 10)), ("c", 7, 0, 1, 1)]
    with pytest.raises(pyrocketstore.UnknownTopicError):
        store.read("d")
