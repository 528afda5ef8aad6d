"""Files that a log has lost at its end, told by the units of its queues.

A unit is put when its record is in the log, and a file of the log is begun when the one before it
is full. Where a unit names bytes behind the last file, and that is full, the log has lost files,
however the store was stopped. Bytes of the last file that hold no records are the unfinished tail
of a store that was not stopped cleanly; one that was has none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyrocketstore._scan import status_name
from pyrocketstore.file_sizes import FoundFile, is_store_file
from pyrocketstore.recovery import RS_BLANK, RS_OK
from pyrocketstore.store_checkpoint import AbortFile

if TYPE_CHECKING:
    from pyrocketstore.config import MessageStoreConfig
    from pyrocketstore.env import Env
    from pyrocketstore.message_store import DefaultMessageStore

_FULL = (status_name(RS_OK), status_name(RS_BLANK))


class LostEnd(NamedTuple):
    """The last file of a log that has lost its end, or its directories, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def listed_log_files(env: Env, config: MessageStoreConfig) -> list[FoundFile]:
    """The files that a log's directories hold now, in order; those without a length are none.

    Raises StoreIOError.
    """
    found = [
        FoundFile(f"{directory}/{name}", int(name), size)
        for directory in config.all_commit_log_paths
        for name, size in env.files_named(directory, is_store_file, follow=True)
        if size > 0
    ]
    return sorted(found, key=lambda file: file.offset)


def lost_end(store: DefaultMessageStore, ends: Mapping[tuple[str, int], int]) -> LostEnd | None:
    """What the log of a loaded store has lost at its end; None where that is not sure.

    Parameters
    ----------
    ends : {(topic, queue id): byte of the log behind the last message that the queue names}, of the
        queues that count; `RecoveryPlan.beyond` has all that name bytes behind the log's end

    Raises StoreIOError. Threads: any.
    """
    plan = store.plan
    if plan is None or not ends:
        return None
    (topic, queue_id), end = max(ends.items(), key=lambda item: (item[1], item[0]))
    named = f"{len(ends)} queues name messages behind it, {topic}/{queue_id} up to byte {end}"
    if len(ends) == 1:
        named = f"the queue {topic}/{queue_id} names messages behind it, up to byte {end}"
    # Listed after the queues were read: a live store has the file of each record that they name.
    config = store.config
    files = listed_log_files(store.env, config)
    if not files:
        return LostEnd(" and ".join(config.commit_log_paths), f"the log has no file, and {named}")
    path, offset, size = files[-1]
    used = {os.path.dirname(file.path) for file in files}
    empty = [directory for directory in config.all_commit_log_paths if directory not in used]
    if empty and len(empty) < len(config.all_commit_log_paths):
        named += f" ({' and '.join(empty)} has no file of the log)"
    if end > offset + size:
        # Another file is begun when one is full. Else the unit is damaged.
        is_full = plan.ended_by in _FULL or size < config.mapped_file_size_commit_log
        reason = f"the log ends with this file, at byte {offset + size}, and {named}"
        return LostEnd(path, reason) if is_full else None
    abort = AbortFile(store.env, os.path.join(store.root, "abort"))
    if plan.clean and not abort.exists() and not plan.broken:
        text = f"the store was stopped cleanly, its log ends at byte {plan.log_end}"
        return LostEnd(path, f"{text} ({plan.ended_by}), and {named}")
    return None
