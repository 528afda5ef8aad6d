"""From a broker's store directory to answers in SQL.

    python examples/broker_to_lake.py STORE LAKE [BROKER_CONF]

Cells begin with `# %%`, so an editor that knows them runs this as a notebook. The store is only
read, and may be in use. The second run with the same LAKE takes only what has come since.
"""

# %% What is given
from __future__ import annotations

import os
import sys

STORE, LAKE = sys.argv[1:3]
OPTIONS = {"brokerConf": sys.argv[3]} if len(sys.argv) > 3 else {}

# %% Spark on this machine. On a cluster, STORE and LAKE are the same directories on all machines.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark.sql import SparkSession  # noqa: E402

spark = (
    SparkSession.builder.master("local[2]")
    .appName("broker to lake")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)

# %% Bring the messages into Parquet files by topic and day. Damage would stop the export here;
# onCorrupt="skip" leaves damaged messages out and notes each range in LAKE/_manifest.
from pyrocketstore.spark.pipeline import export, read_lake  # noqa: E402

report = export(spark, STORE, LAKE, includeSystemTopics=True, **OPTIONS)
print(f"{report.rows} messages in {report.files} files, {len(report.skipped)} ranges skipped")

# %% The lake is a table. Any tool that knows Hive's partitions reads LAKE/messages.
read_lake(spark, LAKE).createOrReplaceTempView("messages")

# %% First answer: how much is there, and of which topics?
by_topic = spark.sql(
    """
    SELECT topic, count(*) AS messages, sum(storeSize) AS bytes,
           min(storeTimestamp) AS first, max(storeTimestamp) AS last
    FROM messages GROUP BY topic ORDER BY messages DESC, topic
    """
)
by_topic.show(truncate=False)

# %% Second answer: which tags does each topic have? The date cuts what is read to some directories.
by_tag = spark.sql(
    """
    SELECT topic, coalesce(tags, '(none)') AS tags, count(*) AS messages
    FROM messages WHERE date >= DATE'2020-01-01' GROUP BY ALL ORDER BY topic, tags
    """
)
by_tag.show(truncate=False)

# %% Third answer: what did consumers give back, and how often? The queue's offset finds the message
# again in the broker: brokerName, topic, queueId and queueOffset name it.
given_back = spark.sql(
    """
    SELECT topic, properties['RETRY_TOPIC'] AS origin, reconsumeTimes, count(*) AS messages,
           min(queueOffset) AS first_offset
    FROM messages WHERE topic LIKE '\\%RETRY\\%%' OR topic LIKE '\\%DLQ\\%%'
    GROUP BY ALL ORDER BY topic, reconsumeTimes
    """
)
given_back.show(truncate=False)

# %% What is asked often is ready: traffic, latency, key_frequency, duplicates, retries.
from pyrocketstore.spark import jobs  # noqa: E402

jobs.latency(spark.table("messages")).show(truncate=False)
