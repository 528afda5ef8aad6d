"""Mutations that know the positions of the numbers of a format.

A field is (name, position, bytes). A change is one of: a number set to a boundary value, a flipped
bit, noise, a zeroed sector, a cut, appended bytes, or a chunk copied, moved or swapped with
another. One random.Random draws all choices, so a seed identifies a mutant.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from support import oracle

SECTOR = 512


class Field(NamedTuple):
    """A signed big-endian number of a format."""

    name: str
    at: int
    width: int


def number_at(data: bytes | bytearray, field: Field) -> int:
    return int.from_bytes(data[field.at : field.at + field.width], "big", signed=True)


def boundary(rng: random.Random, old: int, width: int, left: int) -> int:
    """Return a value that code may not expect; `left` is the number of bytes after the field."""
    top = 1 << (8 * width - 1)
    if rng.random() < 0.5:
        value = rng.choice((0, 1, -1, 2, top - 1, -top, 1 << 15, (1 << 15) - 1, (1 << 31) - 1))
    else:
        value = rng.choice((old, left, rng.randrange(1, 1 << rng.randrange(1, 8 * width))))
        value += rng.choice((-20, -8, -7, -2, -1, 0, 1, 2, 3, 7, 8, 20))
    return (value + top) % (2 * top) - top


def set_number(data: bytearray, field: Field, value: int) -> None:
    data[field.at : field.at + field.width] = value.to_bytes(field.width, "big", signed=True)


def change_field(rng: random.Random, data: bytearray, fields: Sequence[Field]) -> str:
    """Set one of the fields of `data` to a boundary value."""
    field = fields[rng.randrange(len(fields))]
    if field.at + field.width > len(data):
        return "nothing"
    old = number_at(data, field)
    value = boundary(rng, old, field.width, len(data) - field.at - field.width)
    set_number(data, field, value)
    return f"{field.name} at {field.at} is {value} for {old}"


def change_bytes(rng: random.Random, data: bytearray) -> str:
    """Damage bytes without regard to fields."""
    if not data:
        return "nothing"
    at = rng.randrange(len(data))
    kind = rng.randrange(8)
    if kind < 3:
        data[at] ^= 1 << rng.randrange(8)
        return f"a bit of byte {at} flipped"
    if kind == 3:
        size = min(rng.choice((1, 2, 8, 20, 90)), len(data) - at)
        data[at : at + size] = rng.randbytes(size)
        return f"noise in {size} bytes at {at}"
    if kind == 4:
        start = at // SECTOR * SECTOR if len(data) > SECTOR else at
        size = min(SECTOR, len(data) - start)
        data[start : start + size] = bytes(size)
        return f"{size} bytes at {start} zeroed"
    if kind == 5:
        del data[at:]
        return f"cut to {at} bytes"
    if kind == 6:
        size = rng.choice((1, 7, 8, 20, 91, 600))
        data += rng.randbytes(size) if rng.random() < 0.5 else bytes(size)
        return f"{size} bytes behind the end"
    size = min(rng.choice((1, 4, 20, 91)), len(data))
    source = rng.randrange(len(data) - size + 1)
    data[at : at + size] = data[source : source + size]
    return f"{size} bytes at {source} copied to {at}"


def change_order(rng: random.Random, data: bytearray, extents: Sequence[tuple[int, int]]) -> str:
    """Swap, copy, overwrite or remove whole chunks; `extents` has (position, bytes) of each."""
    whole = [extent for extent in extents if sum(extent) <= len(data)]
    if len(whole) < 2:
        return "nothing"
    (at, size), (other, other_size) = sorted(rng.sample(whole, 2))
    one, two = bytes(data[at : at + size]), bytes(data[other : other + other_size])
    kind = rng.randrange(4)
    if kind == 0:
        data[at : other + other_size] = two + data[at + size : other] + one
        return f"the chunks at {at} and {other} swapped"
    if kind == 1:
        data[other:other] = one
        return f"the chunk at {at} copied to {other}"
    if kind == 2:
        data[other : other + min(size, len(data) - other)] = one[: len(data) - other]
        return f"the chunk at {at} written over {other}"
    del data[at : at + size]
    return f"the chunk at {at} removed"


def change(
    rng: random.Random,
    data: bytearray,
    fields: Sequence[Field],
    extents: Sequence[tuple[int, int]] = (),
    *,
    in_fields: float = 0.7,
    in_bytes: float = 1.0,
) -> str:
    """Make one change.

    A random number in [0, 1) below `in_fields` changes a field, else one below `in_bytes` changes
    bytes, and any other the order of chunks.
    """
    kind = rng.random()
    if kind < in_fields:
        return change_field(rng, data, fields)
    if kind < in_bytes:
        return change_bytes(rng, data)
    return change_order(rng, data, extents)


def changes(
    rng: random.Random,
    counts: Sequence[int],
    data: bytearray,
    fields: Sequence[Field],
    extents: Sequence[tuple[int, int]] = (),
    **shares: float,
) -> list[str]:
    """Make a number of changes that is drawn from `counts`."""
    return [change(rng, data, fields, extents, **shares) for _ in range(rng.choice(counts))]


# ---- records -------------------------------------------------------------------------------------


def record_fields(data: bytes, at: int = 0) -> list[Field]:
    """Return the fields of a whole record at position `at`."""
    record = oracle.decode_record(data)
    born, stored = len(record.born_host), len(record.store_host)
    body = 68 + born + stored
    topic = body + 4 + len(record.body)
    rows = [
        ("totalSize", 0, 4), ("magic", 4, 4), ("bodyCRC", 8, 4), ("queueId", 12, 4),
        ("flag", 16, 4), ("queueOffset", 20, 8), ("physicalOffset", 28, 8), ("sysFlag", 36, 4),
        ("bornTimestamp", 40, 8), ("bornPort", 44 + born, 4), ("storeTimestamp", 48 + born, 8),
        ("storePort", 52 + born + stored, 4), ("reconsumeTimes", 56 + born + stored, 4),
        ("preparedOffset", 60 + born + stored, 8), ("bodyLength", body, 4),
        ("topicLength", topic, 1), ("propertiesLength", topic + 1 + len(record.topic), 2),
    ]  # fmt: skip
    return [Field(name, at + position, width) for name, position, width in rows]


def repair_record(rng: random.Random, data: bytearray, at: int, phy_offset: int) -> str:
    """Correct some of magic, offset and CRC of the record at `at`, so that decoders read on."""
    text = []
    if len(data) < at + 88:
        return ""
    if rng.random() < 0.3:
        data[at + 4 : at + 8] = (oracle.MESSAGE_MAGIC % 2**32).to_bytes(4, "big")
        text.append("magic")
    if rng.random() < 0.5:
        data[at + 28 : at + 36] = phy_offset.to_bytes(8, "big", signed=True)
        text.append("physicalOffset")
    flag = data[at + 39]
    body = at + 84 + (12 if flag & 0x10 else 0) + (12 if flag & 0x20 else 0)
    size = int.from_bytes(data[body : body + 4], "big", signed=True)
    if rng.random() < 0.7 and 0 < size <= len(data) - body - 4:
        crc = zlib.crc32(data[body + 4 : body + 4 + size]) & 0x7FFFFFFF
        data[at + 8 : at + 12] = crc.to_bytes(4, "big")
        text.append("CRC")
    return " and ".join(text) and "; " + ", ".join(text) + " repaired"


NAMES = (b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"INNER_MULTI_DISPATCH",
         b"INNER_MULTI_QUEUE_OFFSET", b"WAIT", b"tags", b"KEY", b"DELAYS", b"UNIQ_KE?",
         b"INNER_MULTI_DISPATCX", b"INNER_MULTI_QUEUE_OFFSEX", b"", b"a", b"\xc3\xa9")  # fmt: skip
VALUES = (b"", b"k", b"a b  c", b" ", b"3", b"-1", b"+7", b"2147483648", b"\xff\xfe", b"\xed\xa0",
          b"\xed\xa0\x80x", b"\xf0\x9f\x98\x80", b"%LMQ%a,%LMQ%b", b"0,1", b"\0", b"\xf4\x90\x80",
          b"\xe0\x9f\x80", b"\xf0\x8f\xbf\xbf", b"\xc2\xa2\xc1", b"\xd9\xa3", b"\xe0\xa5\xa7",
          b"\xf5", b"\xe2\x82", b"\xef\xbc\x99", b"\x80", b"long " * 30)  # fmt: skip


def random_text(rng: random.Random) -> bytes:
    """Return a properties text of valid and invalid parts."""
    parts = []
    for _ in range(rng.choice((0, 1, 2, 3, 5, 14))):
        value = rng.choice(VALUES)
        if rng.random() < 0.2:
            value += rng.choice(VALUES)
        parts.append(rng.choice(NAMES) + rng.choice((b"\1", b"\1", b"\1", b"\1\1", b"")) + value)
    return b"\2".join(parts) + rng.choice((b"", b"", b"\2", b"\1", b"\2\2"))


HOSTS = (
    oracle.host("10.0.0.1", 10911), oracle.host("255.255.255.255", -1), oracle.host("0.0.0.0", 0),
    oracle.host("20010db8000000000000000000000001", 65535),
    oracle.host("0" * 20 + "ffff" + "7f000001", 10911), oracle.host("0" * 32, -(2**31)),
    oracle.host("00010000000000020003000000000004", 1),
    oracle.host("fe80000000000000ffffffffffffffff", 2**31 - 1),
)  # fmt: skip


TOPICS = (b"orders", b"events", b"T", b"", b"SCHEDULE_TOPIC_XXXX", b"\xc3\xa9", b"\xff",
          b"SCHEDULE_TOPIC_XXXY", b"a" * 127)  # fmt: skip


def random_record(rng: random.Random, phy_offset: int) -> bytes:
    """Return a valid record, of any kind that a log can contain."""
    body = rng.randbytes(rng.choice((0, 1, 30, 30, 120)))
    sys_flag = rng.choice((0, 0, 0, 4, 8, 12))
    if rng.random() < 0.2:
        body = zlib.compress(body)[: rng.choice((None, None, None, 7))]
        sys_flag |= 1
    topic, text = rng.choice(TOPICS), random_text(rng)
    if topic == b"SCHEDULE_TOPIC_XXXX" and rng.random() < 0.7:
        text = b"DELAY\1" + rng.choice((b"0", b"3", b"18", b"99", b"99", b"x")) + b"\2" + text
    elif rng.random() < 0.2:
        text = b"KEYS\1 a  b \2" + text
    return oracle.encode_record(
        oracle.Record(
            topic=topic,
            body=body,
            properties=text,
            queue_id=rng.choice((0, 1, 2, -1)),
            flag=rng.randrange(-5, 5),
            queue_offset=rng.choice((0, 1, 2, 3, 2**31, -1, 2**63 - 1, -(2**63))),
            phy_offset=phy_offset,
            sys_flag=sys_flag,
            born_timestamp=rng.choice((0, 1_700_000_000_000)),
            born_host=rng.choice(HOSTS),
            store_timestamp=rng.choice((0, 1_700_000_000_000, 2**63 - 1, -(2**63))),
            store_host=rng.choice(HOSTS),
            reconsume_times=rng.choice((0, 3)),
            prepared_transaction_offset=rng.choice((0, 77)),
        )
    )
