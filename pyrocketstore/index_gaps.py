"""Parts of the log that no index file covers, by the files' headers, and the keys that they have.

An index file covers what lies between the first and the last record that its header names. A part
between two files, before the first or behind the last may hold messages without keys alone, or keys
that the index lacks: the log says which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from pyrocketstore._index_file import HASH_SLOT_SIZE, INDEX_HEADER_SIZE, INDEX_SIZE
from pyrocketstore.log_scan import records_between
from pyrocketstore.shield import check_abandoned

if TYPE_CHECKING:
    from pyrocketstore._index_file import IndexFile
    from pyrocketstore.commit_log import CommitLog
    from pyrocketstore.env import Env

__all__ = ["FoundKeys", "first_missing_key", "keys_between", "missing_keys", "uncovered"]

Int64s = npt.NDArray[np.int64]


class FoundKeys(NamedTuple):
    """Keys of a part of the log, by the records' order: columns of one length."""

    phy_offset: Int64s
    key_hash: npt.NDArray[np.int32]
    store_timestamp: Int64s


def uncovered(
    files: Sequence[IndexFile], log: CommitLog, begin: int, end: int
) -> list[tuple[int, int]]:
    """The parts of [begin, end), bytes of the log, that no index file covers, in their order.

    Raises StoreIOError.
    """
    ranges = sorted((f.begin_phy_offset, f.end_phy_offset) for f in files if f.index_count > 1)
    parts = []
    for first, last in ranges:
        if first > begin:
            parts.append((begin, min(first, end)))
        if last >= begin:
            begin = last + max(1, log.record_size(last))
        if begin >= end:
            break
    if begin < end:
        parts.append((begin, end))
    return parts


def keys_between(env: Env, log: CommitLog, begin: int, end: int) -> Iterator[FoundKeys]:
    """Yield the keys of the records in [begin, end), bytes of the log, piece by piece.

    Raises StoreIOError.
    """
    for piece in records_between(env, log, begin, end):
        check_abandoned()
        keys = FoundKeys(*piece.key_columns())
        for row in np.flatnonzero(keys.store_timestamp < 0).tolist():
            place = int(keys.phy_offset[row])
            keys.store_timestamp[row] = log.pickup_store_timestamp(place, log.record_size(place))
        if len(keys.phy_offset):
            yield keys


def missing_keys(
    env: Env, log: CommitLog, files: Sequence[IndexFile], begin: int, end: int
) -> Iterator[FoundKeys]:
    """Yield the keys that a part of `uncovered` lacks, a piece of the log at a time.

    Keys of one record may be divided between two index files: the records before and behind the
    part are looked at too.

    Raises StoreIOError.
    """
    for file in files:
        place = file.end_phy_offset
        if file.index_count > 1 and place < begin == place + log.record_size(place):
            for keys in keys_between(env, log, place, begin):
                yield from _some(keys, file.tail_count(place), len(keys.phy_offset))
    yield from keys_between(env, log, begin, end)
    for file in files:
        if file.index_count > 1 and file.begin_phy_offset == end:
            for keys in keys_between(env, log, end, end + log.record_size(end)):
                yield from _some(keys, 0, len(keys.phy_offset) - _head_count(file))


def _some(keys: FoundKeys, first: int, stop: int) -> Iterator[FoundKeys]:
    if first < stop:
        part = slice(first, stop)
        yield FoundKeys(keys.phy_offset[part], keys.key_hash[part], keys.store_timestamp[part])


def _head_count(file: IndexFile) -> int:
    """How many entries at the begin of a file name its first record."""
    base = INDEX_HEADER_SIZE + file.hash_slot_num * HASH_SLOT_SIZE
    count = 0
    for number in range(1, file.index_count):
        raw = file.mapped_file.read(base + number * INDEX_SIZE + 4, 8)
        if int.from_bytes(raw, "big", signed=True) != file.begin_phy_offset:
            break
        count += 1
    return count


def first_missing_key(
    env: Env, log: CommitLog, files: Sequence[IndexFile], begin: int, end: int
) -> int:
    """Physical offset of the first record of `missing_keys`, -1 without one.

    Raises StoreIOError.
    """
    keys = next(missing_keys(env, log, files, begin, end), None)
    return -1 if keys is None else int(keys.phy_offset[0])
