"""Coroutines that wait for messages: one thread of a store waits for all of them."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from pyrocketstore.system._env import Event
from pyrocketstore.system.signal_shield import shielded
from pyrocketstore.system.threads import JoinableThread

if TYPE_CHECKING:
    import asyncio

#: How long the thread stays after the last coroutine, since the next one often follows soon (s).
LINGER_S = 1.0


class LoopWaiters:
    """The coroutines that wait until an event is signalled.

    The thread runs while a coroutine waits, and for LINGER_S afterwards. It sleeps until the event
    is signalled; a cancelled coroutine is removed at once.

    Parameters
    ----------
    moved : Event

    Threads: any; each loop in its own.
    """

    def __init__(self, moved: Event) -> None:
        self._moved = moved
        self._added = Event()
        self._lock = threading.Lock()  # over _thread; taken in threads without signal handlers
        self._thread: JoinableThread | None = None
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._closed = False

    async def wait(self, seen: int, timeout: float | None = None) -> None:
        """Return once the sequence of the event differs from `seen`, or after `timeout` (s).

        It may return early. Raises RuntimeError or MemoryError where no thread can be started.
        """
        import asyncio  # not above: its import takes as long as that of the engine

        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = seen
        try:
            if self._thread is None or not self._thread.is_alive():
                shielded(self._start)
            self._added.signal()
            # The thread may have looked at the waiting ones before; then it sees the next signal.
            if self._moved.sequence() == seen and not self._closed:
                # Not wait_for, which on CPython 3.11 loses a cancellation that meets the signal.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await future
        finally:
            self._waiting.pop(future, None)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                thread = JoinableThread(self._run, "ConsumerWaiters")
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while not self._closed:
            added, now = self._added.sequence(), self._moved.sequence()
            self._wake(now)
            if self._waiting:
                self._moved.wait(now)
            elif not self._added.wait(added, LINGER_S) and self._may_end():
                return
        self._wake(None)

    def _may_end(self) -> bool:
        """Return whether no coroutine waits, and have the next one start a thread."""
        with self._lock:
            thread, self._thread = self._thread, None
            # After the step above: a coroutine that still saw the thread is there already.
            if self._waiting:
                self._thread = thread
            return self._thread is None

    def _wake(self, now: int | None) -> None:
        """Wake the coroutines that have seen another number than `now`."""
        for future, seen in list(self._waiting.items()):
            if seen != now and self._waiting.pop(future, None) is not None:
                with contextlib.suppress(RuntimeError):  # its loop is closed
                    future.get_loop().call_soon_threadsafe(_set_done, future)

    def close(self) -> None:
        """Wake all coroutines and end the thread."""
        self._closed = True
        self._added.signal()
        self._moved.signal()


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
