"""Goal: filters give the answers of 4.9.3's filter jar, for every text and every message.
Method: random expressions, valid and broken, meet random properties; a driver asks the jar and the
filter of a broker. `matches`, `select` and the three-valued value are compared with its answers."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from pyrocketstore.errors import StoreFormatError, StoreWarning
from pyrocketstore.filter.java_numbers import NotANumber
from pyrocketstore.filter.sql92 import Sql92Filter
from support.java_store import require_java
from support.seed import SEED

pytestmark = [pytest.mark.java, pytest.mark.slow]

NAMES = ("a", "b", "c", "_x", "$y1", "TAGS", "Tags")
TEXTS = (
    "5 05 +5 -5 6 0 -0 10 5.0 5.5 -5.5 1e1 1E+1 .5 5. . 5f 5d 5L 0x5 0x1p3 -0x1.8p1 0x.8p0 0x1.p0 "
    "NaN -NaN +NaN Infinity -Infinity NaNf inf nan true TRUE tRuE false abc ABC 1_0 ٣ ５ 5٣ 𝟓 + - "
    "2147483647 2147483648 -2147483648 -2147483649 3000000000 9223372036854775807 1e400 -1e400 "
    "9223372036854775808 -9223372036854775808 -9223372036854775809 99999999999999999999 1e-400 "
    "00000000000000000000000000000005 9007199254740993 9007199254740992.0 0x1p99999999999 0.0 "
    "1e99999999999 0x0p99999999999 0x1p-99999999999 0e99999999999 4.9e-324 2.4e-324 -0.0 "
    "1.7976931348623159e308 0x1.fffffffffffff8p1023 0x1.00000000000008p0 0x1.000000000000081p0 "
    "0x1p-1075 0x1.1p-1075 e5 5e 5e+ +.5e-3 --5 +-5 5-5 1e1.0 ünï"
).split(" ")
ODD_TEXTS = ("", " ", " 5", "5 ", "\t5\n", "\x005", "\u00a05", "\u20035", "it's", "''", "a b", "\n")
#: Operands that 4.9.3 accepts where a number or a text may be, and others.
LITERALS = (
    *"0 5 6 10 5L 5l 5. .5 5.5 5e0 1e1 1E+1 00.5 2147483647 2147483648 3000000000 -5 +5".split(),
    *"9223372036854775807 9007199254740993 9007199254740992.0 4.9e-324 -2147483648 --5".split(),
    *"1.7976931348623157e308 '5' 'abc' 'true' 'it''s' '' '''' 'ünï' TRUE true False -'x'".split(),
    *("- -5", "-5.5", "' '", "'a\nb'", "-TRUE"),
)
ODD_LITERALS = (
    *"0L 05 007 1e-400 1e400 0.0 1.5L 9223372036854775808 99999999999999999999 NULL nUll".split(),
    *"0x10 1e5L 1.7976931348623159e308 -9223372036854775808 -NULL".split(),
)
NUMBERS = tuple(one for one in LITERALS if one.lstrip("+- ")[:1] in tuple(".0123456789"))
OPERATORS = "= <> > >= < <=".split()
JUNK = (
    *"! != == ; @ # % & && | || * / + - , ( ) [ ] { } . ' '' '''' \" ` ~ ^ : ? \\ LIKE".split(),
    *"CONTAINS IS ESCAPE NOT NULL IN BETWEEN AND OR TRUE a 5 5.5 'x' /* */ /**/ -- /*x é ſ".split(),
    *("--\n", "\u00a0", "\u3000", "\x0b", "\f", "\r", "\u212a"),
)
TOKENS = "( ) , = <> > >= < <= + - NOT AND OR BETWEEN IN IS NULL TRUE a b 5 5.5 'x' ('x')".split()
COUNT = 4000
MESSAGES = 12


def literal(rng: random.Random) -> str:
    return rng.choice(LITERALS if rng.random() < 0.95 else ODD_LITERALS)


def operand(rng: random.Random, depth: int) -> str:
    draw = rng.random()
    if draw < 0.5:
        return rng.choice(NAMES)
    if draw < 0.85:
        return literal(rng)
    if draw < 0.9:
        return rng.choice("+-") + " " * rng.randrange(2) + operand(rng, depth)
    return f"({expression(rng, depth - 1)})" if depth > 0 else rng.choice(NAMES)


def ordered(rng: random.Random) -> str:
    """An operand of < and >, in most draws one that 4.9.3 accepts."""
    draw = rng.random()
    if draw < 0.1:
        return operand(rng, 0)
    return rng.choice(NAMES if draw < 0.4 else NUMBERS)


def string_list(rng: random.Random) -> str:
    texts = rng.choices([*TEXTS, *ODD_TEXTS], k=rng.randrange(1, 8))
    return ", ".join("'" + text.replace("'", "''") + "'" for text in texts)


def keyword(rng: random.Random, word: str) -> str:
    return rng.choice((word, word, word.lower(), word.title()))


def predicate(rng: random.Random, depth: int) -> str:
    draw = rng.randrange(10)
    left = rng.choice(NAMES) if rng.random() < 0.85 else operand(rng, depth)
    negation = rng.choice(("", "", "NOT "))
    if draw < 2:
        return f"{left} {rng.choice(OPERATORS)} {operand(rng, depth)}"
    if draw < 4:
        return f"{left} {rng.choice(OPERATORS)} {ordered(rng)}"
    if draw == 4:
        low, high = sorted((ordered(rng), ordered(rng)), key=len)
        return f"{left} {negation}BETWEEN {low} AND {high}"
    if draw == 5:
        return f"{left} {negation}{keyword(rng, 'IN')} ({string_list(rng)})"
    if draw == 6:
        return f"{left} {keyword(rng, 'IS')} {negation}NULL"
    if draw == 7:
        return left
    if draw == 8:
        return f"{left}{rng.choice(OPERATORS)}{literal(rng)}"
    equal = rng.choice(("=", "<>"))
    return f"{left} {equal} {operand(rng, depth)} {rng.choice((*OPERATORS, equal, equal))} {left}"


def expression(rng: random.Random, depth: int) -> str:
    if depth <= 0 or rng.random() < 0.3:
        return predicate(rng, depth)
    draw = rng.randrange(8)
    if draw < 3:
        parts = [expression(rng, depth - 1) for _ in range(rng.randrange(2, 4))]
        return f" {keyword(rng, 'AND')} ".join(parts)
    if draw < 6:
        parts = [expression(rng, depth - 1) for _ in range(rng.randrange(2, 4))]
        return f" {keyword(rng, 'OR')} ".join(parts)
    if draw == 6:
        return f"NOT {expression(rng, depth - 1)}"
    return f"({expression(rng, depth - 1)})"


def broken(rng: random.Random, text: str) -> str:
    """Change a text: insert junk, remove, double or exchange pieces, or cut it."""
    for _ in range(rng.randrange(1, 4)):
        at, end = sorted(rng.choices(range(len(text) + 1), k=2))
        end = min(end, at + rng.randrange(1, 6))
        junk = rng.choice(JUNK)
        text = rng.choice(
            (
                f"{text[:at]} {junk} {text[at:]}",
                text[:at] + junk + text[at:],
                text[:at] + text[end:],
                text[:at] + text[at:end] * 2 + text[end:],
                text[:at],
                f"{text} {junk} {text}",
            )
        )
    return text


def token_sequence(rng: random.Random) -> str:
    """Tokens in any order, most of them behind a valid beginning."""
    tokens = rng.choices(TOKENS, k=rng.randrange(1, 9))
    return " ".join(
        [*rng.choice(([], ["a"], ["a", "="], ["NOT", "(", "a"], ["b", ">", "5"])), *tokens]
    )


def message(rng: random.Random) -> dict[str, str]:
    present = [name for name in NAMES if rng.random() < 0.7]
    some: Sequence[str] = ODD_TEXTS if rng.random() < 0.1 else TEXTS
    few: Sequence[str] = ("5", "6", "-5", "abc", "true", "5.5")
    return {name: rng.choice(few if rng.random() < 0.5 else some) for name in present}


def requests(rng: random.Random, count: int) -> Iterator[dict[str, Any]]:
    for _ in range(count):
        text = expression(rng, rng.randrange(4))
        draw = rng.random()
        if draw < 0.25:
            text = broken(rng, text)
        elif draw < 0.4:
            text = token_sequence(rng)
        yield {"expression": text, "messages": [message(rng) for _ in range(MESSAGES)]}


def compiled(text: str) -> Sql92Filter | None:
    """Return the filter; None for a refused text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        try:
            return Sql92Filter(text)
        except StoreFormatError as problem:
            assert "character " in str(problem)
            return None


def value(one: Sql92Filter, properties: dict[str, str]) -> str:
    """Return the value as the driver prints it; "raises" for an exception."""
    try:
        answer = one._condition.value(properties)
    except NotANumber:
        return "raises"
    return {True: "true", False: "false", None: "null"}[answer]


def differences(request: dict[str, Any], answer: dict[str, Any]) -> Iterator[str]:
    """Yield a text for each answer of ours that is not 4.9.3's."""
    text, messages = request["expression"], request["messages"]
    ours = compiled(text)
    if ours is None or "refused" in answer:
        if (ours is None) != ("refused" in answer):
            yield f"{text!r}: refused by {'us' if ours is None else '4.9.3'} alone: {answer}"
        return
    theirs = answer["answers"].split(",")
    matched = [word == "true" for word in answer["matched"].split(",")]
    for properties, wanted in zip(messages, theirs, strict=True):
        wanted = "raises" if "." in wanted else wanted
        if value(ours, properties) != wanted:
            yield f"{text!r} of {properties}: {value(ours, properties)}, 4.9.3 has {wanted}"
    if [ours.matches(properties) for properties in messages] != matched:
        yield f"{text!r}: matches differs from the filter of a broker"
    columns = {name: [one.get(name) for one in messages] for name in ours.names}
    arrays = {name: pyarrow.array(column, "string") for name, column in columns.items()}
    for kind, given in (("lists", columns), ("arrays", arrays)):
        if ours.select(len(messages), given).tolist() != matched:
            yield f"{text!r}: select from {kind} differs: {columns}"
    many = {name: column * 4 for name, column in columns.items()}
    if ours.select(len(messages) * 4, many).tolist() != matched * 4:
        yield f"{text!r}: select from many rows differs: {columns}"


def compare(asked: list[dict[str, Any]]) -> None:
    answers = require_java().filter(asked)
    wrong = [
        text
        for request, answer in zip(asked, answers, strict=True)
        for text in differences(request, answer)
    ]
    refused = sum("refused" in answer for answer in answers)
    print(f"seed {SEED}: {len(asked)} filters, {refused} refused by 4.9.3")
    assert not wrong, f"seed {SEED}: {len(wrong)} differences\n" + "\n".join(wrong[:20])
    assert len(asked) < 1000 or len(asked) // 10 < refused < len(asked) * 3 // 4


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(4))
def test_random_filters_give_the_answers_of_4_9_3(part: int) -> None:
    compare(list(requests(random.Random(f"{SEED} filter {part}"), COUNT)))


FIXED = Path(__file__).parent / "known_filters.json"


def test_known_filters_give_the_answers_of_4_9_3() -> None:
    texts = json.loads(FIXED.read_text(encoding="utf-8"))
    messages = [{}, *({"a": text} for text in (*TEXTS, *ODD_TEXTS))]
    messages += [{"a": one, "b": two} for one in TEXTS[:12] for two in TEXTS[:12]]
    compare([{"expression": text, "messages": messages} for text in texts])


@pytest.mark.parametrize(
    "text", ["a > 4", "a < 3000000000", "a >= 0.5", "a = -5", "a >= b", "a = b"]
)
def test_texts_become_the_numbers_of_java(text: str) -> None:
    rng = random.Random(f"{SEED} numbers {text}")
    letters = "0123456789" * 3 + "+-..eEpPxXfFdDlL_ \t\x00\u00a0٣５aAnNIy"
    texts = ["".join(rng.choices(letters, k=rng.randrange(1, 9))) for _ in range(4000)]
    texts += [rng.choice(TEXTS) + rng.choice(letters) for _ in range(1000)]
    texts += [f"{rng.uniform(-10, 10)}e{rng.randrange(-330, 310)}" for _ in range(500)]
    messages = [{"a": one, "b": two} for one, two in zip(texts, reversed(texts), strict=True)]
    compare([{"expression": text, "messages": messages}])


def test_long_tokens_are_read_whole() -> None:
    asked = []
    for size in (2047, 2048, 2049, 4095, 4096, 4097, 8193, 20_000):
        for text in (f"a = '{'x' * size}'", f"a{' ' * size}= 5", f"a /*{'x' * size}*/ = 5"):
            asked.append({"expression": text, "messages": [{"a": "5"}, {"a": "x" * size}]})
        asked.append({"expression": f"a{'a' * size} = 5", "messages": [{"a" + "a" * size: "5"}]})
    compare(asked)


def test_where_4_9_3_overflows_its_stack() -> None:
    """The departures of docs/filter.md: we refuse deep texts, and answer long ones."""
    deep = ["(" * 100_000 + "a = 1" + ")" * 100_000, "NOT " * 100_000 + "a"]
    long = [word.join(["a = 1"] * 100_000) for word in (" AND ", " AND TRUE AND ")]
    asked = [{"expression": text, "messages": [{"a": "2"}, {"a": "1"}]} for text in (*deep, *long)]
    answers = require_java().filter(asked)
    for text, answer in zip(deep, answers[:2], strict=True):
        assert answer == {"refused": "java.lang.StackOverflowError"}
        assert compiled(text) is None
    for text, answer in zip(long, answers[2:], strict=True):
        assert answer["answers"].split(",")[1] == "java.lang.StackOverflowError"
        assert answer["matched"].split(",")[1] == "false"
        one = compiled(text)
        assert one is not None and one.matches({"a": "1"}) and not one.matches({"a": "2"})
