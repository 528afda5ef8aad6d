"""Messages as a caller makes them, names of properties, and refusals by the public API."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pyrocketstore.arguments._numbers_and_bodies import body_size
from pyrocketstore.arguments.scalars import (
    INT32_MAX,
    INT32_MIN,
    entries_of,
    exact_int32,
    exact_int64,
    exact_text,
)
from pyrocketstore.display import shown
from pyrocketstore.errors import StoreFormatError, StoreTypeError

# ---- types of transactions in sysFlag (RocketMQ 4.9.3 MessageSysFlag) ---------------------------
TRANSACTION_MASK = 0xC
TRANSACTION_COMMIT_TYPE = 0x8
TRANSACTION_ROLLBACK_TYPE = 0xC


def is_queued(sys_flag: int) -> bool:
    """Return whether records of that sysFlag have units: not prepared, not rolled back."""
    return sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT_TYPE)


# ---- names of properties (RocketMQ 4.9.3 MessageConst) ------------------------------------------
PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_WAIT_STORE_MSG_OK = "WAIT"
PROPERTY_DELAY_TIME_LEVEL = "DELAY"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_TRANSACTION_PREPARED = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_MIN_OFFSET = "MIN_OFFSET"
PROPERTY_MAX_OFFSET = "MAX_OFFSET"
PROPERTY_BUYER_ID = "BUYER_ID"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_TRANSFER_FLAG = "TRANSFER_FLAG"
PROPERTY_CORRECTION_FLAG = "CORRECTION_FLAG"
PROPERTY_MQ2_FLAG = "MQ2_FLAG"
PROPERTY_RECONSUME_TIME = "RECONSUME_TIME"
PROPERTY_MSG_REGION = "MSG_REGION"
PROPERTY_TRACE_SWITCH = "TRACE_ON"
PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX = "UNIQ_KEY"
PROPERTY_MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
PROPERTY_CONSUME_START_TIMESTAMP = "CONSUME_START_TIME"
PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_INSTANCE_ID = "INSTANCE_ID"
PROPERTY_CORRELATION_ID = "CORRELATION_ID"
PROPERTY_MESSAGE_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_MESSAGE_TTL = "TTL"
PROPERTY_REPLY_MESSAGE_ARRIVE_TIME = "ARRIVE_TIME"
PROPERTY_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
PROPERTY_CLUSTER = "CLUSTER"
PROPERTY_MESSAGE_TYPE = "MSG_TYPE"
PROPERTY_INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
PROPERTY_INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
KEY_SEPARATOR = " "
NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"

#: Names that a caller may not use for a property. Source: MessageConst#STRING_HASH_SET.
RESERVED_NAMES = frozenset(
    {
        PROPERTY_KEYS,
        PROPERTY_TAGS,
        PROPERTY_WAIT_STORE_MSG_OK,
        PROPERTY_DELAY_TIME_LEVEL,
        PROPERTY_RETRY_TOPIC,
        PROPERTY_REAL_TOPIC,
        PROPERTY_REAL_QUEUE_ID,
        PROPERTY_TRANSACTION_PREPARED,
        PROPERTY_PRODUCER_GROUP,
        PROPERTY_MIN_OFFSET,
        PROPERTY_MAX_OFFSET,
        PROPERTY_BUYER_ID,
        PROPERTY_ORIGIN_MESSAGE_ID,
        PROPERTY_TRANSFER_FLAG,
        PROPERTY_CORRECTION_FLAG,
        PROPERTY_MQ2_FLAG,
        PROPERTY_RECONSUME_TIME,
        PROPERTY_MSG_REGION,
        PROPERTY_TRACE_SWITCH,
        PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
        PROPERTY_MAX_RECONSUME_TIMES,
        PROPERTY_CONSUME_START_TIMESTAMP,
        PROPERTY_INSTANCE_ID,
        PROPERTY_CORRELATION_ID,
        PROPERTY_MESSAGE_REPLY_TO_CLIENT,
        PROPERTY_MESSAGE_TTL,
        PROPERTY_REPLY_MESSAGE_ARRIVE_TIME,
        PROPERTY_PUSH_REPLY_TIME,
        PROPERTY_CLUSTER,
        PROPERTY_MESSAGE_TYPE,
        PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    }
)

#: "1.2.3.4:10911", "[2001:db8::1]:10911", (address, port), or address and i32 port in 8 or
#: 20 bytes.
Host = str | tuple[str, int] | bytes

#: Begins the names of light queues. Source: RocketMQ 4.9.3 MixAll#LMQ_PREFIX.
LMQ_PREFIX = "%LMQ%"
#: Its units hold delivery times. Source: RocketMQ 4.9.3 TopicValidator.
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
#: The topics of transactions: half messages, op messages, and those that no check could decide.
#: Source: RocketMQ 4.9.3 TopicValidator.
TRANS_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
#: Topics that a broker creates by itself, and the prefix of others.
#: Source: RocketMQ 4.9.3 TopicValidator.
SYSTEM_TOPICS = frozenset(
    {
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_TRACE_TOPIC",
        SCHEDULE_TOPIC,
        "SELF_TEST_TOPIC",
        "TBW102",
        TRANS_CHECK_MAX_TIME_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
    }
)
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
#: Bytes of UTF-8: the record keeps the length as an int16.
MAX_PROPERTIES_SIZE = 32767
#: Bytes of UTF-8: the record keeps the length as an int8.
MAX_TOPIC_SIZE = 127
PROPERTIES_TOO_LONG = f"the properties have more than {MAX_PROPERTIES_SIZE} bytes of UTF-8"
#: Between the tags of an expression. Source: RocketMQ 4.9.3 FilterAPI#buildSubscriptionData.
TAGS_SEPARATOR = "||"
#: The expression of every message. Source: RocketMQ 4.9.3 SubscriptionData#SUB_ALL.
ALL_TAGS = "*"
#: Characters that Java's String.trim removes at both ends.
JAVA_BLANKS = "".join(map(chr, range(0x21)))
#: The characters of topics, as in a set of a regular expression.
TOPIC_CHARACTERS = "%|a-zA-Z0-9_-"
_TOPIC = re.compile(f"[{TOPIC_CHARACTERS}]{{1,{MAX_TOPIC_SIZE}}}")


class MessageRefused(StoreFormatError):
    """A message that 4.9.3 answers with a put status instead of storing it.

    Parameters
    ----------
    status : str, name of the PutMessageStatus: MESSAGE_ILLEGAL or PROPERTIES_SIZE_EXCEEDED
    reason : str
    """

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason

    def _text(self) -> str:
        return f"{self.status}: {self.reason}"


# ---- messages -----------------------------------------------------------------------------------


# Here and below without generated __repr__ and __eq__: making them takes a part of each import.
@dataclasses.dataclass(slots=True, repr=False, eq=False)
class Message:
    """A topic, a body and named properties.

    Parameters
    ----------
    topic : str
    body : bytes-like
    flag : int32, the sender's own
    properties : dict[str, str], in insertion order; also holds TAGS, KEYS, WAIT and DELAY

    Source: RocketMQ 4.9.3 Message.
    """

    topic: str
    body: bytes | bytearray | memoryview = b""
    flag: int = dataclasses.field(default=0, kw_only=True)
    properties: dict[str, str] = dataclasses.field(default_factory=dict, kw_only=True)

    def __repr__(self) -> str:
        values = (f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self))
        return f"{type(self).__qualname__}({', '.join(values)})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = [each.name for each in dataclasses.fields(self)]
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def set_tags(self, tags: str) -> None:
        """Set the property TAGS."""
        self.properties[PROPERTY_TAGS] = tags

    def set_keys(self, keys: str | Iterable[str]) -> None:
        """Set the property KEYS; a plain str with blanks is several keys."""
        self.properties[PROPERTY_KEYS] = keys if isinstance(keys, str) else KEY_SEPARATOR.join(keys)

    def put_user_property(self, name: str, value: str) -> None:
        """Set a property of the sender's own.

        Raises
        ------
        StoreFormatError: an empty or reserved name, an empty value, or a separator in one of them.
        """
        check_properties({name: value})
        self.properties[name] = value

    def set_delay_time_level(self, level: int) -> None:
        """Set the property DELAY: levels of messageDelayLevel count from 1, 0 means no delay."""
        self.properties[PROPERTY_DELAY_TIME_LEVEL] = str(level)

    @property
    def tags(self) -> str | None:
        """str or None: the property TAGS."""
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> str | None:
        """str or None: the property KEYS, keys separated by blanks."""
        return self.properties.get(PROPERTY_KEYS)

    @property
    def delay_time_level(self) -> int:
        """int: the property DELAY as Java's parseInt reads it, 0 without.

        Raises
        ------
        MessageRefused: DELAY is not a number.
        """
        text = self.properties.get(PROPERTY_DELAY_TIME_LEVEL)
        if text is None:
            return 0
        level = parse_java_int(text)
        if level is None:
            raise MessageRefused("MESSAGE_ILLEGAL", f"DELAY is not a number: {shown(text)}")
        return level

    @property
    def wait_store_msg_ok(self) -> bool:
        """bool: whether a put waits for flush and replica; True unless WAIT says otherwise."""
        text = self.properties.get(PROPERTY_WAIT_STORE_MSG_OK)
        return True if not text else text.lower() == "true"

    @wait_store_msg_ok.setter
    def wait_store_msg_ok(self, wait: bool) -> None:
        self.properties[PROPERTY_WAIT_STORE_MSG_OK] = "true" if wait else "false"


@dataclasses.dataclass(slots=True, repr=False, eq=False)
class MessageExtBrokerInner(Message):
    """A message as DefaultMessageStore.put_message takes it.

    What is stored of the properties is `properties_string`; the map drives DELAY, WAIT and
    INNER_MULTI_DISPATCH. Numbers are int32, timestamps and offsets int64, times Unix ms.

    Source: RocketMQ 4.9.3 MessageExtBrokerInner.
    """

    queue_id: int = 0
    properties_string: str | None = dataclasses.field(default=None, kw_only=True)
    born_timestamp: int = dataclasses.field(default=0, kw_only=True)
    born_host: Host = dataclasses.field(default="127.0.0.1:0", kw_only=True)
    store_host: Host = dataclasses.field(default="127.0.0.1:10911", kw_only=True)
    sys_flag: int = dataclasses.field(default=0, kw_only=True)
    reconsume_times: int = dataclasses.field(default=0, kw_only=True)
    prepared_transaction_offset: int = dataclasses.field(default=0, kw_only=True)


@dataclasses.dataclass(slots=True, repr=False, eq=False)
class MessageExtBatch(MessageExtBrokerInner):
    """Several messages for one queue as DefaultMessageStore.put_messages takes them.

    `body` is the result of encode_messages; `properties` are added to those of every message, and
    `properties_string` is not looked at.

    Source: RocketMQ 4.9.3 MessageExtBatch.
    """


# ---- numbers ------------------------------------------------------------------------------------


def java_split(text: str) -> list[str]:
    """As Java's String.split(","): empty pieces at the end are dropped."""
    if not text:
        return [""]
    pieces = text.split(",")
    while pieces and not pieces[-1]:
        pieces.pop()
    return pieces


def parse_java_int(text: str, bits: int = 32) -> int | None:
    """The number that Java's Integer.parseInt makes of `text`, or None where it throws.

    With 64 bits as Long.parseLong. Unlike Python's int() it takes no blanks and no underscores.
    """
    if not text:
        return None
    if len(text) < 10 and text.isascii() and text.isdigit():  # the common case
        return int(text)
    digits = text[1:] if text[:1] in ("+", "-") else text
    # Java looks at UTF-16 units, so it refuses digits above U+FFFF.
    if not digits.isdecimal() or max(digits) > "\uffff":
        return None
    value = 0
    for digit in digits:
        value = value * 10 + int(digit)
        if value > 1 << (bits - 1):
            return None
    value = -value if text[0] == "-" else value
    return None if value >> (bits - 1) > 0 else value


# ---- refusals of the public API ------------------------------------------------------------------


def is_topic(text: str) -> bool:
    """Return whether a text may be a topic."""
    return _TOPIC.fullmatch(text) is not None


def check_topic(topic: Any, what: str = "a topic") -> str:
    """The text of `topic`, called `what` in errors, as an exact str.

    Raises
    ------
    StoreTypeError: it is not a str.
    StoreFormatError: it is not 1 to 127 of the characters %|a-zA-Z0-9_-
    """
    text = exact_text(what, topic)
    if not is_topic(text):
        expected = f"1 to {MAX_TOPIC_SIZE} of the characters {TOPIC_CHARACTERS}"
        raise StoreFormatError(f"{what} must be {expected}, not {shown(text)}")
    return text


_INT32_FIELDS = ("queue_id", "flag", "sys_flag", "reconsume_times")


def settle(message: Any) -> None:
    """Make every field of a message exactly what is stored, before anything of it is.

    The body and the hosts stay as they are: encoding takes each of them once.

    Raises
    ------
    StoreTypeError: it is not a MessageExtBrokerInner, or a field is of no such type.
    StoreFormatError: a number is out of its range, or the topic has no form in UTF-8.
    """
    if not isinstance(message, MessageExtBrokerInner):
        kind = type(message).__name__
        raise StoreTypeError(f"a MessageExtBrokerInner is wanted, or a MessageExtBatch, not {kind}")
    message.topic = exact_text("topic", message.topic)
    if not message.topic.isascii():
        check_utf8("topic", message.topic)
    for name in _INT32_FIELDS:
        value = getattr(message, name)
        if type(value) is not int or not INT32_MIN <= value <= INT32_MAX:
            setattr(message, name, exact_int32(name, value))
    message.born_timestamp = exact_int64("born_timestamp", message.born_timestamp)
    message.prepared_transaction_offset = exact_int64(
        "prepared_transaction_offset", message.prepared_transaction_offset
    )
    if message.properties_string is not None:
        message.properties_string = exact_text("properties_string", message.properties_string)
    message.properties = _settled_properties(message.properties)
    body_size(message.body)


def _settled_properties(properties: dict[str, str]) -> dict[str, str]:
    """A map of properties whose names and values are exact; the same one where it is so already."""
    if type(properties) is dict and all(
        type(name) is str and (value is None or type(value) is str)
        for name, value in properties.items()
    ):
        return properties
    settled: dict[str, Any] = {}
    for name, value in property_pairs("properties", properties):
        text = exact_text("a property name", name)
        settled[text] = None if value is None else exact_text(f"property {text}", value)
    return settled


def check_utf8(what: str, text: str) -> None:
    """Raise StoreFormatError for a text with a lone surrogate: it has no form in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise StoreFormatError(
            f"{what} {shown(text)}: it has a lone surrogate, so no form in UTF-8"
        ) from error


def check_text(what: str, text: Any) -> str:
    """The characters of `text`, the value or name called `what`, as an exact str.

    Raises
    ------
    StoreTypeError: it is not a str.
    StoreFormatError: it is empty, or holds U+0001, U+0002 or a lone surrogate.
    """
    exact = exact_text(what, text)
    if not exact:
        raise StoreFormatError(f"{what} must not be empty")
    if NAME_VALUE_SEPARATOR in exact or PROPERTY_SEPARATOR in exact:
        raise StoreFormatError(f"{what} must not hold U+0001 or U+0002: {shown(exact)}")
    try:
        exact.encode("utf-8")
    except UnicodeEncodeError as error:
        raise StoreFormatError(f"{what} holds a lone surrogate: {shown(exact)}") from error
    return exact


def check_tags(tags: Any, what: str = "tags") -> str:
    """The tag of a message as an exact str, one that the expression of its own text finds.

    4.9.3 takes an expression apart at ||, trims each part, and takes * for every message. So a
    message whose tag holds ||, begins or ends with a blank, or is *, is found by no expression.

    Raises
    ------
    StoreTypeError: it is not a str.
    StoreFormatError: check_text refuses it, or no expression finds it.

    Source: RocketMQ 4.9.3 FilterAPI#buildSubscriptionData.
    """
    text = check_text(what, tags)
    if TAGS_SEPARATOR in text or text.strip(JAVA_BLANKS) != text or text == ALL_TAGS:
        raise StoreFormatError(
            f"{what}: no expression finds the tag {shown(text)}: it must not hold "
            f"{TAGS_SEPARATOR}, must not begin or end with a blank, and must not be {ALL_TAGS}"
        )
    return text


def join_keys(keys: Any, what: str = "keys") -> str | None:
    """The value of KEYS; None for no keys.

    Raises
    ------
    StoreTypeError: it is neither a str nor an iterable of str.
    StoreFormatError: an element of a sequence holds a blank, or check_text refuses it.
    """
    if keys is None:
        return None
    if issubclass(type(keys), str):
        return check_text(what, keys)
    entries = entries_of(what, keys, "a str or a sequence of str")
    name = "a key" if what == "keys" else f"a key of {what}"
    found = [check_text(name, key) for key in entries]
    for key in found:
        if KEY_SEPARATOR in key:
            raise StoreFormatError(f"{name} must not hold a blank: {shown(key)}")
    return KEY_SEPARATOR.join(found) if found else None


def property_pairs(what: str, properties: Any) -> list[tuple[Any, Any]]:
    """Return the names and values of a mapping, whose `items()` is called once.

    Raises StoreTypeError: it is not a mapping, or its `items()` does not return names with values.
    """
    if type(properties) is dict:
        return list(properties.items())
    kind = type(properties).__name__
    if not issubclass(type(properties), Mapping):
        raise StoreTypeError(f"{what} must be a mapping of str to str, not {kind}")
    try:
        pairs = [(name, value) for name, value in properties.items()]
    except (TypeError, ValueError) as error:
        reason = f"items() of a {kind} must return pairs of a name and a value"
        raise StoreTypeError(f"{what}: {reason}") from error
    for name, _ in pairs:  # a dict may be made of them, so each must be hashable
        exact_text(f"a name in {what}", name)
    return pairs


def check_properties(properties: Any, what: str = "properties") -> dict[str, str]:
    """Properties of the sender's own as a dict of exact str.

    Raises
    ------
    StoreTypeError: it is not a mapping of str to str.
    StoreFormatError: a reserved name, a name that is there twice, or a name or value that
        check_text refuses.
    """
    named: dict[str, str] = {}
    for given, value in property_pairs(what, properties):
        name = check_text("a property name", given)
        if name in RESERVED_NAMES:
            raise StoreFormatError(f"the property name {name} is reserved")
        if name in named:
            raise StoreFormatError(f"the property name {name} is there twice")
        named[name] = check_text(f"property {name}", value)
    return named


def topic_too_long(size: int) -> MessageRefused:
    """The refusal of a topic of `size` bytes of UTF-8, or chars of Java."""
    return MessageRefused(
        "MESSAGE_ILLEGAL", f"the topic has {size} bytes of UTF-8, {MAX_TOPIC_SIZE} is the limit"
    )


def check_delayable(topic: str) -> int:
    """Return the bytes of a topic. Raises MessageRefused: a delayed message for this topic could
    not be delivered."""
    size = utf8_length(topic)
    if size > MAX_TOPIC_SIZE:
        raise topic_too_long(size)
    if topic == SCHEDULE_TOPIC:
        raise MessageRefused("MESSAGE_ILLEGAL", f"a message for {SCHEDULE_TOPIC} has no delay")
    if NAME_VALUE_SEPARATOR in topic or PROPERTY_SEPARATOR in topic:
        reason = f"{shown(topic)} has a separator of properties: its messages cannot be delayed"
        raise MessageRefused("MESSAGE_ILLEGAL", reason)
    return size


def real_queue_properties(topic: str, queue_id: int) -> dict[str, str]:
    """The properties that name the queue of a delayed message."""
    return {PROPERTY_REAL_TOPIC: topic, PROPERTY_REAL_QUEUE_ID: str(queue_id)}


def real_queue(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the queue to which a delayed message or a half message goes; None if none is named."""
    topic = properties.get(PROPERTY_REAL_TOPIC)
    queue_id = parse_java_int(properties.get(PROPERTY_REAL_QUEUE_ID, ""))
    if not topic or queue_id is None or queue_id < 0:
        return None
    return topic, queue_id


def batch_too_large(size: int, limit: int) -> MessageRefused:
    """The refusal of a batch whose body, or whose records, have `size` bytes or more."""
    return MessageRefused(
        "MESSAGE_ILLEGAL",
        f"the batch has {size} bytes or more, {limit} is the limit for all of its messages: "
        "maxMessageSize, and a commit log file less 8 bytes",
    )


def record_too_large(size: int, limit: int) -> MessageRefused:
    """The refusal of a record of `size` bytes where `limit` are taken."""
    return MessageRefused(
        "MESSAGE_ILLEGAL",
        f"the record has {size} bytes, {limit} is the limit: maxMessageSize, and a commit log "
        "file less 8 bytes",
    )


def utf16_length(text: str) -> int:
    """Length of a text in Java's chars."""
    return len(text) if text.isascii() else len(text) + sum(char > "\uffff" for char in text)


def utf8_length(text: str) -> int:
    """Bytes of a text in UTF-8; a lone surrogate has three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
