"""Goal: what a put refuses has one class of error and one reason, whichever way it was put, and has
written nothing. Method: each way, with columns of the wrong kind, lengths beyond the limits, stores
that are closed meanwhile, and values that are not messages. tests/faults/test_odd_puts.py draws
single values of odd types."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore import (
    DefaultMessageStore,
    Message,
    MessageExtBatch,
    MessageExtBrokerInner,
    MessageRefused,
    MessageStoreConfig,
    PutError,
    PutMessageStatus,
    StoreFormatError,
    StoreStateError,
    StoreTypeError,
)
from pyrocketstore.record._message import encode_messages, properties_to_string
from pyrocketstore.results import Status
from pyrocketstore.system.signal_shield import imported

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 500,
    "max_index_num": 20000,
}

#: Columns that are refused, and the reason.
COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "floats as ids": ({"queue_ids": [0.0, 2.9]}, r"queue_ids\[0\] must be an int"),
    "array of floats": ({"queue_ids": np.array([0.0, 1.0])}, "queue_ids.0. must be an int"),
    "a mask": ({"queue_ids": np.array([True, False])}, "not bool"),
    "durations": ({"queue_ids": np.array([0, 1], "m8[ns]")}, "a time"),
    "text as ids": ({"queue_ids": "01"}, "must be a sequence"),
    "a float for all": ({"queue_ids": 1.5}, "must be a sequence"),
    "two dimensions": ({"queue_ids": np.zeros((2, 1), int)}, "one dimension"),
    "a text for all": ({"tags": "ab"}, "must be a sequence"),
    "bytes as tags": ({"tags": np.array([b"a", b"b"])}, "NumPy drops the zeros"),
    "a set of tags": ({"tags": {"a", "b"}}, "must be a sequence"),
    "a dict of keys": ({"keys": {"a": 1, "b": 2}}, "must be a sequence"),
    "one mapping": ({"properties": {"a": "b", "c": "d"}}, "must be a sequence"),
    "text as properties": ({"properties": ["a", "b"]}, "must be a mapping"),
    "too few": ({"tags": ["a"]}, "1 entries for 2"),
}


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with pyrocketstore.open(tmp_path / "store", **SIZES) as opened:
        yield opened


def is_untouched(store: pyrocketstore.Store) -> bool:
    topics = store.message_store.topics
    assert topics is not None
    return store.message_store.get_max_phy_offset() == 0 and not topics.topics()


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_the_wrong_kind(store: pyrocketstore.Store, name: str) -> None:
    columns, reason = COLUMNS[name]
    with pytest.raises(StoreFormatError, match=reason):
        store.put_many("t", [b"a", b"b"], **columns)
    if "queue_ids" not in columns:
        with pytest.raises(StoreFormatError, match=reason):
            store.put_batch("t", [b"a", b"b"], **columns)
    assert is_untouched(store)


@pytest.mark.parametrize(
    "bodies",
    [
        np.array([b"ab\0", b"\0\0"]),
        np.array([[1, 2]], np.uint8),
        np.array([1, 2], np.uint8),
        np.zeros(2, [("a", "i4")]),
        np.array([b"x", None], object),
        {b"a": 1},
        b"ab",
        bytearray(b"ab"),
        5,
        None,
    ],
    ids=lambda bodies: str(getattr(bodies, "dtype", type(bodies).__name__)),
)
def test_bodies_of_the_wrong_kind(store: pyrocketstore.Store, bodies: Any) -> None:
    with pytest.raises(StoreTypeError):
        store.put_many("t", bodies)
    with pytest.raises(StoreTypeError):
        store.put_batch("t", bodies, keys=["k", "k"])
    assert is_untouched(store)


def test_bodies_of_a_fixed_width_keep_their_zeros(store: pyrocketstore.Store) -> None:
    store.put_many("t", np.array([b"ab\0", b"\0\0\0"], "V3"))
    store.put_many("t", np.array([b"ab\0", b"\0\0"], object))
    bodies = [b"ab\0", b"\0\0\0", b"ab\0", b"\0\0"]
    assert [m.body for m in store.read("t")] == bodies


def test_arrow_arrays_with_bad_offsets(store: pyrocketstore.Store) -> None:
    pytest.importorskip("pyarrow")
    arrow = imported("pyarrow")
    for offsets in ((0, 1 << 30, 5), (0, -7, 5), (0, 6, 5)):
        buffers = [None, arrow.py_buffer(struct.pack("<3i", *offsets)), arrow.py_buffer(b"abcde")]
        bodies = arrow.Array.from_buffers(arrow.binary(), 2, buffers)
        for given in (bodies, arrow.chunked_array([bodies])):
            with pytest.raises(StoreFormatError, match="bodies is not a valid Arrow array"):
                store.put_many("t", given)
        texts = arrow.Array.from_buffers(arrow.string(), 2, buffers)
        for name in ("tags", "keys"):
            with pytest.raises(StoreFormatError, match=f"{name} is not a valid Arrow array"):
                store.put_many("t", [b"", b""], **{name: texts})
            with pytest.raises(StoreFormatError, match=f"{name} is not a valid Arrow array"):
                store.put_batch("t", [b"", b""], **{name: texts})
    torn = arrow.py_buffer(b"\xff\xfe")
    buffers = [None, arrow.py_buffer(struct.pack("<3i", 0, 1, 2)), torn]
    with pytest.raises(StoreFormatError, match="tags is not a valid Arrow array"):
        store.put_many("t", [b"", b""], tags=arrow.Array.from_buffers(arrow.string(), 2, buffers))
    assert store.topics() == []


def test_arrow_arrays_of_the_wrong_type(store: pyrocketstore.Store) -> None:
    pytest.importorskip("pyarrow")
    arrow = imported("pyarrow")
    for kind in ("float64", "bool_", "string", "date32"):
        empty = arrow.nulls(2, getattr(arrow, kind)())
        assert store.put_many("none", [b"", b""], queue_ids=empty)[0].tolist()
    end = store.message_store.get_max_phy_offset()
    wrong = {
        "queue_ids": (arrow.array([0.0, 1.0]), arrow.array([True, False]), arrow.array(["0", "1"])),
        "tags": (arrow.array([1, 2]), arrow.array([b"a", b"b"])),
        "keys": (arrow.array([1, 2]), arrow.array([[1], [2]])),
    }
    for name, arrays in wrong.items():
        for array in arrays:
            with pytest.raises(StoreTypeError):
                store.put_many("t", [b"a", b"b"], **{name: array})
    for array in (arrow.array(["a", "b"]), arrow.array([1, 2]), arrow.array([[1], [2]])):
        with pytest.raises(StoreTypeError):
            store.put_many("t", array)
    assert store.message_store.get_max_phy_offset() == end
    store.put_many("t", arrow.array([b"a\0", b"b"]), queue_ids=arrow.array([0, None], arrow.int8()))
    assert [m.body for m in store.read("t")] == [b"a\0", b"b"]


def test_arrow_maps_are_properties(store: pyrocketstore.Store) -> None:
    pytest.importorskip("pyarrow")
    arrow = imported("pyarrow")
    named = [{"a": "1", "b": "é"}, None, {}]
    pairs = [None if one is None else list(one.items()) for one in named]
    bodies = [b"x", b"y", b"z"]
    for kind in (arrow.string(), arrow.large_string()):
        maps = arrow.array(pairs, arrow.map_(arrow.string(), kind))
        for given in (maps, arrow.chunked_array([maps[:1], maps[1:]])):
            store.put_many("many", bodies, properties=given)
            store.put_many("late", bodies, properties=given, delay_levels=[0, 0, 1])
            store.put_batch("batch", bodies, properties=given)
    for topic in ("many", "batch"):
        assert [m.properties for m in store.read(topic)] == [one or {} for one in named] * 4
    read = store.read_batch("many", start=0, columns=["body", "properties_map"])
    store.put_many("copy", read["body"], properties=read["properties_map"])
    assert store.read_batch("copy", start=0, columns=read.schema.names).equals(read)


def test_arrow_maps_that_are_no_properties(store: pyrocketstore.Store) -> None:
    pytest.importorskip("pyarrow")
    arrow = imported("pyarrow")
    text, whole = arrow.string(), arrow.int64()
    twice = arrow.array([[], [("a", "1"), ("a", "2")]], arrow.map_(text, text))
    scalars = list(arrow.array([[], [("a", "1")]], arrow.map_(text, text)))
    numbers = arrow.array([[], [("a", 1)]], arrow.map_(text, whole))
    for properties, reason in (
        (twice, r"properties\[1\]: the name 'a' is there twice"),
        (arrow.array([[], [(1, "a")]], arrow.map_(whole, text)), r"a name in properties\[1\] must"),
        (numbers, "message 1: property a must be a str, not int"),
        (scalars, "message 1: .* of a MapScalar must"),
    ):
        for put in (store.put_many, store.put_batch):
            with pytest.raises(StoreFormatError, match=reason):
                put("t", [b"a", b"b"], properties=properties)
    assert is_untouched(store)


def test_numbers_of_the_second_put(store: pyrocketstore.Store) -> None:
    """The compiled path, which the first put of a queue does not take."""
    store.put("t", b"first")
    for values in ({"flag": 2**31}, {"born_timestamp": 2**63}, {"queue_id": 2**63}):
        (name, value), = values.items()  # fmt: skip
        with pytest.raises(StoreFormatError, match=f"{name} {value}: must be "):
            store.put("t", b"x", **values)  # type: ignore[arg-type]
    assert store.max_offset("t") == 1


def test_the_last_queue_id_has_a_number_of_queues_that_java_reads(
    store: pyrocketstore.Store,
) -> None:
    low = store.message_store
    with pytest.raises(StoreFormatError, match="must be 0 to 2147483646"):
        store.put("t", b"x", queue_id=2**31 - 1)
    with pytest.raises(StoreFormatError, match=r"topics.json"):
        low.put_message(MessageExtBrokerInner("t", b"x", 2**31 - 1))
    assert is_untouched(store)
    store.put("t", b"x", queue_id=2**31 - 2)
    store.flush()
    assert f'"readQueueNums":{2**31 - 1}' in (
        Path(store.path, "config", "topics.json").read_text().replace(" ", "")
    )


# ---- what is too long -----------------------------------------------------------------------


def ways(body: bytes, properties: Any) -> dict[str, Callable[[pyrocketstore.Store], Any]]:
    return {
        "put": lambda s: s.put("t", body, properties=properties),
        "aput": lambda s: asyncio.run(s.aput("t", body, properties=properties)),
        "put_many": lambda s: s.put_many("t", [body], properties=[properties]),
        "columns": lambda s: s.put_batch("t", [body], properties=[properties]),
        "dicts": lambda s: s.put_batch("t", [{"body": body, "properties": properties}]),
    }


@pytest.mark.parametrize(
    ("body", "properties", "status"),
    [
        (bytes(1 << 16), None, "MESSAGE_ILLEGAL"),
        (b"", {"a": "x" * 32766}, "PROPERTIES_SIZE_EXCEEDED"),
        (b"", {"a": "é" * 16383}, "PROPERTIES_SIZE_EXCEEDED"),
    ],
    ids=["body", "properties", "properties in UTF-8"],
)
def test_one_class_and_one_reason(
    store: pyrocketstore.Store, body: bytes, properties: Any, status: str
) -> None:
    reasons = set()
    for call in ways(body, properties).values():
        with pytest.raises(PutError) as caught:
            call(store)
        assert (caught.value.count, caught.value.stored) == (0, False)
        reasons.add((caught.value.status.name, caught.value.reason.removeprefix("message 0: ")))
    assert len(reasons) == 1 and reasons.pop()[0] == status
    assert is_untouched(store)


def test_a_batch_says_why_it_is_refused(tmp_path: Path) -> None:
    config = MessageStoreConfig(store_path_root_dir=str(tmp_path), **SIZES)
    low = DefaultMessageStore(config)
    low.load()
    low.start()
    try:
        body = encode_messages([MessageExtBrokerInner("t", bytes(100))] * 3)
        for batch in (
            MessageExtBatch("t" * 128, body),
            MessageExtBatch("t", bytes(config.max_message_size + 1)),
            MessageExtBatch("t", encode_messages([MessageExtBrokerInner("t", bytes(1 << 16))])),
            MessageExtBatch("t", body[:-1]),
            MessageExtBatch("t", body, sys_flag=4),
        ):
            result = low.put_messages(batch)
            assert result.status.name == "MESSAGE_ILLEGAL"
            assert isinstance(result.error, MessageRefused), batch.topic
        assert low.get_max_phy_offset() == 0
    finally:
        low.shutdown()


# ---- values that are not messages, and a store in no state for them ------------------------------


def test_fields_of_a_message_are_exact(store: pyrocketstore.Store) -> None:
    low = store.message_store
    for change in (
        {"queue_id": 1.75},
        {"flag": 1.0},
        {"sys_flag": True},
        {"born_timestamp": "1"},
        {"topic": b"t"},
        {"properties_string": b""},
        {"properties": 1},
        {"properties": {"TAGS": 1}},
        {"body": np.array([b"x", None], object)},
        {"body": "text"},
        {"prepared_transaction_offset": 0.5},
    ):
        message = MessageExtBrokerInner("t", b"x")
        for name, value in change.items():
            setattr(message, name, value)
        for put in (low.put_message, low.async_put_message):
            with pytest.raises(StoreTypeError):
                put(message)
    assert is_untouched(store)


def test_text_with_methods_of_its_own_puts_in_no_property() -> None:
    class Text(str):
        def __format__(self, spec: str) -> str:
            return "a\x02TAGS\x01stolen"

        __str__ = __format__  # type: ignore[assignment]

    assert properties_to_string({"a": Text("b"), Text("c"): "d"}) == "a\x01b\x02c\x01d"


@pytest.mark.parametrize("thing", [None, 5, "t", {"topic": "t"}, pyrocketstore.Message("t", b"x")])
def test_what_is_no_message(store: pyrocketstore.Store, thing: Any) -> None:
    low = store.message_store
    for put in (low.put_message, low.put_messages, low.async_put_message, low.async_put_messages):
        with pytest.raises(TypeError, match="MessageExtBrokerInner"):
            put(thing)
    assert is_untouched(store)


class NotPairs(dict[str, str]):
    """A mapping whose items are not names with values."""

    def __init__(self, entries: Any) -> None:
        super().__init__(a="b")
        self.entries = entries

    def items(self) -> Any:
        return self.entries


@pytest.mark.parametrize("entries", [[("a", "b", "c")], [5], None, [([], "b")], [(5, "b")]])
def test_a_mapping_whose_items_are_not_pairs(store: pyrocketstore.Store, entries: Any) -> None:
    properties = NotPairs(entries)
    inner = MessageExtBrokerInner("t", b"x", properties=properties)
    batch = MessageExtBatch("t", encode_messages([Message("t")]), properties=properties)
    for put in (
        lambda: store.put("t", b"x", properties=properties),
        lambda: asyncio.run(store.aput("t", b"x", properties=properties)),
        lambda: store.put_many("t", [b"x"], properties=[properties]),
        lambda: store.put_batch("t", [Message("t", b"x", properties=properties)]),
        lambda: store.put_batch("t", [properties]),
        lambda: store.message_store.put_message(inner),
        lambda: store.message_store.put_messages(batch),
        lambda: properties_to_string(properties),
        lambda: encode_messages([inner]),
    ):
        with pytest.raises(StoreTypeError):
            put()
    assert is_untouched(store)


def test_what_is_no_env(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="env must be"):
        pyrocketstore.open(tmp_path / "new", env=5)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


def test_a_flush_of_what_cannot_be_flushed(tmp_path: Path) -> None:
    pyrocketstore.open(tmp_path, **SIZES).close()
    config = MessageStoreConfig(store_path_root_dir=str(tmp_path), **SIZES)
    for read_only, reason in ((True, "read-only"), (False, "not started")):
        low = DefaultMessageStore(config, read_only=read_only)
        low.load()
        try:
            for flush in (low.flush, low.flush_all):
                with pytest.raises(StoreStateError, match=reason):
                    flush()
        finally:
            low.shutdown()


@pytest.mark.parametrize("way", [*ways(b"", None), "roll"])
def test_a_put_beside_a_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Where it begins to close after the put has looked whether it is open."""
    store = pyrocketstore.open(tmp_path, **SIZES)
    low = store.message_store
    store.put("t", b"first")
    check = low.puts.status

    def closed_meanwhile(**options: Any) -> Any:
        store.close()
        return check(**options)

    def closed_before_the_roll(size: int) -> None:
        store.close()
        raise StoreStateError("the store is closed")

    if way == "roll":
        low.commit_log.core.roll_by(closed_before_the_roll)
        with pytest.raises(PutError) as caught:
            store.put_many("t", [bytes(1000)] * 100)
        assert 0 < caught.value.count < 100
        assert caught.value.status.name == "SERVICE_NOT_AVAILABLE"
        return
    monkeypatch.setattr(low.puts, "status", closed_meanwhile)
    with pytest.raises(StoreStateError):
        ways(b"x", MappingProxyType({"a": "b"}))[way](store)
    assert store.closed


def test_an_append_with_odd_expectations_writes_nothing(store: pyrocketstore.Store) -> None:
    """The compiled append of a message for several queues compares their offsets under a lock."""
    store.put("t", b"first")
    core = store.message_store.commit_log.core
    slot, end = core.slot("t", 0), core.appended_end
    for expected in ([(None, 0)], [("t", 0)], [(slot, 1 << 70)], [(slot, "1")], [slot], [()]):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            core.append_encoded(b"", 0, slot, True, cast(Any, expected))
        assert (core.appended_end, slot.offset) == (end, 1)
    moved = core.append_encoded(b"", 0, slot, True, [(slot, 0)])
    assert moved[0] == Status.RETRY and slot.offset == 1
    store.put("t", b"second")
    assert store.max_offset("t") == 2


@pytest.mark.parametrize(
    "host",
    [
        "[fe80::1%eth0]:5", ("fe80::1%eth0", 5), {"1.2.3.4": 1, 80: 2}, iter(["1.2.3.4", 80]),
        np.array(["1.2.3.4", 80], object), {"1.2.3.4", 80}, bytes([1, 2, 3, 4]) + b"\xff" * 4,
        bytes([1, 2, 3, 4, 0, 1, 0, 0]), bytearray(8), memoryview(bytes(8)).cast("B", (2, 4)), 5,
        ("1.2.3.4", 80, 1), ("1.2.3.4", True), ("1.2.3.4", 65536), ("1.2.3.4", "80"),
    ],
)  # fmt: skip
def test_hosts_that_no_record_keeps(store: pyrocketstore.Store, tmp_path: Path, host: Any) -> None:
    for call in (
        lambda: store.put("t", b"", born_host=host),
        lambda: store.put_many("t", [b""], born_host=host),
        lambda: pyrocketstore.open(tmp_path / "other", store_host=host),
    ):
        with pytest.raises(StoreFormatError, match=r"host|address"):
            call()
    assert store.topics() == []


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("a", "born_host must be 'address:port', not 'a'"),
        (1, "born_host must be a str 'address:port', not 1"),
        (b"abc", "born_host must have 8 or 20 bytes, not 3"),
        ("::1:2", "born_host: an IPv6 address needs brackets: '::1:2'"),
        ("a:1", "born_host has no numeric address: 'a:1'"),
        ("1.2.3.4:65536", "the port of born_host 65536: must be 0 to 65535"),
        (("1.2.3.4", "80"), "the port of born_host must be an int from 0 to 65535, not str"),
        (bytes([1, 2, 3, 4, 0, 1, 0, 0]), "the port of born_host 65536: must be 0 to 65535"),
    ],
)
def test_an_error_names_the_host(
    store: pyrocketstore.Store, tmp_path: Path, host: Any, reason: str
) -> None:
    for call in (
        lambda: store.put("t", b"", born_host=host),
        lambda: store.put_many("t", [b""], born_host=host),
        lambda: store.put_many("t", [b""], born_host=host, delay_levels=1),
    ):
        with pytest.raises(StoreFormatError, match=f"^{re.escape(reason)}$"):
            call()
    with pytest.raises(StoreFormatError, match=re.escape(reason.replace("born", "store"))):
        pyrocketstore.open(tmp_path / "other", store_host=host)


def test_hosts_read_back(store: pyrocketstore.Store) -> None:
    given = ["1.2.3.4:65535", ("1.2.3.4", 80), ["1.2.3.4", np.int16(80)], "[2001:db8::1]:1"]
    for host in [*given, bytes([1, 2, 3, 4, 0, 0, 0, 9])]:
        store.put("t", b"", born_host=host)
    found = [message.born_host for message in store.read("t")]
    assert found == ["1.2.3.4:65535", *["1.2.3.4:80"] * 2, "[2001:db8::1]:1", "1.2.3.4:9"]


@pytest.mark.parametrize(
    "keys",
    [b"", bytearray(), memoryview(b"abcdef").cast("B", (2, 3)), {"b", "a"}, {}, np.array(1), 0,
     False, set(), frozenset("a")],
)  # fmt: skip
def test_keys_without_an_order(store: pyrocketstore.Store, keys: Any) -> None:
    with pytest.raises(StoreTypeError, match="keys must be a str or a sequence of str"):
        store.put("t", b"", keys=keys)
    with pytest.raises(StoreTypeError, match=r"keys(\[0\])? must be a str or a sequence of str"):
        store.put_many("t", [b""], keys=[keys])
    assert store.topics() == []


def test_an_error_does_not_ask_a_value_for_its_text(store: pyrocketstore.Store) -> None:
    pytest.importorskip("pyarrow")
    arrow = imported("pyarrow")
    buffers = [None, arrow.py_buffer(struct.pack("<3i", 0, 5, 2)), arrow.py_buffer(b"abcde")]
    bad = arrow.Array.from_buffers(arrow.binary(), 2, buffers)  # its repr ends the process
    for name in ("born_host", "tags", "keys", "properties", "queue_id", "flag", "delay_level"):
        with pytest.raises((StoreFormatError, TypeError)):
            store.put("t", b"", **{name: bad})
    store.put("t", b"")
    for name in ("tags", "on_corrupt", "check_crc", "start"):
        with pytest.raises((StoreFormatError, TypeError)):
            store.read("t", **{name: bad})


@pytest.mark.parametrize(
    "properties", [{"a": ""}, {"a": "x\x02b\x01c"}, {"": "x"}, {"DELAY": "3"}, {"TAGS": ""}]
)
def test_messages_of_a_batch_are_checked(tmp_path: Path, properties: dict[str, str]) -> None:
    """Goal: a Message in a batch reads back equal or is refused, as with put."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        with pytest.raises(StoreFormatError):
            store.put_batch("t", [Message("t", b"", properties=properties)])
        with pytest.raises(StoreFormatError):
            store.put_batch("t", [Message("other", b"")])
        result = store.put_batch("t", [Message("t", b"z", properties={"KEYS": "k", "a": "b"})])
        message = store.get(result.phy_offset)
        assert message is not None
        assert message.properties == {"KEYS": "k", "a": "b"}


LONG = {"a": "x" * 40000}
#: Messages that no batch stores, and the reason.
ITEMS: dict[str, tuple[Any, str]] = {
    "unknown": ({"body": b"", "tag": "a"}, "message 4: unknown fields: 'tag'; it has"),
    "another name": ({"body": b"", 1: 2}, "message 4: unknown fields: 1; it has"),
    "no body": ({"tags": "a"}, "message 4: the field body is missing"),
    "properties": ({"body": b"", "properties": 1}, "message 4: properties must be a mapping"),
    "tags": ({"body": b"", "tags": "*"}, r"^(message 4: tags|tags\[4\]): no expression"),
    "keys": ({"body": b"", "keys": ["a b"]}, r"(message 4: a key|a key of keys\[4\]) must"),
    "body": ({"body": 1}, r"bodies\[4\] must be bytes-like"),
    "flag": ({"body": b"", "flag": 1 << 40}, r"flags\[4\] 1099511627776: must be"),
    "topic": (Message("u", b""), "message 4: a message for 'u' in a batch for 't'"),
    "a topic": (Message(cast(Any, 3), b""), "message 4: a topic must be a str, not int"),
    "of a Message": (
        Message("t", b"", properties=cast(Any, 3)),
        "message 4: properties must be a mapping",
    ),
}


@pytest.mark.parametrize("name", ITEMS)
@pytest.mark.parametrize("first", [b"", Message("t", b"")], ids=["compiled", "Python"])
@pytest.mark.parametrize("unique_key", [False, True])
def test_an_error_of_a_batch_names_the_message(
    tmp_path: Path, name: str, first: Any, unique_key: bool
) -> None:
    item, reason = ITEMS[name]
    with pyrocketstore.open(tmp_path, unique_key=unique_key, **SIZES) as store:
        with pytest.raises(StoreFormatError, match=reason):
            store.put_batch("t", [first, b"", {"body": b""}, b"", item, b""])
        assert is_untouched(store)


@pytest.mark.parametrize("unique_key", [False, True])
def test_properties_that_are_too_long_name_the_message(tmp_path: Path, unique_key: bool) -> None:
    items = [b"", {"body": b"", "properties": LONG}]
    columns: dict[str, Any] = {"properties": [None, LONG]}
    with pyrocketstore.open(tmp_path, unique_key=unique_key, **SIZES) as store:
        for call in (
            lambda: store.put_batch("t", items),
            lambda: store.put_batch("t", [Message("t", b""), Message("t", b"", properties=LONG)]),
            lambda: store.put_batch("t", [b"", b""], **columns),
            lambda: store.put_many("t", [b"", b""], **columns),
            lambda: store.put_many("t", [b"", b""], **columns, delay_levels=[0, 1]),
        ):
            with pytest.raises(PutError, match="message 1: the properties have more") as caught:
                call()
            assert caught.value.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
        assert is_untouched(store)


@pytest.mark.parametrize("topic", ["../../evil", "", "a/b", ".", "t\0"])
def test_a_topic_that_can_have_no_queue_is_refused(tmp_path: Path, topic: str) -> None:
    """Goal: no message is acknowledged that no queue would ever give."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        result = store.message_store.put_message(MessageExtBrokerInner(topic, b"x"))
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert isinstance(result.error, StoreFormatError)
        assert store.message_store.get_max_phy_offset() == 0
