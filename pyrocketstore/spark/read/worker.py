"""Entry points of an executor: the rows of a task of the data source, and the work of a job."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyrocketstore.spark.encodable_errors import guarded
from pyrocketstore.spark.options import SourceOptions
from pyrocketstore.spark.read import tables
from pyrocketstore.spark.read.messages import read_messages
from pyrocketstore.spark.task_types import (
    IndexTask,
    LogTask,
    QueueTask,
    StoreTask,
    TaskGroup,
    grouped,
)

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

_Task = TypeVar("_Task")

#: Tasks of a job that read less are combined: a task of Spark costs about 70 ms (bytes).
JOB_BYTES = 16 << 20


@functools.cache
def settle() -> None:
    """Exclude all loaded objects from garbage collection, if this is a Python worker of Spark.

    Such a worker runs a full collection after each task, which visits each object of each loaded
    module for about 50 ms: decoding 150 MiB of the log takes as long. Modules stay loaded.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        gc.collect()
        gc.freeze()


def read_task(
    planned: StoreTask,
    columns: dict[str, str],
    options: SourceOptions,
    common: Sequence[tuple[Any, ...]] = (),
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a task as Arrow batches of `columns`; `common` is that of its plan."""
    settle()
    task = planned.whole_task(common)
    if task is None:
        return
    if isinstance(task, list):
        yield tables.files_batch(task, columns)
        return
    for each in task.whole_tasks() if isinstance(task, TaskGroup) else (task,):
        yield from _rows_of(each, columns, options, planned.broker_name)


def _rows_of(
    task: QueueTask | LogTask | IndexTask,
    columns: dict[str, str],
    options: SourceOptions,
    broker_name: str,
) -> Iterator[pyarrow.RecordBatch]:
    if isinstance(task, IndexTask):
        yield from tables.read_index(
            task,
            columns,
            broker_name,
            fail_on_data_loss=options.fail_on_data_loss,
            on_corrupt=options.on_corrupt,
            batch_rows=options.batch_rows,
        )
    elif options.view == "consumequeue" and isinstance(task, QueueTask):
        yield from tables.read_units(task, columns, options)
    else:
        yield from read_messages(task, columns, options)


def map_tasks(
    spark: SparkSession,
    tasks: Sequence[_Task],
    work: Callable[[_Task], Iterator[pyarrow.RecordBatch]],
    ddl: str,
    bytes_of: Callable[[_Task], int] | None = None,
) -> DataFrame:
    """Return the rows that `work` yields for each task, computed by the executors.

    With `bytes_of`, the bytes that a task reads, small tasks are run one after the other.
    """
    sizes = [JOB_BYTES if bytes_of is None else bytes_of(task) for task in tasks]
    runs = tuple(map(tuple, grouped(zip(tasks, sizes, strict=True), JOB_BYTES)))
    count = len(runs)
    run = functools.partial(_run, tasks=runs, work=work)
    return spark.range(0, count, 1, max(1, count)).mapInArrow(run, ddl)


@guarded
def _run(
    batches: Iterator[pyarrow.RecordBatch],
    tasks: tuple[tuple[_Task, ...], ...],
    work: Callable[[_Task], Iterator[pyarrow.RecordBatch]],
) -> Iterator[pyarrow.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for task in tasks[number]:
                yield from work(task)
