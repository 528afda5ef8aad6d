"""A thread that works when woken, or after a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyrocketstore._env import Event
from pyrocketstore.joinable_thread import JoinableThread

__all__ = ["ServiceThread"]

#: How long `shutdown` waits for the thread to end (s).
JOIN_SECONDS = 90.0


class ServiceThread:
    """One background thread: override `run`, which loops until `stopped`.

    A thread that dies records why in `failure`; `on_failure` is called with it, and then `on_death`
    with the service, where somebody has set that.

    Threads: any may call. Source: RocketMQ 4.9.3 ServiceThread.
    Differs: a wakeup is never lost, and a failed thread is seen.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.event = Event()  # signalled by `wakeup`; compiled code may signal it too
        self.failure: BaseException | None = None
        self.on_death: Callable[[ServiceThread], None] | None = None
        self._seen = self.event.sequence()
        self._stopped = False
        self._thread: JoinableThread | None = None
        self._lock = threading.Lock()

    @property
    def stopped(self) -> bool:
        """True once the thread was asked to end."""
        return self._stopped

    @property
    def is_alive(self) -> bool:
        """True while the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; nothing happens when it runs already.

        Raises RuntimeError or MemoryError when the system gives no thread.
        """
        with self._lock:
            if self.is_alive:
                return
            self._stopped = False
            self.failure = None
            self._thread = JoinableThread(self._main, self.name)
            try:
                self._thread.start()
            except (RuntimeError, MemoryError):
                self._thread = None  # it never runs, and nobody may wait for its end
                raise

    def wakeup(self) -> None:
        """Let a thread in `wait_for_running` go on, or not sleep the next time."""
        self.event.signal()

    def wait_for_running(self, timeout_ms: float | None) -> bool:
        """Sleep until `wakeup`, for `timeout_ms` at most; True when woken.

        Any wakeup since the last call counts, so none is lost. Calls `on_wait_end` before it
        returns. Threads: this service's own.
        """
        timeout = None if timeout_ms is None else timeout_ms / 1000
        woken = self._stopped or self.event.wait(self._seen, timeout)
        self._seen = self.event.sequence()
        self.on_wait_end()
        return woken

    def on_wait_end(self) -> None:
        """What to do after each wait, e.g. swap lists of requests."""

    def run(self) -> None:
        """The thread's work: loop until `stopped`."""
        raise NotImplementedError

    def on_failure(self, error: BaseException) -> None:
        """Called in the dying thread, after `failure` was set."""

    def request_stop(self) -> None:
        """Ask the thread to end, and do not wait for it."""
        self._stopped = True
        self.event.signal()

    def shutdown(self, timeout: float | None = JOIN_SECONDS) -> bool:
        """Ask the thread to end and wait for it; False when it still runs after `timeout` (s).

        None waits as long as it takes.
        """
        with self._lock:  # one that is being started can be joined then
            self.request_stop()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def _main(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001  the thread ends here: keep the reason
            self.failure = error
            try:
                self.on_failure(error)
            finally:
                if self.on_death is not None:
                    self.on_death(self)
