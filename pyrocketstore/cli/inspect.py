"""The output of `info`: facts of a store's directory and of its queues."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyrocketstore.files.store_checkpoint import CHECKPOINT_SIZE, checkpoint_damage
from pyrocketstore.message_store.lost_ends import lost_end
from pyrocketstore.recovery.other_formats import why_checkpoint_is_damaged
from pyrocketstore.store.key_gaps import find_key_gaps
from pyrocketstore.system.env import Env
from pyrocketstore.verify.index_check import HEADER_DAMAGE, damaged_headers

QUEUE_COLUMNS = (
    "topic",
    "queue id",
    "min offset",
    "max offset",
    "count",
    "first store time",
    "last store time",
)
FILE_COLUMNS = ("path", "size", "modified time")
PROBLEM_COLUMNS = ("kind", "path", "position", "text", "count")

_CHECKPOINT = struct.Struct(">qqq")
_CHECKPOINT_NAMES = ("physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp")


def checkpoint_facts(root: str) -> dict[str, int | None]:
    """The three times of `checkpoint` in Unix ms, None where the file is missing, short or
    damaged."""
    env = Env()
    path = f"{root}/checkpoint"
    data = env.read_part(path, 0, CHECKPOINT_SIZE)
    if len(data) < _CHECKPOINT.size or checkpoint_damage(data):
        return dict.fromkeys(_CHECKPOINT_NAMES)
    return dict(zip(_CHECKPOINT_NAMES, _CHECKPOINT.unpack_from(data), strict=True))


def store_facts(root: str, commit_log_paths: Sequence[str], store: Any) -> dict[str, Any]:
    """The store as a whole."""
    env = Env()
    files = list(file_rows(root, commit_log_paths))
    log = [row for row in files if row[0].rpartition("/")[0] in commit_log_paths]
    topics = list(store.topics())
    stats = store.stats()
    return {
        "path": root,
        "stopped_cleanly": not env.exists(f"{root}/abort"),
        "min_phy_offset": store.message_store.get_min_phy_offset(),
        "max_phy_offset": store.message_store.get_max_phy_offset(),
        "topic_count": len(topics),
        "queue_count": sum(len(store.queues(topic)) for topic in topics),
        "commit_log_file_count": len(log),
        "file_count": len(files),
        "bytes_of_all_files": sum(row[1] for row in files),
        "earliest_message_timestamp": stats.earliest_message_timestamp,
        "commit_log_disk_ratio": stats.commit_log_disk_ratio,
        "consume_queue_disk_ratio": stats.consume_queue_disk_ratio,
        "index": index_state(store),
        **checkpoint_facts(root),
    }


def plan_texts(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a RecoveryPlan with a text for each item of a list; {} without a
    plan."""
    found = dict(plan)
    if found:
        found["broken"] = [
            f"{path} at byte {position}: {size} bytes" for path, position, size in plan["broken"]
        ]
        found["missing_first_file"] = [
            f"{topic}/{queue_id}" for topic, queue_id in plan["missing_first_file"]
        ]
        found["mismatched"] = [f"{path}: {reason}" for path, reason in plan["mismatched"]]
    return found


def index_state(store: Any) -> str:
    """Whether every key of the log is in the index; the log is searched where the index is not."""
    engine = store.message_store
    if not engine.config.message_index_enable:
        return "not enabled"
    if engine.index_service.geometry_error is not None:
        return f"not readable: {engine.index_service.geometry_error}"
    damaged = damaged_headers(engine)
    if damaged:
        return f"not complete: {len(damaged)} file(s) have a damaged header"
    gaps = find_key_gaps(engine)
    if gaps is not None:
        gaps.search()
    if gaps is None or gaps.is_empty:
        return "complete"
    ranges = ", ".join(f"{begin} to {end}" for begin, end in gaps.unsearched)
    missing = f"{len(gaps.hashes)} key(s) of the log are missing"
    return f"not complete: {missing}" + (f"; not searched: {ranges}" if ranges else "")


def has_lost_end(store: Any, topic: str | None = None, queue_id: int | None = None) -> bool:
    """Whether the log ends before valid records, at damage, or a queue of the store, topic or queue
    id names messages behind its end: it has lost its last files, or what its last one held. Also
    if an opening for writing has removed messages and could not warn of that."""
    plan = store.message_store.plan
    if plan.broken or plan.loss_notices:
        return True
    ends = {
        name: end
        for name, end in plan.beyond.items()
        if topic in (None, name[0]) and queue_id in (None, name[1])
    }
    return lost_end(store.message_store, plan, ends) is not None


def has_wrong_files(store: Any) -> bool:
    """Whether the opening has reported files of the log, of queues or of the index with a wrong
    length or name."""
    engine = store.message_store
    return bool(engine.plan.mismatched or engine.index_service.wrong)


def derived_damage(store: Any) -> list[str]:
    """The texts for a damaged `checkpoint`, and for index files with a damaged header."""
    engine = store.message_store
    found = []
    damage = why_checkpoint_is_damaged(engine.env, engine.config)
    if damage:
        found.append(f"{store.path}/checkpoint: damaged: {damage}")
    return found + [f"{path}: {HEADER_DAMAGE}" for path in damaged_headers(engine)]


def queue_rows(store: Any) -> Iterator[tuple[Any, ...]]:
    """One row a queue, by topic and queue id."""
    for topic in store.topics():
        for queue_id in store.queues(topic):
            first = store.min_offset(topic, queue_id)
            end = store.max_offset(topic, queue_id)
            ends = (first, end - 1) if end > first else ()
            times = [_store_time(store, topic, queue_id, at) for at in ends]
            yield (topic, queue_id, first, end, end - first, *(times or (0, 0)))


def _store_time(store: Any, topic: str, queue_id: int, queue_offset: int) -> int:
    """Store time of a message in Unix ms; 0 if there is no message."""
    found = store.read(
        topic, queue_id, start=queue_offset, stop=queue_offset + 1, on_corrupt="skip"
    )
    return next((message.store_timestamp for message in found), 0)


def file_rows(root: str, commit_log_paths: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """(path, bytes, mtime in Unix ms) of every file, by path.

    Symbolic links count as themselves, but for the directories of the log.
    """
    env = Env()
    others = [
        path
        for path in commit_log_paths
        if env.is_link(path) or not f"{path}/".startswith(f"{root}/")
    ]
    for directory in [root, *others]:
        if env.is_dir(directory):
            yield from env.walk_files(directory)
