"""Goal: the message of a unit is delivered when it is due and refused where it is not the delayed
message; the delivered one has the delayed one's properties.
Method: delayed messages of a store, whose units, times and levels the test states."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import MessageExt
from pyrocketstore.record.message import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from pyrocketstore.record.stored_copy import stored_copy
from pyrocketstore.schedule.delivery import delivered_message, due_time, refusal
from pyrocketstore.schedule.pending import delayed_messages, is_awaited, real_queues
from support.sizes import SIZES

LEVEL, DELAY_MS = 2, 5000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[pyrocketstore.Store]:
    with pyrocketstore.open(tmp_path, message_delay_level="1h 5s", **SIZES) as found:
        for number in range(3):
            found.put("t", b"%d" % number, queue_id=4, tags="A", keys="k", delay_level=1)
        found.wait_dispatched()
        yield found


def delayed(store: pyrocketstore.Store, queue_offset: int = 0) -> MessageExt:
    (found,) = store.read(SCHEDULE_TOPIC, 0, start=queue_offset, stop=queue_offset + 1)
    return found


def test_a_delayed_message_is_accepted(store: pyrocketstore.Store) -> None:
    for queue_offset in range(3):
        assert refusal(delayed(store, queue_offset), ("t", 4), 1, queue_offset) == ""


@pytest.mark.parametrize(
    ("real", "level", "queue_offset", "reason"),
    [
        (("t", 4), 2, 0, "another message is there"),
        (("t", 4), 1, 1, "another message is there"),
        (None, 1, 0, "no topic to deliver to"),
        (("", 0), 1, 0, "no topic to deliver to"),
        ((SCHEDULE_TOPIC, 0), 1, 0, "no topic to deliver to"),
        ((TRANS_HALF_TOPIC, 0), 1, 0, "no topic to deliver to"),
    ],
)
def test_what_is_not_delivered(
    store: pyrocketstore.Store,
    real: tuple[str, int] | None,
    level: int,
    queue_offset: int,
    reason: str,
) -> None:
    assert refusal(delayed(store), real, level, queue_offset) == reason


def test_the_delivered_message(store: pyrocketstore.Store) -> None:
    message = delayed(store, 2)
    found = delivered_message(message, "t", 4)
    assert (found.topic, found.queue_id, found.body) == ("t", 4, b"2")
    assert "DELAY" not in found.properties, "it is not delayed again"
    assert found.properties["WAIT"] == "false"
    text = found.properties_string or ""
    assert "DELAY\0011" in text and "REAL_TOPIC\001t" in text, "its record has all of them"
    assert message.properties["DELAY"] == "1", "the message that was read does not change"
    assert found.born_timestamp == message.born_timestamp


def test_a_stored_copy_shares_no_properties(store: pyrocketstore.Store) -> None:
    message, named = delayed(store), {"a": "1"}
    found = stored_copy(message, "u", 7, named)
    assert (found.topic, found.queue_id, found.body) == ("u", 7, b"0")
    assert found.properties_string == "a\0011"
    named["a"] = "2"
    assert found.properties_string == "a\0011"
    for name in ("flag", "born_host", "store_host", "sys_flag", "reconsume_times"):
        assert getattr(found, name) == getattr(message, name)


def test_the_time_of_a_delivery(store: pyrocketstore.Store) -> None:
    engine = store.message_store
    queue = engine.queue_table.get(SCHEDULE_TOPIC, LEVEL - 1)
    assert queue is None, "no message has this level"
    queue = engine.queue_table.get(SCHEDULE_TOPIC, 0)
    assert queue is not None
    unit = queue.reader.unit(0)
    assert unit is not None
    log, hour = engine.commit_log, 3_600_000
    due = delayed(store).store_timestamp + hour
    assert unit[2] == due
    for now in (None, unit[2] - hour, unit[2] + 1):
        assert due_time(log, 1, queue, unit, now) == unit[2]
    early = unit[2] - hour - 1
    assert due_time(log, 1, queue, unit, early) == early, "the clock was set back"
    shorter = unit[2] - DELAY_MS - 1
    assert due_time(log, LEVEL, queue, unit, shorter) == shorter, "the level delays by less now"
    assert due_time(log, 9, queue, unit, early) == unit[2], "a level that is not known"


def test_real_queues_of_a_physical_offset(store: pyrocketstore.Store) -> None:
    engine = store.message_store
    last = delayed(store, 2)
    for phy_offset in (0, last.phy_offset):
        found = real_queues(engine.commit_log, engine.queue_table, phy_offset)
        assert found == {("t", 4)}
    assert real_queues(engine.commit_log, engine.queue_table, last.phy_offset + 1) == set()


@pytest.mark.parametrize(("offset", "count"), [(0, 3), (1, 2), (3, 0), (100, 0)])
def test_what_is_still_to_be_delivered(store: pyrocketstore.Store, offset: int, count: int) -> None:
    engine = store.message_store
    log, table = engine.commit_log, engine.queue_table
    found = delayed_messages(log, table, {1: offset}, engine.env)
    if count:
        (one,) = found
        assert (one.level, one.delay_ms, one.topic) == (1, 3_600_000, "t")
        assert one.message_count == count and one.first_due <= one.last_due
    else:
        assert found == []
    assert is_awaited(log, table, "t", {1: offset}, 0) is (count > 0)
    assert not is_awaited(log, table, "u", {1: offset}, 0)
