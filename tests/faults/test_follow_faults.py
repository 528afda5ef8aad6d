"""Goal: interrupts at any moment lose no message of `Store.follow` and repeat none; iterators of
several threads, beside cleaning and refreshes, return or report every message.
Method: a timer whose handler raises, and threads, beside one that puts."""

from __future__ import annotations

import random
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from places import directory
from pyrocketstore import MessageExt, MessagesRemovedError, Store
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
def test_interrupts_lose_and_repeat_no_message(
    root: Path, read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # CPython drops an exception that a handler raises in a destructor; a later signal follows.
    # pytest's own hook is Python code: the next signal may interrupt it, which fails the test.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
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
            messages = store.follow("t", timeout=20)
            writer = threading.Thread(target=put, args=(owner,))
            writer.start()
            while len(found) < COUNT:
                try:
                    armed[0] = True
                    signal.setitimer(signal.ITIMER_REAL, choose.uniform(1e-5, 3e-3), 3e-3)
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


def follow(store: Store) -> tuple[list[MessageExt], list[MessagesRemovedError]]:
    """Return the messages up to the last one of each queue, and the reported losses.

    The order between queues is not fixed: the last message may come before some of another queue.
    """
    found: list[MessageExt] = []
    losses: list[MessagesRemovedError] = []
    messages = store.follow("t", timeout=20)
    ends = set(range(COUNT - QUEUES, COUNT))
    while ends:
        try:
            found.append(next(messages))
        except MessagesRemovedError as error:
            losses.append(error)
        else:
            ends.discard(int(found[-1].body))
    return found, losses


def test_iterators_of_threads_beside_a_cleaner(root: Path) -> None:
    with (
        opened(root) as owner,
        opened(root, read_only=True) as reader,
        ThreadPoolExecutor(4) as pool,
    ):
        results = [pool.submit(follow, store) for store in (owner, owner, reader, reader)]
        files = owner.message_store.commit_log.mapped_file_queue
        for number in range(COUNT):
            owner.put("t", b"%d" % number + b" " * 100, queue_id=number % QUEUES)
            if number % 500 == 499:
                owner.wait_dispatched()
                for file in files.mapped_files[:-1][:1]:
                    stop = file.file_from_offset + file.file_size
                    files.delete_expired_file_by_time(0, clean_immediately=True, before=stop)
                reader.refresh()
        for result in results:
            found, losses = result.result(60)
            for queue_id in range(QUEUES):
                read = [m.queue_offset for m in found if m.queue_id == queue_id]
                lost = [
                    offset
                    for error in losses
                    if error.queue_id == queue_id
                    for offset in range(error.start, error.stop)
                ]
                assert read == sorted(read)
                assert sorted(read + lost) == list(range(min(read + lost), COUNT // QUEUES))
