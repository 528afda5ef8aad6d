"""Goal: a damaged checkpoint refuses no opening, and after a kill old damage does not end
the log before messages that the queues prove.
Method: stores of several log files with a damaged record in one of them, killed, with a checkpoint
of zeros or junk."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import pyrocketstore
from support.sizes import SIZES

SMALL = SIZES | {"mapped_file_size_commit_log": 16384}
COUNT = 450
JUNK = {
    "noise": random.Random(5).randbytes(4096),
    "ones": b"\xff" * 4096,
    "times behind each other": bytes(24) + b"junk" * 1018,
}


def fill(root: Path) -> list[bytes]:
    bodies = [b"%d " % number * 30 for number in range(COUNT)]
    with pyrocketstore.open(root, **SMALL) as store:
        for body in bodies:
            store.put("t", body, keys="k")
    return bodies


def damage_record(root: Path, number: int) -> None:
    """Change the body of a record in a file of the log."""
    path = sorted((root / "commitlog").iterdir())[number]
    data = bytearray(path.read_bytes())
    at = data.index(b" ", 4000)
    data[at] ^= 8
    path.write_bytes(data)


def read(root: Path, *, read_only: bool) -> list[bytes]:
    with pyrocketstore.open(root, read_only=read_only, **SMALL) as store:
        return [m.body for m in store.read("t", on_corrupt="skip") if m.is_crc_valid]


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_old_damage_does_not_end_the_log(tmp_path: Path, number: int, junk: str) -> None:
    bodies = fill(tmp_path)
    damage_record(tmp_path, number)
    (tmp_path / "abort").touch()
    (tmp_path / "checkpoint").write_bytes(JUNK[junk])
    assert len(sorted((tmp_path / "commitlog").iterdir())) > 4
    for read_only in (True, False, True, False):
        found = read(tmp_path, read_only=read_only)
        assert len(found) == COUNT - 1 and set(found) < set(bodies)
    assert not list((tmp_path / ".broken").rglob("*"))
    with pyrocketstore.open(tmp_path, **SMALL) as store:
        assert store.put("t", b"new").queue_offset == COUNT


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("killed", [False, True])
def test_an_intact_log_is_read(tmp_path: Path, killed: bool, junk: str) -> None:
    bodies = fill(tmp_path)
    if killed:
        (tmp_path / "abort").touch()
    (tmp_path / "checkpoint").write_bytes(JUNK[junk])
    assert read(tmp_path, read_only=True) == bodies
    assert read(tmp_path, read_only=False) == bodies
    with pyrocketstore.open(tmp_path, read_only=True, **SMALL) as store:
        assert store.verify().ok


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
def test_units_that_name_no_record_prove_nothing(tmp_path: Path) -> None:
    """The last log file is a torn one, of which no queue names a record."""
    fill(tmp_path)
    files = sorted((tmp_path / "commitlog").iterdir())
    for path in files[2:]:
        path.write_bytes(bytes(path.stat().st_size))
    (tmp_path / "abort").touch()
    (tmp_path / "checkpoint").write_bytes(JUNK["noise"])
    with pyrocketstore.open(tmp_path, **SMALL) as store:
        end = store.message_store.get_max_phy_offset()
        assert end <= 2 * 16384
        assert store.put("t", b"new").phy_offset == end
