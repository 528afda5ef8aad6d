"""RocketMQ stores in Apache Spark: a data source, functions, and the way to a Parquet lake.

`register` makes the data source known to a session, and `DataLossError` reports messages that a
store has lost; `pyrocketstore.spark.udf`, `.pipeline`, `.jobs`, `.verify` and `.rebuild` are public
too. Executors run modules of this folder that must not import the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyrocketstore.spark.options import FORMAT
from pyrocketstore.spark.packages import require_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyrocketstore.spark.task_types import DataLossError


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("rocketmq-store")` known to a session.

    Spark finds the format by itself where `pyspark_rocketmq` is installed beside the driver; this
    is for programs that do not rely on discovery.

    Raises MissingExtraError without pyspark or pyarrow.
    """
    require_packages("pyrocketstore.spark")
    from pyrocketstore.spark.source.batch import RocketMQStoreSource

    spark.dataSource.register(RocketMQStoreSource)


__all__ = ["FORMAT", "DataLossError", "register"]

if not TYPE_CHECKING:  # with a `__getattr__`, a type checker would accept every name

    def __getattr__(name: str) -> Any:
        """Import `DataLossError` when it is first used."""
        if name != "DataLossError":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from pyrocketstore.spark.task_types import DataLossError

        globals()[name] = DataLossError
        return DataLossError
