"""Retention by rules that 4.9.3 does not have: age of messages, size of the log, free space.

Whole files of the log are deleted, the oldest first, and never the last one.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyrocketstore.cleaning.expired_files import CleanConsumeQueueService
from pyrocketstore.commit_log._scan import walk_records
from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreError, StoreIOError
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.results import Status
from pyrocketstore.system.env import Env
from pyrocketstore.system.periodic import PeriodicService

__all__ = ["LogRetention", "RetentionService", "Trimmed"]

LOG = logger(__name__)

#: Bytes that are read at once while a file is searched for its newest message.
READ_SIZE = 4 << 20
#: A longer record counts as damage, since a wrong size must not fill the memory.
RECORD_SIZE_MAX = 64 << 20
_SYS_FLAG_AT, _STORE_TIME_AT = 36, 56
_BORNHOST_V6_FLAG, _V6_EXTRA = 0x10, 12
_MILLISECOND = datetime.timedelta(milliseconds=1)


class Trimmed(NamedTuple):
    """The files of the log that a call has deleted.

    files : int; size : int, their length in bytes
    """

    files: int
    size: int


class LogRetention:
    """Delete the oldest files of the log by the store times of their messages, or by sizes.

    Parameters
    ----------
    dispatched : callable that returns the byte of the log up to which records are dispatched; a
        file that ends after it is kept
    lock : held while a file is deleted; cleaning by 4.9.3's rules takes it too

    A file that could not be deleted is tried again by the next call.

    Threads: any.
    """

    def __init__(
        self,
        env: Env,
        config: MessageStoreConfig,
        commit_log: CommitLog,
        dispatched: Callable[[], int],
        lock: threading.Lock,
    ) -> None:
        self.env = env
        self.config = config
        self.commit_log = commit_log
        self.dispatched = dispatched
        self.lock = lock
        #: called while a file is read: True ends the call, which keeps the file
        self.is_stopping: Callable[[], bool] = lambda: False
        #: of files whose last record is written: first byte -> store time of the newest message
        self._newest: dict[int, int] = {}

    def apply(self) -> Trimmed:
        """Delete what `retention_age`, `retention_bytes` and `retention_free_bytes` no longer keep.

        Raises StoreError, the first one, after each of the three was applied: a file that cannot be
        read or deleted, or a disk whose room is not known.
        """
        files = size = 0
        failure: StoreError | None = None
        for rule in (self.delete_expired, self.delete_oversize, self.delete_for_room):
            try:
                done = rule()
            except StoreError as error:
                failure = failure or error
                continue
            files, size = files + done.files, size + done.size
        if files:
            LOG.info("the retention deleted %d files of the log, %d bytes", files, size)
        if failure is not None:
            raise failure
        return Trimmed(files, size)

    def delete_expired(self) -> Trimmed:
        """Delete the first files whose newest message is older than `retention_age`."""
        age = self.config.retention_age
        if age is None:
            return Trimmed(0, 0)
        return self.delete_older(self.env.now_ms() - age // _MILLISECOND)

    def delete_older(self, before_ms: int) -> Trimmed:
        """Delete the first files whose newest message was stored before `before_ms` (Unix ms).

        Raises StoreIOError.
        """
        return self._delete_while(lambda file: self._is_older(file, before_ms))

    def delete_oversize(self) -> Trimmed:
        """Delete the oldest files while the log has more than `retention_bytes`."""
        limit, log = self.config.retention_bytes, self.commit_log.mapped_file_queue
        if limit == 0:
            return Trimmed(0, 0)
        return self._delete_while(lambda file: len(log.mapped_files) * log.mapped_file_size > limit)

    def delete_for_room(self) -> Trimmed:
        """Delete the oldest files while a disk of the log has less room than
        `retention_free_bytes`.

        A disk may show the room of a file later, when no reader holds it any more. Each deleted
        file therefore counts as room at once, and a later call deletes what is still missing.
        """
        limit = self.config.retention_free_bytes
        if limit == 0:
            return Trimmed(0, 0)
        free = min(self.env.disk_usage(path)[2] for path in self.config.commit_log_paths)
        size, deleted = self.commit_log.mapped_file_queue.mapped_file_size, 0

        def lacks_room(file: MappedFile) -> bool:
            nonlocal deleted
            lacks = free + deleted * size < limit
            deleted += lacks
            return lacks

        return self._delete_while(lacks_room)

    def _delete_while(self, goes: Callable[[MappedFile], bool]) -> Trimmed:
        """Delete the oldest file for as long as `goes` is true of it and it may be deleted."""
        count, log = 0, self.commit_log.mapped_file_queue
        while not self.is_stopping():
            file = self._oldest()
            # A file that is not available could not be deleted before.
            if file is None or (file.is_available() and not goes(file)):
                break
            with self.lock:
                count += log.delete_first_file(file)
        return Trimmed(count, count * log.mapped_file_size)

    def _oldest(self) -> MappedFile | None:
        """Return the first file, None if it is the last one or not dispatched to its end."""
        log = self.commit_log.mapped_file_queue
        files = log.mapped_files
        if len(files) < 2 or files[0].file_from_offset + log.mapped_file_size > self.dispatched():
            return None
        return files[0]

    def _is_older(self, file: MappedFile, before_ms: int) -> bool:
        start = file.file_from_offset
        newest = self._newest.get(start)
        if newest is None:
            try:
                newest = self._read_newest(file, before_ms)
            except StoreIOError:
                with self.lock:  # another thread may have deleted it meanwhile
                    if file in self.commit_log.mapped_file_queue.mapped_files:
                        raise
                return False
            if newest is None:
                return False
            self._newest = {at: ms for at, ms in self._newest.items() if at > start}
            self._newest[start] = newest
        return newest < before_ms

    def _read_newest(self, file: MappedFile, before_ms: int) -> int | None:
        """Return the store time of the newest message of a file; None once one is not before
        `before_ms`, or the store stops.

        Behind damage the store times are unknown: the time of the last change of the file counts.
        """
        newest = 0
        for times in self._store_times(file):
            if times is None:
                return max(newest, file.last_modified_ms())
            newest = max(newest, int(times.max(initial=0)))
            if newest >= before_ms or self.is_stopping():
                return None
        return newest

    def _store_times(self, file: MappedFile) -> Iterator[npt.NDArray[np.int64] | None]:
        """Yield the store times of the records of a file, chunk by chunk, and None for damage."""
        file_size = self.commit_log.mapped_file_queue.mapped_file_size
        at, size = 0, READ_SIZE
        while at < file_size:
            data = self.env.read_part(file.path, at, size)
            positions, _, end, status = walk_records(
                data, 0, len(data), file.file_from_offset + at, end=file_size - at
            )
            yield _times_of(data, positions)
            if status == Status.BLANK:
                return
            is_cut = status == Status.TORN and at + size < file_size
            if is_cut and (end or size < RECORD_SIZE_MAX):
                size = READ_SIZE if end else 2 * size
            elif status != Status.OK or not end:
                yield None
                return
            at += end


def _times_of(data: bytes, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the store times (Unix ms) of the records at some positions of `data`."""
    raw = np.frombuffer(data, np.uint8)
    is_v6 = _numbers(raw, positions + _SYS_FLAG_AT, 4) & _BORNHOST_V6_FLAG != 0
    return _numbers(raw, positions + _STORE_TIME_AT + _V6_EXTRA * is_v6, 8)


def _numbers(
    raw: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], width: int
) -> npt.NDArray[np.int64]:
    """Return the big-endian numbers of `width` bytes at some positions."""
    parts = raw[positions[:, None] + np.arange(width)]
    numbers: npt.NDArray[np.int64] = parts.view(f">i{width}").ravel().astype(np.int64)
    return numbers


class RetentionService(PeriodicService):
    """Apply the retention every `clean_resource_interval` ms, then clean queues and index.

    Threads: one works.
    """

    def __init__(
        self,
        env: Env,
        config: MessageStoreConfig,
        retention: LogRetention,
        clean_consume_queue: CleanConsumeQueueService,
    ) -> None:
        interval = config.clean_resource_interval
        super().__init__(env, "RetentionService", interval, interval)
        self.retention = retention
        self.clean_consume_queue = clean_consume_queue
        retention.is_stopping = clean_consume_queue.is_stopping = lambda: self.stopped

    def do_once(self) -> None:
        """Run one round."""
        try:
            self.retention.apply()
        finally:
            self.clean_consume_queue.run()
