"""Goal: one iterator of `Store.follow` gets each message once, while brokers of 4.9.3 and a program
of ours own the store in turn, and are killed or stopped.
Method: a name server, brokers and producers; a read-only store in this process follows."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import pyrocketstore
from broker import SMALL_FILES, SMALL_SIZES, Cluster, requests_of

pytestmark = [pytest.mark.java, pytest.mark.slow]

LONGEST_S = 60.0
COUNT = 120


def bodies(part: int) -> list[bytes]:
    """Return the bodies of a part: a part fills a file of the log and more."""
    return [b"%d %d " % (part, number) + b"x" * 500 for number in range(COUNT)]


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
    pyrocketstore.open(path, **SMALL_SIZES).close()
    with pyrocketstore.open(path, read_only=True, **SMALL_SIZES) as reader:
        messages = reader.follow("t", timeout=LONGEST_S, check_crc=True)
        consumer = reader.consumer("g", "t")
        for part, ending in enumerate((signal.SIGKILL, signal.SIGTERM)):
            with cluster.broker(path, SMALL_FILES, ending):
                cluster.produce(requests_of(bodies(part)))
                check(messages, part)
        with pyrocketstore.open(path, **SMALL_SIZES) as owner:
            for number, body in enumerate(bodies(2)):
                owner.put("t", body, queue_id=number % 4)
            check(messages, 2)
        with cluster.broker(path, SMALL_FILES, signal.SIGTERM):
            cluster.produce(requests_of(bodies(3)))
            check(messages, 3)
        polled: list[bytes] = []
        while len(polled) < 4 * COUNT and (some := consumer.poll(32, LONGEST_S)):
            polled += [message.body for message in some]
        assert sorted(polled) == sorted(body for part in range(4) for body in bodies(part))
        assert not messages.skipped
