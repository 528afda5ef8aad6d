"""Warnings of queries: the index refers to physical offsets at which no message can be read."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyrocketstore.errors import StoreWarning

if TYPE_CHECKING:
    from pyrocketstore.commit_log.log import CommitLog


class UnreadableHitsWarning(StoreWarning):
    """The index has physical offsets for a key at which no message can be read."""


class UnreadableHits:
    """Warns of hits of the index whose record cannot be read.

    Parameters
    ----------
    log : CommitLog

    Threads: any.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def warn(self, phy_offsets: Iterable[int], stacklevel: int) -> None:
        """Warn once of all hits, without those that have expired, also meanwhile.

        Parameters
        ----------
        phy_offsets : physical offsets before the log's end, bytes; repeated ones count once
        stacklevel : int, which caller the warning names, as of `warnings.warn`
        """
        log = self._log
        log.mapped_file_queue.forget_deleted()
        begin = log.get_min_offset()
        if begin < 0:
            return  # all messages have expired
        found = sorted({p for p in phy_offsets if p >= begin and not self._is_deleted(p)})
        if not found:
            return
        count = "1 physical offset" if len(found) == 1 else f"{len(found)} physical offsets"
        warnings.warn(
            f"{log.config.store_path_root_dir}: the index has {count} at which no message can be"
            f" read, and the answer lacks these messages. The first: {self._reason(found[0])}."
            " `verify` lists the damage; restore the files from a copy if you have one",
            UnreadableHitsWarning,
            stacklevel=stacklevel + 1,
        )

    def _is_deleted(self, phy_offset: int) -> bool:
        """True if our cleaner is deleting the file of a byte, or our store is closing it."""
        file = self._log.mapped_file_queue.find_mapped_file_by_offset(phy_offset, False)
        return file is not None and not file.is_available()

    def _reason(self, phy_offset: int) -> str:
        """The file that should have that byte, and its defect."""
        path, position = self._log.position_of(phy_offset)
        if self._log.mapped_file_queue.env.exists(path):
            return f"{path} at byte {position}: no whole record begins there"
        return f"{path} at byte {position}: this file of the log is missing"
