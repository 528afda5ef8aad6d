"""The parts of a store that recovery, repair, cleaning and the services share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from pyrocketstore.arguments.read_arguments import timeout_of
from pyrocketstore.commit_log._scan import TopicMinOffsets
from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.commit_log.topic_min_offset_file import TopicMinOffsetFile
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.table import ConsumeQueueTable
from pyrocketstore.dispatch._dispatcher import Dispatcher
from pyrocketstore.dispatch.reput import ReputMessageService
from pyrocketstore.errors import StoreStateError
from pyrocketstore.files.allocate_mapped_file_service import AllocateMappedFileService
from pyrocketstore.files.file_systems import FileSystems
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.flush.async_put import AsyncPuts
from pyrocketstore.flush.index_flush import IndexFlush
from pyrocketstore.index.index_service import IndexService
from pyrocketstore.recovery.clean_stop import CleanStopFile, DerivedEnds, derived_ends
from pyrocketstore.recovery.flushed import Flushed
from pyrocketstore.recovery.loss_notices import LossNotices
from pyrocketstore.system._env import Event
from pyrocketstore.system.env import Env
from pyrocketstore.system.life_state import LifeState
from pyrocketstore.system.signal_shield import shielded
from pyrocketstore.system.stalls import StallLog

__all__ = ["StoreContext", "set_by_load", "set_by_start"]


class _NotSetYet:
    """Raises StoreStateError in place of an attribute that a store does not have yet.

    The attribute of the store replaces this object, which therefore costs a set one nothing.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __get__(self, store: StoreContext | None, owner: type) -> _NotSetYet:
        if store is None:
            return self
        raise StoreStateError(f"{store.root}: {self.reason}")


def set_by_load() -> Any:
    """Return the value in the class of an attribute that `load` sets."""
    return _NotSetYet("the store is not loaded: call load() first")


def set_by_start() -> Any:
    """Return the value in the class of an attribute that `start` sets."""
    return _NotSetYet("the store is not started: call start() first")


class StoreContext:
    """The parts of one store, passed as one object; DefaultMessageStore is its subclass.

    The constructor sets the attributes of the first group, `load` those of the second, and `start`
    those of the third. An attribute that is not set yet raises StoreStateError.
    """

    config: MessageStoreConfig
    env: Env
    root: str
    life: LifeState
    read_only: bool
    running_flags: RunningFlags
    appended: Event  # signalled by appends
    moved: Event  # signalled by the dispatcher
    commit_log: CommitLog
    topic_minimums: TopicMinOffsetFile
    queue_table: ConsumeQueueTable
    file_systems: FileSystems
    #: None in a read-only store
    allocate_service: AllocateMappedFileService | None
    async_puts: AsyncPuts
    stall_log: StallLog
    loss_notices: LossNotices
    clean_stop: CleanStopFile

    #: when a process had opened the store for writing the last time before (Unix ms); -1: never
    locked_before_ms: int = set_by_load()
    flushed: Flushed = set_by_load()
    checkpoint: StoreCheckpoint = set_by_load()
    index_service: IndexService = set_by_load()
    dispatcher: Dispatcher = set_by_load()
    #: None: messages are not indexed, or the store is read-only
    index_flush: IndexFlush | None = set_by_load()

    reput_service: ReputMessageService = set_by_start()

    def consume_queues(self) -> list[ConsumeQueue]:
        """Return every queue that is known."""
        return self.queue_table.all()

    def derived_ends(self) -> DerivedEnds:
        """Return the ends of queues and index as `clean_stop` has them."""
        files = self.index_service.files if self.index_enabled else None
        return derived_ends(self.consume_queues(), files)

    def persist_topics(self, at_once: bool) -> None:
        """Write topics.json if it has changed. Raises StoreError.

        Parameters
        ----------
        at_once : bool; False: unless the last write was recent
        """
        raise NotImplementedError

    def set_min_offsets(self, table: Mapping[str, int]) -> None:
        """Have dispatch, scans and queues use {topic: byte of the log}, before which its messages
        are removed, from now on; only while nothing is dispatched. Raises StoreIOError."""
        before = self.commit_log.min_offsets.by_topic()
        self.commit_log.min_offsets = found = TopicMinOffsets(table)
        self.dispatcher.remove_before(found)
        lowest = max(0, self.commit_log.get_min_offset())
        for topic in {**before, **table}:
            for queue in self.queue_table.of_topic(topic).values():
                if queue.removed_before != found.of(topic):
                    queue.removed_before = found.of(topic)
                    queue.correct_min_offset(lowest)

    def flush_log(self) -> None:
        """Make all records durable that are in the log. Raises StoreError."""
        raise NotImplementedError

    def flush_up_to(self, phy_offset: int) -> None:
        """Make all records before a byte of the log durable, with their units and the names of
        their topics. Raises StoreError."""
        raise NotImplementedError

    @property
    def index_enabled(self) -> bool:
        """True when messages are indexed and the index can be read."""
        known = self.index_service.geometry_error is None
        return self.config.message_index_enable and known

    def dispatch_behind_bytes(self) -> int:
        """Return the bytes of the log that are not dispatched yet."""
        return self.commit_log.get_max_offset() - int(self.dispatcher.position)

    def dispatch_paused(self) -> AbstractContextManager[None]:
        """Dispatch nothing inside of a `with` block, so that a queue may be removed."""
        return self.reput_service.paused()

    def wait_dispatched(self, timeout: float | None = None) -> bool:
        """Wait until every put that returned before is in its queue and in the index.

        Returns False when `timeout` (seconds, None for no limit) passed first. Raises
        StoreTypeError, StoreFormatError: not a valid number.
        """
        seconds = None if timeout is None else timeout_of(timeout)
        if self.read_only:
            return True
        appended = self.commit_log.core.appended_end
        if self.dispatcher.position >= appended:
            return True
        if appended > self.commit_log.get_max_offset():
            shielded(self.commit_log.commit_buffers)
        return self.reput_service.wait_dispatched(self.commit_log.get_max_offset(), seconds)
