"""Workload of ours.py: open a store as after a kill that followed a flush."""

from __future__ import annotations

from pathlib import Path

import pyrocketstore
from pyrocketstore import MessageStoreConfig
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from workload import QUEUES, TOPIC, Clock, Result, Workload

PUT_COUNT = 10_000


class OpenKilled(Workload):
    """Run load() on a store of `count` messages that was flushed and then killed.

    With "keyless" the messages have neither a key nor a tag.
    """

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        self._keyless = "keyless" in options
        with pyrocketstore.open(path, disk_max_used_space_ratio=95) as store:
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
        (self.path / "abort").touch()
        store = DefaultMessageStore(MessageStoreConfig().at_root(self.path))
        clock = Clock()
        store.load()
        seconds, cpu = clock.stop()
        total = sum(store.get_max_offset_in_queue(TOPIC, queue_id) for queue_id in range(QUEUES))
        size = store.get_max_phy_offset() - store.get_min_phy_offset()
        store.shutdown()
        return Result(total, size, seconds, total, cpu)
