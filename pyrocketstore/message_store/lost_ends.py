"""Detect files that a log has lost at its end, from the units of its queues.

A unit is put when its record is in the log, and a log file is begun when the previous one is full.
If a unit names bytes after the last file, and that file is full, the log has lost files, however
the store was stopped. If it names bytes of the last file without records, the log has lost them
after a clean stop, or where a flush has covered them; otherwise they are an unfinished tail.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from pyrocketstore.commit_log._scan import status_name
from pyrocketstore.config.file_sizes import FoundFile, is_store_file
from pyrocketstore.files.abort_file import AbortFile
from pyrocketstore.results import Status

if TYPE_CHECKING:
    from pyrocketstore.config.message_store_config import MessageStoreConfig
    from pyrocketstore.files._mapped_file import MappedFile
    from pyrocketstore.recovery.recovery_plan import RecoveryPlan
    from pyrocketstore.recovery.store_files import StoreFiles
    from pyrocketstore.system.env import Env

_FULL = (status_name(Status.OK), status_name(Status.BLANK))


#: Missing files that a text names one by one, at most.
NAMED_FILES = 3


class LostEnd(NamedTuple):
    """The last file of a log that has lost its end, or its directories, and the reason.

    `begin` and `end` are the bytes of the log that missing files after that file had, as far as
    they are known; -1: no file is known to be missing.
    """

    path: str
    reason: str
    begin: int = -1
    end: int = -1

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def listed_log_files(env: Env, config: MessageStoreConfig) -> list[FoundFile]:
    """Return the files in the directories of a log, in order, without empty ones.

    Raises StoreIOError.
    """
    found = [
        FoundFile(f"{directory}/{name}", int(name), size)
        for directory in config.all_commit_log_paths
        for name, size in env.files_named(directory, is_store_file, follow=True)
        if size > 0
    ]
    return sorted(found, key=lambda file: file.offset)


def reason_without_files(env: Env, config: MessageStoreConfig) -> str:
    """Return the reason why a log has no bytes: the files are missing, or their length is 0.

    Raises StoreIOError.
    """
    directories = config.all_commit_log_paths
    if any(env.files_named(path, is_store_file, follow=True) for path in directories):
        return "all files of the log are empty (length 0)"
    return "the log has no file"


def missing_names(begin: int, end: int, file_size: int) -> str:
    """Return the names of the files of `file_size` bytes that had the bytes [begin, end) of the
    log; of many files, the first and the last one with their number."""
    starts = range(begin, end, file_size)
    if len(starts) <= NAMED_FILES:
        return ", ".join(f"{start:020d}" for start in starts)
    return f"{starts[0]:020d} to {starts[-1]:020d} ({len(starts)} files)"


def gap_text(begin: int, end: int, file_size: int) -> str:
    """Return the text for a file of the log before which the bytes [begin, end) are missing."""
    names = missing_names(begin, end, file_size)
    return f"{end - begin} bytes of the log are missing before this file: {names}"


def missing_files(files: Iterable[MappedFile]) -> list[str]:
    """Return a text for each range of files that is missing between these files of the log."""
    found = []
    for before, file in pairwise(files):
        begin, end = before.file_from_offset + before.file_size, file.file_from_offset
        if begin < end:
            found.append(f"{file.path}: {gap_text(begin, end, before.file_size)}")
    return found


def lost_end(
    store: StoreFiles, plan: RecoveryPlan | None, ends: Mapping[tuple[str, int], int]
) -> LostEnd | None:
    """Return what the log of a store has lost at its end; None when that is not certain.

    Parameters
    ----------
    store : loaded read-only, or opened for writing until the plan is applied
    plan : of its recovery, None: nothing is certain
    ends : {(topic, queue id): byte of the log after the last message that the queue names};
        `RecoveryPlan.beyond` has the queues that name bytes after the log's end

    Raises StoreIOError. Threads: any.
    """
    if plan is None:
        return None
    if not ends:
        return None if plan.beyond else _lost_end_without_units(store, plan)
    (topic, queue_id), end = max(ends.items(), key=lambda item: (item[1], item[0]))
    named = f"{len(ends)} queues name messages after it, {topic}/{queue_id} up to byte {end}"
    if len(ends) == 1:
        named = f"the queue {topic}/{queue_id} names messages after it, up to byte {end}"
    # Listed after the queues were read: a live store has the file of each record that is named.
    config = store.config
    files = listed_log_files(store.env, config)
    if not files:
        reason = reason_without_files(store.env, config)
        return LostEnd(" and ".join(config.commit_log_paths), f"{reason}, and {named}")
    path, offset, size = files[-1]
    used = {os.path.dirname(file.path) for file in files}
    empty = [directory for directory in config.all_commit_log_paths if directory not in used]
    if empty and len(empty) < len(config.all_commit_log_paths):
        named += f" ({' and '.join(empty)} has no file of the log)"
    # The next file is begun only when one is full.
    is_full = plan.ended_by in _FULL or plan.log_end == offset + size
    if end > offset + size and (is_full or size < config.mapped_file_size_commit_log):
        reason = f"the log ends with this file, at byte {offset + size}, and {named}"
        begin = max(offset + size, offset + config.mapped_file_size_commit_log)
        if begin >= end:  # the file was cut
            return LostEnd(path, reason)
        names = missing_names(begin, end, config.mapped_file_size_commit_log)
        return LostEnd(path, f"{reason}; missing: {names}", begin, end)
    if plan.broken:
        return None
    if plan.clean and not AbortFile(store.env, f"{store.root}/abort").exists():
        why = "the store was stopped cleanly"
    else:
        why = _why_durable(store, plan)
    text = f"its log ends at byte {plan.log_end} ({plan.ended_by}), and {named}"
    return LostEnd(path, f"{why}, {text}") if why else None


def _lost_end_without_units(store: StoreFiles, plan: RecoveryPlan) -> LostEnd | None:
    """Return what the log has lost if the queues were lost with it, or never had the messages."""
    flushed_to = store.flushed.phy_offset
    if plan.broken or max(flushed_to, plan.index_end + 1) <= plan.log_end:
        return None
    config = store.config
    files = listed_log_files(store.env, config)
    path = files[-1].path if files else " and ".join(config.commit_log_paths)
    why = f"the index names a message at byte {plan.index_end}"
    if flushed_to > plan.log_end:
        why = f"a flush has covered the log up to byte {flushed_to}"
    ended = f"its log ends at byte {plan.log_end} ({plan.ended_by})"
    return LostEnd(path, f"{why}, {ended if files else reason_without_files(store.env, config)}")


def _why_durable(store: StoreFiles, plan: RecoveryPlan) -> str:
    """Return the proof that messages behind the log's end were on the device; "" without one."""
    flushed_to, flushed = store.flushed
    if flushed_to > plan.log_end:
        return f"a flush has covered the log up to byte {flushed_to}"
    last = -1 if plan.last_record < 0 else store.commit_log.stored_at(plan.last_record)
    if 0 <= last < flushed:
        return f"the checkpoint covers messages up to the store time {flushed}"
    return ""
