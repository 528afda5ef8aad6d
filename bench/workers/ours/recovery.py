"""Scans of the log, and loads: from the log alone, after a clean stop, as after a kill."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.workers.ours.stores import fill, open_store
from bench.workers.workload import LONG_MAX, QUEUES, TOPIC, Clock, Result, Workload
from pyrocketstore import MessageStoreConfig
from pyrocketstore.commit_log._scan import scan_file
from pyrocketstore.config.message_store_config import detect_sizes
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.system.env import Env


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


class OpenKilled(Workload):
    """Open a store of `count` messages that was flushed and then killed, or with "clean" closed.

    The file sizes are derived from the files, as `pyrocketstore.open` does. With "keyless" the
    messages have neither a key nor a tag; with "read_only" the store is not changed.
    """

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        size = int(options.get("mappedFileSizeCommitLog", 1 << 30))
        with open_store(path, mapped_file_size_commit_log=size) as store:
            fill(store, self.body, range(self.count), plain="keyless" in options)

    def unit(self) -> Result:
        if "clean" not in self.options:
            (self.path / "abort").touch()
        read_only = "read_only" in self.options
        config = MessageStoreConfig().at_root(self.path)
        clock = Clock()
        config = detect_sizes(Env(), str(self.path), config, frozenset(), read_only=read_only)
        store = DefaultMessageStore(config, read_only=read_only)
        store.load()
        seconds, cpu = clock.stop()
        total = sum(store.get_max_offset_in_queue(TOPIC, queue_id) for queue_id in range(QUEUES))
        size = store.get_max_phy_offset() - store.get_min_phy_offset()
        store.shutdown()
        return Result(total, size, seconds, total, cpu)


def found_config(path: Path) -> MessageStoreConfig:
    """Return the settings that the files at `path` were written with."""
    return detect_sizes(Env(), str(path), MessageStoreConfig().at_root(path), set())
