"""Goal: the death of a thread of the store is noticed: puts are refused with the reason, and no
caller waits for the thread.
Method: each thread raises, also errors that are not an Exception, while others wait for it."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

import pyrocketstore
from pyrocketstore import (
    MessageExtBrokerInner,
    PutError,
    PutMessageStatus,
    StoreError,
    StoreWarning,
)
from pyrocketstore.dispatch._dispatcher import Dispatcher
from pyrocketstore.files import allocate_mapped_file_service
from pyrocketstore.system.service_thread import ServiceThread
from pyrocketstore.system.threads import JoinableThread
from support.gates import WAIT_S, unclean, wait_until
from support.sizes import SYNC_SIZES, TINY_SIZES

#: The function that each thread calls again and again, and the event that wakes it.
STEPS = {
    "AllocateMappedFileService": "wait_for_running",
    "ReputMessageService": "do_reput",
    "FlushConsumeQueueService": "wait_for_running",
    "FlushRealTimeService": "wait_for_running",
    "GroupCommitService": "_complete_flushed",
    "FlushDiskWatcher": "wait_for_running",
    "MakeRoomService": "wait_for_running",
    "CommitRealTimeService": "wait_for_running",
    "CleanResourceService": "wait_for_running",
    "DiskCheckService": "wait_for_running",
    "RepairService": "wait_for_running",
}
OF_SYNC_FLUSH = ("GroupCommitService", "FlushDiskWatcher")
ERRORS = [RuntimeError("boom"), MemoryError(), SystemExit(3)]


def kill(store: pyrocketstore.Store, name: str, error: BaseException) -> ServiceThread:
    def die(*arguments: Any) -> NoReturn:
        raise error

    services = store.message_store.services
    services.repair_service.start()  # as the first error of a queue does
    (service,) = [s for s in (*services.all(), services.repair_service) if s.name == name]
    setattr(service, STEPS[name], die)
    service.wakeup()
    return service


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("name", STEPS)
def test_a_thread_that_dies_is_noticed(tmp_path: Path, name: str, error: BaseException) -> None:
    settings = {
        **SYNC_SIZES,
        "flush_disk_type": "SYNC_FLUSH" if name in OF_SYNC_FLUSH else "ASYNC_FLUSH",
        "sync_flush_timeout": 60_000,  # not what ends the waits
        "max_unforced_bytes": 10_000 if name == "MakeRoomService" else 0,
        "file_reserved_time": 72,  # so that something cleans
        "transient_store_pool_enable": name == "CommitRealTimeService",
        "transient_store_pool_size": 1,
    }
    store = pyrocketstore.open(tmp_path, **settings)
    with ThreadPoolExecutor(4) as pool:
        store.put("t", b"before", keys="k")
        low = store.message_store
        service = kill(store, name, error)
        pending: Future[Any] | None = None
        if name == "GroupCommitService":
            pending = low.async_put_message(MessageExtBrokerInner("t", b"in flight"))
        wait_until(lambda: low.failure is not None and not service.is_alive, "nobody noticed")
        if pending is not None:
            ended = (PutMessageStatus.PUT_OK, PutMessageStatus.FLUSH_DISK_TIMEOUT)
            assert pending.result(WAIT_S).status in ended
        calls = [
            lambda: store.put("t", b"x"),
            lambda: store.put_many("t", [b"x"]),
            lambda: asyncio.run(store.aput("t", b"x")),
        ]
        for call in calls:
            refused = pool.submit(call).exception(WAIT_S)
            assert isinstance(refused, PutError)
            assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            assert not refused.stored
            assert name in str(refused)
        for status in (
            low.put_message(MessageExtBrokerInner("t", b"x")),
            low.async_put_message(MessageExtBrokerInner("t", b"x")).result(WAIT_S),
        ):
            assert status.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            assert name in str(status.error)
            assert status.error.__cause__ is error
        assert name in (store.stats().failure or "")
        for wait_for in (store.wait_dispatched, store.flush, lambda: list(store.read("t"))):
            ended = pool.submit(wait_for).exception(WAIT_S)
            assert ended is None or isinstance(ended, StoreError | StoreWarning)
        with pytest.raises(StoreError, match=name):
            pool.submit(store.close).result(WAIT_S)
    assert (tmp_path / "abort").exists()
    with pyrocketstore.open(tmp_path, **SYNC_SIZES) as store:
        assert store.get(0).body == b"before"  # type: ignore[union-attr]
        assert len(store.query("t", "k")) == 1


def test_the_statistics_may_die(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are no reason to refuse puts."""
    with pyrocketstore.open(tmp_path, **SYNC_SIZES) as store:
        service = store.message_store.stats_service
        service.watch = lambda: [][1]
        wait_until(lambda: not service.is_alive, "it lives on")
        assert store.put("t", b"x").status is PutMessageStatus.PUT_OK
        assert store.stats().put_message_times_total == 1
    assert "IndexError" in caplog.text
    assert not (tmp_path / "abort").exists()


def test_who_waits_for_dispatch_hears_of_its_end(tmp_path: Path) -> None:
    walk = threading.Event()
    with (
        ThreadPoolExecutor(1) as pool,
        unclean(pyrocketstore.open(tmp_path, **SYNC_SIZES)) as store,
    ):
        reput = store.message_store.services.reput_service

        def die() -> NoReturn:
            walk.wait(WAIT_S)
            raise MemoryError

        reput.do_reput = die  # type: ignore[method-assign]
        store.put("t", b"x")
        waiting = pool.submit(store.wait_dispatched)
        time.sleep(0.02)
        assert not waiting.done()
        walk.set()
        assert isinstance(waiting.exception(WAIT_S), StoreError)


def test_who_waits_for_a_file_hears_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread dies with the request in its hands: the put ends at once, and not in five
    seconds."""
    create = allocate_mapped_file_service.create_mapped_file

    def die(*arguments: Any, **more: Any) -> Any:
        if threading.current_thread().name == "AllocateMappedFileService":
            time.sleep(0.05)
            raise MemoryError
        return create(*arguments, **more)

    with unclean(pyrocketstore.open(tmp_path, **SYNC_SIZES)) as store:
        monkeypatch.setattr(allocate_mapped_file_service, "create_mapped_file", die)
        start = time.monotonic()
        store.put("t", b"first")  # it makes the file itself
        assert time.monotonic() - start < allocate_mapped_file_service.WAIT_TIMEOUT / 2
        allocate = store.message_store.services.allocate_service
        wait_until(lambda: not allocate.is_alive, "it lives on")
        with pytest.raises(PutError, match="AllocateMappedFileService") as caught:
            store.put("t", b"second")
        assert caught.value.status is PutMessageStatus.SERVICE_NOT_AVAILABLE


def test_a_thread_that_is_being_started_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no end comes between the making of a thread and its start."""
    reached, go_on = threading.Event(), threading.Event()
    begin = JoinableThread.start

    def slow(thread: JoinableThread) -> None:
        if thread.name == "slow":
            reached.set()
            go_on.wait(WAIT_S)
        begin(thread)

    class Slow(ServiceThread):
        def run(self) -> None:
            while not self.stopped:
                self.wait_for_running(None)

    service = Slow("slow")
    monkeypatch.setattr(JoinableThread, "start", slow)
    with ThreadPoolExecutor(2) as pool:
        started = pool.submit(service.start)
        assert reached.wait(WAIT_S)
        ended = pool.submit(service.shutdown, WAIT_S)
        time.sleep(0.01)
        go_on.set()
        started.result(WAIT_S)
        assert ended.result(WAIT_S)
    assert not service.is_alive


def test_nothing_is_repaired_once_the_store_stops(tmp_path: Path) -> None:
    store = pyrocketstore.open(tmp_path, **SYNC_SIZES)
    services = store.message_store.services
    store.close()
    services.start_repair()
    assert not services.repair_service.is_alive


def test_a_dispatcher_that_dies_ends_the_puts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unclean(pyrocketstore.open(tmp_path, **TINY_SIZES)) as face:
        store = face.message_store
        face.put("t", b"before")
        face.wait_dispatched()

        def fails() -> bool:
            raise MemoryError("no memory for the dispatcher")

        monkeypatch.setattr(store.services.reput_service, "do_reput", fails)
        reput = store.services.reput_service
        deadline = time.monotonic() + WAIT_S
        while reput.is_alive and time.monotonic() < deadline:
            reput.wakeup()
            time.sleep(0.001)
        assert not reput.is_alive
        with pytest.raises(PutError, match="no memory for the dispatcher") as caught:
            face.put("t", b"x")
        assert caught.value.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert isinstance(store.failure.__cause__, MemoryError)
        monkeypatch.undo()
    assert (tmp_path / "abort").exists(), "not everything was seen to"
    assert isinstance(store.dispatcher, Dispatcher)
