"""Flush the index, and write `sync_point` after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreIOError, is_passing
from pyrocketstore.index._file import IndexFile
from pyrocketstore.index.directory import entry_position
from pyrocketstore.index.index_service import IndexService
from pyrocketstore.index.sync_point import SyncPoint

__all__ = ["IndexFlush", "IndexState"]

LOG = logger(__name__)


class IndexState(NamedTuple):
    """How far dispatch was at one moment: at the end `phy_offset` of a record.

    The entries of `index_file` before number `index_count` and the files before it have all keys of
    the records up to this one; `index_file` is None without any entry.
    """

    phy_offset: int
    last_phy_offset: int
    record_crc: int
    index_file: IndexFile | None
    index_count: int


class IndexFlush:
    """Flush the index, and have `sync_point` name the last record that is durable everywhere.

    Parameters
    ----------
    last_dispatched : callable() -> int, physical offset of the last record that was dispatched; -1:
        unknown
    is_complete : callable() -> bool, False after a queue or the index could not be written, until
        that is repaired

    Threads: `begin` from any, the other methods one at a time.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        index_service: IndexService,
        last_dispatched: Callable[[], int],
        is_complete: Callable[[], bool],
    ) -> None:
        self._log = commit_log
        self._service = index_service
        self._last_dispatched = last_dispatched
        self._is_complete = is_complete
        #: durable, except for the log
        self._pending: SyncPoint | None = None

    def begin(self) -> IndexState | None:
        """Return the state of this moment; None: unknown.

        The caller flushes the log and the queues after this call, and calls `finish` then.
        """
        # In this order: units and keys of a record are put before it counts as dispatched, and an
        # error is noted before the next record does.
        last = self._last_dispatched()
        if last < 0 or not self._is_complete():
            return None
        mark = self._log.record_mark(last)
        if mark is None:
            return None
        size, crc = mark
        for index_file in reversed(self._service.files):
            count = index_file.index_count
            if count > 1:
                return IndexState(last + size, last, crc, index_file, count)
        return IndexState(last + size, last, crc, None, 1)

    def finish(self, state: IndexState | None) -> None:
        """Flush the index; `state` is written once the log is durable too. Raises StoreError."""
        self._service.flush()
        point = None if state is None or self._is_written(state) else self._point(state)
        if point is not None:
            self._pending = point
        self.write()

    def write(self) -> None:
        """Write the state of the last `finish`, if the log is durable that far.

        A full device, or one without a free descriptor, leaves the old content, which stays true:
        only the next recovery reads more of the log. The next call tries again.

        Durability: durable on return. Raises StoreIOError.
        """
        point = self._pending
        if point is None:
            return
        needed = max(point.phy_offset, point.end_phy_offset + 1)
        if self._log.mapped_file_queue.flushed_where < needed:
            return
        try:
            self._service.write_sync_point(point)
        except StoreIOError as error:
            if not is_passing(error):
                raise
            LOG.warning("the next recovery may read more of the log than it must: %s", error)
            return
        self._pending = None

    def _is_written(self, state: IndexState) -> bool:
        """Return True if the file says as much already, or more."""
        written = self._service.sync_point
        if written is None or written.phy_offset < state.phy_offset:
            return False
        if written.phy_offset > state.phy_offset or state.index_file is None:
            return True
        same = written.name == state.index_file.name
        return same and written.index_count == state.index_count

    def _point(self, state: IndexState) -> SyncPoint | None:
        """Return the content of the file for a state; None: an index file was deleted meanwhile."""
        index_file, count = state.index_file, state.index_count
        if index_file is None:
            slots, entries = self._service.sizes_to_name() or (0, 0)
            return SyncPoint(*state[:3], slots, entries)
        if index_file not in self._service.files:
            return None
        position = entry_position(index_file.hash_slot_num, count - 1) + 4
        end = int.from_bytes(index_file.read(position, 8), "big", signed=True)
        stored = self._log.pickup_store_timestamp(end, self._log.record_size(end))
        return SyncPoint(
            *state[:3],
            index_file.hash_slot_num,
            index_file.index_num,
            count,
            index_file.crc_of(count),
            index_file.begin_timestamp,
            # A record that was deleted is not the last one of a file that grows.
            index_file.end_timestamp if stored < 0 else stored,
            index_file.begin_phy_offset,
            end,
            index_file.name,
        )
