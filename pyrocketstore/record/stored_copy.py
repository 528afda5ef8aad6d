"""The message that is put again for one that was read: delivered, tried again, committed."""

from __future__ import annotations

from pyrocketstore.record import _message
from pyrocketstore.record._message import MessageExt
from pyrocketstore.record.message import MessageExtBrokerInner


def stored_copy(
    message: MessageExt, topic: str, queue_id: int, properties: dict[str, str]
) -> MessageExtBrokerInner:
    """Return a message with the stored body of another one, its flags, hosts, birth and attempts.

    Its record has these properties; a later change of the map changes only how it is put.
    """
    return MessageExtBrokerInner(
        topic,
        message.stored_body,
        queue_id,
        flag=message.flag,
        properties=properties,
        properties_string=_message.properties_to_string(properties),
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_host=message.store_host,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
    )
