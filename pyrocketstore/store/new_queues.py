"""New queues: their topics are added to config/topics.json before the first put."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator

from pyrocketstore.commit_log._put_columns import Columns
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.errors import PutError, StoreIOError
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.record.message import LMQ_PREFIX
from pyrocketstore.results import PutMessageStatus
from pyrocketstore.system.signal_shield import shielded

#: A queue id from here on is more likely a mistake of the caller than one of many.
COMING_ID_MAX = 1 << 16


class ComingIds:
    """The queue ids of the put_many that each thread is in.

    Threads: any. A signal handler may call put_many inside of put_many: the ids of the outer call
    are known again when the inner one ends.
    """

    def __init__(self) -> None:
        self._columns: dict[int, Columns] = {}

    @contextlib.contextmanager
    def known(self, columns: Columns) -> Iterator[None]:
        """Note the rows of this thread's call."""
        thread = threading.get_ident()
        outer = self._columns.get(thread)
        self._columns[thread] = columns
        try:
            yield
        finally:
            if outer is None:
                self._columns.pop(thread, None)
            else:
                self._columns[thread] = outer

    def highest(self, queue_id: int) -> int:
        """The highest plausible id of this thread's call, `queue_id` at least."""
        columns = self._columns.get(threading.get_ident())
        highest = -1 if columns is None else columns.highest_queue_id(COMING_ID_MAX)
        return max(highest, queue_id)


class NewQueues:
    """Adds the topics of new queues to config/topics.json; it holds no reference to the store.

    Threads: any.
    """

    def __init__(self, config: MessageStoreConfig) -> None:
        self._enable_lmq = config.enable_lmq
        #: None: no topics.json is kept
        self.topics: TopicConfigFile | None = None
        #: topics.json is written once for all queues of a put_many
        self.coming_ids = ComingIds()

    def add(self, topic: str, queue_id: int) -> None:
        """Add the topic of a queue before its first put. Raises PutError."""
        light = self._enable_lmq and topic.startswith(LMQ_PREFIX)
        if self.topics is None or light:  # a broker knows light queues by their messages
            return
        count = self.coming_ids.highest(queue_id)
        shielded(functools.partial(_add_topic, self.topics, topic, count))


def _add_topic(topics: TopicConfigFile, topic: str, queue_id: int) -> None:
    topics.ensure(topic, queue_id)
    try:
        topics.persist()
    except StoreIOError as error:
        raise PutError(
            PutMessageStatus.SERVICE_NOT_AVAILABLE, False, 0, f"config/topics.json: {error}"
        ) from error
