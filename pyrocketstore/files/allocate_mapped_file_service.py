"""AllocateMappedFileService: make log files before they are needed, and allocate ahead of the
writer.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreCorruptionError, StoreError, StoreIOError, without_frames
from pyrocketstore.files._mapped_file import OS_PAGE_SIZE, MappedFile
from pyrocketstore.files.transient_store_pool import TransientStorePool
from pyrocketstore.system.env import Env, parent_directory
from pyrocketstore.system.service_thread import ServiceThread
from pyrocketstore.system.stalls import NEW_FILE, untimed

__all__ = [
    "AllocateMappedFileService",
    "FileSettings",
    "create_mapped_file",
    "file_settings",
    "make_allocate_service",
]

LOG = logger(__name__)

#: How long a writer waits for its next file (s).
WAIT_TIMEOUT = 5.0
#: Bytes that stay allocated ahead of the commit log's writer.
AHEAD_SIZE = 32 << 20
#: How long a warmed file stays locked in memory after the log has begun the next file (ms).
UNLOCK_AFTER_MS = 6000
#: Bytes whose pages are touched ahead while the writer has written little.
IDLE_POPULATE = 1 << 20


class FileSettings(NamedTuple):
    """How the files of a sequence are made and opened: arguments of MappedFile.

    `file_size`, `confirm_step` and `populate` are bytes; `sole_writer`: see MappedFileQueue too.
    """

    file_size: int
    confirm_step: int = 65536
    populate: int = 0
    zero_fill: str = "no"
    sole_writer: bool = False
    by_write: bool = False

    def open(self, env: Env, path: str, **how: Any) -> MappedFile:
        """Open one file; `how` are further arguments of MappedFile. Raises StoreIOError;
        StoreCorruptionError for another length.
        """
        return MappedFile(
            env,
            path,
            self.file_size,
            confirm_step=self.confirm_step,
            populate=self.populate,
            zero_fill=self.zero_fill,
            sole_writer=self.sole_writer,
            defer_fsync=self.sole_writer,
            by_write=self.by_write,
            **how,
        )


#: Returns the settings of many sequences of files as one object.
file_settings = functools.lru_cache(FileSettings)


def create_mapped_file(
    env: Env, path: str, settings: FileSettings, *, mapped: bool = False
) -> MappedFile:
    """Make a file, and its directory. `mapped`: see MappedFile.

    Durability: the names are durable on return; with `sole_writer`, when the first flush returns.
    Raises StoreIOError; StoreCorruptionError when a file of that name exists.
    """
    env.make_directories(parent_directory(path), durable=not settings.sole_writer)
    mapped_file = settings.open(env, path, create=True, mapped=mapped)
    if not mapped_file.created:
        # Its content is unknown, and must not follow the next records.
        raise StoreCorruptionError(path, -1, "the file exists and is not part of the file sequence")
    return mapped_file


class _AllocateRequest:
    def __init__(self, path: str, settings: FileSettings) -> None:
        self.path = path
        self.settings = settings
        self.mapped_file: MappedFile | None = None
        self.error: StoreError | OSError | None = None


class AllocateMappedFileService(ServiceThread):
    """Make files before they are needed, and keep room allocated ahead of the writer.

    Parameters
    ----------
    env : Env
    ahead_size : int, bytes after the writer that stay allocated
    pool : TransientStorePool | None; each file gets one of its buffers
    fast_fail : bool; without a free buffer no file is made, rather than one without a buffer
    warm_up : int, pages per step when a whole file is touched and locked in memory before its use;
        0: only a window ahead of the writer is touched

    Attributes: `last_error`, why the last file could not be made or extended, None when it could;
    `ahead_event`, signalled (also by compiled code) when the writer comes near the end of the
    allocated bytes.

    Threads: one works; any may request. Source: RocketMQ 4.9.3 AllocateMappedFileService.
    Differs: an error reaches the caller, and the next request tries again; when the thread has
    died, the caller makes the file.
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
        #: times the making of a file; slow calls are logged
        self.timed: Callable[[str], AbstractContextManager[None]] = untimed
        self._env = env
        self._requests: dict[str, _AllocateRequest] = {}
        self._changed = threading.Condition()
        self._watched: MappedFile | None = None
        self._watched_from = -1  # byte of the sequence from which the first file was watched

    def put_request_and_return_mapped_file(
        self, next_path: str, next_next_path: str | None, settings: FileSettings
    ) -> MappedFile | None:
        """Return the file `next_path`, made now or earlier; make `next_next_path` in the
        background.

        None after five seconds; the next call continues to wait. With `fast_fail`, None at once
        when no buffer is free. The file is watched from then on, as by `keep_ahead`. Raises the
        error of making it (StoreIOError).
        """
        with self._changed:
            quota = self._quota()
            request = self._requests.get(next_path)
            if request is None or request.error is not None:
                if quota <= 0:
                    LOG.warning("%s: no buffer of the store pool is free for this file", next_path)
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
        """Return how many files may be requested now."""
        if self.pool is None or not self.fast_fail:
            return 2
        queued = sum(not self._is_done(request) for request in self._requests.values())
        return self.pool.available_buffer_nums() - queued

    def is_transient_store_pool_deficient(self) -> bool:
        """Return True when there is a pool and all its buffers are lent."""
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
        """Wake the callers that wait for a file: they make it themselves."""
        with self._changed:
            self._changed.notify_all()

    def keep_ahead(self, mapped_file: MappedFile) -> None:
        """Watch the current file: see `ahead_event`. Threads: any."""
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
        """End the thread, and delete files that were made and not used."""
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
                    # Recovery deletes such a file too.
                    LOG.warning("an unused file that was made ahead cannot be deleted: %s", error)
        return ended

    @staticmethod
    def _is_done(request: _AllocateRequest) -> bool:
        return request.mapped_file is not None or request.error is not None

    def _next_request(self) -> _AllocateRequest | None:
        with self._changed:
            waiting = [r for r in self._requests.values() if not self._is_done(r)]
        # Larger files first, those of the commit log; then the file that is needed first.
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
                self._forget_after(request.path)
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

    def _forget_after(self, path: str) -> None:
        """Drop requests for files after one that could not be made: a crash would leave a gap.

        Call with `_changed` held.
        """
        folder = parent_directory(path)
        for other in list(self._requests):
            behind = other > path and parent_directory(other) == folder
            if behind and not self._is_done(self._requests[other]):
                del self._requests[other]

    def _warm(self, mapped_file: MappedFile) -> None:
        """Allocate and touch every page of a file before its use, and lock it in memory.

        Source: RocketMQ 4.9.3 MappedFile#warmMappedFile. Differs: sizes have 64 bits; the pages are
        allocated on the device, so that no store meets a full device.
        """
        size = mapped_file.file_size
        step = self.warm_up * OS_PAGE_SIZE if mapped_file.zero_fill == "pages" else size
        # Pages without stores need not be touched.
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
                LOG.warning("%s: cannot be unlocked in memory: %s", mapped_file.path, error)
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
            # The writer meets the same error later, and reports it.
            self.last_error = without_frames(error)
            LOG.warning("cannot allocate ahead of the writer: %s", error)

    def _keep_one_ahead(self, mapped_file: MappedFile) -> None:
        if mapped_file.zero_fill == "pages":  # writes are expensive: only a small window
            mapped_file.keep_ahead(mapped_file.confirm_step)
            return
        populate = mapped_file.populate
        moved = mapped_file.file_from_offset + mapped_file.appended - self._watched_from
        if moved < self.ahead_size:
            # A store that is opened for a few messages must not dirty a hundred megabytes.
            populate = min(populate, IDLE_POPULATE)
        if mapped_file.zero_fill == "folios":
            if moved < self.ahead_size:
                mapped_file.fill_ahead(populate)
            else:
                mapped_file.fill_ahead(self.ahead_size, self.ahead_event)
            return
        mapped_file.keep_ahead(self.ahead_size, populate)


def make_allocate_service(env: Env, config: MessageStoreConfig) -> AllocateMappedFileService:
    """Make the service and its pool, as the settings say. Raises StoreIOError without memory."""
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
