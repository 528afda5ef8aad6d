"""Parts of the engine by themselves: consume queue, index file, import of the package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy

from bench.paths import ROOT
from bench.workers.workload import (
    BASE_MS,
    LONG_MAX,
    RECORD_SIZE,
    TAGS_CODE,
    TOPIC,
    Clock,
    Result,
    Workload,
)
from pyrocketstore import MessageStoreConfig
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.index._entries import hashes_of_keys
from pyrocketstore.index._file import IndexFile
from pyrocketstore.system.env import Env


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
        keys = [f"T#k{number}" for number in self.draw(self._stored)]
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
