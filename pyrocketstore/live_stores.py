"""Reading a store that another process writes: what its owner removes meanwhile is listed again."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from pyrocketstore.errors import StoreIOError

if TYPE_CHECKING:
    from pyrocketstore.env import Env

__all__ = ["Attempts", "was_removed"]

#: So often a reader tries at least, and at most, and for so long in between (ms).
TRIES_MIN, TRIES_MAX = 4, 50
TRY_MS = 5000
#: Between two tries (s).
PAUSE_S = 0.002


class Attempts:
    """Says whether a reader that met a change of the store should try again.

    Parameters
    ----------
    env : Env, whose clock counts and whose sleep stands between two tries
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._count = 0
        self._until_ns = env.monotonic_ns() + TRY_MS * 1_000_000

    def another(self) -> bool:
        """True, after a pause, when there should be another try."""
        self._count += 1
        late = self._env.monotonic_ns() > self._until_ns
        if self._count >= (TRIES_MIN if late else TRIES_MAX):
            return False
        self._env.sleep(PAUSE_S)
        return True


def was_removed(env: Env, error: BaseException) -> bool:
    """Whether a call failed because the file was deleted after it was listed."""
    return (
        isinstance(error, StoreIOError)
        and error.errno == errno.ENOENT
        and not env.exists(error.path)
    )
