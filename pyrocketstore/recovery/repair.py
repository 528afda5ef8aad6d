"""Repair a running store: put units and keys again that were given up, once the cause has
passed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pyrocketstore.dispatch.replay import QueuesReplay
from pyrocketstore.display import logger
from pyrocketstore.recovery.store_files import StoreFiles
from pyrocketstore.system.periodic import PeriodicService

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

__all__ = ["REPAIR_INTERVAL_MS", "RepairService", "repair"]

LOG = logger(__name__)

#: The time from the error to the first try, and between tries (ms).
REPAIR_INTERVAL_MS = 10_000


def repair(store: StoreFiles, dispatch_paused: AbstractContextManager[None]) -> bool:
    """Dispatch the log again from the first failure of a queue or the index; return True when no
    unit and no key is missing any more.

    Puts stay refused meanwhile, and after another failure. Units and keys that exist are skipped,
    as in recovery. A failed fsync is final and never repaired here.

    Parameters
    ----------
    dispatch_paused : context in which nothing is dispatched

    Threads: one at a time.
    Raises StoreError when the log cannot be read; the flags stay then.
    Differs: in 4.9.3 the flags of write errors stay until a restart.
    """
    flags, dispatcher = store.running_flags, store.dispatcher
    if not flags.is_write_error():
        return True
    if store.env.fsync_failure is not None:
        return False
    with dispatch_paused:
        index_failed = flags.is_index_file_error()
        if index_failed and not store.index_service.try_again():
            return False
        failed = [queue for queue in store.consume_queues() if queue.failed]
        end = int(dispatcher.position)
        position = _lost_from(store, index_failed)
        dispatcher.last_phy_offset = -1  # keys before it are missing
        queues = QueuesReplay(store.queue_table, dispatcher)
        flags.begin_repair()
        whole = False
        try:
            for queue in failed:
                queue.failed = False
            if index_failed:
                dispatcher.resume_index()
            while position < end and not flags.is_write_error():
                stop = min(store.commit_log.roll_next_file(position), end)
                queues.run(position, stop)
                position = stop
            if not flags.is_write_error():
                queues.finish(end)
            if not flags.is_write_error():
                _raise_next_offsets(store)
                whole = True
        finally:
            dispatcher.position = end
            for queue in () if whole else failed:
                queue.failed = True
            flags.end_repair(whole, index_failed, bool(failed))
    if whole:
        LOG.warning("queues and index are repaired: puts are accepted again")
    return whole


def _raise_next_offsets(store: StoreFiles) -> None:
    """Have puts continue behind the units of each queue: where the opening could not write them, it
    took the end of the queue to be its beginning. Puts are still refused."""
    core = store.commit_log.core
    known = core.table()
    for queue in store.consume_queues():
        end = queue.get_max_offset_in_queue()
        if known.get((queue.topic, queue.queue_id), 0) < end:
            core.set_next_offset(queue.topic, queue.queue_id, end)


def _lost_from(store: StoreFiles, index_failed: bool) -> int:
    """Return the physical offset of the first record that a queue or the index may lack."""
    lowest = max(0, store.commit_log.get_min_offset())
    covered = [queue.covered_phy_offset for queue in store.consume_queues() if queue.failed]
    if index_failed:
        files = store.index_service.files
        covered.append(files[-1].end_phy_offset if files else -1)
    return max(lowest, min(covered, default=lowest))


class RepairService(PeriodicService):
    """Try every ten seconds to repair the store; the first error starts it.

    Threads: one works.
    """

    def __init__(self, env: Env, repair_now: Callable[[], bool]) -> None:
        super().__init__(env, "RepairService", REPAIR_INTERVAL_MS, REPAIR_INTERVAL_MS)
        self._repair = repair_now

    def do_once(self) -> None:
        """Try once, if there is anything to repair."""
        self._repair()
