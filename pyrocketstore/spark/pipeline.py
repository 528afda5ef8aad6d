"""Bulk export of stores to a Parquet lake, and the way back into Spark."""

from pyrocketstore.spark.lake.export import (
    COMPRESSIONS,
    EXPORT_OPTIONS,
    ExportReport,
    export,
    is_lake,
    read_lake,
    read_manifest,
)

__all__ = [
    "COMPRESSIONS",
    "EXPORT_OPTIONS",
    "ExportReport",
    "export",
    "is_lake",
    "read_lake",
    "read_manifest",
]
