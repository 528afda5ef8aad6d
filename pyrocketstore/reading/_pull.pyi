from typing import Final, Self, final

from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.reading.rocketmq_reads import GetMessageResult, MessageFilter

__test__: Final[dict[str, object]]

@final
class UnitPull:
    def __new__(cls, log: CommitLog, config: MessageStoreConfig, memory_bound: int) -> Self: ...
    def collect(
        self,
        result: GetMessageResult,
        queue: ConsumeQueue,
        offset: int,
        count: int,
        max_msg_nums: int,
        message_filter: MessageFilter | None,
    ) -> bool: ...
