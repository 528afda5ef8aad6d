"""ROOT/config/topics.json: a broker serves only topics that are listed in it."""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from pyrocketstore.arguments.scalars import QUEUE_ID_MAX
from pyrocketstore.errors import (
    StoreCorruptionError,
    StoreError,
    StoreFormatError,
    StoreStateError,
    without_frames,
)
from pyrocketstore.record._text import java_hash
from pyrocketstore.record.message import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

BACKUP_SUFFIX = ".bak"
PERM_READ_WRITE = 6
#: Bins of the broker's table of topics (a ConcurrentHashMap made for 1024), and the largest size
#: that is tried: the file has the order of the bins.
_BINS = 2048
_MAX_BINS = 1 << 22
#: A write that is not urgent comes this many times later than the last one took.
_PAUSE = 20
#: Levels of nesting; a file with more is damaged.
_MAX_DEPTH = 50
_QUEUE_COUNTS = ("readQueueNums", "writeQueueNums")
#: fastjson writes keys that are numbers without quotes
_BARE_KEY = re.compile(r"([{,]\s*)(-?\d+)(\s*:)")


class TopicConfigFile:
    """The topics of a store in the form of 4.9.3's TopicConfigManager.

    Parameters
    ----------
    env : Env
    path : the file; its directory is made by `persist`

    Entries are widened, never narrowed, and unknown fields are kept.

    Attributes: `error`, why the last `persist` has failed, None when it succeeded.

    Threads: any. `request` takes no lock, so that a signal handler may call it anywhere.
    Source: RocketMQ 4.9.3 TopicConfigManager, ConfigManager.
    Differs: written to a temporary file, synced and renamed, where 4.9.3 deletes before it renames.
    """

    def __init__(self, env: Env, path: str) -> None:
        self.env = env
        self.path = path
        self.error: StoreError | None = None
        self._write_lock = threading.Lock()  # over writes of the file; taken before _lock
        self._lock = threading.Lock()  # over _content, whose entries are replaced, never changed
        self._content: dict[str, Any] = {}
        self._requests: deque[tuple[str, int]] = deque()
        self._changed = self._closed = False
        self._is_name_flushed = True
        self._written = b""
        self._not_before_ns = 0

    def load(self) -> None:
        """Read the file, or its backup where it is missing, empty or unreadable.

        Raises StoreCorruptionError when one exists and neither can be read.
        Source: RocketMQ 4.9.3 ConfigManager#load.
        """
        with self._lock:
            self._requests.clear()
            self._content = {}
            self._changed = self._closed = False
        self.error = None
        folder = os.path.dirname(self.path)
        if self.env.exists(folder) and not self.env.is_dir(folder):
            reason = "must be a directory; move it away, or open the store with topics_json=False"
            raise StoreCorruptionError(folder, -1, reason)
        self.env.check_directory(folder)
        broken = None
        for path in (self.path, self.path + BACKUP_SUFFIX):
            data = self._read(path)
            if not data.strip():
                continue
            content = _parsed(data)
            if content is not None:
                self._content = content
                return
            broken = broken or path
        if broken is not None:
            raise StoreCorruptionError(
                broken,
                -1,
                "not valid JSON; repair it, or open the store with topics_json=False",
            )

    def _read(self, path: str) -> bytes:
        """Return the bytes of a file, b"" if it is missing. A symbolic link is refused, because the
        next `persist` would replace it."""
        return self.env.read_file(path, follow=False) if self.env.exists(path) else b""

    def note_unclean_stop(self) -> None:
        """Have the next `persist` flush the file's name: a process that ended between the rename of
        a new file and its flush has left the name in memory only."""
        self._is_name_flushed = False

    def topics(self) -> dict[str, int]:
        """Return {topic: number of its queues}."""
        with self._lock:
            self._settle()
            table = self._content.get("topicConfigTable", {})
            return {name: entry.get("readQueueNums", 0) for name, entry in table.items()}

    def request(self, topic: str, queue_id: int) -> None:
        """Have the next `persist` write a topic with at least `queue_id` + 1 queues.

        Topics that a broker makes by itself are not changed.

        Raises StoreFormatError: the number is not a Java int, and 4.9.3 could not read the file.
        StoreStateError after `close`.
        """
        if queue_id > QUEUE_ID_MAX:
            raise StoreFormatError(
                f"queue_id {queue_id}: must be 0 to {QUEUE_ID_MAX} for config/topics.json, whose "
                "number of queues is an int32"
            )
        if self._closed:
            raise StoreStateError(f"{self.path}: the store is closed")
        if topic not in SYSTEM_TOPICS and not topic.startswith(SYSTEM_TOPIC_PREFIX):
            self._requests.append((topic, queue_id + 1))

    def ensure(self, topic: str, queue_id: int) -> bool:
        """Make a `request`; return True if that changed the content, False if nothing changed.

        Raises as `request`.
        """
        with self._lock:
            self._settle()
            self.request(topic, queue_id)
            return self._settle()

    def _settle(self) -> bool:
        """Handle all requests; return True if they changed the content. Call with _lock held."""
        table = self._content.get("topicConfigTable", {})
        new: dict[str, dict[str, Any]] = {}
        changed = False
        while self._requests:
            topic, queue_count = self._requests[0]
            entry = new.get(topic) or table.get(topic)
            if entry is None:
                new[topic] = _new_entry(topic, queue_count)
            elif any(entry.get(name, 0) < queue_count for name in _QUEUE_COUNTS):
                (new if topic in new else table)[topic] = _widened(entry, queue_count)
                changed = True
            self._requests.popleft()
        if new:
            self._content["topicConfigTable"] = _with_topics(table, new)
            changed = True
        self._changed |= changed
        return changed

    def persist(self, *, at_once: bool = True) -> None:
        """Write the file if it has changed; the old content becomes the backup.

        Parameters
        ----------
        at_once : bool; False: not while the time since the last write is short compared with what
            that write took, so that the time for all writes is linear in the number of topics

        Durability: durable on return; a crash leaves the old content or the new. Raises StoreError,
        and the next call tries again; StoreStateError after `close`.
        Source: RocketMQ 4.9.3 ConfigManager#persist.
        """
        with self._write_lock:
            if not at_once and self.env.monotonic_ns() < self._not_before_ns:
                return
            began = self.env.monotonic_ns()
            try:
                self._persist_changes()
            except StoreError as error:
                self.error = without_frames(error)
                raise
            self.error = None
            now = self.env.monotonic_ns()
            self._not_before_ns = now + _PAUSE * (now - began)

    def _persist_changes(self) -> None:
        with self._lock:
            self._settle()
            changed = self._changed
            if changed and self._closed:
                raise StoreStateError(f"{self.path}: the store is closed")
        if changed:
            self._persist_content()
        elif not self._is_name_flushed and self.env.exists(self.path):
            self.env.fsync_directory(os.path.dirname(self.path))
        self._is_name_flushed = True

    def _persist_content(self) -> None:
        with self._lock:
            version = dict(self._content.get("dataVersion", {"counter": 0, "timestamp": 0}))
            version["counter"] = version.get("counter", 0) + 1
            version["timestamp"] = self.env.now_ms()
            rest = {name: part for name, part in self._content.items() if name != "dataVersion"}
            self._content = {"dataVersion": version, **rest}
            content = {**self._content}
            if "topicConfigTable" in content:
                content["topicConfigTable"] = {**content["topicConfigTable"]}
            self._changed = False
        try:
            self._write(content)
        except BaseException:
            self._changed = True
            raise

    def _write(self, content: dict[str, Any]) -> None:
        # A lone surrogate has no UTF-8: Java writes "?" too.
        data = _pretty(content, 0).encode("utf-8", "replace")
        self.env.make_directories(os.path.dirname(self.path))
        old = self._read(self.path)
        # Only valid content: the backup of a damaged file must be kept.
        if (old and old == self._written) or _parsed(old) is not None:
            self.env.write_file(self.path + BACKUP_SUFFIX, old)
        self.env.write_file(self.path, data)
        self._written = data

    def close(self) -> None:
        """Write nothing from now on, after the end of a write in another thread."""
        with self._write_lock:
            self._closed = True

    def text(self) -> str:
        """Return the content as fastjson prints it: tabs, no blank after a colon, no last
        newline.
        """
        with self._lock:
            self._settle()
            return _pretty(self._content, 0)


def _new_entry(topic: str, queue_count: int) -> dict[str, Any]:
    return {
        "order": False,
        "perm": PERM_READ_WRITE,
        "readQueueNums": queue_count,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
        "writeQueueNums": queue_count,
    }


def _bin_of(topic: str) -> int:
    """Return the bin of a key in a Java map, before the modulo by the number of bins."""
    hashed = java_hash(topic) & 0xFFFFFFFF
    return hashed ^ hashed >> 16


def _with_topics(table: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the table with more topics, each at the position where a broker would print it.

    In a table that no broker has ordered the new topics are the last ones.
    """
    bins = {name: _bin_of(name) for name in (*table, *new)}
    count = _BINS
    while count <= _MAX_BINS and not _is_ordered([bins[name] % count for name in table]):
        count *= 2
    if count > _MAX_BINS:
        return {**table, **new}
    # A Java map that is this full doubles.
    while len(bins) >= count // 4 * 3:
        count *= 2
    entries = {**table, **new}
    return {name: entries[name] for name in sorted(bins, key=lambda name: bins[name] % count)}


def _is_ordered(bins: list[int]) -> bool:
    return all(a <= b for a, b in itertools.pairwise(bins))


def _widened(entry: dict[str, Any], queue_count: int) -> dict[str, Any]:
    """Return a copy of an entry, with at least that many queues."""
    wider = {name: max(entry.get(name, 0), queue_count) for name in _QUEUE_COUNTS}
    return {**entry, **wider}


def _parsed(data: bytes) -> dict[str, Any] | None:
    """Return the object in a config file, None without one."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    for candidate in (text, _BARE_KEY.sub(r'\1"\2"\3', text)):
        try:
            content = json.loads(candidate)
        except ValueError:
            continue
        except RecursionError:
            return None
        return content if _is_topic_config(content) and _is_shallow(content) else None
    return None


def _is_shallow(content: Any) -> bool:
    """Return whether nesting is limited, so that the content can be written: 4.9.3 has 4 levels."""
    level = [content]
    for _ in range(_MAX_DEPTH):
        level = [
            part
            for value in level
            if isinstance(value, (dict, list))
            for part in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return True
    return False


def _is_topic_config(content: Any) -> bool:
    """Return whether the parts that are used have their types."""
    if not isinstance(content, dict):
        return False
    version = content.get("dataVersion", {})
    table = content.get("topicConfigTable", {})
    if not isinstance(version, dict) or not isinstance(table, dict):
        return False
    entries = table.values()
    if not all(isinstance(entry, dict) for entry in entries):
        return False
    numbers = [version.get("counter", 0)]
    numbers += [entry.get(name, 0) for entry in entries for name in _QUEUE_COUNTS]
    return all(isinstance(number, int) for number in numbers)


def _pretty(value: Any, depth: int) -> str:
    if not isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    if not value:
        return opening + closing
    inner = "\n" + "\t" * (depth + 1)
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(name, ensure_ascii=False)}:{_pretty(part, depth + 1)}"
            for name, part in value.items()
        ]
    else:
        parts = [_pretty(part, depth + 1) for part in value]
    return opening + inner + ("," + inner).join(parts) + "\n" + "\t" * depth + closing
