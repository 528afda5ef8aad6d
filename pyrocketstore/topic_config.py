"""ROOT/config/topics.json: a broker serves no topic that does not stand in it."""

from __future__ import annotations

import json
import os
import re
import threading
from typing import TYPE_CHECKING, Any

from pyrocketstore.errors import StoreCorruptionError

if TYPE_CHECKING:
    from pyrocketstore.env import Env

BACKUP_SUFFIX = ".bak"
PERM_READ_WRITE = 6
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
        broken = None
        for path in (self.path, self.path + BACKUP_SUFFIX):
            data = self.env.read_file(path) if self.env.exists(path) else b""
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

    def topics(self) -> dict[str, int]:
        """{topic: number of its queues}."""
        table = self._content.get("topicConfigTable", {})
        return {
            name: int(entry.get("readQueueNums", 0))
            for name, entry in table.items()
            if isinstance(entry, dict)
        }

    def ensure(self, topic: str, queue_id: int) -> bool:
        """Have a topic with at least `queue_id` + 1 queues; True when that changed something."""
        with self._lock:
            table = self._content.setdefault("topicConfigTable", {})
            entry = table.get(topic)
            if not isinstance(entry, dict):
                table[topic] = _new_entry(topic, queue_id + 1)
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
            version["counter"] = int(version.get("counter", 0)) + 1
            version["timestamp"] = self.env.now_ms()
            if next(iter(self._content)) != "dataVersion":
                self._content = {"dataVersion": version, **self._content}
            self.env.make_directories(os.path.dirname(self.path))
            if self.env.exists(self.path):
                self.env.write_file(self.path + BACKUP_SUFFIX, self.env.read_file(self.path))
            self.env.write_file(self.path, self.text().encode("utf-8"))
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


def _widen(entry: dict[str, Any], queue_count: int) -> bool:
    changed = False
    for name in ("readQueueNums", "writeQueueNums"):
        if int(entry.get(name, 0)) < queue_count:
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
        if isinstance(content, dict) and isinstance(content.get("topicConfigTable", {}), dict):
            return content
        return None
    return None


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
