"""Goal: each check of an argument of a reading call accepts exactly what its docstring says.
Method: values at and beyond each limit, in each type."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pytest

from pyrocketstore import StoreFormatError, StoreTypeError
from pyrocketstore.arguments.read_arguments import (
    TIMEOUT_MAX,
    check_filter,
    group_of,
    loss_word_of,
    queue_id_of,
    queue_of,
    range_of,
    start_of,
    start_time_of,
    timeout_of,
    unit_of,
)


@pytest.mark.parametrize("name", ["g", "a" * 255, "%RETRY%g", "a|b", "A_b-9"])
def test_a_group(name: str) -> None:
    assert group_of(name) == name


@pytest.mark.parametrize("name", ["", "a" * 256, "a b", "a.b", "\u00e4", "a\n", "\x1b"])
def test_a_group_that_4_9_3_refuses(name: str) -> None:
    with pytest.raises(StoreFormatError, match="must be 1 to 255") as caught:
        group_of(name)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("value", [None, 1, b"g"])
def test_a_group_of_another_type(value: Any) -> None:
    with pytest.raises(StoreTypeError):
        group_of(value)


def test_ids_of_queues() -> None:
    for value in (0, np.int16(0), 2**31 - 1):
        assert queue_id_of(value) == value and type(queue_id_of(value)) is int
    for value in (-1, 2**31):
        with pytest.raises(StoreFormatError):
            queue_id_of(value)
    assert queue_of("t", -(2**31)) == ("t", -(2**31))
    for number in (2**31, -(2**31) - 1):
        with pytest.raises(StoreFormatError):
            queue_of("t", number)


def test_units_and_ranges() -> None:
    assert unit_of("t", 0, 2**63 - 1) == ("t", 0, 2**63 - 1)
    assert range_of(-(2**63), 2**31 - 1) == (-(2**63), 2**31 - 1)
    for call in (lambda: unit_of("t", 0, 2**63), lambda: range_of(0, 2**31)):
        with pytest.raises(StoreFormatError):
            call()
    for call in (lambda: unit_of("t", 0, 1.0), lambda: range_of("0", 1)):
        with pytest.raises(StoreTypeError):
            call()


def test_a_start() -> None:
    for value in ("earliest", "latest", 0, -(2**63)):
        assert start_of("start", value, "an offset") == value
    for text in ("Earliest", "", "0", "latest "):
        with pytest.raises(StoreFormatError, match=r'start .*"earliest", "latest" or an offset'):
            start_of("start", text, "an offset")
    with pytest.raises(StoreTypeError):
        start_of("start", None, "an offset")


def test_a_start_time() -> None:
    time = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    ms = int(time.timestamp() * 1000)
    for value in (ms, time, "2024-01-01T00:00:00Z", "2024-01-01T01:00:00+01:00"):
        assert start_time_of("start", value) == ms
    for word in ("earliest", "latest"):
        assert start_time_of("start", word) == word
    for text in ("", "now", "-5", "earliest "):
        with pytest.raises(StoreFormatError, match='"earliest", "latest", Unix ms'):
            start_time_of("start", text)


def test_what_to_do_about_losses() -> None:
    assert [loss_word_of(word) for word in ("raise", "skip")] == ["raise", "skip"]
    for value in ("Raise", "", None, 1, b"skip"):
        with pytest.raises(StoreFormatError, match='on_loss must be "raise" or "skip"'):
            loss_word_of(value)


def test_a_filter_has_both_methods() -> None:
    class Filter:
        def is_matched_by_consume_queue(self) -> None: ...

    check_filter(None)
    with pytest.raises(StoreTypeError, match="is_matched_by_commit_log"):
        check_filter(Filter())
    Filter.is_matched_by_commit_log = lambda self: None  # type: ignore[attr-defined]
    check_filter(Filter())


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0, 0.0),
        (-1, 0.0),
        (-math.inf, 0.0),
        (-(10**400), 0.0),
        (1.5, 1.5),
        (np.float32(0.5), 0.5),
        (np.int8(3), 3.0),
        (TIMEOUT_MAX, float(TIMEOUT_MAX)),
    ],
)
def test_a_timeout(value: Any, seconds: float | None) -> None:
    found = timeout_of(value)
    assert found == seconds and type(found) in (float, type(None))


@pytest.mark.parametrize("value", [math.nan, math.inf, TIMEOUT_MAX + 1, 10**400, 2.0**40])
def test_a_timeout_beyond_the_limit(value: float) -> None:
    with pytest.raises(StoreFormatError, match=r"timeout .*: must be at most"):
        timeout_of(value)


@pytest.mark.parametrize("value", ["1", b"1", [1], dt.timedelta(seconds=1)])
def test_a_timeout_of_another_type(value: Any) -> None:
    with pytest.raises(StoreTypeError, match="timeout must be a number of seconds"):
        timeout_of(value)
