"""Find files of the log or of queues that a store, usually a copy, has lost.

Recovery truncates contradictions without a report, because a kill or a power cut leaves an
unfinished tail.
This module distinguishes such a tail from missing files:

- `pyrocketstore.message_store.lost_ends` finds files that are missing at the end of the log.
- Recovery reads the last files of the log and builds the units that their records need. This module
  samples records of the earlier files: each has its unit, unless its topic was deleted, or deleted
  and created again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from pyrocketstore.columns._decode import VarColumn, check_records, decode_records
from pyrocketstore.commit_log._scan import walk_records
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.table import is_safe_name
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE
from pyrocketstore.errors import StoreError
from pyrocketstore.message_store.lost_ends import lost_end
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.record.message import is_queued
from pyrocketstore.spark.options import SourceOptions
from pyrocketstore.spark.plan.snapshot import StoreSnapshot, log_files_on_disk
from pyrocketstore.spark.task_types import LogFile

#: At most SAMPLED_FILES of the log files that recovery does not read are sampled, SAMPLED_BYTES of
#: each.
SAMPLED_FILES = 64
SAMPLED_BYTES = 16 << 10
#: Losses of one kind that an error names.
NAMED = 3
_NUMBERS = ("queue_id", "queue_offset", "sys_flag")


def find_losses(snapshot: StoreSnapshot, options: SourceOptions) -> list[str]:
    """Return a text for each known loss that affects the query; [] without a loss.

    Raises StoreIOError.
    """
    if options.view == "files":
        return []
    found = _log_end(snapshot, options)
    if options.view == "commitlog":  # tasks of other views report missing files
        for end, file in gaps(snapshot.log_files()):
            found.append(f"{file.path}: log files from byte {end} on are missing")
    if not found and snapshot.store.plan is not None and not snapshot.store.plan.empty:
        found += _queues(snapshot, options)
    return found


def _wants(options: SourceOptions, topic: str, queue_id: int) -> bool:
    """Whether the query needs a queue to be complete."""
    return options.view in ("commitlog", "index") or options.wants(topic, queue_id)


# ---- the log's end -------------------------------------------------------------------------------


def _log_end(snapshot: StoreSnapshot, options: SourceOptions) -> list[str]:
    plan = snapshot.store.plan
    assert plan is not None
    ends = {name: end for name, end in plan.beyond.items() if _wants(options, *name)}
    lost = lost_end(snapshot.store.files, plan, ends)
    return [] if lost is None else [str(lost)]


def gaps(files: Sequence[LogFile]) -> list[tuple[int, LogFile]]:
    """Return where files of a log are missing: the first missing byte, and the next file."""
    pairs = ((a.from_offset + a.size, b) for a, b in pairwise(files))
    return [(end, behind) for end, behind in pairs if end < behind.from_offset]


def is_stale(snapshot: StoreSnapshot) -> bool:
    """Whether the log has files that an earlier listing missed: listings are not atomic."""
    missing = gaps(snapshot.log_files())
    store = snapshot.store
    return bool(missing) and gaps(log_files_on_disk(store.env, store.config)) != missing


# ---- queues --------------------------------------------------------------------------------------


def _queues(snapshot: StoreSnapshot, options: SourceOptions) -> list[str]:
    """Return queues without units of records in files that recovery does not read."""
    store = snapshot.store
    plan = store.plan
    assert plan is not None
    until = plan.scan_from if plan.replay_from is None else min(plan.scan_from, plan.replay_from)
    files = [file for file in snapshot.log_files() if file.from_offset + file.size <= until]
    step = max(1, -(-len(files) // SAMPLED_FILES))
    table, minimums = store.get_consume_queue_table(), store.commit_log.min_offsets
    lost: dict[tuple[str, int], str] = {}
    known = functools.cache(lambda: _topics_in_config(snapshot))
    for file in files[::step]:
        for topic, queue_id, queue_offset, phy_offset in _records(snapshot, file):
            name = topic, queue_id
            if name in lost or not _wants(options, *name) or phy_offset < minimums.of(topic):
                continue
            queue = table.get(topic, {}).get(queue_id)
            if queue is None or queue.get_max_offset_in_queue() == 0:
                text = ""
                if _is_of_current_topic(topic, _of(table, topic), phy_offset, known):
                    text = "has no files, and should have"
            else:
                text = _missing(queue, queue_offset, phy_offset)
            # No checksum covers a record's queue id and queue offset: a unit that names the record
            # is trusted.
            if text and not any(each.reader.names(phy_offset) for each in _of(table, topic)):
                message = f"message {queue_offset}, at byte {phy_offset} of the log"
                lost[name] = f"{store.queue_table.path}/{topic}/{queue_id} {text} {message}"
    texts = list(lost.values())
    more = len(texts) - NAMED
    return [*texts[:NAMED], f"{more} more queues"] if more > 0 else texts


def _of(table: Mapping[str, Mapping[int, ConsumeQueue]], topic: str) -> Iterable[ConsumeQueue]:
    return table.get(topic, {}).values()


def _missing(queue: ConsumeQueue, queue_offset: int, phy_offset: int) -> str:
    """Return how a queue lacks a message of the log. Return "" where the queue has it, or where it
    was put before the topic was deleted and created again."""
    if queue_offset >= queue.get_max_offset_in_queue():
        return "ends before" if phy_offset >= queue.covered_phy_offset else ""
    first = max(0, queue.mapped_file_queue.get_min_offset()) // CQ_STORE_UNIT_SIZE
    return "begins after" if queue_offset < first else ""


def _is_of_current_topic(
    topic: str,
    queues: Iterable[ConsumeQueue],
    phy_offset: int,
    known: Callable[[], frozenset[str]],
) -> bool:
    """Whether the message at `phy_offset` was put after the topic was last created: one of the
    topic's `queues` has an older message, or none has any message and the topic is `known`."""
    firsts = [queue.read_units(queue.first_readable_offset(), 1).phy_offset for queue in queues]
    oldest = [int(first[0]) for first in firsts if len(first)]
    return min(oldest) <= phy_offset if oldest else topic in known()


def _topics_in_config(snapshot: StoreSnapshot) -> frozenset[str]:
    """Return the topics of config/topics.json."""
    config = TopicConfigFile(snapshot.store.env, f"{snapshot.root}/config/topics.json")
    try:
        config.load()
    except StoreError:  # messages do not depend on this file
        return frozenset()
    return frozenset(config.topics())


def _records(snapshot: StoreSnapshot, file: LogFile) -> Iterator[tuple[str, int, int, int]]:
    """Yield topic, queue id, queue offset and physical offset of the first queued records of a
    file; nothing where the file was deleted meanwhile, or does not begin with a record."""
    size = min(file.size, SAMPLED_BYTES)
    data = snapshot.store.env.read_part(file.path, 0, size)
    positions, sizes, _, _ = walk_records(data, 0, len(data), file.from_offset, end=file.size)
    valid = positions + sizes <= len(data)
    valid[valid] = check_records(data, positions[valid], sizes[valid]) == 0
    positions, sizes = positions[valid], sizes[valid]
    if not len(positions):
        return
    found = decode_records(data, positions, sizes, ["topic", *_NUMBERS])
    numbers = [np.asarray(found[name]).tolist() for name in _NUMBERS]
    topics = found["topic"]
    assert isinstance(topics, VarColumn)
    for position, topic, queue_id, queue_offset, sys_flag in zip(
        positions.tolist(), topics.to_list(), *numbers, strict=True
    ):
        if is_queued(sys_flag) and queue_id >= 0 and queue_offset >= 0 and is_safe_name(topic):
            yield topic, queue_id, queue_offset, file.from_offset + position
