"""IndexService: the life of the index files, and what they answer."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pyrocketstore._index_file import IndexFile, index_file_size
from pyrocketstore._index_keys import hashes_of_keys, key_hash_of
from pyrocketstore.display import logger
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreError, StoreFormatError, StoreIOError, without_frames
from pyrocketstore.index_directory import (
    FoundIndexFile,
    find_index_files,
    first_out_of_order,
    has_lost_header,
    set_aside,
)
from pyrocketstore.index_forcing import FlushIndexFileThread
from pyrocketstore.index_geometry import (
    candidates_of,
    check_files,
    infer_geometry,
)
from pyrocketstore.new_files import remove_temporary_files
from pyrocketstore.results import DispatchRequest
from pyrocketstore.store_checkpoint import RunningFlags, StoreCheckpoint

LOG = logger(__name__)

#: A query gives at most so many offsets (4.9.3's maxMsgsNumBatch).
MAX_MSGS_NUM_BATCH = 64
#: How often a failed creation is tried, and how long between, ms.
MAX_TRY_IDX_CREATE = 3
RETRY_INTERVAL_MS = 1000
#: After these tries all failed: how long until the next ones, ms.
RETRY_BACKOFF_MS = 10_000

_TRANSACTION_MASK = 0xC
_TRANSACTION_ROLLBACK_TYPE = 0xC
_NAME_LENGTH = 17
#: So many names are left free before the first file for keys that it does not cover.
_NAMES_BEFORE = 1_000_000

#: Of keys: physical offsets, hashes, store times.
Columns = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]]


@dataclasses.dataclass(slots=True)
class QueryOffsetResult:
    """What `query_offset` found.

    `phy_offsets` are bytes in the commit log, newest first; the other two are the newest file's
    end, ms and bytes, and 0 when there is no file.

    Source: RocketMQ 4.9.3 QueryOffsetResult.
    """

    phy_offsets: list[int]
    index_last_update_timestamp: int = 0
    index_last_update_phyoffset: int = 0


def _is_blank(index_file: IndexFile) -> bool:
    return index_file.index_count <= 1 and index_file.end_phy_offset == 0


def _drop_growing(files: list[IndexFile], limit: int) -> None:
    """Take away the last file if an owner that lives may be putting into it while we read.

    It is not full then, and just made, or ends after `limit`, where the last full one ended, or in
    the same ms.
    """
    while files and not files[-1].is_write_full():
        last = files[-1]
        only = len(files) < 2 or files[-2].end_timestamp < limit
        is_old = last.end_timestamp < limit or (last.end_timestamp == limit and only)
        if last.index_count > 1 and last.end_timestamp > 0 and is_old:
            return
        files.pop()


# ---- the service -------------------------------------------------------------------------------
class IndexService:
    """All index files of a store.

    Parameters
    ----------
    env : Env
    root : str, the index directory
    hash_slot_num, index_num : int, or None to find them out from the files at `load`
    checkpoint : StoreCheckpoint, whose index_msg_timestamp follows the full files on the device
    flags : RunningFlags, gets the index bit when no file can be made
    read_only : bool, files are read through pread, and what is put stays in memory

    Threads: one thread builds (`build_index`, `get_and_create_last_index_file`); any thread
    queries; `load`, `flush`, `delete_expired_file`, `destroy`, `shutdown` by the store.
    Source: RocketMQ 4.9.3 IndexService.
    Differs: the open file is forced at shutdown; a record that is in the index is not put twice; a
    failed creation sets the flag and is not tried for every message; subdirectories are skipped.
    """

    def __init__(
        self,
        env: Env,
        root: str,
        hash_slot_num: int | None,
        index_num: int | None,
        checkpoint: StoreCheckpoint,
        flags: RunningFlags,
        read_only: bool = False,
    ) -> None:
        self._env = env
        self._root = root
        self._configured = (hash_slot_num, index_num)
        self._geometry: tuple[int, int] | None = None
        #: why a read-only store cannot read its index: queries raise it, and nothing else does
        self.geometry_error: StoreFormatError | None = None
        #: {path: what is wrong}: files that `load` did not open, because they are no index files
        self.wrong: dict[str, str] = {}
        #: those whose keys recovery does not put again either
        self.left_out: dict[str, str] = {}
        #: whether the last `fill_gap` removed files
        self.has_dropped = False
        self._checkpoint = checkpoint
        self._flags = flags
        self._read_only = read_only
        self._lock = threading.Lock()
        self._files: tuple[IndexFile, ...] = ()
        self._forcing = FlushIndexFileThread(checkpoint, self._failed)
        self._stopping = threading.Event()
        self._retry_after_ns = 0
        #: int, ms; between the tries of a failed creation, and after they all failed.
        self.retry_interval_ms = RETRY_INTERVAL_MS
        self.retry_backoff_ms = RETRY_BACKOFF_MS
        #: The last error of creating or putting, None while there is none.
        self.last_error: StoreError | None = None
        #: int, bytes: where the earliest file that `load` dropped began; -1 if none was.
        self.dropped_begin_phy_offset = -1
        self._set_aside: list[str] = []  # what `drop_files_behind` moves away
        self._lost_from = -1  # where the first of those began
        #: int, bytes: the last record of which `load` found index entries; -1 without any file.
        self.indexed_phy_offset = -1

    # ---- load ----------------------------------------------------------------------------------
    def load(self, last_exit_ok: bool) -> bool:
        """Open the files of the index directory.

        After an unclean exit what was not surely forced (StoreCheckpoint.forced_index_files) is
        removed (read-only: passed over); `dropped_begin_phy_offset` and `indexed_phy_offset` say
        what must be put again.

        Raises: StoreFormatError when the geometry cannot be found out, or a file fits another one;
        StoreIOError. Nothing is removed then.
        Source: RocketMQ 4.9.3 IndexService#load.
        Differs: the geometry is checked; an empty file is what a crash left of a creation: it is
        dropped, and not extended; one that was cut, whose content is no index, or that does not lie
        before the later ones, and all behind it are put again.
        """
        if not self._read_only:
            remove_temporary_files(self._env, self._root)
        found = find_index_files(self._env, self._root, follow=self._read_only)
        limit = self._checkpoint.index_msg_timestamp
        kept = dropped = [f for f in found if f.size > 0]
        count = len(kept) if last_exit_ok else self._checkpoint.forced_index_files(
            [(f.end_timestamp, f.index_count) for f in kept])  # fmt: skip
        kept, dropped = kept[:count], dropped[count:]
        try:
            self._geometry, self.wrong = check_files(self._env, kept or dropped, self._configured)
        except StoreFormatError as error:
            # What goes anyway may be torn: its length alone counts.
            guess = [] if kept else candidates_of(dropped[0].size, *self._configured)
            if not guess and not self._read_only:
                raise
            if not guess:
                self.geometry_error = error
                return True
            self._geometry = guess[0]
        if not self._read_only:
            self._check_order(kept, dropped)
        whole, lost = self._divide(kept)
        opened = {f.path for f in kept} - {f.path for f in lost}
        self.left_out = {path: why for path, why in self.wrong.items() if path in opened}
        files = [self._open(f.path) for f in whole]
        if self._read_only and not last_exit_ok:
            _drop_growing(files, limit)
        if not self._read_only:
            # The newest goes first, each for good: a crash in between leaves no later file alone,
            # which the checkpoint's time may cover where the clock was set back.
            for item in reversed(found):
                if item not in kept:
                    self._env.remove(item.path)
        with self._lock:
            self._files = tuple(files)
        self.dropped_begin_phy_offset = min((f.begin_phy_offset for f in dropped), default=-1)
        self.indexed_phy_offset = max((f.end_phy_offset for f in files), default=-1)
        if lost:
            self._set_aside = [f.path for f in lost]
            begin = 0 if lost[0].size >= self.file_size else max(0, lost[0].begin_phy_offset)
            self._lost_from = files[-1].end_phy_offset if files else begin
        return True

    def _check_order(self, kept: list[FoundIndexFile], dropped: list[FoundIndexFile]) -> None:
        """Note a file that does not lie before those behind it: what one lacks between them could
        not be put again, and 4.9.3 goes by their names."""
        first = first_out_of_order([*kept, *dropped])
        if first < len(kept):
            end = kept[first].end_phy_offset
            reason = f"its keys reach to byte {end} of the log, behind the begin of a later file"
            self.wrong.setdefault(kept[first].path, reason)

    def _divide(
        self, found: list[FoundIndexFile]
    ) -> tuple[list[FoundIndexFile], list[FoundIndexFile]]:
        """The files to open, and those whose keys are put again from the log.

        Keys go in by their order in the log, so that the files behind one that is wrong go with it.
        A read-only store makes that good, in memory, only for a file that was cut.
        """
        for path, reason in self.wrong.items():
            LOG.warning("%s: %s; it is derived from the log", path, reason)
        if self._read_only:
            short = next((n for n, f in enumerate(found) if f.size < self.file_size), len(found))
            return [f for f in found[:short] if f.path not in self.wrong], found[short:]
        first = next((n for n, f in enumerate(found) if f.path in self.wrong), len(found))
        return found[:first], found[first:]

    def notices(self) -> list[str]:
        """What a reader should know of the files that `load` left out."""
        return [
            f"{path}: {reason}; index files are derived from the log: queries search the log"
            " instead, and opening the store for writing builds the file again"
            for path, reason in self.left_out.items()
        ]

    @property
    def file_size(self) -> int:
        """Bytes of one file."""
        return index_file_size(*self.geometry)

    def _open(self, path: str) -> IndexFile:
        return IndexFile(
            self._env, path, *self.geometry, mode="read" if self._read_only else "shared"
        )

    # ---- files ---------------------------------------------------------------------------------
    @property
    def geometry(self) -> tuple[int, int]:
        """(maxHashSlotNum, maxIndexNum) as given, or as `load` found out."""
        if self._geometry is None:
            self._geometry = infer_geometry(self._env, [], self._configured)
        return self._geometry

    @property
    def files(self) -> tuple[IndexFile, ...]:
        """The open files, oldest first."""
        return self._files

    @property
    def total_size(self) -> int:
        """Bytes of all files, holes included. Source: RocketMQ 4.9.3 IndexService#getTotalSize."""
        return sum(index_file.file_size for index_file in self._files)

    def get_and_create_last_index_file(self) -> IndexFile:
        """The file that takes the next key, open for writing.

        When the last one is full a new one is made, named by the local time, whose header starts
        from the full one's end; the full one is forced by a thread of its own, and then the
        checkpoint's index_msg_timestamp moves.

        Raises: StoreIOError. Threads: the building thread.
        Source: RocketMQ 4.9.3 IndexService#getAndCreateLastIndexFile.
        Differs: a name is never used twice nor sorts before an older one (clock set back).
        """
        previous = self._files[-1] if self._files else None
        if previous is not None and not previous.is_write_full():
            if not self._read_only:
                before = max((f.end_timestamp for f in self._files[:-1]), default=0)
                self._checkpoint.uncover_index_file(previous.end_timestamp, before)
            previous.open_for_writing()
            return previous
        index_file = self._create(previous)
        with self._lock:
            self._files = (*self._files, index_file)
        if previous is not None:
            self._force_later(previous)
        return index_file

    def begin_new_file(self, like_after: IndexFile | None) -> IndexFile:
        """A new file, though the last one has room, whose header starts as if after `like_after`.

        Where recovery has put keys that 4.9.3 would leave out, 4.9.3's own begin in a file of
        their own: entries count seconds from their file's first, and so both answer alike.

        Raises StoreIOError. Threads: the building thread.
        """
        last = self._files[-1] if self._files else None
        index_file = self._create(like_after)
        with self._lock:
            self._files = (*self._files, index_file)
        if last is not None and last is not like_after:
            self._force_later(last)
        return index_file

    def _create(self, previous: IndexFile | None, name: str = "") -> IndexFile:
        name = name or self._new_name()
        end_phy_offset = previous.end_phy_offset if previous is not None else 0
        end_timestamp = previous.end_timestamp if previous is not None else 0
        path = None if self._read_only else f"{self._root}/{name}"
        if path is not None:
            self._env.make_directories(self._root)
        index_file = IndexFile(
            self._env,
            path,
            *self.geometry,
            end_phy_offset,
            end_timestamp,
            mode="shared" if path is not None else "memory",
            create=True,
            name=name,
        )
        try:
            index_file.open_for_writing()
        except StoreIOError:
            index_file.destroy()
            raise
        return index_file

    def _new_name(self) -> str:
        taken = {index_file.name for index_file in self._files}
        name = self._env.local_time_name(self._env.now_ms())
        newest = max((n for n in taken if len(n) == _NAME_LENGTH), default="")
        if name <= newest:
            name = self._next_name(newest)
        while name in taken or self._env.exists(f"{self._root}/{name}"):
            name = self._next_name(name)
        return name

    @staticmethod
    def _next_name(name: str) -> str:
        # One more in the last digit; a name need not be a time that exists.
        return f"{int(name) + 1:0{_NAME_LENGTH}d}"

    def retry_get_and_create_index_file(self) -> IndexFile | None:
        """As `get_and_create_last_index_file`, with three tries; None when they all failed.

        Then the index bit of the running flags is set, `last_error` says why, and until
        `retry_backoff_ms` have passed further calls give None at once.

        Threads: the building thread.
        Source: RocketMQ 4.9.3 IndexService#retryGetAndCreateIndexFile.
        Differs: 4.9.3 means to, but throws instead, and tries again for every message.
        """
        if self._retry_after_ns and self._env.monotonic_ns() < self._retry_after_ns:
            return None
        for attempt in range(MAX_TRY_IDX_CREATE):
            try:
                index_file = self.get_and_create_last_index_file()
            except StoreIOError as error:
                self.last_error = without_frames(error)
                LOG.warning("index: attempt %d: %s", attempt + 1, error)
            else:
                self._retry_after_ns = 0
                return index_file
            more = attempt + 1 < MAX_TRY_IDX_CREATE
            if more and self._stopping.wait(self.retry_interval_ms / 1000):
                break
        self._failed(self.last_error)
        return None

    def try_again(self) -> bool:
        """Put again after an error; False when a force has failed: that may have lost something."""
        self._retry_after_ns = 0
        return self._forcing.error is None

    def _failed(self, error: StoreError | None) -> None:
        self.last_error = None if error is None else without_frames(error)
        self._retry_after_ns = self._env.monotonic_ns() + self.retry_backoff_ms * 1_000_000
        self._flags.make_index_file_error(error)

    # ---- building ------------------------------------------------------------------------------
    def build_index(self, request: DispatchRequest) -> bool:
        """Put the keys of one record.

        False when the index could not take them: `last_error` says why. The caller should bring the
        same record again later: what is in already is not put twice.

        Threads: the building thread.
        Source: RocketMQ 4.9.3 IndexService#buildIndex.
        Differs: the record at the end of the index is put only as far as it is not there yet.
        """
        index_file = self.retry_get_and_create_index_file()
        if index_file is None:
            return False
        phy_offset = request.commit_log_offset
        if phy_offset < index_file.end_phy_offset:
            return True
        if request.sys_flag & _TRANSACTION_MASK == _TRANSACTION_ROLLBACK_TYPE:
            return True
        key_hashes = self._key_hashes(request)
        if key_hashes and phy_offset == index_file.end_phy_offset:
            del key_hashes[: self._already_indexed(phy_offset)]
        for key_hash in key_hashes:
            try:
                while not index_file.put_hash(key_hash, phy_offset, request.store_timestamp):
                    rolled = self.retry_get_and_create_index_file()
                    if rolled is None:
                        return False
                    index_file = rolled
            except StoreIOError as error:
                self._failed(error)
                return False
        return True

    @staticmethod
    def _key_hashes(request: DispatchRequest) -> list[int]:
        keys = [] if request.uniq_key is None else [request.uniq_key]
        if request.keys:
            keys += [key for key in request.keys.split(" ") if key]
        return [key_hash_of(request.topic, key) for key in keys]

    def _already_indexed(self, phy_offset: int) -> int:
        """How many keys of the last record are in: the entries at the end that name it."""
        count = 0
        for index_file in reversed(self._files):
            tail = index_file.tail_count(phy_offset)
            count += tail
            if tail < index_file.index_count - 1:
                break
        return count

    # ---- queries -------------------------------------------------------------------------------
    def _check_geometry(self, max_num: int = 0) -> None:
        if self.geometry_error is not None:
            raise without_frames(self.geometry_error)
        if max_num < 0:
            raise StoreFormatError(f"max_num {max_num} is negative")

    def query_offset(
        self,
        topic: str,
        key: str,
        max_num: int,
        begin: int,
        end: int,
        limit: int = MAX_MSGS_NUM_BATCH,
    ) -> QueryOffsetResult:
        """Where the log may hold records of a topic with a key, as 4.9.3 answers it.

        Parameters
        ----------
        max_num : int, at most so many, and at most `limit`
        begin, end : int, ms, both inclusive

        Returns
        -------
        QueryOffsetResult, newest first; only hashes and whole seconds are compared

        Raises: StoreFormatError when max_num is negative; StoreIOError; StoreCorruptionError.
        Source: RocketMQ 4.9.3 IndexService#queryOffset.
        """
        self._check_geometry(max_num)
        max_num = min(max_num, limit)
        key_hash = key_hash_of(topic, key)
        result = QueryOffsetResult([])
        files = self._files
        if files:
            result.index_last_update_timestamp = files[-1].end_timestamp
            result.index_last_update_phyoffset = files[-1].end_phy_offset
        found = result.phy_offsets
        for index_file in reversed(files):
            if index_file.is_time_matched(begin, end):
                found += index_file.select_hash(key_hash, max_num - len(found), begin, end)
            if index_file.begin_timestamp < begin or len(found) >= max_num:
                break
        return result

    def query_offsets(
        self,
        topic: str,
        keys: Sequence[str],
        max_num: int,
        begin: int,
        end: int,
        limit: int = MAX_MSGS_NUM_BATCH,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The offsets of `query_offset` for many keys in one call.

        Returns
        -------
        (int64[m] index into `keys`, int64[m] bytes in the commit log), by key, newest first for
        each

        Raises: as `query_offset`.
        """
        self._check_geometry(max_num)
        hashes = hashes_of_keys(keys, topic)
        room = np.full(len(hashes), min(max_num, limit), np.int64)
        key_index = phy_offsets = np.empty(0, np.int64)
        for index_file in reversed(self._files):
            left = np.flatnonzero(room)
            if len(left) and index_file.is_time_matched(begin, end):
                at, found = index_file.select_hashes(hashes[left], int(room.max()), begin, end)
                keep = np.arange(len(at)) - np.searchsorted(at, at) < room[left[at]]
                rows = left[at[keep]]
                room -= np.bincount(rows, minlength=len(room))
                key_index = np.concatenate([key_index, rows])
                phy_offsets = np.concatenate([phy_offsets, found[keep]])
            if index_file.begin_timestamp < begin:
                break
        order = np.argsort(key_index, kind="stable")
        return key_index[order], phy_offsets[order]

    def query_all(self, topic: str, key: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Every place in the log that may hold a record of a topic with a key, newest first.

        Nothing in [begin, end] (ms, inclusive) is missed, also where clocks were set back; a hit
        may lie outside, or be of another key with the same hash: look at the record.

        Returns
        -------
        iterator of (bytes in the log, ms at most 999 ms before the store time)

        Raises: StoreIOError; StoreCorruptionError.
        """
        self._check_geometry()
        key_hash = key_hash_of(topic, key)
        for index_file in reversed(self._files):
            # Small pieces first: most callers want a few.
            room, start = 64, 0
            while True:
                phy_offsets, times, start = index_file.select_hits(
                    key_hash, begin, end, room, start
                )
                yield from zip(phy_offsets.tolist(), times.tolist(), strict=True)
                if start == 0:
                    break
                room = min(room * 4, 65536)

    # ---- forcing, removing ---------------------------------------------------------------------
    def _force_later(self, index_file: IndexFile) -> None:
        if not self._read_only:
            self._forcing.add(index_file)

    def wait_forced(self) -> None:
        """Wait until full files are forced; one that could not be is told by `flush`."""
        self._forcing.wait_forced()

    def flush(self) -> None:
        """Force every key put so far to the device.

        Raises: StoreIOError, also for a full file that could not be forced earlier.
        Durability: all keys put before the call survive a power cut once it returns.
        """
        self.wait_forced()
        for index_file in self._files:
            index_file.flush()
        if self._forcing.error is not None:
            raise without_frames(self._forcing.error)

    def delete_expired_file(self, min_phy_offset: int) -> int:
        """Remove the oldest files that only name records before `min_phy_offset`, not the last.

        Gives how many were removed. Raises StoreIOError.
        Source: RocketMQ 4.9.3 IndexService#deleteExpiredFile.
        """
        removed = 0
        for index_file in self._files[:-1]:
            if index_file.end_phy_offset >= min_phy_offset or not index_file.destroy(3000):
                break
            with self._lock:
                self._files = tuple(f for f in self._files if f is not index_file)
            removed += 1
        return removed

    def begin_of_files_behind(self, phy_offset: int) -> int:
        """From where keys must be put again once `drop_files_behind` ran; -1: nothing is dropped.

        Returns bytes of the log.
        """
        first = self._first_behind(phy_offset)
        if first == len(self._files):
            return self._lost_from if self._lost_from < phy_offset else 0
        if first > 0:
            return self._files[first - 1].end_phy_offset
        begin = self._files[0].begin_phy_offset
        return begin if 0 <= begin < phy_offset else 0

    def drop_files_behind(self, phy_offset: int, *, replays: bool = False) -> None:
        """Remove (read-only: pass over) the files from the first one on that names a record at or
        behind `phy_offset`, or whose header says so, and the last ones that lost their header. What
        had lost its end goes to ROOT/.broken.

        A log that was cut takes new records there, which such a file would count as indexed; and
        what one file lacks can only be put again when no later one is there. With `replays`, a last
        file without entries goes too: it does not say what the ones before it hold.

        Raises: StoreIOError. Threads: nobody builds.
        """
        first = self._first_behind(phy_offset)
        while replays and first > 1 and _is_blank(self._files[first - 1]):
            first -= 1
        dropped = self._files[first:]
        with self._lock:
            self._files = self._files[:first]
        for index_file in dropped:
            index_file.destroy(3000)
        if dropped and not self._read_only:
            self._env.fsync_directory(self._root)
        if self._set_aside and not self._read_only:
            set_aside(self._env, self._root, self._set_aside)
        self._set_aside, self._lost_from = [], -1
        self.indexed_phy_offset = max((f.end_phy_offset for f in self._files), default=-1)

    def uncover_missing_files(self) -> None:
        """Have the checkpoint cover no file that is not there.

        A file that is made later may end at the same time, or earlier where the clock was set back,
        and would count as forced after the next crash. Raises StoreIOError. Nobody builds.
        """
        ends = [index_file.end_timestamp for index_file in self._files]
        covered = self._checkpoint.index_msg_timestamp
        if covered not in ends and not self._read_only:
            self._checkpoint.uncover_index_file(covered, ends[-1] if ends else 0)

    def files_before(self, phy_offset: int) -> tuple[IndexFile, ...]:
        """The files that `drop_files_behind(phy_offset)` leaves."""
        return self._files[: self._first_behind(phy_offset)]

    def fill_gap(self, chunks: Iterable[Columns], end: int) -> int:
        """Put keys that lie before the first record of a file, and behind the one before it, into
        files of their own between the two; or keys behind every file into the last files.

        Where no name is left between the two, the later files are removed, and `has_dropped` says
        so: then what lies behind the last file is to be put again.

        Parameters
        ----------
        chunks : of (phy_offset int64[n], key_hash int32[n], store_timestamp int64[n]), bytes of the
            log and Unix ms, by the log's order
        end : int, where the first record of the file behind lies, bytes of the log

        Returns
        -------
        int, how many were put

        Raises StoreIOError. Threads: nobody builds.
        Durability: the keys are on the device when this returns. A crash meanwhile leaves a
        checkpoint that says that the index must be built again from there.
        """
        self.wait_forced()  # the thread that forces moves the checkpoint's time, too
        self.has_dropped = False
        checkpoint, covered = self._checkpoint, self._checkpoint.index_msg_timestamp
        added: IndexFile | None = None
        at = count = low = high = 0
        for columns in chunks:
            done = 0
            while done < len(columns[0]):
                if added is None or added.is_write_full():
                    if added is None:
                        behind = (n for n, f in enumerate(self._files) if f.begin_phy_offset >= end)
                        at = next(behind, len(self._files))
                        is_last = at == len(self._files)
                        high = int(self._new_name() if is_last else self._files[at].name)
                        low = int(self._files[at - 1].name) if at else max(0, high - _NAMES_BEFORE)
                        ended = self._files[at - 1].end_timestamp if at else 0
                        checkpoint.uncover_index_file(max(covered, 1), min(ended, covered))
                    else:
                        added.flush()
                    low += 1
                    if low >= high and at < len(self._files):
                        self._drop_from(at)
                        return count
                    before = self._files[at - 1] if at else None
                    added = self._create(before, f"{low:0{_NAME_LENGTH}d}")
                    with self._lock:
                        self._files = (*self._files[:at], added, *self._files[at:])
                    at += 1
                key_hashes, places, times = columns[1], columns[0], columns[2]
                put = added.put_hashes(key_hashes[done:], places[done:], times[done:])
                done, count = done + put, count + put
        if added is not None:
            added.flush()
        return self._gap_filled(count, covered)

    def _drop_from(self, at: int) -> None:
        """Remove the files from one on, whose keys are put again."""
        dropped = self._files[at:]
        with self._lock:
            self._files = self._files[:at]
        for index_file in dropped:
            index_file.destroy(3000)
        self._env.fsync_directory(self._root)
        self.has_dropped = True

    def _gap_filled(self, count: int, covered: int) -> int:
        self._env.fsync_directory(self._root)
        self.indexed_phy_offset = max((f.end_phy_offset for f in self._files), default=-1)
        self._checkpoint.index_msg_timestamp = covered
        self._checkpoint.flush()
        return count

    def forget_files(self) -> None:
        """Start empty: the directory was moved away. Nobody builds."""
        self._files, self.indexed_phy_offset = (), -1

    def _first_behind(self, phy_offset: int) -> int:
        """The first file that goes, with all after it."""
        behind = (
            number
            for number, index_file in enumerate(self._files)
            if index_file.index_count > 1 and index_file.end_phy_offset >= phy_offset
        )
        first = next(behind, len(self._files))
        while first > 0 and self._has_lost_header(self._files[first - 1]):
            first -= 1
        return first

    def _has_lost_header(self, index_file: IndexFile) -> bool:
        path = index_file.path
        if path is None or not _is_blank(index_file):
            return False
        return has_lost_header(self._env, path, index_file.hash_slot_num)

    def destroy(self) -> None:
        """Remove every file. Threads: nobody builds.

        Raises: StoreIOError. Source: RocketMQ 4.9.3 IndexService#destroy.
        """
        self.wait_forced()
        for index_file in self._files:
            index_file.destroy(3000)
        with self._lock:
            self._files = ()

    def shutdown(self) -> None:
        """Force and close every file. Threads: nobody builds; a second call does nothing.

        Raises: StoreIOError, after everything was closed.
        Differs: 4.9.3 leaves the open file to the page cache.
        """
        self._stopping.set()
        self.wait_forced()
        self._forcing.shutdown(None)
        with self._lock:
            files, self._files = self._files, ()
        failure = self._forcing.error
        for index_file in files:
            try:
                index_file.shutdown()
            except StoreError as error:
                failure = failure or error
        if failure is not None:
            self._forcing.error = None
            raise failure
