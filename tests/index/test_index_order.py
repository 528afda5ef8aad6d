"""Goal: index files that were exchanged, copied or renamed by hand lose and hide no key: a writing
store rebuilds them, a reading store orders them by their content.
Method: permute the names of several index files, with and without a clean stop and lost queue
files; query and verify every key."""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from pyrocketstore.errors import StoreError
from pyrocketstore.system.env import Env
from support import key_stores
from support.broken_env import broken
from support.key_stores import COUNT, check, index_files, open_store

pytestmark = pytest.mark.slow

Files = list[Path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gaps")
    key_stores.fill(root)
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole / "keys", tmp_path / "store"))


def exchange(one: Path, other: Path) -> None:
    kept = one.with_name("kept")
    one.rename(kept)
    other.rename(one)
    kept.rename(other)


def first_and_last(files: Files) -> None:
    exchange(files[0], files[-1])


def two_in_the_middle(files: Files) -> None:
    exchange(files[1], files[3])


def neighbours(files: Files) -> None:
    exchange(files[2], files[3])


def last_two(files: Files) -> None:
    exchange(files[-2], files[-1])


def all_turned(files: Files) -> None:
    contents = [path.read_bytes() for path in files]
    for path, data in zip(files, [*contents[1:], contents[0]], strict=True):
        path.write_bytes(data)


def one_copied(files: Files) -> None:
    shutil.copy(files[1], files[3])


def one_copied_behind(files: Files) -> None:
    shutil.copy(files[1], files[-1].with_name(f"{int(files[-1].name) + 1:017d}"))


def one_renamed(files: Files) -> None:
    files[1].rename(files[-1].with_name(f"{int(files[-1].name) + 1:017d}"))


CHANGES = [first_and_last, two_in_the_middle, neighbours, last_two, all_turned, one_copied,
           one_copied_behind, one_renamed]  # fmt: skip


@pytest.mark.parametrize("mark", [False, True], ids=["clean", "abort"])
@pytest.mark.parametrize("change", CHANGES)
def test_index_files_out_of_their_order(root: Path, change: Any, mark: bool) -> None:
    assert len(index_files(root)) == 6
    change(index_files(root))
    if mark:
        (root / "abort").touch()
    with open_store(root, read_only=True) as store:
        check(store)
    with open_store(root) as store:
        check(store)
        assert store.verify().ok
        store.put("T", b"%d " % COUNT)
        check(store, COUNT)
    with open_store(root) as store:
        check(store, COUNT)
        assert store.verify().ok


@pytest.mark.parametrize("mark", [False, True], ids=["clean", "abort"])
@pytest.mark.parametrize("gone", [(1, 2), (1,), (1, 3), (0, 1), (2, 3, 4), (4,), (1, 5), (3, 4, 5)])
def test_no_name_is_left_for_a_file_between(root: Path, gone: tuple[int, ...], mark: bool) -> None:
    files = index_files(root)
    for number in gone:
        files[number].unlink()
    left = [path for path in files if path.exists()]
    for number, path in enumerate(left):
        path.rename(path.with_name(f"{20200101000000000 + number:017d}"))
    if mark:
        (root / "abort").touch()
    with open_store(root) as store:
        check(store)
        assert store.verify().ok
        store.put("T", b"%d " % COUNT)
        check(store, COUNT)
    with open_store(root, read_only=True) as store:
        check(store, COUNT)
        assert store.verify().ok


@pytest.mark.parametrize("seed", range(40))
def test_random_orders(root: Path, seed: int) -> None:
    """With queue files that are gone or copied besides, and an opening that fails on its way."""
    rng = random.Random(seed)
    files = index_files(root)
    for _ in range(rng.randrange(1, 3)):
        exchange(*rng.sample(files, 2))
    if rng.random() < 0.3:
        rng.choice(files).unlink()
    queue = sorted((root / "consumequeue/T/0").iterdir())
    if rng.random() < 0.7:
        rng.choice(queue[1:]).unlink()
    if rng.random() < 0.7:
        left = [path for path in queue if path.exists()]
        shutil.copy(*rng.sample(left, 2))
    if rng.random() < 0.7:
        (root / "abort").touch()
    env, calls, at = Env(), itertools.count(), rng.randrange(60)

    def fail(original: Any, *args: Any) -> int:
        return int(original(*args)) if next(calls) < at else -errno.EIO

    call = rng.choice(("fdatasync", "msync", "rename", "open", "pwrite", "pread", "unlink"))
    with broken(env, call, fail), contextlib.suppress(StoreError):
        open_store(root, env=env).close()
    with open_store(root) as store:
        check(store)
    with open_store(root, read_only=True) as store:
        check(store)
        assert store.verify().ok
