"""Goal: a flush of many files makes each of them durable, with few calls, and reports each error.
Method: the calls of the table are counted and made to fail; the simulated device of tests/faults
has the power cuts."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore.errors import StoreFsyncError, StoreIOError
from pyrocketstore.files import file_systems as module
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.files.file_systems import FileSystems, Unflushed
from pyrocketstore.files.lock_file import LockFile
from pyrocketstore.system import threads
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing, watched

COUNT = 70
SIZE = 4096


@pytest.fixture
def env() -> Env:
    env = Env()
    env.dirty_bytes = lambda: 0  # type: ignore[method-assign]
    return env


@pytest.fixture
def file_systems(env: Env, tmp_path: Path) -> Iterator[FileSystems]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    device = os.fstat(fd).st_dev
    yield FileSystems(env, lambda: {device: (fd, str(tmp_path))}, 64)
    os.close(fd)


def dirty_files(env: Env, path: Path, count: int = COUNT) -> list[MappedFile]:
    files = []
    for number in range(count):
        folder = path / "q" / str(number)
        env.make_directories(str(folder), durable=False)
        files.append(MappedFile(env, f"{folder}/{0:020d}", SIZE, create=True, defer_fsync=True))
        files[-1].append_message(b"x" * 20)
    return files


def unflushed(files: list[MappedFile]) -> list[Unflushed]:
    return [Unflushed(file, *positions) for file in files if (positions := file.unflushed())]


def no_syncfs(env: Env) -> object:
    return failing(env, "syncfs", errno.EOPNOTSUPP)


def pretend(env: Env) -> object:
    """As on a file system with a syncfs that reports errors, whatever holds the test's files."""
    return broken(env, "syncfs", lambda original, fd: 0)


def test_few_files_are_flushed_one_by_one(env, file_systems, tmp_path) -> None:
    files = dirty_files(env, tmp_path, 63)
    with pretend(env) as together, watched(env, "msync") as each:
        file_systems.flush(unflushed(files))
    assert (len(together), len(each)) == (0, 63)
    assert [file.flushed for file in files] == [20] * 63


def test_files_of_one_directory_are_named_by_one_fsync(env, file_systems, tmp_path) -> None:
    """The names follow the contents; a file that is being deleted does not count for the others."""
    files = dirty_files(env, tmp_path, 1)
    for number in range(1, 40):
        path = f"{os.path.dirname(files[0].path)}/{number * SIZE:020d}"
        files.append(MappedFile(env, path, SIZE, create=True, defer_fsync=True))
        files[-1].append_message(b"x" * 20)
    files[5].destroy()
    with watched(env, "fsync_directory") as names:
        file_systems.flush(unflushed(files))
    in_directory = [name for name in names if b"q/0" in name[-1]]
    assert len(in_directory) == 1
    assert all(file.flushed == 20 for file in files if file is not files[5])
    with watched(env, "fsync_directory") as names:
        for file in files:
            file.flush(0)
    assert not names


def test_many_files_are_flushed_together(env, file_systems, tmp_path) -> None:
    files = dirty_files(env, tmp_path)
    order: list[str] = []

    def sync(original, fd: int) -> int:  # type: ignore[no-untyped-def]
        order.append("syncfs")
        files[5].append_message(b"y" * 20)  # behind what the call is known to cover
        return 0

    with (
        broken(env, "syncfs", sync),
        broken(env, "msync", lambda original, *a: order.append("msync") or original(*a)),
        watched(env, "fsync_directory") as names,
    ):
        file_systems.flush(unflushed(files))
    assert order == ["syncfs", "msync"], "the second one flushes the cache of the device"
    assert [file.flushed for file in files] == [20] * COUNT
    assert len(names) <= 4, "the names of the one file alone"
    with watched(env, "fsync_directory") as names:
        files[5].flush(0)
    assert not names and files[5].flushed == 40


def test_a_file_that_is_deleted_meanwhile_flushes_no_cache(env, file_systems, tmp_path) -> None:
    files = dirty_files(env, tmp_path)

    def sync(original, fd: int) -> int:  # type: ignore[no-untyped-def]
        for file in files[:3]:
            file.unlink()
        return 0

    with broken(env, "syncfs", sync), watched(env, "msync") as each:
        file_systems.flush(unflushed(files))
    assert len(each) == 4
    assert [file.flushed for file in files[3:]] == [20] * (COUNT - 3)


@pytest.mark.parametrize("why", ["unsupported", "never", "other device", "busy", "not locked"])
def test_where_syncfs_cannot_be_used_threads_flush_each_file(
    env, file_systems, tmp_path, why
) -> None:
    files = dirty_files(env, tmp_path)
    calls = 0
    call = no_syncfs(env) if why == "unsupported" else pretend(env)
    if why == "unsupported":
        calls = 1
    elif why == "never":
        file_systems.least_files = 0
    elif why == "other device":
        file_systems._descriptors = lambda: {-2: (0, "")}
    elif why == "busy":
        env.dirty_bytes = lambda: 1 << 40
    else:
        file_systems._descriptors = dict
    with call as together, watched(env, "msync") as each, watched(env, "fsync_directory") as names:
        file_systems.flush(unflushed(files))
    assert (len(together), len(each)) == (calls, COUNT)
    assert len(names) >= COUNT
    assert [file.flushed for file in files] == [20] * COUNT


def test_a_failed_syncfs_is_final(env, file_systems, tmp_path) -> None:
    """A second one would succeed although the bytes are lost."""
    failures = []

    class Watcher:
        def note(self, error: StoreFsyncError) -> None:
            failures.append(error)

    watcher = Watcher()
    lock = LockFile(env, f"{tmp_path}/lock", on_fsync_failure=watcher.note)
    lock.take()
    files = dirty_files(env, tmp_path)
    with failing(env, "syncfs", errno.EIO), pytest.raises(StoreFsyncError, match="syncfs"):
        file_systems.flush(unflushed(files))
    assert [error.errno for error in failures] == [errno.EIO]
    with pretend(env) as together, watched(env, "msync") as each:
        for some in (files, files[:3]):
            with pytest.raises(StoreFsyncError):
                file_systems.flush(unflushed(some))
        with pytest.raises(StoreFsyncError):
            file_systems.fsync_directories([str(tmp_path)])
    assert not together and not each
    assert [file.flushed for file in files] == [0] * COUNT
    lock.release()


@pytest.mark.parametrize("fails_from", [1, 40])
def test_an_error_of_one_thread_ends_the_others(env, file_systems, tmp_path, fails_from) -> None:
    files = dirty_files(env, tmp_path)
    calls: list[int] = []

    def sync(original, *arguments: int) -> int:  # type: ignore[no-untyped-def]
        calls.append(1)
        return -errno.EIO if len(calls) >= fails_from else int(original(*arguments))

    with no_syncfs(env), broken(env, "msync", sync), pytest.raises(StoreIOError, match="msync"):
        file_systems.flush(unflushed(files))
    assert len(calls) < fails_from + module.THREADS_MAX
    assert sum(file.flushed == 20 for file in files) == fails_from - 1
    file_systems.flush(unflushed(files))
    assert [file.flushed for file in files] == [20] * COUNT


def test_threads_that_lack_descriptors_leave_files_to_the_others(
    env, file_systems, tmp_path
) -> None:
    files = dirty_files(env, tmp_path)
    for file in files:
        file.unmap_idle()
    opened: set[int] = set()

    def few(original, *arguments: object) -> int:  # type: ignore[no-untyped-def]
        if len(opened) >= 2:
            return -errno.EMFILE
        fd = int(original(*arguments))
        opened.add(fd)
        time.sleep(0.0005)  # so that other threads come in
        return fd

    def close(original, fd: int) -> int:  # type: ignore[no-untyped-def]
        opened.discard(fd)
        return int(original(fd))

    with no_syncfs(env), broken(env, "open", few) as opens, broken(env, "close", close):
        file_systems.flush(unflushed(files))
        assert len(opens) > COUNT, "some opens have failed"
    assert [file.flushed for file in files] == [20] * COUNT
    files[0].append_message(b"z")
    with failing(env, "open", errno.EMFILE):
        files[0].unmap_idle()
        with pytest.raises(StoreIOError, match="open"):
            file_systems.flush(unflushed(files))
    file_systems.flush(unflushed(files))
    assert files[0].flushed == 21


def test_without_threads_the_caller_flushes(env, file_systems, tmp_path, monkeypatch) -> None:
    def no_memory(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    monkeypatch.setattr(threads, "begin_thread", no_memory)
    files = dirty_files(env, tmp_path)
    with no_syncfs(env):
        file_systems.flush(unflushed(files))
    assert [file.flushed for file in files] == [20] * COUNT


def test_many_directories_are_flushed_together(env, file_systems, tmp_path) -> None:
    paths = [str(tmp_path / str(number)) for number in range(COUNT)]
    for path in paths:
        env.mkdir(path)
    with pretend(env) as together, watched(env, "fsync_directory") as names:
        file_systems.fsync_directories(paths)
        assert (len(together), len(names)) == (1, 0)
        file_systems.fsync_directories(paths[:10])
    assert (len(together), len(names)) == (1, 10)


def test_descriptors_belong_to_the_lock(env, tmp_path) -> None:
    (tmp_path / "log").mkdir()
    lock = LockFile(env, f"{tmp_path}/lock", [str(tmp_path / "log")])
    assert lock.descriptors() == {}
    lock.take()
    found = lock.descriptors()
    assert list(found) == [tmp_path.stat().st_dev]
    assert all(os.fstat(fd).st_dev == device for device, (fd, _) in found.items())
    lock.release()
    assert lock.descriptors() == {}


@pytest.mark.parametrize("count", [10, 100])
def test_a_store_flushes_many_queues_together(env, tmp_path, count) -> None:
    settings = {"mapped_file_size_consume_queue": 2000, "mapped_file_size_commit_log": 1 << 16,
                "max_hash_slot_num": 20, "max_index_num": 60}  # fmt: skip
    with pyrocketstore.open(tmp_path, env=env, **settings) as store:
        with pretend(env) as together, watched(env, "fsync_directory") as names:
            store.put_many("t", [b"x"] * count, queue_ids=list(range(count)))
            store.flush()
        assert len(together) == (count == 100)
        assert len(names) < 30 if count == 100 else len(names) >= count
        store.put_many("t", [b"y"] * count, queue_ids=list(range(count)))
        store.wait_dispatched()
        with pretend(env) as together, watched(env, "msync") as each:
            store.close()
        assert len(together) == (count == 100)
        assert len(each) < 30
    with pyrocketstore.open(tmp_path, **settings) as store:
        assert [store.max_offset("t", q) for q in range(count)] == [2] * count
