"""Values and objects for the campaign of calls (api_calls): one valid object of each compiled
class, values of every kind, and objects whose special methods change the other arguments of the
call."""

from __future__ import annotations

import contextlib
import errno
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyrocketstore.columns import _decode as _columns
from pyrocketstore.columns import _record_walk
from pyrocketstore.columns._record_walk import RecordWalk
from pyrocketstore.commit_log import _append as _commit_log
from pyrocketstore.commit_log import _chunk_scan, _puts, _scan
from pyrocketstore.consume_queue import _units as _consume_queue
from pyrocketstore.dispatch import _dispatcher as _dispatch
from pyrocketstore.files import _mapped_file, _writes
from pyrocketstore.index import _file as _index_file
from pyrocketstore.index._entries import ChainWalk
from pyrocketstore.reading import _by_key as _key_search
from pyrocketstore.reading import _messages as _reader
from pyrocketstore.reading import _queue_runs
from pyrocketstore.record import _message, _record, _text
from pyrocketstore.record.message import MessageExtBrokerInner
from pyrocketstore.store import _store_calls
from pyrocketstore.system import _env, _open_state
from pyrocketstore.system.env import Env
from support import odd_values

FILE_SIZE = 1 << 16
EDGES = (0, 1, 2, 7, 20, 40, 300, 4096, FILE_SIZE, 1 << 20)
FAR = (-1, -2, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**70)
TEXTS = (
    "",
    "a",
    "T",
    "shared",
    "memory",
    "pages",
    "x y",
    "\ud800",
    "\0",
    "é",
    "phy_offset",
    "z" * 300,
)
NAMES = (
    "phy_offset",
    "pread",
    "body",
    "topic",
    "properties",
    "tags_code",
    "127.0.0.1:80",
    "loose/a",
    "loose/b",
)
DTYPES = ("int64", "int32", "uint8", "bool", "float64", "object", ">i8", "S3")
#: Methods that an argument's special methods may call on another object.
CLOSERS = ("close", "release", "destroy", "detach", "shutdown", "free", "clear", "unmap_idle")


def records(count: int = 3, phy_offset: int = 0) -> bytes:
    """Return consecutive valid records."""
    out = bytearray()
    for i in range(count):
        inner = MessageExtBrokerInner("T", b"body" * i, 0)
        record = bytearray(_message.encode_message(inner))
        record[20:28] = i.to_bytes(8, "big")
        record[28:36] = (phy_offset + len(out)).to_bytes(8, "big")
        out += record
    return bytes(out)


class World:
    """Objects by the name of their class, made on demand; their files are in one directory."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        (folder / "loose").mkdir()
        self.data = records()
        (folder / "log").write_bytes(self.data + bytes(FILE_SIZE - len(self.data)))
        self.made: dict[str, list[Any]] = {}
        self.number = 0
        self.env = _env.EnvTable()
        self.event = _env.Event()

    def fresh(self) -> str:
        self.number += 1
        return str(self.folder / f"{self.number}")

    def object_of(self, name: str) -> Any:
        """Return an object of a class: one used before, a new one, or an empty one."""
        made = self.made.setdefault(name, [])
        if not made or self.rng.random() < 0.2:
            try:
                made.append(self.new(name))
            except Exception:  # noqa: BLE001 - it is made of objects that calls have changed
                made.append(None)
        return self.rng.choice(made)

    def new(self, name: str) -> Any:
        maker: Callable[[], Any] | None = getattr(self, f"make_{name}", None)
        if maker is not None and self.rng.random() < 0.85:
            return maker()
        for module in gc_modules():
            kind = getattr(module, name, None)
            if isinstance(kind, type):
                try:
                    return kind.__new__(kind)
                except Exception:  # noqa: BLE001
                    return None if maker is None else maker()
        return None

    # ---- one good object of each class -------------------------------------------------------

    def make_EnvTable(self) -> Any:
        return _env.EnvTable()

    def make_Event(self) -> Any:
        return _env.Event()

    def make_MappedFile(self) -> Any:
        if self.rng.random() < 0.3:
            return _mapped_file.MappedFile(
                self.env, str(self.folder / "log"), FILE_SIZE, mode="read", file_from_offset=0
            )
        return _mapped_file.MappedFile(
            self.env,
            self.fresh(),
            FILE_SIZE,
            create=True,
            file_from_offset=0,
            by_write=self.rng.random() < 0.3,
        )

    def make_SelectMappedBufferResult(self) -> Any:
        file = self.make_MappedFile()
        if file.mode != "read":
            file.append_message(self.data)
        return file.select_mapped_buffer(0)

    def make_WriterBuffer(self) -> Any:
        return _writes.WriterBuffer(self.env, FILE_SIZE)

    def make_MessageExt(self) -> Any:
        return _message.decode_record(self.data[: len(self.data) // 3 * 3])

    def make_ConsumeQueueCore(self) -> Any:
        core = _consume_queue.ConsumeQueueCore()
        file = self.make_MappedFile()
        if file.mode == "shared":
            core.attach(file)
        return core

    def make_UnitAppender(self) -> Any:
        return _consume_queue.UnitAppender()

    def make_IndexFile(self) -> Any:
        return _index_file.IndexFile(self.env, self.fresh(), 10, 50, create=True)

    def make_VarColumn(self) -> Any:
        offsets = np.array([0, 1, 1, 3], np.int32)
        return _columns.VarColumn(offsets, np.frombuffer(b"abc", np.uint8), None, 0, True)

    def make_MapColumn(self) -> Any:
        offsets = np.array([0, 1, 3], np.int32)
        return _columns.MapColumn(offsets, self.make_VarColumn(), self.make_VarColumn())

    def make_CommitLogCore(self) -> Any:
        core = _commit_log.CommitLogCore(self.env, 1 << 16, self.event, None)
        core.attach(
            _mapped_file.MappedFile(
                self.env, self.fresh(), FILE_SIZE, create=True, file_from_offset=0
            )
        )
        return core

    def make_QueueSlot(self) -> Any:
        return self.object_of_log().slot("T", 0)

    def object_of_log(self) -> Any:
        core = self.object_of("CommitLogCore")
        return core if core is not None else self.make_CommitLogCore()

    def make_TopicEntry(self) -> Any:
        return _commit_log.TopicEntry("T")

    def make_Columns(self) -> Any:
        return _puts.Columns("T", [b"1", b"2"], [0, 1], ["a", None], ["k", None], None, [0, 1])

    def make_ColumnAppends(self) -> Any:
        core = self.make_CommitLogCore()
        return _puts.ColumnAppends(core, "127.0.0.1:10911", lambda size: errno.ENOSPC)

    def make_PropertyTexts(self) -> Any:
        texts = _puts.PropertyTexts(3)
        texts.add(b"a\x01b")
        return texts

    def make_UniqueIds(self) -> Any:
        return _text.UniqueIds(Env(), "127.0.0.1:10911")

    def make_PutMessageResult(self) -> Any:
        return _puts.make_result(0, 0, 1, 2, 3, 4, 1)

    def make_GroupCommit(self) -> Any:
        return _commit_log.GroupCommit(self.object_of_log(), _Flush(), 5)

    def make_StoreState(self) -> Any:
        state = _open_state.StoreState("store", False)
        state.open()
        state.allow_fast_puts()
        return state

    def make_PutPath(self) -> Any:
        core, state = self.make_CommitLogCore(), self.make_StoreState()
        return _store_calls.PutPath(core, "127.0.0.1:10911", state, None)

    def make_StoreCalls(self) -> Any:
        calls = _store_calls.StoreCalls()
        calls._put_path = self.make_PutPath()
        calls._key_search = self.make_KeySearch()
        calls._state = self.make_StoreState()
        return calls

    def make_TopicQueueMap(self) -> Any:
        return _scan.TopicQueueMap()

    def make_FileWindow(self) -> Any:
        return _scan.FileWindow(self.env, str(self.folder / "log"))

    def make_RecordMemory(self) -> Any:
        return _chunk_scan.RecordMemory(self.env, 1 << 16)

    def make_LogScanner(self) -> Any:
        return _chunk_scan.LogScanner(self.env, {1: 1000}, True, records_max=1 << 16)

    def make_LogChunk(self) -> Any:
        scanner = self.make_LogScanner()
        return scanner.scan(str(self.folder / "log"), 0, 0, FILE_SIZE, FILE_SIZE)

    def make_QueueRows(self) -> Any:
        positions, sizes = self.extents()
        return _record_walk.QueueRows([("T", 0, 0, 3)], positions, sizes, np.zeros(3, np.bool_))

    def extents(self) -> tuple[Any, Any]:
        """Return positions and sizes of the three records."""
        positions, at = [], 0
        while at < len(self.data):
            positions.append(at)
            at += int.from_bytes(self.data[at : at + 4], "big")
        sizes = np.diff([*positions, len(self.data)])
        return np.array(positions, np.int64), sizes.astype(np.int32)

    def make_MessageIterator(self) -> Any:
        return _reader.MessageIterator([(self.make_MappedFile(), *self.extents())], None, bool)

    def make_MergedMessages(self) -> Any:
        return _reader.MergedMessages([self.make_MessageIterator() for _ in range(3)], None)

    def make_QueueName(self) -> Any:
        return _record.QueueName("T", 0)

    def make_FileSequence(self) -> Any:
        return _mapped_file.FileSequence([self.make_MappedFile()])

    def make_LogTable(self) -> Any:
        return _key_search.LogTable(self.make_FileSequence(), FILE_SIZE)

    def make_KeySearch(self) -> Any:
        files = _Files(self)
        files.mapped_file_size = FILE_SIZE
        return _key_search.KeySearch(self.object_of_log(), files, _Files(self), None, bool)

    def make_StoreTimes(self) -> Any:
        return _commit_log.StoreTimes(self.object_of_log(), _OneFile(self))

    def make_UnitWindow(self) -> Any:
        return _consume_queue.UnitWindow(_OneFile(self))

    def make_UnitPull(self) -> Any:
        return _queue_runs.UnitPull(_OneFile(self), _Files(self), FILE_SIZE)

    def make_QueueChunks(self) -> Any:
        return _queue_runs.QueueChunks(_OneFile(self), 0, 10, contextlib.nullcontext, bool)

    def make_RecordRun(self) -> Any:
        runs, _ = _queue_runs.runs_of(_OneFile(self), 0, 10, FILE_SIZE)
        return runs[0]

    def make_RecordWalk(self) -> Any:
        walk = RecordWalk({1: 1000}, FILE_SIZE)
        if self.rng.random() < 0.7:
            walk.walk(self.make_FileWindow(), "log", 0, 0, FILE_SIZE)
        return walk

    def make_ChainWalk(self) -> Any:
        return ChainWalk(10, 50)

    def make_Dispatcher(self) -> Any:
        core = _consume_queue.ConsumeQueueCore()

        class Queue:
            def __init__(self, core: Any) -> None:
                self.core = core

            def provide_file(self, queue_offset: int) -> bool:
                return False

        return _dispatch.Dispatcher(
            on_new_queue=lambda topic, number: Queue(core),
            on_queue_record=lambda request, multi: None,
            on_index_file=lambda: self.rng.choice([None, self.make_IndexFile()]),
            on_index_record=lambda request: None,
            on_error=lambda *error: None,
            delay_levels={1: 1000},
            index_enabled=True,
            multi_dispatch=False,
            moved=self.event,
        )


class _Flush:
    """Replaces the Python object that a group commit flushes through."""

    flushed_where = flushed_noted = 0

    def flush_to(self, *_: Any) -> int:
        return 1 << 40

    def note_flushed(self, *_: Any) -> None: ...

    def failed(self, *_: Any) -> None: ...


class _Files:
    """Replaces the Python objects that a search gets files from."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        rng = self.world.rng
        return rng.choice([None, (), [], 0, FILE_SIZE, lambda *a, **k: [], lambda *a, **k: None])


class _OneFile:
    """Replaces a log, a queue, its files and its reader, and a range of it: one file of zeros."""

    wanted = None
    topic, queue_id = "T", 0
    read_only, floor, file_size, mapped_file_size = True, 0, FILE_SIZE, FILE_SIZE

    def __init__(self, world: World) -> None:
        self.log = self.queue = self.reader = self.mapped_file_queue = self
        self.core, self.env = world.object_of_log(), world.env
        self.mapped_files = world.make_FileSequence()
        self.mapped_files[0].wrote = FILE_SIZE

    def read(self, file: Any, position: int, size: int) -> bytes:
        return bytes(size)

    def get_min_offset(self) -> int:
        return 0

    def get_max_offset(self) -> int:
        return FILE_SIZE

    def get_max_offset_in_queue(self) -> int:
        return FILE_SIZE // 20

    def missing(self, run: Any) -> Exception | None:
        return None


def gc_modules() -> list[Any]:
    """Return the compiled modules that are loaded."""
    import sys

    return [
        m for name, m in sys.modules.items() if name.startswith("pyrocketstore.") and "._" in name
    ]


# ---- values --------------------------------------------------------------------------------------


class Evil:
    """An object whose special methods change or close the `targets` and return a value."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.targets, self.depth = rng, list[Any](), 0

    def strike(self) -> None:
        if self.depth > 2:
            return
        self.depth += 1
        try:
            for target in self.targets:
                spoil(target, self.rng)
        finally:
            self.depth -= 1

    def __int__(self) -> int:
        self.strike()
        return self.rng.choice((0, 1, 5))

    __index__ = __int__

    def __len__(self) -> int:
        self.strike()
        return self.rng.choice((0, 1, 3))

    def __bool__(self) -> bool:
        self.strike()
        return True

    def __float__(self) -> float:
        self.strike()
        return 1.0

    def __getitem__(self, index: Any) -> Any:
        self.strike()
        if isinstance(index, int) and index > 3:
            raise IndexError
        return self.rng.choice((b"x", "x", 1, None, self))

    def __iter__(self) -> Any:
        for _ in range(3):
            self.strike()
            yield self.rng.choice((b"x", "x", 1, None, ("T", 0, 0, 1)))

    def __str__(self) -> str:
        self.strike()
        return "evil"

    __repr__ = __fspath__ = __str__

    def __bytes__(self) -> bytes:
        self.strike()
        return b"evil"

    def __hash__(self) -> int:
        self.strike()
        return 1

    def __eq__(self, other: object) -> bool:
        self.strike()
        return False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.strike()
        return self.rng.choice((None, 0, "x", self))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.strike()
        return self.rng.choice((None, 0, "x", b"x", self, {}, []))

    def keys(self) -> list[str]:
        self.strike()
        return ["a", "b"]


class EvilArray(Evil):
    """As Evil, with the methods of NumPy and the buffer protocol."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        self.strike()
        return np.arange(3)

    def __buffer__(self, flags: int) -> memoryview:
        self.strike()
        return memoryview(b"evil buffer")


def spoil(target: Any, rng: random.Random) -> None:
    """Free the memory that a caller may have borrowed from an argument."""
    try:
        if isinstance(target, list | dict | set):
            target.clear()
            if isinstance(target, list) and rng.random() < 0.5:
                target.extend([None] * 5)
        elif isinstance(target, bytearray):
            del target[:]
        else:
            for name in CLOSERS:
                if hasattr(target, name) and rng.random() < 0.3:
                    getattr(target, name)()
    except Exception:  # noqa: BLE001
        pass
    junk = [bytes([0xA5]) * size for size in (32, 64, 128, 512) for _ in range(20)]
    del junk


class Values:
    """Draws arguments, by a stub's annotation or of any kind."""

    def __init__(self, world: World) -> None:
        self.world, self.rng = world, world.rng

    def any(self) -> Any:
        rng = self.rng
        kind = rng.randrange(13)
        if kind == 12:
            return self.odd(*odd_values.BY_PARAMETER)
        if kind < 2:
            return rng.choice(
                (None, True, 1.5, float("nan"), object(), int, ..., {1: 2}, set(), ())
            )
        if kind < 4:
            return Evil(rng) if rng.random() < 0.6 else EvilArray(rng)
        if kind < 6:
            return self.integer()
        if kind < 7:
            return self.text()
        if kind < 8:
            return self.buffer()
        if kind < 9:
            return self.array(rng.choice(DTYPES))
        if kind < 10:
            return self.sequence("object")
        return self.world.object_of(rng.choice(MADE))

    def odd(self, *parameters: str) -> Any:
        """Return a value of an unusual type for one of these parameters of a put."""
        return self.rng.choice(odd_values.BY_PARAMETER[self.rng.choice(parameters)]).make()

    def integer(self) -> int:
        rng = self.rng
        if rng.random() < 0.05:
            return self.odd("queue_id", "flag", "born_timestamp")  # type: ignore[no-any-return]
        return rng.choice(EDGES) if rng.random() < 0.75 else rng.choice(FAR)

    def text(self) -> str:
        if self.rng.random() < 0.05:
            return self.odd("topic", "tags", "keys")  # type: ignore[no-any-return]
        return self.rng.choice(TEXTS + NAMES)

    def buffer(self) -> Any:
        rng, data = self.rng, self.world.data
        cut = rng.choice((0, 1, 3, 19, 20, 40, 90, len(data)))
        made = bytes(rng.choice((data, bytes(400), b"\xff" * 400, b"\x7f" * 400)))[:cut]
        kind = rng.randrange(7)
        if kind == 6:
            return self.odd("body")
        if kind == 0:
            return bytearray(made)
        if kind == 1:
            return memoryview(made)
        if kind == 2:
            return np.frombuffer(made, np.uint8)[::2]
        if kind == 3:
            return memoryview(bytearray(made * 2))[::2]
        return made

    def array(self, dtype: str) -> Any:
        rng = self.rng
        if rng.random() < 0.3:
            positions, sizes = self.world.extents()
            return (positions if dtype == "int64" else sizes).astype(dtype)
        count = rng.choice((0, 1, 2, 3, 9))
        with np.errstate(all="ignore"):
            made = np.array([rng.choice((0, 1, 5, 100, -1, 2**31 - 1)) for _ in range(count)])
            made = made.astype(np.int64).astype(dtype)
        kind = rng.randrange(8)
        if kind == 0:
            made.flags.writeable = False
        elif kind == 1:
            made = np.repeat(made, 2)[::2]
        elif kind == 2:
            made = made.reshape(-1, 1)
        return made

    def sequence(self, inner: str) -> Any:
        made: list[Any] = [self.of(inner) for _ in range(self.rng.choice((0, 1, 2, 3, 5)))]
        return self.rng.choice((made, made, made, tuple(made), iter(made)))

    def of(self, annotation: str) -> Any:
        """Return a value for a parameter: in three of four cases of the type in its stub."""
        if self.rng.random() < 0.25:
            return self.any()
        parts = [part.strip() for part in split_union(annotation)]
        part = self.rng.choice(parts)
        name = re.split(r"[\[.]", part)[0]
        if name in MADE:
            return self.world.object_of(name)
        if "NDArray" in part:
            found = re.search(r"(u?int\d+|bool)", part)
            return self.array(found[1] if found else "int64")
        if name in {"list", "Sequence", "Iterable", "tuple", "frozenset"}:
            inner = part[part.index("[") + 1 : part.rindex("]")] if "[" in part else "object"
            if name == "tuple":
                return tuple(self.of(one) for one in split_commas(inner) if one != "...")
            return self.sequence(inner)
        simple: dict[str, Callable[[], Any]] = {
            "int": self.integer,
            "bool": lambda: self.rng.random() < 0.5,
            "str": self.text,
            "Buffer": self.buffer,
            "bytes": lambda: bytes(self.world.data[: self.rng.choice((0, 5, 91, 400))]),
            "float": lambda: self.rng.choice((0.0, 0.01, -1.0, float("nan"))),
            "None": lambda: None,
            "_Path": lambda: f"loose/{self.rng.randrange(3)}",
            "Callable": lambda: lambda *a, **k: self.rng.choice((None, 0, 1, "x")),
            "Mapping": lambda: {self.rng.choice((1, "a")): self.rng.choice((1, "b", None))},
            "dict": lambda: {"body": b"x", "tags": self.any(), "flag": self.any()},
        }
        return simple.get(name, self.any)()


def split_union(text: str) -> list[str]:
    return _split(text, "|")


def split_commas(text: str) -> list[str]:
    return [part.strip() for part in _split(text, ",")]


def _split(text: str, mark: str) -> list[str]:
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == mark and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


MADE = [name.removeprefix("make_") for name in vars(World) if name.startswith("make_")]
