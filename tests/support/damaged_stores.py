"""Small stores to be damaged, ways to damage them, and what the oracle says must still be there."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import resource
import shutil
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pytest

import pyrocketstore
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.errors import StoreError
from pyrocketstore.verify.dump import dump_lines
from support import oracle
from support.seed import SEED
from support.snapshot import snapshot

SOAK = int(os.environ.get("ROCKETSTORE_SOAK", "0"))
FILE_SIZE = 1 << 14
QUEUE_FILE_SIZE = 400
SLOTS, ENTRIES = 50, 220
PLAIN = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": QUEUE_FILE_SIZE,
    "max_hash_slot_num": SLOTS,
    "max_index_num": ENTRIES,
}
LIGHT = {
    **PLAIN,
    "enable_lmq": True,
    "enable_multi_dispatch": True,
    "enable_consume_queue_ext": True,
    "mapped_file_size_consume_queue_ext": 500,
}
#: Address space that one mutant may take: what is there already, and this (bytes).
ROOM = 1 << 30
IS_ASAN = "libasan" in os.environ.get("LD_PRELOAD", "")

Damage = Callable[[Path], None]


# ---- the stores, and what the oracle knows of them ----------------------------------------------


class Base(NamedTuple):
    """A valid store: its directory and the settings that it was written with."""

    path: Path
    settings: dict[str, Any]


class Mutant(NamedTuple):
    """One way to damage a store. `place` is the damaged part: log, queue, ext, index, other."""

    text: str
    place: str
    damage: Damage
    refusable: bool = True  # a StoreError when it is opened is an answer


def fill(path: Path, settings: dict[str, Any]) -> Base:
    rng = random.Random(SEED)
    light = "enable_lmq" in settings
    with pyrocketstore.open(path, **settings) as store:
        for i in range(180):
            body = rng.randbytes(rng.randrange(1, 400))
            topic, queue_id = ("orders", i % 3) if i % 4 else ("events", 0)
            keys = None if i % 7 == 0 else f"k{i} all"
            properties = {"INNER_MULTI_DISPATCH": f"%LMQ%a{i % 2},%LMQ%b"} if i % 5 == 1 else {}
            if light and properties:
                put_light(store, topic, body, queue_id, properties | {"KEYS": f"k{i}"})
            elif i % 10 == 9:
                items = [{"body": b"%d" % j, "keys": f"b{i}-{j}", "tags": "B"} for j in range(5)]
                store.put_batch(topic, items, queue_id)
            else:
                born = "[2001:db8::1]:10000" if i % 6 == 0 else None
                store.put(topic, body, queue_id=queue_id, tags=f"T{i % 3}", keys=keys,
                          born_host=born)  # fmt: skip
    assert len(list((path / "commitlog").iterdir())) > 3
    return Base(path, settings)


def put_light(
    store: pyrocketstore.Store, topic: str, body: bytes, queue_id: int, properties: dict[str, str]
) -> None:
    message = pyrocketstore.MessageExtBrokerInner(topic, body, queue_id, properties=properties)
    assert store.message_store.put_message(message).status_code == 0


class Place(NamedTuple):
    """A record of the log."""

    phy_offset: int
    data: bytes
    record: oracle.Record


def log_files(root: Path) -> list[Path]:
    """The files that the engine takes for the log's."""
    directory = root / "commitlog"
    found = sorted(directory.iterdir()) if directory.is_dir() else []
    files = [p for p in found if p.is_file() and len(p.name) == 20 and p.name.isdigit()]
    while files and files[-1].stat().st_size == 0:
        files.pop()
    return files


def places_in(data: bytes, start: int) -> list[Place]:
    """The records from the start of a file up to the first invalid one."""
    found, _, _ = oracle.scan_log(data, start)
    sizes = [record.total_size or 0 for _, record in found]
    return [
        Place(start + at, data[at : at + size], record)
        for (at, record), size in zip(found, sizes, strict=True)
    ]


def all_places(root: Path) -> list[Place]:
    return [
        place for path in log_files(root) for place in places_in(path.read_bytes(), int(path.name))
    ]


def log_content(root: Path) -> dict[int, bytes]:
    """The content of each file that a reader finds; other names than offsets are passed over."""
    files = {int(path.name): path.read_bytes()[:FILE_SIZE] for path in log_files(root)}
    return {name: data for name, data in files.items() if data and name % FILE_SIZE == 0}


def log_end(root: Path, scan_from: int) -> int:
    """Where a log ends whose scan begins with a file: as 4.9.3, over files that are missing, and as
    a reader does over those that have lost their end."""
    files = log_content(root)
    start = scan_from
    while True:
        _, verdict, position = oracle.scan_log(files[start], start)
        later = [name for name in files if name > start]
        has_end = len(files[start]) == FILE_SIZE
        if not later or (verdict != "blank" and has_end):
            return start + position
        start = min(later)


# ---- what is asked of a store ------------------------------------------------------------------


class Answers:
    """The answers of a store to every question; a StoreError is an answer too."""

    def __init__(self, store: pyrocketstore.Store, places: list[Place]) -> None:
        self.errors: list[StoreError] = []
        self.skipped: list[pyrocketstore.SkippedRange] = []
        self.end = store.message_store.get_max_phy_offset()
        self.queues: dict[tuple[str, int], set[tuple[int, int]]] = {}
        for topic in store.topics():
            for queue_id in store.queues(topic):
                found = self.queues.setdefault((topic, queue_id), set())
                with self.tried():
                    reader = store.read(topic, queue_id, on_corrupt="skip")
                    for message in reader:
                        found.add((message.queue_offset, message.phy_offset))
                        record = oracle.decode_record(message.record)
                        assert oracle.is_queued(record, topic, queue_id), (topic, queue_id, record)
                    self.skipped += reader.skipped.ranges
                with self.tried():
                    store.offset_at(topic, queue_id, 1 << 41)
                with self.tried():
                    store.read_batch(topic, queue_id, start=store.min_offset(topic, queue_id))
        self.messages: dict[int, bytes] = {}
        for place in places:
            with self.tried():
                message = store.get(place.phy_offset)
                if message is not None:
                    self.messages[place.phy_offset] = message.record
        self.keys: dict[tuple[str, str], list[int]] = {}
        asked = {key for place in places[::9] for key in oracle.index_keys(place.record)}
        for topic, key in sorted(asked | {("orders", "none"), ("", "")}):
            with self.tried():
                hits = store.query(topic, key, max_num=1000)
                self.keys[topic, key] = [hit.phy_offset for hit in hits]
        with self.tried():
            self.report = store.verify()
            assert self.report.ok or self.report.advice, self.report.problems

    @contextlib.contextmanager
    def tried(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            assert str(error)
            self.errors.append(error)

    def miss(self, places: list[Place], *, queues: bool, keys: bool) -> list[str]:
        """Which of these messages cannot be found, and how."""
        missed = []
        for phy_offset, data, record in places:
            topic = oracle.java_text(record.topic)
            if self.messages.get(phy_offset) != data:
                missed.append(f"{phy_offset} is not there")
            queue = self.queues.get((topic, record.queue_id), set())
            if queues and (record.queue_offset, phy_offset) not in queue:
                missed.append(
                    f"{phy_offset} is not {topic}/{record.queue_id}/{record.queue_offset}"
                )
            for key in oracle.index_keys(record) if keys else []:
                if key in self.keys and phy_offset not in self.keys[key]:
                    missed.append(f"{phy_offset} is not found by {key}")
        return missed


def claim_flushed(path: Path) -> None:
    """Make the checkpoint say that everything was flushed, now and for long."""
    with (path / "checkpoint").open("r+b") as file:
        file.write(struct.pack(">qqq", *[1 << 42] * 3))


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """No file or mapping is left behind, and a wild allocation is a MemoryError."""
    pyarrow.array([0])  # Arrow's allocator reserves address space when it is first used
    before = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if not IS_ASAN:
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, hard))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pyrocketstore.StoreWarning)
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    if len(os.listdir("/proc/self/fd")) > before:
        gc.collect()
    # Fewer: what an earlier test left to the collector is gone.
    assert len(os.listdir("/proc/self/fd")) <= before, "a descriptor was left open"


def assert_no_mappings(root: Path) -> None:
    left = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(root) in line]
    if left:
        gc.collect()
        left = [line for line in Path("/proc/self/maps").read_text().splitlines()
                if str(root) in line]  # fmt: skip
    assert not left, "a mapping was left"


class Survey:
    """Opens damaged stores in every way and holds the answers against the oracle."""

    def __init__(self, base: Base, directory: Path, base_directory: Path) -> None:
        self.base = base
        self.directory = directory
        self.note = base_directory / "mutant.txt"
        self.places = all_places(base.path)
        self.count = 0
        self.refused = 0

    def run(
        self, mutant: Mutant, *, writable: bool | None = None, killed: bool | None = None
    ) -> None:
        """Damage a copy; open it read-only, and every tenth one to be written too."""
        self.count += 1
        killed = self.count % 2 == 0 if killed is None else killed
        name = f"seed {SEED}, mutant {self.count}{', killed' if killed else ''}: {mutant.text}"
        self.note.write_text(name)
        root = self.directory / f"{self.count}"
        shutil.copytree(self.base.path, root, copy_function=shutil.copyfile)
        if killed:
            halt(root)
        mutant.damage(root)
        try:
            self.read_only(root, mutant, killed)
            if self.count % 10 == 0 if writable is None else writable:
                self.written(root, mutant)
        except BaseException as error:
            error.add_note(name)
            raise
        shutil.rmtree(root)

    # ---- read-only ----------------------------------------------------------------------------

    def read_only(self, root: Path, mutant: Mutant, killed: bool) -> None:
        before = snapshot(root)
        answers = None
        with bounded():
            try:
                with pyrocketstore.open(root, read_only=True, **self.base.settings) as store:
                    answers = Answers(store, self.places)
                    plan = store.message_store.plan
            except StoreError as error:
                self.refuse(mutant, error, root)
            self.dump(root)
        assert snapshot(root) == before, "a reader has written"
        if answers is not None and plan is not None and not plan.empty:
            self.compare(root, mutant, answers, plan.scan_from)

    def dump(self, root: Path) -> None:
        config = MessageStoreConfig().at_root(root).replace(**self.base.settings)
        queries = self.directory / "queries.tsv"
        queries.write_text("orders\tk1\t32\t0\t4000000000000\norders\tall\t64\t0\t4000000000000\n")
        with contextlib.suppress(StoreError):
            for line in dump_lines(root, config, queries):
                assert line.startswith("{")

    def refuse(self, mutant: Mutant, error: StoreError, root: Path) -> None:
        assert mutant.refusable, f"the store cannot be opened: {error}"
        assert str(root) in str(error), f"the error names no file: {error}"
        self.refused += 1

    def whole(self, root: Path, end: int) -> list[Place]:
        """The messages before `end` whose bytes nobody touched."""
        files = log_content(root)
        kept = []
        for place in self.places:
            start = place.phy_offset - place.phy_offset % FILE_SIZE
            at = place.phy_offset - start
            if files.get(start, b"")[at : at + len(place.data)] == place.data:
                kept.append(place)
        return [place for place in kept if place.phy_offset + len(place.data) <= end]

    def first_damage(self, root: Path) -> int:
        """Physical offset of the first byte of the log that differs."""
        for path in log_files(self.base.path):
            now = root / "commitlog" / path.name
            old, new = path.read_bytes(), now.read_bytes() if now.is_file() else b""
            if old != new:
                both = min(len(old), len(new))
                same = next((i for i in range(both) if old[i] != new[i]), both)
                return int(path.name) + same
        return 1 << 62

    def compare(self, root: Path, mutant: Mutant, answers: Answers, scan_from: int) -> None:
        if mutant.place == "log":
            assert answers.end == log_end(root, scan_from), "the log ends elsewhere"
        else:
            assert answers.end == self.places[-1].phy_offset + len(self.places[-1].data)
        whole = self.whole(root, answers.end)
        missed = answers.miss(whole, queues=False, keys=False)
        if mutant.place in ("log", "other"):
            damage = self.first_damage(root)
            before = [p for p in whole if p.phy_offset + len(p.data) <= damage]
            missed += answers.miss(before, queues=True, keys=True)
        elif mutant.place == "index":
            missed += answers.miss(whole, queues=True, keys=False)
        else:
            missed += answers.miss(whole, queues=False, keys=True)
        assert not missed, missed[:5]

    # ---- written to ----------------------------------------------------------------------------

    def written(self, root: Path, mutant: Mutant) -> None:
        whole_log = {path.name: path.read_bytes() for path in log_files(root)}
        with bounded():
            try:
                store = pyrocketstore.open(root, **self.base.settings)
            except StoreError as error:
                self.refuse(mutant, error, root)
                with pytest.raises(StoreError) as again:
                    pyrocketstore.open(root, **self.base.settings)
                assert "already open" not in str(again.value)
                return
            with self.closed(store, mutant, root):
                end = store.message_store.get_max_phy_offset()
                put = self.put(store)
                answers = Answers(store, self.places)
        self.compare_written(root, mutant, answers, put, end)
        try:
            with bounded():
                store = pyrocketstore.open(root, **self.base.settings)
                with self.closed(store, mutant, root):
                    answers = Answers(store, self.places)
        except StoreError as error:
            # New keys may be what gives a damaged index away.
            assert mutant.place == "index", error
            self.refuse(mutant, error, root)
            return
        self.compare_written(root, mutant, answers, put, end)
        assert_no_mappings(root)
        self.assert_kept(root, whole_log)

    @contextlib.contextmanager
    def closed(self, store: pyrocketstore.Store, mutant: Mutant, root: Path) -> Iterator[None]:
        """The store at the end; one that stopped taking puts says why, and does not end cleanly."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(store)
            yield
            if store.message_store.why_not_writeable is None:
                return
            with pytest.raises(StoreError) as unclean:
                stack.close()
            self.refuse(mutant, unclean.value, root)

    def put(self, store: pyrocketstore.Store) -> dict[int, bytes]:
        """Put some more; where they went."""
        put = {}
        for i in range(3):
            with contextlib.suppress(pyrocketstore.PutError):
                result = store.put("orders", b"new %d" % i, queue_id=i, keys=f"new{i}")
                put[result.phy_offset] = b"new %d" % i
        with contextlib.suppress(pyrocketstore.PutError):
            store.put_batch("events", [b"new", b"newer"])
        with contextlib.suppress(StoreError):
            assert [m.phy_offset for m in store.query("orders", "new1")] in ([*put][1:2], [])
        for phy_offset, body in put.items():
            message = store.get(phy_offset)
            assert message is not None and message.stored_body == body
        return put

    def compare_written(
        self, root: Path, mutant: Mutant, answers: Answers, put: dict[int, bytes], end: int
    ) -> None:
        whole = self.whole(root, end)
        in_log = mutant.place in ("log", "other")
        if in_log:
            damage = self.first_damage(root)
            whole = [p for p in whole if p.phy_offset + len(p.data) <= damage]
        missed = answers.miss(whole, queues=in_log, keys=in_log)
        assert not missed, missed[:5]
        queued = {phy for queue in answers.queues.values() for _, phy in queue}
        if in_log:
            assert put.keys() <= queued, "what was put is not found"

    def assert_kept(self, root: Path, whole_log: dict[str, bytes]) -> None:
        """Every whole record that the log had is still in a file."""
        files = [path for path in root.rglob("*") if path.is_file() and path.stat().st_size]
        pieces = [p.read_bytes() for p in files if {"commitlog", ".broken"} & set(p.parts)]
        everything = b"".join(pieces)
        for name, data in whole_log.items():
            for place in self.places:
                at = place.phy_offset - int(name)
                if 0 <= at < FILE_SIZE and data[at : at + len(place.data)] == place.data:
                    assert place.data in everything, f"the record at {place.phy_offset} was lost"


def halt(root: Path) -> None:
    """Make a cleanly closed store look killed."""
    (root / "abort").touch()
    (root / "checkpoint").write_bytes(bytes(4096))


# ---- ways to damage ------------------------------------------------------------------------------


def write_at(path: str, position: int, data: bytes) -> Damage:
    def damage(root: Path) -> None:
        with (root / path).open("r+b") as file:
            file.seek(position)
            file.write(data)

    return damage


def write_log(phy_offset: int, data: bytes) -> Damage:
    """Other bytes at a place in the log."""
    start = phy_offset - phy_offset % FILE_SIZE
    return write_at(f"commitlog/{start:020d}", phy_offset - start, data)


def both(*damages: Damage) -> Damage:
    def damage(root: Path) -> None:
        for one in damages:
            one(root)

    return damage


def content(path: str, data: bytes) -> Damage:
    return lambda root: (root / path).write_bytes(data) and None


def directory(path: str) -> Damage:
    def damage(root: Path) -> None:
        if (root / path).is_file():
            (root / path).unlink()
        (root / path).mkdir(parents=True, exist_ok=True)

    return damage


def loop(path: str) -> Damage:
    def damage(root: Path) -> None:
        if (root / path).is_dir():
            shutil.rmtree(root / path)
        (root / path).unlink(missing_ok=True)
        (root / path).symlink_to((root / path).name)

    return damage


def instead(path: str) -> Damage:
    """A file in the place of a directory."""

    def damage(root: Path) -> None:
        shutil.rmtree(root / path)
        (root / path).write_bytes(b"x")

    return damage


def sized(path: str, size: int) -> Damage:
    return lambda root: os.truncate(root / path, size)


def kinds_of(root: Path) -> dict[str, list[Path]]:
    """The store's files by what they are, as paths below the root."""

    def below(*patterns: str) -> list[Path]:
        found = (path for pattern in patterns for path in root.glob(pattern) if path.is_file())
        return sorted(path.relative_to(root) for path in found)

    return {
        "log": below("commitlog/*"),
        "queue": below("consumequeue/*/*/*"),
        "ext": below("consumequeue_ext/*/*/*"),
        "index": below("index/*"),
        "other": below("checkpoint", "config/*"),
    }


def random_bytes(rng: random.Random, path: Path, size: int, used: int) -> tuple[str, Damage]:
    """Flips, zeros or noise somewhere in the used part of a file."""
    at = rng.randrange(used)
    kind = rng.choice(("flip", "zeros", "noise", "ones", "number"))
    count = min(rng.choice((1, 2, 8, 20, 100, 512, 4096)), size - at)

    def damage(root: Path) -> None:
        data = bytearray((root / path).read_bytes())
        if kind == "flip":
            data[at] ^= 1 << (at % 8)
        elif kind == "number":
            width = min(size - at, 4)
            data[at : at + width] = struct.pack(">i", (-1, 2**31 - 1, -(2**31))[at % 3])[:width]
        else:
            fresh = {"zeros": bytes(count), "ones": b"\xff" * count, "noise": noise}[kind]
            data[at : at + count] = fresh
        (root / path).write_bytes(data)

    noise = rng.randbytes(count)
    return f"{kind} of {count} bytes at {at} of {path}", damage


def random_length(rng: random.Random, path: Path, size: int) -> tuple[str, Damage]:
    to = rng.choice(
        (0, 1, 7, 21, size // 2, size - 1, size + 1, size + 20, rng.randrange(2 * size))
    )

    def damage(root: Path) -> None:
        os.truncate(root / path, to)

    return f"{path} has {to} bytes instead of {size}", damage


def used_size(path: Path) -> int:
    return max(1, len(path.read_bytes().rstrip(b"\0")))


def random_mutant(rng: random.Random, root: Path, kind: str) -> Mutant | None:
    paths = kinds_of(root)[kind]
    if not paths:
        return None
    path = rng.choice(paths)
    size = (root / path).stat().st_size
    if rng.random() < 0.15:
        return Mutant(*_named(random_length(rng, path, size), kind))
    text, damage = random_bytes(rng, path, size, min(size, used_size(root / path)))
    return Mutant(text, kind, damage, kind != "log" and kind != "queue")


def _named(made: tuple[str, Damage], kind: str) -> tuple[str, str, Damage]:
    return made[0], kind, made[1]
