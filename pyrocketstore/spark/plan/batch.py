"""Plan a batch: open each store, and divide the selected rows into tasks."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyrocketstore.spark.options import SourceOptions
from pyrocketstore.spark.plan.files import list_files
from pyrocketstore.spark.plan.open_snapshot import open_snapshot, retried
from pyrocketstore.spark.plan.snapshot import StoreSnapshot
from pyrocketstore.spark.plan.task_splitting import (
    check_selection,
    combined,
    plan_commit_log,
    plan_consume_queues,
    plan_index,
    plan_messages,
)
from pyrocketstore.spark.task_types import StoreTask

#: Fields whose values several tasks share: the plan has such a value once.
COMMON_FIELDS = ("log_files", "ranges")


class Plan(NamedTuple):
    """The tasks of a batch, and the field values that several of them share."""

    tasks: list[StoreTask]
    common: tuple[tuple[Any, ...], ...]


def plan(options: SourceOptions) -> Plan:
    """Return the tasks of all stores, each with the ranges that its store has now.

    Raises DataLossError where a store has lost files and that matters; StoreFormatError,
    StoreCorruptionError, StoreIOError.
    """
    return retried(lambda: _plan_once(options))


def _plan_once(options: SourceOptions) -> Plan:
    snapshots: list[StoreSnapshot] = []
    found: list[tuple[str, Any]] = []
    try:
        for place in options.places:
            snapshots.append(open_snapshot(place, options, options.named_topics()))
        check_selection(snapshots, options)
        for snapshot in snapshots:
            name = snapshot.place.broker_name
            tasks: list[Any]
            if options.view == "files":
                tasks = [list_files(snapshot)]
            else:
                planner = {
                    "messages": plan_messages,
                    "commitlog": plan_commit_log,
                    "consumequeue": plan_consume_queues,
                    "index": plan_index,
                }[options.view]
                tasks = combined(planner(snapshot, options), options)
            found += [(name, task) for task in tasks]
    finally:
        for snapshot in snapshots:
            snapshot.close()
    return _shared(found)


def _shared(tasks: Sequence[tuple[str, Any]]) -> Plan:
    """Factor out field values that several tasks share."""
    fields = [
        {n: v for n in COMMON_FIELDS if isinstance(v := getattr(task, n, None), tuple) and v}
        for _, task in tasks
    ]
    uses = Counter(id(value) for found in fields for value in found.values())
    numbers: dict[int, int] = {}
    common: list[tuple[Any, ...]] = []
    planned = []
    for (broker_name, task), found in zip(tasks, fields, strict=True):
        taken: dict[str, int] = {}
        for name, value in found.items():
            if uses[id(value)] > 1:
                if id(value) not in numbers:
                    numbers[id(value)] = len(common)
                    common.append(value)
                taken[name] = numbers[id(value)]
        rest = dataclasses.replace(task, **dict.fromkeys(taken, ())) if taken else task
        planned.append(StoreTask(broker_name, rest, taken))
    return Plan(planned, tuple(common))
