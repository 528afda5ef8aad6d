"""Goal: messages put through `Store` read back equal, in order, by queue, key, offset and time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore import (
    Message,
    MessageExtBrokerInner,
    OffsetOutOfRange,
    PutError,
    PutMessageStatus,
    StoreFormatError,
    StoreStateError,
)
from pyrocketstore.commit_log._puts import make_result, with_status
from pyrocketstore.record._message import properties_to_string
from support.sizes import SIZES


@pytest.fixture
def store(tmp_path: Path):
    with pyrocketstore.open(tmp_path / "store", **SIZES) as opened:
        yield opened


def test_put_and_everything_that_is_kept(store: pyrocketstore.Store) -> None:
    before = store.message_store.now()
    result = store.put(
        "orders",
        bytearray(b"paid"),
        queue_id=2,
        tags="TagA",
        keys=["order-7", "cust-1"],
        properties={"user": "é😀", "b": "2"},
        flag=-5,
        born_timestamp=1700000000000,
        born_host="[2001:db8::1]:99",
    )
    assert result.status is PutMessageStatus.PUT_OK
    assert (result.queue_offset, result.phy_offset) == (0, 0)
    message = store.get(result.phy_offset)
    assert message is not None
    assert message == store.get(result.msg_id)
    assert (message.topic, message.queue_id, message.body) == ("orders", 2, b"paid")
    assert (message.tags, message.keys, message.flag) == ("TagA", "order-7 cust-1", -5)
    assert message.properties == {
        "TAGS": "TagA",
        "KEYS": "order-7 cust-1",
        "user": "é😀",
        "b": "2",
    }
    assert (message.born_timestamp, message.born_host) == (1700000000000, "[2001:db8::1]:99")
    assert message.store_host == "127.0.0.1:10911"
    assert before <= message.store_timestamp <= store.message_store.now()
    assert message.msg_id == result.msg_id
    for key in ("order-7", "cust-1"):
        assert store.query("orders", key) == [message]
    assert list(store.read("orders", 2)) == [message]


def test_body_outlives_the_store(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("t", b"kept", properties={"a": "b"})
        (message,) = store.read("t")
    assert message.body == b"kept"
    assert message.properties == {"a": "b"}


def test_put_rolls_over_files(store: pyrocketstore.Store) -> None:
    for i in range(500):
        store.put("t", b"x" * 400 + b"%d" % i, keys=f"k{i}")
    assert [m.body[400:] for m in store.read("t")] == [b"%d" % i for i in range(500)]
    assert len(store.message_store.commit_log.mapped_file_queue.mapped_files) > 3
    assert store.query("t", "k499")[0].queue_offset == 499


def test_put_many_equals_single_puts(store: pyrocketstore.Store) -> None:
    n = 700
    bodies = [b"b%d" % i * (1 + i % 90) for i in range(n)]
    queue_offsets, phy_offsets = store.put_many(
        "t",
        bodies,
        queue_ids=[i % 3 for i in range(n)],
        tags=[f"T{i % 2}" if i % 5 else None for i in range(n)],
        keys=[None if i % 4 == 0 else [f"a{i}", f"b{i}"] for i in range(n)],
        properties=[{"n": str(i)} if i % 7 == 0 else None for i in range(n)],
    )
    assert queue_offsets.dtype == phy_offsets.dtype == np.int64
    assert queue_offsets.tolist() == [i // 3 for i in range(n)]
    assert (np.diff(phy_offsets) > 0).all()
    for i in range(n):
        message = store.get(int(phy_offsets[i]))
        assert message is not None
        assert (message.body, message.queue_id) == (bodies[i], i % 3)
        assert message.tags == (f"T{i % 2}" if i % 5 else None)
        assert message.keys == (None if i % 4 == 0 else f"a{i} b{i}")
        assert message.properties.get("n") == (str(i) if i % 7 == 0 else None)
    assert store.query("t", "b699")[0].phy_offset == phy_offsets[699]


def test_put_many_takes_columns(store: pyrocketstore.Store) -> None:
    pa = pytest.importorskip("pyarrow")
    store.put_many("t", pa.array([b"a", b"b"], pa.binary()), tags=pa.array(["x", None]))
    store.put_many("t", [b"c", b"d"], queue_ids=np.array([0, 0]))
    assert [m.body for m in store.read("t")] == [b"a", b"b", b"c", b"d"]
    assert [m.tags for m in store.read("t")] == ["x", None, None, None]
    with pytest.raises(StoreFormatError, match="tags has 1 entries for 2 bodies"):
        store.put_many("t", [b"a", b"b"], tags=["x"])


@pytest.mark.parametrize(
    ("column", "entry", "text"),
    [
        ("bodies", "text", r"bodies\[1\]"),
        ("queue_ids", -1, r"queue_ids\[1\]"),
        ("tags", 5, r"tags\[1\]"),
        ("keys", ["a", 5], r"a key of keys\[1\]"),
        ("properties", {"a": 5}, "message 1: property a"),
        ("delay_levels", -1, r"delay_levels\[1\]"),
    ],
)
@pytest.mark.parametrize("is_delayed", [False, True])
def test_put_many_names_the_message_that_it_refuses(
    store: pyrocketstore.Store, column: str, entry: Any, text: str, is_delayed: bool
) -> None:
    right: dict[str, Any] = {
        "bodies": b"x", "queue_ids": 0, "tags": "T", "keys": "k",
        "properties": {"a": "b"}, "delay_levels": 1,
    }  # fmt: skip
    names = {column, *(["delay_levels"] if is_delayed else [])} - {"bodies"}
    columns = {name: [right[name], entry if name == column else right[name]] for name in names}
    bodies = [b"x", entry if column == "bodies" else b"y"]
    if is_delayed and column in ("tags", "keys", "bodies"):
        text = "message 1: |" + text
    with pytest.raises(StoreFormatError, match=text):
        store.put_many("t", bodies, **columns)
    assert store.max_offset("t") == 0


def test_put_many_refuses_a_row_before_it_writes_any(store: pyrocketstore.Store) -> None:
    with pytest.raises(PutError, match="message 2: the record has") as failed:
        store.put_many("t", [b"a", b"b", bytes(1 << 17), b"c"])
    assert (failed.value.count, failed.value.stored) == (0, False)
    assert failed.value.status is PutMessageStatus.MESSAGE_ILLEGAL
    assert store.topics() == []


@pytest.mark.parametrize(
    ("message", "problem"),
    [({"body": b"b", "tag": "x"}, "unknown fields: 'tag';"), ({}, "the field body is missing;")],
)
def test_the_fields_of_a_message_of_a_batch(
    store: pyrocketstore.Store, message: dict[str, Any], problem: str
) -> None:
    with pytest.raises(StoreFormatError, match=f"{problem} it has a body, and may have tags"):
        store.put_batch("t", [b"", message])


def test_put_batch_is_one_queue_and_atomic(store: pyrocketstore.Store) -> None:
    result = store.put_batch(
        "t",
        [b"a", {"body": b"b", "tags": "x", "keys": "k"}, Message("t", b"c", flag=3)],
        queue_id=1,
    )
    assert len(result.msg_id.split(",")) == 3
    assert [m.body for m in store.read("t", 1)] == [b"a", b"b", b"c"]
    assert store.query("t", "k")[0].tags == "x"
    with pytest.raises(PutError, match="MESSAGE_ILLEGAL"):
        store.put_batch("t", [bytes(3 << 20), bytes(3 << 20)])
    assert store.max_offset("t", 0) == 0


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"topic": ""}, "topic"),
        ({"topic": "a/b"}, "topic"),
        ({"topic": "x" * 128}, "topic"),
        ({"tags": ""}, "empty"),
        ({"tags": "a\x01b"}, r"U\+0001"),
        ({"keys": "a\x02"}, r"U\+0001"),
        ({"keys": ["a b"]}, "blank"),
        ({"keys": [""]}, "empty"),
        ({"properties": {"TAGS": "x"}}, "reserved"),
        ({"properties": {"a": ""}}, "empty"),
        ({"properties": {"": "a"}}, "empty"),
        ({"properties": {"a\x01": "b"}}, r"U\+0001"),
        ({"tags": "\ud800"}, "surrogate"),
        ({"queue_id": -1}, "queue_id"),
    ],
)
def test_what_would_not_read_back_equal_is_refused(
    store: pyrocketstore.Store, arguments: dict, match: str
) -> None:
    store.put("t", b"first", queue_id=0)
    options = {"topic": "t", "body": b"x", **arguments}
    for _ in range(2):
        with pytest.raises(StoreFormatError, match=match):
            store.put(
                options["topic"],
                options["body"],
                **{k: v for k, v in options.items() if k not in ("topic", "body")},
            )
    assert store.message_store.get_max_phy_offset() == store.get(0).size


def test_too_large_is_a_status_and_burns_no_file(store: pyrocketstore.Store) -> None:
    with pytest.raises(PutError, match="MESSAGE_ILLEGAL") as failed:
        store.put("t", bytes(1 << 16))
    assert not failed.value.stored
    assert store.message_store.get_max_phy_offset() == 0
    largest = (1 << 16) - 8 - 91 - 1
    store.put("t", bytes(largest))
    with pytest.raises(PutError):
        store.put("t", bytes(largest + 1))
    assert store.message_store.get_max_phy_offset() == largest + 92


def test_tags_and_ranges(store: pyrocketstore.Store) -> None:
    for i in range(50):
        store.put("t", b"%d" % i, tags=("Aa", "BB", "C")[i % 3])  # Aa and BB share a hash
    assert [int(m.body) for m in store.read("t", tags="Aa || C")] == [
        i for i in range(50) if i % 3 != 1
    ]
    assert [int(m.body) for m in store.read("t", start=10, stop=13)] == [10, 11, 12]
    assert list(store.read("t", start=50)) == []
    for wrong in (-1, 51):
        with pytest.raises(OffsetOutOfRange) as failed:
            store.read("t", start=wrong)
        assert (failed.value.min_offset, failed.value.max_offset) == (0, 50)


def test_all_queues_merge_by_store_time(store: pyrocketstore.Store) -> None:
    for i in range(40):
        store.put("t", b"%d" % i, queue_id=(i * 7) % 5)
    assert [int(m.body) for m in store.read("t", None)] == list(range(40))


def test_query_is_exact_and_the_newest(store: pyrocketstore.Store) -> None:
    for i in range(100):
        store.put("t", b"%d" % i, keys=("Aa", "BB")[i % 2])  # one hash
    hits = store.query("t", "Aa", max_num=3)
    assert [int(m.body) for m in hits] == [94, 96, 98]
    assert len(store.query("t", "Aa", max_num=1000)) == 50
    assert len(store.query("t", "Aa", max_num=1000, exact=False)) == 100
    first = store.get(0).store_timestamp
    assert store.query("t", "Aa", end=first - 1) == []
    many = store.query_many("t", ["Aa", "none", "BB"], max_num=2)
    assert many.key_index.tolist() == [0, 0, 2, 2]
    assert many.queue_offset.tolist() == [96, 98, 97, 99]


def test_offset_at_is_the_first_at_or_after(store: pyrocketstore.Store) -> None:
    times = []
    for i in range(30):
        times.append(store.get(store.put("t", b"x").phy_offset).store_timestamp)
        if i % 10 == 9:
            time.sleep(0.003)
    for stamp in {times[0] - 1, *times, times[-1] + 1}:
        expected = next((i for i, t in enumerate(times) if t >= stamp), 30)
        assert store.offset_at("t", 0, stamp) == expected


def test_unknown_names_are_empty_and_leave_no_trace(
    store: pyrocketstore.Store, tmp_path: Path
) -> None:
    with pytest.raises(pyrocketstore.UnknownTopicError):
        store.read("none")
    assert (store.min_offset("none"), store.max_offset("none")) == (0, 0)
    assert store.query("none", "k") == []
    assert store.get(12345) is None
    assert store.topics() == []
    assert not (tmp_path / "store" / "consumequeue" / "none").exists()


def test_many_threads_put_without_a_gap(store: pyrocketstore.Store) -> None:
    def work(number: int) -> None:
        for i in range(200):
            store.put("t", b"%d-%d" % (number, i) + bytes(i * 50 % 9000), queue_id=number % 2)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = set()
    for queue_id in (0, 1):
        messages = list(store.read("t", queue_id))
        assert [m.queue_offset for m in messages] == list(range(600))
        seen |= {m.body.rstrip(b"\0") for m in messages}
    assert seen == {b"%d-%d" % (n, i) for n in range(6) for i in range(200)}
    report = store.verify()
    assert report.ok, report.problems[:3]


def test_sync_flush_is_on_the_device(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, flush_disk_type="SYNC_FLUSH", **SIZES) as store:

        def work() -> None:
            for _ in range(20):
                result = store.put("t", b"x" * 100)
                flushed = store.message_store.services.log_flush.flushed_where
                assert flushed >= result.phy_offset + result.wrote_bytes

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.max_offset("t") == 80


def test_flush_reaches_queues_index_and_checkpoint(store: pyrocketstore.Store) -> None:
    for i in range(300):
        store.put("t", b"x" * 300, keys=f"k{i}", queue_id=i % 4)
    store.flush()
    inner = store.message_store
    assert inner.services.log_flush.flushed_where == inner.get_max_phy_offset()
    for queue in inner.consume_queues():
        last = queue.mapped_file_queue.mapped_files[-1]
        assert last.flushed == last.wrote
    newest = inner.files.newest_store_timestamp()
    assert newest > 0
    checkpoint = inner.checkpoint
    assert (checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp) == (newest, newest)


def test_aput(tmp_path: Path) -> None:
    async def run(store: pyrocketstore.Store) -> list[int]:
        results = await asyncio.gather(*(store.aput("t", b"%d" % i) for i in range(20)))
        return sorted(result.queue_offset for result in results)

    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        with pyrocketstore.open(tmp_path / flush, flush_disk_type=flush, **SIZES) as store:
            assert asyncio.run(run(store)) == list(range(20))


def test_unique_keys_are_found(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, unique_key=True, **SIZES) as store:
        for _ in range(3):
            store.put("t", b"x")
        ids = [m.uniq_key for m in store.read("t")]
        assert len(set(ids)) == 3
        assert all(len(i) == 32 for i in ids)
        assert [store.query("t", i)[0].queue_offset for i in ids] == [0, 1, 2]


def test_closed_store_says_so(tmp_path: Path) -> None:
    store = pyrocketstore.open(tmp_path, **SIZES)
    store.put("t", b"x")
    store.close()
    store.close()
    for call in (
        lambda: store.put("t", b"x"),
        lambda: store.put_many("t", [b"x"]),
        lambda: store.read("t"),
        lambda: store.query("t", "k"),
        lambda: store.get(0),
        lambda: store.get(-1),
        lambda: store.get(2**63),
        lambda: store.get_many([]),
        lambda: store.put_many("t", []),
        lambda: store.query("t", "k", max_num=0),
        lambda: store.query_many("t", []),
        lambda: store.read_batch("t", start=0, max_count=0),
        store.topics,
        store.flush,
        store.verify,
        store.wait_dispatched,
    ):
        with pytest.raises(StoreStateError, match="closed"):
            call()


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(StoreFormatError, match="max_index_num"):
        pyrocketstore.open(tmp_path / "s", max_index_nums=5)
    assert not (tmp_path / "s").exists()


def test_sizes_come_from_the_files(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for i in range(300):
            store.put("t", b"x" * 300, keys=f"k{i}")
    with pyrocketstore.open(tmp_path, max_hash_slot_num=500, max_index_num=2000) as store:
        assert store.message_store.config.mapped_file_size_commit_log == 1 << 16
        assert store.message_store.config.mapped_file_size_consume_queue == 2000
        assert store.query("t", "k7")[0].queue_offset == 7


ATTRIBUTES = (
    "topic queue_id queue_offset phy_offset size body tags keys born_timestamp store_timestamp "
    "born_host store_host flag sys_flag body_crc reconsume_times prepared_transaction_offset "
    "msg_id tags_code stored_body"
).split()


@pytest.mark.parametrize("read_only", [False, True])
def test_read_batch_holds_what_read_gives(tmp_path: Path, read_only: bool) -> None:
    pytest.importorskip("pyarrow")
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for i in range(400):
            store.put(
                "t",
                b"%d" % i * (1 + i % 60),
                tags=None if i % 3 else f"T{i % 2}",
                keys=f"k{i} é" if i % 5 else None,
                properties={"p": str(i)} if i % 4 else None,
                flag=-i,
                born_host="[2001:db8::1]:5" if i % 7 == 0 else None,
            )
    with pyrocketstore.open(tmp_path, read_only=read_only, **SIZES) as store:
        batch = store.read_batch("t", start=0)
        messages = list(store.read("t"))
        assert batch.num_rows == 400
        assert int(batch.schema.metadata[b"next_offset"]) == 400
        for name in ATTRIBUTES:
            assert batch[name].to_pylist() == [getattr(m, name) for m in messages], name
        part = store.read_batch("t", start=100, max_count=50, columns=["queue_offset", "body"])
        assert part.schema.names == ["queue_offset", "body"]
        assert part["queue_offset"].to_pylist() == list(range(100, 150))
        some = store.read_batch("t", start=0, columns=["queue_offset"], tags="T0 || none")
        assert some["queue_offset"].to_pylist() == list(range(0, 400, 6))
        one = store.read_batch("t", start=7, max_bytes=1, columns=["queue_offset"])
        assert one["queue_offset"].to_pylist() == [7]
        assert one.schema.metadata[b"next_offset"] == b"8"
        sizes = [m.size for m in messages]
        few = store.read_batch("t", start=0, max_bytes=sum(sizes[:10]), columns=["size"])
        assert few["size"].to_pylist() == sizes[:10]
        none = store.read_batch("t", start=400)
        assert (none.num_rows, none.schema.metadata[b"next_offset"]) == (0, b"400")
        with pytest.raises(StoreFormatError, match="no_such"):
            store.read_batch("t", start=0, columns=["no_such"])
        with pytest.raises(OffsetOutOfRange):
            store.read_batch("t", start=401)


def test_read_batch_names_the_extra(
    store: pyrocketstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("t", b"x")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(pyrocketstore.MissingExtraError, match=r"pyrocketstore\[arrow\]"):
        store.read_batch("t", start=0)


def test_import_loads_no_extra() -> None:
    code = (
        "import sys, pyrocketstore, pyrocketstore.reading.batches\n"
        "print([m for m in ('pyarrow', 'click', 'rich', 'pyspark', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("without_mmap", [False, True])
@pytest.mark.parametrize("max_bytes", [0, 1, 900, 5_000, 1 << 70])
def test_inflated_bodies_count_in_a_batch(
    tmp_path: Path, without_mmap: bool, max_bytes: int
) -> None:
    """Batches that follow each other have every record once, and hold their bound or one record."""
    pytest.importorskip("pyarrow")
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for i in range(300):
            body = b"%d" % i * (i % 13 * 100 + 1)
            message = MessageExtBrokerInner("t", body if i % 3 else zlib.compress(body), 0)
            message.sys_flag = 0 if i % 3 else 1
            message.properties_string = properties_to_string({"TAGS": "T"} if i % 4 else {})
            assert store.message_store.put_message(message).status.name == "PUT_OK"
    names = ["queue_offset", "body", "tags", "properties", "properties_map"]
    setting = {"write_without_mmap": True} if without_mmap else {"read_only": True}
    with pyrocketstore.open(tmp_path, **SIZES, **setting) as store:
        assert len(list((tmp_path / "commitlog").iterdir())) > 1
        whole = store.read_batch("t", start=0, columns=names, max_bytes=1 << 30)
        assert whole.num_rows == 300
        rows: list[dict[str, object]] = []
        at = 0
        while at < 300:
            batch = store.read_batch("t", start=at, columns=names, max_bytes=max_bytes)
            batch.validate(full=True)
            inflated = sum(len(body.as_py()) for body in batch["body"])
            assert batch.num_rows == 1 or inflated <= max_bytes
            assert 0 < batch.num_rows == int(batch.schema.metadata[b"next_offset"]) - at
            rows += batch.to_pylist()
            at += batch.num_rows
        assert rows == whole.to_pylist()
        assert [row["body"] for row in rows] == [message.body for message in store.read("t")]
        without = store.read_batch("t", start=0, columns=["stored_body"], max_bytes=40_000)
        assert without.num_rows > 40


class Otherwise(str):
    """A topic that hashes in its own way."""

    def __hash__(self) -> int:
        return hash(self.lower()) ^ 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.lower() == other.lower()


class Fickle:
    """An integer that is another one at each look."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def __index__(self) -> int:
        return self.numbers.pop(0) if len(self.numbers) > 1 else self.numbers[0]

    __int__ = __index__


def test_a_message_is_put_where_it_says(tmp_path: Path) -> None:
    """A queue offset is given once, however its topic and queue id behave."""

    def fickle() -> Any:
        return Fickle(0, 3)

    with pyrocketstore.open(tmp_path) as store:
        store.put("T", b"0")
        for body in (b"1", b"2"):
            message = MessageExtBrokerInner(Otherwise("T"), body, fickle())
            assert store.message_store.put_message(message).status.name == "PUT_OK"
        store.put("T", b"3", queue_id=fickle())
        asyncio.run(store.aput("T", b"4", queue_id=fickle()))
        store.put_many("T", [b"5"], queue_ids=[fickle()])
        store.put_batch("T", [b"6"], fickle())
        store.put("T", b"7")
        assert [(m.queue_offset, m.body) for m in store.read("T")] == [
            (i, b"%d" % i) for i in range(8)
        ]
        assert store.verify().ok
        with pytest.raises(TypeError):
            store.message_store.put_message(MessageExtBrokerInner("T", b"x", cast(Any, 1.5)))
        with pytest.raises(TypeError):
            store.message_store.put_message(MessageExtBrokerInner(cast(Any, b"T"), b"x"))


@pytest.mark.parametrize("failure", [OSError, KeyError, StopIteration])
def test_a_handler_that_raises_in_a_roll_of_put_many_is_heard(
    tmp_path: Path, failure: type[Exception]
) -> None:
    """The caller of put_many receives the handler's exception, and no status of a message."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:

        def handled(size: int) -> None:
            raise failure

        log = store.message_store.commit_log
        log.core.roll_by(handled)
        with pytest.raises(failure):
            store.put_many("T", [b"." * 1000] * 100)
        log.core.roll_by(log.roll)
        store.put_many("T", [b"." * 1000] * 100)
        assert store.max_offset("T") >= 100


@pytest.mark.parametrize("status", [-1, len(PutMessageStatus), 65535, 2**31 - 1])
def test_a_result_has_a_status_that_there_is(status: int) -> None:
    with pytest.raises(ValueError, match="is not a valid PutMessageStatus"):
        make_result(status)
    with pytest.raises(ValueError, match="is not a valid PutMessageStatus"):
        with_status(make_result(0), status)
    if status > 0:
        with pytest.raises(ValueError, match="is not a valid AppendMessageStatus"):
            make_result(0, status)
    with pytest.raises(TypeError):
        with_status(None, 0)  # type: ignore[arg-type]


def test_what_is_too_long_is_said(store: pyrocketstore.Store) -> None:
    with pytest.raises(PutError, match="the properties have more than 32767 bytes"):
        store.put("t", b"", keys="x" * 33_000)


def test_get_inside_of_a_body_gives_nothing(tmp_path: Path) -> None:
    """Goal: a record inside of another record is not a message. Method: a record as a body."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        inner = store.put("t", b"inner")
        view = store.message_store.select_one_message_by_offset(inner.phy_offset)
        assert view is not None
        with view:
            outer = store.put("t", b"<<" + bytes(view.byte_buffer))
        for at in range(outer.phy_offset + 1, outer.phy_offset + outer.wrote_bytes):
            assert store.get(at) is None
        assert store.get(outer.phy_offset) is not None


@pytest.mark.parametrize("pool", [False, True])
def test_messages_by_many_places(tmp_path: Path, pool: bool) -> None:
    """Goal: what `get` gives for each, in one call, over all files of the log, in any order and
    twice; None where nothing begins. Method: places of records, beside them and behind the log."""
    with pyrocketstore.open(tmp_path, transient_store_pool_enable=pool, **SIZES) as store:
        put = [store.put("t", b"%d" % i * (i % 50), keys=f"k{i % 7}") for i in range(300)]
        places = [result.phy_offset for result in put[::-1]]
        asked = [*places, places[5], -1, 1, places[3] + 4, places[0] + (1 << 20), 1 << 62]
        found = store.get_many(asked)
        assert [m and m.body for m in found[:301]] == [
            b"%d" % i * (i % 50) for i in (*range(299, -1, -1), 294)
        ]
        assert found[301:] == [None] * 5
        assert [m and m.record for m in found] == [m and m.record for m in map(store.get, asked)]
        hits = store.query_many("t", ["k3", "no", "k6"], max_num=100)
        assert [m and m.keys for m in store.get_many(hits.phy_offset)] == (
            ["k3"] * sum(hits.key_index == 0) + ["k6"] * sum(hits.key_index == 2)
        )
        assert store.get_many([]) == []
        assert store.get(1 << 70) is None
        for wrong, error in (([1.5], TypeError), (["0"], TypeError), ([[0]], ValueError)):
            with pytest.raises(error):
                store.get_many(wrong)
    with pytest.raises(pyrocketstore.StoreStateError):
        store.get_many([0])
