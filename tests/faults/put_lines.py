"""Random programs of `aput` calls that wait for room, of threads that put at the same time, and of
flushes at any moment. One thread runs all of them, so that a seed determines every step."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyrocketstore
from pyrocketstore import PutMessageStatus
from pyrocketstore.commit_log.put_room import OVERHEAD
from support.sizes import SYNC_SIZES

#: Value in bytes of `max_unforced_bytes` and of `max_outstanding_put_bytes`.
BOUND = 4000
#: Larger than the bound: one put may exceed it if nothing is outstanding.
SIZES = (1, 100, 400, 1500, 3500, 6000)
#: Bodies of one call of a thread.
BESIDE_SIZES, BESIDE_COUNTS = SIZES[:4], (1, 3)
#: More is never put and not durable: a call of a thread that begins just below the bound, and the
#: aputs that were granted room before it, which keep that right.
MOST = BOUND + BESIDE_COUNTS[-1] * (BESIDE_SIZES[-1] + OVERHEAD) + max(BOUND, SIZES[-1] + OVERHEAD)
STEPS = 120
Done = Callable[[PutMessageStatus], None]


class Lines:
    """One store, one event loop, and steps in place of its threads."""

    def __init__(self, path: Path, seed: str, *, sync: bool) -> None:
        self.rng = random.Random(seed)
        self.sync = sync
        self.settings: dict[str, Any] = {**SYNC_SIZES, "mapped_file_size_commit_log": 1 << 20}
        if sync:
            self.settings |= {"max_outstanding_puts": 3, "max_outstanding_put_bytes": BOUND}
        else:
            self.settings |= {"flush_disk_type": "ASYNC_FLUSH", "max_unforced_bytes": BOUND}
            self.settings |= {"flush_interval_commit_log": 100_000}
        self.path = path
        #: Flushes that were requested and are not done.
        self.requests: list[tuple[int, Done]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.cancelled: set[int] = set()
        self.trace: list[str] = []
        self.waited = 0

    def run(self) -> str:
        """Return a text on the failure; empty without one."""
        with pyrocketstore.open(self.path, **self.settings) as store:
            self.store, self.low = store, store.message_store
            self.puts = self.low.async_puts
            store.put("t", b"first", queue_id=1)
            self.low.flush()
            # Only a step of the program makes room.
            request, wake = self.puts.request, self.puts.wake_flush
            self.puts.wake_flush = lambda: None
            self.puts.request = lambda end, done: self.requests.append((end, done)) is None
            try:
                return asyncio.run(self.main())
            finally:
                self.puts.request, self.puts.wake_flush = request, wake

    async def main(self) -> str:
        steps = [self.start, self.start, self.turn, self.beside, self.flush, self.cancel]
        for _ in range(STEPS):
            step = self.rng.choice(steps)
            self.trace.append(step.__name__)
            await step()
            behind = self.low.get_max_phy_offset() - self.low.reports.flushed_where()
            if not self.sync and behind > MOST:
                return self.failure(f"{behind} bytes are not durable, the most is {MOST}")
        for _ in range(10 * len(self.tasks) + 10):
            await self.flush()
            await self.turn()
        return self.judge()

    def judge(self) -> str:
        stuck = [i for i, task in enumerate(self.tasks) if not task.done()]
        if stuck:
            return self.failure(f"aputs {stuck} wait forever")
        offsets = []
        for number, task in enumerate(self.tasks):
            if number in self.cancelled:
                continue
            if task.exception() is not None:
                return self.failure(f"aput {number}: {task.exception()!r}")
            offsets.append(task.result().queue_offset)
        if offsets != sorted(offsets):
            return self.failure(f"the calls have the offsets {offsets}")
        left = (self.puts.count, self.puts.bytes, self.puts.waiting)
        return "" if left == (0, 0, 0) else self.failure(f"room is lost: {left}")

    def failure(self, text: str) -> str:
        return f"{text} after {' '.join(self.trace)}"

    # ---- steps -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Call aput, up to its first wait."""
        body = bytes(self.rng.choice(SIZES))
        self.tasks.append(asyncio.ensure_future(self.store.aput("t", body)))
        await asyncio.sleep(0)
        self.waited += self.puts.waiting > 0

    async def turn(self) -> None:
        """Run the event loop."""
        await asyncio.sleep(0)

    async def beside(self) -> None:
        """Put into another queue as a thread does; under a bound it first makes room."""
        if self.sync:
            self.low.put_message(pyrocketstore.MessageExtBrokerInner("t", b"x" * 500, 1))
            return
        count = self.rng.choice(BESIDE_COUNTS)
        bodies = [bytes(self.rng.choice(BESIDE_SIZES)) for _ in range(count)]
        self.store.put_many("t", bodies, queue_ids=1)

    async def flush(self) -> None:
        """Complete the requested flushes, so that waiting puts get room."""
        self.low.flush()
        for _, done in [self.requests.pop(0) for _ in self.requests[:]]:
            done(PutMessageStatus.PUT_OK)
        self.puts.grant()

    async def cancel(self) -> None:
        """Cancel an aput that is not done."""
        open_ones = [i for i, task in enumerate(self.tasks) if not task.done()]
        if open_ones and self.rng.random() < 0.5:
            number = self.rng.choice(open_ones)
            self.cancelled.add(number)
            self.tasks[number].cancel()
