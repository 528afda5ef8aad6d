"""The small files of a store: checkpoint and abort; and the flags that say what it may do."""

from __future__ import annotations

import contextlib
import errno
import struct
import threading
from collections.abc import Callable, Sequence

from pyrocketstore.display import logger
from pyrocketstore.env import O_CREAT, O_RDONLY, O_RDWR, O_WRONLY, Env, parent_directory
from pyrocketstore.errors import StoreError, StoreIOError, without_frames

__all__ = ["CHECKPOINT_SIZE", "AbortFile", "RunningFlags", "StoreCheckpoint"]

LOG = logger(__name__)

CHECKPOINT_SIZE = 4096
#: The fields that 4.9.3 has; what 5.x keeps behind them is left as it is.
LONGS = struct.Struct(">qqq")
#: The checkpoint is this much older than the queues, so that recovery starts early enough (ms).
MIN_TIMESTAMP_MARGIN_MS = 3000
#: Of the file `abort`, once an fsync has failed; 4.9.3 looks only whether the file is there.
FSYNC_FAILED = b"an fsync failed"


class StoreCheckpoint:
    """Up to which store time (Unix ms) log, queues and index are known to be on the device.

    Parameters
    ----------
    env : Env
    path : str, the file; made at full length when missing, and extended when short
    read_only : bool; a missing or short file counts as zeros and nothing is written

    Raises StoreIOError. Threads: any.
    Durability: what was set counts after `flush`.
    Source: RocketMQ 4.9.3 StoreCheckpoint.
    Differs: bytes 24 to 39, which 5.x uses, are never written.
    """

    def __init__(self, env: Env, path: str, read_only: bool = False) -> None:
        self._env = env
        self._path = path
        self._read_only = read_only
        self._lock = threading.Lock()
        if not read_only:
            self._prepare()
        head = self._read_head()
        self.physic_msg_timestamp: int
        self.logics_msg_timestamp: int
        self.index_msg_timestamp: int
        self.physic_msg_timestamp, self.logics_msg_timestamp, self.index_msg_timestamp = (
            LONGS.unpack(head)
        )
        # Recovery starts at the newest log file that begins before the times on the device. Where
        # the wall clock was set back, files that begin behind what is covered have such times too,
        # so that positions are needed to know what may be written.
        self._log_end = self._queues_end = self._written_end = 0
        self._written_limit = self.get_min_timestamp()
        self._begun: list[tuple[int, int]] = []  # (first byte, earliest store time) of log files

    def _prepare(self) -> None:
        env = self._env
        env.make_directories(parent_directory(self._path))
        if not env.exists(self._path):
            # At once, so that no process that is killed leaves a shorter file.
            env.write_file(self._path, bytes(CHECKPOINT_SIZE))
        fd = env.open(self._path, O_RDWR)
        try:
            short = env.file_size(fd, self._path) < CHECKPOINT_SIZE
            if short:
                env.ftruncate(fd, CHECKPOINT_SIZE, self._path)
            # A store whose disk has filled up must still be able to note its times.
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

    def _read_head(self) -> bytes:
        try:
            fd = self._env.open(self._path, O_RDONLY)
        except StoreIOError as error:
            if self._read_only and error.errno == errno.ENOENT:
                return bytes(LONGS.size)
            raise
        try:
            head = self._env.pread(fd, LONGS.size, 0, self._path)
        finally:
            self._env.close(fd, self._path)
        return head.ljust(LONGS.size, b"\0")

    def get_min_timestamp(self) -> int:
        """Messages stored before this time (Unix ms) are in the log and in their queues."""
        oldest = min(self.physic_msg_timestamp, self.logics_msg_timestamp)
        return max(0, oldest - MIN_TIMESTAMP_MARGIN_MS)

    def get_min_timestamp_index(self) -> int:
        """The same with the index taken in (Unix ms)."""
        return min(self.get_min_timestamp(), self.index_msg_timestamp)

    def forced_index_files(self, headers: Sequence[tuple[int, int]]) -> int:
        """How many of a row of index files were surely forced, after an unclean exit.

        They are forced in order, each before index_msg_timestamp says so; a header that did not
        get to the device still has the time of the file before, or none.

        Parameters
        ----------
        headers : of (end timestamp, Unix ms; entries and one more), oldest first
        """
        limit = self.index_msg_timestamp
        # The newest forced file is the one that ends at that time. Where the clock was set back
        # later ones end earlier.
        newest = next((i for i, (end, _) in enumerate(headers) if end == limit), len(headers))
        for number, (end, index_count) in enumerate(headers):
            is_same_ms = number > 0 and headers[number - 1][0] == end == limit
            if end > limit or index_count < 2 or is_same_ms or number > newest:
                return number
        return len(headers)

    def uncover_index_file(self, end: int, before: int) -> None:
        """A file whose entries end at `end` is put to again: index_msg_timestamp, on the device,
        says from now on that only the one before it, which ends at `before` (Unix ms), is forced.
        """
        covered = self.index_msg_timestamp
        if covered >= end > 0:
            self.index_msg_timestamp = min(before, covered)
            try:
                self.flush()
            except StoreIOError:
                self.index_msg_timestamp = covered  # whoever tries again must not pass this over
                raise

    def uncover_log(self) -> None:
        """Have the device say that nothing is surely in its queue: a recovery that is ended in the
        middle is followed by one that reads the whole log.

        Raises StoreIOError. Nothing happens when the store is read-only.
        """
        if self._read_only or self.get_min_timestamp() == 0:
            return
        self.physic_msg_timestamp = self.logics_msg_timestamp = 0
        self.flush()

    def flush(self) -> None:
        """Write the three times and force them. Nothing happens when the store is read-only."""
        if self._read_only:
            return
        with self._lock:
            self._write()

    def _write(self) -> None:
        end = min(self._log_end, self._queues_end)
        self._begun = [file for file in self._begun if file[0] > end]
        physic, logics = self.physic_msg_timestamp, self.logics_msg_timestamp
        earliest = min((store_time for _, store_time in self._begun), default=None)
        if earliest is not None and earliest <= self.get_min_timestamp():
            physic, logics = min(physic, earliest - 1), min(logics, earliest - 1)
        head = LONGS.pack(physic, logics, self.index_msg_timestamp)
        fd = self._env.open(self._path, O_RDWR)
        try:
            self._env.pwrite_all(fd, head, 0, self._path)
            self._env.fdatasync(fd, self._path)
        finally:
            self._env.close(fd, self._path)
        self._written_limit = max(0, min(physic, logics) - MIN_TIMESTAMP_MARGIN_MS)
        self._written_end = end

    def begin_log(self, covered: int, begun: list[tuple[int, int]]) -> None:
        """Install what recovery knows of the log.

        Parameters
        ----------
        covered : int, bytes of the log: all before it is surely on the device and in its queues
        begun : of (first byte, store time of the first record in Unix ms), the log's files behind
        """
        self._log_end = self._queues_end = self._written_end = covered
        self._begun = begun

    def begin_log_file(self, offset: int, now_ms: int) -> None:
        """A log file that begins at byte `offset` gets records, none stored before `now_ms`.

        Where the times on the device claim that such a file is covered already, since the wall
        clock was set back, they are lowered first. Raises StoreIOError.
        """
        if self._read_only:
            return
        with self._lock:
            self._begun.append((offset, now_ms))
            if offset > self._written_end and now_ms <= self._written_limit:
                self._write()

    def note_log_flushed(self, timestamp: int, end: int) -> None:
        """The log is on the device before byte `end`; the last record there is of that time."""
        self.physic_msg_timestamp = timestamp
        self._log_end = end

    def note_queues_flushed(self, timestamp: int, end: int) -> None:
        """The units of records before byte `end` are on the device; `timestamp` as above."""
        self.logics_msg_timestamp = timestamp
        self._queues_end = end

    def shutdown(self) -> None:
        """Force what was set for the last time."""
        self.flush()


class RunningFlags:
    """What the store may do. Bits: 1 not readable, 2 not writeable, 4 queue write error,
    8 index write error, 16 the log's disk is full, 32 the queues' disk is full. Nothing of it is
    stored.

    The bits of full disks clear when there is room again; those of write errors when what was given
    up is in its place (`mending`). Bit 64 is set while that is tried.

    Threads: any. Source: RocketMQ 4.9.3 RunningFlags.
    Differs: each disk has a bit of its own; with one, room on either hid that the other was full.
    """

    NOT_READABLE = 1
    NOT_WRITEABLE = 2
    WRITE_LOGICS_QUEUE_ERROR = 4
    WRITE_INDEX_FILE_ERROR = 8
    DISK_FULL = 16
    LOGIC_DISK_FULL = 32
    MENDING = 64

    def __init__(self) -> None:
        self._bits = 0
        self._lock = threading.Lock()
        #: what first stopped a queue or an index file from being written
        self.write_error: StoreError | None = None
        self._disk_causes: dict[int, StoreError | None] = {}
        #: called, one call at a time, when puts become forbidden and when they are allowed again
        self.on_not_writeable: Callable[[], None] = lambda: None
        self.on_writeable: Callable[[], None] = lambda: None
        #: called after a write error
        self.on_write_error: Callable[[], None] = lambda: None

    @property
    def cause(self) -> StoreError | None:
        """What first stopped a queue or an index file from being written, else the full disk."""
        full = (self._disk_causes.get(bit) for bit in (self.DISK_FULL, self.LOGIC_DISK_FULL))
        return self.write_error or next((cause for cause in full if cause is not None), None)

    @property
    def flag_bits(self) -> int:
        """The bits as they are."""
        return self._bits

    def set_bits(self, mask_flags: int, on: bool = True) -> bool:
        """Set or clear bits; True when that changed anything."""
        with self._lock:
            before, could = self._bits, self.is_writeable()
            self._bits = before | mask_flags if on else before & ~mask_flags
            can = self.is_writeable()
            if could != can:  # told under the lock: the last word must be the true one
                (self.on_writeable if can else self.on_not_writeable)()
            return self._bits != before

    def is_readable(self) -> bool:
        """True while messages may be read."""
        return not self._bits & self.NOT_READABLE

    def is_writeable(self) -> bool:
        """True while messages may be put."""
        return not self._bits & (
            self.NOT_WRITEABLE
            | self.WRITE_LOGICS_QUEUE_ERROR
            | self.DISK_FULL
            | self.LOGIC_DISK_FULL
            | self.WRITE_INDEX_FILE_ERROR
            | self.MENDING
        )

    def is_cq_writeable(self) -> bool:
        """True while queues may be written: a full disk does not stop them."""
        return not self._bits & (
            self.NOT_WRITEABLE | self.WRITE_LOGICS_QUEUE_ERROR | self.WRITE_INDEX_FILE_ERROR
        )

    def get_and_make_readable(self) -> bool:
        """Allow reading; what it was before."""
        before = self.is_readable()
        self.set_bits(self.NOT_READABLE, False)
        return before

    def get_and_make_not_readable(self) -> bool:
        """Forbid reading; what it was before."""
        before = self.is_readable()
        self.set_bits(self.NOT_READABLE)
        return before

    def get_and_make_writeable(self) -> bool:
        """Allow writing; what it was before."""
        before = self.is_writeable()
        self.set_bits(self.NOT_WRITEABLE, False)
        return before

    def get_and_make_not_writeable(self) -> bool:
        """Forbid writing; what it was before."""
        before = self.is_writeable()
        self.set_bits(self.NOT_WRITEABLE)
        return before

    def make_logics_queue_error(self, cause: StoreError | None = None) -> None:
        """A consume queue could not be written, and why."""
        self._make_error(self.WRITE_LOGICS_QUEUE_ERROR, cause)

    def is_logics_queue_error(self) -> bool:
        """True after a consume queue could not be written."""
        return bool(self._bits & self.WRITE_LOGICS_QUEUE_ERROR)

    def make_index_file_error(self, cause: StoreError | None = None) -> None:
        """An index file could not be written, and why."""
        self._make_error(self.WRITE_INDEX_FILE_ERROR, cause)

    def is_index_file_error(self) -> bool:
        """True after an index file could not be written."""
        return bool(self._bits & self.WRITE_INDEX_FILE_ERROR)

    def _make_error(self, bit: int, cause: StoreError | None) -> None:
        if self.write_error is None and cause is not None:
            self.write_error = without_frames(cause)
        self.set_bits(bit)
        self.on_write_error()

    def is_write_error(self) -> bool:
        """True after a queue or an index file could not be written."""
        return bool(self._bits & (self.WRITE_LOGICS_QUEUE_ERROR | self.WRITE_INDEX_FILE_ERROR))

    def begin_mending(self) -> None:
        """Let queues and index be written again, and nothing be put yet.

        Differs: 4.9.3 has no way back.
        """
        with self._lock:
            self._bits |= self.MENDING
            self._bits &= ~(self.WRITE_LOGICS_QUEUE_ERROR | self.WRITE_INDEX_FILE_ERROR)

    def is_mending(self) -> bool:
        """True between `begin_mending` and `end_mending`."""
        return bool(self._bits & self.MENDING)

    def end_mending(self, whole: bool, index_error: bool, queue_error: bool) -> None:
        """Allow puts if all is `whole`; else the errors that there were are there again."""
        if whole:
            self.write_error = None
        else:
            index_bit = self.WRITE_INDEX_FILE_ERROR if index_error else 0
            self.set_bits(index_bit | (self.WRITE_LOGICS_QUEUE_ERROR if queue_error else 0))
        self.set_bits(self.MENDING, False)

    def get_and_make_disk_full(self, cause: StoreError | None = None) -> bool:
        """The log's disk is full; True when it was not known to be (it had room before)."""
        return self._set_disk(self.DISK_FULL, True, cause)

    def get_and_make_disk_ok(self) -> bool:
        """The log's disk has room; True when it was known to have."""
        return not self._set_disk(self.DISK_FULL, False, None)

    def get_and_make_logic_disk_full(self, cause: StoreError | None = None) -> bool:
        """The queues' disk is full; True when it was not known to be."""
        return self._set_disk(self.LOGIC_DISK_FULL, True, cause)

    def get_and_make_logic_disk_ok(self) -> bool:
        """The queues' disk has room; True when it was known to have."""
        return not self._set_disk(self.LOGIC_DISK_FULL, False, None)

    def is_disk_full(self) -> bool:
        """True while one of the two disks is full."""
        return bool(self._bits & (self.DISK_FULL | self.LOGIC_DISK_FULL))

    def _set_disk(self, bit: int, on: bool, cause: StoreError | None) -> bool:
        self._disk_causes[bit] = cause
        return self.set_bits(bit, on)


class AbortFile:
    """The file that says: this store was not closed. Empty, unless an fsync failed.

    Durability: its making and its deletion are on the device when they return.
    Source: RocketMQ 4.9.3 DefaultMessageStore#createTempFile.
    """

    def __init__(self, env: Env, path: str) -> None:
        self._env = env
        self.path = path

    def exists(self) -> bool:
        """True when the store was not closed the last time.

        Raises StoreIOError for a directory, a FIFO, a socket or a device of that name.
        """
        return self._env.is_link(self.path) or self._env.check_file(self.path, follow=False)

    def create(self) -> None:
        """Make the file if it is missing, and its directory. Raises StoreIOError."""
        directory = parent_directory(self.path)
        self._env.make_directories(directory)
        self._env.close(self._env.open(self.path, O_WRONLY | O_CREAT), self.path)
        self._env.fsync_directory(directory)

    def mark_failed_fsync(self) -> None:
        """Note in the file that an fsync has failed; nothing happens unless one has.

        Not durable: the note is about the page cache. An error is logged.
        """
        if self._env.fsync_failure is None or not self.exists():
            return
        try:
            fd = self._env.open(self.path, O_WRONLY)
            try:
                self._env.pwrite_all(fd, FSYNC_FAILED, 0, self.path)
            finally:
                self._env.close(fd, self.path)
        except StoreIOError as error:
            LOG.error("the next opening will not know that an fsync has failed: %s", error)

    def is_marked(self) -> bool:
        """True when an fsync had failed: pages of the page cache may be clean and not on the
        device. Raises StoreIOError."""
        fd = self._env.open(self.path, O_RDONLY)
        try:
            return self._env.pread(fd, len(FSYNC_FAILED), 0, self.path) == FSYNC_FAILED
        finally:
            self._env.close(fd, self.path)

    def delete(self) -> None:
        """Delete the file if it is there. Raises StoreIOError: then it is there again.

        After a failed fsync it stays, and the StoreFsyncError is raised.
        """
        failure = self._env.fsync_failure
        if failure is not None:
            raise failure
        try:
            self._env.remove(self.path)
        except StoreIOError:
            with contextlib.suppress(StoreIOError):
                self._env.close(self._env.open(self.path, O_WRONLY | O_CREAT), self.path)
            raise
