"""Goal: after an fsync that failed, whichever it was, the store acknowledges nothing more, makes
nothing more durable, and says so to each put, flush and close; what it had acknowledged survives a
power cut, also once it was opened again over the same page cache. A process without a free
descriptor goes on when it has one again.
Method: random programs on a simulated device whose n-th fsync fails once, as the kernel lets it
fail (device.py); the survivors held against a journal (judge.py).

ROCKETSTORE_SOAK_FSYNC=N runs N programs with a fault. Each run has a new seed, which it prints;
ROCKETSTORE_SEED takes it again, ROCKETSTORE_FAULT=NAME repeats the one run that a failure names.
"""

from __future__ import annotations

import os
import random
import secrets
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from campaign import ONLY, places
from fsync_runs import Run
from pyrocketstore import consume_queue, index_service, mending

RUNS = int(os.environ.get("ROCKETSTORE_SOAK_FSYNC", "0"))
SEED = os.environ.get("ROCKETSTORE_SEED") or str(secrets.randbits(32))
#: Runs with a fault in `make test`, and of one program.
SOME = 30
OF_A_PROGRAM = 5
#: How many opens fail one after the other.
LENGTHS = (1, 2, 5, 20, 60)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repairs are tried after milliseconds."""
    monkeypatch.setattr(consume_queue, "RETRY_INTERVAL_S", 0.001)
    monkeypatch.setattr(index_service, "RETRY_INTERVAL_MS", 1)
    monkeypatch.setattr(index_service, "RETRY_BACKOFF_MS", 1)
    monkeypatch.setattr(mending, "MEND_INTERVAL_MS", 10)


def run(path: Path, name: str, counts: Counter[str]) -> None:
    """The run of a name: PROGRAM/fNUMBER for an fsync, PROGRAM/oFIRST-COUNT for opens."""
    seed, _, fault = name.rpartition("/")
    if fault.startswith("f"):
        Run(path, seed, name, counts).fail(int(fault[1:]))
    else:
        first, _, count = fault[1:].partition("-")
        Run(path, seed, name, counts).refuse_opens(int(first), int(count))


def runs(path: Path, counts: Counter[str], some: int, names: Callable[..., list[str]]) -> None:
    """Programs until `some` of their runs had a fault."""
    number = 0
    while counts["runs"] < (RUNS or some):
        seed = f"{SEED}-{number}"
        number += 1
        counts["programs"] += 1
        rng = random.Random(seed)
        for name in names(seed, rng, *Run(path, seed, seed, counts).count_calls()):
            run(path, name, counts)


def failing_fsyncs(seed: str, rng: random.Random, syncs: int, opens: int) -> list[str]:
    """Each fsync of a program in the soak, else some."""
    some = rng.sample(range(1, syncs + 1), min(OF_A_PROGRAM, syncs))
    return [f"{seed}/f{number}" for number in (range(1, syncs + 1) if RUNS else some)]


def failing_opens(seed: str, rng: random.Random, syncs: int, opens: int) -> list[str]:
    """Times without a descriptor, short and long."""
    return [f"{seed}/o{rng.randrange(1, opens + 1)}-{rng.choice(LENGTHS)}" for _ in range(3)]


def told(counts: Counter[str]) -> None:
    print(f"seed {SEED}\n" + "\n".join(f"{n:8} {what}" for what, n in sorted(counts.items())))


@pytest.mark.timeout(120 + RUNS)
def test_a_failed_fsync_is_final(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    with places(tmp_path) as path:
        if ONLY:
            run(path, ONLY, counts)
        else:
            runs(path, counts, SOME, failing_fsyncs)
    told(counts)


@pytest.mark.timeout(120 + RUNS)
@pytest.mark.skipif(bool(ONLY), reason="the other test runs it")
def test_opens_that_fail_for_a_while(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    with places(tmp_path) as path:
        runs(path, counts, SOME // 3, failing_opens)
    told(counts)
