"""A message store engine, byte-compatible with the store of Apache RocketMQ 4.9.3.

    import pyrocketstore

    with pyrocketstore.open("data/store") as store:
        result = store.put("orders", b"paid", tags="TagA", keys="order-7")
        print(result.status.name, result.queue_offset, result.phy_offset, result.msg_id)  # PUT_OK

        for message in store.read("orders", queue_id=0, start=0):
            print(message.queue_offset, message.body, message.tags)

        store.query("orders", "order-7")  # the newest messages with that key
        store.get(result.msg_id)  # by message id or physical offset

`help(pyrocketstore.Store)` describes the methods, `help(pyrocketstore.open)` the arguments, and
`help(pyrocketstore.MessageStoreConfig)` the settings.

The public names:

    open, Store                          a store directory: put, read, query, verify
    PutMessageResult                     the result of a put
    MessageExt                           a stored message
    MessageReader, FollowedMessages      the iterators of `Store.read` and `Store.follow`
    SkippedMessages, SkippedRange        the messages that they have skipped
    KeyHits, ReplicaState                the results of `query_many`, of `Store.replication`
    Sql92Filter                          a filter of properties, for `where=`
    Consumer, Transaction                a member of a group; a message not committed

    StoreError                           the base of all errors:
        StoreStateError                  closed, read-only, already open, forked
        StoreIOError, StoreFsyncError    a system call failed
        StoreCorruptionError,
        DamagedMessageError              damaged files, damaged messages
        StoreFormatError, StoreTypeError an argument that cannot be stored
        PutError, MessageRefused         a put that did not succeed
        DiskFullError                    a disk is full
        OffsetOutOfRange,
        UnknownTopicError                a read outside of the stored data
        MessagesRemovedError             messages expired before a consumer had read them
        ReplicationError                 the log of a broker cannot be copied
        MissingExtraError                an optional dependency is not installed
    StoreWarning                         a warning about a store or its settings

    DefaultMessageStore                  the engine, with RocketMQ's own methods
    Message, MessageExtBrokerInner,
    MessageExtBatch                      the messages that its puts accept
    PutResults, PulledRecords            the results of `put_encoded` and `get_records`
    encode_messages, decode_record       encode a batch body; decode a record
    properties_to_string,
    string_to_properties                 encode and decode the properties text of a record
    PutMessageStatus, GetMessageStatus,
    AppendMessageStatus                  its statuses
    MessageStoreConfig, FlushDiskType,
    BrokerRole                           its settings
    BrokerStatsManager                   its figures by topic and group
    pyrocketstore.low_level              the classes of its files

Each name is imported at its first use. Use them before a change of the user or the root directory.
"""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING, Any

# Now, since a signal handler that raises in the middle of an import can leave it locked.
from pyrocketstore.system.signal_shield import imported as _imported

if TYPE_CHECKING:  # `as`: a type checker takes the name as public
    from pyrocketstore.commit_log._puts import PutMessageResult as PutMessageResult
    from pyrocketstore.config.message_store_config import BrokerRole as BrokerRole
    from pyrocketstore.config.message_store_config import FlushDiskType as FlushDiskType
    from pyrocketstore.config.message_store_config import MessageStoreConfig as MessageStoreConfig
    from pyrocketstore.consumer.consumer import Consumer as Consumer
    from pyrocketstore.errors import DamagedMessageError as DamagedMessageError
    from pyrocketstore.errors import DiskFullError as DiskFullError
    from pyrocketstore.errors import MessagesRemovedError as MessagesRemovedError
    from pyrocketstore.errors import MissingExtraError as MissingExtraError
    from pyrocketstore.errors import OffsetOutOfRange as OffsetOutOfRange
    from pyrocketstore.errors import PutError as PutError
    from pyrocketstore.errors import ReplicationError as ReplicationError
    from pyrocketstore.errors import StoreCorruptionError as StoreCorruptionError
    from pyrocketstore.errors import StoreError as StoreError
    from pyrocketstore.errors import StoreFormatError as StoreFormatError
    from pyrocketstore.errors import StoreFsyncError as StoreFsyncError
    from pyrocketstore.errors import StoreIOError as StoreIOError
    from pyrocketstore.errors import StoreStateError as StoreStateError
    from pyrocketstore.errors import StoreTypeError as StoreTypeError
    from pyrocketstore.errors import StoreWarning as StoreWarning
    from pyrocketstore.errors import UnknownTopicError as UnknownTopicError
    from pyrocketstore.filter.sql92 import Sql92Filter as Sql92Filter
    from pyrocketstore.ha.ha_client import ReplicaState as ReplicaState
    from pyrocketstore.message_store.broker_stats import BrokerStatsManager as BrokerStatsManager
    from pyrocketstore.message_store.default_message_store import (
        DefaultMessageStore as DefaultMessageStore,
    )
    from pyrocketstore.message_store.encoded_puts import PutResults as PutResults
    from pyrocketstore.reading.rocketmq_reads import PulledRecords as PulledRecords
    from pyrocketstore.reading.skipped import MessageReader as MessageReader
    from pyrocketstore.reading.skipped import SkippedMessages as SkippedMessages
    from pyrocketstore.reading.skipped import SkippedRange as SkippedRange
    from pyrocketstore.record._message import MessageExt as MessageExt
    from pyrocketstore.record._message import decode_record as decode_record
    from pyrocketstore.record._message import encode_messages as encode_messages
    from pyrocketstore.record._message import properties_to_string as properties_to_string
    from pyrocketstore.record._message import string_to_properties as string_to_properties
    from pyrocketstore.record.message import Message as Message
    from pyrocketstore.record.message import MessageExtBatch as MessageExtBatch
    from pyrocketstore.record.message import MessageExtBrokerInner as MessageExtBrokerInner
    from pyrocketstore.record.message import MessageRefused as MessageRefused
    from pyrocketstore.results import AppendMessageStatus as AppendMessageStatus
    from pyrocketstore.results import GetMessageStatus as GetMessageStatus
    from pyrocketstore.results import PutMessageStatus as PutMessageStatus
    from pyrocketstore.store.api import Store as Store
    from pyrocketstore.store.api import open as open
    from pyrocketstore.store.following import FollowedMessages as FollowedMessages
    from pyrocketstore.store.rows import KeyHits as KeyHits
    from pyrocketstore.store.transactions import Transaction as Transaction

__version__ = "0.1.0"

#: The public names, by the module that has them.
_NAMES = {
    "commit_log._puts": "PutMessageResult",
    "config.message_store_config": "BrokerRole FlushDiskType MessageStoreConfig",
    "consumer.consumer": "Consumer",
    "filter.sql92": "Sql92Filter",
    "ha.ha_client": "ReplicaState",
    "errors": """
        DamagedMessageError DiskFullError MessagesRemovedError MissingExtraError OffsetOutOfRange
        PutError ReplicationError
        StoreCorruptionError StoreError StoreFormatError StoreFsyncError StoreIOError
        StoreStateError StoreTypeError StoreWarning UnknownTopicError
    """,
    "message_store.broker_stats": "BrokerStatsManager",
    "message_store.default_message_store": "DefaultMessageStore",
    "message_store.encoded_puts": "PutResults",
    "reading.rocketmq_reads": "PulledRecords",
    "reading.skipped": "MessageReader SkippedMessages SkippedRange",
    "record._message": """
        MessageExt decode_record encode_messages properties_to_string string_to_properties
    """,
    "record.message": "Message MessageExtBatch MessageExtBrokerInner MessageRefused",
    "results": "AppendMessageStatus GetMessageStatus PutMessageStatus",
    "store.api": "Store open",
    "store.following": "FollowedMessages",
    "store.rows": "KeyHits",
    "store.transactions": "Transaction",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


class _PublicNames(list[str]):
    """`__all__`, which looks empty to pydoc: it would print each class in full."""

    def __contains__(self, name: object) -> bool:
        is_pydoc = sys._getframe(1).f_code.co_name == "visiblename"
        return not is_pydoc and super().__contains__(name)


if not TYPE_CHECKING:  # with a `__getattr__`, a type checker would accept every name
    __all__ = _PublicNames(sorted(_MODULES))

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(_imported(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


@atexit.register
def _close_at_exit() -> None:
    """Close the stores that are open.

    Registered by the import of the package, so that exit handlers of its users run before.
    """
    if "pyrocketstore.message_store.open_stores" in sys.modules:
        from pyrocketstore.message_store.open_stores import close_at_exit

        close_at_exit()


def __dir__() -> list[str]:
    return [*_MODULES, "__version__"]
