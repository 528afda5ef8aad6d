"""Goal: a kill in the middle of a write to the log leaves whole records, in order, and no record
behind a gap. Method: a child process is killed before or by one of its pwrites, at the end of a
page, as the kernel ends a write of a killed process; records cross that page at each position, or
several pages at random positions. Other children are killed while they clear or repeat a write that
failed, or by SIGBUS when they store to a page of a mapping whose file was cut. An opening that
finds records behind a gap warns of them, and warnings are errors of these tests."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import functools
import itertools
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.seed import SEED
from support.sizes import SYNC_SIZES

PAGE = 4096


def dies_at(number: int, fails_at: int = -1) -> Callable[..., int]:
    """Return a pwrite that kills its process at the step `number`: before a call or at the end of a
    page within it. At the step `fails_at` the call ends, and the next one fails."""
    steps = itertools.count()
    is_failing = False

    def pwrite(original: Callable[..., int], fd: int, data: int, size: int, position: int) -> int:
        nonlocal is_failing
        done = 0
        while done < size:
            step = next(steps)
            if step == number:
                os.kill(os.getpid(), signal.SIGKILL)
            if is_failing:
                is_failing = False
                return -errno.ENOSPC
            if step == fails_at:
                is_failing = True
                if done:
                    return done
                continue
            room = min(size - done, PAGE - (position + done) % PAGE)
            original(fd, data + done, room, position + done)
            done += room
        return size

    return pwrite


def put_and_die(
    root: Path, settings: dict[str, Any], first: bytes, bodies: list[bytes], step: int,
    fails_at: int = -1,
) -> None:  # fmt: skip
    """Put a message with the body `first`, then `bodies` in one call, up to a step of a pwrite."""
    env = Env()
    store = pyrocketstore.open(root, env=env, **settings)
    store.put("t", first)
    store.flush()
    failure = pyrocketstore.StoreError if fails_at >= 0 else ()
    with broken(env, "pwrite", dies_at(step, fails_at)), contextlib.suppress(failure):
        if len(bodies) > 1:
            keys = [f"key{number}" for number in range(len(bodies))]
            store.put_many("t", bodies, keys=keys)
        else:
            store.put("t", bodies[0], keys="first")
        for _ in range(2):  # commits buffers, and tries a commit that failed again
            with contextlib.suppress(failure):
                store.flush()


def settings_of(setting: str) -> dict[str, Any]:
    if setting == "SYNC_FLUSH":
        return dict(SYNC_SIZES)
    return {**SYNC_SIZES, "flush_disk_type": "ASYNC_FLUSH", setting: True}


def killed_in(call: Callable[[], None]) -> bool:
    """Make a call in a child process; return True if a signal has killed the child."""
    child = os.fork()
    if child == 0:
        try:
            call()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def bodies_of(root: Path, settings: dict[str, Any], bodies: list[bytes]) -> list[bytes]:
    """Return the bodies of the store that a child left; require that they are the first ones."""
    with pyrocketstore.open(root, **settings) as store:
        found = [message.body for message in store.read("t")]
        assert found == bodies[: len(found)]
        assert store.verify().ok
    return found


def is_killed(
    root: Path, settings: dict[str, Any], first: bytes, bodies: list[bytes], step: int
) -> bool:
    """Return True if a child was killed, and check the store that it left."""
    killed = killed_in(lambda: put_and_die(root, settings, first, bodies, step))
    found = bodies_of(root, settings, [first, *bodies])
    assert len(found) > len(bodies) or (killed and found)
    return killed


SETTINGS = pytest.mark.parametrize(
    "setting", ["SYNC_FLUSH", "write_without_mmap", "transient_store_pool_enable"]
)


@pytest.mark.faults
@SETTINGS
@pytest.mark.parametrize("many", [False, True])
def test_a_write_that_a_kill_cut_leaves_no_part_of_a_record(
    tmp_path: Path, setting: str, many: bool
) -> None:
    bodies = [b"y" * 40] * (3 if many else 1)
    killed = 0
    for fill in range(PAGE - 340, PAGE - 100, 7):
        root = tmp_path / str(fill)
        killed += is_killed(root, settings_of(setting), b"x" * fill, bodies, 1)
    assert killed > 10


@pytest.mark.faults
@SETTINGS
def test_a_killed_write_of_many_pages_leaves_the_first_records(
    tmp_path: Path, setting: str
) -> None:
    rng = random.Random(f"{SEED} killed writes {setting}")
    killed = 0
    turn = 0
    while turn < 12 or (killed < 3 and turn < 100):
        bodies = [rng.randbytes(rng.choice((0, 40, 700, 5000))) for _ in range(rng.randint(2, 24))]
        root = tmp_path / str(turn)
        killed += is_killed(root, settings_of(setting), b"x", bodies, rng.randint(0, 20))
        turn += 1
    assert killed > 2


@pytest.mark.faults
@SETTINGS
def test_a_kill_after_a_failed_write_leaves_the_first_records(tmp_path: Path, setting: str) -> None:
    rng = random.Random(f"{SEED} failed writes {setting}")
    settings = settings_of(setting)
    killed = 0
    for turn in range(30):
        bodies = [rng.randbytes(rng.choice((40, 700, 1000))) for _ in range(rng.randint(8, 40))]
        root = tmp_path / str(turn)
        pages = sum(map(len, bodies)) // PAGE + 1
        fails_at = rng.randint(0, 2 * pages)
        step = fails_at + rng.randint(2, pages + 2)
        life = functools.partial(put_and_die, root, settings, b"x", bodies, step, fails_at)
        killed += killed_in(life)
        assert bodies_of(root, settings, [b"x", *bodies])
    assert killed > 4


@pytest.mark.faults
@pytest.mark.parametrize("batch", [False, True])
def test_a_kill_between_stores_to_a_mapping_leaves_the_first_records(
    tmp_path: Path, batch: bool
) -> None:
    rng = random.Random(f"{SEED} stores {batch}")
    settings = {**SYNC_SIZES, "flush_disk_type": "ASYNC_FLUSH"}
    partly = 0
    for turn in range(20):
        bodies = [rng.randbytes(rng.choice((0, 40, 700, 5000))) for _ in range(rng.randint(4, 24))]
        root = tmp_path / str(turn)
        log = root / "commitlog" / f"{0:020}"
        size = PAGE * rng.randint(1, 6)

        def put() -> None:
            faulthandler.disable()
            store = pyrocketstore.open(root, **settings)  # noqa: B023
            store.put("t", b"x")
            store.flush()
            os.truncate(log, size)  # noqa: B023
            (store.put_batch if batch else store.put_many)("t", bodies)  # noqa: B023

        killed = killed_in(put)
        os.truncate(log, settings["mapped_file_size_commit_log"])
        found = bodies_of(root, settings, [b"x", *bodies])
        assert found
        partly += killed and len(found) > 1
    assert partly > 3
