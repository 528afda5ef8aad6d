"""A store on a simulated device whose power is cut around a removal, and the ways in which files of
the log are removed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import device as simulated
from device import Captured, Device
from fault_programs import NEVER, open_store
from journal import SETTINGS
from pyrocketstore.arguments.scalars import INT64_MAX
from survivors import Choice, image_of, write

QUIET: dict[str, Any] = {
    **SETTINGS,
    "flush_interval_commit_log": NEVER,
    "flush_interval_consume_queue": NEVER,
    "clean_resource_interval": NEVER,
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 200,
}
LMQ = {"enable_lmq": True, "enable_multi_dispatch": True}
EXT = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 1 << 12}
#: Deletions are durable, pages are not.
DELETED = Choice("old", "new", "new")
#: Neither is.
NOTHING = Choice("old", "old", "old")
KILLED = Choice("new", "new", "new")

#: Directories of a log in several paths, below the device; the last one gets no new files then.
SEVERAL_PATHS = {"store_path_commit_log": ("a", "b", "c")}
READ_ONLY_PATH = {
    "store_path_commit_log": ("a", "b"),
    "read_only_commit_log_store_paths": ("c",),
}
_PATH_SETTINGS = ("store_path_commit_log", "read_only_commit_log_store_paths")


def open_at(path: Path, settings: dict[str, Any], device: Device | None, **more: Any) -> Any:
    """Open the store below `path`; paths of the log in `settings` are names below it."""
    places = {
        name: ",".join(f"{path}/{part}" for part in settings[name])
        for name in _PATH_SETTINGS
        if name in settings
    }
    return open_store(path, settings | places, device, **more)


class Cut:
    """A store on a device, and what a power cut leaves of it."""

    def __init__(self, path: Path, settings: dict[str, Any], **more: Any) -> None:
        self.settings = QUIET | settings
        self.path = path
        (path / "root").mkdir()
        self.device = Device(path / "root", "of one test")
        self._images = 0
        self.open(**more)

    def open(self, **more: Any) -> None:
        """Open the store."""
        self.store = open_at(self.path / "root", self.settings, self.device, **more)

    def open_again(self, settings: dict[str, Any] | None = None) -> None:
        """Close the store, and open it again, with further settings."""
        self.store.close()
        self.settings = self.settings | (settings or {})
        self.open()

    def kill(self) -> None:
        """Kill the process; what the page cache has is not durable by that."""
        killed = self.device.capture("kill")
        self.store.close()
        path = self.path / "second"
        path.mkdir()
        write(image_of(killed, KILLED, random.Random(0)), path / "root")
        self.device.release()
        self.path, self.device = path, Device(path / "root", "of one test")
        self.device.inherit(killed)

    def power(self, choice: Choice) -> Any:
        """Cut the power, and return the store as the next opening has it."""
        moment = self.device.capture("cut")
        self.end()
        path = self.image_path()
        self.write(moment, choice, path)
        return open_at(path, self.settings, None)

    def end(self) -> None:
        """Close the store and the device."""
        self.store.close()
        self.device.release()

    def image_path(self) -> Path:
        """Return a path for the next image."""
        self._images += 1
        return self.path / f"image-{self._images}"

    def write(self, moment: Captured, choice: Choice, path: Path) -> None:
        """Write an image of a moment."""
        write(image_of(moment, choice, random.Random(0)), path)

    def moments(self, calls: frozenset[str], remove: Callable[[], object]) -> list[Captured]:
        """Remove something; return the moments before the named calls of it, and its end."""
        device = self.device
        device.rate, device.captures_max = 1.0, 1 << 20
        frequent, simulated.FREQUENT_RATE = simulated.FREQUENT_RATE, 0.0
        device._write_back = lambda: None  # type: ignore[method-assign]  # the kernel is lazy
        try:
            remove()
        finally:
            simulated.FREQUENT_RATE = frequent
            captures = device.take_captures()
            device.captures_max = 0
        return [*(one for one in captures if one.call in calls), device.capture("end")]

    def fill(self, count: int = 1) -> None:
        """Put messages of another topic until `count` more files of the log have begun."""
        engine = self.store.message_store
        files = len(engine.commit_log.mapped_file_queue.mapped_files) + count
        while len(engine.commit_log.mapped_file_queue.mapped_files) < files:
            self.store.put("other", bytes(300))
            self.device.clock_ms += 1
        self.store.wait_dispatched()

    def log_files(self) -> list[str]:
        """Return the paths of the log's files, the oldest first."""
        return [
            file.path for file in self.store.message_store.commit_log.mapped_file_queue.mapped_files
        ]


def put(cut: Cut, topic: str, numbers: range) -> None:
    """Put numbers; a light topic gets them through another one."""
    for number in numbers:
        if topic.startswith("%LMQ%"):
            more = {"INNER_MULTI_DISPATCH": topic}
            cut.store.put("wide", b"%d" % number, properties=more)
        else:
            cut.store.put(topic, b"%d" % number)
        cut.device.clock_ms += 1


def consume(store: Any, group: str, topic: str, count: int) -> list[int]:
    """Poll and commit; return the numbers in the bodies."""
    with store.consumer(group, topic) as consumer:
        found = consumer.poll(count, 0)
        consumer.commit()
    return [int(message.body) for message in found]


def check_whole(store: Any) -> None:
    """Require that `verify` finds no problem."""
    problems = store.verify().problems
    assert not problems, list(problems[:3])


class Way(NamedTuple):
    """A way in which the oldest files of the log are removed, all but the last one.

    settings : of the store; remove : callable(cut)
    """

    settings: dict[str, Any]
    remove: Callable[[Cut], object]


def _trim(cut: Cut) -> None:
    cut.store.trim(before=INT64_MAX)


def _service(cut: Cut, name: str) -> Any:
    (found,) = [s for s in cut.store.message_store.services.all() if type(s).__name__ == name]
    return found


def _retain(cut: Cut) -> None:
    """Apply the retention, much later and on a disk without room."""
    cut.device.clock_ms += 10_000
    cut.store.message_store.env.disk_usage = lambda path: (1000, 1000, 0)
    _service(cut, "RetentionService").do_once()


def _clean_expired(cut: Cut) -> None:
    """Clean as 4.9.3 does, at an hour at which files expire that were not written to for long."""
    for path in cut.log_files()[:-1]:
        os.utime(path, (1, 1))
    _clean(cut, percent_used=10)


def _clean_full(cut: Cut) -> None:
    """Clean as 4.9.3 does while the disk is so full that puts are refused."""
    _clean(cut, percent_used=95)


def _clean(cut: Cut, percent_used: int) -> None:
    store = cut.store.message_store
    store.env.disk_usage = lambda path: (1000, percent_used * 10, 1000 - percent_used * 10)
    store.env.sleep = lambda seconds: None
    store.execute_delete_files_manually()
    _service(cut, "CleanResourceService").do_once()
    store.env.disk_usage = lambda path: (1000, 0, 1000)
    store.services.clean_commit_log.is_space_to_delete()


#: Without an hour of its own, so that only requests and full disks delete: no hour is 24.
_CLEANED = {"file_reserved_time": 1, "delete_when": "24"}
WAYS: dict[str, Way] = {
    "trim": Way({}, _trim),
    "age": Way({"retention_age": 1}, _retain),
    "bytes": Way({"retention_bytes": 4096}, _retain),
    "room": Way({"retention_free_bytes": 1 << 40}, _retain),
    "expired": Way(_CLEANED, _clean_expired),
    "full": Way({**_CLEANED, "file_reserved_time": 1000}, _clean_full),
}
