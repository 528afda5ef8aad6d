"""Goal: a complete 4.9.3 serves a directory that our store wrote, and our store reads the result.
Method: `Store` writes. A broker starts there without manual additions, a Java consumer gets every
message, and a Java producer sends more. The broker ends by SIGTERM, then by SIGKILL, and our store
reads all messages."""

from __future__ import annotations

import base64
import random
import signal
import zlib
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from actors import write_conf
from broker import Cluster
from model import java_host
from support.random_messages import to_inner

pytestmark = [pytest.mark.java, pytest.mark.slow]

CONFIG = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 3000,
    "diskMaxUsedSpaceRatio": 95,
}
TOPICS = ("orders", "audit")
QUEUES = 4
#: Properties that a broker or a client adds to those of a put.
ADDED = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "UNIQ_KEY", "CLUSTER", "WAIT",
         "MSG_REGION", "TRACE_ON"}  # fmt: skip
BORN_HOST = "192.168.3.4:5678"
V6_HOST = "[2001:db8::7]:4321"

Line = dict[str, Any]


class Writer:
    """Puts by every method of `Store`, and records the messages that a consumer must get."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.put: list[Line] = []

    def write(self, store: pyrocketstore.Store, count: int) -> None:
        """Put some messages of every kind."""
        while len(self.put) < count:
            way = self.random.choice((self.single, self.single, self.many, self.batch, self.packed))
            way(store)

    def single(self, store: pyrocketstore.Store) -> None:
        topic, queue_id, body = self._where()
        tags = self.random.choice((None, "TagA", "标签1"))
        keys = self.random.choice((None, f"k{len(self.put)}", f"k{len(self.put)} 键"))
        named = self.random.choice((None, {"цвет": "🚀", "long": "é" * 5000}, {"a": "b"}))
        born = self.random.choice((BORN_HOST, V6_HOST))
        store.put(topic, body, queue_id=queue_id, tags=tags, keys=keys, properties=named,
                  born_host=born)  # fmt: skip
        self._note(topic, queue_id, body, tags, keys, named or {}, born)

    def many(self, store: pyrocketstore.Store) -> None:
        topic, _, _ = self._where()
        rows = [self._where() for _ in range(self.random.randrange(1, 30))]
        ids, bodies = [row[1] for row in rows], [row[2] for row in rows]
        keys = [f"m{len(self.put)}-{i}" for i in range(len(rows))]
        store.put_many(topic, bodies, queue_ids=ids, keys=keys, born_host=BORN_HOST)
        for queue_id, body, key in zip(ids, bodies, keys, strict=True):
            self._note(topic, queue_id, body, None, key, {}, BORN_HOST)

    def batch(self, store: pyrocketstore.Store) -> None:
        topic, queue_id, _ = self._where()
        bodies = [self._where()[2] for _ in range(self.random.randrange(1, 9))]
        items = [{"body": body, "tags": "B", "keys": f"b{i}"} for i, body in enumerate(bodies)]
        store.put_batch(topic, items, queue_id)
        for i, body in enumerate(bodies):
            self._note(topic, queue_id, body, "B", f"b{i}", {}, store.store_host)

    def packed(self, store: pyrocketstore.Store) -> None:
        """Put a body that a client compressed, and which the consumer's client inflates."""
        topic, queue_id, body = self._where()
        spec = {"topic": topic, "queue_id": queue_id, "sys_flag": 1, "flag": 0}
        spec |= {"born_timestamp": 1_700_000_000_000, "born_host": BORN_HOST}
        spec |= {"store_host": "127.0.0.1:10911", "reconsume_times": 0, "properties": []}
        spec |= {"body": zlib.compress(body)}
        assert store.message_store.put_message(to_inner(spec)).status.name == "PUT_OK"
        self._note(topic, queue_id, body, None, None, {}, BORN_HOST)

    def _where(self) -> tuple[str, int, bytes]:
        body = self.random.randbytes(self.random.choice((1, 30, 3000)))
        return self.random.choice(TOPICS), self.random.randrange(QUEUES), body

    def _note(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        tags: str | None,
        keys: str | None,
        properties: dict[str, str],
        born_host: str,
    ) -> None:
        offset = sum((m["topic"], m["queue_id"]) == (topic, queue_id) for m in self.put)
        self.put.append(
            {"topic": topic, "queue_id": queue_id, "queue_offset": offset, "body": body}
            | {"tags": tags, "keys": keys, "properties": properties, "born_host": born_host}
        )


def by_queue(messages: list[Line]) -> dict[tuple[str, int], list[Line]]:
    """Return the messages of each queue in the order of their arrival."""
    queues: dict[tuple[str, int], list[Line]] = {}
    for message in messages:
        queues.setdefault((message["topic"], message["queue_id"]), []).append(message)
    return queues


def as_written(message: Line) -> Line:
    """Return a consumed message in the terms of Writer."""
    hidden = ADDED | {"TAGS", "KEYS"}
    properties = {k: v for k, v in message["properties"].items() if k not in hidden}
    same = {k: message[k] for k in ("topic", "queue_id", "queue_offset", "tags", "keys")}
    body = base64.b64decode(message["body"])
    return same | {"body": body, "properties": properties, "born_host": message["born_host"]}


def assert_consumed(got: list[Line], put: list[Line]) -> None:
    """Compare all messages, each queue in its order."""
    wanted = [message | {"born_host": java_host(message["born_host"])} for message in put]
    have, want = by_queue([as_written(message) for message in got]), by_queue(wanted)
    assert have.keys() == want.keys()
    for key, messages in want.items():
        assert have[key] == messages, key


def requests(seed: int, count: int) -> list[Line]:
    """Return a producer's messages: large and small bodies, batches, and a new topic."""
    rng = random.Random(seed)

    def one(topic: str, i: int, size: int) -> Line:
        body = rng.randbytes(size) if i % 3 else bytes([97 + i % 26]) * size
        named = [["seq", str(i)], ["имя", "属"]]
        return {"topic": topic, "tags": f"Tag{i % 3}", "keys": f"s{seed}-{i} order-{i % 7}",
                "body": base64.b64encode(body).decode(), "properties": named}  # fmt: skip

    found = []
    for i in range(count):
        topic = rng.choice((*TOPICS, "made-by-the-broker"))
        if i % 9 == 8:
            found.append({"batch": [one(topic, 1000 * i + j, 50) for j in range(5)]})
        else:
            found.append(one(topic, i, rng.choice((10, 900, 6000))))
    return found


def sent_messages(asked: list[Line], answers: list[Line]) -> list[Line]:
    """Return each message of a producer with the offset in the broker's reply."""
    found = []
    for request, answer in zip(asked, answers, strict=True):
        assert answer["status"] == "SEND_OK", answer
        items = request.get("batch", [request])
        ids = answer["offset_msg_id"].split(",")
        assert len(ids) == len(items)
        for i, (item, msg_id) in enumerate(zip(items, ids, strict=True)):
            where = {"queue_id": answer["queue_id"], "queue_offset": answer["queue_offset"] + i}
            found.append(item | where | {"msg_id": msg_id, "phy_offset": int(msg_id[-16:], 16)})
    return found


def assert_read(store: pyrocketstore.Store, put: list[Line], sent: list[Line]) -> None:
    """Require every message of ours and of the producer, by queue, by id and by key."""
    report = store.verify()
    assert report.ok, report.problems
    held = {
        (topic, queue_id): list(store.read(topic, queue_id, start=0))
        for topic in (*TOPICS, "made-by-the-broker")
        for queue_id in store.queues(topic)
    }
    for want in put:
        message = held[want["topic"], want["queue_id"]][want["queue_offset"]]
        assert (message.body, message.tags, message.keys) == (
            want["body"],
            want["tags"],
            want["keys"],
        )
    for want in sent:
        message = held[want["topic"], want["queue_id"]][want["queue_offset"]]
        assert message.body == base64.b64decode(want["body"]), want
        assert (message.tags, message.keys) == (want["tags"], want["keys"])
        assert want["properties"] == [[k, message.properties[k]] for k, _ in want["properties"]]
        assert message.phy_offset == want["phy_offset"]
        assert message.msg_id == want["msg_id"]
        assert store.get(want["msg_id"]) == message
        hits = store.query(want["topic"], want["keys"].split()[0])
        assert [hit.phy_offset for hit in hits] == [want["phy_offset"]]
    count = len(put) + len(sent)
    assert sum(len(messages) for messages in held.values()) == count


@pytest.mark.timeout(1500)
def test_a_broker_serves_what_we_wrote(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "store"
    conf = write_conf(tmp_path / "ours.conf", CONFIG)
    writer = Writer(1)
    sent: list[Line] = []
    for turn, ending in enumerate((signal.SIGTERM, signal.SIGKILL)):
        with pyrocketstore.open(path, config=conf) as store:
            writer.put += [] if not turn else continued(writer, sent)
            writer.write(store, len(writer.put) + 250)
        with cluster.broker(path, CONFIG, ending):
            topics = (*TOPICS, "made-by-the-broker") if turn else TOPICS
            messages = [m for m in writer.put if "sent" not in m]
            count = len(messages) + len(sent)
            got = cluster.consume(topics, count, f"group-{turn}")
            ours = {(m["topic"], m["queue_id"], m["queue_offset"]) for m in messages}
            mine = [m for m in got if (m["topic"], m["queue_id"], m["queue_offset"]) in ours]
            assert len(got) == count
            assert_consumed(mine, messages)
            asked = requests(turn, 120)
            sent += sent_messages(asked, cluster.produce(asked))
        assert (path / "abort").exists() == (ending == signal.SIGKILL)
        with pyrocketstore.open(path, config=conf, read_only=True) as store:
            assert_read(store, [m for m in writer.put if "sent" not in m], sent)
    with pyrocketstore.open(path, config=conf) as store:
        assert_read(store, [m for m in writer.put if "sent" not in m], sent)


def continued(writer: Writer, sent: list[Line]) -> list[Line]:
    """Messages of another writer precede those of Writer in its queues."""
    return [{"sent": True, "topic": m["topic"], "queue_id": m["queue_id"]} for m in sent]
