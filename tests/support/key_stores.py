"""Stores of several index files whose messages have keys, and a check that every key is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyrocketstore

SETTINGS = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 50,
    "max_index_num": 101,
}
COUNT = 550


def open_store(root: Path, **more: Any) -> pyrocketstore.Store:
    """Open a store of small index files."""
    return pyrocketstore.open(root, topics_json=False, **{**SETTINGS, **more})


def keys_of(i: int) -> list[str] | None:
    """Some messages have no key, some share one."""
    return None if i % 7 == 3 else [f"k{i}", f"group-{i % 50}"][: 1 + (i % 5 == 0)]


def fill(root: Path) -> None:
    """Make a store of six index files in `root`/keys, and one without a key in `root`/keyless."""
    with open_store(root / "keys") as store:
        for i in range(COUNT):
            store.put("T", b"%d " % i + bytes(300), keys=keys_of(i))
    with open_store(root / "keyless") as store:
        for _ in range(COUNT):
            store.put("T", bytes(300))


def index_files(root: Path) -> list[Path]:
    """Return the index files, the oldest first."""
    return sorted((root / "index").iterdir())


def check(store: pyrocketstore.Store, count: int = COUNT) -> None:
    """Every key finds all its messages, by both ways."""
    wanted: dict[str, list[int]] = {}
    for i in range(count):
        for key in keys_of(i) or ():
            wanted.setdefault(key, []).append(i)
    for key, numbers in wanted.items():
        for max_num in (64, 2):
            found = [int(m.body.split()[0]) for m in store.query("T", key, max_num=max_num)]
            assert found == numbers[-max_num:], key
    for max_num in (64, 2):
        hits = store.query_many("T", list(wanted), max_num=max_num)
        found = {key: [] for key in wanted}
        names = list(wanted)
        for at, place in zip(hits.key_index.tolist(), hits.phy_offset.tolist(), strict=True):
            message = store.get(place)
            assert message is not None
            found[names[at]].append(int(message.body.split()[0]))
        assert found == {key: numbers[-max_num:] for key, numbers in wanted.items()}
    assert store.query("T", "nothing") == []
