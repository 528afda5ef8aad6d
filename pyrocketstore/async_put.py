"""Puts that nobody waits for in a thread: in the log at once, done when the flush is."""

from __future__ import annotations

import asyncio
import collections
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import NamedTuple

from pyrocketstore._put_result import PutMessageResult, with_status
from pyrocketstore.config import MessageStoreConfig
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.service_thread import ServiceThread

__all__ = ["AsyncPuts", "FlushDiskWatcher", "MakeRoomService"]

#: What a message costs beside its body, about (bytes).
OVERHEAD = 200
NS_PER_MS = 1_000_000

Result = PutMessageResult
LoopFuture = asyncio.Future[PutMessageResult]


class _Pending(NamedTuple):
    """A message in the log whose flush is awaited."""

    end: int  # physical offset behind it
    deadline_ns: int
    size: int
    result: Result
    loop: asyncio.AbstractEventLoop | None
    future: Future[Result] | LoopFuture


class _Waiter:
    """A put that waits for room, before its message is in the log."""

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self.size = size
        self.loop = loop
        self.granted = False
        self.future: asyncio.Future[None] = loop.create_future()


class AsyncPuts:
    """The puts whose flush is outstanding, in the order of their offsets, and how many may be.

    One flush is asked for at a time, for all that wait then; when it is done they are completed in
    order, those of one event loop by one call into it. Futures that wait for longer than
    `sync_flush_timeout` become FLUSH_DISK_TIMEOUT.

    Bounds: under SYNC_FLUSH `max_outstanding_puts` and `max_outstanding_put_bytes`; under
    ASYNC_FLUSH, where a put is done at once, `max_unforced_bytes` of what is put and not forced
    (0: no bound).

    Parameters
    ----------
    config : MessageStoreConfig
    end, flushed : give the physical offset of the log's end, and up to which it is on the device
    monotonic_ns : the clock
    note : callable of (result, monotonic ns of its append) pairs, called with what was completed

    Threads: any. Source: RocketMQ 4.9.3 CommitLog#FlushDiskWatcher, #asyncPutMessage.
    Differs: bounded; futures of a store that is closed or has failed are done too.
    """

    def __init__(
        self,
        config: MessageStoreConfig,
        end: Callable[[], int],
        flushed: Callable[[], int],
        monotonic_ns: Callable[[], int],
        note: Callable[[Iterable[tuple[Result, int]]], None],
    ) -> None:
        self.sync = config.is_sync_flush
        self.max_unforced_bytes = 0 if self.sync else config.max_unforced_bytes
        #: False where a put is done as soon as it is in the log, whatever is outstanding.
        self.bounded = self.sync or self.max_unforced_bytes > 0
        #: Over the append and its registration, so that both have one order.
        self.order = threading.Lock()
        self.submit: Callable[[int], Future[PutMessageStatus]] | None = None
        self.wake_flush: Callable[[], None] = lambda: None
        #: told of the first put whose deadline nobody watches
        self.wake_watcher: Callable[[], None] = lambda: None
        self.count = 0
        self.bytes = 0
        self._max_count = config.max_outstanding_puts
        self._max_bytes = config.max_outstanding_put_bytes
        self._end, self._flushed, self._clock, self._note = end, flushed, monotonic_ns, note
        self._timeout_ns = config.sync_flush_timeout * NS_PER_MS
        self._lock = threading.Lock()
        self._pending: collections.deque[_Pending] = collections.deque()
        self._watched = False  # `expire` is called at the first one's deadline
        self._asked = 0  # up to where a flush was asked for; 0: none is
        self._done: collections.deque[tuple[_Pending, PutMessageStatus]] = collections.deque()
        self._delivering = False
        self._waiters: collections.deque[_Waiter] = collections.deque()
        self._ended = False

    # ---- room ---------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many puts wait for room."""
        return len(self._waiters)

    @property
    def unforced(self) -> int:
        """How many bytes are put and not forced."""
        return self._end() - self._flushed()

    def is_behind(self) -> bool:
        """True when more than `max_unforced_bytes` are put and not forced."""
        bound = self.max_unforced_bytes
        return bound > 0 and self.unforced >= bound

    def reserve(self, size: int) -> bool:
        """Take room for one put of a body of `size` bytes; False when there is none.

        Whoever got it calls `add` or `release` then.
        """
        with self._lock:
            if self._waiters or not self._has_room(size):
                return False
            self._take(size)
            return True

    async def wait_for_room(self, size: int) -> None:
        """As `reserve`, but wait, in the order of the calls. Threads: an event loop's."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._ended or (not self._waiters and self._has_room(size)):
                self._take(size)
                return
            waiter = _Waiter(size, loop)
            self._waiters.append(waiter)
        self.wake_flush()
        try:
            await waiter.future
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise

    def release(self, size: int) -> None:
        """Give back what `reserve` took: nothing was put."""
        with self._lock:
            self.count -= 1
            self.bytes -= size + OVERHEAD
        self.grant()
        if self._waiters:
            self.wake_flush()  # what was put may have to be forced first

    def grant(self) -> None:
        """Let go on who waits for room and has it now."""
        granted: list[_Waiter] = []
        with self._lock:
            while self._waiters and (self._ended or self._has_room(self._waiters[0].size)):
                waiter = self._waiters.popleft()
                waiter.granted = True
                self._take(waiter.size)
                granted.append(waiter)
        for waiter in granted:
            if not _call_in(waiter.loop, _set_done, waiter.future):
                self.release(waiter.size)

    def _has_room(self, size: int) -> bool:
        size += OVERHEAD
        if self.sync:
            if self.count == 0:  # one always fits
                return True
            return self.count < self._max_count and self.bytes + size <= self._max_bytes
        behind = self.unforced + self.bytes
        return behind == 0 or behind + size <= self.max_unforced_bytes

    def _take(self, size: int) -> None:
        self.count += 1
        self.bytes += size + OVERHEAD

    def _give_up(self, waiter: _Waiter) -> None:
        with self._lock:
            granted = waiter.granted
            if not granted:
                self._waiters.remove(waiter)
        if granted:
            self.release(waiter.size)
        else:
            self.grant()  # one behind it may be smaller

    # ---- what is in the log -------------------------------------------------------------------

    def add(self, result: Result, size: int) -> Future[Result]:
        """A future for the flush of what was appended; call with `order` held, and then `ask`."""
        future: Future[Result] = Future()
        future.set_running_or_notify_cancel()  # in the log: it is too late to cancel
        self._append(result, size, None, future)
        return future

    def add_to_loop(self, result: Result, size: int, loop: asyncio.AbstractEventLoop) -> LoopFuture:
        """The same with a future of an event loop. Threads: the loop's."""
        future: LoopFuture = loop.create_future()
        self._append(result, size, loop, future)
        return future

    def _append(
        self,
        result: Result,
        size: int,
        loop: asyncio.AbstractEventLoop | None,
        future: Future[Result] | LoopFuture,
    ) -> None:
        end = result.phy_offset + result.wrote_bytes
        deadline = self._clock() + self._timeout_ns
        with self._lock:
            self._pending.append(_Pending(end, deadline, size, result, loop, future))
            watched, self._watched = self._watched, True
        if not watched:
            self.wake_watcher()

    def ask(self) -> None:
        """Ask for the flush of what was added, unless one is under way."""
        with self._lock:
            if self._asked or not self._pending or self.submit is None:
                return
            self._asked = end = self._pending[-1].end
        self.submit(end).add_done_callback(self._on_flushed)

    def expire(self) -> float | None:
        """Complete those that have waited for too long.

        Returns ms until the next one will have; None without any: `wake_watcher` is called then.
        """
        now = self._clock()
        with self._lock:
            where = self._flushed()
            while self._pending and self._pending[0].deadline_ns <= now:
                self._pop(where, PutMessageStatus.FLUSH_DISK_TIMEOUT)
        self._deliver()
        with self._lock:
            self._watched = bool(self._pending)
            if not self._watched:
                return None
            return max(0.0, (self._pending[0].deadline_ns - self._clock()) / NS_PER_MS)

    def let_go(self) -> None:
        """The store takes no more puts: who waits for room finds that out by trying."""
        with self._lock:
            self._ended = True
        self.grant()

    def close(self) -> None:
        """The flush service has ended: nobody waits on."""
        with self._lock:
            self._ended = True
            where = self._flushed()
            while self._pending:
                self._pop(where, PutMessageStatus.FLUSH_DISK_TIMEOUT)
        self._deliver()
        self.grant()

    def _on_flushed(self, flushed: Future[PutMessageStatus]) -> None:
        status = flushed.result()
        with self._lock:
            target, self._asked = self._asked, 0
            where = self._flushed()
            while self._pending and self._pending[0].end <= max(where, target):
                self._pop(where, status)
        self._deliver()
        self.ask()

    def _pop(self, where: int, status: PutMessageStatus) -> None:
        # With the lock.
        entry = self._pending.popleft()
        ok = entry.end <= where
        self._done.append((entry, PutMessageStatus.PUT_OK if ok else status))
        self.count -= 1
        self.bytes -= entry.size + OVERHEAD

    def _deliver(self) -> None:
        """Complete what is done, in order: one thread at a time, the others leave it theirs."""
        with self._lock:
            if self._delivering or not self._done:
                return
            self._delivering = True
        try:
            while batch := self._next_batch():
                self._complete(batch)
        finally:
            with self._lock:
                self._delivering = False
        self.grant()
        self._deliver()  # what came between the last look and now

    def _next_batch(self) -> list[tuple[_Pending, Result]]:
        """The next ones that belong to one event loop, or to none."""
        batch: list[tuple[_Pending, Result]] = []
        with self._lock:
            while self._done and (not batch or self._done[0][0].loop is batch[0][0].loop):
                entry, status = self._done.popleft()
                ok = status is PutMessageStatus.PUT_OK
                batch.append((entry, entry.result if ok else with_status(entry.result, status)))
                if entry.loop is None:  # one at a time: what it calls may raise
                    break
        return batch

    def _complete(self, batch: list[tuple[_Pending, Result]]) -> None:
        self._note([(result, entry.deadline_ns - self._timeout_ns) for entry, result in batch])
        loop = batch[0][0].loop
        if loop is None:
            (entry, result), *_ = batch
            entry.future.set_result(result)
        else:
            # A loop that was closed meanwhile awaits nothing; the messages stay.
            _call_in(loop, _set_results, [(entry.future, result) for entry, result in batch])


class FlushDiskWatcher(ServiceThread):
    """Under SYNC_FLUSH: completes futures that wait for the device for too long.

    Source: RocketMQ 4.9.3 FlushDiskWatcher.
    Differs: sleeps until the next deadline instead of polling; leaves nobody waiting when it dies.
    """

    def __init__(self, puts: AsyncPuts) -> None:
        super().__init__("FlushDiskWatcher")
        self.puts = puts
        puts.wake_watcher = self.wakeup

    def run(self) -> None:
        """Wait for deadlines, which come in the order of the puts."""
        while not self.stopped:
            self.wait_for_running(self.puts.expire())

    def on_failure(self, error: BaseException) -> None:
        """The thread has died: nobody waits for its look."""
        self.puts.close()


class MakeRoomService(ServiceThread):
    """Under ASYNC_FLUSH with `max_unforced_bytes`: forces the log when puts wait for room."""

    def __init__(self, puts: AsyncPuts, force: Callable[[], object]) -> None:
        super().__init__("MakeRoomService")
        self.puts = puts
        self.force = force
        puts.wake_flush = self.wakeup

    def run(self) -> None:
        """Force, and let waiters go on, until told to stop."""
        while not self.stopped:
            self.wait_for_running(None)
            while self.puts.waiting and not self.stopped:
                self.force()
                self.puts.grant()
                if not self.puts.unforced:
                    break  # the room is with those that have not put yet: `release` wakes


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[..., None], argument: object) -> bool:
    """Have an event loop make a call; False when it is closed."""
    try:
        loop.call_soon_threadsafe(call, argument)
    except RuntimeError:
        if not loop.is_closed():
            raise
        return False
    return True


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _set_results(pairs: list[tuple[LoopFuture, Result]]) -> None:
    for future, result in pairs:
        if not future.done():  # cancelled by who awaited it
            future.set_result(result)
