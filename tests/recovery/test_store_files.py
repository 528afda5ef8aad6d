"""Goal: a part that a store does not have yet is an error that says what to call, and costs nothing
once it is set; minimums of topics reach the queues.
Method: files that are not loaded, an engine before each step of its life, and topics of an open
store."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import DefaultMessageStore, MessageStoreConfig, StoreStateError
from pyrocketstore.index.sync_point import Flushed
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.recovery.store_files import StoreFiles
from pyrocketstore.system._env import Event
from pyrocketstore.system.env import Env
from support.sizes import SIZES

BY_LOAD = ("flushed", "checkpoint", "index_service", "dispatcher", "locked_before_ms")


def files_of(root: Path) -> StoreFiles:
    """The files of a store that is not loaded."""
    config = MessageStoreConfig(**SIZES).at_root(str(root))
    return LoadedFiles(Env(), config, read_only=True, appended=Event())


@pytest.mark.parametrize("name", BY_LOAD)
def test_a_part_that_load_makes(name: str, tmp_path: Path) -> None:
    with pytest.raises(StoreStateError, match=rf"{tmp_path}: .* not loaded: call load\(\) first"):
        getattr(files_of(tmp_path), name)


def test_a_part_that_start_makes(tmp_path: Path) -> None:
    engine = DefaultMessageStore(MessageStoreConfig(**SIZES).at_root(str(tmp_path)))
    with pytest.raises(StoreStateError, match=r"not started: call start\(\) first"):
        _ = engine.reput_service


def test_a_part_of_one_store_is_not_one_of_others(tmp_path: Path) -> None:
    one, other = files_of(tmp_path), files_of(tmp_path)
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
            engine.files.set_min_offsets({"t": results[2].phy_offset})
        assert (store.min_offset("t", 0), store.min_offset("u", 0)) == (1, 0)
        assert engine.get_min_offset_in_queue("t", 0) == 1
        assert engine.commit_log.min_offsets.by_topic() == {"t": results[2].phy_offset}
        with engine.dispatch_paused():
            engine.files.set_min_offsets({"u": results[3].phy_offset})
        assert store.min_offset("u", 0) == 1
        assert engine.commit_log.min_offsets.by_topic() == {"u": results[3].phy_offset}


@pytest.mark.parametrize("enabled", [True, False])
def test_the_index_is_used_if_it_is_enabled(tmp_path: Path, enabled: bool) -> None:
    with pyrocketstore.open(tmp_path, message_index_enable=enabled, **SIZES) as store:
        assert store.message_store.index_enabled is enabled
