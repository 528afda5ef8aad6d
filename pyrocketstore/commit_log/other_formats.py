"""Directories that another version or mode of RocketMQ has written: only read, or refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyrocketstore.config.dledger import DLEDGER_PREFIX, dledger_directories, dledger_log_of
from pyrocketstore.config.file_sizes import is_store_file
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.files.store_checkpoint import (
    CHECKPOINT_SIZE,
    checkpoint_damage,
    offsets_of_5x,
)
from pyrocketstore.record._record import (
    BLANK_MAGIC_CODE,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    RecordHeader,
)
from pyrocketstore.record.message import MAX_TOPIC_SIZE

if TYPE_CHECKING:
    from pyrocketstore.config.message_store_config import MessageStoreConfig
    from pyrocketstore.system.env import Env

_MAGIC_CODES = (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2, BLANK_MAGIC_CODE)
#: Bytes of the shortest record: before the log's end one of so many is not zero, after it all are.
_END_SIZE = 91
_BATCH_QUEUES = "batchconsumequeue"
#: Files and directories that a broker of 5.x makes, and 4.9.3 does not know.
_OF_5X = (
    *("timerwheel", "timerlog", "compaction", "compactionLog", "consumequeue_r", "rocksdbstore"),
    "abort.bak",
)


def check_format(env: Env, config: MessageStoreConfig) -> None:
    """Refuse a directory whose format cannot be read. Raises StoreFormatError, StoreIOError."""
    root = config.store_path_root_dir
    names, nodes = _names(env, root)
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


def check_format_to_write(env: Env, config: MessageStoreConfig) -> None:
    """Refuse a directory whose format cannot be read, or must not be written.

    Raises StoreFormatError, StoreIOError.
    """
    names, nodes = _names(env, config.store_path_root_dir)
    if nodes:
        raise StoreFormatError(
            f"{nodes[0]}: a DLedger log, which is only read: open the store with read_only=True"
        )
    check_format(env, config)
    mark = _mark_of_5x(env, config.store_path_root_dir, names)
    if mark:
        raise _of_5x(mark)


def _names(env: Env, root: str) -> tuple[list[str], list[str]]:
    """Return the names in the root, and the directories of DLedger nodes."""
    names = env.listdir(root) if env.is_dir(root) else []
    return names, [f"{root}/{name}" for name in names if name.startswith(DLEDGER_PREFIX)]


def check_checkpoint(env: Env, config: MessageStoreConfig) -> None:
    """Refuse to write to a store whose checkpoint 5.x has written; once its lock is taken.

    A damaged checkpoint refuses nothing: it is derived from the log.
    Raises StoreFormatError, StoreIOError.
    """
    path, data = _read_checkpoint(env, config)
    if any(offsets_of_5x(data)) and not why_checkpoint_is_damaged(env, config):
        raise _of_5x(path)


def why_checkpoint_is_damaged(env: Env, config: MessageStoreConfig) -> str:
    """Return the reason why no store has written the checkpoint; "" if it is valid or missing.

    Raises StoreIOError.
    """
    _, data = _read_checkpoint(env, config)
    damage = checkpoint_damage(data)
    if damage or not data:
        return damage
    if len(data) < CHECKPOINT_SIZE:
        return f"the file has {len(data)} bytes and must have {CHECKPOINT_SIZE}"
    for offset in offsets_of_5x(data):
        if offset > 0 and not _is_place_in_log(env, config, offset):
            return f"a field of 5.x names byte {offset} of the log, where no record begins or ends"
    return ""


def _read_checkpoint(env: Env, config: MessageStoreConfig) -> tuple[str, bytes]:
    path = os.path.join(config.store_path_root_dir, "checkpoint")
    return path, env.read_part(path, 0, CHECKPOINT_SIZE) if env.exists(path) else b""


def _is_place_in_log(env: Env, config: MessageStoreConfig, phy_offset: int) -> bool:
    """Return whether a record of the log begins at `phy_offset`, or the log ends there."""
    files = (
        (f"{directory}/{name}", phy_offset - int(name), size)
        for directory in config.all_commit_log_paths
        for name, size in env.files_named(directory, is_store_file, follow=True)
    )
    for path, position, size in files:
        if position == size > 0:
            return True
        if 0 <= position < size:
            data = env.read_part(path, position, _END_SIZE)
            if RecordHeader(data).magic_code in _MAGIC_CODES:
                return True
            before = max(0, position - _END_SIZE)
            return not any(data) and any(env.read_part(path, before, position - before))
    return False


def _of_5x(mark: str) -> StoreFormatError:
    return StoreFormatError(
        f"{mark}: RocketMQ 5.x has written this store: open it with read_only=True, since 4.9.3's"
        " recovery would remove what it does not know"
    )


def check_writable(env: Env, config: MessageStoreConfig) -> None:
    """Refuse to write to a store as `check_format_to_write` and `check_checkpoint` do."""
    check_format_to_write(env, config)
    check_checkpoint(env, config)


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
