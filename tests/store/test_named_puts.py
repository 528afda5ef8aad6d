"""Puts of properties and of UNIQ_KEY: the compiled way stores what the way in Python stores."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import PutError, StoreError, StoreFormatError
from pyrocketstore.system.env import Env
from support.seed import SEED
from support.sizes import SIZES, SYNC_SIZES

ALPHABET = "abcdeXYZ0 _-\0é語\U0001f600"
Way = Callable[[pyrocketstore.Store, dict[str, Any]], Any]


def texts(rng: random.Random, count: int) -> dict[str, str]:
    def word() -> str:
        return "".join(rng.choices(ALPHABET, k=rng.randint(1, 12)))

    return {f"{word()}{i}": word() for i in range(count)}


def put_many(store: pyrocketstore.Store, given: dict[str, Any]) -> Any:
    return store.put_many("t", [b"x"], **{name: [value] for name, value in given.items()})


WAYS: dict[str, Way] = {
    "put": lambda store, given: store.put("t", b"x", **given),
    "aput": lambda store, given: asyncio.run(store.aput("t", b"x", **given)),
    "put_many": put_many,
    "columns": lambda store, given: store.put_batch(
        "t", [b"x"], **{name: [value] for name, value in given.items()}
    ),
    "dicts": lambda store, given: store.put_batch("t", [{"body": b"x", **given}]),
}


@pytest.mark.parametrize("settings", [SIZES, SYNC_SIZES], ids=["async", "sync"])
@pytest.mark.parametrize("unique_key", [False, True])
def test_each_way_stores_the_same_text(
    tmp_path: Path, settings: dict[str, Any], unique_key: bool
) -> None:
    """Goal: the bytes of the way in Python. Method: each message once as a dict, and once as
    another Mapping, which the compiled way leaves alone."""
    rng = random.Random(f"{SEED}:{unique_key}")
    with pyrocketstore.open(tmp_path, unique_key=unique_key, **settings) as store:
        store.put("t", b"first")
        for count in (0, 1, 4, 11, 12, 13, 50, 90):
            named = texts(rng, count)
            for name, call in WAYS.items():
                given = {"tags": "TagA", "keys": "k1 k2", "properties": named}
                start = store.max_offset("t")
                call(store, given)
                call(store, given | {"properties": MappingProxyType(named)})
                one, other = store.read("t", start=start)
                expected = {"TAGS": "TagA", "KEYS": "k1 k2"} | named
                if unique_key:
                    ids = [message.properties["UNIQ_KEY"] for message in (one, other)]
                    assert ids[0] != ids[1] and ids[0][:20] == ids[1][:20]
                    text = one.properties_string.replace(ids[0], ids[1])
                    expected |= {"UNIQ_KEY": ids[0]}
                else:
                    text = one.properties_string
                assert text == other.properties_string, (SEED, name, count)
                assert one.properties == expected, (SEED, name, count)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("unique_key", [False, True])
def test_a_refused_property_leaves_nothing(tmp_path: Path, way: str, unique_key: bool) -> None:
    good = {f"name{i}": "value" for i in range(20)}
    with pyrocketstore.open(tmp_path, unique_key=unique_key, **SIZES) as store:
        store.put("t", b"first", properties=good)
        end = store.message_store.get_max_phy_offset()
        for bad in ({"WAIT": "true"}, {"": "v"}, {"n": ""}, {"n": "\x02"}, {"n\x01": "v"}):
            with pytest.raises(StoreFormatError):
                WAYS[way](store, {"properties": good | bad})
        for odd in ({"n": 5}, {5: "n"}, {"n": b"v"}, {"n": None}):
            with pytest.raises(StoreError):
                WAYS[way](store, {"properties": good | odd})
        with pytest.raises(StoreFormatError, match="surrogate"):
            WAYS[way](store, {"properties": good | {"n": "a\ud800"}})
        with pytest.raises(PutError, match="PROPERTIES_SIZE_EXCEEDED"):
            WAYS[way](store, {"properties": good | {"n": "x" * 32767}})
        assert store.message_store.get_max_phy_offset() == end


def test_a_dict_that_another_thread_changes_is_taken_at_one_moment(tmp_path: Path) -> None:
    """Goal: a stored text is that of the dict at some moment. Method: it has few states, and all
    pairs of a state agree."""
    states = [{f"name{i}": f"{n}" for i in range(10 + n)} for n in range(4)]
    named = dict(states[0])
    ended = threading.Event()

    def change() -> None:
        for state in itertools.cycle(states):
            if ended.is_set():
                return
            named.clear()
            named.update(state)

    with pyrocketstore.open(tmp_path, unique_key=True, **SIZES) as store:
        thread = threading.Thread(target=change)
        thread.start()
        try:
            for _ in range(300):
                store.put("t", b"x", properties=named)
                store.put_many("t", [b"x"] * 5, properties=[named] * 5)
        finally:
            ended.set()
            thread.join()
        for message in store.read("t"):
            own = dict(message.properties)
            assert own.pop("UNIQ_KEY")
            assert own == {} or own in states


def test_threads_and_ways_get_distinct_ids(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, unique_key=True, **SIZES) as store:

        def work() -> None:
            for i in range(150):
                store.put("t", b"x", properties={"n": f"{i}"})
                store.put("t", b"x", keys=["a list", "is"][1:])
                store.put_many("t", [b"x"] * 3)
                store.put_batch("t", [b"x", {"body": b"y", "tags": "a"}])

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ids = [message.uniq_key for message in store.read("t")]
        assert len(set(ids)) == len(ids) == 4 * 150 * 7
        assert store.query("t", ids[77])[0].uniq_key == ids[77]


def test_an_id_whose_time_cannot_be_learned_puts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: an error of the clock, as one that a signal handler raises there, leaves the store
    usable. Method: local_time raises whenever the second has changed."""

    class BrokenTime(Env):
        broken = False

        def local_time(self, ms: int | None = None) -> Any:
            if self.broken:
                raise KeyboardInterrupt
            return super().local_time(ms)

    env = BrokenTime()
    with pyrocketstore.open(tmp_path, env=env, unique_key=True, **SIZES) as store:
        store.put("t", b"first")
        second = env.now_ms() // 1000
        while env.now_ms() // 1000 == second:
            env.sleep(0.05)
        env.broken = True
        for call in (
            lambda: store.put("t", b"x"),
            lambda: store.put_many("t", [b"x"]),
            lambda: store.put_batch("t", [b"x"]),
        ):
            with pytest.raises(KeyboardInterrupt):
                call()
        env.broken = False
        store.put("t", b"last", properties={"a": "b"})
        assert [message.body for message in store.read("t")] == [b"first", b"last"]


def test_a_bar_or_a_separator_is_found_at_each_place_of_a_tag(tmp_path: Path) -> None:
    """Goal: no length hides one, also without properties."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("t", b"first")
        for size in range(2, 26):
            for at in range(size - 1):
                for bad in ("||", "\x01\x03", "\x02}"):
                    tags = "a" * at + bad + "b" * (size - at - 2)
                    with pytest.raises(StoreFormatError):
                        store.put("t", b"x", tags=tags)
            store.put("t", b"x", tags="a" * (size - 1) + "|")
            assert [*store.read("t")][-1].tags == "a" * (size - 1) + "|"
        assert store.max_offset("t") == 25
