"""`checkpoint`: the store times up to which log, queues and index are known to be durable."""

from __future__ import annotations

import errno
import struct
import threading
from collections.abc import Sequence
from typing import overload

from pyrocketstore.arguments.scalars import INT64_MAX, INT64_MIN, exact_int, exact_int64
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreIOError
from pyrocketstore.files.planned_changes import PlannedChanges, changes_of
from pyrocketstore.system.env import (
    O_RDONLY,
    O_RDWR,
    Env,
    check_env,
    is_zeros,
    parent_directory,
)

__all__ = ["CHECKPOINT_SIZE", "StoreCheckpoint", "checkpoint_damage", "offsets_of_5x"]

LOG = logger(__name__)

CHECKPOINT_SIZE = 4096
#: The fields of 4.9.3. The bytes after them, which 5.x uses, are never changed.
LONGS = struct.Struct(">qqq")
#: The fields of 5.x: physical offsets of its replication, -1 for none.
LONGS_OF_5X = struct.Struct(">qq")
#: Bytes that some version writes; the rest of the file is zeros.
_USED_SIZE = 64
#: The year 2286, Unix ms.
_TIME_END_MS = 10**13
_FIELDS = ("physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp")
#: Recovery starts this much before the times of the checkpoint (ms).
MIN_TIMESTAMP_MARGIN_MS = 3000


def checkpoint_damage(data: bytes) -> str:
    """Return the reason why the bytes of a checkpoint were not written by a store; "" if they may
    have been. No checksum covers them: a time must be a time, and the rest zeros.
    """
    times = LONGS.unpack(data[: LONGS.size].ljust(LONGS.size, b"\0"))
    for name, time_ms in zip(_FIELDS, times, strict=True):
        if not 0 <= time_ms < _TIME_END_MS:
            return f"{name} is {time_ms}, which is not a time in ms from 1970 to 2286"
    if min(offsets_of_5x(data)) < -1:
        return f"bytes {LONGS.size} to 39 are {offsets_of_5x(data)}, which are not offsets of 5.x"
    if not is_zeros(data[_USED_SIZE:]):
        return f"bytes after {_USED_SIZE} are not zero"
    return ""


def offsets_of_5x(data: bytes) -> tuple[int, int]:
    """Return the two offsets that 5.x keeps behind the times, zeros where 4.9.3 wrote the file."""
    first, second = LONGS_OF_5X.unpack(data[LONGS.size : 40].ljust(LONGS_OF_5X.size, b"\0"))
    return first, second


class _StoreTime:
    """An attribute that is a store time (Unix ms). Raises StoreTypeError, StoreFormatError."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, checkpoint: None, owner: type) -> _StoreTime: ...
    @overload
    def __get__(self, checkpoint: StoreCheckpoint, owner: type) -> int: ...
    def __get__(self, checkpoint: StoreCheckpoint | None, owner: type) -> _StoreTime | int:
        if checkpoint is None:
            return self
        return int(getattr(checkpoint, f"_{self._name}"))

    def __set__(self, checkpoint: StoreCheckpoint, value: int) -> None:
        setattr(checkpoint, f"_{self._name}", exact_int64(self._name, value))


class StoreCheckpoint:
    """The store times (Unix ms) up to which log, queues and index are known to be durable.

    Parameters
    ----------
    env : Env
    path : str, the file; made with its full length when missing, and extended when short
    read_only : bool; a missing or short file counts as zeros and nothing is written
    damage : str, what the caller has found wrong in the file; "": nothing
    changes : while it is planning, the file is made, extended and written later; None: as
        `read_only` says

    A damaged file, which `damage` describes, counts as zeros. The next write replaces all of it.

    A time that is set must be an int64. Raises StoreIOError. Threads: any.
    Durability: values are durable after `flush`.
    Source: RocketMQ 4.9.3 StoreCheckpoint.
    Differs: bytes 24 to 39, which 5.x uses, are never written.
    """

    physic_msg_timestamp = _StoreTime()
    logics_msg_timestamp = _StoreTime()
    index_msg_timestamp = _StoreTime()

    def __init__(
        self,
        env: Env,
        path: str,
        read_only: bool = False,
        damage: str = "",
        changes: PlannedChanges | None = None,
    ) -> None:
        check_env(env)
        self._env = env
        self._path = path
        self._lock = threading.Lock()
        self._changes = changes_of(read_only=read_only) if changes is None else changes
        self._changes.add(self._prepare)
        data = self._read()
        #: the reason why the file counts as zeros; "": it is valid
        self.damage = damage or checkpoint_damage(data)
        if self.damage:
            LOG.warning("%s: damaged, and not used: %s", path, self.damage)
        header = bytes(LONGS.size) if self.damage else data[: LONGS.size].ljust(LONGS.size, b"\0")
        self._physic_msg_timestamp, self._logics_msg_timestamp, self._index_msg_timestamp = (
            LONGS.unpack(header)
        )
        # Recovery starts at the newest log file that begins before the durable times. After the
        # wall clock was set back, files that are not covered may begin with such times too:
        # positions decide which times may be written.
        self._log_end = self._queues_end = self._written_end = 0
        self._written_limit = self.get_min_timestamp()
        self._begun: list[tuple[int, int]] = []  # (first byte, earliest store time) of log files

    def _prepare(self) -> None:
        env = self._env
        env.make_directories(parent_directory(self._path))
        if not env.exists(self._path):
            # In one step, so that a killed process leaves no shorter file.
            env.write_file(self._path, bytes(CHECKPOINT_SIZE))
        fd = env.open(self._path, O_RDWR)
        try:
            short = env.file_size(fd, self._path) < CHECKPOINT_SIZE
            if short:
                env.ftruncate(fd, CHECKPOINT_SIZE, self._path)
            # A store with a full disk must still be able to write its times.
            try:
                env.fallocate(fd, 0, CHECKPOINT_SIZE, self._path)
            except StoreIOError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
            if short:
                env.fsync(fd, self._path)
        finally:
            env.close(fd, self._path)
        env.fsync_directory(parent_directory(self._path))

    def _read(self) -> bytes:
        try:
            fd = self._env.open(self._path, O_RDONLY)
        except StoreIOError as error:
            if error.errno == errno.ENOENT:
                return b""
            raise
        try:
            return self._env.pread(fd, CHECKPOINT_SIZE, 0, self._path)
        finally:
            self._env.close(fd, self._path)

    def get_min_timestamp(self) -> int:
        """Return the time (Unix ms) before which messages are durable in the log and the queues."""
        oldest = min(self.physic_msg_timestamp, self.logics_msg_timestamp)
        return max(0, oldest - MIN_TIMESTAMP_MARGIN_MS)

    def get_min_timestamp_index(self) -> int:
        """Return the time (Unix ms) before which messages are durable, also in the index."""
        return min(self.get_min_timestamp(), self.index_msg_timestamp)

    def durable_index_files(self, headers: Sequence[tuple[int, int]]) -> int:
        """Return how many of the index files were durable before an unclean exit.

        They are flushed in order, each before index_msg_timestamp covers it; a header that is not
        durable has the time of the previous file, or zeros.

        Parameters
        ----------
        headers : (end timestamp, Unix ms; index count) of each file, oldest first
        """
        limit = self.index_msg_timestamp
        # The newest durable file is the one that ends at that time. Later files end earlier if the
        # clock was set back.
        newest = next((i for i, (end, _) in enumerate(headers) if end == limit), len(headers))
        for number, (end, index_count) in enumerate(headers):
            is_same_ms = number > 0 and headers[number - 1][0] == end == limit
            if end > limit or index_count < 2 or is_same_ms or number > newest:
                return number
        return len(headers)

    def uncover_index_file(self, end: int, before: int) -> None:
        """Stop covering an index file that ends at `end`, because keys are put into it again.

        The durable index_msg_timestamp then covers files up to the one that ends at `before` (Unix
        ms).
        """
        covered = self.index_msg_timestamp
        if covered >= end > 0:
            self.index_msg_timestamp = min(before, covered)
            try:
                self.flush()
            except StoreIOError:
                self.index_msg_timestamp = covered  # so that the next try writes it again
                raise

    def uncover_log(self) -> None:
        """Cover nothing: a recovery that is interrupted is followed by one that reads the whole
        log.

        Raises StoreIOError. No-op when the store is read-only. Durability: durable on return.
        """
        if self.get_min_timestamp() != 0:
            self._changes.add(self._uncover_log)

    def _uncover_log(self) -> None:
        self.physic_msg_timestamp = self.logics_msg_timestamp = 0
        self.flush()

    def flush(self) -> None:
        """Write the three times and fsync the file. No-op when the store is read-only."""
        with self._lock:
            self._changes.add(self._write)

    def _write(self) -> None:
        end = min(self._log_end, self._queues_end)
        self._begun = [file for file in self._begun if file[0] > end]
        physic, logics = self.physic_msg_timestamp, self.logics_msg_timestamp
        earliest = min((store_time for _, store_time in self._begun), default=None)
        if earliest is not None and earliest <= self.get_min_timestamp():
            physic, logics = min(physic, earliest - 1), min(logics, earliest - 1)
        header = LONGS.pack(physic, logics, self.index_msg_timestamp)
        if self.damage:
            header = header.ljust(CHECKPOINT_SIZE, b"\0")
        fd = self._env.open(self._path, O_RDWR)
        try:
            self._env.pwrite_all(fd, header, 0, self._path)
            self._env.fdatasync(fd, self._path)
        finally:
            self._env.close(fd, self._path)
        self.damage = ""
        self._written_limit = max(0, min(physic, logics) - MIN_TIMESTAMP_MARGIN_MS)
        self._written_end = end

    def begin_log(self, covered: int, begun: list[tuple[int, int]]) -> None:
        """Set the covered part of the log, as recovery has found it.

        Parameters
        ----------
        covered : int, bytes of the log: everything before it is durable, also in its queues
        begun : (first byte, store time of the first record in Unix ms) of each later log file
        """
        self._log_end = self._queues_end = self._written_end = exact_int64("covered", covered)
        self._begun = begun

    def begin_log_file(self, offset: int, now_ms: int) -> None:
        """Note a log file that begins at byte `offset` and gets no record stored before `now_ms`.

        If the durable times would cover it, because the wall clock was set back, they are lowered
        first. Raises StoreIOError, StoreTypeError, StoreFormatError.
        """
        offset = exact_int64("offset", offset)
        now_ms = exact_int("now_ms", now_ms, INT64_MIN + 1, INT64_MAX)
        with self._lock:
            self._begun.append((offset, now_ms))
            if offset > self._written_end and now_ms <= self._written_limit:
                self._changes.add(self._write)

    def note_log_flushed(self, timestamp: int, end: int) -> None:
        """Note that the log is durable up to byte `end`, whose last record has that store time.

        Raises StoreTypeError, StoreFormatError.
        """
        self.physic_msg_timestamp = timestamp
        self._log_end = exact_int64("end", end)

    def note_queues_flushed(self, timestamp: int, end: int) -> None:
        """Note that the units of records before byte `end` are durable; `timestamp` as above.

        Raises StoreTypeError, StoreFormatError.
        """
        self.logics_msg_timestamp = timestamp
        self._queues_end = exact_int64("end", end)

    def shutdown(self) -> None:
        """Flush for the last time."""
        self.flush()
