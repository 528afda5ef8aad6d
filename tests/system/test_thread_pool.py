"""Goal: a pool makes every call once with the threads that could be started, nobody waits for a
thread that had no memory, and no thread is left.
Method: threads that wait for each other; first steps of threads and starts that fail; handlers
that raise."""

from __future__ import annotations

import functools
import gc
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from pyrocketstore.system import thread_pool, threads
from pyrocketstore.system.thread_pool import ThreadPool
from pyrocketstore.system.threads import JoinableThread
from support.gates import WAIT_S, wait_until

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    wait_until(lambda: set(threading.enumerate()) <= before, "the end of all threads")


def wait_for(event: threading.Event) -> None:
    assert event.wait(WAIT_S)


def test_the_threads_make_the_calls_at_the_same_time() -> None:
    together = threading.Barrier(3)
    with ThreadPool(3, "worker") as pool:
        calls = [pool.submit(functools.partial(together.wait, WAIT_S)) for _ in range(9)]
        assert sorted(call.result() for call in calls) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_one_thread_keeps_the_order() -> None:
    found: list[int] = []
    with ThreadPool(1, "worker") as pool:
        for number in range(100):
            pool.submit(functools.partial(found.append, number))
    assert found == list(range(100))


def test_errors_are_raised_by_the_result_of_their_call() -> None:
    def fail(number: int) -> int:
        if number % 2:
            raise OSError(number, "fails")
        return number

    with ThreadPool(2, "worker") as pool:
        calls = [pool.submit(functools.partial(fail, number)) for number in range(6)]
        for number, call in enumerate(calls):
            if number % 2:
                with pytest.raises(OSError, match=f"Errno {number}"):
                    call.result()
            else:
                assert call.result() == number


def test_an_error_in_the_block_cancels_the_calls_that_have_not_begun() -> None:
    begun, goes_on, made = threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        wait_for(goes_on)
        made.append("first")

    def in_block() -> None:
        with ThreadPool(1, "worker") as pool:
            pool.submit(first)
            later.append(pool.submit(functools.partial(made.append, "later")))
            wait_for(begun)
            goes_on.set()
            raise KeyError("of the block")

    later: list[Any] = []
    with pytest.raises(KeyError, match="of the block"):
        in_block()
    assert made[:1] == ["first"], "the end of a pool waits for the call that has begun"
    if made == ["first"]:  # else the thread was quicker than the error
        with pytest.raises(RuntimeError, match="cancelled"):
            later[0].result()


def test_a_cancelled_call_is_not_made() -> None:
    goes_on, made = threading.Event(), []
    with ThreadPool(1, "worker") as pool:
        first = pool.submit(functools.partial(wait_for, goes_on))
        second = pool.submit(functools.partial(made.append, "second"))
        third = pool.submit(functools.partial(made.append, "third"))
        second.cancel()
        goes_on.set()
        first.result()
        third.result()
        third.cancel()
        with pytest.raises(RuntimeError, match="cancelled"):
            second.result()
    assert made == ["third"]


def fail_for_memory(*_: object) -> None:
    raise MemoryError


def test_no_thread_has_memory_for_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    monkeypatch.setattr(threads, "begin_thread", fail_for_memory)
    made: list[int] = []
    with ThreadPool(3, "worker") as pool:
        for _ in range(2):
            with pytest.raises(MemoryError, match="the thread worker_0 had no memory"):
                pool.start()
        with pytest.raises(MemoryError, match="the thread worker_0 had no memory"):
            pool.submit(functools.partial(made.append, 1))
    assert not made


def test_the_threads_that_could_be_started_make_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    start = JoinableThread.start
    names: list[str] = []

    def refuse(thread: JoinableThread) -> None:
        names.append(thread.name)
        if len(names) > 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(JoinableThread, "start", refuse)
    with ThreadPool(5, "worker") as pool:
        calls = [pool.submit(functools.partial(int, number)) for number in range(50)]
        assert [call.result() for call in calls] == list(range(50))
    assert names == ["worker_0", "worker_1", "worker_2"], "a refused start is not tried again"


@pytest.mark.parametrize("threads_max", [1, 2])
@pytest.mark.parametrize("is_closed", [True, False])
def test_nobody_waits_for_a_thread_without_memory_for_a_call(
    monkeypatch: pytest.MonkeyPatch, threads_max: int, is_closed: bool
) -> None:
    monkeypatch.setattr(thread_pool, "LOOK_S", 0.01)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    monkeypatch.setattr(thread_pool.PoolCall, "run", fail_for_memory)
    with ThreadPool(threads_max, "worker") as pool:
        calls = [pool.submit(int) for _ in range(3)]
        if is_closed:
            pool.close()
        for call in calls:
            with pytest.raises(MemoryError, match="a thread of a pool has died"):
                call.result()


def test_a_handler_ends_the_wait_for_a_result() -> None:
    class Interrupted(KeyboardInterrupt):
        pass

    def handler(*_: object) -> None:
        raise Interrupted

    begun, goes_on = threading.Event(), threading.Event()

    def interrupt() -> str:
        wait_for(begun)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        wait_for(goes_on)
        return "done"

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with ThreadPool(1, "worker") as pool:
            call = pool.submit(interrupt)
            with pytest.raises(Interrupted):
                begun.set()
                call.result()
            goes_on.set()
            assert call.result() == "done"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_pool_that_is_dropped_ends_its_threads() -> None:
    made: list[int] = []
    pool = ThreadPool(2, "worker")
    for number in range(5):
        pool.submit(functools.partial(made.append, number))
    del pool
    wait_until(lambda: len(made) == 5, "the calls")


def test_a_thread_without_work_keeps_no_result() -> None:
    class Large:
        pass

    with ThreadPool(1, "worker") as pool:
        call = pool.submit(Large)
        kept = weakref.ref(call.result())
        del call
        pool.submit(int).result()
        gc.collect()
        assert kept() is None


def test_an_error_is_released_with_its_call() -> None:
    class Large(Exception):
        pass

    def fail(error: Large) -> None:
        raise error

    def fails() -> weakref.ref[Large]:
        error = Large()
        call = pool.submit(functools.partial(fail, error))
        kept = weakref.ref(error)
        del error
        with pytest.raises(Large):
            call.result()
        return kept

    with ThreadPool(1, "worker") as pool:
        kept = fails()
        pool.submit(int).result()
        gc.collect()
        assert kept() is None
