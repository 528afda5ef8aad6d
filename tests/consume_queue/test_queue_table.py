"""The table of queues: what it holds by topic, and how much of it one topic costs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.cli.inspect import queue_rows, queue_spans
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


def test_the_list_of_all_queues_follows_each_change(store: pyrocketstore.Store) -> None:
    table = store.message_store.queue_table

    def names() -> list[str]:
        return sorted(f"{queue.topic}/{queue.queue_id}" for queue in table.all())

    assert names() == ["a/0", "b/0", "b/10", "b/2", "c/7"]
    table.all().clear()  # the caller's own list
    store.put("a", b"x", queue_id=3)
    store.wait_dispatched()
    assert names() == ["a/0", "a/3", "b/0", "b/10", "b/2", "c/7"]
    with store.message_store.dispatch_paused():
        table.remove("c", 7)
        assert names() == ["a/0", "a/3", "b/0", "b/10", "b/2"]
        other = table.new_queue("b", 2, table.flags)
        table.replace(other)
        assert [q for q in table.all() if (q.topic, q.queue_id) == ("b", 2)] == [other]
        table.replace(table.new_queue("d", 0, table.flags))
        assert names() == ["a/0", "a/3", "b/0", "b/10", "b/2", "d/0"]


def test_a_list_made_during_a_change_is_not_kept(
    store: pyrocketstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread adds a queue while one lists them."""
    table = store.message_store.queue_table
    with store.message_store.dispatch_paused():
        table.remove("c", 7)
        queue = table.new_queue("d", 0, table.flags)

        class Topics(dict[str, Any]):
            def values(self) -> Any:
                found = list(super().values())
                table._topics = dict(self)
                table.replace(queue)
                return found

        monkeypatch.setattr(table, "_topics", Topics(table._topics))
        assert queue not in table.all()
        assert queue in table.all()


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
    rows = [row[:5] for row in queue_rows(store, queue_spans(store))]
    assert rows == [("a", 0, 0, 1, 1), *(("b", i, 0, 1, 1) for i in (0, 2, 10)), ("c", 7, 0, 1, 1)]
    with pytest.raises(pyrocketstore.UnknownTopicError):
        store.read("d")
