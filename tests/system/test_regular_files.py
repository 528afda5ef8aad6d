"""Goal: the function that opens files opens only regular files, never blocks, and writes through no
link. Method: every other kind of file at a path, for each kind of open; a clock for waits."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyrocketstore import StoreIOError
from pyrocketstore.files.abort_file import AbortFile
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.system.env import Env

READ, WRITE, BOTH, MAKE = os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


ODD: dict[str, tuple[Callable[[Path], object], int]] = {
    "FIFO": (os.mkfifo, errno.EBADFD),
    "socket": (a_socket, errno.EBADFD),
    "directory": (Path.mkdir, errno.EISDIR),
    "zero": (lambda path: path.symlink_to("/dev/zero"), errno.EBADFD),
    "null": (lambda path: path.symlink_to("/dev/null"), errno.EBADFD),
    "terminal": (lambda path: path.symlink_to("/dev/ptmx"), errno.EBADFD),
}


@pytest.mark.parametrize("flags", [READ, WRITE, BOTH, MAKE])
@pytest.mark.parametrize("kind", ODD)
def test_what_is_not_a_regular_file(tmp_path: Path, kind: str, flags: int) -> None:
    make, code = ODD[kind]
    path = tmp_path / "f"
    make(path)
    env = Env()
    before = len(os.listdir("/proc/self/fd"))
    began = time.monotonic()
    with pytest.raises(StoreIOError) as caught:
        env.open(str(path), flags)
    assert time.monotonic() - began < 5
    assert caught.value.errno == (errno.ELOOP if path.is_symlink() and flags != READ else code)
    assert str(path) in str(caught.value)
    assert len(os.listdir("/proc/self/fd")) == before
    reasons = ("a directory, and must be a regular file", "not a regular file", "a symbolic link")
    assert any(reason in str(caught.value) for reason in reasons)


@pytest.mark.parametrize("flags", [WRITE, BOTH, MAKE, WRITE | os.O_CREAT | os.O_TRUNC])
@pytest.mark.parametrize("target", ["victim", "nothing"])
def test_writing_follows_no_link(tmp_path: Path, flags: int, target: str) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "f").symlink_to(tmp_path / target)
    env = Env()
    with pytest.raises(StoreIOError) as caught:
        env.open(str(tmp_path / "f"), flags)
    assert caught.value.errno == errno.ELOOP
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert not (tmp_path / "nothing").exists()
    if target == "victim":
        assert env.read_file(str(tmp_path / "f")) == b"precious"
        with pytest.raises(StoreIOError):
            env.read_file(str(tmp_path / "f"), follow=False)


@pytest.mark.parametrize("what", ["file", "link", "FIFO"])
def test_a_temporary_file_is_a_new_one(tmp_path: Path, what: str) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    temporary = tmp_path / "f.tmp"
    if what == "file":
        temporary.write_bytes(b"left by a killed process" * 100)
    elif what == "link":
        temporary.symlink_to(tmp_path / "victim")
    else:
        os.mkfifo(temporary)
    env = Env()
    env.write_file(str(tmp_path / "f"), b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert sorted(os.listdir(tmp_path)) == ["f", "victim"]
    temporary.mkdir()
    with pytest.raises(StoreIOError, match=r"f\.tmp"):
        env.write_file(str(tmp_path / "f"), b"newer")
    assert (tmp_path / "f").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["checkpoint", "abort", "topics.json", "topics.json.bak"])
@pytest.mark.parametrize("kind", [*ODD, "link"])
def test_small_files(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    make = ODD[kind][0] if kind in ODD else lambda path: path.symlink_to(tmp_path / "victim")
    make(tmp_path / name)
    env = Env()

    def use() -> None:
        if name == "checkpoint":
            StoreCheckpoint(env, str(tmp_path / name))
        elif name == "abort":
            AbortFile(env, str(tmp_path / name)).create()
        else:
            TopicConfigFile(env, str(tmp_path / "topics.json")).load()

    with pytest.raises(StoreIOError, match=name):
        use()
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_files_named(tmp_path: Path) -> None:
    env = Env()
    path = str(tmp_path)
    (tmp_path / "1").write_bytes(b"x")
    (tmp_path / "2").symlink_to(tmp_path / "1")
    (tmp_path / "other").mkdir()
    assert env.files_named(path, str.isdigit, follow=True) == [("1", 1), ("2", 1)]
    with pytest.raises(StoreIOError, match="2: a symbolic link"):
        env.files_named(path, str.isdigit, follow=False)
    assert env.files_named(path, "1".__eq__, follow=False) == [("1", 1)]
    assert env.files_named(f"{path}/none", str.isdigit, follow=False) == []
    (tmp_path / "1").unlink()
    with pytest.raises(StoreIOError, match="No such file"):
        env.files_named(path, str.isdigit, follow=True)
    (tmp_path / "2").unlink()
    os.mkfifo(tmp_path / "3")
    with pytest.raises(StoreIOError, match="3: not a regular file"):
        env.files_named(path, str.isdigit, follow=True)
