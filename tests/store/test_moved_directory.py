"""Goal: a store whose directory is moved, deleted or replaced makes nothing at the old path,
changes nothing of what is there now, soon acknowledges no put, and its close ends and reports.
Method: the whole tree of each directory is compared before and after, for each way of flushing."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import (
    DefaultMessageStore,
    MessageExtBrokerInner,
    MessageStoreConfig,
    StoreError,
    StoreStateError,
    UnknownTopicError,
)
from pyrocketstore.files.config_file import ConfigFile
from pyrocketstore.system.env import Env

SMALL = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
SETTINGS: dict[str, dict[str, object]] = {
    "async": {"flush_disk_type": "ASYNC_FLUSH"},
    "sync": {"flush_disk_type": "SYNC_FLUSH"},
    "pool": {"flush_disk_type": "ASYNC_FLUSH", "transient_store_pool_enable": True,
             "transient_store_pool_size": 2},
}  # fmt: skip
Tree = dict[str, bytes | None]


def tree_of(path: Path) -> Tree | None:
    """Every name at and below a path with its bytes; None if nothing has that name."""
    if not os.path.lexists(path):
        return None
    return {
        str(each.relative_to(path)): each.read_bytes() if each.is_file() else None
        for each in sorted(path.rglob("*"))
    }


def other_store(path: Path) -> None:
    """A store whose files have the names of the tested one, with other messages."""
    with pyrocketstore.open(path, **SMALL) as store:
        for n in range(100):
            store.put("T", b"other" * 100, keys=f"o{n}")


def move(root: Path, beside: Path) -> None:
    root.rename(beside / "moved")


def delete(root: Path, beside: Path) -> None:
    shutil.rmtree(root)


def replace_by_empty(root: Path, beside: Path) -> None:
    move(root, beside)
    root.mkdir()


def replace_by_store(root: Path, beside: Path) -> None:
    move(root, beside)
    (beside / "other").rename(root)


def replace_by_link(root: Path, beside: Path) -> None:
    move(root, beside)
    root.symlink_to(beside / "other")


def replace_by_file(root: Path, beside: Path) -> None:
    move(root, beside)
    root.write_bytes(b"a file")


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def fill(put: Callable[[int], object], count: int = 400) -> None:
    """Puts over several files of the log, new queues and index files."""
    for n in range(count):
        try:
            put(n)
        except StoreError:
            continue


def refused_puts(store: pyrocketstore.Store) -> None:
    """Every way to put or to write positions is refused."""
    wait_for(lambda: store.stats().failure is not None)
    for put in (
        lambda: store.put("T", b"late"),
        lambda: store.put("new", b"late"),
        lambda: store.put("T", b"late", delay_level=1),
        lambda: store.put_many("T", [b"late"]),
        lambda: store.put_batch("T", [b"late"]),
        lambda: store.prepare("T", b"late", group="g").commit(),
    ):
        with pytest.raises(StoreError):
            put()


MOVES = [move, delete, replace_by_empty, replace_by_store, replace_by_link, replace_by_file]


@pytest.mark.parametrize("how", MOVES, ids=lambda how: how.__name__)
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_moved_root_is_left_alone(tmp_path: Path, how: object, settings: str) -> None:
    assert callable(how)
    root, beside = tmp_path / "store", tmp_path / "beside"
    beside.mkdir()
    other_store(beside / "other")
    store = pyrocketstore.open(root, **SMALL, **SETTINGS[settings])
    consumer = store.consumer("g", "T")
    store.put("T", b"first", keys="k")
    assert consumer.poll(1, timeout=5)
    how(root, beside)
    there, other = tree_of(root), tree_of(beside / "other")
    fill(lambda n: store.put(f"T{n % 7}", b"x" * 2000, keys=f"k{n}"))
    with pytest.raises(StoreError):
        consumer.commit()
    refused_puts(store)
    for remove in (
        lambda: store.drop_topic("T"),
        lambda: store.trim(topic="T", before=store.message_store.now() + 1000),
    ):
        with pytest.raises(StoreError):
            remove()
    consumer.close()
    with pytest.raises(StoreError, match=r"moved|replaced|deleted"):
        store.close()
    assert tree_of(root) == there
    assert tree_of(beside / "other") == other
    if (beside / "moved").exists():
        with pyrocketstore.open(beside / "moved", **SMALL) as again:
            assert next(iter(again.read("T"))).body == b"first"


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("which", ["root", "one", "two", "both", "commitlog"])
def test_a_moved_log_is_left_alone(tmp_path: Path, which: str, flush: str) -> None:
    """Also one path of several, and commitlog/ alone."""
    root, one, two = tmp_path / "store", tmp_path / "one", tmp_path / "two"
    given = {} if which == "commitlog" else {"store_path_commit_log": f"{one},{two}"}
    store = pyrocketstore.open(root, **given, **SMALL, flush_disk_type=flush)
    store.put("T", b"first")
    store.wait_dispatched()
    paths = {"root": [root], "one": [one], "two": [two], "both": [one, two]}
    for path in paths.get(which, [root / "commitlog"]):
        path.rename(f"{path}-moved")
    gone = paths.get(which, [root / "commitlog"])
    fill(lambda n: store.put(f"T{n % 7}", b"x" * 2000))
    refused_puts(store)
    with pytest.raises(StoreError, match=r"moved|replaced|deleted"):
        store.close()
    assert [path for path in gone if path.exists()] == []


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("how", MOVES, ids=lambda how: how.__name__)
def test_the_java_interface_does_the_same(tmp_path: Path, how: object, flush: str) -> None:
    assert callable(how)
    root, beside = tmp_path / "store", tmp_path / "beside"
    beside.mkdir()
    other_store(beside / "other")
    config = MessageStoreConfig(store_path_root_dir=str(root), flush_disk_type=flush, **SMALL)
    engine = DefaultMessageStore(config)
    engine.load()
    engine.start()
    assert engine.put_message(MessageExtBrokerInner("T", b"first")).is_ok()
    engine.wait_dispatched()  # else the thread may be making a file while the directory is moved
    how(root, beside)
    there, other = tree_of(root), tree_of(beside / "other")
    fill(lambda n: engine.put_message(MessageExtBrokerInner(f"T{n % 7}", b"x" * 2000)))
    wait_for(lambda: engine.failure is not None)
    assert engine.put_message(MessageExtBrokerInner("T", b"late")).status_code != 0
    with pytest.raises(StoreError, match=r"moved|replaced|deleted"):
        engine.shutdown()
    assert (tree_of(root), tree_of(beside / "other")) == (there, other)


@pytest.mark.parametrize("which", ["consumequeue", "index", "config"])
def test_a_derived_directory_that_is_moved_loses_no_message(tmp_path: Path, which: str) -> None:
    """The log is where it was: the next opening derives the rest from it again."""
    root = tmp_path / "store"
    store = pyrocketstore.open(root, **SMALL)
    done = [n for n in range(50) if store.put("T", b"%d" % n, keys=f"k{n}")]
    store.wait_dispatched()
    store.flush()
    (root / which).rename(tmp_path / "moved")
    for n in range(50, 300):
        try:
            store.put(f"T{n % 3}" if n % 2 else "T", b"%d" % n, keys=f"k{n}")
        except StoreError:
            continue
        done.append(n)
    with contextlib.suppress(StoreError):
        store.close()
    with pyrocketstore.open(root, **SMALL) as again:
        found = [int(m.body) for topic in ("T", "T0", "T1", "T2") for m in again.read(topic)]
        assert sorted(found) == done


def test_a_store_moved_back_opens_again(tmp_path: Path) -> None:
    """Also under its old path in the same process, and the new path while the old store is open."""
    root = tmp_path / "store"
    store = pyrocketstore.open(root, **SMALL)
    store.put("T", b"first")
    root.rename(tmp_path / "moved")
    with pytest.raises(StoreError, match="already open by this process"):
        pyrocketstore.open(tmp_path / "moved", **SMALL)
    with pytest.raises(StoreError, match=r"moved|replaced|deleted"):
        store.close()
    (tmp_path / "moved").rename(root)
    with pyrocketstore.open(root, **SMALL) as store:
        assert [m.body for m in store.read("T")] == [b"first"]
        store.put("T", b"second")


@pytest.mark.parametrize("how", MOVES, ids=lambda how: how.__name__)
def test_a_follower_of_a_moved_store_says_so(tmp_path: Path, how: object) -> None:
    assert callable(how)
    root, beside = tmp_path / "store", tmp_path / "beside"
    beside.mkdir()
    other_store(beside / "other")
    with pyrocketstore.open(root, **SMALL) as store:
        store.put("T", b"first")
    with pyrocketstore.open(root, read_only=True) as reader:
        how(root, beside)
        there = tree_of(root)
        for _ in range(2):
            with pytest.raises(StoreError, match="moved or replaced while the store was open"):
                reader.refresh()
        assert tree_of(root) == there


QUESTIONS: dict[str, Callable[[pyrocketstore.Store], object]] = {
    "verify": lambda reader: reader.verify(),
    "consumer_positions": lambda reader: reader.consumer_positions(),
    "delayed": lambda reader: reader.delayed(),
    "an unknown topic": lambda reader: reader.read("other"),
}


@pytest.mark.parametrize("how", MOVES, ids=lambda how: how.__name__)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_reader_of_a_moved_store_answers_nothing_about_another(
    tmp_path: Path, question: str, how: object
) -> None:
    """`verify` gave a report on the directory that has the path now."""
    assert callable(how)
    root, beside = tmp_path / "store", tmp_path / "beside"
    beside.mkdir()
    other_store(beside / "other")
    with pyrocketstore.open(root, **SMALL) as store:
        store.put("T", b"first")
    ask = QUESTIONS[question]
    with pyrocketstore.open(root, read_only=True) as reader:
        with contextlib.suppress(UnknownTopicError):
            ask(reader)
        if question == "verify":
            assert reader.verify().ok
        how(root, beside)
        for _ in range(2):
            with pytest.raises(StoreStateError, match="was moved or replaced while the store"):
                ask(reader)
    if how in (replace_by_empty, replace_by_store, replace_by_link):
        with pyrocketstore.open(root, read_only=True) as reader:
            assert reader.verify().ok, "the other directory is valid"


def a_store_and_another(path: Path) -> tuple[Path, Path]:
    """Make a store of one message, and another one in a directory beside it."""
    root, beside = path / "store", path / "beside"
    beside.mkdir()
    other_store(beside / "other")
    with pyrocketstore.open(root, **SMALL) as store:
        store.put("T", b"first")
    return root, beside


def test_positions_of_another_store_are_not_read(tmp_path: Path) -> None:
    """The first call that needs them reads their file."""
    root, beside = a_store_and_another(tmp_path)
    with pyrocketstore.open(root, read_only=True) as reader:
        replace_by_store(root, beside)
        with pytest.raises(StoreStateError, match="was moved or replaced while the store"):
            reader.transactions()


def test_a_store_that_is_replaced_during_its_verify(tmp_path: Path) -> None:
    root, beside = a_store_and_another(tmp_path)
    with pyrocketstore.open(root, read_only=True) as reader:

        def progress(done: int, total: int) -> None:
            if not (beside / "moved").exists():
                replace_by_store(root, beside)

        with pytest.raises(StoreStateError, match="was moved or replaced while the store"):
            reader.verify(progress)


# ---- the mechanism -------------------------------------------------------------------------------
CALLS: dict[str, Callable[[Env, Path], object]] = {
    "make_directories": lambda env, top: env.make_directories(str(top / "x" / "y")),
    "make the pinned one": lambda env, top: env.make_directories(str(top)),
    "write_file": lambda env, top: env.write_file(str(top / "file"), b"new"),
    "remove": lambda env, top: env.remove(str(top / "file")),
    "unlink": lambda env, top: env.unlink(str(top / "file")),
    "rename": lambda env, top: env.rename(str(top / "file"), str(top / "new")),
    "rmdir": lambda env, top: env.rmdir(str(top / "folder")),
    "open to write": lambda env, top: env.open(str(top / "file"), os.O_WRONLY),
    "create": lambda env, top: env.open(str(top / "new"), os.O_RDWR | os.O_CREAT),
    "ConfigFile.write": lambda env, top: ConfigFile(
        env, str(top / "config" / "a.json"), lambda _: True, ""
    ).write({"a": 1}),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("how", [*MOVES, None], ids=lambda how: how and how.__name__)
def test_no_name_below_a_pinned_directory_changes(tmp_path: Path, call: str, how: object) -> None:
    env, top, beside = Env(), tmp_path / "top", tmp_path / "beside"
    for path in (top, beside / "other"):
        (path / "folder").mkdir(parents=True)
        (path / "file").write_bytes(b"old")
    env.pin({str(top): env.identity(str(top))})
    if how is None:
        CALLS[call](env, top)
        return
    assert callable(how)
    how(top, beside)
    before = tree_of(tmp_path)
    with pytest.raises(StoreError) as refused:
        CALLS[call](env, top)
    assert getattr(refused.value, "errno", None) == errno.ESTALE
    assert tree_of(tmp_path) == before
    env.unpin([str(top)])
    if how in (replace_by_store, replace_by_link):
        CALLS[call](env, top)
