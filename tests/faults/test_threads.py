"""Goal: threads that put, read, query, delete and close the same store never crash or hang it,
never see a torn record, and leave no descriptor and no mapping behind.
Method: concurrent loops, and the process's tables of descriptors and mappings.

ROCKETSTORE_SOAK_LOOPS=N makes N turns of each loop, and destroys as often; `make test-tsan` runs
these tests under ThreadSanitizer.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pyrocketstore
from journal import SETTINGS
from places import directory
from pyrocketstore.message_store.default_message_store import DefaultMessageStore

SOAK = int(os.environ.get("ROCKETSTORE_SOAK_LOOPS", "0"))
LOOPS = SOAK or 10_000
JOIN_S = 120 + LOOPS // 50
#: Switch interval of the threads: fifty times shorter than the default (s).
SWITCH_S = 0.0001
#: Largest number of log files.
FILES_MAX = 40
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a directory in memory: a disk would limit the speed."""
    path = directory()
    yield path
    shutil.rmtree(path)


def open_store(path: Path, **settings: object) -> pyrocketstore.Store:
    return pyrocketstore.open(path, **{**SETTINGS, **settings})


def held(path: Path) -> list[str]:
    """Return the paths below a directory that this process has open or mapped."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found += [line.split(maxsplit=5)[-1].strip() for line in maps]
    return [name for name in found if name.startswith(str(path))]


def together(*works: Callable[[], None]) -> None:
    """Run each call in a thread; raise the first exception, also if one hangs."""
    failed: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  raised by the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(JOIN_S)
            assert not thread.is_alive(), "a thread hangs"
    finally:
        sys.setswitchinterval(before)
    if failed:
        raise failed[0]


def until(done: threading.Event, work: Callable[[], object]) -> Callable[[], None]:
    def loop() -> None:
        while not done.is_set():
            work()

    return loop


def delete_old(store: DefaultMessageStore) -> None:
    """Keep only the newest files of log and index: each of these small files is a mapping."""
    files = store.commit_log.mapped_file_queue
    if len(files.mapped_files) > FILES_MAX:
        dispatched = store.get_max_phy_offset() - store.dispatch_behind_bytes()
        files.delete_expired_file_by_time(0, clean_immediately=True, before=dispatched)
        store.index_service.delete_expired_file(store.get_min_phy_offset())


@pytest.mark.timeout(300 + LOOPS // 50)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_queues_are_taken_away_under_puts_and_reads(folder: Path, flush: str) -> None:
    done = threading.Event()
    numbers = itertools.count()
    turns = 0
    with open_store(folder, flush_disk_type=flush, topics_json=False) as store:
        below = store.message_store

        def put() -> None:
            i = next(numbers)
            topic = ("kept", "gone")[i % 2]
            if i % 7 == 0:
                bodies = [b"%d" % i] * 5
                store.put_many(topic, bodies, queue_ids=i % 3, keys=[f"k{i}"] * 5)
            else:
                store.put(topic, b"%d" % i, queue_id=i % 3, keys=f"k{i}")

        def put_all() -> None:
            try:
                for i in itertools.count():
                    if i >= LOOPS and turns >= SOAK:
                        break
                    put()
                    if SOAK and i % 100 == 0:  # otherwise destruction never catches up
                        store.wait_dispatched()
            finally:
                done.set()

        def take_away() -> None:
            nonlocal turns
            turns += 1
            delete_old(below)
            below.clean_unused_topic(["kept"])
            below.clean_expired_consumer_queue()

        def read() -> None:
            for topic, queue_id in itertools.product(("kept", "gone"), range(3)):
                unknown = pyrocketstore.UnknownTopicError  # none was put yet, or all were deleted
                with contextlib.suppress(pyrocketstore.OffsetOutOfRange, unknown):
                    last = -1
                    start = max(0, store.max_offset(topic, queue_id) - 20)
                    for message in store.read(topic, queue_id, start=start):
                        assert message.topic == topic
                        assert int(message.body) >= 0
                        assert message.queue_offset > last
                        last = message.queue_offset

        def query() -> None:
            for topic in ("kept", "gone"):
                for message in store.query(topic, f"k{max(0, LOOPS // 2)}"):
                    assert message.topic == topic
                result = below.get_message("g", topic, 0, 0, 32)
                if result is not None:
                    result.release()

        together(put_all, until(done, take_away), until(done, read), until(done, query))
        print(f"{flush}: destroyed {turns} times")
        take_away()
        assert store.topics() == ["kept"]
        assert store.put("gone", b"0", keys="new").queue_offset == 0
        assert [m.body for m in store.read("gone")] == [b"0"]
        kept = sum(store.max_offset("kept", queue_id) for queue_id in range(3))
        puts = next(numbers)
        assert kept == sum(5 if i % 7 == 0 else 1 for i in range(0, puts, 2))
    assert held(folder) == []


def test_files_go_under_readers(folder: Path) -> None:
    """Readers of a deleted file continue or get an error; the last one frees the mapping."""
    done = threading.Event()
    turns = last = 0
    with open_store(folder, topics_json=False) as store:
        below = store.message_store
        files = below.commit_log.mapped_file_queue

        def put_all() -> None:
            nonlocal last
            try:
                for i in itertools.count():
                    if i >= LOOPS and turns >= SOAK:
                        break
                    store.put("t", b"%d " % i * 100, keys=f"k{i}")
                    last = i
            finally:
                done.set()

        def delete() -> None:
            nonlocal turns
            turns += 1
            files.delete_expired_file_by_time(0, clean_immediately=True)
            below.clean_expired_consumer_queue()
            for queue in below.consume_queues():
                queue.delete_expired_file(below.get_min_phy_offset())
            below.index_service.delete_expired_file(below.get_min_phy_offset())

        def read() -> None:
            with contextlib.suppress(pyrocketstore.OffsetOutOfRange, pyrocketstore.StoreError):
                for message in store.read("t"):
                    number = int(message.body.split()[0])
                    assert message.body == b"%d " % number * 100

        def view() -> None:
            offset = below.get_min_phy_offset()
            with contextlib.suppress(pyrocketstore.StoreError):
                result = below.select_one_message_by_offset(max(0, offset))
                if result is not None:
                    with result:
                        assert bytes(result.byte_buffer[4:8]) == bytes.fromhex("DAA320A7")
                store.query("t", "k7")
                store.get(max(0, offset))

        together(put_all, until(done, delete), until(done, read), until(done, view))
        print(f"{last + 1} puts, deleted {turns} times")
        assert [m.body.split()[0] for m in store.query("t", f"k{last}")] == [b"%d" % last]
        while len(files.mapped_files) > 1:  # several messages in one call
            delete()
        deleted = [name for name in held(folder) if "(deleted)" in name]
        assert deleted == []
    assert held(folder) == []


def test_close_under_readers(folder: Path) -> None:
    """Readers of a store that is closed get an error, and no mapping is left."""
    for turn in range(max(5, LOOPS // 300)):
        path = folder / str(turn)
        store = open_store(path, topics_json=False)
        store.put_many("t", [b"%d" % i for i in range(500)], keys=[f"k{i}" for i in range(500)])
        store.wait_dispatched()
        begun = threading.Barrier(4)

        def until_refused(work: Callable[[], object], begun: threading.Barrier = begun) -> None:
            begun.wait(60)
            while True:
                try:
                    work()
                except pyrocketstore.StoreStateError:
                    return

        def close(
            store: pyrocketstore.Store = store, begun: threading.Barrier = begun, turn: int = turn
        ) -> None:
            begun.wait(60)
            if turn % 3:
                time.sleep(0.004 * (turn % 3))
            store.close()

        iterator = store.read("t")
        next(iterator)
        view = store.message_store.select_one_message_by_offset(0)
        assert view is not None
        together(
            lambda s=store: until_refused(lambda: len(list(s.read("t"))) == 500 or wrong()),
            lambda s=store: until_refused(lambda: len(s.query("t", "k7")) == 1 or wrong()),
            lambda s=store: until_refused(lambda: whole(s)),
            close,
        )
        with pytest.raises(pyrocketstore.StoreStateError):
            list(iterator)
        assert bytes(view.byte_buffer[4:8]) == bytes.fromhex("DAA320A7")  # still held
        assert len(held(folder)) == 1
        view.release()
        assert held(folder) == []
        assert not (path / "abort").exists()


def wrong() -> None:
    raise AssertionError("something is missing that the store has")


def whole(store: pyrocketstore.Store) -> None:
    """Read by the other methods; no result is incomplete."""
    assert store.get(0) is not None
    assert len(store.query_many("t", ["k1", "k2"]).phy_offset) == 2
    assert store.read_batch("t", 0, start=0).num_rows == 500
    assert store.verify().ok


def works(path: Path) -> Iterator[Callable[[], object]]:
    """Make calls that could leave descriptors or mappings."""

    def fill() -> None:
        with open_store(path) as store:
            for i in range(150):
                store.put("t", bytes(500), queue_id=i % 4, keys=f"k{i}")
            store.flush()
            list(store.read("t"))
            store.query("t", "k3")
            store.verify()

    def look() -> None:
        with open_store(path, read_only=True) as store:
            list(store.read("t"))
            store.query("t", "k3")
            store.verify()

    def forget() -> None:
        store = open_store(path)
        store.read("t")
        store.close()
        del store
        gc.collect()

    def refuse() -> None:
        with open_store(path), pytest.raises(pyrocketstore.StoreStateError):
            open_store(path)

    def load() -> None:
        store = DefaultMessageStore(pyrocketstore.MessageStoreConfig(**SETTINGS).at_root(str(path)))
        store.load()
        store.shutdown()

    yield from (fill, look, forget, refuse, load)


def test_nothing_stays_open_or_mapped(folder: Path) -> None:
    """Many opens and closes leave the tables of the process unchanged."""

    def counts() -> tuple[int, int, int]:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            files = sum("/" in line for line in maps)
        return len(os.listdir("/proc/self/fd")), files, threading.active_count()

    for work in works(folder):
        work()
    before = counts()
    for _ in range(max(8, LOOPS // 2500)):
        for work in works(folder):
            work()
            assert held(folder) == [], work
    assert counts() == before


def test_no_module_says_that_it_needs_no_gil() -> None:
    """The GIL protects positions of files: a free-threaded interpreter must enable it."""
    found = (ROOT / "pyrocketstore").rglob("*.p[xy]*")
    sources = [ROOT / "setup.py", *(path for path in found if path.suffix != ".pyc")]
    pattern = re.compile(r"freethreading_compatible\W*(=|:)\s*True")
    assert [p.name for p in sources if pattern.search(p.read_text(encoding="utf-8"))] == []
