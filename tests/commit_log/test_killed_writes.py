"""Goal: a kill in the middle of a write to the log leaves whole records or none.
Method: a child process is killed by its own pwrite at the end of a page, as the kernel ends a write
of a killed process; the record's bytes cross that page at each position."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.sizes import SYNC_SIZES

PAGE = 4096


def put_and_die(root: Path, settings: dict[str, object], fill: int, many: bool) -> None:
    """Put a record of `fill` bytes of body, then records that cross the end of the first page."""
    env = Env()
    armed: list[bool] = []

    def pwrite(original: Callable[..., int], fd: int, data: int, size: int, position: int) -> int:
        room = PAGE - position % PAGE
        if armed and size > room:
            original(fd, data, room, position)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(fd, data, size, position)

    store = pyrocketstore.open(root, env=env, **settings)  # type: ignore[arg-type]
    store.put("t", b"x" * fill)
    store.flush()
    with broken(env, "pwrite", pwrite):
        armed.append(True)
        if many:
            store.put_many("t", [b"y" * 40] * 3, keys=["first", "second", "third"])
        else:
            store.put("t", b"y" * 40, keys="first")
        store.flush()  # commits buffers


@pytest.mark.faults
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    "setting", ["SYNC_FLUSH", "write_without_mmap", "transient_store_pool_enable"]
)
def test_a_write_that_a_kill_cut_leaves_no_part_of_a_record(
    tmp_path: Path, setting: str, many: bool
) -> None:
    settings = {**SYNC_SIZES, "flush_disk_type": "ASYNC_FLUSH", setting: True}
    if setting == "SYNC_FLUSH":
        settings = dict(SYNC_SIZES)
    killed = 0
    for fill in range(PAGE - 340, PAGE - 100, 7):
        root = tmp_path / str(fill)
        child = os.fork()
        if child == 0:
            try:
                put_and_die(root, settings, fill, many)
            finally:
                os._exit(0)
        status = os.waitpid(child, 0)[1]
        killed += os.WIFSIGNALED(status)
        with pyrocketstore.open(root, **settings) as store:  # type: ignore[arg-type]
            bodies = [message.body for message in store.read("t")]
            added = 0 if os.WIFSIGNALED(status) else 3 if many else 1
            assert bodies == [b"x" * fill] + [b"y" * 40] * added
            assert store.verify().ok
    assert killed > 10
