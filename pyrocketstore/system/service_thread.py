"""A background thread that works when it is woken or after a timeout."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from pyrocketstore.errors import StoreStateError
from pyrocketstore.system._env import Event
from pyrocketstore.system.threads import JoinableThread

#: The time that `shutdown` waits for the thread to end (s).
JOIN_SECONDS = 90.0


@contextlib.contextmanager
def require_thread(name: str) -> Iterator[None]:
    """Raise StoreStateError where a thread of that name cannot be started."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        raise StoreStateError(
            f"the thread {name} cannot be started: {error or 'out of memory'}; allow this user more"
            " processes and threads (ulimit -u), or end others, and open the store again"
        ) from error


class ServiceThread:
    """One background thread; a subclass overrides `run`, which loops until `stopped`.

    An exception that ends the thread is kept in `failure`. The thread calls `on_failure` with the
    exception and then `on_death`, if set, with the service.

    Threads: any may call. Source: RocketMQ 4.9.3 ServiceThread.
    Differs: a wakeup is never lost, and the failure of a thread is recorded.
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
        """True after a request to stop."""
        return self._stopped

    @property
    def is_alive(self) -> bool:
        """True while the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """True in the thread of this service."""
        thread = self._thread  # the id of one that has ended may be that of a new thread
        own = threading.get_ident()
        return thread is not None and thread.ident == own and thread.is_alive()

    def start(self) -> None:
        """Start the thread unless it runs already.

        Raises RuntimeError or MemoryError if the system cannot start a thread.
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
                self._thread = None  # it never runs, so nobody may wait for its end
                raise

    def wakeup(self) -> None:
        """Wake the thread from `wait_for_running`, or let its next call return at once."""
        self.event.signal()

    def wait_for_running(self, timeout_ms: float | None) -> bool:
        """Sleep until `wakeup`, for `timeout_ms` at most; return True if woken.

        A wakeup since the last call counts, so none is lost. Threads: the one of this service.
        """
        timeout = None if timeout_ms is None else timeout_ms / 1000
        woken = self._stopped or self.event.wait(self._seen, timeout)
        self._seen = self.event.sequence()
        return woken

    def run(self) -> None:
        """Do the work of the thread: loop until `stopped`."""
        raise NotImplementedError

    def on_failure(self, error: BaseException) -> None:
        """Called in the thread that is about to die, after `failure` was set."""

    def request_stop(self) -> None:
        """Request the thread to end, without a wait."""
        self._stopped = True
        self.event.signal()

    def shutdown(self, timeout: float | None = JOIN_SECONDS) -> bool:
        """Request the thread to end and wait for it; False if it still runs after `timeout` (s).

        A timeout of None waits without a limit.
        """
        with self._lock:  # a `start` in another thread has ended, so its thread can be joined
            self.request_stop()
            thread = self._thread
        if thread is None or thread.ident == threading.get_ident():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def _main(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001  the thread ends: record the reason
            self.failure = error
            try:
                self.on_failure(error)
            finally:
                if self.on_death is not None:
                    self.on_death(self)
