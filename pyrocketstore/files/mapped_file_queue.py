"""MappedFileQueue: a file sequence, files of one size that together hold one sequence of bytes."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from pyrocketstore.arguments.scalars import INT64_MAX, exact_int
from pyrocketstore.config.file_sizes import (
    MAX_FILE_END,
    MismatchedFile,
    has_possible_name,
    mismatch_of,
)
from pyrocketstore.display import REPORTED_ELSEWHERE, logger
from pyrocketstore.errors import StoreCorruptionError, StoreIOError, StoreTypeError
from pyrocketstore.files._mapped_file import FileSequence, MappedFile
from pyrocketstore.files.allocate_mapped_file_service import (
    AllocateMappedFileService,
    file_settings,
)
from pyrocketstore.files.file_systems import Unflushed
from pyrocketstore.files.planned_changes import PlannedChanges, changes_of
from pyrocketstore.system.env import READ_SIZE, Env, check_env

__all__ = [
    "AllocateMappedFileService",
    "MappedFileQueue",
    "check_mapped_file",
    "file_name_of",
    "has_data",
]

LOG = logger(__name__)

FILE_NAME = re.compile(r"[0-9]{20}", re.ASCII)
MAX_OFFSET = (1 << 63) - 1
#: One round deletes at most this many files.
DELETE_FILES_BATCH_MAX = 10
#: One thread makes the files of a sequence with a sole writer.
_NO_LOCK = contextlib.nullcontext()
#: Accepted and ignored: no file waits for its readers (ms).
DESTROY_INTERVAL_MS = 1000


#: After a clean exit recovery scans this many files at the end of a sequence.
LAST_FILES = 3


def check_mapped_file(value: object) -> None:
    """Raise StoreTypeError for a value that is not a MappedFile."""
    if not isinstance(value, MappedFile):
        raise StoreTypeError(f"mapped_file must be a MappedFile, not {type(value).__name__}")


def has_data(env: Env, file: MappedFile, begin: int, end: int) -> bool:
    """Return whether a byte of [begin, end) of a file is not 0. Raises StoreIOError."""
    for start, stop in env.data_ranges(file.path, begin, end):
        for position in range(start, stop, READ_SIZE):
            chunk = file.read(position, min(READ_SIZE, stop - position))
            if chunk.count(0) != len(chunk):
                return True
    return False


def file_name_of(offset: int) -> str:
    """Return the name of the file that begins at byte `offset` of the sequence."""
    return f"{offset:020d}"


class MappedFileQueue:
    """Files named after the first byte they hold, each `mapped_file_size` bytes long.

    Parameters
    ----------
    env : Env
    store_path : str, the directory
    mapped_file_size : int, bytes
    read_only : bool; files are read by pread, new ones are in memory, the disk is not changed
    allocate_service : AllocateMappedFileService | None, makes files ahead of need
    confirm_step, populate, zero_fill : for MappedFile
    sole_writer : bool; one thread makes, allocates and writes these files, and new files become
        durable with their first flush
    by_write : bool; nothing is stored into a mapping, see MappedFile
    derived : bool; the content can be rebuilt: `load` collects files of a wrong length or name in
        `mismatched` instead of raising
    changes : while it is planning, deletions and zeros on disk wait for it; the sequence has
        changed already. None: as `read_only` says, and they are made at once

    Attributes: `mismatched`, files that `load` did not open; `flushed_where` and
    `committed_where`, bytes of the sequence; `store_timestamp`, store time (Unix ms) up to which
    everything is flushed; `mapped_files`, a FileSequence, by offset.

    Raises StoreIOError; StoreTypeError and StoreFormatError for a wrong argument.
    Threads: any reads; one at a time appends.
    Source: RocketMQ 4.9.3 MappedFileQueue.
    """

    def __init__(
        self,
        env: Env,
        store_path: str,
        mapped_file_size: int,
        *,
        read_only: bool = False,
        allocate_service: AllocateMappedFileService | None = None,
        confirm_step: int = 65536,
        populate: int = 0,
        zero_fill: str = "no",
        sole_writer: bool = False,
        by_write: bool = False,
        derived: bool = False,
        changes: PlannedChanges | None = None,
    ) -> None:
        check_env(env)
        exact_int("mapped_file_size", mapped_file_size, 1, INT64_MAX)
        self.env = env
        self.store_path = store_path
        self.mapped_file_size = mapped_file_size
        self.derived = derived
        self.changes = changes_of(read_only=read_only) if changes is None else changes
        self.mismatched: Sequence[MismatchedFile] = ()
        self.allocate_service = allocate_service
        self.settings = file_settings(
            mapped_file_size, confirm_step, populate, zero_fill, sole_writer, by_write
        )
        self.mapped_files = FileSequence()
        self.flushed_where = 0
        self.committed_where = 0
        self.store_timestamp = 0
        #: first byte of the sequence when files were last found deleted by their owner, -1 before
        self.begin_on_disk = -1
        #: directory of the last file that was deleted as the oldest; None: by another process
        self._deleted_from: str | None = None
        #: called with a file before it is deleted as the oldest one: it has durable what depends
        #: on the content of the file, or raises StoreError, and the file stays
        self.before_deletion: Callable[[MappedFile], None] = lambda mapped_file: None
        self._lock = threading.Lock()  # over changes of mapped_files
        self._create_lock = _NO_LOCK if sole_writer else threading.Lock()

    # ---- loading and making files -----------------------------------------------------------

    def load(self) -> bool:
        """Open the files of the directory; each counts as full. Returns True.

        An empty last file, as a crash leaves it, is skipped (and deleted unless read-only); with
        `sole_writer`, whose new files are not durable at once, every empty file.

        Raises StoreCorruptionError naming a file of another length; with `derived`, the file is
        added to `mismatched` instead.
        Source: RocketMQ 4.9.3 MappedFileQueue#load.
        Differs: only files whose names have 20 digits count.
        """
        found = self._find_files()
        for entry in reversed(found.copy()):
            _, size, path = entry
            if size > 0:
                if self.settings.sole_writer:
                    continue
                break
            found.remove(entry)
            LOG.warning("%s: the file is empty and is skipped", path)
            self.changes.add(partial(self.env.remove, path))
        loaded = []
        mismatched = []
        for name, size, path in found:
            reason = mismatch_of(int(name), size, self.mapped_file_size)
            if reason is not None:
                mismatched.append(MismatchedFile(path, int(name), size, reason))
                continue
            mapped_file = self._open(path)
            mapped_file.set_positions(size)
            loaded.append(mapped_file)
        self.mismatched = mismatched
        if mismatched and not self.derived:
            self._load_partial(loaded)
        with self._lock:
            self.mapped_files = FileSequence(loaded)
        return True

    def load_only(self, offset: int, size: int) -> None:
        """Take over the one file of the directory, which begins at `offset` and has `size` written
        bytes, without a look at the disk: the caller has opened and read it."""
        mapped_file = self._open(f"{self.store_path}/{file_name_of(offset)}", checked=True)
        mapped_file.set_positions(size)
        self.mismatched = ()
        with self._lock:
            self.mapped_files = FileSequence([mapped_file])

    def _load_partial(self, loaded: list[MappedFile]) -> None:
        """Open the readable part of mismatched files, if the sequence can be read like that."""
        first, size = self.mismatched[0], self.mapped_file_size
        readable = [f for f in self.mismatched if f.size and has_possible_name(f.offset, size)]
        is_single = len(self.mismatched) == 1 and bool(readable) and first.size < size
        error = StoreCorruptionError(first.path, -1, f"{first.reason}. {self._advice(first)}")
        if not (loaded or is_single):
            raise error
        self.changes.accept(error)
        for file in self.mismatched:
            LOG.error("%s: %s", file.path, file.reason, extra=REPORTED_ELSEWHERE)
        for file in readable:
            mapped_file = self.settings.open(self.env, file.path, mode="read", partial=True)
            mapped_file.set_positions(min(file.size, size))
            loaded.append(mapped_file)
        loaded.sort(key=lambda mapped_file: mapped_file.file_from_offset)

    def _advice(self, file: MismatchedFile) -> str:
        """Return advice for a file that cannot be rebuilt."""
        if len({each.size for each in self.mismatched}) == 1 < len(self.mismatched):
            return (
                "All files have another length: open the store with the mapped_file_size_commit_log"
                " (mappedFileSizeCommitLog) that it was written with"
            )
        advice = (
            "It is part of the log, which cannot be rebuilt: restore it from a copy. Opened"
            " read-only, the store reads the bytes that the file has"
        )
        size = self.mapped_file_size
        if file.size < size and has_possible_name(file.offset, size):
            advice += (
                ". If no copy exists, save first the messages that such an opening reads. Then"
                f" `truncate -s {size}` fills the file with zeros, and gives up the messages that"
                " it lacks. If the next opening scans this file (after a clean stop one of the"
                " last 3 files, otherwise a file from the checkpoint's time on), it gives up all"
                " later messages too: the log then ends in it, and later records are moved to"
                " `.broken`. Otherwise only the messages that the file lacks are lost, and `verify`"
                " reports its damaged bytes"
            )
        return advice

    def add_file(self, mapped_file: MappedFile) -> None:
        """Add a repaired file of `mismatched`. Raises StoreTypeError. Threads: before the sequence
        is used."""
        check_mapped_file(mapped_file)
        with self._lock:
            files = [*self.mapped_files, mapped_file]
            files.sort(key=lambda file: file.file_from_offset)
            self.mapped_files = FileSequence(files)

    def get_last_mapped_file(
        self,
        start_offset: int | None = None,
        need_create: bool = True,
        *,
        mapped: bool = False,
    ) -> MappedFile | None:
        """Return the last file; with a `start_offset` (bytes), one with room, made if necessary.

        `mapped`, for a `sole_writer`: a new file is mapped, and its first page allocated, at once.
        None when there is none and none may be made. Raises StoreIOError when it cannot be made.
        Source: RocketMQ 4.9.3 MappedFileQueue#getLastMappedFile.
        """
        files = self.mapped_files
        last = files[-1] if files else None
        if start_offset is not None and (last is None or last.is_full()):
            if not need_create:
                return None
            return self._create_next(start_offset, mapped)
        if last is not None and self.allocate_service is not None and not last.is_full():
            self.allocate_service.keep_ahead(last)
        return last

    def _create_next(self, start_offset: int, mapped: bool) -> MappedFile:
        with self._create_lock:
            files = self.mapped_files
            if files and not files[-1].is_full():
                return files[-1]  # another thread has made it
            if files:
                offset = files[-1].file_from_offset + self.mapped_file_size
            else:
                offset = start_offset - start_offset % self.mapped_file_size
            mapped_file = self._make(offset, mapped)
            with self._lock:
                self.mapped_files = self.mapped_files.with_last(mapped_file)
            return mapped_file

    def _make(self, offset: int, mapped: bool) -> MappedFile:
        size = self.mapped_file_size
        if offset > MAX_FILE_END - size:
            raise StoreIOError(errno.EFBIG, "create", f"{self.store_path}/{file_name_of(offset)}")
        path = self._new_path(offset)
        if self.allocate_service is None:
            return self.changes.create(self.env, path, self.settings, mapped=mapped)
        mapped_file = self.allocate_service.put_request_and_return_mapped_file(
            path,
            self._new_path(offset + size) if offset + size <= MAX_FILE_END - size else None,
            self.settings,
        )
        if mapped_file is None:
            deficient = self.allocate_service.is_transient_store_pool_deficient()
            raise StoreIOError(errno.ENOBUFS if deficient else errno.ETIMEDOUT, "create", path)
        return mapped_file

    def _open(self, path: str, *, checked: bool = False) -> MappedFile:
        return self.settings.open(self.env, path, mode=self.changes.mode, checked=checked)

    def _find_files(self) -> list[tuple[str, int, str]]:
        """Return (name, bytes, path) of the files on disk, by name."""
        return self._files_in(self.store_path)

    def _files_in(self, directory: str) -> list[tuple[str, int, str]]:
        """Raises StoreIOError for a name of the sequence that is not a regular file."""
        follow = self.changes.read_only
        files = self.env.files_named(
            directory, lambda name: FILE_NAME.fullmatch(name) is not None, follow=follow
        )
        return [(name, size, f"{directory}/{name}") for name, size in files]

    def _new_path(self, offset: int) -> str:
        """Return the path of the new file that begins at byte `offset`."""
        return f"{self.store_path}/{file_name_of(offset)}"

    def _directories(self) -> tuple[str, ...]:
        """Return the directories of new files."""
        return (self.store_path,)

    def _all_directories(self) -> Iterable[str]:
        """Return the directories of all files."""
        return self._directories()

    def open_from(self, offset: int) -> list[MappedFile]:
        """Read-only: open the files on disk that begin at byte `offset` or later, in order.

        Their positions are 0, and the sequence does not change. Empty files, and all files after
        the first one of them, are left out: their owner is making them.

        Raises StoreIOError; StoreCorruptionError for a file of another length or name.
        """
        opened = []
        for name, size, path in self._find_files():
            if int(name) < offset:
                continue
            if size == 0:
                break
            reason = mismatch_of(int(name), size, self.mapped_file_size)
            if reason is not None:
                raise StoreCorruptionError(path, -1, reason)
            opened.append(self._open(path))
        return opened

    def replace_from(self, files: Sequence[MappedFile]) -> None:
        """Put `files` in the place of the files from the first one's offset on.

        Readers find the old sequence or the new one. Threads: any.
        """
        first = files[0].file_from_offset
        with self._lock:
            kept = [f for f in self.mapped_files if f.file_from_offset < first]
            self.mapped_files = FileSequence([*kept, *files])

    def repaired(self, in_memory: MappedFile) -> None:
        """Put the file on disk, which was repaired, in the place of its planned content.

        Nothing happens to a file that was dropped meanwhile. Raises StoreIOError.
        """
        if in_memory not in self.mapped_files:
            return
        mapped_file = self._open(in_memory.path)
        mapped_file.set_positions(in_memory.wrote)
        with self._lock:
            self.mapped_files = FileSequence(
                mapped_file if f is in_memory else f for f in self.mapped_files
            )

    # ---- finding ----------------------------------------------------------------------------

    def get_first_mapped_file(self) -> MappedFile | None:
        """Return the file with the smallest offset, None without files."""
        files = self.mapped_files
        return files[0] if files else None

    def find_mapped_file_by_offset(
        self, offset: int, return_first_on_not_found: bool = False
    ) -> MappedFile | None:
        """Return the file that holds byte `offset` of the sequence, or the first one or None.

        Source: RocketMQ 4.9.3 MappedFileQueue#findMappedFileByOffset.
        """
        files = self.mapped_files
        if not files:
            return None
        size = self.mapped_file_size
        index = offset // size - files[0].file_from_offset // size
        if 0 <= index < len(files) and 0 <= offset - files[index].file_from_offset < size:
            return files[index]
        for mapped_file in files:  # a file is missing in between
            if 0 <= offset - mapped_file.file_from_offset < size:
                return mapped_file
        return files[0] if return_first_on_not_found else None

    def get_mapped_file_by_time(self, timestamp: int) -> MappedFile | None:
        """Return the first file modified at or after `timestamp` (Unix ms), else the last one."""
        files = self.mapped_files
        for mapped_file in files:
            try:
                if mapped_file.last_modified_ms() >= timestamp:
                    return mapped_file
            except StoreIOError as error:  # the owner has deleted it
                if not self.changes.is_of_owner(error):
                    raise
        return files[-1] if files else None

    def check_self(self) -> bool:
        """Return True when every file begins where the previous one ends; log gaps."""
        whole = True
        files = self.mapped_files
        for before, after in itertools.pairwise(files):
            if after.file_from_offset - before.file_from_offset != self.mapped_file_size:
                LOG.error("%s: is not the file after %s", after.path, before.path)
                whole = False
        return whole

    def forget_deleted(self) -> bool:
        """Forget first files that the owner of a read-only store has deleted; return whether there
        were any.

        Raises StoreIOError. Threads: any.
        """
        first = self.get_first_mapped_file()
        if first is None or not self.changes.is_gone(self.env, first.path):
            return False
        found = [int(name) for name, size, _ in self._find_files() if size]
        if not found:
            return False
        with self._lock:
            begin = min(found)
            kept = FileSequence(f for f in self.mapped_files if f.file_from_offset >= begin)
            dropped = self.mapped_files[: len(self.mapped_files) - len(kept)]
            self.begin_on_disk = begin
            self.mapped_files = kept
        for mapped_file in dropped:  # else the device would keep the room of a deleted file
            mapped_file.close_kept()
        return bool(dropped)

    # ---- positions --------------------------------------------------------------------------

    def get_min_offset(self) -> int:
        """Return the first byte of the sequence, -1 without files."""
        first = self.get_first_mapped_file()
        return -1 if first is None else first.file_from_offset

    def get_max_offset(self) -> int:
        """Return the offset after the last byte that readers may see, 0 without files."""
        files = self.mapped_files
        last = len(files) - 1
        while last > 0 and files[last - 1].has_buffer:
            last -= 1  # a file counts once the previous one is committed as a whole
        return files[last].file_from_offset + files[last].get_read_position() if files else 0

    def get_max_wrote_position(self) -> int:
        """Return the offset after the last byte written, 0 without files."""
        files = self.mapped_files
        return files[-1].file_from_offset + files[-1].appended if files else 0

    def remain_how_many_data_to_commit(self) -> int:
        """Return the bytes that are written and not committed."""
        return self.get_max_wrote_position() - self.committed_where

    def remain_how_many_data_to_flush(self) -> int:
        """Return the bytes that are readable and not flushed."""
        return self.get_max_offset() - self.flushed_where

    def how_much_fall_behind(self) -> int:
        """Return the bytes that are written and not flushed; 0 before the first flush."""
        if self.flushed_where == 0:
            return 0
        return self.get_max_wrote_position() - self.flushed_where

    def get_mapped_memory_size(self) -> int:
        """Return the bytes of all files that are available."""
        return sum(self.mapped_file_size for file in self.mapped_files if file.is_available())

    # ---- flush and commit -------------------------------------------------------------------

    def flush(self, flush_least_pages: int) -> bool:
        """Flush the file that contains `flushed_where`; return True when it did not move.

        Raises StoreIOError; `flushed_where` does not move then.
        Durability: everything below `flushed_where` is durable.
        Source: RocketMQ 4.9.3 MappedFileQueue#flush.
        Differs: continues after missing files.
        """
        start = self.flushed_where
        mapped_file = self._file_at_or_after(start)
        if mapped_file is None:
            return True
        timestamp = mapped_file.store_timestamp
        if mapped_file.is_available():
            where = mapped_file.file_from_offset + mapped_file.flush(flush_least_pages)
        else:
            where = mapped_file.file_from_offset + self.mapped_file_size
        self.flushed_where = where
        if flush_least_pages == 0:
            self.store_timestamp = timestamp
        return where == start

    def unflushed(self) -> list[Unflushed]:
        """Return the files that a thorough flush would write, for FileSystems.flush."""
        found = []
        for mapped_file in reversed(self.mapped_files):
            if mapped_file.file_from_offset + self.mapped_file_size <= self.flushed_where:
                break
            positions = mapped_file.unflushed()
            if positions is not None:
                found.append(Unflushed(mapped_file, *positions))
        return found

    def pass_flushed(self) -> None:
        """Move `flushed_where` over the bytes whose files are flushed."""
        while (mapped_file := self._file_at_or_after(self.flushed_where)) is not None:
            is_there = mapped_file.is_available()
            flushed = mapped_file.flushed if is_there else self.mapped_file_size
            where = mapped_file.file_from_offset + flushed
            if where <= self.flushed_where:
                return
            self.flushed_where = where

    def commit(self, commit_least_pages: int) -> bool:
        """Copy the buffer of the file that contains `committed_where` into the file.

        Returns True when `committed_where` did not move. Without a buffer written bytes are
        committed already. Raises StoreIOError; `committed_where` does not move then, and the next
        call tries again.
        Source: RocketMQ 4.9.3 MappedFileQueue#commit. Differs: continues after missing files.
        """
        start = self.committed_where
        mapped_file = self._file_at_or_after(start)
        if mapped_file is None:
            return True
        where = mapped_file.file_from_offset + mapped_file.commit(commit_least_pages)
        self.committed_where = where
        return where == start

    def _file_at_or_after(self, start: int) -> MappedFile | None:
        mapped_file = self.find_mapped_file_by_offset(start, start == 0)
        if mapped_file is None:
            behind = (f for f in self.mapped_files if f.file_from_offset > start)
            mapped_file = next(behind, None)
        return mapped_file

    # ---- cutting and deleting ---------------------------------------------------------------

    def truncate_dirty_files(self, offset: int) -> None:
        """End the sequence at byte `offset`: delete later files, and zero the rest of its file.

        A file that ends at `offset` stays full. Read-only: only positions change.

        Raises StoreIOError. Source: RocketMQ 4.9.3 MappedFileQueue#truncateDirtyFiles.
        Differs: 4.9.3 leaves the bytes after the cut, and may find messages in them again.
        """
        size = self.mapped_file_size
        # From the last file on, and each durably, so that a crash leaves no gap.
        for mapped_file in reversed(self.mapped_files):
            start = mapped_file.file_from_offset
            if start + size <= offset:
                break
            if offset >= start:
                mapped_file.set_positions(offset - start)
                if mapped_file.mode == "memory":
                    mapped_file.zero_tail(offset - start)
                elif mapped_file.mode != "read":
                    self.changes.add(partial(mapped_file.zero_tail, offset - start))
            else:
                self._destroy_last(mapped_file)

    def fsync_directory(self) -> None:
        """Make the names in the directories durable, so that deleted files do not come back."""
        for directory in self._all_directories():
            if self.env.is_dir(directory):
                self.changes.add(partial(self.env.fsync_directory, directory))

    def reset_offset(self, offset: int) -> bool:
        """End the sequence at `offset`, unless more than two files of bytes are after it.

        Source: RocketMQ 4.9.3 MappedFileQueue#resetOffset. Differs: 4.9.3 changes nothing.
        """
        if self.get_max_wrote_position() - offset > 2 * self.mapped_file_size:
            return False
        self.truncate_dirty_files(offset)
        return True

    def delete_files_before(self, offset: int) -> int:
        """Delete the files that end before byte `offset`; return how many."""
        count = 0
        for mapped_file in self.mapped_files:
            if mapped_file.file_from_offset + self.mapped_file_size >= offset:
                break
            self._delete_oldest(mapped_file)
            count += 1
        return count

    def delete_expired_file_by_time(
        self,
        expired_ms: int,
        delete_files_interval_ms: int = 0,
        interval_forcibly_ms: int = 0,
        clean_immediately: bool = False,
        before: int = MAX_OFFSET,
    ) -> int:
        """Delete files not modified for `expired_ms`, oldest first; return how many.

        The last file and files that end after byte `before` are kept; one call deletes at most 10.
        Raises StoreIOError for a file that cannot be deleted.
        Source: RocketMQ 4.9.3 MappedFileQueue#deleteExpiredFileByTime.
        """
        candidates = self.mapped_files[:-1][:DELETE_FILES_BATCH_MAX]
        count = 0
        for mapped_file in candidates:
            if mapped_file.file_from_offset + self.mapped_file_size > before:
                break
            expires = mapped_file.last_modified_ms() + expired_ms
            if self.env.now_ms() < expires and not clean_immediately:
                break
            if count and delete_files_interval_ms > 0:
                self.env.sleep(delete_files_interval_ms / 1000)
            self._delete_oldest(mapped_file, interval_forcibly_ms)
            count += 1
        return count

    def delete_first_file(self, mapped_file: MappedFile) -> bool:
        """Delete a file if it is the first and not the last one; return whether it was.

        Raises StoreIOError: it cannot be deleted, and a later call tries again. Threads: one calls
        this method and the other ones that delete expired files.
        """
        files = self.mapped_files
        if len(files) < 2 or files[0] is not mapped_file:
            return False
        self._delete_oldest(mapped_file)
        return True

    def delete_expired_file_by_offset(
        self, offset: int, last_offset_of: Callable[[MappedFile], int]
    ) -> int:
        """Delete files whose last unit names an offset below `offset`; return how many.

        `last_offset_of` returns that offset. The last file with a unit is kept.
        Source: RocketMQ 4.9.3 MappedFileQueue#deleteExpiredFileByOffset.
        """
        count = 0
        files = self.mapped_files
        for mapped_file in files[: -1 if files and files[-1].appended else -2]:
            if mapped_file.is_available() and last_offset_of(mapped_file) >= offset:
                break
            self._delete_oldest(mapped_file)
            count += 1
        return count

    def retry_delete_first_file(self, interval_forcibly_ms: int = 0) -> bool:
        """Delete the first file if an earlier try failed; return True when it was deleted."""
        first = self.get_first_mapped_file()
        if first is None or first.is_available():
            return False
        self._delete_oldest(first, interval_forcibly_ms)
        return True

    def delete_last_mapped_file(self) -> None:
        """Delete the last file, if any. Durability: durable on return."""
        files = self.mapped_files
        if files:
            self._destroy_last(files[-1])

    def unmap_idle(self) -> int:
        """Drop the mappings that are not held; return how many."""
        return sum(mapped_file.unmap_idle() for mapped_file in self.mapped_files)

    def shutdown(self, interval_ms: int = DESTROY_INTERVAL_MS) -> None:
        """Make every file unavailable; mappings are dropped with their last holds."""
        for mapped_file in self.mapped_files:
            mapped_file.shutdown(interval_ms)

    def destroy(self) -> None:
        """Delete every file, and the directory if it is empty then."""
        for mapped_file in reversed(self.mapped_files):
            self._destroy(mapped_file)
        self.flushed_where = 0
        self.changes.add(self._remove_directories)

    def destroy_from_first(self, on_empty: Callable[[], None]) -> None:
        """Delete every file, and the directory; after a failure the sequence remains usable.

        The oldest file is deleted first, as expired files are, so that the end does not change.
        `on_empty` is called when none is left. Raises StoreIOError.
        """
        for mapped_file in self.mapped_files:
            mapped_file.unlink()
            self._destroy(mapped_file)
        self.flushed_where = 0
        on_empty()
        self.changes.add(self._remove_directories)

    def _remove_directories(self) -> None:
        for directory in self._directories():
            if not self.env.is_dir(directory):
                continue
            try:
                self.env.rmdir(directory)
            except StoreIOError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise

    def _delete_oldest(
        self, mapped_file: MappedFile, interval_ms: int = DESTROY_INTERVAL_MS
    ) -> None:
        """Delete the first file, once the deletion of the one before it is durable.

        Otherwise a power cut could leave that one, and a gap behind it.
        """
        if self.changes.is_planning:
            self._drop(mapped_file)
            self.changes.add(partial(self._delete_oldest, mapped_file))
            return
        self.before_deletion(mapped_file)
        if self._deleted_from is None and not self.derived:
            self.fsync_directory()  # of derived files, an opening closes the gap
        elif self._deleted_from:
            self.changes.add(partial(self.env.fsync_directory, self._deleted_from))
        self._deleted_from = os.path.dirname(mapped_file.path)
        self._destroy(mapped_file, interval_ms)

    def _destroy_last(self, mapped_file: MappedFile) -> None:
        """Delete the last file, durably."""
        if self.changes.is_planning:
            self._drop(mapped_file)
            self.changes.add(partial(self._destroy_last, mapped_file))
            return
        self._destroy(mapped_file)
        self.fsync_directory()

    def _destroy(self, mapped_file: MappedFile, interval_ms: int = DESTROY_INTERVAL_MS) -> None:
        mapped_file.destroy(interval_ms)
        if mapped_file.mode == "memory":  # its file was to be repaired, and is not needed
            self.changes.add(partial(self.env.remove, mapped_file.path))
        self._drop(mapped_file)

    def _drop(self, mapped_file: MappedFile) -> None:
        with self._lock:
            self.mapped_files = FileSequence(f for f in self.mapped_files if f is not mapped_file)
