"""The end of a store: flush the rest, close its files, release its directory; and its deletion."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from pyrocketstore.display import logger
from pyrocketstore.errors import StoreError, StoreStateError, without_frames
from pyrocketstore.files.abort_file import AbortFile
from pyrocketstore.files.allocate_mapped_file_service import AllocateMappedFileService
from pyrocketstore.files.file_systems import FileSystems
from pyrocketstore.files.lock_file import LockFile
from pyrocketstore.index.sync_point import SYNC_POINT
from pyrocketstore.message_store.end_of_puts import StoreFailure
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.message_store.open_stores import OPEN_STORES
from pyrocketstore.message_store.start_stop_services import StoreServices
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.schedule.delay_offsets import DelayOffsets
from pyrocketstore.system.life_state import Life, LifeState, set_by_start
from pyrocketstore.system.signal_shield import check_abandoned, one_at_a_time, shielded

__all__ = ["Closing"]

LOG = logger(__name__)

#: Interval of checks whether the wait for another thread's close was abandoned (s).
LOOK_S = 0.1


class Closing:
    """Closes a store, gives a failed load up, and deletes the files of a closed store.

    Parameters
    ----------
    files : LoadedFiles
    life : LifeState, moved on to its end
    life_lock : held while the life of the store changes
    lock_file : LockFile, released last
    abort_file : AbortFile, deleted once everything is dispatched and durable
    failure : StoreFailure
    file_systems : FileSystems, flush what recovery has changed
    allocate_service : makes the files of the log; None in a read-only store
    topics : topics.json, or None
    delay_offsets : DelayOffsets

    Attributes: `files`, which `refresh` may replace, and `services`, set by `start`.

    Threads: any; `give_up` from the one that loads.
    """

    services: StoreServices = set_by_start()

    def __init__(
        self,
        files: LoadedFiles,
        life: LifeState,
        life_lock: threading.RLock,
        lock_file: LockFile,
        abort_file: AbortFile,
        failure: StoreFailure,
        file_systems: FileSystems,
        allocate_service: AllocateMappedFileService | None,
        topics: TopicConfigFile | None,
        delay_offsets: DelayOffsets,
    ) -> None:
        self.files, self.root, self.pid = files, files.root, os.getpid()
        self.life, self.life_lock = life, life_lock
        self._lock_file, self._abort_file = lock_file, abort_file
        self._failure, self._file_systems = failure, file_systems
        self._allocate_service, self._topics = allocate_service, topics
        self._delay_offsets = delay_offsets
        #: called once everything is durable, and at the end in any case
        self.at_clean_stop: list[Callable[[], None]] = []
        self.at_end: list[Callable[[], None]] = []
        #: called when puts end: after a failure, in a forked child, and by `shutdown`
        self.on_dead: Callable[[str | None], None] = lambda state: None
        #: returns True once the last reference of a caller is gone
        self.is_dropped: Callable[[], bool] = lambda: False

    def shutdown(self) -> None:
        """As `DefaultMessageStore.shutdown`."""
        self.life.end_puts()
        shielded(self._shutdown)

    def end_dropped(self) -> None:
        """Close the engine of a dropped store, or wait until another thread has closed it.

        Call it by `shielded`.
        """
        while not self.life_lock.acquire(timeout=LOOK_S):
            check_abandoned()
        try:
            self.life.end_puts()
            self._shutdown()
        except StoreError as error:
            LOG.error(
                "%s: the store was not closed, and closing it has failed: %s", self.root, error
            )
        finally:
            self.life_lock.release()

    def after_fork(self) -> None:
        """In a forked child: disable this copy, which must touch nothing."""
        self.on_dead(Life.FORKED.value)
        self.life.move(Life.FORKED)

    def give_up(self) -> None:
        """Release everything after a failed load: the next one finds the same files."""
        try:
            self._close_files()
        finally:
            self._lock_file.release()

    @one_at_a_time
    def destroy(self) -> None:
        """As `DefaultMessageStore.destroy`. Call it by `shielded`."""
        if self.life.is_loaded:
            raise StoreStateError(f"{self.root}: the store is open: shut it down first")
        self._lock_file.take()
        try:
            self._delete_files()
        finally:
            self._lock_file.release()

    def _delete_files(self) -> None:
        files, env = self.files, self.files.env
        files.queue_table.destroy()
        files.commit_log.destroy()
        index_path = os.path.join(self.root, "index")
        for name in env.listdir(index_path):
            if name.isdigit():
                env.remove(os.path.join(index_path, name))
        self._abort_file.delete()
        for name in ("checkpoint", SYNC_POINT):
            env.remove(os.path.join(self.root, name))
        files.topic_minimums.destroy()

    @one_at_a_time
    def _shutdown(self) -> None:
        files, life = self.files, self.life
        if life.has_ended:  # another thread has done it
            return
        self.on_dead("closed")
        if life.is_started:
            self.services.end_copy()
        files.commit_log.close()
        is_flushed = None  # no service has run
        if life.is_started:
            is_flushed = self.services.stop()
            life.move(Life.STOPPED)
        if self._allocate_service is not None:
            self._allocate_service.shutdown()
        if life.is_loaded:
            files.index_service.wait_flushed()
        writes = life.is_loaded and not files.read_only
        try:  # no thread is left
            clean = writes and self._finish(is_flushed)
            write_stop = self._note_clean_stop() if clean else None
            life.move(Life.CLOSING)
            self._close_files()
            if write_stop is not None:
                write_stop()
                self._abort_file.delete()
        finally:
            OPEN_STORES.discard(self)
            try:
                self._lock_file.release()
            finally:
                if life.now is not Life.CLOSING:  # flushing has raised
                    life.move(Life.CLOSING)
                life.move(Life.ENDED)
        if writes and not clean:
            text = f"{self.root}: not everything could be dispatched and flushed"
            error = self._failure.error or files.running_flags.write_error
            raise StoreStateError(text) if error is None else without_frames(error)

    def _finish(self, is_flushed: bool | None) -> bool:
        """Flush files without a service; return True when everything is dispatched and durable.

        `is_flushed` : whether the services have dispatched and flushed everything; None: none ran
        """
        files = self.files
        clean = is_flushed is not False
        try:
            if is_flushed is None:
                files.flush_recovered(self._file_systems)
                if self._topics is not None:
                    self._topics.persist(at_once=True)
            self._lock_file.check()
            if files.index_flush is None or not clean:
                files.index_service.flush()
            else:
                files.index_flush.finish(files.index_flush.begin())
            files.checkpoint.flush()
            if clean:  # everything is flushed, the last deliveries included
                self._delay_offsets.persist(self._delay_offsets.offsets())
                for persist in self.at_clean_stop:
                    persist()
        except StoreError as error:
            self._failure.fail(error)
        return clean and self._failure.error is None and not files.running_flags.is_write_error()

    def _note_clean_stop(self) -> Callable[[], None]:
        files = self.files
        plan = files.plan
        return files.clean_stop.note(
            files.derived_ends,
            files.last_record(),
            -1 if plan is None else plan.unscanned_to,
            may_lack_keys=plan is not None and plan.may_lack_keys,
        )

    def _close_files(self) -> None:
        """Close files and mappings, once no thread writes. The caller releases the lock last."""
        with contextlib.ExitStack() as rest:  # close each one, whatever another one raises
            pool = None if self._allocate_service is None else self._allocate_service.pool
            if pool is not None:
                rest.callback(pool.destroy)
            if self._topics is not None:
                rest.callback(self._topics.close)
            for close in self.at_end:
                rest.callback(close)
            rest.callback(self.files.close)
