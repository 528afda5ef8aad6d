"""The workload of light queues, by their number."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pyrocketstore
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from workload import POLL_S, TOPIC, Clock, Result, Workload

#: Light queues that one message names while the store is made.
NAMED = 100


class LightQueues(Workload):
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
        self._store = pyrocketstore.open(path, **self._settings)
        for first in range(0, self.count, NAMED):
            names = self._names[first : first + NAMED]
            self._store.put(TOPIC, self.body, light_queues=names)
        self._store.wait_dispatched()
        if options["what"] == "open_light":
            self._store.close()

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
        put, body = self._store.put, self.body
        before = self._total()
        clock = Clock()
        for name in self._names:
            put(TOPIC, body, light_queues=[name])
        while self._store.message_store.dispatch_behind_bytes() > 0:
            time.sleep(POLL_S)
        seconds, cpu = clock.stop()
        return Result(self.count, self.count * len(body), seconds, self._total() - before, cpu)

    def _total(self) -> int:
        return sum(self._store.max_offset(f"%LMQ%{name}", 0) for name in self._names)

    def close(self) -> None:
        self._store.close()
