"""`clean_stop`: a file in the store's root that says where log and queues ended when the last owner
closed the store.

4.9.3 scans the last three files of the log at each opening. After a clean stop an opening need not,
if nobody has changed them: no process has opened the store for writing since (both engines write to
`lock`), and each of these files has the length and the time of modification that it had. 4.9.3
ignores the file. A store with a short log has none, unless a part of it was not scanned since a
kill.

The file stays until an opening after a clean stop has scanned the log. Until then damage in front
of `unscanned_to`, after a kill in front of the end that the file names, does not end the log: a
later opening, which scans that part, would otherwise remove the messages that were put since.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyrocketstore.commit_log.log_end import start_file
from pyrocketstore.consume_queue.topic_buckets import (
    BUCKET_DIGEST_SIZE,
    BUCKETS,
    TopicBuckets,
    text_digest,
)
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreIOError
from pyrocketstore.index.sync_point import with_crc, without_crc
from pyrocketstore.system.env import is_zeros

if TYPE_CHECKING:
    from pyrocketstore.commit_log.log import CommitLog
    from pyrocketstore.files._mapped_file import FileSequence, MappedFile
    from pyrocketstore.system.env import Env

__all__ = [
    "CLEAN_STOP",
    "CleanStop",
    "CleanStopFile",
    "DerivedEnds",
    "locked_ms",
]

LOG = logger(__name__)

#: The name of the file.
CLEAN_STOP = "clean_stop"
_MAGIC = b"rsstop03"
#: Of files of earlier versions, which are not used: with one digest for all queues; without word of
#: keys that the index may lack.
_EARLIER_MAGICS = (b"rsstop01", b"rsstop02")
_DIGEST_SIZE = 16
#: The magic, and the fields of CleanStop in their order. The CRC of all these bytes follows.
_FIELDS = struct.Struct(f">8sqqqq{_DIGEST_SIZE}s{BUCKETS * BUCKET_DIGEST_SIZE}s")
#: A store whose scan reads fewer bytes of the log has no such file: it would save nothing.
SCANNED_MIN = 4 << 20
#: In place of the last indexed record, where no key is put: an opening that puts keys must search.
NO_INDEX = -2


class CleanStop(NamedTuple):
    """The ends of log, queues and index when a store was closed.

    Parameters
    ----------
    log_end, last_record : int, physical offsets; the second one of the last record
    index_end : int, physical offset of the last record that the index names; -1 without one,
        NO_INDEX without an index; -4 minus that if the index may lack keys before it
    unscanned_to : int, physical offset before which openings have not scanned the log, but believed
        such a file or, after a kill, the checkpoint; -1: there is no such part
    files : bytes, digest of the last log files and of `lock`: lengths and times of modification
    queues : bytes, for each bucket of topics the digest of the first file, the end and the last
        message of each queue
    """

    log_end: int
    last_record: int
    index_end: int
    unscanned_to: int
    files: bytes
    queues: bytes

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return with_crc(_FIELDS.pack(_MAGIC, *self))

    @property
    def has_all_keys(self) -> bool:
        """Whether the index has the keys of all records of the log."""
        return self.index_end > NO_INDEX

    @property
    def keyed_end(self) -> int:
        """The physical offset of the last record that the index names."""
        return self.index_end if self.index_end >= NO_INDEX else _lacking(self.index_end)

    @classmethod
    def decode(cls, data: bytes) -> CleanStop | None:
        """Return the content of a file; None if it is damaged."""
        body = without_crc(data, _FIELDS.size)
        if body is None:
            return None
        magic, *fields = _FIELDS.unpack(body)
        return cls(*fields) if magic == _MAGIC else None


class DerivedEnds(NamedTuple):
    """The fields `index_end` and `queues` of CleanStop, of a store as it is now."""

    index_end: int
    queues: bytes


class CleanStopFile:
    """The file of one store.

    Parameters
    ----------
    env : Env
    root : str, the store's directory
    log : CommitLog
    """

    def __init__(self, env: Env, root: str, log: CommitLog) -> None:
        self._env, self._root, self._log = env, root, log
        self.path = os.path.join(root, CLEAN_STOP)

    def note(
        self,
        ends: Callable[[], DerivedEnds],
        last_record: int,
        unscanned_to: int,
        *,
        may_lack_keys: bool,
    ) -> Callable[[], None]:
        """Note the ends of a store whose threads have ended, before its files are closed.

        Parameters
        ----------
        ends : of queues and index
        last_record : int, physical offset at which the last record of the log may begin
        unscanned_to : int, see CleanStop
        may_lack_keys : bool, the index may lack keys of records before the last that it names

        Returns a call for after the files were closed, which writes the file, or removes an earlier
        one if it would save nothing and keep nothing. An error is logged: the next opening scans
        the log. Durability: on its return.
        """
        files = self._log.mapped_file_queue.mapped_files
        files = files[start_file(files, None) :]
        end = self._log.get_max_offset()
        begin = files[0].file_from_offset if files else end
        saves = end - begin >= SCANNED_MIN or begin < unscanned_to
        if not saves or not _is_last(self._log, last_record, end):
            return self._try_remove
        paths = [file.path for file in files]
        index_end, queues = ends()
        if may_lack_keys and index_end != NO_INDEX:
            index_end = _lacking(index_end)
        stop = CleanStop(end, last_record, index_end, unscanned_to, b"", queues)

        def write() -> None:
            try:
                digest, _ = _files_digest(self._env, paths, locked_ms(self._env, self._root))
                self._env.write_file(self.path, stop._replace(files=digest).encode())
            except StoreIOError as error:
                LOG.warning("%s: the next opening scans the log: %s", self._root, error)
                self._try_remove()

        return write

    def remove(self) -> None:
        """Delete the file if it exists. Not durable by itself: `lock` has another time by now, so
        that it proves nothing."""
        if self._env.exists(self.path):
            self._env.unlink(self.path)

    def _try_remove(self) -> None:
        try:
            self.remove()
        except StoreIOError as error:  # nobody believes it: `lock` is newer
            LOG.warning("%s", error)

    def read(self) -> CleanStop | None:
        """Return the content of the file; None without it, and if it is damaged or the log has not
        the record that it names at the end that it names. Raises StoreIOError."""
        data = self._env.read_part(self.path, 0, _FIELDS.size + 8)
        if not data and not self._env.exists(self.path):
            return None
        stop = CleanStop.decode(data)
        if stop is None and not data.startswith(_EARLIER_MAGICS):
            LOG.warning("%s: damaged, and not used", self.path)
        if stop is None:
            return None
        return stop if _is_last(self._log, stop.last_record, stop.log_end) else None

    def proven_end(
        self,
        stop: CleanStop,
        files: FileSequence,
        first: int,
        locked_before_ms: int,
        ends: Callable[[], DerivedEnds],
        only: TopicBuckets | None,
    ) -> int:
        """Return the number of the log file with the end, after a clean stop since which nothing
        has changed; -1 unless `stop` proves that for the files from number `first` on, and for the
        queues of `only`, or of all topics."""
        try:
            paths = [file.path for file in files[first:]]
            digest, newest_ms = _files_digest(self._env, paths, locked_before_ms)
            # A change in the same tick of the clock as the one before it does not move the time.
            if digest != stop.files or self._env.mtime_ms(self.path) <= newest_ms:
                return -1
        except StoreIOError as error:
            if error.errno == errno.ENOENT:
                return -1  # deleted by an owner meanwhile
            raise
        index_end, queues = ends()
        are_same = stop.queues == queues if only is None else only.have_equal(stop.queues, queues)
        if stop.keyed_end != index_end or not are_same:
            return -1
        at_file = next(
            (i for i, f in enumerate(files) if f.file_from_offset + f.file_size > stop.log_end), -1
        )
        is_there = at_file >= first and _ends_there(files[at_file], stop.log_end)
        return at_file if is_there else -1


def _lacking(index_end: int) -> int:
    """Return the end of an index that may lack keys as `clean_stop` has it, and back."""
    return -4 - index_end


def _is_last(log: CommitLog, phy_offset: int, log_end: int) -> bool:
    """Return whether a record begins at a byte of the log and ends at `log_end`."""
    mark = log.record_mark(phy_offset) if 0 <= phy_offset < log_end else None
    return mark is not None and phy_offset + mark[0] == log_end


def _ends_there(file: MappedFile, log_end: int) -> bool:
    """Return whether zeros follow the end of the log, or the end of its file."""
    position = log_end - file.file_from_offset
    if position < 0:
        return False
    return is_zeros(file.read(position, min(8, file.file_size - position)))


def locked_ms(env: Env, root: str) -> int:
    """Return when a process has opened the store for writing the last time (Unix ms); -1: never."""
    return env.modified_ms(os.path.join(root, "lock"))


def _files_digest(env: Env, paths: Sequence[str], locked: int) -> tuple[bytes, int]:
    """Return the digest, and the newest time of modification (Unix ms)."""
    times = [*map(env.mtime_ms, paths), locked]
    names = [f"{os.path.basename(path)} {env.size(path)}" for path in paths]
    return text_digest("\n".join([*names, *map(str, times)]), _DIGEST_SIZE), max(times)
