"""CommitLogFlush: flush the commit log to the device. A failed fsync is final here.

The error is passed on to `message_store/end_of_puts.py`, which ends the puts of the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from pyrocketstore.commit_log._append import GroupCommit
from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.errors import StoreError, StoreFsyncError, StoreIOError, without_frames
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.system.stalls import LOG_FLUSH, untimed


def may_pass(error: StoreError) -> bool:
    """Return whether a flush with this error is tried again. A failed fsync never is."""
    return isinstance(error, StoreIOError) and not isinstance(error, StoreFsyncError)


class CommitLogFlush:
    """Flush the commit log, and move the checkpoint's physicMsgTimestamp after it.

    `on_failure` is called with the error of a failed fsync, which is final. A file that could not
    be opened is opened again by the next flush. Bytes without an fsync are never reported as
    flushed.

    Threads: any; one thread at a time flushes, the others wait for it.
    Source: RocketMQ 4.9.3 MappedFileQueue#flush.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        checkpoint: StoreCheckpoint,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.commit_log = commit_log
        self.checkpoint = checkpoint
        self.on_failure = on_failure
        #: held by the thread that flushes; under SYNC_FLUSH the lead of the group commit
        self.lock: AbstractContextManager[object] = threading.Lock()
        self.group: GroupCommit | None = None
        #: times each flush; slow calls are logged
        self.timed: Callable[[str], AbstractContextManager[None]] = untimed
        #: the error of a failed fsync: nothing is flushed any more
        self.error: StoreError | None = None
        #: why the last flush has failed; the next one may succeed
        self.retried: StoreError | None = None

    @property
    def flushed_where(self) -> int:
        """The physical offset before which everything is durable."""
        where = int(self.commit_log.mapped_file_queue.flushed_where)
        return where if self.group is None else max(where, self.group.forced)

    @property
    def flushed_noted(self) -> int:
        """`flushed_where` as the last `note_flushed` has set it, which may be a little less."""
        return int(self.commit_log.mapped_file_queue.flushed_where)

    def flush_to(self, end_offset: int) -> None:
        """Flush the log up to `end_offset`, over as many files as needed. Call with `lock` held."""
        queue = self.commit_log.mapped_file_queue
        while queue.flushed_where < end_offset:
            if self.flush_step(0):
                break

    def flush_to_end(self) -> int:
        """Flush all records that were put before, also from buffers; return `flushed_where`.

        Raises StoreError.
        """
        self.check_fsyncs()
        self.commit_log.commit_buffers()
        with self.lock:
            self.flush_to(self.commit_log.get_max_offset())
        self.check_fsyncs()
        return self.flushed_where

    def check_fsyncs(self) -> None:
        """Raise the StoreFsyncError of the store's first failed fsync, of any file."""
        failure = self.commit_log.env.fsync_failure
        if failure is not None:
            raise failure

    def flush_step(self, flush_least_pages: int) -> bool:
        """Call MappedFileQueue.flush once; return True when nothing moved.

        Call with `lock` held.
        """
        if self.error is not None:
            raise without_frames(self.error)
        queue = self.commit_log.mapped_file_queue
        try:
            with self.timed(LOG_FLUSH):
                idle = queue.flush(flush_least_pages)
        except StoreError as error:
            if may_pass(error):
                self.retried = without_frames(error)
            else:
                self.failed(error)
            raise
        self.retried = None
        if queue.store_timestamp > 0:
            self.checkpoint.note_log_flushed(queue.store_timestamp, queue.flushed_where)
        return idle

    def failed(self, error: StoreError) -> None:
        """Note a failed fsync, after which no flush is tried."""
        self.error = without_frames(error)
        self.on_failure(error)

    def note_flushed(self, where: int, timestamp: int) -> None:
        """Note that the group commit has flushed up to `where`, the end of a record of that store
        time (ms)."""
        queue = self.commit_log.mapped_file_queue
        if where > queue.flushed_where:
            queue.flushed_where = where
            if timestamp > 0:
                queue.store_timestamp = timestamp
                self.checkpoint.note_log_flushed(timestamp, where)
