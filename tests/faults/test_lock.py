"""Goal: who opens a store that another has open is refused before anything is looked at or changed.
Method: the calls of the operating system that the second one makes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import pyrocketstore
from broken_env import watched
from journal import SETTINGS
from pyrocketstore import StoreStateError
from pyrocketstore.env import Env

#: Calls that change files, or that the store's files are read by.
CALLS = "fallocate ftruncate mmap msync pread punch pwrite rename unlink".split()


def open_twice(path: Path) -> None:
    """Raises AssertionError where the second opening did more than ask for the lock."""
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


def test_a_refused_opening_touches_nothing(tmp_path: Path) -> None:
    open_twice(tmp_path / "store")
