"""Removals of topics and queues from an open store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from pyrocketstore.cleaning import queue_removal
from pyrocketstore.cleaning.retention import Trimmed
from pyrocketstore.cleaning.topic_removal import TopicRemoval
from pyrocketstore.consumer.offsets import ConsumerOffsets
from pyrocketstore.dispatch.reput import ReputMessageService
from pyrocketstore.errors import StoreStateError
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.system.life_state import LifeState
from pyrocketstore.system.signal_shield import shielded

if TYPE_CHECKING:
    from pyrocketstore.message_store.start_stop_services import StoreServices
    from pyrocketstore.message_store.topic_config import TopicConfigFile

__all__ = ["Removals"]

Removed = TypeVar("Removed")


def _none(*_: object) -> None:
    """Flush nothing: while a store is opened, no removal begins."""


class Removals:
    """Remove topics and queues; `shutdown` waits for the end of each call, also after a Ctrl-C.

    Parameters
    ----------
    files : LoadedFiles
    life : LifeState
    life_lock : held while the state of the store changes
    topics : topics.json, or None
    services : callable(), the services of a started store

    Threads: any, but not the one that dispatches.
    """

    def __init__(
        self,
        files: LoadedFiles,
        life: LifeState,
        life_lock: threading.RLock,
        topics: TopicConfigFile | None,
        services: Callable[[], StoreServices],
    ) -> None:
        self._files, self._life, self._life_lock = files, life, life_lock
        self._topics, self._services = topics, services
        #: called with a topic that is dropped: a consumer's positions are in memory
        self.forget_positions: Callable[[str], None] = self._forget_positions

    def drop(self, topic: str) -> None:
        """As `DefaultMessageStore.drop_topic`."""
        shielded(lambda: self.while_started(lambda: self._started().drop(topic)))

    def trim_topic(self, topic: str, before_ms: int) -> Trimmed:
        """As `DefaultMessageStore.trim_topic`."""
        return shielded(lambda: self.while_started(lambda: self._started().trim(topic, before_ms)))

    def trim(self, before_ms: int) -> Trimmed:
        """As `DefaultMessageStore.trim`."""

        def trim() -> Trimmed:
            services = self._services()
            services.reput_service.wait_appended()
            return services.trim(before_ms)

        return shielded(lambda: self.while_started(trim))

    def clean_unused_topic(self, kept: Iterable[str]) -> None:
        """As `DefaultMessageStore.clean_unused_topic`."""
        remove = queue_removal.clean_unused_topic
        self._remove_queues(lambda: remove(self._files, self._dispatch(), kept))

    def clean_expired_consumer_queue(self) -> None:
        """As `DefaultMessageStore.clean_expired_consumer_queue`."""
        remove = queue_removal.clean_expired_consumer_queue
        self._remove_queues(lambda: remove(self._files, self._dispatch()))

    def complete(self) -> None:
        """Complete, while the store is opened, the removals that a kill or an error interrupted."""
        self._removal(None, _none, _none, nullcontext()).complete()

    def while_started(self, call: Callable[[], Removed]) -> Removed:
        """Make a call; `shutdown` waits for its end. Raises StoreStateError unless the store is
        started."""
        with self._life_lock:
            self.check_started()
            return call()

    def check_started(self) -> None:
        """Raise StoreStateError unless the store is open for writing and its services run."""
        if not self._life.is_started:
            state = "read-only" if self._files.read_only else "closed or not started"
            raise StoreStateError(f"{self._files.root}: the store is {state}")

    def _remove_queues(self, remove: Callable[[], None]) -> None:
        def locked() -> None:
            with self._life_lock:
                if not self._life.is_loaded:
                    raise StoreStateError(f"{self._files.root}: the store is closed")
                remove()

        shielded(locked)

    def _dispatch(self) -> ReputMessageService | None:
        return self._services().reput_service if self._life.is_started else None

    def _started(self) -> TopicRemoval:
        services = self._services()
        return self._removal(
            services.reput_service,
            services.log_flush.flush_to_end,
            services.flush_up_to,
            services.delete_lock,
        )

    def _removal(
        self,
        dispatch: ReputMessageService | None,
        flush_log: Callable[[], object],
        flush_up_to: Callable[[int], object],
        delete_lock: AbstractContextManager[object],
    ) -> TopicRemoval:
        return TopicRemoval(
            self._files,
            dispatch,
            flush_log,
            flush_up_to,
            self._forget_topic,
            lambda topic: self.forget_positions(topic),  # a consumer may set it meanwhile
            self._read_positions,
            self._files.last_record,
            delete_lock,
        )

    def _forget_topic(self, topic: str) -> None:
        if self._topics is not None:
            self._topics.remove(topic)
            self._topics.persist()

    def _forget_positions(self, topic: str) -> None:
        """Remove the positions of groups in a topic while no consumer has read them."""
        self._read_positions().forget_topic(topic)

    def _read_positions(self) -> ConsumerOffsets:
        """Return the positions of groups. Raises StoreCorruptionError, StoreIOError."""
        files = self._files
        offsets = ConsumerOffsets(files.env, files.root, lmq=files.config.enable_lmq)
        offsets.load()
        return offsets
