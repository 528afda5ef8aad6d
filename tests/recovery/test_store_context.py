"""Goal: a part that a store does not have yet is an error that says what to call, and costs nothing
once it is set; minimums of topics reach the queues.
Method: a bare context, an engine before each step of its life, and topics of an open store."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import DefaultMessageStore, MessageStoreConfig, StoreStateError
from pyrocketstore.recovery.flushed import Flushed
from pyrocketstore.recovery.store_context import StoreContext
from support.sizes import SIZES

BY_LOAD = ("flushed", "checkpoint", "index_service", "dispatcher", "index_flush")


class Parts(StoreContext):
    """A store of which nothing is made."""

    root = "/root/of/it"


@pytest.mark.parametrize("name", BY_LOAD)
def test_a_part_that_load_makes(name: str) -> None:
    with pytest.raises(StoreStateError, match=r"/root/of/it: .* not loaded: call load\(\) first"):
        getattr(Parts(), name)


def test_a_part_that_start_makes() -> None:
    with pytest.raises(StoreStateError, match=r"not started: call start\(\) first"):
        _ = Parts().reput_service


def test_a_part_of_one_store_is_not_one_of_others() -> None:
    one, other = Parts(), Parts()
    one.flushed = Flushed(1, 2)
    assert one.flushed == (1, 2)
    with pytest.raises(StoreStateError):
        _ = other.flushed


def test_parts_of_an_engine(tmp_path: Path) -> None:
    engine = DefaultMessageStore(MessageStoreConfig(**SIZES).at_root(str(tmp_path)))
    with pytest.raises(StoreStateError, match="call load"):
        _ = engine.dispatcher
    engine.load()
    try:
        assert engine.dispatcher.position == 0
        with pytest.raises(StoreStateError, match="call start"):
            engine.dispatch_paused()
        engine.start()
        with engine.dispatch_paused():
            assert engine.dispatch_behind_bytes() == 0
    finally:
        engine.shutdown()


def test_what_the_engine_decides_is_left_open() -> None:
    parts = Parts()
    for call in (lambda: parts.persist_topics(True), parts.flush_log, lambda: parts.flush_up_to(0)):
        with pytest.raises(NotImplementedError):
            call()


def test_bytes_that_are_not_dispatched(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        engine = store.message_store
        with engine.dispatch_paused():
            result = store.put("t", b"body")
            behind = engine.get_max_phy_offset() - result.phy_offset
            assert engine.dispatch_behind_bytes() == behind > 0
        store.wait_dispatched()
        assert engine.dispatch_behind_bytes() == 0
        assert {queue.topic for queue in engine.consume_queues()} == {"t"}


def test_minimums_hide_the_messages_before_them(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        engine = store.message_store
        results = [store.put(topic, b"body", queue_id=0) for topic in "tutu"]
        store.wait_dispatched()
        with engine.dispatch_paused():
            engine.set_min_offsets({"t": results[2].phy_offset})
        assert (store.min_offset("t", 0), store.min_offset("u", 0)) == (1, 0)
        assert engine.get_min_offset_in_queue("t", 0) == 1
        assert engine.commit_log.min_offsets.by_topic() == {"t": results[2].phy_offset}
        with engine.dispatch_paused():
            engine.set_min_offsets({"u": results[3].phy_offset})
        assert store.min_offset("u", 0) == 1
        assert engine.commit_log.min_offsets.by_topic() == {"u": results[3].phy_offset}


@pytest.mark.parametrize("enabled", [True, False])
def test_the_index_is_used_if_it_is_enabled(tmp_path: Path, enabled: bool) -> None:
    with pyrocketstore.open(tmp_path, message_index_enable=enabled, **SIZES) as store:
        assert store.message_store.index_enabled is enabled
