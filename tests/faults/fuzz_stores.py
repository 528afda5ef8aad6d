"""Whole-store mutants: the files of a small store that the engine made are damaged, and the store
is opened in every mode. Its answers are compared with those of fuzz_model.py, the plain reader."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import random
import shutil
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import pyrocketstore
from fuzz_bytes import (
    Field,
    change,
    change_bytes,
    change_field,
    change_order,
    record_fields,
    repair_record,
    set_number,
)
from fuzz_model import PlainStore, newer_than_4
from fuzz_records import Kernel, plain_body, plain_columns, same
from fuzz_tables import JSON_PARTS, damage_index
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.errors import (
    PutError,
    StoreCorruptionError,
    StoreError,
    StoreFormatError,
    StoreIOError,
)
from pyrocketstore.system.env import Env
from pyrocketstore.verify.dump import dump_lines, dump_store
from support import oracle
from support.deliveries import no_deliveries

GOLDEN = Path(__file__).parent.parent / "golden"
PLAIN: dict[str, Any] = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 7,
    "max_index_num": 60,
}
TINY: dict[str, Any] = {
    "mapped_file_size_commit_log": 1024,
    "mapped_file_size_consume_queue": 60,
    "max_hash_slot_num": 3,
    "max_index_num": 10,
}
LIGHT = {
    **PLAIN,
    "enable_lmq": True,
    "enable_multi_dispatch": True,
    "enable_consume_queue_ext": True,
    "mapped_file_size_consume_queue_ext": 250,
}
COLUMNS = ("topic", "queue_id", "queue_offset", "phy_offset", "size", "keys", "tags", "properties",
           "born_host", "msg_id", "stored_body", "store_timestamp", "tags_code")  # fmt: skip
#: Of ten mutants, so many are opened once more by the dump; the others are dumped while open.
DUMPS_THAT_OPEN = 3
QUERIES = (("orders", "all"), ("orders", "k3"), ("events", "k8"), ("orders", "none"))
MESSAGE_FIELDS = {"topic": "topic", "queue_id": "queue_id", "queue_offset": "queue_offset",
                  "decoded_commitlog_offset": "phy_offset", "store_size": "size", "flag": "flag",
                  "sys_flag": "sys_flag", "body_crc": "body_crc", "msg_id": "msg_id",
                  "reconsume_times": "reconsume_times", "store_timestamp": "store_timestamp",
                  "born_timestamp": "born_timestamp"}  # fmt: skip


@dataclasses.dataclass
class StoreMutant:
    """A mutant: the new content of each changed file; None: the file is missing."""

    text: str
    changes: dict[str, bytes | None]
    number: int
    #: True if only bytes changed that the engine checks on reading: it must not refuse the store.
    must_open: bool

    def __str__(self) -> str:
        sizes = {path: None if data is None else f"{len(data)} bytes, CRC {zlib.crc32(data):08x}"
                for path, data in self.changes.items()}  # fmt: skip
        return f"changed files: {sizes}"


class Clock:
    """A clock that stops until it is moved, so that each run makes the same store."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.env = Env()
        self.entry = ctypes.CFUNCTYPE(ctypes.c_int64)(lambda: self.now_ms)
        self.env.replace("now_ms", ctypes.cast(self.entry, ctypes.c_void_p).value or 0)


def fill(root: Path, settings: dict[str, Any], rng: random.Random, numbers: range) -> None:
    clock = Clock()
    with no_deliveries(), pyrocketstore.open(root, env=clock.env, **settings) as store:
        for i in numbers:
            store.wait_dispatched()
            clock.now_ms += 700
            topic, queue_id = ("orders", 0 if i % 5 else 1) if i % 4 else ("events", 0)
            body = rng.randbytes(rng.choice((0, 5, 60, 300)))
            born = "[2001:db8::1]:10000" if i % 6 == 0 else None
            if i % 10 == 9:
                store.put_batch(topic, [{"body": b"%d" % j, "keys": f"b{j}"} for j in range(3)])
            elif i % 13 == 5 or ("enable_lmq" in settings and i % 7 == 1):
                names = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "KEYS": f"k{i}"}
                if i % 13 == 5:
                    names = {"DELAY": "3", "KEYS": f"k{i}"}
                inner = pyrocketstore.MessageExtBrokerInner(topic, body, queue_id, properties=names)
                assert store.message_store.put_message(inner).status_code == 0
            else:
                keys = f"k{i} all" if i % 3 else None
                store.put(topic, body, queue_id=queue_id, tags=f"T{i % 3}", keys=keys,
                          born_host=born)  # fmt: skip


class StoreKernel(Kernel):
    """A store with the settings of the class."""

    settings: ClassVar[dict[str, Any]] = PLAIN
    numbers: ClassVar[range] = range(42)
    weight = 1

    def prepare(self) -> None:
        self.root = self.scratch / "store"
        self.build()
        self.files = {str(path.relative_to(self.root)): path.read_bytes()
                      for path in sorted(self.root.rglob("*")) if path.is_file()}  # fmt: skip
        plain = PlainStore(self.files, self.settings)
        self.extents: dict[str, list[tuple[int, int]]] = {}
        self.fields: dict[str, list[Field]] = {}
        for start, data in plain.log.items():
            path = f"commitlog/{start:020d}"
            found, verdict, end = oracle.scan_log(data, start)
            self.extents[path] = [(at, record.total_size or 0) for at, record in found]
            self.fields[path] = [field for at, size in self.extents[path][:40]
                                 for field in record_fields(data[at : at + size], at)]  # fmt: skip
            if verdict == "blank":
                self.fields[path] += [Field("blank size", end, 4), Field("blank", end + 4, 4)]
        self.kinds = {
            kind: [path for path in self.files if path.startswith(kind + "/")]
            for kind in ("commitlog", "consumequeue", "consumequeue_ext", "index")
        }
        keys = [key for row in plain.rows[-20:] for key in oracle.index_keys(row.record)]
        self.keys_to_query = (*QUERIES, *self.rng.sample(keys, min(2, len(keys))))
        self.refused = self.read_errors = self.written = self.exact = self.rows = 0

    def build(self) -> None:
        fill(self.root, self.settings, self.rng, self.numbers)

    def note(self) -> str:
        return (f"{self.name}: {self.refused} were refused, {self.written} were written to, "
                f"{self.exact} queues and {self.rows} messages were compared exactly, "
                f"{self.read_errors} reads ended in an error")  # fmt: skip

    # ---- making ----------------------------------------------------------------------------------

    def make(self, rng: random.Random) -> StoreMutant:
        files: dict[str, bytes | None] = dict(self.files)
        texts, must_open = [], True
        for _ in range(rng.choice((1, 1, 1, 2))):
            kind = rng.random()
            if kind < 0.34:
                texts.append(self.damage_log(rng, files))
            elif kind < 0.58:
                texts.append(self.damage_units(rng, files))
            elif kind < 0.68 and self.kinds["consumequeue_ext"]:
                texts.append(self.damage_ext(rng, files))
            elif kind < 0.84:
                texts.append(self.damage_index(rng, files))
                must_open = False
            elif kind < 0.90:
                texts.append(self.damage_small(rng, files))
                must_open &= "topics" not in texts[-1]
            else:
                texts.append(self.damage_names(rng, files))
                must_open = False
        if rng.random() < 0.4:
            files["abort"] = b""
            texts.append("killed")
            if rng.random() < 0.7:
                files["checkpoint"] = bytes(4096)
        changes = {path: data for path, data in files.items() if data != self.files.get(path)}
        for path in self.files:
            if path not in files:
                changes[path] = None
        return StoreMutant("; ".join(texts), changes, rng.randrange(10), must_open)

    def changed(self, files: dict[str, bytes | None], path: str, data: bytearray) -> None:
        """Change a file's content; the file keeps its length."""
        size = len(self.files[path])
        files[path] = bytes(data[:size].ljust(size, b"\0"))

    def damage_log(self, rng: random.Random, files: dict[str, bytes | None]) -> str:
        path = rng.choice(list(self.extents))
        data = bytearray(files.get(path) or b"")
        if not data or not self.extents[path]:
            return "nothing"
        kind = rng.random()
        used = sum(self.extents[path][-1]) + 8
        if kind < 0.6:
            text = change_field(rng, data, self.fields[path])
        elif kind < 0.8:
            header = data[:used]
            text = change_bytes(rng, header)
            data = header + data[used:] if len(header) == used else header
        else:
            text = change_order(rng, data, self.extents[path])
        at = rng.choice(self.extents[path])[0]
        if rng.random() < 0.5:
            text += repair_record(rng, data, at, int(path[-20:]) + at)
        self.changed(files, path, data)
        return f"{path}: {text}"

    def damage_units(self, rng: random.Random, files: dict[str, bytes | None]) -> str:
        path = rng.choice(self.kinds["consumequeue"])
        data = bytearray(files.get(path) or b"")
        used = len(data.rstrip(b"\0")) // 20 + 1
        if len(data) < 20 * used:
            return "nothing"
        at = 20 * rng.randrange(used)
        fields = [
            Field("phyOffset", at, 8),
            Field("size", at + 8, 4),
            Field("tagsCode", at + 12, 8),
        ]
        kind = rng.random()
        if kind < 0.5:
            text = change_field(rng, data, fields)
        elif kind < 0.7:
            log = rng.choice(list(self.extents))
            offset, size = rng.choice(self.extents[log] or [(0, 0)])
            offset += int(log[-20:])
            set_number(data, fields[0], offset)
            set_number(data, fields[1], size + rng.choice((0, 0, 0, 1, -1)))
            text = f"the unit at {at} names {offset}"
        elif kind < 0.85:
            text = change_bytes(rng, data)
        else:
            text = change_order(rng, data, [(20 * n, 20) for n in range(used)])
        self.changed(files, path, data)
        return f"{path}: {text}"

    def damage_ext(self, rng: random.Random, files: dict[str, bytes | None]) -> str:
        path = rng.choice(self.kinds["consumequeue_ext"])
        data = bytearray(files.get(path) or b"")
        extents = [(at, 20) for at in range(0, max(len(data) - 20, 1), 20)]
        at = rng.choice(extents[: len(data.rstrip(b"\0")) // 20 + 1])[0]
        fields = [Field("size", at, 2), Field("tagsCode", at + 2, 8), Field("time", at + 10, 8),
                  Field("bitMapSize", at + 18, 2)]  # fmt: skip
        text = change(rng, data, fields)
        self.changed(files, path, data)
        return f"{path}: {text}"

    def damage_index(self, rng: random.Random, files: dict[str, bytes | None]) -> str:
        path = rng.choice(self.kinds["index"])
        data = bytearray(files.get(path) or b"")
        slots, entries = self.settings["max_hash_slot_num"], self.settings["max_index_num"]
        if len(data) < 40 + 4 * slots + 20 * entries:
            return "nothing"
        text = damage_index(rng, data, slots, entries)
        self.changed(files, path, data)
        return f"{path}: {text}"

    def damage_small(self, rng: random.Random, files: dict[str, bytes | None]) -> str:
        path = rng.choice(("checkpoint", "config/topics.json"))
        data = bytearray(files.get(path) or b"")
        if path == "checkpoint":
            fields = [Field("timestamp", at, 8) for at in (0, 8, 16)]
            text = change(rng, data, fields, in_fields=0.8)
        else:
            at = data.find(b":", rng.randrange(len(data) or 1)) + 1
            part = rng.choice(JSON_PARTS)
            data[at : at + rng.choice((0, 1, 5))] = part
            text = f"{part[:20]!r} at {at}"
        files[path] = bytes(data)
        return f"{path}: {text}"

    def damage_names(self, rng: random.Random, files: dict[str, bytes | None]) -> str:
        """Change the length or the name of a file, or remove it."""
        path = rng.choice([path for path in files if path != "lock"])
        data = files[path] or b""
        folder, _, name = path.rpartition("/")
        kind = rng.randrange(5)
        if kind == 0:
            size = rng.choice(
                (0, 1, 20, len(data) - 1, len(data) + 1, len(data) + 20, 2 * len(data))
            )
            files[path] = data[: max(0, size)].ljust(size, b"\0")
            return f"{path} has {size} bytes"
        if kind == 1:
            del files[path]
            return f"{path} is gone"
        other = rng.choice(("x", name + "0", name[:-1], name[:-1] + "1", "9" * 20, "0" * 20,
                            f"{4096 * rng.randrange(1, 9):020d}", "20260101000000000"))  # fmt: skip
        other = f"{folder}/{other}" if folder else other
        if kind == 2 or other in files or other.endswith("/"):
            return "nothing"
        files[other] = data
        if kind == 3:
            del files[path]
        return f"{path} is {'called' if kind == 3 else 'there too as'} {other}"

    def shrink(self, mutant: StoreMutant) -> list[StoreMutant]:
        """Return mutants without one change, or with half of a file's differing bytes restored."""
        smaller = []
        for path, data in mutant.changes.items():
            rest = {name: value for name, value in mutant.changes.items() if name != path}
            smaller.append(dataclasses.replace(mutant, changes=rest))
            old = self.files.get(path)
            if data is None or old is None or len(data) != len(old):
                continue
            differ = [i for i in range(len(old)) if old[i] != data[i]]
            for half in (differ[: len(differ) // 2], differ[len(differ) // 2 :]):
                if 0 < len(half) < len(differ):
                    restored = bytearray(data)
                    for i in half:
                        restored[i] = old[i]
                    smaller.append(
                        dataclasses.replace(
                            mutant, changes=mutant.changes | {path: bytes(restored)}
                        )
                    )
        return smaller

    def warm(self) -> None:
        """Open the store once, so that threads have their memory before it is limited."""
        with no_deliveries(), pyrocketstore.open(self.root, **self.settings) as store:
            store.put("orders", b"warm", keys="k")
        shutil.rmtree(self.root)
        self.write_files(self.files)

    # ---- checking --------------------------------------------------------------------------------

    def check(self, mutant: StoreMutant) -> None:
        now = {path: data for path, data in {**self.files, **mutant.changes}.items()
               if data is not None}  # fmt: skip
        try:
            self.write_files(mutant.changes)
            self.check_read_only(mutant, now)
            same(self.on_disk(), now, "a reader has written") if self.on_disk() != now else None
            if mutant.number == 0:
                self.check_written(now)
        finally:
            if mutant.number == 0:
                shutil.rmtree(self.root)
                self.write_files(self.files)
            else:
                self.write_files({path: self.files.get(path) for path in mutant.changes})

    def write_files(self, changes: Any) -> None:
        for path, data in changes.items():
            target = self.root / path
            if data is None:
                target.unlink(missing_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)

    def on_disk(self) -> dict[str, bytes]:
        found = {}
        cut = len(str(self.root)) + 1
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = f"{folder}/{name}"
                with open(path, "rb") as file:
                    found[path[cut:]] = file.read()
        return found

    def check_error(self, error: StoreError) -> None:
        """Require that an error names a file of this store and a position in it."""
        if isinstance(error, StoreCorruptionError | StoreIOError):
            assert str(self.root) in error.path, error
            assert isinstance(error.position, int), error
        else:
            assert isinstance(error, StoreFormatError), repr(error)
            assert str(self.root) in str(error) or "index" in str(error), error

    def check_read_only(self, mutant: StoreMutant, now: dict[str, bytes]) -> None:
        try:
            store = pyrocketstore.open(self.root, read_only=True, **self.settings)
        except StoreError as error:
            self.check_error(error)
            self.refused += 1
            assert not mutant.must_open or newer_than_4(now), f"refused: {error}"
            return
        plain = PlainStore(now, self.settings)
        with store:
            self.check_store(store, plain)
            if mutant.number >= DUMPS_THAT_OPEN:
                self.check_dump(dump_store(store.message_store), plain)
        if mutant.number < DUMPS_THAT_OPEN:
            config = MessageStoreConfig().at_root(self.root).replace(**self.settings)
            self.check_dump(dump_lines(self.root, config), plain)

    def check_store(self, store: pyrocketstore.Store, plain: PlainStore) -> None:
        plan = store.message_store.plan
        assert plan is not None
        same(plan.empty, not plain.log, "an empty log")
        if plan.empty:
            return
        same(plan.scan_from, plain.scan_from, "where the scan begins")
        same(store.message_store.get_max_phy_offset(), plain.end, "where the log ends")
        is_whole = True
        queues = plain.queues(plan.replay_from)
        for topic in store.topics():
            for queue_id in store.queues(topic):
                queue = queues.get((topic, queue_id))
                if queue is None or not queue.exact or topic.startswith("%LMQ%"):
                    self.check_messages(store, plain, topic, queue_id)
                else:
                    is_whole &= self.check_queue(store, plain, queue, topic, queue_id)
        self.check_offsets(store, plain)
        self.check_keys(store, plain)
        report = store.verify()
        assert is_whole or not report.ok, "verify finds nothing, though a queue cannot be read"
        assert report.ok or report.advice, f"verify has no advice on {report.problems[:3]}"

    def check_messages(
        self, store: pyrocketstore.Store, plain: PlainStore, topic: str, queue_id: int
    ) -> None:
        """Require that each message read is the record at its physical offset."""
        try:
            for message in store.read(topic, queue_id):
                record = plain.record_at(message.phy_offset)
                assert record is not None, f"no record at {message.phy_offset}"
                same(message.record, plain.bytes_at(message.phy_offset, message.size), "record")
        except StoreError as error:
            self.check_error(error)

    def check_queue(
        self, store: pyrocketstore.Store, plain: PlainStore, queue: Any, topic: str, queue_id: int
    ) -> bool:
        """Compare a queue by objects and by columns; return True if all of it can be read."""
        self.exact += 1
        where = f"{topic}/{queue_id}"
        same(store.max_offset(topic, queue_id), queue.end, f"end of {where}")
        low = min(queue.first_readable(min(plain.log)), queue.end)
        same(store.min_offset(topic, queue_id), low, f"begin of {where}")
        wanted, lost = plain.messages(queue, topic, queue_id)
        reader = store.read(topic, queue_id, on_corrupt="skip")
        found = list(reader)
        same([m.phy_offset for m in found], [row.phy_offset for row in wanted], f"{where} read")
        for message, row in zip(found, wanted, strict=True):
            size = row.record.total_size or 0
            same(message.record, plain.bytes_at(row.phy_offset, size), f"{where} record")
        skipped = [n for part in reader.skipped.ranges for n in range(part.start, part.stop)]
        same(skipped, lost, f"{where} skipped")
        same(reader.skipped.count, len(lost), f"{where} skipped")
        self.check_errors(store, topic, queue_id, found, lost)
        if lost:
            self.read_errors += 1
        self.rows += len(found)
        self.check_columns(store, topic, queue_id, low, wanted, lost)
        return not lost

    def check_errors(
        self, store: pyrocketstore.Store, topic: str, queue_id: int, found: list[Any],
        lost: list[int],
    ) -> None:  # fmt: skip
        """Compare a queue with an error for each unreadable message, or for each missing file."""
        where = f"{topic}/{queue_id}"
        reader = store.read(topic, queue_id)
        given, errors = [], 0
        while True:
            try:
                given.append(next(reader))
            except StopIteration:
                break
            except StoreError as failure:
                self.check_error(failure)
                errors += 1
        same(given, found, f"{where} behind errors")
        same(errors > 0, bool(lost), f"an error in {where}")
        assert errors <= len(lost), f"{errors} errors in {where}"

    def check_columns(
        self, store: pyrocketstore.Store, topic: str, queue_id: int, low: int, wanted: list[Any],
        lost: list[int],
    ) -> None:  # fmt: skip
        options = {"columns": COLUMNS, "max_bytes": 1 << 40}
        try:
            store.read_batch(topic, queue_id, start=low, **options)
            assert not lost, "columns of what cannot be read"
        except StoreError as error:
            self.check_error(error)
            assert lost, f"columns: {error}"
        batch = store.read_batch(topic, queue_id, start=low, on_corrupt="skip", **options)
        same(int(batch.schema.metadata[b"skipped_count"]), len(lost), f"{topic}/{queue_id} columns")
        plain = [plain_columns(row.record) for row in wanted]
        for name in COLUMNS:
            same(batch.column(name).to_pylist(), [row[name] for row in plain], f"column {name}")

    def check_offsets(self, store: pyrocketstore.Store, plain: PlainStore) -> None:
        """Get messages by physical offset: of former records, of current ones, and beside them."""
        offsets = {
            int(path[-20:]) + at for path, rows in self.extents.items() for at, _ in rows[:12]
        }
        offsets |= {row.phy_offset for row in plain.rows[-12:]} | {plain.end, plain.end - 4, 1}
        for phy_offset in sorted(offsets):
            record = plain.record_at(phy_offset)
            message = store.get(phy_offset)
            same(message is not None, record is not None, f"a message at {phy_offset}")
            if message is not None and record is not None:
                same(message.record, plain.bytes_at(phy_offset, record.total_size or 0), "record")
                body = plain_body(record)
                assert body is None or message.body == body

    def check_keys(self, store: pyrocketstore.Store, plain: PlainStore) -> None:
        service = store.message_store.index_service
        untouched = all(file.mode == "read" for file in service.files)
        continued = [file.name for file in service.files if file.is_limited]
        for topic, key in self.keys_to_query:
            for max_num in (3, 64):
                try:
                    found = store.query(topic, key, max_num=max_num)
                except StoreError as error:
                    self.check_error(error)
                    assert service.geometry_error is not None, error
                    continue
                offsets = [message.phy_offset for message in found]
                names = [file.name for file in service.files]
                indexed = []
                if untouched:
                    indexed = plain.query(names, topic, key, max_num, continued)
                if untouched and store._key_search.gaps is None:
                    same(offsets, indexed, f"query {key}")
                elif max_num > len(offsets):  # the log has more than the index covers
                    assert set(indexed) <= set(offsets), f"query {key}: {indexed}, not {offsets}"
                for message in found:
                    record = plain.record_at(message.phy_offset)
                    assert record is not None and plain.is_wanted(record, topic, key)
                    same(message.record, plain.bytes_at(message.phy_offset, message.size), "record")
                many = store.query_many(topic, [key], max_num=max_num)
                same(np.asarray(many.phy_offset).tolist(), offsets, f"query_many {key}")

    def check_dump(self, lines: Iterable[str], plain: PlainStore) -> None:
        try:
            for text in lines:
                line = json.loads(text)
                if "message" in line:
                    self.check_line(line["message"], plain)
                elif "undecodable" in line:
                    at, size = line["undecodable"]["phy_offset"], line["undecodable"]["size"]
                    verdict, own = oracle.check_record(plain.bytes_at(at, size), -1, False)
                    assert (verdict, own) != ("ok", size), f"{at} can be decoded"
                elif "store" in line:
                    same(line["store"]["max_phy_offset"], plain.end, "dump")
        except StoreError as error:
            self.check_error(error)

    def check_line(self, line: dict[str, Any], plain: PlainStore) -> None:
        at = line["phy_offset"]
        record = oracle.decode_record(plain.bytes_at(at, line["store_size"]))
        columns = plain_columns(record)
        for name, column in MESSAGE_FIELDS.items():
            same(line[name], columns[column], f"dump's {name}")
        same(line["properties"], record.properties_map(), "dump's properties")

    def check_written(self, now: dict[str, bytes]) -> None:
        """Open for writing, put, close and open again: records before the log's end stay.

        Delayed messages are due, and are not delivered: what is put is known.
        """
        with no_deliveries():
            self._check_written(now)

    def _check_written(self, now: dict[str, bytes]) -> None:
        self.written += 1
        plain = PlainStore(now, self.settings)
        try:
            with pyrocketstore.open(self.root, **self.settings) as store:
                end = store.message_store.get_max_phy_offset()
                same(end, plain.end, "where the log ends")
                put = {}
                for i in range(3):
                    try:
                        put[store.put("orders", b"new", queue_id=i, keys="new").phy_offset] = i
                    except PutError as error:
                        assert str(error)
                closed_at = store.message_store.get_max_phy_offset()
        except StoreError as error:
            self.check_error(error)
            return
        for start, data in plain.log.items():
            if start < end:
                kept = (self.root / f"commitlog/{start:020d}").read_bytes()
                size = min(self.settings["mapped_file_size_commit_log"], end - start)
                assert kept[:size] == data[:size], f"{start} was changed before the log's end"
        # A clean opening may find damage that the previous one did not read: the log ends there,
        # unless that one came after a kill, has noted where it began, and records follow.
        again = PlainStore(self.on_disk(), self.settings)
        ends = {again.end} if plain.clean else {again.end, closed_at}
        try:
            with pyrocketstore.open(self.root, **self.settings) as store:
                end = store.message_store.get_max_phy_offset()
                assert end in ends, f"where it ends then: {end}, but {ends} by the plain reader"
                for phy_offset, queue_id in put.items():
                    message = store.get(phy_offset)
                    same(message is not None, phy_offset < end, f"what was put, {phy_offset}")
                    assert message is None or message.queue_id == queue_id
                store.verify()
        except StoreError as error:
            self.check_error(error)


class PlainKernel(StoreKernel):
    name = "store-plain"
    weight = 12


class LightKernel(StoreKernel):
    name = "store-light"
    settings = LIGHT
    weight = 6


class TinyKernel(StoreKernel):
    """A store so small that a million mutants take hours, yet with three log files."""

    name = "tiny-plain"
    settings: ClassVar[dict[str, Any]] = {**PLAIN, **TINY}
    numbers = range(4, 11)
    weight = 2


class TinyLightKernel(StoreKernel):
    name = "tiny-light"
    settings: ClassVar[dict[str, Any]] = {
        **LIGHT, **TINY, "mapped_file_size_consume_queue_ext": 120
    }  # fmt: skip
    numbers = range(4, 10)


class GoldenKernel(StoreKernel):
    """A store written by RocketMQ 4.9.3."""

    name = "store-golden"
    golden = "torn"
    settings: ClassVar[dict[str, Any]] = {
        "mapped_file_size_commit_log": 262_144,
        "mapped_file_size_consume_queue": 2000,
        "max_hash_slot_num": 1000,
        "max_index_num": 3000,
    }

    def build(self) -> None:
        with tarfile.open(GOLDEN / f"{self.golden}.tar.xz") as archive:
            archive.extractall(self.scratch, filter="data")
        (self.scratch / self.golden).rename(self.root)


KERNELS: tuple[type[StoreKernel], ...] = (PlainKernel, LightKernel, GoldenKernel)
TINY_KERNELS: tuple[type[StoreKernel], ...] = (TinyKernel, TinyLightKernel)
