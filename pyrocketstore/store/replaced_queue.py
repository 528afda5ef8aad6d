"""Whether the owner of a read-only store has removed a queue, or made it again, beside a reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyrocketstore.consume_queue.unit_mark import mark_before, was_made_again
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreError

if TYPE_CHECKING:
    from pyrocketstore.reading.by_queue import QueueRange
    from pyrocketstore.reading.rocketmq_reads import StoreReads

LOG = logger(__name__)


class ReplacedQueue:
    """Return whether a queue has lost the messages before `stop`; the call refreshes the store.

    A reader of the old queue that finds the files of a new one would take its units for damage.

    Parameters
    ----------
    refresh : callable(), loads what the owner has changed. Raises StoreError
    reads : callable() -> StoreReads of this moment
    part : QueueRange, what is read
    stop : int, the queue offset up to which it is read
    """

    def __init__(
        self,
        refresh: Callable[[], object],
        reads: Callable[[], StoreReads],
        part: QueueRange,
        stop: int,
    ) -> None:
        self._refresh, self._reads = refresh, reads
        self._queue = part.queue.topic, part.queue.queue_id
        self._mark = mark_before(part.queue, stop, part.log.get_max_offset())
        self._is_replaced = False

    def __call__(self) -> bool:
        if not self._is_replaced:
            try:
                self._refresh()
            except StoreError as error:
                root = self._reads().config.store_path_root_dir
                LOG.warning("%s: the store could not be refreshed: %s", root, error)
                return False  # the caller reports what it could not read
            queue = self._reads().queues.find(*self._queue)
            self._is_replaced = was_made_again(queue, self._mark, if_missing=True)
        return self._is_replaced
