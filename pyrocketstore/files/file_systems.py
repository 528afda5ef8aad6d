"""FileSystems: flush many files at once, with syncfs or with several threads."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pyrocketstore.errors import StoreIOError, is_failed_open
from pyrocketstore.files._mapped_file import MappedFile, flush_together
from pyrocketstore.system.thread_pool import ThreadPool

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

__all__ = ["FileSystems", "Unflushed"]

#: From so many files on, several threads flush those that syncfs does not.
THREADS_LEAST_FILES = 64
#: fsyncs of this many threads share the commits of a journal (measured: a fifth of the time).
THREADS_MAX = 16
#: syncfs also writes the dirty pages of other programs. It is used while all dirty pages of the
#: system are fewer bytes than these: they take less time than an fsync for each file.
DIRTY_BYTES_MAX = 32 << 20
DIRTY_BYTES_MAX_A_FILE = 64 << 10

Item = TypeVar("Item")


class Unflushed(NamedTuple):
    """A file that has bytes to flush: those before `wrote`, `flushed` when that was noted."""

    file: MappedFile
    flushed: int
    wrote: int


class FileSystems:
    """The file systems of a store, to flush many of its files at once.

    Parameters
    ----------
    env : Env
    descriptors : callable that returns {device: (descriptor, path) of a directory}, each opened
        before the store wrote anything there, so that syncfs reports each error since then
    least_files : int, from so many files on syncfs is used; 0: never

    syncfs is assumed to make all bytes, lengths and names durable that were written before, except
    that the device may hold them in its cache: XFS flushes the cache only if it has metadata to
    write. An fsync of one file follows, which flushes that cache in any case.

    Threads: any.
    """

    def __init__(
        self, env: Env, descriptors: Callable[[], Mapping[int, tuple[int, str]]], least_files: int
    ) -> None:
        self.env = env
        self.least_files = least_files
        self._descriptors = descriptors
        self._lock = threading.Lock()  # one descriptor reports an error to one call only

    def flush(self, files: list[Unflushed]) -> None:
        """Flush files and the names that are new on the way to them.

        Durability: for each file, on return, bytes before `wrote` are on the device.
        Raises StoreIOError; each file that is flushed says so.
        """
        rest = []
        for device, group in self._by_device(files, lambda each: each.file.path).items():
            if self._sync(device, len(group)):
                self._flush_one(group)
                for file, flushed, wrote in group:
                    file.note_flushed(flushed, wrote)
            else:
                rest += group
        self._flush_each(rest)

    def fsync_directories(self, paths: list[str]) -> None:
        """Flush the names in directories. Raises StoreIOError."""
        for device, group in self._by_device(paths, lambda path: path).items():
            if not self._sync(device, len(group)):
                for path in group:
                    self.env.fsync_directory(path)

    def _by_device(
        self, items: list[Item], path_of: Callable[[Item], str]
    ) -> dict[int, list[Item]]:
        """Return the items by device: all by -1 if they are too few for syncfs."""
        found: dict[int, list[Item]] = {}
        if not 0 < self.least_files <= len(items) or not self._descriptors():
            return {-1: items} if items else {}
        for item in items:
            try:
                device = self.env.identity(path_of(item))[0]
            except StoreIOError:  # deleted meanwhile: its flush knows
                device = -1
            found.setdefault(device, []).append(item)
        return found

    def _sync(self, device: int, count: int) -> bool:
        """Flush the file system of a device; return False if its files must be flushed one by
        one."""
        directory = self._descriptors().get(device)
        if directory is None or not 0 < self.least_files <= count:
            return False
        if self.env.dirty_bytes() > DIRTY_BYTES_MAX + count * DIRTY_BYTES_MAX_A_FILE:
            return False
        names = dict(self.env.made_names)
        with self._lock:
            done = self.env.syncfs(*directory)
        if done:
            self.env.note_flushed_names(names, device)
        return done

    def _flush_one(self, files: Iterable[Unflushed]) -> None:
        """Flush one file, and with it the cache of the device."""
        for file, _, _ in files:
            file.flush(0)
            if not file.unlinked:
                return

    def _flush_each(self, files: list[Unflushed]) -> None:
        left = deque(_by_directory([each.file for each in files]))

        def flush_left(*, alone: bool = False) -> None:
            while True:
                try:
                    group = left.popleft()
                except IndexError:
                    return
                try:
                    flush_together(group)
                except BaseException as error:
                    if not alone and is_failed_open(error):
                        left.append(group)  # fewer threads need fewer descriptors
                        return
                    left.clear()
                    raise

        if len(files) >= THREADS_LEAST_FILES:
            running = []
            with (
                ThreadPool(THREADS_MAX, "Flush") as pool,
                # Where not all threads can be started, the others and this one flush the files.
                contextlib.suppress(RuntimeError, MemoryError),
            ):
                for _ in range(THREADS_MAX):
                    running.append(pool.submit(flush_left))
            for done in running:
                done.result()
        flush_left(alone=True)


def _by_directory(files: list[MappedFile]) -> list[list[MappedFile]]:
    """Return the files by their directories, whose names one fsync makes durable; each file alone
    if several threads flush them."""
    if len(files) >= THREADS_LEAST_FILES:
        return [[file] for file in files]
    groups: dict[str, list[MappedFile]] = {}
    for file in files:
        groups.setdefault(os.path.dirname(file.path), []).append(file)
    return list(groups.values())
