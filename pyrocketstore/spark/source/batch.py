"""The data source "rocketmq-store", and its batch reader.

Executors unpickle the reader and call `read`; every other method runs on the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

from pyrocketstore.errors import StoreError
from pyrocketstore.spark.encodable_errors import guarded_class
from pyrocketstore.spark.options import ANY, BATCH, FORMAT, STREAM, SourceOptions, read_options
from pyrocketstore.spark.read.worker import read_task, settle
from pyrocketstore.spark.schemas import check_schema, columns_of, ddl_of, renamed
from pyrocketstore.spark.task_types import StoreTask

if TYPE_CHECKING:
    import pyarrow

    from pyrocketstore.spark.plan.batch import Plan


@guarded_class
class RocketMQStoreSource(DataSource):
    """`spark.read.format("rocketmq-store")` over directories of stores.

    Reading never writes to a store. Options and columns: docs/spark.md.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of the view. Spark calls this at `load()` without a schema.

        Raises StoreFormatError for wrong options, and for a directory without a store.
        """
        from pyrocketstore.spark.plan.batch import plan
        from pyrocketstore.spark.plan.snapshot import check_places

        options = read_options(self.options, ANY)
        check_places(options)
        if options.snapshot == "load":
            self.pinned = plan(options)
        return ddl_of(columns_of(options)[0])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch, which is planned once, at the first action."""
        options = read_options(self.options, BATCH)
        # Spark sends the source with each task too: the plan must be in the reader only.
        pinned = self.__dict__.pop("pinned", None)
        columns = check_schema(schema, options)
        found = StoreReader(options, columns, pinned, names=schema.fieldNames())
        # Plan before Spark pickles the reader: Spark would report an error of planning as its own.
        found.partitions()
        return found

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        from pyrocketstore.spark.plan.snapshot import check_places
        from pyrocketstore.spark.source.stream import RefusedStream, StoreStreamReader

        try:
            options = read_options(self.options, STREAM)
            check_places(options)
            columns = check_schema(schema, options)
            return StoreStreamReader(options, columns, names=schema.fieldNames())
        except StoreError as error:  # PySpark would report an UnboundLocalError instead
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch."""
        from pyrocketstore.spark.source.writer import StoreWriter, write_options

        return StoreWriter(write_options(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream."""
        from pyrocketstore.spark.source.writer import stream_writer

        return stream_writer(self.options, schema, overwrite)


@guarded_class
class StoreReader(DataSourceReader):
    """Plans on the driver, reads on the executors.

    Spark pickles the reader before it calls `partitions`, and sends it once for all tasks.
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
        # Spark reports an error from here as a PicklingError; `partitions` raises it instead.
        try:
            common = self._planned().common
        except StoreError as error:
            self._refusal, common = error, ()
        return {**self.__dict__, "common": common, "_plan": None, "_refusal": None}

    def partitions(self) -> list[InputPartition]:
        """Return the tasks; one that reads nothing for an empty plan.

        Raises DataLossError, StoreFormatError, StoreCorruptionError, StoreIOError.
        """
        return [InputPartition(task) for task in self._planned().tasks or [StoreTask("", None)]]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Read the rows of a task."""
        rows = read_task(partition.value, self.columns, self.options, self.common)
        return renamed(rows, self.names)

    def _planned(self) -> Plan:
        if self._refusal is not None:
            raise self._refusal
        if self._plan is None:
            from pyrocketstore.spark.plan.batch import plan

            self._plan = plan(self.options)
            settle()
        return self._plan
