"""Goal: the arriving listener, the dispatchers and the put totals of a store have the values that
4.9.3's have.
Method: both engines get random messages of every kind; their calls are compared in order."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from pyrocketstore import DefaultMessageStore, MessageStoreConfig
from pyrocketstore.message_store.broker_stats import BrokerStatsManager
from pyrocketstore.results import DispatchRequest
from support.java_store import require_java
from support.random_messages import random_messages, to_batch, to_inner
from support.seed import SEED

pytestmark = pytest.mark.java

KINDS = ("batch", "v6", "tx", "delay", "comp", "empty", "collide", "wide")
CONFIG = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 40_000,
    "messageDelayLevel": " ".join(["1h"] * 18),
}


class Calls:
    """Return the calls that our store makes, in the form of the driver's lines."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def arriving(self, topic: str, queue_id: int, offset: int, tags: int, time: int, *rest: Any):
        line = {"event": "arriving", "topic": topic, "queue_id": queue_id, "offset": offset}
        self.lines.append(
            line | {"tags_code": tags, "store_timestamp": time, "properties": rest[1]}
        )

    def dispatch(self, request: DispatchRequest) -> None:
        self.lines.append(
            {
                "event": "dispatch",
                "topic": request.topic,
                "queue_id": request.queue_id,
                "offset": request.consume_queue_offset,
                "tags_code": request.tags_code,
                "store_timestamp": request.store_timestamp,
                "properties": request.properties_map,
                "phy_offset": request.commit_log_offset,
                "size": request.msg_size,
                "keys": request.keys,
                "uniq_key": request.uniq_key,
                "sys_flag": request.sys_flag,
                "prepared": request.prepared_transaction_offset,
            }
        )


def of_ours(path: Path, specs: list[dict[str, Any]], **settings: Any) -> list[dict[str, Any]]:
    """Return the calls and totals of our store."""
    calls = Calls()
    config = MessageStoreConfig(
        store_path_root_dir=str(path),
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20_000,
        max_hash_slot_num=1000,
        max_index_num=40_000,
        message_delay_level=CONFIG["messageDelayLevel"],
        **settings,
    )
    store = DefaultMessageStore(config, message_arriving_listener=calls)
    store.get_dispatcher_list().append(calls.dispatch)
    store.load()
    store.start()
    for spec in specs:
        if "batch" in spec:
            store.put_messages(to_batch(spec))
        else:
            store.put_message(to_inner(spec))
    store.wait_dispatched()
    for topic in sorted({spec["topic"] for spec in specs} | {"SCHEDULE_TOPIC_XXXX"}):
        times = store.get_single_put_message_topic_times_total(topic)
        size = store.get_single_put_message_topic_size_total(topic)
        calls.lines.append({"event": "totals", "topic": topic, "times": times, "size": size})
    store.shutdown()
    return calls.lines


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line without store times, which differ; a delay's tags code is one."""
    line = {name: value for name, value in line.items() if name != "confirm_offset"}
    time = line.pop("store_timestamp", 0)
    if isinstance(line.get("properties"), str):
        line["properties"] = json.loads(line["properties"])
    if line["topic"] == "SCHEDULE_TOPIC_XXXX" and "tags_code" in line:
        line["tags_code"] -= time
    return line


@pytest.mark.parametrize(
    ("kinds", "light"), [(KINDS, False), (("tx", "lmq"), True)], ids=["all", "light"]
)
def test_calls_and_totals_are_those_of_4_9_3(
    tmp_path: Path, kinds: tuple[str, ...], light: bool
) -> None:
    java = require_java()
    specs = random_messages(int(SEED), 200, kinds, max_body=300)
    multi = {"enableLmq": True, "enableMultiDispatch": True} if light else {}
    settings = {"enable_lmq": True, "enable_multi_dispatch": True} if light else {}
    theirs = [without_times(line) for line in java.events(tmp_path / "java", specs, CONFIG | multi)]
    ours = [without_times(line) for line in of_ours(tmp_path / "ours", specs, **settings)]
    assert len(ours) > 2 * len(specs)
    for number, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        assert our == their, f"line {number}"


def test_broker_stats_have_the_names_and_values_of_4_9_3(tmp_path: Path) -> None:
    java = require_java()
    delayed = [spec for spec in random_messages(int(SEED), 40) if "batch" not in spec][:6]
    for number, spec in enumerate(delayed):
        spec["properties"] = [("DELAY", str(1 + number % 2))]
    levels = "1s 1s"
    lines = java.events(
        tmp_path / "java", delayed, CONFIG | {"messageDelayLevel": levels}, "deliveries=6"
    )
    theirs = {
        (line["name"], line["key"]): (line["value"], line["times"])
        for line in lines
        if line["event"] == "stats"
    }
    stats = BrokerStatsManager()
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path / "ours"), message_delay_level=levels
    )
    store = DefaultMessageStore(config, broker_stats_manager=stats)
    store.load()
    store.start()
    for spec in delayed:
        store.put_message(to_inner(spec))
    key = "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER"
    while (item := stats.get_stats_item("GROUP_GET_SIZE", key)) is None or item.times < 6:
        time.sleep(0.01)
    stats.inc_group_get_nums("g", "t", 3)
    stats.inc_group_get_size("g", "t", 300)
    stats.inc_queue_get_nums("g", "t", 2, 3)
    stats.inc_queue_get_size("g", "t", 2, 300)
    stats.inc_topic_put_nums("u", 4, 1)
    stats.inc_topic_put_size("u", 400)
    stats.inc_queue_put_nums("u", 1, 4, 1)
    stats.inc_queue_put_size("u", 1, 400)
    stats.inc_broker_get_nums(3)
    stats.inc_send_back_nums("g", "t")
    store.shutdown()
    for (name, key), figures in theirs.items():
        found = stats.get_stats_item(name, key)
        if name == "BROKER_PUT_NUMS":  # the driver puts without a broker, which counts puts
            assert found is not None and found.value == figures[0] + len(delayed)
            continue
        assert found is not None and (found.value, found.times) == figures, (name, key)
    assert len(theirs) > 12
