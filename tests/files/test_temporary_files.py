"""Goal: exactly the temporary files of killed processes are removed, and nothing else.
Method: directories with names that are, or nearly are, names of such files; failing calls.
One name is that of a new file whose last step fails."""

from __future__ import annotations

import contextlib
import errno
import time
from pathlib import Path

import pytest

from pyrocketstore import StoreIOError
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.files.broken_folder import broken_folder
from pyrocketstore.files.temporary_files import (
    is_temporary_queue_file,
    remove_temporary_file,
    remove_temporary_files,
    remove_temporary_queue_files,
)
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing

STAMP = "0" * 19 + "7"
TEMPORARY = [f".commitlog.{STAMP}.new", ".commitlog.12345678901234567.new"]
OTHERS = [
    "commitlog",
    f"commitlog.{STAMP}.new",
    f".commitlog.{STAMP}.new.new",
    f".commitlog.{STAMP}.neu",
    f".commitlog.{STAMP}",
    ".commitlog.1234567890123456.new",
    f".commitlog.{STAMP}0.new",
    ".commitlog.123456789012345678x.new",
    f".commitlog2.{STAMP}.new",
    f".index.{STAMP}.new",
    ".commitlog." + "\u0663" * 18 + ".new",
]


def names(path: Path) -> set[str]:
    return {one.name for one in path.iterdir()}


def test_only_files_of_that_directory_are_removed(tmp_path: Path) -> None:
    for name in (*TEMPORARY, *OTHERS):
        (tmp_path / name).write_bytes(b"a")
    remove_temporary_files(Env(), str(tmp_path / "commitlog"))
    assert names(tmp_path) == set(OTHERS)


@pytest.mark.parametrize(("code", "is_error"), [(errno.EACCES, False), (errno.EIO, True)])
def test_a_directory_that_cannot_be_listed(
    tmp_path: Path, code: int, is_error: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Env, path: str) -> list[str]:
        raise StoreIOError(code, "listdir failed", path)

    (tmp_path / TEMPORARY[0]).write_bytes(b"a")
    monkeypatch.setattr(Env, "listdir", fail)
    with pytest.raises(StoreIOError) if is_error else contextlib.nullcontext():
        remove_temporary_files(Env(), str(tmp_path / "commitlog"))
    assert names(tmp_path) == {TEMPORARY[0]}


def test_a_failing_removal_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / TEMPORARY[0]
    path.write_bytes(b"a")
    env = Env()
    with failing(env, "unlink", errno.EROFS), pytest.raises(StoreIOError, match=path.name):
        remove_temporary_file(env, str(path))
    assert path.exists()


@pytest.mark.parametrize(
    ("name", "is_temporary"),
    [
        (f".0.{STAMP}.new", True),
        (f".-12.{STAMP}.new", True),
        (f".+7.{STAMP}.new", True),
        (f".abc.{STAMP}.new", False),
        (f"..{STAMP}.new", False),
        (f".1\n.{STAMP}.new", False),
        (f".\u0663.{STAMP}.new", False),
        ("0", False),
        (f"0.{STAMP}.new", False),
    ],
)
def test_names_of_files_of_queues(tmp_path: Path, name: str, is_temporary: bool) -> None:
    assert is_temporary_queue_file(name) is is_temporary
    (tmp_path / name).write_bytes(b"a")
    remove_temporary_queue_files(Env(), str(tmp_path))
    assert names(tmp_path) == (set() if is_temporary else {name})


def test_the_name_of_a_new_file_that_a_kill_leaves(tmp_path: Path) -> None:
    """Without unnamed files, a new file has a temporary name until it has its length."""
    env, folder = Env(), tmp_path / "commitlog"
    folder.mkdir()
    with (
        failing(env, "open_unnamed", errno.EOPNOTSUPP),
        failing(env, "unlink", errno.EIO),  # as if the process had ended before
        pytest.raises(StoreIOError),
    ):
        MappedFile(env, str(folder / ("0" * 20)), 4096, create=True)
    assert names(tmp_path) == {"commitlog", f".commitlog.{'0' * 20}.new"}
    remove_temporary_files(env, str(folder))
    assert names(tmp_path) == {"commitlog"}
    assert names(folder) == {"0" * 20}


def test_the_folder_of_removed_data_is_named_by_the_local_time(tmp_path: Path) -> None:
    env = Env()
    with broken(env, "now_ms", lambda original: 1_700_000_000_123):
        found = broken_folder(env, str(tmp_path))
        assert found == broken_folder(env, str(tmp_path))
    local = time.localtime(1_700_000_000)
    assert Path(found).parent == tmp_path / ".broken"
    assert Path(found).name == env.local_time_name(1_700_000_000_123)
    assert Path(found).name.startswith(time.strftime("%Y%m%d%H%M%S", local))
    assert list(tmp_path.iterdir()) == [], "the caller makes it"
