"""ROOT/config/topics.json: a broker serves only topics that are listed in it."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from pyrocketstore.arguments.scalars import QUEUE_ID_MAX
from pyrocketstore.errors import (
    StoreError,
    StoreFormatError,
    StoreStateError,
    without_frames,
)
from pyrocketstore.files import fastjson
from pyrocketstore.files.config_file import (
    ConfigFile,
    java_number,
    table_of,
    with_counter,
)
from pyrocketstore.record.message import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

PERM_READ_WRITE = 6
#: Bins of the broker's table of topics, a ConcurrentHashMap made for 1024.
_BINS = 2048
#: A write that is not urgent comes this many times later than the last one took.
_PAUSE = 20
_TABLE, _VERSION = "topicConfigTable", "dataVersion"
#: The number of queues of an entry that does not have it. Source: RocketMQ 4.9.3 TopicConfig.
_QUEUES = 16
_QUEUE_COUNTS = ("readQueueNums", "writeQueueNums")
_REMEDY = (
    "restore it from a copy; or open the store with topics_json=False; or run `verify`, and only if"
    " it reports no damage of the log, delete it, its backup and `checkpoint`, and make an empty"
    " file `abort` in the store: the next opening for writing adds the topics of the log. It reads"
    " the whole log, and would end a damaged one at the first damage, without all later messages"
)


class TopicConfigFile:
    """The topics of a store in the form of 4.9.3's TopicConfigManager.

    Parameters
    ----------
    env : Env
    path : the file; its directory is made by `persist`

    Entries are widened, never narrowed, and unknown fields are kept. A topic whose entry is damaged
    is not listed, and its entry stays: see ConfigFile.

    Attributes: `error`, why the last `persist` has failed, None when it succeeded.

    Threads: any. `request` takes no lock, so that a signal handler may call it anywhere.
    Source: RocketMQ 4.9.3 TopicConfigManager, ConfigManager.
    Differs: see ConfigFile.
    """

    def __init__(self, env: Env, path: str) -> None:
        self.env = env
        self.path = path
        self.error: StoreError | None = None
        self._file = ConfigFile(env, path, _valid_part, _REMEDY)
        self._write_lock = threading.Lock()  # over writes of the file; taken before _lock
        self._lock = threading.Lock()  # over _content, whose entries are replaced, never changed
        self._content: dict[str, Any] = {}
        self._requests: deque[tuple[str, int]] = deque()
        self._changed = self._closed = False
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
        content = self._file.read()
        with self._lock:
            self._content = content

    def note_unclean_stop(self) -> None:
        """Have the next `persist` flush the file's name: a process that ended between the rename of
        a new file and its flush has left the name in memory only."""
        self._file.note_unclean_stop()

    def topics(self) -> dict[str, int]:
        """Return {topic: number of its queues}."""
        with self._lock:
            self._settle()
            table = self._content.get(_TABLE, {})
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

    def remove(self, topic: str) -> None:
        """Have the next `persist` leave out a topic that was deleted."""
        with self._lock:
            self._settle()
            table = self._content.get(_TABLE, {})
            if topic in table:
                rest = {name: entry for name, entry in table.items() if name != topic}
                self._content = {**self._content, _TABLE: rest}
                self._changed = True
            self._changed |= self._file.forget_damaged(lambda path: path[1:2] == (topic,))

    def _settle(self) -> bool:
        """Handle all requests; return True if they changed the content. Call with _lock held."""
        table = self._content.get(_TABLE, {})
        new: dict[str, dict[str, Any]] = {}
        changed = False
        while self._requests:
            topic, queue_count = self._requests[0]
            entry = new.get(topic) or table.get(topic)
            if entry is None and self._file.is_damaged(_TABLE, topic):
                pass
            elif entry is None:
                new[topic] = _new_entry(topic, queue_count)
            elif any(entry.get(name, 0) < queue_count for name in _QUEUE_COUNTS):
                (new if topic in new else table)[topic] = _widened(entry, queue_count)
                changed = True
            self._requests.popleft()
        if new:
            self._content[_TABLE] = fastjson.map_order(table, new, _BINS)
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
        else:
            self._file.flush_name()

    def _persist_content(self) -> None:
        with self._lock:
            version = dict(self._content.get(_VERSION, {"counter": 0, "timestamp": 0}))
            version["counter"] = version.get("counter", 0) + 1
            version["timestamp"] = self.env.now_ms()
            rest = {name: part for name, part in self._content.items() if name != _VERSION}
            self._content = {_VERSION: version, **rest}
            content = {**self._content}
            if _TABLE in content:
                content[_TABLE] = {**content[_TABLE]}
            self._changed = False
        try:
            self._file.write(content)
        except BaseException:
            self._changed = True
            raise

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
            return fastjson.render(self._content)


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


def _widened(entry: dict[str, Any], queue_count: int) -> dict[str, Any]:
    """Return a copy of an entry, with at least that many queues."""
    wider = {name: max(entry.get(name, 0), queue_count) for name in _QUEUE_COUNTS}
    return {**entry, **wider}


def _valid_part(content: dict[str, Any]) -> dict[str, Any]:
    """Return a content without entries whose used fields have other types. Raises ContentError."""
    found = {}
    for topic, entry in table_of(content, _TABLE).items():
        valid = _valid_entry(entry) if topic and isinstance(entry, dict) else None
        if valid is not None:
            found[topic] = valid
    return with_counter({**content, _TABLE: found} if _TABLE in content else content, _VERSION)


def _valid_entry(entry: dict[str, Any]) -> dict[str, Any] | None:
    """Return an entry whose numbers of queues are ints, None if they are no numbers."""
    counts: dict[str, int] = {}
    for name in _QUEUE_COUNTS:
        if name in entry:
            value = _QUEUES if entry[name] is None else java_number(entry[name], 32)
            if value is None:
                return None
            counts[name] = value
    return {**entry, **counts}
