"""Goal: whatever ends a process while a topic is dropped or trimmed, the next opening has the topic
as before, or as after the call; after the call has returned, as after it. No other message is lost.
Method: a simulated device captures the moment before each call of a program that puts, drops and
trims, one topic and the whole log, and images of each are opened (a power cut, or a kill)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import device as simulated
from device import Captured, Device
from fault_programs import DIRECTORY, NEVER, open_store
from journal import SETTINGS
from judge import problems_but_torn
from pyrocketstore import MessageExt, Store
from support.seed import SEED
from survivors import examine_images

QUIET: dict[str, Any] = {
    **SETTINGS,
    "flush_interval_commit_log": NEVER,
    "flush_interval_consume_queue": NEVER,
    "flush_disk_type": "ASYNC_FLUSH",
}
#: Files of the log that trims of all topics delete.
SMALL = {"mapped_file_size_commit_log": 4096}
EXT = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 1 << 12}
IMAGES = 2

pytestmark = pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")

#: The numbers of the topic that may be found, and those that must be: they are durable.
State = dict[str, Any]


def program(root: Path, device: Device, settings: dict[str, Any]) -> list[Captured]:
    """Run two lives of a store, and capture moments with what is allowed and promised."""
    rng = random.Random(f"{SEED} topics")
    state: State = {"gone": [], "low": 0, "lowest": 0, "kept": 0, "trimmed": 0}
    # The queue offsets that must not be given again; "first": the first number that may be found.
    state |= {"next": 0, "rare": 0, "first": 0}
    device.promises = lambda: {**state, "gone": list(state["gone"])}
    device.captures_max, device.rate = 150, 1.0
    number = base = rare = early = 0
    for _ in range(2):
        store = open_store(root, settings, device)
        for life_round in range(4):
            # A trim of all topics may delete all messages of this one, and a group has read them.
            store.put("rare", b"%d" % rare)
            rare += 1
            with store.consumer("g", "rare") as consumer:
                consumer.poll(2, 0)
                consumer.commit()
            state["rare"] = rare
            if life_round == 0:  # its minimum leaves long before it gets another one
                for _ in range(3):
                    store.put("early", b"%d" % early, keys="k")
                    early += 1
                store.trim("early", before=1 << 62)
                state["first"] = early
            for _ in range(rng.randrange(1, 30)):
                state["gone"].append(number)
                store.put("gone", b"%d" % number, keys="k")
                store.put("kept", b"%d" % number, keys="k")
                device.clock_ms += 1
                number += 1
            if rng.random() < 0.5:
                store.flush()
                state["kept"], state["next"] = number, number - base
            # From here on the call may have removed them, and from its end on it has.
            state["low"] = number
            if settings.items() >= SMALL.items():
                # Deleted files take the minimums with them that no other message needs.
                start = store.min_offset("kept")
                state["trimmed"] = max(state["trimmed"], number - 1 - rng.randrange(20))
                at = max(start, state["trimmed"])
                (limit,) = store.read("kept", start=at, stop=at + 1)
                if rng.random() < 0.5:
                    store.trim(before=limit.store_timestamp)
                else:  # a rule in another thread, which has not cleaned the queues yet
                    services = store.message_store.services
                    services._log_retention().delete_older(limit.store_timestamp)
            if rng.random() < 0.6:
                state["next"] = 0
                store.drop_topic("gone")
                base = number
            else:
                store.trim("gone", before=1 << 62)
                state["next"] = number - base
            state["lowest"] = state["kept"] = number
        store.close()
    device.moment("end")
    captures = device.take_captures()
    device.captures_max = 0
    return captures


def messages_of(store: Store, topic: str) -> list[MessageExt]:
    return list(store.read(topic)) if topic in store.topics() else []


def numbers_of(store: Store, topic: str) -> list[int]:
    return [int(message.body) for message in messages_of(store, topic)]


def judge(store: Store, promised: State) -> list[int]:
    """Return the numbers of the topic; they are those before the call, or after it."""
    found = numbers_of(store, "gone")
    put = promised["gone"]
    if found:
        assert found == put[found[0] : found[0] + len(found)]
        # The trim of all topics may have removed more.
        lows = {low: max(low, promised["trimmed"]) for low in (promised["lowest"], promised["low"])}
        assert any(low <= found[0] <= high for low, high in lows.items()), (found, lows, len(put))
    early = numbers_of(store, "early")
    assert not early or early[0] >= promised["first"], early
    for topic, count in (("gone", "next"), ("rare", "rare")):
        end = store.max_offset(topic) if topic in store.topics() else 0
        assert end >= promised[count], topic
    kept, end = numbers_of(store, "kept"), store.max_offset("kept")
    assert end >= promised["kept"]
    if kept:
        assert kept == list(range(kept[0], end))
        assert kept[0] <= promised["trimmed"]
    else:  # those that a trim may have deleted; without a flush none of them needs to be known
        assert end <= promised["trimmed"]
    # An image may tear the properties of a message that was not durable; no CRC covers them.
    for topic, numbers in (("gone", found), ("kept", kept)):
        by_key = [int(m.body) for m in store.query(topic, "k", max_num=10_000)]
        assert by_key == [int(m.body) for m in messages_of(store, topic) if m.keys == "k"]
        durable = range(promised["trimmed"], promised["kept"])
        assert set(by_key) >= {number for number in numbers if number in durable}
    report = store.verify()
    problems = problems_but_torn(report)
    assert not problems, problems[:3]
    return found


def examine(moment: Captured, path: Path, settings: dict[str, Any]) -> None:
    """Open an image three times: as it is, again, and once its queues are built from the log."""
    with open_store(path, settings, None) as store:
        found = judge(store, moment.promised)
        number = store.put("gone", b"1000000", keys="k").queue_offset
        store.put("rare", b"1000000")
        with store.consumer("g", "rare") as consumer:
            assert [int(message.body) for message in consumer.poll(100, 0)][-1:] == [1_000_000]
    with open_store(path, settings, None) as store:
        assert numbers_of(store, "gone") == [*found, 1_000_000]
        assert store.max_offset("gone") == number + 1
        early = numbers_of(store, "early")
    root = path / DIRECTORY
    for name in ("consumequeue", "index"):
        shutil.rmtree(root / name)
    (root / "abort").touch()
    (root / "checkpoint").write_bytes(bytes(4096))
    with open_store(path, settings, None) as store:
        assert numbers_of(store, "gone") == [*found, 1_000_000]
        assert numbers_of(store, "early") == early


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("more", [{}, EXT, SMALL, SMALL | EXT], ids=["", "ext", "small", "both"])
def test_each_call_of_a_removal_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    monkeypatch.setattr(simulated, "FREQUENT_RATE", 0.3)
    root = tmp_path / "root"
    root.mkdir()
    device = Device(root, SEED)
    settings = QUIET | more
    captures = program(root, device, settings)
    device.release()
    assert any("topicMinOffset" in event for moment in captures for event in moment.events)
    examine_images(
        captures, tmp_path, IMAGES, lambda moment, path, _: examine(moment, path, settings)
    )
