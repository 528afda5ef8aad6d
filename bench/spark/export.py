"""Compare bulk export to Parquet with `df.write.parquet` of the same rows, in one run.

Both read one store with the data source's decoder. `export` writes the files in the Python
workers; `df.write.parquet` passes the rows through the JVM. The limit is a job whose tasks write
as many bytes as the export's files have, and fsync them.

    python -m bench.spark.export [--smoke] [--gib 1] [--rounds 5]
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.spark.read import TASKS, make_store
from bench.spark.session import rounds, session
from pyrocketstore.spark import FORMAT, register
from pyrocketstore.spark.pipeline import export, read_lake


def write_bytes(batches: Iterator, out: str, size: int) -> Iterator:
    """Write a file of `size` bytes for each row and fsync it."""
    chunk = memoryview(os.urandom(1 << 20))
    for batch in batches:
        for number in batch.column(0).to_pylist():
            with open(f"{out}/{number}", "wb", buffering=0) as file:
                for at in range(0, size, len(chunk)):
                    file.write(chunk[: size - at])
                os.fsync(file.fileno())
        yield batch


def main() -> None:
    """Run the measurement and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gib", type=float, default=1.0, help="GiB of bodies (1)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds after the warm-up (5)")
    parser.add_argument("--smoke", action="store_true", help="small sizes, as a test")
    parser.add_argument("--home", type=Path, help="where store and lake go (a temporary directory)")
    arguments = parser.parse_args()
    gib, pairs = (0.03, 1) if arguments.smoke else (arguments.gib, arguments.rounds)
    if shutil.which("java") is None:
        sys.exit("Spark requires Java; no `java` command was found")
    with tempfile.TemporaryDirectory(prefix="rocketstore-export-", dir=arguments.home) as folder:
        for line in compare(Path(folder), gib, pairs):
            print(line)


def compare(home: Path, gib: float, pairs: int) -> Iterator[str]:
    """Yield the lines of the table: each way in turn, medians."""
    spark = session(TASKS)
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

    def raw_bytes() -> None:
        out.mkdir()
        size = int(sizes["export none"] * (1 << 20)) // TASKS
        work = functools.partial(write_bytes, out=str(out), size=size)
        spark.range(0, TASKS, 1, TASKS).mapInArrow(work, "id long").collect()

    ways = {
        "export zstd": lambda: bulk(),
        "write.parquet zstd": lambda: through_the_jvm("zstd"),
        "export none": lambda: bulk(compression="none"),
        "write.parquet none": lambda: through_the_jvm("none"),
        "raw bytes": raw_bytes,
    }
    sizes: dict[str, float] = {}

    def check(name: str, number: int) -> None:
        if number == 0 and "export" in name and read_lake(spark, out).count() != count:
            sys.exit(f"{name}: the lake does not have {count} rows")
        files = (path for path in out.rglob("*") if path.is_file())
        sizes[name] = sum(path.stat().st_size for path in files) / (1 << 20)

    taken = rounds(ways, pairs, lambda: shutil.rmtree(out, ignore_errors=True), check)
    spark.stop()
    yield f"{count:,} messages, {gib:g} GiB of bodies; medians of {pairs} rounds, alternating."
    yield ""
    yield "| way | MiB/s of bodies | Python CPU s/GiB | JVM CPU s/GiB | MiB of files |"
    yield "|---|---|---|---|---|"
    for name, runs in taken.items():
        seconds, _, python, java = map(statistics.median, zip(*runs, strict=True))
        yield (
            f"| {name} | {gib * 1024 / seconds:,.0f} | {python / gib:.2f} | {java / gib:.2f} | "
            f"{sizes[name]:,.0f} |"
        )


if __name__ == "__main__":
    main()
