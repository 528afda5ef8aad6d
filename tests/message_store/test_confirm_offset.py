"""Goal: with duplicationEnable, dispatch stops at the confirm offset, and nothing waits
forever or is lost.
Method: offsets at record boundaries, inside of a record and at the end of a log file; then a close
and another opening."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrocketstore import (
    DefaultMessageStore,
    MessageExtBrokerInner,
    MessageStoreConfig,
    StoreFormatError,
)

FILE_SIZE = 4096


def started(path: Path, *, duplication: bool = True) -> DefaultMessageStore:
    config = MessageStoreConfig(
        store_path_root_dir=str(path),
        mapped_file_size_commit_log=FILE_SIZE,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=100,
        max_index_num=400,
        duplication_enable=duplication,
    )
    store = DefaultMessageStore(config)
    store.load()
    store.start()
    return store


def put(store: DefaultMessageStore, count: int) -> list[int]:
    """Return where the records begin."""
    return [store.put_message(MessageExtBrokerInner("t", b"body")).phy_offset for _ in range(count)]


def test_dispatch_stops_at_the_confirm_offset(tmp_path: Path) -> None:
    store = started(tmp_path / "s")
    assert store.get_confirm_offset() == -1
    put(store, 3)
    assert store.wait_dispatched()  # before the first call nothing is held back
    assert store.get_max_offset_in_queue("t", 0) == 3
    end = store.get_max_phy_offset()
    store.set_confirm_offset(end)
    begins = put(store, 200)
    assert store.wait_dispatched() and store.get_max_offset_in_queue("t", 0) == 3
    assert store.reput_service.is_unconfirmed()
    for number in (0, 1, 57, 120):
        store.set_confirm_offset(begins[number])
        assert store.wait_dispatched()
        assert store.get_max_offset_in_queue("t", 0) == 3 + number
    store.set_confirm_offset(begins[120] + 1)  # the record begins before it
    assert store.wait_dispatched() and store.get_max_offset_in_queue("t", 0) == 3 + 121
    store.set_confirm_offset(5)  # nothing is taken back
    assert store.wait_dispatched() and store.get_max_offset_in_queue("t", 0) == 3 + 121
    assert store.dispatch_behind_bytes() > 0
    store.flush_all()
    assert store.get_confirm_offset() == 5
    store.shutdown()
    assert not (tmp_path / "s" / "abort").exists()
    again = started(tmp_path / "s")
    assert (again.get_max_offset_in_queue("t", 0), again.get_confirm_offset()) == (203, -1)
    again.shutdown()


def test_an_offset_is_kept_from_before_the_start(tmp_path: Path) -> None:
    store = started(tmp_path / "s")
    store.shutdown()
    config = store.config
    store = DefaultMessageStore(config)
    store.set_confirm_offset(0)
    store.load()
    store.start()
    put(store, 5)
    assert store.wait_dispatched() and store.get_max_offset_in_queue("t", 0) == 0
    store.set_confirm_offset(1 << 62)
    assert store.wait_dispatched() and store.get_max_offset_in_queue("t", 0) == 5
    store.shutdown()


def test_without_duplication_the_offset_has_no_effect(tmp_path: Path) -> None:
    store = started(tmp_path / "s", duplication=False)
    store.set_confirm_offset(0)
    put(store, 5)
    assert store.wait_dispatched() and store.get_max_offset_in_queue("t", 0) == 5
    assert store.get_confirm_offset() == 0
    with pytest.raises(StoreFormatError):
        store.set_confirm_offset(1 << 63)
    store.shutdown()
