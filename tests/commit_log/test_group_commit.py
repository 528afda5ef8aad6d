"""Goal: under SYNC_FLUSH no put returns before it is on the device, none waits longer than it must,
and one force serves all that wait. Method: forces are counted, held back, and made to fail."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import MessageExtBrokerInner, PutError, PutMessageStatus
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.gates import WAIT_S, Gate, unclean, wait_until
from support.sizes import SYNC_SIZES


@pytest.fixture
def env(gate: Gate) -> Iterator[Env]:
    env = Env()
    with broken(env, "msync", gate):
        yield env


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as pool:
        yield pool


def put_behind(
    store: pyrocketstore.Store, pool: ThreadPoolExecutor, gate: Gate, count: int
) -> tuple[Future[Any], list[Future[Any]]]:
    """One put whose force is held back, and `count` that wait behind it."""
    gate.close()
    leader = pool.submit(store.put, "t", b"leader")
    assert gate.held.acquire(timeout=WAIT_S)
    before = store.message_store.get_max_phy_offset()
    behind = [pool.submit(store.put, "t", b"%06d" % i) for i in range(count)]
    size = before - store.message_store.services.log_flush.flushed_where  # of the leader's record
    end = before + count * size
    wait_until(lambda: store.message_store.get_max_phy_offset() >= end, "not all were appended")
    time.sleep(0.05)  # appended; now they go to sleep
    return leader, behind


def test_one_force_serves_all_that_wait(
    tmp_path: Path, env: Env, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    with pyrocketstore.open(tmp_path, env=env, **SYNC_SIZES) as store:
        store.put("t", b"first")
        gate.count = 0
        leader, behind = put_behind(store, pool, gate, 30)
        assert not any(future.done() for future in (leader, *behind))
        gate.open()
        results = [future.result(WAIT_S) for future in (leader, *behind)]
        assert {r.status for r in results} == {PutMessageStatus.PUT_OK}
        assert gate.count == 2
        assert store.message_store.services.log_flush.flushed_where == store.message_store.flush()
        assert store.max_offset("t") == 32


def test_who_is_served_does_not_wait_for_the_next_force(
    tmp_path: Path, env: Env, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    """Each waits for the one before it only while that one comes back: here none does, and the
    next force hangs."""
    with pyrocketstore.open(tmp_path, env=env, **SYNC_SIZES) as store:
        store.put("t", b"first")
        leader, behind = put_behind(store, pool, gate, 30)
        gate.let_one_go()
        assert leader.result(WAIT_S).status is PutMessageStatus.PUT_OK
        assert gate.held.acquire(timeout=WAIT_S)
        late = pool.submit(store.put, "t", b"late")
        time.sleep(0.1)
        gate.let_one_go()
        start = time.monotonic()
        assert gate.held.acquire(timeout=WAIT_S)
        for future in behind:
            assert future.result(WAIT_S).status is PutMessageStatus.PUT_OK
        assert time.monotonic() - start < WAIT_S / 4
        assert not late.done()
        gate.open()
        assert late.result(WAIT_S).status is PutMessageStatus.PUT_OK


def test_a_put_behind_a_force_that_hangs_times_out(
    tmp_path: Path, env: Env, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    with pyrocketstore.open(tmp_path, env=env, sync_flush_timeout=200, **SYNC_SIZES) as store:
        store.put("t", b"first")
        gate.close()
        leader = pool.submit(store.put, "t", b"leader")
        assert gate.held.acquire(timeout=WAIT_S)
        start = time.monotonic()
        with pytest.raises(PutError) as caught:
            store.put("t", b"behind")
        assert 0.19 < time.monotonic() - start < WAIT_S
        assert caught.value.status is PutMessageStatus.FLUSH_DISK_TIMEOUT
        assert (caught.value.stored, caught.value.count) == (True, 1)
        low = store.message_store
        later = low.async_put_message(MessageExtBrokerInner("t", b"later"))
        assert low.put_message(MessageExtBrokerInner("t", b"slow")).status.name == (
            "FLUSH_DISK_TIMEOUT"
        )
        assert later.result(WAIT_S).status is PutMessageStatus.FLUSH_DISK_TIMEOUT
        gate.open()
        failure = leader.exception(WAIT_S)  # none, unless the device was slow before
        assert failure is None or isinstance(failure, PutError)
        assert store.put("t", b"continues").status is PutMessageStatus.PUT_OK
        assert store.max_offset("t") == 6


def test_no_put_behind_a_failed_flush_returns_ok(
    tmp_path: Path, env: Env, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    with unclean(pyrocketstore.open(tmp_path, env=env, **SYNC_SIZES)) as store:
        store.put("t", b"first")
        leader, behind = put_behind(store, pool, gate, 10)
        gate.result = -errno.EIO
        gate.open()
        for future in (leader, *behind):
            failure = future.exception(WAIT_S)
            assert isinstance(failure, PutError)
            assert failure.status is PutMessageStatus.FLUSH_DISK_TIMEOUT
        gate.result = 0
        count = gate.count
        with pytest.raises(PutError) as caught:
            store.put("t", b"refused")
        assert caught.value.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "msync" in str(caught.value)
        flush_service = store.message_store.services.flush_service
        assert not flush_service.group.wait(1 << 40)  # type: ignore[union-attr]
        assert gate.count == count
    assert (tmp_path / "abort").exists()


def test_many_threads_over_many_files(tmp_path: Path) -> None:
    """Goal: what a put returned is on the device at that moment, also while the log rolls."""
    threads, each = 16, 60
    short: list[int] = []
    with pyrocketstore.open(tmp_path, **SYNC_SIZES) as store:

        def work(number: int) -> None:
            for i in range(each):
                result = store.put("t", b"%d" % number * 500, queue_id=number % 3, keys=f"k{i}")
                if store.message_store.services.log_flush.flushed_where < (
                    result.phy_offset + result.wrote_bytes
                ):
                    short.append(result.phy_offset)

        workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not short
        assert len(store.message_store.commit_log.mapped_file_queue.mapped_files) > 2
        assert sum(store.max_offset("t", i) for i in range(3)) == threads * each
        store.flush()
        assert store.message_store.checkpoint.physic_msg_timestamp > 0
        assert store.verify().ok


def test_the_lead_excludes_forces(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with pyrocketstore.open(tmp_path, **SYNC_SIZES) as store:
        store.put("t", b"first")
        group = store.message_store.services.flush_service.group  # type: ignore[union-attr]
        with group:
            waiting = pool.submit(store.put, "t", b"x")
            other = pool.submit(group.__enter__)
            time.sleep(0.1)
            assert not waiting.done()
            assert not other.done()
        other.result(WAIT_S)  # the lead may be given back by another thread
        group.__exit__(None, None, None)
        assert waiting.result(WAIT_S).status is PutMessageStatus.PUT_OK
        assert group.forced == store.message_store.get_max_phy_offset()


def log_writes(env: Env, fail: list[int]) -> Any:
    """Takes one code out of `fail` for each pwrite of more than a page of zeros would be."""

    def pwrite(original: Callable[..., int], fd: int, data: int, size: int, position: int) -> int:
        is_record = size not in (4096, 1 << 20) and bool(fail)
        return -fail.pop() if is_record else original(fd, data, size, position)

    return broken(env, "pwrite", pwrite)


@pytest.mark.parametrize("many", [False, True])
def test_a_record_that_cannot_be_written_takes_no_place(tmp_path: Path, many: bool) -> None:
    env = Env()
    fail: list[int] = []
    with pyrocketstore.open(tmp_path, env=env, **SYNC_SIZES) as store:
        store.put("t", b"first", keys="k0")
        end = store.message_store.get_max_phy_offset()
        with log_writes(env, fail):
            fail += [errno.EIO] * (1 if many else 2)  # a single put is tried again
            with pytest.raises(PutError, match="pwrite") as caught:
                if many:
                    store.put_many("t", [b"lost"] * 3)
                else:
                    store.put("t", b"lost")
            assert not fail
            assert str(tmp_path) in str(caught.value)
            assert store.message_store.get_max_phy_offset() == end
            result = store.put("t", b"second", keys="k1")
        assert (result.queue_offset, result.phy_offset) == (1, end)
        assert [m.body for m in store.read("t")] == [b"first", b"second"]
    with pyrocketstore.open(tmp_path, **SYNC_SIZES) as store:
        assert [m.body for m in store.read("t")] == [b"first", b"second"]
        assert [m.queue_offset for m in store.query("t", "k1")] == [1]


def test_the_descriptor_of_the_log_is_given_back(tmp_path: Path) -> None:
    def logs() -> int:
        links = [path.resolve() for path in Path("/proc/self/fd").iterdir() if path.exists()]
        return sum(link.parent == tmp_path / "commitlog" for link in links)

    with pyrocketstore.open(tmp_path, **SYNC_SIZES) as store:
        for i in range(600):  # over several files
            store.put("t", bytes(1024), queue_id=i % 3)
        assert len(list((tmp_path / "commitlog").iterdir())) > 2
        assert logs() == 1
    assert logs() == 0
