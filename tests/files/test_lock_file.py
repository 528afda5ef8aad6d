"""Goal: each directory of a store has one owner, whatever happens to its files meanwhile.
Method: backups, deletions, forks and kills beside an open store; second openers in child
processes."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import PutError, StoreError, StoreStateError
from pyrocketstore.files.lock_file import LockFile
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing

SMALL = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 2000}
#: One that opens the store again: prints "in" or the error.
OPEN = """
import sys, pyrocketstore
try:
    store = pyrocketstore.open(sys.argv[1], mapped_file_size_commit_log=1 << 16)
except pyrocketstore.StoreError as error:
    print(error)
else:
    print("in")
    store.put("T", b"second")
    store.close()
"""
#: 4.9.3's lock: a record lock of the process on byte 0. Prints "free" or "locked".
PROBE = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        print("free")
    except OSError:
        print("locked")
"""


def child(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def wait_for(condition: object, seconds: float = 10) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_backup_does_not_end_the_lock(tmp_path: Path) -> None:
    """A record lock of the process ends when any descriptor of the file is closed there."""
    root = tmp_path / "store"
    with pyrocketstore.open(root, **SMALL) as store:
        store.put("T", b"1")
        shutil.copytree(root, tmp_path / "copy")
        (root / "lock").read_bytes()
        assert child(PROBE, root / "lock") == "locked"
        assert "already open by another process" in child(OPEN, root)
        store.put("T", b"2")
    assert child(PROBE, root / "lock") == "free"
    assert child(OPEN, root) == "in"


@pytest.mark.parametrize("how", ["deleted", "replaced", "new"])
def test_a_lock_file_that_is_gone_ends_the_puts(tmp_path: Path, how: str) -> None:
    root = tmp_path / "store"
    store = pyrocketstore.open(root, **SMALL)
    store.put("T", b"1")
    (root / "lock").unlink()
    if how == "replaced":
        (root / "lock").write_bytes(b"lock")
    if how == "new":
        (root / "lock").symlink_to(tmp_path / "elsewhere")
    # A second store of ours stays out: the directory is locked too.
    assert f"{root} is already open by another process" in child(OPEN, root)
    wait_for(lambda: store.stats().failure is not None)
    with pytest.raises(PutError, match="lock was deleted or replaced while the store was open"):
        store.put("T", b"2")
    assert [m.body for m in store.read("T")] == [b"1"]
    with pytest.raises(StoreStateError, match="lock was deleted or replaced"):
        store.close()
    assert (root / "abort").exists(), "the next opening recovers"
    if how != "new":
        with pyrocketstore.open(root, **SMALL) as store:
            assert [m.body for m in store.read("T")] == [b"1"]


def test_a_close_sees_that_the_lock_file_is_gone(tmp_path: Path) -> None:
    """Also where no thread has looked yet: the abort file of a second owner must stay."""
    root = tmp_path / "store"
    store = pyrocketstore.open(root, **SMALL)
    store.put("T", b"1")
    (root / "lock").unlink()
    with pytest.raises(StoreStateError, match="lock was deleted or replaced"):
        store.close()
    assert (root / "abort").exists()


@pytest.mark.parametrize("which", ["store", "store/commitlog"])
def test_a_directory_that_is_moved_away_ends_the_puts(tmp_path: Path, which: str) -> None:
    store = pyrocketstore.open(tmp_path / "store", **SMALL)
    store.put("T", b"1")
    (tmp_path / which).rename(tmp_path / "moved")
    wait_for(lambda: store.stats().failure is not None)
    with pytest.raises(PutError, match=r"moved or replaced|deleted or replaced"):
        store.put("T", b"2")
    with pytest.raises(StoreError):
        store.close()
    shutil.rmtree(tmp_path / which, ignore_errors=True)  # the allocating thread may have made it
    (tmp_path / "moved").rename(tmp_path / which)
    with pyrocketstore.open(tmp_path / "store") as store:
        assert [m.body for m in store.read("T")] == [b"1"]


def test_a_lock_file_replaced_while_it_is_taken_is_not_taken(tmp_path: Path) -> None:
    """Between the opening of the file and its lock somebody deletes it: the lock would be of a file
    that nobody else can find."""
    env = Env()
    path = tmp_path / "lock"
    times = iter(range(3))

    def lock(original: object, fd: int) -> int:
        assert callable(original)
        if next(times, None) is not None:
            path.unlink()
        return int(original(fd))

    taken = LockFile(env, str(path))
    with broken(env, "lock", lock) as calls:
        taken.take()
    assert len(calls) == 4
    assert child(PROBE, path) == "locked"
    taken.release()
    with (
        broken(env, "lock", lambda original, fd: path.unlink() or original(fd)),
        pytest.raises(StoreStateError, match="keeps replacing"),
    ):
        taken.take()
    assert not taken.is_held
    taken.take()
    taken.release()


# ---- forks ---------------------------------------------------------------------------------------
def forked() -> int:
    """A child that lives until it is killed."""
    pid = os.fork()
    if pid == 0:
        try:
            time.sleep(600)
        finally:
            os._exit(0)
    return pid


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = pyrocketstore.open(root, **SMALL)
    pid = forked()
    try:
        assert "already open" in child(OPEN, root)
        store.close()
        assert child(OPEN, root) == "in", "the parent has closed the store"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


OWNER = """
import os, sys, time, pyrocketstore
store = pyrocketstore.open(sys.argv[1], mapped_file_size_commit_log=1 << 16)
store.put("T", b"1")
pid = os.fork()
if pid == 0:
    time.sleep(600)
    os._exit(0)
print(pid, flush=True)
time.sleep(600)
"""


def test_a_child_that_outlives_its_killed_parent_does_not_keep_the_lock(tmp_path: Path) -> None:
    root = tmp_path / "store"
    command = [sys.executable, "-c", OWNER, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        survivor = int(owner.stdout.readline())
        try:
            # The child runs Python's hooks after its fork; the lock is the parent's alone then.
            wait_for(lambda: not any("lock" in link or link == str(root) for link in fds(survivor)))
            assert "already open by another process" in child(OPEN, root)
            owner.kill()
            owner.wait()
            assert child(OPEN, root) == "in"
        finally:
            os.kill(survivor, signal.SIGKILL)
            owner.kill()


def fds(pid: int) -> list[str]:
    """The files that a process has open."""
    links = [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
    return [os.readlink(link) for link in links if os.path.lexists(link)]


# ---- directories ---------------------------------------------------------------------------------
def test_two_roots_cannot_share_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    link = tmp_path / "link"
    link.symlink_to(log)
    with pyrocketstore.open(tmp_path / "a", store_path_commit_log=str(log), **SMALL) as store:
        store.put("T", b"from a")
        store.wait_dispatched()
        before = (log / ("0" * 20)).read_bytes()
        for text in (str(log), str(link), f"{tmp_path}/x/../log", f"{log},{tmp_path}/more"):
            (tmp_path / "x").mkdir(exist_ok=True)
            with pytest.raises(StoreStateError, match="already open by this process"):
                pyrocketstore.open(tmp_path / "b", store_path_commit_log=text, **SMALL)
        assert (log / ("0" * 20)).read_bytes() == before
        names = {path.name for path in log.iterdir()}
        assert names <= {"0" * 20, f"{1 << 16:020d}"}, "4.9.3 takes nothing else in the directory"
        with pyrocketstore.open(tmp_path / "b", store_path_commit_log=str(log), read_only=True,
                                **SMALL) as reader:  # fmt: skip
            assert reader.message_store.get_max_phy_offset() > 0
    with pyrocketstore.open(tmp_path / "b", store_path_commit_log=str(log), **SMALL):
        pass


SHARE = """
import sys, pyrocketstore
try:
    pyrocketstore.open(sys.argv[1], store_path_commit_log=sys.argv[2],
                       mapped_file_size_commit_log=1 << 16).close()
except pyrocketstore.StoreError as error:
    print(error)
else:
    print("in")
"""


@pytest.mark.parametrize("paths", ["{0}/log", "{0}/one,{0}/log", "{0}/a/commitlog"])
def test_another_process_cannot_share_a_log(tmp_path: Path, paths: str) -> None:
    """Also one whose log is below the first store's root, and one directory of several."""
    text = paths.format(tmp_path)
    given = {} if "/a/" in text else {"store_path_commit_log": text}
    for path in text.split(","):
        Path(path).mkdir(parents=True)
    last = text.split(",")[-1]
    with pyrocketstore.open(tmp_path / "a", **given, **SMALL) as store:
        store.put("T", b"1")
        owner = f"another process (process id {os.getpid()})"
        assert child(SHARE, tmp_path / "b", last) == f"{last} is already open by {owner}"
    assert child(SHARE, tmp_path / "b", last) == "in"


def test_a_file_system_without_directory_locks_has_the_others(tmp_path: Path) -> None:
    """NFS has no flock of a directory that is open for reading: the descriptor is there alone."""
    env = Env()

    def unlocked(_: object, path: bytes) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    lock = LockFile(env, str(tmp_path / "lock"))
    with broken(env, "lock_directory", unlocked):
        lock.take()
    assert child(PROBE, lock.path) == "locked"
    with pytest.raises(StoreStateError, match="by this process"):
        LockFile(env, lock.path).take()
    lock.release()
    with failing(env, "lock_directory", errno.EIO), pytest.raises(StoreError):
        lock.take()
    lock.take()
    lock.release()


def test_a_stranger_that_was_opened_leaves_nothing_locked(tmp_path: Path) -> None:
    """An opening that fails behind the locks gives all of them back."""
    root, log = tmp_path / "store", tmp_path / "log"
    log.mkdir()
    (log / ("0" * 20)).mkdir()
    for _ in range(2):
        with pytest.raises(StoreError, match="a directory, and must be a regular file"):
            pyrocketstore.open(root, store_path_commit_log=str(log), **SMALL)
    (log / ("0" * 20)).rmdir()
    assert child(OPEN, root) == "in"
    with pyrocketstore.open(tmp_path / "b", store_path_commit_log=str(log), **SMALL):
        pass
