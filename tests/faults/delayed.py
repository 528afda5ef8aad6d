"""Delayed messages that are due at once: puts with a journal, and its comparison with a store.

Bodies are rising numbers.
"""

from __future__ import annotations

import os
import random
import time
import warnings
from pathlib import Path
from typing import Any

import pyrocketstore
from journal import SETTINGS

LEVELS = 2
#: Short intervals, so that the offsets of the levels are written all the time.
DELAYED: dict[str, Any] = {
    **SETTINGS,
    "message_delay_level": " ".join(["0s"] * LEVELS),
    "flush_delay_offset_interval": 2,
    "flush_interval_commit_log": 10,
    "flush_interval_consume_queue": 15,
}
LONGEST_S = 30.0


class DelayedJournal:
    """The numbers whose put has begun, and those that were acknowledged; survives a kill."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(self._fd, b"\n")

    def note(self, kind: str, numbers: range) -> None:
        """Note a put: kind "B" before it, "E" once it was acknowledged."""
        os.write(self._fd, f"{kind} {numbers.start} {numbers.stop}\n".encode())

    def read(self) -> tuple[set[int], set[int]]:
        """Return the numbers that were begun, and those that were acknowledged."""
        found: dict[str, set[int]] = {"B": set(), "E": set()}
        for line in self.path.read_text().splitlines():
            words = line.split()
            if len(words) == 3:
                found[words[0]] |= set(range(int(words[1]), int(words[2])))
        return found["B"], found["E"]

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def level_of(number: int) -> int:
    """Return the level of a message."""
    return number % LEVELS + 1


def topic_of(number: int) -> str:
    """Return the real topic of a message that is put alone."""
    return ("t", "u")[number % 3 % 2]


def put_delayed(
    store: pyrocketstore.Store, journal: DelayedJournal, first: int, rng: random.Random
) -> int:
    """Put one message or several, numbered from `first`; return how many."""
    count = rng.choice((1, 1, 1, 7))
    numbers = range(first, first + count)
    bodies = [b"%d " % number + bytes(rng.randrange(300)) for number in numbers]
    journal.note("B", numbers)
    if count == 1:
        store.put(topic_of(first), bodies[0], delay_level=level_of(first))
    else:  # to one topic, which all levels share
        store.put_many("t", bodies, delay_levels=[level_of(number) for number in numbers])
    journal.note("E", numbers)
    return count


def delivered(store: pyrocketstore.Store) -> dict[int, list[int]]:
    """Return the numbers that were delivered, by level, in the order of the log."""
    found: dict[int, list[tuple[int, int]]] = {}
    for topic in {"t", "u"} & set(store.topics()):
        for message in store.read(topic):
            number = int(message.body.split()[0])
            found.setdefault(level_of(number), []).append((message.phy_offset, number))
    return {level: [number for _, number in sorted(rows)] for level, rows in found.items()}


def settled(store: pyrocketstore.Store) -> dict[int, list[int]]:
    """Return what was delivered once nothing is left to deliver."""
    service = store.message_store.services.schedule_service
    assert service is not None
    store.wait_dispatched()
    end = time.monotonic() + LONGEST_S
    while service.has_messages():
        assert time.monotonic() < end, "messages that are due are not delivered"
        time.sleep(0.002)
    store.wait_dispatched()
    return delivered(store)


def check(path: Path, begun: set[int], acknowledged: set[int]) -> None:
    """Require that each acknowledged message is delivered, in its order, and that clean stops
    repeat none.

    After a crash, deliveries since the last write of the offsets may be repeated.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pyrocketstore.StoreWarning)  # records behind the log's end
        opened = pyrocketstore.open(path, **DELAYED)
    with opened as store:
        found = settled(store)
        # A put that was cut may leave torn properties, which no CRC covers.
        problems = [p for p in store.verify().problems if "properties of the rec" not in p.text]
        assert not problems, problems[:3]
    everything: set[int] = set()
    for level, numbers in found.items():
        firsts = list(dict.fromkeys(numbers))
        assert firsts == sorted(firsts), f"level {level} is out of order"
        everything |= set(numbers)
    assert acknowledged <= everything, f"lost: {sorted(acknowledged - everything)[:5]}"
    assert everything <= begun, f"never put: {sorted(everything - begun)[:5]}"
    with pyrocketstore.open(path, **DELAYED) as store:
        assert settled(store) == found, "a clean stop has repeated deliveries"
