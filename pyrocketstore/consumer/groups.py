"""The consumers of this process by group, and the queues that each of them reads.

The module is compiled, so that no signal handler raises while one of its locks is held.
"""

from __future__ import annotations

import collections
import itertools
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyrocketstore.consume_queue.unit_mark import UnitMark

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

    Parameters
    ----------
    name : str
    changed : callable(), wakes the members that wait: their queues may be others now. Compiled
        code, since it is called with the lock held

    Threads: any.
    """

    def __init__(self, name: str, changed: Callable[[], object]) -> None:
        self.name = name
        self._changed = changed
        self._lock = threading.Lock()
        #: numbers of members that are gone; a consumer may be collected while the lock is held
        self._gone: collections.deque[int] = collections.deque()
        self._numbers = itertools.count()
        self._members: dict[int, weakref.ref[object]] = {}
        self._topics: dict[int, Collection[str]] = {}
        self._owners: dict[Queue, int] = {}
        #: members that begin at no given offsets
        self._others: set[int] = set()
        #: where members began in queues without a position; forgotten with the last member
        self.first_offsets: dict[Queue, tuple[int, UnitMark | None]] = {}
        #: changes with each member that joins or leaves, and with each queue that is let go
        self.version = 0

    def join(
        self,
        member: object,
        topics: Collection[str],
        first_offsets: Mapping[Queue, tuple[int, UnitMark | None]] | None,
    ) -> int:
        """Add a member that reads these topics; return its number, which orders the members.

        Parameters
        ----------
        first_offsets : where it begins in queues without a position, and the message before,
            unless an earlier member has begun there; None: at no given offsets
        """
        with self._lock:
            self._remove_gone()
            number = next(self._numbers)
            if first_offsets is None:
                self._others.add(number)
            else:
                for queue, place in first_offsets.items():
                    self.first_offsets.setdefault(queue, place)
            self._topics[number] = topics
            self._members[number] = weakref.ref(member, lambda _: self._note_gone(number))
            self._change()
            return number

    def begins_at_end(self) -> bool:
        """Return whether every member has given the offsets where it begins."""
        with self._lock:
            self._remove_gone()
            return not self._others

    def _note_gone(self, number: int) -> None:
        self._gone.append(number)
        self._change()

    def _remove_gone(self) -> None:
        """Remove the members that were collected. Call with the lock held."""
        while self._gone:
            self._remove(self._gone.popleft())

    def leave(self, number: int) -> None:
        """Remove a member; its queues are free."""
        with self._lock:
            self._remove_gone()
            if self._remove(number):
                self._change()

    def _remove(self, number: int) -> bool:
        if self._members.pop(number, None) is None:
            return False
        del self._topics[number]
        self._others.discard(number)
        for queue in [q for q, owner in self._owners.items() if owner == number]:
            del self._owners[queue]
        if not self._members:
            self.first_offsets.clear()
        return True

    def _change(self) -> None:
        self.version += 1
        self._changed()

    def assign(self, number: int, queues: Mapping[str, Sequence[int]]) -> list[Queue]:
        """Let go of the queues that are no longer those of a member; return those that it reads.

        Parameters
        ----------
        queues : {topic: queue ids, sorted}, of the topics of this member
        """
        with self._lock:
            self._remove_gone()
            if number not in self._members:
                return []
            share = [
                queue for topic, ids in queues.items() for queue in self._share(number, topic, ids)
            ]
            mine = {queue for queue, owner in self._owners.items() if owner == number}
            gone = mine.difference(share)
            for queue in gone:
                del self._owners[queue]
            if gone:
                self._change()
            free = [queue for queue in share if self._owners.get(queue, number) == number]
            self._owners.update(dict.fromkeys(free, number))
            return free

    def _share(self, number: int, topic: str, ids: Sequence[int]) -> list[Queue]:
        readers = sorted(one for one, topics in self._topics.items() if topic in topics)
        return averagely([(topic, i) for i in ids], len(readers), readers.index(number))

    @property
    def size(self) -> int:
        """The number of members."""
        with self._lock:
            self._remove_gone()
            return len(self._members)


class ConsumerGroups:
    """All groups with members in this process.

    Parameters
    ----------
    changed : as of Group

    Threads: any.
    """

    def __init__(self, changed: Callable[[], object]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._groups: dict[str, Group] = {}

    def group(self, name: str) -> Group:
        """Return a group; an unknown one is made."""
        with self._lock:
            return self._groups.setdefault(name, Group(name, self._changed))
