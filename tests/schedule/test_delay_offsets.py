"""Goal: delayOffset.json has 4.9.3's text, and a damaged one loses no delivery silently.
Method: the file itself, byte for byte; damaged contents."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore import StoreCorruptionError
from pyrocketstore.schedule.delay_offsets import DelayOffsets
from pyrocketstore.system.env import Env
from support.sizes import SIZES


def loaded(root: Path) -> DelayOffsets:
    offsets = DelayOffsets(Env(), str(root))
    offsets.load()
    return offsets


def test_the_text_is_that_of_4_9_3(tmp_path: Path) -> None:
    offsets = loaded(tmp_path)
    assert (offsets.offsets(), offsets.next_offset(3)) == ({}, 0)
    offsets.move(2, 0)
    offsets.move(1, 3)
    offsets.move(18, 1 << 40)
    offsets.persist(offsets.offsets())
    text = '{\n\t"offsetTable":{1:3,2:0,18:1099511627776\n\t}\n}'
    assert Path(offsets.path).read_text() == text
    again = loaded(tmp_path)
    assert again.offsets() == {1: 3, 2: 0, 18: 1 << 40}
    assert not again.is_changed()


@pytest.mark.parametrize(
    "text",
    [
        '{"offsetTable":{"1":5}}',
        '{"offsetTable":{1:5}}',
        '{\n\t"offsetTable":{1:5\n\t},"more":["{1:2}"]\n}',
    ],
)
def test_other_texts_of_a_table(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config" / "delayOffset.json"
    file.parent.mkdir()
    file.write_text(text)
    assert loaded(tmp_path).offsets() == {1: 5}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"offsetTable":[]}',
        '{"offsetTable":null}',
    ],
)
def test_a_damaged_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config" / "delayOffset.json"
    file.parent.mkdir()
    file.write_text(text)
    wrong = "offsetTable: must be" if "offsetTable" in text else "not valid JSON"
    with pytest.raises(StoreCorruptionError, match=rf"delayOffset\.json: {wrong}"):
        loaded(tmp_path)
    file.with_name("delayOffset.json.bak").write_text('{"offsetTable":{1:4}}')
    assert loaded(tmp_path).offsets() == {1: 4}


def test_damaged_offsets_refuse_an_opening(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        store.put("t", b"", delay_level=1)
    file = tmp_path / "config" / "delayOffset.json"
    file.write_text("{")
    with pytest.raises(StoreCorruptionError, match=r"delayOffset\.json: not valid JSON"):
        pyrocketstore.open(tmp_path, **SIZES)
    assert file.read_text() == "{"
    with pyrocketstore.open(tmp_path, read_only=True, **SIZES) as store:
        assert len(list(store.read("SCHEDULE_TOPIC_XXXX", 0))) == 1
        with pytest.raises(StoreCorruptionError, match=r"delayOffset\.json"):
            store.delayed()
