"""Goal: `where=` is a filter or is refused, and rows and messages pass it alike.
Method: arguments of each kind; an iterator and record batches with known properties."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyrocketstore import Sql92Filter, StoreFormatError, StoreTypeError
from pyrocketstore.reading.matching import (
    MatchingMessages,
    columns_with_properties,
    matching_rows,
    selected,
    where_of,
)

pa = pytest.importorskip("pyarrow")

ROWS: list[dict[str, str]] = [{"a": "1"}, {"a": "2", "b": "x"}, {}, {"b": "x"}, {"a": "3"}]
MAP = pa.map_(pa.string(), pa.string())


def test_an_argument_is_a_filter() -> None:
    assert where_of(None) is None
    found = where_of("a > 1")
    assert isinstance(found, Sql92Filter) and found.matches({"a": "2"})
    assert where_of(found) is found


@pytest.mark.parametrize("value", [1, b"a > 1", ["a"], True, object()])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(StoreTypeError, match="where must be a str, a Sql92Filter or None"):
        where_of(value)


def test_a_text_that_is_no_filter_is_refused() -> None:
    for text in ("", "a >", "a = = 1"):
        with pytest.raises(StoreFormatError):
            where_of(text)


def test_a_filter_without_a_text_is_refused() -> None:
    with pytest.raises(StoreTypeError, match="made without a text"):
        where_of(Sql92Filter.__new__(Sql92Filter))


class Message:
    def __init__(self, properties: dict[str, str]) -> None:
        self.properties = properties


class Reader:
    """The reader below MatchingMessages; counts the messages that it returned."""

    skipped = "the skipped ones"

    def __init__(self) -> None:
        self._rows = iter(ROWS)
        self.count = 0

    def __next__(self) -> Message:
        row = next(self._rows)
        self.count += 1
        return Message(row)


@pytest.mark.parametrize("text", ["a > 1", "b = 'x'", "a IS NULL", "a > 5", "TRUE"])
def test_messages_and_rows_pass_alike(text: str) -> None:
    where = Sql92Filter(text)
    expected = [row for row in ROWS if where.matches(row)]
    reader = Reader()
    found = MatchingMessages(reader, where)  # type: ignore[arg-type]
    assert [message.properties for message in found] == expected
    assert found.skipped == "the skipped ones" and reader.count == len(ROWS)
    rows = selected(pa.array([list(row.items()) for row in ROWS], MAP), where)
    assert [row for row, passes in zip(ROWS, rows, strict=True) if passes] == expected


def test_a_message_is_returned_before_the_next_is_read() -> None:
    reader = Reader()
    where = Sql92Filter("a > 1")
    found: Iterator[Any] = iter(MatchingMessages(reader, where))  # type: ignore[arg-type]
    assert next(found).properties == ROWS[1] and reader.count == 2


def test_of_a_name_twice_the_last_one_counts() -> None:
    twice = pa.array([[("a", "1"), ("a", "2")]], MAP)
    assert selected(twice, Sql92Filter("a = 2")).tolist() == [True]
    assert selected(twice, Sql92Filter("a = 1")).tolist() == [False]


def test_the_properties_are_read_too() -> None:
    assert "properties_map" in columns_with_properties(None)
    assert columns_with_properties(["body"]) == ("body", "properties_map")
    assert columns_with_properties(["properties_map", "body"]) == ("properties_map", "body")
    with pytest.raises(StoreFormatError):
        columns_with_properties(["no_such_column"])


def test_the_rows_have_the_wanted_columns_and_the_metadata() -> None:
    named = pa.array([list(row.items()) for row in ROWS], MAP)
    bodies = pa.array([b"%d" % number for number in range(len(ROWS))])
    batch = pa.record_batch([bodies, named], ["body", "properties_map"])
    batch = batch.replace_schema_metadata({b"next_offset": b"5"})
    found = matching_rows(batch, Sql92Filter("b = 'x'"), ["body"])
    assert found.to_pydict() == {"body": [b"1", b"3"]}
    assert found.schema.metadata == {b"next_offset": b"5"}
    none = matching_rows(batch, Sql92Filter("a > 5"), ["body"])
    assert none.num_rows == 0 and none.schema.names == ["body"]
