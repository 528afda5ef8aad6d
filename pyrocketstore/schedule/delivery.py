"""The message that is delivered for a delayed one."""

from __future__ import annotations

from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.record._message import MessageExt
from pyrocketstore.record._record import crc32
from pyrocketstore.record.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_WAIT_STORE_MSG_OK,
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    MessageExtBrokerInner,
)
from pyrocketstore.record.stored_copy import stored_copy

#: Topics to which nothing is delivered. In its own topic a message would be delayed forever.
_NOT_DELIVERED_TO = {"", TRANS_HALF_TOPIC, SCHEDULE_TOPIC}
#: The bits of a CRC-32 that a record keeps.
_CRC_MASK = 0x7FFFFFFF


def due_time(
    log: CommitLog, level: int, queue: ConsumeQueue, unit: tuple[int, int, int], now_ms: int | None
) -> int:
    """Return when the message of a unit is due (Unix ms).

    `now_ms` is returned where the level delays by less now; None: the level of now has no effect.

    Source: RocketMQ 4.9.3 ScheduleMessageService#correctDeliverTimestamp.
    """
    phy_offset, size, tags_code = unit
    delay = log.delay_levels.get(level)
    due = queue.resolve_tags(tags_code)[1]
    if due is None:  # its ext unit is lost
        due = log.pickup_store_timestamp(phy_offset, size) + (delay or 0)
    if now_ms is not None and delay is not None and due - now_ms > delay:
        return now_ms  # later than it can be: the clock was set back, or the level is shorter now
    return due


def refusal(
    message: MessageExt, real: tuple[str, int] | None, level: int, queue_offset: int
) -> str:
    """Return why the message of a unit cannot be delivered to its `real_queue`, "" where it can."""
    # After damage a unit may name the bytes of a lost message, which another one has now.
    here = (message.topic, message.queue_id, message.queue_offset)
    if here != (SCHEDULE_TOPIC, level - 1, queue_offset):
        return "another message is there"
    if real is None or real[0] in _NOT_DELIVERED_TO:
        return "no topic to deliver to"
    if crc32(message.stored_body) & _CRC_MASK != message.body_crc:
        return "the body is damaged"
    return ""


def delivered_message(message: MessageExt, topic: str, queue_id: int) -> MessageExtBrokerInner:
    """Return the message to put into the real topic for a delayed one.

    Its record has all properties of the delayed one, DELAY, REAL_TOPIC and REAL_QID included; the
    map lacks DELAY, so that the put does not delay it again, and the put waits for no flush.

    Source: RocketMQ 4.9.3 ScheduleMessageService#messageTimeup.
    """
    delivered = stored_copy(message, topic, queue_id, dict(message.properties))
    delivered.properties.pop(PROPERTY_DELAY_TIME_LEVEL, None)
    delivered.properties[PROPERTY_WAIT_STORE_MSG_OK] = "false"
    return delivered
