"""Goal: whatever the owner of a store does between any two system calls of a reader, `follow` and a
consumer report no damage, return messages in order, and each one that is left; a consumer
leaves none out without a report.
Method: one thread. The reader's calls are counted, and at seeded numbers the owner puts, drops the
topic, makes it again, trims the log or opens the store again. Seed: ROCKETSTORE_SEED."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import MessageExt, MessagesRemovedError, Store
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.seed import SEED

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 14,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 50,
    "max_index_num": 2000,
}
CASES = 200
COMPILED = ("open", "pread", "list_directory", "file_size")
OF_PYTHON = ("identity", "mtime_ms", "files_named", "exists", "read_file", "is_dir", "listdir")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:(?s).*made again:pyrocketstore.StoreWarning"),
]


class Steps:
    """Counts the calls of a reader; at planned numbers the owner acts before the call."""

    def __init__(self) -> None:
        self.count, self.plan = 0, dict[int, Callable[[], object]]()
        self.trace: list[str] = []

    def call(self, name: str) -> None:
        self.count += 1
        act = self.plan.pop(self.count, None)
        if act is not None:
            plan, self.plan = self.plan, {}
            act()
            self.trace.append(f"{self.count} {name} {act.__name__}")
            self.plan = plan


class SteppedEnv(Env):
    """An Env whose calls of Python count as steps."""

    steps: Steps


def _stepped(name: str) -> Callable[..., Any]:
    def call(self: SteppedEnv, *given: Any, **more: Any) -> Any:
        self.steps.call(name)
        return getattr(Env, name)(self, *given, **more)

    return call


for _name in OF_PYTHON:
    setattr(SteppedEnv, _name, _stepped(_name))


class Owner:
    """The actions of the owner."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self.store, self.chance = store, chance
        self.largest = chance.choice([10, 600])
        self.generation = 0

    def put(self, counts: Sequence[int] = (1, 3, 9, 24, 40, 60)) -> None:
        """Put messages, whose bodies begin with the number of the topic's generation."""
        for _ in range(self.chance.choice(counts)):
            body = b"%d " % self.generation + bytes(self.chance.randrange(self.largest))
            self.store.put("a", body, keys="k")
        self.store.message_store.wait_dispatched()

    def put_others(self) -> None:
        for _ in range(20):
            self.store.put("b", bytes(self.chance.randrange(self.largest)))
        self.store.message_store.wait_dispatched()

    def drop(self) -> None:
        if "a" in self.store.topics():
            self.store.drop_topic("a")
            self.generation += 1

    def make_again(self) -> None:
        self.drop()
        self.put()

    def make_again_twice(self) -> None:
        self.make_again()
        self.make_again()

    def trim(self) -> None:
        self.store.trim(before=int(time.time() * 1000) + 1)

    def open_again(self) -> None:
        self.store.close()
        self.store = pyrocketstore.open(self.store.path, **SETTINGS)

    def drop_and_open_again(self) -> None:
        self.make_again()
        self.open_again()

    def plan(self) -> dict[int, Callable[[], object]]:
        """Return actions by the number of the call before which they happen."""
        again = [self.make_again] * 3
        acts = [*again, self.make_again_twice, self.put, self.put_others, self.drop, self.trim]
        acts += [self.open_again, self.drop_and_open_again]
        span, count = self.chance.choice([10, 20, 40, 80]), self.chance.choice([0, 1, 2, 4])
        plan = {self.chance.randrange(1, span): self.chance.choice(acts) for _ in range(count)}
        return {self.chance.randrange(1, 12): self.chance.choice(again), **plan}


def left(reader: Store) -> set[int]:
    reader.refresh()
    if "a" not in reader.topics():
        return set()
    return {message.phy_offset for message in reader.read("a", None)}


class Seen:
    """The messages of one queue that a reader returned, and those that it reported as removed."""

    def __init__(self) -> None:
        self.offsets: set[int] = set()
        self._last, self._generation, self._next = -1, b"", 0

    def take(self, messages: Iterable[MessageExt], *, whole: bool) -> None:
        """Check the order of messages; `whole`: that none is left out without a report."""
        for message in messages:
            assert message.phy_offset > self._last, (message.phy_offset, self._last)
            generation = message.body.split()[0]
            if whole and generation == self._generation:
                assert message.queue_offset == self._next, (message.queue_offset, self._next)
            self._last, self._generation = message.phy_offset, generation
            self._next = message.queue_offset + 1
            self.offsets.add(message.phy_offset)

    def removed(self, error: MessagesRemovedError) -> None:
        """Note the messages that an error names."""
        if error.start == self._next:
            self._next = error.stop


def check_follow(reader: Store, steps: Steps, owner: Owner, chance: random.Random) -> None:
    seen, again = Seen(), Seen()
    messages = reader.follow("a", on_loss="skip", timeout=0.02)
    seen.take(itertools.islice(messages, chance.choice([0, 1, 3])), whole=False)
    steps.plan, steps.count = owner.plan(), 0
    seen.take(messages, whole=False)
    assert not messages.skipped
    steps.plan = {}
    # A new iterator: the previous one has ended, maybe before the last action.
    again.take(reader.follow("a", timeout=0), whole=True)
    assert left(reader) <= seen.offsets | again.offsets


def check_consumer(reader: Store, steps: Steps, owner: Owner, chance: random.Random) -> None:
    seen = Seen()
    consumer = reader.consumer("g", "a", on_loss="raise")

    def poll(count: int) -> None:
        try:
            seen.take(consumer.poll(count, 0), whole=True)
        except MessagesRemovedError as error:
            seen.removed(error)

    poll(chance.choice([1, 2, 9]))
    steps.plan, steps.count = owner.plan(), 0
    for _ in range(20):
        if chance.random() < 0.5:
            owner.put()
        poll(20)
    steps.plan = {}
    for _ in range(20):
        poll(500)
    assert left(reader) <= seen.offsets


@contextlib.contextmanager
def stores(root: Path, steps: Steps, chance: random.Random) -> Iterator[tuple[Owner, Store]]:
    """Give the owner of a store and a reader, whose calls are steps."""
    env = SteppedEnv()
    env.steps = steps
    with contextlib.ExitStack() as stack:
        owner = Owner(pyrocketstore.open(root, **SETTINGS), chance)
        stack.callback(lambda: owner.store.close())
        owner.put([5, 25, 45])
        owner.store.put("b", b"")
        owner.store.message_store.wait_dispatched()
        reader = pyrocketstore.open(root, read_only=True, env=env, **SETTINGS)
        stack.enter_context(reader)
        for name in COMPILED:

            def call(original: Callable[..., int], *given: Any, name: str = name) -> int:
                steps.call(name)
                return original(*given)

            stack.enter_context(broken(env, name, call))
        yield owner, reader


@pytest.mark.parametrize("check", [check_follow, check_consumer])
def test_an_owner_that_acts_between_two_calls_of_a_reader(
    tmp_path: Path, check: Callable[[Store, Steps, Owner, random.Random], None]
) -> None:
    made_again = 0
    for number in range(CASES):
        chance, steps = random.Random(f"{SEED}/{check.__name__}/{number}"), Steps()
        try:
            with stores(tmp_path / str(number), steps, chance) as (owner, reader):
                check(reader, steps, owner, chance)
        except BaseException as error:
            error.add_note(f"ROCKETSTORE_SEED={SEED}, store {number}: {steps.trace}")
            raise
        made_again += any("make_again" in step for step in steps.trace)
    assert made_again > CASES // 20
