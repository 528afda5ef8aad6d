"""A model of the values that a put accepts, for random calls with unusual values through every put
method. An accepted message reads back equal, by queue, by tag and by key, and every method accepts
it. A refused message has the same class of error through each method and has written nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyrocketstore
from pyrocketstore import Message, PutError, StoreFormatError
from support import odd_values
from support.odd_values import Odd

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 18,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 500,
    "max_index_num": 20000,
}
#: The arguments of a put without unusual values.
PLAIN: dict[str, Any] = {
    "topic": "t",
    "body": b"body",
    "queue_id": 0,
    "tags": None,
    "keys": None,
    "properties": None,
    "flag": 0,
    "born_timestamp": None,
}
#: A body or properties too large for a record, and the resulting status.
TOO_LONG: dict[str, tuple[Callable[[], Any], str]] = {
    "body": (lambda: bytes(1 << 18), "MESSAGE_ILLEGAL"),
    "properties": (lambda: {"a": "x" * 32767}, "PROPERTIES_SIZE_EXCEEDED"),
    "tags": (lambda: "x" * 32767, "PROPERTIES_SIZE_EXCEEDED"),
    "keys": (lambda: ["é" * 16383], "PROPERTIES_SIZE_EXCEEDED"),
}
Values = dict[str, Any]
#: Class of an error, status of a PutError, and its reason without the number of a row.
Outcome = tuple[type[BaseException], str, str] | tuple[int, int]


def only(values: Values, *names: str) -> Values:
    return {name: values[name] for name in names if values[name] is not PLAIN[name]}


def put(store: pyrocketstore.Store, v: Values) -> Any:
    return store.put(v["topic"], v["body"], **only(v, *list(PLAIN)[2:]))


def aput(store: pyrocketstore.Store, v: Values) -> Any:
    return asyncio.run(store.aput(v["topic"], v["body"], **only(v, *list(PLAIN)[2:])))


def put_many(store: pyrocketstore.Store, v: Values) -> Any:
    columns = {name: [v[name]] for name in ("tags", "keys", "properties") if v[name] is not None}
    return store.put_many(v["topic"], [v["body"]], queue_ids=[v["queue_id"]], **columns)


def put_many_of_one_queue(store: pyrocketstore.Store, v: Values) -> Any:
    columns = {name: (v[name],) for name in ("tags", "keys", "properties") if v[name] is not None}
    ids = v["queue_id"]
    if type(ids) is list:
        ids = 1.0  # a list would be a column
    return store.put_many(v["topic"], (v["body"],), queue_ids=ids, **columns)


def batch_of_columns(store: pyrocketstore.Store, v: Values) -> Any:
    columns = {name: [v[name]] for name in ("tags", "keys", "properties")}
    return store.put_batch(v["topic"], [v["body"]], v["queue_id"], **columns)


def batch_of_dicts(store: pyrocketstore.Store, v: Values) -> Any:
    item = {"body": v["body"]} | only(v, "tags", "keys", "flag")
    if v["properties"] is not None:
        item["properties"] = v["properties"]
    return store.put_batch(v["topic"], [item], v["queue_id"])


def batch_of_messages(store: pyrocketstore.Store, v: Values) -> Any:
    message = Message(v["topic"], v["body"], flag=v["flag"])
    named = v["properties"]
    if isinstance(named, dict) and "KEYS" not in map(str.__str__, filter(_is_text, named)):
        named = list(named.items())
        named += [(n.upper(), v[n]) for n in ("tags", "keys") if v[n] is not None]
        message.properties = Pairs(named)  # type: ignore[assignment]
    elif named is not None:
        message.properties = named
    else:
        message.properties = {n.upper(): v[n] for n in ("tags", "keys") if v[n] is not None}
    return store.put_batch(v["topic"], [message], v["queue_id"])


def _is_text(value: object) -> bool:
    return isinstance(value, str)


class Pairs(dict[Any, Any]):
    """A dict with given items, which may have equal keys."""

    def __init__(self, pairs: list[tuple[Any, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        return self._pairs


#: Each method that puts one message, and the parameters that it lacks.
WAYS: dict[str, tuple[Callable[[pyrocketstore.Store, Values], Any], set[str]]] = {
    "put": (put, set()),
    "aput": (aput, set()),
    "put_many": (put_many, {"flag", "born_timestamp"}),
    "put_many of one queue": (put_many_of_one_queue, {"flag", "born_timestamp"}),
    "put_batch of columns": (batch_of_columns, {"flag", "born_timestamp"}),
    "put_batch of dicts": (batch_of_dicts, {"born_timestamp"}),
    "put_batch of messages": (batch_of_messages, {"born_timestamp"}),
}


class OddPuts:
    """Makes random calls and checks them; `failures` has a text for each wrong result."""

    def __init__(self, path: Path, seed: str, **settings: Any) -> None:
        self.rng = random.Random(seed)
        self.store = pyrocketstore.open(path, **SIZES, **settings)
        self.path = path
        self.failures: list[str] = []
        self.calls = self.accepted = 0

    def step(self) -> None:
        """Put one message through each method that has the drawn parameters."""
        drawn = self.draw()
        refused = [odd for odd in drawn.values() if odd.refused]
        outcomes: dict[str, Outcome] = {}
        ways = list(WAYS)
        self.rng.shuffle(ways)
        for way in ways:
            call, without = WAYS[way]
            if without & drawn.keys():
                continue
            made = {name: odd.make() for name, odd in drawn.items()}
            outcomes[way] = self.one(way, call, PLAIN | made, drawn, bool(refused))
        if len(set(outcomes.values())) > 1:
            self.fail(drawn, f"the ways differ: {outcomes}")
        for way, outcome in outcomes.items():
            wanted = refused[0].exact if refused else None
            if (wanted or len(outcome) == 3) and wanted is not outcome[0]:
                self.fail(drawn, f"{way}: {outcome} instead of {wanted or 'a put'}")

    def draw(self) -> dict[str, Odd]:
        """Draw unusual values for some parameters, at most one of which is refused."""
        names = self.rng.sample(list(PLAIN), self.rng.choice((1, 1, 2, 3)))
        if self.rng.random() < 0.03:
            name = self.rng.choice(list(TOO_LONG))
            return {name: Odd(f"{name} too long", TOO_LONG[name][0], PutError)}
        drawn: dict[str, Odd] = {}
        for name in names:
            odd = self.rng.choice(odd_values.BY_PARAMETER[name])
            if not (odd.refused and any(other.refused for other in drawn.values())):
                drawn[name] = odd
        return drawn

    def one(
        self,
        way: str,
        call: Callable[[pyrocketstore.Store, Values], Any],
        made: Values,
        drawn: dict[str, Odd],
        refused: bool,
    ) -> Outcome:
        self.calls += 1
        before = self.marks()
        try:
            result = call(self.store, made)
        except (StoreFormatError, PutError) as error:
            if self.marks() != before:
                self.fail(drawn, f"{way}: refused, and something was written")
            status = getattr(getattr(error, "status", None), "name", "")
            reason = str(getattr(error, "reason", "")).removeprefix("message 0: ")
            return type(error), status, reason
        except Exception as error:  # noqa: BLE001 - the judge says which are wrong
            return type(error), "", ""
        if isinstance(made["body"], bytearray):
            made["body"][:] = b"what comes later"
        if not refused:
            self.accepted += 1
            self.check(way, result, drawn)
        return 0, 0

    def marks(self) -> tuple[Any, ...]:
        """Return the state that a refused put must not change."""
        low = self.store.message_store
        assert low.topics is not None
        # Not the file: the flush service writes it at any time.
        topics = low.topics.topics()
        return low.get_max_phy_offset(), topics, dict(low.commit_log.core.table())

    def check(self, way: str, result: Any, drawn: dict[str, Odd]) -> None:
        """Check the message by its offset, in its queue, by its tag and by its keys."""
        want = PLAIN | {name: odd.exact for name, odd in drawn.items()}
        if isinstance(result, tuple):
            queue_offset, phy_offset = int(result[0][0]), int(result[1][0])
        else:
            queue_offset, phy_offset = result.queue_offset, result.phy_offset
        topic, queue_id, tags = want["topic"], want["queue_id"], want["tags"]
        m = self.store.get(phy_offset)
        assert m is not None
        named = dict(want["properties"] or {})
        named |= {n: v for n, v in (("TAGS", tags), ("KEYS", want["keys"])) if v is not None}
        is_so = (m.topic, m.queue_id, m.body, m.properties, m.flag)
        if is_so != (topic, queue_id, want["body"], named, want["flag"]):
            self.fail(drawn, f"{way}: stored {is_so}")
        if want["born_timestamp"] not in (None, m.born_timestamp):
            self.fail(drawn, f"{way}: born {m.born_timestamp}")
        found = list(self.store.read(topic, queue_id, start=queue_offset, tags=tags or "*"))
        if [one.phy_offset for one in found] != [phy_offset]:
            self.fail(drawn, f"{way}: {len(found)} messages by tag {tags!r}")
        for key in (want["keys"] or "").split(" "):
            if key and phy_offset not in [one.phy_offset for one in self.store.query(topic, key)]:
                self.fail(drawn, f"{way}: not found by key {key!r}")

    def fail(self, drawn: dict[str, Odd], text: str) -> None:
        names = {name: odd.name for name, odd in drawn.items()}
        self.failures.append(f"{names}: {text}")
