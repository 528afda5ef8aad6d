"""A store that a stream follows: one snapshot, refreshed at each look."""

from __future__ import annotations

import dataclasses
import weakref

import numpy as np

from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.units import QueueUnits
from pyrocketstore.errors import StoreStateError
from pyrocketstore.spark.options import SourceOptions, StorePlace
from pyrocketstore.spark.plan.continuity import record_header
from pyrocketstore.spark.plan.open_snapshot import retried
from pyrocketstore.spark.plan.snapshot import StoreSnapshot, last_on_disk
from pyrocketstore.spark.read.units import UNITS_AT_ONCE, RangeUnits
from pyrocketstore.spark.task_types import Mark, QueueRange
from pyrocketstore.system.env import Env

#: Looks take at most one part in IDLE_PARTS of the time.
IDLE_PARTS = 10
#: The same for openings that only damage makes necessary.
LOAD_PARTS = 50

QueueName = tuple[str, int]


@dataclasses.dataclass(frozen=True)
class Waiting:
    """Units [first, stop) at a queue's end that name unreadable records, since `since_ns`
    (monotonic)."""

    first: int
    stop: int
    since_ns: int


class StreamStore:
    """The selected queues of a store that a broker may write to.

    A look reads what was appended since the one before. The store is loaded again where its owner
    has done more: see `recovery.refresh`.

    Parameters
    ----------
    place : its label and directory, which may be empty
    options : which queues; broker_conf where the paths are not the default ones

    Raises StoreFormatError for a missing directory; StoreIOError, StoreCorruptionError. Threads:
    one. Nothing is written or locked.
    """

    def __init__(self, place: StorePlace, options: SourceOptions, env: Env | None = None) -> None:
        self.env = Env() if env is None else env
        self.place = place
        self._options = options
        self._ends: dict[QueueName, int] | None = None
        self._look_after_ns = self._load_after_ns = 0
        #: queues with units after their ends whose records cannot be read: not yet written, or
        #: damaged
        self.waiting: dict[QueueName, Waiting] = {}
        self._open()

    def _open(self) -> None:
        conf, topics = self._options.broker_conf, self._options.named_topics()

        def opened() -> StoreSnapshot:
            # Tasks report damage under onCorrupt=fail: the stream may have passed it.
            return StoreSnapshot(self.place, conf, "skip", topics, self.env, may_be_empty=True)

        self.snapshot = retried(opened, self.env)
        self.close = weakref.finalize(self, self.snapshot.close)

    # ---- queues ----------------------------------------------------------------------------------

    def ends(self, *, now: bool = False) -> dict[QueueName, int]:
        """Return the queue offset after the last message of each queue. Unless `now`, the result
        may be that of the call before."""
        began = self.env.monotonic_ns()
        if self._ends is None:
            self._ends = self._find_ends()
        elif now or began >= self._look_after_ns:
            # Records after damage at the log's end are found by another opening.
            again = bool(self.waiting) and (now or began >= self._load_after_ns)
            if self._refresh() or (again and self._refresh(again=True)):
                self._ends = self._find_ends()
            done = self.env.monotonic_ns()
            self._look_after_ns = done + IDLE_PARTS * (done - began)
            if again:
                self._load_after_ns = done + LOAD_PARTS * (done - began)
        return self._ends

    def _refresh(self, *, again: bool = False) -> bool:
        """Make readable what was appended; return whether an end may have moved."""
        try:
            return self.snapshot.refresh(again=again)
        except StoreStateError:  # another directory has the path
            if self.env.is_dir(self.snapshot.root):
                self.close()
                self._open()
                return True
            self._ends = {}
            return False

    def _find_ends(self) -> dict[QueueName, int]:
        found, waiting = {}, {}
        for queue in self.snapshot.queues(self._options):
            name = queue.topic, queue.queue_id
            end, stop = self._bounds(queue)
            found[name] = end
            if end < stop:
                new = Waiting(end, stop, self.env.monotonic_ns())
                before = self.waiting.get(name, new)
                since_ns = before.since_ns if before.first == end else new.since_ns
                waiting[name] = Waiting(end, stop, since_ns)
        self.waiting = waiting
        return found

    def _bounds(self, queue: ConsumeQueue) -> tuple[int, int]:
        """Return the ends of a queue's messages and of its units.

        Later units are left from an earlier run, or their records are damaged or not there yet:
        recovery leaves their queue offsets free, and the owner may put other messages there.
        """
        end = queue.get_max_offset_in_queue()
        if not self.snapshot.is_doubtful(queue):
            return end, end
        stop = max(end, last_on_disk(queue)[0])
        low = queue.first_readable_offset()
        units = RangeUnits(
            self.env, self.snapshot.part_of(queue, low, stop), fail_on_data_loss=False
        )
        at = stop if self.snapshot.is_broken else end
        while at > low:
            start = max(low, at - UNITS_AT_ONCE)
            found = units.read(start, at)
            for row in np.flatnonzero(~found.is_pre_blank())[::-1].tolist():
                unit = int(found.phy_offset[row]), int(found.size[row])
                if start + row < end or self._has_record(unit, start + row):
                    return start + row + 1, stop
            at = start
        return low, stop

    def has_queue(self, name: QueueName) -> bool:
        """Whether a queue exists, selected or not."""
        return self._queue(name) is not None

    def min_offset(self, name: QueueName) -> int:
        """Return the queue offset of the first message that the log still has and that is not
        removed; else the end."""
        queue = self._queue(name)
        return 0 if queue is None else queue.first_readable_offset()

    def lower_bound(self, name: QueueName, timestamp: int) -> int:
        """Return the first queue offset stored at `timestamp` (Unix ms) or later; else the end."""
        queue = self._queue(name)
        return 0 if queue is None else self.snapshot.lower_bound(queue, timestamp)

    def _queue(self, name: QueueName) -> ConsumeQueue | None:
        return self.snapshot.store.queue_table.get(*name)

    # ---- ranges ----------------------------------------------------------------------------------

    def range_of(
        self, name: QueueName, start: int, stop: int, mark: Mark | None = None
    ) -> QueueRange:
        """Return the range [start, stop) of a queue, whether or not its units still exist. `mark`
        is that of its last message."""
        queue, table = self._queue(name), self.snapshot.store.queue_table
        if queue is not None:
            found = self.snapshot.part_of(queue, start, stop)
        else:
            file_size = table.config.mapped_file_size_consume_queue
            directory = f"{table.path}/{name[0]}/{name[1]}"
            found = QueueRange(*name, directory, file_size, start, stop)
        if mark is None:
            return found
        if found.overlay:  # its units are always those of the plan, so they are no mark
            return self.snapshot.marked(found)
        return dataclasses.replace(found, mark=(mark.queue_offset, mark.phy_offset))

    def units(self, wanted: QueueRange, count: int) -> QueueUnits:
        """Read at most `count` units from the start of a range on; pre-blank ones where units are
        gone."""
        stop = min(wanted.start + count, wanted.stop)
        return RangeUnits(self.env, wanted, fail_on_data_loss=False).read(wanted.start, stop)

    def record_range(self, name: QueueName, queue_offset: int) -> tuple[int, int] | None:
        """Return the physical offset and size (bytes) of a message's record; None where the log
        does not have it, or has another record there."""
        whole = self.range_of(name, queue_offset, queue_offset + 1)
        unit = RangeUnits(self.env, whole, fail_on_data_loss=False).message_at(queue_offset)
        return unit if unit is not None and self._has_record(unit, queue_offset) else None

    def _has_record(self, unit: tuple[int, int], queue_offset: int) -> bool:
        header = record_header(self.env, self.snapshot.log_files(), *unit)
        if header is None:
            return False
        # A record may be in further queues, at other offsets.
        config = self.snapshot.store.config
        return header.queue_offset == queue_offset or config.enable_multi_dispatch
