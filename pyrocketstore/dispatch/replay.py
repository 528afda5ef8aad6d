"""Replay: dispatch records of the log again, so that queues and index get units and keys they
lack.
"""

from __future__ import annotations

import errno
import functools
from collections import deque
from typing import TYPE_CHECKING, Any

from pyrocketstore.commit_log._chunk_scan import LogChunk
from pyrocketstore.commit_log.parallel_scan import LogScan
from pyrocketstore.consume_queue.multi_dispatch import put_unit
from pyrocketstore.consume_queue.restarted_queues import dispatch_restarted
from pyrocketstore.dispatch._dispatcher import Dispatcher
from pyrocketstore.dispatch.reput import resume_position
from pyrocketstore.errors import StoreIOError
from pyrocketstore.results import DispatchRequest, Status
from pyrocketstore.system._env import Event
from pyrocketstore.system.signal_shield import check_abandoned
from pyrocketstore.system.thread_pool import PoolCall, ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyrocketstore.commit_log.appended import LogPart
    from pyrocketstore.commit_log.log import CommitLog
    from pyrocketstore.config.message_store_config import MessageStoreConfig
    from pyrocketstore.consume_queue.queue import ConsumeQueue
    from pyrocketstore.consume_queue.table import ConsumeQueueTable
    from pyrocketstore.dispatch.observers import Observers
    from pyrocketstore.index._file import IndexFile
    from pyrocketstore.index.index_service import IndexService

__all__ = ["QueuesReplay", "put_keys", "put_units", "replay", "replay_observed"]

#: If fewer records were dispatched since the last uncommon one, more uncommon ones are expected.
COMMON_RUN = 64
#: At most this many records are then dispatched by the loop that handles all cases.
UNCOMMON_RUN_MAX = 4096
#: From this many chunks of the log on a thread fills the index.
INDEX_THREAD_MIN = 3


def replay(
    log: CommitLog,
    dispatcher: Dispatcher,
    start: int,
    end: int,
    known: deque[LogChunk] | None = None,
) -> None:
    """Dispatch the records in [start, end) again; units and keys that exist are skipped.

    `known` are scanned chunks of this part of the log, in order; they are removed as they are used.

    A damaged record, which only an old file that recovery does not check may hold, is skipped up to
    the next valid one. Raises StoreIOError.
    """
    chunks = _Chunks(log, dispatcher, deque() if known is None else known)
    position = start
    while position < end:
        check_abandoned()
        reached = chunks.replay(position, end)
        if reached == position:
            reached = _dispatch_file(log, dispatcher, position, end)
        dispatcher.position = position = reached


class QueuesReplay:
    """Dispatches the log again to all queues of a store, those included that start again in it."""

    def __init__(self, table: ConsumeQueueTable, dispatcher: Dispatcher) -> None:
        self._table, self._dispatcher = table, dispatcher
        self._had_units = table.keys_with_units()

    def run(self, start: int, end: int, known: deque[LogChunk] | None = None) -> None:
        """As `replay`."""
        replay(self._table.commit_log, self._dispatcher, start, end, known)

    def finish(self, end: int) -> None:
        """See `dispatch_restarted`."""
        dispatch_restarted(self._table, end, self._had_units, self.run)


def _dispatch_file(
    log: CommitLog, dispatcher: Dispatcher, position: int, end: int, *, observed: bool = False
) -> int:
    """Dispatch the records of one file; return where the log continues, behind damage."""
    file = log.mapped_file_queue.find_mapped_file_by_offset(position, False)
    if file is None:
        return log.roll_next_file(position)
    base = file.file_from_offset
    stop = min(end - base, file.file_size)
    status, reached = dispatcher.dispatch_file(
        log.env, file.path, base, position - base, stop, observed=observed
    )
    return resume_position(log, file.path, base, reached, stop, status)


def replay_observed(log: CommitLog, start: int, end: int, observers: Observers) -> None:
    """Call `observers` for the records in [start, end); queues and index get nothing.

    Raises StoreIOError.
    """
    dispatcher = _dispatcher(log)

    def observe(request: DispatchRequest) -> None:
        check_abandoned()
        observers(request)

    dispatcher.call_after(observe)
    position = start
    while position < end:
        position = _dispatch_file(log, dispatcher, position, end, observed=True)


def put_units(
    part: LogPart, config: MessageStoreConfig, find: Callable[[str, int], ConsumeQueue | None]
) -> None:
    """Put the units of a part of the log into the queues that `find` returns."""
    multi = config.enable_multi_dispatch

    def put(request: DispatchRequest, _: bool) -> None:
        lmq, minimums = config.enable_lmq, part.log.min_offsets
        put_unit(request, find, multi=multi, enable_lmq=lmq, min_offsets=minimums)

    dispatcher = _dispatcher(part.log, on_new_queue=find, on_queue_record=put, multi_dispatch=multi)
    replay(part.log, dispatcher, part.start, part.end, deque(part.chunks))


def put_keys(log: CommitLog, part: LogPart, index: IndexService) -> None:
    """Put the keys of a part of the log into files of the index in memory.

    Raises StoreIOError.
    """
    errors: list[int] = []

    def put(request: DispatchRequest) -> IndexFile:
        index.build_index(request)
        return index.file_in_memory()

    dispatcher = _dispatcher(
        log,
        on_index_file=index.file_in_memory,
        on_index_record=put,
        on_error=lambda kind, topic, queue_id, number: errors.append(number),
        index_enabled=True,
    )
    replay(log, dispatcher, part.start, part.end, deque(part.chunks))
    if errors:
        raise StoreIOError(errors[0] or errno.EIO, "append", index.root)


def _dispatcher(log: CommitLog, **calls: Any) -> Dispatcher:
    """Return a dispatcher that puts nothing but what `calls` say."""
    nothing: dict[str, Any] = {
        "on_new_queue": lambda topic, queue_id: None,
        "on_queue_record": lambda request, multi: None,
        "on_index_file": lambda: None,
        "on_index_record": lambda request: None,
        "on_error": lambda kind, topic, queue_id, number: None,
        "index_enabled": False,
        "multi_dispatch": False,
    }
    return Dispatcher(
        **nothing | calls,
        delay_levels=log.delay_levels,
        moved=Event(),
        min_offsets=log.min_offsets,
    )


class _Chunks:
    """Dispatches the log by chunks of a scan: first the ones that are known."""

    def __init__(self, log: CommitLog, dispatcher: Dispatcher, known: deque[LogChunk]) -> None:
        self._log, self._dispatcher, self._known = log, dispatcher, known

    def replay(self, start: int, end: int) -> int:
        """Dispatch chunk by chunk; return the physical offset up to which that succeeded."""
        log, position = self._log, self._replay_known(start)
        if position > start or position >= end:
            return position
        for chunk in LogScan.of(log.env, log, start, end).chunks():
            position = self._dispatch(chunk)
        return position

    def _replay_known(self, start: int) -> int:
        """As `replay`, from kept chunks: one thread fills queues, another the index."""
        known, dispatcher = self._known, self._dispatcher
        if len(known) < INDEX_THREAD_MIN or self._log.env.processor_count() < 2:
            return self._dispatch_in_turn(start, known)
        position = start
        # Queued, and to be indexed, in order.
        waiting: deque[tuple[LogChunk, PoolCall[bool]]] = deque()
        with ThreadPool(1, "ReplayIndex") as pool:
            try:
                pool.start()
            except (RuntimeError, MemoryError):  # no thread can be started
                return self._dispatch_in_turn(start, known)
            while known and _begin_of(known[0]) <= position:
                if _begin_of(known[0]) < position:
                    known.popleft()
                elif dispatcher.queue_chunk(known[0], not waiting):
                    chunk = known.popleft()
                    index = functools.partial(dispatcher.index_chunk, chunk)
                    waiting.append((chunk, pool.submit(index)))
                    position = self._end_of(chunk)
                elif waiting:
                    position = self._await_indexed(waiting, position)
                else:
                    position = self._dispatch(known.popleft())
            return self._await_indexed(waiting, position)

    def _await_indexed(self, waiting: deque[tuple[LogChunk, PoolCall[bool]]], position: int) -> int:
        """Wait for the index; dispatch chunks in turn that it could not take. Returns the
        position."""
        left: deque[LogChunk] = deque()
        for chunk, indexed in waiting:
            if indexed.result():
                self._dispatcher.pass_chunk(chunk)
            else:
                left.append(chunk)
        waiting.clear()
        return self._dispatch_in_turn(_begin_of(left[0]), left) if left else position

    def _dispatch_in_turn(self, start: int, known: deque[LogChunk]) -> int:
        """Dispatch each chunk completely before the next, and remove it."""
        position = start
        while known and _begin_of(known[0]) <= position:
            chunk = known.popleft()
            if _begin_of(chunk) == position:
                position = self._dispatch(chunk)
        return position

    def _end_of(self, chunk: LogChunk) -> int:
        """Return where the log continues: after a BLANK that is the first byte of the next
        file."""
        end = chunk.file_from_offset + chunk.end
        return self._log.roll_next_file(end) if chunk.status == Status.BLANK else end

    def _dispatch(self, chunk: LogChunk) -> int:
        """Dispatch a chunk; return the physical offset up to which that succeeded."""
        dispatcher, base = self._dispatcher, chunk.file_from_offset
        at, run = 0, 1
        while True:
            done = dispatcher.dispatch_chunk(chunk, at)
            if done == chunk.count:
                break
            run = min(2 * run, UNCOMMON_RUN_MAX) if done - at < COMMON_RUN else 1
            at = min(done + run, chunk.count)
            stop = chunk.position(at)
            _, reached = dispatcher.dispatch_file(
                self._log.env, chunk.path, base, chunk.position(done), stop
            )
            if reached != stop:
                return base + reached
        return self._end_of(chunk)


def _begin_of(chunk: LogChunk) -> int:
    return chunk.file_from_offset + chunk.begin
