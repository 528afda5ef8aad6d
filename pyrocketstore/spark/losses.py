"""What a store has lost by what it has left: files of the log or of queues that a copy misses.

Recovery cuts contradictions without a report where a kill or a power cut leaves an unfinished tail.
This module distinguishes such a tail from missing files:

- `pyrocketstore.lost_ends` finds files that are missing at the end of the log.
- Recovery reads the last files of the log and builds the units that their records need. This module
  samples records of the earlier files: each has its unit, unless its topic was deleted, or deleted
  and created again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from pyrocketstore._columns import VarColumn, check_records, decode_records
from pyrocketstore._log_walk import walk_records
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.errors import StoreError
from pyrocketstore.lost_ends import lost_end
from pyrocketstore.queue_table import is_safe_name
from pyrocketstore.queue_units import CQ_STORE_UNIT_SIZE
from pyrocketstore.spark.options import SourceOptions
from pyrocketstore.spark.snapshot import LogFile, StoreSnapshot, log_files_on_disk
from pyrocketstore.topic_config import TopicConfigFile

#: Of the log files that recovery does not read, at most so many are looked at, so many bytes each.
SAMPLED_FILES = 64
SAMPLED_BYTES = 16 << 10
#: Of several losses of one kind so many are named.
NAMED = 3
#: sysFlag of messages that stand in no queue: prepared, and rolled back.
_TRANSACTION_MASK, _UNQUEUED = 12, (4, 12)
_NUMBERS = ("queue_id", "queue_offset", "sys_flag")


def find_losses(snapshot: StoreSnapshot, options: SourceOptions) -> list[str]:
    """What of the store that was asked for is surely lost, a text for each; [] where nothing is.

    Raises StoreIOError.
    """
    if options.view == "files":
        return []
    found = _log_end(snapshot, options)
    if options.view == "commitlog":  # of the others the tasks say what they miss
        for end, file in gaps(snapshot.log_files()):
            found.append(f"{file.path}: the files of the log from byte {end} on are missing")
    if not found and snapshot.store.plan is not None and not snapshot.store.plan.empty:
        found += _queues(snapshot, options)
    return found


def _wants(options: SourceOptions, topic: str, queue_id: int) -> bool:
    """Whether it matters to the query that a queue is whole."""
    return options.view in ("commitlog", "index") or options.wants(topic, queue_id)


# ---- the log's end -------------------------------------------------------------------------------


def _log_end(snapshot: StoreSnapshot, options: SourceOptions) -> list[str]:
    plan = snapshot.store.plan
    assert plan is not None
    ends = {name: end for name, end in plan.beyond.items() if _wants(options, *name)}
    lost = lost_end(snapshot.store, ends)
    return [] if lost is None else [str(lost)]


def gaps(files: Sequence[LogFile]) -> list[tuple[int, LogFile]]:
    """Where files of a log are missing: from which byte on, and the file behind."""
    pairs = ((a.from_offset + a.size, b) for a, b in pairwise(files))
    return [(end, behind) for end, behind in pairs if end < behind.from_offset]


def is_stale(snapshot: StoreSnapshot) -> bool:
    """Whether the log has files that its listing, which is no moment's, passed over."""
    missing = gaps(snapshot.log_files())
    store = snapshot.store
    return bool(missing) and gaps(log_files_on_disk(store.env, store.config)) != missing


# ---- queues --------------------------------------------------------------------------------------


def _queues(snapshot: StoreSnapshot, options: SourceOptions) -> list[str]:
    """Queues that miss what records say which recovery does not read."""
    store = snapshot.store
    plan = store.plan
    assert plan is not None
    until = plan.scan_from if plan.replay_from is None else min(plan.scan_from, plan.replay_from)
    files = [file for file in snapshot.log_files() if file.from_offset + file.size <= until]
    step = max(1, -(-len(files) // SAMPLED_FILES))
    table = store.get_consume_queue_table()
    lost: dict[tuple[str, int], str] = {}
    known = functools.cache(lambda: _topics_in_config(snapshot))
    for file in files[::step]:
        for topic, queue_id, queue_offset, phy_offset in _records(snapshot, file):
            name = topic, queue_id
            if name in lost or not _wants(options, *name):
                continue
            queue = table.get(topic, {}).get(queue_id)
            if queue is None or queue.get_max_offset_in_queue() == 0:
                text = ""
                if _is_of_this_life(topic, _of(table, topic), phy_offset, known):
                    text = "has no files, and should have"
            else:
                text = _missing(queue, queue_offset, phy_offset)
            # No sum covers a record's queue id and queue offset: a unit that names it is believed.
            if text and not any(each.reader.names(phy_offset) for each in _of(table, topic)):
                place = f"message {queue_offset}, at byte {phy_offset} of the log"
                lost[name] = f"{store.queue_table.path}/{topic}/{queue_id} {text} {place}"
    texts = list(lost.values())
    more = len(texts) - NAMED
    return [*texts[:NAMED], f"{more} more queues"] if more > 0 else texts


def _of(table: Mapping[str, Mapping[int, ConsumeQueue]], topic: str) -> Iterable[ConsumeQueue]:
    return table.get(topic, {}).values()


def _missing(queue: ConsumeQueue, queue_offset: int, phy_offset: int) -> str:
    """How a queue lacks a message of the log; "" where it has it, or where the message is of an
    earlier life of the topic."""
    if queue_offset >= queue.get_max_offset_in_queue():
        return "ends before" if phy_offset >= queue.covered_phy_offset else ""
    first = max(0, queue.mapped_file_queue.get_min_offset()) // CQ_STORE_UNIT_SIZE
    return "begins behind" if queue_offset < first else ""


def _is_of_this_life(
    topic: str,
    queues: Iterable[ConsumeQueue],
    phy_offset: int,
    known: Callable[[], frozenset[str]],
) -> bool:
    """Whether a message there was put to its topic as it is now, and not before it was deleted: one
    of the topic's `queues` has an older message, or none has any and the topic is `known`."""
    firsts = [queue.read_units(queue.first_readable_offset(), 1).phy_offset for queue in queues]
    places = [int(place) for first in firsts for place in first[:1]]
    return min(places) <= phy_offset if places else topic in known()


def _topics_in_config(snapshot: StoreSnapshot) -> frozenset[str]:
    """Those of config/topics.json."""
    config = TopicConfigFile(snapshot.store.env, f"{snapshot.root}/config/topics.json")
    try:
        config.load()
    except StoreError:  # it is no part of what is read
        return frozenset()
    return frozenset(config.topics())


def _records(snapshot: StoreSnapshot, file: LogFile) -> Iterator[tuple[str, int, int, int]]:
    """Topic, queue id, queue offset and place of the first records of a file that stand in a queue;
    none where the file was deleted meanwhile, or begins with something else."""
    size = min(file.size, SAMPLED_BYTES)
    data = snapshot.store.env.read_part(file.path, 0, size)
    positions, sizes, _, _ = walk_records(data, 0, len(data), file.from_offset, end=file.size)
    sound = positions + sizes <= len(data)
    sound[sound] = check_records(data, positions[sound], sizes[sound]) == 0
    positions, sizes = positions[sound], sizes[sound]
    if not len(positions):
        return
    found = decode_records(data, positions, sizes, ["topic", *_NUMBERS])
    numbers = [np.asarray(found[name]).tolist() for name in _NUMBERS]
    topics = found["topic"]
    assert isinstance(topics, VarColumn)
    for position, topic, queue_id, queue_offset, sys_flag in zip(
        positions.tolist(), topics.to_list(), *numbers, strict=True
    ):
        queued = sys_flag & _TRANSACTION_MASK not in _UNQUEUED
        if queued and queue_id >= 0 and queue_offset >= 0 and is_safe_name(topic):
            yield topic, queue_id, queue_offset, file.from_offset + position
