"""Bulk export to Parquet beside `df.write.parquet` of the same rows, in one run.

Both read the same store with the data source's decoder; the one writes the files where it decodes,
the other sends the rows through the JVM. Processor time is told for the Python workers and for the
JVM, in seconds for a GiB of bodies. The limit is beside: as many bytes as the export has in its
files, written by as many tasks of Spark and forced, with nothing read or made.

    python bench/spark_export.py [--smoke] [--gib 1] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import SparkSession  # noqa: E402

from pyrocketstore.spark import FORMAT, register  # noqa: E402
from pyrocketstore.spark.pipeline import export, read_lake  # noqa: E402
from spark_read import TASKS, make_store  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> dict[str, float]:
    """Processor time so far of the processes below this one: python (workers) and java."""
    parents, spent, names = {}, {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, tail = path.read_text().rsplit(")", 1)
        except OSError:  # it has ended meanwhile
            continue
        fields = tail.split()
        pid = int(path.parent.name)
        parents[pid], names[pid] = int(fields[1]), head.partition("(")[2]
        spent[pid] = sum(map(int, fields[11:15])) / TICKS
    below, found = {os.getpid()}, {"python": 0.0, "java": 0.0}
    while True:
        fresh = {pid for pid, parent in parents.items() if parent in below} - below
        if not fresh:
            break
        below |= fresh
    for pid in below - {os.getpid()}:
        kind = "java" if names[pid].startswith("java") else "python"
        found[kind] += spent[pid]
    return found


def write_bytes(batches: Iterator, out: str, size: int) -> Iterator:
    """Write a file of `size` bytes for each row, and force it."""
    piece = memoryview(os.urandom(1 << 20))
    for batch in batches:
        for number in batch.column(0).to_pylist():
            with open(f"{out}/{number}", "wb", buffering=0) as file:
                for at in range(0, size, len(piece)):
                    file.write(piece[: size - at])
                os.fsync(file.fileno())
        yield batch


def measure(call: Callable[[], None]) -> dict[str, float]:
    """Seconds, and processor seconds by kind of process, of one call."""
    before, start = cpu_seconds(), time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    after = cpu_seconds()
    return {"seconds": seconds, **{kind: after[kind] - before[kind] for kind in before}}


def main() -> None:
    """Measure, print, and write JSON if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gib", type=float, default=1.0, help="GiB of bodies")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="small: does it still run, and agree?")
    parser.add_argument("--home", type=Path, help="where store and lake go (a temporary directory)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    gib, rounds = (0.03, 1) if arguments.smoke else (arguments.gib, arguments.rounds)
    if shutil.which("java") is None:
        sys.exit("Spark needs a java, and there is none")
    with tempfile.TemporaryDirectory(prefix="rocketstore-export-", dir=arguments.home) as folder:
        found = compare(Path(folder), gib, rounds)
    for name, values in found["ways"].items():
        print(
            f"{name:<18} {values['mib_s']:8.0f} MiB/s   Python {values['python_s_gib']:5.2f} and "
            f"JVM {values['java_s_gib']:5.2f} processor s/GiB   files {values['file_mib']:7.0f} MiB"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


def compare(home: Path, gib: float, rounds: int) -> dict:
    """Each way in turn, after one warm round; medians."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
    }
    spark = SparkSession.builder.master(f"local[{TASKS}]").config(map=settings).getOrCreate()
    register(spark)
    count = make_store(home / "store", gib)
    out = home / "out"

    def bulk(**options: object) -> None:
        report = export(spark, home / "store", out, **options)
        if report.rows != count:
            sys.exit(f"export wrote {report.rows} of {count} rows")

    def through_the_jvm(codec: str) -> None:
        source = spark.read.format(FORMAT).option("verifyCrc", "true").load(str(home / "store"))
        writer = source.write.option("compression", codec).partitionBy("topic")
        writer.parquet(str(out / "messages"))

    def bytes_alone() -> None:
        out.mkdir()
        size = int(sizes["export none"] * (1 << 20)) // TASKS
        work = functools.partial(write_bytes, out=str(out), size=size)
        spark.range(0, TASKS, 1, TASKS).mapInArrow(work, "id long").collect()

    ways = {
        "export zstd": lambda: bulk(),
        "write.parquet zstd": lambda: through_the_jvm("zstd"),
        "export none": lambda: bulk(compression="none"),
        "write.parquet none": lambda: through_the_jvm("none"),
        "bytes alone": bytes_alone,
    }
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    sizes: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, way in ways.items():
            shutil.rmtree(out, ignore_errors=True)
            values = measure(way)
            if number:
                taken[name].append(values)
            elif "export" in name and read_lake(spark, out).count() != count:
                sys.exit(f"{name}: the lake has other rows")
            files = (path for path in out.rglob("*") if path.is_file())
            sizes[name] = sum(path.stat().st_size for path in files) / (1 << 20)
    spark.stop()
    found = {}
    for name, runs in taken.items():
        median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        found[name] = {
            "mib_s": gib * 1024 / median["seconds"],
            "python_s_gib": median["python"] / gib,
            "java_s_gib": median["java"] / gib,
            "file_mib": sizes[name],
        }
    return {"gib": gib, "rounds": rounds, "messages": count, "ways": found}


if __name__ == "__main__":
    main()
