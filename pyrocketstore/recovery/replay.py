"""Replay: dispatch records of the log again, so that queues and index get units and keys they
lack.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING

from pyrocketstore.commit_log._chunk_scan import LogChunk
from pyrocketstore.commit_log.parallel_scan import LogScan
from pyrocketstore.dispatch._dispatcher import Dispatcher
from pyrocketstore.dispatch.observers import Observers
from pyrocketstore.dispatch.reput import resume_position
from pyrocketstore.display import logger
from pyrocketstore.recovery.store_files import StoreFiles
from pyrocketstore.results import DispatchRequest, Status
from pyrocketstore.system._env import Event
from pyrocketstore.system.signal_shield import check_abandoned
from pyrocketstore.system.thread_pool import PoolCall, ThreadPool

if TYPE_CHECKING:
    from pyrocketstore.recovery.plan import RecoveryPlan

__all__ = ["replay", "replay_observed", "replay_plan"]

LOG = logger(__name__)

#: If fewer records were dispatched since the last uncommon one, more uncommon ones are expected.
COMMON_RUN = 64
#: At most this many records are then dispatched by the loop that handles all cases.
UNCOMMON_RUN_MAX = 4096
#: From this many chunks of the log on a thread fills the index.
INDEX_THREAD_MIN = 3


def replay_plan(store: StoreFiles, plan: RecoveryPlan, start: int) -> None:
    """Replay records that 4.9.3 would leave out first, then from 4.9.3's own start on."""
    kept = store.index_service.files
    if not plan.clean and start < plan.scan_from and store.index_enabled:
        replay(store, start, plan.scan_from)
        start = plan.scan_from
        if not kept or kept[-1].is_write_full():
            last = kept[-1] if kept else None
            store.dispatcher.set_index_file(store.index_service.begin_new_file(last))
    replay(store, start, plan.log_end, plan.chunks)


def replay(store: StoreFiles, start: int, end: int, known: deque[LogChunk] | None = None) -> None:
    """Dispatch the records in [start, end) again; units and keys that exist are skipped.

    `known` are scanned chunks of this part of the log, in order; they are removed as they are used.

    A damaged record, which only an old file that recovery does not check may hold, is skipped up to
    the next valid one.
    """
    log = store.commit_log
    position = start
    while position < end:
        check_abandoned()
        reached = _replay_chunks(store, position, end, deque() if known is None else known)
        if reached > position:
            store.dispatcher.position = position = reached
            continue
        file = log.mapped_file_queue.find_mapped_file_by_offset(position, False)
        if file is None:
            position = log.roll_next_file(position)
            continue
        base = file.file_from_offset
        stop = min(end - base, file.file_size)
        status, reached = store.dispatcher.dispatch_file(
            store.env, file.path, base, position - base, stop
        )
        position = resume_position(log, file.path, base, reached, stop, status)
        store.dispatcher.position = position


def replay_observed(store: StoreFiles, start: int, end: int, observers: Observers) -> None:
    """Call `observers` for the records in [start, end); queues and index get nothing.

    Raises StoreIOError.
    """
    log = store.commit_log
    dispatcher = Dispatcher(
        on_new_queue=lambda topic, queue_id: None,
        on_queue_record=lambda request, multi: None,
        on_index_file=lambda: None,
        on_index_record=lambda request: None,
        on_error=lambda kind, topic, queue_id, number: None,
        delay_levels=log.delay_levels,
        index_enabled=False,
        multi_dispatch=False,
        moved=Event(),
        min_offsets=log.min_offsets,
    )

    def observe(request: DispatchRequest) -> None:
        check_abandoned()
        observers(request)

    dispatcher.call_after(observe)
    position = start
    while position < end:
        file = log.mapped_file_queue.find_mapped_file_by_offset(position, False)
        if file is None:
            position = log.roll_next_file(position)
            continue
        base = file.file_from_offset
        stop = min(end - base, file.file_size)
        status, reached = dispatcher.dispatch_file(
            store.env, file.path, base, position - base, stop, observed=True
        )
        position = resume_position(log, file.path, base, reached, stop, status)


def _replay_chunks(store: StoreFiles, start: int, end: int, known: deque[LogChunk]) -> int:
    """Dispatch chunk by chunk; return the physical offset up to which that succeeded."""
    log = store.commit_log
    position = _replay_known(store, start, known)
    if position > start or position >= end:
        return position
    scan = LogScan(
        store.env,
        log.mapped_file_queue.mapped_files,
        start,
        end,
        delay_levels=log.delay_levels,
        check_crc=False,
        records_max=None,  # each chunk is freed once it is dispatched
        min_offsets=log.min_offsets,
    )
    for chunk in scan.chunks():
        position = _dispatch_chunk(store, chunk)
    return position


def _replay_known(store: StoreFiles, start: int, known: deque[LogChunk]) -> int:
    """As _replay_chunks, from kept chunks: one thread fills queues, another the index."""
    if len(known) < INDEX_THREAD_MIN or store.env.processor_count() < 2:
        return _dispatch_in_turn(store, start, known)
    dispatcher = store.dispatcher
    position = start
    # Queued, and to be indexed, in order.
    waiting: deque[tuple[LogChunk, PoolCall[bool]]] = deque()
    with ThreadPool(1, "ReplayIndex") as pool:
        try:
            pool.start()
        except (RuntimeError, MemoryError):  # no thread can be started
            return _dispatch_in_turn(store, start, known)
        while known and _begin_of(known[0]) <= position:
            if _begin_of(known[0]) < position:
                known.popleft()
            elif dispatcher.queue_chunk(known[0], not waiting):
                chunk = known.popleft()
                index = functools.partial(dispatcher.index_chunk, chunk)
                waiting.append((chunk, pool.submit(index)))
                position = _end_of(store, chunk)
            elif waiting:
                position = _await_indexed(store, waiting, position)
            else:
                position = _dispatch_chunk(store, known.popleft())
        if waiting:
            position = _await_indexed(store, waiting, position)
    return position


def _await_indexed(
    store: StoreFiles,
    waiting: deque[tuple[LogChunk, PoolCall[bool]]],
    position: int,
) -> int:
    """Wait for the index; dispatch chunks in turn that it could not take. Returns the position."""
    left: deque[LogChunk] = deque()
    for chunk, indexed in waiting:
        if indexed.result():
            store.dispatcher.pass_chunk(chunk)
        else:
            left.append(chunk)
    waiting.clear()
    if not left:
        return position
    return _dispatch_in_turn(store, _begin_of(left[0]), left)


def _dispatch_in_turn(store: StoreFiles, start: int, known: deque[LogChunk]) -> int:
    """Dispatch each chunk completely before the next, and remove it."""
    position = start
    while known and _begin_of(known[0]) <= position:
        chunk = known.popleft()
        if _begin_of(chunk) == position:
            position = _dispatch_chunk(store, chunk)
    return position


def _begin_of(chunk: LogChunk) -> int:
    return chunk.file_from_offset + chunk.begin


def _end_of(store: StoreFiles, chunk: LogChunk) -> int:
    """Return where the log continues: after a BLANK that is the first byte of the next file."""
    end = chunk.file_from_offset + chunk.end
    return store.commit_log.roll_next_file(end) if chunk.status == Status.BLANK else end


def _dispatch_chunk(store: StoreFiles, chunk: LogChunk) -> int:
    """Dispatch a chunk; return the physical offset up to which that succeeded."""
    dispatcher, base = store.dispatcher, chunk.file_from_offset
    at, run = 0, 1
    while True:
        done = dispatcher.dispatch_chunk(chunk, at)
        if done == chunk.count:
            break
        run = min(2 * run, UNCOMMON_RUN_MAX) if done - at < COMMON_RUN else 1
        at = min(done + run, chunk.count)
        stop = chunk.position(at)
        _, reached = dispatcher.dispatch_file(
            store.env, chunk.path, base, chunk.position(done), stop
        )
        if reached != stop:
            return base + reached
    return _end_of(store, chunk)
