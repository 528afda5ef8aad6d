"""Records that another process appends to a log that is open read-only, a part of a file each."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, NamedTuple

from pyrocketstore.commit_log._chunk_scan import LogChunk
from pyrocketstore.commit_log._scan import TopicQueueMap, verdict_of
from pyrocketstore.commit_log.log import END_FILE_MIN_BLANK_LENGTH, CommitLog
from pyrocketstore.commit_log.log_end import await_last_record, has_grown, valid_records_after
from pyrocketstore.commit_log.parallel_scan import LogScan
from pyrocketstore.record._record import HEADER_SIZE, has_torn_properties, record_size
from pyrocketstore.results import Status
from pyrocketstore.system.signal_shield import check_abandoned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyrocketstore.files._mapped_file import MappedFile

__all__ = ["AppendedLog", "LogChanged", "LogPart"]

#: Bytes of the log that one part takes: bounds the memory.
PART_SIZE = 64 << 20
#: Bytes of the last known record that are compared; they include its times, offsets and checksum.
COMPARED_SIZE = 4096


class LogChanged(Exception):
    """The owner of the log did more than append."""


class LogPart(NamedTuple):
    """The records of a part of one log file.

    They are in [start, end), bytes of the log; `status` is the verdict at `end`. `log` is a copy of
    the log's object that has the file up to there.
    """

    file: MappedFile
    chunks: list[LogChunk]
    start: int
    end: int
    status: int
    log: CommitLog

    @property
    def is_full(self) -> bool:
        """True when no further record fits into the file."""
        end = self.file.file_from_offset + self.file.file_size
        return self.status == Status.BLANK or self.end == end

    @property
    def record_count(self) -> int:
        """The number of records."""
        return sum(chunk.count for chunk in self.chunks)

    @property
    def last_record(self) -> int:
        """The byte of the log at which the last record begins; -1 without one."""
        chunks = self.chunks
        return chunks[-1].file_from_offset + chunks[-1].last_begin if chunks else -1

    @property
    def verdict(self) -> str:
        """The verdict at `end`."""
        return verdict_of(self.status, True)

    def seen(self) -> TopicQueueMap:
        """Return the queues that have records in the part."""
        found = TopicQueueMap()
        for chunk in self.chunks:
            found.add(chunk.queues)
        return found


class AppendedLog:
    """Finds what is appended to a log behind byte `end`, which `publish` moves.

    Threads: one at a time, beside readers of the log.
    """

    def __init__(self, log: CommitLog, end: int) -> None:
        self._log, self._files, self.end = log, log.mapped_file_queue, end
        #: byte of the log at which the last known record begins, -1 without one; its first bytes,
        #: and device and inode of its file
        self._last = -1
        self._last_bytes, self._last_file = b"", (0, 0)

    def is_end_known(self) -> bool:
        """Return whether the log still has the last known record."""
        if self._last < 0:
            return not self._files.mapped_files and not self._files.open_from(0)
        file = self._files.find_mapped_file_by_offset(self._last, False)
        if file is None or self._log.env.identity(file.path) != self._last_file:
            return False
        position = self._last - file.file_from_offset
        return file.read(position, len(self._last_bytes)) == self._last_bytes

    def has_grown(self) -> bool:
        """Return whether bytes follow the known end, or may do so in another file."""
        file = self._files.find_mapped_file_by_offset(self.end, False)
        return file is None or not self._is_blank(file)

    def note_last(self, phy_offset: int) -> None:
        """Remember the last known record. Raises LogChanged, StoreIOError."""
        if phy_offset == self._last:
            return
        file = self._files.find_mapped_file_by_offset(phy_offset, False)
        if file is None:
            raise LogChanged
        position = phy_offset - file.file_from_offset
        # A file that was cut may end with this record. Another owner may have zeroed it meanwhile.
        header = file.read(position, HEADER_SIZE)
        size = max(HEADER_SIZE, min(COMPARED_SIZE, record_size(header), file.file_size - position))
        self._last_bytes = file.read(position, size)
        self._last_file = self._log.env.identity(file.path)
        self._last = phy_offset

    def parts(self, is_waiting: Callable[[], bool]) -> Iterator[LogPart]:
        """Yield the new parts; the next one begins where the last one that was published ends.

        `is_waiting` returns True if a part without records is wanted, too. Raises LogChanged,
        StoreIOError.
        """
        files = self._files
        while True:
            known = files.find_mapped_file_by_offset(self.end, False)
            if known is not None:
                if not is_waiting() and self._is_blank(known):
                    return
                part = self._scan(files.settings.open(self._log.env, known.path, mode="read"))
                if part.record_count or is_waiting():
                    yield part
                check_abandoned()
                if not part.is_full:
                    if part.status != Status.OK:
                        return
                    continue
            last = files.get_last_mapped_file(need_create=False)
            start = 0 if last is None else last.file_from_offset + last.file_size
            newer = [] if last is None else files.open_from(start)
            if last is None or not newer:
                return
            if newer[0].file_from_offset != start:
                raise LogChanged
            last.set_positions(last.file_size)
            self.end = start
            part = self._scan(newer[0])
            yield part
            check_abandoned()
            if part.status != Status.OK and not part.is_full:
                return

    def publish(self, part: LogPart) -> None:
        """Let readers of the log find a part."""
        files = self._files
        files.replace_from([part.file])
        files.flushed_where = files.committed_where = self.end = part.end
        self._log.core.set_end_offset(part.end)

    def _is_blank(self, file: MappedFile) -> bool:
        """Return whether nothing follows the known end: no record or BLANK begins with zeros."""
        position = self.end - file.file_from_offset
        size = min(END_FILE_MIN_BLANK_LENGTH, file.file_size - position)
        return not any(file.read(position, size))

    def _scan(self, file: MappedFile) -> LogPart:
        """Scan a log file from the known end on, at most PART_SIZE bytes."""
        env, base = self._log.env, file.file_from_offset
        file.set_positions(file.file_size)
        chunks = self._chunks(file)
        found = [chunk for chunk in chunks if chunk.count]
        if found and chunks[-1].status not in (Status.OK, Status.BLANK):
            last = found[-1]
            if has_torn_properties(file.read(last.last_begin, last.end - last.last_begin)):
                await_last_record(env, file, last)
                chunks = self._chunks(file)
                found = [chunk for chunk in chunks if chunk.count]
        end, status = self.end, int(Status.OK)
        if chunks:
            end, status = base + chunks[-1].end, chunks[-1].status
        if status not in (Status.OK, Status.BLANK, Status.END):
            # No record, unless the owner is writing one there.
            is_torn = status == Status.BAD_SIZE or valid_records_after(env, (file,), end)
            if is_torn and not has_grown(env, file, end, status):
                raise LogChanged
        file.set_positions(end - base)
        log = copy.copy(self._log)
        log.mapped_file_queue = copy.copy(log.mapped_file_queue)
        log.mapped_file_queue.replace_from([file])
        return LogPart(file, found, self.end, end, status, log)

    def _chunks(self, file: MappedFile) -> list[LogChunk]:
        log, stop = self._log, min(self.end + PART_SIZE, file.file_from_offset + file.file_size)
        crc = log.config.check_crc_on_recover
        return list(LogScan.of(log.env, log, self.end, stop, (file,), check_crc=crc).chunks())
