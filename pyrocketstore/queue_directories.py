"""The directories of consume queues, ROOT/consumequeue/<topic>/<queue id>, before they are
opened."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from pyrocketstore.display import logger
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreIOError
from pyrocketstore.new_files import is_temporary_queue_file

__all__ = ["check_queue_directory", "find_queues"]

LOG = logger(__name__)


def find_queues(env: Env, directory: str, *, warn: bool = True) -> Iterator[tuple[str, list[int]]]:
    """Yield each topic with its queue ids, sorted, as the names in `directory` say.

    A name that cannot be a topic's or a queue's, and a name that is not a directory's, is passed
    over and left as it is; `warn` logs its path. Raises StoreIOError.

    Source: RocketMQ 4.9.3 DefaultMessageStore#loadConsumeQueue.
    Differs: 4.9.3 takes a file for an empty queue, and says nothing of the others.
    """
    for topic in env.listdir(directory):
        path = os.path.join(directory, topic)
        if not _is_text(topic):
            _pass_over(path, "its name is not UTF-8, so it cannot be a topic's", warn)
        elif not env.is_dir(path):
            _pass_over(path, "it is not a directory, so it cannot be a topic's", warn)
        else:
            ids = set()
            for name in env.listdir(path):
                queue_path = os.path.join(path, name)
                queue_id = _queue_id(name)
                if queue_id is None and is_temporary_queue_file(name):
                    continue
                if queue_id is None:
                    _pass_over(queue_path, "its name is not a queue id", warn)
                elif not env.is_dir(queue_path):
                    _pass_over(queue_path, "it is not a directory, so it cannot be a queue's", warn)
                else:
                    ids.add(queue_id)
            yield topic, sorted(ids)


def _pass_over(path: str, reason: str, warn: bool) -> None:
    if warn:
        LOG.warning("%s: %s; it is left as it is", path, reason)


def check_queue_directory(env: Env, directory: str, topic: str, queue_id: int) -> None:
    """Raise StoreIOError where something that is not a directory has the name of a queue's."""
    path = os.path.join(directory, topic)
    for name in (path, os.path.join(path, str(queue_id))):
        if env.exists(name) and not env.is_dir(name):
            raise StoreIOError(errno.ENOTDIR, "mkdir", name)


def _is_text(name: str) -> bool:
    """Whether a name of a file is UTF-8, which topics are stored in."""
    data = os.fsencode(name)
    try:
        data.decode("utf-8")
    except UnicodeError:
        return False
    return True


def _queue_id(name: str) -> int | None:
    """A directory name as Java's Integer.parseInt takes it, None for any other."""
    digits = name[1:] if name[:1] in ("+", "-") else name
    if not digits.isascii() or not digits.isdigit():
        return None
    value = int(name)
    return value if -(1 << 31) <= value < 1 << 31 else None
