"""Goal: units after a cut are kept with their queue offsets, each once, and found by the bytes of
the log that they name.
Method: units in files, good and bad, compared with a filter in plain Python."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pyrocketstore.consume_queue.kept_units import KeptUnit, KeptUnits
from pyrocketstore.consume_queue.queue import ConsumeQueue
from support.queues import (
    EXT_ADDRESS,
    MAX_ADDR,
    PRE_BLANK,
    SIZE,
    fill,
    open_queue,
    poke,
    unpack,
)
from support.queues import UNIT as STRUCT
from support.seed import SEED

FAR = 1 << 40


def kept_of(queue: ConsumeQueue, position: int, phy_offset: int = FAR) -> KeptUnits:
    found = KeptUnits()
    found.keep(queue.reader, position, phy_offset, lambda address: 7)
    return found


def all_of(kept: KeptUnits) -> list[KeptUnit]:
    found, start = [], 0
    while (one := kept.first(start, 1 << 30, -FAR, FAR)) is not None:
        found.append(one)
        start = one.queue_offset + 1
    return found


@pytest.fixture
def queue(tmp_path: Path) -> ConsumeQueue:
    found = open_queue(tmp_path)
    fill(found, 25)
    return found


def test_without_a_cut_nothing_is_kept() -> None:
    kept = KeptUnits()
    assert len(kept) == 0
    assert kept.first(0, 100, 0, FAR) is None
    assert kept.last(0, 0, FAR, lambda unit: True) is None


@pytest.mark.parametrize("first", [0, 1, 9, 10, 11, 24, 25])
def test_units_from_the_cut_on_are_kept(queue: ConsumeQueue, first: int) -> None:
    kept = kept_of(queue, first * 20)
    assert len(kept) == 25 - first
    assert all_of(kept) == [KeptUnit(n, (n * SIZE, SIZE, n)) for n in range(first, 25)]


def test_a_unit_that_may_come_from_an_earlier_process_is_not_kept(queue: ConsumeQueue) -> None:
    kept = kept_of(queue, 0, 5 * SIZE)
    assert [one.queue_offset for one in all_of(kept)] == [0, 1, 2, 3, 4]


def test_units_that_name_no_message_are_not_kept(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    fill(queue, 12)
    for index, row in ((1, PRE_BLANK), (3, (-1, SIZE, 3)), (5, (500, 0, 5)), (7, (700, -9, 7))):
        poke(tmp_path, index, STRUCT.pack(*row))
    kept = kept_of(open_queue(tmp_path, recover=False), 0)
    assert [one.queue_offset for one in all_of(kept)] == [0, 2, 4, 6, 8, 9, 10, 11]


def test_ext_addresses_become_plain_codes(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    fill(queue, 3)
    poke(tmp_path, 1, STRUCT.pack(SIZE, SIZE, EXT_ADDRESS + 40))
    poke(tmp_path, 2, STRUCT.pack(2 * SIZE, SIZE, MAX_ADDR))
    asked: list[int] = []

    def plain(address: int) -> int:
        asked.append(address)
        return len(asked)

    kept = KeptUnits()
    kept.keep(open_queue(tmp_path, recover=False).reader, 0, FAR, plain)
    assert asked == [EXT_ADDRESS + 40, MAX_ADDR]
    assert [one.unit[2] for one in all_of(kept)] == [0, 1, 2]


def test_a_second_cut_adds_what_is_new(queue: ConsumeQueue, tmp_path: Path) -> None:
    kept = kept_of(queue, 15 * 20)
    other = open_queue(tmp_path / "other")
    for n in range(20):
        assert other.put_message_position_info(FAR - 1000 + n, SIZE, 99, n)
    kept.keep(other.reader, 10 * 20, FAR, lambda address: 7)
    found = all_of(kept)
    assert [one.queue_offset for one in found] == list(range(10, 25)), "each queue offset once"
    assert [one.unit[2] for one in found] == [99] * 5 + list(range(15, 25)), "the first one stays"


def test_first_and_last_against_plain_python(tmp_path: Path) -> None:
    chosen = random.Random(SEED)
    queue = open_queue(tmp_path)
    rows = []
    for n in range(40):
        rows.append((chosen.randrange(30) * SIZE, SIZE, n))
        assert queue.put_message_position_info(n * SIZE, SIZE, n, n)
        poke(tmp_path, n, STRUCT.pack(*rows[-1]))
    read = open_queue(tmp_path, recover=False)
    data = b"".join(path.read_bytes() for path in sorted((tmp_path / "consumequeue/T/0").iterdir()))
    assert unpack(data)[:40] == rows
    kept = kept_of(read, 0)
    for _ in range(300):
        start, stop = chosen.randrange(45), chosen.randrange(45)
        begin = chosen.randrange(30) * SIZE
        end = begin + chosen.randrange(1, 8) * SIZE
        inside = [n for n in range(40) if begin <= rows[n][0] and rows[n][0] + SIZE <= end]
        wanted = [KeptUnit(n, rows[n]) for n in inside if start <= n < stop]
        assert kept.first(start, stop, begin, end) == (wanted[0] if wanted else None)
        odd = [KeptUnit(n, rows[n]) for n in inside if n >= start and n % 3]
        found = kept.last(start, begin, end, lambda one: one.queue_offset % 3 != 0)
        assert found == (odd[-1] if odd else None)
