"""ROOT/config/topics.json: a broker serves no topic that does not stand in it."""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
from typing import TYPE_CHECKING, Any

from pyrocketstore._text import java_hash
from pyrocketstore.errors import StoreCorruptionError, StoreFormatError
from pyrocketstore.exact import QUEUE_ID_MAX

if TYPE_CHECKING:
    from pyrocketstore.env import Env

BACKUP_SUFFIX = ".bak"
PERM_READ_WRITE = 6
#: Topics that a broker makes by itself. Source: RocketMQ 4.9.3 TopicValidator.
SYSTEM_TOPICS = frozenset(
    {
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TBW102",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
#: Bins of the broker's table of topics (a ConcurrentHashMap made for 1024), and the most that it
#: is believed to grow to: the file has the order of the bins.
_BINS = 2048
_MAX_BINS = 1 << 22
#: Levels of what is read; a file of more is damaged.
_MAX_DEPTH = 50
_QUEUE_COUNTS = ("readQueueNums", "writeQueueNums")
#: fastjson leaves numbers that are keys without quotes
_BARE_KEY = re.compile(r"([{,]\s*)(-?\d+)(\s*:)")


class TopicConfigFile:
    """The topics of a store in the form of 4.9.3's TopicConfigManager.

    Parameters
    ----------
    env : Env
    path : the file; its directory is made by `persist`

    What stands in the file stays: entries are widened, never narrowed, and fields that are not
    known here are kept.

    Threads: any.
    Source: RocketMQ 4.9.3 TopicConfigManager, ConfigManager.
    Differs: written to a temporary file, forced and renamed, where 4.9.3 deletes before it renames.
    """

    def __init__(self, env: Env, path: str) -> None:
        self.env = env
        self.path = path
        self._lock = threading.Lock()
        self._content: dict[str, Any] = {}
        self._changed = False

    def load(self) -> None:
        """Read the file, or its backup where it is missing, empty or unreadable.

        Raises StoreCorruptionError when there is something and none of it can be read.
        Source: RocketMQ 4.9.3 ConfigManager#load.
        """
        folder = os.path.dirname(self.path)
        if self.env.exists(folder) and not self.env.is_dir(folder):
            reason = "must be a directory; mend it, or open the store with topics_json=False"
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
                broken, -1, "not JSON; mend it, or open the store with topics_json=False"
            )

    def _read(self, path: str) -> bytes:
        """The bytes of a file, none where it is missing. A symbolic link would be replaced by the
        next `persist`, so it is refused."""
        return self.env.read_file(path, follow=False) if self.env.exists(path) else b""

    def topics(self) -> dict[str, int]:
        """{topic: number of its queues}."""
        table = self._content.get("topicConfigTable", {})
        return {name: entry.get("readQueueNums", 0) for name, entry in table.items()}

    def ensure(self, topic: str, queue_id: int) -> bool:
        """Have a topic with at least `queue_id` + 1 queues; True when that changed something.

        The topics that a broker makes by itself are left to it.

        Raises StoreFormatError: the number is no Java int, and 4.9.3 could not read the file.
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
        """Write the file if something changed; the old content becomes the backup.

        Durability: on the device on return; a crash leaves the old content or the new.
        Source: RocketMQ 4.9.3 ConfigManager#persist.
        """
        with self._lock:
            if not self._changed:
                return
            version = self._content.setdefault("dataVersion", {"counter": 0, "timestamp": 0})
            version["counter"] = version.get("counter", 0) + 1
            version["timestamp"] = self.env.now_ms()
            if next(iter(self._content)) != "dataVersion":
                self._content = {"dataVersion": version, **self._content}
            self.env.make_directories(os.path.dirname(self.path))
            old = self._read(self.path)
            # Only what can be read: a backup that stands in for a damaged file must live on.
            if _parsed(old) is not None:
                self.env.write_file(self.path + BACKUP_SUFFIX, old)
            # A lone surrogate has no UTF-8: Java writes "?" too.
            self.env.write_file(self.path, self.text().encode("utf-8", "replace"))
            self._changed = False

    def text(self) -> str:
        """The content as fastjson prints it: tabs, no blank after a colon, no last newline."""
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
    """Where a Java map keeps a key, modulo its number of bins."""
    hashed = java_hash(topic) & 0xFFFFFFFF
    return hashed ^ hashed >> 16


def _with_topic(table: dict[str, Any], topic: str, entry: dict[str, Any]) -> dict[str, Any]:
    """The table with one topic more, where a broker would print it.

    In a table that no broker has ordered the topic comes last.
    """
    bins = {name: _bin_of(name) for name in (*table, topic)}
    count = _BINS
    while count <= _MAX_BINS and not _is_ordered([bins[name] % count for name in table]):
        count *= 2
    if count > _MAX_BINS:
        return {**table, topic: entry}
    # As full as this a Java map doubles.
    while len(bins) >= count // 4 * 3:
        count *= 2
    names = sorted(bins, key=lambda name: bins[name] % count)
    return {name: entry if name == topic else table[name] for name in names}


def _is_ordered(places: list[int]) -> bool:
    return all(a <= b for a, b in itertools.pairwise(places))


def _widen(entry: dict[str, Any], queue_count: int) -> bool:
    changed = False
    for name in _QUEUE_COUNTS:
        if entry.get(name, 0) < queue_count:
            entry[name] = queue_count
            changed = True
    return changed


def _parsed(data: bytes) -> dict[str, Any] | None:
    """The object in a config file, None where there is none."""
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
    """Whether it can be walked through and written again: 4.9.3 writes four levels."""
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
    """Whether the parts that are looked at have their types."""
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
