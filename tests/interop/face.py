"""Random messages in every form that `Store` accepts, and the calls that put them.

Such a message has the keys of random_messages and two more: `way`, a method of `Store`, and `form`,
the type of its body or, in a batch, of its messages. `born_timestamp` is -1 if `Store` sets the
time, and UNIQ_KEY consists of UNKNOWN characters if `Store` makes the key.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyrocketstore
from pyrocketstore.record.message import Message
from support.random_messages import BORN_BASE_MS, COLLIDING_KEYS

UNKNOWN = "?"
STORE_HOSTS = ("127.0.0.1:10911", "10.1.2.3:10911", "[fe80::1]:10911")
BORN_HOSTS = ("192.168.1.7:1234", "[2001:db8::7]:4321")
TAGS = ("TagA", "TagB", "标签1", "\U0001f600")
FORMS = ("bytes", "bytes", "bytearray", "memoryview")
BATCH_FORMS = ("mappings", "messages", "bodies", "columns", "columns and properties")

Spec = dict[str, Any]
Pairs = list[tuple[str, str]]


class Opening(NamedTuple):
    """The arguments of `open` beside the configuration."""

    store_host: str
    unique_key: bool

    @property
    def unique(self) -> Pairs:
        """Return the start of each unique key: an address, and 12 further bytes, in hex."""
        size = 2 * (16 if self.store_host.startswith("[") else 4) + 24
        return [("UNIQ_KEY", UNKNOWN * size)] if self.unique_key else []


def single(rng: random.Random, opening: Opening, topics: Sequence[str], max_body: int) -> Spec:
    """Return a message for Store.put; every second one uses the compiled call alone."""
    ordinary = rng.random() < 0.5
    pairs = _tags_and_keys(rng) + ([] if ordinary else _named(rng))
    born_host = rng.choice((opening.store_host, *BORN_HOSTS))
    return _envelope(rng, opening, topics) | {
        "way": "put",
        "form": rng.choice(FORMS),
        "body": rng.randbytes(rng.randrange(max_body)),
        "flag": rng.randrange(-(1 << 31), 1 << 31) if rng.random() < 0.3 else 0,
        "born_timestamp": BORN_BASE_MS + rng.randrange(10**6) if rng.random() < 0.3 else -1,
        "born_host": opening.store_host if ordinary else born_host,
        "properties": pairs + opening.unique,
    }


def batch(rng: random.Random, opening: Opening, topics: Sequence[str], max_body: int) -> Spec:
    """Return a batch for Store.put_batch."""
    form = rng.choice(BATCH_FORMS)
    items = []
    for _ in range(rng.randrange(1, 12)):
        pairs = [] if form == "bodies" else _tags_and_keys(rng)
        pairs += _named(rng) if form not in ("bodies", "columns") else []
        flag = rng.randrange(9) if form in ("mappings", "messages") else 0
        body = rng.randbytes(rng.randrange(1, min(max_body, 900)))
        items.append({"flag": flag, "properties": pairs + opening.unique, "body": body})
    spec = {"way": "put_batch", "form": form, "batch": items, "properties": []}
    return _envelope(rng, opening, topics) | spec


def columns(rng: random.Random, opening: Opening, topics: Sequence[str], count: int) -> list[Spec]:
    """Return messages of one topic for one put_many."""
    envelope = _envelope(rng, opening, topics) | {"flag": 0, "way": "put_many"}
    envelope["born_host"] = rng.choice(BORN_HOSTS)
    named = rng.random() < 0.4
    specs = []
    for _ in range(count):
        pairs = _tags_and_keys(rng) + (_named(rng) if named else []) + opening.unique
        body = rng.randbytes(rng.randrange(900))
        specs.append(envelope | {"queue_id": rng.randrange(3), "body": body, "properties": pairs})
    return specs


def _envelope(rng: random.Random, opening: Opening, topics: Sequence[str]) -> Spec:
    host = opening.store_host
    return {"topic": rng.choice(topics), "queue_id": rng.randrange(3), "sys_flag": 0,
            "born_timestamp": -1, "born_host": host, "store_host": host,
            "reconsume_times": 0}  # fmt: skip


def _tags_and_keys(rng: random.Random) -> Pairs:
    pairs = [("TAGS", rng.choice(TAGS))] if rng.random() < 0.7 else []
    if rng.random() < 0.7:
        key = f"f{rng.randrange(1000)}"
        pairs.append(("KEYS", rng.choice((key, f"{key} 键 BB", rng.choice(COLLIDING_KEYS)))))
    return pairs


def _named(rng: random.Random) -> Pairs:
    count = rng.choice((0, 1, 3, 20))
    names = {f"{rng.choice(('p', '属性', 'Aa', 'BB'))}{rng.randrange(1000)}" for _ in range(count)}
    pairs = [(name, f"v{name}\U0001f680é") for name in sorted(names)]
    return pairs + ([("long", "属" * rng.randrange(1, 5000))] if rng.random() < 0.1 else [])


# ---- in the process that has the store ----------------------------------------------------------


def put(store: pyrocketstore.Store, spec: Spec) -> Any:
    """Put one message or batch by its method and form."""
    if spec["way"] == "put_batch":
        return _put_batch(store, spec)
    return store.put(spec["topic"], _body(spec), **_options(spec))


async def aput_all(store: pyrocketstore.Store, specs: Sequence[Spec]) -> list[Any]:
    """Put all messages at once, from one task."""
    calls = [store.aput(spec["topic"], _body(spec), **_options(spec)) for spec in specs]
    return list(await asyncio.gather(*calls))


def put_many(store: pyrocketstore.Store, topic: str, rows: list[Spec], born_host: str) -> Any:
    """Put the rows of `encoded_rows` as columns; every second time by asyncio."""
    texts = [row["properties"] for row in rows]
    options = {name: [row[name] for row in rows] for name in ("queue_ids", "tags", "keys")}
    if any(texts):
        options["properties"] = texts
    bodies = [base64.b64decode(row["body"]) for row in rows]
    if len(rows) % 2:
        return asyncio.run(store.aput_many(topic, bodies, born_host=born_host, **options))
    return store.put_many(topic, bodies, born_host=born_host, **options)


def encoded_rows(specs: Sequence[Spec]) -> list[Spec]:
    """Return messages as rows of the command `columns`."""
    rows = []
    for spec in specs:
        tags, keys, named = _parts(spec)
        row = {"queue_ids": spec["queue_id"], "tags": tags, "keys": keys, "properties": named}
        rows.append(row | {"body": base64.b64encode(spec["body"]).decode("ascii")})
    return rows


def _parts(item: Mapping[str, Any]) -> tuple[str | None, str | None, dict[str, str] | None]:
    """Return tags, keys, and the other properties that a caller passes."""
    named = dict(item["properties"])
    named.pop("UNIQ_KEY", None)
    return named.pop("TAGS", None), named.pop("KEYS", None), named or None


def _body(spec: Spec) -> Any:
    as_form = {"bytes": bytes, "bytearray": bytearray, "memoryview": memoryview}[spec["form"]]
    return as_form(spec["body"])


def _options(spec: Spec) -> dict[str, Any]:
    tags, keys, named = _parts(spec)
    options: dict[str, Any] = {"queue_id": spec["queue_id"], "flag": spec["flag"], "tags": tags}
    options["keys"] = keys.split(" ") if keys and spec["flag"] else keys
    if named:
        options["properties"] = named
    if spec["born_host"] != spec["store_host"]:
        options["born_host"] = spec["born_host"]
    if spec["born_timestamp"] >= 0:
        options["born_timestamp"] = spec["born_timestamp"]
    return options


def _put_batch(store: pyrocketstore.Store, spec: Spec) -> Any:
    topic, queue_id, form, items = (spec[n] for n in ("topic", "queue_id", "form", "batch"))
    bodies = [item["body"] for item in items]
    if form == "bodies":
        return store.put_batch(topic, bodies, queue_id)
    parts = [_parts(item) for item in items]
    tags, keys, named = (list(column) for column in zip(*parts, strict=True))
    if form == "columns":
        return store.put_batch(topic, bodies, queue_id, tags=tags, keys=keys)
    if form == "columns and properties":
        return store.put_batch(topic, bodies, queue_id, tags=tags, keys=keys, properties=named)
    if form == "messages":
        given = [[pair for pair in i["properties"] if pair[0] != "UNIQ_KEY"] for i in items]
        messages = [
            Message(topic, item["body"], flag=item["flag"], properties=dict(pairs))
            for item, pairs in zip(items, given, strict=True)
        ]
        return store.put_batch(topic, messages, queue_id)
    rows = [
        {"body": item["body"], "flag": item["flag"], "tags": t, "keys": k, "properties": n}
        for item, (t, k, n) in zip(items, parts, strict=True)
    ]
    return store.put_batch(topic, rows, queue_id)
