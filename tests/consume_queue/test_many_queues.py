"""Goal: queues that are read together when a store is opened are what they are one by one.
Method: compare with plain Python, and the opening of damaged stores with one that reads each queue
on its own."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest

import pyrocketstore
from pyrocketstore.config.file_sizes import MAX_FILE_END
from pyrocketstore.consume_queue import many_queues, table, unit_check
from pyrocketstore.consume_queue._units import look_at_queues, read_files
from pyrocketstore.consume_queue.many_queues import only_files
from pyrocketstore.consume_queue.units import FoundQueue
from pyrocketstore.errors import StoreIOError, StoreWarning
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.system import threads
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing, watched
from support.queues import PRE_BLANK, pack
from support.seed import SEED
from support.sizes import SIZES

SIZE = 20_000
UNIT = 20
ZERO = "0" * 20


def place(directory: Path, data: bytes, name: str = ZERO, size: int = SIZE) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(data.ljust(size, b"\0"))
    return str(directory)


def look(*directories: str, writable: bool = True, env: Env | None = None) -> list[Any]:
    return list(only_files(env or Env(), directories, SIZE, writable=writable))


# ---- one queue -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 204, 205, 206, 614, 615, 616, 700, 999, 1000])
def test_the_end_of_the_units(tmp_path: Path, count: int) -> None:
    """Also where a read of a few units ends, and in a full file."""
    units = [(100 * i, 100, 7) for i in range(count)]
    path = place(tmp_path, pack(units))
    end = 100 * count if count else -1
    assert look(path) == look(path, writable=False) == [FoundQueue(0, count * UNIT, end)]
    base = place(tmp_path / "second", pack([*units[:500], PRE_BLANK]), f"{3 * SIZE:020d}")
    count = min(count, 500)
    end = 100 * count if count else -1
    assert look(base) == [FoundQueue(3 * SIZE, (count + 1) * UNIT, end)]


@pytest.mark.parametrize("count", [0, 1, 204, 615, 900])
@pytest.mark.parametrize("distance", [0, 19, 20, 8191, 8192, 12_000])
def test_bytes_after_the_end(tmp_path: Path, count: int, distance: int) -> None:
    """Two pages are read after the end: bytes there need a recovery of the queue."""
    data = bytearray(pack([(100 * i, 100, 7) for i in range(count)]).ljust(SIZE, b"\0"))
    at = count * UNIT + distance
    if at >= SIZE:
        return
    data[at] = 0x80  # a negative physical offset where a unit begins
    found = look(place(tmp_path, bytes(data)))
    assert found == [FoundQueue(0, count * UNIT, 100 * count or -1) if distance >= 8192 else None]


def test_directories_that_need_another_look(tmp_path: Path) -> None:
    unit = pack([(0, 100, 7)])
    usual = place(tmp_path / "usual", unit)
    (tmp_path / "usual" / "other name").write_bytes(b"x")
    (tmp_path / "usual" / ("1" * 21)).mkdir()
    two = place(tmp_path / "two", unit)
    place(tmp_path / "two", unit, f"{SIZE:020d}")
    (tmp_path / "none").mkdir()
    (tmp_path / "file").write_bytes(b"")
    os.symlink(usual, tmp_path / "link to a queue")
    linked = tmp_path / "linked"
    linked.mkdir()
    os.symlink(f"{usual}/{ZERO}", linked / ZERO)
    (tmp_path / "directory" / ZERO).mkdir(parents=True)
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo" / ZERO)
    end = MAX_FILE_END - MAX_FILE_END % SIZE
    odd = [
        two,
        *(str(tmp_path / name) for name in ("none", "file", "missing", "link to a queue")),
        *(str(tmp_path / name) for name in ("linked", "directory", "fifo")),
        place(tmp_path / "short", unit, size=SIZE - 1),
        place(tmp_path / "long", unit, size=SIZE + 1),
        place(tmp_path / "empty", b"", size=0),
        place(tmp_path / "not a multiple", unit, f"{SIZE + 1:020d}"),
        place(tmp_path / "too far", unit, f"{end:020d}"),
        place(tmp_path / "no int64", unit, "9" * 20),
        str(tmp_path / ("x/" * 2100)),
        str(tmp_path / ("x" * 300)),
    ]
    last = place(tmp_path / "last", unit, f"{end - SIZE:020d}")
    expected = FoundQueue(0, UNIT, 100)
    for writable in (True, False):
        found = look(usual, *odd, last, usual, writable=writable)
        assert found[0] == found[-1] == expected
        assert found[-2] == FoundQueue(end - SIZE, UNIT, 100)
        assert found[1:-2] == [None] * len(odd), [
            path for path, state in zip(odd, found[1:-2], strict=True) if state is not None
        ]


@pytest.mark.parametrize("call", ["open", "pread", "file_size", "close", "list_directory"])
def test_a_failed_call_is_an_error(tmp_path: Path, call: str) -> None:
    """The code for single queues handles a path that leads to no file."""
    env = Env()
    path = place(tmp_path, pack([(0, 100, 7)]))
    with failing(env, call, errno.EIO), pytest.raises(StoreIOError) as caught:
        look(path, env=env)
    assert caught.value.errno == errno.EIO
    assert caught.value.path.removesuffix(f"/{ZERO}") == path
    with failing(env, call, errno.ENOENT) as calls:
        assert look(path, env=env) == [None]
        assert calls
    with watched(env, "open") as opens, watched(env, "close") as closes:
        assert look(path, env=env) == [FoundQueue(0, UNIT, 100)]
        assert len(opens) == len(closes) == 1
    short = broken(env, "pread", lambda original, fd, to, size, at: original(fd, to, size // 2, at))
    with short:
        assert look(path, env=env) == [None]


# ---- many queues ---------------------------------------------------------------------------------


def test_several_threads_find_what_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [
        place(tmp_path / str(i), pack([(100 * i, 100, 7)] * (i % 7)), size=SIZE - (i % 5 == 4))
        for i in range(60)
    ]
    env = Env()
    expected = look(*paths, env=env)
    assert expected.count(None) == 12
    monkeypatch.setattr(many_queues, "CALL_MAX", 7)
    monkeypatch.setattr(many_queues, "THREADS_FROM", 2)
    monkeypatch.setattr(env, "processor_count", lambda: 3)
    assert look(*paths, env=env) == expected

    def no_memory(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    monkeypatch.setattr(threads, "begin_thread", no_memory)
    assert look(*paths, env=env) == expected


@pytest.mark.parametrize("call", ["open", "pread"])
def test_a_failing_read_is_an_error(tmp_path: Path, call: str) -> None:
    """A file that was deleted is left to the code for single queues; another failure is raised."""
    env = Env()
    place(tmp_path, pack([(0, 100, 7)]))
    file = MappedFile(env, f"{tmp_path}/{ZERO}", SIZE, mode="read")
    zero, one = numpy.array([0]), numpy.array([1])
    with failing(env, call, errno.EROFS), pytest.raises(StoreIOError) as caught:
        many_queues.read_ranges(env, [file], zero, one)
    assert (caught.value.errno, caught.value.path) == (errno.EROFS, file.path)
    assert caught.value.position == (-1 if call == "open" else 0)
    with failing(env, call, errno.ENOENT):
        assert not many_queues.read_ranges(env, [file], zero, one).is_read.any()
    assert many_queues.read_ranges(env, [file], zero, one).is_read.all()


def test_arguments_are_checked(tmp_path: Path) -> None:
    env = Env()
    file = MappedFile(env, f"{place(tmp_path, b'')}/{ZERO}", SIZE)

    def i8(*values: int) -> Any:
        return numpy.array(values, numpy.int64)

    def u1(count: int) -> Any:
        return numpy.ones(count, numpy.uint8)

    for files, position, size, at, target, done in (
        ((file,), i8(0), i8(21), i8(0), u1(20), u1(1)),
        ((file,), i8(0), i8(20), i8(1), u1(20), u1(1)),
        ((file,), i8(0), i8(20), i8(-1), u1(20), u1(1)),
        ((file,), i8(0), i8(-1), i8(0), u1(20), u1(1)),
        ((file,), i8(-1), i8(20), i8(0), u1(20), u1(1)),
        ((file,), i8(0), i8(20), i8(0), u1(20), u1(2)),
        ((file,), i8(0, 0), i8(20), i8(0), u1(20), u1(1)),
    ):
        with pytest.raises(ValueError, match=r"range|one entry"):
            read_files(files, position, size, at, target, done)
    read_files((), i8(), i8(), i8(), u1(0), u1(0))
    with pytest.raises(TypeError):
        read_files((object(),), i8(0), i8(0), i8(0), u1(0), u1(1))  # type: ignore[arg-type]
    done = u1(2)
    read_files((file, file), i8(0, SIZE - 5), i8(20, 20), i8(0, 20), u1(40), done)
    assert done.tolist() == [1, 0]
    memory = MappedFile(env, file.path, SIZE, mode="memory")
    file.shutdown()
    read_files((file, memory), i8(0, 0), i8(20, 20), i8(0, 20), u1(40), done)
    assert done.tolist() == [0, 0]
    for paths, size, rows in (((b"x",), SIZE, 2), ((b"x",), 0, 1), ((), SIZE, 1)):
        with pytest.raises(ValueError, match="row of 4"):
            look_at_queues(env, paths, size, True, numpy.zeros((rows, 4), numpy.int64))
    with pytest.raises(TypeError):
        texts: Any = ("x",)
        look_at_queues(env, texts, SIZE, True, numpy.zeros((1, 4), numpy.int64))


# ---- the opening ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many") / "store"
    with pyrocketstore.open(root, **SIZES) as store:
        for i in range(400):
            store.put(f"t{i % 3}", b"x" * 40, queue_id=i % 4, tags="A" if i % 5 else None)
        for _ in range(150):  # two files
            store.put("long", b"y", queue_id=0)
        for i in range(3):
            store.put("one", b"z", queue_id=i)
    return root


def state_of(root: Path, read_only: bool) -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)  # files of a wrong length
        store = pyrocketstore.open(root, read_only=read_only, **SIZES)
    with store:
        engine = store.message_store
        queues = [
            (q.topic, q.queue_id, q.core.unit_count, q.covered_phy_offset, q.min_logic_offset,
             q.cut_short, q.max_physic_offset, [f.path for f in q.mapped_file_queue.mapped_files],
             q.reader.columns(0, 1000).phy_offset.tolist())
            for q in sorted(engine.queue_table.all(), key=lambda q: (q.topic, q.queue_id))
        ]  # fmt: skip
        plan = engine.plan
        assert plan is not None
        return queues, plan, plan.repairs, plan.covered, plan.beyond


def damage(root: Path, chance: random.Random) -> str:
    """Change a few bytes of queues, or names; returns what was done."""
    files = sorted(path for path in (root / "consumequeue").rglob("*") if path.is_file())
    done = []
    for _ in range(chance.choice((0, 1, 1, 3))):
        file = chance.choice(files)
        kind = chance.choice(("byte", "zeros", "tail", "copy", "cut", "remove"))
        data = bytearray(file.read_bytes()) if file.exists() else bytearray(2000)
        at = chance.randrange(0, 8 if kind == "byte" else 300) + 20 * chance.randrange(5)
        if kind == "byte":
            data[at] ^= 1 << chance.randrange(8)
        elif kind == "zeros":
            data[at // 20 * 20 : at // 20 * 20 + 40] = bytes(40)
        elif kind == "tail":
            data[-chance.randrange(1, 400)] = 7
        elif kind == "copy":
            data[:] = chance.choice([path for path in files if path.exists()]).read_bytes()
        elif kind == "cut":
            del data[chance.randrange(1, 2000) :]
        if kind == "remove":
            file.unlink(missing_ok=True)
        else:
            file.write_bytes(data)
        done.append(f"{kind} at {at} of {file.relative_to(root)}")
    if chance.random() < 0.5:
        (root / "abort").touch()
        done.append("abort")
    return ", ".join(done)


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each queue be read by the code for one queue."""
    monkeypatch.setattr(table, "only_files", lambda env, paths, *_, **__: [None] * len(paths))
    monkeypatch.setattr(unit_check, "_only_file", lambda queue: None)
    monkeypatch.setattr(
        table,
        "correct_min_offsets",
        lambda env, queues, lowest: [queue.correct_min_offset(lowest) for queue in queues],
    )


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("number", range(12))
def test_an_opening_finds_what_one_by_one_finds(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, read_only: bool
) -> None:
    chance = random.Random(f"{SEED} {number}")
    root, copy = tmp_path / "root" / "store", tmp_path / "copy" / "store"
    shutil.copytree(filled, root)
    done = damage(root, chance)
    shutil.copytree(root, copy)
    together = state_of(root, read_only)
    with monkeypatch.context() as patch:
        one_by_one(patch)
        alone = state_of(copy, read_only)
    texts = [repr(state).replace("/copy/", "/root/") for state in (together, alone)]
    assert texts[0] == texts[1], done


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("killed", [True, False])
def test_the_usual_queue_is_opened_two_or_three_times(
    tmp_path: Path, killed: bool, read_only: bool
) -> None:
    """Once to find its end, after a kill once to compare its units with the log, once for its
    minimum."""
    root = tmp_path / "store"
    with pyrocketstore.open(root, **SIZES) as store:
        for i in range(40):
            store.put(f"t{i % 20}", b"x")
    if killed:
        (root / "abort").touch()
    env = Env()
    with (
        watched(env, "open") as opens,
        pyrocketstore.open(root, env=env, read_only=read_only, **SIZES),
    ):
        paths = [os.fsdecode(path) for path, *_ in opens]
    for i in range(20):
        assert sum(f"/consumequeue/t{i}/0/0" in path for path in paths) == 2 + killed


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("call", ["list_directory", "pread"])
def test_an_opening_reports_a_failed_call(tmp_path: Path, call: str, read_only: bool) -> None:
    root = tmp_path / "store"
    with pyrocketstore.open(root, **SIZES) as store:
        store.put("t", b"x")
    env = Env()
    with failing(env, call, errno.EIO), pytest.raises(StoreIOError) as raised:
        pyrocketstore.open(root, env=env, read_only=read_only, **SIZES)
    assert raised.value.errno == errno.EIO
    pyrocketstore.open(root, env=env, read_only=read_only, **SIZES).close()


@pytest.mark.parametrize("read_only", [True, False])
def test_an_opening_needs_few_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    root = tmp_path / "store"
    with pyrocketstore.open(root, **SIZES) as store:
        for i in range(300):
            store.put(f"t{i // 4}", b"x", queue_id=i % 4)
    monkeypatch.setattr(many_queues, "CALL_MAX", 10)
    monkeypatch.setattr(many_queues, "THREADS_FROM", 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd"))
    (root / "abort").touch()
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
    try:
        with pyrocketstore.open(root, read_only=read_only, **SIZES) as store:
            assert sum(len(store.queues(topic)) for topic in store.topics()) == 300
            assert all(q.core.unit_count == 1 for q in store.message_store.consume_queues())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
