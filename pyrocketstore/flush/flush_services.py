"""Services that flush the log and the queues to the device, and commit buffers to log files."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable

from pyrocketstore.commit_log._append import GroupCommit
from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.consume_queue.queue import ConsumeQueue, flush_queues
from pyrocketstore.display import logger
from pyrocketstore.errors import (
    StoreError,
    is_failed_open,
    is_passing,
    without_frames,
)
from pyrocketstore.files._mapped_file import OS_PAGE_SIZE
from pyrocketstore.files.file_systems import FileSystems
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.flush.index_flush import IndexFlush, IndexState
from pyrocketstore.flush.log_flush import CommitLogFlush, may_pass
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.system.service_thread import ServiceThread

LOG = logger(__name__)

#: How long the thread of GroupCommitService sleeps without a request (ms).
SERVE_MS = 500
#: The pause before a file is opened again that could not be opened (s).
RETRY_S = 0.01
#: Before any time of the monotonic clock: the first pass is a thorough one.
NEVER_MS = -(1 << 62)


class GroupCommitService(ServiceThread):
    """SYNC_FLUSH: a put returns when its bytes are durable.

    The first waiting putter flushes the log itself, for all putters that wait with it; the others
    give up after `sync_flush_timeout`. The thread of this service flushes for puts that do not
    wait, for futures, for all putters after a slow flush, and with `sync_flush_by_service` always:
    then a device that hangs blocks only this thread.

    Source: RocketMQ 4.9.3 CommitLog#GroupCommitService.
    Differs: woken by condition instead of a poll every 10 ms; a failed flush is never PUT_OK.
    """

    def __init__(self, flush: CommitLogFlush, config: MessageStoreConfig) -> None:
        super().__init__("GroupCommitService")
        self.flush = flush
        self.config = config
        self.group = GroupCommit(
            flush.commit_log.core, flush, config.sync_flush_timeout, config.sync_flush_by_service
        )
        flush.group = flush.lock = self.group
        self._calls: collections.deque[tuple[int, Callable[[PutMessageStatus], None]]] = (
            collections.deque()
        )
        self._ended = False

    def handle_disk_flush(self, end_offset: int, wait_store_msg_ok: bool) -> PutMessageStatus:
        """Return PUT_OK once everything before `end_offset` is durable, else FLUSH_DISK_TIMEOUT."""
        if not wait_store_msg_ok:
            self.group.ask()
            failed = self.flush.error is not None
            return PutMessageStatus.FLUSH_DISK_TIMEOUT if failed else PutMessageStatus.PUT_OK
        ok = self.group.wait(end_offset)
        return PutMessageStatus.PUT_OK if ok else PutMessageStatus.FLUSH_DISK_TIMEOUT

    def quick_flush(self) -> Callable[[int], PutMessageStatus] | None:
        """Return a call that flushes up to an offset in the caller's thread.

        None unless flushes take less time than the wake-up of this thread (`GroupCommit.is_quick`).
        """
        if self._ended or not self.group.is_quick:
            return None
        return lambda end_offset: self.handle_disk_flush(end_offset, True)

    def request(self, end_offset: int, done: Callable[[PutMessageStatus], None]) -> bool:
        """Have everything before `end_offset` flushed, and `done` called then by this thread.

        Returns False when the service has ended. A signal handler that raises leaves the request
        complete or not made.
        """
        self._calls.append((end_offset, done))
        self.group.expect(True)
        self.group.ask()
        return not self._ended

    def _call_flushed(self, *, all_of_them: bool = False) -> None:
        flushed = self.flush.flushed_where
        hopeless = all_of_them or self.flush.error is not None
        for _ in range(len(self._calls)):
            end_offset, done = self._calls.popleft()
            if end_offset <= flushed:
                done(PutMessageStatus.PUT_OK)
            elif hopeless:
                done(PutMessageStatus.FLUSH_DISK_TIMEOUT)
            else:
                self._calls.append((end_offset, done))

    def _complete_flushed(self) -> None:
        self.group.expect(False)  # first: a later request is seen below, or sets it again
        self._call_flushed()
        if self._calls:
            self.group.expect(True)

    def request_stop(self) -> None:
        """Ask the thread to end, without waiting for it."""
        super().request_stop()
        self.group.end()

    def run(self) -> None:
        """Flush for all waiting puts until asked to stop; then flush the rest."""
        try:
            while not self.stopped:
                self.group.serve(SERVE_MS)
                self._complete_flushed()
                if self.flush.retried is not None:
                    self.flush.commit_log.env.sleep(RETRY_S)
                    self.group.ask()
            while self.flush.error is None and (
                self.flush.flushed_where < self.flush.commit_log.get_max_offset()
            ):
                self.group.ask()
                self.group.serve(SERVE_MS)
                if self.flush.retried is not None:
                    self.flush.on_failure(self.flush.retried)
                    break
        finally:
            # No caller may wait for a thread that has ended.
            self.group.close()
            self._ended = True
            self._call_flushed(all_of_them=True)


class CommitRealTimeService(ServiceThread):
    """With a transient store pool: copy records from the buffers into the log's files.

    `error` is that of the last commit, None when it succeeded.

    Threads: `commit` from any. Durability: records in a buffer are lost with the process; they are
    there for at most about `commit_interval_commit_log` ms.
    Source: RocketMQ 4.9.3 CommitLog#CommitRealTimeService.
    Differs: over as many files as needed; a failed commit ends the puts, except on a full disk and
    for a file that could not be opened, which are tried again.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        config: MessageStoreConfig,
        on_committed: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        super().__init__("CommitRealTimeService")
        self.commit_log = commit_log
        self.config = config
        self.error: StoreError | None = None
        self._on_committed = on_committed
        self._fail = on_failure
        self._last_ms = NEVER_MS
        self._lock = threading.Lock()
        least = max(1, config.commit_commit_log_least_pages * OS_PAGE_SIZE)
        commit_log.core.watch_buffer(self.event, least)
        commit_log.commit_buffers = self.commit_all

    def commit(self, commit_least_pages: int) -> bool:
        """Copy the buffers, if they hold that many pages; return True when anything moved.

        Raises StoreError; the committed position does not move then.
        """
        queue = self.commit_log.mapped_file_queue
        moved = False
        with self._lock:
            try:
                while not queue.commit(commit_least_pages):
                    moved = True
            except StoreError as error:
                self.error = without_frames(error)
                if not (is_failed_open(error) or is_passing(error)):
                    self._fail(error)
                raise
            finally:
                self.commit_log.core.publish_end(queue.committed_where)
            self.error = None
        if moved:
            self._on_committed()
        return moved

    def commit_all(self) -> None:
        """Copy all records that were put before. Raises StoreError."""
        self.commit(0)

    def run(self) -> None:
        """Commit at the configured intervals; at the end, everything."""
        while not self.stopped:
            now = self.commit_log.env.monotonic_ms()
            pages = self.config.commit_commit_log_least_pages
            if now >= self._last_ms + self.config.commit_commit_log_thorough_interval:
                self._last_ms = now
                pages = 0
            if self._try(pages):
                self._last_ms = now
            self.wait_for_running(self.config.commit_interval_commit_log)
        self._try(0)
        if self.error is not None:
            self._fail(self.error)

    def _try(self, pages: int) -> bool:
        try:
            return self.commit(pages)
        except StoreError as error:
            LOG.error("a commit failed: %s", error)
            return False


class FlushRealTimeService(ServiceThread):
    """ASYNC_FLUSH: flush the log every `flush_interval_commit_log` ms.

    Without `flush_commit_log_timed` each append, or with a transient store pool each commit, wakes
    the thread.

    Source: RocketMQ 4.9.3 CommitLog#FlushRealTimeService. Differs: over as many files as needed.
    """

    def __init__(self, flush: CommitLogFlush, config: MessageStoreConfig) -> None:
        super().__init__("FlushRealTimeService")
        self.flush = flush
        self.config = config
        self._last_thorough_ms = NEVER_MS
        if not (config.flush_commit_log_timed or config.is_transient_store_pool_enable):
            flush.commit_log.core.watch_appends(self.event)

    def handle_disk_flush(self, end_offset: int, wait_store_msg_ok: bool) -> PutMessageStatus:
        """Return PUT_OK at once, unless an fsync has failed: the thread flushes the log later."""
        failed = self.flush.error is not None
        return PutMessageStatus.FLUSH_DISK_TIMEOUT if failed else PutMessageStatus.PUT_OK

    def on_committed(self) -> None:
        """Wake the thread after a commit."""
        if not self.config.flush_commit_log_timed:
            self.wakeup()

    def run(self) -> None:
        """Flush at the configured intervals; at the end, everything."""
        while not self.stopped:
            pages = self.config.flush_commit_log_least_pages
            now = self.flush.commit_log.env.monotonic_ms()
            if now >= self._last_thorough_ms + self.config.flush_commit_log_thorough_interval:
                self._last_thorough_ms = now
                pages = 0
            self.wait_for_running(self.config.flush_interval_commit_log)
            self._flush(pages)
        self._flush_all()

    def _flush(self, pages: int) -> None:
        if self.flush.error is not None:
            return
        try:
            with self.flush.lock:
                while not self.flush.flush_step(pages):
                    pass
        except StoreError as error:
            LOG.error("a flush failed: %s", error)

    def _flush_all(self) -> None:
        if self.flush.error is not None:
            return
        try:
            with self.flush.lock:
                self.flush.flush_to(self.flush.commit_log.get_max_offset())
        except StoreError as error:
            LOG.error("the last flush failed: %s", error)
            self.flush.on_failure(error)


class FlushConsumeQueueService(ServiceThread):
    """Flush the consume queues, write topics.json, and then the checkpoint; flush the index.

    Parameters
    ----------
    index_flush : flushes the index in each thorough pass; None: messages are not indexed
    persist_topics : callable(at_once), writes topics.json if it has changed
    has_all_units : callable, False after a unit could not be written, until it is

    Source: RocketMQ 4.9.3 DefaultMessageStore#FlushConsumeQueueService.
    Differs: logicsMsgTimestamp covers only records that were dispatched before a complete flush
    began; a failed pass is tried again unless an fsync failed, which is final.
    """

    def __init__(
        self,
        config: MessageStoreConfig,
        checkpoint: StoreCheckpoint,
        queues: Callable[[], Iterable[ConsumeQueue]],
        file_systems: FileSystems,
        logics_timestamp: Callable[[], int],
        dispatched: Callable[[], int],
        persist_topics: Callable[[bool], None],
        monotonic_ms: Callable[[], int],
        on_failure: Callable[[BaseException], None],
        index_flush: IndexFlush | None = None,
        has_all_units: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__("FlushConsumeQueueService")
        self.has_all_units = has_all_units
        self.index_flush = index_flush
        self.config = config
        self.checkpoint = checkpoint
        self.queues = queues
        self.file_systems = file_systems
        self.logics_timestamp = logics_timestamp
        self.dispatched = dispatched
        self.persist_topics = persist_topics
        self.monotonic_ms = monotonic_ms
        self._fail = on_failure
        self.error: StoreError | None = None
        #: the units of all records before this byte of the log are durable
        self.flushed_to = 0
        self._last_thorough_ms = NEVER_MS
        self._lock = threading.Lock()

    def do_flush(self, thorough: bool, index_state: IndexState | None = None) -> None:
        """Flush all queues once; a thorough pass also writes the checkpoint and flushes the index.

        `index_state` is the state before a flush of the log, None: that of the beginning.

        Raises StoreError when a flush failed.
        """
        with self._lock:
            now = self.monotonic_ms()
            pages = self.config.flush_consume_queue_least_pages
            interval = self.config.flush_consume_queue_thorough_interval
            if thorough or now >= self._last_thorough_ms + interval:
                self._last_thorough_ms = now
                pages = 0
            index = self.index_flush
            if index is not None and index_state is None and pages == 0:
                index_state = index.begin()
            end = self.dispatched()
            is_complete = self.has_all_units()
            logics = self.logics_timestamp()
            if pages == 0:
                flush_queues(self.queues(), self.file_systems)
            else:
                for queue in self.queues():
                    queue.flush(pages)
            # Before the checkpoint: recovery adds only the topics of messages that it scans.
            self.persist_topics(pages == 0)
            if pages == 0:
                if is_complete:
                    self.flushed_to = end
                if logics > 0:
                    self.checkpoint.note_queues_flushed(logics, end)
                self.checkpoint.flush()
            if index is not None and pages == 0:
                index.finish(index_state)
            elif index is not None:
                index.write()

    def run(self) -> None:
        """Run a pass every `flush_interval_consume_queue` ms, and a thorough one at the end."""
        while not self.stopped:
            self.wait_for_running(self.config.flush_interval_consume_queue)
            # After a failed pass, which covered less, the next one is thorough.
            if not self.stopped and not self._try(self.error is not None):
                return
        self._try(True)
        if self.error is not None:
            self._fail(self.error)

    def _try(self, thorough: bool) -> bool:
        """Run one pass; return False after an error that is final."""
        try:
            self.do_flush(thorough)
        except StoreError as error:
            if self.error is None or str(error) != str(self.error):
                LOG.error("a flush of the consume queues failed: %s", error)
            self.error = without_frames(error)
            if not may_pass(error):
                self._fail(error)
                return False
        else:
            self.error = None
        return True
