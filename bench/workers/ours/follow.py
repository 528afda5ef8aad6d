"""A reader that follows the writer of a store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyrocketstore
from bench.workers.ours.stores import fill, open_store
from bench.workers.workload import KEY_BASE, NEW_COUNT, QUEUES, TOPIC, Clock, Result, Workload


class Follow(Workload):
    """Read the new messages after each NEW_COUNT puts, in a store of `stored` messages.

    "follow" refreshes one read-only store; "open_again" opens a new one each time. Only the refresh
    or the opening, and the reading, are timed. The writer's dispatcher has caught up then.
    """

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        shutil.rmtree(path, ignore_errors=True)
        self._writer = open_store(path)
        self._number = KEY_BASE
        self._put(int(options["stored"]))
        self._writer.flush()
        self._reader = self._open()
        self._ends = [self._reader.max_offset(TOPIC, queue_id) for queue_id in range(QUEUES)]

    def _open(self) -> pyrocketstore.Store:
        return pyrocketstore.open(self.path, read_only=True)

    def _put(self, count: int) -> None:
        fill(self._writer, self.body, range(self._number, self._number + count))
        self._number += count
        self._writer.wait_dispatched()

    def unit(self) -> Result:
        found = size = 0
        seconds = cpu = 0.0
        for _ in range(self.count):
            self._put(NEW_COUNT)
            clock = Clock()
            if self.options["what"] == "follow":
                self._reader.refresh()
            else:
                self._reader.close()
                self._reader = self._open()
            for queue_id in range(QUEUES):
                start = self._ends[queue_id]
                for message in self._reader.read(TOPIC, queue_id, start=start):
                    found += 1
                    size += len(message.body)
                self._ends[queue_id] = self._reader.max_offset(TOPIC, queue_id)
            took, used = clock.stop()
            seconds, cpu = seconds + took, cpu + used
        answer = self.count * (found == self.count * NEW_COUNT)
        return Result(self.count, size, seconds, answer, cpu)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
        shutil.rmtree(self.path)
