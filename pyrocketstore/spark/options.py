"""The options of format("rocketmq-store"): names, defaults and combinations."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pyrocketstore.arguments.scalars import time_of
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.record.message import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from pyrocketstore.record.tags import TagsExpression, tags_filter
from pyrocketstore.spark.encodable_errors import encodable
from pyrocketstore.spark.local_paths import local_path

if TYPE_CHECKING:
    from pyrocketstore.filter.sql92 import Sql92Filter

#: The name of the data source.
FORMAT = "rocketmq-store"
VIEWS = ("messages", "commitlog", "consumequeue", "index", "files")
EARLIEST, LATEST = -2, -1
QUEUE_ID_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
#: Columns have 32-bit Arrow offsets, and larger batches are slower (bytes).
BATCH_BYTES_MAX = 16 << 20

#: Rows of an Arrow batch: the view consumequeue has no records to limit by bytes.
BATCH_ROWS_MAX = 1 << 20
#: Tasks of a query for each store: the driver stores each task, and Spark plans it.
TASKS_MAX = 100_000

BATCH, STREAM, WRITE = "batch", "stream", "write"
#: The kind of a query is not known yet when Spark requests the schema.
ANY = "any"
#: Option -> the kinds of query that accept it.
OPTIONS: dict[str, frozenset[str]] = {
    name: frozenset(kinds.split())
    for kinds, names in {
        "batch stream write": "path brokerConf topic",
        "batch stream": """
            paths stores brokerName view topics topicPattern assign includeSystemTopics
            startingOffsets startingTimestamp startingOffsetsByTimestamp
            startingOffsetsByTimestampStrategy subExpression where minPartitions partitionBytes
            maxRecordsPerPartition failOnDataLoss onCorrupt verifyCrc decompress batchBytes
            batchRows kafkaSchema includeHeaders""",
        "batch": "endingOffsets endingTimestamp endingOffsetsByTimestamp readMode snapshot",
        "stream": "maxOffsetsPerTrigger maxBytesPerTrigger",
        "write": "flushDiskType stagingDir checkpointLocation",
    }.items()
    for name in names.split()
}
_CANONICAL = {name.lower(): name for name in OPTIONS}

#: Options that only some views accept.
_VIEWS_OF: dict[str, tuple[str, ...]] = {
    name: tuple(views.split())
    for views, names in {
        "messages": "subExpression where readMode",
        "messages commitlog": "verifyCrc decompress batchBytes",
        "messages consumequeue": """
            topic topics topicPattern assign includeSystemTopics startingOffsets endingOffsets
            startingTimestamp endingTimestamp startingOffsetsByTimestamp endingOffsetsByTimestamp
            startingOffsetsByTimestampStrategy""",
        "messages commitlog consumequeue index": """
            batchRows minPartitions partitionBytes maxRecordsPerPartition failOnDataLoss""",
    }.items()
    for name in names.split()
}

#: broker -> topic -> queue id -> queue offset or Unix ms; broker "" means every broker.
Positions = Mapping[str, Mapping[str, Mapping[int, int]]]


@dataclasses.dataclass(frozen=True)
class StorePlace:
    """One store: the label of its rows, and its root directory, absolute."""

    broker_name: str
    root: str


@dataclasses.dataclass(frozen=True)
class Bound:
    """Where queues begin or end.

    `offset` is EARLIEST or LATEST, for queues that neither `offsets` nor `timestamps` names.
    `timestamp` (Unix ms) takes precedence over both.
    """

    offset: int
    offsets: Positions = dataclasses.field(default_factory=dict)
    timestamps: Positions = dataclasses.field(default_factory=dict)
    timestamp: int | None = None

    def offset_of(self, broker: str, topic: str, queue_id: int) -> int:
        """Return a queue offset, EARLIEST or LATEST."""
        found = _look_up(self.offsets, broker, topic, queue_id)
        return self.offset if found is None else found

    def timestamp_of(self, broker: str, topic: str, queue_id: int) -> int | None:
        """Return Unix ms; None where the queue is not bounded by time."""
        if self.timestamp is not None:
            return self.timestamp
        return _look_up(self.timestamps, broker, topic, queue_id)


@dataclasses.dataclass(frozen=True)
class SourceOptions:
    """Checked options of a query. Byte counts and rows are ints, times are Unix ms."""

    places: tuple[StorePlace, ...]
    broker_conf: str | None
    view: str
    topics: frozenset[str] | None
    topic_pattern: str | None
    assign: Mapping[str, frozenset[int]] | None
    include_system_topics: bool
    starting: Bound
    ending: Bound
    starting_strategy: str | None
    sub_expression: str
    where: str | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_partitions: int
    partition_bytes: int
    max_records_per_partition: int | None
    read_mode: str
    snapshot: str
    fail_on_data_loss: bool
    on_corrupt: str
    verify_crc: bool
    decompress: bool
    batch_bytes: int
    batch_rows: int
    kafka_schema: bool
    include_headers: bool

    @property
    def wanted_tags(self) -> TagsExpression | None:
        """The tags to keep, None for all."""
        return tags_filter(self.sub_expression)

    @property
    def filter(self) -> Sql92Filter | None:
        """The filter of properties, None for all."""
        return None if self.where is None else _filter_of(self.where)

    def named_topics(self) -> frozenset[str] | None:
        """Return the topics that the options name, where no queue of another topic is read; else
        None."""
        if self.view not in ("messages", "consumequeue"):
            return None
        topics = self.topics if self.assign is None else frozenset(self.assign)
        if topics is None:
            return None
        bounds = self.starting, self.ending
        by_topic = [one for b in bounds for one in (*b.offsets.values(), *b.timestamps.values())]
        return topics.union(*by_topic)

    def wants(self, topic: str, queue_id: int) -> bool:
        """Whether a queue is selected."""
        if self.assign is not None:
            return queue_id in self.assign.get(topic, frozenset())
        if self.topics is not None:
            return topic in self.topics
        if self.topic_pattern is not None:
            return re.fullmatch(self.topic_pattern, topic) is not None and (
                self.include_system_topics or not is_system_topic(topic)
            )
        return self.include_system_topics or not is_system_topic(topic)


def _filter_of(text: str) -> Sql92Filter:
    from pyrocketstore.filter.sql92 import Sql92Filter  # few queries filter

    return Sql92Filter(text)


def is_system_topic(topic: str) -> bool:
    """Whether a broker creates the topic for itself, retry and dead-letter topics included.

    Source: RocketMQ 4.9.3 TopicValidator#isSystemTopic, MixAll.
    """
    prefixes = (SYSTEM_TOPIC_PREFIX, "RMQ_SYS_", "%RETRY%", "%DLQ%", "SCHEDULE_TOPIC_")
    return topic in SYSTEM_TOPICS or topic.startswith(prefixes)


# ---- reading them --------------------------------------------------------------------------------


def canonical_options(options: Mapping[str, str], kind: str) -> dict[str, str]:
    """Return the options under their canonical names.

    Parameters
    ----------
    options : name -> text; names are case-insensitive
    kind : "batch", "stream" or "write"; "any" accepts the options of all three

    Raises StoreFormatError naming an option that is unknown, or that this kind does not accept.
    """
    named: dict[str, str] = {}
    for key, value in options.items():
        name = _CANONICAL.get(key.lower())
        if name is None and key.lower() == "owner":  # CREATE TABLE sends this instead of options
            raise StoreFormatError(
                "rocketmq-store: Spark passes no options of CREATE TABLE; use CREATE TEMPORARY VIEW"
            )
        if name is None:
            near = difflib.get_close_matches(key.lower(), _CANONICAL, n=1)
            hint = f"; the nearest is {_CANONICAL[near[0]]}" if near else ""
            raise StoreFormatError(f"rocketmq-store: unknown option {key!r}{hint}")
        if kind != ANY and kind not in OPTIONS[name]:
            kinds = " and ".join(sorted(OPTIONS[name]))
            raise StoreFormatError(f"rocketmq-store: {name} is for {kinds} queries")
        named[name] = value
    return named


def read_options(options: Mapping[str, str], kind: str = BATCH) -> SourceOptions:
    """Parse and check options.

    Raises StoreFormatError naming the option and its allowed values.
    """
    named = canonical_options(options, kind)
    take = _Taker(named)
    view = take.word("view", "messages", VIEWS)
    if kind == STREAM and view != "messages":
        raise StoreFormatError(f"rocketmq-store: view {view} cannot be streamed; view messages can")
    _check_view(named, view)
    chosen = [n for n in ("topic", "topics", "topicPattern", "assign") if n in named]
    if len(chosen) > 1:
        raise StoreFormatError(f"rocketmq-store: only one of {' and '.join(chosen)} can be given")
    topics = take.names("topics")
    if "topic" in named:
        topics = frozenset([take.text("topic")])
    default_start = LATEST if kind == STREAM else EARLIEST
    starting = take.bound("starting", default_start)
    ending = take.bound("ending", LATEST)
    if kind == BATCH and starting.offset == LATEST:
        raise StoreFormatError(
            "rocketmq-store: startingOffsets=latest selects no message in a batch; use earliest or"
            " an offset"
        )
    if kind == BATCH and ending.offset == EARLIEST:
        raise StoreFormatError("rocketmq-store: endingOffsets=earliest reads nothing")
    if kind == BATCH:
        _check_end("startingOffsets", starting.offsets, "-1 (latest)", LATEST, "-2 (earliest)")
        _check_end("endingOffsets", ending.offsets, "-2 (earliest)", EARLIEST, "-1 (latest)")
    kafka = take.flag("kafkaSchema", False)
    if kafka and view != "messages":
        raise StoreFormatError("rocketmq-store: kafkaSchema is for view messages")
    result = SourceOptions(
        places=take.places(),
        broker_conf=option_path(named, "brokerConf"),
        view=view,
        topics=topics,
        topic_pattern=take.pattern("topicPattern"),
        assign=take.assign(),
        include_system_topics=take.flag("includeSystemTopics", False),
        starting=starting,
        ending=ending,
        starting_strategy=take.strategy("startingOffsetsByTimestampStrategy"),
        sub_expression=take.expression("subExpression"),
        where=take.filter("where"),
        max_offsets_per_trigger=take.number("maxOffsetsPerTrigger", None),
        max_bytes_per_trigger=take.size("maxBytesPerTrigger", None),
        min_partitions=take.number("minPartitions", 1, most=TASKS_MAX) or 1,
        partition_bytes=take.size("partitionBytes", 256 << 20) or 1,
        max_records_per_partition=take.number("maxRecordsPerPartition", None),
        read_mode=take.word("readMode", "auto", ("auto", "queue", "sequential")),
        snapshot=take.word("snapshot", "action", ("action", "load")),
        fail_on_data_loss=take.flag("failOnDataLoss", True),
        on_corrupt=take.word("onCorrupt", "fail", ("fail", "skip", "null")),
        verify_crc=take.flag("verifyCrc", False),
        decompress=take.flag("decompress", True),
        batch_bytes=min(take.size("batchBytes", 4 << 20) or 1, BATCH_BYTES_MAX),
        batch_rows=min(take.number("batchRows", 16384) or 1, BATCH_ROWS_MAX),
        kafka_schema=kafka,
        include_headers=take.flag("includeHeaders", False),
    )
    if result.broker_conf is not None and len(result.places) > 1:
        raise StoreFormatError("rocketmq-store: brokerConf is for one store")
    return result


def _check_end(name: str, offsets: Positions, shown: str, refused: int, allowed: str) -> None:
    """Raise StoreFormatError for a queue of which a batch would read nothing."""
    for topics in offsets.values():
        for topic, queues in topics.items():
            for queue_id, offset in queues.items():
                if offset == refused:
                    raise StoreFormatError(
                        f"rocketmq-store: {name}: {shown} for queue {topic!r}/{queue_id} reads "
                        f"nothing in a batch; name an offset or {allowed}; assign omits queues"
                    )


def _check_view(named: Mapping[str, str], view: str) -> None:
    """Raise StoreFormatError for an option that would be ignored."""
    for name in sorted(named):
        if view not in _VIEWS_OF.get(name, VIEWS):
            *most, last = _VIEWS_OF[name]
            views = f"{', '.join(most)} and {last}" if most else last
            raise StoreFormatError(f"rocketmq-store: {name} is for view {views}, not {view}")
    if "includeHeaders" in named and named.get("kafkaSchema", "").lower() != "true":
        raise StoreFormatError("rocketmq-store: includeHeaders is for kafkaSchema=true")


class _Taker:
    """Parses the values of options; each error names its option."""

    def __init__(self, named: Mapping[str, str]) -> None:
        self.named = named

    def fail(self, name: str, what: str) -> StoreFormatError:
        return StoreFormatError(f"rocketmq-store: {name}={self.named.get(name)!r}: {what}")

    def text(self, name: str) -> str:
        value = self.named[name].strip()
        if not value:
            raise self.fail(name, "must not be empty")
        return value

    def word(self, name: str, default: str, known: Iterable[str]) -> str:
        value = self.named.get(name, default).strip().lower()
        if value not in known:
            raise self.fail(name, f"must be one of {', '.join(known)}")
        return value

    def strategy(self, name: str) -> str | None:
        return self.word(name, "", ("error", "latest")) if name in self.named else None

    def flag(self, name: str, default: bool) -> bool:
        value = self.named.get(name, str(default)).strip().lower()
        if value not in ("true", "false"):
            raise self.fail(name, "must be true or false")
        return value == "true"

    def number(
        self, name: str, default: int | None, least: int = 1, most: int = LONG_MAX
    ) -> int | None:
        if name not in self.named:
            return default
        value = self.named[name].strip()
        if not re.fullmatch(r"\d{1,19}", value, re.ASCII) or not least <= int(value) <= most:
            to = "on" if most == LONG_MAX else f"to {most}"
            raise self.fail(name, f"must be a number from {least} {to}")
        return int(value)

    def size(self, name: str, default: int | None) -> int | None:
        if name not in self.named:
            return default
        found = re.fullmatch(r"(\d{1,19})([kmg]?)b?", self.named[name].strip().lower(), re.ASCII)
        factor = 0 if found is None else {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[found[2]]
        value = 0 if found is None else int(found[1]) * factor
        if not 1 <= value <= LONG_MAX:
            raise self.fail(name, "must be a number of bytes, as 4194304, 4m or 1g")
        return value

    def names(self, name: str) -> frozenset[str] | None:
        if name not in self.named:
            return None
        found = frozenset(part.strip() for part in self.named[name].split(",")) - {""}
        if not found:
            raise self.fail(name, "must be names, with commas between them")
        return found

    def pattern(self, name: str) -> str | None:
        if name not in self.named:
            return None
        if not self.named[name].strip():
            raise self.fail(name, "must not be empty; .* is for all topics")
        try:
            re.compile(self.named[name])
        except (re.error, OverflowError, RecursionError) as error:
            raise self.fail(name, f"is not a regular expression: {error}") from None
        return self.named[name]

    def expression(self, name: str) -> str:
        value = self.named.get(name, "*")
        wanted = tags_filter(value)
        if wanted is not None and not wanted.tags:  # 4.9.3: "subString split error"
            raise self.fail(name, "names no tag; * is for all")
        return value

    def filter(self, name: str) -> str | None:
        value = self.named.get(name)
        if value is not None:
            try:
                _filter_of(value)
            except StoreFormatError as error:
                raise self.fail(name, str(error)) from None
        return value

    def json(self, name: str) -> Any:
        def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            if len({key for key, _ in pairs}) < len(pairs):
                raise self.fail(name, "names something twice")
            return dict(pairs)

        try:
            return json.loads(self.named[name], object_pairs_hook=checked)
        except StoreFormatError:
            raise
        except RecursionError:
            raise self.fail(name, "is nested too deeply") from None
        except ValueError as error:
            raise self.fail(name, f"is not valid JSON: {error}") from None

    def places(self) -> tuple[StorePlace, ...]:
        """Return the stores with their labels."""
        given = [name for name in ("path", "paths", "stores") if name in self.named]
        if len(given) > 1:
            raise StoreFormatError(
                f"rocketmq-store: only one of {' and '.join(given)} can be given"
            )
        if not given:
            raise StoreFormatError(
                "rocketmq-store: name the store's directory by the option path or stores"
            )
        if "path" in self.named:
            root = _directory(self.text("path"))
            name = self.named.get("brokerName", "").strip() or label_of(root)
            return (StorePlace(name, root),)
        if "brokerName" in self.named:
            raise self.fail("brokerName", "is for one path; stores names each")
        found = self.json(given[0])
        if given[0] == "paths" and isinstance(found, list):
            roots = [_directory(str(root)) for root in found]
            found = {label_of(root): root for root in roots}
            if len(found) < len(roots):
                raise self.fail("paths", "two directories have one name; option stores labels each")
        if not isinstance(found, dict) or not found:
            raise self.fail(given[0], 'must be like {"broker-a": "/mnt/a"}')
        if not all(isinstance(root, str) and root for root in found.values()):
            raise self.fail(given[0], "each store's value is its directory")
        named = sorted((encodable(name), _directory(root)) for name, root in found.items())
        if len({os.path.realpath(root) for _, root in named}) < len(found):
            raise self.fail(given[0], "two are the same directory, whose rows would appear twice")
        return tuple(StorePlace(name, root) for name, root in named)

    def assign(self) -> Mapping[str, frozenset[int]] | None:
        if "assign" not in self.named:
            return None
        found = self.json("assign")
        if not isinstance(found, dict) or not found:
            raise self.fail("assign", 'must be like {"topic": [0, 1]}')
        for ids in found.values():
            if not isinstance(ids, list) or not all(_is_int(i) and i >= 0 for i in ids):
                raise self.fail("assign", 'must be like {"topic": [0, 1]}')
        for topic in (topic for topic, ids in found.items() if not ids):
            raise self.fail("assign", f"names no queue of topic {topic!r}: leave the topic out")
        return {topic: frozenset(ids) for topic, ids in found.items()}

    def bound(self, which: str, default: int) -> Bound:
        """Parse `starting` or `ending`: a time takes precedence over times by queue, and these over
        offsets."""
        time_name = f"{which}Timestamp"
        by_time_name = f"{which}OffsetsByTimestamp"
        name = f"{which}Offsets"
        words = {"earliest": EARLIEST, "latest": LATEST}
        offset, offsets = default, {}
        if name in self.named:
            word = self.named[name].strip().lower()
            if word in words:
                offset = words[word]
            else:
                offsets = self.positions(name, EARLIEST)
        return Bound(
            offset=offset,
            offsets=offsets,
            timestamps=self.positions(by_time_name, None) if by_time_name in self.named else {},
            timestamp=self.time(time_name, self.named[time_name].strip())
            if time_name in self.named
            else None,
        )

    def time(self, name: str, value: object) -> int:
        """Return Unix ms of a time: Unix ms in digits, or ISO 8601 text with a zone."""
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value, re.ASCII):
            value = int(value)
        try:
            return time_of(name, value)
        except StoreFormatError as error:
            raise StoreFormatError(f"rocketmq-store: option {error}") from None

    def positions(self, name: str, least: int | None) -> dict[str, dict[str, dict[int, int]]]:
        """JSON topic -> [broker ->] queue -> number; without `least` it is a time."""
        shape = 'must be like {"topic": {"0": 23}} or {"topic": {"broker": {"0": 23}}}'
        found = self.json(name)
        result: dict[str, dict[str, dict[int, int]]] = {}
        if not isinstance(found, dict) or not found:
            raise self.fail(name, shape)
        for topic, below in found.items():
            if not isinstance(below, dict):
                raise self.fail(name, shape)
            nested = all(isinstance(value, dict) for value in below.values())
            for broker, queues in (below if below and nested else {"": below}).items():
                if not queues:
                    raise self.fail(name, f"names no queue of topic {topic!r}: leave it out")
                numbers = result.setdefault(broker, {}).setdefault(topic, {})
                for queue_id, number in queues.items():
                    if not re.fullmatch(r"\d{1,10}", queue_id, re.ASCII):
                        raise self.fail(name, shape)
                    if least is None and (_is_int(number) or isinstance(number, str)):
                        numbers[int(queue_id)] = self.time(name, number)
                    elif least is not None and _is_int(number) and number >= least:
                        numbers[int(queue_id)] = number
                    else:
                        raise self.fail(name, shape)
        return result


def option_path(named: Mapping[str, str], name: str) -> str | None:
    """Return the path of an option; None without the option. Raises StoreFormatError."""
    return local_path(named[name], f"rocketmq-store: {name}") if name in named else None


def label_of(root: str) -> str:
    """Return the default label of a store: the last component of its directory."""
    return encodable(PurePath(root).name)


def _directory(root: str) -> str:
    """Return the absolute directory of a store; links stay. Raises StoreFormatError."""
    return local_path(root, "rocketmq-store: path")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _look_up(positions: Positions, broker: str, topic: str, queue_id: int) -> int | None:
    for name in (broker, ""):
        found = positions.get(name, {}).get(topic, {}).get(queue_id)
        if found is not None:
            return found
    return None
