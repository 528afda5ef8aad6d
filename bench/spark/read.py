"""Measure reading a store through Spark (`make bench-spark`).

Compare it with two other sources of the same rows in the same run: one that returns a finished
Arrow batch (the ceiling), and Spark's own Parquet reader.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import pyrocketstore
from bench.spark.session import Round, median_seconds, noop, rounds, session, speedups
from pyrocketstore.spark.options import read_options
from pyrocketstore.spark.plan.batch import plan
from pyrocketstore.spark.read.worker import read_task
from pyrocketstore.spark.schemas import columns_of

GIB = 1 << 30
BODY = 1024
#: Columns that all sources return.
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
TASKS = 2
PARQUET = "Spark's Parquet reader"


class Ceiling(DataSource):
    """A source that returns one finished batch repeatedly."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return self.options["ddl"]

    def reader(self, schema: Any) -> DataSourceReader:
        return CeilingReader(dict(self.options))


class CeilingReader(DataSourceReader):
    """Return as many tasks, batches, rows and bytes as the store has."""

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
    """Write a store with about so many GiB of bodies; return the number of messages."""
    count = int(gib * GIB / BODY)
    random = np.random.default_rng(42)
    with pyrocketstore.open(root, message_index_enable=False) as store:
        for first in range(0, count, 16384):
            numbers = range(first, min(first + 16384, count))
            # All bodies differ: Parquet would store equal ones only once.
            bodies = random.bytes(len(numbers) * BODY)
            store.put_many(
                f"topic-{first // 16384 % 4}",
                [bodies[at : at + BODY] for at in range(0, len(bodies), BODY)],
                queue_ids=first // 65536 % 4,
                tags=["tag"] * len(numbers),
                keys=[f"key-{n}" for n in numbers],
            )
    return count


def decoder_cpu(root: Path, columns: tuple[str, ...], mode: str) -> float:
    """Return the processor seconds of decoding the store once in this process."""
    options = read_options({"path": str(root), "readMode": mode})
    kinds = {name: columns_of(options)[0][name] for name in columns}
    planned = plan(options)
    start = time.process_time()
    for partition in planned.tasks:
        for _ in read_task(partition, kinds, options, planned.common):
            pass
    return time.process_time() - start


def prepare_ceiling(root: Path, home: Path, columns: tuple[str, ...], tasks: int) -> dict[str, str]:
    """Return the options of a ceiling with the rows and bytes of the store."""
    options = read_options({"path": str(root), "minPartitions": str(tasks)})
    kinds = {name: columns_of(options)[0][name] for name in columns}
    counts = []
    batch: pa.RecordBatch | None = None
    planned = plan(options)
    for partition in planned.tasks:
        found = list(read_task(partition, kinds, options, planned.common))
        batch = batch or found[0]
        counts.append(max(1, round(sum(b.num_rows for b in found) / batch.num_rows)))
    assert batch is not None
    path = home / f"batch-{len(columns)}.arrow"
    with pa.ipc.new_file(path, batch.schema) as file:
        file.write_batch(batch)
    ddl = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    return {"ddl": ddl, "batch": str(path), "batches": json.dumps(counts)}


def ratio(found: dict[str, list[Round]], one: str, other: str) -> str:
    """Return how many times as fast `one` is: the median over pairs, the smallest, the largest."""
    pairs = speedups(found[one], found[other])
    return f"{statistics.median(pairs):.2f} ({min(pairs):.2f}-{max(pairs):.2f})"


def frame_of(spark: SparkSession, root: Path, columns: tuple[str, ...]) -> DataFrame:
    source = {"path": str(root), "minPartitions": str(TASKS)}
    kinds = columns_of(read_options(source))[0]
    ddl = ", ".join(f"{name} {kinds[name]}" for name in columns)
    return spark.read.format("rocketmq-store").schema(ddl).options(**source).load()


def _ratio_rows(action: str, found: dict[str, list[Round]]) -> Iterator[str]:
    compared = (
        ("ours ÷ ceiling", "ours", "ceiling", "0.8"),
        ("ours ÷ Spark's Parquet reader", "ours", PARQUET, "1.0"),
        ("ours without bodies ÷ ours with bodies", "ours, no bodies", "ours", "4"),
        ("ceiling ÷ Spark's Parquet reader", "ceiling", PARQUET, ""),
        ("ceiling without bodies ÷ ceiling with bodies", "ceiling, no bodies", "ceiling", ""),
    )  # fmt: skip
    for what, one, other, goal in compared:
        yield f"| {action} | {what} | {ratio(found, one, other)} | {goal} |"


def measure(home: Path, gib: float, pairs: int) -> Iterator[str]:
    """Yield the lines of the tables."""
    root = home / "store"
    count = make_store(root, gib)
    size = count * BODY / GIB
    spark = session(2)
    spark.dataSource.register(Ceiling)
    assert frame_of(spark, root, COLUMNS).count() == count
    ceilings = {
        columns: prepare_ceiling(root, home, columns, TASKS) for columns in (COLUMNS, BODYLESS)
    }
    parquet = str(home / "parquet")
    frame_of(spark, root, COLUMNS).write.option("compression", "none").parquet(parquet)
    sides: dict[str, Callable[[], DataFrame]] = {
        "ours": lambda: frame_of(spark, root, COLUMNS),
        "ceiling": lambda: spark.read.format("ceiling").options(**ceilings[COLUMNS]).load(),
        PARQUET: lambda: spark.read.parquet(parquet),
        "ours, no bodies": lambda: frame_of(spark, root, BODYLESS),
        "ceiling, no bodies": lambda: (
            spark.read.format("ceiling").options(**ceilings[BODYLESS]).load()
        ),
    }
    yield f"{count:,} messages with bodies of {BODY} bytes; {len(COLUMNS)} columns of the messages"
    yield f"view; Spark with local[2]; medians of {pairs} rounds, alternating."
    yield ""
    yield "| action | source | s | M rows/s | MiB/s of bodies | CPU s/GiB |"
    yield "|---|---|---|---|---|---|"
    ratios = []
    for action, act in {"count": lambda f: f.count(), "noop": noop}.items():
        work = {name: (lambda side=side, act=act: act(side())) for name, side in sides.items()}
        found = rounds(work, pairs)
        for name, each in found.items():
            middle = median_seconds(each)
            cpu = statistics.median(r.cpu for r in each)
            yield (
                f"| {action} | {name} | {middle:.3f} | {count / middle / 1e6:.2f} | "
                f"{size * 1024 / middle:,.0f} | {cpu / size:.2f} |"
            )
        ratios += _ratio_rows(action, found)
    yield ""
    yield "| action | ratio | measured | goal |"
    yield "|---|---|---|---|"
    yield from ratios
    yield ""
    yield "| decoder alone, in one process | CPU s/GiB of bodies | goal |"
    yield "|---|---|---|"
    for mode in ("queue", "sequential"):
        for columns in (COLUMNS, BODYLESS):
            each = [decoder_cpu(root, columns, mode) for _ in range(pairs + 1)][1:]
            what = "with" if columns is COLUMNS else "without"
            yield f"| {mode}, {what} bodies | {statistics.median(each) / size:.3f} | 0.25 |"
    spark.stop()
    yield ""
    yield "| concurrent tasks | s | CPU s/GiB |"
    yield "|---|---|---|"
    for cores in (1, 2):
        spark = session(cores)
        work = {"ours": lambda spark=spark: noop(frame_of(spark, root, COLUMNS))}
        each = rounds(work, pairs)["ours"]
        cpu = statistics.median(r.cpu for r in each) / size
        yield f"| {cores} | {median_seconds(each):.3f} | {cpu:.2f} |"
        spark.stop()


def by_size(home: Path, sizes: Sequence[float], pairs: int) -> Iterator[str]:
    """Yield the lines of a table: cost per GiB of bodies, by the size of the store."""
    yield ""
    yield "| GiB of bodies | log files | planning, s | noop, s | MiB/s of bodies | CPU s/GiB |"
    yield "|---|---|---|---|---|---|"
    spark = session(2)
    for gib in sizes:
        root = home / f"store-{gib:g}"
        size = make_store(root, gib) * BODY / GIB
        start = time.perf_counter()
        plan(read_options({"path": str(root)}))
        planning = time.perf_counter() - start
        work = {"ours": lambda root=root: noop(frame_of(spark, root, COLUMNS))}
        each = rounds(work, pairs)["ours"]
        seconds = median_seconds(each)
        yield (
            f"| {gib:g} | {len(list((root / 'commitlog').iterdir()))} | {planning:.3f} | "
            f"{seconds:.3f} | {size * 1024 / seconds:,.0f} | "
            f"{statistics.median(r.cpu for r in each) / size:.2f} |"
        )
        shutil.rmtree(root)
    spark.stop()


def main() -> None:
    """Run the measurements that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="GiB of bodies (1)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds after the warm-up (5)")
    parser.add_argument("--sizes", default="1,4,16", help="GiB of bodies of each store (1,4,16)")
    parser.add_argument("--smoke", action="store_true", help="small sizes, as a test")
    arguments = parser.parse_args()
    gib, pairs = (0.02, 1) if arguments.smoke else (arguments.gib, arguments.rounds)
    home = Path(tempfile.mkdtemp(prefix="spark-bench-"))
    try:
        for line in measure(home, gib, pairs):
            print(line, flush=True)
        shutil.rmtree(home / "store")
        sizes = "0.01,0.02" if arguments.smoke else arguments.sizes
        for line in by_size(home, [float(size) for size in sizes.split(",") if size], pairs):
            print(line, flush=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
