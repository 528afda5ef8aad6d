"""Goal: a reader takes over the units that the owner of a queue has appended, shares the files that
are full, and notices a queue that did not only grow.
Method: one directory with an owner that puts, and objects of readers that follow each other; units
on disk are changed, and files removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrocketstore import StoreCorruptionError
from pyrocketstore.consume_queue.growth import QueueChanged, take_written_units
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.system.env import Env
from support.queues import FILE_SIZE, SIZE, UNIT, fill, message, open_queue, poke, rows_of

#: Units in one file.
COUNT = FILE_SIZE // 20
LOG_END = 1 << 40


def reader(path: Path) -> ConsumeQueue:
    """A read-only object of the queue, without files."""
    return ConsumeQueue("T", 0, str(path / "consumequeue"), FILE_SIZE, Env(), read_only=True)


def grown(path: Path, old: ConsumeQueue | None, stop: int, log_end: int = LOG_END) -> ConsumeQueue:
    found = reader(path)
    take_written_units(found, old, stop, log_end)
    return found


def check(queue: ConsumeQueue, count: int) -> None:
    assert rows_of(queue) == [message(n) for n in range(count)]
    assert queue.get_max_offset_in_queue() == count
    assert queue.max_physic_offset == (count * SIZE if count else -1)


@pytest.mark.parametrize("first", [0, 1, COUNT - 1, COUNT, COUNT + 1, 2 * COUNT])
@pytest.mark.parametrize("added", [0, 1, COUNT - 1, COUNT, 2 * COUNT + 3])
def test_appended_units_are_found(tmp_path: Path, first: int, added: int) -> None:
    owner = open_queue(tmp_path)
    fill(owner, first)
    old = grown(tmp_path, None, first) if first else None
    fill(owner, added, first)
    found = grown(tmp_path, old, first + added)
    check(found, first + added)
    if old is not None:
        check(old, first)  # its readers are not disturbed
        full = first // COUNT
        files = old.mapped_file_queue.mapped_files[:full]
        assert list(found.mapped_file_queue.mapped_files[:full]) == list(files), "shared"


def test_units_from_the_stop_on_are_left_out(tmp_path: Path) -> None:
    fill(open_queue(tmp_path), 25)
    for stop in (1, 9, 10, 11, 20, 24):
        check(grown(tmp_path, None, stop), stop)


@pytest.mark.parametrize("count", [0, 5, 10, 17])
def test_units_behind_the_end_of_the_log_are_left_out(tmp_path: Path, count: int) -> None:
    fill(open_queue(tmp_path), 25)
    for log_end in (count * SIZE, count * SIZE + SIZE - 1):
        found = grown(tmp_path, None, 25, log_end)
        assert rows_of(found) == [message(n) for n in range(count)]


@pytest.mark.parametrize("row", [(1200, 0, 12), (1200, -1, 12), (-1, SIZE, 12), (0, 0, 0)])
def test_a_unit_that_is_not_valid_ends_the_units(tmp_path: Path, row: tuple[int, int, int]) -> None:
    fill(open_queue(tmp_path), 25)
    poke(tmp_path, 12, UNIT.pack(*row))
    assert rows_of(grown(tmp_path, None, 25)) == [message(n) for n in range(12)]


def test_units_in_memory_are_replaced_by_equal_ones(tmp_path: Path) -> None:
    """Recovery has built units that the owner had not written; it has written some of them now."""
    fill(open_queue(tmp_path), 15)
    old = grown(tmp_path, None, 15)
    in_memory = reader(tmp_path / "other")
    in_memory.mapped_file_queue.get_last_mapped_file(0)
    in_memory.set_end(-1)
    fill(in_memory, 18)
    found = reader(tmp_path)
    take_written_units(found, in_memory, 15, LOG_END)
    check(found, 18)
    check(in_memory, 18)
    check(old, 15)


@pytest.mark.parametrize("field", range(3))
def test_other_units_than_those_in_memory_are_a_change(tmp_path: Path, field: int) -> None:
    fill(open_queue(tmp_path), 15)
    in_memory = reader(tmp_path / "other")
    in_memory.mapped_file_queue.get_last_mapped_file(0)
    in_memory.set_end(-1)
    fill(in_memory, 15)
    row = list(message(7))
    row[field] += 1
    poke(tmp_path, 7, UNIT.pack(*row))
    with pytest.raises(QueueChanged):
        grown(tmp_path, in_memory, 15)


@pytest.mark.parametrize("number", [1, 2])
def test_a_missing_file_is_a_change(tmp_path: Path, number: int) -> None:
    owner = open_queue(tmp_path)
    fill(owner, 10)
    old = grown(tmp_path, None, 10)
    fill(owner, 30, 10)
    (tmp_path / f"consumequeue/T/0/{number * FILE_SIZE:020d}").unlink()
    with pytest.raises(QueueChanged):
        grown(tmp_path, old, 40)


def test_a_file_of_another_length_is_damage(tmp_path: Path) -> None:
    owner = open_queue(tmp_path)
    fill(owner, 10)
    old = grown(tmp_path, None, 10)
    fill(owner, 5, 10)
    path = tmp_path / f"consumequeue/T/0/{FILE_SIZE:020d}"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StoreCorruptionError, match=path.name):
        grown(tmp_path, old, 15)


def test_an_empty_file_is_one_that_the_owner_makes(tmp_path: Path) -> None:
    owner = open_queue(tmp_path)
    fill(owner, 10)
    (tmp_path / f"consumequeue/T/0/{FILE_SIZE:020d}").write_bytes(b"")
    check(grown(tmp_path, grown(tmp_path, None, 10), 15), 10)
