"""Every format of the store in plain Python: clear, slow, and independent of the compiled code.

Everything is big-endian. Readers raise ValueError (or struct.error, which is one of the two that
`decode_record` turns into a verdict) instead of reading what is not there.
"""

from __future__ import annotations

import codecs
import dataclasses
import functools
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping

MESSAGE_MAGIC = 0xDAA320A7 - (1 << 32)
BLANK_MAGIC = 0xCBD43194 - (1 << 32)
MIN_RECORD_SIZE = 91
ENTRY_HEADER = 48  # bytes of a DLedger entry before its record
LARGEST_RECORD = 64 << 20
SMALL = 1024  # bytes of a record that may be kept
MAX_MESSAGE_SIZE = 4 << 20
COMPRESSED, BORN_V6, STORE_V6 = 0x1, 0x10, 0x20
PREPARED, COMMIT, ROLLBACK, TRANSACTION_MASK = 0x4, 0x8, 0xC, 0xC
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DEFAULT_DELAYS_MS = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, *(60 * m for m in (*range(1, 11), 20, 30)), 3600, 7200)
)


# ---- Java's strings and numbers ---------------------------------------------------------------


def _one_replacement(error: UnicodeError) -> tuple[str, int]:
    """As "replace", but an encoded surrogate is one character, with or without its last byte."""
    assert isinstance(error, UnicodeDecodeError)
    data, at = error.object, error.start
    if data[at] == 0xED and at + 1 < len(data) and 0xA0 <= data[at + 1] <= 0xBF:
        at += 2
        if at < len(data) and 0x80 <= data[at] <= 0xBF:
            at += 1
        return "\ufffd", at
    return "\ufffd", error.end


codecs.register_error("java", _one_replacement)


def java_text(data: bytes) -> str:
    """new String(data, UTF_8)."""
    return data.decode("utf-8", "java")


def int32(value: int) -> int:
    """The low 32 bits as a signed number."""
    return (value + 2**31) % 2**32 - 2**31


def java_hash(text: str | bytes) -> int:
    """String.hashCode."""
    if isinstance(text, bytes):
        text = java_text(text)
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = 31 * value + unit
    return int32(value)


def java_int(text: str) -> int | None:
    """Integer.parseInt, None where it throws."""
    sign = -1 if text.startswith("-") else 1
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or not all(c.isdecimal() and c <= "\uffff" for c in digits):
        return None
    value = 0
    for digit in digits:
        value = 10 * value + int(digit)
    return sign * value if -(2**31) <= sign * value < 2**31 else None


# ---- properties -------------------------------------------------------------------------------


def hash_map_order(pairs: Iterable[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """The entries of a java.util.HashMap into which `pairs` were put one after the other: a table
    of chains that is taken apart and rebuilt whenever it grows. (Trees are not modelled.)"""
    table: list[list[list[str | None]]] = [[] for _ in range(16)]

    def bucket(name: str) -> list[list[str | None]]:
        h = java_hash(name) & 0xFFFFFFFF
        return table[(h ^ (h >> 16)) & (len(table) - 1)]

    def grow() -> None:
        nonlocal table
        old, table = table, [[] for _ in range(2 * len(table))]
        for chain in old:
            for entry in chain:
                assert entry[0] is not None
                bucket(entry[0]).append(entry)

    count = 0
    for name, value in pairs:
        chain = bucket(name)
        present = [entry for entry in chain if entry[0] == name]
        if present:
            present[0][1] = value
            continue
        chain.append([name, value])
        count += 1
        if len(chain) > 8 and len(table) < 64:
            grow()
        if count > len(table) * 3 // 4:
            grow()
    return [(entry[0] or "", entry[1]) for chain in table for entry in chain]


def properties_to_string(properties: Mapping[str, str | None]) -> str:
    """The text form of a map, as 4.9.3 writes it."""
    ordered = hash_map_order(properties.items())
    return "\x02".join(f"{name}\x01{value}" for name, value in ordered if value is not None)


def string_to_properties(text: str) -> dict[str, str]:
    """The map behind a text, as 4.9.3 reads it."""
    found = {}
    for segment in text.split("\x02"):
        name, separator, value = segment.partition("\x01")
        if len(segment) >= 3 and name and separator and value:
            found[name] = value
    return found


def tags_code(
    topic: str,
    store_timestamp: int,
    properties: Mapping[str, str],
    delays_ms: tuple[int, ...] = DEFAULT_DELAYS_MS,
) -> int:
    """The code in the queue unit of a record: the hash of its tags, or when it is to be delivered.
    A DELAY that is not a number counts as level 0."""
    code = java_hash(properties.get("TAGS", ""))
    if topic == SCHEDULE_TOPIC and "DELAY" in properties:
        level = min(java_int(properties["DELAY"]) or 0, len(delays_ms))
        if level > 0:
            code = store_timestamp + delays_ms[level - 1]
    return code


# ---- hosts and message ids --------------------------------------------------------------------


def host(address: str, port: int) -> bytes:
    """A host as a record has it: `address` is dotted IPv4, or 32 hex digits."""
    raw = bytes.fromhex(address) if len(address) == 32 else bytes(map(int, address.split(".")))
    return raw + struct.pack(">i", port)


def message_id(store_host: bytes, phy_offset: int) -> str:
    """The offset message id."""
    return (store_host + struct.pack(">q", phy_offset)).hex().upper()


# ---- one record -------------------------------------------------------------------------------

HEAD = struct.Struct(">iiiiiqqiq")  # totalSize … bornTimestamp: 48 bytes


def body_crc(body: bytes) -> int:
    """CRC-32 as a record has it: 31 bits, 0 for no body."""
    return zlib.crc32(body) & 0x7FFFFFFF


@dataclasses.dataclass(frozen=True)
class Record:
    """A record; `properties` is the text, `total_size` and `crc` are worked out unless given."""

    topic: bytes = b"T"
    body: bytes = b""
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    phy_offset: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = host("127.0.0.1", 1)
    store_timestamp: int = 0
    store_host: bytes = host("127.0.0.1", 2)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    total_size: int | None = None
    crc: int | None = None

    @property
    def size(self) -> int:
        """int, bytes."""
        return len(encode_record(self))

    def properties_map(self) -> dict[str, str]:
        """The properties as 4.9.3 reads them."""
        return string_to_properties(java_text(self.properties))


def encode_record(record: Record) -> bytes:
    """The bytes of a record; the IPv6 bits follow the hosts."""
    sys_flag = record.sys_flag & ~(BORN_V6 | STORE_V6)
    sys_flag |= BORN_V6 if len(record.born_host) == 20 else 0
    sys_flag |= STORE_V6 if len(record.store_host) == 20 else 0
    tail = b"".join(
        [
            record.born_host,
            struct.pack(">q", record.store_timestamp),
            record.store_host,
            struct.pack(">iq", record.reconsume_times, record.prepared_transaction_offset),
            struct.pack(">i", len(record.body)),
            record.body,
            struct.pack(">b", len(record.topic)),
            record.topic,
            struct.pack(">h", len(record.properties)),
            record.properties,
        ]
    )
    head = HEAD.pack(
        HEAD.size + len(tail) if record.total_size is None else record.total_size,
        MESSAGE_MAGIC,
        body_crc(record.body) if record.crc is None else record.crc,
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.phy_offset,
        sys_flag,
        record.born_timestamp,
    )
    return head + tail


class Reader:
    """Bytes from front to back; reading past the end is a ValueError."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size < 0 or self.position + size > len(self.data):
            raise ValueError(f"{size} bytes are not there at {self.position}")
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, code: str) -> int:
        """The next number; `code` is struct's."""
        value = struct.unpack(">" + code, self.take(struct.calcsize(">" + code)))[0]
        assert isinstance(value, int)
        return value


def decode_record(data: bytes) -> Record:
    """The record that `data` is from its first to its last byte.

    Raises
    ------
    ValueError: it is not.
    """
    return _decode_small(bytes(data)) if len(data) <= SMALL else _decode(data)


@functools.lru_cache(4096)
def _decode_small(data: bytes) -> Record:
    """The mutants of a store have most records in common."""
    return _decode(data)


def _decode(data: bytes) -> Record:
    reader = Reader(data)
    head = HEAD.unpack(reader.take(HEAD.size))
    total_size, magic, crc, queue_id, flag, queue_offset, phy_offset, sys_flag, born = head
    if magic != MESSAGE_MAGIC or total_size != len(data):
        raise ValueError("magic or size")
    record = Record(
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        phy_offset=phy_offset,
        sys_flag=sys_flag,
        born_timestamp=born,
        born_host=reader.take(20 if sys_flag & BORN_V6 else 8),
        store_timestamp=reader.number("q"),
        store_host=reader.take(20 if sys_flag & STORE_V6 else 8),
        reconsume_times=reader.number("i"),
        prepared_transaction_offset=reader.number("q"),
        body=reader.take(max(0, reader.number("i"))),
        topic=reader.take(reader.number("b")),
        properties=reader.take(max(0, reader.number("h"))),
        total_size=total_size,
        crc=crc,
    )
    if reader.position != len(data):
        raise ValueError("bytes are left over")
    return record


def check_record(data: bytes, phy_offset: int = -1, check_crc: bool = True) -> tuple[str, int]:
    """Our verdict on the record at the start of `data`, and its size field."""
    if len(data) < 8:
        return "torn", 0
    size, magic = struct.unpack_from(">ii", data)
    if magic == BLANK_MAGIC:
        return "blank", size
    if magic != MESSAGE_MAGIC:
        return "end" if size == magic == 0 else "bad_magic", size
    if size < MIN_RECORD_SIZE or size > LARGEST_RECORD:
        return "bad_size", size
    if size > len(data):
        return "torn", size
    try:
        record = decode_record(data[:size])
    except ValueError:
        return "bad_size", size
    if phy_offset >= 0 and record.phy_offset != phy_offset:
        return "bad_offset", size
    if check_crc and record.body and record.crc != body_crc(record.body):
        return "bad_crc", size
    return "ok", size


def check_entry(data: bytes, phy_offset: int, file_left: int) -> str:
    """Our verdict on bytes that are no record: "entry" where a DLedger entry begins, "blank" where
    dledger 0.2.3 ended its file, "torn" where more bytes are needed, else "bad_magic"."""
    data = data[: max(0, file_left)]
    if len(data) < 8:
        return "bad_magic"
    magic, size = struct.unpack_from(">ii", data)
    if (magic, size) == (-1, file_left):
        return "blank"
    if magic != 1 or size < ENTRY_HEADER + MIN_RECORD_SIZE:
        return "bad_magic"
    if len(data) >= 32 and struct.unpack_from(">q", data, 24)[0] != phy_offset:
        return "bad_magic"
    if len(data) < ENTRY_HEADER:
        return "torn" if file_left > len(data) else "bad_magic"
    return "entry" if struct.unpack_from(">i", data, 44)[0] == size - ENTRY_HEADER else "bad_magic"


def java_check(data: bytes, check_crc: bool = True) -> tuple[int, bool]:
    """(size, success) as checkMessageAndReturnSize of 4.9.3 gives them, step by step."""
    reader = Reader(data)
    try:
        total_size, magic = reader.number("i"), reader.number("i")
        if magic == BLANK_MAGIC:
            return 0, True
        if magic != MESSAGE_MAGIC or total_size < 0:
            return -1, False
        crc = reader.number("i")
        reader.take(4 + 4 + 8 + 8)
        sys_flag = reader.number("i")
        hosts = (20 if sys_flag & BORN_V6 else 8), (20 if sys_flag & STORE_V6 else 8)
        if max(hosts) > total_size:
            return -1, False
        reader.take(8 + hosts[0])
        store_timestamp = reader.number("q")
        reader.take(hosts[1] + 4 + 8)
        body_size = reader.number("i")
        if body_size > total_size:
            return -1, False
        body = reader.take(max(0, body_size))
        if check_crc and body and body_crc(body) != crc:
            return -1, False
        topic_size = reader.number("b")
        if not 0 <= topic_size <= total_size:
            return -1, False
        topic = java_text(reader.take(topic_size))
        properties_size = reader.number("h")
        if properties_size > total_size:
            return -1, False
        text = reader.take(max(0, properties_size))
        tags_code(topic, store_timestamp, string_to_properties(java_text(text)))
    except ValueError:
        return -1, False
    parts = (*hosts, max(0, body_size), topic_size, max(0, properties_size))
    return total_size, total_size == 75 + sum(parts)


def blank(size: int) -> bytes:
    """The filler that ends a file, as 4.9.3 leaves it in a fresh file."""
    return struct.pack(">ii", size, BLANK_MAGIC) + bytes(size - 8)


def scan_log(data: bytes, file_from_offset: int = 0) -> tuple[list[tuple[int, Record]], str, int]:
    """All records of one file from its start: [(position, record)], how it ended, and where."""
    records = []
    position = 0
    while True:
        verdict, size = check_record(data[position:], file_from_offset + position)
        if verdict != "ok":
            return records, verdict, position
        records.append((position, decode_record(data[position : position + size])))
        position += size


def write_log(records: Iterable[Record], file_size: int) -> list[bytes]:
    """Whole commit log files: physical offsets are worked out, BLANKs put where 4.9.3 rolls."""
    files = [b""]
    for record in records:
        size = record.size
        if size + 8 > file_size:
            raise ValueError("a record that fits no file")
        if len(files[-1]) + size + 8 > file_size:
            files[-1] += blank(file_size - len(files[-1]))
            files.append(b"")
        offset = (len(files) - 1) * file_size + len(files[-1])
        files[-1] += encode_record(dataclasses.replace(record, phy_offset=offset))
    return [data.ljust(file_size, b"\0") for data in files]


# ---- batches ----------------------------------------------------------------------------------


def ended(text: bytes) -> bytes:
    """A properties text as pyrocketstore writes it: with a separator after a zero byte."""
    return text + b"\2" if text.endswith(b"\0") else text


def encode_messages(items: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """The body of a client's batch from (flag, body, properties text)."""
    return b"".join(
        struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, flag, len(body))
        + body
        + struct.pack(">h", len(text))
        + text
        for flag, body, text in items
    )


def decode_messages(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """(flag, body, properties text) of each message in a client's batch."""
    reader = Reader(data)
    while reader.position < len(data):
        reader.take(12)
        flag = reader.number("i")
        body = reader.take(reader.number("i"))
        yield flag, body, reader.take(reader.number("h"))


def encode_batch(shared: Record, data: bytes) -> list[Record]:
    """The records of a batch: `shared` has what they have in common, its properties included."""
    records = []
    for flag, body, text in decode_messages(data):
        separate = text and shared.properties and not text.endswith(b"\x02")
        text += b"\x02" if separate else b""
        records.append(
            dataclasses.replace(shared, flag=flag, body=body, properties=text + shared.properties)
        )
    return records


# ---- consume queue ----------------------------------------------------------------------------

UNIT = struct.Struct(">qiq")  # phyOffset, size, tagsCode
PRE_BLANK = (0, 2**31 - 1, 0)


def encode_unit(phy_offset: int, size: int, code: int) -> bytes:
    """One unit."""
    return UNIT.pack(phy_offset, size, code)


def decode_units(data: bytes) -> list[tuple[int, int, int]]:
    """All whole units, holes included."""
    return list(UNIT.iter_unpack(data[: len(data) // UNIT.size * UNIT.size]))


def scan_units(data: bytes) -> tuple[int, int]:
    """(bytes, maxPhysicOffset) up to the first unit that was never written; -1 for none."""
    valid, max_phy_offset = 0, -1
    for phy_offset, size, _ in decode_units(data):
        if phy_offset < 0 or size <= 0:
            break
        valid += UNIT.size
        max_phy_offset = phy_offset + size
    return valid, max_phy_offset


# ---- consume queue ext ------------------------------------------------------------------------

EXT_HEAD = struct.Struct(">hqqh")  # size, tagsCode, msgStoreTime, bitMapSize
EXT_MAX_ADDRESS = -(2**31) - 1
EXT_END_BLANK_SIZE = 4


def is_ext_address(code: int) -> bool:
    """Whether a tagsCode is the place of an ext unit."""
    return code <= EXT_MAX_ADDRESS


def ext_address(offset: int) -> int:
    """The tagsCode that stands for this place in the ext stream."""
    return offset - 2**63


def ext_offset(address: int) -> int:
    """The place in the ext stream that this tagsCode stands for."""
    return address + 2**63


def encode_ext_unit(code: int, store_time: int, bit_map: bytes = b"") -> bytes:
    """One ext unit."""
    return EXT_HEAD.pack(20 + len(bit_map), code, store_time, len(bit_map)) + bit_map


def decode_ext_unit(data: bytes) -> tuple[int, int, int, bytes]:
    """(size, tagsCode, store time, bit map) of the unit at the start of `data`."""
    reader = Reader(data)
    size, code, store_time, bit_map_size = EXT_HEAD.unpack(reader.take(EXT_HEAD.size))
    return size, code, store_time, reader.take(max(0, bit_map_size))


def write_ext(units: Iterable[bytes], file_size: int) -> tuple[list[bytes], list[int]]:
    """Whole ext files, and the address of each unit."""
    files, addresses = [b""], []
    for unit in units:
        if len(unit) > file_size - len(files[-1]) - EXT_END_BLANK_SIZE:
            files[-1] = (files[-1] + b"\xff\xff").ljust(file_size, b"\0")
            files.append(b"")
        addresses.append(ext_address((len(files) - 1) * file_size + len(files[-1])))
        files[-1] += unit
    return [data.ljust(file_size, b"\0") for data in files], addresses


def scan_ext(files: Iterable[bytes]) -> tuple[list[tuple[int, int, int, bytes]], int]:
    """The units of ext files one after the other, and where the last file's ended."""
    units, position = [], 0
    for data in files:
        position = 0
        while position + 2 <= len(data):
            (size,) = struct.unpack_from(">h", data, position)
            if size <= 0:
                break
            units.append(decode_ext_unit(data[position:]))
            position += size
    return units, position


# ---- index file -------------------------------------------------------------------------------

INDEX_HEADER = struct.Struct(">qqqqii")
INDEX_ENTRY = struct.Struct(">iqii")


def index_key_hash(topic: str, key: str) -> int:
    """The non-negative hash of a key in its topic; Java's abs leaves one value negative."""
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value == 2**31 else value


@dataclasses.dataclass
class IndexFile:
    """An index file in memory: slots and entries as lists, entry 0 is never used."""

    slot_count: int
    index_num: int
    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_phy_offset: int = 0
    end_phy_offset: int = 0
    hash_slot_count: int = 0
    index_count: int = 1
    slots: dict[int, int] = dataclasses.field(default_factory=dict)
    entries: dict[int, tuple[int, int, int, int]] = dataclasses.field(default_factory=dict)

    def put(self, key_hash: int, phy_offset: int, store_timestamp: int) -> bool:
        """One more entry; False where the file is full."""
        if self.index_count >= self.index_num:
            return False
        slot = key_hash % self.slot_count
        previous = self.slots.get(slot, 0)
        if not 0 < previous <= self.index_count:
            previous = 0
        seconds = 0
        if self.begin_timestamp > 0:
            seconds = (store_timestamp - self.begin_timestamp) // 1000
            seconds = max(0, min(seconds, 2**31 - 1))
        self.entries[self.index_count] = (key_hash, phy_offset, seconds, previous)
        self.slots[slot] = self.index_count
        if self.index_count <= 1:
            self.begin_phy_offset, self.begin_timestamp = phy_offset, store_timestamp
        self.hash_slot_count += previous == 0
        self.index_count += 1
        self.end_phy_offset, self.end_timestamp = phy_offset, store_timestamp
        return True

    def select(self, key_hash: int, max_num: int, begin: int, end: int) -> list[int]:
        """Physical offsets of the hits, newest first."""
        found: list[int] = []
        number = self.slots.get(key_hash % self.slot_count, 0)
        if not 0 < number <= self.index_count or self.index_count <= 1:
            return found
        for _ in range(self.index_count):  # a damaged chain ends too
            if len(found) >= max_num:
                break
            entry_hash, phy_offset, seconds, previous = self.entries.get(number, (0, 0, 0, 0))
            if seconds < 0:
                break
            timestamp = self.begin_timestamp + 1000 * seconds
            if entry_hash == key_hash and begin <= timestamp <= end:
                found.append(phy_offset)
            if not 0 < previous <= self.index_count or previous == number or timestamp < begin:
                break
            number = previous
        return found

    def is_time_matched(self, begin: int, end: int) -> bool:
        """Whether a query for [begin, end] looks into this file."""
        first, last = self.begin_timestamp, self.end_timestamp
        return (begin < first and end > last) or first <= begin <= last or first <= end <= last

    def encode(self) -> bytes:
        """The whole file."""
        data = bytearray(40 + 4 * self.slot_count + 20 * self.index_num)
        INDEX_HEADER.pack_into(
            data,
            0,
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_phy_offset,
            self.end_phy_offset,
            self.hash_slot_count,
            self.index_count if self.index_count > 1 else 0,
        )
        for slot, number in self.slots.items():
            struct.pack_into(">i", data, 40 + 4 * slot, number)
        for number, entry in self.entries.items():
            INDEX_ENTRY.pack_into(data, 40 + 4 * self.slot_count + 20 * number, *entry)
        return bytes(data)

    @classmethod
    def decode(cls, data: bytes, slot_count: int, index_num: int) -> IndexFile:
        """The file behind these bytes."""
        index = cls(slot_count, index_num, *INDEX_HEADER.unpack_from(data))
        index.index_count = max(1, index.index_count)
        for slot in range(slot_count):
            (number,) = struct.unpack_from(">i", data, 40 + 4 * slot)
            if number:
                index.slots[slot] = number
        for number in range(1, index_num):
            entry = INDEX_ENTRY.unpack_from(data, 40 + 4 * slot_count + 20 * number)
            if any(entry):
                index.entries[number] = entry
        return index


def index_keys(record: Record) -> list[tuple[str, str]]:
    """(topic, key) pairs that 4.9.3 indexes for this record: UNIQ_KEY, then each of KEYS."""
    if record.sys_flag & TRANSACTION_MASK == ROLLBACK:
        return []
    properties = record.properties_map()
    topic = java_text(record.topic)
    keys = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
    keys += [key for key in properties.get("KEYS", "").split(" ") if key]
    return [(topic, key) for key in keys]


# ---- checkpoint -------------------------------------------------------------------------------


def is_queued(record: Record, topic: str, queue_id: int, queue_offset: int | None = None) -> bool:
    """Whether a record is in a queue, at that offset or any: its own queue, or one that
    INNER_MULTI_DISPATCH names."""
    if record.sys_flag & 0x4:
        return False
    own = (java_text(record.topic), record.queue_id) == (topic, queue_id)
    if own and queue_offset in (None, record.queue_offset):
        return True
    if record.queue_id != queue_id and not (topic.startswith("%LMQ%") and queue_id == 0):
        return False
    properties = string_to_properties(java_text(record.properties))
    lists = [
        re.sub(",*$", "", properties.get(f"INNER_MULTI_{name}", ""))
        for name in ("DISPATCH", "QUEUE_OFFSET")
    ]
    names, offsets = (text.split(",") for text in lists)
    return len(names) == len(offsets) and any(
        name == topic and queue_offset in (None, _decimal(text))
        for name, text in zip(names, offsets, strict=True)
    )


def _decimal(text: str) -> int | None:
    text = text.removeprefix("+")
    return int(text) if text.isdecimal() else None


def encode_checkpoint(physic: int, logics: int, index: int) -> bytes:
    """The checkpoint file."""
    return struct.pack(">qqq", physic, logics, index).ljust(4096, b"\0")


def decode_checkpoint(data: bytes) -> tuple[int, int, int]:
    """(physic, logics, index) timestamps; what is missing is zero."""
    physic, logics, index = struct.unpack(">qqq", data[:24].ljust(24, b"\0"))
    return physic, logics, index
