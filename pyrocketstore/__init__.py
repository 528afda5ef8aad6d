"""A message store engine, byte-compatible with the store of Apache RocketMQ 4.9.3."""

from pyrocketstore._message import MessageExt
from pyrocketstore._put_result import PutMessageResult
from pyrocketstore.config import BrokerRole, FlushDiskType, MessageStoreConfig
from pyrocketstore.errors import (
    DamagedMessageError,
    DiskFullError,
    MissingExtraError,
    OffsetOutOfRange,
    PutError,
    StoreCorruptionError,
    StoreError,
    StoreFormatError,
    StoreFsyncError,
    StoreIOError,
    StoreStateError,
    StoreTypeError,
    UnknownTopicError,
)
from pyrocketstore.message import (
    Message,
    MessageExtBatch,
    MessageExtBrokerInner,
    MessageRefused,
)
from pyrocketstore.message_store import DefaultMessageStore
from pyrocketstore.results import AppendMessageStatus, GetMessageStatus, PutMessageStatus
from pyrocketstore.skipped import MessageReader, SkippedMessages, SkippedRange
from pyrocketstore.store import Store, open
from pyrocketstore.store_parts import KeyHits, StoreWarning

__version__ = "0.1.0"

__all__ = [
    "AppendMessageStatus",
    "BrokerRole",
    "DamagedMessageError",
    "DefaultMessageStore",
    "DiskFullError",
    "FlushDiskType",
    "GetMessageStatus",
    "KeyHits",
    "Message",
    "MessageExt",
    "MessageExtBatch",
    "MessageExtBrokerInner",
    "MessageReader",
    "MessageRefused",
    "MessageStoreConfig",
    "MissingExtraError",
    "OffsetOutOfRange",
    "PutError",
    "PutMessageResult",
    "PutMessageStatus",
    "SkippedMessages",
    "SkippedRange",
    "Store",
    "StoreCorruptionError",
    "StoreError",
    "StoreFormatError",
    "StoreFsyncError",
    "StoreIOError",
    "StoreStateError",
    "StoreTypeError",
    "StoreWarning",
    "UnknownTopicError",
    "open",
]
