"""Find the commit records of transactions whose op message is missing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.table import ConsumeQueueTable
from pyrocketstore.record import _message
from pyrocketstore.record._message import MessageExt
from pyrocketstore.record.message import (
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_WAIT_STORE_MSG_OK,
    TRANS_HALF_TOPIC,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_MASK,
    utf8_length,
)
from pyrocketstore.transaction.prepared import PreparedMessage
from pyrocketstore.transaction.records import content_of

#: Units that are read together.
_CHUNK = 65536
#: A producer's clock may be ahead of the store's by so much (ms).
_CLOCK_SKEW_MS = 3_600_000


def find_committed(
    log: CommitLog, table: ConsumeQueueTable, undecided: Iterable[PreparedMessage]
) -> list[tuple[PreparedMessage, MessageExt]]:
    """Return those of some transactions that have a commit record in the log, with the record.

    The units of the real queues behind the first half message are read, and the records that are as
    long as a commit record would be. A commit record names one of the half messages, or has their
    content. Expired half messages are left out.

    Raises StoreIOError.
    """
    by_queue: dict[tuple[str, int], list[PreparedMessage]] = {}
    for one in undecided:
        by_queue.setdefault((one.topic, one.queue_id), []).append(one)
    found = []
    for (topic, queue_id), group in by_queue.items():
        queue = table.get(topic, queue_id)
        if queue is not None:
            found += _committed_in(log, queue, group)
    return found


def _committed_in(
    log: CommitLog, queue: ConsumeQueue, group: list[PreparedMessage]
) -> list[tuple[PreparedMessage, MessageExt]]:
    sizes: set[int] = set()
    by_name: dict[int | bytes, PreparedMessage] = {}
    is_any_size = False
    for one in group:
        by_name |= dict.fromkeys(one.phy_offsets(), one)
        half = log.look_message(one.phy_offset, one.size)
        if half is not None:
            sizes |= _sizes(half, queue.topic)
            if one.has_unique_id:  # equal content proves nothing without
                by_name[content_of(half)] = one
            # The record has the offsets in further queues, and lacks WAIT.
            is_any_size |= PROPERTY_INNER_MULTI_DISPATCH in half.properties
    lengths = np.array(sorted(sizes), np.int32)
    found: dict[int, tuple[PreparedMessage, MessageExt]] = {}
    at = min(_first_unit(log, queue, one) for one in group)
    end = queue.get_max_offset_in_queue()
    while at < end:
        units = queue.reader.columns(at, min(_CHUNK, end - at))
        rows = np.flatnonzero(np.isin(units.size, lengths) | is_any_size)
        for row in rows.tolist():
            record = log.look_message(int(units.phy_offset[row]), int(units.size[row]))
            if record is None or not _is_commit(record, queue, at + row):
                continue
            for name in (record.prepared_transaction_offset, content_of(record)):
                if name in by_name:
                    one = by_name[name]
                    found.setdefault(one.key, (one, record))
        if not len(units.size):
            break
        at += len(units.size)
    return list(found.values())


def _first_unit(log: CommitLog, queue: ConsumeQueue, prepared: PreparedMessage) -> int:
    """Return the queue offset of the first message that may be the commit record."""
    first = queue.units_before(min(prepared.phy_offsets()))
    if prepared.check_times:
        # A 4.9.3 broker may have committed an earlier half message while it put this one back.
        begin = prepared.born_timestamp - _CLOCK_SKEW_MS
        first = min(first, queue.lower_bound_by_time(begin, log.pickup_store_timestamp))
    return max(first, queue.first_readable_offset(max(0, log.get_min_offset())))


def _sizes(half: MessageExt, topic: str) -> set[int]:
    """Return the possible lengths of the commit record (bytes): with the properties of this half
    message, and with those of one before it was put back."""
    rest = half.size - utf8_length(half.properties_string)
    rest += utf8_length(topic) - len(TRANS_HALF_TOPIC)
    named = half.properties
    times = named.get(PROPERTY_TRANSACTION_CHECK_TIMES, "")
    before = {
        PROPERTY_TRANSACTION_CHECK_TIMES: ["9" * digits for digits in range(1, len(times) + 1)],
        PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET: [],
        PROPERTY_WAIT_STORE_MSG_OK: ["true", "false"],
    }
    values = [{None, named.get(name), *more} for name, more in before.items()]
    found = set()
    for row in itertools.product(*values):
        varied = {**named, **dict(zip(before, row, strict=True))}
        kept = {name: value for name, value in varied.items() if value is not None}
        found.add(rest + utf8_length(_message.properties_to_string(kept)))
    return found


def _is_commit(record: MessageExt, queue: ConsumeQueue, queue_offset: int) -> bool:
    # After damage a unit may name the bytes of a lost message, which another one has now.
    here = (record.topic, record.queue_id, record.queue_offset)
    is_here = here == (queue.topic, queue.queue_id, queue_offset)
    return is_here and record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT_TYPE
