"""Goal: columns contain the values that a plain reader finds in the bytes of every record.
Method: random records of all host mixes against a struct-based decoder written here; malformed
text, compressed and bomb-like bodies, cuts at every byte; Arrow's own full validation."""

from __future__ import annotations

import codecs
import ipaddress
import pickle
import random
import struct
import sys
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyrocketstore.columns._decode import (
    COLUMNS,
    PROPERTIES_MAP,
    MapColumn,
    VarColumn,
    check_records,
    decode_records,
)
from pyrocketstore.columns.arrow import arrow_array
from pyrocketstore.commit_log._scan import status_name
from pyrocketstore.errors import MissingExtraError, StoreCorruptionError, StoreFormatError
from pyrocketstore.record import _message
from support.arrow_batches import batch_of
from support.column_lists import column_list

MAGIC = 0xDAA320A7
COMPRESSED, BORN_V6, STORE_V6 = 0x1, 0x10, 0x20
TEXT = ["topic", "tags", "keys", "uniq_key", "properties", "born_host", "store_host", "msg_id"]
Row = dict[str, Any]


# ---- records, and the plain decoder ------------------------------------------------------------


def encode(
    *,
    body: bytes = b"body",
    topic: bytes = b"Topic",
    properties: bytes = b"TAGS\x01TagA",
    born_host: bytes = bytes((10, 0, 0, 1, 0, 0, 0x2A, 0x9F)),
    store_host: bytes = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F)),
    sys_flag: int = 0,
    numbers: tuple[int, ...] = (0,) * 9,
) -> bytes:
    """Encode a record.

    `numbers`: queue id, flag, reconsume times, queue and physical offset, prepared offset, born
    and store time, CRC.
    """
    queue_id, flag, times, queue_offset, phy_offset, prepared, born, stored, crc = numbers
    sys_flag |= (BORN_V6 if len(born_host) == 20 else 0) | (
        STORE_V6 if len(store_host) == 20 else 0
    )
    rest = (
        struct.pack(
            ">Iiiiqqiq", MAGIC, crc, queue_id, flag, queue_offset, phy_offset, sys_flag, born
        )
        + born_host
        + struct.pack(">q", stored)
        + store_host
        + struct.pack(">iqi", times, prepared, len(body))
        + body
        + bytes((len(topic),))
        + topic
        + struct.pack(">h", len(properties))
        + properties
    )
    return struct.pack(">i", len(rest) + 4) + rest


def _java_error(error: UnicodeError) -> tuple[str, int]:
    """Decode with one U+FFFD for each maximal subpart and for each encoded surrogate."""
    assert isinstance(error, UnicodeDecodeError)
    pair = error.object[error.start : error.start + 3]
    if len(pair) > 1 and pair[0] == 0xED and 0xA0 <= pair[1] <= 0xBF:
        whole = len(pair) > 2 and 0x80 <= pair[2] <= 0xBF
        return "\ufffd", error.start + (3 if whole else 2)
    return "\ufffd", error.end


codecs.register_error("rocketstore-columns-java", _java_error)


def text_of(raw: bytes) -> str:
    return raw.decode("utf-8", "rocketstore-columns-java")


def host_of(raw: bytes) -> str:
    (port,) = struct.unpack(">i", raw[-4:])
    address = ipaddress.ip_address(raw[:-4])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return f"[{address.compressed}]:{port}"
        address = address.ipv4_mapped
    return f"{address}:{port}"


def property_of(raw: bytes, name: bytes) -> str | None:
    found = None
    for segment in raw.split(b"\x02"):
        key, separator, value = segment.partition(b"\x01")
        if separator and key == name and value:
            found = text_of(value)
    return found


def map_of(raw: bytes) -> dict[str, str]:
    found = {}
    for segment in text_of(raw).split("\x02"):
        name, separator, value = segment.partition("\x01")
        if name and separator and value:
            found[name] = value
    return found


def java_hash(text: str) -> int:
    units = text.encode("utf-16-be")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (value >> 31 << 32)


def decode(raw: bytes) -> Row:
    """Read one record field by field."""
    names = "size magic body_crc queue_id flag queue_offset phy_offset sys_flag born_timestamp"
    row: Row = dict(zip(names.split(), struct.unpack_from(">iIiiiqqiq", raw), strict=True))
    at = 48
    born = raw[at : at + (20 if row["sys_flag"] & BORN_V6 else 8)]
    at += len(born)
    (row["store_timestamp"],) = struct.unpack_from(">q", raw, at)
    at += 8
    store = raw[at : at + (20 if row["sys_flag"] & STORE_V6 else 8)]
    at += len(store)
    row["reconsume_times"], row["prepared_transaction_offset"], body_size = struct.unpack_from(
        ">iqi", raw, at
    )
    at += 16
    row["stored_body"] = row["body"] = raw[at : at + body_size]
    if row["sys_flag"] & COMPRESSED and body_size:
        row["body"] = zlib.decompress(row["body"])
    at += body_size
    row["topic"] = text_of(raw[at + 1 : at + 1 + raw[at]])
    at += 1 + raw[at]
    properties = raw[at + 2 :]
    row["properties"] = text_of(properties)
    row[PROPERTIES_MAP] = map_of(properties)
    for column, name in (("tags", b"TAGS"), ("keys", b"KEYS"), ("uniq_key", b"UNIQ_KEY")):
        row[column] = property_of(properties, name)
    row["tags_code"] = java_hash(row["tags"] or "")
    row["born_host"], row["store_host"] = host_of(born), host_of(store)
    if len(store) == 20 and store[:12] == bytes(10) + b"\xff\xff":
        store = store[12:]
    row["msg_id"] = (store + struct.pack(">q", row["phy_offset"])).hex().upper()
    return row


HOST_TAIL = struct.pack(">i", 10911)
V6_GROUPS = [0, 0, 0, 1, 0xDB8, 0x2001, 0xFFFF, 0x00A0, 0x0F00]


def random_host(rng: random.Random) -> bytes:
    kind = rng.randrange(4)
    port = struct.pack(">i", rng.choice((0, 80, 10911, 65535, -1, -(2**31), 2**31 - 1)))
    if kind == 0:
        return rng.randbytes(4) + port
    if kind == 1:
        return bytes(10) + b"\xff\xff" + rng.randbytes(4) + port
    if kind == 2:
        return rng.randbytes(16) + port
    return b"".join(rng.choice(V6_GROUPS).to_bytes(2, "big") for _ in range(8)) + port


PIECES = [b"TAGS\x01", b"KEYS\x01", b"UNIQ_KEY\x01", b"a\x01b", b"\x02", b"\x01", b"TagA", b"k1 k2"]
PIECES += [
    "名字😀é".encode(),
    b"\xff",
    b"\xed\xa0\x80",
    b"\xf0\x9f",
    b"\xe2\x82",
    b"plain text, long",
]


def random_record(rng: random.Random, hosts: list[bytes]) -> bytes:
    body = rng.randbytes(rng.choice((0, 1, 40, 1000)))
    sys_flag = rng.choice((0, 0, COMPRESSED, 0x2, 0xC, 0x40000000, -(2**31)))
    if sys_flag & COMPRESSED and body:
        body = zlib.compress(body * 3)
    numbers = [rng.choice((0, 1, -1, 2**31 - 1, -(2**31))) for _ in range(3)]
    numbers += [rng.choice((0, 7, -1, 2**63 - 1, -(2**63), 1 << 40)) for _ in range(5)]
    return encode(
        body=body,
        topic=b"".join(rng.choices(PIECES[-7:], k=rng.randrange(4))),
        properties=b"".join(rng.choices(PIECES, k=rng.randrange(9))),
        born_host=rng.choice(hosts),
        store_host=rng.choice(hosts),
        sys_flag=sys_flag,
        numbers=(*numbers, rng.randrange(-(2**31), 2**31)),
    )


def laid_out(records: list[bytes], gap: int = 0) -> tuple[bytes, Any, Any]:
    """Return all records in one buffer with `gap` bytes between, their positions and sizes."""
    data, positions = bytearray(b"\xee" * gap), []
    for record in records:
        positions.append(len(data))
        data += record + b"\xee" * gap
    sizes = np.array([len(r) for r in records], np.int32)
    return bytes(data), np.array(positions, np.int64), sizes


# ---- equality ----------------------------------------------------------------------------------


@pytest.mark.bad_input
@pytest.mark.parametrize("seed", range(6))
def test_random_records_against_the_plain_decoder(seed: int) -> None:
    rng = random.Random(seed)
    hosts = [random_host(rng) for _ in range(rng.choice((1, 3, 40)))]
    records = [random_record(rng, hosts) for _ in range(rng.choice((1, 7, 8, 300)))]
    data, positions, sizes = laid_out(records, gap=seed % 3)
    names = (*COLUMNS, PROPERTIES_MAP)
    columns = decode_records(data, positions, sizes, names)
    assert tuple(columns) == names
    wanted = [decode(record) for record in records]
    for name, column in columns.items():
        assert column_list(column) == [row[name] for row in wanted], f"{name}, seed {seed}"
    messages = [_message.decode_record(record) for record in records]
    for name in set(COLUMNS) - {"properties"}:
        assert column_list(columns[name]) == [getattr(m, name) for m in messages], name


def test_the_decoder_of_this_file_reads_what_the_encoder_wrote() -> None:
    row = decode(encode(numbers=(1, 2, 3, 4, 5, 6, 7, 8, 9)))
    assert row["msg_id"] == "7F00000100002A9F0000000000000005"
    assert (row["queue_id"], row["store_timestamp"], row["tags"]) == (1, 8, "TagA")
    assert row["tags_code"] == 2598919


def test_types_and_shapes() -> None:
    data, positions, sizes = laid_out([encode(), encode(properties=b"")])
    columns = decode_records(data, positions, sizes)
    for name in ("queue_id", "flag", "sys_flag", "body_crc", "reconsume_times", "size"):
        assert columns[name].dtype == np.int32
    for name in ("queue_offset", "phy_offset", "born_timestamp", "tags_code"):
        assert columns[name].dtype == np.int64
    tags = columns["tags"]
    assert isinstance(tags, VarColumn)
    assert (tags.offsets.dtype, tags.data.dtype) == (np.dtype(np.int32), np.dtype(np.uint8))
    assert (tags.null_count, tags.validity.tolist(), tags.is_text) == (1, [1], True)
    assert (tags[-1], tags[0], len(tags)) == (None, "TagA", 2)
    with pytest.raises(IndexError):
        tags[2]
    again = pickle.loads(pickle.dumps(tags))
    assert again.to_list() == ["TagA", None]
    body = columns["body"]
    assert (body.validity, body.null_count, body.is_text) == (None, 0, False)


def test_only_the_columns_asked_for_in_their_order() -> None:
    # The body would not inflate, but is not requested.
    record = encode(body=b"not zlib", sys_flag=COMPRESSED)
    data, positions, sizes = laid_out([record])
    columns = decode_records(data, positions, sizes, ["stored_body", "queue_id"])
    assert list(columns) == ["stored_body", "queue_id"]
    assert columns["stored_body"].to_list() == [b"not zlib"]


def test_no_records_and_no_columns() -> None:
    nothing = np.zeros(0, np.int64), np.zeros(0, np.int32)
    columns = decode_records(b"", *nothing)
    assert {name: len(column) for name, column in columns.items()} == dict.fromkeys(COLUMNS, 0)
    assert batch_of(columns).num_rows == 0
    data, positions, sizes = laid_out([encode()])
    assert decode_records(data, positions, sizes, []) == {}


@pytest.mark.parametrize("columns", [["body", "body"], ["Body"], "body", [3]])
def test_wrong_columns(columns: Any) -> None:
    data, positions, sizes = laid_out([encode()])
    with pytest.raises(StoreFormatError):
        decode_records(data, positions, sizes, columns)


any_text = st.one_of(
    st.text(max_size=12).map(str.encode),
    st.lists(st.sampled_from([*b"Aa \x80\x8f\x90\xa0\xbf\xc2\xe0\xe1\xed\xef\xf0\xf4\xf5"])).map(
        bytes
    ),
)


@pytest.mark.bad_input
@settings(derandomize=True, deadline=None, max_examples=200)
@given(topics=st.lists(any_text.map(lambda raw: raw[:127]), min_size=1, max_size=5))
@example(topics=[b"\xed\xa0\x80", b"A", b"12345678\xff"])
def test_any_bytes_come_out_as_the_text_that_java_reads(topics: list[bytes]) -> None:
    data, positions, sizes = laid_out([encode(topic=topic) for topic in topics])
    columns = decode_records(data, positions, sizes, ["topic"])
    assert columns["topic"].to_list() == [text_of(topic) for topic in topics]
    batch_of(columns).validate(full=True)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(groups=st.lists(st.sampled_from(V6_GROUPS), min_size=8, max_size=8))
def test_ipv6_hosts(groups: list[int]) -> None:
    host = struct.pack(">8H", *groups) + HOST_TAIL
    data, positions, sizes = laid_out([encode(born_host=host)])
    columns = decode_records(data, positions, sizes, ["born_host"])
    assert columns["born_host"].to_list() == [host_of(host)]


@pytest.mark.parametrize("size", [8, 20])
def test_hosts_that_differ_in_one_byte_from_the_one_before(size: int) -> None:
    hosts = [bytes(size)]
    for at in range(size):
        hosts += [hosts[-1], hosts[-1][:at] + b"\x21" + hosts[-1][at + 1 :]]
    records = [encode(born_host=host, store_host=host) for host in hosts]
    columns = decode_records(*laid_out(records), ["born_host", "store_host", "msg_id"])
    for name, column in columns.items():
        assert column_list(column) == [decode(record)[name] for record in records], name


# ---- maps of properties ------------------------------------------------------------------------


def maps_of(texts: list[bytes]) -> MapColumn:
    data, positions, sizes = laid_out([encode(properties=text) for text in texts], gap=1)
    column = decode_records(data, positions, sizes, [PROPERTIES_MAP])[PROPERTIES_MAP]
    assert isinstance(column, MapColumn)
    return column


def items(maps: list[dict[str, str]]) -> list[list[tuple[str, str]]]:
    return [list(found.items()) for found in maps]


@pytest.mark.bad_input
@settings(derandomize=True, deadline=None, max_examples=300)
@given(texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join), max_size=5))
@example(texts=[b"\xff\x01a\x02\xfe\x01b\x02\xff\x01c"])  # names that decode to one
@example(texts=[b"a\x01b\x02a\x01\x02\x01b\x02a\x01\x01\x02b", b"", b"\x02"])
def test_maps_of_properties(texts: list[bytes]) -> None:
    column = maps_of(texts)
    assert items(column.to_list()) == items([map_of(text) for text in texts])
    batch_of({"m": column}).validate(full=True)


@pytest.mark.bad_input
@pytest.mark.parametrize("count", [15, 16, 17, 18, 31, 32, 33, 64, 65, 700])
def test_many_names_in_one_record(count: int) -> None:
    rng = random.Random(count)
    names = [b"n%d" % i if i % 3 else b"a longer name %d" % i for i in range(count)]
    names += rng.choices(names, k=99)
    texts = [
        b"\x02".join(b"%s\x01v%d" % (name, i) for i, name in enumerate(names)),
        b"a\x01b",
        b"\x02".join(b"%s\x01w" % name for name in reversed(names)),
    ]
    column = maps_of(texts)
    assert items(column.to_list()) == items([map_of(text) for text in texts])
    assert column.keys.data.nbytes == sum(len(k) for m in column.to_list() for k in m)


def test_as_many_names_as_a_record_holds_take_no_longer_than_their_bytes() -> None:
    names = [struct.pack(">H", 0x2121 + i).hex()[:3] for i in range(6500)]
    text = "\x02".join(f"{name}{i}\x01v" for i, name in enumerate(names)).encode()[:32767]
    column = maps_of([text] * 60)
    assert column.to_list()[-1] == map_of(text)


def test_a_map_column() -> None:
    column = maps_of([b"a\x01b", b"", b"c\x01d\x02e\x01f"])
    assert (len(column), len(column.keys), column.null_count) == (3, 3, 0)
    assert column.offsets.dtype == np.int32 and column.offsets.tolist() == [0, 1, 1, 3]
    assert (column[-1], column[1]) == ({"c": "d", "e": "f"}, {})
    with pytest.raises(IndexError):
        column[3]
    assert pickle.loads(pickle.dumps(column)).to_list() == column.to_list()
    assert "3 maps" in repr(column)
    some = MapColumn(column.offsets, column.keys, column.values, np.array([5], np.uint8), 1)
    assert some.to_list() == [{"a": "b"}, None, {"c": "d", "e": "f"}]
    assert batch_of({"m": some}).to_pydict() == {"m": [
        [("a", "b")], None, [("c", "d"), ("e", "f")]]}  # fmt: skip


# ---- bodies ------------------------------------------------------------------------------------


def test_compressed_bodies_among_others() -> None:
    plain = [b"", b"one", bytes(100_000), b"last"]
    records = []
    for i, body in enumerate(plain * 3):
        flag = COMPRESSED if i % 2 else 0
        records.append(encode(body=zlib.compress(body) if flag else body, sys_flag=flag))
    data, positions, sizes = laid_out(records)
    columns = decode_records(data, positions, sizes, ["body", "stored_body"])
    assert columns["body"].to_list() == plain * 3
    assert columns["stored_body"].to_list() == [decode(r)["stored_body"] for r in records]


def bomb() -> bytes:
    deflater = zlib.compressobj(9)
    piece = bytes(1 << 20)
    return b"".join(deflater.compress(piece) for _ in range(65)) + deflater.flush()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"not zlib", "does not inflate"),
        (zlib.compress(b"body" * 100)[:-3], "cut short"),
        (bomb(), "more than 67108864 bytes"),
    ],
)
def test_a_body_that_does_not_inflate(body: bytes, reason: str) -> None:
    bad = encode(body=body, sys_flag=COMPRESSED, numbers=(0, 0, 0, 0, 12345, 0, 0, 0, 0))
    data, positions, sizes = laid_out([encode(), bad])
    with pytest.raises(StoreCorruptionError, match=reason) as caught:
        decode_records(data, positions, sizes, ["body"], path="some/file")
    assert (caught.value.path, caught.value.position) == ("some/file", positions[1])


def test_bodies_that_do_not_inflate_can_be_absent() -> None:
    good = encode(body=zlib.compress(b"inflated"), sys_flag=COMPRESSED)
    bad = encode(body=b"not zlib", sys_flag=COMPRESSED)
    cut = encode(body=zlib.compress(b"body" * 100)[:-3], sys_flag=COMPRESSED)
    records = [encode(), bad, good, cut, encode(), good, encode(), encode(), encode(), bad]
    data, positions, sizes = laid_out(records)
    names = ["body", "stored_body", "topic"]
    columns = decode_records(data, positions, sizes, names, on_bad_body="null")
    body = columns["body"]
    assert isinstance(body, VarColumn) and body.null_count == 3
    wanted = [decode(r)["body"] if r not in (bad, cut) else None for r in records]
    assert body.to_list() == wanted
    assert columns["stored_body"].null_count == 0
    batch = batch_of(columns)
    batch.validate(full=True)
    assert batch.column("body").to_pylist() == wanted
    valid = decode_records(*laid_out([good, encode()]), ["body"], on_bad_body="null")["body"]
    assert (valid.validity, valid.null_count) == (None, 0)
    with pytest.raises(StoreFormatError, match="on_bad_body"):
        decode_records(data, positions, sizes, names, on_bad_body="skip")


# ---- damage ------------------------------------------------------------------------------------


@pytest.mark.bad_input
def test_every_cut_is_an_error_and_every_flip_is_survived() -> None:
    record = encode(properties=b"TAGS\x01TagA\x02KEYS\x01k")
    place = np.zeros(1, np.int64)
    for cut in range(len(record)):
        with pytest.raises(StoreCorruptionError):
            decode_records(record[:cut], place, np.array([cut], np.int32))
    for at in range(len(record)):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            flipped = bytearray(record)
            flipped[at] = value
            try:
                columns = decode_records(flipped, place, np.array([len(record)], np.int32))
            except StoreCorruptionError:
                continue
            batch_of(columns).validate(full=True)


def test_an_error_names_the_record() -> None:
    data, positions, sizes = laid_out([encode(), encode(), encode()])
    damaged = bytearray(data)
    damaged[positions[1] + 4] ^= 1
    with pytest.raises(StoreCorruptionError, match="bad magic code") as caught:
        decode_records(damaged, positions, sizes, ["topic"], path="some/file")
    assert (caught.value.path, caught.value.position) == ("some/file", positions[1])


@pytest.mark.bad_input
def test_positions_outside_of_the_data() -> None:
    record = encode()
    size = len(record)
    for position, length in [(-1, size), (1, size), (0, size + 1), (2**62, size), (0, -1)]:
        with pytest.raises(StoreCorruptionError, match="outside"):
            decode_records(record, np.array([position], np.int64), np.array([length], np.int32))
    with pytest.raises(StoreFormatError, match="one entry"):
        decode_records(record, np.zeros(2, np.int64), np.zeros(1, np.int32))


@pytest.mark.bad_input
def test_verdicts_are_those_of_single_records() -> None:
    record = encode(numbers=(0, 0, 0, 0, 4096, 0, 0, 0, zlib.crc32(b"body") & 0x7FFFFFFF))
    mutants = [record, b"", bytes(91)]
    mutants += [record[:cut] for cut in range(0, len(record), 7)]
    for at in range(len(record)):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            mutants.append(record[:at] + bytes([value]) + record[at + 1 :])
    data, positions, sizes = laid_out(mutants, gap=1)
    for phy_offset, check_crc in ((-1, False), (4096, True), (4097, False)):
        offsets = None if phy_offset < 0 else np.full(len(mutants), phy_offset, np.int64)
        got = check_records(data, positions, sizes, phy_offsets=offsets, check_crc=check_crc)
        assert got.dtype == np.uint8
        for i, mutant in enumerate(mutants):
            try:
                _message.decode_record(mutant, phy_offset, check_crc=check_crc)
                assert got[i] == 0, i
            except StoreCorruptionError as error:
                assert status_name(got[i]) == error.reason, i


@pytest.mark.bad_input
def test_verdicts_on_positions_outside_of_the_data() -> None:
    record = encode()
    size = len(record)
    places = [(-1, size), (1, size), (0, size + 1), (2**62, size), (0, -1), (-(2**63), 2**31 - 1)]
    positions = np.array([position for position, _ in places], np.int64)
    sizes = np.array([size for _, size in places], np.int32)
    assert check_records(record, positions, sizes).tolist() == [3] * len(places)
    assert check_records(b"", positions[:0], sizes[:0]).tolist() == []
    with pytest.raises(StoreFormatError, match="one entry"):
        check_records(record, positions, sizes[:1])
    with pytest.raises(StoreFormatError, match="one entry"):
        check_records(record, positions, sizes, phy_offsets=positions[:1])


def test_the_checks_that_can_be_asked_for() -> None:
    crc = zlib.crc32(b"body") & 0x7FFFFFFF
    record = encode(numbers=(0, 0, 0, 0, 4096, 0, 0, 0, crc))
    data, positions, sizes = laid_out([record])
    offsets = np.array([4096], np.int64)
    decode_records(data, positions, sizes, ["topic"], phy_offsets=offsets, check_crc=True)
    with pytest.raises(StoreCorruptionError, match="physicalOffset"):
        decode_records(data, positions, sizes, ["topic"], phy_offsets=offsets + 1)
    damaged = data.replace(b"body", b"bodY")
    decode_records(damaged, positions, sizes, ["topic"])
    with pytest.raises(StoreCorruptionError, match="CRC"):
        decode_records(damaged, positions, sizes, ["topic"], check_crc=True)


# ---- Arrow -------------------------------------------------------------------------------------


def test_record_batch() -> None:
    pa = pytest.importorskip("pyarrow")
    rng = random.Random(1)
    hosts = [random_host(rng) for _ in range(5)]
    records = [random_record(rng, hosts) for _ in range(100)]
    columns = decode_records(*laid_out(records))
    batch = batch_of(columns)
    batch.validate(full=True)
    assert batch.schema.names == list(COLUMNS)
    assert all(field.nullable for field in batch.schema)
    for name in COLUMNS:
        kind = batch.schema.field(name).type
        if name in TEXT:
            assert kind == pa.string()
        else:
            assert kind in (pa.int32(), pa.int64(), pa.binary())
        assert batch.column(name).to_pylist() == column_list(columns[name]), name
    address = batch.column("body").buffers()[2].address
    assert address == columns["body"].data.ctypes.data  # shared, not copied
    del columns
    assert batch.column("topic").to_pylist() == [decode(r)["topic"] for r in records]


def test_a_column_above_two_gibibytes_has_the_large_type() -> None:
    pa = pytest.importorskip("pyarrow")
    offsets, data = np.array([0, 2, 3], np.int64), np.frombuffer(b"abc", np.uint8)
    for is_text, kind in ((True, pa.large_string()), (False, pa.large_binary())):
        batch = batch_of({"c": VarColumn(offsets, data, None, 0, is_text)})
        assert batch.schema.field("c").type == kind
        assert batch.column("c").to_pylist() == (["ab", "c"] if is_text else [b"ab", b"c"])


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="read_batch needs"):
        arrow_array(np.zeros(1, np.int32))


@pytest.mark.bad_input
def test_a_short_validity_is_an_error() -> None:
    """Special methods of a column check the bounds of the objects that it was made of."""
    offsets, data = np.zeros(3, np.int32), np.zeros(0, np.uint8)
    empty = VarColumn(offsets, data, None, 0, True)
    short: Any = ()
    var, maps = VarColumn(offsets, data, short, 0, True), MapColumn(offsets, empty, empty, short)
    for column in (var, maps):
        with pytest.raises(IndexError):
            column.to_list()
