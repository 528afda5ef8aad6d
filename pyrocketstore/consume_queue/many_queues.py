"""Read the files of many queues at once, when a store is opened.

Several threads read, without the GIL. Queues with uncommon files are left to the
code for single queues.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyrocketstore.consume_queue._units import look_at_queues, read_files, read_units
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE, FoundQueue, QueueUnits
from pyrocketstore.system.signal_shield import check_abandoned
from pyrocketstore.system.thread_pool import ThreadPool

if TYPE_CHECKING:
    from pyrocketstore.consume_queue.queue import ConsumeQueue
    from pyrocketstore.files._mapped_file import MappedFile
    from pyrocketstore.system.env import Env

__all__ = ["UnitRanges", "correct_min_offsets", "only_files", "read_ranges"]

#: Queues that one call of compiled code reads.
CALL_MAX = 1024
#: From this many queues on several threads read.
THREADS_FROM = 2048
#: More threads do not help: the kernel's work on names and pages limits them.
THREADS_MAX = 4
#: Units that decide whether the first one of a file is the minimum of its queue.
_MIN_UNITS = 3


def only_files(
    env: Env, directories: Sequence[str], file_size: int, *, writable: bool
) -> Iterator[FoundQueue | None]:
    """Yield the state of each queue that has one file of the usual form, None for another queue.

    Usual is a regular file of `file_size` bytes with zeros after its units. Raises StoreIOError.
    """
    found = np.zeros((len(directories), 4), np.int64)

    def look(begin: int, end: int) -> None:
        paths = tuple(os.fsencode(path) for path in directories[begin:end])
        look_at_queues(env, paths, file_size, writable, found[begin:end])

    _in_parts(env, len(directories), look)
    for offset, size, max_phy_offset, is_usual in found.tolist():
        yield FoundQueue(offset, size, max_phy_offset) if is_usual else None


class UnitRanges(NamedTuple):
    """Ranges of units of several queues, one after the other.

    `begin` int64[n + 1]: the number of the first unit of each range, and of all; `is_read` bool[n]:
    the range could be read; otherwise its units mean nothing.
    """

    units: QueueUnits
    begin: NDArray[np.int64]
    is_read: NDArray[np.bool_]


def read_ranges(
    env: Env, files: Sequence[MappedFile], first: NDArray[np.int64], count: NDArray[np.int64]
) -> UnitRanges:
    """Read `count` units from number `first` of each file on. Raises StoreIOError."""
    size = count * CQ_STORE_UNIT_SIZE
    begin = np.zeros(len(files) + 1, np.int64)
    np.cumsum(count, out=begin[1:])
    data = np.empty(int(begin[-1]) * CQ_STORE_UNIT_SIZE, np.uint8)
    done = np.zeros(len(files), np.uint8)
    position, at = first * CQ_STORE_UNIT_SIZE, begin[:-1] * CQ_STORE_UNIT_SIZE

    def read(low: int, high: int) -> None:
        read_files(
            tuple(files[low:high]),
            position[low:high],
            size[low:high],
            at[low:high],
            data,
            done[low:high],
        )

    _in_parts(env, len(files), read)
    return UnitRanges(QueueUnits(*read_units(data.data)), begin, done != 0)


def _in_parts(env: Env, count: int, call: Callable[[int, int], None]) -> None:
    """Call `call(begin, end)` for parts of `count` entries, from several threads if it pays."""
    parts = [(begin, min(begin + CALL_MAX, count)) for begin in range(0, count, CALL_MAX)]
    threads = min(env.processor_count(), THREADS_MAX)
    if count >= THREADS_FROM and threads > 1 and _in_threads(threads, parts, call):
        return
    for part in parts:
        check_abandoned()
        call(*part)


def _in_threads(
    threads: int, parts: list[tuple[int, int]], call: Callable[[int, int], None]
) -> bool:
    """Return False if no thread can be started."""
    with ThreadPool(threads, "ReadQueues") as pool:
        try:
            calls = [pool.submit(functools.partial(call, *part)) for part in parts]
        except (RuntimeError, MemoryError):
            return False
        for each in calls:
            check_abandoned()
            each.result()
    return True


def correct_min_offsets(
    env: Env, queues: Sequence[ConsumeQueue], min_phy_offset: int
) -> list[ConsumeQueue]:
    """Call `correct_min_offset` of each queue; most queues need one read of a few units instead.

    Returns the queues whose minimum was not found. Raises StoreIOError.
    """
    usual: list[ConsumeQueue] = []
    others: list[ConsumeQueue] = []
    for queue in queues:
        is_usual = queue.ext is None and not queue.removed_before
        is_usual = is_usual and bool(queue.mapped_file_queue.mapped_files)
        (usual if is_usual else others).append(queue)
    files = [queue.mapped_file_queue.mapped_files[0] for queue in usual]
    units = [file.wrote // CQ_STORE_UNIT_SIZE for file in files]
    count = np.minimum(np.array(units, np.int64), _MIN_UNITS)
    found = read_ranges(env, files, np.zeros(len(files), np.int64), count)
    named = ~found.units.is_pre_blank() & (found.units.size > 0)
    is_before = named & (found.units.phy_offset < min_phy_offset)
    begin, end = found.begin[:-1], found.begin[1:]
    # Of three units the first one, which the log still has, unless both units after it are before.
    has_first = found.is_read & (count > 0)
    first = np.where(has_first, begin, 0)
    last = np.maximum(end - 1, 0)
    middle = np.maximum(end - 2, 0)
    if len(named):
        has_first &= ~found.units.is_pre_blank()[first]
        has_first &= found.units.phy_offset[first] >= min_phy_offset
        has_first &= ~((count == _MIN_UNITS) & is_before[middle] & is_before[last])
    for queue, file, is_min in zip(usual, files, has_first.tolist(), strict=True):
        if is_min:
            queue.core.min_logic_offset = file.file_from_offset
        else:
            others.append(queue)
    unknown = []
    for queue in others:
        check_abandoned()
        if not queue.correct_min_offset(min_phy_offset):
            unknown.append(queue)
    return unknown
