"""Find parts of the log that no index file covers, and put their keys into the index.

An index file covers the log from the first to the last record that its header names. A part between
two files, before the first or after the last may hold only messages without keys, or keys that the
index lacks: reading the log decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from pyrocketstore.commit_log.parallel_scan import records_between
from pyrocketstore.display import logger
from pyrocketstore.index.directory import entry_position
from pyrocketstore.system.signal_shield import check_abandoned

if TYPE_CHECKING:
    from pyrocketstore.commit_log.log import CommitLog
    from pyrocketstore.index._file import IndexFile
    from pyrocketstore.recovery.store_files import StoreFiles
    from pyrocketstore.system.env import Env

__all__ = ["FoundKeys", "fill_gaps", "first_missing_key", "missing_keys", "uncovered"]

LOG = logger(__name__)

Int64s = npt.NDArray[np.int64]


class FoundKeys(NamedTuple):
    """Keys of a part of the log, in the order of the records: columns of one length."""

    phy_offset: Int64s
    key_hash: npt.NDArray[np.int32]
    store_timestamp: Int64s


def uncovered(
    files: Sequence[IndexFile], log: CommitLog, begin: int, end: int
) -> list[tuple[int, int]]:
    """Return the parts of [begin, end), bytes of the log, that no index file covers, in order.

    Raises StoreIOError.
    """
    ranges = sorted((f.begin_phy_offset, f.end_phy_offset) for f in files if f.index_count > 1)
    parts = []
    for first, last in ranges:
        if first > begin:
            parts.append((begin, min(first, end)))
        if last >= begin:
            begin = last + max(1, _size_at(log, last))
        if begin >= end:
            break
    if begin < end:
        parts.append((begin, end))
    return parts


def keys_between(env: Env, log: CommitLog, begin: int, end: int) -> Iterator[FoundKeys]:
    """Yield the keys of the records in [begin, end), bytes of the log, chunk by chunk.

    Raises StoreIOError.
    """
    for chunk in records_between(env, log, begin, end):
        check_abandoned()
        keys = FoundKeys(*chunk.key_columns())
        for row in np.flatnonzero(keys.store_timestamp < 0).tolist():
            at = int(keys.phy_offset[row])
            keys.store_timestamp[row] = log.pickup_store_timestamp(at, log.record_size(at))
        if len(keys.phy_offset):
            yield keys


def missing_keys(
    env: Env, log: CommitLog, files: Sequence[IndexFile], begin: int, end: int
) -> Iterator[FoundKeys]:
    """Yield the keys that the index lacks in a part of `uncovered`, a chunk of the log at a time.

    Keys of one record may be divided between two index files: the records before and after the part
    are checked too.

    Raises StoreIOError.
    """
    for file in files:
        last = file.end_phy_offset
        if file.index_count > 1 and last < begin == last + _size_at(log, last):
            for keys in keys_between(env, log, last, begin):
                yield from _some(keys, file.tail_count(last), len(keys.phy_offset))
    yield from keys_between(env, log, begin, end)
    for file in files:
        if file.index_count > 1 and file.begin_phy_offset == end:
            for keys in keys_between(env, log, end, end + _size_at(log, end)):
                yield from _some(keys, 0, len(keys.phy_offset) - _first_count(file))


def _size_at(log: CommitLog, phy_offset: int) -> int:
    """Return the size of a record in bytes, 0 without one; also before the log's end is known."""
    mark = log.record_mark(phy_offset)
    return 0 if mark is None else mark[0]


def _some(keys: FoundKeys, first: int, stop: int) -> Iterator[FoundKeys]:
    if first < stop:
        part = slice(first, stop)
        yield FoundKeys(keys.phy_offset[part], keys.key_hash[part], keys.store_timestamp[part])


def _first_count(file: IndexFile) -> int:
    """Return how many entries at the start of a file name its first record."""
    count = 0
    for number in range(1, file.index_count):
        raw = file.mapped_file.read(entry_position(file.hash_slot_num, number) + 4, 8)
        if int.from_bytes(raw, "big", signed=True) != file.begin_phy_offset:
            break
        count += 1
    return count


def first_missing_key(
    env: Env, log: CommitLog, files: Sequence[IndexFile], begin: int, end: int
) -> int:
    """Return the physical offset of the first record of `missing_keys`, -1 without one.

    Raises StoreIOError.
    """
    keys = next(missing_keys(env, log, files, begin, end), None)
    return -1 if keys is None else int(keys.phy_offset[0])


def fill_gaps(store: StoreFiles, log_end: int) -> list[tuple[int, int]]:
    """Put the keys that the log has between two index files, or before the first, into files of
    their own there; keys after the last file are dispatched again.

    Returns the ranges [begin, end) of the log, bytes, that no index file covers and that were read
    whole and have no keys. Raises StoreIOError.
    """
    keyless: list[tuple[int, int]] = []
    service, log = store.index_service, store.commit_log
    left = store.config.max_key_search_bytes
    files = service.files
    last = max((f.end_phy_offset for f in files if f.index_count > 1), default=-1)
    parts = uncovered(files, log, max(0, log.get_min_offset()), log_end)
    for begin, end in parts:
        stop = min(end, begin + left)
        if begin > last or begin >= stop:
            continue
        left -= stop - begin
        first = first_missing_key(store.env, log, files, begin, stop)
        if first >= 0:
            count = service.fill_gap(missing_keys(store.env, log, files, begin, end), end)
            LOG.warning("%d keys were missing in the index before byte %d of the log", count, end)
            if service.has_dropped:
                _fill_end(store, begin, log_end)
                return keyless
        elif stop == end:
            keyless.append((begin, end))
    return keyless


def _fill_end(store: StoreFiles, begin: int, end: int) -> None:
    """Put the keys of the log after the last index file, which may hold some of [begin, end)."""
    service, log = store.index_service, store.commit_log
    files = service.files
    for first, stop in uncovered(files, log, begin, end)[-1:]:
        count = service.fill_gap(missing_keys(store.env, log, files, first, stop), stop)
        LOG.warning("%d keys were put again into the index, from byte %d of the log", count, first)
