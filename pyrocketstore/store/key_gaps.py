"""Keys where the index does not cover the log: searched in the log once, and kept in memory.

A store opened for writing puts such keys into the index. The first query searches the log of a
read-only store, and ranges that an opening for writing left out because of their size.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pyrocketstore.errors import StoreIOError, StoreWarning
from pyrocketstore.index.gaps import Int64s, missing_keys
from pyrocketstore.system.live_stores import Attempts, was_removed
from pyrocketstore.system.signal_shield import shielded

if TYPE_CHECKING:
    from pyrocketstore.commit_log.log import CommitLog
    from pyrocketstore.index._file import IndexFile
    from pyrocketstore.message_store.loaded_files import LoadedFiles
    from pyrocketstore.system.env import Env


class KeyGaps:
    """The ranges of the log that a store's index does not cover, and the keys of their records.

    Parameters
    ----------
    env : Env
    log : CommitLog
    files : the index files
    parts : ranges [begin, end) of the log, in their order
    max_bytes : int, at most so many bytes of the log are searched, the newest ones first

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
        self.phy_offsets: Int64s = np.empty(0, np.int64)
        #: ranges [begin, end) of the log that were not searched
        self.unsearched: list[tuple[int, int]] = []

    @property
    def is_empty(self) -> bool:
        """True when the index has every key of the log."""
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
            hashes = np.concatenate([keys[1] for keys in found] or [self.hashes])
            phy_offsets = np.concatenate([keys[0] for keys in found] or [self.phy_offsets])
            order = np.lexsort((phy_offsets, hashes))
            self.hashes, self.phy_offsets = hashes[order], phy_offsets[order]
            self.unsearched = unsearched[::-1]
            self._searched, self._files = True, ()

    def _keys(self, start: int, end: int) -> list[tuple[Int64s, npt.NDArray[np.int32]]]:
        """Physical offsets and hashes of the keys in a part of the log that is not deleted."""
        attempts = Attempts(self._env)
        while start < end:
            try:
                keys = missing_keys(self._log, self._files, start, end)
                return [(chunk.phy_offset, chunk.key_hash) for chunk in keys]
            except StoreIOError as error:
                # The owner of the store deletes files of the log, then those of the index.
                if not was_removed(error) or not attempts.another():
                    raise
            self._log.mapped_file_queue.forget_deleted()
            start = max(start, self._log.get_min_offset())
        return []

    def find(self, key_hash: int) -> Int64s:
        """The physical offsets of the records with a key of that hash, ascending."""
        first = int(np.searchsorted(self.hashes, key_hash, "left"))
        last = int(np.searchsorted(self.hashes, key_hash, "right"))
        return self.phy_offsets[first:last]

    def warn(self, oldest: int, is_full: bool) -> None:
        """Warn if older hits may be in ranges that were not searched.

        Parameters
        ----------
        oldest : int, physical offset of the oldest hit that was found
        is_full : bool, the requested number of hits was found
        """
        parts = [part for part in self.unsearched if not is_full or part[1] > oldest]
        if parts:
            ranges = ", ".join(f"{begin} to {end}" for begin, end in parts)
            warnings.warn(
                f"{self._log.config.store_path_root_dir}: the index does not cover the log, and the"
                f" physical offsets {ranges} were not searched: messages there may be missing from"
                " the answer. Raise max_key_search_bytes, or open the store for writing once with a"
                " larger one, which builds the index again",
                StoreWarning,
                stacklevel=2,
            )


def find_key_gaps(store: LoadedFiles) -> KeyGaps | None:
    """The parts of the log that the index does not cover; None where it covers all of it.

    Raises StoreIOError.
    """
    parts: list[tuple[int, int]] = []
    attempts = Attempts(store.env)
    while store.index_enabled:
        try:
            parts = store.uncovered_by_index()
            break
        except StoreIOError as error:
            # The owner may delete a file of the log while a reader opens, or loads again.
            if not store.changes.is_of_owner(error) or not attempts.another():
                raise
        store.commit_log.mapped_file_queue.forget_deleted()
    if not parts:
        return None
    files, limit = store.index_service.files, store.config.max_key_search_bytes
    return KeyGaps(store.env, store.commit_log, files, parts, limit)
