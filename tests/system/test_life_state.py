"""Goal: a store takes only the steps of its table, and each state allows the calls that it should.
Method: the table against lists of its own; a real store at each step of its life."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pyrocketstore import StoreStateError
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.record.message import MessageExtBrokerInner
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.system.life_state import TRANSITIONS, Life, LifeState
from support.sizes import SIZES

#: The steps of every life; FORKED may follow on each state.
STEPS = {
    ("NEW", "LOADED"), ("NEW", "CLOSING"), ("LOADED", "STARTING"),
    ("LOADED", "CLOSING"), ("STARTING", "STARTED"), ("STARTING", "STOPPED"),
    ("STARTED", "STOPPED"), ("STOPPED", "CLOSING"), ("CLOSING", "ENDED"), ("ENDED", "NEW"),
}  # fmt: skip
READABLE = {"LOADED", "STARTING", "STARTED", "STOPPED"}


def test_each_step_that_is_not_in_the_table_is_refused() -> None:
    assert TRANSITIONS.keys() == set(Life)
    for before, after in itertools.product(Life, Life):
        state = LifeState()
        state.now = before
        if after is Life.FORKED or (before.name, after.name) in STEPS:
            state.move(after)
            assert state.now is after
        else:
            with pytest.raises(StoreStateError, match="cannot become"):
                state.move(after)
            assert state.now is before


def test_every_state_can_be_reached_and_ends() -> None:
    found, pending = {Life.NEW}, [Life.NEW]
    while pending:
        for after in TRANSITIONS[pending.pop()] - found:
            found.add(after)
            pending.append(after)
    assert found == set(Life) - {Life.FORKED}


def test_what_each_state_allows() -> None:
    for life in Life:
        state = LifeState()
        state.now = life
        assert state.is_loaded == (life.name in READABLE)
        assert state.is_started == (life.name in {"STARTING", "STARTED"})
        assert state.takes_puts == (life.name == "STARTED")
        assert state.has_ended == (life.name == "ENDED")
        state.end_puts()
        assert not state.takes_puts


def put(store: DefaultMessageStore) -> PutMessageStatus:
    return store.put_message(MessageExtBrokerInner("T", b"body", 0)).status


def test_a_store_goes_through_its_life(tmp_path: Path) -> None:
    store = DefaultMessageStore(MessageStoreConfig(**SIZES).at_root(tmp_path / "store"))
    assert store.life.now is Life.NEW and put(store) is PutMessageStatus.SERVICE_NOT_AVAILABLE
    with pytest.raises(StoreStateError, match=r"start\(\) must be called once, after load"):
        store.start()
    store.load()
    assert store.life.now is Life.LOADED and put(store) is PutMessageStatus.SERVICE_NOT_AVAILABLE
    with pytest.raises(StoreStateError, match="already open"):
        store.load()
    assert store.life.now is Life.LOADED
    store.start()
    assert store.life.now is Life.STARTED and put(store) is PutMessageStatus.PUT_OK
    with pytest.raises(StoreStateError, match="must be called once"):
        store.start()
    store.shutdown()
    assert store.life.now is Life.ENDED and put(store) is PutMessageStatus.SERVICE_NOT_AVAILABLE
    store.shutdown()


def test_a_reader_is_not_loaded_twice(tmp_path: Path) -> None:
    config = MessageStoreConfig(**SIZES).at_root(tmp_path / "store")
    owner = DefaultMessageStore(config)
    owner.load()
    owner.shutdown()
    reader = DefaultMessageStore(config, read_only=True)
    reader.load()
    with pytest.raises(StoreStateError, match="already open: the store is loaded"):
        reader.load()
    assert reader.get_max_phy_offset() == 0 and reader.life.is_loaded
    reader.shutdown()
    assert reader.life.has_ended


def test_a_failed_load_leaves_a_store_that_was_not_loaded(tmp_path: Path) -> None:
    root = tmp_path / "store"
    config = MessageStoreConfig(**SIZES).at_root(root)
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(b"x")
    store = DefaultMessageStore(config)
    with pytest.raises(Exception, match="must have"):
        store.load()
    assert store.life.now is Life.NEW
    (root / "commitlog" / f"{0:020d}").unlink()
    store.load()
    assert store.life.is_loaded
    store.shutdown()
