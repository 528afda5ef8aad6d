"""Goal: whatever ends a process, a group's position passes no message that the log lacks, and no
position is lost whose commit has returned; no group and no filter is lost whose consumer was
returned.
Method: a simulated device captures the moment before each call of a program that puts, polls,
commits and opens again, and images of each are opened (a power cut, or a kill); each system call of
consumerOffset.json, lmqConsumerOffset.json, subscriptionGroup.json and consumerFilter.json fails in
turn."""

from __future__ import annotations

import errno
import json
import random
from pathlib import Path
from typing import Any

import pytest

import device as simulated
import pyrocketstore
from device import Captured, Device
from fault_programs import DIRECTORY, NEVER, open_store
from injection import Faults
from journal import SETTINGS
from judge import problems_but_torn
from pyrocketstore import StoreError, StoreIOError
from pyrocketstore.filter.bloom import BloomFilter
from support.seed import SEED
from support.sizes import SIZES
from survivors import examine_images

QUIET: dict[str, Any] = {
    **SETTINGS,
    "flush_interval_commit_log": NEVER,
    "flush_interval_consume_queue": NEVER,
    "flush_disk_type": "ASYNC_FLUSH",
}
LMQ = {"enable_lmq": True, "enable_multi_dispatch": True}
BIT_MAPS = {
    "enable_consume_queue_ext": True,
    "mapped_file_size_consume_queue_ext": 1 << 12,
    "enable_calc_filter_bit_map": True,
}
KINDS = {
    "consumerOffset.json": ({}, ("g", "h")),
    "lmqConsumerOffset.json": (LMQ, ("%LMQ%g", "h")),
    "consumerFilter.json": (BIT_MAPS, ("g", "h")),
}
#: Every message of the program passes.
WHERE = "a IS NULL"
IMAGES = 2
Promises = dict[str, int]

pytestmark = pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")


def position_of(store: Any, group: str) -> int:
    """Return the committed position of a group in queue t/0."""
    found = [row.position for row in store.consumer_positions() if row[:3] == (group, "t", 0)]
    return found[0] if found else 0


def program(
    root: Path, device: Device, settings: dict[str, Any], groups: tuple[str, ...]
) -> list[Captured]:
    """Run two lives of a store, and capture moments with the positions that are promised."""
    rng = random.Random(f"{SEED} {groups}")
    promised: Promises = {}
    device.promises = lambda: dict(promised)
    device.captures_max, device.rate = 80, 1.0
    number = 0
    for _ in range(2):
        store = open_store(root, settings, device)
        consumers = {}
        for group in groups:
            where = WHERE if settings.get("enable_calc_filter_bit_map") else None
            consumers[group] = store.consumer(group, "t", where=where)
            promised.setdefault(group, 0)
        for _ in range(4):
            for _ in range(rng.randrange(1, 30)):
                store.put("t", b"%d" % number)
                number += 1
            group = rng.choice(groups)
            consumer = consumers[group]
            consumer.poll(rng.randrange(1, 40), 0)
            if consumer.positions():
                consumer.commit()
                promised[group] = consumer.position("t", 0)
        end = store.max_offset("t", 0)
        store.consumer("latest", "t", start="latest")
        promised.setdefault("latest", end)  # where it has begun, in the first life
        store.close()
    device.moment("end")
    captures = device.take_captures()
    device.captures_max = 0
    return captures


def examine(moment: Captured, path: Path, settings: dict[str, Any]) -> None:
    """Open an image: no position is before what was promised, or behind the log's end."""
    with open_store(path, settings, None) as store:
        end = store.max_offset("t", 0)
        known: dict[str, Any] = {}
        file = path / DIRECTORY / "config" / "subscriptionGroup.json"
        if file.exists():
            known = json.loads(file.read_text())["subscriptionGroupTable"]
        for group, least in moment.promised.items():
            assert least <= position_of(store, group) <= end, (group, least, end)
            assert group in known or group.startswith("%LMQ%")
        for row in store.consumer_positions():
            assert row.position <= store.max_offset(row.topic, row.queue_id), row
        for group in moment.promised:
            with store.consumer(group, "t") as consumer:
                numbers = list[int]()
                while found := consumer.poll(1000, 0):
                    numbers += [message.queue_offset for message in found]
                assert numbers == list(range(position_of(store, group), end))
                consumer.commit()
        if settings.get("enable_calc_filter_bit_map"):
            examine_filters(store, path, [one for one in moment.promised if one != "latest"])
        report = store.verify()
        # An image may tear the properties of a message that was not durable; no CRC covers them.
        problems = problems_but_torn(report)
        assert not problems, problems[:3]


def examine_filters(store: Any, path: Path, groups: list[str]) -> None:
    """Require the filters of these groups in the file, and in the bit maps of new messages."""
    file = path / DIRECTORY / "config" / "consumerFilter.json"
    known: dict[str, Any] = {}
    if file.exists():
        table = json.loads(file.read_text())["filterDataByTopic"]
        known = table.get("t", {}).get("groupFilterData", {})
    assert set(groups) <= known.keys()
    at = store.max_offset("t", 0)
    for body, hit in ((b"passes", True), (b"fails", False)):
        store.put("t", body, properties=None if hit else {"a": "1"})
    store.wait_dispatched()
    queue, bloom = store.message_store.find_consume_queue("t", 0), BloomFilter(20, 32)
    units = [queue.get_ext(int(code)) for code in queue.read_units(at, 2).tags_code]
    for unit, hit in zip(units, (True, False), strict=True):
        for group in groups:
            assert bloom.is_hit(bloom.positions(f"{group}#t"), unit.bit_map) == hit


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", KINDS)
def test_each_call_of_a_commit_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setattr(simulated, "FREQUENT_RATE", 0.5)
    root = tmp_path / "root"
    root.mkdir()
    device = Device(root, SEED)
    more, groups = KINDS[file]
    settings = QUIET | more
    captures = program(root, device, settings, groups)
    device.release()
    assert any(file in event for moment in captures for event in moment.events)
    assert captures[-1].promised
    examine_images(
        captures, tmp_path, IMAGES, lambda moment, path, _: examine(moment, path, settings)
    )


def test_a_commit_that_fails_notes_nothing_for_another_group(tmp_path: Path) -> None:
    """Its messages may not be durable: the commit of another group writes all that is noted."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for number in range(10):
            store.put("t", b"%d" % number)
        first, second = store.consumer("g", "t"), store.consumer("h", "t")
        assert (len(first.poll(9, 0)), len(second.poll(3, 0))) == (9, 3)
        engine = store.message_store
        flush = engine.flush

        def fail() -> None:
            raise StoreIOError(errno.EIO, "of a test", str(tmp_path))

        engine.flush = fail  # type: ignore[method-assign, assignment]
        with pytest.raises(StoreIOError):
            first.commit()
        engine.flush = flush  # type: ignore[method-assign]
        second.commit()
        assert [row[:4] for row in store.consumer_positions()] == [("h", "t", 0, 3)]
        first.commit()
        assert [row.position for row in store.consumer_positions()] == [9, 3]


@pytest.fixture(scope="module")
def faults() -> Faults:
    return Faults()


ADDED = ("subscriptionGroup.json", "consumerFilter.json")


@pytest.mark.parametrize("file", ["consumerOffset.json", "lmqConsumerOffset.json", *ADDED])
def test_each_failing_call_of_a_file(tmp_path: Path, faults: Faults, file: str) -> None:
    """The call raises, the old file stays or the new one is there, and the next call writes it."""
    more, (group, _) = KINDS.get(file, KINDS["consumerOffset.json"])
    failed = 0
    for call in ("open", "pread", "pwrite", "fsync", "rename", "fsync_directory"):
        for number in range(1, 6):
            path = tmp_path / f"{call}{number}"
            failed += fails_once(path, faults, call, number, file, group, more)
    assert failed >= 4, failed


def fails_once(
    path: Path, faults: Faults, call: str, number: int, file: str, group: str, more: dict[str, Any]
) -> bool:
    """Let one call fail while a group's position is written; return whether there was an error."""
    settings = {**SIZES, **more}
    store = pyrocketstore.open(path, env=faults.env(), **settings)
    failed = False
    try:
        for body in range(10):
            store.put("t", b"%d" % body)
        consumer = store.consumer(group, "t")
        consumer.poll(3, 0)
        consumer.commit()
        consumer.poll(3, 0)
        faults.arm(call, number, number, errno=errno.EIO, only=file)
        added = group
        where = WHERE if file == "consumerFilter.json" else None
        try:
            if file in ADDED:
                added = "another"
                store.consumer(added, "t", where=where).close()
            else:
                consumer.commit()
        except StoreError:
            failed = True
        faults.disarm()
        with pyrocketstore.open(path, read_only=True, **settings) as reader:
            expected = {3, 6} if failed else {6 if added == group else 3}
            assert position_of(reader, group) in expected
        if store.message_store.failure is None:
            store.consumer(added, "t", where=where).close()
            consumer.commit()
            assert position_of(store, group) == 6
    finally:
        faults.disarm()
        try:
            store.close()
        except StoreError:
            assert failed
    with pyrocketstore.open(path, **settings) as again:
        assert position_of(again, group) in (3, 6)
        again.consumer(added, "t", where=where).close()
    if where is not None:
        table = json.loads((path / "config" / file).read_text())["filterDataByTopic"]
        assert added in table["t"]["groupFilterData"]
    listed = {one for one in (group, added) if not one.startswith("%LMQ%")}
    if listed:
        names = json.loads((path / "config" / "subscriptionGroup.json").read_text())
        assert listed <= names["subscriptionGroupTable"].keys()
    return failed
