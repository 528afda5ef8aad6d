"""The thread that forces full index files."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable

from pyrocketstore._env import Event
from pyrocketstore._index_file import IndexFile
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreError, StoreStateError, is_failed_open, without_frames
from pyrocketstore.service_thread import ServiceThread
from pyrocketstore.store_checkpoint import StoreCheckpoint

__all__ = ["FlushIndexFileThread"]

LOG = logger(__name__)

#: How long `wait_forced` sleeps before it looks whether the thread still lives (s).
LOOK_S = 1.0
#: After a file could not be opened (ms).
RETRY_MS = 1000


class FlushIndexFileThread(ServiceThread):
    """Forces full index files in their order; it begins with the first of them, and stays.

    4.9.3 starts a thread for each: one that cannot be made for want of memory would hold the thread
    that dispatches, which waits for its start.

    Parameters
    ----------
    checkpoint : its index_msg_timestamp never passes a file that could not be flushed
    on_error : called with the StoreError that ended it, in this thread

    A file that could not be opened is tried again; any other error ends the work of this thread.
    `wait_forced` flushes the files itself where no thread can be started, as in exit handlers on
    CPython 3.12.1.
    """

    def __init__(self, checkpoint: StoreCheckpoint, on_error: Callable[[StoreError], None]) -> None:
        super().__init__("FlushIndexFileThread")
        #: why the file whose turn it is could not be flushed; None when nothing failed, or what
        #: failed has worked since. A failed fsync stays
        self.error: StoreError | None = None
        self._is_final = False
        self._checkpoint = checkpoint
        self._on_error = on_error
        self._files: collections.deque[IndexFile] = collections.deque()
        self._forcing_lock = threading.Lock()
        self._forced = Event()  # signalled after each file

    def add(self, index_file: IndexFile) -> None:
        """Force that file soon. A thread that had died is started again.

        Where no thread can be started, the file waits for the next call or for `wait_forced`.
        """
        self._files.append(index_file)
        try:
            self.start()
        except (RuntimeError, MemoryError) as error:
            LOG.info("index: full files wait for the next flush: %s", error)
        self.wakeup()

    def wait_forced(self) -> None:
        """Wait until all are flushed, one could not be, or the thread has died. Ctrl-C gets
        through."""
        if self.error is not None and not self._is_final:
            self.error = None  # until it was tried once more, which is now
            self.wakeup()
        while self._files and self.is_alive and self.error is None:
            seen = self._forced.sequence()
            if self._files:
                self._forced.wait(seen, LOOK_S)
        if not self.is_alive and self.failure is None:
            self._force_all()

    def run(self) -> None:
        """Force what there is, also when asked to end."""
        while True:
            is_last = self.stopped
            self._force_all()
            self._forced.signal()
            if is_last:
                return
            self.wait_for_running(RETRY_MS if self._files and not self._is_final else None)

    def on_failure(self, error: BaseException) -> None:
        """Tell it as an error of the index."""
        cause = StoreStateError(f"the thread {self.name} has died: {error!r}")
        LOG.error("index: %s", cause)
        self._on_error(cause)

    def _force_all(self) -> None:
        with self._forcing_lock:
            while self._files and not self._is_final:
                self._force(self._files[0])
                if self.error is not None:
                    break
                self._files.popleft()
                self._forced.signal()

    def _force(self, index_file: IndexFile) -> None:
        try:
            index_file.flush()
            index_file.close_for_writing()
            self._checkpoint.index_msg_timestamp = index_file.end_timestamp
            self._checkpoint.flush()
        except StoreError as error:
            self._is_final = not is_failed_open(error)
            if self._is_final:
                self._on_error(error)
            elif self.error is None:
                LOG.error("index: %s; it is tried again", error)
            self.error = without_frames(error)
        else:
            self.error = None
