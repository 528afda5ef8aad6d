"""The calls of DefaultMessageStore that read, with RocketMQ's names."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from pyrocketstore.arguments.read_arguments import check_filter, queue_of, range_of, unit_of
from pyrocketstore.arguments.scalars import exact_int64, exact_text, whole_number
from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.table import ConsumeQueueTable
from pyrocketstore.dispatch._dispatcher import Dispatcher
from pyrocketstore.files._mapped_file import SelectMappedBufferResult
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.index.index_service import IndexService
from pyrocketstore.message_store.engine import Engine
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.message_store.reports import StoreReports
from pyrocketstore.message_store.stats import StoreStatsService
from pyrocketstore.reading._queue_runs import ReadCounts
from pyrocketstore.reading.rocketmq_reads import (
    GetMessageResult,
    MessageFilter,
    PulledRecords,
    QueryMessageResult,
    StoreReads,
)
from pyrocketstore.record._message import MessageExt
from pyrocketstore.recovery.recovery_plan import RecoveryPlan
from pyrocketstore.system.env import Env

if TYPE_CHECKING:
    from pyrocketstore.message_store.store_stats import StoreStats


def part(path: str) -> Any:
    """Return the value in a class of an attribute that its object has from its `engine`."""
    return property(operator.attrgetter(f"engine.{path}"))


class ReadCalls:
    """Reads messages, offsets and figures; DefaultMessageStore is its subclass."""

    engine: Engine

    #: the files; `refresh` may replace the object
    files: LoadedFiles = part("files")
    #: the settings; a reload takes the sizes of files from the files
    config: MessageStoreConfig = part("files.config")
    #: the plan of the last recovery, None before it
    plan: RecoveryPlan | None = part("files.plan")
    commit_log: CommitLog = part("files.commit_log")
    queue_table: ConsumeQueueTable = part("files.queue_table")
    index_service: IndexService = part("files.index_service")
    #: True when messages are indexed and the index can be read
    index_enabled: bool = part("files.index_enabled")
    checkpoint: StoreCheckpoint = part("files.checkpoint")
    dispatcher: Dispatcher = part("files.dispatcher")
    reads: StoreReads = part("files.reads")
    #: the reasons why the files cannot be written
    running_flags: RunningFlags = part("files.running_flags")
    env: Env = part("env")
    reports: StoreReports = part("reports")
    stats_service: StoreStatsService = part("stats_service")
    read_counts: ReadCounts = part("read_counts")

    def consume_queues(self) -> list[ConsumeQueue]:
        """Return every queue that is known."""
        return self.engine.files.consume_queues()

    # ---- the MessageStore interface --------------------------------------------------------------

    def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_msg_nums: int,
        message_filter: MessageFilter | None = None,
    ) -> GetMessageResult | None:
        """Return messages from a queue; None when the store is shut down or not readable.

        Where the message at byte 0 of the log has expired, bytes of the first log file that exists
        are returned in its place, as in 4.9.3: they are no record.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getMessage.
        """
        return self._pull(group, topic, queue_id, offset, max_msg_nums, message_filter, None)

    def get_records(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_msg_nums: int,
        max_bytes: int | None = None,
        message_filter: MessageFilter | None = None,
    ) -> PulledRecords | None:
        """Return the records of a pull as one buffer, the body of a broker's answer.

        The arguments, statuses and limits are those of `get_message`. The records are copied once,
        without the GIL; nothing needs to be released.

        Parameters
        ----------
        max_bytes : int or None, bytes: a further limit of the records; the first one always fits

        Returns PulledRecords; None when the store is shut down or not readable.

        Raises StoreTypeError, StoreFormatError, StoreIOError. Threads: any.
        Source: RocketMQ 4.9.3 PullMessageProcessor#readGetMessageResult.
        """
        limit = None if max_bytes is None else exact_int64("max_bytes", max_bytes)
        result = self._pull(group, topic, queue_id, offset, max_msg_nums, message_filter, limit)
        return None if result is None else PulledRecords.of(result)

    def _pull(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_msg_nums: int,
        message_filter: MessageFilter | None,
        max_bytes: int | None,
    ) -> GetMessageResult | None:
        engine = self.engine
        topic, queue_id = queue_of(topic, queue_id)
        offset, max_msg_nums = exact_int64("offset", offset), whole_number("count", max_msg_nums)
        check_filter(message_filter)
        if not self._is_readable():
            return None
        began = engine.env.monotonic_ms()
        result = engine.files.reads.get_message(
            topic, queue_id, offset, max_msg_nums, message_filter, max_bytes
        )
        if not engine.life.is_loaded:  # closed meanwhile: messages may be passed over
            result.release()
            return None
        engine.read_counts.note(result.message_count, engine.env.monotonic_ms() - began)
        if engine.broker_stats is not None and result.message_count:
            count, size = result.message_count, result.buffer_total_size
            engine.broker_stats.note_get(group, topic, queue_id, count, size)
        return result

    def _is_readable(self) -> bool:
        engine = self.engine
        return engine.life.is_loaded and engine.files.running_flags.is_readable()

    def query_message(
        self, topic: str, key: str, max_num: int, begin: int, end: int
    ) -> QueryMessageResult:
        """Return messages by index key, at most `max_msgs_num_batch`, ascending by physical offset.

        Source: RocketMQ 4.9.3 DefaultMessageStore#queryMessage.
        """
        topic, key = exact_text("topic", topic), exact_text("key", key)
        count = whole_number("max_num", max_num)
        since, until = exact_int64("begin", begin), exact_int64("end", end)
        return self.engine.files.reads.query_message(topic, key, count, since, until)

    def look_message_by_offset(self, phy_offset: int, size: int = 0) -> MessageExt | None:
        """Return the message at a physical offset, or None."""
        return self.engine.files.commit_log.look_message(*range_of(phy_offset, size))

    def select_one_message_by_offset(
        self, phy_offset: int, size: int = 0
    ) -> SelectMappedBufferResult | None:
        """Return the record at a physical offset as bytes, or None."""
        phy_offset, size = range_of(phy_offset, size)
        size = size or self.engine.files.commit_log.record_size(phy_offset)
        return self.engine.files.commit_log.get_message(phy_offset, size)

    def get_max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the end of a queue; 0 for an unknown queue."""
        return self.engine.files.queue_table.find(
            *queue_of(topic, queue_id)
        ).get_max_offset_in_queue()

    def get_min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the first offset of a queue as 4.9.3 does (stale for an expired queue)."""
        return self.engine.files.queue_table.find(
            *queue_of(topic, queue_id)
        ).get_min_offset_in_queue()

    def get_commit_log_offset_in_queue(self, topic: str, queue_id: int, cq_offset: int) -> int:
        """Return the physical offset of a queue offset, 0 without one."""
        unit = self.engine.files.reads.unit(*unit_of(topic, queue_id, cq_offset))
        return 0 if unit is None else unit[0]

    def get_offset_in_queue_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        """Return the queue offset near a store time (ms), as 4.9.3 finds it.

        The binary search requires store times that rise with the queue offset. After the clock was
        set back, it can return a message of another time.
        """
        time_ms = exact_int64("timestamp", timestamp)
        return self.engine.files.reads.get_offset_in_queue_by_time(
            *queue_of(topic, queue_id), time_ms
        )

    def get_message_store_time_stamp(self, topic: str, queue_id: int, cq_offset: int) -> int:
        """Return the store time (ms) of a queue offset, -1 without one."""
        return self.engine.files.reads.get_message_store_timestamp(
            *unit_of(topic, queue_id, cq_offset)
        )

    def get_earliest_message_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Return the store time (ms) of the first message of a queue, or of the store; -1 without.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getEarliestMessageTime.
        Differs: of the whole store: right for a log of less than 8 MiB too.
        """
        if topic is not None:
            topic, queue_id = queue_of(topic, queue_id)
        return self.engine.files.reads.get_earliest_message_time(topic, queue_id)

    def get_message_total_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the number of messages in a queue, -1 for an unknown queue."""
        queue = self.engine.files.queue_table.get(*queue_of(topic, queue_id))
        return -1 if queue is None else queue.get_message_total_in_queue()

    def check_in_disk_by_consume_offset(self, topic: str, queue_id: int, cq_offset: int) -> bool:
        """Return True when that message is probably not in memory any more."""
        unit = self.engine.files.reads.unit(*unit_of(topic, queue_id, cq_offset))
        return unit is not None and self.engine.files.reads.is_in_disk(unit[0])

    def get_max_phy_offset(self) -> int:
        """Return the physical offset after the last record."""
        return self.engine.files.commit_log.get_max_offset()

    def get_min_phy_offset(self) -> int:
        """Return the first physical offset, -1 for an empty log."""
        return self.engine.files.commit_log.get_min_offset()

    def get_commit_log_data(self, phy_offset: int) -> SelectMappedBufferResult | None:
        """Return the bytes from `phy_offset` to the end of its file, for replication."""
        phy_offset = exact_int64("phy_offset", phy_offset)
        return (
            self.engine.files.commit_log.get_data(phy_offset)
            if self.engine.life.is_loaded
            else None
        )

    def get_message_ids(
        self, topic: str, queue_id: int, min_offset: int, max_offset: int, store_host: str
    ) -> dict[str, int]:
        """Return {offset message id: queue offset} over [min_offset, max_offset)."""
        topic, queue_id = queue_of(topic, queue_id)
        low, high = exact_int64("min_offset", min_offset), exact_int64("max_offset", max_offset)
        return self.engine.files.reads.get_message_ids(topic, queue_id, low, high, store_host)

    def get_consume_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None; an unknown queue is not made."""
        return self.engine.files.queue_table.get(*queue_of(topic, queue_id))

    def find_consume_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue; an unknown queue is returned as an empty one."""
        return self.engine.files.queue_table.find(*queue_of(topic, queue_id))

    def get_consume_queue_table(self) -> dict[str, dict[int, ConsumeQueue]]:
        """Return {topic: {queue id: queue}}."""
        return self.engine.files.queue_table.by_topic()

    def now(self) -> int:
        """Return the time of the store's clock, Unix ms."""
        return self.engine.env.now_ms()

    def stats(self) -> StoreStats:
        """Return the figures of this moment."""
        return self.engine.reports.stats()

    def get_runtime_info(self) -> dict[str, str]:
        """Return 4.9.3's map of figures, with its keys and texts.

        Source: RocketMQ 4.9.3 DefaultMessageStore#getRuntimeInfo.
        Differs: also in the first second, when 4.9.3 throws.
        """
        return self.engine.reports.runtime_info()

    def get_single_put_message_topic_times_total(self, topic: str) -> int:
        """Return how many messages were put to a topic since the store was opened.

        Delayed messages count for SCHEDULE_TOPIC_XXXX, and their deliveries for the real topic.

        Source: RocketMQ 4.9.3 StoreStatsService#getSinglePutMessageTopicTimesTotal.
        """
        return self.engine.files.commit_log.core.put_totals(exact_text("topic", topic))[0]

    def get_single_put_message_topic_size_total(self, topic: str) -> int:
        """Return the bytes of these messages in the log.

        Source: RocketMQ 4.9.3 StoreStatsService#getSinglePutMessageTopicSizeTotal.
        """
        return self.engine.files.commit_log.core.put_totals(exact_text("topic", topic))[1]

    def get_running_data_info(self) -> str:
        """Return 4.9.3's figures of puts and gets as lines of text."""
        return self.engine.stats_service.running_data_info()
