"""Kernels: mutated queue units, ext units, index files, checkpoints and topics.json. The results of
each decoder are compared with those of the plain readers."""

from __future__ import annotations

import json
import os
import random
import re
import struct
import zlib

import numpy as np

from fuzz_bytes import (
    Field,
    boundary,
    change,
    change_bytes,
    change_field,
    changes,
    number_at,
    set_number,
)
from fuzz_records import Bytes, Kernel, same
from pyrocketstore.columns._record_walk import read_ext_units
from pyrocketstore.consume_queue._units import (
    decode_units,
    encode_units,
    find_last_unit,
    find_min_unit,
    read_units,
    scan_ext_units,
    scan_units,
    truncate_units,
    unit_at,
)
from pyrocketstore.consume_queue.units import differing_units
from pyrocketstore.errors import StoreCorruptionError, StoreError
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.index._entries import ChainWalk, hashes_of_keys, key_hash_of
from pyrocketstore.index._file import IndexFile
from pyrocketstore.message_store.topic_config import TopicConfigFile
from support import oracle
from support.oracle_index import OracleIndexFile

FOREVER = 2**63 - 1
MAX_PHY = 0x7FFFFFFF00000000

# ---- units ---------------------------------------------------------------------------------------


def plain_units(data: bytes, limit: int = FOREVER) -> tuple[int, int, int]:
    """Return (valid bytes, max physical offset, last ext address) of a file of units."""
    valid, end, address = 0, -1, 1
    for row in oracle.decode_units(data):
        phy_offset, size, code = row
        if phy_offset < 0 or size <= 0 or phy_offset >= limit:
            break
        valid += 20
        if row != oracle.PRE_BLANK:
            end = min(phy_offset, MAX_PHY) + size
            address = code if oracle.is_ext_address(code) else address
    return valid, end, address


class UnitKernel(Kernel):
    """A file of queue units."""

    name = "units"

    def make(self, rng: random.Random) -> Bytes:
        count = rng.randrange(1, 9)
        rows = []
        for n in range(count):
            code = rng.choice((0, 77, -(2**31), -(2**31) - 1, -(2**63) + 20 * n))
            rows.append(oracle.PRE_BLANK if rng.random() < 0.2 else (100 * n, 100, code))
        data = bytearray(b"".join(oracle.encode_unit(*row) for row in rows))
        fields = [
            field
            for at in range(0, len(data), 20)
            for field in (Field("phyOffset", at, 8), Field("size", at + 8, 4),
                          Field("tagsCode", at + 12, 8))
        ]  # fmt: skip
        extents = [(20 * n, 20) for n in range(count)]
        texts = changes(rng, (1, 1, 2, 4), data, fields, extents, in_fields=0.6, in_bytes=0.85)
        limit = rng.choice((0, 100, 250, FOREVER, -1, boundary(rng, 300, 8, 0)))
        return Bytes("; ".join(texts), bytes(data), (limit, rng.randrange(10)))

    def check(self, mutant: Bytes) -> None:
        data = mutant.data
        limit, number = mutant.arguments
        rows = oracle.decode_units(data)
        same(scan_units(data), plain_units(data), "scan_units")
        same(truncate_units(data, limit), plain_units(data, limit), "truncate_units")
        found = [20 * n for n, row in enumerate(rows)
                 if n >= number and row[0] >= limit and row != oracle.PRE_BLANK]  # fmt: skip
        same(find_min_unit(data, limit, 20 * number), (found or [-1])[0], "find_min_unit")
        for with_ext in (False, True):
            found = [20 * n for n, row in enumerate(rows)
                     if row[0] >= 0 and row[1] > 0 and row != oracle.PRE_BLANK
                     and (not with_ext or oracle.is_ext_address(row[2]))]  # fmt: skip
            same(find_last_unit(data, with_ext), (found or [-1])[-1], "find_last_unit")
        columns = read_units(data)
        same(list(zip(*(c.tolist() for c in columns), strict=True)), rows, "read_units")
        same(encode_units(*columns), data[: 20 * len(rows)], "encode_units")
        room = [np.zeros(number, dtype) for dtype in (np.int64, np.int32, np.int64)]
        same(decode_units(data, *room, number // 2), min(number - number // 2, len(rows)), "decode")
        position = 20 * number
        wanted = rows[number] if number < len(rows) else None
        same(unit_at(data, position), wanted, "unit_at")
        other = bytes(len(data))
        differ = [n for n, row in enumerate(rows) if any(row)]
        same(differing_units(data, other).tolist(), differ, "differing_units")


class ExtKernel(Kernel):
    """A file of ext units."""

    name = "ext"

    def make(self, rng: random.Random) -> Bytes:
        data, extents = b"", []
        for n in range(rng.randrange(1, 7)):
            unit = oracle.encode_ext_unit(n, 1000 + n, rng.randbytes(rng.choice((0, 0, 1, 30))))
            extents.append((len(data), len(unit)))
            data += unit
        data = bytearray(data + rng.choice((b"", b"\xff\xff", b"\xff\xff" + bytes(9), bytes(30))))
        fields = [field for at, _ in extents
                  for field in (Field("size", at, 2), Field("bitMapSize", at + 18, 2))]  # fmt: skip
        texts = changes(rng, (1, 1, 2), data, fields, extents, in_fields=0.6, in_bytes=0.85)
        arguments = [*(at for at, _ in extents), boundary(rng, 0, 8, len(data)), rng.randrange(300)]
        return Bytes("; ".join(texts), bytes(data), tuple(arguments))

    def check(self, mutant: Bytes) -> None:
        data = mutant.data
        at = 0
        while len(data) - at >= 20:
            (size,) = struct.unpack_from(">h", data, at)
            if size < 20 or size > len(data) - at:
                break
            at += size
        same(scan_ext_units(data), at, "scan_ext_units")
        positions = np.array(mutant.arguments, np.int64)
        codes, times = np.zeros((2, len(positions)), np.int64)
        whole = np.zeros(len(positions), np.uint8)
        read_ext_units(data, positions, codes, times, whole)
        for row, position in enumerate(positions.tolist()):
            try:
                unit = oracle.decode_ext_unit(data[position:]) if position >= 0 else (0, 0, 0, b"")
                bits = struct.unpack_from(">h", data, position + 18)[0] if unit[0] else 0
                is_whole = 20 <= unit[0] <= len(data) - position and bits <= unit[0] - 20
            except ValueError:
                is_whole = False
            same(bool(whole[row]), is_whole, f"whole at {position}")
            if is_whole:
                same((codes[row], times[row]), unit[1:3], f"unit at {position}")


# ---- the index -----------------------------------------------------------------------------------

KEYS = (*tuple(f"k{i}" for i in range(9)), "Aa", "BB", "é")


def index_fields(slots: int, entries: int) -> list[Field]:
    """Return the fields of an index file."""
    header = [("beginTimestamp", 0, 8), ("endTimestamp", 8, 8), ("beginPhyOffset", 16, 8),
              ("endPhyOffset", 24, 8), ("hashSlotCount", 32, 4), ("indexCount", 36, 4)]  # fmt: skip
    rows = [*header, *(("slot", 40 + 4 * n, 4) for n in range(slots))]
    for n in range(1, entries):
        at = 40 + 4 * slots + 20 * n
        rows += [("keyHash", at, 4), ("phyOffset", at + 4, 8), ("timeDiff", at + 12, 4),
                 ("previous", at + 16, 4)]  # fmt: skip
    return [Field(*row) for row in rows]


def change_links(rng: random.Random, data: bytearray, slots: int, entries: int) -> str:
    """Link entries to themselves, to later entries, or to entries of another slot."""
    kind = rng.randrange(4)
    for n in range(1, entries):
        at = 40 + 4 * slots + 20 * n + 16
        if kind == 0 or (kind == 3 and rng.random() < 0.3):
            number = {0: n, 3: rng.randrange(-1, entries + 2)}[kind]
        else:
            number = {1: n + 1, 2: n - 1, 3: int.from_bytes(data[at : at + 4], "big")}[kind]
        data[at : at + 4] = (number % 2**32).to_bytes(4, "big")
    return "entries name " + ("themselves", "the next", "the one before", "any")[kind]


def damage_index(rng: random.Random, data: bytearray, slots: int, entries: int) -> str:
    """Damage fields, chains or any bytes of an index file; its length is kept."""
    size = len(data)
    kind = rng.random()
    if kind < 0.55:
        text = change_field(rng, data, index_fields(slots, entries))
    elif kind < 0.6:  # as if a live owner had put more entries
        field = Field("indexCount", 36, 4)
        count = number_at(data, field)
        set_number(data, field, rng.randrange(max(1, count)))
        text = f"indexCount is {number_at(data, field)} for {count}"
        if rng.random() < 0.3:
            text += ", " + change_links(rng, data, slots, entries)
    elif kind < 0.8:
        text = change_links(rng, data, slots, entries)
    else:
        text = change_bytes(rng, data)
    data[:] = data[:size].ljust(size, b"\0")
    return text


def wanted_hits(
    data: bytes,
    slots: int,
    entries: int,
    key_hash: int,
    begin: int,
    end: int,
    is_live: bool = True,
) -> list[tuple[int, int]]:
    """Return the (physical offset, time) that a query of `Store` examines, newest first.

    `is_live`: another process may put into the file, so a slot may name an entry beyond the count.
    """
    file = OracleIndexFile.of_bytes(data, slots, entries)
    base = file.begin_time
    begin = max(begin, -(2**62))
    found = []
    (number,) = struct.unpack_from(">i", data, file.slot_at(key_hash))
    limit = min(file.count, entries - 1)

    def previous_of(number: int) -> int:
        (previous,) = struct.unpack_from(">i", data, file.entry_at(number) + 16)
        return int(previous) if previous < number else 0

    while is_live and limit < number < entries:
        number = previous_of(number)
    if number > limit:
        return found
    while number > 0:
        own, phy, diff, _ = struct.unpack_from(">iqii", data, file.entry_at(number))
        if diff < 0:
            break
        time = (base + 1000 * diff + 2**63) % 2**64 - 2**63
        if number == 1:
            time, inside = base, begin <= base <= end
        elif diff == 0:
            inside = base <= 0 or base >= begin - 999
        else:
            inside = begin - 999 <= time <= end
        if inside and own == key_hash:
            found.append((phy, time))
        number = previous_of(number)
    return found


class IndexKernel(Kernel):
    """An index file: its header, slots and chains, and a put into the damaged file."""

    name = "index"
    SLOTS, ENTRIES = 5, 12

    def prepare(self) -> None:
        self.path = str(self.scratch / "20260101000000000")
        self.hashes = [key_hash_of("T", key) for key in KEYS]
        self.seeds = []
        for _ in range(8):
            file = OracleIndexFile(self.SLOTS, self.ENTRIES, *self.rng.choice(((0, 0), (50, 900))))
            for i in range(self.rng.choice((0, 1, 2, 8, 11))):
                file.put(self.rng.choice(self.hashes), 100 * i, 1000 + 700 * i)
            self.seeds.append(bytes(file.data))

    def make(self, rng: random.Random) -> Bytes:
        data = bytearray(rng.choice(self.seeds))
        texts = [damage_index(rng, data, self.SLOTS, self.ENTRIES)
                 for _ in range(rng.choice((1, 1, 2, 3)))]  # fmt: skip
        if rng.random() < 0.05:
            change = rng.choice((-1, 1, -len(data), 40 - len(data), 999))
            data = bytearray(data[: len(data) + change].ljust(len(data) + change, b"\0"))
            texts.append(f"{change} bytes")
        begin, end = rng.choice(
            (
                (0, FOREVER),
                (-(2**63), FOREVER),
                (2000, 5000),
                (5000, 2000),
                (boundary(rng, 1000, 8, 0), boundary(rng, 5000, 8, 0)),
            )
        )
        arguments = rng.choice(self.hashes), begin, end, rng.choice((1, 2, 3, 64))
        return Bytes("; ".join(texts), bytes(data), arguments)

    def check(self, mutant: Bytes) -> None:
        data = mutant.data
        hashed, begin, end, max_num = mutant.arguments
        with open(self.path, "wb") as out:
            out.write(data)
        size = 40 + 4 * self.SLOTS + 20 * self.ENTRIES
        try:
            file = IndexFile(self.env, self.path, self.SLOTS, self.ENTRIES, mode="read")
        except StoreCorruptionError as error:
            assert error.path == self.path and len(data) < size
            return
        assert len(data) >= size
        plain = OracleIndexFile.of_bytes(data, self.SLOTS, self.ENTRIES)
        self.check_answers(file, plain, mutant)
        tail = 0
        for n in range(plain.count - 1, 0, -1):
            if struct.unpack_from(">q", data, plain.entry_at(n) + 4)[0] != 100:
                break
            tail += 1
        same(file.tail_count(100), tail, "tail_count")
        if max_num == 2:
            self.check_cut(file, plain, mutant)
            return
        file.open_for_writing()
        self.check_answers(file, plain, mutant)  # with the file in memory
        same(file.put_hash(hashed, 7777, begin), plain.put(hashed, 7777, begin), "put")
        same(file.index_count, plain.count, "count")
        same(file.select_hash(hashed, max_num, begin, end),
             plain.select(hashed, max_num, begin, end), "selected after a put")  # fmt: skip
        file.shutdown()
        self.check_chains(data)

    def check_cut(self, file: IndexFile, plain: OracleIndexFile, mutant: Bytes) -> None:
        """Cut the file while it is open: the result is correct, or an error reports the cut."""
        hashed, begin, end, max_num = mutant.arguments
        os.truncate(self.path, zlib.crc32(mutant.data) % len(mutant.data))
        hashes = np.array([hashed], np.int32)
        for ask in (
            lambda: file.select_hash(hashed, max_num, begin, end),
            lambda: file.select_hashes(hashes, max_num, begin, end)[1].tolist(),
        ):
            try:
                same(ask(), plain.select(hashed, max_num, begin, end), "after a cut")
            except StoreCorruptionError as error:
                assert error.path == self.path and error.position >= 0
        try:
            file.select_hits(hashed, begin, end)
        except StoreCorruptionError as error:
            assert error.path == self.path and error.position >= 0
        file.shutdown()

    def check_answers(self, file: IndexFile, plain: OracleIndexFile, mutant: Bytes) -> None:
        hashed, begin, end, max_num = mutant.arguments
        same((file.begin_timestamp, file.end_timestamp, file.begin_phy_offset, file.end_phy_offset,
              file.index_count),
             (plain.begin_time, plain.end_time, plain.begin_phy, plain.end_phy, plain.count),
             "header")  # fmt: skip
        same(file.is_time_matched(begin, end), plain.time_matched(begin, end), "time matched")
        found = plain.select(hashed, max_num, begin, end)
        same(file.select_hash(hashed, max_num, begin, end), found, "select_hash")
        many = () if max_num < 64 else (-1, *self.hashes * 6, -1)
        hashes = np.array([hashed, *self.hashes[:3], *many], np.int32)
        keys, offsets = file.select_hashes(hashes, max_num, begin, end)
        wanted = [(i, phy) for i, one in enumerate(hashes.tolist())
                  if one >= 0
                  for phy in plain.select(one, max_num, begin, end)]  # fmt: skip
        same(list(zip(keys.tolist(), offsets.tolist(), strict=True)), wanted, "select_hashes")
        data = bytes(plain.data)
        is_live = file.mode == "read"  # no other process writes to memory
        hits = wanted_hits(data, self.SLOTS, self.ENTRIES, hashed, begin, end, is_live)
        start, rows = 0, []
        while True:
            offsets, times, start = file.select_hits(hashed, begin, end, max_num, start)
            rows += zip(offsets.tolist(), times.tolist(), strict=True)
            if start == 0:
                break
        same(rows, hits, "select_hits")

    def check_chains(self, data: bytes) -> None:
        """Compare the chain check of verify: each entry names the previous entry of its slot."""
        file = OracleIndexFile.of_bytes(data, self.SLOTS, self.ENTRIES)
        walk = ChainWalk(self.SLOTS, file.count)
        newest = [0] * self.SLOTS
        bad: list[int] = []
        for n in range(1, file.count):
            hashed, _, _, previous = struct.unpack_from(">iqii", data, file.entry_at(n))
            slot = hashed % self.SLOTS
            if hashed < 0 or not (
                previous == newest[slot] or (0 < previous < n and previous in bad)
            ):
                bad.append(n)
                continue
            newest[slot] = n
        entries = data[file.entry_at(1) : file.entry_at(file.count)]
        same(walk.entries(entries, 1).tolist(), bad, "bad entries")
        same(walk.slots_used(), sum(n > 0 for n in newest), "slots in use")
        named = struct.unpack_from(f">{self.SLOTS}i", data, 40)
        for live in (False, True):
            wrong = [i for i, n in enumerate(named)
                     if not (n == newest[i] or (0 < n < file.count and n in bad)
                             or (live and n >= file.count))]  # fmt: skip
            same(walk.check_slots(data[40 : 40 + 4 * self.SLOTS], 0, live).tolist(), wrong, "slots")


# ---- the small files -----------------------------------------------------------------------------

TOPICS = {
    "dataVersion": {"counter": 3, "timestamp": 1_700_000_000_000},
    "topicConfigTable": {
        name: {"order": False, "perm": 6, "readQueueNums": 4, "topicFilterType": "SINGLE_TAG",
               "topicName": name, "topicSysFlag": 0, "writeQueueNums": 4}
        for name in ("orders", "ö-\U0001f600")
    },
}  # fmt: skip
JSON_PARTS = (b"-1", b"1e999", b"NaN", b"null", b"true", b"[]", b"{}", b'""', b'"\\ud800"', b"1.5",
              b"9" * 40, b"9" * 5000, b"[" * 400 + b"]" * 400, b"[" * 99999, b"{1:2,3:4}", b"{:",
              b'"a":1,' * 3, b'"topicConfigTable":{},', b"\xff", b"\\u0000")  # fmt: skip


class SmallKernel(Kernel):
    """checkpoint and config/topics.json."""

    name = "small"

    def prepare(self) -> None:
        self.checkpoint = str(self.scratch / "checkpoint")
        self.folder = self.scratch / "config"
        self.folder.mkdir()
        self.topics = json.dumps(TOPICS, indent="\t", ensure_ascii=False).encode()
        self.values = [match.span() for match in re.finditer(rb"(?<=: )[^,{}\n]+", self.topics)]

    def make(self, rng: random.Random) -> Bytes:
        if rng.random() < 0.3:
            data = bytearray(oracle.encode_checkpoint(9000, 8000, 7000))
            fields = [Field("timestamp", at, 8) for at in (0, 8, 16)]
            text = change(rng, data, fields)
            return Bytes("checkpoint: " + text, bytes(data), ("checkpoint",))
        data = bytearray(self.topics)
        texts = []
        for _ in range(rng.choice((1, 1, 2))):
            if rng.random() < 0.6:
                start, end = rng.choice(self.values)
                part = rng.choice(JSON_PARTS)
                data[start:end] = part
                texts.append(f"{part[:30]!r} at {start}")
            else:
                texts.append(change_bytes(rng, data))
        return Bytes("topics: " + "; ".join(texts), bytes(data), ("topics",))

    def check(self, mutant: Bytes) -> None:
        if mutant.arguments == ("checkpoint",):
            self.check_checkpoint(mutant.data)
        else:
            self.check_topics(mutant.data)

    def check_checkpoint(self, data: bytes) -> None:
        with open(self.checkpoint, "wb") as out:
            out.write(data)
        point = StoreCheckpoint(self.env, self.checkpoint, read_only=True)
        physic, logics, index = plain_checkpoint(data)
        same((point.physic_msg_timestamp, point.logics_msg_timestamp, point.index_msg_timestamp),
             (physic, logics, index), "checkpoint")  # fmt: skip
        same(point.get_min_timestamp(), max(0, min(physic, logics) - 3000), "min timestamp")
        same(point.get_min_timestamp_index(), min(point.get_min_timestamp(), index), "with index")

    def check_topics(self, data: bytes) -> None:
        path = self.folder / "topics.json"
        path.write_bytes(data)
        for other in self.folder.glob("*.bak"):
            other.unlink()
        config = TopicConfigFile(self.env, str(path))
        try:
            config.load()
        except StoreCorruptionError as error:
            assert error.path == str(path)
            return
        before = config.topics()
        for name, entry in plain_topics(data).items():
            same(before[name], entry, f"topic {name!r}")
        assert config.ensure("fresh", 2)
        try:
            config.persist()
        except StoreError as error:
            raise AssertionError(f"what was read cannot be written: {error}") from error
        again = TopicConfigFile(self.env, str(path))
        again.load()
        # Java has no UTF-8 for a lone surrogate either.
        wanted = {name.encode("utf-8", "replace").decode(): n for name, n in before.items()}
        same(again.topics(), wanted | {"fresh": 3}, "topics read again")


def plain_checkpoint(data: bytes) -> tuple[int, int, int]:
    """Return the times of a checkpoint; zeros for one that no store has written."""
    times = oracle.decode_checkpoint(data)
    offsets = struct.unpack(">qq", data[24:40].ljust(16, b"\0"))
    if min(times) < 0 or max(times) >= 10**13 or min(offsets) < -1 or any(data[64:4096]):
        return 0, 0, 0
    return times


def plain_topics(data: bytes) -> dict[str, int]:
    """Return topics and queues of a JSON text, of the entries whose numbers are plain ints; {} for
    a text with unquoted numbers as keys."""
    try:
        table = json.loads(data)["topicConfigTable"]
        items = [(name, entry) for name, entry in table.items() if name and type(entry) is dict]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    counts = ("readQueueNums", "writeQueueNums")
    return {
        name: entry.get("readQueueNums", 0)
        for name, entry in items
        if all(type(n := entry.get(each, 0)) is int and abs(n) < 1 << 31 for each in counts)
    }


def lowest_key(topic: str) -> str:
    """Return a key with hash -2**31, which has no positive counterpart."""
    rng = random.Random(0)
    for _ in range(100_000):
        start = "".join(chr(rng.randrange(0x41, 0xD800)) for _ in range(3))
        rest = (2**31 - oracle.java_hash(f"{topic}#{start}") * 961) % 2**32
        second, third = divmod(rest, 31)
        if 0x100 <= second < 0xD800:
            return start + chr(second) + chr(third)
    raise AssertionError(topic)


class HashKernel(Kernel):
    """Hashes of the index: of bytes, and of str in each internal form of Python."""

    name = "hash"

    def prepare(self) -> None:
        self.lowest = lowest_key("T")
        assert oracle.java_hash(f"T#{self.lowest}") == -(2**31)

    def make(self, rng: random.Random) -> Bytes:
        if rng.random() < 0.02:
            return Bytes("lowest hash", self.lowest.encode(), (self.lowest, "T"))
        pool = rng.choice(("ab#", "aé\xff", "aé\u20ac\ufffd", "a\U0001f600\ud800\udc00"))
        text = "".join(rng.choices(pool, k=rng.randrange(12)))
        data = bytearray(text.encode("utf-8", "surrogatepass"))
        return Bytes(change_bytes(rng, data), bytes(data), (text, rng.choice(("T", "é", ""))))

    def check(self, mutant: Bytes) -> None:
        text, topic = mutant.arguments
        for key in (text, mutant.data):
            raw = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
            wanted = oracle.java_hash(f"{topic}#".encode() + raw)
            wanted = 0 if wanted == -(2**31) else abs(wanted)
            same(key_hash_of(topic, key), wanted, f"hash of {key!r}")
            same(hashes_of_keys([key, "x"], topic)[0], wanted, f"hash of {key!r}")


KERNELS: tuple[type[Kernel], ...] = (
    UnitKernel, ExtKernel, IndexKernel, SmallKernel, HashKernel,
)  # fmt: skip
