"""The data source "rocketmq-store". The one module of the batch side that needs pyspark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from pyrocketstore.spark import FORMAT
from pyrocketstore.spark.options import ANY, BATCH, STREAM, SourceOptions, read_options
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
from pyrocketstore.spark.schemas import check_schema, columns_of, ddl_of
from pyrocketstore.spark.snapshot import StoreSnapshot

if TYPE_CHECKING:
    import pyarrow


class TaskPartition(InputPartition):
    """A task, with the label of its store."""

    def __init__(self, broker_name: str, task: Any) -> None:
        super().__init__(None)
        self.broker_name = broker_name
        self.task = task


class RocketMQStoreSource(DataSource):
    """`spark.read.format("rocketmq-store")` over directories of stores.

    Nothing is written to a store that is read. Options and columns: docs/spark.md.
    """

    @classmethod
    def name(cls) -> str:
        """The format."""
        return FORMAT

    def schema(self) -> str:
        """The columns of the view."""
        options = read_options(self.options, ANY)
        if options.snapshot == "load":
            self.pinned = plan(options)
        return ddl_of(columns_of(options)[0])

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch: planned once, at the first action."""
        options = read_options(self.options, BATCH)
        return StoreReader(options, check_schema(schema, options), getattr(self, "pinned", None))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream: batches planned as messages come."""
        from pyrocketstore.spark.stream import StoreStreamReader

        options = read_options(self.options, STREAM)
        return StoreStreamReader(options, check_schema(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Rows to append."""
        from pyrocketstore.spark.writer import StoreWriter, write_options

        return StoreWriter(write_options(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Micro-batches to append."""
        from pyrocketstore.spark.writer import stream_writer

        return stream_writer(self.options, schema, overwrite)


class StoreReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(
        self,
        options: SourceOptions,
        columns: dict[str, str],
        pinned: list[TaskPartition] | None,
    ) -> None:
        self.options = options
        self.columns = columns
        self.pinned = pinned

    def partitions(self) -> list[InputPartition]:
        """The tasks; one that reads nothing when there are none."""
        found: list[InputPartition] = list(
            plan(self.options) if self.pinned is None else self.pinned
        )
        return found or [TaskPartition("", None)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """The rows of a task."""
        assert isinstance(partition, TaskPartition)
        return read_task(partition, self.columns, self.options)


def read_task(
    partition: TaskPartition, columns: dict[str, str], options: SourceOptions
) -> Iterator[pyarrow.RecordBatch]:
    """The rows of a task, as Arrow batches of `columns`."""
    from pyrocketstore.spark import tables
    from pyrocketstore.spark.tasks import read_messages

    task = partition.task
    if task is None:
        return
    elif isinstance(task, list):
        yield tables.files_batch(task, columns)
    elif isinstance(task, IndexTask):
        yield from tables.read_index(task, columns, partition.broker_name)
    elif options.view == "consumequeue" and isinstance(task, QueueTask):
        yield from tables.read_units(task, columns, options)
    else:
        assert isinstance(task, QueueTask | LogTask)
        yield from read_messages(task, columns, options)


def plan(options: SourceOptions) -> list[TaskPartition]:
    """The tasks of all stores, each pinned now."""
    from pyrocketstore.spark.tables import list_files

    snapshots: list[StoreSnapshot] = []
    found: list[TaskPartition] = []
    try:
        for place in options.places:
            snapshots.append(StoreSnapshot(place, options.broker_conf, options.on_corrupt))
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
            found += [TaskPartition(name, task) for task in tasks]
    finally:
        for snapshot in snapshots:
            snapshot.close()
    return found
