"""Try an action of a queue again while the cause of its error may pass, such as a full device."""

from __future__ import annotations

from collections.abc import Callable

from pyrocketstore.display import logger
from pyrocketstore.errors import StoreCorruptionError, StoreIOError, is_passing
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.system.env import Env

__all__ = ["GivenUp", "retry"]

LOG = logger(__name__)

#: An action is tried this often, this many seconds apart.
MAX_RETRIES = 30
RETRY_INTERVAL_S = 1.0


class GivenUp(Exception):
    """The action was given up; `cause` is the last error, None when none was met."""

    def __init__(self, cause: StoreIOError | StoreCorruptionError | None) -> None:
        super().__init__(cause)
        self.cause = cause


def retry(
    env: Env,
    flags: RunningFlags | None,
    name: str,
    may_write: Callable[[], bool],
    action: Callable[[], bool],
) -> bool:
    """Return the result of `action`, which is called until it raises no error.

    Raises GivenUp after an error that cannot pass, after the last try, or once `may_write` returns
    False. During a repair there is one try: the store repeats the repair later.
    """
    cause: StoreIOError | StoreCorruptionError | None = None
    is_repair = flags is not None and flags.is_repairing()
    tries = 1 if is_repair else MAX_RETRIES
    for attempt in range(tries):
        if not may_write():
            break
        try:
            return action()
        except (StoreIOError, StoreCorruptionError) as error:
            cause = error
            log = LOG.info if is_repair else LOG.warning  # the repair reports its own failure
            log("%s: attempt %d: %s", name, attempt + 1, error)
            if not is_passing(error):
                break
        if attempt + 1 < tries:
            env.sleep(RETRY_INTERVAL_S)
    log = LOG.info if is_repair else LOG.error
    log("%s: a unit was given up; the queue accepts no more", name)
    raise GivenUp(cause)
