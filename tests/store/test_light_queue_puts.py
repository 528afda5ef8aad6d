"""Goal: `put(..., light_queues=)` writes to light queues whose offsets survive rolls and restarts,
and refuses what cannot be stored; an unused light queue can be removed.
Method: small files, restarts and kills; limits of names, properties and numbers of queues."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore import (
    PutError,
    PutMessageStatus,
    StoreFormatError,
    StoreStateError,
    StoreTypeError,
)
from support.sizes import SIZES

LIGHT: dict[str, Any] = {**SIZES, "enable_lmq": True, "enable_multi_dispatch": True}


def bodies(store: pyrocketstore.Store, name: str) -> list[bytes]:
    return [message.body for message in store.read(f"%LMQ%{name}")]


def test_a_message_is_in_each_of_its_queues(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **LIGHT) as store:
        for number in range(5):
            names = ["a", "b"] if number % 2 else ("a",)
            result = store.put("t", b"%d" % number, queue_id=number % 3, light_queues=names)
            assert result.is_ok()
        asyncio.run(store.aput("t", b"5", tags="T", light_queues=["b"], properties={"x": "y"}))
        store.put("t", b"6", light_queues=[])
        assert bodies(store, "a") == [b"0", b"1", b"2", b"3", b"4"]
        assert bodies(store, "b") == [b"1", b"3", b"5"]
        assert store.queues("%LMQ%b") == [0]
        last = list(store.read("%LMQ%b", tags="T"))
        assert [m.body for m in last] == [b"5"]
        assert last[0].properties["INNER_MULTI_QUEUE_OFFSET"] == "2"
        assert last[0].properties["x"] == "y"
        with store.consumer("g", "%LMQ%a") as consumer:
            assert [m.body for m in consumer.poll(10, 1)] == bodies(store, "a")
        assert store.verify().ok
    assert "LMQ" not in (tmp_path / "config" / "topics.json").read_text()


@pytest.mark.parametrize("killed", [False, True])
def test_offsets_survive_rolls_and_restarts(tmp_path: Path, killed: bool) -> None:
    path, number = tmp_path / "0", 0
    for life in range(4):
        with pyrocketstore.open(path, **LIGHT) as store:
            for _ in range(130):  # more than a file of a queue, and of the log
                store.put("t", b"%d" % number + bytes(300), light_queues=["a"])
                number += 1
            if killed:
                store.wait_dispatched()
                copied = tmp_path / str(life + 1)
                shutil.copytree(path, copied, ignore=shutil.ignore_patterns("lock"))
                path = copied
    with pyrocketstore.open(path, **LIGHT) as store:
        found = [int(body.rstrip(b"\0")) for body in bodies(store, "a")]
        assert found == list(range(number))
        assert store.max_offset("%LMQ%a") == number
        assert store.verify().ok


@pytest.mark.parametrize(
    "names",
    ["a", b"a", 3, [3], [None], ["a,b"], [""], [".."], ["../x"], ["a/b"], ["a b"], ["ä"],
     ["a", "a"], ["x" * 123], ["%LMQ%a"]],
)  # fmt: skip
def test_names_that_cannot_be(tmp_path: Path, names: Any) -> None:
    with pyrocketstore.open(tmp_path, **LIGHT) as store:
        with pytest.raises(StoreFormatError):
            store.put("t", b"", light_queues=names)
        assert store.topics() == []


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (np.array(0), "light_queues must be a sequence of str, not ndarray"),
        (memoryview(bytes(4)).cast("B", (2, 2)), "light_queues must be .*, not memoryview"),
        ({"a": 1}, "light_queues must be a sequence of str, not dict"),
        (["a", 3], r"light_queues\[1\] must be a str, not int"),
        (["a", "a b"], r"light_queues\[1\] 'a b': must be 1 to 122 of"),
        ([""], r"light_queues\[0\] '': must be 1 to 122 of"),
        (["a", "x" * 123], r"light_queues\[1\] 'x+': must be 1 to 122 of"),
        (["%LMQ%a"], r"light_queues\[0\] '%LMQ%a': give the name without %LMQ%"),
    ],
)
def test_an_error_names_the_argument(tmp_path: Path, names: Any, reason: str) -> None:
    with pyrocketstore.open(tmp_path, **LIGHT) as store:
        with pytest.raises(StoreFormatError, match=reason):
            store.put("t", b"", light_queues=names)
        with pytest.raises(StoreFormatError, match=reason):
            asyncio.run(store.aput("t", b"", light_queues=names))
        assert store.topics() == []


def test_names_of_an_array_are_those_of_a_list(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **LIGHT) as store:
        longest = "x" * 122
        store.put("t", b"1", light_queues=np.array(["a", longest]))
        assert bodies(store, "a") == bodies(store, longest) == [b"1"]


def test_other_arguments_that_cannot_be(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **LIGHT) as store:
        with pytest.raises(StoreFormatError, match="names light queues too"):
            store.put("t", b"", light_queues=["a"], properties={"INNER_MULTI_DISPATCH": "b"})
        with pytest.raises(StoreFormatError, match="delayed"):
            store.put("t", b"", light_queues=["a"], delay_level=1)
        wrong: Any = 7
        with pytest.raises(StoreTypeError):
            store.put("t", b"", light_queues=["a"], properties=wrong)
        assert store.topics() == []
    with pyrocketstore.open(tmp_path / "plain", **SIZES) as store:
        with pytest.raises(StoreStateError, match="enable_lmq=True"):
            store.put("t", b"", light_queues=["a"])
        with pytest.raises(StoreStateError, match="enable_lmq=True"):
            asyncio.run(store.aput("t", b"", light_queues=["a"]))


def test_a_list_must_fit_into_the_properties(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **LIGHT) as store:
        names = [f"{'x' * 100}{number}" for number in range(400)]
        for count in (400, 310):
            with pytest.raises(PutError):
                store.put("t", b"", light_queues=names[:count])
        store.put("t", b"fits", light_queues=names[:280])
        assert bodies(store, names[279]) == [b"fits"]
        assert store.topics() == sorted(["t", *(f"%LMQ%{name}" for name in names[:280])])


def test_the_number_of_light_queues_is_held(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, max_lmq_consume_queue_num=5, **LIGHT) as store:
        refused = 0
        for number in range(10):
            try:
                store.put("t", b"", light_queues=[f"q{number}"])
                store.wait_dispatched()
            except PutError as error:
                assert error.status is PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
                refused += 1
        assert refused == 4  # 4.9.3 refuses once there are more than so many
        store.put("t", b"without")
        store.message_store.clean_unused_lmq_topic("%LMQ%q0")
        store.put("t", b"", light_queues=["q1"])
        assert store.max_offset("%LMQ%q1") == 2


def test_an_unused_light_queue_is_removed(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **LIGHT) as store:
        for _ in range(3):
            store.put("t", b"old", light_queues=["a", "b"])
        store.message_store.clean_unused_lmq_topic("%LMQ%a")
        store.message_store.clean_unused_lmq_topic("%LMQ%unknown")
        assert store.topics() == ["%LMQ%b", "t"]
        assert not (tmp_path / "consumequeue" / "%LMQ%a" / "0").exists()
        with pytest.raises(StoreFormatError):
            store.message_store.clean_unused_lmq_topic("t")
        store.put("t", b"new", light_queues=["a"])
        assert bodies(store, "a") == [b"new"]
        assert store.max_offset("t") == 4
    with pyrocketstore.open(tmp_path, **LIGHT) as store:
        assert bodies(store, "a") == [b"new"]
        assert len(bodies(store, "b")) == 3
        assert store.verify().ok


def test_a_kill_before_the_first_dispatch_loses_no_unit(tmp_path: Path) -> None:
    """The next opening may have no settings: a directory says that there are light queues."""
    live, killed = tmp_path / "live", tmp_path / "killed"
    with pyrocketstore.open(live, **LIGHT) as store, store.message_store.dispatch_paused():
        for number in range(3):
            store.put("t", b"%d" % number, light_queues=["a"])
        shutil.copytree(live, killed, ignore=shutil.ignore_patterns("lock"))
    for read_only in (True, False):
        with pyrocketstore.open(killed, read_only=read_only, **SIZES) as store:
            assert bodies(store, "a") == [b"0", b"1", b"2"]
    with pyrocketstore.open(killed, **LIGHT) as store:
        store.put("t", b"3", light_queues=["a"])
        assert bodies(store, "a") == [b"0", b"1", b"2", b"3"]
        assert store.verify().ok
