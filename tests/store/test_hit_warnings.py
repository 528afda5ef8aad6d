"""Goal: a warning of unreadable hits counts each physical offset once, leaves expired ones out, and
names the file and byte of the first.
Method: `UnreadableHits` over the log of a store that lacks files at its begin or in its middle."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.store.unreadable_hits import UnreadableHits, UnreadableHitsWarning
from support.sizes import TINY_SIZES

SIZE = 4096


def fill(root: Path) -> None:
    with pyrocketstore.open(root, **TINY_SIZES) as store:
        for _ in range(60):
            store.put("t", b"body" * 100, queue_id=0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path)
    return tmp_path / "commitlog"


@pytest.fixture
def log(root: Path) -> Iterator[CommitLog]:
    """The log without its second file, whose first file has expired if a test deletes it."""
    (root / f"{2 * SIZE:020d}").unlink()
    with pyrocketstore.open(root.parent, read_only=True, **TINY_SIZES) as store:
        yield store.message_store.commit_log


def warned(log: CommitLog, *phy_offsets: int) -> str:
    """The text of the only warning, "" without one."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        UnreadableHits(log).warn(iter(phy_offsets), 1)
    assert len(found) <= 1
    if not found:
        return ""
    assert found[0].category is UnreadableHitsWarning
    assert found[0].filename == __file__, "the caller at that level"
    return str(found[0].message)


def test_without_hits_there_is_no_warning(log: CommitLog) -> None:
    assert warned(log) == ""


def test_a_missing_file_and_a_wrong_byte(log: CommitLog, root: Path) -> None:
    text = warned(log, 2 * SIZE + 7)
    assert "1 physical offset at which" in text
    assert f"{root}/{2 * SIZE:020d} at byte 7: this file of the log is missing" in text
    text = warned(log, SIZE + 9)
    assert f"{root}/{SIZE:020d} at byte 9: no whole record begins there" in text


def test_offsets_are_counted_once_and_the_first_is_named(log: CommitLog, root: Path) -> None:
    text = warned(log, 3 * SIZE + 1, SIZE + 2, 3 * SIZE + 1, 2 * SIZE)
    assert "3 physical offsets" in text
    assert f"{root}/{SIZE:020d} at byte 2" in text


def test_expired_messages_are_left_out(root: Path) -> None:
    (root / f"{0:020d}").unlink()
    with pyrocketstore.open(root.parent, read_only=True, **TINY_SIZES) as store:
        log = store.message_store.commit_log
        assert warned(log, 0, 5, SIZE - 1) == ""
        assert "1 physical offset at" in warned(log, 5, SIZE)
        (root / f"{SIZE:020d}").unlink()  # meanwhile, by the owner
        assert warned(log, 5, SIZE, 2 * SIZE - 1) == ""


def test_a_log_without_files_warns_of_nothing(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **TINY_SIZES) as store:
        assert warned(store.message_store.commit_log, 0, 5) == ""
