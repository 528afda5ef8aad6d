"""Files of the log are made before they are needed, and room is kept ahead of their writer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from pyrocketstore._mapped_file import OS_PAGE_SIZE, MappedFile
from pyrocketstore.config import MessageStoreConfig
from pyrocketstore.display import logger
from pyrocketstore.env import Env, parent_directory
from pyrocketstore.errors import StoreCorruptionError, StoreError, StoreIOError, without_frames
from pyrocketstore.service_thread import ServiceThread
from pyrocketstore.stalls import NEW_FILE, untimed
from pyrocketstore.transient_store_pool import TransientStorePool

__all__ = [
    "AllocateMappedFileService",
    "FileSettings",
    "create_mapped_file",
    "make_allocate_service",
]

LOG = logger(__name__)

#: How long a writer waits for its next file (s).
WAIT_TIMEOUT = 5.0
#: What is kept allocated ahead of the commit log's writer (bytes).
AHEAD_SIZE = 32 << 20
#: How long a warmed file stays locked in memory after the log has gone on to the next (ms).
UNLOCK_AFTER_MS = 6000
#: What is touched of it while the writer has not come far yet (bytes).
IDLE_POPULATE = 1 << 20


class FileSettings(NamedTuple):
    """How the files of a queue are made and opened: what MappedFile takes.

    `file_size`, `confirm_step` and `populate` are bytes; `sole_writer`: see MappedFileQueue too.
    """

    file_size: int
    confirm_step: int = 65536
    populate: int = 0
    zero_fill: str = "no"
    sole_writer: bool = False
    by_write: bool = False

    def open(
        self,
        env: Env,
        path: str,
        *,
        mode: str = "shared",
        create: bool = False,
        partial: bool = False,
    ) -> MappedFile:
        """One of the files. Raises StoreIOError, and StoreCorruptionError for another length."""
        return MappedFile(
            env,
            path,
            self.file_size,
            mode=mode,
            create=create,
            partial=partial,
            confirm_step=self.confirm_step,
            populate=self.populate,
            zero_fill=self.zero_fill,
            sole_writer=self.sole_writer,
            defer_force=self.sole_writer,
            by_write=self.by_write,
        )


def create_mapped_file(env: Env, path: str, settings: FileSettings) -> MappedFile:
    """Make a file, and its directory.

    Raises StoreIOError, and StoreCorruptionError where a file of that name is there already.
    """
    env.make_directories(parent_directory(path))
    mapped_file = settings.open(env, path, create=True)
    if not mapped_file.created:
        # Whatever it holds is not ours, and must not come to lie behind what is written next.
        raise StoreCorruptionError(path, -1, "the file exists and is not one of the queue's")
    return mapped_file


class _AllocateRequest:
    def __init__(self, path: str, settings: FileSettings) -> None:
        self.path = path
        self.settings = settings
        self.mapped_file: MappedFile | None = None
        self.error: StoreError | OSError | None = None


class AllocateMappedFileService(ServiceThread):
    """Makes files before they are needed, and keeps room allocated ahead of the writer.

    Parameters
    ----------
    env : Env
    ahead_size : int, bytes behind the writer that stay allocated
    pool : TransientStorePool | None; each file gets one of its buffers
    fast_fail : bool; without a buffer no file is made, instead of one that is written directly
    warm_up : int, pages that are made at a time when a whole file is touched and locked in memory
        before its use; 0: a window ahead of the writer is touched

    Attributes: `last_error`, why the last file could not be made or extended, None when it could;
    `ahead_event`, signalled (by compiled code too) when the writer has come near the end of what
    is allocated.

    Threads: one works; any may ask. Source: RocketMQ 4.9.3 AllocateMappedFileService.
    Differs: an error reaches the caller, the next request tries again; where the thread has died,
    whoever needs a file makes it.
    """

    def __init__(
        self,
        env: Env,
        ahead_size: int = AHEAD_SIZE,
        *,
        pool: TransientStorePool | None = None,
        fast_fail: bool = False,
        warm_up: int = 0,
    ) -> None:
        super().__init__("AllocateMappedFileService")
        self.ahead_size = ahead_size
        self.pool = pool
        self.fast_fail = fast_fail
        self.warm_up = warm_up
        self._lock_refused = False
        self._locked: list[MappedFile] = []  # in memory, and held
        self._unlock_at: list[tuple[int, MappedFile]] = []  # the time (ms), oldest first
        self.ahead_event = self.event
        self.last_error: StoreError | OSError | None = None
        #: times the making of a file: what is slow is logged
        self.timed: Callable[[str], AbstractContextManager[None]] = untimed
        self._env = env
        self._requests: dict[str, _AllocateRequest] = {}
        self._changed = threading.Condition()
        self._watched: MappedFile | None = None
        self._watched_from = -1  # byte of the queue at which the first file was watched

    def put_request_and_return_mapped_file(
        self, next_path: str, next_next_path: str | None, settings: FileSettings
    ) -> MappedFile | None:
        """The file `next_path`, made now or earlier; `next_next_path` is made in the background.

        None when that takes longer than five seconds; the next call waits on. With `fast_fail`,
        None at once when there is no buffer for it. The file is watched from then on, as by
        `keep_ahead`. Raises what making it raised (StoreIOError).
        """
        with self._changed:
            quota = self._quota()
            request = self._requests.get(next_path)
            if request is None or request.error is not None:
                if quota <= 0:
                    LOG.warning("%s: no buffer of the store pool is left for it", next_path)
                    return None
                quota -= 1
                request = self._requests[next_path] = _AllocateRequest(next_path, settings)
            if next_next_path is not None and next_next_path not in self._requests and quota > 0:
                self._requests[next_next_path] = _AllocateRequest(next_next_path, settings)
        self._wait_for(request)
        with self._changed:
            if not self._is_done(request):
                return None
            self._requests.pop(next_path, None)
        if request.error is not None:
            raise without_frames(request.error)
        if request.mapped_file is not None:
            self.keep_ahead(request.mapped_file)
        return request.mapped_file

    def _quota(self) -> int:
        """How many files may be asked for now."""
        if self.pool is None or not self.fast_fail:
            return 2
        queued = sum(not self._is_done(request) for request in self._requests.values())
        return self.pool.available_buffer_nums() - queued

    def is_transient_store_pool_deficient(self) -> bool:
        """True when there is a pool and all its buffers are lent."""
        return self.pool is not None and self.pool.available_buffer_nums() == 0

    def _wait_for(self, request: _AllocateRequest) -> None:
        if self.is_alive and self.failure is None:
            self.wakeup()
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_done(request) or self.stopped or self.failure is not None,
                    WAIT_TIMEOUT,
                )
        if not (self._is_done(request) or (self.is_alive and self.failure is None)):
            self._work(request)

    def on_failure(self, error: BaseException) -> None:
        """The thread has died: who waits for a file makes it."""
        with self._changed:
            self._changed.notify_all()

    def keep_ahead(self, mapped_file: MappedFile) -> None:
        """Watch the file that is written to now: see `ahead_event`. Threads: any."""
        if mapped_file is not self._watched:
            if self._watched_from < 0:
                self._watched_from = mapped_file.file_from_offset + mapped_file.appended
            if self._watched in self._locked:
                self._unlock_at.append((self._env.monotonic_ms() + UNLOCK_AFTER_MS, self._watched))
            self._watched = mapped_file
            self.wakeup()

    def run(self) -> None:
        """The thread's loop."""
        while not self.stopped:
            self.wait_for_running(UNLOCK_AFTER_MS if self._unlock_at else None)
            self._unlock(self._env.monotonic_ms())
            while not self.stopped:
                request = self._next_request()
                if request is None:
                    break
                self._work(request)
            if not self.stopped:
                self._work_ahead()

    def shutdown(self, timeout: float | None = 90.0) -> bool:
        """End the thread, and delete the files that were made and not used."""
        ended = super().shutdown(timeout)
        self._watched = None
        self._unlock_at = [(0, mapped_file) for mapped_file in self._locked]
        self._unlock(0)
        with self._changed:
            requests = list(self._requests.values())
            self._requests.clear()
            self._changed.notify_all()
        for request in requests:
            if request.mapped_file is not None:
                try:
                    request.mapped_file.destroy()
                except StoreError as error:
                    # Recovery takes such a file away as well.
                    LOG.warning("a file that was made ahead stays: %s", error)
        return ended

    @staticmethod
    def _is_done(request: _AllocateRequest) -> bool:
        return request.mapped_file is not None or request.error is not None

    def _next_request(self) -> _AllocateRequest | None:
        with self._changed:
            waiting = [r for r in self._requests.values() if not self._is_done(r)]
        # Larger files first: the commit log's. Then the one that is needed first.
        return min(waiting, key=lambda r: (-r.settings.file_size, r.path), default=None)

    def _work(self, request: _AllocateRequest) -> None:
        mapped_file: MappedFile | None = None
        error: StoreError | OSError | None = None
        try:
            with self.timed(NEW_FILE):
                mapped_file = self._make(request)
        except (StoreError, OSError) as failure:
            error = failure
        with self._changed:
            self.last_error = None if error is None else without_frames(error)
            request.mapped_file, request.error = mapped_file, error
            if error is not None:
                self._forget_behind(request.path)
            self._changed.notify_all()

    def _make(self, request: _AllocateRequest) -> MappedFile:
        mapped_file = create_mapped_file(self._env, request.path, request.settings)
        if self.pool is not None:
            buffer = self.pool.borrow_buffer()
            if buffer is not None:
                mapped_file.use_buffer(buffer)
        if self.warm_up:
            self._warm(mapped_file)
        return mapped_file

    def _forget_behind(self, path: str) -> None:
        """A file that could not be made must not be followed by one that could: a row with a hole
        would be what a crash leaves. Call with `_changed` held."""
        folder = parent_directory(path)
        for other in list(self._requests):
            behind = other > path and parent_directory(other) == folder
            if behind and not self._is_done(self._requests[other]):
                del self._requests[other]

    def _warm(self, mapped_file: MappedFile) -> None:
        """Make every page of a file before it is written to, and keep it in memory.

        Source: RocketMQ 4.9.3 MappedFile#warmMappedFile. Differs: sizes have 64 bits; the pages are
        allocated, so that no store meets a full device.
        """
        size = mapped_file.file_size
        step = self.warm_up * OS_PAGE_SIZE if mapped_file.zero_fill == "pages" else size
        # Pages that nobody stores to need not be touched.
        touch = not mapped_file.has_buffer and mapped_file.zero_fill != "pages"
        for end in range(step, size + step, step):
            mapped_file.keep_ahead(min(end, size), min(end, size) if touch else 0)
        if self._lock_refused or not mapped_file.hold():
            return
        try:
            self._env.mlock(mapped_file.address, size, mapped_file.path)
        except StoreIOError as error:
            mapped_file.release()
            self._lock_refused = True
            LOG.warning("log files may be swapped out: %s (see RLIMIT_MEMLOCK)", error)
        else:
            self._locked.append(mapped_file)

    def _unlock(self, now_ms: int) -> None:
        while self._unlock_at and self._unlock_at[0][0] <= now_ms:
            mapped_file = self._unlock_at.pop(0)[1]
            self._locked.remove(mapped_file)
            try:
                self._env.munlock(mapped_file.address, mapped_file.file_size, mapped_file.path)
            except StoreIOError as error:
                LOG.warning("%s: stays locked in memory: %s", mapped_file.path, error)
            finally:
                mapped_file.release()

    def _work_ahead(self) -> None:
        watched = self._watched
        if watched is None:
            return
        try:
            self._keep_one_ahead(watched)
            if watched.confirmed == watched.file_size:
                with self._changed:
                    ready = [r.mapped_file for r in self._requests.values() if r.mapped_file]
                for mapped_file in ready[:1]:
                    self._keep_one_ahead(mapped_file)
        except (StoreError, OSError) as error:
            # The writer meets the same error when it gets there, and reports it.
            self.last_error = without_frames(error)
            LOG.warning("cannot allocate ahead of the writer: %s", error)

    def _keep_one_ahead(self, mapped_file: MappedFile) -> None:
        if mapped_file.zero_fill == "pages":  # each write is dear: a window only
            mapped_file.keep_ahead(mapped_file.confirm_step)
            return
        populate = mapped_file.populate
        moved = mapped_file.file_from_offset + mapped_file.appended - self._watched_from
        if moved < self.ahead_size:
            # A store that is opened for a few messages should not dirty a hundred megabytes.
            populate = min(populate, IDLE_POPULATE)
        if mapped_file.zero_fill == "folios":
            if moved < self.ahead_size:
                mapped_file.fill_ahead(populate)
            else:
                mapped_file.fill_ahead(self.ahead_size, self.ahead_event)
            return
        mapped_file.keep_ahead(self.ahead_size, populate)


def make_allocate_service(env: Env, config: MessageStoreConfig) -> AllocateMappedFileService:
    """The service that the settings ask for, and its pool. Raises StoreIOError without memory."""
    pool = None
    if config.is_transient_store_pool_enable:
        pool = TransientStorePool(
            env, config.transient_store_pool_size, config.mapped_file_size_commit_log
        )
    warm = config.warm_maped_file_enable
    return AllocateMappedFileService(
        env,
        pool=pool,
        fast_fail=config.fast_fail_if_no_buffer_in_store_pool,
        warm_up=max(1, config.flush_least_pages_when_warm_maped_file) if warm else 0,
    )
