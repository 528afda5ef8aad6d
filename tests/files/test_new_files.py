"""Goal: a new file costs its writer neither an fsync nor a page fault for each page, and loses no
data.
Method: real files; system calls are counted and made to fail."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import threading
from pathlib import Path

import pytest

from pyrocketstore.errors import StoreIOError
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.system._env import Event
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing, watched

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
        file = MappedFile(env, path, SIZE, create=True, defer_fsync=True)
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
        again = MappedFile(env, path, SIZE, create=True, defer_fsync=True)
        again.set_positions(5001)
        again.append_message(b"y")
        assert again.flush(0) == 5002
        assert len(named) == 1, "made by somebody else, and forced by them"


def test_what_is_kept_of_a_cut_file_has_a_forced_name(env, path):
    file = MappedFile(env, path, SIZE, create=True, defer_fsync=True)
    file.append_message(b"x" * 5000)
    file.set_positions(100)
    with watched(env, "fsync_directory") as named:
        file.zero_tail(100)
    assert len(named) == 1


def test_a_name_that_went_with_its_directory_is_not_forced(env, tmp_path):
    os.mkdir(tmp_path / "q")
    file = MappedFile(env, str(tmp_path / "q" / NAME), SIZE, create=True, defer_fsync=True)
    file.append_message(b"x" * 5000)

    def delete(original, base, size):
        file.destroy()
        os.rmdir(tmp_path / "q")
        return original(base, size)

    with broken(env, "msync", delete):
        assert file.flush(0) == 5000


@pytest.mark.parametrize("pwrite", ["works", "fails", "is short"])
def test_room_may_be_filled_with_zeros(env, path, pwrite):
    file = MappedFile(
        env, path, SIZE, create=True, confirm_step=65536, zero_fill="folios", sole_writer=True
    )
    answers = {
        "works": lambda original, *args: original(*args),
        "fails": lambda original, *args: -errno.EIO,
        "is short": lambda original, fd, data, size, at: original(fd, data, min(size, 999), at),
    }
    confirmed = []
    with broken(env, "pwrite", answers[pwrite]) as calls:
        for _ in range(SIZE // 1000):
            file.append_message(b"x" * 1000)
            assert file.confirmed >= file.wrote
            confirmed.append(file.confirmed)
    sizes = sorted(set(confirmed))
    assert sizes[:6] == [4096, 8192, 16384, 32768, 65536, 131072], "it doubles, by 64 KiB at most"
    assert all(later - size <= 65536 for size, later in itertools.pairwise(sizes))
    assert calls[0][3] >= 4096, "the first step costs no more than its page"
    assert len(calls) < 20 or pwrite == "is short"
    ends = [args[2] + args[3] for args in calls]
    assert max(ends) <= SIZE
    with open(path, "rb") as stored:
        assert stored.read() == b"x" * file.wrote + bytes(SIZE - file.wrote)


def test_a_writer_waits_for_the_zeros_that_it_has_caught_up_with(env, path):
    """Goal: no store comes before the zeros. Method: the helper stops just before its write."""
    file = MappedFile(env, path, 1 << 22, create=True, confirm_step=4096, zero_fill="folios")
    file.append_message(b"x" * 1000)
    reached, go_on = threading.Event(), threading.Event()

    def pause(original, fd, data, size, position):
        if not reached.is_set():
            reached.set()
            go_on.wait(10)
        return original(fd, data, size, position)

    with broken(env, "pwrite", pause):
        helper = threading.Thread(target=file.fill_ahead, args=(1 << 20,))
        helper.start()
        assert reached.wait(10)
        writer = threading.Thread(target=file.append_message, args=(b"y" * 300_000,))
        writer.start()
        writer.join(0.05)
        assert writer.is_alive(), "it must not store there yet"
        go_on.set()
        writer.join()
        helper.join()
    assert Path(path).read_bytes() == (b"x" * 1000 + b"y" * 300_000).ljust(1 << 22, b"\0")


def test_fill_ahead_writes_zeros_to_what_is_allocated(env, path):
    size = 1 << 22
    file = MappedFile(env, path, size, create=True, confirm_step=1 << 20, zero_fill="folios")
    with failing(env, "fallocate", errno.ENOSPC), pytest.raises(StoreIOError):
        file.fill_ahead(1 << 20)
    assert file.confirmed == 0
    with watched(env, "fallocate") as allocated, watched(env, "pwrite") as written:
        file.append_message(b"x" * 5000)
        assert file.confirmed == 1 << 18, "the writer fills one piece for itself"
        file.fill_ahead(1 << 20)
    assert 5000 + (1 << 20) <= file.confirmed <= max(at + n for _, at, n in allocated)
    ends = [at + n for *_, n, at in written]
    assert [at for *_, at in written] == [0, *ends[:-1]]
    assert ends[-1] == file.confirmed
    assert Path(path).read_bytes() == (b"x" * 5000).ljust(size, b"\0")
    with watched(env, "pwrite") as written:
        file.fill_ahead(1 << 20)
    assert written == []
    file.set_positions(100)  # bytes behind the cut may be punched out
    file.zero_tail(100)
    assert file.confirmed == 100
    with watched(env, "fallocate") as allocated:
        assert file.append_message(b"z" * 400_000)
    assert allocated[0][1] == 100
    file.set_positions(0)
    answers = iter([-errno.ENOSPC])
    full = lambda original, *args: next(answers, 0) or original(*args)  # noqa: E731
    with broken(env, "fallocate", full):  # what is needed alone is there
        assert file.append_message(b"z" * 5000)
    assert file.confirmed == 8192
    with failing(env, "pwrite", errno.EIO):
        file.fill_ahead(size)
    assert file.confirmed == size
    assert file.read(0, 8192) == (b"z" * 5000).ljust(8192, b"\0")
    file.destroy()
    file.fill_ahead(1)


def test_a_growing_file_is_filled_in_small_folios(env, path):
    """Goal: no write of zeros needs a huge page, which a guest's host may have reclaimed."""
    file = MappedFile(
        env, path, 1 << 23, create=True, confirm_step=1 << 22, zero_fill="folios", sole_writer=True
    )
    with watched(env, "pwrite") as written:
        file.confirm_to(1 << 22)
    ends = [at + size for *_, size, at in written]
    assert [at for *_, at in written] == [0, *ends[:-1]]
    assert all(end % (1 << 18) == 0 for end in ends)
    assert max(size for *_, size, _ in written) == 1 << 18
    assert ends[-1] == file.confirmed


@pytest.mark.parametrize("at_once", [4096, 1 << 20])
def test_what_is_filled_ahead_is_mapped(env, path, at_once):
    """Goal: a store to a page that was filled ahead takes no page fault, whatever its folio.

    Method: zeros are written in single pages too, so that no folio is larger than one.
    """
    file = MappedFile(env, path, 1 << 22, create=True, confirm_step=1 << 20, zero_fill="folios")

    def write(original, fd, data, size, position):
        return original(fd, data, min(size, at_once), position)

    with broken(env, "pwrite", write):
        file.fill_ahead(1 << 20)
    data = b"x" * (1 << 20)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    file.append_message(data)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < 10


def test_fill_ahead_follows_a_writer(env, path):
    """Goal: while it is signalled, a helper continues; else it returns."""
    size = 1 << 22
    event = Event()
    file = MappedFile(env, path, size, create=True, confirm_step=1 << 20, zero_fill="folios")
    file.fill_ahead(1 << 20, event)

    def write(original, fd, data, n, position):
        if file.wrote < 3 << 20 and file.confirmed - file.wrote > 300_000:
            file.append_message(b"x" * 300_000)
            event.signal()
        return original(fd, data, n, position)

    file.append_message(b"x" * 600_000)
    with broken(env, "pwrite", write):
        file.fill_ahead(1 << 20, event)
    assert file.wrote > 1_500_000
    assert file.confirmed >= min(size, file.wrote + (1 << 20))
    assert Path(path).read_bytes() == (b"x" * file.wrote).ljust(size, b"\0")


def test_much_is_unmapped_before_it_is_forced(env, path):
    file = MappedFile(env, path, 1 << 22, create=True)
    file.append_message(b"x" * 1_500_000)
    with watched(env, "madvise") as calls:
        assert file.flush() == 1_500_000
    assert [(args[1], args[2]) for args in calls] == [(1_499_136, 4)]
    file.append_message(b"y" * 5000)
    with watched(env, "madvise") as calls:
        file.flush()
    assert calls == [], "a few pages are forced as they are"
    assert file.read(0, 1_505_001) == b"x" * 1_500_000 + b"y" * 5000 + b"\0"
