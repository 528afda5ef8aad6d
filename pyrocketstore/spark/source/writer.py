"""Write rows into a store: executors stage rows, and the driver appends them.

A commit log has one appender, so the driver appends nothing before every task has staged its rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import posixpath
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyrocketstore.arguments.scalars import exact_int32, exact_int64, exact_queue_id
from pyrocketstore.commit_log.put_rules import RecordLimits, named_properties
from pyrocketstore.config.message_store_config import (
    FlushDiskType,
    MessageStoreConfig,
    detect_sizes,
)
from pyrocketstore.errors import (
    PutError,
    StoreCorruptionError,
    StoreError,
    StoreFormatError,
    StoreIOError,
)
from pyrocketstore.record.message import RESERVED_NAMES, MessageRefused, check_topic
from pyrocketstore.spark.encodable_errors import guarded_class
from pyrocketstore.spark.local_paths import local_path
from pyrocketstore.spark.options import WRITE, StorePlace, canonical_options, option_path
from pyrocketstore.spark.parse_errors import PARSE_ERRORS
from pyrocketstore.spark.plan.snapshot import place_settings
from pyrocketstore.spark.schemas import MESSAGES, name_in
from pyrocketstore.store.api import Store, open
from pyrocketstore.system.env import O_CREAT, O_RDONLY, O_WRONLY, Env, parent_directory

if TYPE_CHECKING:
    import pyarrow

#: Column -> its allowed types in Spark.
COLUMNS: dict[str, tuple[str, ...]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "tags": ("string",),
    "keys": ("string",),
    "properties": ("map<string,string>",),
    "queueId": ("int",),
    "flag": ("int",),
    "bornTimestamp": ("timestamp",),
}
#: Columns of the view messages that the store fills itself.
IGNORED = tuple(name for name in MESSAGES if name not in COLUMNS)
STAGING = ".spark-staging"
#: Directories that other writers may remove are made again so often.
TRIES_MAX = 20
#: Next to topics.json: the last batches of all queries, which earlier versions wrote. It is only
#: read.
OLD_MARKERS = "config/sparkBatches.json"
#: The last batch of one query, by a hash of its checkpoint and its id.
MARKER = "config/sparkBatches-{}.json"
#: Spark's property with the id that a query keeps in its checkpoint over restarts.
_QUERY_ID = "sql.streaming.queryId"


@dataclasses.dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """The staged rows of a task: no path without rows, no query id outside of a stream."""

    partition: int
    path: str
    rows: int
    query_id: str = ""


@dataclasses.dataclass(frozen=True)
class WriteOptions:
    """The target of rows, and the limits of their records."""

    root: str
    broker_conf: str | None
    topic: str | None
    flush_disk_type: str | None
    staging: str
    checkpoint: str | None
    limits: RecordLimits


def write_options(options: Mapping[str, str], schema: StructType, overwrite: bool) -> WriteOptions:
    """Check the options and the columns of a write.

    Raises StoreFormatError.
    """
    if overwrite:
        raise StoreFormatError('rocketmq-store: a write only appends: mode("append")')
    named = canonical_options(options, WRITE)
    if not named.get("path", "").strip():
        raise StoreFormatError("rocketmq-store: name the store's directory: save(path)")
    topic = named.get("topic")
    if topic is not None:
        check_topic(topic)
    kinds = [kind.name for kind in FlushDiskType]
    if named.get("flushDiskType", kinds[0]) not in kinds:
        raise StoreFormatError(f"rocketmq-store: flushDiskType must be one of {', '.join(kinds)}")
    _check_columns(schema, topic)
    env = Env()
    root = local_path(named["path"], "rocketmq-store: path")
    conf = option_path(named, "brokerConf")
    return WriteOptions(
        root=root,
        broker_conf=conf,
        topic=topic,
        flush_disk_type=named.get("flushDiskType"),
        staging=option_path(named, "stagingDir") or f"{root}/{STAGING}",
        checkpoint=named.get("checkpointLocation"),
        limits=RecordLimits.of(_settings(env, root, conf)),
    )


def _settings(env: Env, root: str, conf: str | None) -> MessageStoreConfig:
    if not env.is_dir(root) and conf is None:
        return MessageStoreConfig().at_root(root)  # the first commit creates the store
    return detect_sizes(env, root, place_settings(env, StorePlace("", root), conf))


def _check_columns(schema: StructType, topic: str | None) -> None:
    kinds: dict[str, str] = {}
    for field in schema.fields:
        name, kind = name_in((*COLUMNS, *IGNORED), field.name), field.dataType.simpleString()
        if name is None:
            raise StoreFormatError(
                f"rocketmq-store: no message has a column {field.name!r}; it may have "
                f"{', '.join(COLUMNS)}"
            )
        if name in COLUMNS and kind not in COLUMNS[name]:
            wanted = " or ".join(COLUMNS[name])
            raise StoreFormatError(f"rocketmq-store: {name} is {wanted}, not {kind}")
        if name in kinds:
            raise StoreFormatError(f"rocketmq-store: the schema has the column {name} twice")
        kinds[name] = kind
    if "body" not in kinds or ("topic" not in kinds and topic is None):
        raise StoreFormatError(
            "rocketmq-store: the columns body and topic are required; the option topic names one "
            "topic for all rows"
        )


# ---- on the executors ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Row:
    """The arguments of `Store.put` for a row; born_timestamp is Unix ms."""

    topic: str
    body: bytes
    queue_id: int
    tags: str | None
    keys: str | None
    properties: dict[str, str] | None
    flag: int
    born_timestamp: int | None


def written_columns(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """Return the columns of a batch that are written, under their names in COLUMNS."""
    import pyarrow as pa

    found = {
        name: column
        for given, column in zip(batch.schema.names, batch.columns, strict=True)
        if (name := name_in(COLUMNS, given)) is not None
    }
    return pa.RecordBatch.from_arrays(list(found.values()), names=list(found))


def rows_of(batch: pyarrow.RecordBatch, default_topic: str | None) -> Iterator[Row]:
    """Yield the rows of a batch of `written_columns`, without properties of reserved names.

    Raises StoreFormatError for a null topic or body, and for text that is not UTF-8.
    """
    columns = {
        name: _values_of(name, column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    nothing = [None] * batch.num_rows
    read = [columns.get(name, nothing) for name in COLUMNS]
    for number, values in enumerate(zip(*read, strict=True)):
        topic, body, tags, keys, properties, queue_id, flag, born = values
        topic = default_topic if topic is None else topic
        if topic is None:
            raise _bad_row(number, "topic", "it is null, and there is no option topic")
        if body is None:
            raise _bad_row(number, "body", "it is null; an empty body is allowed")
        named = None if properties is None else _own_properties(number, properties)
        yield Row(topic, body, queue_id or 0, tags, keys, named, flag or 0, born)


def _own_properties(number: int, properties: list[tuple[str, str]]) -> dict[str, str]:
    """Drop properties that columns have, and those that a client or a broker sets."""
    named: dict[str, str] = {}
    for name, value in properties:
        if name in named:
            raise _bad_row(number, "properties", f"the name {name!r} occurs twice")
        if name not in RESERVED_NAMES:
            named[name] = value
    return named


def _values_of(name: str, column: pyarrow.Array) -> Sequence[Any]:
    """Return the values of a column as Python objects; a time is Unix ms."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        # Times before 1970 are rounded down too.
        times = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        return [None if time is None else time // 1000 for time in times]
    if name == "body" and not pa.types.is_binary(column.type):
        column = column.cast(pa.binary())
    try:
        values: list[Any] = column.to_pylist()
        return values
    except UnicodeDecodeError:  # Spark accepts any bytes as a string
        for number, value in enumerate(column):
            try:
                value.as_py()
            except UnicodeDecodeError as error:
                reason = f"{error.object!r} is not UTF-8: {error.reason} at byte {error.start}"
                raise _bad_row(number, name, reason) from error
        raise


def _bad_row(number: int, column: str, reason: object) -> StoreFormatError:
    return StoreFormatError(f"rocketmq-store: row {number} of a batch, column {column}: {reason}")


def check_rows(rows: Iterable[Row], limits: RecordLimits) -> None:
    """Check a batch's rows as `Store.put` would, by the same rules.

    Raises StoreFormatError, with number, column and value, for a row that no put accepts.
    """
    for number, row in enumerate(rows):
        column = "topic"
        try:
            check_topic(row.topic)
            column = "queueId"
            exact_queue_id(row.queue_id)
            column = "flag"
            exact_int32("flag", row.flag)
            column = "bornTimestamp"
            exact_int64("born_timestamp", row.born_timestamp or 0)
            column = "tags"
            named = named_properties(row.tags, None, None)
            column = "keys"
            named |= named_properties(None, row.keys, None)
            column = "properties"
            named |= named_properties(None, None, row.properties)
            limits.check(row.topic, len(row.body), named)
        except MessageRefused as refused:
            if refused.status == "PROPERTIES_SIZE_EXCEEDED":
                texts = {"tags": row.tags, "keys": row.keys, "properties": row.properties}
                column = ", ".join(name for name, value in texts.items() if value)
                raise _bad_row(number, column, refused) from refused
            reason = f"{len(row.body)} bytes are too long: {refused}"
            raise _bad_row(number, "body", reason) from refused
        except StoreError as error:
            raise _bad_row(number, column, error) from error


class _Writing:
    """The common part of both writers: `write` runs on executors, the rest on the driver."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.directory = f"{options.staging}/{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> StagedRows:
        """Check and stage the rows of a task."""
        import pyarrow as pa

        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        path = f"{self.directory}/{partition:06d}-{context.taskAttemptId()}.arrow"
        env = Env()
        count = 0
        sink = stream = None
        try:
            for batch in map(written_columns, iterator):
                check_rows(rows_of(batch, self.options.topic), self.options.limits)
                if sink is None:
                    sink = _new_staged_file(env, path)
                    stream = pa.ipc.new_stream(sink, batch.schema)
                assert stream is not None
                stream.write_batch(batch)
                count += batch.num_rows
            if stream is not None:
                stream.close()
        finally:
            if sink is not None:
                sink.close()
        return StagedRows(partition, path if sink is not None else "", count)

    def append(
        self,
        messages: Sequence[WriterCommitMessage | None],
        is_there: Callable[[], bool] = lambda: False,
        note: Callable[[], None] = lambda: None,
    ) -> int:
        """Put the staged rows in the order of the partitions; return their count.

        The store's lock is held from `is_there`, which states that nothing is to be put, to `note`,
        which is called once all rows are on the device.
        """
        staged = sorted(
            (m for m in messages if isinstance(m, StagedRows) and m.rows),
            key=lambda message: message.partition,
        )
        for message in staged:
            if not Env().exists(message.path):
                raise StoreError(
                    f"{message.path}: a task staged {message.rows} rows there, and it is not here: "
                    "stagingDir must be a directory that driver and executors share; nothing was "
                    "appended"
                )
        with open_store(self.options) as store:
            if is_there():
                return 0
            done = self._put_staged(store, staged)
            store.flush()
            note()
        return done

    def _put_staged(self, store: Store, staged: Sequence[StagedRows]) -> int:
        env = Env()
        total = sum(message.rows for message in staged)
        done = 0
        for message in staged:
            for batch in _staged_batches(env, message.path):
                try:
                    for count in put_rows(store, list(rows_of(batch, self.options.topic))):
                        done += count
                except StoreError as error:
                    done += error.count if isinstance(error, PutError) else 0
                    raise StoreError(
                        f"{self.options.root}: {done} of {total} rows are in the store, by "
                        f"partition and topic; the next one failed: {error}"
                    ) from error
        return done

    def remove_staging(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the staged rows, also those of tasks that Spark ran again."""
        env = Env()
        paths = [m.path for m in messages if isinstance(m, StagedRows) and m.path]
        for directory in {self.directory, *map(parent_directory, paths)}:
            for name in env.listdir(directory):
                env.unlink(f"{directory}/{name}")
            _remove_if_empty(env, directory)
        if self.options.staging == f"{self.options.root}/{STAGING}":  # not stagingDir
            _remove_if_empty(env, self.options.staging)


@guarded_class
class StoreWriter(_Writing, DataSourceArrowWriter):
    """Rows of a DataFrame, appended by the driver when all tasks have staged theirs.

    Durability: no row is in the store before `commit`; all rows are on the device after it. A
    driver that dies within `commit` leaves the first rows in the store. The repeated job
    appends all of them: each row is there at least once.
    """

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append all rows. Raises StoreError with the count of rows appended."""
        self.append(messages)
        self.remove_staging(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the staged rows."""
        self.remove_staging(messages)


@guarded_class
class StoreStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Micro-batches, each appended once; see `commit`."""

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> StagedRows:
        """Check and stage the rows of a task, with the id of its query.

        Raises StoreError where Spark does not report the id.
        """
        context = TaskContext.get()
        assert context is not None
        query_id = context.getLocalProperty(_QUERY_ID)
        if not query_id:
            raise StoreError(
                f"{self.options.root}: Spark reports no {_QUERY_ID} to this task: no row was "
                "appended, because the batches of one query would not differ from those of another"
            )
        return dataclasses.replace(super().write(iterator), query_id=query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append a batch, unless the store's marker says that it is there.

        A marker is of a checkpoint and the query's id, which is another one when the checkpoint is
        recreated: batches are then counted from 0 again. It is read and written under the store's
        lock, so that a second driver of the query finds what the first one wrote.

        Durability: the rows are on the device before the marker is written. A driver that dies
        between the first row and the marker appends that batch again: some or all of its rows are
        then in the store twice. Otherwise each row is there once.
        """
        env = Env()
        query_ids = [m.query_id for m in messages if isinstance(m, StagedRows)]
        if query_ids:
            marker = _Marker(env, self.options, query_ids[0])
            # A batch that is there needs no store that this process may write to.
            if batchId > max(marker.read(), self._old_marker(env, marker)):
                self.append(messages, lambda: batchId <= marker.read(), lambda: marker.set(batchId))
        self.remove_staging(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the staged rows."""
        self.remove_staging(messages)

    def _markers(self, env: Env) -> dict[str, dict[str, int]]:
        """Return checkpoint -> query id -> its last batch, as an earlier version wrote them."""
        path = f"{self.options.root}/{OLD_MARKERS}"
        if not env.exists(path):
            return {}
        with _as_damaged_marker(path):
            found = json.loads(env.read_file(path))
            return {
                str(checkpoint): {str(query_id): int(batch) for query_id, batch in queries.items()}
                for checkpoint, queries in found.items()
            }

    def _old_marker(self, env: Env, marker: _Marker) -> int:
        # Earlier versions wrote checkpoints as they were spelled.
        return max(
            (
                queries.get(marker.query_id, -1)
                for checkpoint, queries in self._markers(env).items()
                if checkpoint_name(env, checkpoint) == marker.checkpoint
            ),
            default=-1,
        )


class _Marker:
    """The last batch of a query that the store has, in a file of its own."""

    def __init__(self, env: Env, options: WriteOptions, query_id: str) -> None:
        self._env = env
        self.checkpoint = checkpoint_name(env, options.checkpoint or "")
        self.query_id = query_id
        name = json.dumps([self.checkpoint, query_id]).encode()
        self.path = f"{options.root}/{MARKER.format(hashlib.sha256(name).hexdigest()[:32])}"

    def read(self) -> int:
        """Return the last batch; -1 before the first one. Raises StoreCorruptionError."""
        if not self._env.exists(self.path):
            return -1
        with _as_damaged_marker(self.path):
            found = json.loads(self._env.read_file(self.path))
            if (found["checkpoint"], found["queryId"]) != (self.checkpoint, self.query_id):
                raise ValueError(f"it is of the query {found['queryId']!r:.60}")
            batch = found["batch"]
            if type(batch) is not int or batch < 0:
                raise ValueError(f"batch is {batch!r:.40}: it must be 0 or more")
            return batch

    def set(self, batch_id: int) -> None:
        """Write the last batch durably."""
        found = {"checkpoint": self.checkpoint, "queryId": self.query_id, "batch": batch_id}
        self._env.make_directories(parent_directory(self.path))
        self._env.write_file(self.path, json.dumps(found, indent=1).encode())


@contextlib.contextmanager
def _as_damaged_marker(path: str) -> Iterator[None]:
    try:
        yield
    except PARSE_ERRORS as error:
        raise StoreCorruptionError(
            path,
            -1,
            f"not a marker of Spark's batches ({error!r:.200}): nothing was appended. Restore the "
            "file. Or compare the last rows of the query with the store, and write the last batch "
            "that the store has into it; without the file, the query's next batch is appended",
        ) from error


def checkpoint_name(env: Env, location: str) -> str:
    """Return the canonical text of a checkpointLocation, as Hadoop's Path does: without `file:`,
    without repeated or final slashes, with `.` and `..` resolved, and links unresolved."""
    found = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(/.*)?", location, re.DOTALL)
    scheme, authority, path = ("file", "", location) if found is None else found.groups(default="")
    scheme = scheme.lower()
    if scheme != "file":
        path = re.sub("^//", "/", posixpath.normpath(path or "/"))
        return f"{scheme}://{authority.lower()}{path}"
    if not path.startswith("/"):
        path = f"{env.absolute('.')}/{path}"
    return re.sub("^//", "/", posixpath.normpath(path))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> StoreStreamWriter:
    """Return the writer of a stream. Raises StoreFormatError, also without checkpointLocation."""
    found = write_options(options, schema, overwrite)
    if found.checkpoint is None:
        raise StoreFormatError(
            "rocketmq-store: option checkpointLocation is required: it identifies batches"
        )
    return StoreStreamWriter(found)


# ---- on the driver -------------------------------------------------------------------------------


def open_store(options: WriteOptions) -> Store:
    """Open the store to append. Raises StoreStateError where another process writes to it."""
    settings: dict[str, Any] = {}
    if options.flush_disk_type is not None:
        settings["flush_disk_type"] = FlushDiskType[options.flush_disk_type]
    return open(options.root, config=options.broker_conf, **settings)


def put_rows(store: Store, rows: Sequence[Row]) -> Iterator[int]:
    """Append rows, in order within each topic; yield the count of each put."""
    by_topic: dict[str, list[Row]] = {}
    for row in rows:
        by_topic.setdefault(row.topic, []).append(row)
    for topic, group in by_topic.items():
        if any(row.flag or row.born_timestamp is not None for row in group):
            for row in group:
                store.put(
                    topic,
                    row.body,
                    queue_id=row.queue_id,
                    tags=row.tags,
                    keys=row.keys,
                    properties=row.properties,
                    flag=row.flag,
                    born_timestamp=row.born_timestamp,
                )
                yield 1
        else:
            store.put_many(
                topic,
                [row.body for row in group],
                queue_ids=[row.queue_id for row in group],
                tags=_column([row.tags for row in group]),
                keys=_column([row.keys for row in group]),
                properties=_column([row.properties for row in group]),
            )
            yield len(group)


def _column(values: list[Any]) -> list[Any] | None:
    return None if all(value is None for value in values) else values


# ---- staged files --------------------------------------------------------------------------------


class _StagedFile:
    """A file that Arrow writes or reads, through Env."""

    def __init__(self, env: Env, path: str, flags: int) -> None:
        self.env = env
        self.path = path
        self.fd = env.open(path, flags)
        self.position = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.env.pwrite_all(self.fd, view, self.position, self.path)
        self.position += len(view)
        return len(view)

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            size = self.env.file_size(self.fd, self.path) - self.position
        data = self.env.pread(self.fd, size, self.position, self.path)
        self.position += len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.env.close(self.fd, self.path)


def _new_staged_file(env: Env, path: str) -> _StagedFile:
    """Open a new file, and make its directory. Another writer may remove an empty directory above
    it meanwhile."""
    for left in reversed(range(TRIES_MAX)):
        try:
            env.make_directories(parent_directory(path))
            return _StagedFile(env, path, O_WRONLY | O_CREAT)
        except StoreIOError as error:
            if error.errno != errno.ENOENT or not left:
                raise
    raise AssertionError("unreachable")


def _remove_if_empty(env: Env, directory: str) -> None:
    """Remove a directory, unless other writers use it or have removed it."""
    try:
        env.rmdir(directory)
    except StoreIOError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise


def _staged_batches(env: Env, path: str) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow as pa

    with contextlib.closing(_StagedFile(env, path, O_RDONLY)) as source:
        yield from pa.ipc.open_stream(source)
