"""Goal: scans of units end at the right unit, and searches find the right one.
Method: compare with plain Python at every cut, and the search by time with the arithmetic of
4.9.3."""

from __future__ import annotations

import os

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyrocketstore.consume_queue._units import (
    CQ_UNIT_DTYPE,
    decode_units,
    encode_units,
    find_last_unit,
    find_min_unit,
    read_units,
    scan_units,
    truncate_units,
    unit_at,
)
from support.queues import (
    EXT_ADDRESS,
    MAX_ADDR,
    PRE_BLANK,
    SIZE,
    UNIT,
    fill,
    open_queue,
    oracle_scan,
    pack,
    rows_of,
    unpack,
)

unit = st.one_of(
    st.just(PRE_BLANK),
    st.tuples(
        st.integers(-2, 2**62),
        st.integers(-1, 2**31 - 1),
        st.sampled_from([0, 7, -3, MAX_ADDR + 1, MAX_ADDR, EXT_ADDRESS]),
    ),
)


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
    with pytest.raises(ValueError, match="must be a multiple"):
        find_min_unit(bytes(40), 0, 3)
    with pytest.raises(ValueError, match="negative"):
        decode_units(bytes(40), *one, -1)
    one[0].setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        decode_units(bytes(20), *one)


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
