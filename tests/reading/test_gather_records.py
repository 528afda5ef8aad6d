"""Goal: gather_records copies records of a log file to the reported positions, whatever is between
them in the file, and never writes outside of the buffer. Method: random positions in a file of
random bytes, with more and less room than the records take."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.reading._messages import gather_records
from pyrocketstore.system.env import Env

pytestmark = pytest.mark.bad_input
BASE = 1 << 33
SIZE = 3 << 20
Places = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("gather") / f"{BASE:020d}"
    made.write_bytes(random.Random(5).randbytes(SIZE))
    return made


@pytest.fixture
def file(path: Path) -> MappedFile:
    opened = MappedFile(Env(), str(path), SIZE, mode="read", file_from_offset=BASE)
    opened.set_positions(SIZE)
    return opened


def random_places(rng: random.Random) -> Places:
    """Runs, gaps of all kinds, and steps back."""
    at, found = rng.randrange(SIZE // 2), []
    for _ in range(rng.randrange(1, 200)):
        size = rng.choice((1, 90, 1200, rng.randrange(1, 40_000)))
        if at + size > SIZE:
            break
        found.append((at, size))
        gap = rng.choice((0, 0, 0, 1, 700, 65_535, 65_536, 200_000, -size, -1))
        at = max(0, at + size + gap)
    places, sizes = zip(*found, strict=True)
    return np.array(places, np.int64) + BASE, np.array(sizes, np.int32)


@pytest.mark.parametrize("seed", range(40))
def test_bytes_are_where_it_says(path: Path, file: MappedFile, seed: int) -> None:
    rng = random.Random(seed)
    data = path.read_bytes()
    places, sizes = random_places(rng)
    want = [data[p : p + n] for p, n in zip((places - BASE).tolist(), sizes.tolist(), strict=True)]
    total = int(sizes.sum())
    before = rng.randrange(9)
    for more in (0, 1, total // 4, SIZE):
        out = np.full(before + total + more + 8, 0x55, np.uint8)
        positions = np.full(len(places) + 1, -7, np.int64)
        usable = out[: before + total + more]
        gather_records(file, places, sizes, usable, before, check=False, positions=positions)
        ends = positions[:-1] + sizes
        assert positions[-1] == -7
        assert (positions[:-1] >= before).all()
        assert (ends <= len(usable)).all()
        raw = out.tobytes()
        got = [raw[p:e] for p, e in zip(positions[:-1].tolist(), ends.tolist(), strict=True)]
        assert got == want
        assert raw[:before] + raw[len(usable) :] == b"\x55" * (before + 8)
    packed = np.zeros(total, np.uint8)
    gather_records(file, places, sizes, packed, 0, check=False)
    assert packed.tobytes() == b"".join(want)


def test_bytes_between_are_read_with_them(file: MappedFile) -> None:
    places, sizes = np.array([BASE, BASE + 110], np.int64), np.array([100, 100], np.int32)
    positions = np.zeros(2, np.int64)
    for room, want in ((210, [0, 110]), (209, [0, 100])):
        out = np.zeros(room, np.uint8)
        gather_records(file, places, sizes, out, 0, check=False, positions=positions)
        assert positions.tolist() == want


@pytest.mark.parametrize("with_positions", [False, True])
def test_too_little_room(file: MappedFile, with_positions: bool) -> None:
    places, sizes = np.array([BASE, BASE + 100], np.int64), np.array([100, 100], np.int32)
    positions = np.zeros(2, np.int64) if with_positions else None
    for room, begin in ((199, 0), (210, 11), (200, -1), (0, 0)):
        out = np.zeros(room, np.uint8)
        with pytest.raises(IndexError):
            gather_records(file, places, sizes, out, begin, check=False, positions=positions)


def test_too_few_positions(file: MappedFile) -> None:
    places, sizes = np.array([BASE, BASE + 100], np.int64), np.array([100, 100], np.int32)
    out = np.zeros(200, np.uint8)
    with pytest.raises(IndexError):
        gather_records(file, places, sizes, out, 0, check=False, positions=np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("place", "size"),
    [(BASE - 1, 9), (BASE + SIZE - 8, 9), (BASE, 0), (BASE, -1), (-1, 9), (2**63 - 1, 9), (0, 9)],
)
def test_places_that_no_record_has(file: MappedFile, place: int, size: int) -> None:
    places, sizes = np.array([BASE, place], np.int64), np.array([50, size], np.int32)
    positions = np.zeros(2, np.int64)
    out = np.zeros(4096, np.uint8)
    with pytest.raises(StoreCorruptionError):
        gather_records(file, places, sizes, out, 0, check=False, positions=positions)


def test_bytes_that_are_no_record(file: MappedFile) -> None:
    places, sizes = np.array([BASE, BASE + 100], np.int64), np.array([100, 100], np.int32)
    with pytest.raises(StoreCorruptionError, match="at byte 0"):
        gather_records(
            file, places, sizes, np.zeros(400, np.uint8), 0, positions=np.zeros(2, np.int64)
        )


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / f"{BASE:020d}"
    path.write_bytes(bytes(4096))
    opened = MappedFile(Env(), str(path), 4096, mode="read", file_from_offset=BASE)
    opened.set_positions(4096)
    os.truncate(path, 150)
    places, sizes = np.array([BASE, BASE + 100], np.int64), np.array([100, 100], np.int32)
    with pytest.raises(StoreCorruptionError, match="ends after 150 of 200 bytes"):
        gather_records(
            opened, places, sizes, np.zeros(400, np.uint8), 0, check=False,
            positions=np.zeros(2, np.int64),
        )  # fmt: skip
