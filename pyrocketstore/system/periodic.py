"""A service thread that runs at a fixed rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrocketstore.display import logger
from pyrocketstore.errors import StoreError
from pyrocketstore.system.service_thread import ServiceThread

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

LOG = logger(__name__)


class PeriodicService(ServiceThread):
    """A thread that calls `do_once` after a first delay and then at a fixed rate.

    Parameters
    ----------
    first_ms, interval_ms : int, delay from `start` to the first round, and between two rounds

    A round that raises StoreError does not end the service.

    Threads: any may call `start` and `shutdown`.
    """

    def __init__(self, env: Env, name: str, first_ms: int, interval_ms: int) -> None:
        super().__init__(name)
        self._env = env
        self._first_ns = first_ms * 1_000_000
        self._interval_ns = max(1, interval_ms) * 1_000_000
        self._next_ns = env.monotonic_ns() + self._first_ns
        #: The error of the last round, None if it succeeded.
        self.last_error: StoreError | None = None

    def start(self) -> None:
        """Start the thread unless it runs; the first delay begins now."""
        if not self.is_alive:
            self._next_ns = self._env.monotonic_ns() + self._first_ns
        super().start()

    def run(self) -> None:
        """Run the loop of the thread."""
        while not self.stopped:
            self.wait_for_running(self.run_due())

    def run_due(self) -> float:
        """Run a round if it is due; return the ms until the next one."""
        now = self._env.monotonic_ns()
        if now >= self._next_ns and not self.stopped:
            self._next_ns += self._interval_ns
            try:
                self.do_once()
                self.last_error = None
            except StoreError as error:
                self.last_error = error
                LOG.error("%s: %s; the next round tries again", self.name, error)
            now = self._env.monotonic_ns()
            if self._next_ns < now:  # a round took longer than the interval
                self._next_ns = now
        return max(0.0, (self._next_ns - now) / 1e6)

    def do_once(self) -> None:
        """Do the work of one round. After a StoreError the next round tries again."""
        raise NotImplementedError

    def on_failure(self, error: BaseException) -> None:
        """Log that the thread has died of an exception other than StoreError."""
        LOG.critical("%s has stopped: %s", self.name, error, exc_info=error)
