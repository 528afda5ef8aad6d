"""Values of odd types for puts, each with what a store must make of it: the exact value that reads
back, or REFUSED with a StoreTypeError (wrong type) or a StoreFormatError (wrong value)."""

from __future__ import annotations

import array
import ctypes
import datetime
import decimal
import enum
import fractions
import math
import pathlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from pyrocketstore import StoreFormatError, StoreTypeError


class Odd(NamedTuple):
    """`make` gives the value, once a call; `exact` is what is stored, or the class of the error."""

    name: str
    make: Callable[[], Any]
    exact: Any

    @property
    def refused(self) -> bool:
        return isinstance(self.exact, type)


class LyingStr(str):
    """A str whose every method says something else."""

    def __str__(self) -> str:
        return "lie\x02NAME\x01value"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return "lie\x02NAME\x01value"

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 1

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Any:
        return iter("lie")

    def __contains__(self, part: object) -> bool:
        return False

    def encode(self, *_: Any, **__: Any) -> bytes:
        return b"lie"

    def strip(self, *_: Any) -> str:
        return "lie"


class LyingInt(int):
    """An int whose every method says something else."""

    def __index__(self) -> int:
        return 99

    __int__ = __index__

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7

    def __le__(self, other: int) -> bool:
        return True

    __ge__ = __lt__ = __gt__ = __le__

    def to_bytes(self, *_: Any, **__: Any) -> bytes:
        return bytes(100)


class LyingBytes(bytes):
    """Bytes whose methods say something else."""

    def __len__(self) -> int:
        return 1 << 40

    def __bytes__(self) -> bytes:
        return b"lie"

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 1


class Index:
    """No int, but exactly one number."""

    def __index__(self) -> int:
        return 3


def posing() -> list[Any]:
    """Objects whose attribute `__class__` names a type that they have not."""
    kinds = (str, int, bytes, bool, float, list, tuple, dict, np.ndarray, np.bool_, np.float64)
    others = (datetime.datetime, datetime.timedelta, pathlib.Path)
    return [mock.Mock(spec=kind) for kind in (*kinds, *others)]


class FloatIndex(float):
    """A float that claims to be a number of something."""


class Color(str, enum.Enum):  # noqa: UP042 - a StrEnum formats as its value
    RED = "red"


class Number(enum.IntEnum):
    TWO = 2


class Flags(enum.IntFlag):
    FOUR = 4


def released() -> memoryview:
    view = memoryview(b"gone")
    view.release()
    return view


def odd(make: Callable[[], Any], exact: Any, name: str = "") -> Odd:
    return Odd(name or repr(make())[:40], make, exact)


TYPE, VALUE = StoreTypeError, StoreFormatError

#: Of no kind that a put takes as text, a number or a body.
STRANGERS = [
    odd(lambda: 1.0, TYPE),
    odd(lambda: math.nan, TYPE),
    odd(lambda: decimal.Decimal(2), TYPE),
    odd(lambda: fractions.Fraction(2), TYPE),
    odd(lambda: 1j, TYPE),
    odd(lambda: np.float64(2), TYPE),
    odd(lambda: FloatIndex(2), TYPE),
    odd(lambda: np.datetime64(5, "ns"), TYPE),
    odd(lambda: np.bool_(True), TYPE),
    odd(object, TYPE, "object()"),
    odd(lambda: [1], TYPE),
    odd(lambda: {"a": "b"}, TYPE),
    odd(lambda: int, TYPE),
    *(odd(partial(mock.Mock, spec=kind), TYPE, f"{kind.__name__}()") for kind in (str, int, bytes)),
]
NUMBERS = [
    odd(lambda: 0, 0),
    odd(lambda: 2, 2),
    odd(lambda: 5, 5),
    odd(lambda: np.int8(3), 3),
    odd(lambda: np.uint64(4), 4),
    odd(lambda: np.array(6), 6),
    odd(lambda: Number.TWO, 2),
    odd(lambda: Flags.FOUR, 4),
    odd(lambda: LyingInt(3), 3, "LyingInt"),
    odd(Index, 3, "Index"),
    odd(lambda: True, TYPE),
    odd(lambda: "1", TYPE),
    odd(lambda: b"1", TYPE),
    odd(lambda: 10**5000, VALUE, "10**5000"),
    odd(lambda: 2**63, VALUE),
    odd(lambda: -(2**63) - 1, VALUE),
    *STRANGERS,
]
QUEUE_IDS = [
    odd(lambda: 2**31 - 2, 2**31 - 2),
    odd(lambda: 2**31 - 1, VALUE),
    odd(lambda: 2**31, VALUE),
    odd(lambda: -1, VALUE),
    odd(lambda: np.int64(2**31 - 1), VALUE),
    odd(lambda: LyingInt(2**31), VALUE, "LyingInt(2**31)"),
    *NUMBERS,
]
FLAGS = [
    odd(lambda: 2**31 - 1, 2**31 - 1),
    odd(lambda: -(2**31), -(2**31)),
    odd(lambda: 2**31, VALUE),
    odd(lambda: -(2**31) - 1, VALUE),
    odd(lambda: None, TYPE),
    *NUMBERS,
]
TIMES = [
    odd(lambda: 2**63 - 1, 2**63 - 1),
    odd(lambda: -(2**63), -(2**63)),
    *NUMBERS,
]
TEXTS = [
    odd(lambda: "plain", "plain"),
    odd(lambda: "schlüssel\U0001f600", "schlüssel\U0001f600"),
    odd(lambda: "k\0k", "k\0k"),
    odd(lambda: Color.RED, "red"),
    odd(lambda: LyingStr("honest"), "honest", "LyingStr"),
    odd(lambda: np.str_("numpy"), "numpy"),
    odd(lambda: "\u3000wide\xa0", "\u3000wide\xa0"),
    odd(lambda: "", VALUE),
    odd(lambda: "a\x01", VALUE),
    odd(lambda: "a\x02b", VALUE),
    odd(lambda: "\ud800", VALUE),
    odd(lambda: LyingStr("\x02"), VALUE, "LyingStr(U+0002)"),
    odd(lambda: LyingStr(""), VALUE, "LyingStr()"),
    odd(lambda: b"bytes", TYPE),
    odd(lambda: 1, TYPE),
    odd(lambda: True, TYPE),
    odd(lambda: np.array(["a"]), TYPE, "array of text"),
    *[value for value in STRANGERS if value.name not in ("[1]", "{'a': 'b'}")],
]
#: A tag is one that the expression of its own text finds (RocketMQ 4.9.3 FilterAPI).
TAGS = [
    odd(lambda: "A|B", "A|B"),
    odd(lambda: "|A", "|A"),
    odd(lambda: "a b", "a b"),
    odd(lambda: "**", "**"),
    odd(lambda: "A||B", VALUE),
    odd(lambda: "||", VALUE),
    odd(lambda: "A ", VALUE),
    odd(lambda: "\tA", VALUE),
    odd(lambda: "\x1fA", VALUE),
    odd(lambda: " ", VALUE),
    odd(lambda: "*", VALUE),
    odd(lambda: LyingStr("A||B"), VALUE, "LyingStr(A||B)"),
    odd(lambda: LyingStr(" A"), VALUE, "LyingStr( A)"),
    *TEXTS,
    odd(list, TYPE, "[]"),
    odd(lambda: ["a"], TYPE),
]
#: The value of KEYS that is stored.
KEYS = [
    *[value for value in TEXTS if value.name != "array of text"],
    odd(lambda: np.array(["a", "b"]), "a b", "array of text"),
    odd(lambda: "a b", "a b"),
    odd(lambda: ["a", "b"], "a b"),
    odd(lambda: ("a", LyingStr("b")), "a b", "tuple with LyingStr"),
    odd(lambda: [Color.RED], "red"),
    odd(lambda: iter(["a", "b"]), "a b", "iterator"),
    odd(lambda: ["a b"], VALUE),
    odd(lambda: [""], VALUE),
    odd(lambda: [1], TYPE),
    odd(lambda: [b"a"], TYPE),
    odd(lambda: {"a": "b"}, TYPE),
]
PROPERTIES = [
    odd(lambda: {"a": "b", "c": " "}, {"a": "b", "c": " "}),
    odd(lambda: {LyingStr("name"): LyingStr("value")}, {"name": "value"}, "LyingStr: LyingStr"),
    odd(lambda: {"color": Color.RED}, {"color": "red"}),
    odd(dict, {}, "no properties"),
    odd(lambda: {LyingStr("a"): "1", "a": "2"}, VALUE, "one name twice"),
    odd(lambda: {LyingStr("TAGS"): "1"}, VALUE, "LyingStr(TAGS)"),
    odd(lambda: {"WAIT": "1"}, VALUE),
    odd(lambda: {"": "1"}, VALUE),
    odd(lambda: {"a": ""}, VALUE),
    odd(lambda: {"a": "\x02b\x01c"}, VALUE),
    odd(lambda: {"a": 1}, TYPE),
    odd(lambda: {1: "a"}, TYPE),
    odd(lambda: {"a": None}, TYPE),
    odd(lambda: 1, TYPE),
    odd(lambda: "ab", TYPE),
    odd(lambda: [("a", "b")], TYPE),
    odd(lambda: {"a"}, TYPE),
]
BODIES = [
    odd(lambda: b"bytes\0", b"bytes\0"),
    odd(lambda: b"", b""),
    odd(lambda: LyingBytes(b"honest"), b"honest", "LyingBytes"),
    odd(lambda: bytearray(b"array"), b"array"),
    odd(lambda: memoryview(b"view"), b"view", "memoryview"),
    odd(lambda: memoryview(b"v_i_e_w_")[::2], b"view", "memoryview[::2]"),
    odd(lambda: memoryview(b"view").cast("c"), b"view", "memoryview of c"),
    odd(lambda: np.frombuffer(b"numpy", np.uint8), b"numpy"),
    odd(lambda: np.bytes_(b"numpy"), b"numpy"),
    odd(lambda: array.array("b", b"array"), b"array"),
    odd(lambda: (ctypes.c_ubyte * 2)(1, 2), b"\1\2", "c_ubyte[2]"),
    odd(released, VALUE, "released memoryview"),
    odd(lambda: memoryview(bytes(8)).cast("q"), TYPE, "memoryview of q"),
    odd(lambda: array.array("d", [1.0]), TYPE),
    odd(lambda: np.array([1, 2]), TYPE),
    odd(lambda: np.zeros((2, 2), np.uint8), TYPE, "two dimensions"),
    odd(lambda: np.array([b"x", None], object), TYPE, "array of objects"),
    odd(lambda: np.zeros(2, [("a", "i4"), ("b", "O")]), TYPE, "structured array"),
    odd(lambda: np.array([b"ab\0"]), TYPE, "array of S"),
    odd(lambda: np.array([True]), TYPE),
    odd(lambda: np.uint8(5), TYPE),
    odd(lambda: np.void(b"abc"), TYPE),
    odd(lambda: "text", TYPE),
    odd(lambda: None, TYPE),
    odd(lambda: 5, TYPE),
    odd(lambda: np.datetime64("2024-01-01"), TYPE, "a day of NumPy"),
    odd(lambda: np.timedelta64(5, "s"), TYPE),
    *STRANGERS,
]
TOPICS = [
    odd(lambda: "t", "t"),
    odd(lambda: LyingStr("t"), "t", "LyingStr"),
    odd(lambda: np.str_("t"), "t"),
    odd(lambda: Color.RED, "red"),
    odd(lambda: LyingStr("a/b"), VALUE, "LyingStr(a/b)"),
    odd(lambda: "x" * 128, VALUE, "128 letters"),
    odd(lambda: "", VALUE),
    odd(lambda: "\ud800", VALUE),
    odd(lambda: None, TYPE),
    odd(lambda: b"t", TYPE),
    odd(lambda: 1, TYPE),
]
BY_PARAMETER: dict[str, list[Odd]] = {
    "topic": TOPICS,
    "body": BODIES,
    "queue_id": QUEUE_IDS,
    "tags": TAGS,
    "keys": KEYS,
    "properties": PROPERTIES,
    "flag": FLAGS,
    "born_timestamp": TIMES,
}
