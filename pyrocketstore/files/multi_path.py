"""MultiPathMappedFileQueue: a commit log in several directories."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Any

from pyrocketstore.errors import StoreCorruptionError, StoreError, StoreFormatError, StoreIOError
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.files.mapped_file_queue import MappedFileQueue, file_name_of
from pyrocketstore.system import disk_space
from pyrocketstore.system.env import Env

__all__ = ["MultiPathMappedFileQueue"]


class MultiPathMappedFileQueue(MappedFileQueue):
    """A file sequence over several directories: file n is in directory n modulo their number,
    counted among those that are not full, by name.

    Parameters
    ----------
    store_paths : directories for new files
    read_only_paths : directories whose files are only read, also when they are in `store_paths`
    is_full : callable(directory), whether new files should be elsewhere; ignored when all are full.
        None: more than 0.85 in use
    settings : as of MappedFileQueue

    Threads: as MappedFileQueue.
    Source: RocketMQ 4.9.3 MultiPathMappedFileQueue.
    Differs: the directory of a file is chosen once, when disks are checked too; a name that exists
    in two directories is refused.
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
        if not store_paths:
            raise StoreFormatError("store_paths is empty: it must name at least one directory")
        super().__init__(env, store_paths[0], mapped_file_size, **settings)
        self.store_paths = store_paths
        self.read_only_paths = read_only_paths
        self._is_full = self._has_full_disk if is_full is None else is_full
        #: {offset: directory} of files that are not in the sequence yet
        self._chosen: dict[int, str] = {}

    def _has_full_disk(self, path: str) -> bool:
        return disk_space.used_ratio(self.env, path) > disk_space.CLEAN_FORCIBLY_RATIO

    def _find_files(self) -> list[tuple[str, int, str]]:
        found: dict[str, tuple[str, int, str]] = {}
        for directory in self._all_directories():
            for name, size, path in self._files_in(directory):
                if name in found:
                    reason = f"a file of this name also exists: {found[name][2]}"
                    raise StoreCorruptionError(path, -1, reason)
                found[name] = (name, size, path)
        return [found[name] for name in sorted(found)]

    def _directories(self) -> tuple[str, ...]:
        return self.store_paths

    def _all_directories(self) -> Iterable[str]:
        return dict.fromkeys((*self.store_paths, *self.read_only_paths))

    def _new_path(self, offset: int) -> str:
        directory = self._chosen.get(offset)
        if directory is None:
            directory = self._chosen[offset] = self._choose(offset // self.mapped_file_size)
        return f"{directory}/{file_name_of(offset)}"

    def _choose(self, number: int) -> str:
        usable = sorted(set(self.store_paths) - set(self.read_only_paths))
        if not usable:
            raise StoreIOError(errno.EROFS, "create", self.store_paths[0])
        free = [path for path in usable if not self._is_full(path)] or usable
        return free[number % len(free)]

    def _make(self, offset: int, mapped: bool) -> MappedFile:
        try:
            mapped_file = super()._make(offset, mapped)
        except StoreError as error:
            # A file that timed out is still being made there.
            if getattr(error, "errno", None) != errno.ETIMEDOUT:
                self._chosen.pop(offset, None)
            raise
        self._chosen.pop(offset, None)
        return mapped_file
