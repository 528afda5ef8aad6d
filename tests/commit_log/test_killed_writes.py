"""Goal: a kill in the middle of a write to the log leaves whole records, in order, and no record
behind a gap. Method: a child process is killed before or by one of its pwrites, at the end of a
page, as the kernel ends a write of a killed process; records cross that page at each position, or
several pages at random positions. An opening that finds records behind a gap warns of them, and
warnings are errors of these tests."""

from __future__ import annotations

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


def dies_at(number: int) -> Callable[..., int]:
    """Return a pwrite that kills its process at the step `number`: before a call or at the end of a
    page within it."""
    steps = itertools.count()

    def pwrite(original: Callable[..., int], fd: int, data: int, size: int, position: int) -> int:
        done = 0
        while done < size:
            if next(steps) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            room = min(size - done, PAGE - (position + done) % PAGE)
            original(fd, data + done, room, position + done)
            done += room
        return size

    return pwrite


def put_and_die(
    root: Path, settings: dict[str, Any], first: bytes, bodies: list[bytes], step: int
) -> None:
    """Put a message with the body `first`, then `bodies` in one call, up to a step of a pwrite."""
    env = Env()
    store = pyrocketstore.open(root, env=env, **settings)
    store.put("t", first)
    store.flush()
    with broken(env, "pwrite", dies_at(step)):
        if len(bodies) > 1:
            keys = [f"key{number}" for number in range(len(bodies))]
            store.put_many("t", bodies, keys=keys)
        else:
            store.put("t", bodies[0], keys="first")
        store.flush()  # commits buffers


def settings_of(setting: str) -> dict[str, Any]:
    if setting == "SYNC_FLUSH":
        return dict(SYNC_SIZES)
    return {**SYNC_SIZES, "flush_disk_type": "ASYNC_FLUSH", setting: True}


def is_killed(
    root: Path, settings: dict[str, Any], first: bytes, bodies: list[bytes], step: int
) -> bool:
    """Return True if a child was killed, and check the store that it left."""
    child = os.fork()
    if child == 0:
        try:
            put_and_die(root, settings, first, bodies, step)
        finally:
            os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    with pyrocketstore.open(root, **settings) as store:
        found = [message.body for message in store.read("t")]
        assert found == [first, *bodies][: len(found)]
        assert len(found) > len(bodies) or (killed and found)
        assert store.verify().ok
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
    for turn in range(12):
        bodies = [rng.randbytes(rng.choice((0, 40, 700, 5000))) for _ in range(rng.randint(2, 24))]
        root = tmp_path / str(turn)
        killed += is_killed(root, settings_of(setting), b"x", bodies, rng.randint(0, 20))
    assert killed > 2
