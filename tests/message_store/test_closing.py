"""Goal: a close either ends cleanly, or releases everything and then raises the reason.
Method: failing flushes, threads that cannot be started, full disks; system calls are watched."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import (
    DefaultMessageStore,
    MessageExtBrokerInner,
    MessageStoreConfig,
    PutError,
    StoreIOError,
    StoreStateError,
)
from pyrocketstore.system.env import Env
from pyrocketstore.system.service_thread import ServiceThread
from pyrocketstore.system.threads import JoinableThread
from support.broken_env import broken, failing, watched
from support.gates import wait_until
from support.sizes import SIZES

#: No thread forces anything by itself.
QUIET: dict[str, Any] = {
    **SIZES,
    "flush_interval_commit_log": 600_000,
    "flush_commit_log_timed": True,
    "flush_interval_consume_queue": 600_000,
}


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("call", ["msync", "fdatasync", "fsync_directory", "unlink"])
def test_a_close_that_cannot_force_says_so(tmp_path: Path, flush: str, call: str) -> None:
    env = Env()
    store = pyrocketstore.open(tmp_path, env=env, flush_disk_type=flush, **QUIET)
    store.put("t", b"x", keys="k")
    store.wait_dispatched()
    said = f"{call} failed: {tmp_path}"
    with failing(env, call, errno.EIO), pytest.raises(StoreIOError, match=said):
        store.close()
    assert (tmp_path / "abort").exists()
    assert store.closed
    store.close()  # once is enough
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert [m.body for m in store.query("t", "k")] == [b"x"]
        assert store.verify().ok
    assert not (tmp_path / "abort").exists()


def test_what_the_body_raised_comes_before_what_close_raises(tmp_path: Path) -> None:
    env = Env()
    with pytest.raises(PutError) as caught, pyrocketstore.open(tmp_path, env=env, **SIZES) as store:
        store.put("t", b"x")
        with failing(env, "msync", errno.EIO), pytest.raises(StoreIOError):
            store.flush()
        store.put("t", b"y")
    (note,) = caught.value.__notes__
    assert "not closed cleanly" in note
    assert "msync failed" in note
    assert (tmp_path / "abort").exists()


def test_a_store_that_was_only_loaded_gives_all_back_too(tmp_path: Path) -> None:
    """Nobody but close forces what its recovery made."""
    killed = leave_killed(tmp_path)
    env = Env()
    config = pyrocketstore.MessageStoreConfig().at_root(killed).replace(**QUIET)
    before = len(os.listdir("/proc/self/fd"))
    store = pyrocketstore.DefaultMessageStore(config, env=env)
    store.load()
    with failing(env, "msync", errno.EIO), pytest.raises(StoreIOError, match="msync"):
        store.shutdown()
    assert len(os.listdir("/proc/self/fd")) == before
    assert str(killed) not in Path("/proc/self/maps").read_text(encoding="utf-8")
    assert (killed / "abort").exists()


@pytest.mark.parametrize("bit", ["disk_full", "logic_disk_full"])
def test_a_full_disk_keeps_no_close_from_being_clean(tmp_path: Path, bit: str) -> None:
    with pyrocketstore.open(tmp_path, file_reserved_time=72, **SIZES) as store:
        store.put("t", b"x")
        getattr(store.message_store.running_flags, f"get_and_make_{bit}")()
        with pytest.raises(PutError):
            store.put("t", b"y")
    assert not (tmp_path / "abort").exists()


def leave_killed(path: Path) -> Path:
    """Return a store as a kill leaves it: no file was flushed."""
    with pyrocketstore.open(path / "living", **QUIET) as store:
        for i in range(20):
            store.put("t", b"%d" % i, keys=f"k{i}")
        store.wait_dispatched()
        shutil.copytree(path / "living", path / "killed", ignore=lambda *_: {"lock"})
    return path / "killed"


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("number", range(5))
@pytest.mark.timeout(60)  # nobody may wait for a thread that never ran
def test_threads_that_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, flush: str
) -> None:
    """An open without its threads flushes the files of a killed store before `abort` goes."""
    killed = leave_killed(tmp_path)
    env = Env()
    started: list[str] = []

    begin = JoinableThread.start

    def start(thread: JoinableThread) -> None:
        if len(started) == number:
            raise RuntimeError("can't start new thread")
        started.append(thread.name)
        begin(thread)

    with monkeypatch.context() as patch, watched(env, "msync") as forced:
        patch.setattr(JoinableThread, "start", start)
        with pytest.raises(StoreStateError, match="cannot be started: can't start new thread"):
            pyrocketstore.open(killed, env=env, **{**QUIET, "flush_disk_type": flush})
    assert not (killed / "abort").exists()
    assert len(forced) >= 2, "neither the log nor its queue"
    names = {thread.name for thread in threading.enumerate()}
    assert not names & set(started)
    with pyrocketstore.open(killed, **SIZES) as store:
        assert len(list(store.read("t"))) == 20
        assert store.verify().ok


def test_close_waits_for_a_slow_dispatcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nothing is unmapped under a dispatcher that takes longer than threads are usually
    waited for. Method: its allocations sleep, and the usual time is short."""
    monkeypatch.setattr(ServiceThread.shutdown, "__defaults__", (0.05,))
    env = Env()
    putting = threading.get_ident()

    def slow(original: Any, *arguments: Any) -> int:
        if threading.get_ident() != putting:
            time.sleep(0.5)
        return int(original(*arguments))

    store = pyrocketstore.open(tmp_path, env=env, **SIZES)
    with broken(env, "fallocate", slow):
        store.put("t", b"x", keys="a")
        time.sleep(0.1)
        store.close()
    assert not (tmp_path / "abort").exists()
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert len(store.query("t", "a")) == store.max_offset("t") == 1


def test_a_closed_store_is_not_flushed(tmp_path: Path) -> None:
    """The next owner of the directory may write its checkpoint by then."""
    store = DefaultMessageStore(MessageStoreConfig().at_root(str(tmp_path)).replace(**QUIET))
    store.load()
    store.start()
    store.put_message(MessageExtBrokerInner("t", b"x", 0))
    store.shutdown()
    for remove in (lambda: None, store.destroy):
        remove()
        with pytest.raises(StoreStateError, match="closed"):
            store.flush_all()


@pytest.mark.parametrize("wait", [0.0, 0.001, 0.003])
def test_a_flush_beside_the_end_of_its_store(tmp_path: Path, wait: float) -> None:
    """It flushes everything, or reports the end; it finds no file that was deleted."""
    config = MessageStoreConfig().at_root(str(tmp_path)).replace(**SIZES)
    for _ in range(5):
        store = DefaultMessageStore(config)
        store.load()
        store.start()
        store.put_message(MessageExtBrokerInner("t", b"x", 0))
        ended: list[BaseException] = []

        def flush(store: DefaultMessageStore = store, ended: list[Any] = ended) -> None:
            try:
                while True:
                    store.flush_all()
            except pyrocketstore.StoreError as refused:
                ended.append(refused)

        flushing = threading.Thread(target=flush)
        flushing.start()
        time.sleep(wait)
        store.shutdown()
        store.destroy()
        flushing.join(20)
        assert [type(error) for error in ended] == [StoreStateError], ended


def test_a_callback_that_flushes_while_the_store_is_closed(tmp_path: Path) -> None:
    """Neither waits for the other one for ever."""
    ended: list[BaseException] = []
    called, closing = threading.Event(), threading.Event()

    def check(transaction: object) -> str:
        called.set()
        assert closing.wait(20)
        try:
            store.message_store.flush_all()
        except StoreStateError as error:
            ended.append(error)
        return "rollback"

    settings = {"transaction_time_out": 1, "transaction_check_interval": 1}
    store = pyrocketstore.open(tmp_path, transaction_check=check, **SIZES, **settings)
    store.prepare("t", b"x", group="g")
    assert called.wait(20)
    end = threading.Thread(target=store.close)
    end.start()
    while not store.message_store.files.commit_log._closed:
        time.sleep(0.001)
    closing.set()
    end.join(20)
    assert not end.is_alive()
    wait_until(lambda: bool(ended), "the callback has not ended")
