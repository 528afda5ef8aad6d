"""Goal: the room of a put comes back exactly once, however the put ends, and no callback of a user
stops a thread of the store. Method: coroutines are closed, thrown into, interrupted and left by
their event loop at each place where they wait; callbacks raise a BaseException."""

from __future__ import annotations

import asyncio
import itertools
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import MessageExtBrokerInner, MessageStoreConfig, PutMessageStatus
from pyrocketstore.commit_log._puts import make_result
from pyrocketstore.flush.async_put import AsyncPuts, FlushDiskWatcher
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.gates import WAIT_S, Gate, wait_until
from support.sizes import SYNC_SIZES

Aput = Coroutine[Any, Any, Any]


class Foreign(BaseException):
    """An exception that nobody expects."""


@pytest.fixture
def store(tmp_path: Path, gate: Gate) -> Iterator[pyrocketstore.Store]:
    """One with room for one outstanding put, whose forces the gate holds back."""
    env = Env()
    with (
        broken(env, "msync", gate),
        pyrocketstore.open(tmp_path, env=env, max_outstanding_puts=1, **SYNC_SIZES) as opened,
    ):
        opened.put("t", b"first")
        yield opened
        gate.open()
        wait_until(lambda: opened.message_store.async_puts.count == 0, "room is lost")
        puts = opened.message_store.async_puts
        assert (puts.count, puts.bytes, puts.waiting) == (0, 0, 0)


def throw(error: type[BaseException]) -> Callable[[Aput], None]:
    def thrown(coroutine: Aput) -> None:
        with pytest.raises(error):
            coroutine.throw(error())

    return thrown


ENDS: dict[str, Callable[[Aput], None]] = {
    "close": lambda coroutine: coroutine.close(),
    "GeneratorExit": throw(GeneratorExit),
    "KeyboardInterrupt": throw(KeyboardInterrupt),
    "CancelledError": throw(asyncio.CancelledError),
    "ValueError": throw(ValueError),
    "Foreign": throw(Foreign),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("granted", [False, True])
def test_a_put_that_ends_in_the_line(
    store: pyrocketstore.Store, gate: Gate, end: str, granted: bool
) -> None:
    """While it waits, and after it was granted the room and before it resumed."""

    async def main() -> None:
        gate.close()
        one = asyncio.ensure_future(store.aput("t", b"1"))
        await asyncio.sleep(0)
        waits = store.aput("t", b"2")
        waits.send(None)
        behind = asyncio.ensure_future(store.aput("t", b"3"))
        await asyncio.sleep(0)
        puts = store.message_store.async_puts
        assert puts.waiting == 2
        if granted:
            gate.open()
            wait_until(lambda: puts.waiting == 1, "nobody got room")
        ENDS[end](waits)
        gate.open()
        await asyncio.wait_for(one, WAIT_S)
        await asyncio.wait_for(behind, WAIT_S)
        await asyncio.wait_for(store.aput("t", b"4"), WAIT_S)

    asyncio.run(main())
    assert [m.body for m in store.read("t")] == [b"first", b"1", b"3", b"4"]


@pytest.mark.parametrize("end", ENDS)
def test_a_put_that_ends_while_it_waits_for_the_device(
    store: pyrocketstore.Store, gate: Gate, end: str
) -> None:
    """Its message is in the log, and the flush gives its room back."""

    async def main() -> None:
        gate.close()
        waits = store.aput("t", b"1")
        waits.send(None)
        behind = asyncio.ensure_future(store.aput("t", b"2"))
        await asyncio.sleep(0)
        ENDS[end](waits)
        assert store.message_store.async_puts.count == 1
        gate.open()
        await asyncio.wait_for(behind, WAIT_S)

    asyncio.run(main())
    assert [m.body for m in store.read("t")] == [b"first", b"1", b"2"]


@pytest.mark.parametrize("sync", [True, False])
def test_a_put_whose_append_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    kind = {"flush_disk_type": "SYNC_FLUSH" if sync else "ASYNC_FLUSH"}
    settings = {**SYNC_SIZES, **kind, "max_unforced_bytes": 1 << 20, "max_outstanding_puts": 1}
    with pyrocketstore.open(tmp_path, **settings) as store:
        low = store.message_store

        def fail(*arguments: Any, **options: Any) -> Any:
            raise Foreign

        with monkeypatch.context() as patch:
            patch.setattr(low.commit_log, "put_message", fail)
            for _ in range(3):
                with pytest.raises(Foreign):
                    asyncio.run(store.aput("t", b"x"))
                with pytest.raises(Foreign):
                    low.async_put_message(MessageExtBrokerInner("t", b"x", 0))
        assert (low.async_puts.count, low.async_puts.bytes) == (0, 0)
        assert asyncio.run(store.aput("t", b"y")).queue_offset == 0


def test_loops_that_are_closed_lose_no_room() -> None:
    """A loop that ends between the wake-up and the put: others get the room at their next try."""
    config = MessageStoreConfig(flush_disk_type="SYNC_FLUSH", max_outstanding_puts=1)
    puts = AsyncPuts(config, lambda: 0, lambda: 0, lambda: 0, lambda results: None)
    kept = []
    for _ in range(3):
        first, waits = puts.room(1), puts.room(2)
        assert first.reserve(), "room is lost"
        loop = asyncio.new_event_loop()
        coroutine = waits.wait()
        kept.append(coroutine)  # nobody closes it
        task = loop.create_task(coroutine)
        loop.run_until_complete(asyncio.sleep(0))
        assert puts.waiting == 1
        first.release()
        assert (puts.waiting, puts.count) == (0, 1)
        loop.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        assert not puts.room(1).reserve() or puts.count == 1
        puts.grant()
    assert (puts.count, puts.bytes, puts.waiting) == (0, 0, 0)
    for coroutine in kept:
        coroutine.close()
    assert (puts.count, puts.bytes, puts.waiting) == (0, 0, 0)


# ---- order ------------------------------------------------------------------------------------

ASYNC_BOUND: dict[str, Any] = {
    **SYNC_SIZES,
    "flush_disk_type": "ASYNC_FLUSH",
    "max_unforced_bytes": 2000,
    "flush_interval_commit_log": 100_000,
}


@pytest.fixture
def bounded(tmp_path: Path) -> Iterator[pyrocketstore.Store]:
    """One under ASYNC_FLUSH with a bound, where only the test makes room."""
    with pyrocketstore.open(tmp_path, **ASYNC_BOUND) as opened:
        puts = opened.message_store.async_puts
        wake, puts.wake_flush = puts.wake_flush, lambda: None
        yield opened
        puts.wake_flush = wake
        assert (puts.count, puts.bytes, puts.waiting) == (0, 0, 0)


def fill(store: pyrocketstore.Store) -> None:
    """Bytes that other threads put, so that nobody has room."""
    low = store.message_store
    while not low.async_puts.is_behind():
        low.put_message(MessageExtBrokerInner("other", bytes(500), 0))


def make_room(store: pyrocketstore.Store) -> None:
    store.message_store.flush()
    store.message_store.async_puts.grant()


def test_a_call_comes_behind_one_that_was_granted_room(store: pyrocketstore.Store) -> None:
    """It finds room, but the call before it was woken and has not resumed yet."""
    puts = store.message_store.async_puts

    async def main() -> list[int]:
        first = puts.room(1)
        assert first.reserve()
        one = asyncio.ensure_future(store.aput("t", b"1"))
        await asyncio.sleep(0)
        assert puts.waiting == 1
        puts._max_count = 3
        first.release()  # it is granted the room
        assert puts.waiting == 0
        two = asyncio.ensure_future(store.aput("t", b"2"))
        three = asyncio.ensure_future(store.aput("t", b"3"))
        # Of the two that are called now, the loop runs the first part before it wakes the one.
        results = await asyncio.wait_for(asyncio.gather(two, one, three), WAIT_S)
        return [result.queue_offset for result in results]

    assert asyncio.run(main()) == [2, 1, 3]


def test_a_thread_that_takes_the_room_changes_no_order(bounded: pyrocketstore.Store) -> None:
    """Between the grant and the put: who was granted room puts all the same, and in turn."""

    async def main() -> list[int]:
        fill(bounded)
        tasks = [asyncio.ensure_future(bounded.aput("t", b"%d" % i)) for i in range(5)]
        await asyncio.sleep(0)
        assert bounded.message_store.async_puts.waiting == 5
        make_room(bounded)
        fill(bounded)
        tasks += [asyncio.ensure_future(bounded.aput("t", b"%d" % i)) for i in range(5, 9)]
        await asyncio.sleep(0)
        make_room(bounded)
        results = await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S)
        return [result.queue_offset for result in results]

    assert asyncio.run(main()) == list(range(9))


@pytest.mark.parametrize("how", ["put", "put_many", "put_batch"])
def test_a_thread_lets_who_waits_in_line_go_first(bounded: pyrocketstore.Store, how: str) -> None:
    """Though there is room for its own put, which needs less of it."""
    puts = bounded.message_store.async_puts

    async def main() -> None:
        bounded.put("other", bytes(300))
        waits = asyncio.ensure_future(bounded.aput("t", bytes(1700)))
        await asyncio.sleep(0)
        assert puts.waiting == 1 and not puts.is_behind()
        {
            "put": lambda: bounded.put("other", b"x"),
            "put_many": lambda: bounded.put_many("other", [b"x"]),
            "put_batch": lambda: bounded.put_batch("other", [b"x"]),
        }[how]()
        assert puts.waiting == 0, "it still waits"
        await asyncio.wait_for(waits, WAIT_S)

    asyncio.run(main())


def test_what_waits_in_line_is_what_was_given(bounded: pyrocketstore.Store) -> None:
    """The caller changes body, keys and properties before there is room."""

    async def main() -> None:
        fill(bounded)
        body, keys, named = bytearray(b"given"), ["a", "b"], {"name": "given"}
        waits = asyncio.ensure_future(bounded.aput("t", body, keys=keys, properties=named))
        await asyncio.sleep(0)
        body[:], keys[:], named["name"] = b"later", ["c"], "later"
        make_room(bounded)
        await asyncio.wait_for(waits, WAIT_S)

    asyncio.run(main())
    (message,) = bounded.read("t")
    assert (message.body, message.keys) == (b"given", "a b")
    assert message.properties["name"] == "given"


class Interrupt(Exception):
    """Raised by a signal handler."""


def serve(puts: AsyncPuts) -> Callable[[], None]:
    """Start threads that flush at once and complete futures; what ends them."""
    requests: queue.SimpleQueue[Callable[[PutMessageStatus], None] | None]
    requests = queue.SimpleQueue()
    puts.request = lambda end, done: requests.put(done) is None

    def run() -> None:
        while done := requests.get():
            done(PutMessageStatus.PUT_OK)

    server = threading.Thread(target=run)
    server.start()
    watcher = FlushDiskWatcher(puts)
    watcher.start()

    def end() -> None:
        requests.put(None)
        server.join()
        watcher.shutdown()

    return end


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_signal_handlers_that_raise_lose_no_room() -> None:
    """At any bytecode of the main thread; what was taken is given back by who took it."""
    config = MessageStoreConfig(flush_disk_type="SYNC_FLUSH", max_outstanding_puts=2)
    puts = AsyncPuts(config, lambda: 0, lambda: 0, lambda: 0, lambda results: None)
    end_serving = serve(puts)
    futures: list[Future[Any]] = []
    result = make_result(PutMessageStatus.PUT_OK, phy_offset=0, wrote_bytes=1)
    main = threading.main_thread().ident
    assert main is not None
    ended = threading.Event()
    hits = 0

    def send() -> None:
        while not ended.wait(0.0001):
            signal.pthread_kill(main, signal.SIGUSR1)

    armed = False

    def handler(number: int, frame: Any) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interrupt

    def one(round_: int) -> None:
        with puts.room(1) as room:
            if not room.reserve():
                return
            if round_ % 3:
                with puts.order:
                    future = puts.add(result, room)
                futures.append(future)
                puts.ask()

    before = signal.signal(signal.SIGUSR1, handler)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=send)
    thread.start()
    end = time.monotonic() + 1
    try:
        for round_ in itertools.count():
            try:
                armed = True
                one(round_)
                armed = False
            except Interrupt:
                armed = False
                hits += 1
                puts.ask()
            if time.monotonic() > end:
                break
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)
        signal.signal(signal.SIGUSR1, before)
        end_serving()
    assert hits > 50
    puts.close()
    assert len([future.result(WAIT_S) for future in futures]) > 50
    assert (puts.count, puts.bytes, puts.waiting) == (0, 0, 0)


# ---- callbacks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, Foreign, OSError])
def test_callbacks_that_raise_stop_nothing(
    tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    """The threads live, and the other callbacks of that future, and the other futures, are done."""
    called: list[int] = []

    def fail(future: Future[Any]) -> None:
        called.append(0)
        raise error

    env = Env()
    with broken(env, "msync", gate), pyrocketstore.open(tmp_path, env=env, **SYNC_SIZES) as store:
        low = store.message_store
        for number in range(1, 4):
            gate.close()
            futures = [low.async_put_message(MessageExtBrokerInner("t", b"x", 0)) for _ in range(3)]
            done = threading.Event()
            for future in futures:
                future.add_done_callback(fail)
                future.add_done_callback(lambda f, number=number: called.append(number))
            futures[-1].add_done_callback(lambda f, done=done: done.set())
            gate.open()
            for future in futures:
                assert future.result(WAIT_S).status is PutMessageStatus.PUT_OK
            assert done.wait(WAIT_S)
            assert called.count(number) == 3
            store.put("t", b"y")
            assert asyncio.run(store.aput("t", b"z")).status is PutMessageStatus.PUT_OK
        assert low.failure is None
        assert all(service.is_alive for service in low.services.all())
    assert called.count(0) == 9
    if not issubclass(error, Exception):
        assert "a callback of a future of a put raised" in caplog.text


def test_a_callback_of_a_future_that_is_done_raises_to_its_caller(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SYNC_SIZES) as store:
        future = store.message_store.async_put_message(MessageExtBrokerInner("t", b"x", 0))
        future.result(WAIT_S)

        def fail(future: Future[Any]) -> None:
            raise Foreign

        with pytest.raises(Foreign):
            future.add_done_callback(fail)


def test_an_event_loop_that_refuses_calls_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pyrocketstore.open(tmp_path, **SYNC_SIZES) as store:
        loop = asyncio.new_event_loop()
        coroutine = store.aput("t", b"1")

        async def begin() -> None:
            coroutine.send(None)

        def refuse(*arguments: Any) -> Any:
            raise ValueError("no calls")

        loop.call_soon_threadsafe = refuse  # type: ignore[method-assign]
        loop.run_until_complete(begin())
        wait_until(lambda: store.message_store.async_puts.count == 0, "room is lost")
        assert asyncio.run(store.aput("t", b"2")).status is PutMessageStatus.PUT_OK
        assert all(service.is_alive for service in store.message_store.services.all())
        coroutine.close()
        loop.close()
    assert "takes no call" in caplog.text
