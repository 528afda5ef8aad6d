"""Stores to work on: how they are opened and filled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyrocketstore
from bench.workers.workload import QUEUES, TOPIC, Workload

FILL_COUNT = 10_000


def open_store(path: Path, **settings: object) -> pyrocketstore.Store:
    """Open a store that refuses no put before the disk is almost full."""
    return pyrocketstore.open(path, disk_max_used_space_ratio=95, **settings)


def fill(
    store: pyrocketstore.Store, body: bytes, numbers: Sequence[int], *, plain: bool = False
) -> None:
    """Put messages with these numbers, each with a tag and its key; if `plain`, with neither."""
    for first in range(0, len(numbers), FILL_COUNT):
        some = numbers[first : first + FILL_COUNT]
        store.put_many(
            TOPIC,
            [body] * len(some),
            queue_ids=[number % QUEUES for number in some],
            tags=None if plain else ["TagA"] * len(some),
            keys=None if plain else [f"k{number}" for number in some],
        )


class StoreWork(Workload):
    """Work on one store, which the rounds share."""

    store: pyrocketstore.Store

    def close(self) -> None:
        self.store.close()
