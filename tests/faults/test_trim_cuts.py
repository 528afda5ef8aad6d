"""Goal: a power cut or a kill before any system call of `trim`, and of what follows, loses no
message that `trim` keeps.
Method: a simulated device (device.py) captures the moment before each call of a program that
trims, puts and closes, and images of each are opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import device as simulated
from device import Captured, Device
from fault_programs import NEVER, open_store
from journal import SETTINGS
from support.seed import SEED
from survivors import examine_images

QUIET: dict[str, Any] = {
    **SETTINGS,
    "flush_interval_commit_log": NEVER,
    "flush_interval_consume_queue": NEVER,
    "flush_disk_type": "ASYNC_FLUSH",
    "mapped_file_size_commit_log": 4096,
    "max_hash_slot_num": 50,
    "max_index_num": 100,
}
ROUNDS = 4
ROUND_COUNT = 40
IMAGES = 3
CAPTURES_MAX = 400

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning"),
]


def body_of(number: int) -> bytes:
    return b"%04d" % number * 60


def program(root: Path, device: Device) -> tuple[list[Captured], int]:
    """Put, flush and trim some times; return moments with the messages that are promised, and the
    number of deleted files."""
    promised = {"first": 0, "stop": 0}
    device.promises = lambda: dict(promised)
    store = open_store(root, QUIET, device)
    files, stop = 0, 0
    for _ in range(ROUNDS):
        for number in range(stop, stop + ROUND_COUNT):
            store.put("t", body_of(number), keys=f"k{number}")
            device.clock_ms += 1
        stop += ROUND_COUNT
        store.flush()
        promised["stop"] = stop
        device.captures_max, device.rate = CAPTURES_MAX, 1.0
        first = (promised["first"] + stop) // 2
        (message,) = store.read("t", start=first, stop=first + 1)
        promised["first"] = first
        files += store.trim(before=message.store_timestamp).files
    store.close()
    device.moment("end")
    captures = device.take_captures()
    device.captures_max = 0
    return captures, files


def examine(moment: Captured, path: Path, *, read_only: bool) -> None:
    """Open an image: it has the promised messages, by offset and by key."""
    first, stop = moment.promised["first"], moment.promised["stop"]
    with open_store(path, QUIET, None, read_only=read_only) as store:
        assert store.max_offset("t", 0) >= stop
        numbers = range(max(first, store.min_offset("t", 0)), stop)
        assert store.min_offset("t", 0) <= first
        found = {message.queue_offset: message.body for message in store.read("t", start=first)}
        for number in numbers:
            assert found[number] == body_of(number), number
            assert len(store.query("t", f"k{number}")) == 1, number
        if not read_only:
            report = store.verify()
            assert report.ok, report.problems[:3]


@pytest.mark.timeout(600)
def test_each_call_of_a_trim_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "FREQUENT_RATE", 0.5)
    root = tmp_path / "root"
    root.mkdir()
    device = Device(root, SEED)
    captures, files = program(root, device)
    device.release()
    assert files > ROUNDS
    assert any("unlink" in event for moment in captures for event in moment.events)
    examine_images(
        captures,
        tmp_path,
        IMAGES,
        lambda moment, path, image: examine(moment, path, read_only=image % 2 == 1),
    )
