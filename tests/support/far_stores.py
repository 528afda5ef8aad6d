"""Small stores whose log begins far from 0, as that of a broker that has run for long."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.files.mapped_file_queue import MappedFileQueue
from support.seed import SEED

FILE_SIZE = 1 << 16
SIZES = {"mapped_file_size_commit_log": FILE_SIZE, "mapped_file_size_consume_queue": 400}
#: Around what 31 and 32 bits hold, and where no product of 32 bits gets by chance.
BEGINS = [(1 << 31) - FILE_SIZE, (1 << 32) - FILE_SIZE, 40_000 << 30]


def begin_logs_at(patch: pytest.MonkeyPatch, begin: int) -> None:
    """Let new logs of this process begin with the file of byte `begin`."""
    create = MappedFileQueue._create_next

    def create_next(files: MappedFileQueue, start: int, mapped: bool) -> MappedFile:
        is_log = os.path.basename(files.store_path) == "commitlog"
        is_new = start == 0 and not files.mapped_files
        return create(files, begin if is_log and is_new else start, mapped)

    patch.setattr(MappedFileQueue, "_create_next", create_next)


@pytest.fixture(autouse=True)
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """New logs begin at a byte that the seed chooses: 0, or far from it."""
    begin = random.Random(f"{SEED} {request.node.nodeid}").choice((0, *BEGINS))
    begin_logs_at(monkeypatch, begin)


def begin_log_at(root: Path, begin: int, file_size: int = FILE_SIZE) -> None:
    """Make the first file of a store that is not there yet: the one of byte `begin` of the log.

    A store whose log begins at 0 makes it itself.
    """
    if begin == 0:
        return
    begin -= begin % file_size
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{begin:020d}").write_bytes(bytes(file_size))


def open_far(root: Path, begin: int) -> pyrocketstore.Store:
    """A new store, the first byte of whose log is `begin`."""
    begin_log_at(root, begin)
    return pyrocketstore.open(root, **SIZES)


def fill_far(root: Path, begin: int, count: int = 700) -> None:
    """Message `i` is the i-th of the log: topic t{i % 3}, queue i % 2, key k{i}, tag T{i % 2}."""
    with open_far(root, begin) as store:
        for i in range(count):
            store.put(f"t{i % 3}", body_of(i), queue_id=i % 2, keys=f"k{i}", tags=f"T{i % 2}")


def damage_body(root: Path, phy_offset: int) -> None:
    """Change bytes of the body of the record there, whose hosts are of IPv4."""
    file = root / "commitlog" / f"{phy_offset - phy_offset % FILE_SIZE:020d}"
    with file.open("r+b") as opened:
        opened.seek(phy_offset % FILE_SIZE + 90)
        opened.write(b"\xff\xff\xff")


def body_of(number: int) -> bytes:
    return b"%d " % number * 40
