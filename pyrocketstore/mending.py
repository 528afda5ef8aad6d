"""Giving queues and index again what they had to give up, once the cause has passed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from pyrocketstore.display import logger
from pyrocketstore.periodic import PeriodicService
from pyrocketstore.recovery import Recoverable, replay
from pyrocketstore.store_checkpoint import RunningFlags

if TYPE_CHECKING:
    from pyrocketstore.env import Env

__all__ = ["MEND_INTERVAL_MS", "MendService", "mend"]

LOG = logger(__name__)

#: From the error to the first try, and between tries.
MEND_INTERVAL_MS = 10_000


class Mendable(Recoverable, Protocol):
    """A store that runs."""

    running_flags: RunningFlags

    def dispatch_paused(self) -> AbstractContextManager[None]:
        """Nothing is dispatched inside."""
        ...


def mend(store: Mendable) -> bool:
    """Dispatch the log again from where a queue or the index gave up; True when all is whole.

    Puts stay refused meanwhile, and when something fails again. What is there already is passed
    over, as in recovery. A failed fsync is final and never repaired here.

    Threads: one at a time; waits for the dispatcher, and holds it up.
    Raises StoreError when the log cannot be read; the flags stay then.
    Differs: in 4.9.3 the flags of write errors stay until a restart.
    """
    flags, dispatcher = store.running_flags, store.dispatcher
    if not flags.is_write_error():
        return True
    if store.env.fsync_failure is not None:
        return False
    with store.dispatch_paused():
        index_failed = flags.is_index_file_error()
        if index_failed and not store.index_service.try_again():
            return False
        failed = [queue for queue in store.consume_queues() if queue.failed]
        end = int(dispatcher.position)
        position = _lost_from(store, index_failed)
        flags.begin_mending()
        whole = False
        try:
            for queue in failed:
                queue.failed = False
            if index_failed:
                dispatcher.resume_index()
            while position < end and not flags.is_write_error():
                stop = min(store.commit_log.roll_next_file(position), end)
                replay(store, position, stop)
                position = stop
            whole = not flags.is_write_error()
        finally:
            dispatcher.position = end
            for queue in () if whole else failed:
                queue.failed = True
            flags.end_mending(whole, index_failed, bool(failed))
    if whole:
        LOG.warning("queues and index are whole again: puts are taken")
    return whole


def _lost_from(store: Mendable, index_failed: bool) -> int:
    """Physical offset of the first record that a queue or the index may lack."""
    lowest = max(0, store.commit_log.get_min_offset())
    covered = [queue.covered_phy_offset for queue in store.consume_queues() if queue.failed]
    if index_failed:
        files = store.index_service.files
        covered.append(files[-1].end_phy_offset if files else -1)
    return max(lowest, min(covered, default=lowest))


class MendService(PeriodicService):
    """Tries every ten seconds to mend the store; it is started by the first error.

    Threads: one works.
    """

    def __init__(self, env: Env, mend_now: Callable[[], bool]) -> None:
        super().__init__(env, "MendService", MEND_INTERVAL_MS, MEND_INTERVAL_MS)
        self._mend = mend_now

    def do_once(self) -> None:
        """One try, if there is anything to mend."""
        self._mend()
