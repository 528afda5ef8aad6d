"""Start threads: the one way to start a thread in the engine.

`threading.Thread.start` waits for the first step of its thread. A thread that has no memory for
this step never ends that wait. The threads that are started here signal their end in any case.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable

from pyrocketstore.system._env import Event, SignalAtEnd

__all__ = ["JoinableThread", "begin_thread", "thread_arguments"]

Arguments = tuple[tuple[SignalAtEnd, ...], Callable[[], object], str]


def thread_arguments(run: Callable[[], object], name: str, *ends: Event) -> Arguments:
    """Return the arguments with which a new thread must call `begin_thread`.

    Parameters
    ----------
    ends : signalled when the thread has released everything, or had no memory for its first step
    """
    return tuple(map(SignalAtEnd, ends)), run, name  # a tuple releases its first item last


def begin_thread(at_end: tuple[SignalAtEnd, ...], run: Callable[[], object], name: str) -> None:
    """Call `run` in the new thread that calls this function."""
    del at_end  # the thread itself holds them until it ends
    try:
        thread = threading.current_thread()  # which registers the thread
        thread.name = name
    except (RuntimeError, MemoryError):
        run()
        return
    try:
        run()
    finally:
        _forget(thread)


def _forget(thread: threading.Thread) -> None:
    """Remove a thread that is about to end from CPython's tables of threads.

    CPython up to 3.12 would keep it as a running one. With a weak set of threads, a callback runs
    where the last reference to the thread is dropped. In the main thread a signal handler may run
    in that callback, and its exception would be lost.
    """
    getattr(threading, "_active", {}).pop(threading.get_ident(), None)
    dangling = getattr(threading, "_dangling", None)
    if dangling is not None:
        dangling.discard(thread)


class JoinableThread:
    """A daemon thread.

    `join` and `is_alive` stay correct after an interrupted `join`. Once a signal handler has raised
    in the `join` of `threading.Thread`, CPython up to 3.12 reports a running thread as ended. A
    store that relied on this report would unmap files under a writer.

    Attributes: `name`; `ident`, the thread's id once it runs.
    """

    def __init__(self, target: Callable[[], None], name: str) -> None:
        self.name = name
        self.ident: int | None = None
        self._target: Callable[[], None] | None = target
        self._begun, self._end = Event(), Event()
        self._is_started = False

    def start(self) -> None:
        """Start the thread, and wait for its first step.

        Raises RuntimeError or MemoryError if it cannot be started or had no memory for that step.
        """
        arguments = [thread_arguments(self._run, self.name, self._begun, self._end)]
        self._is_started = True
        try:
            _thread.start_new_thread(begin_thread, arguments.pop())
        except (RuntimeError, MemoryError):
            self._is_started = False
            raise
        self._begun.wait(0)
        if self.ident is None:
            raise MemoryError(f"the thread {self.name} had no memory for its first step")

    def _run(self) -> None:
        target, self._target = self._target, None
        self.ident = threading.get_ident()
        self._begun.signal()
        if target is not None:
            target()

    def is_alive(self) -> bool:
        """Return True from `start` until the thread has ended."""
        return self._is_started and self._end.sequence() == 0

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, for `timeout` (s) at most.

        Returns at once while the interpreter is finalizing: no daemon thread runs then.
        """
        if self._is_started and not sys.is_finalizing():
            self._end.wait(0, timeout)
