"""`sync_point` and `checkpoint` name the part of the log that flushes have made durable."""

from __future__ import annotations

from typing import NamedTuple

from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.index.sync_point import SyncPointFile
from pyrocketstore.system.env import Env

__all__ = ["Flushed", "read_flushed"]


class Flushed(NamedTuple):
    """A part of the log that was durable.

    Parameters
    ----------
    phy_offset : int, byte of the log before which everything was durable, by `sync_point`, also if
        recovery does not believe the rest of that file; -1: unknown
    timestamp : int, Unix ms, store time up to which it was, by `checkpoint`; 0: unknown
    """

    phy_offset: int
    timestamp: int


def read_flushed(env: Env, root: str) -> Flushed:
    """Return the part of the log that flushes have made durable.

    The caller lists the log after this call: the log of a live owner then has all of that part.
    Raises StoreIOError.
    """
    point = SyncPointFile(env, root).read()
    checkpoint = StoreCheckpoint(env, f"{root}/checkpoint", read_only=True)
    return Flushed(-1 if point is None else point.phy_offset, checkpoint.physic_msg_timestamp)
