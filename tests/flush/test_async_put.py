"""Goal: awaited puts complete in order once they are durable, with one flush for many; outstanding
puts are bounded, and no caller waits for ever.
Method: flushes are counted, blocked, and made to fail."""

from __future__ import annotations

import asyncio
import errno
import functools
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import (
    MessageExtBrokerInner,
    MessageStoreConfig,
    PutError,
    PutMessageStatus,
    StoreFormatError,
    StoreStateError,
)
from pyrocketstore.commit_log._puts import make_result
from pyrocketstore.flush.async_put import AsyncPuts, FlushDiskWatcher, MakeRoomService
from pyrocketstore.flush.flush_services import GroupCommitService
from pyrocketstore.system.env import Env
from pyrocketstore.system.threads import JoinableThread
from support.broken_env import broken
from support.gates import WAIT_S, Gate, unclean, wait_until
from support.sizes import SYNC_SIZES

ASYNC_SIZES = {**SYNC_SIZES, "flush_disk_type": "ASYNC_FLUSH"}


@pytest.fixture
def env(gate: Gate) -> Iterator[Env]:
    env = Env()
    with broken(env, "msync", gate):
        yield env


def run(main: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(main, WAIT_S)

    return asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


def message(body: bytes = b"x", queue_id: int = 0) -> MessageExtBrokerInner:
    return MessageExtBrokerInner("t", body, queue_id)


# ---- order, and one force for many --------------------------------------------------------------


def test_aputs_share_forces_and_keep_their_order(tmp_path: Path, env: Env, gate: Gate) -> None:
    done: list[tuple[int, int]] = []
    with pyrocketstore.open(tmp_path, env=env, **SYNC_SIZES) as store:
        flushed = store.message_store.reports.flushed_where

        async def one(i: int) -> None:
            result = await store.aput("t", b"%d" % i * 50, queue_id=i % 3, tags="a", keys=f"k{i}")
            assert flushed() >= result.phy_offset + result.wrote_bytes
            done.append((i % 3, result.queue_offset))

        async def main() -> None:
            await asyncio.gather(*[one(i) for i in range(3000)])

        run(main())
        assert gate.count < 300
        for queue_id in range(3):
            assert [at for q, at in done if q == queue_id] == list(range(1000))
            bodies = [m.body for m in store.read("t", queue_id)]
            assert bodies == [b"%d" % i * 50 for i in range(queue_id, 3000, 3)]
        assert len(store.message_store.commit_log.mapped_file_queue.mapped_files) > 2
        stats = store.stats()
        assert (stats.async_puts_outstanding, stats.async_put_bytes_outstanding) == (0, 0)


def test_futures_of_a_queue_are_done_in_its_order(tmp_path: Path, env: Env, gate: Gate) -> None:
    """From several threads, all held back until each future has its callback."""
    done: dict[int, list[int]] = {0: [], 1: []}

    def put(store: pyrocketstore.DefaultMessageStore, number: int) -> list[Future[Any]]:
        futures = []
        for _ in range(300):
            futures.append(store.async_put_message(message(queue_id=number % 2)))
            queue = done[number % 2]
            futures[-1].add_done_callback(
                lambda f, queue=queue: queue.append(f.result().queue_offset)
            )
        return futures

    with (
        pyrocketstore.open(tmp_path, env=env, **SYNC_SIZES) as store,
        ThreadPoolExecutor(4) as pool,
    ):
        gate.close()
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # so that threads come between each other
        try:
            parts = [pool.submit(put, store.message_store, i) for i in range(4)]
            futures = [future for part in parts for future in part.result(WAIT_S)]
        finally:
            sys.setswitchinterval(before)
        assert done == {0: [], 1: []}
        gate.open()
        for future in futures:
            assert future.result(WAIT_S).status is PutMessageStatus.PUT_OK
        store.flush()
    assert done == {0: list(range(600)), 1: list(range(600))}


# ---- in which thread ----------------------------------------------------------------------------


class Threads:
    """In place of msync: notes the calling threads; `pause_s` makes a flush slow, `answer` fail."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.pause_s = 0.0
        self.answer = 0

    def __call__(self, original: Callable[..., int], *arguments: Any) -> int:
        self.seen.append(threading.get_ident())
        time.sleep(self.pause_s)
        return self.answer


def test_a_loop_flushes_itself_while_flushes_are_quick(tmp_path: Path) -> None:
    env, threads = Env(), Threads()
    here = threading.get_ident()

    async def flushed_here(store: pyrocketstore.Store) -> bool:
        del threads.seen[:]
        await store.aput("t", b"x")
        return here in threads.seen

    async def main(store: pyrocketstore.Store) -> None:
        assert not await flushed_here(store)  # nothing is known yet about the device
        end = time.monotonic() + WAIT_S
        while not await flushed_here(store):
            assert time.monotonic() < end
        await asyncio.gather(*[store.aput("t", b"x") for _ in range(200)])
        # A slow flush, wherever it is made: the next ones are made by the thread of the service.
        threads.pause_s = 0.01
        await flushed_here(store)
        for _ in range(5):
            assert not await flushed_here(store)

    with (
        broken(env, "msync", threads),
        pyrocketstore.open(tmp_path, env=env, **SYNC_SIZES) as store,
    ):
        run(main(store))
        assert len(list(store.read("t"))) == store.max_offset("t", 0) >= 200


async def suspends(put: Coroutine[Any, Any, Any]) -> bool:
    """Await a put; return whether it suspends its task, which lets other tasks run."""
    ran = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(ran.set_result, None)
    await put
    suspended = ran.done()
    await ran
    return suspended


def test_a_lone_task_flushes_at_once(tmp_path: Path) -> None:
    """Method: a clock that does not move until the test moves it, for the time between yields; and
    a device whose flushes count as quick from then on, however busy this machine is."""
    env, threads = Env(), Threads()

    async def lone(store: pyrocketstore.Store) -> None:
        end = time.monotonic() + WAIT_S
        while await suspends(store.aput("t", b"x")):
            assert time.monotonic() < end

    async def main(store: pyrocketstore.Store) -> None:
        puts = store.message_store.async_puts
        await lone(store)
        service = store.message_store.services.flush_service
        assert isinstance(service, GroupCommitService)
        flush = functools.partial(service.handle_disk_flush, wait_store_msg_ok=True)
        puts.quick_flush = lambda: flush
        before = len(threads.seen)
        puts._clock = lambda: 1
        for _ in range(5):
            assert not await suspends(store.aput("t", b"x"))
            assert puts._flushed() == store.message_store.get_max_phy_offset()
        puts._clock = lambda: 1 << 62
        assert await suspends(store.aput("t", b"x")), "now and then the loop runs"
        puts._clock = time.monotonic_ns
        assert len(threads.seen) >= before + 6
        await lone(store)
        # With another task, flushes serve both again.
        others = [asyncio.ensure_future(store.aput("t", b"x")) for _ in range(50)]
        before = len(threads.seen)
        await asyncio.gather(store.aput("t", b"x"), *others)
        assert len(threads.seen) <= before + 3
        assert await suspends(store.aput("t", b"x"))

    with (
        broken(env, "msync", threads),
        pyrocketstore.open(tmp_path, env=env, **SYNC_SIZES) as store,
    ):
        run(main(store))
        assert len(list(store.read("t"))) == store.max_offset("t", 0)


def test_a_put_that_flushes_at_once_reports_a_failed_flush(tmp_path: Path) -> None:
    env, threads = Env(), Threads()

    async def main(store: pyrocketstore.Store) -> None:
        end = time.monotonic() + WAIT_S
        while await suspends(store.aput("t", b"x")):
            assert time.monotonic() < end
        threads.answer = -errno.EIO
        with pytest.raises(PutError, match="FLUSH_DISK_TIMEOUT"):
            await store.aput("t", b"x")
        with pytest.raises(PutError):
            await store.aput("t", b"x")

    with broken(env, "msync", threads):
        store = pyrocketstore.open(tmp_path, env=env, **SYNC_SIZES)
        run(main(store))
        with pytest.raises(pyrocketstore.StoreError, match="msync"):
            store.close()


def test_a_loop_never_flushes_with_flushes_by_the_service(tmp_path: Path) -> None:
    env, threads = Env(), Threads()

    async def main(store: pyrocketstore.Store) -> None:
        for _ in range(100):
            await store.aput("t", b"x")

    settings = {**SYNC_SIZES, "sync_flush_by_service": True}
    with broken(env, "msync", threads), pyrocketstore.open(tmp_path, env=env, **settings) as store:
        run(main(store))
        assert threading.get_ident() not in threads.seen


# ---- cancelled, closed, failed ------------------------------------------------------------------


def test_a_cancelled_aput_leaves_the_message(tmp_path: Path, env: Env, gate: Gate) -> None:
    with pyrocketstore.open(tmp_path, env=env, **SYNC_SIZES) as store:
        store.put("t", b"first")

        async def main() -> None:
            gate.close()
            task = asyncio.create_task(store.aput("t", b"cancelled"))
            await until(lambda: store.message_store.async_puts.count == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open()
            assert (await store.aput("t", b"next")).queue_offset == 2

        run(main())
        assert [m.body for m in store.read("t")] == [b"first", b"cancelled", b"next"]
        assert store.stats().async_puts_outstanding == 0


def test_a_loop_that_is_closed_meanwhile_harms_no_other(
    tmp_path: Path, env: Env, gate: Gate
) -> None:
    with (
        pyrocketstore.open(tmp_path, env=env, **SYNC_SIZES) as store,
        ThreadPoolExecutor(2) as pool,
    ):
        store.put("t", b"first")
        gate.close()
        loop = asyncio.new_event_loop()
        task = loop.create_task(store.aput("t", b"of a closed loop"))
        loop.run_until_complete(asyncio.sleep(0))
        assert gate.held.acquire(timeout=WAIT_S)
        others = [pool.submit(run, store.aput("t", b"of another")) for _ in range(2)]
        end = time.monotonic() + WAIT_S
        while store.message_store.async_puts.count < 3:
            assert time.monotonic() < end
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()
        gate.open()
        assert {f.result(WAIT_S).status.name for f in others} == {"PUT_OK"}
        assert store.max_offset("t") == 4
        assert store.stats().async_puts_outstanding == 0


def test_aput_raises_what_put_raises(tmp_path: Path, env: Env, gate: Gate) -> None:
    store = pyrocketstore.open(tmp_path, env=env, max_message_size=1000, **SYNC_SIZES)
    with unclean(store):
        store.put("t", b"first")
        with pytest.raises(PutError) as caught:
            run(store.aput("t", b"x" * 2000))
        assert caught.value.status is PutMessageStatus.MESSAGE_ILLEGAL
        with pytest.raises(StoreFormatError):
            run(store.aput("no topic", b"x"))
        with pytest.raises(TypeError):
            run(store.aput("t", "text"))
        with pytest.raises(TypeError):
            run(store.aput("t", b"x", no_such=1))
        assert store.stats().async_puts_outstanding == 0
        run(store.aput_many("t", [b"a", b"b"], keys=["k", None]))
        run(store.aflush())
        assert store.max_offset("t") == 3
        gate.result = -errno.EIO
        with pytest.raises(PutError) as caught:
            run(store.aput("t", b"x"))
        assert (caught.value.status.name, caught.value.stored) == ("FLUSH_DISK_TIMEOUT", True)
        gate.result = 0
        with pytest.raises(PutError, match="msync") as caught:
            run(store.aput("t", b"x"))
        assert (caught.value.status.name, caught.value.stored) == ("SERVICE_NOT_AVAILABLE", False)
        assert store.stats().async_puts_outstanding == 0
    with pytest.raises(StoreStateError):
        run(store.aput("t", b"x"))


def test_a_force_that_hangs_ends_futures_in_time(tmp_path: Path, env: Env, gate: Gate) -> None:
    with pyrocketstore.open(tmp_path, env=env, sync_flush_timeout=200, **SYNC_SIZES) as store:
        store.put("t", b"first")
        gate.close()
        future = store.message_store.async_put_message(message())
        with pytest.raises(PutError) as caught:
            run(store.aput("t", b"x"))
        assert (caught.value.status.name, caught.value.stored) == ("FLUSH_DISK_TIMEOUT", True)
        assert future.result(WAIT_S).status is PutMessageStatus.FLUSH_DISK_TIMEOUT
        gate.open()
        assert run(store.aput("t", b"y")).status is PutMessageStatus.PUT_OK
        by_status = store.stats().put_messages_by_status
        assert (by_status["PUT_OK"], by_status["FLUSH_DISK_TIMEOUT"]) == (2, 2)


def test_futures_end_in_time_without_the_statistics(
    tmp_path: Path, env: Env, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread looks at deadlines, and it is not the one that may die."""

    def die() -> None:
        raise RuntimeError("dies")

    with pyrocketstore.open(tmp_path, env=env, sync_flush_timeout=1000, **SYNC_SIZES) as store:
        low = store.message_store
        monkeypatch.setattr(low.stats_service, "watch", die)
        run(until(lambda: low.stats_service.failure is not None))
        gate.close()
        start = time.monotonic()
        first = low.async_put_message(message())  # it alone is what a flush is asked for
        others = [low.async_put_message(message()) for _ in range(3)]
        for future in (first, *others):
            assert future.result(WAIT_S).status is PutMessageStatus.FLUSH_DISK_TIMEOUT
        assert 0.95 < time.monotonic() - start < 1.8, "each has its own deadline"
        assert low.async_puts.count == 0
        gate.open()
        assert low.async_put_message(message()).result(WAIT_S).status is PutMessageStatus.PUT_OK


def pending(puts: AsyncPuts, end: int) -> Future[Any]:
    room = puts.room(1)
    assert room.reserve()
    result = make_result(PutMessageStatus.PUT_OK, phy_offset=end - 1, wrote_bytes=1)
    return puts.add(result, room)


def test_deadlines_are_watched_one_after_the_other() -> None:
    clock, forced, woken = [0], [0], [0]

    def wake() -> None:
        woken[0] += 1

    config = MessageStoreConfig(flush_disk_type="SYNC_FLUSH", sync_flush_timeout=10)
    puts = AsyncPuts(config, lambda: 9, lambda: forced[0], lambda: clock[0], lambda results: None)
    puts.wake_watcher = wake
    assert puts.expire() is None
    futures = []
    for end in range(1, 5):
        futures.append(pending(puts, end))
        clock[0] += 1_000_000
    assert woken == [1], "the others come later"
    assert puts.expire() == 6.0
    clock[0], forced[0] = 11_500_000, 1
    assert puts.expire() == 0.5
    statuses = [future.result(0).status.name for future in futures[:2]]
    assert statuses == ["PUT_OK", "FLUSH_DISK_TIMEOUT"], "the first is on the device"
    assert not futures[2].done()
    clock[0] += 10_000_000
    assert puts.expire() is None
    assert all(future.done() for future in futures)
    pending(puts, 5)
    assert woken == [2]


def test_a_watcher_that_dies_leaves_nobody_waiting() -> None:
    config = MessageStoreConfig(flush_disk_type="SYNC_FLUSH")
    puts = AsyncPuts(config, lambda: 9, lambda: 0, time.monotonic_ns, lambda results: None)
    watcher = FlushDiskWatcher(puts)
    future = pending(puts, 1)

    def die() -> None:
        raise MemoryError

    puts.expire = die  # type: ignore[method-assign,assignment]
    watcher.start()
    assert future.result(WAIT_S).status is PutMessageStatus.FLUSH_DISK_TIMEOUT
    assert watcher.shutdown()
    assert isinstance(watcher.failure, MemoryError)


@pytest.mark.parametrize("starts", [True, False])
def test_futures_without_a_watcher_are_done_by_the_close(
    monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    """In a thread where one can be started: the lock of a future may be held."""
    config = MessageStoreConfig(flush_disk_type="SYNC_FLUSH")
    puts = AsyncPuts(config, lambda: 9, lambda: 0, time.monotonic_ns, lambda results: None)
    future = pending(puts, 1)
    threads: list[threading.Thread] = []
    future.add_done_callback(lambda _: threads.append(threading.current_thread()))

    def refuse(thread: JoinableThread) -> None:
        raise RuntimeError("can't start new thread")

    puts.close()
    assert not future.done()
    if not starts:
        monkeypatch.setattr(JoinableThread, "start", refuse)
    puts.complete_rest()
    assert future.result(0).status is PutMessageStatus.FLUSH_DISK_TIMEOUT
    assert (threads == [threading.current_thread()]) is not starts


# ---- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bound", [{"max_outstanding_puts": 3}, {"max_outstanding_put_bytes": 3 * 301}]
)
def test_what_is_outstanding_is_bounded(
    tmp_path: Path, env: Env, gate: Gate, bound: dict[str, int]
) -> None:
    with pyrocketstore.open(tmp_path, env=env, **SYNC_SIZES, **bound) as store:
        store.put("t", b"first")
        low = store.message_store

        async def main() -> None:
            gate.close()
            tasks = [asyncio.create_task(store.aput("t", b"%03d" % i * 33)) for i in range(10)]
            await until(lambda: low.async_puts.waiting == 7)
            await asyncio.sleep(0.02)
            assert low.async_puts.count == 3
            assert low.commit_log.core.put_count == 4
            busy = low.async_put_message(message(b"refused"))
            assert busy.result(0).status is PutMessageStatus.OS_PAGECACHE_BUSY
            tasks[5].cancel()
            gate.open()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(results.pop(5), asyncio.CancelledError)
            assert [r.queue_offset for r in results] == list(range(1, 10))

        run(main())
        assert (low.async_puts.count, low.async_puts.bytes, low.async_puts.waiting) == (0, 0, 0)
        expected = [b"first", *[b"%03d" % i * 33 for i in range(10) if i != 5]]
        assert [m.body for m in store.read("t")] == expected
        assert store.stats().put_messages_by_status["OS_PAGECACHE_BUSY"] == 1
        one = run(store.aput("t", b"x" * 5000))  # one always fits
        assert one.status is PutMessageStatus.PUT_OK


def test_unforced_bytes_are_bounded(tmp_path: Path, env: Env, gate: Gate) -> None:
    settings = {**ASYNC_SIZES, "max_unforced_bytes": 2000}
    body = b"x" * 400
    with pyrocketstore.open(tmp_path, env=env, **settings) as store:
        low = store.message_store

        def unforced() -> int:
            return low.get_max_phy_offset() - low.reports.flushed_where()

        for _ in range(20):  # a thread forces the log itself when it must
            store.put("t", body)
            assert unforced() < 2600
        store.flush()

        async def main() -> None:
            gate.close()
            tasks = [asyncio.create_task(store.aput("t", body)) for _ in range(20)]
            await until(lambda: low.async_puts.waiting > 10)
            assert unforced() <= 2000
            low.put_message(message(b"y" * (2000 - unforced())))
            for refused in (low.async_put_message(message()).result(0), low.put_message(message())):
                assert refused.status is PutMessageStatus.OS_PAGECACHE_BUSY
            thread = asyncio.create_task(asyncio.to_thread(store.put_many, "t", [b"many"] * 2))
            await asyncio.sleep(0.05)
            assert not thread.done()
            gate.open()
            assert {r.status.name for r in await asyncio.gather(*tasks)} == {"PUT_OK"}
            await thread

        run(main())
        assert store.max_offset("t") == 43
        assert (low.async_puts.count, low.async_puts.bytes) == (0, 0)


def test_a_put_lock_that_is_held_is_no_want_of_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`aput` says so at once, as `put` does."""
    with pyrocketstore.open(tmp_path, max_unforced_bytes=10_000, **ASYNC_SIZES) as store:
        low = store.message_store
        with monkeypatch.context() as patch:
            patch.setattr(low.puts, "is_busy", lambda: True)
            for call in (lambda: run(store.aput("t", b"x")), lambda: store.put("t", b"x")):
                with pytest.raises(PutError) as raised:
                    call()
                assert raised.value.status is PutMessageStatus.OS_PAGECACHE_BUSY
        assert run(store.aput("t", b"x")).queue_offset == 0
        assert (low.async_puts.count, low.async_puts.bytes) == (0, 0)


def test_who_makes_room_sleeps_while_others_have_it() -> None:
    """A loop that is slow to use the room that it was given costs no processor time."""
    config = MessageStoreConfig(flush_disk_type="ASYNC_FLUSH", max_unforced_bytes=1000)
    end = [5000]
    forced = [0]
    forces = []

    def force() -> None:
        forces.append(end[0])
        forced[0] = end[0]

    puts = AsyncPuts(config, lambda: end[0], lambda: forced[0], time.monotonic_ns, lambda _: None)
    service = MakeRoomService(puts, force)
    loop = asyncio.new_event_loop()
    rooms = [puts.room(700) for _ in range(2)]
    tasks = [loop.create_task(room.wait()) for room in rooms]
    loop.run_until_complete(asyncio.sleep(0))
    service.start()
    try:
        wait_until(lambda: puts.waiting == 1, "nobody got room")
        time.sleep(0.1)  # the loop does not run
        assert len(forces) <= 2
        loop.run_until_complete(asyncio.wait_for(tasks[0], WAIT_S))
        end[0] += 900
        rooms[0].release()
        loop.run_until_complete(asyncio.wait_for(tasks[1], WAIT_S))
        assert forced == end
        rooms[1].release()
    finally:
        assert service.shutdown()
        loop.close()
    assert (puts.count, puts.bytes) == (0, 0)


def test_room_that_was_given_is_not_lost() -> None:
    """A put returns its room if it is cancelled before it resumes, or if its loop is closed."""
    config = MessageStoreConfig(flush_disk_type="SYNC_FLUSH", max_outstanding_puts=1)
    puts = AsyncPuts(config, lambda: 0, lambda: 0, time.monotonic_ns, lambda results: None)
    first, lost, last = puts.room(1), puts.room(3), puts.room(4)
    assert first.reserve()

    async def main() -> None:
        cancelled = asyncio.create_task(puts.room(2).wait())
        behind = asyncio.create_task(lost.wait())
        await asyncio.sleep(0)
        assert puts.waiting == 2
        first.release()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await behind

    run(main())
    assert (puts.count, puts.waiting) == (1, 0)
    loop = asyncio.new_event_loop()
    task = loop.create_task(last.wait())
    loop.run_until_complete(asyncio.wait_for(task, WAIT_S))
    assert (puts.count, puts.waiting) == (1, 0), "the room of the closed loop is lost"
    lost.release()
    assert (puts.count, puts.waiting) == (1, 0)
    last.release()
    loop.close()
    assert (puts.count, puts.bytes, puts.waiting) == (0, 0, 0)


def test_close_ends_those_that_wait(tmp_path: Path, env: Env, gate: Gate) -> None:
    store = pyrocketstore.open(tmp_path, env=env, max_outstanding_puts=1, **SYNC_SIZES)
    store.put("t", b"first")

    async def main() -> None:
        gate.close()
        tasks = [asyncio.create_task(store.aput("t", b"%d" % i)) for i in range(3)]
        await until(lambda: store.message_store.async_puts.waiting == 2)
        closing = asyncio.create_task(asyncio.to_thread(store.close))
        results = asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: store.message_store.async_puts.waiting == 0)
        gate.open()
        done, *refused = await results
        assert done.status is PutMessageStatus.PUT_OK
        assert [type(r) for r in refused] == [StoreStateError] * 2
        await closing

    run(main())
    assert not (tmp_path / "abort").exists()


def test_futures_are_done_when_callbacks_put(tmp_path: Path) -> None:
    """A callback that puts again, in the thread that completes, meets no lock that is held."""
    left = [50]
    last: Future[None] = Future()
    with pyrocketstore.open(tmp_path, **SYNC_SIZES) as store:

        def again(_: Any) -> None:
            left[0] -= 1
            if left[0]:
                store.message_store.async_put_message(message()).add_done_callback(again)
            else:
                last.set_result(None)

        threading.Thread(target=again, args=(None,)).start()
        last.result(WAIT_S)
        assert store.max_offset("t") == 49


@pytest.mark.parametrize("how", ["put", "put_many", "put_batch"])
def test_a_put_waits_again_when_its_room_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """By another thread, or a signal handler, between its wait and its put."""
    with pyrocketstore.open(tmp_path, max_unforced_bytes=2000, **ASYNC_SIZES) as store:
        make_room, taken = store._slow_puts.make_room, []

        def make_room_that_is_taken() -> bool:
            has_room = make_room()
            if len(taken) < 3:
                taken.append(store.message_store.put_message(MessageExtBrokerInner("o", BODY * 3)))
            return has_room

        monkeypatch.setattr(store._slow_puts, "make_room", make_room_that_is_taken)
        {
            "put": lambda: store.put("t", BODY),
            "put_many": lambda: store.put_many("t", [BODY]),
            "put_batch": lambda: store.put_batch("t", [BODY]),
        }[how]()
        assert [result.status for result in taken] == [PutMessageStatus.PUT_OK] * 3
        assert (store.max_offset("t"), store.max_offset("o")) == (1, 3)


BODY = b"." * 900


def test_a_put_whose_store_a_signal_handler_closes_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler runs between the append and the registration of the future."""
    store = pyrocketstore.open(tmp_path, **SYNC_SIZES)
    puts = store.message_store.async_puts
    add = puts.add

    def add_later(*arguments: Any) -> Future[Any]:
        store.close()
        return add(*arguments)

    monkeypatch.setattr(puts, "add", add_later)
    future = store.message_store.async_put_message(message())
    assert future.result(WAIT_S).status is PutMessageStatus.PUT_OK
