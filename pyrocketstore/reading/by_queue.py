"""Messages of queues in order: selects units, compares records, reports damage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE, QueueUnits
from pyrocketstore.errors import StoreIOError
from pyrocketstore.reading._messages import MessageIterator
from pyrocketstore.reading.skipped import QueueDamage
from pyrocketstore.record._queue_check import QueueName
from pyrocketstore.record.tags import TagsExpression

if TYPE_CHECKING:
    from pyrocketstore.files._mapped_file import MappedFile

#: Units that an iterator reads ahead: at first, since many want a few messages, and later.
FIRST_READ_COUNT, READ_COUNT = 256, 8192

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
#: A commit log file and its records: physical offsets, sizes in bytes, queue offsets.
FileChunk = tuple["MappedFile", Int64s, Int32s, Int64s]
#: (file, queue offsets [start, stop)) to the error to raise, or None; as of QueueRange.file_gone.
FileGone = Callable[["MappedFile", int, int], Exception | None]


class RecordRefs(NamedTuple):
    """Records that units of a queue refer to, columns of one length: `phy_offset` int64[n], bytes;
    `size` int32[n], bytes; `queue_offset` int64[n]."""

    phy_offset: Int64s
    size: Int32s
    queue_offset: Int64s

    def rows(self, rows: slice | npt.NDArray[np.bool_]) -> RecordRefs:
        """Some of the rows, contiguous."""
        take = np.ascontiguousarray
        return RecordRefs(
            take(self.phy_offset[rows]), take(self.size[rows]), take(self.queue_offset[rows])
        )


class QueueRange(NamedTuple):
    """A part of a queue to be read, and how.

    Parameters
    ----------
    log, queue : where
    floor : bytes of the log: where it began before the first queue offset to be read was looked up,
        so no valid unit from that one on refers to an offset before it
    wanted : tags to keep, None for all
    damage : the treatment of messages that cannot be read
    check_crc : compare each stored body with its CRC
    """

    log: CommitLog
    queue: ConsumeQueue
    floor: int
    wanted: TagsExpression | None
    damage: QueueDamage
    check_crc: bool

    def readable(self, units: QueueUnits) -> npt.NDArray[np.bool_]:
        """bool[n]: units that are not pre-blank ones and whose message has not expired."""
        expired = units.phy_offset < self.log.get_min_offset()
        if expired.any():  # a damaged unit may refer to any offset
            expired &= units.phy_offset >= self.floor
        return np.asarray(~(expired | units.is_pre_blank()), np.bool_)

    def select(self, units: QueueUnits, keep: npt.NDArray[np.bool_], start: int) -> RecordRefs:
        """The records to read of units from queue offset `start` on.

        Units that surely have another tag are left out.
        """
        if self.wanted is not None:
            keep = keep & self.wanted.may_match(units.tags_code, self.queue.topic)
        offsets = np.arange(start, start + len(units.phy_offset), dtype=np.int64)
        refs = RecordRefs(units.phy_offset, units.size, offsets)
        return refs if keep.all() else refs.rows(keep)

    def by_file(self, refs: RecordRefs) -> Iterator[tuple[MappedFile | None, RecordRefs]]:
        """Yield the records of one commit log file each, with that file or None.

        An offset that no log of this length has is yielded alone.
        """
        first = 0
        numbers = refs.phy_offset // self.log.file_size
        for stop in [*(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]:
            if stop > first:
                rows = refs.rows(slice(first, stop))
                phy_offset = int(rows.phy_offset[0])
                file = self.log.mapped_file_queue.find_mapped_file_by_offset(phy_offset, False)
                if file is not None or self._is_in_log(phy_offset):
                    yield file, rows
                else:
                    yield from ((None, rows.rows(slice(i, i + 1))) for i in range(stop - first))
            first = stop

    def missing(self, refs: RecordRefs) -> Exception | None:
        """Note records without a file, from `by_file`; return the error to raise, if any.

        Expired messages are not damage.
        """
        phy_offset, queue_offset = int(refs.phy_offset[0]), int(refs.queue_offset[0])
        if not self._is_in_log(phy_offset):
            position = queue_offset * CQ_STORE_UNIT_SIZE
            start = position - position % self.queue.mapped_file_size
            path = f"{self.queue.mapped_file_queue.store_path}/{start:020d}"
            reason = f"the unit names byte {phy_offset} of the log, which does not hold it"
            return self.damage.message(path, position - start, reason, queue_offset)
        if phy_offset < self.log.get_min_offset():
            return None
        file_from_offset = phy_offset - phy_offset % self.log.file_size
        path = os.path.join(self.log.config.commit_log_paths[0], f"{file_from_offset:020d}")
        return self.damage.missing_file(path, queue_offset, int(refs.queue_offset[-1]) + 1)

    def file_gone(self, file: MappedFile, start: int, stop: int) -> Exception | None:
        """Note messages of a file that was taken away; the error to raise, None: they expired."""
        self.log.mapped_file_queue.forget_deleted()
        if file.file_from_offset + self.log.file_size <= self.log.get_min_offset():
            return None
        return self.damage.missing_file(file.path, start, stop)

    def messages(
        self, chunks: Iterable[FileChunk], file_gone: FileGone, damage: QueueDamage
    ) -> MessageIterator:
        """Iterate over the messages, each compared with the queue and its queue offset."""
        return MessageIterator(
            chunks,
            None if self.wanted is None else self.wanted.tags,
            file_gone,
            queue=QueueName(self.queue.topic, self.queue.queue_id),
            damage=damage,
            check_crc=self.check_crc,
        )

    def _is_in_log(self, phy_offset: int) -> bool:
        return self.floor <= phy_offset < self.log.get_max_offset()


class QueueChunks:
    """The records of a range of a queue, file by file, for MessageIterator.

    Unlike a generator it continues after an error: at the next chunk.

    Parameters
    ----------
    part : what is read
    start, stop : queue offsets
    while_open : returns a context that raises where the store is closed before or meanwhile
    note_get : called with the number of messages of each run
    """

    def __init__(
        self,
        part: QueueRange,
        start: int,
        stop: int,
        while_open: Callable[[], AbstractContextManager[None]],
        note_get: Callable[[int], None],
    ) -> None:
        self._part = part
        self._start = start
        self._stop = stop
        self._count = FIRST_READ_COUNT
        self._while_open = while_open
        self._note_get = note_get
        #: chunks of the units read so far: (a chunk, or None; its records); `_at` is the next
        self._ready: list[tuple[FileChunk | None, RecordRefs]] = []
        self._at = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FileChunk:
        while True:
            if self._at < len(self._ready):
                # No call from here to the end: a signal handler that raises loses nothing.
                chunk, refs = self._ready[self._at]
                self._at += 1
                if chunk is not None:
                    return chunk
                error = self._part.missing(refs)
                if error is not None:
                    raise error
            elif self._start < self._stop:
                self._read_on()
            else:
                raise StopIteration

    def _read_on(self) -> None:
        start, queue = self._start, self._part.queue
        with self._while_open():
            try:
                units = queue.read_units(start, min(self._count, self._stop - start))
            except StoreIOError as error:
                self._part.damage.no_units(error, start, self._stop)
                self._start = self._stop
                raise
            count = len(units.phy_offset)
            first = start
            if count == 0:
                first = queue.first_readable_offset(max(0, self._part.log.get_min_offset()))
        if count == 0:
            # Deleted meanwhile: the rest of the queue follows behind it.
            self._start = first if first > start else self._stop
            return
        refs = self._part.select(units, self._part.readable(units), start)
        ready: list[tuple[FileChunk | None, RecordRefs]] = [
            (None if file is None else (file, *rows), rows)
            for file, rows in self._part.by_file(refs)
        ]
        self._note_get(len(refs.phy_offset))
        self._count = min(2 * self._count, READ_COUNT)
        self._ready, self._at, self._start = ready, 0, start + count

    def messages(self) -> MessageIterator:
        """The messages."""
        return self._part.messages(self, self._file_gone, self._part.damage)

    def _file_gone(self, file: MappedFile, start: int, stop: int) -> Exception | None:
        with self._while_open():
            return self._part.file_gone(file, start, stop)
