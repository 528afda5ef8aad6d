"""Reads of a whole store in queue order, and queries by key."""

from __future__ import annotations

import time
import zlib
from pathlib import Path
from typing import Any

import numpy

from bench.workers.ours.stores import StoreWork, open_store
from bench.workers.workload import QUEUES, TOPIC, Clock, Result

QUERY_MANY_COUNT = 1000


class Reading(StoreWork):
    """Work on an open store with `stored` messages."""

    timed_whole = True

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        self.stored = int(options["stored"])
        self.store = open_store(path)


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
    """Read as Get does, and compare each body with its CRC, as the peers of workers/peers.py do.

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


class Query(Querying):
    """Query keys one by one; read body, tags, keys and one property of each hit.

    "query_checked" also compares each body with its CRC, as the peers of workers/peers.py do.
    """

    def unit(self) -> Result:
        answer = size = 0
        query, checked = self.store.query, self.options["what"] == "query_checked"
        numbers = self.draw(self.stored)
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
        drawn = self.draw(self.stored)
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
        drawn = self.draw(self.stored)
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


def binary_bytes(column: Any) -> int:
    """Return the size in bytes of an Arrow column's values, without its offsets."""
    wide = str(column.type).startswith("large")
    offsets = numpy.frombuffer(column.buffers()[1], numpy.int64 if wide else numpy.int32)
    return int(offsets[column.offset + len(column)] - offsets[column.offset])
