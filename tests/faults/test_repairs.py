"""Goal: an opening repairs the damage that power cuts were seen to leave. Method: a small store is
damaged as by a cut, once for each kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from openings import COUNT, GEOMETRY, QUEUE_FILE, SIZES, killed, open_and_flush
from pyrocketstore.system.env import Env
from support.broken_env import watched


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return killed(tmp_path / "store")


def queue_file(root: Path, number: int) -> Path:
    return root / f"consumequeue/T/0/{number * QUEUE_FILE:020d}"


def overwrite(path: Path, position: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


def whole(root: Path, **settings: Any) -> None:
    """Require that every message exists, by queue and by key, now and after a clean close."""
    for _ in range(2):
        with pyrocketstore.open(root, **SIZES, **settings) as store:
            assert [m.body for m in store.read("T")] == [b"%d" % n for n in range(COUNT)]
            assert len(store.query_many("T", [f"k{n}" for n in range(COUNT)]).phy_offset) == COUNT
            assert len(list(store.read("T", tags="A"))) == COUNT
            report = store.verify()
            assert report.ok, report.problems


def lose_pages_of_many_files(root: Path) -> None:
    overwrite(queue_file(root, 0), 180, bytes(QUEUE_FILE - 180))
    for number in range(1, 4):
        queue_file(root, number).write_bytes(bytes(QUEUE_FILE))


def tear_the_last_unit(root: Path) -> None:
    # Unit 25 of file 0 has lost its tags code in the next sector, and no unit follows.
    for number in range(1, 4):
        queue_file(root, number).unlink()
    overwrite(queue_file(root, 0), 512, bytes(QUEUE_FILE - 512))


def lose_the_length_of_a_file(root: Path) -> None:
    queue_file(root, 2).write_bytes(b"")


def lose_the_length_of_the_first(root: Path) -> None:
    queue_file(root, 0).write_bytes(b"")


def lose_the_header_of_the_index(root: Path) -> None:
    (index,) = (root / "index").iterdir()
    overwrite(index, 0, bytes(40))


def lose_the_slots_of_the_index(root: Path) -> None:
    (index,) = (root / "index").iterdir()
    overwrite(index, 40, bytes(50 * 4))


DAMAGES = [
    lose_pages_of_many_files,
    tear_the_last_unit,
    lose_the_length_of_a_file,
    lose_the_length_of_the_first,
    lose_the_header_of_the_index,
    lose_the_slots_of_the_index,
]


@pytest.mark.filterwarnings("ignore:.*derived from the log:pyrocketstore.StoreWarning")
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("settings", [GEOMETRY, {}], ids=["geometry", "unknown"])
def test_what_a_power_cut_leaves_is_repaired(
    root: Path, damage: Callable[[Path], None], settings: dict[str, Any]
) -> None:
    damage(root)
    whole(root, **settings)


def test_what_a_killed_process_queued_is_flushed(root: Path) -> None:
    open_and_flush(root)


def test_a_deletion_is_flushed_before_the_log_continues(root: Path) -> None:
    """A file that reappears would contain units or records of deleted messages."""
    log = sorted((root / "commitlog").iterdir())[0]
    overwrite(log, 5000, b"\xff" * 8)
    (root / "commitlog" / f"{1 << 16:020d}").write_bytes(bytes(1 << 16))
    env = Env()
    with watched(env, "fsync_directory") as synced, watched(env, "unlink") as unlinked:
        with pytest.warns(pyrocketstore.StoreWarning):
            store = pyrocketstore.open(root, env=env, **SIZES, **GEOMETRY)
        folders = {path for (path,) in synced}
        assert any(b"/commitlog/" in path for (path,) in unlinked)
        assert any(b"/consumequeue/" in path for (path,) in unlinked)
        assert {path.rsplit(b"/", 1)[0] for (path,) in unlinked} <= folders
        store.close()
