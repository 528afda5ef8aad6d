"""Waiting for messages: those of this process by a signal, those of another process by looking.

A store that is open for writing signals its `Event` when messages have become readable. The owner
of a read-only store does not: both engines write to mapped files, and stores to memory cause no
inotify event. `OwnerArrivals` therefore looks at the next bytes of the log, one `pread` each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["Arrivals", "OwnArrivals", "OwnerArrivals"]

#: A look at the log follows after a twentieth of the time since the last message, and after so many
#: times the duration of the last refresh, within these bounds (ns).
SHORTEST_PAUSE_NS, LONGEST_PAUSE_NS = 1_000_000, 100_000_000
PAUSES, REFRESHES = 20, 3
#: A refresh that no byte of the log has caused: finds what the owner does besides appending (ns).
ROUTINE_NS = 1_000_000_000
#: After a refresh that found nothing, the next one waits for so many times its duration, up to
#: LONGEST_REST_NS.
REST = 200
LONGEST_REST_NS = 30_000_000_000
#: A signal that cannot come, as in a forked child, ends no wait: `OwnArrivals` looks again (s).
LONGEST_WAIT_S = 1.0


class Arrivals(Protocol):
    """A way to wait for messages. Threads: one at a time."""

    def look(self) -> int:
        """Make messages readable that are there; return a number for `wait`."""

    def wait(self, seen: int, timeout: float | None) -> None:
        """Wait until there may be more messages than `look` has found.

        Parameters
        ----------
        seen : the result of `look`, or a later sequence number of the store's event
        timeout : seconds, None: without a limit

        May return earlier. An exception of a signal handler ends the wait.
        """

    def longest_sleep(self) -> float | None:
        """Return after how many seconds to look again without a signal; None: a signal will come.

        For waiters that do not call `wait`, such as coroutines.
        """


class OwnArrivals:
    """The arrivals of a store that is open for writing.

    Parameters
    ----------
    wait_dispatched : callable(), waits until every put that returned before is in its queues
    sequence, pause : `sequence` and `wait` of the Event that is signalled for new messages
    """

    def __init__(
        self,
        wait_dispatched: Callable[[], object],
        sequence: Callable[[], int],
        pause: Callable[[int, float], object],
    ) -> None:
        self._wait_dispatched = wait_dispatched
        self._sequence = sequence
        self._pause = pause

    def look(self) -> int:
        """Wait until earlier puts are in their queues."""
        seen = self._sequence()
        self._wait_dispatched()
        return seen

    def wait(self, seen: int, timeout: float | None) -> None:
        """Wait for a signal."""
        longest = LONGEST_WAIT_S if timeout is None else min(timeout, LONGEST_WAIT_S)
        self._pause(seen, max(longest, SHORTEST_PAUSE_NS / 1e9))

    def longest_sleep(self) -> float | None:
        """Return None: the event is signalled."""
        return None


class OwnerArrivals:
    """The arrivals of a read-only store, whose owner is another process.

    Parameters
    ----------
    refresh : callable(), makes readable what the owner has written; raises StoreError
    log_end : callable(), bytes: the end of the log that is readable
    next_record : callable(), the first bytes behind that end; b"" if nothing follows
    sequence, pause : `sequence` and `wait` of an Event that ends a wait
    now_ns : callable(), a monotonic time

    Bytes that do not become a record, such as those of a write that a kill has ended, cause
    refreshes that find nothing. The rest after each of them bounds their processor time.
    """

    def __init__(
        self,
        refresh: Callable[[], object],
        log_end: Callable[[], int],
        next_record: Callable[[], bytes],
        sequence: Callable[[], int],
        pause: Callable[[int, float], bool],
        now_ns: Callable[[], int],
    ) -> None:
        self._refresh = refresh
        self._log_end = log_end
        self._next_record = next_record
        self._sequence = sequence
        self._pause = pause
        self._now_ns = now_ns
        self._end = -1
        self._arrived_ns = self._routine_ns = now_ns()
        self._refresh_ns = 0
        #: bytes for which a refresh has found no record, and the time of the next attempt
        self._unfinished, self._retry_ns = b"", 0

    def look(self) -> int:
        """Refresh the store if the owner has written to it, or if that is not known."""
        seen = self._sequence()
        if self._is_due():
            self._refresh_now()
        end = self._log_end()
        if end != self._end:
            self._end, self._arrived_ns = end, self._now_ns()
        return seen

    def wait(self, seen: int, timeout: float | None) -> None:
        """Look at the log until something follows its end; rest longer each time."""
        now = self._now_ns()
        deadline = None if timeout is None else now + int(timeout * 1e9)
        while deadline is None or now < deadline:
            pause = self._pause_ns(now)
            if deadline is not None:
                pause = min(pause, deadline - now)
            if self._pause(seen, max(pause, SHORTEST_PAUSE_NS) / 1e9):
                return
            if self._log_end() != self._end or self._is_due():
                return
            now = self._now_ns()

    def longest_sleep(self) -> float | None:
        """Return the time until the next look: what the owner writes signals nothing."""
        return max(self._pause_ns(self._now_ns()), SHORTEST_PAUSE_NS) / 1e9

    def _pause_ns(self, now: int) -> int:
        pause = max((now - self._arrived_ns) // PAUSES, REFRESHES * self._refresh_ns)
        return min(pause, LONGEST_PAUSE_NS)

    def _is_due(self) -> bool:
        now = self._now_ns()
        if now >= self._routine_ns:
            return True
        found = self._next_record()
        return bool(found) and (found != self._unfinished or now >= self._retry_ns)

    def _refresh_now(self) -> None:
        found, before, began = self._next_record(), self._log_end(), self._now_ns()
        self._refresh()
        now = self._now_ns()
        self._refresh_ns = now - began
        rest = min(REST * self._refresh_ns, LONGEST_REST_NS)
        self._routine_ns = now + max(rest, ROUTINE_NS)
        self._unfinished, self._retry_ns = b"", 0
        if self._log_end() == before:
            self._unfinished, self._retry_ns = found, now + rest
