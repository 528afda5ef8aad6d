"""What a worker of run.py is: rounds of one kind of work when told (README.md, "Protocol")."""

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
#: Of the first key that is put: all have as many digits, so that all records have one size.
KEY_BASE = 100_000_000
#: Of the latencies of a unit of work.
PERCENTILES = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}


def strides(last: int, stored: int, count: int) -> list[int]:
    """The numbers of the messages that Java's side asks for after `last`, too. Java draws each in a
    nanosecond; in Python they are drawn before the time begins."""
    return [(last + i * STRIDE) % stored for i in range(1, count + 1)]


class Result(NamedTuple):
    """What one unit of work did in its timed part; see Workload.Result of the Java side.

    `cpu_seconds` is of the whole process, negative where nobody asked; `latencies_us` has the
    names of PERCENTILES; `log` is the bytes of the records that the queues name, negative where
    nobody looked.
    """

    count: int
    size: int
    seconds: float
    answer: int
    cpu_seconds: float = -1.0
    latencies_us: Mapping[str, float] = {}
    log: int = -1


class Clock:
    """Seconds and processor seconds of this process since it was made."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._start = time.perf_counter()

    def stop(self) -> tuple[float, float]:
        """(seconds, processor seconds) since then."""
        return time.perf_counter() - self._start, time.process_time() - self._cpu


class Workload:
    """One kind of work, cut into units of equal size; only a part of each is timed.

    `timed_whole` says that a unit has no other part, so that its processor time is the whole's.
    """

    timed_whole = False

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        self.path = path
        self.options = options
        self.count = int(options["count"])
        self.body = Random(1).randbytes(int(options.get("body", "1024")))

    def unit(self) -> Result:
        """Do one unit of work."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what the rounds shared."""


def percentiles_us(nanoseconds: npt.NDArray[numpy.int64]) -> dict[str, float]:
    """The percentiles of measured times."""
    found = numpy.percentile(nanoseconds, list(PERCENTILES.values()), method="higher")
    return dict(zip(PERCENTILES, (found / 1000).tolist(), strict=True))


def round_of(workload: Workload, least_seconds: float) -> dict[str, Any]:
    """Repeat the unit of work until its timed part took `least_seconds`."""
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
    """Answer rounds until there are no more."""
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
