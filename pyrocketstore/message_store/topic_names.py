"""Check that a topic without queues is known to a store, before it is read."""

from __future__ import annotations

import os
from collections.abc import Collection

from pyrocketstore.errors import StoreCorruptionError, StoreIOError, UnknownTopicError
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.record.message import SYSTEM_TOPICS
from pyrocketstore.system.env import Env
from pyrocketstore.system.signal_shield import imported

#: At most this many names are compared: each takes about 10 µs.
_COMPARED = 2000


def check_known(env: Env, root: str, topic: str, with_queues: Collection[str]) -> None:
    """Accept a topic without queues if it is a system topic, has a directory, or is in topics.json.

    Parameters
    ----------
    env : Env
    root : the store's root directory
    topic : str
    with_queues : topics that have queues

    Raises UnknownTopicError, which names the nearest topic.
    """
    if topic in SYSTEM_TOPICS:
        return
    configured = _configured(env, root)
    if topic in configured or _has_directory(env, root, topic):
        return
    raise UnknownTopicError(root, topic, _nearest(topic, {*with_queues, *configured}))


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
