"""Stores for the tests of cleaning: small files, and an Env whose clock and disks a test sets."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from pyrocketstore import DefaultMessageStore, MessageExtBrokerInner, MessageStoreConfig
from pyrocketstore.record._message import properties_to_string
from pyrocketstore.system.env import Env
from support.sizes import TINY_SIZES

HOUR_MS = 3_600_000
LOG_SIZE = TINY_SIZES["mapped_file_size_commit_log"]


class SetEnv(Env):
    """The real files; the clock runs `ahead_ms` ahead, and disks are as full as `used` says.

    `used` maps the end of a path to percents, "" being all others; `hour` is the local hour.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ms = 0
        self.hour = 12
        self.used: dict[str, int] = {"": 10}
        self.slept: list[float] = []

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.ahead_ms * 1_000_000

    def local_time(self, ms: int | None = None) -> time.struct_time:
        return time.struct_time((2026, 1, 1, self.hour, 0, 0, 0, 1, 0))

    def disk_usage(self, path: str) -> tuple[int, int, int]:
        ends = [end for end in self.used if path.endswith(end)]
        percent = self.used[max(ends, key=len)]
        return 1000, percent * 10, 1000 - percent * 10

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def config_of(path: Path, **settings: object) -> MessageStoreConfig:
    return MessageStoreConfig().at_root(path).replace(**{**TINY_SIZES, **settings})


@contextlib.contextmanager
def opened(path: Path, env: Env | None = None, **settings: object) -> Iterator[DefaultMessageStore]:
    store = DefaultMessageStore(config_of(path, **settings), env=env)
    store.load()
    store.start()
    try:
        yield store
    finally:
        store.shutdown()


def message(body: bytes, topic: str = "t", queue_id: int = 0, key: str | None = None):
    properties = {} if key is None else {"KEYS": key}
    return MessageExtBrokerInner(
        topic,
        body,
        queue_id,
        properties=properties,
        properties_string=properties_to_string(properties),
    )


def fill(store: DefaultMessageStore, count: int, topic: str = "t", start: int = 0) -> None:
    """About 14 messages a file of the log, each with a key."""
    for i in range(start, start + count):
        result = store.put_message(message(b"%04d" % i + bytes(150), topic, key=f"k{i}"))
        assert result.status_code == 0, (result.status, result.error)
    store.wait_dispatched()


def log_files(path: Path) -> list[int]:
    return sorted(int(p.name) for p in (path / "commitlog").iterdir())


def log_files_and_next(store: DefaultMessageStore, path: Path) -> list[int]:
    """The files of the log once the file after the last used one, which is made ahead, is there."""
    following = store.commit_log.mapped_file_queue.mapped_files[-1].file_from_offset + LOG_SIZE
    deadline = time.monotonic() + 30
    while following not in (files := log_files(path)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return files


def age(path: Path, hours: float, count: int | None = None) -> None:
    """Let the first `count` files of the log be `hours` older."""
    for file in sorted((path / "commitlog").iterdir())[:count]:
        then = time.time() - hours * 3600
        os.utime(file, (then, then))
