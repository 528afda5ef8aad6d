"""Find parts of the log that no index file covers, and put their keys into the index.

An index file covers the log from the first to the last record that its header names. A part between
two files, before the first or after the last may hold only messages without keys, or keys that the
index lacks: reading the log decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pyrocketstore.display import logger
from pyrocketstore.index.directory import entry_position

if TYPE_CHECKING:
    from pyrocketstore.index._file import IndexFile
    from pyrocketstore.index.index_service import IndexService

__all__ = [
    "FoundKeys",
    "fill_gaps",
    "first_missing_key",
    "first_unindexed",
    "missing_keys",
    "uncovered",
]

LOG = logger(__name__)

Int64s = npt.NDArray[np.int64]


class FoundKeys(NamedTuple):
    """Keys of a part of the log, in the order of the records: columns of one length."""

    phy_offset: Int64s
    key_hash: npt.NDArray[np.int32]
    store_timestamp: Int64s

    def part(self, first: int, stop: int) -> Iterator[FoundKeys]:
        """Yield the keys from number `first` to `stop`, if there are any."""
        if first < stop:
            phy_offset, key_hash, store_timestamp = self
            at = slice(first, stop)
            yield FoundKeys(phy_offset[at], key_hash[at], store_timestamp[at])


class KeyLog(Protocol):
    """The calls of a log that show keys of its records."""

    def get_min_offset(self) -> int:
        """Return the first byte of the log, -1 without files."""
        ...

    def record_mark(self, phy_offset: int) -> tuple[int, int] | None:
        """Return size and CRC of a record, as `CommitLog.record_mark` does."""
        ...

    def keys_between(self, begin: int, end: int) -> Iterator[FoundKeys]:
        """Yield the keys of the records in [begin, end), as `CommitLog.keys_between` does."""
        ...


def uncovered(
    files: Sequence[IndexFile], log: KeyLog, begin: int, end: int
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


def missing_keys(
    log: KeyLog, files: Sequence[IndexFile], begin: int, end: int
) -> Iterator[FoundKeys]:
    """Yield the keys that the index lacks in a part of `uncovered`, a chunk of the log at a time.

    Keys of one record may be divided between two index files: the records before and after the part
    are checked too.

    Raises StoreIOError.
    """
    for file in files:
        last = file.end_phy_offset
        if file.index_count > 1 and last < begin == last + _size_at(log, last):
            for keys in log.keys_between(last, begin):
                yield from keys.part(file.tail_count(last), len(keys.phy_offset))
    yield from log.keys_between(begin, end)
    for file in files:
        if file.index_count > 1 and file.begin_phy_offset == end:
            for keys in log.keys_between(end, end + _size_at(log, end)):
                yield from keys.part(0, len(keys.phy_offset) - _first_count(file))


def _size_at(log: KeyLog, phy_offset: int) -> int:
    """Return the size of a record in bytes, 0 without one; also before the log's end is known."""
    mark = log.record_mark(phy_offset)
    return 0 if mark is None else mark[0]


def _first_count(file: IndexFile) -> int:
    """Return how many entries at the start of a file name its first record."""
    count = 0
    for number in range(1, file.index_count):
        raw = file.mapped_file.read(entry_position(file.hash_slot_num, number) + 4, 8)
        if int.from_bytes(raw, "big", signed=True) != file.begin_phy_offset:
            break
        count += 1
    return count


def first_missing_key(log: KeyLog, files: Sequence[IndexFile], begin: int, end: int) -> int:
    """Return the physical offset of the first record of `missing_keys`, -1 without one.

    Raises StoreIOError.
    """
    keys = next(missing_keys(log, files, begin, end), None)
    return -1 if keys is None else int(keys.phy_offset[0])


def end_gap(service: IndexService, log: KeyLog, log_end: int) -> tuple[int, int] | None:
    """Return the range [begin, end) of the log after the end of the index; None without one. Files
    that `drop_files_after(log_end)` removes count as missing."""
    files = service.files_before(log_end)
    parts = uncovered(files, log, max(0, log.get_min_offset()), log_end)
    return parts[-1] if parts and parts[-1][1] == log_end else None


def first_unindexed(
    service: IndexService,
    log: KeyLog,
    log_end: int,
    max_bytes: int,
    *,
    keyless_from: int,
    dispatched_from: int | None,
) -> tuple[int, list[tuple[int, int]] | None]:
    """Return the physical offset of the first record after the end of the index that has keys, -1
    without one, and the range [begin, end) after that end if it has no keys; None if so much of it
    was not read that this is unknown.

    Parameters
    ----------
    log_end : int, as for `end_gap`
    max_bytes : int, at most so many bytes of the log are read
    keyless_from : int, physical offset from which on no record has keys
    dispatched_from : int or None, records from there on are dispatched anyway

    Raises StoreIOError.
    """
    gap = end_gap(service, log, log_end)
    if gap is None or (dispatched_from is not None and dispatched_from <= gap[0]):
        return -1, []
    begin, end = gap
    stop = min(end, begin + max_bytes)
    files = service.files_before(log_end)
    first = first_missing_key(log, files, begin, min(stop, max(begin, keyless_from)))
    if first >= 0:
        return first, []
    return -1, [gap] if stop == end else None


def fill_gaps(
    service: IndexService, log: KeyLog, log_end: int, max_bytes: int
) -> list[tuple[int, int]]:
    """Put the keys that the log has between two index files, or before the first, into files of
    their own there; keys after the last file are dispatched again.

    At most `max_bytes` of the log are searched. Returns the ranges [begin, end) of the log, bytes,
    that no index file covers and that were read whole and have no keys. Raises StoreIOError.
    """
    keyless: list[tuple[int, int]] = []
    files = service.files
    last = max((f.end_phy_offset for f in files if f.index_count > 1), default=-1)
    for begin, end in uncovered(files, log, max(0, log.get_min_offset()), log_end):
        stop = min(end, begin + max_bytes)
        if begin > last or begin >= stop:
            continue
        max_bytes -= stop - begin
        if first_missing_key(log, files, begin, stop) >= 0:
            count = service.fill_gap(missing_keys(log, files, begin, end), end)
            LOG.warning("%d keys were missing in the index before byte %d of the log", count, end)
            if service.has_dropped:
                _fill_end(service, log, begin, log_end)
                return keyless
        elif stop == end:
            keyless.append((begin, end))
    return keyless


def _fill_end(service: IndexService, log: KeyLog, begin: int, end: int) -> None:
    """Put the keys of the log after the last index file, which may hold some of [begin, end)."""
    files = service.files
    for first, stop in uncovered(files, log, begin, end)[-1:]:
        count = service.fill_gap(missing_keys(log, files, first, stop), stop)
        LOG.warning("%d keys were put again into the index, from byte %d of the log", count, first)
