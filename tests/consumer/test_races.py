"""Goal: a consumer loses no message, and waits for none that is there, whatever happens between two
of its steps: members that join and leave, threads, removed messages and topics, forks.
Method: calls of the store that a consumer makes are replaced by some that do these things first."""

from __future__ import annotations

import errno
import gc
import os
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import (
    Consumer,
    MessagesRemovedError,
    Store,
    StoreIOError,
    StoreStateError,
    StoreWarning,
)
from pyrocketstore.consumer.offsets import ConsumerOffsets
from pyrocketstore.store.consumers import StoreConsumers
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing
from support.sizes import SIZES, TINY_SIZES

LONGEST_S = 20.0


def opened(path: Path, **settings: Any) -> Store:
    return pyrocketstore.open(path, **{**SIZES, **settings})


def put(store: Store, count: int, queues: int = 1, first: int = 0) -> None:
    for number in range(first, first + count):
        store.put("t", b"%d" % number, queue_id=number % queues)


def numbers(consumer: Consumer, max_count: int = 32) -> list[int]:
    """Return the numbers of all messages that are there."""
    found: list[int] = []
    while messages := consumer.poll(max_count, 0):
        found += [int(message.body) for message in messages]
    return found


def remove_first_file(store: Store) -> int:
    """Remove the first file of the log; return the first queue offset left."""
    files = store.message_store.commit_log.mapped_file_queue
    files.mapped_files[0].destroy(0)
    files.delete_files_before(files.mapped_files[0].file_from_offset)
    return store.min_offset("t", 0)


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Start a thread; return it and the list that gets the result."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    return thread, results


def before(consumer: Consumer, name: str, act: Callable[[], object]) -> None:
    """Have `act` called once before the next call of `name` of the consumer's source."""
    source = consumer._source
    call = getattr(source, name)

    def acting(*arguments: Any) -> Any:
        consumer._source = source
        act()
        return call(*arguments)

    consumer._source = source._replace(**{name: acting})


# ---- members ------------------------------------------------------------------------------------


def test_a_member_that_waits_reads_a_queue_that_another_one_lets_go(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        first = store.consumer("g", "t")
        put(store, 2, queues=2)
        assert len(first.assignment()) == 2
        second = store.consumer("g", "t")
        thread, results = in_thread(lambda: second.poll(1, LONGEST_S))
        assert len(first.poll(1, LONGEST_S)) == 1  # lets go of a queue; no message moves
        thread.join(LONGEST_S)
        assert [len(found) for found in results] == [1]  # type: ignore[arg-type]


def test_a_member_that_waits_lets_go_for_one_that_joins(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 2, queues=2)
        first = store.consumer("g", "t")
        assert len(first.poll(2, 0)) == 2
        thread, _ = in_thread(lambda: first.poll(1, LONGEST_S))
        second = store.consumer("g", "t")
        assert len(second.poll(1, LONGEST_S)) == 1  # not committed
        put(store, 2, queues=2)
        thread.join(LONGEST_S)
        assert not thread.is_alive()


def test_a_member_that_waits_gets_the_queues_of_one_that_is_dropped(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 1)
        first = store.consumer("g", "t")
        assert first.assignment() == [("t", 0)]
        second = store.consumer("g", "t")
        thread, results = in_thread(lambda: second.poll(1, LONGEST_S))
        with warnings.catch_warnings():
            warnings.simplefilter("error", ResourceWarning)
            del first
            gc.collect()
        thread.join(LONGEST_S)
        assert [len(found) for found in results] == [1]  # type: ignore[arg-type]


def test_a_message_of_a_queue_that_was_let_go_is_not_returned(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 8, queues=2)
        first = store.consumer("g", "t")
        seen = [int(next(iter(first)).body)]  # the others are fetched
        second = store.consumer("g", "t")
        first.commit()
        seen += numbers(first)
        first.commit()
        assert len(first.assignment()) == 1
        assert sorted(seen + numbers(second)) == list(range(8))


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_group_that_begins_at_the_end_keeps_where_it_began(
    tmp_path: Path, is_closed: bool
) -> None:
    """Its position is durable at once: what is put later is handled, whoever reads it."""
    with opened(tmp_path) as store:
        put(store, 5)
        latest = store.consumer("g", "t", start="latest")
        put(store, 5, first=5)
        assert numbers(store.consumer("g", "t", start="latest")) == []  # the first one reads them
        assert numbers(latest) == [5, 6, 7, 8, 9]
        if is_closed:
            latest.close()
        del latest
        gc.collect()
    with opened(tmp_path) as store:
        again = store.consumer("g", "t", start="latest")
        put(store, 1, first=10)
        assert numbers(again) == [5, 6, 7, 8, 9, 10]
        again.commit()
        store.put("t", b"11", queue_id=1)
        assert numbers(again) == [11]
    with opened(tmp_path) as store:
        assert numbers(store.consumer("g", "t", start="latest")) == [11]  # of a later queue


def test_a_read_only_group_without_members_forgets_where_it_began(tmp_path: Path) -> None:
    with opened(tmp_path) as owner, pyrocketstore.open(tmp_path, read_only=True) as store:
        put(owner, 5)
        latest = store.consumer("g", "t", start="latest")
        put(owner, 5, first=5)
        assert numbers(latest) == [5, 6, 7, 8, 9]
        latest.close()
        again = store.consumer("g", "t", start="latest")
        put(owner, 1, first=10)
        assert numbers(again) == [10]
        again.close()
        assert numbers(store.consumer("g", "t")) == list(range(11))
        assert owner.consumer_positions() == []


def test_a_group_that_has_begun_elsewhere_does_not_begin_at_the_end(tmp_path: Path) -> None:
    """The next member reads the messages again that the first one has not committed."""
    with opened(tmp_path) as store:
        put(store, 5)
        first = store.consumer("g", "t")
        assert len(numbers(first)) == 5
        store.consumer("g", "t", start="latest").close()
        assert store.consumer_positions() == []
        first.close()
        assert numbers(store.consumer("g", "t")) == [0, 1, 2, 3, 4]


def test_the_begin_of_a_group_is_durable_for_every_member(tmp_path: Path) -> None:
    """Also where the write of an earlier member has failed, or has not ended."""
    with opened(tmp_path) as store:
        put(store, 5, queues=2)
        store.consumer("other", "t").close()
        engine, file = store.message_store, tmp_path / "config" / "consumerOffset.json"
        with failing(engine.env, "rename", errno.EIO):
            for _ in range(2):
                with pytest.raises(StoreIOError, match="rename"):
                    store.consumer("g", "t", start="latest")
        assert not file.exists()
        begun, leave = threading.Event(), threading.Event()

        def slow(original: Any, *given: Any) -> int:
            begun.set()
            assert leave.wait(LONGEST_S)
            return int(original(*given))

        consumers = list[Consumer]()

        def begin() -> None:
            consumers.append(store.consumer("g", "t", start="latest"))

        threads = [threading.Thread(target=begin) for _ in range(2)]
        with broken(engine.env, "rename", slow):
            for thread in threads:
                thread.start()
                assert begun.wait(LONGEST_S)
            time.sleep(0.05)
            assert not consumers
            leave.set()
            for thread in threads:
                thread.join()
        assert '"t@g":{0:3,1:2' in file.read_text()
        # The constructors that failed have left no member, though their errors are still known.
        assert sorted(len(consumer.assignment()) for consumer in consumers) == [1, 1]


def test_a_group_begins_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that begins beside another one, or beside its commit, moves no position."""
    with opened(tmp_path) as store:
        put(store, 5)
        first = store.consumer("g", "t", start="latest")
        put(store, 5, first=5)
        assert len(numbers(first)) == 5
        first.commit()
        # The next one looked before that, and the first one has left since.
        monkeypatch.setattr(ConsumerOffsets, "is_known", lambda *arguments: False)
        first.close()
        store.consumer("g", "t", start="latest")
        assert [one[:4] for one in store.consumer_positions()] == [("g", "t", 0, 10)]


# ---- threads ------------------------------------------------------------------------------------


def test_threads_in_one_consumer_get_different_messages(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 2000, queues=3)
        consumer = store.consumer("g", "t")
        threads = [in_thread(lambda: numbers(consumer, 3)) for _ in range(4)]
        found: Counter[int] = Counter()
        for thread, results in threads:
            thread.join(LONGEST_S)
            found.update(*results)  # type: ignore[arg-type]
        assert found == Counter(range(2000))
        assert consumer.positions() == {("t", i): store.max_offset("t", i) for i in range(3)}


def test_positions_count_what_the_iteration_has_returned(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 100)
        consumer = store.consumer("g", "t")
        for number, message in enumerate(consumer):
            assert int(message.body) == number
            assert consumer.position("t", 0) == number + 1
            if number == 40:
                break
        assert consumer.lag() == 59
        consumer.commit()
        assert store.consumer_positions()[0].position == 41
        assert [int(message.body) for message in consumer.poll(2, 0)] == [41, 42]


def test_a_read_that_fails_loses_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    with opened(tmp_path) as store:
        put(store, 200, queues=2)
        consumer = store.consumer("g", "t")
        seen = [int(message.body) for message in consumer.poll(20, 0)]
        for name in ("wait_dispatched", "queue_ids", "bounds", "messages"):
            put(store, 2, queues=2, first=200)
            before(consumer, name, fail)
            with pytest.raises(KeyboardInterrupt):
                while found := consumer.poll(50, 0):
                    seen += [int(message.body) for message in found]
        seen += numbers(consumer)
        assert set(seen) >= set(range(202))


# ---- removed messages and topics ----------------------------------------------------------------


def test_removed_messages_are_no_lag(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 1000)
        consumer = store.consumer("g", "t")
        consumer.poll(10, 0)
        low = remove_first_file(store)
        assert consumer.lag() == 1000 - low < 990


@pytest.mark.parametrize("on_loss", ["raise", "skip"])
def test_messages_that_are_removed_before_a_read(tmp_path: Path, on_loss: str) -> None:
    with opened(tmp_path) as store:
        put(store, 1000)
        consumer = store.consumer("g", "t", on_loss=on_loss)
        low: list[int] = []
        assert consumer.assignment() == [("t", 0)]
        before(consumer, "messages", lambda: low.append(remove_first_file(store)))
        if on_loss == "raise":
            with pytest.raises(MessagesRemovedError) as caught:
                consumer.poll(1, 0)
            assert (caught.value.start, caught.value.stop) == (0, low[0])
        assert numbers(consumer) == list(range(low[0], 1000))


@pytest.mark.parametrize("on_loss", ["raise", "skip"])
def test_messages_that_are_removed_between_two_calls(tmp_path: Path, on_loss: str) -> None:
    with opened(tmp_path) as store:
        put(store, 1000)
        consumer = store.consumer("g", "t", on_loss=on_loss)
        assert len(consumer.poll(3, 0)) == 3  # an iterator of the others is there
        low = remove_first_file(store)
        if on_loss == "raise":
            with pytest.raises(MessagesRemovedError) as caught:
                consumer.poll(1, 0)
            assert (caught.value.start, caught.value.stop) == (3, low)
        assert numbers(consumer) == list(range(low, 1000))


def test_a_topic_that_is_removed_and_made_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 20)
        consumer = store.consumer("g", "t")
        assert len(numbers(consumer)) == 20
        store.message_store.clean_unused_topic({"other"})
        put(store, 3)
        with pytest.warns(StoreWarning, match="removed and made again"):
            assert numbers(consumer) == [0, 1, 2]


def remake(store: Store, count: int) -> None:
    """Drop the topic and begin it again, with numbers from 100 on."""
    store.drop_topic("t")
    put(store, count, first=100)


@pytest.mark.parametrize("count", [1, 4, 5, 6, 50])
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_topic_that_is_dropped_and_made_again(
    tmp_path: Path, start: Any, read_only: bool, count: int
) -> None:
    """However long the new queue is, it is read from its first message on."""
    new = list(range(100, 100 + count))
    with opened(tmp_path) as owner:
        put(owner, 5)
        with opened(tmp_path, read_only=True) if read_only else owner as store:
            consumer = store.consumer("g", "t", start=start)
            later = store.consumer("later", "t", start="latest")
            if start == "earliest":
                assert numbers(consumer, 2) == list(range(5))
            assert (consumer.position("t", 0), consumer.lag()) == (5, 0)
            remake(owner, count)
            assert (consumer.position("t", 0), consumer.lag()) == (0, count)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert numbers(consumer, 2) == new
                assert numbers(later) == new
            texts = [str(each.message) for each in caught if "made again" in str(each.message)]
            assert [text.partition(":")[0] for text in texts] == ["t/0"] * len(texts)
            assert "group g" in texts[0]
            assert len(texts) <= 2


def test_first_consumers_of_two_threads_share_groups_and_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the making of what all consumers of a store share takes a while."""
    make = StoreConsumers.__init__

    def slow(*arguments: Any) -> None:
        time.sleep(0.05)
        make(*arguments)

    monkeypatch.setattr(StoreConsumers, "__init__", slow)
    with opened(tmp_path) as store:
        put(store, 4)
        begun, consumers = threading.Barrier(3), list[Consumer]()

        def begin(group: str) -> None:
            begun.wait()
            consumers.append(store.consumer(group, "t"))

        threads = [threading.Thread(target=begin, args=(group,)) for group in ("a", "a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(len(consumer.assignment()) for consumer in consumers) == [0, 1, 1]
        for consumer in consumers:
            consumer.poll(timeout=0)
            consumer.commit()
        assert [one[:4] for one in store.consumer_positions()] == [
            ("a", "t", 0, 4),
            ("b", "t", 0, 4),
        ]


@pytest.mark.parametrize("count", [3, 5, 50])
def test_a_queue_that_begins_again_after_a_failed_removal(tmp_path: Path, count: int) -> None:
    """It is the same object, and read from its first message on."""
    env, new = Env(), list(range(100, 100 + count))
    with opened(tmp_path, env=env) as store:
        put(store, 5)
        consumer, followed = store.consumer("g", "t"), store.follow("t", timeout=0.2)
        assert numbers(consumer) == [int(next(followed).body) for _ in range(5)] == list(range(5))
        queue = store.message_store.get_consume_queue("t", 0)
        with failing(env, "rmdir", errno.EIO), pytest.raises(StoreIOError, match="rmdir failed"):
            store.message_store.clean_unused_topic({"other"})
        put(store, count, first=100)
        assert store.message_store.get_consume_queue("t", 0) is queue
        with pytest.warns(StoreWarning, match="made again"):
            assert numbers(consumer) == new
        with pytest.warns(StoreWarning, match="made again"):
            assert [int(message.body) for message in followed] == new


@pytest.mark.parametrize("follows", [True, False])
def test_the_owner_makes_a_topic_again_beside_a_read(tmp_path: Path, follows: bool) -> None:
    """The units of the new queue are no damage of the old one."""
    new = list(range(1000, 1900))
    with (
        opened(tmp_path, mapped_file_size_consume_queue=60_000) as owner,
        pyrocketstore.open(tmp_path, read_only=True) as reader,
    ):
        put(owner, 600)

        def make_again() -> None:
            owner.drop_topic("t")
            put(owner, 900, first=1000)
            owner.wait_dispatched()

        if follows:
            messages = reader.follow("t", timeout=0.2)
            found = [int(next(messages).body)]
            make_again()
            with pytest.warns(StoreWarning, match="made again"):
                found += [int(message.body) for message in messages]
            assert not messages.skipped
        else:
            consumer = reader.consumer("g", "t")
            found = [int(message.body) for message in consumer.poll(1, 0)]
            make_again()
            with pytest.warns(StoreWarning, match="made again"):
                found += numbers(consumer)
        assert found[-900:] == new
        assert found[:-900] == list(range(len(found) - 900))


@pytest.mark.parametrize("call", ["poll", "assignment", "lag"])
def test_a_topic_is_made_again_after_a_call_that_found_it_removed(
    tmp_path: Path, call: str
) -> None:
    with opened(tmp_path) as store:
        put(store, 5)
        consumer = store.consumer("g", "t")
        assert len(numbers(consumer)) == 5
        store.drop_topic("t")
        if call == "poll":
            assert numbers(consumer) == []
        else:
            assert not getattr(consumer, call)()
        put(store, 3, first=100)
        with pytest.warns(
            StoreWarning, match="does not continue at position 5 of group g"
        ) as warned:
            assert numbers(consumer) == [100, 101, 102]
        assert len(warned) == 1


@pytest.mark.parametrize("count", [5, 50])
def test_a_commit_after_a_drop_commits_no_old_position(tmp_path: Path, count: int) -> None:
    with opened(tmp_path) as store:
        put(store, 5)
        consumer = store.consumer("g", "t")
        assert len(numbers(consumer)) == 5
        consumer.commit()
        store.drop_topic("t")
        consumer.commit()
        put(store, count, first=100)
        consumer.commit()
        assert store.consumer_positions() == []
    with opened(tmp_path) as store:
        assert numbers(store.consumer("g", "t")) == list(range(100, 100 + count))


def test_a_commit_beside_a_drop(tmp_path: Path) -> None:
    """One that still sees the queue, while it is removed."""
    with opened(tmp_path) as store:
        put(store, 5)
        consumer = store.consumer("g", "t")
        assert len(numbers(consumer)) == 5
        engine = store.message_store
        forget = engine.removals.forget_positions

        def forget_then_commit(topic: str) -> None:
            forget(topic)
            engine.removals.forget_positions = forget
            consumer.commit()
            assert [one.position for one in store.consumer_positions()] == [5]

        engine.removals.forget_positions = forget_then_commit
        remake(store, 8)
        assert store.consumer_positions() == []


def test_a_warning_that_is_an_error_stops_no_consumer(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 5)
        consumer = store.consumer("g", "t")
        assert len(numbers(consumer)) == 5
        remake(store, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("error", StoreWarning)
            with pytest.raises(StoreWarning, match="made again"):
                consumer.poll(5, 0)
            assert numbers(consumer) == [100, 101, 102]


def test_a_topic_that_is_removed_before_a_read(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 20)
        consumer = store.consumer("g", "t")
        assert consumer.assignment() == [("t", 0)]
        before(consumer, "messages", lambda: store.message_store.clean_unused_topic({"other"}))
        assert consumer.poll(1, 0) == []
        put(store, 3)
        assert numbers(consumer) == [0, 1, 2]


# ---- life cycle ---------------------------------------------------------------------------------


def test_a_forked_child_uses_no_consumer(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 5)
        consumer = store.consumer("g", "t")
        (message,) = consumer.poll(1, 0)
        calls = [
            lambda: consumer.poll(1, 0),
            consumer.commit,
            consumer.lag,
            consumer.positions,
            consumer.assignment,
            lambda: consumer.seek("t", 0, 0),
            lambda: consumer.retry(message),
            lambda: store.consumer("h", "t"),
            store.consumer_positions,
        ]
        child = os.fork()
        if child == 0:
            refused = 0
            for call in calls:
                try:
                    call()  # type: ignore[operator]
                except StoreStateError:
                    refused += 1
            consumer.close()
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)
        assert numbers(consumer) == [1, 2, 3, 4]


def test_closed_objects(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 3)
    consumer, closed = store.consumer("g", "t"), store.consumer("g", "t")
    (message,) = consumer.poll(1, 0)
    closed.close()
    closed.close()
    with pytest.raises(StoreStateError, match="the consumer is closed"):
        closed.commit()
    store.close()
    for call in (consumer.commit, consumer.lag, lambda: consumer.retry(message), consumer.poll):
        with pytest.raises(StoreStateError):
            call()
    consumer.close()
    with pytest.raises(StoreStateError):
        consumer.poll(1, 0)


# ---- light queues -------------------------------------------------------------------------------


def test_a_light_queue(tmp_path: Path) -> None:
    """Its offsets are not those of its messages in their own queues."""
    settings = {"enable_lmq": True, "enable_multi_dispatch": True}
    names = "%LMQ%a"
    with opened(tmp_path, **settings) as store:
        put(store, 5)
        for number in range(5, 15):
            store.put("t", b"%d" % number, properties={"INNER_MULTI_DISPATCH": names})
        consumer = store.consumer("%LMQ%g", names)
        assert [int(message.body) for message in consumer.poll(4, 0)] == [5, 6, 7, 8]
        assert consumer.position(names, 0) == 4
        consumer.commit()
    text = (tmp_path / "config" / "lmqConsumerOffset.json").read_text()
    assert text == '{\n\t"lmqOffsetTable":{\n\t\t"%LMQ%a@%LMQ%g":4\n\t},\n\t"offsetTable":{}\n}'
    with opened(tmp_path, **settings) as store:
        assert numbers(store.consumer("%LMQ%g", names)) == list(range(9, 15))


def test_messages_removed_after_a_reload_of_a_reader_are_reported(tmp_path: Path) -> None:
    """Method: the messages are in an iterator over the files of before the reload; the owner
    removes them after the consumer's look at the store."""
    sizes = {**TINY_SIZES, "mapped_file_size_consume_queue": 2000}
    with opened(tmp_path, **sizes) as owner:
        for _ in range(60):
            owner.put("t", bytes(500))
        owner.wait_dispatched()
        with pyrocketstore.open(tmp_path, read_only=True) as reader:
            consumer = reader.consumer("g", "t", on_loss="raise")
            assert len(consumer.poll(5, 0)) == 5
            owner.close()
            with opened(tmp_path, **sizes) as owner_again:
                reader.refresh()
                now_ms = int(time.time() * 1000)
                before(consumer, "queue_ids", lambda: owner_again.trim(before=now_ms + 1))
                found = [one.queue_offset for one in consumer.poll(60, 0)]
                with pytest.raises(MessagesRemovedError) as removed:
                    found += [one.queue_offset for one in consumer.poll(60, 0)]
                first = owner_again.min_offset("t", 0)
                assert found == [5] and first > 10
                assert (removed.value.start, removed.value.stop) == (6, first)
                assert [one.queue_offset for one in consumer.poll(60, 0)] == list(range(first, 60))
