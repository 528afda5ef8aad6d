"""Plan the batches of a stream: start, ends, losses and limits of its queues.

An offset has the next message of each queue. Spark keeps no start of its own: the first batch pins
it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreCorruptionError, StoreFormatError
from pyrocketstore.spark.options import SourceOptions
from pyrocketstore.spark.plan.offsets import (
    Limits,
    Positions,
    QueueKey,
    check_brokers,
    decode_marks,
    decode_offset,
    encode_offset,
    named_queues,
    share,
)
from pyrocketstore.spark.plan.snapshot import SAMPLE_COUNT, starting_offset
from pyrocketstore.spark.plan.stream_continuity import StreamStores
from pyrocketstore.spark.plan.stream_store import StreamStore, Waiting
from pyrocketstore.spark.plan.task_splitting import Wanted, mean_size, queue_tasks
from pyrocketstore.spark.read.units import UNITS_AT_ONCE, RangeUnits
from pyrocketstore.spark.task_types import (
    DataLossError,
    LogFile,
    QueueRange,
    QueueTask,
    StoreTask,
    Task,
)
from pyrocketstore.system.env import Env

LOG = logger(__name__)

_LOOK_AGAIN_S = 0.1


class StreamPlan:
    """Plans the batches of a stream on the driver.

    Parameters
    ----------
    recovery_s : seconds that a queue may be shorter than before, and that units may name unreadable
        records, before that counts as data loss or damage
    env : file access of all stores; None: a new Env for each store

    Raises StoreFormatError where the start names a broker without a store. Threads: one.
    """

    def __init__(self, options: SourceOptions, recovery_s: float, env: Env | None) -> None:
        self.options = options
        self.recovery_s = recovery_s
        self._env = env
        self._stores: dict[str, StreamStore] | None = None
        #: where AvailableNow ends
        self._frozen: Positions | None = None
        self._pinned: Positions | None = None
        #: queues that are gone, and were reported
        self._gone: set[QueueKey] = set()
        self._marks = StreamStores(self.stores, options, self.looks)
        #: the waiting units that were reported
        self._reported: dict[QueueKey, int] = {}
        check_brokers(options.starting, [place.broker_name for place in options.places])

    # ---- batches ---------------------------------------------------------------------------------

    def latest_offset(self, start: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """Return where the batch from `start` on ends; `start` itself without new messages.

        Raises DataLossError, StoreFormatError, StoreIOError.
        """
        known = decode_offset(start)
        if known is None:
            queue_ends = self._queue_ends()
            begins = moved = self._start(queue_ends)
        else:
            queue_ends, begins, moved = self._continued(known[0], start)
        self._report_waiting()
        ends = self._admit(begins, queue_ends, limits)
        if known is not None and not moved and ends == known[0]:
            return start
        kept = {} if known is None else {k: at for k, at in known[0].items() if k not in moved}
        return encode_offset(ends, moved, self._marks.after(ends, kept, start))

    def freeze(self) -> None:
        """End this run at the messages that exist now.

        Raises StoreCorruptionError under onCorrupt=fail where units still name unreadable records
        after recovery_s.
        """
        self._frozen = self.look(now=True)
        waiting = self.waiting()
        for now in self.looks() if waiting else ():
            self._frozen |= {key: now[key] for key in waiting if key in now}
            still = self.waiting()
            waiting = {key: still[key] for key in waiting if key in still}
            if not waiting:
                break
        if not waiting:
            return
        key, first = min(waiting.items())
        count = sum(each.stop - each.first for each in waiting.values())
        text = f"{_waiting_text(key, first)}; in all {count} units of {len(waiting)} queues"
        if self.options.on_corrupt == "fail":
            store = self.stores()[key[0]]
            pinned = store.range_of(key[1:], first.first, first.stop)
            raise StoreCorruptionError(
                RangeUnits(store.env, pinned, fail_on_data_loss=False).path_of(first.first),
                first.first * CQ_STORE_UNIT_SIZE % pinned.file_size,
                f"{text}. Opening the store for writing repairs or removes them; "
                "onCorrupt=skip reads the messages before them",
            )
        LOG.warning("rocketmq-store omitted: %s", text)

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[StoreTask]:
        """Return the tasks of a batch, which depend on `start` and `end` alone."""
        begins = decode_offset(start)
        known = decode_offset(end)
        # Equal offsets are one moment; the start of the batch that ended there is not repeated.
        if known is None or dict(start) == dict(end):
            return []
        ends, moved = known
        starts = {**(begins[0] if begins is not None else {}), **moved}
        # The files may be those of a topic that was made again: the offset has the marks.
        marks = decode_marks(end) or {}
        self._marks.check_batch(
            marks, {k for k, stop in ends.items() if starts.get(k, stop) < stop}
        )
        found: list[StoreTask] = []
        for broker, store in self.stores().items():
            wanted = [
                _wanted(store, store.range_of((topic, queue_id), starts[key], stop, marks.get(key)))
                for key, stop in sorted(ends.items())
                if key[0] == broker and starts.get(key, stop) < stop
                for topic, queue_id in [key[1:]]
            ]
            files = _files_of([each.span for each in wanted], store.snapshot.log_files())
            tasks = queue_tasks(broker, files, self.options, wanted, is_live=True)
            if len(tasks) > 1:
                tasks = [_with_its_files(store, task) for task in tasks]
            found += [StoreTask(broker, task) for task in tasks]
        return found

    # ---- where queues end ------------------------------------------------------------------------

    def stores(self) -> dict[str, StreamStore]:
        """Return the live queues of each store, by broker name."""
        if self._stores is None:
            self._stores = {
                place.broker_name: StreamStore(place, self.options, self._env)
                for place in self.options.places
            }
        return self._stores

    def close(self) -> None:
        """Close the stores; the next call opens them again."""
        for store in (self._stores or {}).values():
            store.close()
        self._stores = None

    def look(self, *, now: bool = False) -> Positions:
        """Return the end of each queue; with `now`, from a new listing of the files."""
        return {
            (broker, *name): end
            for broker, store in self.stores().items()
            for name, end in store.ends(now=now).items()
        }

    def looks(self) -> Iterator[Positions]:
        """Yield the ends of new looks, until recovery_s have passed."""
        env = self._env_of_stores()
        until_ns = env.monotonic_ns() + int(self.recovery_s * 1e9)
        while env.monotonic_ns() < until_ns:
            env.sleep(_LOOK_AGAIN_S)
            yield self.look(now=True)

    def _queue_ends(self) -> Positions:
        present = self.look()
        if self._frozen is None:
            return present
        return {key: end for key, end in self._frozen.items() if key in present}

    # ---- unreadable units ---------------------------------------------------------------------

    def waiting(self) -> dict[QueueKey, Waiting]:
        """Return the units that name records which cannot be read, by queue."""
        return {
            (broker, *name): waiting
            for broker, store in self.stores().items()
            for name, waiting in store.waiting.items()
        }

    def _report_waiting(self) -> None:
        """Log units that wait for longer than recovery_s, once."""
        waiting = self.waiting()
        if not waiting:
            return
        before_ns = self._env_of_stores().monotonic_ns() - int(self.recovery_s * 1e9)
        for key, found in waiting.items():
            if found.since_ns <= before_ns and self._reported.get(key) != found.first:
                self._reported[key] = found.first
                LOG.warning("rocketmq-store: %s: the stream waits", _waiting_text(key, found))

    def _env_of_stores(self) -> Env:
        return next(iter(self.stores().values())).env

    # ---- where a batch begins --------------------------------------------------------------------

    def _start(self, queue_ends: Positions) -> Positions:
        """Return where the stream begins; computed once."""
        if self._pinned is None:
            self._check_start()
            self._pinned = {key: self._start_of(key, end) for key, end in queue_ends.items()}
        return self._pinned

    def _check_start(self) -> None:
        """Raise StoreFormatError where the start names a missing queue: that queue would begin
        elsewhere without a report."""
        for broker, topic, queue_id in sorted(named_queues(self.options.starting)):
            stores = self.stores()
            named = [stores[broker]] if broker else stores.values()
            if not any(store.has_queue((topic, queue_id)) for store in named):
                who = f"store {broker!r} has no" if broker else "no store has a"
                raise StoreFormatError(
                    f"rocketmq-store: {who} queue {topic!r}/{queue_id}, which the start names; "
                    "omit it: a queue that is created later begins at its first message"
                )

    def _start_of(self, key: QueueKey, queue_end: int) -> int:
        store = self.stores()[key[0]]
        low = min(store.min_offset(key[1:]), queue_end)

        def find(timestamp: int) -> int:
            return min(store.lower_bound(key[1:], timestamp), queue_end)

        return starting_offset(key, _name(key), self.options, low, queue_end, find)

    def _continued(
        self, begins: Positions, start: Mapping[str, Any]
    ) -> tuple[Positions, Positions, Positions]:
        """Return (queue_ends, begins, moved) of the next batch. `moved` are the queues that do not
        continue where they ended: new queues, and queues that have lost messages. `start` is the
        offset that has `begins`."""
        self._check_brokers(begins)
        begins = dict(begins)
        queue_ends = self._settled_queue_ends(begins)
        others, mismatched = self._marks.mismatched(start, begins, queue_ends)
        for key in sorted(key for key in begins if key[0] in others):
            # No position is one of the other store: its queues are new, also one that is missing.
            if how := others.pop(key[0], ""):
                self._lost(key, begins[key], how)
            del begins[key]
        moved: Positions = {}
        for key in [key for key in begins if self._is_selected(key)]:
            queue_end = queue_ends.get(key)
            if queue_end is None:
                # Its offset stays: the queue may return, as when a directory is mounted again.
                if key not in self._gone:
                    self._lost(key, begins[key], "is gone", "without it until it returns")
                    self._gone.add(key)
                continue
            self._gone.discard(key)
            if queue_end == begins[key] and key not in mismatched:
                continue
            low = min(self.stores()[key[0]].min_offset(key[1:]), queue_end)
            if key in mismatched:
                self._lost(key, begins[key], mismatched[key])
            elif queue_end < begins[key]:
                self._lost(key, begins[key], f"ends at {queue_end}")
            elif begins[key] < low:
                self._lost(key, begins[key], f"begins at {low}")
            else:
                continue
            begins[key] = moved[key] = low
        for key in queue_ends.keys() - begins.keys():
            low = self.stores()[key[0]].min_offset(key[1:])
            if low < queue_ends[key]:
                begins[key] = moved[key] = low
        return queue_ends, begins, moved

    def _settled_queue_ends(self, begins: Positions) -> Positions:
        """Return the end of each queue once none is shorter than before, or after recovery_s."""
        queue_ends = self._queue_ends()
        short = self._short(begins, queue_ends)
        if not short:
            return queue_ends
        queue_ends = self.look(now=True)
        looks = self.looks()
        while still := self._short({k: begins[k] for k in short}, queue_ends):
            now = next(looks, None)
            if now is None:
                break
            queue_ends = now
        if self._frozen is None:
            return queue_ends
        # This run ends before the messages that the recovery put back.
        for key in short:
            if key not in still:
                self._frozen[key] = begins[key]
            elif key in queue_ends:
                self._frozen[key] = queue_ends[key]
        return self._queue_ends()

    def _short(self, begins: Positions, queue_ends: Positions) -> list[QueueKey]:
        """Return the queues with fewer messages than were read, without those reported as gone."""
        return [
            key
            for key, at in begins.items()
            if queue_ends.get(key, -1) < at
            and self._is_selected(key)
            and (key in queue_ends or key not in self._gone)
        ]

    def _is_selected(self, key: QueueKey) -> bool:
        """Whether the query selects a queue; a queue that it no longer selects keeps its offset."""
        return key[0] in self.stores() and self.options.wants(*key[1:])

    def _check_brokers(self, begins: Positions) -> None:
        unknown = sorted({key[0] for key in begins} - self.stores().keys())
        if unknown and self.options.fail_on_data_loss:
            raise StoreFormatError(
                f"rocketmq-store: the checkpoint has the stores {', '.join(unknown)}, the query "
                f"has {', '.join(sorted(self.stores()))}: name them alike by brokerName "
                "or stores; failOnDataLoss=false continues without them"
            )

    def _lost(
        self, key: QueueKey, at: int, how: str, how_next: str = "with the first that exists"
    ) -> None:
        text = f"{_name(key)} {how}, and {at} was the next message to read"
        if self.options.fail_on_data_loss:
            raise DataLossError(
                f"{text}: messages are lost; failOnDataLoss=false continues {how_next}"
            )
        LOG.warning("rocketmq-store: %s: the stream continues %s", text, how_next)

    # ---- how far a batch goes --------------------------------------------------------------------

    def _admit(self, begins: Positions, queue_ends: Positions, limits: Limits) -> Positions:
        """Return where each queue ends in the next batch."""
        taken = behind = {
            key: queue_ends[key] - at
            for key, at in begins.items()
            if key in queue_ends and self._is_selected(key)
        }
        if sum(behind.values()) < limits.rows_min and self._frozen is None:
            taken = {}
        if limits.rows_max is not None:
            taken = share(taken, limits.rows_max)
        if limits.bytes_max is not None:
            taken = self._in_bytes(begins, taken, limits.bytes_max)
        return {key: at + max(0, taken.get(key, 0)) for key, at in begins.items()}

    def _in_bytes(self, begins: Positions, counts: Positions, limit: int) -> Positions:
        """Reduce the counts of messages, so that their records have at most `limit` bytes; each
        queue gets its share, and at least one message."""
        total = sum(counts.values())
        taken = {}
        for key, count in counts.items():
            if count > 0:
                part = max(1, limit * count // total)
                taken[key] = self._count_in_bytes(key, begins[key], count, part)
        return taken

    def _count_in_bytes(self, key: QueueKey, start: int, count: int, limit: int) -> int:
        store = self.stores()[key[0]]
        done = size = 0
        while done < count:
            wanted = store.range_of(key[1:], start + done, start + count)
            units = store.units(wanted, UNITS_AT_ONCE)
            sizes = np.where(units.is_pre_blank(), 0, units.size).astype(np.int64)
            ends = size + np.cumsum(sizes)
            fits = int(np.searchsorted(ends, limit, side="right"))
            done += fits
            if fits < len(sizes):
                break
            size = int(ends[-1])
        return max(1, done)


# ---- tasks ---------------------------------------------------------------------------------------


def _wanted(store: StreamStore, wanted: QueueRange) -> Wanted:
    """Return a range with an estimate of its records."""
    units = store.units(wanted, SAMPLE_COUNT)
    real = ~units.is_pre_blank() & (units.size > 0)
    span = _span(store, wanted)
    return Wanted(wanted, mean_size(units.size[real]), units.phy_offset[real], span)


def _with_its_files(store: StreamStore, task: Task) -> Task:
    """Return a task with only those log files that it reads: all files in all tasks would grow as
    files x tasks."""
    assert isinstance(task, QueueTask)
    spans = [_span(store, each) for each in task.ranges]
    return dataclasses.replace(task, log_files=_files_of(spans, task.log_files))


def _span(store: StreamStore, wanted: QueueRange) -> tuple[int, int] | None:
    """Return the bytes of the log from the first to the last record of a range; None if unknown."""
    name = wanted.topic, wanted.queue_id
    first = store.record_range(name, wanted.start)
    last = store.record_range(name, wanted.stop - 1)
    return None if first is None or last is None else (first[0], last[0] + last[1])


def _files_of(
    spans: Sequence[tuple[int, int] | None], files: tuple[LogFile, ...]
) -> tuple[LogFile, ...]:
    """Return the files from the first span of the log to the last; all where a span is unknown."""
    known = [span for span in spans if span is not None]
    if not known or len(known) < len(spans):
        return files
    begin, end = min(s[0] for s in known), max(s[1] for s in known)
    return tuple(f for f in files if f.from_offset < end and f.from_offset + f.size > begin)


def _name(key: QueueKey) -> str:
    return f"{key[0]}: {key[1]}/{key[2]}"


def _waiting_text(key: QueueKey, waiting: Waiting) -> str:
    return (
        f"{_name(key)}: units {waiting.first} to {waiting.stop - 1} are damaged, or name "
        "damaged or missing records"
    )
