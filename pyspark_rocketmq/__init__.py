"""Where Spark looks for the format "rocketmq-store": any module named pyspark_* is asked.

A module that fails here would hide every other source from Spark, so what is missing shows only
when the format is used.
"""

try:
    from pyrocketstore.spark.source import RocketMQStoreSource as DefaultSource
except ImportError:  # without pyspark or pyarrow there is no format to offer
    pass
else:
    __all__ = ["DefaultSource"]
