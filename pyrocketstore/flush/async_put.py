"""AsyncPuts: puts whose flush is awaited by futures and not by a thread."""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pyrocketstore.commit_log._puts import PutMessageResult, with_status
from pyrocketstore.commit_log.put_room import PutRoom, Room, call_in
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.display import logger
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.system.service_thread import ServiceThread
from pyrocketstore.system.threads import JoinableThread

if TYPE_CHECKING:
    import asyncio

LOG = logger(__name__)

NS_PER_MS = 1_000_000
#: How long a close waits for futures whose locks or callbacks block (s).
COMPLETE_SECONDS = 1.0

#: After so many puts of one task, none of which met another put, the task flushes for itself ...
LONE_PUTS = 16
#: ... for this long, until it lets its event loop run (ns).
LONE_NS = 300_000

Result = PutMessageResult
LoopFuture: TypeAlias = "asyncio.Future[PutMessageResult]"


class _Pending(NamedTuple):
    """A message in the log whose flush is outstanding."""

    end: int  # physical offset after it
    deadline_ns: int
    room: Room
    result: Result
    loop: asyncio.AbstractEventLoop | None
    future: PutFuture | LoopFuture


class _Condition(threading.Condition):
    """A condition that keeps nothing when a signal handler raises: compiled code never leaves its
    lock half taken or half released, or a waiter behind."""

    def __enter__(self) -> bool:
        return self._lock.__enter__()  # type: ignore[attr-defined, no-any-return]

    def __exit__(self, *exc: Any) -> None:
        self._lock.__exit__(*exc)  # type: ignore[attr-defined]

    def wait(self, timeout: float | None = None) -> bool:
        """As Condition's. A handler runs only in `acquire`: a thread that holds the lock before the
        call holds it after the call too."""
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)  # type: ignore[attr-defined]
        is_notified = False
        state = self._release_save()  # type: ignore[attr-defined]
        try:
            if timeout is None:
                is_notified = waiter.acquire()
            elif timeout > 0:
                is_notified = waiter.acquire(True, timeout)
            else:
                is_notified = waiter.acquire(False)
        finally:
            self._acquire_restore(state)  # type: ignore[attr-defined]
            # A notification may have come between the end of the wait and here.
            if not is_notified and waiter in self._waiters:  # type: ignore[attr-defined]
                self._waiters.remove(waiter)  # type: ignore[attr-defined]
        return is_notified


class PutFuture(Future[Result]):
    """A future whose callbacks cannot end the thread that completes it.

    concurrent.futures catches only Exception: SystemExit or KeyboardInterrupt of one callback
    would keep the next callbacks from running.
    """

    def __init__(self) -> None:
        super().__init__()
        self._condition = _Condition()
        self._raised: list[BaseException] | None = None

    def add_done_callback(self, fn: Callable[[Future[Result]], object]) -> None:
        """As Future's; an exception of `fn` in the completing thread is logged there."""

        def guarded(future: Future[Result]) -> None:
            try:
                fn(future)
            except Exception:
                raise  # concurrent.futures logs it
            except BaseException as error:
                if self._raised is None:  # done already: this is the caller's own thread
                    raise
                self._raised.append(error)

        super().add_done_callback(guarded)

    def complete(self, result: Result) -> list[BaseException]:
        """Set the result and run every callback; return their errors that are not an Exception."""
        raised = self._raised = []
        try:
            if not self.done():
                self.set_result(result)
        finally:
            self._raised = None
        return raised


class AsyncPuts(PutRoom):
    """The puts whose flush is outstanding, in the order of their offsets, and their limit.

    One flush is requested at a time, for all puts that wait then; after it they are completed in
    order, those of one event loop by one call into it. Futures that wait for longer than
    `sync_flush_timeout` become FLUSH_DISK_TIMEOUT.

    A callback of a future may raise any error: the thread that completes it logs that and
    continues.

    Parameters
    ----------
    config : MessageStoreConfig
    end, flushed : return the physical offset of the log's end, and the durable one
    monotonic_ns : the clock
    note : callable of (result, monotonic ns of its append) pairs, called with completed puts

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
        super().__init__(config, end, flushed)
        #: Held over an append and its registration, so that both have the same order.
        self.order = threading.RLock()
        #: requests a flush up to an offset, and a call after it; False when no service can do it
        self.request: Callable[[int, Callable[[PutMessageStatus], None]], bool] | None = None
        #: returns a call that flushes up to an offset at once, if that takes little time now
        self.quick_flush: Callable[[], Callable[[int], PutMessageStatus] | None] = lambda: None
        #: called for the first put whose deadline is not watched
        self.wake_watcher: Callable[[], None] = lambda: None
        self._clock, self._note = monotonic_ns, note
        self._timeout_ns = config.sync_flush_timeout * NS_PER_MS
        self._pending: collections.deque[_Pending] = collections.deque()
        self._watched = False  # `expire` is called at the first one's deadline
        self._requested = self._answered = 0  # the greatest ends of requested and done flushes
        self._last_end = 0  # the greatest end that was added: a signal handler's put may come first
        self._done: collections.deque[tuple[_Pending, PutMessageStatus]] = collections.deque()
        self._delivering = False
        self._lone_task = self._lone_count = self._lone_end_ns = 0

    # ---- what is in the log -------------------------------------------------------------------

    def add(self, result: Result, room: Room) -> PutFuture:
        """Return a future for the flush of an append; call with `order` held, then call `ask`."""
        future = PutFuture()
        future.set_running_or_notify_cancel()  # in the log: it is too late to cancel
        self._append(result, room, None, future)
        return future

    def add_to_loop(
        self, result: Result, room: Room, loop: asyncio.AbstractEventLoop
    ) -> LoopFuture:
        """As `add`, with a future of an event loop. Threads: the loop's."""
        future: LoopFuture = loop.create_future()
        self._append(result, room, loop, future)
        return future

    def _append(
        self,
        result: Result,
        room: Room,
        loop: asyncio.AbstractEventLoop | None,
        future: PutFuture | LoopFuture,
    ) -> None:
        end = result.phy_offset + result.wrote_bytes
        deadline = self._clock() + self._timeout_ns
        entry = _Pending(end, deadline, room, result, loop, future)
        with self._lock:
            self._last_end = max(self._last_end, end)
            self._hand_over(room)
            self._pending.append(entry)
            watched, self._watched = self._watched, True
        if not watched:
            self.wake_watcher()

    def ask(self) -> None:
        """Request a flush for the added puts, unless one is in progress."""
        with self._lock:
            if not self._pending or self.request is None:
                return
            if self._requested > self._answered:
                return  # its end requests the next one
            end = self._last_end
        try:
            taken = self.request(end, functools.partial(self._on_flushed, end))
        except BaseException:
            self.wake_watcher()  # it requests the flush after a signal handler has interrupted
            raise
        if taken:
            # Only now: a request inside a signal handler must not wait for this one.
            self._requested = max(self._requested, end)
        else:
            self._on_flushed(end, PutMessageStatus.FLUSH_DISK_TIMEOUT)
            if self._ended:  # a signal handler has closed the store: the watcher may have ended
                self.complete_rest()

    def is_lone(self, task: object) -> bool:
        """Return True if this put of `task` should flush at once, without a future.

        A flush at once serves one put, so this holds only for a task that has awaited its last
        puts one by one while no other task put, and while flushes take little time. Every 0.3 ms
        it does not hold, so that the task lets its event loop run. Threads: the loop's.
        """
        number = 0 if task is None else id(task)
        if number != self._lone_task or self.reservations.count:
            self._lone_task, self._lone_count = number, 0
            return False
        self._lone_count += 1
        if not number or self._lone_count <= LONE_PUTS or self.quick_flush() is None:
            return False
        now = self._clock()
        if not self._lone_end_ns:
            self._lone_end_ns = now + LONE_NS
        if now < self._lone_end_ns:
            return True
        self._lone_end_ns = 0
        return False

    def ask_from_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Request a flush for the added puts. Threads: the loop's.

        While flushes take little time, the loop flushes in this thread, in its next iteration: for
        all puts that its tasks add before. Two hand-overs to another thread would take longer.
        """
        if self._requested > self._answered:
            return  # its end requests the next one
        if self.quick_flush() is None:
            self.ask()
            return
        try:
            loop.call_soon(self._flush_in_loop, loop)
        except BaseException:
            self.wake_watcher()  # as in `ask`
            raise

    def _flush_in_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if not self._pending or self._requested > self._answered:
                return
            end = self._last_end
        flush = self.quick_flush()
        try:
            if flush is None:
                self.ask()
            else:
                self._on_flushed(end, flush(end), loop)
        except BaseException:
            self.wake_watcher()
            raise

    def expire(self) -> float | None:
        """Complete puts that have waited for too long.

        Returns the ms until the next deadline; None without puts: `wake_watcher` is called then.
        """
        now = self._clock()
        with self._lock:
            where = self._flushed()
            while self._pending and self._pending[0].deadline_ns <= now:
                self._pop(where, PutMessageStatus.FLUSH_DISK_TIMEOUT)
        self._deliver(futures=True)
        self.ask()
        with self._lock:
            self._watched = bool(self._pending)
            if not self._watched:
                return None
            return max(0.0, (self._pending[0].deadline_ns - self._clock()) / NS_PER_MS)

    def let_go(self) -> None:
        """Wake all that wait for room, because the store accepts no more puts."""
        with self._lock:
            self._ended = True
        self.grant()

    def close(self) -> None:
        """Decide every outstanding put, after the end of the flush service.

        The watcher and `complete_rest` complete the futures that belong to no event loop.
        """
        with self._lock:
            self._ended = True
            where = self._flushed()
            while self._pending:
                self._pop(where, PutMessageStatus.FLUSH_DISK_TIMEOUT)
        self._deliver()
        self.grant()

    def complete_all(self) -> None:
        """Complete decided puts, also futures of no event loop. Threads: the watcher's."""
        self._deliver(futures=True)

    def complete_rest(self) -> None:
        """Complete decided puts when the watcher has died or was never started.

        Uses a new thread, because another one may hold the lock of a future; or this thread where
        none can be started, as in exit handlers on CPython 3.12.1.
        """
        if not self._done:
            return
        rest = JoinableThread(self.complete_all, "FlushDiskWatcher")
        try:
            rest.start()
        except (RuntimeError, MemoryError):
            self.complete_all()
        else:
            rest.join(COMPLETE_SECONDS)

    def _on_flushed(
        self,
        target: int,
        status: PutMessageStatus,
        here: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        with self._lock:
            self._answered = max(self._answered, target)
            where = self._flushed()
            while self._pending and self._pending[0].end <= max(where, target):
                self._pop(where, status)
        self._deliver(here=here)
        self.ask()

    def _pop(self, where: int, status: PutMessageStatus) -> None:
        # Under the lock. An entry is always in a list, whatever a signal handler raises.
        entry = self._pending[0]
        ok = entry.end <= where
        self._done.append((entry, PutMessageStatus.PUT_OK if ok else status))
        self._drop(entry.room)
        if self._pending and self._pending[0] is entry:
            self._pending.popleft()

    def _deliver(
        self, *, futures: bool = False, here: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Complete decided puts in order: one thread at a time works for all threads.

        `here` is the event loop that this thread runs, if it runs one.

        With `futures` also those that belong to no event loop: only the watcher's thread may wait
        for their locks and callbacks, which are the caller's.
        """
        raised: list[BaseException] = []
        while self._deliver_all(raised, futures, here):
            self.grant()
        if self._done and not futures:
            self.wake_watcher()
        _report(raised)

    def _deliver_all(
        self,
        raised: list[BaseException],
        futures: bool,
        here: asyncio.AbstractEventLoop | None,
    ) -> bool:
        """Return True when there was a put to complete; `raised` gets the errors of callbacks."""
        mine = False
        try:
            with self._lock:
                if self._done and not self._delivering:
                    mine = self._delivering = futures or self._done[0][0].loop is not None
            while mine and (batch := self._next_batch(futures)):
                raised += self._complete(batch, here)
                self._delivered(batch)
        finally:
            if mine:
                self._delivering = False
        return mine

    def _next_batch(self, futures: bool) -> list[tuple[_Pending, PutMessageStatus]]:
        """Return the next puts of one event loop, or one put of none."""
        batch: list[tuple[_Pending, PutMessageStatus]] = []
        with self._lock:
            for done in self._done:
                if batch and done[0].loop is not batch[0][0].loop:
                    break
                if done[0].loop is None and not futures:
                    break
                batch.append(done)
                if done[0].loop is None:  # one at a time: its callbacks may wait for each other
                    break
        return batch

    def _delivered(self, batch: list[tuple[_Pending, PutMessageStatus]]) -> None:
        with self._lock:
            for done in batch:
                if self._done and self._done[0] is done:
                    self._done.popleft()

    def _complete(
        self,
        batch: list[tuple[_Pending, PutMessageStatus]],
        here: asyncio.AbstractEventLoop | None,
    ) -> list[BaseException]:
        """Complete futures of one loop, or one future; return the errors of its callbacks."""
        results = [_with(entry.result, status) for entry, status in batch]
        appended = (entry.deadline_ns - self._timeout_ns for entry, _ in batch)
        self._note(zip(results, appended, strict=True))
        entry = batch[0][0]
        if isinstance(entry.future, PutFuture):
            return entry.future.complete(results[0])
        # A closed loop waits for nothing; its messages stay in the log.
        pairs = [(done[0].future, result) for done, result in zip(batch, results, strict=True)]
        if entry.loop is here:
            _set_results(pairs)
        else:
            call_in(entry.loop, _set_results, pairs)
        return []


class FlushDiskWatcher(ServiceThread):
    """Under SYNC_FLUSH: complete futures that have waited for the device for too long.

    Source: RocketMQ 4.9.3 FlushDiskWatcher.
    Differs: sleeps until the next deadline instead of polling; completes all futures when it dies.
    """

    def __init__(self, puts: AsyncPuts) -> None:
        super().__init__("FlushDiskWatcher")
        self.puts = puts
        puts.wake_watcher = self.event.signal  # compiled: a signal handler cannot interrupt it

    def run(self) -> None:
        """Wait for deadlines, which are in the order of the puts; at the end, complete the puts
        that `close` has decided."""
        while not self.stopped:
            self.wait_for_running(self.puts.expire())
        self.puts.complete_all()

    def on_failure(self, error: BaseException) -> None:
        """Complete all puts after the thread has died."""
        self.puts.close()
        self.puts.complete_rest()


class MakeRoomService(ServiceThread):
    """Under ASYNC_FLUSH with `max_unforced_bytes`: flush the log when puts wait for room."""

    def __init__(self, puts: AsyncPuts, flush: Callable[[], object]) -> None:
        super().__init__("MakeRoomService")
        self.puts = puts
        self.flush = flush
        puts.wake_flush = self.wakeup

    def run(self) -> None:
        """Flush and grant room until asked to stop."""
        while not self.stopped:
            self.wait_for_running(None)
            while self.puts.waiting and not self.stopped:
                self.flush()
                self.puts.grant()
                if not self.puts.unforced:
                    break  # room is granted to puts that have not begun: `release` wakes


def _with(result: Result, status: PutMessageStatus) -> Result:
    return result if status is PutMessageStatus.PUT_OK else with_status(result, status)


def _report(raised: list[BaseException]) -> None:
    """Log the errors of callbacks; in the main thread raise the first: it may be a signal
    handler's."""
    for error in raised:
        LOG.error("a callback of a future of a put raised %r", error, exc_info=error)
    if raised and threading.current_thread() is threading.main_thread():
        raise raised[0]


def _set_results(pairs: list[tuple[PutFuture | LoopFuture, Result]]) -> None:
    for future, result in pairs:
        if not future.done():  # else the caller has cancelled it
            future.set_result(result)
