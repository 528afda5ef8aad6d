"""Goal: at whatever moment a signal handler runs, and whether it raises, puts, flushes or closes,
the store works again within a bounded time, keeps every acknowledged message once, and holds no
lock, descriptor or thread afterwards.
Method: child processes in which a signal arrives at each step of Python code in turn, or by a
timer (interrupts.py), and children that are ended by SIGTERM, as services are.

ROCKETSTORE_SOAK_INTERRUPTS=S makes each child last S seconds; ROCKETSTORE_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from interrupts import SETTINGS, Interrupted, bodies_of, checked_instructions, tracer
from pyrocketstore.flush.async_put import PutFuture
from support.seed import SEED

SOAK = float(os.environ.get("ROCKETSTORE_SOAK_INTERRUPTS", "0"))
HERE = Path(__file__).parent
#: Duration of a child (s), and number of children that are ended by SIGTERM.
SECONDS = SOAK or 1.5
TERMINATED = int(SOAK) or 4
CASES = [
    (mode, kind)
    for mode in ("steps", "closes", "timer", "enters")
    for kind in ("ASYNC_FLUSH", "SYNC_FLUSH", "POOL", "BOUNDED")
    if SOAK or kind.endswith("_FLUSH")
]


def child(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Run a process of interrupts.py."""
    paths = [str(Path(pyrocketstore.__file__).parent.parent), str(HERE), str(HERE.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, str(HERE / "interrupts.py"), *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        **options,
    )  # fmt: skip


@pytest.mark.timeout(120 + 4 * SECONDS)
@pytest.mark.parametrize(("mode", "kind"), CASES)
def test_a_handler_leaves_the_store_usable(mode: str, kind: str) -> None:
    process = child(mode, kind, SEED, SECONDS)
    output, errors = process.communicate()
    print(f"seed {SEED}: {mode} {kind}: {output}")
    assert process.returncode == 0, f"seed {SEED}\n{errors[-6000:]}"
    assert "'handlers': 0" not in output


@pytest.mark.parametrize("kind", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_handler_that_closes_and_exits_always_ends_cleanly(kind: str) -> None:
    rng = random.Random(f"{SEED}.{kind}")
    for number in range(TERMINATED):
        process = child("target", kind, f"{SEED}.{number}", 0)
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        time.sleep(rng.uniform(0.05, 0.5))
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, f"seed {SEED}, number {number}\n{errors[-6000:]}"
        with pyrocketstore.open(path / "store", **SETTINGS) as store:
            plan = store.message_store.plan
            assert plan is not None
            assert plan.clean
            found = bodies_of(store)
        missing = set(map(int, output.split())) - found.keys()
        assert max(found.values()) == 1
        assert not missing, f"seed {SEED}, number {number}"
        shutil.rmtree(path)


@pytest.mark.parametrize("waits_for", ["result", "exception"])
def test_a_handler_ends_the_wait_for_a_put_at_each_step(waits_for: str) -> None:
    """Its error reaches the caller, and the future is left as if nobody had waited."""

    def handler(*_: object) -> None:
        raise Interrupted

    def wait_until_step(at: int) -> tuple[BaseException | None, int]:
        """Wait with a signal at a step; return the error of the wait, and its number of steps."""
        wait = getattr(future, waits_for)
        error: BaseException | None = None
        try:
            tracer().interrupt_at(at, signal.SIGUSR1, checked_instructions())
            wait(0.001)
        except BaseException as raised:  # noqa: BLE001 - whatever is raised is judged
            error = raised
        return error, tracer().interrupt_end()

    future: Any = PutFuture()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        _, steps = wait_until_step(0)
        for at in range(1, steps + 1):
            error, _ = wait_until_step(at)
            assert isinstance(error, Interrupted), f"step {at} of {steps}: {error!r}"
            assert not future._condition._is_owned(), f"step {at} of {steps}: a lock is held"
            assert not future._condition._waiters, f"step {at} of {steps}: a waiter is left"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert steps >= 3
