"""Goal: a file sequence is one sequence of bytes, allocated ahead, cut and deleted without gaps.
Method: a bytearray as oracle over random steps; faults in making, deleting and allocating files."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.files._mapped_file import FileSequence
from pyrocketstore.files.mapped_file_queue import (
    AllocateMappedFileService,
    MappedFileQueue,
    file_name_of,
)
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing, watched
from support.gates import wait_until

S = 8192


@pytest.fixture
def env() -> Env:
    return Env()


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "queue")


def names(root: str) -> list[str]:
    return sorted(os.listdir(root)) if os.path.exists(root) else []


def numbers(root: str) -> list[int]:
    return [int(name) for name in names(root)]


def append(queue: MappedFileQueue, data: bytes, start: int = 0) -> None:
    """Append over as many files as it takes."""
    while data:
        file = queue.get_last_mapped_file(start)
        assert file is not None
        room = file.file_size - file.wrote
        assert file.append_message(data[:room])
        data = data[room:]


def filled(env: Env, root: str, count: int, **options) -> MappedFileQueue:
    queue = MappedFileQueue(env, root, S, **options)
    for i in range(count):
        append(queue, bytes([i + 1]) * S)
    return queue


# ---- loading ------------------------------------------------------------------------------------
def test_load_takes_what_is_named_by_20_digits(env, root):
    assert MappedFileQueue(env, root, S).load() is True
    filled(env, root, 3)
    for stray in (".hidden", "x.tmp", "1", "0" * 21, "00000000000000008192.bak", "٠" * 20):
        Path(root, stray).write_bytes(b"x")
    queue = MappedFileQueue(env, root, S)
    assert queue.load() is True
    assert [f.file_from_offset for f in queue.mapped_files] == [0, S, 2 * S]
    assert all(f.wrote == f.committed == f.flushed == S for f in queue.mapped_files)
    assert all(not f.is_mapped for f in queue.mapped_files)
    assert (queue.get_min_offset(), queue.get_max_offset()) == (0, 3 * S)
    assert queue.check_self()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_last_file_without_length_is_dropped(env, root, read_only):
    filled(env, root, 2)
    empty = Path(root, file_name_of(2 * S))
    empty.write_bytes(b"")
    queue = MappedFileQueue(env, root, S, read_only=read_only)
    assert queue.load()
    assert len(queue.mapped_files) == 2
    assert empty.exists() is read_only


@pytest.mark.parametrize("size", [0, 1, S - 1, S + 1])
def test_any_other_length_is_refused_by_name(env, root, size):
    filled(env, root, 3)
    wrong = Path(root, file_name_of(S))
    wrong.write_bytes(b"x" * size)
    queue = MappedFileQueue(env, root, S)
    with pytest.raises(StoreCorruptionError, match=f"{wrong.name}.*must have {S}.*read-only"):
        queue.load()
    assert not queue.mapped_files
    queue = MappedFileQueue(env, root, S, read_only=True)
    assert queue.load()
    found = {file.file_from_offset: file.wrote for file in queue.mapped_files}
    assert found == {0: S, 2 * S: S} | ({S: min(size, S)} if size else {})
    (mismatched,) = queue.mismatched
    assert mismatched[:3] == (str(wrong), S, size)
    if 0 < size < S:
        file = queue.mapped_files[1]
        assert file.read(0, size) == b"x" * size
        with pytest.raises(StoreCorruptionError, match="the file ends after"):
            file.read(0, size + 1)
    assert wrong.stat().st_size == size


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_size_that_no_file_has_is_refused(env, root, read_only):
    filled(env, root, 3)
    queue = MappedFileQueue(env, root, 2 * S, read_only=read_only)
    with pytest.raises(StoreCorruptionError, match="mapped_file_size_commit_log"):
        queue.load()


def test_an_impossible_offset_is_refused(env, root):
    os.makedirs(root)
    Path(root, "9" * 20).write_bytes(bytes(S))
    with pytest.raises(StoreCorruptionError, match="offset"):
        MappedFileQueue(env, root, S).load()


# ---- making files -------------------------------------------------------------------------------
def test_get_last_mapped_file(env, root):
    queue = MappedFileQueue(env, root, S)
    assert queue.get_last_mapped_file() is None
    assert queue.get_last_mapped_file(5, need_create=False) is None
    assert names(root) == []
    first = queue.get_last_mapped_file(3 * S + 7)
    assert first.file_from_offset == 3 * S
    assert queue.get_last_mapped_file(0) is first
    assert queue.get_last_mapped_file() is first
    first.append_message(b"x" * S)
    assert queue.get_last_mapped_file() is first
    assert queue.get_last_mapped_file(0, need_create=False) is None
    second = queue.get_last_mapped_file(0)
    assert second.file_from_offset == 4 * S
    assert numbers(root) == [3 * S, 4 * S]
    assert queue.get_first_mapped_file() is first


def test_a_file_that_cannot_be_made_can_be_made_later(env, root):
    queue = MappedFileQueue(env, root, S)
    for call in ("mkdir", "open", "open_unnamed", "ftruncate", "link_unnamed", "fsync_directory"):
        with failing(env, call, errno.ENOSPC), pytest.raises(StoreIOError):
            queue.get_last_mapped_file(0)
        assert names(root) == []
        assert not queue.mapped_files
    assert queue.get_last_mapped_file(0) is not None


def test_a_foreign_file_in_the_way_is_left_alone(env, root):
    queue = filled(env, root, 1)
    foreign = Path(root, file_name_of(S))
    foreign.write_bytes(b"f" * S)
    with pytest.raises(StoreCorruptionError, match="not part of the file sequence"):
        queue.get_last_mapped_file(0)
    assert foreign.read_bytes() == b"f" * S


# ---- finding ------------------------------------------------------------------------------------
def test_find_mapped_file_by_offset(env, root):
    empty = MappedFileQueue(env, root, S)
    assert empty.find_mapped_file_by_offset(0, True) is None
    queue = MappedFileQueue(env, root, S)
    append(queue, b"x" * (3 * S), start=5 * S)
    files = queue.mapped_files
    for offset in (5 * S, 6 * S - 1, 6 * S, 8 * S - 1):
        assert queue.find_mapped_file_by_offset(offset) is files[offset // S - 5]
    for offset in (-1, 0, 5 * S - 1, 8 * S, 1 << 62):
        assert queue.find_mapped_file_by_offset(offset) is None
        assert queue.find_mapped_file_by_offset(offset, True) is files[0]
    files[1].destroy()
    holed = MappedFileQueue(env, root, S)
    holed.load()
    assert holed.find_mapped_file_by_offset(6 * S) is None
    assert holed.find_mapped_file_by_offset(7 * S + 1) is holed.mapped_files[1]
    assert not holed.check_self()


def test_get_mapped_file_by_time(env, root):
    queue = filled(env, root, 3)
    for i, file in enumerate(queue.mapped_files):
        os.utime(file.path, (0, 1000 + i))
    first, second, third = queue.mapped_files
    assert queue.get_mapped_file_by_time(0) is first
    assert queue.get_mapped_file_by_time(1_000_001) is second
    assert queue.get_mapped_file_by_time(1_002_000) is third
    assert queue.get_mapped_file_by_time(9_000_000) is third
    assert MappedFileQueue(env, root, S).get_mapped_file_by_time(0) is None


# ---- forcing ------------------------------------------------------------------------------------
def test_flush_goes_file_by_file(env, root):
    queue = filled(env, root, 2)
    append(queue, b"x" * 10)
    queue.mapped_files[0].store_timestamp = 77
    assert queue.flush(0) is False
    assert (queue.flushed_where, queue.store_timestamp) == (S, 77)
    assert queue.flush(1) is False
    assert (queue.flushed_where, queue.store_timestamp) == (2 * S, 77)
    assert queue.flush(1) is True, "ten bytes are no page"
    assert queue.how_much_fall_behind() == queue.remain_how_many_data_to_flush() == 10
    assert queue.flush(0) is False
    assert queue.flush(0) is True
    assert queue.flushed_where == 2 * S + 10
    assert queue.commit(0) is False
    assert queue.committed_where == S
    assert queue.remain_how_many_data_to_commit() == S + 10
    assert MappedFileQueue(env, root, S).flush(0) is True
    assert MappedFileQueue(env, root, S).commit(0) is True
    assert MappedFileQueue(env, root, S).how_much_fall_behind() == 0
    assert queue.get_mapped_memory_size() == 3 * S


def test_a_failed_flush_moves_nothing(env, root):
    queue = filled(env, root, 1)
    with failing(env, "msync", errno.EIO), pytest.raises(StoreIOError):
        queue.flush(0)
    assert queue.flushed_where == 0
    assert queue.flush(0) is False
    assert queue.flushed_where == S


def test_flush_goes_on_behind_deleted_files(env, root):
    queue = filled(env, root, 4)
    queue.flush(0)
    assert queue.delete_files_before(3 * S + 1) == 3
    assert queue.flushed_where == S
    assert queue.flush(0) is False
    assert queue.flushed_where == 4 * S
    assert queue.flush(0) is True
    with failing(env, "unlink", errno.EIO), pytest.raises(StoreIOError):
        queue.delete_last_mapped_file()
    queue.flushed_where = 3 * S
    assert queue.flush(0) is False
    assert queue.flushed_where == 4 * S


# ---- cutting and deleting -----------------------------------------------------------------------
@pytest.mark.parametrize("offset", [0, 1, S - 1, S, S + 1, 2 * S, 3 * S - 1, 3 * S, 4 * S])
@pytest.mark.parametrize("read_only", [False, True])
def test_truncate_dirty_files(env, root, offset, read_only):
    filled(env, root, 3)
    before = {name: Path(root, name).read_bytes() for name in names(root)}
    queue = MappedFileQueue(env, root, S, read_only=read_only)
    queue.load()
    queue.truncate_dirty_files(offset)
    kept = min(3, offset // S + 1)
    assert len(queue.mapped_files) == kept
    assert queue.get_max_offset() == min(offset, 3 * S)
    if read_only:
        assert {name: Path(root, name).read_bytes() for name in names(root)} == before
        return
    assert numbers(root) == [i * S for i in range(kept)]
    whole = b"".join(before.values())[:offset].ljust(kept * S, b"\0")
    assert b"".join(Path(root, name).read_bytes() for name in names(root)) == whole
    append(queue, b"new")
    assert queue.get_max_offset() == min(offset, 3 * S) + 3


def test_truncating_deletes_from_the_end(env, root):
    """So that a crash in between leaves no hole."""
    queue = filled(env, root, 4)
    count = [0]

    def second_fails(unlink, path):
        count[0] += 1
        return unlink(path) if count[0] < 2 else -errno.EIO

    with broken(env, "unlink", second_fails), pytest.raises(StoreIOError):
        queue.truncate_dirty_files(10)
    assert numbers(root) == [0, S, 2 * S]
    queue.truncate_dirty_files(10)
    assert numbers(root) == [0]


def test_delete_expired_file_by_time(env, root):
    queue = filled(env, root, 14)
    now = env.now_ms()
    for i, file in enumerate(queue.mapped_files):
        age = 0 if i == 12 else 1000
        os.utime(file.path, (0, now / 1000 - age))
    assert queue.delete_expired_file_by_time(2_000_000) == 0
    assert queue.delete_expired_file_by_time(500_000) == 10
    assert queue.delete_expired_file_by_time(500_000, 1, 120_000) == 2
    assert queue.delete_expired_file_by_time(500_000) == 0, "not from the middle"
    assert queue.delete_expired_file_by_time(500_000, clean_immediately=True) == 1
    assert queue.delete_expired_file_by_time(0, clean_immediately=True) == 0, "never the last"
    assert numbers(root) == [13 * S]
    assert queue.get_min_offset() == 13 * S


def test_delete_expired_file_by_offset(env, root):
    queue = MappedFileQueue(env, root, S)
    for last in (100, 200, 300, 50):
        append(queue, bytes(S - 20) + last.to_bytes(8, "big") + bytes(12))

    def last_of(file):
        return int.from_bytes(file.read(S - 20, 8), "big")

    assert queue.delete_expired_file_by_offset(100, last_of) == 0
    assert queue.delete_expired_file_by_offset(250, last_of) == 2
    assert queue.delete_expired_file_by_offset(1 << 40, last_of) == 1
    assert queue.delete_expired_file_by_offset(1 << 40, last_of) == 0
    assert numbers(root) == [3 * S]


def test_a_deletion_that_fails_is_tried_again(env, root):
    queue = filled(env, root, 3)
    assert queue.retry_delete_first_file() is False
    with failing(env, "unlink", errno.EACCES), pytest.raises(StoreIOError):
        queue.delete_expired_file_by_time(0, clean_immediately=True)
    assert len(queue.mapped_files) == 3
    assert not queue.get_first_mapped_file().is_available()
    assert queue.get_mapped_memory_size() == 2 * S
    assert queue.retry_delete_first_file(120_000) is True
    assert queue.retry_delete_first_file() is False
    assert numbers(root) == [S, 2 * S]
    queue.delete_last_mapped_file()
    queue.delete_last_mapped_file()
    queue.delete_last_mapped_file()
    assert names(root) == []
    assert MappedFileQueue(env, root, S).retry_delete_first_file() is False


def test_reset_offset(env, root):
    queue = filled(env, root, 4)
    assert queue.reset_offset(S) is False
    assert len(queue.mapped_files) == 4
    assert queue.reset_offset(2 * S + 5) is True
    assert queue.get_max_offset() == 2 * S + 5
    assert numbers(root) == [0, S, 2 * S]


def test_destroy_and_shutdown(env, root):
    queue = filled(env, root, 3)
    view = queue.mapped_files[1].select_mapped_buffer(0, 5)
    queue.destroy()
    assert not os.path.exists(root)
    assert (len(queue.mapped_files), queue.flushed_where, queue.get_min_offset()) == (0, 0, -1)
    assert bytes(view.byte_buffer) == b"\2" * 5
    view.release()
    queue.destroy()
    queue = filled(env, root, 2)
    Path(root, "foreign").write_bytes(b"")
    queue.destroy()
    assert names(root) == ["foreign"]
    queue = filled(env, root, 2)
    assert queue.unmap_idle() == 2
    assert queue.unmap_idle() == 0
    queue.shutdown(1000)
    assert all(file.is_cleanup_over() for file in queue.mapped_files)
    with failing(env, "rmdir", errno.EIO), pytest.raises(StoreIOError):
        MappedFileQueue(env, root, S).destroy()


def test_read_only_leaves_the_disk_alone(env, root):
    filled(env, root, 2)
    before = {name: Path(root, name).read_bytes() for name in names(root)}
    writing = (
        "ftruncate",
        "fallocate",
        "punch",
        "pwrite",
        "unlink",
        "link",
        "open_unnamed",
        "mkdir",
        "rmdir",
        "rename",
    )
    queue = MappedFileQueue(env, root, S, read_only=True)
    queue.load()
    faults = [failing(env, call, errno.EROFS) for call in writing]
    calls = [fault.__enter__() for fault in faults]
    append(queue, b"z" * (S + 5))
    assert [f.mode for f in queue.mapped_files] == ["read", "read", "memory", "memory"]
    assert queue.flush(0) in (True, False)
    queue.truncate_dirty_files(S + 3)
    queue.delete_expired_file_by_time(0, clean_immediately=True)
    queue.destroy()
    for fault in reversed(faults):
        fault.__exit__(None, None, None)
    assert calls == [[]] * len(writing)
    assert {name: Path(root, name).read_bytes() for name in names(root)} == before


# ---- the model ----------------------------------------------------------------------------------
STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3 * S)),
    st.tuples(st.just("cut"), st.integers(0, 10 * S)),
    st.tuples(st.just("flush"), st.integers(0, 2)),
    st.tuples(st.just("expire"), st.integers(0, 10 * S)),
    st.tuples(st.just("reload"), st.just(0)),
)


@given(st.lists(STEP, max_size=12), st.integers(0, 3))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_queue_is_a_bytearray(tmp_path_factory, steps, first):
    env = Env()
    root = str(tmp_path_factory.mktemp("model"))
    rng = random.Random(3)
    queue = MappedFileQueue(env, root, S, confirm_step=4096)
    low = high = first * S
    want = bytearray()  # the bytes [low, high)
    for name, n in steps:
        if name == "append":
            data = rng.randbytes(n)
            append(queue, data, start=first * S)
            if not want and not queue.mapped_files[0].wrote:
                continue
            want += data
            high += n
        elif name == "cut" and low < n <= high:
            queue.truncate_dirty_files(n)
            del want[n - low :]
            high = n
            queue.flushed_where = min(queue.flushed_where, n)
        elif name == "flush":
            while not queue.flush(n):
                pass
            assert low <= queue.flushed_where <= high or not queue.mapped_files
        elif name == "expire" and queue.mapped_files:
            gone = min(max(0, -(-(n - low) // S) - 1), len(queue.mapped_files) - 1)
            assert queue.delete_files_before(min(n, low + len(queue.mapped_files) * S)) == gone
            del want[: gone * S]
            low += gone * S
        elif name == "reload" and queue.mapped_files:
            queue = MappedFileQueue(env, root, S, confirm_step=4096)
            queue.load()
            queue.truncate_dirty_files(high)
            queue.flushed_where = high
        if queue.mapped_files:
            assert (queue.get_min_offset(), queue.get_max_offset()) == (low, high)
            assert queue.check_self()
    read = b"".join(f.read(0, f.wrote) for f in queue.mapped_files)
    assert read == want
    on_disk = b"".join(Path(root, name).read_bytes() for name in names(root))
    assert on_disk == bytes(want).ljust(len(names(root)) * S, b"\0")


# ---- AllocateMappedFileService ------------------------------------------------------------------
@pytest.fixture
def service(env):
    service = AllocateMappedFileService(env)
    service.start()
    yield service
    assert service.shutdown()
    assert service.failure is None


def test_the_next_file_is_made_ahead(env, root, service):
    queue = MappedFileQueue(env, root, S, allocate_service=service, confirm_step=4096)
    append(queue, b"x" * 10)
    wait_until(lambda: numbers(root) == [0, S], "the next file was not made")
    assert len(queue.mapped_files) == 1
    append(queue, b"x" * (2 * S))
    wait_until(lambda: numbers(root) == [0, S, 2 * S, 3 * S], "the next file was not made")
    assert queue.check_self()
    assert service.shutdown()
    assert numbers(root) == [0, S, 2 * S], "a file made and not used is deleted"
    append(queue, b"x" * (2 * S))  # without the thread it continues by itself
    assert queue.get_max_offset() == 4 * S + 10


def test_an_error_in_making_reaches_the_caller_and_passes(env, root, service):
    queue = MappedFileQueue(env, root, S, allocate_service=service)
    for call in ("mkdir", "ftruncate"):
        with failing(env, call, errno.ENOSPC):
            for _ in range(2):
                with pytest.raises(StoreIOError) as caught:
                    queue.get_last_mapped_file(0)
                assert caught.value.errno == errno.ENOSPC
                assert service.last_error is not None
    assert service.is_alive
    append(queue, b"x" * S)
    append(queue, b"x")
    assert service.last_error is None
    assert queue.get_max_offset() == S + 1


def test_an_error_made_ahead_does_not_stay(env, root, service):
    """The next file could not be made; when it is needed it is tried again."""

    def first_only(ftruncate, fd, size):
        return ftruncate(fd, size) if len(calls) == 1 else -errno.ENOSPC

    queue = MappedFileQueue(env, root, S, allocate_service=service)
    with broken(env, "ftruncate", first_only) as calls:
        append(queue, b"x" * 10)
        wait_until(lambda: service.last_error is not None, "the next file was not tried")
    append(queue, b"x" * S)
    assert queue.get_max_offset() == S + 10


def test_a_slow_disk_is_waited_for_and_not_for_ever(env, root, service, monkeypatch):
    monkeypatch.setattr("pyrocketstore.files.allocate_mapped_file_service.WAIT_TIMEOUT", 0.05)
    gate = threading.Event()

    def slow(ftruncate, fd, size):
        gate.wait(60)
        return ftruncate(fd, size)

    queue = MappedFileQueue(env, root, S, allocate_service=service)
    with broken(env, "ftruncate", slow):
        with pytest.raises(StoreIOError) as caught:
            queue.get_last_mapped_file(0)
        assert caught.value.errno == errno.ETIMEDOUT
        gate.set()
        wait_until(lambda: numbers(root) == [0, S], "the request was forgotten")
        assert queue.get_last_mapped_file(0).file_from_offset == 0


def test_room_is_kept_ahead_of_the_writer(env, root):
    size = 4 << 20
    service = AllocateMappedFileService(env, ahead_size=1 << 20)
    service.start()
    queue = MappedFileQueue(
        env, root, size, allocate_service=service, confirm_step=1 << 20, populate=1 << 20
    )
    ahead = Path(root, file_name_of(size))
    with watched(env, "madvise") as touched:
        file = queue.get_last_mapped_file(0)
        wait_until(lambda: file.confirmed >= 2 << 20, "nothing was allocated ahead")
        file.append_message(b"x" * (1 << 20))
        with watched(env, "fallocate") as calls:
            file.append_message(b"y" * (1 << 19))
        assert calls == [], "the writer need not allocate"
        service.ahead_event.signal()
        wait_until(lambda: file.confirmed >= 7 << 19, "the writer was not followed")
        file.append_message(b"z" * (5 << 18))
        service.ahead_event.signal()
        wait_until(lambda: file.confirmed == size, "the end of the file was not reached")
        wait_until(lambda: ahead.stat().st_blocks > 0, "the next file was not begun")
    assert {args[2] for args in touched} == {23}
    with failing(env, "fallocate", errno.ENOSPC):
        file.set_positions(0)
        service.ahead_event.signal()
        wait_until(lambda: service.last_error is not None, "the error was not kept")
    assert service.is_alive
    assert service.shutdown()
    assert numbers(root) == [0]
    assert not file.is_full()


def test_an_existing_last_file_is_followed_too(env, root, service):
    size = 1 << 20
    queue = MappedFileQueue(env, root, size)
    append(queue, b"x" * 10)
    queue = MappedFileQueue(env, root, size, allocate_service=service)
    queue.load()
    queue.truncate_dirty_files(10)
    file = queue.get_last_mapped_file()
    wait_until(lambda: file.confirmed == size, "nothing was allocated ahead")
    assert numbers(root) == [0]


def test_a_dead_thread_is_noticed_and_not_waited_for(env, root, monkeypatch):
    """4.9.3's dies of what it does not expect, and each put waits five seconds from then on."""
    service = AllocateMappedFileService(env)
    service.start()
    queue = MappedFileQueue(env, root, S, allocate_service=service)
    append(queue, b"x" * S)
    wait_until(lambda: numbers(root) == [0, S], "the next file was not made")

    def die(request):
        raise RuntimeError("not expected")

    with monkeypatch.context() as patch:
        patch.setattr(service, "_work_ahead", lambda: die(None))
        service.wakeup()
        wait_until(lambda: not service.is_alive, "the thread did not die")
    assert isinstance(service.failure, RuntimeError)
    start = time.monotonic()
    append(queue, b"y" * (3 * S))
    assert time.monotonic() - start < 4
    assert queue.get_max_offset() == 4 * S
    assert service.shutdown()


def test_a_thread_that_dies_leaves_nobody_waiting(env, root, monkeypatch):
    service = AllocateMappedFileService(env)
    service.start()
    work = service._work

    def die(request):
        if threading.current_thread().name == service.name:
            raise RuntimeError("not expected")
        work(request)

    monkeypatch.setattr(service, "_work", die)
    queue = MappedFileQueue(env, root, S, allocate_service=service)
    start = time.monotonic()
    append(queue, b"x" * (2 * S))
    assert time.monotonic() - start < 4
    assert queue.get_max_offset() == 2 * S
    assert service.shutdown()


@pytest.mark.parametrize("zero_fill", ["no", "folios", "pages"])
def test_warming_up_a_large_file(env, root, zero_fill):
    """Its size does not fit into 32 bits. No memory is taken: the calls are only watched."""
    size = (1 << 31) + 8192
    service = AllocateMappedFileService(env, warm_up=1 << 17)
    queue = MappedFileQueue(
        env, root, size, allocate_service=service, confirm_step=1 << 20, zero_fill=zero_fill
    )
    nothing = {"fallocate", "madvise", "mlock", "munlock"}
    with contextlib.ExitStack() as stack:
        calls = {name: stack.enter_context(broken(env, name, lambda *a: 0)) for name in nothing}
        wrote = stack.enter_context(broken(env, "pwrite", lambda original, *args: args[2]))
        forces = stack.enter_context(watched(env, "fdatasync"))
        file = queue.get_last_mapped_file(0)
        assert file.confirmed == size
        ends = sorted((at, at + length) for _, at, length in calls["fallocate"])
        assert (ends[0][0], ends[-1][1]) == (0, size)
        assert all(before[1] == after[0] for before, after in itertools.pairwise(ends))
        assert sum(args[2] for args in wrote) == (0 if zero_fill == "no" else size)
        if zero_fill == "pages":  # which nobody stores to through the mapping
            assert len(forces) > size // (1 << 29)
        else:
            assert sum(args[1] for args in calls["madvise"]) >= size
        assert [args[1:] for args in calls["mlock"]] == [(size, 0)]
        assert service.shutdown()
        assert [args[1] for args in calls["munlock"]] == [size]


def test_a_file_that_was_left_is_unlocked_and_a_refusal_is_logged_once(
    env, root, service, monkeypatch, caplog
):
    monkeypatch.setattr("pyrocketstore.files.allocate_mapped_file_service.UNLOCK_AFTER_MS", 20)
    service.warm_up = 1
    queue = MappedFileQueue(env, root, S, allocate_service=service)
    with broken(env, "mlock", lambda *args: 0), broken(env, "munlock", lambda *args: 0) as unlocks:
        append(queue, b"x" * S)
        assert unlocks == []
        append(queue, b"x")
        wait_until(lambda: len(unlocks) == 1, "the first file stays locked")
    with failing(env, "mlock", errno.EPERM) as refused:
        append(queue, b"x" * (3 * S))
        assert len(refused) <= 1
    assert caplog.text.count("RLIMIT_MEMLOCK") == len(refused)
    assert queue.get_max_offset() == 4 * S + 1


def test_a_sequence_does_not_change_while_the_queue_grows(env, root):
    """Readers take one reference; a longer sequence shares the list of the shorter ones."""
    queue = MappedFileQueue(env, root, S)
    seen = [queue.mapped_files]
    for number in range(6):
        queue.get_last_mapped_file(0).append_message(b"x" * S)
        seen.append(queue.mapped_files)
        if number == 3:
            queue.delete_files_before(2 * S)
    offsets = [[file.file_from_offset // S for file in files] for files in seen]
    assert offsets == [[], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5]]
    last = seen[-1]
    assert [len(files) for files in seen] == [len(files) for files in offsets]
    assert last[-1] is last[4] is next(reversed(last))
    assert [file.file_from_offset // S for file in last[-3:-1]] == [3, 4]
    assert list(last[5:]) == list(last[2:1]) == []
    assert last[0] in seen[2]
    assert last[-1] not in seen[5]
    for number in (5, -6):
        with pytest.raises(IndexError):
            last[number]
    with pytest.raises(TypeError):
        FileSequence([None])


def test_two_sequences_that_continue_one(env, root):
    queue = MappedFileQueue(env, root, S)
    for _ in range(3):
        queue.get_last_mapped_file(0).append_message(b"x" * S)
    first, second, third = queue.mapped_files
    short = FileSequence([first])
    assert list(short.with_last(second)) == [first, second]
    assert list(short.with_last(third)) == [first, third]
    assert list(short) == [first]


def test_the_cost_of_a_file_does_not_grow_with_their_count(env, root):
    """The list of a sequence is copied only where another sequence has continued it."""
    queue = MappedFileQueue(env, root, S)
    queue.get_last_mapped_file(0)
    (file,) = queue.mapped_files
    files = FileSequence([file])
    for _ in range(2000):
        files = files.with_last(file)
    assert len(files) == 2001
    tracemalloc.start()
    try:
        kept = [files]
        for _ in range(100):
            kept.append(kept[-1].with_last(file))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 100_000  # 100 copies would take 1.6 MB
