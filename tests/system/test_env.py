"""Goal: every system call is made as requested, raises an exception with its position on failure,
and can be replaced. Method: real files in a directory, and functions put into the table by ctypes.
"""

from __future__ import annotations

import errno
import os
import pickle
import signal
import threading
import time
from pathlib import Path

import pytest

from pyrocketstore.errors import StoreFsyncError, StoreIOError
from pyrocketstore.system._env import EnvTable, Event
from pyrocketstore.system.env import Env, local_time_name
from pyrocketstore.system.service_thread import ServiceThread
from support.broken_env import PROTOTYPES, broken, failing, watched


@pytest.fixture
def env() -> Env:
    return Env()


def test_file_calls(env, tmp_path):
    path = str(tmp_path / "file")
    fd = env.open(path, os.O_RDWR | os.O_CREAT)
    try:
        assert not os.get_inheritable(fd)
        env.ftruncate(fd, 10000)
        assert env.file_size(fd) == 10000
        env.fallocate(fd, 0, 4096)
        assert env.file_size(fd) == 10000
        env.pwrite_all(fd, b"hello", 9998 - 5)
        env.pwrite_all(fd, b"", 0)
        assert env.pread(fd, 100, 9990) == b"\0\0\0hello\0\0"
        assert env.pread(fd, 5, 20000) == b""
        env.fdatasync(fd)
        env.fsync(fd)
        assert env.lock(fd) is True
    finally:
        env.close(fd)
    env.rename(path, path + "2")
    env.fsync_directory(tmp_path)
    env.unlink(path + "2")
    env.mkdir(tmp_path / "d")
    env.rmdir(tmp_path / "d")
    assert os.listdir(tmp_path) == []


def test_an_error_says_where(env, tmp_path):
    with pytest.raises(StoreIOError) as caught:
        env.open(str(tmp_path / "no" / "file"), os.O_RDONLY)
    error = caught.value
    assert error.errno == errno.ENOENT
    assert (error.operation, error.path) == ("open", str(tmp_path / "no" / "file"))
    assert str(tmp_path) in str(error)
    assert pickle.loads(pickle.dumps(error)).operation == "open"
    for call in (
        lambda: env.unlink(str(tmp_path / "x")),
        lambda: env.rename(str(tmp_path / "x"), str(tmp_path / "y")),
        lambda: env.mkdir(str(tmp_path)),
        lambda: env.rmdir(str(tmp_path / "x")),
        lambda: env.fsync_directory(str(tmp_path / "x")),
        lambda: env.mtime_ms(str(tmp_path / "x")),
        lambda: env.pread(9999, 1, 0),
        lambda: env.pwrite_all(9999, b"x", 0),
        lambda: env.close(9999),
        lambda: env.ftruncate(9999, 1),
        lambda: env.fallocate(9999, 0, 1),
        lambda: env.fdatasync(9999),
        lambda: env.fsync(9999),
        lambda: env.file_size(9999),
        lambda: env.lock(9999),
    ):
        with pytest.raises(StoreIOError):
            call()
    with pytest.raises(ValueError, match="NUL"):
        env.open("a\0b", os.O_RDONLY)
    with pytest.raises(ValueError, match="negative"):
        env.pread(0, -1, 0)


def test_every_name_in_the_table_can_be_replaced(env, tmp_path):
    for name in PROTOTYPES:
        before = env.address(name)
        with broken(env, name, lambda original, *args: 0):
            assert env.address(name) != before
        assert env.address(name) == before
    with broken(env, "now_ms", lambda original: 1234):
        assert env.now_ms() == 1234
    assert abs(env.now_ms() - time.time() * 1000) < 60_000
    with pytest.raises(KeyError):
        env.replace("nothing", 1)
    with pytest.raises(ValueError, match="0"):
        env.replace("open", 0)
    env.replace("now_ms", env.address("monotonic_ns"))
    env.reset()
    assert env.address("now_ms") == EnvTable().address("now_ms")


def test_short_writes_are_gone_on_with(env, tmp_path):
    data = bytes(range(256))
    fd = env.open(str(tmp_path / "f"), os.O_RDWR | os.O_CREAT)
    with broken(env, "pwrite", lambda pwrite, fd, p, n, at: pwrite(fd, p, min(n, 7), at)) as calls:
        env.pwrite_all(fd, data, 3)
    assert len(calls) == 37
    assert env.pread(fd, 1000, 0) == b"\0\0\0" + data
    done = iter([5, -errno.ENOSPC])
    with broken(env, "pwrite", lambda *_: next(done)), pytest.raises(StoreIOError) as caught:
        env.pwrite_all(fd, data, 10, "f")
    assert (caught.value.errno, caught.value.position) == (errno.ENOSPC, 15)
    with broken(env, "pwrite", lambda *_: 0), pytest.raises(StoreIOError) as caught:
        env.pwrite_all(fd, data, 0)
    assert caught.value.errno == errno.EIO
    env.close(fd)


def test_lock_is_held_against_another_process(env, tmp_path):
    path = str(tmp_path / "lock")
    fd = env.open(path, os.O_RDWR | os.O_CREAT)
    assert env.lock(fd)
    child = os.fork()
    if child == 0:
        status = 9
        try:
            other = env.open(path, os.O_RDWR)
            status = 0 if env.lock(other) is False else 1
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    env.close(fd)


def test_make_directories_flushes_each_new_name(env, tmp_path):
    with watched(env, "fsync_directory") as calls:
        env.make_directories(str(tmp_path / "a" / "b" / "c"))
        env.make_directories(str(tmp_path / "a" / "b" / "c"))
    forced = [args[0].decode() for args in calls]
    assert forced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    assert env.is_dir(str(tmp_path / "a" / "b" / "c"))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreIOError):
        env.make_directories(str(tmp_path / "file" / "x"))
    for code in (errno.EIO, errno.EMFILE):
        with failing(env, "fsync_directory", code), pytest.raises(StoreIOError):
            env.make_directories(str(tmp_path / "z"))
    # The directory exists now, and its name may not be durable.
    with watched(env, "fsync_directory") as calls:
        env.make_directories(str(tmp_path / "z"))
        env.make_directories(str(tmp_path / "z"))
    assert [args[0].decode() for args in calls] == [str(tmp_path)]


def test_a_directory_that_cannot_be_opened_is_no_failed_fsync(env, tmp_path):
    """A failed open is not a failed fsync: a later fsync is made, whatever the errno is."""
    failed_open = -(1 << 16 | errno.EIO)
    with (
        broken(env, "fsync_directory", lambda original, path: failed_open),
        pytest.raises(StoreIOError, match="open failed") as caught,
    ):
        env.fsync_directory(str(tmp_path))
    assert caught.value.errno == errno.EIO
    assert not isinstance(caught.value, StoreFsyncError)
    env.fsync_directory(str(tmp_path))
    with pytest.raises(StoreIOError, match="open failed"):
        env.fsync_directory(str(tmp_path / "missing"))


@pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "rename"])
def test_write_file_leaves_the_old_content_when_it_fails(env, tmp_path, call):
    path = str(tmp_path / "f")
    env.write_file(path, b"old")
    with failing(env, call, errno.EIO), pytest.raises(StoreIOError):
        env.write_file(path, b"new, and longer")
    assert env.read_file(path) == b"old"
    env.write_file(path, b"new" * 500_000)
    assert env.read_file(path) == b"new" * 500_000
    assert env.listdir(str(tmp_path)) == ["f"]


def test_looking_around(env, tmp_path):
    (tmp_path / "b").write_bytes(b"12345")
    (tmp_path / "a").mkdir()
    root = str(tmp_path)
    assert env.listdir(root) == ["a", "b"]
    assert env.listdir(root + "/missing") == []
    assert env.list_files(root) == [("b", 5)]
    assert env.list_files(root + "/missing") == []
    with pytest.raises(StoreIOError):
        env.listdir(root + "/b")
    assert env.size(root + "/b") == 5
    with pytest.raises(StoreIOError):
        env.size(root + "/missing")
    assert env.exists(root + "/b")
    assert not env.exists(root + "/c")
    assert env.identity(root) == env.identity(root + "/a/..")
    assert abs(env.mtime_ms(root + "/b") - os.stat(root + "/b").st_mtime * 1000) < 2
    env.remove(root + "/b")
    env.remove(root + "/b")
    assert not env.exists(root + "/b")
    with pytest.raises(StoreIOError):
        env.remove(root + "/a")
    total, used, usable = env.disk_usage(root)
    assert total >= used >= 0
    assert usable >= 0
    assert env.total_memory() > 1 << 20
    assert len(local_time_name(1_700_000_000_007)) == 17
    assert local_time_name(1_700_000_000_007).endswith("007")


# ---- Event --------------------------------------------------------------------------------------
def test_event_does_not_lose_a_signal():
    event = Event()
    seen = event.sequence()
    assert event.wait(seen, 0) is False
    assert event.wait(seen, 0.01) is False
    event.signal()
    assert event.wait(seen) is True
    assert event.wait(seen, 0) is True
    assert event.sequence() == seen + 1
    assert event.wait(event.sequence(), 0.001) is False


def test_event_wakes_a_sleeping_thread():
    event = Event()
    seen = event.sequence()
    woken = []
    thread = threading.Thread(target=lambda: woken.append(event.wait(seen, 60)))
    thread.start()
    event.signal()
    thread.join(30)
    assert woken == [True]


def test_event_lets_ctrl_c_through():
    event = Event()
    seen = event.sequence()
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT))
    # A shell that starts this process in the background makes it ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            event.wait(seen, 60)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)


# ---- ServiceThread ------------------------------------------------------------------------------
class Counting(ServiceThread):
    def __init__(self) -> None:
        super().__init__("Counting")
        self.count = 0
        self.counted = threading.Semaphore(0)

    def run(self) -> None:
        while not self.stopped:
            self.wait_for_running(None)
            self.count += 1
            self.counted.release()


def test_service_thread_runs_once_for_each_wakeup():
    service = Counting()
    service.wakeup()  # a wakeup before the start is not lost
    service.start()
    service.start()
    assert service.counted.acquire(timeout=30)
    for _ in range(20):
        service.wakeup()
        assert service.counted.acquire(timeout=30)
    assert service.is_alive
    assert service.shutdown()
    assert service.stopped
    assert not service.is_alive
    assert service.count == 22
    assert service.failure is None


def test_a_dying_service_thread_says_why():
    class Dying(ServiceThread):
        def run(self) -> None:
            raise RuntimeError("broken")

    service = Dying("Dying")
    failures = []
    service.on_failure = failures.append  # type: ignore[method-assign]
    service.start()
    assert service.shutdown()
    assert str(service.failure) == "broken"
    assert failures == [service.failure]


def test_the_name_of_an_existing_directory_is_flushed(env, tmp_path):
    with watched(env, "fsync_directory") as calls:
        env.fsync_parent_directory(str(tmp_path / "a"))
    assert calls == [(str(tmp_path).encode(),)]
    with failing(env, "fsync_directory", errno.EACCES):
        env.fsync_parent_directory(str(tmp_path / "a"))
    with failing(env, "fsync_directory", errno.EIO), pytest.raises(StoreIOError):
        env.fsync_parent_directory(str(tmp_path / "a"))


def test_names_of_directories_may_be_flushed_later(env, tmp_path):
    """Goal: each new name is flushed once, also a name that is made during a flush."""
    top = str(tmp_path)
    with watched(env, "fsync_directory") as calls:
        for name in "ab":
            env.make_directories(f"{top}/q/{name}/0", durable=False)
        assert not calls
        env.fsync_new_names(f"{top}/q/a/0")
        env.fsync_new_names(f"{top}/q/a/0")
        assert [args[0].decode() for args in calls] == [top, f"{top}/q", f"{top}/q/a"]
        del calls[:]
        env.fsync_new_names(f"{top}/q/b/0")
        assert [args[0].decode() for args in calls] == [f"{top}/q/b"]
        del calls[:]
        env.make_directories(f"{top}/q/b/1")
        assert [args[0].decode() for args in calls] == [f"{top}/q/b"]

    def make_another(original, path):
        env.make_directories(f"{top}/q/d", durable=False)
        return original(path)

    env.make_directories(f"{top}/q/c", durable=False)
    with broken(env, "fsync_directory", make_another):
        env.fsync_new_names(f"{top}/q/c")
    with watched(env, "fsync_directory") as calls:
        env.fsync_new_names(f"{top}/q/d")
    assert [args[0].decode() for args in calls] == [f"{top}/q"]
    env.make_directories(f"{top}/q/e", durable=False)
    with failing(env, "fsync_directory", errno.EMFILE), pytest.raises(StoreIOError):
        env.fsync_new_names(f"{top}/q/e")
    with watched(env, "fsync_directory") as calls:
        env.fsync_new_names(f"{top}/q/e")
    assert [args[0].decode() for args in calls] == [f"{top}/q"]


@pytest.mark.parametrize(
    "path",
    ["/", "//a", "/a//b", "/a/./b", "/a/.", "/a/", "/a/..", "/.a", "/a/.b/...", "/a\n", "a", ""],
)
def test_an_absolute_path_is_that_of_pathlib(env, path):
    assert env.absolute(path) == str(Path(path).absolute())


def test_a_new_directory_in_a_checked_one_takes_one_call(env, tmp_path):
    """Goal: a new queue costs few calls, and a link at its name is refused all the same."""
    top = str(tmp_path)
    env.guard([top])
    env.make_directories(f"{top}/a/0")
    with watched(env, "mkdir") as calls:
        env.make_directories(f"{top}/a/1")
        env.make_directories(f"{top}/b/0", durable=False)
        assert [args[0].decode() for args in calls] == [f"{top}/a/1", f"{top}/b", f"{top}/b/0"]
        env.make_directories(f"{top}/b/0")
        assert len(calls) == 3
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a" / "2").symlink_to(tmp_path / "elsewhere")
    for path in (f"{top}/a/2", f"{top}/a/2/3"):
        with pytest.raises(StoreIOError, match="symbolic link"):
            env.make_directories(path)
    assert not list((tmp_path / "elsewhere").iterdir())
    (tmp_path / "a" / "4").write_bytes(b"")
    with pytest.raises(StoreIOError):
        env.make_directories(f"{top}/a/4")
    (tmp_path / "b" / "0").rmdir()
    (tmp_path / "b").rmdir()
    env.make_directories(f"{top}/b/1")
    assert (tmp_path / "b" / "1").is_dir(), "a directory that was removed meanwhile"
