"""Goal: each argument of a reading call is converted to its exact type, and an invalid one is
refused by an error that names it. Method: call with wrong types, numbers out of each range and
unknown topics, and check the error or the answer."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore import OffsetOutOfRange, StoreFormatError, UnknownTopicError

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 50,
    "max_index_num": 400,
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[pyrocketstore.Store]:
    with pyrocketstore.open(tmp_path / "store", **SETTINGS) as opened:
        for i in range(10):
            opened.put("orders", b"%d" % i, queue_id=i % 2, tags="AB"[i % 2], keys="k")
        yield opened


@pytest.mark.parametrize("queue_id", ["1", 1.0, b"1", [1], np.float64(1), object()])
def test_a_queue_id_that_is_no_int(store: pyrocketstore.Store, queue_id: Any) -> None:
    for call in (store.read, store.min_offset, store.max_offset):
        with pytest.raises(TypeError, match=r"queue_id must be an int"):
            call("orders", queue_id)
    with pytest.raises(TypeError, match="queue_id"):
        store.read_batch("orders", queue_id, start=0)
    with pytest.raises(TypeError, match="queue_id"):
        store.offset_at("orders", queue_id, 0)


@pytest.mark.parametrize("queue_id", [2**31, 2**63, 2**70, -1, -(2**70)])
def test_a_queue_id_that_no_queue_has(store: pyrocketstore.Store, queue_id: int) -> None:
    for call in (store.read, store.min_offset, store.max_offset):
        with pytest.raises(StoreFormatError, match=r"queue_id .*0 to 2147483647"):
            call("orders", queue_id)
    with pytest.raises(StoreFormatError, match="queue_id"):
        store.read_batch("orders", queue_id, start=0)


def test_integers_of_numpy_are_integers(store: pyrocketstore.Store) -> None:
    reader = store.read("orders", np.int64(1), start=np.int32(1), stop=np.uint8(3))
    assert [m.body for m in reader] == [b"3", b"5"]


@pytest.mark.parametrize("topic", [None, 5, b"orders", ["orders"]])
def test_a_topic_that_is_no_str(store: pyrocketstore.Store, topic: Any) -> None:
    for call in (store.read, store.min_offset, store.max_offset):
        with pytest.raises(TypeError, match=r"topic must be a str"):
            call(topic)
    with pytest.raises(TypeError, match="topic"):
        store.read(topic, None)
    with pytest.raises(TypeError, match="topic"):
        store.read_batch(topic, start=0)


def test_tags(store: pyrocketstore.Store) -> None:
    assert len(list(store.read("orders", tags=None))) == 5
    assert len(list(store.read("orders", None, tags=None))) == 10
    assert store.read_batch("orders", start=0, tags=None).num_rows == 5
    for tags in (5, b"A", ["A"], True):
        with pytest.raises(TypeError, match=r"tags is .*must be a str"):
            store.read("orders", tags=tags)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="tags"):
            store.read_batch("orders", start=0, tags=tags)  # type: ignore[arg-type]


def test_ranges(store: pyrocketstore.Store) -> None:
    with pytest.raises(OffsetOutOfRange) as raised:
        store.read("orders", 1, start=7)
    assert (
        str(raised.value)
        == "offset 7 is outside of queue orders/1, which begins at 0 and ends before 5"
    )
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    assert (raised.value.topic, raised.value.queue_id) == ("orders", 1)
    for start in (2**63, 2**100, -(2**100)):
        with pytest.raises(OffsetOutOfRange, match="orders/0"):
            store.read("orders", start=start)
        with pytest.raises(OffsetOutOfRange, match="orders/0"):
            store.read_batch("orders", start=start)
    assert len(list(store.read("orders", stop=2**100))) == 5
    assert list(store.read("orders", stop=-(2**100))) == []
    for start in ("1", 1.5):
        with pytest.raises(TypeError, match="start must be"):
            store.read("orders", start=start)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="stop must be"):
            store.read("orders", stop=start)  # type: ignore[arg-type]
    assert store.read_batch("orders", start=0, max_count=2**80, max_bytes=2**80).num_rows == 5
    for name in ("max_count", "max_bytes"):
        with pytest.raises(TypeError, match=f"{name} must be an int"):
            store.read_batch("orders", start=0, **{name: 1.5})
    for start in (0, 5):
        for count in (0, -1, -(2**80)):
            with pytest.raises(StoreFormatError, match=r"max_count .*: must be 1 or more"):
                store.read_batch("orders", start=start, max_count=count)


@pytest.mark.parametrize("options", [{}, {"tags": "B"}, {"where": "a = 1"}, {"max_bytes": 0}])
def test_next_offset_leads_to_the_end(store: pyrocketstore.Store, options: dict[str, Any]) -> None:
    """A filter that leaves no rows stops no loop."""
    start, end, count = 0, store.max_offset("orders", 0), 0
    while start < end:
        batch = store.read_batch("orders", start=start, max_count=2, **options)
        after = int(batch.schema.metadata[b"next_offset"])
        assert start < after <= end
        start, count = after, count + batch.num_rows
    assert count == (0 if "tags" in options or "where" in options else 5)


def test_merged_queues_have_no_start(store: pyrocketstore.Store) -> None:
    for bound in ({"start": 1}, {"stop": 1}, {"start": 0, "stop": 9}):
        with pytest.raises(StoreFormatError, match="start and stop belong to one queue"):
            store.read("orders", None, **bound)


def test_a_queue_id_is_taken_once(store: pyrocketstore.Store) -> None:
    class Index:
        """Hashes as itself, and is a number all the same."""

        def __index__(self) -> int:
            return 0

    count = store.max_offset("orders", 0)
    for queue_id in (Index(), np.int8(0)):
        assert store.max_offset("orders", queue_id) == count  # type: ignore[arg-type]
        assert len(list(store.read("orders", queue_id))) == count  # type: ignore[arg-type]
        batch = store.read_batch("orders", queue_id, start=0)  # type: ignore[arg-type]
        assert batch.num_rows == count


def test_numbers_that_no_clock_has(store: pyrocketstore.Store) -> None:
    for time in (2**63, -(2**63) - 1, 2**200):
        for bound in ({"begin": time}, {"end": time}):
            with pytest.raises(StoreFormatError, match=r"(begin|end) .*: must be 0 to"):
                store.query("orders", "k", **bound)
            with pytest.raises(StoreFormatError, match=r"(begin|end) .*: must be 0 to"):
                store.query_many("orders", ["k"], **bound)
        with pytest.raises(StoreFormatError, match="timestamp_ms"):
            store.offset_at("orders", 0, time)
    with pytest.raises(TypeError, match="begin must be"):
        store.query("orders", "k", begin=1.5)  # type: ignore[arg-type]
    with pytest.raises(StoreFormatError, match="begin '1': not ISO 8601"):
        store.query("orders", "k", begin="1")
    assert len(store.query("orders", "k", begin=np.int64(0), end=2**63 - 1)) == 10
    for timeout in (float("inf"), float("nan"), 1e300, 2**64):
        with pytest.raises(StoreFormatError, match=rf"timeout {re.escape(repr(timeout))}: must be"):
            store.wait_dispatched(timeout)
    with pytest.raises(TypeError, match="timeout"):
        store.wait_dispatched("soon")  # type: ignore[arg-type]
    assert store.wait_dispatched(10**6)
    assert store.wait_dispatched()


@pytest.mark.parametrize(
    ("begin", "end", "text"),
    [
        (1_700_000_000_001, 1_700_000_000_000, "begin 1700000000001 is after end 1700000000000 "),
        (2**63 - 1, 0, f"begin {2**63 - 1} is after end 0 "),
        (
            "2026-01-02T00:00Z",
            "2026-01-01T00:00Z",
            "begin 1767312000000 is after end 1767225600000",
        ),
    ],
)
def test_a_begin_after_the_end(
    store: pyrocketstore.Store, begin: int | str, end: int | str, text: str
) -> None:
    """A swapped pair is a mistake; the engine's own query answers as 4.9.3."""
    with pytest.raises(StoreFormatError, match=text):
        store.query("orders", "k", begin=begin, end=end)
    with pytest.raises(StoreFormatError, match=text):
        store.query_many("orders", ["k"], begin=begin, end=end)
    assert store.query("orders", "k", begin=10**11, end=10**11) == []
    if isinstance(begin, int) and isinstance(end, int):
        engine = store.message_store
        assert engine.query_message("orders", "k", 32, begin, end).phy_offsets == []


def test_an_unknown_topic_names_the_nearest(store: pyrocketstore.Store) -> None:
    for call in (
        lambda topic: store.read(topic),
        lambda topic: store.read(topic, None),
        lambda topic: store.read_batch(topic, start=0),
    ):
        for topic in ("order", "Orders", "ordres"):
            with pytest.raises(UnknownTopicError, match="did you mean 'orders'") as raised:
                call(topic)
            assert (raised.value.topic, raised.value.nearest) == (topic, "orders")
            assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
        for topic in ("zzzzz", "", ".", "a/b", "\0", "\udcff", "x" * 1000):
            with pytest.raises(UnknownTopicError, match="similar name"):
                call(topic)
    assert (store.min_offset("none"), store.max_offset("none")) == (0, 0)


def test_a_topic_without_messages_is_known(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with pyrocketstore.open(root, **SETTINGS) as store:
        store.put("orders", b"")
    config = json.loads((root / "config/topics.json").read_text())
    config["topicConfigTable"]["planned"] = config["topicConfigTable"]["orders"] | {
        "topicName": "planned"
    }
    (root / "config/topics.json").write_text(json.dumps(config))
    (root / "consumequeue/emptied").mkdir()
    for read_only in (True, False):
        with pyrocketstore.open(root, read_only=read_only, **SETTINGS) as store:
            for topic in ("planned", "emptied", "SCHEDULE_TOPIC_XXXX"):
                assert list(store.read(topic)) == []
                assert list(store.read(topic, None)) == []
                assert store.read_batch(topic, start=0).num_rows == 0
            assert list(store.read("orders", 7)) == []
            with pytest.raises(UnknownTopicError, match="did you mean 'planned'"):
                store.read("plannd")
    # What cannot be read names no topic.
    (root / "config/topics.json").write_text("no json")
    (root / "config/topics.json.bak").unlink(missing_ok=True)
    with (
        pyrocketstore.open(root, read_only=True, **SETTINGS) as store,
        pytest.raises(UnknownTopicError),
    ):
        store.read("planned")


def test_the_nearest_of_very_many_topics_is_found_at_once(tmp_path: Path) -> None:
    from pyrocketstore.message_store import topic_names

    names = [f"topic-{i}" for i in range(50_000)]
    assert topic_names._nearest("topic-x", names) is not None


def test_a_batch_without_columns_has_rows(store: pyrocketstore.Store) -> None:
    batch = store.read_batch("orders", start=0, columns=[])
    assert (batch.num_rows, batch.num_columns) == (5, 0)
    assert batch.schema.metadata[b"next_offset"] == b"5"
    assert store.read_batch("orders", start=0, columns=[], tags="A").num_rows == 5
    assert store.read_batch("orders", start=0, columns=[], tags="B").num_rows == 0
    assert store.read_batch("orders", start=2, columns=[], max_count=2).num_rows == 2
    assert store.read_batch("orders", start=0, columns=[], max_bytes=1).num_rows == 1
