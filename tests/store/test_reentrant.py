"""Goal: a signal handler may use the store while the interrupted call is one of the same store, in
the same thread. Method: a thread sends signals all the time, and the handler puts and reads."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import StoreStateError
from support.sizes import SIZES, SYNC_SIZES

#: Handlers that run inside one another, at most.
DEPTH = 3
SECONDS = 1.5


@contextlib.contextmanager
def signals(handler: Callable[[], None], interval: float) -> Iterator[None]:
    """Call the handler in the main thread every `interval` seconds, at any bytecode."""
    main = threading.main_thread().ident
    assert main is not None
    ended = threading.Event()

    def send() -> None:
        while not ended.wait(interval):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: handler())
    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


class Nested:
    """Calls one of several functions, and lets a signal in that call call the next."""

    def __init__(self, calls: list[Callable[[], None]]) -> None:
        self.count = 0
        self.deepest = 0
        self._depth = 0
        self._calls = itertools.cycle(calls)

    def __call__(self) -> None:
        if self._depth == DEPTH:
            return
        self._depth += 1
        self.deepest = max(self.deepest, self._depth)
        try:
            next(self._calls)()
            self.count += 1
        finally:
            self._depth -= 1


class Putter:
    """Puts under one queue a call, with bodies that say their number, and checks the answers."""

    def __init__(self, store: pyrocketstore.Store) -> None:
        self.store = store
        self.bodies: list[bytes] = []

    def _next(self, count: int) -> list[bytes]:
        first = len(self.bodies)
        made = [b"%d " % i + b"x" * (i % 300) for i in range(first, first + count)]
        self.bodies += made
        return made

    def put(self) -> None:
        (body,) = self._next(1)
        result = self.store.put("t", body, tags="a", keys=body[:8].decode())
        assert self.store.get(result.phy_offset).body == body  # type: ignore[union-attr]

    def put_many(self) -> None:
        bodies = self._next(40)
        ids = [i % 3 for i in range(len(bodies))]
        _, places = self.store.put_many("t", bodies, queue_ids=ids, tags=["a"] * len(bodies))
        assert [m.body for m in self.store.get_many(places) if m] == bodies

    def put_batch(self) -> None:
        bodies = self._next(5)
        result = self.store.put_batch("t", bodies, 1, keys=[b[:8].decode() for b in bodies])
        found = [self.store.get(msg_id) for msg_id in result.msg_id.split(",")]
        assert [m.body for m in found if m] == bodies

    def query(self) -> None:
        key = (self.bodies or [b"0 "])[0][:8].decode()
        assert all(key.split()[0] in m.keys for m in self.store.query("t", key))

    def read(self) -> None:
        self.store.read_batch("t", 1, start=self.store.max_offset("t", 1), max_count=10)


@pytest.mark.parametrize("settings", [SIZES, SYNC_SIZES], ids=["async", "sync"])
def test_handlers_use_the_store_that_they_interrupt(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    sizes = {**settings, "mapped_file_size_commit_log": 1 << 26}
    with pyrocketstore.open(tmp_path, **sizes) as store:
        putter = Putter(store)
        calls = [putter.put_many, putter.put, putter.put_batch, putter.query, putter.read]
        for call in calls:
            call()  # the queues exist, and the modules that a call imports
        nested = Nested(calls)
        end = time.monotonic() + SECONDS
        with signals(nested, 0.0003):
            for call in itertools.cycle(calls):
                call()
                if time.monotonic() > end:
                    break
        assert nested.count > 20
        assert nested.deepest > 1
        found = [m.body for m in store.read("t", None)]
        assert sorted(found) == sorted(putter.bodies)


def test_a_put_many_inside_of_put_many(tmp_path: Path) -> None:
    """Each call gives the offsets of its own messages, at every depth."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("t", b"first")
        log = store.message_store.commit_log
        inner: list[list[int]] = []

        def interrupted(size: int) -> None:
            if len(inner) < 3:
                inner.append([])
                offsets, _ = store.put_many("t", [b"inner"] * 5, queue_ids=7)
                inner[0] += offsets.tolist()
            log.roll(size)

        log.core.roll_by(interrupted)
        bodies = [b"y" * 1000] * 200
        offsets, _ = store.put_many("t", bodies, queue_ids=[0, 5] * 100)
        assert offsets[0::2].tolist() == list(range(1, 101))
        assert sorted(inner[0]) == list(range(15))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("settings", [SIZES, SYNC_SIZES], ids=["async", "sync"])
def test_a_handler_meets_locks_that_its_thread_holds(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """The calls that a handler makes while the interrupted one counts or times something."""
    with pyrocketstore.open(tmp_path, **settings) as store:
        low = store.message_store
        with low.stats_service._counts_lock:
            store.put_many("t", [b"a", b"b"], queue_ids=[0, 1])
            store.put("t", b"c", keys="k", properties={"p": "v"})
            assert len(list(store.read("t", 0))) == len(store.query("t", "k")) * 2
            assert store.stats().put_messages_by_status["PUT_OK"] == 3


@pytest.mark.parametrize("line", range(6))
def test_a_store_that_closes_while_verify_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: int
) -> None:
    """At its first steps, where what it will look at is settled."""
    store = pyrocketstore.open(tmp_path)
    store.put("t", b"x", keys="key")
    steps = iter(range(100))

    def trace(frame: Any, event: str, argument: object) -> Any:
        if frame.f_code.co_qualname == "_Verifier.__init__" and next(steps) == line:
            sys.settrace(None)
            store.close()
        return trace

    sys.settrace(trace)
    try:
        with pytest.raises(StoreStateError):
            store.verify()
    finally:
        sys.settrace(None)
    assert store.closed
