"""`abort`: the file that exists while a store is open, and after an unclean exit."""

from __future__ import annotations

import contextlib

from pyrocketstore.display import logger
from pyrocketstore.errors import StoreIOError
from pyrocketstore.system.env import O_CREAT, O_RDONLY, O_WRONLY, Env, parent_directory

__all__ = ["AbortFile"]

LOG = logger(__name__)

#: Content of the file once an fsync has failed; 4.9.3 checks only whether the file exists.
FSYNC_FAILED = b"an fsync failed"


class AbortFile:
    """The file `abort`, which exists while a store is not closed. Empty, unless an fsync failed.

    Durability: `create` and `delete` are durable on return.
    Source: RocketMQ 4.9.3 DefaultMessageStore#createTempFile.
    """

    def __init__(self, env: Env, path: str) -> None:
        self._env = env
        self.path = path

    def exists(self) -> bool:
        """Return True when the store was not closed.

        Raises StoreIOError for a directory, a FIFO, a socket or a device of that name.
        """
        return self._env.is_link(self.path) or self._env.check_file(self.path, follow=False)

    def create(self) -> None:
        """Make the file and its directory, if they are missing. Raises StoreIOError."""
        directory = parent_directory(self.path)
        self._env.make_directories(directory)
        self._env.close(self._env.open(self.path, O_WRONLY | O_CREAT), self.path)
        self._env.fsync_directory(directory)

    def mark_failed_fsync(self) -> None:
        """Write to the file that an fsync has failed; no-op unless one has.

        Not durable: the note is about the page cache. An error is logged.
        """
        if self._env.fsync_failure is None or not self.exists():
            return
        try:
            fd = self._env.open(self.path, O_WRONLY)
            try:
                self._env.pwrite_all(fd, FSYNC_FAILED, 0, self.path)
            finally:
                self._env.close(fd, self.path)
        except StoreIOError as error:
            LOG.error("the next opening cannot know that an fsync has failed: %s", error)

    def is_marked(self) -> bool:
        """Return True when an fsync had failed: the page cache may hold clean pages that are not on
        the device. Raises StoreIOError."""
        fd = self._env.open(self.path, O_RDONLY)
        try:
            return self._env.pread(fd, len(FSYNC_FAILED), 0, self.path) == FSYNC_FAILED
        finally:
            self._env.close(fd, self.path)

    def delete(self) -> None:
        """Delete the file if it exists. After a StoreIOError the file exists again.

        After a failed fsync the file is kept, and the StoreFsyncError is raised.
        """
        failure = self._env.fsync_failure
        if failure is not None:
            raise failure
        try:
            self._env.remove(self.path)
        except StoreIOError:
            with contextlib.suppress(StoreIOError):
                self._env.close(self._env.open(self.path, O_WRONLY | O_CREAT), self.path)
            raise
