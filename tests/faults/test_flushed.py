"""Goal: the positions of queues and index that a flush or the checkpoint reports are on the device.
Method: a simulated device (device.py), whose durable bytes are compared with the visible ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from device import Device
from fault_programs import DIRECTORY, NEVER, open_store
from journal import SETTINGS
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.system.env import Env
from survivors import Choice, Tree, image_of, write

QUIET: dict[str, Any] = {
    **SETTINGS,
    "flush_interval_commit_log": NEVER,
    "flush_interval_consume_queue": NEVER,
}
COUNT = 300
DURABLE = Choice("old", "old", "old")
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
    """Steps of four seconds, more than the tolerance of the checkpoint."""
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


@pytest.mark.parametrize("least_files", [0, 1])
@pytest.mark.parametrize("ends", ["flush", "close"])
def test_the_queues_are_on_the_device_before_the_checkpoint(
    device: Device, monkeypatch: pytest.MonkeyPatch, ends: str, least_files: int
) -> None:
    """With syncfs too, which may leave the bytes in the cache of the device."""
    seen: list[bool] = []
    note = StoreCheckpoint.note_queues_flushed

    def look_and_note(checkpoint: StoreCheckpoint, *covered: int) -> None:
        durable, cached = image(device, DURABLE), image(device, SEEN)
        seen.append(durable["consumequeue"] == cached["consumequeue"])
        note(checkpoint, *covered)

    monkeypatch.setattr(StoreCheckpoint, "note_queues_flushed", look_and_note)
    settings = {**QUIET, "syncfs_least_files": least_files}
    store = open_store(Path(device.root), settings, device)
    put(store, device)
    store.flush()  # writes topics.json, whose fsync would flush the cache of the device
    put(store, device, COUNT)
    seen.clear()
    device.events.clear()
    getattr(store, ends)()
    assert seen and all(seen)
    assert ("syncfs" in device.events) == (least_files == 1)
    store.close()


def test_flush_leaves_nothing_to_the_page_cache(tmp_path: Path, device: Device) -> None:
    """A power cut leaves neither queues nor index that depend on a replay of the log."""
    store = open_store(Path(device.root), QUIET, device)
    put(store, device)
    before = image(device, DURABLE)
    store.flush()
    durable, seen = image(device, DURABLE), image(device, SEEN)
    checkpoint = store.message_store.checkpoint
    assert checkpoint.physic_msg_timestamp == device.clock_ms == checkpoint.logics_msg_timestamp
    for part in ("consumequeue", "index", "checkpoint"):
        assert before[part] != seen[part], f"{part}: nothing to force"
        assert durable[part] == seen[part], part
    put(store, device, COUNT, 2)
    store.flush()
    durable, seen = image(device, DURABLE), image(device, SEEN)
    assert [p for p in ("consumequeue", "index", "checkpoint") if durable[p] != seen[p]] == []
    store.close()
    write({DIRECTORY: durable}, tmp_path / "cut")
    with open_store(tmp_path / "cut", QUIET, None) as store:
        check(store, COUNT + 2)


def test_a_put_after_a_flush_is_replayed_and_nothing_is_lost(
    tmp_path: Path, device: Device
) -> None:
    """The promise of flush remains true with a replay: a later put writes to the same pages."""
    store = open_store(Path(device.root), QUIET, device)
    put(store, device)
    store.flush()
    put(store, device, COUNT, 1)
    durable = image(device, DURABLE)
    store.close()
    write({DIRECTORY: durable}, tmp_path / "cut")
    with open_store(tmp_path / "cut", QUIET, None) as store:
        plan = store.message_store.plan
        assert plan is not None and not plan.clean
        assert plan.replay_from is not None and plan.replay_from > 0, "not from the beginning"
        check(store, COUNT)


def test_the_time_of_the_queues_covers_what_was_flushed(tmp_path: Path, device: Device) -> None:
    """A full index file writes the checkpoint, at a moment when the queues are not flushed."""
    store = open_store(Path(device.root), QUIET, device)
    put(store, device, count=40)
    store.flush()
    flushed_ms = device.clock_ms
    put(store, device, 40, COUNT)
    low = store.message_store
    low.index_service.wait_flushed()
    low.flush()
    durable = image(device, DURABLE)
    store.close()
    write({DIRECTORY: durable}, tmp_path / "cut")
    path = tmp_path / "cut" / DIRECTORY
    times = StoreCheckpoint(Env(), str(path / "checkpoint"))
    assert times.index_msg_timestamp > flushed_ms, "no index file has become full"
    assert times.logics_msg_timestamp == flushed_ms
    with open_store(tmp_path / "cut", QUIET, None) as store:
        check(store, 40 + COUNT)


def test_directories_that_a_killed_process_made_are_flushed(tmp_path: Path, device: Device) -> None:
    """Names of directories, the store's included, may be in the page cache alone."""
    env = device.attach(Env())
    log = f"{device.root}/elsewhere"
    for path in (f"{device.root}/{DIRECTORY}", f"{device.root}/{DIRECTORY}/consumequeue", log):
        env.mkdir(path)
    settings = {**QUIET, "flush_disk_type": "SYNC_FLUSH", "store_path_commit_log": log}
    store = open_store(Path(device.root), settings, device)
    store.put("t", b"x")
    left = image_of(device.capture("test"), DURABLE, device.rng)
    store.close()
    assert set(left) == {DIRECTORY, "elsewhere"}
    write(left, tmp_path / "cut")
    settings["store_path_commit_log"] = str(tmp_path / "cut" / "elsewhere")
    with open_store(tmp_path / "cut", settings, None) as store:
        assert [message.body for message in store.read("t")] == [b"x"]
