"""The message that is delivered for a delayed one."""

from __future__ import annotations

from pyrocketstore.record import _message
from pyrocketstore.record._message import MessageExt
from pyrocketstore.record.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_WAIT_STORE_MSG_OK,
    MessageExtBrokerInner,
    parse_java_int,
)

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


def real_queue(message: MessageExt) -> tuple[str, int] | None:
    """Return topic and queue id to which a delayed message goes; None if it names none."""
    topic = message.properties.get(PROPERTY_REAL_TOPIC)
    queue_id = parse_java_int(message.properties.get(PROPERTY_REAL_QUEUE_ID, ""))
    if not topic or queue_id is None or queue_id < 0:
        return None
    return topic, queue_id


def delivered_message(message: MessageExt, topic: str, queue_id: int) -> MessageExtBrokerInner:
    """Return the message to put into the real topic for a delayed one.

    Its record has all properties of the delayed one, DELAY, REAL_TOPIC and REAL_QID included; the
    map lacks DELAY, so that the put does not delay it again, and the put waits for no flush.

    Source: RocketMQ 4.9.3 ScheduleMessageService#messageTimeup.
    """
    named = dict(message.properties)
    text = _message.properties_to_string(named)
    del named[PROPERTY_DELAY_TIME_LEVEL]
    named[PROPERTY_WAIT_STORE_MSG_OK] = "false"
    return MessageExtBrokerInner(
        topic,
        message.stored_body,
        queue_id,
        flag=message.flag,
        properties=named,
        properties_string=text,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_host=message.store_host,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
    )
