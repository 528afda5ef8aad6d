"""Every entry of the Spark package over Spark Connect, with the server that pip installs.

Run as a program with an empty directory and names of entries: prints each entry that works, and a
traceback for one that does not.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyrocketstore
from encoded_records import golden_records, plain_message
from pyrocketstore.spark import FORMAT, jobs, register, udf
from pyrocketstore.spark.pipeline import export, read_lake
from pyrocketstore.spark.rebuild import rebuild
from pyrocketstore.spark.verify import verify

COUNT = 30
WRITTEN = "topic string, body binary, keys string"
SIZES = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
#: The server inherits them.
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
CONF = "mappedFileSizeCommitLog=4096\nmaxHashSlotNum=100\nmaxIndexNum=400\n"


def put(root: Path, first: int, stop: int) -> None:
    """Put messages with the numbers [first, stop) as bodies."""
    with pyrocketstore.open(root, **SIZES) as store:
        for number in range(first, stop):
            store.put("t", b"%d" % number, tags="a", keys=f"k{number}")


def bodies(root: Path, topic: str = "t") -> list[int]:
    """Return the numbers in a store, in the order of the queue."""
    with pyrocketstore.open(root, read_only=True) as store:
        return [int(message.body) for message in store.read(topic)]


@contextlib.contextmanager
def fails(*texts: str) -> Iterator[None]:
    """Expect an error with each of these texts."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        missing = [text for text in texts if text not in str(error)]
        assert not missing, (missing, str(error))
    else:
        raise AssertionError("no error")


class Entries:
    """The calls, over one session."""

    def __init__(self, spark: Any, home: Path) -> None:
        self.spark = spark
        self.home = home
        self.root = home / "store"
        self.conf = home / "broker.conf"
        self.conf.write_text(CONF)
        put(self.root, 0, COUNT)
        register(spark)

    def _loaded(self, **options: str) -> Any:
        reader = self.spark.read.format(FORMAT)
        return reader.options(**options).load(str(self.root))

    def _stream(self, root: Path, **options: object) -> Any:
        texts = {name: str(value) for name, value in options.items()}
        reader = self.spark.readStream.format(FORMAT).option("startingOffsets", "earliest")
        return reader.options(**texts).load(str(root))

    def read(self) -> None:
        """Each view, with a schema of the query too."""
        for view in ("messages", "commitlog", "consumequeue", "index"):
            assert self._loaded(view=view).count() >= COUNT, view
        assert self._loaded(view="files").count() >= 3
        reader = self.spark.read.format(FORMAT).schema("body binary, topic string")
        rows = reader.option("subExpression", "a").load(str(self.root)).collect()
        assert sorted(int(bytes(row.body)) for row in rows) == list(range(COUNT))
        loaded = self._loaded(snapshot="load")
        assert [loaded.count(), loaded.where("queueOffset < 3").count()] == [COUNT, 3]

    def refusals(self) -> None:
        """Errors of planning, and one of a task."""
        with fails("unknown option 'topc'"):
            self._loaded(topc="t").count()
        with fails("no column", "bodi"):
            self.spark.read.format(FORMAT).schema("bodi binary").load(str(self.root)).count()
        damaged = self.home / "damaged"
        put(damaged, 0, COUNT)
        with pyrocketstore.open(damaged, read_only=True) as store:
            place = list(store.read("t"))[2].phy_offset
        log = damaged / "commitlog" / ("0" * 20)
        data = bytearray(log.read_bytes())
        data[place + 4] ^= 1
        log.write_bytes(data)
        with fails(log.name, f"at byte {place}"):
            self.spark.read.format(FORMAT).load(str(damaged)).select("body").collect()
        reader = self.spark.read.format(FORMAT).option("onCorrupt", "skip")
        assert reader.load(str(damaged)).count() == COUNT - 1

    def sql(self) -> None:
        """A view of SQL."""
        self.spark.sql(
            f"CREATE OR REPLACE TEMP VIEW v USING `{FORMAT}` OPTIONS (path '{self.root}')"
        )
        assert self.spark.sql("SELECT count(*) FROM v").first()[0] == COUNT

    def export(self) -> None:
        """Two runs, and the lake as a DataFrame."""
        lake = self.home / "lake"
        assert export(self.spark, self.root, lake).rows == COUNT
        assert export(self.spark, self.root, lake).rows == 0
        assert read_lake(self.spark, lake).select("topic", "body", "date").count() == COUNT

    def write(self) -> None:
        """Append a batch; a row that no put accepts appends nothing."""
        target = self.home / "written"
        rows = [("u", b"%d" % number, f"k{number}") for number in range(COUNT)]
        for _ in range(2):
            frame = self.spark.createDataFrame(rows, WRITTEN).coalesce(1)
            frame.write.format(FORMAT).mode("append").save(str(target))
        assert bodies(target, "u") == [*range(COUNT), *range(COUNT)]
        bad = self.spark.createDataFrame([*rows, ("u", None, None)], WRITTEN)
        with fails("column body: it is null"):
            bad.write.format(FORMAT).mode("append").save(str(target))
        assert len(bodies(target, "u")) == 2 * COUNT
        assert not (target / ".spark-staging").exists()
        with fails("a write only appends"):
            bad.write.format(FORMAT).mode("overwrite").save(str(target))

    def stream_read(self) -> None:
        """Spark's file sink over a restart, and a function of the user."""
        root, out = self.home / "streamed", self.home / "sink"

        def put_batch(rows: Any, batch_id: int) -> None:
            rows.write.mode("overwrite").parquet(f"{out}/batches/batch={batch_id}")

        for first, stop, name in (
            (0, COUNT, "files"),
            (COUNT, COUNT + 10, "files"),
            (0, 0, "batches"),
        ):
            put(root, first, stop)
            rows = self._stream(root, maxOffsetsPerTrigger=20).select("body")
            sink = rows.writeStream.option("checkpointLocation", f"{out}/{name}.checkpoint")
            sink = sink.trigger(availableNow=True)
            if name == "files":
                query = sink.format("parquet").option("path", f"{out}/files").start()
            else:
                query = sink.foreachBatch(put_batch).start()
            assert query.awaitTermination(100)
            found = self.spark.read.parquet(f"{out}/{name}").collect()
            assert sorted(int(bytes(row.body)) for row in found) == list(range(stop or COUNT + 10))
        with fails("unknown option 'topc'"):
            self._stream(root, topc="t").writeStream.format("noop").option(
                "checkpointLocation", f"{out}/refused"
            ).start().awaitTermination(100)

    def stream_write(self) -> None:
        """Micro-batches into a store, over a restart; the store records the last batch."""
        source, target = self.home / "source", self.home / "target"
        for stop in (COUNT, COUNT + 10):
            put(source, 0 if stop == COUNT else COUNT, stop)
            rows = self._stream(source, maxOffsetsPerTrigger=20).select("topic", "body", "tags")
            query = (
                rows.coalesce(1)
                .writeStream.format(FORMAT)
                .option("path", str(target))
                .option("checkpointLocation", str(self.home / "target.checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(100)
            assert bodies(target) == list(range(stop))
        assert len(list((target / "config").glob("sparkBatches-*.json"))) == 1

    def functions(self) -> None:
        """The functions over encoded records, as columns, in SQL and in pandas."""
        from pyspark.sql import functions as F

        values = golden_records("plain")
        wanted = sorted(plain_message(value)["topic"] for value in values)
        rows = [(value, "TagA") for value in values]
        frame = self.spark.createDataFrame(rows, "v binary, t string")
        found = frame.select(udf.decode_message("v", ["topic", "queueOffset"]).alias("m"))
        assert sorted(row.m.topic for row in found.collect()) == wanted
        found = udf.decode_batches(frame, "v", ["topic", "body"], keep=["t"])
        assert found.columns == ["t", "topic", "body", "error"]
        assert sorted(row.topic for row in found.collect()) == wanted
        codes = frame.select(udf.tags_code("t").alias("c"), udf.verify_crc("v").alias("ok"))
        assert codes.distinct().collect() == [(2598919, True)]
        unit = self.spark.createDataFrame([((7).to_bytes(8) + (9).to_bytes(12),)], "u binary")
        assert unit.select(udf.decode_cq_unit("u")).first()[0].commitLogOffset == 7
        named = unit.select(udf.properties_map(F.lit("a\x01b\x02")))
        assert named.first()[0] == {"a": "b"}
        udf.register_functions(self.spark)
        frame.createOrReplaceTempView("records")
        found = self.spark.sql("SELECT rmq_decode(v).topic AS topic, rmq_tags_code(t) FROM records")
        assert sorted(row.topic for row in found.collect()) == wanted
        decoded = frame.select("v").mapInPandas(
            lambda frames: (udf.decode_pandas(each["v"], ["topic"]) for each in frames),
            "topic string, error string",
        )
        assert sorted(row.topic for row in decoded.collect()) == wanted

    def reports(self) -> None:
        """Each report over a store."""
        messages = self._loaded(includeSystemTopics="true")
        found = {name: job(messages).collect() for name, job in jobs.JOBS.items()}
        assert sum(row.messages for row in found["traffic"]) == COUNT
        assert sum(row.messages for row in found["latency"]) == COUNT
        assert len(found["keys"]) == COUNT
        assert (found["duplicates"], found["retries"]) == ([], [])

    def verify(self) -> None:
        """A valid store, and one with wrong units and a damaged record."""
        result = verify(self.spark, self.root, broker_conf=self.conf)
        assert result.ok and result.counts["records"] == COUNT, result.counts
        assert result.problems.count() == 0
        result.close()
        root = self.home / "contradicted"
        put(root, 0, 100)
        queue = root / "consumequeue" / "t" / "0" / ("0" * 20)
        data = bytearray(queue.read_bytes())
        data[100:120] = data[120:140]
        queue.write_bytes(data)
        with pyrocketstore.open(root, config=str(self.conf), read_only=True) as store:
            report = store.verify()
        result = verify(self.spark, {"b": root}, broker_conf=self.conf)
        assert result.problem_count == report.problem_count > 0
        ours = {(row.kind, row.path, row.position) for row in result.problems.collect()}
        assert ours == {(each.kind, each.path, each.position) for each in report.problems}
        assert not result.ok
        result.close()

    def command(self) -> None:
        """The commands that run on Spark, over the server that SPARK_REMOTE names."""
        from pyspark.sql.connect.client import DefaultChannelBuilder

        server = {"SPARK_REMOTE": f"sc://localhost:{DefaultChannelBuilder.default_port()}"}
        with pyrocketstore.open(self.root, read_only=True) as store:
            stored = next(store.read("t")).store_timestamp
        hour = datetime.datetime.fromtimestamp(stored // 3_600_000 * 3600, datetime.UTC)
        traffic = {"topic": "t", "hour": f"{hour:%Y-%m-%dT%H}:00:00.000Z", "messages": COUNT}
        lake = str(self.home / "lake of a command")
        for arguments, wanted in (
            (["export", str(self.root), lake], {"rows": COUNT, "skipped records": 0}),
            (["report", "traffic", str(self.root)], traffic),
            (["report", "traffic", lake], traffic),
        ):
            ran = subprocess.run(
                [sys.executable, "-m", "pyrocketstore", *arguments, "--spark", "--json"],
                env=os.environ | server | {"TZ": "America/St_Johns"},
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
            (found,) = (next(iter(json.loads(line).values())) for line in ran.stdout.splitlines())
            assert {name: found[name] for name in wanted} == wanted, found

    def rebuild(self) -> None:
        """Queues and index from the log."""
        out = self.home / "rebuilt"
        report = rebuild(self.spark, self.root, out, broker_conf=self.conf)
        assert (report.records, report.units) == (COUNT, COUNT), report
        assert bodies(out) == list(range(COUNT))


def main(home: Path, names: Sequence[str]) -> int:
    """Call each entry; return the count of those that do not work."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    failed = 0
    try:
        entries = Entries(spark, home)
        for name in names:
            call: Callable[[], None] = getattr(entries, name)
            began = time.monotonic()
            try:
                call()
                print(f"{name}: works", flush=True)
            except Exception:  # noqa: BLE001
                failed += 1
                print(f"{name}: {traceback.format_exc()}", flush=True)
            print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    finally:
        spark.stop()
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(Path(sys.argv[1]), sys.argv[2:])))
