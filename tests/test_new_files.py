"""Goal: a new file costs its writer neither a force nor a fault for each page, and loses nothing.
Method: real files; the calls are counted, and made to fail."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from broken_env import broken, failing, watched
from pyrocketstore._mapped_file import MappedFile
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreIOError

SIZE = 1 << 20
NAME = "00000000000001048576"


@pytest.fixture
def env() -> Env:
    return Env()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / NAME)


def test_a_name_may_be_forced_by_the_first_flush(env, path):
    with watched(env, "fsync_directory") as named, watched(env, "fdatasync") as forced:
        file = MappedFile(env, path, SIZE, create=True, defer_force=True)
        file.append_message(b"x" * 5000)
        assert not named and not forced
        with failing(env, "msync", errno.EIO), pytest.raises(StoreIOError):
            file.flush(0)
        assert not named, "the file itself comes first"
        with failing(env, "fsync_directory", errno.EIO), pytest.raises(StoreIOError) as caught:
            file.flush(0)
        assert "fsync_directory" in str(caught.value)
        assert file.flushed == 0, "without its name nothing of it is safe"
        assert file.flush(0) == 5000
        file.append_message(b"x")
        assert file.flush(0) == 5001
        assert [args[0] for args in named] == [os.fsencode(os.path.dirname(path))]
        again = MappedFile(env, path, SIZE, create=True, defer_force=True)
        again.set_positions(5001)
        again.append_message(b"y")
        assert again.flush(0) == 5002
        assert len(named) == 1, "made by somebody else, and forced by them"


def test_what_is_kept_of_a_cut_file_has_a_forced_name(env, path):
    file = MappedFile(env, path, SIZE, create=True, defer_force=True)
    file.append_message(b"x" * 5000)
    file.set_positions(100)
    with watched(env, "fsync_directory") as named:
        file.zero_tail(100)
    assert len(named) == 1


def test_a_name_that_went_with_its_directory_is_not_forced(env, tmp_path):
    os.mkdir(tmp_path / "q")
    file = MappedFile(env, str(tmp_path / "q" / NAME), SIZE, create=True, defer_force=True)
    file.append_message(b"x" * 5000)

    def delete(original, base, size):
        file.destroy()
        os.rmdir(tmp_path / "q")
        return original(base, size)

    with broken(env, "msync", delete):
        assert file.flush(0) == 5000


@pytest.mark.parametrize("pwrite", ["works", "fails", "is short"])
def test_room_may_be_filled_with_zeros(env, path, pwrite):
    file = MappedFile(env, path, SIZE, create=True, confirm_step=65536, zero_fill=True)
    answers = {
        "works": lambda original, *args: original(*args),
        "fails": lambda original, *args: -errno.EIO,
        "is short": lambda original, fd, data, size, at: original(fd, data, min(size, 999), at),
    }
    with broken(env, "pwrite", answers[pwrite]) as calls:
        for _ in range(SIZE // 1000):
            file.append_message(b"x" * 1000)
            assert file.confirmed >= file.wrote
    assert calls[0][3] >= 65536, "the first step costs no more than its pages"
    assert len(calls) < 20 or pwrite == "is short"
    ends = [args[2] + args[3] for args in calls]
    assert max(ends) <= SIZE
    with open(path, "rb") as stored:
        assert stored.read() == b"x" * file.wrote + bytes(SIZE - file.wrote)
