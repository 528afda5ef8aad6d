"""Check that a topic is known to a store, before it is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from pyrocketstore.errors import (
    StoreCorruptionError,
    StoreError,
    StoreIOError,
    UnknownTopicError,
)
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.record.message import SYSTEM_TOPICS
from pyrocketstore.schedule.pending import is_awaited
from pyrocketstore.system.env import Env
from pyrocketstore.system.signal_shield import imported

if TYPE_CHECKING:
    from pyrocketstore.reading.rocketmq_reads import StoreReads

#: At most this many names are compared: each takes about 10 µs.
_COMPARED = 2000


def check_known(
    reads: StoreReads,
    topics: TopicConfigFile | None,
    check_root: Callable[[], None],
    topic: str,
    delay_offsets: Callable[[], dict[int, int]],
    half_offset: Callable[[], int],
) -> None:
    """Accept a topic that somebody has put to: one with a queue, a system topic, one that is in
    topics.json or has a directory, and the real topic of a delayed or half message that waits.

    Parameters
    ----------
    reads : StoreReads
    topics : topics.json, None where none is kept
    check_root : callable(), raises StoreStateError if the directory of a read-only store was moved
        or replaced
    topic : str
    delay_offsets : callable(), {level: offset of the next message to deliver}; raises StoreError
    half_offset : callable(), the queue offset of the first half message that counts

    Only a topic that is known by nothing else costs a look at each message that waits: topics.json
    may lack it where no such file is kept, or since its owner has not written it yet.

    Raises UnknownTopicError, which names the nearest topic. StoreIOError; as `check_root`.
    """
    if reads.queues.of_topic(topic) or topic in SYSTEM_TOPICS:
        return
    check_root()
    root = reads.config.store_path_root_dir
    # The object also knows topics that the store will add to the file with its next write.
    configured = _configured(reads.env, root) if topics is None else topics.topics()
    if topic in configured or _has_directory(reads.env, root, topic):
        return
    try:
        offsets = delay_offsets()
    except StoreError:
        offsets = {}  # all that the log still has
    if is_awaited(reads.commit_log, reads.queues, topic, offsets, half_offset()):
        return
    raise UnknownTopicError(root, topic, _nearest(topic, {*reads.queues.topics(), *configured}))


def _configured(env: Env, root: str) -> Collection[str]:
    """Return the topics of topics.json; none when it cannot be read: readers do not need it."""
    file = TopicConfigFile(env, os.path.join(root, "config", "topics.json"))
    try:
        file.load()
    except (StoreCorruptionError, StoreIOError):
        return ()
    return file.topics()


def _has_directory(env: Env, root: str, topic: str) -> bool:
    if topic in ("", ".", "..") or "/" in topic or "\0" in topic:
        return False
    try:
        return bool(env.is_dir(os.path.join(root, "consumequeue", topic)))
    except (OSError, UnicodeEncodeError):  # not a valid name in this file system
        return False


def _nearest(topic: str, known: Collection[str]) -> str | None:
    """Return the most similar known name, or None."""
    candidates = [name for name in sorted(known) if abs(len(name) - len(topic)) <= len(topic)]
    if len(candidates) > _COMPARED:
        alike = [name for name in candidates if name[:1].lower() == topic[:1].lower()]
        candidates = (alike or candidates)[:_COMPARED]
    by_lower = {name.lower(): name for name in candidates}
    found = imported("difflib").get_close_matches(topic.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[found[0]] if found else None
