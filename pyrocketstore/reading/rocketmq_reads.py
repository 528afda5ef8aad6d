"""Reading by queue, by key and by time, with the answers of 4.9.3."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pyrocketstore.commit_log.log import CommitLog, try_decode
from pyrocketstore.config.message_store_config import BrokerRole, MessageStoreConfig
from pyrocketstore.consume_queue.table import ConsumeQueueTable
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE
from pyrocketstore.files._mapped_file import SelectMappedBufferResult
from pyrocketstore.index.index_service import IndexService
from pyrocketstore.reading._queue_runs import UnitPull, join_views
from pyrocketstore.record import _message
from pyrocketstore.record._text import tags_code
from pyrocketstore.results import GetMessageStatus

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

#: A pull looks at this many units of the queue at least: 4.9.3's 16,000 bytes.
LEAST_UNITS = 16000 // CQ_STORE_UNIT_SIZE
#: The largest int32; larger max_msg_nums mean "all".
MAX_MSG_NUMS = 1 << 20
#: More than any limit of the settings.
MAX_BYTES = 1 << 62


class MessageFilter(Protocol):
    """Selects the messages of a pull. Source: RocketMQ 4.9.3 MessageFilter."""

    def is_matched_by_consume_queue(self, tags_code: int | None, ext: object | None) -> bool:
        """By the queue's unit; `tags_code` is None where an ext unit is lost."""
        ...

    def is_matched_by_commit_log(self, record: memoryview) -> bool:
        """By the record itself."""
        ...


class TagsFilter:
    """`TagA || TagB` by hash, as 4.9.3's DefaultMessageFilter does it."""

    def __init__(self, expression: str) -> None:
        tags = [tag.strip() for tag in expression.split("||")]
        self.all = expression.strip() in ("", "*")
        self.codes: Collection[int] = {tags_code(tag) for tag in tags if tag}

    def is_matched_by_consume_queue(self, tags_code: int | None, ext: object | None) -> bool:
        """True for a tag of the expression, or one of the same hash."""
        if self.all or tags_code is None:
            return True
        low = tags_code & 0xFFFFFFFF
        return (low - (1 << 32) if low >> 31 else low) in self.codes

    def is_matched_by_commit_log(self, record: memoryview) -> bool:
        """True: the record is not filtered."""
        return True


@dataclasses.dataclass
class GetMessageResult:
    """The result of a pull. `release()` releases the views.

    Source: RocketMQ 4.9.3 GetMessageResult.
    """

    status: GetMessageStatus
    next_begin_offset: int = 0
    min_offset: int = 0
    max_offset: int = 0
    buffer_total_size: int = 0
    msg_count_4_commercial: int = 0
    suggest_pulling_from_slave: bool = False
    message_mapped_list: list[SelectMappedBufferResult] = dataclasses.field(default_factory=list)
    message_queue_offsets: list[int] = dataclasses.field(default_factory=list)

    @property
    def message_count(self) -> int:
        """How many records."""
        return len(self.message_mapped_list)

    def messages(self) -> list[_message.MessageExt]:
        """The records decoded; they outlive release()."""
        return [
            _message.decode_record(v.byte_buffer, v.start_offset) for v in self.message_mapped_list
        ]

    def release(self) -> None:
        """Give the views back."""
        for view in self.message_mapped_list:
            view.release()
        self.message_mapped_list.clear()


class PulledRecords(NamedTuple):
    """The result of `get_records`: the records of a pull as one buffer, as a broker sends them.

    `status` is a GetMessageStatus; `next_begin_offset`, `min_offset` and `max_offset` are queue
    offsets. `buffer` (bytes) has the records back to back. Of each record, `positions` int64[n] and
    `sizes` int32[n] are bytes in the buffer, and `queue_offsets` int64[n] is its offset in the
    queue; the arrays are read-only.
    `msg_count_4_commercial` counts the messages as 4.9.3 does for its statistics, and
    `suggest_pulling_from_slave` is True if the last unit is so old that it is not in memory.
    """

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    buffer: bytes
    positions: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    queue_offsets: npt.NDArray[np.int64]
    msg_count_4_commercial: int
    suggest_pulling_from_slave: bool

    @property
    def message_count(self) -> int:
        """How many records."""
        return len(self.sizes)

    @classmethod
    def of(cls, result: GetMessageResult) -> PulledRecords:
        """Copy the records of a pull, and release its views."""
        try:
            joined = join_views(result.message_mapped_list, result.message_queue_offsets)
        except BaseException:
            result.release()
            raise
        return cls(
            result.status,
            result.next_begin_offset,
            result.min_offset,
            result.max_offset,
            *joined,
            result.msg_count_4_commercial,
            result.suggest_pulling_from_slave,
        )


@dataclasses.dataclass
class QueryMessageResult:
    """The result of a query by key. Source: RocketMQ 4.9.3 QueryMessageResult."""

    index_last_update_timestamp: int = 0
    index_last_update_phyoffset: int = 0
    buffer_total_size: int = 0
    message_mapped_list: list[SelectMappedBufferResult] = dataclasses.field(default_factory=list)

    @property
    def phy_offsets(self) -> list[int]:
        """Physical offsets, ascending."""
        return [view.start_offset for view in self.message_mapped_list]

    def release(self) -> None:
        """Give the views back."""
        for view in self.message_mapped_list:
            view.release()
        self.message_mapped_list.clear()


class StoreReads:
    """The read methods of the store, over log, queues and index.

    Threads: any.
    Source: RocketMQ 4.9.3 DefaultMessageStore.
    """

    def __init__(
        self,
        env: Env,
        config: MessageStoreConfig,
        commit_log: CommitLog,
        queues: ConsumeQueueTable,
        index_service: IndexService,
    ) -> None:
        self.env = env
        self.config = config
        self.commit_log = commit_log
        self.queues = queues
        self.index_service = index_service
        self.memory_bound = env.total_memory() * config.access_message_in_memory_max_ratio // 100
        self.pull = UnitPull(commit_log, config, self.memory_bound)

    def is_in_disk(self, phy_offset: int) -> bool:
        """True when a record is so far before the end that it is probably not in memory."""
        return self.commit_log.get_max_offset() - phy_offset > self.memory_bound

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_msg_nums: int,
        message_filter: MessageFilter | None,
        max_bytes: int | None = None,
    ) -> GetMessageResult:
        """One pull, with 4.9.3's statuses and limits, and of at most `max_bytes` of records; one
        record always fits.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getMessage.
        """
        queue = self.queues.find(topic, queue_id)
        low, high = queue.get_min_offset_in_queue(), queue.get_max_offset_in_queue()
        result = GetMessageResult(GetMessageStatus.FOUND, min_offset=low, max_offset=high)
        if not low <= offset < high:
            result.status, result.next_begin_offset = self._outside(offset, low, high)
            return result
        wanted = min(max(max_msg_nums, 0), MAX_MSG_NUMS)
        units_per_file = queue.units_per_file
        in_file = units_per_file - offset % units_per_file
        count = min(max(LEAST_UNITS, wanted), in_file, high - offset)
        limit = MAX_BYTES if max_bytes is None else min(max_bytes, MAX_BYTES)
        if not self.pull.collect(result, queue, offset, count, wanted, message_filter, limit):
            result.status = GetMessageStatus.OFFSET_FOUND_NULL
            result.next_begin_offset = self._corrected(offset, queue.roll_next_file(offset))
        return result

    def _outside(self, offset: int, low: int, high: int) -> tuple[GetMessageStatus, int]:
        """Status and next offset for an offset that is not in [low, high)."""
        if high == 0:
            return GetMessageStatus.NO_MESSAGE_IN_QUEUE, self._corrected(offset, 0)
        if offset < low:
            return GetMessageStatus.OFFSET_TOO_SMALL, self._corrected(offset, low)
        if offset == high:
            return GetMessageStatus.OFFSET_OVERFLOW_ONE, offset
        target = 0 if low == 0 else high
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY, self._corrected(offset, target)

    def _corrected(self, offset: int, target: int) -> int:
        slave = self.config.broker_role is BrokerRole.SLAVE
        return offset if slave and not self.config.offset_check_in_slave else target

    def query_message(
        self, topic: str, key: str, max_num: int, begin: int, end: int
    ) -> QueryMessageResult:
        """Records by key, ascending; hits of the key's hash, as in 4.9.3.

        Source: RocketMQ 4.9.3 DefaultMessageStore#queryMessage.
        Differs: every hit without a record is left out, not only the first, and so are removed
        messages.
        """
        result = QueryMessageResult()
        last = end
        for _ in range(3):
            found = self.index_service.query_offset(
                topic, key, max_num, begin, last, has_expired=self._has_expired
            )
            if not found.phy_offsets:
                break
            result.index_last_update_timestamp = found.index_last_update_timestamp
            result.index_last_update_phyoffset = found.index_last_update_phyoffset
            low = self.commit_log.min_offsets.of(topic)
            for at, phy_offset in enumerate(sorted(found.phy_offsets)):
                if phy_offset < low:
                    continue
                size = self.commit_log.record_size(phy_offset)
                view = self.commit_log.get_message(phy_offset, size)
                if view is None:
                    continue
                message = try_decode(view)
                if message is None:
                    view.release()
                    continue
                if at == 0:
                    last = message.store_timestamp
                result.message_mapped_list.append(view)
                result.buffer_total_size += size
            if result.message_mapped_list or last < begin:
                break
        return result

    def _has_expired(self, phy_offset: int) -> bool:
        """Return whether the owner of a read-only store has deleted the file with a byte."""
        self.commit_log.mapped_file_queue.forget_deleted()
        return phy_offset < self.commit_log.get_min_offset()

    def unit(self, topic: str, queue_id: int, cq_offset: int) -> tuple[int, int] | None:
        """(physical offset, size) of a queue offset, or None."""
        queue = self.queues.find(topic, queue_id)
        low, high = queue.get_min_offset_in_queue(), queue.get_max_offset_in_queue()
        if not low <= cq_offset < high:
            return None
        units = queue.read_units(cq_offset, 1)
        if len(units.phy_offset) == 0:
            return None
        return int(units.phy_offset[0]), int(units.size[0])

    def get_offset_in_queue_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        """Source: RocketMQ 4.9.3 ConsumeQueue#getOffsetInQueueByTime."""
        queue = self.queues.find(topic, queue_id)
        return queue.get_offset_in_queue_by_time(timestamp, self.commit_log.pickup_store_timestamp)

    def get_message_store_timestamp(self, topic: str, queue_id: int, cq_offset: int) -> int:
        """Store time (ms) of a queue offset, -1 when there is none."""
        unit = self.unit(topic, queue_id, cq_offset)
        return -1 if unit is None else self.commit_log.pickup_store_timestamp(*unit)

    def get_earliest_message_time(self, topic: str | None, queue_id: int) -> int:
        """Store time (ms) of the first message, -1 for none."""
        if topic is None:
            lowest = self.commit_log.first_record_offset()
            size = self.commit_log.record_size(lowest) if lowest >= 0 else 0
            return self.commit_log.pickup_store_timestamp(lowest, size) if size > 0 else -1
        low = self.queues.find(topic, queue_id).get_min_offset_in_queue()
        return self.get_message_store_timestamp(topic, queue_id, low)

    def get_message_ids(
        self, topic: str, queue_id: int, min_offset: int, max_offset: int, store_host: str
    ) -> dict[str, int]:
        """{offset message id: queue offset}.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getMessageIds.
        Differs: reads the offset of each unit, and stops before `max_offset`.
        """
        queue = self.queues.find(topic, queue_id)
        low = max(min_offset, queue.get_min_offset_in_queue())
        high = min(max_offset, queue.get_max_offset_in_queue())
        units = queue.read_units(low, max(0, high - low))
        return {
            _message.create_message_id(store_host, phy_offset): low + i
            for i, phy_offset in enumerate(units.phy_offset.tolist())
        }
