"""The data source "rocketmq-store". The one module of the batch side that needs pyspark."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from pyrocketstore.errors import StoreError
from pyrocketstore.spark import FORMAT
from pyrocketstore.spark.border import guarded_class
from pyrocketstore.spark.options import ANY, BATCH, STREAM, SourceOptions, read_options
from pyrocketstore.spark.pinning import open_snapshot, retried
from pyrocketstore.spark.planning import (
    IndexTask,
    LogTask,
    QueueTask,
    check_selection,
    plan_commit_log,
    plan_consume_queues,
    plan_index,
    plan_messages,
)
from pyrocketstore.spark.schemas import check_schema, columns_of, ddl_of, renamed
from pyrocketstore.spark.snapshot import StoreSnapshot, check_places
from pyrocketstore.spark.worker import settle

if TYPE_CHECKING:
    import pyarrow


#: What many tasks have alike is not sent with each of them.
COMMON_FIELDS = ("log_files", "ranges")


class TaskPartition(InputPartition):
    """A task, with the label of its store.

    `common` has the fields that are left out of the task: name -> number in the plan's `common`.
    """

    def __init__(self, broker_name: str, task: Any, common: dict[str, int] | None = None) -> None:
        super().__init__(None)
        self.broker_name = broker_name
        self.task = task
        self.common = common or {}

    def whole_task(self, common: Sequence[tuple[Any, ...]]) -> Any:
        """The task with all its fields."""
        if not self.common:
            return self.task
        found = {name: common[number] for name, number in self.common.items()}
        return dataclasses.replace(self.task, **found)


class Plan(NamedTuple):
    """The tasks of a batch, and what many of them have in common, which is sent once."""

    partitions: list[TaskPartition]
    common: tuple[tuple[Any, ...], ...]


@guarded_class
class RocketMQStoreSource(DataSource):
    """`spark.read.format("rocketmq-store")` over directories of stores.

    Nothing is written to a store that is read. Options and columns: docs/spark.md.
    """

    @classmethod
    def name(cls) -> str:
        """The format."""
        return FORMAT

    def schema(self) -> str:
        """The columns of the view; Spark asks for them at `load()`, unless it is given a schema.

        Raises StoreFormatError for wrong options, and for a directory that cannot be a store's.
        """
        options = read_options(self.options, ANY)
        check_places(options, may_be_empty=True)
        if options.snapshot == "load":
            self.pinned = plan(options)
        return ddl_of(columns_of(options)[0])

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch: planned once, at the first action."""
        options = read_options(self.options, BATCH)
        # Spark sends the source with each task too: what is in the reader need not go twice.
        pinned = self.__dict__.pop("pinned", None)
        columns = check_schema(schema, options)
        found = StoreReader(options, columns, pinned, names=schema.fieldNames())
        found.partitions()  # pickling would plan too, and hide an error of it behind its own
        return found

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream: batches planned as messages come."""
        from pyrocketstore.spark.stream import RefusedStream, StoreStreamReader

        try:
            options = read_options(self.options, STREAM)
            check_places(options, may_be_empty=True)
            columns = check_schema(schema, options)
            return StoreStreamReader(options, columns, names=schema.fieldNames())
        except StoreError as error:  # PySpark would report an UnboundLocalError in its place
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Rows to append."""
        from pyrocketstore.spark.writer import StoreWriter, write_options

        return StoreWriter(write_options(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Micro-batches to append."""
        from pyrocketstore.spark.writer import stream_writer

        return stream_writer(self.options, schema, overwrite)


@guarded_class
class StoreReader(DataSourceReader):
    """Plans on the driver, reads on the executors.

    Spark pickles it before it asks for the partitions, and sends it once for all tasks.
    """

    def __init__(
        self,
        options: SourceOptions,
        columns: dict[str, str],
        pinned: Plan | None,
        *,
        names: Sequence[str] | None = None,
    ) -> None:
        self.options = options
        self.columns = columns
        self.names = None if names is None or list(columns) == list(names) else tuple(names)
        self.common: tuple[tuple[Any, ...], ...] = ()
        self._plan = pinned
        self._refusal: StoreError | None = None

    def __getstate__(self) -> dict[str, Any]:
        # What is raised here Spark tells as a PicklingError: it waits for `partitions`.
        try:
            common = self._planned().common
        except StoreError as error:
            self._refusal, common = error, ()
        return {**self.__dict__, "common": common, "_plan": None, "_refusal": None}

    def partitions(self) -> list[InputPartition]:
        """The tasks; one that reads nothing when there are none.

        Raises DataLossError, StoreFormatError, StoreCorruptionError, StoreIOError.
        """
        found: list[InputPartition] = list(self._planned().partitions)
        return found or [TaskPartition("", None)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """The rows of a task."""
        assert isinstance(partition, TaskPartition)
        return renamed(read_task(partition, self.columns, self.options, self.common), self.names)

    def _planned(self) -> Plan:
        if self._refusal is not None:
            raise self._refusal
        if self._plan is None:
            self._plan = plan(self.options)
            settle()
        return self._plan


def read_task(
    partition: TaskPartition,
    columns: dict[str, str],
    options: SourceOptions,
    common: Sequence[tuple[Any, ...]] = (),
) -> Iterator[pyarrow.RecordBatch]:
    """The rows of a task, as Arrow batches of `columns`; `common` is its plan's."""
    from pyrocketstore.spark import tables
    from pyrocketstore.spark.tasks import read_messages

    settle()
    task = partition.whole_task(common)
    if task is None:
        return
    elif isinstance(task, list):
        yield tables.files_batch(task, columns)
    elif isinstance(task, IndexTask):
        yield from tables.read_index(
            task,
            columns,
            partition.broker_name,
            fail_on_data_loss=options.fail_on_data_loss,
            on_corrupt=options.on_corrupt,
            batch_rows=options.batch_rows,
        )
    elif options.view == "consumequeue" and isinstance(task, QueueTask):
        yield from tables.read_units(task, columns, options)
    else:
        assert isinstance(task, QueueTask | LogTask)
        yield from read_messages(task, columns, options)


def plan(options: SourceOptions) -> Plan:
    """The tasks of all stores, each pinned now.

    Raises DataLossError where a store has lost files and that matters; StoreFormatError,
    StoreCorruptionError, StoreIOError.
    """
    return retried(lambda: _plan_once(options))


def _plan_once(options: SourceOptions) -> Plan:
    from pyrocketstore.spark.tables import list_files

    snapshots: list[StoreSnapshot] = []
    found: list[tuple[str, Any]] = []
    try:
        for place in options.places:
            snapshots.append(open_snapshot(place, options))
        check_selection(snapshots, options)
        for snapshot in snapshots:
            name = snapshot.place.broker_name
            tasks: list[Any]
            if options.view == "files":
                tasks = [list_files(snapshot)]
            else:
                planner = {
                    "messages": plan_messages,
                    "commitlog": plan_commit_log,
                    "consumequeue": plan_consume_queues,
                    "index": plan_index,
                }[options.view]
                tasks = planner(snapshot, options)
            found += [(name, task) for task in tasks]
    finally:
        for snapshot in snapshots:
            snapshot.close()
    return _shared(found)


def _shared(tasks: Sequence[tuple[str, Any]]) -> Plan:
    """Takes out of the tasks what is one object in several of them."""
    fields = [
        {n: v for n in COMMON_FIELDS if isinstance(v := getattr(task, n, None), tuple) and v}
        for _, task in tasks
    ]
    uses = Counter(id(value) for found in fields for value in found.values())
    numbers: dict[int, int] = {}
    common: list[tuple[Any, ...]] = []
    partitions = []
    for (broker_name, task), found in zip(tasks, fields, strict=True):
        taken: dict[str, int] = {}
        for name, value in found.items():
            if uses[id(value)] > 1:
                if id(value) not in numbers:
                    numbers[id(value)] = len(common)
                    common.append(value)
                taken[name] = numbers[id(value)]
        rest = dataclasses.replace(task, **dict.fromkeys(taken, ())) if taken else task
        partitions.append(TaskPartition(broker_name, rest, taken))
    return Plan(partitions, tuple(common))
