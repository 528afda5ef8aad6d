"""ROOT/config/consumerOffset.json: for each group and queue the offset of the next message."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyrocketstore.arguments.scalars import QUEUE_ID_MAX
from pyrocketstore.errors import StoreError, StoreStateError, without_frames
from pyrocketstore.files import fastjson
from pyrocketstore.files.config_file import ConfigFile, java_number, table_of
from pyrocketstore.record.message import LMQ_PREFIX

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

TOPIC_GROUP_SEPARATOR = "@"
_TABLE, _LMQ_TABLE = "offsetTable", "lmqOffsetTable"
#: Bins of the broker's tables: ConcurrentHashMaps made for 512 and, of one topic, for 32. A table
#: that it has read from the file is one that fastjson has made.
_BINS, _QUEUE_BINS, _READ_BINS = 1024, 64, 16
_REMEDY = "delete it and its backup: the consumers of all groups then begin at their `start`"

#: group, topic, queue id
Position = tuple[str, str, int]


class ConsumerOffsets:
    """The positions of all groups in the form of 4.9.3's ConsumerOffsetManager.

    Parameters
    ----------
    env : Env
    root : the store's root directory
    lmq : bool, keep them in lmqConsumerOffset.json, as a broker with enableLmq does

    Entries are added and changed; unknown fields are kept. A position that is negative or not a
    long, an invalid queue id, and a name without topic or group are damaged entries: see
    ConfigFile.

    Threads: any; `query_offset` and `positions` take no lock, so that a signal handler that raises
    leaves none held. The other calls are for `shielded` calls.
    Source: RocketMQ 4.9.3 ConsumerOffsetManager, LmqConsumerOffsetManager.
    Differs: see ConfigFile.
    """

    def __init__(self, env: Env, root: str, *, lmq: bool = False) -> None:
        plain = os.path.join(root, "config", "consumerOffset.json")
        self.path = os.path.join(root, "config", "lmqConsumerOffset.json") if lmq else plain
        self.lmq = lmq
        self.error: StoreError | None = None
        self._file = ConfigFile(env, self.path, _valid_part, _REMEDY)
        self._plain_file = ConfigFile(env, plain, _valid_part, _REMEDY)
        self._write_lock = threading.Lock()  # over writes of the file; taken before _lock
        self._lock = threading.Lock()  # over the tables
        self._content: dict[str, Any] = {_TABLE: {}}
        self._read: dict[str, Any] = {}
        self._table: dict[str, dict[int, int]] = {}
        self._lmq_table: dict[str, int] = {}
        self._changed = self._closed = False

    def load(self) -> None:
        """Read the file or its backup. Raises StoreCorruptionError, StoreIOError.

        Source: RocketMQ 4.9.3 ConfigManager#load.
        Differs: with `lmq`, positions that a store had before its first light queue count until the
        file is written.
        """
        content = self._file.read()
        is_first = self.lmq and not content
        if is_first:
            content = self._plain_file.read()
        tables = {
            name: {_queue_id(text): offset for text, offset in offsets.items()}
            for name, offsets in content.get(_TABLE, {}).items()
        }
        light = dict(content.get(_LMQ_TABLE, {}))
        if is_first:
            names = [n for n in tables if self._is_light(n.partition(TOPIC_GROUP_SEPARATOR)[2])]
            light |= {name: at for name in names if (at := tables.pop(name).get(0)) is not None}
        with self._lock:
            self._content = {**content, _TABLE: tables}
            self._read = content
            self._table = {name: dict(queues) for name, queues in tables.items()}
            self._lmq_table = light
            self._changed = self._closed = False
        self.error = None

    def note_unclean_stop(self) -> None:
        """Have the next `persist` flush the file's name."""
        self._file.note_unclean_stop()

    def query_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset of the next message, -1 without one.

        Source: RocketMQ 4.9.3 ConsumerOffsetManager#queryOffset.
        """
        name = f"{topic}{TOPIC_GROUP_SEPARATOR}{group}"
        if self._is_light(group):
            return self._lmq_table.get(name, -1)
        return self._table.get(name, {}).get(queue_id, -1)

    def is_known(self, group: str, topic: str) -> bool:
        """Return whether a group has a position in a queue of a topic."""
        name = f"{topic}{TOPIC_GROUP_SEPARATOR}{group}"
        return bool(name in self._lmq_table if self._is_light(group) else self._table.get(name))

    def check_queue(self, group: str, queue_id: int) -> None:
        """Raise StoreStateError for a queue in which a light group can have no position."""
        if self._is_light(group) and queue_id:
            reason = "it can read only topics whose queue is 0; use another name"
            raise StoreStateError(f"group {group} has one position in each topic: {reason}")

    def commit_offset(
        self, group: str, topic: str, queue_id: int, offset: int, *, begins: bool = False
    ) -> None:
        """Set the offset of the next message, also backwards; with `begins` only if there is none.

        Source: RocketMQ 4.9.3 ConsumerOffsetManager#commitOffset.
        """
        name = f"{topic}{TOPIC_GROUP_SEPARATOR}{group}"
        with self._lock:
            if self._closed:
                raise StoreStateError(f"{self.path}: the store is closed")
            if begins and self.query_offset(group, topic, queue_id) >= 0:
                return
            if self._is_light(group):
                self._changed |= self._lmq_table.get(name) != offset
                self._lmq_table[name] = offset
                return
            queues = self._table.setdefault(name, {})
            self._changed |= queues.get(queue_id) != offset
            queues[queue_id] = offset

    def _is_light(self, group: str) -> bool:
        return self.lmq and group.startswith(LMQ_PREFIX)

    def positions(self) -> dict[Position, int]:
        """Return {(group, topic, queue id): offset of the next message}."""
        names = {name: queues.copy() for name, queues in self._table.copy().items()}
        names |= {name: {0: offset} for name, offset in self._lmq_table.copy().items()}
        found = {}
        for name, queues in names.items():
            topic, _, group = name.partition(TOPIC_GROUP_SEPARATOR)
            found.update({(group, topic, number): offset for number, offset in queues.items()})
        return found

    def lower(self, range_of: Callable[[str, int], tuple[int, int]]) -> int:
        """Lower positions after the end of their queue; return how many.

        `range_of` is called with (topic, queue id), and returns the new position and the end. Not
        durable before `persist`.
        """
        count = 0
        for (group, topic, queue_id), offset in self.positions().items():
            lowered, end = range_of(topic, queue_id)
            if offset > end:
                self.commit_offset(group, topic, queue_id, lowered)
                count += 1
        return count

    def remove_topic(self, topic: str) -> None:
        """Remove the positions in a topic that was deleted."""
        with self._lock:
            for table in (self._table, self._lmq_table):
                gone = [n for n in table if n.partition(TOPIC_GROUP_SEPARATOR)[0] == topic]
                for name in gone:
                    del table[name]
                    self._changed = True
            self._changed |= self._file.forget_damaged(
                lambda path: path[1:] != () and path[1].partition(TOPIC_GROUP_SEPARATOR)[0] == topic
            )

    def forget_topic(self, topic: str) -> None:
        """Remove the positions in a topic, durably. Raises as `persist`."""
        self.remove_topic(topic)
        self.persist()

    def persist(self) -> None:
        """Write the file if a position has changed.

        Durability: durable on return; a crash leaves the old content or the new. Raises StoreError,
        and the next call tries again; StoreStateError after `close`.
        Source: RocketMQ 4.9.3 ConfigManager#persist.
        """
        with self._write_lock:
            with self._lock:
                changed, self._changed = self._changed, False
                if changed and self._closed:
                    raise StoreStateError(f"{self.path}: the store is closed")
                if changed:
                    self._content = self._content_of_tables()
            try:
                if changed:
                    self._file.write(self._content)
                else:
                    self._file.flush_name()
            except BaseException as error:
                self._changed |= changed
                if isinstance(error, StoreError):
                    self.error = without_frames(error)
                raise
            self.error = None

    def _content_of_tables(self) -> dict[str, Any]:
        """Return the content of the file, each table in a broker's order. Call with _lock held."""
        old, read = self._content[_TABLE], self._read.get(_TABLE, {})
        tables = {
            name: _ordered(old.get(name, {}), queues, _READ_BINS if name in read else _QUEUE_BINS)
            for name, queues in self._table.items()
        }
        bins = {name: _READ_BINS if name in self._read else _BINS for name in (_TABLE, _LMQ_TABLE)}
        found = {_TABLE: _ordered(old, tables, bins[_TABLE])}
        if self.lmq:
            light = self._content.get(_LMQ_TABLE, {})
            light = _ordered(light, self._lmq_table, bins[_LMQ_TABLE])
            found = {_LMQ_TABLE: light, **found}
        first: dict[str, Any] = {}
        if self.lmq and _LMQ_TABLE not in self._content:
            first = {_LMQ_TABLE: {}}
        return {**first, **self._content, **found}

    def close(self) -> None:
        """Accept no position from now on, after the end of a write in another thread."""
        with self._write_lock, self._lock:
            self._closed = True


def _ordered(old: dict[Any, Any], now: dict[Any, Any], bins: int) -> dict[Any, Any]:
    """Return a table in the order of the file, with new entries where a broker would print them."""
    known = {key: now[key] for key in old if key in now}
    return fastjson.map_order(known, {key: now[key] for key in now if key not in old}, bins)


def _valid_part(content: dict[str, Any]) -> dict[str, Any]:
    """Return a content without entries that are not positions. Raises ContentError."""
    tables, light = table_of(content, _TABLE), table_of(content, _LMQ_TABLE)
    found = {
        name: _positions_of(queues)
        for name, queues in tables.items()
        if _names_both(name) and isinstance(queues, dict)
    }
    found_light = _offsets_of({name: at for name, at in light.items() if _names_both(name)})
    parts = ((_TABLE, found), (_LMQ_TABLE, found_light))
    return {**content, **{name: part for name, part in parts if name in content}}


def _names_both(name: str) -> bool:
    topic, _, group = name.partition(TOPIC_GROUP_SEPARATOR)
    return bool(topic and group)


def _positions_of(queues: dict[str, Any]) -> dict[str, int]:
    found = {text: at for text, at in queues.items() if 0 <= _queue_id(text) <= QUEUE_ID_MAX + 1}
    return _offsets_of(found)


def _offsets_of(table: dict[str, Any]) -> dict[str, int]:
    found = {name: java_number(value) for name, value in table.items()}
    return {name: offset for name, offset in found.items() if offset is not None and offset >= -1}


def _queue_id(text: str) -> int:
    """Return the queue id of a key, -1 for a text that is not an int."""
    number = java_number(text, 32)
    return -1 if number is None else number
