"""Reports on a broker's messages: functions from a DataFrame of messages to a DataFrame.

The messages come from the data source (view messages) or from a lake (`pipeline.read_lake`). A
function reads only the columns that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyrocketstore.errors import StoreFormatError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
#: Separates the keys of a message.
KEY_SEPARATOR = " "
PERCENTILES = (0.5, 0.9, 0.99, 0.999)
#: Samples of percentile_approx: the rank error is at most 1/ACCURACY.
ACCURACY = 10_000


def traffic(messages: DataFrame) -> DataFrame:
    """Count messages and bytes of each topic and hour.

    Returns topic, hour (timestamp), messages, bytes (of the records in the log).
    """
    from pyspark.sql import functions as F

    return (
        messages.groupBy("topic", _hour())
        .agg(F.count("*").alias("messages"), F.sum("storeSize").cast("bigint").alias("bytes"))
        .orderBy("topic", "hour")
    )


def latency(messages: DataFrame, percentiles: Sequence[float] = PERCENTILES) -> DataFrame:
    """Return the time from creating a message to storing it, for each topic and hour.

    The times are differences of two clocks, the producer's and the broker's, and may be negative.

    Parameters
    ----------
    percentiles : fractions of 1; each becomes a column: 0.999 becomes p99.9

    Returns topic, hour, messages, a column for each percentile, max: all in ms.
    """
    from pyspark.sql import functions as F

    taken = F.unix_millis("storeTimestamp") - F.unix_millis("bornTimestamp")
    if not percentiles or not all(0 <= part <= 1 for part in percentiles):
        raise StoreFormatError("latency: percentiles are parts of 1, at least one")
    found = F.percentile_approx("taken", list(percentiles), ACCURACY)
    table = (
        messages.select("topic", "storeTimestamp", taken.alias("taken"))
        .groupBy("topic", _hour())
        .agg(F.count("*").alias("messages"), found.alias("at"), F.max("taken").alias("max"))
    )
    columns = [F.col("at")[n].alias(f"p{100 * p:.12g}") for n, p in enumerate(percentiles)]
    return table.select("topic", "hour", "messages", *columns, "max").orderBy("topic", "hour")


def key_frequency(messages: DataFrame, count: int = 100) -> DataFrame:
    """Return the most frequent keys of each topic; blanks separate the keys of a message.

    Returns topic, key, messages (with that key), first and last (store times): the `count` most
    frequent keys, ties by name.
    """
    from pyspark.sql import functions as F

    # A key that a message has twice counts once.
    keys = F.array_distinct(F.split("keys", KEY_SEPARATOR))
    return (
        messages.where(F.col("keys") != "")
        .select("topic", "storeTimestamp", F.explode(keys).alias("key"))
        .where("key <> ''")
        .groupBy("topic", "key")
        .agg(
            F.count("*").alias("messages"),
            F.min("storeTimestamp").alias("first"),
            F.max("storeTimestamp").alias("last"),
        )
        .orderBy(F.desc("messages"), "topic", "key")
        .limit(count)
    )


def duplicates(messages: DataFrame) -> DataFrame:
    """Find messages that a topic has more than once, by the unique key that clients assign.

    A producer that resends after a timeout creates such copies. Copies in retry and dead-letter
    topics have the same key, and count in their own topic only.

    Returns topic, uniqKey, copies, places (array of struct<brokerName, queueId, queueOffset>, in
    order), first and last (store times); the most copies first.
    """
    from pyspark.sql import functions as F

    place = F.struct("brokerName", "queueId", "queueOffset")
    return (
        messages.where(F.col("uniqKey") != "")
        .groupBy("topic", "uniqKey")
        .agg(
            F.count("*").alias("copies"),
            F.sort_array(F.collect_list(place)).alias("places"),
            F.min("storeTimestamp").alias("first"),
            F.max("storeTimestamp").alias("last"),
        )
        .where("copies > 1")
        .orderBy(F.desc("copies"), "topic", "uniqKey")
    )


def retries(messages: DataFrame) -> DataFrame:
    """Count the retry and dead-letter messages of each consumer group, by origin and attempts.

    The messages are those of %RETRY% and %DLQ% topics, so read with includeSystemTopics=true. The
    origin is the property RETRY_TOPIC (or DLQ_ORIGIN_TOPIC, or REAL_TOPIC, where
    that is not a %RETRY% topic itself), null without these properties.

    Returns group, kind ("retry" or "dlq"), originTopic, reconsumeTimes, messages, bytes, first and
    last (store times).
    """
    from pyspark.sql import functions as F

    topic = F.col("topic")
    is_retry, is_dlq = topic.startswith(RETRY_PREFIX), topic.startswith(DLQ_PREFIX)
    size = F.when(is_retry, len(RETRY_PREFIX)).otherwise(len(DLQ_PREFIX))
    names = ("RETRY_TOPIC", "DLQ_ORIGIN_TOPIC", "REAL_TOPIC")
    named = [F.col("properties")[name] for name in names]
    origins = [F.when(~each.startswith(RETRY_PREFIX), each) for each in named]
    return (
        messages.where(is_retry | is_dlq)
        .select(
            topic.substr(size + 1, F.length("topic")).alias("group"),
            F.when(is_retry, "retry").otherwise("dlq").alias("kind"),
            F.coalesce(*origins).alias("originTopic"),
            "reconsumeTimes",
            "storeSize",
            "storeTimestamp",
        )
        .groupBy("group", "kind", "originTopic", "reconsumeTimes")
        .agg(
            F.count("*").alias("messages"),
            F.sum("storeSize").cast("bigint").alias("bytes"),
            F.min("storeTimestamp").alias("first"),
            F.max("storeTimestamp").alias("last"),
        )
        .orderBy("group", "kind", "originTopic", "reconsumeTimes")
    )


#: Name -> job, for `pyrocketstore report --spark NAME`.
JOBS: Mapping[str, Callable[[DataFrame], DataFrame]] = MappingProxyType(
    {
        "traffic": traffic,
        "latency": latency,
        "keys": key_frequency,
        "duplicates": duplicates,
        "retries": retries,
    }
)
#: Name -> the columns that the job reads: Spark does not pass them to a Python data source.
JOB_COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        name: ("topic", "storeTimestamp", *columns.split())
        for name, columns in {
            "traffic": "storeSize",
            "latency": "bornTimestamp",
            "keys": "keys",
            "duplicates": "brokerName queueId queueOffset uniqKey",
            "retries": "storeSize reconsumeTimes properties",
        }.items()
    }
)


def _hour() -> Column:
    from pyspark.sql import functions as F

    return F.date_trunc("hour", "storeTimestamp").alias("hour")
