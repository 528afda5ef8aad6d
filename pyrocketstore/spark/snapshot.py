"""What a store holds at one moment: each queue's range and the log's end, pinned on the driver.

The store is opened read-only, with the recovery that 4.9.3 would make but in memory, so that a
killed store shows what a broker would find in it. Units that only this recovery has, and the files
have not, travel with the ranges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import numpy as np

from pyrocketstore._consume_queue import find_last_unit, unit_at
from pyrocketstore.config import MessageStoreConfig, detect_sizes
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.display import logger
from pyrocketstore.env import Env
from pyrocketstore.errors import (
    StoreCorruptionError,
    StoreError,
    StoreFormatError,
)
from pyrocketstore.file_sizes import is_store_file
from pyrocketstore.index_service import IndexService
from pyrocketstore.lost_ends import listed_log_files
from pyrocketstore.message_store import DefaultMessageStore
from pyrocketstore.queue_units import CQ_STORE_UNIT_SIZE, QueueUnits
from pyrocketstore.spark.options import EARLIEST, LATEST, SourceOptions, StorePlace

LOG = logger(__name__)

#: No record lies before the one or behind the other, bytes of the log.
LOG_BEGIN, LOG_END = -1, 1 << 62
SAMPLE_COUNT = 1024
_SAMPLE_PIECES = 16


class DataLossError(StoreError):
    """Messages that were asked for are no more, or not yet, in the store."""


@dataclasses.dataclass(frozen=True)
class LogFile:
    """A commit log file: `from_offset` bytes of the log, `size` bytes."""

    path: str
    from_offset: int
    size: int


@dataclasses.dataclass(frozen=True)
class QueueRange:
    """Units [start, stop) of a queue, whose files of `file_size` bytes lie in `directory`.

    `overlay` has pieces of encoded units, by the queue offset of the first, that stand above the
    files' bytes.
    """

    topic: str
    queue_id: int
    directory: str
    file_size: int
    start: int
    stop: int
    overlay: tuple[tuple[int, bytes], ...] = ()

    def cut(self, start: int, stop: int) -> QueueRange:
        """The part [start, stop), with the overlay that it needs."""
        kept = []
        for first, units in self.overlay:
            begin = max(start, first)
            end = min(stop, first + len(units) // CQ_STORE_UNIT_SIZE)
            if begin < end:
                piece = units[
                    (begin - first) * CQ_STORE_UNIT_SIZE : (end - first) * CQ_STORE_UNIT_SIZE
                ]
                kept.append((begin, piece))
        return dataclasses.replace(self, start=start, stop=stop, overlay=tuple(kept))


class StoreSnapshot:
    """A store opened read-only for planning. Use as a context manager.

    Parameters
    ----------
    place : its label and directory
    broker_conf : path of a broker.conf, or None: sizes are taken from the files
    on_corrupt : "fail", or else what lies behind damage is read too: recovery would end the log at
        damage in its last files, though queues name messages behind it

    Raises StoreFormatError for a directory that is none, or a DLedger store; StoreIOError,
    StoreCorruptionError. Threads: one. Nothing is written.
    """

    def __init__(
        self, place: StorePlace, broker_conf: str | None = None, on_corrupt: str = "fail"
    ) -> None:
        env = Env()
        self.place = place
        self._named_end: int | None = None
        self._on_corrupt = on_corrupt
        self.root = env.absolute(place.root)
        self.store = self._loaded(env, store_settings(env, place, broker_conf))
        self._is_broken = self.store.plan is not None and bool(self.store.plan.broken)
        if self._is_broken:
            error = self._breach()
            if on_corrupt == "fail":
                self.close()
                raise error
            LOG.warning("rocketmq-store reads on behind damage: %s", error)

    def _loaded(self, env: Env, given: MessageStoreConfig) -> DefaultMessageStore:
        """The store. Where the first files of a new one were made after their sizes were looked
        for, they are looked for again."""
        settings = detect_sizes(env, self.root, given, read_only=True)
        while True:
            store = DefaultMessageStore(settings, env=env, read_only=True)
            try:
                store.load()
                return store
            except StoreCorruptionError:
                before, settings = settings, detect_sizes(env, self.root, given, read_only=True)
                if settings == before:
                    raise

    def _breach(self) -> StoreCorruptionError:
        """Where recovery ends the log."""
        assert self.store.plan is not None
        end = self.store.plan.log_end
        files = self.store.commit_log.mapped_file_queue.mapped_files
        file = [each for each in files if each.file_from_offset <= end][-1]
        return StoreCorruptionError(
            file.path,
            end - file.file_from_offset,
            f"the log ends here ({self.store.plan.ended_by}), though valid records lie behind it",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the store go."""
        self.store.shutdown()

    # ---- the log -----------------------------------------------------------------------------

    @property
    def min_phy_offset(self) -> int:
        """The first byte that the log still has."""
        return max(0, self.store.get_min_phy_offset())

    @property
    def max_phy_offset(self) -> int:
        """One past the last record, bytes of the log."""
        if self._named_end is None:
            self._named_end = self.store.get_max_phy_offset()
            for queue in self.store.consume_queues() if self._is_broken else ():
                self._named_end = max(self._named_end, _last_on_disk(queue)[1])
        return self._named_end

    def log_files(self) -> tuple[LogFile, ...]:
        """The commit log's files, in order, up to the log's end."""
        files = [
            LogFile(file.path, file.file_from_offset, file.file_size)
            for file in self.store.commit_log.mapped_file_queue.mapped_files
        ]
        if self._is_broken and files:
            # Recovery has let go of those behind the damage.
            files += [
                file
                for file in log_files_on_disk(self.store.env, self.store.config)
                if file.from_offset > files[-1].from_offset and file.size == files[-1].size
            ]
        end = self.max_phy_offset
        return tuple(file for file in files if file.from_offset < end)

    # ---- queues ------------------------------------------------------------------------------

    def queues(self, options: SourceOptions) -> Iterator[ConsumeQueue]:
        """The selected queues, by topic and queue id."""
        for topic, queues in self.store.get_consume_queue_table().items():
            for queue_id, queue in sorted(queues.items()):
                if options.wants(topic, queue_id):
                    yield queue

    def bounds(self, queue: ConsumeQueue) -> tuple[int, int]:
        """The queue's first readable offset and its end."""
        stop = queue.get_max_offset_in_queue()
        if self._is_broken or queue.cut_short:
            on_disk = _last_on_disk(queue)[0]
            if on_disk > stop and queue.cut_short and self._on_corrupt == "fail":
                at = stop * CQ_STORE_UNIT_SIZE
                position = at % queue.mapped_file_size
                raise StoreCorruptionError(
                    f"{queue.mapped_file_queue.store_path}/{at - position:020d}",
                    position,
                    f"unit {stop} is none, though the queue goes on to {on_disk}",
                )
            stop = max(stop, on_disk)
        return queue.first_readable_offset(), stop

    def range_of(self, queue: ConsumeQueue, options: SourceOptions) -> QueueRange:
        """What is asked for of a queue.

        Raises DataLossError where an offset lies outside of what there is, and that matters.
        """
        low, high = self.bounds(queue)
        if options.view == "consumequeue":  # units are shown that name no message any more
            low = min(low, max(0, queue.mapped_file_queue.get_min_offset()) // CQ_STORE_UNIT_SIZE)
        start = self._starting(queue, options, low, high)
        stop = self._ending(queue, options, low, high)
        return self.whole_range(queue).cut(start, max(start, stop))

    def whole_range(self, queue: ConsumeQueue) -> QueueRange:
        """All that can be read of a queue."""
        low, high = self.bounds(queue)
        return QueueRange(
            topic=queue.topic,
            queue_id=queue.queue_id,
            directory=queue.mapped_file_queue.store_path,
            file_size=queue.mapped_file_size,
            start=low,
            stop=high,
            overlay=_overlay(queue, queue.get_max_offset_in_queue()),
        )

    def lower_bound(self, queue: ConsumeQueue, timestamp: int) -> int:
        """First queue offset stored at `timestamp` (Unix ms) or later; the end if none."""
        return queue.lower_bound_by_time(timestamp, self.store.commit_log.pickup_store_timestamp)

    def _starting(self, queue: ConsumeQueue, options: SourceOptions, low: int, high: int) -> int:
        named = (self.place.broker_name, queue.topic, queue.queue_id)

        def find(timestamp: int) -> int:
            return self.lower_bound(queue, timestamp)

        return starting_offset(named, _name(queue), options, low, high, find)

    def _ending(self, queue: ConsumeQueue, options: SourceOptions, low: int, high: int) -> int:
        named = (self.place.broker_name, queue.topic, queue.queue_id)
        timestamp = options.ending.timestamp_of(*named)
        if timestamp is not None:
            return self.lower_bound(queue, timestamp)
        offset = options.ending.offset_of(*named)
        if offset in (EARLIEST, LATEST):
            return low if offset == EARLIEST else high
        return _within(_name(queue), "ending", offset, low, high, options.fail_on_data_loss)

    # ---- index -------------------------------------------------------------------------------

    @property
    def index_service(self) -> IndexService:
        """The index of the store."""
        return self.store.index_service


def log_files_on_disk(env: Env, settings: MessageStoreConfig) -> tuple[LogFile, ...]:
    """The files that a log's directories hold now, in order. Raises StoreIOError."""
    return tuple(LogFile(*file) for file in listed_log_files(env, settings))


def place_settings(env: Env, place: StorePlace, broker_conf: str | None) -> MessageStoreConfig:
    """Where a store keeps its files. Raises StoreFormatError where no store can be."""
    root = env.absolute(place.root)
    if not env.is_dir(root):
        raise StoreFormatError(f"{root}: no directory")
    if any(name.startswith("dledger-") for name in env.listdir(root)):
        raise StoreFormatError(f"{root}: a DLedger log, which has another format")
    if broker_conf is None:
        settings = MessageStoreConfig().at_root(root)
    elif not env.exists(broker_conf):
        raise StoreFormatError(f"rocketmq-store: brokerConf={broker_conf!r}: no such file")
    else:
        settings = MessageStoreConfig.from_broker_conf(broker_conf, root=root)[0]
    return settings


def store_settings(env: Env, place: StorePlace, broker_conf: str | None) -> MessageStoreConfig:
    """As place_settings. Raises StoreFormatError too where no log is."""
    settings = place_settings(env, place, broker_conf)
    for path in settings.all_commit_log_paths:
        if not env.is_dir(path):
            raise StoreFormatError(f"{place.root} holds no store: there is no {path}")
    return settings


def check_places(options: SourceOptions, *, may_be_empty: bool) -> None:
    """Raises StoreFormatError where no store is; `may_be_empty`: one may be made there later."""
    env = Env()
    for place in options.places:
        if not (may_be_empty and env.is_dir(place.root) and not env.listdir(place.root)):
            store_settings(env, place, options.broker_conf)


def starting_offset(
    named: tuple[str, str, int],
    where: str,
    options: SourceOptions,
    low: int,
    high: int,
    lower_bound: Callable[[int], int],
) -> int:
    """Where a queue that holds [low, high) begins.

    Parameters
    ----------
    named : (broker, topic, queue id)
    where : the queue, for an error
    lower_bound : first queue offset stored at a time (Unix ms) or later, the end if none

    Raises DataLossError where what was asked for is not there, and that matters.
    """
    timestamp = options.starting.timestamp_of(*named)
    if timestamp is not None:
        found = lower_bound(timestamp)
        # For one time over all queues it must be asked for: most stores have a queue that is idle.
        strategy = options.starting_strategy
        if strategy is None and options.starting.timestamp is None:
            strategy = "error"
        if found == high and strategy == "error":
            raise DataLossError(
                f"{where}: nothing was stored at {timestamp} ms or later; "
                "startingOffsetsByTimestampStrategy=latest begins at the end"
            )
        return found
    offset = options.starting.offset_of(*named)
    if offset in (EARLIEST, LATEST):
        return low if offset == EARLIEST else high
    return _within(where, "starting", offset, low, high, options.fail_on_data_loss)


def sample_units(queue: ConsumeQueue, start: int, stop: int) -> QueueUnits:
    """About SAMPLE_COUNT units out of [start, stop), in order; all of them where there are few."""
    count = stop - start
    if count <= SAMPLE_COUNT:
        return queue.read_units(start, count)
    each = SAMPLE_COUNT // _SAMPLE_PIECES
    steps = range(_SAMPLE_PIECES)
    begins = [start + step * (count - each) // (_SAMPLE_PIECES - 1) for step in steps]
    pieces = [queue.read_units(begin, each) for begin in begins]
    return QueueUnits(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


def _overlay(queue: ConsumeQueue, stop: int) -> tuple[tuple[int, bytes], ...]:
    """Units that recovery has put into memory, as far as the files do not hold them."""
    found = []
    for file in queue.mapped_file_queue.mapped_files:
        if file.mode != "memory":
            continue
        first = file.file_from_offset // CQ_STORE_UNIT_SIZE
        size = min(file.wrote, (stop - first) * CQ_STORE_UNIT_SIZE)
        units = file.read(0, size) if size > 0 else b""
        same = _same_bytes(units, _on_disk(queue, file.file_from_offset, len(units)))
        same -= same % CQ_STORE_UNIT_SIZE
        if same < len(units):
            found.append((first + same // CQ_STORE_UNIT_SIZE, units[same:]))
    return tuple(found)


def _last_on_disk(queue: ConsumeQueue) -> tuple[int, int]:
    """What the queue's files say, whatever recovery makes of them: its end, and one past the last
    record that it names, bytes of the log; zeros for an empty one."""
    directory = queue.mapped_file_queue.store_path
    for name in sorted(filter(is_store_file, queue.env.listdir(directory)), reverse=True):
        path = f"{directory}/{name}"
        units = queue.env.read_file(path, size=queue.mapped_file_size)
        place = find_last_unit(units)
        unit = unit_at(units, place)
        if unit is not None:
            return (int(name) + place) // CQ_STORE_UNIT_SIZE + 1, unit[0] + unit[1]
    return 0, 0


def _on_disk(queue: ConsumeQueue, from_offset: int, size: int) -> bytes:
    path = f"{queue.mapped_file_queue.store_path}/{from_offset:020d}"
    return queue.env.read_file(path, size=size) if queue.env.exists(path) else b""


def _same_bytes(one: bytes, other: bytes) -> int:
    """How many bytes at the beginning are equal."""
    count = min(len(one), len(other))
    pair = (np.frombuffer(data, np.uint8, count) for data in (one, other))
    differs = np.flatnonzero(np.not_equal(*pair))
    return int(differs[0]) if len(differs) else count


def _within(where: str, what: str, offset: int, low: int, high: int, fail: bool) -> int:
    if low <= offset <= high:
        return offset
    if fail:
        raise DataLossError(
            f"{where}: the {what} offset {offset} lies outside of what there is, "
            f"{low} to {high}; failOnDataLoss=false takes what is left"
        )
    return min(max(offset, low), high)


def _name(queue: ConsumeQueue) -> str:
    return queue.mapped_file_queue.store_path
