"""Goal: a group reads each message of its queues, its members share the queues, and committed
positions survive.
Method: small stores; members that join, close and are dropped; handlers and threads that wait."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore import (
    Consumer,
    MessagesRemovedError,
    Store,
    StoreFormatError,
    StoreStateError,
    StoreTypeError,
    StoreWarning,
)
from support.sizes import SIZES


def opened(path: Path, **settings: Any) -> Store:
    return pyrocketstore.open(path, **{**SIZES, **settings})


def put(store: Store, count: int, topic: str = "t", queues: int = 1, first: int = 0) -> None:
    for number in range(first, first + count):
        store.put(topic, b"%d" % number, queue_id=number % queues, tags="AB"[number % 2])


def drain(consumer: Consumer, max_count: int = 32) -> list[int]:
    """Return the numbers of all messages that are there."""
    found: list[int] = []
    while messages := consumer.poll(max_count, 0):
        found += [int(message.body) for message in messages]
    return found


def test_a_group_reads_everything_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 100, queues=4)
        consumer = store.consumer("g", "t")
        assert sorted(drain(consumer, 7)) == list(range(100))
        put(store, 20, queues=5, first=100)
        assert sorted(drain(consumer)) == list(range(100, 120))
        assert consumer.lag() == 0
        assert consumer.poll(1, 0.01) == []


def test_each_queue_is_read_in_order(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 200, queues=3)
        consumer = store.consumer("g", "t")
        seen: dict[int, int] = {}
        while messages := consumer.poll(5, 0):
            for message in messages:
                assert message.queue_offset == seen.get(message.queue_id, -1) + 1
                seen[message.queue_id] = message.queue_offset
        assert sum(end + 1 for end in seen.values()) == 200


def test_positions_are_those_of_the_last_commit(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 10)
        consumer = store.consumer("g", "t")
        assert [int(m.body) for m in consumer.poll(4, 0)] == [0, 1, 2, 3]
        consumer.commit()
        assert [int(m.body) for m in consumer.poll(3, 0)] == [4, 5, 6]
        assert consumer.position("t", 0) == 7
        assert consumer.positions() == {("t", 0): 7}
        assert consumer.lag() == 3
    text = (tmp_path / "config" / "consumerOffset.json").read_text()
    assert text == '{\n\t"offsetTable":{\n\t\t"t@g":{0:4\n\t\t}\n\t}\n}'
    with opened(tmp_path) as store:
        assert drain(store.consumer("g", "t")) == [4, 5, 6, 7, 8, 9]
        assert drain(store.consumer("other", "t")) == list(range(10))


def test_start(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 4, queues=2)
        time.sleep(0.01)
        between = int(time.time() * 1000)
        time.sleep(0.01)
        put(store, 4, queues=2, first=4)
        latest = store.consumer("latest", "t", start="latest")
        put(store, 4, queues=3, first=8)  # and a new queue
        assert sorted(drain(latest)) == [8, 9, 10, 11]
        assert sorted(drain(store.consumer("time", "t", start=between))) == list(range(4, 12))
        assert sorted(drain(store.consumer("earliest", "t"))) == list(range(12))
        for start in ("first", "", "5"):
            with pytest.raises(StoreFormatError, match="start"):
                store.consumer("g", "t", start=start)  # type: ignore[arg-type]


def test_tags(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 10)
        consumer = store.consumer("g", "t", tags="B")
        assert drain(consumer) == [1, 3, 5, 7, 9]
        assert consumer.position("t", 0) == 10


def test_members_share_the_queues(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 80, queues=8)
        first = store.consumer("g", "t")
        assert len(first.assignment()) == 8
        second = store.consumer("g", "t")
        assert second.assignment() == []  # the first one has not let go of them
        assert len(first.assignment()) == 4
        assert len(second.assignment()) == 4
        assert not {*first.assignment()} & {*second.assignment()}
        third = store.consumer("g", "t")
        for member in (first, second, third):
            member.assignment()
        assert [len(member.assignment()) for member in (first, second, third)] == [3, 3, 2]
        found = Counter(number for one in (first, second, third) for number in drain(one))
        assert found == Counter(range(80))
        second.close()
        assert len(first.assignment()) + len(third.assignment()) == 8
        del third, member
        gc.collect()
        assert len(first.assignment()) == 8
        assert store.consumer("another", "t").assignment() == first.assignment()


def test_a_queue_that_moves_continues_at_its_committed_position(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 10)
        first = store.consumer("g", "t")
        first.poll(4, 0)
        first.commit()
        first.poll(4, 0)
        first.close()
        assert drain(store.consumer("g", "t")) == [4, 5, 6, 7, 8, 9]


def test_a_poll_waits_for_a_message(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        consumer = store.consumer("g", "t")
        threading.Timer(0.05, lambda: store.put("t", b"7")).start()
        began = time.monotonic()
        (message,) = consumer.poll()
        assert message.body == b"7"
        assert 0.02 < time.monotonic() - began < 10
        threading.Timer(0.05, consumer.close).start()
        with pytest.raises(StoreStateError, match="closed"):
            consumer.poll()


def test_the_end_of_the_store_ends_a_wait(tmp_path: Path) -> None:
    store = opened(tmp_path)
    consumer = store.consumer("g", "t")
    threading.Timer(0.05, store.close).start()
    with pytest.raises(StoreStateError):
        consumer.poll()


def test_iteration(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 5)
        with store.consumer("g", "t") as consumer:
            for message in consumer:
                if message.body == b"2":
                    break
            consumer.commit()
        assert consumer.closed
        assert drain(store.consumer("g", "t")) == [3, 4]


def test_seek(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 10)
        consumer = store.consumer("g", "t")
        drain(consumer)
        consumer.seek("t", 0, 8)
        assert drain(consumer) == [8, 9]
        consumer.seek("t", 0, "earliest")
        assert consumer.poll(1, 0)[0].body == b"0"
        consumer.seek("t", 0, "latest")
        assert drain(consumer) == []
        with pytest.raises(StoreFormatError, match="must be 0 to 10"):
            consumer.seek("t", 0, 11)
        with pytest.raises(StoreStateError, match="not one of the queues"):
            consumer.seek("t", 5, 0)


def test_messages_that_were_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 1000)
        readers = [store.consumer(name, "t", on_loss=name) for name in ("raise", "skip")]
        for reader in readers:
            assert len(reader.poll(3, 0)) == 3
            reader.seek("t", 0, 3)
        files = store.message_store.commit_log.mapped_file_queue
        files.mapped_files[0].destroy(0)
        files.delete_files_before(0)
        low = store.min_offset("t", 0)
        assert low > 3
        with pytest.raises(MessagesRemovedError, match="on_loss") as caught:
            readers[0].poll(1, 0)
        assert (caught.value.start, caught.value.stop) == (3, low)
        for reader in readers:
            assert drain(reader) == list(range(low, 1000))


def test_a_position_behind_the_end(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 3)
        consumers = store._all_consumers()
        consumers.load()
        consumers.offsets.commit_offset("g", "t", 0, 50)  # as of a queue that was removed
        consumer = store.consumer("g", "t")
        with pytest.warns(StoreWarning, match="position 50 of group g"):
            assert drain(consumer) == [0, 1, 2]


def test_a_read_only_store_keeps_positions_in_memory(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 5)
        consumer = store.consumer("g", "t")
        consumer.poll(2, 0)
        consumer.commit()
    before = sorted((path, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file())
    with opened(tmp_path, read_only=True) as store:
        consumer = store.consumer("g", "t")
        assert drain(consumer) == [2, 3, 4]
        with pytest.raises(StoreStateError, match="read-only"):
            consumer.commit()
        with pytest.raises(StoreStateError, match="read-only"):
            consumer.retry(next(iter(store.read("t"))))
        assert drain(store.consumer("new", "t")) == [0, 1, 2, 3, 4]
    after = sorted((path, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file())
    assert after == before


@pytest.mark.parametrize("group", ["", "a b", "a@b", "g" * 256, "é"])
def test_names_of_groups(tmp_path: Path, group: str) -> None:
    with opened(tmp_path) as store, pytest.raises(StoreFormatError, match="group"):
        store.consumer(group, "t")


def test_bad_arguments(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for arguments, error in (
            ((1, "t"), StoreTypeError),
            (("g", 1), StoreTypeError),
            (("g", []), StoreFormatError),
            (("g", ["a b"]), StoreFormatError),
        ):
            with pytest.raises(error):
                store.consumer(*arguments)  # type: ignore[arg-type]
        for name in ("on_loss", "on_corrupt"):
            with pytest.raises(StoreFormatError, match=name):
                store.consumer("g", "t", **{name: "never"})
    with pytest.raises(StoreStateError):
        store.consumer("g", "t")


ODD: list[Any] = [None, b"1", 1.5, True, [], {}, object(), np.array([1, 2]), "1", "\ud800"]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_odd_values_have_a_clear_error(tmp_path: Path, odd: Any) -> None:
    with opened(tmp_path) as store:
        store.put("t", b"x")
        consumer = store.consumer("g", "t")
        (message,) = consumer.poll()
        calls: list[Callable[[], object]] = [
            lambda: store.consumer("g", "t", start=odd),
            lambda: store.consumer("g", "t", on_loss=odd),
            lambda: store.follow("t", 0, start=odd),
            lambda: store.follow("t", on_loss=odd),
            lambda: consumer.seek(odd, 0, 0),
            lambda: consumer.seek("t", odd, 0),
            lambda: consumer.seek("t", 0, odd),
            lambda: consumer.position(odd, 0),
            lambda: consumer.position("t", odd),
            lambda: consumer.retry(odd),
            lambda: consumer.retry(message, odd),
        ]
        if odd is not None and type(odd) is not float:
            calls.append(lambda: consumer.poll(timeout=odd))
        for call in calls:
            with pytest.raises((StoreTypeError, StoreFormatError, StoreStateError)):
                call()
        for count in (0, -1, 1 << 63):
            with pytest.raises(StoreFormatError, match="max_count"):
                consumer.poll(count, 0)
        for seconds in (float("nan"), float("inf"), 1e300):
            with pytest.raises(StoreFormatError, match="timeout"):
                consumer.poll(timeout=seconds)
        assert consumer.position("t", 0) == 1
        with pytest.raises(StoreTypeError, match=r"pyrocketstore\.open"):
            pyrocketstore.Store(odd)


@pytest.mark.parametrize(
    ("topics", "reason"),
    [
        (np.array(0), "topics must be a str or a sequence of str, not ndarray"),
        (memoryview(bytes(4)).cast("B", (2, 2)), "topics must be .*, not memoryview"),
        (b"t", "topics must be a str or a sequence of str, not bytes"),
        ({"t": 1}, "topics must be .*, not dict"),
        (7, "topics must be .*, not int"),
        (["t", 7], r"topics\[1\] must be a str, not int"),
        (["t", "a b"], r"topics\[1\] must be 1 to 127 of the characters .*, not 'a b'"),
        ("a b", r"topics must be 1 to 127 of the characters .*, not 'a b'"),
        ([], "topics: a consumer needs at least one topic"),
    ],
)
def test_topics_that_cannot_be(tmp_path: Path, topics: Any, reason: str) -> None:
    with opened(tmp_path) as store, pytest.raises(StoreFormatError, match=reason):
        store.consumer("g", topics)


def test_topics_of_an_array(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 2)
        assert drain(store.consumer("g", np.array(["t", "u", "t"]))) == [0, 1]
