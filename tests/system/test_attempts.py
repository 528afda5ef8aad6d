"""Goal: a reader tries often while little time has passed, a few times later, and never for ever.
Method: `Attempts` on a clock that its pauses move; errors of each kind."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from pyrocketstore import StoreCorruptionError, StoreIOError
from pyrocketstore.system.env import Env
from pyrocketstore.system.live_stores import (
    PAUSE_S,
    TRIES_MAX,
    TRIES_MIN,
    TRY_MS,
    Attempts,
    was_removed,
)
from support.broken_env import broken


class Clock:
    def __init__(self) -> None:
        self.ms = 0.0
        self.pauses: list[float] = []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def env(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Env]:
    def sleep(self: Env, seconds: float) -> None:
        clock.pauses.append(seconds)
        clock.ms += seconds * 1000

    monkeypatch.setattr(Env, "sleep", sleep)
    found = Env()
    with broken(found, "monotonic_ns", lambda original: int(clock.ms * 1e6)):
        yield found


def count(attempts: Attempts, clock: Clock, took_ms: float) -> int:
    """How many attempts are made if each takes so long."""
    found = 1
    clock.ms += took_ms
    while attempts.another():
        found += 1
        clock.ms += took_ms
        assert found < 1000
    return found


@pytest.mark.parametrize(
    ("took_ms", "expected"),
    [
        (0, TRIES_MAX),
        (1, TRIES_MAX),
        (TRY_MS / 10, 10),
        (TRY_MS / 2, TRIES_MIN),
        (TRY_MS * 10, TRIES_MIN),
    ],
)
def test_the_number_of_attempts(env: Env, clock: Clock, took_ms: float, expected: int) -> None:
    found = count(Attempts(env), clock, took_ms)
    assert found == pytest.approx(expected, abs=1 if 4 < expected < TRIES_MAX else 0)
    assert clock.pauses == [PAUSE_S] * (found - 1), "no pause after the last one"


def test_each_reader_has_its_own_attempts(env: Env, clock: Clock) -> None:
    one, other = Attempts(env), Attempts(env)
    assert count(one, clock, 0) == TRIES_MAX
    assert other.another()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StoreIOError(errno.ENOENT, "open", "a"), True),
        (StoreIOError(errno.EIO, "open", "a"), False),
        (StoreIOError(errno.ENOTDIR, "open", "a"), False),
        (FileNotFoundError(errno.ENOENT, "a"), False),
        (StoreCorruptionError("a", 0, "damaged"), False),
    ],
)
def test_a_file_that_is_gone(error: BaseException, expected: bool) -> None:
    assert was_removed(error) is expected
