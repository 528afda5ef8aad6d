"""The services that bring what was written to the device."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Protocol

from pyrocketstore._group_commit import GroupCommit
from pyrocketstore._mapped_file import OS_PAGE_SIZE
from pyrocketstore.commit_log import CommitLog
from pyrocketstore.config import MessageStoreConfig
from pyrocketstore.display import logger
from pyrocketstore.errors import (
    StoreError,
    StoreFsyncError,
    StoreIOError,
    is_failed_open,
    is_passing,
    without_frames,
)
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.service_thread import ServiceThread
from pyrocketstore.stalls import FORCE, untimed
from pyrocketstore.store_checkpoint import StoreCheckpoint

LOG = logger(__name__)

#: How long the thread of GroupCommitService sleeps while nobody wants anything (ms).
SERVE_MS = 500
#: Until it opens a file again that could not be opened (s).
RETRY_S = 0.01
#: Before any time of the monotonic clock: the first pass is a thorough one.
NEVER_MS = -(1 << 62)


class Flushable(Protocol):
    """A consume queue, as the flush service sees it."""

    def flush(self, flush_least_pages: int, /) -> bool:
        """True when there was nothing to do."""
        ...


def may_pass(error: StoreError) -> bool:
    """Whether a flush that met this error is tried again. A failed fsync never is."""
    return isinstance(error, StoreIOError) and not isinstance(error, StoreFsyncError)


class CommitLogFlush:
    """Forces the commit log and keeps the checkpoint's physicMsgTimestamp behind it.

    `on_failure` is called with a fsync that failed: it is final. A file that could not be opened is
    opened again by the next flush. Bytes that no fsync covered are never reported as flushed.

    Threads: any; one thread at a time forces, the others wait for it.
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
        #: who forces; under SYNC_FLUSH the lead of the group commit
        self.lock: AbstractContextManager[object] = threading.Lock()
        self.group: GroupCommit | None = None
        #: times each force: what is slow is logged
        self.timed: Callable[[str], AbstractContextManager[None]] = untimed
        #: final: nothing is flushed any more
        self.error: StoreError | None = None
        #: why the last flush came to nothing; the next may work
        self.retried: StoreError | None = None

    @property
    def flushed_where(self) -> int:
        """Everything before this physical offset is on the device."""
        where = int(self.commit_log.mapped_file_queue.flushed_where)
        return where if self.group is None else max(where, self.group.forced)

    @property
    def flushed_noted(self) -> int:
        """As far as `note_forced` was told, which may be a little less."""
        return int(self.commit_log.mapped_file_queue.flushed_where)

    def flush_to(self, end_offset: int) -> None:
        """Force the log up to `end_offset`, over however many files. Call with `lock` held."""
        queue = self.commit_log.mapped_file_queue
        while queue.flushed_where < end_offset:
            if self.flush_step(0):
                break

    def flush_to_end(self) -> int:
        """Force all that was put before, what lies in buffers too; `flushed_where` then.

        Raises StoreError.
        """
        self.check_fsyncs()
        self.commit_log.commit_buffers()
        with self.lock:
            self.flush_to(self.commit_log.get_max_offset())
        self.check_fsyncs()
        return self.flushed_where

    def check_fsyncs(self) -> None:
        """Raise the StoreFsyncError of the store's first failed fsync, of whichever file."""
        failure = self.commit_log.env.fsync_failure
        if failure is not None:
            raise failure

    def flush_step(self, flush_least_pages: int) -> bool:
        """One call of MappedFileQueue.flush; True when nothing moved. Call with `lock` held."""
        if self.error is not None:
            raise without_frames(self.error)
        queue = self.commit_log.mapped_file_queue
        try:
            with self.timed(FORCE):
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
        """A force has failed: no other is tried."""
        self.error = without_frames(error)
        self.on_failure(error)

    def note_forced(self, where: int, timestamp: int) -> None:
        """The group commit has forced the log up to `where`, the record of that store time (ms)."""
        queue = self.commit_log.mapped_file_queue
        if where > queue.flushed_where:
            queue.flushed_where = where
            if timestamp > 0:
                queue.store_timestamp = timestamp
                self.checkpoint.note_log_flushed(timestamp, where)


class GroupCommitService(ServiceThread):
    """SYNC_FLUSH: a put returns when its bytes are on the device.

    The putter that comes first forces the log itself and completes all that wait behind it, who
    give up after `sync_flush_timeout`. This service's thread does so for puts that do not wait, for
    futures, for everyone once a force took long, and with `sync_flush_by_service` always: then a
    device that hangs holds this thread alone.

    Source: RocketMQ 4.9.3 CommitLog#GroupCommitService.
    Differs: woken by condition instead of a poll every 10 ms; a force that fails is never PUT_OK.
    """

    def __init__(self, flush: CommitLogFlush, config: MessageStoreConfig) -> None:
        super().__init__("GroupCommitService")
        self.flush = flush
        self.config = config
        self.group = GroupCommit(
            flush.commit_log.core, flush, config.sync_flush_timeout, config.sync_flush_by_service
        )
        flush.group = flush.lock = self.group
        self._requests: list[tuple[int, Future[PutMessageStatus]]] = []
        self._requests_lock = threading.Lock()
        self._calls: collections.deque[tuple[int, Callable[[PutMessageStatus], None]]] = (
            collections.deque()
        )
        self._ended = False

    def handle_disk_flush(self, end_offset: int, wait_store_msg_ok: bool) -> PutMessageStatus:
        """PUT_OK once everything before `end_offset` is on the device, else FLUSH_DISK_TIMEOUT."""
        if not wait_store_msg_ok:
            self.group.ask()
            failed = self.flush.error is not None
            return PutMessageStatus.FLUSH_DISK_TIMEOUT if failed else PutMessageStatus.PUT_OK
        ok = self.group.wait(end_offset)
        return PutMessageStatus.PUT_OK if ok else PutMessageStatus.FLUSH_DISK_TIMEOUT

    def submit(self, end_offset: int) -> Future[PutMessageStatus]:
        """A future for the same, without a limit of time: this service's thread completes it."""
        future: Future[PutMessageStatus] = Future()
        with self._requests_lock:
            ended = self._ended
            if not ended:
                self._requests.append((end_offset, future))
                self.group.expect(True)
        if ended:
            self._complete([(end_offset, future)])
        else:
            self.group.ask()
        return future

    def request(self, end_offset: int, done: Callable[[PutMessageStatus], None]) -> bool:
        """Have everything before `end_offset` flushed, and `done` called then by this thread.

        False when the service has ended. A signal handler that raises leaves it done or not begun.
        """
        self._calls.append((end_offset, done))
        self.group.expect(True)
        self.group.ask()
        return not self._ended

    def _call_flushed(self, *, all_of_them: bool = False) -> None:
        forced = self.flush.flushed_where
        hopeless = all_of_them or self.flush.error is not None
        for _ in range(len(self._calls)):
            end_offset, done = self._calls.popleft()
            if end_offset <= forced:
                done(PutMessageStatus.PUT_OK)
            elif hopeless:
                done(PutMessageStatus.FLUSH_DISK_TIMEOUT)
            else:
                self._calls.append((end_offset, done))

    def _complete(self, requests: list[tuple[int, Future[PutMessageStatus]]]) -> None:
        for end_offset, future in requests:
            ok = self.flush.flushed_where >= end_offset
            timeout = PutMessageStatus.FLUSH_DISK_TIMEOUT
            future.set_result(PutMessageStatus.PUT_OK if ok else timeout)

    def _complete_forced(self) -> None:
        self.group.expect(False)  # first: who asks from here on is seen below, or sets it again
        self._call_flushed()
        if self._calls:
            self.group.expect(True)
        forced = self.flush.flushed_where
        with self._requests_lock:
            hopeless = self.flush.error is not None
            done = [r for r in self._requests if hopeless or r[0] <= forced]
            self._requests = [r for r in self._requests if not (hopeless or r[0] <= forced)]
            if self._requests:
                self.group.expect(True)
        self._complete(done)

    def request_stop(self) -> None:
        """Ask the thread to end, and do not wait for it."""
        super().request_stop()
        self.group.end()

    def run(self) -> None:
        """Force for all that wait until told to stop; then what is left."""
        try:
            while not self.stopped:
                self.group.serve(SERVE_MS)
                self._complete_forced()
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
            # Nobody may wait for a thread that is gone.
            self.group.close()
            with self._requests_lock:
                self._ended = True
                requests, self._requests = self._requests, []
            self._complete(requests)
            self._call_flushed(all_of_them=True)


class CommitRealTimeService(ServiceThread):
    """With a transient store pool: copies what was put from the buffers into the log's files.

    `error` is the last commit's, None when it could be done.

    Threads: `commit` from any. Durability: what is in a buffer is lost with the process; it lies
    there for `commit_interval_commit_log` ms at most while the thread gets its turn.
    Source: RocketMQ 4.9.3 CommitLog#CommitRealTimeService.
    Differs: over however many files; a commit that fails ends the puts, but on a full disk and for
    a file that could not be opened, which is tried again.
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
        self._tell = on_failure
        self._last_ms = NEVER_MS
        self._lock = threading.Lock()
        least = max(1, config.commit_commit_log_least_pages * OS_PAGE_SIZE)
        commit_log.core.watch_buffer(self.event, least)
        commit_log.commit_buffers = self.commit_all

    def commit(self, commit_least_pages: int) -> bool:
        """Copy what the buffers hold, from so many pages on; True when anything moved.

        Raises StoreError; nothing more counts as committed then.
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
                    self._tell(error)
                raise
            finally:
                self.commit_log.core.publish_end(queue.committed_where)
            self.error = None
        if moved:
            self._on_committed()
        return moved

    def commit_all(self) -> None:
        """Copy everything that was put before. Raises StoreError."""
        self.commit(0)

    def run(self) -> None:
        """Commit in the rhythm of the settings; at the end, everything."""
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
            self._tell(self.error)

    def _try(self, pages: int) -> bool:
        try:
            return self.commit(pages)
        except StoreError as error:
            LOG.error("a commit failed: %s", error)
            return False


class FlushRealTimeService(ServiceThread):
    """ASYNC_FLUSH: forces the log every `flush_interval_commit_log` ms.

    Without `flush_commit_log_timed` each append, or with a transient store pool each commit, wakes
    it.

    Source: RocketMQ 4.9.3 CommitLog#FlushRealTimeService. Differs: over however many files.
    """

    def __init__(self, flush: CommitLogFlush, config: MessageStoreConfig) -> None:
        super().__init__("FlushRealTimeService")
        self.flush = flush
        self.config = config
        self._last_thorough_ms = NEVER_MS
        if not (config.flush_commit_log_timed or config.is_transient_store_pool_enable):
            flush.commit_log.core.watch_appends(self.event)

    def handle_disk_flush(self, end_offset: int, wait_store_msg_ok: bool) -> PutMessageStatus:
        """PUT_OK at once, before an fsync has failed: the thread flushes the log later."""
        failed = self.flush.error is not None
        return PutMessageStatus.FLUSH_DISK_TIMEOUT if failed else PutMessageStatus.PUT_OK

    def on_committed(self) -> None:
        """Something came from a buffer into the files."""
        if not self.config.flush_commit_log_timed:
            self.wakeup()

    def submit(self, end_offset: int) -> Future[PutMessageStatus]:
        """A future that is done."""
        future: Future[PutMessageStatus] = Future()
        future.set_result(self.handle_disk_flush(end_offset, False))
        return future

    def run(self) -> None:
        """Force in the rhythm of the settings; at the end, everything."""
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
    """Forces the consume queues, and the checkpoint after them.

    Source: RocketMQ 4.9.3 DefaultMessageStore#FlushConsumeQueueService.
    Differs: logicsMsgTimestamp is only ever what was dispatched before a complete flush began; a
    pass that failed is tried again unless an fsync failed, which is final.
    """

    def __init__(
        self,
        config: MessageStoreConfig,
        checkpoint: StoreCheckpoint,
        queues: Callable[[], Iterable[Flushable]],
        logics_timestamp: Callable[[], int],
        dispatched: Callable[[], int],
        monotonic_ms: Callable[[], int],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        super().__init__("FlushConsumeQueueService")
        self.config = config
        self.checkpoint = checkpoint
        self.queues = queues
        self.logics_timestamp = logics_timestamp
        self.dispatched = dispatched
        self.monotonic_ms = monotonic_ms
        self._tell = on_failure
        self.error: StoreError | None = None
        self._last_thorough_ms = NEVER_MS
        self._lock = threading.Lock()

    def do_flush(self, thorough: bool) -> None:
        """One pass over all queues; a thorough one also writes the checkpoint.

        Raises StoreError when a force failed.
        """
        with self._lock:
            now = self.monotonic_ms()
            pages = self.config.flush_consume_queue_least_pages
            interval = self.config.flush_consume_queue_thorough_interval
            if thorough or now >= self._last_thorough_ms + interval:
                self._last_thorough_ms = now
                pages = 0
            end = self.dispatched()
            logics = self.logics_timestamp()
            for queue in list(self.queues()):
                while not queue.flush(pages):
                    if pages:
                        break
            if pages == 0:
                if logics > 0:
                    self.checkpoint.note_queues_flushed(logics, end)
                self.checkpoint.flush()

    def run(self) -> None:
        """A pass every `flush_interval_consume_queue` ms, and a thorough one at the end."""
        while not self.stopped:
            self.wait_for_running(self.config.flush_interval_consume_queue)
            # After a pass that failed the next covers everything: the failed one covered less.
            if not self.stopped and not self._try(self.error is not None):
                return
        self._try(True)
        if self.error is not None:
            self._tell(self.error)

    def _try(self, thorough: bool) -> bool:
        """Make one pass; False when it failed for good."""
        try:
            self.do_flush(thorough)
        except StoreError as error:
            if self.error is None or str(error) != str(self.error):
                LOG.error("a flush of the consume queues failed: %s", error)
            self.error = without_frames(error)
            if not may_pass(error):
                self._tell(error)
                return False
        else:
            self.error = None
        return True
