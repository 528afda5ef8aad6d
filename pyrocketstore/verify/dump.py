"""dump: all answers of a store as JSON lines, to compare stores."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pyrocketstore.arguments.scalars import INT32_MAX, INT64_MAX, INT64_MIN, check_kind
from pyrocketstore.commit_log.log import try_decode
from pyrocketstore.config.message_store_config import MessageStoreConfig, detect_sizes
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE
from pyrocketstore.display import shown
from pyrocketstore.errors import StoreCorruptionError, StoreFormatError
from pyrocketstore.files.mapped_file_queue import file_name_of
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.message_store.lost_ends import lost_end, missing_files
from pyrocketstore.record._message import MessageExt
from pyrocketstore.record._text import java_host
from pyrocketstore.results import GetMessageStatus
from pyrocketstore.system.env import Env
from pyrocketstore.verify.run import verify_store

PULL_COUNT = 32
#: Queues with missing units that a text names.
NAMED_QUEUES = 10
_LACKS = "the messages that it lacks are not in this dump"
#: Java's int and long as text.
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
#: A control character as json writes it -> as 4.9.3's driver writes it.
_CONTROLS = {
    "\\b": "\\u0008",
    "\\t": "\\u0009",
    "\\n": "\\u000a",
    "\\f": "\\u000c",
    "\\r": "\\u000d",
    "\x7f": "\\u007f",
}
#: A whole escape: the character after an escaped backslash belongs to no escape.
_ESCAPED = re.compile(r"\\.|\x7f")


def _as_long(number: int) -> int:
    """Wrap a number to Java's long: a sum may exceed it in a damaged store."""
    return (number - INT64_MIN) % (1 << 64) + INT64_MIN


def _line(kind: str, fields: dict[str, Any]) -> str:
    text = json.dumps({kind: fields}, separators=(",", ":"), ensure_ascii=True)
    return _ESCAPED.sub(lambda found: _CONTROLS.get(found[0], found[0]), text)


def dump_lines(
    path: str | Path,
    config: MessageStoreConfig | str | Path | None = None,
    queries: str | Path | None = None,
    on_omission: Callable[[str], None] | None = None,
) -> Iterator[str]:
    """Yield every answer of a store, opened read-only, as 4.9.3 returns it after load().

    Parameters
    ----------
    path : the store's root directory
    config : MessageStoreConfig, or the path of a broker.conf
    queries : path of key queries, see `read_queries`, or None
    on_omission : called after the last line with each text that `Omissions` has; None: files of a
        wrong length raise StoreCorruptionError then, and nothing reports other omissions

    Raises
    ------
    StoreCorruptionError, StoreIOError, StoreFormatError

    Source: RocketMQ 4.9.3 DefaultMessageStore#load and its read methods.
    """
    if config is None:
        settings = MessageStoreConfig().at_root(path)
    elif isinstance(config, MessageStoreConfig):
        check_kind("config", config, MessageStoreConfig)
        settings = config.at_root(path)
    else:
        settings, _ = MessageStoreConfig.from_broker_conf(config, root=path)
    env = Env()
    wanted = () if queries is None else read_queries(env, str(queries))
    settings = detect_sizes(env, str(path), settings, read_only=True)
    store = DefaultMessageStore(settings, env=env, read_only=True)
    store.load()
    try:
        omissions = Omissions(store)
        yield from dump_store(store, omissions)
        yield from _answer_lines(store, wanted)
        if on_omission is not None:
            for text in omissions.texts():
                on_omission(text)
            return
        for file in store.commit_log.mapped_file_queue.mismatched:
            raise StoreCorruptionError(file.path, -1, f"{file.reason}; {_LACKS}")
    finally:
        store.shutdown()


class Omissions:
    """The messages that a dump of a loaded, damaged store omits. Threads: one."""

    def __init__(self, store: DefaultMessageStore) -> None:
        self._store = store
        self._files = store.commit_log.mapped_file_queue
        #: {file of the log or of a queue: (reason of the first omitted message, count)}
        self._found: dict[str, tuple[str, int]] = {}

    def add(self, queue: ConsumeQueue, start: int, stop: int, dumped: Container[int]) -> None:
        """Note the units [start, stop) of a queue whose physical offsets are not `dumped`."""
        low = max(0, self._store.get_min_phy_offset())
        while start < stop:
            units = queue.read_units(start, stop - start)
            count = len(units.phy_offset)
            is_message = ~units.is_pre_blank() & (units.phy_offset >= low) & (units.size > 0)
            for row in np.flatnonzero(is_message).tolist():
                if int(units.phy_offset[row]) not in dumped:
                    self._add(queue, start + row, int(units.phy_offset[row]))
            # Without units the file is missing: recovery has reported that.
            start += count or queue.units_per_file - start % queue.units_per_file

    def _add(self, queue: ConsumeQueue, queue_offset: int, phy_offset: int) -> None:
        file = self._files.find_mapped_file_by_offset(phy_offset)
        where = f"{queue.topic}/{queue.queue_id}, queue offset {queue_offset}"
        if file is not None:
            path, position = self._store.commit_log.position_of(phy_offset)
            reason = f"no valid record begins at byte {position} ({where})"
        elif phy_offset < self._store.get_max_phy_offset():
            return  # `missing_files` has this file
        else:
            at = queue_offset * CQ_STORE_UNIT_SIZE
            position = at % queue.mapped_file_size
            folder = f"{queue.store_path}/{queue.topic}/{queue.queue_id}"
            path = f"{folder}/{file_name_of(at - position)}"
            reason = (
                f"the unit at byte {position} names byte {phy_offset} of the log, which does not"
                f" hold it ({where})"
            )
        first, count = self._found.get(path, (reason, 0))
        self._found[path] = first, count + 1

    def texts(self) -> Iterator[str]:
        """Yield a text for each damaged or missing file with omitted messages."""
        files = self._store.files
        plan = files.plan
        mismatched = {file.path for file in self._files.mismatched}
        for file in self._files.mismatched:
            yield f"{file.path}: {file.reason}; {_LACKS}"
        yield from [] if plan is None else plan.loss_notices
        if plan is not None and plan.broken:
            yield f"{plan.early_end}; the messages after it are not in this dump"
        lost = None if plan is None or plan.broken else lost_end(files, plan, plan.beyond)
        if lost is not None and lost.path not in mismatched:
            yield f"{lost}; these messages are not in this dump"
        for text in missing_files(self._store.commit_log.mapped_file_queue.mapped_files):
            yield f"{text}; the messages there are not in this dump"
        for path, (reason, count) in sorted(self._found.items()):
            if path not in mismatched:
                what = "1 message is" if count == 1 else f"{count} messages are"
                yield f"{path}: {reason}; {what} not in this dump"
        # Only the log itself shows that units are missing, as where queue files were deleted.
        report = verify_store(files, self._store.check_root)
        missing = report.missing_units
        if missing:
            lacks = "1 unit is" if missing == 1 else f"{missing} units are"
            yield (
                f"{self._store.root}: {lacks} missing in queues, though the log has the messages:"
                f" {_counts_text(report.missing_units_of)}; they are not in this dump; `verify`"
                " lists them"
            )


def _counts_text(counts: Mapping[tuple[str, int], int]) -> str:
    """Return the first queues with their counts, and the number of the other queues."""
    items = islice(counts.items(), NAMED_QUEUES)
    names = [f"{topic}/{queue_id} ({count})" for (topic, queue_id), count in items]
    others = len(counts) - len(names)
    if others:
        names[-1] += f", and {others} more queue{'s' if others > 1 else ''}"
    return ", ".join(names)


def dump_store(store: DefaultMessageStore, omissions: Omissions | None = None) -> Iterator[str]:
    """Yield the lines of an open store: the store, then each queue with its messages."""
    offsets = {
        "min_phy_offset": store.get_min_phy_offset(),
        "max_phy_offset": store.get_max_phy_offset(),
    }
    yield _line("store", offsets)
    for topic, queues in store.get_consume_queue_table().items():
        for queue_id, queue in sorted(queues.items()):
            if queue.get_max_offset_in_queue() == 0 and queue.max_physic_offset == -1:
                continue
            yield from _queue_lines(store, topic, queue_id, queue, omissions)


def _queue_lines(
    store: DefaultMessageStore,
    topic: str,
    queue_id: int,
    queue: ConsumeQueue,
    omissions: Omissions | None,
) -> Iterator[str]:
    low = store.get_min_offset_in_queue(topic, queue_id)
    high = store.get_max_offset_in_queue(topic, queue_id)
    fields = {
        "topic": topic,
        "queue_id": queue_id,
        "min_offset": low,
        "max_offset": high,
        "max_physic_offset": queue.max_physic_offset,
    }
    yield _line("queue", fields)
    at = low
    while at < high:
        result = store.get_message("dump", topic, queue_id, at, PULL_COUNT)
        if result is None or result.status is not GetMessageStatus.FOUND:
            status = None if result is None else result.status.name
            following = -1 if result is None else result.next_begin_offset
            yield _get_status_line(status, at, following)
            if omissions is not None:
                omissions.add(queue, at, min(following, high) if following > at else high, ())
            if following <= at:
                break
            at = following
            continue
        dumped: set[int] = set()
        yield from _message_lines(queue, topic, queue_id, at, result, dumped)
        if omissions is not None:
            omissions.add(queue, at, min(result.next_begin_offset, high), dumped)
        at = result.next_begin_offset
        result.release()
    # Among several files 4.9.3 chooses by their times, which a copy of a store need not keep.
    if high > low and high <= queue.units_per_file:
        yield from _time_lines(store, topic, queue_id, low, high)


def _get_status_line(status: str | None, at: int, following: int) -> str:
    fields = {"get_status": str(status).replace("None", "null"), "at": at, "next": following}
    return json.dumps(fields, separators=(",", ":"))


def _message_lines(
    queue: ConsumeQueue, topic: str, queue_id: int, at: int, result: Any, dumped: set[int]
) -> Iterator[str]:
    # 4.9.3's driver numbers the messages from `at` on, also if the pull skipped units.
    codes = queue.read_units(at, result.message_count).tags_code.tolist()
    for i, view in enumerate(result.message_mapped_list):
        message = try_decode(view)
        if message is None:
            yield _line("undecodable", {"phy_offset": view.start_offset, "size": view.size})
            continue
        dumped.add(view.start_offset)
        fields = {"cq_topic": topic, "cq_queue_id": queue_id, "cq_offset": at + i}
        code = codes[i] if i < len(codes) else 0
        yield _line("message", fields | message_fields(message, view.start_offset, view.size, code))


def message_fields(
    message: MessageExt, phy_offset: int, size: int, tags_code: int
) -> dict[str, Any]:
    """Return the fields of a message: hosts in Java's form, the hash of the stored body."""
    body = message.stored_body
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "phy_offset": phy_offset,
        "size": size,
        "tags_code": tags_code,
        "decoded_commitlog_offset": message.phy_offset,
        "store_size": message.size,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "body_crc": message.body_crc,
        "born_timestamp": message.born_timestamp,
        "store_timestamp": message.store_timestamp,
        "born_host": java_host(message.born_host_bytes),
        "store_host": java_host(message.store_host_bytes),
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "msg_id": message.msg_id,
        "body_len": len(body),
        "body_sha256_8": hashlib.sha256(body).hexdigest()[:16] if body else "",
        "properties": dict(sorted(message.properties.items(), key=_java_order)),
    }


def _java_order(item: tuple[str, str]) -> list[int]:
    """Return the sort key of a property name in Java: its UTF-16 units."""
    units = []
    for code in map(ord, item[0]):
        if code > 0xFFFF:
            units += [0xD800 + ((code - 0x10000) >> 10), 0xDC00 + (code & 0x3FF)]
        else:
            units.append(code)
    return units


def _time_lines(
    store: DefaultMessageStore, topic: str, queue_id: int, low: int, high: int
) -> Iterator[str]:
    first = store.get_message_store_time_stamp(topic, queue_id, low)
    last = store.get_message_store_time_stamp(topic, queue_id, high - 1)
    total = _as_long(first + last)
    middle = abs(total) // 2 if total >= 0 else -(abs(total) // 2)
    for timestamp in (_as_long(first - 1), first, middle, last, _as_long(last + 1)):
        fields = {
            "topic": topic,
            "queue_id": queue_id,
            "timestamp": timestamp,
            "offset": store.get_offset_in_queue_by_time(topic, queue_id, timestamp),
        }
        yield _line("offset_by_time", fields)


class KeyQuery(NamedTuple):
    """One line of a file of key queries; times are Unix ms, both inclusive."""

    topic: str
    key: str
    max_num: int
    begin: int
    end: int


def read_queries(env: Env, path: str) -> list[KeyQuery]:
    """Read a file of key queries: topic, key, max_num, begin ms, end ms, separated by tabs.

    Every line counts, an empty one too; only the last may end without a line feed.

    Raises
    ------
    StoreFormatError with the number of the first line that is not such a query; StoreIOError.
    """
    lines = env.read_file(path).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [_query_of(f"{path}:{number}", line) for number, line in enumerate(lines, 1)]


def _query_of(where: str, line: bytes) -> KeyQuery:
    try:
        fields = line.rstrip(b"\r").decode("utf-8").split("\t")
    except UnicodeDecodeError as error:
        raise StoreFormatError(f"{where}: not UTF-8: {error}") from None
    if len(fields) != 5:
        raise StoreFormatError(
            f"{where}: {len(fields)} field(s); a query has 5, separated by tabs:"
            " topic, key, max_num, begin ms, end ms"
        )
    times = (INT64_MIN, INT64_MAX)
    bounds = (("max_num", 0, INT32_MAX), ("begin", *times), ("end", *times))
    numbers = []
    for text, (name, low, high) in zip(fields[2:], bounds, strict=True):
        value = int(text) if _NUMBER.fullmatch(text) else None
        if value is None or not low <= value <= high:
            raise StoreFormatError(
                f"{where}: {name} is {shown(text)}; it must be a whole number from {low} to {high}"
            )
        numbers.append(value)
    return KeyQuery(fields[0], fields[1], *numbers)


def _answer_lines(store: DefaultMessageStore, queries: Iterable[KeyQuery]) -> Iterator[str]:
    for query in queries:
        result = store.query_message(*query)
        fields = {
            **query._asdict(),
            "phy_offsets": result.phy_offsets,
            "index_last_update_phyoffset": result.index_last_update_phyoffset,
        }
        result.release()
        yield _line("query", fields)
