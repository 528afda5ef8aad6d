"""Goal: a text that 4.9.3 accepts in a file of ROOT/config gives the same content here, and one
that it refuses is refused, or its damaged entries are named.
Method: `fastjson_texts.json` has texts and the answers of 4.9.3's own classes with its fastjson
1.2.76, null for a refusal; one test asks them again."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from pyrocketstore import StoreCorruptionError
from pyrocketstore.consumer.offsets import ConsumerOffsets
from pyrocketstore.files import fastjson
from pyrocketstore.schedule.delay_offsets import DelayOffsets
from pyrocketstore.system.env import Env
from support.java_store import require_java

FACTS: list[tuple[str, str, str | None]] = [
    (file, text, content)
    for file, text, content in json.loads(
        Path(__file__).with_name("fastjson_texts.json").read_text()
    )
]
POSITIONS = "consumerOffset.json"
#: Texts that no one writes into these files: calls, hexadecimal bytes, tables as keys, references.
OTHER_VALUES = ("new Date", "Set[", "x'41'", "{[1]:2}", "{{}:2}", "$ref", "@type", ";")
#: 4.9.3 takes a date, a wrapped number, a name in other letters and a key with another type.
OTHER_POSITIONS = ("2020-01-01", "1e30", "OffsetTable", "offset_table", "offsettable", "true:3")
OTHER_POSITIONS += ("{1.5:3}", *OTHER_VALUES)
#: Needless commas, which fastjson accepts in other tables.
ACCEPTED_HERE = ("3,,1", "{,0:3")


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return float(value) if isinstance(value, (int, float)) and value is not True else value


def texts(file: str) -> list[Any]:
    return [pytest.param(t, c, id=ascii(t)[1:60]) for name, t, c in FACTS if name == file]


@pytest.mark.parametrize(("text", "content"), texts(""))
def test_objects(text: str, content: str | None) -> None:
    if any(part in text for part in OTHER_VALUES):
        return
    if content is None:
        with pytest.raises(fastjson.JsonError, match=r"^line \d+, column \d+: "):
            fastjson.parse(text.encode())
    else:
        found = fastjson.parse(text.encode())
        assert plain(found) == plain(json.loads(content, strict=False))
        assert plain(fastjson.parse(fastjson.encode(found))) == plain(found)


@pytest.mark.parametrize(("text", "content"), texts(POSITIONS))
def test_positions(
    tmp_path: Path, text: str, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config" / POSITIONS
    file.parent.mkdir()
    file.write_text(text, "utf-8")
    offsets = ConsumerOffsets(Env(), str(tmp_path))
    caplog.set_level(logging.WARNING)
    try:
        offsets.load()
    except StoreCorruptionError as error:
        assert str(error).isprintable()
        assert content is None or any(part in text for part in OTHER_VALUES)
        return
    if content is None:
        assert "damaged entries" in caplog.text or any(part in text for part in ACCEPTED_HERE)
        return
    taken = {
        (name.partition("@")[2], name.partition("@")[0], int(queue_id)): at
        for name, queues in json.loads(content).items()
        for queue_id, at in queues.items()
    }
    valid = {key: at for key, at in taken.items() if at >= -1 and key[2] >= 0 and key[0] and key[1]}
    if not any(part in text for part in OTHER_POSITIONS):
        assert offsets.positions() == valid
        assert ("damaged entries" in caplog.text) == (valid != taken)


@pytest.mark.parametrize(("text", "content"), texts("delayOffset.json"))
def test_offsets_of_levels(tmp_path: Path, text: str, content: str | None) -> None:
    file = tmp_path / "config" / "delayOffset.json"
    file.parent.mkdir()
    file.write_text(text, "utf-8")
    offsets = DelayOffsets(Env(), str(tmp_path))
    offsets.load()
    taken = {} if content is None else json.loads(content)
    valid = {int(level): at for level, at in taken.items() if at >= 0 and int(level) > 0}
    assert offsets.offsets() == valid


def test_the_place_of_damage_is_named() -> None:
    for data, place in (
        (b'{\n"a":1\n"b":2}', "line 3, column 1: must be ',' or '}', not '\"'"),
        ('{"é":\n  nope}'.encode(), "line 2, column 3: must be a value, not 'n'"),
        ('{"é":"'.encode() + b"\xff", "line 1, column 7: not UTF-8"),
        (b'{"a":"x', "line 1, column 6: a string without an end"),
        (b'{"a":"\\q"}', "line 1, column 7: an escape that JSON does not have"),
        (b"{}{", "line 1, column 3: must be nothing more, not '{'"),
        (b"{", "line 1, column 2: must be a key or '}', not the end of the file"),
        (b"", "line 1, column 1: no content"),
        (b'{"a":' * 51 + b"1" + b"}" * 51, "line 1, column 251: more than 50 levels"),
        (b'{"a":' + b"9" * 9999 + b"}", "line 1, column 6: a number of too many digits"),
    ):
        with pytest.raises(fastjson.JsonError) as raised:
            fastjson.parse(data)
        assert str(raised.value) == place


@pytest.mark.java
@pytest.mark.slow
def test_the_answers_of_fastjson() -> None:
    answers = require_java().config([{"file": file, "text": text} for file, text, _ in FACTS])
    found = [answer.get("content") for answer in answers]
    assert [None if text == "null" else text for text in found] == [fact[2] for fact in FACTS]
