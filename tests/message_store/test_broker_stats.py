"""Goal: BrokerStatsManager counts what a store puts and returns, and its windows grow as 4.9.3's.
Method: puts, batches and pulls of a store, and samples at given times."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

import pyrocketstore
from pyrocketstore import (
    DefaultMessageStore,
    MessageExtBrokerInner,
    MessageStoreConfig,
    StoreFormatError,
    StoreTypeError,
)
from pyrocketstore.message_store.broker_stats import BrokerStatsManager, StatsSnapshot


def figures(stats: BrokerStatsManager, name: str, key: str) -> tuple[int, int] | None:
    item = stats.get_stats_item(name, key)
    return None if item is None else (item.value, item.times)


def test_a_store_counts_puts_and_gets(tmp_path: Path) -> None:
    stats = BrokerStatsManager("c")
    for _ in range(2):  # a second opening adds to the first
        store = DefaultMessageStore(
            MessageStoreConfig(store_path_root_dir=str(tmp_path / "s")), broker_stats_manager=stats
        )
        assert store.get_broker_stats_manager() is stats
        store.load()
        store.start()
        sizes = [
            store.put_message(MessageExtBrokerInner("t", b"x", i % 2)).wrote_bytes for i in range(4)
        ]
        store.wait_dispatched()
        for offset in (0, 1, 99):
            result = store.get_message("g", "t", 0, offset, 1)
            assert result is not None
            result.release()
        store.shutdown()
    assert figures(stats, "TOPIC_PUT_NUMS", "t") == (8, 8)
    assert figures(stats, "TOPIC_PUT_SIZE", "t") == (2 * sum(sizes), 8)
    assert figures(stats, "QUEUE_PUT_NUMS", "t@1") == (4, 4)
    assert figures(stats, "BROKER_PUT_NUMS", "c") == (8, 0)
    assert figures(stats, "GROUP_GET_NUMS", "t@g") == (4, 4)
    assert figures(stats, "GROUP_GET_SIZE", "t@g") == (4 * sizes[0], 4)
    assert figures(stats, "QUEUE_GET_NUMS", "t@0@g") == (4, 4)
    assert figures(stats, "GROUP_GET_NUMS", "t@other") is None
    assert stats.get_stats_item("NO_SUCH_NAME", "t") is None
    stats.on_group_deleted("g")
    assert figures(stats, "GROUP_GET_NUMS", "t@g") is None
    stats.on_topic_deleted("t")
    assert figures(stats, "TOPIC_PUT_NUMS", "t") is None


def test_windows_grow_from_their_first_sample() -> None:
    stats = BrokerStatsManager(enable_queue_stat=False)
    stats.inc_group_get_nums("g", "t", 5)
    stats.inc_queue_get_nums("g", "t", 0, 5)
    item = stats.get_stats_item("GROUP_GET_NUMS", "t@g")
    assert item is not None and item.get_stats_data_in_minute() == StatsSnapshot()
    assert stats.get_stats_item("QUEUE_GET_NUMS", "t@0@g") is None
    stats.tick(1_000_000)
    assert item.get_stats_data_in_minute() == StatsSnapshot(5, 0.5, 1, 5.0)
    stats.tick(1_009_999)
    stats.inc_group_get_nums("g", "t", 15)
    assert item.get_stats_data_in_minute().sum == 5
    stats.tick(1_010_000)
    assert item.get_stats_data_in_minute() == StatsSnapshot(20, 1.0, 2, 10.0)
    assert stats.tps_group_get_nums("g", "t") == 1.0
    assert item.get_stats_data_in_hour().sum == item.get_stats_data_in_day().sum == 5
    for i in range(2, 20):
        stats.tick(1_000_000 + 10_000 * i)
    assert item.get_stats_data_in_minute() == StatsSnapshot()
    stats.tick(1_600_000)
    assert item.get_stats_data_in_hour().sum == 20


def test_a_store_without_a_manager_counts_nothing(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path / "s") as store:
        assert store.message_store.get_broker_stats_manager() is None


def test_wrong_arguments() -> None:
    stats: Any = BrokerStatsManager()
    for wrong in (
        lambda: BrokerStatsManager(cast("Any", 5)),
        lambda: stats.inc_topic_put_nums("t", "x"),
        lambda: stats.inc_topic_put_nums("t", float("nan")),
        lambda: stats.get_stats_item([], "t"),
        lambda: stats.tick("x"),
        lambda: DefaultMessageStore(MessageStoreConfig(), broker_stats_manager=cast("Any", 5)),
    ):
        with pytest.raises(StoreTypeError):
            wrong()
    with pytest.raises(StoreFormatError):
        stats.inc_group_get_size("g", "t", 10**400)
    assert stats.get_stats_item("TOPIC_PUT_NUMS", "t") is None
