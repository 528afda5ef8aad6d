"""Goal: a file of a queue that has a wrong length or name gets its length, keeps its whole units,
and leaves what is cut off below `.broken`; a reader does all of that in memory.
Method: one file of a queue of four files is cut, extended, emptied or renamed; units, files on disk
and the verdict are compared with what plain Python expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrocketstore.config.file_sizes import MismatchedFile
from pyrocketstore.consume_queue.mismatched_files import restore_queue
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.queue_recovery import recover_queue
from support.queues import FILE_SIZE, files_of, fill, message, open_queue, rows_of
from support.snapshot import snapshot

COUNT = 35  # units, ten in a file
FILES = [f"{number * FILE_SIZE:020d}" for number in range(4)]


class Restored:
    """The queue of a directory after `restore_queue`, and what the call has done."""

    def __init__(self, path: Path, *, read_only: bool, min_phy_offset: int = 0) -> None:
        self.queue: ConsumeQueue = open_queue(path, recover=False, read_only=read_only)
        self.found: list[MismatchedFile] = []
        self.cuts = 0
        self.broken = path / "broken"
        self.lost = restore_queue(
            self.queue, min_phy_offset, self._note, str(self.broken), self.found
        )
        recover_queue(self.queue)

    def _note(self) -> None:
        self.cuts += 1

    def rows(self) -> list[tuple[int, ...]]:
        return rows_of(self.queue)

    def kept(self) -> dict[str, int]:
        """The files below `.broken`, with their sizes."""
        folder = self.broken / "consumequeue/T/0"
        return {path.name: path.stat().st_size for path in folder.glob("*")}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(open_queue(tmp_path), COUNT)
    assert list(files_of(tmp_path)) == FILES
    return tmp_path


@pytest.fixture(params=[True, False], ids=["reader", "writer"])
def read_only(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def path_of(root: Path, number: int) -> Path:
    return root / "consumequeue/T/0" / FILES[number]


def units(first: int, stop: int) -> list[tuple[int, int, int]]:
    return [message(n) for n in range(first, stop)]


def test_a_valid_queue_is_not_touched(root: Path, read_only: bool) -> None:
    before = snapshot(root / "consumequeue")
    restored = Restored(root, read_only=read_only)
    assert (restored.lost, restored.cuts, restored.found) == (False, 0, [])
    assert restored.rows() == units(0, COUNT)
    assert snapshot(root / "consumequeue") == before


@pytest.mark.parametrize("size", [1, 19, 20, 59, 60, 199])
@pytest.mark.parametrize("number", range(4))
def test_a_cut_file_ends_the_queue(root: Path, read_only: bool, number: int, size: int) -> None:
    path = path_of(root, number)
    path.write_bytes(path.read_bytes()[:size])
    before = snapshot(root)
    restored = Restored(root, read_only=read_only)
    whole = min(10 * number + size // 20, COUNT)
    assert restored.rows() == units(0, whole)
    assert restored.lost and restored.cuts == 1
    assert [one.path for one in restored.found] == [str(path)]
    if read_only:
        assert snapshot(root) == before, "a reader changes nothing"
    else:
        assert path.stat().st_size == FILE_SIZE
    kept = restored.queue.kept_units
    held = 0 if kept is None else len(kept)
    assert held == (0 if number == 3 else COUNT - 10 * (number + 1)), "units of later files"


@pytest.mark.parametrize("more", [1, 20, 1000])
@pytest.mark.parametrize("number", [0, 3])
def test_a_file_that_is_too_long_loses_nothing(
    root: Path, read_only: bool, number: int, more: int
) -> None:
    path = path_of(root, number)
    path.write_bytes(path.read_bytes() + b"\1" * more)
    restored = Restored(root, read_only=read_only)
    assert restored.rows() == units(0, COUNT)
    assert not restored.lost and len(restored.found) == 1
    assert path.stat().st_size == (FILE_SIZE + more if read_only else FILE_SIZE)
    assert restored.kept() == ({} if read_only else {path.name: FILE_SIZE + more})


def test_a_file_of_an_impossible_name_is_set_aside(root: Path, read_only: bool) -> None:
    path = path_of(root, 3)
    odd = path.rename(path.with_name(f"{3 * FILE_SIZE + 7:020d}"))
    restored = Restored(root, read_only=read_only)
    assert restored.rows() == units(0, 30)
    assert restored.lost
    assert odd.exists() is read_only
    assert restored.kept() == ({} if read_only else {odd.name: FILE_SIZE})


def test_an_empty_file_has_no_units(root: Path, read_only: bool) -> None:
    path_of(root, 3).write_bytes(b"")
    restored = Restored(root, read_only=read_only)
    assert restored.rows() == units(0, 30)
    assert path_of(root, 3).exists() is read_only


def test_a_cut_file_whose_messages_have_expired_ends_nothing(root: Path, read_only: bool) -> None:
    """The log begins with the message that the next file begins with."""
    path = path_of(root, 0)
    path.write_bytes(path.read_bytes()[:60])
    restored = Restored(root, read_only=read_only, min_phy_offset=message(10)[0])
    assert not restored.lost
    assert restored.queue.mapped_file_queue.get_min_offset() == FILE_SIZE
    assert rows_of(restored.queue, 10) == units(10, COUNT)
