"""Goal: each record of a transaction has what 4.9.3 reads in it, and odd records of others are read
as 4.9.3 does.
Method: half messages of a store, turned into the other records; properties and bodies with every
kind of text."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import MessageExt, MessageExtBrokerInner, MessageRefused
from pyrocketstore.record._message import encode_message
from pyrocketstore.record.message import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_MASK,
)
from pyrocketstore.transaction.records import (
    check_sizes,
    check_times_of,
    committed_message,
    content_of,
    discarded_message,
    half_offset_of,
    half_properties,
    immunity_ms_of,
    make_half,
    op_message,
    put_back_message,
    was_put_back,
)
from support.sizes import SIZES

HOST = ("127.0.0.1", 1)
UNIQUE = "7F00000100002A9F18B4AAC24D4A0000"


def half_of(tmp_path: Path, body: bytes = b"body", **named: str) -> MessageExt:
    """A half message, as a store has it."""
    message = MessageExtBrokerInner("t", body, 3, properties={})
    make_half(message, half_properties(named, "g", UNIQUE, "t", 3))
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        result = store.message_store.put_message(message)
        assert result.is_ok
        found = store.message_store.look_message_by_offset(result.phy_offset)
    assert found is not None
    return found


def test_the_half_message(tmp_path: Path) -> None:
    half = half_of(tmp_path, KEYS="k")
    assert (half.topic, half.queue_id, half.body) == (TRANS_HALF_TOPIC, 0, b"body")
    assert half.properties == {
        "KEYS": "k",
        "UNIQ_KEY": UNIQUE,
        "TRAN_MSG": "true",
        "PGROUP": "g",
        "WAIT": "true",
        "REAL_TOPIC": "t",
        "REAL_QID": "3",
    }


def test_the_committed_message(tmp_path: Path) -> None:
    half = half_of(tmp_path, TAGS="A")
    found = committed_message(half, "t", 3)
    assert (found.topic, found.queue_id, found.body) == ("t", 3, b"body")
    assert found.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT_TYPE
    assert found.prepared_transaction_offset == half.phy_offset
    assert found.properties == half.properties and found.properties is not half.properties
    assert found.born_timestamp == half.born_timestamp


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("put_back", [True, False])
def test_the_op_message(waits: bool, put_back: bool) -> None:
    found = op_message(42, 1000, HOST, waits=waits, put_back=put_back)
    assert (found.topic, found.queue_id, found.body) == (TRANS_OP_HALF_TOPIC, 0, b"42")
    assert found.properties["WAIT"] == ("true" if waits else "false")
    text = found.properties_string or ""
    assert "TAGS\1d" in text and ("PUT_BACK" in text) is put_back
    assert half_offset_of(found.body) == 42


def test_the_message_that_is_put_back(tmp_path: Path) -> None:
    half = half_of(tmp_path, INNER_MULTI_DISPATCH="%LMQ%q", TRANSACTION_CHECK_TIMES="1")
    found = put_back_message(half, 2)
    assert (found.topic, found.queue_id) == (TRANS_HALF_TOPIC, 0)
    assert (found.flag, found.reconsume_times) == (0, 0)
    assert found.properties["TRANSACTION_CHECK_TIMES"] == "2"
    assert "INNER_MULTI_DISPATCH" not in found.properties, "it enters no light queue"
    assert "INNER_MULTI_DISPATCH\1%LMQ%q" in (found.properties_string or ""), "its commit may"
    assert found.properties["WAIT"] == "false"
    assert was_put_back(found.properties) and not was_put_back({"KEYS": "k"})


def test_the_message_that_is_discarded(tmp_path: Path) -> None:
    half = half_of(tmp_path, INNER_MULTI_DISPATCH="%LMQ%q")
    found = discarded_message(half)
    assert (found.topic, found.queue_id, found.body) == (TRANS_CHECK_MAX_TIME_TOPIC, 0, b"body")
    assert "INNER_MULTI_DISPATCH" not in found.properties


@pytest.mark.parametrize(
    ("text", "times"),
    [(None, 0), ("", 0), ("3", 3), ("+3", 3), ("-3", 0), ("x", 0), ("3.0", 0), (str(2**31), 0)],
)
def test_how_often_it_was_put_back(text: str | None, times: int) -> None:
    assert check_times_of({} if text is None else {"TRANSACTION_CHECK_TIMES": text}) == times


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, 6000), ("", 6000), ("-1", 6000), ("x", 6000), ("0", 0), ("5", 5000), ("-2", -2000)],
)
def test_the_time_without_a_check(text: str | None, expected: int) -> None:
    named = {} if text is None else {"CHECK_IMMUNITY_TIME_IN_SECONDS": text}
    assert immunity_ms_of(named, 6000) == expected


@pytest.mark.parametrize(
    ("body", "offset"),
    [
        (b"0", 0),
        (b"+7", 7),
        (b"9223372036854775807", 2**63 - 1),
        (b"9223372036854775808", None),
        (b"-1", None),
        (b"", None),
        (b" 1", None),
        (b"1_0", None),
        (b"\xff", None),
        ("\u0663".encode(), None),
    ],
)
def test_the_offset_in_an_op_message(body: bytes, offset: int | None) -> None:
    assert half_offset_of(body) == offset


def test_the_content_of_copies_is_equal(tmp_path: Path) -> None:
    digest = content_of(half_of(tmp_path / "a", KEYS="k"))
    half = half_of(tmp_path / "b", KEYS="k", TRANSACTION_CHECK_TIMES="3")
    half_time = content_of(half)
    assert len(digest) == len(half_time) == 32
    for other in (
        half_of(tmp_path / "c", b"other", KEYS="k"),
        half_of(tmp_path / "d", KEYS="l"),
    ):
        assert content_of(other) not in (digest, half_time)
    assert content_of(half) == half_time


def test_a_copy_that_was_put_back_has_the_same_content(tmp_path: Path) -> None:
    half = half_of(tmp_path / "a", KEYS="k")
    with pyrocketstore.open(tmp_path / "b", **SIZES) as store:
        result = store.message_store.put_message(put_back_message(half, 1))
        copy = store.message_store.look_message_by_offset(result.phy_offset)
    assert copy is not None and content_of(copy) == content_of(half)


def longest(half: MessageExtBrokerInner) -> int:
    """The bytes of the longest record that may follow: more properties, and a longer topic."""
    half.properties["TRANSACTION_CHECK_TIMES"] = str(2**31 - 1)
    other = MessageExtBrokerInner(
        TRANS_CHECK_MAX_TIME_TOPIC,
        half.body,
        0,
        properties=half.properties,
        properties_string=pyrocketstore.properties_to_string(half.properties),
    )
    return len(encode_message(other))


def small_half(**named: str) -> MessageExtBrokerInner:
    half = MessageExtBrokerInner("t", b"x" * 1000, 0, properties={})
    make_half(half, half_properties(named, "g", UNIQUE, "t", 0))
    return half


def test_all_records_of_a_transaction_must_fit() -> None:
    size = longest(small_half())
    assert size > len(encode_message(small_half()))
    check_sizes(small_half(), "t", size)
    with pytest.raises(MessageRefused):
        check_sizes(small_half(), "t", size - 1)


def test_properties_that_leave_no_room_for_a_check_are_refused() -> None:
    half = small_half(a="x" * 32_600)
    check_sizes(half, "t", 1 << 20)
    half = small_half(a="x" * 32_650)
    assert encode_message(half), "the half message itself could be stored"
    with pytest.raises(MessageRefused):
        check_sizes(half, "t", 1 << 20)
