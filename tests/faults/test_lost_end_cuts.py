"""Goal: whatever ends the process that opens a store whose log has lost messages, one of its
openings warns of the loss, and `.broken` holds what is left of the messages.
Method: a simulated device captures the moment before each call of such an opening, and images of
each (a kill, or a power cut) are opened."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import device as simulated
from device import Captured, Device
from fault_programs import DIRECTORY, NEVER, open_store
from journal import SETTINGS
from support.seed import SEED
from survivors import examine_images

QUIET: dict[str, Any] = {
    **SETTINGS,
    "flush_interval_commit_log": NEVER,
    "flush_interval_consume_queue": NEVER,
    "flush_disk_type": "ASYNC_FLUSH",
}
LOG_SIZE = SETTINGS["mapped_file_size_commit_log"]
COUNT, IMAGES = 400, 2
REPORTS = ("these messages are missing", "though valid records follow")
Kept = dict[int, bytes]


def log_files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "commitlog").iterdir() if path.name.isdigit())


def flip(root: Path, place: int) -> None:
    path = log_files(root)[place // LOG_SIZE]
    with path.open("r+b") as file:
        file.seek(place % LOG_SIZE + 90)  # within the body
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def lose_file(root: Path, places: list[int], end: int) -> Kept:
    """The last file is gone, and the empty one after it."""
    for path in log_files(root)[places[-1] // LOG_SIZE :]:
        path.unlink()
    return {}


def damage_last(root: Path, places: list[int], end: int) -> Kept:
    """No valid record follows the damaged one."""
    flip(root, places[-1])
    return {places[-1]: b""}


def damage_middle(root: Path, places: list[int], end: int) -> Kept:
    """Valid records follow."""
    flip(root, places[-5])
    return dict.fromkeys(places[-5:], b"")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["closed", "flushed"])
@pytest.mark.parametrize("damage", [lose_file, damage_last, damage_middle])
def test_no_end_of_an_opening_hides_a_loss(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    damage: Callable[[Path, list[int], int], Kept],
) -> None:
    monkeypatch.setattr(simulated, "FREQUENT_RATE", 0.3)
    base = tmp_path / "base"
    base.mkdir()
    store = open_store(base, QUIET, None)
    places = [
        store.put("T", b"%d" % i + bytes(100), keys=f"k{i}", queue_id=i % 2).phy_offset
        for i in range(COUNT)
    ]
    end = store.message_store.commit_log.get_max_offset()
    store.wait_dispatched()
    store.flush()
    root = tmp_path / "root"
    root.mkdir()
    if how == "flushed":
        shutil.copytree(base / DIRECTORY, root / DIRECTORY)
    store.close()
    if how == "closed":
        shutil.copytree(base / DIRECTORY, root / DIRECTORY)
    lost = damage(root / DIRECTORY, places, end)
    data = b"".join(path.read_bytes() for path in log_files(root / DIRECTORY))[:end]
    ends = [*places[1:], end]
    kept = {at: data[at : ends[places.index(at)]] for at in lost}
    device = Device(root, SEED, captures_max=400)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        device.promises = lambda: {"reported": is_reported(caught)}
        store = open_store(root, QUIET, device)
    assert is_reported(caught)
    store.close()
    device.moment("end")
    captures = device.take_captures()
    device.release()
    examine_images(captures, tmp_path, IMAGES, lambda m, path, _: examine(m, path, kept))


def is_reported(caught: list[warnings.WarningMessage]) -> bool:
    return any(text in str(one.message) for one in caught for text in REPORTS)


def examine(moment: Captured, path: Path, kept: Kept) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = open_store(path, QUIET, None)
    with store:
        assert is_reported(caught) or moment.promised["reported"], caught
        assert store.verify().ok
    held = [
        (int(file.name), file.read_bytes())
        for file in (path / DIRECTORY / ".broken").glob("*/*")
        if file.name.isdigit() and len(file.name) == 20
    ]
    for at, data in kept.items():
        assert any(begin <= at and one[at - begin :][: len(data)] == data for begin, one in held), (
            at,
            [(b, len(o)) for b, o in held],
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        open_store(path, QUIET, None).close()
    assert not is_reported(caught)
