"""What a put takes from its caller: each value once, as the exact type that the store keeps.

One place for each kind of value: `exact_int` (with `exact_int32`, `exact_int64`, `exact_queue_id`)
and `exact_text`; `_exact.hold_body` is that of bodies. A subclass of str or int counts as the
characters or the number that it holds, whatever its methods say. A value of another type is a
StoreTypeError, and one that the store cannot keep is a StoreFormatError.
"""

from __future__ import annotations

import operator
from typing import Any, NoReturn

from pyrocketstore.errors import StoreFormatError, StoreTypeError

__all__ = [
    "INT32_MAX",
    "INT32_MIN",
    "INT64_MAX",
    "INT64_MIN",
    "QUEUE_ID_MAX",
    "exact_int",
    "exact_int32",
    "exact_int64",
    "exact_queue_id",
    "exact_text",
]

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
#: The number of a topic's queues is a Java int in topics.json, so the last id is one less.
QUEUE_ID_MAX = INT32_MAX - 1
#: A greater int is named by its size: CPython refuses to print very long ones.
_SHOWN_BITS = 128


def exact_int(what: str, value: Any, low: int, high: int) -> int:
    """The number `value`, called `what`, as an exact int from `low` to `high`.

    An int, a NumPy integer and anything else with `__index__` is a number; a bool is none, since a
    mask or a flag in place of a number is a mistake.

    Raises
    ------
    StoreTypeError: `value` is not an integer. StoreFormatError: it is out of the range.
    """
    if isinstance(value, bool):
        _refuse_number(what, value, low, high)
    if isinstance(value, int):
        number = int.__index__(value)
    else:
        try:
            number = int.__index__(operator.index(value))
        except TypeError:
            _refuse_number(what, value, low, high)
    if not low <= number <= high:
        shown = number if number.bit_length() <= _SHOWN_BITS else f"of {number.bit_length()} bits"
        raise StoreFormatError(f"{what} {shown}: must be {low} to {high}")
    return number


def _refuse_number(what: str, value: Any, low: int, high: int) -> NoReturn:
    kind = type(value).__name__
    bounds = f" from {low} to {high}" if high.bit_length() < _SHOWN_BITS else ""
    raise StoreTypeError(f"{what} must be an int{bounds}, not {kind}") from None


def exact_int32(what: str, value: Any) -> int:
    """The number as an int32; raises as `exact_int`."""
    return exact_int(what, value, INT32_MIN, INT32_MAX)


def exact_int64(what: str, value: Any) -> int:
    """The number as an int64; raises as `exact_int`."""
    return exact_int(what, value, INT64_MIN, INT64_MAX)


def exact_queue_id(value: Any) -> int:
    """The number of a queue, 0 to QUEUE_ID_MAX; raises as `exact_int`."""
    return exact_int("queue_id", value, 0, QUEUE_ID_MAX)


def exact_text(what: str, value: Any) -> str:
    """The characters of a str, called `what`, as an exact str.

    Raises StoreTypeError: it is not a str.
    """
    if type(value) is str:
        return value
    if not isinstance(value, str):
        raise StoreTypeError(f"{what} must be a str, not {type(value).__name__}")
    return str.__str__(value)
