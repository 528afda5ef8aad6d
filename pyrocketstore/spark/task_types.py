"""Plain data of tasks: the driver plans them, and executors run them.

The driver creates these objects, Spark pickles them, and executors use them. Each names files and
ranges of one moment, and none holds an open file or a reference to a store.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE
from pyrocketstore.errors import StoreError
from pyrocketstore.index.directory import entry_position

_Item = TypeVar("_Item")

#: No record begins before LOG_BEGIN or after LOG_END (bytes of the log).
LOG_BEGIN, LOG_END = -1, 1 << 62


class DataLossError(StoreError):
    """The store does not have selected messages: deleted, lost, or not yet written."""


@dataclasses.dataclass(frozen=True)
class LogFile:
    """A commit log file of `size` bytes, which begins at byte `from_offset` of the log."""

    path: str
    from_offset: int
    size: int


@dataclasses.dataclass(frozen=True)
class QueueRange:
    """Units [start, stop) of a queue, whose files of `file_size` bytes are in `directory`.

    `overlay` has chunks of encoded units that replace the files' bytes, each with the queue offset
    of its first unit.

    `mark` is the queue offset and the physical offset of the last unit that names a message, of the
    whole range that was planned and as the files had it then; None where they had no such unit. The
    files of a topic that was removed and made again since then have another unit there.
    """

    topic: str
    queue_id: int
    directory: str
    file_size: int
    start: int
    stop: int
    overlay: tuple[tuple[int, bytes], ...] = ()
    mark: tuple[int, int] | None = None

    def cut(self, start: int, stop: int) -> QueueRange:
        """Return the part [start, stop), with its part of the overlay and the same mark."""
        kept = []
        for first, units in self.overlay:
            begin = max(start, first)
            end = min(stop, first + len(units) // CQ_STORE_UNIT_SIZE)
            if begin < end:
                chunk = units[
                    (begin - first) * CQ_STORE_UNIT_SIZE : (end - first) * CQ_STORE_UNIT_SIZE
                ]
                kept.append((begin, chunk))
        return dataclasses.replace(self, start=start, stop=stop, overlay=tuple(kept))


@dataclasses.dataclass(frozen=True)
class QueueTask:
    """Ranges of queues, read through their units.

    `is_live`: the store may be written to, and may be recovering, so that units are missing for a
    moment.
    """

    broker_name: str
    log_files: tuple[LogFile, ...]
    ranges: tuple[QueueRange, ...]
    is_live: bool = False


@dataclasses.dataclass(frozen=True)
class LogTask:
    """The records that begin in [begin, stop) of a log file (bytes); the log ends at `end`.

    `begins_at_record` and `ends_at_record` state that a record is known to begin there, or that
    the log ends there. `ranges` are the selected queues; None: every record. The task is
    responsible for the units that name a physical offset in [own_begin, own_stop); the records of
    these units are in `log_files`.
    """

    broker_name: str
    file: LogFile
    begin: int
    stop: int
    end: int
    begins_at_record: bool
    ends_at_record: bool
    ranges: tuple[QueueRange, ...] | None
    own_begin: int = LOG_BEGIN
    own_stop: int = LOG_END
    log_files: tuple[LogFile, ...] = ()
    #: about how many records begin there, where maxRecordsPerPartition limits them; else 0
    records: int = 0


@dataclasses.dataclass(frozen=True)
class IndexTask:
    """Entries [first, first + count) of an index file. `data` has the entries where they are only
    in memory. `header` has the fields of the file's header, times in Unix ms."""

    path: str
    header: dict[str, int]
    hash_slot_num: int
    first: int
    count: int
    data: bytes | None

    def position(self, at: int) -> int:
        """Return the position in the file (bytes) of the task's entry number `at`."""
        return entry_position(self.hash_slot_num, self.first + at)


@dataclasses.dataclass(frozen=True)
class TaskGroup:
    """Ranges of small files, read one after the other. A LogTask among `tasks` leaves out `ranges`
    and `log_files`, which all of them share."""

    tasks: tuple[LogTask | IndexTask, ...]
    ranges: tuple[QueueRange, ...] | None = None
    log_files: tuple[LogFile, ...] = ()

    @classmethod
    def of(cls, tasks: Sequence[LogTask | IndexTask]) -> TaskGroup:
        """Combine tasks that have the fields `ranges` and `log_files` in common."""
        first = tasks[0]
        if isinstance(first, IndexTask):
            return cls(tuple(tasks))
        rest = [
            dataclasses.replace(task, ranges=None, log_files=())
            for task in tasks
            if isinstance(task, LogTask)
        ]
        return cls(tuple(rest), first.ranges, first.log_files)

    def whole_tasks(self) -> Iterator[LogTask | IndexTask]:
        """Yield the tasks with all their fields."""
        for task in self.tasks:
            if isinstance(task, LogTask):
                yield dataclasses.replace(task, ranges=self.ranges, log_files=self.log_files)
            else:
                yield task


Task = QueueTask | LogTask | IndexTask | TaskGroup


@dataclasses.dataclass(frozen=True)
class StoreTask:
    """A task of a plan, with the label of its store.

    `task` is a Task; the rows of the view files, a list; or None in a plan without rows. `common`
    names the fields that the task leaves out because several tasks share their values: field name
    -> position in the plan's `common`.
    """

    broker_name: str
    task: Any
    common: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def whole_task(self, common: Sequence[tuple[Any, ...]]) -> Any:
        """Return the task with all its fields."""
        if not self.common:
            return self.task
        found = {name: common[number] for name, number in self.common.items()}
        return dataclasses.replace(self.task, **found)


class Mark(NamedTuple):
    """The last message of a queue that a lake or a stream has read. The store that continues there
    has the same message.

    `phy_offset` and `size` are those of its unit. `store_timestamp` (Unix ms) and `body_crc` are
    those of the record's header, and None where the record was damaged.
    """

    queue_offset: int
    phy_offset: int
    size: int
    store_timestamp: int | None
    body_crc: int | None


def grouped(items: Iterable[tuple[_Item, float]], limit: float) -> list[list[_Item]]:
    """Divide items, each with its weight, into runs of at most `limit`; a heavier item has a run of
    its own."""
    runs: list[list[_Item]] = []
    room = 0.0
    for item, weight in items:
        if not runs or weight > room:
            runs.append([])
            room = limit
        runs[-1].append(item)
        room -= weight
    return runs
