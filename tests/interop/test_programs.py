"""Goal: pyrocketstore and 4.9.3 take turns on one directory at any time, and no acknowledged
message is lost or reported differently. Method: random programs (programs.py); after every step
both sides' dumps equal each other and a plain-Python model (model.py).

ROCKETSTORE_SOAK=N runs N more and longer programs, ROCKETSTORE_SEED other ones;
ROCKETSTORE_PROGRAM=SEED runs the one that a failure named: the seed determines its steps.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import Actors, actors
from failures import COMMAND, Failures, kept
from programs import DELAYS_MS, Runner, make
from support.java_store import require_java
from support.seed import SEED

pytestmark = [pytest.mark.java, pytest.mark.slow]

SOAK = int(os.environ.get("ROCKETSTORE_SOAK", "0"))
ONLY = os.environ.get("ROCKETSTORE_PROGRAM", "")
PROGRAMS = 12 + SOAK
STEPS = 8 + 6 * bool(SOAK)
KILLS_OF_A_PROGRAM = 2.5


@pytest.fixture(scope="module")
def pool() -> Iterator[Actors]:
    with actors(require_java()) as made:
        yield made


@pytest.mark.timeout(1200 + 240 * SOAK)
def test_programs(pool: Actors, tmp_path: Path) -> None:
    seeds = [ONLY] if ONLY else [f"{SEED}.{number}.{STEPS}" for number in range(PROGRAMS)]
    steps = 0
    failures = Failures()
    for seed in seeds:
        program = make(seed)
        directory = tmp_path / seed
        again = f"ROCKETSTORE_PROGRAM={seed} {COMMAND}test_programs.py"
        with failures.one(f"program {seed}", again), kept(directory):
            Runner(program, pool, directory).run()
        steps += len(program.steps)
    kills = sum(pool.kills.values())
    print(f"{len(seeds)} programs, {steps} steps, {kills} kills and reopenings: {pool.kills}")
    print(f"before the answer: {dict(pool.inside)}")
    failures.end()
    if SOAK and not ONLY:
        assert kills >= KILLS_OF_A_PROGRAM * SOAK
        assert SOAK < 20 or all(pool.inside[kind] for kind in DELAYS_MS), "no kill was early enough"
