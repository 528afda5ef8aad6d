"""Goal: unit n of a queue is the message of queue offset n, after any puts, losses and damage.
Method: compare the compiled scans with plain Python at every cut, and queues with a list of
units."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import threading
from pathlib import Path

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyrocketstore.consume_queue import retries
from pyrocketstore.consume_queue.multi_dispatch import multi_dispatch_lmq_queue
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.errors import StoreIOError, StoreStateError
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.results import DispatchRequest, Status
from pyrocketstore.system.env import Env
from support import broken_env
from support.broken_env import broken, watched
from support.queues import (
    FILE_SIZE,
    PRE_BLANK,
    SIZE,
    UNIT,
    failing,
    files_of,
    fill,
    message,
    open_queue,
    oracle_scan,
    pack,
    poke,
    request_of,
    rows_of,
    unpack,
)

# ---- queues ------------------------------------------------------------------------------------


def test_units_lie_at_their_offset_over_many_files(tmp_path):
    queue = open_queue(tmp_path)
    assert queue.mapped_file_size == FILE_SIZE and queue.units_per_file == 10
    assert (queue.get_max_offset_in_queue(), queue.max_physic_offset) == (0, -1)
    fill(queue, 35)
    assert queue.get_max_offset_in_queue() == 35
    assert queue.max_physic_offset == 3500 == queue.get_last_offset()
    assert rows_of(queue) == [message(n) for n in range(35)]
    assert rows_of(queue, 8)[:4] == [message(n) for n in range(8, 12)]
    assert rows_of(queue, 35) == rows_of(queue, 99) == rows_of(queue, -1) == []
    assert len(queue.read_units(3, 4).phy_offset) == 4
    assert len(queue.read_units(3, -4).phy_offset) == 0
    data = b"".join(files_of(tmp_path).values())
    assert data == pack(message(n) for n in range(35)).ljust(4 * FILE_SIZE, b"\0")
    assert list(files_of(tmp_path)) == [f"{n:020d}" for n in (0, 200, 400, 600)]
    assert queue.roll_next_file(0) == queue.roll_next_file(9) == 10
    again = open_queue(tmp_path)
    assert rows_of(again) == rows_of(queue)
    assert again.max_physic_offset == 3500


def test_a_file_size_is_rounded_up_to_whole_units(tmp_path):
    queue = open_queue(tmp_path, file_size=181)
    assert queue.mapped_file_size == 200


def test_get_index_buffer_ends_with_its_file(tmp_path):
    queue = open_queue(tmp_path)
    fill(queue, 15)
    for start, count in ((0, 10), (9, 1), (10, 5), (14, 1)):
        view = queue.get_index_buffer(start)
        assert unpack(bytes(view.byte_buffer)) == [message(start + i) for i in range(count)]
        view.release()
    assert queue.get_index_buffer(15) is None
    assert queue.get_index_buffer(99) is None
    assert queue.get_index_buffer(-1) is None


def test_the_first_file_of_a_queue_that_starts_late(tmp_path):
    # The vector of the specification: offset 13, files of 200 bytes.
    queue = open_queue(tmp_path)
    assert queue.put_message_position_info(13 * SIZE, SIZE, 13, 13)
    blank = bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
    expected = (blank * 3 + UNIT.pack(*message(13))).ljust(200, b"\0")
    assert files_of(tmp_path) == {"00000000000000000200": expected}
    assert (queue.get_min_offset_in_queue(), queue.get_max_offset_in_queue()) == (13, 14)
    assert queue.max_physic_offset == 14 * SIZE
    again = open_queue(tmp_path)
    assert again.get_max_offset_in_queue() == 14
    again.correct_min_offset(0)
    assert again.get_min_offset_in_queue() == 13


@pytest.mark.parametrize("target", [10, 20, 21, 1000])
def test_a_first_offset_at_any_place(tmp_path, target):
    queue = open_queue(tmp_path)
    assert queue.put_message_position_info(target * SIZE, SIZE, target, target)
    assert rows_of(queue, target) == [message(target)]
    assert len(files_of(tmp_path)) == 1
    assert queue.get_min_offset_in_queue() == target


@pytest.mark.parametrize("at", [3, 9, 10, 11, 25, 30, 47])
def test_a_gap_is_filled_and_never_closed(tmp_path, at):
    queue = open_queue(tmp_path)
    fill(queue, 3)
    assert queue.put_message_position_info(at * SIZE, SIZE, at, at)
    expected = [message(n) for n in range(3)] + [PRE_BLANK] * (at - 3) + [message(at)]
    assert rows_of(queue) == expected
    assert queue.max_physic_offset == (at + 1) * SIZE
    assert rows_of(open_queue(tmp_path)) == expected
    blanks = queue.read_units(0, 99).is_pre_blank()
    assert blanks.tolist() == [row == PRE_BLANK for row in expected]


def test_what_is_there_is_not_put_again(tmp_path):
    queue = open_queue(tmp_path)
    fill(queue, 12)
    before = files_of(tmp_path)
    for n in range(12):
        assert queue.put_message_position_info(n * SIZE, SIZE, 999, n)  # known by its place
        assert queue.put_message_position_info(5000 + n, SIZE, 999, n)  # by its queue offset
    assert queue.put_message_position_info(5000, SIZE, 1, -7)
    assert queue.put_message_position_info(11 * SIZE, SIZE, 1, 500)  # a gap, but known
    assert files_of(tmp_path) == before
    assert queue.get_max_offset_in_queue() == 12


@pytest.mark.parametrize(
    ("phy_offset", "size", "queue_offset"),
    [(900, 0, 3), (900, -1, 3), (2**63 - 1, 5, 3), (900, 100, 2**62), (900, 100, 100)],
)
def test_a_damaged_record_gets_no_unit(tmp_path, phy_offset, size, queue_offset):
    queue = open_queue(tmp_path)
    fill(queue, 3)
    before = files_of(tmp_path)
    assert not queue.put_message_position_info(phy_offset, size, 0, queue_offset)
    assert files_of(tmp_path) == before
    fill(queue, 3, first=3)
    assert rows_of(queue) == [message(n) for n in range(6)]


def test_verdicts_of_the_compiled_put(tmp_path):
    queue = open_queue(tmp_path)
    core = queue.core
    assert core.put(0, SIZE, 0, 0) == Status.NEED_FILE
    assert core.put(0, SIZE, 0, 1) == Status.NEED_PYTHON
    assert queue.provide_file(0) and core.attached
    for n in range(10):
        assert core.put(n * SIZE, SIZE, n, n) == Status.OK
    assert core.dirty
    assert core.put(9 * SIZE, SIZE, 9, 9) == Status.REPEAT
    assert core.put(10 * SIZE, SIZE, 9, 11) == Status.NEED_PYTHON
    assert core.put(11 * SIZE, 0, 9, 10) == Status.NEED_PYTHON
    assert core.put(10 * SIZE, SIZE, 10, 10) == Status.NEED_FILE
    assert queue.provide_file(10)
    assert core.put(10 * SIZE, SIZE, 10, 10) == Status.OK
    core.detach()
    assert core.put(11 * SIZE, SIZE, 11, 11) == Status.NEED_FILE
    assert queue.provide_file(11)
    assert core.put(11 * SIZE, SIZE, 11, 11) == Status.OK
    assert rows_of(queue) == [message(n) for n in range(12)]
    assert core.max_physic_offset == 1200


def test_a_run_of_units_goes_over_files(tmp_path):
    queue = open_queue(tmp_path)
    n = numpy.arange(37, dtype=numpy.int64)
    queue.put_units(n * SIZE, numpy.full(37, SIZE, numpy.int32), n)
    assert rows_of(queue) == [message(i) for i in range(37)]
    assert queue.max_physic_offset == 3700
    fill(queue, 5, first=37)
    assert rows_of(open_queue(tmp_path)) == [message(i) for i in range(42)]
    with pytest.raises(ValueError, match="one length"):
        queue.core.put_units(n, numpy.zeros(1, numpy.int32), n)


@pytest.mark.parametrize("pwrite", ["works", "fails", "fails later", "is short"])
def test_long_runs_have_the_bytes_of_single_units(tmp_path, pwrite):
    """They go around the mapping; what cannot go that way goes through it."""
    env = Env()
    calls = itertools.count()
    answers = {
        "works": lambda original, *args: original(*args),
        "fails": lambda original, *args: -errno.EIO,
        "fails later": lambda original, *args: -errno.EIO if next(calls) else original(*args),
        "is short": lambda original, fd, data, size, at: original(fd, data, min(size, 70001), at),
    }
    file_size = 30_000 * 20
    queue = open_queue(tmp_path, env=env, file_size=file_size)
    fill(queue, 5)
    random_rows = numpy.random.default_rng(7)
    count = 70_000
    phy_offset = numpy.arange(5, 5 + count, dtype=numpy.int64) * SIZE
    size = random_rows.integers(1, 2**31, count).astype(numpy.int32)
    tags_code = random_rows.integers(-(2**63), 2**63, count)
    with broken(env, "pwrite", answers[pwrite]) as pieces:
        queue.put_units(phy_offset, size, tags_code)
    assert pieces
    assert queue.max_physic_offset == int(phy_offset[-1]) + int(size[-1])
    last = 5 + count
    assert queue.put_message_position_info(last << 20, SIZE, 1, last)
    rows = [message(n) for n in range(5)]
    rows += zip(phy_offset.tolist(), size.tolist(), tags_code.tolist(), strict=True)
    rows.append((last << 20, SIZE, 1))
    wanted = pack(rows)
    wanted += bytes(-len(wanted) % file_size)
    assert b"".join(files_of(tmp_path).values()) == wanted
    assert rows_of(queue) == rows
    assert rows_of(open_queue(tmp_path, file_size=file_size)) == rows


def test_a_long_run_without_room_writes_nothing(tmp_path):
    env = Env()
    queue = open_queue(tmp_path, env=env, file_size=6_000_000)
    n = numpy.arange(10_000, dtype=numpy.int64)
    with (
        broken_env.failing(env, "fallocate", errno.ENOSPC),
        watched(env, "pwrite") as written,
        pytest.raises(StoreIOError),
    ):
        queue.put_units(n * SIZE, numpy.full(10_000, SIZE, numpy.int32), n)
    assert not written
    assert queue.core.unit_count == 0
    assert files_of(tmp_path) == {"0" * 20: bytes(6_000_000)}


def test_a_long_run_with_blanks_covers_what_its_last_message_says(tmp_path):
    queue = open_queue(tmp_path, file_size=6_000_000)
    n = numpy.arange(5_000, dtype=numpy.int64)
    phy_offset, size, tags_code = n * SIZE, numpy.full(5_000, SIZE, numpy.int32), n.copy()
    phy_offset[4_000:], size[4_000:], tags_code[4_000:] = 0, 2**31 - 1, 0
    queue.put_units(phy_offset, size, tags_code)
    assert queue.core.max_physic_offset == 400_000
    assert open_queue(tmp_path, file_size=6_000_000).core.max_physic_offset == 400_000
    blank = open_queue(tmp_path / "blank", file_size=6_000_000)
    blank.put_units(phy_offset[4_000:], size[4_000:], tags_code[4_000:])
    assert (blank.core.unit_count, blank.core.max_physic_offset) == (1_000, -1)


def test_new_files_are_forced_by_flush_and_not_by_a_put(tmp_path):
    env = Env()
    queue = open_queue(tmp_path, env=env)
    fill(queue, 1)
    with watched(env, "fsync_directory") as named, watched(env, "fdatasync") as forced:
        fill(queue, 34, first=1)
        assert not named and not forced
        while not queue.flush(0):
            pass
        directory = os.path.dirname(queue.mapped_file_queue.mapped_files[0].path)
        folders = [args[0].decode() for args in named]
        assert folders.count(directory) == 4, "the name of each file"
        above = [str(folder) for folder in Path(directory).parents][:3]
        assert set(folders) == {directory, *above}
        assert [folders.count(folder) for folder in above] == [1] * 3, "and of new directories"
        assert queue.mapped_file_queue.flushed_where == 700


def test_a_put_that_cannot_be_converted_puts_nothing(tmp_path):
    queue = open_queue(tmp_path)
    for arguments in (
        (2**63, 1, 0, 0),
        (0, 2**31, 0, 0),
        (0, 1, 2**63, 0),
        (0, 1, 0, -(2**63) - 1),
    ):
        with pytest.raises(OverflowError):
            queue.put_message_position_info(*arguments)
    with pytest.raises(TypeError):
        queue.put_message_position_info(0, 1, 0)
    assert queue.put_message_position_info(phy_offset=0, size=SIZE, tags_code=0, queue_offset=0)
    assert rows_of(queue) == [message(0)]


def test_detached_queues_hold_no_mapping(tmp_path):
    queue = open_queue(tmp_path)
    fill(queue, 15)
    assert [f.is_mapped for f in queue.mapped_file_queue.mapped_files] == [False, True]
    queue.detach()
    queue.unmap_idle()
    assert not any(f.is_mapped for f in queue.mapped_file_queue.mapped_files)
    assert rows_of(queue) == [message(n) for n in range(15)]
    fill(queue, 3, first=15)
    assert rows_of(queue) == [message(n) for n in range(18)]


# ---- recovery ----------------------------------------------------------------------------------


@settings(max_examples=25, derandomize=True, deadline=None)
@given(st.integers(1, 34), st.integers(0, 33), st.sampled_from(["zero", "negative", "size"]))
def test_recovery_keeps_the_units_before_the_damage(tmp_path_factory, count, at, damage):
    path = tmp_path_factory.mktemp("queue")
    queue = open_queue(path)
    fill(queue, count)
    at %= count
    bad = {"zero": bytes(20), "negative": UNIT.pack(-1, 5, 0), "size": UNIT.pack(5, 0, 0)}
    poke(path, at, bad[damage])
    # Only the last three files are looked at, as in 4.9.3.
    first = max(0, (count - 1) // 10 - 2) * 10
    kept = at if at >= first else count
    again = open_queue(path)
    assert again.get_max_offset_in_queue() == kept
    assert again.max_physic_offset == (kept * SIZE if kept else -1)
    fill(again, 5, first=kept)
    assert rows_of(again)[first:] == [message(n) for n in range(first, kept + 5)]
    third = open_queue(path)
    assert third.get_max_offset_in_queue() == kept + 5, "units of an earlier life came back"


def test_a_clean_reopen_writes_nothing(tmp_path):
    queue = open_queue(tmp_path)
    fill(queue, 15)
    queue.flush(0)
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file()}
    again = open_queue(tmp_path)
    again.truncate_dirty_logic_files(15 * SIZE)
    again.correct_min_offset(0)
    assert rows_of(again) == rows_of(queue)
    after = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file()}
    assert after == before


def test_bytes_behind_the_end_are_zeroed_before_it_is_reached(tmp_path):
    queue = open_queue(tmp_path, file_size=20000)
    fill(queue, 3)
    poke(tmp_path, 4, pack([(77 * SIZE, SIZE, 1)] * 2), file_size=20000)
    poke(tmp_path, 900, pack([(99 * SIZE, SIZE, 1)]), file_size=20000)
    again = open_queue(tmp_path, file_size=20000)
    assert again.get_max_offset_in_queue() == 3
    fill(again, 1, first=3)
    assert open_queue(tmp_path, file_size=20000).get_max_offset_in_queue() == 4
    [data] = files_of(tmp_path).values()
    assert data[80:] == bytes(20000 - 80)


def test_recovery_looks_for_a_message_behind_pre_blank_files(tmp_path):
    queue = open_queue(tmp_path)
    fill(queue, 3)
    queue._fill_gap(55)
    queue.flush(0)
    again = open_queue(tmp_path)
    assert again.get_max_offset_in_queue() == 55
    assert again.covered_phy_offset == again.max_physic_offset == 3 * SIZE


@pytest.mark.parametrize("last", [False, True])
def test_a_file_without_a_length_is_passed_over(tmp_path, last):
    queue = open_queue(tmp_path)
    fill(queue, 25)
    path = tmp_path / "consumequeue/T/0" / f"{400 if last else 200:020d}"
    path.write_bytes(b"")
    if not last:
        # Made, and not forced before a crash that a later file survived.
        queue = open_queue(tmp_path, recover=False)
        assert [f.file_from_offset for f in queue.mapped_file_queue.mapped_files] == [0, 400]
        assert not path.exists()
        return
    again = open_queue(tmp_path)
    assert again.get_max_offset_in_queue() == 20
    fill(again, 3, first=20)
    assert rows_of(open_queue(tmp_path)) == [message(n) for n in range(23)]


@pytest.mark.parametrize("size", [7, 21, 401])
@pytest.mark.parametrize("last", [False, True])
def test_a_file_of_a_wrong_length_is_kept_apart(tmp_path, size, last):
    queue = open_queue(tmp_path)
    fill(queue, 25)
    path = tmp_path / "consumequeue/T/0" / f"{400 if last else 200:020d}"
    path.write_bytes(path.read_bytes()[:size].ljust(size))
    queue = open_queue(tmp_path, recover=False)
    assert path.stat().st_size == size
    assert [file[:3] for file in queue.mapped_file_queue.mismatched] == [
        (str(path), int(path.name), size)
    ]
    assert str(path) not in [f.path for f in queue.mapped_file_queue.mapped_files]


@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.integers(0, 32), st.integers(-1, 33), st.booleans(), st.booleans())
@example(25, 20, False, False)
@example(25, 10, False, True)
def test_truncation_against_the_oracle(tmp_path_factory, count, cut, inside, gap):
    path = tmp_path_factory.mktemp("queue")
    queue = open_queue(path)
    fill(queue, count)
    rows = [message(n) for n in range(count)]
    if gap:
        queue.put_message_position_info((count + 4) * SIZE, SIZE, 1, count + 4)
        rows += [PRE_BLANK] * 4 + [((count + 4) * SIZE, SIZE, 1)]
    limit = max(0, cut * SIZE + (SIZE // 2 if inside else 0))
    queue.truncate_dirty_logic_files(limit)
    kept = rows[: oracle_scan(pack(rows), limit)[0] // 20]
    real = [row for row in kept if row != PRE_BLANK]
    assert len(files_of(path)) == -(-len(kept) // 10), "a file without units is left"
    for checked in (queue, open_queue(path)):
        assert rows_of(checked) == kept
        assert checked.covered_phy_offset == (real[-1][0] + SIZE if real else -1)
    assert queue.max_physic_offset == (real[-1][0] + SIZE if real else limit)
    assert queue.units_before(2**62) == len(kept)
    at = len(kept)
    assert queue.put_message_position_info(9999 * SIZE, SIZE, 3, at)
    assert rows_of(open_queue(path)) == [*kept, (9999 * SIZE, SIZE, 3)]


@settings(max_examples=20, derandomize=True, deadline=None)
@given(st.integers(0, 25), st.integers(0, 26))
def test_units_before_is_what_truncation_leaves(tmp_path_factory, count, cut):
    queue = open_queue(tmp_path_factory.mktemp("queue"))
    fill(queue, count)
    expected = queue.units_before(cut * SIZE)
    queue.truncate_dirty_logic_files(cut * SIZE)
    assert queue.get_max_offset_in_queue() == expected == min(cut, count)


def test_a_queue_cut_to_nothing_takes_its_messages_again(tmp_path):
    queue = open_queue(tmp_path)
    fill(queue, 12)
    queue.correct_min_offset(0)
    queue.truncate_dirty_logic_files(0)
    assert files_of(tmp_path) == {}
    assert queue.max_physic_offset == 0 and queue.covered_phy_offset == -1
    fill(queue, 5)
    assert rows_of(queue) == [message(n) for n in range(5)]
    empty = open_queue(tmp_path / "other")
    empty.truncate_dirty_logic_files(12345)
    assert empty.max_physic_offset == 12345  # as 4.9.3 states it
    assert empty.put_message_position_info(0, SIZE, 0, 0)
    assert empty.max_physic_offset == SIZE


def test_an_empty_last_file_gets_no_unit_of_zeros(tmp_path):
    queue = open_queue(tmp_path)
    fill(queue, 10)
    (tmp_path / "consumequeue/T/0/00000000000000000200").write_bytes(bytes(200))
    again = open_queue(tmp_path)
    again.truncate_dirty_logic_files(10 * SIZE)
    assert again.get_max_offset_in_queue() == 10
    fill(again, 3, first=10)
    assert rows_of(again) == [message(n) for n in range(13)]


def test_an_only_file_without_units_keeps_the_place(tmp_path):
    queue = open_queue(tmp_path)
    fill(queue, 10)
    folder = tmp_path / "consumequeue/T/0"
    (folder / "00000000000000000200").write_bytes(bytes(200))
    (folder / "00000000000000000000").unlink()
    again = open_queue(tmp_path)
    again.truncate_dirty_logic_files(7)
    assert again.get_max_offset_in_queue() == 10
    fill(again, 3, first=10)
    assert rows_of(again, 10) == [message(n) for n in range(10, 13)]


def test_get_last_offset_of_an_exactly_full_file(tmp_path):
    queue = open_queue(tmp_path)
    assert queue.get_last_offset() == -1
    fill(queue, 10)
    assert queue.get_last_offset() == 1000
    assert open_queue(tmp_path).get_last_offset() == 1000


# ---- minimum -----------------------------------------------------------------------------------


def test_the_minimum_of_4_9_3_and_the_right_one(tmp_path):
    queue = open_queue(tmp_path)
    fill(queue, 25)
    for min_phy, stated, right in ((0, 0, 0), (250, 3, 3), (999, 3, 10), (1950, 3, 20)):
        queue.correct_min_offset(min_phy)
        assert queue.get_min_offset_in_queue() == stated
        assert queue.first_readable_offset(min_phy) == right
    assert queue.first_readable_offset(99999) == 25
    fill(queue, 1, first=25)
    assert queue.first_readable_offset(2500) == 25
    assert queue.get_message_total_in_queue() == 23
    assert queue.first_readable_offset(0) == 0, "a lower limit must not use the known answer"


def test_the_minimum_passes_over_pre_blank_units(tmp_path):
    queue = open_queue(tmp_path)
    fill(queue, 2)
    queue.put_message_position_info(13 * SIZE, SIZE, 13, 13)
    assert queue.first_readable_offset(SIZE + 1) == 13
    assert queue.first_readable_offset(SIZE) == 1, "its file ends with pre-blank units"
    assert queue.first_readable_offset(0) == 0
    queue.correct_min_offset(150)
    assert queue.get_min_offset_in_queue() == 0


def test_expired_files_go_but_never_the_last(tmp_path):
    queue = open_queue(tmp_path, min_phy_offset=lambda: 1700)
    fill(queue, 30)
    assert queue.delete_expired_file(900) == 0
    assert queue.delete_expired_file(1700) == 1
    assert queue.get_min_offset_in_queue() == 17
    assert queue.first_readable_offset() == 17
    assert list(files_of(tmp_path)) == [f"{n:020d}" for n in (200, 400)]
    assert rows_of(queue, 5) == []
    assert rows_of(queue, 10) == [message(n) for n in range(10, 30)]
    assert queue.delete_expired_file(99999) == 1
    assert list(files_of(tmp_path)) == ["00000000000000000400"]
    assert queue.first_readable_offset(99999) == 30


# ---- reading without a trace -------------------------------------------------------------------


def trace(path: Path):
    return {
        p: (p.stat().st_mtime_ns, p.is_dir() or p.read_bytes()) for p in sorted(path.rglob("*"))
    }


@pytest.mark.parametrize("count", [3, 10, 25, 30])
def test_a_read_only_queue_leaves_the_directory_alone(tmp_path, count):
    queue = open_queue(tmp_path)
    fill(queue, count)
    queue.flush(0)
    if count % 10:
        poke(tmp_path, count + 1, UNIT.pack(*message(count + 1)))  # of an earlier life
    before = trace(tmp_path)
    view = open_queue(tmp_path, read_only=True)
    assert rows_of(view) == [message(n) for n in range(count)]
    view.truncate_dirty_logic_files((count - 1) * SIZE)
    fill(view, 25, first=count - 1)
    assert view.put_message_position_info(99 * SIZE, SIZE, 99, count + 30)
    expected = [message(n) for n in range(count + 24)] + [PRE_BLANK] * 6 + [(99 * SIZE, SIZE, 99)]
    assert rows_of(view) == expected
    view.correct_min_offset(1100)
    view.delete_expired_file(1100)
    view.flush(0)
    view.detach()
    start = max(count, 10)  # the first file has expired
    assert rows_of(view, start) == expected[start:]
    view.destroy()
    assert trace(tmp_path) == before
    missing = open_queue(tmp_path / "missing", read_only=True)
    fill(missing, 12)
    assert rows_of(missing) == [message(n) for n in range(12)]
    assert not (tmp_path / "missing").exists()


# ---- life and failures -------------------------------------------------------------------------


def test_flush_makes_every_file_durable(tmp_path):
    queue = open_queue(tmp_path)
    assert queue.flush(0)
    fill(queue, 25)
    assert not queue.flush(2), "a full file is forced whatever the pages"
    calls = 1
    while not queue.flush(0):
        calls += 1
    assert queue.mapped_file_queue.flushed_where == 500
    assert [f.flushed for f in queue.mapped_file_queue.mapped_files] == [200, 200, 100]
    assert queue.flush(0) and not queue.core.dirty
    fill(queue, 1, first=25)
    assert not queue.flush(0)
    assert queue.mapped_file_queue.flushed_where == 520
    queue.truncate_dirty_logic_files(SIZE)
    assert queue.mapped_file_queue.flushed_where == 20, "else the next units are never forced"
    fill(queue, 1, first=1)
    assert not queue.flush(0)


def test_a_late_first_unit_is_flushed_with_its_pre_blank_ones(tmp_path):
    queue = open_queue(tmp_path)
    queue.put_message_position_info(13 * SIZE, SIZE, 13, 13)
    assert queue.mapped_file_queue.flushed_where == 260
    assert not queue.flush(0)
    assert queue.mapped_file_queue.flushed_where == 280


def test_destroy_empties_the_queue_and_a_writer_inside_survives(tmp_path):
    queue = open_queue(tmp_path, file_size=20000)
    fill(queue, 5)
    queue.core.min_logic_offset = 40
    file = queue.core.attached_file
    queue.destroy()
    assert not (tmp_path / "consumequeue/T/0").exists()
    assert file.is_mapped and not queue.core.attached, "the writer may still be in there"
    assert (queue.get_max_offset_in_queue(), queue.max_physic_offset) == (0, -1)
    assert queue.get_min_offset_in_queue() == 0
    fill(queue, 3)
    assert not file.is_mapped
    assert rows_of(queue) == [message(n) for n in range(3)]


def test_destroying_under_a_writer_harms_nobody(tmp_path):
    queue = open_queue(tmp_path, file_size=200)
    done = threading.Event()

    def destroy() -> None:
        rng = random.Random(1)
        while not done.is_set():
            queue.destroy()
            done.wait(rng.random() / 500)

    thread = threading.Thread(target=destroy)
    thread.start()
    try:
        for n in range(3000):
            status = queue.core.put(n * SIZE, SIZE, n, queue.core.unit_count)
            if status == Status.NEED_FILE and not queue.core.attached:
                # The file may be deleted before it is attached.
                with contextlib.suppress(StoreStateError):
                    queue.provide_file(queue.core.unit_count)
            # The dispatcher tries again where a file was deleted under it.
            assert status >= 0 or status == -errno.ENOENT
    finally:
        done.set()
        thread.join()


def test_forget_files_starts_again_without_touching_what_was_moved(tmp_path):
    queue = open_queue(tmp_path)
    fill(queue, 12)
    moved = tmp_path / "kept"
    (tmp_path / "consumequeue").rename(moved)
    queue.forget_files()
    assert queue.get_max_offset_in_queue() == 0
    fill(queue, 2)
    assert rows_of(open_queue(tmp_path)) == [message(0), message(1)]
    assert len(list((moved / "T/0").iterdir())) == 2


@pytest.fixture
def no_waiting(monkeypatch):
    monkeypatch.setattr(retries, "MAX_RETRIES", 5)
    monkeypatch.setattr(retries, "RETRY_INTERVAL_S", 0.0)


def test_a_put_waits_while_the_device_is_full(tmp_path, no_waiting):
    env, flags = Env(), RunningFlags()
    queue = open_queue(tmp_path, env=env, flags=flags)
    failing(env, "fallocate", errno.ENOSPC, 3)
    assert queue.put_message_position_info_wrapper(request_of(0))
    assert rows_of(queue) == [message(0)]
    assert flags.is_cq_writeable()


def test_what_does_not_pass_raises_the_flag_and_ends_the_queue(tmp_path, no_waiting):
    env, flags = Env(), RunningFlags()
    queue = open_queue(tmp_path, env=env, flags=flags)
    calls = failing(env, "fallocate", errno.ENOSPC, 10**6)
    with pytest.raises(StoreIOError) as caught:
        queue.put_message_position_info(0, SIZE, 0, 0)
    assert caught.value.errno == errno.ENOSPC
    before = len(calls)
    assert not queue.put_message_position_info_wrapper(request_of(0))
    assert len(calls) - before >= 5
    assert not flags.is_cq_writeable()
    env.reset()
    # A later message must not pass: it would hide that one is missing.
    assert not queue.put_message_position_info_wrapper(request_of(1))
    assert not queue.put_message_position_info(SIZE, SIZE, 1, 1)
    assert not queue.provide_file(0)
    assert queue.get_max_offset_in_queue() == 0
    again = open_queue(tmp_path)
    fill(again, 3)
    assert rows_of(again) == [message(n) for n in range(3)]


def test_a_cause_that_cannot_pass_is_tried_once(tmp_path, no_waiting):
    env, flags = Env(), RunningFlags()
    queue = open_queue(tmp_path, env=env, flags=flags)
    calls = failing(env, "fallocate", errno.EIO, 10**6)
    assert not queue.put_message_position_info_wrapper(request_of(0))
    assert len(calls) == 1
    assert flags.is_logics_queue_error()


def test_a_closed_store_takes_nothing(tmp_path, no_waiting):
    flags = RunningFlags()
    flags.make_logics_queue_error()
    queue = open_queue(tmp_path, flags=flags)
    assert not queue.put_message_position_info_wrapper(request_of(0))
    assert files_of(tmp_path) == {}


def test_an_error_in_the_middle_of_a_gap_is_made_good(tmp_path):
    env = Env()
    queue = open_queue(tmp_path, env=env)
    fill(queue, 3)
    failing(env, "fallocate", errno.ENOSPC, 2)
    with pytest.raises(StoreIOError):
        queue.put_message_position_info(35 * SIZE, SIZE, 35, 35)
    env.reset()
    assert queue.put_message_position_info(35 * SIZE, SIZE, 35, 35)
    expected = [message(n) for n in range(3)] + [PRE_BLANK] * 32 + [message(35)]
    assert rows_of(queue) == rows_of(open_queue(tmp_path)) == expected


# ---- multi-dispatch ----------------------------------------------------------------------------


def test_multi_dispatch_puts_into_every_queue_named(tmp_path):
    queues: dict[tuple[str, int], ConsumeQueue] = {}

    def find(topic: str, queue_id: int) -> ConsumeQueue:
        if (topic, queue_id) not in queues:
            path = str(tmp_path / "consumequeue")
            queues[topic, queue_id] = ConsumeQueue(topic, queue_id, path, FILE_SIZE, Env())
        return queues[topic, queue_id]

    queue = ConsumeQueue("T", 3, str(tmp_path / "consumequeue"), 200, Env())
    names = {"INNER_MULTI_DISPATCH": "%LMQ%a,b,%LMQ%c,,", "INNER_MULTI_QUEUE_OFFSET": "0,2,x"}
    request = DispatchRequest("T", 3, 700, SIZE, 5, 1000, 0, properties_map=names)
    multi_dispatch_lmq_queue(request, find, enable_lmq=True)
    assert set(queues) == {("%LMQ%a", 0), ("b", 3)}
    assert rows_of(queues["%LMQ%a", 0]) == [(700, SIZE, 5)]
    assert rows_of(queues["b", 3], 2) == [(700, SIZE, 5)]
    assert queues["%LMQ%a", 0].is_lmq and not queue.is_lmq
    names["INNER_MULTI_QUEUE_OFFSET"] = "1"
    multi_dispatch_lmq_queue(request, find, enable_lmq=True)
    assert rows_of(queues["%LMQ%a", 0]) == [(700, SIZE, 5)]
