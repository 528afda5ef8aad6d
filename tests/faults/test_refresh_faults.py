"""Goal: a refresh that fails, meets deleted or cut files, or is interrupted, raises a clear error
or succeeds; the store then answers as before or as after it, and the next refresh finds everything.
Method: a reader of a copy of a live store, whose files are brought to a later state; each system
call of the refresh fails in turn, files vanish or are cut at each file that it opens, and a timer
interrupts refreshes beside a writer."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from injection import ERROR, Faults
from places import directory
from pyrocketstore.errors import StoreError, StoreIOError
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.seed import SEED

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 800,
    "max_hash_slot_num": 50,
    "max_index_num": 2000,
}


@pytest.fixture(scope="module")
def faults() -> Faults:
    return Faults()


@pytest.fixture(scope="module")
def states() -> Iterator[tuple[Path, Path]]:
    """Make two states of a live store; the dispatcher of the second one is behind."""
    path = directory()
    with pyrocketstore.open(path / "live", **SETTINGS) as store:
        put(store, 0, 60)
        store.wait_dispatched()
        shutil.copytree(path / "live", path / "before")
        put(store, 60, 300)
        store.wait_dispatched()
        with store.message_store.dispatch_paused():
            put(store, 300, 330)
            shutil.copytree(path / "live", path / "after")
    yield path / "before", path / "after"
    shutil.rmtree(path)


def put(store: pyrocketstore.Store, first: int, stop: int) -> None:
    for i in range(first, stop):
        topic = f"t{i % 3 if i < 200 else i % 5}"
        store.put(topic, b"%d " % i + bytes(300), keys=f"k{i}", tags="T")


def bring(root: Path, state: Path) -> None:
    """Write the files of a state over those of a copy, in place."""
    for source in sorted(state.rglob("*")):
        target = root / source.relative_to(state)
        if source.is_dir():
            target.mkdir(exist_ok=True)
        elif source.name != "lock" and not (source.name == "abort" and target.exists()):
            data = source.read_bytes()
            fd = os.open(target, os.O_RDWR | os.O_CREAT)
            os.ftruncate(fd, len(data))
            os.pwrite(fd, data, 0)
            os.close(fd)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings about damage."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pyrocketstore.StoreWarning)
        yield


def outcome(open_store: Callable[[], pyrocketstore.Store]) -> object:
    """Return the answers of a store, or the error that prevents them."""
    try:
        store = open_store()
        return [
            store.message_store.get_max_phy_offset(),
            [(topic, store.min_offset(topic), store.max_offset(topic)) for topic in store.topics()],
            [[m.body for m in store.read(topic, on_corrupt="skip")] for topic in store.topics()],
        ]
    except StoreError as error:
        return type(error)


Answers = tuple[int, dict[str, list[bytes]], dict[str, list[int]]]


def answers(store: pyrocketstore.Store) -> Answers:
    """The end of the log, the bodies of each topic, and the hits of some keys."""
    messages = {topic: [m.body for m in store.read(topic)] for topic in store.topics()}
    hits = {
        f"{topic} k{i}": [m.phy_offset for m in store.query(topic, f"k{i}")]
        for topic, i in itertools.product(("t0", "t1", "t4"), range(0, 330, 7))
    }
    return store.message_store.get_max_phy_offset(), messages, hits


def is_between(before: Answers, seen: Answers, after: Answers) -> bool:
    """Return whether the answers are those of a writer on its way from one state to the other."""
    known = before[1]
    return (
        before[0] <= seen[0] <= after[0]
        and seen[1].keys() <= after[1].keys()
        and all(after[1][t][: len(bodies)] == bodies for t, bodies in seen[1].items())
        and all(len(seen[1][t]) >= len(bodies) for t, bodies in known.items())
        and all(hits in (before[2][key], after[2][key]) for key, hits in seen[2].items())
    )


def expected(root: Path) -> Answers:
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        return answers(store)


class Case:
    """A reader of a copy of the first state."""

    def __init__(self, states: tuple[Path, Path], env: Env) -> None:
        self.folder = directory()
        self.root = self.folder / "store"
        shutil.copytree(states[0], self.root)
        self.store = pyrocketstore.open(self.root, read_only=True, env=env, **SETTINGS)
        self.before = answers(self.store)
        bring(self.root, states[1])

    def check(self, refresh: Callable[[], object], after: Answers) -> StoreError | None:
        """Refresh with a fault, look, and refresh without one; return the error."""
        error = None
        try:
            refresh()
        except StoreError as raised:
            error = raised
            assert is_between(self.before, answers(self.store), after), error
        else:
            assert answers(self.store) == after
        self.store.refresh()
        assert answers(self.store) == after, error
        return error

    def close(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)


def each_call(
    states: tuple[Path, Path],
    refresh: Callable[[Case, int], bool],
    *,
    reloads: bool = False,
    make_env: Callable[[], Env] = Env,
) -> list[StoreError]:
    """Refresh a new reader with a fault at call 1, 2, ... until none is met; return the errors.

    `refresh` gets the case and the number of the call, and returns False if there is no such call.
    """
    after = expected(states[1])
    errors = []
    for number in itertools.count(1):
        case = Case(states, make_env())
        met: list[bool] = []
        try:
            if reloads:  # as if another owner had opened the store
                (case.root / "lock").write_bytes(b"lock")
                os.utime(case.root / "lock", ns=(0, 0))
            error = case.check(partial(_note, met, refresh, case, number), after)
        finally:
            case.close()
        if error is not None:
            errors.append(error)
        elif not met[0]:
            break
    assert number > 1
    return errors


def _note(met: list[bool], refresh: Callable[[Case, int], bool], case: Case, number: int) -> None:
    met.append(refresh(case, number))


@pytest.mark.parametrize("reloads", [False, True], ids=["appended", "loaded again"])
@pytest.mark.parametrize("call", ["open", "pread"])
def test_each_system_call_fails_once(
    states: tuple[Path, Path], faults: Faults, call: str, reloads: bool
) -> None:
    codes = (errno.EMFILE, errno.EIO) if call == "open" else (errno.EIO,)

    def refresh(case: Case, number: int) -> bool:
        faults.arm(call, number, number, action=ERROR, errno=codes[number % len(codes)])
        try:
            case.store.refresh()
        finally:
            found = faults.count(call) >= number
            faults.disarm()
        return found

    errors = each_call(states, refresh, reloads=reloads, make_env=faults.env)
    assert errors
    for error in errors:
        assert isinstance(error, StoreIOError) and error.errno in codes and error.path


@pytest.mark.parametrize("reloads", [False, True], ids=["appended", "loaded again"])
def test_no_memory(states: tuple[Path, Path], reloads: bool) -> None:
    def refresh(case: Case, number: int) -> bool:
        env = case.store.message_store.env
        calls: list[Any]

        def fail(original: Callable[..., int], *given: Any) -> int:
            return -errno.ENOMEM if len(calls) == number else original(*given)

        with broken(env, "mmap", fail) as calls:
            case.store.refresh()
        return len(calls) >= number

    errors = each_call(states, refresh, reloads=reloads)
    assert errors or reloads  # a load tries again


class FailingEnv(Env):
    """Fails the call of `number` among those of Python that ask the operating system."""

    count, number = 0, 0

    def _called(self, path: str) -> None:
        self.count += 1
        if self.count == self.number:
            raise StoreIOError(errno.EIO, "stat", path)

    def identity(self, path: str, *, follow: bool = True) -> tuple[int, int]:
        self._called(path)
        return super().identity(path, follow=follow)

    def mtime_ms(self, path: Any) -> int:
        self._called(path)
        return super().mtime_ms(path)

    def listdir(self, path: str) -> list[str]:
        self._called(path)
        return super().listdir(path)

    def files_named(self, path: str, *given: Any, **more: Any) -> list[tuple[str, int]]:
        self._called(path)
        return super().files_named(path, *given, **more)


@pytest.mark.parametrize("reloads", [False, True], ids=["appended", "loaded again"])
def test_each_call_of_python_fails_once(states: tuple[Path, Path], reloads: bool) -> None:
    def refresh(case: Case, number: int) -> bool:
        env = case.store.message_store.env
        assert isinstance(env, FailingEnv)
        env.count, env.number = 0, number
        try:
            case.store.refresh()
        finally:
            env.number = 0
        return env.count >= number

    assert each_call(states, refresh, reloads=reloads, make_env=FailingEnv)


def damaged(root: Path, name: str) -> None:
    """Cut the files of a directory, or delete the first one."""
    files = sorted(path for path in (root / name).rglob("*") if path.is_file())
    if len(files) > 1:
        files[0].unlink()
    os.truncate(files[-1], 4096)


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index"])
def test_files_that_are_deleted_or_cut_during_a_refresh(
    states: tuple[Path, Path], name: str
) -> None:
    """The answers, or the error, of the next refresh are those of a new opening."""
    for number in itertools.count(1):
        case = Case(states, Env())
        try:
            with quiet():
                met = refresh_with_damage(case, name, number)
                if met:
                    found = outcome(partial(refreshed, case.store))
                    with contextlib.ExitStack() as closing:
                        assert found == outcome(partial(opened, case.root, closing))
        finally:
            case.close()
        if not met:
            break
    assert number > 3


def refresh_with_damage(case: Case, name: str, number: int) -> bool:
    """Refresh, and damage files when it opens its file of that number; False if it opens fewer."""

    def damage(original: Callable[..., int], *given: Any) -> int:
        if len(calls) == number:
            damaged(case.root, name)
        return original(*given)

    with (
        contextlib.suppress(StoreError),
        broken(case.store.message_store.env, "open", damage) as calls,
    ):
        case.store.refresh()
    return len(calls) >= number


def refreshed(store: pyrocketstore.Store) -> pyrocketstore.Store:
    store.refresh()
    return store


def opened(root: Path, closing: contextlib.ExitStack) -> pyrocketstore.Store:
    return closing.enter_context(pyrocketstore.open(root, read_only=True, **SETTINGS))


class Interrupt(Exception):
    """Raised by the handler of a timer."""


def test_interrupted_refreshes(tmp_path: Path) -> None:
    """Each call of the main thread ends soon, and the last refresh finds everything."""
    choose = random.Random(SEED)
    ended = threading.Event()
    interrupts = 0

    def raise_interrupt(number: int, frame: object) -> None:
        raise Interrupt

    def write(store: pyrocketstore.Store) -> None:
        number = 0
        while not ended.wait(0.002):
            put(store, number, number + 5)
            number += 5

    before = signal.signal(signal.SIGALRM, raise_interrupt)
    try:
        with pyrocketstore.open(tmp_path / "store", **SETTINGS) as writer:
            put(writer, 0, 10)
            writer.wait_dispatched()
            reader = pyrocketstore.open(tmp_path / "store", read_only=True, **SETTINGS)
            thread = threading.Thread(target=write, args=(writer,))
            thread.start()
            for _ in range(200):
                try:
                    signal.setitimer(signal.ITIMER_REAL, choose.uniform(1e-4, 4e-3))
                    try:
                        reader.refresh()
                        reader.max_offset("t0")
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupt:  # also one that came in `finally`
                    interrupts += 1
            ended.set()
            thread.join()
            writer.wait_dispatched()
            reader.refresh()
            assert answers(reader) == answers(writer)
            reader.close()
    finally:
        ended.set()
        signal.signal(signal.SIGALRM, before)
    assert interrupts
