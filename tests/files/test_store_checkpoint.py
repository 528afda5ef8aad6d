"""Goal: after a crash the small files describe the state before it, and a directory has one owner.
Method: compare the bytes on disk with struct; faults in system calls; real child processes."""

from __future__ import annotations

import errno
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import PutError
from pyrocketstore.errors import StoreError, StoreFormatError, StoreIOError, StoreStateError
from pyrocketstore.files.abort_file import AbortFile
from pyrocketstore.files.lock_file import LockFile
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.files.store_checkpoint import CHECKPOINT_SIZE, StoreCheckpoint
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing, watched
from support.gates import unclean
from support.sizes import SIZES


@pytest.fixture
def env() -> Env:
    return Env()


def test_a_missing_checkpoint_is_made_at_full_length(env, tmp_path):
    path = tmp_path / "sub" / "checkpoint"
    with watched(env, "fsync_directory") as forced:
        checkpoint = StoreCheckpoint(env, str(path))
    assert path.read_bytes() == bytes(CHECKPOINT_SIZE)
    assert forced[-1][0] == os.fsencode(path.parent)
    assert checkpoint.get_min_timestamp() == 0
    assert checkpoint.get_min_timestamp_index() == 0


@pytest.mark.parametrize("size", [0, 1, 23, 24, 4095, 4096, 5000])
def test_checkpoint_keeps_what_is_there(env, tmp_path, size):
    path = tmp_path / "checkpoint"
    whole = struct.pack(">qqqqq", 1_700_000_000_123, 1_700_000_000_099, 1_699_999, 4711, -1)
    content = whole.ljust(size, b"\0")[:size]
    path.write_bytes(content)
    checkpoint = StoreCheckpoint(env, str(path))
    want = content.ljust(CHECKPOINT_SIZE, b"\0")
    assert path.read_bytes() == want
    times = struct.unpack(">qqq", want[:24])
    assert times == (
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
    )
    checkpoint.physic_msg_timestamp = 10_000
    checkpoint.logics_msg_timestamp = 20_000
    checkpoint.index_msg_timestamp = 6_999
    assert path.read_bytes() == want, "setting changes memory only"
    checkpoint.flush()
    assert path.read_bytes() == struct.pack(">qqq", 10_000, 20_000, 6_999) + want[24:]
    assert checkpoint.get_min_timestamp() == 7_000
    assert checkpoint.get_min_timestamp_index() == 6_999
    again = StoreCheckpoint(env, str(path))
    assert again.physic_msg_timestamp == 10_000


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, 1.5, "1", None, True])
def test_a_time_of_a_checkpoint_is_an_int64(env, tmp_path, value):
    checkpoint = StoreCheckpoint(env, str(tmp_path / "checkpoint"))
    times = ["physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp"]
    for name in times:
        setattr(checkpoint, name, 7)
        with pytest.raises(StoreFormatError, match=name):
            setattr(checkpoint, name, value)
        assert getattr(checkpoint, name) == 7
        assert getattr(StoreCheckpoint, name) is vars(StoreCheckpoint)[name]
    for note in (checkpoint.note_log_flushed, checkpoint.note_queues_flushed):
        for arguments in ((value, 8), (8, value)):
            with pytest.raises(StoreFormatError):
                note(*arguments)
    with pytest.raises(StoreFormatError):
        checkpoint.begin_log(value, [])
    checkpoint.flush()
    again = StoreCheckpoint(env, str(tmp_path / "checkpoint"), read_only=True)
    assert again.index_msg_timestamp == 7


def test_checkpoint_read_only_touches_nothing(env, tmp_path):
    path = tmp_path / "sub" / "checkpoint"
    checkpoint = StoreCheckpoint(env, str(path), read_only=True)
    checkpoint.logics_msg_timestamp = 5
    checkpoint.flush()
    checkpoint.shutdown()
    assert os.listdir(tmp_path) == []
    short = tmp_path / "short"
    short.write_bytes(struct.pack(">qq", 1, 2)[:12])
    checkpoint = StoreCheckpoint(env, str(short), read_only=True)
    assert checkpoint.physic_msg_timestamp == 1
    assert checkpoint.logics_msg_timestamp == 0
    assert short.stat().st_size == 12


def test_a_checkpoint_that_cannot_be_forced_raises(env, tmp_path):
    checkpoint = StoreCheckpoint(env, str(tmp_path / "checkpoint"))
    with failing(env, "fdatasync", errno.EIO), pytest.raises(StoreIOError):
        checkpoint.flush()
    with failing(env, "pwrite", errno.EROFS), pytest.raises(StoreIOError):
        checkpoint.flush()
    with failing(env, "open", errno.EACCES), pytest.raises(StoreIOError):
        StoreCheckpoint(env, str(tmp_path / "checkpoint"), read_only=True)
    with broken(env, "pwrite", lambda pwrite, fd, p, n, at: pwrite(fd, p, min(n, 5), at)) as calls:
        checkpoint.index_msg_timestamp = 77
        checkpoint.shutdown()
    assert len(calls) == 5
    assert StoreCheckpoint(env, str(tmp_path / "checkpoint")).index_msg_timestamp == 77


def test_running_flags():
    flags = RunningFlags()
    assert flags.is_readable()
    assert flags.is_writeable()
    assert flags.get_and_make_not_readable() is True
    assert flags.get_and_make_not_readable() is False
    assert flags.flag_bits == 1
    assert flags.get_and_make_readable() is False
    assert flags.is_readable()
    for bit in (2, 4, 8, 16):
        assert flags.set_bits(bit) is True
        assert flags.set_bits(bit) is False
        assert not flags.is_writeable()
        assert flags.is_cq_writeable() is (bit == 16)
        assert flags.is_readable()
        assert flags.set_bits(bit, False) is True
        assert flags.is_writeable()
    assert flags.get_and_make_disk_ok() is True
    assert flags.get_and_make_disk_full() is True
    assert flags.get_and_make_disk_full() is False
    assert flags.get_and_make_disk_ok() is False
    assert flags.get_and_make_not_writeable() is True
    assert flags.get_and_make_writeable() is False
    first = StoreError("the first")
    flags.make_logics_queue_error(first)
    flags.make_index_file_error(StoreError("the second"))
    assert (type(flags.cause), str(flags.cause)) == (StoreError, "the first")
    assert flags.is_logics_queue_error()
    assert flags.is_index_file_error()
    flags.begin_repair()
    assert flags.flag_bits == RunningFlags.REPAIRING
    assert flags.is_cq_writeable()
    assert not flags.is_writeable()
    flags.end_repair(False, True, False)
    assert flags.flag_bits == RunningFlags.WRITE_INDEX_FILE_ERROR
    assert (type(flags.cause), str(flags.cause)) == (StoreError, "the first")
    flags.begin_repair()
    flags.end_repair(True, True, False)
    assert flags.flag_bits == 0
    assert flags.cause is None


def test_the_checkpoint_has_its_page_before_the_disk_fills_up(env, tmp_path):
    with watched(env, "fallocate") as allocated:
        StoreCheckpoint(env, str(tmp_path / "checkpoint"))
    assert [call[1:3] for call in allocated] == [(0, 4096)]
    assert (tmp_path / "checkpoint").stat().st_blocks * 512 >= 4096


def test_abort_file(env, tmp_path):
    abort = AbortFile(env, str(tmp_path / "store" / "abort"))
    assert not abort.exists()
    with watched(env, "fsync_directory") as forced:
        abort.create()
        abort.create()
    assert forced[-1][0] == os.fsencode(tmp_path / "store")
    assert (tmp_path / "store" / "abort").read_bytes() == b""
    assert abort.exists()
    with watched(env, "fsync_directory") as forced:
        abort.delete()
        abort.delete()
    assert len(forced) == 1
    assert not abort.exists()
    with failing(env, "open", errno.ENOSPC), pytest.raises(StoreIOError):
        abort.create()


# ---- the lock -----------------------------------------------------------------------------------
def test_the_lock_is_taken_once_in_a_process(env, tmp_path):
    root = tmp_path / "store"
    first = LockFile(env, str(root / "lock"))
    first.take()
    assert first.is_held
    assert (root / "lock").read_bytes() == b"lock"
    assert os.listdir(root) == ["lock"]
    link = tmp_path / "link"
    link.symlink_to(root)
    for other in (LockFile(Env(), str(root / "lock")), LockFile(env, str(link / "lock")), first):
        with pytest.raises(StoreStateError, match="already open by this process"):
            other.take()
    assert first.is_held
    first.release()
    first.release()
    assert not first.is_held
    other = LockFile(env, str(link / "lock"))
    other.take()
    other.release()
    assert (root / "lock").read_bytes() == b"lock"


TAKE = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError:
        sys.exit(7)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_keeps_other_processes_out_and_is_kept_out_by_them(env, tmp_path):
    lock = LockFile(env, str(tmp_path / "lock"))
    lock.take()
    command = [sys.executable, "-c", TAKE, str(tmp_path / "lock")]
    assert subprocess.run(command, check=False).returncode == 7
    lock.release()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(StoreStateError, match="already open by another process"):
            lock.take()
        assert not lock.is_held
        child.stdin.close()
        assert child.wait() == 0
    lock.take()  # the registry has forgotten the failed try
    lock.release()


@pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "lock"])
def test_a_lock_that_fails_leaves_nothing_behind(env, tmp_path, call):
    lock = LockFile(env, str(tmp_path / "lock"))
    with failing(env, call, errno.EIO), watched(env, "close") as closed:
        with pytest.raises(StoreIOError):
            lock.take()
        assert len(closed) == (1 if call == "open" else 2)  # the directory, and the file
    lock.take()
    lock.release()


def test_a_forked_child_has_no_lock_and_lets_none_go(env, tmp_path):
    lock = LockFile(env, str(tmp_path / "lock"))
    lock.take()
    child = os.fork()
    if child == 0:
        status = 9
        try:
            status = int(lock.is_held)
            lock.release()
            try:
                LockFile(env, lock.path).take()
                status |= 2
            except StoreStateError as error:
                status |= 0 if "another process" in str(error) else 4
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    command = [sys.executable, "-c", TAKE, lock.path]
    assert subprocess.run(command, check=False).returncode == 7, "the parent still has it"
    lock.release()


def test_a_file_that_could_not_be_uncovered_is_still_to_be(env, tmp_path):
    """Goal: who tries again after an error does not pass it over: keys would count as forced."""
    path = tmp_path / "checkpoint"
    checkpoint = StoreCheckpoint(env, str(path))
    checkpoint.index_msg_timestamp = 2000
    checkpoint.flush()
    with failing(env, "fdatasync", errno.EIO), pytest.raises(StoreIOError):
        checkpoint.uncover_index_file(2000, 1000)
    with watched(env, "fdatasync") as forced:
        checkpoint.uncover_index_file(2000, 1000)
    assert len(forced) == 1
    assert StoreCheckpoint(env, str(path)).index_msg_timestamp == 1000


def test_the_checkpoint_stays_behind_a_lost_queue_entry(tmp_path: Path) -> None:
    """Goal: once a queue gave an entry up, the checkpoint claims no later time for the queues."""
    with unclean(pyrocketstore.open(tmp_path, **SIZES)) as store:
        store.put("t", b"")
        store.flush()
        before = store.message_store.checkpoint.logics_msg_timestamp
        assert before > 0
        time.sleep(0.01)
        store.put("t", b"")
        store.wait_dispatched()
        store.message_store.running_flags.make_logics_queue_error(StoreError("the reason"))
        with pytest.raises(StoreError, match="the reason"):
            store.flush()
        assert store.message_store.checkpoint.logics_msg_timestamp == before
        with pytest.raises(PutError, match="the reason"):
            store.put("t", b"")


JUNK = {
    "noise": random.Random(3).randbytes(CHECKPOINT_SIZE),
    "ones": b"\xff" * CHECKPOINT_SIZE,
    "a negative time": struct.pack(">qqq", 1_700_000_000_000, -5, 0),
    "a time after 2286": struct.pack(">qqq", 1_700_000_000_000, 0, 10**13),
    "a text": b"a text in place of the file\n",
    "plausible times before noise": struct.pack(">qqq", *[1_700_000_000_000] * 3) + b"noise" * 50,
    "an offset": struct.pack(">qqqqq", *[1_700_000_000_000] * 3, -2, 0),
}


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("kind", JUNK)
def test_a_damaged_checkpoint_counts_as_zeros(env, tmp_path, kind, read_only):
    path = tmp_path / "checkpoint"
    path.write_bytes(JUNK[kind].ljust(CHECKPOINT_SIZE, b"\0"))
    before = path.read_bytes()
    checkpoint = StoreCheckpoint(env, str(path), read_only=read_only)
    assert checkpoint.damage and checkpoint.physic_msg_timestamp == 0
    assert checkpoint.get_min_timestamp() == checkpoint.get_min_timestamp_index() == 0
    checkpoint.physic_msg_timestamp = 1_700_000_000_000
    checkpoint.flush()
    if read_only:
        assert path.read_bytes() == before
    else:
        times = struct.pack(">qqq", 1_700_000_000_000, 0, 0)
        assert path.read_bytes() == times.ljust(CHECKPOINT_SIZE, b"\0")
        assert StoreCheckpoint(env, str(path)).damage == ""
