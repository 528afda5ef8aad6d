"""Where Spark looks for the format "rocketmq-store": any module named pyspark_* is asked.

A module that fails here would hide every other source from Spark, so what is missing shows only
when the format is used.
"""

import logging

try:
    from pyrocketstore.spark.source.batch import RocketMQStoreSource as DefaultSource
except ImportError as error:  # without pyspark or pyarrow there is no format to offer
    logging.getLogger(__name__).debug("no format rocketmq-store: %s", error)
except Exception:
    # A module compiled for another numpy raises ValueError, say.
    logging.getLogger(__name__).warning("no format rocketmq-store", exc_info=True)
else:
    __all__ = ["DefaultSource"]
