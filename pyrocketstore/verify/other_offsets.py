"""Find records that state another queue offset than the unit that names them.

No checksum covers the queue offset of a record, and the unit proves the right one: no opening
changes either of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.unit_check import stated_offsets


class OtherOffset(NamedTuple):
    """A record that states the queue offset `stated` and that the unit `queue_offset` names."""

    queue_offset: int
    stated: int
    phy_offset: int


class OffsetSearch:
    """Search one queue for records that state another queue offset than their unit.

    Of units that are shifted, as in a queue file that has replaced another one, each names a record
    that states another queue offset. A unit therefore counts only

    - if no other record states its queue offset, and the unit at the stated one does not name the
      record,
    - and if an adjacent unit names its own record, or another record that this search finds.

    Parameters
    ----------
    contested : int64[n], sorted, queue offsets of records whose unit names another record
    low, end : the part of the log that was compared with the units

    Each call reads the log once for each doubtful unit. Threads: one.
    """

    def __init__(
        self,
        log: CommitLog,
        queue: ConsumeQueue,
        contested: NDArray[np.int64],
        low: int,
        end: int,
    ) -> None:
        self._log, self._queue = log, queue
        self._contested = contested
        self._low, self._end = low, end

    def find(self, gaps: Iterable[tuple[int, int]], first: int, end: int) -> Iterator[OtherOffset]:
        """Yield the records that units in `gaps` name.

        Parameters
        ----------
        gaps : ascending ranges of queue offsets in [first, end), whose units do not name the record
            that states their queue offset, though the adjacent units do
        first, end : the units of the queue
        """
        for start, stop in gaps:
            is_after = start > first
            while is_after and start < stop and (found := self._at(start)) is not None:
                yield found
                start += 1
            is_before = stop < end
            while is_before and start < stop and (found := self._at(stop - 1)) is not None:
                yield found
                stop -= 1

    def _at(self, queue_offset: int) -> OtherOffset | None:
        """Return the record that a unit names if it states another queue offset, else None."""
        unit = self._queue.reader.unit(queue_offset)
        if unit is None or not self._low <= unit[0] < self._end or self._is_contested(queue_offset):
            return None
        phy_offset, size, _ = unit
        view = self._log.get_message(phy_offset, size)
        if view is None:
            return None
        with view:
            data = bytes(view.byte_buffer)
        key = self._queue.topic, self._queue.queue_id
        for stated in stated_offsets(data, key, phy_offset):
            there = None
            if 0 <= stated < self._queue.core.unit_count:
                there = self._queue.reader.unit(stated)
            if there is None or there[0] != phy_offset:
                return OtherOffset(queue_offset, stated, phy_offset)
        return None

    def _is_contested(self, queue_offset: int) -> bool:
        at = int(np.searchsorted(self._contested, queue_offset))
        return at < len(self._contested) and int(self._contested[at]) == queue_offset
