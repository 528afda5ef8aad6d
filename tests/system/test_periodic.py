"""Goal: a periodic service keeps its rate, and a round that fails does not end it.
Method: `run_due` on a clock of the test; a thread that dies of another error."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from pyrocketstore import StoreIOError
from pyrocketstore.system.env import Env
from pyrocketstore.system.periodic import PeriodicService
from support.broken_env import broken
from support.gates import wait_until

FIRST, INTERVAL = 100, 30


class Clock:
    def __init__(self) -> None:
        self.ms = 5000.0


class Counting(PeriodicService):
    """Counts its rounds; raises `error` in each."""

    def __init__(self, env: Env, interval: int = INTERVAL) -> None:
        super().__init__(env, "counting", FIRST, interval)
        self.rounds = 0
        self.error: Exception | None = None

    def do_once(self) -> None:
        self.rounds += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def env(clock: Clock) -> Iterator[Env]:
    found = Env()
    with broken(found, "monotonic_ns", lambda original: int(clock.ms * 1e6)):
        yield found


def test_rounds_come_at_a_fixed_rate(env: Env, clock: Clock) -> None:
    service = Counting(env)
    assert service.run_due() == FIRST and service.rounds == 0
    clock.ms += 60
    assert service.run_due() == FIRST - 60 and service.rounds == 0
    clock.ms += 45  # 5 ms late
    assert service.run_due() == INTERVAL - 5 and service.rounds == 1
    clock.ms += INTERVAL - 5
    assert service.run_due() == INTERVAL and service.rounds == 2


def test_rounds_that_were_missed_are_not_made_up(env: Env, clock: Clock) -> None:
    service = Counting(env)
    clock.ms += FIRST + 10 * INTERVAL
    assert service.run_due() == 0 and service.rounds == 1
    assert service.run_due() == INTERVAL and service.rounds == 2


def test_an_interval_of_0_is_a_millisecond(env: Env, clock: Clock) -> None:
    service = Counting(env, 0)
    clock.ms += FIRST
    assert service.run_due() == 1


def test_a_failed_round_is_kept_until_one_succeeds(
    env: Env, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    service = Counting(env)
    service.error = error = StoreIOError(errno.EIO, "unlink", "a")
    clock.ms += FIRST
    service.run_due()
    assert service.last_error is error and "the next round tries again" in caplog.text
    service.error = None
    clock.ms += INTERVAL
    service.run_due()
    assert service.last_error is None and service.rounds == 2


def test_a_stopped_service_makes_no_round(env: Env, clock: Clock) -> None:
    service = Counting(env)
    service.request_stop()
    clock.ms += FIRST
    service.run_due()
    assert service.rounds == 0


def test_the_thread_makes_rounds() -> None:
    service = Counting(Env(), 1)
    service.start()
    try:
        wait_until(lambda: service.rounds > 2, "three rounds")
    finally:
        assert service.shutdown()


def test_a_start_begins_the_first_delay(env: Env, clock: Clock) -> None:
    service = Counting(env)
    clock.ms += 10 * FIRST
    service.start()
    assert service.run_due() == FIRST, "the delay begins now"
    assert service.shutdown() and service.rounds == 0


def test_another_error_ends_the_thread_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    service = Counting(Env(), 1)
    service.error = ValueError("odd")
    service.start()
    wait_until(lambda: service.failure is not None and not service.is_alive, "the end")
    assert service.failure is service.error and service.rounds == 1
    assert "counting has stopped: odd" in caplog.text
    assert service.shutdown()


def test_a_service_must_say_what_it_does(env: Env) -> None:
    with pytest.raises(NotImplementedError):
        PeriodicService(env, "a", 0, 1).do_once()
