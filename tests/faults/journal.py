"""A journal of the calls that began and of those that were acknowledged, and its comparison with a
store.

A line is one os.write to a file opened with O_APPEND, so it survives a kill of the process right
after it. Bodies are derived from key and size, so the journal does not contain them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections import defaultdict
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import pyrocketstore
from pyrocketstore import MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from pyrocketstore.record._message import properties_to_string
from pyrocketstore.results import STORED_STATUSES

#: Small files, so that log, queues and index roll often.
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 15,
    "mapped_file_size_consume_queue": 800,
    "max_hash_slot_num": 30,
    "max_index_num": 120,
}
TAG = "T"


class Row(NamedTuple):
    """One message of a call."""

    topic: str
    queue_id: int
    key: str
    size: int


class Call(NamedTuple):
    """One put: its writer, its number, its method and its messages."""

    who: str
    number: int
    method: str
    rows: list[Row]


class Outcome(NamedTuple):
    """Outcome of a call: `count` messages are in the log, at the offsets that it returned."""

    count: int
    queue_offsets: list[int]
    phy_offsets: list[int]


def body_of(key: str, size: int) -> bytes:
    """Return the body of a message, which is independent of all other bodies."""
    return key.encode() + b" " + hashlib.shake_128(key.encode()).digest(size)


class Journal:
    """The journal's file. Threads: any."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(self.fd, b"\n")  # an incomplete line of a killed writer stays a separate line

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)

    def begin(self, call: Call) -> None:
        """Note a call that is about to begin."""
        self._write(["B", *call])

    def end(self, call: Call, outcome: Outcome) -> None:
        """Note the outcome of a call."""
        self._write(["E", call.who, call.number, *outcome])

    def _write(self, line: list[Any]) -> None:
        os.write(self.fd, json.dumps(line).encode() + b"\n")


class Record(NamedTuple):
    """A journal that was read: calls by (writer, number), and the outcomes of ended calls."""

    calls: dict[tuple[str, int], Call]
    outcomes: dict[tuple[str, int], Outcome]

    @property
    def acknowledged(self) -> int:
        """Return the number of messages that must be in the store."""
        return sum(outcome.count for outcome in self.outcomes.values())


def read_journal(path: Path) -> Record:
    """Read the file; an incomplete line of a killed writer is ignored."""
    record = Record({}, {})
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        try:
            kind, who, number, *rest = json.loads(line)
        except json.JSONDecodeError:
            continue
        if kind == "B":
            method, rows = rest
            record.calls[who, number] = Call(who, number, method, [Row(*row) for row in rows])
        else:
            record.outcomes[who, number] = Outcome(*rest)
    return record


class Putter:
    """Puts single messages, columns and batches in turn, and notes each call."""

    def __init__(self, store: pyrocketstore.Store, journal: Journal, who: str, random: Any) -> None:
        self.store = store
        self.journal = journal
        self.who = who
        self.random = random
        self.number = 0
        self.keys = 0

    def put(self, method: str = "", *, count: int | None = None) -> None:
        """Make one call and raise its exception; a PutError is noted first."""
        method = method or self.random.choice(("put", "put", "put_many", "put_batch"))
        count = 1 if method == "put" else count or self.random.randrange(1, 20)
        topic = "batch" if method == "put_batch" else self.random.choice(("one", "two"))
        queues = 1 if method == "put_batch" else 2 + self.number // 300
        call = self._begin(method, [self._row(topic, queues) for _ in range(count)])
        rows = call.rows
        try:
            outcome = getattr(self, "_" + method)(topic, rows)
        except pyrocketstore.PutError as error:
            self.journal.end(call, Outcome(error.count, [], []))
            raise
        self.journal.end(call, outcome)

    def _row(self, topic: str, queues: int) -> Row:
        self.keys += 1
        queue_id = self.random.randrange(queues)
        return Row(topic, queue_id, f"{self.who}-{self.keys}", self.random.randrange(700))

    def _begin(self, method: str, rows: list[Row]) -> Call:
        call = Call(self.who, self.number, method, rows)
        self.number += 1
        self.journal.begin(call)
        return call

    def _put(self, topic: str, rows: list[Row]) -> Outcome:
        row = rows[0]
        body = body_of(row.key, row.size)
        result = self.store.put(topic, body, queue_id=row.queue_id, keys=row.key, tags=TAG)
        return Outcome(1, [result.queue_offset], [result.phy_offset])

    def _put_many(self, topic: str, rows: list[Row]) -> Outcome:
        queue_offsets, phy_offsets = self.store.put_many(
            topic,
            [body_of(row.key, row.size) for row in rows],
            queue_ids=[row.queue_id for row in rows],
            keys=[row.key for row in rows],
            tags=[TAG] * len(rows),
        )
        return Outcome(len(rows), queue_offsets.tolist(), phy_offsets.tolist())

    def _put_batch(self, topic: str, rows: list[Row]) -> Outcome:
        items = [{"body": body_of(r.key, r.size), "keys": r.key, "tags": TAG} for r in rows]
        result = self.store.put_batch(topic, items, rows[0].queue_id)
        first = result.queue_offset
        return Outcome(len(rows), [first + i for i in range(len(rows))], [result.phy_offset])


class LaterPutter(Putter):
    """Puts several messages at once and awaits them all, by `aput` in an event loop or by futures.

    Each message is a separate call, which has ended when its future is done.
    """

    def put(self, method: str = "", *, count: int | None = None) -> None:
        """Make some calls at once. Raises the exception of the first one that fails."""
        method = method or self.random.choice(("aput", "future"))
        count = count or self.random.randrange(1, 12)
        if method == "aput":
            asyncio.run(self._aputs(count))
            return
        for future in [self._future() for _ in range(count)]:
            status = future.result(60).status
            if status is not PutMessageStatus.PUT_OK:
                raise pyrocketstore.PutError(status, status in STORED_STATUSES, 0)

    def _one(self, method: str) -> Call:
        return self._begin(method, [self._row(self.random.choice(("one", "two")), 3)])

    async def _aputs(self, count: int) -> None:
        puts = [self._aput() for _ in range(count)]
        for result in await asyncio.gather(*puts, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _aput(self) -> None:
        call = self._one("aput")
        (row,) = call.rows
        body = body_of(row.key, row.size)
        try:
            result = await self.store.aput(
                row.topic, body, queue_id=row.queue_id, keys=row.key, tags=TAG
            )
        except pyrocketstore.PutError as error:
            self.journal.end(call, Outcome(error.count, [], []))
            raise
        self.journal.end(call, Outcome(1, [result.queue_offset], [result.phy_offset]))

    def _future(self) -> Future[PutMessageResult]:
        call = self._one("future")
        (row,) = call.rows
        properties = {"KEYS": row.key, "TAGS": TAG}
        message = MessageExtBrokerInner(
            row.topic,
            body_of(row.key, row.size),
            row.queue_id,
            properties=properties,
            properties_string=properties_to_string(properties),
        )

        def note(future: Future[PutMessageResult]) -> None:
            result = future.result()
            if result.status in STORED_STATUSES:
                self.journal.end(call, Outcome(1, [result.queue_offset], [result.phy_offset]))
            else:
                self.journal.end(call, Outcome(0, [], []))

        future = self.store.message_store.async_put_message(message)
        future.add_done_callback(note)
        return future


class PutterThread(threading.Thread):
    """Puts until the store refuses a put; `error` is the reason."""

    def __init__(self, putter: Putter, *, calls: int = 1 << 40) -> None:
        super().__init__(daemon=True)
        self.putter = putter
        self.calls = calls
        self.error: BaseException | None = None

    def run(self) -> None:
        """Put until the store refuses."""
        try:
            for _ in range(self.calls):
                self.putter.put()
        except pyrocketstore.StoreError as error:
            self.error = error


def check(store: pyrocketstore.Store, record: Record) -> int:
    """Compare a store with a journal; return its number of messages.

    Every acknowledged message exists whole and once, in its order, by queue and by key. A message
    whose put began exists at most once. There are no other messages.
    """
    report = store.verify()
    assert report.ok, report.problems[:5]
    found: dict[str, Any] = {}
    for topic in store.topics():
        for queue_id in store.queues(topic):
            queue = list(store.read(topic, queue_id))
            assert [m.queue_offset for m in queue] == list(range(len(queue))), (topic, queue_id)
            assert store.max_offset(topic, queue_id) == len(queue)
            offsets = [m.phy_offset for m in queue]
            assert offsets == sorted(set(offsets))
            for message in queue:
                key = message.keys
                assert key is not None
                assert key not in found, f"{key} is there twice"
                found[key] = message
    begun = {row.key for call in record.calls.values() for row in call.rows}
    assert found.keys() <= begun, f"never put: {sorted(found.keys() - begun)[:5]}"
    for at, call in record.calls.items():
        _check_call(call, record.outcomes.get(at), found)
    _check_order(record, found)
    _check_keys(store, found)
    return len(found)


def _check_call(call: Call, outcome: Outcome | None, found: dict[str, Any]) -> None:
    held = [found[row.key] for row in call.rows if row.key in found]
    where = f"{call.who}, call {call.number} ({call.method}): {len(held)} of {len(call.rows)}"
    for row, message in zip(call.rows, held, strict=False):
        assert message.keys == row.key, f"{where}: not the first ones"
        assert (message.topic, message.queue_id) == (row.topic, call.rows[0].queue_id
            if call.method == "put_batch" else row.queue_id), where  # fmt: skip
        assert message.body == body_of(row.key, row.size), where
        assert message.tags == TAG, where
    if call.method == "put_batch":
        assert len(held) in (0, len(call.rows)), where
    if outcome is None:
        return
    assert len(held) == outcome.count, f"{where} are there, and {outcome.count} were acknowledged"
    if outcome.queue_offsets:
        assert [m.queue_offset for m in held] == outcome.queue_offsets, where
    if outcome.phy_offsets:
        offsets = [m.phy_offset for m in held]
        assert offsets[: len(outcome.phy_offsets)] == outcome.phy_offsets, where


def _check_order(record: Record, found: dict[str, Any]) -> None:
    """Require that the messages of one thread are in the log in their order."""
    last: dict[str, int] = defaultdict(lambda: -1)
    for (who, _), call in sorted(record.calls.items()):
        for row in call.rows:
            if row.key in found:
                assert found[row.key].phy_offset > last[who], f"{row.key} is out of order"
                last[who] = found[row.key].phy_offset


def _check_keys(store: pyrocketstore.Store, found: dict[str, Any]) -> None:
    by_topic = defaultdict(list)
    for key, message in found.items():
        by_topic[message.topic].append(key)
    for topic, keys in by_topic.items():
        hits = store.query_many(topic, keys)
        assert hits.key_index.tolist() == list(range(len(keys))), f"keys of {topic}"
        assert hits.phy_offset.tolist() == [found[key].phy_offset for key in keys]
        for key in keys[:: max(1, len(keys) // 3)]:
            assert [m.body for m in store.query(topic, key)] == [found[key].body]
            message = store.get(found[key].phy_offset)
            assert message is not None
            assert message.body == found[key].body
