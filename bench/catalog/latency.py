"""Latencies of single puts."""

from __future__ import annotations

from bench.catalog.put import PUT_THREADS, RECORD_1K
from bench.catalog.sync import JAVA_SYNC, LOCK, LOCKED, OURS_SYNC, SPINS, WAITS
from bench.model import Group, Options, java, ours

JAVA_TIMED = "each putMessage timed with System.nanoTime"
OURS_TIMED = "each Store.put timed with perf_counter_ns"
PACE: Options = {"pace": 20_000}
PACED = "; the loop sleeps for a millisecond when it is ahead of its pace"
LATENCY_GROUPS = (
    Group(
        "latency",
        "Latency of a put, 1 KiB, async flush, one thread at full speed",
        (
            java({"what": "latency", "body": 1024}, PUT_THREADS, JAVA_TIMED),
            ours("put", {"what": "latency", "body": 1024}, PUT_THREADS, OURS_TIMED),
        ),
        count=1_000_000,
        smoke=2_000,
        record=RECORD_1K,
        shows_latency=True,
    ),
    Group(
        "latency_paced",
        "Latency of a put, 1 KiB, async flush, one thread, 20,000 puts a second for a minute",
        (
            java({"what": "latency", "body": 1024, **PACE}, PUT_THREADS, JAVA_TIMED + PACED),
            ours("put", {"what": "latency", "body": 1024, **PACE}, PUT_THREADS, OURS_TIMED + PACED),
        ),
        count=1_200_000,
        smoke=200,
        record=RECORD_1K,
        shows_latency=True,
    ),
    Group(
        "latency_sync",
        "Latency of a put, 1 KiB, sync flush, one thread",
        (
            java({**JAVA_SYNC, "what": "latency"}, PUT_THREADS, JAVA_TIMED),
            ours("put", {**OURS_SYNC, "what": "latency"}, PUT_THREADS, OURS_TIMED),
        ),
        count=4_000,
        smoke=20,
        record=RECORD_1K,
        shows_latency=True,
    ),
    Group(
        "latency_sync64",
        "Latency of a put, 1 KiB, sync flush, 64 putting threads",
        (
            java(
                {**JAVA_SYNC, "what": "latency", "threads": 64},
                "64 put + dispatch",
                JAVA_TIMED + SPINS,
            ),
            ours(
                "put",
                {**OURS_SYNC, "what": "latency", "threads": 64},
                "64 put + dispatch",
                OURS_TIMED,
            ),
            java(
                {**JAVA_SYNC, **LOCK, "what": "latency", "threads": 64},
                "64 put + dispatch",
                JAVA_TIMED + WAITS,
                LOCKED,
            ),
        ),
        count=60_000,
        smoke=128,
        record=RECORD_1K,
        shows_latency=True,
    ),
)
