"""The consumers of this process by group, and the queues that each of them reads."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Collection, Mapping, Sequence

#: topic, queue id
Queue = tuple[str, int]


def averagely(queues: Sequence[Queue], count: int, index: int) -> list[Queue]:
    """Return the share of member `index` of `count`: contiguous, sizes differ by one at most.

    Source: RocketMQ 4.9.3 AllocateMessageQueueAveragely.
    """
    size, rest = divmod(len(queues), count)
    first = index * size + min(index, rest)
    return list(queues[first : first + size + (index < rest)])


class Group:
    """The members of one group in this process.

    A queue has one owner at a time. A member that gets a queue of another one reads it once that
    one has let it go: at its next `poll`, when it is closed, or when it is gone.

    Threads: any.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.RLock()  # a consumer may be collected inside
        self._numbers = itertools.count()
        self._members: dict[int, weakref.ref[object]] = {}
        self._topics: dict[int, Collection[str]] = {}
        self._owners: dict[Queue, int] = {}
        #: where the first member began in queues that had no position
        self.first_offsets: dict[Queue, int] = {}
        #: changes with each member that joins or leaves, and with each queue that is let go
        self.version = 0

    def join(self, member: object, topics: Collection[str]) -> int:
        """Add a member that reads these topics; return its number, which orders the members."""
        with self._lock:
            number = next(self._numbers)
            self._topics[number] = topics
            self._members[number] = weakref.ref(member, lambda _: self.leave(number))
            self.version += 1
            return number

    def leave(self, number: int) -> None:
        """Remove a member; its queues are free."""
        with self._lock:
            if self._members.pop(number, None) is not None:
                del self._topics[number]
                for queue in [q for q, owner in self._owners.items() if owner == number]:
                    del self._owners[queue]
                self.version += 1

    def assign(self, number: int, queues: Mapping[str, Sequence[int]]) -> list[Queue]:
        """Let go of the queues that are no longer those of a member; return those that it reads.

        Parameters
        ----------
        queues : {topic: queue ids, sorted}, of the topics of this member
        """
        with self._lock:
            if number not in self._members:
                return []
            share = [
                queue for topic, ids in queues.items() for queue in self._share(number, topic, ids)
            ]
            mine = {queue for queue, owner in self._owners.items() if owner == number}
            for queue in mine.difference(share):
                del self._owners[queue]
                self.version += 1
            free = [queue for queue in share if self._owners.get(queue, number) == number]
            self._owners.update(dict.fromkeys(free, number))
            return free

    def _share(self, number: int, topic: str, ids: Sequence[int]) -> list[Queue]:
        readers = sorted(one for one, topics in self._topics.items() if topic in topics)
        return averagely([(topic, i) for i in ids], len(readers), readers.index(number))

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self._members)


class ConsumerGroups:
    """All groups with members in this process.

    Threads: any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[str, Group] = {}

    def group(self, name: str) -> Group:
        """Return a group; an unknown one is made."""
        with self._lock:
            return self._groups.setdefault(name, Group(name))
