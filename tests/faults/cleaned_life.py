"""The part of a life in which a topic is deleted, expired files go, and futures are waited for.

Whatever fails, a message that was PUT_OK after the deletion is in its place.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyrocketstore
from pyrocketstore import DefaultMessageStore, MessageExtBrokerInner, PutMessageStatus
from pyrocketstore._message import properties_to_string

WAIT_S = 30.0


class Kept(NamedTuple):
    """A message that was PUT_OK once the topic had been deleted."""

    session: int
    topic: str
    queue_offset: int
    phy_offset: int
    body: bytes


class CleanedStore:
    """What a life does with a store that deletes, and what must be there at the end.

    `unclean`: the sessions that an error ended. The log has the old messages of the deleted topic
    too, and a recovery brings back what was not in the queue as theirs: that is promised by
    physical offset alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept: list[Kept] = []
        self.unclean: set[int] = set()
        self._count = 0

    def put(self, store: pyrocketstore.Store, session: int, topic: str, *, keep: bool) -> None:
        """One message, in turn by the face and with a future."""
        self._count += 1
        body = b"%d " % self._count + bytes(600 if topic == "kept" else 20)
        key = f"c{self._count}"
        if self._count % 2:
            put = store.put(topic, body, keys=key)
            at = put.queue_offset, put.phy_offset
        else:
            message = MessageExtBrokerInner(topic, body, properties={"KEYS": key})
            message.properties_string = properties_to_string(message.properties)
            result = store.message_store.async_put_message(message).result(WAIT_S)
            if result.status is not PutMessageStatus.PUT_OK:
                raise pyrocketstore.PutError(result.status, False, 0, str(result.error))
            at = result.queue_offset, result.phy_offset
        if keep:
            self.kept.append(Kept(session, topic, *at, body))

    def delete_topic(self, store: pyrocketstore.Store) -> None:
        """All queues but those of "kept"; nothing is promised of what they held."""
        self.kept = [kept for kept in self.kept if kept.topic == "kept"]
        store.message_store.clean_unused_topic(["kept"])

    def delete_expired(self, store: pyrocketstore.Store) -> None:
        """Files of the log, and then what only named messages in them."""
        below: DefaultMessageStore = store.message_store
        dispatched = below.get_max_phy_offset() - below.dispatch_behind_bytes()
        files = below.commit_log.mapped_file_queue
        files.delete_expired_file_by_time(0, clean_immediately=True, before=dispatched)
        lowest = below.get_min_phy_offset()
        for queue in below.consume_queues():
            queue.delete_expired_file(lowest)
        below.index_service.delete_expired_file(lowest)

    def check(self, store: pyrocketstore.Store) -> None:
        """Everything that was kept is there, but for what has expired."""
        lowest = store.message_store.get_min_phy_offset()
        for kept in self.kept:
            if kept.phy_offset < lowest:
                continue
            message = store.get(kept.phy_offset)
            assert message is not None, kept
            assert message.body == kept.body, kept
            if kept.session in self.unclean and kept.topic == "gone":
                continue
            queued = next(iter(store.read(kept.topic, 0, start=kept.queue_offset)), None)
            assert queued is not None, kept
            assert (queued.queue_offset, queued.body) == (kept.queue_offset, kept.body), kept
            assert message.keys is not None
            found = [hit.phy_offset for hit in store.query(kept.topic, message.keys)]
            assert kept.phy_offset in found, kept
