"""ROOT/config/consumerFilter.json: the SQL92 filters of consumers, for bit maps in ext units."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyrocketstore.arguments.scalars import is_encodable
from pyrocketstore.consume_queue.ext import MAX_EXT_UNIT_SIZE, MIN_EXT_UNIT_SIZE
from pyrocketstore.display import logger, shown
from pyrocketstore.errors import StoreFormatError, StoreStateError
from pyrocketstore.files import fastjson
from pyrocketstore.files.config_file import ConfigFile, table_of
from pyrocketstore.filter.bloom import BloomFilter
from pyrocketstore.filter.sql92 import Sql92Filter

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

LOG = logger(__name__)

SQL92 = "SQL92"
#: ms before an opening; a filter that was live at the last write of the file has died then
_DEATH_BEFORE_LOAD = 30_000
_TABLE, _GROUPS = "filterDataByTopic", "groupFilterData"
#: Bins of the broker's tables: ConcurrentHashMaps made for 256 and, of one topic, by default. A
#: table that it has read from the file is one that fastjson has made.
_BINS, _READ_BINS = 512, 16
_REMEDY = "delete it and its backup: consumers then register their filters again"


class _Compiled(NamedTuple):
    """The filters of a group for a topic, and its bits: that of the file, and those that the next
    write of the file replaces it by. Until then a broker may read either."""

    filters: tuple[Sql92Filter, ...]
    positions: tuple[int, ...]

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message passes one of the filters."""
        return any(one.matches(properties) for one in self.filters)


class ConsumerFilters:
    """The filters of a store in the form of 4.9.3's ConsumerFilterManager.

    A filter that a consumer has registered is live until the last member of its group leaves, and
    dead then. Bit maps have the bits of dead filters too. A filter is removed after it was dead for
    `clean_time_span`.

    Parameters
    ----------
    env : Env
    root : the store's root directory
    error_rate, expected : of the BloomFilter
    clean_time_span : ms
    newest_time : callable(), the store time (ms) of the newest message

    Unknown fields are kept. An entry whose fields have other types, or whose bits are not among
    those of its number, is not used and stays: see ConfigFile.

    Threads: any; `bit_map` takes no lock. The other calls are for `shielded` calls.
    Source: RocketMQ 4.9.3 ConsumerFilterManager, CommitLogDispatcherCalcBitMap.
    Differs: see ConfigFile. A filter becomes part of bit maps before its time of birth, which is
    not before the newest message: otherwise a broker may leave out messages that match. A filter
    replaces the one before whatever the clock says, where 4.9.3 ignores it if the clock went back.
    """

    def __init__(
        self,
        env: Env,
        root: str,
        error_rate: int,
        expected: int,
        clean_time_span: int,
        newest_time: Callable[[], int],
    ) -> None:
        self.path = os.path.join(root, "config", "consumerFilter.json")
        self._env = env
        self._bloom = BloomFilter(error_rate, expected)
        room = MAX_EXT_UNIT_SIZE - MIN_EXT_UNIT_SIZE
        if self._bloom.bit_count // 8 > room:
            raise StoreFormatError(
                f"bit maps of {self._bloom.bit_count // 8} bytes for {expected} filters with"
                f" {error_rate} percent of errors: an ext unit has room for {room}"
            )
        self._clean_time_span = clean_time_span
        self._newest_time = newest_time
        self._file = ConfigFile(env, self.path, self._valid_part, _REMEDY)
        self._lock = threading.Lock()  # over the content and the writes of the file
        self._content: dict[str, Any] = {}  # replaced, never changed, as are its parts
        self._bins = _BINS
        #: {topic: {group: filter}}; replaced, never changed
        self._compiled: dict[str, dict[str, _Compiled]] = {}
        self._changed = self._closed = False

    def load(self) -> None:
        """Read the file or its backup. Raises StoreCorruptionError, StoreIOError.

        All filters are ignored if one is made for another number of bits than the Bloom filter has.

        Source: RocketMQ 4.9.3 ConsumerFilterManager#decode.
        """
        with self._lock:
            content = self._file.read()
            table = {topic: part for topic, part in content.get(_TABLE, {}).items() if part}
            entries = [one for part in table.values() for one in _entries(part).values()]
            if not all(self._fits(entry) for entry in entries):
                LOG.warning(
                    "%s: the filters are ignored: their bits are not those of %d positions among"
                    " %d bits", self.path, self._bloom.hash_count, self._bloom.bit_count,
                )  # fmt: skip
                content, table = {}, {}
            died = self._env.now_ms() - _DEATH_BEFORE_LOAD
            for topic, part in table.items():
                groups = {group: _as_loaded(entry, died) for group, entry in _entries(part).items()}
                table[topic] = {**part, _GROUPS: groups}
            self._content = {**content, _TABLE: table}
            self._compiled = {
                topic: found for topic, part in table.items() if (found := self._compile(part))
            }
            self._bins = _READ_BINS if content else _BINS
            self._changed = self._closed = False

    @staticmethod
    def _valid_part(content: dict[str, Any]) -> dict[str, Any]:
        """Return a content without entries that are damaged. Raises ContentError."""
        found: dict[str, Any] = {}
        for topic, part in table_of(content, _TABLE).items():
            valid = _valid_topic(part) if isinstance(part, dict) else part
            if part is None or (isinstance(part, dict) and valid is not None):
                found[topic] = valid
        return {**content, _TABLE: found} if _TABLE in content else content

    def _fits(self, entry: Mapping[str, Any]) -> bool:
        data = entry.get("bloomFilterData") or {}
        positions = data.get("bitPos") or ()
        return (
            data.get("bitNum") == self._bloom.bit_count and len(positions) == self._bloom.hash_count
        )

    def _compile(self, part: Mapping[str, Any]) -> dict[str, _Compiled]:
        """Return {group: filter} of a topic, without filters of another type or grammar."""
        found = {}
        for group, entry in _entries(part).items():
            if entry.get("expressionType") != SQL92 or not entry.get("expression"):
                continue
            try:
                where = Sql92Filter(entry["expression"])
            except StoreFormatError as error:
                LOG.warning("%s: group %s: the filter is not used: %s", self.path, group, error)
                continue
            found[group] = _Compiled((where,), entry["bloomFilterData"]["bitPos"])
        return found

    def note_unclean_stop(self) -> None:
        """Have the next `persist` flush the file's name."""
        self._file.note_unclean_stop()

    def register(self, group: str, topic: str, where: Sql92Filter) -> None:
        """Add the filter of a group, or make it live again; the next `persist` writes it.

        Raises StoreFormatError: its text has no UTF-8; StoreStateError.
        Source: RocketMQ 4.9.3 ConsumerFilterManager#register.
        """
        if not is_encodable(where.text):
            raise StoreFormatError(f"{shown(where.text)}: has a lone surrogate, and so no UTF-8")
        if type(where) is not Sql92Filter:  # the methods of a subclass are the program's
            where = Sql92Filter(where.text)
        with self._lock:
            if self._closed:
                raise StoreStateError(f"{self.path}: the store is closed")
            positions = tuple(self._bloom.positions(f"{group}#{topic}"))
            of_topic = self._compiled.get(topic, {})
            before = of_topic[group].filters if group in of_topic else ()
            others = tuple(one for one in before if one.text != where.text)
            of_topic = {**of_topic, group: _Compiled((*others, where), positions)}
            self._compiled = {**self._compiled, topic: of_topic}
            # From here on bit maps have the filter: only later messages may count as in its life.
            now = self._env.now_ms()
            born = max(now, self._newest_time())
            part = self._content.get(_TABLE, {}).get(topic) or {_GROUPS: {}, "topic": topic}
            known = _entries(part).get(group)
            bloom = {"bitNum": self._bloom.bit_count, "bitPos": positions}
            entry = _new_entry(group, topic, where.text, bloom, born, now)
            if known is not None:
                entry = {**known, **entry}
                same = ("expression", "expressionType", "bloomFilterData")
                if all(known.get(name) == entry[name] for name in same):
                    entry["bornTime"] = known.get("bornTime", born)
            groups = fastjson.map_order(_entries(part), {group: entry}, _READ_BINS)
            self._put_topic(topic, {**part, _GROUPS: groups})

    def note_end(self, group: str | None = None) -> None:
        """Take note that a group, None: each group, has no members; the next `persist` writes it.

        Without effect after `close`.

        Source: RocketMQ 4.9.3 ConsumerFilterManager#unRegister.
        """
        with self._lock:
            if self._closed:
                return
            now = self._env.now_ms()
            for topic, part in self._content.get(_TABLE, {}).items():
                groups = {
                    name: _dead(entry, now)
                    if group in (None, name) and not _is_dead(entry)
                    else entry
                    for name, entry in _entries(part).items()
                }
                if groups != _entries(part):
                    self._put_topic(topic, {**part, _GROUPS: groups})

    def end_all(self) -> None:
        """Take note, durably, that no group has members. Raises as `persist`."""
        self.note_end()
        self.persist()

    def _put_topic(self, topic: str, part: dict[str, Any]) -> None:
        """Replace the filters of a topic. Call with the lock held."""
        table = self._content.get(_TABLE, {})
        table = fastjson.map_order(table, {topic: part}, self._bins)
        self._content = {**self._content, _TABLE: table}
        self._changed = True

    def bit_map(self, topic: str, properties: Mapping[str, str] | None) -> bytes | None:
        """Return the bit map of a message, None if its topic has no filters.

        Source: RocketMQ 4.9.3 CommitLogDispatcherCalcBitMap#dispatch.
        """
        filters = self._compiled.get(topic)
        if not filters:
            return None
        named = properties or {}
        return self._bloom.bit_map(one.positions for one in filters.values() if one.matches(named))

    def persist(self) -> None:
        """Write the file if a filter has changed, without those that have been dead for long.

        Durability: durable on return; a crash leaves the old content or the new. Raises StoreError,
        and the next call tries again; StoreStateError after `close`.
        Source: RocketMQ 4.9.3 ConfigManager#persist, ConsumerFilterManager#clean.
        """
        with self._lock:
            if self._changed and self._closed:
                raise StoreStateError(f"{self.path}: the store is closed")
            if self._changed:
                content = self._without_long_dead()
                self._file.write(content)
                # Only now: bit maps have each filter that the file says is in its life.
                self._content = content
                self._drop_compiled()
                self._changed = False
            else:
                self._file.flush_name()

    def _without_long_dead(self) -> dict[str, Any]:
        """Return the content of the file. Call with the lock held."""
        last = self._env.now_ms() - self._clean_time_span
        table = {}
        for topic, part in self._content.get(_TABLE, {}).items():
            groups = {
                group: entry
                for group, entry in _entries(part).items()
                if not _is_dead(entry) or entry.get("deadTime", 0) > last
            }
            if groups:
                table[topic] = {**part, _GROUPS: groups}
        return {**self._content, _TABLE: table}

    def _drop_compiled(self) -> None:
        """Drop the filters that are no longer in the content. Call with the lock held."""
        table = self._content[_TABLE]
        kept = {
            topic: {
                group: one._replace(filters=one.filters[-1:])
                for group, one in of_topic.items()
                if group in table[topic][_GROUPS]
            }
            for topic, of_topic in self._compiled.items()
            if topic in table
        }
        if kept != self._compiled:
            self._compiled = kept

    def close(self) -> None:
        """Write nothing from now on, after the end of a write in another thread."""
        with self._lock:
            self._closed = True


def _entries(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return {group: entry} of a topic."""
    found: dict[str, Any] = part.get(_GROUPS) or {}
    return {group: entry for group, entry in found.items() if entry is not None}


def _is_dead(entry: Mapping[str, Any]) -> bool:
    """Source: RocketMQ 4.9.3 ConsumerFilterData#isDead."""
    return bool(entry.get("deadTime", 0) >= entry.get("bornTime", 0))


def _as_loaded(entry: dict[str, Any], died: int) -> dict[str, Any]:
    """Return an entry of the file: one that was live has died, and its bits are an int[]."""
    bloom = entry["bloomFilterData"]
    entry = {**entry, "bloomFilterData": {**bloom, "bitPos": tuple(bloom["bitPos"])}}
    return entry if entry.get("deadTime", 0) else _dead(entry, died)


def _dead(entry: Mapping[str, Any], at: int) -> dict[str, Any]:
    """Return the entry of a filter that died at a time (ms), not before its birth."""
    return {**entry, "dead": True, "deadTime": max(at, entry.get("bornTime", 0))}


def _new_entry(
    group: str, topic: str, expression: str, bloom: dict[str, Any], born: int, now: int
) -> dict[str, Any]:
    return {
        "bloomFilterData": bloom,
        "bornTime": born,
        "clientVersion": now,
        "consumerGroup": group,
        "dead": False,
        "deadTime": 0,
        "expression": expression,
        "expressionType": SQL92,
        "topic": topic,
    }


def _valid_topic(part: dict[str, Any]) -> dict[str, Any] | None:
    """Return the part of a topic without damaged entries, None if the whole is damaged."""
    groups = part.get(_GROUPS)
    if groups is None:
        return part
    if not isinstance(groups, dict):
        return None
    valid = {group: entry for group, entry in groups.items() if entry is None or _is_entry(entry)}
    return {**part, _GROUPS: valid}


def _is_entry(entry: Any) -> bool:
    """Return whether the fields that are used have their types."""
    if not isinstance(entry, dict):
        return False
    bloom = entry.get("bloomFilterData")
    if not isinstance(bloom, dict) or not isinstance(bloom.get("bitPos"), list):
        return False
    positions, count = bloom["bitPos"], bloom.get("bitNum")
    texts = [entry.get(name) for name in ("expression", "expressionType")]
    numbers = [entry.get(name, 0) for name in ("bornTime", "deadTime", "clientVersion")]
    return (
        all(text is None or isinstance(text, str) for text in texts)
        and all(type(number) is int for number in (*numbers, *positions, count))
        and all(0 <= position < count for position in positions)
    )
