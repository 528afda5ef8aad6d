"""Goal: consumerOffset.json, lmqConsumerOffset.json and subscriptionGroup.json have 4.9.3's text;
of a damaged file the backup is read, or an error raised; unknown fields stay.
Method: texts that 4.9.3's ConsumerOffsetManager and LmqConsumerOffsetManager printed for the same
calls, the files of a 4.9.3 broker (tests/golden), and damaged contents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import StoreCorruptionError, StoreStateError
from pyrocketstore.consumer.offsets import ConsumerOffsets
from pyrocketstore.consumer.subscription_groups import SubscriptionGroups
from pyrocketstore.system.env import Env
from support.golden_stores import unpack

#: Printed by 4.9.3 after the calls of `committed`. The last three names share bins of the map.
TEXT = (
    '{\n\t"offsetTable":{\n'
    '\t\t"t@é":{70:9223372036854775807\n\t\t},\n'
    '\t\t"topic1@group1":{19:7,37:1\n\t\t},\n'
    '\t\t"topic1@group2":{7:11,25:5\n\t\t},\n'
    '\t\t"topic1@group0":{13:9,31:3\n\t\t},\n'
    '\t\t"topic0@group2":{74:2,56:8\n\t\t},\n'
    '\t\t"topic0@group1":{68:4,50:10\n\t\t},\n'
    '\t\t"topic0@group0":{0:0,62:6\n\t\t},\n'
    '\t\t"BB@Aa":{0:1\n\t\t},\n'
    '\t\t"Aa@BB":{0:2\n\t\t},\n'
    '\t\t"Aa@Aa":{0:3\n\t\t}\n\t}\n}'
)
LMQ_TEXT = (
    '{\n\t"lmqOffsetTable":{\n\t\t"%LMQ%a@%LMQ%g":4\n\t},\n'
    '\t"offsetTable":{\n\t\t"t@g":{0:8,1:7\n\t\t}\n\t}\n}'
)


def loaded(root: Path, *, lmq: bool = False) -> ConsumerOffsets:
    offsets = ConsumerOffsets(Env(), str(root), lmq=lmq)
    offsets.load()
    return offsets


def written(offsets: ConsumerOffsets | SubscriptionGroups) -> str:
    """Write the file and return its text."""
    offsets.persist()
    return Path(offsets.path).read_text(encoding="utf-8")


def committed(root: Path) -> ConsumerOffsets:
    offsets = loaded(root)
    for i in range(12):
        offsets.commit_offset(f"group{i % 3}", f"topic{i % 2}", i * 37 % 80, i)
    offsets.commit_offset("Aa", "BB", 0, 1)
    offsets.commit_offset("BB", "Aa", 0, 2)
    offsets.commit_offset("Aa", "Aa", 0, 3)
    offsets.commit_offset("é", "t", 70, (1 << 63) - 1)
    return offsets


def config_of_a_broker(tmp_path: Path) -> Path:
    return unpack("broker-clean", tmp_path) / "config"


def with_text(root: Path, name: str, text: str) -> Path:
    file = root / "config" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


# ---- positions ----------------------------------------------------------------------------------


def test_the_text_is_that_of_4_9_3(tmp_path: Path) -> None:
    assert written(committed(tmp_path)) == TEXT


def test_the_text_with_light_queues_is_that_of_4_9_3(tmp_path: Path) -> None:
    offsets = loaded(tmp_path, lmq=True)
    offsets.commit_offset("%LMQ%g", "%LMQ%a", 0, 4)
    offsets.commit_offset("g", "t", 1, 7)
    offsets.commit_offset("g", "t", 0, 8)
    assert written(offsets) == LMQ_TEXT
    again = loaded(tmp_path, lmq=True)
    assert again.positions() == {
        ("%LMQ%g", "%LMQ%a", 0): 4,
        ("g", "t", 0): 8,
        ("g", "t", 1): 7,
    }
    again.commit_offset("%LMQ%g", "%LMQ%a", 0, 5)
    assert written(again) == LMQ_TEXT.replace('g":4', 'g":5')


def test_a_file_of_a_broker_keeps_its_order(tmp_path: Path) -> None:
    config = config_of_a_broker(tmp_path)
    text = (config / "consumerOffset.json").read_text()
    offsets = loaded(config.parent)
    assert offsets.query_offset("cg-1", "orders", 2) == 610
    assert offsets.query_offset("cg-1", "orders", 4) == -1
    assert offsets.query_offset("none", "orders", 2) == -1
    offsets.commit_offset("cg-1", "orders", 2, 611)
    assert written(offsets) == text.replace("2:610", "2:611")
    assert (config / "consumerOffset.json.bak").read_text() == text
    offsets.commit_offset("cg-1", "orders", 2, 610)  # backwards
    assert written(offsets) == text


def test_a_position_that_is_the_same_writes_nothing(tmp_path: Path) -> None:
    offsets = committed(tmp_path)
    offsets.persist()
    before = Path(offsets.path).stat()
    offsets.commit_offset("Aa", "BB", 0, 1)
    offsets.persist()
    after = Path(offsets.path).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_topic_that_is_removed(tmp_path: Path) -> None:
    offsets = committed(tmp_path)
    offsets.persist()
    offsets.remove_topic("topic1")
    text = written(offsets)
    assert "topic1" not in text
    assert text.count("topic0") == 3


def test_unknown_fields_stay(tmp_path: Path) -> None:
    text = (
        '{\n\t"dataVersion":{\n\t\t"counter":3\n\t},\n\t"offsetTable":{},\n\t"x":[\n\t\t1\n\t]\n}'
    )
    with_text(tmp_path, "consumerOffset.json", text)
    offsets = loaded(tmp_path)
    offsets.commit_offset("g", "t", 0, 5)
    table = '"offsetTable":{\n\t\t"t@g":{0:5\n\t\t}\n\t}'
    assert written(offsets) == text.replace('"offsetTable":{}', table)


DAMAGED = (
    "",
    " \n",
    "{",
    "[]",
    '{"offsetTable":[]}',
    '{"offsetTable":null}',
    '{"lmqOffsetTable":5,"offsetTable":{}}',
)


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file(tmp_path: Path, text: str) -> None:
    file = with_text(tmp_path, "consumerOffset.json", text)
    with pytest.raises(StoreCorruptionError, match=r"consumerOffset\.json.*repair it"):
        loaded(tmp_path)
    assert file.read_text() == text
    with_text(tmp_path, "consumerOffset.json.bak", '{"offsetTable":{"t@g":{0:5}}}')
    offsets = loaded(tmp_path)
    assert offsets.positions() == {("g", "t", 0): 5}
    offsets.commit_offset("g", "t", 0, 6)
    assert "{0:6\n" in written(offsets)
    backup = file.with_name(file.name + ".bak").read_text()
    assert backup == '{"offsetTable":{"t@g":{0:5}}}', "not replaced by the damaged file"


def test_a_store_with_a_damaged_file_opens_without_consumers(tmp_path: Path) -> None:
    with_text(tmp_path, "consumerOffset.json", "{")
    with pyrocketstore.open(tmp_path) as store:
        store.put("t", b"x")
        for _ in range(2):
            with pytest.raises(StoreCorruptionError, match="delete it and its backup"):
                store.consumer("g", "t")
        with pytest.raises(StoreCorruptionError):
            store.consumer_positions()
    assert not (tmp_path / "abort").exists()
    assert (tmp_path / "config" / "consumerOffset.json").read_text() == "{"


def test_a_closed_store_accepts_no_position(tmp_path: Path) -> None:
    offsets = committed(tmp_path)
    offsets.close()
    with pytest.raises(StoreStateError):
        offsets.commit_offset("g", "t", 0, 1)
    with pytest.raises(StoreStateError):
        offsets.persist()


# ---- groups -------------------------------------------------------------------------------------


def groups_of(root: Path) -> SubscriptionGroups:
    groups = SubscriptionGroups(Env(), str(root))
    groups.load()
    return groups


def test_a_new_group_is_where_a_broker_prints_it(tmp_path: Path) -> None:
    """The broker's file is what a file without one of its groups becomes."""
    config = config_of_a_broker(tmp_path)
    file = config / "subscriptionGroup.json"
    text = file.read_text()
    content = json.loads(text)
    for number, group in enumerate(content["subscriptionGroupTable"]):
        fewer = json.loads(text)
        del fewer["subscriptionGroupTable"][group]
        file.write_text(json.dumps(fewer, indent="\t", separators=(",", ":")))
        groups = groups_of(config.parent)
        groups.ensure(group)
        now = written(groups)
        version = json.loads(now)["dataVersion"]
        assert version["counter"] == content["dataVersion"]["counter"] + 1
        expected: dict[str, Any] = {**content, "dataVersion": version}
        names = list(json.loads(now)["subscriptionGroupTable"])
        assert names == list(content["subscriptionGroupTable"]), number
        entry = expected["subscriptionGroupTable"][group]
        if entry["consumeBroadcastEnable"] and entry["retryMaxTimes"] == 16:
            assert now == json.dumps(expected, indent="\t", separators=(",", ":"))


def test_a_known_group_stays(tmp_path: Path) -> None:
    config = config_of_a_broker(tmp_path)
    before = (config / "subscriptionGroup.json").read_text()
    groups = groups_of(config.parent)
    assert "cg-1" in groups.groups()
    assert (groups.retry_max_times("cg-1"), groups.retry_max_times("none")) == (16, 16)
    groups.ensure("cg-1")
    assert written(groups) == before


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"subscriptionGroupTable":[]}',
        '{"subscriptionGroupTable":"g"}',
    ],
)
def test_a_damaged_file_of_groups(tmp_path: Path, text: str) -> None:
    with_text(tmp_path, "subscriptionGroup.json", text)
    with pytest.raises(StoreCorruptionError, match=r"subscriptionGroup\.json.*repair it"):
        groups_of(tmp_path)
    with_text(tmp_path, "subscriptionGroup.json.bak", '{"subscriptionGroupTable":{"g":{}}}')
    groups = groups_of(tmp_path)
    groups.ensure("h")
    assert list(json.loads(written(groups))["subscriptionGroupTable"]) == ["g", "h"]


def test_a_group_of_light_queues_is_not_listed(tmp_path: Path) -> None:
    """4.9.3's LmqSubscriptionGroupManager answers with the default settings and keeps nothing."""
    groups = SubscriptionGroups(Env(), str(tmp_path), lmq=True)
    groups.load()
    groups.ensure("%LMQ%g")
    groups.persist()
    assert (groups.groups(), groups.retry_max_times("%LMQ%g")) == ([], 16)
    assert not Path(groups.path).exists()
    groups.ensure("g")
    assert list(json.loads(written(groups))["subscriptionGroupTable"]) == ["g"]
    without = groups_of(tmp_path)
    without.ensure("%LMQ%g")
    assert "%LMQ%g" in without.groups()
