"""Goal: one iterator of `Store.follow` gets each message once, while brokers of 4.9.3 and a program
of ours own the store in turn, and are killed or stopped.
Method: a name server, brokers and producers; a read-only store in this process follows."""

from __future__ import annotations

import base64
import signal
from pathlib import Path

import pytest

import pyrocketstore
from broker import Cluster, Line

pytestmark = [pytest.mark.java, pytest.mark.slow]

CONFIG: Line = {
    "mappedFileSizeCommitLog": 1 << 16,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}
SETTINGS = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
}
LONGEST_S = 60.0
COUNT = 120


def bodies(part: int) -> list[bytes]:
    """Return the bodies of a part: a part fills a file of the log and more."""
    return [b"%d %d " % (part, number) + b"x" * 500 for number in range(COUNT)]


def requests(part: int) -> list[Line]:
    encoded = (base64.b64encode(body).decode() for body in bodies(part))
    return [
        {"topic": "t", "tags": "A", "keys": "k", "body": body, "properties": []} for body in encoded
    ]


def check(messages: pyrocketstore.FollowedMessages, part: int) -> None:
    """Check that the next messages are those of a part, in the order of each queue."""
    found = [next(messages) for _ in range(COUNT)]
    assert sorted(message.body for message in found) == sorted(bodies(part))
    for queue_id in {message.queue_id for message in found}:
        offsets = [message.queue_offset for message in found if message.queue_id == queue_id]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))


@pytest.mark.timeout(600)
def test_a_reader_follows_brokers_and_our_own_engine(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "store"
    pyrocketstore.open(path, **SETTINGS).close()
    with pyrocketstore.open(path, read_only=True, **SETTINGS) as reader:
        messages = reader.follow("t", timeout=LONGEST_S, check_crc=True)
        consumer = reader.consumer("g", "t")
        for part, ending in enumerate((signal.SIGKILL, signal.SIGTERM)):
            with cluster.broker(path, CONFIG, ending):
                cluster.produce(requests(part))
                check(messages, part)
        with pyrocketstore.open(path, **SETTINGS) as owner:
            for number, body in enumerate(bodies(2)):
                owner.put("t", body, queue_id=number % 4)
            check(messages, 2)
        with cluster.broker(path, CONFIG, signal.SIGTERM):
            cluster.produce(requests(3))
            check(messages, 3)
        polled: list[bytes] = []
        while len(polled) < 4 * COUNT and (some := consumer.poll(32, LONGEST_S)):
            polled += [message.body for message in some]
        assert sorted(polled) == sorted(body for part in range(4) for body in bodies(part))
        assert not messages.skipped
