"""Reads, SQL and an export over Spark Connect with the server that pip installs.

Run as a program with an empty directory: prints each entry that works, and a traceback for one
that does not.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyrocketstore
from pyrocketstore.spark import FORMAT, register
from pyrocketstore.spark.pipeline import export, read_lake

COUNT = 30
WRITTEN = "topic string, body binary"


def make_store(root: Path) -> None:
    """Make a store of COUNT messages."""
    with pyrocketstore.open(root, preset="small") as store:
        for number in range(COUNT):
            store.put("t", b"%d" % number, tags="a", keys=f"k{number}")


class Entries:
    """The calls, over one session."""

    def __init__(self, spark: Any, home: Path) -> None:
        self.spark = spark
        self.home = home
        self.root = home / "store"
        make_store(self.root)
        register(spark)

    def _loaded(self, **options: str) -> Any:
        reader = self.spark.read.format(FORMAT)
        return reader.options(**options).load(str(self.root))

    def read(self) -> None:
        """Each view, with a schema of the query too."""
        for view in ("messages", "commitlog", "consumequeue", "index"):
            assert self._loaded(view=view).count() >= COUNT, view
        assert self._loaded(view="files").count() >= 3
        reader = self.spark.read.format(FORMAT).schema("body binary, topic string")
        rows = reader.option("subExpression", "a").load(str(self.root)).collect()
        assert sorted(int(bytes(row.body)) for row in rows) == list(range(COUNT))

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


def main(home: Path) -> int:
    """Call each entry; return the count of those that do not work."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    failed = 0
    try:
        entries = Entries(spark, home)
        for name in [name for name in vars(Entries) if not name.startswith("_")]:
            call: Callable[[], None] = getattr(entries, name)
            try:
                call()
                print(f"{name}: works", flush=True)
            except Exception:  # noqa: BLE001
                failed += 1
                print(f"{name}: {traceback.format_exc()}", flush=True)
    finally:
        spark.stop()
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(Path(sys.argv[1]))))
