"""ReputMessageService: dispatches appended records to the consume queues and the index."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from pyrocketstore.commit_log._scan import find_valid_record, status_name
from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.dispatch._dispatcher import Dispatcher
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreStateError
from pyrocketstore.results import Status
from pyrocketstore.system._env import Event
from pyrocketstore.system.service_thread import ServiceThread
from pyrocketstore.system.signal_shield import shielded

LOG = logger(__name__)


#: While messages arrive the thread polls at this interval, so that a put need not wake it.
NAP_S = 0.001
NAPS_BEFORE_IDLE = 20
IDLE_S = 0.1
#: A waiter looks this often for a failure, a stop and signals to the process.
WAIT_MS = 50


def resume_position(
    log: CommitLog, path: str, base: int, position: int, stop: int, status: int
) -> int:
    """Return the physical offset at which dispatch continues after a verdict, and log damage.

    Parameters
    ----------
    base : int, physical offset at which the file begins
    position, stop : int, bytes into the file: of the verdict, and the end of its valid bytes

    Raises StoreIOError.
    """
    if status == Status.OK:
        return base + position
    if status == Status.BLANK:
        return log.roll_next_file(base + position)
    found = find_valid_record(log.env, path, base, position + 1, stop, check_crc=False)
    if found < 0:
        found = stop
    LOG.error(
        "%s at byte %d: %s; dispatch continues at byte %d",
        path,
        position,
        status_name(status),
        found,
    )
    return base + found


class ReputMessageService(ServiceThread):
    """The thread that dispatches records as they are appended.

    Parameters
    ----------
    commit_log : CommitLog
    dispatcher : Dispatcher, whose `position` is the physical offset that it has reached
    appended : Event, wakes the thread

    Attribute: `confirm_offset`, None or the physical offset from which on no record is dispatched
    until the thread is stopped.

    Source: RocketMQ 4.9.3 DefaultMessageStore#ReputMessageService.
    Differs: waits for an event when idle, where 4.9.3 polls every millisecond. Damage is stepped
    over to the next valid record, and never past the end of the log.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        dispatcher: Dispatcher,
        appended: Event,
    ) -> None:
        super().__init__("ReputMessageService")
        self.commit_log = commit_log
        self.dispatcher = dispatcher
        self.event = appended  # so that an append wakes the thread, as wakeup() does
        self.confirm_offset: int | None = None
        self._walking = threading.Lock()
        self._turn = threading.Lock()  # so that a waiter for `_walking` gets it next

    def behind(self) -> int:
        """Return the number of bytes of the log that are not dispatched yet.

        Source: RocketMQ 4.9.3 DefaultMessageStore#dispatchBehindBytes.
        """
        return self.commit_log.get_max_offset() - int(self.dispatcher.position)

    def run(self) -> None:
        """Dispatch until the thread is stopped; remaining records are dispatched first."""
        naps = 0
        while True:
            seen = self.event.sequence()
            if self.do_reput():
                naps = 0
                continue
            if self.stopped:
                return
            naps += 1
            if naps <= NAPS_BEFORE_IDLE:
                self.event.wait(seen, NAP_S)
                continue
            self.commit_log.core.set_dispatcher_idle(True)
            if int(self.dispatcher.position) >= self._end():
                self.event.wait(seen, IDLE_S)
            self.commit_log.core.set_dispatcher_idle(False)

    def confirm(self, phy_offset: int) -> None:
        """Let records before `phy_offset` be dispatched, and no later ones."""
        self.confirm_offset = phy_offset
        self.event.signal()
        self.dispatcher.wake()  # ends the waits for a later record

    def is_unconfirmed(self) -> bool:
        """Return True while only the confirm offset prevents that more is dispatched."""
        return self._end() <= int(self.dispatcher.position) < self.commit_log.get_max_offset()

    def _end(self) -> int:
        """Return the physical offset up to which records may be dispatched."""
        end, confirmed = self.commit_log.get_max_offset(), self.confirm_offset
        return end if confirmed is None or self.stopped else min(end, confirmed)

    def on_failure(self, error: BaseException) -> None:
        """Wake all waiters: the thread has failed."""
        self.dispatcher.wake()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause dispatch inside the context, for example to remove a queue.

        Raises StoreStateError in a dispatcher, which is called by the dispatch itself.
        """
        if self.is_current:
            raise StoreStateError("a dispatcher cannot pause the dispatch that has called it")
        with self._turn, self._walking:
            yield

    def do_reput(self) -> bool:
        """Dispatch the new records of one file; True if there were any."""
        with self._turn:
            self._walking.acquire()
        try:
            return self._dispatch_file()
        finally:
            self._walking.release()

    def _dispatch_file(self) -> bool:
        position = self.dispatcher.position
        lowest = self.commit_log.get_min_offset()
        if position < lowest:
            self.dispatcher.position = position = lowest
        end = self._end()
        if position >= end:
            return False
        file = self.commit_log.mapped_file_queue.find_mapped_file_by_offset(position, False)
        if file is None or not file.hold():
            return False  # deleted just now: the minimum has moved
        try:
            start = file.file_from_offset
            bounded = self.confirm_offset is not None and not self.stopped
            stop = end - start if bounded else file.file_size
            status, reached = self.dispatcher.dispatch_mapped(
                self.commit_log.core, file, position - start, stop
            )
            if status != Status.OK:
                self.dispatcher.position = resume_position(
                    self.commit_log, file.path, start, reached, file.wrote, status
                )
        finally:
            file.release()
        return True

    def wait_appended(self, timeout: float | None = None) -> bool:
        """Wait until every put that returned before is in its queue and in the index: see
        `wait_dispatched`."""
        appended = self.commit_log.core.appended_end
        if self.dispatcher.position >= appended:
            return True
        if appended > self.commit_log.get_max_offset():
            shielded(self.commit_log.commit_buffers)
        return self.wait_dispatched(self.commit_log.get_max_offset(), timeout)

    def wait_dispatched(self, phy_offset: int, timeout: float | None = None) -> bool:
        """Wait until every record before `phy_offset` is in its queues and in the index.

        Records from the confirm offset on are not waited for. Returns False if `timeout` (seconds)
        expires first. Raises StoreStateError if the thread has failed, or calls this itself.
        """
        clock = self.commit_log.env.monotonic_ns
        deadline = None if timeout is None else clock() + int(timeout * 1e9)
        while True:
            target = min(phy_offset, self._end())
            if self.dispatcher.position >= target:
                return True
            if self.failure is not None:
                raise StoreStateError(f"dispatching has stopped: {self.failure}") from self.failure
            if self.stopped:
                raise StoreStateError("the store is closed")
            left = 1.0 if deadline is None else (deadline - clock()) / 1e9
            if left <= 0:
                return False
            if self.is_current:
                raise StoreStateError(
                    "a dispatcher or arriving listener cannot wait until its message is dispatched"
                )
            self.event.signal()
            self.dispatcher.wait_for(target, int(min(left * 1e3, WAIT_MS)))
