"""Goal: a file that is cut, or a device that fails, causes an error in every reader, which names
file and position. It never causes a signal, and a reader never silently returns fewer messages.
Method: each read method over a store of several files, read-only and live, with EIO at each of its
reads, and with files that are cut to several lengths while it reads."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from injection import FOREVER, Faults
from journal import SETTINGS
from places import directory
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.verify.dump import dump_lines

COUNT = 300
KEY = f"k{COUNT // 2}"


@pytest.fixture(scope="module")
def faults() -> Faults:
    return Faults()


@pytest.fixture(scope="module")
def whole() -> Iterator[Path]:
    """Make a store with several files of log, queue and index."""
    path = directory()
    with pyrocketstore.open(path / "store", **SETTINGS) as store:
        for i in range(COUNT):
            store.put("t", b"%d " % i + bytes(300), keys=f"k{i}", tags="T")
    yield path / "store"
    shutil.rmtree(path)


@pytest.fixture
def path(whole: Path) -> Iterator[Path]:
    folder = directory()
    shutil.copytree(whole, folder / "store")
    yield folder / "store"
    shutil.rmtree(folder)


def read(store: pyrocketstore.Store) -> object:
    return [m.body for m in store.read("t")]


def read_merged(store: pyrocketstore.Store) -> object:
    return [m.body for m in store.read("t", None, tags="T")]


def read_batch(store: pyrocketstore.Store) -> object:
    return store.read_batch("t", 0, start=0)["body"].to_pylist()


def query(store: pyrocketstore.Store) -> object:
    return [m.body for m in store.query("t", KEY)]


def query_many(store: pyrocketstore.Store) -> object:
    return store.query_many("t", [f"k{i}" for i in range(COUNT)]).phy_offset.tolist()


def get(store: pyrocketstore.Store) -> object:
    message = store.get(store.query_many("t", [KEY]).phy_offset[0].item())
    return None if message is None else message.body


def offset_at(store: pyrocketstore.Store) -> object:
    return store.offset_at("t", 0, 0), store.offset_at("t", 0, 1 << 60)


def verify(store: pyrocketstore.Store) -> object:
    report = store.verify()
    for problem in report.problems:  # the report has the errors
        raise pyrocketstore.StoreCorruptionError(problem.path, problem.position, problem.text)
    return report.ok


def dump(store: pyrocketstore.Store) -> object:
    return list(dump_lines(store.path, MessageStoreConfig(**SETTINGS)))


WAYS: dict[str, Callable[[pyrocketstore.Store], Any]] = {
    way.__name__: way
    for way in (read, read_merged, read_batch, query, query_many, get, offset_at, verify)
}
#: Methods that open the files themselves.
WAYS_BY_PATH = {**WAYS, "dump": dump}


def names_a_position(error: pyrocketstore.StoreError, path: Path) -> bool:
    """Return True if an error names a file of the store and a byte of it."""
    named = getattr(error, "path", "") or ""
    position = re.search(r"at byte \d+|open failed|\d+ bytes", str(error))
    return named.startswith(str(path)) and position is not None


@pytest.mark.parametrize("way", WAYS)
def test_a_failing_read_is_an_error(faults: Faults, path: Path, way: str) -> None:
    """One EIO at each read of a read-only store causes an error.

    Where more was read than was requested, another read may return the right result instead.
    """
    errors = 0
    with pyrocketstore.open(path, read_only=True, env=faults.env(), **SETTINGS) as store:
        faults.arm("pread")
        right = WAYS[way](store)
        count = faults.count("pread")
        assert count
        for number in sorted({*range(1, min(count, 12) + 1), *range(1, count, 1 + count // 30)}):
            faults.arm("pread", number, number, errno=errno.EIO)
            try:
                found = WAYS[way](store)
            except pyrocketstore.StoreError as error:
                errors += 1
                assert names_a_position(error, path), error
                assert "errno 5" in str(error)
            else:
                assert found == right
                assert not faults.fired or faults.hit().again
        faults.disarm()
        assert errors
        assert WAYS[way](store) == right


@pytest.mark.parametrize("call", ["pread", "open"])
@pytest.mark.parametrize("way", WAYS)
def test_a_device_that_fails_is_an_error(faults: Faults, path: Path, way: str, call: str) -> None:
    """EIO from the first read on causes an error.

    A live store may read from its mappings, and a read-only store keeps files open.
    """
    for read_only in (True, False):
        with pyrocketstore.open(path, read_only=read_only, env=faults.env(), **SETTINGS) as store:
            right = WAYS[way](store)
            store.wait_dispatched()
            faults.arm(call, 1, FOREVER, errno=errno.EIO)
            try:
                found = WAYS[way](store)
            except pyrocketstore.StoreError as error:
                assert names_a_position(error, path), error
            else:
                assert not read_only or call == "open"
                assert found == right
            finally:
                faults.disarm()


@pytest.mark.parametrize("kind", ["commitlog", "consumequeue/t/0", "index"])
@pytest.mark.parametrize("way", WAYS_BY_PATH)
def test_a_file_cut_under_a_reader_is_an_error(path: Path, way: str, kind: str) -> None:
    """After a cut a read-only store returns the result from before it, or an error."""
    files = sorted((path / kind).iterdir())
    cut = files[len(files) // 2]
    size = cut.stat().st_size
    errors = 0
    with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
        right = WAYS_BY_PATH[way](store)
        for length in (size - 1, size // 2, 1, 0):
            os.truncate(cut, length)
            try:
                assert WAYS_BY_PATH[way](store) == right, (
                    f"{cut} cut to {length}: something is missing"
                )
            except pyrocketstore.StoreError as error:
                errors += 1
                assert names_a_position(error, path), error
                assert str(cut) in str(error)
    reads_it = {"commitlog": {"get", "query", "offset_at"}, "index": {"query", "query_many", "get"}}
    if kind not in reads_it and way in ("read", "read_merged", "read_batch"):
        assert errors


def test_a_file_cut_in_the_middle_of_a_scan(path: Path) -> None:
    """Messages before the cut are returned first, and then the error with file and position."""
    cut = sorted((path / "commitlog").iterdir())[1]
    with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
        messages = store.read("t")
        first = [next(messages).queue_offset for _ in range(10)]
        os.truncate(cut, 5000)
        with pytest.raises(pyrocketstore.StoreError) as caught:
            first += [m.queue_offset for m in messages]
        assert first[:10] == list(range(10))
        assert caught.value.path == str(cut)  # type: ignore[attr-defined]
        assert names_a_position(caught.value, path)


@pytest.mark.parametrize("way", WAYS)
def test_a_live_store_whose_idle_files_are_cut(path: Path, way: str) -> None:
    """Files that are not mapped are read by calls, which cause an error and never a signal."""
    with pyrocketstore.open(path, **SETTINGS) as store:
        right = WAYS[way](store)
    with pyrocketstore.open(path, **SETTINGS) as store:
        # Recovery maps or reads the last files, and not the oldest ones.
        queue = store.message_store.get_consume_queue("t", 0)
        assert queue is not None
        for file in (path / "commitlog").iterdir():
            assert file.stat().st_size
        log = store.message_store.commit_log.mapped_file_queue.mapped_files[0]
        if log.is_mapped:
            assert log.unmap_idle()
        os.truncate(log.path, 5000)
        try:
            found = WAYS[way](store)
        except pyrocketstore.StoreError as error:
            assert names_a_position(error, path), error
        else:
            assert found == right
        os.truncate(log.path, SETTINGS["mapped_file_size_commit_log"])
