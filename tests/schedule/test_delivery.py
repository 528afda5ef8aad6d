"""Goal: each delayed message reaches its real topic when it is due, once if the store stops
cleanly, and no refusal, damage or restart loses one.
Method: small stores with short levels; statuses, faults and clocks through the table of calls."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import PutMessageStatus, Store, StoreFormatError
from pyrocketstore.commit_log._puts import make_result
from pyrocketstore.record.message import SCHEDULE_TOPIC
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.deliveries import no_deliveries
from support.sizes import SIZES

#: Level 1 is due at once, the last one never within a test.
LEVELS: dict[str, Any] = {**SIZES, "message_delay_level": "0s 1s 2h"}
NOW, SECOND, NEVER = 1, 2, 3
LONGEST_S = 20.0


def opened(path: Path, **settings: Any) -> Store:
    return pyrocketstore.open(path, **{**LEVELS, **settings})


def bodies(store: Store, topic: str = "t", queue_id: int = 0) -> list[bytes]:
    if topic not in store.topics():
        return []
    return [message.body for message in store.read(topic, queue_id)]


def awaited(store: Store, count: int, topic: str = "t", queue_id: int = 0) -> list[bytes]:
    """Wait until so many messages are in a queue."""
    end = time.monotonic() + LONGEST_S
    while store.max_offset(topic, queue_id) < count and time.monotonic() < end:
        time.sleep(0.002)
    return bodies(store, topic, queue_id)


def service_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "ScheduleMessageService"]


def test_a_message_is_delivered_when_it_is_due(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        result = store.put(
            "t", b"later", queue_id=3, tags="A", keys="k", properties={"a": "b"}, flag=7,
            born_timestamp=99, delay_level=SECOND,
        )  # fmt: skip
        assert (result.queue_offset, bodies(store, "t", 3)) == (0, [])
        assert store.get(result.phy_offset).topic == SCHEDULE_TOPIC
        assert awaited(store, 1, "t", 3) == [b"later"]
        (message,) = store.read("t", 3)
        (delayed,) = store.read(SCHEDULE_TOPIC, SECOND - 1)
        assert message.store_timestamp >= delayed.store_timestamp + 1000
        assert message.properties == delayed.properties
        assert message.properties == {
            "TAGS": "A", "KEYS": "k", "a": "b", "DELAY": "2", "REAL_TOPIC": "t", "REAL_QID": "3",
        }  # fmt: skip
        assert (message.flag, message.born_timestamp) == (7, 99)
        assert [found.phy_offset for found in store.query("t", "k")] == [message.phy_offset]
        assert [found.body for found in store.read("t", 3, tags="A")] == [b"later"]


def test_levels_of_a_put(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert store.put("t", b"", delay_level=0).queue_offset == 0
        for level in (NEVER, NEVER + 1, 2**31 - 1):
            store.put("t", b"", delay_level=level)
        assert store.max_offset(SCHEDULE_TOPIC, NEVER - 1) == 3
        for level in (-1, 2**31):
            with pytest.raises(StoreFormatError, match="delay_level"):
                store.put("t", b"", delay_level=level)


def test_a_store_without_delayed_messages_has_no_thread(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put("t", b"")
        assert service_threads() == []
        store.put("t", b"", delay_level=NEVER)
        assert service_threads() != []
    assert service_threads() == []
    with opened(tmp_path):  # a message waits
        assert service_threads() != []


def test_a_put_wakes_the_service(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put("t", b"never", delay_level=NEVER)
        time.sleep(0.1)  # it sleeps
        store.put("t", b"now", delay_level=NOW)
        began = time.monotonic()
        assert awaited(store, 1) == [b"now"]
        assert time.monotonic() - began < 5


def test_a_clean_stop_repeats_nothing(tmp_path: Path) -> None:
    sent = [b"%d" % number for number in range(900)]
    for turn in range(3):
        with opened(tmp_path) as store:
            for body in sent[turn * 300 : turn * 300 + 300]:
                store.put("t", body, delay_level=NOW)
            if turn == 0:
                assert awaited(store, 300) == sent[:300]
    with opened(tmp_path) as store:
        assert awaited(store, 900) == sent
    with opened(tmp_path) as store:
        time.sleep(0.1)
        assert bodies(store) == sent
    text = (tmp_path / "config" / "delayOffset.json").read_text()
    assert text == '{\n\t"offsetTable":{1:900\n\t}\n}'


def test_what_was_due_while_the_store_was_closed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put("t", b"later", delay_level=SECOND)
    time.sleep(1.1)
    with opened(tmp_path) as store:
        assert awaited(store, 1) == [b"later"]


def test_aput_delays_too(tmp_path: Path) -> None:

    async def put(store: Store) -> None:
        await store.aput("t", b"async", delay_level=NOW)

    with opened(tmp_path, flush_disk_type="SYNC_FLUSH") as store:
        asyncio.run(put(store))
        assert awaited(store, 1) == [b"async"]


@pytest.fixture
def env() -> Iterator[Env]:
    yield Env()


def test_a_position_never_passes_a_delivery_that_is_not_durable(tmp_path: Path, env: Env) -> None:
    settings = {"flush_delay_offset_interval": 1, "flush_interval_commit_log": 10**7}
    file = tmp_path / "config" / "delayOffset.json"
    fails = False

    def sync(original: Any, *arguments: Any) -> int:
        return -errno.EIO if fails else int(original(*arguments))

    with (
        pytest.raises(pyrocketstore.StoreError),
        opened(tmp_path, env=env, **settings) as store,
        broken(env, "fdatasync", sync),
        broken(env, "msync", sync),
    ):
        store.put("t", b"first", delay_level=NOW)
        awaited(store, 1)
        end = time.monotonic() + LONGEST_S
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.002)
        before = file.read_text()
        assert "1:1" in before
        fails = True
        store.put("t", b"second", delay_level=NOW)
        awaited(store, 2)
        time.sleep(0.05)
        assert file.read_text() == before
        store.flush()
    assert file.read_text() == before


def test_a_put_that_is_refused_is_tried_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        engine = store.message_store
        service = engine.services.schedule_service
        assert service is not None
        put, refusals = service._put, iter(range(2))

        def refuse(message: Any) -> Any:

            refused = next(refusals, None) is not None
            return make_result(PutMessageStatus.OS_PAGECACHE_BUSY) if refused else put(message)

        service._put = refuse
        store.put("t", b"one", delay_level=NOW)
        store.put("t", b"two", delay_level=NOW)
        assert awaited(store, 2) == [b"one", b"two"]


def test_a_message_that_can_never_be_put_holds_no_other_up(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put(SCHEDULE_TOPIC, b"names no topic", tags="A", queue_id=NOW - 1)
        store.put("t", b"good", delay_level=NOW)
        assert awaited(store, 1) == [b"good"]


def test_the_clock_was_set_back(tmp_path: Path, env: Env) -> None:
    """A message is not due later than its level's delay from now."""
    shift = 0

    def now(original: Any) -> int:
        return int(original()) + shift

    with broken(env, "now_ms", now), opened(tmp_path, env=env) as store:
        store.put("t", b"later", delay_level=SECOND)
        shift = -3_600_000
        store.put("t", b"wakes", delay_level=NOW)
        assert sorted(awaited(store, 2)) == [b"later", b"wakes"]


def test_a_shorter_level_makes_a_message_due_at_once(tmp_path: Path) -> None:
    """A message that its level cannot delay so long is due; the store that delivers lists it so."""
    hour_ms = 3_600_000
    with opened(tmp_path) as store:
        store.put("t", b"early", delay_level=NEVER)
        (waits,) = store.delayed()
        assert waits.first_due == waits.last_due > store.message_store.now() + hour_ms
    with opened(tmp_path, read_only=True, message_delay_level="0s 1s 3s") as store:
        assert store.delayed() == [waits._replace(delay_ms=3000)]  # its owner has other levels
    with no_deliveries(), opened(tmp_path, message_delay_level="0s 1s 3s") as store:
        (listed,) = store.delayed()
        assert listed.first_due == listed.last_due <= store.message_store.now()
    with opened(tmp_path, message_delay_level="0s 1s 3s") as store:
        assert awaited(store, 1) == [b"early"]
        assert store.delayed() == []
