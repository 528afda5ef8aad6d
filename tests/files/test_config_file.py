"""Goal: files of ROOT/config are read and written as fastjson does, in the order of a Java map.
Method: texts of a 4.9.3 broker; random contents read back; strings that look like keys."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pyrocketstore.files import fastjson
from support.seed import SEED

BROKER_OFFSETS = (
    '{\n\t"offsetTable":{\n\t\t"TopicA@G":{0:5,1:7\n\t\t},\n\t\t"%RETRY%G2@G2":{0:0\n\t\t}\n\t}\n}'
)


def test_number_keys_have_no_quotes_and_one_line() -> None:
    table = {"TopicA@G": {0: 5, 1: 7}, "%RETRY%G2@G2": {0: 0}}
    assert fastjson.render({"offsetTable": table}) == BROKER_OFFSETS
    parsed = fastjson.parse(BROKER_OFFSETS.encode())
    assert parsed == {"offsetTable": {"TopicA@G": {"0": 5, "1": 7}, "%RETRY%G2@G2": {"0": 0}}}
    assert fastjson.render({"offsetTable": {}}) == '{\n\t"offsetTable":{}\n}'


@pytest.mark.parametrize("name", ["{1:2}", ', 3 :"', '\\"{4:5}', "x,-6:7", "\\"])
def test_a_string_that_looks_like_a_key_stays(name: str) -> None:
    content = {"table": {name: {1: 2}}, "text": name}
    expected = {"table": {name: {"1": 2}}, "text": name}
    assert fastjson.parse(fastjson.encode(content)) == expected


def test_random_contents_are_read_back() -> None:
    rng = random.Random(SEED)

    def value(depth: int) -> Any:
        kind = rng.randrange(5 if depth else 3)
        if kind == 0:
            return rng.randrange(-(1 << 63), 1 << 63)
        if kind == 1:
            return "".join(rng.choice('{}[],:"\\19-\t\u00e9 ') for _ in range(rng.randrange(8)))
        if kind == 2:
            return rng.choice([True, False, None])
        if kind == 3:
            return [value(depth - 1) for _ in range(rng.randrange(3))]
        return {str(rng.randrange(99)) + "k": value(depth - 1) for _ in range(rng.randrange(4))}

    for _ in range(2000):
        content = {"a": value(3), "b": value(2)}
        assert fastjson.parse(fastjson.encode(content)) == content


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff", b'{"a":' * 60 + b"1" + b"}" * 60])
def test_what_is_no_object(data: bytes) -> None:
    with pytest.raises(fastjson.JsonError, match=r"^line 1, column \d+: "):
        fastjson.parse(data)


def test_the_order_of_a_java_map() -> None:
    table = fastjson.map_order({}, {17: "a", 1: "b", 64: "c", 3: "d"}, 64)
    assert list(table) == [64, 1, 3, 17]
    assert list(fastjson.map_order(table, {2: "e"}, 64)) == [64, 1, 2, 3, 17]
    assert fastjson.map_order(table, {1: "f"}, 64)[1] == "f"
    unordered = {"b": 1, "a": 2}
    assert list(fastjson.map_order(unordered, {"c": 3}, 1024))[-1] == "c"


def test_a_map_that_doubles_turns_the_order_of_a_bin() -> None:
    """Goal: keys of one bin stand as in 4.9.3's file, whose ConcurrentHashMap puts those before the
    last run of a bin in front of each other when it doubles. test_bloom_java.py asks the real one.
    """
    table: dict[int, int] = {}
    for key in (5, 37, 21, *range(8)):  # 5, 37 and 21 are in bin 5 of 16; 21 leaves it
        table = fastjson.map_order(table, {key: 0}, 16)
    assert list(table) == [0, 1, 2, 3, 4, 5, 37, 21, 6, 7]
    for key in (8, 9):
        table = fastjson.map_order(table, {key: 0}, 16)
    assert list(table) == [0, 1, 2, 3, 4, 37, 5, 6, 7, 8, 9, 21]
    assert list(fastjson.map_order(table, {10: 0}, 16)) == [*range(5), 37, 5, 6, 7, 8, 9, 10, 21]
