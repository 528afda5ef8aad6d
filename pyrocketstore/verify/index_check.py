"""The check of the index against the log: entries by physical offset, and their chains."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyrocketstore.index._entries import ChainWalk
from pyrocketstore.index._file import (
    HASH_SLOT_SIZE,
    INDEX_HEADER_SIZE,
    INDEX_SIZE,
    IndexFile,
)
from pyrocketstore.index.directory import (
    INDEX_HEADER,
    entry_position,
    find_index_files,
    has_lost_header,
)
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.system.env import Env
from pyrocketstore.verify.report import Problem, VerifyReport

#: Entries of one read.
BLOCK_COUNT = 1 << 16
#: Decoded blocks in the cache.
BLOCKS_KEPT = 8
#: Bytes of a stretch of the log; a block of entries is listed for each stretch that it refers to.
STRETCH_SIZE = 4 << 20
#: Slots of one read.
SLOT_COUNT = 1 << 18
_ENTRY = np.dtype(
    [("key_hash", ">i4"), ("phy_offset", ">i8"), ("time_diff", ">i4"), ("prev_index", ">i4")]
)
MAX_TIME_DIFF = 2**31 - 1

HEADER_DAMAGE = (
    "the header contradicts the entries, so that 4.9.3 would miss keys; opening the store for"
    " writing writes it again"
)

Int64s = NDArray[np.int64]


class Keys(NamedTuple):
    """The keys of a chunk of the log.

    `phy_offset` and `store_timestamp` are of the records (int64[n]). `key_row` is the index of the
    record of each key, and `key_hash` its hash (int32[m]). `position_of` returns the file and
    position of a record.
    """

    phy_offset: Int64s
    store_timestamp: Int64s
    key_row: NDArray[np.int32]
    key_hash: NDArray[np.int32]
    position_of: Callable[[int], tuple[str, int]]


def is_in(values: Int64s, ordered: Int64s) -> NDArray[np.bool_]:
    """Return bool[n]: True for each of `values` that is in the sorted `ordered`."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.asarray(ordered[at] == values, np.bool_)


def are_covered(ranges: Sequence[tuple[int, int]], offsets: Int64s) -> NDArray[np.bool_]:
    """Return bool[n]: True for each record whose keys must be in the index: an index file covers
    it, or it is after the last one. `ranges`: first and last physical offset of each file."""
    covered = np.zeros(len(offsets), np.bool_)
    for first, last in ranges:
        covered |= (offsets >= first) & (offsets <= last)
    if ranges:
        covered |= offsets > ranges[-1][1]
    return covered


def _read_header(env: Env, path: str) -> bytes:
    fd = env.open(path, 0)
    try:
        return env.pread(fd, INDEX_HEADER_SIZE, 0, path).ljust(INDEX_HEADER_SIZE, b"\0")
    finally:
        env.close(fd)


def damaged_headers(store: LoadedFiles) -> list[str]:
    """Return the index files on disk whose header contradicts their entries, though the store was
    stopped cleanly: a read-only opening has built it again in memory, and 4.9.3 would not.

    Raises StoreIOError.
    """
    plan = store.unmade
    if plan is None or not plan.clean or not store.index_enabled:
        return []
    if store.env.exists(f"{store.root}/abort"):
        return []
    index = store.index_service
    if index.geometry_error is not None:
        return []
    found = []
    for file in index.files:
        if file.mode == "memory" and file.path is not None:
            on_disk = _read_header(store.env, file.path)
            if on_disk != file.read(0, INDEX_HEADER_SIZE):
                found.append(file.path)
    loaded = {file.path for file in index.files} | set(index.wrong)
    for item in find_index_files(store.env, f"{store.root}/index"):
        is_whole = item.path not in loaded and item.size == index.file_size
        if is_whole and has_lost_header(store.env, item.path, index.geometry[0]):
            found.append(item.path)
    return sorted(found)


class _Block(NamedTuple):
    """Entries of one file, sorted by physical offset: columns of one length."""

    phy_offset: Int64s
    key_hash: Int64s
    time_diff: Int64s
    number: Int64s


class _File:
    """One index file as it was when the check began."""

    def __init__(self, env: Env, index_file: IndexFile) -> None:
        self.env = env
        self.index_file = index_file
        self.count = int(index_file.index_count)
        self.begin_timestamp = int(index_file.begin_timestamp)
        self.end_timestamp = int(index_file.end_timestamp)
        self.path = index_file.path or f"{index_file.name} (in memory)"
        self.bad: list[Int64s] = []
        if index_file.mode == "memory":
            index_file.open_for_writing()

    def read(self, position: int, size: int) -> bytes:
        return self.index_file.read(position, size)

    def count_on_disk(self) -> int:
        """Return `count` of the file on disk; a read-only store may have completed it in memory."""
        if self.index_file.mode != "memory":
            return self.count
        if self.index_file.path is None:
            return 1
        return max(1, int(INDEX_HEADER.unpack(_read_header(self.env, self.index_file.path))[5]))

    def read_entries(self, first: int, count: int) -> bytes:
        return self.read(self.position(first), count * INDEX_SIZE)

    def phy_offset(self, number: int) -> int:
        return int(np.frombuffer(self.read_entries(number, 1), _ENTRY)["phy_offset"][0])

    def position(self, number: int) -> int:
        return entry_position(self.index_file.hash_slot_num, number)


class IndexCheck:
    """Compares the entries of the index with the keys of the log, chunk by chunk of the log.

    Parameters
    ----------
    files : the index files, oldest first
    low, end : int, physical offsets of the checked part of the log
    log_end : callable, returns the present end of the log
    live : bool, entries may be added meanwhile
    """

    def __init__(
        self,
        env: Env,
        files: Sequence[IndexFile],
        report: VerifyReport,
        low: int,
        end: int,
        log_end: Callable[[], int],
        *,
        live: bool,
    ) -> None:
        self.env = env
        self.report = report
        self.low = low
        self.end = end
        self.log_end = log_end
        self.live = live
        self.files = [_File(env, index_file) for index_file in files]
        self.blocks: list[tuple[_File, int, int]] = []
        self.blocks_of: dict[int, list[int]] = {}
        #: first and last physical offset of each file, by its header and its entries
        self.ranges: list[tuple[int, int]] = []
        self._cache: collections.OrderedDict[int, _Block] = collections.OrderedDict()
        for file in self.files:
            self._list_blocks(file)

    def _list_blocks(self, file: _File) -> None:
        """List the stretches of the log that each block of entries refers to."""
        report = self.report
        report.index_files += 1
        report.index_entries += file.count - 1
        report.rebuilt_index_entries += file.count - file.count_on_disk()
        for first in range(1, file.count, BLOCK_COUNT):
            count = min(BLOCK_COUNT, file.count - first)
            entries = np.frombuffer(file.read_entries(first, count), _ENTRY)
            phy_offset = entries["phy_offset"].astype(np.int64)
            expired = (phy_offset >= 0) & (phy_offset < self.low)
            beyond = (phy_offset < 0) | (phy_offset >= self.log_end())
            report.index_expired += int(np.count_nonzero(expired))
            self._nowhere(file, first + np.flatnonzero(beyond), phy_offset[beyond])
            inside = phy_offset[(phy_offset >= self.low) & (phy_offset < self.end)]
            stretches = inside // STRETCH_SIZE
            changes = np.flatnonzero(np.diff(stretches, prepend=-1))
            for stretch in sorted(set(stretches[changes].tolist())):
                self.blocks_of.setdefault(stretch, []).append(len(self.blocks))
            self.blocks.append((file, first, count))
        if file.count > 1:
            header = (file.index_file.begin_phy_offset, file.index_file.end_phy_offset)
            ends = (*header, file.phy_offset(1), file.phy_offset(file.count - 1))
            self.ranges.append((min(ends), max(ends)))

    def _block(self, number: int) -> _Block:
        block = self._cache.pop(number, None)
        if block is None:
            file, first, count = self.blocks[number]
            entries = np.frombuffer(file.read_entries(first, count), _ENTRY)
            phy_offset = entries["phy_offset"].astype(np.int64)
            order = np.argsort(phy_offset, kind="stable")
            block = _Block(
                phy_offset[order],
                entries["key_hash"].astype(np.int64)[order],
                entries["time_diff"].astype(np.int64)[order],
                first + order.astype(np.int64),
            )
        self._cache[number] = block
        if len(self._cache) > BLOCKS_KEPT:
            self._cache.popitem(last=False)
        return block

    def _between(self, start: int, end: int) -> list[tuple[_File, _Block]]:
        """Return the entries that refer to [start, end) of the log."""
        numbers: set[int] = set()
        for stretch in range(start // STRETCH_SIZE, (end - 1) // STRETCH_SIZE + 1):
            numbers.update(self.blocks_of.get(stretch, ()))
        found = []
        for number in sorted(numbers):
            block = self._block(number)
            first, last = np.searchsorted(block.phy_offset, (start, end)).tolist()
            if last > first:
                found.append((self.blocks[number][0], _Block(*(c[first:last] for c in block))))
        return found

    # ---- the log, chunk by chunk --------------------------------------------------------------

    def damaged(self, start: int, end: int) -> None:
        """Accept entries that refer to the damaged range [start, end) of the log."""
        for _, block in self._between(start, end):
            self.report.entries_in_damage += len(block.number)

    def chunk(self, start: int, end: int, keys: Keys | None) -> None:
        """Check the entries of [start, end) of the log against its keys; None: it has no record."""
        if start >= end:
            return
        found = self._between(start, end)
        if keys is None:
            for file, block in found:
                self._nowhere(file, block.number, block.phy_offset)
            return
        # Offset and hash as one number: a chunk is shorter than 2 GiB, a hash has 31 bits.
        wanted = (keys.phy_offset[keys.key_row] - start) << 31 | keys.key_hash.astype(np.int64)
        ordered = np.sort(wanted)
        held: list[Int64s] = []
        for file, block in found:
            sane = block.key_hash >= 0
            have = (block.phy_offset - start) << 31 | (block.key_hash & 0x7FFFFFFF)
            right = sane & is_in(have, ordered)
            self._wrong(file, block, ~right, keys)
            self._check_times(file, block, right, keys)
            held.append(have[right])
        missing = ~is_in(wanted, np.sort(np.concatenate(held) if held else wanted[:0]))
        if missing.any():
            self._missing(keys, missing)

    def _nowhere(self, file: _File, numbers: Int64s, phy_offset: Int64s) -> None:
        """Report entries whose physical offset cannot be that of a record."""
        file.bad.append(numbers)
        for row in self.report.kept(range(len(numbers))):
            where = f"physical offset {phy_offset[row]}, where the log has no record"
            text = f"entry {numbers[row]} refers to {where}"
            self._problem(file, numbers[row], text)

    def _wrong(self, file: _File, block: _Block, wrong: NDArray[np.bool_], keys: Keys) -> None:
        """Report entries that refer to no record, or to one without a key of that hash."""
        file.bad.append(block.number[wrong])
        for row in self.report.kept(np.flatnonzero(wrong).tolist()):
            number, phy_offset = block.number[row], block.phy_offset[row]
            is_record = phy_offset in keys.phy_offset
            reason = "whose record has no such key" if is_record else "where no record begins"
            text = f"entry {number} names {phy_offset} of the log, {reason}"
            self._problem(file, number, text)

    def _check_times(
        self, file: _File, block: _Block, right: NDArray[np.bool_], keys: Keys
    ) -> None:
        """Compare the entries' seconds since the file's begin with the records' store times.

        The first entry counts from the previous file.
        """
        rows = np.searchsorted(keys.phy_offset, block.phy_offset[right])
        times = keys.store_timestamp[rows]
        numbers = block.number[right]
        for begin in times[numbers == 1].tolist():
            self._check_header(file, 0, "begin timestamp", file.begin_timestamp, begin)
            file.begin_timestamp = begin  # reported once
        for end in times[numbers == file.count - 1].tolist():
            self._check_header(file, 8, "end timestamp", file.end_timestamp, end)
        begin = file.begin_timestamp
        expected = np.clip((times - begin) // 1000 if begin > 0 else 0 * times, 0, MAX_TIME_DIFF)
        differs = (block.time_diff[right] != expected) & (numbers > 1)
        for row in self.report.kept(np.flatnonzero(differs).tolist()):
            text = f"is {block.time_diff[right][row]} s old, its record {expected[row]} s"
            self._problem(file, numbers[row], f"entry {numbers[row]} {text}")

    def _missing(self, keys: Keys, missing: NDArray[np.bool_]) -> None:
        """Report keys without an entry: lost if an index file covers them, else not indexed."""
        rows, counts = np.unique(keys.key_row[missing], return_counts=True)
        offsets = keys.phy_offset[rows]
        covered = are_covered(self.ranges, offsets)
        if self.report.not_indexed is not None and self.report.not_indexed_keys is not None:
            self.report.not_indexed += int(np.count_nonzero(~covered))
            self.report.not_indexed_keys += int(counts[~covered].sum())
        for at in np.flatnonzero(covered).tolist():
            phy_offset, count = int(offsets[at]), int(counts[at])
            self.report.missing_keys += count
            if self.report.has_room:
                path, position = keys.position_of(phy_offset)
                text = f"{count} key(s) of the record are not in the index"
                self.report.add(Problem("index", path, position, text), missing=True)
            else:
                self.report.problem_count += 1
                self.report.missing_count += 1

    def _problem(self, file: _File, number: int | np.int64, text: str) -> None:
        self.report.add(Problem("index", file.path, file.position(int(number)), text))

    # ---- the files themselves -----------------------------------------------------------------

    def finish(self) -> None:
        """Check headers, chains and slots, after the last chunk of the log."""
        for file in self.files:
            self._check_chains(file)

    def _check_chains(self, file: _File) -> None:
        index_file = file.index_file
        walk = ChainWalk(index_file.hash_slot_num, file.count)
        for numbers in file.bad:
            walk.mark(numbers.astype(np.int64))
        is_valid = not any(len(numbers) for numbers in file.bad)
        for first in range(1, file.count, BLOCK_COUNT):
            raw = file.read_entries(first, min(BLOCK_COUNT, file.count - first))
            numbers = walk.entries(raw, first).tolist()
            is_valid &= not numbers
            for number in self.report.kept(numbers):
                text = f"entry {number} does not name the one before it in its chain"
                self._problem(file, number, text)
        for first in range(0, index_file.hash_slot_num, SLOT_COUNT):
            count = min(SLOT_COUNT, index_file.hash_slot_num - first)
            position = INDEX_HEADER_SIZE + first * HASH_SLOT_SIZE
            raw = file.read(position, count * HASH_SLOT_SIZE)
            for slot in walk.check_slots(raw, first, self.live).tolist():
                is_valid = False
                position = INDEX_HEADER_SIZE + slot * HASH_SLOT_SIZE
                text = f"slot {slot} does not name its newest entry"
                self.report.add(Problem("index", file.path, position, text))
        if is_valid and file.count > 1:
            self._check_counts(file, walk.slots_used())

    def _check_counts(self, file: _File, slots_used: int) -> None:
        """Check the counts and offsets in the header of a file whose entries are all valid."""
        header: tuple[Any, ...] = INDEX_HEADER.unpack(file.read(0, INDEX_HEADER_SIZE))
        begin_phy_offset, end_phy_offset, slot_count, index_count = header[2:]
        self._check_header(file, 16, "begin phy_offset", begin_phy_offset, file.phy_offset(1))
        if self.live and index_count != file.count:
            return  # entries were added meanwhile
        last = file.phy_offset(file.count - 1)
        self._check_header(file, 24, "end phy_offset", end_phy_offset, last)
        self._check_header(file, 32, "number of slots in use", slot_count, slots_used)
        self._check_header(file, 36, "number of the next entry", index_count, file.count)

    def not_loaded(self, paths: Sequence[str], size: int) -> None:
        """Report index files that a read-only opening omitted though the stop was clean.

        One of them is shorter than `size` bytes, or its header has an end after the log's end. The
        later files were omitted with it.
        """
        loaded = {file.index_file.path for file in self.files}
        for path in paths:
            if path in loaded:
                continue
            held = self.env.size(path)
            if held < size:
                text = f"the file has {held} bytes and must have {size}; recovery builds it again"
                self.report.add(Problem("index", path, held, text))
                continue
            end_phy_offset = INDEX_HEADER.unpack(_read_header(self.env, path))[3]
            if end_phy_offset >= self.log_end():
                text = (
                    f"the header's end offset {end_phy_offset} is behind the end of the log;"
                    " recovery builds the file again"
                )
                self.report.add(Problem("index", path, 24, text))

    def _check_header(self, file: _File, position: int, name: str, said: int, found: int) -> None:
        if said != found:
            text = f"the header's {name} is {said}, but must be {found}"
            self.report.add(Problem("index", file.path, position, text))
