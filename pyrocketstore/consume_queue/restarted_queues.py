"""Queues that start again in the log: their topic was removed, and has received new messages.

The log holds the old messages and the new ones, with equal queue offsets. A dispatch from before
the old ones writes their units to the queue, and takes the new messages for repeats. The queue is
then cut where the new messages start, and the log is dispatched again from there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from pyrocketstore.commit_log.parallel_scan import records_between
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.queue_recovery import restart_queue
from pyrocketstore.consume_queue.table import ConsumeQueueTable
from pyrocketstore.consume_queue.unit_check import Key, Log, further_units
from pyrocketstore.display import logger

__all__ = ["dispatch_restarted"]

LOG = logger(__name__)

#: The records of one queue in the order of the log: queue offsets, and physical offsets.
_Rows = tuple[NDArray[np.int64], NDArray[np.int64]]


def dispatch_restarted(
    table: ConsumeQueueTable,
    end: int,
    had_units: Collection[Key],
    replay: Callable[[int, int], None],
) -> None:
    """After a dispatch of the log up to `end`, have each queue name the newest message of each of
    its queue offsets.

    Parameters
    ----------
    end : int, physical offset
    had_units : the queues that had units before the dispatch
    replay : callable(start, end), dispatches a part of the log again

    No checksum covers the queue offset of a record. A queue therefore starts again only at a record
    that the next record of the queue follows, or at queue offset 0 if the queue had no units.

    Raises StoreIOError.
    Differs: 4.9.3 mixes old and new messages, and leaves out most of the new ones.
    """
    last: dict[Key, int] = {}
    while True:
        queues = {
            (queue.topic, queue.queue_id): queue
            for queue in table.all()
            if queue.core.repeated_at >= 0
        }
        if not queues:
            return
        starts: dict[Key, tuple[int, int]] = {}
        for key, rows in _rows_of(table, queues, end).items():
            start = _restart(*rows, may_be_alone=key not in had_units)
            if start is not None and start[1] > last.get(key, -1):
                starts[key] = start
                last[key] = start[1]
        for queue in queues.values():
            queue.core.repeated_at = -1
        for key, (queue_offset, phy_offset) in starts.items():
            LOG.warning(
                "%s/%d: starts again at queue offset %d with the message at byte %d of the log",
                *key,
                queue_offset,
                phy_offset,
            )
            restart_queue(queues[key], queue_offset, phy_offset)
        if not starts:
            return
        replay(min(phy_offset for _, phy_offset in starts.values()), end)


def _restart(
    queue_offset: NDArray[np.int64], phy_offset: NDArray[np.int64], *, may_be_alone: bool
) -> tuple[int, int] | None:
    """Return the queue offset and the physical offset of the record with which a queue starts
    again; None without one.

    The first record is one whose queue offset the queue has. Of several, the last one with the
    smallest queue offset: those before it add nothing to the queue.
    """
    if not len(queue_offset):
        return None
    step = np.diff(queue_offset)
    starts = np.r_[True, step <= 0]
    is_alone = may_be_alone and int(queue_offset[-1]) == 0
    found = np.flatnonzero(starts & np.r_[step == 1, is_alone])
    if not len(found):
        return None
    lowest = queue_offset[found].min()
    at = int(found[queue_offset[found] == lowest][-1])
    return int(queue_offset[at]), int(phy_offset[at])


def _rows_of(
    table: ConsumeQueueTable, queues: Mapping[Key, ConsumeQueue], end: int
) -> dict[Key, _Rows]:
    """Return the records of each queue from the first one on whose queue offset the queue has.

    Raises StoreIOError.
    """
    found: dict[Key, list[_Rows]] = {}
    begin = min(queue.core.repeated_at for queue in queues.values())
    log = Log.of(table.commit_log, begin, end, end)
    for chunk in records_between(table.env, table.commit_log, begin, end):
        keys = chunk.queue_keys()
        number, queue_offset, phy_offset = chunk.rows()[:3]
        wanted = [i for i, key in enumerate(keys) if key in queues]
        for rows in _groups(number, np.flatnonzero(np.isin(number, wanted))):
            key = keys[number[rows[0]]]
            found.setdefault(key, []).append((queue_offset[rows], phy_offset[rows]))
        if table.config.enable_multi_dispatch:
            for at, size, _ in chunk.multi_rows():
                for key, offset in further_units(log, at, size, table.config.enable_lmq):
                    if key in queues:
                        row = np.array([offset], np.int64), np.array([at], np.int64)
                        found.setdefault(key, []).append(row)
    return {key: _from(parts, queues[key].core.repeated_at) for key, parts in found.items()}


def _groups(number: NDArray[np.int32], rows: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    """Yield the given rows of each number, in order."""
    ordered = rows[np.argsort(number[rows], kind="stable")]
    if len(ordered):
        yield from np.split(ordered, np.flatnonzero(np.diff(number[ordered])) + 1)


def _from(parts: list[_Rows], begin: int) -> _Rows:
    """Join the rows of a queue, in the order of the log, from physical offset `begin` on. A queue
    offset may be damaged: a negative one gets no unit."""
    queue_offset = np.concatenate([part[0] for part in parts])
    phy_offset = np.concatenate([part[1] for part in parts])
    order = np.argsort(phy_offset, kind="stable")
    order = order[(phy_offset[order] >= begin) & (queue_offset[order] >= 0)]
    return queue_offset[order], phy_offset[order]
