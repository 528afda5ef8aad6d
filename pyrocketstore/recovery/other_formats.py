"""Directories that another version or mode of RocketMQ has written: only read, or refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyrocketstore.config.dledger import DLEDGER_PREFIX, dledger_directories, dledger_log_of
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.record.message import MAX_TOPIC_SIZE

if TYPE_CHECKING:
    from pyrocketstore.config.message_store_config import MessageStoreConfig
    from pyrocketstore.system.env import Env

_BATCH_QUEUES = "batchconsumequeue"
#: Files and directories that a broker of 5.x makes, and 4.9.3 does not know.
_OF_5X = (
    *("timerwheel", "timerlog", "compaction", "compactionLog", "consumequeue_r", "rocksdbstore"),
    "abort.bak",
)
#: Bytes of the checkpoint that 5.x writes, and 4.9.3 leaves zero.
_CHECKPOINT_OF_5X = (24, 16)


def check_format(env: Env, config: MessageStoreConfig, *, read_only: bool) -> None:
    """Refuse a directory whose format cannot be read, or must not be written.

    Raises StoreFormatError, StoreIOError.
    """
    root = config.store_path_root_dir
    names = env.listdir(root) if env.is_dir(root) else []
    nodes = [f"{root}/{name}" for name in names if name.startswith(DLEDGER_PREFIX)]
    if nodes and not read_only:
        raise StoreFormatError(
            f"{nodes[0]}: a DLedger log, which is only read: open the store with read_only=True"
        )
    if nodes and not dledger_directories(env, root):
        raise StoreFormatError(f"{nodes[0]}: has no directory `data`, so the log cannot be read")
    if nodes and dledger_log_of(config.all_commit_log_paths) is None:
        raise StoreFormatError(
            f"{nodes[0]}: a DLedger log, which is not among the paths of the log: open the store"
            " by pyrocketstore.open, or get its settings from MessageStoreConfig.with_dledger_log"
        )
    batches = os.path.join(root, _BATCH_QUEUES)
    if _BATCH_QUEUES in names and env.is_dir(batches):
        topics = sorted(env.listdir(batches))
        if topics:
            raise StoreFormatError(
                f"{batches}: the topic {topics[0]} has a batch consume queue of RocketMQ 5.x, whose"
                " units have another format: its messages cannot be read"
            )
    if not read_only:
        mark = _mark_of_5x(env, root, names)
        if mark:
            raise _of_5x(mark)


def check_checkpoint(env: Env, root: str) -> None:
    """Refuse to write to a store whose checkpoint 5.x has written; once its lock is taken.

    Raises StoreFormatError, StoreIOError.
    """
    checkpoint = os.path.join(root, "checkpoint")
    if env.exists(checkpoint) and any(env.read_part(checkpoint, *_CHECKPOINT_OF_5X)):
        raise _of_5x(checkpoint)


def _of_5x(mark: str) -> StoreFormatError:
    return StoreFormatError(
        f"{mark}: RocketMQ 5.x has written this store: open it with read_only=True, since 4.9.3's"
        " recovery would remove what it does not know"
    )


def check_writable(env: Env, config: MessageStoreConfig) -> None:
    """Refuse to write to a store as `check_format` and `check_checkpoint` do."""
    check_format(env, config, read_only=False)
    check_checkpoint(env, config.store_path_root_dir)


def why_only_read(env: Env, config: MessageStoreConfig) -> str:
    """Return the reason why a store that is open read-only must not be written; "" without one."""
    try:
        check_writable(env, config)
    except StoreFormatError as error:
        return str(error)
    return ""


def _mark_of_5x(env: Env, root: str, names: list[str]) -> str:
    """Return the path that only 5.x makes, "" without one."""
    for name in (*_OF_5X, _BATCH_QUEUES):
        if name in names:
            return os.path.join(root, name)
    queues = os.path.join(root, "consumequeue")
    for topic in env.listdir(queues) if "consumequeue" in names and env.is_dir(queues) else ():
        if len(os.fsencode(topic)) > MAX_TOPIC_SIZE:
            return os.path.join(queues, topic)
    return ""
