"""The calls of an opening of a store that is open already, or that a kill left."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from journal import SETTINGS
from pyrocketstore import StoreStateError
from pyrocketstore.system.env import Env
from support.broken_env import watched

#: Calls that change files or read the store's files.
CALLS = "fallocate ftruncate mmap msync pread punch pwrite rename unlink".split()
QUEUE_FILE = 600
GEOMETRY = {"max_hash_slot_num": 50, "max_index_num": 200}
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": QUEUE_FILE,
}
COUNT = 110  # messages: units in four files of the queue


def open_twice(path: Path) -> None:
    """Raise AssertionError if the second opening did more than try the lock."""
    with pyrocketstore.open(path, **SETTINGS) as store, contextlib.ExitStack() as stack:
        for number in range(100):
            store.put("t", b"%d" % number + bytes(200), keys=f"k{number}")
        store.wait_dispatched()
        env = Env()
        calls = {name: stack.enter_context(watched(env, name)) for name in CALLS}
        opened = stack.enter_context(watched(env, "open"))
        with pytest.raises(StoreStateError, match="already open"):
            pyrocketstore.open(path, env=env, **SETTINGS)
        assert {name: len(made) for name, made in calls.items() if made} == {}
        assert [call for call in opened if not call[0].endswith(b"/lock")] == []
        assert [m.queue_offset for m in store.read("t")] == list(range(100))


def killed(path: Path) -> Path:
    """Make a store that a crash left before its checkpoint was written."""
    with pyrocketstore.open(path, **SIZES, **GEOMETRY) as store:
        for number in range(COUNT):
            store.put("T", b"%d" % number, keys=f"k{number}", tags="A")
    (path / "abort").touch()
    (path / "checkpoint").write_bytes(bytes(4096))
    return path


def open_and_flush(root: Path) -> None:
    """Raise AssertionError if the flush skipped files that a killed process wrote."""
    env = Env()
    with (
        watched(env, "fdatasync") as synced,
        watched(env, "msync") as mapped,
        pyrocketstore.open(root, env=env, **SIZES, **GEOMETRY) as store,
    ):
        before = len(synced) + len(mapped)
        store.flush()
        assert len(synced) + len(mapped) >= before + 4, "each of the four files"


def exchanged_index(path: Path) -> None:
    """Raise AssertionError if keys are lost when the last index file is exchanged after a kill."""
    stores = [path / "one", path / "two"]
    for at, store_path in enumerate(stores):
        with pyrocketstore.open(store_path, **SIZES, **GEOMETRY) as store:
            for number in range(COUNT):
                store.put("T", b"%d" % number, keys=f"k{at}-{number}", tags="A")
            store.flush()
            shutil.copytree(store_path, store_path.with_suffix(".killed"))
    ours, other = (next((each.with_suffix(".killed") / "index").iterdir()) for each in stores)
    shutil.copy(other, ours)
    with pyrocketstore.open(path / "one.killed", **SIZES, **GEOMETRY) as store:
        for number in range(COUNT):
            assert len(store.query("T", f"k0-{number}")) == 1, number
