"""Goal: the arriving listener and the dispatchers of a program get every message once and in the
order of the log, whatever they raise, and cannot make the store hang.
Method: stores with callables that record their calls, under puts from threads, a close, a copy made
before the close, and a damaged log."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyrocketstore import (
    DefaultMessageStore,
    MessageExtBrokerInner,
    MessageStoreConfig,
    StoreStateError,
    StoreTypeError,
)
from pyrocketstore.dispatch.observers import Observers
from pyrocketstore.dispatch.replay import replay, replay_observed
from pyrocketstore.record._message import properties_to_string
from pyrocketstore.results import DispatchRequest

SIZES = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
THREADS, EACH = 4, 300


def engine(path: Path, listener: Any = None, **settings: Any) -> DefaultMessageStore:
    config = MessageStoreConfig(store_path_root_dir=str(path), **(SIZES | settings))
    return DefaultMessageStore(config, message_arriving_listener=listener)


def started(path: Path, listener: Any = None, **settings: Any) -> DefaultMessageStore:
    store = engine(path, listener, **settings)
    store.load()
    store.start()
    return store


def message(topic: str = "t", queue_id: int = 0, **properties: str) -> MessageExtBrokerInner:
    text = properties_to_string(properties)
    return MessageExtBrokerInner(
        topic, b"body", queue_id, properties=properties, properties_string=text
    )


@pytest.fixture
def calls() -> Iterator[list[Any]]:
    yield []


class Listener:
    """An object with 4.9.3's method."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def arriving(self, *values: Any) -> None:
        self.calls.append(values)


def test_every_message_arrives_once_in_order(tmp_path: Path) -> None:
    listener = Listener()
    requests: list[DispatchRequest] = []
    store = engine(tmp_path / "s", listener)
    store.get_dispatcher_list().append(requests.append)
    store.load()
    store.start()

    def put(queue_id: int) -> None:
        for _ in range(EACH):
            store.put_message(message("t", queue_id, TAGS="A"))

    threads = [threading.Thread(target=put, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.wait_dispatched()
    assert len(listener.calls) == len(requests) == THREADS * EACH  # all were called before
    assert [r.commit_log_offset for r in requests] == sorted(r.commit_log_offset for r in requests)
    for queue_id in range(THREADS):
        offsets = [call[2] for call in listener.calls if call[1] == queue_id]
        assert offsets == list(range(1, EACH + 1))
    assert [(c[0], c[1], c[2] - 1, c[4]) for c in listener.calls] == [
        (r.topic, r.queue_id, r.consume_queue_offset, r.store_timestamp) for r in requests
    ]
    assert listener.calls[0][3] == ord("A")
    assert listener.calls[0][5:] == (None, {"TAGS": "A"})
    store.shutdown()


def test_a_close_calls_for_what_was_put_before(tmp_path: Path, calls: list[Any]) -> None:
    store = started(tmp_path / "s", lambda *values: calls.append(values))
    for _ in range(1000):
        store.put_message(message())
    store.shutdown()
    assert [call[2] for call in calls] == list(range(1, 1001))
    again = started(tmp_path / "s", lambda *values: calls.append(values))
    again.put_message(message())
    again.shutdown()
    assert [call[2] for call in calls[1000:]] == [1001]


def test_queue_and_index_have_a_message_before_the_calls(tmp_path: Path) -> None:
    found: list[tuple[int, int]] = []

    def look(*values: Any) -> None:
        result = store.get_message("g", "t", 0, values[2] - 1, 1)
        keyed = store.query_message("t", f"k{values[2]}", 8, 0, 1 << 62)
        assert result is not None
        found.append((result.message_count, len(keyed.phy_offsets)))
        result.release()
        keyed.release()

    store = started(tmp_path / "s", look)
    for i in range(1, 51):
        store.put_message(message(KEYS=f"k{i}"))
    store.wait_dispatched()
    assert found == [(1, 1)] * 50
    store.shutdown()


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_exception_is_logged_and_dispatch_continues(
    tmp_path: Path, calls: list[Any], error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*values: Any) -> None:
        calls.append(values)
        raise error("wrong")

    caplog.set_level(logging.ERROR)
    store = engine(tmp_path / "s", fail)
    seen: list[DispatchRequest] = []
    store.get_dispatcher_list().extend([fail, seen.append])
    store.load()
    store.start()
    for _ in range(3):
        store.put_message(message())
    store.wait_dispatched()
    assert (len(calls), len(seen)) == (6, 3)
    assert "queue offset 2" in caplog.text and "a dispatcher has raised" in caplog.text
    assert store.get_max_offset_in_queue("t", 0) == 3
    store.shutdown()
    assert not (tmp_path / "s" / "abort").exists()


def test_further_queues_arrive_too(tmp_path: Path, calls: list[Any]) -> None:
    store = started(
        tmp_path / "s",
        lambda *values: calls.append(values[:3]),
        enable_lmq=True,
        enable_multi_dispatch=True,
    )
    for names in ("%LMQ%a,other", "%LMQ%a"):
        store.put_message(message("t", 3, INNER_MULTI_DISPATCH=names))
    store.wait_dispatched()
    store.shutdown()
    assert calls == [
        ("t", 3, 1), ("%LMQ%a", 0, 1), ("other", 3, 1), ("t", 3, 2), ("%LMQ%a", 0, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "offsets"), [(" ", "1"), ("a", " "), ("a,b", "1"), ("a", "x"), (None, "1")]
)
def test_properties_that_name_no_further_queue(
    calls: list[Any], names: str | None, offsets: str
) -> None:
    properties = {"INNER_MULTI_QUEUE_OFFSET": offsets}
    if names is not None:
        properties["INNER_MULTI_DISPATCH"] = names
    request = DispatchRequest("t", 1, 0, 9, 0, 5, 7, properties_map=properties)
    Observers([], lambda *values: calls.append(values), light_queues=True)(request)
    assert calls == [("t", 1, 8, 0, 5, None, properties)]


def test_a_call_that_would_wait_for_itself_is_refused(tmp_path: Path) -> None:
    errors: list[str] = []

    def wait(*values: Any) -> None:
        for call in (
            store.wait_dispatched,
            store.flush_all,
            store.shutdown,
            lambda: store.clean_unused_topic(["t"]),
            store.clean_expired_consumer_queue,
            store.destroy,
        ):
            try:
                call()
            except StoreStateError as error:
                errors.append(str(error))

    store = started(tmp_path / "s", wait)
    store.put_message(message())
    store.wait_dispatched()
    assert len(errors) == 6
    store.shutdown()
    assert not (tmp_path / "s" / "abort").exists()


def test_a_listener_may_put(tmp_path: Path) -> None:
    def answer(topic: str, queue_id: int, *values: Any) -> None:
        if topic == "ask":
            assert store.put_message(message("answer", queue_id)).status_code == 0

    store = started(tmp_path / "s", answer)
    for _ in range(200):
        store.put_message(message("ask"))
    store.wait_dispatched()
    store.wait_dispatched()
    assert store.get_max_offset_in_queue("answer", 0) == 200
    store.shutdown()


def test_a_dispatcher_cannot_pause_its_dispatch(tmp_path: Path) -> None:
    """It waited for its own end, and so did every later message and the close."""
    store = engine(tmp_path / "s")
    errors: list[str] = []

    def pause(request: DispatchRequest) -> None:
        with pytest.raises(StoreStateError) as raised, store.dispatch_paused():
            pass
        errors.append(str(raised.value))

    store.get_dispatcher_list().append(pause)
    store.load()
    store.start()
    for _ in range(3):
        store.put_message(message())
    assert store.wait_dispatched(60)
    assert errors == ["a dispatcher cannot pause the dispatch that has called it"] * 3
    with store.dispatch_paused():
        store.put_message(message())
        assert len(errors) == 3, "another thread can"
    assert store.wait_dispatched(60)
    assert len(errors) == 4
    store.shutdown()


def test_dispatchers_get_what_a_kill_has_left(tmp_path: Path, calls: list[Any]) -> None:
    """Recovery calls them for the records that it scans; the listener is for new messages."""
    store = started(tmp_path / "s")
    for _ in range(400):
        store.put_message(message())
    store.wait_dispatched()
    shutil.copytree(tmp_path / "s", tmp_path / "killed")
    store.shutdown()
    killed = engine(tmp_path / "killed", lambda *values: calls.append(values))
    requests: list[DispatchRequest] = []
    errors: list[str] = []

    def close(request: DispatchRequest) -> None:
        with pytest.raises(StoreStateError) as caught:
            killed.shutdown()
        errors.append(str(caught.value))

    killed.get_dispatcher_list().extend([requests.append, close])
    killed.load()
    assert killed.plan is not None
    first = requests[0].commit_log_offset
    assert first == killed.plan.scan_from
    assert [r.consume_queue_offset for r in requests] == list(range(400 - len(requests), 400))
    assert (len(errors), calls) == (len(requests), [])
    killed.start()
    killed.put_message(message())
    killed.shutdown()
    assert requests[-1].consume_queue_offset == 400
    assert [call[2] for call in calls] == [401]
    requests.clear()
    clean = engine(tmp_path / "killed")
    clean.get_dispatcher_list().append(requests.append)
    clean.load()
    clean.shutdown()
    assert requests == []


def test_a_replay_steps_over_damage_and_repairs_call_nothing(
    tmp_path: Path, calls: list[DispatchRequest]
) -> None:
    store = engine(tmp_path / "s")
    store.get_dispatcher_list().append(calls.append)
    store.load()
    store.start()
    for _ in range(10):
        size = store.put_message(message()).wrote_bytes
    store.wait_dispatched()
    assert len(calls) == 10
    with store.dispatch_paused():
        replay(store.commit_log, store.dispatcher, 0, store.get_max_phy_offset())
    assert len(calls) == 10
    calls.clear()
    with (tmp_path / "s" / "commitlog" / ("0" * 20)).open("r+b") as log:
        log.seek(4 * size)
        log.write(b"\xff" * 8)
    observers = Observers([calls.append], None, light_queues=False)
    replay_observed(store.commit_log, 0, 10 * size, observers)
    assert [r.consume_queue_offset for r in calls] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    store.shutdown()


def test_a_store_without_observers_calls_nothing(tmp_path: Path) -> None:
    store = started(tmp_path / "s")
    assert store.dispatcher.on_dispatched is None
    store.shutdown()
    slave = started(tmp_path / "slave", print, broker_role="SLAVE")
    assert slave.dispatcher.on_dispatched is None
    slave.shutdown()
    with pytest.raises(StoreTypeError, match="arriving"):
        engine(tmp_path / "s", 5)


def test_put_totals_of_a_topic(tmp_path: Path) -> None:
    store = started(tmp_path / "s")
    sizes = [store.put_message(message("t", i % 3)).wrote_bytes for i in range(10)]
    store.put_message(message("u", DELAY="18"))
    assert store.get_single_put_message_topic_times_total("t") == 10
    assert store.get_single_put_message_topic_size_total("t") == sum(sizes)
    assert store.get_single_put_message_topic_times_total("u") == 0
    assert store.get_single_put_message_topic_times_total("SCHEDULE_TOPIC_XXXX") == 1
    assert store.get_single_put_message_topic_size_total("never") == 0
    info = store.get_runtime_info()
    assert info["putMessageTimesTotal"] == "11"
    store.shutdown()
    again = started(tmp_path / "s")
    assert again.get_single_put_message_topic_times_total("t") == 0
    again.shutdown()
