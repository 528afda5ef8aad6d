"""Goal: a store has the threads that its settings require, a dead one ends the puts with the
reason, and after `stop` none is started again.
Method: `StoreServices` of engines with different settings; services of the test that die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import DefaultMessageStore, MessageStoreConfig, StoreStateError
from pyrocketstore.message_store.start_stop_services import StoreServices
from pyrocketstore.system.service_thread import ServiceThread
from support.gates import wait_until
from support.sizes import SIZES


class Scene:
    """The services of a loaded engine, whose threads the test starts."""

    def __init__(self, root: Path, **settings: Any) -> None:
        config = MessageStoreConfig(**SIZES, **settings).at_root(str(root))
        self.engine = DefaultMessageStore(config)
        self.engine.load()
        self.engine.start()
        self.services: StoreServices = self.engine.services

    def names(self) -> list[str]:
        return [type(service).__name__ for service in self.services.all()]

    def close(self) -> None:
        self.engine.shutdown()


ALWAYS = {
    "AllocateMappedFileService",
    "ReputMessageService",
    "FlushConsumeQueueService",
    "StoreStatsService",
}


@pytest.mark.parametrize(
    ("settings", "present", "absent"),
    [
        (
            {},
            {"FlushRealTimeService"},
            {"GroupCommitService", "FlushDiskWatcher", "CommitRealTimeService"},
        ),
        (
            {"flush_disk_type": "SYNC_FLUSH"},
            {"GroupCommitService", "FlushDiskWatcher"},
            {"FlushRealTimeService", "CommitRealTimeService"},
        ),
        (
            {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
            {"FlushRealTimeService", "CommitRealTimeService"},
            {"GroupCommitService"},
        ),
    ],
    ids=["async", "sync", "pool"],
)
def test_threads_follow_the_settings(
    tmp_path: Path, settings: dict[str, Any], present: set[str], absent: set[str]
) -> None:
    scene = Scene(tmp_path, **settings)
    try:
        names = scene.names()
        assert ALWAYS | present <= set(names) and not absent & set(names)
        assert len(set(names)) == len(names)
        assert all(service.is_alive for service in scene.services.all())
        assert not scene.services.repair_service.is_alive, "only after a write error"
    finally:
        scene.close()
    assert not any(service.is_alive for service in scene.services.all())


def test_a_reader_has_no_services(tmp_path: Path) -> None:
    pyrocketstore.open(tmp_path, **SIZES).close()
    with pyrocketstore.open(tmp_path, read_only=True, **SIZES) as store:
        with pytest.raises(StoreStateError, match="read-only"):
            store.message_store.start()
        with pytest.raises(StoreStateError, match="not started"):
            _ = store.message_store.services


class Dying(ServiceThread):
    def run(self) -> None:
        raise ValueError("odd")


class Waiting(ServiceThread):
    def run(self) -> None:
        while not self.stopped:
            self.wait_for_running(None)


def test_a_thread_that_dies_ends_the_puts(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    try:
        scene.services.start_transactions(Dying("dying"))
        wait_until(lambda: scene.engine.store_failure.error is not None, "the death")
        error = scene.engine.store_failure.error
        assert isinstance(error, StoreStateError)
        assert str(error) == "the thread dying has died: ValueError('odd')"
        assert isinstance(error.__cause__, ValueError)
        assert not scene.engine.running_flags.is_writeable()
    finally:
        with pytest.raises(StoreStateError, match="dying"):
            scene.close()


def test_a_service_of_transactions_ends_with_the_store(tmp_path: Path) -> None:
    scene, service = Scene(tmp_path), Waiting("waiting")
    scene.services.start_transactions(service)
    assert service.is_alive
    scene.close()
    assert not service.is_alive


def test_after_the_stop_nothing_is_started(tmp_path: Path) -> None:
    scene, service = Scene(tmp_path), Waiting("waiting")
    services = scene.services
    assert services.stop(), "everything is dispatched and durable"
    services.start_transactions(service)
    services.start_repair()
    services.start_schedule()
    schedule = services.schedule_service
    assert not service.is_alive and not services.repair_service.is_alive
    assert schedule is None or not schedule.is_alive
    assert services.stop(), "as after a Ctrl-C"
    scene.close()


def test_a_flush_covers_what_a_deletion_needs(tmp_path: Path) -> None:
    scene = Scene(tmp_path, flush_interval_commit_log=600_000, flush_commit_log_timed=True)
    try:
        result = scene.engine.put_message(pyrocketstore.MessageExtBrokerInner("t", b"body", 0))
        end = scene.engine.get_max_phy_offset()
        scene.engine.wait_dispatched()
        scene.services.flush_up_to(result.phy_offset + 1)
        assert scene.services.log_flush.flushed_where == end
        assert scene.services.flush_queue_service.flushed_to == end
    finally:
        scene.close()
