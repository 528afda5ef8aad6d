"""Goal: each fact about the filters of 4.9.3 has a case, and odd input is refused in plain words.
Method: the facts were asked of 4.9.3's filter jar (test_sql92_java); here they need no Java."""

from __future__ import annotations

import copy
import pickle
import random
import subprocess
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow
import pytest

from pyrocketstore.errors import StoreFormatError, StoreTypeError, StoreWarning
from pyrocketstore.filter.grammar import LEVELS_MAX
from pyrocketstore.filter.java_numbers import NotANumber, double_of, int32_of, int64_of, java_order
from pyrocketstore.filter.sql92 import Sql92Filter
from support.seed import SEED

RAISES = "raises"


def value(text: str, properties: Mapping[str, str]) -> object:
    """Return the value of a filter: True, False, None, or RAISES; check `matches` and `select`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        one = Sql92Filter(text)
    try:
        answer = one._condition.value(properties)
    except NotANumber:
        answer = RAISES
    assert one.matches(properties) is (answer is True)
    columns = {name: [properties.get(name)] * 40 for name in one.names}
    assert one.select(40, columns).tolist() == [answer is True] * 40
    return answer


def refusal(text: str) -> str:
    with pytest.raises(StoreFormatError) as caught:
        Sql92Filter(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a = '5'", True),
        ("a='5'and b='x'", True),
        ("a\t\n\r\f=\n'5'", True),
        ("a -- one\r = -- two\r\n '5'-- three\n --", True),
        ("a /* * / ** */ = -- to the end of the line\n '5'", True),
        ("NoT (a = '6') aNd b Is nOt nUlL", True),
        ("A = '5'", None),  # names have case
        ("_missing$1 IS NULL", True),
        ("quoted = 'it''s'", True),
        ("empty = ''", True),
        ("lines = 'a\nb'", True),
        ("TAGS = 'TagA' AND KEYS = 'k1 k2'", True),  # properties as all others
    ],
)
def test_tokens(text: str, answer: object) -> None:
    properties = {"a": "5", "b": "x", "quoted": "it's", "empty": "", "lines": "a\nb"}
    assert value(text, {**properties, "TAGS": "TagA", "KEYS": "k1 k2"}) is answer


@pytest.mark.parametrize(
    ("literal", "answer"),
    [
        ("5", True),
        ("5L", True),
        ("5l", True),
        ("5.", True),
        ("5.0", True),
        ("5e0", True),
        ("50E-1", True),
        ("0.5e+1", True),
        ("00005.0", True),
        ("+5", True),
        ("- -5", True),
        ("--5", True),  # a comment needs the end of a line
        ("-5", False),
        ("2147483647", False),
        ("2147483648", False),
        ("9223372036854775807", False),
        ("1.7976931348623157e308", False),
        ("4.9e-324", False),
    ],
)
def test_numbers(literal: str, answer: bool) -> None:
    assert value(f"a = {literal}", {"a": "5"}) is answer


@pytest.mark.parametrize(
    ("literal", "reason"),
    [
        ("9223372036854775808", "is greater than 9223372036854775807"),
        ("-9223372036854775808", "is greater than 9223372036854775807"),
        ("9" * 5000, "is greater than 9223372036854775807"),
        ("0.0", "must be greater than 0"),
        ("1e-400", "must be greater than 0"),
        ("1e400", "is greater than every double"),
        ("NULL", "use IS NULL or IS NOT NULL"),
    ],
)
def test_refused_operands_of_equal(literal: str, reason: str) -> None:
    assert reason in refusal(f"a = {literal}")
    assert reason in refusal(f"a <> {literal}")


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 1, "the text ends; expected: (, +, -, FALSE"),
        (" \t ", 4, "the text ends; expected: ("),
        ("a =", 4, "the text ends"),
        ("a == 1", 4, "'=' is not expected; expected: (, +"),
        ("a != 1", 3, "'!' is not part of the language"),
        ("a = 1;", 6, "';' is not part of the language"),
        ('a = "x"', 5, "is not part of the language"),
        ("a.b = 1", 2, "'.' is not part of the language"),
        ("é = 1", 1, "is not part of the language"),
        ("ſ = 1", 1, "is not part of the language"),
        ("a\x0b= 1", 2, r"'\\x0b' is not part"),
        ("a\u00a0= 1", 2, "is not part of the language"),
        ("a = 'x", 5, "no closing quote"),
        ("a = 'x''", 8, "no closing quote"),
        ("a = 1 /* x", 7, "no end"),
        ("a IN ()", 7, "')' is not expected; expected: a string in single quotes"),
        ("a IN (1)", 7, "expected: a string in single quotes"),
        ("a IN ('x'", 10, "expected: ), ,"),
        ("5 IN ('x')", 3, "5 IN: only a property can be in a list"),
        ("NOT a IN ('x')", 7, "a condition IN: only a property"),
        ("a IS 5", 6, "expected: NOT, NULL"),
        ("a NOT 5", 7, "expected: BETWEEN, IN"),
        ("a BETWEEN 1", 12, "the text ends; expected: AND"),
        ("a BETWEEN 1 OR 2", 13, "'OR' is not expected; expected: AND"),
        ("a BETWEEN 5 AND 1", 3, "BETWEEN 5 AND 1: the first is greater"),
        ("a BETWEEN 'a' AND 'b'", 3, "'a' has no order"),
        ("a BETWEEN NULL AND 1", 3, "has no order"),
        ("a > 'x'", 3, "'x' has no order; only properties and numbers are less or greater"),
        ("a > TRUE", 3, "TRUE has no order"),
        ("a > 1 > 2", 7, "a condition has no order"),
        ("NOT a > 5", 7, "a condition has no order"),
        ("TRUE = 1", 6, "TRUE cannot be compared with 1"),
        ("NULL = 1", 6, "NULL is equal to nothing"),
        ("1", 1, "1 is not a condition; compare it with something"),
        ("a AND 'x'", 3, "'x' is not a condition"),
        ("a OR -b", 3, "is not a condition"),
        ("-a", 1, "is not a condition"),
        ("NOT 5", 1, "5 is not a condition"),
        ("(a IS NULL > 5)", 12, "'>' is not expected; expected: )"),
        ("(a", 3, "the text ends"),
        ("a = +", 6, "the text ends"),
    ],
)
def test_refused_texts(text: str, position: int, reason: str) -> None:
    found = refusal(text)
    assert f", character {position}: " in found
    assert reason.replace("\\\\", "\\") in found.replace("\\\\", "\\")


@pytest.mark.parametrize(
    ("text", "names", "ignored"),
    [
        ("a LIKE 'x%'", ("a",), "LIKE 'x%'"),
        ("a CONTAINS 'x'", ("a",), "CONTAINS 'x'"),
        ("a + 1 > 5", ("a",), "+ 1 > 5"),
        ("my-name = 1", ("my",), "-name = 1"),
        ("a = 007", ("a",), "07"),
        ("a = 0x1F", ("a",), "x1F"),
        ("a = 0L AND b = 1", ("a",), "L AND b = 1"),
        ("a = 1) OR b = 2", ("a",), ") OR b = 2"),
        ("a IS NULL > b", ("a",), "> b"),
        ("a = 1 b @ ' /*", ("a",), "b @ ' /*"),
        ("a = 1 -- no end of line", ("a",), "-- no end of line"),
    ],
)
def test_the_rest_of_a_text_is_ignored_with_a_warning(
    text: str, names: tuple[str, ...], ignored: str
) -> None:
    with pytest.warns(StoreWarning, match="does not belong to the filter: 4.9.3 ignores it"):
        one = Sql92Filter(text)
    assert (one.text, one.names, one.ignored) == (text, names, ignored)


def test_a_whole_text_ignores_nothing() -> None:
    one = Sql92Filter(" b > 1 AND a IN ('x') OR b < 0 -- end\n")
    assert one.names == ("b", "a")
    assert one.ignored == ""


PRESENT = {"a": "5", "b": "5.5", "t": "true", "case": "tRuE", "x": "abc", "big": "3000000000"}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        # A property becomes the kind of number that it is compared with.
        ("a > 4", True),
        ("a > 4.5", True),
        ("a = 5", True),
        ("a = 5.0", True),
        ("b > 5", RAISES),
        ("b > 5.0", True),
        ("x > 5", RAISES),
        ("x > 5.5", RAISES),
        ("x = 5", RAISES),
        ("x <> 5", RAISES),
        ("5 = x", RAISES),
        ("big > 5", RAISES),  # no int32
        ("big > 5L", RAISES),
        ("big > 5.0", True),
        ("big > 2147483648", True),
        ("big > -2147483648", True),  # a negative long
        ("big > -2147483647", RAISES),
        ("missing > 5", None),
        ("5 < missing", None),
        ("a < b", True),  # two properties: doubles
        ("a < x", RAISES),
        ("a < missing", None),
        # Equality of texts compares characters.
        ("a = '5'", True),
        ("a = '5.0'", False),
        ("a = b", False),
        ("'x' = 'x'", True),
        ("1 = 1.0", True),
        ("1 = 'x'", RAISES),
        ("9007199254740993 = 9007199254740992.0", True),  # the long becomes a double
        # NULL on one side.
        ("missing = 5", None),
        ("missing <> 5", None),
        ("a = missing", False),
        ("a <> missing", True),
        ("missing = a", None),
        ("missing = gone", True),
        ("missing <> gone", False),
        ("missing IS NULL", True),
        ("missing IS NOT NULL", False),
        ("a IS NULL", False),
        ("NULL IS NULL", True),
        ("NULL", None),
        ("NOT NULL", None),
        ("5 IS NULL", False),
        # Booleans.
        ("TRUE", True),
        ("FALSE", False),
        ("t", False),
        ("NOT t", True),
        ("missing", None),
        ("NOT missing", None),
        ("t = TRUE", True),
        ("case = TRUE", True),
        ("x = FALSE", True),
        ("TRUE = t", RAISES),
        ("1 = TRUE", False),
        ("missing = TRUE", None),
        ("(a = 5) = TRUE", True),
        ("(a = 5) = t", RAISES),
        ("t = (a = 5)", True),
        ("a = 5 IS NULL", False),
        ("missing = 5 IS NULL", True),
        ("(x = 5) IS NULL", RAISES),
        # Signs.
        ("a > -5", True),
        ("a = -'x'", False),
        ("missing = -'x'", True),
        ("-a > 5", None),
        ("-a = -b", True),
        ("-(a = 5) IS NULL", True),
        ("-(x = 5) IS NULL", RAISES),
        ("missing > -(x = 5)", None),
        ("missing > -(x = 5) OR TRUE", True),
        ("missing = -(x = 5) OR TRUE", RAISES),
        ("+a IN ('5')", True),
        # Lists and ranges.
        ("a IN ('5')", True),
        ("a IN ('4', '5', '6', '7', '8', '9')", True),
        ("a NOT IN ('5', '6')", False),
        ("b NOT IN ('5')", True),
        ("missing IN ('5')", None),
        ("missing NOT IN ('5')", None),
        ("(a) IN ('5')", True),
        ("a BETWEEN 5 AND 5", True),
        ("a NOT BETWEEN 5 AND 9", False),
        ("a NOT BETWEEN 9 AND 1", True),
        ("a BETWEEN -1 AND -5", False),
        ("x BETWEEN 1 AND 2", RAISES),
        ("missing BETWEEN 1 AND 2", None),
        ("5 BETWEEN 1 AND 9", True),
        ("a BETWEEN 1 AND 9 AND b BETWEEN 1.0 AND 9.0", True),
        ("a BETWEEN 9007199254740993 AND 9007199254740992.0", False),
    ],
)
def test_values(text: str, answer: object) -> None:
    assert value(text, PRESENT) == answer


T, F, N, E = "TRUE", "FALSE", "NULL", "x = 5"
ANSWERS = {T: True, F: False, N: None, E: RAISES}


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        (T, T, T, T), (T, F, F, T), (T, N, N, T), (T, E, E, T),
        (F, T, F, T), (F, F, F, F), (F, N, F, N), (F, E, F, E),
        (N, T, N, T), (N, F, F, N), (N, N, N, N), (N, E, E, E),
        (E, T, E, E), (E, F, E, E), (E, N, E, E), (E, E, E, E),
    ],
)  # fmt: skip
def test_three_valued_logic(left: str, right: str, both: str, either: str) -> None:
    assert value(f"{left} AND {right}", PRESENT) == ANSWERS[both]
    assert value(f"({left} OR {right})", PRESENT) == ANSWERS[either]
    assert value(f"TRUE AND ({left} OR {right} OR FALSE)", PRESENT) == ANSWERS[either]
    decided = True if both != E else RAISES  # an exception ends the whole filter
    assert value(f"({left} AND {right}) OR TRUE", PRESENT) == decided


def test_precedence() -> None:
    assert value("TRUE OR TRUE AND FALSE", {}) is True
    assert value("(TRUE OR TRUE) AND FALSE", {}) is False
    assert value("NOT FALSE AND FALSE", {}) is False
    assert value("TRUE = 1 < 2", {}) is True  # < binds more than =
    assert value("a = b = t", {"a": "1", "b": "1", "t": "true"}) == RAISES  # from the left


def test_not_binds_to_one_operand() -> None:
    assert value("NOT t = FALSE", {"t": "true"}) is False  # (NOT t) = FALSE: t is not a boolean
    assert value("NOT (t = FALSE)", {"t": "true"}) is True


@pytest.mark.parametrize(
    ("text", "int32", "int64", "double"),
    [
        ("5", 5, 5, 5.0),
        ("+5", 5, 5, 5.0),
        ("-0", 0, 0, -0.0),
        ("0" * 5000 + "5", 5, 5, 5.0),
        ("9" * 5000, None, None, float("inf")),
        ("2147483647", 2147483647, 2147483647, 2147483647.0),
        ("2147483648", None, 2147483648, 2147483648.0),
        ("-2147483648", -2147483648, -2147483648, -2147483648.0),
        ("9223372036854775807", None, 9223372036854775807, 9223372036854775807.0),
        ("9223372036854775808", None, None, 9223372036854775808.0),
        ("-9223372036854775809", None, None, -9223372036854775809.0),
        ("٣", 3, 3, None),
        ("-５", -5, -5, None),
        ("𝟓", None, None, None),
        ("²", None, None, None),
        ("", None, None, None),
        ("+", None, None, None),
        ("+-5", None, None, None),
        ("5_0", None, None, None),
        (" 5 ", None, None, 5.0),
        ("\x00\t5\n", None, None, 5.0),
        ("\u00a05", None, None, None),
        ("5f", None, None, 5.0),
        ("5.5D", None, None, 5.5),
        ("5L", None, None, None),
        (".5", None, None, 0.5),
        (".", None, None, None),
        ("1e400", None, None, float("inf")),
        ("0e99999999999", None, None, 0.0),
        ("-Infinity", None, None, float("-inf")),
        ("infinity", None, None, None),
        ("nan", None, None, None),
        ("NaNf", None, None, None),
        ("0x1p3", None, None, 8.0),
        ("-0X.8P+1d", None, None, -1.0),
        ("0x1.", None, None, None),
        ("0x10", None, None, None),
        ("0x1p99999999999", None, None, float("inf")),
        ("-0x1p99999999999", None, None, float("-inf")),
        ("0x0p99999999999", None, None, 0.0),
        ("0x1p-99999999999", None, None, 0.0),
    ],
)
def test_numbers_in_texts(
    text: str, int32: int | None, int64: int | None, double: float | None
) -> None:
    for convert, wanted in ((int32_of, int32), (int64_of, int64), (double_of, double)):
        if wanted is None:
            with pytest.raises(NotANumber):
                convert(text)
        else:
            assert (convert(text), str(convert(text))) == (wanted, str(wanted))


def test_the_order_of_doubles_is_total() -> None:
    ascending = [float("-inf"), -1.0, -0.0, 0.0, 1.0, float("inf"), float("nan")]
    for place, left in enumerate(ascending):
        for other, right in enumerate(ascending):
            assert java_order(left, right) == (place > other) - (place < other)
    assert value("a > 5.5", {"a": "NaN"}) is True
    assert value("a >= b", {"a": "-0.0", "b": "0.0"}) is False


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000 + "a = 1" + ")" * 10_000,
        "NOT " * 10_000 + "a",
        "a = " + "- " * 10_000 + "1",
        "a = " + "+" * 10_000 + "1",
        "NOT (" * 10_000 + "a" + ")" * 10_000,
        "a = 1 AND (" * 10_000 + "a" + ")" * 10_000,
        "a" + " IS NULL" * 10_000,
        "a" + " = b" * 10_000,
        "(" * 100_000,
    ],
)
def test_a_deep_filter_is_refused(text: str) -> None:
    assert f"more than {LEVELS_MAX} levels of nesting" in refusal(text)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("(" * LEVELS_MAX + "a = 1" + ")" * LEVELS_MAX, True),
        ("NOT " * (LEVELS_MAX - 2) + "a", False),
        ("a" + " IS NULL" * (LEVELS_MAX - 1), False),
        ("a = '1'" + " = TRUE" * (LEVELS_MAX - 2), True),
        ("(a = 2 OR (a = 1 AND " * 90 + "a = 1" + "))" * 90, True),
        ("(" * LEVELS_MAX + "a = 1" + " OR a = 2)" * LEVELS_MAX, True),
        ("a = 2 OR " * 20_000 + "a = 1", True),  # 4.9.3 overflows its stack: no message matches
        ("a = 1 AND " * 20_000 + "a = 1", True),
        ("a = --1 AND\t" * 20_000 + "a = 1", True),  # no search for the end of a comment
        ("a IN (" + ", ".join(f"'{n}'" for n in range(20_000)) + ")", True),
    ],
)
def test_a_large_filter_is_answered(text: str, answer: bool) -> None:
    assert Sql92Filter(text).matches({"a": "1"}) is answer
    assert Sql92Filter(text).select(2, {"a": ["1", "1"]}).tolist() == [answer] * 2


def test_an_odd_argument_is_refused() -> None:
    text: Any
    for text in (None, 5, b"a = 1", ["a = 1"]):
        with pytest.raises(StoreTypeError, match="SQL filter must be a str"):
            Sql92Filter(text)
    one = Sql92Filter("a = 5 AND b = 5")
    odd: Any
    for odd in (None, "a", [("a", "5")], 5):
        with pytest.raises(StoreTypeError, match="must be a mapping"):
            one.matches(odd)
        with pytest.raises(StoreTypeError, match="must be a mapping"):
            one.select(1, odd)
    with pytest.raises(StoreTypeError, match="property a must be a str, not int"):
        one.matches({"a": 5})  # type: ignore[dict-item]
    for column in ([5], [b"5"], [["5"]], np.array([5])):
        with pytest.raises(StoreTypeError, match="column a must be a str, not"):
            one.select(1, {"a": column})
    for column in ("5", b"5", {"5"}, 5):
        with pytest.raises(StoreTypeError, match="column a must be a sequence"):
            one.select(1, {"a": column})
    for column in ([], ["5", "5"], pyarrow.array(["5", "5"])):
        with pytest.raises(StoreFormatError, match="must have 1, one for each message"):
            one.select(1, {"a": column})
    with pytest.raises(StoreTypeError, match="column a"):
        one.select(1, {"a": pyarrow.array([5])})
    for count in (-1, 1 << 63, 1.0, True):
        with pytest.raises(StoreFormatError, match="count"):
            one.select(count, {})  # type: ignore[arg-type]


class Text(str):
    """A text whose methods are wrong: only its characters count."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__

    def lower(self) -> str:
        return "true"


def test_subclasses_count_as_what_they_hold() -> None:
    one = Sql92Filter(Text("a = 'x'"))
    assert type(one.text) is str
    assert not one.matches({"a": Text("y")})
    assert one.matches(OrderedDict(a="x"))
    assert one.matches(MappingProxyType({"a": "x"}))
    for count in (1, 50):
        column = [Text("x"), Text("y")] * count
        assert one.select(2 * count, {"a": column}).tolist() == [True, False] * count


def test_columns_of_every_kind() -> None:
    entries = ["5", None, "6", "x", "5", "4"] * 10
    one = Sql92Filter("a >= 5")
    wanted = [one.matches({} if entry is None else {"a": entry}) for entry in entries]
    strings = pyarrow.array(entries)
    kinds: list[Any] = [
        entries,
        tuple(entries),
        np.array(entries, object),
        strings,
        strings.cast("large_string"),
        strings.dictionary_encode(),
        pyarrow.chunked_array([strings[:7], strings[7:]]),
        pyarrow.chunked_array([strings[:7], strings[7:]]).dictionary_encode(),
        pyarrow.concat_arrays([strings, strings])[60:],
    ]
    for column in kinds:
        selected = one.select(60, {"a": column})
        assert selected.dtype == np.bool_
        assert selected.tolist() == wanted, type(column)
    assert not one.select(60, {"a": pyarrow.nulls(60)}).any()
    assert not one.select(60, {"a": None, "b": [1]}).any()
    assert Sql92Filter("a IS NULL").select(3, {}).tolist() == [True] * 3
    for text in ("a = 5", "a = b", "a IS NULL", "TRUE", "NOT a", "a > 1 OR b IN ('x')"):
        assert Sql92Filter(text).select(0, {"a": [], "b": pyarrow.array([], "string")}).size == 0
        assert Sql92Filter(text).select(0, {}).size == 0


def test_many_numbers_are_those_of_single_texts() -> None:
    plain = [str(number) for number in range(-40, 40)]
    odd = ["2147483648", "-2147483649", "99999999999999999999", "+5", "-0", "5.5", "1e2", "x", ""]
    alone = [["1_0"], [" 7"], ["٣"], ["1e2"], ["7f"], ["0x1p3"], ["NaN"]]
    for extra in [[], odd[:2], odd[:3], odd[:5], odd[:7], odd, [None, "5"], *alone]:
        column = [*plain, *extra]
        for text in ("a > 5", "a = -5", "a <= 3000000000", "5 > a", "a <> 5.5", "a < -0.5"):
            one = Sql92Filter(text)
            wanted = [one.matches({} if t is None else {"a": t}) for t in column]
            assert one.select(len(column), {"a": column}).tolist() == wanted, (text, extra)


def test_columns_answer_as_single_messages() -> None:
    rng = random.Random(f"{SEED} columns")
    texts = ["5", "6", "5.5", "-0.0", "abc", "true", "NaN", "", "3000000000", None]
    filters = [
        *("a = b", "a <> c", "a > c", "a = TRUE", "a = (b = c)", "(a = b) = (b = c)", "-a = c"),
        *("-(a > b) IS NULL", "a IS NULL", "(a > 5) IS NULL OR c < 1e7", "c IN ('7', '8')"),
        *("5 < c AND c <> b OR NOT a", "c > 5 AND NOT (a > 5.0)"),
    ]
    for count in (1, 7, 100, 3000):
        columns = {
            "a": rng.choices(texts, k=count),
            "b": rng.choices(texts[:3], k=count),
            "c": [str(rng.randrange(10 * count)) for _ in range(count)],
        }
        rows = [{name: column[row] for name, column in columns.items()} for row in range(count)]
        for text in filters:
            one = Sql92Filter(text)
            wanted = [one.matches({n: t for n, t in row.items() if t is not None}) for row in rows]
            arrays = {name: pyarrow.array(column) for name, column in columns.items()}
            for given in (columns, arrays, {**arrays, "a": columns["a"]}):
                assert one.select(count, given).tolist() == wanted, f"{text!r}, seed {SEED}"


def test_a_filter_is_a_value() -> None:
    one = Sql92Filter("a > 5")
    for same in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
        assert same == one and hash(same) == hash(one) and same.matches({"a": "6"})
    assert one != Sql92Filter("a >  5") and one != "a > 5"
    assert repr(one) == "Sql92Filter('a > 5')"
    for name in ("text", "_text", "_condition", "other"):
        with pytest.raises(AttributeError):
            setattr(one, name, "x")
    with pytest.raises(AttributeError):
        del one._text  # type: ignore[misc]


def test_any_thread_parses_and_answers() -> None:
    one, start, wrong = Sql92Filter("a > 5 AND b = 'x'"), threading.Barrier(8), []

    def work(number: int) -> None:
        start.wait()
        for step in range(30):
            mine = Sql92Filter(f"a > {number} AND b IN ('x', '{step}')")
            if not mine.matches({"a": "9", "b": str(step)}) or one.matches({"a": "5", "b": "x"}):
                wrong.append((number, step))
            if mine.select(3, {"a": ["9", "0", None], "b": ["x"] * 3}).tolist() != [
                True,
                False,
                False,
            ]:
                wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_parser_is_loaded_with_the_first_filter() -> None:
    code = (
        "import sys; from pyrocketstore.filter.sql92 import Sql92Filter; "
        "assert 'lark' not in sys.modules and 'pyarrow' not in sys.modules; "
        "Sql92Filter('a > 5').select(1, {'a': ['6']}); "
        "assert 'lark' in sys.modules and 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_filter_cannot_be_made_again() -> None:
    one = Sql92Filter("a > 1")
    with pytest.raises(AttributeError, match="changed"):
        one.__init__("a < 0")  # type: ignore[misc]
    assert one.text == "a > 1"


@pytest.mark.parametrize("odd", ["lists", "structs", "runs", "bytes"])
def test_odd_arrays_of_pyarrow_are_refused(odd: str) -> None:
    pa = pytest.importorskip("pyarrow")
    columns = {
        "lists": pa.array([["7"], ["8"]]),
        "structs": pa.array([{"x": "7"}, {"x": "8"}]),
        "runs": pa.RunEndEncodedArray.from_arrays([2], pa.array(["x"])),
        "bytes": pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff", b"\xfe"]).buffers()),
    }
    with pytest.raises(StoreTypeError, match="column 'a'"):
        Sql92Filter("a = 'x'").select(2, {"a": columns[odd]})
