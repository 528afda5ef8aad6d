"""Arguments of reading calls, each taken once as what it must be."""

from __future__ import annotations

import math
from operator import index
from typing import Any

from pyrocketstore.errors import StoreFormatError

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
INT32_MAX = (1 << 31) - 1
#: Seconds: what every clock of the system can count.
TIMEOUT_MAX = 1 << 31


def text_of(name: str, value: Any) -> str:
    """The value if it is a str. Raises TypeError."""
    if isinstance(value, str):
        return value
    raise TypeError(f"{name} is {value!r} ({type(value).__name__}): must be a str")


def int_of(name: str, value: Any, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
    """The value as an int in [low, high].

    Raises TypeError: it is not an integer; StoreFormatError: it is too small or too large.
    """
    try:
        number = index(value)
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{name} is {value!r} ({kind}): must be an int") from None
    if not low <= number <= high:
        raise StoreFormatError(f"{name} is {number}: must be from {low} to {high}")
    return number


def queue_id_of(value: Any) -> int:
    """A queue id. Raises TypeError, StoreFormatError."""
    return int_of("queue_id", value, 0, INT32_MAX)


def timeout_of(value: Any) -> float | None:
    """A number of seconds, None for no limit. Raises TypeError, StoreFormatError."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        kind = type(value).__name__
        raise TypeError(f"timeout is {value!r} ({kind}): must be seconds, or None") from None
    if math.isnan(seconds) or seconds > TIMEOUT_MAX:
        reason = f"must be at most {TIMEOUT_MAX} seconds, or None for no limit"
        raise StoreFormatError(f"timeout is {seconds}: {reason}")
    return seconds
