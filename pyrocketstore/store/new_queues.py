"""New queues: their topics are added to config/topics.json."""

from __future__ import annotations

from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.errors import PutError
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.record.message import LMQ_PREFIX
from pyrocketstore.results import PutMessageStatus


class NewQueues:
    """Has the topics of new queues added to config/topics.json; it holds no reference to the store.

    Parameters
    ----------
    config : MessageStoreConfig
    topics : TopicConfigFile; None: no topics.json is kept

    Threads: any.
    """

    def __init__(self, config: MessageStoreConfig, topics: TopicConfigFile | None) -> None:
        self._enable_lmq = config.enable_lmq
        self.topics = topics

    def add(self, topic: str, queue_id: int) -> None:
        """Have the topic of a queue added, before its first put; the file is written later.

        Raises PutError while the file cannot be written. StoreFormatError, StoreStateError.
        """
        light = self._enable_lmq and topic.startswith(LMQ_PREFIX)
        if self.topics is None or light:  # a broker knows light queues by their messages
            return
        error = self.topics.error
        if error is not None:
            raise PutError(
                PutMessageStatus.SERVICE_NOT_AVAILABLE, False, 0, f"config/topics.json: {error}"
            ) from error
        self.topics.request(topic, queue_id)
