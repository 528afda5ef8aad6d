"""Work by the number of queues: opening a store, flushing, listing; light queues."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy

import pyrocketstore
from bench.workers.ours.stores import StoreWork, open_store
from bench.workers.workload import POLL_S, TOPIC, Clock, Result, Workload
from pyrocketstore.cli.inspect import queue_rows, queue_spans
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.message_store.default_message_store import DefaultMessageStore

#: Queues of a topic where there are several topics.
TOPIC_QUEUES = 8
#: Light queues that one message names while the store is made.
NAMED = 100


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


class QueueRows(StoreWork):
    """List the queues of each topic, and with `rows` make the rows of `info`: offsets and times."""

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        shutil.rmtree(path, ignore_errors=True)
        with pyrocketstore.open(path) as store:
            for i in range(self.count):
                store.put(f"{TOPIC}{i // TOPIC_QUEUES}", self.body, queue_id=i % TOPIC_QUEUES)
        self.store = pyrocketstore.open(path, read_only=True)

    def unit(self) -> Result:
        clock = Clock()
        if "rows" in self.options:
            found = sum(1 for _ in queue_rows(self.store, queue_spans(self.store)))
        else:
            found = sum(len(self.store.queues(topic)) for topic in self.store.topics())
        seconds, cpu = clock.stop()
        return Result(self.count, 0, seconds, found, cpu)


class FlushQueues(StoreWork):
    """Put to each queue of a store that stays open, and time the flush that follows."""

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        shutil.rmtree(path, ignore_errors=True)
        self.store = open_store(path, message_index_enable=False)
        self._put_to_each()
        self.store.flush()

    def _put_to_each(self) -> None:
        bodies = [self.body] * self.count
        self.store.put_many(TOPIC, bodies, queue_ids=numpy.arange(self.count))
        self.store.wait_dispatched()

    def _total(self) -> int:
        return sum(self.store.max_offset(TOPIC, queue_id) for queue_id in range(self.count))

    def unit(self) -> Result:
        before = self._total()
        self._put_to_each()
        clock = Clock()
        self.store.flush()
        seconds, cpu = clock.stop()
        return Result(self.count, 0, seconds, self._total() - before, cpu)


class LightQueues(StoreWork):
    """Load a store of `count` light queues; "put_light": put one message into each of them."""

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        shutil.rmtree(path, ignore_errors=True)
        self._settings = {
            "enable_lmq": True,
            "enable_multi_dispatch": True,
            "max_lmq_consume_queue_num": 2 * self.count,
        }
        self._names = [f"device-{i}" for i in range(self.count)]
        self.store = pyrocketstore.open(path, **self._settings)
        for first in range(0, self.count, NAMED):
            names = self._names[first : first + NAMED]
            self.store.put(TOPIC, self.body, light_queues=names)
        self.store.wait_dispatched()
        if options["what"] == "open_light":
            self.store.close()

    def unit(self) -> Result:
        return self._put() if self.options["what"] == "put_light" else self._open()

    def _open(self) -> Result:
        if "killed" in self.options:
            (self.path / "abort").touch()
        config = MessageStoreConfig(**self._settings).at_root(self.path)
        store = DefaultMessageStore(config)
        clock = Clock()
        store.load()
        seconds, cpu = clock.stop()
        total = sum(store.get_max_offset_in_queue(f"%LMQ%{name}", 0) for name in self._names)
        store.shutdown()
        return Result(self.count, 0, seconds, total, cpu)

    def _put(self) -> Result:
        put, body = self.store.put, self.body
        before = self._total()
        clock = Clock()
        for name in self._names:
            put(TOPIC, body, light_queues=[name])
        while self.store.message_store.dispatch_behind_bytes() > 0:
            time.sleep(POLL_S)
        seconds, cpu = clock.stop()
        return Result(self.count, self.count * len(body), seconds, self._total() - before, cpu)

    def _total(self) -> int:
        return sum(self.store.max_offset(f"%LMQ%{name}", 0) for name in self._names)
