"""What takes too long is logged with its cause, now and then and not each time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from pyrocketstore.display import logger

LOG = logger(__name__)

__all__ = ["StallLog", "StallWatch", "untimed"]

#: One cause is named at most once in so many ns.
QUIET_NS = 10_000_000_000
#: What a thread may be seen doing.
FORCE, NEXT_FILE, NEW_FILE = "a force of the commit log", "a wait for the next file", "a new file"
LOCK_HELD, LOCK_WAIT = "the put lock was held", "a wait for the put lock"
DISPATCH = "dispatch is behind"


def untimed(cause: str) -> contextlib.AbstractContextManager[None]:
    """In place of StallLog.timed where nobody watches."""
    return contextlib.nullcontext()


class StallLog:
    """Counts what took longer than `threshold_ms`, and warns of it, rate-limited.

    Parameters
    ----------
    monotonic_ns : the clock
    threshold_ms : int, ms; 0: nothing is ever too long

    Attributes: `counts`, {cause: how often}; `calls`, {cause: (how many, ns in all)} of the calls
    that were timed by `timed`.

    Threads: any.
    """

    def __init__(self, monotonic_ns: Callable[[], int], threshold_ms: int) -> None:
        self.threshold_ms = threshold_ms
        self.counts: dict[str, int] = {}
        self.calls: dict[str, tuple[int, int]] = {}
        self._clock = monotonic_ns
        self._lock = threading.RLock()  # a signal handler may put inside
        self._said: dict[str, int] = {}
        self._unsaid: dict[str, int] = {}
        self._running: dict[tuple[int, str], int] = {}

    def note(self, cause: str, took_ms: float, detail: str = "", *, ended: bool = True) -> bool:
        """Something took, or takes, `took_ms`; True when that is too long.

        One that has not `ended` is warned of and counted when it has.
        """
        if not 0 < self.threshold_ms <= took_ms:
            return False
        now = self._clock()
        with self._lock:
            if ended:
                self.counts[cause] = self.counts.get(cause, 0) + 1
            last = self._said.get(cause)
            if last is not None and now - last < QUIET_NS:
                self._unsaid[cause] = self._unsaid.get(cause, 0) + ended
                return True
            self._said[cause] = now
            more = self._unsaid.pop(cause, 0)
        LOG.warning(
            "%s%s: %d ms%s%s",
            cause,
            "" if ended else " (still)",
            took_ms,
            f", {detail}" if detail else "",
            f"; {more} more since the last such line" if more else "",
        )
        return True

    @contextlib.contextmanager
    def timed(self, cause: str, detail: str = "") -> Iterator[None]:
        """Time what is done inside; it is seen by `look` while it runs."""
        key = (threading.get_ident(), cause)
        began = self._clock()
        self._running[key] = began
        try:
            yield
        finally:
            self._running.pop(key, None)
            took = self._clock() - began
            with self._lock:
                count, total = self.calls.get(cause, (0, 0))
                self.calls[cause] = count + 1, total + took
            self.note(cause, took / 1e6, detail)

    def look(self) -> None:
        """Warn of what has not ended. Threads: the one that watches."""
        now = self._clock()
        for (_, cause), began in list(self._running.items()):
            self.note(cause, (now - began) / 1e6, ended=False)


class WatchedLog(Protocol):
    """The end of the commit log, as the watch sees it: CommitLogCore."""

    def lock_hold(self) -> tuple[int, int]:
        """The number of the put lock's present hold, 0 when free; ns since it was first seen."""
        ...

    @property
    def end(self) -> int:
        """Physical offset behind the last record."""
        ...

    def take_lock_waited_ms(self) -> int:
        """The longest wait for the put lock since the last call, ms."""
        ...


class WatchedForces(Protocol):
    """Who forces under SYNC_FLUSH: GroupCommit."""

    def take_force_times(self) -> tuple[int, int]:
        """ns of the longest force since the last call, and of one that runs."""
        ...


class StallWatch:
    """Looks, from time to time, at what nobody can time without slowing a put down.

    Parameters
    ----------
    log : StallLog
    core : the end of the commit log
    monotonic_ns : the clock
    dispatched : gives the physical offset up to which everything is dispatched

    Threads: one calls `look`.
    """

    def __init__(
        self,
        log: StallLog,
        core: WatchedLog,
        monotonic_ns: Callable[[], int],
        dispatched: Callable[[], int],
    ) -> None:
        self.log = log
        self.core = core
        self.group: WatchedForces | None = None
        self._clock = monotonic_ns
        self._dispatched = dispatched
        self._seen_hold = 0
        self._end, self._end_since = 0, 0

    def look(self) -> None:
        """One look; what is too long is logged."""
        self.log.look()
        self._look_at_lock()
        if self.group is not None:
            longest, running = self.group.take_force_times()
            self.log.note(FORCE, longest / 1e6)
            self.log.note(FORCE, running / 1e6, ended=False)
        self._look_at_dispatch()

    def _look_at_lock(self) -> None:
        self.log.note(LOCK_WAIT, self.core.take_lock_waited_ms())
        hold, held_ns = self.core.lock_hold()
        if hold == 0 or held_ns < self.log.threshold_ms * 1_000_000:
            self._seen_hold = 0
            return
        # One hold counts once, however often it is looked at.
        first = hold != self._seen_hold
        self._seen_hold = hold
        self.log.note(LOCK_HELD, held_ns / 1e6, ended=first)

    def _look_at_dispatch(self) -> None:
        """Behind is what was in the log a while ago and is in no queue yet."""
        now, position = self._clock(), self._dispatched()
        if position >= self._end:
            self._end, self._end_since = self.core.end, now
            return
        waited = (now - self._end_since) / 1e6
        detail = f"{self.core.end - position} bytes"
        if self.log.note(DISPATCH, waited, detail):
            self._end_since = now
