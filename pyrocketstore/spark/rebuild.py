"""Rebuild on Spark: queues and index of a store, from its commit log, in a new directory."""

from pyrocketstore.spark.jobs.rebuild import RebuildReport, Skipped, rebuild

__all__ = ["RebuildReport", "Skipped", "rebuild"]
