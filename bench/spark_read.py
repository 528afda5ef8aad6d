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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import numpy as np  # noqa: E402
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
TASKS = 2
PARQUET = "Spark's Parquet reader"


class Round(NamedTuple):
    """Seconds of a round, and processor seconds of all processes in it."""

    seconds: float
    cpu: float


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
    random = np.random.default_rng(42)
    with pyrocketstore.open(root, message_index_enable=False) as store:
        for first in range(0, count, 16384):
            numbers = range(first, min(first + 16384, count))
            # All different: Parquet would keep one body once, and its reader read nothing.
            bodies = random.bytes(len(numbers) * BODY)
            store.put_many(
                f"topic-{first // 16384 % 4}",
                [bodies[at : at + BODY] for at in range(0, len(bodies), BODY)],
                queue_ids=first // 65536 % 4,
                tags=["tag"] * len(numbers),
                keys=[f"key-{n}" for n in numbers],
            )
    return count


def decoder_cpu(root: Path, columns: tuple[str, ...], mode: str) -> tuple[float, float]:
    """(processor s, wall s) of decoding the store once in this process."""
    options = read_options({"path": str(root), "readMode": mode})
    kinds = {name: columns_of(options)[0][name] for name in columns}
    planned = plan(options)
    wall, cpu = time.perf_counter(), time.process_time()
    for partition in planned.partitions:
        for _ in read_task(partition, kinds, options, planned.common):
            pass
    return time.process_time() - cpu, time.perf_counter() - wall


def prepare_ceiling(root: Path, home: Path, columns: tuple[str, ...], tasks: int) -> dict[str, str]:
    """The options of a ceiling with the rows and bytes of the store."""
    options = read_options({"path": str(root), "minPartitions": str(tasks)})
    kinds = {name: columns_of(options)[0][name] for name in columns}
    counts = []
    batch: pa.RecordBatch | None = None
    planned = plan(options)
    for partition in planned.partitions:
        found = list(read_task(partition, kinds, options, planned.common))
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


def tree_cpu() -> float:
    """Processor seconds of this process and of all below it, those that ended included."""
    ticks = os.sysconf("SC_CLK_TCK")
    parents: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[int(entry.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / ticks)

    def is_below(pid: int) -> bool:
        while pid in parents:
            if pid == os.getpid():
                return True
            pid = parents[pid][0]
        return False

    return sum(cpu for pid, (_, cpu) in parents.items() if is_below(pid))


def rounds(work: dict[str, Callable[[], None]], pairs: int) -> dict[str, list[Round]]:
    """Each in turn, after one warm round."""
    found: dict[str, list[Round]] = {name: [] for name in work}
    for number in range(pairs + 1):
        for name, call in work.items():
            cpu, start = tree_cpu(), time.perf_counter()
            call()
            seconds = time.perf_counter() - start
            if number:
                found[name].append(Round(seconds, tree_cpu() - cpu))
    return found


def ratio(found: dict[str, list[Round]], one: str, other: str) -> str:
    """How many times as fast `one` is as `other`: the median over pairs, and the ends."""
    pairs = zip(found[other], found[one], strict=True)
    ratios = [theirs.seconds / ours.seconds for theirs, ours in pairs]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def session(cores: int) -> SparkSession:
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def frame_of(spark: SparkSession, root: Path, columns: tuple[str, ...]) -> DataFrame:
    source = {"path": str(root), "minPartitions": str(TASKS)}
    kinds = columns_of(read_options(source))[0]
    ddl = ", ".join(f"{name} {kinds[name]}" for name in columns)
    return spark.read.format("rocketmq-store").schema(ddl).options(**source).load()


def _ratio_rows(action: str, found: dict[str, list[Round]]) -> Iterator[str]:
    compared = (
        ("ours over the ceiling", "ours", "ceiling", "0.8"),
        ("ours over Spark's Parquet reader, all columns", "ours", PARQUET, "1.0"),
        ("ours without bodies over ours with them", "ours, no bodies", "ours", "4"),
        ("the ceiling over Spark's Parquet reader", "ceiling", PARQUET, ""),
        ("the ceiling without bodies over the ceiling with them", "ceiling, no bodies", "ceiling",
         ""),
    )  # fmt: skip
    for what, one, other, goal in compared:
        yield f"| {action} | {what} | {ratio(found, one, other)} | {goal} |"


def measure(home: Path, gib: float, pairs: int) -> Iterator[str]:
    """The lines of the tables."""
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
    yield f"The messages view, {count:,} messages with bodies of {BODY} bytes, local[2], "
    yield f"{len(COLUMNS)} columns; medians of {pairs} rounds, all in turn."
    yield ""
    yield "| action | side | s | M rows/s | MiB/s of bodies | CPU s a GiB |"
    yield "|---|---|---|---|---|---|"
    ratios = []
    for action, act in {"count": lambda f: f.count(), "noop": noop}.items():
        work = {name: (lambda side=side, act=act: act(side())) for name, side in sides.items()}
        found = rounds(work, pairs)
        for name, each in found.items():
            middle = statistics.median(r.seconds for r in each)
            cpu = statistics.median(r.cpu for r in each)
            yield (
                f"| {action} | {name} | {middle:.3f} | {count / middle / 1e6:.2f} | "
                f"{size * 1024 / middle:,.0f} | {cpu / size:.2f} |"
            )
        ratios += _ratio_rows(action, found)
    yield ""
    yield "| action | ratio | found | goal |"
    yield "|---|---|---|---|"
    yield from ratios
    yield ""
    yield "| decoder alone, in one process | CPU s a GiB of bodies | goal |"
    yield "|---|---|---|"
    for mode in ("queue", "sequential"):
        for columns in (COLUMNS, BODYLESS):
            each = [decoder_cpu(root, columns, mode)[0] for _ in range(pairs + 1)][1:]
            what = "with" if columns is COLUMNS else "without"
            yield f"| {mode}, {what} bodies | {statistics.median(each) / size:.3f} | 0.25 |"
    spark.stop()
    yield ""
    yield "| tasks at a time | s | CPU s a GiB |"
    yield "|---|---|---|"
    for cores in (1, 2):
        spark = session(cores)
        work = {"ours": lambda spark=spark: noop(frame_of(spark, root, COLUMNS))}
        each = rounds(work, pairs)["ours"]
        cpu = statistics.median(r.cpu for r in each) / size
        yield f"| {cores} | {statistics.median(r.seconds for r in each):.3f} | {cpu:.2f} |"
        spark.stop()


def by_size(home: Path, sizes: Sequence[float], pairs: int) -> Iterator[str]:
    """The lines of a table: what a GiB costs in stores of some sizes (GiB of bodies)."""
    yield ""
    yield "| GiB of bodies | log files | planning, s | noop, s | MiB/s of bodies | CPU s a GiB |"
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
        seconds = statistics.median(r.seconds for r in each)
        yield (
            f"| {gib:g} | {len(list((root / 'commitlog').iterdir()))} | {planning:.3f} | "
            f"{seconds:.3f} | {size * 1024 / seconds:,.0f} | "
            f"{statistics.median(r.cpu for r in each) / size:.2f} |"
        )
        shutil.rmtree(root)
    spark.stop()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="GiB of bodies (1)")
    parser.add_argument("--rounds", type=int, default=5, help="that count (5)")
    parser.add_argument("--sizes", default="1,4,16", help="GiB of bodies of stores of some sizes")
    parser.add_argument("--smoke", action="store_true", help="only see that it runs")
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
