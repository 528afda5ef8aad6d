"""Processes that the tests of streams start, and kill.

write ROOT SEED: puts messages into a store until it is ended.
drive ROOT OUT: streams a store into Parquet files, by the file sink and by foreachBatch.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyrocketstore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

SCHEMA = "topic string, queueId int, queueOffset bigint, body binary"
SIZES = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 50 * 20}


def start(log: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """This module as a process with a group of its own, which writes errors to `log`."""
    command = [sys.executable, __file__, *map(str, arguments)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with log.open("wb") as out:
        return subprocess.Popen(
            command, start_new_session=True, env=environment, stdout=out, stderr=out
        )


def kill(child: subprocess.Popen[bytes]) -> None:
    """As kill -9, with the JVM that it started."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def write(root: str, seed: str) -> None:
    """Put until killed, or until SIGTERM, at most for an hour."""
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    source = random.Random(int(seed))
    until = time.monotonic() + 3600
    with pyrocketstore.open(root, **SIZES) as store:
        number = 0
        while not ended and time.monotonic() < until:
            topic = f"t{source.randrange(3)}"
            if source.random() < 0.01:
                topic = f"late{source.randrange(20)}"
            body = f"{seed}-{number}".encode() + b"." * source.randrange(200)
            store.put(topic, body, queue_id=source.randrange(2))
            number += 1
            if number % 4 == 0:
                time.sleep(0.02)


def load(spark: SparkSession, root: object, **options: object) -> DataFrame:
    """The messages of a store as a stream."""
    reader = spark.readStream.format("rocketmq-store").schema(SCHEMA)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(str(root))


def into_parquet(
    spark: SparkSession, root: object, out: Path, limit: int, **trigger: object
) -> Iterator[StreamingQuery]:
    """Both ways to have each row once: Spark's own file sink, and files named by the batch. A query
    starts when it is requested."""

    def put_batch(rows: DataFrame, batch_id: int) -> None:
        rows.write.mode("overwrite").parquet(str(out / "batches" / f"batch={batch_id}"))

    for name in ("files", "batches"):
        rows = load(spark, root, startingOffsets="earliest", maxOffsetsPerTrigger=limit)
        writer = rows.writeStream.option("checkpointLocation", str(out / f"{name}.checkpoint"))
        if trigger:
            writer = writer.trigger(**trigger)
        if name == "files":
            yield writer.format("parquet").option("path", str(out / name)).start()
        else:
            yield writer.foreachBatch(put_batch).start()


def drive(root: str, out: str) -> None:
    """Stream until killed."""
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    queries = list(into_parquet(spark, root, Path(out), 100))
    try:
        spark.streams.awaitAnyTermination()
    except StreamingQueryException as error:
        if "Task serialization failed" not in str(error):
            raise
    # Spark 4.3.0 now and then ruins a collection that both queries of a session write down, and
    # that stays so for as long as its JVM lives.
    for query in queries:
        query.stop()
    spark.stop()
    os.execv(sys.executable, [sys.executable, *sys.argv])


if __name__ == "__main__":
    {"write": write, "drive": drive}[sys.argv[1]](*sys.argv[2:])
