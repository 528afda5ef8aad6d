"""Goal: a power cut after a removal gives no queue offset twice and no removed message back.
Nothing is deleted that something not yet durable depends on, and nothing is forgotten before its
deletion is durable.
Method: a simulated device, cut at one moment, of which one kind of change is durable: the deletions
of files without the pages that no call flushed (ext4, xfs), or these without the deletions that no
fsync of their directory followed (btrfs)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fault_programs import DIRECTORY, open_store
from pyrocketstore.arguments.scalars import INT64_MAX
from removal_cuts import DELETED, EXT, LMQ, NOTHING, Cut, consume, put

pytestmark = pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")


@pytest.fixture(params=["SYNC_FLUSH", "ASYNC_FLUSH"])
def flush(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    yield {"flush_disk_type": request.param}


@pytest.mark.parametrize("more", [{}, EXT, LMQ], ids=["plain", "ext", "light"])
@pytest.mark.parametrize("topic_too", [False, True])
def test_no_queue_offset_is_given_twice(
    tmp_path: Path, flush: dict[str, Any], more: dict[str, Any], topic_too: bool
) -> None:
    """The units of deleted messages are durable before the file of the log is deleted."""
    cut = Cut(tmp_path, flush | more)
    topic = "%LMQ%t" if more is LMQ else "t"
    put(cut, topic, range(3))
    cut.store.flush()
    put(cut, topic, range(3, 6))
    assert consume(cut.store, "g", topic, 6) == list(range(6))
    cut.fill()
    if topic_too and not more.get("enable_lmq"):
        cut.store.trim(topic, before=INT64_MAX)
    assert cut.store.trim(before=INT64_MAX).files == 1
    with cut.power(DELETED) as store:
        assert store.max_offset(topic, 0) == 6
        cut.store = store
        put(cut, topic, range(6, 9))
        assert consume(store, "g", topic, 10) == [6, 7, 8]
        assert store.verify().ok


def test_a_trimmed_topic_keeps_its_queue_offsets(tmp_path: Path, flush: dict[str, Any]) -> None:
    """Its messages get no units again, so the files of its queues must keep the end."""
    cut = Cut(tmp_path, flush)
    put(cut, "t", range(9))
    cut.store.flush()
    put(cut, "t", range(9, 15))
    assert consume(cut.store, "g", "t", 20) == list(range(15))
    cut.store.trim("t", before=INT64_MAX)
    with cut.power(DELETED) as store:
        assert store.max_offset("t", 0) == 15
        cut.store = store
        put(cut, "t", range(15, 18))
        assert consume(store, "g", "t", 10) == [15, 16, 17]


def test_the_last_file_of_a_queue_is_durable_before_those_in_front(
    tmp_path: Path, flush: dict[str, Any]
) -> None:
    """It alone says where the queue ends, once the log has lost what is not durable."""
    cut = Cut(tmp_path, flush)
    put(cut, "t", range(10))  # a file of the queue
    cut.store.flush()
    cut.fill()
    assert cut.store.trim(before=INT64_MAX).files == 1
    assert consume(cut.store, "g", "t", 1) == []
    put(cut, "t", range(10, 11))
    cut.store.wait_dispatched()
    cut.store.trim(before=INT64_MAX)
    with cut.power(DELETED) as store:
        assert store.max_offset("t", 0) >= 10
        assert store.min_offset("t", 0) >= 10


def test_delayed_messages_keep_their_offsets(tmp_path: Path, flush: dict[str, Any]) -> None:
    cut = Cut(tmp_path, flush)
    for number in range(6):
        cut.store.put("t", b"%d" % number, delay_level=1)
        if number == 2:
            cut.store.flush()
    cut.fill()
    cut.store.trim(before=INT64_MAX)
    with cut.power(DELETED) as store:
        queue = store.message_store.find_consume_queue("SCHEDULE_TOPIC_XXXX", 0)
        assert queue.get_max_offset_in_queue() == 6


def test_positions_after_the_end_of_a_queue_are_lowered_by_the_opening(
    tmp_path: Path, flush: dict[str, Any]
) -> None:
    """Those of groups that are not used before the next puts, and of levels of delay."""
    cut = Cut(tmp_path, flush)
    put(cut, "t", range(6))
    cut.store.put("u", b"0", delay_level=3)
    cut.store.close()
    config = tmp_path / "root" / DIRECTORY / "config"
    known = {"t@g": {0: 9}, "t@h": {0: 6}, "t@i": {0: 2, 1: 4}, "CID_x": {0: 3}}
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": known}))
    (config / "delayOffset.json").write_text(json.dumps({"offsetTable": {3: 7, 4: 5}}))
    for _ in range(2):
        with open_store(tmp_path / "root", cut.settings, None) as store:
            positions = {row[:3]: row.position for row in store.consumer_positions()}
            assert positions["g", "t", 0] == positions["h", "t", 0] == 6
            assert (positions["i", "t", 0], positions["i", "t", 1]) == (2, 0)
            offsets = store.message_store.delay_offsets
            assert (offsets.next_offset(3), offsets.next_offset(4)) == (1, 0)


def test_a_minimum_stays_until_the_deletion_is_durable(
    tmp_path: Path, flush: dict[str, Any]
) -> None:
    """A file whose deletion was not durable comes back, and its removed messages do not."""
    cut = Cut(tmp_path, flush)
    put(cut, "gone", range(5))
    cut.store.trim("gone", before=INT64_MAX)
    cut.fill()
    cut.store.flush()
    assert cut.store.trim(before=INT64_MAX).files == 1
    put(cut, "third", range(5))
    cut.store.trim("third", before=INT64_MAX)
    with cut.power(NOTHING) as store:
        found = list(store.read("gone")) if "gone" in store.topics() else []
        assert not found
        assert store.verify().ok


def test_a_minimum_stays_until_a_killed_deletion_is_durable(
    tmp_path: Path, flush: dict[str, Any]
) -> None:
    """An opening that finds no file may find one that a killed process has deleted in memory."""
    cut = Cut(tmp_path, flush)
    put(cut, "gone", range(5))
    cut.store.drop_topic("gone")
    cut.fill()
    cut.store.flush()
    assert cut.store.trim(before=INT64_MAX).files == 1
    cut.kill()
    cut.open()
    with cut.power(NOTHING) as store:
        assert "gone" not in store.topics() or not list(store.read("gone"))
        assert store.verify().ok
