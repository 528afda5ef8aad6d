"""LoadedFiles: the files of a store that was loaded, and how they are read."""

from __future__ import annotations

import contextlib

from pyrocketstore.flush.index_flush import IndexFlush
from pyrocketstore.index.gaps import uncovered
from pyrocketstore.reading.rocketmq_reads import StoreReads
from pyrocketstore.recovery.store_files import StoreFiles
from pyrocketstore.system.life_state import set_by_load

__all__ = ["LoadedFiles"]


class LoadedFiles(StoreFiles):
    """The files of a store, with the plan of its recovery.

    `refresh` may give a store another object; who has this one can read it until the store is shut
    down. Threads: any.
    """

    reads: StoreReads = set_by_load()
    #: None: messages are not indexed, or the store is read-only
    index_flush: IndexFlush | None = set_by_load()

    def uncovered_by_index(self) -> list[tuple[int, int]]:
        """Return ranges [begin, end) of the log, bytes, that may hold keys that the index lacks.

        Raises StoreIOError.
        """
        keyless = () if self.plan is None else self.plan.keyless
        begin, end = max(0, self.commit_log.get_min_offset()), self.commit_log.get_max_offset()
        parts = uncovered(self.index_service.files, self.commit_log, begin, end)
        return [part for part in parts if part not in keyless]

    def last_record(self) -> int:
        """Return a byte of the log at which its last record may begin; -1 without one."""
        last = int(self.dispatcher.last_phy_offset)
        return self.plan.last_record if last < 0 and self.plan is not None else last

    def close(self) -> None:
        """Close files and mappings, once no thread writes."""
        with contextlib.ExitStack() as rest:  # close each one, whatever another one raises
            rest.callback(self.commit_log.mapped_file_queue.shutdown, 0)
            rest.callback(self.queue_table.close)
            # A failed load may not have made these.
            if "index_service" in self.__dict__:
                rest.callback(self.index_service.shutdown)
            if "dispatcher" in self.__dict__:
                rest.callback(self.dispatcher.set_index_file, None)

    def give_up(self) -> None:
        """Close what a failed load has opened: the next one finds the same files."""
        self.commit_log.close()
        self.close()
