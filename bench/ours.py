"""Worker of bench/run.py for pyrocketstore: runs rounds of one kind of work (see README.md).

    python bench/ours.py PATH what=NAME count=N [NAME=VALUE ...]

`cpus=1` pins the process to one processor.
"""

from __future__ import annotations

import asyncio
import importlib
import shutil
import subprocess
import sys
import threading
import time
import zlib
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # a build on PYTHONPATH comes first

import named_messages  # noqa: E402
import pyrocketstore  # noqa: E402
from delayed_work import Delayed  # noqa: E402
from flush_queues import FlushQueues  # noqa: E402
from following import Follow  # noqa: E402  (after pyrocketstore was found)
from killed import OpenKilled  # noqa: E402
from light_queues import LightQueues  # noqa: E402
from opening import OpenQueues, QueueRows  # noqa: E402
from poll_work import Poll  # noqa: E402
from pyrocketstore import MessageStoreConfig  # noqa: E402
from pyrocketstore.commit_log._scan import scan_file  # noqa: E402
from pyrocketstore.config.message_store_config import detect_sizes  # noqa: E402
from pyrocketstore.consume_queue.queue import ConsumeQueue  # noqa: E402
from pyrocketstore.index._entries import hashes_of_keys  # noqa: E402
from pyrocketstore.index._file import IndexFile  # noqa: E402
from pyrocketstore.message_store.default_message_store import DefaultMessageStore  # noqa: E402
from pyrocketstore.system.env import Env  # noqa: E402
from read_work import READ_WORKLOADS  # noqa: E402
from transact_work import Transactions  # noqa: E402
from workload import (  # noqa: E402
    BASE_MS,
    KEY_BASE,
    LONG_MAX,
    POLL_S,
    QUEUES,
    RECORD_SIZE,
    TAGS_CODE,
    TOPIC,
    Clock,
    Result,
    Workload,
    percentiles_us,
    serve,
    strides,
)

MANY_COUNT = 10_000
QUERY_MANY_COUNT = 1000
PULL_COUNT = 32
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
        settings: dict[str, Any] = {"disk_max_used_space_ratio": 95}
        if self.options.get("sync"):
            settings["flush_disk_type"] = pyrocketstore.FlushDiskType.SYNC_FLUSH
        settings["unique_key"] = "unique" in self.options
        keep = "keep" in self.options
        base, self._base = self._base, self._base + self.count * (not keep)
        with pyrocketstore.open(self.path, **settings) as store:
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
        named_messages.put_all(store, self.body, self._queues, named, base, self.count)

    def _put_many_named(self, store: pyrocketstore.Store, base: int) -> None:
        named, end = self.options["named"], base + self.count
        for first in range(base, end, MANY_COUNT):
            count = min(MANY_COUNT, end - first)
            named_messages.put_many(store, self.body, self._queues, named, first, count)

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


class PutIntoOpen(Put):
    """Put into one store that stays open; its queues exist before the first round."""

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, {**options, "what": "put"})
        shutil.rmtree(path, ignore_errors=True)
        self._store = pyrocketstore.open(path, disk_max_used_space_ratio=95)
        for queue_id in range(self._queues):
            self._store.put(TOPIC, self.body, queue_id=queue_id, keys=f"first{queue_id}")
        self._store.wait_dispatched()

    def unit(self) -> Result:
        store = self._store
        base, self._base = self._base, self._base + self.count
        before = self._total()
        clock = Clock()
        self._put_all(store, base)
        self._await_found(store, base)
        seconds, cpu = clock.stop()
        found = self._total() - before
        return Result(self.count, self.count * len(self.body), seconds, found, cpu)

    def _total(self) -> int:
        return sum(self._store.max_offset(TOPIC, queue_id) for queue_id in range(self._queues))

    def close(self) -> None:
        self._store.close()


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
        with pyrocketstore.open(path, disk_max_used_space_ratio=95) as store:
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
        sys.path.insert(0, options["module"])
        module = importlib.import_module("empty_call")
        self._empty = module.EncodingStore() if "encode" in options else module.EmptyStore()

    def unit(self) -> Result:
        base, self._base = self._base, self._base + self.count
        clock = Clock()
        self._work(self._empty, base)
        seconds, cpu = clock.stop()
        return Result(self.count, 0, seconds, KEY_BASE + self._empty.calls - base, cpu)


class Scan(Workload):
    """Scan every record of the log with its CRC, on `threads` threads, one file each."""

    timed_whole = True

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        self._env = Env()
        log = path / "commitlog"
        self._files = [(str(log / name), int(name)) for name in self._env.listdir(str(log))]
        self._pool = ThreadPoolExecutor(int(options["threads"]))

    def unit(self) -> Result:
        start = time.perf_counter()
        ends = list(self._pool.map(self._scan_one, self._files))
        seconds = time.perf_counter() - start
        count = sum(count for _, count in ends)
        return Result(count, sum(position for position, _ in ends), seconds, count)

    def _scan_one(self, file: tuple[str, int]) -> tuple[int, int]:
        path, file_from_offset = file
        stop = self._env.size(path)
        _, position, count, _ = scan_file(self._env, path, file_from_offset, 0, stop, True)
        return position, count

    def close(self) -> None:
        self._pool.shutdown()


class Recover(Workload):
    """Run load() as after a crash, without index; "rebuild" also without queues."""

    def unit(self) -> Result:
        if self.options["what"] == "rebuild":
            shutil.rmtree(self.path / "consumequeue", ignore_errors=True)
        shutil.rmtree(self.path / "index", ignore_errors=True)
        (self.path / "checkpoint").unlink(missing_ok=True)
        (self.path / "abort").touch()
        store = DefaultMessageStore(found_config(self.path))
        clock = Clock()
        store.load()
        seconds, cpu = clock.stop()
        total = sum(store.get_max_offset_in_queue(TOPIC, queue_id) for queue_id in range(QUEUES))
        size = store.get_max_phy_offset() - store.get_min_phy_offset()
        for key in (f"k{number}" for number in (0, total - 1)):
            if len(store.query_message(TOPIC, key, 1, 0, LONG_MAX).phy_offsets) != 1:
                raise SystemExit(f"query {key}: no message after load()")
        store.shutdown()
        return Result(total, size, seconds, total, cpu)


class Queue(Workload):
    """Append units to a new consume queue: one call each, or with "cq_arrays" in columns."""

    def unit(self) -> Result:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        size = MessageStoreConfig().mapped_file_size_consume_queue
        queue = ConsumeQueue(TOPIC, 0, str(self.path), size, Env())
        if self.options["what"] == "cq":
            put = queue.put_message_position_info
            clock = Clock()
            for i in range(self.count):
                put(i * RECORD_SIZE, RECORD_SIZE, TAGS_CODE, i)
        else:
            offsets = numpy.arange(self.count, dtype=numpy.int64) * RECORD_SIZE
            sizes = numpy.full(self.count, RECORD_SIZE, dtype=numpy.int32)
            tags = numpy.full(self.count, TAGS_CODE, dtype=numpy.int64)
            clock = Clock()
            queue.put_units(offsets, sizes, tags)
        seconds, cpu = clock.stop()
        units = queue.get_max_offset_in_queue()
        queue.destroy()
        return Result(self.count, 20 * units, seconds, units, cpu)


class Index(Workload):
    """Put keys into a new index file, or select keys from one with `stored` keys."""

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        self._slots = int(options.get("slots", "5000000"))
        self._indexes = int(options.get("indexes", "20000000"))
        self._at = 0
        path.mkdir(parents=True, exist_ok=True)
        if options["what"] != "index_put":
            self._stored = int(options["stored"])
            self._filled = self._create()
            keys, columns = self._keys(self._stored)
            self._filled.put_keys(TOPIC, keys, *columns)

    def unit(self) -> Result:
        return self._fill() if self.options["what"] == "index_put" else self._select()

    def _create(self) -> IndexFile:
        path = self.path / "20260101010101000"
        path.unlink(missing_ok=True)
        return IndexFile(Env(), str(path), self._slots, self._indexes, create=True)

    @staticmethod
    def _keys(count: int) -> tuple[list[str], tuple[numpy.ndarray, numpy.ndarray]]:
        """Return new keys and their columns (physical offsets, store times)."""
        numbers = numpy.arange(count, dtype=numpy.int64)
        columns = (numbers * RECORD_SIZE, BASE_MS + numbers // 10)
        return [f"k{i}" for i in range(count)], columns

    def _fill(self) -> Result:
        keys, columns = self._keys(self.count)
        index = self._create()
        clock = Clock()
        index.put_keys(TOPIC, keys, *columns)
        seconds, cpu = clock.stop()
        last = index.end_phy_offset
        index.destroy()
        return Result(self.count, 20 * self.count, seconds, last, cpu)

    def _select(self) -> Result:
        numbers = strides(self._at, self._stored, self.count)
        self._at = numbers[-1]
        keys = [f"T#k{number}" for number in numbers]
        select = self._filled.select_phy_offset
        clock = Clock()
        hits = 0
        if self.options["what"] == "index_select_many":
            found, _ = self._filled.select_hashes(hashes_of_keys(keys), 32, 0, LONG_MAX)
            hits, keys = len(found), []
        for key in keys:
            hits += len(select(key, 32, 0, LONG_MAX))
        seconds, cpu = clock.stop()
        return Result(self.count, 0, seconds, hits, cpu)


class Reading(Workload):
    """Work on an open store with `stored` messages."""

    timed_whole = True

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        self.stored = int(options["stored"])
        self.store = pyrocketstore.open(path, disk_max_used_space_ratio=95)

    def close(self) -> None:
        self.store.close()


class Get(Reading):
    """Read all queues as message objects; copy the body, read tags, keys and one property."""

    def unit(self) -> Result:
        count = size = answer = 0
        start = time.perf_counter()
        for queue_id in range(QUEUES):
            for message in self.store.read(TOPIC, queue_id):
                count += 1
                size += len(message.body)
                answer += len(message.tags) + len(message.keys)
                answer += len(message.properties["TAGS"])
        return Result(count, size, time.perf_counter() - start, answer)


class CheckedGet(Reading):
    """Read as Get does, and compare each body with its CRC, as the peers of bench/peers.py do.

    A loop of its own: Get must not spend time on a test for each message.
    """

    def unit(self) -> Result:
        count = size = answer = 0
        start = time.perf_counter()
        for queue_id in range(QUEUES):
            for message in self.store.read(TOPIC, queue_id):
                body = message.body
                if zlib.crc32(body) & 0x7FFFFFFF != message.body_crc:
                    raise SystemExit(f"the body at physical offset {message.phy_offset} is damaged")
                count += 1
                size += len(body)
                answer += len(message.tags) + len(message.keys)
                answer += len(message.properties["TAGS"])
        return Result(count, size, time.perf_counter() - start, answer)


class GetColumns(Reading):
    """Read all queues as columns; with "bodies" the body is one of them."""

    COLUMNS = (
        "queue_offset",
        "phy_offset",
        "size",
        "tags",
        "keys",
        "born_timestamp",
        "store_timestamp",
    )

    def unit(self) -> Result:
        columns = [*self.COLUMNS, "body"] if self.options.get("bodies") else [*self.COLUMNS]
        count = size = 0
        start = time.perf_counter()
        for queue_id in range(QUEUES):
            at, end = 0, self.store.max_offset(TOPIC, queue_id)
            while at < end:
                batch = self.store.read_batch(TOPIC, queue_id, start=at, columns=columns)
                count += batch.num_rows
                if "body" in columns:
                    size += binary_bytes(batch.column("body"))
                at = int(batch.schema.metadata[b"next_offset"])
        return Result(count, size, time.perf_counter() - start, count)


class Querying(Reading):
    """Query keys: "k" and the number of a message."""

    timed_whole = False

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        self._at = 0

    def draw(self) -> list[int]:
        """Return the numbers for one unit of work."""
        numbers = strides(self._at, self.stored, self.count)
        self._at = numbers[-1]
        return numbers


class Query(Querying):
    """Query keys one by one; read body, tags, keys and one property of each hit.

    "query_checked" also compares each body with its CRC, as the peers of bench/peers.py do.
    """

    def unit(self) -> Result:
        answer = size = 0
        query, checked = self.store.query, self.options["what"] == "query_checked"
        numbers = self.draw()
        clock = Clock()
        for number in numbers:
            key = f"k{number}"
            for message in query(TOPIC, key):
                body = message.body
                if checked and zlib.crc32(body) & 0x7FFFFFFF != message.body_crc:
                    raise SystemExit(f"the body at physical offset {message.phy_offset} is damaged")
                size += len(body)
                answer += len(message.tags) + len(message.properties["TAGS"])
                answer += message.keys == key
        seconds, cpu = clock.stop()
        return Result(self.count, size, seconds, answer, cpu)


class QueryMany(Querying):
    """Query a thousand keys per call; compare queue and queue offset of each hit."""

    def unit(self) -> Result:
        hits = 0
        drawn = self.draw()
        clock = Clock()
        for first in range(0, self.count, QUERY_MANY_COUNT):
            numbers = drawn[first : first + QUERY_MANY_COUNT]
            found = self.store.query_many(TOPIC, [f"k{number}" for number in numbers])
            of_hits = numpy.array(numbers)[found.key_index]
            right = found.queue_id == of_hits % QUEUES
            right &= found.queue_offset == of_hits // QUEUES
            right &= found.phy_offset >= 0
            hits += int(numpy.count_nonzero(right))
        seconds, cpu = clock.stop()
        return Result(self.count, 0, seconds, hits, cpu)


class QueryManyMessages(Querying):
    """Query as QueryMany does, then get the messages of the hits and read them as Query does."""

    def unit(self) -> Result:
        answer = size = 0
        drawn = self.draw()
        clock = Clock()
        for first in range(0, self.count, QUERY_MANY_COUNT):
            keys = [f"k{number}" for number in drawn[first : first + QUERY_MANY_COUNT]]
            found = self.store.query_many(TOPIC, keys)
            messages = self.store.get_many(found.phy_offset)
            for i, message in zip(found.key_index.tolist(), messages, strict=True):
                size += len(message.body)
                answer += len(message.tags) + len(message.properties["TAGS"])
                answer += message.keys == keys[i]
        seconds, cpu = clock.stop()
        return Result(self.count, size, seconds, answer, cpu)


class Import(Workload):
    """Import the module `module` and use the names `names` in new interpreters."""

    def unit(self) -> Result:
        module, names = self.options["module"], self.options.get("names", "").split(",")
        uses = "; ".join(f"{module}.{name}" for name in names if name)
        code = (
            "import time; start = time.perf_counter(), time.process_time()\n"
            f"import {module}; {uses}\n"
            "print(time.perf_counter() - start[0], time.process_time() - start[1])"
        )
        times = []
        for _ in range(self.count):
            command = [sys.executable, "-c", code]
            run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            times.append([float(word) for word in run.stdout.split()])
        seconds, cpu = (sum(column) for column in zip(*times, strict=True))
        return Result(self.count, 0, seconds, len(times), cpu)


WORKLOADS: dict[str, type[Workload]] = {
    "import": Import,
    "deliver": Delayed,
    "lateness": Delayed,
    "poll": Poll,
    "follow": Follow,
    "open_again": Follow,
    "put": Put,
    "put_many": Put,
    "put_named": Put,
    "put_many_named": Put,
    "batch": Put,
    "batch_items": Put,
    "latency": Put,
    "put_new": NewTopics,
    "aput": Put,
    "put_open": PutIntoOpen,
    "flush_queues": FlushQueues,
    "empty_call": EmptyCall,
    "scan": Scan,
    "rebuild": Recover,
    "recover": Recover,
    "open_killed": OpenKilled,
    "open_queues": OpenQueues,
    "queue_rows": QueueRows,
    "open_light": LightQueues,
    "put_light": LightQueues,
    "transact": Transactions,
    "cq": Queue,
    "cq_arrays": Queue,
    "index_put": Index,
    "index_select": Index,
    "index_select_many": Index,
    "get": Get,
    "get_checked": CheckedGet,
    "get_columns": GetColumns,
    "query": Query,
    "query_checked": Query,
    "query_many": QueryMany,
    "query_many_messages": QueryManyMessages,
    **READ_WORKLOADS,
}


def binary_bytes(column: Any) -> int:
    """Return the size in bytes of an Arrow column's values, without its offsets."""
    wide = str(column.type).startswith("large")
    offsets = numpy.frombuffer(column.buffers()[1], numpy.int64 if wide else numpy.int32)
    return int(offsets[column.offset + len(column)] - offsets[column.offset])


def found_config(path: Path) -> MessageStoreConfig:
    """Return the settings that the files at `path` were written with."""
    return detect_sizes(Env(), str(path), MessageStoreConfig().at_root(path), set())


if __name__ == "__main__":
    serve(WORKLOADS, *sys.argv[1:])
