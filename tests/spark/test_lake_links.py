"""Goal: an export writes and deletes only inside the lake's directory, and unexpected files there
are errors.
Method: links that lead out of the lake, and FIFOs in place of manifest files, without Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyrocketstore import StoreError, StoreIOError
from pyrocketstore.spark.lake import writer as lake_writer
from pyrocketstore.spark.lake.manifest import Manifest, Split, read_note

SPLIT = Split(0, "b", "t", 0, 0, 9, 0)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory with a file that a sweep would remove from a lake."""
    found = tmp_path / "outside" / "date=2024-01-01"
    found.mkdir(parents=True)
    (found / f"{SPLIT.file_name}.parquet").write_bytes(b"precious")
    (found / ".tmp-1").write_bytes(b"precious")
    return tmp_path / "outside"


@pytest.mark.parametrize("at", ["messages", "messages/topic=t", "messages/topic=t/date=2024-01-01"])
def test_a_sweep_stays_in_the_lake(tmp_path: Path, outside: Path, at: str) -> None:
    lake = tmp_path / "lake"
    place = lake / at
    place.parent.mkdir(parents=True)
    place.symlink_to({0: outside.parent, 1: outside}.get(at.count("/"), outside / place.name))
    with pytest.raises(StoreIOError, match=f"{place}: a symbolic link"):
        Manifest(lake).sweep([SPLIT])
    assert len(list((outside / "date=2024-01-01").iterdir())) == 2
    if at == "messages":
        with pytest.raises(StoreIOError, match="messages: a symbolic link"):
            Manifest(lake).__enter__()
    else:
        files = lake_writer.DayFiles(lake / "messages" / "topic=t", SPLIT, "zstd")
        with pytest.raises(StoreIOError, match="a symbolic link"):
            files._writer("2024-01-01", None)
        files.discard()


def test_a_sweep_removes_a_link_and_not_its_target(tmp_path: Path, outside: Path) -> None:
    lake = tmp_path / "link"  # the lake itself may be a link
    (tmp_path / "lake").mkdir()
    lake.symlink_to(tmp_path / "lake")
    day = lake / "messages" / "topic=t" / "date=2024-01-01"
    day.mkdir(parents=True)
    victim = outside / "date=2024-01-01" / ".tmp-1"
    (day / f"{SPLIT.file_name}.parquet").symlink_to(victim)
    (day / ".tmp-2").write_bytes(b"x")
    (day / "kept").mkdir()
    assert Manifest(lake).sweep([SPLIT]) == 2
    assert victim.read_bytes() == b"precious"
    assert os.listdir(day) == ["kept"]


def test_a_manifest_with_a_fifo(tmp_path: Path) -> None:
    with Manifest(tmp_path) as manifest:
        os.mkfifo(manifest.directory / "000001.jsonl")
        with pytest.raises(StoreError, match=r"000001\.jsonl: not a regular file"):
            manifest.last()
        os.mkfifo(manifest.directory / "1.jsonl")
        with pytest.raises(StoreError, match=r"1\.jsonl: not a regular file"):
            read_note(manifest.directory, 1)
        with pytest.raises(FileNotFoundError):
            read_note(manifest.directory, 2)
    (manifest.directory / "lock").unlink()
    (manifest.directory / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(StoreError, match="lock: a symbolic link"):
        Manifest(tmp_path).__enter__()
    assert not (tmp_path / "victim").exists()
