"""Goal: a store without references is closed, and its directory can be opened again.
Method: drop stores of every kind in every state; open the directory at once; count the remaining
threads, descriptors and mappings."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import (
    DefaultMessageStore,
    MessageExtBrokerInner,
    MessageStoreConfig,
    Store,
    StoreError,
    StoreStateError,
)
from pyrocketstore.files import lock_file
from pyrocketstore.message_store.open_stores import OPEN_STORES, Closer
from pyrocketstore.recovery.plan import Planning
from pyrocketstore.recovery.recovery_plan import RecoveryPlan
from pyrocketstore.system import signal_shield
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing
from support.gates import Gate, wait_until
from support.sizes import SIZES, SYNC_SIZES

pytestmark = pytest.mark.slow

UNCLOSED = "the store was not closed"


def descriptors(path: Path) -> list[str]:
    """Descriptors and mappings of this process that belong to a directory."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return [text for text in [*found, *lines] if str(path) in text]


KINDS: dict[str, dict[str, Any]] = {
    "plain": SIZES,
    "sync": SYNC_SIZES,
    "cleaning": {**SIZES, "file_reserved_time": 72},
    "bounded": {**SIZES, "max_unforced_bytes": 1 << 20},
    "pool": {
        **SIZES,
        "transient_store_pool_enable": True,
        "transient_store_pool_size": 2,
    },
    "without topics.json": {**SIZES, "topics_json": False},
}


def use(store: Store) -> None:
    """Touch every part that may keep a store alive."""
    for i in range(300):
        store.put("T", b"%d" % i * 100, tags="A", keys=f"k{i}")
    store.put_many("U", [b"a", b"b"], queue_ids=[0, 3])
    store.put_batch("V", [b"c"])
    with pytest.raises(StoreError):
        store.put("T", b"x" * (5 << 20))
    store.flush()
    assert len(store.query("T", "k7")) == 1
    assert len(list(store.read("T"))) == 300
    store.stats()
    assert store.verify().ok

    async def puts() -> None:
        await asyncio.gather(*(store.aput("T", b"y") for _ in range(20)))

    asyncio.run(puts())
    gc.collect()  # the exception above refers to frames, and those to it


@pytest.mark.parametrize("kind", KINDS)
def test_a_dropped_store_can_be_opened_at_once(tmp_path: Path, kind: str) -> None:
    """Without a collection: the last reference is enough."""
    gc.collect()
    gc.disable()
    try:
        threads = threading.active_count()
        for count in range(3):
            store = pyrocketstore.open(tmp_path, **KINDS[kind])
            assert store.message_store.plan is not None and store.message_store.plan.clean
            if count == 0:
                use(store)
            assert store.max_offset("T") == 320
            gone = weakref.ref(store)
            with pytest.warns(ResourceWarning, match=f"^{tmp_path}: {UNCLOSED}"):
                del store
            assert gone() is None
        pyrocketstore.open(tmp_path, **KINDS[kind]).close()
        assert descriptors(tmp_path) == []
        wait_until(lambda: threading.active_count() <= threads, "a thread was left")
        assert not any(engine.root == str(tmp_path) for engine in OPEN_STORES)
    finally:
        gc.enable()


def test_a_store_dropped_in_a_cycle_can_be_opened_after_its_collection(tmp_path: Path) -> None:
    class Owner:
        store: Store
        self: Owner

    owner = Owner()
    owner.store, owner.self = pyrocketstore.open(tmp_path, **SIZES), owner
    owner.store.put("T", b"x")
    del owner
    with pytest.warns(ResourceWarning, match=UNCLOSED):
        gc.collect()
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert [m.body for m in store.read("T")] == [b"x"]
        assert store.message_store.plan is not None and store.message_store.plan.clean


@pytest.mark.parametrize("started", [True, False])
def test_a_dropped_message_store_can_be_opened_at_once(tmp_path: Path, started: bool) -> None:
    config = MessageStoreConfig().at_root(str(tmp_path)).replace(**SYNC_SIZES)
    futures: list[Any] = []
    for _ in range(3):
        store = DefaultMessageStore(config)
        store.load()
        if started:
            store.start()
            message = MessageExtBrokerInner("T", b"x", 0)
            futures += [store.async_put_message(message) for _ in range(20)]
        with pytest.warns(ResourceWarning, match=UNCLOSED):
            del store
    with pyrocketstore.open(tmp_path, **SYNC_SIZES) as again:
        assert again.max_offset("T") == len(futures)
        assert {future.result(20).status_code for future in futures} <= {0}


def test_an_attribute_of_a_message_store_keeps_no_store_open(tmp_path: Path) -> None:
    """Services refer to the engine, which does not have the attributes that a caller sets."""
    store: Any = DefaultMessageStore(MessageStoreConfig().at_root(str(tmp_path)).replace(**SIZES))
    store.load()
    store.start()
    store.put_message(MessageExtBrokerInner("T", b"x", 0))
    store.me = store
    with pytest.warns(ResourceWarning, match=UNCLOSED):
        del store
        gc.collect()
    with pyrocketstore.open(tmp_path, **SIZES) as again:
        assert again.max_offset("T") == 1


def test_a_read_only_store_that_is_dropped_lets_go(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("T", b"x")
    store = pyrocketstore.open(tmp_path, read_only=True)
    assert len(list(store.read("T"))) == 1
    with pytest.warns(ResourceWarning, match=UNCLOSED):
        del store
    wait_until(lambda: not descriptors(tmp_path), "something was kept")


def test_what_was_never_loaded_or_was_closed_is_dropped_silently(tmp_path: Path) -> None:
    config = MessageStoreConfig().at_root(str(tmp_path)).replace(**SIZES)
    store = DefaultMessageStore(config)
    del store
    closed = pyrocketstore.open(tmp_path, **SIZES)
    closed.close()
    gone = weakref.ref(closed)
    del closed
    assert gone() is None


def test_iterators_and_coroutines_keep_a_store_open(tmp_path: Path) -> None:
    store = pyrocketstore.open(tmp_path, **SIZES)
    store.put_many("T", [b"%d" % i for i in range(2000)])
    iterator = store.read("T")
    put = store.aput("T", b"last")
    del store
    assert len(list(iterator)) == 2000
    assert asyncio.run(put).queue_offset == 2000  # type: ignore[arg-type]
    with pytest.raises(StoreStateError, match="already open by this process"):
        pyrocketstore.open(tmp_path, **SIZES)
    with pytest.warns(ResourceWarning, match=UNCLOSED):
        del put, iterator
        gc.collect()
    with pyrocketstore.open(tmp_path, **SIZES) as again:
        assert again.max_offset("T") == 2001


@pytest.mark.slow
@pytest.mark.parametrize("call", ["msync", "fdatasync", "fallocate"])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_errors_that_a_store_remembers_do_not_keep_it(
    tmp_path: Path, call: str, flush: str
) -> None:
    """An exception refers to the frames that it came through, and those to the store."""
    env = Env()
    store = pyrocketstore.open(tmp_path, env=env, **{**SIZES, "flush_disk_type": flush})
    store.put("T", b"x", keys="k")
    with failing(env, call, errno.EIO):
        for count in range(3):
            try:
                if count == 1:
                    store.put_many("T", [b"y" * 30000] * 8)
                else:
                    store.flush()
            except StoreError:
                continue
    for _ in range(2):
        try:
            store.flush()
            store.put("T", b"z")
        except StoreError:
            continue
    gone = weakref.ref(store)
    with pytest.warns(ResourceWarning, match=UNCLOSED):
        del store
        gc.collect()
    assert gone() is None
    with pyrocketstore.open(tmp_path, **SIZES) as again:
        assert next(again.read("T")).body == b"x"


def test_an_opening_waits_for_the_close_of_a_dropped_store(tmp_path: Path) -> None:
    env, gate = Env(), Gate()
    store = pyrocketstore.open(tmp_path, env=env, **SIZES)
    store.put("T", b"x")
    opened: list[Store] = []
    with broken(env, "unlink", gate):
        gate.close()
        with pytest.warns(ResourceWarning, match=UNCLOSED):
            del store
        assert gate.held.acquire(timeout=20)
        opening = threading.Thread(target=lambda: opened.append(pyrocketstore.open(tmp_path)))
        opening.start()
        opening.join(0.2)
        assert opening.is_alive() and not opened
        gate.open()
        opening.join(20)
    with opened.pop() as again:
        assert again.message_store.plan is not None and again.message_store.plan.clean
        assert again.max_offset("T") == 1


def test_a_drop_takes_no_lock_and_waits_for_nobody(tmp_path: Path) -> None:
    """It may come in any thread, in the middle of anything, also in the store's own services."""
    store = pyrocketstore.open(tmp_path, **SYNC_SIZES)
    store.put("T", b"x")
    engine = store.message_store.engine
    held = [store]
    del store

    def drop() -> None:
        with engine.life_lock, engine.async_puts.order:
            held.clear()

    with pytest.warns(ResourceWarning, match=UNCLOSED):
        engine.stats_service.watch = drop
        wait_until(lambda: not held, "the service has not come to it")
        wait_until(lambda: engine.life.has_ended, "not closed")
    with pyrocketstore.open(tmp_path, **SYNC_SIZES) as again:
        assert again.max_offset("T") == 1


def test_without_a_thread_the_next_opening_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = pyrocketstore.open(tmp_path, **SIZES)
    store.put("T", b"x")

    def refuse(*arguments: object) -> int:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, pytest.warns(ResourceWarning, match=UNCLOSED):
        patch.setattr("_thread.start_new_thread", refuse)
        del store
    assert (tmp_path / "abort").exists()
    with pyrocketstore.open(tmp_path, **SIZES) as again:
        assert again.message_store.plan is not None and again.message_store.plan.clean
        assert again.max_offset("T") == 1


CHILD = """
import gc, os, sys, threading, warnings
import pyrocketstore
path = sys.argv[1]
sizes = dict(mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=2000,
             max_hash_slot_num=500, max_index_num=2000)
"""


def run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-W", "always", "-c", CHILD + code, str(path)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)


def test_a_store_dropped_last_of_all_is_closed_before_the_process_ends(tmp_path: Path) -> None:
    done = run(
        """
store = pyrocketstore.open(path, **sizes)
for i in range(2000):
    store.put("T", b"%d" % i * 9, keys=f"k{i}")
del store
""",
        tmp_path,
    )
    assert (done.returncode, done.stderr.count(UNCLOSED)) == (0, 1), done.stderr
    assert not (tmp_path / "abort").exists()
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert store.max_offset("T") == 2000


def test_a_forked_child_drops_its_copy_without_a_word(tmp_path: Path) -> None:
    done = run(
        """
store = pyrocketstore.open(path, **sizes)
store.put("T", b"x")
pid = os.fork()
if not pid:
    del store
    gc.collect()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert os.path.exists(path + "/abort")
store.put("T", b"y")
assert store.max_offset("T") == 2
store.close()
""",
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert not (tmp_path / "abort").exists()


def test_many_drops_in_many_threads(tmp_path: Path) -> None:
    """Each thread puts, drops and opens again; every message is there in the end."""
    end = time.monotonic() + 2
    counts = [0, 0, 0]

    def work(number: int) -> None:
        while time.monotonic() < end:
            store = pyrocketstore.open(tmp_path / str(number), **SIZES)
            for _ in range(5):
                store.put("T", b"x")
            counts[number] += 5
            del store

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(counts))]
    with pytest.warns(ResourceWarning, match=UNCLOSED):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    for number, count in enumerate(counts):
        with pyrocketstore.open(tmp_path / str(number), **SIZES) as store:
            assert store.max_offset("T") == count > 0


def test_a_store_whose_drop_was_interrupted_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler that raises where the drop is noticed: CPython drops what it raises."""

    def interrupted(self: object, gone: object) -> None:
        raise KeyboardInterrupt

    store = pyrocketstore.open(tmp_path)
    store.put("T", b"kept")
    with monkeypatch.context() as patch:
        patch.setattr(Closer, "__call__", interrupted)
        patch.setattr("sys.unraisablehook", lambda unraisable: None)
        del store
        gc.collect()
    with pyrocketstore.open(tmp_path) as store:
        assert [message.body for message in store.read("T")] == [b"kept"]
        assert store.message_store.plan is not None
        assert store.message_store.plan.clean


# ---- an opening that was interrupted -------------------------------------------------------------


class Interrupted(Exception):
    """The exception of the signal handler."""


class AbandonedOpening:
    """In place of `Planning.make_plan`: holds the first opening back, and sends the main thread
    two signals, the second one while it waits for the end of that opening."""

    def __init__(self, fails: bool) -> None:
        self.go_on = threading.Event()
        self.is_first, self.fails = True, fails
        self.plain = Planning.make_plan

    def make_plan(self, planning: Planning) -> RecoveryPlan:
        if self.is_first:
            self.is_first = False
            call = signal_shield._running[threading.get_ident()]
            os.kill(os.getpid(), signal.SIGUSR1)
            wait_until(lambda: call.abandoned, "the caller has not left")
            os.kill(os.getpid(), signal.SIGUSR1)
            assert self.go_on.wait(60)
            if self.fails:
                signal_shield.check_abandoned()
        return self.plain(planning)


@pytest.fixture(params=[True, False], ids=["ended early", "opened"])
def abandoned(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AbandonedOpening]:
    """An opening of the directory `store` whose caller has left it."""
    opening = AbandonedOpening(request.param)
    monkeypatch.setattr(Planning, "make_plan", lambda planning: opening.make_plan(planning))

    def interrupt(*_: object) -> None:
        raise Interrupted

    usual = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            pyrocketstore.open(tmp_path / "store", **SIZES)
    finally:
        signal.signal(signal.SIGUSR1, usual)
    yield opening
    opening.go_on.set()


def test_an_opening_waits_for_one_that_was_abandoned(
    tmp_path: Path, abandoned: AbandonedOpening
) -> None:
    threading.Timer(0.5, abandoned.go_on.set).start()
    with pyrocketstore.open(tmp_path / "store", **SIZES) as store:
        assert abandoned.go_on.is_set()
        assert store.put("T", b"x").status.name == "PUT_OK"


def test_an_opening_does_not_wait_for_ever(
    tmp_path: Path, abandoned: AbandonedOpening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_file, "GIVE_UP_SECONDS", 0.2)
    with pytest.raises(StoreStateError, match="already open by this process"):
        pyrocketstore.open(tmp_path / "store", **SIZES)
    abandoned.go_on.set()
    with pyrocketstore.open(tmp_path / "store", **SIZES) as store:
        assert store.put("T", b"x").status.name == "PUT_OK"
