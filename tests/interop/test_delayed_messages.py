"""Goal: a 4.9.3 broker and an embedded program continue each other's delivery of delayed messages,
also after a kill and with other levels, and write the same delayOffset.json for the same state.
Method: a broker and a store of ours, or a process that is killed, in turn on one directory."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from broker import Cluster, Line
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.gates import wait_until

pytestmark = [pytest.mark.java, pytest.mark.slow]

LEVELS = "1s 2s 1h"
CONFIG: Line = {
    "mappedFileSizeCommitLog": 1 << 18,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "messageDelayLevel": LEVELS,
}
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 18,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
    "message_delay_level": LEVELS,
}
LONGEST_S = 30.0
#: A process that delivers what is due, and is killed in the middle of it.
CHILD = """
import sys, time, pyrocketstore
store = pyrocketstore.open(sys.argv[1], **eval(sys.argv[2]))
store.put("t", b"last", delay_level=1)
while store.max_offset("t", 0) < 40:
    time.sleep(0.001)
print("some", flush=True)
time.sleep(60)
"""


def opened(path: Path, **settings: Any) -> pyrocketstore.Store:
    return pyrocketstore.open(path, **{**SETTINGS, **settings})


def offsets_text(path: Path) -> str:
    file = path / "config" / "delayOffset.json"
    return file.read_text() if file.exists() else ""


def bodies(path: Path, topic: str = "t") -> list[bytes]:
    with pyrocketstore.open(path, read_only=True, **SETTINGS) as store:
        return [message.body for message in store.read(topic)] if topic in store.topics() else []


def settled(path: Path, **settings: Any) -> list[bytes]:
    """Return the bodies of topic t once our store has delivered what is due."""
    with opened(path, **settings) as store:
        service = store.message_store.services.schedule_service
        assert service is not None
        end = time.monotonic() + LONGEST_S
        while any(row.first_due <= store.message_store.now() for row in store.delayed()):
            assert time.monotonic() < end
            time.sleep(0.01)
        store.wait_dispatched()
        return [message.body for message in store.read("t")]


@pytest.mark.timeout(600)
def test_the_offsets_of_a_broker_have_the_same_text(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        store.put_many("t", [b"%d" % number for number in range(7)], delay_levels=1)
        store.put_many("t", [b"x", b"y"], delay_levels=2)
        store.put("t", b"never", delay_level=3)
        wait_until(lambda: store.max_offset("t", 0) == 9, "deliveries")
    text = offsets_text(path)
    assert text == '{\n\t"offsetTable":{1:7,2:2\n\t}\n}'
    with cluster.broker(path, CONFIG, signal.SIGTERM):
        time.sleep(2)  # its first round
    assert offsets_text(path) == text
    assert len(bodies(path)) == 9
    # It delivers a single message, so that its offset is exact, and we repeat none.
    with opened(path) as store:
        store.put("t", b"one", delay_level=2)
    with cluster.broker(path, CONFIG, signal.SIGTERM):
        wait_until(lambda: len(bodies(path)) == 10, "a delivery of the broker")
        time.sleep(0.5)
    assert offsets_text(path) == '{\n\t"offsetTable":{1:7,2:3\n\t}\n}'
    assert settled(path)[9:] == [b"one"]


@pytest.mark.timeout(600)
def test_a_killed_broker_and_other_levels(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = [b"%d" % number for number in range(150)]
    with opened(path) as store:
        store.put_many("t", sent, delay_levels=1)
        store.put("t", b"an hour", delay_level=3)
    with cluster.broker(path, CONFIG, signal.SIGKILL):
        wait_until(lambda: len(bodies(path)) > 0, "deliveries of the broker")
    found = settled(path)
    assert list(dict.fromkeys(found)) == sent
    assert settled(path) == found  # a clean stop repeats none
    # A broker with a shorter level delivers at once what it could not have delayed so long.
    with cluster.broker(path, {**CONFIG, "messageDelayLevel": "1s 2s 1s"}, signal.SIGTERM):
        wait_until(lambda: b"an hour" in bodies(path), "a delivery of the broker")
        time.sleep(0.5)
    # And so do we. The broker's offset is the first one of its last slice, plus one.
    with opened(path) as store:
        store.put("t", b"another hour", delay_level=3)
    assert settled(path, message_delay_level="1s 2s 1s")[len(found) :] == [
        b"an hour",
        b"another hour",
    ]


@pytest.mark.timeout(600)
def test_a_broker_continues_after_our_kill(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = [b"%d" % number for number in range(150)]
    env = Env()
    with broken(env, "now_ms", lambda original: original() - 1500), opened(path, env=env) as store:
        store.put_many("t", sent, delay_levels=1)
    command = [sys.executable, "-c", CHILD, str(path), repr(SETTINGS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"some\n"
        child.kill()
    with cluster.broker(path, CONFIG, signal.SIGTERM):
        wait_until(lambda: bodies(path)[-1:] == [b"last"], "deliveries of the broker")
        time.sleep(0.5)
    assert list(dict.fromkeys(bodies(path))) == [*sent, b"last"]
    assert list(dict.fromkeys(settled(path))) == [*sent, b"last"]
