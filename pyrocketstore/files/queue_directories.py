"""The directories of consume queues, ROOT/consumequeue/<topic>/<queue id>, before they are
opened."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

from pyrocketstore.display import logger
from pyrocketstore.errors import StoreIOError
from pyrocketstore.files.temporary_files import is_temporary_queue_file
from pyrocketstore.system.env import Env

__all__ = [
    "FoundTopic",
    "check_queue_directory",
    "find_queue_ids",
    "find_queues",
    "find_topics",
]

LOG = logger(__name__)


class FoundTopic(NamedTuple):
    """A topic with its queue ids, sorted; None for a topic that is left out. `is_link`: a symbolic
    link may be in place of its directory."""

    topic: str
    queue_ids: list[int] | None
    is_link: bool


def find_queues(
    env: Env,
    directory: str,
    *,
    warn: bool = True,
    on_temporary: Callable[[str], object] = lambda path: None,
    only: Container[str] | None = None,
) -> Iterator[FoundTopic]:
    """Yield each topic with its queue ids, sorted, as the names in `directory` say.

    Names that are not valid, and names of files, are skipped; `warn` logs their paths.
    `on_temporary` is called with each temporary file that a killed process was creating. Topics
    outside of `only` are left out: their directories are not listed. Raises StoreIOError.

    Source: RocketMQ 4.9.3 DefaultMessageStore#loadConsumeQueue.
    Differs: 4.9.3 takes a file for an empty queue, and skips the others silently.
    """
    for topic, is_link in _topics(env, directory, warn):
        if only is not None and topic not in only:
            yield FoundTopic(topic, None, is_link)
            continue
        path = f"{directory}/{topic}"
        # A directory needs no check for links: the one above it was checked.
        entries = env.entries(path) if is_link else _entries_of(env, path)
        ids = _queue_ids(env, path, entries, warn, on_temporary)
        yield FoundTopic(topic, sorted(ids), is_link)


def find_topics(env: Env, directory: str, *, warn: bool = True) -> Iterator[str]:
    """Yield the topics with a directory, as `find_queues` does."""
    for topic, _ in _topics(env, directory, warn):
        yield topic


def find_queue_ids(env: Env, path: str, *, warn: bool = True) -> set[int]:
    """Return the queue ids in the directory of a topic, as `find_queues` does."""
    return _queue_ids(env, path, env.entries(path), warn, lambda path: None)


def _topics(env: Env, directory: str, warn: bool) -> Iterator[tuple[str, bool]]:
    """Yield (topic, whether a symbolic link may be in place of its directory)."""
    for topic, kind in env.entries(directory):
        path = f"{directory}/{topic}"
        if not _is_text(topic):
            _skip(path, "the name is not valid UTF-8, so it is not a topic", warn)
        elif kind != "d" and not env.is_dir(path):
            _skip(path, "not a directory, so it is not a topic", warn)
        else:
            yield topic, kind != "d"


def _queue_ids(
    env: Env,
    path: str,
    entries: list[tuple[str, str]],
    warn: bool,
    on_temporary: Callable[[str], object],
) -> set[int]:
    ids = set()
    for name, kind in entries:
        queue_path = f"{path}/{name}"
        queue_id = _queue_id(name)
        if queue_id is None and is_temporary_queue_file(name):
            on_temporary(queue_path)
        elif queue_id is None:
            _skip(queue_path, "the name is not a valid queue id", warn)
        elif kind != "d" and not env.is_dir(queue_path):
            _skip(queue_path, "not a directory, so it is not a queue", warn)
        else:
            ids.add(queue_id)
    return ids


def _entries_of(env: Env, path: str) -> list[tuple[str, str]]:
    """Return the entries of a directory, which a symbolic link must not replace meanwhile."""
    try:
        return env.list_directory(path, follow=False)
    except StoreIOError as error:
        if error.errno != errno.ENOENT:
            raise
        return []


def _skip(path: str, reason: str, warn: bool) -> None:
    if warn:
        LOG.warning("%s: skipped: %s", path, reason)


def check_queue_directory(env: Env, directory: str, topic: str, queue_id: int) -> None:
    """Raise StoreIOError if the path of a queue names something that is not a directory."""
    path = f"{directory}/{topic}"
    for name in (path, f"{path}/{queue_id}"):
        if not env.has_name(name):
            return
        if not env.is_dir(name):
            raise StoreIOError(errno.ENOTDIR, "mkdir", name)


def _is_text(name: str) -> bool:
    """Return whether a file name is UTF-8, as topics are."""
    if name.isascii():
        return True
    data = os.fsencode(name)
    try:
        data.decode("utf-8")
    except UnicodeError:
        return False
    return True


def _queue_id(name: str) -> int | None:
    """Parse a directory name as Java's Integer.parseInt does; None for an invalid one."""
    digits = name[1:] if name[:1] in ("+", "-") else name
    if not digits.isascii() or not digits.isdigit():
        return None
    value = int(name)
    return value if -(1 << 31) <= value < 1 << 31 else None
