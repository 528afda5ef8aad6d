"""Remove whole queues: of deleted topics, and queues whose messages have all expired."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.dispatch.reput import ReputMessageService
from pyrocketstore.errors import StoreError
from pyrocketstore.record.message import (
    LMQ_PREFIX,
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from pyrocketstore.recovery.store_files import StoreFiles

__all__ = ["clean_expired_consumer_queue", "clean_unused_topic", "remove_queue"]

#: Their positions are in files of ROOT/config: a queue that begins at 0 again would be passed over.
KEPT_TOPICS = frozenset({SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC})


def clean_unused_topic(
    store: StoreFiles, dispatch: ReputMessageService | None, topics: Iterable[str]
) -> None:
    """Destroy the queues of every topic that is not in `topics`, except light queues and system
    topics. `dispatch` is None in a store that is not started. Raises StoreIOError.

    Source: RocketMQ 4.9.3 DefaultMessageStore#cleanUnusedTopic.
    """
    keep = {*topics, *KEPT_TOPICS}
    if dispatch is not None:
        dispatch.wait_appended()  # else the table may lack the queue of a recent put
    for topic, queues in store.queue_table.by_topic().items():
        if topic in keep or topic.startswith(LMQ_PREFIX):
            continue
        for queue_id in queues:
            _destroy_queue(store, dispatch, topic, queue_id, lambda queue: True)


def clean_expired_consumer_queue(store: StoreFiles, dispatch: ReputMessageService | None) -> None:
    """Destroy the queues that end before the first record of the log. Raises StoreIOError.

    Source: RocketMQ 4.9.3 DefaultMessageStore#cleanExpiredConsumerQueue.
    """

    def is_expired(queue: ConsumeQueue) -> bool:
        # One of the two may come from a damaged unit, which must not remove the queue.
        last = max(queue.get_last_offset(), queue.covered_phy_offset)
        return -1 < last < store.commit_log.get_min_offset()

    # The records of a file that comes back would count as messages of the new queues.
    store.commit_log.flush_deletions()
    for queue in store.queue_table.all():
        if queue.topic not in KEPT_TOPICS and is_expired(queue):
            _destroy_queue(store, dispatch, queue.topic, queue.queue_id, is_expired)


def _destroy_queue(
    store: StoreFiles,
    dispatch: ReputMessageService | None,
    topic: str,
    queue_id: int,
    still: Callable[[ConsumeQueue], bool],
) -> None:
    """Remove a queue once all its messages are dispatched; its next offset is 0 then.

    Puts wait meanwhile: a message with an offset of the old queue would make those of the new one
    repeats.
    """
    if dispatch is None:
        remove_queue(store, topic, queue_id)
        return
    dispatch.wait_appended()
    store.commit_log.core.take()
    try:
        dispatch.wait_appended()
        with dispatch.paused():
            queue = store.queue_table.get(topic, queue_id)
            if queue is not None and still(queue):
                remove_queue(store, topic, queue_id)
    finally:
        store.commit_log.core.release()


def remove_queue(store: StoreFiles, topic: str, queue_id: int) -> None:
    """Destroy a queue while puts wait and nothing is dispatched.

    After a failure its next offset is the end of its remaining files. Raises StoreIOError.
    """
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
