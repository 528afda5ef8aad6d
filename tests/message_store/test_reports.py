"""Goal: each figure of a store comes from the part that has it, before, while and after the store
is started, and what is unknown is reported as such.
Method: an engine at each step of its life, with known puts and flushes."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path
from typing import Any

import pytest

from pyrocketstore import DefaultMessageStore, MessageExtBrokerInner, MessageStoreConfig
from pyrocketstore.message_store.reports import StoreReports
from pyrocketstore.message_store.stats import Tps
from pyrocketstore.message_store.store_stats import StoreStats
from pyrocketstore.system import disk_space
from support.sizes import SIZES, SYNC_SIZES


def engine_of(root: Path, sizes: dict[str, Any] = SIZES) -> DefaultMessageStore:
    return DefaultMessageStore(MessageStoreConfig(**sizes).at_root(str(root)))


def put(engine: DefaultMessageStore, count: int) -> None:
    for _ in range(count):
        assert engine.put_message(MessageExtBrokerInner("t", b"body", 0)).is_ok


def reports_of(
    engine: DefaultMessageStore, failure: BaseException | None = None, earliest: int = -1
) -> StoreReports:
    found = StoreReports(
        engine.files,
        engine.async_puts,
        engine.stall_log,
        engine.reports.stats_service,
        earliest=lambda: earliest,
        failure=lambda: failure,
    )
    found.services = engine.reports.services
    return found


def test_figures_before_the_start(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)
    engine.load()
    try:
        reports = reports_of(engine)
        assert reports.services is None and reports.flushed_where() == 0
        stats = reports.stats()
        assert (stats.put_message_times_total, stats.forces, stats.failure) == (0, 0, None)
        assert stats.put_message_average_size == 0
        assert (stats.commit_log_max_offset, stats.earliest_message_timestamp) == (0, -1)
    finally:
        engine.shutdown()


@pytest.mark.parametrize("sizes", [SIZES, SYNC_SIZES], ids=["async", "sync"])
def test_figures_of_puts_and_flushes(tmp_path: Path, sizes: dict[str, Any]) -> None:
    engine = engine_of(tmp_path, sizes)
    engine.load()
    engine.start()
    try:
        put(engine, 3)
        engine.flush()
        stats = reports_of(engine, earliest=77).stats()
        end = engine.get_max_phy_offset()
        assert stats.put_message_times_total == 3
        assert stats.put_message_average_size == stats.put_message_size_total / 3 == end / 3
        assert (stats.commit_log_min_offset, stats.commit_log_max_offset) == (0, end)
        assert stats.flushed_where == end and stats.forces >= (3 if sizes is SYNC_SIZES else 1)
        assert stats.force_time_total > 0
        assert stats.earliest_message_timestamp == 77
        assert stats.put_messages_by_status["PUT_OK"] == 3
        info = reports_of(engine).runtime_info()
        assert (info["commitLogMinOffset"], info["commitLogMaxOffset"]) == ("0", str(end))
    finally:
        engine.shutdown()


@pytest.mark.parametrize(
    ("failure", "text"),
    [(OSError(errno.EIO, "disk"), "[Errno 5] disk"), (KeyError(), "KeyError()")],
)
def test_a_failure_has_a_text(tmp_path: Path, failure: BaseException, text: str) -> None:
    engine = engine_of(tmp_path)
    engine.load()
    try:
        assert reports_of(engine, failure).stats().failure == text
    finally:
        engine.shutdown()


def test_the_ratio_of_each_disk_and_the_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b")]
    engine = DefaultMessageStore(
        MessageStoreConfig(store_path_commit_log=",".join(paths), **SIZES).at_root(
            str(tmp_path / "root")
        )
    )
    engine.load()
    try:
        ratios = {paths[0]: 0.75, paths[1]: 0.5}
        monkeypatch.setattr(disk_space, "used_ratio", lambda env, path: ratios.get(path, -1.0))
        reports = reports_of(engine)
        info = reports.runtime_info()
        assert [info[f"commitLogDiskRatio_{path}"] for path in paths] == ["0.75", "0.5"]
        assert (info["commitLogDiskRatio"], info["consumeQueueDiskRatio"]) == ("0.5", "-1.0")
        stats = reports.stats()
        assert (stats.commit_log_disk_ratio, stats.consume_queue_disk_ratio) == (0.5, -1.0)
    finally:
        engine.shutdown()


def test_figures_are_frozen_and_named() -> None:
    fields = {field.name: field for field in dataclasses.fields(StoreStats)}
    values = {name: Tps(0, 0, 0) if name.endswith("_tps") else 0 for name in fields}
    stats = StoreStats(**values)  # type: ignore[arg-type]
    assert stats.put_message_average_size == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.forces = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        StoreStats(1)  # type: ignore[call-arg,misc]
    half = dataclasses.replace(stats, put_message_times_total=2, put_message_size_total=5)
    assert half.put_message_average_size == 2.5
