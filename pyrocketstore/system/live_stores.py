"""Retries for readers of a store that another process writes and whose files it may delete."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from pyrocketstore.errors import StoreIOError

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

#: Bounds of the number of attempts; past TRY_MS (ms) only the lower bound counts.
TRIES_MIN, TRIES_MAX = 4, 50
TRY_MS = 5000
#: Pause between two attempts (s).
PAUSE_S = 0.002


class Attempts:
    """Decides whether a reader that met a change of the store should try again.

    Parameters
    ----------
    env : Env, for the clock and the pause between two attempts
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._count = 0
        self._until_ns = env.monotonic_ns() + TRY_MS * 1_000_000

    def another(self) -> bool:
        """Pause and return True if the reader should try again; return False otherwise."""
        self._count += 1
        late = self._env.monotonic_ns() > self._until_ns
        if self._count >= (TRIES_MIN if late else TRIES_MAX):
            return False
        self._env.sleep(PAUSE_S)
        return True


def was_removed(error: BaseException) -> bool:
    """Return True if a call failed because the file was deleted after its directory was listed;
    another one may have its name now."""
    return isinstance(error, StoreIOError) and error.errno == errno.ENOENT
