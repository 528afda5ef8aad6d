"""The part of a life in which a topic is deleted, expired files are removed, and futures are
awaited.

Whatever fails, a message that was PUT_OK after the deletion is at its offset.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyrocketstore
from pyrocketstore import MessageExtBrokerInner, PutMessageStatus
from pyrocketstore.arguments.scalars import INT64_MAX
from pyrocketstore.record._message import properties_to_string

WAIT_S = 30.0


class Kept(NamedTuple):
    """A message that was PUT_OK after the deletion of the topic."""

    session: int
    topic: str
    queue_offset: int
    phy_offset: int
    body: bytes


class CleanedStore:
    """The steps of a life with a store that deletes, and the messages that must survive.

    `unclean`: the sessions that an error ended. The log still has the old messages of the deleted
    topic, and a recovery may restore them too. Messages that were not in the queue are therefore
    promised by physical offset alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept: list[Kept] = []
        self.unclean: set[int] = set()
        self._count = 0

    def put(self, store: pyrocketstore.Store, session: int, topic: str, *, keep: bool) -> None:
        """Put one message, alternately through `Store` and with a future."""
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
        """Delete all queues but those of "kept"; their messages are no longer promised."""
        self.kept = [kept for kept in self.kept if kept.topic == "kept"]
        store.message_store.clean_unused_topic(["kept"])

    def delete_expired(self, store: pyrocketstore.Store) -> None:
        """Delete files of the log, and then queue and index files that only name messages there."""
        store.trim(before=INT64_MAX)

    def check(self, store: pyrocketstore.Store) -> None:
        """Require that every promised message exists unless it has expired."""
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
