"""Goal: a put never hangs for ever: a blocked part becomes a status of DefaultMessageStore and a
PutError of `Store`, and each status is true.
Method: system calls are blocked."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import (
    MessageExtBatch,
    MessageExtBrokerInner,
    PutError,
    PutMessageResult,
    PutMessageStatus,
)
from pyrocketstore.flush.flush_services import GroupCommitService
from pyrocketstore.record._message import encode_messages
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing
from support.cleaned_stores import message, opened
from support.gates import WAIT_S, Gate, unclean, wait_until
from support.sizes import SIZES


def outcomes(store: pyrocketstore.Store) -> set[tuple[PutMessageStatus, bool]]:
    """The answers of all ways to put, with whether it is stored; no way may hang."""
    low = store.message_store
    found = set()
    one = MessageExtBrokerInner("t", b"low")
    batch = MessageExtBatch("t", encode_messages([pyrocketstore.Message("t", b"b")] * 2))
    futures = [low.async_put_message(one), low.async_put_messages(batch)]
    results = [low.put_message(one), low.put_messages(batch)]
    results += [future.result(WAIT_S) for future in futures]
    found |= {(result.status, result.append_message_status == 0) for result in results}
    for put in (
        lambda: store.put("t", b"face"),
        lambda: store.put("t", b"large" * 3000),
        lambda: store.put_many("t", [b"a", b"b"]),
        lambda: store.put_batch("t", [b"a", b"b"]),
    ):
        with pytest.raises(PutError) as caught:
            put()
        found.add((caught.value.status, caught.value.stored))
    return found


def test_flush_disk_timeout_when_the_device_hangs(tmp_path: Path, gate: Gate) -> None:
    """The first put behind the hanging force and the one that asked for it alike."""
    env = Env()
    settings: dict[str, Any] = {
        **SIZES,
        "flush_disk_type": "SYNC_FLUSH",
        "sync_flush_timeout": 100,
        "sync_flush_by_service": True,
    }
    with broken(env, "msync", gate), pyrocketstore.open(tmp_path, env=env, **settings) as store:
        store.put("t", b"first")
        gate.close()
        assert outcomes(store) == {(PutMessageStatus.FLUSH_DISK_TIMEOUT, True)}
        assert gate.held.acquire(timeout=0)
        unwaited = MessageExtBrokerInner("t", b"w", properties={"WAIT": "false"})
        assert store.message_store.put_message(unwaited).status is PutMessageStatus.PUT_OK
        gate.open()
        assert store.put("t", b"continues").status is PutMessageStatus.PUT_OK
        end = store.message_store.get_max_phy_offset()
        assert store.message_store.services.log_flush.flushed_where == end
        assert store.max_offset("t") == 15
        assert store.verify().ok


def test_who_leads_a_slow_force_is_the_last_to_do_so(tmp_path: Path) -> None:
    """The next hanging force, after a slow one, holds nobody's put."""
    env = Env()
    slow = [0.0]
    threads: list[str] = []

    def force(msync: Callable[..., int], *arguments: Any) -> int:
        threads.append(threading.current_thread().name)
        time.sleep(slow[0])
        return 0  # so that it is as quick as we say

    settings: dict[str, Any] = {**SIZES, "flush_disk_type": "SYNC_FLUSH"}
    with broken(env, "msync", force), pyrocketstore.open(tmp_path, env=env, **settings) as store:
        main = threading.current_thread().name
        for _ in range(100):
            store.put("t", b"quick")
            if threads[-1] == main:
                break
        slow[0] = 0.03
        store.put("t", b"slow")
        before = len(threads)
        store.put("t", b"by the service")
        slow[0] = 0
        store.put("t", b"by the service again, and quick")
        assert threads[before - 1] == main
        assert threads[before:] == ["GroupCommitService"] * 2
        assert store.message_store.services.log_flush.flushed_where == (
            store.message_store.get_max_phy_offset()
        )


def test_a_put_that_does_not_wait_is_forced_all_the_same(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, flush_disk_type="SYNC_FLUSH", **SIZES) as store:
        low = store.message_store
        unwaited = MessageExtBrokerInner("t", b"w", properties={"WAIT": "false"})
        for _ in range(40):
            assert low.put_message(unwaited).status is PutMessageStatus.PUT_OK
        end = low.get_max_phy_offset()
        wait_until(lambda: low.services.log_flush.flushed_where >= end, "nobody forced them")
        wait_until(lambda: low.checkpoint.physic_msg_timestamp > 0, "nobody noted the time")


def test_the_serving_thread_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting puts get the status at once, and every further put is refused."""
    with unclean(pyrocketstore.open(tmp_path, flush_disk_type="SYNC_FLUSH", **SIZES)) as store:
        low = store.message_store
        service = low.services.flush_service
        assert isinstance(service, GroupCommitService)
        store.put("t", b"x")

        def die() -> None:
            raise RuntimeError("dies")

        monkeypatch.setattr(service, "_complete_flushed", die)
        future = low.async_put_message(MessageExtBrokerInner("t", b"y"))
        assert future.result(WAIT_S).status in (
            PutMessageStatus.PUT_OK,
            PutMessageStatus.FLUSH_DISK_TIMEOUT,
        )
        wait_until(lambda: low.failure is not None, "nobody noticed")
        start = time.monotonic()
        assert not service.group.wait(1 << 40)
        assert time.monotonic() - start < WAIT_S / 10
        with pytest.raises(PutError, match="dies"):
            store.put("t", b"z")
    assert (tmp_path / "abort").exists()


def test_os_pagecache_busy_when_the_lock_is_held_for_long(tmp_path: Path, gate: Gate) -> None:
    """The one who holds it is in the file system; the others need not wait for it to come back."""
    env = Env()
    settings = {**SIZES, "os_page_cache_busy_time_out_mills": 50}
    with (
        ThreadPoolExecutor(2) as pool,
        pyrocketstore.open(tmp_path, env=env, **settings) as store,
    ):
        low = store.message_store
        store.put("t", b"first")
        assert store.max_offset("t") == 1  # its queue has a file
        file = low.commit_log.mapped_file_queue.mapped_files[-1]
        assert not low.is_os_page_cache_busy()
        with broken(env, "fallocate", gate), broken(env, "open", gate):
            file.wrote = file.wrote  # gives up what was allocated ahead
            gate.close()
            holder = pool.submit(store.put, "t", b"holder")
            wait_until(lambda: low.commit_log.core.lock_hold()[0] > 0, "nobody holds the lock")
            waiting = pool.submit(low.put_message, MessageExtBrokerInner("t", b"waiting"))
            result: PutMessageResult = waiting.result(WAIT_S)
            assert result.status is PutMessageStatus.OS_PAGECACHE_BUSY
            assert low.is_os_page_cache_busy()
            assert low.lock_time_mills() > 50
            assert outcomes(store) == {(PutMessageStatus.OS_PAGECACHE_BUSY, False)}
            assert not holder.done()
            gate.open()
            assert holder.result(WAIT_S).status is PutMessageStatus.PUT_OK
        assert not low.is_os_page_cache_busy()
        assert store.put("t", b"continues").queue_offset == 2
        assert store.verify().ok


def test_create_mapedfile_failed(tmp_path: Path) -> None:
    env = Env()
    with pyrocketstore.open(tmp_path, env=env, **SIZES) as store:
        low = store.message_store
        for _ in range(3):
            store.put("t", b"x" * 20000)
        assert store.max_offset("t") == 3  # its queue has a file
        service = low.allocate_service
        assert service is not None
        with failing(env, "ftruncate", errno.EACCES):
            # The next file was made ahead, perhaps; the one after it cannot be.
            statuses = []
            for _ in range(7):
                result = low.put_message(MessageExtBrokerInner("t", b"x" * 20000))
                statuses.append(result.status)
            assert statuses[-1] is PutMessageStatus.CREATE_MAPEDFILE_FAILED
            assert isinstance(result.error, pyrocketstore.StoreIOError)
            assert outcomes(store) == {(PutMessageStatus.CREATE_MAPEDFILE_FAILED, False)}
        stored = statuses.count(PutMessageStatus.PUT_OK)
        assert store.put("t", b"continues").queue_offset == 3 + stored
        assert service.last_error is None
        assert store.verify().ok


def test_who_waits_for_the_next_file_gives_up(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that makes no file holds none for long, however many wait."""
    monkeypatch.setattr("pyrocketstore.files.allocate_mapped_file_service.WAIT_TIMEOUT", 0.2)
    monkeypatch.setattr("pyrocketstore.commit_log.log.ROLL_TIMEOUT", 0.2)
    env = Env()
    with (
        broken(env, "ftruncate", gate),
        ThreadPoolExecutor(8) as pool,
        pyrocketstore.open(tmp_path, env=env, topics_json=False, **SIZES) as store,
    ):
        low = store.message_store
        gate.close()
        start = time.monotonic()
        puts = [
            pool.submit(low.put_message, MessageExtBrokerInner("t", b"x", queue_id=i))
            for i in range(8)
        ]
        statuses = {future.result(WAIT_S).status for future in puts}
        assert time.monotonic() - start < WAIT_S / 2
        assert statuses == {PutMessageStatus.CREATE_MAPEDFILE_FAILED}
        gate.open()
        assert store.put("t", b"x").phy_offset == 0
        assert store.verify().ok


@pytest.mark.parametrize("step", ["log", "queue", "index", "checkpoint"])
def test_abort_stays_when_a_step_of_closing_fails(tmp_path: Path, step: str) -> None:
    """And every descriptor is closed; the next opening finds all."""
    env = Env()
    before = len(os.listdir("/proc/self/fd"))
    quiet = {"flush_interval_commit_log": 600_000, "flush_interval_consume_queue": 600_000}
    store = pyrocketstore.open(tmp_path, env=env, **{**SIZES, **quiet})
    for i in range(50):
        store.put("t", b"%d" % i, keys=f"k{i}")
    assert store.max_offset("t") == 50
    store.message_store.persist_topics(True)
    paths = {
        "log": "/commitlog/",
        "queue": "/consumequeue/",
        "index": "/index/",
        "checkpoint": "/checkpoint",
    }
    fails = [0]

    def force(msync: Callable[..., int], base: int, size: int) -> int:
        if paths[step] in mapping_at(base):
            fails[0] += 1
            return -errno.EIO
        return msync(base, size)

    if step == "checkpoint":
        where, function = "pwrite", lambda original, *args: -errno.EIO
        fails[0] += 1
    else:
        where, function = "msync", force
    with broken(env, where, function), pytest.raises(pyrocketstore.StoreIOError) as caught:
        store.close()
    assert paths[step] in caught.value.path
    store.close()  # which has nothing to say any more
    assert fails[0] > 0
    assert (tmp_path / "abort").exists()
    assert len(os.listdir("/proc/self/fd")) == before
    with pyrocketstore.open(tmp_path, **SIZES) as again:
        assert [m.body for m in again.read("t")] == [b"%d" % i for i in range(50)]
        assert again.verify().ok


def mapping_at(address: int) -> str:
    """The file that is mapped there."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            low, high = (int(end, 16) for end in line.split()[0].split("-"))
            if low <= address < high:
                return line.split(maxsplit=5)[-1]
    return ""


BROADER = {**SIZES, "mapped_file_size_commit_log": 1 << 20}


def test_puts_end_when_the_index_is_given_up(tmp_path: Path) -> None:
    """Goal: after an index error no put is taken that a query would miss, and recovery brings back
    every key. Method: allocation fails for the first chunks of the index."""
    sizes = {**BROADER, "max_hash_slot_num": 100_000, "max_index_num": 200_000}
    env = Env()
    with unclean(pyrocketstore.open(tmp_path, env=env, **sizes)) as store:
        store.put("t", b"", keys="first")
        store.wait_dispatched()
        with failing(env, "fallocate", errno.EIO):
            for i in range(5):
                store.put("t", b"", keys=f"k{i}")
            with pytest.raises(pyrocketstore.StoreIOError, match="/index/"):
                store.wait_dispatched()
        for put in (store.put, lambda topic, body: store.put_batch(topic, [body])):
            with pytest.raises(PutError) as caught:
                put("t", b"")
            assert caught.value.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert (tmp_path / "abort").exists()
    with pyrocketstore.open(tmp_path, **sizes) as store:
        assert [len(store.query("t", f"k{i}")) for i in range(5)] == [1] * 5


def test_an_index_that_hangs_holds_no_put(tmp_path: Path) -> None:
    """Keys are put by the thread that dispatches: what the index costs is not part of a put."""
    go_on = threading.Event()
    held = threading.Event()
    env = Env()

    def blocked(original: Any, *arguments: Any) -> int:
        if b"/index/" in arguments[0]:
            held.set()
            go_on.wait(WAIT_S)
        return int(original(*arguments))

    with opened(tmp_path, env, flush_disk_type="SYNC_FLUSH") as store:
        with broken(env, "open", blocked):
            try:
                store.put_message(message(b"x", key="k"))
                assert held.wait(WAIT_S), "no index file was made"
                for _ in range(60):
                    result = store.put_message(message(b"x", key="k"))
                    assert result.status is PutMessageStatus.PUT_OK
                assert not store.wait_dispatched(0.01)
            finally:
                go_on.set()
            assert store.wait_dispatched(WAIT_S)
        assert store.get_max_offset_in_queue("t", 0) == 61
