"""Exports whose tasks run in this process, from pickles, instead of on Spark."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyrocketstore.spark.lake import export as pipeline
from pyrocketstore.spark.lake.writer import write_task
from pyrocketstore.spark.pipeline import ExportReport


def run_here(spark: object, tasks: Any, options: Any) -> None:
    """Write the tasks of an export, instead of its `_run_tasks`."""
    for task in tasks:
        write_task(*pickle.loads(pickle.dumps((task, options))))


def export(stores: Any, out: Path, **options: object) -> ExportReport:
    """Export as `pipeline.export` does, for a Spark of two cores that is never called."""
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    return pipeline.export(spark, stores, out, **options)
