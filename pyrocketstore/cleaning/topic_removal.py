"""Remove the messages of one topic, all or the old ones, though the log keeps their records.

The log has the messages of all topics in the same files. A topic therefore gets a minimum, a byte
of the log before which its messages do not count: no dispatch writes their units again, and no
query returns them. config/topicMinOffset.json has the minimum before anything else is changed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from pyrocketstore.cleaning.queue_removal import remove_queue
from pyrocketstore.cleaning.retention import Trimmed
from pyrocketstore.commit_log.topic_min_offset_file import (
    RecordProof,
    TopicMinimum,
    last_record_before,
    record_proof,
)
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.dispatch.reput import ReputMessageService
from pyrocketstore.display import logger, shown
from pyrocketstore.errors import StoreError, StoreFormatError, StoreIOError
from pyrocketstore.record.message import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, check_topic
from pyrocketstore.recovery.store_files import StoreFiles

__all__ = ["TopicRemoval", "check_removable"]

LOG = logger(__name__)

#: A directory that has other files, a link in its place, and none.
_STAYS = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.ENOENT)
#: Units that are read at once.
_UNITS = 1024


def check_removable(topic: Any) -> str:
    """Return the name of a topic of which messages may be removed.

    Raises StoreTypeError, StoreFormatError: it is not a valid name, or a broker keeps the topic for
    itself.
    """
    name = check_topic(topic)
    if name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX):
        raise StoreFormatError(
            f"topic {shown(name)}: its messages belong to the broker and cannot be removed alone; "
            "trim(before=...) removes old messages of all topics"
        )
    return name


class TopicRemoval(NamedTuple):
    """Remove messages of a topic from a store that is open for writing.

    Parameters
    ----------
    store : StoreFiles
    dispatch : ReputMessageService, None while the store is opened: only `complete` is possible
    flush_log : callable(), makes all records durable that are in the log
    flush_up_to : callable(phy_offset), makes all records before a byte of the log durable, with
        their units and the names of their topics
    forget_topic, forget_positions : callable(topic), durably removes the topic from topics.json,
        and the positions of all groups in it
    read_positions : callable(), raises StoreError where `forget_positions` cannot read its file
    guess : callable(), returns a byte of the log at which its last record may begin, or -1
    delete_lock : held while files are deleted, shared with other deletions of expired files

    Threads: one at a time.
    """

    store: StoreFiles
    dispatch: ReputMessageService | None
    flush_log: Callable[[], object]
    flush_up_to: Callable[[int], object]
    forget_topic: Callable[[str], None]
    forget_positions: Callable[[str], None]
    read_positions: Callable[[], object]
    guess: Callable[[], int]
    delete_lock: AbstractContextManager[object]

    def drop(self, topic: str) -> None:
        """Remove a topic: its messages, its queues, its name, and the positions of groups.

        Puts wait while the queues are removed. A put that was called before may be removed too; a
        later one begins the topic again, at queue offset 0.

        Durability: durable on return. After a kill, the next opening completes a removal that has
        begun. Raises StoreError; the call may be repeated. A file of positions that cannot be read
        refuses it before anything is removed.
        """
        self.read_positions()
        proof = self._flushed_end()
        if proof is not None:
            self._put(topic, proof.phy_offset + proof.size, proof, is_dropping=True)
        self._forget(topic)
        proof = self._remove_queues(topic)
        self.forget_positions(topic)  # those of commits that still saw the queues
        self._flush_removal(topic)
        if proof is not None:  # otherwise no message is left that could come back
            self._put(topic, proof.phy_offset + proof.size, proof, is_dropping=False)

    def trim(self, topic: str, before_ms: int) -> Trimmed:
        """Remove the messages of a topic that were stored before `before_ms` (Unix ms), and the
        files of its queues that name no other ones.

        A message that was stored before a removed one of another queue, by the order of the log,
        stays: with a clock that was never set back there is none.

        Returns the deleted files of queues. Durability: as of `drop`. Raises StoreError.
        """
        store, log = self.store, self.store.commit_log
        assert self.dispatch is not None
        last = self._flushed_end()  # first: messages that are put meanwhile stay
        if last is None:
            return Trimmed(0, 0)
        end = last.phy_offset + last.size
        for queue in store.queue_table.of_topic(topic).values():
            end = min(end, self._first_since(queue, before_ms, end))
        if end > log.min_offsets.of(topic) and end > log.get_min_offset():
            self.flush_up_to(end)  # no recovery derives those of removed messages
            self._put(topic, end, record_proof(log, end) or last, is_dropping=False)
        with self.dispatch.paused():
            store.set_min_offsets(store.topic_minimums.offsets().by_topic())
        files = size = 0
        log.flush_deletions()  # the messages of a file that comes back have their units
        for queue in store.queue_table.of_topic(topic).values():
            with self.delete_lock:
                count = queue.delete_expired_file(max(0, log.get_min_offset()))
            files, size = files + count, size + count * queue.mapped_file_size
        return Trimmed(files, size)

    def complete(self) -> None:
        """Complete the removals that a kill or an error has interrupted, while the store is opened.

        A queue with messages behind the minimum keeps them: they were put meanwhile. A removal that
        cannot be completed is left to the next opening, with a warning: until then, the minimum of
        the topic hides its removed messages.
        """
        for topic in self.store.topic_minimums.dropping():
            minimum = self.store.topic_minimums.get(topic)
            assert minimum is not None
            LOG.warning("%s: the removal of the topic %s is completed", self.store.root, topic)
            try:
                self._complete(topic, minimum)
            except StoreError as error:
                LOG.warning(
                    "%s: the removal of the topic %s is not complete, and the next opening or"
                    " drop_topic tries again: %s",
                    self.store.root,
                    topic,
                    error,
                )

    def _complete(self, topic: str, minimum: TopicMinimum) -> None:
        table = self.store.queue_table
        queues = table.of_topic(topic).values()
        removed = [q.queue_id for q in queues if q.covered_phy_offset <= minimum.min_phy_offset]
        if len(removed) == len(queues):  # first: a queue begins again at 0, without old positions
            self._forget(topic)
        for queue_id in removed:
            table.remove(topic, queue_id)
        if not table.of_topic(topic):
            self._remove_directories(topic)
        self._flush_removal(topic)
        self._put(topic, minimum.min_phy_offset, minimum.proof, is_dropping=False)

    def _forget(self, topic: str) -> None:
        self.forget_topic(topic)
        self.forget_positions(topic)

    def _put(self, topic: str, end: int, proof: RecordProof, *, is_dropping: bool) -> None:
        self.store.topic_minimums.put(
            topic, TopicMinimum(end, proof, is_dropping), self.store.commit_log
        )

    def _flushed_end(self) -> RecordProof | None:
        """Return the last record of the log once it is durable and dispatched, None without one.

        Beside puts it is one after those that returned before this call.
        """
        store, log = self.store, self.store.commit_log
        assert self.dispatch is not None
        self.dispatch.wait_appended()
        last, end = int(store.dispatcher.last_phy_offset), log.get_max_offset()
        self.flush_log()
        return record_proof(log, last) or last_record_before(store.env, log, end, self.guess())

    def _remove_queues(self, topic: str) -> RecordProof | None:
        """Destroy the queues of a topic while puts wait.

        The file has the minimum before, because the next put begins the queues again at 0: after a
        kill, messages that were put since `drop` was called would have the offsets of both.

        Returns the last record of the log, up to which the removed messages are; None without one.
        """
        store, log = self.store, self.store.commit_log
        assert self.dispatch is not None
        self.dispatch.wait_appended()
        log.core.take()
        try:
            self.dispatch.wait_appended()
            with self.dispatch.paused():
                end, proof = log.get_appended_offset(), None
                if end > 0:
                    self.flush_log()
                    proof = last_record_before(store.env, log, end, self.guess())
                    if proof is not None:
                        self._put(topic, proof.phy_offset + proof.size, proof, is_dropping=True)
                    store.set_min_offsets({**log.min_offsets.by_topic(), topic: end})
                for queue_id in store.queue_table.of_topic(topic):
                    remove_queue(store, topic, queue_id)
                self._remove_directories(topic)
        finally:
            log.core.release()
        return proof

    def _remove_directories(self, topic: str) -> None:
        """Remove the directories of a topic if they are empty."""
        table = self.store.queue_table
        for folder in (table.path, table.ext_path):
            try:
                self.store.env.rmdir(os.path.join(folder, topic))
            except StoreIOError as error:
                if error.errno not in _STAYS:
                    raise

    def _flush_removal(self, topic: str) -> None:
        """Make the removal of queues durable: later, their units would not be known as removed."""
        table, env = self.store.queue_table, self.store.env
        for folder in (table.path, table.ext_path):
            for path in (folder, os.path.join(folder, topic)):
                if env.is_dir(path):
                    env.fsync_directory(path)

    def _first_since(self, queue: ConsumeQueue, before_ms: int, end: int) -> int:
        """Return where the first message of a queue that was stored at `before_ms` or later begins,
        bytes of the log; `end` without one before that byte."""
        log = self.store.commit_log
        at = queue.lower_bound_by_time(before_ms, log.pickup_store_timestamp)
        while at < queue.get_max_offset_in_queue():
            units = queue.read_units(at, _UNITS)
            named = units.phy_offset[(units.size > 0) & ~units.is_pre_blank()]
            if len(named):
                return min(int(named[0]), end)
            at += max(1, len(units.size))
        return end
