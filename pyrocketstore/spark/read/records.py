"""Records of the commit log in memory or in their file, and the account of omitted records."""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrocketstore.columns._decode import decode_records, reusable_bytes
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.reading._messages import gather_records
from pyrocketstore.record._record import record_size_max
from pyrocketstore.record._text import string_to_properties
from pyrocketstore.record.message import LMQ_PREFIX, PROPERTY_INNER_MULTI_DISPATCH, java_split
from pyrocketstore.spark.options import SourceOptions
from pyrocketstore.spark.task_types import DataLossError, LogFile, QueueRange
from pyrocketstore.system.env import Env

LOG = logger(__name__)

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

#: Bytes between records may be one part in LEFT_BETWEEN of a read: reading them costs less than
#: copying the records out.
LEFT_BETWEEN = 4
#: Instead of a file's number: the file is missing; the log never had this physical offset.
_GONE, _NOWHERE = -1, -2


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Records in memory, or in their file.

    `data` has the records at `positions` (int64[n], bytes), `sizes` (int32[n]) bytes long. Their
    physical offsets are `phy_offsets` (int64[n]), in the file `path`. Records that were found
    through a queue have its `topic` and `queue_id`, and their `queue_offsets` (int64[n]). Where
    `data` is None, the decoder reads the records from `file`, `positions` has no meaning, and
    `load` reads the records into memory.
    """

    data: Any
    positions: Int64s
    sizes: Int32s
    phy_offsets: Int64s
    path: str
    file_from_offset: int
    topic: str | None = None
    queue_id: int = 0
    queue_offsets: Int64s | None = None
    file: MappedFile | None = None
    load: Callable[[Int64s, Int32s], Chunk | None] | None = None

    def loaded(self) -> Chunk | None:
        """Read the records into memory; None where the file is gone, which is then noted."""
        assert self.load is not None
        found = self.load(self.phy_offsets, self.sizes)
        if found is None:
            return None
        return dataclasses.replace(
            found, topic=self.topic, queue_id=self.queue_id, queue_offsets=self.queue_offsets
        )

    def of_queue(self, pinned: QueueRange, queue_offsets: Int64s) -> Chunk:
        """Return the records as those that units of a queue name."""
        return dataclasses.replace(
            self, topic=pinned.topic, queue_id=pinned.queue_id, queue_offsets=queue_offsets
        )

    def take(self, rows: Any) -> Chunk:
        """Return the rows that an index or a mask selects."""
        offsets = None if self.queue_offsets is None else self.queue_offsets[rows]
        return dataclasses.replace(
            self,
            positions=np.ascontiguousarray(self.positions[rows]),
            sizes=np.ascontiguousarray(self.sizes[rows]),
            phy_offsets=np.ascontiguousarray(self.phy_offsets[rows]),
            queue_offsets=offsets,
        )


@dataclasses.dataclass(frozen=True)
class NamedUnits:
    """The units of a queue that name records, by their queue offsets (int64[n]); for errors."""

    pinned: QueueRange
    queue_offsets: Int64s

    def after(self, row: int) -> NamedUnits:
        """Return the units from a row on."""
        return NamedUnits(self.pinned, self.queue_offsets[row:])

    def name(self, row: int) -> str:
        """Return the topic, queue id and queue offset of a row."""
        queue = f"{self.pinned.topic}/{self.pinned.queue_id}"
        return f"{queue}, queue offset {self.queue_offsets[row]}"

    def error(self, row: int, phy_offset: int, size: int) -> StoreCorruptionError:
        """Return the error for a unit that names bytes which the log does not have."""
        at = int(self.queue_offsets[row]) * CQ_STORE_UNIT_SIZE
        position = at % self.pinned.file_size
        path = f"{self.pinned.directory}/{at - position:020d}"
        reason = (
            f"the unit names {size} bytes at byte {phy_offset} of the log, which does not hold them"
        )
        return StoreCorruptionError(path, position, f"{reason} ({self.name(row)})")


@dataclasses.dataclass(frozen=True)
class Gap:
    """`size` bytes at `position` of a log file without a valid record; a BLANK has no `reason`."""

    position: int
    size: int
    reason: str


class Skipped:
    """Counts the records that a task omits, and its rows for damage; logged once at its end."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.first = ""
        self.shown = 0
        self.first_shown = ""

    def add(self, where: str, records: int, size: int) -> None:
        """Count omitted records of `size` bytes in all; `where` has the position and the reason."""
        if not self.first:
            self.first = where
        self.records += records
        self.bytes += size

    def show(self, where: str, rows: int) -> None:
        """Count rows that represent damage; `where` as in add."""
        if not self.first_shown:
            self.first_shown = where
        self.shown += rows

    def log(self) -> None:
        """Log a warning if there was anything."""
        if self.records or self.bytes:
            LOG.warning(
                "rocketmq-store omitted %d records, %d bytes, the first: %s",
                self.records,
                self.bytes,
                self.first,
            )
        if self.shown:
            LOG.warning(
                "rocketmq-store shows %d damaged ranges as rows, the first: %s",
                self.shown,
                self.first_shown,
            )


class LogReader:
    """Reads records of commit log files by pread.

    Raises DataLossError for a file that is gone. Without `fail_on_data_loss`, its records are
    omitted and counted. Threads: one.
    """

    def __init__(
        self, env: Env, files: tuple[LogFile, ...], options: SourceOptions, skipped: Skipped
    ) -> None:
        self.env = env
        self.files = files
        self.fail_on_data_loss = options.fail_on_data_loss
        self.on_corrupt = options.on_corrupt
        self.skipped = skipped
        self._begins = np.array([file.from_offset for file in files], np.int64)
        self._ends = self._begins + np.array([file.size for file in files], np.int64)
        self._open: dict[str, MappedFile] = {}

    def chunks(
        self, phy_offsets: Int64s, sizes: Int32s, units: NamedUnits
    ) -> Iterator[tuple[slice, Chunk]]:
        """Yield the records of each run that is in one file, with its rows of the arrays.

        Raises StoreCorruptionError for a physical offset after the log's end, at the one of the
        `units` that names it. Where damage is omitted, such a record has size 0.
        """
        numbers = self._file_numbers(phy_offsets)
        edges = [*(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        first = 0
        for edge in edges:
            if edge > first:
                rows = slice(first, edge)
                chunk = self._chunk(
                    int(numbers[first]), phy_offsets[rows], sizes[rows], units.after(first)
                )
                if chunk is not None:
                    yield rows, chunk
            first = edge

    def _file_numbers(self, phy_offsets: Int64s) -> Int64s:
        """Return each physical offset's file number, or _GONE or _NOWHERE (int64[n])."""
        if not self.files:
            return np.full(len(phy_offsets), _GONE)
        numbers = np.searchsorted(self._begins, phy_offsets, side="right") - 1
        behind = phy_offsets >= self._ends[numbers]
        numbers[behind & (numbers < len(self.files) - 1)] = _GONE
        numbers[behind & (numbers == len(self.files) - 1)] = _NOWHERE
        numbers[phy_offsets < self._begins[0]] = _GONE
        numbers[phy_offsets < 0] = _NOWHERE
        return numbers

    def _chunk(
        self, number: int, phy_offsets: Int64s, sizes: Int32s, units: NamedUnits
    ) -> Chunk | None:
        if number == _GONE:
            self._lost(self._where(int(phy_offsets[0]), units), sizes)
            return None
        phy_offsets, sizes = np.ascontiguousarray(phy_offsets), np.ascontiguousarray(sizes)
        last = number == _NOWHERE
        file = self.files[number] if not last else self.files[-1]
        end = int(self._ends[number]) if not last else 0
        beyond = (sizes <= 0) | (phy_offsets > end - sizes.astype(np.int64))
        beyond |= sizes > record_size_max()
        if beyond.any():
            if self.on_corrupt == "fail":
                row = int(np.flatnonzero(beyond)[0])
                raise units.error(row, int(phy_offsets[row]), int(sizes[row]))
            sizes = np.where(beyond, np.int32(0), sizes)
            return self._loaded(file, phy_offsets, sizes)
        try:
            opened = self._mapped_file(file)
        except StoreIOError as error:
            self._note_gone(error, file, sizes)
            return None
        load = functools.partial(self._loaded, file)
        where = phy_offsets, sizes, phy_offsets
        return Chunk(None, *where, file.path, file.from_offset, file=opened, load=load)

    def _loaded(self, file: LogFile, phy_offsets: Int64s, sizes: Int32s) -> Chunk | None:
        try:
            return self._gathered(file, phy_offsets, sizes)
        except StoreIOError as error:
            self._note_gone(error, file, sizes)
            return None

    def _note_gone(self, error: StoreIOError, file: LogFile, sizes: Int32s) -> None:
        """Count the records of a file that is gone; raise any other error."""
        if error.errno != errno.ENOENT:
            raise error
        self._lost(file.path, sizes)

    def _gathered(self, file: LogFile, phy_offsets: Int64s, sizes: Int32s) -> Chunk:
        """Read the bytes at physical offsets without a check; size 0 means a missing record."""
        opened = self._mapped_file(file)
        total = int(sizes.sum())
        data = reusable_bytes(total + total // LEFT_BETWEEN)
        present = sizes > 0
        wanted = phy_offsets[present], sizes[present]
        positions = np.zeros(len(wanted[0]), np.int64)
        try:
            gather_records(opened, *wanted, data, 0, check=False, positions=positions)
        except StoreCorruptionError:  # the file is shorter than it was
            if self.on_corrupt == "fail":
                raise
            self._gather_each(opened, *wanted, data, positions)
        all_positions = np.zeros(len(sizes), np.int64)
        all_positions[present] = positions
        return Chunk(data, all_positions, sizes, phy_offsets, file.path, file.from_offset)

    @staticmethod
    def _gather_each(
        opened: MappedFile,
        phy_offsets: Int64s,
        sizes: Int32s,
        data: npt.NDArray[np.uint8],
        positions: Int64s,
    ) -> None:
        """Read records one by one; missing bytes become zeros."""
        np.cumsum(sizes[:-1], dtype=np.int64, out=positions[1:])
        for row, position in enumerate(positions.tolist()):
            one = slice(row, row + 1)
            try:
                gather_records(opened, phy_offsets[one], sizes[one], data, position, check=False)
            except StoreCorruptionError:
                data[position : position + int(sizes[row])] = 0

    def _mapped_file(self, file: LogFile) -> MappedFile:
        if file.path not in self._open:
            opened = MappedFile(
                self.env,
                file.path,
                file.size,
                mode="read",
                file_from_offset=file.from_offset,
                partial=True,  # records after the end of a truncated file are damaged
            )
            opened.set_positions(file.size)
            self._open[file.path] = opened
        return self._open[file.path]

    def _where(self, phy_offset: int, units: NamedUnits) -> str:
        """Return the file that should have a byte of the log, and the unit that names the byte."""
        unit = f"({units.name(0)})"
        if not self.files:
            return f"byte {phy_offset} of the log, which has no file {unit}"
        folder, size = os.path.dirname(self.files[0].path), self.files[0].size
        if len(self.files) == 1 or phy_offset < 0:  # a last file may be shorter than the others
            return f"{folder}: byte {phy_offset} of the log {unit}"
        position = phy_offset % size
        return f"{folder}/{phy_offset - position:020d} at byte {position} {unit}"

    def _lost(self, where: str, sizes: Int32s) -> None:
        if self.fail_on_data_loss:
            raise DataLossError(
                f"{where}: gone, with {len(sizes)} requested messages; "
                "failOnDataLoss=false reads the others"
            )
        self.skipped.add(f"{where}: gone", len(sizes), int(sizes.sum()))


def is_light(topic: str) -> bool:
    """Whether a topic is a light queue (LMQ), whose records belong to other queues."""
    return topic.startswith(LMQ_PREFIX)


def topic_of(chunk: Chunk, row: int) -> str:
    """Return the topic of a record, with U+FFFD for bytes that are not UTF-8.

    Raises StoreCorruptionError where the bytes are not a valid record.
    """
    one = chunk.take(slice(row, row + 1))
    columns = decode_records(one.data, one.positions, one.sizes, ["topic"], path=one.path)
    return str(columns["topic"][0])


def is_dispatched_to(chunk: Chunk, row: int) -> bool:
    """Whether a record names the chunk's queue in its multi-dispatch properties."""
    one = chunk.take(slice(row, row + 1))
    columns = decode_records(one.data, one.positions, one.sizes, ["properties"], path=one.path)
    properties = string_to_properties(str(columns["properties"][0]))
    return chunk.topic in java_split(properties.get(PROPERTY_INNER_MULTI_DISPATCH, ""))
