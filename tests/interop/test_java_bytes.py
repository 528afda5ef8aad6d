"""Goal: our store writes the same bytes as RocketMQ 4.9.3 for equal input.
Method: the real store puts random messages of every kind and prints its records. Our records get
the three fields that only an append knows (queue offset, physical offset, store time) from these,
and must then be equal. Java's records must also decode to the messages that were put."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from pyrocketstore.index._file import IndexFile
from pyrocketstore.record._message import decode_record, encode_batch, encode_message
from pyrocketstore.record.message import MessageRefused
from pyrocketstore.system.env import Env
from support.java_store import require_java
from support.random_messages import (
    random_messages,
    stored_form,
    to_batch,
    to_inner,
)

pytestmark = pytest.mark.java

CONFIG = {
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 40_000,
}
ALL_KINDS = ("batch", "v6", "mixhost", "tx", "delay", "comp", "empty", "collide", "wide")
TOPICS = ("T", "%RETRY%group-1", "тема", "主题-7", "\U0001f680-\U0001f600", "x" * 127)
BODY_SIZE_MAX = 300


def patched(record: bytes, java: bytes, at: int) -> bytes:
    """Return our record with the queue offset, physical offset and store time of `java[at:]`."""
    (sys_flag,) = struct.unpack_from(">i", record, 36)
    store_time_at = 48 + (20 if sys_flag & 0x10 else 8)
    data = bytearray(record)
    data[20:36] = java[at + 20 : at + 36]
    data[store_time_at : store_time_at + 8] = java[at + store_time_at : at + store_time_at + 8]
    return bytes(data)


def assert_same_records(ours: bytes, java: bytes) -> None:
    """Compare consecutive records of `ours` and `java`."""
    at = 0
    while at < len(ours):
        (size,) = struct.unpack_from(">i", ours, at)
        assert patched(ours[at : at + size], java, at) == java[at : at + size]
        at += size
    assert at == len(java)


@pytest.fixture(scope="module", params=[11, 12])
def written(request, tmp_path_factory):
    """Return (spec, Java's records) pairs."""
    java = require_java()
    store = tmp_path_factory.mktemp("java") / "store"
    specs = random_messages(request.param, 250, ALL_KINDS, topics=TOPICS, max_body=BODY_SIZE_MAX)
    results = java.put(store, specs, CONFIG, records=True)
    assert {result["status"] for result in results} == {"PUT_OK"}
    return [(s, bytes.fromhex(r["records"])) for s, r in zip(specs, results, strict=True)]


def test_records_are_those_of_the_real_store(written):
    for spec, java in written:
        if "batch" in spec:
            ours, count = encode_batch(to_batch(spec))
            assert count == len(spec["batch"])
        else:
            ours = encode_message(to_inner(stored_form(spec)))
        assert_same_records(ours, java)


def test_records_of_the_real_store_decode_to_what_was_put(written):
    for spec, java in written:
        if "batch" in spec:
            continue
        message = decode_record(java, check_crc=True)
        stored = stored_form(spec)
        for name in (
            "topic",
            "queue_id",
            "flag",
            "born_timestamp",
            "born_host",
            "store_host",
            "reconsume_times",
        ):
            assert getattr(message, name) == stored[name], name
        assert message.prepared_transaction_offset == spec.get("prepared_transaction_offset", 0)
        assert message.stored_body == spec["body"]
        assert message.properties == dict(stored["properties"])


def test_the_comparison_sees_one_wrong_byte(written):
    spec, java = next(pair for pair in written if "batch" not in pair[0])
    ours = bytearray(encode_message(to_inner(stored_form(spec))))
    ours[-1] ^= 1
    with pytest.raises(AssertionError):
        assert_same_records(bytes(ours), java)


@pytest.mark.parametrize(
    ("properties_size", "status"),
    [(32767, "PUT_OK"), (32768, "PROPERTIES_SIZE_EXCEEDED")],
)
def test_limit_of_the_properties(properties_size, status, tmp_path):
    spec = random_messages(1, 1)[0]
    name, value_size = "é", properties_size - 3
    spec["properties"] = [(name, "ä" * (value_size // 2) + "x" * (value_size % 2))]
    spec["queue_id"], spec["sys_flag"] = 0, 0
    (result,) = require_java().put(tmp_path / "store", [spec], CONFIG, records=True)
    assert result["status"] == status
    if status == "PUT_OK":
        assert_same_records(encode_message(to_inner(spec)), bytes.fromhex(result["records"]))
    else:
        with pytest.raises(MessageRefused) as refused:
            encode_message(to_inner(spec))
        assert refused.value.status == status


# ---- index files --------------------------------------------------------------------------

SLOTS, INDEXES = 50, 400
INDEX_BASE_MS = 1_700_000_000_000


def index_lines(seed: int) -> list[tuple[Any, ...]]:
    """Return puts that collide, repeat, go back in time, overflow the seconds and fill the file."""
    rng = random.Random(seed)
    keys = [f"T#k{i}" for i in range(40)] + ["T#Aa", "T#BB", "主题#键", "T#\U0001f680"]
    keys.append("polygenelubricants")  # its hash is Integer.MIN_VALUE
    lines: list[tuple[Any, ...]] = []
    for i in range(INDEXES + 5):
        time = INDEX_BASE_MS + rng.choice((0, 999, 1000, 1001, -5000, i * 700, 2**45))
        lines.append(("put", rng.choice(keys), i * 1100, time))
        if i % 7 == 0:
            window = sorted(INDEX_BASE_MS + rng.randint(-3000, 300_000) for _ in range(2))
            lines.append(("select", rng.choice(keys), rng.choice((0, 1, 3, 64)), *window))
            lines.append(("select", rng.choice(keys), 64, 0, 2**62))
    return lines


@pytest.mark.parametrize("previous_end", [(0, 0), (12_345, INDEX_BASE_MS - 3500)])
def test_index_files_are_those_of_the_real_store(previous_end, tmp_path):
    lines = index_lines(3)
    geometry = {"slots": SLOTS, "indexes": INDEXES}
    geometry |= {"endPhyOffset": previous_end[0], "endTimestamp": previous_end[1]}
    java_path, our_path = tmp_path / "java" / "20260101010101000", tmp_path / "20260101010101000"
    java_path.parent.mkdir()
    answers = require_java().index(java_path, lines, **geometry)
    index = IndexFile(Env(), str(our_path), SLOTS, INDEXES, *previous_end, create=True)
    for line, answer in zip(lines, answers, strict=True):
        if line[0] == "put":
            assert index.put_key(*line[1:]) == answer["put"], line
        else:
            assert index.select_phy_offset(*line[1:]) == answer["select"], line
    assert index.is_write_full()
    index.shutdown()
    assert our_path.read_bytes() == java_path.read_bytes()
