"""Goal: `put_encoded` stores and answers what one `put_message` for each row would.
Method: random rows, ordinary and odd, through both, into stores whose messages, offsets, statuses
and queues are then compared; odd values; failures in the middle of a call."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pyrocketstore
from pyrocketstore import PutMessageStatus, StoreStateError
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.errors import StoreFormatError, StoreIOError, StoreTypeError
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.message_store.encoded_puts import PutResults
from pyrocketstore.record._message import properties_to_string, string_to_properties
from pyrocketstore.record.message import MessageExtBrokerInner
from pyrocketstore.system._env import Event
from pyrocketstore.system.env import Env
from support.broken_env import failing
from support.deliveries import no_deliveries
from support.seed import SEED
from support.sizes import SIZES

LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}
OK, ILLEGAL = PutMessageStatus.PUT_OK, PutMessageStatus.MESSAGE_ILLEGAL
STORE_HOST = "127.0.0.1:10911"


def started(root: Path, env: Env | None = None, **settings: Any) -> DefaultMessageStore:
    store = DefaultMessageStore(MessageStoreConfig(**{**SIZES, **settings}).at_root(root), env=env)
    store.load()
    store.start()
    return store


def random_text(rng: random.Random) -> str:
    named = {"TAGS": rng.choice("abc")} if rng.random() < 0.6 else {}
    if rng.random() < 0.6:
        named["KEYS"] = " ".join(f"k{rng.randrange(9)}" for _ in range(rng.randrange(1, 4)))
    for _ in range(rng.choice([0, 0, 1, 5])):
        named[rng.choice(["a", "é", "WAIT", "UNIQ_KEY", "𝄞"])] = rng.choice(["1", "ü", "x" * 99])
    odd = rng.random()
    if odd < 0.04:
        named["DELAY"] = rng.choice(["1", "0", "99", "-1", "x"])
    elif odd < 0.08:
        named["INNER_MULTI_DISPATCH"] = rng.choice(["%LMQ%A", "%LMQ%A,%LMQ%B", "other", " "])
    elif odd < 0.11:
        return rng.choice(["a\x01b\0", "\x02\x02", "no separator", "a\x01", "\x01b", "a\x01b\x02"])
    elif odd < 0.13:
        named["long"] = rng.choice(["x" * 32_767, "ä" * 20_000, "x" * 40_000])
    return properties_to_string(named)


def random_rows(rng: random.Random, count: int) -> list[dict[str, Any]]:
    topics = ["T1", "T2", "Tö", "%RETRY%g"]
    odd_topics = ["x" * 128, "ä" * 100, "a/b", "..", "", "SCHEDULE_TOPIC_XXXX"]
    return [
        {
            "topic": rng.choice(odd_topics if rng.random() < 0.05 else topics),
            "body": rng.randbytes(rng.choice([0, 1, 30, 300, 70_000 if rng.random() < 0.1 else 9])),
            "queue_id": rng.choice([0, 1, 2, 40]),
            "text": random_text(rng) if rng.random() < 0.9 else None,
            "flag": rng.choice([0, 0, 7, -1]),
            "sys_flag": rng.choice(
                [0, 0, 0, 1, 2, 0x8, 0x30, 0x4, 0xC] if rng.random() < 0.4 else [0]
            ),
            "born_timestamp": rng.choice([0, 1_700_000_000_000, -5]),
            "born_host": rng.choice(["10.0.0.1:5", "[2001:db8::1]:9", STORE_HOST]),
        }
        for _ in range(count)
    ]


def message_of(row: dict[str, Any]) -> MessageExtBrokerInner:
    return MessageExtBrokerInner(
        row["topic"],
        row["body"],
        row["queue_id"],
        flag=row["flag"],
        sys_flag=row["sys_flag"],
        properties=string_to_properties(row["text"] or ""),
        properties_string=row["text"],
        born_timestamp=row["born_timestamp"],
        born_host=row["born_host"],
        store_host=STORE_HOST,
    )


def put_encoded(store: DefaultMessageStore, rows: list[dict[str, Any]], **kind: Any) -> PutResults:
    def column(name: str) -> list[Any]:
        return [row[name] for row in rows]

    texts = column("text")
    if kind.get("encoded"):
        texts = [None if text is None else text.encode() for text in texts]
    return store.put_encoded(
        column("topic"),
        np.array(column("queue_id")),
        column("body"),
        texts,
        flags=column("flag"),
        sys_flags=column("sys_flag"),
        born_timestamps=column("born_timestamp"),
        born_hosts=column("born_host"),
    )


def fields_of(store: DefaultMessageStore, phy_offset: int) -> list[Any]:
    message = store.look_message_by_offset(phy_offset)
    assert message is not None
    names = "topic queue_id queue_offset flag sys_flag stored_body properties_string born_timestamp"
    names += " born_host store_host body_crc size prepared_transaction_offset"
    return [getattr(message, name) for name in names.split()]


# ---- equal to put_message --------------------------------------------------------------------


@pytest.fixture
def undelivered() -> Iterator[None]:
    """A delivery is a put that the other store may not make at the same time."""
    with no_deliveries():
        yield


@pytest.mark.usefixtures("undelivered")
@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("settings", [{}, LIGHT, {"flush_disk_type": "SYNC_FLUSH"}])
def test_each_row_is_as_put_message_stores_it(
    settings: dict[str, Any], encoded: bool, tmp_path: Path
) -> None:
    rng = random.Random(f"{SEED}-{settings}-{encoded}")
    one, many = started(tmp_path / "one", **settings), started(tmp_path / "many", **settings)
    for count in (1, 3, 500):
        rows = random_rows(rng, count)
        results = [one.put_message(message_of(row)) for row in rows]
        found = put_encoded(many, rows, encoded=encoded)
        assert found.status.tolist() == [int(result.status) for result in results]
        counts = [store.stats().put_messages_by_status for store in (one, many)]
        assert counts[0] == counts[1]
        assert (found.status.dtype, found.queue_offset.dtype) == (np.int32, np.int64)
        for row, result in enumerate(results):
            stored = result.status is OK
            assert found.queue_offset[row] == (result.queue_offset if stored else -1), row
            assert found.phy_offset[row] == (result.phy_offset if stored else -1), row
            if stored:
                assert fields_of(one, result.phy_offset) == fields_of(many, result.phy_offset)
            else:
                assert row in found.errors
                assert str(found.errors[row]) == str(result.error)
    for store in (one, many):
        store.flush_all()
    for topic, queues in one.get_consume_queue_table().items():
        for queue_id, queue in queues.items():
            units = many.find_consume_queue(topic, queue_id).read_units(0, 10_000)
            theirs = queue.read_units(0, 10_000)
            assert units.phy_offset.tolist() == theirs.phy_offset.tolist()
            if topic != "SCHEDULE_TOPIC_XXXX":
                assert units.tags_code.tolist() == theirs.tags_code.tolist()
    for name in ("one", "many"):
        (one if name == "one" else many).shutdown()
        with pyrocketstore.open(tmp_path / name, read_only=True) as store:
            assert store.verify().ok


def test_columns_may_be_one_value_for_all(tmp_path: Path) -> None:
    store = started(tmp_path)
    found = store.put_encoded("T", 3, [b"a", bytearray(b"b"), memoryview(b"c")])
    assert found.status.tolist() == [0, 0, 0]
    assert found.queue_offset.tolist() == [0, 1, 2]
    found = store.put_encoded(
        "T",
        3,
        [b"d"],
        ["a\x01b"],
        flags=5,
        sys_flags=1,
        born_timestamps=7,
        born_hosts=("1.2.3.4", 5),
    )
    message = store.look_message_by_offset(int(found.phy_offset[0]))
    assert message is not None
    assert (message.flag, message.sys_flag, message.born_timestamp) == (5, 1, 7)
    assert (message.born_host, message.store_host) == ("1.2.3.4:5", STORE_HOST)
    assert message.properties == {"a": "b"}
    before = store.now()
    found = store.put_encoded("T", 3, [b"e"])
    message = store.look_message_by_offset(int(found.phy_offset[0]))
    assert message is not None
    assert before <= message.born_timestamp <= store.now()
    assert message.born_host == STORE_HOST
    empty = store.put_encoded([], [], [])
    assert [len(column) for column in empty[:3]] == [0, 0, 0]
    store.shutdown()


def test_a_call_fills_many_files_and_is_counted(tmp_path: Path) -> None:
    store = started(tmp_path)
    count = 3000
    found = store.put_encoded(
        [f"T{i % 3}" for i in range(count)], [i % 5 for i in range(count)], [b"x" * 100] * count
    )
    assert not found.status.any()
    assert (np.diff(found.phy_offset) > 0).all()
    assert len(store.commit_log.mapped_file_queue.mapped_files) > 5
    assert store.get_single_put_message_topic_times_total("T1") == count // 3
    assert store.stats().put_messages_by_status["PUT_OK"] == count
    store.wait_dispatched()
    assert store.get_max_offset_in_queue("T2", 4) == count // 15
    store.shutdown()


# ---- odd values ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"topics": ["T", 5]}, StoreTypeError, r"topics\[1\]"),
        ({"topics": 5}, StoreTypeError, "topics must be a sequence"),
        ({"topics": ["T"]}, StoreFormatError, "topics has 1 entries"),
        ({"queue_ids": [0, -1]}, StoreFormatError, r"queue_ids\[1\]"),
        ({"queue_ids": -1}, StoreFormatError, "queue_id"),
        ({"queue_ids": [0, 1.0]}, StoreTypeError, r"queue_ids\[1\]"),
        ({"bodies": [b"x", "x"]}, StoreTypeError, r"bodies\[1\]"),
        ({"bodies": b"xy"}, StoreTypeError, "bodies must be a sequence"),
        ({"properties": ["a\x01b", 5]}, StoreTypeError, r"properties\[1\]"),
        ({"properties": [None, b"a\x01\xff"]}, StoreFormatError, r"properties\[1\]: not UTF-8"),
        ({"properties": [None, "a\x01\ud800"]}, StoreFormatError, r"properties\[1\]"),
        ({"flags": [0, 1 << 31]}, StoreFormatError, r"flags\[1\]"),
        ({"flags": 1 << 31}, StoreFormatError, "flags"),
        ({"sys_flags": [0, True]}, StoreTypeError, r"sys_flags\[1\]"),
        ({"sys_flags": 1.5}, StoreTypeError, "sys_flags"),
        ({"born_timestamps": [0, 1 << 63]}, StoreFormatError, r"born_timestamps\[1\]"),
        ({"born_timestamps": [0]}, StoreFormatError, "born_timestamps has 1 entries"),
        ({"born_hosts": [STORE_HOST, "host"]}, StoreFormatError, r"born_hosts\[1\]"),
        ({"born_hosts": 5}, StoreTypeError, "born_hosts"),
    ],
)
def test_a_wrong_value_is_an_error_before_anything_is_written(
    change: dict[str, Any], error: type[Exception], text: str, tmp_path: Path
) -> None:
    store = started(tmp_path)
    arguments: dict[str, Any] = {"topics": ["T", "T"], "queue_ids": [0, 0], "bodies": [b"a", b"b"]}
    with pytest.raises(error, match=text):
        store.put_encoded(**{**arguments, **change})
    assert store.get_max_phy_offset() == 0
    store.shutdown()


@pytest.mark.parametrize("properties", ["", "DELAY\x011\x02"])
def test_a_topic_that_is_no_text_is_refused_alone(tmp_path: Path, properties: str) -> None:
    store = started(tmp_path)
    found = store.put_encoded(["T", "\ud800", "T"], 0, [b"a", b"b", b"c"], ["", properties, ""])
    assert found.status.tolist() == [OK, ILLEGAL, OK]
    assert "lone surrogate" in str(found.errors[1])
    with pytest.raises(StoreFormatError, match="lone surrogate"):
        store.put_message(MessageExtBrokerInner("\ud800", b"x", properties_string=properties))
    store.shutdown()


# ---- refusals and failures -------------------------------------------------------------------


def test_a_closed_store_a_slave_and_a_full_disk(tmp_path: Path) -> None:
    store = DefaultMessageStore(MessageStoreConfig(**SIZES).at_root(tmp_path / "a"))
    store.load()
    with pytest.raises(StoreStateError):
        store.put_encoded("T", 0, [b"x"])
    store.start()
    store.put_encoded("T", 0, [b"x"])
    cause = StoreIOError(errno.ENOSPC, "write", "/disk")
    store.running_flags.get_and_make_disk_full(cause)
    found = store.put_encoded(["T", "a/b", "T"], 0, [b"x"] * 3)
    unavailable = PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert found.status.tolist() == [unavailable] * 3
    assert str(found.errors[0]) == str(cause)
    store.shutdown()
    assert store.put_encoded("T", 0, [b"x"]).status.tolist() == [unavailable]
    ended = started(tmp_path / "c")
    ended.shutdown()  # before any such call
    assert ended.put_encoded("T", 0, [b"x"]).status.tolist() == [unavailable]
    slave = started(tmp_path / "b", broker_role="SLAVE")
    assert slave.put_encoded("T", 0, [b"x"] * 2).status.tolist() == [unavailable] * 2
    slave.shutdown()


def test_behind_half_a_record_nothing_is_put(tmp_path: Path) -> None:
    store = started(tmp_path)
    store.append_data(0, b"\0")
    found = store.put_encoded("T", 0, [b"x"])
    assert found.status.tolist() == [PutMessageStatus.SERVICE_NOT_AVAILABLE]
    assert "continue_puts" in str(found.errors[0])
    store.drop_partial_record()
    store.continue_puts()
    assert store.put_encoded("T", 0, [b"x"]).status.tolist() == [OK]
    store.shutdown()


def test_a_full_device_in_the_middle(tmp_path: Path) -> None:
    env = Env()
    store = started(tmp_path, env, write_without_mmap=True)
    store.put_encoded("T", 0, [b"x"])
    store.wait_dispatched()
    with failing(env, "open_unnamed", errno.ENOSPC):
        found = store.put_encoded("T", 0, [b"x" * 1000] * 400)
    done = int(np.count_nonzero(found.status == OK))
    assert 0 < done < 400
    assert found.status.tolist() == [OK] * done + [PutMessageStatus.CREATE_MAPEDFILE_FAILED] * (
        400 - done
    )
    assert (found.phy_offset[done:] == -1).all()
    counts = store.stats().put_messages_by_status
    assert counts["PUT_OK"] == done + 1
    assert counts["CREATE_MAPEDFILE_FAILED"] == 400 - done
    error = found.errors[done]
    assert isinstance(error, StoreIOError)
    assert error.errno == errno.ENOSPC
    assert store.put_encoded("T", 0, [b"y"]).queue_offset.tolist() == [done + 1]
    store.shutdown()


def test_a_queue_that_can_have_no_directory_is_refused_alone(tmp_path: Path) -> None:
    (tmp_path / "consumequeue" / "T").mkdir(parents=True)
    (tmp_path / "consumequeue" / "T" / "7").write_text("a file")
    store = started(tmp_path)
    found = store.put_encoded("T", [0, 1, 7, 2, 7], [b"x"] * 5)
    refused = PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert found.status.tolist() == [OK, OK, refused, OK, refused]
    assert found.queue_offset.tolist() == [0, 0, -1, 0, -1]
    assert "T/7" in str(found.errors[2])
    store.shutdown()


def test_who_waits_for_the_lock_gives_up(tmp_path: Path) -> None:
    store = started(tmp_path, os_page_cache_busy_time_out_mills=1)
    store.put_encoded("T", 0, [b"x"])
    core = store.commit_log.core
    assert isinstance(store.appended, Event)
    core.busy_ms = -1  # each hold has lasted for too long
    found = store.put_encoded("T", 0, [b"x"])
    assert found.status.tolist() in ([OK], [PutMessageStatus.OS_PAGECACHE_BUSY])
    core.busy_ms = 1000
    store.shutdown()


def test_entries_that_no_list_has_are_refused(tmp_path: Path) -> None:
    store = started(tmp_path)
    far = pa.array([2**62], pa.timestamp("ms"))
    days = pa.array([2**30], pa.date32())
    characters = np.frombuffer(b"\xff\xff\xff\x7f", "<U1")
    for times in (far, days):
        with pytest.raises(StoreFormatError, match="Arrow cannot convert"):
            store.put_encoded("T", 0, [b"x"], born_timestamps=times)
    for topics, properties in ((characters, None), ("T", characters)):
        with pytest.raises(StoreFormatError, match="NumPy cannot convert"):
            store.put_encoded(topics, 0, [b"x"], properties)
    assert store.get_max_phy_offset() == 0
    store.shutdown()
