"""IndexService: load, extend, flush, query and delete the index files of a store."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from pyrocketstore.display import REPORTED_ELSEWHERE, logger
from pyrocketstore.errors import (
    StoreError,
    StoreFormatError,
    StoreIOError,
    StoreStateError,
    is_failed_open,
    is_passing,
    without_frames,
)
from pyrocketstore.files.planned_changes import PlannedChanges, changes_of
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.files.temporary_files import remove_temporary_files
from pyrocketstore.index._entries import SlotTable, index_key_hashes, key_hash_of
from pyrocketstore.index._file import IndexFile, index_file_size
from pyrocketstore.index.directory import (
    FoundIndexFile,
    find_index_files,
    first_out_of_order,
    has_lost_header,
    set_aside,
    set_begin,
    zero_rest,
)
from pyrocketstore.index.geometry import (
    DEFAULT_GEOMETRY,
    candidates_of,
    check_files,
    geometry_fits,
    infer_geometry,
)
from pyrocketstore.index.sync_point import (
    SyncPoint,
    SyncPointFile,
    entry_phy_offsets,
    proven_slots,
)
from pyrocketstore.record.message import TRANSACTION_MASK, TRANSACTION_ROLLBACK_TYPE
from pyrocketstore.results import DispatchRequest
from pyrocketstore.system._env import Event
from pyrocketstore.system.env import Env
from pyrocketstore.system.live_stores import was_removed
from pyrocketstore.system.service_thread import ServiceThread

LOG = logger(__name__)

#: A query returns at most this many offsets (4.9.3's maxMsgsNumBatch).
MAX_MSGS_NUM_BATCH = 64
#: How often the creation of a file is tried, and the pause between tries (ms).
MAX_TRY_IDX_CREATE = 3
RETRY_INTERVAL_MS = 1000
#: After all these tries failed: the pause until the next ones (ms).
RETRY_BACKOFF_MS = 10_000

#: How long `wait_flushed` sleeps before it checks whether the thread is still alive (s).
LOOK_S = 1.0
#: The pause after a file could not be opened (ms).
RETRY_MS = 1000

_NAME_LENGTH = 17
#: Names that are left free before the first file, for files with earlier keys.
_NAMES_BEFORE = 1_000_000

#: Columns of keys: physical offsets, hashes, store times.
Columns = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]]


@dataclasses.dataclass(slots=True)
class QueryOffsetResult:
    """The result of `query_offset`.

    `phy_offsets` are bytes in the commit log, newest first; the other two are the newest file's
    end, ms and bytes, and 0 without files.

    Source: RocketMQ 4.9.3 QueryOffsetResult.
    """

    phy_offsets: list[int]
    index_last_update_timestamp: int = 0
    index_last_update_phyoffset: int = 0


def _is_blank(index_file: IndexFile) -> bool:
    return index_file.index_count <= 1 and index_file.end_phy_offset == 0


def _drop_growing(files: list[IndexFile], limit: int) -> None:
    """Remove the last file if a live owner may be putting keys into it.

    Such a file is not full, and is new, or ends after `limit`, where the last full one ended, or in
    the same ms.
    """
    while files and not files[-1].is_write_full():
        last = files[-1]
        only = len(files) < 2 or files[-2].end_timestamp < limit
        is_old = last.end_timestamp < limit or (last.end_timestamp == limit and only)
        if last.index_count > 1 and last.end_timestamp > 0 and is_old:
            return
        files.pop()


class FlushIndexFileThread(ServiceThread):
    """The thread that flushes full index files, in order; the first full file starts it.

    Parameters
    ----------
    checkpoint : its index_msg_timestamp never passes a file that could not be flushed
    on_error : called in this thread with the StoreError that ended its work

    A file that could not be opened is tried again; any other error ends the work of this thread.
    Where no thread can be started, as in exit handlers on CPython 3.12.1, `wait_flushed` flushes
    the files itself.

    Differs: 4.9.3 starts one thread for each full file, and dispatch waits for its start.
    """

    def __init__(self, checkpoint: StoreCheckpoint, on_error: Callable[[StoreError], None]) -> None:
        super().__init__("FlushIndexFileThread")
        #: why the next file could not be flushed; None when nothing failed, or a later try worked.
        #: The error of a failed fsync stays
        self.error: StoreError | None = None
        self._is_final = False
        self._checkpoint = checkpoint
        self._on_error = on_error
        self._files: collections.deque[IndexFile] = collections.deque()
        self._flushing_lock = threading.Lock()
        self._flushed = Event()  # signalled after each file

    def add(self, index_file: IndexFile) -> None:
        """Have the thread flush a file. A thread that had died is started again.

        Where no thread can be started, the next call or `wait_flushed` flushes the file.
        """
        self._files.append(index_file)
        try:
            self.start()
        except (RuntimeError, MemoryError) as error:
            LOG.info("index: full files wait for the next flush: %s", error)
        self.wakeup()

    def wait_flushed(self) -> None:
        """Wait until all files are flushed, one failed, or the thread has died. Ctrl-C interrupts
        the wait."""
        if self.error is not None and not self._is_final:
            self.error = None  # the wakeup has it tried again
            self.wakeup()
        while self._files and self.is_alive and self.error is None:
            seen = self._flushed.sequence()
            if self._files:
                self._flushed.wait(seen, LOOK_S)
        if not self.is_alive and self.failure is None:
            self._flush_all()

    def run(self) -> None:
        """Flush the files, also when the thread is asked to end."""
        while True:
            is_last = self.stopped
            self._flush_all()
            self._flushed.signal()
            if is_last:
                return
            self.wait_for_running(RETRY_MS if self._files and not self._is_final else None)

    def on_failure(self, error: BaseException) -> None:
        """Report the death of the thread as an error of the index."""
        cause = StoreStateError(f"the thread {self.name} has died: {error!r}")
        LOG.error("index: %s", cause)
        self._on_error(cause)

    def _flush_all(self) -> None:
        with self._flushing_lock:
            while self._files and not self._is_final:
                self._flush(self._files[0])
                if self.error is not None:
                    break
                self._files.popleft()
                self._flushed.signal()

    def _flush(self, index_file: IndexFile) -> None:
        try:
            index_file.flush()
            index_file.close_for_writing()
            self._checkpoint.index_msg_timestamp = index_file.end_timestamp
            self._checkpoint.flush()
        except StoreError as error:
            self._is_final = not is_failed_open(error)
            if self._is_final:
                self._on_error(error)
            elif self.error is None:
                LOG.error("index: %s; it is tried again", error)
            self.error = without_frames(error)
        else:
            self.error = None


class IndexService:
    """All index files of a store.

    Parameters
    ----------
    env : Env
    root : str, the index directory
    hash_slot_num, index_num : int, or None to infer them from the files at `load`
    checkpoint : StoreCheckpoint, whose index_msg_timestamp covers the durable full files
    flags : RunningFlags, gets the index bit when no file can be made
    read_only : bool, files are read through pread, and new keys stay in memory
    sync_point_file : SyncPointFile or None, which names durable entries of the last file
    usual : (int, int), slots and entries, where neither `sync_point_file` nor a whole file shows
        them
    changes : while it is planning, `load` changes no file, and those changes wait for it; None: as
        `read_only` says

    Threads: one thread builds (`build_index`, `get_and_create_last_index_file`); any thread
    queries; `load`, `flush`, `delete_expired_file`, `destroy`, `shutdown` by the store.
    Source: RocketMQ 4.9.3 IndexService.
    Differs: the open file is flushed at shutdown; a record is never indexed twice; a failed
    creation sets the flag and is not tried for every message; subdirectories are skipped.
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
        sync_point_file: SyncPointFile | None = None,
        usual: tuple[int, int] = DEFAULT_GEOMETRY,
        changes: PlannedChanges | None = None,
    ) -> None:
        self._env = env
        self.root = root
        self._configured = (hash_slot_num, index_num)
        self._usual = usual
        self._changes = changes_of(read_only=read_only) if changes is None else changes
        self._geometry: tuple[int, int] | None = None
        #: why a read-only store cannot read its index: only queries raise it
        self.geometry_error: StoreFormatError | None = None
        #: {path: what is wrong}: files that `load` did not open
        self.wrong: dict[str, str] = {}
        #: those of them whose keys recovery does not put again either
        self.left_out: dict[str, str] = {}
        #: whether the last `fill_gap` removed files
        self.has_dropped = False
        self._checkpoint = checkpoint
        self._flags = flags
        self._read_only = self._changes.read_only
        self._lock = threading.Lock()
        self._files: tuple[IndexFile, ...] = ()
        self._flushing_thread = FlushIndexFileThread(checkpoint, self._failed)
        self._stopping = threading.Event()
        self._retry_after_ns = 0
        #: int, ms; between the tries of a failed creation, and after they all failed.
        self.retry_interval_ms = RETRY_INTERVAL_MS
        self.retry_backoff_ms = RETRY_BACKOFF_MS
        #: The last error of creating or putting, None while there is none.
        self.last_error: StoreError | None = None
        self._set_aside: list[str] = []  # files that `drop_files_after` moves away
        self._lost_from = -1  # where the first of them began
        #: int, bytes: the last record of which `load` found index entries; -1 without any file.
        self.indexed_phy_offset = -1
        self._sync_point_file = sync_point_file
        #: the content of `sync_point_file` at `load`, and since the last `write_sync_point`
        self.sync_point: SyncPoint | None = None
        #: bytes of the log whose keys need not be put again, by `sync_point`; -1: unknown
        self._synced_phy_offset = -1
        self._is_rejected = False
        #: what `remove_left_out` removes: `sync_point_file`, and files of the index
        self._is_unproven = False
        self._superfluous: list[str] = []
        #: the last file, kept after an unclean exit for the durable entries that it begins with
        self.continued: IndexFile | None = None

    # ---- load ----------------------------------------------------------------------------------
    def load(
        self,
        last_exit_ok: bool,
        is_of_log: Callable[[SyncPoint], bool] = lambda point: False,
    ) -> bool:
        """Open the files of the index directory.

        After an unclean exit files that may not be durable (StoreCheckpoint.durable_index_files)
        are left out; keys after `indexed_phy_offset` must be put again. `remove_left_out` removes
        these files.

        If the files and the log (`is_of_log`) prove `sync_point_file`, the first file that would be
        removed keeps the entries that are durable.

        Raises: StoreFormatError when the geometry cannot be inferred, or a file fits another one;
        StoreIOError. Nothing is removed then.
        Source: RocketMQ 4.9.3 IndexService#load.
        Differs: the geometry is checked; an empty file, as a crash leaves it, is removed and not
        extended; the keys of a file that was cut, is damaged or breaks the order, and of all later
        files, are put again.
        """
        self._changes.add(partial(remove_temporary_files, self._env, self.root))
        found = find_index_files(self._env, self.root, follow=self._read_only)
        limit = self._checkpoint.index_msg_timestamp
        kept = dropped = [f for f in found if f.size > 0]
        count = len(kept) if last_exit_ok else self._checkpoint.durable_index_files(
            [(f.end_timestamp, f.index_count) for f in kept])  # fmt: skip
        kept, dropped = kept[:count], dropped[count:]
        self.sync_point = None if self._sync_point_file is None else self._sync_point_file.read()
        slots = None if last_exit_ok else self._prove(kept, dropped, is_of_log)
        try:
            if slots is not None and not kept and self.sync_point is not None:
                self._geometry, self.wrong = self.sync_point.geometry, {}
            else:
                self._geometry, self.wrong = self._check(kept or dropped, found)
            if slots is not None and slots.hash_slot_num != self._geometry[0]:
                slots, self._synced_phy_offset = None, -1
        except StoreFormatError as error:
            # Files that are removed anyway may be torn: only their length counts.
            guess = [] if kept else self._guesses(dropped[0].size)
            if not guess:
                self._changes.accept(error)
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
        if len(files) < len(kept):
            self._synced_phy_offset = -1
        elif slots is not None:
            kept = [*kept, dropped[0]]
            files.append(self._continue(dropped[0].path, slots))
        self._is_unproven = not (last_exit_ok or self._synced_phy_offset >= 0)
        point = self._point_with_geometry()
        if point is not None and point.name and all(item.name != point.name for item in found):
            # No file can prove it any more, and nothing else shows the geometry after a kill.
            self._is_unproven = False
        self._superfluous = [item.path for item in found if item not in kept]
        with self._lock:
            self._files = tuple(files)
        if self.continued is not None and slots is not None:
            assert self.sync_point is not None
            self._changes.add(partial(self._write_continued, slots, self.sync_point))
        self.indexed_phy_offset = max((f.end_phy_offset for f in files), default=-1)
        if self.sync_point is not None and last_exit_ok:
            self._expect_crc(files, self.sync_point)
        if lost:
            self._set_aside = [f.path for f in lost]
            begin = 0 if lost[0].size >= self.file_size else max(0, lost[0].begin_phy_offset)
            self._lost_from = files[-1].end_phy_offset if files else begin
        return True

    def _check(
        self, files: Sequence[FoundIndexFile], found: Sequence[FoundIndexFile]
    ) -> tuple[tuple[int, int], dict[str, str]]:
        """Return what `check_files` does, by the geometry in `sync_point` if none can be inferred,
        if it shows that a file was cut, or if there are no files.

        Parameters
        ----------
        found : all files; `sync_point` may describe one that is not in `files`

        Raises StoreFormatError, StoreIOError.
        """
        point = self._point_with_geometry()
        if point is not None and (not files or point.shows_cut(files)):
            return check_files(self._env, files, point.geometry)
        try:
            return check_files(self._env, files, self._configured, self._usual)
        except StoreFormatError:
            # Files of other lengths are of another geometry, which `sync_point` does not name.
            if (
                point is None
                or {file.size for file in files} != {index_file_size(*point.geometry)}
                or not self._shows(point, found)
            ):
                raise
        return check_files(self._env, files, point.geometry)

    def _point_with_geometry(self) -> SyncPoint | None:
        """Return `sync_point` if it names a geometry that is not configured otherwise."""
        point = self.sync_point
        is_known = (
            point is not None and point.hash_slot_num and point.has_geometry(*self._configured)
        )
        return point if is_known else None

    def _shows(self, point: SyncPoint, found: Sequence[FoundIndexFile]) -> bool:
        """Return whether a file has the geometry in `sync_point`, which may name a file that was
        deleted, or no file has an entry. Raises StoreIOError."""
        filled = [file for file in found if file.index_count > 1]
        return (not filled and not point.name) or any(
            point.describes(file) or geometry_fits(self._env, file.path, *point.geometry)
            for file in filled
        )

    def _guesses(self, size: int) -> list[tuple[int, int]]:
        """Return the possible geometries of a file of `size` bytes, the best first."""
        point = self._point_with_geometry()
        guesses = candidates_of(size, *self._configured)
        if point is not None and index_file_size(*point.geometry) == size:
            guesses.insert(0, point.geometry)
        return guesses

    def _prove(
        self,
        kept: list[FoundIndexFile],
        dropped: list[FoundIndexFile],
        is_of_log: Callable[[SyncPoint], bool],
    ) -> SlotTable | None:
        """Decide whether `sync_point` is true of the index and the log.

        Returns the slots of the first of the files `dropped` if it begins with durable entries.
        Raises StoreIOError.
        """
        point = self.sync_point
        self._synced_phy_offset = -1
        # Without times the checkpoint requires that everything is read again.
        if point is None or not point.phy_offset or self._checkpoint.get_min_timestamp() <= 0:
            return None
        if not is_of_log(point):
            return None
        slots = None
        if point.name:
            item = next((f for f in [*kept, *dropped[:1]] if f.name == point.name), None)
            if item is None or not point.has_geometry(*self._configured):
                return None
            slots = proven_slots(self._env, item, point)
            if slots is None:
                return None
            if item in kept:
                slots = None
        self._synced_phy_offset = point.phy_offset
        return slots

    def _continue(self, path: str, slots: SlotTable) -> IndexFile:
        """Open a file with its durable entries; later ones are put again."""
        point = self.sync_point
        assert point is not None
        index_file = IndexFile(self._env, path, *self.geometry, mode="read")
        index_file.limit_to(slots, point.header(slots.slot_count))
        self.continued = index_file
        return index_file

    def _write_continued(self, slots: SlotTable, point: SyncPoint) -> None:
        """Have the file that is continued begin with its durable entries alone."""
        planned = self.continued
        assert planned is not None and planned.path is not None
        slots.write_to(self._env, planned.path)
        set_begin(self._env, planned.path, point.header(slots.slot_count))
        index_file = self.continued = self._open(planned.path)
        index_file.mark_unflushed()
        index_file.expect_crc(point.index_count, point.entries_crc)
        with self._lock:
            self._files = tuple(index_file if f is planned else f for f in self._files)

    def remove_left_out(self) -> None:
        """Delete the files that `load` did not open; before them, replace a file `sync_point_file`
        that is not believed. No-op in a read-only store.

        Until then the file proves which messages were durable. Raises StoreIOError.
        """
        self._changes.add(self._remove_left_out)

    def _remove_left_out(self) -> None:
        if self._is_unproven:
            self._withdraw_sync_point()
        # The newest is removed first: a crash in between never leaves a later file alone, which
        # the checkpoint's time may cover if the clock was set back.
        for path in reversed(self._superfluous):
            self._env.remove(path)
        self._superfluous = []

    def correct_sync_point(self, phy_offset: int) -> None:
        """Replace the file `sync_point_file` if it was rejected, or names bytes of the log after
        `phy_offset`, where the log is cut; write it if only it can show the sizes of the index.

        Raises StoreIOError. Durability: durable on return, before new records are there.
        """
        self._changes.add(partial(self._correct_sync_point, phy_offset))

    def _correct_sync_point(self, phy_offset: int) -> None:
        if self._sync_point_file is None:
            return
        point = self.sync_point
        is_false = point is not None and (self._is_rejected or point.phy_offset > phy_offset)
        sizes = self.sizes_to_name()
        if is_false or (sizes and (point is None or point.geometry != sizes)):
            self._withdraw_sync_point()

    def sizes_to_name(self) -> tuple[int, int] | None:
        """Return the geometry unless an opening can infer it from the length of a file."""
        geometry = self.geometry
        is_shown = geometry in candidates_of(index_file_size(*geometry), None, None)
        return None if is_shown else geometry

    def _withdraw_sync_point(self) -> None:
        """Have `sync_point_file` name no record: it names the sizes of the index, or is deleted.

        Raises StoreIOError. Durability: durable on return.
        """
        if self._sync_point_file is None:
            return
        sizes = self.sizes_to_name()
        point, self.sync_point = self.sync_point, None
        kept = SyncPoint.of_sizes(*sizes) if sizes else None
        try:
            if kept is not None and kept != point:
                self._sync_point_file.write(kept)
        except StoreIOError as error:
            if not is_passing(error):
                raise
            LOG.warning("until a flush, an opening must be given the index sizes: %s", error)
            kept = None
        if kept is None:
            self._sync_point_file.remove()
        self.sync_point = kept

    @staticmethod
    def _expect_crc(files: list[IndexFile], point: SyncPoint) -> None:
        for index_file in files[-2:]:
            if index_file.name == point.name:
                index_file.expect_crc(point.index_count, point.entries_crc)

    def synced_before(self, phy_offset: int | None = None) -> int:
        """Return up to which physical offset no key need be put again, in a log that ends at
        `phy_offset` if that is known; -1: unknown."""
        synced = self._synced_phy_offset
        return synced if phy_offset is None or synced <= phy_offset else -1

    def reject_sync_point(self) -> None:
        """Believe the sync point no more: the scan of the log contradicts it."""
        self._synced_phy_offset = -1
        self._is_rejected = True

    def write_sync_point(self, content: SyncPoint) -> None:
        """Write `sync_point_file`, after a flush of everything before it. Raises StoreIOError."""
        if self._sync_point_file is not None and content != self.sync_point:
            self._sync_point_file.write(content)
            self.sync_point = content

    def last_named(self) -> int:
        """Return the byte of the log at which the record of the newest key begins; -1 if the last
        entry and the header of the last file do not agree. Raises StoreIOError."""
        last = self._files[-1] if self._files else None
        if last is None or last.path is None or not 1 < last.index_count <= self.geometry[1]:
            return -1
        number = last.index_count - 1
        named, _ = entry_phy_offsets(self._env, last.path, self.geometry[0], number)
        return named if named == last.end_phy_offset else -1

    def write_continued_again(self, again: Callable[[str], None]) -> None:
        """Call `again` with the path of the file that is continued, if it is still used."""
        index_file = self.continued
        if index_file in self._files and index_file is not None and index_file.path is not None:
            again(index_file.path)

    def erase_rest(self) -> None:
        """Zero what the file that is continued has after its entries: a cut log lacks those keys.

        Raises StoreIOError. Threads: no thread builds.
        """
        index_file = self.continued
        if index_file is None or index_file.path is None:
            return
        if index_file in self._files:
            size, end = index_file.used_size, index_file.file_size
            self._changes.add(partial(zero_rest, self._env, index_file.path, size, end))

    def _check_order(self, kept: list[FoundIndexFile], dropped: list[FoundIndexFile]) -> None:
        """Note the first file that does not precede the later ones in the log: keys missing between
        them could not be put again, and 4.9.3 relies on the order of names."""
        first = first_out_of_order([*kept, *dropped])
        if first < len(kept):
            end = kept[first].end_phy_offset
            reason = f"its keys reach to byte {end} of the log, after the begin of a later file"
            self.wrong.setdefault(kept[first].path, reason)

    def _divide(
        self, found: list[FoundIndexFile]
    ) -> tuple[list[FoundIndexFile], list[FoundIndexFile]]:
        """Return the files to open, and those whose keys are put again from the log.

        Keys are put in the order of the log, so that all files after a wrong one are put again too.
        A read-only store does that, in memory, only for a file that was cut.
        """
        short = len(found)
        if self._read_only:
            short = next((n for n, f in enumerate(found) if f.size < self.file_size), short)
        left_out = {f.path for f in found[:short]} if self._read_only else set()
        for path, reason in self.wrong.items():
            extra = REPORTED_ELSEWHERE if path in left_out else None
            LOG.warning("%s: %s; it is derived from the log", path, reason, extra=extra)
        if self._read_only:
            return [f for f in found[:short] if f.path not in self.wrong], found[short:]
        first = next((n for n, f in enumerate(found) if f.path in self.wrong), len(found))
        return found[:first], found[first:]

    def notices(self) -> list[str]:
        """Return warnings for readers about files that `load` left out."""
        return [
            f"{path}: {reason}; index files are derived from the log: queries search the log"
            " instead, and opening the store for writing rebuilds the file"
            for path, reason in self.left_out.items()
        ]

    @property
    def file_size(self) -> int:
        """Bytes of one file."""
        return index_file_size(*self.geometry)

    def _open(self, path: str) -> IndexFile:
        return IndexFile(self._env, path, *self.geometry, mode=self._changes.mode)

    # ---- files ---------------------------------------------------------------------------------
    @property
    def geometry(self) -> tuple[int, int]:
        """(maxHashSlotNum, maxIndexNum) as given, or as `load` inferred them."""
        if self._geometry is None:
            self._geometry = infer_geometry(self._env, [], self._configured)
        return self._geometry

    @property
    def files(self) -> tuple[IndexFile, ...]:
        """The open files, oldest first."""
        return self._files

    @property
    def end_phy_offset(self) -> int:
        """The byte of the log of the last record of which the index has keys; -1 without files."""
        return max((index_file.end_phy_offset for index_file in self._files), default=-1)

    @property
    def total_size(self) -> int:
        """Bytes of all files, holes included. Source: RocketMQ 4.9.3 IndexService#getTotalSize."""
        return sum(index_file.file_size for index_file in self._files)

    def get_and_create_last_index_file(self) -> IndexFile:
        """Return the file for the next key, open for writing.

        When the last file is full, a new one is made, named by the local time, whose header starts
        from the full file's end; a thread flushes the full file, and then moves the checkpoint's
        index_msg_timestamp.

        Raises: StoreIOError. Threads: the building thread.
        Source: RocketMQ 4.9.3 IndexService#getAndCreateLastIndexFile.
        Differs: a name is never used twice, and never sorts before an older one (clock set back).
        """
        previous = self._files[-1] if self._files else None
        is_limited = previous is not None and previous.is_limited
        if previous is not None and not previous.is_write_full() and not is_limited:
            before = max((f.end_timestamp for f in self._files[:-1]), default=0)
            uncover = self._checkpoint.uncover_index_file
            self._changes.add(partial(uncover, previous.end_timestamp, before))
            previous.open_for_writing()
            return previous
        index_file = self._create(previous)
        with self._lock:
            self._files = (*self._files, index_file)
        if previous is not None:
            self._flush_later(previous)
        return index_file

    def file_in_memory(self) -> IndexFile:
        """Return the file for the next key of a reader: never one that is read from disk."""
        last = self._files[-1] if self._files else None
        if last is not None and last.mode == "read":
            return self.begin_new_file(last)
        return self.get_and_create_last_index_file()

    def begin_new_file(self, like_after: IndexFile | None) -> IndexFile:
        """Make a new file, though the last one has room, whose header starts as if after
        `like_after`.

        Keys that 4.9.3 would leave out are put into files of their own: entries count seconds from
        the first entry of their file, so that other files stay equal to those of 4.9.3.

        Raises StoreIOError. Threads: the building thread.
        """
        last = self._files[-1] if self._files else None
        index_file = self._create(like_after)
        with self._lock:
            self._files = (*self._files, index_file)
        if last is not None and last is not like_after:
            self._flush_later(last)
        return index_file

    def _create(self, previous: IndexFile | None, name: str = "") -> IndexFile:
        name = name or self._new_name()
        end_phy_offset = previous.end_phy_offset if previous is not None else 0
        end_timestamp = previous.end_timestamp if previous is not None else 0
        path = None if self._read_only else f"{self.root}/{name}"
        if path is not None:
            self._env.make_directories(self.root)
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
        while name in taken or self._env.exists(f"{self.root}/{name}"):
            name = self._next_name(name)
        return name

    @staticmethod
    def _next_name(name: str) -> str:
        # The next number; a name need not be a valid time.
        return f"{int(name) + 1:0{_NAME_LENGTH}d}"

    def retry_get_and_create_index_file(self) -> IndexFile | None:
        """As `get_and_create_last_index_file`, with three tries; return None when all failed.

        A failure sets the index bit of the running flags and `last_error`; further calls return
        None at once until `retry_backoff_ms` have passed.

        Threads: the building thread.
        Source: RocketMQ 4.9.3 IndexService#retryGetAndCreateIndexFile.
        Differs: 4.9.3 throws, and tries again for every message.
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
        """Allow puts after an error; return False when a flush has failed and may have lost
        keys.
        """
        self._retry_after_ns = 0
        return self._flushing_thread.error is None

    def _failed(self, error: StoreError | None) -> None:
        self.last_error = None if error is None else without_frames(error)
        self._retry_after_ns = self._env.monotonic_ns() + self.retry_backoff_ms * 1_000_000
        self._flags.make_index_file_error(error)

    # ---- building ------------------------------------------------------------------------------
    def build_index(self, request: DispatchRequest) -> bool:
        """Put the keys of one record.

        Returns False when they could not be put: see `last_error`. The caller should put the same
        record again later: keys are not put twice.

        Threads: the building thread.
        Source: RocketMQ 4.9.3 IndexService#buildIndex.
        Differs: of the last record of the index only missing keys are put.
        """
        index_file = self.retry_get_and_create_index_file()
        if index_file is None:
            return False
        phy_offset = request.commit_log_offset
        if phy_offset < index_file.end_phy_offset:
            return True
        if request.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK_TYPE:
            return True
        key_hashes = index_key_hashes(request.topic, request.uniq_key, request.keys)
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

    def _already_indexed(self, phy_offset: int) -> int:
        """Return how many keys of the last record are put: the entries at the end that name it."""
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
            raise StoreFormatError(f"max_num {max_num}: must not be negative")

    def query_offset(
        self,
        topic: str,
        key: str,
        max_num: int,
        begin: int,
        end: int,
        limit: int = MAX_MSGS_NUM_BATCH,
        has_expired: Callable[[int], bool] = lambda phy_offset: False,
    ) -> QueryOffsetResult:
        """Return physical offsets of records that may have a topic and key, as 4.9.3 does.

        Parameters
        ----------
        max_num : int, the most that are returned, up to `limit`
        begin, end : int, ms, both inclusive
        has_expired : callable(phy_offset), whether the log has lost that byte: an index file that
            another process has deleted is passed over if its last record has expired

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
                try:
                    found += index_file.select_hash(key_hash, max_num - len(found), begin, end)
                except StoreIOError as error:
                    end_phy_offset = index_file.end_phy_offset
                    if not (was_removed(error) and has_expired(end_phy_offset)):
                        raise
            if index_file.begin_timestamp < begin or len(found) >= max_num:
                break
        return result

    # ---- flush, removal ------------------------------------------------------------------------
    def _flush_later(self, index_file: IndexFile) -> None:
        self._changes.add(partial(self._flushing_thread.add, index_file))

    def wait_flushed(self) -> None:
        """Wait until full files are flushed; `flush` raises the error of a failed one."""
        self._flushing_thread.wait_flushed()

    def flush(self) -> None:
        """Flush every key put so far to the device.

        Raises: StoreIOError, also for a full file that could not be flushed earlier.
        Durability: all keys put before the call survive a power cut once it returns.
        """
        self.wait_flushed()
        for index_file in self._files:
            index_file.flush()
        if self._flushing_thread.error is not None:
            raise without_frames(self._flushing_thread.error)

    def delete_expired_file(self, min_phy_offset: int) -> int:
        """Remove the oldest files that only name records before `min_phy_offset`, not the last
        file.

        Returns how many. Raises StoreIOError.
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

    def begin_of_files_after(self, phy_offset: int) -> int:
        """Return the physical offset from which on keys must be put again after `drop_files_after`;
        -1: none are dropped.

        """
        first = self._first_after(phy_offset)
        if first == len(self._files):
            return self._lost_from if self._lost_from < phy_offset else 0
        if first > 0:
            return self._files[first - 1].end_phy_offset
        begin = self._files[0].begin_phy_offset
        return begin if 0 <= begin < phy_offset else 0

    def drop_files_after(self, phy_offset: int, *, replays: bool = False) -> None:
        """Remove (read-only: skip) the files from the first one on that names a record at or after
        `phy_offset`, by its header, and last files that lost their header. Files that had lost
        their end are moved to ROOT/.broken.

        A log that was cut gets new records there, which such a file would count as indexed; and
        missing keys of a file can only be put when no later file exists. With `replays`, a last
        file without entries is removed too: its header does not cover the previous ones.

        Raises: StoreIOError. Threads: no thread builds.
        """
        first = self._first_after(phy_offset)
        while replays and first > 1 and _is_blank(self._files[first - 1]):
            first -= 1
        dropped = self._files[first:]
        with self._lock:
            self._files = self._files[:first]
        for index_file in dropped:
            index_file.destroy(3000)
        if dropped:
            self._changes.add(partial(self._env.fsync_directory, self.root))
        if self._set_aside:
            self._changes.add(partial(set_aside, self._env, self.root, self._set_aside))
        self._set_aside, self._lost_from = [], -1
        self.indexed_phy_offset = self.end_phy_offset

    def uncover_missing_files(self) -> None:
        """Have the checkpoint cover no file that is missing.

        A later file may end at the same time, or earlier if the clock was set back, and would count
        as durable after the next crash. Raises StoreIOError. Threads: no thread builds.
        """
        ends = [index_file.end_timestamp for index_file in self._files]
        covered = self._checkpoint.index_msg_timestamp
        if covered not in ends:
            uncover = self._checkpoint.uncover_index_file
            self._changes.add(partial(uncover, covered, ends[-1] if ends else 0))

    def files_before(self, phy_offset: int) -> tuple[IndexFile, ...]:
        """Return the files that `drop_files_after(phy_offset)` keeps."""
        return self._files[: self._first_after(phy_offset)]

    def fill_gap(self, chunks: Iterable[Columns], end: int) -> int:
        """Put keys of records between two files into new files between them; or keys of records
        after every file into new last files.

        When no name is left between the two, the later files are removed and `has_dropped` is True:
        then the caller must put the keys of records after the last file again.

        Parameters
        ----------
        chunks : of (phy_offset int64[n], key_hash int32[n], store_timestamp int64[n]), bytes of the
            log and Unix ms, in the order of the log
        end : int, physical offset of the first record of the later file

        Returns
        -------
        int, how many were put

        Raises StoreIOError. Threads: no thread builds.
        Durability: the keys are durable on return. A crash meanwhile leaves a checkpoint that has
        the index rebuilt from there.
        """
        self.wait_flushed()  # the flushing thread moves the checkpoint's time too
        self.has_dropped = False
        checkpoint, covered = self._checkpoint, self._checkpoint.index_msg_timestamp
        added: IndexFile | None = None
        at = count = low = high = 0
        for columns in chunks:
            done = 0
            while done < len(columns[0]):
                if added is None or added.is_write_full():
                    if added is None:
                        later = (n for n, f in enumerate(self._files) if f.begin_phy_offset >= end)
                        at = next(later, len(self._files))
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
                phy_offsets, key_hashes, times = columns
                put = added.put_hashes(key_hashes[done:], phy_offsets[done:], times[done:])
                done, count = done + put, count + put
        if added is not None:
            added.flush()
        return self._gap_filled(count, covered)

    def _drop_from(self, at: int) -> None:
        """Remove the files from number `at` on, whose keys are put again."""
        dropped = self._files[at:]
        with self._lock:
            self._files = self._files[:at]
        for index_file in dropped:
            index_file.destroy(3000)
        self._env.fsync_directory(self.root)
        self.has_dropped = True

    def _gap_filled(self, count: int, covered: int) -> int:
        self._env.fsync_directory(self.root)
        self.indexed_phy_offset = self.end_phy_offset
        self._checkpoint.index_msg_timestamp = covered
        self._checkpoint.flush()
        return count

    def forget_files(self) -> None:
        """Start empty, because the directory was moved away. Threads: no thread builds."""
        self._files, self.indexed_phy_offset = (), -1

    def _first_after(self, phy_offset: int) -> int:
        """Return the number of the first file that `drop_files_after` removes."""
        later = (
            number
            for number, index_file in enumerate(self._files)
            if (index_file.index_count > 1 and index_file.end_phy_offset >= phy_offset)
            or (
                index_file is self.continued
                and (self._is_rejected or self._synced_phy_offset > phy_offset)
            )
        )
        first = next(later, len(self._files))
        while first > 0 and self._has_lost_header(self._files[first - 1]):
            first -= 1
        return first

    def _has_lost_header(self, index_file: IndexFile) -> bool:
        path = index_file.path
        if path is None or not _is_blank(index_file):
            return False
        return has_lost_header(self._env, path, index_file.hash_slot_num)

    def destroy(self) -> None:
        """Remove every file. Threads: no thread builds.

        Raises: StoreIOError. Source: RocketMQ 4.9.3 IndexService#destroy.
        """
        self.wait_flushed()
        for index_file in self._files:
            index_file.destroy(3000)
        with self._lock:
            self._files = ()

    def shutdown(self) -> None:
        """Flush and close every file. Threads: no thread builds; a second call is a no-op.

        Raises: StoreIOError, after every file was closed.
        Differs: 4.9.3 leaves the open file to the page cache.
        """
        self._stopping.set()
        self.wait_flushed()
        self._flushing_thread.shutdown(None)
        with self._lock:
            files, self._files = self._files, ()
        failure = self._flushing_thread.error
        for index_file in files:
            try:
                index_file.shutdown()
            except StoreError as error:
                failure = failure or error
        if failure is not None:
            self._flushing_thread.error = None
            raise failure
