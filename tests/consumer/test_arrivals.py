"""Goal: a wait for the messages of another process costs little while nothing comes, and finds
them soon.
Method: `OwnerArrivals` with an owner, a clock and pauses of the test."""

from __future__ import annotations

import pytest

from pyrocketstore.consumer.arrivals import OwnArrivals, OwnerArrivals
from pyrocketstore.errors import StoreIOError

MS = 1_000_000
SECOND = 1000 * MS


class Owner:
    """A log that grows when the clock reaches given times."""

    def __init__(self, grows_at: dict[int, int] | None = None, refresh_ns: int = MS // 10) -> None:
        self.now = 0
        self.grows_at = dict(grows_at or {})
        self.refresh_ns = refresh_ns
        self.end = 0
        self.unfinished = b""
        self.signalled = False
        self.refreshes: list[int] = []
        self.pauses: list[float] = []
        self.arrivals = OwnerArrivals(
            self.refresh,
            lambda: self.end,
            self.next_record,
            lambda: 7,
            self.pause,
            lambda: self.now,
        )

    def refresh(self) -> None:
        self.refreshes.append(self.now)
        self.now += self.refresh_ns
        self.end += sum(size for at, size in self.grows_at.items() if at <= self.now)
        self.grows_at = {at: size for at, size in self.grows_at.items() if at > self.now}

    def next_record(self) -> bytes:
        if any(at <= self.now for at in self.grows_at):
            return b"record"
        return self.unfinished

    def pause(self, seen: int, seconds: float) -> bool:
        assert seen == 7
        self.pauses.append(seconds)
        self.now += round(seconds * SECOND)
        return self.signalled


def test_the_first_look_and_routine_looks_refresh() -> None:
    owner = Owner()
    assert owner.arrivals.look() == 7
    assert owner.refreshes == [0]
    for _ in range(100):
        owner.arrivals.look()
    assert owner.refreshes == [0]
    owner.now += SECOND
    owner.arrivals.look()
    assert len(owner.refreshes) == 2


def test_pauses_grow_while_nothing_comes() -> None:
    owner = Owner()
    owner.arrivals.look()
    end = owner.now + 10 * SECOND
    while owner.now < end:
        owner.arrivals.wait(7, (end - owner.now) / SECOND)
        owner.arrivals.look()
    assert owner.pauses[0] == 0.001
    assert max(owner.pauses) == 0.1
    assert 100 < len(owner.pauses) < 300
    assert 9 <= len(owner.refreshes) <= 11


def test_a_record_ends_a_wait() -> None:
    owner = Owner({500 * MS: 100})
    owner.arrivals.look()
    owner.arrivals.wait(7, None)
    assert 500 * MS <= owner.now <= 530 * MS
    owner.arrivals.look()
    assert owner.end == 100
    owner.pauses.clear()
    owner.grows_at[owner.now + 5 * MS] = 1
    owner.arrivals.wait(7, None)
    assert owner.pauses == [0.001] * 5  # short again
    owner.refresh_ns = 4 * MS
    owner.grows_at[owner.now] = 1
    owner.arrivals.look()
    owner.pauses.clear()
    owner.grows_at[owner.now + 20 * MS] = 1
    owner.arrivals.wait(7, None)
    assert owner.pauses == [0.012] * 2  # a refresh takes a quarter of the time at most


def test_a_wait_ends_after_its_timeout_and_by_a_signal() -> None:
    owner = Owner()
    owner.arrivals.look()
    owner.arrivals.wait(7, 0.25)
    assert 250 * MS <= owner.now <= 252 * MS
    owner.signalled = True
    owner.pauses.clear()
    owner.arrivals.wait(7, None)
    assert len(owner.pauses) == 1


def test_a_refresh_of_another_consumer_ends_a_wait() -> None:
    owner = Owner()
    owner.arrivals.look()
    owner.end = 50
    owner.arrivals.wait(7, None)
    assert len(owner.pauses) == 1
    owner.arrivals.look()
    assert owner.refreshes == [0]


@pytest.mark.parametrize("refresh_ns", (MS, 5 * SECOND))
def test_bytes_that_are_no_record_cost_little(refresh_ns: int) -> None:
    owner = Owner(refresh_ns=refresh_ns)
    owner.unfinished = b"half"
    begin, end = owner.now, 3600 * SECOND
    while owner.now < end:
        owner.arrivals.look()
        owner.arrivals.wait(7, 1)
    share = len(owner.refreshes) * refresh_ns / (owner.now - begin)
    assert share < (0.01 if refresh_ns == MS else 0.2)
    owner.unfinished = b"more"  # other bytes: not the ones that were tried
    count = len(owner.refreshes)
    owner.arrivals.look()
    assert len(owner.refreshes) == count + 1


def test_an_unfinished_record_is_found_once_it_is_whole() -> None:
    owner = Owner(refresh_ns=MS)
    owner.arrivals.look()
    owner.unfinished = b"half"
    owner.arrivals.look()
    assert len(owner.refreshes) == 2
    owner.grows_at[owner.now] = 10
    owner.unfinished = b""
    owner.arrivals.wait(7, None)
    owner.arrivals.look()
    assert owner.end == 10


def test_a_failed_refresh_is_tried_again() -> None:
    owner = Owner()

    def fail() -> None:
        raise StoreIOError(5, "pread", "log")

    arrivals = OwnerArrivals(
        fail, lambda: 0, owner.next_record, lambda: 7, owner.pause, lambda: owner.now
    )
    for _ in range(2):
        with pytest.raises(StoreIOError):
            arrivals.look()


def test_own_arrivals_wait_for_a_signal_at_most_a_second() -> None:
    waits: list[tuple[int, float]] = []
    looks: list[int] = []
    arrivals = OwnArrivals(
        lambda: looks.append(1), lambda: 3, lambda seen, s: waits.append((seen, s))
    )
    assert arrivals.look() == 3
    for timeout in (None, 5, 0.5, 0.0001):
        arrivals.wait(3, timeout)
    assert waits == [(3, 1.0), (3, 1.0), (3, 0.5), (3, 0.001)]
    assert looks == [1]
