"""QueueMappings: bound how many queues of a process keep their last file mapped.

A store into a mapping costs some nanoseconds, a pwrite with its open some microseconds, but a
process may have only vm.max_map_count mappings, and everything else in it needs some of them too.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, ClassVar, Protocol

from pyrocketstore.consume_queue._units import ConsumeQueueCore
from pyrocketstore.display import logger

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

__all__ = ["QueueMapping", "QueueMappings"]

LOG = logger(__name__)

#: Share of vm.max_map_count that the queues of all stores of a process use: 3 of 4.
SHARE = 3, 4
#: A store may have 1 of 16 of this share even if others have used it up.
STORE_SHARE = 16
#: Mapped queues that are compared with one that is to be mapped.
SAMPLE = 8
#: A mapped queue gives way to one that gets at least so many times as many units.
FACTOR = 2
#: Rates are compared if they were measured over times that differ at most by this factor.
WINDOWS = 4


class Detachable(Protocol):
    """A queue whose files can be unmapped."""

    def detach(self) -> None:
        """Unmap the files."""


class QueueMapping:
    """The use of one queue: its units since a byte of the log.

    Parameters
    ----------
    core : ConsumeQueueCore
    queue : has `detach`, which unmaps the files of the queue; it is not kept alive: the last
        reference to a removed queue unmaps its files
    """

    __slots__ = ("_queue", "core", "index", "since", "units")

    def __init__(self, core: ConsumeQueueCore, queue: Detachable) -> None:
        self.core = core
        self._queue = weakref.ref(queue)
        self.index = -1  # in the list of mapped queues
        self.since = -1
        self.units = 0

    def release(self) -> None:
        """Unmap the files of the queue."""
        queue = self._queue()
        if queue is not None:
            queue.detach()

    def begin(self, phy_offset: int) -> None:
        """Count the units from this byte of the log on."""
        self.since, self.units = phy_offset, self.core.unit_count


class QueueMappings:
    """The queues of one store whose last file is mapped.

    While there is room, each queue that is put to becomes one of them. Then units of the others are
    written by pwrite, and a queue is mapped in place of one that gets fewer units. Under a load
    that is equal for all queues nothing changes places: exchanging mappings costs more than pwrite.

    Parameters
    ----------
    env : Env
    count_each : int, mapped files of one queue

    Threads: any; `admit` and `refuse` from the thread that dispatches.
    """

    #: every store's
    _all: ClassVar[list[weakref.ref[QueueMappings]]] = []

    def __init__(self, env: Env, count_each: int = 1) -> None:
        self._limit = env.max_map_count() * SHARE[0] // SHARE[1]
        self._count_each = count_each
        self._mapped: list[QueueMapping] = []
        self._now = 0  # bytes of the log, the clock of the rates
        self._random = 1
        self._lock = threading.Lock()
        self._all.append(weakref.ref(self, self._all.remove))

    @property
    def count(self) -> int:
        """Mappings that this store uses for its queues."""
        return len(self._mapped) * self._count_each

    def admit(self, queue: QueueMapping) -> bool:
        """Return whether the last file of a queue is to be mapped; another one may lose its own."""
        with self._lock:
            self._now = max(self._now, queue.core.max_physic_offset)
            if queue.index >= 0:
                return True
            victim = None
            if not self._has_room():
                victim = self._colder_than(queue)
                if victim is None:
                    queue.begin(self._now)
                    return False
                self._remove(victim)
            queue.index = len(self._mapped)
            self._mapped.append(queue)
            queue.begin(self._now)
        if victim is not None:
            victim.release()
        return True

    def refuse(self, queue: QueueMapping) -> None:
        """Take note that the system has refused a mapping of this queue, and use fewer from now on,
        so that other parts of the process can map memory."""
        with self._lock:
            self._remove(queue)
            self._limit = self._total() * 7 // 8
            released = []
            while self._mapped and self._total() > self._limit:
                released.append(self._mapped[self._next(len(self._mapped))])
                self._remove(released[-1])
            queue.begin(self._now)
        LOG.warning("no more memory can be mapped: at most %d queue files stay mapped", self._limit)
        for victim in released:
            victim.release()

    def remove(self, queue: QueueMapping) -> None:
        """Take note that the queue has no mapped file any more."""
        with self._lock:
            self._remove(queue)

    def _total(self) -> int:
        total = 0
        for reference in tuple(self._all):
            store = reference()
            if store is not None:
                total += store.count
        return total

    def _has_room(self) -> bool:
        free = self._limit - self._total()
        least = self._limit // STORE_SHARE - self.count
        return max(free, least) >= self._count_each

    def _remove(self, queue: QueueMapping) -> None:
        if queue.index >= 0:
            last = self._mapped.pop()
            if last is not queue:
                self._mapped[queue.index] = last
                last.index = queue.index
            queue.index = -1

    def _colder_than(self, queue: QueueMapping) -> QueueMapping | None:
        """Return a mapped queue that gets fewer units than `queue`, or None."""
        window = self._now - queue.since
        units = queue.core.unit_count - queue.units
        if queue.since < 0 or window <= 0 or units <= 0 or not self._mapped:
            return None
        coldest, least = None, units / window / FACTOR
        for _ in range(SAMPLE):
            victim = self._mapped[self._next(len(self._mapped))]
            seen = self._now - victim.since
            count = victim.core.unit_count - victim.units
            if seen * WINDOWS < window or count < 0:
                if count < 0:  # its units were removed
                    victim.begin(self._now)
                continue
            if count / seen < least:
                coldest, least = victim, count / seen
            if seen > WINDOWS * window:
                victim.begin(self._now)
        return coldest

    def _next(self, count: int) -> int:
        """Return a number below `count`; a choice in order could always meet the busiest queues."""
        self._random = (self._random * 6364136223846793005 + 1442695040888963407) & ((1 << 64) - 1)
        return (self._random >> 33) % count
