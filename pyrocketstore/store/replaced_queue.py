"""Whether the owner of a read-only store has removed a queue, or made it again, beside a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrocketstore.consume_queue.unit_mark import mark_before, was_made_again
from pyrocketstore.display import logger
from pyrocketstore.errors import StoreError

if TYPE_CHECKING:
    from pyrocketstore.message_store.default_message_store import DefaultMessageStore
    from pyrocketstore.reading.by_queue import QueueRange

LOG = logger(__name__)


class ReplacedQueue:
    """Return whether a queue has lost the messages before `stop`; the call refreshes the store.

    A reader of the old queue that finds the files of a new one would take its units for damage.

    Parameters
    ----------
    engine : DefaultMessageStore, read-only
    part : QueueRange, what is read
    stop : int, the queue offset up to which it is read
    """

    def __init__(self, engine: DefaultMessageStore, part: QueueRange, stop: int) -> None:
        self._engine = engine
        self._queue = part.queue.topic, part.queue.queue_id
        self._mark = mark_before(part.queue, stop, part.log.get_max_offset())
        self._is_replaced = False

    def __call__(self) -> bool:
        if not self._is_replaced:
            try:
                self._engine.refresh()
            except StoreError as error:
                LOG.warning("%s: the store could not be refreshed: %s", self._engine.root, error)
                return False  # the caller reports what it could not read
            queue = self._engine.reads.queues.find(*self._queue)
            self._is_replaced = was_made_again(queue, self._mark, if_missing=True)
        return self._is_replaced
