"""Goal: a time to search by means the same in every call, and a time in seconds is refused.
Method: a table of times x calls of `Store`, the command's type, and Spark's options."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import pyrocketstore
from pyrocketstore import StoreFormatError
from pyrocketstore.arguments.scalars import TIME_MIN_MS, time_of
from pyrocketstore.cli.store_command import TimeMs
from pyrocketstore.spark.options import BATCH, read_options

UTC = datetime.UTC
AT = datetime.datetime(2026, 1, 31, 12, 0, 0, 1500, UTC)
AT_MS = 1769860800002
ZONE = datetime.timezone(datetime.timedelta(hours=2))
GOOD = [
    (0, 0),
    (AT_MS, AT_MS),
    (TIME_MIN_MS, TIME_MIN_MS),
    (2**63 - 1, 2**63 - 1),
    (AT, AT_MS),
    (AT.astimezone(ZONE), AT_MS),
    ("2026-01-31T12:00:00.0015Z", AT_MS),
    ("2026-01-31T14:00:00.001500+02:00", AT_MS),
    (datetime.datetime(1970, 1, 1, tzinfo=UTC), 0),
]
BAD: list[Any] = [
    int(time.time()), 1, TIME_MIN_MS - 1, -1, -AT_MS, 2**63, time.time(), True, None, b"2026",
    AT.replace(tzinfo=None), "2026-01-31", "2026-01-31T12:00:00", "yesterday", "",
    datetime.datetime(1969, 1, 1, tzinfo=UTC), datetime.date(2026, 1, 31),
]  # fmt: skip
CALLS: dict[str, Callable[[pyrocketstore.Store, Any], object]] = {
    "query begin": lambda store, at: store.query("t", "k", begin=at),
    "query end": lambda store, at: store.query("t", "k", end=at),
    "query_many begin": lambda store, at: store.query_many("t", ["k"], begin=at),
    "query_many end": lambda store, at: store.query_many("t", ["k"], end=at),
    "offset_at": lambda store, at: store.offset_at("t", 0, at),
    "trim": lambda store, at: store.trim(before=at),
    "trim topic": lambda store, at: store.trim("t", before=at),
    "consumer": lambda store, at: store.consumer("g", "t", start=at).close(),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pyrocketstore.Store]:
    with pyrocketstore.open(tmp_path_factory.mktemp("times") / "s", preset="small") as opened:
        opened.put("t", b"x", keys="k")
        yield opened


@pytest.mark.parametrize(("given", "expected"), GOOD)
def test_a_time_is_the_first_ms_that_is_not_before_it(given: object, expected: int) -> None:
    assert time_of("begin", given) == expected


@pytest.mark.parametrize("call", CALLS)
def test_every_call_takes_the_same_times(store: pyrocketstore.Store, call: str) -> None:
    for given, _ in GOOD:
        if "trim" not in call or time_of("t", given) < time.time() * 1000:
            CALLS[call](store, given)
    for bad in BAD:
        if bad is not None or "end" not in call:
            with pytest.raises(StoreFormatError):
                CALLS[call](store, bad)


def test_an_error_names_the_unit(store: pyrocketstore.Store) -> None:
    with pytest.raises(StoreFormatError, match=r"times are in ms since 1970.*seconds by 1000"):
        store.query("t", "k", end=int(time.time()))
    with pytest.raises(StoreFormatError, match=r"has no zone: pass datetime.now\(UTC\)"):
        store.query("t", "k", end=AT.replace(tzinfo=None))
    assert len(store.query("t", "k", begin=datetime.datetime.now(UTC).replace(year=2020))) == 1


def test_the_command_takes_them_too() -> None:
    for text, expected in (("0", 0), (str(AT_MS), AT_MS), ("2026-01-31T12:00:00.0015Z", AT_MS)):
        assert TimeMs().convert(text, None, None) == expected
    local = TimeMs().convert("2026-01-31T12:00", None, None)
    assert local == datetime.datetime(2026, 1, 31, 12).timestamp() * 1000
    for text in ("1769860800", "-1", "1", "yesterday", "1969-01-01T00:00:00Z"):
        with pytest.raises(click.BadParameter):
            TimeMs().convert(text, None, None)


@pytest.mark.parametrize("which", ["starting", "ending"])
def test_options_of_spark_take_them_too(tmp_path: Path, which: str) -> None:
    def options(name: str, value: str) -> Any:
        return read_options({"path": str(tmp_path), "topic": "t", name: value}, BATCH)

    name, by_queue = f"{which}Timestamp", f"{which}OffsetsByTimestamp"
    for text, expected in (("0", 0), (str(AT_MS), AT_MS), ("2026-01-31T12:00:00.0015Z", AT_MS)):
        assert getattr(options(name, text), which).timestamp == expected
        value: object = int(text) if text.isdigit() else text
        found = getattr(options(by_queue, json.dumps({"t": {"0": value}})), which)
        assert found.timestamp_of("b", "t", 0) == expected
    for bad in ("1769860800", "-1", "2026-01-31T12:00:00", "yesterday"):
        with pytest.raises(StoreFormatError, match=name):
            options(name, bad)
        value = int(bad) if bad.lstrip("-").isdigit() else bad
        with pytest.raises(StoreFormatError, match=by_queue):
            options(by_queue, json.dumps({"t": {"0": value}}))
