"""Goal: an opening does no work in Python for each message, and derives file sizes from the end of
the log. Method: the same call on a store and on one with ten times the messages; Python calls are
counted, and the bytes that are read for the sizes.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import io
import itertools
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.cli.app import app
from pyrocketstore.config.file_sizes import PAGE_SIZE, log_file_size
from pyrocketstore.system.env import Env
from support.broken_env import broken, watched

SMALL, LARGE = 2_000, 20_000
#: One file of this size holds all messages.
ONE_FILE = 8 << 20
#: A call for each chunk of the log or of a queue is allowed, none for each of 18,000 messages.
SPARE_CALLS = 900


def fill(root: Path, count: int, file_size: int, *, keyed: bool = True, body: int = 100) -> Path:
    with pyrocketstore.open(root, mapped_file_size_commit_log=file_size) as store:
        store.put_many(
            "T",
            [b"x" * body] * count,
            queue_ids=[i % 4 for i in range(count)],
            keys=[f"k{i}" for i in range(count)] if keyed else None,
        )
    return root


@pytest.fixture(scope="module", params=["one keyed", "one keyless", "several keyed"])
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    files, keys = request.param.split()
    root = tmp_path_factory.mktemp("stores")
    return [
        fill(
            root / str(count),
            count,
            ONE_FILE if files == "one" else count * 80 // PAGE_SIZE * PAGE_SIZE,
            keyed=keys == "keyed",
        )
        for count in (SMALL, LARGE)
    ]


def calls_of(work: Callable[[Path], object], root: Path) -> int:
    """Return how many Python functions `work` enters or resumes."""
    counter = itertools.count()

    def count(frame: Any, event: str, argument: object) -> None:
        if event == "call":
            next(counter)

    def run() -> None:
        sys.setprofile(count)
        try:
            work(root)
        finally:
            sys.setprofile(None)

    # Not in the main thread: there `load` runs in a thread that is not counted.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()
    return next(counter)


def open_writable(root: Path) -> None:
    pyrocketstore.open(root).close()


def open_killed(root: Path) -> None:
    (root / "abort").touch()
    pyrocketstore.open(root).close()


def open_read_only(root: Path) -> None:
    pyrocketstore.open(root, read_only=True).close()


def refresh(root: Path) -> None:
    with pyrocketstore.open(root, read_only=True) as store:
        store.refresh()


def show_info(root: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        app.main(["info", str(root)], standalone_mode=False)


def plan_spark(root: Path) -> None:
    pytest.importorskip("pyspark")
    from pyrocketstore.spark.options import read_options
    from pyrocketstore.spark.schemas import columns_of
    from pyrocketstore.spark.source.batch import StoreReader

    options = read_options({"path": str(root)})
    assert StoreReader(options, columns_of(options)[0], None).partitions()


@pytest.mark.parametrize(
    "work", [open_writable, open_killed, open_read_only, refresh, show_info, plan_spark]
)
def test_python_calls_do_not_grow_with_the_messages(
    stores: list[Path], work: Callable[[Path], object]
) -> None:
    calls_of(work, stores[0])  # imports
    small, large = (calls_of(work, root) for root in stores)
    assert large < small + SPARE_CALLS


def bytes_read(root: Path) -> int:
    env = Env()
    with watched(env, "pread") as calls:
        assert log_file_size(env, str(root / "commitlog")) == ONE_FILE
    return sum(min(size, ONE_FILE) for _, _, size, _ in calls)


def test_the_bytes_that_prove_a_file_size_do_not_grow(tmp_path: Path) -> None:
    few, many = (
        bytes_read(fill(tmp_path / str(count), count, ONE_FILE)) for count in (SMALL, LARGE)
    )
    assert many <= few + (1 << 20)


# ---- the record from which the sizes are followed ------------------------------------------------


def body_of_kind(kind: str, number: int) -> bytes:
    """Return a body that may mislead the search for a late record."""
    if kind == "zeros":  # pages of zeros are in all parts of the file
        return bytes(3 * PAGE_SIZE)
    if kind == "magic codes":
        return (b"\xda\xa3\x20\xa7" * 400)[number % 4 :]
    if kind == "large":
        return b"y" * ((1 << 20) + 5000) if number % 3 == 2 else b"y" * 10
    return b"z" * 700


@pytest.mark.parametrize("kind", ["plain", "zeros", "magic codes", "large"])
def test_a_cut_at_each_kind_of_place_is_decided_by_the_sizes_of_all_records(
    tmp_path: Path, kind: str
) -> None:
    """The oracle follows every size field from the first byte of the file on."""
    root = tmp_path / "store"
    with pyrocketstore.open(root, mapped_file_size_commit_log=ONE_FILE) as store:
        begins = [store.put("T", body_of_kind(kind, i)).phy_offset for i in range(12)]
        end = store.message_store.get_max_phy_offset()
    path = root / "commitlog" / ("0" * 20)
    pages = {(at // PAGE_SIZE + more) * PAGE_SIZE for at in [*begins, end] for more in (0, 1, 2)}
    odd = {end, end + 8, begins[5], begins[5] + 8}
    for length in sorted((pages | odd) - {0}):
        cut = tmp_path / "cut" / path.name
        cut.parent.mkdir(exist_ok=True)
        shutil.copy(path, cut)
        os.truncate(cut, length)
        last = max((at for at in [*begins, end] if at <= length - 8), default=0)
        is_whole = length % PAGE_SIZE == 0 and last == end
        found = log_file_size(Env(), str(cut.parent), assumed=ONE_FILE)
        assert found == (length if is_whole else ONE_FILE), (length, begins, end)


def test_a_damaged_record_before_the_end_does_not_hide_a_cut(tmp_path: Path) -> None:
    root = fill(tmp_path / "store", 3000, ONE_FILE)
    path = root / "commitlog" / ("0" * 20)
    with path.open("r+b") as file:
        file.seek(100_000)
        file.write(bytes(2000))
    assert log_file_size(Env(), str(path.parent), assumed=ONE_FILE) == ONE_FILE
    os.truncate(path, 100 * PAGE_SIZE)
    assert log_file_size(Env(), str(path.parent), assumed=ONE_FILE) == ONE_FILE
    with pytest.raises(pyrocketstore.StoreError, match="continues behind its end"):
        log_file_size(Env(), str(path.parent))


def test_each_directory_is_flushed_once_before_the_lock(tmp_path: Path) -> None:
    """Method: the open of the lock fails, which ends the opening before other work."""
    env, root = Env(), tmp_path / "new" / "store"
    paths = [tmp_path / "logs" / "one", tmp_path / "logs" / "two", root / "commitlog"]

    def refuse_lock(original: Any, path: bytes, *rest: int) -> int:
        return -errno.EIO if path.endswith(b"/lock") else int(original(path, *rest))

    for _ in range(2):  # the second time, all directories exist: another process may have made them
        with (
            broken(env, "open", refuse_lock),
            watched(env, "fsync_directory") as calls,
            pytest.raises(pyrocketstore.StoreIOError),
        ):
            pyrocketstore.open(root, env=env, store_path_commit_log=",".join(map(str, paths)))
        flushed = collections.Counter(os.fsdecode(path) for (path,) in calls)
        assert flushed.keys() >= {str(root.parent), str(root), str(tmp_path / "logs")}
        assert set(flushed.values()) == {1}, flushed
