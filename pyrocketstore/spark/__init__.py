"""RocketMQ stores in Apache Spark: a data source, functions, and the way to a Parquet lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "rocketmq-store"


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("rocketmq-store")` known to a session.

    Spark finds the format by itself where `pyspark_rocketmq` is installed beside the driver; this
    is for those who do not rest on discovery.

    Raises MissingExtraError without pyspark.
    """
    from pyrocketstore.spark.source import RocketMQStoreSource

    spark.dataSource.register(RocketMQStoreSource)


__all__ = ["FORMAT", "register"]
