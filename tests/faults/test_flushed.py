"""Goal: what a flush or the checkpoint says of the queues and the index is so on the device.
Method: a simulated device (device.py): what was forced is held against what everybody sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from device import Device
from fault_programs import DIRECTORY, NEVER, open_store
from journal import SETTINGS
from pyrocketstore.env import Env
from pyrocketstore.store_checkpoint import StoreCheckpoint
from survivors import Choice, Tree, image_of, write

QUIET: dict[str, Any] = {
    **SETTINGS,
    "flush_interval_commit_log": NEVER,
    "flush_interval_consume_queue": NEVER,
}
COUNT = 300
FORCED = Choice("old", "old", "old")
SEEN = Choice("new", "new", "new")


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    root = tmp_path / "root"
    root.mkdir()
    made = Device(root, "seed")
    yield made
    made.release()


def image(device: Device, choice: Choice) -> Tree:
    found = image_of(device.capture("test"), choice, device.rng)[DIRECTORY]
    assert isinstance(found, dict)
    return found


def put(store: pyrocketstore.Store, device: Device, first: int = 0, count: int = COUNT) -> None:
    """Four seconds each: more than the checkpoint is taken to be late by."""
    for number in range(first, first + count):
        device.clock_ms += 4000
        body = b"%d " % number + bytes(300)
        store.put("t", body, queue_id=number % 4, keys=f"k{number}")
    assert store.wait_dispatched()


def check(store: pyrocketstore.Store, count: int) -> None:
    for queue_id in range(4):
        bodies = [int(message.body.split()[0]) for message in store.read("t", queue_id)]
        assert bodies == list(range(queue_id, count, 4))
    for number in range(0, count, 7):
        assert len(store.query("t", f"k{number}")) == 1, number
    assert store.verify().ok


def test_flush_leaves_nothing_to_the_page_cache(tmp_path: Path, device: Device) -> None:
    """Of queues and index neither: what a power cut leaves has no need of the log."""
    store = open_store(Path(device.root), QUIET, device)
    put(store, device)
    before = image(device, FORCED)
    store.flush()
    forced, seen = image(device, FORCED), image(device, SEEN)
    checkpoint = store.message_store.checkpoint
    assert checkpoint.physic_msg_timestamp == device.clock_ms == checkpoint.logics_msg_timestamp
    for part in ("consumequeue", "index", "checkpoint"):
        assert before[part] != seen[part], f"{part}: nothing to force"
        assert forced[part] == seen[part], part
    put(store, device, COUNT, 2)
    store.flush()
    forced, seen = image(device, FORCED), image(device, SEEN)
    assert [p for p in ("consumequeue", "index", "checkpoint") if forced[p] != seen[p]] == []
    store.close()
    write({DIRECTORY: forced}, tmp_path / "cut")
    with open_store(tmp_path / "cut", QUIET, None) as store:
        check(store, COUNT + 2)


def test_a_put_after_a_flush_is_replayed_and_nothing_is_lost(
    tmp_path: Path, device: Device
) -> None:
    """What flush promises holds on, but not without a replay: the put writes to the same pages."""
    store = open_store(Path(device.root), QUIET, device)
    put(store, device)
    store.flush()
    put(store, device, COUNT, 1)
    forced = image(device, FORCED)
    store.close()
    write({DIRECTORY: forced}, tmp_path / "cut")
    with open_store(tmp_path / "cut", QUIET, None) as store:
        plan = store.message_store.plan
        assert plan is not None and not plan.clean
        assert plan.replay_from is not None and plan.replay_from > 0, "not from the beginning"
        check(store, COUNT)


def test_the_time_of_the_queues_is_of_what_was_forced(tmp_path: Path, device: Device) -> None:
    """The index writes the checkpoint when a file is full; the queues are not forced then."""
    store = open_store(Path(device.root), QUIET, device)
    put(store, device, count=40)
    store.flush()
    flushed_ms = device.clock_ms
    put(store, device, 40, COUNT)
    low = store.message_store
    low.index_service.wait_forced()
    low.flush()
    forced = image(device, FORCED)
    store.close()
    write({DIRECTORY: forced}, tmp_path / "cut")
    path = tmp_path / "cut" / DIRECTORY
    times = StoreCheckpoint(Env(), str(path / "checkpoint"))
    assert times.index_msg_timestamp > flushed_ms, "no index file has become full"
    assert times.logics_msg_timestamp == flushed_ms
    with open_store(tmp_path / "cut", QUIET, None) as store:
        check(store, 40 + COUNT)


def test_directories_that_a_killed_process_made_are_forced(tmp_path: Path, device: Device) -> None:
    """Their names may be in the page cache alone, the store's own among them."""
    env = device.attach(Env())
    log = f"{device.root}/elsewhere"
    for path in (f"{device.root}/{DIRECTORY}", f"{device.root}/{DIRECTORY}/consumequeue", log):
        env.mkdir(path)
    settings = {**QUIET, "flush_disk_type": "SYNC_FLUSH", "store_path_commit_log": log}
    store = open_store(Path(device.root), settings, device)
    store.put("t", b"x")
    left = image_of(device.capture("test"), FORCED, device.rng)
    store.close()
    assert set(left) == {DIRECTORY, "elsewhere"}
    write(left, tmp_path / "cut")
    settings["store_path_commit_log"] = str(tmp_path / "cut" / "elsewhere")
    with open_store(tmp_path / "cut", settings, None) as store:
        assert [message.body for message in store.read("t")] == [b"x"]
