"""Goal: after `refresh`, a read-only store answers as one that is opened then.
Method: a writer puts, rolls files, makes queues, cleans, is closed or killed and recovers; after
each step every answer of the refreshed store is compared with those of a new opening."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.errors import StoreFormatError, StoreStateError
from pyrocketstore.message_store.engine import Engine
from pyrocketstore.record.message import MessageExtBrokerInner
from pyrocketstore.results import PutMessageStatus
from support.broken_env import watched
from support.far_stores import BEGINS, begin_log_at, begin_logs_at
from support.processes import PYTHONPATH
from support.seed import SEED
from support.sizes import SIZES

KEYS = 40
#: A scan reads this many bytes of the log at a time.
WINDOW_BYTES = 524288
#: An index file holds all keys of a test, as one that a live writer has not filled.
APPENDED = {**SIZES, "max_index_num": 200_000}


def answers(store: pyrocketstore.Store) -> dict[str, Any]:
    """Everything that a reader can ask."""
    engine = store.message_store
    found: dict[str, Any] = {
        "topics": store.topics(),
        "begin": engine.get_min_phy_offset(),
        "end": engine.get_max_phy_offset(),
    }
    for topic in store.topics():
        for queue_id in store.queues(topic):
            messages = list(store.read(topic, queue_id))
            low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            found[f"{topic}/{queue_id}"] = (low, high, [(m.phy_offset, m.body) for m in messages])
            found[f"{topic}/{queue_id} 4.9.3"] = (
                engine.get_min_offset_in_queue(topic, queue_id),
                engine.get_max_offset_in_queue(topic, queue_id),
                engine.get_message("g", topic, queue_id, low, 32).message_queue_offsets,
            )
            times = sorted({m.store_timestamp for m in messages})[:: max(1, len(messages) // 5)]
            found[f"{topic}/{queue_id} times"] = [
                store.offset_at(topic, queue_id, time) for time in [0, *times, 1 << 60]
            ]
            for message in messages[:: max(1, len(messages) // 5)]:
                assert store.get(message.phy_offset) == message
        for number in range(KEYS):
            key = f"k{number}"
            found[f"{topic} {key}"] = (
                [m.phy_offset for m in store.query(topic, key, max_num=1000)],
                [m.phy_offset for m in store.query(topic, key, max_num=3)],
                engine.query_message(topic, key, 64, 0, 1 << 60).phy_offsets,
            )
    report = store.verify()
    found["verify"] = (report.ok, report.problems, report.rebuilt_units)
    return found


def fresh(root: Path, settings: dict[str, Any] = SIZES) -> dict[str, Any]:
    with pyrocketstore.open(root, read_only=True, **settings) as store:
        return answers(store)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "store"
    shutil.rmtree(tmp_path / "store", ignore_errors=True)


WRITER = """
import contextlib, random, sys, pyrocketstore
root, settings = sys.argv[1], eval(sys.argv[2])
store = pyrocketstore.open(root, **settings)
engine = store.message_store
paused = contextlib.ExitStack()

def put(seed, count, topics):
    choose = random.Random(seed)
    for _ in range(count):
        store.put(
            f"t{choose.randrange(topics)}", choose.randbytes(choose.randrange(400)),
            queue_id=choose.randrange(3), tags=choose.choice(("A", "B", None)),
            keys=f"k{choose.randrange(40)}" if choose.random() < 0.9 else None,
        )

def clean(count, with_queues):
    files = engine.commit_log.mapped_file_queue
    for file in files.mapped_files[:-1][:count]:
        files.delete_expired_file_by_time(0, clean_immediately=True, before=file.file_from_offset
                                          + file.file_size)
    if with_queues:
        clean_queues()

def clean_queues():
    lowest = engine.commit_log.get_min_offset()
    for queue in engine.consume_queues():
        queue.delete_expired_file(lowest)
    engine.index_service.delete_expired_file(lowest)

def remove(topic):
    engine.clean_unused_topic(set(store.topics()) - {topic})

def fill(topic):
    store.put_many(topic, [b"x"] * 20, keys=["k1"] * 20)

calls = {
    "put": put, "fill": fill, "wait": store.wait_dispatched, "flush": store.flush, "clean": clean,
    "clean_queues": clean_queues, "remove": remove, "close": store.close,
    "pause": lambda: paused.enter_context(engine.dispatch_paused()), "resume": paused.close,
}
print("up", flush=True)
for line in sys.stdin:
    name, *given = eval(line)
    calls[name](*given)
    print("ok", flush=True)
"""


class Writer:
    """A process that writes to a store on demand."""

    def __init__(self, root: Path, settings: dict[str, Any] = SIZES) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root), repr(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
        )
        self._answer("up")

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def _answer(self, wanted: str) -> None:
        assert self.child.stdout is not None
        assert self.child.stdout.readline().strip() == wanted

    def do(self, *call: object) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{call!r}\n")
        self.child.stdin.flush()
        self._answer("ok")

    def kill(self) -> None:
        self.child.kill()
        self.child.communicate()


def random_calls(choose: random.Random, steps: int) -> Iterator[tuple[object, ...]]:
    """A writer that mostly puts, and sometimes changes the store in another way."""
    paused = False
    made: list[str] = []
    for step in range(steps):
        name = choose.choice(
            "put put put put put pause resume flush clean clean_log clean_queues remove kill close"
            " look".split()
        )
        if paused and name not in ("put", "kill", "look"):
            paused = False
            yield ("resume",)
        if name == "put":
            count = choose.choice((1, 1, 20, 300))
            yield ("put", choose.randrange(1 << 30), count, 2 + step // 8)
        elif name == "pause" and not paused:
            yield ("wait",)
            paused = True
            yield ("pause",)
        elif name == "clean":
            yield ("wait",)
            yield ("clean", choose.randrange(1, 4), True)
        elif name == "clean_log":
            yield ("wait",)
            yield ("clean", choose.randrange(1, 4), False)
        elif name == "remove":
            if made and choose.random() < 0.5:
                yield ("wait",)
                yield ("remove", made.pop())
            else:
                made.append(choose.choice(("r", "s", f"r{step}")))
                yield ("fill", made[-1])
        elif name in ("flush", "clean_queues"):
            yield (name,)
        elif name == "kill":
            paused = False
            yield (name,)
        elif name == "close":
            yield (name,)


@pytest.mark.parametrize("begin", [0, BEGINS[1]])
def test_a_refreshed_store_answers_as_a_new_opening(root: Path, begin: int) -> None:
    choose = random.Random(SEED)
    begin_log_at(root, begin, SIZES["mapped_file_size_commit_log"])
    writer = Writer(root)
    try:
        writer.do("put", 1, 10, 2)
        writer.do("wait")
        with pyrocketstore.open(root, read_only=True, **SIZES) as reader:
            done: list[object] = []
            is_behind = False
            for call in random_calls(choose, 60):
                done.append(call)
                if call[0] == "kill":
                    writer.kill()
                else:
                    writer.do(*call)
                is_behind = call[0] in ("pause", "kill", "close") or (
                    is_behind and call[0] == "put"
                )
                if choose.random() < 0.6:
                    if not is_behind:
                        writer.do("wait")
                    reader.refresh()
                    done.append("refresh")
                    if choose.random() < 0.5:
                        assert answers(reader) == fresh(root), done
                if call[0] in ("kill", "close"):
                    writer.kill()
                    writer, is_behind = Writer(root), False
            reader.refresh()
            assert answers(reader) == fresh(root), done
    finally:
        writer.kill()


def put_some(
    store: pyrocketstore.Store,
    choose: random.Random,
    settings: dict[str, Any] = SIZES,
    topics: int = 3,
) -> None:
    for _ in range(choose.choice((1, 1, 10, 200))):
        message = MessageExtBrokerInner(
            f"t{choose.randrange(topics)}",
            choose.randbytes(choose.randrange(400)),
            queue_id=choose.randrange(3),
            properties={"TAGS": choose.choice(("A", "B"))},
        )
        if choose.random() < 0.9:
            message.properties["KEYS"] = f"k{choose.randrange(KEYS)}"
        if settings.get("enable_lmq") and choose.random() < 0.5:
            names = choose.sample(["%LMQ%a", "%LMQ%b", "u"], 2)
            message.properties["INNER_MULTI_DISPATCH"] = ",".join(names)
        result = store.message_store.put_message(message)
        assert result.status is PutMessageStatus.PUT_OK


def units_in_memory(store: pyrocketstore.Store) -> list[str]:
    """The files of queues that a read-only store has in memory."""
    return [
        file.path
        for queue in store.message_store.consume_queues()
        for file in queue.mapped_file_queue.mapped_files
        if file.mode == "memory"
    ]


LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}


def expire(writer: pyrocketstore.Store, end: int) -> None:
    """Delete the files of the log that end before a byte, as the cleaner does."""
    files = writer.message_store.commit_log.mapped_file_queue
    files.delete_expired_file_by_time(0, clean_immediately=True, before=end)


def expire_queues(writer: pyrocketstore.Store, _: int) -> None:
    engine = writer.message_store
    for queue in engine.consume_queues():
        queue.delete_expired_file(engine.get_min_phy_offset())


@pytest.mark.parametrize("begin", [0, BEGINS[1]])
def test_expired_files_are_forgotten_without_a_reload(
    root: Path, begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reload(engine: object) -> None:
        raise AssertionError("the store was loaded again")

    choose = random.Random(SEED)
    begin_logs_at(monkeypatch, begin)
    with pyrocketstore.open(root, **APPENDED) as writer:
        put_some(writer, choose, APPENDED)
        writer.wait_dispatched()
        with pyrocketstore.open(root, read_only=True, **APPENDED) as reader:
            monkeypatch.setattr(Engine, "_reload", reload)
            for _ in range(12):
                for _ in range(3):
                    put_some(writer, choose, APPENDED)
                writer.wait_dispatched()
                reader.refresh()
                engine = writer.message_store
                low, end = engine.get_min_phy_offset(), engine.get_max_phy_offset()
                for clean in (expire, expire_queues):
                    clean(writer, choose.randrange(low, end))
                    if choose.random() < 0.7:
                        reader.refresh()
                        assert answers(reader) == fresh(root, APPENDED)
            assert writer.message_store.get_min_phy_offset() > begin


@pytest.mark.parametrize("begin", [0, BEGINS[0]])
@pytest.mark.parametrize("settings", [APPENDED, {**APPENDED, **LIGHT}], ids=["plain", "light"])
def test_what_a_writer_appends_is_found_without_a_reload(
    root: Path, settings: dict[str, Any], begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reload(engine: object) -> None:
        raise AssertionError("the store was loaded again")

    monkeypatch.setattr(Engine, "_reload", reload)
    choose = random.Random(SEED)
    begin_logs_at(monkeypatch, begin)
    with pyrocketstore.open(root, **settings) as writer:
        put_some(writer, choose, settings)
        writer.wait_dispatched()
        with pyrocketstore.open(root, read_only=True, **settings) as reader:
            assert answers(reader) == fresh(root, settings)
            for step in range(25):
                paused, is_behind = contextlib.ExitStack(), False
                if choose.random() < 0.5:  # the writer's dispatcher is behind
                    put_some(writer, choose, settings, topics=3 + step // 4)
                    writer.wait_dispatched()
                    paused.enter_context(writer.message_store.dispatch_paused())
                    is_behind = True
                with paused:
                    put_some(writer, choose, settings, topics=3 + step // 4)
                    end = writer.message_store.get_max_phy_offset()
                    before = reader.message_store.get_max_phy_offset()
                    assert reader.refresh() == end - before
                    assert reader.refresh() == 0
                    if is_behind and choose.random() < 0.5:
                        assert answers(reader) == fresh(root, settings)
                if choose.random() < 0.5:
                    writer.wait_dispatched()
                    reader.refresh()
                    assert answers(reader) == fresh(root, settings)
            writer.wait_dispatched()
            reader.refresh()
            assert not units_in_memory(reader)


def test_a_store_that_is_not_read_only_refuses(root: Path) -> None:
    with pyrocketstore.open(root, **SIZES) as store:
        with pytest.raises(StoreStateError, match="open for writing"):
            store.refresh()
        with pytest.raises(StoreStateError, match="open for writing"):
            store.message_store.refresh()
    reader = pyrocketstore.open(root, read_only=True, **SIZES)
    engine = reader.message_store
    reader.close()
    for call in (reader.refresh, engine.refresh):
        with pytest.raises(StoreStateError, match="closed"):
            call()


def test_a_topic_that_was_removed_and_made_again(root: Path) -> None:
    """Its new messages have the queue offsets of the old ones, which recovery finds in the log."""
    with pyrocketstore.open(root, **SIZES) as writer:
        writer.put_many("t", [b"old"] * 3)
        writer.wait_dispatched()
        with pyrocketstore.open(root, read_only=True, **SIZES) as reader:
            reader.refresh()
            writer.message_store.clean_unused_topic([])
            reader.refresh()
            assert answers(reader) == fresh(root)
            with writer.message_store.dispatch_paused():
                writer.put_many("t", [b"new"] * 5)
                reader.refresh()
                assert answers(reader) == fresh(root)
            writer.wait_dispatched()
            reader.refresh()
            assert answers(reader) == fresh(root)
            assert [m.body for m in reader.read("t")] == [b"new"] * 5


def test_a_log_that_was_cut_and_written_again(root: Path) -> None:
    """As after a power cut that the reader's machine has survived."""
    with pyrocketstore.open(root, **SIZES) as writer:
        writer.put_many("t", [b"kept"] * 5, keys=["k"] * 5)
        writer.wait_dispatched()
        kept = root.parent / "kept"
        shutil.copytree(root, kept)
        writer.put_many("t", [b"lost"] * 5, keys=["k"] * 5)
    reader = pyrocketstore.open(root, read_only=True, **SIZES)
    for path in kept.rglob("*"):
        if path.is_file():
            (root / path.relative_to(kept)).write_bytes(path.read_bytes())
    (root / "sync_point").unlink()  # the copy is from before the first flush
    assert reader.refresh() < 0
    assert answers(reader) == fresh(root)
    with pyrocketstore.open(root, **SIZES) as writer:
        writer.put_many("t", [b"new!"] * 5, keys=["k"] * 5)
    assert reader.refresh() > 0
    assert answers(reader) == fresh(root)
    assert [m.body for m in reader.read("t")] == [b"kept"] * 5 + [b"new!"] * 5
    reader.close()
    shutil.rmtree(kept)


def test_a_log_of_the_same_length_with_another_end(root: Path) -> None:
    """The bytes of the last known record decide, whatever traces the owner has left."""
    with pyrocketstore.open(root, **SIZES) as writer:
        writer.put_many("t", [b"old"] * 5)
        writer.wait_dispatched()
        reader = pyrocketstore.open(root, read_only=True, **SIZES)
        reader.refresh()
        log = root / "commitlog" / f"{0:020d}"
        data = bytearray(log.read_bytes())
        end = reader.message_store.get_max_phy_offset()
        at = data.rindex(b"old", 0, end)
        data[at : at + 3] = b"new"
        crc = zlib.crc32(b"new") & 0x7FFFFFFF
        first = [m.phy_offset for m in reader.read("t")][-1]
        data[first + 8 : first + 12] = crc.to_bytes(4, "big")
        with log.open("r+b") as file:
            file.write(data)
        assert reader.refresh() == 0
        assert [m.body for m in reader.read("t", check_crc=True)] == [b"old"] * 4 + [b"new"]
        reader.close()


def test_a_new_opening_finds_the_sizes_of_an_empty_store(root: Path) -> None:
    root.mkdir()
    with pyrocketstore.open(root, read_only=True) as reader:
        assert reader.refresh() == 0 and reader.topics() == []
        with pyrocketstore.open(root, **SIZES) as writer:
            writer.put_many("t", [b"x" * 500] * 500)
            writer.wait_dispatched()
            assert reader.refresh() > 0
            assert len(list(reader.read("t"))) == 500
            writer.put("u", b"y")
            writer.wait_dispatched()
            assert reader.refresh() > 0
            assert reader.topics() == ["t", "u"]


def test_an_index_without_keys_whose_sizes_nothing_shows(root: Path) -> None:
    """Its sizes must be passed to `open`: `sync_point`, which has them, is lost."""
    sizes = {"max_hash_slot_num": 20, "max_index_num": 40}
    with pyrocketstore.open(root, **{**SIZES, **sizes}) as writer:
        (root / "sync_point").unlink()
        writer.put("t", b"no key")
        writer.wait_dispatched()
        with (
            pyrocketstore.open(root, read_only=True) as unaware,
            pyrocketstore.open(root, read_only=True, **sizes) as reader,
        ):
            writer.put("t", b"x", keys="k1")
            writer.wait_dispatched()
            assert unaware.refresh() == reader.refresh() > 0
            assert [message.body for message in reader.query("t", "k1")] == [b"x"]
            with pytest.raises(StoreFormatError, match="maxHashSlotNum"):
                unaware.query("t", "k1")


def cost_of(reader: pyrocketstore.Store) -> tuple[int, int, int]:
    """Refresh; return the bytes that the end moved by, and that were read, and the opened files."""
    env = reader.message_store.env
    with watched(env, "pread") as reads, watched(env, "open") as opened:
        moved = reader.refresh()
    return moved, sum(size for _, _, size, _ in reads), len(opened)


def test_the_cost_depends_on_what_is_new(root: Path) -> None:
    """In a store of twenty times the size, as many bytes are read and files are opened."""
    costs = []
    settings = {"max_hash_slot_num": 1000, "max_index_num": 200_000}
    with pyrocketstore.open(root, **settings) as writer:
        for count in (500, 10_000):
            writer.put_many("t", [bytes(200)] * count, keys=["k"] * count)
            writer.wait_dispatched()
            with pyrocketstore.open(root, read_only=True, **settings) as reader:
                reader.refresh()  # the first one lists the directories of the queues
                writer.put_many("t", [bytes(200)] * 100, keys=["k"] * 100)
                writer.wait_dispatched()
                costs += [cost_of(reader), cost_of(reader)]
                assert reader.max_offset("t") == writer.max_offset("t")
    assert costs[0][1:] == costs[2][1:]
    assert costs[0][1] < costs[0][0] + 3 * WINDOW_BYTES
    assert costs[1] == costs[3]
    assert costs[1][0] == 0 and costs[1][1] < 8192


def test_iterators_continue_to_their_own_end(root: Path) -> None:
    """Over refreshes that append, and over one that loads the store again."""
    with pyrocketstore.open(root, **SIZES) as writer:
        writer.put_many("t", [b"%d" % i for i in range(1000)])
        writer.wait_dispatched()
        reader = pyrocketstore.open(root, read_only=True, **SIZES)
        iterators = [reader.read("t")]
        for start in (1000, 2000):
            next(iterators[-1])
            writer.put_many("t", [b"%d" % i for i in range(start, start + 1000)])
            writer.wait_dispatched()
            assert reader.refresh() > 0
            iterators.append(reader.read("t"))
    for iterator in iterators:
        next(iterator)
    assert reader.refresh() == 0  # the owner has closed the store
    first = [next(iterator).body for iterator in iterators]
    assert first == [b"2", b"2", b"1"]
    left = [len(list(iterator)) for iterator in iterators]
    assert left == [997, 1997, 2998]
    reader.close()


@pytest.mark.parametrize("reloads", [False, True], ids=["appended", "loaded again"])
def test_readers_in_other_threads(root: Path, reloads: bool) -> None:
    """A message that a reader has found stays; the end never moves back; nothing is damaged."""
    settings = APPENDED
    ended = threading.Event()
    with pyrocketstore.open(root, **settings) as writer:
        writer.put_many("t", [b"x"] * 10, keys=["k"] * 10)
        writer.wait_dispatched()
        reader = pyrocketstore.open(root, read_only=True, **settings)

        def read() -> int:
            end = hits = 0
            while not ended.is_set():
                before, end = end, reader.max_offset("t")
                assert before <= end
                bodies = [m.body for m in reader.read("t", start=max(0, end - 50))]
                assert len(bodies) >= min(end, 50)
                before, hits = hits, len(reader.query("t", "k", max_num=10_000))
                assert before <= hits
            return end

        def refresh() -> None:
            while not ended.is_set():
                reader.refresh()

        with ThreadPoolExecutor(4) as pool:
            reading = [pool.submit(read) for _ in range(2)]
            refreshing = [pool.submit(refresh) for _ in range(2)]
            try:
                for _ in range(60):
                    writer.put_many("t", [b"x"] * 20, keys=["k"] * 20)
                    if reloads:
                        os.utime(root / "lock")
                    time.sleep(0.005)
                    if any(future.done() for future in (*reading, *refreshing)):
                        break
            finally:
                ended.set()
            for future in (*reading, *refreshing):
                future.result()
        writer.wait_dispatched()
        reader.refresh()
        assert reader.max_offset("t") == writer.max_offset("t") == 1210
        assert reader.verify().ok
        reader.close()


def test_a_log_whose_last_file_has_no_record(tmp_path: Path) -> None:
    """The last known record ends near the end of a file, and the log ends in a later one."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        while store.message_store.get_max_phy_offset() < 3 * SIZES["mapped_file_size_commit_log"]:
            store.put("t", b"x" * 100)
        store.put("t", b"x" * 100)
    files = sorted((tmp_path / "commitlog").iterdir())
    files[-2].unlink()
    files[-1].write_bytes(bytes(files[-1].stat().st_size))
    for name in ("abort", "checkpoint"):
        (tmp_path / name).write_bytes(b"")
    with pyrocketstore.open(tmp_path, read_only=True, **SIZES) as reader:
        count = len(list(reader.read("t", on_corrupt="skip")))
        assert reader.refresh() == 0
        assert len(list(reader.read("t", on_corrupt="skip"))) == count > 0


def test_index_files_that_the_owner_has_deleted_have_expired(root: Path) -> None:
    """A reader that has not opened them yet answers from the others."""
    settings = {**SIZES, "max_hash_slot_num": 50, "max_index_num": 100}
    with Writer(root, settings) as writer:
        for seed in range(4):
            writer.do("put", seed, 300, 1)
        writer.do("wait")
        with pyrocketstore.open(root, read_only=True, **settings) as reader:
            engine = reader.message_store
            count = len(engine.index_service.files)
            writer.do("clean", 3, True)
            assert len(os.listdir(root / "index")) < count
            for number in range(KEYS):
                found = engine.query_message("t0", f"k{number}", 64, 0, 1 << 60)
                with pyrocketstore.open(root, read_only=True, **settings) as other:
                    again = other.message_store.query_message("t0", f"k{number}", 64, 0, 1 << 60)
                assert found.phy_offsets == again.phy_offsets


def test_a_topic_that_is_removed_shortly_after_it_was_made(tmp_path: Path) -> None:
    """The times and inodes of files and directories may be those of the last look then."""
    with pyrocketstore.open(tmp_path, **SIZES) as owner:
        owner.put("other", b"x")
        with pyrocketstore.open(tmp_path, read_only=True) as reader:
            for number in range(20):
                owner.put("t", b"%d" % number, keys="k")
                reader.refresh()
                assert [message.body for message in reader.read("t")] == [b"%d" % number]
                owner.drop_topic("t")
                reader.refresh()
                assert reader.topics() == ["other"]
                assert reader.query("t", "k") == []
