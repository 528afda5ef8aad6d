"""Goal: the first error ends the puts of a store for good, and leaves the note in `abort` only
where the directory is still its own.
Method: `StoreFailure` with the flags, the file and the waits that it changes, in both orders."""

from __future__ import annotations

import errno
import weakref
from pathlib import Path

import pytest

from pyrocketstore import StoreFsyncError, StoreIOError
from pyrocketstore.files.abort_file import AbortFile
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.message_store.end_of_puts import StoreFailure
from pyrocketstore.system.env import O_CREAT, O_RDWR, Env
from support.broken_env import failing


class Waits:
    """The part of AsyncPuts that is used; counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def let_go(self) -> None:
        self.count += 1


class Scene:
    def __init__(self, root: Path, *, owns: bool = True) -> None:
        self.env, self.flags, self.waits = Env(), RunningFlags(), Waits()
        self.abort = AbortFile(self.env, str(root / "abort"))
        self.abort.create()
        self.failure = StoreFailure(
            self.flags,
            self.waits,  # type: ignore[arg-type]
            self.abort,
            lambda: owns,
        )

        self.watcher = weakref.WeakMethod(self.noted)
        self.env.watch_fsyncs(self.watcher)  # the Env keeps a failure while somebody watches

    def noted(self, error: StoreFsyncError) -> None:
        """As the lock of a store, which would call `fail`."""

    def fail_an_fsync(self, path: Path) -> StoreFsyncError:
        fd = self.env.open(str(path), O_RDWR | O_CREAT)
        try:
            with failing(self.env, "fdatasync", errno.EIO), pytest.raises(StoreFsyncError) as found:
                self.env.fdatasync(fd, str(path))
        finally:
            self.env.close(fd)
        return found.value


def other_error() -> StoreIOError:
    return StoreIOError(errno.ENOSPC, "pwrite failed", "a")


def is_copy(found: BaseException | None, error: StoreIOError) -> bool:
    return type(found) is type(error) and str(found) == str(error)


def test_puts_are_accepted_before(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert scene.failure.error is None and scene.flags.is_writeable()


def test_an_error_ends_the_puts_and_the_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene, error = Scene(tmp_path), other_error()
    scene.failure.fail(error)
    assert is_copy(scene.failure.error, error)
    assert not scene.flags.is_writeable() and scene.flags.is_readable()
    assert scene.waits.count == 1
    assert not scene.abort.is_marked(), "no fsync has failed"
    assert caplog.text.count("not writeable any more") == 1 and "pwrite failed" in caplog.text


def test_a_failed_fsync_is_noted_in_abort(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    error = scene.fail_an_fsync(tmp_path / "file")
    scene.failure.fail(error)
    assert is_copy(scene.failure.error, error) and scene.abort.is_marked()


def test_the_first_error_stays_and_a_later_fsync_is_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene, first = Scene(tmp_path), other_error()
    scene.failure.fail(first)
    scene.failure.fail(scene.fail_an_fsync(tmp_path / "file"))
    assert is_copy(scene.failure.error, first)
    assert scene.abort.is_marked() and scene.waits.count == 2
    assert caplog.text.count("not writeable any more") == 1, "logged once"


def test_the_file_of_the_next_owner_is_not_changed(tmp_path: Path) -> None:
    scene = Scene(tmp_path, owns=False)
    scene.failure.fail(scene.fail_an_fsync(tmp_path / "file"))
    assert not scene.flags.is_writeable() and scene.waits.count == 1
    assert (tmp_path / "abort").read_bytes() == b""


def test_a_missing_abort_is_not_made_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    error = scene.fail_an_fsync(tmp_path / "file")
    (tmp_path / "abort").unlink()
    scene.failure.fail(error)
    assert is_copy(scene.failure.error, error) and not (tmp_path / "abort").exists()


def test_the_error_keeps_no_frames_alive(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    try:
        raise other_error()
    except StoreIOError as error:
        scene.failure.fail(error)
    assert scene.failure.error is not None and scene.failure.error.__traceback__ is None
