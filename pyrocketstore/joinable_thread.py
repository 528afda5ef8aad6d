"""A thread that can be joined again after Ctrl-C got through a join."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from pyrocketstore._env import Event
from pyrocketstore.shield import forget_thread

__all__ = ["JoinableThread"]


class JoinableThread(threading.Thread):
    """A daemon thread whose `join` and `is_alive` tell the truth after an interrupted `join`.

    CPython up to 3.12 takes a thread for ended once a signal handler raised in its `join`, though
    it still runs; a store that believed that would unmap files under a writer.
    """

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self._end = Event()

    def run(self) -> None:
        """Call the target."""
        try:
            super().run()
        finally:
            forget_thread(self)
            self._end.signal()

    def is_alive(self) -> bool:
        """True from `start` until the target has come back."""
        return self.ident is not None and self._end.sequence() == 0

    def join(self, timeout: float | None = None) -> None:
        """Wait until the target has come back, for `timeout` (s) at most.

        Not while the interpreter ends: no daemon thread gets its turn then.
        """
        if sys.is_finalizing():
            return
        if self._end.wait(0, timeout):
            super().join(timeout)
