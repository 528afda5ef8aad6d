"""Goal: each side opens a store of files of 1 GiB with a thousand queues that the other side wrote.
Method: each side writes one, and the other opens it. Both dumps are equal line by line, and every
message is at the offset that plain Python predicts. Only with ROCKETSTORE_SOAK; ROCKETSTORE_BIG_GIB
sets the size (8)."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from actors import JAVA, Actors, actors, write_conf
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.verify.dump import dump_lines
from support.golden_lines import write_queries
from support.java_store import require_java

SOAK = int(os.environ.get("ROCKETSTORE_SOAK", "0"))
GIB = 1 << 30
SIZE = GIB * int(os.environ.get("ROCKETSTORE_BIG_GIB", "8"))
#: Free space for the log, its queues and index, and other processes.
ROOM = SIZE + 8 * GIB
TOPICS, QUEUES = 10, 100
BODY_SIZE = 1 << 16
COUNT = SIZE // BODY_SIZE
TAIL = bytes((31 * i + 7) & 0xFF for i in range(8, BODY_SIZE))
TIMEOUT_S = 1500
SAMPLE = 97

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(4 * TIMEOUT_S),
    pytest.mark.skipif(not SOAK, reason="a store of 8 GiB: only in the soak"),
]


@pytest.fixture
def pool() -> Iterator[Actors]:
    with actors(require_java()) as made:
        yield made


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    free = shutil.disk_usage(tmp_path).free
    if free < ROOM:
        pytest.skip(f"SKIPPED ALOUD: {free >> 30} GiB free, {ROOM >> 30} wanted")
    try:
        yield tmp_path
    finally:
        shutil.rmtree(tmp_path)


class Clock:
    """Prints the duration of each part."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def lap(self, text: str) -> None:
        now = time.monotonic()
        print(f"{text}: {now - self.start:.1f} s", flush=True)
        self.start = now


def body_of(i: int) -> bytes:
    return struct.pack(">q", i) + TAIL


def queries_in(directory: Path) -> Path:
    rows = [
        (f"big-{i % TOPICS}", f"k{i}", 32, 0, (1 << 63) - 1)
        for i in (*range(0, COUNT, COUNT // 200), COUNT - 1)
    ]
    return write_queries(directory / "queries.tsv", rows)


def assert_same_dumps(theirs: Iterable[str], ours: Iterable[str]) -> None:
    """Compare dumps line by line, and with the messages."""
    next_offset: dict[tuple[str, int], int] = {}
    hits = 0
    for number, (want, have) in enumerate(itertools.zip_longest(theirs, ours), 1):
        assert want is not None and have is not None, f"one dump ends before line {number}"
        assert want.rstrip("\n") == have, f"line {number}\n4.9.3 {want[:500]}\nours  {have[:500]}"
        line: dict[str, Any] = json.loads(have)
        if "message" in line:
            check_message(line["message"], next_offset)
        if "query" in line:
            hits += len(line["query"]["phy_offsets"])
            assert line["query"]["phy_offsets"], line
    assert len(next_offset) == TOPICS * QUEUES
    assert sum(next_offset.values()) == COUNT
    assert hits >= 200


def check_message(message: dict[str, Any], next_offset: dict[tuple[str, int], int]) -> None:
    queue = message["cq_topic"], message["cq_queue_id"]
    turn = next_offset.get(queue, 0)
    next_offset[queue] = turn + 1
    topic_number, queue_id = int(queue[0].removeprefix("big-")), queue[1]
    i = turn * TOPICS * QUEUES + queue_id * TOPICS + topic_number
    assert (message["cq_offset"], message["queue_offset"]) == (turn, turn)
    assert message["properties"]["KEYS"] == f"k{i}"
    assert message["properties"]["TAGS"] == f"T{i % 5}"
    if i % SAMPLE == 0:
        assert message["body_sha256_8"] == hashlib.sha256(body_of(i)).hexdigest()[:16]


def our_dump(store: Path, conf: Path, queries: Path) -> Iterator[str]:
    config, warnings = MessageStoreConfig.from_broker_conf(conf, root=store)
    assert not warnings
    return dump_lines(store, config, queries)


def write(store: pyrocketstore.Store) -> None:
    """Put as the driver's "fill" does, in chunks of one turn over all queues."""
    turn = TOPICS * QUEUES
    for first in range(0, COUNT, turn):
        for topic in range(TOPICS):
            numbers = range(first + topic, min(first + turn, COUNT), TOPICS)
            store.put_many(
                f"big-{topic}",
                [body_of(i) for i in numbers],
                queue_ids=[i // TOPICS % QUEUES for i in numbers],
                tags=[f"T{i % 5}" for i in numbers],
                keys=[f"k{i}" for i in numbers],
            )


def test_ours_is_read_by_the_real_store(pool: Actors, directory: Path) -> None:
    path, clock = directory / "store", Clock()
    conf = write_conf(directory / "broker.conf", {"mappedFileSizeCommitLog": GIB})
    queries = queries_in(directory)
    with pyrocketstore.open(path, config=conf) as store:
        clock.lap("a new store")
        write(store)
        store.wait_dispatched()
        clock.lap(f"{COUNT} messages of {BODY_SIZE} bytes into {TOPICS * QUEUES} queues")
    clock.lap("closed")
    assert len(list((path / "commitlog").iterdir())) >= SIZE // GIB
    assert pool.dump(path, conf, queries, timeout=TIMEOUT_S, read=False) == []
    clock.lap("4.9.3 opened and dumped it")
    with (directory / "store.jsonl").open(encoding="ascii") as theirs:
        assert_same_dumps(theirs, our_dump(path, conf, queries))
    clock.lap("we dumped it and compared")


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_the_real_store_is_read_by_us(ending: str, pool: Actors, directory: Path) -> None:
    path, clock = directory / "store", Clock()
    conf = write_conf(directory / "broker.conf", {"mappedFileSizeCommitLog": GIB})
    queries = queries_in(directory)
    with pool.start(JAVA) as actor:
        actor.ask("open", path=str(path), conf=str(conf))
        shape = {"count": COUNT, "topics": TOPICS, "queues": QUEUES, "body_size": BODY_SIZE}
        actor.ask("fill", TIMEOUT_S, **shape)
        actor.ask("wait", TIMEOUT_S)
        clock.lap(f"4.9.3 wrote {COUNT} messages of {BODY_SIZE} bytes")
        if ending == "close":
            actor.ask("close", TIMEOUT_S)
    clock.lap(ending)
    with pyrocketstore.open(path, config=conf) as store:
        clock.lap("we opened it")
        assert len(store.topics()) == TOPICS
        counts = [store.max_offset(f"big-{t}", q) for t in range(TOPICS) for q in range(QUEUES)]
        assert sum(counts) == COUNT
        for i in range(0, COUNT, COUNT // 100):
            (hit,) = store.query(f"big-{i % TOPICS}", f"k{i}")
            assert hit.body == body_of(i)
        clock.lap("counted and sampled")
    assert pool.dump(path, conf, queries, timeout=TIMEOUT_S, read=False) == []
    clock.lap("4.9.3 opened and dumped it")
    with (directory / "store.jsonl").open(encoding="ascii") as theirs:
        assert_same_dumps(theirs, our_dump(path, conf, queries))
    clock.lap("we dumped it and compared")
