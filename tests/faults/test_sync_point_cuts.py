"""Goal: a power cut or a kill before any system call of a flush leaves a true `sync_point`.
Method: a simulated device (device.py) captures the moment before each call of a flush, and images
of each are opened."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import device as simulated
from device import Captured, Device
from fault_programs import DIRECTORY, NEVER, open_store
from journal import SETTINGS
from pyrocketstore.index.sync_point import SYNC_POINT
from survivors import all_cached, choose, image_of, write

QUIET: dict[str, Any] = {
    **SETTINGS,
    "flush_interval_commit_log": NEVER,
    "flush_interval_consume_queue": NEVER,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
}
COUNT = 150
IMAGES = 3


def put(store: Any, first: int, count: int) -> None:
    for number in range(first, first + count):
        store.put("t", b"%d" % number, keys=f"k{number}")
    assert store.wait_dispatched()


def examine(tree: Any, path: Path, least: int, read_only: bool) -> int:
    """Open an image; return the start of the replay. It has `least` messages, and all keys."""
    write(tree, path)
    with open_store(path, QUIET, None, read_only=read_only) as store:
        count = store.max_offset("t", 0)
        assert count >= least
        assert [int(message.body) for message in store.read("t")] == list(range(count))
        for number in range(count + 5):
            assert len(store.query("t", f"k{number}")) == (number < count), number
        assert read_only or store.verify().ok
        return int(store.message_store.plan.replay_from)


def moments(tmp_path: Path, later: int) -> tuple[list[Captured], list[int]]:
    """Flush a store, put more, and capture each call of the next flush; the ends of the flushes."""
    root = tmp_path / "root"
    root.mkdir()
    device = Device(root, "seed")
    store = open_store(root, QUIET, device)
    ends = []
    put(store, 0, COUNT)
    store.flush()
    ends.append(store.message_store.get_max_phy_offset())
    put(store, COUNT, later)
    device.captures_max, device.rate = 1000, 1.0
    store.flush()
    device.moment("end")
    ends.append(store.message_store.get_max_phy_offset())
    captures = device.take_captures()
    device.captures_max = 0
    store.close()
    device.release()
    return captures, ends


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
@pytest.mark.parametrize("later", [3, 100])
def test_each_call_of_a_flush_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    monkeypatch.setattr(simulated, "FREQUENT_RATE", 1.0)
    captures, ends = moments(tmp_path, later)
    assert any(SYNC_POINT in event for moment in captures for event in moment.events)
    for number, moment in enumerate(captures):
        least = COUNT if moment is not captures[-1] else COUNT + later
        for image in range(IMAGES + 1):
            rng = random.Random(f"{number}/{image}")
            tree = all_cached(moment) if image == 0 else image_of(moment, choose(rng), rng)
            path = tmp_path / f"image-{number}-{image}"
            try:
                start = examine(tree, path, least, read_only=image % 2 == 1)
            except BaseException as error:
                error.add_note(f"before {moment.call} of {moment.events[-8:]}, image {image}")
                raise
            # A power cut may leave a queue without files in its sequence: then from before them.
            assert start in ends or image > 0, "the sync point of one of the flushes"
            if moment is captures[-1]:
                assert start == ends[-1]
    assert (tmp_path / "image-0-0" / DIRECTORY / SYNC_POINT).exists()
