"""Goal: the files of ROOT/config have exactly the text that docs/format.md shows.
Method: make the content of each example through the package, and compare the bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.commit_log.topic_min_offset_file import (
    RecordProof,
    TopicMinimum,
    TopicMinOffsetFile,
)
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.consumer.consumer_filters import ConsumerFilters
from pyrocketstore.consumer.offsets import ConsumerOffsets
from pyrocketstore.consumer.subscription_groups import SubscriptionGroups
from pyrocketstore.files import fastjson
from pyrocketstore.filter.sql92 import Sql92Filter
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.schedule.delay_offsets import DelayOffsets
from pyrocketstore.system._env import Event
from pyrocketstore.system.env import Env

PAGE = Path(__file__).parents[2] / "docs" / "format.md"


def examples() -> dict[str, str]:
    """Return {name of a file: its text} of section 7."""
    section = PAGE.read_text("utf-8").split("## 7. config/*.json")[1].split("## 8.")[0]
    (block,) = re.findall(r"^```\n(topics\.json.*?)\n```", section, re.DOTALL | re.MULTILINE)
    found = {}
    for example in block.split("\n\n"):
        name, text = example.split("\n", 1)
        found[name.split()[0]] = text.replace("→", "\t")
    return found


def without_version(text: str) -> str:
    return re.sub(r'("counter"|"timestamp"):\d+', r"\1:0", text)


def test_the_page_has_every_file() -> None:
    assert sorted(examples()) == [
        "consumerFilter.json",
        "consumerOffset.json",
        "delayOffset.json",
        "lmqConsumerOffset.json",
        "subscriptionGroup.json",
        "topicMinOffset.json",
        "topics.json",
    ]


def test_positions(tmp_path: Path) -> None:
    for lmq, name in ((False, "consumerOffset.json"), (True, "lmqConsumerOffset.json")):
        offsets = ConsumerOffsets(Env(), str(tmp_path / name), lmq=lmq)
        offsets.load()
        content = fastjson.parse(examples()[name].encode())
        tables = dict(content["offsetTable"])
        tables |= {name: {"0": at} for name, at in content.get("lmqOffsetTable", {}).items()}
        for key, queues in tables.items():
            topic, group = key.split("@")
            for queue_id, offset in queues.items():
                offsets.commit_offset(group, topic, int(queue_id), offset)
        offsets.persist()
        assert Path(offsets.path).name == name
        assert Path(offsets.path).read_text("utf-8") == examples()[name]


def test_delayed_messages(tmp_path: Path) -> None:
    offsets = DelayOffsets(Env(), str(tmp_path))
    offsets.load()
    offsets.persist({2: 24, 1: 23})
    assert Path(offsets.path).read_text("utf-8") == examples()["delayOffset.json"]


def test_minimums(tmp_path: Path) -> None:
    file = TopicMinOffsetFile(Env(), str(tmp_path))
    minimum = TopicMinimum(2020, RecordProof(1919, 101, 3325173484), False)
    config = MessageStoreConfig(store_path_root_dir=str(tmp_path))
    file.put("orders", minimum, CommitLog(Env(), config, Event()))
    assert Path(file.path).read_text("utf-8") == examples()["topicMinOffset.json"]


def test_groups(tmp_path: Path) -> None:
    groups = SubscriptionGroups(Env(), str(tmp_path))
    groups.load()
    groups.ensure("billing")
    groups.persist()
    text = Path(groups.path).read_text("utf-8")
    assert without_version(text) == without_version(examples()["subscriptionGroup.json"])
    assert json.loads(text)["dataVersion"]["counter"] == 1


def test_filters(tmp_path: Path) -> None:
    filters = ConsumerFilters(Env(), str(tmp_path), 20, 32, 1000, lambda: 0)
    filters.load()
    filters.register("billing", "orders", Sql92Filter("a > 5"))
    filters.persist()
    text = Path(filters.path).read_text("utf-8")
    times = re.compile(r'("bornTime"|"clientVersion"):\d+')
    assert times.sub(r"\1:0", text) == times.sub(r"\1:0", examples()["consumerFilter.json"])


def test_topics(tmp_path: Path) -> None:
    topics = TopicConfigFile(Env(), str(tmp_path / "config" / "topics.json"))
    topics.load()
    topics.ensure("orders", 3)
    topics.persist()
    text = Path(topics.path).read_text("utf-8")
    assert without_version(text) == without_version(examples()["topics.json"])
