"""Single calls of the methods that read, and queries of absent keys and old windows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy

import pyrocketstore
from bench.workers.ours.stores import StoreWork
from bench.workers.workload import QUEUES, TOPIC, Clock, Result

PULL_COUNT = 32
MANY_COUNT = 1000


class SmallReads(StoreWork):
    """Call one read method with offsets, times or keys that follow a stride; `call` names it.

    The answer is the number of right results.
    """

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        self.stored = int(options["stored"])
        self.store = pyrocketstore.open(path, read_only="read_only" in options)
        store = self.store
        found = [list(store.read(TOPIC, queue_id)) for queue_id in range(QUEUES)]
        self._phy_offsets = [[m.phy_offset for m in messages] for messages in found]
        self._times = [[m.store_timestamp for m in messages] for messages in found]
        calls: dict[str, Callable[[Sequence[int]], int]] = {
            "pull": self._pull,
            "read": self._read,
            "time": self._time,
            "nearest": self._nearest,
            "batch": self._batch,
            "get": self._get,
            "get_many": self._get_many,
            "query": self._query,
            "query_many": self._query_many,
            "iterate": self._iterate,
        }
        self._call = calls[options["call"]]

    def unit(self) -> Result:
        numbers = self.draw(self.stored - PULL_COUNT * QUEUES)
        clock = Clock()
        answer = self._call(numbers)
        seconds, cpu = clock.stop()
        return Result(self.count, 0, seconds, answer, cpu)

    def _pull(self, numbers: Sequence[int]) -> int:
        get_message, answer = self.store.message_store.get_message, 0
        for number in numbers:
            result = get_message("g", TOPIC, number % QUEUES, number // QUEUES, 1)
            answer += result.message_count
            result.release()
        return answer

    def _read(self, numbers: Sequence[int]) -> int:
        read, answer = self.store.read, 0
        for number in numbers:
            at = number // QUEUES
            for message in read(TOPIC, number % QUEUES, start=at, stop=at + 1):
                answer += message.queue_offset == at
        return answer

    def _time(self, numbers: Sequence[int]) -> int:
        offset_at, times, answer = self.store.offset_at, self._times, 0
        for number in numbers:
            queue_id, at = number % QUEUES, number // QUEUES
            answer += offset_at(TOPIC, queue_id, times[queue_id][at]) <= at
        return answer

    def _nearest(self, numbers: Sequence[int]) -> int:
        find, times = self.store.message_store.get_offset_in_queue_by_time, self._times
        answer = 0
        for number in numbers:
            queue_id = number % QUEUES
            answer += find(TOPIC, queue_id, times[queue_id][number // QUEUES]) >= 0
        return answer

    def _batch(self, numbers: Sequence[int]) -> int:
        read_batch, answer = self.store.read_batch, 0
        for number in numbers:
            batch = read_batch(TOPIC, number % QUEUES, start=number // QUEUES, max_count=PULL_COUNT)
            answer += batch.num_rows == PULL_COUNT
        return answer

    def _get(self, numbers: Sequence[int]) -> int:
        get, phy_offsets, answer = self.store.get, self._phy_offsets, 0
        for number in numbers:
            at = number // QUEUES
            message = get(phy_offsets[number % QUEUES][at])
            answer += message is not None and message.queue_offset == at
        return answer

    def _get_many(self, numbers: Sequence[int]) -> int:
        phy_offsets, answer = self._phy_offsets, 0
        for first in range(0, len(numbers), MANY_COUNT):
            wanted = [phy_offsets[n % QUEUES][n // QUEUES] for n in numbers[first:][:MANY_COUNT]]
            found = self.store.get_many(wanted)
            answer += sum(message is not None for message in found)
        return answer

    def _query(self, numbers: Sequence[int]) -> int:
        query, answer = self.store.query, 0
        for number in numbers:
            answer += len(query(TOPIC, f"k{number}"))
        return answer

    def _query_many(self, numbers: Sequence[int]) -> int:
        answer = 0
        for first in range(0, len(numbers), MANY_COUNT):
            keys = [f"k{number}" for number in numbers[first : first + MANY_COUNT]]
            answer += int(numpy.count_nonzero(self.store.query_many(TOPIC, keys).phy_offset >= 0))
        return answer

    def _iterate(self, numbers: Sequence[int]) -> int:
        answer = 0
        most = self.stored // QUEUES
        while answer < self.count:
            stop = min(MANY_COUNT, most, self.count - answer)
            for _ in self.store.read(TOPIC, answer % QUEUES, start=0, stop=stop):
                answer += 1
        return answer


class KeyQueries(StoreWork):
    """Query a store of its own: absent keys, or one key of all messages in an old window."""

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        self._is_absent = options["what"] == "absent"
        settings: dict[str, Any] = {}
        count = 5_000 if "slots" in options else int(options.get("messages", "0"))  # smoke test
        if self._is_absent:
            settings["max_hash_slot_num"] = int(options["maxHashSlotNum"])
            settings["max_index_num"] = int(options["maxIndexNum"])
            count = int(options["files"]) * (settings["max_index_num"] - 1)
        shutil.rmtree(path, ignore_errors=True)
        with pyrocketstore.open(path, **settings) as store:
            for first in range(0, count, 10_000):
                numbers = range(first, min(first + 10_000, count))
                keys = [f"k{number}" if self._is_absent else "k" for number in numbers]
                store.put_many(TOPIC, [b"x" * 20] * len(keys), keys=keys)
        self.store = pyrocketstore.open(path, read_only="read_only" in options, **settings)
        files = self.store.message_store.index_service.files
        if self._is_absent and len(files) != int(options["files"]):
            raise SystemExit(f"{len(files)} index files, not {options['files']}")
        self._before = next(iter(self.store.read(TOPIC))).store_timestamp - 1000

    def unit(self) -> Result:
        query, answer = self.store.query, 0
        first, self._at = self._at, self._at + self.count
        clock = Clock()
        if self._is_absent:
            for number in range(first, first + self.count):
                answer += not query(TOPIC, f"absent{number}")
        else:
            for _ in range(self.count):
                answer += not query(TOPIC, "k", begin=10**11, end=self._before)
        seconds, cpu = clock.stop()
        return Result(self.count, 0, seconds, answer, cpu)
