"""Files that stay open between reads: how many, for how long, and what changes of a file do."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.system._env import MAX_KEPT
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing, watched

SIZE = 4096


def made(directory: Path, number: int = 0, byte: bytes = b"a") -> Path:
    path = directory / f"{number * SIZE:020d}"
    path.write_bytes(byte * SIZE)
    return path


def opened(path: Path, env: Env | None = None) -> MappedFile:
    file = MappedFile(env or Env(), str(path), SIZE, mode="read")
    file.wrote = SIZE
    return file


def open_below(directory: Path) -> list[int]:
    """The descriptors of this process for files below a directory, also of deleted ones."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the one that listed them
        if target.startswith(f"{directory}/"):
            found.append(int(name))
    return found


def test_a_second_read_opens_nothing(tmp_path):
    env = Env()
    file = opened(made(tmp_path), env)
    with watched(env, "open") as opens, watched(env, "close") as closes:
        assert [file.read(at, 1) for at in range(3)] == [b"a"] * 3
    assert (len(opens), len(closes)) == (1, 0)
    (fd,) = open_below(tmp_path)
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_a_file_that_is_open_for_writing_is_kept_until_it_is_mapped(tmp_path):
    env = Env()
    file = MappedFile(env, str(made(tmp_path)), SIZE)
    file.wrote = SIZE
    with watched(env, "open") as opens:
        assert [file.read(at, 1) for at in range(3)] == [b"a"] * 3
    assert len(opens) == len(open_below(tmp_path)) == 1
    assert file.hold()
    assert open_below(tmp_path) == []
    file.release()
    assert file.unmap_idle()
    assert file.read(0, 1) == b"a"
    file.destroy()
    assert open_below(tmp_path) == []
    with pytest.raises(StoreIOError) as caught:
        file.read(0, 1)
    assert caught.value.errno == errno.ENOENT


def test_a_file_that_is_open_for_writing_is_not_asked_for_its_names(tmp_path):
    """Only its owner deletes it, and closes it then."""
    env = Env()
    path = made(tmp_path)
    file = MappedFile(env, str(path), SIZE)
    file.wrote = SIZE
    file.read(0, 1)  # opens it, and looks at some files of the pool, this one perhaps
    with watched(env, "link_count") as asked:
        assert [file.read(at, 1) for at in range(3)] == [b"a"] * 3
    assert asked == []
    assert len(open_below(tmp_path)) == 1
    file.unlink()
    assert open_below(tmp_path) == []
    made(tmp_path, byte=b"b")  # a new file of that name is another one
    with pytest.raises(StoreIOError) as caught:
        file.read(0, 1)
    assert caught.value.errno == errno.ENOENT
    assert open_below(tmp_path) == []


def test_a_file_that_is_deleted_during_a_read_is_not_kept(tmp_path):
    env = Env()
    file = MappedFile(env, str(made(tmp_path)), SIZE)
    file.wrote = SIZE

    def deleted(original, *args):
        got = original(*args)
        file.unlink()
        return got

    with broken(env, "pread", deleted), pytest.raises(StoreIOError) as caught:
        file.read(0, 1)
    assert caught.value.errno == errno.ENOENT
    assert open_below(tmp_path) == []


@pytest.mark.parametrize("end", ["shutdown", "close_kept", "to_memory", "del"])
def test_the_file_is_closed(tmp_path, end):
    file = opened(made(tmp_path))
    file.read(0, 1)
    assert len(open_below(tmp_path)) == 1
    if end == "del":
        del file
        gc.collect()
    else:
        getattr(file, end)()
    assert open_below(tmp_path) == []


def test_a_file_that_is_shut_down_is_not_kept_again(tmp_path):
    file = opened(made(tmp_path))
    file.shutdown()
    assert file.read(0, 1) == b"a"
    assert open_below(tmp_path) == []


def test_a_deleted_file_is_missing_at_once_and_takes_no_room(tmp_path):
    path = made(tmp_path)
    file = opened(path)
    file.read(0, 1)
    path.unlink()
    with pytest.raises(StoreIOError) as caught:
        file.read(0, 1)
    assert caught.value.errno == errno.ENOENT
    assert open_below(tmp_path) == []


def test_a_replaced_file_is_read_from_its_path(tmp_path):
    path = made(tmp_path)
    file = opened(path)
    assert file.read(0, 2) == b"aa"
    made(tmp_path, 7, b"b").rename(path)
    assert file.read(0, 2) == b"bb"
    assert len(open_below(tmp_path)) == 1


def test_a_truncated_file_ends_early(tmp_path):
    path = made(tmp_path)
    file = opened(path)
    file.read(SIZE - 1, 1)
    os.truncate(path, 100)
    with pytest.raises(StoreCorruptionError, match="ends after 28 of 64 bytes"):
        file.read(72, 64)


def test_a_file_that_cannot_be_asked_is_opened_again(tmp_path):
    env = Env()
    file = opened(made(tmp_path), env)
    file.read(0, 1)
    with failing(env, "link_count", errno.ESTALE), watched(env, "open") as opens:
        assert file.read(0, 1) == b"a"
    assert len(opens) == 1


def test_the_pool_is_bounded(tmp_path):
    env = Env()
    files = [opened(made(tmp_path, number), env) for number in range(MAX_KEPT + 40)]
    for file in files * 2:
        assert file.read(5, 1) == b"a"
    assert len(open_below(tmp_path)) == MAX_KEPT
    for file in files:
        file.shutdown()
    assert open_below(tmp_path) == []


def test_files_in_use_stay_and_idle_ones_leave(tmp_path):
    """A file that is read again and again stays open while others come and go."""
    env = Env()
    often, *others = [opened(made(tmp_path, number), env) for number in range(2 * MAX_KEPT)]
    often.read(0, 1)
    with watched(env, "open") as opens:
        for file in others:
            file.read(0, 1)
            often.read(0, 1)
    again = [path for path, *_ in opens if path == os.fsencode(often.path)]
    assert again == []


def test_a_process_without_descriptors_closes_idle_files(tmp_path):
    env = Env()
    files = [opened(made(tmp_path, number), env) for number in range(3)]
    files[0].read(0, 1)
    files[1].read(0, 1)
    left = [errno.EMFILE]

    def full_once(original, *args):
        return -left.pop() if left else original(*args)

    with broken(env, "open", full_once) as opens:
        assert files[2].read(0, 1) == b"a"
    assert len(opens) == 2
    assert len(open_below(tmp_path)) == 1
    with failing(env, "open", errno.EMFILE) as opens, pytest.raises(StoreIOError, match="open"):
        files[0].read(0, 1)
    assert len(opens) == 2  # a second try: files[2] was closed
    assert open_below(tmp_path) == []


def test_a_small_limit_of_descriptors_leaves_most_to_the_program(tmp_path):
    for number in range(20):
        made(tmp_path, number)
    program = f"""
import os, resource
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.system.env import Env
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
env = Env()
files = [MappedFile(env, "{tmp_path}/%020d" % (n * {SIZE}), {SIZE}, mode="read")
         for n in range(20)]
before = len(os.listdir("/proc/self/fd"))
for file in files:
    file.read(0, 1)
print(len(os.listdir("/proc/self/fd")) - before)
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (shown.stdout.strip(), shown.stderr) == ("8", "")


def test_a_read_in_progress_keeps_its_file_open(tmp_path):
    """Neither a shutdown nor another file takes the descriptor from a read."""
    env = Env()
    file = opened(made(tmp_path), env)
    file.read(0, 1)
    (fd,) = open_below(tmp_path)
    begun, may_end = threading.Event(), threading.Event()
    found = []

    def slowly(original, *args):
        begun.set()
        may_end.wait(30)
        return original(*args)

    with broken(env, "pread", slowly):
        reader = threading.Thread(target=lambda: found.append(file.read(0, 3)))
        reader.start()
        assert begun.wait(30)
        file.shutdown()
        assert open_below(tmp_path) == [fd]
        may_end.set()
        reader.join(30)
    assert found == [b"aaa"]
    assert open_below(tmp_path) == []


def test_deleted_files_leave_while_others_are_opened(tmp_path):
    env = Env()
    gone = [opened(made(tmp_path, number), env) for number in range(4)]
    for file in gone:
        file.read(0, 1)
        os.unlink(file.path)
    for number in range(10, 10 + MAX_KEPT):
        opened(made(tmp_path, number), env).read(0, 1)
    assert open_below(tmp_path) == []
    assert len(gone) == 4


def test_a_forked_child_closes_no_descriptor(tmp_path):
    """The child may have closed the descriptors, and have opened others with the same numbers."""
    file = opened(made(tmp_path))
    file.read(0, 1)
    (fd,) = open_below(tmp_path)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(fd)
            mine = os.dup2(os.open("/dev/null", os.O_RDONLY), fd)
            file.shutdown()
            del file
            gc.collect()
            os.fstat(mine)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with watched(file.env, "open") as opens:
        assert file.read(0, 1) == b"a"
    assert opens == []
