"""dump: all answers of a store as JSON lines, to compare stores."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pyrocketstore.arguments.scalars import INT32_MAX, INT64_MAX, INT64_MIN
from pyrocketstore.commit_log.log import try_decode
from pyrocketstore.config.message_store_config import MessageStoreConfig, detect_sizes
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.display import shown
from pyrocketstore.errors import StoreCorruptionError, StoreFormatError
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.record._message import MessageExt
from pyrocketstore.record._text import java_host
from pyrocketstore.results import GetMessageStatus
from pyrocketstore.system.env import Env

PULL_COUNT = 32
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
) -> Iterator[str]:
    """Yield every answer of a store, opened read-only, as 4.9.3 gives it after load().

    Parameters
    ----------
    path : the store's root directory
    config : MessageStoreConfig, or the path of a broker.conf
    queries : path of key queries, see `read_queries`, or None

    Raises
    ------
    StoreCorruptionError, StoreIOError, StoreFormatError

    Source: RocketMQ 4.9.3 DefaultMessageStore#load and its read methods.
    """
    if config is None:
        settings = MessageStoreConfig().at_root(path)
    elif isinstance(config, MessageStoreConfig):
        settings = config.at_root(path)
    else:
        settings, _ = MessageStoreConfig.from_broker_conf(config, root=path)
    env = Env()
    wanted = () if queries is None else read_queries(env, str(queries))
    settings = detect_sizes(env, str(path), settings, read_only=True)
    store = DefaultMessageStore(settings, env=env, read_only=True)
    store.load()
    try:
        yield from dump_store(store)
        yield from _answer_lines(store, wanted)
        for file in store.commit_log.mapped_file_queue.mismatched:
            reason = f"{file.reason}; the messages that it lacks are not in this dump"
            raise StoreCorruptionError(file.path, -1, reason)
    finally:
        store.shutdown()


def dump_store(store: DefaultMessageStore) -> Iterator[str]:
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
            yield from _queue_lines(store, topic, queue_id, queue)


def _queue_lines(
    store: DefaultMessageStore, topic: str, queue_id: int, queue: ConsumeQueue
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
            if following <= at:
                break
            at = following
            continue
        yield from _message_lines(queue, topic, queue_id, at, result)
        at = result.next_begin_offset
        result.release()
    if high > low and high <= queue.units_per_file:
        yield from _time_lines(store, topic, queue_id, low, high)


def _get_status_line(status: str | None, at: int, following: int) -> str:
    fields = {"get_status": str(status).replace("None", "null"), "at": at, "next": following}
    return json.dumps(fields, separators=(",", ":"))


def _message_lines(
    queue: ConsumeQueue, topic: str, queue_id: int, at: int, result: Any
) -> Iterator[str]:
    # 4.9.3's driver numbers the messages from `at` on, also if the pull skipped units.
    codes = queue.read_units(at, result.message_count).tags_code.tolist()
    for i, view in enumerate(result.message_mapped_list):
        message = try_decode(view)
        if message is None:
            yield _line("undecodable", {"phy_offset": view.start_offset, "size": view.size})
            continue
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
