"""Goal: the oracle itself is right.
Method: hold it against bytes and answers that RocketMQ 4.9.3 gave: vectors, and golden stores."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import oracle
from support.vectors import JAVA_ORDERS, V4_RECORD, V6_RECORD

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize("raw", [V4_RECORD, V6_RECORD], ids=["v4", "v6"])
def test_a_record_of_java_reads_and_writes_back(raw: bytes) -> None:
    record = oracle.decode_record(raw)
    assert oracle.encode_record(record) == raw
    assert (record.body, record.topic, record.queue_id) == (b"hi", b"T", 3)
    assert oracle.check_record(raw, record.phy_offset) == ("ok", len(raw))
    assert oracle.java_check(raw) == (len(raw), True)


def test_fields_of_the_vectors() -> None:
    record = oracle.decode_record(V4_RECORD)
    assert record.properties_map() == {"TAGS": "TagA", "KEYS": "k1"}
    assert oracle.properties_to_string({"TAGS": "TagA", "KEYS": "k1"}).encode() == record.properties
    assert oracle.tags_code("T", record.store_timestamp, record.properties_map()) == 2598919
    assert (record.flag, record.reconsume_times, record.phy_offset) == (7, 2, 0)
    record = oracle.decode_record(V6_RECORD)
    assert record.born_host == oracle.host("20010db8000000000000000000000001", 1)
    assert oracle.message_id(record.store_host, 111) == "7F00000100000002000000000000006F"
    assert oracle.blank(140)[:8].hex() == "0000008ccbd43194"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("TagA", 2598919),
        ("topic#key", 386934027),
        ("\U0001f600", 1772899),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_java_hash(text: str, value: int) -> None:
    assert oracle.java_hash(text) == oracle.java_hash(text.encode()) == value


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\xff", "\ufffd"),
        (b"\xed\xa0\x80a", "\ufffda"),
        (b"\xed\xa0a", "\ufffda"),
        (b"\xed\xbf", "\ufffd"),
        (b"\xe2\x82a", "\ufffda"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
    ],
)
def test_java_text(raw: bytes, text: str) -> None:
    assert oracle.java_text(raw) == text


@pytest.mark.parametrize(("names", "ordered"), JAVA_ORDERS)
def test_hash_map_order(names: list[str], ordered: list[str]) -> None:
    assert [name for name, _ in oracle.hash_map_order((name, "") for name in names)] == ordered


def test_units() -> None:
    assert oracle.encode_unit(*oracle.PRE_BLANK).hex() == "00" * 8 + "7fffffff" + "00" * 8
    data = oracle.encode_unit(0, 91, 5) + oracle.encode_unit(91, 100, -1) + bytes(40)
    assert oracle.scan_units(data) == (40, 191)
    assert oracle.decode_units(data[:59]) == [(0, 91, 5), (91, 100, -1)]


def test_ext_units() -> None:
    unit = oracle.encode_ext_unit(0x41, 7)
    assert unit.hex() == "0014" + "0000000000000041" + "0000000000000007" + "0000"
    files, addresses = oracle.write_ext([unit] * 5, 100)
    assert [data[80:82].hex() for data in files] == ["ffff", "0000"]
    assert addresses[:2] == [-(2**63), -9223372036854775788]
    assert addresses[4] == -(2**63) + 100
    assert oracle.ext_offset(addresses[4]) == 100
    assert oracle.is_ext_address(-2147483649) and not oracle.is_ext_address(-(2**31))
    units, position = oracle.scan_ext(files)
    assert units == [(20, 0x41, 7, b"")] * 5 and position == 20


def test_index_file() -> None:
    index = oracle.IndexFile(7, 6)
    hashes = [oracle.index_key_hash("I", f"k{i}") for i in range(5)]
    assert hashes[0] == 2211743
    for i, key_hash in enumerate(hashes):
        assert index.put(key_hash, 100 * i, 5_000 + 1_000 * i)
    assert index.slots == {2: 1, 3: 2, 4: 3, 5: 4, 6: 5}
    assert (index.hash_slot_count, index.index_count) == (5, 6)
    assert not index.put(1, 1, 1)
    assert oracle.IndexFile.decode(index.encode(), 7, 6) == index
    assert index.select(hashes[3], 9, 0, 10_000) == [300]
    assert index.select(hashes[3], 9, 0, 7_999) == []
    assert oracle.index_key_hash("", "ygenelubricants") >= 0


def test_checkpoint() -> None:
    assert oracle.decode_checkpoint(oracle.encode_checkpoint(1, -2, 3)) == (1, -2, 3)
    assert oracle.decode_checkpoint(b"") == (0, 0, 0)


def read_golden(name: str, folder: str) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            if member.isfile() and member.name.startswith(f"{name}/{folder}/"):
                stream = archive.extractfile(member)
                assert stream is not None
                yield member.name, stream.read()


def golden_records(name: str) -> dict[int, oracle.Record]:
    """Every record of a golden store by physical offset."""
    found: dict[int, oracle.Record] = {}
    for path, data in read_golden(name, "commitlog"):
        start = int(Path(path).name)
        records, end, _ = oracle.scan_log(data, start)
        assert end in ("blank", "end")
        found |= {start + position: record for position, record in records}
    return found


@pytest.mark.parametrize("name", ["mixed", "lmq"])
def test_golden_messages(name: str) -> None:
    records = golden_records(name)
    lines = (GOLDEN / f"{name}.jsonl").read_text().splitlines()
    seen = 0
    for line in lines:
        message = json.loads(line).get("message")
        if message is None:
            continue
        seen += 1
        record = records[message["phy_offset"]]
        assert oracle.encode_record(record)[:4] == message["size"].to_bytes(4, "big")
        assert record.topic.decode() == message["topic"]
        assert record.properties_map() == message["properties"]
        assert record.queue_offset == message["queue_offset"]
        assert record.crc == message["body_crc"]
        assert oracle.message_id(record.store_host, record.phy_offset) == message["msg_id"]
        digest = hashlib.sha256(record.body).hexdigest()[:16] if record.body else ""
        assert digest == message["body_sha256_8"]
        code = oracle.tags_code(message["topic"], record.store_timestamp, record.properties_map())
        assert oracle.is_ext_address(message["tags_code"]) or code == message["tags_code"]
    assert seen > 500


def test_golden_log_is_written_back() -> None:
    """Java's files come out byte for byte when the oracle writes what it read."""
    files = [data for _, data in read_golden("mixed", "commitlog")]
    records = [record for data in files for _, record in oracle.scan_log(data)[0]]
    records = [record for _, record in sorted(golden_records("mixed").items())]
    again = oracle.write_log(records, 262144)
    assert again == [data for data in files if any(data)]


def test_golden_units_name_records() -> None:
    records = golden_records("mixed")
    count = 0
    for path, data in read_golden("mixed", "consumequeue"):
        topic, queue_id, file = path.split("/")[2:]
        valid, _ = oracle.scan_units(data)
        for i, (phy_offset, size, _) in enumerate(oracle.decode_units(data[:valid])):
            record = records[phy_offset]
            assert (record.topic.decode(), record.queue_id) == (topic, int(queue_id))
            assert (record.total_size, record.queue_offset) == (size, int(file) // 20 + i)
            count += 1
    assert count > 500


def test_golden_index() -> None:
    """An index built from the log equals Java's, entry for entry."""
    files = [data for _, data in read_golden("mixed", "index")]
    found = [oracle.IndexFile.decode(data, 1000, 3000) for data in files]
    assert all(index.encode() == data for index, data in zip(found, files, strict=True))
    mine = oracle.IndexFile(1000, 3000)
    for phy_offset, record in sorted(golden_records("mixed").items()):
        for topic, key in oracle.index_keys(record):
            key_hash = oracle.index_key_hash(topic, key)
            if not mine.put(key_hash, phy_offset, record.store_timestamp):
                break
    assert mine == found[0]
