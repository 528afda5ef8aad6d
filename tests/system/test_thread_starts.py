"""Goal: nobody waits for a thread that had no memory for its first step, and threads that have
ended are in none of CPython's tables.
Method: the first steps of new threads raise MemoryError, as in CPython without memory."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import PutError
from pyrocketstore.consume_queue import retries
from pyrocketstore.errors import StoreIOError, StoreStateError
from pyrocketstore.recovery.repair import repair
from pyrocketstore.system import threads
from pyrocketstore.system.service_thread import ServiceThread
from pyrocketstore.system.threads import JoinableThread
from support.sizes import SIZES

pytestmark = pytest.mark.timeout(60)


def fail(*_: object) -> None:
    raise MemoryError


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    monkeypatch.setattr(threads, "begin_thread", fail)
    monkeypatch.setattr(threading.Thread, "_bootstrap_inner", fail)


class Sleeping(ServiceThread):
    def run(self) -> None:
        while not self.stopped:
            self.wait_for_running(None)


def test_a_service_without_memory_for_its_first_step(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    service = Sleeping("sleeping")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda _: None)
        patch.setattr(threads, "begin_thread", fail)
        patch.setattr(threading.Thread, "_bootstrap_inner", fail)
        with pytest.raises(MemoryError, match="the thread sleeping had no memory"):
            service.start()
        assert not service.is_alive
        assert service.shutdown(None), "nobody may wait for a thread that never ran"
    service.start()
    assert service.is_alive
    assert service.shutdown(None) and not service.is_alive


@pytest.mark.usefixtures("no_memory")
def test_an_opening_without_memory_for_its_threads(tmp_path: Path) -> None:
    with pytest.raises(StoreStateError, match=r"cannot be started: the thread .* had no memory"):
        pyrocketstore.open(tmp_path / "store", **SIZES)


def test_a_repair_without_memory_for_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first error of a queue starts it, in the dispatcher's thread."""
    monkeypatch.setattr(retries, "MAX_RETRIES", 1)
    in_the_way = tmp_path / "consumequeue" / "t"
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("other", b"x")
        with store.message_store.dispatch_paused():
            store.put("t", b"kept")
            in_the_way.write_bytes(b"a file where a directory must be")
        with monkeypatch.context() as patch:
            patch.setattr(sys, "unraisablehook", lambda _: None)
            patch.setattr(threads, "begin_thread", fail)
            patch.setattr(threading.Thread, "_bootstrap_inner", fail)
            for call in (store.flush, store.wait_dispatched):
                with pytest.raises(StoreIOError, match="mkdir"):
                    call()
            with pytest.raises(PutError):
                store.put("t", b"y")
        assert "the next opening of the store repairs queues and index" in caplog.text
        in_the_way.unlink()
        assert repair(store.message_store.files, store.message_store.dispatch_paused())
        assert [message.body for message in store.read("t")] == [b"kept"]


def test_a_thread_without_memory_for_its_name_works(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    thread = JoinableThread(lambda: calls.append(threading.get_ident()), "worker")
    with monkeypatch.context() as patch:
        patch.setattr(threading, "current_thread", fail)
        thread.start()
        thread.join()
    assert calls == [thread.ident] and not thread.is_alive()


def test_a_thread_that_has_ended_leaves_nothing() -> None:
    names: list[str] = []
    before = set(threading.enumerate())
    for number in range(20):
        thread = JoinableThread(lambda: names.append(threading.current_thread().name), f"{number}")
        thread.start()
        thread.join()
        assert not thread.is_alive()
        assert set(threading.enumerate()) == before
    assert names == [str(number) for number in range(20)]


def test_a_thread_releases_what_it_has_called_before_its_end() -> None:
    class Work:
        def __call__(self) -> None:
            pass

    work = Work()
    released = weakref.ref(work)
    thread = JoinableThread(work, "worker")
    del work
    thread.start()
    thread.join()
    gc.collect()
    assert released() is None
