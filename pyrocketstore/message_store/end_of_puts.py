"""End the puts of a store after a failed fsync, or when a service has died."""

from __future__ import annotations

from collections.abc import Callable

from pyrocketstore.display import logger
from pyrocketstore.errors import without_frames
from pyrocketstore.files.abort_file import AbortFile
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.flush.async_put import AsyncPuts

LOG = logger(__name__)


class StoreFailure:
    """The error that has ended the puts of a store for good, until it is opened again.

    `fail` is called with the first failed fsync of any file (`LockFile` watches them), with an
    error that ends a service, and when a thread dies. It makes the store not writeable, ends the
    waits of asynchronous puts, and marks `abort`, which then stays: the next opening recovers.

    Attributes: `error`, the first one, None while puts are accepted. Threads: any.
    """

    def __init__(
        self,
        flags: RunningFlags,
        async_puts: AsyncPuts,
        abort_file: AbortFile,
        owns_directory: Callable[[], bool],
    ) -> None:
        self.error: BaseException | None = None
        self._flags = flags
        self._async_puts = async_puts
        self._abort_file = abort_file
        self._owns_directory = owns_directory

    def fail(self, error: BaseException) -> None:
        """Accept no put any more because of `error`."""
        is_first, self.error = self.error is None, self.error or without_frames(error)
        self._flags.get_and_make_not_writeable()
        self._async_puts.let_go()
        if self._owns_directory():  # else the file belongs to the next owner
            self._abort_file.mark_failed_fsync()
        if is_first:
            LOG.error("the store is not writeable any more: %s", self.error)
