"""Base of the workers in Python: rounds of one kind of work on request (README.md, "Protocol")."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy
import numpy.typing as npt

TOPIC = "T"
QUEUES = 4
RECORD_SIZE = 1100
TAGS_CODE = 12345
BASE_MS = 1_700_000_000_000
STRIDE = 7919
LONG_MAX = (1 << 63) - 1
POLL_S = 0.001
#: Messages that are put between two reads of a reader that follows.
NEW_COUNT = 1_000
#: Number of the first key: all keys have the same number of digits, all records the same size.
KEY_BASE = 100_000_000
#: Reported percentiles of the latencies.
PERCENTILES = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}


class Result(NamedTuple):
    """Measurements of the timed part of one unit of work, as Workload.Result on the Java side.

    `cpu_seconds` is the processor time of the whole process, negative if not measured;
    `latencies_us` has the keys of PERCENTILES; `log` is the size in bytes of the records that the
    queues refer to, negative if not measured.
    """

    count: int
    size: int
    seconds: float
    answer: int
    cpu_seconds: float = -1.0
    latencies_us: Mapping[str, float] = {}
    log: int = -1


class Clock:
    """Seconds and processor seconds of this process since construction."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._start = time.perf_counter()

    def stop(self) -> tuple[float, float]:
        """Return (seconds, processor seconds)."""
        return time.perf_counter() - self._start, time.process_time() - self._cpu


class Workload:
    """One kind of work, in units of equal size; part of each unit is timed.

    `timed_whole`: the whole unit is timed, and its processor time is that of the whole unit.
    """

    timed_whole = False

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        self.path = path
        self.options = options
        self.count = int(options["count"])
        self.body = Random(1).randbytes(int(options.get("body", "1024")))
        self._at = 0

    def draw(self, stored: int) -> list[int]:
        """Return the numbers of `count` of the `stored` messages, the same as on the Java side.

        Java computes each number in the timed loop, in about a nanosecond; call this before it.
        """
        numbers = [(self._at + i * STRIDE) % stored for i in range(1, self.count + 1)]
        self._at = numbers[-1]
        return numbers

    def unit(self) -> Result:
        """Run one unit of work."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the resources that the rounds share."""


def percentiles_us(nanoseconds: npt.NDArray[numpy.int64]) -> dict[str, float]:
    """Return the percentiles of measured times."""
    found = numpy.percentile(nanoseconds, list(PERCENTILES.values()), method="higher")
    return dict(zip(PERCENTILES, (found / 1000).tolist(), strict=True))


def round_of(workload: Workload, least_seconds: float) -> dict[str, Any]:
    """Repeat the unit of work until its timed parts add up to `least_seconds`."""
    results: list[Result] = []
    while not results or sum(result.seconds for result in results) < least_seconds:
        start = time.process_time()
        result = workload.unit()
        if workload.timed_whole:
            result = result._replace(cpu_seconds=time.process_time() - start)
        results.append(result)
    answer: dict[str, Any] = {
        "count": sum(result.count for result in results),
        "bytes": sum(result.size for result in results),
        "seconds": sum(result.seconds for result in results),
        "units": len(results),
        "answer": results[-1].answer,
    }
    if results[0].cpu_seconds >= 0:
        answer["cpu"] = sum(result.cpu_seconds for result in results)
    if results[-1].log >= 0:
        answer["log"] = results[-1].log
    for name in results[0].latencies_us:
        values = [result.latencies_us[name] for result in results]
        answer[name] = max(values) if name == "max" else statistics.median(values)
    return answer


def serve(workloads: Mapping[str, type[Workload]], path: str, *words: str) -> None:
    """Answer requests for rounds until the input ends."""
    options = dict(word.split("=", 1) for word in words)
    if "cpus" in options:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(options["cpus"])])
    workload = workloads[options["what"]](Path(path), options)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        print(json.dumps(round_of(workload, float(line.split()[1]))), flush=True)
    workload.close()
