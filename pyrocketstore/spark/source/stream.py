"""The stream reader of the data source.

An offset states the next message of each queue, so that a batch whose offsets Spark has recorded
has the same rows whenever it is read. Spark keeps no start: the first batch pins it.

Executors unpickle the reader and call `read`; every other method runs on the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pyrocketstore.errors import StoreError, StoreFormatError
from pyrocketstore.spark.encodable_errors import guarded_class
from pyrocketstore.spark.options import SourceOptions
from pyrocketstore.spark.read.worker import read_task
from pyrocketstore.spark.schemas import renamed
from pyrocketstore.system.env import Env

if TYPE_CHECKING:
    import pyarrow

    from pyrocketstore.spark.plan.offsets import Limits
    from pyrocketstore.spark.plan.stream import StreamPlan

#: An opening after a kill removes the last units and puts them back: units that are gone for longer
#: are lost.
RECOVERY_S = 10.0


@guarded_class
class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Passes the calls of Spark on to the driver's plan; `read` runs on the executors.

    Parameters
    ----------
    columns : name -> type, the columns that Spark requested
    names : the query's names of the columns; None: the same
    recovery_s, env : of the StreamPlan

    Raises StoreFormatError where the start names a broker without a store. Threads: one. The stores
    are closed with the reader, so Spark need not call `stop`.
    """

    def __init__(
        self,
        options: SourceOptions,
        columns: Mapping[str, str],
        *,
        recovery_s: float = RECOVERY_S,
        env: Env | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        from pyrocketstore.spark.plan.stream import StreamPlan

        self.options = options
        self.columns = dict(columns)
        self.names = None if names is None or list(columns) == list(names) else tuple(names)
        #: stays on the driver
        self.plan: StreamPlan | None = StreamPlan(options, recovery_s, env)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "plan": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return a constant: the end of the first batch holds the start itself."""
        from pyrocketstore.spark.plan.offsets import INITIAL

        return dict(INITIAL)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends: see StreamPlan.latest_offset."""
        return self._planned().latest_offset(start, self._limits(limit))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limits of the options."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """End this run at the messages that exist now: see StreamPlan.freeze."""
        self._planned().freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the queues' ends now, from which Spark computes how far the query is behind."""
        from pyrocketstore.spark.plan.offsets import encode_offset

        return encode_offset(self._planned().look(), {})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, which depend on `start` and `end` alone."""
        return [InputPartition(task) for task in self._planned().tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Read the rows of a task."""
        return renamed(read_task(partition.value, self.columns, self.options), self.names)

    def stop(self) -> None:
        """Close the stores."""
        self._planned().close()

    def _planned(self) -> StreamPlan:
        assert self.plan is not None  # Spark plans on the driver
        return self.plan

    def _limits(self, limit: ReadLimit) -> Limits:
        from pyrocketstore.spark.plan.offsets import Limits

        if isinstance(limit, ReadAllAvailable):
            return Limits()
        if isinstance(limit, ReadMinRows):
            return Limits(rows_min=limit.min_rows)
        if isinstance(limit, ReadMaxRows):
            return Limits(rows_max=limit.max_rows, bytes_max=self.options.max_bytes_per_trigger)
        if isinstance(limit, ReadMaxBytes):
            return Limits(bytes_max=limit.max_bytes)
        raise StoreFormatError(f"rocketmq-store: cannot read by {type(limit).__name__}")


@guarded_class
class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream with wrong options: each method raises that error."""

    def __init__(self, error: StoreError) -> None:
        self.error = error

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise self.error

    initialOffset = latestOffset = prepareForTriggerAvailableNow = partitions = read = _refuse
