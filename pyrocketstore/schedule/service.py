"""ScheduleMessageService: deliver each delayed message when it is due."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyrocketstore.commit_log._put_result import PutMessageResult
from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.table import ConsumeQueueTable
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreError
from pyrocketstore.record.message import SCHEDULE_TOPIC, MessageExtBrokerInner
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.schedule.delay_offsets import DelayOffsets
from pyrocketstore.schedule.delivery import HALF_TOPIC, delivered_message, real_queue
from pyrocketstore.system.service_thread import ServiceThread

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

LOG = logger(__name__)

#: Pause after a put that was refused (ms). Source: 4.9.3's DELAY_FOR_A_WHILE.
RETRY_MS = 100
#: The longest sleep while a message waits (ms): the wall clock may be set forward meanwhile.
SLEEP_MAX_MS = 10_000
#: Pause of a level after an error (ms). Source: 4.9.3's DELAY_FOR_A_PERIOD.
FAILED_MS = 10_000
#: The longest wait for the dispatcher between two looks at `stopped` (s).
DISPATCH_S = 1.0
#: Messages that one level delivers before the others have their turn.
TURN = 256
#: A message that no put will ever take: another attempt cannot succeed.
_HOPELESS = {PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED}


class ScheduleMessageService(ServiceThread):
    """The thread that delivers delayed messages, and writes the offsets of their levels.

    Parameters
    ----------
    commit_log : CommitLog
    queue_table : ConsumeQueueTable
    offsets : DelayOffsets, loaded
    put : callable(message), puts a message that is due; it waits for no flush
    flush : callable(), makes everything that was put before durable
    wait_dispatched : callable(seconds), waits until everything that was put before is in its
        queues; False after that time
    interval_ms : int, how often changed offsets are written

    The thread sleeps until the first message is due, and is woken by `wakeup` after each put of a
    delayed message. The offset of a level passes a message once its delivery is in the log; the
    file has only offsets whose deliveries were flushed before.

    Threads: any may call. Source: RocketMQ 4.9.3 ScheduleMessageService.
    Differs: one thread and one timer, where 4.9.3 looks at each level ten times a second; the
    offset is that of the next message to deliver. A delayed message that can never be put is
    logged and left out, where 4.9.3 tries it forever.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queue_table: ConsumeQueueTable,
        offsets: DelayOffsets,
        put: Callable[[MessageExtBrokerInner], PutMessageResult],
        flush: Callable[[], object],
        wait_dispatched: Callable[[float], bool],
        interval_ms: int,
    ) -> None:
        super().__init__("ScheduleMessageService")
        self.offsets = offsets
        self._env: Env = commit_log.env
        self._log = commit_log
        self._table = queue_table
        self._delays = commit_log.delay_levels
        self._put = put
        self._flush = flush
        self._wait_dispatched = wait_dispatched
        self._interval_ns = interval_ms * 1_000_000
        self._persist_at_ns = 0
        self._persisting = threading.Lock()

    def has_messages(self) -> bool:
        """Return True if a level has a message to deliver."""
        return any(self._left(level) for level in self._delays)

    def _left(self, level: int) -> int:
        queue = self._table.get(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return 0
        return queue.get_max_offset_in_queue() - self.offsets.next_offset(level)

    def run(self) -> None:
        """Deliver until the thread is stopped."""
        self._persist_at_ns = self._env.monotonic_ns() + self._interval_ns
        while not self.stopped:
            self.wait_for_running(self.run_due())

    def run_due(self) -> float | None:
        """Deliver what is due; return the ms until there may be more to do, None: after a wakeup.

        Raises StoreStateError when dispatching has ended.
        """
        if not self._wait_dispatched(DISPATCH_S):
            return 0
        waits = [wait for level in self._delays if (wait := self._try(level)) is not None]
        if self.offsets.is_changed():
            left = (self._persist_at_ns - self._env.monotonic_ns()) / 1e6
            if left <= 0:
                self._persist_or_log()
                self._persist_at_ns = self._env.monotonic_ns() + self._interval_ns
            else:
                waits.append(left)
        return min(waits, default=None)

    def _persist_or_log(self) -> None:
        try:
            self.persist()
        except StoreError as error:
            LOG.error("%s: %s; the next round tries again", self.offsets.path, error)

    def persist(self) -> None:
        """Flush the deliveries so far, and write the offsets. Raises StoreError."""
        with self._persisting:
            offsets = self.offsets.offsets()
            if self.offsets.is_changed():
                self._flush()
            self.offsets.persist(offsets)

    # ---- one level ----------------------------------------------------------------------------

    def _try(self, level: int) -> float | None:
        """Deliver what is due of a level; after an error try again later."""
        try:
            return self._deliver(level)
        except StoreError as error:
            LOG.error("level %d: %s; delivery tries again after %d ms", level, error, FAILED_MS)
            return FAILED_MS

    def _deliver(self, level: int) -> float | None:
        """Deliver what is due of a level; return the ms until its next message, None without."""
        queue = self._table.get(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return None
        offset = self._corrected(level, queue)
        end = min(queue.get_max_offset_in_queue(), offset + TURN)
        while offset < end and not self.stopped:
            unit = queue.reader.unit(offset)
            if unit is not None:
                phy_offset, size, tags_code = unit
                wait = self._due_in(level, queue, phy_offset, size, tags_code)
                if wait > 0:
                    return min(wait, SLEEP_MAX_MS)
                if not self._deliver_one(level, offset, phy_offset, size):
                    return RETRY_MS
            offset += 1
            self.offsets.move(level, offset)
        return 0 if offset < queue.get_max_offset_in_queue() else None

    def _corrected(self, level: int, queue: ConsumeQueue) -> int:
        """Return the offset of a level, moved into the range of its queue."""
        offset = self.offsets.next_offset(level)
        low = queue.first_readable_offset(max(0, self._log.get_min_offset()))
        inside = min(max(offset, low), queue.get_max_offset_in_queue())
        if inside != offset:
            LOG.warning(
                "%s: level %d: offset %d is outside of its queue; delivery continues at %d",
                self.offsets.path, level, offset, inside,
            )  # fmt: skip
            self.offsets.move(level, inside)
        return inside

    def _due_in(
        self, level: int, queue: ConsumeQueue, phy_offset: int, size: int, tags_code: int
    ) -> int:
        """Return the ms until a message is due, 0 or less if it is.

        Source: RocketMQ 4.9.3 ScheduleMessageService#correctDeliverTimestamp.
        """
        delay = self._delays[level]
        due = queue.resolve_tags(tags_code)[1]
        if due is None:  # its ext unit is lost
            due = self._log.pickup_store_timestamp(phy_offset, size) + delay
        left = due - self._env.now_ms()
        return 0 if left > delay else left  # later than it can be: the clock was set back

    def _deliver_one(self, level: int, offset: int, phy_offset: int, size: int) -> bool:
        """Put the message of a unit; return False if another attempt must follow."""
        message = self._log.look_message(phy_offset, size)
        where = (level, offset, phy_offset)
        if message is None:
            LOG.error("level %d, queue offset %d: no message at byte %d of the log", *where)
            return True
        real = real_queue(message)
        if real is None or real[0] == HALF_TOPIC:
            LOG.error("level %d, queue offset %d, byte %d: no topic to deliver to", *where)
            return True
        result = self._put(delivered_message(message, *real))
        if result.status_code == 0:
            return True
        status = PutMessageStatus(result.status_code)
        if status in _HOPELESS:
            LOG.error("level %d, queue offset %d, byte %d: %s", *where, result.error or status.name)
            return True
        LOG.warning("level %d, queue offset %d, byte %d: %s", *where, status.name)
        return False
