"""Traces that the owner of a store leaves when it does more than append.

A read-only store that follows its owner uses what it knows while none of them has changed.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from pyrocketstore.commit_log.topic_min_offset_file import TOPIC_MIN_OFFSET
from pyrocketstore.errors import StoreIOError

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

__all__ = ["Owner", "owner_of"]

_Identity = tuple[int, int] | None
Owner = tuple[_Identity, int, _Identity, bytes]


def owner_of(env: Env, root: str) -> Owner:
    """Return a value that changes when a process opens the store for writing, closes it, or
    removes messages of a topic.

    Both engines write to `lock` when they open a store, and create and delete `abort`. A removal of
    messages replaces the file of minimums twice: the second new file may have the inode of the one
    that was there before. Raises StoreIOError.
    """
    lock = os.path.join(root, "lock")
    minimums = os.path.join(root, "config", TOPIC_MIN_OFFSET)
    return (
        env.identity_at(lock),
        env.modified_ms(lock),
        env.identity_at(os.path.join(root, "abort")),
        _bytes(env, minimums),
    )


def _bytes(env: Env, path: str) -> bytes:
    """Return the content of a file, b"" if it is missing."""
    try:
        # A directory that cannot be searched has no such file, as for the loading.
        return env.read_file(path) if env.exists(path) else b""
    except StoreIOError as error:
        if error.errno == errno.ENOENT:
            return b""
        raise
