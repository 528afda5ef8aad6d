"""The time from a put to the poll that returns the message."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import numpy

from bench.workers.ours.stores import open_store
from bench.workers.workload import QUEUES, TOPIC, Clock, Result, Workload, percentiles_us


class Poll(Workload):
    """Put `count` messages at `pace` a second while another thread polls.

    The latency is the time from the call of `put` to the return of the `poll` that has the message.
    """

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        shutil.rmtree(path, ignore_errors=True)
        self._apart = 1 / int(options["pace"])
        self._store = open_store(path)
        self._consumer = self._store.consumer("bench", TOPIC)

    def unit(self) -> Result:
        began, ended = numpy.zeros((2, self.count), numpy.int64)
        polling = threading.Thread(target=self._poll, args=(ended,))
        clock, start = Clock(), time.perf_counter()
        polling.start()
        for number in range(self.count):
            time.sleep(max(0.0, start + number * self._apart - time.perf_counter()))
            began[number] = time.perf_counter_ns()
            self._store.put(TOPIC, self.body, queue_id=number % QUEUES, flag=number)
        polling.join()
        seconds, cpu = clock.stop()
        answer = int(numpy.count_nonzero(ended))
        return Result(self.count, 0, seconds, answer, cpu, percentiles_us(ended - began))

    def _poll(self, ended: numpy.typing.NDArray[numpy.int64]) -> None:
        left = self.count
        while left:
            messages = self._consumer.poll()
            now = time.perf_counter_ns()
            for message in messages:
                ended[message.flag] = now
            left -= len(messages)

    def close(self) -> None:
        self._consumer.close()
        self._store.close()
        shutil.rmtree(self.path)
