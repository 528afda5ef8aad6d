"""The folder for data that recovery removes from a store."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyrocketstore.display import logger

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

__all__ = ["broken_folder", "copy_to_broken", "move_to_broken"]

LOG = logger(__name__)


def broken_folder(env: Env, root: str) -> str:
    """Return ROOT/.broken/<local time>, which the caller makes."""
    return f"{root}/.broken/{env.local_time_name(env.now_ms())}"


def copy_to_broken(env: Env, root: str, ranges: list[tuple[str, int, int]]) -> None:
    """Copy (path, position, size) of files of the log, each to a file named by its physical offset.

    Durability: durable on return. Raises StoreIOError.
    """
    if not ranges:
        return
    folder = broken_folder(env, root)
    env.make_directories(folder)
    for path, position, size in ranges:
        start = int(os.path.basename(path)) + position
        target = os.path.join(folder, f"{start:020d}")
        env.copy_range(path, target, position, size)
        LOG.warning("%d bytes from byte %d of %s were copied to %s", size, position, path, target)


def move_to_broken(env: Env, root: str, names: Iterable[str]) -> str:
    """Move directories of the root that exist; return the new folder. Raises StoreIOError."""
    folder = broken_folder(env, root)
    env.make_directories(folder)
    for name in names:
        if env.is_dir(os.path.join(root, name)):
            env.rename(os.path.join(root, name), os.path.join(folder, name))
    return folder
