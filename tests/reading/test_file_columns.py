"""Goal: columns decoded while a log file is read equal those of the same records in memory.
Method: stores whose records cover several blocks, read in order, with gaps and backwards; damage,
truncated files and failing devices."""

from __future__ import annotations

import errno
import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore.columns._decode import COLUMNS, PROPERTIES_MAP, check_records, decode_records
from pyrocketstore.errors import StoreCorruptionError, StoreFormatError, StoreIOError
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.reading._file_columns import decode_file_records
from pyrocketstore.system.env import Env
from support.broken_env import failing, watched
from support.column_lists import column_list

pytestmark = pytest.mark.bad_input

BLOCK = 1 << 19
COUNT = 1500
#: Larger than what is read at once.
LARGE = 700
NAMES = [*COLUMNS, PROPERTIES_MAP]
PLAIN = [name for name in NAMES if name != "body"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("file_columns") / "store"
    with pyrocketstore.open(root, mapped_file_size_commit_log=1 << 23) as store:
        for i in range(COUNT):
            body = b"large" * BLOCK if i == LARGE else b"%06d" % i * (i % 500)
            properties = {"n": str(i)} if i % 3 else None
            tags = f"T{i % 5}" if i % 4 else None
            store.put("topic", body, tags=tags, keys=f"k{i}", properties=properties)
    return root


@pytest.fixture
def env() -> Env:
    return Env()


@pytest.fixture(params=["read", "shared"])
def file(root: Path, env: Env, request: pytest.FixtureRequest) -> Iterator[MappedFile]:
    yield opened(root, env, request.param)


def opened(root: Path, env: Env, mode: str = "read") -> MappedFile:
    path = root / "commitlog" / f"{0:020d}"
    file = MappedFile(env, str(path), 1 << 23, mode=mode, file_from_offset=0)
    file.set_positions(1 << 23)
    return file


@pytest.fixture(scope="module")
def places(root: Path) -> tuple[Any, Any]:
    with pyrocketstore.open(root, read_only=True) as store:
        units = store.message_store.find_consume_queue("topic", 0).read_units(0, COUNT)
    assert len(units.size) == COUNT
    return np.ascontiguousarray(units.phy_offset), np.ascontiguousarray(units.size)


def lists(columns: Any) -> dict[str, list[Any]]:
    return {name: column_list(column) for name, column in columns.items()}


def in_memory(root: Path, places: tuple[Any, Any], names: list[str]) -> dict[str, list[Any]]:
    data = (root / "commitlog" / f"{0:020d}").read_bytes()
    return lists(decode_records(data, *places, names, phy_offsets=places[0], check_crc=True))


@pytest.mark.parametrize(
    "rows",
    [
        slice(None),
        slice(None, None, 40),
        slice(None, None, -1),
        slice(LARGE, LARGE + 1),
        slice(0, 0),
        [5, 5, 4, 900, 901, 3],
    ],
)
def test_the_columns_are_those_of_the_records(
    root: Path, file: MappedFile, places: tuple[Any, Any], rows: Any
) -> None:
    some = tuple(np.ascontiguousarray(column[rows]) for column in places)
    columns = decode_file_records(file, *some, NAMES, check_crc=True)
    assert columns is not None
    assert list(columns) == NAMES
    assert lists(columns) == in_memory(root, some, NAMES)


def test_each_byte_is_read_once(root: Path, env: Env, places: tuple[Any, Any]) -> None:
    file = opened(root, env)
    with watched(env, "pread") as reads:
        assert decode_file_records(file, *places, ["queue_offset"]) is not None
    sizes = [size for _, _, size, _ in reads]
    assert sum(sizes) == int(places[1].sum())
    large = int(places[1][LARGE])
    assert sorted(sizes)[-1] == large > BLOCK
    assert sorted(sizes)[-2] <= BLOCK
    assert len(sizes) < 12


@pytest.fixture
def deflated(tmp_path: Path) -> tuple[Path, tuple[Any, Any]]:
    """Messages of which every fifth is compressed, the one before the last not as it should be."""
    with pyrocketstore.open(tmp_path / "s", mapped_file_size_commit_log=1 << 23) as store:
        for i in range(20):
            body = zlib.compress(b"%d" % i * 99) if i != 18 else b"no stream"
            inner = pyrocketstore.MessageExtBrokerInner("t", body)
            inner.sys_flag = int(i % 5 == 3)
            assert store.message_store.put_message(inner).status.name == "PUT_OK"
        store.wait_dispatched()
        units = store.message_store.find_consume_queue("t", 0).read_units(0, 20)
    return tmp_path / "s", (
        np.ascontiguousarray(units.phy_offset),
        np.ascontiguousarray(units.size),
    )


def test_compressed_bodies(deflated: tuple[Path, tuple[Any, Any]], env: Env) -> None:
    root, (phy_offsets, sizes) = deflated
    file = opened(root, env)
    most = phy_offsets[:18], sizes[:18]
    columns = decode_file_records(file, *most, NAMES)
    assert lists(columns) == in_memory(root, most, NAMES)
    assert columns["body"][13] == b"13" * 99
    assert decode_file_records(file, *most, NAMES, inflate=False) is None
    before = decode_file_records(file, phy_offsets[:3], sizes[:3], ["body"], inflate=False)
    assert before is not None
    stored = decode_file_records(file, phy_offsets, sizes, ["stored_body"], inflate=False)
    assert stored is not None
    assert stored["stored_body"][18] == b"no stream"
    with pytest.raises(StoreCorruptionError, match="does not inflate") as caught:
        decode_file_records(file, phy_offsets, sizes, ["body"])
    assert (caught.value.path, caught.value.position) == (file.path, phy_offsets[18])


def damage(root: Path, tmp_path: Path, position: int) -> Path:
    copy = tmp_path / "damage"
    (copy / "commitlog").mkdir(parents=True)
    path = copy / "commitlog" / f"{0:020d}"
    data = bytearray((root / "commitlog" / path.name).read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    return copy


def test_damage_is_reported_with_its_position(
    root: Path, env: Env, places: tuple[Any, Any], tmp_path: Path
) -> None:
    at = int(places[0][1200])
    body = at + 100
    file = opened(damage(root, tmp_path, body), env)
    assert decode_file_records(file, *places, PLAIN) is not None
    with pytest.raises(StoreCorruptionError) as caught:
        decode_file_records(file, *places, PLAIN, check_crc=True)
    assert (caught.value.path, caught.value.position) == (file.path, at)
    assert "CRC" in caught.value.reason


@pytest.mark.parametrize(
    ("row", "phy_offset", "size"),
    [
        (1, None, 0),
        (1, None, -5),
        (0, -1, None),
        (0, -(1 << 63), None),
        (3, 1 << 23, None),
        (19, (1 << 23) - 20, None),
        (19, None, (1 << 23) + 1),
        (3, (1 << 63) - 10, None),
        (3, None, 1 << 30),
        (9, None, 40),
        (9, 77, None),
    ],
)
def test_places_that_hold_no_such_record(
    file: MappedFile, places: tuple[Any, Any], row: int, phy_offset: int | None, size: int | None
) -> None:
    phy_offsets, sizes = places[0][:20].copy(), places[1][:20].copy()
    if phy_offset is not None:
        phy_offsets[row] = phy_offset
    if size is not None:
        sizes[row] = size
    with pytest.raises(StoreCorruptionError) as caught:
        decode_file_records(file, phy_offsets, sizes, PLAIN)
    assert caught.value.path == file.path
    assert caught.value.position == phy_offsets[row]


def test_the_first_of_damaged_records_is_reported(
    root: Path, env: Env, places: tuple[Any, Any], tmp_path: Path
) -> None:
    """Random damage in random rows; _columns.check_records says which are valid."""
    rng = random.Random(20261122)
    file = opened(damage(root, tmp_path, 0), env)
    data = bytearray((root / "commitlog" / f"{0:020d}").read_bytes())
    failures = 0
    for _ in range(60):
        rows = sorted(rng.sample(range(COUNT), rng.choice([1, 5, 60])))
        phy_offsets, sizes = places[0][rows], places[1][rows]
        if rng.random() < 0.3:
            sizes[rng.randrange(len(rows))] -= rng.choice([1, 90, 100_000])
        where = rng.choice(rows)
        at = int(places[0][where]) + rng.randrange(min(int(places[1][where]), 200))
        before = data[at]
        data[at] = rng.choice([0, 255, before ^ 1 << rng.randrange(8)])
        Path(file.path).write_bytes(data)
        status = check_records(
            data, phy_offsets, sizes.clip(0), phy_offsets=phy_offsets, check_crc=True
        )
        if status.any():
            failures += 1
            with pytest.raises(StoreCorruptionError) as caught:
                decode_file_records(file, phy_offsets, sizes, PLAIN, check_crc=True)
            assert caught.value.position == phy_offsets[np.flatnonzero(status)[0]]
        else:
            columns = decode_file_records(file, phy_offsets, sizes, PLAIN, check_crc=True)
            want = decode_records(data, phy_offsets, sizes, PLAIN)
            assert lists(columns) == lists(want)
        data[at] = before
    assert 20 < failures < 60


def test_a_file_that_is_cut_or_gone(
    root: Path, env: Env, places: tuple[Any, Any], tmp_path: Path
) -> None:
    copy = damage(root, tmp_path, 0)
    file = opened(copy, env)
    phy_offsets, sizes = places[0][1:], places[1][1:]
    os.truncate(file.path, int(phy_offsets[-1]) + 5)
    with pytest.raises(StoreCorruptionError, match="the file ends after"):
        decode_file_records(file, phy_offsets, sizes, PLAIN)
    os.unlink(file.path)
    with pytest.raises(StoreIOError) as caught:
        decode_file_records(file, phy_offsets, sizes, PLAIN)
    assert caught.value.errno == errno.ENOENT


def test_a_device_that_fails(root: Path, env: Env, places: tuple[Any, Any]) -> None:
    file = opened(root, env)
    with failing(env, "pread", errno.EIO), pytest.raises(StoreIOError) as caught:
        decode_file_records(file, *places, PLAIN)
    assert (caught.value.errno, caught.value.path) == (errno.EIO, file.path)


def test_wrong_arguments(root: Path, env: Env, places: tuple[Any, Any], tmp_path: Path) -> None:
    file = opened(damage(root, tmp_path, 0), env)
    with pytest.raises(StoreFormatError, match="one entry a record"):
        decode_file_records(file, places[0], places[1][:-1], PLAIN)
    with pytest.raises(StoreFormatError, match="no column 'bodies'"):
        decode_file_records(file, *places, ["bodies"])
    file.destroy()
    with pytest.raises(StoreCorruptionError, match="does not hold"):
        decode_file_records(file, *places, PLAIN)
