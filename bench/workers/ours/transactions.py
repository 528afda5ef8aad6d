"""Transactions."""

from __future__ import annotations

import shutil

from bench.workers.ours.stores import open_store
from bench.workers.workload import QUEUES, TOPIC, Clock, Result, Workload


class Transactions(Workload):
    """Prepare and commit `count` messages in a new store, until all can be read."""

    def unit(self) -> Result:
        shutil.rmtree(self.path, ignore_errors=True)
        with open_store(self.path) as store:
            clock = Clock()
            for i in range(self.count):
                store.prepare(
                    TOPIC,
                    self.body,
                    group="group",
                    queue_id=i % QUEUES,
                    tags="TagA",
                    keys=f"k{i}",
                ).commit()
            store.wait_dispatched()
            seconds, cpu = clock.stop()
            total = sum(store.max_offset(TOPIC, queue_id) for queue_id in range(QUEUES))
        shutil.rmtree(self.path)
        return Result(self.count, self.count * len(self.body), seconds, total, cpu)
