"""Goal: an index file holds the bytes of 4.9.3 and returns its results in every mode, and damage
ends a chain but never the process.
Method: compare with the plain index of support/ over rows chosen by hypothesis, and with checksums
of files that the real IndexFile wrote."""

from __future__ import annotations

import errno
import hashlib
import pickle
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pyrocketstore.errors import (
    StoreCorruptionError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
)
from pyrocketstore.index._entries import key_hash_of
from pyrocketstore.index._file import (
    HASH_SLOT_SIZE,
    INDEX_HEADER_SIZE,
    INDEX_SIZE,
    INVALID_INDEX,
    IndexFile,
    index_file_size,
)
from pyrocketstore.system.env import Env
from support import oracle
from support.broken_env import broken, failing, watched
from support.oracle_index import ENTRY, HEADER, OracleIndexFile, java_hash, key_hash, stream

MODES = ("shared", "memory", "read")
TIME = 1_700_000_000_000
FOREVER = 2**62


def put_all(index: IndexFile, rows) -> int:
    """Puts (hash, phy_offset, time) rows by one call; how many are in."""
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    kinds = (np.int32, np.int64, np.int64)
    arrays = [np.array(c, kind) for c, kind in zip(columns, kinds, strict=True)]
    return index.put_hashes(*arrays)


def made(path: Path, slots: int, entries: int, rows, *preset: int) -> OracleIndexFile:
    """Writes a file through the engine and gives what it must hold."""
    index = IndexFile(Env(), str(path), slots, entries, *preset, create=True)
    model = OracleIndexFile(slots, entries, *preset)
    for row in rows:
        assert index.put_hash(*row) == model.put(*row)
    index.shutdown()
    assert path.read_bytes() == model.data
    return model


def files_like(path: Path, slots: int, entries: int):
    """The file in every mode."""
    return [IndexFile(Env(), str(path), slots, entries, mode=mode) for mode in MODES]


# ---- bytes -------------------------------------------------------------------------------------

#: (stream, geometry, preset, queries): checksums of what the real IndexFile wrote and answered.
VECTORS = [
    (
        (1, 11, 4), (7, 6), (0, 0), 20,
        ["fd91384593c247919a2707922f7df9cbb7e5cb83160f6a633bb4f45c40ff6ce9",
         "e294fc55c2ac1f37ba7fa80a16e1948e5d8f2744067175312f2477c83749625c",
         "8a10ef7e43d907bb1c8b2e8a0ec7dd61674fe27572be825801034a5898912ac7"],
        "ad7621212ba65636682d570679530e5122ba23dd1cffaffe4db9fde92afb8f8e",
    ),
    (
        (2, 7000, 900), (1000, 3000), (0, 0), 400,
        ["91dc775abf9629edefbf89881cb5d35a335b07f21a5453a7271cea46f5884b0f",
         "9b40ad963c055cf77c672f49b78a2e4c94f48280107dd47f22954b27f906ffb4",
         "99d8c92359680015ade3b1d03a9802964065cd432b29fbd5e2cfdd2b3c24311e"],
        "46557f82495b229775e47d6b6da8568a677ed62d21044a9382976024d9fec1f8",
    ),
    (
        (3, 2500, 40), (97, 1200), (123456, 1_600_000_000_500), 400,
        ["b04f5bf491cc24a4f2f5ce5b7422c9827449a8f579d96aa84ee08d535530e5cb",
         "ac75ff7170e11cb308366d4701ffceca5730d6d36c05e8026cc670f511f2625b",
         "840090389ff5e36c88d1feb107c5df03b85cdca2357de3c7aa6b54b6a8b15d13"],
        "5e74571d5283e2ea59c832428238c69d2e481b07d8a9e2b0574f22ebf5ad57f9",
    ),
    (
        (4, 40, 5), (1, 9), (-5, -7), 50,
        ["c800e65d882be51a0e8363aec438831924e747e590ed2eb17c96aff8b3ec6fc7",
         "180ee295a25a189536500bae93c874e7a4be225dea0a9fccdeb415b6e832214d",
         "1579f29b6d1707f3ea041da780b50246e36b21d0db9647aae161d8c5f7a376e6",
         "2af6ca5b32ba91558f9f2733483d1f66c6bd20e3dd438d4b17a13cc692eae731",
         "1f7626654f28f6f8768603ef5485b43ea2d1174dce143d3d26d5c6ae9158c94c"],
        "1bb01b3dcc80d84f015c3bdf9b8bc0c284a155c36be620409031a5b7d6279ae6",
    ),
]  # fmt: skip


def queries_of(rows, count: int):
    size = len(rows)
    for i in range(count):
        first, last = rows[i * 104729 % size][2], rows[(i * 1299709 + size // 3) % size][2]
        yield rows[i * 7919 % size][0], (1, 3, 64, 1000)[i % 4], *sorted((first, last))


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize(("seed", "geometry", "preset", "queries", "sums", "answers"), VECTORS)
def test_vectors_of_the_real_index_file(
    seed, geometry, preset, queries, sums, answers, by_columns, tmp_path
):
    rows = stream(*seed)
    files: list[IndexFile] = []

    def roll() -> IndexFile:
        ends = (files[-1].end_phy_offset, files[-1].end_timestamp) if files else preset
        path = str(tmp_path / f"{len(files):017d}")
        files.append(IndexFile(Env(), path, *geometry, *ends, create=True))
        return files[-1]

    index = roll()
    if by_columns:
        left = [(key_hash(key), phy, time) for key, phy, time in rows]
        while left := left[put_all(index, left) :]:
            index = roll()
    else:
        for row in rows:
            while not index.put_key(*row):
                index = roll()
    text = ""
    for key, max_num, begin, end in queries_of(rows, queries):
        pieces = (
            f"{'FT'[f.is_time_matched(begin, end)]}{f.select_phy_offset(key, max_num, begin, end)}"
            for f in files
        )
        text += " ".join(pieces) + "\n"
    for f in files:
        f.shutdown()
    written = [p.read_bytes() for p in sorted(tmp_path.iterdir())]
    assert [hashlib.sha256(data).hexdigest() for data in written] == sums
    assert hashlib.sha256(text.encode()).hexdigest() == answers


def test_a_roll_by_hand(tmp_path):
    """Seven slots, six entries: five keys fill it; the next file's header starts from its end."""
    path = tmp_path / "20240101000000000"
    index = IndexFile(Env(), str(path), 7, 6, create=True)
    assert (index.index_count, index.name, index.path) == (1, path.name, str(path))
    for i in range(5):
        assert key_hash_of("I", f"k{i}") == 2211743 + i
        assert not index.is_write_full()
        assert index.put_key(f"I#k{i}", 1000 + 100 * i, TIME + 500 * i)
    assert index.is_write_full() and not index.put_key("I#k5", 2000, TIME)
    assert put_all(index, [(5, 2000, TIME)]) == 0
    assert (index.hash_slot_count, index.index_count) == (5, 6)
    assert (index.begin_phy_offset, index.end_phy_offset) == (1000, 1400)
    assert (index.begin_timestamp, index.end_timestamp) == (TIME, TIME + 2000)
    data = path.read_bytes()
    assert len(data) == index_file_size(7, 6) == index.file_size == 40 + 28 + 120
    assert HEADER.unpack_from(data) == (TIME, TIME + 2000, 1000, 1400, 5, 6)
    assert struct.unpack_from(">7i", data, 40) == (0, 0, 1, 2, 3, 4, 5)
    entries = [ENTRY.unpack_from(data, 68 + 20 * n) for n in range(6)]
    assert entries[INVALID_INDEX] == (0, 0, 0, 0)
    assert entries[4] == (2211746, 1300, 1, 0)

    rolled = tmp_path / "20240101000000001"
    after = IndexFile(Env(), str(rolled), 7, 6, 1400, TIME + 2000, create=True)
    head = (TIME + 2000, TIME + 2000, 1400, 1400)
    assert rolled.read_bytes() == HEADER.pack(*head, 0, 0).ljust(188, b"\0")
    assert (after.end_timestamp, after.index_count) == (TIME + 2000, 1)
    # The first entry counts from the end of the file before it, though the header forgets that.
    assert after.put_key("I#k0", 1500, TIME + 5999) and after.put_key("I#k0", 1600, TIME + 8000)
    data = rolled.read_bytes()
    assert HEADER.unpack_from(data) == (TIME + 5999, TIME + 8000, 1500, 1600, 1, 3)
    assert ENTRY.unpack_from(data, 88) == (2211743, 1500, 3, 0)
    assert ENTRY.unpack_from(data, 108) == (2211743, 1600, 2, 1)
    times = (TIME + 5999, TIME + 5999 + 2999)
    assert after.select_phy_offset("I#k0", 9, *times) == [1600]
    assert after.select_phy_offset("I#k0", 9, TIME, times[1] + 1) == [1600, 1500]


def test_hashes():
    for text in ("", "a", "é", "漢字", "\U0001f680x", "T#" + "k" * 300):
        for topic in ("", "T", "主题"):
            expected = abs(java_hash(f"{topic}#{text}"))
            assert key_hash_of(topic, text) == expected == key_hash(f"{topic}#{text}"), text
    assert key_hash_of(b"T", "é".encode()) == key_hash_of("T", "é")
    assert key_hash_of("T", "Aa") == key_hash_of("T", "BB")
    with pytest.raises(TypeError):
        key_hash_of("T", 5)  # type: ignore[arg-type]


def test_the_smallest_integer_counts_as_zero(tmp_path):
    assert java_hash("polygenelubricants") == -(2**31)
    index = IndexFile(Env(), str(tmp_path / "1"), 50, 9, create=True)
    assert index.put_key("polygenelubricants", 7, TIME) and index.put_key(
        b"polygenelubricants", 8, TIME
    )
    assert index.select_hash(0, 9, 0, FOREVER) == [8, 7]
    assert index.select_phy_offset("polygenelubricants", 9, 0, FOREVER) == [8, 7]


ROWS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 12), st.integers(0, 2**31 - 1)),
        st.integers(-5, 2**40),
        st.one_of(
            st.integers(TIME - 3000, TIME + 9000),
            st.sampled_from([0, -1, 1, TIME + 2**31 * 1000 + 5, 2**60]),
        ),
    ),
    max_size=14,
)
PRESETS = st.sampled_from([(0, 0), (500, TIME - 2500), (0, TIME), (500, 0), (-1, -1)])
WINDOWS = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.sampled_from([0, 1, 2, 64, 2**62]),
        st.sampled_from([-(2**63), 0, TIME - 1000, TIME, TIME + 2999, TIME + 3000]),
        st.sampled_from([0, TIME - 1, TIME, TIME + 3000, TIME + 9000, 2**63 - 1]),
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(2, 11), PRESETS, ROWS, WINDOWS)
def test_bytes_and_answers_are_the_oracles(tmp_path_factory, slots, entries, preset, rows, windows):
    path = tmp_path_factory.mktemp("i") / "1"
    model = made(path, slots, entries, rows, *preset)
    double = oracle.IndexFile(slots, entries)
    double.end_timestamp = double.begin_timestamp = max(0, preset[1])
    double.end_phy_offset = double.begin_phy_offset = max(0, preset[0])
    assert [double.put(*row) for row in rows].count(True) == model.count - 1
    assert double.encode() == model.data
    columns = path.with_name("2")
    index = IndexFile(Env(), str(columns), slots, entries, *preset, create=True)
    assert put_all(index, rows) == min(len(rows), entries - 1)
    assert columns.read_bytes() == model.data
    for other in [index, *files_like(path, slots, entries)]:
        assert other.index_count == model.count and other.hash_slot_count == model.slot_count
        for hashed, max_num, begin, end in windows:
            expected = model.select(hashed, max_num, begin, end)
            assert other.select_hash(hashed, max_num, begin, end) == expected, other.mode
            assert other.is_time_matched(begin, end) == model.time_matched(begin, end)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-9000, 9000)), min_size=1, max_size=30),
    PRESETS,
    st.integers(1, 5),
)
@example([(1, 0), (1, 4000)], (500, TIME - 2500), 1)
def test_select_hits_misses_nothing(tmp_path_factory, rows, preset, room):
    """Clocks that jump, whole seconds and the odd first entry: every record in time is a hit."""
    path = tmp_path_factory.mktemp("i") / "1"
    made(path, 2, 40, [(h, n, TIME + diff) for n, (h, diff) in enumerate(rows)], *preset)
    for index in files_like(path, 2, 40):
        for begin, end in ((0, FOREVER), (TIME, TIME), (TIME - 500, TIME + 2500)):
            found: list[tuple[int, int]] = []
            start = 0
            while True:
                phy_offsets, times, start = index.select_hits(1, begin, end, room, start)
                assert len(phy_offsets) == len(times) <= room
                found += zip(phy_offsets.tolist(), times.tolist(), strict=True)
                if start == 0:
                    break
            wanted = [
                n for n, (h, diff) in enumerate(rows) if h == 1 and begin <= TIME + diff <= end
            ]
            got = [n for n, _ in found]
            assert got == sorted(got, reverse=True)
            assert set(wanted) <= set(got)
            assert all(rows[n][0] == 1 for n in got)
    assert index.select_hits(1, 0, FOREVER, 5, 2**40)[2] == 0
    with pytest.raises(StoreFormatError):
        index.select_hits(1, 0, 1, 0)


def test_a_file_goes_on_where_it_was(tmp_path):
    rows = [(n * 7, n * 100, TIME + n * 400) for n in range(20)]
    whole = made(tmp_path / "1", 5, 30, rows)
    made(tmp_path / "2", 5, 30, rows[:8])
    again = IndexFile(Env(), str(tmp_path / "2"), 5, 30)
    assert put_all(again, rows[8:]) == 12
    again.shutdown()
    assert (tmp_path / "2").read_bytes() == whole.data


def test_tail_count(tmp_path):
    rows = [(1, 5, TIME), (2, 7, TIME), (3, 7, TIME), (4, 7, TIME)]
    made(tmp_path / "1", 5, 30, rows)
    for index in files_like(tmp_path / "1", 5, 30):
        assert [index.tail_count(n) for n in (7, 5, 0)] == [3, 0, 0]
    made(tmp_path / "2", 5, 5, rows[1:])
    assert [index.tail_count(7) for index in files_like(tmp_path / "2", 5, 5)] == [3, 3, 3]


def test_selecting_while_one_puts(tmp_path):
    """A reader sees whole entries, newest first."""
    count = 20_000
    index = IndexFile(Env(), str(tmp_path / "1"), 3, count + 1, create=True)
    failures: list[str] = []
    done = threading.Event()

    def select() -> None:
        while not done.is_set():
            found = index.select_hash(2, 300, 0, FOREVER)
            if found != list(range(found[0], found[0] - len(found), -1)) if found else False:
                failures.append(str(found[:5]))

    readers = [threading.Thread(target=select) for _ in range(2)]
    for reader in readers:
        reader.start()
    for first in range(0, count, 500):
        put_all(index, [(2, n, TIME + n) for n in range(first, first + 500)])
    done.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert index.select_hash(2, 3, 0, FOREVER) == [count - 1, count - 2, count - 3]


# ---- modes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["memory", "read"])
def test_other_modes_leave_the_disk_alone(mode, tmp_path):
    path = tmp_path / "1"
    rows = [(n % 3, n, TIME + n * 900) for n in range(8)]
    model = made(path, 3, 20, rows[:4])
    before = path.read_bytes(), path.stat().st_mtime_ns
    env = Env()
    index = IndexFile(env, str(path), 3, 20, mode=mode)
    assert index.select_hash(1, 9, 0, FOREVER) == [1]
    index.load()
    assert index.put_hash(*rows[4]) and put_all(index, rows[5:]) == 3
    for row in rows[4:]:
        model.put(*row)
    assert index.mode == "memory"
    for hashed in range(3):
        expected = model.select(hashed, 9, 0, FOREVER)
        assert index.select_hash(hashed, 9, 0, FOREVER) == expected
    assert index.mapped_file.read(0, index.used_size) == model.data[: index.used_size]
    index.flush()
    index.shutdown()
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    other = IndexFile(env, str(path), 3, 20, mode=mode)
    other.put_hash(*rows[4])
    assert other.destroy()
    assert path.exists() and [p.name for p in tmp_path.iterdir()] == ["1"]


def test_a_copy_in_memory_has_the_entry_that_its_count_does_not_cover_yet(tmp_path):
    """The owner writes entry and slot before the count, so a reader may come in between."""
    path = tmp_path / "1"
    model = made(path, 3, 20, [(1, 10 * n, TIME + n) for n in range(5)])
    data = bytearray(path.read_bytes())
    data[36:40] = struct.pack(">i", 5)
    path.write_bytes(data)
    index = IndexFile(Env(), str(path), 3, 20, mode="read")
    assert index.index_count == model.count - 1
    found = index.select_hash(1, 9, 0, FOREVER)
    assert found == model.select(1, 9, 0, FOREVER)
    index.open_for_writing()
    assert index.select_hash(1, 9, 0, FOREVER) == found
    index.shutdown()


def test_a_file_without_a_path(tmp_path):
    index = IndexFile(Env(), None, 3, 20, 5, TIME, mode="memory", create=True, name="2024")
    assert (index.name, index.path, index.end_phy_offset) == ("2024", None, 5)
    assert index.put_hash(1, 9, TIME) and index.select_hash(1, 9, 0, FOREVER) == [9]
    index.flush()
    assert index.destroy()
    for mode, name in (("memory", None), ("shared", "1")):
        with pytest.raises(StoreFormatError):
            IndexFile(Env(), None, 3, 20, mode=mode, create=True, name=name)


def test_a_destroyed_file_answers_nothing(tmp_path):
    made(tmp_path / "1", 3, 20, [(1, 9, TIME)])
    index = IndexFile(Env(), str(tmp_path / "1"), 3, 20)
    index.put_hash(1, 10, TIME)
    assert index.destroy() and not (tmp_path / "1").exists()
    assert index.select_hash(1, 9, 0, FOREVER) == []
    assert len(index.select_hits(1, 0, FOREVER)[0]) == 0
    assert index.tail_count(10) == 0
    with pytest.raises(StoreStateError):
        index.put_hash(1, 9, TIME)
    index.flush()
    index.shutdown()


def test_wrong_arguments(tmp_path):
    index = IndexFile(Env(), str(tmp_path / "1"), 3, 20, create=True)
    columns = np.array([1], np.int32), np.array([1], np.int64), np.array([TIME], np.int64)
    for call in (
        lambda: index.put_hash(-1, 0, 0),
        lambda: index.put_hashes(columns[0], columns[1], columns[2][:0]),
        lambda: index.put_hashes(-columns[0], columns[1], columns[2]),
        lambda: index.select_hash(1, -1, 0, 1),
    ):
        with pytest.raises(StoreFormatError):
            call()
    assert index.put_hashes(columns[0][:0], columns[1][:0], columns[2][:0]) == 0
    assert index.index_count == 1
    assert index.select_hash(1, 0, 0, 1) == index.select_hash(-1, 5, 0, 1) == []
    for make in (lambda: IndexFile.__new__(IndexFile), lambda: pickle.dumps(index)):
        with pytest.raises(TypeError):
            make()


@pytest.mark.parametrize("geometry", [(0, 20), (-1, 20), (3, 1), (3, -5), (2**31, 20), (3, 2**31)])
def test_an_impossible_geometry(geometry, tmp_path):
    with pytest.raises(StoreFormatError, match="must be at least"):
        IndexFile(Env(), str(tmp_path / "1"), *geometry, create=True)
    assert list(tmp_path.iterdir()) == []


# ---- system calls that fail --------------------------------------------------------------------


def test_a_full_device(tmp_path):
    """Nothing is put then; puts continue once there is room."""
    path, env = tmp_path / "1", Env()
    index = IndexFile(env, str(path), 5, 50, create=True)
    with failing(env, "fallocate", errno.ENOSPC):
        for _ in range(2):
            with pytest.raises(StoreIOError) as failure:
                index.put_hash(1, 7, TIME)
            assert failure.value.errno == errno.ENOSPC and failure.value.path == str(path)
        with pytest.raises(StoreIOError):
            put_all(index, [(1, 7, TIME)])
    assert index.index_count == 1 and not any(path.read_bytes())
    assert index.select_hash(1, 9, 0, FOREVER) == []
    assert index.put_hash(1, 7, TIME)
    assert index.select_hash(1, 9, 0, FOREVER) == [7]


def test_a_device_that_fills_up(tmp_path):
    """Columns are put as far as there is room; each chunk is asked for once."""
    count = 12_000
    rows = [(n * 7919, n, TIME + n) for n in range(count)]
    path, env = tmp_path / "1", Env()
    index = IndexFile(env, str(path), 64, count + 1, create=True)
    left = 2

    def fill_up(original, *args) -> int:
        nonlocal left
        left -= 1
        return original(*args) if left >= 0 else -errno.ENOSPC

    with broken(env, "fallocate", fill_up):
        done = put_all(index, rows)
        assert 0 < done < count and index.index_count == done + 1
        with pytest.raises(StoreIOError):
            put_all(index, rows[done:])
    with watched(env, "fallocate") as calls:
        assert put_all(index, rows[done:]) == count - done
    assert 0 < len(calls) <= index.file_size // 65536 + 1
    assert all(length % 65536 == 0 or at + length == index.file_size for _, at, length in calls)
    model = OracleIndexFile(64, count + 1)
    for row in rows:
        model.put(*row)
    assert path.read_bytes() == model.data


def test_room_is_asked_for_before_it_is_used(tmp_path):
    """Also where an entry begins in one chunk and ends in the next."""
    env = Env()
    index = IndexFile(env, str(tmp_path / "1"), 64, 9000, create=True)
    with watched(env, "fallocate") as calls:
        for n in range(8000):
            assert index.put_hash(n, n, TIME)
            end = max(at + size for _, at, size in calls)
            assert index.used_size <= end <= index.file_size
    assert len(calls) < 5


def test_a_file_that_cannot_be_made(tmp_path):
    for name in ("open", "ftruncate", "fallocate", "mmap"):
        env = Env()
        with failing(env, name, errno.ENOSPC), pytest.raises(StoreIOError):
            IndexFile(env, str(tmp_path / "1"), 3, 20, 500, TIME, create=True)
        assert list(tmp_path.iterdir()) == [], name


def test_a_failed_force_fails_for_ever(tmp_path):
    env = Env()
    index = IndexFile(env, str(tmp_path / "1"), 3, 20, create=True)
    index.put_hash(1, 7, TIME)
    with failing(env, "msync", errno.EIO), pytest.raises(StoreIOError, match="msync"):
        index.flush()
    index.put_hash(1, 8, TIME)
    with watched(env, "msync") as calls:
        for call in (index.flush, index.shutdown):
            with pytest.raises(StoreIOError, match="msync"):
                call()
    assert calls == []


def test_flush_forces_what_is_new(tmp_path):
    env = Env()
    index = IndexFile(env, str(tmp_path / "1"), 3, 20, 5, TIME, create=True)
    sizes = []
    for put in (False, False, True, False, True):
        if put:
            index.put_hash(1, 7, TIME)
        with watched(env, "msync") as calls:
            index.flush()
        sizes += [[size for _, size in calls]]
    first = index_file_size(3, 1)
    assert sizes == [[first], [], [first + 20], [], [first + 40]]
    index.put_hash(1, 7, TIME)
    with watched(env, "msync") as calls:
        index.shutdown()
        index.shutdown()
    assert len(calls) == 1


def test_reads_that_fail(tmp_path):
    made(tmp_path / "1", 3, 20, [(1, 9, TIME), (1, 10, TIME)])
    env = Env()
    index = IndexFile(env, str(tmp_path / "1"), 3, 20, mode="read")
    calls = (
        lambda: index.select_hash(1, 9, 0, FOREVER),
        lambda: index.select_hits(1, 0, FOREVER),
        lambda: index.tail_count(10),
        lambda: IndexFile(env, str(tmp_path / "1"), 3, 20, mode="read"),
    )
    for call in calls:
        with failing(env, "pread", errno.EIO), pytest.raises(StoreIOError, match="pread"):
            call()
        index.mapped_file.close_kept()
        with watched(env, "close") as closed, failing(env, "open", errno.EMFILE):
            with pytest.raises(StoreIOError, match="open"):
                call()
            assert closed == []
        with (
            watched(env, "open") as opened,
            broken(env, "pread", lambda original, *args: 3),
            pytest.raises(StoreCorruptionError),
        ):
            call()
        index.mapped_file.close_kept()
        assert len(opened) == 1
    assert index.select_hash(1, 9, 0, FOREVER) == [10, 9]


# ---- damage ------------------------------------------------------------------------------------

LOOPS = {
    "itself": {5: 5},
    "two": {5: 4, 4: 5},
    "two below": {3: 2, 2: 3},
    "the whole chain": {1: 5},
    "up": {3: 4},
    "far up": {3: 2**31 - 1},
    "negative": {3: -7},
    "nowhere": {5: 0},
    "the end of the file": {5: 8},
    "behind the file": {5: 9},
}


@pytest.mark.bad_input
@pytest.mark.parametrize("count", [-(2**31), -1, 0, 1, 3, 6, 8, 9, 2**31 - 1])
@pytest.mark.parametrize("loop", LOOPS)
def test_chains_that_loop_end(loop, count, tmp_path):
    """One slot, five entries in one chain; their links are put wrong, and so is the count."""
    path = tmp_path / "1"
    model = made(path, 1, 9, [(7, n * 10, TIME + n * 1000) for n in range(5)])
    data = bytearray(model.data)
    for number, target in LOOPS[loop].items():
        struct.pack_into(">i", data, model.entry_at(number) + 16, target)
    struct.pack_into(">i", data, 36, count)
    path.write_bytes(data)
    model = OracleIndexFile.of_bytes(data, 1, 9)
    for index in files_like(path, 1, 9):
        assert index.index_count == min(max(count, 1), 9)
        assert index.is_write_full() == (count >= 9)
        for window in ((0, FOREVER), (TIME + 2000, FOREVER), (0, TIME + 1500)):
            found = index.select_hash(7, 64, *window)
            assert found == model.select(7, 64, *window), index.mode
            phy_offsets, _, start = index.select_hits(7, *window)
            assert set(found) <= set(phy_offsets.tolist()) and start == 0
            assert len(set(phy_offsets.tolist())) == len(phy_offsets)
        assert index.tail_count(40) <= 8
        index.shutdown()
    assert path.read_bytes() == data


@pytest.mark.bad_input
@pytest.mark.parametrize("slot", [-(2**31), -1, 0, 5, 6, 7, 8, 9, 10, 2**31 - 1])
def test_a_slot_that_names_nothing(slot, tmp_path):
    path = tmp_path / "1"
    model = made(path, 1, 9, [(7, n * 10, TIME + n * 1000) for n in range(5)])
    struct.pack_into(">i", model.data, 40, slot)
    path.write_bytes(model.data)
    expected = model.select(7, 64, 0, FOREVER)
    assert expected == ([40, 30, 20, 10, 0] if slot == 5 else [])
    for index in files_like(path, 1, 9):
        assert index.select_hash(7, 64, 0, FOREVER) == expected
    # A new entry does not link to it, as in 4.9.3.
    model = OracleIndexFile.of_bytes(path.read_bytes(), 1, 9)
    index = IndexFile(Env(), str(path), 1, 9)
    assert index.put_hash(7, 50, TIME + 9000) == model.put(7, 50, TIME + 9000) is True
    assert path.read_bytes() == model.data


@pytest.mark.bad_input
@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 46),
            st.one_of(
                st.sampled_from([0, 1, 2, -1, 2**31 - 1, -(2**31), 5, 6, 9]),
                st.integers(-(2**31), 2**31 - 1),
            ),
        ),
        max_size=6,
    ),
    WINDOWS,
)
@example([(9, 2**31 - 1), (8, 2**31 - 1)], [(1, 64, 0, 2**63 - 1)])
@example([(0, 2**31 - 1), (1, -1)], [(1, 64, 0, 2**63 - 1)])
@example([(8, 2**31 - 1)], [])
def test_damaged_words(tmp_path_factory, words, windows):
    """Any words of the file are others; puts continue as 4.9.3's would."""
    path = tmp_path_factory.mktemp("i") / "1"
    data = bytearray(made(path, 3, 9, [(n % 4, n * 10, TIME + n * 700) for n in range(6)]).data)
    for at, value in words:
        struct.pack_into(">i", data, at * 4, value)
    path.write_bytes(data)
    model = OracleIndexFile.of_bytes(data, 3, 9)
    for index in files_like(path, 3, 9):
        for hashed, max_num, begin, end in windows:
            expected = model.select(hashed, max_num, begin, end)
            assert index.select_hash(hashed, max_num, begin, end) == expected
            phy_offsets, _, _ = index.select_hits(hashed, begin, end)
            assert len(phy_offsets) <= 8
    assume(model.slot_count < 2**31 - 2)
    while model.put(1, 60, TIME + 9999):
        assert index.put_hash(1, 60, TIME + 9999)
    assert not index.put_hash(1, 60, TIME + 9999)
    assert index.mapped_file.read(0, index.file_size) == model.data
    assert path.read_bytes() == data


@pytest.mark.bad_input
def test_a_count_of_slots_wraps_around(tmp_path):
    path = tmp_path / "1"
    data = made(path, 3, 9, [(0, 0, TIME)]).data
    struct.pack_into(">i", data, 32, 2**31 - 1)
    path.write_bytes(data)
    index = IndexFile(Env(), str(path), 3, 9)
    assert index.put_hash(1, 60, TIME)
    assert index.hash_slot_count == -(2**31)


@pytest.mark.bad_input
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("missing", [1, 20, 100, 140, 188])
def test_a_short_file_is_refused(mode, missing, tmp_path):
    path = tmp_path / "1"
    data = made(path, 7, 6, [(1, 9, TIME)]).data[: 188 - missing]
    path.write_bytes(data)
    with pytest.raises(StoreCorruptionError, match=f"{188 - missing} bytes") as failure:
        IndexFile(Env(), str(path), 7, 6, mode=mode)
    assert failure.value.path == str(path)
    assert path.read_bytes() == data


@pytest.mark.bad_input
@pytest.mark.parametrize("mode", MODES)
def test_a_file_that_shrinks_while_it_is_open(mode, tmp_path):
    path = tmp_path / "1"
    data = made(path, 7, 6, [(1, 9, TIME)]).data
    index = IndexFile(Env(), str(path), 7, 6, mode=mode)
    path.write_bytes(data[:50])
    with pytest.raises(StoreCorruptionError):
        index.load()
    if mode == "read":
        path.write_bytes(data[:40])
        with pytest.raises(StoreCorruptionError, match="ends here"):
            index.select_hash(1, 9, 0, FOREVER)


@pytest.mark.parametrize("mode", MODES)
def test_a_longer_file_is_read_by_its_first_bytes(mode, tmp_path):
    """As 4.9.3 does; bytes behind it stay as they are."""
    path = tmp_path / "1"
    model = made(path, 7, 6, [(1, 9, TIME)])
    path.write_bytes(model.data + b"behind")
    index = IndexFile(Env(), str(path), 7, 6, mode=mode)
    assert index.load() == 194 and index.file_size == 188
    assert index.put_hash(1, 10, TIME) and model.put(1, 10, TIME)
    assert index.select_hash(1, 9, 0, FOREVER) == [10, 9]
    index.shutdown()
    if mode == "shared":
        assert path.read_bytes() == model.data + b"behind"


@pytest.mark.bad_input
@pytest.mark.parametrize("mode", MODES)
def test_another_geometry_is_misread_but_bounded(mode, tmp_path):
    path = tmp_path / "1"
    rows = [(n * 7, n, TIME + n) for n in range(60)]
    data = made(path, 50, 70, rows).data
    for slots in (1, 45, 55, 300):
        entries = (len(data) - INDEX_HEADER_SIZE - slots * HASH_SLOT_SIZE) // INDEX_SIZE
        index = IndexFile(Env(), str(path), slots, entries, mode=mode)
        model = OracleIndexFile.of_bytes(data, slots, entries)
        for hashed, _, _ in rows:
            expected = model.select(hashed, 64, 0, FOREVER)
            assert index.select_hash(hashed, 64, 0, FOREVER) == expected
        index.shutdown()
    assert path.read_bytes() == data
