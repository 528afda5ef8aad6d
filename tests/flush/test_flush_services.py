"""Goal: each setting of the flush services has the effect that it has in 4.9.3.
Method: one setting at a time, the others too large or too small to matter; flushes are counted."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import PutError, PutMessageStatus, StoreIOError
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.flush.flush_services import (
    FlushConsumeQueueService,
    FlushRealTimeService,
    GroupCommitService,
)
from pyrocketstore.record.message import MessageExtBrokerInner
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing, watched
from support.gates import unclean, wait_until
from support.sizes import SIZES

NEVER = 600_000
QUIET: dict[str, Any] = {**SIZES, "flush_interval_consume_queue": NEVER}


def first_pass_over(store: pyrocketstore.Store) -> None:
    """The first pass of the thread is a thorough one, as in 4.9.3."""
    service = store.message_store.services.flush_service
    assert isinstance(service, FlushRealTimeService)
    wait_until(lambda: service._last_thorough_ms > 0, "the first pass is not a thorough one")
    time.sleep(0.05)
    store.put("t", b"first")
    assert store.message_store.flush() > 0


def forced(store: pyrocketstore.Store) -> int:
    return store.message_store.services.log_flush.flushed_where


def test_least_pages_and_the_thorough_interval(tmp_path: Path) -> None:
    settings = {
        "flush_interval_commit_log": 5,
        "flush_commit_log_least_pages": 2,
        "flush_commit_log_thorough_interval": NEVER,
    }
    with pyrocketstore.open(tmp_path, **QUIET, **settings) as store:
        first_pass_over(store)
        before = forced(store)
        time.sleep(0.05)
        store.put("t", b"x" * 4000)
        time.sleep(0.05)
        assert forced(store) == before, "one page is not enough"
        end = store.put("t", b"x" * 8000)
        wait_until(lambda: forced(store) > end.phy_offset, "three pages are")
        assert store.message_store.checkpoint.physic_msg_timestamp > 0
    settings["flush_commit_log_thorough_interval"] = 0
    with pyrocketstore.open(tmp_path, **QUIET, **settings) as store:
        end = store.put("t", b"x")
        wait_until(lambda: forced(store) > end.phy_offset, "a thorough pass takes every byte")


@pytest.mark.parametrize("timed", [True, False])
def test_an_append_wakes_the_thread_unless_it_is_timed(tmp_path: Path, timed: bool) -> None:
    settings = {
        "flush_interval_commit_log": NEVER,
        "flush_commit_log_timed": timed,
        "flush_commit_log_least_pages": 1,
        "flush_commit_log_thorough_interval": NEVER,
    }
    with pyrocketstore.open(tmp_path, **QUIET, **settings) as store:
        end = store.put("t", b"x" * 9000)
        if timed:
            time.sleep(0.1)
            assert forced(store) == 0
        else:
            wait_until(lambda: forced(store) > end.phy_offset, "the put woke nobody")
            end = store.put("t", b"x" * 9000)
            wait_until(lambda: forced(store) > end.phy_offset, "the second put woke nobody")
    with pyrocketstore.open(tmp_path, read_only=True, **QUIET) as store:
        assert store.max_offset("t") == (1 if timed else 2)


class Queue:
    """Two files with one dirty page each."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def flush(self, pages: int) -> bool:
        self.calls.append(pages)
        return True

    def unflushed(self) -> list[str]:
        return ["one", "two"]

    def pass_flushed(self) -> None:
        self.calls.append("passed")


class Together:
    """Flushes the files of all queues."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def flush(self, files: list[str]) -> None:
        self.queue.calls.append(files)


def test_queues_are_forced_by_pages_and_now_and_then_thoroughly(tmp_path: Path) -> None:
    now = [1_000_000]
    env = Env()
    checkpoint = StoreCheckpoint(env, str(tmp_path / "checkpoint"))
    queue = Queue()
    config = pyrocketstore.MessageStoreConfig()
    persisted: list[bool] = []
    service = FlushConsumeQueueService(
        config, checkpoint, lambda: [queue], Together(queue), lambda: 77, lambda: 0,
        persisted.append, lambda: now[0], print,
    )  # fmt: skip
    thorough = [["one", "two"], "passed"]
    with watched(env, "pwrite") as writes:
        service.do_flush(False)
        assert queue.calls == thorough, "the first pass is thorough, over all files"
        assert (checkpoint.logics_msg_timestamp, len(writes)) == (77, 1)
        now[0] += config.flush_consume_queue_thorough_interval - 1
        service.do_flush(False)
        assert queue.calls[2:] == [config.flush_consume_queue_least_pages]
        assert len(writes) == 1, "the checkpoint is written by a thorough pass alone"
        now[0] += 1
        service.do_flush(False)
        assert queue.calls[3:] == thorough
        service.do_flush(True)
        assert len(writes) == 3
    assert persisted == [True, False, True, True], "topics.json, at once before the checkpoint"


def test_the_time_of_the_queues_is_read_before_they_are_forced(tmp_path: Path) -> None:
    """Records that are dispatched during the flush may have come too late."""
    checkpoint = StoreCheckpoint(Env(), str(tmp_path / "checkpoint"))
    dispatched = [1000]
    queue = Queue()

    class Late(Together):
        def flush(self, files: list[str]) -> None:
            dispatched[0] += 1000
            super().flush(files)

    service = FlushConsumeQueueService(
        pyrocketstore.MessageStoreConfig(),
        checkpoint,
        lambda: [queue],
        Late(queue),
        lambda: dispatched[0],
        lambda: 0,
        lambda at_once: None,
        lambda: 1_000_000,
        lambda error: None,
    )
    service.do_flush(True)
    assert (checkpoint.logics_msg_timestamp, dispatched) == (1000, [2000])
    service.do_flush(False)
    assert checkpoint.logics_msg_timestamp == 1000, "a pass by pages forces not all"


@pytest.mark.parametrize(
    ("name", "method", "settings"),
    [
        ("flush_service", "_flush", {}),
        ("flush_queue_service", "do_flush", {"flush_interval_consume_queue": 5}),
        ("commit_service", "_try", {"transient_store_pool_enable": True}),
    ],
)
def test_a_service_that_dies_ends_the_puts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, method: str, settings: Any
) -> None:
    def die(*args: Any) -> None:
        raise RuntimeError("dies")

    quick = {"flush_interval_commit_log": 5, "commit_interval_commit_log": 5}
    with unclean(pyrocketstore.open(tmp_path, **{**QUIET, **quick, **settings})) as store:
        store.put("t", b"x")
        monkeypatch.setattr(getattr(store.message_store.services, name), method, die)
        wait_until(lambda: store.message_store.failure is not None, "nobody noticed")
        with pytest.raises(PutError, match="dies") as caught:
            store.put("t", b"y")
        assert caught.value.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert (tmp_path / "abort").exists()


def test_a_full_disk_under_a_commit_passes(tmp_path: Path) -> None:
    """A file's blocks are there before; some file systems want new ones all the same."""
    settings = {"transient_store_pool_enable": True, "commit_interval_commit_log": 5}
    env = Env()
    with pyrocketstore.open(tmp_path, env=env, **{**QUIET, **settings}) as store:
        store.put("t", b"0")
        store.flush()
        services = store.message_store.services
        assert services.commit_service is not None
        with failing(env, "pwrite", errno.ENOSPC):
            store.put("t", b"1")
            wait_until(lambda: services.commit_service.error is not None, "no commit has failed")
            with pytest.raises(StoreIOError):
                store.flush()
            assert store.message_store.failure is None
        store.put("t", b"2")
        store.flush()
    with pyrocketstore.open(tmp_path, **QUIET) as store:
        assert [message.body for message in store.read("t")] == [b"0", b"1", b"2"]
        assert store.message_store.plan is not None
        assert store.message_store.plan.clean


def test_a_time_is_never_newer_than_what_was_forced(tmp_path: Path) -> None:
    """The force begins while a record is being put: its time must not get into the checkpoint."""
    env = Env()
    clock = [1_700_000_000_000]
    late: list[int] = []
    settings = {"flush_disk_type": "SYNC_FLUSH"}

    def force(msync: Callable[..., int], *arguments: Any) -> int:
        if late:
            clock[0] += 5000
            late.pop()
            low.commit_log.append(record, 1, "t", 0, True, store.store_host)
        return msync(*arguments)

    with (
        broken(env, "now_ms", lambda original: clock[0]),
        broken(env, "msync", force),
        pyrocketstore.open(tmp_path, env=env, **{**QUIET, **settings}) as store,
    ):
        low = store.message_store
        first = store.put("t", b"x")
        record = bytes(low.select_one_message_by_offset(first.phy_offset))  # type: ignore[arg-type]
        late.append(1)
        second = store.put("t", b"y")
        end = second.phy_offset + second.wrote_bytes
        assert forced(store) == end < low.get_max_phy_offset()
        assert low.checkpoint.physic_msg_timestamp == second.store_timestamp < clock[0]
        store.flush()
        assert low.checkpoint.physic_msg_timestamp == clock[0]


def test_futures_of_a_flush_service_that_has_ended_are_done(tmp_path: Path) -> None:
    """Goal: nobody waits for a thread that is gone, and no future of a stored message is
    cancelled."""
    store = pyrocketstore.open(tmp_path, flush_disk_type="SYNC_FLUSH", **SIZES)
    future = store.message_store.async_put_message(MessageExtBrokerInner("t", b"x"))
    assert not future.cancel()
    assert future.result(10).status is PutMessageStatus.PUT_OK
    store.close()
    service = store.message_store.services.flush_service
    assert isinstance(service, GroupCommitService)
    assert not service.request(1 << 40, lambda status: None), "nobody would complete it"


def test_the_checkpoint_comes_last(tmp_path: Path) -> None:
    """Goal: recovery rebuilds neither queues nor topics whose units the checkpoint covers. Their
    names and topics.json are flushed first, and `abort` is deleted last."""
    env = Env()
    calls: list[tuple[str, str]] = []
    files: dict[int, str] = {}

    def note(name: str) -> Callable[..., int]:
        def call(original: Callable[..., int], first: Any, *rest: Any) -> int:
            result = original(first, *rest)
            path = os.fsdecode(first) if isinstance(first, bytes) else files.get(first, "")
            if name == "open":
                files[result] = path
            calls.append((name, os.path.relpath(path, tmp_path) if path else ""))
            return result

        return call

    with contextlib.ExitStack() as stack:
        for name in ("open", "pwrite", "fsync_directory", "rename", "unlink"):
            stack.enter_context(broken(env, name, note(name)))
        store = pyrocketstore.open(tmp_path, env=env, **QUIET)
        store.put("new", b"x", queue_id=3)
        store.wait_dispatched()
        assert not [call for call in calls if call[1].startswith("consumequeue/new")
                    and call[0] == "fsync_directory"], "not before the flush"  # fmt: skip
        calls.clear()
        store.flush()
        names = [("fsync_directory", f"consumequeue{part}") for part in ("", "/new", "/new/3")]
        topics = [("rename", "config/topics.json.tmp"), ("fsync_directory", "config")]
        covers = calls.index(("pwrite", "checkpoint"))
        before = calls[:covers]
        assert set(names + topics) <= set(before), before
        assert ("fsync_directory", "config") in before[before.index(topics[0]) :]
        store.put("later", b"x")
        calls.clear()
        store.close()
    ends = calls.index(("unlink", "abort"))
    assert ("fsync_directory", "consumequeue/later/0") in calls[:ends]
    assert topics[0] in calls[:ends]
