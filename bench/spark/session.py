"""Spark sessions, alternating rounds, and processor time for the benchmarks of Spark."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from bench.paths import PYTHON_PATH

TICKS = os.sysconf("SC_CLK_TCK")


class Round(NamedTuple):
    """Seconds of one round, and processor seconds of the processes that took part."""

    seconds: float
    driver: float
    python: float
    java: float

    @property
    def cpu(self) -> float:
        """Return the processor seconds of all processes."""
        return self.driver + self.python + self.java


def session(cores: int) -> SparkSession:
    """Return a Spark session on so many cores of this machine."""
    os.environ |= {"PYTHONPATH": PYTHON_PATH, "PYSPARK_PYTHON": sys.executable}
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
    }
    return SparkSession.builder.master(f"local[{cores}]").config(map=settings).getOrCreate()


def noop(frame: DataFrame) -> None:
    """Compute all rows and discard them."""
    frame.write.format("noop").mode("overwrite").save()


def cpu_seconds() -> tuple[float, float, float]:
    """Return the processor seconds of this process, of Python workers below it, and of the JVM.

    Children that have ended count for their parent.
    """
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    java = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            front, _, back = path.read_text().rpartition(")")
        except OSError:  # the process has ended
            continue
        fields, pid = back.split(), int(path.parent.name)
        parents[pid], spent[pid] = int(fields[1]), sum(map(int, fields[11:15])) / TICKS
        if front.partition("(")[2].startswith("java"):
            java.add(pid)
    below = {os.getpid()}
    while fresh := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= fresh
    workers = below - java - {os.getpid()}
    of_workers = sum(spent.get(pid, 0.0) for pid in workers)
    return spent[os.getpid()], of_workers, sum(spent[pid] for pid in below & java)


def rounds(
    work: Mapping[str, Callable[[], None]],
    pairs: int,
    before: Callable[[], None] = lambda: None,
    after: Callable[[str, int], None] = lambda name, number: None,
) -> dict[str, list[Round]]:
    """Run each work in turn, `pairs` times after one warm-up round; neither callback is timed."""
    found: dict[str, list[Round]] = {name: [] for name in work}
    for number in range(pairs + 1):
        for name, call in work.items():
            before()
            spent, start = cpu_seconds(), time.perf_counter()
            call()
            seconds = time.perf_counter() - start
            if number:
                parts = [end - begin for begin, end in zip(spent, cpu_seconds(), strict=True)]
                found[name].append(Round(seconds, *parts))
            after(name, number)
    return found


def speedups(one: list[Round], other: list[Round]) -> list[float]:
    """Return for each pair of rounds how many times as fast `one` is as `other`."""
    return [b.seconds / a.seconds for a, b in zip(one, other, strict=True)]


def median_seconds(each: list[Round]) -> float:
    """Return the median duration of the rounds."""
    return statistics.median(one.seconds for one in each)
