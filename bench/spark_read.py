"""Reading a store through Spark, beside the fastest source that Spark could have and its own
Parquet reader, on the same rows in one run: `make bench-spark`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import pyarrow as pa  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition  # noqa: E402

import pyrocketstore  # noqa: E402
from pyrocketstore.spark.options import read_options  # noqa: E402
from pyrocketstore.spark.schemas import columns_of  # noqa: E402
from pyrocketstore.spark.source import plan, read_task  # noqa: E402

GIB = 1 << 30
BODY = 1024
#: What the ceiling's columns and those of the messages view are in these rounds.
COLUMNS = (
    "topic",
    "queueId",
    "queueOffset",
    "commitLogOffset",
    "storeSize",
    "storeTimestamp",
    "tags",
    "keys",
    "body",
)
BODYLESS = COLUMNS[:-1]


class Ceiling(DataSource):
    """A source that gives one finished batch again and again."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return self.options["ddl"]

    def reader(self, schema: Any) -> DataSourceReader:
        return CeilingReader(dict(self.options))


class CeilingReader(DataSourceReader):
    """As many tasks, batches, rows and bytes as the store's."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        counts = json.loads(self.options["batches"])
        return [InputPartition(count) for count in counts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_file(self.options["batch"]) as file:
            batch = file.get_batch(0)
        for _ in range(partition.value):
            yield batch


def make_store(root: Path, gib: float) -> int:
    """A store with about so many GiB of bodies; gives the number of messages."""
    count = int(gib * GIB / BODY)
    body = os.urandom(BODY)
    with pyrocketstore.open(root, message_index_enable=False) as store:
        for first in range(0, count, 16384):
            numbers = range(first, min(first + 16384, count))
            store.put_many(
                f"topic-{first // 16384 % 4}",
                [body] * len(numbers),
                queue_ids=first // 65536 % 4,
                tags=["tag"] * len(numbers),
                keys=[f"key-{n}" for n in numbers],
            )
    return count


def decoder_cpu(root: Path, columns: tuple[str, ...], mode: str) -> tuple[float, float]:
    """(processor s, wall s) of decoding the store once in this process."""
    options = read_options({"path": str(root), "readMode": mode})
    kinds = {name: columns_of(options)[0][name] for name in columns}
    partitions = plan(options)
    wall, cpu = time.perf_counter(), time.process_time()
    for partition in partitions:
        for _ in read_task(partition, kinds, options):
            pass
    return time.process_time() - cpu, time.perf_counter() - wall


def prepare_ceiling(root: Path, home: Path, columns: tuple[str, ...], tasks: int) -> dict[str, str]:
    """The options of a ceiling with the rows and bytes of the store."""
    options = read_options({"path": str(root), "minPartitions": str(tasks)})
    kinds = {name: columns_of(options)[0][name] for name in columns}
    counts = []
    batch: pa.RecordBatch | None = None
    for partition in plan(options):
        found = list(read_task(partition, kinds, options))
        batch = batch or found[0]
        counts.append(max(1, round(sum(b.num_rows for b in found) / batch.num_rows)))
    assert batch is not None
    path = home / f"batch-{len(columns)}.arrow"
    with pa.ipc.new_file(path, batch.schema) as file:
        file.write_batch(batch)
    ddl = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    return {"ddl": ddl, "batch": str(path), "batches": json.dumps(counts)}


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def rounds(work: dict[str, Callable[[], None]], pairs: int) -> dict[str, list[float]]:
    """Seconds of each, all in turn, after one warm round."""
    found: dict[str, list[float]] = {name: [] for name in work}
    for number in range(pairs + 1):
        for name, call in work.items():
            start = time.perf_counter()
            call()
            if number:
                found[name].append(time.perf_counter() - start)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="GiB of bodies")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    gib, pairs = (0.03, 1) if arguments.smoke else (arguments.gib, arguments.pairs)
    home = Path(tempfile.mkdtemp(prefix="spark-bench-"))
    try:
        result = measure(home, gib, pairs)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))


def measure(home: Path, gib: float, pairs: int) -> dict[str, Any]:
    count = make_store(home / "store", gib)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Ceiling)
    tasks = 2
    source = {"path": str(home / "store"), "minPartitions": str(tasks)}

    def ours(columns: tuple[str, ...]) -> DataFrame:
        kinds = columns_of(read_options(source))[0]
        ddl = ", ".join(f"{name} {kinds[name]}" for name in columns)
        return spark.read.format("rocketmq-store").schema(ddl).options(**source).load()

    assert ours(COLUMNS).count() == count
    ceilings = {
        name: prepare_ceiling(home / "store", home, columns, tasks)
        for name, columns in {"bodies": COLUMNS, "bodyless": BODYLESS}.items()
    }
    parquet = home / "parquet"
    ours(COLUMNS).write.option("compression", "none").parquet(str(parquet))
    sides: dict[str, Callable[[], DataFrame]] = {
        "ours": lambda: ours(COLUMNS),
        "ceiling": lambda: spark.read.format("ceiling").options(**ceilings["bodies"]).load(),
        "parquet": lambda: spark.read.parquet(str(parquet)),
        "ours, no bodies": lambda: ours(BODYLESS),
        "ceiling, no bodies": lambda: (
            spark.read.format("ceiling").options(**ceilings["bodyless"]).load()
        ),
    }
    result: dict[str, Any] = {"messages": count, "rows": {}}
    for action, act in {"count": lambda f: f.count(), "noop": noop}.items():
        work = {name: (lambda side=side, act=act: act(side())) for name, side in sides.items()}
        for name, seconds in rounds(work, pairs).items():
            result["rows"][f"{action}, {name}"] = seconds
            middle = statistics.median(seconds)
            print(
                f"{action:6} {name:20} {middle:7.3f} s  {count / middle / 1e6:6.2f} M rows/s  "
                f"{count * BODY / middle / 2**20:7.0f} MiB/s"
            )
    for mode in ("queue", "sequential"):
        for columns in (COLUMNS, BODYLESS):
            decoder_cpu(home / "store", columns, mode)
            cpu, wall = decoder_cpu(home / "store", columns, mode)
            size = count * BODY / GIB
            name = f"decoder, {mode}, {'with' if columns is COLUMNS else 'without'} bodies"
            result["rows"][name] = [cpu / size]
            print(f"{name}: {cpu / size:.3f} processor s a GiB, {wall / size:.3f} s")
    spark.stop()
    return result


if __name__ == "__main__":
    main()
