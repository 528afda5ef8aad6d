"""Goal: an expression of tags selects the messages that a 4.9.3 consumer with it would get.
Method: expressions with blanks, empty parts and odd types; codes of units against a plain rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyrocketstore import StoreTypeError
from pyrocketstore.record._text import tags_code
from pyrocketstore.record.message import SCHEDULE_TOPIC
from pyrocketstore.record.tags import tags_filter


@pytest.mark.parametrize("expression", [None, "", "*", " ", "\t*\n", "\0"])
def test_every_message(expression: str | None) -> None:
    assert tags_filter(expression) is None


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("A", {"A"}),
        ("A||B", {"A", "B"}),
        (" A || B\t", {"A", "B"}),
        ("A|| ||A", {"A"}),
        ("A|B", {"A|B"}),
        ("A|||B", {"A", "|B"}),
        ("||", set()),
        ("* || A", {"*", "A"}),
        ("\u00a0A", {"\u00a0A"}),
        ("a||A", {"a", "A"}),
        ("\ud800 || A", {"A"}),
    ],
)
def test_the_tags_of_an_expression(expression: str, tags: set[str]) -> None:
    found = tags_filter(expression)
    assert found is not None and found.tags == tags
    assert sorted(found.codes.tolist()) == sorted(tags_code(tag) for tag in tags)


class Text(str):
    """A subclass, which is converted to its exact type."""


def test_a_subclass_of_str_is_converted() -> None:
    found = tags_filter(Text("A"))
    assert found is not None and {type(tag) for tag in found.tags} == {str}
    assert tags_filter(Text("*")) is None


@pytest.mark.parametrize("expression", [b"A", 1, ["A"], {"A"}, True, 1.5])
def test_other_types_are_refused(expression: Any) -> None:
    with pytest.raises(StoreTypeError, match=r"tags is .*must be a str as 'TagA \|\| TagB'"):
        tags_filter(expression)


def test_units_that_may_name_a_message() -> None:
    found = tags_filter("A || B")
    assert found is not None
    codes = [
        tags_code("A"),
        tags_code("B"),
        tags_code("C"),
        0,
        2**31 - 1,
        -(2**31),
        2**31,
        -(2**31) - 1,
        2**63 - 1,
        -(2**63),
    ]
    expected = [True, True, False, False, False, False, True, True, True, True]
    assert found.may_match(np.array(codes, np.int64), "t").tolist() == expected
    assert found.may_match(np.array(codes, np.int64), SCHEDULE_TOPIC).all()
    assert found.may_match(np.empty(0, np.int64), "t").tolist() == []


def test_an_expression_without_a_tag_matches_no_plain_unit() -> None:
    found = tags_filter("||")
    assert found is not None
    assert found.may_match(np.array([0, 5, 2**40], np.int64), "t").tolist() == [False, False, True]
