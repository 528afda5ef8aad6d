"""Goal: a reader notices each thing that the owner of its store does beside appending.
Method: the files that the owner changes are changed one at a time; directories of queues are made
and removed between two looks."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import StoreIOError
from pyrocketstore.consume_queue.growth import RECENT_MS, QueueFolders
from pyrocketstore.consume_queue.table import ConsumeQueueTable
from pyrocketstore.recovery.refresh import owner_of
from pyrocketstore.system.env import Env
from support.broken_env import failing, watched
from support.sizes import SIZES

MINIMUMS = "config/topicMinOffset.json"


def make_files(root: Path) -> None:
    (root / "config").mkdir()
    for name in ("lock", "abort", MINIMUMS):
        (root / name).write_bytes(b"1")


def touch(root: Path) -> None:
    os.utime(root / "lock", (1, 1))


def replace(name: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / "new").write_bytes(b"1")  # beside the old file: another inode
        (root / "new").replace(root / name)

    return change


@pytest.mark.parametrize(
    "change",
    [
        touch,
        replace("lock"),
        lambda root: (root / "lock").unlink(),
        replace("abort"),
        lambda root: (root / "abort").unlink(),
        lambda root: (root / MINIMUMS).write_bytes(b"2"),
        lambda root: (root / MINIMUMS).unlink(),
    ],
    ids=["time", "other lock", "no lock", "other abort", "no abort", "minimums", "no minimums"],
)
def test_each_change_is_another_owner(tmp_path: Path, change: Callable[[Path], None]) -> None:
    make_files(tmp_path)
    before = owner_of(Env(), str(tmp_path))
    assert owner_of(Env(), str(tmp_path)) == before
    change(tmp_path)
    assert owner_of(Env(), str(tmp_path)) != before


def test_appends_leave_no_trace_and_openings_do(tmp_path: Path) -> None:
    assert owner_of(Env(), str(tmp_path)) == owner_of(Env(), str(tmp_path)), "without any file"
    found = []
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for _ in range(2):
            store.put("t", b"body")
            store.flush()
            found.append(owner_of(Env(), str(tmp_path)))
    assert found[0] == found[1]
    found.append(owner_of(Env(), str(tmp_path)))
    with pyrocketstore.open(tmp_path, **SIZES):
        found.append(owner_of(Env(), str(tmp_path)))
    assert len(set(found)) == 3


def test_minimums_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    make_files(tmp_path)
    env = Env()
    with failing(env, "pread", errno.EIO), pytest.raises(StoreIOError, match="topicMinOffset"):
        owner_of(env, str(tmp_path))


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[tuple[Path, Env, ConsumeQueueTable]]:
    """The directories, and the table of a reader that has loaded t/0 and t/1."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("t", b"0", queue_id=0)
        store.put("t", b"1", queue_id=1)
    with pyrocketstore.open(tmp_path, read_only=True, **SIZES) as reader:
        engine = reader.message_store
        yield tmp_path / "consumequeue", engine.env, engine.queue_table


def test_a_new_queue_is_returned_once(queues: tuple[Path, Env, ConsumeQueueTable]) -> None:
    folder, env, table = queues
    folders = QueueFolders(env, table)
    assert folders.look() == ([], False)
    (folder / "t" / "7").mkdir()
    (folder / "u" / "0").mkdir(parents=True)
    (folder / "u" / "x").mkdir()
    new, is_removed = folders.look()
    assert sorted(new) == [("t", 7), ("u", 0)] and not is_removed
    assert folders.look() == ([], False)
    folders.forget()
    new, _ = folders.look()
    assert sorted(new) == [("t", 7), ("u", 0)], "after `forget` all are listed again"


@pytest.mark.parametrize("name", ["t/1", "t"])
@pytest.mark.parametrize("looked", [True, False])
def test_a_removed_queue_is_reported(
    queues: tuple[Path, Env, ConsumeQueueTable], name: str, looked: bool
) -> None:
    folder, env, table = queues
    folders = QueueFolders(env, table)
    if looked:
        assert folders.look() == ([], False)
    shutil.rmtree(folder / name)
    assert folders.look() == ([], True)


def test_a_removed_queue_that_the_table_lacks_is_no_removal(
    queues: tuple[Path, Env, ConsumeQueueTable],
) -> None:
    folder, env, table = queues
    folders = QueueFolders(env, table)
    (folder / "t" / "7").mkdir()
    assert folders.look() == ([("t", 7)], False)
    (folder / "t" / "7").rmdir()
    assert folders.look() == ([], False)


def test_directories_that_are_old_and_unchanged_are_not_listed(
    queues: tuple[Path, Env, ConsumeQueueTable],
) -> None:
    folder, env, table = queues
    old = (env.now_ms() - 10 * RECENT_MS) / 1000
    for path in (folder / "t", folder):
        os.utime(path, (old, old))
    folders = QueueFolders(env, table)
    with watched(env, "list_directory") as calls:
        folders.look()
        first = len(calls)
        folders.look()
        assert first > 0 and len(calls) == first
        (folder / "t" / "7").mkdir()
        assert folders.look() == ([("t", 7)], False)
        recent = len(calls)
        assert recent > first
        folders.look()
        assert len(calls) > recent, "it may change again within its time"
