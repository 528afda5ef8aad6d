"""Goal: coroutines wait for messages without a thread each, and a cancelled one loses no message.
Method: event loops with consumers that wait, are cancelled, and are closed by other threads."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import Store, StoreStateError
from pyrocketstore.consumer import waiters
from support.sizes import SIZES

LONGEST_S = 20.0


def opened(path: Path, **settings: Any) -> Store:
    return pyrocketstore.open(path, **{**SIZES, **settings})


def waiting_threads() -> int:
    return sum(thread.name == "ConsumerWaiters" for thread in threading.enumerate())


def test_async_for(tmp_path: Path) -> None:
    async def read(count: int) -> list[int]:
        found: list[int] = []
        async for message in consumer:
            found.append(int(message.body))
            if len(found) == count:
                break
        return found

    async def both() -> list[int]:
        task = asyncio.create_task(read(100))
        for number in range(100):
            await store.aput("t", b"%d" % number)
        return await asyncio.wait_for(task, LONGEST_S)

    with opened(tmp_path) as store:
        consumer = store.consumer("g", "t")
        assert asyncio.run(both()) == list(range(100))
        assert consumer.position("t", 0) == 100


def test_apoll_waits_for_a_message_and_until_its_time_limit(tmp_path: Path) -> None:
    async def poll() -> tuple[list[Any], list[Any]]:
        threading.Timer(0.05, lambda: store.put("t", b"x")).start()
        return await consumer.apoll(5, LONGEST_S), await consumer.apoll(5, 0.01)

    with opened(tmp_path) as store:
        consumer = store.consumer("g", "t")
        found, none = asyncio.run(poll())
        assert [message.body for message in found] == [b"x"]
        assert none == []
        assert asyncio.run(consumer.apoll(1, 0)) == []


def test_many_coroutines_wait_in_one_thread(tmp_path: Path) -> None:
    async def all_of_them() -> tuple[int, list[list[Any]]]:
        calls = [one.apoll(1, LONGEST_S) for one in consumers]
        tasks = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0.05)
        before = waiting_threads()
        await store.aput("t", b"x")
        return before, await asyncio.gather(*tasks)

    with opened(tmp_path) as store:
        consumers = [store.consumer(f"g{number}", "t") for number in range(50)]
        threads, found = asyncio.run(all_of_them())
        assert threads == 1
        assert [len(messages) for messages in found] == [1] * 50
    end = time.monotonic() + LONGEST_S
    while waiting_threads() and time.monotonic() < end:
        time.sleep(0.005)
    assert waiting_threads() == 0


def test_cancelled_coroutines_lose_no_message(tmp_path: Path) -> None:
    async def read() -> None:
        found.extend(await consumer.apoll(3))

    async def cancel_often() -> None:
        number = 0
        for _ in range(200):
            task = asyncio.create_task(read())
            await asyncio.sleep(0)
            for _ in range(number % 3):
                await store.aput("t", b"%d" % number)
                number += 1
            number += 1
            task.cancel()
            await asyncio.wait([task])
        assert not consumer._waiters._waiting

    with opened(tmp_path) as store:
        consumer = store.consumer("g", "t")
        found: list[Any] = []
        asyncio.run(cancel_often())
        while messages := consumer.poll(100, 0):
            found += messages
        assert [message.queue_offset for message in found] == list(range(store.max_offset("t")))


@pytest.mark.parametrize("timeout", [None, LONGEST_S])
def test_a_cancellation_that_meets_a_message(tmp_path: Path, timeout: float | None) -> None:
    """A task that is cancelled when its message has arrived ends all the same."""

    async def work(consumer: Any) -> None:
        while True:
            await consumer.apoll(5, timeout)

    async def cancel_at_once() -> None:
        loop = asyncio.get_running_loop()
        for number in range(20):
            with store.consumer(f"g{number}", "t", start="latest") as consumer:
                task = asyncio.create_task(work(consumer))
                while not consumer._waiters._waiting:
                    await asyncio.sleep(0)
                store.put("t", b"x")
                while consumer._waiters._waiting:
                    time.sleep(0.001)  # the loop gets the signal together with the next call
                loop.call_soon(task.cancel)
                done, _ = await asyncio.wait([task], timeout=LONGEST_S)
                assert done

    with opened(tmp_path) as store:
        asyncio.run(cancel_at_once())


@pytest.mark.parametrize("what", ["consumer", "store"])
def test_a_close_ends_the_wait(tmp_path: Path, what: str) -> None:
    store = opened(tmp_path)
    consumer = store.consumer("g", "t")

    async def wait() -> None:
        threading.Timer(0.05, (consumer if what == "consumer" else store).close).start()
        with pytest.raises(StoreStateError, match="closed"):
            await asyncio.wait_for(consumer.apoll(), LONGEST_S)
        with pytest.raises(StoreStateError, match="closed"):
            await anext(consumer)

    asyncio.run(wait())
    store.close()


def test_the_thread_ends_and_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "LINGER_S", 0.0)
    with opened(tmp_path) as store:
        consumer = store.consumer("g", "t")
        for _ in range(30):
            assert asyncio.run(consumer.apoll(1, 0.001)) == []
            threading.Timer(0.002, lambda: store.put("t", b"x")).start()
            assert len(asyncio.run(consumer.apoll(1, LONGEST_S))) == 1


def test_coroutines_of_a_read_only_store_get_what_its_owner_writes(tmp_path: Path) -> None:
    async def polled(consumer: pyrocketstore.Consumer) -> bytes:
        (message,) = await asyncio.wait_for(consumer.apoll(1), LONGEST_S)
        return message.body

    async def iterated(consumer: pyrocketstore.Consumer) -> bytes:
        async def one() -> bytes:
            async for message in consumer:
                return message.body
            raise AssertionError

        return await asyncio.wait_for(one(), LONGEST_S)

    with opened(tmp_path) as owner, opened(tmp_path, read_only=True) as store:
        for number, wait in enumerate((polled, iterated)):
            consumer = store.consumer("g", f"t{number}")
            threading.Timer(0.1, owner.put, (f"t{number}", b"%d" % number)).start()
            assert asyncio.run(wait(consumer)) == b"%d" % number
