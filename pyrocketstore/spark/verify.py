"""Verify on Spark: check the log, the queues and the index of stores against each other."""

from pyrocketstore.spark.jobs.verify import VerifyResult, verify

__all__ = ["VerifyResult", "verify"]
