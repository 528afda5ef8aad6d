"""Keys where the index does not cover the log: searched in the log once, and kept in memory.

A store that writes puts such keys into the index when it opens. A read-only store, and what a store
that writes left for its size, is searched by the first query.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pyrocketstore.errors import StoreIOError
from pyrocketstore.index_gaps import Int64s, missing_keys
from pyrocketstore.live_stores import Attempts, was_removed
from pyrocketstore.shield import shielded
from pyrocketstore.store_parts import StoreWarning

if TYPE_CHECKING:
    from pyrocketstore._index_file import IndexFile
    from pyrocketstore.commit_log import CommitLog
    from pyrocketstore.env import Env

__all__ = ["KeyGaps"]


class KeyGaps:
    """What a store's index does not cover of the log, and what the log has there.

    Parameters
    ----------
    env : Env
    log : CommitLog
    files : the index files
    parts : ranges [begin, end) of the log, in their order
    max_bytes : int, at most so much of the log is searched, the newest part of it first

    Threads: any.
    """

    def __init__(
        self,
        env: Env,
        log: CommitLog,
        files: Sequence[IndexFile],
        parts: Iterable[tuple[int, int]],
        max_bytes: int,
    ) -> None:
        self._env = env
        self._log = log
        self._files = files
        self._parts = list(parts)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # taken by the thread of `shielded` alone
        self._searched = False
        #: the keys' hashes, sorted, and the physical offsets of their records
        self.hashes: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self.places: Int64s = np.empty(0, np.int64)
        #: ranges [begin, end) of the log that were not searched
        self.unsearched: list[tuple[int, int]] = []

    @property
    def is_empty(self) -> bool:
        """True when every key of the log can be found without this."""
        return self._searched and not len(self.hashes) and not self.unsearched

    def search(self) -> None:
        """Search the log, once. Raises StoreIOError: the next call tries again."""
        if not self._searched:
            shielded(self._search)

    def _search(self) -> None:
        with self._lock:
            if self._searched:
                return
            left = self._max_bytes
            found: list[tuple[Int64s, npt.NDArray[np.int32]]] = []
            unsearched: list[tuple[int, int]] = []
            for begin, end in reversed(self._parts):
                start = max(begin, end - left)  # most likely inside of a record
                left = max(0, left - (end - start))
                if start > begin:
                    unsearched.append((begin, start))
                found += self._keys(start, end)
            hashes = np.concatenate([piece[1] for piece in found] or [self.hashes])
            places = np.concatenate([piece[0] for piece in found] or [self.places])
            order = np.lexsort((places, hashes))
            self.hashes, self.places = hashes[order], places[order]
            self.unsearched = unsearched[::-1]
            self._searched, self._files = True, ()

    def _keys(self, start: int, end: int) -> list[tuple[Int64s, npt.NDArray[np.int32]]]:
        """Places and hashes of the keys in a part of the log, without what expires meanwhile."""
        attempts = Attempts(self._env)
        while start < end:
            try:
                keys = missing_keys(self._env, self._log, self._files, start, end)
                return [(piece.phy_offset, piece.key_hash) for piece in keys]
            except StoreIOError as error:
                # The owner of the store deletes files of the log, then those of the index.
                if not was_removed(self._env, error) or not attempts.another():
                    raise
            self._log.mapped_file_queue.forget_deleted()
            start = max(start, self._log.get_min_offset())
        return []

    def find(self, key_hash: int) -> Int64s:
        """The physical offsets of the records with a key of that hash, ascending."""
        first = int(np.searchsorted(self.hashes, key_hash, "left"))
        last = int(np.searchsorted(self.hashes, key_hash, "right"))
        return self.places[first:last]

    def warn(self, oldest: int, is_full: bool) -> None:
        """Warn where older hits may lie in what was not searched.

        Parameters
        ----------
        oldest : int, physical offset of the oldest hit that was found
        is_full : bool, as many hits were found as were wanted
        """
        parts = [part for part in self.unsearched if not is_full or part[1] > oldest]
        if parts:
            ranges = ", ".join(f"{begin} to {end}" for begin, end in parts)
            warnings.warn(
                f"{self._log.config.store_path_root_dir}: the index does not cover the log, and the"
                f" physical offsets {ranges} were not searched: messages there are missing from"
                " the answer. Raise max_key_search_bytes, or open the store for writing once, which"
                " builds the index again",
                StoreWarning,
                stacklevel=2,
            )
