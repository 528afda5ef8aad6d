"""Goal: after `refresh`, a read-only store answers as one that is opened then.
Method: a writer puts, rolls files, makes queues, cleans, is closed or killed and recovers; after
each step every answer of the refreshed store is compared with those of a new opening."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.errors import StoreStateError
from support.seed import SEED
from support.sizes import SIZES

KEYS = 40


def answers(store: pyrocketstore.Store) -> dict[str, Any]:
    """Everything that a reader can ask."""
    engine = store.message_store
    found: dict[str, Any] = {
        "topics": store.topics(),
        "begin": engine.get_min_phy_offset(),
        "end": engine.get_max_phy_offset(),
    }
    for topic in store.topics():
        for queue_id in store.queues(topic):
            messages = list(store.read(topic, queue_id))
            low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            found[f"{topic}/{queue_id}"] = (low, high, [(m.phy_offset, m.body) for m in messages])
            found[f"{topic}/{queue_id} 4.9.3"] = (
                engine.get_min_offset_in_queue(topic, queue_id),
                engine.get_max_offset_in_queue(topic, queue_id),
                engine.get_message("g", topic, queue_id, low, 32).message_queue_offsets,
            )
            times = sorted({m.store_timestamp for m in messages})[:: max(1, len(messages) // 5)]
            found[f"{topic}/{queue_id} times"] = [
                store.offset_at(topic, queue_id, time) for time in [0, *times, 1 << 60]
            ]
            for message in messages[:: max(1, len(messages) // 5)]:
                assert store.get(message.phy_offset) == message
        for number in range(KEYS):
            key = f"k{number}"
            found[f"{topic} {key}"] = (
                [m.phy_offset for m in store.query(topic, key, max_num=1000)],
                [m.phy_offset for m in store.query(topic, key, max_num=3)],
                engine.query_message(topic, key, 64, 0, 1 << 60).phy_offsets,
            )
    report = store.verify()
    found["verify"] = (report.ok, report.problems, report.rebuilt_units)
    return found


def fresh(root: Path) -> dict[str, Any]:
    with pyrocketstore.open(root, read_only=True, **SIZES) as store:
        return answers(store)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "store"
    shutil.rmtree(tmp_path / "store", ignore_errors=True)


def put_some(store: pyrocketstore.Store, random_: random.Random, topics: int = 3) -> None:
    for _ in range(random_.choice((1, 1, 10, 200))):
        topic, queue_id = f"t{random_.randrange(topics)}", random_.randrange(3)
        keys = f"k{random_.randrange(KEYS)}" if random_.random() < 0.9 else None
        body = random_.randbytes(random_.randrange(400))
        store.put(topic, body, queue_id=queue_id, keys=keys, tags=random_.choice(("A", "B", None)))


def test_what_a_writer_puts_is_found(root: Path) -> None:
    random_ = random.Random(SEED)
    with pyrocketstore.open(root, **SIZES) as writer:
        put_some(writer, random_)
        writer.wait_dispatched()
        with pyrocketstore.open(root, read_only=True, **SIZES) as reader:
            assert answers(reader) == fresh(root)
            for step in range(12):
                put_some(writer, random_, topics=3 + step // 4)
                if random_.random() < 0.7:
                    writer.wait_dispatched()
                before = reader.message_store.get_max_phy_offset()
                assert reader.refresh() == writer.message_store.get_max_phy_offset() - before > 0
                writer.wait_dispatched()
                assert answers(reader) == fresh(root)
                assert reader.refresh() == 0


def test_a_store_that_is_not_read_only_refuses(root: Path) -> None:
    with pyrocketstore.open(root, **SIZES) as store:
        with pytest.raises(StoreStateError, match="open for writing"):
            store.refresh()
        with pytest.raises(StoreStateError, match="open for writing"):
            store.message_store.refresh()
    reader = pyrocketstore.open(root, read_only=True, **SIZES)
    engine = reader.message_store
    reader.close()
    for call in (reader.refresh, engine.refresh):
        with pytest.raises(StoreStateError, match="closed"):
            call()
