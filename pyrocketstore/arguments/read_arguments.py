"""Checks of the arguments of reading calls: queues, offsets, filters and timeouts."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

import numpy as np

from pyrocketstore.arguments.scalars import (
    INT32_MAX,
    exact_int,
    exact_int32,
    exact_int64,
    exact_text,
    time_of,
    whole_number,
)
from pyrocketstore.display import shown
from pyrocketstore.errors import StoreFormatError, StoreTypeError

#: Seconds: every clock of the system can count them.
TIMEOUT_MAX = 1 << 31
#: Source: RocketMQ 4.9.3 Validators#checkGroup.
_GROUP = re.compile(r"[%|a-zA-Z0-9_-]{1,255}", re.ASCII)


def group_of(value: Any) -> str:
    """Return the name of a group of consumers or producers. Raises StoreTypeError,
    StoreFormatError.
    """
    text = exact_text("group", value)
    if _GROUP.fullmatch(text) is None:
        raise StoreFormatError(
            f"group {shown(text)}: must be 1 to 255 of the characters %|a-zA-Z0-9_-"
        )
    return text


def queue_id_of(value: Any) -> int:
    """Return the id of a queue to read, 0 to INT32_MAX; raises as `exact_int`."""
    return exact_int("queue_id", value, 0, INT32_MAX)


def queue_of(topic: Any, queue_id: Any) -> tuple[str, int]:
    """Return topic and id of a queue, which may be missing. Raises StoreFormatError."""
    return exact_text("topic", topic), exact_int32("queue_id", queue_id)


def unit_of(topic: Any, queue_id: Any, queue_offset: Any) -> tuple[str, int, int]:
    """Return a queue and an offset in it; raises as `queue_of`."""
    return (*queue_of(topic, queue_id), exact_int64("queue offset", queue_offset))


def range_of(phy_offset: Any, size: Any) -> tuple[int, int]:
    """Return a physical offset and a size in bytes; raises as `queue_of`."""
    return exact_int64("phy_offset", phy_offset), exact_int32("size", size)


def start_of(what: str, value: Any, number: str) -> Literal["earliest", "latest"] | int:
    """Return "earliest", "latest" or an int64, called `what`; `number` says what the int is.

    Raises StoreTypeError, StoreFormatError.
    """
    if not issubclass(type(value), str):
        return exact_int64(what, value)
    for word in ("earliest", "latest"):
        if exact_text(what, value) == word:
            return word
    raise StoreFormatError(f'{what} {shown(value)}: must be "earliest", "latest" or {number}')


def start_time_of(what: str, value: Any) -> Literal["earliest", "latest"] | int:
    """Return "earliest", "latest" or the Unix ms of a time, called `what`.

    Raises StoreTypeError, StoreFormatError.
    """
    if issubclass(type(value), str):
        text = exact_text(what, value)
        if text == "earliest" or text == "latest":
            return "earliest" if text == "earliest" else "latest"
        if not text[:1].isdigit():
            raise StoreFormatError(
                f'{what} {shown(value)}: must be "earliest", "latest", Unix ms, a datetime with a'
                " zone or ISO 8601 text"
            )
    return time_of(what, value)


def loss_word_of(value: Any) -> str:
    """Return what to do about removed messages, "raise" or "skip". Raises StoreFormatError."""
    text = exact_text("on_loss", value) if issubclass(type(value), str) else ""
    if text not in ("raise", "skip"):
        raise StoreFormatError(f'on_loss must be "raise" or "skip", not {shown(value)}')
    return text


def check_filter(message_filter: Any) -> None:
    """Raise StoreTypeError for a value that is neither a MessageFilter nor None."""
    names = ("is_matched_by_consume_queue", "is_matched_by_commit_log")
    if message_filter is not None and not all(hasattr(message_filter, name) for name in names):
        kind = type(message_filter).__name__
        raise StoreTypeError(f"message_filter must have {' and '.join(names)}, not be a {kind}")


def timeout_of(value: Any) -> float | None:
    """Return a number of seconds, None for no limit. Raises StoreFormatError."""
    if value is None:
        return None
    given: float | int
    if issubclass(type(value), (float, np.floating)):
        given = seconds = float(value)
    else:
        try:
            given = whole_number("timeout", value)
        except StoreTypeError as error:
            kind = type(value).__name__
            reason = f"must be a number of seconds, or None for no limit, not {kind}"
            raise StoreTypeError(f"timeout {reason}") from error
        seconds = float(min(max(given, 0), TIMEOUT_MAX + 1))
    if math.isnan(seconds) or seconds > TIMEOUT_MAX:
        reason = f"must be at most {TIMEOUT_MAX} seconds, or None for no limit"
        raise StoreFormatError(f"timeout {shown(given)}: {reason}")
    return max(seconds, 0.0)
