"""The records of the commit log in their order, scanned by several threads in pieces.

A thread that is given a piece from the middle of a file does not know where a record begins there,
and takes the first place where a whole one lies. What it found counts only if the piece before it
ends at that very place; else the piece is scanned again from there.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from pyrocketstore._log_piece import LogPiece, LogScanner
from pyrocketstore._scan import find_valid_record

if TYPE_CHECKING:
    from pyrocketstore._mapped_file import MappedFile
    from pyrocketstore.env import Env
    from pyrocketstore.mapped_file_queue import MappedFileQueue

RS_OK, RS_BLANK = 0, 1

#: Bytes of the log that one thread takes at a time.
PIECE_SIZE = 16 << 20
#: More threads would only wait for the memory.
THREADS_MAX = 4


@dataclasses.dataclass(frozen=True)
class _Part:
    """Where a piece should begin and end, bytes into the file."""

    file: MappedFile
    begin: int
    until: int


class LogScan:
    """Scans the log from `start` on, ahead of who asks for the pieces.

    Parameters
    ----------
    env : Env
    files : the log's files, in order
    start, stop : int, bytes of the log; `start` is where a record begins
    delay_levels : {level: ms}
    check_crc : bool, compare each body with its CRC
    records_max : int, bytes of memory for what dispatching needs of the records; pieces that come
        when it is full have none. None: each piece has them, for who lets go of the pieces

    Threads: one asks. At most as many pieces are scanned ahead as there are processors.
    """

    def __init__(
        self,
        env: Env,
        files: tuple[MappedFile, ...],
        start: int,
        stop: int,
        *,
        delay_levels: Mapping[int, int],
        check_crc: bool,
        records_max: int | None,
    ) -> None:
        self._files = [f for f in files if start - f.file_size < f.file_from_offset < stop]
        self._start = start
        self._stop = stop
        self._scanner = LogScanner(env, delay_levels, check_crc, records_max=records_max)
        self._thread_count = min(env.processor_count(), THREADS_MAX)
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: deque[tuple[_Part, Future[LogPiece]]] = deque()

    def pieces(self) -> Iterator[LogPiece]:
        """The pieces in order, each beginning where the one before it ended.

        The last one's status says what ended the log: anything but RS_OK, or RS_BLANK where no file
        follows. With a `stop`, RS_OK when it was reached.

        Raises StoreIOError.
        """
        try:
            yield from self._pieces()
        finally:
            self._scanner.cancel()
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)

    def _pieces(self) -> Iterator[LogPiece]:
        parts = deque(self._parts())
        file = None
        position = 0
        while parts or self._ahead:
            part, found = self._next(parts)
            if part.file is not file:
                file = part.file
                position = part.begin
            if part.until <= position:
                continue  # inside of a record that goes on behind it, or behind a BLANK
            piece = None if found is None else found.result()
            if piece is None or piece.begin != position:
                piece = self._scan(part, position, search=False)
            yield piece
            position = piece.end
            if piece.status == RS_BLANK:
                position = file.file_size
                self._skip(file, parts)
            if piece.status not in (RS_OK, RS_BLANK):
                return

    def _skip(self, file: MappedFile, parts: deque[_Part]) -> None:
        """Leave out what lies behind a BLANK: it may be most of a file, and holds nothing."""
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
                until = min(begin + PIECE_SIZE, end)
                yield _Part(file, begin, until)
                begin = until

    def _next(self, parts: deque[_Part]) -> tuple[_Part, Future[LogPiece] | None]:
        """The next part, and its scan when that is under way."""
        if self._thread_count < 2 or (self._pool is None and len(parts) < 3):
            return parts.popleft(), None
        if self._pool is None:
            # The first one alone: most logs end in it, and then no thread is needed.
            self._pool = ThreadPoolExecutor(self._thread_count, "LogScan")
            return parts.popleft(), None
        while parts and len(self._ahead) <= self._thread_count:
            part = parts.popleft()
            first = part.begin == max(0, self._start - part.file.file_from_offset)
            self._ahead.append(
                (part, self._pool.submit(self._scan, part, part.begin, search=not first))
            )
        return self._ahead.popleft()

    def _scan(self, part: _Part, position: int, *, search: bool) -> LogPiece:
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

    def roll_next_file(self, phy_offset: int) -> int:
        """The first byte of the file behind that of `phy_offset`."""
        ...


def records_between(env: Env, log: ScannableLog, start: int, stop: int) -> Iterator[LogPiece]:
    """Scan the records in [start, stop), bytes of the log; damage is stepped over.

    Raises StoreIOError.
    """
    files = log.mapped_file_queue.mapped_files
    while start < stop:
        piece = None
        scan = LogScan(
            env,
            files,
            start,
            stop,
            delay_levels=log.delay_levels,
            check_crc=False,
            records_max=None,
        )
        for piece in scan.pieces():
            yield piece
        if piece is None or piece.status in (RS_OK, RS_BLANK):
            return
        base, position = piece.file_from_offset, piece.end
        file = log.mapped_file_queue.find_mapped_file_by_offset(base, False)
        limit = min(stop - base, log.file_size)
        found = -1
        if file is not None and position + 1 < limit:
            found = find_valid_record(env, file.path, base, position + 1, limit)
        start = base + found if found >= 0 else log.roll_next_file(base)
