"""Structured streaming: the messages of queues as they come.

The offsets say for each queue which message comes next, so a batch that Spark has written down
gives the same rows whenever it is read. Spark keeps no start of its own: the first batch pins it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pyrocketstore.display import logger
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreCorruptionError, StoreError, StoreFormatError
from pyrocketstore.spark.border import guarded_class
from pyrocketstore.spark.live import LiveQueues, Waiting
from pyrocketstore.spark.offsets import (
    INITIAL,
    Positions,
    QueueKey,
    check_brokers,
    decode_offset,
    encode_offset,
    named_queues,
    share,
)
from pyrocketstore.spark.options import SourceOptions, StorePlace
from pyrocketstore.spark.planning import QueueTask, Task, Wanted, queue_tasks
from pyrocketstore.spark.schemas import renamed
from pyrocketstore.spark.snapshot import (
    SAMPLE_COUNT,
    DataLossError,
    LogFile,
    QueueRange,
    starting_offset,
)
from pyrocketstore.spark.source import TaskPartition, read_task
from pyrocketstore.spark.stream_marks import StreamStores

if TYPE_CHECKING:
    import pyarrow

LOG = logger(__name__)

#: A store that is opened after a kill takes the last units away and puts them back: only what is
#: gone for longer is lost.
RECOVERY_S = 10.0
_LOOK_AGAIN_S = 0.1
_UNITS_AT_ONCE = 65536


@guarded_class
class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver; `read` runs on the executors.

    Parameters
    ----------
    columns : name -> type, what Spark asked for
    names : what the query calls the columns; None: as they are
    recovery_s : how long a queue may be shorter than it was before that is data loss, and units may
        name records that cannot be read before that is damage; seconds

    Raises StoreFormatError where the start names a broker that is none of the stores. Threads: one.
    Nothing is kept open, so nothing needs `stop`.
    """

    def __init__(
        self,
        options: SourceOptions,
        columns: Mapping[str, str],
        *,
        recovery_s: float = RECOVERY_S,
        env: Env | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.options = options
        self.columns = dict(columns)
        self.names = None if names is None or list(columns) == list(names) else tuple(names)
        self.recovery_s = recovery_s
        self._env = env
        self._stores: dict[str, LiveQueues] | None = None
        #: where AvailableNow ends
        self._frozen: Positions | None = None
        self._pinned: Positions | None = None
        #: queues that are gone, which was told
        self._gone: set[QueueKey] = set()
        self._marks = StreamStores(self._live, options, recovery_s)
        #: the units that were told to be waiting
        self._told: dict[QueueKey, int] = {}
        check_brokers(options.starting, [place.broker_name for place in options.places])

    # ---- what Spark asks -------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Always the same: the start itself is in the first batch's end, which Spark keeps."""
        return dict(INITIAL)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the batch from `start` on ends; `start` itself when there is nothing to read.

        Raises DataLossError, StoreFormatError, StoreIOError.
        """
        known = decode_offset(start)
        if known is None:
            heads = self._heads()
            begins = moved = self._start(heads)
        else:
            heads, begins, moved = self._continued(known[0], start)
        self._tell_waiting()
        ends = self._admit(begins, heads, limit)
        if known is not None and not moved and ends == known[0]:
            return start
        kept = {} if known is None else {k: at for k, at in known[0].items() if k not in moved}
        return encode_offset(ends, moved, self._marks.after(ends, kept, start))

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limits of the options."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """What comes later is not read by this run.

        Raises StoreCorruptionError under onCorrupt=fail where units go on to name records that
        cannot be read.
        """
        self._frozen = self._look(now=True)
        waiting = self._settled_waiting(self._frozen)
        if not waiting:
            return
        key, first = min(waiting.items())
        count = sum(each.stop - each.first for each in waiting.values())
        text = f"{_waiting_text(key, first)}; in all {count} units of {len(waiting)} queues"
        if self.options.on_corrupt == "fail":
            raise StoreCorruptionError(
                first.path,
                first.position,
                f"{text}. Opening the store for writing puts them right or takes them away; "
                "onCorrupt=skip reads what is before them",
            )
        LOG.warning("rocketmq-store left out: %s", text)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The queues' ends now: what is behind is the difference."""
        return encode_offset(self._look(), {})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch, which depend on `start` and `end` alone."""
        begins = decode_offset(start)
        known = decode_offset(end)
        if known is None:
            return []
        ends, moved = known
        starts = {**(begins[0] if begins is not None else {}), **moved}
        self._marks.check_batch(end, {k for k, stop in ends.items() if starts.get(k, stop) < stop})
        found: list[InputPartition] = []
        for broker, store in self._live().items():
            wanted = [
                _wanted(store, store.range_of((topic, queue_id), starts[key], stop))
                for key, stop in sorted(ends.items())
                if key[0] == broker and starts.get(key, stop) < stop
                for topic, queue_id in [key[1:]]
            ]
            log = _LogPart.of(store, wanted)
            tasks = queue_tasks(log, self.options, wanted, is_live=True)
            if len(tasks) > 1:
                tasks = [_with_its_files(store, task) for task in tasks]
            found += [TaskPartition(broker, task) for task in tasks]
        return found

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """The rows of a task."""
        assert isinstance(partition, TaskPartition)
        return renamed(read_task(partition, self.columns, self.options), self.names)

    # ---- where queues end ------------------------------------------------------------------------

    def _live(self) -> dict[str, LiveQueues]:
        if self._stores is None:
            self._stores = {
                place.broker_name: LiveQueues(place, self.options, self._env)
                for place in self.options.places
            }
        return self._stores

    def _look(self, *, now: bool = False) -> Positions:
        return {
            (broker, *name): end
            for broker, store in self._live().items()
            for name, end in store.ends(now=now).items()
        }

    def _heads(self) -> Positions:
        present = self._look()
        if self._frozen is None:
            return present
        return {key: end for key, end in self._frozen.items() if key in present}

    # ---- what cannot be read ---------------------------------------------------------------------

    def _waiting(self) -> dict[QueueKey, Waiting]:
        return {
            (broker, *name): waiting
            for broker, store in self._live().items()
            for name, waiting in store.waiting.items()
        }

    def _settled_waiting(self, heads: Positions) -> dict[QueueKey, Waiting]:
        """The units that are still waiting once they had time; moves `heads` on behind others."""
        env = self._env_of_stores()
        until_ns = env.monotonic_ns() + int(self.recovery_s * 1e9)
        waiting = self._waiting()
        while waiting and env.monotonic_ns() < until_ns:
            env.sleep(_LOOK_AGAIN_S)
            now, still = self._look(now=True), self._waiting()
            for key in list(waiting):
                if key not in still or still[key].first >= waiting[key].stop:
                    del waiting[key]
                else:
                    waiting[key] = dataclasses.replace(still[key], stop=waiting[key].stop)
                heads[key] = now.get(key, heads[key])
        return waiting

    def _tell_waiting(self) -> None:
        """Log what has been waiting for too long, once."""
        waiting = self._waiting()
        if not waiting:
            return
        before_ns = self._env_of_stores().monotonic_ns() - int(self.recovery_s * 1e9)
        for key, found in waiting.items():
            if found.since_ns <= before_ns and self._told.get(key) != found.first:
                self._told[key] = found.first
                LOG.warning("rocketmq-store: %s: the stream waits", _waiting_text(key, found))

    def _env_of_stores(self) -> Env:
        return next(iter(self._live().values())).env

    # ---- where a batch begins --------------------------------------------------------------------

    def _start(self, heads: Positions) -> Positions:
        """Where the stream begins, found once."""
        if self._pinned is None:
            self._check_start()
            self._pinned = {key: self._start_of(key, head) for key, head in heads.items()}
        return self._pinned

    def _check_start(self) -> None:
        """Raises StoreFormatError where the start names a queue that is not there: it would begin
        elsewhere, and nobody would know."""
        for broker, topic, queue_id in sorted(named_queues(self.options.starting)):
            stores = self._live()
            asked = [stores[broker]] if broker else stores.values()
            if not any(store.has_queue((topic, queue_id)) for store in asked):
                who = f"store {broker!r} has no" if broker else "no store has a"
                raise StoreFormatError(
                    f"rocketmq-store: {who} queue {topic!r}/{queue_id}, which the start names: a "
                    "queue that comes later begins at its first message without being named"
                )

    def _start_of(self, key: QueueKey, head: int) -> int:
        store = self._live()[key[0]]
        low = min(store.min_offset(key[1:]), head)

        def find(timestamp: int) -> int:
            return min(store.lower_bound(key[1:], timestamp), head)

        return starting_offset(key, _name(key), self.options, low, head, find)

    def _continued(
        self, begins: Positions, start: Mapping[str, Any]
    ) -> tuple[Positions, Positions, Positions]:
        """(heads, begins, moved) of the batch that goes on there; `moved` are the queues that do
        not go on where they ended: those that are new, and those that have lost messages. `start`
        is the offset that has `begins`."""
        self._check_brokers(begins)
        begins = dict(begins)
        heads = self._settled_heads(begins)
        selected = {k: at for k, at in begins.items() if k in heads and self._is_selected(k)}
        strange, told = self._marks.strange(start, selected, heads), set[str]()
        moved: Positions = {}
        for key in [key for key in begins if self._is_selected(key)]:
            head = heads.get(key)
            if head is None:
                # It keeps its place: it may come back, as when a directory is mounted again.
                if key not in self._gone:
                    self._lost(key, begins[key], "is gone", "without it until it is back")
                    self._gone.add(key)
                continue
            self._gone.discard(key)
            if head == begins[key] and key not in strange:
                continue
            low = min(self._live()[key[0]].min_offset(key[1:]), head)
            if key in strange:
                if strange[key] not in told:  # of a store once
                    self._lost(key, begins[key], strange[key])
                told.add(strange[key])
            elif head < begins[key]:
                self._lost(key, begins[key], f"ends at {head}")
            elif begins[key] < low:
                self._lost(key, begins[key], f"begins at {low}")
            else:
                continue
            begins[key] = moved[key] = low
        for key in heads.keys() - begins.keys():
            low = self._live()[key[0]].min_offset(key[1:])
            if low < heads[key]:
                begins[key] = moved[key] = low
        return heads, begins, moved

    def _settled_heads(self, begins: Positions) -> Positions:
        """The heads, once no queue is shorter than it was, or has been for too long."""
        heads = self._heads()
        short = self._short(begins, heads)
        if not short:
            return heads
        env = self._env_of_stores()
        until_ns = env.monotonic_ns() + int(self.recovery_s * 1e9)
        heads = self._look(now=True)
        while (still := self._short({k: begins[k] for k in short}, heads)) and (
            env.monotonic_ns() < until_ns
        ):
            env.sleep(_LOOK_AGAIN_S)
            heads = self._look(now=True)
        if self._frozen is None:
            return heads
        # This run was to end before what the recovery put back: those queues end where they were.
        for key in short:
            if key not in still:
                self._frozen[key] = begins[key]
            elif key in heads:
                self._frozen[key] = heads[key]
        return self._heads()

    def _short(self, begins: Positions, heads: Positions) -> list[QueueKey]:
        """The queues that have less than was read of them; not those that were told to be gone."""
        return [
            key
            for key, at in begins.items()
            if heads.get(key, -1) < at
            and self._is_selected(key)
            and (key in heads or key not in self._gone)
        ]

    def _is_selected(self, key: QueueKey) -> bool:
        """Whether a queue is asked for; one that was, and is not now, keeps its place."""
        return key[0] in self._live() and self.options.wants(*key[1:])

    def _check_brokers(self, begins: Positions) -> None:
        unknown = sorted({key[0] for key in begins} - self._live().keys())
        if unknown and self.options.fail_on_data_loss:
            raise StoreFormatError(
                f"rocketmq-store: the checkpoint has the stores {', '.join(unknown)}, the query "
                f"has {', '.join(sorted(self._live()))}: give them the same names by brokerName or "
                "stores; failOnDataLoss=false goes on without them"
            )

    def _lost(
        self, key: QueueKey, at: int, how: str, goes_on: str = "with the first that is there"
    ) -> None:
        text = f"{_name(key)} {how}, and {at} was the next message to read"
        if self.options.fail_on_data_loss:
            raise DataLossError(
                f"{text}: messages are lost; failOnDataLoss=false goes on {goes_on}"
            )
        LOG.warning("rocketmq-store: %s: the stream goes on %s", text, goes_on)

    # ---- how far a batch goes --------------------------------------------------------------------

    def _admit(self, begins: Positions, heads: Positions, limit: ReadLimit) -> Positions:
        """Where each queue ends."""
        behind = {
            key: heads[key] - at
            for key, at in begins.items()
            if key in heads and self._is_selected(key)
        }
        if isinstance(limit, ReadAllAvailable):
            taken = behind
        elif isinstance(limit, ReadMinRows):
            enough = sum(behind.values()) >= limit.min_rows
            taken = behind if enough or self._frozen is not None else {}
        elif isinstance(limit, ReadMaxRows):
            taken = share(behind, limit.max_rows)
            if self.options.max_bytes_per_trigger is not None:
                taken = self._in_bytes(begins, taken, self.options.max_bytes_per_trigger)
        elif isinstance(limit, ReadMaxBytes):
            taken = self._in_bytes(begins, behind, limit.max_bytes)
        else:
            raise StoreFormatError(f"rocketmq-store: cannot read by {type(limit).__name__}")
        return {key: at + max(0, taken.get(key, 0)) for key, at in begins.items()}

    def _in_bytes(self, begins: Positions, counts: Positions, limit: int) -> Positions:
        """Fewer messages, so that their records are `limit` bytes at most in all; each queue gets
        its part, and one message at least."""
        total = sum(counts.values())
        taken = {}
        for key, count in counts.items():
            if count > 0:
                part = max(1, limit * count // total)
                taken[key] = self._count_in_bytes(key, begins[key], count, part)
        return taken

    def _count_in_bytes(self, key: QueueKey, start: int, count: int, limit: int) -> int:
        store = self._live()[key[0]]
        done = size = 0
        while done < count:
            wanted = store.range_of(key[1:], start + done, start + count)
            units = store.units(wanted, _UNITS_AT_ONCE)
            sizes = np.where(units.is_pre_blank(), 0, units.size).astype(np.int64)
            if not len(sizes):
                return count  # gone meanwhile: reading them will tell
            ends = size + np.cumsum(sizes)
            fits = int(np.searchsorted(ends, limit, side="right"))
            done += fits
            if fits < len(sizes):
                break
            size = int(ends[-1])
        return max(1, done)


@guarded_class
class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream that was asked for in a wrong way: it raises that error."""

    def __init__(self, error: StoreError) -> None:
        self.error = error

    def initialOffset(self) -> dict[str, Any]:
        """Raises the error."""
        raise self.error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raises the error."""
        raise self.error

    def prepareForTriggerAvailableNow(self) -> None:
        """Raises the error."""
        raise self.error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raises the error."""
        raise self.error

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Raises the error."""
        raise self.error


# ---- tasks ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _LogPart:
    """The files of a log that a batch reads."""

    place: StorePlace
    files: tuple[LogFile, ...]

    @classmethod
    def of(cls, store: LiveQueues, wanted: Sequence[Wanted]) -> _LogPart:
        """Those from the first record on to the last; all where that is not known."""
        files = _files_of([each.span for each in wanted], store.log_files())
        return cls(store.place, files)

    def log_files(self) -> tuple[LogFile, ...]:
        """These files."""
        return self.files


def _wanted(store: LiveQueues, wanted: QueueRange) -> Wanted:
    """A range, with what is known of its records."""
    units = store.units(wanted, SAMPLE_COUNT)
    real = ~units.is_pre_blank() & (units.size > 0)
    mean = float(units.size[real].mean()) if real.any() else 1.0
    span = _span(store, wanted)
    return Wanted(wanted, max(mean, 1.0), units.phy_offset[real], span)


def _with_its_files(store: LiveQueues, task: Task) -> Task:
    """A task that carries no other file of the log than those that it reads: what all tasks carry
    would grow as files x tasks."""
    assert isinstance(task, QueueTask)
    spans = [_span(store, each) for each in task.ranges]
    return dataclasses.replace(task, log_files=_files_of(spans, task.log_files))


def _span(store: LiveQueues, wanted: QueueRange) -> tuple[int, int] | None:
    """Where the first and last record of a range lie in the log, None where that is not known."""
    name = wanted.topic, wanted.queue_id
    first = store.record_place(name, wanted.start)
    last = store.record_place(name, wanted.stop - 1)
    return None if first is None or last is None else (first[0], last[0] + last[1])


def _files_of(
    spans: Sequence[tuple[int, int] | None], files: tuple[LogFile, ...]
) -> tuple[LogFile, ...]:
    """The files from the first of some spans of the log to the last; all where one is not known."""
    known = [span for span in spans if span is not None]
    if not known or len(known) < len(spans):
        return files
    begin, end = min(s[0] for s in known), max(s[1] for s in known)
    return tuple(f for f in files if f.from_offset < end and f.from_offset + f.size > begin)


def _name(key: QueueKey) -> str:
    return f"{key[0]}: {key[1]}/{key[2]}"


def _waiting_text(key: QueueKey, waiting: Waiting) -> str:
    return (
        f"{_name(key)}: units {waiting.first} to {waiting.stop - 1} are damaged, or name records "
        "that are, or that the log does not have"
    )
