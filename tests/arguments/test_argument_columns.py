"""Goal: a column of a call is a list of its entries, or is refused by name and reason.
Method: sequences, NumPy arrays and Arrow arrays of each kind, valid and not."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from pyrocketstore import StoreFormatError, StoreTypeError
from pyrocketstore.arguments.columns import column_of, is_number

pa = pytest.importorskip("pyarrow")

BODIES = [b"a", None, b"\0c"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, True),
        (True, True),
        (np.int64(1), True),
        (np.array(1), True),
        (np.array([1]), False),
        (np.array([]), False),
        ([1], False),
        (None, False),
        ("1", False),
        (1.5, False),
    ],
)
def test_one_number_for_all_rows(value: object, expected: bool) -> None:
    assert is_number(value) is expected


@pytest.mark.parametrize(
    "values",
    [
        BODIES,
        tuple(BODIES),
        iter(BODIES),
        (body for body in BODIES),
        np.array(BODIES, object),
        pa.array(BODIES, pa.binary()),
        pa.chunked_array([pa.array(BODIES[:1], pa.binary()), pa.array(BODIES[1:], pa.binary())]),
    ],
)
def test_every_kind_of_column_is_a_list(values: Any) -> None:
    assert column_of("bodies", values, 3) == BODIES


def test_a_list_is_copied() -> None:
    values = [1, 2]
    found = column_of("a", values, 2)
    values.append(3)
    assert found == [1, 2]


def test_no_column_is_a_column_of_none() -> None:
    assert column_of("keys", None, 3) == [None] * 3
    assert column_of("keys", None, 0) == []
    with pytest.raises(StoreTypeError, match="keys must be a sequence"):
        column_of("keys", None, None)


def test_the_entries_of_arrays_are_plain() -> None:
    assert [type(one) for one in column_of("a", np.array([1, 2]), 2)] == [int, int]
    assert column_of("a", np.array([b"x\0"], "V2"), 1) == [b"x\0"]
    assert column_of("a", array.array("q", [5]), 1) == [5]


@pytest.mark.parametrize(
    "values",
    ["abc", b"abc", bytearray(b"abc"), memoryview(b"abc"), {1: 2}, {1, 2, 3}, 5, 1.5, object()],
)
def test_what_is_not_a_column_is_refused(values: Any) -> None:
    with pytest.raises(StoreTypeError, match="tags must be a sequence with one entry a message"):
        column_of("tags", values, 3)


@pytest.mark.parametrize("values", [[1], [], (1, 2), np.array([1]), pa.array([1, 2])])
def test_another_number_of_entries_is_refused(values: Any) -> None:
    with pytest.raises(StoreFormatError, match=rf"tags has {len(values)} entries for 3 bodies"):
        column_of("tags", values, 3)
    assert len(column_of("tags", values, None)) == len(values)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.array([[1, 2]]), "one dimension, not 2"),
        (np.array(5), "one dimension, not 0"),
        (np.array([b"a\0"]), "NumPy drops the zeros"),
        (np.array(["2024-01-01"], "M8[s]"), "a time"),
        (np.array([1], "m8[ms]"), "a time"),
    ],
)
def test_arrays_whose_entries_would_change_are_refused(values: Any, reason: str) -> None:
    with pytest.raises(StoreTypeError, match=reason):
        column_of("bodies", values, None)


def maps(*rows: Any) -> pa.MapArray:
    return pa.array(list(rows), pa.map_(pa.string(), pa.string()))


def test_arrow_maps_are_dicts() -> None:
    values = maps([("a", "1"), ("b", None)], None, [])
    assert column_of("properties", values, 3) == [{"a": "1", "b": None}, None, {}]


def test_a_list_of_pairs_is_no_map() -> None:
    pairs = pa.array([[("a", "1")]], pa.list_(pa.struct([("x", pa.string()), ("y", pa.string())])))
    (found,) = column_of("properties", pairs, 1)
    assert not isinstance(found, dict)


def test_a_name_twice_in_a_map_is_refused() -> None:
    with pytest.raises(StoreFormatError, match=r"properties\[1\]: the name 'a' is there twice"):
        column_of("properties", maps([("a", "1")], [("a", "1"), ("a", "2")]), 2)


@pytest.mark.bad_input
def test_offsets_beyond_the_data_of_an_arrow_array_are_refused() -> None:
    buffers = [None, pa.py_buffer(np.array([0, 1 << 20, 3], np.int32)), pa.py_buffer(b"abc")]
    broken = pa.Array.from_buffers(pa.binary(), 2, buffers)
    with pytest.raises(StoreFormatError, match="bodies is not a valid Arrow array"):
        column_of("bodies", broken, 2)


def test_text_that_is_not_utf8_is_refused() -> None:
    broken = pa.array([b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(StoreFormatError, match="tags"):
        column_of("tags", broken, 1)
