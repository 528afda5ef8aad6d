"""Snapshot of a store on the driver: the range of each queue, and the end of the log.

The store is opened read-only, with the recovery of 4.9.3 in memory, so that a store after a kill
shows the messages that a broker would find. Units that only this recovery has are sent with the
ranges.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator
from typing import Self

import numpy as np

from pyrocketstore.commit_log.other_formats import check_format
from pyrocketstore.config.file_sizes import is_store_file
from pyrocketstore.config.message_store_config import MessageStoreConfig, detect_sizes
from pyrocketstore.consume_queue._units import find_last_unit, unit_at
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE, QueueUnits
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreCorruptionError, StoreFormatError
from pyrocketstore.index.index_service import IndexService
from pyrocketstore.message_store.current_sizes import load_with_sizes
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.message_store.lost_ends import listed_log_files
from pyrocketstore.spark.options import EARLIEST, LATEST, Bound, SourceOptions, StorePlace
from pyrocketstore.spark.read.units import UNITS_AT_FIRST, UNITS_AT_ONCE, RangeUnits
from pyrocketstore.spark.task_types import DataLossError, LogFile, QueueRange
from pyrocketstore.system.env import Env

LOG = logger(__name__)

SAMPLE_COUNT = 1024
_SAMPLE_CHUNKS = 16


class StoreSnapshot:
    """A store opened read-only for planning. Use as a context manager.

    Parameters
    ----------
    place : its label and directory
    broker_conf : path of a broker.conf, or None: sizes are taken from the files
    on_corrupt : "fail"; any other value also reads messages after damage: recovery would end the
        log at damage in its last files, though queues name later messages
    topics : the topics whose queues are planned, None for all
    may_be_empty : bool, the directory need not contain a log

    Raises StoreFormatError for a missing directory or a DLedger store; StoreIOError,
    StoreCorruptionError. Threads: one. Nothing is written.
    """

    def __init__(
        self,
        place: StorePlace,
        broker_conf: str | None = None,
        on_corrupt: str = "fail",
        topics: Collection[str] | None = None,
        env: Env | None = None,
        *,
        may_be_empty: bool = False,
    ) -> None:
        env = Env() if env is None else env
        self.place = place
        self._named_end: int | None = None
        self._on_corrupt, self._topics = on_corrupt, topics
        self.root = env.absolute(place.root)
        find = place_settings if may_be_empty else store_settings
        self.store = self._loaded(env, find(env, place, broker_conf))
        if self.is_broken:
            error = self._breach()
            if on_corrupt == "fail":
                self.close()
                raise error
            if topics is None or may_be_empty:  # else the store is opened again, with all
                LOG.warning("rocketmq-store continues after damage: %s", error)

    def _loaded(self, env: Env, given: MessageStoreConfig) -> DefaultMessageStore:
        def load(used: MessageStoreConfig) -> DefaultMessageStore:
            # A record may name further queues, of other topics.
            topics = None if used.enable_multi_dispatch else self._topics
            store = DefaultMessageStore(used, env=env, read_only=True, only_topics=topics)
            try:
                store.load()
            except BaseException:
                store.shutdown()
                raise
            store.engine.settings_of_reload = detected
            return store

        def detected() -> MessageStoreConfig:
            return detect_sizes(env, self.root, given, read_only=True)

        return load_with_sizes(
            env, detected, load, lambda store: store.plan, DefaultMessageStore.shutdown
        )

    def refresh(self, *, again: bool = False) -> bool:
        """Make readable what the owner of the store has written since; return False where no queue
        has other messages than before. `again`: load the store again in any case.

        Raises StoreStateError where another directory has the path; StoreIOError,
        StoreCorruptionError.
        """
        files = self.store.files
        if again:
            self.store.reader.follower = None
        if self.store.refresh() == 0 and self.store.files is files:
            return False
        self._named_end = None
        return True

    @property
    def is_broken(self) -> bool:
        """Whether recovery ends the log before valid records."""
        return self.store.plan is not None and bool(self.store.plan.broken)

    def is_doubtful(self, queue: ConsumeQueue) -> bool:
        """Whether the files of a queue may have units without records at their end."""
        plan, name = self.store.plan, (queue.topic, queue.queue_id)
        wrong = plan is not None and (plan.broken or name in plan.repairs or name in plan.beyond)
        return bool(wrong) or queue.cut_short

    @property
    def is_damaged(self) -> bool:
        """Whether recovery has found more than the unfinished end of a killed store."""
        plan = self.store.plan
        if plan is None:
            return False
        found = plan.broken, plan.damaged, plan.mismatched, plan.repairs, plan.missing_first_file
        return any(found) or any(queue.cut_short for queue in self.store.consume_queues())

    def _breach(self) -> StoreCorruptionError:
        """Return an error for the position where recovery ends the log."""
        assert self.store.plan is not None
        end = self.store.plan.log_end
        files = self.store.commit_log.mapped_file_queue.mapped_files
        file = [each for each in files if each.file_from_offset <= end][-1]
        return StoreCorruptionError(
            file.path,
            end - file.file_from_offset,
            f"the log ends here ({self.store.plan.ended_by}), but valid records follow",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store."""
        self.store.shutdown()

    # ---- the log -----------------------------------------------------------------------------

    @property
    def min_phy_offset(self) -> int:
        """The first byte of the log that is not deleted."""
        return max(0, self.store.get_min_phy_offset())

    @property
    def max_phy_offset(self) -> int:
        """The end of the last record (bytes of the log)."""
        if self._named_end is None:
            self._named_end = self.store.get_max_phy_offset()
            for queue in self.store.consume_queues() if self.is_broken else ():
                self._named_end = max(self._named_end, last_on_disk(queue)[1])
        return self._named_end

    def log_files(self) -> tuple[LogFile, ...]:
        """Return the files of the commit log, in order, up to the log's end."""
        files = [
            LogFile(file.path, file.file_from_offset, file.file_size)
            for file in self.store.commit_log.mapped_file_queue.mapped_files
        ]
        if self.is_broken and files:
            # Recovery dropped the files after the damage.
            files += [
                file
                for file in log_files_on_disk(self.store.env, self.store.config)
                if file.from_offset > files[-1].from_offset and file.size == files[-1].size
            ]
        end = self.max_phy_offset
        return tuple(file for file in files if file.from_offset < end)

    # ---- queues ------------------------------------------------------------------------------

    def queues(self, options: SourceOptions) -> Iterator[ConsumeQueue]:
        """Yield the selected queues, by topic and queue id."""
        for topic, queues in self.store.get_consume_queue_table().items():
            for queue_id, queue in sorted(queues.items()):
                if options.wants(topic, queue_id):
                    yield queue

    def bounds(self, queue: ConsumeQueue) -> tuple[int, int]:
        """Return the queue's first readable offset and its end."""
        stop = queue.get_max_offset_in_queue()
        if self.is_broken or queue.cut_short:
            on_disk = last_on_disk(queue)[0]
            if on_disk > stop and queue.cut_short and self._on_corrupt == "fail":
                at = stop * CQ_STORE_UNIT_SIZE
                position = at % queue.mapped_file_size
                raise StoreCorruptionError(
                    f"{queue.mapped_file_queue.store_path}/{at - position:020d}",
                    position,
                    f"unit {stop} is not valid, but the queue continues to unit {on_disk - 1}",
                )
            stop = max(stop, on_disk)
        return queue.first_readable_offset(), stop

    def range_of(self, queue: ConsumeQueue, options: SourceOptions) -> QueueRange:
        """Return the selected range of a queue. A start by time includes damaged units directly
        before its first message: when their messages were stored is unknown.

        Raises DataLossError where an offset is outside of the queue, under failOnDataLoss.
        """
        low, high = self.bounds(queue)
        if options.view == "consumequeue":  # the view also shows units of deleted messages
            low = min(low, max(0, queue.mapped_file_queue.get_min_offset()) // CQ_STORE_UNIT_SIZE)
        named = self.place.broker_name, queue.topic, queue.queue_id
        where = queue.mapped_file_queue.store_path
        find = functools.partial(self.lower_bound, queue)
        start = starting_offset(named, where, options, low, high, find)
        if options.starting.timestamp_of(*named) is not None:
            start = _with_damaged(queue, low, start)
        fails = options.fail_on_data_loss
        stop = _offset_of(options.ending, "ending", named, where, low, high, find, fails)
        return self.marked(self.whole_range(queue).cut(start, max(start, stop)))

    def marked(self, pinned: QueueRange) -> QueueRange:
        """Return a range with its mark. Raises StoreIOError."""
        mark = _mark_of(self.store.env, pinned, self.max_phy_offset)
        return dataclasses.replace(pinned, mark=mark)

    def whole_range(self, queue: ConsumeQueue) -> QueueRange:
        """Return the readable range of a queue, without a mark."""
        return self.part_of(queue, *self.bounds(queue))

    def part_of(self, queue: ConsumeQueue, start: int, stop: int) -> QueueRange:
        """Return the range [start, stop) of a queue, without a mark."""
        return QueueRange(
            topic=queue.topic,
            queue_id=queue.queue_id,
            directory=queue.mapped_file_queue.store_path,
            file_size=queue.mapped_file_size,
            start=start,
            stop=stop,
            overlay=_overlay(queue, min(stop, queue.get_max_offset_in_queue())),
        )

    def lower_bound(self, queue: ConsumeQueue, timestamp: int) -> int:
        """Return the first queue offset stored at `timestamp` (Unix ms) or later; else the end."""
        return queue.lower_bound_by_time(timestamp, self.store.commit_log.pickup_store_timestamp)

    # ---- index -------------------------------------------------------------------------------

    @property
    def index_service(self) -> IndexService:
        """The index of the store."""
        return self.store.index_service


def log_files_on_disk(env: Env, settings: MessageStoreConfig) -> tuple[LogFile, ...]:
    """List the log's files now, in order. Raises StoreIOError."""
    return tuple(LogFile(*file) for file in listed_log_files(env, settings))


def place_settings(env: Env, place: StorePlace, broker_conf: str | None) -> MessageStoreConfig:
    """Return the settings of a store whose log may be missing. Raises StoreFormatError for a
    missing directory, one of another format, and a missing brokerConf."""
    root = env.absolute(place.root)
    if not env.is_dir(root):
        raise StoreFormatError(f"{root}: not a directory")
    if broker_conf is None:
        settings = MessageStoreConfig().at_root(root)
    elif not env.exists(broker_conf):
        raise StoreFormatError(f"rocketmq-store: brokerConf={broker_conf!r}: no such file")
    else:
        settings = MessageStoreConfig.from_broker_conf(broker_conf, root=root)[0]
    settings = settings.with_dledger_log(env, root)
    check_format(env, settings)
    return settings


def store_settings(env: Env, place: StorePlace, broker_conf: str | None) -> MessageStoreConfig:
    """Return the settings of a store. Raises StoreFormatError where its log is missing."""
    settings = place_settings(env, place, broker_conf)
    for path in settings.all_commit_log_paths:
        if not env.is_dir(path):
            raise StoreFormatError(f"{place.root} contains no store: there is no {path}")
    return settings


def check_places(options: SourceOptions) -> None:
    """Raise StoreFormatError where a store is missing, unless its directory is empty."""
    env = Env()
    for place in options.places:
        if not env.is_dir(place.root) or env.listdir(place.root):
            store_settings(env, place, options.broker_conf)


def starting_offset(
    named: tuple[str, str, int],
    where: str,
    options: SourceOptions,
    low: int,
    high: int,
    lower_bound: Callable[[int], int],
) -> int:
    """Return the starting offset of a queue that has [low, high).

    Parameters
    ----------
    named : (broker, topic, queue id)
    where : the queue, for an error
    lower_bound : first queue offset stored at a time (Unix ms) or later, the end if none

    Raises DataLossError where the requested start is missing, under failOnDataLoss.
    """
    fails = options.fail_on_data_loss
    found = _offset_of(options.starting, "starting", named, where, low, high, lower_bound, fails)
    timestamp = options.starting.timestamp_of(*named)
    if timestamp is not None and found == high:
        # With one time for all queues only a strategy makes it an error: most stores have an idle
        # queue.
        strategy = options.starting_strategy
        if strategy is None and options.starting.timestamp is None:
            strategy = "error"
        if strategy == "error":
            raise DataLossError(
                f"{where}: nothing was stored at {timestamp} ms or later; "
                "startingOffsetsByTimestampStrategy=latest begins at the end"
            )
    return found


def _offset_of(
    bound: Bound,
    what: str,
    named: tuple[str, str, int],
    where: str,
    low: int,
    high: int,
    lower_bound: Callable[[int], int],
    fails: bool,
) -> int:
    """Return the offset of a bound in a queue that has [low, high); `fails`: raise DataLossError
    for an offset outside of the queue, else take the nearest one."""
    timestamp = bound.timestamp_of(*named)
    if timestamp is not None:
        return lower_bound(timestamp)
    offset = bound.offset_of(*named)
    if offset in (EARLIEST, LATEST):
        return low if offset == EARLIEST else high
    if fails and not low <= offset <= high:
        raise DataLossError(
            f"{where}: the {what} offset {offset} is outside of the queue, which has "
            f"{low} to {high}; failOnDataLoss=false takes the nearest offset"
        )
    return min(max(offset, low), high)


def sample_units(queue: ConsumeQueue, start: int, stop: int) -> QueueUnits:
    """Return about SAMPLE_COUNT units of [start, stop), in order; all of a short range."""
    count = stop - start
    if count <= SAMPLE_COUNT:
        return queue.read_units(start, count)
    each = SAMPLE_COUNT // _SAMPLE_CHUNKS
    steps = range(_SAMPLE_CHUNKS)
    begins = [start + step * (count - each) // (_SAMPLE_CHUNKS - 1) for step in steps]
    chunks = [queue.read_units(begin, each) for begin in begins]
    return QueueUnits(*(np.concatenate(column) for column in zip(*chunks, strict=True)))


def _with_damaged(queue: ConsumeQueue, low: int, start: int) -> int:
    """Return where the damaged units before `start` begin, in a queue that begins at `low`."""
    while start > low:
        first = max(low, start - UNITS_AT_ONCE)
        is_valid = queue.read_units(first, start - first).size > 0
        if is_valid.any():
            return first + int(np.flatnonzero(is_valid)[-1]) + 1
        start = first
    return start


def _overlay(queue: ConsumeQueue, stop: int) -> tuple[tuple[int, bytes], ...]:
    """Return units that recovery has in memory and that differ from the files."""
    found = []
    for file in queue.mapped_file_queue.mapped_files:
        if file.mode != "memory":
            continue
        first = file.file_from_offset // CQ_STORE_UNIT_SIZE
        size = min(file.wrote, (stop - first) * CQ_STORE_UNIT_SIZE)
        units = file.read(0, size) if size > 0 else b""
        path = f"{queue.mapped_file_queue.store_path}/{file.file_from_offset:020d}"
        same = _same_bytes(units, queue.env.read_part(path, 0, len(units)))
        same -= same % CQ_STORE_UNIT_SIZE
        if same < len(units):
            found.append((first + same // CQ_STORE_UNIT_SIZE, units[same:]))
    return tuple(found)


def _mark_of(env: Env, pinned: QueueRange, log_end: int) -> tuple[int, int] | None:
    """Return the mark of a range. A unit that names bytes after `log_end`, the end of the log, is
    damaged or later than the range; an opening for writing may replace it.

    Units of the overlay do not count either: the files do not have them before such an opening.
    """
    units = RangeUnits(env, pinned, fail_on_data_loss=False)
    stop, count = pinned.stop, UNITS_AT_FIRST
    while pinned.start < stop:
        start = max(pinned.start, stop - count)
        found = units.read(start, stop)
        named = found.is_inside(0, log_end) & ~found.is_pre_blank() & (found.size > 0)
        rows = np.flatnonzero(named & units.in_files(start, stop))
        if len(rows):
            return start + int(rows[-1]), int(found.phy_offset[rows[-1]])
        stop, count = start, min(4 * count, UNITS_AT_ONCE)
    return None


def last_on_disk(queue: ConsumeQueue) -> tuple[int, int]:
    """Return the queue's end by its files alone, without recovery, and the end of the last record
    that its units name (bytes of the log); zeros for an empty queue."""
    directory = queue.mapped_file_queue.store_path
    for name in sorted(filter(is_store_file, queue.env.listdir(directory)), reverse=True):
        path = f"{directory}/{name}"
        units = queue.env.read_file(path, size=queue.mapped_file_size)
        position = find_last_unit(units)
        unit = unit_at(units, position)
        if unit is not None:
            return (int(name) + position) // CQ_STORE_UNIT_SIZE + 1, unit[0] + unit[1]
    return 0, 0


def _same_bytes(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix."""
    count = min(len(one), len(other))
    pair = (np.frombuffer(data, np.uint8, count) for data in (one, other))
    differs = np.flatnonzero(np.not_equal(*pair))
    return int(differs[0]) if len(differs) else count
