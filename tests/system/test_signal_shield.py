"""Goal: a shielded call is made even if its thread has no memory for its first step.
Method: the first steps of the thread raise MemoryError, as in CPython without memory; a handler
raises while a name of the package is used for the first time in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pyrocketstore.system import signal_shield
from pyrocketstore.system.signal_shield import shielded
from support.grids import mostly_slow


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)


def fail(*_: object) -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (signal_shield, "begin_thread"),
        (threading, "current_thread"),
    ],
)
@pytest.mark.timeout(20)
def test_the_thread_ends_before_the_call(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    calls: list[int] = []

    def call() -> int:
        calls.append(1)
        return 7

    def broken() -> int:
        raise ValueError("of the call")

    monkeypatch.setattr(owner, name, fail)
    assert shielded(call) == 7
    assert calls == [1]
    with pytest.raises(ValueError, match="of the call"):
        shielded(broken)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def refuse(call: Callable[..., object], arguments: tuple[object, ...]) -> None:
        raise error

    monkeypatch.setattr("_thread.start_new_thread", refuse)
    assert shielded(lambda: 7) == 7


FIRST_USE = """
import random, signal, sys
import pyrocketstore
rng = random.Random(int(sys.argv[1]))

class Boom(Exception):
    pass

def handler(*_):
    raise Boom

signal.signal(signal.SIGALRM, handler)
while True:
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.choice([1e-4, 1e-3, 5e-3]) * rng.random())
            pyrocketstore.open
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        break
    except Boom:
        pass
"""


@pytest.mark.parametrize("seed", mostly_slow(range(5, 13)))
def test_a_handler_raises_during_the_first_use_of_a_name(seed: int) -> None:
    subprocess.run([sys.executable, "-c", FIRST_USE, str(seed)], check=True, timeout=60)


def test_a_module_that_cannot_be_read_is_an_error_of_the_store(tmp_path: Path) -> None:
    """As without a free descriptor: the descriptors of a child are all in use."""
    text = (
        "import os, resource, pyrocketstore, sys\n"
        "store = pyrocketstore.open(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))\n"
        "taken = []\n"
        "try:\n"
        "    while True: taken.append(os.open('/dev/null', 0))\n"
        "except OSError: pass\n"
        "for call in store.stats, store.transactions, store.consumer_positions:\n"
        "    try: call()\n"
        "    except pyrocketstore.StoreIOError as error: print(error.operation)\n"
        "for descriptor in taken: os.close(descriptor)\n"
        "store.stats(), store.transactions(), store.consumer_positions(), store.close()\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    assert "import" in child.stdout.split()
