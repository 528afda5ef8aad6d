"""Arguments of reading calls that are more than a number or a text."""

from __future__ import annotations

import math
from typing import Any

from pyrocketstore.errors import StoreFormatError, StoreTypeError
from pyrocketstore.exact import INT32_MAX, exact_int

#: Seconds: what every clock of the system can count.
TIMEOUT_MAX = 1 << 31


def queue_id_of(value: Any) -> int:
    """The number of a queue to read, 0 to INT32_MAX; raises as `exact_int`."""
    return exact_int("queue_id", value, 0, INT32_MAX)


def timeout_of(value: Any) -> float | None:
    """A number of seconds, None for no limit. Raises StoreFormatError."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        kind = type(value).__name__
        raise StoreTypeError(f"timeout must be seconds, or None, not {kind}") from None
    if math.isnan(seconds) or seconds > TIMEOUT_MAX:
        reason = f"must be at most {TIMEOUT_MAX} seconds, or None for no limit"
        raise StoreFormatError(f"timeout {seconds}: {reason}")
    return seconds
