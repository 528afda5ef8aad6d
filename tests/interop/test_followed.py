"""Goal: a reader that refreshes beside a live 4.9.3 sees whole messages, in order, and after each
stop of the writer answers as a new opening: also when 4.9.3 was killed and has recovered.
Method: 4.9.3 fills topics in a process of its own while the reader refreshes all the time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from actors import JAVA, Actors, actors, write_conf
from support.java_store import require_java

pytestmark = pytest.mark.java

CONFIG = {
    "mappedFileSizeCommitLog": 1 << 18,
    "mappedFileSizeConsumeQueue": 4000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 20_000,
}
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 18,
    "mapped_file_size_consume_queue": 4000,
    "max_hash_slot_num": 500,
    "max_index_num": 20_000,
}
#: Messages that are put while the reader looks, and how often.
COUNT, PARTS = 1000, 4
LIMIT_S = 60


def answers(store: pyrocketstore.Store) -> object:
    found: list[object] = [store.message_store.get_max_phy_offset()]
    for topic in store.topics():
        for queue_id in store.queues(topic):
            messages = list(store.read(topic, queue_id, check_crc=True))
            found.append((topic, queue_id, [(m.phy_offset, m.body, m.keys) for m in messages]))
            for message in messages[:: max(1, len(messages) // 20)]:
                if message.keys:
                    hits = store.query(topic, message.keys)
                    found.append([m.phy_offset for m in hits])
    return found


def follow(reader: pyrocketstore.Store) -> None:
    """Refresh and read new messages until some are found."""
    ends: dict[tuple[str, int], int] = {}
    until = time.monotonic() + LIMIT_S
    found = False
    while not found:
        assert time.monotonic() < until
        found = reader.refresh() > 0
        for topic in reader.topics():
            for queue_id in reader.queues(topic):
                start = ends.get((topic, queue_id), 0)
                messages = list(reader.read(topic, queue_id, start=start, check_crc=True))
                offsets = [m.queue_offset for m in messages]
                assert offsets == list(range(start, start + len(messages)))
                ends[topic, queue_id] = start + len(messages)


def test_a_reader_follows_a_live_4_9_3(tmp_path: Path) -> None:
    root, conf = tmp_path / "store", write_conf(tmp_path / "broker.conf", CONFIG)
    with actors(require_java()) as pool:
        check(pool, root, conf)


def check(pool: Actors, root: Path, conf: Path) -> None:
    writer = pool.start(JAVA)
    fill = {"count": COUNT, "topics": 3, "queues": 2, "body_size": 300}
    try:
        assert writer.ask("open", path=str(root), conf=str(conf))["open"]
        writer.ask("fill", **{**fill, "count": 10})
        writer.ask("wait")
        with pyrocketstore.open(root, read_only=True, **SETTINGS) as reader:
            for is_killed in (False, True, False):
                for _ in range(PARTS):
                    writer.send("fill", **fill)
                    writer.flush()
                    follow(reader)
                if is_killed:
                    writer.kill()
                    writer = pool.start(JAVA)
                    if not writer.ask("open", path=str(root), conf=str(conf))["open"]:
                        # 4.9.3 refuses a file that it was making when it was killed.
                        pyrocketstore.open(root, **SETTINGS).close()
                        writer.kill()
                        writer = pool.start(JAVA)
                        assert writer.ask("open", path=str(root), conf=str(conf))["open"]
                else:
                    for _ in range(PARTS):
                        writer.receive()
                writer.ask("wait")
                reader.refresh()
                with pyrocketstore.open(root, read_only=True, **SETTINGS) as opened:
                    assert answers(reader) == answers(opened)
            writer.ask("close")
            reader.refresh()
            report = reader.verify()
            assert report.ok, report.problems
    finally:
        writer.kill()
