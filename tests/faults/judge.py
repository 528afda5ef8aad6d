"""Decides whether a store that a crash left keeps the promises that were made before."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyrocketstore
from device import Captured, Device
from fault_programs import DIRECTORY, Entry, Journal, Promise, Promised, open_store, queues_of
from pyrocketstore.columns._record_walk import BAD_PROPERTIES
from support import oracle
from survivors import SECTOR, Tree, choose, image_of, write

#: The clock of a recovering store, later than that of every program (Unix ms).
RECOVERED_MS = 1_750_000_000_000
#: Number of images of a crashed recovery, for each image that is recovered under a device.
SECOND_IMAGES = 2

#: The report of an index entry; the group is the byte of the log that the entry names.
KEYLESS = re.compile(r"names (\d+) of the log, whose record has no such key")


class Broken(AssertionError):
    """Raised for a broken promise of the store."""


def demand(holds: bool, *what: object) -> None:
    """Raise Broken unless a condition holds."""
    if not holds:
        raise Broken(" ".join(map(str, what)))


class Expected(NamedTuple):
    """The messages that must exist: promised ones, and those that an earlier recovery restored."""

    given: list[Entry]
    safe: list[Promise]
    held: list[int] = []  # noqa: RUF012  numbers; a tuple of lists is made once
    is_first: bool = False  # nothing was lost before, so the log is a prefix of the puts
    listed: list[int] = []  # noqa: RUF012  numbers of messages whose topics are in topics.json

    @classmethod
    def of(cls, journal: Journal, moment: Captured) -> Expected:
        """Return the expectations at the moment of a crash."""
        given, safe, listed = moment.promised
        return cls(journal.given[:given], journal.safe[:safe], listed=journal.returned[:listed])


def check(store: Any, expected: Expected, counts: Counter[str]) -> list[int]:
    """Compare a store with the promises; return the numbers of its messages in log order.

    Every promised message exists, and no message exists that was never put.
    """
    held = {queue: list(store.read(*queue)) for queue in queues_of(store)}
    by_body = {entry.body: number for number, entry in enumerate(expected.given)}
    by_number: dict[int, tuple[str, int, int, int]] = {}
    safe = {promise.number for promise in expected.safe}
    torn: set[int] = set()
    for (topic, queue_id), messages in held.items():
        where = f"{topic}/{queue_id}"
        demand([m.queue_offset for m in messages] == list(range(len(messages))), where, "has gaps")
        demand(store.max_offset(topic, queue_id) == len(messages), where, "has another end")
        for message in messages:
            number = by_body.get(message.body)
            demand(number is not None, where, message.queue_offset, "was never put")
            assert number is not None
            demand(number not in by_number, where, message.queue_offset, "is there twice")
            by_number[number] = (topic, queue_id, message.queue_offset, message.phy_offset)
            if number in safe or not is_torn(store, message):
                check_message(expected.given[number], message, where)
            else:
                torn.add(number)
    order = sorted(by_number, key=lambda number: by_number[number][3])
    demand(order == sorted(order), "the log has another order than the puts")
    demand(not expected.is_first or order == list(range(len(order))), "a hole in", order)
    for promise in expected.safe:
        entry = expected.given[promise.number]
        found = by_number.get(promise.number)
        wanted = (entry.topic, entry.queue_id, promise.queue_offset)
        demand(found is not None, "lost:", promise, wanted)
        assert found is not None
        demand(found[:3] == wanted, promise, wanted, "is at", found)
        demand(promise.phy_offset in (-1, found[3]), promise, "is at", found)
    lost = set(expected.held) - by_number.keys()
    demand(not lost, "an earlier recovery had brought back:", sorted(lost)[:5])
    check_keys(store, expected.given, by_number, torn)
    check_report(store, {by_number[number][3] for number in torn})
    counts["messages checked"] += len(by_number)
    counts["messages with torn properties"] += len(torn)
    return order


def check_topics(path: Path, given: list[Entry], numbers: list[int]) -> None:
    """Require that topics.json has the queues of these messages."""
    file = path / DIRECTORY / "config" / "topics.json"
    table = {}
    if numbers:
        demand(file.exists(), "topics.json is missing")
        data = file.read_bytes()
        demand(data[-1:] == b"}", "topics.json is not whole:", data)
        table = json.loads(data)["topicConfigTable"]
    for topic, queue_id in {(given[n].topic, given[n].queue_id) for n in numbers}:
        counts = [table.get(topic, {}).get(name, 0) for name in ("readQueueNums", "writeQueueNums")]
        demand(min(counts) > queue_id, "topics.json has", counts, "queues of", topic, queue_id)


def check_report(store: Any, torn: Collection[int] = ()) -> None:
    """Require that verify() reports only the messages with torn properties at these bytes of the
    log."""
    if store.read_only and not is_clean(store):
        return  # verify also reports damage that a recovery would repair
    report = store.verify()
    bad = report.bad_properties
    demand(bad <= len(torn), "verify: torn properties:", bad, torn)
    problems = problems_but_torn(report, torn)
    demand(not problems and report.complete, "verify:", problems[:4], report.not_indexed)


def problems_but_torn(report: Any, torn: Collection[int] = ()) -> list[Any]:
    """Return the problems that are not of torn properties, which no CRC covers: those reported,
    and those of messages at the bytes `torn` of the log. An index file that was durable before them
    may have the keys that they were put with."""
    found = {byte_of(p) for p in report.problems if p.text == BAD_PROPERTIES} | set(torn)
    kept = []
    for problem in report.problems:
        named = KEYLESS.search(problem.text)
        at = int(named[1]) if named else -1
        if "not in the index" in problem.text:
            at = byte_of(problem)
        if problem.text != BAD_PROPERTIES and at not in found:
            kept.append(problem)
    return kept


def byte_of(problem: Any) -> int:
    """Return the byte of the log where a problem of a record is."""
    return int(Path(problem.path).name) + int(problem.position)


def is_clean(store: Any) -> bool:
    """Return True if the store was closed and not left by a crash."""
    return bool(store.message_store.plan.clean)


def check_message(entry: Entry, message: Any, where: str) -> None:
    """Require that a message equals the one that was put."""
    demand(
        (message.topic, message.queue_id) == (entry.topic, entry.queue_id),
        where, message.queue_offset, "is of another queue",
    )  # fmt: skip
    demand(not differences(entry, message), where, message.queue_offset, "has",
           *differences(entry, message))  # fmt: skip


def differences(entry: Entry, message: Any) -> list[str]:
    """Return the properties that differ from those that were put."""
    wanted = (entry.key, entry.tags, entry.properties.get("wide"))
    found = (message.keys, message.tags, message.properties.get("wide"))
    return [f"{a!r} for {b!r}" for a, b in zip(found, wanted, strict=True) if a != b]


def is_torn(store: Any, message: Any) -> bool:
    """Return True if a sector of the properties is all zeros.

    Recovery cannot detect this, since the CRC of a record covers only its body. No such message was
    promised.
    """
    data = bytes(store.message_store.select_one_message_by_offset(message.phy_offset).byte_buffer)
    record = oracle.decode_record(data)
    size = len(record.properties)
    start, end = message.phy_offset + len(data) - size, message.phy_offset + len(data)
    cuts = [start, *range(start - start % SECTOR + SECTOR, end, SECTOR), end]
    parts = [record.properties[a - start : b - start] for a, b in itertools.pairwise(cuts)]
    return any(part and not part.strip(b"\0") for part in parts)


def check_keys(
    store: Any, given: list[Entry], by_number: dict[int, tuple[str, int, int, int]], torn: set[int]
) -> None:
    """Require that each key finds its message, and the key of a lost message nothing."""
    for topic in {entry.topic for entry in given}:
        numbers = [n for n, e in enumerate(given) if e.topic == topic and n not in torn]
        hits = store.query_many(topic, [given[n].key for n in numbers])
        found = sorted(zip([numbers[i] for i in hits.key_index.tolist()], hits.queue_id.tolist(),
                           hits.queue_offset.tolist(), hits.phy_offset.tolist(),
                           strict=True))  # fmt: skip
        wanted = sorted((n, *by_number[n][1:]) for n in numbers if n in by_number)
        different = set(found) ^ set(wanted)
        demand(
            found == wanted, topic, "keys that do not find their messages:", sorted(different)[:4]
        )


def log_of(path: Path) -> list[bytes]:
    """Return the bodies of the log by the plain-Python reader."""
    bodies: list[bytes] = []
    for file in sorted((path / DIRECTORY / "commitlog").iterdir()):
        data = file.read_bytes()
        records, _, end = oracle.scan_log(data, int(file.name))
        bodies += [record.body for _, record in records]
        if oracle.blank(len(data) - end)[:8] != data[end : end + 8]:
            break
    return bodies


@contextlib.contextmanager
def opened(
    path: Path, settings: dict[str, Any], device: Device | None = None, **more: Any
) -> Iterator[Any]:
    """Open a store that a crash left; it may warn of valid records behind the log's end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pyrocketstore.StoreWarning)
        store = open_store(path, settings, device, **more)
    with store:
        yield store


class Judge:
    """Examines images, each in a new directory below `path`."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.number = 0
        #: the most recent image
        self.image: Tree = {}

    def directory(self) -> Path:
        self.number += 1
        return self.path / f"image{self.number}"

    def examine(self, image: Tree, expected: Expected, seed: str, *, again: bool = True) -> None:
        """Open an image, compare it with the promises, put into it, close it and open it again."""
        rng = random.Random(seed)
        path = self.directory()
        self.image = image
        write(image, path)
        self.counts["images"] += 1
        if not (path / DIRECTORY).exists():
            gone = not (expected.safe or expected.held or expected.listed)
            demand(gone, "the whole store is gone")
            return
        check_topics(path, expected.given, expected.listed)
        if rng.random() < 0.2:
            with opened(path, self.settings, read_only=True) as store:
                self.counts["opened read-only first"] += 1
                check(store, expected, self.counts)
        device = None
        base = len(expected.given)
        if again and rng.random() < 0.4:
            device = Device(path, seed, captures_max=SECOND_IMAGES, rate=0.8)
            device.clock_ms = RECOVERED_MS
            device.promises = lambda: Promised(len(expected.given), len(expected.safe))
        with opened(path, self.settings, device) as store:
            held = check(store, expected, self.counts)
            self.go_on(store, expected, held, rng, device)
        check_topics(path, expected.given, [*expected.listed, *held])
        again_expected = expected._replace(held=held, is_first=False)
        with opened(path, self.settings, read_only=rng.random() < 0.5) as store:
            demand(is_clean(store), "the store did not close cleanly")
            now = check(store, again_expected, self.counts)
        if rng.random() < 0.2:
            self.counts["read by the oracle"] += 1
            bodies = [expected.given[number].body for number in now]
            demand(log_of(path) == bodies, "the log has other records than the queues")
        if device is not None:
            for number, moment in enumerate(device.captures):
                then = expected._replace(held=[n for n in held if n < base], is_first=False)
                self.second(moment, then, f"{seed}/{number}")
            device.release()

    def go_on(
        self, store: Any, expected: Expected, held: list[int], rng: random.Random,
        device: Device | None,
    ) -> None:  # fmt: skip
        """Put more messages, and note them as promises."""
        if device is not None:
            device.moment("recovered")
        for _ in range(rng.randrange(4)):
            number = len(expected.given)
            entry = Entry("orders", rng.randrange(3), f"k{number}", None, b"%d|later" % number, {})
            expected.given.append(entry)
            result = store.put(entry.topic, entry.body, queue_id=entry.queue_id, keys=entry.key)
            held.append(number)
            if store.message_store.config.is_sync_flush:
                expected.safe.append(Promise(number, result.queue_offset, result.phy_offset))

    def second(self, moment: Captured, expected: Expected, seed: str) -> None:
        """Examine images of a second power cut, during the recovery or just after it."""
        rng = random.Random(seed)
        choice = choose(rng)
        self.counts["second crash"] += 1
        given, safe, _ = moment.promised
        then = expected._replace(given=expected.given[:given], safe=expected.safe[:safe])
        self.examine(image_of(moment, choice, rng), then, seed, again=False)
