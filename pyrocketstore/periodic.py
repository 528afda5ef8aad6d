"""A thread that works at a fixed rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrocketstore.display import logger
from pyrocketstore.errors import StoreError
from pyrocketstore.service_thread import ServiceThread

if TYPE_CHECKING:
    from pyrocketstore.env import Env

__all__ = ["PeriodicService"]

LOG = logger(__name__)


class PeriodicService(ServiceThread):
    """A thread that calls `do_once` after a first delay and then at a fixed rate.

    Parameters
    ----------
    first_ms, interval_ms : int, from `start` to the first round, and between rounds

    Threads: any may call `start` and `shutdown`. A round that raises StoreError is not the last.
    """

    def __init__(self, env: Env, name: str, first_ms: int, interval_ms: int) -> None:
        super().__init__(name)
        self._env = env
        self._first_ns = first_ms * 1_000_000
        self._interval_ns = max(1, interval_ms) * 1_000_000
        self._next_ns = env.monotonic_ns() + self._first_ns
        #: why the last round failed, None when it did not
        self.last_error: StoreError | None = None

    def start(self) -> None:
        """Start the thread, unless it runs: the first delay begins now."""
        if not self.is_alive:
            self._next_ns = self._env.monotonic_ns() + self._first_ns
        super().start()

    def run(self) -> None:
        """The thread's loop."""
        while not self.stopped:
            self.wait_for_running(self.run_due())

    def run_due(self) -> float:
        """Do what is due now; milliseconds until the next time."""
        now = self._env.monotonic_ns()
        if now >= self._next_ns and not self.stopped:
            self._next_ns += self._interval_ns
            try:
                self.do_once()
                self.last_error = None
            except StoreError as error:
                self.last_error = error
                LOG.error("%s: %s; it is tried again", self.name, error)
            now = self._env.monotonic_ns()
            if self._next_ns < now:  # a round took longer than the interval
                self._next_ns = now
        return max(0.0, (self._next_ns - now) / 1e6)

    def do_once(self) -> None:
        """One round. Raises StoreError: the next round tries again."""
        raise NotImplementedError

    def on_failure(self, error: BaseException) -> None:
        """The thread has died, of something that is no error of a file."""
        LOG.critical("%s has stopped: %s", self.name, error, exc_info=error)
