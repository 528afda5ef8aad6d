"""Goal: a store in DLedger mode has the rows of the plain store that it was made from.
Method: both are planned and read as Spark does, by queue and by log, in one task and in many."""

from __future__ import annotations

import shutil
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from support.dledger import FILE_SIZE, NODE, as_dledger, as_v2, records
from support.sizes import SIZES

pytest.importorskip("pyspark", reason="pyspark is not installed")

from direct_reads import read_directly
from pyrocketstore.spark.read.log_walk import LogWalk
from pyrocketstore.spark.read.records import Chunk
from pyrocketstore.spark.task_types import LogFile, LogTask
from pyrocketstore.system.env import Env

COUNT = 200
NAMES = ("topic", "queueId", "queueOffset", "body", "tags", "keys", "storeTimestamp")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    with pyrocketstore.open(root, **SIZES) as store:
        for number in range(COUNT):
            store.put(
                "ab"[number % 2],
                b"%d " % number * (number % 50),
                queue_id=number % 3,
                tags="A",
                keys=f"k{number}",
                properties={"n": str(number)},
            )
    return root


def rows(path: Path, **options: object) -> list[tuple[Any, ...]]:
    found = [tuple(row[name] for name in NAMES) for row in read_directly(path, *NAMES, **options)]
    # The view of the log also has a row for the end of each file.
    return sorted((row for row in found if row[0] is not None), key=repr)


@pytest.mark.parametrize("parts", [1, 7, 61])
@pytest.mark.parametrize(
    "options", [{"readMode": "queue"}, {"readMode": "sequential"}, {"view": "commitlog"}]
)
def test_the_rows_are_those_of_the_plain_store(
    path: Path, parts: int, options: dict[str, str]
) -> None:
    wanted = rows(path, minPartitions=parts, **options)
    assert len(wanted) == COUNT
    as_dledger(path, COUNT - 1)
    assert rows(path, minPartitions=parts, **options) == wanted


def test_a_filter_selects_rows(path: Path) -> None:
    as_dledger(path, COUNT - 1)
    found = rows(path, topic="a", where="n IN ('10', '11')")
    assert [row[3] for row in found] == [b"10 " * 10]


def test_the_magic_codes_are_those_of_the_log(path: Path) -> None:
    """As in 5.x: a topic of more than 127 bytes, whose length has 2 bytes."""
    with pyrocketstore.open(path, read_only=True, **SIZES) as store:
        first = next(iter(store.read("a", 0)))
    found, log = list(records(path)), bytearray()
    for number, record in enumerate(found):
        plain = bytearray(record if number else as_v2(record, 0))
        struct.pack_into(">q", plain, 28, len(log))
        log += plain
    shutil.rmtree(path / "commitlog")
    (path / "commitlog").mkdir()
    (path / "commitlog" / f"{0:020d}").write_bytes(bytes(log) + bytes((1 << 20) - len(log)))
    for name in ("consumequeue", "index"):
        shutil.rmtree(path / name)
    shown = read_directly(path, "magicCode", "recordType", view="commitlog")
    codes = Counter(row["magicCode"] for row in shown if row["recordType"] == "message")
    assert first.queue_offset == 0
    assert codes == {0xDAA320AB - (1 << 32): 1, 0xDAA320A7 - (1 << 32): COUNT - 1}


@pytest.mark.parametrize("window_bytes", [400, 1000, 1 << 20])
def test_a_record_that_is_longer_than_its_entry_is_damage(path: Path, window_bytes: int) -> None:
    """Its size asks for bytes behind the entry, and the size of the entry for none."""
    as_dledger(path, COUNT - 1)
    name = path / NODE / "data" / f"{0:020d}"
    data = bytearray(name.read_bytes())
    entries, at = [], 0
    while data[at : at + 4] == (1).to_bytes(4, "big"):
        entries.append(at)
        at += int.from_bytes(data[at + 4 : at + 8], "big")
    struct.pack_into(">i", data, entries[3] + 48, 5000)
    name.write_bytes(data)
    file = LogFile(str(name), 0, FILE_SIZE)
    task = LogTask("b", file, 0, FILE_SIZE, FILE_SIZE, True, True, None)
    found: list[int] = []
    gaps: list[tuple[int, int]] = []
    for piece in LogWalk(Env(), task, fail_on_data_loss=True, window_bytes=window_bytes):
        if isinstance(piece, Chunk):
            found += piece.phy_offsets.tolist()
        else:
            gaps.append((piece.position, piece.size))
    assert found == [begin + 48 for number, begin in enumerate(entries) if number != 3]
    # The search behind damage finds the next record, not the header of its entry.
    assert gaps == [(entries[3], entries[4] + 48 - entries[3]), (at, FILE_SIZE - at)]
