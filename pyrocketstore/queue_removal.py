"""Taking whole queues away: of topics that are gone, and of those that the log has outlived."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from pyrocketstore._dispatch import Dispatcher
from pyrocketstore.commit_log import CommitLog
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.errors import StoreError
from pyrocketstore.message import LMQ_PREFIX, SCHEDULE_TOPIC
from pyrocketstore.queue_table import ConsumeQueueTable

__all__ = ["clean_expired_consumer_queue", "clean_unused_topic"]

KEPT_TOPICS = frozenset({SCHEDULE_TOPIC, "RMQ_SYS_TRANS_OP_HALF_TOPIC"})


class QueueOwner(Protocol):
    """What taking a queue away needs of a store."""

    commit_log: CommitLog
    queue_table: ConsumeQueueTable
    dispatcher: Dispatcher

    @property
    def is_started(self) -> bool:
        """True while messages may be put."""
        ...

    def wait_dispatched(self, timeout: float | None = None) -> bool:
        """Wait until everything that was put is in its queues."""
        ...

    def dispatch_paused(self) -> AbstractContextManager[None]:
        """Nothing is dispatched inside."""
        ...


def clean_unused_topic(store: QueueOwner, topics: Iterable[str]) -> None:
    """Destroy the queues of every topic that is not named, but for those of light consumers and
    the broker's own. Raises StoreIOError.

    Source: RocketMQ 4.9.3 DefaultMessageStore#cleanUnusedTopic.
    """
    keep = {*topics, *KEPT_TOPICS}
    if store.is_started:
        store.wait_dispatched()  # else a queue of what was just put is not in the table yet
    for topic, queues in store.queue_table.by_topic().items():
        if topic in keep or topic.startswith(LMQ_PREFIX):
            continue
        for queue_id in queues:
            _destroy_queue(store, topic, queue_id, lambda queue: True)


def clean_expired_consumer_queue(store: QueueOwner) -> None:
    """Destroy the queues that end before the first record of the log. Raises StoreIOError.

    Source: RocketMQ 4.9.3 DefaultMessageStore#cleanExpiredConsumerQueue.
    """

    def is_expired(queue: ConsumeQueue) -> bool:
        # Of the two one may come from a damaged unit: no queue goes because of that.
        last = max(queue.get_last_offset(), queue.covered_phy_offset)
        return -1 < last < store.commit_log.get_min_offset()

    for queue in store.queue_table.all():
        if queue.topic != SCHEDULE_TOPIC and is_expired(queue):
            _destroy_queue(store, queue.topic, queue.queue_id, is_expired)


def _destroy_queue(
    store: QueueOwner, topic: str, queue_id: int, still: Callable[[ConsumeQueue], bool]
) -> None:
    """Take a queue away when all that was put to it is in it; its next offset is 0 then.

    Puts wait meanwhile: a message that still had an offset of the old queue would otherwise make
    those of the new one repeats.
    """
    if not store.is_started:
        _take_away(store, topic, queue_id)
        return
    store.wait_dispatched()
    store.commit_log.core.take()
    try:
        store.wait_dispatched()
        with store.dispatch_paused():
            queue = store.queue_table.get(topic, queue_id)
            if queue is not None and still(queue):
                _take_away(store, topic, queue_id)
    finally:
        store.commit_log.core.release()


def _take_away(store: QueueOwner, topic: str, queue_id: int) -> None:
    """Destroy a queue. Where that fails, its next offset is the end of what is left of it."""
    queue = store.queue_table.find(topic, queue_id)
    try:
        store.queue_table.remove(topic, queue_id)
    except StoreError:
        queue.correct_min_offset(store.commit_log.get_min_offset())
        raise
    finally:
        if queue.get_max_offset_in_queue() == 0:
            store.commit_log.core.forget(topic, queue_id)
    store.dispatcher.forget(topic, queue_id)
