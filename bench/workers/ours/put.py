"""Puts into a new or an open store, and the same loops around empty methods."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

import pyrocketstore
from bench.workers.ours import properties
from bench.workers.ours.stores import StoreWork, open_store
from bench.workers.workload import (
    KEY_BASE,
    LONG_MAX,
    POLL_S,
    QUEUES,
    TOPIC,
    Clock,
    Result,
    Workload,
    percentiles_us,
)

MANY_COUNT = 10_000
#: How long a loop sleeps that is ahead of its pace; puts follow in bursts of as many milliseconds.
PACE_SLEEP_S = 0.001


class Put(Workload):
    """Put into a new store until the last message can be read by queue and queried by key."""

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        how: dict[str, Callable[[pyrocketstore.Store, int], None]] = {
            "put": self._put_all,
            "latency": self._put_all,
            "aput": self._aput_all,
            "put_many": self._put_many,
            "put_named": self._put_named,
            "put_many_named": self._put_many_named,
            "batch": self._put_batches,
            "batch_items": self._put_batch_items,
        }
        self._work = how[options["what"]]
        self._base = 0 if "keep" in options else KEY_BASE
        self._queues = int(options.get("queues", QUEUES))
        self._nanoseconds = array("q", bytes(8 * self.count * (options["what"] == "latency")))

    def unit(self) -> Result:
        shutil.rmtree(self.path, ignore_errors=True)
        settings: dict[str, Any] = {"unique_key": "unique" in self.options}
        if self.options.get("sync"):
            settings["flush_disk_type"] = pyrocketstore.FlushDiskType.SYNC_FLUSH
        keep = "keep" in self.options
        base, self._base = self._base, self._base + self.count * (not keep)
        with open_store(self.path, **settings) as store:
            clock = Clock()
            self._work(store, base)
            self._await_found(store, base)
            seconds, cpu = clock.stop()
            total = sum(store.max_offset(TOPIC, queue_id) for queue_id in range(self._queues))
            log = sum(self._record_bytes(store, queue_id) for queue_id in range(self._queues))
        if not keep:
            shutil.rmtree(self.path)
        times = percentiles_us(numpy.array(self._nanoseconds)) if self._nanoseconds else {}
        return Result(self.count, self.count * len(self.body), seconds, total, cpu, times, log)

    @staticmethod
    def _record_bytes(store: pyrocketstore.Store, queue_id: int) -> int:
        """Return the size in bytes of the records that a queue refers to."""
        queue = store.message_store.find_consume_queue(TOPIC, queue_id)
        size = at = 0
        while len(units := queue.read_units(at, 1 << 20).size):
            size += int(units.sum())
            at += len(units)
        return size

    def _put_all(self, store: pyrocketstore.Store, base: int) -> None:
        work = self._time_range if self._nanoseconds else self._put_range
        thread_count = int(self.options.get("threads", "1"))
        if thread_count == 1:
            work(store, base, 0, 1)
            return
        threads = [
            threading.Thread(target=work, args=(store, base, i, thread_count))
            for i in range(thread_count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _put_range(self, store: pyrocketstore.Store, base: int, first: int, step: int) -> None:
        put, body, queues = store.put, self.body, self._queues
        for i in range(first, self.count, step):
            put(TOPIC, body, queue_id=i % queues, tags="TagA", keys=f"k{base + i}")

    def _time_range(self, store: pyrocketstore.Store, base: int, first: int, step: int) -> None:
        put, body, queues = store.put, self.body, self._queues
        times, clock = self._nanoseconds, time.perf_counter_ns
        interval = 1e9 / int(self.options["pace"]) if "pace" in self.options else 0.0
        began = clock()
        for i in range(first, self.count, step):
            key = f"k{base + i}"
            while interval and clock() < began + i * interval:
                time.sleep(PACE_SLEEP_S)
            start = clock()
            put(TOPIC, body, queue_id=i % queues, tags="TagA", keys=key)
            times[i] = clock() - start

    def _aput_all(self, store: pyrocketstore.Store, base: int) -> None:
        async def aput_range() -> None:
            aput, body, queues = store.aput, self.body, self._queues
            for i in range(self.count):
                await aput(TOPIC, body, queue_id=i % queues, tags="TagA", keys=f"k{base + i}")

        asyncio.run(aput_range())

    def _put_many(self, store: pyrocketstore.Store, base: int) -> None:
        for first in range(0, self.count, MANY_COUNT):
            count = min(MANY_COUNT, self.count - first)
            store.put_many(
                TOPIC,
                [self.body] * count,
                queue_ids=numpy.arange(first, first + count) % QUEUES,
                tags=["TagA"] * count,
                keys=[f"k{i}" for i in range(base + first, base + first + count)],
            )

    def _put_batches(self, store: pyrocketstore.Store, base: int) -> None:
        size = int(self.options["batch"])
        for first in range(0, self.count, size):
            count = min(size, self.count - first)
            store.put_batch(
                TOPIC,
                [self.body] * count,
                first // size % QUEUES,
                tags=["TagA"] * count,
                keys=[f"k{i}" for i in range(base + first, base + first + count)],
            )

    def _put_named(self, store: pyrocketstore.Store, base: int) -> None:
        named = self.options["named"]
        properties.put_all(store, self.body, self._queues, named, base, self.count)

    def _put_many_named(self, store: pyrocketstore.Store, base: int) -> None:
        named, end = self.options["named"], base + self.count
        for first in range(base, end, MANY_COUNT):
            count = min(MANY_COUNT, end - first)
            properties.put_many(store, self.body, self._queues, named, first, count)

    def _put_batch_items(self, store: pyrocketstore.Store, base: int) -> None:
        size = int(self.options["batch"])
        for first in range(0, self.count, size):
            items = [
                {"body": self.body, "tags": "TagA", "keys": f"k{i}"}
                for i in range(base + first, base + min(first + size, self.count))
            ]
            store.put_batch(TOPIC, items, queue_id=first // size % QUEUES)

    def _await_found(self, store: pyrocketstore.Store, base: int) -> None:
        low = store.message_store
        while low.dispatch_behind_bytes() > 0:
            time.sleep(POLL_S)
        last_key = f"k{base + self.count - 1}"
        while not low.query_message(TOPIC, last_key, 1, 0, LONG_MAX).phy_offsets:
            time.sleep(POLL_S)


class PutIntoOpen(StoreWork, Put):
    """Put into one store that stays open; its queues exist before the first round."""

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, {**options, "what": "put"})
        shutil.rmtree(path, ignore_errors=True)
        self.store = open_store(path)
        for queue_id in range(self._queues):
            self.store.put(TOPIC, self.body, queue_id=queue_id, keys=f"first{queue_id}")
        self.store.wait_dispatched()

    def unit(self) -> Result:
        store = self.store
        base, self._base = self._base, self._base + self.count
        before = self._total()
        clock = Clock()
        self._put_all(store, base)
        self._await_found(store, base)
        seconds, cpu = clock.stop()
        found = self._total() - before
        return Result(self.count, self.count * len(self.body), seconds, found, cpu)

    def _total(self) -> int:
        return sum(self.store.max_offset(TOPIC, queue_id) for queue_id in range(self._queues))


class NewTopics(Workload):
    """Put the first message of each of many topics into a new store, until all can be read.

    A store stays on disk until the worker ends: a file system reuses the numbers of files that were
    just deleted only after a long search.
    """

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        shutil.rmtree(path, ignore_errors=True)
        self._units = 0

    def unit(self) -> Result:
        self._units += 1
        path = self.path / str(self._units)
        with open_store(path) as store:
            put, body = store.put, self.body
            clock = Clock()
            for i in range(self.count):
                put(f"topic-{i}", body, tags="TagA")
            store.wait_dispatched()
            seconds, cpu = clock.stop()
            found = sum(store.max_offset(f"topic-{i}", 0) for i in range(self.count))
        return Result(self.count, self.count * len(self.body), seconds, found, cpu)


class EmptyCall(Put):
    """Run the loop of the work `loop` around methods that do nothing or only encode a record."""

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, {**options, "what": options["loop"]})
        spec = importlib.util.spec_from_file_location("empty_call", options["module"])
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._empty = module.EncodingStore() if "encode" in options else module.EmptyStore()

    def unit(self) -> Result:
        base, self._base = self._base, self._base + self.count
        clock = Clock()
        self._work(self._empty, base)
        seconds, cpu = clock.stop()
        return Result(self.count, 0, seconds, KEY_BASE + self._empty.calls - base, cpu)
