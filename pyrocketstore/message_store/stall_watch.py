"""A periodic check for stalls that a put cannot time without becoming slower."""

from __future__ import annotations

from collections.abc import Callable

from pyrocketstore.commit_log._append import CommitLogCore, GroupCommit
from pyrocketstore.system.stalls import DISPATCH, LOCK_HELD, LOCK_WAIT, LOG_FLUSH, StallLog


class StallWatch:
    """Logs long flushes, long holds of and waits for the put lock, and a dispatch that is behind.

    Parameters
    ----------
    log : StallLog
    core : the end of the commit log
    monotonic_ns : the clock
    dispatched : returns the physical offset up to which all records are dispatched

    Threads: one calls `look`.
    """

    def __init__(
        self,
        log: StallLog,
        core: CommitLogCore,
        monotonic_ns: Callable[[], int],
        dispatched: Callable[[], int],
    ) -> None:
        self.log = log
        self.core = core
        self.group: GroupCommit | None = None
        self._clock = monotonic_ns
        self._dispatched = dispatched
        self._seen_hold = 0
        self._end, self._end_since = 0, 0

    def look(self) -> None:
        """Check once, and log each operation that takes too long."""
        self.log.look()
        self._look_at_lock()
        if self.group is not None:
            longest, running = self.group.take_flush_times()
            self.log.note(LOG_FLUSH, longest / 1e6)
            self.log.note(LOG_FLUSH, running / 1e6, ended=False)
        self._look_at_dispatch()

    def _look_at_lock(self) -> None:
        self.log.note(LOCK_WAIT, self.core.take_lock_waited_ms())
        hold, held_ns = self.core.lock_hold()
        if hold == 0 or held_ns < self.log.threshold_ms * 1_000_000:
            self._seen_hold = 0
            return
        # One hold counts once, however often the watch sees it.
        first = hold != self._seen_hold
        self._seen_hold = hold
        self.log.note(LOCK_HELD, held_ns / 1e6, ended=first)

    def _look_at_dispatch(self) -> None:
        """Warn while records that were in the log at an earlier look are still not dispatched."""
        now, position = self._clock(), self._dispatched()
        if position >= self._end:
            self._end, self._end_since = self.core.end, now
            return
        waited = (now - self._end_since) / 1e6
        detail = f"{self.core.end - position} bytes"
        if self.log.note(DISPATCH, waited, detail):
            self._end_since = now
