"""Changes of files that an opening plans, and makes once it has planned everything.

Until then an opening only reads: a kill leaves the directory as it was, and what the files prove
is on the device before the first of them changes. A read-only opening makes none of them: what it
would change is in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyrocketstore.errors import StoreError
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.files.allocate_mapped_file_service import FileSettings, create_mapped_file
from pyrocketstore.system.env import O_RDWR, Env
from pyrocketstore.system.live_stores import was_removed

__all__ = ["ChangesInMemory", "PlannedChanges", "changes_of"]


class PlannedChanges:
    """Calls that change files, in the order in which they are to be made: each at once, except
    between `plan` and `make`. Threads: one.

    The object also says how the files of its store are opened, made and overwritten, and what
    their damage and their absence mean. Threads: any.
    """

    read_only = False
    #: in which files are opened: see MappedFile, IndexFile
    mode = "shared"
    #: added to texts about a repair
    where = ""
    #: of log lines about a repair that each opening of a store repeats until it is on disk
    level = logging.WARNING

    def __init__(self) -> None:
        self._waiting: list[Callable[[], object]] | None = None

    def plan(self) -> None:
        """Have later changes wait for `make`, and forget those that wait already."""
        self._waiting = []

    @property
    def is_planning(self) -> bool:
        """Whether changes wait."""
        return self._waiting is not None

    def add(self, change: Callable[[], object]) -> None:
        """Make a change, or have it wait."""
        if self._waiting is None:
            change()
        else:
            self._waiting.append(change)

    def make(self) -> None:
        """Make the changes that wait, and later ones at once.

        Raises what a change raises: those after it are not made, and the store must not be used.
        """
        waiting, self._waiting = self._waiting or [], None
        for change in waiting:
            change()

    def forget(self) -> None:
        """Make none of the changes that wait, and later ones at once: the opening has failed."""
        self._waiting = None

    def create(self, env: Env, path: str, settings: FileSettings, *, mapped: bool) -> MappedFile:
        """Make a file: see `create_mapped_file`."""
        return create_mapped_file(env, path, settings, mapped=mapped)

    def overwrite(self, env: Env, file: MappedFile, position: int, data: bytes) -> None:
        """Replace written bytes of a file. Raises StoreIOError."""
        fd = env.open(file.path, O_RDWR)
        try:
            env.pwrite_all(fd, data, position, file.path)
        finally:
            env.close(fd, file.path)

    def accept(self, error: StoreError) -> None:
        """Raise the error, unless reads can do without the damaged bytes."""
        raise error

    def is_gone(self, env: Env, path: str) -> bool:
        """Return whether another process has deleted a file that was there."""
        return False

    def is_of_owner(self, error: BaseException) -> bool:
        """Return whether a call failed because another process has deleted its file."""
        return False


class ChangesInMemory(PlannedChanges):
    """The changes of a store that is open read-only, and that another process may own: none on
    disk. New and changed files are in memory, and files may disappear at any time."""

    read_only = True
    mode = "read"
    where = " in memory"
    level = logging.DEBUG

    is_of_owner = staticmethod(was_removed)

    def plan(self) -> None:
        """Do nothing."""

    def add(self, change: Callable[[], object]) -> None:
        """Do nothing."""

    def accept(self, error: StoreError) -> None:
        """Do nothing."""

    def create(self, env: Env, path: str, settings: FileSettings, *, mapped: bool) -> MappedFile:
        """Make a file in memory."""
        return MappedFile(env, path, settings.file_size, mode="memory", create=True)

    def overwrite(self, env: Env, file: MappedFile, position: int, data: bytes) -> None:
        """Replace written bytes of a file in memory. Raises StoreIOError."""
        if file.mode == "read":
            file.to_memory()
        file.overwrite(position, data)

    def is_gone(self, env: Env, path: str) -> bool:
        """Return whether another process has deleted a file that was there."""
        return not env.exists(path)


def changes_of(*, read_only: bool) -> PlannedChanges:
    """Return the changes of a store that is opened read-only, or for writing."""
    return ChangesInMemory() if read_only else PlannedChanges()
