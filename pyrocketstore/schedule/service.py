"""ScheduleMessageService: deliver each delayed message when it is due."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pyrocketstore.commit_log._puts import PutMessageResult
from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.table import ConsumeQueueTable
from pyrocketstore.consume_queue.units import PRE_BLANK
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreError, StoreFormatError
from pyrocketstore.record.message import SCHEDULE_TOPIC, MessageExtBrokerInner, real_queue
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.schedule.delay_offsets import DelayOffsets
from pyrocketstore.schedule.delivery import delivered_message, due_time, refusal
from pyrocketstore.system.service_thread import ServiceThread

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

LOG = logger(__name__)

#: Pause after a put that was refused (ms), doubled with each refusal up to FAILED_MS.
#: Source: 4.9.3's DELAY_FOR_A_WHILE.
RETRY_MS = 100
#: The longest sleep while a message waits (ms): the wall clock may be set forward meanwhile.
SLEEP_MAX_MS = 10_000
#: Pause of a level after an error (ms). Source: 4.9.3's DELAY_FOR_A_PERIOD.
FAILED_MS = 10_000
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
    ends : callable(), True once the store accepts no more puts because it is closed
    lacks_units : callable(), True while units that could not be written are missing from queues
    interval_ms : int, how often changed offsets are written

    The thread sleeps until the first message is due. The dispatcher signals `event` once a new
    delayed message is in its queue. The offset of a level passes a message once its delivery is in
    the log; the file has only offsets whose deliveries were flushed before.

    Threads: any may call. Source: RocketMQ 4.9.3 ScheduleMessageService.
    Differs: one thread and one timer, where 4.9.3 looks at each level ten times a second; the
    offset is that of the next message to deliver. A delayed message that can never be put is
    logged and left out, where 4.9.3 tries it forever. Levels that messageDelayLevel has no longer
    are delivered too.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queue_table: ConsumeQueueTable,
        offsets: DelayOffsets,
        put: Callable[[MessageExtBrokerInner], PutMessageResult],
        flush: Callable[[], object],
        ends: Callable[[], bool],
        lacks_units: Callable[[], bool],
        interval_ms: int,
    ) -> None:
        super().__init__("ScheduleMessageService")
        self.offsets = offsets
        self._env: Env = commit_log.env
        self._log = commit_log
        self._table = queue_table
        self._put = put
        self._flush = flush
        self._ends = ends
        self._lacks_units = lacks_units
        self._interval_ns = interval_ms * 1_000_000
        self._persist_at_ns = 0
        self._persisting = threading.Lock()
        #: pause (ms) after the last refusal of each level whose put was refused
        self._refused: dict[int, float] = {}

    def has_messages(self) -> bool:
        """Return True if a level has a message to deliver."""
        return any(
            queue.get_max_offset_in_queue() > self.offsets.next_offset(level)
            for level, queue in self._queues()
        )

    def _queues(self) -> list[tuple[int, ConsumeQueue]]:
        """Return the levels and their queues. A level may be gone from the setting."""
        queues = sorted(self._table.of_topic(SCHEDULE_TOPIC).items())
        return [(queue_id + 1, queue) for queue_id, queue in queues if queue_id >= 0]

    def correct_offsets(self) -> None:
        """Move each offset into the range of its queue; call before the first put.

        Otherwise an offset behind the end of a queue, which was removed or cut, would skip the
        messages that the queue gets next. Where units could not be written the end of a queue is
        not known, and all offsets stay.
        Durability: an offset that was lowered is so on return. Raises StoreError.
        Source: RocketMQ 4.9.3 ScheduleMessageService#correctDelayOffset.
        """
        if self._lacks_units():
            return
        queues, before = dict(self._queues()), self.offsets.offsets()
        for level, offset in before.items():
            if level in queues:
                self._corrected(level, queues[level])
            elif offset:
                self._move_inside(level, 0)
        if any(self.offsets.next_offset(level) < offset for level, offset in before.items()):
            self.offsets.persist(self.offsets.offsets())

    def run(self) -> None:
        """Deliver until the thread is stopped."""
        self._persist_at_ns = self._env.monotonic_ns() + self._interval_ns
        while not self.stopped:
            self.wait_for_running(self.run_due())

    def run_due(self) -> float | None:
        """Deliver what is due; return the ms until there may be more to do, or None."""
        waits = [wait for one in self._queues() if (wait := self._try(*one)) is not None]
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

    def _try(self, level: int, queue: ConsumeQueue) -> float | None:
        """Deliver what is due of a level; after an error try again later."""
        if self._lacks_units():
            return FAILED_MS
        try:
            return self._deliver(level, queue)
        except (StoreError, MemoryError) as error:
            if self._ends():
                return None
            LOG.error("level %d: %s; delivery tries again after %d ms", level, error, FAILED_MS)
            return FAILED_MS

    def _deliver(self, level: int, queue: ConsumeQueue) -> float | None:
        """Deliver what is due of a level; return the ms until its next message, None without."""
        offset = self._corrected(level, queue)
        units = _units(queue, offset, min(queue.get_max_offset_in_queue(), offset + TURN))
        for unit in units:
            if self._ends():
                return None
            if unit is not None and unit != PRE_BLANK:
                phy_offset, size, _ = unit
                now = self._env.now_ms()
                wait = due_time(self._log, level, queue, unit, now) - now
                if wait > 0:
                    return min(wait, SLEEP_MAX_MS)
                status = self._deliver_one(level, offset, phy_offset, size)
                if status is not PutMessageStatus.PUT_OK:
                    return self._pause(level, offset, status)
            offset += 1
            self.offsets.move(level, offset)
        return 0 if offset < queue.get_max_offset_in_queue() else None

    def _pause(self, level: int, offset: int, status: PutMessageStatus) -> float:
        """Return the ms until the next attempt after a refused put, and log the first refusal."""
        pause = self._refused.get(level)
        self._refused[level] = RETRY_MS if pause is None else min(2 * pause, FAILED_MS)
        if pause is None and not self._ends():
            text = "level %d, queue offset %d: %s; delivery tries again"
            LOG.warning(text, level, offset, status.name)
        return self._refused[level]

    def _corrected(self, level: int, queue: ConsumeQueue) -> int:
        """Return the offset of a level, moved into the range of its queue."""
        offset = self.offsets.next_offset(level)
        low = queue.first_readable_offset(max(0, self._log.get_min_offset()))
        inside = min(max(offset, low), queue.get_max_offset_in_queue())
        if inside != offset:
            self._move_inside(level, inside)
        return inside

    def _move_inside(self, level: int, inside: int) -> None:
        LOG.warning(
            "%s: level %d: offset %d is outside of its queue; delivery continues at %d",
            self.offsets.path, level, self.offsets.next_offset(level), inside,
        )  # fmt: skip
        self.offsets.move(level, inside)

    def _deliver_one(self, level: int, offset: int, phy_offset: int, size: int) -> PutMessageStatus:
        """Put the message of a unit; return PUT_OK also for one that no attempt can deliver."""
        message = self._log.look_message(phy_offset, size)
        real = None if message is None else real_queue(message.properties)
        why = "no message there" if message is None else refusal(message, real, level, offset)
        if message is not None and real is not None and not why:
            status, why = self._put_status(delivered_message(message, *real))
            if status is PutMessageStatus.PUT_OK:
                self._refused.pop(level, None)
            if status not in _HOPELESS:
                return status
        LOG.error(
            "level %d, queue offset %d, byte %d of the log: %s; it is not delivered",
            level, offset, phy_offset, why,
        )  # fmt: skip
        return PutMessageStatus.PUT_OK

    def _put_status(self, message: MessageExtBrokerInner) -> tuple[PutMessageStatus, str]:
        """Put a message; return the status and its reason."""
        try:
            result = self._put(message)
        except StoreFormatError as error:  # a damaged property names a queue that cannot be
            return PutMessageStatus.MESSAGE_ILLEGAL, str(error)
        status = PutMessageStatus(result.status_code)
        return status, str(result.error or status.name)


def _units(queue: ConsumeQueue, start: int, stop: int) -> Iterable[tuple[int, int, int] | None]:
    """Return the units of the queue offsets [start, stop), or the first ones; None if its file is
    missing. Raises StoreIOError."""
    units = queue.reader.columns(start, stop - start)
    if start < stop and not len(units.size):
        return (None,)
    return zip(*(column.tolist() for column in units), strict=True)
