"""Scan the records of the commit log in order, with several threads that each take a chunk.

A thread whose chunk begins inside a file does not know where a record begins there. It starts at
the first position where a whole record is found. Its result counts only if the chunk before it ends
at exactly that position; otherwise the chunk is scanned again from the end of the one before.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyrocketstore.arguments.scalars import INT64_MAX
from pyrocketstore.commit_log._chunk_scan import LogChunk, LogScanner
from pyrocketstore.commit_log._scan import find_valid_record
from pyrocketstore.results import Status
from pyrocketstore.system.thread_pool import PoolCall, ThreadPool

if TYPE_CHECKING:
    from pyrocketstore.commit_log._scan import TopicMinOffsets
    from pyrocketstore.files._mapped_file import FileSequence, MappedFile
    from pyrocketstore.files.mapped_file_queue import MappedFileQueue
    from pyrocketstore.system.env import Env


#: Bytes of the log that one thread takes at a time: at most, and at least.
CHUNK_SIZE = 16 << 20
CHUNK_SIZE_MIN = 2 << 20
#: A short log is divided into this many chunks for each thread.
CHUNKS_EACH = 2
#: Memory bandwidth limits the scan: more threads do not make it faster.
THREADS_MAX = 4


class _Part(NamedTuple):
    """The planned begin and end of a chunk, bytes into the file."""

    file: MappedFile
    begin: int
    until: int


class LogScan:
    """Scan the log from `start` on, ahead of the consumer of the chunks.

    Parameters
    ----------
    env : Env
    files : the log's files, in order
    start, stop : int, physical offsets; a record begins at `start`
    delay_levels : {level: ms}
    check_crc : bool, compare each body with its CRC
    records_max : int or None, bytes of memory shared by the chunks for the record data that
        dispatch needs; a chunk that does not fit has its own memory, as each chunk has with None
    min_offsets, hash_keys, keys_from : see LogScanner
    expected_end : int, physical offset at which the log is likely to end; -1: unknown. Bytes after
        it are not scanned ahead, and a short log is divided into more chunks

    Threads: one consumer. At most one chunk for each processor is scanned ahead.
    """

    def __init__(
        self,
        env: Env,
        files: FileSequence | tuple[MappedFile, ...],
        start: int,
        stop: int,
        *,
        delay_levels: Mapping[int, int],
        check_crc: bool,
        records_max: int | None,
        min_offsets: TopicMinOffsets | None = None,
        hash_keys: bool = True,
        keys_from: int = INT64_MAX,
        expected_end: int = -1,
    ) -> None:
        self._files = [f for f in files if start - f.file_size < f.file_from_offset < stop]
        self._start = start
        self._stop = stop
        self._scanner = LogScanner(
            env,
            delay_levels,
            check_crc,
            records_max=records_max,
            min_offsets=min_offsets,
            hash_keys=hash_keys,
            keys_from=keys_from,
        )
        self._thread_count = min(env.processor_count(), THREADS_MAX)
        self._expected_end = expected_end
        self._chunk_size = CHUNK_SIZE
        if expected_end > start:
            each = (expected_end - start) // (CHUNKS_EACH * self._thread_count)
            self._chunk_size = min(max(each, CHUNK_SIZE_MIN), CHUNK_SIZE)
        self._pool: ThreadPool | None = None
        self._ahead: deque[tuple[_Part, PoolCall[LogChunk]]] = deque()

    @classmethod
    def of(
        cls,
        env: Env,
        log: ScannableLog,
        start: int,
        stop: int,
        files: FileSequence | tuple[MappedFile, ...] | None = None,
        *,
        check_crc: bool = False,
    ) -> LogScan:
        """Return a scan of a part of a log, or of some of its files, each chunk of which has the
        data that dispatch needs, and is freed once it is dispatched."""
        return cls(
            env,
            log.mapped_file_queue.mapped_files if files is None else files,
            start,
            stop,
            delay_levels=log.delay_levels,
            check_crc=check_crc,
            records_max=None,
            min_offsets=log.min_offsets,
        )

    def chunks(self) -> Iterator[LogChunk]:
        """Yield the chunks in order; each begins where the one before it ended.

        The status of the last one is OK if `stop` was reached, else the verdict that ended the log;
        BLANK if no file follows.

        Raises StoreIOError.
        """
        try:
            yield from self._chunks()
        finally:
            self._scanner.cancel()
            if self._pool is not None:
                self._pool.close(cancel=True)

    def _chunks(self) -> Iterator[LogChunk]:
        parts = deque(self._parts())
        file = None
        position = 0
        while parts or self._ahead:
            part, found = self._next(parts)
            if part.file is not file:
                file = part.file
                position = part.begin
            if part.until <= position:
                continue  # the part is inside a record, or after a BLANK
            chunk = None if found is None else found.result()
            if chunk is None or chunk.begin != position:
                chunk = self._scan(part, position, search=False)
            yield chunk
            position = chunk.end
            if file.file_from_offset + position > self._expected_end:
                self._expected_end = -1  # the log continues after it
            if chunk.status == Status.BLANK:
                position = file.file_size
                self._skip(file, parts)
            if chunk.status not in (Status.OK, Status.BLANK):
                return

    def _skip(self, file: MappedFile, parts: deque[_Part]) -> None:
        """Drop the parts after a BLANK: they may be most of a file, and hold no records."""
        while parts and parts[0].file is file:
            parts.popleft()
        for part, found in self._ahead:
            if part.file is file:
                found.cancel()

    def _parts(self) -> Iterator[_Part]:
        for file in self._files:
            base = file.file_from_offset
            begin = max(0, self._start - base)
            end = min(file.file_size, self._stop - base)
            while begin < end:
                is_behind = 0 <= self._expected_end <= base + begin
                until = min(begin + (CHUNK_SIZE if is_behind else self._chunk_size), end)
                yield _Part(file, begin, until)
                begin = until

    def _next(self, parts: deque[_Part]) -> tuple[_Part, PoolCall[LogChunk] | None]:
        """Return the next part, and its scan if that has been started."""
        if self._ahead and self._thread_count < 2:
            return self._ahead.popleft()
        if self._thread_count < 2 or (self._pool is None and len(parts) < 3):
            return parts.popleft(), None
        if self._pool is None:
            if self._expected_end >= 0 and not self._is_expected(parts[1]):
                return parts.popleft(), None
            self._pool = ThreadPool(self._thread_count, "LogScan")
            if self._expected_end < 0:
                # The first part is scanned without threads, because most logs end in it.
                return parts.popleft(), None
        while parts and len(self._ahead) <= self._thread_count and self._is_expected(parts[0]):
            part = parts.popleft()
            first = part.begin == max(0, self._start - part.file.file_from_offset)
            try:
                scan = self._pool.submit(
                    functools.partial(self._scan, part, part.begin, search=not first)
                )
            except (RuntimeError, MemoryError):  # no thread can be started
                self._thread_count = 1
                parts.appendleft(part)
                break
            self._ahead.append((part, scan))
        return self._ahead.popleft() if self._ahead else (parts.popleft(), None)

    def _is_expected(self, part: _Part) -> bool:
        """Return whether records are likely in a part."""
        end = self._expected_end
        return end < 0 or part.file.file_from_offset + part.begin < end

    def _scan(self, part: _Part, position: int, *, search: bool) -> LogChunk:
        file = part.file
        return self._scanner.scan(
            file.path,
            file.file_from_offset,
            position,
            part.until,
            file.file_size,
            search=search,
        )


class ScannableLog(Protocol):
    """The parts of a commit log that a scan over damage needs."""

    mapped_file_queue: MappedFileQueue
    file_size: int
    delay_levels: dict[int, int]
    min_offsets: TopicMinOffsets

    def roll_next_file(self, phy_offset: int) -> int:
        """Return the first physical offset of the file after that of `phy_offset`."""
        ...


def records_between(env: Env, log: ScannableLog, start: int, stop: int) -> Iterator[LogChunk]:
    """Scan the records in [start, stop), physical offsets, and step over damage.

    Raises StoreIOError.
    """
    files = log.mapped_file_queue.mapped_files
    while start < stop:
        chunk = None
        for chunk in LogScan.of(env, log, start, stop, files).chunks():
            yield chunk
        if chunk is None or chunk.status in (Status.OK, Status.BLANK):
            return
        base, position = chunk.file_from_offset, chunk.end
        file = log.mapped_file_queue.find_mapped_file_by_offset(base, False)
        limit = min(stop - base, log.file_size)
        found = -1
        if file is not None and position + 1 < limit:
            found = find_valid_record(env, file.path, base, position + 1, limit, check_crc=False)
        start = base + found if found >= 0 else log.roll_next_file(base)
