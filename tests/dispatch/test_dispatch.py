"""Goal: the dispatch loop reports a record whose stored physical offset is wrong, and signals its
progress. Method: the dispatcher of an open store over the store's own log file, with right and
wrong offsets of the file; the signals of its event are counted, and threads wait for positions."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore.commit_log._scan import status_name
from pyrocketstore.errors import StoreStateError
from support.seed import SEED
from support.sizes import SIZES

COUNT = 3000
ELSEWHERE = "stored physicalOffset differs from the position of the record"


def test_a_record_at_another_place_is_not_dispatched(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path / "s", mapped_file_size_commit_log=1 << 20) as store:
        store.put_many("t", [b"body"] * 10, queue_ids=0)
        store.wait_dispatched()
        engine = store.message_store
        path = str(tmp_path / "s/commitlog/00000000000000000000")
        end = engine.get_max_phy_offset()
        second = store.get(0).size
        dispatched = engine.dispatcher.dispatch_file
        with engine.dispatch_paused():
            assert dispatched(engine.env, path, 0, 0, end) == (0, end)  # their queue has them
            assert store.max_offset("t", 0) == 10
            for base, position, at in ((8, 0, 0), (-second, second, second)):
                status, reached = dispatched(engine.env, path, base, position, end)
                assert (status_name(status), reached) == (ELSEWHERE, at), base
            assert store.max_offset("t", 0) == 10


def test_progress_is_signalled(tmp_path: Path) -> None:
    """A waiter for one of many messages need not wait for all of them."""
    with pyrocketstore.open(tmp_path / "s") as store:
        store.put_many("t", [b"body"] * COUNT, queue_ids=0)
        store.wait_dispatched()
        engine = store.message_store
        path = str(tmp_path / "s/commitlog/00000000000000000000")
        seen = engine.moved.sequence()
        with engine.dispatch_paused():  # the thread has reached the end, and may not be idle yet
            engine.dispatcher.dispatch_file(engine.env, path, 0, 0, engine.get_max_phy_offset())
        assert engine.moved.sequence() - seen > COUNT // 1024


def test_each_waiter_wakes_at_its_own_position(tmp_path: Path) -> None:
    """Goal: a thread that waits for a position wakes there, and for no earlier one."""
    rng = random.Random(SEED)
    with pyrocketstore.open(tmp_path / "s") as store:
        dispatcher = store.message_store.dispatcher
        begin = dispatcher.position
        targets = [begin + rng.randrange(1, 50) for _ in range(12)]
        woken: dict[int, tuple[bool, int]] = {}

        def wait(number: int) -> None:
            while not (reached := dispatcher.wait_for(targets[number], 10_000)):
                pass  # a signal for an earlier position
            woken[number] = reached, dispatcher.position

        threads = [threading.Thread(target=wait, args=(n,)) for n in range(len(targets))]
        for thread in threads:
            thread.start()
        for position in range(begin + 1, begin + 51):
            time.sleep(0.002)
            started = time.monotonic()
            dispatcher.position = position
            for number, target in enumerate(targets):
                if target == position:
                    threads[number].join(5)
                    assert not threads[number].is_alive()
                elif target > position:
                    assert number not in woken
            assert time.monotonic() - started < 5, "no waiter waits for its timeout"
        assert sorted(woken) == list(range(len(targets)))
        assert all(at >= targets[number] for number, (_, at) in woken.items())
        dispatcher.position = begin


def test_who_waits_can_be_woken(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path / "s") as store:
        dispatcher = store.message_store.dispatcher
        far = dispatcher.position + 1
        assert dispatcher.wait_for(far - 1, 10_000), "the position is reached already"
        assert not dispatcher.wait_for(far, 1)
        timer = threading.Timer(0.1, dispatcher.wake)
        timer.start()
        started = time.monotonic()
        assert not dispatcher.wait_for(far, 60_000)
        assert time.monotonic() - started < 30
        timer.join()


def test_a_waiter_learns_that_dispatching_has_stopped(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path / "s") as store:
        service = store.message_store.reput_service
        far = service.dispatcher.position + 1
        service.confirm(far - 1)
        assert service.wait_dispatched(far), "records after the confirm offset are not waited for"
        service.confirm_offset = None
        with service.paused():
            store.put("t", b"x")
            end = store.message_store.get_max_phy_offset()
            service.failure = RuntimeError("a failure of the test")
            with pytest.raises(StoreStateError, match="a failure of the test"):
                service.wait_dispatched(end)
            service.failure = None
            assert not service.wait_dispatched(end, 0.01)
        assert service.wait_dispatched(end, 60)


def test_no_unit_is_ahead_of_the_log(tmp_path: Path) -> None:
    """A commit moves the file's position first: a unit whose message the log does not have yet
    would be taken for damage, and a delayed message would be passed over."""
    settings = {"transient_store_pool_enable": True, "transient_store_pool_size": 2}
    never = {"commit_interval_commit_log": 10**9, "commit_commit_log_thorough_interval": 10**9}
    with pyrocketstore.open(tmp_path, **SIZES, **settings, **never) as store:
        engine = store.message_store
        log = engine.commit_log
        with engine.reput_service.paused():
            store.put("t", b"committed")
            log.commit_appended()
            readable = log.get_max_offset()
            store.put("t", b"being committed")
            assert not log.mapped_file_queue.commit(0)  # something was committed
            assert log.get_max_offset() == readable < log.get_appended_offset()
        engine.reput_service.wait_dispatched(readable)
        assert engine.dispatcher.position == readable
        assert engine.get_max_offset_in_queue("t", 0) == 1
        assert [message.body for message in store.read("t")] == [b"committed", b"being committed"]
