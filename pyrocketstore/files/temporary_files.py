"""Remove temporary files of processes that were killed while they made a file (_writes.pyx)."""

from __future__ import annotations

import errno
import os
import re

from pyrocketstore.display import logger
from pyrocketstore.errors import StoreIOError
from pyrocketstore.system.env import Env, parent_directory

__all__ = [
    "is_temporary_queue_file",
    "remove_temporary_file",
    "remove_temporary_files",
    "remove_temporary_queue_files",
]

LOG = logger(__name__)

TEMPORARY_NAME = re.compile(r"\.(.+)\.[0-9]{17,20}\.new", re.ASCII | re.DOTALL)
QUEUE_ID = re.compile(r"[+-]?[0-9]+", re.ASCII)


def remove_temporary_files(env: Env, directory: str) -> None:
    """Remove temporary files of new files in `directory` from the directory above it.

    Raises StoreIOError. Nothing is removed when the directory above may not be read.
    """
    above = parent_directory(directory)
    try:
        names = env.listdir(above)
    except StoreIOError as error:
        if error.errno == errno.EACCES:
            return
        raise
    for name in names:
        match = TEMPORARY_NAME.fullmatch(name)
        if match is not None and match[1] == os.path.basename(directory):
            remove_temporary_file(env, f"{above}/{name}")


def is_temporary_queue_file(name: str) -> bool:
    """Return whether a name in a topic's directory is a temporary file of a queue's new file."""
    match = TEMPORARY_NAME.fullmatch(name)
    return match is not None and QUEUE_ID.fullmatch(match[1]) is not None


def remove_temporary_queue_files(env: Env, topic_directory: str) -> None:
    """Remove temporary files of a topic's queues. Raises StoreIOError."""
    for name in env.listdir(topic_directory):
        if is_temporary_queue_file(name):
            remove_temporary_file(env, f"{topic_directory}/{name}")


def remove_temporary_file(env: Env, path: str) -> None:
    """Remove one temporary file. Raises StoreIOError."""
    LOG.info("%s: removed a temporary file of a killed process", path)
    env.unlink(path)
