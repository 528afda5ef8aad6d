"""Goal: a reservation counts once, from its first `take` to `drop` or to its end.
Method: random orders of calls of many reservations, against sets of plain Python."""

from __future__ import annotations

import copy
import gc
import pickle
import random

import pytest

from pyrocketstore.commit_log._append import Reservation, Reservations
from support.seed import SEED


def totals(total: Reservations) -> tuple[int, int]:
    return total.count, total.size


def test_repeated_calls_count_once() -> None:
    total = Reservations()
    one = Reservation(total, 7)
    one.drop()
    assert totals(total) == (0, 0) and not one.taken, "a drop before the first `take`"
    for _ in range(2):
        one.take()
        assert totals(total) == (1, 7) and one.taken
    for _ in range(2):
        one.drop()
        assert totals(total) == (0, 0) and not one.taken
    one.take()
    assert totals(total) == (1, 7), "it may be taken again"


def test_the_end_of_a_taken_reservation_drops_it() -> None:
    total = Reservations()
    taken, dropped, never = (Reservation(total, size) for size in (1, 10, 100))
    taken.take()
    dropped.take()
    dropped.drop()
    del dropped, never
    assert totals(total) == (1, 1)
    del taken
    assert totals(total) == (0, 0)


def test_a_reservation_in_a_cycle_is_dropped() -> None:
    total = Reservations()

    class Holder:
        pass

    holder = Holder()
    holder.itself, holder.one = holder, Reservation(total, 5)  # type: ignore[attr-defined]
    holder.one.take()  # type: ignore[attr-defined]
    del holder
    gc.collect()
    assert totals(total) == (0, 0)


def test_random_calls() -> None:
    chosen, total = random.Random(SEED), Reservations()
    alive = [Reservation(total, chosen.randrange(1 << 40)) for _ in range(20)]
    for _ in range(2000):
        number = chosen.randrange(len(alive))
        step = chosen.randrange(5)
        if step == 0:
            alive[number] = Reservation(total, chosen.randrange(1 << 40))
        elif step < 3:
            alive[number].take()
        else:
            alive[number].drop()
        taken = [one.size for one in alive if one.taken]
        assert totals(total) == (len(taken), sum(taken))


def test_odd_arguments_are_refused() -> None:
    with pytest.raises(TypeError):
        Reservation(None, 1)  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        Reservation(Reservations(), 1 << 63)


@pytest.mark.parametrize("duplicate", [copy.copy, pickle.dumps])
def test_no_copy_counts_twice(duplicate: object) -> None:
    one = Reservation(Reservations(), 1)
    with pytest.raises(TypeError):
        duplicate(one)  # type: ignore[operator]
