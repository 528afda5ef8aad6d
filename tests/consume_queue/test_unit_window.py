"""Goal: small reads find the same units in a mapping, in blocks, and over the borders of files.
Method: one queue of several files, open for writing with its files mapped or not, and read-only;
searches by time and pulls are compared with the list of its units, also with a file deleted and
with records that cannot be read; the reads of each are counted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore.errors import StoreIOError
from pyrocketstore.results import GetMessageStatus
from pyrocketstore.system.env import Env
from support.broken_env import failing, watched
from support.queues import SIZE, fill, open_queue

COUNT = 2000
FILE_UNITS = 500
STORE = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20 * FILE_UNITS,
}


@contextlib.contextmanager
def queues(path: Path) -> Iterator[dict[str, object]]:
    """The same queue in each state, by name."""
    writer = open_queue(path, file_size=20 * FILE_UNITS, min_phy_offset=lambda: 0)
    fill(writer, COUNT)
    writer.flush(0)
    held = writer.mapped_file_queue.mapped_files
    for file in held:
        assert file.hold()
    unmapped = open_queue(path, file_size=20 * FILE_UNITS, min_phy_offset=lambda: 0)
    reader = open_queue(path, file_size=20 * FILE_UNITS, read_only=True, min_phy_offset=lambda: 0)
    assert not any(f.is_mapped for f in reader.mapped_file_queue.mapped_files)
    try:
        yield {"mapped": writer, "unmapped": unmapped, "read-only": reader}
    finally:
        for file in held:
            file.release()


def test_searches_by_time_agree(tmp_path: Path) -> None:
    unreadable = {n * SIZE for n in (0, 7, *range(490, 520), *range(1400, 1999))}

    def pickup(phy_offset: int, size: int) -> int:
        return -1 if phy_offset in unreadable else phy_offset // SIZE * 10

    readable = [n for n in range(COUNT) if n * SIZE not in unreadable]
    with queues(tmp_path) as found:
        for name, queue in found.items():
            for number in (-1, 0, 1, 7, 8, 488, 489, 490, 505, 520, 999, 1399, 1400, 1999, 2000):
                wanted = next((n for n in readable if n >= number), COUNT)
                assert queue.lower_bound_by_time(number * 10, pickup) == wanted, name


def test_a_search_reads_blocks(tmp_path: Path) -> None:
    env = Env()
    fill(open_queue(tmp_path, file_size=20 * COUNT), COUNT)
    queue = open_queue(
        tmp_path, file_size=20 * COUNT, read_only=True, env=env, min_phy_offset=lambda: 0
    )
    queue.first_readable_offset()
    with watched(env, "pread") as reads:
        assert queue.lower_bound_by_time(777, lambda phy_offset, size: phy_offset // SIZE) == 777
    assert len(reads) <= 8


def test_a_search_passes_over_a_deleted_file(tmp_path: Path) -> None:
    with queues(tmp_path) as found:
        queue = found["read-only"]
        (tmp_path / f"consumequeue/T/0/{20 * FILE_UNITS:020d}").unlink()
        for number in (0, 499, 500, 700, 1000, 1234):
            wanted = number if not 500 <= number < 1000 else 1000
            assert queue.lower_bound_by_time(number, lambda at, size: at // SIZE) == wanted


def test_a_search_raises_the_error_of_a_read(tmp_path: Path) -> None:
    env = Env()
    fill(open_queue(tmp_path), 100)
    queue = open_queue(tmp_path, read_only=True, env=env, min_phy_offset=lambda: 0)
    queue.first_readable_offset()
    with failing(env, "pread", 5), pytest.raises(StoreIOError) as caught:
        queue.lower_bound_by_time(3, lambda phy_offset, size: phy_offset)
    assert caught.value.errno == 5


@pytest.mark.parametrize("read_only", [False, True])
def test_pulls_of_any_count(tmp_path: Path, read_only: bool) -> None:
    """Blocks of units and files of the queue end in the middle of a pull."""
    with pyrocketstore.open(tmp_path / "s", **STORE) as store:
        store.put_many("T", [b"%d" % n for n in range(COUNT)])
    env = Env()
    with pyrocketstore.open(tmp_path / "s", read_only=read_only, env=env, **STORE) as store:
        engine = store.message_store
        for start in (0, 1, 31, 490, 499, 500, 1700, COUNT - 1):
            for count in (1, 2, 31, 32, 33, 100):
                result = engine.get_message("g", "T", 0, start, count)
                stop = min(start + min(count, 32), start - start % FILE_UNITS + FILE_UNITS, COUNT)
                assert result.status is GetMessageStatus.FOUND
                assert result.message_queue_offsets == list(range(start, stop))
                assert result.next_begin_offset == stop
                assert [int(m.body) for m in result.messages()] == list(range(start, stop))
                result.release()
        found = engine.get_message("g", "T", 0, 5, 1)
        found.release()
        with watched(env, "pread") as reads:
            engine.get_message("g", "T", 0, 6, 1).release()
        assert len(reads) <= 2
        assert all(size <= 20 * 32 for _, _, size, _ in reads)


def test_a_read_of_one_message_reads_few_units(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path / "s", **STORE) as store:
        store.put_many("T", [b"%d" % n for n in range(COUNT)])
    env = Env()
    with pyrocketstore.open(tmp_path / "s", read_only=True, env=env, **STORE) as store:
        next(store.read("T"))  # finds the first message that the log still has
        for start, stop in ((0, 1), (498, 502), (1999, 2000)):
            with watched(env, "pread") as reads:
                found = [int(m.body) for m in store.read("T", start=start, stop=stop)]
            assert found == list(range(start, stop))
            assert sum(size for _, _, size, _ in reads) < 20 * 100
        assert list(store.read("T", start=5, stop=-(10**30))) == []
        assert len(list(store.read("T", start=1990, stop=10**30))) == 10


def test_a_known_minimum_asks_only_whether_its_file_has_a_name(tmp_path: Path) -> None:
    """The first call reads; then the owner deletes the file, or puts another one in its place."""
    env = Env()
    with queues(tmp_path):
        reader = open_queue(
            tmp_path, file_size=20 * FILE_UNITS, read_only=True, env=env, min_phy_offset=lambda: 0
        )
        first = tmp_path / f"consumequeue/T/0/{0:020d}"
        content = first.read_bytes()
        assert reader.first_readable_offset() == 0
        with watched(env, "pread") as reads, watched(env, "link_count") as asked:
            assert [reader.first_readable_offset() for _ in range(3)] == [0, 0, 0]
        assert (len(reads), len(asked)) == (0, 3)
        first.unlink()
        first.write_bytes(content)
        with watched(env, "pread") as reads:
            assert reader.first_readable_offset() == 0
        assert reads, "the new file is read"
        first.unlink()
        assert reader.first_readable_offset() == FILE_UNITS
