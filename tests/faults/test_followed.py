"""Goal: interrupts at any moment lose no message of `Store.follow` and repeat none.
Method: a timer whose handler raises, beside a thread that puts."""

from __future__ import annotations

import random
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from places import directory
from pyrocketstore import MessageExt, Store
from support.seed import SEED
from support.sizes import SIZES

COUNT = 3000
QUEUES = 3


class Interrupted(Exception):
    """Raised by the handler."""


@pytest.fixture
def root() -> Iterator[Path]:
    path = directory()
    yield path / "store"
    shutil.rmtree(path)


def opened(path: Path, **settings: Any) -> Store:
    return pyrocketstore.open(path, **SIZES, **settings)


def put(owner: Store) -> None:
    pause = threading.Event()
    for number in range(COUNT):
        if number % 10 == 0:
            pause.wait(0.001)
        owner.put("t", b"%d" % number, queue_id=number % QUEUES)


@pytest.mark.parametrize("read_only", (False, True))
def test_interrupts_lose_and_repeat_no_message(root: Path, read_only: bool) -> None:
    choose = random.Random(SEED)
    found: list[MessageExt] = []
    armed = [False]

    def handler(*_: object) -> None:
        if armed[0]:
            raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    interrupts = 0
    try:
        with opened(root) as owner:
            store = opened(root, read_only=True) if read_only else owner
            messages = store.follow("t", timeout=60)
            writer = threading.Thread(target=put, args=(owner,))
            writer.start()
            while len(found) < COUNT:
                try:
                    armed[0] = True
                    signal.setitimer(signal.ITIMER_REAL, choose.uniform(1e-5, 3e-3))
                    for message in messages:
                        found.append(message)  # one call: an interrupt comes before or after it
                        if len(found) == COUNT:
                            break
                    armed[0] = False
                except Interrupted:
                    armed[0] = False
                    interrupts += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            writer.join()
            messages.close()
            store.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts
    for queue_id in range(QUEUES):
        own = [int(message.body) for message in found if message.queue_id == queue_id]
        assert own == list(range(queue_id, COUNT, QUEUES))
