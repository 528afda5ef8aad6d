"""Goal: no argument of a reading call, or of a public function, escapes as anything but a
StoreError, and a number means the same in each of its types.
Method: every reading call of Store and DefaultMessageStore, every public function over records,
every parameter, a list of odd values; then the same calls with NumPy's integers."""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore import Message, StoreError, StoreFormatError, StoreTypeError
from pyrocketstore.display import shown
from support.odd_values import posing
from support.vectors import V4_RECORD

NAN = float("nan")


class Hostile:
    """Raises wherever it is looked at."""

    def __repr__(self) -> str:
        raise KeyError("repr")

    def __index__(self) -> int:
        raise KeyError("index")

    def __eq__(self, other: object) -> bool:
        raise KeyError("eq")

    def __hash__(self) -> int:
        raise KeyError("hash")

    def __bool__(self) -> bool:
        raise KeyError("bool")


ODD: list[Any] = [
    None, True, False, 0.0, 1.9, NAN, float("inf"), "", "0", "\ud800", "x" * 100_000, b"0",
    bytearray(8), memoryview(b"12345678"), [], [0], [[0]], [None], (), {}, {0}, object(),
    2**31, 2**63, 2**64, -1, -(2**63), -(2**63) - 1, 10**5000, 1 + 2j,
    np.bool_(True), np.float64(1), np.str_("t"), np.array(0), np.array([1, 2]), np.zeros((2, 2)),
    np.array(["raise"]), np.datetime64(1, "ms"), Hostile(), iter([0]), *posing(),
]  # fmt: skip

#: Each call of Store with good arguments by name.
STORE: dict[str, dict[str, Any]] = {
    "read": {
        "topic": "t", "queue_id": 0, "start": 0, "stop": 3, "tags": "*", "where": "a = 1",
        "on_corrupt": "raise",
        "check_crc": False,
    },
    "read_batch": {
        "topic": "t", "queue_id": 0, "start": 0, "max_count": 3, "max_bytes": 1000,
        "columns": ["body"], "tags": "*", "where": "a = 1",
        "on_corrupt": "skip", "check_crc": True,
    },
    "query": {"topic": "t", "key": "k", "begin": 0, "end": None, "max_num": 3, "exact": True},
    "query_many": {"topic": "t", "keys": ["k"], "begin": 0, "end": None, "max_num": 3},
    "get": {"phy_offset_or_msg_id": 0},
    "get_many": {"phy_offsets": [0]},
    "min_offset": {"topic": "t", "queue_id": 0},
    "max_offset": {"topic": "t", "queue_id": 0},
    "offset_at": {"topic": "t", "queue_id": 0, "timestamp_ms": 0},
    "queues": {"topic": "t"},
    "wait_dispatched": {"timeout": 1},
}  # fmt: skip
QUEUE = {"topic": "t", "queue_id": 0}
UNIT = {**QUEUE, "cq_offset": 0}
#: Each reading call of DefaultMessageStore.
ENGINE: dict[str, dict[str, Any]] = {
    "get_message": {
        "group": "g", **QUEUE, "offset": 0, "max_msg_nums": 3, "message_filter": None
    },
    "query_message": {"topic": "t", "key": "k", "max_num": 3, "begin": 0, "end": 2**62},
    "look_message_by_offset": {"phy_offset": 0, "size": 0},
    "select_one_message_by_offset": {"phy_offset": 0, "size": 0},
    "get_max_offset_in_queue": QUEUE,
    "get_min_offset_in_queue": QUEUE,
    "get_commit_log_offset_in_queue": UNIT,
    "get_offset_in_queue_by_time": {**QUEUE, "timestamp": 0},
    "get_message_store_time_stamp": UNIT,
    "get_earliest_message_time": QUEUE,
    "get_message_total_in_queue": QUEUE,
    "check_in_disk_by_consume_offset": UNIT,
    "get_commit_log_data": {"phy_offset": 0},
    "get_message_ids": {
        **QUEUE, "min_offset": 0, "max_offset": 7, "store_host": "127.0.0.1:10911"
    },
    "get_consume_queue": QUEUE,
    "wait_dispatched": {"timeout": 1},
}  # fmt: skip
#: Each public function over messages and records.
FUNCTIONS: dict[str, dict[str, Any]] = {
    "encode_messages": {"messages": [Message("t", b"x", properties={"a": "b"})]},
    "decode_record": {"data": V4_RECORD, "phy_offset": 0, "check_crc": True, "path": "log"},
    "properties_to_string": {"properties": {"a": "b"}},
    "string_to_properties": {"text": "a\x01b"},
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[pyrocketstore.Store]:
    settings = {"mapped_file_size_commit_log": 1 << 16, "max_hash_slot_num": 50}
    with pyrocketstore.open(tmp_path / "s", max_index_num=400, **settings) as opened:
        for i in range(7):
            opened.put("t", b"%d" % i, keys="k", tags="a")
        yield opened


def outcome(call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """The result of a call, in a form that can be compared."""
    found = call(**arguments)
    if hasattr(found, "messages") and hasattr(found, "release"):
        messages = [(m.phy_offset, m.body) for m in found.messages()]
        found.release()
        return messages
    if hasattr(found, "message_mapped_list"):
        places = found.phy_offsets
        found.release()
        return places
    if hasattr(found, "byte_buffer"):
        with found:
            return bytes(found.byte_buffer)
    if hasattr(found, "__next__") or isinstance(found, list):
        return [getattr(m, "body", m) for m in found]
    if hasattr(found, "to_pydict"):
        return found.to_pydict()
    return repr(found)


def all_calls(store: pyrocketstore.Store) -> Iterator[tuple[Callable[..., Any], dict[str, Any]]]:
    for target, calls in ((store, STORE), (store.message_store, ENGINE)):
        for name, arguments in calls.items():
            yield getattr(target, name), arguments
    for name, arguments in FUNCTIONS.items():
        yield getattr(pyrocketstore, name), arguments


def test_every_parameter_is_tried(store: pyrocketstore.Store) -> None:
    for call, arguments in all_calls(store):
        if call.__name__ != "query":  # compiled, without a signature
            assert set(inspect.signature(call).parameters) == set(arguments), call


def test_odd_values(store: pyrocketstore.Store) -> None:
    tried = refused = 0
    for call, arguments in all_calls(store):
        for name in arguments:
            for value in ODD:
                tried += 1
                try:
                    outcome(call, {**arguments, name: value})
                except StoreError as error:
                    refused += 1
                    assert len(str(error)) < 1500, (call, name)
                except KeyError as error:  # what the value itself raises is its caller's
                    assert isinstance(value, Hostile), (call, name, value, error)
                except Exception as error:
                    raise AssertionError(f"{call.__name__}({name}={shown(value)})") from error
    assert tried > 2000 and refused > tried // 2
    assert store.verify().ok


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint32, np.int64, np.array])
def test_numbers_of_numpy(store: pyrocketstore.Store, kind: Callable[[int], Any]) -> None:
    for call, arguments in all_calls(store):
        expected = outcome(call, arguments)
        for name, value in arguments.items():
            if type(value) is int and value < 128:
                assert outcome(call, {**arguments, name: kind(value)}) == expected, (call, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("encode_messages", None),
        ("encode_messages", [b"x"]),
        ("encode_messages", [{"body": b"x"}]),
        ("encode_messages", [Message("t", properties=False)]),  # type: ignore[arg-type]
        ("decode_record", "x"),
        ("decode_record", np.zeros(40, np.int64)),
        ("phy_offset", 0.5),
        ("phy_offset", False),
        ("check_crc", np.array([1, 2])),
        ("path", b"log"),
        ("properties_to_string", False),
        ("properties_to_string", np.zeros(0)),
        ("properties_to_string", {"a": 1}),
        ("string_to_properties", b"a"),
    ],
)
def test_a_public_function_refuses_a_wrong_type(name: str, value: Any) -> None:
    with pytest.raises(StoreTypeError):
        if name in FUNCTIONS:
            getattr(pyrocketstore, name)(value)
        else:
            pyrocketstore.decode_record(V4_RECORD, **{name: value})


def test_a_record_is_decoded_from_every_view_of_bytes() -> None:
    expected = pyrocketstore.decode_record(V4_RECORD)
    spread = np.zeros((len(V4_RECORD), 2), np.uint8)
    spread[:, 0] = bytearray(V4_RECORD)
    for data in (bytearray(V4_RECORD), spread[:, 0], memoryview(spread[:, 0])):
        assert pyrocketstore.decode_record(data) == expected


def test_timeouts_are_numbers(store: pyrocketstore.Store) -> None:
    assert store.wait_dispatched(20)
    for target in (store, store.message_store):
        for timeout in ("1", " 1_0 ", b"5", True, False, np.bool_(True), object(), [1], "nan"):
            with pytest.raises(StoreTypeError, match="timeout must be a number of seconds"):
                target.wait_dispatched(timeout)
        for timeout in (0, -1, -(10**5000), float("-inf"), 0.5, np.float32(1), np.int8(1)):
            assert target.wait_dispatched(timeout)


def test_a_progress_is_called(store: pyrocketstore.Store) -> None:
    for progress in (b"", [], 0, "", "x", 5):
        with pytest.raises(StoreTypeError, match="progress must be a callable"):
            store.verify(progress=progress)  # type: ignore[arg-type]


def test_a_str_subclass_is_its_characters(store: pyrocketstore.Store) -> None:
    class Text(str):
        def split(self, *_: Any) -> list[Any]:
            return ["other"]

        def strip(self, *_: Any) -> Any:
            return "other"

    for queue_id in (0, None):
        assert len(list(store.read(Text("t"), queue_id, tags=Text("a")))) == 7
        for topic in (b"t", None, 5):
            with pytest.raises(StoreTypeError, match="topic must be a str"):
                store.read(topic, queue_id)  # type: ignore[arg-type]
    assert store.read_batch(Text("t"), start=0, tags=Text("a")).num_rows == 7
    assert len(store.query(Text("t"), Text("k"))) == 7


def test_arrow_arrays_as_offsets(store: pyrocketstore.Store) -> None:
    arrow = pytest.importorskip("pyarrow")
    good = arrow.array([0, 5])
    assert [m is not None for m in store.get_many(good)] == [True, False]
    union = arrow.UnionArray.from_sparse(arrow.array([0, 0], arrow.int8()), [good])
    assert len(store.get_many(union)) == 2
    for entries in ([None], [b"a"], [None, 1], [1.5]):
        with pytest.raises(StoreFormatError):
            store.get_many(arrow.array(entries))


def test_flags_of_open(tmp_path: Path) -> None:
    for name in ("read_only", "unique_key", "topics_json", "strict"):
        for value in ("no", None, 2, np.array([1, 2]), 1.0, [], *posing()):
            with pytest.raises(StoreTypeError, match=f"{name} must be True or False"):
                pyrocketstore.open(tmp_path / "s", **{name: value})
    assert not (tmp_path / "s").exists()
    pyrocketstore.open(tmp_path / "s", read_only=np.bool_(False)).close()  # type: ignore[arg-type]


def test_an_index_file_without_room_for_a_key(tmp_path: Path) -> None:
    with pytest.raises(StoreFormatError, match="max_index_num=1: must be at least 2"):
        pyrocketstore.open(tmp_path / "s", max_index_num=1)
    assert not (tmp_path / "s").exists()
    with pyrocketstore.open(tmp_path / "s", max_index_num=2, max_hash_slot_num=1) as store:
        for i in range(5):
            store.put("t", b"%d" % i, keys=f"k{i}")
        assert [m.body for i in range(5) for m in store.query("t", f"k{i}")] == [
            b"%d" % i for i in range(5)
        ]


def test_what_an_error_shows_is_short() -> None:
    assert shown("abc") == "'abc'" and shown(7) == "7" and shown(b"ab") == "b'ab'"
    for value in ("x" * 10**6, b"x" * 10**6, 10**5000, ["y" * 10**6] * 9, {1: "z" * 10**6}):
        assert len(shown(value)) < 1500
    assert "Hostile" in shown(Hostile())


@pytest.mark.parametrize(
    "error",
    [
        pyrocketstore.OffsetOutOfRange(0, 1, 10**5000, "t", 3),
        pyrocketstore.OffsetOutOfRange(0, 10**5000, -(10**5000)),
        pyrocketstore.StoreCorruptionError("/p", 10**5000, "torn"),
        pyrocketstore.PutError("PUT_OK", False, 10**5000),
        pyrocketstore.StoreFormatError([10**5000]),
    ],
)
def test_an_error_shows_an_int_of_any_length(error: StoreError) -> None:
    assert "<int of 1661" in str(error) and "<int of 1661" in repr(error)


def test_an_unknown_name_in_a_message_of_a_batch_may_be_any_int(store: pyrocketstore.Store) -> None:
    with pytest.raises(StoreFormatError, match="unknown fields: <int of 16610 bits>"):
        store.put_batch("t", [{10**5000: b"x"}])


@pytest.mark.parametrize(
    "error",
    [
        pyrocketstore.StoreIOError(5, "read", "/p", 7),
        pyrocketstore.StoreFsyncError(5, "fsync", "/p"),
        pyrocketstore.DamagedMessageError("/p", 3, "torn", "t", 1, 5, 7),
        pyrocketstore.StoreCorruptionError("/p", 3, "torn"),
        pyrocketstore.MissingExtraError("read_batch", "arrow"),
        pyrocketstore.OffsetOutOfRange(0, 1, 2, "t", 3),
        pyrocketstore.UnknownTopicError("/p", "t", "u"),
        pyrocketstore.DiskFullError("/p", 0.9, 0.8),
    ],
)
def test_a_pickled_error_keeps_its_note(error: StoreError) -> None:
    error.add_note("while reading yesterday's queue")
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is type(error) and str(copied) == str(error)
    assert copied.__notes__ == ["while reading yesterday's queue"]
    assert vars(copied) == vars(error)


def test_an_iterator_that_two_threads_use(store: pyrocketstore.Store) -> None:
    reader = store.read("t")
    raised: list[BaseException] = []

    def file_gone(*_: object) -> None:
        try:
            next(reader)
        except StoreError as error:
            raised.append(error)

    from pyrocketstore.reading._messages import MergedMessages, MessageIterator

    class Pieces:
        def __iter__(self) -> Pieces:
            return self

        def __next__(self) -> Any:
            file_gone()
            raise StopIteration

    reader = MessageIterator(Pieces(), None, file_gone)
    assert list(reader) == [] and "another thread" in str(raised.pop())
    merged = functools.partial(MergedMessages, skipped=None)
    reader = merged(parts=[Pieces()])
    assert list(reader) == [] and "another thread" in str(raised.pop())
