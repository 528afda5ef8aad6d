"""A row of files of one size that together are one long sequence of bytes."""

from __future__ import annotations

import errno
import itertools
import logging
import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from pyrocketstore._mapped_file import MappedFile
from pyrocketstore.env import Env, parent_directory
from pyrocketstore.errors import StoreCorruptionError, StoreError, StoreIOError
from pyrocketstore.service_thread import ServiceThread
from pyrocketstore.stalls import NEW_FILE, untimed

__all__ = ["AllocateMappedFileService", "MappedFileQueue", "file_name_of"]

LOG = logging.getLogger(__name__)

FILE_NAME = re.compile(r"[0-9]{20}", re.ASCII)
MAX_OFFSET = (1 << 63) - 1
#: Files that one round of deletion takes at most.
DELETE_FILES_BATCH_MAX = 10
#: Taken and not used, since no file waits for its readers (ms).
DESTROY_INTERVAL_MS = 1000
#: How long a writer waits for its next file (s).
WAIT_TIMEOUT = 5.0
#: What is kept allocated ahead of the commit log's writer (bytes).
AHEAD_SIZE = 32 << 20
#: What is touched of it while the writer has not come far yet (bytes).
IDLE_POPULATE = 1 << 20


def file_name_of(offset: int) -> str:
    """The name of the file whose first byte is the queue's byte `offset`."""
    return f"{offset:020d}"


def _create(
    env: Env,
    path: str,
    file_size: int,
    confirm_step: int,
    populate: int,
    zero_fill: str = "no",
    sole_writer: bool = False,
) -> MappedFile:
    env.make_directories(parent_directory(path))
    mapped_file = MappedFile(
        env,
        path,
        file_size,
        create=True,
        confirm_step=confirm_step,
        populate=populate,
        zero_fill=zero_fill,
        sole_writer=sole_writer,
        defer_force=sole_writer,
    )
    if not mapped_file.created:
        # Whatever it holds is not ours, and must not come to lie behind what is written next.
        raise StoreCorruptionError(path, -1, "the file exists and is not one of the queue's")
    return mapped_file


class MappedFileQueue:
    """Files named after the first byte they hold, each `mapped_file_size` bytes long.

    Parameters
    ----------
    env : Env
    store_path : str, the directory
    mapped_file_size : int, bytes
    read_only : bool; files are read by pread, new ones live in memory, the disk is left alone
    allocate_service : AllocateMappedFileService | None, makes files ahead of need
    confirm_step, populate, zero_fill : for MappedFile
    sole_writer : bool; one thread makes, allocates and writes these files, and `flush` alone says
        what is durable: files are forced with their first flush

    Attributes: `flushed_where` and `committed_where`, bytes of the queue; `store_timestamp`, store
    time (Unix ms) up to which everything is flushed; `mapped_files`, a tuple, by offset.

    Raises StoreIOError. Threads: any may read; one at a time appends.
    Source: RocketMQ 4.9.3 MappedFileQueue.
    """

    def __init__(
        self,
        env: Env,
        store_path: str,
        mapped_file_size: int,
        *,
        read_only: bool = False,
        allocate_service: AllocateMappedFileService | None = None,
        confirm_step: int = 65536,
        populate: int = 0,
        zero_fill: str = "no",
        sole_writer: bool = False,
    ) -> None:
        self.env = env
        self.store_path = store_path
        self.mapped_file_size = mapped_file_size
        self.read_only = read_only
        self.allocate_service = allocate_service
        self.confirm_step = confirm_step
        self.populate = populate
        self.zero_fill = zero_fill
        self.sole_writer = sole_writer
        self.mapped_files: tuple[MappedFile, ...] = ()
        self.flushed_where = 0
        self.committed_where = 0
        self.store_timestamp = 0
        self._lock = threading.Lock()  # over changes of mapped_files
        self._create_lock = threading.Lock()

    # ---- loading and making files -----------------------------------------------------------

    def load(self) -> bool:
        """Take in the files of the directory; each counts as full. True.

        A last file of no length, as a crash leaves it, is dropped (and deleted unless read-only);
        where files are forced later than made (`sole_writer`), any such file.

        Raises StoreCorruptionError naming a file of any other length.
        Source: RocketMQ 4.9.3 MappedFileQueue#load.
        Differs: what is not named by 20 digits is left alone.
        """
        found = self._find_files()
        for entry in reversed(found.copy()):
            _, size, path = entry
            if size > 0:
                if self.sole_writer:
                    continue
                break
            found.remove(entry)
            LOG.warning("%s: has no length and is passed over", path)
            if not self.read_only:
                self.env.remove(path)
        loaded = []
        for name, size, path in found:
            if size != self.mapped_file_size:
                reason = f"the file has {size} bytes and must have {self.mapped_file_size}"
                raise StoreCorruptionError(path, -1, reason)
            if int(name) > MAX_OFFSET - size or int(name) % size:
                raise StoreCorruptionError(path, -1, "the name is no possible offset")
            mapped_file = self._open(path)
            mapped_file.set_positions(size)
            loaded.append(mapped_file)
        with self._lock:
            self.mapped_files = tuple(loaded)
        return True

    def get_last_mapped_file(
        self, start_offset: int | None = None, need_create: bool = True
    ) -> MappedFile | None:
        """The last file; with a `start_offset` (bytes), one that has room, made if need be.

        None when there is none and none may be made. Raises StoreIOError when it cannot be made.
        Source: RocketMQ 4.9.3 MappedFileQueue#getLastMappedFile.
        """
        files = self.mapped_files
        last = files[-1] if files else None
        if start_offset is not None and (last is None or last.is_full()):
            if not need_create:
                return None
            return self._create_next(start_offset)
        if last is not None and self.allocate_service is not None and not last.is_full():
            self.allocate_service.keep_ahead(last)
        return last

    def _create_next(self, start_offset: int) -> MappedFile:
        with self._create_lock:
            files = self.mapped_files
            if files and not files[-1].is_full():
                return files[-1]  # another thread was faster
            if files:
                offset = files[-1].file_from_offset + self.mapped_file_size
            else:
                offset = start_offset - start_offset % self.mapped_file_size
            mapped_file = self._make(offset)
            mapped_file.first_create_in_queue = not files
            with self._lock:
                self.mapped_files = (*self.mapped_files, mapped_file)
            return mapped_file

    def _make(self, offset: int) -> MappedFile:
        path = self._new_path(offset)
        size = self.mapped_file_size
        if self.read_only:
            return MappedFile(self.env, path, size, mode="memory", create=True)
        if self.allocate_service is None:
            return _create(
                self.env,
                path,
                size,
                self.confirm_step,
                self.populate,
                self.zero_fill,
                self.sole_writer,
            )
        next_next_path = self._new_path(offset + size)
        mapped_file = self.allocate_service.put_request_and_return_mapped_file(
            path,
            next_next_path,
            size,
            confirm_step=self.confirm_step,
            populate=self.populate,
            zero_fill=self.zero_fill,
        )
        if mapped_file is None:
            raise StoreIOError(errno.ETIMEDOUT, "create", path)
        return mapped_file

    def _open(self, path: str) -> MappedFile:
        return MappedFile(
            self.env,
            path,
            self.mapped_file_size,
            mode="read" if self.read_only else "shared",
            confirm_step=self.confirm_step,
            populate=self.populate,
            zero_fill=self.zero_fill,
            sole_writer=self.sole_writer,
        )

    def _find_files(self) -> list[tuple[str, int, str]]:
        """(name, bytes, path) of the files that lie there, by name."""
        return [
            (name, size, f"{self.store_path}/{name}")
            for name, size in self.env.list_files(self.store_path)
            if FILE_NAME.fullmatch(name)
        ]

    def _new_path(self, offset: int) -> str:
        """Where the file is made that begins at byte `offset`."""
        return f"{self.store_path}/{file_name_of(offset)}"

    def _directories(self) -> tuple[str, ...]:
        """Where files are made."""
        return (self.store_path,)

    # ---- finding ----------------------------------------------------------------------------

    def get_first_mapped_file(self) -> MappedFile | None:
        """The file with the smallest offset, None when there is none."""
        files = self.mapped_files
        return files[0] if files else None

    def find_mapped_file_by_offset(
        self, offset: int, return_first_on_not_found: bool = False
    ) -> MappedFile | None:
        """The file that holds the queue's byte `offset`, or the first one or None.

        Source: RocketMQ 4.9.3 MappedFileQueue#findMappedFileByOffset.
        """
        files = self.mapped_files
        if not files:
            return None
        size = self.mapped_file_size
        index = offset // size - files[0].file_from_offset // size
        if 0 <= index < len(files) and 0 <= offset - files[index].file_from_offset < size:
            return files[index]
        for mapped_file in files:  # a file is missing in between
            if 0 <= offset - mapped_file.file_from_offset < size:
                return mapped_file
        return files[0] if return_first_on_not_found else None

    def get_mapped_file_by_time(self, timestamp: int) -> MappedFile | None:
        """The first file modified at or after `timestamp` (Unix ms), else the last one."""
        files = self.mapped_files
        for mapped_file in files:
            if mapped_file.last_modified_ms() >= timestamp:
                return mapped_file
        return files[-1] if files else None

    def check_self(self) -> bool:
        """True when every file begins where the one before it ends; a gap is logged."""
        whole = True
        files = self.mapped_files
        for before, after in itertools.pairwise(files):
            if after.file_from_offset - before.file_from_offset != self.mapped_file_size:
                LOG.error("%s: does not follow %s", after.path, before.path)
                whole = False
        return whole

    # ---- positions --------------------------------------------------------------------------

    def get_min_offset(self) -> int:
        """The first byte there is, -1 without files."""
        first = self.get_first_mapped_file()
        return -1 if first is None else first.file_from_offset

    def get_max_offset(self) -> int:
        """Behind the last byte that readers may see, 0 without files."""
        files = self.mapped_files
        return files[-1].file_from_offset + files[-1].get_read_position() if files else 0

    def get_max_wrote_position(self) -> int:
        """Behind the last byte written, 0 without files."""
        files = self.mapped_files
        return files[-1].file_from_offset + files[-1].wrote if files else 0

    def remain_how_many_data_to_commit(self) -> int:
        """Bytes written and not committed."""
        return self.get_max_wrote_position() - self.committed_where

    def remain_how_many_data_to_flush(self) -> int:
        """Bytes readable and not flushed."""
        return self.get_max_offset() - self.flushed_where

    def how_much_fall_behind(self) -> int:
        """Bytes that the flush is behind the writer; 0 while nothing was flushed."""
        if self.flushed_where == 0:
            return 0
        return self.get_max_wrote_position() - self.flushed_where

    def get_mapped_memory_size(self) -> int:
        """Bytes of all files that are available."""
        return sum(self.mapped_file_size for file in self.mapped_files if file.is_available())

    # ---- forcing ----------------------------------------------------------------------------

    def flush(self, flush_least_pages: int) -> bool:
        """Force one file, the one that `flushed_where` lies in; True when nothing moved.

        Raises StoreIOError; nothing counts as flushed then.
        Durability: everything below `flushed_where` is on the device.
        Source: RocketMQ 4.9.3 MappedFileQueue#flush.
        Differs: goes on behind files that are not there.
        """
        start = self.flushed_where
        mapped_file = self.find_mapped_file_by_offset(start, start == 0)
        if mapped_file is None:
            behind = (f for f in self.mapped_files if f.file_from_offset > start)
            mapped_file = next(behind, None)
            if mapped_file is None:
                return True
        timestamp = mapped_file.store_timestamp
        if mapped_file.is_available():
            where = mapped_file.file_from_offset + mapped_file.flush(flush_least_pages)
        else:
            where = mapped_file.file_from_offset + self.mapped_file_size
        self.flushed_where = where
        if flush_least_pages == 0:
            self.store_timestamp = timestamp
        return where == start

    def commit(self, commit_least_pages: int) -> bool:
        """Bring written bytes to the file's mapping, where they already are: True, nothing moved.

        Source: RocketMQ 4.9.3 MappedFileQueue#commit, without a transient store pool.
        """
        start = self.committed_where
        mapped_file = self.find_mapped_file_by_offset(start, start == 0)
        if mapped_file is None:
            return True
        mapped_file.committed = mapped_file.wrote
        self.committed_where = mapped_file.file_from_offset + mapped_file.committed
        return self.committed_where == start

    # ---- cutting and deleting ---------------------------------------------------------------

    def truncate_dirty_files(self, offset: int) -> None:
        """End the queue at the byte `offset`: later files go, the rest of its file is zeroed.

        A file that ends at `offset` stays full. Read-only: the positions alone.

        Raises StoreIOError. Source: RocketMQ 4.9.3 MappedFileQueue#truncateDirtyFiles.
        Differs: 4.9.3 leaves the bytes behind the cut, and may find messages in them again.
        """
        size = self.mapped_file_size
        # From the last file on, each for good, so that a crash leaves a row without a hole.
        for mapped_file in reversed(self.mapped_files):
            start = mapped_file.file_from_offset
            if start + size <= offset:
                break
            if offset >= start:
                mapped_file.set_positions(offset - start)
                if mapped_file.mode != "read":
                    mapped_file.zero_tail(offset - start)
            else:
                self._destroy(mapped_file)
                self.force_names()

    def force_names(self) -> None:
        """Bring the names in the directory down: what was deleted does not come back."""
        if not self.read_only and self.env.is_dir(self.store_path):
            self.env.fsync_directory(self.store_path)

    def reset_offset(self, offset: int) -> bool:
        """End the queue at `offset` unless more than two files' worth lies behind it.

        Source: RocketMQ 4.9.3 MappedFileQueue#resetOffset. Differs: there it changes nothing.
        """
        if self.get_max_wrote_position() - offset > 2 * self.mapped_file_size:
            return False
        self.truncate_dirty_files(offset)
        return True

    def delete_files_before(self, offset: int) -> int:
        """Delete the files that end before the byte `offset`; how many went."""
        count = 0
        for mapped_file in self.mapped_files:
            if mapped_file.file_from_offset + self.mapped_file_size >= offset:
                break
            self._destroy(mapped_file)
            count += 1
        return count

    def delete_expired_file_by_time(
        self,
        expired_ms: int,
        delete_files_interval_ms: int = 0,
        interval_forcibly_ms: int = 0,
        clean_immediately: bool = False,
        before: int = MAX_OFFSET,
    ) -> int:
        """Delete files not modified for `expired_ms`, oldest first; how many went.

        The last file stays, what does not end at or before the byte `before` too, and at most 10 go
        in one call. Raises StoreIOError for a file that cannot be deleted.
        Source: RocketMQ 4.9.3 MappedFileQueue#deleteExpiredFileByTime.
        """
        candidates = self.mapped_files[:-1][:DELETE_FILES_BATCH_MAX]
        count = 0
        for mapped_file in candidates:
            if mapped_file.file_from_offset + self.mapped_file_size > before:
                break
            expires = mapped_file.last_modified_ms() + expired_ms
            if self.env.now_ms() < expires and not clean_immediately:
                break
            if count and delete_files_interval_ms > 0:
                self.env.sleep(delete_files_interval_ms / 1000)
            self._destroy(mapped_file, interval_forcibly_ms)
            count += 1
        return count

    def delete_expired_file_by_offset(
        self, offset: int, last_offset_of: Callable[[MappedFile], int]
    ) -> int:
        """Delete files whose last unit names a number below `offset`; how many went.

        `last_offset_of` gives that number. The last file stays.
        Source: RocketMQ 4.9.3 MappedFileQueue#deleteExpiredFileByOffset.
        """
        count = 0
        for mapped_file in self.mapped_files[:-1]:
            if mapped_file.is_available() and last_offset_of(mapped_file) >= offset:
                break
            self._destroy(mapped_file)
            count += 1
        return count

    def retry_delete_first_file(self, interval_forcibly_ms: int = 0) -> bool:
        """Delete the first file if an earlier try failed; True when it went."""
        first = self.get_first_mapped_file()
        if first is None or first.is_available():
            return False
        self._destroy(first, interval_forcibly_ms)
        return True

    def delete_last_mapped_file(self) -> None:
        """Delete the last file, if there is one. Durability: for good."""
        files = self.mapped_files
        if files:
            self._destroy(files[-1])
            self.force_names()

    def unmap_idle(self) -> int:
        """Drop the mappings that nobody holds; how many went."""
        return sum(mapped_file.unmap_idle() for mapped_file in self.mapped_files)

    def shutdown(self, interval_ms: int = DESTROY_INTERVAL_MS) -> None:
        """Make every file unavailable; mappings go with their last holds."""
        for mapped_file in self.mapped_files:
            mapped_file.shutdown(interval_ms)

    def destroy(self) -> None:
        """Delete every file, and the directory when nothing else is in it."""
        for mapped_file in reversed(self.mapped_files):
            self._destroy(mapped_file)
        self.flushed_where = 0
        for directory in () if self.read_only else self._directories():
            if not self.env.is_dir(directory):
                continue
            try:
                self.env.rmdir(directory)
            except StoreIOError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise

    def _destroy(self, mapped_file: MappedFile, interval_ms: int = DESTROY_INTERVAL_MS) -> None:
        mapped_file.destroy(interval_ms)
        with self._lock:
            self.mapped_files = tuple(f for f in self.mapped_files if f is not mapped_file)


class _AllocateRequest:
    def __init__(
        self, path: str, file_size: int, confirm_step: int, populate: int, zero_fill: str
    ) -> None:
        self.path = path
        self.file_size = file_size
        self.confirm_step = confirm_step
        self.populate = populate
        self.zero_fill = zero_fill
        self.mapped_file: MappedFile | None = None
        self.error: StoreError | OSError | None = None


class AllocateMappedFileService(ServiceThread):
    """Makes files before they are needed, and keeps room allocated ahead of the writer.

    Parameters
    ----------
    env : Env
    ahead_size : int, bytes behind the writer that stay allocated

    Attributes: `last_error`, why the last file could not be made or extended, None when it could;
    `ahead_event`, signalled (by compiled code too) when the writer has come near the end of what
    is allocated.

    Threads: one works; any may ask. Source: RocketMQ 4.9.3 AllocateMappedFileService.
    Differs: an error reaches the caller, the next request tries again, the thread lives on.
    """

    def __init__(self, env: Env, ahead_size: int = AHEAD_SIZE) -> None:
        super().__init__("AllocateMappedFileService")
        self.ahead_size = ahead_size
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
        self,
        next_path: str,
        next_next_path: str | None,
        file_size: int,
        *,
        confirm_step: int = 65536,
        populate: int = 0,
        zero_fill: str = "no",
    ) -> MappedFile | None:
        """The file `next_path`, made now or earlier; `next_next_path` is made in the background.

        None when that takes longer than five seconds; the next call waits on. The file is watched
        from then on, as by `keep_ahead`. Raises what making it raised (StoreIOError).
        """
        with self._changed:
            request = self._requests.get(next_path)
            if request is None or request.error is not None:
                request = _AllocateRequest(next_path, file_size, confirm_step, populate, zero_fill)
                self._requests[next_path] = request
            if next_next_path is not None and next_next_path not in self._requests:
                self._requests[next_next_path] = _AllocateRequest(
                    next_next_path, file_size, confirm_step, populate, zero_fill
                )
        if self.is_alive and self.failure is None:
            self.wakeup()
            with self._changed:
                self._changed.wait_for(lambda: self._is_done(request) or self.stopped, WAIT_TIMEOUT)
        else:
            self._work(request)
        with self._changed:
            if not self._is_done(request):
                return None
            self._requests.pop(next_path, None)
        if request.error is not None:
            raise request.error
        if request.mapped_file is not None:
            self.keep_ahead(request.mapped_file)
        return request.mapped_file

    def keep_ahead(self, mapped_file: MappedFile) -> None:
        """Watch the file that is written to now: see `ahead_event`. Threads: any."""
        if mapped_file is not self._watched:
            if self._watched_from < 0:
                self._watched_from = mapped_file.file_from_offset + mapped_file.wrote
            self._watched = mapped_file
            self.wakeup()

    def run(self) -> None:
        """The thread's loop."""
        while not self.stopped:
            self.wait_for_running(None)
            while not self.stopped:
                request = self._next_request()
                if request is None:
                    break
                self._work(request)
            if not self.stopped:
                self._work_ahead()

    def on_failure(self, error: BaseException) -> None:
        """The thread has died: who waits for a file gets an error now."""
        with self._changed:
            for request in self._requests.values():
                if not self._is_done(request):
                    request.error = StoreIOError(errno.ECANCELED, "create", request.path)
            self._changed.notify_all()

    def shutdown(self, timeout: float | None = 90.0) -> bool:
        """End the thread, and delete the files that were made and not used."""
        ended = super().shutdown(timeout)
        self._watched = None
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
        return min(waiting, key=lambda r: (-r.file_size, r.path), default=None)

    def _work(self, request: _AllocateRequest) -> None:
        mapped_file: MappedFile | None = None
        error: StoreError | OSError | None = None
        try:
            with self.timed(NEW_FILE):
                mapped_file = _create(
                    self._env,
                    request.path,
                    request.file_size,
                    request.confirm_step,
                    request.populate,
                    request.zero_fill,
                )
        except (StoreError, OSError) as failure:
            error = failure
        with self._changed:
            self.last_error = error
            request.mapped_file, request.error = mapped_file, error
            if error is not None:
                self._forget_behind(request.path)
            self._changed.notify_all()

    def _forget_behind(self, path: str) -> None:
        """A file that could not be made must not be followed by one that could: a row with a hole
        would be what a crash leaves. Call with `_changed` held."""
        folder = parent_directory(path)
        for other in list(self._requests):
            behind = other > path and parent_directory(other) == folder
            if behind and not self._is_done(self._requests[other]):
                del self._requests[other]

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
            self.last_error = error
            LOG.warning("cannot allocate ahead of the writer: %s", error)

    def _keep_one_ahead(self, mapped_file: MappedFile) -> None:
        populate = mapped_file.populate
        if mapped_file.zero_fill == "pages":  # each write is dear: a window only
            mapped_file.keep_ahead(mapped_file.confirm_step, populate)
            return
        moved = mapped_file.file_from_offset + mapped_file.wrote - self._watched_from
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
