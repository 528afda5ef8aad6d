"""The records of a transaction: half, commit, op, put-back and discard."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from pyrocketstore.arguments._numbers_and_bodies import body_size
from pyrocketstore.record import _message
from pyrocketstore.record._message import MessageExt
from pyrocketstore.record.message import (
    MAX_PROPERTIES_SIZE,
    PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    PROPERTY_WAIT_STORE_MSG_OK,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_MASK,
    Host,
    MessageExtBrokerInner,
    parse_java_int,
    real_queue_properties,
    utf8_length,
)
from pyrocketstore.record.stored_copy import stored_copy

#: The tag of an op message. Source: RocketMQ 4.9.3 TransactionalMessageUtil#REMOVETAG.
REMOVE_TAG = "d"
#: A property of our op messages: the half message was put back, and its transaction is undecided.
#: A broker only sees that this half message is done.
PROPERTY_PUT_BACK = "PUT_BACK"
#: Properties in which the copies of a half message may differ. Source: RocketMQ 4.9.3
#: TransactionalMessageServiceImpl#needDiscard, TransactionalMessageBridge
#: #renewImmunityHalfMessageInner; a put to further queues drops WAIT and writes the offsets.
_VARYING = frozenset(
    {
        PROPERTY_TRANSACTION_CHECK_TIMES,
        PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
        PROPERTY_WAIT_STORE_MSG_OK,
        PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    }
)
_INT64_BITS = 64
#: The longest value of TRANSACTION_CHECK_TIMES.
CHECK_TIMES_MAX = 0x7FFFFFFF
#: Bytes that hold everything of a record of a transaction but the body and the properties of the
#: half message: the fields of fixed size, the longest topic, TRANSACTION_CHECK_TIMES.
_SPARE = 512
_OP_TEXT = _message.properties_to_string(
    {PROPERTY_WAIT_STORE_MSG_OK: "true", PROPERTY_TAGS: REMOVE_TAG}
)
_PUT_BACK_TEXT = _message.properties_to_string(
    {PROPERTY_WAIT_STORE_MSG_OK: "true", PROPERTY_TAGS: REMOVE_TAG, PROPERTY_PUT_BACK: "true"}
)


def half_properties(
    named: dict[str, str], group: str, unique_id: str, topic: str, queue_id: int
) -> dict[str, str]:
    """Return the properties of a half message: those of the message, of Java's producer and of the
    broker.

    Source: RocketMQ 4.9.3 DefaultMQProducerImpl#sendMessageInTransaction,
    TransactionalMessageBridge#parseHalfMessageInner.
    """
    return {
        **named,
        PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX: unique_id,
        PROPERTY_TRANSACTION_PREPARED: "true",
        PROPERTY_PRODUCER_GROUP: group,
        PROPERTY_WAIT_STORE_MSG_OK: "true",
        **real_queue_properties(topic, queue_id),
    }


def make_half(message: MessageExtBrokerInner, properties: dict[str, str]) -> None:
    """Turn a message into the half message with `half_properties`."""
    message.topic, message.queue_id = TRANS_HALF_TOPIC, 0
    message.properties = properties
    message.properties_string = _message.properties_to_string(properties)


def check_sizes(half: MessageExtBrokerInner, topic: str, max_message_size: int) -> None:
    """Raise MessageRefused unless all records of the transaction with this half message fit."""
    size = utf8_length(half.properties_string or "") + _SPARE
    if size <= MAX_PROPERTIES_SIZE and size + body_size(half.body) <= max_message_size:
        return
    _message.encode_message(_longest_form(half, topic), max_message_size=max_message_size)


def _longest_form(half: MessageExtBrokerInner, topic: str) -> MessageExtBrokerInner:
    """Return a message as long as any record of the transaction with this half message."""
    named = {**half.properties, PROPERTY_TRANSACTION_CHECK_TIMES: str(CHECK_TIMES_MAX)}
    longest = max(topic, TRANS_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, key=len)
    return MessageExtBrokerInner(
        longest,
        half.body,
        0,
        properties=named,
        properties_string=_message.properties_to_string(named),
        born_host=half.born_host,
        store_host=half.store_host,
    )


def committed_message(half: MessageExt, topic: str, queue_id: int) -> MessageExtBrokerInner:
    """Return the message that consumers of the real topic see; its put waits as WAIT says.

    Source: RocketMQ 4.9.3 EndTransactionProcessor#endMessageTransaction.
    """
    message = stored_copy(half, topic, queue_id, dict(half.properties))
    message.sys_flag = (half.sys_flag & ~TRANSACTION_MASK) | TRANSACTION_COMMIT_TYPE
    message.prepared_transaction_offset = half.phy_offset
    return message


def op_message(
    half_queue_offset: int, now_ms: int, host: Host, *, waits: bool, put_back: bool = False
) -> MessageExtBrokerInner:
    """Return the op message: the half message at this queue offset is committed, rolled back or put
    back.

    Source: RocketMQ 4.9.3 TransactionalMessageBridge#putOpMessage. Differs: that of a rollback
    waits for the flush, since nothing else is put then.
    """
    return MessageExtBrokerInner(
        TRANS_OP_HALF_TOPIC,
        b"%d" % half_queue_offset,
        0,
        properties={PROPERTY_WAIT_STORE_MSG_OK: "true" if waits else "false"},
        properties_string=_PUT_BACK_TEXT if put_back else _OP_TEXT,
        born_timestamp=now_ms,
        born_host=host,
        store_host=host,
    )


def _undispatched(message: MessageExtBrokerInner) -> MessageExtBrokerInner:
    """Keep a message out of the light queues that it names until it is committed."""
    named = message.properties
    named.pop(PROPERTY_INNER_MULTI_QUEUE_OFFSET, None)
    message.properties_string = _message.properties_to_string(named)
    named.pop(PROPERTY_INNER_MULTI_DISPATCH, None)
    return message


def put_back_message(half: MessageExt, check_times: int) -> MessageExtBrokerInner:
    """Return the half message to put again after a check that decided nothing.

    Source: RocketMQ 4.9.3 TransactionalMessageBridge#renewHalfMessageInner.
    """
    message = stored_copy(half, TRANS_HALF_TOPIC, 0, dict(half.properties))
    message.flag = message.reconsume_times = 0
    message.properties[PROPERTY_TRANSACTION_CHECK_TIMES] = str(check_times)
    _undispatched(message).properties[PROPERTY_WAIT_STORE_MSG_OK] = "false"
    return message


def discarded_message(half: MessageExt) -> MessageExtBrokerInner:
    """Return the message to put into TRANS_CHECK_MAX_TIME_TOPIC for one that no check decided.

    Source: RocketMQ 4.9.3 DefaultTransactionalMessageCheckListener#resolveDiscardMsg.
    """
    message = stored_copy(half, TRANS_CHECK_MAX_TIME_TOPIC, 0, dict(half.properties))
    return _undispatched(message)


# ---- what a half or op message says -------------------------------------------------------------


def check_times_of(properties: Mapping[str, str]) -> int:
    """Return how often a half message was put back; 0 also for a text that is not a number."""
    text = properties.get(PROPERTY_TRANSACTION_CHECK_TIMES, "")
    return max(0, parse_java_int(text) or 0)


def immunity_ms_of(properties: Mapping[str, str], time_out_ms: int) -> int:
    """Return for how long after its birth a half message is not checked.

    Source: RocketMQ 4.9.3 TransactionalMessageServiceImpl#getImmunityTime.
    """
    text = properties.get(PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS, "")
    seconds = parse_java_int(text, _INT64_BITS)
    return time_out_ms if seconds is None or seconds == -1 else seconds * 1000


def half_offset_of(body: bytes) -> int | None:
    """Return the queue offset in the body of an op message; None if there is none."""
    try:
        offset = parse_java_int(body.decode("ascii"), _INT64_BITS)
    except UnicodeDecodeError:
        return None
    return None if offset is None or offset < 0 else offset


def content_of(message: MessageExt) -> bytes:
    """Return a digest of the content that a half message, its copies and its commit record share.

    A Java producer that sends one `Message` twice sends one UNIQ_KEY twice: only the body, the
    birth and the other properties show that these are two transactions.
    """
    named = {name: value for name, value in message.properties.items() if name not in _VARYING}
    digest = hashlib.sha256(message.stored_body)
    fields = (message.born_timestamp, message.born_host, sorted(named.items()))
    digest.update(repr(fields).encode("utf-8", "surrogatepass"))
    return digest.digest()


def was_put_back(properties: Mapping[str, str]) -> bool:
    """Return whether a half message is a copy that a check has put back."""
    marks = (PROPERTY_TRANSACTION_CHECK_TIMES, PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET)
    return any(name in properties for name in marks)
