"""Goal: a file appears with its full length, never replaces another one, and a failed creation
leaves no file.
Method: real files; single system calls are watched and made to fail."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.errors import StoreIOError
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing, watched

SIZE = 1 << 16
NAME = "00000000000000065536"
UNSUPPORTED = -errno.EOPNOTSUPP


@pytest.fixture
def env() -> Env:
    return Env()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    return tmp_path / "log" / NAME


def create(env: Env, path: Path) -> None:
    MappedFile(env, path, SIZE, create=True)


def descriptors() -> int:
    gc.collect()  # of the tests before this one
    return len(os.listdir("/proc/self/fd"))


def no_unnamed(env: Env) -> Any:
    return failing(env, "open_unnamed", errno.EOPNOTSUPP)


def test_a_file_has_its_length_before_its_name(env: Env, path: Path) -> None:
    def link(original: Callable[..., int], fd: int, target: bytes) -> int:
        assert os.fstat(fd).st_size == SIZE
        assert target == os.fsencode(path)
        assert not path.exists()
        return original(fd, target)

    with broken(env, "link_unnamed", link) as linked, watched(env, "open") as opened:
        create(env, path)
    assert len(linked) == 1
    assert not any(flags & os.O_CREAT for _, flags, _ in opened)
    assert path.stat().st_size == SIZE
    assert path.stat().st_blocks == 0
    assert path.stat().st_nlink == 1


@pytest.mark.parametrize("lacking", ["open_unnamed", "link_unnamed"])
def test_without_unnamed_files_it_gets_its_length_elsewhere(
    env: Env, path: Path, lacking: str
) -> None:
    temporary = path.parent.parent / f".log.{NAME}.new"
    temporary.write_bytes(b"a killed process left it")

    def link(original: Callable[..., int], source: bytes, target: bytes) -> int:
        assert (os.fsdecode(source), os.fsdecode(target)) == (str(temporary), str(path))
        assert temporary.stat().st_size == SIZE
        assert not path.exists()
        return original(source, target)

    before = descriptors()
    with failing(env, lacking, errno.EOPNOTSUPP), broken(env, "link", link) as linked:
        create(env, path)
    assert len(linked) == 1
    assert path.read_bytes() == bytes(SIZE)
    assert os.listdir(path.parent.parent) == ["log"]
    assert descriptors() == before


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EACCES, errno.ENOSYS])
def test_without_second_names_it_is_made_in_place(env: Env, path: Path, code: int) -> None:
    with no_unnamed(env), failing(env, "link", code):
        create(env, path)
    assert path.read_bytes() == bytes(SIZE)
    assert os.listdir(path.parent.parent) == ["log"]


def test_where_the_directory_above_is_not_ours_it_is_made_in_place(env: Env, path: Path) -> None:
    def no_temporary(original: Callable[..., int], name: bytes, flags: int, mode: int) -> int:
        return -errno.EACCES if name.endswith(b".new") else original(name, flags, mode)

    with no_unnamed(env), broken(env, "open", no_temporary):
        create(env, path)
    assert path.read_bytes() == bytes(SIZE)


@pytest.mark.parametrize("way", ["unnamed", "linked", "in place"])
def test_a_file_that_comes_between_is_not_replaced(env: Env, path: Path, way: str) -> None:
    """Another process makes a file of the name after we saw that there is none."""

    def come_between(original: Callable[..., int], folder: bytes, mode: int) -> int:
        path.write_bytes(b"somebody else's")
        return original(folder, mode) if way == "unnamed" else UNSUPPORTED

    second = failing(env, "link", errno.EPERM if way == "in place" else errno.EEXIST)
    before = descriptors()
    with broken(env, "open_unnamed", come_between), second, pytest.raises(StoreIOError) as caught:
        create(env, path)
    assert caught.value.errno == errno.EEXIST
    assert path.read_bytes() == b"somebody else's"
    assert os.listdir(path.parent.parent) == ["log"]
    assert descriptors() == before


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize(
    "call", ["open_unnamed", "ftruncate", "link_unnamed", "fdatasync", "fsync_directory"]
)
def test_a_creation_that_fails_leaves_nothing(env: Env, path: Path, call: str, code: int) -> None:
    before = descriptors()
    with failing(env, call, code), pytest.raises(StoreIOError) as caught:
        create(env, path)
    assert caught.value.errno == code
    # Without a descriptor the directory cannot be opened, and no fsync has failed.
    is_open = call == "open_unnamed" or (call, code) == ("fsync_directory", errno.EMFILE)
    assert caught.value.operation == ("open" if is_open else call.removesuffix("_unnamed"))
    assert caught.value.path == str(path)
    assert os.listdir(path.parent) == []
    assert descriptors() == before
    create(env, path)


@pytest.mark.parametrize("call", ["open", "ftruncate", "unlink", "fdatasync", "fsync_directory"])
def test_a_creation_by_a_second_name_that_fails_leaves_nothing(
    env: Env, path: Path, call: str
) -> None:
    def once_named(original: Callable[..., int], *args: Any) -> int:
        if call == "unlink" and not args[0].endswith(b".new"):
            return original(*args)
        if call == "open" and not args[1] & os.O_CREAT:
            return original(*args)
        return -errno.EIO

    before = descriptors()
    with no_unnamed(env), broken(env, call, once_named), pytest.raises(StoreIOError) as caught:
        create(env, path)
    assert (caught.value.errno, caught.value.operation) == (errno.EIO, call)
    assert os.listdir(path.parent) == []
    assert descriptors() == before
    with no_unnamed(env):
        create(env, path)
    assert os.listdir(path.parent.parent) == ["log"]


def test_a_file_without_a_length_gets_one(env: Env, path: Path) -> None:
    """An earlier version was killed while it made the file."""
    path.touch()
    create(env, path)
    assert path.read_bytes() == bytes(SIZE)


LEFT = (
    ".commitlog.00000000000000000000.new",
    ".index.20240102030405678.new",
    "consumequeue/T/.0.00000000000000000000.new",
    "consumequeue_ext/T/.0.00000000000000000000.new",
    "consumequeue_ext/U/.1.00000000000000000000.new",
)
FOREIGN = (
    ".commitlog.notes.new",
    ".other.00000000000000000000.new",
    "consumequeue/T/.backup.00000000000000000000.new",
)


def test_an_opening_removes_temporary_files(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"enable_consume_queue_ext": True, "message_index_enable": True}
    with pyrocketstore.open(tmp_path, **settings) as store:
        store.put("T", b"x", keys="k")
    (tmp_path / "consumequeue_ext/U").mkdir()  # a kill before consumequeue/U was created
    for name in (*LEFT, *FOREIGN):
        (tmp_path / name).touch()
    pyrocketstore.open(tmp_path, read_only=True, **settings).close()
    assert [name for name in LEFT if not (tmp_path / name).exists()] == []
    pyrocketstore.open(tmp_path, **settings).close()
    assert [name for name in LEFT if (tmp_path / name).exists()] == []
    assert [name for name in FOREIGN if not (tmp_path / name).exists()] == []


def create_mapped(env: Env, path: Path) -> MappedFile:
    return MappedFile(
        env,
        path,
        SIZE,
        create=True,
        zero_fill="folios",
        sole_writer=True,
        defer_fsync=True,
        mapped=True,
    )


def test_a_mapped_file_is_opened_once(env: Env, path: Path) -> None:
    before = descriptors()
    with watched(env, "open") as opened, watched(env, "mmap") as mapped:
        with watched(env, "fallocate") as allocated:
            file = create_mapped(env, path)
            assert file.created
            assert file.is_mapped
            assert file.confirmed == 4096
            assert file.append_message(b"first")
        assert (len(opened), len(mapped), len(allocated)) == (1, 1, 1)
    assert descriptors() == before
    (line,) = [text for text in Path("/proc/self/maps").read_text().splitlines() if NAME in text]
    assert line.endswith(str(path)), "no tool takes it for a deleted file"
    assert path.read_bytes() == b"first" + bytes(SIZE - 5)
    file.flush(0)
    assert file.flushed == 5


@pytest.mark.parametrize("call", ["mmap", "fallocate"])
def test_what_fails_at_a_mapped_file_is_done_when_it_is_needed(
    env: Env, path: Path, call: str
) -> None:
    """The error of the first try is not lost: the second one meets it."""
    before = descriptors()
    with failing(env, call, errno.ENOMEM):
        file = create_mapped(env, path)
        assert file.created
        assert file.is_mapped == (call != "mmap")
        assert file.confirmed == 0
        with pytest.raises(StoreIOError) as caught:
            file.append_message(b"first")
        assert (caught.value.errno, caught.value.operation) == (errno.ENOMEM, call)
        assert file.wrote == 0
    assert file.append_message(b"first")
    assert path.read_bytes() == b"first" + bytes(SIZE - 5)
    assert descriptors() == before


def test_a_mapped_file_does_not_replace_another(env: Env, path: Path) -> None:
    path.write_bytes(b"other".ljust(SIZE))
    file = create_mapped(env, path)
    assert not file.created
    assert not file.is_mapped
    assert path.read_bytes() == b"other".ljust(SIZE)


def test_an_empty_file_may_become_a_mapped_one(env: Env, path: Path) -> None:
    path.touch()
    file = create_mapped(env, path)
    assert file.created
    assert file.append_message(b"first")
    assert path.read_bytes() == b"first" + bytes(SIZE - 5)


def test_a_mapped_file_without_a_name_is_unmapped(env: Env, path: Path) -> None:
    before = descriptors()
    with failing(env, "fdatasync", errno.EIO), pytest.raises(StoreIOError):
        MappedFile(env, path, SIZE, create=True, sole_writer=True, mapped=True)
    assert not path.exists()
    assert descriptors() == before
    assert str(path) not in Path("/proc/self/maps").read_text()
