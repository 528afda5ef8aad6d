"""The answers that are known in advance (README.md, "Protocol"), and their comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.model import Group, Variant, worker_name
from bench.sizes import Sizes
from bench.workers.process import BenchError
from bench.workers.workload import RECORD_SIZE

TAG_SIZE = len("TagA")


def compare(
    sizes: Sizes, group: Group, taking: Sequence[Variant], answers: Sequence[Mapping[str, Any]]
) -> None:
    """Raise BenchError if a variant gave a wrong answer."""
    for variant, answer in zip(taking, answers, strict=True):
        who = worker_name(group, variant)
        wanted = expected(sizes, group, variant)
        if wanted is not None and answer["answer"] != wanted:
            raise BenchError(f"{who}: answer {answer['answer']}, expected {wanted}")
        # Only 4.9.3 and ours report the log's size, and only if a unit of work creates a new store.
        log = sizes.count(group, variant) * group.record
        if group.record and answer.get("log", log) != log:
            raise BenchError(f"{who}: {answer['log']} bytes of records, expected {log}")


def expected(sizes: Sizes, group: Group, variant: Variant) -> int | None:
    """Return the answer that a variant must give (see README.md); None if it is not known."""
    if not variant.answers:
        return None
    what = variant.options.get("what")
    count = sizes.count(group, variant)
    if what in {"get", "get_checked"}:  # tags twice, keys k0, k1...
        stored = sizes.stored(group, variant)
        return sum((2 * TAG_SIZE + 1 + digits) * many for digits, many in _digits(stored))
    if what in {"get_columns", "scan", "rebuild", "recover"}:
        return sizes.stored(group, variant)
    if what == "index_put":  # the physical offset of the last key
        return (count - 1) * RECORD_SIZE
    reads_hits = what in {"query", "query_checked", "query_many_messages"}
    if reads_hits and "places" not in variant.options:
        return count * (2 * TAG_SIZE + 1)
    return count


def _digits(count: int) -> Iterator[tuple[int, int]]:
    """Yield (digits, how many of the numbers below `count` have so many digits)."""
    for digits in range(1, len(str(count)) + 1):
        first = 10 ** (digits - 1) if digits > 1 else 0
        if first < count:
            yield digits, min(count, 10**digits) - first
