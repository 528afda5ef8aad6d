"""The calls of DefaultMessageStore that remove messages, topics and queues."""

from __future__ import annotations

from collections.abc import Iterable

from pyrocketstore.arguments.scalars import exact_int64, exact_text, texts_of
from pyrocketstore.cleaning.retention import Trimmed
from pyrocketstore.cleaning.topic_removal import check_removable
from pyrocketstore.display import shown
from pyrocketstore.errors import StoreFormatError, StoreStateError
from pyrocketstore.message_store.program_dispatch import ProgramDispatch
from pyrocketstore.message_store.put_calls import PutCalls
from pyrocketstore.message_store.read_calls import part
from pyrocketstore.record.message import LMQ_PREFIX


class RemovalCalls(PutCalls):
    """Removes messages, topics and queues; DefaultMessageStore is its subclass."""

    program_dispatch: ProgramDispatch = part("program_dispatch")

    def clean_unused_topic(self, topics: Iterable[str]) -> int:
        """Destroy the queues of every topic that is not in `topics`. Returns 0, as in Java.

        Raises StoreTypeError: `topics` are not several str. StoreIOError.

        Source: RocketMQ 4.9.3 DefaultMessageStore#cleanUnusedTopic.
        """
        kept = texts_of("topics", topics)
        self.engine.program_dispatch.refuse_call()
        self.engine.removals.clean_unused_topic(kept)
        return 0

    def clean_unused_lmq_topic(self, topic: str) -> None:
        """Remove a light queue as `drop_topic` does, if there is one; its next offset is 0.

        Parameters
        ----------
        topic : str, its whole name, which begins with ``%LMQ%``

        Raises StoreFormatError for another topic; as `drop_topic`.
        Source: RocketMQ 4.9.3 DefaultMessageStore#cleanUnusedLmqTopic.
        Differs: 4.9.3 builds the removed queue again if it is killed, and of a topic that is not
        light it destroys queue 0 and forgets the others.
        """
        name = exact_text("topic", topic)
        if not name.startswith(LMQ_PREFIX):
            reason = f"the name of a light queue begins with {LMQ_PREFIX}"
            raise StoreFormatError(f"topic {shown(name)}: {reason}")
        self.wait_dispatched()
        if self.engine.files.queue_table.of_topic(name):
            self.drop_topic(name)

    def clean_expired_consumer_queue(self) -> None:
        """Destroy queues that end before the first record of the log.

        Source: RocketMQ 4.9.3 DefaultMessageStore#cleanExpiredConsumerQueue.
        """
        self.engine.program_dispatch.refuse_call()
        self.engine.removals.clean_expired_consumer_queue()

    def drop_topic(self, topic: str) -> None:
        """Remove a topic: its messages, its queues, its entry in topics.json, and the positions of
        all groups in it.

        The log keeps the records until its files are deleted: `look_message_by_offset` still finds
        them, and so does 4.9.3.

        Durability: durable on return. After a kill, the next opening completes a removal that has
        begun.

        Raises StoreTypeError, StoreFormatError: the topic is not valid, or one of the broker
        itself. StoreStateError: the store is not started. StoreError: a file cannot be written or
        deleted; the call may be repeated.
        """
        name = check_removable(topic)
        self.engine.program_dispatch.refuse_call()
        self.engine.removals.drop(name)

    def trim_topic(self, topic: str, before_ms: int) -> Trimmed:
        """Remove the messages of a topic that were stored before `before_ms` (Unix ms), and the
        files of its queues that name no other ones.

        Returns the deleted files of queues. Durability and errors: as of `drop_topic`.
        """
        name, time_ms = check_removable(topic), exact_int64("before_ms", before_ms)
        self.engine.program_dispatch.refuse_call()
        return self.engine.removals.trim_topic(name, time_ms)

    def trim(self, before_ms: int) -> Trimmed:
        """Delete the oldest files of the log whose newest message was stored before `before_ms`
        (Unix ms), and what queues and index have of them.

        The last file, and files that are not dispatched yet, are kept. Durability: the deletions
        of files of the log are durable on return.

        Raises StoreStateError when the store is not started, StoreError for a file that cannot be
        read or deleted.
        """
        return self.engine.removals.trim(exact_int64("before_ms", before_ms))

    def check_started(self) -> None:
        """Raise StoreStateError unless the store is open for writing and its services run."""
        self.engine.removals.check_started()

    def execute_delete_files_manually(self) -> None:
        """Have the next 20 rounds of cleaning delete expired files at any hour.

        Raises StoreStateError when the store is not started, or does not clean.
        Source: RocketMQ 4.9.3 DefaultMessageStore#executeDeleteFilesManually.
        """
        if not self.engine.life.is_started or self.engine.services.clean_commit_log is None:
            raise StoreStateError("the store is not started, or was opened with cleans=False")
        self.engine.services.clean_commit_log.execute_delete_files_manually()
