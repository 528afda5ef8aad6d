"""Workload of ours.py: open a store after a clean stop, or as after a kill."""

from __future__ import annotations

from pathlib import Path

import pyrocketstore
from pyrocketstore import MessageStoreConfig
from pyrocketstore.config.message_store_config import detect_sizes
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.system.env import Env
from workload import QUEUES, TOPIC, Clock, Result, Workload

PUT_COUNT = 10_000


class OpenKilled(Workload):
    """Open a store of `count` messages that was flushed and then killed, or with "clean" closed.

    The file sizes are derived from the files, as `pyrocketstore.open` does. With "keyless" the
    messages have neither a key nor a tag; with "read_only" the store is not changed.
    """

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        self._keyless = "keyless" in options
        size = int(options.get("mappedFileSizeCommitLog", 1 << 30))
        with pyrocketstore.open(
            path, disk_max_used_space_ratio=95, mapped_file_size_commit_log=size
        ) as store:
            for first in range(0, self.count, PUT_COUNT):
                numbers = range(first, min(first + PUT_COUNT, self.count))
                store.put_many(
                    TOPIC,
                    [self.body] * len(numbers),
                    queue_ids=[number % QUEUES for number in numbers],
                    tags=None if self._keyless else ["TagA"] * len(numbers),
                    keys=None if self._keyless else [f"k{number}" for number in numbers],
                )

    def unit(self) -> Result:
        if "clean" not in self.options:
            (self.path / "abort").touch()
        read_only = "read_only" in self.options
        config = MessageStoreConfig().at_root(self.path)
        clock = Clock()
        config = detect_sizes(Env(), str(self.path), config, frozenset(), read_only=read_only)
        store = DefaultMessageStore(config, read_only=read_only)
        store.load()
        seconds, cpu = clock.stop()
        total = sum(store.get_max_offset_in_queue(TOPIC, queue_id) for queue_id in range(QUEUES))
        size = store.get_max_phy_offset() - store.get_min_phy_offset()
        store.shutdown()
        return Result(total, size, seconds, total, cpu)
