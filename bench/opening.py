"""Workloads by the number of queues: opening a store, and the rows of `info`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyrocketstore
from pyrocketstore.cli.inspect import queue_rows, queue_spans
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from workload import TOPIC, Clock, Result, Workload

#: Queues of a topic where there are several topics.
TOPIC_QUEUES = 8


class OpenQueues(Workload):
    """Load a store of `count` queues with one message each, after a clean stop; with `killed` as
    after a kill, with `read_only` without changing it."""

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        shutil.rmtree(path, ignore_errors=True)
        with pyrocketstore.open(path) as store:
            for queue_id in range(self.count):
                store.put(TOPIC, self.body, queue_id=queue_id)

    def unit(self) -> Result:
        if "killed" in self.options:
            (self.path / "abort").touch()
        config = MessageStoreConfig().at_root(self.path)
        store = DefaultMessageStore(config, read_only="read_only" in self.options)
        clock = Clock()
        store.load()
        seconds, cpu = clock.stop()
        total = sum(store.get_max_offset_in_queue(TOPIC, i) for i in range(self.count))
        store.shutdown()
        return Result(self.count, 0, seconds, total, cpu)


class QueueRows(Workload):
    """List the queues of each topic, and with `rows` make the rows of `info`: offsets and times."""

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        shutil.rmtree(path, ignore_errors=True)
        with pyrocketstore.open(path) as store:
            for i in range(self.count):
                store.put(f"{TOPIC}{i // TOPIC_QUEUES}", self.body, queue_id=i % TOPIC_QUEUES)
        self._store = pyrocketstore.open(path, read_only=True)

    def unit(self) -> Result:
        clock = Clock()
        if "rows" in self.options:
            found = sum(1 for _ in queue_rows(self._store, queue_spans(self._store)))
        else:
            found = sum(len(self._store.queues(topic)) for topic in self._store.topics())
        seconds, cpu = clock.stop()
        return Result(self.count, 0, seconds, found, cpu)

    def close(self) -> None:
        self._store.close()
