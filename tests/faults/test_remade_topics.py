"""Goal: readers of a store whose owner, another process, removes topics and makes them again report
no damage, no missing file and no file of a wrong length, and return each message that is left.
Method: a seeded owner that puts, delays, removes and trims, and readers that know no sizes; at the
end its files are damaged, and the readers report each damaged message once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import DamagedMessageError, MessagesRemovedError, Store, StoreWarning
from support.gates import wait_until
from support.processes import PYTHONPATH
from support.seed import SEED

SECONDS = 6
OWNER = """
import random, sys, time
import pyrocketstore
chance, end, number = random.Random(sys.argv[2]), time.monotonic() + float(sys.argv[3]), 0
with pyrocketstore.open(
    sys.argv[1], preset="small", message_delay_level="0s 1s", mapped_file_size_consume_queue=400
) as store:
    print("open", flush=True)
    while time.monotonic() < end:
        for _ in range(chance.randrange(1, 60)):
            topic, delay = chance.choice("ab"), int(chance.random() < 0.02)
            body = b"%d:" % number + bytes(chance.randrange(600))
            store.put(topic, body, queue_id=number % 2, keys="k", delay_level=delay)
            number += 1
        what = chance.random()
        if what < 0.05:
            topic = chance.choice("ab")
            if topic in store.topics():
                store.drop_topic(topic)
        elif what < 0.1:
            store.trim(before=int(time.time() * 1000) - 500)
        time.sleep(0.002)
    store.put_many("a", [b"last"] * 300)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def drain(consumer: pyrocketstore.Consumer, into: set[tuple[int, int]]) -> None:
    while True:
        try:
            messages = consumer.poll(500, 0)
        except MessagesRemovedError:
            continue
        if not messages:
            return
        into.update((message.queue_id, message.phy_offset) for message in messages)


def follow(messages: Any, into: set[tuple[int, int]]) -> None:
    into.update((message.queue_id, message.phy_offset) for message in messages)


def left(store: Store) -> set[tuple[int, int]]:
    return {(message.queue_id, message.phy_offset) for message in store.read("a", None)}


@pytest.mark.parametrize("number", range(2))
def test_readers_beside_an_owner_that_makes_topics_again(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path), f"{SEED} {number}", str(SECONDS)]
    env = {"PYTHONPATH": PYTHONPATH}
    found, followed = set[tuple[int, int]](), set[tuple[int, int]]()
    with (
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as owner,
        warnings.catch_warnings(),
    ):
        assert owner.stdout is not None and owner.stdout.readline()
        warnings.simplefilter("error", StoreWarning)
        warnings.filterwarnings("ignore", "(?s).*made again", StoreWarning)
        with pyrocketstore.open(tmp_path, read_only=True) as reader:
            consumer = reader.consumer("g", "a")
            messages = reader.follow("a", on_loss="skip")
            thread = threading.Thread(target=follow, args=(messages, followed))
            thread.start()
            openings, has_ended = 0, False
            while not has_ended:
                has_ended = owner.poll() is not None
                drain(consumer, found)
                reader.query("a", "k")
                with pyrocketstore.open(tmp_path, read_only=True) as again:
                    again.topics()
                openings += 1
            reader.refresh()
            drain(consumer, found)
            assert left(reader) <= found
            wait_until(lambda: left(reader) <= followed, "all messages of follow")
            messages.close()
            thread.join()
            assert not messages.skipped
            assert openings > 3
    assert owner.returncode == 0
    with pyrocketstore.open(tmp_path, read_only=True) as reader:
        assert left(reader) <= found
        assert reader.verify().ok


def damage_last(root: Path) -> tuple[int, int]:
    """Flip a byte of a unit of queue a/0 in the middle; return the queue offset and the count."""
    with pyrocketstore.open(root, read_only=True) as store:
        low, end = store.min_offset("a", 0), store.max_offset("a", 0)
        middle = (low + end) // 2
        size = store.message_store.config.mapped_file_size_consume_queue
    file, position = divmod(middle * 20, size)
    with (root / "consumequeue" / "a" / "0" / f"{file * size:020d}").open("r+b") as units:
        units.seek(position + 6)
        old = units.read(1)
        units.seek(position + 6)
        units.write(bytes([old[0] ^ 0x10]))
    return middle, end - low


def test_damage_is_reported_once_beside_an_owner(tmp_path: Path) -> None:
    """A refresh that finds the queue as it was does not make the damage go away."""
    with pyrocketstore.open(tmp_path, preset="small") as owner:
        owner.put_many("a", [b"x" * 100] * 900)
        owner.flush()
        with pyrocketstore.open(tmp_path, read_only=True) as reader:
            first = reader.consumer("g", "a")
            messages: Any = reader.follow("a", timeout=0.05)
            assert len(first.poll(1, 0)) == 1
            next(messages)
            middle, count = damage_last(tmp_path)
            for take in (lambda: first.poll(1000, 0), lambda: [next(messages)]):
                errors, taken = [], 1
                end = time.monotonic() + 60
                while taken < count - 1 and time.monotonic() < end:
                    try:
                        taken += len(take())
                    except DamagedMessageError as error:
                        errors.append((error.queue_id, error.start, error.stop))
                assert errors == [(0, middle, middle + 1)]
                assert taken == count - 1
            assert messages.skipped.count == 1
