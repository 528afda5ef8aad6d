"""Goal: a log that several threads scan in chunks, and that is dispatched from what the scan kept,
gives what one thread gives that reads every record twice. Method: logs of every kind of message,
whole and damaged, by chunks of many sizes; files of queues and index compared byte by byte."""

from __future__ import annotations

import errno
import itertools
import random
import shutil
import struct
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import StoreIOError, StoreWarning
from pyrocketstore.commit_log import log_end
from pyrocketstore.commit_log import parallel_scan as log_scan
from pyrocketstore.commit_log._chunk_scan import LogChunk, LogScanner
from pyrocketstore.commit_log._scan import TopicQueueMap, scan_file
from pyrocketstore.commit_log.parallel_scan import LogScan
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.dispatch import replay
from pyrocketstore.files.mapped_file_queue import MappedFileQueue
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.system import threads
from pyrocketstore.system.env import Env
from pyrocketstore.system.thread_pool import ThreadPool
from pyrocketstore.system.threads import JoinableThread
from support import oracle
from support.broken_env import broken, failing
from support.random_messages import KINDS, random_messages, to_batch, to_inner

SEED = 20240719
FILE_SIZE = 1 << 16
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "enable_lmq": True,
    "enable_multi_dispatch": True,
}
RS_OK, RS_BLANK, RS_END = 0, 1, 2
PREPARED = 4  # in no queue, and indexed
#: Also of less than a record, and of more than a file.
CHUNK_SIZES = [300, 4096, 20_000, 1 << 20]


def config(path: Path, **settings: Any) -> MessageStoreConfig:
    return MessageStoreConfig(**{**SETTINGS, **settings}).at_root(path)


def fill(path: Path, kinds: tuple[str, ...], count: int = 400, **settings: Any) -> None:
    store = DefaultMessageStore(config(path, **settings))
    store.load()
    store.start()
    try:
        for spec in random_messages(SEED, count, kinds, max_body=1500):
            put = store.put_messages(to_batch(spec)) if "batch" in spec else None
            result = store.put_message(to_inner(spec)) if put is None else put
            assert result.put_message_status.name == "PUT_OK"
    finally:
        store.shutdown()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scanned") / "store"
    fill(path, KINDS)
    assert len(list((path / "commitlog").iterdir())) > 3
    return path


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets chunks of that many bytes be scanned by three threads."""

    def of_size(size: int) -> None:
        monkeypatch.setattr(log_scan, "CHUNK_SIZE", size)
        monkeypatch.setattr(Env, "processor_count", lambda self: 3)

    return of_size


def chunks_of(path: Path, env: Env, start: int = 0, stop: int = 1 << 40) -> list[LogChunk]:
    log = MappedFileQueue(env, str(path / "commitlog"), FILE_SIZE, read_only=True)
    log.load()
    scan = LogScan(
        env, log.mapped_files, start, stop, delay_levels={}, check_crc=True, records_max=None
    )
    return list(scan.chunks())


def one_by_one(path: Path, env: Env) -> tuple[int, int, int]:
    """(verdict, physical offset, records) of a scan file by file, as 4.9.3 goes."""
    total = 0
    files = sorted((path / "commitlog").iterdir())
    for file in files:
        status, position, count, _ = scan_file(env, str(file), int(file.name), 0, FILE_SIZE, True)
        total += count
        if status != RS_BLANK:
            break
    return status, int(file.name) + position, total


def agree(path: Path, chunks: list[LogChunk], env: Env) -> None:
    """The chunks follow each other, and end where the whole ends."""
    last = chunks[-1]
    found = last.status, last.file_from_offset + last.end, sum(chunk.count for chunk in chunks)
    assert found == one_by_one(path, env)
    for before, after in itertools.pairwise(chunks):
        if before.status == RS_BLANK:
            assert after.begin == 0
            assert after.file_from_offset == before.file_from_offset + FILE_SIZE
        else:
            assert before.status == RS_OK
            assert (before.path, before.end) == (after.path, after.begin)
    for chunk in chunks:
        places = [chunk.position(i) for i in range(chunk.count + 1)] if chunk.count else []
        assert places == sorted(set(places))
        assert not places or (places[0], places[-1]) == (chunk.begin, chunk.end)


def test_bytes_behind_a_blank_is_not_scanned(
    tmp_path: Path, three_threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that end early: but for what threads had begun, only their beginning is looked at."""
    three_threads(1024)
    log = tmp_path / "commitlog"
    log.mkdir()
    for number in range(4):
        base = number * FILE_SIZE
        data = oracle.encode_record(oracle.Record(topic=b"t", body=b"b", phy_offset=base))
        blank = struct.pack(">ii", FILE_SIZE - len(data), oracle.BLANK_MAGIC)
        (log / f"{base:020d}").write_bytes((data + blank).ljust(FILE_SIZE, b"\0"))
    scans: list[int] = []

    def scan(self: LogScan, part: Any, position: int, *, search: bool) -> LogChunk:
        scans.append(part.file.file_from_offset)
        return whole(self, part, position, search=search)

    whole = LogScan._scan
    monkeypatch.setattr(LogScan, "_scan", scan)
    chunks = chunks_of(tmp_path, Env())
    assert [(chunk.count, chunk.status) for chunk in chunks] == [(1, RS_BLANK)] * 4
    assert len(scans) < 4 * 10 < 4 * FILE_SIZE // 1024


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
@pytest.mark.parametrize("name", ["LogScan", "ReplayIndex"])
def test_threads_of_a_recovery_that_cannot_be_started(
    filled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    three_threads: Callable[[int], None],
    name: str,
    error: type[Exception],
) -> None:
    """Also threads that have no memory for their first step."""
    path = shutil.copytree(filled, tmp_path / "store")
    for folder in ("consumequeue", "index"):
        shutil.rmtree(path / folder)
    (path / "abort").touch()
    three_threads(4096)
    start, begin = JoinableThread.start, threads.begin_thread

    def refuse(thread: JoinableThread) -> None:
        if thread.name.startswith(name) and error is RuntimeError:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    def lack_memory(at_end: Any, run: Any, its_name: str) -> None:
        if its_name.startswith(name) and error is MemoryError:
            refused.append(its_name)
            raise MemoryError
        begin(at_end, run, its_name)

    refused: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda _: None)
        patch.setattr(JoinableThread, "start", refuse)
        patch.setattr(threads, "begin_thread", lack_memory)
        with pyrocketstore.open(path, **SETTINGS) as store:
            assert refused
            assert store.verify().ok
            held = {topic: len(list(store.read(topic))) for topic in store.topics()}
    with pyrocketstore.open(filled, read_only=True, **SETTINGS) as store:
        assert held == {topic: len(list(store.read(topic))) for topic in store.topics()}


@pytest.mark.parametrize("size", CHUNK_SIZES)
def test_chunks_are_the_whole(
    filled: Path, three_threads: Callable[[int], None], size: int
) -> None:
    three_threads(size)
    env = Env()
    chunks = chunks_of(filled, env)
    agree(filled, chunks, env)
    seen = TopicQueueMap()
    for chunk in chunks:
        seen.add(chunk.queues)
    expected: dict[tuple[str, int], tuple[int, int, int, int]] = {}
    for file in sorted((filled / "commitlog").iterdir()):
        for at, record in oracle.scan_log(file.read_bytes(), int(file.name))[0]:
            if record.sys_flag & 0xC not in (0, 8):
                continue
            key = record.topic.decode(), record.queue_id
            first = expected.get(key, (record.queue_offset, int(file.name) + at, 0, 0))
            expected[key] = (*first[:2], record.queue_offset + 1, first[3] + 1)
    assert seen.seen() == expected


@pytest.mark.bad_input
@pytest.mark.parametrize("size", [300, 4096])
def test_damage_ends_the_chunks_where_it_ends_the_whole(
    filled: Path, tmp_path: Path, three_threads: Callable[[int], None], size: int
) -> None:
    three_threads(size)
    path = Path(shutil.copytree(filled, tmp_path / "store"))
    env = Env()
    rng = random.Random(SEED)
    files = sorted((path / "commitlog").iterdir())
    for _ in range(60):
        file = rng.choice(files)
        data = file.read_bytes()
        damaged = bytearray(data)
        at = rng.randrange(len(data))
        damaged[at : at + rng.choice((1, 4, 700))] = rng.randbytes(rng.choice((1, 4, 700)))
        file.write_bytes(damaged[: len(data)].ljust(len(data), b"\0"))
        agree(path, chunks_of(path, env), env)
        file.write_bytes(data)


def test_a_record_inside_of_a_body_begins_no_chunk(
    tmp_path: Path, three_threads: Callable[[int], None]
) -> None:
    """A search from the middle of a body meets whole records that name their very places."""
    three_threads(4096)
    path = tmp_path / "store"
    with pyrocketstore.open(path, **SETTINGS) as store:
        while (end := store.message_store.get_max_phy_offset()) < 40_000:
            body, at = b"", end + 88
            while len(body) < 5000:
                inner = oracle.encode_record(
                    oracle.Record(topic=b"evil", body=b"x" * 50, phy_offset=at + len(body))
                )
                body += inner
            assert store.put("T", body).phy_offset == end
    env = Env()
    chunks = chunks_of(path, env)
    agree(path, chunks, env)
    seen = TopicQueueMap()
    for chunk in chunks:
        seen.add(chunk.queues)
    assert [topic for topic, _ in seen.seen()] == ["T"]
    shutil.rmtree(path / "consumequeue")
    (path / "abort").touch()
    with pyrocketstore.open(path, **SETTINGS) as store:
        assert store.topics() == ["T"]


def test_one_processor_starts_no_thread(
    filled: Path, monkeypatch: pytest.MonkeyPatch, three_threads: Callable[[int], None]
) -> None:
    assert Env().processor_count() >= 1
    three_threads(4096)
    monkeypatch.setattr(Env, "processor_count", lambda self: 1)
    monkeypatch.setattr(log_scan, "ThreadPool", None)
    env = Env()
    agree(filled, chunks_of(filled, env), env)


def test_a_part_of_the_log(filled: Path, three_threads: Callable[[int], None]) -> None:
    three_threads(4096)
    env = Env()
    whole = chunks_of(filled, env)
    places = [
        chunk.file_from_offset + chunk.position(i) for chunk in whole for i in range(chunk.count)
    ]
    start, stop = places[5], places[-7]
    part = chunks_of(filled, env, start, stop)
    assert part[0].file_from_offset + part[0].begin == start
    assert part[-1].file_from_offset + part[-1].end == stop
    assert sum(chunk.count for chunk in part) == len(places) - 12


def test_an_error_names_file_and_place(filled: Path, three_threads: Callable[[int], None]) -> None:
    three_threads(4096)
    env = Env()
    second = sorted((filled / "commitlog").iterdir())[1]
    opened: set[int] = set()

    def note(original: Any, path: bytes, flags: int, mode: int) -> int:
        fd = int(original(path, flags, mode))
        (opened.add if path == str(second).encode() else opened.discard)(fd)
        return fd

    def fail(original: Any, fd: int, buffer: Any, size: int, position: int) -> int:
        bad = fd in opened and position + size > 9000
        return -errno.EIO if bad else int(original(fd, buffer, size, position))

    with (
        broken(env, "open", note),
        broken(env, "pread", fail),
        pytest.raises(StoreIOError, match=second.name),
    ):
        chunks_of(filled, env)


# ---- dispatched from the chunks ----------------------------------------------------------------


def rebuilt(source: Path, target: Path, lost: tuple[str, ...], **settings: Any) -> dict[str, bytes]:
    """The files of queues and index after recovery of a store that lost some of them."""
    shutil.copytree(source, target)
    for name in lost:
        shutil.rmtree(target / name)
    (target / "abort").touch()
    (target / "checkpoint").write_bytes(bytes(4096))
    store = DefaultMessageStore(config(target, **settings))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        store.load()
    logics = store.dispatcher.logics_timestamp
    assert store.dispatcher.position == store.get_max_phy_offset()
    store.shutdown()
    found = {
        str(file.relative_to(target)): file.read_bytes()
        for name in ("consumequeue", "consumequeue_ext")
        for file in sorted((target / name).rglob("*"))
        if file.is_file()
    }
    # Index files are named by the time.
    for number, file in enumerate(sorted((target / "index").iterdir())):
        found[f"index/{number}"] = file.read_bytes()
    found["logics"] = str(logics).encode()
    shutil.rmtree(target)
    return found


def the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record is read again and dispatched by the loop that knows all cases."""
    monkeypatch.setattr(replay._Chunks, "replay", lambda chunks, start, end: start)


@pytest.mark.parametrize("size", CHUNK_SIZES)
@pytest.mark.parametrize("lost", [("consumequeue", "index"), ("index",)])
def test_dispatched_from_chunks_or_from_the_log(
    filled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    three_threads: Callable[[int], None],
    size: int,
    lost: tuple[str, ...],
) -> None:
    three_threads(size)
    fast = rebuilt(filled, tmp_path / "fast", lost)
    the_slow_way(monkeypatch)
    slow = rebuilt(filled, tmp_path / "slow", lost)
    assert sum(name.startswith("index") for name in fast) > 1
    assert fast == slow


@pytest.mark.parametrize("whole", [0, 2, 1000])
def test_another_thread_fills_the_index(
    filled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    three_threads: Callable[[int], None],
    whole: int,
) -> None:
    """Chunks that it cannot take are dispatched in turn."""
    three_threads(4096)
    calls: list[LogChunk] = []

    class Pool(ThreadPool):
        def submit(self, call: Any) -> Any:
            calls.extend(call.args)
            return super().submit(call if len(calls) <= whole else lambda: False)

    monkeypatch.setattr(replay, "ThreadPool", Pool)
    fast = rebuilt(filled, tmp_path / "fast", ("consumequeue", "index"))
    assert len(calls) > 2
    calls.clear()
    monkeypatch.setattr(Env, "processor_count", lambda self: 1)
    alone = rebuilt(filled, tmp_path / "alone", ("consumequeue", "index"))
    assert not calls
    the_slow_way(monkeypatch)
    assert rebuilt(filled, tmp_path / "slow", ("consumequeue", "index")) == fast == alone


@pytest.mark.parametrize("records_max", [0, 2000, 20_000])
def test_what_memory_does_not_hold_is_read_again(
    filled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    three_threads: Callable[[int], None],
    records_max: int,
) -> None:
    three_threads(4096)
    lost = ("consumequeue", "index")
    whole = rebuilt(filled, tmp_path / "whole", lost)
    monkeypatch.setattr(log_end, "RECORDS_MAX", records_max)
    assert rebuilt(filled, tmp_path / "part", lost) == whole


def test_without_room_for_the_records(filled: Path, tmp_path: Path) -> None:
    """Anonymous memory that cannot be had is done without."""
    env = Env()

    def refuse(original: Any, fd: int, size: int, writable: int, base: Any) -> int:
        return -errno.ENOMEM if fd < 0 else int(original(fd, size, writable, base))

    with broken(env, "mmap", refuse):
        scanner = LogScanner(env, {}, True, records_max=1 << 20)
        file = min((filled / "commitlog").iterdir())
        chunk = scanner.scan(str(file), 0, 0, FILE_SIZE, FILE_SIZE)
    assert chunk.count > 0
    assert chunk.has_own_memory and chunk.position(0) == 0


def test_ext_units_and_full_index_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, three_threads: Callable[[int], None]
) -> None:
    """Queues whose every record goes through Python, and index files that fill within a record."""
    three_threads(20_000)
    settings = {
        "enable_consume_queue_ext": True,
        "mapped_file_size_consume_queue_ext": 1000,
        "max_index_num": 20,
    }
    path = tmp_path / "store"
    fill(path, ("plain", "batch", "delay", "tx"), 150, **settings)
    lost = ("consumequeue", "consumequeue_ext", "index")
    fast = rebuilt(path, tmp_path / "fast", lost, **settings)
    the_slow_way(monkeypatch)
    assert rebuilt(path, tmp_path / "slow", lost, **settings) == fast


def far_off(path: Path) -> None:
    """Records whose times and queue offsets are further apart than a scan keeps them."""
    store = DefaultMessageStore(config(path))
    store.load()
    store.shutdown()
    rng = random.Random(SEED)
    log = bytearray(FILE_SIZE)
    at = 0
    for i in range(120):
        record = oracle.Record(
            topic=b"far",
            body=b"%d" % i,
            properties=b"KEYS\x01k%d\x02TAGS\x01t" % i,
            queue_id=i % 3,
            sys_flag=rng.choice((0, 0, PREPARED)),
            queue_offset=i // 3 if rng.random() < 0.9 else i // 3 + (1 << 40),
            phy_offset=at,
            store_timestamp=rng.choice((1_700_000_000_000, 0, -(1 << 63), (1 << 63) - 1)),
        )
        data = oracle.encode_record(record)
        log[at : at + len(data)] = data
        at += len(data)
    (path / "commitlog").mkdir(exist_ok=True)
    (path / "commitlog" / f"{0:020d}").write_bytes(log)


@pytest.mark.bad_input
@pytest.mark.parametrize("size", [300, 1 << 20])
def test_numbers_that_are_far_apart(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    three_threads: Callable[[int], None],
    size: int,
) -> None:
    three_threads(size)
    path = tmp_path / "store"
    far_off(path)
    (path / "index").mkdir(exist_ok=True)
    fast = rebuilt(path, tmp_path / "fast", ())
    the_slow_way(monkeypatch)
    slow = rebuilt(path, tmp_path / "slow", ())
    assert fast == slow
    assert any(fast[name].strip(b"\0") for name in fast if "far" in name)


@pytest.mark.parametrize("call", ["pwrite", "madvise"])
def test_pages_that_cannot_be_filled_ahead(tmp_path: Path, call: str) -> None:
    """Filling pages ahead is a help and nothing more."""
    path = tmp_path / "store"
    sizes = {**SETTINGS, "mapped_file_size_consume_queue": 200_000, "max_index_num": 20_000}
    with pyrocketstore.open(path, **sizes) as store:
        store.put_many("T", [b"body"] * 3000, keys=[f"k{i}" for i in range(3000)])
    shutil.rmtree(path / "consumequeue")
    shutil.rmtree(path / "index")
    (path / "abort").touch()
    (path / "checkpoint").write_bytes(bytes(4096))
    env = Env()

    def refuse(original: Any, *arguments: Any) -> int:
        filling = call == "madvise" or (arguments[2] > 4096)
        return -errno.ENOSPC if filling else int(original(*arguments))

    store = DefaultMessageStore(config(path, **sizes), env=env)
    with broken(env, call, refuse) as calls:
        store.load()
    assert calls
    assert store.get_max_offset_in_queue("T", 0) == 3000
    for i in (0, 1, 1500, 2999):
        assert len(store.query_message("T", f"k{i}", 32, 0, 1 << 62).phy_offsets) == 1
    store.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("size", [4096, 1 << 20])
@pytest.mark.parametrize("after", [1, 2, 5, 9, 12])  # the first is the checkpoint's
def test_room_that_cannot_be_had_while_rebuilding(
    filled: Path,
    tmp_path: Path,
    three_threads: Callable[[int], None],
    after: int,
    size: int,
) -> None:
    """The queue or the index is given up, puts are refused, and the next recovery repairs it."""
    three_threads(size)
    path = Path(shutil.copytree(filled, tmp_path / "store"))
    for name in ("consumequeue", "index"):
        shutil.rmtree(path / name)
    (path / "abort").touch()
    (path / "checkpoint").write_bytes(bytes(4096))
    env = Env()
    count = 0

    def fail(original: Any, *arguments: Any) -> int:
        nonlocal count
        count += 1
        return -errno.EIO if count > after else int(original(*arguments))

    store = DefaultMessageStore(config(path), env=env)
    with broken(env, "fallocate", fail):
        store.load()
    assert not store.running_flags.is_writeable()
    with pytest.raises(StoreIOError, match="fallocate"):
        store.shutdown()
    assert (path / "abort").exists()
    whole = rebuilt(filled, tmp_path / "whole", ("consumequeue", "index"))
    again = rebuilt(path, tmp_path / "again", ("index",))
    queues = {name: data for name, data in whole.items() if name.startswith("consumequeue")}
    assert {n: d for n, d in again.items() if n.startswith("consumequeue")} == queues


def test_no_thread_is_left(filled: Path, three_threads: Callable[[int], None]) -> None:
    """Also when who asked for the chunks stops asking."""
    import threading

    three_threads(4096)
    env = Env()
    log = MappedFileQueue(env, str(filled / "commitlog"), FILE_SIZE, read_only=True)
    log.load()
    scan = LogScan(
        env, log.mapped_files, 0, 1 << 40, delay_levels={}, check_crc=True, records_max=0
    )
    chunks = scan.chunks()
    for _ in range(3):
        next(chunks)
    chunks.close()
    assert [t.name for t in threading.enumerate() if t.name.startswith("LogScan")] == []
    with failing(env, "pread", errno.EIO), pytest.raises(StoreIOError):
        chunks_of(filled, env)
    assert [t.name for t in threading.enumerate() if t.name.startswith("LogScan")] == []


def test_a_scan_without_key_hashes(tmp_path: Path) -> None:
    """It knows where the last record with keys ends, and its chunks are not dispatched."""
    with pyrocketstore.open(tmp_path, preset="small") as store:
        ends = {}
        for name, more in (("plain", {}), ("keyed", {"keys": "a b"}), ("behind", {})):
            result = store.put("t", name.encode(), **more)
            ends[name] = result.phy_offset + result.wrote_bytes
        store.flush()
        engine = store.message_store
        (file,) = engine.commit_log.mapped_file_queue.mapped_files
        chunks = {
            hashed: LogScanner(engine.env, {}, True, hash_keys=hashed).scan(
                file.path, 0, 0, ends["behind"], file.file_size
            )
            for hashed in (True, False)
        }
        assert [chunk.keyed_end for chunk in chunks.values()] == [ends["keyed"]] * 2
        assert len(chunks[True].key_columns()[1]) == 2
        assert [column.tolist() for column in chunks[True].rows()] == [
            column.tolist() for column in chunks[False].rows()
        ]
        with pytest.raises(ValueError, match="not hashed"):
            chunks[False].key_columns()
        with engine.reput_service.paused():
            for call in (engine.dispatcher.dispatch_chunk, engine.dispatcher.queue_chunk):
                with pytest.raises(ValueError, match="not hashed"):
                    call(chunks[False], False)
