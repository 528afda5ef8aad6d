"""Goal: a store whose owner makes its first files meanwhile is loaded with their sizes, and a fault
that does not pass is raised.
Method: functions that read sizes, load and plan as the test says; pauses take no time."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyrocketstore import MessageStoreConfig, StoreCorruptionError, StoreIOError
from pyrocketstore.message_store.current_sizes import load_with_sizes
from pyrocketstore.system.env import Env
from pyrocketstore.system.live_stores import TRIES_MAX

FITS, MISMATCHED = SimpleNamespace(mismatched=[]), SimpleNamespace(mismatched=[("a", "short")])


class Loads:
    """Return or raise the given outcomes in order, then the last one again and again."""

    def __init__(self, root: Path, sizes: list[Any], loads: list[Any], plans: list[Any]) -> None:
        self._root, self._sizes, self._loads, self._plans = root, sizes, loads, plans
        self.loaded: list[int] = []
        self.closed: list[Any] = []

    @staticmethod
    def _next(outcomes: list[Any]) -> Any:
        found = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        if isinstance(found, Exception):
            raise found
        return found

    def settings(self) -> MessageStoreConfig:
        size = self._next(self._sizes)
        config = MessageStoreConfig(mapped_file_size_commit_log=size)
        return config.at_root(str(self._root))

    def load(self, config: MessageStoreConfig) -> Any:
        self.loaded.append(config.mapped_file_size_commit_log)
        return self._next(self._loads)

    def run(self, env: Env) -> Any:
        return load_with_sizes(
            env, self.settings, self.load, lambda _: self._next(self._plans), self.closed.append
        )


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Env:
    monkeypatch.setattr(Env, "sleep", lambda self, seconds: None)
    return Env()


def gone() -> StoreIOError:
    return StoreIOError(errno.ENOENT, "open failed", "a")


def damaged() -> StoreCorruptionError:
    return StoreCorruptionError("a", 0, "damaged")


def make_queues(root: Path, *, is_recent: bool) -> None:
    folder = root / "consumequeue"
    folder.mkdir()
    if not is_recent:
        os.utime(folder, (1, 1))


@pytest.mark.parametrize("plan", [FITS, None])
def test_a_store_that_fits_is_loaded_once(tmp_path: Path, env: Env, plan: Any) -> None:
    loads = Loads(tmp_path, [4096], ["store"], [plan])
    assert loads.run(env) == "store"
    assert loads.loaded == [4096] and loads.closed == []


@pytest.mark.parametrize("where", ["settings", "load"])
def test_a_file_that_is_gone_is_tried_again(tmp_path: Path, env: Env, where: str) -> None:
    sizes = [gone(), 8192] if where == "settings" else [4096, 8192]
    found = ["store"] if where == "settings" else [gone(), "store"]
    loads = Loads(tmp_path, sizes, found, [FITS])
    assert loads.run(env) == "store"
    assert loads.loaded[-1] == 8192


@pytest.mark.parametrize("where", ["settings", "load"])
def test_another_error_of_a_call_is_raised_at_once(tmp_path: Path, env: Env, where: str) -> None:
    error = StoreIOError(errno.EIO, "read failed", "a")
    loads = Loads(tmp_path, [error if where == "settings" else 4096], [error], [FITS])
    with pytest.raises(StoreIOError) as caught:
        loads.run(env)
    assert caught.value is error and len(loads.loaded) == (where == "load")


def test_files_that_are_always_gone_end_the_attempts(tmp_path: Path, env: Env) -> None:
    loads = Loads(tmp_path, [4096], [gone()], [FITS])
    with pytest.raises(StoreIOError):
        loads.run(env)
    assert len(loads.loaded) == TRIES_MAX


def test_damage_passes_while_sizes_change(tmp_path: Path, env: Env) -> None:
    make_queues(tmp_path, is_recent=False)
    loads = Loads(tmp_path, [4096, 8192], [damaged(), "store"], [FITS])
    assert loads.run(env) == "store"
    assert loads.loaded == [4096, 8192]


def test_damage_passes_while_queues_are_made(tmp_path: Path, env: Env) -> None:
    make_queues(tmp_path, is_recent=True)
    loads = Loads(tmp_path, [4096], [damaged(), "store"], [FITS])
    assert loads.run(env) == "store"


def test_damage_of_a_store_that_nobody_changes_is_raised(tmp_path: Path, env: Env) -> None:
    make_queues(tmp_path, is_recent=False)
    loads = Loads(tmp_path, [4096], [damaged()], [FITS])
    with pytest.raises(StoreCorruptionError):
        loads.run(env)
    assert len(loads.loaded) == 1


def test_sizes_that_contradict_each_other_are_raised(tmp_path: Path, env: Env) -> None:
    loads = Loads(tmp_path, [damaged()], ["store"], [FITS])
    with pytest.raises(StoreCorruptionError):
        loads.run(env)
    assert loads.loaded == []


def test_a_store_with_mismatched_files_is_closed_and_loaded_again(tmp_path: Path, env: Env) -> None:
    loads = Loads(tmp_path, [4096, 8192], ["first", "second"], [MISMATCHED, FITS])
    assert loads.run(env) == "second"
    assert loads.closed == ["first"]


def test_mismatched_files_that_stay_are_returned_with_their_plan(tmp_path: Path, env: Env) -> None:
    make_queues(tmp_path, is_recent=False)
    loads = Loads(tmp_path, [4096], ["first", "second"], [MISMATCHED])
    assert loads.run(env) == "first"
    assert loads.closed == []
