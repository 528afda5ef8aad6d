"""Goal: one record, read and written, is what 4.9.3 reads and writes, and damaged bytes are
recognized without a look past their end.
Method: vectors of 4.9.3, and random records, cuts, flips and lengths against the oracle; what is
read is right before a page that cannot be read."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import ipaddress
import mmap
import pickle
import struct
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyrocketstore.errors import StoreCorruptionError, StoreFormatError
from pyrocketstore.record import _message
from pyrocketstore.record._message import MessageExt, check_message, decode_record
from pyrocketstore.record.message import (
    RESERVED_NAMES,
    Message,
    MessageExtBatch,
    MessageExtBrokerInner,
    MessageRefused,
    check_properties,
    check_text,
    check_topic,
    join_keys,
    parse_java_int,
)
from support import oracle
from support.vectors import JAVA_ORDERS, SAME_HASH, V4_RECORD, V6_RECORD

SETTINGS = settings(derandomize=True, max_examples=150, deadline=None)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
V6 = bytes.fromhex("20010db8000000000000000000000191")

hosts = st.one_of(
    st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16), st.just(V6)
).flatmap(lambda raw: st.integers(0, 65535).map(lambda port: raw + struct.pack(">i", port)))
#: Bytes that matter: separators, whole and broken UTF-8, the names the store looks for.
pieces = st.sampled_from(
    [
        *(b"\x01", b"\x02", b"a", b"\x00", b" ", b"7"),
        *(b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"INNER_MULTI_DISPATCH"),
        b"INNER_MULTI_QUEUE_OFFSET",
        *(
            b"\xed\xa0\x80",
            b"\xed\xbf",
            b"\xc3",
            b"\xa9",
            b"\xf0\x9f\x98\x80",
            b"\xf4\x90",
            b"\xff",
        ),
    ]
)
texts = st.lists(pieces, max_size=12).map(b"".join)
records = st.builds(
    oracle.Record,
    topic=st.one_of(st.just(b"T"), st.binary(max_size=127)),
    body=st.binary(max_size=60),
    properties=texts,
    queue_id=INT32,
    flag=INT32,
    queue_offset=INT64,
    phy_offset=INT64,
    sys_flag=INT32.map(lambda flag: flag & ~oracle.COMPRESSED),
    born_timestamp=INT64,
    born_host=hosts,
    store_timestamp=INT64,
    store_host=hosts,
    reconsume_times=INT32,
    prepared_transaction_offset=INT64,
)


@pytest.fixture(scope="module")
def guarded() -> Iterator[memoryview]:
    """Memory whose end is the end of what may be read."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 3 * page)
    anchor = ctypes.c_char.from_buffer(memory)
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert mprotect(ctypes.addressof(anchor) + 2 * page, page, mmap.PROT_READ & 0) == 0
    view = memoryview(memory)[: 2 * page]
    yield view
    view.release()
    assert mprotect(ctypes.addressof(anchor) + 2 * page, page, mmap.PROT_READ) == 0
    del anchor
    memory.close()


def at_the_end(guarded: memoryview, data: bytes) -> memoryview:
    """`data` in guarded memory, its last byte the last that can be read."""
    target = guarded[len(guarded) - len(data) :]
    target[:] = data
    return target


def check_both(guarded: memoryview, data: bytes, phy_offset: int = -1) -> str:
    """Our verdict, having compared it with the oracle's and with 4.9.3's."""
    verdict = check_message(at_the_end(guarded, data), phy_offset)
    assert verdict == oracle.check_record(data, phy_offset)
    for check_crc in (True, False):
        accepted = check_message(data, check_crc=check_crc)[0] in ("ok", "blank")
        assert accepted == oracle.java_check(data, check_crc)[1]
    return verdict[0]


# ---- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [V4_RECORD, V6_RECORD], ids=["v4", "v6"])
def test_vectors_of_java(raw: bytes) -> None:
    assert check_message(raw, decode_record(raw).phy_offset) == ("ok", len(raw))
    assert decode_record(raw).record == raw


def test_every_attribute_of_the_vectors() -> None:
    message = decode_record(V4_RECORD, 0, check_crc=True)
    assert (message.topic, message.queue_id, message.queue_offset) == ("T", 3, 0)
    assert (message.phy_offset, message.size, message.flag, message.sys_flag) == (0, 111, 7, 0)
    assert message.body == message.stored_body == b"hi"
    assert (message.tags, message.keys, message.uniq_key) == ("TagA", "k1", None)
    assert message.properties == {"TAGS": "TagA", "KEYS": "k1"}
    assert message.properties_string == "KEYS\x01k1\x02TAGS\x01TagA"
    assert (message.born_timestamp, message.store_timestamp) == (1700000000000, 0x1A1FBC9E89F)
    assert (message.born_host, message.store_host) == ("127.0.0.1:1", "127.0.0.1:2")
    assert message.body_crc == zlib.crc32(b"hi") & 0x7FFFFFFF
    assert (message.reconsume_times, message.prepared_transaction_offset) == (2, 0)
    assert (message.msg_id, message.tags_code) == ("7F000001000000020000000000000000", 2598919)
    message = decode_record(V6_RECORD, 111)
    assert (message.born_host, message.sys_flag) == ("[2001:db8::1]:1", 0x10)
    assert (message.tags, message.keys, message.properties, message.tags_code) == (
        None,
        None,
        {},
        0,
    )
    assert message.msg_id == "7F00000100000002000000000000006F"


@SETTINGS
@given(records, st.binary(max_size=20))
def test_decode_agrees_with_the_oracle(record: oracle.Record, behind: bytes) -> None:
    raw = oracle.encode_record(record)
    record = oracle.decode_record(raw)
    message = decode_record(raw + behind, check_crc=True)
    for field in dataclasses.fields(oracle.Record):
        if field.name in ("queue_id", "flag", "queue_offset", "phy_offset", "sys_flag") or (
            field.name.endswith(("timestamp", "times", "transaction_offset"))
        ):
            assert getattr(message, field.name) == getattr(record, field.name), field.name
    properties = record.properties_map()
    assert message.record == raw
    assert message.topic == oracle.java_text(record.topic)
    assert (message.body, message.body_crc) == (record.body, record.crc)
    assert message.properties == properties
    assert message.properties_string == oracle.java_text(record.properties)
    assert message.tags == properties.get("TAGS")
    assert message.keys == properties.get("KEYS")
    assert message.uniq_key == properties.get("UNIQ_KEY")
    assert message.tags_code == oracle.java_hash(properties.get("TAGS", ""))
    assert (message.born_host_bytes, message.store_host_bytes) == (
        record.born_host,
        record.store_host,
    )


@SETTINGS
@given(texts)
def test_the_stores_own_properties(text: bytes) -> None:
    found = _message.find_properties(text)
    properties = oracle.string_to_properties(oracle.java_text(text))
    names = ["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "INNER_MULTI_DISPATCH"]
    names.append("INNER_MULTI_QUEUE_OFFSET")
    values = {name: oracle.java_text(text[at : at + size]) for name, (at, size) in found.items()}
    assert values == {name: properties[name] for name in names if name in properties}


def test_messages_are_values() -> None:
    message = decode_record(V4_RECORD)
    again = pickle.loads(pickle.dumps(message))
    assert again == message and hash(again) == hash(message) and again.tags == "TagA"
    assert message != decode_record(V6_RECORD) and message != V4_RECORD
    assert repr(message).startswith(
        "<MessageExt 'T' queue_id=3 queue_offset=0 phy_offset=0 size=111 tags="
    )
    with pytest.raises(TypeError):
        MessageExt()
    hollow = MessageExt.__new__(MessageExt)  # nobody should, and nothing may break
    assert (hollow.topic, hollow.body, hollow.properties, hollow.tags) == ("", b"", {}, None)
    assert (hollow.store_host, hollow.store_host_bytes, hollow.size) == ("", b"", 0)


def test_a_message_outlives_what_it_was_read_from() -> None:
    source = bytearray(V4_RECORD)
    message = decode_record(source)
    source[:] = bytes(len(source))
    assert (message.topic, message.body, message.tags) == ("T", b"hi", "TagA")


def compressed(stored: bytes) -> MessageExt:
    record = oracle.Record(body=stored, sys_flag=oracle.COMPRESSED, phy_offset=77)
    return decode_record(oracle.encode_record(record))


def test_a_compressed_body_is_inflated() -> None:
    stored = zlib.compress(b"x" * 10_000)
    assert compressed(stored).body == b"x" * 10_000
    assert compressed(stored).stored_body == stored
    assert compressed(stored + b"left over").body == b"x" * 10_000
    assert compressed(b"").body == b""


@pytest.mark.parametrize(
    "stored",
    [
        b"not zlib",
        zlib.compress(b"x" * 100)[:-1],
        zlib.compress(bytes(_message.MAX_INFLATED_SIZE + 1), 9),
    ],
    ids=["garbage", "cut", "bomb"],
)
def test_a_body_that_does_not_inflate(stored: bytes) -> None:
    message = compressed(stored)
    for _ in range(2):
        with pytest.raises(StoreCorruptionError, match="byte 77"):
            _ = message.body
    assert message.stored_body == stored


# ---- damage -------------------------------------------------------------------------------------

SAMPLES = [
    V4_RECORD,
    V6_RECORD,
    oracle.encode_record(oracle.Record(body=b"", properties=b"")),
    oracle.encode_record(
        oracle.Record(born_host=V6 + bytes(4), store_host=V6 + bytes(4), properties=b"a\x01b\x02")
    ),
]


@pytest.mark.parametrize("raw", SAMPLES)
@pytest.mark.parametrize("behind", [b"", bytes(30)])
def test_every_cut(guarded: memoryview, raw: bytes, behind: bytes) -> None:
    for cut in range(len(raw)):
        assert check_both(guarded, raw[:cut]) == "torn", f"cut at byte {cut}"
        zeroed = raw[:cut].ljust(len(raw), b"\0") + behind
        assert check_both(guarded, zeroed) != "blank", f"zeros from byte {cut}"
    assert check_both(guarded, raw + behind) == "ok"


@pytest.mark.parametrize("raw", SAMPLES)
def test_every_flip(guarded: memoryview, raw: bytes) -> None:
    phy_offset = decode_record(raw).phy_offset
    for position in range(len(raw)):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[position] ^= 1 << bit
            check_both(guarded, bytes(damaged), phy_offset)


@pytest.mark.parametrize("raw", SAMPLES)
def test_every_length_field(guarded: memoryview, raw: bytes) -> None:
    record = oracle.decode_record(raw)
    body_at = 68 + len(record.born_host) + len(record.store_host)
    topic_at = body_at + 4 + len(record.body)
    properties_at = topic_at + 1 + len(record.topic)
    fields = ((0, ">i"), (body_at, ">i"), (topic_at, ">b"), (properties_at, ">h"))
    for position, code in fields:
        limit = 1 << (8 * struct.calcsize(code) - 1)
        left = len(raw) - position - struct.calcsize(code)
        near = {delta + base for base in (0, left, len(raw)) for delta in (-2, -1, 0, 1, 2)}
        for value in near | {-limit, limit - 1, 90, 91, 92}:
            if -limit <= value < limit:
                damaged = bytearray(raw)
                struct.pack_into(code, damaged, position, value)
                check_both(guarded, bytes(damaged))
                check_both(guarded, bytes(damaged) + b"\xff" * 8)


def test_negative_lengths_count_as_none(guarded: memoryview) -> None:
    raw = bytearray(oracle.encode_record(oracle.Record(topic=b"TT", body=b"", properties=b"")))
    struct.pack_into(">i", raw, 84, -5)
    struct.pack_into(">h", raw, len(raw) - 2, -32768)
    assert check_both(guarded, bytes(raw)) == "ok"
    message = decode_record(raw)
    assert (message.body, message.properties, message.topic) == (b"", {}, "TT")


def test_a_negative_topic_length_does_not_go_back(guarded: memoryview) -> None:
    """Five bytes back, into the body, stands a properties length with which it would add up."""
    raw = bytearray(oracle.encode_record(oracle.Record(topic=b"", body=b"\x00\x05\x00\x00")))
    raw[len(raw) - 3] = 0xFB
    assert check_both(guarded, bytes(raw)) == "bad_size"


def test_verdicts(guarded: memoryview) -> None:
    raw = V6_RECORD
    assert check_both(guarded, bytes(8)) == "end"
    assert check_both(guarded, oracle.blank(8)) == "blank"
    assert check_both(guarded, struct.pack(">ii", -1, oracle.BLANK_MAGIC)) == "blank"
    assert check_both(guarded, struct.pack(">ii", 91, 0) + bytes(83)) == "bad_magic"
    assert check_both(guarded, raw, 111) == "ok"
    assert check_both(guarded, raw, 112) == "bad_offset"
    assert check_both(guarded, raw, 0) == "bad_offset"
    wrong = oracle.encode_record(oracle.Record(body=b"hi", crc=0))
    assert check_both(guarded, wrong) == "bad_crc"
    assert check_message(wrong, check_crc=False)[0] == "ok"
    no_body = oracle.encode_record(oracle.Record(body=b"", crc=1))
    assert check_both(guarded, no_body) == "ok"
    assert (
        check_both(guarded, struct.pack(">ii", 90, oracle.MESSAGE_MAGIC) + bytes(40)) == "bad_size"
    )
    newer = oracle.encode_record(oracle.Record())
    newer = newer[:4] + struct.pack(">I", 0xDAA320AC) + newer[8:]
    assert check_both(guarded, newer) == "bad_magic"


def test_a_bad_delay_does_not_end_the_log() -> None:
    """4.9.3 takes the record for corrupt and cuts the log there."""
    bad = oracle.Record(topic=b"SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x01soon")
    assert check_message(oracle.encode_record(bad))[0] == "ok"


@SETTINGS
@given(st.binary(max_size=200))
def test_noise(data: bytes) -> None:
    assert check_message(data) == oracle.check_record(data)
    data = data[:4] + struct.pack(">i", oracle.MESSAGE_MAGIC) + data[8:]
    assert check_message(data) == oracle.check_record(data)


@pytest.mark.parametrize("raw", [b"", bytes(100), V4_RECORD[:-1], oracle.blank(100)])
def test_decode_refuses_what_is_no_record(raw: bytes) -> None:
    with pytest.raises(StoreCorruptionError) as caught:
        decode_record(raw, 5, path="somewhere")
    assert (caught.value.path, caught.value.position) == ("somewhere", 5)


# ---- writing ------------------------------------------------------------------------------------


def inner_of(record: oracle.Record) -> MessageExtBrokerInner:
    """The message that must be stored as this record."""
    return MessageExtBrokerInner(
        record.topic.decode(),
        record.body,
        record.queue_id,
        properties_string=record.properties.decode(),
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )


def without_mapping(host: bytes) -> bytes:
    return host[12:] if host[:12] == bytes(10) + b"\xff\xff" else host


def test_encode_the_vectors_of_java() -> None:
    for raw in (V4_RECORD, V6_RECORD):
        record = oracle.decode_record(raw)
        fresh = dataclasses.replace(record, queue_offset=0, phy_offset=0, store_timestamp=0)
        assert _message.encode_message(inner_of(record)) == oracle.encode_record(fresh)
    inner = MessageExtBrokerInner("T", b"hi", 3, born_host="[2001:db8::1]:1")
    inner.store_host, inner.born_timestamp = ("127.0.0.1", 2), 1700000000000
    raw = _message.encode_message(inner)
    assert (raw[:20], raw[36:68]) == (V6_RECORD[:20], V6_RECORD[36:68])
    assert raw[76:] == V6_RECORD[76:]


@SETTINGS
@given(records, st.text(max_size=30), st.text(max_size=30))
def test_encode_agrees_with_the_oracle(record: oracle.Record, topic: str, text: str) -> None:
    record = dataclasses.replace(
        record,
        topic=topic.encode("utf-8", "ignore"),
        properties=text.encode("utf-8", "ignore"),
        born_host=without_mapping(record.born_host),
        store_host=without_mapping(record.store_host),
        queue_offset=0,
        phy_offset=0,
        store_timestamp=0,
    )
    assert _message.encode_message(inner_of(record)) == oracle.encode_record(record)


def test_ipv6_bits_follow_the_hosts() -> None:
    inner = MessageExtBrokerInner("T", b"x", sys_flag=0x30, store_host="[::1]:9")
    raw = _message.encode_message(inner)
    assert decode_record(raw).sys_flag == 0x20
    assert decode_record(raw).store_host == "[::1]:9"


def refused(inner: MessageExtBrokerInner, size: int = 1 << 22) -> str:
    with pytest.raises(MessageRefused) as caught:
        _message.encode_message(inner, max_message_size=size)
    return caught.value.status


def test_limits_of_a_single() -> None:
    inner = MessageExtBrokerInner("é" * 64, b"")
    assert refused(inner) == "MESSAGE_ILLEGAL"  # 128 bytes, though 64 characters
    inner.topic = "é" * 63 + "x"
    assert decode_record(_message.encode_message(inner)).topic == inner.topic
    inner.properties_string = "x" * 32768
    assert refused(inner) == "MESSAGE_ILLEGAL"
    inner.properties_string = "é" * 16384
    assert refused(inner) == "PROPERTIES_SIZE_EXCEEDED"
    inner.properties_string = "\U0001f600" * 16384  # 32768 UTF-16 units
    assert refused(inner) == "MESSAGE_ILLEGAL"
    inner.properties_string = "x" * 32767
    raw = _message.encode_message(inner)
    assert len(decode_record(raw).properties_string) == 32767
    assert _message.encode_message(inner, max_message_size=len(raw)) == raw
    assert refused(inner, len(raw) - 1) == "MESSAGE_ILLEGAL"


@pytest.mark.parametrize(
    "change",
    [
        {"queue_id": 2**31},
        {"flag": "7"},
        {"born_timestamp": 2**63},
        {"properties_string": "\ud800"},
        {"topic": "\udfff"},
        {"born_host": "localhost:1"},
    ],
)
def test_what_has_no_form_on_disk(change: dict[str, object]) -> None:
    inner = MessageExtBrokerInner("T", b"x")
    for name, value in change.items():
        setattr(inner, name, value)
    with pytest.raises(StoreFormatError):
        _message.encode_message(inner)


@pytest.mark.parametrize("body", [b"ab", bytearray(b"ab"), memoryview(b"aabb")[::2], None])
def test_bodies(body: bytes | None) -> None:
    inner = MessageExtBrokerInner("T", body)  # type: ignore[arg-type]
    assert decode_record(_message.encode_message(inner)).body == (b"" if body is None else b"ab")


# ---- batches ------------------------------------------------------------------------------------

items = st.lists(st.tuples(INT32, st.binary(max_size=20), texts), max_size=6)
properties_maps = st.dictionaries(
    st.text("abAB\u00e9\U0001f600", min_size=1, max_size=3),
    st.text("ab\u20ac", min_size=1, max_size=3),
    max_size=14,
)


@SETTINGS
@given(items, properties_maps, hosts)
@example([(0, b"", b"a\1b\0")], {}, oracle.host("127.0.0.1", 0))
def test_a_batch_agrees_with_the_oracle(
    rows: list[tuple[int, bytes, bytes]], properties: dict[str, str], host: bytes
) -> None:
    body = oracle.encode_messages(rows)
    batch = MessageExtBatch("T", body, 2, properties=properties, store_host=host, sys_flag=0x8)
    shared = oracle.Record(
        queue_id=2,
        properties=oracle.properties_to_string(dict(properties)).encode(),
        sys_flag=0x8,
        born_host=oracle.host("127.0.0.1", 0),
        store_host=without_mapping(host),
    )
    expected = [
        oracle.encode_record(
            dataclasses.replace(record, properties=oracle.ended(record.properties))
        )
        for record in oracle.encode_batch(shared, body)
    ]
    assert _message.encode_batch(batch) == (b"".join(expected), len(rows))


@SETTINGS
@given(st.lists(st.tuples(INT32, st.binary(max_size=20), properties_maps), max_size=5))
def test_a_clients_body(rows: list[tuple[int, bytes, dict[str, str]]]) -> None:
    messages = [Message("T", body, flag=flag, properties=names) for flag, body, names in rows]
    expected = oracle.encode_messages(
        (flag, body, oracle.properties_to_string(dict(names)).encode())
        for flag, body, names in rows
    )
    assert _message.encode_messages(messages) == expected


def batch_refused(body: bytes, size: int = 1 << 22, **fields: object) -> str:
    batch = MessageExtBatch("T", body, **fields)  # type: ignore[arg-type]
    with pytest.raises(MessageRefused) as caught:
        _message.encode_batch(batch, max_message_size=size)
    return caught.value.status


def test_every_cut_of_a_clients_body(guarded: memoryview) -> None:
    rows = [(1, b"one", b"a\x01b"), (2, b"", b""), (3, b"three", b"")]
    body = oracle.encode_messages(rows)
    whole = {len(oracle.encode_messages(rows[:count])): count for count in range(4)}
    for cut in range(len(body) + 1):
        if cut in whole:
            assert _message.encode_batch(MessageExtBatch("T", body[:cut]))[1] == whole[cut]
        else:
            assert batch_refused(body[:cut]) == "MESSAGE_ILLEGAL", f"cut at byte {cut}"


@pytest.mark.parametrize("value", [-(2**31), -1, 4, 2**31 - 1])
def test_impossible_lengths_in_a_clients_body(value: int) -> None:
    body = bytearray(oracle.encode_messages([(1, b"one", b"")]))
    struct.pack_into(">i", body, 16, value)
    assert batch_refused(bytes(body)) == "MESSAGE_ILLEGAL"
    body = bytearray(oracle.encode_messages([(1, b"one", b"")]))
    struct.pack_into(">h", body, 23, max(-(2**15), min(2**15 - 1, value)))
    assert batch_refused(bytes(body)) == "MESSAGE_ILLEGAL"


def test_limits_of_a_batch() -> None:
    """4.9.3 throws for some of these, and writes what it cannot read again for the others."""
    text = b"a\x01" + b"x" * 32000
    body = oracle.encode_messages([(0, b"", text)])
    for size, verdict in ((763, "ok"), (764, "MESSAGE_ILLEGAL")):  # 32002 + 1 + 1 + 763 = 32767
        properties = {"b": "y" * (size - 1)}
        if verdict == "ok":
            raw, count = _message.encode_batch(MessageExtBatch("T", body, properties=properties))
            assert count == 1 and len(decode_record(raw).properties_string) == 32767
        else:
            assert batch_refused(body, properties=properties) == verdict
    body = oracle.encode_messages([(0, bytes(50), b"")] * 2)
    raw, _ = _message.encode_batch(MessageExtBatch("T", body))
    fits = MessageExtBatch("T", body)
    assert _message.encode_batch(fits, max_message_size=len(raw))[0] == raw
    assert batch_refused(body, len(raw) - 1) == "MESSAGE_ILLEGAL"
    assert batch_refused(body, len(body) - 1) == "MESSAGE_ILLEGAL"
    assert _message.encode_batch(MessageExtBatch("T", b"")) == (b"", 0)


# ---- properties ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("names", "ordered"), JAVA_ORDERS)
def test_properties_stand_in_the_order_of_java(names: list[str], ordered: list[str]) -> None:
    text = "\x02".join(f"{name}\x01v" for name in ordered)
    assert _message.properties_to_string(dict.fromkeys(names, "v")) == text
    assert _message.put_properties(None, None, dict.fromkeys(names, "v")).decode() == text


names_of_all_kinds = st.one_of(
    st.sampled_from([*SAME_HASH, "TAGS", "KEYS", "é", "日本", "\U0001f600", "Aa", "BB"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
)


@SETTINGS
@given(
    st.one_of(st.none(), st.text("aé\U0001f600", max_size=3)),
    st.one_of(st.none(), st.text("a b", max_size=3)),
    st.dictionaries(
        names_of_all_kinds, st.one_of(st.none(), st.text("aé", max_size=2)), max_size=60
    ),
)
def test_properties_of_a_put(
    tags: str | None, keys: str | None, properties: dict[str, str | None]
) -> None:
    pairs: list[tuple[str, str | None]] = [("TAGS", tags)] if tags is not None else []
    pairs += [("KEYS", keys)] if keys is not None else []
    ordered = oracle.hash_map_order([*pairs, *properties.items()])
    text = "\x02".join(f"{name}\x01{value}" for name, value in ordered if value is not None)
    assert _message.put_properties(tags, keys, properties).decode() == text
    assert _message.properties_to_string(properties) == oracle.properties_to_string(properties)
    raw = text.encode()
    assert _message.put_properties(tags, keys, properties, capacity=len(raw)) == raw
    if raw:
        with pytest.raises(MessageRefused):
            _message.put_properties(tags, keys, properties, capacity=len(raw) - 1)


@SETTINGS
@given(st.text("\x01\x02abTAGS", max_size=20))
def test_text_to_properties(text: str) -> None:
    assert _message.string_to_properties(text) == oracle.string_to_properties(text)


def test_properties_that_are_no_text() -> None:
    for properties in ({"a": "\ud800"}, {"\udfff": "a"}, {"a": 1}, {1: "a"}, {b"a": "b"}):
        with pytest.raises(StoreFormatError):
            _message.put_properties(None, None, properties)  # type: ignore[arg-type]
        with pytest.raises(StoreFormatError):
            _message.properties_to_string(properties)  # type: ignore[arg-type]
    assert _message.properties_to_string(None) == ""
    assert _message.put_properties(None, None, None) == b""


# ---- hosts, ids, hashes, numbers ----------------------------------------------------------------


@SETTINGS
@given(hosts)
def test_hosts(host: bytes) -> None:
    raw = oracle.encode_record(oracle.Record(store_host=host, born_host=host, phy_offset=5))
    message = decode_record(raw)
    short = without_mapping(host)
    (port,) = struct.unpack(">i", short[-4:])
    address = ipaddress.ip_address(short[:-4])
    if address.version == 4:
        assert message.store_host == f"{address}:{port}"
        assert _message.java_host(host) == f"/{address}:{port}"
    else:
        assert message.store_host == message.born_host == f"[{address.compressed}]:{port}"
        groups = ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":"))
        assert _message.java_host(host) == f"/[{groups}]:{port}"
    assert message.msg_id == oracle.message_id(short, 5)
    assert _message.decode_message_id(message.msg_id) == (message.store_host, 5)
    if 0 <= port <= 65535:
        assert _message.create_message_id(message.store_host, 5) == message.msg_id
        assert _message.create_message_id((str(address), port), 5) == message.msg_id


def test_hosts_of_java() -> None:
    assert _message.java_host(oracle.host("10.0.0.1", 10911)) == "/10.0.0.1:10911"
    assert _message.java_host(oracle.host(V6.hex(), 10401)) == "/[2001:db8:0:0:0:0:0:191]:10401"
    message_id = "7F00000100002A9F0000000000000094"
    assert _message.create_message_id("127.0.0.1:10911", 0x94) == message_id
    assert _message.decode_message_id(message_id.lower()) == ("127.0.0.1:10911", 0x94)
    mapped = _message.create_message_id("[::ffff:127.0.0.1]:10911", 0x94)
    assert mapped == message_id


@pytest.mark.parametrize(
    "host",
    [
        *("", "1.2.3.4", "1.2.3.4:", "1.2.3:1", "::1:9", "[::1]", "1.2.3.4:65536", "1.2.3.4:-1"),
        *("1.2.3.4:" + "9" * 5000, "host:1", "1.2.3.4:٣", ("1.2.3.4",), ("1.2.3.4", "1")),
        *((5, 1), None, b"", bytes(9), ("1.2.3.4", -1), 7),
    ],
)
def test_what_is_no_host(host: object) -> None:
    with pytest.raises(StoreFormatError):
        _message.create_message_id(host, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["", "7F", "g" * 32, "0" * 31, "0" * 57, " " * 32, "0" * 30 + "_0"]
)
def test_what_is_no_message_id(text: str) -> None:
    with pytest.raises(StoreFormatError):
        _message.decode_message_id(text)


@SETTINGS
@given(st.one_of(texts, st.text(max_size=8).map(lambda t: t.encode("utf-8", "surrogatepass"))))
def test_java_hash(data: bytes) -> None:
    assert _message.java_hash(data) == oracle.java_hash(data)
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode("utf-8", "surrogatepass")
        assert _message.java_hash(text) == oracle.java_hash(text)


def test_tags_code() -> None:
    assert _message.tags_code("TagA") == 2598919
    assert _message.tags_code("polygenelubricants") == -(2**31)
    assert _message.tags_code("") == _message.tags_code(None) == 0


@SETTINGS
@given(st.lists(st.sampled_from([*"0129+- _a", "٣", "２", "𝟏", "\u2070", "\u09e6"]), max_size=4))
@pytest.mark.parametrize("head", ["", "+", "-", "214748364", "-214748364", "0" * 40])
def test_java_int(head: str, tail: list[str]) -> None:
    text = head + "".join(tail)
    expected = oracle.java_int(text)
    assert parse_java_int(text) == expected
    assert _message.java_int(text.encode()) == expected


@pytest.mark.parametrize(
    "raw", [b"\xe0\x99\xa0", b"\xc0\xb1", b"\xd9", b"\xd9a", b"\xef\xbc", b"\xff"]
)
def test_java_int_of_broken_text(raw: bytes) -> None:
    assert _message.java_int(raw) == oracle.java_int(oracle.java_text(raw)) is None


@SETTINGS
@given(st.binary(max_size=70), st.integers(0, 2**32 - 1))
def test_crc32(data: bytes, value: int) -> None:
    assert _message.crc32(data, value) == zlib.crc32(data, value)


def test_crc32_of_long_data_and_its_kernels() -> None:
    data = bytes(range(256)) * 40
    chosen = _message.crc32_kernel()
    assert chosen in _message.crc32_kernels()
    try:
        for name in _message.crc32_kernels():
            _message.select_crc32_kernel(name)
            assert _message.crc32_kernel() == name
            assert _message.crc32(data) == zlib.crc32(data)
    finally:
        _message.select_crc32_kernel(chosen)
    with pytest.raises(ValueError, match="abacus"):
        _message.select_crc32_kernel("abacus")


# ---- messages of a caller -----------------------------------------------------------------------


def test_a_message_and_its_properties() -> None:
    message = MessageExtBrokerInner("T", b"x", 4)
    assert (message.tags, message.keys, message.delay_time_level) == (None, None, 0)
    assert message.wait_store_msg_ok
    message.set_tags("A")
    message.set_keys(["k1", "k2"])
    message.put_user_property("color", "red")
    message.set_delay_time_level(3)
    message.wait_store_msg_ok = False
    assert (message.tags, message.keys, message.delay_time_level) == ("A", "k1 k2", 3)
    assert not message.wait_store_msg_ok
    message.properties["WAIT"] = "TRUE"
    assert message.wait_store_msg_ok
    message.properties["DELAY"] = "1_0"
    with pytest.raises(MessageRefused) as caught:
        _ = message.delay_time_level
    assert caught.value.status == "MESSAGE_ILLEGAL"
    with pytest.raises(StoreFormatError):
        message.put_user_property("TAGS", "B")


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "é", "x" * 128, "a\n", None, b"T"])
def test_topics_that_are_refused(topic: str) -> None:
    with pytest.raises(StoreFormatError):
        check_topic(topic)


def test_topics_that_are_taken() -> None:
    for topic in ("a", "%LMQ%x", "%RETRY%g|1", "x" * 127, "-_9"):
        assert check_topic(topic) == topic


@pytest.mark.parametrize("text", ["", "a\x01", "\x02", "\ud800", None, 1])
def test_text_that_is_refused(text: str) -> None:
    for refuse in (
        lambda: check_text("it", text),
        lambda: check_properties({"a": text}),
        lambda: check_properties({text: "a"}),
        lambda: join_keys([text]),
    ):
        with pytest.raises(StoreFormatError):
            refuse()


def test_names_and_keys() -> None:
    check_properties({"INNER_MULTI_DISPATCH": "%LMQ%a", "a b": " "})
    for name in RESERVED_NAMES:
        with pytest.raises(StoreFormatError):
            check_properties({name: "x"})
    assert join_keys(None) is None and join_keys([]) is None
    assert join_keys("a b") == join_keys(["a", "b"]) == "a b"
    with pytest.raises(StoreFormatError):
        join_keys(["a b"])


@pytest.mark.parametrize("body", [b"", b"x", b"x" * 5000])
def test_is_crc_valid(body: bytes):
    raw = bytearray(oracle.encode_record(oracle.Record(topic=b"T", body=body)))
    assert decode_record(raw).is_crc_valid
    raw[8:12] = (int.from_bytes(raw[8:12], "big") ^ 1).to_bytes(4, "big")
    # As in 4.9.3, an empty body has no CRC that could be wrong.
    assert decode_record(raw).is_crc_valid == (not body)


def test_messages_are_equal_by_their_fields() -> None:
    """As instances of a dataclass whose methods are generated."""
    message = Message("T", b"x", flag=3, properties={"a": "b"})
    assert message == Message("T", b"x", flag=3, properties={"a": "b"})
    assert message != Message("T", b"x", flag=3, properties={"a": "c"})
    assert message != 1
    inner, same = MessageExtBrokerInner("T", b"x"), MessageExtBrokerInner("T", b"x")
    assert inner == same
    assert inner != Message("T", b"x")
    same.sys_flag = 1
    assert inner != same
    assert repr(message) == "Message(topic='T', body=b'x', flag=3, properties={'a': 'b'})"
    assert repr(inner).startswith("MessageExtBrokerInner(topic='T', body=b'x', flag=0, properties=")
    for each in (message, inner):
        with pytest.raises(TypeError, match="unhashable"):
            hash(each)


@pytest.mark.parametrize("text", ["\0" * 32767, "é" * 16383 + "\0", "a\x01" + "\0" * 32765])
def test_the_longest_text_may_end_in_nul(text: str) -> None:
    """Java's String.getBytes(UTF_8) has one byte for U+0000; no separator fits behind it."""
    inner = MessageExtBrokerInner("T", b"x", 0, properties_string=text)
    record = _message.encode_message(inner)
    assert record.endswith(text.encode())
    inner.properties_string = text + "\0"
    with pytest.raises(StoreFormatError, match="more than 32767 bytes"):
        _message.encode_message(inner)
    inner.properties_string = text[:-2] + "\0"
    assert _message.encode_message(inner).endswith(text[:-2].encode() + b"\0\x02")
