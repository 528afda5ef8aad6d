"""Status values: those of the compiled code, and the outcomes that RocketMQ 4.9.3 reports as
values, in its own order and spelling."""

from __future__ import annotations

import dataclasses
import enum


class Status(enum.IntEnum):
    """Outcome of a compiled function: `rs_status` of csrc/rocketstore.h, in the same numbers."""

    OK = 0
    # outcomes of a scan of the commit log
    BLANK = 1
    END = 2
    TORN = 3
    BAD_MAGIC = 4
    BAD_CRC = 5
    BAD_SIZE = 6
    BAD_OFFSET = 7
    BAD_PROPERTIES = 8
    OTHER_QUEUE = 9
    # outcomes of an append, a queue or an index
    END_OF_FILE = 20
    NEED_FILE = 21
    REPEAT = 22
    FULL = 23
    NEED_PYTHON = 24
    RETRY = 25
    IO_ERROR = 26
    NO_MEMORY = 27
    TOO_LARGE = 28
    CLOSED = 29
    BUSY = 30


class _Outcome(enum.IntEnum):
    """A status of RocketMQ whose text is its name."""

    def __str__(self) -> str:
        return self.name


class PutMessageStatus(_Outcome):
    """Outcome of a put. Source: RocketMQ 4.9.3 PutMessageStatus."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3
    SERVICE_NOT_AVAILABLE = 4
    CREATE_MAPEDFILE_FAILED = 5
    MESSAGE_ILLEGAL = 6
    PROPERTIES_SIZE_EXCEEDED = 7
    OS_PAGECACHE_BUSY = 8
    UNKNOWN_ERROR = 9
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = 10


#: Statuses of messages that are in the log.
STORED_STATUSES = frozenset(
    {
        PutMessageStatus.PUT_OK,
        PutMessageStatus.FLUSH_DISK_TIMEOUT,
        PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
        PutMessageStatus.SLAVE_NOT_AVAILABLE,
    }
)


class AppendMessageStatus(_Outcome):
    """Outcome of an append to the log. Source: RocketMQ 4.9.3 AppendMessageStatus."""

    PUT_OK = 0
    END_OF_FILE = 1
    MESSAGE_SIZE_EXCEEDED = 2
    PROPERTIES_SIZE_EXCEEDED = 3
    UNKNOWN_ERROR = 4


class GetMessageStatus(_Outcome):
    """Outcome of a pull. Source: RocketMQ 4.9.3 GetMessageStatus."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8


@dataclasses.dataclass(slots=True)
class DispatchRequest:
    """One record of the log as the dispatchers see it.

    `keys` is "" for a record without properties and None for one without KEYS, as in Java; offsets
    and sizes are bytes, `consume_queue_offset` is the record's queue offset, times are Unix ms.

    Source: RocketMQ 4.9.3 DispatchRequest.
    """

    topic: str
    queue_id: int
    commit_log_offset: int
    msg_size: int
    tags_code: int
    store_timestamp: int
    consume_queue_offset: int
    keys: str | None = ""
    uniq_key: str | None = None
    sys_flag: int = 0
    prepared_transaction_offset: int = 0
    properties_map: dict[str, str] | None = None
    bit_map: bytes | None = None
