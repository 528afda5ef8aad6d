"""The output of `info`: facts of a store's directory and of its queues."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pyrocketstore.commit_log.other_formats import why_checkpoint_is_damaged
from pyrocketstore.files.store_checkpoint import CHECKPOINT_SIZE, checkpoint_damage
from pyrocketstore.message_store.lost_ends import lost_end
from pyrocketstore.store.key_gaps import find_key_gaps
from pyrocketstore.system.env import Env
from pyrocketstore.verify.index_check import HEADER_DAMAGE, are_covered, damaged_headers
from pyrocketstore.verify.opening_problems import config_problems

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


class QueueSpan(NamedTuple):
    """A queue and its messages: those from `first` to before `end`."""

    topic: str
    queue_id: int
    first: int
    end: int

    @property
    def messages(self) -> int:
        """Number of messages, as `messages` of VerifyReport counts them."""
        return max(0, self.end - self.first)


def queue_spans(store: Any) -> list[QueueSpan]:
    """The queues of a store, by topic and queue id."""
    return [
        QueueSpan(topic, at, store.min_offset(topic, at), store.max_offset(topic, at))
        for topic in store.topics()
        for at in store.queues(topic)
    ]


def store_facts(
    root: str, commit_log_paths: Sequence[str], store: Any, spans: Sequence[QueueSpan]
) -> dict[str, Any]:
    """The store as a whole; `spans` are those of all its queues."""
    env = Env()
    files = list(file_rows(root, commit_log_paths))
    log = [row for row in files if row[0].rpartition("/")[0] in commit_log_paths]
    stats = store.stats()
    return {
        "path": root,
        "stopped_cleanly": not env.exists(f"{root}/abort"),
        "min_phy_offset": store.message_store.get_min_phy_offset(),
        "max_phy_offset": store.message_store.get_max_phy_offset(),
        "topic_count": len(store.topics()),
        "queue_count": len(spans),
        "message_count": sum(span.messages for span in spans),
        "commit_log_file_count": len(log),
        "file_count": len(files),
        "bytes_of_all_files": sum(row[1] for row in files),
        "earliest_message_timestamp": stats.earliest_message_timestamp,
        "commit_log_disk_ratio": stats.commit_log_disk_ratio,
        "consume_queue_disk_ratio": stats.consume_queue_disk_ratio,
        **index_facts(store),
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


def index_facts(store: Any) -> dict[str, Any]:
    """Whether the index is complete, and the counts `not_indexed` and `not_indexed_keys` of
    VerifyReport, None where they are unknown.

    The log is searched where no index file covers it; the entries of the files are not compared.
    """
    engine = store.message_store
    unknown = {"not_indexed": None, "not_indexed_keys": None}
    if not engine.config.message_index_enable:
        return {"index": "not enabled", **unknown}
    if engine.index_service.geometry_error is not None:
        return {"index": f"not readable: {engine.index_service.geometry_error}", **unknown}
    damaged = damaged_headers(engine.files)
    if damaged:
        text = f"not complete: {len(damaged)} file(s) have a damaged header"
        return {"index": text, **unknown}
    gaps = find_key_gaps(engine.files)
    if gaps is not None:
        gaps.search()
    if gaps is None or gaps.is_empty:
        return {"index": "complete", "not_indexed": 0, "not_indexed_keys": 0}
    files = [file for file in engine.index_service.files if file.index_count > 1]
    covered = are_covered([(f.begin_phy_offset, f.end_phy_offset) for f in files], gaps.phy_offsets)
    rows = gaps.phy_offsets[~covered]
    keys, messages, others = len(rows), len(np.unique(rows)), int(np.count_nonzero(covered))
    texts = [f"no index file covers {keys} key(s) of {messages} message(s)"] if keys else []
    texts += [f"the index files lack {others} key(s)"] if others else []
    if gaps.unsearched:
        ranges = ", ".join(f"{begin} to {end}" for begin, end in gaps.unsearched)
        return {
            "index": f"not complete: {'; '.join([*texts, f'not searched: {ranges}'])}",
            **unknown,
        }
    text = f"not complete: {'; '.join(texts)}"
    return {"index": text, "not_indexed": messages, "not_indexed_keys": keys}


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
    return lost_end(store.message_store.files, plan, ends) is not None


def has_wrong_files(store: Any) -> bool:
    """Whether the opening has reported files of the log, of queues or of the index with a wrong
    length or name."""
    engine = store.message_store
    return bool(engine.plan.mismatched or engine.index_service.wrong)


def quiet_damage(store: Any) -> list[str]:
    """The texts for damage that an opening for reading passes over: of `checkpoint`, of the headers
    of index files, and of files of `config`."""
    engine = store.message_store
    found = []
    damage = why_checkpoint_is_damaged(engine.env, engine.config)
    if damage:
        found.append(f"{store.path}/checkpoint: damaged: {damage}")
    found += [f"{path}: {HEADER_DAMAGE}" for path in damaged_headers(engine.files)]
    return found + [str(problem) for problem in config_problems(engine.files)]


def queue_rows(store: Any, spans: Iterable[QueueSpan]) -> Iterator[tuple[Any, ...]]:
    """One row for each of `spans`."""
    for span in spans:
        ends = (span.first, span.end - 1) if span.messages else ()
        times = [_store_time(store, span.topic, span.queue_id, at) for at in ends]
        yield (*span, span.messages, *(times or (0, 0)))


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
