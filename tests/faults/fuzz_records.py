"""Kernels: mutated records, logs, properties and batches for the compiled decoders.

A kernel makes one mutant from a random.Random (`make`) and compares every decoder of its format
with the plain readers of tests/support/oracle.py (`check`). A mutant takes tens to hundreds of
microseconds.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import random
import struct
import zlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fuzz_bytes import (
    Field,
    change,
    change_bytes,
    changes,
    random_record,
    random_text,
    record_fields,
    repair_record,
)
from pyrocketstore.columns._decode import (
    COLUMNS,
    PROPERTIES_MAP,
    check_records,
    decode_records,
    properties_maps,
    tags_codes,
)
from pyrocketstore.columns._record_walk import RecordWalk
from pyrocketstore.commit_log._chunk_scan import LogScanner
from pyrocketstore.commit_log._scan import (
    FileWindow,
    find_valid_record,
    scan_file,
    status_name,
    walk_records,
)
from pyrocketstore.errors import StoreCorruptionError, StoreError
from pyrocketstore.record._message import (
    decode_message_id,
    decode_record,
    encode_batch,
    encode_message,
)
from pyrocketstore.record._record import (
    check_message,
    find_properties,
    has_torn_properties,
    java_int,
)
from pyrocketstore.record._text import (
    java_hash,
    properties_to_string,
    put_properties,
    string_to_properties,
)
from pyrocketstore.record.message import MessageExtBatch, MessageExtBrokerInner, MessageRefused
from pyrocketstore.system.env import Env
from support import oracle

SEED_RECORDS = 60
SHRINK_STEPS = 150
DELAYS = dict(enumerate(oracle.DEFAULT_DELAYS_MS, 1))
STATUS = ("ok", "blank", "end", "torn", "bad_magic", "bad_crc", "bad_size", "bad_offset")
#: Reason of an error -> the plain reader's verdict.
VERDICTS = {status_name(i): name for i, name in enumerate(STATUS)}


@dataclasses.dataclass
class Bytes:
    """A mutant: a text about its changes, its bytes, and the arguments of the calls."""

    text: str
    data: bytes
    arguments: tuple[Any, ...] = ()


class Kernel:
    """One format. `scratch` is a directory that no other kernel uses."""

    name: ClassVar[str]
    #: Relative frequency of its mutants.
    weight: ClassVar[int] = 30

    def __init__(self, seed: str, scratch: Path) -> None:
        self.rng = random.Random(f"{self.name} {seed}")
        self.scratch = scratch
        self.env = Env()
        self.prepare()

    def prepare(self) -> None:
        """Make the valid data that mutants are made from."""

    def make(self, rng: random.Random) -> Bytes:
        """Make one mutant."""
        raise NotImplementedError

    def check(self, mutant: Bytes) -> None:
        """Raise AssertionError if a decoder and the plain reader disagree."""
        raise NotImplementedError

    def shrink(self, mutant: Bytes) -> list[Bytes]:
        """Return smaller or simpler mutants that may fail in the same way."""
        data = mutant.data
        step = len(data) // 2
        smaller = []
        while step > 0:
            for at in range(0, len(data), step):
                rest = data[at + step :]
                smaller.append(dataclasses.replace(mutant, data=data[:at] + rest))
                if any(data[at : at + step]):
                    zeros = bytes(len(data[at : at + step]))
                    smaller.append(dataclasses.replace(mutant, data=data[:at] + zeros + rest))
            step //= 2
        return smaller[:SHRINK_STEPS]


def same(ours: object, theirs: object, what: str) -> None:
    assert ours == theirs, f"{what}: {ours!r}, but {theirs!r} by the plain reader"


# ---- one record ----------------------------------------------------------------------------------


def host_text(raw: bytes) -> str:
    """Return a host in the engine's text form."""
    port = int.from_bytes(raw[-4:], "big", signed=True)
    raw = plain_host(raw)
    if len(raw) == 20:
        return f"[{ipaddress.IPv6Address(raw[:16]).compressed}]:{port}"
    return ".".join(map(str, raw[:4])) + f":{port}"


def plain_host(raw: bytes) -> bytes:
    """Return an IPv4-mapped address as IPv4, as Java's InetAddress does."""
    mapped = len(raw) == 20 and raw[:12] == bytes(10) + b"\xff\xff"
    return raw[12:] if mapped else raw


def plain_body(record: oracle.Record) -> bytes | None:
    """Return the body that a reader gets; None if it does not inflate."""
    if not record.sys_flag & oracle.COMPRESSED or not record.body:
        return record.body
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(record.body)
    except zlib.error:
        return None
    return body if inflater.eof else None


def plain_columns(record: oracle.Record) -> dict[str, Any]:
    """Return every column of a record except `body`."""
    properties = record.properties_map()
    tags = properties.get("TAGS")
    return {
        "topic": oracle.java_text(record.topic),
        "tags": tags,
        "keys": properties.get("KEYS"),
        "uniq_key": properties.get("UNIQ_KEY"),
        "properties": oracle.java_text(record.properties),
        PROPERTIES_MAP: properties,
        "born_host": host_text(record.born_host),
        "store_host": host_text(record.store_host),
        "msg_id": oracle.message_id(plain_host(record.store_host), record.phy_offset),
        "stored_body": record.body,
        "tags_code": oracle.java_hash(tags) if tags else 0,
        "size": record.total_size,
        "body_crc": record.crc,
        **{name: getattr(record, name) for name in (
            "queue_id", "queue_offset", "phy_offset", "flag", "sys_flag", "reconsume_times",
            "born_timestamp", "store_timestamp", "prepared_transaction_offset")},
    }  # fmt: skip


FEW_COLUMNS = ("phy_offset", "topic", "body")
WITHOUT_BODY = (*(name for name in COLUMNS if name != "body"), PROPERTIES_MAP)


def check_columns(data: bytes, rows: list[tuple[int, int, int]], check_crc: bool) -> None:
    """Compare decode_records with the plain reader; rows: (position, bytes, phy_offset)."""
    verdicts = [
        oracle.check_record(data[at : at + size], phy, check_crc)[0] for at, size, phy in rows
    ]
    positions = np.array([at for at, _, _ in rows], np.int64)
    sizes = np.array([size for _, size, _ in rows], np.int32)
    offsets = np.array([phy for _, _, phy in rows], np.int64)
    names = (COLUMNS, WITHOUT_BODY, FEW_COLUMNS)[len(data) % 3]
    given = None if set(offsets.tolist()) == {-1} else offsets
    found = check_records(data, positions, sizes, phy_offsets=given, check_crc=check_crc)
    same([STATUS[status] for status in found], verdicts, "check_records")
    try:
        columns = decode_records(
            data, positions, sizes, names, phy_offsets=given, check_crc=check_crc, path="p"
        )
    except StoreCorruptionError as error:
        assert error.path == "p" and error.position in positions.tolist()
        bad = [i for i, verdict in enumerate(verdicts) if verdict != "ok"]
        if bad:
            same(error.position, rows[bad[0]][0], "position of the first bad record")
            same(VERDICTS[error.reason], verdicts[bad[0]], "reason")
            return
        records = [oracle.decode_record(data[at : at + record_size(data, at)])
                   for at, _, _ in rows]  # fmt: skip
        bodies = [plain_body(record) for record in records]
        assert "body" in names and None in bodies, error
        columns = decode_records(data, positions, sizes, ["body"], on_bad_body="null")
        same(columns["body"].to_list(), bodies, "bodies, absent where they do not inflate")
        return
    assert set(verdicts) <= {"ok"}, verdicts
    for row, (at, _, _) in enumerate(rows):
        record = oracle.decode_record(data[at : at + record_size(data, at)])
        for name, value in plain_columns(record).items():
            if name in columns:
                same(columns[name][row], value, f"column {name}")
        if "body" in names:
            same(columns["body"][row], plain_body(record), "column body")


def record_size(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big", signed=True)


def check_message_object(data: bytes, record: oracle.Record) -> None:
    """Compare every attribute of a decoded message."""
    message = decode_record(data, path="p")
    for name, value in plain_columns(record).items():
        attribute = {"properties": "properties_string", PROPERTIES_MAP: "properties"}.get(
            name, name
        )
        same(getattr(message, attribute), value, name)
    same(message.record, data[: record.total_size], "record")
    same(message.properties, record.properties_map(), "properties")
    same(message.born_host_bytes, record.born_host, "born_host_bytes")
    body = plain_body(record)
    try:
        same(message.body, body, "body")
    except StoreCorruptionError as error:
        assert body is None and error.path, error


class RecordKernel(Kernel):
    """One record: check, decode to an object, decode to columns."""

    name = "record"

    def prepare(self) -> None:
        self.seeds = []
        for i in range(SEED_RECORDS):
            data = random_record(self.rng, 1000 + i)
            self.seeds.append((data, record_fields(data), 1000 + i))

    def make(self, rng: random.Random) -> Bytes:
        valid, fields, phy_offset = rng.choice(self.seeds)
        data = bytearray(valid)
        texts = changes(rng, (1, 1, 1, 2, 3), data, fields)
        texts.append(repair_record(rng, data, 0, phy_offset))
        if rng.random() < 0.3:
            data[:4] = len(data).to_bytes(4, "big")
        elif rng.random() < 0.3:
            data += bytes(rng.randrange(100))
        phy = rng.choice((phy_offset, phy_offset, -1))
        return Bytes("; ".join(texts), bytes(data), (phy, rng.random() < 0.7))

    def check(self, mutant: Bytes) -> None:
        data = mutant.data
        phy, check_crc = mutant.arguments
        verdict, size = oracle.check_record(data, phy, check_crc)
        same(check_message(data, phy, check_crc=check_crc), (verdict, size), "check_message")
        whole = oracle.check_record(data, -1, False)[0] == "ok"
        record = oracle.decode_record(data[:size]) if whole else None
        torn = record is not None and record.properties.endswith(b"\0")
        same(has_torn_properties(data), torn, "torn properties")
        try:
            decode_record(data, phy, check_crc=check_crc, path="p")
            same("ok", verdict, "decode")
        except StoreCorruptionError as error:
            same(VERDICTS[error.reason], verdict, "decode")
            assert error.path == "p"
        check_columns(data, [(0, len(data), phy)], check_crc)
        if record is not None:
            check_message_object(data, record)


# ---- a file of the log ---------------------------------------------------------------------------


def entry_header(phy_offset: int, size: int) -> bytes:
    """Return the header of a DLedger entry at a physical offset, with a record of `size` bytes."""
    whole = oracle.ENTRY_HEADER + size
    return struct.pack(">iiqqqiiii", 1, whole, 7, 3, phy_offset, 0, 0, 0, size)


def entry_fields(at: int) -> list[Field]:
    rows = [("entry magic", 0, 4), ("entry size", 4, 4), ("entry position", 24, 8),
            ("entry body size", 44, 4)]  # fmt: skip
    return [Field(name, at + position, width) for name, position, width in rows]


class LogKernel(Kernel):
    """A file of several records, some in DLedger entries: every kind of scan."""

    name = "log"
    BASE = 3 << 20

    def prepare(self) -> None:
        self.path = str(self.scratch / "log")
        self.scanner = LogScanner(self.env, DELAYS, True)
        self.walk = RecordWalk(DELAYS, 1 << 20)
        self.window: FileWindow | None = None
        self.seeds = []
        for _ in range(80):
            data, extents, fields = b"", [], []
            has_entries = self.rng.random() < 0.3
            for _ in range(self.rng.choice((1, 2, 4, 6))):
                begin = len(data)
                if has_entries:
                    record = random_record(self.rng, self.BASE + begin + oracle.ENTRY_HEADER)
                    data += entry_header(self.BASE + begin, len(record))
                    fields += entry_fields(begin)
                else:
                    record = random_record(self.rng, self.BASE + begin)
                fields += record_fields(record, len(data))
                data += record
                extents.append((begin, len(data) - begin))
            if has_entries and self.rng.random() < 0.5:
                size = self.rng.choice((8, 50))
                data += struct.pack(">ii", -1, size) + bytes(size - 8)
                fields += [Field("end size", len(data) - size + 4, 4)]
            elif self.rng.random() < 0.5:
                data += oracle.blank(self.rng.choice((8, 50)))
                fields += [Field("blank size", len(data) - 8, 4), Field("blank", len(data) - 4, 4)]
            data += self.rng.choice((b"", bytes(3), bytes(100), b"\xda" * 4, b"\xda" + bytes(3)))
            self.seeds.append((data, extents, fields, oracle.ENTRY_HEADER if has_entries else 0))

    def make(self, rng: random.Random) -> Bytes:
        valid, extents, fields, header = rng.choice(self.seeds)
        data = bytearray(valid)
        texts = changes(rng, (0, 1, 1, 2), data, fields, extents, in_fields=0.5, in_bytes=0.8)
        at = rng.choice(extents)[0]
        texts.append(repair_record(rng, data, at + header, self.BASE + at + header))
        position = rng.choice((0, 0, at, rng.randrange(len(data) + 1)))
        stop = rng.choice((len(data), len(data), len(data) + 40, rng.randrange(len(data) + 1)))
        until = rng.choice((stop, rng.randrange(len(data) + 1)))
        return Bytes("; ".join(texts), bytes(data), (position, until, stop, rng.random() < 0.7))

    def check(self, mutant: Bytes) -> None:
        data = mutant.data
        position, until, stop, check_crc = mutant.arguments
        with open(self.path, "wb") as file:
            file.write(data)
        seen = data[: max(0, stop)]
        rows, verdict, end = self.plain_scan(seen, position, stop, check_crc)
        status, reached, count, last = scan_file(
            self.env, self.path, self.BASE, position, stop, check_crc
        )
        same((STATUS[status], reached, count),
             (verdict, end, len(rows)), "scan_file")  # fmt: skip
        same(last, rows[-1][1].store_timestamp if rows else 0, "last store time")
        for crc in (False, True):
            found = find_valid_record(self.env, self.path, self.BASE, position, stop, check_crc=crc)
            same(found, self.plain_find(seen, position, stop, crc), f"find_valid_record {crc}")
        self.check_memory(data, position, until, stop, check_crc)
        self.check_chunk(seen, position, until, stop)
        self.check_walk(seen, position, stop)

    def plain_scan(
        self, data: bytes, position: int, stop: int, check_crc: bool, end: int | None = None
    ) -> tuple[list[tuple[int, oracle.Record]], str, int]:
        """Return the records from a position on, and the verdict and position of the end. A record
        that continues after `end`, the end of the file, has a bad size."""
        rows = []
        file_end = min(len(data), stop) if end is None else end
        while True:
            if position >= min(len(data), stop):
                return rows, "end", position
            # A slice of the record alone avoids a copy of the rest of a long log.
            seen = data[position : position + max(8, record_size(data, position))]
            verdict, size = oracle.check_record(seen, self.BASE + position, check_crc)
            at = position
            if verdict == "bad_magic":
                verdict, at, size = self.plain_entry(data, position, file_end, check_crc)
                if at >= min(len(data), stop) and at > position:
                    return rows, "end", at
            if end is not None and verdict in ("ok", "torn") and size > end - at:
                verdict = "bad_size"
            if verdict != "ok":
                return rows, verdict, position
            rows.append((at, oracle.decode_record(data[at : at + size])))
            position = at + size

    def plain_entry(
        self, data: bytes, position: int, end: int, check_crc: bool
    ) -> tuple[str, int, int]:
        """Return the verdict on bytes that are no record, and where the record of the DLedger entry
        there begins and its size."""
        entry = data[position : position + oracle.ENTRY_HEADER]
        verdict = oracle.check_entry(entry, self.BASE + position, end - position)
        if verdict != "entry":
            return verdict, position, 0
        at = position + oracle.ENTRY_HEADER
        wanted = record_size(entry, 44)
        verdict, size = oracle.check_record(data[at:], self.BASE + at, check_crc)
        if verdict == "blank":
            verdict = "bad_magic"
        elif verdict in ("ok", "torn") and size and size != wanted:
            verdict = "bad_size"
        return verdict, at, size

    def check_memory(
        self, data: bytes, position: int, until: int, stop: int, check_crc: bool
    ) -> None:
        """Check the walk and the search in memory; `stop` is the end of the file."""
        position = min(position, len(data))
        positions, sizes, reached, status = walk_records(
            data, position, until, self.BASE, end=stop, check_crc=check_crc
        )
        rows, verdict, end = self.plain_scan(data, position, min(until, stop), check_crc, stop)
        kept = [(at, record.total_size or 0) for at, record in rows]
        if verdict == "end" and end >= min(until, stop, len(data)):
            verdict = "ok"
        same(list(zip(positions.tolist(), sizes.tolist(), strict=True)), kept, "walk_records")
        same((reached, STATUS[status]), (end, verdict), "end of walk_records")

    def plain_find(self, data: bytes, position: int, end: int, check_crc: bool) -> int:
        """Return the position of the next record behind `position`; -1 for none. Without check_crc,
        the bytes behind a record may prove it as well as its CRC."""
        magic = (oracle.MESSAGE_MAGIC % 2**32).to_bytes(4, "big")
        at = data.find(magic, position + 4) - 4
        while at >= 0:
            size = record_size(data, at)
            whole = data[at : at + max(8, size)]
            if size <= end - at and oracle.check_record(whole, self.BASE + at, False)[0] == "ok":
                follows = data[at + size : at + size + 8]
                proven = at + size == end or len(follows) < 8 or follows == bytes(8)
                proven = proven or oracle.check_record(follows)[0] in ("blank", "torn", "bad_size")
                if proven and not check_crc:
                    return at
                if oracle.check_record(whole, -1, True)[0] == "ok":
                    return at
            at = data.find(magic, at + 5) - 4
        return -1

    def check_chunk(self, data: bytes, position: int, until: int, stop: int) -> None:
        """Check the scan that several threads share, from a record on and by search."""
        for search in (False, True):
            if search:
                stop = min(stop, len(data))  # the search does not find the end of a short file
            chunk = self.scanner.scan(self.path, self.BASE, position, until, stop, search=search)
            begin = self.plain_find(data, position, stop, True) if search else position
            if search and not 0 <= begin < until:
                same(chunk.begin, -1, "chunk without a record")
                continue
            same(chunk.begin, begin, "begin of the chunk")
            rows, verdict, end = self.plain_scan(data, begin, stop, True)
            kept = [row for row in rows if row[0] < until]
            ends = [at + (record.total_size or 0) for at, record in kept]
            same(chunk.count, len(kept), "records of the chunk")
            last = (ends or [begin])[-1]
            if last >= until:
                same(chunk.end, last, "end of the chunk")
            elif len(kept) < len(rows):
                # Only the header of its entry is before `until`.
                same(chunk.end, rows[len(kept)][0], "end of the chunk before a record of an entry")
            else:
                same(chunk.end, end, "end of the chunk")
                same(STATUS[chunk.status], verdict, "end of the log")
            if kept:
                found = [chunk.position(i) for i in range(len(kept) + 1)]
                same(found, [*(at for at, _ in kept), chunk.end], "positions of the chunk")
                _, _, phy_offset, size, *_ = chunk.rows()
                sizes = {self.BASE + at: record.total_size for at, record in kept}
                same([sizes[at] for at in phy_offset.tolist()], size.tolist(), "sizes of the chunk")
            same(chunk.queues.seen(), self.plain_queues(kept), "queues of the chunk")

    def plain_queues(self, rows: list[tuple[int, oracle.Record]]) -> dict[Any, Any]:
        """Return the scan's numbers of each queue. Two invalid topics may decode to one text."""
        found: dict[Any, list[int]] = {}
        for at, record in rows:
            if record.sys_flag & 0xC in (0, 8):
                key = record.topic, record.queue_id
                row = found.setdefault(key, [record.queue_offset, self.BASE + at, 0, 0])
                row[2] = (record.queue_offset + 1 + 2**63) % 2**64 - 2**63
                row[3] += 1
        return {(oracle.java_text(topic), queue_id): tuple(row)
                for (topic, queue_id), row in found.items()}  # fmt: skip

    def check_walk(self, data: bytes, position: int, stop: int) -> None:
        """Check the walk of verify: tags codes and hashes of keys."""
        if self.window is None:
            self.window = FileWindow(self.env, self.path)
        self.window.open(self.path)
        stop = min(stop, len(data))
        _, reached = self.walk.walk(self.window, self.path, self.BASE, position, stop)
        self.check_walked(data, position, stop, reached)
        before = min((position + stop) // 2, stop)  # of bytes that the window has already
        _, reached = self.walk.walk(self.window, self.path, self.BASE, position // 2, before)
        self.check_walked(data[: max(0, before)], position // 2, before, reached)
        self.window.close()

    def check_walked(self, data: bytes, position: int, stop: int, reached: int) -> None:
        rows, _, end = self.plain_scan(data, position, stop, True)
        same(reached, end, "end of the walk")
        same(self.walk.column("phy_offset").tolist(), [self.BASE + at for at, _ in rows], "walk")
        codes, hashes = [], []
        for _, record in rows:
            topic = oracle.java_text(record.topic)
            code = oracle.tags_code(topic, record.store_timestamp, record.properties_map())
            codes.append((code + 2**63) % 2**64 - 2**63)
            hashes += [oracle.index_key_hash(*key) for key in oracle.index_keys(record)]
        same(self.walk.column("tags_code").tolist(), codes, "tags codes")
        same(self.walk.column("key_hash").tolist(), hashes, "hashes of keys")


# ---- properties ----------------------------------------------------------------------------------

NUMBERS = (b"2147483647", b"-2147483648", b"2147483648", b"+0", b"12", b"-", b"\xe0\xa5\xa6",
           b"\xd9\xa3\xef\xbc\x99")  # fmt: skip
WATCHED = ("TAGS", "KEYS", "UNIQ_KEY", "DELAY", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET")
SAME_BUCKET = ("Aa", "BB", "AaAa", "BBBB", "AaBB", "BBAa", "AaAaAa", "BBBBBB", "AaBBAa", "BBAaBB",
               "AaAaBB", "BBBBAa", "k", "q", "TAGS", "KEYS", "é", "\U0001f600")  # fmt: skip


class TextKernel(Kernel):
    """A properties text: its scan, its map, and Java's numbers, hashes and order."""

    name = "text"

    def make(self, rng: random.Random) -> Bytes:
        data = bytearray(random_text(rng))
        texts = [change_bytes(rng, data) for _ in range(rng.choice((0, 1, 1, 3)))]
        names = [
            rng.choice(SAME_BUCKET) * rng.choice((1, 1, 1, 2)) for _ in range(rng.randrange(22))
        ]
        if rng.random() < 0.3:
            names += [f"n{i}" for i in range(rng.randrange(60))]
        values = tuple((name, rng.choice(("", "v", "ö", None))) for name in names)
        fixed = rng.choice((None, "t")), rng.choice((None, "a b"))
        number = bytearray(rng.choice(NUMBERS))
        if rng.random() < 0.5:
            change_bytes(rng, number)
        return Bytes("; ".join(texts), bytes(data), (values, fixed, bytes(number)))

    def check(self, mutant: Bytes) -> None:
        data = mutant.data
        values, (tags, keys), number = mutant.arguments
        text = oracle.java_text(data)
        properties = oracle.string_to_properties(text)
        same(string_to_properties(text), properties, "string_to_properties")
        spans = find_properties(data)
        found = {name: oracle.java_text(data[at : at + size])
                 for name, (at, size) in spans.items()}  # fmt: skip
        same(found, {k: v for k, v in properties.items() if k in WATCHED}, "find_properties")
        extent = np.zeros(1, np.int64), np.array([len(data)], np.int32)
        found = list(properties_maps(data, *extent)[0].items())
        same(found, list(properties.items()), "properties_maps")
        same(tags_codes(data, *extent)[0], oracle.java_hash(data), "tags_codes")
        same(java_hash(data), oracle.java_hash(data), "java_hash")
        same(java_hash(text), oracle.java_hash(text), "java_hash of str")
        same(java_int(number), oracle.java_int(oracle.java_text(number)), "java_int")
        pairs = dict(values)
        text = oracle.properties_to_string(pairs)
        same(properties_to_string(pairs).encode(), oracle.ended(text.encode()), "HashMap's order")
        ordered: dict[str, str | None] = {}
        if tags is not None:
            ordered["TAGS"] = tags
        if keys is not None:
            ordered["KEYS"] = keys
        text = oracle.properties_to_string(ordered | pairs)
        same(put_properties(tags, keys, pairs), oracle.ended(text.encode()), "put_properties")


# ---- what a client sends -------------------------------------------------------------------------


class BatchKernel(Kernel):
    """The body of a client's batch, and offset message ids."""

    name = "batch"

    def prepare(self) -> None:
        self.seeds = []
        for _ in range(20):
            data, fields, extents = b"", [], []
            for _ in range(self.rng.randrange(1, 5)):
                body, text = self.rng.randbytes(self.rng.choice((0, 5, 40))), random_text(self.rng)
                item = oracle.encode_messages([(self.rng.randrange(9), body, text)])
                at = len(data)
                extents.append((at, len(item)))
                fields += [Field("totalSize", at, 4), Field("flag", at + 12, 4),
                           Field("bodyLength", at + 16, 4),
                           Field("propertiesLength", at + 20 + len(body), 2)]  # fmt: skip
                data += item
            self.seeds.append((data, fields, extents))

    def make(self, rng: random.Random) -> Bytes:
        valid, fields, extents = rng.choice(self.seeds)
        data = bytearray(valid)
        text = change(rng, data, fields, extents, in_fields=0.5, in_bytes=0.75)
        shared = rng.choice(({}, {"S": "v"}, {"S": "v", "T": "w" * rng.choice((1, 32600))}))
        host = bytearray(rng.choice(("7F00000100002A9F0000000000000001", "0" * 56)).encode())
        if rng.random() < 0.5:
            change_bytes(rng, host)
        return Bytes(text, bytes(data), (tuple(shared.items()), bytes(host)))

    def check(self, mutant: Bytes) -> None:
        shared, host = mutant.arguments
        text = oracle.properties_to_string(dict(shared)).encode()
        common = oracle.Record(properties=text, born_host=oracle.host("10.0.0.1", 1),
                               store_host=oracle.host("10.0.0.2", 2))  # fmt: skip
        batch = MessageExtBatch("T", mutant.data, properties=dict(shared))
        batch.born_host, batch.store_host = common.born_host, common.store_host
        try:
            items = list(oracle.decode_messages(mutant.data))
            records = [
                dataclasses.replace(record, properties=oracle.ended(record.properties))
                for record in oracle.encode_batch(common, mutant.data)
            ]
            valid = all(len(record.properties) <= 32767 for record in records)
        except ValueError:
            items, valid = [], False
        try:
            data, count = encode_batch(batch)
        except MessageRefused as error:
            assert error.status == "MESSAGE_ILLEGAL" and not valid, error
        else:
            assert valid
            wanted = b"".join(oracle.encode_record(record) for record in records)
            same((data, count), (wanted, len(records)), "encode_batch")
        for flag, body, _ in items[:1]:
            inner = MessageExtBrokerInner("T", body, flag=flag)
            inner.born_host, inner.store_host = common.born_host, common.store_host
            record = dataclasses.replace(common, body=body, flag=flag, properties=b"")
            same(encode_message(inner), oracle.encode_record(record), "encode_message")
        self.check_id(host.decode("latin-1"))

    def check_id(self, text: str) -> None:
        """An offset message id from an untrusted source."""
        digits = set("0123456789abcdefABCDEF")
        valid = len(text) in (32, 56) and set(text) <= digits
        try:
            host, phy_offset = decode_message_id(text)
        except StoreError:
            assert not valid
        else:
            raw = bytes.fromhex(text)
            offset = int.from_bytes(raw[-8:], "big", signed=True)
            same((host, phy_offset), (host_text(raw[:-8]), offset), "message id")
            assert valid


KERNELS: tuple[type[Kernel], ...] = (RecordKernel, LogKernel, TextKernel, BatchKernel)
