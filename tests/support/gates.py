"""System calls that a test holds back, and waiting for what a thread will do."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from pyrocketstore import StoreError

#: The time within which everything has surely happened (s).
WAIT_S = 20.0


Opened = TypeVar("Opened")


@contextlib.contextmanager
def unclean(store: contextlib.AbstractContextManager[Opened]) -> Iterator[Opened]:
    """A store that fails inside: the body passes, and its end raises."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context(store)
        with pytest.raises(StoreError):
            stack.close()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Sleep until a condition is met; `what` says that it was not."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.001)


class Gate:
    """In place of a system call: holds calls back while it is closed; `held` counts those.

    `count` is of all calls; a `result` that is not 0 is given instead of making the call.
    """

    def __init__(self) -> None:
        self.closed = False
        self.result = 0
        self.held = threading.Semaphore(0)
        self.count = 0
        self._passes = threading.Semaphore(0)

    def __call__(self, original: Callable[..., int], *arguments: Any) -> int:
        self.count += 1
        if self.closed:
            passes = self._passes
            self.held.release()
            passes.acquire(timeout=WAIT_S)
        return self.result or original(*arguments)

    def close(self) -> None:
        """Hold calls back from now on."""
        self._passes = threading.Semaphore(0)
        self.closed = True

    def let_one_go(self) -> None:
        """One call, held back now or the next one, is made."""
        self._passes.release()

    def open(self) -> None:
        """Make all calls."""
        self.closed = False
        self._passes.release(100)
