"""A few threads that make calls for one other thread."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pyrocketstore.system._env import Event
from pyrocketstore.system.threads import JoinableThread

__all__ = ["PoolCall", "ThreadPool"]

#: How long `result` waits before it checks whether the threads are still alive (s).
LOOK_S = 1.0

Result = TypeVar("Result")


class PoolCall(Generic[Result]):
    """A call that a ThreadPool makes.

    Threads: `result` and `cancel` from the thread that submits.
    """

    def __init__(self, line: _Line, call: Callable[[], Result]) -> None:
        self._line = line
        self._call: Callable[[], Result] | None = call
        self._end = Event()
        self._result: list[Result] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """Make the call. Threads: the pool's."""
        call, self._call = self._call, None
        try:
            if call is not None:
                self._result.append(call())
        except BaseException as error:  # noqa: BLE001  `result` raises it
            self._error = error
        finally:
            del call
            self._end.signal()

    def result(self) -> Result:
        """Wait for the end of the call; return its result or raise its error, once.

        Raises RuntimeError after `cancel`; MemoryError if a thread had no memory to make its calls.
        """
        while not self._end.wait(0, LOOK_S):
            if self._line.has_lost_thread():
                raise MemoryError("a thread of a pool has died")
        # The exception will refer to this frame and the frame to `self`: break the cycle.
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        return self._result[0]

    def cancel(self) -> None:
        """Cancel the call, unless it has begun."""
        if self._line.remove(self):
            self.abandon()

    def abandon(self) -> None:
        """End a call that no thread will make."""
        self._call = None
        self._error = RuntimeError("the call was cancelled")
        self._end.signal()


class _Line:
    """The calls that wait for a thread of a pool, which does not keep the pool itself alive."""

    def __init__(self) -> None:
        self.threads: list[JoinableThread] = []
        self.changed = Event()
        self.is_closed = False
        self._calls: deque[PoolCall[Any]] = deque()

    def add(self, call: PoolCall[Any]) -> None:
        self._calls.append(call)
        self.changed.signal()

    def take(self) -> PoolCall[Any] | None:
        try:
            return self._calls.popleft()
        except IndexError:
            return None

    def remove(self, call: PoolCall[Any]) -> bool:
        try:
            self._calls.remove(call)
        except ValueError:
            return False
        return True

    def close(self) -> None:
        self.is_closed = True
        self.changed.signal()

    def has_lost_thread(self) -> bool:
        """Return True if a thread has ended early, or if all have ended."""
        is_alive = [thread.is_alive() for thread in self.threads]
        return not any(is_alive) if self.is_closed else not all(is_alive)

    def work(self) -> None:
        """Make calls until the line is closed and empty. Threads: the pool's."""
        while True:
            seen = self.changed.sequence()
            call = self.take()
            if call is not None:
                call.run()
                del call  # a thread without work keeps no result
            elif self.is_closed:
                return
            else:
                self.changed.wait(seen)


class ThreadPool:
    """Up to `threads_max` threads, which make calls in the order of `submit`.

    As a context manager it makes the remaining calls at its end, and cancels them after an error. A
    pool that is dropped ends its threads after their calls.

    Parameters
    ----------
    name : of the threads, with a number

    Threads: one at a time. Unlike concurrent.futures, it never waits for a thread that has no
    memory for its first step.
    """

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._line = _Line()

    def __enter__(self) -> ThreadPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close(cancel=kind is not None)

    def __del__(self) -> None:
        self._line.close()

    def start(self) -> None:
        """Start one more thread, unless all are started or an earlier one could not be.

        Raises RuntimeError or MemoryError if there is no thread.
        """
        threads = self._line.threads
        if len(threads) >= self._threads_max:
            return
        thread = JoinableThread(self._line.work, f"{self._name}_{len(threads)}")
        try:
            if sys.is_finalizing():
                raise RuntimeError("no thread runs while the interpreter ends")
            thread.start()
        except (RuntimeError, MemoryError):
            if not threads:
                raise
            self._threads_max = len(threads)
        else:
            threads.append(thread)

    def submit(self, call: Callable[[], Result]) -> PoolCall[Result]:
        """Have a thread make a call. Raises as `start`."""
        self.start()
        submitted = PoolCall(self._line, call)
        self._line.add(submitted)
        return submitted

    def close(self, *, cancel: bool = False) -> None:
        """Wait until all calls and threads have ended. With `cancel`, no further call begins."""
        while cancel and (call := self._line.take()) is not None:
            call.abandon()
        self._line.close()
        for thread in self._line.threads:
            thread.join()
