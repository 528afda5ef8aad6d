"""The properties text of an ordinary put, which is written without Python, and UNIQ_KEY."""

from __future__ import annotations

import itertools
import os
import random
import re
import threading
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import StoreError
from pyrocketstore.commit_log.put_rules import named_properties, properties_text
from pyrocketstore.record._message import create_message_id
from pyrocketstore.record._text import UniqueIds, plain_text_of
from pyrocketstore.record.message import (
    MAX_PROPERTIES_SIZE,
    PROPERTY_INNER_MULTI_DISPATCH,
    RESERVED_NAMES,
)
from pyrocketstore.store.puts import SlowPuts
from pyrocketstore.system.env import Env
from support.seed import SEED

ALPHABET = "abcXYZ09_.- \t\0\x03|*äß\u2028語\uffff\U0001f600\U0010ffff"
ID = "7F00000100010A0B0C0D00000001ABCD"
#: Names with one hash, and so with one bucket in a table of any size.
ONE_HASH = ["".join(pair) for pair in itertools.product(("Aa", "BB"), repeat=5)]


class TextSubclass(str):
    """Not an exact str."""


class DictSubclass(dict[Any, Any]):
    """Not an exact dict."""


def careful(tags: Any, keys: Any, properties: Any, unique: str | None) -> bytes | None:
    """The text that Python writes; None for what it refuses."""
    try:
        named = named_properties(tags, keys, properties)
        if unique is not None:
            named["UNIQ_KEY"] = unique
        return properties_text(named).encode()
    except StoreError:
        return None


def word(rng: random.Random, least: int = 1) -> str:
    """A text of up to 20 characters, seldom of up to some thousand."""
    size = rng.randint(least, rng.choice((3, 8, 20, 20, 20, 2000)))
    alphabet = ALPHABET if rng.random() < 0.4 else "abcdefghijklmnop"
    return "".join(rng.choices(alphabet, k=size))


def drawn_map(rng: random.Random) -> dict[str, str] | None:
    if rng.random() < 0.1:
        return None
    count = rng.choice((0, 1, 2, 5, 9, 11, 12, 13, 23, 24, 25, 48, 49, 61, 64, 100, 300))
    names = rng.sample(ONE_HASH, min(count, rng.randint(0, 14))) if rng.random() < 0.3 else []
    names += [word(rng) for _ in range(count - len(names))]
    rng.shuffle(names)
    return {name: word(rng) for name in names}


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_keys(kind: type, tmp_path: Path) -> None:
    """Ordinary keys are joined without Python; every other list is refused as always."""
    rng = random.Random(f"{SEED}:keys")
    with pyrocketstore.open(tmp_path, preset="small") as store:
        calls = []
        slow = SlowPuts.put
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SlowPuts, "put", lambda *given: calls.append(given) or slow(*given))
            store.put("t", b"first")
            calls.clear()
            for _ in range(300):
                keys = kind(word(rng, 0) for _ in range(rng.randint(0, 5)))
                wanted = careful("t", keys, {"a": "b"}, None)
                text = plain_text_of("t", keys, {"a": "b"})
                assert text is None or text == wanted, (SEED, keys)
            for keys in (["k"], ["k1", "語", "k\t3"], ["x" * 300]):
                result = store.put("t", b"x", keys=kind(keys))
                found = store.get(result.phy_offset)
                assert found is not None
                assert found.properties["KEYS"] == " ".join(keys)
                assert plain_text_of(None, kind(keys), None) is not None
            assert not calls
            for odd in (["a b"], ["a", ""], ["a\x01"], ["a\x02b"], ["\ud800"], ["a", None], [b"a"]):
                assert plain_text_of(None, kind(odd), None) is None
                with pytest.raises(StoreError, match="a key"):
                    store.put("t", b"x", keys=kind(odd))
            assert len(calls) == 7
            for odd, wanted in (([TextSubclass("k"), "m"], "k m"), ([], None)):
                found = store.get(store.put("t", b"x", keys=kind(odd)).phy_offset)
                assert found is not None
                assert found.properties.get("KEYS") == wanted


def test_the_text_is_that_of_the_careful_way() -> None:
    """Goal: the same bytes, and nothing taken that is refused. Method: random maps whose sizes lie
    around those where Java's table grows, with names that share a bucket."""
    rng = random.Random(f"{SEED}:plain")
    taken = 0
    for _ in range(1500):
        tags, keys = (rng.choice((None, word(rng))) for _ in range(2))
        properties, unique = drawn_map(rng), rng.choice((None, ID))
        text = plain_text_of(tags, keys, properties, (unique or "").encode())
        if text is not None:
            assert text == careful(tags, keys, properties, unique), (SEED, tags, keys, properties)
            taken += 1
    assert taken > 500, SEED


def test_every_map_of_plain_values_is_taken() -> None:
    """Goal: no size of a map is left to Python. Method: each count, without odd tags and keys."""
    for count in [*range(130), 400, 1500]:
        properties = {f"name{i * 7919}": f"{i}é" for i in range(count)}
        text = plain_text_of("TagA", "k1 k2", properties, ID.encode())
        assert text == careful("TagA", "k1 k2", properties, ID)
    assert plain_text_of(None, None, None) == plain_text_of(None, None, {}) == b""


@pytest.mark.parametrize("crowd", range(1, len(ONE_HASH) + 1, 3))
def test_names_of_one_bucket_make_the_table_grow(crowd: int) -> None:
    for others in (0, 3, 4, 5, 12, 16, 17, 30, 36, 40):
        names = [*ONE_HASH[:crowd], *(f"other{i}" for i in range(others))]
        random.Random(f"{crowd}:{others}").shuffle(names)
        properties = dict.fromkeys(names, "v")
        text = plain_text_of("t", "k", properties)
        assert text == careful("t", "k", properties, None), names


@pytest.mark.parametrize("char", ["x", "é", "語", "\U0001f600", "\0"])
def test_lengths_near_the_limit(char: str) -> None:
    """Goal: 32767 bytes of UTF-8, separators counted, and none more."""
    width = len(char.encode())
    for spare in range(-4, 9):
        pad = (MAX_PROPERTIES_SIZE - len("name\x01") - len("other\x01v\x02") + spare) % width
        fill = (MAX_PROPERTIES_SIZE - len("name\x01") - len("other\x01v\x02") + spare) // width
        for properties in (
            {"name": "x" * pad + char * fill, "other": "v"},
            {"other": "v", "name": char * fill + "x" * pad},
            {"name": char * (fill + 8 // width)},
            {char * (fill + 7 // width): "v"},
        ):
            found = plain_text_of(None, None, properties)
            assert found == careful(None, None, properties, None), (spare, len(found or b""))


@pytest.mark.parametrize("size", [0, 5, 32, 100])
def test_a_capacity_is_never_exceeded(size: int) -> None:
    properties = {"a": "b" * (size - 2)} if size else {}
    assert plain_text_of(None, None, properties, capacity=size) is not None
    if size:
        assert plain_text_of(None, None, properties, capacity=size - 1) is None


#: Values that are left to Python, which refuses or converts them.
ODD: list[Any] = [
    *(("p", {name: "v"}) for name in sorted(RESERVED_NAMES)),
    ("p", {PROPERTY_INNER_MULTI_DISPATCH: "%LMQ%a"}),
    *(("p", {name: "v"}) for name in ("", "a\x01", "\x02a", "\ud800", TextSubclass("a"), 5, None)),
    *(
        ("p", {"name": value})
        for value in ("", "\x01", "1234567\x02", "12345678\x01", "\x0212345678", "a\udfff", 5, None)
    ),
    ("p", {"name": TextSubclass("v")}),
    ("p", {"é": b"v"}),
    ("p", DictSubclass(a="b")),
    ("p", [("a", "b")]),
    ("p", "text"),
    *(
        ("t", tags)
        for tags in ("", "a||b", " a", "a\t", "*", "a\x01", "\ud800", TextSubclass("a"), 5)
    ),
    *(
        ("k", keys)
        for keys in ("", "a\x02", "\ud800", TextSubclass("a"), ["a b"], [""], [], {"a"}, 5)
    ),
]


@pytest.mark.parametrize(("where", "value"), ODD)
def test_odd_values_are_left_to_python(where: str, value: Any) -> None:
    values = {"t": "TagA", "k": "key", "p": {"a": "b"}}
    assert plain_text_of(*values.values()) is not None
    values[where] = value
    assert plain_text_of(*values.values()) is None
    if where == "p" and type(value) is dict and len(value) == 1:
        many = {f"n{i}": "v" for i in range(100)} | value
        assert plain_text_of("TagA", "key", many) is None


@pytest.mark.parametrize("separator", ["\x01", "\x02"])
def test_a_separator_is_found_at_each_place(separator: str) -> None:
    """Goal: no length hides one. Method: beside bytes that differ from it by one bit or by one."""
    for size in range(1, 27):
        plain = "\0\x03\x7f" * 9
        for at in range(size):
            text = plain[:at] + separator + plain[at : size - 1]
            assert plain_text_of(None, None, {"name": text}) is None, (size, at)
            assert plain_text_of(None, text, None) is None, (size, at)
            assert plain_text_of(None, None, {text: "value"}) is None, (size, at)
        assert plain_text_of(None, None, {"name": plain[:size]}) is not None


# ---- UNIQ_KEY -----------------------------------------------------------------------------------


class ClockEnv(Env):
    """An Env whose local time and process are given."""

    process = 0x12345

    def process_id(self) -> int:
        return self.process


@pytest.mark.parametrize("host", ["10.1.2.3:10911", "[2001:db8::1]:10911", "[::ffff:1.2.3.4]:1"])
def test_a_unique_id_is_that_of_4_9_3(host: str) -> None:
    """Goal: address, process, loader, ms of the month, counter. Method: the fields one by one."""
    env = ClockEnv()
    ids = UniqueIds(env, host)
    before = env.now_ms()
    found = [ids.new() for _ in range(3)]
    after = env.now_ms()
    address = create_message_id(host, 0)[:-24]
    size = len(address)
    assert {len(text) for text in found} == {size + 24}
    assert all(re.fullmatch("[0-9A-F]+", text) for text in found)
    assert {text[: size + 4] for text in found} == {address + "2345"}
    assert len({text[size + 4 : size + 12] for text in found}) == 1
    for text in found:
        elapsed = int(text[size + 12 : size + 20], 16)
        assert _since_month_began(env, before) <= elapsed <= _since_month_began(env, after)
    counts = [int(text[-4:], 16) for text in found]
    assert [(count - counts[0]) & 0xFFFF for count in counts] == [0, 1, 2]


def _since_month_began(env: Env, now: int) -> int:
    local = env.local_time(now)
    seconds = ((local.tm_mday - 1) * 24 + local.tm_hour) * 3600 + local.tm_min * 60 + local.tm_sec
    return seconds * 1000 + now % 1000


def test_unique_ids_of_threads_and_of_several_makers_differ() -> None:
    makers = [UniqueIds(Env(), "127.0.0.1:10911") for _ in range(2)]
    found: list[list[str]] = [[] for _ in range(4)]

    def make(i: int) -> None:
        found[i] = [makers[i % 2].new() for _ in range(5000)]

    threads = [threading.Thread(target=make, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(itertools.chain(*found))) == 20_000


def test_unique_ids_of_a_forked_child_differ() -> None:
    """Goal: also where the ids of the processes have the same last 16 bits."""
    env = ClockEnv()
    ours = UniqueIds(env, "127.0.0.1:10911").new()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, UniqueIds(env, "127.0.0.1:10911").new().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        theirs = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert ours[:12] == theirs[:12] and ours[12:20] != theirs[12:20]


@pytest.mark.parametrize("host", ["nowhere", 5, None])
def test_a_unique_id_needs_a_host(host: Any) -> None:
    with pytest.raises((StoreError, TypeError)):
        UniqueIds(Env(), host)
