"""Goal: in each file of ROOT/config a damaged entry counts as missing, stays in the file when it is
written again, is warned of once, and refuses nothing else; of a file that is not valid JSON the
backup is used with a warning that names the place.
Method: one table of damaged entries over all files; each is read and changed by the class of its
file, and then a store with all of them is opened."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pyrocketstore
from pyrocketstore import Sql92Filter, StoreCorruptionError
from pyrocketstore.commit_log.topic_min_offset_file import (
    RecordProof,
    TopicMinimum,
    TopicMinOffsetFile,
)
from pyrocketstore.consumer.consumer_filters import ConsumerFilters
from pyrocketstore.consumer.offsets import ConsumerOffsets
from pyrocketstore.consumer.subscription_groups import SubscriptionGroups
from pyrocketstore.files import fastjson
from pyrocketstore.files.planned_changes import PlannedChanges
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.schedule.delay_offsets import DelayOffsets
from pyrocketstore.system.env import Env
from support.sizes import SIZES

FILTER: dict[str, Any] = {
    "bloomFilterData": {"bitNum": 112, "bitPos": [1, 2, 3]},
    "bornTime": 5,
    "consumerGroup": "g",
    "deadTime": 0,
    "expression": "a > 1",
    "expressionType": "SQL92",
    "topic": "t",
}
MINIMUM = {
    "dropping": False, "minPhyOffset": 5, "recordCrc": 1, "recordPhyOffset": 0, "recordSize": 5,
}  # fmt: skip


class OneFile(NamedTuple):
    """A file, its table, a valid entry, and damaged ones: names from the table down, and value.

    read : returns what the entries that count are; change : adds an entry and writes the file
    """

    name: str
    table: str
    good: dict[str, Any]
    damaged: list[tuple[tuple[str, ...], Any]]
    read: Callable[[Env, Path], object]
    change: Callable[[Env, Path], None]


def read_offsets(env: Env, root: Path, *, lmq: bool = False) -> object:
    offsets = ConsumerOffsets(env, str(root), lmq=lmq)
    offsets.load()
    return offsets.positions()


def change_offsets(env: Env, root: Path, *, lmq: bool = False) -> None:
    offsets = ConsumerOffsets(env, str(root), lmq=lmq)
    offsets.load()
    offsets.commit_offset("%LMQ%new" if lmq else "new", "t", 0, 7)
    offsets.persist()


def read_levels(env: Env, root: Path) -> object:
    offsets = DelayOffsets(env, str(root))
    offsets.load()
    return offsets.offsets()


def change_levels(env: Env, root: Path) -> None:
    offsets = DelayOffsets(env, str(root))
    offsets.load()
    offsets.persist({**offsets.offsets(), 9: 1})


def read_groups(env: Env, root: Path) -> object:
    groups = SubscriptionGroups(env, str(root))
    groups.load()
    return {group: groups.retry_max_times(group) for group in groups.groups()}


def change_groups(env: Env, root: Path) -> None:
    groups = SubscriptionGroups(env, str(root))
    groups.load()
    for group in ("new", "bad", "g"):
        groups.ensure(group)
    assert groups.retry_max_times("bad") == 16
    groups.persist()


def topics_of(env: Env, root: Path) -> TopicConfigFile:
    topics = TopicConfigFile(env, str(root / "config" / "topics.json"))
    topics.load()
    return topics


def change_topics(env: Env, root: Path) -> None:
    topics = topics_of(env, root)
    for topic in ("new", "bad", "t"):
        topics.ensure(topic, 0)
    topics.persist()


def filters_of(env: Env, root: Path) -> ConsumerFilters:
    filters = ConsumerFilters(env, str(root), 20, 32, 10**12, lambda: 0)
    filters.load()
    return filters


def change_filters(env: Env, root: Path) -> None:
    filters = filters_of(env, root)
    filters.register("new", "u", Sql92Filter("a > 2"))
    filters.persist()


def read_minimums(env: Env, root: Path) -> object:
    file = TopicMinOffsetFile(env, str(root))
    file.read()
    return sorted(file._content)


def change_minimums(env: Env, root: Path) -> None:
    file = TopicMinOffsetFile(env, str(root))
    file.read()
    file.load(EveryLog(), PlannedChanges())
    file.put("new", TopicMinimum(9, RecordProof(4, 5, 1), False), EveryLog())


class EveryLog:
    """A log that has each record."""

    def get_min_offset(self) -> int:
        return 0

    def flush_deletions(self) -> None:
        """No file is deleted."""

    def record_mark(self, phy_offset: int) -> tuple[int, int]:
        return 5, 1


LONG = 1 << 63
OFFSETS = (-5, -2, LONG, -LONG - 1, "three", "", " 3", "1e3", None, [], [3], {}, {"a": 1})
NUMBERS = ("x", "", [], {}, 1 << 31, -(1 << 31) - 1, "99999999999")
FILES = [
    OneFile(
        "consumerOffset.json",
        "offsetTable",
        {"t@g": {"0": 5, "1": "6", "02": 7}},
        [
            *((("t@g", "3"), value) for value in OFFSETS),
            *((("t@g", key), 3) for key in ("-3", "x", "", "0 ", "1.5", "2147483648", "-1")),
            *((("t@bad",), value) for value in (None, 5, [], "x")),
            *(((name,), {"0": 3}) for name in ("t", "@g", "t@", "")),
        ],
        read_offsets,
        change_offsets,
    ),
    OneFile(
        "lmqConsumerOffset.json",
        "lmqOffsetTable",
        {"t@%LMQ%g": 5},
        [
            *((("t@%LMQ%bad",), value) for value in OFFSETS),
            *(((name,), 3) for name in ("t", "@%LMQ%g", "t@", "")),
        ],
        lambda env, root: read_offsets(env, root, lmq=True),
        lambda env, root: change_offsets(env, root, lmq=True),
    ),
    OneFile(
        "delayOffset.json",
        "offsetTable",
        {"1": 5},
        [
            *((("2",), value) for value in (*OFFSETS, -1)),
            *(((key,), 3) for key in ("0", "-1", "x", "", "1.5", "2147483648")),
        ],
        read_levels,
        change_levels,
    ),
    OneFile(
        "subscriptionGroup.json",
        "subscriptionGroupTable",
        {"g": {"retryMaxTimes": 3}},
        [
            *((("bad",), value) for value in (None, 1, [], "x")),
            *((("bad",), {"retryMaxTimes": value}) for value in NUMBERS),
            (("",), {}),
        ],
        read_groups,
        change_groups,
    ),
    OneFile(
        "topics.json",
        "topicConfigTable",
        {"t": {"readQueueNums": 3, "writeQueueNums": 3}},
        [
            *((("bad",), value) for value in (None, 1, [], "x")),
            *((("bad",), {"readQueueNums": value}) for value in NUMBERS),
            *((("bad",), {"writeQueueNums": value}) for value in NUMBERS),
            (("",), {}),
        ],
        lambda env, root: topics_of(env, root).topics(),
        change_topics,
    ),
    OneFile(
        "consumerFilter.json",
        "filterDataByTopic",
        {"t": {"groupFilterData": {"g": FILTER}, "topic": "t"}},
        [
            *((("bad",), value) for value in (1, [], "x", {"groupFilterData": 1})),
            *(
                (("t", "groupFilterData", "bad"), value)
                for value in (
                    1,
                    [],
                    {},
                    FILTER | {"bloomFilterData": None},
                    FILTER | {"bloomFilterData": {"bitNum": 112, "bitPos": None}},
                    FILTER | {"bloomFilterData": {"bitNum": "x", "bitPos": [1, 2, 3]}},
                    FILTER | {"bloomFilterData": {"bitNum": 112, "bitPos": [1, 2, 112]}},
                    FILTER | {"bloomFilterData": {"bitNum": 112, "bitPos": [1, -2, 3]}},
                    FILTER | {"expression": 5},
                    FILTER | {"expressionType": []},
                    FILTER | {"bornTime": "x"},
                    FILTER | {"deadTime": None},
                )
            ),
        ],
        lambda env, root: {t: sorted(c) for t, c in filters_of(env, root)._compiled.items()},
        change_filters,
    ),
    OneFile(
        "topicMinOffset.json",
        "topicMinOffsetTable",
        {"t": MINIMUM},
        [
            *((("bad",), value) for value in (None, 1, [], "x", {})),
            *(
                (("bad",), MINIMUM | {name: value})
                for name in ("minPhyOffset", "recordPhyOffset", "recordSize", "recordCrc")
                for value in (-1, 1 << 62, "5", True, None)
            ),
            (("bad",), MINIMUM | {"dropping": 0}),
            (("bad",), MINIMUM | {"minPhyOffset": 6}),
            (("",), MINIMUM),
        ],
        read_minimums,
        change_minimums,
    ),
]
CASES = [
    pytest.param(one, path, value, id=f"{one.name}-{'/'.join(path)}-{json.dumps(value)[:40]}")
    for one in FILES
    for path, value in one.damaged
]


def with_entry(table: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    name, rest = path[0], path[1:]
    return {**table, name: with_entry(table.get(name, {}), rest, value) if rest else value}


def at(table: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        table = table[name]
    return table


def written(root: Path, one: OneFile, table: dict[str, Any]) -> Path:
    file = root / "config" / one.name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({one.table: table}))
    return file


@pytest.mark.parametrize(("one", "path", "value"), CASES)
def test_a_damaged_entry_counts_as_missing_and_stays(
    tmp_path: Path,
    one: OneFile,
    path: tuple[str, ...],
    value: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    env = Env()
    written(tmp_path, one, one.good)
    wanted = one.read(env, tmp_path)
    assert not caplog.records
    file = written(tmp_path, one, with_entry(one.good, path, value))
    for _ in range(3):
        assert one.read(env, tmp_path) == wanted
    (record,) = caplog.records
    assert str(file) in record.getMessage()
    assert path[-1] in record.getMessage()
    assert record.getMessage().isprintable()
    one.change(env, tmp_path)
    table = fastjson.parse(file.read_bytes())[one.table]
    assert at(table, path) == value, "the entry stays"
    assert len(str(table)) > len(str(with_entry(one.good, path, value))), "and another is new"
    assert len(caplog.records) == 1
    before = one.read(env, tmp_path)
    assert before != wanted
    one.change(env, tmp_path)
    assert one.read(env, tmp_path) == before


@pytest.mark.parametrize("one", FILES, ids=[one.name for one in FILES])
def test_many_damaged_entries_are_one_warning(
    tmp_path: Path, one: OneFile, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    table = one.good
    for number in range(30):
        name = str(-number - 1) if one.name == "delayOffset.json" else f"bad{number}"
        table = {**table, name: 5}
    written(tmp_path, one, table)
    one.read(Env(), tmp_path)
    (record,) = caplog.records
    assert "and 25 more" in record.getMessage()


@pytest.mark.parametrize("one", FILES, ids=[one.name for one in FILES])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not valid JSON: line 1, column 1: no content"),
        ('{\n\t"TABLE":{nope}}', "not valid JSON: line 2, column"),
        ('{"TABLE":{}}x', "not valid JSON: line 1, column"),
        ('{"TABLE":null}', ": must be an object, not null"),
        ('{"TABLE":[1]}', ": must be an object, not ["),
    ],
)
def test_the_backup_is_used_with_a_warning(
    tmp_path: Path, one: OneFile, text: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    env = Env()
    file = written(tmp_path, one, one.good)
    wanted = one.read(env, tmp_path)
    file.rename(f"{file}.bak")
    assert one.read(env, tmp_path) == wanted
    assert not caplog.records, "4.9.3 leaves only the backup if it is killed in a write"
    file.write_text(text.replace("TABLE", one.table))
    for _ in range(2):
        assert one.read(env, tmp_path) == wanted
    (record,) = caplog.records
    assert f"{file}: " in record.getMessage()
    assert reason in record.getMessage()
    assert "its backup is used" in record.getMessage()
    Path(f"{file}.bak").unlink()
    with pytest.raises(StoreCorruptionError) as raised:
        one.read(env, tmp_path)
    assert reason in raised.value.reason


@pytest.mark.parametrize("one", FILES, ids=[one.name for one in FILES])
@pytest.mark.parametrize("change", ["bom", "comma", "comment", "quotes", "keys"])
def test_an_edit_by_hand_counts(
    tmp_path: Path, one: OneFile, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    file = written(tmp_path, one, one.good)
    wanted = one.read(Env(), tmp_path)
    text = file.read_text()
    edits = {
        "bom": "\ufeff" + text,
        "comma": text.replace("}", ",}"),
        "comment": f"/* by hand */ {text} // the end",
        "quotes": text.replace('"', "'"),
        "keys": text.replace(f'"{one.table}"', one.table),
    }
    file.write_text(edits[change], "utf-8")
    Path(f"{file}.bak").write_text("{}")
    assert one.read(Env(), tmp_path) == wanted
    assert not caplog.records


def test_a_store_serves_the_rest(tmp_path: Path) -> None:
    """Writable, then read-only: positions, delayed messages, transactions and `verify`."""
    settings: dict[str, Any] = {**SIZES, "message_delay_level": "1h 2h"}
    with pyrocketstore.open(tmp_path, **settings) as store:
        for number in range(3):
            store.put("t", b"%d" % number)
        store.put("t", b"later", delay_level=1)
        with store.consumer("g", "t") as consumer:
            consumer.poll(2, timeout=0)
            consumer.commit()
    folder = tmp_path / "config"
    kept: list[tuple[OneFile, tuple[str, ...], Any]] = []
    for one in FILES:
        file = folder / one.name
        if one.name in ("lmqConsumerOffset.json", "consumerFilter.json"):
            continue
        content = fastjson.parse(file.read_bytes()) if file.exists() else {}
        table = content.get(one.table, {})
        path, value = one.damaged[0]
        kept.append((one, path, value))
        file.write_text(json.dumps({**content, one.table: with_entry(table, path, value)}))
        Path(f"{file}.bak").unlink(missing_ok=True)
    for read_only, at_g in ((True, 2), (False, 2), (True, 3)):
        with pyrocketstore.open(tmp_path, read_only=read_only, **settings) as store:
            (position,) = (
                p for p in store.consumer_positions() if (p.group, p.queue_id) == ("g", 0)
            )
            assert position.position == at_g
            assert [row.message_count for row in store.delayed()] == [1]
            assert store.transactions() == []
            assert store.verify().ok
            if not read_only:
                store.put("new", b"x")
                store.drop_topic("new")
                with store.consumer("g", "t") as consumer:
                    assert [m.body for m in consumer.poll(9, timeout=0)] == [b"2"]
                    consumer.commit()
    for one, path, value in kept:
        assert at(fastjson.parse((folder / one.name).read_bytes())[one.table], path) == value


def test_a_valid_position_replaces_a_damaged_one(tmp_path: Path) -> None:
    env = Env()
    written(tmp_path, FILES[0], {"t@g": {"0": -5, "1": 4}, "u@g": {"0": "x"}, "v@g": {"-3": 1}})
    offsets = ConsumerOffsets(env, str(tmp_path))
    offsets.load()
    assert not offsets.is_known("g", "u")
    offsets.commit_offset("g", "t", 0, 9)
    offsets.persist()
    table = fastjson.parse((tmp_path / "config" / FILES[0].name).read_bytes())["offsetTable"]
    assert table == {"t@g": {"0": 9, "1": 4}, "u@g": {"0": "x"}, "v@g": {"-3": 1}}
    offsets.forget_topic("u")
    offsets.forget_topic("v")
    table = fastjson.parse((tmp_path / "config" / FILES[0].name).read_bytes())["offsetTable"]
    assert table == {"t@g": {"0": 9, "1": 4}}


def test_a_broker_reads_what_is_written(tmp_path: Path) -> None:
    """Keys that are numbers have no quotes; those of damaged entries that are none have some."""
    written(tmp_path, FILES[0], {"t@g": {"0": 5, "-3": 1, "x y": 2, "01": 3}})
    change_offsets(Env(), tmp_path)
    text = (tmp_path / "config" / FILES[0].name).read_text()
    assert '"t@g":{0:5,1:3,-3:1,"x y":2\n' in text
