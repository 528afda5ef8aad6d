"""Arguments that are numbers, flags or texts, converted to the exact type that the store keeps.

One function for each kind of value: `exact_int` (with `exact_int32`, `exact_int64`,
`exact_queue_id`, `whole_number`), `time_of` (with `check_times`), `exact_flag` and `exact_text`;
`check_kind` and `check_callable` check objects. `_numbers_and_bodies.pyx` has bodies. A subclass of
str or int counts as the characters or the number that it holds, not as its methods return. A value
of another type is a StoreTypeError; one that the store cannot keep is a StoreFormatError.
`issubclass(type(value), str)` finds the type: `isinstance` also believes the attribute `__class__`,
which a mock sets.
"""

from __future__ import annotations

import datetime
import operator
from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np

from pyrocketstore.display import shown
from pyrocketstore.errors import StoreFormatError, StoreTypeError

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
#: The least time in Unix ms, 1973-03-03: a smaller number, except for 0, is a time in seconds.
TIME_MIN_MS = 10**11
#: A time to search by: see `time_of`.
Time = int | str | datetime.datetime
#: The number of a topic's queues is a Java int in topics.json, so the last id is one less.
QUEUE_ID_MAX = INT32_MAX - 1


def exact_int(what: str, value: Any, low: int, high: int) -> int:
    """The number `value`, called `what`, as an exact int from `low` to `high`.

    An int, a NumPy integer and anything else with `__index__` is a number. A bool is refused: a
    mask or a flag in place of a number is a mistake.

    Raises
    ------
    StoreTypeError: `value` is not an integer. StoreFormatError: it is out of the range.
    """
    if type(value) is int and low <= value <= high:  # as nearly always
        return value
    number = _number_of(value)
    if number is None:
        kind = type(value).__name__
        raise StoreTypeError(f"{what} must be an int from {low} to {high}, not {kind}")
    if not low <= number <= high:
        raise StoreFormatError(f"{what} {shown(number)}: must be {low} to {high}")
    return number


def _number_of(value: Any) -> int | None:
    """An integer as an exact int; None for anything else, and for a bool."""
    if isinstance(value, bool):
        return None
    if issubclass(type(value), int):
        return int.__index__(value)
    try:
        return int.__index__(operator.index(value))
    except TypeError:
        return None


def exact_int32(what: str, value: Any) -> int:
    """The number as an int32; raises as `exact_int`."""
    return exact_int(what, value, INT32_MIN, INT32_MAX)


def exact_int64(what: str, value: Any) -> int:
    """The number as an int64; raises as `exact_int`."""
    return exact_int(what, value, INT64_MIN, INT64_MAX)


def exact_queue_id(value: Any, what: str = "queue_id") -> int:
    """The number of a queue, 0 to QUEUE_ID_MAX; raises as `exact_int`."""
    return exact_int(what, value, 0, QUEUE_ID_MAX)


def whole_number(what: str, value: Any) -> int:
    """A number without bounds, such as a count: no store reaches the bounds of an int64.

    Raises StoreTypeError.
    """
    if type(value) is int:
        return value
    number = _number_of(value)
    if number is None:
        raise StoreTypeError(f"{what} must be an int, not {type(value).__name__}")
    return number


def check_times(begin: int, end: int) -> None:
    """Raise StoreFormatError if `begin` is after `end`, both Unix ms: no time is between them."""
    if begin > end:
        raise StoreFormatError(f"begin {begin} is after end {end} (Unix ms): no time is in between")


def time_of(what: str, value: Any) -> int:
    """A time to search by, called `what`, as the first Unix ms that is not before it.

    Parameters
    ----------
    value : an int, Unix ms: 0, or from TIME_MIN_MS on; a datetime with a zone; or such a time as
        ISO 8601 text

    Raises
    ------
    StoreTypeError: a value of another type. StoreFormatError: a time without a zone, before 1970 or
    after the int64 range, and a number that can only be a time in seconds.
    """
    if issubclass(type(value), str):
        text = exact_text(what, value)
        try:
            value = datetime.datetime.fromisoformat(text)
        except ValueError:
            reason = 'not ISO 8601 with a zone, as "2026-01-31T12:00:00Z"'
            raise StoreFormatError(f"{what} {shown(text)}: {reason}") from None
    if issubclass(type(value), datetime.datetime):
        number = _ms_of_datetime(what, value)
        if number < 0:
            raise StoreFormatError(f"{what} {shown(str(value))}: must not be before 1970")
        return number
    if _number_of(value) is None:
        hint = ""
        if isinstance(value, float):
            hint = "; of a time in seconds, pass int(seconds * 1000)"
        raise StoreTypeError(
            f"{what} must be an int (Unix ms), a datetime with a zone or ISO 8601 text, not"
            f" {type(value).__name__}{hint}"
        )
    number = exact_int(what, value, 0, INT64_MAX)
    if 0 < number < TIME_MIN_MS:
        raise StoreFormatError(
            f"{what} {number}: times are in ms since 1970, so this one is in January 1970 or a few"
            f" years later: must be 0 or from {TIME_MIN_MS} (1973) on; multiply seconds by 1000"
        )
    return number


def _ms_of_datetime(what: str, value: datetime.datetime) -> int:
    if value.utcoffset() is None:
        raise StoreFormatError(
            f"{what} {shown(str(value))}: has no zone: pass datetime.now(UTC), or call"
            " astimezone() on a local time"
        )
    since = (value - _EPOCH) // _MICROSECOND
    return -(-since // 1000)


def exact_flag(what: str, value: Any) -> bool:
    """True or False, also of NumPy, or 1 or 0. Raises StoreTypeError."""
    if value is True or value is False:
        return value
    kind = type(value)
    if issubclass(kind, np.bool_) or (issubclass(kind, int) and value in (0, 1)):
        return bool(value)
    raise StoreTypeError(f"{what} must be True or False, not {kind.__name__}")


def exact_text(what: str, value: Any) -> str:
    """The characters of a str, called `what`, as an exact str.

    Raises StoreTypeError: it is not a str.
    """
    if type(value) is str:
        return value
    if not issubclass(type(value), str):
        raise StoreTypeError(f"{what} must be a str, not {type(value).__name__}")
    return str.__str__(value)


def entries_of(what: str, value: Any, wanted: str) -> Iterator[Any]:
    """The entries of a sequence, called `what`, which must be `wanted`.

    Bytes of any kind have no entries, mappings and sets have no order of their caller's.

    Raises StoreTypeError.
    """
    kind = type(value).__name__
    if isinstance(value, (str, bytes, bytearray, memoryview, Mapping, Set)):
        raise StoreTypeError(f"{what} must be {wanted}, not {kind}")
    try:
        return iter(value)
    except TypeError:
        raise StoreTypeError(f"{what} must be {wanted}, not {kind}") from None


def texts_of(what: str, values: Any) -> list[str]:
    """The entries of an iterable of str, called `what`, as exact str. Raises StoreTypeError."""
    kind = type(values)
    if issubclass(kind, (str, bytes, bytearray, memoryview)):
        raise StoreTypeError(f"{what} must be an iterable of str, not {kind.__name__}")
    try:
        entries = iter(values)
    except TypeError:
        raise StoreTypeError(f"{what} must be an iterable of str, not {kind.__name__}") from None
    return [exact_text(f"an entry of {what}", entry) for entry in entries]


def check_kind(what: str, value: Any, kind: type, *, optional: bool = False) -> None:
    """Raise StoreTypeError if `value`, called `what`, is not a `kind`; `optional`: None is one."""
    if not (issubclass(type(value), kind) or (optional and value is None)):
        wanted = f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
        none = " or None" if optional else ""
        raise StoreTypeError(f"{what} must be {wanted}{none}, not {type(value).__name__}")


def check_callable(what: str, value: Any) -> None:
    """Raise StoreTypeError if `value`, called `what`, is neither callable nor None."""
    if value is not None and not callable(value):
        raise StoreTypeError(f"{what} must be a callable or None, not {type(value).__name__}")


def is_encodable(text: str) -> bool:
    """Whether a text holds no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
