"""ReputMessageService: brings what was appended into the consume queues and the index."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from pyrocketstore._dispatch import Dispatcher
from pyrocketstore._env import Event
from pyrocketstore._scan import find_valid_record, status_name
from pyrocketstore.commit_log import CommitLog
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreStateError
from pyrocketstore.service_thread import ServiceThread

LOG = logger(__name__)

#: The statuses of the compiled loop; the same numbers as rs_status.
RS_OK, RS_BLANK = 0, 1

#: While messages flow the thread looks again after this long, so that a put need not wake it.
NAP_S = 0.001
NAPS_BEFORE_IDLE = 20
IDLE_S = 0.1


class ReputMessageService(ServiceThread):
    """One thread that follows the end of the log.

    Parameters
    ----------
    commit_log : CommitLog
    dispatcher : Dispatcher, whose `position` says how far it came
    appended : Event, wakes the thread
    moved : Event, signalled when `position` moved

    Source: RocketMQ 4.9.3 DefaultMessageStore#ReputMessageService.
    Differs: sleeps on an event when idle instead of polling every millisecond; a record that cannot
    be read is stepped over to the next one that can, and never past the end of the log.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        dispatcher: Dispatcher,
        appended: Event,
        moved: Event,
    ) -> None:
        super().__init__("ReputMessageService")
        self.commit_log = commit_log
        self.dispatcher = dispatcher
        self.event = appended  # so that an append wakes the thread, as wakeup() does
        self.moved = moved
        self._walking = threading.Lock()
        self._turn = threading.Lock()  # so that one who waits for `_walking` gets it next

    def behind(self) -> int:
        """Bytes of the log that are not dispatched yet.

        Source: RocketMQ 4.9.3 DefaultMessageStore#dispatchBehindBytes.
        """
        return self.commit_log.get_max_offset() - int(self.dispatcher.position)

    def run(self) -> None:
        """Dispatch until told to stop; what is left then is dispatched first."""
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
            if self.behind() <= 0:
                self.event.wait(seen, IDLE_S)
            self.commit_log.core.set_dispatcher_idle(False)

    def on_failure(self, error: BaseException) -> None:
        """The thread has died: nobody waits for it."""
        self.moved.signal()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is dispatched inside, so that a queue may be taken away."""
        with self._turn, self._walking:
            yield

    def do_reput(self) -> bool:
        """Dispatch what one file has; True when there was something to do."""
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
        if position >= self.commit_log.get_max_offset():
            return False
        file = self.commit_log.mapped_file_queue.find_mapped_file_by_offset(position, False)
        if file is None or not file.hold():
            return False  # deleted just now: the minimum has moved
        try:
            start = file.file_from_offset
            status, reached = self.dispatcher.dispatch_mapped(file, position - start)
            if status == RS_BLANK:
                self.dispatcher.position = self.commit_log.roll_next_file(position)
            elif status != RS_OK:
                self._step_over(file.path, start, reached, file.wrote, status)
        finally:
            file.release()
        return True

    def _step_over(self, path: str, start: int, position: int, wrote: int, status: int) -> None:
        """Go on at the next record that is whole."""
        found = find_valid_record(self.commit_log.env, path, start, position + 1, wrote)
        if found < 0:
            found = wrote
        LOG.error(
            "%s at byte %d: %s; dispatching goes on at byte %d",
            path,
            position,
            status_name(status),
            found,
        )
        self.dispatcher.position = start + found

    def wait_dispatched(self, phy_offset: int, timeout: float | None = None) -> bool:
        """Wait until everything before `phy_offset` is in its queues and in the index.

        Returns False when `timeout` (seconds) passed first. Raises StoreStateError when the thread
        has died.
        """
        clock = self.commit_log.env.monotonic_ns
        deadline = None if timeout is None else clock() + int(timeout * 1e9)
        while True:
            seen = self.moved.sequence()
            if self.dispatcher.position >= phy_offset:
                return True
            if self.failure is not None:
                raise StoreStateError(f"dispatching has stopped: {self.failure}") from self.failure
            if self.stopped:
                raise StoreStateError("the store is closed")
            left = 1.0 if deadline is None else (deadline - clock()) / 1e9
            if left <= 0:
                return False
            self.event.signal()
            self.moved.wait(seen, min(left, 1.0))
