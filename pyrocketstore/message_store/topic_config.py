"""ROOT/config/topics.json: a broker serves only topics that are listed in it."""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
from typing import TYPE_CHECKING, Any

from pyrocketstore.arguments.scalars import QUEUE_ID_MAX
from pyrocketstore.errors import StoreCorruptionError, StoreFormatError, StoreStateError
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

    Threads: any.
    Source: RocketMQ 4.9.3 TopicConfigManager, ConfigManager.
    Differs: written to a temporary file, synced and renamed, where 4.9.3 deletes before it renames.
    """

    def __init__(self, env: Env, path: str) -> None:
        self.env = env
        self.path = path
        self._lock = threading.Lock()
        self._content: dict[str, Any] = {}
        self._changed = self._closed = False

    def load(self) -> None:
        """Read the file, or its backup where it is missing, empty or unreadable.

        Raises StoreCorruptionError when one exists and neither can be read.
        Source: RocketMQ 4.9.3 ConfigManager#load.
        """
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

    def topics(self) -> dict[str, int]:
        """Return {topic: number of its queues}."""
        table = self._content.get("topicConfigTable", {})
        return {name: entry.get("readQueueNums", 0) for name, entry in table.items()}

    def ensure(self, topic: str, queue_id: int) -> bool:
        """Ensure that a topic has at least `queue_id` + 1 queues; return True if that changed it.

        Topics that a broker makes by itself are not changed.

        Raises StoreFormatError: the number is not a Java int, and 4.9.3 could not read the file.
        """
        if queue_id > QUEUE_ID_MAX:
            raise StoreFormatError(
                f"queue_id {queue_id}: must be 0 to {QUEUE_ID_MAX} for config/topics.json, whose "
                "number of queues is an int32"
            )
        if topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX):
            return False
        with self._lock:
            table = self._content.setdefault("topicConfigTable", {})
            entry = table.get(topic)
            if entry is None:
                added = _with_topic(table, topic, _new_entry(topic, queue_id + 1))
                self._content["topicConfigTable"] = added
            elif not _widen(entry, queue_id + 1):
                return False
            self._changed = True
            return True

    def persist(self) -> None:
        """Write the file if it has changed; the old content becomes the backup.

        Durability: durable on return; a crash leaves the old content or the new. Raises
        StoreStateError after `close`.
        Source: RocketMQ 4.9.3 ConfigManager#persist.
        """
        with self._lock:
            if not self._changed:
                return
            if self._closed:
                raise StoreStateError(f"{self.path}: the store is closed")
            version = self._content.setdefault("dataVersion", {"counter": 0, "timestamp": 0})
            version["counter"] = version.get("counter", 0) + 1
            version["timestamp"] = self.env.now_ms()
            if next(iter(self._content)) != "dataVersion":
                self._content = {"dataVersion": version, **self._content}
            self.env.make_directories(os.path.dirname(self.path))
            old = self._read(self.path)
            # Only valid content: the backup of a damaged file must be kept.
            if _parsed(old) is not None:
                self.env.write_file(self.path + BACKUP_SUFFIX, old)
            # A lone surrogate has no UTF-8: Java writes "?" too.
            self.env.write_file(self.path, self.text().encode("utf-8", "replace"))
            self._changed = False

    def close(self) -> None:
        """Write nothing from now on, after the end of a write in another thread."""
        with self._lock:
            self._closed = True

    def text(self) -> str:
        """Return the content as fastjson prints it: tabs, no blank after a colon, no last
        newline.
        """
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


def _with_topic(table: dict[str, Any], topic: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the table with one more topic, at the position where a broker would print it.

    In a table that no broker has ordered the topic is the last one.
    """
    bins = {name: _bin_of(name) for name in (*table, topic)}
    count = _BINS
    while count <= _MAX_BINS and not _is_ordered([bins[name] % count for name in table]):
        count *= 2
    if count > _MAX_BINS:
        return {**table, topic: entry}
    # A Java map that is this full doubles.
    while len(bins) >= count // 4 * 3:
        count *= 2
    names = sorted(bins, key=lambda name: bins[name] % count)
    return {name: entry if name == topic else table[name] for name in names}


def _is_ordered(bins: list[int]) -> bool:
    return all(a <= b for a, b in itertools.pairwise(bins))


def _widen(entry: dict[str, Any], queue_count: int) -> bool:
    changed = False
    for name in _QUEUE_COUNTS:
        if entry.get(name, 0) < queue_count:
            entry[name] = queue_count
            changed = True
    return changed


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
