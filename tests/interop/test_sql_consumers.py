"""Goal: a 4.9.3 broker with SQL92 consumers and an embedded program use each other's filters, bit
maps and positions, in one directory.
Method: a name server, a broker and clients run in turn with a store of ours; bit maps are compared
with the filters, message by message."""

from __future__ import annotations

import base64
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from broker import Cluster, Line
from pyrocketstore import Sql92Filter
from pyrocketstore.filter.bloom import BloomFilter

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]

WHERE = "price > 10 AND region IN ('eu', 'us')"
CONFIG: Line = {
    "mappedFileSizeCommitLog": 1 << 18,
    "mappedFileSizeConsumeQueue": 2000,
    "mappedFileSizeConsumeQueueExt": 1 << 16,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "enablePropertyFilter": True,
    "enableConsumeQueueExt": True,
    "enableCalcFilterBitMap": True,
    "flushConsumerOffsetInterval": 500,
}
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 18,
    "mapped_file_size_consume_queue": 2000,
    "mapped_file_size_consume_queue_ext": 1 << 16,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
    "enable_consume_queue_ext": True,
    "enable_calc_filter_bit_map": True,
}
LONGEST_S = 30.0


def properties(number: int) -> dict[str, str]:
    found = {"price": str(number % 20), "region": ("eu", "us", "as")[number % 3]}
    if number % 7 == 0:
        del found["region"]
    if number % 11 == 0:
        found["price"] = "dear"
    return found


def passing(numbers: range) -> list[bytes]:
    wanted = Sql92Filter(WHERE)
    return sorted(b"%d" % n for n in numbers if wanted.matches(properties(n)))


def request(number: int) -> Line:
    body = base64.b64encode(b"%d" % number).decode()
    pairs = [list(pair) for pair in properties(number).items()]
    return {"topic": "t", "tags": "A", "keys": "k", "body": body, "properties": pairs}


def bodies(lines: list[Line]) -> list[bytes]:
    return sorted(base64.b64decode(line["body"]) for line in lines)


def entry(path: Path, group: str) -> dict[str, Any]:
    text = (path / "config" / "consumerFilter.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)["filterDataByTopic"]["t"]["groupFilterData"][group]
    return found


def check_bit_maps(store: pyrocketstore.Store, born: int, group: str, bloom: BloomFilter) -> int:
    """Compare the bit maps of later messages with the filter; return their number."""
    wanted, positions, count = Sql92Filter(WHERE), bloom.positions(f"{group}#t"), 0
    for queue_id in store.queues("t"):
        queue = store.message_store.find_consume_queue("t", queue_id)
        codes = queue.read_units(0, 1 << 20).tags_code
        for message, code in zip(store.read("t", queue_id), codes, strict=True):
            unit = queue.get_ext(int(code))
            assert unit is not None
            assert unit.tags_code == message.tags_code
            if message.store_timestamp <= born:
                continue
            count += 1
            assert unit.bit_map is not None
            assert bloom.is_hit(positions, unit.bit_map) == wanted.matches(message.properties)
    return count


def test_we_continue_with_the_filter_of_a_broker(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with cluster.broker(path, CONFIG, signal.SIGTERM):
        cluster.produce([request(number) for number in range(40)])
        early = passing(range(40))
        assert bodies(cluster.consume(["t"], len(early), "shop", where=WHERE)) == early
        time.sleep(0.1)
        cluster.produce([request(number) for number in range(40, 80)])
    theirs = entry(path, "shop")
    assert (theirs["expression"], theirs["dead"]) == (WHERE, True)
    bloom = BloomFilter(20, 32)
    assert theirs["bloomFilterData"]["bitPos"] == bloom.positions("shop#t")
    assert theirs["bloomFilterData"]["bitNum"] == bloom.bit_count
    with pyrocketstore.open(path, **SETTINGS) as store:
        assert check_bit_maps(store, theirs["bornTime"], "shop", bloom) == 40
        with store.consumer("shop", "t", where=WHERE) as consumer:
            found: list[bytes] = []
            while polled := consumer.poll(32, 0.2):
                found += [message.body for message in polled]
            consumer.commit()
        assert sorted(found) == passing(range(40, 80))
        assert entry(path, "shop")["bornTime"] == theirs["bornTime"]


@pytest.mark.parametrize("killed", [False, True])
def test_a_broker_continues_with_our_filter(cluster: Cluster, tmp_path: Path, killed: bool) -> None:
    path = tmp_path / "store"
    with pyrocketstore.open(path, **SETTINGS) as store:
        for number in range(20):
            store.put("t", b"%d" % number, queue_id=number % 4, properties=properties(number))
        with store.consumer("shop", "t", where=WHERE) as consumer:
            first = [message.body for message in consumer.poll(100, 0)]
            consumer.commit()
        assert sorted(first) == passing(range(20))
        time.sleep(0.01)
        for number in range(20, 60):
            store.put("t", b"%d" % number, queue_id=number % 4, properties=properties(number))
        ours = entry(path, "shop")
        store.message_store.wait_dispatched()
        assert check_bit_maps(store, ours["bornTime"], "shop", BloomFilter(20, 32)) == 40
    if killed:
        (path / "abort").touch()
    with cluster.broker(path, CONFIG, signal.SIGTERM):
        later = passing(range(20, 60))
        assert bodies(cluster.consume(["t"], len(later), "shop", where=WHERE)) == later
        cluster.produce([request(number) for number in range(60, 80)])
        newest = passing(range(60, 80))
        assert bodies(cluster.consume(["t"], len(newest), "shop", where=WHERE)) == newest
    theirs = entry(path, "shop")
    assert theirs["bornTime"] == ours["bornTime"]
    assert theirs["bloomFilterData"] == ours["bloomFilterData"]
    assert theirs["clientVersion"] > ours["clientVersion"]
