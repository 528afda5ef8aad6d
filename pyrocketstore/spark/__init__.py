"""RocketMQ stores in Apache Spark: a data source, functions, and the way to a Parquet lake.

`register` makes the data source known to a session; `pyrocketstore.spark.udf`, `.pipeline`,
`.jobs`, `.verify` and `.rebuild` are public too. Executors run modules of this folder that
must not import the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrocketstore.spark.options import FORMAT
from pyrocketstore.spark.packages import require_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("rocketmq-store")` known to a session.

    Spark finds the format by itself where `pyspark_rocketmq` is installed beside the driver; this
    is for programs that do not rely on discovery.

    Raises MissingExtraError without pyspark or pyarrow.
    """
    require_packages("pyrocketstore.spark")
    from pyrocketstore.spark.source.batch import RocketMQStoreSource

    spark.dataSource.register(RocketMQStoreSource)


__all__ = ["FORMAT", "register"]
