"""Goal: unit n of a queue is the message of queue offset n, whatever was put, lost or damaged.
Method: the compiled walks against plain Python at every cut; queues against a list of units."""

from __future__ import annotations

import ctypes
import errno
import random
import struct
import threading
from pathlib import Path

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyrocketstore import consume_queue
from pyrocketstore._consume_queue import (
    CQ_UNIT_DTYPE,
    VERDICTS,
    decode_units,
    encode_units,
    find_last_unit,
    find_min_unit,
    read_units,
    scan_units,
    truncate_units,
    unit_at,
)
from pyrocketstore.consume_queue import ConsumeQueue
from pyrocketstore.consume_queue_ext import ConsumeQueueExt
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.results import DispatchRequest
from pyrocketstore.store_checkpoint import RunningFlags

UNIT = struct.Struct(">qiq")  # phyOffset, size, tagsCode
PRE_BLANK = (0, 2**31 - 1, 0)
EXT_ADDRESS = -(2**63)
MAX_ADDR = -(2**31) - 1
SIZE = 100  # bytes of each message in the log
FILE_SIZE = 200  # ten units

unit = st.one_of(
    st.just(PRE_BLANK),
    st.tuples(
        st.integers(-2, 2**62),
        st.integers(-1, 2**31 - 1),
        st.sampled_from([0, 7, -3, MAX_ADDR + 1, MAX_ADDR, EXT_ADDRESS]),
    ),
)


# ---- plain Python ------------------------------------------------------------------------------


def pack(rows) -> bytes:
    return b"".join(UNIT.pack(*row) for row in rows)


def unpack(data: bytes):
    return list(UNIT.iter_unpack(data[: len(data) // 20 * 20]))


def oracle_scan(data: bytes, limit: int | None = None) -> tuple[int, int, int]:
    valid, max_phy, address = 0, -1, 1
    for row in unpack(data):
        phy_offset, size, tags_code = row
        if phy_offset < 0 or size <= 0 or (limit is not None and phy_offset >= limit):
            break
        valid += 20
        if row != PRE_BLANK:
            max_phy = phy_offset + size
            address = tags_code if tags_code <= MAX_ADDR else address
    return valid, max_phy, address


# ---- the compiled walks ------------------------------------------------------------------------


def test_the_dtype_is_the_struct_on_disk():
    assert CQ_UNIT_DTYPE.itemsize == 20
    assert [CQ_UNIT_DTYPE.fields[name][1] for name in CQ_UNIT_DTYPE.names] == [0, 8, 12]
    rows = [(1 << 40, 91, -5), (2, 2**31 - 1, EXT_ADDRESS)]
    columns = [numpy.array(c, d) for c, d in zip(zip(*rows, strict=True), "qiq", strict=True)]
    assert encode_units(*columns) == pack(rows) == numpy.array(rows, CQ_UNIT_DTYPE).tobytes()


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(unit, max_size=6))
@example([PRE_BLANK, PRE_BLANK, (0, 91, 0)])
@example([PRE_BLANK])
@example([(5, 9, EXT_ADDRESS), (14, 9, 0)])
def test_scan_agrees_with_the_oracle_at_every_cut(rows):
    raw = pack(rows) + bytes(UNIT.size)
    for cut in range(len(raw) + 1):
        assert scan_units(raw[:cut]) == oracle_scan(raw[:cut]), f"cut at byte {cut}"


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(unit, max_size=6), st.integers(0, 2**62))
def test_truncate_and_searches_agree_with_the_oracle(rows, other):
    raw = pack(rows)
    for limit in {0, 1, other, *(row[0] for row in rows), *(row[0] + 1 for row in rows)}:
        assert truncate_units(raw, limit) == oracle_scan(raw, limit)
        hits = [i * 20 for i, row in enumerate(rows) if row[0] >= limit and row != PRE_BLANK]
        for start in range(0, len(raw) + 20, 20):
            expected = next((hit for hit in hits if hit >= start), -1)
            assert find_min_unit(raw, limit, start) == expected
    real = [i for i, row in enumerate(rows) if row[0] >= 0 and row[1] > 0 and row != PRE_BLANK]
    ext = [i for i in real if rows[i][2] <= MAX_ADDR]
    assert find_last_unit(raw) == (real[-1] * 20 if real else -1)
    assert find_last_unit(raw, with_ext=True) == (ext[-1] * 20 if ext else -1)


def test_a_size_cannot_overflow_the_end():
    raw = pack([(2**63 - 1, 2**31 - 1, 0)])
    assert scan_units(raw)[1] < 2**63
    assert scan_units(pack([(2**63 - 2, 5, 0)]))[0] == 20


@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.lists(unit, max_size=9), st.integers(0, 19), st.integers(0, 3))
def test_columns_hold_what_the_bytes_say(rows, extra, first):
    raw = pack(rows) + b"\x01" * extra
    columns = read_units(raw)
    assert [c.dtype.str[1:] for c in columns] == ["i8", "i4", "i8"]
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == unpack(raw) == rows
    assert encode_units(*columns) == pack(rows)
    target = [numpy.zeros(7, d) for d in "qiq"]
    fits = max(0, min(len(rows), 7 - first))
    assert decode_units(raw, *target, first) == fits
    assert [tuple(int(c[first + i]) for c in target) for i in range(fits)] == rows[:fits]
    for position in range(-1, len(raw) + 2):
        expected = UNIT.unpack_from(raw, position) if 0 <= position <= len(raw) - 20 else None
        assert unit_at(raw, position) == expected


def test_arguments_that_make_no_sense_are_refused():
    one = [numpy.zeros(1, d) for d in "qiq"]
    with pytest.raises(ValueError, match="one length"):
        encode_units(numpy.zeros(2, "q"), one[1], one[2])
    with pytest.raises(ValueError, match="where a unit starts"):
        find_min_unit(bytes(40), 0, 3)
    with pytest.raises(ValueError, match="negative"):
        decode_units(bytes(40), *one, -1)
    with pytest.raises(ValueError, match="read-only"):
        decode_units(bytes(20), *[c for c in one[:2]], numpy.zeros(1, "q").view().copy()) if (
            one[0].setflags(write=False)
        ) else decode_units(bytes(20), *one)


# ---- queues ------------------------------------------------------------------------------------


def open_queue(path: Path, *, file_size: int = FILE_SIZE, recover: bool = True, **settings):
    env = settings.pop("env", None) or Env()
    queue = ConsumeQueue("T", 0, str(path / "consumequeue"), file_size, env, **settings)
    queue.load()
    if recover:
        queue.recover()
    return queue


def fill(queue: ConsumeQueue, count: int, first: int = 0) -> None:
    for n in range(first, first + count):
        assert queue.put_message_position_info(n * SIZE, SIZE, n, n)


def rows_of(queue: ConsumeQueue, start: int = 0):
    return list(zip(*(c.tolist() for c in queue.read_units(start, 1 << 20)), strict=True))


def message(n: int) -> tuple[int, int, int]:
    return (n * SIZE, SIZE, n)


def files_of(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((path / "consumequeue/T/0").glob("*"))}


def poke(path: Path, unit_index: int, data: bytes, file_size: int = FILE_SIZE) -> None:
    position = unit_index * 20
    name = f"{position // file_size * file_size:020d}"
    with open(path / "consumequeue/T/0" / name, "r+b") as file:
        file.seek(position % file_size)
        file.write(data)


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
    assert core.put(0, SIZE, 0, 0) == VERDICTS["RS_NEED_FILE"]
    assert core.put(0, SIZE, 0, 1) == VERDICTS["RS_NEED_PYTHON"]
    assert queue.provide_file(0) and core.attached
    for n in range(10):
        assert core.put(n * SIZE, SIZE, n, n) == VERDICTS["RS_OK"]
    assert core.dirty
    assert core.put(9 * SIZE, SIZE, 9, 9) == VERDICTS["RS_REPEAT"]
    assert core.put(10 * SIZE, SIZE, 9, 11) == VERDICTS["RS_NEED_PYTHON"]
    assert core.put(11 * SIZE, 0, 9, 10) == VERDICTS["RS_NEED_PYTHON"]
    assert core.put(10 * SIZE, SIZE, 10, 10) == VERDICTS["RS_NEED_FILE"]
    assert queue.provide_file(10)
    assert core.put(10 * SIZE, SIZE, 10, 10) == VERDICTS["RS_OK"]
    core.detach()
    assert core.put(11 * SIZE, SIZE, 11, 11) == VERDICTS["RS_NEED_FILE"]
    assert queue.provide_file(11)
    assert core.put(11 * SIZE, SIZE, 11, 11) == VERDICTS["RS_OK"]
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


def test_what_lies_behind_the_end_is_zeroed_before_it_is_reached(tmp_path):
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


@pytest.mark.parametrize("size", [0, 7, 21])
@pytest.mark.parametrize("last", [False, True])
def test_a_file_of_a_wrong_length_is_refused_by_name(tmp_path, size, last):
    queue = open_queue(tmp_path)
    fill(queue, 25)
    name = "00000000000000000400" if last else "00000000000000000200"
    path = tmp_path / "consumequeue/T/0" / name
    path.write_bytes(path.read_bytes()[:size])
    if last and size == 0:
        again = open_queue(tmp_path)
        assert again.get_max_offset_in_queue() == 20
        fill(again, 3, first=20)
        assert rows_of(open_queue(tmp_path)) == [message(n) for n in range(23)]
        return
    with pytest.raises(StoreCorruptionError, match=name):
        open_queue(tmp_path)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.integers(0, 32), st.integers(-1, 33), st.booleans(), st.booleans())
def test_truncation_against_the_oracle(tmp_path_factory, count, cut, inside, gap):
    path = tmp_path_factory.mktemp("queue")
    queue = open_queue(path)
    fill(queue, count)
    rows = [message(n) for n in range(count)]
    if gap:
        queue.put_message_position_info((count + 4) * SIZE, SIZE, 1, count + 4)
        rows += [PRE_BLANK] * 4 + [((count + 4) * SIZE, SIZE, 1)]
        if not count:
            rows = [*rows]
    limit = max(0, cut * SIZE + (SIZE // 2 if inside else 0))
    queue.truncate_dirty_logic_files(limit)
    files = [rows[i : i + 10] for i in range(0, len(rows), 10)]
    while files and oracle_scan(pack(files[-1]), limit)[0] == 0:
        files.pop()
    kept = [row for rows_ in files for row in rows_]
    if files:
        kept = kept[: len(kept) - len(files[-1])]
        kept += files[-1][: oracle_scan(pack(files[-1]), limit)[0] // 20]
    real = [row for row in kept if row != PRE_BLANK]
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


# ---- time --------------------------------------------------------------------------------------


def oracle_by_time(rows, base, timestamp, times, min_logic=0, min_phy=0):
    """The search of 4.9.3, in its own arithmetic."""
    low, high = max(0, min_logic - base), len(rows) * 20 - 20
    left = right = target = left_time = right_time = -1
    while high >= low:
        middle = (low + high) // 40 * 20
        phy_offset = rows[middle // 20][0]
        if phy_offset < min_phy:
            low, left = middle + 20, middle
            continue
        stored = times.get(phy_offset, -1)
        if stored < 0:
            return 0
        if stored == timestamp:
            target = middle
            break
        if stored > timestamp:
            high, right, right_time = middle - 20, middle, stored
        else:
            low, left, left_time = middle + 20, middle, stored
    if target != -1:
        position = target
    elif left_time == -1:
        position = right
    elif right_time == -1:
        position = left
    else:
        far = abs(timestamp - left_time) > abs(timestamp - right_time)
        position = right if far else left
    return int((base + position) / 20)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=10), st.integers(98, 145), st.data())
def test_offset_by_time_is_what_4_9_3_finds(tmp_path_factory, steps, timestamp, data):
    queue = open_queue(tmp_path_factory.mktemp("queue"))
    first = data.draw(st.sampled_from([0, 10]))
    times, now = {}, 100
    for n, step in enumerate(steps):
        now += step
        times[(first + n) * SIZE] = now
        assert queue.put_message_position_info((first + n) * SIZE, SIZE, 0, first + n)
    rows = rows_of(queue, first)
    min_phy = data.draw(st.integers(0, len(steps) + 1)) * SIZE + first * SIZE
    queue.core.min_logic_offset = min_logic = data.draw(st.integers(0, first + 2)) * 20

    def pickup(phy_offset, size):
        return times[phy_offset]

    found = queue.get_offset_in_queue_by_time(timestamp, pickup, min_phy)
    assert found == oracle_by_time(rows, first * 20, timestamp, times, min_logic, min_phy)
    expected = next(
        (
            first + n
            for n, row in enumerate(rows)
            if row[0] >= min_phy and times[row[0]] >= timestamp
        ),
        queue.get_max_offset_in_queue(),
    )
    assert queue.lower_bound_by_time(timestamp, pickup, min_phy) == expected


def test_offset_by_time_chooses_the_file_by_its_mtime(tmp_path):
    import os

    queue = open_queue(tmp_path)
    fill(queue, 25)
    queue.flush(0)
    for n, seconds in enumerate((1000, 2000, 3000)):
        os.utime(tmp_path / "consumequeue/T/0" / f"{n * 200:020d}", (seconds, seconds))
    again = open_queue(tmp_path, min_phy_offset=lambda: 0)

    def pickup(phy_offset, size):
        return phy_offset * 1000  # unit n is stored at n * 100 s

    assert again.get_offset_in_queue_by_time(900_000, pickup) == 9
    assert again.get_offset_in_queue_by_time(1_500_000, pickup) == 15
    assert again.get_offset_in_queue_by_time(9_000_000, pickup) == 24
    assert again.lower_bound_by_time(1_500_001, pickup) == 16
    # Nothing live is left in the second file: -1 is divided as Java does.
    assert again.get_offset_in_queue_by_time(1_500_000, pickup, 10**9) == 9
    assert again.get_offset_in_queue_by_time(900_000, pickup, 10**9) == 0
    assert again.get_offset_in_queue_by_time(900_000, lambda phy_offset, size: -1) == 0


def test_lower_bound_passes_over_what_cannot_be_read(tmp_path):
    queue = open_queue(tmp_path, min_phy_offset=lambda: 0)
    fill(queue, 5)
    queue.put_message_position_info(45 * SIZE, SIZE, 45, 45)
    fill(queue, 5, first=46)
    unreadable = {3 * SIZE, 47 * SIZE}

    def pickup(phy_offset, size):
        return -1 if phy_offset in unreadable else phy_offset // SIZE

    live = [n for n in (*range(5), *range(45, 51)) if n * SIZE not in unreadable]
    for timestamp in range(-1, 53):
        expected = next((n for n in live if n >= timestamp), 51)
        assert queue.lower_bound_by_time(timestamp, pickup) == expected
    empty = open_queue(tmp_path / "empty", min_phy_offset=lambda: 0)
    assert empty.lower_bound_by_time(5, pickup) == 0
    assert empty.get_offset_in_queue_by_time(5, pickup) == 0
