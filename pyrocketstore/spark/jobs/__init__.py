"""Jobs over messages and stores: reports, verify and rebuild.

This package exports the reports: functions from a DataFrame of messages to a DataFrame.
`pyrocketstore.spark.verify` and `pyrocketstore.spark.rebuild` are the public names of the others.

The names are loaded on first use, because executors import modules of this folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrocketstore.spark.jobs.reports import (
        JOB_COLUMNS,
        JOBS,
        duplicates,
        key_frequency,
        latency,
        retries,
        traffic,
    )

__all__ = ["JOBS", "JOB_COLUMNS", "duplicates", "key_frequency", "latency", "retries", "traffic"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyrocketstore.spark.jobs import reports

    return getattr(reports, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
