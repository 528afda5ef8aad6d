"""The lines of `verify` for people: the verdict, what is lost or wrong, and what to do."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

from pyrocketstore.cli.output import time_text
from pyrocketstore.errors import StoreIOError
from pyrocketstore.record._record import HEADER_SIZE, RecordHeader
from pyrocketstore.system.env import Env
from pyrocketstore.verify.report import LostFiles, VerifyReport

#: Topics and files that the second line names, at most.
NAMED_MAX = 5


def verdict_lines(store: Any, report: VerifyReport) -> dict[str, str]:
    """Return the three lines, by name; `store` is the open store."""
    return {
        "verdict": _verdict(report),
        "lost or wrong": "; ".join(_wrong(store, report)) or "nothing",
        "to do": _remedy(report),
    }


def _verdict(report: VerifyReport) -> str:
    log = f"{report.records} records and {report.keys} keys checked"
    what = f"{report.messages} messages in queues; of the log, {log}"
    if report.ok:
        return f"the store is ok: {what}"
    if report.consistent:
        return f"the store is not complete: {what}"
    return f"the store is damaged: {report.problem_count} problems; {what}"


def _wrong(store: Any, report: VerifyReport) -> Iterator[str]:
    """Yield what is wrong: of the log by file and time, of queues by topic, then the rest."""
    lost = {each.text for each in report.lost_files}
    if lost:
        yield f"missing log files {_few([_with_range(each) for each in report.lost_files])}"
    damaged = sorted({p.path for p in report.problems if p.kind == "log" and p.text not in lost})
    if damaged:
        env = store.message_store.env
        yield f"log files {_few([_with_time(env, path) for path in damaged])}"
    root = f"{store.message_store.queue_table.path}/"
    topics: collections.Counter[str] = collections.Counter()
    for problem in report.problems:
        if problem.kind in ("queue", "ext") and problem.path.startswith(root):
            topics[problem.path.removeprefix(root).split("/")[0]] += problem.count
    if topics:
        yield f"units of {_few([f'{topic} ({count})' for topic, count in topics.most_common()])}"
    lacking = report.missing_keys + (report.not_indexed_keys or 0)
    if lacking:
        yield f"{lacking} key(s) are not in the index"
    for kind in ("index", "checkpoint", "config"):
        count = sum(problem.kind == kind for problem in report.problems)
        if count:
            yield f"{kind}: {count} problem{'' if count == 1 else 's'}"
    if report.index_unchecked:
        yield "the index was not checked"
    if report.ext_unresolved:
        yield f"the ext units of {report.ext_unresolved} units were not checked"


def _with_time(env: Env, path: str) -> str:
    """Return the name of a damaged log file, with the time of its first message if that can be
    read."""
    name = path.rpartition("/")[2]
    try:
        header = RecordHeader(env.read_part(path, 0, HEADER_SIZE))
    except StoreIOError:  # also a directory, where the log has no file: a problem of the report
        return name
    if not header.is_message:
        return name
    return f"{name} (its first message: {time_text(header.store_timestamp)})"


def _with_range(lost: LostFiles) -> str:
    """Return the names of missing log files, with the times between which their messages are."""
    times = []
    if lost.after:
        times.append(f"from {time_text(lost.after)}")
    if lost.before:
        times.append(f"to {time_text(lost.before)}")
    return f"{lost.names} (messages {' '.join(times)})" if times else lost.names


def _few(names: list[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _remedy(report: VerifyReport) -> str:
    advice = report.advice
    if not advice:
        return "nothing"
    more = len(advice) - 1
    return advice[0] + (f" (and {more} more, on standard error)" if more else "")
