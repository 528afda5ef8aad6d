"""What a query is told of places of the log that the index names and that hold no message."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyrocketstore.store_parts import StoreWarning

if TYPE_CHECKING:
    from pyrocketstore.commit_log import CommitLog

__all__ = ["UnreadableHits", "UnreadableHitsWarning"]


class UnreadableHitsWarning(StoreWarning):
    """The index names places of the log for a key, and no message can be read there."""


class UnreadableHits:
    """Warns of hits of the index whose record cannot be read.

    Parameters
    ----------
    log : CommitLog

    Threads: any.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def warn(self, places: Iterable[int], stacklevel: int) -> None:
        """Warn once of all of them; of what has expired, also meanwhile, nothing is said.

        Parameters
        ----------
        places : physical offsets before the log's end, bytes; repeated ones count once
        stacklevel : int, which caller the warning names, as of `warnings.warn`
        """
        log = self._log
        log.mapped_file_queue.forget_deleted()
        begin = log.get_min_offset()
        if begin < 0:
            return  # all that was there has expired
        found = sorted({p for p in places if p >= begin and not self._is_deleted(p)})
        if not found:
            return
        count = "1 place" if len(found) == 1 else f"{len(found)} places"
        warnings.warn(
            f"{log.config.store_path_root_dir}: the index names {count} of the log where no message"
            f" can be read, and the answer lacks them. The first: {self._reason(found[0])}."
            " `verify` tells what is damaged; restore the files from a copy, if there is one",
            UnreadableHitsWarning,
            stacklevel=stacklevel + 1,
        )

    def _is_deleted(self, place: int) -> bool:
        """Whether our cleaner is deleting the file of a byte, or our store is closing it."""
        file = self._log.mapped_file_queue.find_mapped_file_by_offset(place, False)
        return file is not None and not file.is_available()

    def _reason(self, place: int) -> str:
        """Which file should have that byte, and what is wrong there."""
        log = self._log
        position = place % log.file_size
        file = log.mapped_file_queue.find_mapped_file_by_offset(place, False)
        if file is not None and log.mapped_file_queue.env.exists(file.path):
            return f"{file.path} at byte {position}: no whole record begins there"
        path = os.path.join(log.config.commit_log_paths[0], f"{place - position:020d}")
        return f"{path} at byte {position}: this file of the log is missing"
