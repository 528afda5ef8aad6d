"""Read a broker's store directory into a Parquet lake, and query the lake with SQL.

    python examples/broker_to_lake.py STORE LAKE [BROKER_CONF]

Cells begin with `# %%`, so an editor that supports them runs this file as a notebook. The store is
not written to, and a broker may use it meanwhile. A second run with the same LAKE adds only new
messages.
"""

# %% Arguments
from __future__ import annotations

import os
import sys

STORE, LAKE = sys.argv[1:3]
OPTIONS = {"brokerConf": sys.argv[3]} if len(sys.argv) > 3 else {}

# %% Spark on this machine. On a cluster, all machines must see STORE and LAKE under these paths.
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

# %% Export the messages to Parquet files by topic and day. Damage ends the export with an error;
# onCorrupt="skip" omits damaged messages and records each damaged range in LAKE/_manifest.
from pyrocketstore.spark.pipeline import export, read_lake  # noqa: E402

report = export(spark, STORE, LAKE, includeSystemTopics=True, **OPTIONS)
print(f"{report.rows} messages in {report.files} files, {len(report.skipped)} ranges skipped")

# %% The lake is a table. Any tool that supports Hive's partitions reads LAKE/messages.
read_lake(spark, LAKE).createOrReplaceTempView("messages")

# %% First query: how many messages does each topic have?
by_topic = spark.sql(
    """
    SELECT topic, count(*) AS messages, sum(storeSize) AS bytes,
           min(storeTimestamp) AS first, max(storeTimestamp) AS last
    FROM messages GROUP BY topic ORDER BY messages DESC, topic
    """
)
by_topic.show(truncate=False)

# %% Second query: which tags does each topic have? The date limits the directories that are read.
by_tag = spark.sql(
    """
    SELECT topic, coalesce(tags, '(none)') AS tags, count(*) AS messages
    FROM messages WHERE date >= DATE'2020-01-01' GROUP BY ALL ORDER BY topic, tags
    """
)
by_tag.show(truncate=False)

# %% Third query: which messages did consumers return, and how often? brokerName, topic, queueId and
# queueOffset identify such a message in the broker.
returned = spark.sql(
    """
    SELECT topic, properties['RETRY_TOPIC'] AS origin, reconsumeTimes, count(*) AS messages,
           min(queueOffset) AS first_offset
    FROM messages WHERE topic LIKE '\\%RETRY\\%%' OR topic LIKE '\\%DLQ\\%%'
    GROUP BY ALL ORDER BY topic, reconsumeTimes
    """
)
returned.show(truncate=False)

# %% Functions for frequent queries: traffic, latency, key_frequency, duplicates, retries.
from pyrocketstore.spark import jobs  # noqa: E402

jobs.latency(spark.table("messages")).show(truncate=False)
