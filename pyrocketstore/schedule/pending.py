"""List the delayed messages that are not delivered yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.consume_queue.table import ConsumeQueueTable
from pyrocketstore.record.message import SCHEDULE_TOPIC, TRANS_HALF_TOPIC, real_queue
from pyrocketstore.schedule.delivery import due_time

if TYPE_CHECKING:
    from pyrocketstore.consume_queue.queue import ConsumeQueue
    from pyrocketstore.system.env import Env


class DelayedMessages(NamedTuple):
    """Delayed messages of one level for one topic.

    level : int, from 1; delay_ms : int; topic : str, the real one, "" if a message names none;
    message_count : int; first_due, last_due : int, Unix ms
    """

    level: int
    delay_ms: int
    topic: str
    message_count: int
    first_due: int
    last_due: int


def real_queues(log: CommitLog, table: ConsumeQueueTable, phy_offset: int) -> set[tuple[str, int]]:
    """Return the queues to which the delayed and the half messages from `phy_offset` (bytes) on go.

    Raises StoreIOError.
    """
    return {
        real
        for queue in _waiting_queues(table)
        for real in _real_queues(log, queue, queue.units_before(phy_offset))
    }


def is_awaited(
    log: CommitLog,
    table: ConsumeQueueTable,
    topic: str,
    delay_offsets: Mapping[int, int],
    half_offset: int,
) -> bool:
    """Return whether a delayed message or a half message of a topic waits.

    Parameters
    ----------
    delay_offsets : {level: queue offset to deliver next}
    half_offset : queue offset of the first half message that counts

    Those before the topic's minimum are of its removed messages. Raises StoreIOError.
    """
    phy_offset = log.min_offsets.of(topic)
    for queue in _waiting_queues(table):
        is_half = queue.topic == TRANS_HALF_TOPIC
        first = half_offset if is_half else delay_offsets.get(queue.queue_id + 1, 0)
        first = max(first, queue.units_before(phy_offset))
        if any(real[0] == topic for real in _real_queues(log, queue, first)):
            return True
    return False


def _waiting_queues(table: ConsumeQueueTable) -> list[ConsumeQueue]:
    return [*table.of_topic(SCHEDULE_TOPIC).values(), *table.of_topic(TRANS_HALF_TOPIC).values()]


def _real_queues(log: CommitLog, queue: ConsumeQueue, first: int) -> Iterator[tuple[str, int]]:
    low = queue.first_readable_offset(max(0, log.get_min_offset()))
    for at in range(max(low, first), queue.get_max_offset_in_queue()):
        unit = queue.reader.unit(at)
        message = None if unit is None else log.look_message(unit[0], unit[1])
        real = None if message is None else real_queue(message.properties)
        if real is not None:
            yield real


def delayed_messages(
    log: CommitLog, table: ConsumeQueueTable, offsets: dict[int, int], clock: Env | None
) -> list[DelayedMessages]:
    """Return what waits, by level and real topic; `offsets` has the next offset of each level.

    `clock` is None where the levels may not be those of the owner: the time on disk counts.
    """
    found = []
    for queue in table.of_topic(SCHEDULE_TOPIC).values():
        level = queue.queue_id + 1
        low = queue.first_readable_offset(max(0, log.get_min_offset()))
        at, end = max(low, offsets.get(level, 0)), queue.get_max_offset_in_queue()
        counts: Counter[str] = Counter()
        dues: dict[str, list[int]] = {}
        while at < end:
            unit = queue.reader.unit(at)
            at += 1
            message = None if unit is None else log.look_message(unit[0], unit[1])
            if unit is None or message is None:
                continue
            real = real_queue(message.properties)
            topic = "" if real is None else real[0]
            due = due_time(log, level, queue, unit, clock.now_ms() if clock else None)
            counts[topic] += 1
            first_last = dues.setdefault(topic, [due, due])
            first_last[:] = min(first_last[0], due), max(first_last[1], due)
        delay = log.delay_levels.get(level, 1000)
        found += [
            DelayedMessages(level, delay, topic, count, *dues[topic])
            for topic, count in sorted(counts.items())
        ]
    return sorted(found)
