"""Goal: a failed load() releases everything it took, and a close happens once, from any thread.
Method: fail loads in many ways, and count threads, descriptors and mappings; delay one close while
another runs and a new owner opens; close at exit when no thread can be started."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import DefaultMessageStore, MessageStoreConfig, StoreError
from pyrocketstore.recovery.store_files import StoreFiles
from pyrocketstore.system.env import Env
from support.broken_env import PROTOTYPES, broken
from support.gates import Gate, wait_until
from support.sizes import SIZES

COUNT = 20
SMALL_INDEX = {**SIZES, "max_hash_slot_num": 100, "max_index_num": 400}
CHILD = """
import os, sys, pyrocketstore
store = pyrocketstore.open(sys.argv[1], mapped_file_size_commit_log=1 << 16,
    mapped_file_size_consume_queue=2000, max_hash_slot_num=100, max_index_num=400)
for i in range(2000):
    store.put("T", b"x", keys="k%d" % i)
store.wait_dispatched()
os._exit(9)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose process was killed; its replay fills several index files."""
    path = tmp_path_factory.mktemp("killed") / "store"
    subprocess.run([sys.executable, "-c", CHILD, str(path)], check=False)
    for name in os.listdir(path / "index"):
        os.remove(path / "index" / name)
    os.remove(path / "checkpoint")
    return path


def held(path: Path) -> tuple[list[str], int, list[str]]:
    """Threads, descriptors, and mappings of files below a path."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return (
        sorted(thread.name for thread in threading.enumerate()),
        len(os.listdir("/proc/self/fd")),
        [line for line in lines if str(path) in line],
    )


def is_left(
    now: tuple[list[str], int, list[str]], before: tuple[list[str], int, list[str]]
) -> bool:
    """Threads and mappings as before, and no more descriptors: those of earlier tests may go."""
    return (now[0], now[2]) == (before[0], before[2]) and now[1] <= before[1]


def fail_often(path: Path, open_store: Callable[[], object]) -> None:
    """Nothing may be left to a collection either."""
    gc.collect()
    gc.disable()
    try:
        before = held(path)
        for _ in range(COUNT):
            with pytest.raises((StoreError, KeyboardInterrupt)):
                open_store()
        wait_until(lambda: is_left(held(path), before), f"{held(path)} instead of {before}")
    finally:
        gc.enable()


def damage_queue(path: Path) -> None:
    file = path / "consumequeue/T/0" / ("0" * 20)
    file.unlink(missing_ok=True)
    file.mkdir()


def damage_log_size(path: Path) -> None:
    os.truncate(path / "commitlog" / ("0" * 20), 65000)


def damage_checkpoint(path: Path) -> None:
    (path / "checkpoint").unlink(missing_ok=True)
    (path / "checkpoint").mkdir()


def damage_topics(path: Path) -> None:
    (path / "config").mkdir(exist_ok=True)
    (path / "config/topics.json").write_text("{")
    shutil.rmtree(path / "config")
    (path / "config").mkdir()
    os.mkfifo(path / "config/topics.json")


DAMAGES = [damage_queue, damage_log_size, damage_checkpoint, damage_topics]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_damaged_store_leaves_nothing_behind(
    tmp_path: Path, killed: Path, damage: Callable[[Path], None], read_only: bool
) -> None:
    if read_only and damage in (damage_topics, damage_log_size):
        pytest.skip("opens")
    path = shutil.copytree(killed, tmp_path / "store")
    damage(path)
    fail_often(path, lambda: pyrocketstore.open(path, read_only=read_only, **SMALL_INDEX))


def test_a_wrong_geometry_leaves_nothing_behind(tmp_path: Path, killed: Path) -> None:
    path = shutil.copytree(killed, tmp_path / "store")
    pyrocketstore.open(path, **SMALL_INDEX).close()
    wrong = {**SMALL_INDEX, "max_hash_slot_num": 101}
    fail_often(path, lambda: pyrocketstore.open(path, **wrong))
    fail_often(path, lambda: pyrocketstore.open(path, mapped_file_size_commit_log=1 << 17))


def test_a_missing_directory_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "store"
    fail_often(path, lambda: pyrocketstore.open(path, read_only=True))


@pytest.mark.slow
def test_a_held_lock_leaves_nothing_behind(tmp_path: Path, killed: Path) -> None:
    path = shutil.copytree(killed, tmp_path / "store")
    with pyrocketstore.open(path, **SMALL_INDEX):
        fail_often(path, lambda: pyrocketstore.open(path, **SMALL_INDEX))
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fail_often(path, lambda: pyrocketstore.open(path, **SMALL_INDEX))
    finally:
        os.close(fd)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, StoreError])
def test_a_load_that_fails_behind_the_replay_leaves_nothing_behind(
    tmp_path: Path, killed: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """The replay has filled index files, which a thread forces."""
    path = shutil.copytree(killed, tmp_path / "store")

    def fail(self: StoreFiles) -> None:
        raise StoreError if error is StoreError else KeyboardInterrupt from error()

    with monkeypatch.context() as patch:
        patch.setattr(StoreFiles, "recover_topic_queue_table", fail)
        fail_often(path, lambda: pyrocketstore.open(path, **SMALL_INDEX))
    with pyrocketstore.open(path, **SMALL_INDEX) as store:
        assert len(list(store.read("T"))) == 2000
        assert len(store.query("T", "k7")) == 1
        assert store.verify().ok


#: A store asks for these while it is loaded, started and closed.
CALLS = sorted(set(PROTOTYPES) - {"now_ms", "monotonic_ns", "close", "munmap", "munlock"})


def drawn_failures(seed: int) -> Iterator[tuple[str, int]]:
    draw = random.Random(seed)
    for _ in range(COUNT):
        yield draw.choice(CALLS), draw.randrange(12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_call_that_fails_at_random_leaves_nothing_behind(
    tmp_path: Path, killed: Path, seed: int
) -> None:
    """Whether the opening fails by it or not."""
    gc.collect()
    gc.disable()
    try:
        before = held(tmp_path)
        failures = 0
        for number, (name, turn) in enumerate(drawn_failures(seed)):
            path = shutil.copytree(killed, tmp_path / f"store{number}")
            env, calls = Env(), iter(range(1 << 30))

            def fail(original: Any, *arguments: Any, calls: Any = calls, turn: int = turn) -> int:
                return -errno.EIO if next(calls) == turn else int(original(*arguments))

            with broken(env, name, fail):
                try:
                    pyrocketstore.open(path, env=env, **SMALL_INDEX).close()
                except StoreError:
                    failures += 1
            wait_until(lambda: held(tmp_path) == before, f"{name} {turn}: {held(tmp_path)}")
            shutil.rmtree(path)
        assert failures > 2
    finally:
        gc.enable()


# ---- close by two threads ---------------------------------------------------------------------


@pytest.mark.parametrize("call", ["unlink", "unlock", "close"])
def test_the_second_close_touches_nothing_of_the_next_owner(tmp_path: Path, call: str) -> None:
    """The first is held back at each of its last steps; the second waits for it."""
    config = MessageStoreConfig().at_root(str(tmp_path)).replace(**SIZES)
    env, gate = Env(), Gate()
    store = DefaultMessageStore(config, env=env)
    store.load()
    store.start()
    errors: list[BaseException] = []

    def close() -> None:
        try:
            store.shutdown()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=close) for _ in range(3)]
    with broken(env, call, gate):
        gate.close()
        threads[0].start()
        assert gate.held.acquire(timeout=20)
        for thread in threads[1:]:
            thread.start()
            thread.join(0.1)
            assert thread.is_alive()
        gate.open()
        for thread in threads:
            thread.join(20)
    assert not errors
    with pyrocketstore.open(tmp_path, **SIZES) as again:
        again.put("T", b"x")
        store.shutdown()
        store.store_failure.fail(StoreError("late"))
        assert (tmp_path / "abort").read_bytes() == b""
        with pytest.raises(StoreError, match="already open"):
            pyrocketstore.open(tmp_path, **SIZES)


@pytest.mark.parametrize("step", ["queue_table", "index_service", "commit_log.mapped_file_queue"])
def test_a_close_that_fails_half_way_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A second call does not continue the first one: another process may own the directory."""
    store = pyrocketstore.open(tmp_path, **SIZES)
    store.put("T", b"x")
    part: Any = store.message_store
    for name in step.split("."):
        part = getattr(part, name)
    method = "close" if step == "queue_table" else "shutdown"
    real = getattr(part, method)

    def fail(*arguments: Any) -> None:
        real(*arguments)
        raise StoreError("half way")

    monkeypatch.setattr(part, method, fail)
    with pytest.raises(StoreError, match="half way"):
        store.close()
    monkeypatch.undo()
    with pyrocketstore.open(tmp_path, **SIZES) as again:
        store.message_store.shutdown()
        store.close()
        assert (tmp_path / "abort").exists()
        assert again.max_offset("T") == 1
    assert not (tmp_path / "abort").exists()


@pytest.mark.slow
def test_closing_races_with_opening(tmp_path: Path) -> None:
    """Two threads close while a third opens and puts: `abort` is there while a store is open."""
    draw = random.Random(7)
    for _ in range(40):
        store = pyrocketstore.open(tmp_path, **SIZES)
        store.put("T", b"x")
        closers = [threading.Thread(target=store.close) for _ in range(2)]
        for closer in draw.sample(closers, 2):
            closer.start()
        while True:
            try:
                again = pyrocketstore.open(tmp_path, **SIZES)
                break
            except StoreError as error:
                assert "already open" in str(error)
        for closer in closers:
            closer.join(20)
        assert (tmp_path / "abort").exists()
        assert again.message_store.plan is not None and again.message_store.plan.clean
        again.close()
    with pyrocketstore.open(tmp_path, **SIZES) as last:
        assert last.max_offset("T") == 40


# ---- at exit ---------------------------------------------------------------------------------

AT_EXIT = """
import asyncio, atexit, sys, threading, _thread
import pyrocketstore
from pyrocketstore import MessageExtBrokerInner
def refuse(*arguments, **options):
    refused.append(1)
    raise RuntimeError("can't create new thread at interpreter shutdown")
refused = []
def no_more_threads():
    _thread.start_new_thread = threading._start_new_thread = refuse
    threading._start_joinable_thread = refuse
atexit.register(lambda: print(len(refused), all(f.done() for f in futures)))
stores = [pyrocketstore.open(f"{sys.argv[1]}/{flush}", flush_disk_type=flush + "_FLUSH",
        mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=2000,
        max_hash_slot_num=100, max_index_num=200) for flush in ("SYNC", "ASYNC")]
futures = []
def last_puts():
    for store in stores:
        engine = store.message_store
        with engine.dispatch_paused():
            for i in range(1000):
                futures.append(engine.async_put_message(MessageExtBrokerInner(
                    "T", b"x", 0, properties={"KEYS": "k%d" % i},
                    properties_string="KEYS\\x01k%d\\x02" % i)))
atexit.unregister(pyrocketstore._close_at_exit)
atexit.register(pyrocketstore._close_at_exit)
atexit.register(no_more_threads)
atexit.register(last_puts)
"""


@pytest.mark.parametrize("end", ["", "del stores[:]"])
def test_a_close_at_exit_needs_no_new_thread(tmp_path: Path, end: str) -> None:
    """Python 3.12 and later give none in an atexit handler; index files roll in this one."""
    code = AT_EXIT + (f"atexit.register(lambda: (last_puts(), {end!r} and stores.clear()))\n")
    code = code.replace("atexit.register(last_puts)\n", "")
    words = [sys.executable, "-W", "always", "-c", code, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stderr.count("the store was not closed") == 2, done.stderr
    assert "that failed" not in done.stderr, done.stderr
    refused, all_done = done.stdout.split()
    assert int(refused) > 0 or end
    assert all_done == "True"
    for flush in ("SYNC", "ASYNC"):
        path = tmp_path / flush
        assert not (path / "abort").exists()
        with pyrocketstore.open(
            path, **{**SIZES, "max_hash_slot_num": 100, "max_index_num": 200}
        ) as store:
            assert store.message_store.plan is not None and store.message_store.plan.clean
            assert store.max_offset("T") == 1000
            assert len(store.query("T", "k999")) == 1
            assert store.verify().ok


def damage(path: Path) -> None:
    with pyrocketstore.open(path, **SIZES) as store:
        at = [store.put("t", bytes(100)).phy_offset for _ in range(10)][4]
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(at + 90)
        file.write(b"zz")


def test_an_open_that_ends_in_a_warning_gives_the_directory_free(tmp_path: Path) -> None:
    """Goal: a warning that is an error leaves no store open behind it."""
    damage(tmp_path)
    with pytest.raises(pyrocketstore.StoreWarning):
        pyrocketstore.open(tmp_path, **SIZES)
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        assert store.max_offset("t") == 4
