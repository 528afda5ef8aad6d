"""Goal: the wall clock may be set to any time at any moment; intervals, waits and measurements of
the store continue. Method: stores that use a wall clock of the test."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.message_store import loading
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.gates import Gate, wait_until

HOUR = 3_600_000
JUMPS = {"back an hour": -HOUR, "forward a day": 24 * HOUR, "back ten years": -87_600 * HOUR}
QUICK: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 20,
    "max_index_num": 50,
    "flush_interval_commit_log": 20,
    "flush_commit_log_thorough_interval": 100,
    "commit_interval_commit_log": 20,
    "commit_commit_log_thorough_interval": 50,
    "flush_interval_consume_queue": 20,
    "flush_consume_queue_thorough_interval": 100,
}
KINDS: dict[str, dict[str, Any]] = {
    "async": {},
    "sync": {"flush_disk_type": "SYNC_FLUSH"},
    "pool": {"transient_store_pool_enable": True, "transient_store_pool_size": 3},
}


class Clock:
    """A wall clock that tests set."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self.jumps_at_random: random.Random | None = None

    def __call__(self, original: Any) -> int:
        if self.jumps_at_random is not None and self.jumps_at_random.random() < 0.05:
            self.ahead_ms = self.jumps_at_random.choice((0, *JUMPS.values(), 1, -1, 5000, -5000))
        return int(original()) + self.ahead_ms


@contextlib.contextmanager
def opened(path: Path, clock: Clock, **settings: Any) -> Iterator[pyrocketstore.Store]:
    env = Env()
    with (
        broken(env, "now_ms", clock),
        pyrocketstore.open(path, env=env, **(QUICK | settings)) as store,
    ):
        yield store


def checkpoint_of(path: Path) -> bytes:
    return (path / "checkpoint").read_bytes()[:16]


def all_is_forced(store: pyrocketstore.Store) -> bool:
    low = store.message_store
    end = low.commit_log.get_appended_offset()
    forced = low.services.log_flush.flushed_where
    queue = low.get_consume_queue("T", 0)
    return (
        end == low.get_max_phy_offset() == forced
        and queue is not None
        and queue.mapped_file_queue.flushed_where == 20 * queue.get_max_offset_in_queue()
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("jump", JUMPS)
def test_commits_and_flushes_continue(tmp_path: Path, kind: str, jump: str) -> None:
    clock = Clock()
    with opened(tmp_path, clock, **KINDS[kind]) as store:
        store.put("T", b"before")
        wait_until(lambda: all_is_forced(store), "the first put")
        clock.ahead_ms = JUMPS[jump]
        seen = checkpoint_of(tmp_path)
        store.put("T", b"after")
        wait_until(lambda: all_is_forced(store), "a put after the clock was set")
        wait_until(lambda: checkpoint_of(tmp_path) != seen, "the checkpoint")
        clock.ahead_ms = 0
        store.put("T", b"last")
        wait_until(lambda: all_is_forced(store), "a put after the clock was set right")
        stats = store.stats()
        assert 0 <= stats.runtime_ms < HOUR
        assert 0 <= stats.put_message_entire_time_max < HOUR


@pytest.mark.parametrize("jump", JUMPS)
def test_a_put_that_hangs_is_given_up(tmp_path: Path, jump: str, gate: Gate) -> None:
    """A wait for the put lock ends in time, also if the clock is set while the lock is held."""
    clock = Clock()
    env = Env()
    with (
        ThreadPoolExecutor(2) as pool,
        broken(env, "now_ms", clock),
        pyrocketstore.open(tmp_path, env=env, os_page_cache_busy_time_out_mills=300,
                           **QUICK) as store,
    ):  # fmt: skip
        low = store.message_store
        store.put("T", b"first")
        file = low.commit_log.mapped_file_queue.mapped_files[-1]
        with broken(env, "fallocate", gate), broken(env, "open", gate):
            file.wrote = file.wrote  # releases the memory allocated ahead
            gate.close()
            holder = pool.submit(store.put, "T", b"holder")
            wait_until(lambda: low.commit_log.core.lock_hold()[0] > 0, "nobody holds the lock")
            clock.ahead_ms = JUMPS[jump]
            began = time.monotonic()
            assert not low.is_os_page_cache_busy()
            waiter = pool.submit(store.put, "T", b"waiter")
            with pytest.raises(pyrocketstore.StoreError, match="OS_PAGECACHE_BUSY"):
                waiter.result(20)
            assert 0.2 < time.monotonic() - began < 10
            assert low.is_os_page_cache_busy()
            assert 300 <= low.lock_time_mills() < 20_000
            gate.open()
            holder.result(20)


def test_cleaning_and_disk_checks_keep_their_rhythm(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, clock, file_reserved_time=72) as store:
        services = store.message_store.services
        resource = services.clean_resource
        assert resource is not None
        rounds = []
        resource.do_once = lambda: rounds.append(clock.ahead_ms)  # type: ignore[method-assign]
        resource._interval_ns = 5_000_000
        resource._next_ns = 0
        resource.wakeup()
        for jump in JUMPS.values():
            clock.ahead_ms = jump
            wait_until(lambda: rounds.count(clock.ahead_ms) > 2, "the cleaning")


@pytest.mark.parametrize("kind", KINDS)
def test_a_clock_that_jumps_at_random(tmp_path: Path, kind: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    clock = Clock()
    bodies = []
    for session in range(2):
        with opened(tmp_path, clock, **KINDS[kind]) as store:
            clock.jumps_at_random = random.Random(f"{seed} {session}")
            for i in range(300):
                bodies.append(b"%d.%d" % (session, i) * 30)
                store.put("T", bodies[-1], keys=f"k{session}-{i}")
            wait_until(lambda: all_is_forced(store), "the puts")
            clock.jumps_at_random = None
            assert [m.body for m in store.read("T")] == bodies
            for i in range(0, 300, 7):
                assert len(list(store.query("T", f"k{session}-{i}"))) == 1
            assert store.verify().ok


# ---- stored times that go back -------------------------------------------------------------------

SLOW = {
    "flush_interval_commit_log": 600_000,
    "flush_commit_log_timed": True,
    "flush_interval_consume_queue": 600_000,
    "max_index_num": 4000,
}


def first_store_time(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[56:64], "big")


def limit_of(path: Path) -> int:
    physic, logics = struct.unpack(">qq", checkpoint_of(path))
    return int(min(physic, logics)) - 3000


@pytest.mark.parametrize("jump", [-HOUR, -20_000, -87_600 * HOUR])
@pytest.mark.parametrize("many", [False, True])
def test_recovery_does_not_begin_behind_what_was_flushed(
    tmp_path: Path, jump: int, many: bool
) -> None:
    """The clock is set back behind the checkpoint.

    The power is cut while a later, unflushed page of the log is not on the device.
    """
    clock = Clock()
    root, image = tmp_path / "store", tmp_path / "image"
    bodies = []

    def put(count: int) -> None:
        new = [b"%d " % (len(bodies) + i) * 300 for i in range(count)]
        bodies.extend(new)
        if many:
            store.put_many("T", new)
        else:
            for body in new:
                store.put("T", body)

    with opened(root, clock, **SLOW) as store:
        put(5)
        store.flush()
        forced = store.message_store.services.log_flush.flushed_where
        clock.ahead_ms = jump
        put(400)
        store.wait_dispatched()
        files = sorted((root / "commitlog").iterdir())
        unforced = [f for f in files if int(f.name) > forced and f.read_bytes()[:1000].strip(b"\0")]
        assert len(unforced) > 3
        assert all(first_store_time(f) > limit_of(root) for f in unforced)
        # The service that flushes queues does not claim too much either.
        store.message_store.services.flush_queue_service.do_flush(True)
        assert all(first_store_time(f) > limit_of(root) for f in unforced)
        shutil.copytree(root, image, ignore=lambda *_: {"lock"})
        store.flush()
    lost = image / "commitlog" / unforced[1].name
    lost.write_bytes(bytes(lost.stat().st_size))
    with (
        pytest.warns(pyrocketstore.StoreWarning),
        pyrocketstore.open(image, **QUICK | SLOW) as store,
    ):
        found = [m.body for m in store.read("T")]
        assert 5 < len(found) < 300 and found == bodies[: len(found)]
        assert store.message_store.get_max_phy_offset() == int(lost.name)
        assert store.put("T", b"next").queue_offset == len(found)


def test_a_clock_that_is_right_costs_no_write_of_the_checkpoint(tmp_path: Path) -> None:
    env = Env()
    with pyrocketstore.open(tmp_path, env=env, **QUICK | SLOW) as store:
        store.put("T", b"x")
        store.flush()
        seen = checkpoint_of(tmp_path)
        for _ in range(200):
            store.put("T", bytes(2000))
        assert checkpoint_of(tmp_path) == seen


def test_an_index_file_of_a_clock_that_went_back_is_not_believed(tmp_path: Path) -> None:
    """An index file ends before the time up to which files are flushed, and is not flushed."""
    checkpoint = StoreCheckpoint(Env(), str(tmp_path / "checkpoint"))
    checkpoint.index_msg_timestamp = 2000
    assert checkpoint.durable_index_files([(1000, 10), (2000, 10), (1500, 10)]) == 2
    assert checkpoint.durable_index_files([(1000, 10), (2000, 10), (2500, 10)]) == 2
    assert checkpoint.durable_index_files([(1000, 10), (1900, 10)]) == 2


def test_index_files_are_dropped_from_the_newest_on(tmp_path: Path) -> None:
    """A crash during the flush leaves the oldest files, never a later file alone."""
    settings = {"mapped_file_size_commit_log": 65536, "max_hash_slot_num": 10, "max_index_num": 20}
    with pyrocketstore.open(tmp_path, **settings) as store:
        for number in range(70):
            store.put("t", b"x", keys=f"k{number}")
    before = sorted(os.listdir(tmp_path / "index"))
    assert len(before) > 2
    (tmp_path / "abort").touch()
    (tmp_path / "checkpoint").write_bytes(bytes(4096))
    env, removed = Env(), []

    def unlink(original: Callable[..., int], path: bytes) -> int:
        if b"/index/" not in path:
            return original(path)
        removed.append(os.path.basename(os.fsdecode(path)))
        return -errno.EIO if len(removed) == 2 else original(path)

    with broken(env, "unlink", unlink), pytest.raises(pyrocketstore.StoreIOError):
        pyrocketstore.open(tmp_path, env=env, **settings)
    assert removed == before[:-3:-1]
    assert sorted(os.listdir(tmp_path / "index")) == before[:-1]
    with pyrocketstore.open(tmp_path, **settings) as store:
        assert [m.body for m in store.query("t", "k0")] == [b"x"]
        assert store.verify().ok


def test_the_checkpoint_covers_no_index_file_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery puts the keys again, from before the clock step up to the last ms of the lost file.

    A power cut then removes a part of the new file.
    """
    path, crashed = tmp_path / "store", tmp_path / "crashed"
    times = [HOUR, *[0] * 59]
    with stopped_clock(path, times) as store:
        for number in range(60):
            store.put("T", b"x" * 50, keys=f"k{number}")
            times.pop(0)
        store.flush()
    assert struct.unpack_from(">q", (path / "checkpoint").read_bytes(), 16)[0] > 0
    shutil.rmtree(path / "index")
    (path / "abort").touch()

    def copy(*arguments: Any, **settings: Any) -> list[str]:
        """The moment just after the replay."""
        shutil.copytree(path, crashed)
        return []

    monkeypatch.setattr(loading, "unforced_directories", copy)
    with stopped_clock(path, [0], max_index_num=500):
        monkeypatch.undo()
    (index,) = (crashed / "index").iterdir()
    with index.open("r+b") as file:
        file.seek(40 + 20 * 4 + 30 * 20)
        file.write(bytes(20 * 20))
    with stopped_clock(crashed, [0], max_index_num=500) as store:
        assert [n for n in range(60) if not store.query("T", f"k{n}")] == []


@contextlib.contextmanager
def stopped_clock(path: Path, times: list[int], **settings: Any) -> Iterator[pyrocketstore.Store]:
    """Open a store whose clock shows the first of `times` (ms)."""
    env = Env()
    with (
        broken(env, "now_ms", lambda original: 1_700_000_000_000 + (times or [0])[0]),
        pyrocketstore.open(path, env=env, **(QUICK | settings)) as store,
    ):
        yield store
