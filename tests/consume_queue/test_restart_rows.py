"""Goal: of the records of a queue, the one is found with which the queue starts again, and a single
record with a damaged queue offset never counts as such a start.
Method: known and random rows of queue offsets, against the rule in plain Python."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pyrocketstore.consume_queue.restarted_queues import _from, _groups, _restart
from support.seed import SEED


def restart(offsets: list[int], *, may_be_alone: bool) -> tuple[int, int] | None:
    """`_restart` of records that are 100 bytes apart."""
    places = np.arange(len(offsets), dtype=np.int64) * 100
    return _restart(np.array(offsets, np.int64), places, may_be_alone=may_be_alone)


def expected(offsets: list[int], *, may_be_alone: bool) -> tuple[int, int] | None:
    starts = []
    for at, offset in enumerate(offsets):
        is_first = at == 0 or offset <= offsets[at - 1]
        is_followed = at + 1 < len(offsets) and offsets[at + 1] == offset + 1
        is_alone = at + 1 == len(offsets) and offset == 0 and may_be_alone
        if is_first and (is_followed or is_alone):
            starts.append((offset, -at))
    return (min(starts)[0], -min(starts)[1] * 100) if starts else None


@pytest.mark.parametrize(
    ("offsets", "alone", "not_alone"),
    [
        ([], None, None),
        ([0], (0, 0), None),
        ([5], None, None),
        ([0, 1], (0, 0), (0, 0)),
        ([5, 6, 0, 1], (0, 200), (0, 200)),
        ([5, 6, 0], (0, 200), (5, 0)),
        ([5, 3, 6], None, None),
        ([0, 1, 0, 1, 0, 1], (0, 400), (0, 400)),
        ([4, 5, 2, 3, 3, 4], (2, 200), (2, 200)),
        ([7, 7, 8], (7, 100), (7, 100)),
        ([1 << 62, 3, 4], (3, 100), (3, 100)),
    ],
)
def test_known_rows(
    offsets: list[int], alone: tuple[int, int] | None, not_alone: tuple[int, int] | None
) -> None:
    assert restart(offsets, may_be_alone=True) == alone
    assert restart(offsets, may_be_alone=False) == not_alone


def test_random_rows() -> None:
    chosen = random.Random(SEED)
    for _ in range(2000):
        offsets = [chosen.randrange(6) for _ in range(chosen.randrange(9))]
        for may_be_alone in (True, False):
            found = restart(offsets, may_be_alone=may_be_alone)
            assert found == expected(offsets, may_be_alone=may_be_alone), offsets


def test_rows_are_joined_in_the_order_of_the_log() -> None:
    parts = [
        (np.array([3, 1, -1], np.int64), np.array([300, 100, 150], np.int64)),
        (np.array([2, 0], np.int64), np.array([200, 50], np.int64)),
    ]
    queue_offset, phy_offset = _from(parts, 100)
    assert (queue_offset.tolist(), phy_offset.tolist()) == ([1, 2, 3], [100, 200, 300])


def test_rows_are_grouped_by_queue() -> None:
    number = np.array([2, 0, 2, 1, 0], np.int32)
    rows = np.array([0, 1, 2, 4], np.intp)
    assert [group.tolist() for group in _groups(number, rows)] == [[1, 4], [0, 2]]
    assert list(_groups(number, rows[:0])) == []
