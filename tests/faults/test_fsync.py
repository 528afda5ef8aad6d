"""Goal: after any failed fsync the store acknowledges no message, makes nothing durable, and
reports the failure to each put, flush and close. The messages acknowledged before survive a power
cut, also after the store was opened again over the same page cache. A process without a free
descriptor works again once it has one.
Method: random programs on a simulated device whose n-th fsync fails once, as in the kernel
(device.py). The surviving images are compared with a journal (judge.py).

ROCKETSTORE_SOAK_FSYNC=N runs N programs with a fault. Each run has a new seed, which it prints;
ROCKETSTORE_SEED repeats the run, and ROCKETSTORE_FAULT=NAME repeats the one that a failure names.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from campaign import ONLY, memory_directory
from fsync_runs import Run
from pyrocketstore.consume_queue import retries
from pyrocketstore.index import index_service
from pyrocketstore.recovery import repair
from support.seed import SEED

RUNS = int(os.environ.get("ROCKETSTORE_SOAK_FSYNC", "0"))
#: Number of runs with a fault in `make test`, and of one program.
SOME = 30
OF_A_PROGRAM = 5
#: Number of consecutive failing opens.
LENGTHS = (1, 2, 5, 20, 60)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try repairs after milliseconds."""
    monkeypatch.setattr(retries, "RETRY_INTERVAL_S", 0.001)
    monkeypatch.setattr(index_service, "RETRY_INTERVAL_MS", 1)
    monkeypatch.setattr(index_service, "RETRY_BACKOFF_MS", 1)
    monkeypatch.setattr(repair, "REPAIR_INTERVAL_MS", 10)


def run(path: Path, name: str, counts: Counter[str]) -> None:
    """Run a name: PROGRAM/fNUMBER for an fsync, PROGRAM/oFIRST-COUNT for opens."""
    seed, _, fault = name.rpartition("/")
    if fault.startswith("f"):
        Run(path, seed, name, counts).fail(int(fault[1:]))
    else:
        first, _, count = fault[1:].partition("-")
        Run(path, seed, name, counts).refuse_opens(int(first), int(count))


def runs(path: Path, counts: Counter[str], some: int, names: Callable[..., list[str]]) -> None:
    """Run programs until `some` of their runs had a fault."""
    number = 0
    while counts["runs"] < (RUNS or some):
        seed = f"{SEED}-{number}"
        number += 1
        counts["programs"] += 1
        rng = random.Random(seed)
        for name in names(seed, rng, *Run(path, seed, seed, counts).count_calls()):
            run(path, name, counts)


def failing_fsyncs(
    seed: str, rng: random.Random, syncs: int, together: list[int], opens: int
) -> list[str]:
    """Return each fsync of a program in the soak, else some of them and one syncfs."""
    some = rng.sample(range(1, syncs + 1), min(OF_A_PROGRAM, syncs))
    some += rng.sample(together, min(1, len(together)))
    return [f"{seed}/f{number}" for number in (range(1, syncs + 1) if RUNS else some)]


def failing_opens(
    seed: str, rng: random.Random, syncs: int, together: list[int], opens: int
) -> list[str]:
    """Return short and long periods without a free descriptor."""
    return [f"{seed}/o{rng.randrange(1, opens + 1)}-{rng.choice(LENGTHS)}" for _ in range(3)]


def print_counts(counts: Counter[str]) -> None:
    print(f"seed {SEED}\n" + "\n".join(f"{n:8} {what}" for what, n in sorted(counts.items())))


@pytest.mark.timeout(120 + RUNS)
def test_a_failed_fsync_is_final(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    with memory_directory(tmp_path) as path:
        if ONLY:
            run(path, ONLY, counts)
        else:
            runs(path, counts, SOME, failing_fsyncs)
    print_counts(counts)


@pytest.mark.timeout(120 + RUNS)
@pytest.mark.skipif(bool(ONLY), reason="the other test runs it")
def test_opens_that_fail_for_a_while(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    with memory_directory(tmp_path) as path:
        runs(path, counts, SOME // 3, failing_opens)
    print_counts(counts)
