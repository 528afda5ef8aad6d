"""Random messages of every kind that the log can hold, and random queries for their keys.

A message is a dict in the form that the Java driver reads (tests/java, MessageSpec), but with its
body as bytes: topic, queue_id, flag, sys_flag, born_timestamp, born_host, store_host,
reconsume_times, prepared_transaction_offset, properties (a list of pairs in the order they are
set), body. A dict with "batch" is a batch: a list of dicts with flag, properties and body.
The same seed gives the same messages.
"""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyrocketstore.record._message import encode_messages, properties_to_string
from pyrocketstore.record.message import Message, MessageExtBatch, MessageExtBrokerInner

COMPRESSED_FLAG = 0x1
PREPARED_TYPE = 0x4
COMMIT_TYPE = 0x8
ROLLBACK_TYPE = 0xC
TRANSACTION_MASK = 0xC
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

MAX_DELAY_LEVEL = 18  # of the default messageDelayLevel, and of any that a test here uses

BORN_BASE_MS = 1_700_000_000_000
FAR_END_MS = 4_102_444_800_000
LONG_MAX = (1 << 63) - 1

#: Keys whose hashes collide in Java.
COLLIDING_KEYS = ("Aa", "BB", "AaAa", "BBBB", "AaBB", "BBAa")

#: "plain" adds nothing to the base: singles with tags, keys, user properties and flags.
KINDS = (
    "plain",
    "batch",
    "v6",
    "mixhost",
    "tx",
    "delay",
    "comp",
    "empty",
    "lmq",
    "collide",
    "wide",
    "long",
)


def random_messages(
    seed: int,
    count: int,
    kinds: Iterable[str] = ("plain",),
    *,
    topics: Sequence[str] = ("Topic-0", "Topic-1", "Topic-2"),
    queues: int = 4,
    max_body: int = 2000,
) -> list[dict[str, Any]]:
    """`count` messages (a batch counts once) over the given kinds."""
    chosen = frozenset(kinds)
    unknown = chosen - frozenset(KINDS)
    if unknown:
        raise ValueError(f"no such kinds: {sorted(unknown)}")
    rng = random.Random(seed)
    return [_message(rng, i, chosen, topics, queues, max_body) for i in range(count)]


def _message(
    rng: random.Random,
    i: int,
    kinds: frozenset[str],
    topics: Sequence[str],
    queues: int,
    max_body: int,
) -> dict[str, Any]:
    born_host, store_host = _hosts(rng, i, kinds)
    message: dict[str, Any] = {
        "topic": rng.choice(topics),
        "queue_id": rng.randrange(queues),
        "born_timestamp": BORN_BASE_MS + i,
        "born_host": born_host,
        "store_host": store_host,
        "reconsume_times": rng.randrange(16) if rng.random() < 0.2 else 0,
        "sys_flag": 0,
    }
    if "batch" in kinds and rng.random() < 0.25:
        message["properties"] = [("CLUSTER", "golden")] if rng.random() < 0.3 else []
        message["batch"] = _batch(rng, i)
        return message
    empty = "empty" in kinds and rng.random() < 0.1
    message["body"] = b"" if empty else rng.randbytes(rng.randint(1, max_body))
    message["flag"] = rng.randint(-(1 << 31), (1 << 31) - 1) if rng.random() < 0.25 else 0
    message["properties"] = _properties(rng, i, kinds)
    if "tx" in kinds and rng.random() < 0.4:
        message["sys_flag"] |= rng.choice((PREPARED_TYPE, COMMIT_TYPE, ROLLBACK_TYPE))
        message["prepared_transaction_offset"] = rng.randrange(100_000)
    if "comp" in kinds and rng.random() < 0.2:
        message["sys_flag"] |= COMPRESSED_FLAG
        message["body"] = zlib.compress(message["body"], 5)
    return message


def _hosts(rng: random.Random, i: int, kinds: frozenset[str]) -> tuple[str, str]:
    born = f"192.168.1.{rng.randint(1, 200)}:{10000 + i % 1000}"
    store = "10.0.0.1:10911"
    if "v6" in kinds and rng.random() < 0.5:
        born = f"[2001:db8::{1 + i % 65000:x}]:{10000 + i % 1000}"
        store = "[fe80::1]:10911"
    if "mixhost" in kinds and rng.random() < 0.5:
        if rng.random() < 0.5:
            born = f"[2001:db8::{1 + i % 65000:x}]:20000"
        else:
            store = "[2001:db8:1::2]:10911"
    return born, store


def _batch(rng: random.Random, i: int) -> list[dict[str, Any]]:
    return [
        {
            "flag": rng.randrange(3),
            "properties": [("WAIT", "true"), ("KEYS", f"bk{i}-{j}"), ("TAGS", f"B{j % 3}")],
            "body": rng.randbytes(rng.randint(1, 300)),
        }
        for j in range(rng.randint(1, 20))
    ]


def _properties(rng: random.Random, i: int, kinds: frozenset[str]) -> list[tuple[str, str]]:
    pairs: dict[str, str] = {}
    if rng.random() < 0.75:
        pairs["TAGS"] = (
            rng.choice(("标签1", "тег", "\U0001f600"))
            if rng.random() < 0.1
            else (f"Tag{rng.randrange(5)}")
        )
    if rng.random() < 0.67:
        many = f"k{i} order-{rng.randrange(50)} 键{rng.randrange(9)}"
        pairs["KEYS"] = many if rng.random() < 0.2 else f"k{i}"
    if "collide" in kinds and rng.random() < 0.3:
        pairs["KEYS"] = rng.choice(COLLIDING_KEYS)
    if rng.random() < 0.14:
        pairs["user-prop"] = f"v{i}"
    if rng.random() < 0.5:
        pairs["UNIQ_KEY"] = rng.randbytes(16).hex().upper()
    if "delay" in kinds and rng.random() < 0.3:
        pairs["DELAY"] = str(rng.randint(1, 18))
    if "lmq" in kinds:
        pairs["p"] = "1"  # 4.9.3 stumbles over a message without properties then
        if rng.random() < 0.33:
            pairs["INNER_MULTI_DISPATCH"] = f"%LMQ%alpha,%LMQ%b{rng.randrange(3)}"
    if "wide" in kinds and rng.random() < 0.3:
        for j in range(rng.randint(5, 60)):  # more than 12 make Java's HashMap grow
            name = rng.choice(("p", "属性", "\U00010437", "Aa", "BB"))
            pairs[f"{name}{rng.randrange(1000)}"] = f"{j}\U0001f680é"
    if "long" in kinds and rng.random() < 0.1:
        # At most 32,766 bytes of UTF-8 altogether; 4.9.3 refuses 32,768.
        room = 32_766 - len(properties_to_string(pairs).encode()) - 20
        pairs["long"] = rng.choice(("x", "é", "属")) * (rng.randrange(room // 2, room) // 3)
    items = list(pairs.items())
    rng.shuffle(items)
    return items


def spec_line(spec: Mapping[str, Any]) -> str:
    """One message, or a control like {"sleep_ms": 5}, as a line for the Java driver."""
    if "batch" in spec:
        return json.dumps({**spec, "batch": [_encoded(item) for item in spec["batch"]]})
    return json.dumps(_encoded(spec) if "topic" in spec else dict(spec))


def _encoded(item: Mapping[str, Any]) -> dict[str, Any]:
    return {**item, "body": base64.b64encode(item["body"]).decode("ascii")}


def from_line(line: Mapping[str, Any]) -> dict[str, Any]:
    """The message behind a line of `spec_line`, parsed."""
    if "batch" in line:
        return {**line, "batch": [_decoded(item) for item in line["batch"]]}
    return _decoded(line)


def _decoded(item: Mapping[str, Any]) -> dict[str, Any]:
    return {**item, "body": base64.b64decode(item["body"])}


def is_queued(spec: Mapping[str, Any]) -> bool:
    """False for prepared and rolled back messages: they are in the log and in no queue."""
    return spec["sys_flag"] & TRANSACTION_MASK in (0, COMMIT_TYPE)


def stored_form(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A single as 4.9.3 stores it: one with a DELAY goes to a queue of SCHEDULE_TOPIC_XXXX."""
    properties = dict(spec["properties"])
    level = min(int(properties.get("DELAY", 0)), MAX_DELAY_LEVEL)
    if level <= 0 or not is_queued(spec):
        return dict(spec)
    properties |= {"DELAY": str(level), "REAL_TOPIC": spec["topic"]}
    properties["REAL_QID"] = str(spec["queue_id"])
    moved = {"topic": SCHEDULE_TOPIC, "queue_id": level - 1}
    return {**spec, **moved, "properties": list(properties.items())}


def to_inner(spec: Mapping[str, Any]) -> MessageExtBrokerInner:
    """A single as DefaultMessageStore.put_message takes it."""
    properties = dict(spec["properties"])
    return MessageExtBrokerInner(
        body=spec["body"],
        flag=spec["flag"],
        properties=properties,
        properties_string=properties_to_string(properties),
        prepared_transaction_offset=spec.get("prepared_transaction_offset", 0),
        **_envelope(spec),
    )


def to_batch(spec: Mapping[str, Any]) -> MessageExtBatch:
    """A batch as DefaultMessageStore.put_messages takes it."""
    items = [
        Message(spec["topic"], item["body"], flag=item["flag"], properties=dict(item["properties"]))
        for item in spec["batch"]
    ]
    return MessageExtBatch(
        body=encode_messages(items), properties=dict(spec["properties"]), **_envelope(spec)
    )


def _envelope(spec: Mapping[str, Any]) -> dict[str, Any]:
    names = ("topic", "queue_id", "sys_flag", "born_timestamp", "born_host", "store_host")
    return {name: spec[name] for name in (*names, "reconsume_times")}


def keys_of(spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The (topic, key) pairs under which a message is indexed, in the order of the index."""
    items = spec.get("batch", [spec])
    found = []
    for item in items:
        properties = dict(item["properties"])
        keys = properties.get("KEYS", "").split(" ")
        unique = properties.get("UNIQ_KEY")
        found += [(spec["topic"], key) for key in [unique, *keys] if key]
    return found


def random_queries(
    seed: int, specs: Sequence[Mapping[str, Any]], times: tuple[int, int], count: int = 100
) -> list[tuple[str, str, int, int, int]]:
    """(topic, key, max_num, begin, end) rows; `times` are the first and last store time, in ms."""
    rng = random.Random(seed)
    pool = [pair for spec in specs for pair in keys_of(spec)]
    pool += [("Topic-0", "no-such-key"), ("NoSuchTopic", "k1")]
    pool += [("Topic-1", key) for key in COLLIDING_KEYS]
    rows = []
    for _ in range(count):
        topic, key = rng.choice(pool)
        begin, end = sorted(rng.randint(times[0] - 2000, times[1] + 2000) for _ in range(2))
        window = rng.choice(((0, LONG_MAX), (0, FAR_END_MS), (0, end), (begin, end)))
        rows.append((topic, key, rng.choice((1, 2, 5, 32, 64, 65, 500)), *window))
    return rows
