"""The rules for a message that a put accepts: its texts, and the largest size of its record.

`Store.put` checks its arguments by these rules, and Spark's executors check rows by the same rules
before any row is put. Rules of single values are in `record/message.py` and
`arguments/scalars.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from pyrocketstore.arguments.scalars import entries_of, exact_text
from pyrocketstore.commit_log.log import BARE_PROPERTIES, largest_record
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.display import shown
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.record import _message
from pyrocketstore.record.message import (
    LMQ_PREFIX,
    MAX_PROPERTIES_SIZE,
    MAX_TOPIC_SIZE,
    PROPERTIES_TOO_LONG,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    TOPIC_CHARACTERS,
    MessageRefused,
    check_properties,
    check_tags,
    is_topic,
    java_split,
    join_keys,
    record_too_large,
    utf8_length,
)

#: Bytes of a record without topic, body and properties and with two IPv4 hosts, and the additional
#: bytes of an IPv6 host.
_RECORD_SIZE_MIN = 91
_IPV6_EXTRA = 12
#: Characters of the greatest queue offset and a comma.
_OFFSET_SIZE = 20
#: Characters of the longest name of a light queue; with the prefix it is still a valid topic.
_LIGHT_QUEUE_SIZE = MAX_TOPIC_SIZE - len(LMQ_PREFIX)


def named_properties(tags: Any, keys: Any, properties: Any) -> dict[str, str]:
    """Return the properties of a message as {name: exact str}, including TAGS and KEYS.

    Parameters
    ----------
    tags, keys, properties : as for `Store.put`

    Raises StoreTypeError, StoreFormatError: a value that every put refuses.
    """
    named: dict[str, str] = {}
    if tags is not None:
        named[PROPERTY_TAGS] = check_tags(tags)
    joined = join_keys(keys)
    if joined is not None:
        named[PROPERTY_KEYS] = joined
    if properties is not None:
        named.update(check_properties(properties))
    return named


def properties_text(named: Mapping[str, str]) -> str:
    """Return the text of properties in a record. Raises MessageRefused: the text is too long."""
    text = _message.properties_to_string(named)
    if utf8_length(text) > MAX_PROPERTIES_SIZE:
        raise MessageRefused("PROPERTIES_SIZE_EXCEEDED", PROPERTIES_TOO_LONG)
    return text


def light_queue_names(names: Any) -> list[str]:
    """Return the topics of light queues for the names that a caller passes.

    Raises StoreTypeError: not a sequence of str. StoreFormatError: a name is not a valid topic, or
    occurs twice.
    """
    topics = []
    for number, name in enumerate(entries_of("light_queues", names, "a sequence of str")):
        text = name if type(name) is str else exact_text(f"light_queues[{number}]", name)
        if text.startswith(LMQ_PREFIX):
            reason = f"give the name without {LMQ_PREFIX}"
            raise StoreFormatError(f"light_queues[{number}] {shown(text)}: {reason}")
        if not text or not is_topic(LMQ_PREFIX + text):
            reason = f"must be 1 to {_LIGHT_QUEUE_SIZE} of the characters {TOPIC_CHARACTERS}"
            raise StoreFormatError(f"light_queues[{number}] {shown(text)}: {reason}")
        topics.append(LMQ_PREFIX + text)
    if len(set(topics)) < len(topics):
        raise StoreFormatError("light_queues: a name comes twice")
    return topics


class RecordLimits(NamedTuple):
    """The largest size of a record in a store, and the size of its parts.

    Parameters
    ----------
    largest : int, bytes of a whole record
    fixed : int, bytes of a record without topic, body and properties
    bare : int, bytes of the properties that the store adds to a message without properties
    multi_dispatch : bool, the store adds queue offsets to messages that name further queues
    """

    largest: int
    fixed: int
    bare: int
    multi_dispatch: bool

    @classmethod
    def of(cls, config: MessageStoreConfig) -> Self:
        """Return the limits of a store with these settings; each record has the store's host."""
        return cls(
            largest=largest_record(config),
            fixed=_RECORD_SIZE_MIN + (2 * _IPV6_EXTRA if config.store_host[0] == "[" else 0),
            bare=len(BARE_PROPERTIES) if config.enable_multi_dispatch else 0,
            multi_dispatch=config.enable_multi_dispatch,
        )

    def check(self, topic: str, body_size: int, named: Mapping[str, str]) -> None:
        """Raise MessageRefused if the properties or the record of a message are too long.

        Parameters
        ----------
        topic : str, the result of `check_topic`
        body_size : int, bytes
        named : the result of `named_properties`
        """
        size = utf8_length(properties_text(named)) or self.bare
        further = named.get(PROPERTY_INNER_MULTI_DISPATCH, "").strip()
        if self.multi_dispatch and further:
            size += len(PROPERTY_INNER_MULTI_QUEUE_OFFSET) + 2
            size += _OFFSET_SIZE * len(java_split(further))
            if size > MAX_PROPERTIES_SIZE:
                raise MessageRefused("PROPERTIES_SIZE_EXCEEDED", PROPERTIES_TOO_LONG)
        size += self.fixed + len(topic) + body_size
        if size > self.largest:
            raise record_too_large(size, self.largest)
