"""The flush of many queues, a workload of ours.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy

import pyrocketstore
from workload import TOPIC, Clock, Result, Workload


class FlushQueues(Workload):
    """Put to each queue of a store that stays open, and time the flush that follows."""

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        shutil.rmtree(path, ignore_errors=True)
        self._store = pyrocketstore.open(
            path, disk_max_used_space_ratio=95, message_index_enable=False
        )
        self._put_to_each()
        self._store.flush()

    def _put_to_each(self) -> None:
        bodies = [self.body] * self.count
        self._store.put_many(TOPIC, bodies, queue_ids=numpy.arange(self.count))
        self._store.wait_dispatched()

    def _total(self) -> int:
        return sum(self._store.max_offset(TOPIC, queue_id) for queue_id in range(self.count))

    def unit(self) -> Result:
        before = self._total()
        self._put_to_each()
        clock = Clock()
        self._store.flush()
        seconds, cpu = clock.stop()
        return Result(self.count, 0, seconds, self._total() - before, cpu)

    def close(self) -> None:
        self._store.close()
