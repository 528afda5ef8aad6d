"""Random programs of `aput` calls that wait in line for room, of threads that put beside them, and
of flushes at any moment; one thread plays all of them, so that a seed settles every step."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyrocketstore
from gates import SYNC_SIZES
from pyrocketstore import PutMessageStatus

#: Bytes of `max_unforced_bytes`, and of `max_outstanding_put_bytes`.
BOUND = 4000
#: Larger than the bound, which one put may be once nothing is outstanding.
SIZES = (1, 100, 400, 1500, 3500, 6000)
STEPS = 120
Done = Callable[[PutMessageStatus], None]


class Lines:
    """One store, one event loop, and what stands for its threads."""

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
        #: Flushes that were asked for and are not done.
        self.requests: list[tuple[int, Done]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.cancelled: set[int] = set()
        self.trace: list[str] = []
        self.waited = 0

    def run(self) -> str:
        """What is wrong; empty when nothing is."""
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
            if not self.sync and self.low.reports.flushed_where() + 3 * BOUND < (
                self.low.get_max_phy_offset()
            ):
                return self.told("more than the bound and its largest puts are not on the device")
        for _ in range(10 * len(self.tasks) + 10):
            await self.flush()
            await self.turn()
        return self.judge()

    def judge(self) -> str:
        stuck = [i for i, task in enumerate(self.tasks) if not task.done()]
        if stuck:
            return self.told(f"aputs {stuck} wait for ever")
        offsets = []
        for number, task in enumerate(self.tasks):
            if number in self.cancelled:
                continue
            if task.exception() is not None:
                return self.told(f"aput {number}: {task.exception()!r}")
            offsets.append(task.result().queue_offset)
        if offsets != sorted(offsets):
            return self.told(f"the calls have the offsets {offsets}")
        left = (self.puts.count, self.puts.bytes, self.puts.waiting)
        return "" if left == (0, 0, 0) else self.told(f"room is lost: {left}")

    def told(self, text: str) -> str:
        return f"{text} after {' '.join(self.trace)}"

    # ---- steps -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Call aput, up to where it first waits."""
        body = bytes(self.rng.choice(SIZES))
        self.tasks.append(asyncio.ensure_future(self.store.aput("t", body)))
        await asyncio.sleep(0)
        self.waited += self.puts.waiting > 0

    async def turn(self) -> None:
        """The loop goes on."""
        await asyncio.sleep(0)

    async def beside(self) -> None:
        """A thread puts into another queue; under a bound it makes room for itself first."""
        if self.sync:
            self.low.put_message(pyrocketstore.MessageExtBrokerInner("t", b"x" * 500, 1))
            return
        bodies = [bytes(self.rng.choice(SIZES[:4])) for _ in range(self.rng.choice((1, 3)))]
        self.store.put_many("t", bodies, queue_ids=1)

    async def flush(self) -> None:
        """The device is done with what was asked for; who waits for room may have it."""
        self.low.flush()
        for _, done in [self.requests.pop(0) for _ in self.requests[:]]:
            done(PutMessageStatus.PUT_OK)
        self.puts.grant()

    async def cancel(self) -> None:
        """Cancel one that is not done."""
        open_ones = [i for i, task in enumerate(self.tasks) if not task.done()]
        if open_ones and self.rng.random() < 0.5:
            number = self.rng.choice(open_ones)
            self.cancelled.add(number)
            self.tasks[number].cancel()
