"""A commit log that lies in several directories."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from pyrocketstore import disk_space
from pyrocketstore._mapped_file import MappedFile
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreCorruptionError, StoreError, StoreIOError
from pyrocketstore.mapped_file_queue import MappedFileQueue, file_name_of

__all__ = ["MultiPathMappedFileQueue"]


class MultiPathMappedFileQueue(MappedFileQueue):
    """A row of files that takes turns between directories: file n lies in directory n modulo their
    number, counted among those that are not full, by name.

    Parameters
    ----------
    store_paths : directories that get files
    read_only_paths : directories whose files are read; none is made there, also when it is among
        `store_paths`
    is_full : callable(directory), whether new files should lie elsewhere; where all are full, all
        count. None: above 0.85 in use
    settings : as of MappedFileQueue

    Threads: as MappedFileQueue.
    Source: RocketMQ 4.9.3 MultiPathMappedFileQueue.
    Differs: a file's place is chosen once, so that it cannot come to lie in two directories; a name
    that does is refused; how full a disk is, is asked when a place is chosen.
    """

    def __init__(
        self,
        env: Env,
        store_paths: tuple[str, ...],
        read_only_paths: tuple[str, ...],
        mapped_file_size: int,
        *,
        is_full: Callable[[str], bool] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(env, store_paths[0], mapped_file_size, **settings)
        self.store_paths = store_paths
        self.read_only_paths = read_only_paths
        self._is_full = self._has_full_disk if is_full is None else is_full
        #: where the files lie that were chosen a place and are not in the row yet, by offset
        self._places: dict[int, str] = {}

    def _has_full_disk(self, path: str) -> bool:
        return disk_space.used_ratio(self.env, path) > disk_space.CLEAN_FORCIBLY_RATIO

    def _find_files(self) -> list[tuple[str, int, str]]:
        found: dict[str, tuple[str, int, str]] = {}
        for directory in dict.fromkeys((*self.store_paths, *self.read_only_paths)):
            for name, size, path in self._files_in(directory):
                if name in found:
                    reason = f"there is a file of this name in {found[name][2]} too"
                    raise StoreCorruptionError(path, -1, reason)
                found[name] = (name, size, path)
        return [found[name] for name in sorted(found)]

    def _directories(self) -> tuple[str, ...]:
        return self.store_paths

    def _new_path(self, offset: int) -> str:
        directory = self._places.get(offset)
        if directory is None:
            directory = self._places[offset] = self._choose(offset // self.mapped_file_size)
        return f"{directory}/{file_name_of(offset)}"

    def _choose(self, number: int) -> str:
        writable = sorted(set(self.store_paths) - set(self.read_only_paths))
        if not writable:
            raise StoreIOError(errno.EROFS, "create", self.store_paths[0])
        free = [path for path in writable if not self._is_full(path)] or writable
        return free[number % len(free)]

    def _make(self, offset: int) -> MappedFile:
        try:
            mapped_file = super()._make(offset)
        except StoreError as error:
            # One that is late is still being made there.
            if getattr(error, "errno", None) != errno.ETIMEDOUT:
                self._places.pop(offset, None)
            raise
        self._places.pop(offset, None)
        return mapped_file
