"""Delayed messages."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy

import pyrocketstore
from bench.workers.ours.stores import open_store
from bench.workers.workload import QUEUES, TOPIC, Clock, Result, Workload, percentiles_us

PUT_COUNT = 10_000


class Delayed(Workload):
    """Deliver `count` delayed messages, of the only level of `messageDelayLevel`, in seconds.

    "deliver": they were put and became due while the store was closed; the time goes from the
    opening to the last delivery. "lateness": they are put at `pace` a second; the latency is the
    time by which the store time of a delivery is later than it should be, the ms begun counted.
    """

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        self._level = options["messageDelayLevel"]
        self._delay_ms = int(self._level.removesuffix("s")) * 1000

    def _open(self) -> pyrocketstore.Store:
        return open_store(self.path, message_delay_level=self._level)

    def unit(self) -> Result:
        shutil.rmtree(self.path, ignore_errors=True)
        result = self._deliver() if self.options["what"] == "deliver" else self._lateness()
        shutil.rmtree(self.path)
        return result

    def _deliver(self) -> Result:
        with self._open() as store:
            for first in range(0, self.count, PUT_COUNT):
                numbers = range(first, min(first + PUT_COUNT, self.count))
                bodies, ids = [self.body] * len(numbers), [number % QUEUES for number in numbers]
                store.put_many(TOPIC, bodies, queue_ids=ids, delay_levels=1)
            last = time.time()
            if _delivered(store):
                raise RuntimeError("the puts took longer than the delay")
        time.sleep(max(0.0, last + self._delay_ms / 1000 - time.time()))
        clock = Clock()
        with self._open() as store:
            _await(store, self.count)
            seconds, cpu = clock.stop()
            answer = _delivered(store)
        return Result(self.count, self.count * len(self.body), seconds, answer, cpu)

    def _lateness(self) -> Result:
        apart = 1 / int(self.options["pace"])
        with self._open() as store:
            clock, began = Clock(), time.perf_counter()
            for number in range(self.count):
                time.sleep(max(0.0, began + number * apart - time.perf_counter()))
                store.put(TOPIC, self.body, queue_id=number % QUEUES, delay_level=1)
            _await(store, self.count)
            seconds, cpu = clock.stop()
            late_ms = [
                message.store_timestamp - message.born_timestamp - self._delay_ms + 1
                for queue_id in range(QUEUES)
                for message in store.read(TOPIC, queue_id)
            ]
        nanoseconds = numpy.array(late_ms, numpy.int64) * 1_000_000
        latencies = percentiles_us(nanoseconds)
        return Result(self.count, 0, seconds, len(late_ms), cpu, latencies)


def _delivered(store: pyrocketstore.Store) -> int:
    return sum(store.max_offset(TOPIC, queue_id) for queue_id in range(QUEUES))


def _await(store: pyrocketstore.Store, count: int) -> None:
    while _delivered(store) < count:
        time.sleep(0.001)
