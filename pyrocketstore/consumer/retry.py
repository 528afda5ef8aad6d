"""The message that is put for one that a consumer could not handle."""

from __future__ import annotations

from pyrocketstore.record._message import MessageExt
from pyrocketstore.record.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_WAIT_STORE_MSG_OK,
    MessageExtBrokerInner,
)
from pyrocketstore.record.stored_copy import stored_copy

RETRY_PREFIX, DLQ_PREFIX = "%RETRY%", "%DLQ%"
#: The level of the first retry. Source: SendMessageProcessor#asyncConsumerSendMsgBack.
FIRST_LEVEL = 3


def retry_topic(group: str) -> str:
    """Return the topic with the messages that a group tries again."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic with the dead letters of a group."""
    return DLQ_PREFIX + group


def retry_message(
    message: MessageExt, group: str, max_times: int, delay_level: int = 0
) -> MessageExtBrokerInner:
    """Return the message to put into the retry topic, or among the dead letters.

    Parameters
    ----------
    message : as it was read, from its topic or from the retry topic
    max_times : a message that was tried again so often is a dead letter
    delay_level : 0: 3 plus the number of attempts before; negative: at once among the dead letters

    Source: RocketMQ 4.9.3 SendMessageProcessor#asyncConsumerSendMsgBack.
    """
    named = dict(message.properties)
    named.setdefault(PROPERTY_RETRY_TOPIC, message.topic)
    named[PROPERTY_WAIT_STORE_MSG_OK] = "false"
    topic = retry_topic(group)
    if message.reconsume_times >= max_times or delay_level < 0:
        topic, delay_level = dlq_topic(group), 0
    elif delay_level == 0:
        delay_level = FIRST_LEVEL + message.reconsume_times
    named[PROPERTY_DELAY_TIME_LEVEL] = str(delay_level)
    if not named.get(PROPERTY_ORIGIN_MESSAGE_ID, "").strip():
        named[PROPERTY_ORIGIN_MESSAGE_ID] = message.msg_id
    again = stored_copy(message, topic, 0, named)
    again.reconsume_times += 1
    return again
