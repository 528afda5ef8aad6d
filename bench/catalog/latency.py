"""Latencies of single puts."""

from __future__ import annotations

from bench.catalog.put import PUT_THREADS, RECORD_1K
from bench.catalog.sync import JAVA_SYNC, LOCK, LOCKED, OURS_SYNC, SPINS, WAITS
from bench.model import Group, Options, Variant, java, ours

JAVA_TIMED = "each putMessage timed with System.nanoTime"
OURS_TIMED = "each Store.put timed with perf_counter_ns"
PACED = "; the loop sleeps for a millisecond when it is ahead of its pace"
FULL_SPEED: Options = {"what": "latency", "body": 1024}
PACED_PUT: Options = {**FULL_SPEED, "pace": 20_000}
JAVA_WAITS: Options = {**JAVA_SYNC, "what": "latency"}
OURS_WAITS: Options = {**OURS_SYNC, "what": "latency"}
MANY: Options = {"threads": 64}
MANY_PUT = "64 put + dispatch"


def _group(name: str, what: str, variants: tuple[Variant, ...], count: int, smoke: int) -> Group:
    title = f"Latency of a put, 1 KiB, {what}"
    return Group(name, title, variants, count, smoke, record=RECORD_1K, shows_latency=True)


LATENCY_GROUPS = (
    _group(
        "latency",
        "async flush, one thread at full speed",
        (
            java(FULL_SPEED, PUT_THREADS, JAVA_TIMED),
            ours("put", FULL_SPEED, PUT_THREADS, OURS_TIMED),
        ),
        1_000_000,
        2_000,
    ),
    _group(
        "latency_paced",
        "async flush, one thread, 20,000 puts a second for a minute",
        (
            java(PACED_PUT, PUT_THREADS, JAVA_TIMED + PACED),
            ours("put", PACED_PUT, PUT_THREADS, OURS_TIMED + PACED),
        ),
        1_200_000,
        200,
    ),
    _group(
        "latency_sync",
        "sync flush, one thread",
        (
            java(JAVA_WAITS, PUT_THREADS, JAVA_TIMED),
            ours("put", OURS_WAITS, PUT_THREADS, OURS_TIMED),
        ),
        4_000,
        20,
    ),
    _group(
        "latency_sync64",
        "sync flush, 64 putting threads",
        (
            java({**JAVA_WAITS, **MANY}, MANY_PUT, JAVA_TIMED + SPINS),
            ours("put", {**OURS_WAITS, **MANY}, MANY_PUT, OURS_TIMED),
            java({**JAVA_WAITS, **LOCK, **MANY}, MANY_PUT, JAVA_TIMED + WAITS, LOCKED),
        ),
        60_000,
        128,
    ),
)
