"""Stores of very small files, so that a process makes hundreds of them in a short life."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 200,
    "mapped_file_size_consume_queue_ext": 100,
    "enable_consume_queue_ext": True,
    "max_hash_slot_num": 5,
    "max_index_num": 12,
}
#: These settings under 4.9.3's names.
SMALL_JAVA: dict[str, Any] = {
    "mappedFileSizeCommitLog": 4096,
    "mappedFileSizeConsumeQueue": 200,
    "mappedFileSizeConsumeQueueExt": 100,
    "enableConsumeQueueExt": "true",
    "maxHashSlotNum": 5,
    "maxIndexNum": 12,
}


def odd_files(store: Path, settings: dict[str, Any]) -> Iterator[str]:
    """Yield the paths that 4.9.3 would not load in the directories that it lists.

    These are directories, and files whose length differs from `settings` or whose name is invalid.
    """
    slots, entries = settings["max_hash_slot_num"], settings["max_index_num"]
    log = settings["mapped_file_size_commit_log"]
    queue = settings["mapped_file_size_consume_queue"]
    ext = settings.get("mapped_file_size_consume_queue_ext", 0)
    folders = [(store / "commitlog", log), (store / "index", 40 + 4 * slots + 20 * entries)]
    folders += [(path, queue) for path in (store / "consumequeue").glob("*/[0-9]*")]
    folders += [(path, ext) for path in (store / "consumequeue_ext").glob("*/[0-9]*")]
    for folder, length in folders:
        for path in sorted(folder.iterdir()) if folder.exists() else ():
            if not path.name.isdigit():
                yield f"{path} is not a file of the store"
            elif not path.is_file() or path.stat().st_size != length:
                yield f"{path} has {path.stat().st_size} bytes instead of {length}"
    checkpoint = store / "checkpoint"
    if checkpoint.exists() and checkpoint.stat().st_size != 4096:
        yield f"{checkpoint} has {checkpoint.stat().st_size} bytes instead of 4096"
