"""Warnings about operations that take too long, with their cause and a limited rate."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from pyrocketstore.display import logger

LOG = logger(__name__)

#: Shortest time between two warnings about one cause (ns).
QUIET_NS = 10_000_000_000
#: The causes that are timed.
LOG_FLUSH = "a flush of the commit log"
NEXT_FILE, NEW_FILE = "a wait for the next file", "a new file"
LOCK_HELD, LOCK_WAIT = "the put lock was held", "a wait for the put lock"
DISPATCH = "dispatch is behind"


def untimed(cause: str) -> contextlib.AbstractContextManager[None]:
    """Do nothing: the replacement for StallLog.timed where no StallLog exists."""
    return contextlib.nullcontext()


class StallLog:
    """Counts operations that take `threshold_ms` or longer, and warns about them, rate-limited.

    Parameters
    ----------
    monotonic_ns : the clock
    threshold_ms : int, ms; 0 disables counts and warnings

    Attributes: `counts`, {cause: number of stalls}; `calls`, {cause: (number, total ns)} of the
    calls that `timed` has timed.

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
        """Record that an operation took, or has taken so far, `took_ms`; True if that is too long.

        An operation that has not `ended` causes a warning; it is counted when it has ended.
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
        """Time the body of the `with` statement; `look` sees it while it runs."""
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
        """Warn about operations that still run. Threads: one, which calls StallWatch.look."""
        now = self._clock()
        for (_, cause), began in list(self._running.items()):
            self.note(cause, (now - began) / 1e6, ended=False)
