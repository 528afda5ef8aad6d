"""Goal: many keys put by one call give the same bytes as single puts, and zero-filling ahead never
overwrites stored data.
Method: run both ways side by side, with tests/support/oracle_index.py; each system call that can
fail is made to fail."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyrocketstore.errors import StoreFormatError, StoreIOError, StoreStateError
from pyrocketstore.index._entries import key_hash_of
from pyrocketstore.index._file import IndexFile
from pyrocketstore.system.env import Env
from support.broken_env import broken, watched
from support.oracle_index import OracleIndexFile, key_hash

TIME = 1_700_000_000_000
SLOTS, ENTRIES = 60_000, 300_000  # four chunks of slots, ninety of entries
#: All of Python's characters, lone surrogates too.
TEXT = st.text(st.characters(codec=None), max_size=12)
ROWS = st.lists(
    st.tuples(TEXT | TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")),
              st.integers(0, 2**62), st.integers(-(2**40), 2**42)),
    max_size=30,
)  # fmt: skip


def columns_of(rows):
    """(keys, places, times) of (key, place, time) rows."""
    keys = [row[0] for row in rows]
    return keys, *(np.array([row[n] for row in rows], np.int64) for n in (1, 2))


def as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


@settings(max_examples=300)
@given(
    topic=TEXT,
    rows=ROWS,
    slots=st.integers(1, 9),
    entries=st.integers(2, 32),
    preset=st.tuples(st.integers(-1, 9), st.integers(-1, TIME)),
    cut=st.integers(0, 30),
    as_tuple=st.booleans(),
)
@example("T", [("\ud800x", 1, TIME), ("\U0001f680\udc00", 2, TIME)], 3, 9, (0, 0), 0, False)
@example("é", [("ÿ" * 9, 1, TIME), ("漢字" * 5, 2, 5), ("🚀" * 5, 3, 0)], 3, 9, (0, 0), 1, True)
def test_many_at_once_are_the_bytes_of_one_by_one(
    tmp_path_factory, topic, rows, slots, entries, preset, cut, as_tuple
):
    root: Path = tmp_path_factory.mktemp("index")
    many = IndexFile(Env(), str(root / "many"), slots, entries, *preset, create=True)
    single = IndexFile(Env(), str(root / "single"), slots, entries, *preset, create=True)
    model = OracleIndexFile(slots, entries, *preset)
    wanted = 0
    for key, phy_offset, time in rows:
        whole = as_bytes(topic) + b"#" + as_bytes(key)
        put = single.put_key(whole, phy_offset, time)
        assert put == model.put(key_hash_of(topic, key), phy_offset, time)
        wanted += put
    done = 0
    for part in (rows[:cut], rows[cut:]):
        keys, *columns = columns_of(part)
        done += many.put_keys(topic, tuple(keys) if as_tuple else keys, *columns)
    assert done == wanted
    assert many.index_count == single.index_count == model.count
    many.shutdown()
    single.shutdown()
    assert (root / "many").read_bytes() == (root / "single").read_bytes() == model.data


@given(topic=TEXT, key=TEXT)
@example("T", "x" * 1000)
@example("polygene", "lubricants")
def test_hashes_of_text_are_those_of_its_utf8(topic, key):
    hashed = key_hash_of(topic, key)
    assert hashed == key_hash_of(as_bytes(topic), as_bytes(key))
    if not any("\ud800" <= c <= "\udfff" for c in topic + key):
        assert hashed == key_hash(f"{topic}#{key}")


def long_rows(first: int, count: int):
    """Keys that hit every slot chunk in no order, some of them twice."""
    return [(f"k{n * 7919 % 90_001}", n * 100, TIME + n * 3) for n in range(first, first + count)]


def put_one_by_one(path: Path, rows) -> bytes:
    index = IndexFile(Env(), str(path), SLOTS, ENTRIES, create=True)
    for key, phy_offset, time in rows:
        assert index.put_hash(key_hash_of("T", key), phy_offset, time)
    index.shutdown()
    return path.read_bytes()


PWRITES = {
    "works": lambda original, *args: original(*args),
    "fails": lambda original, *args: -errno.EIO,
    "is short": lambda original, fd, data, size, at: original(fd, data, min(size, 70_001), at),
}


@pytest.mark.parametrize("pwrite", PWRITES)
def test_zeros_ahead_cover_nothing(tmp_path, pwrite):
    rows = long_rows(0, 150_000)
    env = Env()
    index = IndexFile(env, str(tmp_path / "1"), SLOTS, ENTRIES, create=True)
    with broken(env, "pwrite", PWRITES[pwrite]) as calls:
        # Single keys first: some chunks of slots hold something when the rest is filled.
        index.put_keys("T", *columns_of(rows[:2]))
        assert not calls, "a file of few keys stays small"
        index.put_keys("T", *columns_of(rows[2:100_000]))
        index.put_keys("T", *columns_of(rows[100_000:]))
    assert len(calls) > 3
    index.shutdown()
    assert (tmp_path / "1").read_bytes() == put_one_by_one(tmp_path / "2", rows)


def test_a_file_that_was_there_is_not_filled(tmp_path):
    """An existing file is kept, also if its maker is asked to create it."""
    rows = long_rows(0, 120_000)
    for count, (first, last) in enumerate(((0, 60_000), (60_000, 60_001), (60_001, 120_000))):
        env = Env()
        index = IndexFile(env, str(tmp_path / "1"), SLOTS, ENTRIES, create=count == 0)
        with watched(env, "pwrite") as calls:
            assert index.put_keys("T", *columns_of(rows[first:last])) == last - first
        assert bool(calls) == (count == 0)
        index.shutdown()
    assert (tmp_path / "1").read_bytes() == put_one_by_one(tmp_path / "2", rows)
    again = IndexFile(env, str(tmp_path / "1"), SLOTS, ENTRIES, create=True)
    with watched(env, "pwrite") as calls:
        again.put_keys("T", *columns_of(long_rows(0, 70_000)))
    assert not calls


def test_a_device_that_fills_up_stops_a_batch_where_it_is(tmp_path):
    rows = long_rows(0, 150_000)
    env = Env()
    index = IndexFile(env, str(tmp_path / "1"), SLOTS, ENTRIES, create=True)
    calls = itertools.count()

    def full(original, *args):
        return -errno.ENOSPC if 7 <= next(calls) < 40 else original(*args)

    done = refused = 0
    with broken(env, "fallocate", full):
        while done < len(rows):
            try:
                done += index.put_keys("T", *columns_of(rows[done:]))
            except StoreIOError as error:
                assert error.errno == errno.ENOSPC
                refused += 1
            assert index.index_count == done + 1
    assert refused > 5
    index.shutdown()
    assert (tmp_path / "1").read_bytes() == put_one_by_one(tmp_path / "2", rows)


def test_wrong_keys_put_nothing(tmp_path):
    index = IndexFile(Env(), str(tmp_path / "1"), 3, 20, create=True)
    places = np.arange(3, dtype=np.int64)
    for keys, error in (
        (["a", "b"], StoreFormatError),
        (["a", "b", 3], TypeError),
        (["a", "b", None], TypeError),
        (7, TypeError),
    ):
        with pytest.raises(error):
            index.put_keys("T", keys, places, places)
    with pytest.raises(TypeError):
        index.put_keys(None, ["a", "b", "c"], places, places)  # type: ignore[arg-type]
    with pytest.raises(StoreFormatError):
        index.put_keys("T", ["a", "b", "c"], places, places[:2])
    assert index.put_keys("T", [], places[:0], places[:0]) == 0
    assert index.index_count == 1
    assert index.put_keys("T", (str(n) for n in range(3)), places, places) == 3
    index.destroy()
    with pytest.raises(StoreStateError):
        index.put_keys("T", ["a"], places[:1], places[:1])
