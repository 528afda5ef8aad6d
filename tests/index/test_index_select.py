"""Goal: many keys selected in one call give the results of single selects, in every mode and for
damaged files.
Method: random rows in the index file of the oracle; words of the file are changed."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from pyrocketstore.errors import StoreCorruptionError, StoreFormatError
from pyrocketstore.index._entries import hashes_of_keys, key_hash_of
from pyrocketstore.index._file import IndexFile
from pyrocketstore.system.env import Env
from support import oracle

TIME = 1_700_000_000_000
FOREVER = 2**62
MODES = ("shared", "memory", "read")


def made(path: Path, slots: int, entries: int, count: int) -> tuple[oracle.IndexFile, list[int]]:
    """A file of rows whose hashes repeat, and collide in their slots."""
    dice = random.Random(count)
    model = oracle.IndexFile(slots, entries)
    index = IndexFile(Env(), str(path), slots, entries, create=True)
    hashes = [dice.choice([dice.randrange(2**31), dice.randrange(60)]) for _ in range(count)]
    for i, key_hash in enumerate(hashes):
        row = (key_hash, 100 * i, TIME + 300 * i)
        assert index.put_hash(*row) == model.put(*row)
    index.shutdown()
    return model, hashes


def rows_of(found: tuple[np.ndarray, np.ndarray]) -> list[tuple[int, int]]:
    assert [column.dtype.name for column in found] == ["int64", "int64"]
    return list(zip(*(column.tolist() for column in found), strict=True))


def one_by_one(index: IndexFile, hashes: list[int], *query: int) -> list[tuple[int, int]]:
    return [(i, at) for i, h in enumerate(hashes) for at in index.select_hash(h, *query)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("slots", "entries", "count"), [(7, 500, 400), (5000, 3000, 2500)])
def test_many_are_as_one_by_one(tmp_path: Path, mode: str, slots: int, entries: int, count: int):
    model, hashes = made(tmp_path / "1", slots, entries, count)
    index = IndexFile(Env(), str(tmp_path / "1"), slots, entries, mode=mode)
    asked = [*hashes[:150], *range(70), 2**31 - 1, 0]
    for max_num in (1, 2, 65, 1000):
        for begin, end in [(0, FOREVER), (TIME + 3000, TIME + 60_000), (9, 8)]:
            expected = [
                (i, at)
                for i, key_hash in enumerate(asked)
                for at in model.select(key_hash, max_num, begin, end)
            ]
            found = index.select_hashes(np.array(asked, np.int32), max_num, begin, end)
            assert rows_of(found) == expected
            assert one_by_one(index, asked, max_num, begin, end) == expected
    none = np.empty(0, np.int32)
    assert rows_of(index.select_hashes(none, 5, 0, FOREVER)) == []
    assert rows_of(index.select_hashes(np.array([-1, -5], np.int32), 5, 0, FOREVER)) == []
    assert rows_of(index.select_hashes(np.array(asked, np.int32), 0, 0, FOREVER)) == []
    with pytest.raises(StoreFormatError):
        index.select_hashes(none, -1, 0, FOREVER)
    index.destroy()
    assert rows_of(index.select_hashes(np.array(asked, np.int32), 9, 0, FOREVER)) == []


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_file_answers_many_as_one_by_one(tmp_path: Path, seed: int):
    dice = random.Random(seed)
    path = tmp_path / "1"
    _, hashes = made(path, 11, 300, 250)
    data = bytearray(path.read_bytes())
    for _ in range(dice.choice([1, 20, 400])):
        at = dice.randrange(36 // 4, len(data) // 4) * 4
        word = dice.choice([0, 1, 249, 250, 251, 299, 300, -1, 2**31 - 1, -(2**31), 17])
        data[at : at + 4] = word.to_bytes(4, "big", signed=True)
    path.write_bytes(data)
    asked = [*hashes, *range(60)]
    for mode in MODES:
        index = IndexFile(Env(), str(path), 11, 300, mode=mode)
        for max_num in (1, 100, 1000):
            found = rows_of(index.select_hashes(np.array(asked, np.int32), max_num, 0, FOREVER))
            assert found == one_by_one(index, asked, max_num, 0, FOREVER)
        index.shutdown()


def test_a_file_that_is_cut_is_an_error(tmp_path: Path):
    path = tmp_path / "1"
    _, hashes = made(path, 11, 300, 250)
    index = IndexFile(Env(), str(path), 11, 300, mode="read")
    with open(path, "r+b") as file:
        file.truncate(50)
    with pytest.raises(StoreCorruptionError, match="the file ends here"):
        index.select_hashes(np.array(hashes, np.int32), 5, 0, FOREVER)


def test_hashes_of_keys():
    keys = ["", "k1", "Aa", "ключ", "😀", "\ud800", "a\ufffd", b"k1", b"\xff\xc3", "x" * 300]
    assert hashes_of_keys(keys, "T").dtype == np.int32
    assert hashes_of_keys(keys, "T").tolist() == [key_hash_of("T", key) for key in keys]
    assert hashes_of_keys(iter(keys), b"T").tolist() == hashes_of_keys(keys, "T").tolist()
    whole = [f"T#{key}" for key in keys if isinstance(key, str)]
    texts = [key for key in keys if isinstance(key, str)]
    assert hashes_of_keys(whole).tolist() == hashes_of_keys(texts, "T").tolist()
    for key in texts:
        if key != "\ud800":
            assert key_hash_of("ö", key) == oracle.index_key_hash("ö", key)
    assert hashes_of_keys([]).tolist() == []
    with pytest.raises(TypeError):
        hashes_of_keys([5], "T")  # type: ignore[list-item]
