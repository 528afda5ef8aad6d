"""Random programs for one store, and a journal of the store's promises.

A program is derived from its seed alone. Its steps run in one thread. Steps of the program also do
the periodic work of the store's services, whose intervals are long, so that a seed repeats the same
moments as far as threads allow.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyrocketstore
from device import Device
from pyrocketstore import MessageExtBrokerInner
from pyrocketstore.record._message import properties_to_string
from pyrocketstore.system.env import Env

#: An interval so long that no periodic service runs (ms).
NEVER = 10_000_000
TOPICS = ("orders", "events", "%RETRY%g")
QUEUES = 3
#: Number of topics and of queue ids that a growing program may use in addition.
NEW_TOPICS = 12
NEW_QUEUES = 30
DIRECTORY = "store"
#: Steps by which a wall clock is set back or forward (ms).
JUMPS = (-3_600_000, -3_600_000, -20_000, 86_400_000, -86_400_000, 3_600_000)


class Entry(NamedTuple):
    """A message that was passed to the store."""

    topic: str
    queue_id: int
    key: str
    tags: str | None
    body: bytes
    properties: dict[str, str]


class Promise(NamedTuple):
    """A message that must survive a power cut: its number in the journal, and its offsets."""

    number: int
    queue_offset: int
    phy_offset: int  # -1 if the put did not return it


class Promised(NamedTuple):
    """The journal at one moment: the numbers of messages that were given, that are safe, and whose
    topics are in topics.json."""

    given: int
    safe: int
    listed: int = 0


class Journal:
    """All messages of a program, in the order of the puts.

    `given` grows before a put begins, `accepted` when it returned PUT_OK, and `safe` with each
    promise: at once under SYNC_FLUSH, else when a flush has returned.
    """

    def __init__(self, sync: bool) -> None:
        self.sync = sync
        #: True if no crash came before
        self.is_first = True
        self.given: list[Entry] = []
        self.safe: list[Promise] = []
        #: numbers of the messages whose put has returned; topics.json has the topics of the first
        #: `listed` of them
        self.returned: list[int] = []
        self.listed = 0
        self._accepted: list[Promise] = []

    def moment(self) -> Promised:
        """Return the journal's state for Device.promises."""
        return Promised(len(self.given), len(self.safe), self.listed)

    def accept(self, promises: list[Promise], waited: bool = True) -> None:
        """Note messages whose put has returned; it waited for the device unless `wait` is False."""
        self._accepted += promises
        self.returned += [promise.number for promise in promises]
        if self.sync and waited:
            self.flushed()

    def all_flushed(self) -> None:
        """Note that a flush or a close of the whole store has returned."""
        self.flushed()
        self.listed = len(self.returned)

    def lost_buffers(self) -> None:
        """Forget uncommitted messages: the close of a store with a transient store pool raised.

        They are lost, as after a kill, and topics.json need not have their topics.
        """
        lost = {promise.number for promise in self._accepted}
        self.returned = [number for number in self.returned if number not in lost]
        self._accepted.clear()

    def flushed(self, phy_offset: int | None = None) -> None:
        """Note that all accepted messages, or those that end before a physical offset, are safe."""
        count = len(self._accepted)
        if phy_offset is not None:
            # All messages before the start of another one have ended.
            begins = [i for i, p in enumerate(self._accepted) if 0 <= p.phy_offset <= phy_offset]
            count = begins[-1] if begins else 0
        self.safe += self._accepted[:count]
        del self._accepted[:count]


class Program(NamedTuple):
    """Settings of a program, and its amount of work."""

    seed: str
    settings: dict[str, Any]
    steps: int


def make(seed: str) -> Program:
    """Return the program of a seed."""
    rng = random.Random(seed)
    slots, entries = rng.choice(((20, 60), (50, 200), (1500, 400), (10, 2000)))
    settings: dict[str, Any] = {
        "mapped_file_size_commit_log": rng.choice((1 << 15, 1 << 16, 1 << 17)),
        "mapped_file_size_consume_queue": rng.choice((400, 2000, 10_000, 40_000)),
        "max_hash_slot_num": slots,
        "max_index_num": entries,
        "flush_disk_type": rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH")),
        "flush_interval_commit_log": NEVER,
        "flush_interval_consume_queue": NEVER,
    }
    if rng.random() < 0.2:
        settings |= {
            "enable_consume_queue_ext": True,
            "mapped_file_size_consume_queue_ext": rng.choice((500, 6000)),
        }
    # Separate, so that the choices of existing seeds stay unchanged.
    settings["syncfs_least_files"] = random.Random(f"{seed} syncfs").choice((0, 1, 2, 5))
    return Program(seed, settings, rng.randrange(15, 50))


def open_store(path: Path, settings: dict[str, Any], device: Device | None, **more: Any) -> Any:
    """Return the root of the store below `path`, the directory of the device."""
    env = Env()
    if device is not None:
        device.attach(env)
    return pyrocketstore.open(path / DIRECTORY, env=env, **(settings | more))


class Runner:
    """Runs a program against a device."""

    def __init__(self, program: Program, path: Path, device: Device, journal: Journal) -> None:
        self.program = program
        self.path = path
        self.device = device
        self.journal = journal
        self.rng = random.Random(program.seed + " steps")
        self.width = self.rng.choice((60, 600, 3000))
        # A separate generator leaves the choices of existing seeds unchanged.
        self.unwaited = random.Random(program.seed + " unwaited")
        self.awaited = random.Random(program.seed + " awaited")
        self.fresh = random.Random(program.seed + " new queues")
        #: True if the program makes topics and queues all the time
        self.grows = self.fresh.random() < 0.5
        #: True if the wall clock is set back and forward while this program runs
        self.clock = random.Random(program.seed + " clock")
        self.jumps = self.clock.random() < 0.5
        device.promises = journal.moment

    def run(self, steps: int | None = None) -> None:
        """Run all steps; the last close is random."""
        store = self.open()
        try:
            for _ in range(self.program.steps if steps is None else steps):
                store = self.step(store)
                self.device.moment("between steps")
        finally:
            store.close()
        self.journal.all_flushed()
        self.device.moment("closed")

    def open(self) -> Any:
        return open_store(self.path, self.program.settings, self.device)

    def step(self, store: Any) -> Any:
        """Run a random step; return the store that is open afterwards."""
        steps: list[tuple[Callable[[Any], None], int]] = [
            (self.single, 12),
            (self.many, 4),
            (self.batch, 3),
            (self.later, 2),
            (self.flush, 1),
            (self.flush_log, 3),
            (self.flush_queues, 3),
            (self.wait, 3),
            (self.time_passes, 3),
        ]
        if self.rng.random() < 0.05:
            store.close()
            self.journal.all_flushed()
            self.device.moment("closed")
            return self.open()
        if self.jumps and self.clock.random() < 0.2:
            self.device.clock_ms += self.clock.choice(JUMPS)
        step = self.rng.choices([s for s, _ in steps], [weight for _, weight in steps])[0]
        step(store)
        return store

    # ---- puts -----------------------------------------------------------------------------------

    def entries(self, count: int, topic: str | None = None, queue_id: int | None = None) -> int:
        """Make messages and note them; return the number of the first."""
        first = len(self.journal.given)
        rng = self.rng
        topic = rng.choice(TOPICS) if topic is None else topic
        grows = self.grows and self.fresh.random() < 0.4
        if grows and self.fresh.random() < 0.7:
            topic = f"new-{self.fresh.randrange(NEW_TOPICS)}"
        for number in range(first, first + count):
            body = f"{number}|".encode() + rng.randbytes(rng.randrange(self.width))
            if rng.random() < 0.1:
                body += bytes(rng.randrange(600))
            wide = {"wide": "w" * rng.randrange(1, 2000)} if rng.random() < 0.1 else {}
            queue = rng.randrange(QUEUES) if queue_id is None else queue_id
            if grows and queue_id is None:
                queue = self.fresh.randrange(NEW_QUEUES)
            tags = rng.choice((None, "A", "B", "Tag-of-some-length"))
            self.journal.given.append(Entry(topic, queue, f"k{number}", tags, body, wide))
        return first

    def single(self, store: Any) -> None:
        for _ in range(self.rng.choice((1, 1, 3, 12))):
            number = self.entries(1)
            entry = self.journal.given[number]
            result = store.put(entry.topic, entry.body, queue_id=entry.queue_id, tags=entry.tags,
                               keys=entry.key, properties=entry.properties or None)  # fmt: skip
            self.journal.accept([Promise(number, result.queue_offset, result.phy_offset)])

    def many(self, store: Any) -> None:
        first = self.entries(self.rng.choice((2, 10, 60)), self.rng.choice(TOPICS))
        rows = self.journal.given[first:]
        queued, offsets = store.put_many(
            rows[0].topic,
            [e.body for e in rows],
            queue_ids=[e.queue_id for e in rows],
            tags=[e.tags for e in rows],
            keys=[e.key for e in rows],
            properties=[e.properties for e in rows] if any(e.properties for e in rows) else None,
        )
        promises = zip(range(first, first + len(rows)), queued.tolist(), offsets.tolist(),
                        strict=True)  # fmt: skip
        self.journal.accept([Promise(*row) for row in promises])

    def batch(self, store: Any) -> None:
        first = self.entries(self.rng.choice((1, 3, 8)), queue_id=self.rng.randrange(QUEUES))
        rows = self.journal.given[first:]
        items = [{"body": e.body, "keys": e.key, "tags": e.tags, "properties": e.properties}
                 for e in rows]  # fmt: skip
        begin = store.put_batch(rows[0].topic, items, rows[0].queue_id).queue_offset
        self.journal.accept([Promise(first + i, begin + i, -1) for i in range(len(rows))])

    def later(self, store: Any) -> None:
        """Put with futures, which make a message safe if they wait for the device, or by `aput`."""
        count = self.rng.randrange(1, 5)
        if self.awaited.random() < 0.4:
            asyncio.run(self.at_once(store, count))
            return
        waiting = []
        for _ in range(count):
            number = self.entries(1)
            entry = self.journal.given[number]
            properties = dict(entry.properties) | {"KEYS": entry.key}
            if entry.tags is not None:
                properties["TAGS"] = entry.tags
            message = MessageExtBrokerInner(
                entry.topic,
                entry.body,
                entry.queue_id,
                properties=properties,
                properties_string=properties_to_string(properties),
            )
            message.wait_store_msg_ok = self.unwaited.random() < 0.7
            future = store.message_store.async_put_message(message)
            waiting.append((number, message.wait_store_msg_ok, future))
        for number, waited, future in waiting:
            result = future.result(60)
            if result.status.name != "PUT_OK":
                self.refused(result)
                continue
            promise = Promise(number, result.queue_offset, result.phy_offset)
            self.journal.accept([promise], waited)

    def refused(self, result: Any) -> None:
        """Raised for the future of a put that is not PUT_OK."""
        raise AssertionError(result)

    async def at_once(self, store: Any, count: int) -> None:
        outcomes = await asyncio.gather(
            *[self.one(store) for _ in range(count)], return_exceptions=True
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def one(self, store: Any) -> None:
        number = self.entries(1)
        entry = self.journal.given[number]
        result = await store.aput(entry.topic, entry.body, queue_id=entry.queue_id,
                                  tags=entry.tags, keys=entry.key,
                                  properties=entry.properties or None)  # fmt: skip
        self.journal.accept([Promise(number, result.queue_offset, result.phy_offset)])

    # ---- what services do -----------------------------------------------------------------------

    def flush(self, store: Any) -> None:
        store.flush()
        self.journal.all_flushed()

    def flush_log(self, store: Any) -> None:
        """Flush as FlushRealTimeService does."""
        flush = store.message_store.services.log_flush
        with flush.lock:
            flush.flush_step(self.rng.choice((0, 0, 4)))
        self.journal.flushed(flush.flushed_where)

    def flush_queues(self, store: Any) -> None:
        """Flush as FlushConsumeQueueService does."""
        store.message_store.services.flush_queue_service.do_flush(self.rng.random() < 0.7)

    def wait(self, store: Any) -> None:
        store.wait_dispatched()

    def time_passes(self, store: Any) -> None:
        self.device.clock_ms += self.rng.choice((1, 700, 5000, 60_000))


def queues_of(store: Any) -> Iterator[tuple[str, int]]:
    """Return every queue of the store."""
    for topic in store.topics():
        for queue_id in store.queues(topic):
            yield topic, queue_id
